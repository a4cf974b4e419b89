"""Critical radii and their slopes, the pitfall of tuning per delta (S9), and the safe rule on a grid of radii (S5-S7, S10,
S12)."""

import math

import numpy as np
import pytest

from paperbook.papers.safe_residual import crossing, piecewise, rates
from paperbook.papers.safe_residual.piecewise import PiecewisePolynomialRegressor, RiskCurves
from paperbook.papers.safe_residual.synthetic import cosine

N_GRID = (512, 1024, 2048, 4096, 8192, 16384)
DELTA = np.array([0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.2, 0.4])


def _curves(curvature, slope, level, n=100):
    return RiskCurves(np.array([curvature]), np.array([slope]), np.array([level]), n, 3)


# -------------------------------------------------------------------------------------------------------------- crossings


def test_resolution_of_the_class():
    assert [crossing.n_cells_class(n, 1.0, 1) for n in (1, 512, 4096)] == [2, 16, 32]
    assert crossing.n_cells_class(1000, 1.0, 1, 1.0) == 10
    assert crossing.n_cells_class(80, 1.0, 1, 1.0) == 4 and crossing.n_cells_class(100, 1.0, 1, 1.0) == 5  # 4.31 and 4.64
    assert crossing.n_cells_class(4096, 0.5, 1, 1.0) == 64
    assert crossing.n_cells_class(2, 2.0, 3, 0.01) == 1


def test_crossing_radius_is_where_risk_equals_delta_squared():
    rng = np.random.default_rng(0)
    for _ in range(50):
        curvature, slope, level = rng.uniform(0, 0.9), rng.uniform(-0.01, 0.01), rng.uniform(1e-4, 1e-2)
        radius = crossing.crossing_radius(_curves(curvature, slope, level))
        assert curvature * radius**2 + slope * radius + level == pytest.approx(radius**2, rel=1e-10)
        grid = np.geomspace(radius / 7, radius * 9, 40)
        # linear interpolation in logs: error (step of the grid)^2 / 8 times the curvature of log R, which is below 1
        assert crossing.crossing_radius(_curves(curvature, slope, level), grid) == pytest.approx(radius, rel=0.02)


def test_oracle_crossing_is_the_lower_envelope():
    """The first of the curves to cross gives the crossing of their minimum: brute force on a fine grid."""
    group = [_curves(0.8, 0.0, 1e-3), _curves(0.3, 1e-3, 2e-3), _curves(0.05, 0.0, 5e-3), _curves(1.0, 0.0, 1e-4)]
    delta = np.geomspace(1e-2, 1, 200_001)
    below = np.min([c.risk(delta)[0] for c in group], axis=0) < delta**2
    assert crossing.crossing_radius(group) == pytest.approx(delta[below.argmax()], rel=1e-4)
    assert crossing.crossing_radius(group, delta[::1000]) == pytest.approx(delta[below.argmax()], rel=1e-2)


def test_of_several_crossings_the_last_counts():
    """risk/delta^2 of the first curve is 1 at 1/delta = 10 and 5, so it falls below at .1 and rises above at .2; the second,
    8 delta^-2/100 + 1/2, falls below at .4."""
    group = [_curves(1.5, -0.15, 0.01), _curves(0.5, 0.0, 0.08)]
    # linear interpolation in logs on steps of 0.7 %
    assert crossing.crossing_radius(group, np.geomspace(0.05, 1.0, 400)) == pytest.approx(0.4, rel=1e-3)


def test_train_fraction_is_used():
    for fraction in (0.25, 0.5, 1.0):
        study = crossing.crossing_study((64, 130), 1.0, 1, 0.5, 5, np.random.default_rng(0), train_fraction=fraction)
        assert study.n_train == (round(64 * fraction), round(130 * fraction)) and study.n == (64, 130)


