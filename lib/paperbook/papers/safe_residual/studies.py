"""The chapter's comparisons as pure functions of arrays and a seed: every method sees the same rows, split and f_0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from paperbook.study.arguments import FloatArray, choice, integer

from .classifier import ResidualClassifier, SafeResidualClassifier, ScratchClassifier
from .estimators import ConcatRegressor, ResidualRegressor, SafeResidualRegressor, ScratchRegressor, WeightedCombiner
from .kernel import KernelResidual
from .rivals import LightGBMInitScore, StackingRival
from .synthetic import make_black_box_regression

OWN = ("scratch", "residual", "safe", "weighted", "concat")
RIVALS = ("lightgbm", "stacking")
LOW_CLARITY = 1  # I1, SI2


def regressors(val_fraction: float, tau: float, selection: str, random_state: int, learner: Any = None) -> dict[str, Any]:
    """One fresh regressor a method name, all with the same split and, where they have one, the same learner and penalty grid."""
    shared = {"residual_estimator": learner, "val_fraction": val_fraction, "selection": selection, "random_state": random_state}
    return {
        "scratch": ScratchRegressor(**shared),
        "residual": ResidualRegressor(**shared),
        "safe": SafeResidualRegressor(tau=tau, **shared),
        "weighted": WeightedCombiner(**shared),
        "concat": ConcatRegressor(**shared),
        "lightgbm": LightGBMInitScore(val_fraction=val_fraction, random_state=random_state),
        "stacking": StackingRival(**shared),
    }


def _grid(n_grid: Any, least: int, most: int) -> list[int]:
    sizes = [integer("n_grid", n, least, most) for n in n_grid]
    if not sizes:
        raise ValueError("n_grid: expected at least one size, got none")
    return sizes


def _methods(methods: Sequence[str]) -> list[str]:
    return [choice("methods", method, OWN + RIVALS) for method in methods]


def _compare(X: FloatArray, y: FloatArray, f0: FloatArray, X_test: FloatArray, f0_test: FloatArray, methods: list[str],
             make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Predictions (m,) of every method, and what the safe and the weighted one decided."""
    fitted = {name: regressor.fit(X, y, f0=f0) for name, regressor in make().items() if name in methods}
    out: dict[str, Any] = {"predictions": {"f0": f0_test} | {name: r.predict(X_test, f0=f0_test) for name, r in fitted.items()}}
    if "safe" in fitted:
        report = fitted["safe"].report_
        out |= {"adopted": float(report.used_correction), "margin": float(np.clip(report.margin, -1e6, 1e6))}
    if "weighted" in fitted:
        out["weight"] = fitted["weighted"].weight_
    if "lightgbm" in fitted:
        out["rounds"] = fitted["lightgbm"].rounds_
    return out


def diamonds_study(X: FloatArray, y: FloatArray, clarity: ArrayLike, *, seed: int,
                   n_grid: Sequence[int] = (20, 50, 150, 500, 1500), box: str = "biased",
                   n_box: int = 3000, n_test: int = 6000, val_fraction: float = 0.3, tau: float = 0.0,
                   selection: str = "holdout", methods: Sequence[str] = OWN + RIVALS, learner: Any = None) -> dict[str, Any]:
    """One split of the diamonds: mean squared error (log price squared) on `n_test` target stones, for each method and n of
    `n_grid`.

    Target stones have clarity SI1 or better. The black box is gradient boosting on `n_box` stones: of low clarity ("biased", it
    prices the target stones as if they were poor) or target stones of its own ("good"). Box, test and labelled stones are
    disjoint; smaller n are the first rows of larger ones.

    Returns:
        {"n": [..], "mse": {"f0" and each method: [..]}, "adopted": [0/1 ..], "margin": [..], "weight": [..], "rounds": [..]}
    """
    choice("box", box, ("biased", "good"))
    wanted = _methods(methods)
    from sklearn.ensemble import HistGradientBoostingRegressor

    rng = np.random.default_rng([seed, 1])
    rank = np.asarray(clarity)
    low, target = rng.permutation(np.flatnonzero(rank <= LOW_CLARITY)), rng.permutation(np.flatnonzero(rank > LOW_CLARITY))
    integer("n_box", n_box, 50, len(low))
    integer("n_test", n_test, 1, len(target) - n_box - 10)
    sizes = _grid(n_grid, 8, len(target) - n_box - n_test)
    own, test, pool = target[:n_box], target[n_box:n_box + n_test], target[n_box + n_test:][:max(sizes)]
    rows = low[:n_box] if box == "biased" else own
    # early stopping off: its default depends on the number of rows
    model = HistGradientBoostingRegressor(early_stopping=False, random_state=0).fit(X[rows], y[rows])
    f0_test, f0_pool = model.predict(X[test]), model.predict(X[pool])
    out: dict[str, Any] = {"n": sizes, "mse": {name: [] for name in ("f0", *wanted)}}
    for n in sizes:
        found = _compare(X[pool[:n]], y[pool[:n]], f0_pool[:n], X[test], f0_test, wanted,
                         lambda: regressors(val_fraction, tau, selection, seed, learner))
        _append(out, found, y[test])
    return out


