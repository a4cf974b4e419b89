"""The piecewise polynomial learner against per-cell least squares, sklearn's own checks, and the batched path against single
fits."""

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from paperbook.papers.safe_residual import piecewise
from paperbook.papers.safe_residual.piecewise import PiecewisePolynomialRegressor, cell_measure
from paperbook.papers.safe_residual.synthetic import cosine, residual_shape, weierstrass


@parametrize_with_checks([PiecewisePolynomialRegressor(), PiecewisePolynomialRegressor(order=2, n_cells=3)])
def test_sklearn_checks(estimator, check):
    check(estimator)


def _brute_force(X, y, Z, order, K, ridge):
    """The pseudo-code, one cell and one row at a time (order 1 or 2)."""

    def place(x):
        cell = [min(math.floor(K * c), K - 1) for c in x]
        local = [K * c - k - 0.5 for c, k in zip(x, cell, strict=True)]
        return tuple(cell), [1.0] if order == 1 else [1.0, *local]

    groups: dict = {}
    for x, t in zip(X, y, strict=True):
        cell, row = place(x)
        groups.setdefault(cell, []).append((row, t))
    out = []
    for z in Z:
        cell, row = place(z)
        if cell not in groups:
            out.append(0.0)
            continue
        F, e = np.array([r for r, _ in groups[cell]]), np.array([t for _, t in groups[cell]])
        out.append(float(np.array(row) @ np.linalg.inv(F.T @ F + ridge * np.eye(F.shape[1])) @ F.T @ e))
    return np.array(out)


@pytest.mark.parametrize(("order", "d", "K", "n"), [(1, 1, 7, 60), (2, 1, 7, 60), (1, 2, 4, 50), (2, 3, 3, 80), (2, 2, 9, 30)])
def test_fit_matches_the_pseudo_code(order, d, K, n):
    rng = np.random.default_rng(0)
    X, Z = rng.random((n, d)), np.concatenate([rng.random((40, d)), np.ones((1, d)), np.zeros((1, d))])
    y = rng.standard_normal(n)
    model = PiecewisePolynomialRegressor(order, K, domain=(0.0, 1.0)).fit(X, y)
    np.testing.assert_allclose(model.predict(Z), _brute_force(X, y, Z, order, K, 1e-3), atol=1e-9)


@pytest.mark.parametrize(("order", "d"), [(1, 2), (2, 2), (3, 1), (3, 2), (4, 1)])
def test_reproduces_polynomials_below_its_order_and_not_above(order, d):
    rng = np.random.default_rng(1)
    X = rng.random((4000, d))
    model = PiecewisePolynomialRegressor(order, 3, ridge=1e-9, domain=(0.0, 1.0))
    inside, beyond = (X.sum(axis=1) + 0.3) ** (order - 1), (X.sum(axis=1) + 0.3) ** order
    np.testing.assert_allclose(model.fit(X, inside).predict(X), inside, atol=1e-6)  # ridge / smallest eigenvalue of F'F
    assert np.abs(model.fit(X, beyond).predict(X) - beyond).max() > 1e-4  # a hundred times that
    assert len(piecewise.exponents(d, order)) == math.comb(d + order - 1, d)


def test_fit_is_linear_in_the_targets():
    rng = np.random.default_rng(2)
    X, a, b = rng.random((300, 1)), rng.standard_normal(300), rng.standard_normal(300)
    model = PiecewisePolynomialRegressor(2, 8)
    both = model.fit(X, 0.3 * a + b).predict(X)
    np.testing.assert_allclose(both, 0.3 * clone(model).fit(X, a).predict(X) + clone(model).fit(X, b).predict(X), atol=1e-10)


def test_domain_and_empty_cells():
    X = np.array([[0.0], [0.1], [0.9], [1.0]])
    model = PiecewisePolynomialRegressor(1, 10, ridge=1e-12, domain=(0, 1)).fit(X, np.array([1.0, 2, 3, 5]))
    np.testing.assert_allclose(model.predict([[0.05], [0.5], [0.95], [7.0], [-3.0]]), [1, 0, 4, 4, 1], atol=1e-9)
    scaled = PiecewisePolynomialRegressor(1, 10, ridge=1e-12).fit(40 * X - 7, np.array([1.0, 2, 3, 5]))
    np.testing.assert_allclose(scaled.predict(40 * np.array([[0.05], [0.5], [0.95]]) - 7), [1, 0, 4], atol=1e-9)
    wide = PiecewisePolynomialRegressor(1, 1000, ridge=1e-12).fit(
        np.c_[X, X, X], np.array([1.0, 2, 3, 5])
    )  # 10^9 cells, 4 stored
    assert wide.coef_.shape == (4, 1)
    np.testing.assert_allclose(wide.predict(np.c_[X, X, X]), [1, 2, 3, 5], atol=1e-9)


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"order": 0}, ValueError, "order"),
        ({"order": 1.0}, TypeError, "order"),
        ({"n_cells": 0}, ValueError, "n_cells"),
        ({"n_cells": "4"}, TypeError, "n_cells"),
        ({"ridge": 0.0}, ValueError, "ridge"),
        ({"ridge": None}, TypeError, "ridge"),
        ({"domain": 1}, ValueError, "domain"),
        ({"domain": (1.0, 0.0)}, ValueError, "domain"),
        ({"domain": (0.0, math.inf)}, ValueError, "domain"),
        ({"n_cells": 2**32}, ValueError, "n_cells"),
        ({"order": 400}, ValueError, "order"),
    ],
)
def test_bad_parameters_leave_nothing_fitted(options, error, word):
    model = PiecewisePolynomialRegressor(**options)
    X = np.random.default_rng(0).random((30, 2))
    with pytest.raises(error, match=word):
        model.fit(X, X[:, 0])
    assert not hasattr(model, "coef_")


