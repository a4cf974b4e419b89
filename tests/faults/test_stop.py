"""Ctrl-C, SIGTERM and a closed terminal: everything says "cancelled", and the same command goes on."""

from __future__ import annotations

import signal

import pytest
from faults.toy import Toy, finish, until


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
