"""DR-submodular functions on the box: quadratics, cuts, revenues, determinants, and the instances that decide a bound.

A differentiable f on [0,1]^d is DR-submodular if x <= y implies grad f(x) >= grad f(y), coordinate by coordinate; for a twice
differentiable one, if no entry of its Hessian is positive. It need not be monotone. Every theorem of the chapter also asks that
f >= 0 on the whole box, not only on the feasible set: the proof leaves the set (T1).

Functions take arrays of shape ``(..., d)``, NumPy or torch. Parameters may have batch axes of their own; they meet the last
batch axes of the argument, so a quadratic with `H` of shape ``(B, d, d)`` takes points ``(B, d)`` and ``(nodes, B, d)``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from paperbook.study import arguments as check

from .arrays import Array, Stream, is_stream, last_axis, like, namespace, numpy_of, uniform

VERTEX_DIMENSIONS = 16
"""Up to this dimension all 2^d vertices are looked at; above, a random sample of them."""


@runtime_checkable
class DRSubmodular(Protocol):
    """What the chapter asks of a reward: its dimension, its value and its gradient, both batched over leading axes."""

    @property
    def dim(self) -> int:
        """Number of coordinates d."""

    def value(self, x: Array) -> Array:
        """f at `x`, shape ``(..., d)`` -> ``(...)``."""

    def grad(self, x: Array) -> Array:
        """Gradient of f at `x`, shape ``(..., d)`` -> ``(..., d)``."""


def _matvec(M: Array, x: Array) -> Array:
    """``M x`` over broadcast batch axes; for one matrix a plain product, which BLAS does at once for the whole batch."""
    last_axis("x", x, M.shape[-1])
    return x @ M.T if M.ndim == 2 else (M @ x[..., None])[..., 0]


def _own(x: Array) -> Array:
    """A copy: what was checked must not change when the caller's array does."""
    return x.copy() if isinstance(x, np.ndarray | np.generic) else x.clone()


def _square(name: str, M: Any) -> np.ndarray:
    """`M` on the CPU; refused unless it is an array of shape ``(d, d)``."""
    if not hasattr(M, "ndim"):
        raise TypeError(f"{name}: expected an array, got {type(M).__name__} {M!r}")
    if M.ndim != 2 or M.shape[0] != M.shape[1] or not M.shape[0]:
        raise ValueError(f"{name}: expected a square matrix (d, d), got shape {tuple(M.shape)}")
    return numpy_of(M)


