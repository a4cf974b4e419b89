"""The theory of the chapter by second routes: adaptive quadrature, closed forms, finite differences, enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad

from paperbook.papers.dr_submodular import functions, theory
from paperbook.papers.dr_submodular.functions import LambdaDR, QuadraticDR, corner_points, sharp_instance, tight_instance
from paperbook.papers.dr_submodular.sets import BudgetBox, random_packing
from paperbook.papers.dr_submodular.wrappers import (
    AnchoredNonMonotone,
    BoostedMonotone,
    ExponentialDownClosed,
    IdentityMonotone,
    normalised_gap,
    wrapper_named,
)

E = math.e
OURS = ExponentialDownClosed()
IDENTITY = LambdaDR(lambda x: x.sum(-1), lambda x: 1 + 0 * x, 1)
PARABOLA = LambdaDR(lambda x: (x * (1 - x)).sum(-1), lambda x: 1 - 2 * x, 1)
ROUNDING = 1e-12  # 40 products of numbers of size one, 1e-16 each, with room


def random_function(kind: str, dim: int, rng: np.random.Generator):
    if kind == "quadratic":
        return QuadraticDR.random(dim, rng, rng.uniform(0.05, 0.6))
    makers = {"cut": functions.random_cut, "revenue": functions.random_revenue, "determinant": functions.random_dpp}
    return makers[kind](dim, rng)


def integral_of_g(f, x: np.ndarray, i: int) -> float:
    """beta g_i by adaptive quadrature of the formula, which shares nothing with the Gauss nodes."""
    return quad(lambda z: math.exp(z - 1) * f.grad(1 - np.exp(-z * x))[i] * math.exp(-z * x[i]), 0, 1, epsabs=1e-13)[0]


@pytest.mark.parametrize("kind", ["quadratic", "cut", "revenue", "determinant"])
def test_the_theorem_on_random_functions(kind: str) -> None:
    rng = np.random.default_rng(1)
    for _ in range(40):
        f = random_function(kind, int(rng.integers(2, 8)), rng)
        x, y = corner_points(rng, 200, f.dim), corner_points(rng, 200, f.dim)
        assert normalised_gap(OURS, f, x, y).min() > -1e-9
        stronger = OURS.gap(f, x, y) - f.value(0 * x) / E  # the f(0)/e that the proof gives on top
        assert (stronger / np.maximum(1, np.abs(f.value(y)))).min() > -1e-9


@pytest.mark.parametrize("kind", ["quadratic", "cut", "revenue", "determinant"])
def test_g_against_adaptive_quadrature(kind: str) -> None:
    rng = np.random.default_rng(2)
    f, x = random_function(kind, 4, rng), rng.random(4)
    expected = [integral_of_g(f, x, i) for i in range(4)]
    assert OURS.beta * OURS.linear_gain(f, x) == pytest.approx(expected, abs=1e-11)  # quad's own error, 1e-13 an integral


def test_equality_at_the_tight_instances() -> None:
    x, y = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    right = OURS.beta * OURS.linear_gain(tight_instance(), x) @ (y - x)
    left = tight_instance().value(y) / E - tight_instance().value(OURS.action(x))
    assert right == pytest.approx(1 / E, abs=ROUNDING) and left == pytest.approx(1 / E, abs=ROUNDING)
    x, y = np.array([0.0, 1.0, 1.0]), np.array([1.0, 0.0, 0.0])
    for a in (0.0, 0.3, 1.0):
        for k in (1, 3, 8):
            assert float(OURS.gap(sharp_instance(a, k), x, y)) == pytest.approx(0, abs=ROUNDING)


def test_wrong_variants_at_the_sharp_instance() -> None:
    """The values of the chapter's table, recomputed by adaptive quadrature."""
    x, y, f = np.array([0.0, 1.0, 1.0]), np.array([1.0, 0.0, 0.0]), sharp_instance(0.5, 8)

    def right(weight, factor) -> float:
        def integrand(z: float) -> float:
            return weight(z) * float((f.grad(1 - np.exp(-z * x)) * factor(z)) @ (y - x))

        return quad(integrand, 0, 1, epsabs=1e-12)[0]

    left = f.value(y) / E - f.value(OURS.action(x))
    good = right(lambda z: math.exp(z - 1), lambda z: np.exp(-z * x))
    uniform = right(lambda z: 1 - 1 / E, lambda z: np.exp(-z * x))
    bare = right(lambda z: math.exp(z - 1), lambda z: 1.0)
    assert [left, good, uniform, bare] == pytest.approx([-0.13195, -0.13195, -0.19294, -0.16657], abs=6e-6)
    for variant, value in (("none", good), ("uniform z", uniform), ("no Jacobian", bare)):
        assert float(theory.wrong_gap(f, x, y, variant)) == pytest.approx(value - left, abs=1e-10)
    blunt = sharp_instance(0.5, 2)  # the instance that lets a uniform z through
    assert float(theory.wrong_gap(blunt, x, y, "uniform z")) > 0


