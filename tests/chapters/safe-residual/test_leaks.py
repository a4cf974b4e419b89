"""Who sees which rows in the studies: box, labelled and test rows are disjoint, whatever the method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paperbook.data.diamonds import CLARITIES, load_diamonds
from paperbook.papers.safe_residual import studies

SIZES = [20, 60]


def ids(X: np.ndarray) -> list[int]:
    """Row numbers, which the made tables carry in column 0."""
    return X[:, 0].astype(int).tolist()


@pytest.fixture
def stones(monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
    """A table of 900 stones with the grades of the real one, and what box and methods were shown."""
    import sklearn.ensemble

    rng = np.random.default_rng(0)
    clarity = np.arange(900) % 8
    X = np.column_stack([np.arange(900), rng.normal(size=(900, 2))]).astype(float)
    seen: dict[str, Any] = {"pools": [], "tests": []}

    class Box(sklearn.ensemble.HistGradientBoostingRegressor):
        def fit(self, X: Any, y: Any, *rest: Any, **more: Any) -> Any:
            seen["box"] = ids(X)
            return super().fit(X, y, *rest, **more)

    def compare(X: Any, y: Any, f0: Any, X_test: Any, f0_test: Any, methods: Any, make: Any) -> dict[str, Any]:
        seen["pools"].append(ids(X))
        seen["tests"].append(ids(X_test))
        return {"predictions": {"f0": f0_test}}

    monkeypatch.setattr(sklearn.ensemble, "HistGradientBoostingRegressor", Box)
    monkeypatch.setattr(studies, "_compare", compare)
    return X, X[:, 1] + 0.1 * rng.normal(size=900), clarity, seen


@pytest.mark.parametrize("box", ["biased", "good"])
@pytest.mark.parametrize("seed", [0, 1])
def test_diamonds_are_shown_once(stones: Any, box: str, seed: int) -> None:
    X, y, clarity, seen = stones
    studies.diamonds_study(X, y, clarity, seed=seed, n_grid=SIZES, box=box, n_box=150, n_test=200, methods=[])
    assert len(set(seen["box"])) == 150 and [len(set(pool)) for pool in seen["pools"]] == SIZES
    for pool, test in zip(seen["pools"], seen["tests"], strict=True):
        assert len(set(test)) == 200 and test == seen["tests"][0]
        assert not (set(pool) & set(test) or set(pool) & set(seen["box"]) or set(test) & set(seen["box"]))
        assert clarity[pool].min() > 1 and clarity[test].min() > 1
    assert seen["pools"][0] == seen["pools"][1][:20]


def test_the_biased_box_sees_the_two_low_grades(stones: Any) -> None:
    X, y, clarity, seen = stones
    low = int((clarity <= CLARITIES.index("SI2")).sum())
    studies.diamonds_study(X, y, clarity, seed=0, n_grid=SIZES, n_box=low, n_test=100, methods=[])
    assert {CLARITIES[grade] for grade in clarity[seen["box"]]} == {"I1", "SI2"} and len(seen["box"]) == low
    table = load_diamonds()
    assert (table.clarity <= studies.LOW_CLARITY).sum() == 741 + 9194  # I1 and SI2 of the card


def test_digits_are_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import sklearn.linear_model

    rng = np.random.default_rng(0)
    n = 700
    y = rng.integers(3, size=n)
    # the row number is a column of tiny variance, so that nothing is learnt from it
    X = np.column_stack([np.arange(n) * 1e-6, np.eye(3)[y] + 0.5 * rng.normal(size=(n, 3))])

    def numbers(values: np.ndarray) -> list[int]:
        return np.rint(values[:, 0] * 1e6).astype(int).tolist()

    fits: dict[str, list[list[int]]] = {"box": [], "head": []}
    tests: list[list[int]] = []

    class Box(sklearn.linear_model.LogisticRegression):
        def fit(self, X: Any, y: Any, *rest: Any) -> Any:
            fits["box"].append(numbers(X))
            return super().fit(X, y, *rest)

        def score(self, X: Any, y: Any, *rest: Any) -> float:
            tests.append(numbers(X))
            return super().score(X, y, *rest)

    def recording(kind: Any) -> Any:
        class Head(kind):
            def fit(self, X: Any, y: Any, f0: Any = None) -> Any:
                fits["head"].append(numbers(X))
                return super().fit(X, y, f0)

            def predict(self, X: Any, f0: Any = None) -> Any:
                tests.append(numbers(X))
                return super().predict(X, f0)

        Head.__init__ = kind.__init__  # scikit-learn reads the parameters off the signature
        return Head

    monkeypatch.setattr(sklearn.linear_model, "LogisticRegression", Box)
    for name in ("ScratchClassifier", "ResidualClassifier", "SafeResidualClassifier"):
        monkeypatch.setattr(studies, name, recording(getattr(studies, name)))
    studies.digits_study(X, y, seed=0, n_grid=SIZES, n_box=100)
    assert [len(rows) for rows in fits["head"]] == [20] * 4 + [60] * 4 and len(tests) == 2 * 5
    used = set(fits["box"][0]).union(*fits["head"])
    assert len(set(fits["box"][0])) == 100 and len(used) == 160  # disjoint, and smaller n within larger ones
    for test in tests:
        assert set(test) == set(range(n)) - used
