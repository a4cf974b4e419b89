"""Runs one page through papermill in a process of its own: ``python -m paperbook.runner.worker SPEC.json REPORT.json``.

The same worker serves the local pool and Ray: a CUDA crash or the out-of-memory killer takes this process, not the runner.
What it prints is the run's log. It writes how it went to REPORT.json.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from paperbook.runner.spec import RunSpec
from paperbook.study import paths

_MEMORY_NAMES = ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError", "OutOfMemory")
_MEMORY_TEXTS = ("CUDA out of memory", "can't allocate memory", "Unable to allocate", "std::bad_alloc", "Cannot allocate memory")
CANCELLED = 3
"""Exit code after a signal that asked the run to stop."""


class Stopped(KeyboardInterrupt):
    """A signal asked this process to stop.

    No `except Exception` on the way swallows it, nor does asyncio, which keeps any other exception of a callback to itself.
    """


def main(arguments: list[str]) -> int:
    """Run the page; exit code 0 when every cell ran, 1 when one failed, 2 on any other failure, 3 when asked to stop."""
    spec = RunSpec.from_dict(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    report, code = Path(arguments[1]), 2
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    _end_with_parent()
    start = time.monotonic()
    try:
        error = run(spec)
        code = 0 if error is None else 1
    except Stopped:
        error, code = {"kind": "cancelled", "message": "stopped", "traceback": ""}, CANCELLED
    except Exception as failure:
        import traceback

        full = isinstance(failure, OSError) and failure.errno == errno.ENOSPC
        message = "the disk is full: the notebook could not be written" if full else f"{type(failure).__name__}: {failure}"
        error = {"kind": "error", "message": message, "traceback": "" if full else traceback.format_exc()}
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # a second request must not interrupt the answer to the first
        end_left_over(spec.folder)
    report.write_text(json.dumps({"error": error, "seconds": time.monotonic() - start}), encoding="utf-8")
    return code


def run(spec: RunSpec) -> dict[str, Any] | None:
    """Execute the page's source into ``notebook.ipynb`` of the run's folder; the failure as plain data, or None."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    from paperbook.press.worker import this_environment

    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    # papermill repeats where it reads and writes; the paths of this machine are nobody's business
    logging.getLogger("papermill").addFilter(lambda record: not str(record.msg).startswith(("Input Notebook", "Output Notebook",
                                                                                            "Working directory")))  # fmt: skip
    warnings.filterwarnings("ignore", message=r".*does not end in one of.*", category=UserWarning)
    source = paths.chapter(spec.slug) / f"{spec.page}.md"
    # an attempt that dies early must not leave the notebook of an earlier one as if it were its own
    target = spec.folder / "notebook.ipynb"
    target.unlink(missing_ok=True)
    try:
        papermill.execute_notebook(
            str(source), str(target), parameters=spec.parameters, kernel_name="python3", progress_bar=False, log_output=True,
            cwd=str(paths.root()), kernel_manager_class=this_environment(),
        )  # fmt: skip
    except PapermillExecutionError as error:
        return failure(spec, error.ename, error.evalue, "\n".join(error.traceback), error.cell_index)
    except DeadKernelError:
        advice = f"the same command goes on, and if memory was short, {lower(spec)} (another run, with its own folder)"
        return {"kind": "killed", "traceback": "",
                "message": f"its kernel was killed, by a person or by the system for want of memory; {advice}"}  # fmt: skip
    except CellTimeoutError as error:
        return {"kind": "error", "message": str(error), "traceback": ""}
    return None


def failure(spec: RunSpec, name: str, value: str, trace: str, cell: int) -> dict[str, Any]:
    """A failing cell in plain words: what kind of failure, one line, the traceback."""
    trace = re.sub(r"\x1b\[[0-9;]*m", "", trace)
    if name == "TrainingDiverged":
        return {"kind": "diverged", "message": value, "traceback": trace, "cell": cell}
    if name in _MEMORY_NAMES or any(text in value for text in _MEMORY_TEXTS):
        first = value.strip().splitlines()[0] if value.strip() else name
        return {"kind": "out_of_memory", "message": f"out of memory ({first}); {lower(spec)}", "traceback": trace, "cell": cell}
    if name == "OSError" and f"[Errno {errno.ENOSPC}]" in value:
        return {"kind": "error", "message": f"the disk is full ({value})", "traceback": "", "cell": cell}
    return {"kind": "error", "message": f"{name}: {value}", "traceback": trace, "cell": cell}


def lower(spec: RunSpec) -> str:
    """Which parameters to lower, as options of the command."""
    halves = [f"{name}={max(1, value // 2)}" for name in spec.memory_parameters
              if isinstance(value := spec.parameters.get(name), int) and value > 1]  # fmt: skip
    if halves:
        return "lower " + " or ".join(f"--set {half}" for half in halves)
    if spec.memory_parameters:
        return f"lower {', '.join(spec.memory_parameters)}"
    return "take a machine with more memory, or lower the sizes of the page's parameters"


def _stop(*_: object) -> None:
    raise Stopped


def _end_with_parent() -> None:
    """Ask Linux to stop this process when its parent dies, so that ``kill -9`` of the runner leaves no run behind."""
    if sys.platform.startswith("linux"):
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)  # 1 = PR_SET_PDEATHSIG
        if os.getppid() == 1 and os.environ.get("PAPERBOOK_PARENT") not in (None, "1"):
            raise SystemExit(CANCELLED)  # the parent died before the line above


def end_left_over(folder: Path) -> None:
    """End every process that was started for a run, but this one and its parents; for the holder of the run.

    They are known by their environment: what a kernel started is nobody's child any more once the kernel has ended.
    """
    import psutil

    mark, mine = str(folder / "progress.json"), {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid not in mine and process.environ().get("PAPERBOOK_PROGRESS") == mark:
                process.kill()
                found.append(process)
    psutil.wait_procs(found, timeout=10)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