def test_closed_forms_in_one_dimension() -> None:
    x = np.array([[0.0], [0.3], [1.0]])
    found = OURS.beta * OURS.linear_gain(IDENTITY, x)[:, 0]
    assert found == pytest.approx([1 - 1 / E, 0.532770, 1 / E], abs=1e-6)
    inner = OURS.beta * OURS.linear_gain(IDENTITY, np.array([[0.3]]))[0, 0]
    assert inner == pytest.approx((math.exp(-0.3) - math.exp(-1)) / 0.7, abs=ROUNDING)
    parabola = OURS.beta * OURS.linear_gain(PARABOLA, np.array([[0.5], [1.0]]))[:, 0]
    assert parabola == pytest.approx([0.258456, 0.097209], abs=1e-6)
    line = np.linspace(0, 1, 200)[:, None]
    assert (OURS.linear_gain(PARABOLA, line) > 0).all(), "no interior zero: ascent ends at 1"
    played = float(OURS.action(np.ones(1))[0])
    assert played == pytest.approx(0.632121, abs=1e-6) and PARABOLA.value(np.array([played])) == pytest.approx(0.2325, abs=1e-4)


def test_the_law_of_z() -> None:
    rng = np.random.default_rng(3)
    draws = OURS.draw_z(rng, 400_000)
    assert draws.mean() == pytest.approx(1 / (E - 1), abs=0.002) and draws.min() >= 0 and draws.max() <= 1
    for wrapper in (OURS, BoostedMonotone(0.5), AnchoredNonMonotone(np.zeros(2))):
        u = np.linspace(0.01, 0.99, 25)
        mass = [quad(lambda z: float(wrapper.density(np.array(z))), 0, q)[0] for q in wrapper.quantile(u)]  # noqa: B023
        assert mass == pytest.approx(u, abs=1e-10), "the quantile inverts the integral of the density"
        _, w = wrapper.nodes(40)
        assert w.sum() == pytest.approx(1, abs=ROUNDING)


def test_row_three_at_the_tight_instance() -> None:
    wrapper = AnchoredNonMonotone(np.zeros(2))
    z, w = wrapper.nodes(40)
    assert w @ z == pytest.approx(2 / 3, abs=ROUNDING)
    one = AnchoredNonMonotone(np.zeros(1))
    found = one.beta * one.linear_gain(PARABOLA, np.array([[0.5], [1.0]]))[:, 0]
    assert found == pytest.approx([0.25, 0.125], abs=ROUNDING)  # (3/8)(1 - 2x/3)
    x, y = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    assert float(wrapper.gap(tight_instance(), x, y)) == pytest.approx(0, abs=ROUNDING)
    assert wrapper.alpha == 0.25
    wrapper.alpha = 1 / E  # the paper's ratio is too much for this wrapper
    assert float(wrapper.gap(tight_instance(), x, y)) == pytest.approx(0.25 - 1 / E, abs=ROUNDING)