@dataclass(frozen=True)
class QuadraticDR:
    """f(x) = x' H x / 2 + h' x + c with symmetric H whose entries are all <= 0 (experiment E1).

    Args:
        H: ``(..., d, d)``, symmetric, no positive entry (checked).
        h: ``(..., d)``.
        c: ``(...)`` or a number.

    Raises:
        ValueError: on shapes that do not fit, numbers that are not finite, an asymmetric H or a positive entry of H.
    """

    H: Array
    h: Array
    c: Array

    def __post_init__(self) -> None:
        H, h, c = self.H, self.h, self.c
        for name, part in (("H", H), ("h", h)):
            if not hasattr(part, "ndim"):
                raise TypeError(f"{name}: expected an array, got {type(part).__name__} {part!r}")
        if not h.ndim or not h.shape[-1] or tuple(H.shape) != (*h.shape, h.shape[-1]):
            raise ValueError(f"H, h: expected (..., d, d) and (..., d), got {tuple(H.shape)} and {tuple(h.shape)}")
        if getattr(c, "ndim", 0) and c.shape != h.shape[:-1]:
            raise ValueError(f"c: expected a number or shape {tuple(h.shape[:-1])}, got {tuple(c.shape)}")
        if not getattr(c, "ndim", 0) and h.ndim > 1:  # one number for the whole batch: members and sums need one each
            c = like(np.full(tuple(h.shape[:-1]), float(c)), h)
            object.__setattr__(self, "c", c)
        xp = namespace(H, h)
        for name, part in (("H", H), ("h", h), ("c", like(c, h))):
            if not bool(xp.all(xp.isfinite(part))):
                raise ValueError(f"{name}: expected finite numbers, got {float(part[~xp.isfinite(part)].ravel()[0])}")
        if bool(xp.any(H > 0)):
            raise ValueError(f"H: expected no positive entry (DR-submodular), got {float(xp.max(H))}")
        apart = float(xp.max(xp.abs(H - H.swapaxes(-1, -2))))
        if apart > 1e-12 * max(1.0, float(xp.max(xp.abs(H)))):  # a sum of many rounds is large, and so is its rounding
            raise ValueError(f"H: expected a symmetric matrix, got entries {apart:.3g} apart from their mirror image")
        for name, part in (("H", H), ("h", h)):
            object.__setattr__(self, name, _own(part))
        if hasattr(c, "ndim"):
            object.__setattr__(self, "c", _own(c))

    @property
    def dim(self) -> int:
        """Number of coordinates d."""
        return int(self.h.shape[-1])

    def value(self, x: Array) -> Array:
        """f at `x` ``(..., d)``."""
        return (x * (0.5 * _matvec(self.H, x) + self.h)).sum(-1) + self.c

    def grad(self, x: Array) -> Array:
        """H x + h at `x` ``(..., d)``."""
        return _matvec(self.H, x) + self.h

    def lipschitz(self) -> Array:
        """M_1, a bound on the norm of the gradient over the box, ``(...)``: each coordinate falls from h_i to (H 1 + h)_i."""
        xp = namespace(self.h)
        ends = xp.maximum(xp.abs(self.h), xp.abs(self.H.sum(-1) + self.h))
        return (ends * ends).sum(-1) ** 0.5

    @classmethod
    def random(cls, dim: int, rng: np.random.Generator, rho: float = 0.3, batch: tuple[int, ...] = ()) -> QuadraticDR:
        """H uniform on [-1, 0] entry by entry, h = -rho H 1, and c so that the least value on the box is 0.

        Args:
            dim: d, between 1 and 16 (the least value is looked for at the 2^d vertices, where coordinatewise concave
                functions have it).
            rng: a numpy Generator.
            rho: in (0, 1): below 1/2 every coordinate falls at the far corner; small rho means far from monotone.
            batch: leading axes: that many independent functions.
        """
        d = check.integer("dim", dim, 1, VERTEX_DIMENSIONS)
        check.number("rho", rho, 0.0, 1.0, open_low=True, open_high=True)
        batch = tuple(check.integer("batch", size, 1) for size in batch)
        raw = -check.generator("rng", rng).random((*batch, d, d))
        H = (raw + raw.swapaxes(-1, -2)) / 2
        h = -rho * H.sum(-1)
        plain = cls(H, h, np.zeros(batch))
        vertices = _vertices(d)
        low = plain.value(vertices.reshape(len(vertices), *(1,) * len(batch), d)).min(axis=0)
        return cls(H, h, -low)


@dataclass(frozen=True)
class CutExtension:
    """f(x) = sum_ij w_ij x_i (1 - x_j): the expected weight cut if i is chosen with probability x_i, independently (E2).

    Args:
        W: ``(d, d)``, non-negative, of a directed graph; its diagonal must be zero. A symmetric W counts each edge once a
            direction, so the value of a set is the weight of the undirected cut.
    """

    W: Array

    def __post_init__(self) -> None:
        check.array("W", _square("W", self.W), 0.0)
        if (loops := np.diagonal(numpy_of(self.W))).any():
            raise ValueError(f"W: expected a zero diagonal (no loops), got {loops.max():g}")
        object.__setattr__(self, "W", _own(self.W))

    @property
    def dim(self) -> int:
        """Number of nodes d."""
        return int(self.W.shape[-1])

    def value(self, x: Array) -> Array:
        """Expected cut at `x` ``(..., d)``."""
        return (_matvec(self.W.T, x) * (1 - x)).sum(-1)

    def grad(self, x: Array) -> Array:
        """W (1 - x) - W' x at `x` ``(..., d)``."""
        return _matvec(self.W, 1 - x) - _matvec(self.W.T, x)


