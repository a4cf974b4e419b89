"""Two runners at once, on one machine and on two; locks that outlive nobody."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time

import pytest
from faults.toy import Toy, finish

from paperbook.runner.folder import Claim, TakenError
from paperbook.runner.spec import RunSpec


def test_two_runners_share_the_seeds_and_run_each_once(toy: Toy) -> None:
    options = {"seeds": "0-3", "options": ("--workers", "1")}
    first, second = (toy.start("pause=0.15", **options) for _ in range(2))
    ended = [(finish(process, None), process.returncode) for process in (first, second)]
    assert sorted(toy.executions()) == [0, 1, 2, 3]
    assert [toy.manifest(seed)["status"] for seed in range(4)] == ["finished"] * 4
    assert any("has it" in output or "finished by another process meanwhile" in output for output, _ in ended)
    # exit 0 says that everything is finished; whoever leaves a run to the other one says so
    assert all(code == 0 or (code == 1 and f"process {other.pid} on {socket.gethostname()} has it" in output)
               for (output, code), other in zip(ended, (second, first), strict=True))  # fmt: skip
    toy.no_leftovers()


def test_a_lock_does_not_outlive_its_holder(toy: Toy) -> None:
    process = toy.start("pause=0.2", "steps=30")
    toy.wait_for_step(2)
    second = toy.run("pause=0.2", "steps=30", code=1)  # nothing failed, and the run is not finished
    assert f"process {process.pid} on {socket.gethostname()} has it" in second and "1 skipped" in second
    os.kill(process.pid, signal.SIGKILL)
    finish(process, -signal.SIGKILL)
    toy.env["PAPERBOOK_CHECKPOINT_SECONDS"] = "60"
    assert "1 finished" in toy.run("pause=0.2", "steps=30")


@pytest.fixture
def spec(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> RunSpec:
    monkeypatch.setenv("PAPERBOOK_ROOT", str(toy.root))
    monkeypatch.delenv("PAPERBOOK_RUNS", raising=False)
    return RunSpec("toy", "1-train", "full", {"seed": 0}, 0, "abc", "def", "full-abc-s0")


def elsewhere(spec: RunSpec, count: int) -> None:
    """A manifest as another machine on the same disk writes it."""
    spec.folder.mkdir(parents=True, exist_ok=True)
    content = {"status": "running", "host": "another-machine", "pid": 1, "attempts": [{"started": "2099-01-01T00:00:00+00:00"}],
               "heartbeat": {"count": count, "time": "2099-01-01T00:00:00+00:00"}}  # fmt: skip
    (spec.folder / "manifest.json").write_text(json.dumps(content))


def test_another_machines_run_is_left_alone_while_its_heart_beats(spec: RunSpec) -> None:
    stop = threading.Event()

    def beat() -> None:
        count = 0
        while not stop.wait(0.3):
            count += 1
            elsewhere(spec, count)

    elsewhere(spec, 0)
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(TakenError, match="process 1 on another-machine has it"):
            Claim(spec, watch=10)
    finally:
        stop.set()
        thread.join()
    claim = Claim(spec, watch=1.5)  # now it is dead, whatever its clock said
    assert claim.status == "failed"
    claim.release()


def test_one_process_takes_a_run_once(spec: RunSpec) -> None:
    claim = Claim(spec)
    start = time.monotonic()
    with pytest.raises(TakenError, match=f"process {os.getpid()} on {socket.gethostname()} has it"):
        Claim(spec)
    assert time.monotonic() - start < 5
    claim.release()
    Claim(spec).release()
