"""Experiments of the page on changing worlds: drifting traps, paths, intervals, and the price of a projection.

Nothing here plots. Copies of an experiment (repetitions, numbers of segments) are one batch, so a study is one loop over rounds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from paperbook.study import arguments as check
from paperbook.study.seeds import rng as stream

from .arrays import Array, Stream, numpy_of
from .feedback import OMBQ
from .functions import QuadraticDR, drifting_trap, stacked, take
from .learners import OGD, SOOGD, ImprovedAder, OnlineLearner
from .play import Segments, play, regret
from .sets import BudgetBox, random_packing
from .wrappers import ONE_OVER_E, ExponentialDownClosed, IdentityMonotone, Wrapper

LEARNERS = ("ogd", "ader", "so_ogd")
"""Learners inside the paper's wrapper; ``"plain"`` is the first of them without a wrapper."""


def drifting_centres(dim: int, rounds: int, segments: int, rng: np.random.Generator, reps: int = 1) -> np.ndarray:
    """The coordinate that pays in each round, ``(rounds, reps)``: `segments` pieces of equal length, a new one in each.

    A piece's coordinate is uniform among those that did not pay just before, so every change is one.
    """
    d, T = check.integer("dim", dim, 2), check.integer("rounds", rounds, 1)
    S, n = check.integer("segments", segments, 1, T), check.integer("reps", reps, 1)
    steps = check.generator("rng", rng).integers(1, d, size=(S, n))
    steps[0] = rng.integers(d, size=n)
    of_piece = steps.cumsum(axis=0) % d
    return of_piece[np.arange(T) * S // T]


class Watched(OMBQ):
    """The reduction, keeping every gain and iterate: what intervals and paths are measured with.

    Attributes:
        gains: q_1, q_2, ... as heard, each ``(*batch, d)``.
        iterates: x_1, x_2, ..., each ``(*batch, d)``.
    """

    def __init__(self, learner: OnlineLearner, wrapper: Wrapper, rng: Stream, nodes: int | None = None) -> None:
        super().__init__(learner, wrapper, rng, nodes)
        self.gains: list[np.ndarray] = []
        self.iterates: list[np.ndarray] = []

    def update(self, answers: tuple[Array, ...]) -> None:
        """Hand the learner its gain, and keep both."""
        gain = self._factor * answers[0]
        self.gains.append(numpy_of(gain if self.nodes is None else gain.sum(0)))
        self.iterates.append(numpy_of(self.learner.act()) + 0.0)
        super().update(answers)


def interval_regret(gains: np.ndarray, iterates: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """max over intervals I and corners y of sum_{t in I} <g_t, y - x_t>, ``(*batch)``.

    Exact for linear gains if `corners` holds all vertices of the set: a linear function is largest at one.

    Args:
        gains: ``(T, *batch, d)``.
        iterates: ``(T, *batch, d)``.
        corners: ``(V, d)``.
    """
    lost = gains @ np.asarray(corners).T - (gains * iterates).sum(-1)[..., None]  # (T, *batch, V)
    prefix = np.concatenate([np.zeros((1, *lost.shape[1:])), lost.cumsum(axis=0)])
    return (prefix[1:] - np.minimum.accumulate(prefix[:-1], axis=0)).max(axis=(0, -1))


def path_regret(gains: np.ndarray, iterates: np.ndarray, path: np.ndarray) -> np.ndarray:
    """sum_t <g_t, u_t - x_t>, ``(*batch)``, for a path of comparators ``(T, *batch, d)``."""
    return (gains * (path - iterates)).sum(axis=(0, -1))


def learner_named(name: str, K: Any, batch: tuple[int, ...], horizon: int, gain_bound: float, **options: Any) -> OnlineLearner:
    """``"ogd"`` (steps D / sqrt(sum of squares)), ``"ogd_fixed"`` (D / (G sqrt T)), ``"ader"`` or ``"so_ogd"``."""
    check.choice("name", name, ("ogd", "ogd_fixed", "ader", "so_ogd"))
    if name == "ogd":
        return OGD(K, batch, **options)
    if name == "ogd_fixed":
        return OGD(K, batch, step=K.diameter / (gain_bound * horizon**0.5), **options)
    if name == "ader":
        return ImprovedAder(K, batch, horizon=horizon, gain_bound=gain_bound, **options)
    return SOOGD(K, batch, horizon=horizon, gain_bound=gain_bound, **options)


def so_ogd_bound(learner: SOOGD, rounds: int, gain_bound: float) -> float:
    """D^2/(2 eta) + eta G^2 n / 2 + delta D G n: regret of SO-OGD on every interval of n = `rounds` rounds (dr-eq-so-ogd)."""
    D, G, n = learner.K.diameter, gain_bound, check.integer("rounds", rounds, 1)
    return float(D**2 / (2 * learner.step) + learner.step * G**2 * n / 2 + learner.delta * D * G * n)


def so_ogd_call_bound(learner: SOOGD, rounds: int, gain_bound: float) -> float:
    """T + (D^2 + T (2 eta G D + eta^2 G^2)) / (delta r^2 (2 - delta)): oracle calls of SO-OGD in T rounds (dr-eq-calls)."""
    D, G, T = learner.K.diameter, gain_bound, check.integer("rounds", rounds, 1)
    eta, delta, r = learner.step, learner.delta, learner.radius
    return float(T + (D**2 + T * (2 * eta * G * D + (eta * G) ** 2)) / (delta * r**2 * (2 - delta)))


@dataclass(frozen=True)
class Sequence:
    """Rewards fixed before the first round (oblivious adversary), and the best fixed points and path of each copy.

    Attributes:
        env: the rewards, a sequence of its own for each of the copies, which are one flat axis.
        path: best comparator of each round ``(T, copies, d)``; it earns 1 in every round.
        values: f_t at the vertices 0, e_1, ..., e_d, ``(T, d + 1, copies)``. On every interval one of them is the best fixed
            point of {sum x <= 1}: the sum of multilinear rewards is convex along e_i - e_j (pipage rounding).
        gain_bound: G, a bound on the norm of the gradients over the box.
        batch: shape of the copies, ``(segments, reps)``.
    """

    env: Segments
    path: np.ndarray
    values: np.ndarray
    gain_bound: float
    batch: tuple[int, ...]

    @property
    def path_length(self) -> np.ndarray:
        """P_T of each copy, ``(copies)``."""
        return np.asarray(np.linalg.norm(np.diff(self.path, axis=0), axis=-1).sum(axis=0))


def hooked_trap(c: int, previous: int, dim: int, eps: float = 0.05) -> QuadraticDR:
    """f(x) = x_c (1 - x_p) + eps x_p: the trap of T4 between the coordinate that pays now and the one that paid before.

    On {sum x <= 1} the optimum is 1, at e_c; e_p is stationary for f, with value eps.
    """
    d = check.integer("dim", dim, 2)
    c, p = check.integer("c", c, 0, d - 1), check.integer("previous", previous, 0, d - 1)
    if c == p:
        raise ValueError(f"previous: expected another coordinate than c = {c}")
    H, h = np.zeros((d, d)), np.zeros(d)
    H[c, p] = H[p, c] = -1.0
    h[c], h[p] = 1.0, check.number("eps", eps, 0.0, 1.0)
    return QuadraticDR(H, h, np.zeros(()))


def drifting_sequence(dim: int, rounds: int, segments: list[int], reps: int, seed: int, hooked: bool = False) -> Sequence:
    """Drifting traps (E5), or with `hooked` traps that hold on to the last coordinate that paid.

    Args:
        dim: d >= 2.
        rounds: T.
        segments: numbers S of pieces; one after the other along the first axis of the batch.
        reps: copies of each.
        seed: of the sequences.
        hooked: :func:`hooked_trap` in place of :func:`~paperbook.papers.dr_submodular.functions.drifting_trap`.
    """
    drawn = [drifting_centres(dim, rounds, S, stream(seed, "centres", rounds, S), reps) for S in segments]
    centres = np.concatenate(drawn, axis=1)
    path = np.eye(dim)[centres]
    if hooked:
        before = np.concatenate([(centres[:1] + 1) % dim, centres[:-1]])
        fresh = np.concatenate([np.ones((1, centres.shape[1]), dtype=bool), centres[1:] != centres[:-1]])
        start = np.maximum.accumulate(np.where(fresh, np.arange(rounds)[:, None], 0), axis=0)
        before = np.take_along_axis(before, start, axis=0)
        family = stacked([hooked_trap(c, p if p != c else (c + 1) % dim, dim) for c in range(dim) for p in range(dim)])
        index = centres * dim + before
    else:
        family, index = stacked([drifting_trap(c, dim) for c in range(dim)]), centres
    corners = np.concatenate([np.zeros((1, dim)), np.eye(dim)])
    table = family.value(corners[:, None, :])  # (V, members)
    starts = np.flatnonzero(np.concatenate([[True], (index[1:] != index[:-1]).any(axis=1)]))
    env = Segments([take(family, index[start]) for start in starts], starts.tolist())
    return Sequence(env, path, np.moveaxis(table[:, index], 0, 1), float(family.lipschitz().max()),
                    (len(segments), reps))  # fmt: skip


@dataclass(frozen=True)
class Drift:
    """One algorithm against a sequence; arrays are ``(segments, reps)`` where nothing else is said.

    Attributes:
        rewards: ``(T, segments, reps)``.
        average: average reward.
        dynamic: 1/e-regret against the best path.
        adaptive: 1/e-regret on the worst interval, exact.
        linear_path: beta * sum <q_t, u_t - x_t> against the best path; in the wrapper its mean is at least that of `dynamic`.
        linear_interval: beta * the largest such sum over an interval and a fixed comparator.
        path_length: P_T.
        calls: oracle calls of SO-OGD for its set; 0 for the others.
        learner: the learner, used up.
    """

    rewards: np.ndarray
    average: np.ndarray
    dynamic: np.ndarray
    adaptive: np.ndarray
    linear_path: np.ndarray
    linear_interval: np.ndarray
    path_length: np.ndarray
    calls: np.ndarray
    learner: OnlineLearner


def drift_run(name: str, sequence: Sequence, seed: int, *, wrapped: bool = True, **options: Any) -> Drift:
    """Play one learner on {sum x <= 1}, with one random gradient a round.

    Args:
        name: of :func:`learner_named`.
        sequence: the rewards.
        seed: of the random queries.
        wrapped: the paper's wrapper, or none (h(x) = x and the gradient at x).
        options: for the learner (``step``, ``x0``).
    """
    T, copies, dim = sequence.path.shape
    K = BudgetBox(dim, 1.0)
    learner = learner_named(name, K, (copies,), T, sequence.gain_bound, **options)
    wrapper: Wrapper = ExponentialDownClosed() if wrapped else IdentityMonotone()
    algorithm = Watched(learner, wrapper, stream(seed, "drift", name, int(wrapped)))
    history = play(sequence.env, algorithm, T)
    gains, iterates = np.stack(algorithm.gains), np.stack(algorithm.iterates)
    corners = np.concatenate([np.zeros((1, dim)), np.eye(dim)])
    of_copies = {
        "average": history.rewards.mean(axis=0),
        "dynamic": regret(history, ONE_OVER_E, "dynamic", np.ones((T, copies))),
        "adaptive": regret(history, ONE_OVER_E, "adaptive", sequence.values),
        "linear_path": wrapper.beta * path_regret(gains, iterates, sequence.path),
        "linear_interval": wrapper.beta * interval_regret(gains, iterates, corners),
        "path_length": sequence.path_length,
        "calls": numpy_of(getattr(learner, "oracle_calls", 0 * learner.gain_dot)),
    }
    shaped = {key: value.reshape(sequence.batch) for key, value in of_copies.items()}
    return Drift(rewards=history.rewards.reshape(T, *sequence.batch), learner=learner, **shaped)


def drift_study(
    sequence: Sequence, seed: int, names: tuple[str, ...] = ("ogd", "ader", "so_ogd", "plain")
) -> dict[str, Drift]:
    """Several algorithms against the same sequence: learners in the wrapper, and ``"plain"``, gradient ascent without it."""
    return {
        name: drift_run("ogd" if name == "plain" else name, sequence, seed, wrapped=name != "plain") for name in names
    }


def dynamic_bound(found: Drift) -> np.ndarray:
    """beta times the bound of Improved Ader at each copy's own path length, ``(segments, reps)`` (dr-eq-ader)."""
    assert isinstance(found.learner, ImprovedAder)
    return np.asarray((1 - ONE_OVER_E) * found.learner.bound(found.path_length))


def interval_bound(found: Drift, sequence: Sequence) -> float:
    """beta times the bound of SO-OGD for the longest interval, all T rounds (dr-eq-so-ogd)."""
    assert isinstance(found.learner, SOOGD)
    return (1 - ONE_OVER_E) * so_ogd_bound(found.learner, len(sequence.path), sequence.gain_bound)


@dataclass(frozen=True)
class Price:
    """Two ways to stay in a polytope.

    Attributes:
        projection: seconds a round with a quadratic programme a copy.
        separation: seconds a round with a separation oracle.
        calls: oracle calls a round and copy.
        bound: the bound on them.
        regret_ratio: mean regret of SO-OGD over that of OGD with the same step.
    """

    projection: float
    separation: float
    calls: float
    bound: float
    regret_ratio: float


def price_of_projection(dim: int, rounds: int, seed: int, copies: int = 1, rows: int = 3) -> Price:
    """OGD with Clarabel against SO-OGD on one random packing polytope, the same random linear gains of norm 1 for both."""
    rounds, copies = check.integer("rounds", rounds, 1), check.integer("copies", copies, 1)
    rng = stream(seed, "packing", dim, copies)
    K = random_packing(dim, rows, rng)
    G, drift = 1.0, rng.standard_normal(dim)
    gains = rng.standard_normal((rounds, copies, dim)) + drift
    gains /= np.linalg.norm(gains, axis=-1, keepdims=True)
    seconds, regrets = {}, {}
    learners = {name: learner_named(name, K, (copies,), rounds, G) for name in ("ogd_fixed", "so_ogd")}
    for name, learner in learners.items():
        start = time.perf_counter()
        for g in gains:
            learner.update(g)
        seconds[name] = (time.perf_counter() - start) / rounds
        regrets[name] = float(learner.regret().mean())
    walker = learners["so_ogd"]
    assert isinstance(walker, SOOGD)
    return Price(seconds["ogd_fixed"], seconds["so_ogd"], float(walker.oracle_calls.mean()) / rounds,
                 so_ogd_call_bound(walker, rounds, G) / rounds, regrets["so_ogd"] / regrets["ogd_fixed"])  # fmt: skip


def slope(sizes: Any, values: Any) -> float:
    """Least-squares slope of log `values` against log `sizes`, both ``(n,)`` and positive."""
    x, y = check.array("sizes", sizes, 0.0, ndim=1, open_low=True), check.array("values", values, 0.0, ndim=1, open_low=True)
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