# The intervals were written before the runs; theory is -beta/(2 beta+d), d = 2 is far from its limit at these n.
@pytest.mark.parametrize(
    ("beta", "d", "low", "high"), [(1.0, 1, -0.40, -0.27), (2.0, 1, -0.48, -0.33), (0.5, 1, -0.31, -0.19), (1.0, 2, -0.40, -0.20)]
)
def test_class_optimal_resolution_crosses_at_the_minimax_slope(beta, d, low, high):
    study = crossing.crossing_study(N_GRID, beta, d, 0.5, 150, np.random.default_rng(1))
    assert low <= study.slope.mean <= high
    assert study.slope.low < study.slope.mean < study.slope.high
    assert study.theory == pytest.approx(-beta / (2 * beta + d))
    # Monte Carlo against the leading-order formula, which carries the rounding of K; it drops terms p K^d / n <= 0.25, largest
    # at small n
    assert study.slope.mean == pytest.approx(study.leading_slope, abs=0.05)
    assert study.radius[-1].mean == pytest.approx(study.leading_radius[-1], rel=0.1)
    assert np.all(np.diff([r.mean for r in study.radius]) < 0)


def test_leading_slope_tends_to_the_theory():
    """Without Monte Carlo, n to 10^9: the slope of the leading-order crossing is -beta/(2 beta+d)."""
    n = np.geomspace(1e4, 1e8, 9)
    for beta, order in ((1.0, 1), (2.0, 2), (0.5, 1)):
        radii = [
            crossing.leading_radius(int(k), min(crossing.n_cells_class(int(k), beta, 1), 60_000), order, cosine, 0.5) for k in n
        ]
        assert np.polyfit(np.log(n), np.log(radii), 1)[0] == pytest.approx(-beta / (2 * beta + 1), abs=3e-3)  # K is rounded


def test_leading_radius_solves_its_equation_where_the_bias_is_large():
    for cells in (2, 3, 10):
        radius = crossing.leading_radius(500, cells, 1, cosine, 0.5)
        assert piecewise.series_risk(radius, 500, cells, 1, cosine, 0.5) == pytest.approx(radius**2, rel=1e-12)
    assert crossing.leading_radius(500, 1, 1, cosine, 0.5) == math.inf  # one constant cannot see a shape of mean zero


def test_tuning_per_delta_crosses_at_one_half():
    study = crossing.crossing_study(
        N_GRID[:5], 1.0, 1, 0.5, 250, np.random.default_rng(2), resolution="oracle", oracle_cells=(1, 2, 3, 4)
    )
    assert -0.53 <= study.slope.mean <= -0.47
    assert study.leading_slope == pytest.approx(-0.5, abs=1e-9)  # delta^2 n is all that counts
    assert study.theory == -0.5


def test_three_routes_to_the_critical_radius_agree():
    curves = piecewise.piecewise_risks(1000, 10, 1, lambda X: cosine(X, 2), 0.5, 500, np.random.default_rng(3))
    radius = crossing.crossing_radius(curves)
    for other in (rates.critical_radius_variance(1000, 10, 0.5), rates.critical_radius_lower_bound(2000, 1.0, 1, 0.5, 4.0)):
        assert radius == pytest.approx(other, rel=0.15)


def test_slope_and_interval_of_known_power_law():
    rng, n_grid = np.random.default_rng(4), (100, 1000, 10_000)
    curves = [RiskCurves(np.zeros(300), np.zeros(300), n**-0.7 * rng.uniform(0.5, 1.5, 300), n, 1) for n in n_grid]
    slope = crossing.fit_slope(n_grid, curves, rng)
    # spread of log radius: sd of U(.5,1.5) / 2 / sqrt(300); slope weights (-1,0,1)/(2 log 10); 95 % is 3.92 sd; 200 draws: 20 %
    width = 3.92 * (1 / math.sqrt(12)) / 2 / math.sqrt(300) * math.sqrt(2) / (2 * math.log(10))
    assert slope.high - slope.low == pytest.approx(width, rel=0.35)
    assert slope.mean == pytest.approx(-0.35, abs=4 * width / 3.92)


