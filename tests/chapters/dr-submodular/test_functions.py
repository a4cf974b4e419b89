"""Reward functions: gradients, values of sets, expectations over random sets and least values, each by a route of its own."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from paperbook.papers.dr_submodular import functions
from paperbook.papers.dr_submodular.functions import (
    CutExtension,
    DRSubmodular,
    LambdaDR,
    QuadraticDR,
    RevenueExtension,
    Smoothed,
    SoftmaxDPP,
    check_dr_submodular,
    check_nonnegative,
    corner_points,
    drifting_trap,
    is_dr_submodular,
    min_on_vertices,
    random_cut,
    random_dpp,
    random_revenue,
    sharp_instance,
    stacked,
    summed,
    take,
    tight_instance,
    trap,
)

ROUNDING = 1e-12  # some hundred operations on numbers of size 1 to 10
MAKERS = {
    "quadratic": lambda rng: QuadraticDR.random(4, rng),
    "cut": lambda rng: random_cut(5, rng),
    "revenue": lambda rng: random_revenue(4, rng),
    "determinant": lambda rng: random_dpp(4, rng),
    "sharp": lambda rng: sharp_instance(0.5, 8),
    "trap": lambda rng: trap(0.05),
    "drifting": lambda rng: drifting_trap(1, 4),
    "smoothed": lambda rng: Smoothed(QuadraticDR.random(4, rng), 0.1),
}


def in_torch(f):
    """The same function made of tensors."""
    if isinstance(f, QuadraticDR):
        return QuadraticDR(*(torch.as_tensor(part) for part in (f.H, f.h, f.c)))
    if isinstance(f, Smoothed):
        return Smoothed(in_torch(f.f), f.delta)
    if isinstance(f, CutExtension):
        return CutExtension(torch.as_tensor(f.W))
    if isinstance(f, RevenueExtension):
        return RevenueExtension(torch.as_tensor(f.P))
    return SoftmaxDPP(torch.as_tensor(f.L)) if isinstance(f, SoftmaxDPP) else f


def vertices(d: int) -> np.ndarray:
    return np.array(list(itertools.product((0.0, 1.0), repeat=d)))


# gradients, and the two kinds of arrays


@pytest.mark.parametrize("kind", MAKERS)
def test_gradients_against_finite_differences(kind: str) -> None:
    rng = np.random.default_rng(1)
    f = MAKERS[kind](rng)
    x, step = 0.05 + 0.9 * rng.random((30, f.dim)), 1e-5
    moves = step * np.eye(f.dim)
    central = np.stack([(f.value(x + move) - f.value(x - move)) / (2 * step) for move in moves], axis=-1)
    scale = max(1.0, np.abs(central).max())
    # rounding 1e-16/step = 1e-11; truncation step^2 f'''/6, third derivatives up to 1e4 (a determinant near a small eigenvalue)
    assert np.abs(f.grad(x) - central).max() < 1e-6 * scale


@pytest.mark.parametrize("kind", MAKERS)
def test_gradients_against_automatic_differentiation_and_numpy_against_torch(kind: str) -> None:
    rng = np.random.default_rng(2)
    f = MAKERS[kind](rng)
    x = corner_points(rng, 40, f.dim)
    twin, tensor = in_torch(f), torch.as_tensor(x).requires_grad_(True)
    values = twin.value(tensor)
    values.sum().backward()
    scale = max(1.0, np.abs(f.grad(x)).max())  # inverting a matrix of condition 100 costs two more digits
    assert np.abs(values.detach().numpy() - f.value(x)).max() < ROUNDING * scale
    assert np.abs(tensor.grad.numpy() - f.grad(x)).max() < 100 * ROUNDING * scale
    assert np.abs(twin.grad(tensor.detach()).numpy() - f.grad(x)).max() < 100 * ROUNDING * scale
    assert values.dtype == tensor.dtype == twin.grad(tensor).dtype == torch.float64


@pytest.mark.parametrize("kind", MAKERS)
def test_a_batch_is_a_loop(kind: str) -> None:
    rng = np.random.default_rng(3)
    f = MAKERS[kind](rng)
    assert isinstance(f, DRSubmodular)
    x = rng.random((3, 2, f.dim))
    values, gradients = f.value(x), f.grad(x)
    assert values.shape == (3, 2) and gradients.shape == x.shape
    for i, j in itertools.product(range(3), range(2)):
        assert values[i, j] == pytest.approx(float(f.value(x[i, j])), abs=ROUNDING)
        assert gradients[i, j] == pytest.approx(f.grad(x[i, j]), abs=ROUNDING)


def test_a_batch_of_quadratics_meets_the_last_axes_of_the_points() -> None:
    rng = np.random.default_rng(4)
    f = QuadraticDR.random(3, rng, batch=(5,))
    x = rng.random((7, 5, 3))
    for node, b in itertools.product(range(7), range(5)):
        one = QuadraticDR(f.H[b], f.h[b], f.c[b])
        assert f.value(x)[node, b] == pytest.approx(float(one.value(x[node, b])), abs=ROUNDING)
        assert f.grad(x)[node, b] == pytest.approx(one.grad(x[node, b]), abs=ROUNDING)


# sets: values at vertices, and expectations over random sets between them


def expected_over_sets(f, x: np.ndarray) -> float:
    """E f(1_S), i in S with probability x_i, by all 2^d sets."""
    total = 0.0
    for S in vertices(f.dim):
        total += math.prod(xi if s else 1 - xi for xi, s in zip(x, S, strict=True)) * float(f.value(S))
    return total


@pytest.mark.parametrize("kind", ["cut", "revenue"])
def test_extensions_of_sets_are_expectations_over_independent_coins(kind: str) -> None:
    rng = np.random.default_rng(5)
    f = MAKERS[kind](rng)
    for x in rng.random((6, f.dim)):
        assert float(f.value(x)) == pytest.approx(expected_over_sets(f, x), abs=ROUNDING)


def test_the_cut_at_vertices_is_a_loop_over_arcs() -> None:
    f = random_cut(5, np.random.default_rng(6))
    for S in vertices(5):
        cut = sum(f.W[i, j] for i in range(5) for j in range(5) if S[i] == 1 and S[j] == 0)
        assert float(f.value(S)) == pytest.approx(cut, abs=ROUNDING)


def test_a_symmetric_cut_counts_each_edge_once() -> None:
    path = np.zeros((3, 3))
    path[0, 1] = path[1, 0] = 2.0
    path[1, 2] = path[2, 1] = 3.0
    values = CutExtension(path).value(np.array([[1.0, 0, 0], [0, 1.0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 1]]))
    assert values.tolist() == [2.0, 5.0, 3.0, 5.0, 0.0]


def test_the_revenue_at_vertices_by_all_outcomes_of_the_persuasions() -> None:
    f = random_revenue(4, np.random.default_rng(7))
    for S in vertices(4):
        owners, revenue = np.flatnonzero(S), 0.0
        for i in np.flatnonzero(S == 0):  # only nodes that were given nothing pay
            for outcome in itertools.product((0, 1), repeat=len(owners)):
                chance = math.prod(f.P[i, j] if hit else 1 - f.P[i, j] for j, hit in zip(owners, outcome, strict=True))
                revenue += chance * any(outcome)
        assert float(f.value(S)) == pytest.approx(revenue, abs=ROUNDING)


def test_the_determinant_at_vertices_is_that_of_the_chosen_rows() -> None:
    f = random_dpp(5, np.random.default_rng(8))
    least = np.inf
    for S in vertices(5):
        chosen = np.flatnonzero(S)
        logdet = math.log(np.linalg.det(f.L[np.ix_(chosen, chosen)])) if len(chosen) else 0.0
        assert float(f.value(S)) == pytest.approx(logdet + f.offset, abs=1e-10)  # determinants of size 1e-4 lose digits
        least = min(least, logdet)
    assert f.offset == pytest.approx(-least, abs=1e-10) and f.offset > 0
    unshifted = SoftmaxDPP(f.L, shift=False)
    assert unshifted.offset == 0 and float(unshifted.value(np.zeros(5))) == pytest.approx(0, abs=ROUNDING)


def test_the_shift_by_interlacing_is_a_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    L = random_dpp(10, np.random.default_rng(9)).L
    exact = SoftmaxDPP(L).offset
    monkeypatch.setattr(functions, "VERTEX_DIMENSIONS", 9)  # so that ten coordinates take the route of the large ones
    f = SoftmaxDPP(L)
    assert f.offset > exact > 0, "never too small, and another route than the vertices"
    assert f.value(vertices(10)).min() >= 0
    # the bound is reached where the kernel is diagonal
    diagonal = SoftmaxDPP(np.diag([0.5, 0.2, 3.0] + [1.0] * 7))
    assert diagonal.value(vertices(10)).min() == pytest.approx(0, abs=ROUNDING)


# quadratics


def test_the_value_of_a_quadratic_by_hand() -> None:
    f = QuadraticDR(np.array([[-2.0, -1.0], [-1.0, 0.0]]), np.array([3.0, 0.5]), np.array(0.25))
    # -x^2 - x y + 3 x + y/2 + 1/4 at (1/2, 1): -1/4 - 1/2 + 3/2 + 1/2 + 1/4
    assert float(f.value(np.array([0.5, 1.0]))) == pytest.approx(1.5, abs=ROUNDING)
    assert f.grad(np.array([0.5, 1.0])).tolist() == [1.0, 0.0]


def test_random_quadratics_have_least_value_zero() -> None:
    f = QuadraticDR.random(2, np.random.default_rng(10), batch=(40,))
    grid = np.array(list(itertools.product(np.linspace(0, 1, 41), repeat=2)))[:, None]
    assert f.value(grid).min(axis=0) == pytest.approx(np.zeros(40), abs=ROUNDING), "the grid has the vertices in it"
    one = QuadraticDR.random(7, np.random.default_rng(11), rho=0.6)
    assert one.value(vertices(7)).min() == pytest.approx(0, abs=ROUNDING) == min_on_vertices(one)
    assert one.value(np.random.default_rng(12).random((20_000, 7))).min() > 0
    assert (one.H <= 0).all() and one.H.min() >= -1 and np.array_equal(one.H, one.H.T)
    assert one.h == pytest.approx(-0.6 * one.H.sum(axis=1), abs=ROUNDING)


def test_random_quadratics_are_not_monotone_where_rho_is_small() -> None:
    f = QuadraticDR.random(4, np.random.default_rng(13), rho=0.3, batch=(20,))
    assert (f.grad(np.ones((20, 4))) < 0).all(), "every coordinate falls at the far corner"
    assert (f.grad(np.zeros((20, 4))) > 0).all()


def test_the_gradient_bound_of_a_quadratic_is_reached_and_holds() -> None:
    f = QuadraticDR.random(3, np.random.default_rng(14), batch=(30,))
    norms = np.linalg.norm(f.grad(vertices(3)[:, None]), axis=-1).max(axis=0)
    assert (norms <= f.lipschitz() + ROUNDING).all()
    # h = -rho H 1 with rho below 1/2: all coordinates have their largest gradient at the far corner
    assert f.lipschitz() == pytest.approx(norms, abs=ROUNDING)


def test_smoothing_against_monte_carlo() -> None:
    rng = np.random.default_rng(15)
    f = QuadraticDR.random(3, rng)
    smooth, x, delta = Smoothed(f, 0.2), np.array([0.3, 0.5, 0.7]), 0.2
    n = 200_000
    v = rng.standard_normal((n, 3))
    ball = v / np.linalg.norm(v, axis=1, keepdims=True) * rng.random((n, 1)) ** (1 / 3)
    draws = f.value(x + delta * ball) - f.value(x)
    change = float(smooth.value(x) - f.value(x))
    assert abs(draws.mean() - change) < 4 * draws.std() / math.sqrt(n)
    assert smooth.dim == 3 and change < 0
    # the same along +v and -v: the linear part goes and the standard error is twenty times smaller than the change
    even = (f.value(x + delta * ball) + f.value(x - delta * ball)) / 2 - f.value(x)
    assert abs(even.mean() - change) < 4 * even.std() / math.sqrt(n) < 0.05 * abs(change)


def test_members_and_weighted_sums_of_a_family() -> None:
    rng = np.random.default_rng(16)
    parts = [QuadraticDR.random(3, rng) for _ in range(4)]
    family, x = stacked(parts), rng.random((6, 3))
    assert family.H.shape == (4, 3, 3) and family.dim == 3
    for i, part in enumerate(parts):
        assert np.array_equal(take(family, i).value(x), part.value(x))
    chosen = take(family, np.array([3, 3, 0]))
    assert chosen.grad(x[:3]) == pytest.approx(np.stack([parts[3].grad(x[0]), parts[3].grad(x[1]), parts[0].grad(x[2])]))
    weights = np.array([[1.0, 0.0, 2.0, 0.5], [0.0, 3.0, 0.0, 0.0]])
    total = summed(family, weights)
    for row in range(2):
        by_hand = sum(w * part.value(x) for w, part in zip(weights[row], parts, strict=True))
        assert take(total, row).value(x) == pytest.approx(by_hand, abs=10 * ROUNDING)
    assert summed(family, np.ones(4)).value(x) == pytest.approx(sum(part.value(x) for part in parts), abs=10 * ROUNDING)


def test_one_constant_serves_a_whole_family() -> None:
    family = QuadraticDR(np.zeros((3, 2, 2)), np.arange(6.0).reshape(3, 2), 0.5)
    x = np.array([1.0, 0.0])
    assert [float(take(family, i).value(x)) for i in range(3)] == [0.5, 2.5, 4.5]
    assert float(summed(family, np.array([1.0, 1.0, 2.0])).value(x)) == 0.5 + 2.5 + 2 * 4.5


# the instances that decide


def test_the_deciding_instances_by_their_formulas() -> None:
    rng = np.random.default_rng(17)
    x = rng.random((50, 3))
    assert tight_instance().value(x[:, :2]) == pytest.approx(x[:, 0] * (1 - x[:, 1]), abs=ROUNDING)
    assert trap(0.05).value(x[:, :2]) == pytest.approx(x[:, 0] * (1 - x[:, 1]) + 0.05 * x[:, 1], abs=ROUNDING)
    third = 0.5 * (1 - (1 - x[:, 2]) ** 8)
    assert sharp_instance().value(x) == pytest.approx(x[:, 0] * (1 - x[:, 1]) + (1 - x[:, 0]) * third, abs=ROUNDING)
    for c in range(3):
        others = [j for j in range(3) if j != c]
        by_hand = x[:, c] * (1 - x[:, others].sum(axis=1) / 2)
        assert drifting_trap(c, 3).value(x) == pytest.approx(by_hand, abs=ROUNDING)


def test_the_trap_is_stationary_at_the_bad_corner() -> None:
    f, bad = trap(0.05), np.array([0.0, 1.0])
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # of {x_1 + x_2 <= 1}
    assert ((corners - bad) @ f.grad(bad)).max() <= 0
    assert float(f.value(bad)) == pytest.approx(0.05) and f.value(corners).max() == 1


# is it DR-submodular? is it non-negative?


@pytest.mark.parametrize("kind", MAKERS)
def test_the_chapters_functions_pass_both_checks(kind: str) -> None:
    f = MAKERS[kind](np.random.default_rng(18))
    assert is_dr_submodular(f, np.random.default_rng(19))
    if kind != "smoothed":  # smoothing lowers a quadratic, whose least value was 0
        assert check_nonnegative(f) is None


def quadratic_form(H: np.ndarray) -> LambdaDR:
    return LambdaDR(lambda x: 0.5 * (x * (x @ H)).sum(-1), lambda x: x @ H, len(H))


def test_one_positive_entry_off_the_diagonal_is_found() -> None:
    H = -np.ones((4, 4))
    H[1, 3] = H[3, 1] = 1e-3  # 1,000 times smaller than the others: a pair that moves everywhere never shows it
    assert is_dr_submodular(quadratic_form(-np.ones((4, 4))), np.random.default_rng(20))
    assert not is_dr_submodular(quadratic_form(H), np.random.default_rng(20))
    with pytest.raises(ValueError, match=r"^f: expected a DR-submodular .* coordinate [13] of the gradient rises by"):
        check_dr_submodular(quadratic_form(H), np.random.default_rng(20))


@pytest.mark.parametrize(("value", "grad"), [
    (lambda x: (x * x).sum(-1), lambda x: 2 * x),  # convex along each coordinate
    (lambda x: x[..., 0] * x[..., 1], lambda x: x[..., ::-1]),  # supermodular
    # submodular and yet not DR: convex along the first coordinate, with a mixed derivative of -3
    (lambda x: x[..., 0] ** 2 - 3 * x[..., 0] * x[..., 1],
     lambda x: np.stack([2 * x[..., 0] - 3 * x[..., 1], -3 * x[..., 0]], axis=-1)),
])  # fmt: skip
def test_other_functions_fail(value, grad) -> None:
    assert not is_dr_submodular(LambdaDR(value, grad, 2), np.random.default_rng(21))


def test_an_error_of_the_function_itself_is_no_verdict() -> None:
    def broken(x):
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="^no such column"):
        is_dr_submodular(LambdaDR(broken, broken, 2), np.random.default_rng(22))


def test_the_check_names_the_vertex() -> None:
    # x_1 + x_3 - 2.5 x_2 x_4 is negative only with 2 and 4, and least without 1 and 3
    H = np.zeros((4, 4))
    H[1, 3] = H[3, 1] = -2.5
    f = QuadraticDR(H, np.array([1.0, 0.0, 1.0, 0.0]), np.zeros(()))
    with pytest.raises(ValueError, match=r"^f: expected f >= 0 .* got -2.5 at the vertex with ones at \[1, 3\]"):
        check_nonnegative(f)
    check_nonnegative(QuadraticDR(H, f.h, np.array(2.5)))
    family = QuadraticDR(np.stack([0 * H, H]), np.stack([f.h, f.h]), np.array([0.0, 2.0]))
    with pytest.raises(ValueError, match=r"got -0.5 at the vertex with ones at \[1, 3\]"):
        check_nonnegative(family)
    assert min_on_vertices(f) == -2.5


def test_large_functions_are_checked_at_a_sample() -> None:
    d = 20
    f = LambdaDR(lambda x: 15 - x.sum(-1), lambda x: -1 + 0 * x, d)  # negative only with more than 15 ones of 20
    with pytest.raises(ValueError, match="got -5 at the vertex"):
        check_nonnegative(f)
    assert check_nonnegative(LambdaDR(lambda x: 20 - x.sum(-1), f.grad, d), np.random.default_rng(23)) is None
    with pytest.raises(ValueError, match="^f: expected at most 16 coordinates to look at all vertices, got 20"):
        min_on_vertices(f)


def test_checks_take_functions_of_tensors() -> None:
    for kind in ("quadratic", "cut", "revenue", "determinant"):
        f = in_torch(MAKERS[kind](np.random.default_rng(24)))
        assert is_dr_submodular(f, np.random.default_rng(25)) and check_nonnegative(f) is None


def test_corner_points_reach_corners_and_the_inside() -> None:
    x = corner_points(np.random.default_rng(26), 4000, 3)
    corner = (x == 0) | (x == 1)
    # a coordinate is at a corner with probability 1/2, so the 12,000 of them give .5 within 4 standard errors of rows
    assert abs(corner.mean() - 0.5) < 4 * 0.4 / math.sqrt(4000)
    assert (x >= 0).all() and (x <= 1).all() and corner.all(axis=1).any() and (~corner).all(axis=1).any()
    tensor = corner_points(torch.Generator().manual_seed(0), 10, 3)
    assert tensor.shape == (10, 3) and tensor.dtype == torch.float64


def test_a_sum_of_many_rounds_is_symmetric_enough() -> None:
    """Its entries are as large as the number of rounds, and their rounding with them: the tolerance is relative."""
    family = QuadraticDR.random(6, np.random.default_rng(1), batch=(50,))
    counts = np.random.default_rng(2).integers(20_000, 30_000, size=(40, 50)).astype(float)
    total = summed(family, counts)
    assert np.abs(total.H - total.H.swapaxes(-1, -2)).max() > 1e-12, "else the test shows nothing"
    with pytest.raises(ValueError, match="H: expected a symmetric matrix"):
        QuadraticDR(np.array([[0.0, -1.0], [-1.0 - 1e-9, 0.0]]), np.ones(2), np.zeros(()))
