"""Several processes in one run: torchrun starts them, accelerate connects them (gloo on the CPU)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from paperbook.study.parallel import ParallelError, launch

TRAINING = '''
import json, os, sys
import torch
from accelerate import Accelerator
from paperbook.study.checkpoints import Checkpoints
from paperbook.study.parallel import main_of


def train(request):
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 48).reshape(16, 3)
    y = x.pow(2).sum(dim=1, keepdim=True)
    rank, size = accelerator.process_index, accelerator.num_processes
    x, y = x[rank::size], y[rank::size]          # equal shares, so the mean of their gradients is that of the whole batch
    model, optimiser = accelerator.prepare(model, optimiser)
    for _ in range(20):
        optimiser.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimiser.step()
    if accelerator.is_main_process:
        weights = torch.cat([p.detach().flatten() for p in accelerator.unwrap_model(model).parameters()])
        Checkpoints(request["folder"], {"config": "x"}).save(20, values={"weights": weights, "size": size})
    accelerator.end_training()


if __name__ == "__main__":
    main_of(train)
'''
SIMPLE = '''
import os, sys, time
from pathlib import Path
from paperbook.study.parallel import main_of


def work(request):
    rank = int(os.environ["RANK"])
    (Path(request["folder"]) / f"pid-{rank}").write_text(str(os.getpid()))
    if request["kind"] == "fail while the other waits":
        from accelerate import PartialState

        state = PartialState(cpu=True)
        if rank == 1:
            raise ValueError("rank one has had enough")
        state.wait_for_everyone()  # fails too, with a broken connection
    if request["kind"] == "fail" and rank == 1:
        raise ValueError("rank one has had enough")
    if request["kind"] == "killed":
        os.kill(os.getpid(), 9)  # as the system does when memory runs out
    time.sleep(request["seconds"])


if __name__ == "__main__":
    main_of(work)
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a module and puts it where the processes find it."""

    def write(source: str) -> str:
        (tmp_path / "a_group_member.py").write_text(textwrap.dedent(source))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        return "a_group_member"

    return write


def test_two_processes_train_like_one_on_the_whole_batch(module, tmp_path: Path) -> None:
    import torch

    from paperbook.study.checkpoints import Checkpoints

    launch(module(TRAINING), {"folder": str(tmp_path / "kept")}, 2, cpu=True)
    kept = Checkpoints(tmp_path / "kept", {"config": "x"})
    assert kept.steps() == [20]  # the main process saves; were it both, the second would be refused and the launch fail
    resumed = kept.resume()
    assert resumed is not None and resumed.values["size"] == 2

    # second route: plain torch, one process, no accelerate
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 48).reshape(16, 3)
    for _ in range(20):
        optimiser.zero_grad()
        torch.nn.functional.mse_loss(model(x), x.pow(2).sum(dim=1, keepdim=True)).backward()
        optimiser.step()
    whole = torch.cat([p.detach().flatten() for p in model.parameters()])
    # 20 steps, each a sum of 16 products in another order: rounding of 1e-7 may grow to 20 * 16 of it
    torch.testing.assert_close(resumed.values["weights"], whole, rtol=3e-5, atol=3e-5)
    assert (whole - before).abs().max() > 0.1, "the training moved the weights by far more than the tolerance"


def test_one_that_fails_ends_all_and_says_why(module, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(ParallelError, match="one of 2 processes failed: ValueError: rank one has had enough"):
        launch(module(SIMPLE), {"folder": str(tmp_path), "kind": "fail", "seconds": 300}, 2, cpu=True)
    assert time.monotonic() - start < 120
    assert not any(_alive(tmp_path / f"pid-{rank}") for rank in (0, 1))


def test_the_cause_is_told_not_its_consequences(module, tmp_path: Path) -> None:
    """A process that waits for the one that failed fails as well; the user must read of the first."""
    request = {"folder": str(tmp_path), "kind": "fail while the other waits", "seconds": 0}
    with pytest.raises(ParallelError, match="one of 2 processes failed: ValueError: rank one has had enough$"):
        launch(module(SIMPLE), request, 2, cpu=True)


def test_a_process_that_is_killed_is_told_by_the_output(module, tmp_path: Path) -> None:
    with pytest.raises(ParallelError, match=r"(?s)one of 1 processes failed: .*(SIGKILL|-9)"):
        launch(module(SIMPLE), {"folder": str(tmp_path), "kind": "killed", "seconds": 0}, 1, cpu=True)


def test_kill_9_of_the_parent_leaves_nobody_behind(module, tmp_path: Path) -> None:
    request = {"folder": str(tmp_path), "kind": "wait", "seconds": 300}
    code = f"from paperbook.study.parallel import launch; launch({module(SIMPLE)!r}, {request!r}, 2, cpu=True)"
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})  # it cannot tidy up
    _until(lambda: all((tmp_path / f"pid-{rank}").is_file() and (tmp_path / f"pid-{rank}").read_text() for rank in (0, 1)))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    _until(lambda: not any(_alive(tmp_path / f"pid-{rank}") for rank in (0, 1)))


def test_fewer_than_one_is_refused() -> None:
    with pytest.raises(ValueError, match="processes: expected at least 1, got 0"):
        launch("json", {}, 0, cpu=True)


def _alive(file: Path) -> bool:
    import psutil

    with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
        return psutil.Process(int(file.read_text())).status() != psutil.STATUS_ZOMBIE
    return False


def _until(condition, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)
