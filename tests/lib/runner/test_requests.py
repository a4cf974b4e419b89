"""What is asked for, in the words it is asked for in, and what would be done with each run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toybook import page, store_checkpoint, store_result, tree, write_page

from paperbook.runner import checks
from paperbook.runner.folder import Claim
from paperbook.runner.plan import PlanError, config_class, make, pages_with, parse_changes, parse_seeds
from paperbook.runner.spec import Outcome, RunSpec
from paperbook.study.requirements import Asset


@pytest.mark.parametrize(("text", "seeds"), [
    ("0", [0]), ("0-4", [0, 1, 2, 3, 4]), ("0,3,7-9", [0, 3, 7, 8, 9]), (" 2 - 3 , 1 ", [1, 2, 3]), ("5-5", [5]),
    ("3,1,3,0-1", [0, 1, 3]), ("0-9999", list(range(10_000))),
])  # fmt: skip
def test_seeds(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", " ", ",", "1,", "-1", "4-0", "a", "1.5", "0x1", "1-2-3", "0;1", "1e3", "9999999999", "0-"])
def test_no_seeds(text: str) -> None:
    with pytest.raises(PlanError, match="seeds: expected numbers and ranges such as 0-4 or 0,3,7-9, got "):
        parse_seeds(text)


@pytest.mark.parametrize("text", ["0-999999999", "0-10000", "0-9999,20000", "0-6000,10000-16000"])
def test_too_many_seeds(text: str) -> None:
    with pytest.raises(PlanError, match="seeds: expected numbers .*, at most 10,000, got "):
        parse_seeds(text)


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=30))
def test_seeds_are_read_as_they_are_written(seeds: set[int]) -> None:
    assert parse_seeds(",".join(map(str, seeds))) == sorted(seeds)


@pytest.mark.parametrize(("text", "value"), [
    ("1e-4", 1e-4), ("1E5", 1e5), ("-2.5", -2.5), (".5", 0.5), ("1.", 1.0), (".inf", float("inf")), ("1_000", 1000), ("-3", -3),
    ("+3", 3), ("010", 10), ("true", True), ("false", False), ("null", None), ("~", None), ("[10, 20]", [10, 20]),
    ("[1e-4, 2e-4]", [1e-4, 2e-4]), ("[]", []), ("{a: 1e3}", {"a": 1000.0}), ('"1e-4"', "1e-4"), ("'yes'", "yes"), ('""', ""),
    ("", ""), ("  ", ""), ("adam", "adam"), ("a=b", "a=b"), ("1:30", "1:30"), ("2026-01-02", "2026-01-02"), ("v1.2", "v1.2"),
    ("/data/x", "/data/x"), ('"a: b #c"', "a: b #c"), ("1.2.3", "1.2.3"), ("e5", "e5"), ("None", "None"), ("ß μ", "ß μ"),
])  # fmt: skip
def test_values(text: str, value: Any) -> None:
    found = parse_changes([f"x={text}"])["x"]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(("change", "message"), [
    ("sigma", "set: expected name=value, got 'sigma'"), ("=3", "set: expected name=value"), ("a-b=3", "set: expected name=value"),
    ("", "set: expected name=value"), ("x=[1, 2", "set: x: not valid YAML: while parsing a flow sequence"),
    ("x=!!python/object/apply:os.system [ls]", "set: x: not valid YAML: could not determine a constructor"),
    ("x=!!python/name:os.system", "set: x: not valid YAML"), ("seed=1", "set: seed is given by --seeds"),
    ("profile=full", "set: profile is given by --profile"), ("x=a #b", "set: x: YAML reads 'a #b' as 'a'; put quotes around"),
    ("x=# all", "set: x: YAML reads '# all' as None; put quotes around"), ("x=@", "set: x: not valid YAML"),
])  # fmt: skip
def test_no_change(change: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_changes([change])
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_name_is_given_once() -> None:
    with pytest.raises(PlanError, match="set: lr is given twice"):
        parse_changes(["lr=1", " lr =2"])


FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(FINITE | st.integers() | st.lists(FINITE))
def test_what_python_prints_is_read_back(value: Any) -> None:
    found = parse_changes([f"x={value!r}"])["x"]
    assert found == value and type(found) is type(value)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"])))
def test_a_text_in_quotes_arrives_as_it_is(text: str) -> None:
    assert parse_changes([f"x={json.dumps(text, ensure_ascii=False)}"]) == {"x": text}


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"])))
def test_a_text_without_quotes_arrives_as_it_is_or_is_refused_or_is_no_text(text: str) -> None:
    try:
        found = parse_changes([f"x={text}"])["x"]
    except PlanError:
        return
    if isinstance(found, str) and text.strip()[:1] not in ("'", '"', "|", ">", "!", "&"):
        assert found == text.strip()


@pytest.mark.parametrize(("target", "profile", "pairs"), [
    ("toy", "full", ["1-train", "2-more"]), ("toy", "reader", ["1-train"]), ("toy/2-more", "full", ["2-more"]),
    ("toy", "smoke", ["1-train", "2-more", "3-plain"]), ("toy/3-plain", "smoke", ["3-plain"]),
    ("chapters/toy/1-train.md", "reader", ["1-train"]), ("toy/", "reader", ["1-train"]),
])  # fmt: skip
def test_pages_with_a_profile(root: Path, target: str, profile: str, pairs: list[str]) -> None:
    assert pages_with(target, profile) == [("toy", name) for name in pairs]


@pytest.mark.parametrize(("target", "profile", "message"), [
    ("toi", "full", "toi: no such chapter or page; did you mean toy?"),
    ("toy/1-trian", "full", "toy/1-trian: no such chapter or page; did you mean toy/1-train?"),
    ("", "full", "target: expected a chapter, or chapter/page, got ''"),
    ("/", "full", "target: expected a chapter, or chapter/page, got '/'"),
    ("../../etc", "full", "no such chapter or page"),
    ("toy", "raeder", "profile: toy has no 'raeder'; did you mean reader?; it has: full, reader, smoke"),
    ("toy", "FULL", "did you mean full?"), ("toy", "../full", "profile: toy has no '../full'"),
    ("toy/2-more", "reader", "profile: toy/2-more has no 'reader'; in this chapter these pages have it: 1-train"),
    ("toy/3-plain", "full", "these pages have it: 1-train, 2-more"),
])  # fmt: skip
def test_no_such_pages(root: Path, target: str, profile: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        make(target, profile)
    assert message in str(caught.value)


def test_without_a_main_page_a_plain_profile_belongs_to_none(root: Path) -> None:
    (root / "chapters" / "toy" / "index.yaml").write_text("title: Toy\n")
    assert pages_with("toy", "full") == [("toy", "2-more")]
    with pytest.raises(PlanError, match="these pages have it: none"):
        pages_with("toy", "reader")


def test_each_page_gets_its_own_profile_and_each_seed_a_run(root: Path) -> None:
    items = make("toy", "full", "0-1", ["lr=1e-4"]).items
    assert [item.spec.name for item in items] == [f"toy/{p} full s{s}" for p in ("1-train", "2-more") for s in (0, 1)]
    assert [item.spec.parameters for item in items[1:3]] == [
        {"profile": "full", "steps": 100, "lr": 1e-4, "seed": 1}, {"profile": "full", "steps": 300, "lr": 1e-4, "seed": 0},
    ]  # fmt: skip
    assert items[0].spec.config_hash == items[1].spec.config_hash != items[2].spec.config_hash
    assert items[0].spec.folder_name == f"full-{items[0].spec.config_hash}-s0"
    assert items[0].spec.memory_parameters == ["batch_size"] and items[0].spec.gpus is None


@pytest.mark.parametrize(("changes", "message"), [
    (["stesp=3"], "toy/1-train at full: stesp: no such parameter; did you mean steps?"),
    (["steps=many"], "toy/1-train at full: steps: Input should be a valid integer, got 'many' (str)"),
    (["steps=1e3"], "steps: Input should be a valid integer, got 1000.0 (float)"),
    (["steps=0"], "steps: Input should be greater than or equal to 1, got 0 (int)"),
    (["lr=-1e-4"], "lr: Input should be greater than 0, got -0.0001 (float)"),
    (["lr="], "lr: Input should be a valid number, got '' (str)"), (["lr=null"], "lr: Input should be a valid number, got None"),
    (["grid=1,2"], "grid: Input should be a valid list, got '1,2' (str)"), (["flag=1"], "flag: Input should be a valid boolean"),
    (["note=yes"], "note: Input should be a valid string, got True (bool)"),
    (["stesp=3", "lr=x"], "stesp: no such parameter; did you mean steps?; lr: "),
])  # fmt: skip
def test_parameters_are_checked_before_anything_starts(root: Path, changes: list[str], message: str) -> None:
    before = tree(root)
    with pytest.raises(PlanError) as caught:
        make("toy/1-train", "full", changes=changes)
    assert message in str(caught.value) and tree(root) == before


@pytest.mark.parametrize("value", [1.5, -1, 2.25, float("nan"), float("inf")])
def test_a_number_of_gpus_that_is_none(root: Path, value: float) -> None:
    with pytest.raises(PlanError, match="gpus-per-run: expected a whole number, or a fraction between 0 and 1, got"):
        make("toy", "full", gpus_per_run=value)


def spec_of(**options: Any) -> RunSpec:
    (item,) = make("toy/1-train", "full", **options).items
    return item.spec


def decided(**options: Any) -> tuple[str, str, list[str]]:
    plan = make("toy/1-train", "full", **options)
    (item,) = plan.items
    assert plan.pending == ([] if item.action == "skip" else [item])
    return item.action, item.why, plan.problems


def manifest(spec: RunSpec, status: str) -> None:
    """What a runner leaves that started `spec`, and ended it unless it still runs."""
    claim = Claim(spec)
    claim.start("local")
    if status != "running":
        claim.end(Outcome(status, 1.0, "" if status == "finished" else "error", "it broke"))  # type: ignore[arg-type]
    claim.release()


def test_what_is_finished_is_skipped_with_or_without_a_manifest(root: Path) -> None:
    assert decided() == ("run", "", [])
    spec = spec_of()
    store_result(spec)
    assert decided() == ("skip", "finished", [])
    assert decided(changes=["lr=0.2"])[0] == "run"
    manifest(spec, "finished")  # of a new attempt: the result above was set aside
    assert decided()[0] == "run"
    store_result(spec)
    assert decided() == ("skip", "finished", [])


@pytest.mark.parametrize("status", ["failed", "cancelled", "running"])
def test_a_result_of_a_page_that_did_not_come_to_its_end_does_not_count(root: Path, status: str) -> None:
    spec = spec_of()
    manifest(spec, status)
    store_result(spec)
    assert decided() == ("run", f"its page did not come to its end ({status})", [])


def test_a_result_of_other_code_is_made_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_result(spec_of(), code_hash="older")
    assert decided() == ("run", "finished with other code than today's", [])
    monkeypatch.setattr("paperbook.runner.plan.current_code_hash", lambda *_: "unknown")
    assert decided() == ("skip", "finished", [])


def test_checkpoints_are_resumed_the_newest_that_can_be_read_first(root: Path) -> None:
    spec = spec_of()
    store_checkpoint(spec, 20)
    newest = store_checkpoint(spec, 40)
    os.utime(newest, (0, 0))  # the file's date says nothing: a clock may have gone backwards
    assert decided() == ("resume", "from its checkpoint at step 40", [])
    newest.write_bytes(b"\x07")
    assert decided() == ("resume", "from its checkpoint at step 20", [])


def test_a_checkpoint_of_other_code_stands_against_it(root: Path) -> None:
    store_checkpoint(spec_of(), 20, code="older")
    action, _, problems = decided()
    assert action == "resume"
    assert problems == ["toy/1-train full s0: its checkpoint (step 20) was written by other code than today's; --force starts it "
                        "anew, or check out the code it was started with to go on"]  # fmt: skip
    assert decided(force=True) == ("run", "anew, by --force", [])


def test_a_finished_run_of_other_code_that_still_has_its_checkpoints(root: Path) -> None:
    # started as it is, it would be refused by its own old checkpoints after the start
    spec = spec_of()
    store_result(spec, code_hash="older")
    store_checkpoint(spec, 20, code="older")
    _, why, (problem,) = decided()
    assert "finished with other code than today's" in why and "--force starts it anew" in problem


@pytest.mark.parametrize(("content", "why"), [
    ("{", "its result.json is damaged"), ("[]", "its result.json is damaged"), ("{}", "its result.json is damaged"),
    ('{"provenance": {"status": "finished", "config_hash": "x"}, "metrics": {"a": 1}}', "its result belongs to another"),
])  # fmt: skip
def test_a_result_that_is_none(root: Path, content: str, why: str) -> None:
    spec = spec_of()
    spec.folder.mkdir(parents=True)
    (spec.folder / "result.json").write_text(content)
    action, said, problems = decided()
    assert action == "run" and why in said and not problems
    store_checkpoint(spec, 20)
    assert decided()[0] == "resume" and why in decided()[1]


def test_force_runs_what_is_finished(root: Path) -> None:
    store_result(spec_of())
    assert decided(force=True) == ("run", "anew, by --force", [])


def test_the_machine_is_looked_at_once_a_page_and_only_for_runs_that_are_open(
    root: Path, needs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = checks.machine
    monkeypatch.setattr(checks, "machine", lambda *given: calls.append(1) or original(*given))
    needs.data = [Asset("rows at abc", False, "hf download rows --revision abc")]
    plan = make("toy", "full", "0-4")
    assert plan.problems == ["rows at abc: not on this machine; fetch it with: hf download rows --revision abc"]
    assert len(calls) == 2
    for item in plan.items:
        store_result(item.spec)
    assert make("toy", "full", "0-4").problems == [] and len(calls) == 2
    assert make("toy", "full", "0-5", check_machine=False).problems == []
    assert make("toy", "full", "0-5").problems == plan.problems


def test_a_run_on_a_gpu_asks_for_one(root: Path, smi: Any) -> None:
    smi.has(2)
    plan = make("toy/1-train", "full", changes=["device=auto"])
    assert plan.gpu and plan.items[0].spec.gpus == 1.0 and not plan.problems
    assert not make("toy/1-train", "full").gpu
    assert make("toy/1-train", "full", gpus_per_run=0.5).items[0].spec.gpus == 0.5
    assert make("toy/1-train", "full", gpus_per_run=3).problems == ["gpus-per-run: 3 were asked for, this machine has 2"]


def write_cell(root: Path, cell: str) -> None:
    write_page(root, "1-train", f"\n```{{code-cell}} ipython3\n{cell}\n```\n")


@pytest.mark.parametrize("cell", [
    "from runner_pages import TrainConfig\ncfg = configure(TrainConfig)",
    "import math\nfrom runner_pages import TrainConfig as T, number\ncfg = configure(T)",
    "from paperbook.study.params import configure\nfrom runner_pages import TrainConfig\ncfg = configure(TrainConfig, globals())",
])  # fmt: skip
def test_an_imported_class(root: Path, needs: Any, cell: str) -> None:
    write_cell(root, cell)
    assert config_class("toy", "1-train") is needs


def test_a_class_of_the_cell_itself_and_not_the_one_it_derives_from(root: Path, needs: Any) -> None:
    write_cell(root, """
