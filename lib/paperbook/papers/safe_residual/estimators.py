"""The Safe Residual Estimator (Algorithm 1) and its rivals behind one protocol, so that one loop compares all on the same
split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted

from paperbook.study.arguments import FloatArray, choice, number

from .kernel import KernelResidual
from .validation import (
    HoldoutSplit,
    adopt_state,
    blank_copy,
    check_black_box,
    check_features,
    check_losses,
    check_regression,
    check_squares,
    check_vector,
    holdout_split,
    validation_size,
)

SELECTIONS = ("holdout", "path")
WEIGHTS = np.arange(21) / 20.0  # 0, .05, .., 1


@dataclass(frozen=True)
class SelectionReport:
    """Was the correction used, and by what margin: losses on the n_v validation rows, gain = black box - corrected, its
    standard error.

    `margin` = gain / se (inf where se = 0 and gain > 0, 0 where both are 0); the rule adopts where gain > tau se. `alpha` is
    the penalty of the correction where the learner has one (inf: the zero model). With selection "path" the gain is optimistic:
    it is the best of a grid on the rows it is measured on.
    """

    rule: str
    used_correction: bool
    loss_black_box: float
    loss_corrected: float
    gain: float
    gain_se: float
    margin: float
    n_train: int
    n_validation: int
    alpha: float | None = None


def gain_and_error(differences: Float[np.ndarray, " n_v"]) -> tuple[float, float]:
    """Mean and standard error sd(d, ddof=1)/sqrt(n_v) of the loss differences d_i = loss_i(f_0) - loss_i(corrected), n_v >= 2."""
    return float(np.mean(differences)), float(np.std(differences, ddof=1) / np.sqrt(len(differences)))


def adopts(gain: float, se: float, tau: float) -> bool:
    """The selector s^ = 1{gain > tau se}; strict, so a tie keeps f_0 (alg-1, step 5)."""
    return bool(gain > tau * se)


def _margin(gain: float, se: float) -> float:
    if se > 0:
        return gain / se
    return float(np.sign(gain)) * np.inf if gain != 0 else 0.0


class SharesBlackBox(BaseEstimator):
    """The fixed f_0 is handed on, never refitted: `clone` shares the very object, as with scikit-learn's FrozenEstimator.

    (Plain `clone` would strip a fitted model of its fit.) GridSearchCV and Pipeline go through `clone`, so they share it too.
    """

    black_box: Any

    def __sklearn_clone__(self):
        bare = blank_copy(self)
        bare.black_box = None
        twin = super(SharesBlackBox, bare).__sklearn_clone__()
        twin.black_box = self.black_box
        return twin

    def set_params(self, **params: Any):
        """As in scikit-learn; parameters inside the black box (black_box__...) are refused, since that object is fixed and
        shared."""
        inside = [name for name in params if name.startswith("black_box__")]
        if inside:
            raise ValueError(f"{inside[0]}: the black box is fixed; expected a new black_box, not a change inside it")
        return super().set_params(**params)


class _AroundBlackBox(RegressorMixin, SharesBlackBox):
    """Template: check everything, get f_0, split, let the subclass learn, and only then take the fitted state over."""

    def __init__(self, black_box=None, residual_estimator=None, val_fraction=0.3, selection="holdout", clip=None,
                 random_state=None):
        self.black_box = black_box
        self.residual_estimator = residual_estimator
        self.val_fraction = val_fraction
        self.selection = selection
        self.clip = clip
        self.random_state = random_state

    def fit(self, X: Any, y: Any, f0: Any = None):
        """Fit to X (n, p), y (n,); `f0` (n,) replaces the predictions of the black box, which is then not called.

        Raises:
            ValueError: X, y or f0 not finite or of wrong shape, text or dates in y, squared errors that overflow,
                `val_fraction` outside (0, 1), fewer than 2 validation rows, a black box whose predictions are not finite or
                not one a row, another parameter out of range.
            TypeError: a black box or learner that cannot be used, a parameter of the wrong type.
        After an error the estimator is what it was before the call.
        """
        twin = blank_copy(self)
        twin._check_parameters()
        X, y = check_regression(twin, X, y)
        validation_size(len(X), twin.val_fraction)
        twin.needs_f0_ = f0 is not None and twin.black_box is None
        start = twin._start(X, f0)
        check_squares("y", y)
        check_squares("y - f0", y - start)
        split = holdout_split(len(X), twin.val_fraction, twin.random_state)
        twin.split_, twin.n_train_, twin.n_val_ = split, len(split.train), len(split.validation)
        twin._learn(X, y, start, split)
        adopt_state(self, twin)
        return self

    def predict(self, X: Any, f0: Any = None) -> FloatArray:
        """Predictions (m,) for X (m, p). `f0` (m,) replaces the black box; it is required if `fit` had f0 and there is no black
        box.

        Raises:
            NotFittedError: before `fit`.
            ValueError: X or f0 not finite or of wrong shape, f0 missing.
        """
        check_is_fitted(self, "n_train_")
        X = check_features(self, X, reset=False)
        if self.needs_f0_ and f0 is None:
            raise ValueError(f"f0: fitted with f0 and without a black box, so predict expected f0 of shape ({len(X)},), got None")
        return self._combine(X, self._start(X, f0))

    def _check_parameters(self) -> None:
        check_black_box(self.black_box, ("predict",))
        choice("selection", self.selection, SELECTIONS)
        if self.clip is not None:
            number("clip", self.clip, 0.0, open_low=True)
        learner = self._learner()
        if isinstance(learner, type) or not (hasattr(learner, "fit") and hasattr(learner, "predict")):
            raise TypeError(f"residual_estimator: expected a regressor instance with fit and predict, got {learner!r}")
        if self.selection == "path" and not isinstance(learner, KernelResidual):
            raise TypeError(f"residual_estimator: selection='path' expected a KernelResidual, got {type(learner).__name__}")

    def _learner(self) -> Any:
        return KernelResidual() if self.residual_estimator is None else self.residual_estimator

    def _start(self, X: FloatArray, f0: Any) -> FloatArray:
        """f_0 at the rows of X: given, zero, or asked from the black box."""
        if f0 is not None:
            return check_vector("f0", f0, len(X))
        if self.black_box is None:
            return np.zeros(len(X))
        ask = self.black_box.predict if hasattr(self.black_box, "predict") else self.black_box
        return check_vector("black_box", ask(X), len(X), " from its predictions")

    def _fitted_learner(self, X: FloatArray, target: FloatArray, split: HoldoutSplit) -> Any:
        """The learner fitted to the training rows; with selection "path" its penalty is the best one on the validation rows.

        The validation rows never enter the fit itself.
        """
        rows, held = split
        learner = clone(self._learner())
        if self.selection == "path":
            return learner.fit(X[rows], target[rows], X[held], target[held])
        return learner.fit(X[rows], target[rows])

    def _clipped(self, values: Any) -> FloatArray:
        values = check_vector("residual_estimator", values, len(values), " from its predictions")
        return values if self.clip is None else np.clip(values, -self.clip, self.clip)

    def _learn(self, X: FloatArray, y: FloatArray, start: FloatArray, split: HoldoutSplit) -> None:
        raise NotImplementedError

    def _combine(self, X: FloatArray, start: FloatArray) -> FloatArray:
        raise NotImplementedError


class SafeResidualRegressor(_AroundBlackBox):
    """Algorithm 1: learn a correction r^ of a fixed black box f_0 on one part of the data, keep it only if the other part
    supports it.

    The prediction is f_0 or f_0 + r^, never a blend. It is never much worse than f_0 (S6), and attains min{delta^2, psi_n} up to
    O((sigma^2 + B^2)/n_v) without knowing delta (S4).

    Args:
        black_box: f_0. None is the zero function; else a fitted object with `predict` or a callable X -> (n,). Never refitted;
            `clone` shares it. It should not have been trained on the rows given to `fit`, or the gain is judged against too
            good an f_0.
        residual_estimator: any regressor, cloned and fitted to y - f_0; None takes `KernelResidual()`.
        val_fraction: rho in (0, 1), the part of the rows that judges; n_v = round(rho n) >= 2.
        tau: >= 0; the correction is adopted where gain > tau se(gain). 1 is conservative.
        clip: B > 0 bounds |r^|; None leaves it unbounded (the theorem needs a bound).
        refit: whether an adopted correction is fitted again to all rows. Off by default: the theorem is for the split.
        selection: "holdout", the learner tunes itself on the training rows and the validation rows only judge; "path"
            (KernelResidual), the validation rows also choose its penalty, the zero model being one of the candidates.
        random_state: of the split; the same state gives all estimators of this module the same split.

    After `fit`: `used_correction_`, `val_loss_black_box_`, `val_loss_corrected_` (mean squared errors), `gain_`, `gain_se_`,
    `report_` (`SelectionReport`), `report_other_` (the other rule on the same split, KernelResidual only, else None),
    `residual_estimator_`, `split_`, `n_train_`, `n_val_`, `n_features_in_`.
    """

    # OPEN(paper Alg. 1): split fraction, margin and what tunes the learner are not known to us; .3, 0 and its own leave-one-out
    def __init__(self, black_box=None, residual_estimator=None, val_fraction=0.3, tau=0.0, clip=None, refit=False,
                 selection="holdout", random_state=None):
        super().__init__(black_box, residual_estimator, val_fraction, selection, clip, random_state)
        self.tau = tau
        self.refit = refit

    def _check_parameters(self) -> None:
        super()._check_parameters()
        number("tau", self.tau, 0.0)
        if not isinstance(self.refit, bool | np.bool_):
            raise TypeError(f"refit: expected True or False, got {self.refit!r}")

    def _learn(self, X: FloatArray, y: FloatArray, start: FloatArray, split: HoldoutSplit) -> None:
        target = y - start
        held = split.validation
        learner = clone(self._learner()).fit(X[split.train], target[split.train])
        reports: dict[str, tuple[SelectionReport, int | None]] = {}
        if isinstance(learner, KernelResidual):
            path = learner.path(X[held], include_zero=True)
            if self.clip is not None:
                path = np.clip(path, -self.clip, self.clip)
            losses = np.mean((target[held][:, None] - path) ** 2, axis=0)
            report = self._report("holdout", path[:, learner.index_], target[held], split, learner.alpha_)
            reports["holdout"] = report, learner.index_
            column = int(np.flatnonzero(losses == losses.min())[-1])  # the zero model stands last and wins ties
            alpha = float(np.append(learner.alphas_, np.inf)[column])
            report = self._report("path", path[:, column], target[held], split, alpha)
            reports["path"] = report, min(column, len(learner.alphas_) - 1)
        else:
            reports["holdout"] = self._report("holdout", learner.predict(X[held]), target[held], split, None), None
        self.report_, index = reports.pop(self.selection)
        self.report_other_ = next((report for report, _ in reports.values()), None)
        if index is not None:
            learner.use(index)
        self.used_correction_ = self.report_.used_correction
        self.val_loss_black_box_, self.val_loss_corrected_ = self.report_.loss_black_box, self.report_.loss_corrected
        self.gain_, self.gain_se_ = self.report_.gain, self.report_.gain_se
        if self.refit and self.used_correction_:
            again = clone(self._learner())
            if self.selection == "path":
                again.set_params(alphas=[learner.alpha_])
            learner = again.fit(X, target)
        self.residual_estimator_ = learner

    def _report(self, rule: str, correction: Any, target: FloatArray, split: HoldoutSplit,
                alpha: float | None) -> SelectionReport:
        kept, corrected = target**2, (target - self._clipped(correction)) ** 2
        gain, se = gain_and_error(kept - corrected)
        check_losses("y", (gain, se))
        return SelectionReport(rule, adopts(gain, se, self.tau), float(np.mean(kept)), float(np.mean(corrected)), gain, se,
                               _margin(gain, se), len(split.train), len(split.validation), alpha)

    def correction(self, X: Any) -> FloatArray:
        """r^ (m,) at X (m, p), clipped, whether or not it was adopted."""
        check_is_fitted(self, "n_train_")
        return self._clipped(self.residual_estimator_.predict(check_features(self, X, reset=False)))

    def _combine(self, X: FloatArray, start: FloatArray) -> FloatArray:
        return start + self._clipped(self.residual_estimator_.predict(X)) if self.used_correction_ else start


class ResidualRegressor(_AroundBlackBox):
    """RESIDUAL: f_0 + r^ always, on the same training part. Arguments as in `SafeResidualRegressor`, without tau and refit."""

    def _learn(self, X: FloatArray, y: FloatArray, start: FloatArray, split: HoldoutSplit) -> None:
        self.residual_estimator_ = self._fitted_learner(X, y - start, split)

    def _combine(self, X: FloatArray, start: FloatArray) -> FloatArray:
        return start + self._clipped(self.residual_estimator_.predict(X))


class ScratchRegressor(_AroundBlackBox):
    """SCRATCH: the same learner on Y, ignoring f_0. Y is centred on its training mean first, since the learner shrinks towards 0;
    that is the residual learner around the best constant. `clip` bounds the deviation from that constant."""

    def _start(self, X: FloatArray, f0: Any) -> FloatArray:
        return np.zeros(len(X)) if f0 is None else check_vector("f0", f0, len(X))

    def predict(self, X: Any, f0: Any = None) -> FloatArray:
        """Predictions (m,) for X (m, p); `f0` is checked and ignored, it is there for the common protocol."""
        check_is_fitted(self, "n_train_")
        X = check_features(self, X, reset=False)
        return self._combine(X, self._start(X, f0))

    def _learn(self, X: FloatArray, y: FloatArray, start: FloatArray, split: HoldoutSplit) -> None:
        self.mean_ = float(np.mean(y[split.train]))
        self.residual_estimator_ = self._fitted_learner(X, y - self.mean_, split)

    def _combine(self, X: FloatArray, start: FloatArray) -> FloatArray:
        return self.mean_ + self._clipped(self.residual_estimator_.predict(X))


class ConcatRegressor(_AroundBlackBox):
    """CONCAT: the same learner on (x, f_0(x)), Y centred as in SCRATCH."""

    def _learn(self, X: FloatArray, y: FloatArray, start: FloatArray, split: HoldoutSplit) -> None:
        self.mean_ = float(np.mean(y[split.train]))
        self.residual_estimator_ = self._fitted_learner(np.column_stack([X, start]), y - self.mean_, split)

    def _combine(self, X: FloatArray, start: FloatArray) -> FloatArray:
        return self.mean_ + self._clipped(self.residual_estimator_.predict(np.column_stack([X, start])))


class WeightedCombiner(_AroundBlackBox):
    """WGT: w f_0 + (1 - w) scratch, w the best of 0, .05, .., 1 on the validation rows; ties go to the larger w, towards f_0.

    After `fit`: `weight_`, `val_losses_` (21,) in the order of `WEIGHTS`, `residual_estimator_` (the scratch learner).
    """

    def _learn(self, X: FloatArray, y: FloatArray, start: FloatArray, split: HoldoutSplit) -> None:
        self.mean_ = float(np.mean(y[split.train]))
        self.residual_estimator_ = self._fitted_learner(X, y - self.mean_, split)
        held = split.validation
        scratch = self.mean_ + self._clipped(self.residual_estimator_.predict(X[held]))
        blends = WEIGHTS[:, None] * start[held] + (1.0 - WEIGHTS[:, None]) * scratch
        self.val_losses_ = np.mean((y[held] - blends) ** 2, axis=1)
        check_losses("y", self.val_losses_)
        self.weight_ = float(WEIGHTS[np.flatnonzero(self.val_losses_ == self.val_losses_.min())[-1]])

    def _combine(self, X: FloatArray, start: FloatArray) -> FloatArray:
        scratch = self.mean_ + self._clipped(self.residual_estimator_.predict(X))
        return self.weight_ * start + (1.0 - self.weight_) * scratch
