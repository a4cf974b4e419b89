"""Convex sets: projections, linear programmes, separation, down-closedness and shrinking, each against a route of its own."""

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import linprog, minimize, nnls

from paperbook.papers.dr_submodular.sets import BudgetBox, ConvexSet, Polytope, random_packing

BUDGETS = [BudgetBox(4, 1.5), BudgetBox(5, 2), BudgetBox(3, 0.2), BudgetBox(3, 7.0), BudgetBox(1, 0.4), BudgetBox(4, 4.0)]
PACKING = random_packing(4, 3, np.random.default_rng(5))
CUT_OFF = Polytope([[1.0, -1.0, 0.0], [-1.0, -1.0, -1.0], [2.0, 1.0, 0.5]], [0.2, -0.5, 1.9])  # neither 0 nor down-closed
POLYTOPES = [PACKING, CUT_OFF, Polytope(np.ones((1, 4)), [1.5])]
SETS = BUDGETS + POLYTOPES
ROUNDING = 1e-12  # a few hundred operations on numbers of size 1


def name(K):
    return f"box{K.dim}-{K.budget}" if isinstance(K, BudgetBox) else f"polytope{K.A.shape[0]}x{K.dim}"


def inequalities(K):
    """K = {x : N x <= n}, written out here a second time."""
    A, b = (np.ones((1, K.dim)), [K.budget]) if isinstance(K, BudgetBox) else (K.A, K.b)
    return np.vstack([A, np.eye(K.dim), -np.eye(K.dim)]), np.concatenate([b, np.ones(K.dim), np.zeros(K.dim)])


def points_of(K, rng, n=300):
    """Points of K by rejection from the box, scaled down first where the set is small."""
    N, right = inequalities(K)
    z = rng.random((200_000, K.dim)) * (min(1.0, 2 * K.budget / K.dim) if isinstance(K, BudgetBox) else 1.0)
    found = z[(z @ N.T <= right).all(axis=1)][:n]
    assert len(found) > 50
    return found