@dataclass(frozen=True)
class RevenueExtension:
    """f(x) = sum_i (1 - x_i) (1 - prod_j (1 - p_ij x_j)): give the product to a random set, sell to those it persuades (E2).

    Owner j persuades i with probability p_ij, independently; only nodes that were given nothing pay. Multilinear,
    DR-submodular and not monotone: giving to everybody earns nothing.

    Args:
        P: ``(d, d)``, entries in [0, 1), zero diagonal.
    """

    P: Array

    def __post_init__(self) -> None:
        check.array("P", _square("P", self.P), 0.0, 1.0, open_high=True)
        if (own := np.diagonal(numpy_of(self.P))).any():
            raise ValueError(f"P: expected a zero diagonal, got {own.max():g}")
        object.__setattr__(self, "P", _own(self.P))

    @property
    def dim(self) -> int:
        """Number of nodes d."""
        return int(self.P.shape[-1])

    def _misses(self, x: Array) -> tuple[Array, Array]:
        """1 - p_ij x_j, ``(..., i, j)``, and its product over j, ``(..., i)``: nobody persuades i."""
        factors = 1 - self.P * last_axis("x", x, self.dim)[..., None, :]
        return factors, namespace(x).prod(factors, axis=-1)

    def value(self, x: Array) -> Array:
        """Expected revenue at `x` ``(..., d)``."""
        return ((1 - x) * (1 - self._misses(x)[1])).sum(-1)

    def grad(self, x: Array) -> Array:
        """Gradient at `x` ``(..., d)``; the product without one factor is the whole over that factor, which is never 0."""
        factors, missed = self._misses(x)
        reach = ((1 - x) * missed)[..., :, None] * self.P / factors
        return reach.sum(-2) - (1 - missed)


class SoftmaxDPP:
    """f(x) = log det(diag(x)(L - I) + I) + shift: the softmax extension of a determinantal point process (E3).

    At a vertex it is log det of the chosen rows and columns of L. Such logarithms can be negative where L has eigenvalues
    below 1, and the theorem asks for f >= 0, so a constant is added. It raises the optimum as well, which is why a bound of
    the form f >= OPT/e says less about log det itself the larger the shift.

    Args:
        L: ``(d, d)`` symmetric positive definite kernel.
        shift: True adds what makes f >= 0 on the box: minus the least vertex value for d <= 16, else minus the sum of the
            negative logarithms of eigenvalues (by interlacing no principal minor has a smaller logarithm). False adds nothing.

    Attributes:
        offset: what was added.
    """

    def __init__(self, L: Array, shift: bool = True) -> None:
        values = check.array("L", _square("L", L))
        apart = np.abs(values - values.T).max()
        if apart > 1e-9 * max(1.0, np.abs(values).max()):
            raise ValueError(f"L: expected a symmetric matrix, got entries {apart:.3g} apart from their mirror image")
        spectrum = np.linalg.eigvalsh(values)
        if spectrum[0] <= 0:
            raise ValueError(f"L: expected a positive definite matrix, got the eigenvalue {spectrum[0]:.3g}")
        self.L, self.offset = _own(L), 0.0
        self._excess = self.L - like(np.eye(len(values)), L)
        if shift and self.dim <= VERTEX_DIMENSIONS:
            self.offset = -min_on_vertices(self)
        elif shift:
            self.offset = -float(np.log(spectrum[spectrum < 1]).sum())

    @property
    def dim(self) -> int:
        """Number of items d."""
        return int(self.L.shape[-1])

    def _matrix(self, x: Array) -> Array:
        return last_axis("x", x, self.dim)[..., :, None] * self._excess + like(np.eye(self.dim), self.L)

    def value(self, x: Array) -> Array:
        """f at `x` ``(..., d)``."""
        return namespace(x).linalg.slogdet(self._matrix(x))[1] + self.offset

    def grad(self, x: Array) -> Array:
        """diag((L - I) M^{-1}) with M = diag(x)(L - I) + I, at `x` ``(..., d)``."""
        inverse = namespace(x).linalg.inv(self._matrix(x))
        return (self._excess * inverse.swapaxes(-1, -2)).sum(-1)


@dataclass(frozen=True)
class LambdaDR:
    """A reward given by two functions of arrays ``(..., d)``: its value ``(...)`` and its gradient ``(..., d)``."""

    value: Callable[[Array], Array]
    grad: Callable[[Array], Array]
    dim: int
    name: str = field(default="f")

    def __post_init__(self) -> None:
        check.function("value", self.value)
        check.function("grad", self.grad)
        check.integer("dim", self.dim, 1)


