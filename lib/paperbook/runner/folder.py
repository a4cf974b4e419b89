"""The folder of one run: who has taken it, how far it is, what it holds.

A run is taken by a lock that the system drops when its holder dies, so ``kill -9`` leaves no stale lock behind. Where machines
share a disk and the lock does not reach from one to the other, the heartbeat in the manifest does: it is a counter, watched by
the taker's own monotonic clock, so no two clocks are ever compared and a clock that goes backwards changes nothing.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from paperbook.runner.spec import Outcome, RunSpec, Status
from paperbook.study import paths
from paperbook.study.results import ResultError, read_json, write_atomic, write_json

HEARTBEAT_SECONDS = 5.0
"""How often a running run's manifest is touched."""
WATCH_SECONDS = 20.0
"""How long a taker on another machine watches a heartbeat before it believes the holder dead."""
SCHEMA = 1


class TakenError(RuntimeError):
    """Another process has the run."""


def manifest_file(folder: Path) -> Path:
    """``manifest.json`` of a run."""
    return folder / "manifest.json"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a run; None where there is none or it is damaged (it then says nothing, and the run is looked at anew)."""
    try:
        content = read_json(manifest_file(folder))
    except ResultError:
        return None
    return content if isinstance(content, dict) and "status" in content else None


def finished_result(folder: Path, config_hash: str) -> tuple[dict[str, Any] | None, str]:
    """The result document of a finished run, or None and why there is none that counts."""
    document, why = result_document(folder, config_hash)
    manifest = read_manifest(folder)
    if document is not None and manifest is not None and manifest["status"] != "finished":
        return None, f"its page did not come to its end ({manifest['status']})"
    return document, why


def result_document(folder: Path, config_hash: str) -> tuple[dict[str, Any] | None, str]:
    """The result document in a run's folder, whatever became of the page, or None and why it does not count."""
    path = folder / "result.json"
    if not path.is_file():
        return None, ""
    try:
        document = read_json(path)
        provenance = document["provenance"]
        if provenance["status"] != "finished" or provenance["config_hash"] != config_hash or not document["metrics"]:
            return None, "its result belongs to another configuration"
    except (ResultError, KeyError, TypeError):
        return None, "its result.json is damaged"
    return document, ""


def checkpoint_key(folder: Path) -> tuple[int, dict[str, str]] | None:
    """Step and key of the newest checkpoint below a run's folder, read from the file's head; None where there is none.

    Newest is the one with the most wall seconds of the run behind it, a number that its parts share: the files' own dates may
    go backwards.
    """
    newest: tuple[int, dict[str, str]] | None = None
    latest = (-1.0, -1)
    for path in (folder / "checkpoints").rglob("step-*.safetensors"):
        try:
            with path.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                metadata = json.loads(stream.read(min(length, 1 << 26)))["__metadata__"]
            found = int(metadata["step"]), {str(k): str(v) for k, v in json.loads(metadata["key"]).items()}
            moment = float(metadata["seconds"]), found[0]
        except (OSError, ValueError, KeyError, struct.error):
            continue  # a damaged one: the run itself falls back to the one before and says so
        if moment > latest:
            newest, latest = found, moment
    return newest


class Claim:
    """A run's folder, taken by this process until :meth:`release`.

    Args:
        spec: the run.
        watch: seconds for which the heartbeat of another machine is watched.

    Raises:
        TakenError: when a live process has it, saying which.
        OSError: when the folder cannot be written.
    """

    def __init__(self, spec: RunSpec, watch: float = WATCH_SECONDS) -> None:
        self.spec, self.folder = spec, spec.folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.folder / ".lock", timeout=0, thread_local=False)
        self._writing = threading.Lock()
        try:
            self._lock.acquire()
        except Timeout:
            holder = read_manifest(self.folder) or {}
            who = f"process {holder.get('pid')} on {holder.get('host')}" if holder else "another process"
            raise TakenError(f"{who} has it") from None
        try:
            before = read_manifest(self.folder)
            if before is not None and before["status"] == "running" and before.get("host") not in (None, socket.gethostname()):
                self._refuse_if_beating(before, watch)
        except BaseException:
            self._lock.release()
            raise
        self._content: dict[str, Any] = {
            "schema": SCHEMA, "slug": spec.slug, "page": spec.page, "profile": spec.profile, "seed": spec.seed,
            "config_hash": spec.config_hash, "code_hash": spec.code_hash, "host": socket.gethostname(), "pid": os.getpid(),
            "heartbeat": {"count": 0, "time": _now()}, "attempts": list((before or {}).get("attempts", [])),
            "status": "planned", "error": None,
        }  # fmt: skip
        # a run that ended before keeps how it ended until it is started again
        if before is not None and before["status"] != "running":
            self._content |= {"status": before["status"], "error": before.get("error")}
        elif before is not None:
            self._content |= {"status": "failed", "error": {"kind": "killed", "message": "its process ended without a word"}}
        self._write()

    def _refuse_if_beating(self, before: dict[str, Any], watch: float) -> None:
        end = time.monotonic() + watch
        while time.monotonic() < end:
            time.sleep(min(1.0, watch))
            now = read_manifest(self.folder)
            if now is not None and now.get("heartbeat") != before.get("heartbeat"):
                raise TakenError(f"process {before.get('pid')} on {before.get('host')} has it")

    @property
    def status(self) -> Status:
        """What the manifest says."""
        return self._content["status"]

    def start(self, engine: str) -> None:
        """Write parameters and manifest of a new attempt; set aside a damaged or outdated result."""
        import yaml

        sweep(self.folder)
        text = yaml.safe_dump(self.spec.parameters, sort_keys=False, allow_unicode=True)
        write_atomic(self.folder / "parameters.yaml", f"# papermill -f: the parameters of this run\n{text}".encode())
        (self.folder / "progress.json").unlink(missing_ok=True)
        result = self.folder / "result.json"
        if result.is_file():
            result.replace(self.folder / "result.previous.json")
        self._content["attempts"].append({"started": _now(), "engine": engine, "host": socket.gethostname()})
        self._content |= {"status": "running", "error": None}
        self._write()

    def end(self, outcome: Outcome) -> None:
        """Write how the attempt, or a run that never started, ended."""
        attempts = self._content["attempts"]
        if attempts and "ended" not in attempts[-1] and self.status == "running":
            attempts[-1] |= {"ended": _now(), "status": outcome.status, "seconds": round(outcome.seconds, 2)}
        error = None if outcome.status == "finished" else {"kind": outcome.kind, "message": outcome.message}
        self._content |= {"status": outcome.status, "error": error}
        self._write()

    def plan(self) -> None:
        """Mark it as waiting for its turn."""
        self._content |= {"status": "planned", "error": None}
        self._write()

    def beat(self) -> None:
        """Touch the manifest: whoever watches it sees that somebody is there."""
        beat = self._content["heartbeat"]
        self._content["heartbeat"] = {"count": beat["count"] + 1, "time": _now()}
        self._write()

    def release(self) -> None:
        """Give the run back."""
        self._lock.release()

    def _write(self) -> None:
        with self._writing:
            write_json(manifest_file(self.folder), self._content)


