"""The benchmark script runs and writes what the cost page reads. It times nothing here."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "safe-residual"


def check(result):
    assert {"chapter", "quick", "against_peers", "kernel_cost", "piecewise_cost", "penalty_grid", "provenance"} == result.keys()
    for row in result["against_peers"]:
        assert {"n", "repeats", "mse_black_box", "methods"} == row.keys() and "ours" in row["methods"]
        for method in row["methods"].values():
            assert {"seconds", "mse", "peak_mb", "time_ratio", "mse_ratio"} == method.keys()
            assert method["seconds"] > 0 and method["mse"] > 0
        assert row["methods"]["ours"]["time_ratio"] == row["methods"]["ours"]["mse_ratio"] == 1.0
    for key, theory in (("kernel_cost", 3.0), ("piecewise_cost", 1.0)):
        cost = result[key]
        assert cost["theory"] == theory and len(cost["n"]) == len(cost["seconds"]) and math.isfinite(cost["slope"])
    grid = result["penalty_grid"]
    assert grid["largest_difference"] < 1e-8  # two solvers of the same system, condition number below n/1e-3 = 1e6
    assert grid["ratio"] == pytest.approx(grid["seconds_refits"] / grid["seconds_eigendecomposition"])
    assert {"date", "commit", "dirty", "threads", "versions", "hardware", "wall_seconds"} == result["provenance"].keys()


def test_the_script_runs(tmp_path):
    out = tmp_path / "sub" / "benchmarks.json"
    subprocess.run([sys.executable, str(FOLDER / "bench.py"), "--quick", "--out", str(out)], check=True)
    result = json.loads(out.read_text())
    check(result)
    assert result["quick"] and [p.name for p in out.parent.iterdir()] == ["benchmarks.json"]


def test_the_committed_table_is_a_full_run():
    result = json.loads((FOLDER / "benchmarks.json").read_text())
    check(result)
    assert not result["quick"] and [row["n"] for row in result["against_peers"]] == [50, 500, 5000]
    assert all(row["repeats"] >= 5 for row in result["against_peers"])
