"""Parameters of the pages: what no page could compute is refused with the variable, what came and what was expected."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from paperbook.papers.dr_submodular import config
from paperbook.papers.dr_submodular.config import FeedbackConfig, OneGradientConfig, OverviewConfig
from paperbook.papers.dr_submodular.studies import FEEDBACKS
from paperbook.study.params import Config, ParameterError, configure

CONFIGS = [kind for _, kind in inspect.getmembers(config, inspect.isclass)
           if issubclass(kind, config.PageConfig) and kind is not config.PageConfig]  # fmt: skip
INF = float("1e400")
# a budget that suits every dimension: vertices to list on page 3, room for the sphere on page 4
BESIDE: dict[Any, dict[str, Any]] = {OneGradientConfig: {"budget": 1.0}, FeedbackConfig: {"budget": 16.0}}
LADDERS = [kind for kind in CONFIGS if "horizons" in kind.model_fields]


def bounds(field: Any) -> dict[str, float]:
    """ge, gt, le, lt of a field."""
    return {name: getattr(rule, name) for rule in field.metadata for name in ("ge", "gt", "le", "lt") if hasattr(rule, name)}


NUMBERS = [(kind, name) for kind in CONFIGS for name, field in kind.model_fields.items()
           if isinstance(field.default, int | float)]  # fmt: skip


def test_there_is_a_class_for_every_page_with_parameters() -> None:
    assert len(CONFIGS) >= 5 and len(LADDERS) >= 2
    for kind in CONFIGS:
        assert issubclass(kind, Config) and configure(kind, {}) == kind(), "the defaults are valid"
        assert all(field.description for field in kind.model_fields.values())


@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_every_number_has_a_range_and_keeps_it(kind: Any, name: str) -> None:
    field = kind.model_fields[name]
    limits = bounds(field)
    assert limits.keys() & {"ge", "gt"}, "no number is unbounded below"
    step = 1 if isinstance(field.default, int) else 1e-9
    outside = {"ge": -step, "gt": 0, "le": step, "lt": 0}
    for rule, limit in limits.items():
        with pytest.raises(ParameterError, match=rf"^{name}: .*got "):
            configure(kind, {name: type(field.default)(limit + outside[rule])})
    for rule in limits.keys() & {"ge", "le"}:
        given = {**BESIDE.get(kind, {}), name: type(field.default)(limits[rule])}
        assert getattr(configure(kind, given), name) == limits[rule]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, name in NUMBERS
                                             if isinstance(kind.model_fields[name].default, float)])  # fmt: skip
def test_infinity_is_no_parameter(kind: Any, name: str) -> None:
    with pytest.raises(ParameterError, match=rf"^{name}.*(finite number|less than).*got inf"):
        configure(kind, {name: INF})


@pytest.mark.parametrize("kind", LADDERS)
@pytest.mark.parametrize(("horizons", "message"), [
    ([1000, 500], "expected increasing values without repetition"),
    ([500, 500], "expected increasing values without repetition"),
    ([250, 1000, 999], "expected increasing values without repetition"),
    ([1000], "at least 2 items"),
    ([], "at least 2 items"),
    ([9, 100], "greater than or equal to 10"),
    ([100, 10**8 + 1], "less than or equal to 100000000"),
    ([100, 200.5], "valid integer"),
    ([100, "1000"], "valid integer"),
])  # fmt: skip
def test_horizons_increase(kind: Any, horizons: list[Any], message: str) -> None:
    with pytest.raises(ParameterError, match=rf"^horizons.*{re.escape(message)}"):
        configure(kind, {"horizons": horizons})
    assert configure(kind, {"horizons": [10, 11]}).horizons == [10, 11]


@pytest.mark.parametrize(("rungs", "message"), [
    (["full"], "expected names out of 'gradient', 'semi-bandit', 'two values', 'one value', 'bandit', got 'full'"),
    (["gradient", "Bandit"], "got 'Bandit'"),
    (["gradient", "bandit", "gradient"], "expected each name once"),
    ([], "at least 1 item"),
    ("bandit", "valid list"),
])  # fmt: skip
def test_rungs_are_known_and_named_once(rungs: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=rf"^feedbacks.*{re.escape(message)}"):
        configure(FeedbackConfig, {"feedbacks": rungs})


def test_all_rungs_are_the_default_and_any_order_will_do() -> None:
    assert tuple(FeedbackConfig().feedbacks) == FEEDBACKS
    assert configure(FeedbackConfig, {"feedbacks": ["bandit", "gradient"]}).feedbacks == ["bandit", "gradient"]


def test_misspelt_and_mistyped_parameters_are_refused() -> None:
    with pytest.raises(ParameterError, match=r"horizon\b.*horizons"):
        configure(OneGradientConfig, {"horizon": [10, 20]})
    with pytest.raises(ParameterError, match=r"^rounds: .*got '1000'"):
        configure(OverviewConfig, {"rounds": "1000"})


def test_work_and_memory_grow_with_the_rounds() -> None:
    small, large = FeedbackConfig(horizons=[100, 200]), FeedbackConfig(horizons=[100, 20_000_000])
    assert large.work().amount == (100 + 20_000_000) * 5 and small.work().amount == 300 * 5
    assert FeedbackConfig(horizons=[100, 200], feedbacks=["bandit"]).work().amount == 300
    # rewards, indices and one more array of 20 million rounds and 16 copies, 8 bytes each, beside the interpreter, and three
    # arrays of 50 quadratics at the 4,096 vertices of the box in 12 dimensions
    assert large.needs().memory_gb == pytest.approx(0.5 + 3 * 2.56 + 3 * 50 * 4096 * 12 * 8e-9)
    assert OneGradientConfig(horizons=[100, 200]).work().amount == 900
