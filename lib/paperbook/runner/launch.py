"""Starts the worker of one run and stays with it: log, secrets, signals, and what came of it. Every engine calls it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from paperbook.runner.folder import result_document, shown, sweep
from paperbook.runner.spec import Outcome, RunSpec
from paperbook.runner.worker import CANCELLED, end_left_over, lower
from paperbook.study import paths
from paperbook.study.redaction import redact

_NOTE = re.compile(r"RuntimeWarning: (checkpoint: .*)")
# said for every kernel and every cell, and of no use to anybody
_NOISE = re.compile(r"Kernel is running over TCP without encryption|TqdmWarning: IProgress|^Ending Cell \d|^<Figure size .*>$|^$")
PROGRESS_SECONDS = 10.0
"""How often a run's progress is written to its log."""
GRACE_SECONDS = 10.0
"""How long a worker that was asked to stop may take before it is killed."""


def launch(spec: RunSpec, environment: Mapping[str, str] | None = None, cancel: threading.Event | None = None) -> Outcome:
    """Run `spec` in a worker process and wait for its end.

    Args:
        spec: the run; its folder must be claimed by the caller.
        environment: variables on top of this process's own, such as CUDA_VISIBLE_DEVICES.
        cancel: set by another thread to stop the run; it stays resumable.

    Returns:
        The outcome. Nothing is raised for a run that fails: the others go on.
    """
    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="paperbook-run-") as scratch:
            return _launch(spec, Path(scratch), {**os.environ, **(environment or {})}, cancel or threading.Event(), start)
    except OSError as error:
        where = f"{shown(Path(error.filename))}: " if isinstance(error.filename, str) else ""
        return Outcome("failed", time.monotonic() - start, "error", f"{where}{error.strerror or error}")


def _launch(spec: RunSpec, scratch: Path, env: dict[str, str], cancel: threading.Event, start: float) -> Outcome:
    request, report = scratch / "spec.json", scratch / "report.json"
    request.write_text(json.dumps(spec.to_dict()), encoding="utf-8")
    folder = spec.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        env.setdefault(name, "1")  # as stock papermill does on a chapter's source
    env |= {"PAPERBOOK_ROOT": str(paths.root()), "PAPERBOOK_RUNS": str(paths.runs()), "PAPERBOOK_PARENT": str(os.getpid()),
            "PAPERBOOK_PROGRESS": str(folder / "progress.json"), "PYTHONUNBUFFERED": "1"}  # fmt: skip
    env.pop("MPLBACKEND", None)  # the kernel sets its inline backend itself
    end_left_over(folder)  # Ray starts a dead worker's task again at once, perhaps while its kernel is still there
    command = [sys.executable, "-m", "paperbook.runner.worker", str(request), str(report)]
    with (folder / "log.txt").open("a", encoding="utf-8") as stream:
        log = _Log(stream)
        log.write(f"--- {time.strftime('%Y-%m-%d')}, an attempt on {socket.gethostname()}: {spec.name}")
        process = subprocess.Popen(
            command, cwd=paths.root(), env=env, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
        notes: list[str] = []
        reader = threading.Thread(target=_copy, args=(process, log, env, notes), daemon=True)
        reader.start()
        try:
            stopped = _wait(process, cancel, folder, log)
        finally:
            _end(process)  # also when this very thread is interrupted, as Ray does to cancel
            end_left_over(folder)
            sweep(folder, manifest=False)  # a kernel that is killed while it saves leaves half a file
        reader.join(timeout=10)
        seconds = time.monotonic() - start
        if stopped or process.returncode == CANCELLED:
            outcome = Outcome("cancelled", seconds, "cancelled", "stopped; run the same command again and it goes on")
        else:
            outcome = _outcome(spec, process.returncode, report, seconds, env)
        log.write("\n".join(filter(None, (outcome.traceback, f"--- {outcome.status} after {seconds:.0f} s", outcome.message))))
    return replace(outcome, notes=tuple(dict.fromkeys(notes)))


def _outcome(spec: RunSpec, code: int, report: Path, seconds: float, env: Mapping[str, str]) -> Outcome:
    error = None
    if report.is_file():
        error = json.loads(report.read_text(encoding="utf-8"))["error"]
    elif code < 0:
        name = signal.Signals(-code).name
        hint = f"; the same command goes on, and if memory was short, {lower(spec)}" if code == -signal.SIGKILL else ""
        error = {"kind": "killed", "traceback": "", "message": f"its process was killed ({name}){hint}"}
    elif code:
        error = {"kind": "error", "message": f"its process ended with code {code}; see its log", "traceback": ""}
    if error:
        message = " ".join(redact(error["message"], env).split())
        return Outcome("failed", seconds, error["kind"], message, redact(error["traceback"], env))
    document, why = result_document(spec.folder, spec.config_hash)
    if document is None:
        why = why or "the page ran to its end but wrote no result; it must end with Run(...).finish(metrics)"
        return Outcome("failed", seconds, "error", why)
    return Outcome("finished", seconds)


class _Log:
    """``log.txt`` of a run: a time before each line, what several threads write never mixed. A full disk ends it, not the run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._guard, self._works = stream, threading.Lock(), True

    def write(self, text: str) -> None:
        """Write one line, or several."""
        with self._guard:
            try:
                if self._works:
                    self._stream.write("".join(f"{time.strftime('%H:%M:%S')} {line}\n" for line in text.splitlines() or [""]))
                    self._stream.flush()
            except OSError:
                self._works = False


def _copy(process: subprocess.Popen[str], log: _Log, env: Mapping[str, str], notes: list[str]) -> None:
    """Copy what the worker prints to the log, secrets removed."""
    assert process.stdout is not None
    for raw in process.stdout:  # read on even when nothing can be written: a full pipe would stop the worker
        line = redact(raw, env)
        if found := _NOTE.search(line):
            notes.append(found[1])
        if not _NOISE.search(line):
            log.write(line.rstrip("\n"))


def _wait(process: subprocess.Popen[str], cancel: threading.Event, folder: Path, log: _Log) -> bool:
    """Wait for the end and write how far the run is to its log; True when it was asked to stop."""
    told, said = time.monotonic(), ""
    while process.poll() is None:
        if time.monotonic() - told >= PROGRESS_SECONDS:
            told = time.monotonic()
            with contextlib.suppress(OSError, ValueError, KeyError):
                content = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
                line = f"progress: {content['done']} of {content['total']} {content['what']}".rstrip()
                if line != said:
                    said = line
                    log.write(line)
        if cancel.wait(0.05):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            return process.returncode != 0
    return False


def _end(process: subprocess.Popen[str]) -> None:
    """Leave nothing behind: the worker, then whatever it started."""
    if process.poll() is not None:
        return
    import psutil

    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
