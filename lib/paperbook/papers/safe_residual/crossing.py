r"""Where learning begins to pay, by Monte Carlo: critical radii and their slope in n, and the safe rule on a grid of radii.

Everything is batched over repetitions and, because the fit is linear in its targets (see `piecewise`), exact in delta: one set of
fits serves the whole grid of radii, every margin tau, and the root delta_c itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from paperbook.study import arguments as check
from paperbook.study.arguments import FloatArray
from paperbook.study.statistics import Estimate, bootstrap_interval

from .piecewise import (
    RIDGE,
    Draws,
    RiskCurves,
    cell_measure,
    cell_moments,
    exponents,
    fit_batch,
    locate,
    monomials,
    piecewise_risks,
    projection_bias,
    series_risk,
    simulation_arguments,
    solve_cells,
)
from .synthetic import Shape, cosine

Curves = RiskCurves | Sequence[RiskCurves]


def n_cells_class(n: int, beta: float, d: int, k0: float = 2.0) -> int:
    """Class-optimal resolution K = max(1, round(k0 n^(1/(2 beta+d)))), `n` training rows; never a function of delta (S9)."""
    # OPEN(paper §F): the constant is ours; k0 = 2 for the crossings (1 at beta < 1), 1 for the safe curve.
    n, beta, d = check.integer("n", n, 1), check.number("beta", beta, 0.0, open_low=True), check.integer("d", d, 1)
    return max(1, round(check.number("k0", k0, 0.0, open_low=True) * n ** (1 / (2 * beta + d))))


# ------------------------------------------------------------------------------------------------------- critical radius


def _root(coefficients: FloatArray) -> FloatArray:
    """Positive root of R(delta) = delta^2 for each (..., 3) of curvature, slope, level; inf where the risk never falls below."""
    curvature, slope, level = np.moveaxis(coefficients, -1, 0)
    room = 1.0 - curvature
    safe = np.where(room > 0, room, 1.0)
    return np.where(room > 0, (slope + np.sqrt(slope**2 + 4.0 * safe * level)) / (2.0 * safe), np.inf)


def _crossing(mean: FloatArray, delta_grid: FloatArray | None) -> float:
    """Radius from mean coefficients (curves, 3): the risk is the lowest of the curves at each delta."""
    if delta_grid is None:
        radius = float(_root(mean).min())  # the lowest curve crosses where the first of them does
        if not 0 < radius < math.inf:
            raise ValueError(f"curves: expected a risk that falls below delta^2 at some delta > 0, got the crossing {radius}")
        return radius
    powers = np.stack([delta_grid**2, delta_grid, np.ones_like(delta_grid)])
    sign = np.log((mean @ powers).min(axis=0)) - 2.0 * np.log(delta_grid)
    down = np.flatnonzero((sign[:-1] > 0) & (sign[1:] <= 0))
    if down.size == 0:
        raise ValueError(
            f"delta_grid: expected a grid around the crossing, got [{delta_grid[0]:g}, {delta_grid[-1]:g}] without one"
        )
    i = down[-1]
    share = sign[i] / (sign[i] - sign[i + 1])
    return float(np.exp(np.log(delta_grid[i]) + share * np.log(delta_grid[i + 1] / delta_grid[i])))


def _coefficients(curves: Curves) -> FloatArray:
    """(reps, curves, 3) of one or several `RiskCurves` with as many repetitions."""
    group = [curves] if isinstance(curves, RiskCurves) else list(curves) if isinstance(curves, Sequence) else []
    if not group or not all(isinstance(c, RiskCurves) for c in group):
        raise TypeError(f"curves: expected RiskCurves or a non-empty sequence of them, got {curves!r}")
    reps = {c.level.size for c in group}
    if len(reps) > 1:
        raise ValueError(f"curves: expected the same number of repetitions in each, got {sorted(reps)}")
    return np.stack([c.coefficients() for c in group], axis=1)


def _grid(delta_grid: ArrayLike | None) -> FloatArray | None:
    if delta_grid is None:
        return None
    grid = check.array("delta_grid", delta_grid, 0.0, ndim=1, open_low=True)
    if grid.size < 2 or (np.diff(grid) <= 0).any():
        raise ValueError("delta_grid: expected at least two increasing radii")
    return grid


def crossing_radius(curves: Curves, delta_grid: ArrayLike | None = None) -> float:
    """delta_c where the mean risk over repetitions equals delta^2, the risk of f_0.

    Several `curves` (one a resolution) stand for the estimator that knows delta and takes the best resolution at each (S9).
    `delta_grid` None takes the root of the quadratic; a grid takes the last change of sign of log R - 2 log delta,
    interpolated in log delta. ValueError where there is no crossing.
    """
    return _crossing(_coefficients(curves).mean(axis=0), _grid(delta_grid))


def fit_slope(
    n_grid: Sequence[int],
    curves: Sequence[Curves],
    rng: np.random.Generator,
    draws: int = 200,
    delta_grid: ArrayLike | None = None,
) -> Estimate:
    """Least-squares slope of log delta_c on log n, with the 95 % interval of `draws` bootstrap resamples of the repetitions.

    `n_grid` >= 2 distinct sizes; `curves` one entry a size (or one sequence over resolutions), all with the same repetitions.
    """
    check.generator("rng", rng)
    x = np.log(check.array("n_grid", n_grid, 1.0, ndim=1))
    if x.size < 2 or np.unique(x).size < x.size:
        raise ValueError(f"n_grid: expected at least two distinct sizes, got {list(n_grid)}")
    if len(curves) != x.size:
        raise ValueError(f"curves: expected {x.size} entries, one for each of n_grid, got {len(curves)}")
    grid = _grid(delta_grid)
    sample = np.stack([_coefficients(c) for c in curves], axis=1)  # (reps, sizes, curves, 3)

    def slope(rows: Any) -> float:
        radii = [_crossing(mean, grid) for mean in rows.mean(axis=0)]
        return float(np.polyfit(x, np.log(radii), 1)[0])

    return bootstrap_interval(sample, slope, rng, draws=check.integer("draws", draws, 2))


@dataclass(frozen=True)
class CrossingStudy:
    """Critical radii over sizes: total `n`, training rows, cells an axis (a tuple over resolutions for the oracle), `radius`
    and `slope` with bootstrap intervals; the same two from the leading-order risk (`leading_radius`, `leading_slope`: they
    carry the rounding of K, nothing random); and the slope `theory` predicts as n grows."""

    n: tuple[int, ...]
    n_train: tuple[int, ...]
    n_cells: tuple[tuple[int, ...], ...]
    radius: tuple[Estimate, ...]
    slope: Estimate
    leading_radius: tuple[float, ...]
    leading_slope: float
    theory: float


def crossing_study(
    n_grid: Sequence[int],
    beta: float,
    d: int,
    sigma: float,
    reps: int,
    rng: np.random.Generator,
    *,
    k0: float | None = None,
    shape: Shape | None = None,
    train_fraction: float = 0.5,
    resolution: str = "class",
    oracle_cells: Sequence[int] = (1, 2, 3, 4, 6, 8),
    draws: int = 200,
    device: Any = None,
    max_elements: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> CrossingStudy:
    """Critical radii of the piecewise fit (order ceil(beta)) for each n, and their slope.

    resolution "class": K = `n_cells_class`(n_train, beta, d, k0), theory -beta/(2 beta+d). "oracle": the best of
    `oracle_cells` at each delta; the risk then depends on delta^2 n only and the slope is -1/2 for any fixed shape (S9).
    `shape` defaults to `cosine`; k0 to 2, or 1 where beta < 1; `train_fraction` in (0, 1] of n trains; `reps` >= 2; `device`
    as in `piecewise_risks`; `progress` is told the training rows done, their total and which study it is, after each size.
    """
    sizes = [check.integer("n_grid", n, 2) for n in n_grid]
    beta, d = check.number("beta", beta, 0.0, open_low=True), check.integer("d", d, 1)
    sigma, reps = check.number("sigma", sigma, 0.0, open_low=True), check.integer("reps", reps, 2)
    train_fraction = check.number("train_fraction", train_fraction, 0.0, 1.0, open_low=True)
    check.choice("resolution", resolution, ("class", "oracle"))
    check.generator("rng", rng)
    if len(set(sizes)) < 2:
        raise ValueError(f"n_grid: expected at least two distinct sizes, got {sizes}")
    draws = check.integer("draws", draws, 2)
    choices = tuple(check.integer("oracle_cells", k, 1) for k in oracle_cells)
    if not choices:
        raise ValueError("oracle_cells: expected at least one resolution, got none")
    factor = (2.0 if beta >= 1 else 1.0) if k0 is None else check.number("k0", k0, 0.0, open_low=True)
    function = check.function("shape", cosine if shape is None else shape)
    order = math.ceil(beta)
    train = [max(1, round(train_fraction * n)) for n in sizes]
    if len(set(train)) < len(train):
        raise ValueError(f"n_grid: expected sizes with different numbers of training rows, got {sizes} with {train}")
    cells = [(n_cells_class(n, beta, d, factor),) if resolution == "class" else choices for n in train]
    curves: list[list[RiskCurves]] = []
    for n, row in zip(train, cells, strict=True):
        curves.append(
            [piecewise_risks(n, k, order, function, sigma, reps, rng, d=d, device=device, max_elements=max_elements) for k in row]
        )
        if progress is not None:
            progress(sum(train[: len(curves)]), sum(train), f"crossings, {resolution} resolution, smoothness {beta:g}, d={d}")
    radius = tuple(
        bootstrap_interval(_coefficients(c), lambda rows: _crossing(rows.mean(axis=0), None), rng, draws=draws) for c in curves
    )
    slope = fit_slope(train, curves, rng, draws)
    leading = tuple(
        min(leading_radius(n, k, order, function, sigma, d) for k in row) for n, row in zip(train, cells, strict=True)
    )
    leading_slope = float(np.polyfit(np.log(train), np.log(leading), 1)[0])
    theory = -beta / (2 * beta + d) if resolution == "class" else -0.5
    return CrossingStudy(tuple(sizes), tuple(train), tuple(cells), radius, slope, leading, leading_slope, theory)


def leading_radius(n: int, n_cells: int, order: int, shape: Shape, sigma: float, d: int = 1) -> float:
    """delta_c of the risk formula `series_risk`: sqrt(sigma^2 p K^d / n / (1 - bias)), inf if the cells cannot see the shape."""
    variance = float(series_risk(0.0, n, n_cells, order, shape, sigma, d))
    room = 1.0 - projection_bias(shape, n_cells, order, d)
    return math.sqrt(variance / room) if room > 1e-12 else math.inf  # 1e-12: quadrature error of a bias that is exactly 1


# ------------------------------------------------------------------------------------------------------------ safe rule


@dataclass(frozen=True)
class SafeCurve:
    """The safe rule over radii `delta` (D,) and repetitions.

    `risk_black_box` (D,) is R_0 = delta^2; `risk_residual` (reps, D) is R_1; `gain` and `gain_se` (reps, D) are the mean of
    D_i = (y - f_0)^2 - (y - f_0 - r^)^2 on the validation rows and its standard error; `sup_residual` (reps, D) bounds |r^|.
    """

    delta: FloatArray
    risk_black_box: FloatArray
    risk_residual: FloatArray
    gain: FloatArray
    gain_se: FloatArray
    sup_residual: FloatArray
    n_train: int
    n_v: int

    def adopted(self, tau: float = 0.0) -> np.ndarray:
        """Whether the correction is used, (reps, D) bool: gain > tau * se, strictly, so a tie keeps f_0. `tau` >= 0."""
        return self.gain > check.number("tau", tau, 0.0) * self.gain_se

    def risk_safe(self, tau: float = 0.0) -> FloatArray:
        """Risk of the selected predictor, (reps, D)."""
        return np.where(self.adopted(tau), self.risk_residual, self.risk_black_box)


def _gains(
    shape_value: Float[np.ndarray, "reps n_v"],
    noise: Float[np.ndarray, "reps n_v"],
    shape_fit: Float[np.ndarray, "reps n_v"],
    noise_fit: Float[np.ndarray, "reps n_v"],
    delta: Float[np.ndarray, " radii"],
) -> tuple[Float[np.ndarray, "reps radii"], Float[np.ndarray, "reps radii"]]:
    """Mean and standard error of D over validation rows for each delta: all inputs (reps, n_v), results (reps, D).

    With r^ = delta a + b and e = delta s + xi, D = r^(2e - r^) is a quadratic in delta on each row; three means and their 3 x 3
    covariance give gain and standard error at every delta.
    """
    rest, other = 2.0 * shape_value - shape_fit, 2.0 * noise - noise_fit
    rows = np.stack([shape_fit * rest, shape_fit * other + noise_fit * rest, noise_fit * other], axis=-1)
    mean = rows.mean(axis=1)
    centred = rows - mean[:, None, :]
    n_v = rows.shape[1]
    covariance = np.swapaxes(centred, 1, 2) @ centred / (n_v - 1)
    powers = np.stack([delta**2, delta, np.ones_like(delta)])
    variance = np.einsum("kd,rkl,ld->rd", powers, covariance, powers)
    return mean @ powers, np.sqrt(np.maximum(variance, 0.0) / n_v)


def _predict(coef: FloatArray, cell: np.ndarray, columns: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """fit(shape) and fit(noise) at rows: `coef` (groups, p, 2), `cell` and each column (reps, n)."""
    picked = coef[cell]
    a, b = (sum(picked[..., k, i] * column for k, column in enumerate(columns)) for i in (0, 1))
    return np.asarray(a), np.asarray(b)


def _holdout(
    X: FloatArray, s: FloatArray, noise: FloatArray, n_train: int, n_cells: int, order: int, ridge: float, draws: Draws
) -> tuple[FloatArray, list[FloatArray]]:
    coef = fit_batch(X[:, :n_train], [s[:, :n_train], noise[:, :n_train]], n_cells, order, ridge, draws)
    flat, local = locate(X[:, n_train:], n_cells)
    a, b = _predict(coef.reshape(-1, *coef.shape[2:]), draws.groups(flat, coef.shape[1]), monomials(local, order))
    return coef, [s[:, n_train:], noise[:, n_train:], a, b]


def _cross_fit(
    X: FloatArray, s: FloatArray, noise: FloatArray, folds: int, n_cells: int, order: int, ridge: float, draws: Draws
) -> tuple[FloatArray, list[FloatArray]]:
    """Each row predicted by the fit without its fold. Moments add, so these fits are totals minus folds: one pass over the
    rows."""
    reps, n, d = X.shape
    cells = n_cells**d
    flat, local = locate(X, n_cells)
    columns = monomials(local, order)
    group = draws.groups(flat + cells * (np.arange(n) % folds), cells * folds)
    gram, right = (
        m.reshape(reps, folds, cells, *m.shape[1:]) for m in cell_moments(group, columns, [s, noise], reps * folds * cells)
    )
    left_out = solve_cells(gram.sum(axis=1, keepdims=True) - gram, right.sum(axis=1, keepdims=True) - right, ridge)
    a, b = _predict(left_out.reshape(-1, *left_out.shape[3:]), group, columns)
    return solve_cells(gram.sum(axis=1), right.sum(axis=1), ridge), [s, noise, a, b]


def safe_curve(
    delta: ArrayLike,
    n: int,
    reps: int,
    rng: np.random.Generator,
    *,
    sigma: float = 0.5,
    beta: float = 1.0,
    d: int = 1,
    k0: float = 1.0,
    n_cells: int | None = None,
    val_fraction: float = 0.5,
    folds: int | None = None,
    shape: Callable[[Any], Any] | None = None,
    ridge: float = RIDGE,
    max_elements: int = 2**19,
) -> SafeCurve:
    """Algorithm 1 with the piecewise learner (order ceil(beta)) on `reps` simulated data sets, for every radius in `delta`.

    `delta` (D,) >= 0; `n` rows of which n_v = round(val_fraction n) >= 2 validate; K = `n_cells`, or `n_cells_class` of the
    training rows with `k0`. `shape` defaults to sqrt(2) cos(2 pi x), a product over coordinates.
    `folds` k >= 2 replaces the holdout by cross-fitting: every row is predicted by the fit on the other folds, the gain is the
    mean over all rows (its se treats them as independent), and an adopted correction is the fit on all n rows.
    The same data serve all radii and, through `SafeCurve`, all margins tau. Cost O(reps n p^2).
    """
    radius = check.array("delta", delta, 0.0, ndim=1)
    n, beta = check.integer("n", n, 4), check.number("beta", beta, 0.0, open_low=True)
    d = check.integer("d", d, 1)
    if folds is None:
        n_v = round(check.number("val_fraction", val_fraction, 0.0, 1.0, open_low=True, open_high=True) * n)
        n_train = n - n_v
        if n_v < 2 or n_train < 1:
            raise ValueError(
                f"val_fraction: expected at least 2 validation rows and 1 training row, got {n_v} and {n_train} of n={n}"
            )
    else:
        folds = check.integer("folds", folds, 2, n)
        n_v, n_train = n, n - math.ceil(n / folds)
    cells = n_cells_class(n_train, beta, d, k0) if n_cells is None else n_cells
    order = math.ceil(beta)
    _, cells, order, sigma, reps, d, ridge = simulation_arguments(n, cells, order, sigma, reps, rng, d, ridge)
    function = check.function("shape", (lambda X: cosine(X, 2)) if shape is None else shape)
    measure = cell_measure(function, cells, order, d)
    draws, per_batch = Draws(rng), max(1, check.integer("max_elements", max_elements, 1) // n)
    # |local| <= 1/2, so a polynomial is at most the sum of its coefficients over 2^degree
    size = np.array([0.5 ** sum(e) for e in exponents(d, order)])
    powers = np.stack([radius**2, radius, np.ones_like(radius)])
    parts = []
    for start in range(0, reps, per_batch):
        X, noise = draws.batch(min(per_batch, reps - start), n, d)
        s, noise = np.asarray(function(X), dtype=np.float64), sigma * noise
        coef, rows = (
            _holdout(X, s, noise, n_train, cells, order, ridge, draws)
            if folds is None
            else _cross_fit(X, s, noise, folds, cells, order, ridge, draws)
        )
        gain, se = _gains(rows[0], rows[1], rows[2], rows[3], radius)
        terms = np.stack(measure.risk_terms(coef[..., 0], coef[..., 1]), axis=-1)
        sup = np.stack([(np.abs(coef[..., 0] * x + coef[..., 1]) @ size).max(axis=1) for x in radius], axis=-1)
        parts.append((terms @ powers, gain, se, sup))
    risk, gain, se, sup = (np.concatenate(group) for group in zip(*parts, strict=True))
    return SafeCurve(radius, measure.norm2 * radius**2, risk, gain, se, sup, n_train, n_v)
