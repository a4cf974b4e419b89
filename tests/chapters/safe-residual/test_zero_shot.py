"""The few-label study: limits whose answer is known, a second route for its parts, and bad input."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paperbook.papers.safe_residual import heads, zero_shot
from paperbook.papers.safe_residual.config_classifiers import ClassifierConfig
from paperbook.papers.safe_residual.validation import stratified_split
from paperbook.papers.safe_residual.zero_shot import METHODS, classifiers_run, few_label_study, losses, stratified_order
from paperbook.study.checkpoints import Checkpoints
from paperbook.study.params import ParameterError, configure
from paperbook.study.seeds import rng

Arrays = tuple[np.ndarray, ...]


def blobs(quality: float, n: int = 600, n_test: int = 400, classes: int = 4, d: int = 12) -> Arrays:
    """Gaussian classes; the black box is right with probability `quality`, independently of the features."""
    rng = np.random.default_rng(5)
    centres = rng.normal(0, 1.2, (classes, d))
    parts: list[np.ndarray] = []
    for rows in (n, n_test):
        y = rng.integers(0, classes, rows)
        x = centres[y] + rng.normal(0, 1, (rows, d))
        says = np.where(rng.random(rows) < quality, y, rng.integers(0, classes, rows))
        parts += [x, 2.0 * np.eye(classes)[says], y]
    return tuple(parts)


def study(data: Arrays, **changes: Any) -> dict[str, Any]:
    return few_label_study(*data, **{"n_grid": [40, 400], "seed": 0, "epochs": 60, "lr": 0.02, "batch_size": 64, **changes})


def test_a_perfect_black_box_is_never_given_up() -> None:
    found = study(blobs(1.0))
    assert found["accuracy"]["f0"] == [1.0, 1.0] == found["accuracy"]["safe"]
    assert found["adopted"] == [0, 0], "no correction is strictly better than no error, so the tie keeps f_0"


def test_a_useless_black_box_is_corrected_given_labels() -> None:
    found = study(blobs(0.0))
    accuracy = found["accuracy"]
    assert accuracy["f0"][1] < 0.35 and found["adopted"][1] == 1
    assert accuracy["safe"][1] == accuracy["residual"][1] > accuracy["f0"][1] + 0.3
    assert accuracy["scratch"][1] > 0.85


def test_zero_logits_make_residual_and_scratch_the_same_head() -> None:
    x, z, y, xt, zt, yt = blobs(0.5)
    found = study((x, np.zeros_like(z), y, xt, np.zeros_like(zt), yt))
    assert found["accuracy"]["scratch"] == found["accuracy"]["residual"] and found["nll"]["scratch"] == found["nll"]["residual"]


def test_scratch_never_sees_the_black_box_and_residual_starts_from_it() -> None:
    x, z, y, xt, zt, yt = blobs(0.8)
    first, other = study((x, z, y, xt, zt, yt)), study((x, -z, y, xt, -zt, yt))
    assert first["nll"]["scratch"] == other["nll"]["scratch"] and first["nll"]["residual"] != other["nll"]["residual"]
    still = study((x, z, y, xt, zt, yt), lr=1e-12)  # a head that cannot move: f_0, and a guess of class 0
    assert still["accuracy"]["residual"] == still["accuracy"]["f0"]
    np.testing.assert_allclose(still["nll"]["scratch"], np.log(4), rtol=1e-6)  # float32


def test_the_rule_is_the_strict_one_with_a_margin() -> None:
    data = blobs(0.7)
    for tau in (0.0, 1.0, 1e6):
        found = study(data, tau=tau)
        for i in range(2):
            assert found["adopted"][i] == (found["gain"][i] > tau * found["gain_se"][i])
            assert found["accuracy"]["safe"][i] == found["accuracy"]["residual" if found["adopted"][i] else "f0"][i]
    assert found["adopted"] == [0, 0]


def test_selection_by_nll_is_what_the_other_rule_reported() -> None:
    data = blobs(0.7)
    by_accuracy, by_nll = study(data), study(data, selection="nll")
    assert by_nll["adopted"] == by_accuracy["adopted_other"] and by_nll["accuracy"]["safe"] == by_accuracy["safe_other"]
    assert by_nll["safe_other"] == by_accuracy["accuracy"]["safe"]


def test_features_may_have_any_origin_and_scale() -> None:
    """Heads see centred features of unit length: another origin and unit change nothing beyond float32 rounding."""
    x, z, y, xt, zt, yt = blobs(0.6)
    plain, moved = study((x, z, y, xt, zt, yt)), study((300 * x + 40, z, y, 300 * xt + 40, zt, yt))
    np.testing.assert_allclose(plain["nll"]["residual"], moved["nll"]["residual"], rtol=1e-3)


def test_seeds_repeat_and_test_rows_do_not_leak() -> None:
    x, z, y, xt, zt, yt = blobs(0.6)
    options = {"selection": "nll", "epochs": 20, "lr": 0.01}  # the gain in nats moves with the smallest change of a head
    first = study((x, z, y, xt, zt, yt), **options)
    assert study((x, z, y, xt, zt, yt), **options) == first != study((x, z, y, xt, zt, yt), seed=1, **options)
    few = study((x, z, y, xt[:50], zt[:50], yt[:50]), **options)  # another test set: the same heads, the same decisions
    for key in ("adopted", "gain", "gain_se", "best_epoch"):
        assert few[key] == first[key]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `train_head` was given and what it found, call by call: scratch and residual for each n."""
    seen: list[dict[str, Any]] = []
    real = heads.train_head

    def spy(head: Any, train: Any, validation: Any, **options: Any) -> Any:
        result = real(head, train, validation, **options)
        seen.append({"train": train, "validation": validation, "result": result})
        return result

    monkeypatch.setattr(heads, "train_head", spy)
    return seen


