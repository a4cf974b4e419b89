"""Save and load fitted estimators without pickle: one JSON with parameters and scalars, one safetensors file with arrays.

Nothing in a folder can run code. The black box is not saved: it belongs to the caller, who hands it in again at `load`.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from . import classifier, estimators
from .classifier import HeadPath
from .estimators import SelectionReport
from .kernel import KernelResidual
from .piecewise import PiecewisePolynomialRegressor
from .validation import HoldoutSplit

FORMAT = "paperbook.safe_residual"
VERSION = 2
CONFIG = "estimator.json"
CLASSES: dict[str, Any] = {c.__name__: c for c in (
    KernelResidual, PiecewisePolynomialRegressor, estimators.SafeResidualRegressor, estimators.ResidualRegressor,
    estimators.ScratchRegressor, estimators.ConcatRegressor, estimators.WeightedCombiner, classifier.SafeResidualClassifier,
    classifier.ResidualClassifier, classifier.ScratchClassifier)}
_FITTED: dict[str, tuple[str, ...]] = {  # what `predict` reads, by class; subclasses add to their bases
    "KernelResidual": ("alphas_", "scores_", "gamma_", "X_train_", "coefficients_", "center_", "width_", "index_", "alpha_"),
    "PiecewisePolynomialRegressor": ("order_", "n_cells_", "low_", "width_", "cells_", "coef_"),
    "_AroundBlackBox": ("needs_f0_", "split_", "n_train_", "n_val_", "residual_estimator_"),
    "_Head": ("classes_", "needs_f0_", "split_", "n_train_", "n_val_", "head_"),
    "SafeResidualRegressor": ("used_correction_", "report_", "report_other_", "gain_", "gain_se_"),
    "SafeResidualClassifier": ("used_correction_", "report_", "report_other_", "gain_", "gain_se_"),
    "ScratchRegressor": ("mean_",), "ConcatRegressor": ("mean_",), "WeightedCombiner": ("mean_", "weight_", "val_losses_")}
RECORDS: dict[str, Any] = {c.__name__: c for c in (SelectionReport, HoldoutSplit, HeadPath)}


def save(estimator: Any, folder: str | os.PathLike[str]) -> Path:
    """Write a fitted estimator of this package to `folder` (made if missing); return the folder.

    The arrays go to a file named by their hash, then one rename puts the JSON that points to it in place: a crash leaves the
    earlier save or the new one, never a mixture. The JSON carries a hash of its own, so a change of either file is noticed.

    Raises:
        TypeError: an estimator or (residual) learner that is not of this package, or a parameter JSON cannot hold; it is named.
        NotFittedError: an estimator before `fit`.
    """
    from safetensors.numpy import save as to_bytes
    from sklearn.utils.validation import check_is_fitted

    if type(estimator).__name__ not in CLASSES or type(estimator) is not CLASSES[type(estimator).__name__]:
        raise TypeError(f"estimator: expected one of {', '.join(CLASSES)}, got {_name(estimator)}")
    check_is_fitted(estimator)
    arrays: dict[str, np.ndarray] = {}
    tree = _pack(estimator, "estimator", arrays)
    blob = to_bytes(arrays)
    digest = hashlib.sha256(blob).hexdigest()
    name = f"arrays-{digest[:16]}.safetensors"
    document = {"format": FORMAT, "version": VERSION, "arrays": name, "sha256": digest, "estimator": tree}
    text = json.dumps({**document, "digest": _digest(document)}, indent=1)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    _replace(target / name, blob)
    _replace(target / CONFIG, text.encode())
    for old in target.glob("arrays-*.safetensors"):
        if old.name != name:
            old.unlink()
    return target


def load(folder: str | os.PathLike[str], black_box: Any = None) -> Any:
    """Read what `save` wrote. The predictions are bitwise those of the saved estimator, given the same black box.

    Args:
        black_box: f_0, required exactly if the saved estimator had one.

    Raises:
        FileNotFoundError: no saved estimator in `folder`.
        ValueError: a file that is truncated, changed, incomplete, of another format or version, or a black box missing or not
            expected. (The hashes find accidents; they are no signature against someone who computes them anew.)
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load as from_bytes

    source = Path(folder)
    path = source / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"folder: expected {CONFIG} in {source}, found none")
    try:
        config = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON, got a truncated or changed file ({error})") from None
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        got = config.get("format") if isinstance(config, dict) else config
        raise ValueError(f"{path}: expected format {FORMAT!r}, got {got!r}")
    if config.get("version") != VERSION:
        raise ValueError(f"{path}: expected version {VERSION}, got {config.get('version')!r}")
    try:
        digest = _digest({k: v for k, v in config.items() if k != "digest"})
    except RecursionError as error:
        raise ValueError(f"{path}: expected an estimator, got a changed file ({error})") from None
    if digest != config.get("digest"):
        raise ValueError(f"{path}: expected digest {config.get('digest')}, got {digest}: changed since it was saved")
    name = config.get("arrays")
    if not isinstance(name, str) or Path(name).name != name or not (source / name).is_file():
        raise ValueError(f"{path}: expected an array file beside it, got {name!r}, which is not there")
    blob = (source / name).read_bytes()
    found = hashlib.sha256(blob).hexdigest()
    if found != config.get("sha256"):
        raise ValueError(f"{source / name}: expected sha256 {config.get('sha256')}, got {found}: truncated or changed")
    try:
        arrays = from_bytes(blob)
        estimator, had_box = _unpack(config["estimator"], arrays), config["estimator"]["black_box"]
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: expected a complete estimator, got a changed file ({type(error).__name__}: {error})") from None
    if had_box and black_box is None:
        raise ValueError(f"black_box: expected the one the estimator had when saved ({had_box}), got None")
    if black_box is not None:
        if not had_box:
            raise ValueError(f"black_box: the saved estimator had none, expected None, got {_name(black_box)}")
        estimator.black_box = black_box
    return estimator


