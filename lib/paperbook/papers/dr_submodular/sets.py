"""Convex sets inside the box [0,1]^d: the budget box in closed form, a general polytope through kept solvers.

Methods take NumPy arrays or torch tensors of shape ``(..., d)`` and return the same kind. A set is *down-closed* if it contains,
with each y, every x with 0 <= x <= y; the wrapper of Lu et al. needs that, because 1 - e^-y lies below y (T2, step i).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from paperbook.study import arguments as check

from .arrays import Array, last_axis, like, namespace, numpy_of

INSIDE = 1e-12
"""Violations up to this size count as inside for the separation oracle: rounding of a sum of d products."""


@runtime_checkable
class ConvexSet(Protocol):
    """What learners and wrappers ask of a set."""

    @property
    def dim(self) -> int:
        """Number of coordinates d."""

    @property
    def margin(self) -> float:
        """delta if the set came from ``shrink(delta)``, else 0."""

    @property
    def diameter(self) -> float:
        """D, an upper bound on the distance of two points."""

    def project(self, y: Array) -> Array:
        """Nearest point of the set."""

    def lmo(self, c: Array, upper: Array | None = None) -> Array:
        """A point of the set that maximises <c, x>, with x <= `upper` if that is given."""

    def separate(self, y: Array) -> Array:
        """A unit vector w with <w, y - z> > 0 for all z of the set, 0 for points inside."""

    def contains(self, x: Array, tol: float = 1e-9) -> Array:
        """Whether each point lies in the set, up to `tol`, ``(...)``."""

    def is_down_closed(self) -> bool:
        """Whether the set contains 0 and everything below its points."""

    def inner_ball(self) -> tuple[np.ndarray, float]:
        """Centre ``(d,)`` and radius of a ball inside the set."""

    def centre(self) -> np.ndarray:
        """A point well inside, ``(d,)``."""

    def shrink(self, delta: float) -> ConvexSet:
        """The set in u-coordinates whose points keep a distance delta from the border (T8)."""


def _separation(distances: Array, normals: Array) -> Array:
    """Rows of `normals` ``(m, d)`` for the largest of `distances` ``(..., m)``, 0 where none is positive."""
    xp = namespace(distances)
    worst = xp.argmax(distances, axis=-1)
    outside = xp.max(distances, axis=-1) > INSIDE
    return xp.where(outside[..., None], normals[worst], 0.0)


@dataclass(frozen=True)
class BudgetBox:
    """{x in [0,1]^d : sum x <= budget}, everything in closed form and vectorised over the batch.

    Args:
        dim: d >= 1.
        budget: k > 0; need not be an integer. From k = d on it is the box itself.
        margin: delta where the set came from ``shrink(delta)``, a mark for those who play on the sphere; else 0.
    """

    dim: int
    budget: float
    margin: float = field(default=0.0, compare=False)

    def __post_init__(self) -> None:
        check.integer("dim", self.dim, 1)
        check.number("budget", self.budget, 0.0, open_low=True)

    @property
    def diameter(self) -> float:
        """sqrt(min(2k, d)): two points differ by at most 1 a coordinate and 2k in sum; exact for integer k."""
        return math.sqrt(min(2 * self.budget, self.dim))

    def project(self, y: Array) -> Array:
        """Nearest point, exact, O(d log d) a row: clip(y - lam, 0, 1) with the root lam of a piecewise linear function.

        s(lam) = sum clip(y - lam, 0, 1) falls from d to 0. Its slope changes by -1 at each y_i - 1 and by +1 at each y_i, so
        sorting these 2d points and summing slopes gives s at all of them; for |y| up to 1e15, beyond which y - 1 is y in
        floating point. Nothing waits for the host: on CUDA the whole step stays on the device.
        """
        xp = namespace(last_axis("y", y, self.dim))
        ends = xp.concat([y - 1, y], axis=-1)
        order = xp.argsort(ends, axis=-1)
        points = xp.take_along_axis(ends, order, axis=-1)
        slope = xp.cumulative_sum(xp.where(order < self.dim, -1.0 + 0 * points, 1.0 + 0 * points), axis=-1)
        drops = slope[..., :-1] * (points[..., 1:] - points[..., :-1])
        sums = self.dim + xp.cumulative_sum(drops, axis=-1)  # s at the second point, the third, ...
        # the first piece at whose right end the sum is within the budget; counted, because rounding may leave s(last) above 0
        piece = xp.sum(xp.astype(sums > self.budget, xp.int64), axis=-1, keepdims=True)
        piece = xp.clip(piece, None, 2 * self.dim - 2)
        right, at = xp.take_along_axis(points[..., 1:], piece, axis=-1), xp.take_along_axis(sums, piece, axis=-1)
        steep = xp.take_along_axis(slope[..., :-1], piece, axis=-1)
        back = (self.budget - at) / xp.where(steep < 0, -steep, 1.0)
        # lam = right - back; y - right is formed first, so that nothing is lost where y is large
        cut = xp.clip((y - right) + back, 0.0, 1.0)
        kept = xp.clip(y, 0.0, 1.0)
        return xp.where(xp.sum(kept, axis=-1, keepdims=True) <= self.budget, kept, cut)

    def lmo(self, c: Array, upper: Array | None = None) -> Array:
        """The coordinates with the largest positive gains, as far as the budget reaches; the last one in part."""
        xp = namespace(last_axis("c", c, self.dim))
        most = xp.ones_like(c) if upper is None else xp.clip(upper, 0.0, 1.0)
        order = xp.argsort(-c, axis=-1, stable=True)
        sizes = xp.take_along_axis(xp.where(c > 0, most, 0.0), order, axis=-1)
        before = xp.cumulative_sum(sizes, axis=-1) - sizes
        taken = xp.clip(self.budget - before, 0.0)
        taken = xp.where(taken < sizes, taken, sizes)
        return xp.take_along_axis(taken, xp.argsort(order, axis=-1), axis=-1)

    def separate(self, y: Array) -> Array:
        """Normal of the constraint that is violated most: a coordinate below 0 or above 1, or the budget."""
        xp = namespace(last_axis("y", y, self.dim))
        i = xp.argmax(xp.abs(y - 0.5), axis=-1)  # the coordinate furthest outside [0, 1], if any is
        value = xp.take_along_axis(y, i[..., None], axis=-1)
        beyond = xp.abs(value - 0.5) - 0.5
        over = (xp.sum(y, axis=-1, keepdims=True) - self.budget) / math.sqrt(self.dim)
        axis = xp.where(xp.arange(self.dim, device=getattr(y, "device", None)) == i[..., None], xp.sign(value - 0.5), 0.0 * y)
        w = xp.where(beyond >= over, axis, 0 * y + 1 / math.sqrt(self.dim))
        return xp.where(xp.where(beyond >= over, beyond, over) > INSIDE, w, 0.0 * y)

    def contains(self, x: Array, tol: float = 1e-9) -> Array:
        """Whether each point lies in the set, up to `tol`."""
        xp = namespace(last_axis("x", x, self.dim))
        return xp.all((x >= -tol) & (x <= 1 + tol), axis=-1) & (xp.sum(x, axis=-1) <= self.budget + tol)

    def is_down_closed(self) -> bool:
        """True: the row of the budget has no negative coefficient."""
        return True

    def inner_ball(self) -> tuple[np.ndarray, float]:
        """The largest ball: centre r 1 with r = min(1/2, k / (d + sqrt d)), where r d + r sqrt d <= k meets the budget's face."""
        r = min(0.5, self.budget / (self.dim + math.sqrt(self.dim)))
        return np.full(self.dim, r), r

    def centre(self) -> np.ndarray:
        """k/d in every coordinate, at most 1/2."""
        return np.full(self.dim, min(0.5, self.budget / self.dim))

    def shrink(self, delta: float) -> BudgetBox:
        """{u : sum point(u) + delta sqrt d <= k} with point(u) = delta + (1 - 2 delta) u: again a budget box.

        Raises:
            ValueError: delta outside (0, 1/2), or so large that 0 would not be in the set.
        """
        delta = check.number("delta", delta, 0.0, 0.5, open_low=True, open_high=True)
        most = self.budget / (self.dim + math.sqrt(self.dim))
        if delta >= most:
            raise ValueError(f"delta: expected less than {most:.4g}, so that the shrunk set contains 0, got {delta}")
        left = (self.budget - delta * (self.dim + math.sqrt(self.dim))) / (1 - 2 * delta)
        return BudgetBox(self.dim, min(float(self.dim), left), margin=delta)


