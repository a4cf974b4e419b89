"""The ledger: verdicts from executed pages and from committed results."""

from __future__ import annotations

import json

import pytest

from paperbook.press import ledger, toc
from paperbook.study import closure

SLUG = "demo-one"

RESULT_CLAIM = """
- id: mean-is-small
  claim: The mean of the sample is near zero.
  kind: table
  where: Table 1
  paper: 0.5
  paper_source: paper
  criterion: {at_least: -1, at_most: 1}
  evidence: {page: 1-method, key: mean, profile: reader}
- id: never-run
  claim: The mean at the paper's scale is near zero.
  kind: table
  where: Table 2
  paper_source: paper
  criterion: {at_most: 1}
  evidence: {page: 1-method, key: mean, profile: full}
  reason: it needs a GPU server
- id: silent
  claim: A claim that no page judges.
  kind: property
  where: Section 3
  paper_source: paper
  criterion: {at_most: 1}
  evidence: {page: 1-method, key: none, profile: live}
"""


def write_result(root, values, code_hash: str, profile: str = "reader") -> None:
    """A joined result as `paperbook results` writes it."""
    provenance = {"wall_seconds": 90.0, "peak_mb": 200.0, "hardware": {"cores": 2}}
    runs = [{"metrics": {"mean": value}, "provenance": provenance | {"seed": seed}} for seed, value in enumerate(values)]
    path = root / f"chapters/{SLUG}/results/1-method.{profile}.json"
    path.parent.mkdir(exist_ok=True)
    document = {"slug": SLUG, "page": "1-method", "profile": profile, "code_hash": code_hash, "runs": runs}
    path.write_text(json.dumps(document))


def rows(here):
    with (here.root / f"chapters/{SLUG}/claims.yaml").open("a") as stream:
        stream.write(RESULT_CLAIM)
    return {row.claim.id: row for row in ledger.rows(SLUG)}


def test_live_results_reasons_and_totals(here) -> None:
    write_result(here.root, [0.1, 0.2, 0.3], closure.code_hash(SLUG, "1-method"))
    found = rows(here)
    assert {name: row.verdict for name, row in found.items()} == {
        "mean-is-stationary": "holds", "mean-is-small": "holds", "never-run": "not attempted", "silent": "not attempted",
    }  # fmt: skip
    assert found["never-run"].note == "it needs a GPU server" and found["never-run"].value == "–"
    assert "1-method" in found["silent"].note
    # Student t with two degrees of freedom: 0.2 +- 4.303 * 0.1 / sqrt(3)
    assert found["mean-is-small"].value == "0.2 [−0.0484, 0.448], 3 seeds"
    assert sum(ledger.totals(found.values()).values()) == 4
    assert ledger.totals_text(list(found.values())) == "4 claims: 2 hold, 2 not attempted"
    assert [row.claim.id for row in ledger.all_rows()] == list(found) and toc.toc_slugs() == [SLUG]


def test_results_of_older_code_say_so(here) -> None:
    write_result(here.root, [0.1, 0.2], "0" * 16)
    row = rows(here)["mean-is-small"]
    assert row.verdict == "measured with older code" and row.note.startswith("then: ")


def test_a_chapter_without_claims_has_an_empty_ledger(here) -> None:
    (here.root / f"chapters/{SLUG}/claims.yaml").unlink()
    assert ledger.rows(SLUG) == [] and ledger.totals_text([]) == "no claims yet"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0.123456, "0.123"), (12, "12"), (True, "True"), ("x", "x"), (1.5e-9, "1.5·10⁻⁹"), (2.0, "2"),
        (-2, "−2"), (1234567, "1\u202f234\u202f567"), (-1e300, "−1·10³⁰⁰"), (-0.25, "−0.25"),
    ],
)  # fmt: skip
def test_digits(value, text: str) -> None:
    assert ledger.digits(value) == text


def test_the_command_prints_the_ledger(book) -> None:
    text = book.paperbook("claims")
    assert "mean-is-stationary  holds" in text and text.rstrip().endswith("1 claim: 1 holds")
    assert "did you mean demo-one" in book.paperbook("claims", "demo-on", code=2)
