"""What the wrapper is compared with: offline peers, an online peer, heuristics, and exact or bounded optima."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from paperbook.study import arguments as check

from .arrays import Array, numpy_of
from .feedback import OMBQ, Algorithm
from .functions import DRSubmodular, QuadraticDR
from .learners import OGD
from .wrappers import ExponentialDownClosed


def _covered(f: DRSubmodular, K: Any) -> None:
    """Refuse what the offline peers' ratio does not cover."""
    if f.dim != K.dim:
        raise ValueError(f"f, K: expected the same dimension, got {f.dim} and {K.dim}")
    if not K.is_down_closed():
        raise ValueError("K: expected a down-closed set, got one that is not")


def measured_continuous_greedy(f: DRSubmodular, K: Any, steps: int = 100, shape: tuple[int, ...] = ()) -> Array:
    """Offline, ratio 1/e: x <- x + v * (1 - x) / steps, from 0 (Feldman et al. 2011).

    Here v maximises <grad f(x) * (1 - x), v> over K.

    Args:
        f: non-negative DR-submodular.
        K: down-closed.
        steps: >= 1; one gradient and one linear programme each.
        shape: batch of starts, all at 0, for a batch of functions.
    """
    _covered(f, K)
    x = np.zeros((*shape, K.dim))
    for _ in range(check.integer("steps", steps, 1)):
        x = x + K.lmo(f.grad(x) * (1 - x)) * (1 - x) / steps
    return x


def non_monotone_frank_wolfe(f: DRSubmodular, K: Any, steps: int = 100, shape: tuple[int, ...] = ()) -> Array:
    """Offline, ratio 1/e: x <- x + v / steps, v maximising <grad f(x), v> over {v in K, v <= 1 - x} (Bian et al. 2017)."""
    _covered(f, K)
    x = np.zeros((*shape, K.dim))
    for _ in range(check.integer("steps", steps, 1)):
        x = x + K.lmo(f.grad(x), upper=1 - x) / steps
    return x


def projected_ascent(f: DRSubmodular, K: Any, starts: Array, steps: int = 300, step: float | None = None) -> tuple[Array,
Array]:
    """Plain projected gradient ascent on f from each start ``(n, d)``: the heuristic that can end in a bad stationary point (T4).

    Returns:
        The points ``(n, d)`` and their values ``(n,)``. Their maximum is a lower bound of the optimum.
    """
    x = check.array("starts", starts)
    if f.dim != K.dim or x.shape[-1:] != (K.dim,):
        raise ValueError(f"starts: expected the dimension of f and K, got shape {x.shape} for {f.dim} and {K.dim}")
    check.integer("steps", steps, 1)
    x = K.project(x)
    if step is not None:
        check.number("step", step, 0.0, open_low=True)
    else:
        step = 1.0 / max(1e-12, float(np.abs(numpy_of(f.grad(x))).max()) * K.dim)
    for _ in range(steps):
        x = K.project(x + step * f.grad(x))
    return x, f.value(x)


class MetaFrankWolfe(Algorithm):
    """Online peer: one linear learner for each of L steps of measured continuous greedy (after Zhang et al. 2023).

    Plays the end of the L steps, then asks L gradients of the round's reward, one for each learner. Ratio 1/e with regret
    O(sqrt T) for L of the order sqrt T, at L gradients a round; the wrapper asks one.

    Args:
        K: down-closed.
        batch: leading axes.
        inner: L >= 1.
        like_array: kind of the arrays.
    """

    oracle = "gradient"
    certified = False

    def __init__(self, K: Any, batch: tuple[int, ...], inner: int, like_array: Array | None = None) -> None:
        self.inner = check.integer("inner", inner, 1)
        self.wrapper, self.nodes = ExponentialDownClosed(), None
        self.wrapper.check_set(K)
        self.many = OGD(K, (self.inner, *batch), like_array=like_array)
        # the last learner stands for all of them where a history looks for one iterate
        self.learner = OGD(K, batch, like_array=like_array)
        self.base: Any = self

    def act(self) -> Array:
        """The last of the points x^(l+1) = x^(l) + v_l (1 - x^(l)) / L."""
        v = self.many.act()
        x, self._path = 0 * v[0], []
        for step in range(self.inner):
            self._path.append(x)
            x = x + v[step] * (1 - x) / self.inner
        return x

    def queries(self) -> tuple[Array, ...]:
        """The points of the path, one query each."""
        return tuple(self._path)

    def update(self, answers: tuple[Array, ...]) -> None:
        """Each learner hears the gradient at its point times 1 - x."""
        from .arrays import namespace

        gains = namespace(answers[0]).stack([(1 - x) * g for x, g in zip(self._path, answers, strict=True)])
        self.many.update(gains)
        self.learner.x = self.many.act()[-1]

    def calls(self) -> int:
        """L."""
        return self.inner


def plain_ascent(K: Any, batch: tuple[int, ...], rng: Any, **options: Any) -> OMBQ:
    """Online gradient ascent on f itself: the identity wrapper, whose guarantee needs monotone f."""
    from .wrappers import IdentityMonotone

    return OMBQ(OGD(K, batch, **options), IdentityMonotone(), rng)


