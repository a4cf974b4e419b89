"""Algorithm 1 for regression: what the paper promises of it, by hand-made cases, and the conventions of scikit-learn."""

import datetime

import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.dummy import DummyRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from paperbook.papers.safe_residual.estimators import (
    WEIGHTS,
    ConcatRegressor,
    ResidualRegressor,
    SafeResidualRegressor,
    ScratchRegressor,
    WeightedCombiner,
    adopts,
    gain_and_error,
)
from paperbook.papers.safe_residual.kernel import KernelResidual
from paperbook.papers.safe_residual.rivals import LightGBMInitScore, StackingRival, XGBoostBaseMargin
from paperbook.papers.safe_residual.validation import holdout_split, stratified_split

OWN = [SafeResidualRegressor, ResidualRegressor, ScratchRegressor, ConcatRegressor, WeightedCombiner]


def truth(X):
    return np.sin(6 * X[:, 0]) + X[:, 1]


def draw(n=200, delta=1.0, sigma=0.3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    y = truth(X) + sigma * rng.normal(size=n)
    return X, y, truth(X) - delta * np.cos(3 * X[:, 0])


class Constant(RegressorMixin, BaseEstimator):
    """Predicts `value`, whatever it is shown, and remembers what that was."""

    def __init__(self, value=0.0):
        self.value = value

    def fit(self, X, y):
        self.X_, self.y_ = X, y
        return self

    def predict(self, X):
        return np.full(len(X), self.value)


@pytest.mark.parametrize("estimator", [KernelResidual(), *(kind() for kind in OWN)], ids=lambda e: type(e).__name__)
def test_scikit_learn_accepts_them(estimator):
    results = check_estimator(estimator, on_skip=None)
    assert len(results) > 40 and all(r["status"] in ("passed", "skipped") for r in results)


# check 1
@pytest.mark.parametrize("selection", ["holdout", "path"])
def test_nothing_to_correct_gives_the_black_box_bit_for_bit(selection):
    X, y, f0 = draw(delta=0.0, sigma=0.0)
    ours = SafeResidualRegressor(selection=selection, random_state=0).fit(X, y, f0=f0)
    assert not ours.used_correction_ and ours.gain_ == 0.0 and ours.report_.margin == 0.0
    assert ours.predict(X, f0=f0).tobytes() == f0.tobytes()
    if selection == "path":
        assert ours.report_.alpha == np.inf  # all penalties tie; the zero model wins


def test_a_new_fit_leaves_nothing_of_the_earlier_one():
    import pandas as pd

    X, y, _ = draw(n=40)
    ours = SafeResidualRegressor(random_state=0).fit(pd.DataFrame(X, columns=["u", "v"]), y)
    assert ours.feature_names_in_.tolist() == ["u", "v"]
    assert not hasattr(ours.fit(X, y), "feature_names_in_")


# check 3
@pytest.mark.parametrize("delta", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("selection", ["holdout", "path"])
def test_a_function_added_to_both_sides_shifts_the_prediction(delta, selection):
    X, y, f0 = draw(delta=delta)
    g = 10 * X[:, 0] ** 2 - 3 * X[:, 1]
    one = SafeResidualRegressor(selection=selection, random_state=0).fit(X, y, f0=f0)
    two = SafeResidualRegressor(selection=selection, random_state=0).fit(X, y + g, f0=f0 + g)
    assert one.used_correction_ == two.used_correction_
    np.testing.assert_allclose(two.predict(X, f0=f0 + g), one.predict(X, f0=f0) + g, atol=1e-9)  # rounding of y + g - (f0 + g)


# check 4
def test_the_prediction_is_one_of_two():
    outcomes = set()
    for seed in range(12):
        X, y, f0 = draw(delta=0.3, sigma=0.6, n=60, seed=seed)
        ours = SafeResidualRegressor(random_state=seed).fit(X, y, f0=f0)
        outcomes.add(ours.used_correction_)
        np.testing.assert_array_equal(ours.predict(X, f0=f0), f0 + ours.correction(X) if ours.used_correction_ else f0)
        assert ours.used_correction_ is (ours.val_loss_corrected_ < ours.val_loss_black_box_)
    assert outcomes == {True, False}


# check 5
def test_ties_keep_the_black_box():
    # residual 1, correction 2: 1^2 - (1 - 2)^2 = 0 in every row, so gain 0 and se 0
    X = np.arange(20.0)[:, None]
    ours = SafeResidualRegressor(residual_estimator=Constant(2.0), random_state=0).fit(X, np.ones(20))
    assert ours.gain_ == 0.0 and not ours.used_correction_
    assert not adopts(0.0, 0.0, 0.0) and adopts(1e-12, 0.0, 0.0) and not adopts(1.0, 1.0, 1.0)


def test_gain_and_error_by_hand():
    gain, se = gain_and_error(np.array([1.0, 2.0, 3.0, 6.0]))
    assert gain == 3.0
    assert se == pytest.approx(np.sqrt((4 + 1 + 0 + 9) / 3 / 4))


def test_losses_gain_and_error_on_the_validation_rows():
    X, y, f0 = draw()
    ours = SafeResidualRegressor(residual_estimator=Constant(0.4), val_fraction=0.25, random_state=3).fit(X, y, f0=f0)
    held = ours.split_.validation
    kept = [(y[i] - f0[i]) ** 2 for i in held]
    changed = [(y[i] - f0[i] - 0.4) ** 2 for i in held]
    differences = [a - b for a, b in zip(kept, changed, strict=True)]
    assert ours.n_val_ == len(held) == 50 and ours.n_train_ == 150
    assert ours.val_loss_black_box_ == pytest.approx(sum(kept) / 50)
    assert ours.val_loss_corrected_ == pytest.approx(sum(changed) / 50)
    assert ours.gain_ == pytest.approx(sum(kept) / 50 - sum(changed) / 50)
    assert ours.gain_se_ == pytest.approx(np.sqrt(sum((d - ours.gain_) ** 2 for d in differences) / 49 / 50))
    assert ours.report_.margin == pytest.approx(ours.gain_ / ours.gain_se_)
    assert ours.report_other_ is None  # another learner has no path


def test_the_margin_rule_moves_the_threshold():
    X, y, f0 = draw(n=60, delta=0.7, sigma=0.5, seed=2)
    margin = SafeResidualRegressor(random_state=0).fit(X, y, f0=f0).report_.margin
    assert margin > 0
    for tau, adopted in ((0.99 * margin, True), (1.01 * margin, False)):
        assert SafeResidualRegressor(tau=tau, random_state=0).fit(X, y, f0=f0).used_correction_ is adopted


# check 20
@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("selection", ["holdout", "path"])
def test_held_rows_never_enter_the_coefficients(kind, selection):
    """At one given penalty, other targets on the held rows leave the learner what it was; "path" only judges there."""
    X, y, f0 = draw(n=80)
    learner = KernelResidual(alphas=[0.1])
    ours = kind(residual_estimator=learner, selection=selection, random_state=5).fit(X, y, f0=f0)
    changed = y.copy()
    changed[ours.split_.validation] += np.random.default_rng(1).normal(size=ours.n_val_)
    again = kind(residual_estimator=learner, selection=selection, random_state=5).fit(X, changed, f0=f0)
    one, two = ours.residual_estimator_, again.residual_estimator_
    assert len(one.X_train_) == ours.n_train_ and one.coefficients_.any()
    assert one.coefficients_.tobytes() == two.coefficients_.tobytes() and one.center_.tobytes() == two.center_.tobytes()


def test_the_path_is_clipped_before_the_penalty_is_chosen():
    moved = 0
    for seed in range(20):
        X, y, f0 = draw(n=60, delta=1.0, sigma=0.5, seed=seed)
        ours = SafeResidualRegressor(selection="path", clip=0.4, random_state=seed).fit(X, y, f0=f0)
        rows, held = ours.split_
        path = KernelResidual().fit(X[rows], (y - f0)[rows]).path(X[held])
        losses = [[np.mean((y[held] - f0[held] - r) ** 2) for r in values.T] for values in (np.clip(path, -0.4, 0.4), path)]
        assert min(losses[0]) < np.mean((y - f0)[held] ** 2)  # not the zero model
        assert ours.report_.alpha == module_alphas()[int(np.argmin(losses[0]))]
        assert ours.val_loss_corrected_ == pytest.approx(min(losses[0]))
        moved += int(np.argmin(losses[0])) != int(np.argmin(losses[1]))
    assert moved > 0  # clipping changes the choice somewhere, so the order of the two matters


# check 20
@pytest.mark.parametrize("kind", [ResidualRegressor, SafeResidualRegressor])
def test_validation_rows_never_enter_the_correction(kind):
    X, y, f0 = draw()
    ours = kind(random_state=5).fit(X, y, f0=f0)
    changed = y.copy()
    changed[ours.split_.validation] += 100.0
    again = kind(random_state=5).fit(X, changed, f0=f0)
    np.testing.assert_array_equal(ours.residual_estimator_.predict(X), again.residual_estimator_.predict(X))
    spy = kind(residual_estimator=Constant(), random_state=5).fit(X, y, f0=f0).residual_estimator_
    np.testing.assert_array_equal(spy.X_, X[ours.split_.train])
    np.testing.assert_array_equal(spy.y_, (y - f0)[ours.split_.train])  # the target of Algorithm 1, step 2


def test_refit_uses_all_rows_after_the_decision():
    X, y, f0 = draw()
    ours = SafeResidualRegressor(residual_estimator=Constant(0.5), refit=True, random_state=5).fit(X, y + 0.5, f0=f0)
    assert ours.used_correction_ and len(ours.residual_estimator_.X_) == 200
    kept = SafeResidualRegressor(residual_estimator=Constant(-9.0), refit=True, random_state=5).fit(X, y, f0=f0)
    assert not kept.used_correction_ and len(kept.residual_estimator_.X_) == 140
    path = SafeResidualRegressor(selection="path", refit=True, random_state=5).fit(X, y, f0=f0)
    assert path.residual_estimator_.alpha_ == path.report_.alpha and len(path.residual_estimator_.X_train_) == 200


def test_seeds_reproduce_and_are_the_same_split_for_all():
    X, y, f0 = draw()
    splits = [kind(random_state=7).fit(X, y, f0=f0).split_ for kind in OWN]
    for split in splits:
        np.testing.assert_array_equal(split.validation, splits[0].validation)
    assert sorted([*splits[0].train, *splits[0].validation]) == list(range(200))
    one, two = (SafeResidualRegressor(random_state=7).fit(X, y, f0=f0).predict(X, f0=f0) for _ in range(2))
    assert one.tobytes() == two.tobytes()
    assert set(SafeResidualRegressor(random_state=8).fit(X, y, f0=f0).split_.train) != set(splits[0].train)


def test_stratified_split_is_in_proportion():
    labels = np.repeat([0, 1, 2, 3], [50, 30, 19, 1])
    for seed in range(20):
        train, held = stratified_split(labels, 0.3, seed)
        assert len(held) == 30 and len(set(train) | set(held)) == 100
        counts = np.bincount(labels[held], minlength=4)
        assert (np.abs(counts - 0.3 * np.bincount(labels)) <= 1 + 1e-9).all()
    assert len(holdout_split(7, 0.3, 0).validation) == 2


def test_path_selection_takes_the_best_penalty_or_none():
    X, y, f0 = draw(delta=1.0)
    ours = SafeResidualRegressor(selection="path", random_state=0).fit(X, y, f0=f0)
    rows, held = ours.split_
    losses = {a: np.mean((y[held] - f0[held] - KernelResidual(alphas=[a]).fit(X[rows], (y - f0)[rows]).predict(X[held])) ** 2)
              for a in module_alphas()}
    best = min(losses, key=losses.get)
    assert ours.report_.alpha == best and ours.val_loss_corrected_ == pytest.approx(losses[best])
    assert (ours.report_.rule, ours.report_other_.rule) == ("path", "holdout")
    other = SafeResidualRegressor(random_state=0).fit(X, y, f0=f0)
    assert (other.report_, other.report_other_) == (ours.report_other_, ours.report_)
    assert ours.report_.gain >= other.report_.gain  # the minimum over a grid that contains the other choice
    wrong = SafeResidualRegressor(selection="path", residual_estimator=KernelResidual(alphas=[1e-6]), random_state=0)
    wrong.fit(X, f0 + np.random.default_rng(0).normal(size=200), f0=f0)
    assert wrong.report_.alpha == np.inf and not wrong.used_correction_


def module_alphas():
    from paperbook.papers.safe_residual.kernel import DEFAULT_ALPHAS

    return DEFAULT_ALPHAS


def test_clip_bounds_the_correction():
    X, y, f0 = draw(delta=3.0)
    ours = SafeResidualRegressor(clip=0.5, random_state=0).fit(X, y, f0=f0)
    assert ours.used_correction_ and np.abs(ours.predict(X, f0=f0) - f0).max() <= 0.5 + 1e-12
    assert np.abs(ours.correction(X)).max() == 0.5


def test_always_on_and_scratch_by_hand():
    X, y, f0 = draw()
    rows = holdout_split(200, 0.3, 0).train
    residual = KernelResidual().fit(X[rows], (y - f0)[rows]).predict(X)
    np.testing.assert_array_equal(ResidualRegressor(random_state=0).fit(X, y, f0=f0).predict(X, f0=f0), f0 + residual)
    mean = y[rows].mean()
    scratch = mean + KernelResidual().fit(X[rows], y[rows] - mean).predict(X)
    np.testing.assert_allclose(ScratchRegressor(random_state=0).fit(X, y).predict(X), scratch, atol=1e-12)
    both = np.column_stack([X, f0])
    concat = mean + KernelResidual().fit(both[rows], y[rows] - mean).predict(both)
    np.testing.assert_allclose(ConcatRegressor(random_state=0).fit(X, y, f0=f0).predict(X, f0=f0), concat, atol=1e-12)


def test_scratch_does_not_listen_to_the_black_box():
    X, y, f0 = draw()
    one = ScratchRegressor(random_state=0).fit(X, y, f0=f0).predict(X, f0=f0)
    two = ScratchRegressor(black_box=lambda Z: 1 / 0, random_state=0).fit(X, y).predict(X)
    assert one.tobytes() == two.tobytes()


def test_weights_by_hand():
    X, y, f0 = draw(delta=0.3)
    ours = WeightedCombiner(random_state=0).fit(X, y, f0=f0)
    held = holdout_split(200, 0.3, 0).validation
    scratch = ScratchRegressor(random_state=0).fit(X, y).predict(X)
    losses = [np.mean((y - w * f0 - (1 - w) * scratch)[held] ** 2) for w in np.linspace(0, 1, 21)]
    assert len(WEIGHTS) == 21 and WEIGHTS[0] == 0 and WEIGHTS[1] == 0.05 and WEIGHTS[-1] == 1
    assert ours.weight_ == pytest.approx(np.linspace(0, 1, 21)[int(np.argmin(losses))]) and 0 < ours.weight_ < 1
    np.testing.assert_allclose(ours.val_losses_, losses, rtol=1e-9)
    np.testing.assert_allclose(ours.predict(X, f0=f0), ours.weight_ * f0 + (1 - ours.weight_) * scratch, atol=1e-12)
    assert WeightedCombiner(random_state=0).fit(X, f0, f0=f0).weight_ == 1.0  # a perfect black box gets all


def test_weights_that_tie_go_to_the_black_box():
    X, y = np.arange(20.0)[:, None], np.ones(20)
    y[holdout_split(20, 0.3, 0).train[::2]] = -1.0  # 14 training rows with mean exactly 0, so scratch is 0, and so is f_0
    ours = WeightedCombiner(residual_estimator=Constant(0.0), random_state=0).fit(X, y, f0=np.zeros(20))
    assert ours.mean_ == 0.0 and len(set(ours.val_losses_)) == 1 and ours.weight_ == 1.0


@pytest.mark.parametrize("kind", OWN)
def test_three_ways_to_hand_in_the_black_box(kind):
    X, y, _ = draw()
    model = LinearRegression().fit(X, y)
    values = model.predict(X)
    boxes = [model, model.predict, FrozenEstimator(model)]
    predictions = [kind(black_box=box, random_state=0).fit(X, y).predict(X) for box in boxes]
    predictions.append(kind(random_state=0).fit(X, y, f0=values).predict(X, f0=values))
    for other in predictions[1:]:
        assert other.tobytes() == predictions[0].tobytes()


def test_no_black_box_is_the_zero_function():
    X, y, _ = draw()
    np.testing.assert_array_equal(SafeResidualRegressor(random_state=0).fit(X, y).predict(X),
                                  SafeResidualRegressor(lambda Z: np.zeros(len(Z)), random_state=0).fit(X, y).predict(X))


@pytest.mark.parametrize("kind", OWN)
def test_clone_shares_the_black_box_and_copies_the_rest(kind):
    X, y, _ = draw()
    model = LinearRegression().fit(X, y)
    ours = kind(black_box=model, residual_estimator=KernelResidual(gamma=2.0), val_fraction=0.4, random_state=3).fit(X, y)
    twin = clone(ours)
    assert twin.black_box is model and ours.black_box is model and not hasattr(twin, "n_train_")
    assert twin.residual_estimator is not ours.residual_estimator and twin.residual_estimator.gamma == 2.0
    assert twin.fit(X, y).predict(X).tobytes() == ours.predict(X).tobytes()
    with pytest.raises(ValueError, match="black_box__fit_intercept: the black box is fixed"):
        ours.set_params(black_box__fit_intercept=False)


def test_the_black_box_is_never_refitted():
    X, y, _ = draw()
    model = LinearRegression().fit(X, np.zeros(200))
    search = GridSearchCV(SafeResidualRegressor(black_box=model, random_state=0),
                          {"residual_estimator__kernel": ["laplacian", "rbf"], "tau": [0.0, 1.0]}, cv=2)
    search.set_params(estimator__residual_estimator=KernelResidual()).fit(X, y)
    assert not model.coef_.any() and search.best_estimator_.black_box is model
    assert search.best_score_ > 0.5


def test_pipeline_and_cross_validation():
    X, y, _ = draw()
    pipeline = make_pipeline(FunctionTransformer(), SafeResidualRegressor(black_box=truth, random_state=0))
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.7
    assert cross_val_score(SafeResidualRegressor(DummyRegressor().fit(X, y)), X, y, cv=3).min() > 0.5


# check 19
@pytest.mark.parametrize("kind", [LightGBMInitScore, XGBoostBaseMargin])
def test_boosting_with_no_rounds_is_the_black_box(kind):
    pytest.importorskip({"LightGBMInitScore": "lightgbm", "XGBoostBaseMargin": "xgboost"}[kind.__name__])
    X, y, f0 = draw(n=120)
    none = kind(max_rounds=0, random_state=0).fit(X, y, f0=f0)
    assert none.rounds_ == 0 and none.predict(X, f0=f0).tobytes() == f0.tobytes()
    # nothing left to learn: early stopping alone would keep a tree
    perfect = kind(max_rounds=30, random_state=0).fit(X, f0, f0=f0)
    assert perfect.rounds_ == 0 and perfect.predict(X, f0=f0).tobytes() == f0.tobytes()
    y, f0 = y + 10, f0 + 10  # so that a forgotten f_0 cannot hide
    some = kind(max_rounds=60, random_state=0).fit(X, y, f0=f0)
    held = some.split_.validation
    assert some.rounds_ > 0
    assert np.mean((some.predict(X, f0=f0) - y)[held] ** 2) == pytest.approx(some.val_loss_, rel=1e-4)  # XGBoost: float32
    assert some.val_loss_ < np.mean((y - f0)[held] ** 2)
    assert clone(some).get_params() == some.get_params()


def test_stacking_sees_the_black_box():
    X, y, f0 = draw(sigma=0.05, delta=0.0)
    assert np.mean((StackingRival(random_state=0).fit(X, y, f0=f0).predict(X, f0=f0) - f0) ** 2) < 0.01


@pytest.mark.parametrize("kind", [LightGBMInitScore, XGBoostBaseMargin])
def test_the_rounds_are_the_best_ones(kind):
    """The loss at every number of trees of the chosen model: its minimum is where `rounds_` stands, and it is a sharp one."""
    pytest.importorskip({"LightGBMInitScore": "lightgbm", "XGBoostBaseMargin": "xgboost"}[kind.__name__])
    X, y, f0 = draw(n=120)
    some = kind(max_rounds=200, random_state=0).fit(X, y, f0=f0)
    held = some.split_.validation
    trees = some.model_.num_boosted_rounds() if kind is XGBoostBaseMargin else some.model_.num_trees()
    losses = {r: np.mean((y[held] - some._boosted(some.model_, r, X[held], f0[held])) ** 2) for r in range(1, trees + 1)}
    assert 1 < some.rounds_ <= max(losses)  # LightGBM keeps no tree beyond the best
    # 1e-5: float32 sums of 36 squares; the neighbours are worse by more than that
    assert losses[some.rounds_] == pytest.approx(some.val_loss_, rel=1e-9)
    assert losses[some.rounds_] <= min(losses.values()) * (1 + 1e-5)
    assert min(losses[some.rounds_ - 1], losses.get(some.rounds_ + 1, np.inf)) > losses[some.rounds_] * (1 + 1e-5)


def test_stacking_centres_the_target():
    X, y, f0 = draw()
    one, two = (StackingRival(random_state=0).fit(X, y + shift, f0=f0).predict(X, f0=f0) for shift in (0.0, 1e3))
    np.testing.assert_allclose(two, one + 1e3, atol=1e-6)  # rounding of targets near 1e3, times the condition of the fits


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("kind", [*OWN, StackingRival, LightGBMInitScore, XGBoostBaseMargin])
@pytest.mark.parametrize("size", [1e200, 1e100])
def test_targets_beyond_floats_are_refused(kind, size):
    X, y, f0 = draw(n=60)
    ours = kind(random_state=0).fit(X, y, f0=f0)
    before = ours.predict(X, f0=f0)
    messages = "y: expected values whose losses are finite|y: expected values that boosting can hold in float32"
    if size == 1e200 or kind in (SafeResidualRegressor, LightGBMInitScore, XGBoostBaseMargin):
        with pytest.raises(ValueError, match=messages):
            ours.fit(X, y * size, f0=f0)
    with pytest.raises(ValueError, match="y - f0: expected values whose losses are finite"):
        ours.fit(X, y, f0=f0 * 1e200)
    assert ours.predict(X, f0=f0).tobytes() == before.tobytes()


def test_inputs_beyond_float32_are_refused_by_xgboost():
    pytest.importorskip("xgboost")
    X, y, f0 = draw(n=60)
    with pytest.raises(ValueError, match="X: expected values that boosting can hold in float32, got one of size"):
        XGBoostBaseMargin().fit(X * 1e50, y, f0=f0)
    with pytest.raises(ValueError, match="f0: expected values that boosting can hold in float32, got one of size"):
        XGBoostBaseMargin().fit(X, y, f0=f0 + 1e50)


@pytest.mark.parametrize("kind", [*OWN, StackingRival])
@pytest.mark.parametrize("target, message", [
    (np.arange(40).astype("datetime64[D]"), r"y: expected numbers .*, got dates or durations of dtype datetime64\[D\]"),
    (np.arange(40).astype("timedelta64[s]"), "y: expected numbers for a regression, got dates or durations"),
    (np.array([datetime.date(2020, 1, 1)] * 40, dtype=object), "y: expected numbers for a regression, got date datetime.date"),
    (np.array([1.5, None] * 20, dtype=object), "y: expected numbers for a regression, got NoneType None"),
])
def test_dates_are_no_targets(kind, target, message):
    X, _, f0 = draw(n=40)
    with pytest.raises(ValueError, match=message):
        kind().fit(X, target, f0=f0)
    with pytest.raises(ValueError, match=r"f0: expected numbers of shape \(40,\), got ndarray"):
        kind().fit(X, f0, f0=np.arange(40).astype("datetime64[D]"))
