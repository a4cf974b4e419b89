"""Rates, the explicit lower bound (S2), selection cost (S5) and the oracle inequality (S4), each against a second route."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from paperbook.papers.safe_residual import rates

CLASS = {"sigma": 0.5, "L": 4.0, "beta": 1.0, "d": 1}


def test_minimax_rate_worked_number_and_slope():
    assert rates.minimax_rate(2000, **CLASS) == pytest.approx(0.0063, abs=5e-5)  # two digits were worked by hand
    for beta, d in ((1.0, 1), (2.0, 1), (0.5, 3)):
        n = np.array([1e3, 1e6])
        psi = rates.minimax_rate(n, beta, d, 0.5, 4.0)
        assert np.log(psi[1] / psi[0]) / np.log(1e3) == pytest.approx(-2 * beta / (2 * beta + d), rel=1e-12)
        np.testing.assert_allclose(rates.critical_radius(n, beta, d, 0.5, 4.0) ** 2, psi, rtol=1e-12)


def test_minimax_rate_balances_bias_and_variance():
    """psi_n is, up to a constant free of n, sigma and L, the minimum over K of L^2 K^(-2 beta) + sigma^2 K^d / n (units of
    Y^2)."""
    K = np.geomspace(1e-2, 1e6, 200_001)
    for beta, d in ((1.0, 1), (2.0, 1), (0.5, 2)):
        ratios = [
            (L**2 * K ** (-2 * beta) + s**2 * K**d / n).min() / rates.minimax_rate(n, beta, d, s, L)
            for n, s, L in ((500, 0.5, 4.0), (2e5, 0.5, 4.0), (500, 2.0, 4.0), (500, 0.5, 40.0))
        ]
        np.testing.assert_allclose(ratios, ratios[0], rtol=1e-6)  # grid step 1e-4, error is its square


def test_critical_radius_grows_with_dimension():
    radii = [rates.critical_radius(2000, 1.0, d, 0.5, 4.0) for d in range(1, 8)]
    assert np.all(np.diff(radii) > 0)


def test_three_routes_to_the_critical_radius_agree():
    variance = rates.critical_radius_variance(1000, 10, 0.5)
    saturation = rates.critical_radius_lower_bound(2000, 1.0, 1, 0.5, 4.0)
    assert variance == pytest.approx(0.05, rel=1e-12)
    assert saturation == pytest.approx(0.0525, abs=5e-5)
    assert saturation / variance == pytest.approx(1.0, abs=0.15)


# ------------------------------------------------------------------------------------------------------------------ mmse


def test_mmse_known_values_and_limits():
    np.testing.assert_allclose(rates.bpsk_mmse([0.25, 0.5, 1, 2]), [0.7959, 0.6499, 0.4496, 0.2310], atol=1e-4)
    assert rates.bpsk_mmse(0.0) == pytest.approx(1.0, abs=1e-14)
    s = 1e-4
    assert rates.bpsk_mmse(s) == pytest.approx(1 - s + s**2, abs=1e-11)  # series, next term 5/3 s^3


def test_mmse_against_adaptive_quadrature_of_the_definition():
    for s in (0.01, 0.3, 1.0, 4.0, 11.0, 25.0, 50.0):
        direct = integrate.quad(
            lambda z, s=s: (1 - math.tanh(s + math.sqrt(s) * z)) * stats.norm.pdf(z),
            -14,
            14,
            points=[-math.sqrt(s)],
            limit=400,
            epsabs=1e-13,
        )[0]
        assert rates.bpsk_mmse(s) == pytest.approx(direct, abs=1e-11)  # ten times quad's own error


def test_mmse_against_gauss_hermite_and_simulation():
    z, w = np.polynomial.hermite_e.hermegauss(150)
    for s in (0.25, 1.0, 2.0):  # the rule converges to 1e-8 for small s only
        direct = 1 - (w @ np.tanh(s + math.sqrt(s) * z)) / math.sqrt(2 * math.pi)
        assert rates.bpsk_mmse(s) == pytest.approx(direct, abs=1e-8)
    draws = 1 - np.tanh(1.5 + math.sqrt(1.5) * np.random.default_rng(0).standard_normal(200_000))
    assert rates.bpsk_mmse(1.5) == pytest.approx(draws.mean(), abs=4 * draws.std() / math.sqrt(draws.size))


def test_mmse_is_decreasing_and_convex_so_random_designs_keep_the_bound():
    value = rates.bpsk_mmse(np.linspace(0, 50, 2001))
    assert np.all(np.diff(value) < 0)
    assert np.all(np.diff(value, 2) > -1e-15)
    assert rates.bpsk_mmse(np.ones((2, 3))).shape == (2, 3)
    assert isinstance(rates.bpsk_mmse(1.0), float)


# ----------------------------------------------------------------------------------------------------------- lower bound


@pytest.mark.parametrize(("beta", "d"), [(1.0, 1), (0.5, 1), (0.7, 2), (1.0, 3), (2.0, 1), (1.5, 1)])
def test_lower_bound_against_brute_force_over_m(beta, d):
    m = np.arange(1, 4001)
    c2 = rates.bump_constant(beta, d)
    for n in (40, 2000, 30_000):
        for delta in (0.003, 0.03, 0.1, 1.0):
            energy = np.minimum(delta**2, c2 * 16 * m ** (-2.0 * beta))
            values = energy * rates.bpsk_mmse(n * energy / (0.25 * m ** float(d)))
            found = rates.lower_bound(n, delta, 0.5, 4.0, beta, d)
            assert found >= values.max() * (1 - 1e-12)
            best = int(rates.lower_bound_resolution(n, delta, 0.5, 4.0, beta, d))
            if best <= m[-1]:
                assert found == pytest.approx(values[best - 1], rel=1e-12)


def test_lower_bound_values():
    got = rates.lower_bound(2000, [0.01, 0.03, 0.1, 0.3, 1.0], **CLASS)
    np.testing.assert_allclose(got, [9.9e-5, 7.55e-4, 1.237e-3, 1.237e-3, 1.237e-3], rtol=0.01)
    assert rates.lower_bound_resolution(2000, 0.1, **CLASS) == 22
    np.testing.assert_allclose(rates.lower_bound([500, 8000], 0.3, **CLASS), [3.12e-3, 4.91e-4], rtol=0.01)


def test_lower_bound_plateau_slope():
    n = np.geomspace(500, 1e7, 60)
    slope = np.polyfit(np.log(n), np.log(rates.lower_bound(n, 1.0, **CLASS)), 1)[0]
    assert slope == pytest.approx(-2 / 3, abs=2e-3)


def test_lower_bound_never_exceeds_either_trivial_risk():
    delta = np.concatenate([[0.0], np.geomspace(1e-4, 2, 50)])
    bound = rates.lower_bound(np.array([[100], [2000], [50_000]]), delta, **CLASS)
    assert bound.shape == (3, 51)
    assert np.all(bound <= delta**2)
    assert np.all(np.diff(bound, axis=1) >= -1e-15)  # more room for nature, and
    assert np.all(np.diff(bound, axis=0) <= 1e-15)  # fewer rows for us, never help
    assert np.all(bound[:, 0] == 0)


# -------------------------------------------------------------------------------------------------------- selection cost


def test_selection_cost_supremum():
    value, u = rates.selection_cost_supremum()
    grid = np.linspace(0.01, 6, 60_000)
    curve = 4 * grid**2 * stats.norm.cdf(-grid)
    assert value == pytest.approx(0.66287, abs=5e-6)
    assert u == pytest.approx(1.1906, abs=5e-5)
    assert value == pytest.approx(curve.max(), abs=1e-8)  # grid step 1e-4, error is its square
    assert u == pytest.approx(grid[curve.argmax()], abs=1e-4)


@pytest.mark.parametrize(("u", "predicted"), [(0.6, 0.395), (1.19, 0.663), (2.0, 0.364)])
def test_selection_cost_against_simulation(u, predicted):
    sigma, n_v, draws = 0.5, 64, 100_000
    R1 = (2 * sigma * u) ** 2 / n_v
    unit = sigma**2 / n_v
    assert rates.selection_cost(R1, sigma, n_v) / unit == pytest.approx(predicted, abs=5e-4)
    noise = np.random.default_rng(1).standard_normal((draws, n_v))
    r_hat = math.sqrt(R1) * np.where(np.arange(n_v) % 2, 1.0, -1.0)
    gain = (2 * r_hat * sigma * noise - r_hat**2).mean(axis=1)  # D at delta = 0
    cost = R1 * (gain > 0) / unit
    assert cost.mean() == pytest.approx(predicted, abs=4 * cost.std() / math.sqrt(draws) + 5e-4)
    assert cost.mean() <= 0.70  # supremum .663 and MC noise
    share = (gain > 0).mean()
    assert share == pytest.approx(rates.adoption_probability(0.0, R1, sigma, n_v), abs=4 * math.sqrt(0.25 / draws))


def test_adoption_probability_with_signal_and_margin():
    """r* and r^ two-valued, drawn for 40,000 validation sets; the spread of r^(2r* - r^) is nil as both have constant size."""
    rng, sigma, n_v, draws = np.random.default_rng(2), 0.5, 200, 40_000
    r_star, r_hat = 0.06, 0.09
    R0, R1 = r_star**2, (r_star - r_hat) ** 2
    noise = sigma * rng.standard_normal((draws, n_v))
    d = r_hat * (2 * (r_star + noise) - r_hat)
    gain, se = d.mean(axis=1), d.std(axis=1, ddof=1) / math.sqrt(n_v)
    for tau in (0.0, 1.0, 2.0):
        predicted = rates.adoption_probability(R0, R1, sigma, n_v, tau=tau, residual_norm2=r_hat**2)
        # 4 standard errors, and 1/n_v for the estimated se (Student's t against the normal)
        assert (gain > tau * se).mean() == pytest.approx(predicted, abs=4 * math.sqrt(0.25 / draws) + tau / n_v)
    assert rates.adoption_probability(0.0, 0.0, sigma, n_v) == 0.0  # a tie keeps f_0
    assert rates.adoption_probability(0.01, 0.01, sigma, n_v) == pytest.approx(0.5)


# ------------------------------------------------------------------------------------------------------ oracle inequality


def _moment(mu, sigma, q):
    return integrate.quad(
        lambda z: abs(mu + 2 * sigma * z) ** q * stats.norm.pdf(z), -14, 14, points=[-mu / (2 * sigma)], limit=200
    )[0]


@pytest.mark.parametrize("sigma", [0.05, 0.5, 3.0])
def test_bernstein_moment_condition(sigma):
    """Step (4): sup over |r^| <= B, |mu| <= 3B of E|D|^q <= (q!/2) V r^2 b'^(q-2); equality of the variance at the corner."""
    B = 1.0
    V, scale = rates.bernstein_constants(B, sigma)
    assert _moment(3 * B, sigma, 2) == pytest.approx(V, rel=1e-8)
    for q in range(3, 11):
        for mu in (0.0, 1.0, 3.0):
            for r in (0.3, 1.0):
                # 1e-8: error of the quadrature relative to the moment
                assert r**q * _moment(mu, sigma, q) <= math.factorial(q) / 2 * V * r**2 * scale ** (q - 2) * (1 + 1e-8)
    tight = [(2 * stats.norm.expect(lambda z, q=q: abs(z) ** q) / math.factorial(q)) ** (1 / (q - 2)) for q in range(3, 12)]
    assert scale == pytest.approx(max(tight) * B * math.sqrt(V), rel=1e-6)