# -------------------------------------------------------------------------------------------------------------- safe rule


@pytest.fixture(scope="module")
def curve():
    return crossing.safe_curve(DELTA, 2000, 2000, np.random.default_rng(5))


def test_safe_curve_reproduces_the_table(curve):
    """2,000 repetitions here and in the table: differences within 4 standard errors of both and half a unit of the last digit."""
    residual = np.array([0.00249, 0.00250, 0.00256, 0.00266, 0.00283, 0.00328, 0.00382, 0.00779])
    safe = np.array([0.000145, 0.00027, 0.00115, 0.0028, 0.0030, 0.00328, 0.00382, 0.00779])
    adoption = np.array([0.08, 0.09, 0.24, 0.66, 0.97, 1.0, 1.0, 1.0])
    assert (curve.n_train, curve.n_v) == (1000, 1000)
    np.testing.assert_allclose(curve.risk_black_box, DELTA**2, rtol=1e-12)
    for ours, table, digit in (
        (curve.risk_residual, residual, 5e-6),
        (curve.risk_safe(), safe, 5e-5),
        (curve.adopted(), adoption, 5e-3),
    ):
        tolerance = 4 * math.sqrt(2) * ours.std(axis=0) / math.sqrt(2000) + digit
        assert np.all(np.abs(ours.mean(axis=0) - table) <= tolerance)


@pytest.mark.parametrize("folds", [None, 4])
def test_safe_curve_is_algorithm_1_on_each_data_set(folds):
    """Same random stream, one repetition and one delta at a time with the estimator: risks, gains and standard errors."""
    n, reps, K, sigma = 80, 3, 4, 0.5
    delta = np.array([0.0, 0.2, 0.7])
    batch = crossing.safe_curve(delta, n, reps, np.random.default_rng(6), n_cells=K, val_fraction=0.25, folds=folds)
    rng = np.random.default_rng(6)
    X, noise = rng.random((reps, n, 1)), sigma * rng.standard_normal((reps, n))
    grid = ((np.arange(20_000) + 0.5) / 20_000)[:, None]
    model = PiecewisePolynomialRegressor(1, K, domain=(0, 1))
    for r in range(reps):
        for j, x in enumerate(delta):
            f_0 = np.sin(3 * X[r, :, 0])
            y = f_0 + x * cosine(X[r], 2) + noise[r]
            if folds is None:
                final = model.fit(X[r, :60], (y - f_0)[:60])
                rows, r_hat = np.arange(60, n), final.predict(X[r, 60:])
            else:
                rows, r_hat = np.arange(n), np.empty(n)
                for f in range(folds):
                    out = rows % folds == f
                    r_hat[out] = model.fit(X[r, ~out], (y - f_0)[~out]).predict(X[r, out])
                final = model.fit(X[r], y - f_0)
            d = (y[rows] - f_0[rows]) ** 2 - (y[rows] - f_0[rows] - r_hat) ** 2
            risk = ((x * cosine(grid, 2) - final.predict(grid)) ** 2).mean()
            assert batch.gain[r, j] == pytest.approx(d.mean(), abs=1e-10)
            assert batch.gain_se[r, j] == pytest.approx(d.std(ddof=1) / math.sqrt(d.size), abs=1e-10)
            assert batch.risk_residual[r, j] == pytest.approx(risk, rel=1e-6)  # midpoint rule, step 5e-5
            assert batch.sup_residual[r, j] >= np.abs(final.predict(grid)).max() - 1e-12
            for tau in (0.0, 1.0):
                assert batch.adopted(tau)[r, j] == (d.mean() > tau * d.std(ddof=1) / math.sqrt(d.size))


