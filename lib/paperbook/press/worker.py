"""Executes one page in a process of its own: ``python -m paperbook.press.worker SOURCE TARGET.ipynb``.

Writes the raw executed notebook to TARGET and how it went (seconds, memory, the failing cell) beside it as
``TARGET.json``. It never touches book/pages: publishing is the parent's business.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any


def main(arguments: list[str]) -> int:
    """Run the page; exit code 0 when every cell ran, 1 when a cell failed, 2 on any other failure."""
    source, target, timeout = Path(arguments[0]), Path(arguments[1]), int(arguments[2])
    _end_with_parent()
    report: dict[str, Any] = {"ok": False, "seconds": 0.0, "cpu_seconds": 0.0, "peak_mb": 0.0, "error": None}
    code = 2
    start = time.monotonic()
    try:
        nb, report["error"] = run(source, timeout)
        report["ok"] = report["error"] is None
        code = 0 if report["ok"] else 1
        target.write_text(json.dumps(nb), encoding="utf-8")
    except Exception as error:
        report["error"] = {"cell": None, "source": "", "message": f"{type(error).__name__}: {error}",
                           "traceback": traceback.format_exc()}  # fmt: skip
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)  # the kernel, which has ended by now
    report["seconds"] = time.monotonic() - start
    report["cpu_seconds"] = usage.ru_utime + usage.ru_stime
    report["peak_mb"] = usage.ru_maxrss / (1024 if sys.platform.startswith("linux") else 1024**2)
    target.with_suffix(".json").write_text(json.dumps(report), encoding="utf-8")
    return code


def run(source: Path, timeout: int) -> tuple[Any, dict[str, Any] | None]:
    """The executed notebook of `source`, and the failing cell (None when all ran)."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    from paperbook.press.toc import read_source

    nb = read_source(source)
    client = NotebookClient(
        nb,
        timeout=timeout,
        kernel_name="python3",
        kernel_manager_class=this_environment(),
        record_timing=False,
        shutdown_kernel="graceful",
        resources={"metadata": {"path": str(Path.cwd())}},
    )
    seen = {"index": 0}
    client.on_cell_execute = lambda cell, cell_index: seen.update(index=cell_index)
    try:
        client.execute()
    except CellExecutionError as error:
        return nb, _failure(nb, seen["index"], f"{error.ename}: {error.evalue}", error.traceback)
    except CellTimeoutError:
        return nb, _failure(nb, seen["index"], f"cell ran longer than {timeout} s", "")
    except DeadKernelError:
        return nb, _failure(nb, seen["index"], "the kernel died (out of memory?)", "")
    return nb, None


def this_environment() -> Any:
    """A kernel manager class whose python3 is always this interpreter, never a kernelspec that some user installed."""
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    class ThisEnvironment(AsyncKernelManager):
        def _kernel_spec_manager_default(self) -> KernelSpecManager:
            return KernelSpecManager(kernel_dirs=[])

    return ThisEnvironment


def _failure(nb: Any, index: int, message: str, trace: str) -> dict[str, Any]:
    source = nb.cells[index].source
    for output in nb.cells[index].get("outputs", []):
        if output.output_type == "error":
            trace = "\n".join(output.traceback)
    return {"cell": index, "source": source, "message": message, "traceback": trace}


def _end_with_parent() -> None:
    """Ask Linux to end this process with its parent, so that ``kill -9`` of the press leaves no kernel behind."""
    if sys.platform.startswith("linux"):
        import contextlib
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)  # 1 = PR_SET_PDEATHSIG


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
