"""Results: atomic, complete, joined only when they belong together."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from paperbook.study import results
from paperbook.study.params import Config
from paperbook.study.results import ResultError, Run, join, load_results, read_json, write_json


class Page(Config):
    steps: int = 10
    tau: float = 0.0


def reader(seed, steps=20, tau=0.0):
    return Page(profile="reader", seed=seed, steps=steps, tau=tau)


@pytest.fixture
def clean_tree(monkeypatch):
    monkeypatch.setattr(results, "_git_state", lambda: ("c0ffee", False))


def finish(seed, steps=20, **metrics):
    return Run("toy", "1-page", reader(seed, steps)).finish(metrics or {"score": {"gain": 10.0 + seed}, "curve": [1.0, 2.0]})


def test_a_run_records_where_it_came_from(repository, clean_tree):
    provenance = read_json(finish(3))["provenance"]
    wanted = {"commit", "dirty", "library_hash", "code_hash", "lock_hash", "parameters", "seed", "profile", "hardware",
              "versions", "wall_seconds", "cpu_seconds", "peak_mb", "date", "status", "command"}  # fmt: skip
    assert wanted <= provenance.keys()
    assert provenance["parameters"]["steps"] == 20 and provenance["seed"] == 3 and provenance["peak_mb"] > 10
    assert str(repository) not in json.dumps(provenance)


def test_joined_seeds_give_rows_and_intervals(repository, clean_tree):
    for seed in range(5):
        finish(seed)
    (path,) = join("toy")
    assert path == repository / "chapters" / "toy" / "results" / "1-page.reader.json"
    joined = load_results("toy", "1-page", "reader")
    assert joined.seeds == [0, 1, 2, 3, 4] and joined.values("curve").shape == (5, 2)
    assert joined.estimate("score.gain").mean == 12.0 and joined.estimate("score.gain").n == 5
    assert joined.code_is_current


def test_nothing_there_is_none(repository):
    assert load_results("toy", "1-page", "reader") is None


def test_trials_with_other_parameters_stay_out(repository, clean_tree):
    finish(0)
    finish(1, steps=99)
    join("toy")
    assert load_results("toy", "1-page", "reader").seeds == [0]


def test_a_trial_of_a_parameter_that_the_profile_does_not_name_stays_out_too(repository, clean_tree):
    finish(0)
    Run("toy", "1-page", reader(1, tau=2.0)).finish({"score": {"gain": 99.0}, "curve": [1.0, 2.0]})
    join("toy")
    assert load_results("toy", "1-page", "reader").seeds == [0]


def test_what_a_run_must_have_been_given(repository):
    assert results.expected_parameters("toy", "1-page", "reader") == {"profile": "reader", "steps": 20, "tau": 0.0}


def test_a_page_without_literals_has_no_expected_parameters(repository):
    page = repository / "chapters" / "toy" / "1-page.md"
    page.write_text(page.read_text().replace("steps: int = 10", "steps = 10"))
    with pytest.raises(ResultError, match="name: type = literal"):
        results.expected_parameters("toy", "1-page", "reader")


def test_the_newest_run_of_a_seed_counts(repository, clean_tree):
    finish(0, score={"gain": 1.0})
    path = repository / "runs" / "toy" / "1-page"
    (old,) = path.glob("*/result.json")
    document = read_json(old)
    document["provenance"]["date"] = "2020-01-01T00:00:00+00:00"
    write_json(old.parent.with_name("older") / "result.json", {**document, "metrics": {"score": {"gain": 7.0}}})
    join("toy")
    assert load_results("toy", "1-page", "reader").values("score.gain").tolist() == [1.0]


def change(path, field, value):
    document = read_json(path)
    document["provenance"][field] = value
    write_json(path, document)


@pytest.mark.parametrize(
    ("field", "value"), [("lock_hash", "x"), ("config_hash", "x"), ("code_hash", "x"), ("versions", {"numpy": "1.0"})]
)
def test_runs_that_differ_are_refused_even_when_told(repository, clean_tree, field, value):
    finish(0)
    change(finish(1), field, value)
    with pytest.raises(ResultError, match=f"differ in {field}"):
        join("toy", allow_dirty=True)


def test_runs_with_other_metrics_are_refused(repository, clean_tree):
    finish(0)
    finish(1, score={"loss": 1.0})
    with pytest.raises(ResultError, match="different metrics"):
        join("toy")


def test_code_that_is_not_known_is_refused_unless_told(repository, clean_tree, monkeypatch):
    monkeypatch.setattr(results, "current_code_hash", lambda *_: "unknown")
    finish(0)
    with pytest.raises(ResultError, match="do not know their code"):
        join("toy")
    assert join("toy", allow_dirty=True)


def test_committed_seeds_are_not_lost_unless_told(repository, clean_tree):
    import shutil

    for seed in range(3):
        finish(seed)
    join("toy")
    for folder in (repository / "runs" / "toy" / "1-page").glob("*-s[12]"):
        shutil.rmtree(folder)
    with pytest.raises(ResultError, match="3 seeds are committed and 1 were found; seeds 1, 2 would be lost"):
        join("toy")
    assert load_results("toy", "1-page", "reader").seeds == [0, 1, 2]
    join("toy", replace=True)
    assert load_results("toy", "1-page", "reader").seeds == [0]


@pytest.mark.parametrize("content", ["{}", "[]", '{"schema": 1}', '{"page": "1-page", "provenance": {}, "metrics": {}}'])
def test_json_that_is_no_run_is_named(repository, clean_tree, content):
    finish(0)
    stray = repository / "runs" / "toy" / "1-page" / "stray" / "result.json"
    stray.parent.mkdir()
    stray.write_text(content)
    with pytest.raises(ResultError, match=r"runs/toy/1-page/stray/result\.json: not the result of a finished run"):
        join("toy")


@pytest.mark.parametrize(("field", "value"), [("status", "running"), ("seed", "0"), ("parameters", None), ("date", 3)])
def test_a_run_with_a_wrong_field_is_named(repository, clean_tree, field, value):
    change(finish(0), field, value)
    with pytest.raises(ResultError, match=f"provenance.{field}"):
        join("toy")


def test_only_trials_is_refused(repository, clean_tree):
    finish(0, steps=99)
    with pytest.raises(ResultError, match="none with the parameters of its reader profile"):
        join("toy")


def test_no_runs_is_refused(repository):
    with pytest.raises(ResultError, match="no finished run of toy"):
        join("toy")


def test_unknown_chapter(repository):
    with pytest.raises(ResultError, match="no chapter 'nope'"):
        join("nope")


def test_a_dirty_tree_is_refused_unless_told_and_then_recorded(repository, monkeypatch):
    monkeypatch.setattr(results, "_git_state", lambda: ("c0ffee", True))
    finish(0)
    with pytest.raises(ResultError, match="uncommitted changes"):
        join("toy")
    (path,) = join("toy", allow_dirty=True)
    assert read_json(path)["dirty"] is True


def test_mixed_commits_are_refused(repository, monkeypatch):
    for seed, commit in enumerate(("a", "b")):
        monkeypatch.setattr(results, "_git_state", lambda commit=commit: (commit, False))
        finish(seed)
    with pytest.raises(ResultError, match="several commits"):
        join("toy")


def test_mixed_code_is_refused_even_when_told(repository, clean_tree, monkeypatch):
    finish(0)
    monkeypatch.setattr(results, "current_code_hash", lambda *_: "other")
    finish(1)
    with pytest.raises(ResultError, match="differ in code_hash"):
        join("toy", allow_dirty=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.array([1.0, np.nan]), object(), {"a": {1, 2}}])
def test_what_json_cannot_say_is_refused_by_key(repository, clean_tree, value):
    with pytest.raises(ResultError, match=r"metrics\.score"):
        finish(0, score=value)
    assert not list((repository / "runs").rglob("result.json"))


def test_numpy_becomes_plain(repository, clean_tree):
    metrics = read_json(finish(0, a=np.float32(0.5), b=np.arange(3), c=np.bool_(True), d=(1, 2)))["metrics"]
    assert metrics == {"a": 0.5, "b": [0, 1, 2], "c": True, "d": [1, 2]}


def test_a_missing_key_names_what_there_is(repository, clean_tree):
    finish(0)
    join("toy")
    with pytest.raises(ResultError, match=r"score\.gian: no 'gian' under score; there is: gain"):
        load_results("toy", "1-page", "reader").values("score.gian")


@pytest.mark.parametrize("content", ["", '{"runs": [', "[]", '{"runs": [{}]}', "\x00"])
def test_a_damaged_file_says_how_to_mend_it(repository, content):
    path = repository / "chapters" / "toy" / "results" / "1-page.reader.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ResultError, match="make it anew"):
        load_results("toy", "1-page", "reader")


def test_older_code_is_noticed(repository, clean_tree, monkeypatch):
    finish(0)
    join("toy")
    monkeypatch.setattr(results, "current_code_hash", lambda *_: "changed")
    assert not load_results("toy", "1-page", "reader").code_is_current


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = write_json(tmp_path / "x.json", {"a": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1} and [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_kill_in_the_middle_of_a_write_leaves_the_old_file(tmp_path):
    path = write_json(tmp_path / "x.json", {"a": 1})
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from paperbook.study import results\n"
        "results.os.replace = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
        "results.write_json(Path(sys.argv[1]), {'a': 2})\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL and read_json(path) == {"a": 1}


@pytest.mark.parametrize("content", ['{"status": "failed"}', '{"status": "running"}', '{"status": "cancelled"}', "{", "[]", "{}"])
def test_a_page_that_did_not_come_to_its_end_stays_out(repository, clean_tree, content):
    # its result is written before its last cells ran
    finish(0)
    finish(2)
    (finish(1).parent / "manifest.json").write_text(content)
    join("toy")
    assert load_results("toy", "1-page", "reader").seeds == [0, 2]


def test_runs_with_a_finished_manifest_and_of_stock_papermill_are_joined(repository, clean_tree):
    finish(0)
    (finish(1).parent / "manifest.json").write_text('{"status": "finished"}')
    join("toy")
    assert load_results("toy", "1-page", "reader").seeds == [0, 1]


def test_secrets_never_reach_a_result(repository, clean_tree, monkeypatch):
    secret = "geheim-und-nur-meins"
    monkeypatch.setenv("MY_API_KEY", secret)
    monkeypatch.setattr(sys, "argv", ["/home/me/papermill", "page", f"-p=key={secret}"])
    shaped = "hf_" + "aB3" * 8
    nested = {"note": f"with {secret}", "deep": {"list": ["plain", [shaped, {"x": secret}]]}, "loss": 0.5, "none": None}
    path = finish(0, **nested)
    text = path.read_text()
    assert secret not in text and shaped not in text
    document = read_json(path)
    assert document["metrics"] == {
        "note": "with [redacted]", "deep": {"list": ["plain", ["[redacted]", {"x": "[redacted]"}]]}, "loss": 0.5, "none": None,
    }  # fmt: skip
    assert document["provenance"]["command"] == "papermill page -p=key=[redacted]"
    assert nested["note"] == f"with {secret}"  # the caller's own mapping is left alone


def test_progress_is_said_where_somebody_asked_and_never_ends_a_run(repository, monkeypatch, tmp_path):
    run = Run("toy", "1-page", reader(0))
    monkeypatch.delenv("PAPERBOOK_PROGRESS", raising=False)
    run.progress(1, 10)
    target = tmp_path / "progress.json"
    monkeypatch.setenv("PAPERBOOK_PROGRESS", str(target))
    run.progress(2, 10, "features")
    said = read_json(target)
    assert (said["done"], said["total"], said["what"]) == (2, 10, "features") and said["seconds"] >= 0
    run.progress(3, 10, "features")  # within half a second
    assert read_json(target)["done"] == 2
    run.progress(10, 10, "features")
    assert read_json(target)["done"] == 10
    monkeypatch.setenv("PAPERBOOK_PROGRESS", str(tmp_path / "no" / "such" / "folder"))
    run.progress(10, 10)
    assert not (tmp_path / "no").exists()


def test_a_resumed_run_says_so_and_counts_the_seconds_before(repository, clean_tree):
    run = Run("toy", "1-page", reader(0))
    kept = run.checkpoints("head")
    assert kept.resume() is None
    kept.save(5, values={"loss": 1.0})
    kept.release()
    first = read_json(run.finish({"loss": 1.0}))["provenance"]
    assert first["resumed"] is False

    again = Run("toy", "1-page", reader(0))
    resumed = again.checkpoints("head").resume()
    assert resumed.step == 5
    earlier = again.checkpoints().earlier_seconds
    provenance = read_json(again.finish({"loss": 1.0}))["provenance"]
    assert earlier > 0 and provenance["resumed"] is True and provenance["wall_seconds"] >= round(earlier, 2)