def test_heads_train_on_the_training_rows_and_stop_on_the_validation_rows(calls: list[dict[str, Any]]) -> None:
    x, z, y, *test = blobs(0.5)
    z = np.random.default_rng(0).normal(size=z.shape)  # so that base logits tell the rows apart
    study((x, z, y, *test), seed=4, epochs=2)
    order = stratified_order(y, rng(4, "few labels", "subset"))
    for i, n in enumerate((40, 400)):
        rows = order[:n]
        split = stratified_split(y[rows], 0.2, int(rng(4, "few labels", "split", n).integers(2**31)))
        for part, chosen in (("train", split.train), ("validation", split.validation)):
            scratch, residual = (calls[2 * i + j][part] for j in range(2))
            np.testing.assert_array_equal(residual.base_logits.numpy(), z[rows][chosen].astype(np.float32))
            assert np.array_equal(residual.targets, y[rows][chosen]) and np.array_equal(scratch.targets, residual.targets)
            assert np.array_equal(scratch.features, residual.features) and not scratch.base_logits.any()


def test_patience_ends_the_training(calls: list[dict[str, Any]]) -> None:
    x, z, y, xt, zt, yt = blobs(1.0)
    for patience in (1, 3):
        calls.clear()
        study((x, 40 * z, y, xt, 40 * zt, yt), n_grid=[400], patience=patience)  # nothing to improve: f_0 has log-loss 0
        residual = calls[1]["result"]
        assert residual.stopped_early and residual.best_step == 0 and len(residual.steps) == 1 + patience


def test_features_are_scaled_by_the_training_rows_alone() -> None:
    random = np.random.default_rng(0)
    x, x_test, fit = (random.normal(3, 2, (30, 4)).astype(np.float32), random.normal(3, 2, (9, 4)).astype(np.float32),
                      np.sort(random.permutation(30)[:20]))
    held = np.setdiff1d(np.arange(30), fit)
    one, one_test = zero_shot._rescaled(x, x_test, fit)
    moved = x.copy()
    moved[held] = 7 * moved[held] + 100
    two, two_test = zero_shot._rescaled(moved, x_test, fit)
    assert one[fit].tobytes() == two[fit].tobytes() and one_test.tobytes() == two_test.tobytes()
    assert not np.array_equal(one[held], two[held])
    # float32 means of 20 rows
    np.testing.assert_allclose(one[fit].mean(axis=0), 0, atol=1e-6)
    assert np.mean(np.sum(one[fit] ** 2, axis=1)) == pytest.approx(1, rel=1e-5)


