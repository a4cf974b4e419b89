"""Peers, heuristics and optima: ratios against enumeration, steps against plain loops, bounds against grids."""

from __future__ import annotations

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import linprog

from paperbook.papers.dr_submodular import baselines
from paperbook.papers.dr_submodular.baselines import (
    MetaFrankWolfe,
    best_set,
    greedy_set,
    measured_continuous_greedy,
    non_monotone_frank_wolfe,
    plain_ascent,
    projected_ascent,
    quadratic_upper_bound,
    subsets,
)
from paperbook.papers.dr_submodular.feedback import OMBQ
from paperbook.papers.dr_submodular.functions import CutExtension, LambdaDR, QuadraticDR, drifting_trap, random_cut, trap
from paperbook.papers.dr_submodular.learners import OGD
from paperbook.papers.dr_submodular.play import Fixed, Segments, play
from paperbook.papers.dr_submodular.sets import BudgetBox, Polytope, random_packing
from paperbook.papers.dr_submodular.wrappers import ExponentialDownClosed

ROUNDING = 1e-12  # some hundred operations on numbers of size 1
SUM = LambdaDR(lambda x: x.sum(-1), lambda x: 1 + 0 * x, 3)
OFFLINE = {"measured": measured_continuous_greedy, "frank-wolfe": non_monotone_frank_wolfe}


@pytest.fixture(scope="module")
def karate() -> CutExtension:
    return CutExtension(nx.to_numpy_array(nx.karate_club_graph(), weight=None))


# offline


@pytest.mark.parametrize("name", OFFLINE)
def test_offline_peers_keep_their_ratio_on_cuts_and_stay_in_the_set(name: str) -> None:
    for seed in range(8):
        f, K = random_cut(8, np.random.default_rng(seed)), BudgetBox(8, 3)
        _, optimum = best_set(f, 3)
        x = OFFLINE[name](f, K, 100)
        assert bool(K.contains(x, ROUNDING))
        # steps of 1/100 cost at most L D^2 / 200, with the spectral norm of the Hessian for L
        loss = np.linalg.norm(f.W + f.W.T, 2) * K.diameter**2 / 200
        assert float(f.value(x)) >= optimum / math.e - loss


@pytest.mark.parametrize("name", OFFLINE)
def test_offline_peers_in_a_packing_against_a_loop_over_linear_programmes(name: str) -> None:
    rng = np.random.default_rng(10)
    f, K, steps = random_cut(4, rng), random_packing(4, 2, rng), 15
    x = np.zeros(4)
    for _ in range(steps):
        gradient = np.array([sum(f.W[i, j] * (1 - x[j]) - f.W[j, i] * x[j] for j in range(4)) for i in range(4)])
        if name == "measured":
            v = linprog(-gradient * (1 - x), A_ub=K.A, b_ub=K.b, bounds=(0, 1)).x
            x = x + v * (1 - x) / steps
        else:
            v = linprog(-gradient, A_ub=K.A, b_ub=K.b, bounds=[(0, 1 - xi) for xi in x]).x
            x = x + v / steps
    assert OFFLINE[name](f, K, steps) == pytest.approx(x, abs=1e-9)  # vertices of linear programmes, to the solver's 1e-9
    assert K.contains(x, 1e-9)


