"""``paperbook run``: plan, refuse or carry out, and say what came of it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paperbook.runner import checks, drive
from paperbook.runner.drive import Ended, Engine
from paperbook.runner.folder import shown
from paperbook.runner.forecast import duration
from paperbook.runner.plan import Plan, PlanError, make

ENGINES = ("local", "ray")


def run(
    target: str, profile: str, seeds: str, changes: list[str], engine: str, workers: int | None, gpus_per_run: float | None,
    dry_run: bool, force: bool, as_json: bool,
) -> int:  # fmt: skip
    """The command; see its help. Returns the exit code.

    Raises:
        PlanError: the request itself is wrong; nothing was started.
    """
    try:
        return _run(target, profile, seeds, changes, engine, workers, gpus_per_run, dry_run, force, as_json)
    except (ValueError, FileNotFoundError) as error:
        if as_json:  # whoever reads the document must not meet an empty one; the caller prints the line
            print(_json(Plan(problems=[str(error)]), [], 2))
        raise


def _run(
    target: str, profile: str, seeds: str, changes: list[str], engine: str, workers: int | None, gpus_per_run: float | None,
    dry_run: bool, force: bool, as_json: bool,
) -> int:  # fmt: skip
    if engine not in ENGINES:
        raise PlanError(f"engine: expected one of {', '.join(ENGINES)}, got {engine!r}")

    def say(line: str) -> None:
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)

    cluster = os.environ.get("RAY_ADDRESS") if engine == "ray" else None
    try:
        plan = make(target, profile, seeds, changes, gpus_per_run=gpus_per_run, force=force, check_machine=not cluster)
    except FileNotFoundError:
        raise  # says itself what is missing
    except OSError as error:  # a folder of another user, a name too long for the disk
        where = f"{shown(Path(error.filename))}: " if isinstance(error.filename, str) else ""
        raise PlanError(f"{where}cannot be looked at ({error.strerror}); PAPERBOOK_RUNS and PAPERBOOK_CACHE name other folders")\
            from None  # fmt: skip
    except OverflowError as error:  # a page reckons its needs in floats, and an integer of Python may be larger
        raise PlanError(f"a parameter is too large to reckon with ({error})") from None
    if cluster:
        plan.warnings.append(f"engine ray at {cluster}: weights, data, memory and GPUs are checked by each worker, not here")
    for line in _table(plan):
        say(line)
    for warning in plan.warnings:
        say(f"note: {warning}")
    for problem in plan.problems:
        print(f"paperbook: {problem}", file=sys.stderr)
    code = 0
    ended: list[Ended] = []
    if plan.problems:
        code = 2
    elif plan.pending and not dry_run:
        ended, stopped = drive.run(plan, _engine(engine, plan, workers, gpus_per_run), force=force, say=say)
        for line in _summary(ended):
            say(line)
        states = {e.outcome.status for e in ended if not e.skipped}
        elsewhere = any(e.skipped and e.outcome.status != "finished" for e in ended)
        code = 130 if stopped else 1 if elsewhere or states - {"finished"} else 0
    if as_json:
        print(_json(plan, ended, code))
    return code


def _engine(name: str, plan: Plan, workers: int | None, gpus_per_run: float | None) -> Engine:
    share = gpus_per_run
    if name == "ray":
        from paperbook.runner.engines.ray import RayEngine

        return RayEngine(workers, share if share is not None else (1.0 if plan.gpu and _ray_may_have_gpus() else 0.0))
    from paperbook.runner.engines.local import LocalEngine

    gpus = [gpu.id for gpu in checks.gpus()]
    if share is None and plan.gpu and gpus:
        share = 1.0
    # runs that see no GPU are as many as cores allow
    return LocalEngine(workers or drive.usable_workers(plan, 0 if share == 0 else len(gpus), share), gpus, share)


def _ray_may_have_gpus() -> bool:
    """A cluster that cannot be asked before it is joined is taken to have GPUs; on this machine nvidia-smi says."""
    return bool(os.environ.get("RAY_ADDRESS")) or bool(checks.gpus())


def _table(plan: Plan) -> list[str]:
    """The plan as aligned lines, and its cost."""
    rows = [["run", "what", "forecast"]]
    for item in plan.items:
        cost = "" if item.action == "skip" else "no record" if item.forecast is None else duration(item.forecast.seconds)
        rows.append([item.spec.name, item.action + (f": {item.why}" if item.why else ""), cost])
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    folders = dict.fromkeys(shown(item.spec.folder).rpartition("-s")[0] for item in plan.items)
    lines += [f"folder: {folder}-s<seed>" for folder in folders]
    bases = list(dict.fromkeys(f"{i.spec.page}: {i.forecast.basis}" for i in plan.pending if i.forecast))
    known = [item.forecast.seconds for item in plan.pending if item.forecast]
    if known:
        unknown = len(plan.pending) - len(known)
        more = f", and {unknown} run{'s' if unknown > 1 else ''} without a record" if unknown else ""
        lines.append(f"forecast: {duration(sum(known))} of one worker's time{more}")
        lines += [f"  from {basis}" for basis in bases]
    if not plan.pending:
        lines.append("all runs are finished; --force runs them anew")
    return lines


def _summary(ended: list[Ended]) -> list[str]:
    """Totals, and for what failed the last lines of its traceback and where its log is."""
    lines = []
    counts: dict[str, int] = {}
    for one in ended:
        name = "skipped" if one.skipped else one.outcome.status
        counts[name] = counts.get(name, 0) + 1
        if one.outcome.status == "failed":
            lines.append(f"\n{one.item.spec.name}: {one.outcome.message}")
            lines += [f"    {line}" for line in one.outcome.traceback.strip().splitlines()[-12:]]
            lines.append(f"  log: {shown(one.item.spec.folder / 'log.txt')}")
    lines.append(", ".join(f"{count} {name}" for name, count in counts.items()))
    again = [e for e in ended if e.outcome.status in ("failed", "cancelled") and e.outcome.kind != "diverged"]
    if again:
        lines.append("the same command again goes on from the last checkpoints")
    if any(e.outcome.kind == "diverged" for e in ended):
        lines.append("what diverged would diverge again: change the parameter it names, which makes another run")
    return lines


def _json(plan: Plan, ended: list[Ended], code: int) -> str:
    """The document, in ASCII: it must come through whatever encoding a terminal or a pipe has."""
    return json.dumps(_document(plan, ended, code), indent=1)


def _document(plan: Plan, ended: list[Ended], code: int) -> dict[str, Any]:
    items = [{**item.spec.to_dict(), "folder": shown(item.spec.folder), "action": item.action, "why": item.why,
              "forecast": asdict(item.forecast) if item.forecast else None} for item in plan.items]  # fmt: skip
    outcomes = [{"slug": e.item.spec.slug, "page": e.item.spec.page, "profile": e.item.spec.profile, "seed": e.item.spec.seed,
                 "folder": shown(e.item.spec.folder), "skipped": e.skipped, **asdict(e.outcome)} for e in ended]  # fmt: skip
    return {"exit_code": code, "problems": plan.problems, "warnings": plan.warnings, "plan": items, "outcomes": outcomes}
