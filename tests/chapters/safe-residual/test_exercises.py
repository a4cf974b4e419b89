"""The exercises of the chapter: each solution passes its check, each stub fails it."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from paperbook.papers.safe_residual import rates
from paperbook.papers.safe_residual.crossing import safe_curve
from paperbook.papers.safe_residual.piecewise import PiecewisePolynomialRegressor

# the folder's name has a hyphen and is no package: the helper is loaded from its file
_spec = importlib.util.spec_from_file_location("chapter_exercises", Path(__file__).parents[1] / "exercises.py")
exercises = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(exercises)

PLACE = ("safe-residual", "6-classifiers")


def check_best_t(best_t):
    """Against a numerical minimiser and against the library, whose formula has its own tests."""
    for m in (0.0, 1e-3, 0.5):
        for V, b, ell in ((10.0, 1.68, 0.004), (1.0, 0.2, 0.3)):
            found = minimize_scalar(lambda t, m=m, V=V, b=b, ell=ell: (1 + t) / (1 - t) * m + (V / t + b) * ell / (1 - t),
                                    bounds=(1e-9, 1 - 1e-9), method="bounded", options={"xatol": 1e-10})
            assert best_t(m, V, b, ell) == pytest.approx(found.x, abs=1e-6)          # flat minimum: root of machine precision
    V, b = rates.bernstein_constants(1.0, 0.5)
    assert best_t(0.01, V, b, math.log(40) / 1000) == pytest.approx(rates.best_t(0.01, 1.0, 0.5, 1000, 0.05), rel=1e-12)


def check_predict_adoption(predict):
    """Against simulated runs, within four standard errors of a share over 1,000 runs (0.063 where it is one half)."""
    delta = [0.0, 0.02, 0.05, 0.08, 0.15]
    curve = safe_curve(delta, 2000, 1000, np.random.default_rng(11), sigma=0.5, n_cells=10)
    for tau in (0.0, 1.0):
        predicted = [predict(x, 1000, 1000, 10, 0.5, tau) for x in delta]
        np.testing.assert_allclose(curve.adopted(tau).mean(axis=0), predicted, atol=4 * math.sqrt(0.25 / 1000))
    assert predict(0.05, 1000, 1000, 10, 0.5) == pytest.approx(0.5)                  # delta^2 = sigma^2 K / n_train


def check_cross_fit(cross_fit_gain):
    """Against the library's regressor fitted fold by fold (that the floor falls is the line the solution prints)."""
    rng = np.random.default_rng(12)
    X, e = rng.random(300), rng.standard_normal(300)
    fold = np.arange(300) % 5
    gains = np.empty(300)
    for k in range(5):
        model = PiecewisePolynomialRegressor(order=1, n_cells=6, ridge=1e-12, domain=(0, 1)).fit(X[fold != k, None], e[fold != k])
        gains[fold == k] = e[fold == k] ** 2 - (e[fold == k] - model.predict(X[fold == k, None])) ** 2
    assert cross_fit_gain(e, X, 5, 6) == pytest.approx(gains.mean(), rel=1e-9)       # ridge 1e-12 of about 40 rows a cell


CHECKS = {
    "sr-ex-best-t": ("best_t", check_best_t),
    "sr-ex-adoption": ("predict_adoption", check_predict_adoption),
    "sr-ex-cross-fit": ("cross_fit_gain", check_cross_fit),
}


@pytest.mark.parametrize("exercise", CHECKS)
def test_solution_passes(exercise):
    exercises.assert_solution_passes(PLACE, CHECKS, exercise)


@pytest.mark.parametrize("exercise", CHECKS)
def test_stub_fails(exercise):
    exercises.assert_stub_fails(PLACE, CHECKS, exercise)