class Polytope:
    """{x in [0,1]^d : A x <= b}; projection by Clarabel, linear programmes by HiGHS, separation without a solver.

    Args:
        A: ``(m, d)``. With A >= 0 and b >= 0 the set is down-closed; other signs are allowed and usually make it something else.
        b: ``(m,)``.
        margin: delta where the set came from ``shrink(delta)``; else 0.

    Raises:
        ValueError: shapes that do not fit, numbers that are not finite, a row of zeros, or an empty set.
    """

    def __init__(self, A: Any, b: Any, margin: float = 0.0) -> None:
        self.margin = margin
        self.A = check.array("A", A, ndim=2)
        self.b = check.array("b", b, ndim=1)
        if len(self.A) != len(self.b):
            raise ValueError(f"A, b: expected one bound a row, got {self.A.shape} and {self.b.shape}")
        self._norms = np.linalg.norm(self.A, axis=1)
        if (self._norms == 0).any():
            raise ValueError("A: expected no row of zeros")
        if self._solve(np.zeros(self.dim)) is None:
            raise ValueError("A, b: expected a set that is not empty; no x in the box has A x <= b")

    @property
    def dim(self) -> int:
        """Number of coordinates d."""
        return int(self.A.shape[1])

    def _solve(self, c: np.ndarray, upper: np.ndarray | None = None) -> np.ndarray | None:
        """Maximise <c, x> over the set, None where it is empty."""
        from scipy.optimize import linprog

        most = np.ones(self.dim) if upper is None else np.clip(upper, 0.0, 1.0)
        found = linprog(-c, A_ub=self.A, b_ub=self.b, bounds=np.stack([np.zeros(self.dim), most], axis=1), method="highs")
        return np.clip(found.x, 0.0, 1.0) if found.status == 0 else None

    def _max(self, c: np.ndarray) -> float:
        x = self._solve(c)
        assert x is not None  # the constructor refuses an empty set
        return float(c @ x)

    @cached_property
    def diameter(self) -> float:
        """Norm of the coordinates' ranges: an upper bound on the distance of two points, by 2d linear programmes."""
        spread = [self._max(e) + self._max(-e) for e in np.eye(self.dim)]
        return float(np.linalg.norm(spread))

    def project(self, y: Array) -> Array:
        """Nearest point, a quadratic programme a row; points inside the set come back untouched.

        The interior-point solution has an error of about the root of its tolerance, 1e-6 beside a face. It only names the faces
        that are active; the nearest point of those faces is then computed from normal equations, to rounding.
        """
        rows = numpy_of(last_axis("y", y, self.dim)).reshape(-1, self.dim).astype(float)
        out = np.clip(rows, 0.0, 1.0)
        far = np.flatnonzero(~(out @ self.A.T <= self.b + INSIDE).all(axis=1))
        for i, (near, active) in zip(far, self._programmes(rows[far]), strict=True):
            out[i] = np.clip(self._polished(rows[i], near, active), 0.0, 1.0)
        return like(out.reshape(tuple(y.shape)), y)

    @cached_property
    def _constraints(self) -> tuple[np.ndarray, np.ndarray]:
        """N ``(m + 2d, d)`` and n with K = {x : N x <= n}; rows of length 1."""
        eye = np.eye(self.dim)
        normals = np.concatenate([self.A / self._norms[:, None], eye, -eye])
        return normals, np.concatenate([self.b / self._norms, np.ones(self.dim), np.zeros(self.dim)])

    def _programmes(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each row the solver's nearest point ``(d,)`` and which constraints it calls active ``(m + 2d,)``."""
        import clarabel
        from scipy import sparse

        normals, right = self._constraints
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.presolve_enable = False, False  # a presolved programme takes no new q
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
        solver = None
        for y in rows:
            if solver is None:
                eye, cone = sparse.identity(self.dim, format="csc"), [clarabel.NonnegativeConeT(len(right))]
                solver = clarabel.DefaultSolver(eye, -y, sparse.csc_matrix(normals), right, cone, settings)
            else:
                solver.update(q=-y)
            solved = solver.solve()
            if str(solved.status) not in ("Solved", "AlmostSolved"):
                raise RuntimeError(f"projection: Clarabel ended with {solved.status}")
            yield np.asarray(solved.x), np.asarray(solved.z) > np.asarray(solved.s)

    def _polished(self, y: np.ndarray, near: np.ndarray, active: np.ndarray) -> np.ndarray:
        """Nearest point to `y` on the active faces, faces exchanged until it is optimal; `near` where that does not settle."""
        normals, right = self._constraints
        rounding = 1e-13 * max(1.0, float(np.abs(y).max()))
        for _ in range(10):
            N, x, force = normals[active], y, np.zeros(len(right))
            for _ in range(2):  # the second solve removes the rounding of a long first step
                more = np.linalg.lstsq(N @ N.T, N @ x - right[active], rcond=None)[0]
                force[active] += more
                x = x - N.T @ more
            pulls, broken = active & (force < -rounding), normals @ x - right > INSIDE
            if not (pulls.any() or broken.any()):
                return x
            active = (active & ~pulls) | broken
        return near

    def lmo(self, c: Array, upper: Array | None = None) -> Array:
        """A maximiser of <c, x>, one linear programme a row."""
        rows = numpy_of(last_axis("c", c, self.dim)).reshape(-1, self.dim)
        most = None if upper is None else np.broadcast_to(numpy_of(upper), tuple(c.shape)).reshape(-1, self.dim)
        found = [self._solve(row, None if most is None else most[i]) for i, row in enumerate(rows)]
        if any(x is None for x in found):
            raise ValueError("upper: expected bounds that leave a point of the set")
        return like(np.array(found).reshape(tuple(c.shape)), c)

    def _faces(self, y: Array) -> tuple[Array, Array]:
        """Unit outer normals ``(m + 2d, d)`` and signed distances of `y` to their faces, ``(..., m + 2d)``."""
        normals, offsets = (like(part, last_axis("y", y, self.dim)) for part in self._constraints)
        return normals, y @ normals.T - offsets

    def separate(self, y: Array) -> Array:
        """Normal of the constraint that is violated most; no solver is called."""
        normals, distances = self._faces(y)
        return _separation(distances, normals)

    def contains(self, x: Array, tol: float = 1e-9) -> Array:
        """Whether each point violates no constraint by more than `tol`."""
        xp = namespace(last_axis("x", x, self.dim))
        inside = xp.all((x >= -tol) & (x <= 1 + tol), axis=-1)
        return inside & xp.all(x @ like(self.A, x).T <= like(self.b, x) + tol, axis=-1)

    def is_down_closed(self) -> bool:
        """Exact, by one linear programme a row: 0 is in the set, and max_{x in K} sum_j max(A_ij, 0) x_j <= b_i for every row i.

        For a point x of K the worst y <= x keeps the coordinates with positive coefficients and sets the others to 0.
        """
        return self._down_closed

    @cached_property
    def _down_closed(self) -> bool:
        if (self.b < 0).any():
            return False
        mixed = np.flatnonzero((self.A < 0).any(axis=1))
        return all(self._max(np.maximum(self.A[i], 0.0)) <= self.b[i] + 1e-9 for i in mixed)

    @cached_property
    def _ball(self) -> tuple[np.ndarray, float]:
        from scipy.optimize import linprog

        normals, right = self._constraints
        rows = np.hstack([normals, np.ones((len(normals), 1))])
        bounds = [(0.0, 1.0)] * (self.dim + 1)
        found = linprog([0.0] * self.dim + [-1.0], A_ub=rows, b_ub=right, bounds=bounds, method="highs")
        return np.asarray(found.x[:-1]), float(found.x[-1])

    def inner_ball(self) -> tuple[np.ndarray, float]:
        """The largest ball inside (Chebyshev), by one linear programme.

        Raises:
            ValueError: the set has no interior.
        """
        centre, radius = self._ball
        if radius <= 1e-9:
            raise ValueError("K: expected a set with interior points, got one that lies in a hyperplane")
        return centre, radius

    def centre(self) -> np.ndarray:
        """Centre of the largest ball inside."""
        return self._ball[0]

    def shrink(self, delta: float) -> Polytope:
        """{u in [0,1]^d : A point(u) + delta ||A_i|| <= b} with point(u) = delta + (1 - 2 delta) u; needs a down-closed set.

        For u in it, point(u) + delta v lies in K for every unit vector v. Down-closed again: the rows keep their signs.

        Raises:
            ValueError: delta outside (0, 1/2), or so large that 0 would not be in the set; a set that is not down-closed.
        """
        delta = check.number("delta", delta, 0.0, 0.5, open_low=True, open_high=True)
        if (self.A < 0).any() or (self.b < 0).any():
            raise ValueError("K: expected A >= 0 and b >= 0 to shrink it")
        most = float((self.b / (self.A.sum(axis=1) + self._norms)).min())
        if delta >= most:
            raise ValueError(f"delta: expected less than {most:.4g}, so that the shrunk set contains 0, got {delta}")
        return Polytope((1 - 2 * delta) * self.A, self.b - delta * (self.A.sum(axis=1) + self._norms), margin=delta)


def random_packing(dim: int, rows: int, rng: np.random.Generator, tightness: float = 0.35) -> Polytope:
    """{A x <= b} with A uniform on [0, 1] and b = tightness times the row sums: down-closed, several active constraints."""
    A = check.generator("rng", rng).random((check.integer("rows", rows, 1), check.integer("dim", dim, 1)))
    return Polytope(A, check.number("tightness", tightness, 0.0, 1.0, open_low=True) * A.sum(axis=1))
