"""Few labels on top of a frozen zero-shot classifier: f_0, a probe from scratch, the residual head and the safe one.

All methods see the same labelled examples, the same split, the same head, optimiser and budget; only the starting logits
differ (zero for the probe, z_0 for the residual head), and the safe method chooses between two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer
from numpy.typing import NDArray
from scipy.special import log_softmax

from paperbook.papers.safe_residual.config_classifiers import DEFAULT_PROMPTS, ClassifierConfig
from paperbook.papers.safe_residual.estimators import adopts, gain_and_error
from paperbook.papers.safe_residual.features import Cached, FeatureSpec, Progress, cache_features, load_cached
from paperbook.papers.safe_residual.validation import IntArray, stratified_split, validation_size
from paperbook.study import paths
from paperbook.study.arguments import array, choice, integer, number
from paperbook.study.checkpoints import Checkpoints
from paperbook.study.device import pick_device, pick_dtype
from paperbook.study.seeds import rng, torch_generator

Singles = NDArray[np.float32]
Report = Callable[[int, int, str], None]
"""Called with (units done, units in all, what they are), as :meth:`paperbook.study.results.Run.progress`."""
Keep = Callable[[str], Checkpoints]
"""Gives the checkpoints of one named part, as :meth:`paperbook.study.results.Run.checkpoints`."""
METHODS = ("f0", "scratch", "residual", "safe")
SELECTIONS = ("accuracy", "nll")


def stratified_order(labels: Integer[np.ndarray, " n"], generator: np.random.Generator) -> Integer[np.ndarray, " n"]:
    """An order of all rows whose every prefix holds the classes in proportion, within one row a class; so subsets are nested.

    Row number j of the n_c shuffled rows of class c gets the key (j + u_c)/n_c with u_c uniform; rows are sorted by key.
    """
    key = np.empty(len(labels))
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        key[rows] = (np.arange(len(rows)) + generator.uniform()) / len(rows)
    return np.argsort(key, kind="stable")


def losses(logits: Float[np.ndarray, "n classes"], labels: Integer[np.ndarray, " n"],
           selection: str) -> Float[np.ndarray, " n"]:
    """Loss of each row (n,): 0/1 for ``"accuracy"``, negative log-likelihood in nats for ``"nll"``; logits (n, classes)."""
    choice("selection", selection, SELECTIONS)
    if selection == "accuracy":
        return (logits.argmax(axis=1) != labels).astype(np.float64)
    return -log_softmax(np.asarray(logits, dtype=np.float64), axis=1)[np.arange(len(labels)), labels]


def few_label_study(features: Any, base_logits: Any, labels: Any, test_features: Any, test_base_logits: Any, test_labels: Any, *,
                    n_grid: Sequence[int], seed: int, val_fraction: float = 0.2, tau: float = 0.0, selection: str = "accuracy",
                    epochs: int = 100, lr: float = 1e-3, weight_decay: float = 1e-2, patience: int = 10, batch_size: int = 256,
                    device: str = "cpu", progress: Report | None = None, checkpoints: Keep | None = None) -> dict[str, Any]:
    """Accuracy of the four methods for every number of labels in `n_grid`, one seed (alg-1 for classes).

    For each n: the first n rows of one stratified order (nested subsets), a stratified split, a linear head trained by AdamW
    from zero on z_0 (residual) and on zero logits (scratch), the best epoch of each by validation log-loss, epoch 0 included;
    safe takes the residual head iff its validation gain over f_0 exceeds `tau` standard errors, ties keep f_0.

    Args:
        features, base_logits, labels: the pool: (N, d) and (N, k) finite numbers, (N,) integers in 0..k-1.
        test_features, test_base_logits, test_labels: the same for the test set, touched once per method and n.
        n_grid: numbers of labelled examples, increasing, at most N.
        seed: fixes subset, split and batches; the same for all methods.
        val_fraction: share of the n kept for selection, in (0, 1), at least two rows.
        tau, selection: margin in standard errors; ``"accuracy"`` or ``"nll"``. The other one's decision is reported too.
        epochs, lr, weight_decay, patience, batch_size: budget of one head; patience counts epochs.
        device: where the heads train.
        progress: called before the first head and after each.
        checkpoints: where each head keeps its own, under ``<method>-n<n>``; a killed study goes on with the same bits.

    Returns:
        ``n``, ``n_train``, ``n_val`` (lists over n_grid); ``accuracy`` and ``nll`` (test; one list a method); ``safe_other``
        (test accuracy had the other loss selected); ``adopted``, ``adopted_other``, ``gain``, ``gain_se``; ``best_epoch``
        of the residual head (0 is f_0 itself).

    Raises:
        ValueError, TypeError: naming the argument, what came and what was expected, before any head is trained.
    """
    from paperbook.papers.safe_residual.heads import HeadData, ZeroInitHead, train_head

    x, z, y = _checked("", features, base_logits, labels)
    x_test, z_test, y_test = _checked("test_", test_features, test_base_logits, test_labels)
    if (x.shape[1], z.shape[1]) != (x_test.shape[1], z_test.shape[1]):
        raise ValueError(f"test_features, test_base_logits: expected widths {x.shape[1]} and {z.shape[1]} as in the pool, "
                         f"got {x_test.shape[1]} and {z_test.shape[1]}")
    sizes = [integer("n_grid", n, 2, len(y)) for n in n_grid]
    if not sizes or sizes != sorted(set(sizes)):
        raise ValueError(f"n_grid: expected increasing numbers without repetition, got {list(n_grid)}")
    for n in sizes:
        validation_size(n, val_fraction)
    number("tau", tau, 0.0)
    choice("selection", selection, SELECTIONS)
    integer("epochs", epochs, 1)
    integer("batch_size", batch_size, 1)
    where = pick_device(device)
    other = SELECTIONS[1 - SELECTIONS.index(selection)]
    order = stratified_order(y, rng(seed, "few labels", "subset"))

    out: dict[str, Any] = {name: [] for name in ("n", "n_train", "n_val", "safe_other", "adopted", "adopted_other", "gain",
                                                 "gain_se", "best_epoch")}
    out["accuracy"], out["nll"] = ({method: [] for method in METHODS} for _ in range(2))
    heads_done = 0
    if progress is not None:
        progress(0, 2 * len(sizes), "heads")
    for n in sizes:
        rows = order[:n]
        start, target = z[rows], y[rows]
        split = stratified_split(target, val_fraction, int(rng(seed, "few labels", "split", n).integers(2**31)))
        fit, held = split
        scaled, scaled_test = _rescaled(x[rows], x_test, fit)
        per_epoch = math.ceil(len(fit) / batch_size)
        val_logits, test_logits, best = {"f0": start[held]}, {"f0": z_test}, 0
        for method, base, base_test in (("scratch", np.zeros_like(start), np.zeros_like(z_test)), ("residual", start, z_test)):
            train, held_out = (HeadData(*_tensors(scaled[part], base[part], target[part])) for part in (fit, held))
            result = train_head(ZeroInitHead(x.shape[1], z.shape[1]), train, held_out, optimiser="adamw", lr=lr,
                                weight_decay=weight_decay, steps=epochs * per_epoch, batch_size=batch_size,
                                check_every=per_epoch, patience=patience,
                                generator=torch_generator(seed, "few labels", "batches", n), device=where,
                                autocast=False,  # a linear head gains nothing from bfloat16
                                checkpoints=None if checkpoints is None else checkpoints(f"{method}-n{n}"))
            heads_done += 1
            if progress is not None:
                progress(heads_done, 2 * len(sizes), "heads")
            val_logits[method] = _logits(result.head, scaled[held], base[held], where)
            test_logits[method] = _logits(result.head, scaled_test, base_test, where)
            best = result.best_step // per_epoch
        chosen = {}
        for rule in (selection, other):
            before, after = (losses(val_logits[method], target[held], rule) for method in ("f0", "residual"))
            gain, se = gain_and_error(before - after)
            chosen[rule] = (adopts(gain, se, tau), gain, se)
        adopted, gain, se = chosen[selection]
        test_logits["safe"] = test_logits["residual" if adopted else "f0"]
        for method in METHODS:
            out["accuracy"][method].append(1 - float(losses(test_logits[method], y_test, "accuracy").mean()))
            out["nll"][method].append(float(losses(test_logits[method], y_test, "nll").mean()))
        adopted_other = chosen[other][0]
        found = {"n": n, "n_train": len(fit), "n_val": len(held), "adopted": int(adopted), "adopted_other": int(adopted_other),
                 "safe_other": out["accuracy"]["residual" if adopted_other else "f0"][-1], "gain": gain, "gain_se": se,
                 "best_epoch": best}
        for name, value in found.items():
            out[name].append(value)
    return out


def feature_specs(cfg: ClassifierConfig) -> dict[str, FeatureSpec]:
    """What the full-scale study caches, by split ``"train"`` (the pool of labelled examples) and ``"test"``."""
    dtype = str(pick_dtype(cfg.dtype, pick_device(cfg.device))).removeprefix("torch.")
    rows = {"train": cfg.max_train, "test": cfg.max_test}
    return {
        split: FeatureSpec(
            backbone=cfg.backbone, backbone_id=cfg.backbone_id, backbone_revision=cfg.backbone_revision, dataset=cfg.dataset,
            dataset_id=cfg.dataset_id, dataset_revision=cfg.dataset_revision, split=split,
            prompt=cfg.prompt or DEFAULT_PROMPTS[cfg.backbone], calibrate=cfg.calibrate, dtype=dtype, max_rows=rows[split],
        )
        for split in ("train", "test")
    }


def feature_cache(cfg: ClassifierConfig) -> Path:
    """Folder of the feature caches: ``cache_dir``, or the book's own where that is empty."""
    return Path(cfg.cache_dir) if cfg.cache_dir else paths.cache() / "safe-residual" / "features"


