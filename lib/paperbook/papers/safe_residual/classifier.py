"""Algorithm 1 for classes: a zero-initialised linear head on top of the black box's logits, kept only if held-out rows support
it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Integer
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from paperbook.study.arguments import FloatArray, choice, integer, number

from .estimators import SelectionReport, SharesBlackBox, _margin, adopts, gain_and_error
from .validation import (
    IntArray,
    adopt_state,
    blank_copy,
    check_black_box,
    check_features,
    check_logits,
    check_losses,
    stratified_split,
    validation_size,
)

ASK = ("decision_function", "predict_log_proba")


@dataclass(frozen=True)
class HeadPath:
    """Weights W (p, k) and bias c (k,) of the best check, its step, and the validation log-loss at every check (step 0 is
    f_0's)."""

    weight: FloatArray
    bias: FloatArray
    step: int
    steps: list[int]
    val_losses: list[float]


def _sorted_labels(name: str, values: Any) -> Any:
    """Distinct labels in order; ValueError naming `name` for NaN or types that cannot be sorted together."""
    labels = np.asarray(values)
    if labels.ndim != 1 or not labels.size:
        raise ValueError(f"{name}: expected a vector of labels, got shape {labels.shape}")
    items = list(values) if isinstance(values, list | tuple) else labels.tolist()
    if any(isinstance(item, float) and item != item for item in items):
        raise ValueError(f"{name}: expected labels, got a missing value (NaN) among them")
    text = [isinstance(item, str | bytes) for item in items]
    try:
        if any(text) and not all(text):  # NumPy would turn the numbers of a list into text
            raise TypeError
        return np.unique(labels)
    except TypeError:
        kinds = sorted({type(item).__name__ for item in items})
        raise ValueError(f"{name}: expected labels of one type that can be sorted, got {' and '.join(kinds)}") from None


def log_losses(logits: Float[np.ndarray, "n classes"], labels: Integer[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Negative log-likelihood (n,) in nats of labels (n,) in 0..k-1 under logits (n, k)."""
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels]


def fit_linear_head(features: Float[np.ndarray, "n dim"], base_logits: Float[np.ndarray, "n classes"],
                    labels: Integer[np.ndarray, " n"], val_features: Float[np.ndarray, "n_v dim"],
                    val_base_logits: Float[np.ndarray, "n_v classes"], val_labels: Integer[np.ndarray, " n_v"], *,
                    lr: float = 1.0, steps: int = 300,
                    weight_decay: float = 1e-3, check_every: int = 10) -> HeadPath:
    """Full-batch gradient descent from W = 0, c = 0 on mean log-loss + weight_decay/2 |W|^2; logits = base + features W + c.

    Every `check_every` steps the validation log-loss is taken; the best check wins, step 0 (f_0 itself) included, ties to the
    earlier. Where the penalised training loss has risen since the last check, that stretch is undone and the step size halved,
    so features of any scale converge. O(n p k) a step.
    """
    n, k = base_logits.shape
    weight, bias = np.zeros((features.shape[1], k)), np.zeros(k)
    onehot = np.eye(k)[labels]

    def objective() -> float:
        return float(np.mean(log_losses(base_logits + features @ weight + bias, labels)) + 0.5 * weight_decay * np.sum(weight**2))

    def validation_loss() -> float:
        return float(np.mean(log_losses(val_base_logits + val_features @ weight + bias, val_labels)))

    kept = (weight, bias, objective())
    checked, losses = [0], [validation_loss()]
    best = (weight, bias, 0)
    for step in range(1, steps + 1):
        error = (softmax(base_logits + features @ weight + bias, axis=1) - onehot) / n
        weight = weight - lr * (features.T @ error + weight_decay * weight)
        bias = bias - lr * error.sum(axis=0)
        if step % check_every == 0 or step == steps:
            now = objective()
            if not now <= kept[2]:  # also where it overflowed
                weight, bias, _ = kept
                lr *= 0.5
                continue
            kept = (weight, bias, now)
            checked.append(step)
            losses.append(validation_loss())
            if losses[-1] < min(losses[:-1]):
                best = (weight, bias, step)
    return HeadPath(best[0], best[1], best[2], checked, losses)


class _Head(ClassifierMixin, SharesBlackBox):
    def __init__(self, black_box=None, val_fraction=0.3, classes=None, lr=1.0, steps=300, weight_decay=1e-3, check_every=10,
                 random_state=None):
        self.black_box = black_box
        self.val_fraction = val_fraction
        self.classes = classes
        self.lr = lr
        self.steps = steps
        self.weight_decay = weight_decay
        self.check_every = check_every
        self.random_state = random_state

    def fit(self, X: Any, y: Any, f0: Any = None):
        """Fit to X (n, p) and labels y (n,); `f0` logits (n, k) in the order of `classes_` replace the black box, which is then
        not called.

        Raises:
            ValueError: X or f0 not finite or of wrong shape, fewer than 2 classes, labels outside `classes` or the black box's
                classes, labels of mixed types, `classes` not sorted, `val_fraction` outside (0, 1), fewer than 2 validation
                rows, logits not finite, another parameter out of range.
            TypeError: a black box that cannot be used, a parameter of the wrong type.
        After an error the estimator is what it was before the call.
        """
        twin = blank_copy(self)
        twin._check_parameters()
        if isinstance(y, list | tuple) and len(y) and np.ndim(y[0]) == 0:
            _sorted_labels("y", y)  # before NumPy makes one type of them
        X, y = validate_data(twin, X, y, dtype=np.float64)
        seen = _sorted_labels("y", y)
        check_classification_targets(y)
        twin.classes_ = twin._all_classes(seen)
        labels = np.searchsorted(twin.classes_, y)
        validation_size(len(X), twin.val_fraction)
        twin.needs_f0_ = f0 is not None and twin.black_box is None
        start = twin._start(X, f0)
        split = stratified_split(labels, twin.val_fraction, twin.random_state)
        twin.split_, twin.n_train_, twin.n_val_ = split, len(split.train), len(split.validation)
        base = twin._base(start)
        with np.errstate(over="ignore", invalid="ignore"):
            check_losses("black_box" if f0 is None else "f0", log_losses(base, labels))
        rows, held = split
        twin.head_ = fit_linear_head(
            X[rows], base[rows], labels[rows], X[held], base[held], labels[held],
            lr=twin.lr, steps=twin.steps, weight_decay=twin.weight_decay, check_every=twin.check_every)
        twin._decide(base[held], base[held] + twin._correction(X[held]), labels[held])
        adopt_state(self, twin)
        return self

    def decision_function(self, X: Any, f0: Any = None) -> FloatArray:
        """Logits (m, k) in the order of `classes_`; for two classes the log-odds (m,) of the second, as scikit-learn has it."""
        logits = self.logits(X, f0)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def logits(self, X: Any, f0: Any = None) -> Float[np.ndarray, "m classes"]:
        """Logits (m, k), also for two classes. NotFittedError before `fit`; ValueError as in `fit`, or where f0 is needed and
        missing."""
        check_is_fitted(self, "head_")
        X = check_features(self, X, reset=False)
        if self.needs_f0_ and f0 is None:
            raise ValueError(f"f0: fitted with f0 and without a black box, so predict expected f0 of shape ({len(X)}, "
                             f"{len(self.classes_)}), got None")
        return self._combine(X, self._base(self._start(X, f0)))

    def predict_proba(self, X: Any, f0: Any = None) -> Float[np.ndarray, "m classes"]:
        """Class probabilities (m, k), rows sum to 1."""
        return softmax(self.logits(X, f0), axis=1)

    def predict(self, X: Any, f0: Any = None) -> Any:
        """The class (m,) of the largest logit."""
        logits = self.logits(X, f0)
        return self.classes_[np.argmax(logits, axis=1)]

    def _check_parameters(self) -> None:
        check_black_box(self.black_box, ASK)
        number("lr", self.lr, 0.0, open_low=True)
        number("weight_decay", self.weight_decay, 0.0)
        integer("steps", self.steps, 0)
        integer("check_every", self.check_every, 1)

    def _all_classes(self, seen: Any) -> Any:
        """The classes in play: given, the black box's, or those in y. All sorted; logits are in this order."""
        known, source = seen, "y"
        if self.classes is not None:
            known, source = _sorted_labels("classes", self.classes), "classes"
            given = np.asarray(self.classes)
            # columns of f0 come in this order: sorting it silently would move every label
            if given.tolist() != known.tolist():
                raise ValueError(f"classes: expected sorted labels without repetition, {known.tolist()}, got {given.tolist()}")
        elif getattr(self.black_box, "classes_", None) is not None:
            known, source = self._box_order()[0], "black_box.classes_"
        if (seen.dtype.kind in "US") != (known.dtype.kind in "US") and "O" not in (seen.dtype.kind, known.dtype.kind):
            raise ValueError(f"y: expected labels among {source} {known.tolist()}, got {seen.tolist()[0]!r} of another type")
        outside = np.setdiff1d(seen, known)
        if len(outside):
            raise ValueError(f"y: expected labels among {source} {known.tolist()}, got {outside[0]!r}")
        if len(known) < 2:
            raise ValueError(f"y: expected at least 2 classes, got 1 class: {known.tolist()}")
        return known

    def _start(self, X: FloatArray, f0: Any) -> FloatArray:
        k = len(self.classes_)
        if f0 is not None:
            return check_logits("f0", f0, len(X), k)
        if self.black_box is None:
            return np.zeros((len(X), k))
        ask = next((getattr(self.black_box, name) for name in ASK if hasattr(self.black_box, name)), self.black_box)
        logits = check_logits("black_box", ask(X), len(X), k, " from its logits")
        if getattr(self.black_box, "classes_", None) is None:
            return logits
        theirs, order = self._box_order()
        if theirs.tolist() != self.classes_.tolist():
            raise ValueError(f"black_box: expected classes {self.classes_.tolist()}, got one with classes_ {theirs.tolist()}")
        return logits if (np.diff(order) > 0).all() else logits[:, order]

    def _box_order(self) -> tuple[Any, IntArray]:
        """The black box's classes in order, and which of its columns each one is."""
        known = _sorted_labels("black_box.classes_", self.black_box.classes_)
        theirs = np.asarray(self.black_box.classes_)
        if len(known) != len(theirs):
            raise ValueError(f"black_box.classes_: expected labels without repetition, got {theirs.tolist()}")
        return known, np.argsort(theirs, kind="stable")

    def _base(self, start: FloatArray) -> FloatArray:
        return start

    def _correction(self, X: FloatArray) -> FloatArray:
        return X @ self.head_.weight + self.head_.bias

    def _combine(self, X: FloatArray, base: FloatArray) -> FloatArray:
        return base + self._correction(X)

    def _decide(self, kept: FloatArray, corrected: FloatArray, labels: IntArray) -> None:
        """Nothing to decide for the estimators that always use their head."""


class SafeResidualClassifier(_Head):
    """Algorithm 1 for classes: logits z_0(x) or z_0(x) + x W + c, whichever the held-out rows support (W = 0, c = 0 is z_0).

    Args:
        black_box: z_0. None is zero logits; else a fitted object with `decision_function` or `predict_log_proba`, or a callable
            X -> logits (n, k) in the order of `classes_`. Columns of a box with `classes_` of its own are put in this (sorted)
            order. Never refitted; `clone` shares it.
        selection: the loss that decides, "accuracy" or "nll" (natural logarithm). Accuracy moves in steps of 1/n_v: coarse if
            n_v is small.
        val_fraction: in (0, 1), rows that choose the step on the path and judge; stratified, n_v >= 2.
        tau: >= 0; adopted where gain > tau se(gain). Ties keep the black box.
        classes: all labels there can be, sorted, for data that miss some; None takes the black box's `classes_`, else those in y.
        lr, steps, weight_decay, check_every: of the full-batch gradient descent (`fit_linear_head`). Features are used as they
            come: scale them to about unit norm, or put a scaler in front.
        random_state: of the split.

    After `fit`: `classes_`, `used_correction_`, `val_loss_black_box_`, `val_loss_corrected_`, `gain_`, `gain_se_`, `report_`,
    `report_other_` (the other selection loss on the same rows), `head_` (`HeadPath`), `split_`, `n_train_`, `n_val_`,
    `n_features_in_`.
    """

    # OPEN(paper Alg. 1): the loss that selects a classifier; accuracy, with the log-loss as the alternative
    def __init__(self, black_box=None, val_fraction=0.3, tau=0.0, selection="accuracy", classes=None, lr=1.0, steps=300,
                 weight_decay=1e-3, check_every=10, random_state=None):
        super().__init__(black_box, val_fraction, classes, lr, steps, weight_decay, check_every, random_state)
        self.tau = tau
        self.selection = selection

    def _check_parameters(self) -> None:
        super()._check_parameters()
        number("tau", self.tau, 0.0)
        choice("selection", self.selection, ("accuracy", "nll"))

    def _decide(self, kept: FloatArray, corrected: FloatArray, labels: IntArray) -> None:
        reports = {rule: self._report(rule, kept, corrected, labels) for rule in ("accuracy", "nll")}
        self.report_ = reports.pop(self.selection)
        (self.report_other_,) = reports.values()
        self.used_correction_ = self.report_.used_correction
        self.val_loss_black_box_, self.val_loss_corrected_ = self.report_.loss_black_box, self.report_.loss_corrected
        self.gain_, self.gain_se_ = self.report_.gain, self.report_.gain_se

    def _report(self, rule: str, kept: FloatArray, corrected: FloatArray, labels: IntArray) -> SelectionReport:
        before, after = ((z.argmax(axis=1) != labels).astype(float) if rule == "accuracy" else log_losses(z, labels)
                         for z in (kept, corrected))
        gain, se = gain_and_error(before - after)
        return SelectionReport(rule, adopts(gain, se, self.tau), float(np.mean(before)), float(np.mean(after)), gain, se,
                               _margin(gain, se), self.n_train_, self.n_val_)

    def _combine(self, X: FloatArray, base: FloatArray) -> FloatArray:
        return base + self._correction(X) if self.used_correction_ else base


class ResidualClassifier(_Head):
    """RESIDUAL: z_0 + x W + c always (the best check on the validation rows may still be step 0). Arguments as in the safe
    one."""


class ScratchClassifier(_Head):
    """SCRATCH: the same head from zero logits, on the same split; the black box is asked for its classes only."""

    def _start(self, X: FloatArray, f0: Any) -> FloatArray:
        return np.zeros((len(X), len(self.classes_)))

    def logits(self, X: Any, f0: Any = None) -> FloatArray:
        """Logits (m, k); `f0` is ignored, it is there for the common protocol."""
        check_is_fitted(self, "head_")
        X = check_features(self, X, reset=False)
        return self._combine(X, self._start(X, None))