def outside_points(K, rng, n=60):
    scales = np.repeat([0.3, 1.0, 5.0, 1e3], n // 4)[:, None]
    return 0.4 + scales * rng.normal(size=(len(scales), K.dim))


def programme(K, c):
    """Maximum of <c, x> over K by a linear programme."""
    N, right = inequalities(K)
    return -linprog(-c, A_ub=N, b_ub=right, bounds=[(None, None)] * K.dim, method="highs").fun


# projection


@pytest.mark.parametrize("K", BUDGETS, ids=name)
def test_the_projection_onto_a_budget_box_is_that_of_a_bisection(K):
    y = outside_points(K, np.random.default_rng(1))
    low, high = np.zeros((len(y), 1)), np.maximum(y.max(axis=1, keepdims=True), 0.0)
    for _ in range(100):  # halves an interval of 1e3 down to neighbouring numbers
        middle = (low + high) / 2
        over = np.clip(y - middle, 0, 1).sum(axis=1, keepdims=True) > K.budget
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    # the bisected multiplier has an error of eps 1e3 = 2e-13
    np.testing.assert_allclose(K.project(y), np.clip(y - high, 0, 1), atol=1e-11)


@pytest.mark.parametrize("K", POLYTOPES, ids=name)
def test_the_projection_onto_a_polytope_is_that_of_sequential_quadratic_programming(K):
    N, right = inequalities(K)
    rng = np.random.default_rng(2)
    for y in 0.4 + rng.normal(size=(8, K.dim)):
        rows = [{"type": "ineq", "fun": lambda x: right - N @ x, "jac": lambda x: -N}]
        found = minimize(lambda x, y=y: ((x - y) ** 2).sum() / 2, K.centre(), jac=lambda x, y=y: x - y, constraints=rows,
                         method="SLSQP", options={"ftol": 1e-14, "maxiter": 200})  # fmt: skip
        np.testing.assert_allclose(K.project(y), found.x, atol=1e-6)  # SLSQP stops on the objective: root of 1e-14, times 10


@pytest.mark.parametrize("K", SETS, ids=name)
def test_a_projection_satisfies_the_variational_inequality(K):
    rng = np.random.default_rng(3)
    y = outside_points(K, rng)
    p = K.project(y)
    N, right = inequalities(K)
    assert (p @ N.T <= right + ROUNDING).all()
    # <y - p, z - p> <= 0 for the worst z of K, which a linear programme finds
    worst = np.array([programme(K, row) for row in y - p]) - ((y - p) * p).sum(axis=1)
    assert (worst <= 1e-9 * (1 + np.abs(y).max(axis=1))).all()  # HiGHS keeps constraints to 1e-9 or so


@pytest.mark.parametrize("K", SETS, ids=name)
def test_projecting_is_idempotent_and_brings_no_two_points_apart(K):
    rng = np.random.default_rng(4)
    y, other = outside_points(K, rng), outside_points(K, rng)
    p, q = K.project(y), K.project(other)
    np.testing.assert_allclose(K.project(p), p, atol=ROUNDING)
    assert (np.linalg.norm(p - q, axis=1) <= np.linalg.norm(y - other, axis=1) + ROUNDING).all()
    inside = points_of(K, rng)
    np.testing.assert_array_equal(K.project(inside), inside)


FAR = [BudgetBox(5, 2.0), BudgetBox(5, 0.7), BudgetBox(5, 1e-12), random_packing(5, 3, np.random.default_rng(0))]


@pytest.mark.parametrize("K", FAR, ids=name)
def test_nothing_is_lost_where_the_point_is_far_away(K):
    y = 1e6 * np.random.default_rng(6).normal(size=(200, K.dim)) + np.array([1e6, 1e6, 0.0, 0.0, 0.0])
    N, right = inequalities(K)
    p = K.project(y)
    assert (p @ N.T <= right + 1e-10).all()  # eps 1e6, the spacing of the numbers that come in


def test_a_far_point_is_projected_to_the_last_digit():
    # quarters are exact at 1e6; by hand lam = 1e6 + 1/8, since (1/4 + 1/2 + 3/4 + 1) - 4/8 = 2
    shifted = BudgetBox(5, 2.0).project(1e6 + np.array([0.0, 0.25, 0.5, 0.75, 1.0]))
    np.testing.assert_allclose(shifted, [0.0, 0.125, 0.375, 0.625, 0.875], atol=ROUNDING)


def test_a_budget_below_rounding_is_no_exception():
    y = np.random.default_rng(0).normal(size=(100, 30))  # summed slopes do not come down to 1e-16 in some of these rows
    assert BudgetBox(30, 1e-16).project(y).sum(axis=1).max() < ROUNDING


def test_projections_at_corners_and_ties():
    K = BudgetBox(4, 2)
    cases = [
        ([5.0, 5, 5, 5], [0.5] * 4), ([9.0, 9, 0, 0], [1, 1, 0, 0]), ([-3.0, -1, 0, -2], [0] * 4), ([0.5] * 4, [0.5] * 4),
        ([3.0, 1, 1, 0], [1, 0.5, 0.5, 0]), ([1.0, 1, 1, 1], [0.5] * 4), ([2.0, 0.6, 0.6, -1], [1, 0.5, 0.5, 0]),
    ]  # fmt: skip
    for y, expected in cases:
        np.testing.assert_allclose(K.project(np.array(y)), expected, atol=ROUNDING)


# linear programmes


@pytest.mark.parametrize("K", SETS, ids=name)
def test_the_linear_oracle_reaches_the_maximum(K):
    rng = np.random.default_rng(7)
    c = rng.normal(size=(20, K.dim))
    x = K.lmo(c)
    N, right = inequalities(K)
    assert (x @ N.T <= right + 1e-9).all()  # HiGHS feasibility
    np.testing.assert_allclose((c * x).sum(axis=1), [programme(K, row) for row in c], atol=1e-8)


def test_the_linear_oracle_of_a_budget_box_by_hand():
    K = BudgetBox(4, 1.5)
    np.testing.assert_array_equal(K.lmo(np.array([[1.0, 3, 2, -1], [-1, -1, -1, -1], [5, -1, 0, 0]])),
                                  [[0, 1, 0.5, 0], [0, 0, 0, 0], [1, 0, 0, 0]])  # fmt: skip


@pytest.mark.parametrize("K", [BudgetBox(4, 1.5), PACKING], ids=name)
def test_the_linear_oracle_below_an_upper_bound(K):
    rng = np.random.default_rng(8)
    N, right = inequalities(K)
    for c, upper in zip(rng.normal(size=(15, 4)), rng.random((15, 4)), strict=True):
        x = K.lmo(c, upper)
        best = -linprog(-c, A_ub=np.vstack([N, np.eye(4)]), b_ub=np.concatenate([right, upper]), bounds=[(None, None)] * 4).fun
        assert (x <= upper + ROUNDING).all() and (N @ x <= right + 1e-9).all()
        assert c @ x == pytest.approx(best, abs=1e-8)


def test_an_upper_bound_that_leaves_no_point_is_refused():
    with pytest.raises(ValueError, match="upper: expected bounds that leave a point"):
        CUT_OFF.lmo(np.ones(3), np.full(3, 0.1))


# separation


@pytest.mark.parametrize("K", SETS, ids=name)
def test_separation_separates_and_is_silent_inside(K):
    rng = np.random.default_rng(9)
    z = points_of(K, rng)
    N, right = inequalities(K)
    y = outside_points(K, rng)
    y = y[(y @ N.T > right + 1e-6).any(axis=1)]
    w = K.separate(y)
    np.testing.assert_allclose(np.linalg.norm(w, axis=1), 1.0, atol=ROUNDING)
    assert (np.einsum("nd,nmd->nm", w, y[:, None] - z) > 0).all()
    # w is the normal of the constraint that is furthest away
    lengths = np.linalg.norm(N, axis=1, keepdims=True)
    furthest = np.argmax((y @ N.T - right) / lengths[:, 0], axis=1)
    np.testing.assert_allclose(w, (N / lengths)[furthest], atol=ROUNDING)
    assert not K.separate(z).any()
    assert not K.separate(K.project(y)).any()


@pytest.mark.parametrize("K", SETS, ids=name)
def test_membership_agrees_with_the_inequalities(K):
    rng = np.random.default_rng(10)
    N, right = inequalities(K)
    y = rng.random((500, K.dim)) * 1.2 - 0.1
    np.testing.assert_array_equal(K.contains(y), (y @ N.T <= right + 1e-9).all(axis=1))
    assert K.contains(points_of(K, rng)).all()
    assert K.contains(y, tol=10.0).all()


# NumPy and torch, batches


@pytest.mark.parametrize("K", SETS, ids=name)
@pytest.mark.parametrize("method", ["project", "lmo", "separate", "contains"])
def test_torch_gets_the_numbers_of_numpy(K, method):
    y = outside_points(K, np.random.default_rng(11), 24).reshape(2, 12, K.dim)
    ours, theirs = getattr(K, method)(y), getattr(K, method)(torch.as_tensor(y))
    assert isinstance(ours, np.ndarray) and isinstance(theirs, torch.Tensor)
    assert ours.shape == tuple(theirs.shape) == (y.shape[:-1] if method == "contains" else y.shape)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=ROUNDING, atol=ROUNDING)
    single = getattr(K, method)(y[1, 3])  # one point, no batch
    np.testing.assert_allclose(single, ours[1, 3], rtol=ROUNDING, atol=ROUNDING)
    if method != "contains":
        low = getattr(K, method)(torch.as_tensor(y, dtype=torch.float32))
        assert low.dtype == torch.float32


