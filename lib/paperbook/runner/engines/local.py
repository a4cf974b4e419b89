"""Runs on this machine: a pool of threads, each of which waits for one worker process; GPUs by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor

from paperbook.runner.launch import launch
from paperbook.runner.spec import Outcome, RunSpec


class LocalEngine:
    """A pool of workers.

    Args:
        workers: runs at once, >= 1.
        gpus: ids for CUDA_VISIBLE_DEVICES, from which runs take theirs.
        gpus_per_run: GPUs of one run: a whole number, a fraction (several runs share one GPU), 0 (no GPU is visible), or None
            (the environment stays as it is).

    Raises:
        ValueError: when there are fewer GPUs than one run takes.
    """

    name = "local"

    def __init__(self, workers: int, gpus: list[str] | None = None, gpus_per_run: float | None = None) -> None:
        if workers < 1:
            raise ValueError(f"workers: expected at least 1, got {workers}")
        self.capacity = workers
        self._cancel = threading.Event()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="run")
        self._slots: queue.Queue[str] | None = None
        if gpus_per_run is not None:
            self._slots = queue.Queue()
            slots = gpu_slots(gpus or [], gpus_per_run, workers)
            if not slots:
                raise ValueError(f"gpus-per-run: {gpus_per_run:g} were asked for, {len(gpus or [])} are there")
            self.capacity = min(workers, len(slots))
            for slot in slots:
                self._slots.put(slot)

    def submit(self, spec: RunSpec) -> Future[Outcome]:
        """Start `spec` when a worker is free."""
        return self._pool.submit(self._run, spec)

    def cancel(self) -> None:
        """Stop what runs; what waits is not started."""
        self._cancel.set()

    def close(self) -> None:
        """Wait for the end of all runs."""
        self._pool.shutdown()

    def _run(self, spec: RunSpec) -> Outcome:
        if self._cancel.is_set():
            return Outcome("cancelled", 0.0, "cancelled", "not started")
        if self._slots is None:
            return launch(spec, cancel=self._cancel)
        slot = self._slots.get()
        try:
            return launch(spec, {"CUDA_VISIBLE_DEVICES": slot}, self._cancel)
        finally:
            self._slots.put(slot)


def gpu_slots(gpus: list[str], gpus_per_run: float, workers: int) -> list[str]:
    """Values of CUDA_VISIBLE_DEVICES for runs that go at once: disjoint groups of GPUs; for a fraction, a GPU several times."""
    if gpus_per_run == 0:
        return [""] * workers
    if gpus_per_run < 1:
        share = int(1 / gpus_per_run + 1e-9)
        return [gpu for _ in range(share) for gpu in gpus]  # spread over the GPUs first
    size = int(gpus_per_run)
    return [",".join(gpus[i : i + size]) for i in range(0, len(gpus) - size + 1, size)]
