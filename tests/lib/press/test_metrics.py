"""The glossary of metrics: what it reads and refuses, and that the contract asks for every judging number."""

import pytest

from paperbook.press import contract, metrics
from paperbook.study import paths

GOOD = {"name": "risk", "keys": ["curve.*", "risk"], "definition": "d", "direction": "lower", "unit": "1"}


def written(monkeypatch, tmp_path, text):
    (tmp_path / "metrics.yaml").write_text(text)
    monkeypatch.setattr(paths, "chapter", lambda slug: tmp_path)


def test_patterns_cover_keys():
    metric = metrics.Metric("s", "Risk of it", ("curve.*", "risk"), "d", "lower", "1")
    assert metric.covers("curve.safe") and metric.covers("risk") and not metric.covers("risks")
    assert metric.anchor == "metric-s-risk-of-it"
    assert metrics.of_key([metric], "curve.x") is metric and metrics.of_key([metric], "other") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: 1", "list"), ("- name: x", "write name, keys"), ("- just text", "write name, keys"),
     ("- {name: x, keys: k, definition: d, direction: lower, unit: '1'}", "list of result keys"),
     ("- {name: x, keys: [], definition: d, direction: lower, unit: '1'}", "list of result keys"),
     ("- {name: x, keys: [k], definition: d, direction: lower, unit: '1', more: 1}", "write name, keys")],
)  # fmt: skip
def test_a_bad_file_says_what_to_write(monkeypatch, tmp_path, text, message):
    written(monkeypatch, tmp_path, text)
    with pytest.raises(ValueError, match=message):
        metrics.load("s")


def test_no_file_is_no_metric(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "chapter", lambda slug: tmp_path)
    assert metrics.load("s") == []


def test_the_contract_asks_for_what_is_missing(monkeypatch, tmp_path):
    written(monkeypatch, tmp_path, "- {name: x, keys: [a.*], definition: d, direction: lower, unit: '1'}")
    monkeypatch.setattr(metrics, "judged_keys", lambda slug: ["a.one", "b.two"])
    (message,) = contract.metrics_named("s")
    assert "'b.two'" in message and "metrics.yaml" in message


def test_the_real_chapter_is_covered():
    assert contract.metrics_named("safe-residual") == []
    assert len(metrics.judged_keys("safe-residual")) > 20
