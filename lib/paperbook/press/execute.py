"""Executes stale pages in parallel processes and publishes them, one atomic write a page.

A page that fails leaves its earlier version intact and does not stop the others. Ctrl-C ends the workers; pages that
were not finished stay as they were.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paperbook.press import pages, stamp, toc
from paperbook.study import paths

_FOLDER = "paperbook-execute-"
CELL_TIMEOUT = 300  # seconds; the same limit as in the notebook regression


@dataclass
class Outcome:
    """What became of one page: `error` is None when it was published."""

    slug: str
    page: str
    seconds: float = 0.0
    error: str | None = None
    changed: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``slug/page``."""
        return f"{self.slug}/{self.page}"


def costs_file() -> Path:
    """``book/pages/costs.json``: measured seconds and memory of every page at the smoke profile."""
    return paths.root() / "book" / "pages" / "costs.json"


def costs() -> dict[str, dict[str, int | float]]:
    """``slug/page`` -> {seconds, cpu_seconds, peak_mb}, as measured at the page's last execution."""
    path = costs_file()
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def environment(record: Path | None = None) -> dict[str, str]:
    """Environment of a kernel: one thread, fixed hash seed, no network for model hubs, inline figures."""
    env = dict(os.environ)
    for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"):
        env[f"{name}_NUM_THREADS"] = "1"
    env |= {"PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    env.pop("MPLBACKEND", None)  # the kernel sets its inline backend itself
    env["PAPERBOOK_ROOT"] = str(paths.root())
    if record is not None:
        env["PAPERBOOK_RECORD"] = str(record)
    return env


def execute(
    names: list[str] | None = None,
    *,
    force: bool = False,
    jobs: int | None = None,
    timeout: int = CELL_TIMEOUT,
    say: Callable[[str], None] = print,
) -> list[Outcome]:
    """Execute the stale and missing pages among `names` (``slug`` or ``slug/page``; default: all).

    Args:
        names: chapters or pages to look at.
        force: execute fresh pages too.
        jobs: pages at once; by default the number of usable cores.
        timeout: limit of one cell in seconds.
        say: receives one line of progress at a time where the output is no terminal, and reports of failures.

    Returns:
        one :class:`Outcome` per executed page.

    Raises:
        ValueError: a name that is no chapter or page, or ``jobs`` or ``timeout`` below 1.
    """
    jobs = jobs if jobs is not None else usable_cores()
    for name, value in (("jobs", jobs), ("timeout", timeout)):
        if value < 1:
            raise ValueError(f"{name}: expected a number of at least 1, got {value}")
    wanted = [(row.slug, row.page) for row in stamp.status(names) if row.state != "orphan" and (force or row.state != "fresh")]
    known = costs()
    wanted.sort(key=lambda pair: -known.get("/".join(pair), {}).get("seconds", 60.0))  # longest first
    _drop_leftovers()
    press = _Press(timeout)
    outcomes: list[Outcome] = []
    if not wanted:
        return outcomes
    with (
        _scratch_folder() as folder,
        _Progress(len(wanted), say) as progress,
        ThreadPoolExecutor(max_workers=jobs) as pool,
    ):
        waiting: set[Future[Outcome]] = {pool.submit(press.page, *pair, folder, progress) for pair in wanted}
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in finished:
                    outcomes.append(future.result())
                    progress.done(outcomes[-1])
        except BaseException:
            press.stop()
            for future in waiting:
                future.cancel()
            raise
    _drop_costs_of_removed_pages()
    return outcomes


def usable_cores() -> int:
    """Number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Press:
    """Runs workers and publishes what they bring."""

    def __init__(self, timeout: int) -> None:
        self.timeout = timeout
        self.running: set[subprocess.Popen[str]] = set()
        self.lock = threading.Lock()
        self.stopping = False

    def stop(self) -> None:
        """End all workers and their kernels."""
        with self.lock:
            self.stopping = True
            for process in self.running:
                _end(process)

    def page(self, slug: str, page: str, folder: Path, progress: _Progress) -> Outcome:
        """Execute and publish one page; every failure ends in the outcome, never in an exception."""
        outcome = Outcome(slug, page)
        start = time.monotonic()
        try:
            self._page(outcome, folder, progress)
        except (pages.PageError, OSError, ValueError, SyntaxError) as error:
            outcome.error = f"{outcome.name}: {error}"
        outcome.seconds = time.monotonic() - start
        return outcome

    def _page(self, outcome: Outcome, folder: Path, progress: _Progress) -> None:
        import nbformat

        slug, page = outcome.slug, outcome.page
        source = toc.sources(slug)[page]
        target = paths.pages(slug) / f"{page}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        # taken before the run: an edit made meanwhile leaves the page stale, as it should
        expected = stamp.expected(toc.read_source(source))
        raw, record = folder / f"{slug}.{page}.ipynb", folder / f"{slug}.{page}.jsonl"
        record.touch()
        progress.started(outcome)
        report = self._worker(source, raw, record, target.parent)
        if self.stopping:
            outcome.error = f"{outcome.name}: stopped"
            return
        if report["error"]:
            outcome.error = failure_text(outcome.name, report["error"])
            return
        nb = nbformat.reads(raw.read_text(encoding="utf-8"), as_version=4)
        pages.normalise(nb, slug, page)
        claims, files = _recorded(record)
        expected["files"] = files
        nb.metadata[stamp.KEY] = {"stamp": expected, "claims": claims}
        before = stamp.stored_metadata(target).get("stamp") or {}
        unchanged = {part: value for part, value in before.items() if part != "outputs"} == expected
        # of the text as it is written, which is what `status` will read
        nb.metadata[stamp.KEY]["stamp"]["outputs"] = stamp.outputs_hash(json.loads(pages.dumps(nb)))
        outcome.changed = pages.write_text(target, pages.dumps(nb))
        with self.lock:
            _remember_cost(outcome.name, report, unchanged)

    def _worker(self, source: Path, raw: Path, record: Path, folder: Path) -> dict[str, Any]:
        command = [sys.executable, "-m", "paperbook.press.worker", str(source), str(raw), str(self.timeout)]
        with self.lock:
            if self.stopping:
                return {"error": None}
            process = subprocess.Popen(
                command, cwd=folder, env=environment(record), text=True, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            )  # fmt: skip
            self.running.add(process)
        _, stderr = process.communicate()
        with self.lock:
            self.running.discard(process)
        report = raw.with_suffix(".json")
        if report.is_file():
            return dict(json.loads(report.read_text(encoding="utf-8")))
        tail = "\n".join(stderr.strip().splitlines()[-15:])
        return {"error": {"cell": None, "source": "", "message": f"the worker ended with code {process.returncode}",
                          "traceback": tail}}  # fmt: skip


def failure_text(name: str, error: dict[str, Any]) -> str:
    """Report of a failed page: the page, the number of the cell, its first lines, the traceback."""
    place = name if error["cell"] is None else f"{name}: cell {error['cell']} failed"
    source = error["source"].splitlines()
    shown = [f"    | {line}" for line in source[:6]] + (["    | ..."] if len(source) > 6 else [])
    trace = re.sub(r"\x1b\[[0-9;]*m", "", error["traceback"]).strip().splitlines()
    if len(trace) > 40:
        trace = [*trace[:5], "...", *trace[-30:]]
    return "\n".join([f"{place}: {error['message']}", *shown, *(f"    {line}" for line in trace)])


def _recorded(record: Path) -> tuple[list[dict[str, Any]], dict[str, str | None]]:
    """Claims judged and files read by the kernel; a claim judged twice keeps its last verdict."""
    claims: dict[tuple[str, str], dict[str, Any]] = {}
    files: dict[str, str | None] = {}
    for line in record.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        kind = row.pop("kind")
        if kind == "claim":
            claims[row["slug"], row["id"]] = row
        elif kind == "read":
            files[row["path"]] = stamp.file_hash(row["path"])
    return [claims[key] for key in sorted(claims)], dict(sorted(files.items()))


def _remember_cost(name: str, report: dict[str, Any], unchanged: bool) -> None:
    """Store what the page cost; noise of a re-run of an unchanged page is no reason for a diff."""
    measured = {"seconds": round(report["seconds"], 1), "cpu_seconds": round(report["cpu_seconds"], 1),
                "peak_mb": round(report["peak_mb"])}  # fmt: skip
    with _costs_locked() as known:
        before = known.get(name)
        if before and unchanged:
            difference = abs(measured["cpu_seconds"] - before["cpu_seconds"])
            if difference <= 3 or difference <= 0.5 * before["cpu_seconds"]:
                return
        known[name] = measured


@contextlib.contextmanager
def _costs_locked() -> Iterator[dict[str, dict[str, int | float]]]:
    """The costs, to be changed in place; two calls of the command at once do not overwrite each other's rows."""
    folder = costs_file().parent
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        known = costs()
        yield known
        if known or costs_file().is_file():
            pages.write_text(costs_file(), json.dumps(known, indent=1, sort_keys=True) + "\n")
    finally:
        os.close(handle)


def _drop_costs_of_removed_pages() -> None:
    alive = {f"{slug}/{page}" for slug in toc.chapter_slugs() for page in toc.sources(slug)}
    with _costs_locked() as known:
        for name in known.keys() - alive:
            del known[name]


@contextlib.contextmanager
def _scratch_folder() -> Iterator[Path]:
    """A temporary folder that names the process it belongs to; ``kill -9`` leaves it to the next call."""
    with tempfile.TemporaryDirectory(prefix=_FOLDER, ignore_cleanup_errors=True) as name:
        (Path(name) / "pid").write_text(str(os.getpid()), encoding="utf-8")
        yield Path(name)


def _drop_leftovers() -> None:
    """Half-written files and temporary folders of killed earlier calls, never of one that runs beside this one."""
    for path in (paths.root() / "book" / "pages").glob("**/.*.ipynb.*"):
        with contextlib.suppress(FileNotFoundError):
            if _is_old(path):
                path.unlink()
    for folder in Path(tempfile.gettempdir()).glob(_FOLDER + "*"):
        with contextlib.suppress(OSError):  # another user's, or gone meanwhile
            if folder.is_dir() and folder.stat().st_uid == os.getuid() and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Whether the process that made `folder` is gone; one that says nothing is left once it is old."""
    try:
        pid = int((folder / "pid").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return _is_old(folder)
    import psutil

    return not psutil.pid_exists(pid)


def _is_old(path: Path) -> bool:
    """Untouched for ten minutes: longer than any call needs between making a file and naming it."""
    return time.time() - path.stat().st_mtime > 600


def _end(process: subprocess.Popen[str]) -> None:
    """End a worker with its kernel, which jupyter puts into a process group of its own."""
    import psutil

    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process.pid)
        parent.suspend()  # else it may start its kernel between the next two lines, and that keeps our pipe open
        for child in parent.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    with contextlib.suppress(ProcessLookupError):
        process.kill()


class _Progress:
    """A live table on a terminal, plain lines elsewhere."""

    def __init__(self, total: int, say: Callable[[str], None]) -> None:
        self.total, self.say, self.count = total, say, 0
        self.live: Any = None
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> _Progress:
        if sys.stdout.isatty() and shutil.get_terminal_size().columns >= 40:
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            self.live = Progress(SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self.live.start()
            self.all = self.live.add_task("pages", total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def started(self, outcome: Outcome) -> None:
        if self.live:
            self.tasks[outcome.name] = self.live.add_task(outcome.name, total=None)

    def done(self, outcome: Outcome) -> None:
        self.count += 1
        result = "FAILED" if outcome.error else "written" if outcome.changed else "unchanged"
        line = f"[{self.count}/{self.total}] {outcome.name}: {result}, {outcome.seconds:.1f} s"
        if self.live:
            self.live.advance(self.all)
            if outcome.name in self.tasks:
                self.live.remove_task(self.tasks.pop(outcome.name))
            self.live.console.print(line, markup=False, highlight=False)
        else:
            self.say(line)
