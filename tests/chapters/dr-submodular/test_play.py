"""The loop and its meters: regrets by triple loops, certificates against every comparator, one random iterate."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from paperbook.papers.dr_submodular.feedback import FOTZO, OMBQ, SFTT
from paperbook.papers.dr_submodular.functions import LambdaDR, QuadraticDR, drifting_trap, trap
from paperbook.papers.dr_submodular.learners import OGD, SOOGD, ImprovedAder
from paperbook.papers.dr_submodular.play import (
    Fixed,
    History,
    Pool,
    Segments,
    comparator_values,
    online_to_batch,
    path_length,
    play,
    regret,
)
from paperbook.papers.dr_submodular.sets import BudgetBox, random_packing
from paperbook.papers.dr_submodular.wrappers import ONE_OVER_E, ExponentialDownClosed, IdentityMonotone

ROUNDING = 1e-12  # sums of a few numbers of size 1
OURS = ExponentialDownClosed()


def pool(rounds: int, copies: int, dim: int, seed: int = 0, members: int = 20) -> Pool:
    rng = np.random.default_rng(seed)
    return Pool(QuadraticDR.random(dim, rng, batch=(members,)), rng.integers(members, size=(rounds, copies)))


def history_of(rewards: np.ndarray, linear: np.ndarray | None = None, exploration: np.ndarray | None = None) -> History:
    zero = np.zeros(rewards.shape[1:])
    return History(rewards, zero, zero if exploration is None else exploration, linear, zero, zero, None, zero)


# regret, by loops over intervals, comparators and rounds


@pytest.fixture(scope="module")
def tiny() -> tuple[np.ndarray, np.ndarray, float]:
    rng = np.random.default_rng(1)
    return rng.random((6, 2)), rng.random((6, 3, 2)), 0.7  # rewards (T, batch), comparators (T, V, batch), alpha


def test_static_and_adaptive_regret_by_loops(tiny) -> None:
    rewards, values, alpha = tiny
    history = history_of(rewards)
    static, adaptive = regret(history, alpha, "static", values), regret(history, alpha, "adaptive", values)
    for copy in range(2):
        sums = {}
        for v, a, b in itertools.product(range(3), range(6), range(6)):
            if a <= b:
                sums[v, a, b] = sum(alpha * values[t, v, copy] - rewards[t, copy] for t in range(a, b + 1))
        assert static[copy] == pytest.approx(max(sums[v, 0, 5] for v in range(3)), abs=ROUNDING)
        assert adaptive[copy] == pytest.approx(max(sums.values()), abs=ROUNDING)
        assert adaptive[copy] > static[copy] + 0.01, "the two differ here"


def test_adaptive_regret_finds_intervals_of_every_kind() -> None:
    """Gains of a single comparator: the worst interval is first, last, inner, one round, all rounds, or hurts least."""
    for gains, worst in [([5, -9, 1, 1], 5), ([1, -9, 3, 4], 7), ([-1, 2, 3, -4], 5), ([-3, -2, -5, -2], -2), ([1, 1, 1, 1], 4),
                         ([-1, 6, -1, 3], 8)]:  # fmt: skip
        rewards = -np.array(gains, dtype=float)
        assert regret(history_of(rewards), 1.0, "adaptive", np.zeros((4, 1))) == worst


def test_dynamic_regret_by_loops(tiny) -> None:
    rewards, values, alpha = tiny
    shared, own = values[:, 0, 0], values[:, 1]
    for path in (shared, own):
        found = regret(history_of(rewards), alpha, "dynamic", path)
        for copy in range(2):
            row = path if path.ndim == 1 else path[:, copy]
            assert found[copy] == pytest.approx(sum(alpha * u - r for u, r in zip(row, rewards[:, copy], strict=True)))


def test_comparators_may_be_shared_by_the_copies(tiny) -> None:
    rewards, values, alpha = tiny
    shared = values[..., 0]
    for kind in ("static", "adaptive"):
        both = regret(history_of(rewards), alpha, kind, np.stack([shared, shared], axis=-1))
        assert np.array_equal(regret(history_of(rewards), alpha, kind, shared), both)
    alone = regret(history_of(rewards[:, 0]), alpha, "static", shared)
    assert alone == pytest.approx(regret(history_of(rewards), alpha, "static", shared)[0])


def test_the_surrogate_is_the_certificate_plus_the_price_of_exploration() -> None:
    history = history_of(np.zeros((3, 2)), linear=np.array([1.0, 2.0]), exploration=np.array([0.5, -0.25]))
    assert regret(history, 0.5, "surrogate").tolist() == [1.5, 1.75]


def test_comparator_values_and_path_length_by_hand() -> None:
    env = Segments([drifting_trap(0, 3), drifting_trap(2, 3)], [0, 2])
    values = comparator_values(env, np.eye(3), 4)
    assert values.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]]
    assert path_length([[0, 0], [3, 4], [3, 4], [3, 3]]) == 6.0
    assert path_length([[1.0, 2.0]]) == 0.0


# the certificate is a theorem


CERTIFIED = {
    "gradient": lambda K, n, rng: OMBQ(OGD(K, (n,)), OURS, rng),
    "separation": lambda K, n, rng: OMBQ(SOOGD(K, (n,), horizon=80, gain_bound=4.0), OURS, rng),
    "experts": lambda K, n, rng: OMBQ(ImprovedAder(K, (n,), horizon=80, gain_bound=4.0), OURS, rng),
    "semi-bandit": lambda K, n, rng: SFTT(OMBQ(OGD(K, (n,)), OURS, rng), 5, 80, rng),
}


@pytest.mark.parametrize("name", CERTIFIED)
def test_the_certificate_bounds_the_regret_of_every_copy_against_every_comparator(name: str) -> None:
    rng, copies, T = np.random.default_rng(2), 8, 80
    env, K = pool(T, copies, 4), BudgetBox(4, 2)
    history = play(env, CERTIFIED[name](K, copies, rng), T, surrogate_nodes=24)
    points = np.concatenate([np.array(list(itertools.product((0.0, 1.0), repeat=4))), 0.5 + 0.5 * rng.random((60, 4))])
    points = K.project(points)[:, None]  # vertices, faces and what lies between
    values = np.stack([env[t].value(points) for t in range(T)])
    static = regret(history, ONE_OVER_E, "static", values)
    assert (regret(history, ONE_OVER_E, "surrogate") >= static - 1e-9).all()
    assert history.exploration.any() == (name == "semi-bandit")


def test_the_certificate_is_sharp_at_the_tight_instance() -> None:
    """Fixed at x = (0, 1), f = x_1 (1 - x_2): the certificate is T/e and so is the regret against (1, 0)."""
    algorithm = OMBQ(OGD(BudgetBox(2, 1), (), step=1e-300, x0=[0.0, 1.0]), OURS, np.random.default_rng(3))
    history = play(Fixed(trap(0.0)), algorithm, 7, surrogate_nodes=40)
    static = regret(history, ONE_OVER_E, "static", comparator_values(Fixed(trap(0.0)), np.array([[1.0, 0.0]]), 7))
    assert float(static) == pytest.approx(7 / math.e, abs=1e-10)
    assert float(history.linear_regret) == pytest.approx(7 / math.e, abs=1e-10)


def test_the_certificate_lives_in_shrunk_coordinates_with_values() -> None:
    delta, rng, T = 0.05, np.random.default_rng(4), 40
    env, K = pool(T, 3, 2), BudgetBox(2, 1)
    algorithm = FOTZO(OMBQ(OGD(K.shrink(delta), (3,)), OURS, rng), delta, rng, two_point=True)
    history = play(env, algorithm, T, surrogate_nodes=24)
    u = K.shrink(delta).project(np.array(list(itertools.product(np.linspace(0, 1, 9), repeat=2))))[:, None]
    values = np.stack([env[t].value(delta + (1 - 2 * delta) * u) for t in range(T)])
    assert (history.linear_regret >= regret(history, ONE_OVER_E, "static", values) - 1e-9).all()


def test_the_certificate_of_values_is_that_of_the_function_in_shrunk_coordinates() -> None:
    """Fixed at u: T beta max_y <g, y - u> with g of v -> f(delta + (1 - 2 delta) v), by midpoints and the chain rule."""
    delta, T, u, K = 0.1, 5, np.array([0.3, 0.1]), BudgetBox(2, 1).shrink(0.1)
    f = QuadraticDR.random(2, np.random.default_rng(21))
    base = OMBQ(OGD(K, (), step=1e-300, x0=u), OURS, np.random.default_rng(22))
    history = play(Fixed(f), FOTZO(base, delta, np.random.default_rng(23), two_point=True), T, surrogate_nodes=24)
    z = (np.arange(4000) + 0.5)[:, None] / 4000
    curve = 1 - np.exp(-z * u)
    g = (np.exp(z - 1) * (1 - curve) * (1 - 2 * delta) * f.grad(delta + (1 - 2 * delta) * curve)).mean(axis=0)  # beta g
    assert float(history.linear_regret) == pytest.approx(T * float(g @ (K.lmo(g) - u)), abs=1e-6)  # midpoints: 1/4000^2 each
    # the values heard make another vector of it, and two of them were heard a round
    assert float(history.query_regret) != pytest.approx(float(history.linear_regret), abs=1e-3) and history.calls == 2 * T


def test_linear_and_query_regret_by_loops() -> None:
    T, K = 25, BudgetBox(3, 1)
    env = pool(T, 2, 3)
    history = play(env, OMBQ(OGD(K, (2,)), OURS, np.random.default_rng(5)), T, surrogate_nodes=40)
    again, beta = OMBQ(OGD(K, (2,)), OURS, np.random.default_rng(5)), 1 - 1 / math.e
    exact, heard, squares = np.zeros((4, 2)), np.zeros((4, 2)), np.zeros(2)
    corners = np.concatenate([np.zeros((1, 3)), np.eye(3)])
    z = (np.arange(4000) + 0.5)[:, None, None] / 4000
    for t in range(T):
        again.act()
        x = again.learner.act()
        (point,) = again.queries()
        q = (1 - point) * env[t].grad(point)
        curve = 1 - np.exp(-z * x)
        g = (np.exp(z - 1) / beta * (1 - curve) * env[t].grad(curve)).mean(axis=0)
        for v, corner in enumerate(corners):
            exact[v] += beta * (g * (corner - x)).sum(axis=-1)
            heard[v] += beta * (q * (corner - x)).sum(axis=-1)
        squares += (q * q).sum(axis=-1)
        again.update((env[t].grad(point),))
    assert history.linear_regret == pytest.approx(exact.max(axis=0), abs=1e-5)  # 25 midpoint sums, each to 1/4000^2
    assert history.query_regret == pytest.approx(heard.max(axis=0), abs=1e-10)
    assert history.gain_norm == pytest.approx(np.sqrt(squares))


def test_the_regret_of_one_gradient_a_round_keeps_its_bound_and_grows_like_the_root() -> None:
    """Experiment E1: six coordinates, budget 3; what the learner hears keeps 1.5 beta D sqrt(sum of squares), copy by copy."""
    K, copies, horizons, regrets = BudgetBox(6, 3), 24, [250, 1000, 4000], []
    rng = np.random.default_rng(6)
    family = QuadraticDR.random(6, rng, batch=(50,))
    for T in horizons:
        algorithm = OMBQ(OGD(K, (copies,)), OURS, rng)
        history = play(Pool(family, rng.integers(50, size=(T, copies))), algorithm, T, surrogate_nodes=12)
        assert (history.query_regret <= 1.5 * OURS.beta * K.diameter * history.gain_norm + 1e-9).all()
        regrets.append(history.linear_regret.mean())
    slope = np.polyfit(np.log(horizons), np.log(regrets), 1)[0]
    assert 0.40 < slope < 0.58  # theory 1/2


# the loop


def test_what_a_run_leaves() -> None:
    seen: list[int] = []
    T, K = 230, random_packing(3, 2, np.random.default_rng(7))
    history = play(pool(T, 2, 3), OMBQ(OGD(K, (2,)), OURS, np.random.default_rng(8)), T, keep_points=True, progress=seen.append)
    assert history.rewards.shape == (T, 2) and history.points is not None and history.points.shape == (T, 2, 3)
    env = pool(T, 2, 3)
    by_hand = np.stack([env[t].value(history.points[t]) for t in range(T)])
    assert np.array_equal(history.rewards, by_hand) and np.array_equal(history.average_reward, by_hand.mean(axis=0))
    assert history.linear_regret is None and not history.exploration.any()
    assert K.contains(history.points, 1e-9).all() and history.final.shape == (2, 3)
    assert seen == list(range(2, T + 1, 2)), "about a hundred times"
    bare = play(env, OMBQ(OGD(K, (2,)), OURS, np.random.default_rng(8)), T)
    assert bare.points is None and np.array_equal(bare.rewards, history.rewards)


def test_a_pool_adds_up_like_a_loop() -> None:
    rng = np.random.default_rng(9)
    x = rng.random((5, 1, 3))
    many = pool(30, 4, 3, seed=10, members=6)
    for rounds in (1, 17, 30):
        loop = sum(many[t].value(x + np.zeros((4, 1))) for t in range(rounds))
        assert many.total(rounds).value(x) == pytest.approx(loop, abs=1e-10)
    one = Pool(many.family, many.index[:, 0])
    assert one[3].value(x) == pytest.approx(many[3].value(x)[:, :1])
    assert one.total(30).value(x[:, 0]) == pytest.approx(sum(one[t].value(x[:, 0]) for t in range(30)), abs=1e-10)


def test_segments_begin_where_they_say() -> None:
    parts = [trap(0.1), trap(0.2), trap(0.3)]
    env = Segments(parts, [0, 2, 5])
    assert [float(env[t].h[1]) for t in range(8)] == [0.1, 0.1, 0.2, 0.2, 0.2, 0.3, 0.3, 0.3]
    assert env.segment(np.array([1, 2, 4, 5, 99])).tolist() == [0, 1, 1, 2, 2]


# one random iterate


@pytest.mark.parametrize("explores", [False, True])
def test_a_random_iterate_is_worth_the_average_reward(explores: bool) -> None:
    T, copies, f = 12, 20_000, QuadraticDR.random(3, np.random.default_rng(11))
    K = BudgetBox(3, 2)

    def algorithm(n: int):
        # small steps, so that all iterates differ
        base = OMBQ(OGD(K, (n,), step=0.02), OURS, np.random.default_rng(12), nodes=None if explores else 12)
        return SFTT(base, 3, T, np.random.default_rng(13)) if explores else base

    points = online_to_batch(f, algorithm(copies), T, np.random.default_rng(14))
    history = play(Fixed(f), algorithm(copies), T)
    draws = f.value(points)
    intended = history.rewards.mean(axis=0) + history.exploration / T  # an exploring round returns what it did not play
    error = 4 * math.hypot(draws.std(), intended.std()) / math.sqrt(copies)
    assert abs(draws.mean() - intended.mean()) < error
    assert points.shape == (copies, 3) and K.contains(points).all()
    if not explores:  # all copies play alike, so each of the 12 iterates is drawn about as often
        plays = play(Fixed(f), algorithm(1), T, keep_points=True).points[:, 0]
        nearest = np.abs(points[:, None] - plays).max(axis=2).argmin(axis=1)
        assert np.abs(points - plays[nearest]).max() < ROUNDING
        counts = np.bincount(nearest, minlength=T)
        assert np.abs(counts / copies - 1 / T).max() < 5 * math.sqrt(1 / T / copies)  # 12 of them, so 5 standard errors


def test_a_random_iterate_keeps_the_promise_in_expectation() -> None:
    """(1/e) f(y) - E f(point) <= regret / T, with the certificate for the regret (T10)."""
    f, K, T = trap(0.05), BudgetBox(2, 1), 200
    start = np.array([0.1, 0.9])
    points = online_to_batch(f, OMBQ(OGD(K, (4000,), x0=start), OURS, np.random.default_rng(15)), T, np.random.default_rng(16))
    history = play(Fixed(f), OMBQ(OGD(K, (400,), x0=start), OURS, np.random.default_rng(17)), T, surrogate_nodes=12)
    draws = f.value(points)
    assert 1 / math.e - draws.mean() <= history.linear_regret.mean() / T + 4 * draws.std() / math.sqrt(4000)
    assert draws.mean() > 0.5


# the trap, as the overview tells it


def test_plain_ascent_stays_in_the_trap_and_the_wrapper_leaves_it() -> None:
    T, K = 1000, BudgetBox(2, 1)
    lure = LambdaDR(lambda x: x[..., 1], lambda x: 0 * x + np.array([0.0, 1.0]), 2)
    env = Segments([lure, trap(0.05)], [0, 100])
    naive = play(env, OMBQ(OGD(K, (5,)), IdentityMonotone(), np.random.default_rng(18)), T)
    wrapped = play(env, OMBQ(OGD(K, (5,)), OURS, np.random.default_rng(18)), T)
    assert naive.final == pytest.approx(np.tile([0.0, 1.0], (5, 1)), abs=1e-9)
    assert wrapped.final == pytest.approx(np.tile([1.0, 0.0], (5, 1)), abs=1e-9)
    assert (naive.average_reward < 0.16).all() and (wrapped.average_reward > 0.6).all()
    # by hand: 100 rounds of at most 1 and 900 of .05; and h caps the coordinate at 1 - 1/e
    assert naive.average_reward == pytest.approx(np.full(5, 0.145), abs=0.001)
    assert (wrapped.average_reward < 1 - 1 / math.e).all()


def test_experts_win_where_the_trap_drifts() -> None:
    """Experiment E5 with 16 segments: four coordinates, 3,200 rounds, and the gradients are no longer than sqrt(1 + 1/3)."""
    T, K, segments = 3200, BudgetBox(4, 1), 16
    rng = np.random.default_rng(19)
    order = [0]
    while len(order) < segments:
        order.append(int(rng.choice([c for c in range(4) if c != order[-1]])))
    env = Segments([drifting_trap(c, 4) for c in order], list(range(0, T, T // segments)))
    G = math.sqrt(4 / 3)
    steady = play(env, OMBQ(OGD(K, (4,)), OURS, np.random.default_rng(20)), T).average_reward
    experts = play(env, OMBQ(ImprovedAder(K, (4,), horizon=T, gain_bound=G), OURS, np.random.default_rng(20)), T).average_reward
    assert (experts > steady + 0.01).all()
    assert steady == pytest.approx(np.full(4, 0.566), abs=0.03) and experts == pytest.approx(np.full(4, 0.59), abs=0.02)
