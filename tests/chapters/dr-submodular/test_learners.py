"""Online linear learners: each against a plain loop over numbers, its bound, and the sequences that hurt it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from paperbook.papers.dr_submodular.learners import OGD, SOOGD, ImprovedAder
from paperbook.papers.dr_submodular.sets import BudgetBox, Polytope, random_packing

ROUNDING = 1e-12  # a few hundred operations on numbers of size 1
PACKING = random_packing(5, 3, np.random.default_rng(5))
BOX = BudgetBox(4, 2)


def corners(d: int, budget: int) -> np.ndarray:
    """Vertices of a budget box with whole budget: the sets of at most that many elements."""
    return np.array([v for v in itertools.product((0.0, 1.0), repeat=d) if sum(v) <= budget])


def unit_gains(rng: np.random.Generator, T: int, batch: int, d: int) -> np.ndarray:
    g = rng.standard_normal((T, batch, d))
    return g / np.linalg.norm(g, axis=-1, keepdims=True)


def run(learner, gains: np.ndarray) -> np.ndarray:
    """Iterates ``(T, batch, d)`` that met the gains."""
    iterates = []
    for g in gains:
        iterates.append(learner.act() + 0)
        learner.update(g)
    return np.stack(iterates)


LEARNERS = {
    "adagrad": lambda K, batch, **kind: OGD(K, batch, **kind),
    "fixed": lambda K, batch, **kind: OGD(K, batch, step=0.1, **kind),
    "separation": lambda K, batch, **kind: SOOGD(K, batch, horizon=60, gain_bound=1.0, **kind),
    "experts": lambda K, batch, **kind: ImprovedAder(K, batch, horizon=60, gain_bound=1.0, **kind),
}


# what all learners share


@pytest.mark.parametrize("name", LEARNERS)
def test_regret_is_that_of_the_best_vertex_by_enumeration(name: str) -> None:
    gains = unit_gains(np.random.default_rng(1), 60, 3, 4) + 0.2
    learner = LEARNERS[name](BOX, (3,))
    x = run(learner, gains)
    for copy in range(3):
        by_hand = max(sum(float(g @ (u - xt)) for g, xt in zip(gains[:, copy], x[:, copy], strict=True)) for u in corners(4, 2))
        assert float(learner.regret()[copy]) == pytest.approx(by_hand, abs=100 * ROUNDING)
    assert learner.gain_square == pytest.approx((gains**2).sum(axis=(0, 2)))


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("K", [BOX, PACKING], ids=["box", "packing"])
def test_every_iterate_is_feasible_and_a_batch_is_single_copies(name: str, K) -> None:
    gains = unit_gains(np.random.default_rng(2), 40, 3, K.dim)
    x = run(LEARNERS[name](K, (3,)), gains)
    assert K.contains(x, 1e-9).all()
    assert not np.array_equal(x[0], x[-1])
    for copy in range(3):
        alone = run(LEARNERS[name](K, ()), gains[:, copy])
        # projections onto a polytope end at 1e-9; the others repeat the same operations
        assert np.abs(alone - x[:, copy]).max() < (1e-8 if K is PACKING else ROUNDING)


@pytest.mark.parametrize("name", LEARNERS)
def test_tensors_get_the_numbers_of_arrays(name: str) -> None:
    gains = unit_gains(np.random.default_rng(3), 40, 2, 4)
    arrays, tensors = LEARNERS[name](BOX, (2,)), LEARNERS[name](BOX, (2,), like_array=torch.zeros((), dtype=torch.float64))
    x, y = run(arrays, gains), []
    for g in torch.as_tensor(gains):
        y.append(tensors.act())
        tensors.update(g)
    assert np.abs(torch.stack(y).numpy() - x).max() < 10 * ROUNDING
    assert isinstance(tensors.regret(), torch.Tensor)


@pytest.mark.parametrize("name", LEARNERS)
def test_reset_starts_again(name: str) -> None:
    gains = unit_gains(np.random.default_rng(4), 30, 2, 4)
    learner = LEARNERS[name](BOX, (2,))
    first = run(learner, gains)
    learner.reset()
    assert learner.act() == pytest.approx(np.full((2, 4), 0.5)), "the centre: k/d"
    assert not learner.gain_sum.any() and not learner.gain_square.any()
    assert np.array_equal(run(learner, gains), first)


def test_the_first_iterate_may_be_given() -> None:
    start = np.array([1.0, 0.0, 0.5, 0.5])
    assert OGD(BOX, (2,), x0=start).act().tolist() == [start.tolist()] * 2
    with pytest.raises(ValueError, match="^x0: expected points of K"):
        OGD(BOX, (2,), x0=np.ones(4))
    start_given = start.copy()
    learner = OGD(BOX, (), x0=start)
    learner.update(np.ones(4))
    assert np.array_equal(start, start_given), "the caller's array is not written to"


# projected ascent


def test_adagrad_steps_by_hand() -> None:
    # D = 2 on {x in [0,1]^4, sum x <= 2}
    learner = OGD(BOX, (), x0=np.zeros(4))
    learner.update(np.array([0.3, 0.0, 0.0, 0.0]))
    assert learner.act().tolist() == [1.0, 0.0, 0.0, 0.0], "a step of length 2, cut to the box"
    learner.update(np.array([0.0, -0.4, 0.4, 0.0]))
    length = 2 / math.sqrt(0.09 + 0.32)
    assert learner.act() == pytest.approx(np.array([1.0, 0.0, 1.0, 0.0])) and 0.4 * length > 1
    learner.update(np.array([0.01, 0.0, -0.2, 0.0]))
    assert learner.act() == pytest.approx(np.array([1.0, 0.0, 1 - 0.4 / math.sqrt(0.41 + 0.0401), 0.0]))


def test_before_the_first_gain_that_is_not_zero_nothing_moves() -> None:
    learner = OGD(BOX, (2,))
    learner.update(np.array([[0.0] * 4, [0.1] * 4]))
    assert learner.act()[0] == pytest.approx(np.full(4, 0.5)) and np.isfinite(learner.act()).all()


@pytest.mark.parametrize("kind", ["unit", "sizes", "against", "alternating"])
def test_adagrad_keeps_its_bound_on_hurtful_sequences_against_every_vertex(kind: str) -> None:
    rng = np.random.default_rng(6)
    T, copies = 300, 6
    random = unit_gains(rng, T, copies, 4)
    learner, vertices = OGD(BOX, (copies,)), corners(4, 2)
    gained, squares = np.zeros((len(vertices), copies)), np.zeros(copies)
    for t in range(T):
        x = learner.act()
        g = random[t]
        if kind == "sizes":  # over six orders of magnitude, so that no step fitted to a bound would do
            g = g * 10.0 ** rng.uniform(-3, 3, size=(copies, 1))
        elif kind == "against":  # chosen after x is known: away from where it stands
            g = 0.5 - x + 0.1 * g
        elif kind == "alternating":
            g = np.where(t % 3 == 0, -1.0, 0.6) * np.ones((copies, 4))
        gained += np.einsum("cd,vcd->vc", g, vertices[:, None] - x)
        squares += (g * g).sum(axis=1)
        learner.update(g)
        # at every horizon, not at the last one only
        assert (gained <= 1.5 * BOX.diameter * np.sqrt(squares) + 1e-9).all()
    assert gained.max() > 0


def test_the_fixed_step_keeps_its_bound() -> None:
    T, G = 400, 1.0
    step = BOX.diameter / (G * math.sqrt(T))
    for gains in (unit_gains(np.random.default_rng(7), T, 8, 4), np.full((T, 8, 4), 0.5)):
        learner = OGD(BOX, (8,), step=step)
        run(learner, gains)
        assert (learner.regret() <= BOX.diameter * G * math.sqrt(T) + 1e-9).all()
    # on [0, 1] with T = 400 the step is 1/20: x = .5, .55, ..., 1 hears gain 1, and .5 + .45 + ... + .05 = 2.75 is lost
    line = OGD(BudgetBox(1, 1), (), step=1 / 20)
    run(line, np.ones((400, 1)))
    assert float(line.regret()) == pytest.approx(2.75, abs=100 * ROUNDING)


def test_each_copy_may_have_its_own_step() -> None:
    gains = unit_gains(np.random.default_rng(8), 20, 2, 4)
    both = run(OGD(BOX, (2,), step=np.array([[0.02], [0.3]])), gains)
    for copy, step in enumerate((0.02, 0.3)):
        assert np.abs(run(OGD(BOX, (), step=step), gains[:, copy]) - both[:, copy]).max() < ROUNDING


# separation instead of projection


def test_separation_against_a_plain_loop_and_its_calls_counted() -> None:
    T, rng = 400, np.random.default_rng(9)
    gains = unit_gains(rng, T, 1, 5)[:, 0]
    learner = SOOGD(PACKING, (), horizon=T, gain_bound=1.0)
    rows = np.vstack([PACKING.A, np.eye(5), -np.eye(5)])
    right = np.concatenate([PACKING.b, np.ones(5), np.zeros(5)])
    norms = np.linalg.norm(rows, axis=1)
    centre, radius = PACKING.inner_ball()
    x, calls = centre.copy(), 0
    for g in gains:
        assert learner.act() == pytest.approx(x, abs=1e-10)
        x = x + PACKING.diameter / math.sqrt(T) * g
        while True:
            calls += 1
            distance = (rows @ x - right) / norms
            worst = int(distance.argmax())
            if distance[worst] <= 1e-12:
                break
            x = x - radius / math.sqrt(T) * rows[worst] / norms[worst]
        learner.update(g)
    assert float(learner.oracle_calls) == calls
    assert T < calls < 20 * T, "O(T) calls in all"


def test_separation_never_projects_and_each_copy_counts_its_own_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def project(self, y):
        raise AssertionError("projected")

    monkeypatch.setattr(Polytope, "project", project)
    gains = unit_gains(np.random.default_rng(10), 100, 3, 5)
    gains[:, 0] *= 1e-3  # this copy hardly moves: one call a round
    learner = SOOGD(PACKING, (3,), horizon=100, gain_bound=1.0)
    x = run(learner, gains)
    assert PACKING.contains(x, 1e-9).all()
    assert learner.oracle_calls[0] == 100 and (learner.oracle_calls[1:] > 150).all()
    for copy in (1, 2):
        alone = SOOGD(PACKING, (), horizon=100, gain_bound=1.0)
        run(alone, gains[:, copy])
        assert float(alone.oracle_calls) == learner.oracle_calls[copy]


def test_no_move_of_the_walk_back_goes_away_from_the_shrunk_set(monkeypatch: pytest.MonkeyPatch) -> None:
    T, rng = 100, np.random.default_rng(11)
    learner = SOOGD(PACKING, (), horizon=T, gain_bound=1.0)
    centre, radius = PACKING.inner_ball()
    delta = T**-0.5
    inside = PACKING.project(rng.random((200, 5)) * 1.5)  # points of K, many on its faces
    shrunk = (1 - delta) * inside + delta * centre
    assert learner.delta == pytest.approx(delta) and learner.radius == pytest.approx(radius)
    visited: list[np.ndarray] = []
    separate = Polytope.separate

    def watched(self, y):
        visited.append(y + 0)
        return separate(self, y)

    monkeypatch.setattr(Polytope, "separate", watched)
    moves = 0
    for g in unit_gains(rng, T, 1, 5)[:, 0]:
        visited.clear()
        learner.update(g)
        for before, after in itertools.pairwise(visited):
            moves += 1
            assert np.linalg.norm(after - before) == pytest.approx(delta * radius)
            assert (np.linalg.norm(after - shrunk, axis=1) <= np.linalg.norm(before - shrunk, axis=1) + ROUNDING).all()
    assert moves > T, "there was something to watch"


def test_the_regret_of_separation_grows_like_the_root_of_the_horizon() -> None:
    horizons, regrets = [400, 1600, 6400], []
    for T in horizons:
        learner = SOOGD(PACKING, (24,), horizon=T, gain_bound=1.0)
        run(learner, unit_gains(np.random.default_rng(12), T, 24, 5))
        regrets.append(float(learner.regret().mean()))
    slope = np.polyfit(np.log(horizons), np.log(regrets), 1)[0]
    # theory 1/2; with 24 random walks the slope over a factor 16 has a standard error of about .04
    assert 0.35 < slope < 0.65


# experts


@pytest.mark.parametrize(("horizon", "experts"), [(100, 4), (10_000, 8), (1, 2)])
def test_the_number_of_experts_by_hand(horizon: int, experts: int) -> None:
    # half the logarithm of 1 + 4T/7 = 58.1, 5715.3, 1.57 is 2.93, 6.24, .33; rounded up, and one more
    learner = ImprovedAder(BOX, (), horizon=horizon, gain_bound=2.0)
    assert learner.experts == experts == len(learner.steps)
    assert learner.steps[0] == pytest.approx(BOX.diameter / 2 * math.sqrt(3.5 / horizon))
    assert learner.steps[1:] / learner.steps[:-1] == pytest.approx(np.full(experts - 1, 2.0))


def test_weights_begin_with_the_prior_and_sum_to_one() -> None:
    learner = ImprovedAder(BOX, (2,), horizon=100, gain_bound=1.0)
    # (5/4) / (i (i + 1)) for four experts
    assert learner.weights()[:, 0] == pytest.approx(np.array([5 / 8, 5 / 24, 5 / 48, 1 / 16]))
    for g in unit_gains(np.random.default_rng(13), 100, 2, 4) + 0.3:
        learner.update(g)
        assert learner.weights().sum(axis=0) == pytest.approx(np.ones(2), abs=ROUNDING)
    assert learner.weights().shape == (4, 2) and learner.weights()[0, 0] != pytest.approx(5 / 8, abs=0.02)


def test_experts_against_a_plain_loop_over_numbers() -> None:
    T, G, K = 80, 1.5, BudgetBox(3, 3)  # the budget never binds, so that a projection is a clip
    gains = 1.4 * unit_gains(np.random.default_rng(14), T, 1, 3)[:, 0]
    learner, D = ImprovedAder(K, (), horizon=T, gain_bound=G), math.sqrt(3)
    N = 4  # half the logarithm of 46.7 is 2.77
    places = [[0.5] * 3 for _ in range(N)]
    weights = [(1 + 1 / N) / (i * (i + 1)) for i in range(1, N + 1)]
    for g in gains:
        whole = sum(weights)
        x = [sum(w * place[j] for w, place in zip(weights, places, strict=True)) / whole for j in range(3)]
        assert learner.act() == pytest.approx(np.array(x), abs=100 * ROUNDING)
        learner.update(g)
        for i, place in enumerate(places):
            loss = -sum(g[j] * (place[j] - x[j]) for j in range(3))
            weights[i] *= math.exp(-math.sqrt(2 / (T * G * G * D * D)) * loss)
            eta = 2**i * D / G * math.sqrt(7 / (2 * T))
            places[i] = [min(1.0, max(0.0, place[j] + eta * g[j])) for j in range(3)]


@pytest.mark.parametrize("segments", [1, 4, 20])
def test_the_dynamic_regret_of_experts_keeps_its_bound(segments: int) -> None:
    T, copies, G = 600, 5, 1.0
    rng = np.random.default_rng(15)
    switch = np.repeat(unit_gains(rng, segments, copies, 4), T // segments, axis=0)
    gains = switch + 0.5 * unit_gains(rng, T, copies, 4)
    gains /= np.maximum(1.0, np.linalg.norm(gains, axis=-1, keepdims=True))
    learner = ImprovedAder(BOX, (copies,), horizon=T, gain_bound=G)
    x = run(learner, gains)
    # the path that is best segment by segment, among vertices
    vertices, best = corners(4, 2), np.zeros((T, copies, 4))
    length = T // segments
    for s, copy in itertools.product(range(segments), range(copies)):
        rows = slice(s * length, (s + 1) * length)
        best[rows, copy] = vertices[(gains[rows, copy].sum(axis=0) @ vertices.T).argmax()]
    path = np.linalg.norm(np.diff(best, axis=0), axis=-1).sum(axis=0)
    dynamic = (gains * (best - x)).sum(axis=(0, 2))
    assert (dynamic > 0).all() and (dynamic <= learner.bound(path)).all()
    assert (path > 0).all() == (segments > 1)


def test_the_bound_of_experts_by_hand() -> None:
    # D = 2, T = 100, G = 1/2, P = 7: 3/8 sqrt(200 * 84) + sqrt(200)/2 (1 + 2 ln(k+1)), k = floor(.5 log2(3)) + 1 = 1
    bound = ImprovedAder(BOX, (), horizon=100, gain_bound=0.5).bound(7.0)
    assert float(bound) == pytest.approx(0.375 * math.sqrt(16_800) + 0.5 * math.sqrt(200) * (1 + 2 * math.log(2)))