# --- optima
# ----------------------------------------------------------------------------------------------------------------------


def subsets(dim: int, size: int) -> np.ndarray:
    """Indicator vectors of all sets with at most `size` of `dim` elements, ``(n, d)``, as booleans.

    Raises:
        ValueError: more than 2 million of them.
    """
    d = check.integer("dim", dim, 1)
    k = check.integer("size", size, 0, d)
    count = 1
    total = 1
    for i in range(k):
        count = count * (d - i) // (i + 1)
        total += count
    if total > 2_000_000:
        raise ValueError(f"size: expected few enough sets to enumerate (2 million), got {total} sets of at most {k} of {d}")
    rows = np.zeros((total, d), dtype=bool)
    start = 1
    for r in range(1, k + 1):
        chosen = np.fromiter(itertools.chain.from_iterable(itertools.combinations(range(d), r)), dtype=np.int32).reshape(-1, r)
        rows[np.arange(start, start + len(chosen))[:, None], chosen] = True
        start += len(chosen)
    return rows


def best_set(f: DRSubmodular, size: int, chunk: int = 20_000) -> tuple[np.ndarray, float]:
    """The set of at most `size` elements with the largest value, by enumeration: its elements and the value.

    For a multilinear f this is also the maximum over {0 <= x <= 1, sum x <= size}: along e_i - e_j such a function is convex,
    so a fractional point can be moved to a vertex without loss (pipage rounding).
    """
    best, value = np.zeros(0, dtype=int), -np.inf
    rows = subsets(f.dim, size)
    for start in range(0, len(rows), check.integer("chunk", chunk, 1)):
        values = f.value(rows[start : start + chunk].astype(float))
        i = int(np.argmax(values))
        if values[i] > value:
            best, value = np.flatnonzero(rows[start + i]), float(values[i])
    return best, value


def greedy_set(f: DRSubmodular, size: int) -> tuple[np.ndarray, float]:
    """Discrete greedy: add the element that gains most while it gains; no guarantee for non-monotone f."""
    x = np.zeros(f.dim)
    for _ in range(check.integer("size", size, 0, f.dim)):
        trials = np.where(np.eye(f.dim, dtype=bool), 1.0, x)
        values = f.value(trials)
        i = int(np.argmax(values))
        if values[i] <= f.value(x):
            break
        x = trials[i]
    return np.flatnonzero(x), float(f.value(x))


def quadratic_upper_bound(f: QuadraticDR, K: Any, tangents: int = 9) -> float:
    """An upper bound on max_K f for one quadratic with H <= 0, by one linear programme.

    Off the diagonal -|H_ij| x_i x_j is replaced by -|H_ij| max(0, x_i + x_j - 1), on it -x_i^2 by tangents of the parabola:
    both lie above, the first exactly so at vertices (it is the concave envelope of the product).

    Args:
        f: one function.
        K: with rows ``A x <= b`` as arrays ``K.A``, ``K.b``, or a budget.
        tangents: tangents for each square, >= 2.
    """
    from scipy.optimize import linprog

    if not isinstance(f, QuadraticDR):
        raise TypeError(f"f: expected a QuadraticDR, got {type(f).__name__}")
    H, h, d = np.asarray(f.H), np.asarray(f.h), f.dim
    if H.ndim != 2:
        raise ValueError(f"f: expected one quadratic, got a batch {H.shape[:-2]}")
    if d != K.dim:
        raise ValueError(f"f, K: expected the same dimension, got {d} and {K.dim}")
    A, b = constraints(K)
    i, j = np.triu_indices(d, 1)
    pairs, n = len(i), d + len(i) + d  # x, p_ij >= max(0, x_i + x_j - 1), s_i >= tangents of x_i^2
    rows, right = [np.hstack([A, np.zeros((len(b), n - d))])], [b]
    link = np.zeros((pairs, n))
    link[np.arange(pairs), i] = link[np.arange(pairs), j] = 1.0
    link[np.arange(pairs), d + np.arange(pairs)] = -1.0
    rows.append(link)
    right.append(np.ones(pairs))
    for a in np.linspace(0, 1, check.integer("tangents", tangents, 2)):
        tangent = np.zeros((d, n))
        tangent[np.arange(d), np.arange(d)] = 2 * a
        tangent[np.arange(d), d + pairs + np.arange(d)] = -1.0
        rows.append(tangent)
        right.append(np.full(d, a * a))
    gain = np.concatenate([h, H[i, j], 0.5 * np.diagonal(H)])
    solved = linprog(-gain, A_ub=np.vstack(rows), b_ub=np.concatenate(right), bounds=(0, 1), method="highs")
    if not solved.success:
        raise RuntimeError(f"linear programme: {solved.message}")
    return float(-solved.fun + np.asarray(f.c))


def constraints(K: Any) -> tuple[np.ndarray, np.ndarray]:
    """The rows A, b of a set, without those of the box."""
    if hasattr(K, "A"):
        return np.asarray(K.A), np.asarray(K.b)
    return np.ones((1, K.dim)), np.array([float(K.budget)])