def test_classes_of_one_size_take_turns() -> None:
    """Keys of a class are evenly spaced, shifted as a whole: equal classes alternate strictly, so any window holds them in
    proportion within one row, not only a prefix."""
    for k in (2, 5):
        y = np.random.default_rng(0).permutation(np.repeat(np.arange(k), 40))
        for seed in range(50):
            turns = y[stratified_order(y, np.random.default_rng(seed))].reshape(40, k)
            assert (turns == turns[0]).all() and len(set(turns[0])) == k


def test_prefixes_of_the_order_are_stratified_and_nested() -> None:
    y = np.repeat([0, 1, 2], [300, 150, 50])
    order = stratified_order(y, np.random.default_rng(0))
    assert np.array_equal(np.sort(order), np.arange(500))
    for n in (10, 37, 100, 400):
        counts = np.bincount(y[order[:n]], minlength=3)
        # each class's keys are evenly spaced by 1/n_c, so a common threshold splits them within one row; the threshold itself
        # moves by the rounding of the others, hence two
        assert np.all(np.abs(counts - n * np.array([0.6, 0.3, 0.1])) <= 2)


def test_losses_against_brute_force() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(0, 3, (20, 5)), rng.integers(0, 5, 20)
    by_hand = [-np.log(np.exp(z[i, y[i]]) / sum(np.exp(v) for v in z[i])) for i in range(20)]
    np.testing.assert_allclose(losses(z, y, "nll"), by_hand, rtol=1e-12)  # double precision, some ten operations
    assert losses(z, y, "accuracy").tolist() == [float(max(range(5), key=lambda c: z[i, c]) != y[i]) for i in range(20)]


def test_every_list_is_complete() -> None:
    found = study(blobs(0.5), n_grid=[40, 100, 400])
    assert found["n"] == [40, 100, 400] and found["n_val"] == [8, 20, 80] and found["n_train"] == [32, 80, 320]
    assert set(found["accuracy"]) == set(found["nll"]) == set(METHODS)
    assert all(len(v) == 3 for v in (*found["accuracy"].values(), *found["nll"].values()))


@pytest.mark.parametrize(("place", "value", "message"), [
    (0, lambda a: a[:, 0], "features: expected 2 dimension(s), got shape (600,)"),
    (0, lambda a: np.where(a > 2, np.nan, a), "features: expected finite numbers"),
    (1, lambda a: a[:10], "labels: expected shape (600,) and as many rows of base_logits, got (600,) and 10"),
    (2, lambda a: a + 1, "labels: expected 0..3"),
    (2, lambda a: a[:5], "labels: expected shape (600,)"),
    (3, lambda a: a[:, :5], "test_features, test_base_logits: expected widths 12 and 4"),
    (4, lambda a: a * np.inf, "test_base_logits: expected finite numbers"),
])
def test_bad_arrays_are_refused(place: int, value: Any, message: str) -> None:
    data = list(blobs(0.5))
    with np.errstate(invalid="ignore"):
        data[place] = value(data[place])
    with pytest.raises(ValueError, match=re.escape(message)):
        study(tuple(data))


def test_labels_of_another_type_are_refused() -> None:
    x, z, y, *test = blobs(0.5)
    with pytest.raises(TypeError, match="labels: expected integers, got dtype float64"):
        study((x, z, y.astype(float), *test))


@pytest.mark.parametrize(("options", "message"), [
    ({"n_grid": [40, 601]}, "n_grid: expected an integer in"),
    ({"n_grid": []}, "n_grid: expected increasing"),
    ({"n_grid": [40, 40]}, "n_grid: expected increasing"),
    ({"val_fraction": 1.0}, "val_fraction: expected a finite number in"),
    ({"n_grid": [4]}, "expected at least 2"),
    ({"tau": -1.0}, "tau: expected a finite number in"),
    ({"selection": "f1"}, "selection: expected one of"),
    ({"epochs": 0}, "epochs: expected an integer in"),
    ({"batch_size": 0}, "batch_size: expected an integer in"),
    ({"lr": 0.0}, "lr: expected a finite number in"),
    ({"device": "tpu"}, "device: expected auto"),
])
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        study(blobs(0.5), **options)


