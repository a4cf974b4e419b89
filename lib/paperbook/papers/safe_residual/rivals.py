"""Rivals from other libraries behind the protocol of `estimators`: boosting from f_0 (LightGBM, XGBoost) and stacking with
f_0."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone

from paperbook.study.arguments import FloatArray, integer, number

from .estimators import _AroundBlackBox
from .validation import HoldoutSplit, check_losses

# (leaves, rows a leaf): seven settings, as many as the kernel learner has penalties
BOOSTING_GRID = ((2, 2), (4, 2), (4, 5), (8, 5), (8, 20), (16, 20), (31, 20))


class _BoostingFromBlackBox(_AroundBlackBox):
    """Trees that start from f_0; rounds and setting are chosen on the validation rows, zero rounds (f_0 itself) among them.

    After `fit`: `rounds_` (0 means f_0), `used_correction_`, `val_loss_`, `setting_`, `model_`.
    """

    def __init__(self, black_box=None, val_fraction=0.3, max_rounds=500, learning_rate=0.1, patience=20, random_state=None):
        super().__init__(black_box, None, val_fraction, "holdout", None, random_state)
        self.max_rounds = max_rounds
        self.learning_rate = learning_rate
        self.patience = patience

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return ["black_box", "learning_rate", "max_rounds", "patience", "random_state", "val_fraction"]

    def _check_parameters(self) -> None:
        super()._check_parameters()
        integer("max_rounds", self.max_rounds, 0)
        integer("patience", self.patience, 1)
        number("learning_rate", self.learning_rate, 0.0, open_low=True)

    def _learn(self, X: FloatArray, y: FloatArray, start: FloatArray, split: HoldoutSplit) -> None:
        rows, held = split
        _single("y", y)
        # neither library evaluates zero rounds: its early stopping returns at least one tree, so f_0 is judged here
        self.rounds_, self.setting_, self.model_ = 0, None, None
        self.val_loss_ = float(np.mean((y[held] - start[held]) ** 2))
        for setting in BOOSTING_GRID if self.max_rounds else ():
            model, rounds = self._boost(X, y, start, rows, held, setting)
            loss = float(np.mean((y[held] - self._boosted(model, rounds, X[held], start[held])) ** 2))
            check_losses("y", loss)
            if loss < self.val_loss_:
                self.rounds_, self.setting_, self.model_, self.val_loss_ = rounds, setting, model, loss
        self.used_correction_ = self.rounds_ > 0

    def _combine(self, X: FloatArray, start: FloatArray) -> FloatArray:
        return self._boosted(self.model_, self.rounds_, X, start) if self.rounds_ else start

    def _boost(self, X: FloatArray, y: FloatArray, start: FloatArray, rows: Any, held: Any,
               setting: tuple[int, int]) -> tuple[Any, int]:
        raise NotImplementedError

    def _boosted(self, model: Any, rounds: int, X: FloatArray, start: FloatArray) -> FloatArray:
        raise NotImplementedError


class LightGBMInitScore(_BoostingFromBlackBox):
    """The practitioner's safe residual: LightGBM with init_score = f_0 and early stopping."""

    def _boost(self, X: FloatArray, y: FloatArray, start: FloatArray, rows: Any, held: Any,
               setting: tuple[int, int]) -> tuple[Any, int]:
        import lightgbm

        leaves, leaf_rows = setting
        options = {"objective": "regression", "learning_rate": self.learning_rate, "num_leaves": leaves,
                   "min_data_in_leaf": leaf_rows, "min_data_in_bin": 1, "verbosity": -1, "num_threads": 1,
                   "deterministic": True, "force_col_wise": True, "seed": 0}
        train = lightgbm.Dataset(X[rows], y[rows], init_score=start[rows], params=options)
        valid = lightgbm.Dataset(X[held], y[held], init_score=start[held], reference=train, params=options)
        model = lightgbm.train(options, train, self.max_rounds, valid_sets=[valid],
                               callbacks=[lightgbm.early_stopping(self.patience, verbose=False)])
        return model, int(model.best_iteration)

    def _boosted(self, model: Any, rounds: int, X: FloatArray, start: FloatArray) -> FloatArray:
        # predict leaves init_score out; and num_iteration=0 would mean "all trees", which is why rounds = 0 never comes here
        return start + model.predict(X, num_iteration=rounds, num_threads=1)


class XGBoostBaseMargin(_BoostingFromBlackBox):
    """The same with XGBoost and base_margin = f_0."""

    def _boost(self, X: FloatArray, y: FloatArray, start: FloatArray, rows: Any, held: Any,
               setting: tuple[int, int]) -> tuple[Any, int]:
        import xgboost

        _single("X", X)
        _single("f0", start)
        leaves, leaf_rows = setting
        options = {"objective": "reg:squarederror", "learning_rate": self.learning_rate, "max_leaves": leaves, "max_depth": 0,
                   "grow_policy": "lossguide", "min_child_weight": leaf_rows, "tree_method": "hist", "nthread": 1, "seed": 0,
                   "verbosity": 0}
        train = xgboost.DMatrix(X[rows], y[rows], base_margin=start[rows], nthread=1)
        valid = xgboost.DMatrix(X[held], y[held], base_margin=start[held], nthread=1)
        model = xgboost.train(options, train, self.max_rounds, evals=[(valid, "validation")], early_stopping_rounds=self.patience,
                              verbose_eval=False)
        return model, int(model.best_iteration) + 1

    def _boosted(self, model: Any, rounds: int, X: FloatArray, start: FloatArray) -> FloatArray:
        import xgboost

        _single("X", X)
        _single("f0", start)
        return model.predict(xgboost.DMatrix(X, base_margin=start, nthread=1), iteration_range=(0, rounds)).astype(np.float64)


class StackingRival(_AroundBlackBox):
    """scikit-learn's StackingRegressor: ridge on x, f_0(x) and the learner's 5-fold predictions (passthrough). Uses all rows to
    fit: its folds take the place of the validation part."""

    def _learn(self, X: FloatArray, y: FloatArray, start: FloatArray, split: HoldoutSplit) -> None:
        from sklearn.compose import TransformedTargetRegressor
        from sklearn.ensemble import StackingRegressor
        from sklearn.linear_model import RidgeCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import FunctionTransformer, StandardScaler

        width = X.shape[1]
        centred = StandardScaler(with_std=False)  # of Y, as in SCRATCH
        scratch = TransformedTargetRegressor(clone(self._learner()), transformer=centred)
        features = FunctionTransformer(_first_columns, kw_args={"width": width})
        final = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 7)))
        self.model_ = StackingRegressor([("scratch", make_pipeline(features, scratch))], final, cv=5, passthrough=True)
        self.model_.fit(np.column_stack([X, start]), y)

    def _combine(self, X: FloatArray, start: FloatArray) -> FloatArray:
        return self.model_.predict(np.column_stack([X, start]))


def _single(name: str, values: FloatArray) -> None:
    """ValueError where `values` leave float32, which the boosting libraries compute in; squares must fit as well for `y`."""
    limit = float(np.finfo(np.float32).max)
    largest = float(np.max(np.abs(values)))
    if largest > (limit**0.5 if name == "y" else limit):
        raise ValueError(f"{name}: expected values that boosting can hold in float32, got one of size {largest:.3g}")


def _first_columns(X: FloatArray, width: int) -> FloatArray:
    return X[:, :width]
