"""Means with intervals. Nothing is called different unless the interval of the paired difference excludes 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Estimate:
    """An estimate with its interval.

    Attributes:
        mean: the estimate (a mean, or the statistic on the whole sample for a bootstrap).
        low: lower end of the interval.
        high: upper end of the interval.
        n: number of independent repetitions behind it.
    """

    mean: float
    low: float
    high: float
    n: int

    def excludes(self, value: float = 0.0) -> bool:
        """Whether `value` lies outside the interval; the only licence to say "different"."""
        return value < self.low or value > self.high

    def __format__(self, spec: str) -> str:
        spec = spec or ".3g"
        return f"{self.mean:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def __str__(self) -> str:
        return f"{self:.3g}"


def mean_interval(values: ArrayLike, level: float = 0.95) -> Estimate:
    """Mean of `values` (shape ``(n,)``) with the Student-t interval of the given level.

    With one value the interval is infinite: one run says nothing about its spread.

    Raises:
        ValueError: on an empty, non-finite or higher-dimensional `values`, or a level outside (0, 1).
    """
    from scipy import stats

    x = _vector("values", values)
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number in (0, 1), got {level}")
    mean = float(x.mean())
    if x.size == 1:
        return Estimate(mean, -np.inf, np.inf, 1)
    half = float(stats.t.ppf((1 + level) / 2, x.size - 1) * x.std(ddof=1) / np.sqrt(x.size))
    return Estimate(mean, mean - half, mean + half, x.size)


def mean_band(values: ArrayLike, level: float = 0.95) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Mean and Student-t interval along the first axis: `values` of shape ``(n, ...)`` gives three arrays ``(...)``.

    Raises:
        ValueError: with fewer than 2 repetitions, non-finite values, or a level outside (0, 1).
    """
    from scipy import stats

    x = np.asarray(values, dtype=float)
    if x.ndim < 1 or x.shape[0] < 2:
        raise ValueError(f"values: expected at least 2 repetitions along the first axis, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"values: expected finite numbers, got {int((~np.isfinite(x)).sum())} that are not")
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number in (0, 1), got {level}")
    mean = x.mean(axis=0)
    half = stats.t.ppf((1 + level) / 2, x.shape[0] - 1) * x.std(axis=0, ddof=1) / np.sqrt(x.shape[0])
    return mean, mean - half, mean + half


def paired_difference(a: ArrayLike, b: ArrayLike, level: float = 0.95) -> Estimate:
    """Mean of ``a - b`` over pairs (same seed, same data), with its Student-t interval.

    Raises:
        ValueError: when the two are not of one length, or as :func:`mean_interval`.
    """
    x, y = _vector("a", a), _vector("b", b)
    if x.shape != y.shape:
        raise ValueError(f"b: expected {x.size} values, one for each of a, got {y.size}")
    return mean_interval(x - y, level)


def bootstrap_interval(
    sample: NDArray[np.floating],
    statistic: Callable[[NDArray[np.floating]], float],
    rng: np.random.Generator,
    draws: int = 200,
    level: float = 0.95,
) -> Estimate:
    """Percentile bootstrap of `statistic` over the first axis of `sample` (shape ``(n, ...)``, one repetition a row).

    Raises:
        ValueError: with fewer than 2 repetitions or draws, or a level outside (0, 1).
    """
    rows = np.asarray(sample)
    if rows.ndim < 1 or rows.shape[0] < 2:
        raise ValueError(f"sample: expected at least 2 repetitions along the first axis, got shape {rows.shape}")
    if draws < 2:
        raise ValueError(f"draws: expected at least 2, got {draws}")
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number in (0, 1), got {level}")
    picks = rng.integers(rows.shape[0], size=(draws, rows.shape[0]))
    drawn = np.array([statistic(rows[pick]) for pick in picks])
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(statistic(rows)), float(low), float(high), int(rows.shape[0]))


def _vector(name: str, values: ArrayLike) -> NDArray[np.float64]:
    x = np.asarray(values, dtype=float)
    if x.ndim != 1 or x.size == 0:
        raise ValueError(f"{name}: expected a non-empty one-dimensional array, got shape {x.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"{name}: expected finite numbers, got {int((~np.isfinite(x)).sum())} that are not")
    return x
