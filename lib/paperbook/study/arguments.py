"""Checks of numbers and arrays, for the methods of every chapter: each names the variable, what came and what was expected."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def _bounds(low: float | None, high: float | None, open_low: bool, open_high: bool) -> str:
    left = "(-inf" if low is None else f"{'(' if open_low else '['}{low:g}"
    right = "inf)" if high is None else f"{high:g}{')' if open_high else ']'}"
    return f"{left}, {right}"


def _outside(value: Any, low: float | None, high: float | None, open_low: bool, open_high: bool) -> Any:
    bad = ~np.isfinite(value)
    if low is not None:
        bad |= (value <= low) if open_low else (value < low)
    if high is not None:
        bad |= (value >= high) if open_high else (value > high)
    return bad


def _double(name: str, value: Any) -> np.float64:
    try:
        return np.float64(value)
    except OverflowError:
        raise ValueError(f"{name}: expected a number that a double holds, got one of more than 1e308") from None


def raw(name: str, value: Any) -> NDArray[Any]:
    """Return `value` as an array of whatever kind; ValueError where its rows differ in length."""
    try:
        return np.asarray(value)
    except ValueError:
        raise ValueError(f"{name}: expected rows of one length, got {type(value).__name__} with rows that differ") from None


def flag(name: str, value: Any) -> bool:
    """Return `value` as bool; TypeError unless it is one: no string or number stands for a truth value."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {type(value).__name__} {value!r}")
    return bool(value)


def number(
    name: str, value: Any, low: float | None = None, high: float | None = None, *, open_low: bool = False, open_high: bool = False
) -> float:
    """Return `value` as float; TypeError unless it is a real number (not bool), ValueError unless finite and within the
    bounds."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name}: expected a real number, got {type(value).__name__} {value!r}")
    if _outside(_double(name, value), low, high, open_low, open_high):
        raise ValueError(f"{name}: expected a finite number in {_bounds(low, high, open_low, open_high)}, got {value!r}")
    return float(value)


def integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """Return `value` as int; TypeError unless it is an integer (not bool), ValueError unless within the closed bounds."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__} {value!r}")
    if _outside(_double(name, value), low, high, False, False):
        raise ValueError(f"{name}: expected an integer in {_bounds(low, high, False, False)}, got {value!r}")
    return int(value)


def array(
    name: str,
    value: ArrayLike,
    low: float | None = None,
    high: float | None = None,
    *,
    ndim: int | None = None,
    open_low: bool = False,
    open_high: bool = False,
) -> FloatArray:
    """Return `value` as a float64 array; TypeError unless numeric, ValueError if empty, of other `ndim`, not finite or out of
    bounds."""
    given = raw(name, value)
    if given.dtype.kind not in "iuf":
        raise TypeError(f"{name}: expected real numbers, got {type(value).__name__} of dtype {given.dtype}")
    out = given.astype(np.float64)
    if ndim is not None and out.ndim != ndim:
        raise ValueError(f"{name}: expected {ndim} dimension(s), got shape {out.shape}")
    if out.size == 0:
        raise ValueError(f"{name}: expected at least one value, got shape {out.shape}")
    bad = _outside(out, low, high, open_low, open_high)
    if bad.any():
        raise ValueError(
            f"{name}: expected finite numbers in {_bounds(low, high, open_low, open_high)}, got {out[bad].flat[0]!r}"
        )
    return out


def generator(name: str, value: Any) -> np.random.Generator:
    """Return `value`; TypeError unless it is a numpy Generator (global or legacy seeds are not taken)."""
    if not isinstance(value, np.random.Generator):
        raise TypeError(f"{name}: expected a numpy.random.Generator, got {type(value).__name__} {value!r}")
    return value


def function(name: str, value: Any) -> Callable[..., Any]:
    """Return `value`; TypeError unless it can be called."""
    if not callable(value):
        raise TypeError(f"{name}: expected a callable, got {type(value).__name__} {value!r}")
    return value


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return `value`; ValueError unless it is one of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value
