"""Experiments of the page on graphs and determinants: cuts, recommendations, kernels, quadratics, and runs of many rounds.

Nothing here plots. A run at scale keeps running sums instead of rounds, and goes on from checkpoints to the same bits.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paperbook.study import arguments as check
from paperbook.study.checkpoints import Checkpoints
from paperbook.study.seeds import rng as stream

from .arrays import Array, like, numpy_of
from .baselines import (
    MetaFrankWolfe,
    best_set,
    constraints,
    measured_continuous_greedy,
    non_monotone_frank_wolfe,
    projected_ascent,
    quadratic_upper_bound,
)
from .config_graphs import GraphsConfig
from .feedback import FOTZO, OMBQ, SFTT, Algorithm
from .functions import CutExtension, DRSubmodular, QuadraticDR, SoftmaxDPP, take
from .learners import OGD, SOOGD, ImprovedAder, OnlineLearner
from .play import Fixed, play
from .sets import BudgetBox, random_packing
from .studies import Place, block_length, smoothing
from .wrappers import ONE_OVER_E, ExponentialDownClosed, Wrapper, wrapper_named

Report = Callable[[int, int, str], None]
"""Called with (rounds done, rounds in all, what they are), as :meth:`paperbook.study.results.Run.progress`."""

ENUMERABLE = 400_000
"""Up to so many sets the optimum is found by looking at all of them."""


# --- graphs ---------------------------------------------------------------------------------------------------------------


def weights(graph: str, path: str = "", max_nodes: int = 0) -> np.ndarray:
    """Weights ``(d, d)`` of a symmetric cut problem.

    Args:
        graph: ``"karate"``, ``"les_miserables"``, ``"davis"``: graphs that come with networkx; ``"edge_list"``: a file of edges;
            ``"movielens"``: a file of ratings, whose weights are the cosines between the movies' rating vectors.
        path: the file.
        max_nodes: keep the nodes of highest degree, or the movies with most ratings; 0 keeps all. Unused for graphs of networkx.
    """
    from paperbook.data.graphs import load_graph, read_edge_list, read_movielens

    if graph == "edge_list":
        return np.asarray(read_edge_list(path, max_nodes).toarray(), dtype=float)
    if graph == "movielens":
        ratings = read_movielens(path, max_nodes).astype(float)
        norms = np.sqrt(np.asarray(ratings.multiply(ratings).sum(axis=0)).reshape(-1))
        table = ratings.T.dot(ratings).toarray() / np.outer(norms, norms)
        np.fill_diagonal(table, 0.0)
        return np.asarray((table + table.T) / 2)  # symmetric to the last bit
    return np.asarray(load_graph(graph))


def greedy_cut(W: np.ndarray, size: int) -> tuple[np.ndarray, float]:
    """Discrete greedy on a symmetric cut, O(d) an element: the gain of i is its degree minus twice its weight to the set.

    Returns:
        The set (indices in the order they were taken; it ends early if nothing gains) and the value of the cut.
    """
    if W.ndim != 2 or W.shape[0] != W.shape[1] or (W != W.T).any() or np.diagonal(W).any():
        raise ValueError(f"W: expected a symmetric matrix with a zero diagonal, got shape {W.shape}, or other entries")
    gains = W.sum(axis=1).astype(float)
    chosen: list[int] = []
    value = 0.0
    for _ in range(check.integer("size", size, 1, len(W))):
        i = int(np.argmax(gains))
        if gains[i] <= 0:
            break
        value += float(gains[i])
        chosen.append(i)
        gains -= 2 * W[i]
        gains[i] = -np.inf
    return np.array(chosen), value


def optimum(f: DRSubmodular, size: int) -> float | None:
    """The best value over sets of at most `size` elements, None where there are too many to look at."""
    if sum(math.comb(f.dim, r) for r in range(size + 1)) > ENUMERABLE:
        return None
    return best_set(f, size)[1]


# --- peers ----------------------------------------------------------------------------------------------------------------


class Timed:
    """A convex set that counts the seconds spent in its projections and linear programmes."""

    def __init__(self, K: Any) -> None:
        self._K, self.seconds = K, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._K, name)

    def _run(self, name: str, *arguments: Any, **options: Any) -> Any:
        start = time.perf_counter()
        found = getattr(self._K, name)(*arguments, **options)
        self.seconds += time.perf_counter() - start
        return found

    def project(self, y: Array) -> Array:
        """As the set does."""
        return self._run("project", y)

    def lmo(self, c: Array, upper: Array | None = None) -> Array:
        """As the set does."""
        return self._run("lmo", c, upper=upper)


@dataclass(frozen=True)
class Peer:
    """One method on one instance, or on a batch of them.

    Attributes:
        last: value at the end, ``(reps,)``.
        average: mean reward over the rounds, ``(reps,)``: the expected value of the random iterate that online-to-batch returns
            (T10); equal to `last` for offline methods.
        calls: gradients that each copy asked for.
        seconds: all of the run.
        solver: of them, in projections and linear programmes.
    """

    last: np.ndarray
    average: np.ndarray
    calls: int
    seconds: float
    solver: float


PEERS = ("wrapped", "quarter", "plain", "meta-frank-wolfe", "measured greedy", "frank-wolfe")
"""Online first (the wrapper; row 3 of the table, ratio 1/4; no wrapper; Meta-Frank-Wolfe), then offline."""


def peer(name: str, f: DRSubmodular, K: Any, budget: int, reps: int, seed: int) -> Peer:
    """One method with `budget` gradients a copy; online ones see the same reward in every round.

    Args:
        name: one of :data:`PEERS`.
        f: one function, or a batch of `reps` of them.
        K: down-closed.
        budget: gradients, >= 1. Meta-Frank-Wolfe asks sqrt(budget) of them a round.
        reps: independent copies.
        seed: of the random queries.
    """
    check.choice("name", name, PEERS)
    budget, reps = check.integer("budget", budget, 1), check.integer("reps", reps, 1)
    timed, start = Timed(K), time.perf_counter()
    if name in ("measured greedy", "frank-wolfe"):
        method = measured_continuous_greedy if name == "measured greedy" else non_monotone_frank_wolfe
        value = np.broadcast_to(f.value(method(f, timed, budget, (reps,))), (reps,))
        return Peer(value, value, budget, time.perf_counter() - start, timed.seconds)
    inner = math.isqrt(budget) if name == "meta-frank-wolfe" else 1
    rounds = budget // inner
    if name == "meta-frank-wolfe":
        algorithm: Algorithm = MetaFrankWolfe(timed, (reps,), inner)
    else:
        kinds = {"wrapped": "exponential", "quarter": "anchored", "plain": "identity"}
        algorithm = OMBQ(OGD(timed, (reps,)), wrapper_named(kinds[name], K.dim), stream(seed, "peer", name))
    history = play(Fixed(f), algorithm, rounds)
    last = f.value(algorithm.act())
    return Peer(last, history.rewards.mean(axis=0), rounds * inner, time.perf_counter() - start, timed.seconds)


def peers(f: DRSubmodular, K: Any, budget: int, reps: int, seed: int) -> dict[str, Peer]:
    """All of :data:`PEERS`."""
    return {name: peer(name, f, K, budget, reps, seed) for name in PEERS}


def quadratics(dim: int, rows: int, reps: int, rho: float, seed: int) -> tuple[QuadraticDR, Any, np.ndarray, np.ndarray]:
    """Random quadratics in one random packing (E1), with a lower and an upper bound of each optimum.

    Returns:
        The batch of functions, the polytope, the best of twenty plain ascents from random starts ``(reps,)``, and the linear
        programme's bound ``(reps,)``.
    """
    rng = stream(seed, "quadratics", dim)
    K, f = random_packing(dim, rows, rng), QuadraticDR.random(dim, rng, rho, (reps,))
    starts = rng.random((20, reps, dim)) * (2 * K.b.min() / constraints(K)[0].sum(axis=1).max())
    _, values = projected_ascent(f, K, starts, 40, 0.5 / dim)
    return f, K, values.max(axis=0), np.array([quadratic_upper_bound(take(f, i), K) for i in range(reps)])


# --- determinants ---------------------------------------------------------------------------------------------------------


def digits_kernel(items: int, seed: int, scale: float = 1.0, ridge: float = 0.05) -> np.ndarray:
    """RBF kernel of randomly chosen digit images plus `ridge` I, ``(items, items)``, times `scale` over its median eigenvalue.

    The width of the kernel is half the median distance; at scale 1 half of the eigenvalues lie below 1.
    """
    from paperbook.data.digits import load_digits

    X = load_digits().X
    X = X[stream(seed, "kernel").permutation(len(X))[: check.integer("items", items, 2, len(X))]]
    squares = ((X[:, None] - X[None]) ** 2).sum(-1)
    kernel = np.exp(-2 * squares / np.median(squares[squares > 0])) + ridge * np.eye(items)
    return kernel * check.number("scale", scale, 0.0, open_low=True) / float(np.median(np.linalg.eigvalsh(kernel)))


def best_minor(L: np.ndarray, size: int) -> float:
    """max log det L_S over sets of at most `size` elements, by looking at all (the empty set has 0)."""
    best = 0.0
    for r in range(1, check.integer("size", size, 1, len(L)) + 1):
        sets = np.array(list(itertools.combinations(range(len(L)), r)))
        best = max(best, float(np.linalg.slogdet(L[sets[:, :, None], sets[:, None, :]])[1].max()))
    return best


def least_minor(L: np.ndarray, seed: int, starts: int = 6) -> float:
    """A small log det L_S over all sets, by local search with single flips from the empty, the full and random sets.

    Minus this is a lower bound of the shift that f >= 0 needs: the sum over eigenvalues below 1, which is sure, may be too much.
    """
    f, d = SoftmaxDPP(L, shift=False), len(L)
    x = stream(seed, "least minor").random((check.integer("starts", starts, 2), d)) < 0.5
    x[0], x[1] = False, True
    least = np.inf
    for start in x.astype(float):
        value = float(f.value(start))
        while True:
            flipped = np.where(np.eye(d, dtype=bool), 1 - start, start)
            values = f.value(flipped)
            if values.min() >= value - 1e-12:
                break
            value, start = float(values.min()), flipped[values.argmin()]
        least = min(least, value)
    return least


@dataclass(frozen=True)
class Determinant:
    """What the theorem says about log det of one kernel, and what is reached; all but `offset` without the shift.

    Attributes:
        offset: the constant that surely makes f >= 0 on the box.
        needed: a lower bound of the constant that does, from the worst vertex found (:func:`least_minor`).
        best: largest log det of a set of k items.
        optimum: the best value known, of a set or of a point that a method reached: a lower bound of the optimum over K.
        promised: optimum/e - (1 - 1/e) offset: the guarantee on log det, as far as the optimum is known.
        at_most: the same with `needed` in place of `offset`: no smaller shift could promise more.
        reached: log det at the point played in the end, mean over copies.
        greedy: of measured continuous greedy.
    """

    offset: float
    needed: float
    best: float
    optimum: float
    promised: float
    at_most: float
    reached: float
    greedy: float


def determinant(items: int, k: int, scale: float, rounds: int, reps: int, seed: int) -> Determinant:
    """Wrapped ascent on the shifted log det of a digits kernel, {sum x <= k}."""
    L = digits_kernel(items, seed, scale)
    f, K = SoftmaxDPP(L), BudgetBox(items, float(k))
    best = best_minor(L, k)
    wrapped = float(peer("wrapped", f, K, rounds, reps, seed).last.mean()) - f.offset
    greedy = float(f.value(measured_continuous_greedy(f, K, 50))) - f.offset
    plain = float(peer("plain", f, K, rounds, reps, seed).last.max()) - f.offset
    most = max(best, wrapped, greedy, plain)
    needed = max(0.0, -least_minor(L, seed))
    promised, at_most = (ONE_OVER_E * most - (1 - ONE_OVER_E) * s for s in (f.offset, needed))
    return Determinant(f.offset, needed, best, most, promised, at_most, wrapped, greedy)


# --- wrong on purpose -----------------------------------------------------------------------------------------------------


class PlaysX(ExponentialDownClosed):
    """Plays x instead of h(x)."""

    def action(self, x: Array) -> Array:
        """x."""
        return x


class NoJacobian(ExponentialDownClosed):
    """Leaves the factor e^{-zx} out."""

    def factor(self, x: Array, z: Any) -> Any:
        """1."""
        return 1.0 + 0 * x


class UniformZ(ExponentialDownClosed):
    """Draws z uniformly."""

    def density(self, z: np.ndarray) -> np.ndarray:
        """1."""
        return np.ones_like(z)

    def quantile(self, u: Array) -> Array:
        """u."""
        return u


VARIANTS: dict[str, type[ExponentialDownClosed]] = {
    "as it should be": ExponentialDownClosed, "plays x": PlaysX, "no factor": NoJacobian, "uniform z": UniformZ,
}  # fmt: skip


# --- many rounds ----------------------------------------------------------------------------------------------------------


def graph_algorithm(cfg: GraphsConfig, W: np.ndarray, rng: Any, like_array: Array) -> Algorithm:
    """The algorithm of a run: learner, wrapper and feedback by name, all copies in one batch.

    Zeroth-order feedback shrinks the set; delta is the page on feedback's, at most half of what the budget admits.
    """
    K: Any = BudgetBox(len(W), float(cfg.k))
    T, delta = cfg.rounds, smoothing(cfg.feedback, cfg.rounds)
    # |f| <= total weight; the gradient's coordinate i lies within plus and minus the degree of i
    G, M = float(np.linalg.norm(W.sum(axis=1))), float(W.sum())
    if delta:
        delta = min(delta, K.inner_ball()[1] / 2)
        K, G = K.shrink(delta), len(W) * M / delta
    batch = (cfg.reps,)
    learner: OnlineLearner
    if cfg.learner == "ogd":
        learner = OGD(K, batch, like_array=like_array)
    else:
        kind = ImprovedAder if cfg.learner == "ader" else SOOGD
        learner = kind(K, batch, horizon=T, gain_bound=G, like_array=like_array)
    made: Algorithm = OMBQ(learner, wrapper_named(cfg.wrapper, len(W)), rng)
    if delta:
        made = FOTZO(made, delta, rng, two_point=cfg.feedback == "two values")
    block = block_length(cfg.feedback, T)
    return SFTT(made, block, T, rng) if block > 1 else made


def state(algorithm: Algorithm) -> dict[str, Any]:
    """What a checkpoint must hold of an algorithm between two rounds; with blocks, between two blocks."""
    held: dict[str, Any] = {}
    layer: Any = algorithm
    while True:
        if isinstance(layer, SFTT):
            held["sftt.t"] = layer.t
        elif isinstance(layer, FOTZO):
            held["fotzo.heard"], held["fotzo.mean"] = layer._heard, layer._mean
        if layer is algorithm.base:
            break
        layer = layer.algorithm
    learner = algorithm.base.learner
    for name, value in vars(learner).items():
        if hasattr(value, "ndim") and name not in ("steps", "_prior", "_start"):
            held[f"learner.{name}"] = value
    return held


def restore(algorithm: Algorithm, held: dict[str, Any]) -> None:
    """The inverse of :func:`state`, into an algorithm that was made in the same way."""
    learner = algorithm.base.learner

    def here(value: Any) -> Any:
        return like(value, learner.x) if hasattr(value, "ndim") else value

    layer: Any = algorithm
    while True:
        if isinstance(layer, SFTT):
            layer.t = int(held["sftt.t"])
        elif isinstance(layer, FOTZO):
            layer._heard, layer._mean = int(held["fotzo.heard"]), here(held["fotzo.mean"])
        if layer is algorithm.base:
            break
        layer = layer.algorithm
    for name, value in held.items():
        if name.startswith("learner."):
            setattr(learner, name.removeprefix("learner."), here(value))


def graph_study(cfg: GraphsConfig, progress: Report | None = None, checkpoints: Checkpoints | None = None) -> dict[str, Any]:
    """Online maximisation of one cut for many rounds; all copies at once, running sums only.

    Args:
        cfg: graph, budget, rounds, copies, feedback, learner, wrapper, device, seed.
        progress: told how far it is.
        checkpoints: where the run goes on from, and saves to when a save is due; the resumed run ends in the same bits.

    Returns:
        ``nodes``, ``total_weight``; ``average``, ``last`` (of each copy: mean reward, reward of the intended point after the last
        round); ``greedy`` (discrete greedy, a lower bound of the optimum), ``optimum`` (exact, or the greedy value where there
        are too many sets: ``exact`` says which); ``certificate`` (of each copy: e (average + beta regret / T), in expectation an
        upper bound of the optimum for gradient feedback in the paper's wrapper, else the same number without that meaning);
        ``curve``: rounds and, at each, the mean average reward and beta regret / t.
    """
    W = weights(cfg.graph, cfg.path, cfg.max_nodes)
    if cfg.k > len(W):
        raise ValueError(f"k: expected at most the number of nodes, {len(W)}, got {cfg.k}")
    if not W.any():
        raise ValueError(f"graph: expected an edge among the {len(W)} nodes that are kept, got none; raise max_nodes")
    place = Place(cfg.device)
    f, rng = CutExtension(place.array(W)), place.stream(cfg.seed, "graph")
    algorithm = graph_algorithm(cfg, W, rng, place.array(np.zeros(())))
    T, block = cfg.rounds, getattr(algorithm, "block", 1)
    learner, wrapper = algorithm.base.learner, algorithm.base.wrapper
    marks = sorted({round(t) for t in np.geomspace(min(10, T), T, 25)})
    curve: list[list[float]] = []
    total, t = 0 * learner.gain_dot, 0
    resumed = checkpoints.resume(stream=rng) if checkpoints is not None else None
    if resumed is not None:
        restore(algorithm, resumed.values["algorithm"])
        total, curve, t = like(resumed.values["total"], learner.x), resumed.values["curve"], resumed.step
    while t < T:
        played = algorithm.act()
        total = total + f.value(played)
        oracle = f.grad if algorithm.oracle == "gradient" else f.value
        algorithm.update(tuple(oracle(point) for point in algorithm.queries()))
        t += 1
        if t in marks:
            curve.append([t, float(total.mean()) / t, wrapper.beta * float(learner.regret().mean()) / t])
        if progress is not None and t % 64 == 0:
            progress(t, T, "rounds")
        if checkpoints is not None and t % block == 0 and t < T and checkpoints.due():
            checkpoints.save(t, values={"algorithm": state(algorithm), "total": total, "curve": curve}, stream=rng)
    average = numpy_of(total) / T
    greedy = greedy_cut(W, cfg.k)[1]
    exact = optimum(CutExtension(W), cfg.k)
    return {
        "nodes": len(W), "total_weight": float(W.sum()) / 2, "average": average, "last": numpy_of(f.value(_end(algorithm))),
        "greedy": greedy, "optimum": greedy if exact is None else exact, "exact": exact is not None,
        "certificate": math.e * (average + wrapper.beta * numpy_of(learner.regret()) / T),
        "curve": {"round": [c[0] for c in curve], "average": [c[1] for c in curve], "regret": [c[2] for c in curve]},
    }  # fmt: skip


def _end(algorithm: Algorithm) -> Array:
    """What the algorithm would play next if it did not explore."""
    base = algorithm.base
    x = base.wrapper.action(base.learner.act())
    inner = algorithm.algorithm if isinstance(algorithm, SFTT) else algorithm
    return inner.point(x) if isinstance(inner, FOTZO) else x


def violation(wrapper: Wrapper, f: DRSubmodular, x: Any, y: Any) -> float:
    """How far the bound of T2 is missed at one pair: the negative part of the gap, 0 where it holds."""
    gap = float(wrapper.gap(f, np.asarray(x, dtype=float), np.asarray(y, dtype=float)))
    return max(0.0, -gap)