def test_offline_peers_by_hand() -> None:
    box = BudgetBox(3, 3)
    # in the box both move by (1 - x)/n in every step, which leaves (1 - 1/n)^n
    for method in OFFLINE.values():
        assert method(SUM, box, 4) == pytest.approx(np.full(3, 1 - 0.75**4))
        assert method(SUM, box, 2, (5,)).shape == (5, 3)
        # where the gradient falls below zero nothing is added: x (1 - x) stops at the first 1 - .9^n >= 1/2
        parabola = LambdaDR(lambda x: (x * (1 - x)).sum(-1), lambda x: 1 - 2 * x, 3)
        assert method(parabola, box, 10) == pytest.approx(np.full(3, 1 - 0.9**7))
    # with a budget of 1 and gains 3, 2, 1: the bound 1 - x sends the second step's rest to the next coordinate,
    # while weighing gains by 1 - x, 3/2 against 2, sends all of it there, shortened by its own 1 - x = 1
    slope = np.array([3.0, 2.0, 1.0])
    linear = LambdaDR(lambda x: (slope * x).sum(-1), lambda x: slope + 0 * x, 3)
    assert non_monotone_frank_wolfe(linear, BudgetBox(3, 1), 2) == pytest.approx(np.array([0.75, 0.25, 0.0]))
    assert measured_continuous_greedy(linear, BudgetBox(3, 1), 2) == pytest.approx(np.array([0.5, 0.5, 0.0]))


@pytest.mark.parametrize("method", OFFLINE.values())
def test_offline_peers_refuse_sets_that_are_not_down_closed(method) -> None:
    with pytest.raises(ValueError, match="^K: expected a down-closed set"):
        method(trap(), Polytope([[-1.0, -1.0]], [-0.5]))


def test_plain_ascent_is_caught_by_the_trap_and_finds_the_top_from_elsewhere() -> None:
    K = BudgetBox(2, 1)
    points, values = projected_ascent(trap(0.05), K, np.array([[0.0, 1.0], [0.6, 0.1], [3.0, -1.0]]))
    assert points == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]), abs=1e-9)
    assert values == pytest.approx(np.array([0.05, 1.0, 1.0]), abs=1e-9)


def test_plain_ascent_climbs_and_stays_in_the_set() -> None:
    rng = np.random.default_rng(11)
    f, K, starts = QuadraticDR.random(5, rng), random_packing(5, 3, rng), rng.random((6, 5)) * 0.3
    before = starts.copy()
    values = [f.value(K.project(starts))]
    for steps in (1, 3, 10):
        points, found = projected_ascent(f, K, starts, steps)
        assert K.contains(points, 1e-9).all() and found == pytest.approx(f.value(points))
        values.append(found)
    assert (np.diff(values, axis=0) >= -1e-9).all() and (values[-1] > values[0]).any()
    assert np.array_equal(starts, before)


# online


def test_meta_frank_wolfe_by_a_plain_loop() -> None:
    L, T, K = 3, 12, BudgetBox(3, 1)
    rng = np.random.default_rng(12)
    functions = [QuadraticDR.random(3, rng) for _ in range(T)]
    algorithm = MetaFrankWolfe(K, (), L)
    directions = [np.full(3, 1 / 3) for _ in range(L)]
    squares = [0.0] * L
    for f in functions:
        x, path = np.zeros(3), []
        for v in directions:
            path.append(x)
            x = x + v * (1 - x) / L
        assert algorithm.act() == pytest.approx(x, abs=10 * ROUNDING)
        asked = algorithm.queries()
        assert np.stack(asked) == pytest.approx(np.stack(path), abs=10 * ROUNDING)
        algorithm.update(tuple(f.grad(point) for point in asked))
        for i, at in enumerate(path):
            g = (1 - at) * (f.H @ at + f.h)
            squares[i] += float(g @ g)
            directions[i] = K.project(directions[i] + K.diameter * g / math.sqrt(squares[i]))
    assert algorithm.calls() == L


@pytest.mark.parametrize("inner", [1, 2, 8])
def test_meta_frank_wolfe_plays_in_the_set_and_pays_for_each_step(inner: int) -> None:
    rng = np.random.default_rng(13)
    f, K = QuadraticDR.random(4, rng, batch=(3,)), random_packing(4, 2, rng)
    history = play(Fixed(f), MetaFrankWolfe(K, (3,), inner), 25, keep_points=True)
    assert history.calls.tolist() == [25.0 * inner] * 3
    assert history.points is not None and K.contains(history.points, 1e-9).all()


