"""What every chapter's benchmark shares: medians of turns, cost against size, peak memory, one JSON that the cost page reads.

Nothing passes or fails here. Methods take turns in one process with one thread, so a slow minute hits all of them.
A chapter's ``bench.py`` sets the threads by importing this module first.
"""
# ruff: noqa: E402 - the number of threads is set before numpy is imported

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"  # before numpy is imported

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paperbook.study.results import surroundings, write_json


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """Wall seconds of one call, and what it returned."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def taking_turns(jobs: Mapping[Any, Callable[[], Any]], repeats: int) -> dict[Any, list[tuple[float, Any]]]:
    """Run every job once a round, `repeats` rounds: job name -> (seconds, result) of each round."""
    done: dict[Any, list[tuple[float, Any]]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            done[name].append(seconds(job))
    return done


def median_seconds(rounds: Sequence[tuple[float, Any]]) -> float:
    """Median of the times of :func:`taking_turns` for one job."""
    return float(np.median([spent for spent, _ in rounds]))


def cost_against_size(sizes: Sequence[int], job: Callable[[int], Callable[[], Any]], repeats: int) -> tuple[float, list[float]]:
    """Least-squares slope of log median seconds on log size, and the medians; the smallest size runs once unmeasured."""
    jobs = {size: job(size) for size in sizes}
    jobs[sizes[0]]()
    done = taking_turns(jobs, repeats)
    medians = [median_seconds(done[size]) for size in sizes]
    return float(np.polyfit(np.log(sizes), np.log(medians), 1)[0]), medians


def peak_growth_mb(warm: Callable[[], Any], work: Callable[[], Any]) -> float | None:
    """Growth of this process's peak memory by one `work`, in MB; None where the system cannot tell. Call it in a fresh process.

    `warm` runs first: imports and first-call buffers belong to the libraries, not to the work.
    """
    warm()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # else the work is served from what loading the data has freed
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts again from the present size
        before = _resident("VmRSS")
    except OSError:
        return None
    work()
    return _resident("VmHWM") - before


def _resident(field: str) -> float:
    """VmRSS (now) or VmHWM (peak) of this process in MB (10^6 bytes)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) * 1024 / 1e6


def row(case: str, ours: float, peer: float | None, unit: str, note: str = "") -> dict[str, Any]:
    """One line of the cost page's table: same work, ours and the peer's median, their ratio."""
    ratio = None if peer is None else ours / peer
    return {"case": case, "ours": ours, "peer": peer, "unit": unit, "ratio": ratio, "note": note}


def publish(out: Path, rows: list[dict[str, Any]], slopes: list[dict[str, Any]], details: dict[str, Any], quick: bool) -> Path:
    """Write the benchmark atomically: `rows` and `slopes` for the cost page, `details` behind them, provenance."""
    provenance = {**surroundings(), "threads": 1}
    return write_json(out, {"quick": quick, "rows": rows, "slopes": slopes, "details": details, "provenance": provenance})