from typing import Annotated
from pydantic import Field
from paperbook.study.params import configure
from runner_pages import TrainConfig

Small = Annotated[int, Field(lt=50)]

class Mine(TrainConfig):
    rank: Small = 3

cfg = configure(Mine)
raise RuntimeError("the page itself must not run")
""")  # fmt: skip
    found = config_class("toy", "1-train")
    assert found.__name__ == "Mine" and issubclass(found, needs) and found().rank == 3  # type: ignore[attr-defined]
    with pytest.raises(PlanError, match="rank: Input should be less than 50"):
        make("toy/1-train", "full", changes=["rank=50"])


@pytest.mark.parametrize(("cell", "message"), [
    ("cfg = 3", "toy/1-train: no cell of the form `cfg = configure(<class>)` was found"),
    ("# configure(TrainConfig) comes later", "no cell of the form"),
    ("from nowhere_at_all import A\ncfg = configure(A)", "its parameter class cannot be imported: ModuleNotFoundError: "),
    ("from runner_pages import Absent\ncfg = configure(Absent)", "its parameter class cannot be imported: AttributeError"),
    ("from runner_pages import number\ncfg = configure(number)", "expected the name of a class derived from Config, got number"),
    ("cfg = configure(Unknown)", "expected the name of a class derived from Config, got Unknown"),
    ("class A(Missing):\n    x: int\ncfg = configure(A)", "cannot be imported: NameError: name 'Missing' is not defined"),
    ("%matplotlib inline\ncfg = configure(A)", "its cell with configure is no Python"),
])  # fmt: skip
def test_no_class(root: Path, cell: str, message: str) -> None:
    write_cell(root, cell)
    with pytest.raises(PlanError) as caught:
        make("toy/1-train", "full")
    assert message in str(caught.value)


def test_the_cells_around_it_are_not_run(root: Path, needs: Any) -> None:
    cells = ["raise RuntimeError('before')", "from runner_pages import TrainConfig\ncfg = configure(TrainConfig)", "1 / 0"]
    write_page(root, "1-train", "".join(f"\n```{{code-cell}} ipython3\n{cell}\n```\n" for cell in cells))
    assert config_class("toy", "1-train") is needs


def test_a_page_without_parameters_is_refused_in_words(root: Path) -> None:
    (root / "chapters" / "toy" / "1-train.md").write_text(page().replace(":tags: [parameters]", ":tags: []"))
    with pytest.raises(ValueError, match="toy/1-train: no cell is tagged parameters"):
        make("toy/1-train", "full")


def test_a_profile_that_is_no_mapping_is_refused_in_words(root: Path) -> None:
    (root / "chapters" / "toy" / "profiles" / "full.yaml").write_text("- 3\n")
    with pytest.raises(ValueError, match="full.yaml: expected a mapping of parameter names to values, got list"):
        make("toy/1-train", "full")
