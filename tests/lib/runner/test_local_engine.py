"""The local pool: how many runs go at once, and which GPUs each of them sees."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbook.runner.engines import local
from paperbook.runner.engines.local import LocalEngine, gpu_slots
from paperbook.runner.spec import Outcome, RunSpec

EIGHT = [str(i) for i in range(8)]


class Launches:
    """Stands in for the worker process: takes a moment, and keeps who was there at the same time."""

    def __init__(self, seconds: float = 0.03) -> None:
        self.seconds, self.guard = seconds, threading.Lock()
        self.now: list[str | None] = []
        self.seen: list[list[str | None]] = []
        self.started: list[int] = []
        self.inherited: list[bool] = []

    def __call__(
        self, spec: RunSpec, environment: Mapping[str, str] | None = None, cancel: threading.Event | None = None
    ) -> Outcome:
        gpu = (environment or {}).get("CUDA_VISIBLE_DEVICES")
        with self.guard:
            self.now.append(gpu)
            self.seen.append(list(self.now))
            self.started.append(spec.seed)
            self.inherited.append(environment is None)
        assert cancel is not None
        stopped = cancel.wait(self.seconds)
        with self.guard:
            self.now.remove(gpu)
        if spec.seed == 99:
            raise RuntimeError("the engine's own failure")
        return Outcome("cancelled" if stopped else "finished", self.seconds)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    found = Launches()
    monkeypatch.setattr(local, "launch", found)
    return found


def spec(seed: int) -> RunSpec:
    return RunSpec("toy", "1-train", "full", {"seed": seed}, seed, "abc", "def", f"full-abc-s{seed}")


def carried_out(engine: LocalEngine, runs: int = 12) -> list[str]:
    futures = [engine.submit(spec(seed)) for seed in range(runs)]
    engine.close()
    return [future.result(timeout=10).status for future in futures]


@pytest.mark.parametrize(("gpus", "share", "slots"), [
    (EIGHT, 1, EIGHT), (EIGHT, 2, ["0,1", "2,3", "4,5", "6,7"]), (EIGHT, 3, ["0,1,2", "3,4,5"]), (EIGHT, 8, [",".join(EIGHT)]),
    (EIGHT, 9, []), ([], 1, []), (["3", "5"], 0.5, ["3", "5", "3", "5"]), (["3"], 1 / 3, ["3"] * 3), (["3"], 0.4, ["3"] * 2),
    (["3"], 0.9, ["3"]), ([], 0.5, []), (["GPU-a", "GPU-b"], 1.0, ["GPU-a", "GPU-b"]), (EIGHT, 0, [""] * 5), ([], 0, [""] * 5),
])  # fmt: skip
def test_slots(gpus: list[str], share: float, slots: list[str]) -> None:
    assert gpu_slots(gpus, share, 5) == slots


@given(st.integers(0, 20), st.integers(1, 20) | st.floats(0.05, 0.99), st.integers(1, 8))
def test_no_gpu_is_given_out_twice_nor_more_than_its_share(count: int, share: float, workers: int) -> None:
    given_out = [gpu for slot in gpu_slots([str(i) for i in range(count)], share, workers) for gpu in slot.split(",")]
    assert all(given_out.count(gpu) * min(share, 1) <= 1 + 1e-6 for gpu in given_out)
    if share >= 1:
        assert len(given_out) == count // share * share


def test_runs_that_go_at_once_never_share_a_gpu(launches: Launches) -> None:
    engine = LocalEngine(6, EIGHT[:4], 1)
    assert engine.capacity == 4
    assert carried_out(engine, 16) == ["finished"] * 16
    assert all(len(set(there)) == len(there) for there in launches.seen)
    assert max(map(len, launches.seen)) > 1 and {gpu for there in launches.seen for gpu in there} == set(EIGHT[:4])


def test_groups_of_gpus_are_disjoint(launches: Launches) -> None:
    engine = LocalEngine(8, EIGHT, 3)
    carried_out(engine, 6)
    assert engine.capacity == 2 and {gpu for there in launches.seen for gpu in there} <= {"0,1,2", "3,4,5"}
    assert all(len(set(there)) == len(there) for there in launches.seen)


def test_a_fraction_lets_so_many_share(launches: Launches) -> None:
    engine = LocalEngine(8, ["0", "1"], 0.5)
    carried_out(engine, 12)
    assert engine.capacity == 4
    assert all(there.count(gpu) <= 2 for there in launches.seen for gpu in there)


def test_zero_hides_every_gpu(launches: Launches) -> None:
    carried_out(LocalEngine(3, EIGHT, 0))
    assert {gpu for there in launches.seen for gpu in there} == {""}


def test_none_leaves_the_environment_as_it_is(launches: Launches) -> None:
    carried_out(LocalEngine(3, EIGHT, None))
    assert all(launches.inherited) and max(map(len, launches.seen)) <= 3


def test_one_worker_runs_one_at_a_time_in_order(launches: Launches) -> None:
    assert carried_out(LocalEngine(1), 5) == ["finished"] * 5
    assert max(map(len, launches.seen)) == 1 and launches.started == [0, 1, 2, 3, 4]


def test_cancel_stops_what_runs_and_starts_nothing_more(launches: Launches) -> None:
    launches.seconds = 30
    engine = LocalEngine(2)
    futures = [engine.submit(spec(seed)) for seed in range(5)]
    while len(launches.started) < 2:
        time.sleep(0.01)
    engine.cancel()
    engine.close()
    outcomes = [future.result(timeout=5) for future in futures]
    assert [outcome.status for outcome in outcomes] == ["cancelled"] * 5 and len(launches.started) == 2
    assert outcomes[-1].message == "not started"


def test_a_failure_gives_its_gpu_back(launches: Launches) -> None:
    engine = LocalEngine(1, ["7"], 1)
    failed, after = engine.submit(spec(99)), engine.submit(spec(1))
    with pytest.raises(RuntimeError, match="the engine's own failure"):
        failed.result(timeout=10)
    assert after.result(timeout=10).status == "finished"
    engine.close()


@pytest.mark.parametrize(("workers", "gpus", "share", "message"), [
    (0, [], None, "workers: expected at least 1, got 0"), (1, ["0"], 2, "gpus-per-run: 2 were asked for, 1 are there"),
    (1, None, 0.5, "gpus-per-run: 0.5 were asked for, 0 are there"),
])  # fmt: skip
def test_what_an_engine_refuses(workers: int, gpus: Any, share: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalEngine(workers, gpus, share)


def test_the_environment_of_a_gpu_run_reaches_its_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real launch, with a worker that only says what it sees."""
    from paperbook.runner import launch

    folder = root / "runs" / "toy" / "1-train" / "full-abc-s0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    say = root / "say"
    say.write_text("#!/bin/sh\necho \"sees $CUDA_VISIBLE_DEVICES\"\nexit 4\n")
    say.chmod(0o755)
    monkeypatch.setattr(launch.sys, "executable", str(say))
    engine = LocalEngine(1, ["5"], 1)
    outcome = engine.submit(spec(0)).result(timeout=20)
    engine.close()
    assert (outcome.status, outcome.message) == ("failed", "its process ended with code 4; see its log")
    assert "sees 5" in (folder / "log.txt").read_text()
