"""Claims: the verdict follows from the bound and the interval, and from nothing else."""

import json

import pytest

from paperbook.study import results
from paperbook.study.claims import ClaimError, Criterion, load_claims
from paperbook.study.params import Config
from paperbook.study.results import Run, join
from paperbook.study.statistics import Estimate


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (0.03, "holds"),
        (0.05, "holds"),
        (0.0, "holds"),
        (0.06, "fails"),
        (True, "fails"),
        (Estimate(0.03, 0.01, 0.049, 5), "holds"),
        (Estimate(0.03, -0.01, 0.04, 5), "holds weakly"),
        (Estimate(0.06, 0.04, 0.08, 5), "fails"),
    ],
)
def test_verdict(repository, ours, verdict):
    line = load_claims("toy").verdict("gap-closes", ours=ours)
    assert line == f"gap-closes: {verdict} (bound [0, 0.05])"


def test_a_claim_without_a_result_is_not_attempted(repository):
    line = load_claims("toy").verdict("table-one")
    assert line == "table-one: not attempted (bound ≥ 10; no reader result is committed)"


def measured(monkeypatch, gains):
    monkeypatch.setattr(results, "_git_state", lambda: ("c0ffee", False))

    class Page(Config):
        steps: int = 20
        tau: float = 0.0

    for seed, gain in enumerate(gains):
        Run("toy", "1-page", Page(profile="reader", seed=seed)).finish({"score": {"gain": gain}})
    join("toy")


@pytest.mark.parametrize(
    ("gains", "verdict"), [([12.0, 12.1, 11.9], "holds"), ([9.0, 12.0, 12.0], "holds weakly"), ([9.0, 9.1, 9.2], "fails")]
)
def test_a_committed_result_is_judged_over_seeds(repository, monkeypatch, gains, verdict):
    measured(monkeypatch, gains)
    assert load_claims("toy").judge("table-one").verdict == verdict


def test_older_code_keeps_no_verdict(repository, monkeypatch):
    measured(monkeypatch, [12.0, 12.1, 11.9])
    monkeypatch.setattr(results, "current_code_hash", lambda *_: "changed")
    assert load_claims("toy").verdict("table-one") == "table-one: measured with older code (bound ≥ 10; then: holds)"


def test_live_verdicts_and_reads_are_recorded_for_the_press(repository, monkeypatch, tmp_path):
    log = tmp_path / "record.jsonl"
    monkeypatch.setenv("PAPERBOOK_RECORD", str(log))
    load_claims("toy").verdict("gap-closes", ours=0.0123456)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {"kind": "read", "path": "chapters/toy/claims.yaml"} in lines
    (claim,) = [line for line in lines if line["kind"] == "claim"]
    assert claim["id"] == "gap-closes" and claim["value"] == 0.0123 and claim["verdict"] == "holds"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.verdict("gap-close", ours=1), "no such claim in toy; did you mean gap-closes?"),
        (lambda c: c.verdict("gap-closes"), "live; pass ours"),
        (lambda c: c.verdict("table-one", ours=3), "pass no ours"),
        (lambda c: c.verdict("gap-closes", ours=float("nan")), "finite"),
    ],
)
def test_misuse(repository, call, message):
    with pytest.raises(ClaimError, match=message):
        call(load_claims("toy"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: property", "kind: rumour", "gap-closes: kind"),
        ("criterion: {at_least: 0, at_most: 0.05}", "criterion: {}", "at_least, at_most or both"),
        ("criterion: {at_least: 0, at_most: 0.05}", "criterion: {at_least: 2, at_most: 1}", "exceeds"),
        ("id: table-one", "id: gap-closes", "id used twice: gap-closes"),
        ("profile: live", "profile: tomorrow", "evidence.profile"),
        ("where: Sec. 1", "wher: Sec. 1", "wher: Extra inputs"),
        ("- id: gap-closes", "- id: [", "not valid YAML"),
    ],
)
def test_a_bad_file_is_named(repository, old, new, message):
    path = repository / "chapters" / "toy" / "claims.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises((ClaimError, ValueError), match=message):
        load_claims("toy")


def test_a_missing_file_is_named(repository):
    (repository / "chapters" / "toy" / "claims.yaml").unlink()
    with pytest.raises(ClaimError, match=r"toy/claims\.yaml: no such file"):
        load_claims("toy")


def test_one_sided_bounds_read_well():
    assert str(Criterion(at_most=0.5)) == "bound ≤ 0.5" and str(Criterion(at_least=-1)) == "bound ≥ -1"
