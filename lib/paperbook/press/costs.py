"""What a page costs: measured at smoke by `paperbook execute`, at reader and full from the provenance of results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paperbook.press import execute, toc
from paperbook.study.results import load_results


@dataclass(frozen=True)
class Measured:
    """Cost of the joined runs of one page at one profile: mean wall seconds a seed, seeds, peak MB, hardware."""

    seconds: float
    seeds: int
    peak_mb: float
    hardware: str


def smoke(slug: str, page: str) -> dict[str, int | float] | None:
    """{seconds, cpu_seconds, peak_mb} of the page's last execution, or None before the first."""
    return execute.costs().get(f"{slug}/{page}")


def measured(slug: str, page: str, profile: str) -> Measured | None:
    """Cost of the committed result of a page at `profile`, or None where there is none.

    Raises:
        ResultError: a damaged results file.
    """
    results = load_results(slug, page, profile)
    if results is None or not results.provenance:
        return None
    seconds = [float(row["wall_seconds"]) for row in results.provenance]
    peak = max(float(row.get("peak_mb", 0)) for row in results.provenance)
    return Measured(sum(seconds) / len(seconds), len(seconds), peak, _hardware(results.provenance[0]))


def _hardware(provenance: dict[str, Any]) -> str:
    hardware = provenance.get("hardware", {})
    gpus = hardware.get("gpus") or []
    if gpus:
        return f"{len(gpus)} × {gpus[0]}"
    return f"{hardware['cores']} CPU cores" if "cores" in hardware else "CPU"


def line(slug: str, page: str) -> str:
    """The cost line under a page's title."""
    parts = ["smoke not measured yet"]
    row = smoke(slug, page)
    if row:
        parts = [f"smoke {duration(row['seconds'])}, {memory(row['peak_mb'])} (measured, one CPU thread)"]
    for profile in ("reader", "full"):
        found = measured(slug, page, profile)
        if found:
            parts.append(
                f"{profile} {duration(found.seconds)} × {found.seeds} {'seed' if found.seeds == 1 else 'seeds'}, "
                f"{memory(found.peak_mb)} (measured, {found.hardware})"
            )
    meta = toc.index(slug)
    if meta.get("main_page") == page and not measured(slug, page, "full"):
        parts.append(full_estimate(meta))
    return "Cost: " + " · ".join(part for part in parts if part)


def full_estimate(meta: dict[str, Any]) -> str:
    """``full 9 h on 1 x H100, 40 GB (estimate)`` from index.yaml; empty where it says nothing."""
    full = meta.get("full") or {}
    if not full:
        return ""
    said = [str(full[key]) for key in ("wall_clock", "gpu", "memory") if full.get(key)]
    return f"full {', '.join(said)} (estimate, not run)"


def duration(seconds: int | float) -> str:
    """Seconds below two minutes, minutes below two hours, else hours."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def memory(megabytes: int | float) -> str:
    """MB below 1 GB, else GB."""
    return f"{megabytes:.0f} MB" if megabytes < 1000 else f"{megabytes / 1000:.1f} GB"
