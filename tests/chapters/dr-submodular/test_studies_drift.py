"""Moving traps, intervals and paths: each measure by a second route, each bound on sequences made to hurt."""

from __future__ import annotations

import numpy as np
import pytest

from paperbook.papers.dr_submodular import studies_drift as drift
from paperbook.papers.dr_submodular.feedback import OMBQ
from paperbook.papers.dr_submodular.functions import check_dr_submodular, check_nonnegative
from paperbook.papers.dr_submodular.learners import OGD, SOOGD, ImprovedAder
from paperbook.papers.dr_submodular.play import Fixed, play
from paperbook.papers.dr_submodular.sets import BudgetBox, random_packing
from paperbook.papers.dr_submodular.wrappers import ExponentialDownClosed


def test_centres_change_at_every_switch_and_nowhere_else() -> None:
    centres = drift.drifting_centres(4, 100, 8, np.random.default_rng(0), reps=30)
    assert centres.shape == (100, 30) and centres.min() == 0 and centres.max() == 3
    switches = {-(-100 * s // 8) for s in range(1, 8)}
    for t in range(1, 100):
        changed = centres[t] != centres[t - 1]
        assert changed.all() if t in switches else not changed.any()


def test_centres_refuse_bad_arguments() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="segments: expected an integer in"):
        drift.drifting_centres(4, 5, 6, rng)
    with pytest.raises(ValueError, match="dim: expected an integer"):
        drift.drifting_centres(1, 5, 2, rng)
    with pytest.raises(TypeError, match="rng"):
        drift.drifting_centres(4, 5, 2, 0)  # type: ignore[arg-type]


def test_hooked_trap_is_one() -> None:
    f = drift.hooked_trap(2, 0, 4)
    check_dr_submodular(f, np.random.default_rng(0))
    check_nonnegative(f)
    eye = np.eye(4)
    np.testing.assert_allclose(f.value(eye), [0.05, 0, 1, 0])
    # stationary at e_p: no feasible direction of {sum x <= 1} ascends (y - e_p over all vertices y)
    directions = np.concatenate([np.zeros((1, 4)), eye]) - eye[0]
    assert (directions @ f.grad(eye[0])).max() <= 1e-12
    with pytest.raises(ValueError, match="previous: expected another coordinate"):
        drift.hooked_trap(1, 1, 4)


@pytest.mark.parametrize("hooked", [False, True])
def test_sequence_knows_its_best_points(hooked: bool) -> None:
    world = drift.drifting_sequence(4, 60, [1, 5], 3, 1, hooked)
    T, copies, d = world.path.shape
    assert (T, copies, d, world.batch) == (60, 6, 4, (2, 3))
    corners = np.concatenate([np.zeros((1, d)), np.eye(d)])
    rng = np.random.default_rng(2)
    inside = rng.dirichlet(np.ones(d + 1), size=500)[:, :d]
    total = 0.0
    for t in range(T):
        f = world.env[t]
        np.testing.assert_allclose(f.value(world.path[t]), 1.0)
        np.testing.assert_allclose(f.value(corners[:, None, :]), world.values[t])
        assert np.linalg.norm(f.grad(rng.random((50, copies, d))), axis=-1).max() <= world.gain_bound + 1e-12
        total = total + f.value(inside[:, None, :])
    # pipage: no interior point beats the best vertex over all rounds (rounding of 60 sums)
    assert (np.asarray(total).max(axis=0) <= world.values.sum(axis=0).max(axis=0) + 1e-9).all()
    # each change moves the best point by the distance of two unit vectors
    np.testing.assert_allclose(world.path_length, np.repeat([0.0, 4 * np.sqrt(2)], 3))


def test_interval_and_path_regret_by_brute_force() -> None:
    rng = np.random.default_rng(3)
    gains, iterates, path = rng.normal(size=(3, 9, 2, 3))
    corners = rng.random((4, 3))
    worst = np.full(2, -np.inf)
    for a in range(9):
        for b in range(a + 1, 10):
            for y in corners:
                worst = np.maximum(worst, sum((gains[t] * (y - iterates[t])).sum(-1) for t in range(a, b)))
    np.testing.assert_allclose(drift.interval_regret(gains, iterates, corners), worst)
    slow = sum((gains[t] * (path[t] - iterates[t])).sum(-1) for t in range(9))
    np.testing.assert_allclose(drift.path_regret(gains, iterates, path), slow)


def test_watched_changes_nothing() -> None:
    f, K = drift.hooked_trap(0, 1, 3), BudgetBox(3, 1.0)
    runs = [kind(OGD(K, (4,)), ExponentialDownClosed(), np.random.default_rng(5)) for kind in (OMBQ, drift.Watched)]
    plain, watched = (play(Fixed(f), run, 40) for run in runs)
    np.testing.assert_array_equal(plain.rewards, watched.rewards)
    recorder = runs[1]
    assert isinstance(recorder, drift.Watched)
    dots = (np.stack(recorder.gains) * np.stack(recorder.iterates)).sum(axis=(0, -1))
    np.testing.assert_allclose(dots, recorder.learner.gain_dot)


def adversarial(K: object, T: int, learner: SOOGD | ImprovedAder, path: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unit gains that push from where the learner is towards the comparator of the round: what hurts most."""
    gains, iterates = [], []
    for t in range(T):
        x = learner.act() + 0.0
        g = path[t] - x
        g = g / np.maximum(np.linalg.norm(g, axis=-1, keepdims=True), 1e-12)
        gains.append(g)
        iterates.append(x)
        learner.update(g)
    return np.stack(gains), np.stack(iterates)


@pytest.mark.parametrize("segments", [1, 3, 10])
def test_bounds_hold_on_gains_made_to_hurt(segments: int) -> None:
    T, K = 120, random_packing(3, 2, np.random.default_rng(7))
    ends = np.stack([K.lmo(c) for c in np.random.default_rng(8).normal(size=(segments, 3))])
    path = ends[np.arange(T) * segments // T][:, None]
    walker = SOOGD(K, (1,), horizon=T, gain_bound=1.0)
    gains, iterates = adversarial(K, T, walker, path)
    assert K.contains(iterates).all()
    length = np.linalg.norm(np.diff(path[:, 0], axis=0), axis=-1).sum()
    for a in range(0, T, 20):  # a bound for each length of interval, not only for the longest
        for b in range(a + 20, T + 1, 20):
            most = drift.so_ogd_bound(walker, b - a, 1.0)
            assert drift.interval_regret(gains[a:b], iterates[a:b], ends)[0] <= most
    assert T <= walker.oracle_calls[0] <= drift.so_ogd_call_bound(walker, T, 1.0)
    ader = ImprovedAder(K, (1,), horizon=T, gain_bound=1.0)
    gains, iterates = adversarial(K, T, ader, path)
    assert drift.path_regret(gains, iterates, path)[0] <= ader.bound(length)


def test_so_ogd_bounds_at_their_own_constants() -> None:
    """With eta = D/(G sqrt T), delta = T^-1/2 they collapse to 2 D G sqrt T and T + (D/r)^2 2 (T + sqrt T)/(2 - delta)."""
    T, G, K = 400, 1.7, BudgetBox(5, 2.0)
    walker = SOOGD(K, (), horizon=T, gain_bound=G)
    D, r, delta = K.diameter, K.inner_ball()[1], T**-0.5
    assert drift.so_ogd_bound(walker, T, G) == pytest.approx(2 * D * G * T**0.5)
    assert drift.so_ogd_call_bound(walker, T, G) == pytest.approx(T + (D / r) ** 2 * 2 * (T + T**0.5) / (2 - delta))


def test_study_orders_the_learners() -> None:
    world = drift.drifting_sequence(4, 3200, [16], 3, 0)
    found = drift.drift_study(world, 0, ("ogd", "ader"))
    # the gain of Ader over OGD under drift, an expectation of the theory of dynamic regret (measured .03)
    assert (found["ader"].average - found["ogd"].average).min() > 0.01
    assert found["ader"].average.max() < 1 - np.exp(-1)  # h caps every coordinate
    assert (found["ader"].linear_path <= drift.dynamic_bound(found["ader"])).all()


def test_hooks_hold_what_has_no_wrapper() -> None:
    slopes = []
    for T in (200, 800):
        found = drift.drift_study(drift.drifting_sequence(4, T, [4], 4, 1, hooked=True), 1, ("ogd", "plain"))
        slopes.append((found["plain"].adaptive.mean(), found["ogd"].adaptive.mean()))
    assert drift.slope([200, 800], [a for a, _ in slopes]) > 0.95  # linear
    assert drift.slope([200, 800], [b for _, b in slopes]) < 0.65  # square root, one pair of horizons


def test_same_seed_same_run() -> None:
    world = drift.drifting_sequence(3, 50, [1, 5], 2, 4)
    first, again, other = (drift.drift_run("ader", world, seed) for seed in (4, 4, 5))
    np.testing.assert_array_equal(first.rewards, again.rewards)
    assert not np.array_equal(first.rewards, other.rewards)
    assert first.rewards.shape == (50, 2, 2) and not first.calls.any()


def test_price_of_projection_measures_both() -> None:
    price = drift.price_of_projection(4, 30, 0, copies=3)
    assert price.separation > 0 and price.projection > 0
    assert 1 <= price.calls <= price.bound and 0.5 < price.regret_ratio < 3


def test_names_are_checked() -> None:
    with pytest.raises(ValueError, match="name: expected one of"):
        drift.learner_named("adam", BudgetBox(3, 1.0), (2,), 10, 1.0)
    assert drift.slope([1, 10, 100], [3, 300, 30000]) == pytest.approx(2)
    with pytest.raises(ValueError, match="values"):
        drift.slope([1, 2], [1, 0])