def frozen_features(cfg: ClassifierConfig, progress: Report | None = None) -> dict[str, Cached]:
    """Features of both splits: read where cached, else computed (the only expensive step of a full run) and cached."""
    folder, out = feature_cache(cfg), {}
    for split, spec in feature_specs(cfg).items():
        shards: Progress | None = None if progress is None else partial(_features_of, progress, split)
        cache_features(spec, folder, device=cfg.device, batch_size=cfg.batch_size, shard_size=cfg.shard_size,
                       processes=cfg.processes, progress=shards)
        out[split] = load_cached(spec, folder)
    return out


def _features_of(progress: Report, split: str, done: int, total: int) -> None:
    progress(done, total, f"features of the {split} split")


def frozen_study(cfg: ClassifierConfig, progress: Report | None = None, checkpoints: Keep | None = None) -> dict[str, Any]:
    """The full-scale study, one seed: cached features, then :func:`few_label_study`.

    Returns:
        What :func:`few_label_study` returns; ``percent``: test accuracy in percent under ``black_box`` and ``<method>_<n>``;
        ``backbone_commit`` and ``dataset_commit``: what the features were made of; ``pool_size``, ``test_size``, ``n_classes``.
    """
    data = frozen_features(cfg, progress)
    pool, test = data["train"], data["test"]
    found = few_label_study(
        pool.features, pool.base_logits, pool.labels, test.features, test.base_logits, test.labels,
        n_grid=cfg.n_grid, seed=cfg.seed, val_fraction=cfg.val_fraction, tau=cfg.tau, selection=cfg.selection,
        epochs=cfg.epochs, lr=cfg.lr, weight_decay=cfg.weight_decay, patience=cfg.patience, batch_size=cfg.head_batch_size,
        device=cfg.device, progress=progress, checkpoints=checkpoints,
    )
    percent = {f"{method}_{n}": 100 * found["accuracy"][method][i] for method in METHODS for i, n in enumerate(found["n"])}
    percent["black_box"] = 100 * found["accuracy"]["f0"][0]
    return {**found, "percent": percent, "backbone_commit": pool.commits["backbone"], "dataset_commit": pool.commits["dataset"],
            "pool_size": len(pool.labels), "test_size": len(test.labels), "n_classes": len(pool.classes)}


