"""Diamonds and digits: the loaders, and what the dossier of the chapter expects of the methods on them (checks 17 and 18)."""

import numpy as np
import pytest

from paperbook.data.diamonds import COLUMNS, load_diamonds
from paperbook.data.digits import load_digits, shift_images
from paperbook.papers.safe_residual.studies import diamonds_study, digits_study, synthetic_study


@pytest.fixture(scope="module")
def diamonds():
    return load_diamonds()


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def test_diamonds_card(diamonds):
    assert diamonds.X.shape == (53940, 9) and diamonds.columns == COLUMNS and np.isfinite(diamonds.X).all()
    np.testing.assert_array_equal(diamonds.X[0], [0.23, 4, 5, 1, 61.5, 55, 3.95, 3.98, 2.43])  # Ideal, E, SI2
    assert diamonds.y[0] == pytest.approx(np.log(326)) and (diamonds.clarity == diamonds.X[:, 3]).all()
    assert np.bincount(diamonds.clarity).tolist() == [741, 9194, 13065, 12258, 8171, 5066, 3655, 1790]
    assert (diamonds.X[:, 6:] == 0).any(axis=1).sum() == 20
    assert len(diamonds.y) - len(np.unique(np.column_stack([diamonds.X, diamonds.y]), axis=0)) == 146


def test_digits_card_and_shift(digits):
    assert digits.X.shape == (1797, 64) and digits.X.min() == 0 and digits.X.max() == 1
    counts = np.bincount(digits.y)
    assert counts.min() == 174 and counts.max() == 183
    images = digits.X.reshape(-1, 8, 8)
    moved = shift_images(digits.X, 1, -2).reshape(-1, 8, 8)
    np.testing.assert_array_equal(moved[:, :6, 1:], images[:, 2:, :7])
    assert not moved[:, 6:].any() and not moved[:, :, 0].any()
    np.testing.assert_array_equal(shift_images(digits.X, 0, 0), digits.X)


# check 17: five splits, the black box as in the chapter
def test_a_biased_box_is_corrected_from_fifty_stones(diamonds):
    runs = [diamonds_study(diamonds.X, diamonds.y, diamonds.clarity, seed=s, n_grid=[50], methods=["scratch", "residual", "safe"])
            for s in range(5)]
    mse = {name: np.mean([run["mse"][name][0] for run in runs]) for name in runs[0]["mse"]}
    assert mse["safe"] < mse["f0"] / 3 and mse["safe"] < mse["scratch"]
    assert all(run["adopted"] == [1.0] for run in runs)


# check 17
def test_a_good_box_is_not_spoilt(diamonds):
    runs = [diamonds_study(diamonds.X, diamonds.y, diamonds.clarity, seed=s, box="good", n_grid=[20, 50, 150, 500],
                           methods=["residual", "safe", "weighted"]) for s in range(5)]
    mse = {name: np.mean([run["mse"][name] for run in runs], axis=0) for name in runs[0]["mse"]}
    assert (mse["safe"] <= 1.10 * mse["f0"]).all()
    assert mse["residual"][:3].mean() > mse["f0"][0]  # negative transfer of the correction that is always on
    assert mse["safe"][:3].mean() < mse["residual"][:3].mean()


# check 18
def test_a_good_classifier_is_not_spoilt(digits):
    runs = [digits_study(digits.X, digits.y, seed=s, n_grid=[20, 50, 100]) for s in range(5)]
    accuracy = {name: np.mean([run["accuracy"][name] for run in runs], axis=0) for name in runs[0]["accuracy"]}
    assert (accuracy["safe"] >= accuracy["residual"]).all()
    shifted = [digits_study(digits.X, digits.y, seed=s, X_box=shift_images(digits.X, 1, 0), n_grid=[50]) for s in range(3)]
    for run in shifted:
        assert run["accuracy"]["safe"][0] > run["accuracy"]["f0"][0] + 0.2 and run["adopted"] == [1.0]


def test_synthetic_table_has_both_regimes():
    runs = [synthetic_study(seed=s, n_grid=[200], delta_grid=[0.0, 1.0]) for s in range(5)]
    mse = {name: np.mean([run["mse"][name][0] for run in runs], axis=0) for name in runs[0]["mse"]}
    assert mse["f0"][0] == 0 and mse["f0"][1] == pytest.approx(1.0, rel=0.1)  # ||delta shape||^2 over 2,000 points
    assert mse["safe"][0] < mse["residual"][0] and mse["safe"][1] < 0.1 * mse["f0"][1]
    assert mse["scratch"][0] == mse["scratch"][1]  # SCRATCH cannot see delta


def test_studies_repeat(diamonds):
    one, two = (diamonds_study(diamonds.X, diamonds.y, diamonds.clarity, seed=3, n_grid=[30]) for _ in range(2))
    assert one == two
