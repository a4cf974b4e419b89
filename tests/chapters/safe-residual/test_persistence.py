"""Saved and loaded estimators predict bitwise the same; damaged folders and foreign learners are refused with the reason."""

import json
import sys

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, Ridge

from paperbook.papers.safe_residual import persistence
from paperbook.papers.safe_residual.classifier import ResidualClassifier, SafeResidualClassifier, ScratchClassifier
from paperbook.papers.safe_residual.estimators import (
    ConcatRegressor,
    ResidualRegressor,
    SafeResidualRegressor,
    ScratchRegressor,
    WeightedCombiner,
)
from paperbook.papers.safe_residual.kernel import KernelResidual
from paperbook.papers.safe_residual.persistence import load, save
from paperbook.papers.safe_residual.piecewise import PiecewisePolynomialRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(size=(80, 2))
Y = np.sin(5 * X[:, 0]) + 0.1 * RNG.normal(size=80)
Z = RNG.uniform(size=(33, 2))
LABELS = np.array(["a", "b", "c"])[(3 * X[:, 0]).astype(int)]


def box(values):
    return values[:, 0]


def same(one, two):
    assert type(one) is type(two)
    for name in ("predict", "decision_function"):
        if hasattr(one, name):
            assert getattr(one, name)(Z).tobytes() == getattr(two, name)(Z).tobytes()
    assert vars(one).keys() == vars(two).keys()


@pytest.mark.parametrize("estimator", [
    KernelResidual(alphas=[0.1, np.inf]), PiecewisePolynomialRegressor(order=2, n_cells=3),
    SafeResidualRegressor(random_state=0), SafeResidualRegressor(selection="path", clip=0.1, refit=True, random_state=0),
    SafeResidualRegressor(residual_estimator=PiecewisePolynomialRegressor(), random_state=0),
    SafeResidualRegressor(residual_estimator=KernelResidual(kernel="matern32", gamma=np.float32(2)), val_fraction=0.5),
    ResidualRegressor(), ScratchRegressor(), ConcatRegressor(), WeightedCombiner(),
    SafeResidualClassifier(), ResidualClassifier(), ScratchClassifier()], ids=lambda e: type(e).__name__)
def test_round_trip_is_bitwise(estimator, tmp_path):
    target = LABELS if "Classifier" in type(estimator).__name__ else Y
    fitted = estimator.fit(X, target)
    back = load(save(fitted, tmp_path / "model"))
    same(fitted, back)
    assert repr(back) == repr(fitted)
    assert getattr(back, "report_", None) == getattr(fitted, "report_", None)
    back.fit(X, target)  # it is a whole estimator, not only its predictions


def test_the_black_box_comes_back_from_the_caller(tmp_path):
    fitted = SafeResidualRegressor(box, random_state=0).fit(X, Y)
    save(fitted, tmp_path)
    same(fitted, load(tmp_path, black_box=box))
    message = r"black_box: expected the one the estimator had when saved \(builtins.function\), got None"
    with pytest.raises(ValueError, match=message):
        load(tmp_path)
    save(SafeResidualRegressor(random_state=0).fit(X, Y), tmp_path)
    with pytest.raises(ValueError, match=r"black_box: the saved estimator had none, expected None, got builtins.function"):
        load(tmp_path, black_box=box)


def test_frames_keep_their_column_names(tmp_path):
    import pandas as pd

    fitted = SafeResidualRegressor(random_state=0).fit(pd.DataFrame(X, columns=["u", "v"]), Y)
    back = load(save(fitted, tmp_path))
    assert back.feature_names_in_.tolist() == ["u", "v"]
    frame = pd.DataFrame(Z, columns=["u", "v"])
    assert back.predict(frame).tobytes() == fitted.predict(frame).tobytes()