@pytest.mark.parametrize(("r_star", "r_hat"), [(-1.0, 1.0), (0.5, 1.0), (0.0, 0.4), (0.9, 0.8), (0.3, 0.6)])
def test_bernstein_and_oracle_hold_in_simulation(r_star, r_hat):
    """Two-valued residuals at small n_v, where the bound is tightest: both fail less often than eta."""
    B, sigma, draws, rng = 1.0, 0.5, 20_000, np.random.default_rng(3)
    V, scale = rates.bernstein_constants(B, sigma)
    for n_v, eta in ((2, 0.3), (10, 0.3), (60, 0.1)):
        side = rng.choice([-1.0, 1.0], size=(draws, n_v)) * (rng.random((draws, n_v)) < 0.5)  # r*, r^ vanish on half of [0,1]
        d = side * r_hat * (2 * (side * r_star + sigma * rng.standard_normal((draws, n_v))) - side * r_hat)
        R0, R1 = r_star**2 / 2, (r_star - r_hat) ** 2 / 2
        level = math.log(2 / eta) / n_v
        gain = d.mean(axis=1)
        allowed = eta + 4 * math.sqrt(eta / draws)
        assert (np.abs(gain - (R0 - R1)) > math.sqrt(4 * V * (R0 + R1) * level) + scale * level).mean() <= allowed
        risk = np.where(gain > 0, R1, R0)
        for t in (0.05, 1 / 3, 0.8):
            assert (risk > rates.oracle_bound(min(R0, R1), B, sigma, n_v, eta, t)).mean() <= allowed


