"""Algorithm 1 for classes: the numpy head against torch, limits, the selection, and the conventions of scikit-learn."""

import itertools

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from paperbook.papers.safe_residual.classifier import (
    ResidualClassifier,
    SafeResidualClassifier,
    ScratchClassifier,
    fit_linear_head,
    log_losses,
)

OWN = [SafeResidualClassifier, ResidualClassifier, ScratchClassifier]


def draw(n=150, k=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(k, size=n)
    X = rng.normal(size=(n, 4)) * 0.8
    X[:, 0] += y
    return X, y


@pytest.mark.parametrize("kind", OWN)
def test_scikit_learn_accepts_them(kind):
    results = check_estimator(kind(), on_skip=None)
    assert len(results) > 40 and all(r["status"] in ("passed", "skipped") for r in results)


def test_log_loss_by_hand():
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]))
    np.testing.assert_allclose(log_losses(logits, np.array([0, 1])), [np.log(2), np.log(10)])


def test_the_head_equals_gradient_descent_in_torch():
    import torch

    from paperbook.papers.safe_residual.heads import HeadData, ZeroInitHead, train_head

    X, y = draw()
    base = np.random.default_rng(1).normal(size=(150, 3))
    options = {"lr": 0.5, "steps": 35, "weight_decay": 0.1, "check_every": 10}
    ours = fit_linear_head(X[:100], base[:100], y[:100], X[100:], base[100:], y[100:], **options)
    parts = [HeadData(*(torch.as_tensor(a[rows]) for a in (X, base, y))) for rows in (slice(0, 100), slice(100, 150))]
    peer = train_head(ZeroInitHead(4, 3), *parts, optimiser="gd", dtype=torch.float64, **options)
    assert ours.steps == peer.steps == [0, 10, 20, 30, 35] and ours.step == peer.best_step > 0
    np.testing.assert_allclose(ours.val_losses, peer.val_losses, atol=1e-10)  # 35 steps of float64 sums
    np.testing.assert_allclose(ours.weight, peer.head.out.weight.detach().numpy().T, atol=1e-10)
    np.testing.assert_allclose(ours.bias, peer.head.out.bias.detach().numpy(), atol=1e-10)


def test_first_step_is_the_gradient_by_finite_differences():
    X, y = draw(n=20)
    base = np.random.default_rng(1).normal(size=(20, 3))
    head = fit_linear_head(X, base, y, X, base, y, lr=1e-3, steps=1, weight_decay=0.0, check_every=1)
    for i, j in ((0, 0), (2, 1), (3, 2)):
        W = np.zeros((4, 3))
        W[i, j] = 1e-5
        slope = (log_losses(base + X @ W, y).mean() - log_losses(base - X @ W, y).mean()) / 2e-5
        assert head.weight[i, j] == pytest.approx(-1e-3 * slope, abs=1e-12)  # central difference: error 1e-10 times lr