@pytest.mark.parametrize("method", ["project", "lmo", "separate", "contains"])
def test_a_budget_box_never_waits_for_the_host(method):
    # tensors of the meta device have no values: a branch on one, or .item(), raises
    found = getattr(BudgetBox(4, 1.5), method)(torch.empty((7, 4), device="meta", dtype=torch.float64))
    assert found.device.type == "meta" and found.shape[0] == 7


# shape of the sets


@pytest.mark.parametrize(("K", "closed"), [
    (BudgetBox(3, 1.2), True), (PACKING, True), (CUT_OFF, False),
    (Polytope([[1.0, 1, 1], [-1, -1, -1]], [1.5, -1.5]), False),       # sum x = 1.5
    (Polytope([[1.0, -1, 0]], [0.0]), False),                          # x_1 <= x_2
    (Polytope([[1.0, -1, 0], [1, 0, 0]], [0.5, 0.5]), True),           # the mixed row says nothing that x_1 <= 1/2 does not
    (Polytope([[1.0, -1, 0], [1, 0, 0]], [0.5, 0.6]), False),
    (Polytope([[-1.0, -1, 0]], [0.0]), True),                          # holds everywhere
], ids=["budget", "packing", "cut off", "equality", "order", "redundant row", "biting row", "empty row"])  # fmt: skip
def test_down_closed_sets_are_recognised(K, closed):
    assert K.is_down_closed() is closed and isinstance(K, ConvexSet)
    # brute force: vertices of K (with scaled copies of them) times every 0/1 pattern
    rng = np.random.default_rng(12)
    tops = K.lmo(rng.normal(size=(200, K.dim)))
    N, right = inequalities(K)
    below = np.concatenate([tops * np.array(mask) for mask in itertools.product([0.0, 1.0], repeat=K.dim)])
    assert bool((below @ N.T <= right + 1e-9).all()) is closed