def test_oracle_algebra_step():
    """Whatever |Delta| the Bernstein event allows when the wrong predictor is chosen, the stated bound covers it (dense grid)."""
    B, sigma, n_v, eta = 1.0, 0.5, 400, 0.05
    V, scale = rates.bernstein_constants(B, sigma)
    level = math.log(2 / eta) / n_v
    m, gap = np.meshgrid(np.geomspace(1e-6, 1, 60), np.geomspace(1e-6, 4, 4000), indexing="ij")
    possible = gap <= np.sqrt(4 * V * level * (2 * m + gap)) + scale * level
    worst = (m + np.where(possible, gap, 0.0)).max(axis=1)
    for t in np.linspace(0.05, 0.95, 19):
        assert np.all(worst <= rates.oracle_bound(m[:, 0], B, sigma, n_v, eta, t))
    at_third = 2 * m[:, 0] + (4.5 * V + 1.5 * scale) * level
    np.testing.assert_allclose(rates.oracle_bound(m[:, 0], B, sigma, n_v, eta), at_third, rtol=1e-12)
    best = rates.oracle_bound(m[:, 0], B, sigma, n_v, eta, rates.best_t(m[:, 0], B, sigma, n_v, eta))
    assert np.all(best <= 6 * worst)  # and the bound is not idle


