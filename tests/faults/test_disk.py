"""A disk that is full, and one that cannot be written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from faults.toy import Toy, until


def mounting() -> bool:
    """Whether this user may mount a small disk of his own."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "none", "/mnt"],
                          capture_output=True, check=False).returncode == 0  # fmt: skip


def on_small_disk(toy: Toy, size: str, before: str, *changes: str, after: str = "true") -> subprocess.CompletedProcess[str]:
    """`paperbook run` with runs/ on a disk of `size`; `before` and `after` are shell commands around it."""
    command = " ".join([sys.executable, "-m paperbook.cli run toy/1-train", *(f"--set {change}" for change in changes)])
    script = (
        f"set -u; mount -t tmpfs -o size={size} none {toy.root}/runs; cd {toy.root}; {before}; {command}; echo exit $?; {after}"
    )
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", script], env=toy.environment(), capture_output=True, text=True, check=False, timeout=180
    )


@pytest.fixture
def disk(toy: Toy) -> Toy:
    if not mounting():
        pytest.skip("no permission to mount a small disk (unshare -rm); the in-process tests beside this one stand in for it")
    return toy


def test_a_disk_that_fills_up_leaves_the_last_checkpoint_and_a_clear_word(disk: Toy) -> None:
    # the log and the notebook take about 60 kB; the filler leaves room for a few checkpoints of a growing list of losses
    kept = "runs/toy/1-train/*/checkpoints/model"
    fill = f"(until ls {kept}/step-*5.* > /dev/null 2>&1; do sleep 0.1; done; cat /dev/zero > runs/filler 2> /dev/null) & "
    after = "rm -f runs/filler; ls runs/toy/1-train/*/checkpoints/model; cat runs/toy/1-train/*/manifest.json; " + (
        f"{sys.executable} -m paperbook.cli run toy/1-train --set pause=0.2 --set steps=40; echo again $?"
    )
    done = on_small_disk(disk, "64m", fill + "true", "pause=0.2", "steps=40", after=after)
    assert "exit 1" in done.stdout, done.stdout + done.stderr
    assert "the disk is full" in done.stdout  # a checkpoint or the notebook was the first that did not fit
    assert "Traceback (most recent call last)" not in done.stderr
    assert ".tmp" not in done.stdout
    # room again: the same command goes on
    assert "resume: from its checkpoint at step" in done.stdout and "again 0" in done.stdout, done.stdout


def test_a_disk_that_is_full_from_the_start_is_refused_before_any_work(disk: Toy) -> None:
    done = on_small_disk(disk, "64k", "true")
    assert "exit 2" in done.stdout and "Traceback" not in done.stderr
    assert "runs: about 0.02 GB are needed" in done.stderr and "PAPERBOOK_RUNS" in done.stderr
    assert disk.executions() == []


def test_a_read_only_folder_is_refused_before_any_work(disk: Toy) -> None:
    done = on_small_disk(disk, "1m", f"mount -o remount,ro {disk.root}/runs")
    assert "exit 2" in done.stdout
    assert "runs: cannot be written (Read-only file system); PAPERBOOK_RUNS names another folder" in done.stderr
    assert disk.executions() == []


def test_a_runs_folder_that_cannot_be_made_is_refused(toy: Toy) -> None:
    (toy.root / "file").write_text("")
    output = toy.run(code=2, PAPERBOOK_RUNS=str(toy.root / "file" / "runs"))
    assert "cannot be written (Not a directory); PAPERBOOK_RUNS names another folder" in output
    assert toy.executions() == [] and (toy.root / "file").read_text() == ""


@pytest.mark.parametrize("what", ["fsync", "replace"])
def test_a_write_that_fails_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """The same without a disk of one's own: the system call fails as a full disk makes it fail."""
    import errno

    from paperbook.study.checkpoints import CheckpointError, Checkpoints
    from paperbook.study.results import write_json

    kept = Checkpoints(tmp_path / "checkpoints", {"config": "x"})
    kept.save(1, values={"a": 1})
    write_json(tmp_path / "result.json", {"a": 1})
    before = (tmp_path / "result.json").read_bytes()

    at_that_moment: set[str] = set()

    def full(*_: object) -> None:
        at_that_moment.update(path.name for path in tmp_path.rglob("*"))
        assert (tmp_path / "result.json").read_bytes() == before
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os if what == "fsync" else Path, what, full)
    if what == "replace":
        monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match="the disk is full.*the checkpoint of step 1 is intact"):
        kept.save(2, values={"a": 2})
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "result.json", {"a": 2})
    monkeypatch.undo()
    assert (tmp_path / "result.json").read_bytes() == before
    # nothing bears its final name before it is whole and on the disk
    assert "step-000000001.safetensors" in at_that_moment and "step-000000002.safetensors" not in at_that_moment
    assert kept.resume().values == {"a": 1}
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        ".lock",
        "result.json",
        "step-000000001.safetensors",
    ]


def test_a_disk_that_is_full_for_the_manifest_is_reported_and_ends_nothing_else(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import json
    from concurrent.futures import Future

    from paperbook.runner import drive, folder
    from paperbook.runner.plan import Item, Plan
    from paperbook.runner.spec import Outcome, RunSpec

    monkeypatch.setenv("PAPERBOOK_ROOT", str(toy.root))
    monkeypatch.delenv("PAPERBOOK_RUNS", raising=False)
    write, said = folder.write_json, []
    full = {"running", "finished"}  # what cannot be written at the moment

    def write_json(path: Path, content: dict[str, object]) -> Path:
        if content["seed"] == 0 and content["heartbeat"]["count"] and content["status"] in full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    class Slow:
        """An engine whose runs take as long as a heart needs to beat and to complain."""

        name, capacity = "local", 2

        def submit(self, spec: RunSpec) -> Future[Outcome]:
            future: Future[Outcome] = Future()

            def work() -> None:
                until(lambda: said_about("cannot be written"))
                future.set_result(Outcome("finished"))

            threading.Thread(target=work).start()
            return future

        def cancel(self) -> None:
            said.append("cancelled")

        def close(self) -> None:
            said.append("closed")

    def said_about(words: str) -> list[str]:
        return [line for line in said if words in line]

    monkeypatch.setattr(folder, "write_json", write_json)
    monkeypatch.setattr(drive, "Heart", lambda complain: folder.Heart(seconds=0.05, complain=complain))
    specs = [RunSpec("toy", "1-train", "full", {"seed": s}, s, "abc", "def", f"full-abc-s{s}") for s in (0, 1)]
    ended, stopped = drive.run(Plan([Item(spec, "run", "", None) for spec in specs]), Slow(), say=said.append)
    assert said_about("toy/1-train full s0: its manifest cannot be written (No space left on device)") and not stopped
    assert [(e.outcome.status, e.outcome.message) for e in ended] == [
        ("failed", "its manifest cannot be written (No space left on device); run again"), ("finished", "")]  # fmt: skip
    # the file is the last whole one, and the lock is free: the run can be taken again, and says what is known of it
    assert json.loads((specs[0].folder / "manifest.json").read_text())["status"] == "running"
    full.clear()
    claim = folder.Claim(specs[0])
    assert claim.status == "failed"
    claim.release()
    toy.no_leftovers()