@pytest.mark.parametrize(("d", "n_cells"), [(1, 4), (2, 2)])
def test_sup_of_linear_pieces_is_attained(d, n_cells):
    """Order 2: a linear piece is largest at a corner of its cell, where the bound is exact; fine grid through the corners."""
    n, reps = 200, 3
    delta = np.array([0.0, 0.5])
    batch = crossing.safe_curve(delta, n, reps, np.random.default_rng(6), beta=1.5, d=d, n_cells=n_cells, val_fraction=0.25)
    rng = np.random.default_rng(6)
    X, noise = rng.random((reps, n, d)), 0.5 * rng.standard_normal((reps, n))
    edge = np.concatenate([np.linspace(k / n_cells + 1e-9, (k + 1) / n_cells - 1e-9, 20) for k in range(n_cells)])
    grid = np.stack(np.meshgrid(*[edge] * d, indexing="ij"), axis=-1).reshape(-1, d)
    for r in range(reps):
        for j, x in enumerate(delta):
            fit = PiecewisePolynomialRegressor(2, n_cells, domain=(0, 1)).fit(X[r, :150], (x * cosine(X[r], 2) + noise[r])[:150])
            # 1e-9 short of the corner, slopes below 100
            assert batch.sup_residual[r, j] == pytest.approx(np.abs(fit.predict(grid)).max(), rel=1e-6)


def test_cross_fitting_trains_on_all_other_folds():
    for n, folds, n_train in ((80, 4, 60), (82, 4, 61), (100, 10, 90)):
        run = crossing.safe_curve([0.1], n, 2, np.random.default_rng(0), folds=folds)
        assert (run.n_train, run.n_v) == (n_train, n)


def test_the_black_box_risk_of_a_shape_that_is_not_of_unit_norm():
    run = crossing.safe_curve([0.1, 0.2], 100, 2, np.random.default_rng(0), shape=lambda X: 3.0 * cosine(X, 2))
    np.testing.assert_allclose(run.risk_black_box, 9 * np.array([0.01, 0.04]), rtol=1e-9)  # quadrature of a smooth shape


def test_selection_never_blends_and_ties_keep_the_black_box(curve):
    safe = curve.risk_safe()
    assert np.all((safe == curve.risk_residual) | (safe == curve.risk_black_box))
    nothing = crossing.safe_curve([0.0], 100, 5, np.random.default_rng(7), sigma=0.0)  # no noise, no residual: gain is 0
    assert not nothing.adopted().any()
    assert np.all(nothing.risk_safe() == 0.0)


def test_safe_is_within_the_price_of_the_better_one(curve):
    best = np.minimum(curve.risk_black_box, curve.risk_residual.mean(axis=0))
    assert np.all(curve.risk_safe().mean(axis=0) <= 1.5 * best + 3 * 0.25 / curve.n_v)


def test_adoption_rises_from_rare_to_sure(curve):
    rate, margin = curve.adopted().mean(axis=0), curve.adopted(1.0).mean(axis=0)
    assert rate[0] < 0.15
    assert np.all(np.diff(rate) > -4 * math.sqrt(0.25 / 2000))
    assert rate[DELTA >= 3 * 0.05].min() > 0.95  # delta_c = .05
    assert np.all(margin <= rate)  # tau only refuses


def test_floor_at_delta_zero(curve):
    """Selection cost .58 sigma^2/n_v, below the supremum; and S5 averaged over the fitted R_1 predicts it."""
    unit = 0.25 / curve.n_v
    cost = curve.risk_safe()[:, 0]
    error = 4 * cost.std() / math.sqrt(cost.size)
    assert cost.mean() / unit <= 0.70
    assert cost.mean() == pytest.approx(0.58 * unit, abs=math.sqrt(2) * error)
    predicted = rates.selection_cost(curve.risk_residual[:, 0], 0.5, curve.n_v)
    assert cost.mean() == pytest.approx(predicted.mean(), abs=error)
    share = rates.adoption_probability(0.0, curve.risk_residual[:, 0], 0.5, curve.n_v).mean()
    assert curve.adopted()[:, 0].mean() == pytest.approx(share, abs=4 * math.sqrt(0.08 / 2000))


