"""Kinds of feedback: what is asked where, what it costs, and that estimates average to the gradients they stand for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from paperbook.papers.dr_submodular.feedback import FOTZO, OMBQ, SFTT, ShrunkView
from paperbook.papers.dr_submodular.functions import QuadraticDR
from paperbook.papers.dr_submodular.learners import OGD, OnlineLearner
from paperbook.papers.dr_submodular.play import Pool, play
from paperbook.papers.dr_submodular.sets import BudgetBox, random_packing
from paperbook.papers.dr_submodular.wrappers import AnchoredNonMonotone, ExponentialDownClosed

ROUNDING = 1e-12  # some dozen operations on numbers of size 1
OURS = ExponentialDownClosed()
BOX = BudgetBox(3, 1.5)
PACKING = random_packing(3, 2, np.random.default_rng(5))


class Stays(OnlineLearner):
    """Never moves, and keeps what it hears."""

    def reset(self) -> None:
        super().reset()
        self.heard: list[np.ndarray] = []

    def _step(self, g: Any) -> None:
        self.heard.append(g)


def pool(rounds: int, copies: int, dim: int = 3, seed: int = 0, members: int = 10) -> Pool:
    rng = np.random.default_rng(seed)
    return Pool(QuadraticDR.random(dim, rng, batch=(members,)), rng.integers(members, size=(rounds, copies)))


def averages(draws: np.ndarray, expected: Any, errors: float = 4.0) -> bool:
    """Whether the mean over the first axis is within so many standard errors of what is expected, in every entry."""
    return bool((np.abs(draws.mean(axis=0) - expected) < errors * draws.std(axis=0) / math.sqrt(len(draws)) + ROUNDING).all())


class Watched:
    """Plays on behalf of an algorithm and notes what is played and asked."""

    def __init__(self, algorithm: Any) -> None:
        self.algorithm = algorithm
        self.played: list[Any] = []
        self.asked: list[tuple[Any, ...]] = []

    def run(self, env: Any, rounds: int) -> Watched:
        for t in range(rounds):
            f = env[t]
            self.played.append(self.algorithm.act() + 0)
            self.asked.append(self.algorithm.queries())
            oracle = f.grad if self.algorithm.oracle == "gradient" else f.value
            self.algorithm.update(tuple(oracle(point) for point in self.asked[-1]))
        return self


# first order


def test_many_random_queries_average_to_the_nodes() -> None:
    f, n = QuadraticDR.random(3, np.random.default_rng(1)), 100_000
    random = OMBQ(Stays(BOX, (n,)), OURS, np.random.default_rng(2))
    exact = OMBQ(Stays(BOX), OURS, np.random.default_rng(3), nodes=40)
    for algorithm in (random, exact):
        algorithm.update(tuple(f.grad(point) for point in algorithm.queries()))
    g = exact.learner.heard[0]
    assert averages(random.learner.heard[0], g) and np.abs(g).min() > 0.01
    assert g == pytest.approx(OURS.linear_gain(f, exact.learner.act()), abs=ROUNDING)
    assert random.calls() == 1 and exact.calls() == 40 and len(exact.queries()[0]) == 40


def test_one_query_a_round_at_another_point_than_the_played_one() -> None:
    run = Watched(OMBQ(OGD(BOX, (4,)), OURS, np.random.default_rng(4))).run(pool(50, 4), 50)
    history = play(pool(50, 4), OMBQ(OGD(BOX, (4,)), OURS, np.random.default_rng(4)), 50, keep_points=True)
    assert history.calls.tolist() == [50.0] * 4
    assert np.array_equal(history.points, np.stack(run.played))
    for played, (point,) in zip(run.played, run.asked, strict=True):
        # z <= 1: the query lies on the curve from 0 to what is played
        assert (point <= played).all() and not np.array_equal(point, played)
        for one, where in zip(point, played, strict=True):
            z = np.log1p(-one[where > 1e-3]) / np.log1p(-where[where > 1e-3])
            assert not len(z) or np.ptp(z) < 1e-9, "the same z in every coordinate"


def test_what_the_learner_hears_is_no_longer_than_the_gradient() -> None:
    env, algorithm = pool(60, 5), OMBQ(OGD(BOX, (5,)), OURS, np.random.default_rng(5))
    for t in range(60):
        algorithm.act()
        (point,) = algorithm.queries()
        gradient, before = env[t].grad(point), algorithm.learner.gain_sum
        algorithm.update((gradient,))
        heard = algorithm.learner.gain_sum - before
        assert (np.linalg.norm(heard, axis=1) <= np.linalg.norm(gradient, axis=1) + ROUNDING).all()


def test_a_set_that_is_not_down_closed_is_refused() -> None:
    from paperbook.papers.dr_submodular.sets import Polytope

    slab = Polytope([[-1.0, -1.0]], [-0.5])  # x_1 + x_2 >= 1/2
    with pytest.raises(ValueError, match="^K: expected a down-closed set"):
        OMBQ(OGD(slab), OURS, np.random.default_rng(0))
    corner = np.array([0.5, 0.25])
    assert OMBQ(OGD(slab), AnchoredNonMonotone(corner), np.random.default_rng(0)).act().shape == (2,), "row 3 takes it"


# blocks


def test_blocks_play_their_query_once_and_the_intention_elsewhere() -> None:
    L, blocks, copies = 4, 60, 3
    T = L * blocks
    inner = OMBQ(OGD(BOX, (copies,)), OURS, np.random.default_rng(6))
    algorithm = SFTT(inner, L, T, np.random.default_rng(7))
    env, hits = pool(T, copies), np.zeros((blocks, L, copies), dtype=bool)
    for block in range(blocks):
        answers = np.zeros((copies, 3))
        sums = inner.learner.gain_sum + 0
        for where in range(L):
            f = env[block * L + where]
            played = algorithm.act()
            asked = algorithm.queries()
            exploring = np.asarray(algorithm.calls()) == 1
            hits[block, where] = exploring
            intended = OURS.action(inner.learner.act())
            assert np.array_equal(played[~exploring], intended[~exploring])
            assert np.array_equal(algorithm.intended(), intended)
            assert bool(asked) == exploring.any()
            if asked:
                assert np.array_equal(played[exploring], asked[0][exploring]), "what is asked is what is played"
                answers[exploring], point = f.grad(played)[exploring], asked[0]
            assert np.array_equal(inner.learner.gain_sum, sums), "nothing is learnt inside a block"
            algorithm.update(tuple(f.grad(point) for point in asked))
        # the factor e^{-zx} is 1 minus the point that was asked, the same for all copies' rounds of this block
        assert inner.learner.gain_sum - sums == pytest.approx((1 - point) * answers, abs=100 * ROUNDING)
    assert (hits.sum(axis=1) == 1).all(), "exactly one query a block and copy"
    assert (hits.sum(axis=0) > 0).all(), "every position is hit; that 60 blocks miss one has probability 4e-7"
    assert not np.array_equal(hits[:, :, 0], hits[:, :, 1]), "each copy has positions of its own"


def test_calls_of_blocks_are_counted_and_a_partial_block_asks_nothing() -> None:
    L, T, copies = 5, 23, 30  # enough copies that one of them would ask in three rounds of five
    algorithm = SFTT(OMBQ(OGD(BOX, (copies,)), OURS, np.random.default_rng(8)), L, T, np.random.default_rng(9))
    run = Watched(algorithm).run(pool(T, copies), T)
    assert all(not asked for asked in run.asked[20:]), "rounds 20, 21, 22 are no whole block"
    assert all(np.array_equal(played, run.played[20]) for played in run.played[20:])
    again = SFTT(OMBQ(OGD(BOX, (copies,)), OURS, np.random.default_rng(8)), L, T, np.random.default_rng(9))
    history = play(pool(T, copies), again, T, keep_points=True)
    assert history.calls.tolist() == [4.0] * copies
    assert np.array_equal(history.points, np.stack(run.played))
    # the price of exploration, by a loop: what was intended minus what was got
    price, env = np.zeros(copies), pool(T, copies)
    replay = SFTT(OMBQ(OGD(BOX, (copies,)), OURS, np.random.default_rng(8)), L, T, np.random.default_rng(9))
    for t in range(T):
        played = replay.act()
        price += env[t].value(replay.intended()) - env[t].value(played)
        replay.update(tuple(env[t].grad(point) for point in replay.queries()))
    assert history.exploration == pytest.approx(price, abs=100 * ROUNDING) and np.abs(price).max() > 0


def test_blocks_of_length_one_play_every_query() -> None:
    inner = OMBQ(OGD(BOX, (2,)), OURS, np.random.default_rng(10))
    run = Watched(SFTT(inner, 1, 20, np.random.default_rng(11))).run(pool(20, 2), 20)
    assert all(np.array_equal(played, point) for played, (point,) in zip(run.played, run.asked, strict=True))


def test_bandit_feedback_hears_the_value_of_what_it_played_and_nothing_else() -> None:
    """The answers of copies that do not explore may be anything: here they are not numbers."""
    L, T, copies, delta = 3, 30, 4, 0.1
    K = BOX.shrink(delta)
    algorithm = SFTT(FOTZO(OMBQ(OGD(K, (copies,)), OURS, np.random.default_rng(12)), delta, np.random.default_rng(13)), L, T,
                     np.random.default_rng(14))
    twin = SFTT(FOTZO(OMBQ(OGD(K, (copies,)), OURS, np.random.default_rng(12)), delta, np.random.default_rng(13)), L, T,
                np.random.default_rng(14))
    env = pool(T, copies)
    for t in range(T):
        played = algorithm.act()
        assert BOX.contains(played, ROUNDING).all()
        assert np.array_equal(played, twin.act())
        for one in (algorithm, twin):
            asked = one.queries()
            values = tuple(env[t].value(point) for point in asked)
            if one is twin:
                values = tuple(np.where(one.calls() == 1, env[t].value(played), np.nan) for _ in asked)
            one.update(values)
    assert np.isfinite(twin.base.learner.x).all() and np.array_equal(twin.base.learner.x, algorithm.base.learner.x)


# values in place of gradients


@pytest.mark.parametrize("two_point", [False, True], ids=["one", "two"])
@pytest.mark.parametrize("K", [BOX, PACKING], ids=["box", "packing"])
def test_no_query_leaves_the_set(K, two_point: bool) -> None:
    delta = 0.1
    inside = K.shrink(delta)
    rng = np.random.default_rng(15)
    algorithm = FOTZO(OMBQ(OGD(inside, (40,)), OURS, rng), delta, rng, two_point=two_point)
    edge = inside.project(rng.random((40, 3)) * 3)  # on faces of the shrunk set, where it is closest
    closest = np.inf
    for t in range(60):
        if t % 2:
            algorithm.base.learner.x = edge
        assert K.contains(algorithm.act(), ROUNDING).all()
        asked = algorithm.queries()
        assert len(asked) == algorithm.calls() == 1 + two_point
        for point in asked:
            assert K.contains(point, ROUNDING).all()
            slack = K.budget - point.sum(axis=1) if K is BOX else (K.b - point @ K.A.T).min(axis=1)
            closest = min(closest, slack.min(), point.min())
        algorithm.update(tuple(0.0 * point[:, 0] + 1.0 for point in asked))
    assert closest < 0.02, "the border is nearly touched: the set is not shrunk too much"


def heard(f, delta: float, n: int, before: float | None = None, **options: Any) -> tuple[np.ndarray, OMBQ]:
    """Estimates ``(n, d)`` that a learner hears, and the algorithm at the bottom."""
    base = OMBQ(Stays(BOX.shrink(delta), (n,)), OURS, np.random.default_rng(16))
    algorithm = FOTZO(base, delta, np.random.default_rng(17), **options)
    if before is not None:  # a round before, all of whose values are this
        algorithm.queries()
        algorithm.update((np.full(n, before),))
    algorithm.update(tuple(f.value(point) for point in algorithm.queries()))
    return base.learner.heard[-1], base


@pytest.mark.parametrize("options", [
    {"two_point": True}, {"baseline": False}, {"baseline": True}, {"baseline": True, "before": 0.9},
], ids=["two", "one", "first", "baseline"])  # fmt: skip
def test_estimates_of_values_average_to_the_gradient_in_the_shrunk_coordinates(options: dict[str, Any]) -> None:
    # a steep function of small values and a wide sphere: the noise of one point is d f / delta
    f, delta = QuadraticDR(np.full((3, 3), -0.5), np.array([3.0, 2.0, -2.0]), np.zeros(())), 0.2
    estimates, base = heard(f, delta, 200_000, **options)
    u = base.learner.act()[0]
    # g of v -> f(delta + (1 - 2 delta) v) at u, by an average over z of (1 - 2 delta) grad f * e^{-zu}, 2,000 midpoints
    z = (np.arange(2000) + 0.5)[:, None] / 2000
    weight = np.exp(z - 1) / (1 - math.exp(-1)) / 2000
    expected = (weight * (1 - 2 * delta) * f.grad(delta + (1 - 2 * delta) * (1 - np.exp(-z * u))) * np.exp(-z * u)).sum(axis=0)
    assert averages(estimates, expected)
    noise = 4 * np.linalg.norm(estimates.std(axis=0)) / math.sqrt(200_000)
    assert noise < 0.1 * np.linalg.norm(expected), "without the factor .6 it would not pass"


def test_two_points_come_close_with_many_draws() -> None:
    """At u = 0 there is no z to average over: the estimate is that of (1 - 2 delta) grad f at the point delta 1."""
    d, delta, n = 4, 0.05, 100_000
    f = QuadraticDR.random(d, np.random.default_rng(19))
    base = OMBQ(Stays(BudgetBox(d, 2).shrink(delta), (n,), x0=np.zeros(d)), OURS, np.random.default_rng(20))
    algorithm = FOTZO(base, delta, np.random.default_rng(21), two_point=True)
    algorithm.update(tuple(f.value(point) for point in algorithm.queries()))
    expected = (1 - 2 * delta) * f.grad(np.full(d, delta))
    error = np.linalg.norm(base.learner.heard[0].mean(axis=0) - expected) / np.linalg.norm(expected)
    assert averages(base.learner.heard[0], expected) and error < 0.05


def test_the_baseline_lowers_the_variance_and_looks_at_the_past_only() -> None:
    f, delta, n = QuadraticDR.random(3, np.random.default_rng(22)), 0.1, 50_000
    level = float(f.value(np.full(3, 0.4)))
    plain, _ = heard(f, delta, n, baseline=False)
    better, _ = heard(f, delta, n, before=level, baseline=True)
    first, _ = heard(f, delta, n, baseline=True)
    assert better.var(axis=0).sum() < 0.2 * plain.var(axis=0).sum()
    assert np.array_equal(first, plain), "in the first round there is no past"


def test_the_baseline_is_the_mean_of_what_was_heard() -> None:
    delta, values = 0.1, [2.0, 1.0, 6.0, 4.0]
    base = OMBQ(Stays(BOX.shrink(delta), (), x0=np.zeros(3)), OURS, np.random.default_rng(23))
    algorithm = FOTZO(base, delta, np.random.default_rng(24))
    past: list[float] = []
    for value in values:
        (point,) = algorithm.queries()
        algorithm.update((np.asarray(value),))
        v = (point - delta) / delta  # u = 0: the query is delta 1 + delta v
        mean = sum(past) / len(past) if past else 0.0
        assert base.learner.heard[-1] == pytest.approx(0.8 * 3 / 0.1 * (value - mean) * v, abs=100 * ROUNDING)
        past.append(value)


def test_what_is_played_and_seen_in_shrunk_coordinates() -> None:
    delta, u = 0.1, np.array([0.2, 0.0, 0.5])
    algorithm = FOTZO(OMBQ(Stays(BOX.shrink(delta), (), x0=u), OURS, np.random.default_rng(25)), delta, np.random.default_rng(26))
    assert algorithm.act() == pytest.approx(0.1 + 0.8 * (1 - np.exp(-u)))
    f = QuadraticDR.random(3, np.random.default_rng(27))
    seen = algorithm.seen(f)
    assert isinstance(seen, ShrunkView) and seen.dim == 3
    assert float(seen.value(u)) == pytest.approx(float(f.value(0.1 + 0.8 * u)))
    moves = 1e-6 * np.eye(3)
    central = [(seen.value(u + m) - seen.value(u - m)) / 2e-6 for m in moves]
    assert seen.grad(u) == pytest.approx(np.array(central), abs=1e-8)  # quadratic: nothing but rounding 1e-16/1e-6
    blocks = SFTT(algorithm, 2, 4, np.random.default_rng(28))
    assert isinstance(blocks.seen(f), ShrunkView) and blocks.oracle == "value"


def test_what_cannot_be_combined_is_refused() -> None:
    rng = np.random.default_rng(29)

    def first_order(nodes: int | None = None) -> OMBQ:
        return OMBQ(OGD(BOX.shrink(0.1)), OURS, rng, nodes=nodes)

    with pytest.raises(ValueError, match="^algorithm: expected one query a round; two values"):
        SFTT(FOTZO(first_order(), 0.1, rng, two_point=True), 3, 9, rng)
    with pytest.raises(ValueError, match="^algorithm: expected one query a round"):
        SFTT(first_order(nodes=5), 3, 9, rng)
    with pytest.raises(ValueError, match="^algorithm: expected one that is not in blocks already"):
        SFTT(SFTT(first_order(), 3, 9, rng), 3, 9, rng)
    with pytest.raises(ValueError, match="^algorithm: expected a first-order algorithm"):
        FOTZO(FOTZO(first_order(), 0.1, rng), 0.1, rng)
    with pytest.raises(ValueError, match="^algorithm: expected a first-order algorithm"):
        FOTZO(first_order(nodes=5), 0.1, rng)


# seeds and tensors


def rung(name: str, stream, like=None):
    delta = 0.1
    K = BOX if name in ("gradient", "semi-bandit") else BOX.shrink(delta)
    algorithm: Any = OMBQ(OGD(K, (3,), like_array=like), OURS, stream)
    if name not in ("gradient", "semi-bandit"):
        algorithm = FOTZO(algorithm, delta, stream, two_point=name == "two values")
    return SFTT(algorithm, 4, 40, stream) if name in ("semi-bandit", "bandit") else algorithm


@pytest.mark.parametrize("name", ["gradient", "semi-bandit", "two values", "one value", "bandit"])
def test_a_seed_decides_everything(name: str) -> None:
    runs = [play(pool(40, 3), rung(name, np.random.default_rng(seed)), 40, surrogate_nodes=8, keep_points=True)
            for seed in (30, 30, 31)]
    for field in ("rewards", "calls", "exploration", "linear_regret", "query_regret", "gain_norm", "points", "final"):
        assert np.array_equal(getattr(runs[0], field), getattr(runs[1], field)), field
    assert not np.array_equal(runs[0].final, runs[2].final)


@pytest.mark.parametrize("name", ["gradient", "semi-bandit", "two values", "one value", "bandit"])
def test_every_rung_runs_on_tensors(name: str) -> None:
    env = pool(40, 3)
    family = QuadraticDR(*(torch.as_tensor(part) for part in (env.family.H, env.family.h, env.family.c)))
    tensors = Pool(family, torch.as_tensor(env.index))
    like = torch.zeros((), dtype=torch.float64)
    runs = [play(tensors, rung(name, torch.Generator().manual_seed(seed), like), 40, surrogate_nodes=8) for seed in (1, 1, 2)]
    assert runs[0].rewards.shape == (40, 3) and np.isfinite(runs[0].rewards).all()
    assert np.array_equal(runs[0].rewards, runs[1].rewards) and not np.array_equal(runs[0].rewards, runs[2].rewards)
    arrays = play(env, rung(name, np.random.default_rng(3)), 40)
    assert np.array_equal(runs[0].calls, arrays.calls)


def test_without_randomness_tensors_and_arrays_play_the_same() -> None:
    env = pool(60, 3)
    family = QuadraticDR(*(torch.as_tensor(part) for part in (env.family.H, env.family.h, env.family.c)))
    arrays = play(env, OMBQ(OGD(BOX, (3,)), OURS, np.random.default_rng(0), nodes=12), 60, surrogate_nodes=12)
    like = torch.zeros((), dtype=torch.float64)
    tensors = play(Pool(family, torch.as_tensor(env.index)), OMBQ(OGD(BOX, (3,), like_array=like), OURS,
                   torch.Generator().manual_seed(0), nodes=12), 60, surrogate_nodes=12)  # fmt: skip
    assert np.abs(arrays.linear_regret - tensors.linear_regret).max() < 1e-10  # 60 rounds of rounding 1e-15, with room
    assert np.abs(arrays.rewards - tensors.rewards).max() < 1e-10
    # the exact gains are what the learner heard
    assert arrays.linear_regret == pytest.approx(arrays.query_regret, abs=1e-10)
