"""`paperbook run` and `paperbook results` as a user meets them: streams, exit codes, and what is left on the disk."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from toybook import documents, store_checkpoint, store_result, tree
from typer.testing import CliRunner, Result

from paperbook.cli import app
from paperbook.runner.engines import local
from paperbook.runner.plan import make
from paperbook.runner.spec import Outcome, RunSpec

Act = Callable[[RunSpec, threading.Event], Outcome]


class Worker:
    """Stands in for the worker process; `act` says what becomes of a run, and by default it finishes."""

    def __init__(self) -> None:
        self.specs: list[RunSpec] = []
        self.environments: list[Mapping[str, str] | None] = []
        self.act: Act | None = None

    def __call__(
        self, spec: RunSpec, environment: Mapping[str, str] | None = None, cancel: threading.Event | None = None
    ) -> Outcome:
        self.specs.append(spec)
        self.environments.append(environment)
        if self.act:
            assert cancel is not None
            return self.act(spec, cancel)
        store_result(spec)
        return Outcome("finished", 2.0)


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    found = Worker()
    monkeypatch.setattr(local, "launch", found)
    return found


def paperbook(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def run(*arguments: str, code: int = 0) -> Result:
    done = paperbook("run", "toy/1-train", *arguments)
    assert done.exit_code == code, done.output
    return done


def manifest(seed: int = 0) -> dict[str, Any]:
    (item,) = make("toy/1-train", "full", str(seed)).items
    return json.loads((item.spec.folder / "manifest.json").read_text())


def test_a_dry_run_says_everything_and_writes_nothing(root: Path, worker: Worker) -> None:
    before = tree(root)
    done = run("--seeds", "0-2", "--dry-run")
    assert tree(root) == before and not worker.specs
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["run", "what", "forecast"] and len(lines) == 5 and done.stderr == ""
    assert lines[1] == "toy/1-train full s0  run   no record"
    assert lines[4].startswith("folder: runs/toy/1-train/full-") and lines[4].endswith("-s<seed>")


def test_a_dry_run_over_finished_resumable_and_open_runs(root: Path, worker: Worker) -> None:
    plan = make("toy/1-train", "full", "0-2").items
    store_result(plan[0].spec)
    store_checkpoint(plan[1].spec, 40)
    before = tree(root)
    lines = run("--seeds", "0-2", "--dry-run").stdout.splitlines()
    assert tree(root) == before and not worker.specs
    assert "skip: finished" in lines[1] and "8 s" not in lines[1]
    assert "resume: from its checkpoint at step 40" in lines[2] and lines[2].endswith(" 8 s")
    assert lines[5:] == ["forecast: 16 s of one worker's time", "  from 1-train: 1 recorded run of it, on a processor"]


def test_runs_without_a_record_are_counted(root: Path, needs: Any) -> None:
    store_result(make("toy/1-train", "full", "0").items[0].spec)
    done = paperbook("run", "toy", "--seeds", "1", "--dry-run")
    needs.kind = None
    assert "forecast: 8 s of one worker's time, and 1 run without a record" in done.stdout
    done = paperbook("run", "toy", "--seeds", "1-2", "--dry-run")
    assert "forecast: 16 s of one worker's time, and 2 runs without a record" in done.stdout


def test_all_finished(root: Path, worker: Worker) -> None:
    run()
    done = run()
    assert "all runs are finished; --force runs them anew" in done.stdout and len(worker.specs) == 1
    assert run("--force").exit_code == 0 and len(worker.specs) == 2
    assert (worker.specs[0].folder / "result.previous.json").is_file()


def test_a_finished_run(root: Path, worker: Worker) -> None:
    done = run("--seeds", "0-1", "--workers", "1", "--set", "lr=1e-3")
    assert [spec.parameters["lr"] for spec in worker.specs] == [1e-3] * 2 and worker.environments == [None] * 2
    assert "[2/2] toy/1-train full s1: finished after 2 s" in done.stdout and done.stdout.endswith("2 finished\n")
    assert done.stderr == "" and "resum" not in done.stdout


def test_one_that_failed_ends_with_1_and_the_others_finish(root: Path, worker: Worker) -> None:
    def act(spec: RunSpec, _: threading.Event) -> Outcome:
        if spec.seed == 1:
            trace = "\n".join(f"line {i}" for i in range(30))
            return Outcome("failed", 3.0, "out_of_memory", "out of memory (CUDA); lower --set batch_size=32", trace)
        store_result(spec)
        return Outcome("finished", 1.0)

    worker.act = act
    done = run("--seeds", "0-2", code=1)
    assert "\ntoy/1-train full s1: out of memory (CUDA); lower --set batch_size=32\n" in done.stdout
    assert "    line 29\n" in done.stdout and "line 17\n" not in done.stdout  # the end of a traceback is what counts
    assert "2 finished, 1 failed" in done.stdout and "the same command again goes on from the last checkpoints" in done.stdout
    assert [manifest(seed)["status"] for seed in range(3)] == ["finished", "failed", "finished"]
    assert manifest(1)["error"] == {"kind": "out_of_memory", "message": "out of memory (CUDA); lower --set batch_size=32"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_130_and_starts_nothing_more(root: Path, worker: Worker, number: signal.Signals) -> None:
    def act(spec: RunSpec, cancel: threading.Event) -> Outcome:
        os.kill(os.getpid(), number)
        assert cancel.wait(10)
        return Outcome("cancelled", 1.0, "cancelled", "stopped")

    worker.act = act
    before = signal.getsignal(number)
    done = run("--seeds", "0-2", "--workers", "1", code=130)
    assert "stopping; what runs is left resumable" in done.stdout and "3 cancelled" in done.stdout and len(worker.specs) == 1
    assert [manifest(seed)["status"] for seed in range(3)] == ["cancelled"] * 3 and signal.getsignal(number) == before


def test_an_engine_of_its_own_failure_is_a_failed_run(root: Path, worker: Worker) -> None:
    worker.act = lambda *_: 1 / 0  # type: ignore[assignment, return-value]
    assert "ZeroDivisionError: division by zero" in run(code=1).stdout


@pytest.mark.parametrize(("options", "message"), [
    (["--engine", "slurm"], "paperbook: engine: expected one of local, ray, got 'slurm'"),
    (["--seeds", "x"], "paperbook: seeds: expected numbers and ranges"), (["--set", "stesp=3"], "did you mean steps?"),
    (["--profile", "ful"], "did you mean full?"), (["--gpus-per-run", "1.5"], "gpus-per-run: expected a whole number"),
    (["--set", "device=cuda"], "paperbook: device: 'cuda' was asked for, but nvidia-smi finds no GPU here"),
])  # fmt: skip
@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_refused_ends_with_2_before_any_work(
    root: Path, worker: Worker, options: list[str], message: str, as_json: bool
) -> None:
    before = tree(root)
    done = run(*options, *(["--json"] if as_json else []), code=2)
    assert message in done.stderr and "Traceback" not in done.output and tree(root) == before and not worker.specs
    if as_json:
        (document,) = documents(done.stdout)
        assert document["exit_code"] == 2 and document["outcomes"] == [] and message.removeprefix("paperbook: ") in \
            " ".join(document["problems"])  # fmt: skip


@pytest.mark.parametrize("options", [["--gpus-per-run", "-1"], ["--workers", "0"], ["--gpus-per-run", "many"]])
def test_options_of_the_wrong_type_or_range(root: Path, options: list[str]) -> None:
    assert "Invalid value for" in run(*options, code=2).stderr


def test_a_problem_is_said_once_for_all_seeds(root: Path) -> None:
    done = run("--seeds", "0-9", "--set", "device=cuda", code=2)
    assert done.stderr.count("nvidia-smi finds no GPU") == 1


def test_json_is_one_document_on_stdout_and_lines_go_to_stderr(root: Path, worker: Worker) -> None:
    store_result(make("toy/1-train", "full", "0").items[0].spec)
    done = run("--seeds", "0-1", "--set", "device=auto", "--json", "--dry-run")
    (document,) = documents(done.stdout)
    assert document["warnings"] == ["device: auto, and there is no GPU here: it will run on the CPU"]
    assert not worker.specs and document["outcomes"] == []

    done = run("--seeds", "0-1", "--json")
    (document,) = documents(done.stdout)
    assert document["exit_code"] == 0 and document["problems"] == [] and document["warnings"] == []
    assert [row["action"] for row in document["plan"]] == ["skip", "run"]
    assert document["plan"][1]["forecast"] == {"seconds": 8.0, "basis": "1 recorded run of it, on a processor"}
    assert [(row["status"], bool(row["skipped"])) for row in document["outcomes"]] == [("finished", True), ("finished", False)]
    assert document["plan"][1]["folder"] == document["outcomes"][1]["folder"] == f"runs/toy/1-train/{worker.specs[0].folder_name}"
    assert "toy/1-train full s1: started" in done.stderr and "1 skipped, 1 finished" in done.stderr


def test_json_of_a_failure(root: Path, worker: Worker) -> None:
    worker.act = lambda *_: Outcome("failed", 1.0, "diverged", "loss is nan at step 6", "trace")
    (document,) = documents(run("--json", code=1).stdout)
    (outcome,) = document["outcomes"]
    assert document["exit_code"] == 1 and (outcome["kind"], outcome["message"]) == ("diverged", "loss is nan at step 6")


def test_notes_do_not_stop_a_run(root: Path, worker: Worker) -> None:
    done = run("--set", "device=auto")
    assert "note: device: auto, and there is no GPU here" in done.stdout and len(worker.specs) == 1


def test_each_run_on_a_gpu_sees_one(root: Path, worker: Worker, smi: Any) -> None:
    smi.has(2)
    run("--seeds", "0-3", "--set", "device=auto")
    assert {(env or {}).get("CUDA_VISIBLE_DEVICES") for env in worker.environments} <= {"0", "1"}
    worker.environments.clear()
    run("--seeds", "4-5", "--gpus-per-run", "2", "--set", "device=auto")
    assert worker.environments == [{"CUDA_VISIBLE_DEVICES": "0,1"}] * 2
    worker.environments.clear()
    run("--seeds", "6", "--gpus-per-run", "0", "--set", "device=auto")
    assert worker.environments == [{"CUDA_VISIBLE_DEVICES": ""}]


def test_ray_that_is_not_installed_is_said(root: Path, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    done = run("--engine", "ray", code=2)
    assert "engine: ray is not installed here; pip install" in done.stderr and not worker.specs


def joined(*arguments: str, code: int = 0) -> Result:
    done = paperbook("results", "toy", *arguments)
    assert done.exit_code == code, done.output
    return done


def test_results_name_the_seeds_that_are_missing_and_what_is_not_joined(root: Path, worker: Worker) -> None:
    def act(spec: RunSpec, _: threading.Event) -> Outcome:
        store_result(spec)  # also where the page fails after it: that result must stay out
        return Outcome("failed", 1.0, "error", "ValueError: no") if spec.seed == 2 else Outcome("finished", 1.0)

    worker.act = act
    run("--seeds", "0,1,2,4", code=1)
    (root / "runs" / "toy" / "1-train" / "broken").mkdir()
    (root / "runs" / "toy" / "1-train" / "broken" / "manifest.json").write_text("{")
    done = joined()
    assert done.stdout == ("chapters/toy/results/1-train.full.json: 3 seeds; missing between the first and the last: 2, 3\n")
    folder = make("toy/1-train", "full", "2").items[0].spec.folder_name
    assert done.stderr.splitlines() == ["not joined: toy/1-train broken: its manifest is damaged",
                                        f"not joined: toy/1-train {folder}: failed: ValueError: no"]  # fmt: skip
    content = json.loads((root / "chapters" / "toy" / "results" / "1-train.full.json").read_text())
    assert [run["provenance"]["seed"] for run in content["runs"]] == [0, 1, 4]


def test_results_say_what_is_not_joined_also_where_nothing_is(root: Path, worker: Worker) -> None:
    worker.act = lambda *_: Outcome("failed", 1.0, "error", "ValueError: no")
    run(code=1)
    done = joined(code=2)
    assert "no finished run of toy under runs/" in done.stderr and ": failed: ValueError: no" in done.stderr
    assert "not joined" not in joined("--profile", "reader", code=2).stderr


def test_one_seed_has_no_gaps(root: Path) -> None:
    run("--seeds", "3")
    assert joined().stdout == "chapters/toy/results/1-train.full.json: 1 seed\n"