@pytest.mark.parametrize("K", SETS, ids=name)
def test_the_inner_ball_is_inside_and_cannot_grow(K):
    centre, radius = K.inner_ball()
    v = np.random.default_rng(13).normal(size=(500, K.dim))
    assert K.contains(centre + radius * v / np.linalg.norm(v, axis=1, keepdims=True)).all()
    N, right = inequalities(K)
    lengths = np.linalg.norm(N, axis=1)
    distances = (right - N @ centre) / lengths
    touched = distances < radius + 1e-8
    assert distances.min() == pytest.approx(radius, abs=1e-9)
    # optimality: 0 is a convex combination of the normals it touches, so every move comes nearer to one of the faces
    unit = (N / lengths[:, None])[touched]
    _, residual = nnls(np.vstack([unit.T, np.ones(len(unit))]), np.append(np.zeros(K.dim), 1.0))
    assert residual < 1e-8
    assert K.contains(K.centre())


def test_a_flat_set_has_no_inner_ball():
    with pytest.raises(ValueError, match="expected a set with interior points"):
        Polytope([[1.0, 1], [-1, -1]], [1.0, -1.0]).inner_ball()


@pytest.mark.parametrize(("dim", "budget"), list(itertools.product([1, 2, 4, 5], [1, 2, 3, 6])))
def test_the_diameter_of_a_budget_box_with_whole_budget_is_exact(dim, budget):
    vertices = [v for v in itertools.product([0.0, 1.0], repeat=dim) if sum(v) <= budget]
    widest = max(np.linalg.norm(np.subtract(a, b)) for a in vertices for b in vertices)
    assert BudgetBox(dim, budget).diameter == pytest.approx(widest, abs=ROUNDING)


@pytest.mark.parametrize("K", SETS, ids=name)
def test_no_two_points_are_further_apart_than_the_diameter(K):
    tops = K.lmo(np.random.default_rng(14).normal(size=(60, K.dim)))
    assert np.linalg.norm(tops[:, None] - tops, axis=-1).max() <= K.diameter + ROUNDING
    assert K.diameter <= np.sqrt(K.dim) + ROUNDING


@pytest.mark.parametrize("delta", [0.01, 0.06])
@pytest.mark.parametrize("K", [BudgetBox(4, 1.5), BudgetBox(3, 2.9), BudgetBox(3, 7.0), PACKING], ids=name)
def test_a_ball_around_each_point_of_the_shrunk_set_stays_inside(K, delta):
    small = K.shrink(delta)
    rng = np.random.default_rng(15)
    u = np.concatenate([points_of(small, rng, 100), small.lmo(rng.normal(size=(40, K.dim))), np.zeros((1, K.dim))])
    v = rng.normal(size=(200, K.dim))
    v = np.concatenate([v / np.linalg.norm(v, axis=1, keepdims=True), np.eye(K.dim), np.full((1, K.dim), K.dim**-0.5)])
    ball = delta + (1 - 2 * delta) * u[:, None] + delta * v
    assert K.contains(ball, tol=1e-9).all()  # HiGHS feasibility of the vertices
    assert small.is_down_closed()
    # nor is it smaller than it must be: u is out only if its ball, at its furthest towards some face, leaves K
    N, right = inequalities(K)
    u = rng.random((500, K.dim))
    furthest = (delta + (1 - 2 * delta) * u[:, None] + delta * N / np.linalg.norm(N, axis=1, keepdims=True)) * N
    np.testing.assert_array_equal(small.contains(u), (furthest.sum(axis=-1) <= right + ROUNDING).all(axis=1))


