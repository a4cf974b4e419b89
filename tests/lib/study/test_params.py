"""Strict parameters: what a misspelt, mistyped or out-of-range value meets."""

import copy
import json
import types

import pytest
from pydantic import Field

from paperbook.study.params import Config, ParameterError, config_hash, configure, nearest


class Page(Config):
    lr: float = Field(0.1, gt=0)
    steps: int = 10
    n_grid: list[int] = [1, 2]
    mode: str = "a"


def test_defaults_and_given_values_arrive():
    cfg = configure(Page, {"lr": 0.5, "n_grid": [3], "seed": 4})
    assert (cfg.lr, cfg.n_grid, cfg.seed, cfg.steps) == (0.5, [3], 4, 10)


def test_an_integer_is_a_number():
    assert configure(Page, {"lr": 1}).lr == 1.0


@pytest.mark.parametrize(
    ("namespace", "message"),
    [
        ({"sead": 1}, "sead: no such parameter; did you mean seed?"),
        ({"n_gird": [1]}, "did you mean n_grid?"),
        ({"zzz": 1}, "zzz: no such parameter; known are profile, seed, lr"),
        ({"lr": "fast"}, "lr: .*got 'fast' \\(str\\)"),
        ({"lr": "1e-4"}, "YAML reads 1e-4 as text, write 1.0e-4"),
        ({"lr": 0.0}, "lr: .*greater than 0, got 0.0"),
        ({"steps": 1.5}, "steps: .*got 1.5 \\(float\\)"),
        ({"steps": True}, "steps: .*got True \\(bool\\)"),
        ({"n_grid": [1, "2"]}, "n_grid.1: .*got '2'"),
        ({"seed": -1}, "seed: .*got -1"),
        ({"profile": "huge"}, "profile: "),
    ],
)
def test_refused_by_name(namespace, message):
    with pytest.raises(ParameterError, match=message):
        configure(Page, namespace)


def test_every_problem_is_named_at_once():
    with pytest.raises(ParameterError, match=r"sead.*lr"):
        configure(Page, {"sead": 1, "lr": "x"})


def test_imports_functions_and_private_names_are_no_parameters():
    namespace = {"np": types, "Page": Page, "helper": len, "_cache": 3, "In": [], "exit": 1}
    assert configure(Page, namespace) == Page()


def test_outside_a_kernel_it_says_so():
    with pytest.raises(RuntimeError, match="no running kernel"):
        configure(Page)


def test_the_hash_names_a_configuration_whatever_the_seed():
    assert config_hash(Page(seed=1)) == config_hash(Page(seed=2)) != config_hash(Page(lr=0.2))


def test_frozen():
    with pytest.raises(Exception, match="frozen"):
        Page().lr = 3.0


def test_nearest_is_silent_when_nothing_is_near():
    assert nearest("qqqq", ["seed"]) == ""


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Names of the parameters whose reading was recorded, in order."""
    target = tmp_path / "record.jsonl"
    monkeypatch.setenv("PAPERBOOK_RECORD", str(target))

    def lines():
        rows = [json.loads(line) for line in target.read_text().splitlines()] if target.exists() else []
        assert all(row["kind"] == "parameter" for row in rows)
        return [row["name"] for row in rows]

    return lines


class Halved(Page):
    def half(self):
        return self.steps // 2


def test_each_parameter_that_is_read_is_recorded_once(read):
    cfg = configure(Halved, {"lr": 0.5})
    assert read() == []
    assert (cfg.lr, cfg.lr, cfg.mode, cfg.seed) == (0.5, 0.5, "a", 0)
    assert read() == ["lr", "mode", "seed"]
    assert cfg.half() == 5 and read() == ["lr", "mode", "seed", "steps"]


def test_what_takes_all_parameters_reads_none(read):
    # a dump into the provenance or the hash of the folder uses no parameter for the method
    cfg = configure(Page, {"lr": 0.5})
    assert cfg.model_dump()["lr"] == 0.5 and "lr=0.5" in repr(cfg) and dict(cfg)["steps"] == 10
    assert config_hash(cfg) == config_hash(Page(lr=0.5)) and cfg.memory_parameters == ()
    assert read() == []


def test_a_recording_config_behaves_as_one(read):
    cfg = configure(Halved, {"lr": 0.5, "n_grid": [3]})
    assert isinstance(cfg, Halved) and type(cfg).__name__ == "Halved" and type(cfg).__module__ == Halved.__module__
    other = cfg.model_copy(update={"lr": 0.25})
    assert (other.lr, other.n_grid, other.half()) == (0.25, [3], 5) and isinstance(other, Halved) and other != cfg
    assert copy.deepcopy(cfg) == cfg == type(cfg)(**cfg.model_dump()) and Halved.model_validate(cfg) is cfg
    with pytest.raises(Exception, match="frozen"):
        cfg.lr = 3.0
    with pytest.raises(AttributeError, match="no attribute 'stesp'"):
        print(cfg.stesp)


def test_two_configs_are_recorded_each_for_itself(read):
    first, second = configure(Page, {}), configure(Page, {})
    assert (first.lr, second.lr) == (0.1, 0.1) and read() == ["lr", "lr"]


def test_where_nobody_listens_a_config_is_of_the_page_class_itself(monkeypatch):
    monkeypatch.delenv("PAPERBOOK_RECORD", raising=False)
    assert type(configure(Page, {"lr": 0.5})) is Page


def test_a_refused_config_records_nothing(read):
    with pytest.raises(ParameterError, match="sead"):
        configure(Page, {"sead": 1})
    assert read() == []
