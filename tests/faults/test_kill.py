"""kill -9 of the kernel, of the worker and of the runner: nothing is lost but one interval, and the numbers are the same bits."""

from __future__ import annotations

import random

import pytest
from faults.toy import Toy, make
from safetensors import safe_open

WHO = ("kernel", "worker", "runner")
CLOCKED = ("date", "wall_seconds", "cpu_seconds", "peak_mb", "command", "resumed")
"""What a clock or a process says about a run."""


def seconds_behind(toy: Toy) -> float:
    """Wall seconds that the newest checkpoint knows of."""
    path = toy.folder() / f"checkpoints/model/step-{toy.steps()[-1]:09d}.safetensors"
    with safe_open(path, framework="np") as file:
        return float(file.metadata()["seconds"])


def test_killed_three_times_and_resumed_to_the_same_bits(toy: Toy) -> None:
    """Three random steps, each time somebody else is hit; torch, so that model, optimiser, schedule and RNG count."""
    # long enough that a loaded machine, which sees a step late, still kills three times
    options = ("framework=torch", "pause=0.2", "steps=40")
    moments = sorted(random.Random(7).sample(range(2, 12), 3))
    behind = 0.0
    for attempt, (who, step) in enumerate(zip(WHO, moments, strict=True), start=1):
        process = toy.start(*options, TOY_CHILD="yes")
        output = toy.kill(process, max(step, (toy.steps() or [0])[-1] + 1), who)
        if who != "runner":
            assert "killed" in output and "batch_size=4" in output and "the same command again goes on" in output
            assert toy.manifest()["status"] == "failed" and toy.manifest()["error"]["kind"] == "killed"
        toy.nobody()  # neither the kernel nor a process of the page goes on behind the runner's back
        assert len(toy.executions()) == attempt
        # a kill between a save and the removal of the oldest leaves three
        assert 2 <= len(toy.steps()) <= 3 and not (toy.folder() / "result.json").exists()
        before, behind = behind, seconds_behind(toy)
        assert behind > before

    last = toy.steps()[-1]
    # as a kill in the middle of a write leaves them
    for name in ("checkpoints/model/step-000000099.tmp", ".result.json.x1", ".manifest.json.x2", ".notebook.ipynb.x3"):
        (toy.folder() / name).write_text("half")
    output = toy.run(*options)
    assert f"resume: from its checkpoint at step {last}" in output
    assert toy.executions() == [0, 0, 0, 0]
    # every step was trained, and each kill cost at most the one step that was not saved yet
    assert sorted(set(toy.trained())) == list(range(1, 41)) and len(toy.trained()) <= 40 + len(WHO)
    toy.no_leftovers()
    resumed = toy.result()
    assert resumed["provenance"]["resumed"] is True
    # all attempts count, up to their last checkpoints
    assert resumed["provenance"]["wall_seconds"] > behind + (40 - last) * 0.2
    manifest = toy.manifest()
    assert manifest["status"] == "finished" and manifest["attempts"][-1]["status"] == "finished"

    toy.env["PAPERBOOK_RUNS"] = str(toy.root / "runs" / "uninterrupted")
    toy.run(*options)
    whole = toy.result()
    assert whole["metrics"] == resumed["metrics"] and len(whole["metrics"]["losses"]) == 40
    assert whole["provenance"]["resumed"] is False


def test_a_kernel_that_dies_by_itself_does_not_take_the_other_seeds(toy: Toy) -> None:
    output = toy.run("fault=die", seeds="0-1", options=("--workers", "1"), code=1)
    assert (
        "toy/1-train full s0: failed" in output and "toy/1-train full s1: finished" in output and "1 failed, 1 finished" in output
    )
    assert toy.steps(0) == [3, 4]  # it died before step 5 was saved
    assert "toy/1-train full s0: finished" in toy.run("fault=die", seeds="0-1")
    assert toy.executions() == [0, 1, 0]


PAPERMILL = ["papermill", "chapters/toy/1-train.md", "runs/x.ipynb", "-f", "chapters/toy/profiles/full.yaml", "-p", "fault",
             "die", "--no-progress-bar"]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The result of an uninterrupted run, by `paperbook run` and by stock papermill: the same but for what a clock says."""
    toy = make(tmp_path_factory.mktemp("whole"))
    (toy.root / "died").touch()  # nobody dies here
    toy.run("fault=die")
    ours = without_clock(toy.result())
    toy.env["PAPERBOOK_RUNS"] = str(toy.root / "runs" / "stock")
    toy.command(*PAPERMILL)
    assert without_clock(toy.result()) == ours
    return ours


def without_clock(document: dict[str, dict[str, object]]) -> dict[str, object]:
    # every toy repository has a commit of its own
    kept = {name: value for name, value in document["provenance"].items() if name not in (*CLOCKED, "commit")}
    return {**document, "provenance": kept}


@pytest.mark.parametrize("order", [("papermill", "paperbook"), ("paperbook", "papermill")], ids=" then ".join)
def test_each_of_papermill_and_paperbook_goes_on_where_the_other_was_killed(
    toy: Toy, whole: dict[str, object], order: tuple[str, str]
) -> None:
    for i, who in enumerate(order):
        if who == "papermill":
            toy.command(*PAPERMILL, code=0 if i else None)  # it says 138 when its kernel dies
        else:
            toy.run("fault=die", code=0 if i else 1)
    assert toy.result()["provenance"]["resumed"] is True
    assert without_clock(toy.result()) == whole