def _digest(document: dict[str, Any]) -> str:
    """sha256 of a document in one spelling: keys sorted, no spaces."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _required(kind: Any) -> list[str]:
    """Every parameter and fitted attribute an estimator of class `kind` needs to predict and to be fitted again."""
    fitted = [name for base in kind.__mro__ for name in _FITTED.get(base.__name__, ())]
    return [name for name in kind._get_param_names() if name != "black_box"] + ["n_features_in_", *fitted]


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _replace(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _pack(value: Any, where: str, arrays: dict[str, np.ndarray]) -> Any:
    """`value` as JSON, its arrays moved to `arrays` under their place. The first key says what a dict stands for."""
    if type(value).__name__ in CLASSES and type(value) is CLASSES[type(value).__name__]:
        state = {k: v for k, v in vars(value).items() if k != "black_box" and not k.startswith("_")}
        box = getattr(value, "black_box", None)
        return {"class": type(value).__name__, "black_box": None if box is None else _name(box),
                "state": {k: _pack(v, f"{where}.{k}", arrays) for k, v in state.items()}}
    if type(value).__name__ in RECORDS and type(value) is RECORDS[type(value).__name__]:
        fields = value._asdict() if isinstance(value, HoldoutSplit) else asdict(value)
        return {"record": type(value).__name__, "fields": {k: _pack(v, f"{where}.{k}", arrays) for k, v in fields.items()}}
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "biuf":
            arrays[where] = np.ascontiguousarray(value)
            # safetensors keeps no Fortran order; the order decides how BLAS rounds, so it is restored
            return {"array": where, "fortran": bool(value.ndim > 1 and value.flags.f_contiguous and not value.flags.c_contiguous)}
        if value.dtype.kind == "U" or (value.dtype.kind == "O" and all(isinstance(v, str) for v in value.ravel())):
            return {"text": value.tolist(), "dtype": value.dtype.str}
        raise TypeError(f"{where}: expected numbers or text to save, got an array of dtype {value.dtype}")
    if isinstance(value, np.random.RandomState):
        raise TypeError(f"{where}: expected an integer seed or None to save, got a RandomState")
    if isinstance(value, np.generic):
        return {"scalar": value.dtype.str, "value": _pack(value.item(), where, arrays)}
    if isinstance(value, float):
        return {"float": value.hex()}  # exact, and JSON has no infinity
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [_pack(v, f"{where}[{i}]", arrays) for i, v in enumerate(value)]}
    raise TypeError(f"{where}: expected an object of this package to save, got {_name(value)}; save it with its own library")


def _unpack(tree: Any, arrays: dict[str, np.ndarray], fitted: bool = True) -> Any:
    """What `_pack` packed. `fitted` says whether an estimator there has to be a fitted one (a parameter need not)."""
    if not isinstance(tree, dict):
        return tree
    if "class" in tree:
        kind = CLASSES[tree["class"]]
        state = {k: _unpack(v, arrays, fitted and k.endswith("_")) for k, v in tree["state"].items()}
        estimator = kind()
        if unknown := [k for k in state if not k.endswith("_") and k not in kind._get_param_names()]:
            raise KeyError(f"{tree['class']}.{unknown[0]}")
        if missing := [k for k in _required(kind) if k not in state and (fitted or not k.endswith("_"))]:
            raise KeyError(f"{tree['class']} without {missing[0]}")
        vars(estimator).update(state)
        return estimator
    if "record" in tree:
        return RECORDS[tree["record"]](**{k: _unpack(v, arrays) for k, v in tree["fields"].items()})
    if "array" in tree:
        return arrays[tree["array"]].copy(order="F" if tree["fortran"] else "C")  # a copy: writable and aligned
    if "text" in tree:
        return np.array(tree["text"], dtype=tree["dtype"])
    if "scalar" in tree:
        return np.dtype(tree["scalar"]).type(_unpack(tree["value"], arrays))
    if "float" in tree:
        return float.fromhex(tree["float"])
    if "tuple" in tree:
        return tuple(_unpack(v, arrays) for v in tree["tuple"])
    return [_unpack(v, arrays) for v in tree["list"]]
