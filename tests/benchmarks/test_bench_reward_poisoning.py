"""The benchmark script of the reward-poisoning chapter runs and writes what the cost page reads. It times nothing here."""

import json
from pathlib import Path

from benchmark_files import check_written, run_quick

FOLDER = Path(__file__).parent / "reward-poisoning"


def check(result):
    check_written(result, {1})
    difference = result["details"]["difference"]
    # a certificate is exact to 1e-6, and so is the peer at the accuracy it is given
    assert max(difference[key] for key in ("batch", "one", "heat map")) <= 2e-6
    assert difference["cheapest"] <= 1e-4  # cvxpy's default accuracy, on a norm whose square is minimised elsewhere


def test_the_script_runs(tmp_path):
    check(run_quick(FOLDER, tmp_path / "sub" / "benchmarks.json"))


def test_the_committed_result_is_a_full_one():
    result = json.loads((FOLDER / "benchmarks.json").read_text())
    check(result)
    assert not result["quick"] and result["rows"][0]["ratio"] < 1 / 10, "the goal for the batch: ten times building each anew"