def test_meta_frank_wolfe_leaves_the_trap() -> None:
    lure = LambdaDR(lambda x: x[..., 1], lambda x: 0 * x + np.array([0.0, 1.0]), 2)
    history = play(Segments([lure, trap(0.05)], [0, 40]), MetaFrankWolfe(BudgetBox(2, 1), (2,), 10), 400)
    assert (history.average_reward > 1 / math.e).all(), "alpha times the optimum 1"
    assert history.average_reward.max() < 0.66, "ten measured steps reach 1 - .9^10 = .651 at most, and the lure as much"


def test_meta_frank_wolfe_has_no_certificate_of_one_learner() -> None:
    algorithm = MetaFrankWolfe(BudgetBox(2, 1), (2,), 4)
    with pytest.raises(ValueError, match="^surrogate_nodes: expected 0, got 8: MetaFrankWolfe has no single learner"):
        play(Fixed(trap()), algorithm, 5, surrogate_nodes=8)
    history = play(Fixed(trap()), algorithm, 5)
    assert np.isnan(history.query_regret).all() and np.isnan(history.gain_norm).all() and history.linear_regret is None
    assert np.array_equal(history.final, algorithm.many.act()[-1]) and not np.array_equal(history.final, np.full((2, 2), 0.5))


def test_plain_online_ascent_is_the_identity_wrapper() -> None:
    algorithm = plain_ascent(BudgetBox(4, 1), (2,), np.random.default_rng(14), step=0.1)
    f = drifting_trap(1, 4)
    assert isinstance(algorithm, OMBQ)
    x = algorithm.act()
    algorithm.update(tuple(f.grad(point) for point in algorithm.queries()))
    assert algorithm.act() == pytest.approx(BudgetBox(4, 1).project(x + 0.1 * f.grad(x)))


# optima


def test_the_best_set_is_that_of_itertools() -> None:
    f = random_cut(7, np.random.default_rng(15))
    for size in (0, 1, 3, 7):
        best: tuple[float, tuple[int, ...]] = (-1.0, ())
        for r in range(size + 1):
            for chosen in itertools.combinations(range(7), r):
                inside = set(chosen)
                value = sum(f.W[i, j] for i in inside for j in set(range(7)) - inside)
                best = max(best, (float(value), chosen))
        for chunk in (3, 20_000):
            found, value = best_set(f, size, chunk)
            assert tuple(found) == best[1] and value == pytest.approx(best[0], abs=ROUNDING)


@pytest.mark.parametrize("chunk", [1, 3, 20_000])
def test_of_equal_sets_the_first_is_best_whatever_the_chunks(chunk: int) -> None:
    pair = CutExtension(np.array([[0.0, 1.0], [1.0, 0.0]]))  # {0} and {1} cut the one edge
    assert best_set(pair, 2, chunk)[0].tolist() == [0]


def test_subsets_are_counted_distinct_and_refused_where_there_are_too_many() -> None:
    for dim, size in ((5, 0), (5, 2), (5, 5), (9, 4)):
        rows = subsets(dim, size)
        assert len(rows) == sum(math.comb(dim, r) for r in range(size + 1)) == len({tuple(row) for row in rows})
        assert rows.dtype == bool and rows.sum(axis=1).max() == size
    with pytest.raises(ValueError, match=r"^size: .* got 2369936 sets of at most 5 of 50"):  # sum of C(50, r), r <= 5
        subsets(50, 5)


def test_greedy_adds_what_gains_most_while_it_gains() -> None:
    for seed in range(5):
        f = random_cut(7, np.random.default_rng(seed))
        chosen: set[int] = set()

        def cut(S: set[int], W: np.ndarray = f.W) -> float:
            return float(sum(W[i, j] for i in S for j in set(range(7)) - S))

        for _ in range(5):
            gains = {i: cut(chosen | {i}) - cut(chosen) for i in set(range(7)) - chosen}
            best = max(gains, key=lambda i: gains[i])
            if gains[best] <= 0:
                break
            chosen.add(best)
        found, value = greedy_set(f, 5)
        assert set(found) == chosen and value == pytest.approx(cut(chosen), abs=ROUNDING)


