"""Ctrl-C, SIGTERM and a closed terminal: everything says "cancelled", and the same command goes on."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future

import pytest
from faults.toy import Toy, finish, until

from paperbook.runner.spec import Outcome, RunSpec


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_stopped_runs_are_cancelled_and_resumable(toy: Toy, number: signal.Signals) -> None:
    process = toy.start("pause=0.1", "steps=100", seeds="0-2", options=("--workers", "2"))
    toy.wait_for_step(3, 0)
    toy.wait_for_step(3, 1)
    process.send_signal(number)
    process.send_signal(number)  # a second one, from an impatient person, does no harm
    output = finish(process, 130)
    assert "stopping; what runs is left resumable" in output and "3 cancelled" in output and "Traceback" not in output
    assert [toy.manifest(seed)["status"] for seed in (0, 1, 2)] == ["cancelled"] * 3
    assert toy.steps(2) == [] and not list(toy.runs.rglob("result.json"))
    toy.no_leftovers()
    assert "not joined" in toy.paperbook("results", "toy", code=2)
    assert not (toy.root / "chapters/toy/results").exists()

    output = toy.run("pause=0.1", "steps=100", seeds="0", options=("--dry-run",))
    assert f"resume: from its checkpoint at step {toy.steps()[-1]}" in output


def test_stopped_before_anything_ran(toy: Toy) -> None:
    process = toy.start("pause=0.2", "steps=50")
    until(lambda: toy.folders() and (toy.folders()[0] / "manifest.json").is_file())
    process.send_signal(signal.SIGTERM)
    finish(process, 130)
    assert toy.manifest()["status"] == "cancelled"
    toy.run("pause=0", "steps=50")
    toy.no_leftovers()


def test_a_signal_while_the_first_manifests_are_written(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    from paperbook.runner import drive
    from paperbook.runner.folder import Claim
    from paperbook.runner.plan import Item, Plan

    monkeypatch.setenv("PAPERBOOK_ROOT", str(toy.root))
    monkeypatch.delenv("PAPERBOOK_RUNS", raising=False)
    usual, plan = signal.getsignal(signal.SIGTERM), Claim.plan

    def interrupted(claim: Claim) -> None:
        assert signal.getsignal(signal.SIGTERM) is not usual, "a signal would end the process without a word"
        os.kill(os.getpid(), signal.SIGTERM)
        plan(claim)

    class Idle:
        """An engine that must not be asked to run anything."""

        name, capacity = "local", 2

        def submit(self, spec: RunSpec) -> Future[Outcome]:
            raise AssertionError(f"{spec.name} was started")

        def cancel(self) -> None:
            said.append("cancel")

        def close(self) -> None:
            said.append("close")

    said: list[str] = []
    monkeypatch.setattr(Claim, "plan", interrupted)
    specs = [RunSpec("toy", "1-train", "full", {"seed": s}, s, "abc", "def", f"full-abc-s{s}") for s in (0, 1)]
    ended, stopped = drive.run(Plan([Item(spec, "run", "", None) for spec in specs]), Idle(), say=said.append)
    assert stopped and [one.outcome.status for one in ended] == ["cancelled"] * 2
    assert said[:2] == ["stopping; what runs is left resumable", "cancel"] and said[-1] == "close"
    assert [toy.manifest(seed)["status"] for seed in (0, 1)] == ["cancelled"] * 2
    assert signal.getsignal(signal.SIGTERM) is usual
