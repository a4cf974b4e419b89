"""Kernels that start warm: forked from one process that has imported the heavy packages once, which saves each some seconds.

:class:`WarmKernels` starts that process (``warm.py serve``). papermill then starts ``warm.py run`` as its kernel: a thin client
that hands its environment and streams to the server, which forks the kernel proper, and that ends when the kernel ends. The
forked process is an ordinary ipykernel; nothing of this project is imported before the fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

PRELOADED = (
    "numpy", "scipy.stats", "pandas", "matplotlib.pyplot", "matplotlib_inline.backend_inline", "sklearn.ensemble",
    "sklearn.linear_model", "sklearn.datasets", "torch", "torch.utils.data", "torch._dynamo", "safetensors.torch",
    "transformers.modeling_utils", "transformers.models.auto.tokenization_auto", "transformers.models.auto.modeling_auto",
    "datasets", "PIL.Image", "pydantic", "yaml", "jupytext", "grimp", "ipykernel.kernelapp", "ipykernel.ipkernel",
)  # fmt: skip


class WarmKernels:
    """The server, for as long as a test session lasts.

    Args:
        folder: where its data sets go; its socket lies in a folder of its own, since a socket's path may have 107 bytes at most.
        preloaded: modules it imports; one that is not installed is left out.
    """

    def __init__(self, folder: Path, preloaded: Sequence[str] = PRELOADED) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="warm-")
        self.socket = str(Path(self._place.name) / "warm")
        # numbers and texts that packages read when they are imported, as a kernel's environment would give them
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "",
               "HF_DATASETS_CACHE": str(folder / "datasets"),
               "MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # fmt: skip
        self._process = subprocess.Popen([sys.executable, __file__, "serve", self.socket, *preloaded], env=env,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"warm kernels: the server ended with code {self._process.wait()}")

    def manager(self, is_async: bool = True) -> Any:
        """A kernel manager class, for papermill when `is_async`, whose kernels are forked from the server."""
        from jupyter_client.manager import KernelManager

        from paperbook.press.worker import this_environment

        address = self.socket

        class Warm(this_environment() if is_async else KernelManager):  # type: ignore[misc]
            def format_kernel_cmd(self, extra_arguments: list[str] | None = None) -> list[str]:
                # without site and environment the client starts in milliseconds
                return [sys.executable, "-S", "-E", __file__, "run", address, self.connection_file, *(extra_arguments or [])]

        return Warm

    def cpu_seconds(self) -> float:
        """CPU seconds of the server and of the kernels that have ended."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(self.socket)
            _send(line, {"ask": "cpu"})
            return float(_receive(line)[0]["cpu"])

    def close(self) -> None:
        """End the server and whatever kernels still run."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()
        self._place.cleanup()


def run(address: str, connection_file: str) -> int:
    """The client: ask for a kernel, pass signals on, end with its exit code."""
    line = socket.socket(socket.AF_UNIX)
    line.connect(address)
    request = {"ask": "kernel", "env": dict(os.environ), "cwd": os.getcwd(), "connection_file": connection_file}
    _send(line, request, [0, 1, 2])
    signal.signal(signal.SIGINT, lambda *_: line.sendall(b"I"))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))  # the server sees the line break and ends the kernel
    answer = _receive(line)[0]
    return int(answer["code"]) if answer else 1


def serve(address: str, preloaded: Sequence[str]) -> NoReturn:
    """The server: imports, then forks a kernel for each client. Ends, with all kernels, when its standard input does."""
    for name in preloaded:
        with contextlib.suppress(ImportError):  # a package that this environment lacks is simply not warm
            importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    print("ready", flush=True)
    kernels: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, listener, *kernels.values()], [], [], 0.02 if kernels else None)
        if 0 in ready:
            for pid in kernels:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)  # to take the heap apart object by object costs a second where so much was imported
        if listener in ready:
            line, _ = listener.accept()
            request, streams = _receive(line, 3)
            if request.get("ask") == "kernel":
                pid = os.fork()
                if pid == 0:
                    for other in (listener, line, *kernels.values()):
                        other.close()
                    _become_kernel(request, streams)
                kernels[pid] = line
                for stream in streams:
                    os.close(stream)
            else:
                _send(line, {"cpu": _cpu()})
                line.close()
        for pid, line in list(kernels.items()):
            if line in ready and line.recv(1) != b"I":
                os.kill(pid, signal.SIGKILL)  # its client is gone
            elif line in ready:
                os.kill(pid, signal.SIGINT)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError):
                    _send(line, {"code": os.waitstatus_to_exitcode(status) % 256})
                kernels.pop(pid).close()


def _become_kernel(request: dict[str, Any], streams: list[int]) -> NoReturn:
    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path.pop(0)  # the folder of this script
    import random

    random.seed()
    with contextlib.suppress(ImportError):
        import numpy as np

        np.random.seed()  # noqa: NPY002 - the legacy stream of a fresh process is seeded by the system, too
    # the kernel ends when this process's parent does, the server
    sys.argv = ["ipykernel_launcher", "-f", request["connection_file"], f"--IPKernelApp.parent_handle={os.getppid()}"]
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as in `serve`: two seconds


def _send(line: socket.socket, message: dict[str, Any], streams: list[int] | None = None) -> None:
    text = json.dumps(message).encode()
    socket.send_fds(line, [struct.pack("!I", len(text))], streams or [])
    line.sendall(text)


def _receive(line: socket.socket, streams: int = 0) -> tuple[dict[str, Any], list[int]]:
    """One message and the streams that came with it; an empty one where the line broke."""
    head, found, _, _ = socket.recv_fds(line, 4, streams)
    if len(head) < 4:
        return {}, found
    text, (length,) = b"", struct.unpack("!I", head)
    while len(text) < length:
        part = line.recv(length - len(text))
        if not part:
            return {}, found
        text += part
    return json.loads(text), found


def _cpu() -> float:
    import resource

    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    raise SystemExit(serve(sys.argv[2], sys.argv[3:]) if sys.argv[1] == "serve" else run(*sys.argv[2:4]))
