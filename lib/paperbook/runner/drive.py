"""Carries out a plan: hands runs to an engine, shows how far they are, and writes how each ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Protocol

from paperbook.runner.folder import Claim, Heart, TakenError, discard, finished_result, shown
from paperbook.runner.forecast import duration
from paperbook.runner.plan import Item, Plan
from paperbook.runner.spec import Outcome, RunSpec

PLAIN_SECONDS = 30.0
"""How often a plain line says how far a run is, where the output is no terminal."""


class Engine(Protocol):
    """Where runs run."""

    name: str
    capacity: int

    def submit(self, spec: RunSpec) -> Future[Outcome]:
        """Start a run, or queue it."""

    def cancel(self) -> None:
        """Stop everything; finished runs stay finished."""

    def close(self) -> None:
        """Free what the engine holds."""


@dataclass(frozen=True)
class Ended:
    """One run of the plan and how it ended; `skipped` says why it was not run."""

    item: Item
    outcome: Outcome
    skipped: str = ""


class _Run:
    """A run in flight."""

    def __init__(self, item: Item, claim: Claim) -> None:
        self.item, self.claim, self.start, self.told = item, claim, time.monotonic(), time.monotonic()

    def progress(self) -> tuple[float | None, str]:
        """Share done (None: not said) and a line for a person."""
        seconds = time.monotonic() - self.start
        share, what = None, ""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
            said = json.loads((self.item.spec.folder / "progress.json").read_text(encoding="utf-8"))
            share, what = min(max(said["done"] / said["total"], 0.0), 1.0), str(said["what"])
        left = None
        if self.item.forecast and self.item.action == "run":
            left = self.item.forecast.seconds - seconds
        elif share and not what:
            left = seconds * (1 - share) / share
        parts = [] if share is None else [f"{what}: {share:.0%}" if what else f"{share:.0%}"]
        parts.append(f"{duration(seconds)} so far")
        if left is not None and left > 0:
            parts.append(f"about {duration(left)} left")
        return share, ", ".join(parts)


def run(plan: Plan, engine: Engine, *, force: bool = False, say: Callable[[str], None] = print) -> tuple[list[Ended], bool]:
    """Carry out `plan` with `engine`; SIGTERM, SIGHUP and Ctrl-C stop it and leave every run resumable.

    Args:
        plan: without problems.
        engine: where the runs run; closed at the end.
        force: forget checkpoints and results first.
        say: receives plain lines.

    Returns:
        How each run of the plan ended, and whether it was stopped.
    """
    ended = [Ended(item, Outcome("finished"), "finished before") for item in plan.items if item.action == "skip"]
    pending = plan.pending
    flights: dict[Future[Outcome], _Run] = {}
    heart = Heart(complain=say)
    stopping = threading.Event()

    def stop(*_: object) -> None:
        if not stopping.is_set():
            stopping.set()
            say("stopping; what runs is left resumable")
            engine.cancel()

    with _signals(stop), _Display(len(pending), say) as display:
        try:
            for item in pending:
                with contextlib.suppress(TakenError, OSError), _claimed(item.spec, watch=0.0) as claim:
                    claim.plan()
            while pending or flights:
                while pending and len(flights) < engine.capacity and not stopping.is_set():
                    item = pending.pop(0)
                    flight = _start(item, engine.name, force)
                    if isinstance(flight, Ended):
                        ended.append(flight)
                        display.done(flight)
                        continue
                    heart.add(flight.claim)
                    display.started(flight)
                    flights[engine.submit(item.spec)] = flight
                if stopping.is_set():
                    ended += [_not_started(item) for item in pending]
                    pending = []
                for future in wait(flights, timeout=0.3, return_when=FIRST_COMPLETED).done if flights else ():
                    flight = flights.pop(future)
                    heart.remove(flight.claim)
                    ended.append(_end(flight, future))
                    display.done(ended[-1])
                display.show(list(flights.values()), pending, engine.capacity)
        finally:
            engine.cancel()  # nothing is left but after an error of our own
            heart.stop()
            engine.close()
    order = {id(item): i for i, item in enumerate(plan.items)}
    return sorted(ended, key=lambda e: order[id(e.item)]), stopping.is_set()


@contextlib.contextmanager
def _claimed(spec: RunSpec, watch: float) -> Iterator[Claim]:
    claim = Claim(spec, watch)
    try:
        yield claim
    finally:
        claim.release()


def _start(item: Item, engine: str, force: bool) -> _Run | Ended:
    """Take the run; another process may have it, or may have finished it since the plan was made."""
    spec = item.spec
    try:
        claim = Claim(spec)
    except TakenError as error:
        return Ended(item, Outcome("planned"), str(error))
    except OSError as error:
        return Ended(item, _unwritable(error))
    try:
        document, _ = finished_result(spec.folder, spec.config_hash)
        if document is not None and not force and spec.code_hash in (document["provenance"].get("code_hash"), "unknown"):
            claim.release()
            return Ended(item, Outcome("finished"), "finished by another process meanwhile")
        if force:
            discard(spec.folder)
        claim.start(engine)
    except OSError as error:
        claim.release()
        return Ended(item, _unwritable(error))
    except BaseException:
        claim.release()
        raise
    return _Run(item, claim)


def _unwritable(error: OSError) -> Outcome:
    return Outcome("failed", 0.0, "error", f"its folder cannot be written ({error.strerror or error})")


def _end(flight: _Run, future: Future[Outcome]) -> Ended:
    try:
        outcome = future.result()
    except Exception as error:  # an engine's own failure is the run's, the others go on
        outcome = Outcome("failed", time.monotonic() - flight.start, "error", f"{type(error).__name__}: {error}")
    try:
        flight.claim.end(outcome)
    except OSError as error:
        if outcome.status == "finished":
            outcome = Outcome("failed", outcome.seconds, "error", f"its manifest cannot be written ({error.strerror}); run again")
    finally:
        flight.claim.release()
    return Ended(flight.item, outcome)


def _not_started(item: Item) -> Ended:
    outcome = Outcome("cancelled", 0.0, "cancelled", "not started")
    with contextlib.suppress(TakenError, OSError), _claimed(item.spec, watch=0.0) as claim:
        claim.end(outcome)
    return Ended(item, outcome)


@contextlib.contextmanager
def _signals(stop: Callable[..., None]) -> Iterator[None]:
    """Signals call `stop` while this lasts; only the main thread can catch them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup has asked to go on when the terminal closes
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Display:
    """Bars on a terminal, plain lines elsewhere."""

    def __init__(self, total: int, say: Callable[[str], None]) -> None:
        self.total, self.count, self.say = total, 0, say
        self.live: Any = None
        self.tasks: dict[str, Any] = {}
        self.start = time.monotonic()

    def __enter__(self) -> _Display:
        if sys.stderr.isatty() and shutil.get_terminal_size().columns >= 60 and self.total:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            self.live = Progress(TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[line]}"),
                                 console=Console(stderr=True))  # fmt: skip
            self.live.start()
            self.all = self.live.add_task("all runs", total=self.total, line="")
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def started(self, flight: _Run) -> None:
        """A run begins."""
        spec = flight.item.spec
        if self.live:
            self.tasks[spec.name] = self.live.add_task(spec.name, total=1.0, line="")
        else:
            self.say(f"{spec.name}: started, log in {shown(spec.folder / 'log.txt')}")

    def show(self, flights: list[_Run], pending: list[Item], capacity: int) -> None:
        """How far everything is."""
        for flight in flights:
            share, line = flight.progress()
            name = flight.item.spec.name
            if self.live:
                self.live.update(self.tasks[name], completed=share or 0.0, line=line)
            elif time.monotonic() - flight.told >= PLAIN_SECONDS:
                flight.told = time.monotonic()
                self.say(f"{name}: {line}")
        if self.live:
            self.live.update(self.all, completed=self.count, line=self._left(flights, pending, capacity))

    def _left(self, flights: list[_Run], pending: list[Item], capacity: int) -> str:
        costs = [f.item.forecast.seconds - (time.monotonic() - f.start) for f in flights if f.item.forecast]
        costs += [item.forecast.seconds for item in pending if item.forecast]
        so_far = f"{self.count} of {self.total}, {duration(time.monotonic() - self.start)} so far"
        if len(costs) < len(flights) + len(pending) or not costs:
            return so_far
        return f"{so_far}, about {duration(sum(max(c, 0.0) for c in costs) / min(capacity, len(costs)))} left"

    def done(self, ended: Ended) -> None:
        """A run is over."""
        self.count += 1
        name, outcome = ended.item.spec.name, ended.outcome
        text = f"skipped, {ended.skipped}" if ended.skipped else f"{outcome.status} after {duration(outcome.seconds)}"
        line = f"[{self.count}/{self.total}] {name}: {text}" + (f": {outcome.message}" if outcome.message else "")
        line = "\n".join([*(f"{name}: note: {note}" for note in outcome.notes), line])
        if self.live:
            if name in self.tasks:
                self.live.remove_task(self.tasks.pop(name))
            self.live.console.print(line, markup=False, highlight=False)
        else:
            self.say(line)


def usable_workers(plan: Plan, engine_gpus: int, gpus_per_run: float | None) -> int:
    """Runs at once on this machine: as many as GPUs allow where runs use them, else as many as cores, never more than runs."""
    runs = max(1, len(plan.pending))
    if plan.gpu and engine_gpus:
        share = gpus_per_run or 1.0
        return max(1, min(runs, int(engine_gpus / share)))
    return max(1, min(runs, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
