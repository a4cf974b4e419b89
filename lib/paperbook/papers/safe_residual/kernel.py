"""Kernel ridge regression whose whole penalty grid costs one eigendecomposition (the residual learner of Algorithm 1)."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh
from scipy.spatial.distance import cdist
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from paperbook.study.arguments import FloatArray, array, choice, number

from .validation import (
    adopt_state,
    blank_copy,
    check_features,
    check_losses,
    check_regression,
    check_squares,
    check_vector,
)

KERNELS = ("laplacian", "matern12", "matern32", "matern52", "rbf")
# OPEN(paper App. F.1): kernel, bandwidth and penalties were not readable; Laplacian (Sobolev order 1 for d = 1), median
# distance and 1e-3..1 are our choice
DEFAULT_ALPHAS = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
CHUNK_BYTES = 2**26  # rows of a kernel block are chosen so that the block stays below 64 MB


def _distance(kernel: str, A: Float[np.ndarray, "n p"], B: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "n m"]:
    metric = {"laplacian": "cityblock", "rbf": "sqeuclidean"}.get(kernel, "euclidean")
    return cdist(A, B, metric)  # builds no (n, m, p) array


def _of_distance(kernel: str, scaled: FloatArray) -> FloatArray:
    """k as a function of gamma times the distance (squared distance for rbf)."""
    if kernel == "matern32":
        scaled = np.sqrt(3.0) * scaled
        return (1.0 + scaled) * np.exp(-scaled)
    if kernel == "matern52":
        scaled = np.sqrt(5.0) * scaled
        return (1.0 + scaled + scaled**2 / 3.0) * np.exp(-scaled)
    return np.exp(-scaled)


def median_gamma(kernel: str, X: FloatArray, limit: int = 1000) -> float:
    """1 / median distance between different rows of X (n, p), over at most `limit` evenly spaced rows; 1 where that is no
    number."""
    rows = X if len(X) <= limit else X[np.linspace(0, len(X) - 1, limit).astype(int)]
    distance = _distance(kernel, rows, rows)[np.triu_indices(len(rows), 1)]
    positive = distance[distance > 0]
    return 1.0 / float(np.median(positive)) if len(positive) else 1.0


class KernelResidual(RegressorMixin, BaseEstimator):
    """Kernel ridge regression without intercept: far from the data it predicts 0, which as a residual means "trust f_0".

    With K = V diag(l) V' the coefficients are V (l + alpha)^{-1} V' y for every penalty alpha at once: O(n^3) once, then O(n^2)
    a penalty. alpha = inf is the zero model. The penalty is chosen by leave-one-out, in closed form, or on a validation part
    given to `fit`.

    Args:
        kernel: "laplacian" exp(-gamma |x-x'|_1), "matern12", "matern32", "matern52" (in gamma |x-x'|_2) or "rbf" exp(-gamma
            |x-x'|_2^2).
        gamma: inverse length > 0; None takes 1 / median distance of the training rows.
        alphas: penalties in (0, inf], added to the diagonal of K (as in sklearn's KernelRidge); None takes `DEFAULT_ALPHAS`.
        include_zero: whether the zero model competes when the penalty is chosen. Ties go to the larger penalty.
        scale: whether columns are centred and divided by their standard deviation on the training rows.

    After `fit`: `alpha_` (inf for the zero model), `alphas_` (A,), `scores_` (A,) mean squared leave-one-out or validation
    error of each penalty, `gamma_`, `X_train_` (n, p) as scaled, `coefficients_` (n, A), `center_` and `width_` (p,),
    `n_features_in_`.
    """

    def __init__(self, kernel="laplacian", gamma=None, alphas=None, include_zero=False, scale=True):
        self.kernel = kernel
        self.gamma = gamma
        self.alphas = alphas
        self.include_zero = include_zero
        self.scale = scale

    def fit(self, X: Any, y: Any, X_val: Any = None, y_val: Any = None) -> KernelResidual:
        """Fit all penalties to X (n, p), y (n,); choose one on (X_val, y_val) if given, else by leave-one-out.

        Raises:
            ValueError: a parameter out of range, X or y not finite or of other shape, text targets, only one of X_val and y_val.
        """
        twin = blank_copy(self)
        twin._fit(X, y, X_val, y_val)
        adopt_state(self, twin)
        return self

    def _fit(self, X: Any, y: Any, X_val: Any, y_val: Any) -> None:
        choice("kernel", self.kernel, KERNELS)
        gamma = None if self.gamma is None else number("gamma", self.gamma, 0.0, open_low=True)
        alphas = self._checked_alphas()
        if (X_val is None) != (y_val is None):
            raise ValueError("X_val, y_val: expected both or none, got one of them")
        X, y = check_regression(self, X, y)
        check_squares("y", y)
        if X_val is not None:
            X_val = check_features(self, X_val, reset=False)
            y_val = check_vector("y_val", y_val, len(X_val))
            check_squares("y_val", y_val)
        self.center_, self.width_ = np.zeros(X.shape[1]), np.ones(X.shape[1])
        if self.scale:
            spread = X.std(axis=0)
            self.center_, self.width_ = X.mean(axis=0), np.where(spread > 0, spread, 1.0)
        self.alphas_ = alphas
        self.X_train_ = (X - self.center_) / self.width_
        self.gamma_ = median_gamma(self.kernel, self.X_train_) if gamma is None else gamma
        K = _of_distance(self.kernel, self.gamma_ * _distance(self.kernel, self.X_train_, self.X_train_))
        values, vectors = eigh(K, overwrite_a=True, check_finite=False, driver="evd")
        values = np.maximum(values, 0.0)  # K is positive semidefinite; rounding can leave -1e-16
        inverse = 1.0 / (values[:, None] + alphas)  # (n, A); alpha = inf gives exact zeros
        self.coefficients_ = vectors @ (inverse * (vectors.T @ y)[:, None])
        if X_val is not None:
            self.scores_ = np.mean((y_val[:, None] - self.path(X_val)) ** 2, axis=0)
        else:
            # leave-one-out residual = coefficient / diagonal of (K + alpha I)^{-1}; the zero model leaves out nothing
            diagonal = vectors**2 @ inverse
            left_out = self.coefficients_ / np.where(diagonal > 0, diagonal, 1.0)
            left_out[:, np.isinf(alphas)] = y[:, None]
            self.scores_ = np.mean(left_out**2, axis=0)
        check_losses("y", self.scores_)
        best = np.flatnonzero(self.scores_ == self.scores_.min())
        self.index_ = int(best[np.argmax(alphas[best])])
        self.alpha_ = float(alphas[self.index_])

    def _checked_alphas(self) -> FloatArray:
        raw = DEFAULT_ALPHAS if self.alphas is None else self.alphas
        with_inf = np.asarray(raw, dtype=object).ravel()
        finite = [a for a in with_inf if not (isinstance(a, float | np.floating) and np.isposinf(a))]
        if finite:
            array("alphas", np.asarray(finite, dtype=np.asarray(raw).dtype), 0.0, open_low=True)
        elif not len(with_inf):
            raise ValueError("alphas: expected at least one penalty, got none")
        alphas = np.asarray(with_inf, dtype=np.float64)
        if self.include_zero and not np.isinf(alphas).any():
            alphas = np.append(alphas, np.inf)
        return alphas

    def path(self, X: Any, include_zero: bool = False) -> Float[np.ndarray, "m alphas"]:
        """Predictions (m, A) for every penalty of `alphas_`, with one product K(X, X_train) C a chunk of rows.

        `include_zero` appends the zero model as a last column (m, A + 1), unless the grid has it already.
        """
        check_is_fitted(self, "coefficients_")
        X = (check_features(self, X, reset=False) - self.center_) / self.width_
        out = self._product(X, self.coefficients_)
        if include_zero and not np.isinf(self.alphas_).any():
            out = np.column_stack([out, np.zeros(len(X))])
        return out

    def predict(self, X: Any) -> FloatArray:
        """Predictions (m,) with the chosen penalty for X (m, p); NotFittedError before `fit`."""
        check_is_fitted(self, "coefficients_")
        X = (check_features(self, X, reset=False) - self.center_) / self.width_
        return self._product(X, self.coefficients_[:, [self.index_]])[:, 0]

    def use(self, index: int) -> KernelResidual:
        """Choose penalty number `index` of `alphas_`, by a rule of the caller's (a validation part, say)."""
        check_is_fitted(self, "coefficients_")
        if not 0 <= index < len(self.alphas_):
            raise ValueError(f"index: expected 0..{len(self.alphas_) - 1}, got {index}")
        self.index_, self.alpha_ = int(index), float(self.alphas_[index])
        return self

    def _product(self, X: FloatArray, coefficients: FloatArray) -> FloatArray:
        out = np.empty((len(X), coefficients.shape[1]))
        rows = max(1, CHUNK_BYTES // (8 * len(self.X_train_)))
        for start in range(0, len(X), rows):
            block = _distance(self.kernel, X[start:start + rows], self.X_train_)
            block *= self.gamma_
            out[start:start + rows] = _of_distance(self.kernel, block) @ coefficients
        return out