def test_a_failing_refit_leaves_the_fit():
    X, y = np.random.default_rng(0).random((30, 2)), np.arange(30.0)
    model = PiecewisePolynomialRegressor(2, 3).fit(X, y)
    before, prediction = dict(vars(model)), model.predict(X)
    for options, bad_X, bad_y in (({"n_cells": 2**32}, X, y), ({"order": 400}, X, y), ({"n_cells": 2**30}, np.ones((30, 3)), y),
                                  ({}, X[:, :1], np.array(["a"] * 30))):
        model.set_params(**options)
        with pytest.raises(ValueError):
            model.fit(bad_X, bad_y)
        model.set_params(order=2, n_cells=3)
        assert vars(model).keys() == before.keys() and all(vars(model)[k] is v for k, v in before.items())
        assert model.predict(X).tobytes() == prediction.tobytes()


def test_parameters_set_after_the_fit_wait_for_the_next():
    X, y = np.random.default_rng(0).random((30, 1)), np.arange(30.0)
    model = PiecewisePolynomialRegressor(2, 3).fit(X, y)
    before = model.predict(X)
    assert (model.order_, model.n_cells_) == (2, 3)
    assert model.set_params(n_cells=7, order=1).predict(X).tobytes() == before.tobytes()
    assert model.fit(X, y).coef_.shape == (7, 1)


def test_bad_data_is_refused():
    model, X = PiecewisePolynomialRegressor(), np.random.default_rng(0).random((30, 2))
    with pytest.raises(NotFittedError):
        model.predict(X)
    for bad_X, bad_y in (
        (np.where(X > 0.9, np.nan, X), X[:, 0]),
        (X, np.full(30, np.inf)),
        (X, X[:5, 0]),
        (X, np.array(["a"] * 30)),
    ):
        with pytest.raises(ValueError):
            model.fit(bad_X, bad_y)
    with pytest.raises(ValueError, match="features"):
        model.fit(X, X[:, 0]).predict(X[:, :1])


# ------------------------------------------------------------------------------------------------------- batched Monte Carlo


@pytest.mark.parametrize(("order", "d", "K"), [(1, 1, 6), (2, 1, 5), (2, 2, 3)])
def test_risk_quadratic_is_the_risk_of_single_fits(order, d, K):
    """Same random stream: fit each repetition at each delta with the estimator, integrate the squared error on a fine grid."""
    n, reps, sigma = 60, 3, 0.5
    curves = piecewise.piecewise_risks(n, K, order, cosine, sigma, reps, np.random.default_rng(3), d=d)
    rng = np.random.default_rng(3)
    X, noise = rng.random((reps, n, d)), sigma * rng.standard_normal((reps, n))
    axis = (np.arange(60 * K if d == 2 else 4000 * K) + 0.5) / (60 * K if d == 2 else 4000 * K)
    Z = np.stack(np.meshgrid(*[axis] * d, indexing="ij"), axis=-1).reshape(-1, d)
    for delta in (0.0, 0.2, 1.0):
        risk = curves.risk(delta)
        assert risk.shape == (reps, 1)
        for r in range(reps):
            model = PiecewisePolynomialRegressor(order, K, domain=(0, 1)).fit(X[r], delta * cosine(X[r]) + noise[r])
            direct = ((delta * cosine(Z) - model.predict(Z)) ** 2).mean()
            assert risk[r, 0] == pytest.approx(direct, rel=1e-3)  # midpoint rule, 60 or more nodes a cell: (1/60)^2 times a few


def test_a_shape_of_any_norm_is_measured():
    """Three times the shape at delta is the shape at 3 delta, on the same draws."""
    one, three = (piecewise.piecewise_risks(100, 4, 2, lambda X, c=c: c * cosine(X), 0.5, 3, np.random.default_rng(0))
                  for c in (1.0, 3.0))
    np.testing.assert_allclose(three.risk([0.1, 0.5]), one.risk([0.3, 1.5]), rtol=1e-9)


def test_batches_and_repetitions_do_not_mix():
    """Memory chunks change the stream of numbers, not the law; one repetition is independent of its neighbours."""
    one = piecewise.piecewise_risks(200, 5, 1, cosine, 0.5, 400, np.random.default_rng(4), max_elements=1)
    many = piecewise.piecewise_risks(200, 5, 1, cosine, 0.5, 400, np.random.default_rng(5))
    spread = math.hypot(one.level.std(), many.level.std()) / math.sqrt(400)
    assert one.level.mean() == pytest.approx(many.level.mean(), abs=4 * spread)
    assert abs(np.corrcoef(many.level[:-1], many.level[1:])[0, 1]) < 4 / math.sqrt(400)