@dataclass(frozen=True)
class Smoothed:
    """f_delta(x) = E f(x + delta v), v uniform in the unit ball, for a quadratic f: f plus delta^2 tr(H) / (2 (d + 2)).

    The expectation of v v' is I / (d + 2); the gradient does not change. So for quadratics the surrogate of zeroth-order
    feedback (T8) is known exactly.
    """

    f: QuadraticDR
    delta: float

    def __post_init__(self) -> None:
        if not isinstance(self.f, QuadraticDR):
            raise TypeError(f"f: expected a QuadraticDR, whose smoothing is known, got {type(self.f).__name__}")
        check.number("delta", self.delta, 0.0)

    @property
    def dim(self) -> int:
        """Number of coordinates d."""
        return self.f.dim

    def value(self, x: Array) -> Array:
        """f_delta at `x` ``(..., d)``."""
        trace = namespace(self.f.H).linalg.trace(self.f.H)
        return self.f.value(x) + self.delta**2 * trace / (2 * (self.dim + 2))

    def grad(self, x: Array) -> Array:
        """Gradient of f at `x` ``(..., d)``."""
        return self.f.grad(x)


# --- instances that decide
# -----------------------------------------------------------------------------------------------------


def tight_instance() -> QuadraticDR:
    """f(x) = x_1 (1 - x_2): at x = (0, 1), y = (1, 0) both sides of the theorem are 1/e exactly (T3)."""
    return trap(0.0)


def sharp_instance(a: float = 0.5, k: int = 8) -> LambdaDR:
    """f(x) = x_1 (1 - x_2) + (1 - x_1) a (1 - (1 - x_3)^k): equality at x = (0, 1, 1), y = (1, 0, 0) (T3).

    It holds for every a in [0, 1] and k >= 1. With a = 1/2, k = 8 the bound is violated as soon as the law of z or the factor
    e^{-zx} is left out.
    """
    a = check.number("a", a, 0.0, 1.0)
    k = check.integer("k", k, 1)

    def value(x: Array) -> Array:
        return x[..., 0] * (1 - x[..., 1]) + (1 - x[..., 0]) * a * (1 - (1 - x[..., 2]) ** k)

    def grad(x: Array) -> Array:
        x1, x2, x3 = x[..., 0], x[..., 1], x[..., 2]
        rest = (1 - x3) ** k
        return namespace(x).stack([1 - x2 - a * (1 - rest), -x1, (1 - x1) * a * k * (1 - x3) ** (k - 1)], axis=-1)

    return LambdaDR(value, grad, 3, f"sharp({a:g}, {k})")


def trap(eps: float = 0.05) -> QuadraticDR:
    """f(x) = x_1 (1 - x_2) + eps x_2: on {x_1 + x_2 <= 1} stationary at (0, 1) with value eps; its optimum is 1 (T4)."""
    eps = check.number("eps", eps, 0.0, 1.0)
    return QuadraticDR(np.array([[0.0, -1.0], [-1.0, 0.0]]), np.array([1.0, eps]), np.zeros(()))


def drifting_trap(c: int, dim: int) -> QuadraticDR:
    """f(x) = x_c (1 - sum_{j != c} x_j / (d - 1)): only coordinate c pays, and all others spoil it (E5).

    On {sum x <= 1} the optimum is 1, at the unit vector e_c. Non-negative on the box.
    """
    d = check.integer("dim", dim, 2)
    c = check.integer("c", c, 0, d - 1)
    H, h = np.zeros((d, d)), np.zeros(d)
    H[c, :] = H[:, c] = -1.0 / (d - 1)
    H[c, c], h[c] = 0.0, 1.0
    return QuadraticDR(H, h, np.zeros(()))


def take(f: QuadraticDR, index: Any) -> QuadraticDR:
    """The functions of a batch at `index` of its first axis (an integer or an array of them); not validated again."""
    chosen = object.__new__(QuadraticDR)
    for name in ("H", "h", "c"):
        object.__setattr__(chosen, name, getattr(f, name)[index])
    return chosen