def test_adoption_probability_on_the_grid(curve):
    for j, x in enumerate(DELTA[1:5], start=1):
        predicted = rates.adoption_probability(x**2, curve.risk_residual[:, j], 0.5, curve.n_v).mean()
        # 4 standard errors, and the bias of r^ that the default ||r^||^2 = R_0 + R_1 leaves out (3 % of delta^2)
        assert curve.adopted()[:, j].mean() == pytest.approx(predicted, abs=4 * math.sqrt(0.25 / 2000) + 0.01)


def test_learning_regime_does_not_depend_on_delta(curve):
    mean = curve.risk_residual.mean(axis=0)
    assert mean[4] / mean[3] == pytest.approx(1.0, abs=0.15)


def test_oracle_bound_holds_on_every_run(curve):
    """B = 1 bounds |r*| <= .4 sqrt 2 and every fitted |r^|, so nothing was clipped; eta = .05 over 16,000 runs."""
    assert curve.sup_residual.max() <= 1.0
    best = np.minimum(curve.risk_black_box, curve.risk_residual)
    assert not (curve.risk_safe() > rates.oracle_bound(best, 1.0, 0.5, curve.n_v, 0.05)).any()
    # with the size of these residuals (B = .2 below delta = .1) it stays a bound and gets closer
    small = slice(0, 4)
    kept = curve.sup_residual[:, small].max(axis=1) <= 0.2
    assert kept.mean() > 0.9
    bound = rates.oracle_bound(best[kept, small], 0.2, 0.5, curve.n_v, 0.05)
    assert (curve.risk_safe()[kept, small] > bound).mean() <= 0.05


def test_split_sweep_and_cross_fitting_floors():
    """Training loss follows S10 (K ~ n_train^(1/3)), the holdout floor grows as rho falls, and 5 folds have a lower floor than
    any."""
    runs = {rho: crossing.safe_curve([0.0, 0.3], 2000, 400, np.random.default_rng(8), val_fraction=rho) for rho in (0.2, 0.5)}
    ratio = runs[0.5].risk_residual[:, 1].mean() / runs[0.2].risk_residual[:, 1].mean()
    assert ratio == pytest.approx(rates.split_factor(0.5, 1.0, 1) / rates.split_factor(0.2, 1.0, 1), rel=0.15)  # K is rounded
    assert (runs[0.2].n_v, runs[0.5].n_v) == (400, 1000)
    crossed = crossing.safe_curve([0.0, 0.3], 2000, 400, np.random.default_rng(8), folds=5)
    floors = [run.risk_safe()[:, 0].mean() for run in (crossed, runs[0.5], runs[0.2])]
    assert floors[0] < floors[1] < floors[2] <= 0.70 * 0.25 / 400


def test_seeds_reproduce():
    a, b = (crossing.safe_curve([0.1], 100, 4, np.random.default_rng(9)) for _ in range(2))
    np.testing.assert_array_equal(a.gain, b.gain)
    first, second = (crossing.crossing_study((64, 128), 1.0, 1, 0.5, 5, np.random.default_rng(9)) for _ in range(2))
    assert first == second


# -------------------------------------------------------------------------------------------------------------- bad input

RNG = np.random.default_rng(0)
ONE = _curves(0.1, 0.0, 1e-3)


