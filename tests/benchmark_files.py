"""What every benchmark script of a chapter writes, checked alike."""

import json
import math
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest


def check_written(result: dict[str, Any], theories: Collection[float]) -> None:
    """Rows with their ratios, slopes beside one of `theories`, provenance."""
    assert {"quick", "rows", "slopes", "details", "provenance"} == result.keys()
    for row in result["rows"]:
        assert {"case", "ours", "peer", "unit", "ratio", "note"} == row.keys() and row["ours"] > 0
        assert row["ratio"] == (None if row["peer"] is None else pytest.approx(row["ours"] / row["peer"]))
    assert all(math.isfinite(slope["measured"]) and slope["theory"] in theories for slope in result["slopes"])
    assert {"date", "commit", "dirty", "threads", "versions", "hardware", "lock_hash"} <= result["provenance"].keys()


def run_quick(folder: Path, out: Path) -> dict[str, Any]:
    """The script's small sizes in a process of its own, written to `out`, whose folder holds nothing else afterwards."""
    subprocess.run([sys.executable, str(folder / "bench.py"), "--quick", "--out", str(out)], check=True)
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    result: dict[str, Any] = json.loads(out.read_text())
    assert result["quick"]
    return result