def test_foreign_learners_are_refused_by_name_and_nothing_is_written(tmp_path):
    with pytest.raises(TypeError, match=r"estimator.residual_estimator: .* got sklearn.linear_model._ridge.Ridge"):
        save(SafeResidualRegressor(residual_estimator=Ridge()).fit(X, Y), tmp_path / "a")
    with pytest.raises(TypeError, match=r"estimator: expected one of .*, got sklearn.linear_model._base.LinearRegression"):
        save(LinearRegression().fit(X, Y), tmp_path / "a")
    with pytest.raises(TypeError, match="random_state: expected an integer seed or None"):
        save(SafeResidualRegressor(random_state=np.random.RandomState(0)).fit(X, Y), tmp_path / "a")
    with pytest.raises(NotFittedError):
        save(SafeResidualRegressor(), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_no_pickle_anywhere(tmp_path):
    save(SafeResidualRegressor().fit(X, Y), tmp_path)
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json", ".safetensors"]
    assert all(not p.read_bytes().startswith(b"\x80") for p in tmp_path.iterdir())


def damage_arrays(folder):
    path = next(folder.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-8])


def flip_a_bit(folder):
    path = next(folder.glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def edit(**change):
    def apply(folder):
        path = folder / "estimator.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    return apply


def rehashed(**change):
    """An edit by someone who computes the hash anew."""
    def apply(folder):
        path = folder / "estimator.json"
        config = json.loads(path.read_text()) | change
        del config["digest"]
        path.write_text(json.dumps({**config, "digest": persistence._digest(config)}))
    return apply


def deep(folder):
    path = folder / "estimator.json"
    path.write_text('{"format": "paperbook.safe_residual", "version": 2, "estimator": ' + "[" * 10**5 + "]" * 10**5 + "}")


def cut_json(folder):
    path = folder / "estimator.json"
    path.write_text(path.read_text()[:200])


@pytest.mark.parametrize("damage, message", [
    (damage_arrays, "expected sha256 .* truncated or changed"), (flip_a_bit, "expected sha256 .* truncated or changed"),
    (cut_json, "expected JSON, got a truncated or changed file"), (edit(version=1), "expected version 2, got 1"),
    (edit(format="other"), "expected format 'paperbook.safe_residual', got 'other'"),
    (rehashed(arrays="../secret.safetensors"), "expected an array file beside it, got '../secret.safetensors'"),
    (rehashed(arrays="gone.safetensors"), "expected an array file beside it, got 'gone.safetensors'"),
    (rehashed(estimator={"class": "Popen", "state": {}}),
     r"expected a complete estimator, got a changed file \(KeyError: 'Popen'\)"),
    (rehashed(estimator={"class": "KernelResidual", "black_box": None, "state": {"fit": 1}}), "expected a complete estimator"),
    (rehashed(estimator=7), "expected a complete estimator"),
    (edit(estimator=7), "expected digest .* changed since it was saved"), (edit(digest=None), "expected digest None"),
    (edit(arrays="gone.safetensors"), "expected digest .* changed since it was saved"),
    (edit(note="new"), "expected digest .* changed since it was saved"), (deep, "expected JSON, .* recursion"),
])
def test_damaged_folders(damage, message, tmp_path):
    save(SafeResidualRegressor().fit(X, Y), tmp_path)
    damage(tmp_path)
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def changed_state(folder, change, *, rehash=False):
    path = folder / "estimator.json"
    config = json.loads(path.read_text())
    change(config["estimator"]["state"])
    (rehashed if rehash else edit)(estimator=config["estimator"])(folder)


def test_a_changed_decision_is_noticed(tmp_path):
    fitted = SafeResidualRegressor(random_state=0).fit(X, Y)
    save(fitted, tmp_path)
    changed_state(tmp_path, lambda state: state.update(used_correction_=not state["used_correction_"]))
    with pytest.raises(ValueError, match="expected digest .* changed since it was saved"):
        load(tmp_path)


@pytest.mark.parametrize("estimator", [
    KernelResidual(), PiecewisePolynomialRegressor(), SafeResidualRegressor(), ResidualRegressor(), ScratchRegressor(),
    ConcatRegressor(), WeightedCombiner(), SafeResidualClassifier(), ResidualClassifier(), ScratchClassifier()],
    ids=lambda e: type(e).__name__)
def test_a_missing_field_is_named(estimator, tmp_path):
    """Every field of the list is one a fit makes; without it nothing is loaded, instead of an AttributeError at predict."""
    fitted = estimator.fit(X, LABELS if "Classifier" in type(estimator).__name__ else Y)
    required = persistence._required(type(estimator))
    assert set(required) <= set(vars(fitted)) and len(required) == len(set(required))
    for name in required:
        save(fitted, tmp_path)
        changed_state(tmp_path, lambda state, name=name: state.pop(name), rehash=True)
        with pytest.raises(ValueError, match=rf"expected a complete estimator.*{type(fitted).__name__} without {name}"):
            load(tmp_path)


@pytest.mark.parametrize("estimator", [SafeResidualRegressor(), WeightedCombiner(), ScratchClassifier()],
                         ids=lambda e: type(e).__name__)
def test_what_is_not_required_is_not_needed(estimator, tmp_path):
    """With the listed fields alone an estimator loads and predicts the same: the list is complete."""
    fitted = estimator.fit(X, LABELS if "Classifier" in type(estimator).__name__ else Y)
    save(fitted, tmp_path)
    required = set(persistence._required(type(estimator)))
    changed_state(tmp_path, lambda state: [state.pop(name) for name in set(state) - required], rehash=True)
    assert load(tmp_path).predict(Z).tobytes() == fitted.predict(Z).tobytes()


def test_a_tree_too_deep_is_refused(tmp_path):
    """Whichever of reading, hashing and unpacking runs out of stack first: it loads, or a ValueError says why not."""
    save(KernelResidual().fit(X, Y), tmp_path)
    limit, outcomes = sys.getrecursionlimit(), []
    for depth in (10, *range(300, limit // 2 + 2)):
        tree = 1
        for _ in range(depth):
            tree = {"list": [tree]}
        sys.setrecursionlimit(limit + 2000)  # writing it needs room
        try:
            changed_state(tmp_path, lambda state, tree=tree: state.update(extra_=tree), rehash=True)
        finally:
            sys.setrecursionlimit(limit)
        try:
            load(tmp_path)
            outcomes.append("loaded")
        except ValueError as error:
            assert "changed file" in str(error)
            outcomes.append("refused")
        save(KernelResidual().fit(X, Y), tmp_path)
    assert outcomes[0] == "loaded" and outcomes[-1] == "refused"


@pytest.mark.parametrize("step", ["_digest", "_unpack"])
def test_running_out_of_stack_is_a_changed_file(step, tmp_path, monkeypatch):
    """Reading runs out first on this interpreter; the two later steps must not depend on that."""
    save(KernelResidual().fit(X, Y), tmp_path)

    def too_deep(*arguments):
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(persistence, step, too_deep)
    with pytest.raises(ValueError, match="got a changed file .*maximum recursion depth exceeded"):
        load(tmp_path)


def test_an_empty_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match="folder: expected estimator.json"):
        load(tmp_path)


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_crash_while_saving_leaves_the_earlier_save(fails_at, tmp_path, monkeypatch):
    first = KernelResidual().fit(X, Y)
    save(first, tmp_path)
    calls = []
    real = persistence.os.replace

    def crash(source, target):
        calls.append(target)
        if len(calls) == fails_at:
            raise OSError("disk full")
        real(source, target)

    monkeypatch.setattr(persistence.os, "replace", crash)
    with pytest.raises(OSError, match="disk full"):
        save(KernelResidual().fit(X, Y + 1), tmp_path)
    same(first, load(tmp_path))
    assert not list(tmp_path.glob(".writing-*"))


def test_saving_again_replaces_and_tidies(tmp_path):
    save(KernelResidual().fit(X, Y), tmp_path)
    second = KernelResidual().fit(X, Y + 1)
    save(second, tmp_path)
    same(second, load(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