def digits_boxes(cfg: ClassifierConfig) -> dict[str, Any]:
    """The digits at smoke and reader scale: a good black box, and one that learnt from images moved one pixel to the right.

    Returns:
        ``good`` and ``shifted``, each what :func:`paperbook.papers.safe_residual.studies.digits_study` returns, and
        ``claims``: ``good_safe_minus_residual_few`` (mean accuracy gap over the n <= 100 of the grid) and
        ``shifted_safe_minus_scratch_100``, where the grid has such n.
    """
    from paperbook.data.digits import load_digits, shift_images
    from paperbook.papers.safe_residual.studies import digits_study

    data = load_digits()
    options: dict[str, Any] = {"seed": cfg.seed, "n_grid": cfg.n_grid, "val_fraction": cfg.val_fraction, "tau": cfg.tau}
    out = {"good": digits_study(data.X, data.y, **options),
           "shifted": digits_study(data.X, data.y, X_box=shift_images(data.X, 1, 0), **options)}
    safe = "safe" if cfg.selection == "accuracy" else "safe_nll"
    few = [i for i, n in enumerate(cfg.n_grid) if n <= 100]
    good, shifted = out["good"]["accuracy"], out["shifted"]["accuracy"]
    claims = {}
    if few:
        claims["good_safe_minus_residual_few"] = float(np.mean([good[safe][i] - good["residual"][i] for i in few]))
    if 100 in cfg.n_grid:
        at = cfg.n_grid.index(100)
        claims["shifted_safe_minus_scratch_100"] = shifted[safe][at] - shifted["scratch"][at]
    return {**out, "claims": claims}