def test_greedy_stops_before_it_loses() -> None:
    star = np.zeros((4, 4))
    star[0, 1:] = star[1:, 0] = 1.0
    assert greedy_set(CutExtension(star), 4)[0].tolist() == [0], "every further node would lose an edge"


def test_the_upper_bound_lies_above_a_grid_and_is_exact_for_linear_functions() -> None:
    rng = np.random.default_rng(16)
    grid = np.array(list(itertools.product(np.linspace(0, 1, 21), repeat=3)))
    for K in (BudgetBox(3, 1.5), random_packing(3, 2, rng)):
        inside = grid[np.asarray(K.contains(grid))]
        for _ in range(10):
            f = QuadraticDR.random(3, rng)
            bound = quadratic_upper_bound(f, K)
            assert bound >= f.value(inside).max()
            assert bound <= f.value(inside).max() + 0.5, "no bound out of nowhere: the functions are of size 1"
            assert quadratic_upper_bound(f, K, 33) <= bound + 1e-9, "more tangents, less slack"
        linear = QuadraticDR(np.zeros((3, 3)), rng.standard_normal(3), np.array(0.7))
        assert quadratic_upper_bound(linear, K) == pytest.approx(0.7 + float(linear.h @ K.lmo(linear.h)), abs=1e-9)


def test_the_upper_bound_is_exact_at_vertices_for_products() -> None:
    H = np.zeros((3, 3))
    H[0, 1] = H[1, 0] = -1.0
    H[1, 2] = H[2, 1] = -2.0
    f = QuadraticDR(H, np.array([3.0, 3.0, 0.5]), np.zeros(()))
    corners = np.array(list(itertools.product((0.0, 1.0), repeat=3)))
    # the best vertex is (1, 1, 0), where a product counts
    assert quadratic_upper_bound(f, BudgetBox(3, 3)) == pytest.approx(f.value(corners).max(), abs=1e-9) == 5
    # .8 x - x^2/2 below tangents of x^2 at 0, 1/2, 1: the kink at 3/4 gives .6 - 1/4, and .32 is the true top
    parabola = QuadraticDR(np.array([[-1.0]]), np.array([0.8]), np.zeros(()))
    assert quadratic_upper_bound(parabola, BudgetBox(1, 1), 3) == pytest.approx(0.35, abs=1e-9)


def test_the_rows_of_a_set() -> None:
    assert [part.tolist() for part in baselines.constraints(BudgetBox(2, 1.5))] == [[[1.0, 1.0]], [1.5]]
    K = random_packing(3, 2, np.random.default_rng(17))
    assert all(np.array_equal(part, own) for part, own in zip(baselines.constraints(K), (K.A, K.b), strict=True))


# a real graph


def test_the_karate_club(karate: CutExtension) -> None:
    """At most 5 of 34 members: the optimum is 54, greedy finds it, and h caps what the wrapper plays at .632 a coordinate."""
    chosen, optimum = best_set(karate, 5)
    assert optimum == 54 and greedy_set(karate, 5)[1] == 54
    graph = nx.karate_club_graph()
    assert nx.cut_size(graph, set(chosen.tolist())) == 54, "without weights"
    K = BudgetBox(34, 5)
    measured = float(karate.value(measured_continuous_greedy(karate, K, 100)))
    assert measured == pytest.approx(36.6, abs=0.1) and measured > 54 / math.e
    starts = np.concatenate([np.full((1, 34), 5 / 34), np.random.default_rng(18).random((8, 34))])
    assert projected_ascent(karate, K, starts, 400, 0.05)[1].max() == pytest.approx(54, abs=1e-6)
    history = play(Fixed(karate), OMBQ(OGD(K, ()), ExponentialDownClosed(), np.random.default_rng(19), nodes=12), 200)
    assert history.rewards[-1] == pytest.approx(36.5, abs=0.1) and history.rewards[-1] > 54 / math.e
