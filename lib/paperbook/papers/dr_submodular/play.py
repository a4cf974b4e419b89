"""Rounds, rewards and regret: an oblivious adversary, the loop that plays against it, and the meters.

An environment is anything with ``env[t]``, the reward function of round t, fixed before the first round (oblivious adversary).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from paperbook.study import arguments as check

from .arrays import Array, namespace, numpy_of
from .feedback import Algorithm
from .functions import DRSubmodular, QuadraticDR, summed, take


class Environment(Protocol):
    """The adversary's sequence."""

    def __getitem__(self, t: int) -> DRSubmodular:
        """Reward function of round t = 0, 1, ..."""


@dataclass(frozen=True)
class Fixed:
    """The same reward in every round."""

    f: DRSubmodular

    def __getitem__(self, t: int) -> DRSubmodular:
        return self.f


@dataclass(frozen=True)
class Pool:
    """Rewards drawn from a finite family: f_t is member ``index[t]`` of it.

    Args:
        family: quadratics with one batch axis ``(m)``.
        index: integers in 0..m-1, ``(T)``, or ``(T, B)`` for a sequence of its own for each copy.
    """

    family: QuadraticDR
    index: Any

    def __post_init__(self) -> None:
        if self.family.h.ndim != 2:
            raise ValueError(f"family: expected quadratics along one batch axis, got the batch {tuple(self.family.h.shape[:-1])}")
        if not hasattr(self.index, "ndim"):
            raise TypeError(f"index: expected an array, got {type(self.index).__name__} {self.index!r}")
        index = numpy_of(self.index)
        m = self.family.h.shape[0]
        if index.dtype.kind not in "iu" or index.ndim not in (1, 2) or not index.size or index.min() < 0 or index.max() >= m:
            raise ValueError(f"index: expected integers in 0..{m - 1} of shape (T,) or (T, B), got {index.dtype} {index.shape}")

    def __getitem__(self, t: int) -> QuadraticDR:
        if not 0 <= t < len(self.index):
            raise IndexError(f"t: expected a round in 0..{len(self.index) - 1}, got {t}; index has no more")
        return take(self.family, self.index[t])

    def total(self, rounds: int) -> QuadraticDR:
        """Sum of the first `rounds` rewards: one quadratic, or one a copy."""
        index = numpy_of(self.index)[: check.integer("rounds", rounds, 1, len(self.index))]
        m = self.family.h.shape[0]
        counts = np.apply_along_axis(np.bincount, 0, index, minlength=m).T.astype(float)
        return summed(self.family, counts)


@dataclass(frozen=True)
class Segments:
    """Rewards that change at given rounds: ``functions[i]`` from ``starts[i]`` on.

    Args:
        functions: one reward a segment.
        starts: first rounds, increasing, beginning with 0.
    """

    functions: Sequence[DRSubmodular]
    starts: Sequence[int]

    def __post_init__(self) -> None:
        starts = list(self.starts)
        if len(starts) != len(self.functions) or not starts or starts[0] != 0 or sorted(set(starts)) != starts:
            raise ValueError(f"starts: expected one increasing round a function, beginning with 0, got {starts}")

    def segment(self, t: Any) -> Any:
        """Number of the segment of round `t` (an integer or an array of them)."""
        return np.searchsorted(np.asarray(self.starts), t, side="right") - 1

    def __getitem__(self, t: int) -> DRSubmodular:
        if t < 0:
            raise IndexError(f"t: expected a round >= 0, got {t}")
        return self.functions[int(self.segment(t))]


@dataclass(frozen=True)
class History:
    """What a run leaves: NumPy arrays, rounds first.

    Attributes:
        rewards: f_t at what was played, ``(T, *batch)``.
        calls: oracle calls of each copy, ``(*batch)``.
        exploration: sum over rounds of f_t(intended) - f_t(played), ``(*batch)``; 0 unless the algorithm explores.
        linear_regret: max_y sum_t <beta g_t, y - x_t> with the exact g_t, ``(*batch)``; None unless it was asked for. With
            exploration it bounds the alpha-regret from above, whatever the rewards are (T2).
        query_regret: the same with the vectors the learner heard in place of g_t, times beta.
        gain_norm: sqrt of the sum of their squared norms, ``(*batch)``. This and `query_regret` are NaN for
            algorithms that are no reduction to one linear learner.
        points: what was played, ``(T, *batch, d)``; None unless kept.
        final: the last iterate of the learner, ``(*batch, d)``.
    """

    rewards: np.ndarray
    calls: np.ndarray
    exploration: np.ndarray
    linear_regret: np.ndarray | None
    query_regret: np.ndarray
    gain_norm: np.ndarray
    points: np.ndarray | None
    final: np.ndarray

    @property
    def average_reward(self) -> np.ndarray:
        """Mean reward a round, ``(*batch)``."""
        return self.rewards.mean(axis=0)