@pytest.mark.parametrize("m", [0.0, 0.3, 0.9])
def test_row_three_is_tight_for_every_anchor(m: float) -> None:
    """At u = (0, m) both sides are (1 - m)/4: along the curve grad f = (s (1 - m), 0) with s = 1 - z/2, and f(h(x)) = 0."""
    wrapper, x, y = AnchoredNonMonotone(np.array([0.0, m])), np.array([0.0, 1.0]), np.array([1.0, 0.0])
    assert wrapper.alpha == pytest.approx((1 - m) / 4, abs=1e-16)
    by_hand = quad(lambda z: (1 - z / 2) ** -3 * (1 - z / 2) * (1 - m) / 8, 0, 1, epsabs=1e-13)[0]
    assert wrapper.beta * wrapper.linear_gain(tight_instance(), x) @ (y - x) == pytest.approx(by_hand, abs=ROUNDING)
    assert float(wrapper.gap(tight_instance(), x, y)) == pytest.approx(0, abs=ROUNDING)


def test_what_is_played_is_the_end_of_the_curve() -> None:
    x = np.random.default_rng(12).random((20, 3))
    for wrapper in (OURS, BoostedMonotone(), AnchoredNonMonotone(np.array([0.2, 0.0, 0.6]))):
        assert wrapper.action(x) == pytest.approx(wrapper.point(x, 1.0), abs=1e-15)  # one rounding


@pytest.mark.parametrize("row", ["identity", "boosted", "anchored"])
def test_rows_one_to_three_on_their_own_classes(row: str) -> None:
    rng = np.random.default_rng(4)
    for _ in range(60):
        d = int(rng.integers(2, 8))
        f = QuadraticDR.random(d, rng, rng.uniform(0.05, 0.6))
        if row != "anchored":
            f = QuadraticDR(f.H, -f.H.sum(-1) + rng.random(d), np.zeros(()))  # monotone
        anchor = 0.8 * rng.random(d) * (rng.random() < 0.5)
        wrapper = AnchoredNonMonotone(anchor) if row == "anchored" else wrapper_named(row, d)
        x, y = corner_points(rng, 200, d), corner_points(rng, 200, d)
        assert normalised_gap(wrapper, f, x, y).min() > -1e-9


def test_weak_submodularity_and_curvature_of_row_one() -> None:
    assert IdentityMonotone(1, 0).alpha == 1 and IdentityMonotone(1, 1).alpha == 0.5
    weak = IdentityMonotone(0.5, 1)
    assert (weak.alpha, weak.beta) == (pytest.approx(0.25 / 1.25), pytest.approx(0.5 / 1.25))
    linear = QuadraticDR(np.zeros((3, 3)), np.array([1.0, 2.0, 0.5]), np.zeros(()))  # curvature 0: ratio 1 holds
    rng = np.random.default_rng(5)
    x, y = corner_points(rng, 300, 3), corner_points(rng, 300, 3)
    assert IdentityMonotone(1, 0).gap(linear, x, y).min() > -ROUNDING
    assert BoostedMonotone(0.5).alpha == pytest.approx(1 - math.exp(-0.5)) and BoostedMonotone(0.5).beta == pytest.approx(
        2 * (1 - math.exp(-0.5)))  # fmt: skip


@pytest.mark.parametrize("kind", ["quadratic", "cut", "revenue", "determinant"])
@pytest.mark.parametrize("row", ["exponential", "anchored", "boosted", "identity"])
def test_g_is_the_gradient_of_the_potential(kind: str, row: str) -> None:
    rng = np.random.default_rng(6)
    f, wrapper = random_function(kind, 3, rng), wrapper_named(row, 3)
    x, h = 0.1 + 0.8 * rng.random((5, 3)), 1e-5
    numeric = np.stack([wrapper.potential(f, x + h * e) - wrapper.potential(f, x - h * e) for e in np.eye(3)], axis=1) / (2 * h)
    # central differences: h^2 times third derivatives (about 1e-10), rounding 1e-16 / h = 1e-11, both times some tens
    assert numeric == pytest.approx(wrapper.linear_gain(f, x), abs=1e-8)
    assert wrapper.potential(f, 0 * x) == pytest.approx(0, abs=ROUNDING)


