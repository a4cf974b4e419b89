"""What a run will cost: recorded runs, scaled by the method's complexity."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from paperbook.study import paths
from paperbook.study.params import Config
from paperbook.study.results import read_json

_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class Record:
    """One recorded run: its parameters (seed included), wall seconds, and where it ran."""

    parameters: dict[str, Any]
    seconds: float
    hardware: str


@dataclass(frozen=True)
class Forecast:
    """Expected wall seconds of one run and what that rests on."""

    seconds: float
    basis: str


def forecast(cfg: Config, records: list[Record]) -> Forecast | None:
    """Wall seconds of `cfg` from `records` of the same page; None where no record is of its kind.

    Runs of the same parameters are averaged, those on the hardware that most of them ran on. Else the nearest in amount of
    :meth:`Config.work`, and of the same kind, is scaled.
    """
    # what changes the speed only is no part of what a run records as its parameters
    wanted = cfg.model_dump(mode="json", exclude={"seed", *cfg.speed_parameters})
    same = [r for r in records if _without(r.parameters, {"seed", *cfg.speed_parameters}) == wanted]
    if same:
        usual = Counter(r.hardware for r in same).most_common(1)[0][0]
        same = [r for r in same if r.hardware == usual]
        count = f"{len(same)} recorded run{'s' if len(same) > 1 else ''}"
        return Forecast(sum(r.seconds for r in same) / len(same), f"{count} of it, {usual}")
    work = cfg.work()
    if work is None:
        return None
    nearest: tuple[float, Record, float] | None = None
    for record in records:
        try:
            other = type(cfg)(**record.parameters).work()
        except ValueError:
            continue  # recorded by an older version of the page
        if other is None or other.kind != work.kind or other.amount <= 0 or work.amount <= 0:
            continue
        distance = abs(math.log(work.amount / other.amount))
        if nearest is None or distance < nearest[0]:
            nearest = (distance, record, work.amount / other.amount)
    if nearest is None:
        return None
    _, record, factor = nearest
    times = "as much work as" if math.isclose(factor, 1.0) else f"{factor:.3g} times the work of"
    return Forecast(record.seconds * factor, f"{times} a recorded run, {record.hardware}")


def records(slug: str, page: str) -> list[Record]:
    """Recorded runs of a page: committed results, and what is finished under runs/; files that cannot be read are left out."""
    found = []
    for path in sorted((paths.chapter(slug) / "results").glob(f"{page}.*.json")):
        try:
            found += [_record(run) for run in read_json(path)["runs"]]
        except _UNREADABLE:
            continue
    for path in sorted((paths.runs() / slug / page).glob("*/result.json")):
        try:
            found.append(_record(read_json(path)))
        except _UNREADABLE:
            continue
    # a joined run usually still lies under runs/ too
    return [record for i, record in enumerate(found) if record not in found[:i]]


def _record(run: dict[str, Any]) -> Record:
    provenance = run["provenance"]
    hardware = provenance["hardware"]
    where = ", ".join(hardware.get("gpus", [])) or hardware.get("processor", "unknown processor")
    parameters = {**provenance["parameters"], "seed": provenance["seed"]}
    seconds = float(provenance["wall_seconds"])
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"wall_seconds: expected a number of seconds, got {seconds}")
    return Record(parameters, seconds, f"on {where}")


def _without(values: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def duration(seconds: float) -> str:
    """Seconds as a person says them: ``40 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    seconds = max(seconds, 0.0)
    if seconds < 1:
        return "under 1 s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