def play(
    env: Environment, algorithm: Algorithm, rounds: int, *, surrogate_nodes: int = 0, keep_points: bool = False,
    progress: Callable[[int], None] | None = None,
) -> History:  # fmt: skip
    """Play `rounds` rounds of `algorithm` against `env`; all copies of its batch at once.

    Args:
        env: the adversary.
        algorithm: an :class:`~paperbook.papers.dr_submodular.feedback.Algorithm` at its first round; it is used up.
            Two algorithms need a learner each.
        rounds: T >= 1.
        surrogate_nodes: quadrature nodes for the exact linear regret, 0 to leave it out (it costs that many gradients a round).
        keep_points: store every point played.
        progress: called with the number of finished rounds, about a hundred times.

    Returns:
        A :class:`History`.

    Raises:
        ValueError: an algorithm that has played before; in any round a reward of another dimension than the set's, or values
            of another shape than the batch; rewards or iterates that are not finite (looked for about a hundred times).

    """
    T = check.integer("rounds", rounds, 1)
    if check.integer("surrogate_nodes", surrogate_nodes, 0) and not algorithm.certified:
        raise ValueError(f"surrogate_nodes: expected 0, got {surrogate_nodes}: {type(algorithm).__name__} has no single learner "
                         "whose linear regret bounds its own")
    base = algorithm.base
    learner, wrapper = base.learner, base.wrapper
    batch = tuple(learner.batch)
    if getattr(algorithm, "t", 0) or bool((learner.gain_square != 0).any()):  # its sums would mix two histories
        raise ValueError("algorithm: expected one at its first round, got one that has played, or whose learner has")
    rewards, points, calls = [], [], np.zeros(batch)
    exploration = gain_sum = gain_dot = 0.0
    every = max(1, T // 100)
    for t in range(T):
        f = env[t]
        if f.dim != learner.K.dim:
            raise ValueError(f"env: expected rewards of {learner.K.dim} coordinates, as K has, got {f.dim} in round {t}")
        played = algorithm.act()
        reward = f.value(played)
        if tuple(reward.shape) != batch:
            raise ValueError(f"env: expected values of shape {batch}, one a copy, got {tuple(reward.shape)} in round {t}")
        rewards.append(reward)
        if keep_points:
            points.append(played)
        asked = algorithm.queries()
        if algorithm.explores and asked:
            exploration = exploration + f.value(algorithm.intended()) - reward
        if surrogate_nodes:
            x = learner.act()
            g = wrapper.linear_gain(algorithm.seen(f), x, surrogate_nodes)
            gain_sum, gain_dot = gain_sum + g, gain_dot + (g * x).sum(-1)
        oracle = f.grad if algorithm.oracle == "gradient" else f.value
        calls = calls + algorithm.calls()
        algorithm.update(tuple(oracle(point) for point in asked))
        if (t + 1) % every == 0 or t + 1 == T:
            finite = namespace(learner.x).isfinite  # not in every round: a device would have to be waited for
            for name, part in (("values", reward), ("iterates, hence gradients,", learner.x)):
                if not bool(finite(part).all()):
                    raise ValueError(f"env: expected finite numbers, got {name} that are not by round {t}")
            if progress is not None and (t + 1) % every == 0:
                progress(t + 1)
    xp = namespace(learner.x)
    linear, unknown = None, 0.0 if algorithm.certified else np.nan
    if surrogate_nodes:
        linear = wrapper.beta * numpy_of((gain_sum * learner.K.lmo(gain_sum)).sum(-1) - gain_dot)
    return History(
        rewards=numpy_of(xp.stack(rewards)),
        calls=calls,
        exploration=numpy_of(exploration + 0 * learner.gain_dot),
        linear_regret=linear,
        query_regret=unknown + wrapper.beta * numpy_of(learner.regret()),
        gain_norm=unknown + numpy_of(learner.gain_square) ** 0.5,
        points=numpy_of(xp.stack(points)) if keep_points else None,
        final=numpy_of(learner.x),
    )


def regret(history: History, alpha: float, kind: str, values: Any = None) -> np.ndarray:
    """Regret of a run at ratio `alpha`, ``(*batch)``.

    Args:
        history: of :func:`play`.
        alpha: in (0, 1].
        kind: ``"static"``: against the best fixed comparator, ``"adaptive"``: the worst interval against the best comparator
            for it, ``"dynamic"``: against a given path, ``"surrogate"``: the certificate ``linear_regret + exploration``,
            which bounds the static regret.
        values: rewards of the comparators. Static and adaptive: ``(T, V)`` or ``(T, V, *batch)``; the result is exact where
            the V contain the best one (enumeration), else a lower bound. Dynamic: ``(T,)`` or ``(T, *batch)``.

    Raises:
        ValueError: an unknown kind, missing or misshapen `values`.
    """
    alpha = check.number("alpha", alpha, 0.0, 1.0, open_low=True)
    check.choice("kind", kind, ("static", "adaptive", "dynamic", "surrogate"))
    rewards = history.rewards
    if kind == "surrogate":
        if history.linear_regret is None:
            raise ValueError("history: expected a run of play(..., surrogate_nodes=...), got one without them")
        return history.linear_regret + history.exploration
    if values is None:
        raise ValueError(f"values: expected rewards of the comparators for {kind} regret, got None")
    u = check.array("values", values)
    lead = 1 if kind == "dynamic" else 2
    if u.ndim < lead or u.shape[0] != len(rewards) or (u.ndim > lead and u.shape[lead:] != rewards.shape[1:]):
        raise ValueError(f"values: expected {len(rewards)} rounds first, then the batch {rewards.shape[1:]}, got shape {u.shape}")
    u = u.reshape(*u.shape, *(1,) * (rewards.ndim + lead - 1 - u.ndim))
    if kind == "dynamic":
        return (alpha * u - rewards).sum(axis=0)
    gains = alpha * u - rewards[:, None]
    if kind == "static":
        return gains.sum(axis=0).max(axis=0)
    prefix = np.concatenate([np.zeros((1, *gains.shape[1:])), gains.cumsum(axis=0)])
    return (prefix[1:] - np.minimum.accumulate(prefix[:-1], axis=0)).max(axis=(0, 1))


def comparator_values(env: Environment, points: Array, rounds: int) -> np.ndarray:
    """f_t(y) for every round and fixed comparator y of `points` ``(V, d)``: ``(T, V)``. The rewards have no batch."""
    T = check.integer("rounds", rounds, 1)
    apart = env[0].value(points[:, None, :]).shape  # a batch of as many rewards as points would meet them one by one
    if tuple(apart) != (len(points), 1):
        raise ValueError(f"env: expected rewards without a batch, got the batch {tuple(apart[1:])}")
    return np.stack([numpy_of(env[t].value(points)) for t in range(T)])


def path_length(points: Any) -> float:
    """P_T = sum_t ||u_t - u_{t-1}|| of a path ``(T, d)``."""
    u = check.array("points", points, ndim=2)
    return float(np.linalg.norm(np.diff(u, axis=0), axis=1).sum())


def online_to_batch(f: DRSubmodular, algorithm: Algorithm, rounds: int, rng: np.random.Generator) -> np.ndarray:
    """Offline maximisation (T10): play against the same f in every round, return a random played point ``(*batch, d)``.

    Its expected value is the average reward, so (1/e) f(y) - E f(point) is the regret divided by T.
    """
    T = check.integer("rounds", rounds, 1)
    if f.dim != algorithm.base.learner.K.dim:
        raise ValueError(f"f: expected {algorithm.base.learner.K.dim} coordinates, got {f.dim}")
    batch = tuple(algorithm.base.learner.batch)
    chosen = check.generator("rng", rng).integers(T, size=batch)
    kept = None
    for t in range(T):
        played = algorithm.act()
        now = numpy_of(algorithm.intended() if algorithm.explores else played)  # an exploring round returns no answer
        kept = now.copy() if kept is None else np.where((chosen == t)[..., None], now, kept)
        oracle = f.grad if algorithm.oracle == "gradient" else f.value
        algorithm.update(tuple(oracle(point) for point in algorithm.queries()))
    assert kept is not None
    return kept