def test_the_curve_and_h_stay_in_the_set() -> None:
    rng = np.random.default_rng(7)
    for K in (BudgetBox(5, 2.0), random_packing(5, 3, rng)):
        x = K.project(rng.random((300, 5)) * 2)
        for z in (0.3, 1.0):
            p = OURS.point(x, z)
            assert K.contains(p, 1e-12).all() and (p <= z * x + 1e-16).all()
        assert np.array_equal(OURS.action(x), OURS.point(x, 1.0))
        a, b = OURS.action(x[:150]), OURS.action(x[150:])
        assert (np.linalg.norm(a - b, axis=1) <= np.linalg.norm(x[:150] - x[150:], axis=1) + 1e-15).all(), "h is 1-Lipschitz"


def test_the_lemma_by_enumeration_of_coins() -> None:
    """f(x (+) y) of a multilinear f is the expectation over two independent coins a coordinate, either of which may fall."""
    rng = np.random.default_rng(8)
    for _ in range(10):
        f = functions.random_cut(3, rng)
        x, y = rng.random(3), rng.random(3)
        expected = 0.0
        corners = functions._vertices(3)
        for one in corners:
            for two in corners:
                chance = np.prod(np.where(one > 0, x, 1 - x)) * np.prod(np.where(two > 0, y, 1 - y))
                expected += chance * f.value(np.maximum(one, two))
        joined = f.value(theory.probabilistic_sum(x, y))
        assert joined == pytest.approx(expected, abs=1e-12)
        assert joined >= (1 - x.max()) * f.value(y) - 1e-12


def test_a_query_averages_to_g_and_is_short() -> None:
    rng = np.random.default_rng(9)
    for row in ("exponential", "anchored", "boosted"):
        wrapper, f, n = wrapper_named(row, 4), QuadraticDR.random(4, rng), 100_000
        x = rng.random(4)
        point, factor = wrapper.query(np.broadcast_to(x, (n, 4)), rng)
        q = factor * f.grad(point)
        error = q.std(axis=0) / n**0.5
        assert (np.abs(q.mean(axis=0) - wrapper.linear_gain(f, x)) < 4.5 * error).all()  # 12 numbers in all
        assert (np.linalg.norm(q, axis=1) <= np.linalg.norm(f.grad(point), axis=1) * (1 + 1e-15)).all()


def test_the_steps_add_up() -> None:
    rng = np.random.default_rng(10)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    z, weights = (nodes + 1) / 2, weights / 2
    for kind in ("quadratic", "cut", "revenue", "determinant"):
        f = random_function(kind, 4, rng)
        x, y = corner_points(rng, 60, 4), corner_points(rng, 60, 4)
        steps, h = theory.proof_steps(f, x, y, z), 1e-5
        for slack in (steps.room, steps.concavity, steps.lemma, steps.slack):
            assert slack.min() > -1e-9
        # (v) is e^z times the sum of (iii) and (iv), by the algebra of the proof
        assert steps.slack == pytest.approx(np.exp(z)[:, None] * (steps.concavity + steps.lemma), abs=1e-10)
        ahead, behind = (np.exp(z + s)[:, None] * f.value(-np.expm1(-(z + s)[:, None, None] * x)) for s in (h, -h))
        assert (ahead - behind) / (2 * h) == pytest.approx(steps.growth, abs=1e-6)  # h^2 times third derivatives of some hundred
        assert theory.integrated(steps, weights) == pytest.approx(OURS.gap(f, x, y) - f.value(0 * x) / E, abs=1e-9)


