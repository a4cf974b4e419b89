"""The benchmark script of the DR-submodular chapter runs and writes what the cost page reads. It times nothing here."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "dr-submodular"


def check(result):
    assert {"quick", "rows", "slopes", "details", "provenance"} == result.keys()
    for row in result["rows"]:
        assert {"case", "ours", "peer", "unit", "ratio", "note"} == row.keys() and row["ours"] > 0
        assert row["ratio"] == pytest.approx(row["ours"] / row["peer"])
    assert all(math.isfinite(slope["measured"]) and slope["theory"] == 1 for slope in result["slopes"])
    reward = result["details"]["players"]["reward"]
    # the two loops draw the same numbers; bisection to 2^-50 of the largest coordinate moves a reward by less than 1e-9
    assert reward["loop"] == pytest.approx(reward["by hand"], abs=1e-9)
    # the batch draws others: 4 standard errors of a mean over players, whose rewards differ by a few per cent
    assert reward["batched"] == pytest.approx(reward["loop"], rel=0.2 if result["quick"] else 0.01)
    assert {"date", "commit", "dirty", "threads", "versions", "hardware", "lock_hash"} <= result["provenance"].keys()


def test_the_script_runs(tmp_path):
    out = tmp_path / "sub" / "benchmarks.json"
    subprocess.run([sys.executable, str(FOLDER / "bench.py"), "--quick", "--out", str(out)], check=True)
    result = json.loads(out.read_text())
    check(result)
    assert result["quick"]


def test_the_committed_result_is_a_full_one():
    result = json.loads((FOLDER / "benchmarks.json").read_text())
    check(result)
    assert not result["quick"] and result["rows"][0]["ratio"] < 1 / 20, "the goal for the batch: 20 times the loop over players"