def test_the_smoke_parameters_run_the_digits() -> None:
    found = classifiers_run(ClassifierConfig(n_grid=[20, 100]))
    assert set(found) == {"good", "shifted", "claims"} and found["good"]["n"] == [20, 100]
    gaps = [found["good"]["accuracy"]["safe"][i] - found["good"]["accuracy"]["residual"][i] for i in range(2)]
    assert found["claims"]["good_safe_minus_residual_few"] == pytest.approx(sum(gaps) / 2)
    assert found["shifted"]["accuracy"]["f0"][0] < 0.6 < 0.9 < found["good"]["accuracy"]["f0"][0]


@pytest.mark.parametrize(("values", "message"), [
    ({"backbone": "clip"}, "backbone: dataset='digits' expects 'pixels', got 'clip'"),
    ({"dataset": "cifar100"}, "backbone: dataset='cifar100' expects 'clip', got 'pixels'"),
    ({"dataset": "cifar100", "backbone": "clip"}, "dataset_id: dataset='cifar100' expects a hub id or a local folder"),
    ({"dataset": "ag_news", "backbone": "causal-lm", "dataset_id": "a/b", "backbone_id": "c/d", "prompt": "Topic of {text}:"},
     "prompt: expected a template with {classes}"),
    ({"n_grid": [100, 20]}, "n_grid: expected increasing numbers"),
    ({"n_grid": [4]}, "n_grid.0: Input should be greater than or equal to 8"),
    ({"max_train": 10}, "max_train: expected 0 or at least max(n_grid) = 700, got 10"),
    ({"calibrate": True}, "calibrate: expected false for backbone='pixels'"),
    ({"val_fraction": 1.0}, "val_fraction: Input should be less than 1"),
    ({"backbon": "clip"}, "backbon: no such parameter; did you mean backbone"),
    ({"lr": "fast"}, "lr: Input should be a valid number"),
])
def test_bad_parameters_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(message)):
        configure(ClassifierConfig, values)


# --- progress and checkpoints ---------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process."""


def test_progress_counts_every_head() -> None:
    told: list[tuple[int, int, str]] = []
    silent = study(blobs(0.7), epochs=2)
    assert study(blobs(0.7), epochs=2, progress=lambda *now: told.append(now)) == silent
    assert told == [(done, 4, "heads") for done in range(5)]


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_study_killed_between_heads_or_in_one_ends_with_the_same_numbers(after: int, tmp_path: Path) -> None:
    """Killed when a head is done, and again at the first save of the next one; the third attempt finishes."""
    data, attempts = blobs(0.7), 0

    def checkpoints(name: str) -> Checkpoints:
        return Checkpoints(tmp_path, {"config": "a"}, every_seconds=0).child(name)

    def stop_after(done: int, total: int, what: str) -> None:
        if done == after:
            raise Killed

    whole = study(data, epochs=12)
    with pytest.raises(Killed):
        study(data, epochs=12, progress=stop_after, checkpoints=checkpoints)
    order = ["scratch-n40", "residual-n40", "scratch-n400", "residual-n400"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(order[:after]), "finished heads, one folder each"

    class Dies(Checkpoints):
        def save(self, step: int, **parts: Any) -> Path:
            super().save(step, **parts)
            raise Killed

    def dying(name: str) -> Checkpoints:
        nonlocal attempts
        attempts += 1
        return Dies(tmp_path / name, {"config": "a", "part": name}, every_seconds=0)

    if after < 4:
        with pytest.raises(Killed):
            study(data, epochs=12, checkpoints=dying)
        assert attempts == after + 1, "finished heads are read, the next one is begun"
    assert study(data, epochs=12, checkpoints=checkpoints) == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(order)


def test_a_finished_study_takes_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    data = blobs(0.7)

    def checkpoints(name: str) -> Checkpoints:
        return Checkpoints(tmp_path, {"config": "a"}).child(name)

    first = study(data, epochs=3, checkpoints=checkpoints)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a finished head must not be trained again")

    monkeypatch.setattr(torch.optim.AdamW, "step", refuse)
    assert study(data, epochs=3, checkpoints=checkpoints) == first
    with pytest.raises(AssertionError, match="must not be trained"):
        study(data, epochs=3)