@pytest.mark.parametrize(
    ("call", "error", "word"),
    [
        (lambda: crossing.n_cells_class(0, 1.0, 1), ValueError, "n:"),
        (lambda: crossing.n_cells_class(10, 1.0, 1, 0.0), ValueError, "k0"),
        (lambda: crossing.crossing_radius([]), TypeError, "curves"),
        (lambda: crossing.crossing_radius(3.0), TypeError, "curves"),
        (lambda: crossing.crossing_radius(_curves(1.2, 0.0, 1e-3)), ValueError, "curves"),
        (lambda: crossing.crossing_radius(ONE, [0.5, 0.1]), ValueError, "delta_grid"),
        (lambda: crossing.crossing_radius(ONE, [0.5, 0.6]), ValueError, "delta_grid"),
        (lambda: crossing.crossing_radius(ONE, [0.0, 0.6]), ValueError, "delta_grid"),
        (lambda: crossing.fit_slope([10], [ONE], RNG), ValueError, "n_grid"),
        (lambda: crossing.fit_slope([10, 10], [ONE, ONE], RNG), ValueError, "n_grid"),
        (lambda: crossing.fit_slope([10, 20], [ONE], RNG), ValueError, "curves"),
        (lambda: crossing.fit_slope([10, 20], [ONE, ONE], 7), TypeError, "rng"),
        (lambda: crossing.fit_slope([10, 20], [ONE, ONE], RNG, draws=1), ValueError, "draws"),
        (lambda: crossing.crossing_study([1, 2], 1.0, 1, 0.5, 5, RNG), ValueError, "n_grid"),
        (lambda: crossing.crossing_study([64, 64], 1.0, 1, 0.5, 5, RNG), ValueError, "n_grid"),
        (lambda: crossing.crossing_study([16, 17], 1.0, 1, 0.5, 5, RNG), ValueError, r"n_grid: .* training rows, got \[16, 17\]"),
        (lambda: crossing.crossing_study([64, 128], 1.0, 1, 0.0, 5, RNG), ValueError, "sigma"),
        (lambda: crossing.crossing_study([64, 128], 1.0, 1, 0.5, 1, RNG), ValueError, "reps"),
        (lambda: crossing.crossing_study([64, 128], 1.0, 1, 0.5, 5, RNG, resolution="best"), ValueError, "resolution"),
        (lambda: crossing.crossing_study([64, 128], 1.0, 1, 0.5, 5, RNG, train_fraction=0.0), ValueError, "train_fraction"),
        (lambda: crossing.crossing_study([64, 128], 1.0, 1, 0.5, 5, RNG, oracle_cells=()), ValueError, "oracle_cells"),
        (lambda: crossing.crossing_study([64, 128], 1.0, 1, 0.5, 5, RNG, shape=3), TypeError, "shape"),
        (lambda: crossing.crossing_study([64, 128], 1.0, 1, 0.5, 5, RNG, draws=1), ValueError, "draws"),
        (lambda: crossing.safe_curve([0.1], 100, 5, RNG, shape="cos"), TypeError, "shape"),
        (lambda: crossing.safe_curve(0.1, 100, 5, RNG), ValueError, "delta"),
        (lambda: crossing.safe_curve([-0.1], 100, 5, RNG), ValueError, "delta"),
        (lambda: crossing.safe_curve([0.1], 3, 5, RNG), ValueError, "n:"),
        (lambda: crossing.safe_curve([0.1], 100, 0, RNG), ValueError, "reps"),
        (lambda: crossing.safe_curve([0.1], 100, 5, None), TypeError, "rng"),
        (lambda: crossing.safe_curve([0.1], 100, 5, RNG, val_fraction=1.0), ValueError, "val_fraction"),
        (lambda: crossing.safe_curve([0.1], 100, 5, RNG, val_fraction=0.01), ValueError, "val_fraction"),
        (lambda: crossing.safe_curve([0.1], 100, 5, RNG, folds=1), ValueError, "folds"),
        (lambda: crossing.safe_curve([0.1], 100, 5, RNG, n_cells=0), ValueError, "n_cells"),
        (lambda: crossing.safe_curve([0.1], 100, 5, RNG).adopted(-1.0), ValueError, "tau"),
    ],
)
def test_bad_input_is_named(call, error, word):
    with pytest.raises(error, match=word):
        call()


def test_unequal_repetitions_are_refused():
    two = RiskCurves(np.zeros(2), np.zeros(2), np.ones(2), 10, 1)
    with pytest.raises(ValueError, match="curves"):
        crossing.crossing_radius([ONE, two])
