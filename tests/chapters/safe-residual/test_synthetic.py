"""Residual shapes: unit norm by quadrature, Hölder constants by finite differences; the simulated problem itself."""

import math

import numpy as np
import pytest
from scipy import integrate

from paperbook.papers.safe_residual import rates, synthetic

MIDPOINTS = (np.arange(2**14) + 0.5) / 2**14


def _norm2(shape, d):
    """Midpoint rule on a grid that no shape's kinks or frequencies resonate with (1-d: 2^14 nodes, 2-d: 500^2)."""
    if d == 1:
        return float((shape(MIDPOINTS[:, None]) ** 2).mean())
    axis = (np.arange(500) + 0.5) / 500
    return float((shape(np.stack(np.meshgrid(axis, axis), axis=-1)) ** 2).mean())


@pytest.mark.parametrize(
    ("options", "beta", "d"),
    [
        ({"shape": "cos"}, 1.0, 1),
        ({"shape": "cos", "frequency": 2}, 1.0, 1),
        ({"shape": "cos", "frequency": 3}, 1.0, 2),
        ({"shape": "weierstrass"}, 0.5, 1),
        ({"shape": "weierstrass"}, 1.0, 1),
        ({"shape": "weierstrass"}, 1.5, 2),
        ({"shape": "bumps", "n_bumps": 7}, 1.0, 1),
        ({"shape": "bumps"}, 0.5, 1),
        ({"shape": "bumps", "n_bumps": 5}, 2.0, 1),
        ({"shape": "bumps", "n_bumps": 4}, 1.0, 2),
        ({"shape": "bumps", "n_bumps": 5}, 0.7, 2),
        ({"shape": "cos", "active": 1}, 1.0, 2),
    ],
)
def test_shapes_have_unit_norm(options, beta, d):
    shape = synthetic.residual_shape(beta=beta, d=d, rng=np.random.default_rng(0), **options)
    assert _norm2(shape, d) == pytest.approx(1.0, abs=2e-4)  # kinks: error (m/nodes)^2 times the curvature of the square


@pytest.mark.parametrize(("beta", "d"), [(1.0, 1), (0.5, 1), (0.3, 2), (1.0, 2), (1.0, 3), (1.7, 1), (2.0, 1)])
def test_bump_constant_is_the_integral_of_the_square(beta, d):
    if d == 1:
        value = 2 * integrate.quad(lambda x: float(synthetic.bump(np.array([x]), beta)) ** 2, 0, 0.5, points=[0.25])[0]
        assert rates.bump_constant(beta, d) == pytest.approx(value, rel=1e-8)
    else:
        x = np.random.default_rng(1).random((400_000, d))
        square = synthetic.bump(x, beta) ** 2
        assert rates.bump_constant(beta, d) == pytest.approx(square.mean(), abs=4 * square.std() / math.sqrt(square.size))
    if beta == d == 1:
        assert rates.bump_constant(beta, d) == pytest.approx(1 / 12, rel=1e-14)


@pytest.mark.parametrize(("beta", "d"), [(1.0, 1), (0.5, 1), (0.5, 2), (0.2, 1), (1.0, 3)])
def test_hoelder_constant_of_signed_bumps(beta, d):
    """At delta = c L m^-beta the residual has Hölder constant L: never above (random and close pairs), and almost attained."""
    m, L, rng = 6, 4.0, np.random.default_rng(2)
    delta = math.sqrt(rates.bump_constant(beta, d)) * L * m**-beta
    x = rng.random((200_000, d))
    step = rng.standard_normal(x.shape)
    step[::2, 1:] = 0.0  # half of the pairs differ in one coordinate
    step *= np.exp(rng.uniform(-9, 0, size=(len(x), 1)))
    y = (x + step).clip(0, 1)
    distance = np.linalg.norm(x - y, axis=1)
    keep = distance > 1e-7
    ratios = []
    for signs in (rng.choice([-1.0, 1.0], size=(m,) * d), np.where(np.indices((m,) * d).sum(axis=0) % 2, 1.0, -1.0)):
        change = delta * np.abs(synthetic.signed_bumps(x, signs, beta) - synthetic.signed_bumps(y, signs, beta))
        ratios.append((change[keep] / distance[keep] ** beta).max())
    assert max(ratios) <= L * (1 + 1e-6)  # rounding at distances of 1e-7
    assert max(ratios) >= 0.9 * L


@pytest.mark.parametrize("beta", [1.3, 2.0])
def test_hoelder_constant_of_the_smooth_bumps(beta):
    """1 < beta <= 2: the derivative, by central differences, is (beta-1)-Hölder with constant L, for alternating and equal
    signs."""
    m, L, h = 5, 4.0, 1e-5
    delta = math.sqrt(rates.bump_constant(beta, 1)) * L * m**-beta
    x = np.linspace(h, 1 - h, 1201)[:, None]
    ratios = []
    for signs in (np.array([1.0, -1, 1, -1, 1]), np.ones(m), np.array([1.0, 1, -1, -1, 1])):
        slope = delta * (synthetic.signed_bumps(x + h, signs, beta) - synthetic.signed_bumps(x - h, signs, beta)) / (2 * h)
        distance = np.abs(x - x.T)
        far = distance > 200 * h  # a difference over 2h blurs kinks by (h/distance)^(beta-1)
        ratios.append((np.abs(slope[:, None] - slope[None, :])[far] / distance[far] ** (beta - 1)).max())
    assert max(ratios) <= L * 1.02
    assert max(ratios) >= 0.9 * L


