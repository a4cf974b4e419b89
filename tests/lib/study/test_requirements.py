"""What a page's configuration says of itself before a run: nothing by default, and nothing that enters the numbers."""

from __future__ import annotations

import dataclasses
import json
from typing import ClassVar

import pytest
from pydantic import Field

from paperbook.study.params import Config, ParameterError, config_hash, configure
from paperbook.study.requirements import Asset, Needs, Work
from paperbook.study.results import Run


class TrainConfig(Config):
    """A page of its own."""

    memory_parameters: ClassVar[tuple[str, ...]] = ("batch",)
    speed_parameters: ClassVar[tuple[str, ...]] = ("workers",)
    batch: int = Field(64, ge=1)
    workers: int = Field(1, ge=1)

    def needs(self) -> Needs:
        return Needs(memory_gb=0.1 * self.batch)

    def work(self) -> Work:
        return Work("steps", 10.0 * self.batch)


def test_a_page_that_says_nothing_asks_for_nothing() -> None:
    cfg = Config()
    assert cfg.assets() == [] and cfg.needs() == Needs(None, None, None) and cfg.work() is None
    assert cfg.memory_parameters == () == cfg.speed_parameters


def test_what_a_page_says_follows_its_parameters() -> None:
    small, large = TrainConfig(batch=10), TrainConfig(batch=20)
    assert (small.needs().memory_gb, large.needs().memory_gb) == (1.0, 2.0)
    assert large.work().amount / small.work().amount == 2 and small.work().kind == large.work().kind


def test_they_are_no_parameters() -> None:
    """Names of the class are not injected by papermill, nor can they be changed from outside."""
    assert set(TrainConfig.model_fields) == {"profile", "seed", "batch", "workers"}
    with pytest.raises(ParameterError, match="memory_parameters: no such parameter"):
        configure(TrainConfig, {"memory_parameters": ["batch"]})


@pytest.mark.parametrize("thing", [Asset("weights at 12", False, "hf download a/b"), Needs(1.0), Work("steps", 2.0)])
def test_statements_are_values(thing: object) -> None:
    assert dataclasses.replace(thing) == thing and hash(thing) == hash(dataclasses.replace(thing))  # type: ignore[type-var]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(thing, dataclasses.fields(thing)[0].name, "other")  # type: ignore[arg-type]


def test_a_parameter_of_speed_names_no_other_run(repository) -> None:
    """Its runs share folder, checkpoints and result, which says how it was executed beside what was computed."""
    one, four, other = TrainConfig(), TrainConfig(workers=4), TrainConfig(batch=8)
    assert config_hash(one) == config_hash(four) != config_hash(other)
    slow, fast = Run("toy", "1-page", one), Run("toy", "1-page", four)
    assert slow.folder == fast.folder != Run("toy", "1-page", other).folder
    slow.checkpoints().save(3)
    slow.checkpoints().release()
    resumed = fast.checkpoints().resume()
    assert resumed is not None and resumed.step == 3
    provenance = json.loads(fast.finish({"x": 1.0}).read_text())["provenance"]
    assert provenance["parameters"] == {"profile": "smoke", "batch": 64} and provenance["execution"] == {"workers": 4}
