"""Wrong input to the regressors: the message names the variable, what came and what was expected; nothing is half-fitted."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge

from paperbook.data.digits import load_digits, shift_images
from paperbook.papers.safe_residual import studies
from paperbook.papers.safe_residual.estimators import (
    ConcatRegressor,
    ResidualRegressor,
    SafeResidualRegressor,
    ScratchRegressor,
    WeightedCombiner,
)

OWN = [SafeResidualRegressor, ResidualRegressor, ScratchRegressor, ConcatRegressor, WeightedCombiner]
RNG = np.random.default_rng(0)
X, Y = RNG.uniform(size=(40, 2)), RNG.normal(size=40)
NAN = np.where(np.arange(40) == 3, np.nan, Y)
WIDE = np.where(np.arange(80).reshape(40, 2) == 7, np.inf, X)


class Explodes(Ridge):
    """Predicts infinity."""

    def predict(self, Z):
        return np.full(len(Z), np.inf)


DATA = [
    ((WIDE, Y), {}, "Input X contains infinity"),
    ((X, NAN), {}, "Input y contains NaN"),
    ((X[:, 0], Y), {}, "Expected 2D array, got 1D array"),
    ((X, Y[:30]), {}, r"inconsistent numbers of samples: \[40, 30\]"),
    ((X, np.array(["1.5"] * 40)), {}, "y: expected numbers for a regression, got text such as .*1.5"),
    ((X, np.array(["dear"] * 40, dtype=object)), {}, "y: expected numbers for a regression, got text such as 'dear'"),
    ((X[:5], Y[:5]), {"val_fraction": 0.2}, "X: n_samples=5, val_fraction=0.2 give 1 validation rows, expected at least 2"),
    ((X[:4], Y[:4]), {"val_fraction": 0.9}, "X: n_samples=4, val_fraction=0.9 leave 0 training rows, expected at least 1"),
]
PARAMETERS = [
    ({"val_fraction": 0.0}, ValueError, r"val_fraction: expected a finite number in \(0, 1\), got 0.0"),
    ({"val_fraction": 1}, ValueError, r"val_fraction: expected a finite number in \(0, 1\), got 1"),
    ({"val_fraction": "third"}, TypeError, "val_fraction: expected a real number, got str 'third'"),
    ({"selection": "cv"}, ValueError, "selection: expected one of 'holdout', 'path', got 'cv'"),
    ({"clip": 0}, ValueError, r"clip: expected a finite number in \(0, inf\), got 0"),
    ({"residual_estimator": Ridge}, TypeError, "residual_estimator: expected a regressor instance"),
    ({"residual_estimator": 5}, TypeError, "residual_estimator: expected a regressor instance"),
    ({"residual_estimator": Ridge(), "selection": "path"}, TypeError, "selection='path' expected a KernelResidual, got Ridge"),
    ({"black_box": Ridge}, TypeError, "black_box: expected None.*got the class Ridge"),
    ({"black_box": "model.bin"}, TypeError, "black_box: expected None.*got str"),
]
BOXES = [
    (lambda Z: np.full(len(Z), np.nan), "black_box: expected finite values from its predictions, got 40 not finite, first"),
    (lambda Z: np.zeros((len(Z), 2)), r"black_box: expected shape \(40,\) from its predictions, got \(40, 2\)"),
    (lambda Z: ["dear"] * len(Z), r"black_box: expected numbers of shape \(40,\) from its predictions, got list"),
]
SAFE_ONLY = [
    ({"tau": -0.1}, ValueError, r"tau: expected a finite number in \[0, inf\), got -0.1"),
    ({"refit": "yes"}, TypeError, "refit: expected True or False, got 'yes'"),
    ({"residual_estimator": Explodes()}, ValueError, "residual_estimator: expected finite values from its predictions"),
]


def refuses(estimator, error, message, *data, **more):
    """The error comes, a fresh estimator stays fresh, and an earlier fit survives it."""
    kind = type(estimator)
    with pytest.raises(error, match=message):
        estimator.fit(*data, **more)
    assert not [name for name in vars(estimator) if name.endswith("_")]
    fitted = kind(random_state=0).fit(X, Y)
    state, parameters = dict(vars(fitted)), fitted.get_params(deep=False)
    fitted.set_params(**estimator.get_params(deep=False))
    with pytest.raises(error, match=message):
        fitted.fit(*data, **more)
    fitted.set_params(**parameters)
    assert vars(fitted).keys() == state.keys() and all(vars(fitted)[name] is value for name, value in state.items())


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("data, parameters, message", DATA)
def test_data(kind, data, parameters, message):
    refuses(kind(**parameters), ValueError, message, *data)


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize("parameters, error, message", PARAMETERS)
def test_parameters(kind, parameters, error, message):
    refuses(kind(**parameters), error, message, X, Y)


@pytest.mark.parametrize("parameters, error, message", SAFE_ONLY)
def test_parameters_of_the_safe_one(parameters, error, message):
    refuses(SafeResidualRegressor(**parameters), error, message, X, Y)


@pytest.mark.parametrize("kind", [kind for kind in OWN if kind is not ScratchRegressor])
@pytest.mark.parametrize("box, message", BOXES)
def test_black_boxes(kind, box, message):
    refuses(kind(black_box=box), ValueError, message, X, Y)


@pytest.mark.parametrize("kind", OWN)
def test_f0(kind):
    refuses(kind(), ValueError, r"f0: expected shape \(40,\), got \(39,\)", X, Y, f0=Y[:39])
    refuses(kind(), ValueError, r"f0: expected finite values, got 1 not finite, first", X, Y, f0=NAN)
    fitted = kind().fit(X, Y, f0=Y)
    with pytest.raises(ValueError, match=r"f0: expected shape \(40,\), got \(2,\)"):
        fitted.predict(X, f0=np.zeros(2))
    if kind is not ScratchRegressor:
        with pytest.raises(ValueError, match=r"f0: fitted with f0 .* predict expected f0 of shape \(40,\), got None"):
            fitted.predict(X)
    assert fitted.predict(X, f0=Y[:, None]).shape == (40,)  # a column is what many models return


@pytest.mark.parametrize("kind", OWN)
def test_predict(kind):
    with pytest.raises(NotFittedError):
        kind().predict(X)
    with pytest.raises(ValueError, match=r"X has 1 features, but \w+ is expecting 2 features"):
        kind().fit(X, Y).predict(X[:, :1])
    with pytest.raises(ValueError, match="Input X contains infinity"):
        kind().fit(X, Y).predict(WIDE)


def test_a_box_that_breaks_at_predict_leaves_the_fit():
    state = {"broken": False}
    fitted = SafeResidualRegressor(lambda Z: np.full(len(Z), np.nan) if state["broken"] else np.zeros(len(Z)), random_state=0)
    before = fitted.fit(X, Y).predict(X)
    state["broken"] = True
    with pytest.raises(ValueError, match="black_box: expected finite values"):
        fitted.predict(X)
    state["broken"] = False
    assert fitted.predict(X).tobytes() == before.tobytes()


def test_studies_refuse():
    digits = load_digits()
    for call, error, message in [
        (lambda: studies.digits_study(digits.X, digits.y, seed=0, n_grid=[5]), ValueError, "n_grid: expected an integer in"),
        (lambda: studies.digits_study(digits.X, digits.y, seed=0, X_box=digits.X[:9]), ValueError,
         r"X_box: expected shape \(1797, 64\)"),
        (lambda: studies.synthetic_study(seed=0, methods=["magic"]), ValueError, "methods: expected one of 'scratch'"),
        (lambda: studies.synthetic_study(seed=0, n_grid=[]), ValueError, "n_grid: expected at least one size"),
        (lambda: studies.diamonds_study(X, Y, np.zeros(40), seed=0, box="best"), ValueError,
         "box: expected one of 'biased', 'good'"),
        (lambda: shift_images(digits.X[:, :5], 1, 0), ValueError, r"X: expected shape \(n, 64\), got"),
        (lambda: shift_images(digits.X, 8, 0), ValueError, "dx: expected -7..7, got 8"),
        (lambda: shift_images(digits.X, 0, 0.5), TypeError, "dy: expected an integer, got float 0.5"),
    ]:
        with pytest.raises(error, match=message):
            call()
