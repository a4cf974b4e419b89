"""Parameters of the pages: what no page could compute is refused with the variable, what came and what was expected."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from paperbook.papers.safe_residual.config import (
    CrossingConfig,
    EstimatorConfig,
    OverviewConfig,
    SafetyConfig,
    TablesConfig,
    TrustConfig,
)
from paperbook.papers.safe_residual.config_classifiers import ClassifierConfig
from paperbook.study import paths
from paperbook.study.params import ParameterError, configure

CONFIGS = [TrustConfig, CrossingConfig, SafetyConfig, OverviewConfig, EstimatorConfig, TablesConfig, ClassifierConfig]
INF = float("1e400")


def _floats(kind: Any) -> list[tuple[Any, str, Any]]:
    """Every float field, and every list of floats with one of them infinite at its end."""
    plain = [(kind, name, INF) for name, field in kind.model_fields.items() if isinstance(field.default, float)]
    return plain + [(kind, name, [*field.default, INF]) for name, field in kind.model_fields.items()
                    if isinstance(field.default, list) and isinstance(field.default[0], float)]


@pytest.mark.parametrize(("kind", "name", "value"), [row for kind in CONFIGS for row in _floats(kind)])
def test_infinity_is_no_parameter(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=rf"{name}.*(finite number|less than).*got inf"):
        configure(kind, {name: value})


def test_there_are_floats_to_check() -> None:
    assert {name for kind in CONFIGS for _, name, _ in _floats(kind)} >= {"sigma", "tau", "delta_grid", "smoothness_constant"}


@pytest.mark.parametrize(("kind", "values", "message"), [
    (CrossingConfig, {"n_grid": [16, 17]}, "n_grid: expected sizes whose halves, the training rows, differ; they are [8, 8]"),
    (CrossingConfig, {"n_grid": [18, 19]}, "n_grid: expected sizes whose halves, the training rows, differ; they are [9, 9]"),
    (CrossingConfig, {"n_grid": [19, 20]}, "n_grid: expected sizes whose halves, the training rows, differ; they are [10, 10]"),
    (CrossingConfig, {"n_grid": [512, 10**9]}, "n_grid.1: Input should be less than or equal to 100000000, got 1000000000"),
    (CrossingConfig, {"n_routes": 10**9}, "n_routes: Input should be less than or equal to 100000000, got 1000000000"),
    (CrossingConfig, {"batch_rows": 10**9}, "batch_rows: Input should be less than or equal to 536870912, got 1000000000"),
    (CrossingConfig, {"reps": 10**9}, "reps: Input should be less than or equal to 10000000, got 1000000000"),
    (TrustConfig, {"n": 10**8}, "n: Input should be less than or equal to 5000000, got 100000000"),
    (OverviewConfig, {"n": 10**9}, "n: Input should be less than or equal to 100000000, got 1000000000"),
    (SafetyConfig, {"n": 10**9}, "n: Input should be less than or equal to 100000000, got 1000000000"),
    (SafetyConfig, {"n": 10**8},
     "n: expected validation sets within 64 GB of memory, got n=100000000, val_fraction=0.5, cost_draws=4000, which take 1000"),
    (EstimatorConfig, {"n_grid": [100, 100_000]},
     "n_grid: expected at most 20000 rows, since the kernel matrix of 100000 alone takes 80 GB, got [100, 100000]"),
    (EstimatorConfig, {"dim_grid": [1, 10**6]}, "dim_grid.1: Input should be less than or equal to 10000, got 1000000"),
    (TablesConfig, {"n_grid": [50, 20_001]}, "n_grid: expected at most 20000 rows, since the kernel matrix of 20001 alone takes"),
])
def test_what_no_page_can_compute_is_refused(kind: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(message)):
        configure(kind, values)


def test_sizes_at_the_limits_pass() -> None:
    assert configure(CrossingConfig, {"n_grid": [17, 21]}).n_grid == [17, 21]  # halves 8 and 10
    assert configure(EstimatorConfig, {"n_grid": [20_000]}).n_grid == [20_000]
    assert configure(SafetyConfig, {"n": 6 * 10**6}).n == 6 * 10**6


def test_the_profiles_are_within_them() -> None:
    kinds = {"1-trust-or-learn": TrustConfig, "2-critical-radius": CrossingConfig, "3-price-of-safety": SafetyConfig,
             "4-estimator": EstimatorConfig, "5-real-tables": TablesConfig}
    files: list[Path] = sorted((paths.chapter("safe-residual") / "profiles").glob("[0-9]-*.yaml"))
    assert files
    for file in files:
        assert configure(kinds[file.name.split(".")[0]], yaml.safe_load(file.read_text()))