def test_long_training_reaches_the_logistic_regression_of_scikit_learn():
    X, y = draw(k=2)
    base = np.zeros((150, 2))
    ours = fit_linear_head(X, base, y, X, base, y, steps=4000, weight_decay=0.02, check_every=100)
    # softmax over two columns with penalty wd/2 (|w1|^2 + |w2|^2), w1 = -w2 = -w/2, is logistic with wd/4 |w|^2: C = 2/(n wd)
    peer = LogisticRegression(C=2 / (150 * 0.02), tol=1e-10, max_iter=1000).fit(X, y)
    np.testing.assert_allclose(ours.weight[:, 1] - ours.weight[:, 0], peer.coef_[0], atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_features_of_any_scale_descend(scale):
    X, y = draw()
    base = np.zeros((150, 3))
    head = fit_linear_head(X * scale, base, y, X * scale, base, y)
    assert np.isfinite(head.weight).all() and head.val_losses[0] == pytest.approx(np.log(3))
    assert min(head.val_losses) < 0.9 and head.val_losses[head.steps.index(head.step)] == min(head.val_losses)


def test_zero_steps_and_a_perfect_box_keep_the_logits_bit_for_bit():
    X, y = draw()
    box = 50.0 * np.eye(3)[y]
    for steps in (0, 300):
        for selection in ("accuracy", "nll"):
            ours = SafeResidualClassifier(steps=steps, selection=selection, random_state=0).fit(X, y, f0=box)
            if steps == 0 or selection == "accuracy":  # the box makes no error, so accuracy can only tie
                assert not ours.used_correction_ and ours.logits(X, f0=box).tobytes() == box.tobytes()


def test_the_prediction_is_one_of_two_and_the_loss_decides():
    outcomes = set()
    for seed in range(12):
        X, y = draw(n=60, seed=seed)
        box = LogisticRegression().fit(*draw(n=25, seed=seed + 100))
        for selection in ("accuracy", "nll"):
            ours = SafeResidualClassifier(box, selection=selection, random_state=seed).fit(X, y)
            kept, corrected = box.decision_function(X), box.decision_function(X) + (X @ ours.head_.weight + ours.head_.bias)
            np.testing.assert_array_equal(ours.decision_function(X), corrected if ours.used_correction_ else kept)
            held = ours.split_.validation
            if selection == "accuracy":
                losses = [np.mean(z[held].argmax(1) != y[held]) for z in (kept, corrected)]
            else:
                losses = [np.mean(-np.log(softmax(z[held], axis=1)[np.arange(len(held)), y[held]])) for z in (kept, corrected)]
            assert (ours.val_loss_black_box_, ours.val_loss_corrected_) == pytest.approx(tuple(losses))
            assert ours.used_correction_ == (losses[1] < losses[0]) and ours.report_.rule == selection
            assert ours.report_other_.rule != selection
            outcomes.add((selection, ours.used_correction_))
    assert len(outcomes) >= 3


def test_validation_rows_never_enter_the_gradient():
    X, y = draw()
    ours = SafeResidualClassifier(random_state=0).fit(X, y)
    moved = X.copy()
    moved[ours.split_.validation] *= 1.0 + 1e-9  # too little to change which check is best
    again = SafeResidualClassifier(random_state=0).fit(moved, y)
    np.testing.assert_array_equal(ours.head_.weight, again.head_.weight)


def test_scratch_and_residual_differ_by_the_start():
    X, y = draw()
    box = LogisticRegression().fit(X[:30], y[:30])
    scratch = ScratchClassifier(box, random_state=0).fit(X, y)
    np.testing.assert_array_equal(scratch.decision_function(X), X @ scratch.head_.weight + scratch.head_.bias)
    residual = ResidualClassifier(box, random_state=0).fit(X, y)
    np.testing.assert_array_equal(residual.decision_function(X),
                                  box.decision_function(X) + (X @ residual.head_.weight + residual.head_.bias))
    np.testing.assert_array_equal(scratch.split_.train, residual.split_.train)


def test_two_classes_and_text_labels():
    X, y = draw(k=2)
    names = np.array(["no", "yes"])[y]
    box = LogisticRegression().fit(X[:20], names[:20])
    ours = SafeResidualClassifier(box, random_state=0).fit(X, names)
    assert ours.classes_.tolist() == ["no", "yes"]
    assert ours.decision_function(X).shape == (150,) and ours.logits(X).shape == (150, 2)
    np.testing.assert_array_equal(ours.predict(X) == "yes", ours.decision_function(X) > 0)
    np.testing.assert_allclose(ours.predict_proba(X)[:, 1], 1 / (1 + np.exp(-ours.decision_function(X))), atol=1e-12)
    zero = SafeResidualClassifier(box, steps=0, random_state=0).fit(X, names)
    np.testing.assert_allclose(zero.predict_proba(X), box.predict_proba(X), atol=1e-12)


def test_boxes_with_probabilities_callables_and_more_classes_than_the_data():
    from sklearn.naive_bayes import GaussianNB

    X, y = draw()
    box = GaussianNB().fit(X, y)
    few = y != 2
    ours = SafeResidualClassifier(box, steps=0).fit(X[few], y[few])
    assert ours.classes_.tolist() == [0, 1, 2]
    np.testing.assert_allclose(ours.predict_proba(X), box.predict_proba(X), atol=1e-12)
    call = SafeResidualClassifier(box.predict_log_proba, steps=0, classes=[0, 1, 2]).fit(X[few], y[few])
    np.testing.assert_array_equal(call.logits(X), ours.logits(X))


@pytest.mark.parametrize("kind", OWN)
def test_clone_pipeline_and_grid_search_share_the_box(kind):
    X, y = draw()
    box = LogisticRegression().fit(X[:40], y[:40])
    before = box.coef_.copy()
    assert clone(kind(box)).black_box is box and clone(kind(FrozenEstimator(box))).black_box.estimator is box
    search = GridSearchCV(make_pipeline(FunctionTransformer(), kind(box, steps=30, random_state=0)),
                          {f"{kind.__name__.lower()}__lr": [0.1, 1.0]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.5 and search.best_estimator_[-1].black_box is box
    np.testing.assert_array_equal(box.coef_, before)
    assert make_pipeline(StandardScaler(), kind(steps=30)).fit(X, y).score(X, y) > 0.5


class Knows:
    """Knows the label behind column 0 and hands in columns in the order of its own `classes_`."""

    def __init__(self, classes):
        self.classes_ = np.array(classes)

    def decision_function(self, X):
        known = np.unique(self.classes_)[X[:, 0].astype(int)]
        logits = 5.0 * (known[:, None] == self.classes_)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits


@pytest.mark.parametrize("classes", [*itertools.permutations("abc"), *itertools.permutations("ab"), (2, 0, 1)])
@pytest.mark.parametrize("kind", [SafeResidualClassifier, ResidualClassifier])
def test_columns_of_a_box_in_any_order(kind, classes):
    rng = np.random.default_rng(0)
    codes = rng.integers(len(classes), size=90)
    X, y = np.column_stack([codes, rng.normal(size=90)]), np.unique(classes)[codes]
    ours = kind(Knows(classes), random_state=0).fit(X, y)
    assert ours.classes_.tolist() == sorted(classes) and (ours.predict(X) == y).all()
    if kind is SafeResidualClassifier:
        assert ours.val_loss_black_box_ == 0.0 and not ours.used_correction_
    sorted_box = kind(Knows(sorted(classes)), random_state=0).fit(X, y)
    # two classes: log-odds z come as (0, z), the other way round as (-z, 0), which rounds differently
    np.testing.assert_allclose(ours.predict_proba(X), sorted_box.predict_proba(X), rtol=1e-12)
    given = kind(Knows(classes), classes=sorted(classes), random_state=0).fit(X, y)
    np.testing.assert_array_equal(ours.predict_proba(X), given.predict_proba(X))


def test_a_box_with_other_classes_than_given_is_refused():
    X, y = np.zeros((30, 1)), np.tile(["a", "b", "c"], 10)
    with pytest.raises(ValueError, match=r"black_box: expected classes \['a', 'b', 'c'\], got one with classes_ .*'d'"):
        SafeResidualClassifier(Knows(list("abd")), classes=["a", "b", "c"]).fit(X, y)
    with pytest.raises(ValueError, match=r"black_box.classes_: expected labels without repetition, got \['a', 'b', 'a'\]"):
        SafeResidualClassifier(Knows(list("aba"))).fit(X, np.tile(["a", "b"], 15))


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("classes, message", [
    (["c", "a", "b"], r"classes: expected sorted labels without repetition, \['a', 'b', 'c'\], got \['c', 'a', 'b'\]"),
    (["a", "b", "c", "c"], "classes: expected sorted labels without repetition"),
    (["a", "b", float("nan")], r"classes: expected labels, got a missing value \(NaN\)"),
    (np.array([0.0, 1.0, np.nan]), r"classes: expected labels, got a missing value \(NaN\)"),
    (["a", "b", 3], "classes: expected labels of one type that can be sorted, got int and str"),
    ([0, 1, 2], "y: expected labels among classes .* got 'a' of another type"),
    ("abc", r"classes: expected a vector of labels, got shape \(\)"),
])
def test_bad_classes(kind, classes, message):
    X, y = draw(n=60)
    y = np.array(["a", "b", "c"])[y]
    with pytest.raises(ValueError, match=message):
        kind(classes=classes).fit(X, y, f0=np.zeros((60, 3)))


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("make", [list, lambda v: np.array(v, dtype=object)])
def test_labels_of_mixed_type_are_refused(kind, make):
    X, _ = draw(n=40)
    with pytest.raises(ValueError, match="y: expected labels of one type that can be sorted, got int and str"):
        kind().fit(X, make(["a", 1] * 20))


def test_logits_beyond_floats_are_refused():
    X, y = draw(n=60)
    with pytest.raises(ValueError, match="f0: expected values whose losses are finite"):
        SafeResidualClassifier().fit(X, y, f0=1.5e308 * (1 - 2 * np.eye(3)[y]))


def test_a_stretch_is_judged_by_the_penalised_loss():
    """One step of lr 1 at weight_decay 5: the loss falls by about |g|^2, the penalty rises by 2.5 |g|^2, so it is undone."""
    X, y = 0.1 * np.array([[1.0], [-1.0]] * 8), np.array([0, 1] * 8)
    base = np.zeros((16, 2))
    head = fit_linear_head(X, base, y, X, base, y, lr=1.0, steps=1, weight_decay=5.0, check_every=1)
    assert head.steps == [0] and not head.weight.any()
    free = fit_linear_head(X, base, y, X, base, y, lr=1.0, steps=1, weight_decay=0.0, check_every=1)
    assert free.steps == [0, 1] and free.val_losses[1] < free.val_losses[0] and free.weight.any()


def test_ties_go_to_the_earlier_step():
    base, y = np.zeros((8, 2)), np.array([0, 1] * 4)  # balanced, so that even the bias stays zero, exactly
    head = fit_linear_head(np.zeros((8, 3)), base, y, np.zeros((8, 3)), base, y, steps=30)
    assert head.steps == [0, 10, 20, 30] and len(set(head.val_losses)) == 1 and head.step == 0


def test_seeds_reproduce():
    X, y = draw()
    one, two = (SafeResidualClassifier(random_state=4).fit(X, y).decision_function(X).tobytes() for _ in range(2))
    assert one == two


@pytest.mark.parametrize("parameters, error, message", [
    ({"selection": "auc"}, ValueError, "selection: expected one of 'accuracy', 'nll', got 'auc'"),
    ({"val_fraction": 1.0}, ValueError, r"val_fraction: expected a finite number in \(0, 1\), got 1.0"),
    ({"tau": -1}, ValueError, "tau: expected"),
    ({"lr": 0}, ValueError, "lr: expected"),
    ({"steps": 1.5}, TypeError, "steps: expected an integer, got float 1.5"),
    ({"check_every": 0}, ValueError, "check_every: expected"),
    ({"weight_decay": np.nan}, ValueError, "weight_decay: expected"),
    ({"classes": [0, 1]}, ValueError, r"y: expected labels among classes \[0, 1\], got"),
    ({"black_box": LogisticRegression}, TypeError, "black_box: expected None.*got the class LogisticRegression"),
    ({"black_box": 3}, TypeError, "black_box: expected None.*got int"),
    ({"black_box": lambda X: np.zeros((len(X), 2))}, ValueError, r"black_box: expected shape \(150, 3\).*got \(150, 2\)"),
    ({"black_box": lambda X: np.full((len(X), 3), np.nan)}, ValueError, "black_box: expected finite values.*450 not finite"),
])
def test_bad_input_leaves_the_earlier_fit(parameters, error, message):
    X, y = draw()
    ours = SafeResidualClassifier(random_state=0).fit(X, y)
    before = dict(vars(ours))
    prediction = ours.decision_function(X)
    ours.set_params(**parameters)
    with pytest.raises(error, match=message):
        ours.fit(X, y)
    ours.set_params(**{name: before[name] for name in parameters})
    assert vars(ours).keys() == before.keys() and ours.decision_function(X).tobytes() == prediction.tobytes()
    fresh = SafeResidualClassifier(**parameters)
    with pytest.raises(error):
        fresh.fit(X, y)
    assert not [name for name in vars(fresh) if name.endswith("_")]


def test_bad_data():
    X, y = draw()
    with pytest.raises(NotFittedError):
        SafeResidualClassifier().predict(X)
    with pytest.raises(ValueError, match="expected at least 2 classes, got 1 class"):
        SafeResidualClassifier().fit(X, np.zeros(150))
    with pytest.raises(ValueError, match=r"f0: expected shape \(150, 3\), got \(150,\)"):
        SafeResidualClassifier().fit(X, y, f0=np.zeros(150))
    fitted = SafeResidualClassifier().fit(X, y, f0=np.zeros((150, 3)))
    with pytest.raises(ValueError, match=r"f0: fitted with f0 .* expected f0 of shape \(150, 3\), got None"):
        fitted.predict(X)
    with pytest.raises(ValueError, match="4 validation rows|1 validation rows"):
        SafeResidualClassifier().fit(X[:4], np.array([0, 1, 0, 1]))
