r"""Piecewise polynomial least squares on a grid of cells (the theory's SeriesResidual), one fit or many at once.

    cell(x)  = min(floor(K x), K-1) an axis;  local(x) = K x - cell(x) - 1/2
    per cell   w = (F'F + ridge I)^(-1) F' e  with F the monomials of local(x) of total degree < order;  empty cells predict 0.

The fit is linear in the targets. With e = delta * shape + noise, fit(e) = delta * fit(shape) + fit(noise) on the same X, so
the risk of one repetition is the exact quadratic delta^2 <u,u> - 2 delta <u,v> + <v,v> with u = shape - fit(shape), v =
fit(noise): two fits give the risk at every delta (`RiskCurves`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from paperbook.study import arguments as check
from paperbook.study.arguments import FloatArray

from .synthetic import Shape, namespace
from .validation import adopt_state, blank_copy, check_features, check_regression

RIDGE = 1e-3
MAX_CELLS = 2**62  # flat cell numbers are int64
MAX_SYSTEM = 2**27  # floats in the batched normal equations: 1 GiB
MAX_NODES = 2**21  # nodes of the quadrature over all cells


# ------------------------------------------------------------------------------------- cells and monomials (numpy or torch)


def exponents(d: int, order: int) -> list[tuple[int, ...]]:
    """Exponent tuples of the monomials in `d` variables of total degree below `order`, by degree: C(d+order-1, d) of them."""
    found = [(0,) * d]
    for degree in range(1, order):
        for variables in combinations_with_replacement(range(d), degree):
            found.append(tuple(variables.count(j) for j in range(d)))
    return found


def locate(U: Any, n_cells: int) -> tuple[Any, Any]:
    """Flat cell number (...) int64, last axis fastest, and local coordinates (..., d) in [-1/2, 1/2] of `U` (..., d) in [0,1]."""
    xp = namespace(U)
    scaled = n_cells * U
    cell = xp.floor(scaled).clip(0, n_cells - 1)
    whole = cell.astype(np.int64) if xp is np else cell.long()
    flat = whole[..., 0]
    for j in range(1, U.shape[-1]):
        flat = flat * n_cells + whole[..., j]
    return flat, scaled - cell - 0.5


def monomials(local: Any, order: int) -> list[Any]:
    """The monomials of `exponents` at `local` (..., d), each (...); the first is the constant 1."""
    xp = namespace(local)
    columns = []
    for powers in exponents(local.shape[-1], order):
        column = None
        for j, power in enumerate(powers):
            for _ in range(power):
                column = local[..., j] if column is None else column * local[..., j]
        columns.append(xp.ones_like(local[..., 0]) if column is None else column)
    return columns


def cell_moments(flat: Any, columns: Sequence[Any], targets: Sequence[Any], size: int) -> tuple[FloatArray, FloatArray]:
    """F'F (size, p, p) and F'e for each target (size, p, len(targets)) per cell, by weighted counts: O(n p^2)."""
    bins = flat.reshape(-1)
    xp = namespace(bins)

    def total(weight: Any) -> FloatArray:
        counts = xp.bincount(bins, weight, minlength=size)
        return np.asarray(counts if xp is np else counts.cpu(), dtype=np.float64)

    p = len(columns)
    parts = [c.reshape(-1) for c in columns]
    gram, right = np.empty((size, p, p)), np.empty((size, p, len(targets)))
    for i in range(p):
        for j in range(i, p):
            # the first column is the constant 1
            gram[:, i, j] = gram[:, j, i] = total(None if i == j == 0 else parts[j] if i == 0 else parts[i] * parts[j])
        for k, target in enumerate(targets):
            right[:, i, k] = total(target.reshape(-1) if i == 0 else parts[i] * target.reshape(-1))
    return gram, right


def solve_cells(gram: Float[np.ndarray, "*cells p p"], right: Float[np.ndarray, "*cells p k"],
                ridge: float) -> Float[np.ndarray, "*cells p k"]:
    """(gram + ridge I)^(-1) right over all leading axes: `gram` (..., p, p), `right` (..., p, k) -> (..., p, k)."""
    p = gram.shape[-1]
    if p == 1:
        return np.asarray(right / (gram + ridge), dtype=np.float64)
    return np.asarray(np.linalg.solve(gram + ridge * np.eye(p), right), dtype=np.float64)


# ------------------------------------------------------------------------------------------------------------ one estimator


class PiecewisePolynomialRegressor(RegressorMixin, BaseEstimator):
    """Ridge-stabilised least squares on `n_cells` equal cells an axis, polynomials of total degree below `order` in each.

    Parameters: `order` >= 1 (ceil of the smoothness), `n_cells` >= 1, `ridge` > 0 (added to F'F, not divided by n), `domain` None
    (each column's training range) or (low, high) for all columns ((0, 1) in the theory). Inputs beyond the domain are clipped
    to it. Only cells that hold a row are stored; the others predict 0. Fit O(n p^2 + occupied p^3), p = C(d+order-1, d);
    predict O(n p).

    Fitted: `low_`, `width_` (d,), `order_`, `n_cells_`, `cells_` (occupied,) sorted flat numbers, `coef_` (occupied, p),
    `n_features_in_`.
    """

    def __init__(self, order: int = 1, n_cells: int = 10, ridge: float = RIDGE, domain: tuple[float, float] | None = None):
        self.order = order
        self.n_cells = n_cells
        self.ridge = ridge
        self.domain = domain

    def fit(self, X: ArrayLike, y: ArrayLike) -> PiecewisePolynomialRegressor:
        """Fit to `X` (n, d), `y` (n,). ValueError/TypeError on bad parameters or data; the estimator is then what it was."""
        twin = blank_copy(self)
        twin._fit(X, y)
        adopt_state(self, twin)
        return self

    def _fit(self, X: ArrayLike, y: ArrayLike) -> None:
        order, n_cells = check.integer("order", self.order, 1), check.integer("n_cells", self.n_cells, 1)
        ridge = check.number("ridge", self.ridge, 0.0, open_low=True)
        domain = _domain(self.domain)
        rows, target = check_regression(self, X, y)
        n, d = rows.shape
        p = math.comb(d + order - 1, d)
        if n_cells**d > MAX_CELLS:
            raise ValueError(
                f"n_cells: expected n_cells**n_features <= 2**62, got {n_cells}**{d}; lower n_cells or reduce the features"
            )
        if min(n, n_cells**d) * p * p > MAX_SYSTEM:
            raise ValueError(
                f"order: {p} coefficients in each of up to {min(n, n_cells**d)} cells exceed the {MAX_SYSTEM} numbers "
                f"the normal equations may take, got order={order} with {d} features"
            )
        low, width = _frame(rows, domain)
        flat, local = locate(((rows - low) / width).clip(0.0, 1.0), n_cells)
        cells, place = _compress(flat, n_cells**d)
        gram, right = cell_moments(place, monomials(local, order), [target], cells.size)
        self.low_, self.width_, self.cells_ = low, width, cells
        self.order_, self.n_cells_ = order, n_cells
        self.coef_ = solve_cells(gram, right, ridge)[..., 0]

    def predict(self, X: ArrayLike) -> FloatArray:
        """Predictions (n,) for `X` (n, d); NotFittedError before `fit`, ValueError on other widths or non-finite values."""
        check_is_fitted(self)
        rows = check_features(self, X, reset=False)
        flat, local = locate(((rows - self.low_) / self.width_).clip(0.0, 1.0), self.n_cells_)
        place = np.searchsorted(self.cells_, flat).clip(0, self.cells_.size - 1)
        coef = np.where((self.cells_[place] == flat)[:, None], self.coef_[place], 0.0)
        out = coef[:, 0].copy()
        for k, column in enumerate(monomials(local, self.order_)[1:], start=1):
            out += coef[:, k] * column
        return out


def _domain(domain: Any) -> tuple[float, float] | None:
    if domain is None:
        return None
    if not isinstance(domain, tuple | list) or len(domain) != 2:
        raise ValueError(f"domain: expected None or (low, high), got {domain!r}")
    low, high = (check.number("domain", value) for value in domain)
    if not low < high:
        raise ValueError(f"domain: expected low < high, got {domain!r}")
    return low, high


def _frame(X: FloatArray, domain: tuple[float, float] | None) -> tuple[FloatArray, FloatArray]:
    if domain is not None:
        return np.full(X.shape[1], domain[0]), np.full(X.shape[1], domain[1] - domain[0])
    low, width = X.min(axis=0), np.ptp(X, axis=0)
    return low, np.where(width > 0, width, 1.0)


def _compress(flat: np.ndarray, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted occupied cells and each row's place among them; counts instead of a sort where the grid is no larger than the
    data."""
    if total > 4 * flat.size:
        cells, rows = np.unique(flat, return_inverse=True)
        return cells, rows.reshape(-1)
    occupied = np.bincount(flat, minlength=total) > 0
    return np.flatnonzero(occupied), (np.cumsum(occupied) - 1)[flat]


# ------------------------------------------------------------------------------------------------------ many repetitions


@dataclass(frozen=True)
class RiskCurves:
    """Risk of each repetition as a quadratic in delta: `curvature` delta^2 + `slope` delta + `level`, all (reps,).

    `curvature` is the relative squared bias, `level` the variance part. `n` training rows, `n_cells` an axis.
    """

    curvature: FloatArray
    slope: FloatArray
    level: FloatArray
    n: int
    n_cells: int

    def risk(self, delta: ArrayLike) -> FloatArray:
        """Risks (reps, len(delta)) at each `delta` >= 0 (a vector or a number)."""
        x = np.atleast_1d(check.array("delta", delta, 0.0))
        return self.curvature[:, None] * x**2 + self.slope[:, None] * x + self.level[:, None]

    def coefficients(self) -> FloatArray:
        """(reps, 3): curvature, slope, level."""
        return np.stack([self.curvature, self.slope, self.level], axis=1)


@dataclass(frozen=True)
class CellMeasure:
    """The shape under the uniform law: `gram` (p, p) of the monomials in any one cell, `inner` (C, p) = <F, shape>, `norm2`."""

    gram: FloatArray
    inner: FloatArray
    norm2: float

    def risk_terms(
        self, shape_coef: Float[np.ndarray, "*batch cells p"], noise_coef: Float[np.ndarray, "*batch cells p"]
    ) -> tuple[Float[np.ndarray, "*batch"], Float[np.ndarray, "*batch"], Float[np.ndarray, "*batch"]]:
        """Curvature, slope and level of the risk quadratic from coefficients (..., C, p) of fit(shape) and fit(noise)."""
        moved = shape_coef @ self.gram
        curvature = self.norm2 + ((moved - 2.0 * self.inner) * shape_coef).sum((-2, -1))
        slope = 2.0 * ((moved - self.inner) * noise_coef).sum((-2, -1))
        return curvature, slope, ((noise_coef @ self.gram) * noise_coef).sum((-2, -1))


def cell_measure(shape: Shape, n_cells: int, order: int, d: int) -> CellMeasure:
    """Gauss-Legendre quadrature in every cell (panels of up to 32 nodes an axis, 2^21 in all): exact risks, no test sample.

    ValueError where even 4 nodes an axis are too many: use fewer cells or dimensions.
    """
    budget = int((MAX_NODES + 0.5) ** (1 / d)) // n_cells        # nodes an axis in each cell
    if budget < 4:
        raise ValueError(f"d: expected (4 n_cells)**d <= {MAX_NODES} for the quadrature, got n_cells={n_cells}, d={d}")
    nodes = min(32, budget)
    # few cells and a fine shape: several panels a cell, 256 over the axis where the budget allows it
    panels = max(1, min(-(-256 // n_cells), budget // nodes))
    x, weight = np.polynomial.legendre.leggauss(nodes)
    axis = ((x + 1.0) / 2.0 + np.arange(n_cells * panels)[:, None]).reshape(-1) / (n_cells * panels)
    axis_weight = np.tile(weight / 2.0 / (n_cells * panels), n_cells * panels)
    grids = np.meshgrid(*([axis] * d), indexing="ij")
    points = np.stack([g.reshape(-1) for g in grids], axis=-1)
    mass: FloatArray = np.ones(())
    for _ in range(d):
        mass = np.multiply.outer(mass, axis_weight)
    mass = mass.reshape(-1)
    flat, local = locate(points, n_cells)
    columns = monomials(local, order)
    value = np.asarray(shape(points), dtype=np.float64)
    inner = np.stack([np.bincount(flat, mass * c * value, minlength=n_cells**d) for c in columns], axis=-1).astype(np.float64)
    first = flat == 0
    gram = np.array([[(mass * a * b)[first].sum() for b in columns] for a in columns])
    return CellMeasure(gram, inner, float((mass * value**2).sum()))


def simulation_arguments(
    n: int,
    n_cells: int,
    order: int,
    sigma: float,
    reps: int,
    rng: np.random.Generator,
    d: int,
    ridge: float,
) -> tuple[int, int, int, float, int, int, float]:
    """Checked arguments shared by the batched experiments, in the order (n, n_cells, order, sigma, reps, d, ridge)."""
    check.generator("rng", rng)
    n, n_cells, order = check.integer("n", n, 1), check.integer("n_cells", n_cells, 1), check.integer("order", order, 1)
    sigma, reps, d = check.number("sigma", sigma, 0.0), check.integer("reps", reps, 1), check.integer("d", d, 1)
    ridge = check.number("ridge", ridge, 0.0, open_low=True)
    if n_cells**d * math.comb(d + order - 1, d) ** 2 > MAX_SYSTEM:
        raise ValueError(
            f"n_cells: the normal equations of {n_cells}**{d} cells exceed {MAX_SYSTEM} numbers; lower n_cells, order or d"
        )
    return n, n_cells, order, sigma, reps, d, ridge


class Draws:
    """Batches of uniform inputs and standard normal noise, from numpy (`device` None) or torch float64 on a device."""

    def __init__(self, rng: np.random.Generator, device: Any = None):
        self.rng, self.device, self.on_cuda = rng, device, False
        if device is not None:
            import torch

            self.torch = torch
            self.on_cuda = torch.device(device).type == "cuda"
            self.stream = torch.Generator(device=device).manual_seed(int(rng.integers(2**63)))

    def batch(self, reps: int, n: int, d: int) -> tuple[Any, Any]:
        """X (reps, n, d) and noise (reps, n)."""
        if self.device is None:
            return self.rng.random((reps, n, d)), self.rng.standard_normal((reps, n))
        options = {"generator": self.stream, "device": self.device, "dtype": self.torch.float64}
        return self.torch.rand(reps, n, d, **options), self.torch.randn(reps, n, **options)

    def groups(self, flat: Any, cells: int) -> Any:
        """Cell numbers (reps, n) made distinct between the rows of the first axis."""
        if self.device is None:
            return flat + cells * np.arange(flat.shape[0])[:, None]
        return flat + cells * self.torch.arange(flat.shape[0], device=self.device)[:, None]


def fit_batch(X: Any, targets: Sequence[Any], n_cells: int, order: int, ridge: float, draws: Draws) -> FloatArray:
    """Fit every repetition and target at once: `X` (reps, n, d), targets (reps, n) -> (reps, K^d, p, len(targets))."""
    reps, d = X.shape[0], X.shape[-1]
    cells = n_cells**d
    flat, local = locate(X, n_cells)
    columns = monomials(local, order)
    gram, right = cell_moments(draws.groups(flat, cells), columns, targets, reps * cells)
    p = len(columns)
    return solve_cells(gram, right, ridge).reshape(reps, cells, p, len(targets))


def piecewise_risks(
    n: int,
    n_cells: int,
    order: int,
    shape: Shape,
    sigma: float,
    reps: int,
    rng: np.random.Generator,
    *,
    d: int = 1,
    ridge: float = RIDGE,
    device: Any = None,
    max_elements: int | None = None,
) -> RiskCurves:
    """Exact L2 risks of `reps` independent fits to delta * shape + sigma * noise, for every delta at once (module docstring).

    `n` training rows uniform on [0,1]^d, `shape` a callable on (..., d), `sigma` >= 0. `device` None runs NumPy; a torch
    device runs float64 torch there (the same formulas, other random numbers; CUDA sums vary in the last bits). Memory:
    `max_elements` rows of data at a time
    (at least one repetition). Cost O(reps n p^2); 500 repetitions at n = 10^6 are a full-scale run.
    """
    n, n_cells, order, sigma, reps, d, ridge = simulation_arguments(n, n_cells, order, sigma, reps, rng, d, ridge)
    check.function("shape", shape)
    draws = Draws(rng, device)
    # about 100 bytes a row: 2^19 stays near the CPU's caches, 2^25 (3 GB) fills a GPU
    default = 2**25 if draws.on_cuda else 2**19
    per_batch = max(1, (default if max_elements is None else check.integer("max_elements", max_elements, 1)) // n)
    measure = cell_measure(shape, n_cells, order, d)
    parts = []
    for start in range(0, reps, per_batch):
        X, noise = draws.batch(min(per_batch, reps - start), n, d)
        coef = fit_batch(X, [shape(X), sigma * noise], n_cells, order, ridge, draws)
        parts.append(measure.risk_terms(coef[..., 0], coef[..., 1]))
    curvature, slope, level = (np.concatenate(group) for group in zip(*parts, strict=True))
    return RiskCurves(curvature, slope, level, n, n_cells)


def projection_bias(shape: Shape, n_cells: int, order: int, d: int = 1) -> float:
    """Squared L2 distance from `shape` to the piecewise polynomials: the fit's squared bias relative to delta^2, by
    quadrature."""
    n_cells, order, d = check.integer("n_cells", n_cells, 1), check.integer("order", order, 1), check.integer("d", d, 1)
    measure = cell_measure(shape, n_cells, order, d)
    best = np.linalg.solve(measure.gram, measure.inner.T).T
    return max(0.0, measure.norm2 - float((best * measure.inner).sum()))


def series_risk(delta: ArrayLike, n: int, n_cells: int, order: int, shape: Shape, sigma: float, d: int = 1) -> FloatArray:
    """Risk delta^2 bias + sigma^2 p K^d / n of the fit by formula; the Monte Carlo adds terms of relative size p K^d / n."""
    radius, n = check.array("delta", delta, 0.0), check.integer("n", n, 1)
    sigma = check.number("sigma", sigma, 0.0)
    bias = projection_bias(shape, n_cells, order, d)
    return (radius**2 * bias + sigma**2 * math.comb(d + order - 1, d) * n_cells**d / n)[()]