def _append(out: dict[str, Any], found: dict[str, Any], truth: FloatArray) -> None:
    for name, prediction in found.pop("predictions").items():
        out["mse"][name].append(float(np.mean((prediction - truth) ** 2)))
    for key, value in found.items():
        out.setdefault(key, []).append(value)


def digits_study(X: FloatArray, y: ArrayLike, *, seed: int, X_box: FloatArray | None = None,
                 n_grid: Sequence[int] = (20, 50, 100, 300, 700), n_box: int = 500, val_fraction: float = 0.3,
                 tau: float = 0.0) -> dict[str, Any]:
    """One split of the digits: accuracy on all rows that neither the box nor the labelled part uses, for each method and n.

    The black box is logistic regression on `n_box` rows of `X_box` (the shifted images: a biased box) or of X (None: a good box).

    Returns:
        {"n": [..], "accuracy": {"f0", "scratch", "residual", "safe", "safe_nll": [..]}, "adopted": [0/1 ..], "adopted_nll":
        [0/1 ..]}
    """
    from sklearn.linear_model import LogisticRegression

    labels = np.asarray(y)
    integer("n_box", n_box, 50, len(X) - 100)
    sizes = _grid(n_grid, 8, len(X) - n_box - 50)
    if X_box is not None and X_box.shape != X.shape:
        raise ValueError(f"X_box: expected shape {X.shape}, got {X_box.shape}")
    order = np.random.default_rng([seed, 2]).permutation(len(X))
    mine, rest = order[:n_box], order[n_box:]
    pool, test = rest[:max(sizes)], rest[max(sizes):]
    model = LogisticRegression(max_iter=1000).fit((X if X_box is None else X_box)[mine], labels[mine])
    shared = {"black_box": model, "val_fraction": val_fraction, "random_state": seed}
    out: dict[str, Any] = {"n": sizes, "accuracy": {name: [] for name in ("f0", "scratch", "residual", "safe", "safe_nll")},
                           "adopted": [], "adopted_nll": []}
    for n in sizes:
        methods = {"scratch": ScratchClassifier(**shared), "residual": ResidualClassifier(**shared),
                   "safe": SafeResidualClassifier(tau=tau, **shared),
                   "safe_nll": SafeResidualClassifier(tau=tau, selection="nll", **shared)}
        fitted = {name: method.fit(X[pool[:n]], labels[pool[:n]]) for name, method in methods.items()}
        out["accuracy"]["f0"].append(float(model.score(X[test], labels[test])))
        for name, method in fitted.items():
            out["accuracy"][name].append(float(np.mean(method.predict(X[test]) == labels[test])))
        out["adopted"].append(float(fitted["safe"].used_correction_))
        out["adopted_nll"].append(float(fitted["safe_nll"].used_correction_))
    return out


def synthetic_study(*, seed: int, d: int = 1, n_grid: Sequence[int] = (100, 400),
                    delta_grid: Sequence[float] = (0.0, 0.1, 0.3, 1.0), sigma: float = 0.5,
                    beta: float = 1.0, shape: str = "cos", frequency: int | None = None, active: int | None = None,
                    n_test: int = 2000, val_fraction: float = 0.3, tau: float = 0.0, selection: str = "holdout",
                    methods: Sequence[str] = OWN, learner: Any = None) -> dict[str, Any]:
    """One draw of the paper's synthetic tables (simulated): excess risk |f^ - f*|^2 on `n_test` fresh points, for each n and
    delta.

    X, noise and test points are the same for every delta of one n, so columns differ by delta alone. The residual acts on the
    first `active` coordinates (None: 1) with `frequency` half-waves an axis (None: 2 for d = 1, else 1); a product of cosines in
    ten coordinates would be rougher than any learner can follow.

    Returns:
        {"n": [..], "delta": [..], "mse": {"f0" and each method: [[.. delta] .. n]}, "adopted": [[..]], "margin": [[..]],
        "weight": [[..]]}
    """
    wanted = _methods(methods)
    sizes = _grid(n_grid, 8, 10**7)
    if learner is None:
        learner = KernelResidual()
    used = 1 if active is None else active
    waves = (2 if d == 1 else 1) if frequency is None else frequency
    names = ("f0", *wanted)
    out: dict[str, Any] = {"n": sizes, "delta": [float(delta) for delta in delta_grid], "mse": {name: [] for name in names}}
    for n in sizes:
        row: dict[str, Any] = {"mse": {name: [] for name in names}}
        for delta in delta_grid:
            rng = np.random.default_rng([seed, 3, n])
            draw = make_black_box_regression(n, d, delta, shape, beta, sigma, rng, frequency=waves, active=used)
            X_test = rng.random((n_test, d))
            found = _compare(draw.X, draw.y, draw.f_0(draw.X), X_test, draw.f_0(X_test), wanted,
                             lambda: regressors(val_fraction, tau, selection, seed, learner))
            _append(row, found, draw.f_star(X_test))
        for name, values in row.pop("mse").items():
            out["mse"][name].append(values)
        for key, values in row.items():
            out.setdefault(key, []).append(values)
    return out
