"""KernelResidual against other routes to the same numbers: scikit-learn's KernelRidge, brute-force refits, distances by hand."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import Matern
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from paperbook.papers.safe_residual import kernel as module
from paperbook.papers.safe_residual.kernel import KERNELS, KernelResidual, median_gamma

ALPHAS = [1e-3, 0.1, 1.0, 10.0]
SOLVE = 1e-9  # condition number of K + 1e-3 I is below 1e5, times epsilon 2e-16, times a generous 40


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=40), rng.normal(size=(15, 3))


def by_hand(name, A, B, gamma):
    if name == "laplacian":
        return laplacian_kernel(A, B, gamma=gamma)
    if name == "rbf":
        return rbf_kernel(A, B, gamma=gamma)
    nu = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}[name]
    return Matern(length_scale=1 / gamma, nu=nu)(A, B)


@pytest.mark.parametrize("name", KERNELS)
def test_path_equals_one_kernel_ridge_a_penalty(data, name):
    X, y, Z = data
    ours = KernelResidual(name, gamma=0.7, alphas=ALPHAS, scale=False).fit(X, y)
    path = ours.path(Z)
    for column, alpha in enumerate(ALPHAS):
        peer = KernelRidge(alpha=alpha, kernel="precomputed").fit(by_hand(name, X, X, 0.7), y)
        np.testing.assert_allclose(path[:, column], peer.predict(by_hand(name, Z, X, 0.7)), atol=SOLVE)


def test_leave_one_out_equals_refits(data):
    X, y, _ = data
    ours = KernelResidual(gamma=0.5, alphas=[*ALPHAS, np.inf], scale=False).fit(X, y)
    brute = np.zeros(5)
    for i in range(len(X)):
        rest = np.arange(len(X)) != i
        fit = KernelResidual(gamma=0.5, alphas=[*ALPHAS, np.inf], scale=False).fit(X[rest], y[rest])
        brute += (y[i] - fit.path(X[[i]])[0]) ** 2 / len(X)
    np.testing.assert_allclose(ours.scores_, brute, rtol=1e-8)  # quotient of two sums of 40 terms at condition 1e5
    assert ours.alpha_ == [*ALPHAS, np.inf][int(np.argmin(brute))]


def test_a_validation_part_chooses_the_penalty(data):
    X, y, Z = data
    target = np.sin(Z[:, 0])
    ours = KernelResidual(alphas=ALPHAS).fit(X, y, Z, target)
    losses = [np.mean((KernelResidual(alphas=[a]).fit(X, y).predict(Z) - target) ** 2) for a in ALPHAS]
    assert ours.alpha_ == ALPHAS[int(np.argmin(losses))]
    np.testing.assert_allclose(ours.scores_, losses, rtol=1e-9)


def test_infinite_penalty_is_the_zero_model(data):
    X, y, Z = data
    path = KernelResidual(alphas=[1.0, 1e12]).fit(X, y).path(Z, include_zero=True)
    assert path.shape == (15, 3) and not path[:, 2].any()
    assert np.abs(path[:, 1]).max() < 1e-10  # |y| K / 1e12, K row sums below 40
    assert not KernelResidual(alphas=[np.inf]).fit(X, y).predict(Z).any()


def test_noise_alone_is_left_alone():
    rng = np.random.default_rng(1)
    X, y = rng.uniform(size=(200, 1)), rng.normal(size=200)
    assert KernelResidual(include_zero=True, alphas=[0.01, 0.1]).fit(X, y).alpha_ == np.inf


def test_ties_go_to_the_larger_penalty(data):
    X, _, _ = data
    assert KernelResidual(alphas=[10.0, 0.1, 1.0]).fit(X, np.zeros(40)).alpha_ == 10.0


def test_scaling_makes_units_irrelevant(data):
    X, y, Z = data
    factor, shift = np.array([1e3, 1e-2, 7.0]), np.array([5.0, -3.0, 0.0])
    one, two = KernelResidual().fit(X, y), KernelResidual().fit(X * factor + shift, y)
    np.testing.assert_allclose(one.predict(Z), two.predict(Z * factor + shift), atol=1e-8)
    assert abs(one.gamma_ - two.gamma_) < 1e-9


def test_a_constant_column_changes_nothing(data):
    X, y, Z = data
    wide = KernelResidual().fit(np.column_stack([X, np.full(40, 3.0)]), y)
    Z_wide = np.column_stack([Z, np.full(15, 3.0)])
    np.testing.assert_allclose(wide.predict(Z_wide), KernelResidual().fit(X, y).predict(Z), atol=SOLVE)


def test_median_distance_by_hand():
    X = np.array([[0.0, 0.0], [1.0, 2.0], [4.0, 0.0]])  # city-block distances 3, 4, 5; squared 5, 16, 13
    assert median_gamma("laplacian", X) == 1 / 4
    assert median_gamma("rbf", X) == pytest.approx(1 / 13)
    assert median_gamma("laplacian", np.zeros((3, 2))) == 1.0


def test_the_median_is_of_rows_from_everywhere():
    X = np.linspace(0.0, 1.0, 3000)[:, None]  # sorted: the first thousand rows lie within a third of the range
    # |x - x'| of uniform x has median 1 - 1/sqrt(2); a grid of 1,000 is good to 1e-3
    assert 1 / median_gamma("laplacian", X) == pytest.approx(1 - 2**-0.5, rel=5e-3)
    assert median_gamma("laplacian", X) == median_gamma("laplacian", X[::-1])


def test_scaling_divides_by_the_standard_deviation_of_the_rows(data):
    X, y, _ = data
    ours = KernelResidual().fit(X, y)
    np.testing.assert_array_equal(ours.width_, X.std(axis=0))
    np.testing.assert_allclose((ours.X_train_**2).mean(axis=0), 1.0, rtol=1e-12)


def test_far_from_the_data_it_is_silent(data):
    X, y, _ = data
    assert abs(KernelResidual().fit(X, y + 5).predict(np.full((1, 3), 1e4))[0]) < 1e-300


def test_chunks_do_not_change_the_product(data, monkeypatch):
    X, y, Z = data
    ours = KernelResidual().fit(X, y)
    whole = ours.path(Z)
    monkeypatch.setattr(module, "CHUNK_BYTES", 8 * 40 * 4)  # four rows at a time
    np.testing.assert_allclose(ours.path(Z), whole, atol=1e-13)  # another BLAS call, 40 terms


def test_one_eigendecomposition_serves_the_grid(data, monkeypatch):
    calls = []
    real = module.eigh
    monkeypatch.setattr(module, "eigh", lambda *a, **k: calls.append(1) or real(*a, **k))
    X, y, Z = data
    KernelResidual(alphas=np.logspace(-4, 2, 50)).fit(X, y).path(Z)
    assert len(calls) == 1


def test_use_sets_the_column(data):
    X, y, Z = data
    ours = KernelResidual(alphas=ALPHAS).fit(X, y)
    np.testing.assert_allclose(ours.use(3).predict(Z), ours.path(Z)[:, 3], atol=1e-13)
    with pytest.raises(ValueError, match=r"index: expected 0\.\.3, got 4"):
        ours.use(4)


@pytest.mark.parametrize("parameters, error, message", [
    ({"kernel": "cosine"}, ValueError, "kernel: expected one of 'laplacian'.*got 'cosine'"),
    ({"gamma": 0.0}, ValueError, "gamma: expected a finite number in"),
    ({"gamma": "median"}, TypeError, "gamma: expected a real number, got str"),
    ({"alphas": []}, ValueError, "alphas: expected at least one penalty"),
    ({"alphas": [0.1, -1.0]}, ValueError, "alphas: expected finite numbers in"),
    ({"alphas": [np.nan]}, ValueError, "alphas: expected finite numbers in"),
    ({"alphas": ["a"]}, TypeError, "alphas: expected real numbers"),
])
def test_bad_parameters(data, parameters, error, message):
    X, y, _ = data
    with pytest.raises(error, match=message):
        KernelResidual(**parameters).fit(X, y)


def test_bad_data(data):
    X, y, Z = data
    with pytest.raises(ValueError, match="y: expected values whose losses are finite"):
        KernelResidual().fit(X, y * 1e200)
    with pytest.raises(ValueError, match="y_val: expected values whose losses are finite"):
        KernelResidual().fit(X, y, Z, np.full(15, 1e200))
    with pytest.raises(ValueError, match=r"y: .* got dates or durations of dtype datetime64\[D\]"):
        KernelResidual().fit(X, np.arange(40).astype("datetime64[D]"))
    with pytest.raises(NotFittedError):
        KernelResidual().path(Z)
    with pytest.raises(ValueError, match="X_val, y_val: expected both or none"):
        KernelResidual().fit(X, y, X_val=Z)
    with pytest.raises(ValueError, match=r"y_val: expected shape \(15,\), got \(3,\)"):
        KernelResidual().fit(X, y, Z, np.zeros(3))
    with pytest.raises(ValueError, match="expecting 3 features"):
        KernelResidual().fit(X, y).predict(Z[:, :2])