def test_risk_against_the_bias_variance_formula():
    n, K, reps = 4000, 10, 300
    for order in (1, 2):
        curves = piecewise.piecewise_risks(n, K, order, lambda X: cosine(X, 2), 0.5, reps, np.random.default_rng(6))
        for delta in (0.0, 0.1, 0.4):
            risk = curves.risk(delta)[:, 0]
            formula = piecewise.series_risk(delta, n, K, order, lambda X: cosine(X, 2), 0.5)
            # the formula drops terms of relative size p K / n
            assert risk.mean() == pytest.approx(formula, abs=4 * risk.std() / math.sqrt(reps) + formula * 2 * order * K / n)


def test_projection_bias_closed_form():
    """Cell means of sqrt(2) cos(2 pi x) are differences of its primitive; bias = 1 - mean of their squares."""
    for K in (1, 2, 3, 10):
        edges = np.sin(2 * math.pi * np.arange(K + 1) / K) / (2 * math.pi)
        means = math.sqrt(2) * K * np.diff(edges)
        bias = piecewise.projection_bias(lambda X: cosine(X, 2), K, 1)
        assert bias == pytest.approx(1 - (means**2).mean(), abs=1e-12)
    # halving the cells divides the bias by 4^order
    for order in (1, 2, 3):
        ratio = piecewise.projection_bias(cosine, 16, order) / piecewise.projection_bias(cosine, 32, order)
        assert ratio == pytest.approx(4.0**order, rel=0.02)
    assert piecewise.projection_bias(lambda X: weierstrass(X, 0.5), 20, 1) > piecewise.projection_bias(
        lambda X: weierstrass(X, 1.0), 20, 1
    )


def test_torch_fits_equal_numpy_fits():
    import torch

    rng = np.random.default_rng(7)
    for order, d in ((1, 1), (2, 2)):
        X, e = rng.random((4, 90, d)), rng.standard_normal((4, 90))
        ours = piecewise.fit_batch(X, [e], 5, order, 1e-3, piecewise.Draws(rng))
        theirs = piecewise.fit_batch(torch.as_tensor(X), [torch.as_tensor(e)], 5, order, 1e-3, piecewise.Draws(rng, "cpu"))
        np.testing.assert_allclose(theirs, ours, atol=1e-9)
    there = piecewise.piecewise_risks(300, 6, 1, cosine, 0.5, 300, np.random.default_rng(8), device="cpu")
    here = piecewise.piecewise_risks(300, 6, 1, cosine, 0.5, 300, np.random.default_rng(9))
    assert there.level.mean() == pytest.approx(
        here.level.mean(), abs=4 * math.hypot(here.level.std(), there.level.std()) / math.sqrt(300)
    )


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"n": 0}, ValueError, "n:"),
        ({"n_cells": 0}, ValueError, "n_cells"),
        ({"order": 0}, ValueError, "order"),
        ({"sigma": -1.0}, ValueError, "sigma"),
        ({"reps": 0}, ValueError, "reps"),
        ({"rng": 1}, TypeError, "rng"),
        ({"d": 0}, ValueError, "d:"),
        ({"ridge": 0.0}, ValueError, "ridge"),
        ({"n_cells": 10**5, "d": 2}, ValueError, "n_cells"),
        ({"n_cells": 5, "d": 6}, ValueError, "d:"),
        ({"max_elements": 0}, ValueError, "max_elements"),
    ],
)
def test_bad_input_is_named(change, error, word):
    arguments = {
        "n": 10,
        "n_cells": 3,
        "order": 1,
        "shape": cosine,
        "sigma": 0.5,
        "reps": 2,
        "rng": np.random.default_rng(0),
    } | change
    with pytest.raises(error, match=word):
        piecewise.piecewise_risks(**arguments)


def test_bad_input_of_the_formulas():
    with pytest.raises(ValueError, match="n_cells"):
        piecewise.projection_bias(cosine, 0, 1)
    with pytest.raises(ValueError, match="delta"):
        piecewise.series_risk(-0.1, 10, 2, 1, cosine, 0.5)
    curves = piecewise.piecewise_risks(20, 2, 1, cosine, 0.5, 2, np.random.default_rng(0))
    with pytest.raises(ValueError, match="delta"):
        curves.risk([-1.0])


@pytest.mark.parametrize("n_bumps", [23, 45, 100])
def test_one_cell_resolves_a_fine_shape(n_bumps):
    shape = residual_shape("bumps", 1.0, 1, n_bumps=n_bumps, rng=np.random.default_rng(0))
    # unit norm by construction; the kinks of the tents leave the panels an error of order (bumps/nodes)^2
    assert cell_measure(shape, 1, 1, 1).norm2 == pytest.approx(1.0, abs=(n_bumps / 8192) ** 2)
