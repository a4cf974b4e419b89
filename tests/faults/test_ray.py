"""The same runs as Ray tasks: on a cluster with one declared GPU, without a shared disk, and with a worker that is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from faults.toy import Toy, finish, make, until

OPTIONS = ("--engine", "ray", "--gpus-per-run", "0.5")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    """A Ray of its own with one declared GPU; its workers write to another folder, as another machine would."""
    if not (Path(sys.executable).parent / "ray").is_file():
        message = "the package ray is missing: pip install -c constraints.txt -e '.[cluster]'"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    toy = make(tmp_path_factory.mktemp("ray"))
    toy.env["RAY_AUTH_MODE"] = "disabled"  # whatever this user's own clusters do
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # a path of its own and short: the names of its sockets may have 107 bytes
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    start = ["ray", "start", "--head", f"--port={port}", "--num-gpus=1", "--num-cpus=2", "--include-dashboard=false",
             f"--temp-dir={folder}", "--disable-usage-stats", "--node-ip-address=127.0.0.1"]  # fmt: skip
    toy.command(*start, PAPERBOOK_RUNS=str(toy.root / "runs" / "node"), CUDA_VISIBLE_DEVICES="0")
    toy.env["RAY_ADDRESS"] = f"127.0.0.1:{port}"
    yield toy
    # `ray stop` would end every Ray of this machine, whoever started it
    mine = {process for process in psutil.process_iter() if _belongs(process, folder, str(toy.root))}
    for process in tuple(mine):  # its agents name neither the folder nor the repository
        with contextlib.suppress(psutil.Error):
            mine |= set(process.children(recursive=True))
    for process in mine:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(list(mine), timeout=10)
    shutil.rmtree(folder, ignore_errors=True)


def _belongs(process: psutil.Process, folder: str, root: str) -> bool:
    with contextlib.suppress(psutil.Error):
        line = " ".join(process.cmdline())
        return folder in line or (("ray::" in line or "/ray/" in line) and process.environ().get("PAPERBOOK_ROOT") == root)
    return False


def test_a_plan_of_three_one_fails_outputs_come_back_as_bytes(cluster: Toy) -> None:
    output = cluster.run("fault=only-1", seeds="0-2", options=OPTIONS, code=1)
    assert "2 finished" in output and "1 failed" in output and "RuntimeError: the page's own failure" in output
    assert [cluster.manifest(seed)["status"] for seed in (0, 1, 2)] == ["finished", "failed", "finished"]
    for seed in (0, 2):
        folder = cluster.folder(seed)
        assert {"log.txt", "manifest.json", "notebook.ipynb", "parameters.yaml", "result.json"} <= {
            p.name for p in folder.iterdir()
        }
        assert not (folder / "checkpoints").exists()  # they lie on the machine that ran it
        assert cluster.result(seed)["metrics"]["gpu"] == "0"
    assert "the page's own failure" in (cluster.folder(1) / "notebook.ipynb").read_text()

    # the same numbers as on this machine, and finished runs are skipped whatever the engine
    assert "skip: finished" in cluster.run("fault=only-1", seeds="0", options=OPTIONS)
    remote = cluster.result(0)["metrics"]
    local = make(cluster.root.parent / "local")
    local.run("fault=only-1", seeds="0")
    assert local.result(0)["metrics"] | {"gpu": "0"} == remote


def test_a_killed_ray_worker_is_started_again_and_goes_on_while_others_run(cluster: Toy) -> None:
    process = cluster.start("pause=0.15", "steps=20", seeds="3-4", options=OPTIONS)
    node = cluster.root / "runs" / "node" / "toy" / "1-train"
    until(lambda: list(node.glob("full-*-s3/checkpoints/model/step-00000000[4-9]*")))
    (worker,) = [p for p in cluster.workers() if p.cmdline()[-2:] and "spec.json" in " ".join(p.cmdline()) and _seed(p) == 3]
    ray_worker = worker.parent()
    assert ray_worker is not None and "ray" in " ".join(ray_worker.cmdline())
    os.kill(ray_worker.pid, signal.SIGKILL)
    output = finish(process)
    assert "2 finished" in output
    assert len(cluster.result(3)["metrics"]["losses"]) == 20 and len(cluster.result(4)["metrics"]["losses"]) == 20
    assert cluster.result(3)["provenance"]["resumed"] is True and cluster.result(4)["provenance"]["resumed"] is False
    until(lambda: not cluster.processes())


def _seed(worker: psutil.Process) -> int:
    import json

    return int(json.loads(Path(worker.cmdline()[-2]).read_text())["seed"])


def test_ctrl_c_cancels_ray_tasks_too(cluster: Toy) -> None:
    process = cluster.start("pause=0.2", "steps=300", seeds="5-7", options=OPTIONS)
    node = cluster.root / "runs" / "node" / "toy" / "1-train"
    until(lambda: list(node.glob("full-*-s5/checkpoints/model/step-*")))
    process.send_signal(signal.SIGINT)
    output = finish(process, 130)
    assert "3 cancelled" in output and "Traceback" not in output
    assert [cluster.manifest(seed)["status"] for seed in (5, 6, 7)] == ["cancelled"] * 3
    until(lambda: not cluster.processes())


def test_more_gpus_than_the_cluster_has_are_refused(cluster: Toy) -> None:
    output = cluster.run(seeds="8", options=("--engine", "ray", "--gpus-per-run", "2"), code=2)
    assert "gpus-per-run: 2 were asked for, this Ray cluster has 1" in output
    assert 8 not in cluster.executions()