class Heart:
    """Beats for all claims that run, from one thread."""

    def __init__(self, seconds: float = HEARTBEAT_SECONDS, complain: Callable[[str], None] | None = None) -> None:
        self._claims: set[Claim] = set()
        self._guard, self._stop = threading.Lock(), threading.Event()
        self._seconds, self._complain = seconds, complain
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def add(self, claim: Claim) -> None:
        """Beat for `claim` from now on."""
        with self._guard:
            self._claims.add(claim)

    def remove(self, claim: Claim) -> None:
        """Stop beating for `claim`; no beat is under way when this returns."""
        with self._guard:
            self._claims.discard(claim)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stop.wait(self._seconds):
            with self._guard:
                for claim in self._claims:
                    try:
                        claim.beat()
                    except OSError as error:  # a full disk now need not be full when the result is written
                        if self._complain:
                            self._complain(f"{claim.spec.name}: its manifest cannot be written ({error.strerror})")


def discard(folder: Path) -> None:
    """Forget the checkpoints and the result of a run that is to start anew; the result is kept as ``result.previous.json``."""
    import shutil

    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    if (folder / "result.json").is_file():
        (folder / "result.json").replace(folder / "result.previous.json")
    manifest_file(folder).unlink(missing_ok=True)


def sweep(folder: Path, manifest: bool = True) -> None:
    """Remove what a killed process left half written; for the holder of the run, when nothing of the run is alive.

    Args:
        folder: of the run.
        manifest: also a half written manifest; False where the holder's own heart may be writing one.
    """
    for pattern in ("*.tmp", ".*.*.*"):  # checkpoints and progress; what write_atomic calls .<name>.<letters>
        for path in folder.rglob(pattern):
            if manifest or not path.name.startswith(".manifest.json."):
                with contextlib.suppress(OSError):
                    path.unlink()


def missing(slug: str, page: str | None = None, profile: str | None = None) -> list[str]:
    """One line for each of the chapter's runs under runs/ that is not finished: what it is, its status, and why."""
    lines = []
    for path in sorted((paths.runs() / paths.checked_name("slug", slug)).glob("*/*/manifest.json")):
        manifest = read_manifest(path.parent)
        where = f"{slug}/{path.parts[-3]} {path.parts[-2]}"
        if manifest is None:
            lines.append(f"not joined: {where}: its manifest is damaged")
        elif manifest["status"] != "finished" and page in (None, path.parts[-3]) and profile in (None, manifest.get("profile")):
            error = (manifest.get("error") or {}).get("message", "")
            lines.append(f"not joined: {where}: {manifest['status']}" + (f": {error}" if error else ""))
    return lines


def gaps(seeds: list[int]) -> str:
    """Which numbers between the smallest and the largest seed are not there, as the end of a sentence; else nothing."""
    lacking = sorted(set(range(min(seeds), max(seeds) + 1)) - set(seeds))
    if not lacking:
        return ""
    names = ", ".join(map(str, lacking[:20])) + (" ..." if len(lacking) > 20 else "")
    return f"; missing between the first and the last: {names}"


def shown(path: Path) -> str:
    """`path` for a person at this machine: relative to the repository where it lies inside, else as it is."""
    try:
        return path.relative_to(paths.root()).as_posix()
    except ValueError:
        return str(path)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