@pytest.mark.parametrize("K", [BudgetBox(4, 1.5), Polytope([[1.0, 1, 1, 1]], [1.5])], ids=name)
def test_a_shrunk_set_that_would_lose_the_origin_is_refused(K):
    least = 1.5 / (4 + np.sqrt(4))  # the point delta 1 has the distance delta to the budget's face there
    K.shrink(0.999 * least)
    with pytest.raises(ValueError, match=r"delta: expected less than 0\.25, so that the shrunk set contains 0, got 0\.2"):
        K.shrink(least + 1e-4)


def test_both_kinds_of_set_shrink_alike():
    box, rows = BudgetBox(4, 1.5), Polytope(np.ones((1, 4)), [1.5])
    c = np.random.default_rng(16).normal(size=(10, 4))
    y = 3 * c
    np.testing.assert_allclose(box.shrink(0.1).project(y), rows.shrink(0.1).project(y), atol=ROUNDING)
    np.testing.assert_allclose(box.project(y), rows.project(y), atol=ROUNDING)
    np.testing.assert_allclose(box.separate(y), rows.separate(y), atol=ROUNDING)
    np.testing.assert_allclose(box.inner_ball()[1], rows.inner_ball()[1], atol=1e-9)


# bad input


@pytest.mark.parametrize(("make", "error", "message"), [
    (lambda: BudgetBox(2.5, 1.0), TypeError, "dim: expected an integer, got float 2.5"),
    (lambda: BudgetBox(True, 1.0), TypeError, "dim: expected an integer"),
    (lambda: BudgetBox(0, 1.0), ValueError, "dim: expected an integer in"),
    (lambda: BudgetBox(3, 0.0), ValueError, "budget: expected a finite number in"),
    (lambda: BudgetBox(3, -1.0), ValueError, "budget: expected a finite number in"),
    (lambda: BudgetBox(3, np.nan), ValueError, "budget: expected a finite number in"),
    (lambda: BudgetBox(3, "2"), TypeError, "budget: expected a real number, got str"),
    (lambda: Polytope([1.0, 1.0], [1.0]), ValueError, r"A: expected 2 dimension\(s\), got shape \(2,\)"),
    (lambda: Polytope([[1.0, 1.0]], [[1.0]]), ValueError, r"b: expected 1 dimension\(s\)"),
    (lambda: Polytope([[1.0, 1.0]], [1.0, 2.0]), ValueError, "A, b: expected one bound a row"),
    (lambda: Polytope([[1.0, np.nan]], [1.0]), ValueError, "A: expected finite numbers"),
    (lambda: Polytope([[1.0, 1.0]], [np.inf]), ValueError, "b: expected finite numbers"),
    (lambda: Polytope([["a", "b"]], [1.0]), TypeError, "A: expected real numbers"),
    (lambda: Polytope(np.zeros((0, 3)), []), ValueError, "A: expected at least one value"),
    (lambda: Polytope([[0.0, 0.0]], [1.0]), ValueError, "A: expected no row of zeros"),
    (lambda: Polytope([[-1.0, -1.0]], [-2.5]), ValueError, "A, b: expected a set that is not empty"),
    (lambda: BudgetBox(4, 1.5).shrink(0.0), ValueError, "delta: expected a finite number in"),
    (lambda: BudgetBox(4, 3.9).shrink(0.5), ValueError, "delta: expected a finite number in"),
    (lambda: PACKING.shrink(np.nan), ValueError, "delta: expected a finite number in"),
    (lambda: CUT_OFF.shrink(0.01), ValueError, "K: expected A >= 0 and b >= 0"),
    (lambda: random_packing(0, 2, np.random.default_rng(0)), ValueError, "dim: expected an integer in"),
    (lambda: random_packing(3, 2, 0), TypeError, "rng: expected a numpy.random.Generator"),
    (lambda: random_packing(3, 2, np.random.default_rng(0), 0.0), ValueError, "tightness: expected a finite number in"),
])  # fmt: skip
def test_bad_input_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("K", [BudgetBox(4, 1.5), PACKING], ids=name)
@pytest.mark.parametrize(("method", "argument"), [("project", "y"), ("lmo", "c"), ("separate", "y"), ("contains", "x")])
def test_points_of_another_dimension_are_refused(K, method, argument):
    for x in (np.zeros((2, 5)), torch.zeros(3)):
        with pytest.raises(ValueError, match=rf"{argument}: expected shape \(\.\.\., 4\), got \({x.shape[0]},"):
            getattr(K, method)(x)