def test_best_t_minimises_the_bound():
    t = np.linspace(1e-4, 1 - 1e-4, 20_001)
    for risk in (0.0, 1e-4, 0.01, 1.0):
        values = rates.oracle_bound(risk, 1.0, 0.5, 1000, 0.05, t)
        best = float(rates.best_t(risk, 1.0, 0.5, 1000, 0.05))
        assert rates.oracle_bound(risk, 1.0, 0.5, 1000, 0.05, best) <= values.min() * (1 + 1e-12)
        assert best == pytest.approx(t[values.argmin()], abs=1e-4)  # grid step 5e-5


def test_split_factor_and_best_split():
    assert rates.split_factor(0.2, 1.0, 1) == pytest.approx(1.16, abs=0.005)
    assert rates.split_factor(0.5, 1.0, 1) == pytest.approx(1.59, abs=0.005)
    rho = np.linspace(0.01, 0.98, 9_701)
    best = []
    for n in (100, 2000, 100_000):
        cost = rates.minimax_rate((1 - rho) * n, **CLASS) + 0.66287 * 0.25 / (rho * n)
        best.append(rates.best_split(n, **CLASS))
        assert best[-1] == pytest.approx(rho[cost.argmin()], abs=2e-4)  # grid step 1e-4
    assert best[0] > best[1] > best[2]  # the floor is of lower order


# ------------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda: rates.minimax_rate(0, **CLASS), ValueError, "n:"),
        (lambda: rates.minimax_rate("7", **CLASS), TypeError, "n:"),
        (lambda: rates.minimax_rate(10, -1.0, 1, 0.5, 4.0), ValueError, "beta"),
        (lambda: rates.minimax_rate(10, 1.0, 1.5, 0.5, 4.0), TypeError, "d:"),
        (lambda: rates.minimax_rate(10, 1.0, 1, 0.0, 4.0), ValueError, "sigma"),
        (lambda: rates.critical_radius(10, 1.0, 1, 0.5, math.inf), ValueError, "L:"),
        (lambda: rates.critical_radius_variance(10, 0, 0.5), ValueError, "n_cells"),
        (lambda: rates.critical_radius_variance(10, 3, 0.5, 1, True), TypeError, "order"),
        (lambda: rates.critical_radius_lower_bound(10, 2.0, 2, 0.5, 4.0), ValueError, "beta"),
        (lambda: rates.bpsk_mmse(-0.1), ValueError, "snr"),
        (lambda: rates.bpsk_mmse([np.nan]), ValueError, "snr"),
        (lambda: rates.bpsk_mmse([]), ValueError, "snr"),
        (lambda: rates.bump_constant(2.5, 1), ValueError, "beta"),
        (lambda: rates.bump_constant(1.0, 0), ValueError, "d:"),
        (lambda: rates.lower_bound(10, -0.1, **CLASS), ValueError, "delta"),
        (lambda: rates.lower_bound_resolution(10, "a", **CLASS), TypeError, "delta"),
        (lambda: rates.selection_cost(-1.0, 0.5, 10), ValueError, "R1"),
        (lambda: rates.selection_cost(1.0, 0.5, 1), ValueError, "n_v"),
        (lambda: rates.adoption_probability(0.0, 0.1, 0.5, 10, tau=-1.0), ValueError, "tau"),
        (lambda: rates.adoption_probability(np.nan, 0.1, 0.5, 10), ValueError, "R0"),
        (lambda: rates.bernstein_constants(0.0, 0.5), ValueError, "B:"),
        (lambda: rates.oracle_bound(0.1, 1.0, 0.5, 10, 1.0), ValueError, "eta"),
        (lambda: rates.oracle_bound(0.1, 1.0, 0.5, 10, 0.1, t=1.0), ValueError, "t:"),
        (lambda: rates.best_t(-0.1, 1.0, 0.5, 10, 0.1), ValueError, "min_risk"),
        (lambda: rates.split_factor(1.0, 1.0, 1), ValueError, "rho"),
        (lambda: rates.best_split(3, **CLASS), ValueError, "n:"),
    ],
)
def test_bad_input_is_named(call, error, word):
    with pytest.raises(error, match=word):
        call()


@pytest.mark.parametrize("change", [{"sigma": 1e-200}, {"sigma": 1e-155}, {"sigma": 1e200}, {"L": 1e200}])
def test_noise_beyond_floats_is_named(change):
    for call in (rates.lower_bound, rates.lower_bound_resolution):
        with pytest.raises(ValueError, match=r"sigma: expected noise with finite sigma\^2 and n L\^2 / sigma\^2, got sigma="):
            call(2000, 0.1, **(CLASS | change))
