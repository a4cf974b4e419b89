"""The benchmark script runs and writes what the cost page reads. It times nothing here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_files import check_written, run_quick

FOLDER = Path(__file__).parent / "safe-residual"


def check(result):
    check_written(result, {1, 3})
    for size in result["details"]["against_peers"]:
        assert {"ours", "lightgbm", "xgboost"} == size["methods"].keys()
        assert all(method["mse"] > 0 for method in size["methods"].values())
    # two solvers of the same system, condition number below n/1e-3 = 1e6
    assert result["details"]["penalty_grid"]["largest_difference"] < 1e-8


def test_the_script_runs(tmp_path):
    check(run_quick(FOLDER, tmp_path / "sub" / "benchmarks.json"))


def test_memory_is_measured_in_a_process_of_its_own():
    command = [sys.executable, str(FOLDER / "bench.py"), "--memory", "ours", "--n", "60", "--n-test", "100"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system does not tell the peak memory of a process (no /proc/self/clear_refs)")
    assert float(told) >= 0


def test_the_committed_table_is_a_full_run():
    result = json.loads((FOLDER / "benchmarks.json").read_text())
    check(result)
    assert not result["quick"] and [size["n"] for size in result["details"]["against_peers"]] == [50, 500, 5000]
    assert all(size["repeats"] >= 5 for size in result["details"]["against_peers"])
