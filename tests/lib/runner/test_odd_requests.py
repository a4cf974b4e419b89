"""Slips of a hurried user: numbers beyond all measure, folders that cannot be, a terminal of another encoding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toybook import documents, tree
from typer.testing import CliRunner, Result

from paperbook.cli import app
from paperbook.runner.command import _engine
from paperbook.runner.plan import PlanError, make
from paperbook.study.requirements import Needs, Work


def dry(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", "toy/1-train", *arguments, "--dry-run"])


@pytest.mark.parametrize("name", ["PAPERBOOK_RUNS", "PAPERBOOK_CACHE"])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_folder_with_a_name_too_long_for_the_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, as_json: bool
) -> None:
    monkeypatch.setenv(name, str(root / ("x" * 300)))
    before = tree(root)
    done = dry(*["--json"] * as_json)
    assert done.exit_code == 2 and "xxx" in done.stderr and "(File name too long)" in done.stderr and name in done.stderr
    assert "Traceback" not in done.output and tree(root) == before
    if as_json:
        (document,) = documents(done.stdout)
        assert "File name too long" in document["problems"][0] and document["exit_code"] == 2


def test_a_folder_of_somebody_else(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may look everywhere, so the refusal is staged
    original = Path.is_file

    def is_file(self: Path) -> bool:
        if self.is_relative_to("/home/somebody"):
            raise PermissionError(13, "Permission denied", str(self))
        return original(self)

    monkeypatch.setenv("PAPERBOOK_RUNS", "/home/somebody/runs")
    monkeypatch.setattr(Path, "is_file", is_file)
    done = dry("--profile", "full")
    assert done.exit_code == 2 and "(Permission denied); PAPERBOOK_RUNS and PAPERBOOK_CACHE name other folders" in done.stderr


@pytest.mark.parametrize("folder", ["a file/below", "a file", "/proc/nobody-writes-here"])
def test_a_place_where_no_run_can_write(root: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    (root / "a file").write_text("")
    monkeypatch.setenv("PAPERBOOK_RUNS", str(root / folder))
    done = dry()
    assert done.exit_code == 2 and ": cannot be written (" in done.stderr and "PAPERBOOK_RUNS names another" in done.stderr


@pytest.mark.parametrize("runs", ["new", "new/below", ""])
def test_a_folder_that_is_not_there_yet_is_not_made_by_a_dry_run(root: Path, monkeypatch: pytest.MonkeyPatch, runs: str) -> None:
    monkeypatch.setenv("PAPERBOOK_RUNS", str(root / runs) if runs else "")
    before = tree(root)
    done = dry()
    assert done.exit_code == 0 and f"folder: {runs or 'runs'}/toy/1-train/full-" in done.stdout and tree(root) == before


def test_a_number_too_large_for_the_needs_or_the_work(root: Path, needs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    huge = "1" + "0" * 400
    monkeypatch.setattr(needs, "needs", lambda self: Needs(memory_gb=self.batch_size / 1e9))
    done = dry("--set", f"batch_size={huge}")
    assert done.exit_code == 2 and "a parameter is too large to reckon with" in done.stderr and "Traceback" not in done.output
    monkeypatch.setattr(needs, "work", lambda self: Work("training", self.steps * 1.5))
    done = dry("--set", f"steps={huge}", "--json")
    assert done.exit_code == 2 and "too large" in documents(done.stdout)[0]["problems"][0]


@pytest.mark.parametrize("share", [1e-9, 0.0099, 5e-324])
def test_so_many_runs_do_not_share_a_gpu(root: Path, smi: Any, share: float) -> None:
    smi.has(1)
    with pytest.raises(PlanError, match="gpus-per-run: expected 0 or at least 0.01, got "):
        make("toy", "full", gpus_per_run=share)
    assert make("toy/1-train", "full", gpus_per_run=0.01).items[0].spec.gpus == 0.01


def test_the_document_comes_through_a_terminal_that_knows_ascii_only(root: Path) -> None:
    code = ("import sys; sys.path.insert(0, sys.argv[1]); import toybook; sys.modules['runner_pages'] = toybook; "
            "from paperbook.cli import app; app(sys.argv[2:])")  # fmt: skip
    note = "größe μ"
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), "run", "toy/1-train", "--set", f"note={note}", "--dry-run",
         "--json"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False, cwd=root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (item,) = json.loads(done.stdout.decode("ascii"))["plan"]
    assert item["parameters"]["note"] == note


def test_runs_without_a_gpu_are_as_many_as_cores_allow(root: Path, smi: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    smi.has(1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    plan = make("toy/1-train", "full", "0-9", ["device=auto"], gpus_per_run=0)
    engine = _engine("local", plan, None, 0)
    assert engine.capacity == 6
    engine.close()
    one_each = _engine("local", make("toy/1-train", "full", "0-9", ["device=auto"]), None, None)
    assert one_each.capacity == 1
    one_each.close()


@pytest.mark.parametrize("seeds", ["2147483648", "4294967296"])
def test_a_seed_beyond_the_generators(root: Path, seeds: str) -> None:
    done = dry("--seeds", seeds)
    assert done.exit_code == 2 and "seeds: expected numbers" in done.stderr and seeds in done.stderr