def classifiers_run(cfg: ClassifierConfig, progress: Report | None = None, checkpoints: Keep | None = None) -> dict[str, Any]:
    """One seed of the page on classifiers: metrics of :func:`digits_boxes` or, on a frozen backbone, :func:`frozen_study`.

    Args:
        cfg: the page's parameters.
        progress: called with (done, in all, what) while features are computed and heads trained.
        checkpoints: where heads on a frozen backbone keep theirs (those on digits take less than a second).
    """
    return digits_boxes(cfg) if cfg.dataset == "digits" else frozen_study(cfg, progress, checkpoints)


def _rescaled(x: Singles, x_test: Singles, fit: IntArray) -> tuple[Singles, Singles]:
    """Features minus the training part's mean, over its root-mean-square distance from it: typical length 1 for any backbone.

    One learning rate then serves unit CLIP embeddings and LM states of length in the hundreds. Training rows only, so
    nothing leaks; one factor for all dimensions, so directions keep their relative size.
    """
    # our choice: the paper's recipe (its Appendix F) was not available; unscaled LM states would need a rate of their own
    mean = x[fit].mean(axis=0)
    spread = float(np.sqrt(np.mean(np.sum((x[fit] - mean) ** 2, axis=1)))) or 1.0
    return (x - mean) / np.float32(spread), (x_test - mean) / np.float32(spread)


def _checked(prefix: str, features: Any, base_logits: Any, labels: Any) -> tuple[Singles, Singles, IntArray]:
    x = array(f"{prefix}features", features, ndim=2).astype(np.float32)
    z = array(f"{prefix}base_logits", base_logits, ndim=2).astype(np.float32)
    y = np.asarray(labels)
    if y.dtype.kind not in "iu":
        raise TypeError(f"{prefix}labels: expected integers, got dtype {y.dtype}")
    if y.shape != (len(x),) or len(z) != len(x):
        raise ValueError(f"{prefix}labels: expected shape ({len(x)},) and as many rows of {prefix}base_logits, "
                         f"got {y.shape} and {len(z)}")
    if z.shape[1] < 2 or y.min() < 0 or y.max() >= z.shape[1]:
        raise ValueError(f"{prefix}labels: expected 0..{z.shape[1] - 1} with at least two columns of {prefix}base_logits, "
                         f"got {y.min()}..{y.max()} and {z.shape[1]} columns")
    return x, z, y.astype(np.int64)


def _tensors(*arrays: NDArray[Any]) -> list[Any]:
    import torch

    return [torch.from_numpy(np.ascontiguousarray(values)) for values in arrays]


def _logits(head: Any, x: Singles, base: Singles, device: Any) -> Singles:
    import torch

    with torch.inference_mode():
        return head(*(values.to(device) for values in _tensors(x, base))).cpu().numpy()