def test_cosine_and_weierstrass_values():
    """Extremes and zeros by hand; the projection of the rough shape on each of its cosines gives its coefficients back."""
    np.testing.assert_allclose(synthetic.cosine(np.array([[0.0], [0.5], [1.0]])), [2**0.5, 0, -(2**0.5)], atol=1e-15)
    np.testing.assert_allclose(synthetic.cosine(np.array([[0.25, 0.0], [0.5, 1.0]]), 2), [0, -2], atol=1e-15)
    rough = synthetic.weierstrass(MIDPOINTS[:, None], 0.5)
    weights = [(rough * 2 * np.cos(2**k * math.pi * MIDPOINTS)).mean() for k in range(5)]
    np.testing.assert_allclose(np.array(weights[1:]) / weights[:-1], 2**-0.5, rtol=1e-9)
    assert weights[0] > 0


def test_weierstrass_is_as_rough_as_it_says():
    """Mean squared increments scale as h^(2 beta) between the coarsest and the finest term."""
    rng = np.random.default_rng(3)
    x = 0.9 * rng.random((40_000, 1))
    h = np.array([2.0**-k for k in range(4, 10)])
    for beta in (0.4, 0.7):
        moved = [((synthetic.weierstrass(x + s, beta) - synthetic.weierstrass(x, beta)) ** 2).mean() for s in h]
        assert np.polyfit(np.log(h), np.log(moved), 1)[0] == pytest.approx(2 * beta, abs=0.15)  # finitely many terms


def test_problem_is_what_it_says():
    made = synthetic.make_black_box_regression(4000, 2, 0.3, "bumps", 1.0, 0.5, np.random.default_rng(4), n_bumps=4)
    assert made.X.shape == (4000, 2) and made.y.shape == (4000,)
    assert made.X.min() >= 0 and made.X.max() <= 1
    np.testing.assert_allclose(made.f_star(made.X) - made.f_0(made.X), made.residual(made.X), atol=1e-12)
    assert _norm2(made.residual, 2) == pytest.approx(0.09, rel=1e-3)
    noise = made.y - made.f_star(made.X)
    assert noise.std() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(2 * 4000))
    again = synthetic.make_black_box_regression(4000, 2, 0.3, "bumps", 1.0, 0.5, np.random.default_rng(4), n_bumps=4)
    np.testing.assert_array_equal(again.y, made.y)
    exact = synthetic.make_black_box_regression(10, 1, 0.0, sigma=0.0, rng=np.random.default_rng(5))
    np.testing.assert_array_equal(exact.y, exact.f_0(exact.X))
    flat = synthetic.make_black_box_regression(10, 1, 0.1, sigma=0.0, rng=np.random.default_rng(5), truth=lambda X: 0 * X[..., 0])
    np.testing.assert_allclose(flat.y, 0.0)


def test_truth_by_hand():
    """2 sin(6 pi / 4) + 1/4 = -1.75 a coordinate, over sqrt(d): its spread over the cube is then the same in every dimension."""
    for d in (1, 4, 9):
        assert synthetic.default_truth(np.full((2, d), 0.25)) == pytest.approx(-1.75 * math.sqrt(d), rel=1e-12)
    # mean square of 2 sin + x about its mean in closed form: 2 + 1/12 - 4 E[sin(6 pi x) (-x)] = 2 + 1/12 - 4/(6 pi)
    x = np.random.default_rng(0).random((200_000, 5))
    variance = 2 + 1 / 12 - 4 / (6 * math.pi)
    assert synthetic.default_truth(x).var() == pytest.approx(variance, rel=4 * math.sqrt(2 / 200_000))


def test_torch_and_numpy_shapes_agree():
    import torch

    x = np.random.default_rng(6).random((50, 2))
    for name, beta in (("cos", 1.0), ("weierstrass", 0.5), ("bumps", 0.5), ("bumps", 1.0)):
        shape = synthetic.residual_shape(name, beta, 2, rng=np.random.default_rng(7))
        np.testing.assert_allclose(shape(torch.as_tensor(x)).numpy(), shape(x), atol=1e-11)  # cos(2^11 pi x) loses four digits
    smooth = synthetic.residual_shape("bumps", 1.5, 1, rng=np.random.default_rng(7))
    np.testing.assert_allclose(smooth(torch.as_tensor(x[:, :1])).numpy(), smooth(x[:, :1]), atol=1e-13)


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        ({"n": 0}, ValueError, "n:"),
        ({"d": 2.0}, TypeError, "d:"),
        ({"delta": -1.0}, ValueError, "delta"),
        ({"delta": math.nan}, ValueError, "delta"),
        ({"shape": "sin"}, ValueError, "shape"),
        ({"beta": 0.0}, ValueError, "beta"),
        ({"sigma": "x"}, TypeError, "sigma"),
        ({"rng": None}, TypeError, "rng"),
        ({"rng": 3}, TypeError, "rng"),
        ({"truth": 3}, TypeError, "truth"),
        ({"frequency": 0}, ValueError, "frequency"),
        ({"active": 3}, ValueError, "active"),
        ({"shape": "bumps", "n_bumps": 0}, ValueError, "n_bumps"),
        ({"shape": "bumps", "beta": 1.5}, ValueError, "beta"),
        ({"shape": "bumps", "d": 8, "n_bumps": 9}, ValueError, "n_bumps"),
    ],
)
def test_bad_input_is_named(change, error, word):
    arguments = {"n": 10, "d": 2, "delta": 0.1, "rng": np.random.default_rng(0)} | change
    with pytest.raises(error, match=word):
        synthetic.make_black_box_regression(**arguments)