def stacked(functions: list[QuadraticDR]) -> QuadraticDR:
    """Several quadratics as one batch, along a new first axis."""
    if not functions or len({tuple(f.h.shape) for f in functions}) > 1:
        raise ValueError(f"functions: expected at least one, all of one shape, got {[tuple(f.h.shape) for f in functions]}")
    return QuadraticDR(*(np.stack([np.asarray(getattr(f, name)) for f in functions]) for name in ("H", "h", "c")))


def summed(f: QuadraticDR, weights: Array) -> QuadraticDR:
    """sum_i w_i f_i over the first axis of a batch: `weights` ``(m,)`` or ``(..., m)``, >= 0."""
    xp = namespace(f.h)
    if f.h.ndim != 2:
        raise ValueError(f"f: expected functions along one batch axis, got the batch {tuple(f.h.shape[:-1])}")
    m, d = f.h.shape
    weights = like(weights, f.h)
    if not weights.ndim or weights.shape[-1] != m:
        raise ValueError(f"weights: expected a last axis of {m}, one weight a function, got shape {tuple(weights.shape)}")
    H = (weights @ xp.reshape(f.H, (m, d * d))).reshape(*weights.shape[:-1], d, d)
    return QuadraticDR(H, weights @ f.h, weights @ f.c)


# --- is it one?
# ----------------------------------------------------------------------------------------------------------------


def _vertices(d: int) -> np.ndarray:
    return np.array(list(itertools.product((0.0, 1.0), repeat=d)))


def _sample_of_vertices(f: DRSubmodular, rng: np.random.Generator | None, n: int = 4096) -> np.ndarray:
    if f.dim <= VERTEX_DIMENSIONS:
        return _vertices(f.dim)
    rng = np.random.default_rng(0) if rng is None else check.generator("rng", rng)
    # every share of ones, so that sets of all sizes are among them
    return np.concatenate([np.zeros((1, f.dim)), np.ones((1, f.dim)), rng.random((n, f.dim)) < rng.random((n,
    1))]).astype(float)


def min_on_vertices(f: DRSubmodular) -> float:
    """Least value of one function on the vertices of the box, d <= 16; that is its least value on the box if f is DR-submodular.

    DR-submodular functions are concave along each coordinate, so a minimum can be pushed to a vertex coordinate by coordinate.

    Raises:
        ValueError: d > 16 (2^d vertices are too many).
    """
    _single(f)
    if f.dim > VERTEX_DIMENSIONS:
        raise ValueError(f"f: expected at most {VERTEX_DIMENSIONS} coordinates to look at all vertices, got {f.dim}")
    return float(np.min(numpy_of(f.value(_at_home(f, _vertices(f.dim))))))


def _single(f: Any) -> None:
    """TypeError for a batch of quadratics: its members would meet the points one by one instead of all with all."""
    if isinstance(f, QuadraticDR) and f.h.ndim > 1:
        raise TypeError(f"f: expected one function, got a batch of shape {tuple(f.h.shape[:-1])}")


def _at_home(f: Any, x: np.ndarray) -> Array:
    """`x` as the kind of array that `f` is made of."""
    for name in ("h", "W", "P", "L"):
        if hasattr(f, name):
            return like(x, getattr(f, name))
    return x


def check_nonnegative(f: DRSubmodular, rng: np.random.Generator | None = None, tol: float = 1e-9) -> None:
    """Refuse a function that is negative somewhere on the box, where a vertex shows it.

    All vertices for d <= 16, else 4,098 of them drawn from `rng`: a sample can refuse, it cannot prove.

    Raises:
        ValueError: naming the vertex and the value there.
    """
    points = _sample_of_vertices(f, rng)
    own_batch = f.h.ndim - 1 if isinstance(f, QuadraticDR) else 0
    values = numpy_of(f.value(_at_home(f, points.reshape(len(points), *(1,) * own_batch, f.dim))))
    values = values.reshape(len(points), -1).min(axis=1)
    worst = int(values.argmin())  # the first NaN, if there is one
    if not values[worst] >= -tol:
        chosen = np.flatnonzero(points[worst]).tolist()
        raise ValueError(f"f: expected f >= 0 on the whole box, got {values[worst]:.6g} at the vertex with ones at {chosen}; "
                         "add a constant")


