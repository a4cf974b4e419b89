"""Input checks and the hold-out split shared by the estimators: each message names the variable, what came and what was
expected."""

from __future__ import annotations

import copy
from numbers import Number
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from paperbook.study.arguments import FloatArray, number

IntArray = NDArray[np.int64]
Fitted = TypeVar("Fitted")


class HoldoutSplit(NamedTuple):
    """Row numbers of the training and of the validation part: disjoint, sorted, together all rows."""

    train: IntArray
    validation: IntArray


def validation_size(n: int, val_fraction: Any) -> int:
    """n_v = round(val_fraction n), with `val_fraction` in (0, 1); ValueError unless that leaves >= 2 validation rows and >= 1
    training row."""
    fraction = number("val_fraction", val_fraction, 0.0, 1.0, open_low=True, open_high=True)
    n_val = round(n * fraction)
    if n_val < 2:  # the standard error of the gain needs two rows
        raise ValueError(f"X: n_samples={n}, val_fraction={fraction:g} give {n_val} validation rows, expected at least 2")
    if n - n_val < 1:
        raise ValueError(f"X: n_samples={n}, val_fraction={fraction:g} leave {n - n_val} training rows, expected at least 1")
    return n_val


def holdout_split(n: int, val_fraction: Any, random_state: Any = None) -> HoldoutSplit:
    """Split 0..n-1 at random into training and validation rows (alg-1, step 1). The same `random_state` gives the same split."""
    n_val = validation_size(n, val_fraction)
    order = check_random_state(random_state).permutation(n)
    return HoldoutSplit(np.sort(order[n_val:]), np.sort(order[:n_val]))


def stratified_split(labels: IntArray, val_fraction: Any, random_state: Any = None) -> HoldoutSplit:
    """The same with every class c in both parts in proportion, within one row a class, however rare the class.

    Row number j of the n_c shuffled rows of class c has the key (j + u_c)/n_c, u_c uniform; the n_v smallest keys validate.
    """
    n_val = validation_size(len(labels), val_fraction)
    random = check_random_state(random_state)
    key = np.empty(len(labels))
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        key[rows] = (np.arange(len(rows)) + random.uniform()) / len(rows)
    order = np.argsort(key, kind="stable")
    return HoldoutSplit(np.sort(order[n_val:]), np.sort(order[:n_val]))


def check_features(estimator: Any, X: Any, *, reset: bool) -> FloatArray:
    """X as a finite float64 array (n, p); ValueError on NaN, inf, one dimension or (at predict) another width than at fit."""
    return validate_data(estimator, X, reset=reset, dtype=np.float64)


def check_regression(estimator: Any, X: Any, y: Any) -> tuple[FloatArray, FloatArray]:
    """X (n, p) and y (n,) as finite float64 arrays; ValueError for targets that are text or dates, NaN, inf or lengths that
    differ."""
    kind = "b" if y is None else np.asarray(y).dtype.kind
    if kind in "OUS":
        values = np.asarray(y).ravel()
        text = next((v for v in values if isinstance(v, str | bytes)), None)
        if text is not None:
            raise ValueError(f"y: expected numbers for a regression, got text such as {text!r}")
        odd = [v for v in values if not isinstance(v, Number)]
        if odd:
            raise ValueError(f"y: expected numbers for a regression, got {type(odd[0]).__name__} {odd[0]!r}")
    if kind in "mM":  # NumPy would turn them into counts of some unit without a word
        raise ValueError(f"y: expected numbers for a regression, got dates or durations of dtype {np.asarray(y).dtype}")
    X, y = validate_data(estimator, X, y, reset=True, dtype=np.float64, y_numeric=True)
    return X, np.asarray(y, dtype=np.float64)


def check_losses(name: str, losses: Any) -> None:
    """ValueError naming `name` unless all losses are finite: squares of 1e155 and more overflow, and a gain of nan would keep
    f_0 without a word."""
    if not np.isfinite(losses).all():
        raise ValueError(f"{name}: expected values whose losses are finite numbers, got losses of inf or nan; use smaller units")


def check_squares(name: str, values: FloatArray) -> None:
    """`check_losses` for the mean square of `values`, before anything is fitted to them."""
    with np.errstate(over="ignore"):
        check_losses(name, np.mean(np.square(values)))


def check_vector(name: str, value: Any, n: int, source: str = "") -> FloatArray:
    """`value` as a finite float64 array (n,); a column (n, 1) is flattened. ValueError otherwise; `source` says where it came
    from."""
    try:
        raw = np.asarray(value)
        if raw.dtype.kind in "mM":
            raise TypeError(raw.dtype)
        out = raw.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected numbers of shape ({n},){source}, got {type(value).__name__}") from None
    if out.shape == (n, 1):
        out = out[:, 0]
    if out.shape != (n,):
        raise ValueError(f"{name}: expected shape ({n},){source}, got {out.shape}")
    return _finite(name, out, source)


def check_logits(name: str, value: Any, n: int, n_classes: int, source: str = "") -> FloatArray:
    """`value` as finite float64 logits (n, n_classes); for two classes (n,) is the log-odds z of the second and becomes (0,
    z)."""
    try:
        out = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}: expected numbers of shape ({n}, {n_classes}){source}, got {type(value).__name__}") from None
    if n_classes == 2 and out.shape == (n,):
        out = np.stack([np.zeros(n), out], axis=1)
    if out.shape != (n, n_classes):
        raise ValueError(f"{name}: expected shape ({n}, {n_classes}){source}, got {out.shape}")
    return _finite(name, out, source)


def _finite(name: str, out: FloatArray, source: str) -> FloatArray:
    bad = ~np.isfinite(out)
    if bad.any():
        raise ValueError(f"{name}: expected finite values{source}, got {int(bad.sum())} not finite, first {out[bad][0]!r}")
    return out


def check_black_box(black_box: Any, methods: tuple[str, ...]) -> None:
    """TypeError unless `black_box` is None, a callable or an object with one of `methods`; a class is refused."""
    usable = callable(black_box) or any(hasattr(black_box, method) for method in methods)
    if black_box is not None and (isinstance(black_box, type) or not usable):
        what = f"the class {black_box.__name__}" if isinstance(black_box, type) else type(black_box).__name__
        wanted = f"None, a callable X -> values or a fitted object with {' or '.join(methods)}"
        raise TypeError(f"black_box: expected {wanted}, got {what}")


def blank_copy(estimator: Fitted) -> Fitted:
    """A shallow copy with the parameters only. Fitting works on it, so an error leaves the original exactly as it was."""
    twin = copy.copy(estimator)
    for name in [n for n in vars(twin) if n.endswith("_") and not n.startswith("__")]:
        delattr(twin, name)
    return twin


def adopt_state(estimator: Any, twin: Any) -> None:
    """Take over the fitted state of `twin` in one assignment: earlier fitted attributes disappear with it."""
    estimator.__dict__ = twin.__dict__
