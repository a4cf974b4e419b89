"""Several processes inside one run: torchrun starts them, ``accelerate`` is what they speak; nothing home-made in between.

The processes are fresh interpreters, not forks: a notebook that has used its GPU already can still start them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class ParallelError(RuntimeError):
    """A process of the group failed; the message is its own."""


def launch(module: str, request: Mapping[str, Any], processes: int, *, cpu: bool,
           watch: Callable[[], None] | None = None) -> None:  # fmt: skip
    """Run ``python -m <module> REQUEST.json`` in `processes` processes that form one group, and wait for their end.

    In them, ``accelerate.PartialState()`` or ``Accelerator()`` knows rank, group and device (one GPU each; gloo on the CPU).
    They end when this process ends, however that happens.

    Args:
        module: name of an importable module that calls :func:`main_of` with its function.
        request: plain data for all of them.
        processes: how many, >= 1.
        cpu: whether they stay on the CPU.
        watch: called twice a second while they run.

    Raises:
        ValueError: fewer than one process.
        ParallelError: one of them failed; all are ended then.
    """
    if processes < 1:
        raise ValueError(f"processes: expected at least 1, got {processes}")
    with tempfile.TemporaryDirectory(prefix="paperbook-group-") as scratch:
        file = Path(scratch) / "request.json"
        file.write_text(json.dumps(dict(request)), encoding="utf-8")
        env = dict(os.environ)
        env.setdefault("OMP_NUM_THREADS", "1")
        env |= {"ACCELERATE_USE_CPU": "yes"} if cpu else {}
        command = [sys.executable, "-m", __name__, "--standalone", "--nproc-per-node", str(processes), "-m", module, str(file)]
        with (Path(scratch) / "output.txt").open("w+", encoding="utf-8", errors="replace") as output:
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
            try:
                while process.poll() is None:
                    time.sleep(0.05 if watch is None else 0.5)
                    if watch is not None:
                        watch()
            finally:
                if process.poll() is None:  # this process was interrupted
                    process.terminate()
                    process.wait()
            if process.returncode:
                # the first to fail is the cause: the others then complain that it no longer answers
                errors = sorted(Path(scratch).glob("error-*.txt"), key=lambda path: path.stat().st_mtime_ns)
                output.seek(0)
                message = errors[0].read_text(encoding="utf-8") if errors else "\n".join(output.read().splitlines()[-8:])
                raise ParallelError(f"one of {processes} processes failed: {message}")


def main_of(function: Callable[[dict[str, Any]], None]) -> None:
    """What a module started by :func:`launch` calls: `function` with the request; the parent is told of a failure in one line."""
    file = Path(sys.argv[1])
    try:
        function(json.loads(file.read_text(encoding="utf-8")))
    except Exception as error:
        told = file.parent / f"error-{os.environ.get('RANK', '0')}.txt"
        told.write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        raise


def _torchrun(arguments: list[str]) -> None:
    """torchrun, which ends with the process that started it."""
    if sys.platform.startswith("linux"):
        import contextlib
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)  # 1 = PR_SET_PDEATHSIG
    from torch.distributed.run import main

    main(arguments)


if __name__ == "__main__":
    _torchrun(sys.argv[1:])