def check_dr_submodular(f: DRSubmodular, rng: np.random.Generator, n: int = 200, tol: float = 1e-9) -> None:
    """Refuse a function whose gradient does not fall: `n` random pairs x <= y of the box, and each coordinate step from x.

    Args:
        f: one function (no batch of its own).
        rng: a numpy Generator.
        n: pairs, >= 1.
        tol: slack for rounding, relative to the largest gradient entry seen.

    Raises:
        ValueError: naming coordinate, point and amount.
    """
    _single(f)
    n = check.integer("n", n, 1)
    rng = check.generator("rng", rng)
    ends = np.sort(rng.random((2, n, f.dim)), axis=0)
    # single coordinates, too: a pair that moves everywhere averages one bad entry of the Hessian away
    single = np.where(np.eye(f.dim, dtype=bool)[rng.integers(f.dim, size=n)], ends[1], ends[0])
    low = np.concatenate([ends[0], ends[0]])
    high = np.concatenate([ends[1], single])
    before, after = (numpy_of(f.grad(_at_home(f, x))) for x in (low, high))
    for points, gradient in ((low, before), (high, after)):
        if gradient.shape != points.shape or not np.isfinite(gradient).all():
            bad = "" if gradient.shape != points.shape else ", not all finite"
            raise ValueError(f"f: expected finite gradients of shape {points.shape}, got shape {gradient.shape}{bad}")
    rise = after - before
    row, i = np.unravel_index(int(rise.argmax()), rise.shape)
    if rise[row, i] > tol * max(1.0, float(np.abs(before).max())):
        raise ValueError(
            "f: expected a DR-submodular function (x <= y implies grad f(x) >= grad f(y)); "
            f"coordinate {i} of the gradient rises by {rise[row, i]:.3g} from {np.round(low[row], 3).tolist()} "
            f"to {np.round(high[row], 3).tolist()}"
        )


def is_dr_submodular(f: DRSubmodular, rng: np.random.Generator, n: int = 200, tol: float = 1e-9) -> bool:
    """Whether :func:`check_dr_submodular` finds nothing against `f`; True is no proof."""
    try:
        check_dr_submodular(f, rng, n, tol)
    except ValueError as error:
        if str(error).startswith("f: "):
            return False
        raise
    return True


def random_cut(dim: int, rng: np.random.Generator, density: float = 0.5) -> CutExtension:
    """A random directed graph: each arc is there with probability `density`, with a weight uniform on [0, 1]."""
    d = check.integer("dim", dim, 2)
    check.number("density", density, 0.0, 1.0, open_low=True)
    rng = check.generator("rng", rng)
    W = rng.random((d, d)) * (rng.random((d, d)) < density)
    np.fill_diagonal(W, 0.0)
    return CutExtension(W)


def random_revenue(dim: int, rng: np.random.Generator) -> RevenueExtension:
    """Probabilities of persuasion uniform on [0, 0.9]."""
    d = check.integer("dim", dim, 2)
    P = 0.9 * check.generator("rng", rng).random((d, d))
    np.fill_diagonal(P, 0.0)
    return RevenueExtension(P)


def random_dpp(dim: int, rng: np.random.Generator, scale: float = 1.0) -> SoftmaxDPP:
    """A Wishart kernel ``scale * (X X'/d + 0.05 I)`` with eigenvalues on both sides of 1, shifted to be non-negative."""
    d = check.integer("dim", dim, 1)
    X = check.generator("rng", rng).standard_normal((d, d))
    return SoftmaxDPP(check.number("scale", scale, 0.0, open_low=True) * (X @ X.T / d + 0.05 * np.eye(d)))


def corner_points(rng: Stream, n: int, dim: int) -> Array:
    """`n` points of the box, ``(n, d)``: each coordinate 0 or 1 with a random probability, else uniform on [0, 1].

    The theorem is tight at corners; uniform points alone would hardly come near equality.
    """
    xp = namespace(uniform(is_stream("rng", rng), 1))
    inside, corner, coin, share = uniform(rng, n, dim), uniform(rng, n, dim), uniform(rng, n, dim), uniform(rng, n, 1)
    return xp.where(coin < share, xp.round(corner), inside)
