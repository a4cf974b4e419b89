"""The exercises of the chapter: each solution passes its check, each stub fails it."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad

# the folder's name has a hyphen and is no package: the helper is loaded from its file
_spec = importlib.util.spec_from_file_location("chapter_exercises", Path(__file__).parents[1] / "exercises.py")
assert _spec is not None and _spec.loader is not None
exercises = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(exercises)

PLACE = ("dr-submodular", "6-graphs")


def check_hill(beta_g: Callable[[float], float]) -> None:
    """Against the integral over z, at the values where the closed form divides by zero too, and by hand at 1."""
    for x in (0.0, 0.1, 0.5, 0.9, 1.0):
        whole = quad(lambda z, x=x: math.exp(z - 1) * math.exp(-z * x) * (1 - 2 * (1 - math.exp(-z * x))), 0, 1)[0]
        assert beta_g(x) == pytest.approx(whole, abs=1e-9)
    assert beta_g(1.0) == pytest.approx(1 / math.e - 2 / math.e**2)


def check_sampler(draw_z: Callable[[float], float]) -> None:
    """The density integrated up to the quantile is u."""
    for u in (0.0, 0.05, 0.3, 0.7, 1.0):
        assert quad(lambda z: 1 / (3 * (1 - z / 2) ** 3), 0, draw_z(u))[0] == pytest.approx(u, abs=1e-9)


def check_project(project: Callable[[list[float], float], list[float]]) -> None:
    """<y - x, v - x> <= 0 for all vertices v of the set (k is an integer): only the nearest point has that."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        y, k = rng.normal(size=5) * 2, 2
        x = np.array(project(y.tolist(), k))
        assert x.min() >= 0 and x.max() <= 1 and x.sum() <= k + 1e-9
        bits = (np.arange(32)[:, None] >> np.arange(5)) & 1
        vertices = bits[bits.sum(axis=1) <= k]
        assert ((vertices - x) @ (y - x)).max() < 1e-9
    assert project([0.2, 0.3], 2) == pytest.approx([0.2, 0.3])


def check_speed(alpha: Callable[[float], float]) -> None:
    """At f = x_1 (1 - x_2), x = (0, 1), y = (1, 0) nothing is given away: the integral of the surrogate is the ratio itself."""
    for c in (0.2, 0.6, 1.0):
        # f(h(x)) = 0, and <grad f(p) e^{-zx}, y - x> = e^{-z} with p = (0, 1 - e^{-z})
        tight = quad(lambda z, c=c: math.exp(z - c) * math.exp(-z), 0, c)[0]
        assert alpha(c) == pytest.approx(tight, abs=1e-12)
    for c in (1.2, 0.0):
        with pytest.raises(ValueError):
            alpha(c)


CHECKS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "dr-ex-hill": ("beta_g", check_hill),
    "dr-ex-sampler": ("draw_z", check_sampler),
    "dr-ex-project": ("project", check_project),
    "dr-ex-speed": ("alpha", check_speed),
}


@pytest.mark.parametrize("exercise", CHECKS)
def test_solution_passes(exercise: str) -> None:
    exercises.assert_solution_passes(PLACE, CHECKS, exercise)


@pytest.mark.parametrize("exercise", CHECKS)
def test_stub_fails(exercise: str) -> None:
    exercises.assert_stub_fails(PLACE, CHECKS, exercise)
