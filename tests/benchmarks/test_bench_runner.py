"""The runner's benchmark script runs and writes what the page on full scale reads. It times nothing here."""

import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "runner"


def test_the_script_runs(tmp_path):
    out = tmp_path / "benchmarks.json"
    subprocess.run([sys.executable, str(FOLDER / "bench.py"), "--quick", "--out", str(out)], check=True)
    result = json.loads(out.read_text())
    assert result["quick"] and [row["peer"] is None for row in result["rows"]] == [False, True, True]
    assert all(row["ours"] > 0 for row in result["rows"]) and result["provenance"]["threads"] == 1


def test_what_is_published_was_measured_in_full():
    result = json.loads((FOLDER / "benchmarks.json").read_text())
    assert not result["quick"] and all(len(times) == 3 for times in result["details"]["seconds"].values())
    assert min(result["details"]["seconds"]["papermill"]) > 20  # half a minute, not a toy