def test_a_stationary_point_of_the_potential_is_worth_one_over_e() -> None:
    """T4: ascent on F_f from many starts, on random cuts whose optimum is enumerated."""
    from paperbook.papers.dr_submodular.baselines import best_set

    rng = np.random.default_rng(11)
    K = BudgetBox(6, 2.0)
    for _ in range(5):
        f = functions.random_cut(6, rng)
        x = K.project(rng.random((8, 6)))
        for _ in range(400):
            x = K.project(x + 0.1 * OURS.linear_gain(f, x, 12))
        g = OURS.linear_gain(f, x, 12)
        left = (g * (K.lmo(g) - x)).sum(-1)  # 0 at a stationary point
        assert (left < 0.01).all()
        assert (f.value(OURS.action(x)) >= best_set(f, 2)[1] / E - OURS.beta * left).all()


@pytest.mark.parametrize("eps", [0.0, 0.05, 0.9])
def test_the_trap_holds_plain_ascent_and_not_the_potential(eps: float) -> None:
    f, K, x = functions.trap(eps), BudgetBox(2, 1.0), np.array([0.0, 1.0])
    edge = np.stack([np.linspace(0, 1, 201), 1 - np.linspace(0, 1, 201)], axis=1)
    assert f.value(x) == eps and f.value(edge).max() == 1  # the optimum; inside K f is less, being concave along x_1
    assert f.grad(x) == pytest.approx([0, eps], abs=1e-16)
    assert ((edge - x) @ f.grad(x) <= 1e-16).all(), "stationary for f"
    assert K.project((x + 0.3 * f.grad(x))[None])[0] == pytest.approx(x, abs=1e-12), "a step of ascent leads back"
    assert (np.array([1.0, 0.0]) - x) @ (OURS.beta * OURS.linear_gain(f, x)) == pytest.approx((1 - eps) / E, abs=ROUNDING)


def test_a_negative_corner_breaks_the_theorem() -> None:
    x, y = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    for b in (0.25, 0.6, 1.0):
        f = QuadraticDR(np.array([[0.0, -2.0], [-2.0, 0.0]]), np.array([1.0, b]), np.zeros(()))
        assert float(OURS.gap(f, x, y)) == pytest.approx((1 - 2 / E) * (b - 1), abs=ROUNDING)


def test_what_the_theorem_does_not_cover_is_refused() -> None:
    from paperbook.papers.dr_submodular.sets import Polytope

    line = Polytope([[1.0, 1.0], [-1.0, -1.0]], [1.0, -1.0])
    with pytest.raises(ValueError, match="K: expected a down-closed set"):
        OURS.check(tight_instance(), line)
    with pytest.raises(ValueError, match="K: expected a set that contains 0"):
        BoostedMonotone().check(tight_instance(), line)
    with pytest.raises(ValueError, match="u: expected an anchor in K"):
        AnchoredNonMonotone(np.array([0.2, 0.2])).check(tight_instance(), line)
    AnchoredNonMonotone(np.array([0.5, 0.5])).check(tight_instance(), line)
    negative = QuadraticDR(np.zeros((2, 2)), np.array([1.0, -0.5]), np.zeros(()))
    with pytest.raises(ValueError, match=r"f: expected f >= 0 on the whole box, got -0\.5 at the vertex with ones at \[1\]"):
        OURS.check(negative, BudgetBox(2, 1.0))
    with pytest.raises(ValueError, match="f, K: expected the same dimension, got 2 and 3"):
        OURS.check(tight_instance(), BudgetBox(3, 1.0))
    for bad in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="gamma"):
            BoostedMonotone(bad)
    with pytest.raises(ValueError, match="u: expected an anchor with all coordinates below 1"):
        AnchoredNonMonotone(np.ones(2))
    with pytest.raises(ValueError, match="variant: expected one of"):
        theory.wrong_gap(tight_instance(), np.zeros(2), np.ones(2), "other")
    with pytest.raises(ValueError, match=r"x, y: expected the same shape \(\.\.\., 2\), got \(3,\) and \(3,\)"):
        theory.proof_steps(tight_instance(), np.zeros(3), np.ones(3), np.array([0.5]))
    with pytest.raises(TypeError, match=r"rng: expected a numpy\.random\.Generator or a torch\.Generator"):
        OURS.draw_z(np.random.RandomState(0), 3)
