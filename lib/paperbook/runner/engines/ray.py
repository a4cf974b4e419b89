"""The same runs as Ray tasks: Ray places them, sets CUDA_VISIBLE_DEVICES, and starts a dead worker's task again.

No shared disk is needed: a task returns what the run wrote as bytes. Checkpoints stay on the machine that made them (or on the
disk that PAPERBOOK_RUNS names there), so a task that Ray starts again on the same machine, or on a shared disk, resumes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from paperbook.runner.spec import Outcome, RunSpec
from paperbook.study import closure
from paperbook.study.results import parameter_cell, write_atomic

RETRIES = 2
"""How often Ray starts a run again whose worker or machine died."""
_RETURNED = ("result.json", "notebook.ipynb", "log.txt", "parameters.yaml")


class RayEngine:
    """Ray tasks on the cluster that RAY_ADDRESS names, or on a Ray started here for the time of the call.

    Args:
        workers: runs that are handed to Ray at once; None hands it all of them.
        gpus_per_run: GPUs of one run (``num_gpus``), a fraction shares one; None counts as 0.

    Raises:
        ValueError: when ray is not installed, or the cluster cannot be reached.
    """

    name = "ray"

    def __init__(self, workers: int | None = None, gpus_per_run: float | None = None) -> None:
        # `ray start` asks for a token as soon as this file exists (a Ray of one's own leaves it behind); a driver offers it only
        # when it is told to, and before ray is imported
        if (Path.home() / ".ray" / "auth_token").is_file():
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        try:
            import ray
        except ImportError:
            raise ValueError("engine: ray is not installed here; pip install -c constraints.txt -e '.[cluster]'") from None
        self._ray = ray
        self.capacity = workers or 1_000_000
        self._gpus = gpus_per_run or 0
        self._refs: dict[Any, Future[Outcome]] = {}
        self._cancelled = False
        # a task started with no GPU must not see any: what Ray will do from its next version on
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = os.environ.get("RAY_ADDRESS")
        if address:
            _refuse_silence(address)
        try:
            # "local": without it Ray joins whatever cluster an earlier `ray start` left a note of, alive or dead
            ray.init(address=address or "local", include_dashboard=None if address else False, log_to_driver=False,
                     configure_logging=True, logging_level=logging.ERROR)  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ValueError(f"engine: no Ray could be reached at RAY_ADDRESS={address!r}: {error}") from None
        self._task = ray.remote(_task).options(num_cpus=1, num_gpus=self._gpus, max_retries=RETRIES, retry_exceptions=False)
        total = ray.cluster_resources().get("GPU", 0)
        if self._gpus > total:
            ray.shutdown()
            raise ValueError(f"gpus-per-run: {self._gpus:g} were asked for, this Ray cluster has {total:g}")

    def submit(self, spec: RunSpec) -> Future[Outcome]:
        """Hand `spec` to Ray; the future holds its outcome, after what it wrote has been stored in the run's folder here."""
        ref = self._task.remote(spec.to_dict(), closure.library_hash())
        done: Future[Outcome] = Future()
        self._refs[ref] = done
        ref.future().add_done_callback(lambda future: self._store(spec, future, done))
        return done

    def _store(self, spec: RunSpec, future: Future[Any], done: Future[Outcome]) -> None:
        try:
            try:
                content, files = future.result()
            except self._ray.exceptions.TaskCancelledError:
                done.set_result(Outcome("cancelled", 0.0, "cancelled", "stopped; run the same command again"))
                return
            except Exception as error:  # the worker died more often than Ray tries, or the node is gone
                first = str(error).strip().splitlines()[0] if str(error).strip() else ""
                died = f"its Ray worker died {RETRIES + 1} times ({type(error).__name__}: {first})"
                done.set_result(
                    Outcome("cancelled", 0.0, "cancelled", "stopped; run the same command again")
                    if self._cancelled
                    else Outcome("failed", 0.0, "killed", died)
                )
                return
            for name, data in files.items():
                path = spec.folder / name
                # on a shared disk it is there already, and a log that is still open must not be replaced
                if not path.is_file() or path.read_bytes() != data:
                    write_atomic(path, data)
            done.set_result(Outcome(**content))
        except Exception as error:
            done.set_result(Outcome("failed", 0.0, "error", f"its outputs cannot be stored here: {error}"))

    def cancel(self) -> None:
        """Stop what runs and forget what waits."""
        self._cancelled = True
        for ref, done in list(self._refs.items()):
            if not done.done():
                with contextlib.suppress(Exception):  # it may have ended meanwhile
                    self._ray.cancel(ref, force=False)

    def close(self) -> None:
        """Leave the cluster; a Ray that was started here ends."""
        self._ray.shutdown()


def _refuse_silence(address: str) -> None:
    """Ray itself tries for a minute and more before it says that nobody answers.

    Raises:
        ValueError: naming the address and the command that starts a cluster there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return  # "auto" and the like: Ray knows where to look
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return
    except OSError as error:
        raise ValueError(f"RAY_ADDRESS: nobody answers at {address} ({error.strerror or error}); start it with: ray start --head "
                         f"--port={port}") from None  # fmt: skip


def _task(content: dict[str, Any], library: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """On the machine that Ray chose: look at the machine, run, and return the outcome and what was written."""
    import threading
    from dataclasses import asdict

    from paperbook.runner import checks
    from paperbook.runner.launch import launch
    from paperbook.runner.plan import config_class

    spec = RunSpec.from_dict(content)
    here = closure.library_hash()
    if here != library:
        return asdict(Outcome("failed", 0.0, "refused", f"the machine {os.uname().nodename} has another version of the library "
                              f"({here} instead of {library}); bring its checkout to the same commit")), {}  # fmt: skip
    cfg = config_class(spec.slug, spec.page)(**(parameter_cell(spec.slug, spec.page) | spec.parameters))
    problems, _ = checks.machine(cfg, None)
    if problems:
        where = f"on {os.uname().nodename}: "
        return asdict(Outcome("failed", 0.0, "refused", where + "; ".join(problems))), {}
    cancel = threading.Event()
    try:
        outcome = launch(spec, cancel=cancel)
    except KeyboardInterrupt:  # how Ray cancels; launch has ended the worker on its way out
        outcome = Outcome("cancelled", 0.0, "cancelled", "stopped; run the same command again")
    return asdict(outcome), _written(spec.folder)


def _written(folder: Path) -> dict[str, bytes]:
    """What a run wrote, without its checkpoints."""
    return {name: (folder / name).read_bytes() for name in _RETURNED if (folder / name).is_file()}
