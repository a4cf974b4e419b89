"""The benchmark script of the DR-submodular chapter runs and writes what the cost page reads. It times nothing here."""

import json
from pathlib import Path

import pytest
from benchmark_files import check_written, run_quick

FOLDER = Path(__file__).parent / "dr-submodular"


def check(result):
    check_written(result, {1})
    reward = result["details"]["players"]["reward"]
    # the two loops draw the same numbers; bisection to 2^-50 of the largest coordinate moves a reward by less than 1e-9
    assert reward["loop"] == pytest.approx(reward["by hand"], abs=1e-9)
    # the batch draws others: 4 standard errors of a mean over players, whose rewards differ by a few per cent
    assert reward["batched"] == pytest.approx(reward["loop"], rel=0.2 if result["quick"] else 0.01)


def test_the_script_runs(tmp_path):
    check(run_quick(FOLDER, tmp_path / "sub" / "benchmarks.json"))


def test_the_committed_result_is_a_full_one():
    result = json.loads((FOLDER / "benchmarks.json").read_text())
    check(result)
    assert not result["quick"] and result["rows"][0]["ratio"] < 1 / 20, "the goal for the batch: 20 times the loop over players"
