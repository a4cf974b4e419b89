"""The least favourable experiment (S2): Bayes risk, posterior mean by enumeration, and no rule below the Bayes risk."""

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from paperbook.papers.safe_residual import least_favourable as lf
from paperbook.papers.safe_residual import rates
from paperbook.papers.safe_residual.piecewise import PiecewisePolynomialRegressor
from paperbook.papers.safe_residual.synthetic import signed_bumps


def test_posterior_mean_by_enumeration_of_all_signs():
    """Bayes' rule over the 2^m sign vectors with the full likelihood of the data, for bumps placed by `signed_bumps`."""
    m, a, sigma, rng = 4, 0.7, 0.5, np.random.default_rng(0)
    X = rng.random((30, 1))
    basis = np.stack([signed_bumps(X, np.where(np.arange(m) == j, 1.0, 0.0), 1.0) for j in range(m)])
    e = a * basis.T @ rng.choice([-1.0, 1.0], m) + sigma * rng.standard_normal(30)
    vectors = np.array(list(itertools.product([-1.0, 1.0], repeat=m)))
    logs = -((e - a * vectors @ basis) ** 2).sum(axis=1) / (2 * sigma**2)
    weight = np.exp(logs - logs.max())
    np.testing.assert_allclose(lf.posterior_mean_sign(basis @ e, a, sigma), weight @ vectors / weight.sum(), atol=1e-12)


@pytest.mark.parametrize(
    ("n", "delta", "beta", "d", "m"),
    [
        (2000, 0.1, 1.0, 1, None),
        (2000, 0.03, 1.0, 1, None),
        (1500, 0.1, 1.0, 1, 9),
        (800, 0.2, 0.5, 1, None),
        (2000, 0.3, 1.0, 2, None),
        (1000, 0.1, 2.0, 1, None),
    ],
)
def test_monte_carlo_risk_is_energy_times_mmse(n, delta, beta, d, m):
    made = lf.least_favourable(n, delta, 0.5, 4.0, beta, d, 600, np.random.default_rng(1), m=m)
    bayes = made.risks["bayes"]
    assert bayes.mean() == pytest.approx(made.predicted, abs=4 * bayes.std() / math.sqrt(bayes.size))
    assert made.energy <= delta**2 * (1 + 1e-12)
    # the design's SNR against n A^2 / (sigma^2 m^d): midpoint rule with few rows a cell
    rows = (made.n / made.m**d) ** (1 / d)
    assert made.snr == pytest.approx(made.n * made.energy / (0.25 * made.m**d), rel=4 / rows ** min(beta + 1, 2))
    np.testing.assert_allclose(made.risks["black_box"], made.energy, rtol=1e-12)


@pytest.mark.parametrize(("delta", "m"), [(0.1, None), (0.05, 4), (0.3, 10)])
def test_a_hard_decision_errs_with_the_gaussian_tail(delta, m):
    """A wrong sign costs (2a)^2 a bump and has probability Phi(-sqrt(s)): risk 4 A^2 Phi(-sqrt(s))."""
    made = lf.least_favourable(2000, delta, 0.5, 4.0, 1.0, 1, 800, np.random.default_rng(5), m=m)
    sign = made.risks["sign"]
    expected = 4 * made.energy * ndtr(-math.sqrt(made.snr))
    assert expected < made.energy * 2
    assert sign.mean() == pytest.approx(expected, abs=4 * sign.std() / math.sqrt(sign.size) + 1e-12)


def test_default_resolution_attains_the_lower_bound():
    made = lf.least_favourable(2000, 0.1, 0.5, 4.0, 1.0, 1, 2, np.random.default_rng(2))
    assert made.m == 22
    assert made.predicted == pytest.approx(rates.lower_bound(2000, 0.1, 0.5, 4.0, 1.0, 1), rel=0.01)  # 91 rows a cell, not 90.9


def test_no_rule_beats_the_bayes_risk():
    """Three rules on the same draws, and a learner that knows nothing of signs, all stay above within 4 standard errors."""
    made = lf.least_favourable(2000, 0.1, 0.5, 4.0, 1.0, 1, 800, np.random.default_rng(3))
    for rule in ("linear", "sign", "black_box"):
        extra = made.risks[rule] - made.risks["bayes"]
        assert extra.mean() > 4 * extra.std() / math.sqrt(extra.size)
    linear = made.risks["linear"]
    assert linear.mean() == pytest.approx(made.energy / (1 + made.snr), abs=4 * linear.std() / math.sqrt(800))  # best linear rule
    rng, amplitude = np.random.default_rng(4), math.sqrt(made.energy)
    X = ((np.arange(made.n) + 0.5) / made.n)[:, None]
    grid = ((np.arange(6600) + 0.5) / 6600)[:, None]
    risks = []
    for _ in range(20):
        signs = rng.choice([-1.0, 1.0], made.m)
        e = amplitude * signed_bumps(X, signs, 1.0) + 0.5 * rng.standard_normal(made.n)
        r_hat = PiecewisePolynomialRegressor(1, 13, domain=(0, 1)).fit(X, e).predict(grid)
        risks.append(((amplitude * signed_bumps(grid, signs, 1.0) - r_hat) ** 2).mean())
    assert np.mean(risks) > made.predicted


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"n": 0}, ValueError, "n:"),
        ({"delta": 0.0}, ValueError, "delta"),
        ({"sigma": 0.0}, ValueError, "sigma"),
        ({"L": -1.0}, ValueError, "L:"),
        ({"beta": 3.0}, ValueError, "beta"),
        ({"d": 0}, ValueError, "d:"),
        ({"reps": 0}, ValueError, "reps"),
        ({"rng": 1}, TypeError, "rng"),
        ({"m": 0}, ValueError, "m:"),
        ({"m": 2.0}, TypeError, "m:"),
    ],
)
def test_bad_input_is_named(change, error, word):
    arguments = {
        "n": 50,
        "delta": 0.1,
        "sigma": 0.5,
        "L": 4.0,
        "beta": 1.0,
        "d": 1,
        "reps": 2,
        "rng": np.random.default_rng(0),
    } | change
    with pytest.raises(error, match=word):
        lf.least_favourable(**arguments)


def test_bad_statistic_is_named():
    with pytest.raises(ValueError, match="statistic"):
        lf.posterior_mean_sign([np.nan], 1.0, 0.5)
    with pytest.raises(ValueError, match="sigma"):
        lf.posterior_mean_sign([1.0], 1.0, 0.0)
