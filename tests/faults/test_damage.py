"""Files that were cut short, changed or emptied; a clock that goes backwards."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from faults.toy import Toy, make


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Metrics of a run that nothing happened to."""
    toy = make(tmp_path_factory.mktemp("whole"))
    toy.run()
    return toy.result()["metrics"]


def interrupted(toy: Toy) -> list[Path]:
    """A killed run; its two checkpoints, the older one first."""
    toy.kill(toy.start("pause=0.1"), 5)
    *spare, older, newer = sorted(toy.folder().glob("checkpoints/model/step-*.safetensors"))
    for path in spare:  # the kill came between a save and the removal of the oldest
        path.unlink()
    return [older, newer]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [lambda p: p.write_bytes(p.read_bytes()[:-20]), flip, lambda p: p.write_bytes(b"")],
                         ids=["truncated", "one bit", "empty"])  # fmt: skip
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(toy: Toy, whole: dict[str, object], harm) -> None:
    older, newer = interrupted(toy)
    harm(newer)
    output = toy.run("pause=0.1")
    step = int(older.stem.removeprefix("step-"))
    assert "is damaged (" in output and f"going back to step {step}" in output
    assert newer.with_suffix(".damaged").is_file()
    assert "is damaged (" in (toy.folder() / "log.txt").read_text()
    assert toy.result()["metrics"] == whole and toy.result()["provenance"]["resumed"] is True
    toy.no_leftovers()


def test_both_damaged_starts_from_the_beginning_and_says_so(toy: Toy, whole: dict[str, object]) -> None:
    for path in interrupted(toy):
        flip(path)
    output = toy.run("pause=0.1")
    assert "starting from the beginning" in output
    assert toy.result()["metrics"] == whole and toy.result()["provenance"]["resumed"] is False


def test_damaged_results_are_made_anew_and_never_joined(toy: Toy) -> None:
    toy.run(seeds="0-1")
    toy.paperbook("results", "toy", "--profile", "full")
    committed = toy.root / "chapters/toy/results/1-train.full.json"
    before, good = committed.read_bytes(), toy.result(0)
    path = toy.folder(0) / "result.json"
    other = json.dumps({**good, "provenance": {**good["provenance"], "config_hash": "other"}}).encode()
    for content in (path.read_bytes()[:-30], b"", other):
        path.write_bytes(content)
        refused = toy.paperbook("results", "toy", code=2)
        if content == other:
            assert "toy/1-train at full: its runs differ in config_hash" in refused
        else:
            assert f"{path.relative_to(toy.root)}: damaged, not JSON" in refused
        assert committed.read_bytes() == before
        output = toy.run(seeds="0-1")
        reason = "its result belongs to another configuration" if content == other else "its result.json is damaged"
        assert reason in output and "skip: finished" in output
        assert toy.result(0)["metrics"] == good["metrics"]
        assert path.with_name("result.previous.json").read_bytes() == content
    assert sorted(toy.executions()[:2]) == [0, 1] and toy.executions()[2:] == [0, 0, 0]


def test_a_page_that_fails_after_its_result_is_not_joined(toy: Toy) -> None:
    (toy.root / "chapters/toy/profiles/full.yaml").write_text("profile: full\nsteps: 24\nfault: late\n")
    output = toy.run(code=1)
    assert "a figure after the result" in output
    assert (toy.folder() / "result.json").is_file() and toy.manifest()["status"] == "failed"
    assert "no finished run" in toy.paperbook("results", "toy", code=2)
    assert "did not come to its end (failed)" in toy.run(code=1)  # not skipped as finished


def test_a_damaged_manifest_is_looked_at_anew(toy: Toy) -> None:
    toy.run()
    (toy.folder() / "manifest.json").write_text('{"status": "run')
    assert "its manifest is damaged" in toy.paperbook("results", "toy", code=2)
    assert "skip: finished" in toy.run()
    assert toy.executions() == [0]


def test_other_code_does_not_go_on_from_a_checkpoint(toy: Toy) -> None:
    interrupted(toy)
    page = toy.root / "chapters/toy/1-train.md"
    # the page imports one library module more, so the code behind it is another
    line = "from paperbook.study.seeds import rng"
    page.write_text(page.read_text().replace(line, line + "\nimport paperbook.data.digits"))
    before = toy.steps()
    output = toy.run("pause=0.1", code=2)
    assert "was written by other code than today's; --force starts it anew" in output
    assert toy.steps() == before and toy.executions() == [0]
    toy.run("pause=0.1", options=("--force",))
    assert toy.result()["provenance"]["resumed"] is False


def test_a_clock_that_goes_backwards_changes_nothing(toy: Toy, whole: dict[str, object]) -> None:
    older, newer = interrupted(toy)
    future = time.time() + 10 * 365 * 86400
    os.utime(older, (future, future))  # written "later" than the newer one
    manifest = toy.manifest()
    manifest["heartbeat"]["time"] = manifest["attempts"][-1]["started"] = "2099-01-01T00:00:00+00:00"
    manifest["status"] = "running"
    (toy.folder() / "manifest.json").write_text(json.dumps(manifest))
    output = toy.run("pause=0.1")
    assert f"at step {int(newer.stem.removeprefix('step-'))}" in output and "1 finished" in output
    assert toy.result()["metrics"] == whole and toy.result()["provenance"]["resumed"] is True
    assert toy.manifest()["attempts"][-1]["seconds"] >= 0 and toy.result()["provenance"]["wall_seconds"] >= 0


def test_a_clock_that_steps_back_under_a_running_process(toy: Toy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A day back at every look: when a save is due, what is newest, what is taken and what it cost do not ask that clock."""
    from paperbook.runner.folder import Claim, Heart, TakenError, checkpoint_key
    from paperbook.runner.spec import Outcome, RunSpec
    from paperbook.study.checkpoints import Checkpoints

    monkeypatch.setenv("PAPERBOOK_ROOT", str(toy.root))
    monkeypatch.delenv("PAPERBOOK_RUNS", raising=False)
    days = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: 2e9 - 86400.0 * next(days))
    spec = RunSpec("toy", "1-train", "full", {"seed": 0}, 0, "abc", "def", "full-abc-s0")
    claim = Claim(spec)
    claim.start("local")
    heart = Heart(seconds=0.02)
    heart.add(claim)
    kept = Checkpoints(spec.folder / "checkpoints", {"config": "abc"}, every_seconds=0.05)
    late = Checkpoints(spec.folder / "checkpoints" / "late", {"config": "abc"}, every_seconds=3600.0)
    assert not kept.due()
    end = time.monotonic() + 30
    while not kept.due():
        assert time.monotonic() < end, "a save never falls due"
        time.sleep(0.01)
    kept.save(1)
    os.utime(kept.save(2), (1.0, 1.0))  # the file's own date is long before the first one's
    assert not late.due()
    assert checkpoint_key(spec.folder) == (2, {"config": "abc"})
    with pytest.raises(TakenError, match="has it"):
        Claim(spec)
    heart.stop()
    beats = json.loads((spec.folder / "manifest.json").read_text())["heartbeat"]["count"]
    assert beats >= 1
    claim.end(Outcome("finished", 0.5))
    claim.release()
    assert Claim(spec).status == "finished"
    kept.release()
    again = Checkpoints(spec.folder / "checkpoints", {"config": "abc"})
    assert again.resume().step == 2 and again.earlier_seconds >= 0
