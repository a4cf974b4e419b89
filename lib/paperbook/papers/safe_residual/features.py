"""Frozen features and zero-shot logits, computed once and kept as sharded safetensors.

A cache lives in ``<folder>/<key>/``: one file a shard, written to a temporary name, synced and renamed, and an
``index.json`` written last. The key is a hash of everything that fixes the numbers (weights, data, split, prompt, number
format), so a cache is either the right one or not found. An interrupted call continues with the shards that are missing;
a shard that is cut short or belongs to another cache is computed anew. Batches never cross a shard, so a resumed cache
equals an uninterrupted one bit for bit on the same machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paperbook.papers.safe_residual.backbones import BACKBONES, Backbone, check_prompt, load_backbone
from paperbook.study.arguments import choice, integer
from paperbook.study.device import pick_device, pick_dtype
from paperbook.study.seeds import rng

if TYPE_CHECKING:
    import torch

FORMAT = 1
"""Part of every key: raised when preprocessing changes, so that older caches are not mistaken for current ones."""

COLUMNS = {"cifar100": ("img", "fine_label"), "ag_news": ("text", "label")}
"""Example and label column of the data sets ``uoft-cs/cifar100`` and ``fancyzhx/ag_news``."""

STAND_IN = "STAND-IN.txt"
"""File that marks a toy in the place of a hub repository."""

SPLITS = ("train", "test")
_WEIGHT_FILES = ["*.json", "*.txt", "*.jinja", "*.safetensors"]
_COMMIT = re.compile(r"^[0-9a-f]{40}$")
_WHOLE_FILE = 1 << 20  # bytes; of a larger file the fingerprint reads both ends only

Progress = Callable[[int, int], None]
"""Called with (examples done, examples in all) after each shard."""


@dataclass(frozen=True)
class FeatureSpec:
    """What fixes the numbers in a cache.

    Attributes:
        backbone: ``"clip"`` or ``"causal-lm"``.
        backbone_id, backbone_revision: hub id and commit hash (or tag, or branch) of the weights; or a local folder and ``""``.
        dataset: ``"cifar100"`` or ``"ag_news"``: names the columns.
        dataset_id, dataset_revision: the same for the data.
        split: ``"train"`` or ``"test"``.
        prompt: template of the zero-shot classifier.
        calibrate: causal LM: subtract the content-free prompt's logits.
        dtype: number format the backbone runs in: ``"float32"``, ``"bfloat16"`` or ``"float16"``. Features are stored in
            float32 for the first and in float16 for the others, logits always in float32.
        max_rows: size of the fixed random subset of the split, 0 for all of it.
    """

    backbone: str
    backbone_id: str
    backbone_revision: str
    dataset: str
    dataset_id: str
    dataset_revision: str
    split: str
    prompt: str
    calibrate: bool = False
    dtype: str = "float32"
    max_rows: int = 0

    def __post_init__(self) -> None:
        choice("backbone", self.backbone, BACKBONES)
        choice("dataset", self.dataset, tuple(COLUMNS))
        choice("split", self.split, SPLITS)
        choice("dtype", self.dtype, ("float32", "bfloat16", "float16"))
        integer("max_rows", self.max_rows, 0)
        check_prompt(self.backbone, self.prompt)
        if self.calibrate and self.backbone == "clip":
            raise ValueError("calibrate: expected False for backbone='clip', got True")

    def commits(self) -> dict[str, str]:
        """The commits of weights and data; a local folder is named by a fingerprint of its files."""
        return {
            "backbone": resolved_commit("model", self.backbone_id, self.backbone_revision),
            "dataset": resolved_commit("dataset", self.dataset_id, self.dataset_revision),
        }

    def identity(self) -> dict[str, Any]:
        """Everything the key is a hash of: no path of this machine among it."""
        fields = asdict(self)
        for name, commit in self.commits().items():
            fields[f"{name}_revision"] = commit
            if commit.startswith("local-"):
                fields[f"{name}_id"] = "local"
        return {"format": FORMAT, **fields}

    def key(self) -> str:
        """Sixteen hex digits that name the cache."""
        text = json.dumps(self.identity(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Cached(NamedTuple):
    """One cached split.

    Attributes:
        features: (rows, d) float32.
        base_logits: (rows, classes) float32, f_0.
        labels: (rows,) int64.
        classes: class names in the order of the labels.
        commits: ``{"backbone": ..., "dataset": ...}`` as resolved when the cache was made.
    """

    features: NDArray[np.float32]
    base_logits: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: list[str]
    commits: dict[str, str]


class Split(NamedTuple):
    """Raw examples of one split: `items(start, stop)` reads rows, `labels` is (rows,) int64."""

    items: Callable[[int, int], list[Any]]
    labels: NDArray[np.int64]
    classes: list[str]


def cache_features(spec: FeatureSpec, folder: Path, *, device: str = "auto", batch_size: int = 256, shard_size: int = 2048,
                   processes: int = 1, progress: Progress | None = None, load: Callable[..., Backbone] = load_backbone) -> Path:
    """Compute what is missing of the cache of `spec` under `folder` and return the cache's own folder.

    A complete cache is found without loading weights or data. Two processes that ask for the same cache take turns (a
    lock file), so the second one finds it done.

    Args:
        spec: what to compute.
        folder: parent of all caches.
        device: where the backbone runs.
        batch_size: examples a forward pass; features do not depend on it beyond rounding.
        shard_size: examples a file; at most one shard's work a process is lost when it is killed.
        processes: processes that share the missing shards, on CUDA one a GPU; the cache is the same bit for bit.
        progress: called after each shard.
        load: loads the backbone, only called when a shard is missing (one process; several load for themselves).

    Raises:
        ParallelError: one of several processes failed, with its message.
        ValueError: on a size below 1, more processes than GPUs, an unknown device, a data set without the expected columns,
            features that are not finite, or a folder that holds the cache of another key.
        FileNotFoundError: when weights or data are neither local nor reachable, with the command that fetches them.
    """
    integer("batch_size", batch_size, 1)
    integer("shard_size", shard_size, 1)
    integer("processes", processes, 1)
    where = pick_device(device)
    if processes > 1 and where.type == "cuda":
        _one_gpu_each(processes, where)
    key = spec.key()
    place = Path(folder) / key
    place.mkdir(parents=True, exist_ok=True)
    with _locked(place):
        for left_over in place.glob("*.tmp"):
            left_over.unlink()
        index = _read_index(place, key)
        if index is not None and all(_is_listed(place, key, shard) for shard in index["shards"]):
            return place
        split = load_split(spec)
        n = len(split.labels)
        starts = list(range(0, n, shard_size))
        files = {start: _shard_file(place, start, min(start + shard_size, n)) for start in starts}
        missing = [s for s in starts if not _is_shard(files[s], key, s, min(s + shard_size, n))]
        done = n - sum(min(s + shard_size, n) - s for s in missing)

        def report(start: int) -> None:
            nonlocal done
            done += min(start + shard_size, n) - start
            if progress is not None:
                progress(done, n)

        if processes > 1 and len(missing) > 1:
            _encode_together(spec, place, missing, files, device=where, batch_size=batch_size, shard_size=shard_size,
                             processes=processes, report=report)
        elif missing:
            encode_shards(spec, place, missing, device=where, batch_size=batch_size, shard_size=shard_size, report=report,
                          load=load, split=split)
        shards = [{"file": path.name, "start": start, "stop": min(start + shard_size, n), "sha256": _digest(path)}
                  for start, path in files.items()]
        document = {"key": key, "identity": spec.identity(), "commits": spec.commits(), "classes": split.classes, "rows": n,
                    "shards": shards}
        _write_atomically(place / "index.json", json.dumps(document, indent=1).encode())
    return place


def encode_shards(spec: FeatureSpec, place: Path, starts: Sequence[int], *, device: torch.device, batch_size: int,
                  shard_size: int, report: Callable[[int], None] | None = None, load: Callable[..., Backbone] = load_backbone,
                  split: Split | None = None) -> None:
    """Encode the shards that start at `starts` and write them into the cache folder `place`, whose lock the caller holds.

    Args:
        report: called with the start of each shard that is written.
        split: the opened split, where the caller has it.
    """
    if not starts:
        return
    key, split = spec.key(), split or load_split(spec)
    backbone = load(spec.backbone, locate("model", spec.backbone_id, spec.backbone_revision), split.classes, spec.prompt,
                    calibrate=spec.calibrate, device=device, dtype=pick_dtype(spec.dtype, device))
    for start in starts:
        stop = min(start + shard_size, len(split.labels))
        tensors = _encode(backbone, split.items(start, stop), batch_size, spec.dtype)
        _save_shard(_shard_file(place, start, stop), tensors, split.labels[start:stop], key, start, stop)
        if report is not None:
            report(start)


def _encode_together(spec: FeatureSpec, place: Path, missing: Sequence[int], files: Mapping[int, Path], *, device: torch.device,
                     batch_size: int, shard_size: int, processes: int, report: Callable[[int], None]) -> None:
    """Share the `missing` shards among processes; files are independent and batches never cross one, so the order is free."""
    from paperbook.study.parallel import launch

    waiting = list(missing)

    def watch() -> None:
        for start in [start for start in waiting if files[start].is_file()]:
            waiting.remove(start)
            report(start)

    for start in missing:
        files[start].unlink(missing_ok=True)  # a damaged one must not count as written
    request = {"spec": asdict(spec), "place": str(place), "starts": list(missing), "batch_size": batch_size,
               "shard_size": shard_size, "cpu": device.type == "cpu"}
    launch("paperbook.papers.safe_residual.feature_worker", request, min(processes, len(missing)), cpu=device.type == "cpu",
           watch=watch)
    watch()


def _one_gpu_each(processes: int, device: torch.device) -> None:
    import torch

    if device.index is not None:
        raise ValueError(f"processes: expected 1 with device={str(device)!r}, which names one GPU, got {processes}")
    if processes > torch.cuda.device_count():
        raise ValueError(f"processes: expected at most one a GPU, {torch.cuda.device_count()} are visible, got {processes}")


def _shard_file(place: Path, start: int, stop: int) -> Path:
    return place / f"rows-{start:07d}-{stop:07d}.safetensors"


def load_cached(spec: FeatureSpec, folder: Path) -> Cached:
    """Read the finished cache of `spec` under `folder`; needs neither weights nor data.

    Raises:
        FileNotFoundError: when there is no finished cache of this key.
        ValueError: when the folder holds the cache of another key, or a shard does not match its checksum.
    """
    from safetensors.numpy import load_file

    key = spec.key()
    place = Path(folder) / key
    index = _read_index(place, key)
    if index is None:
        raise FileNotFoundError(f"cache: no finished cache {key} in {folder}; call cache_features first")
    parts = []
    for shard in index["shards"]:
        path = place / shard["file"]
        if not _is_listed(place, key, shard):
            raise ValueError(f"cache: {path.name} of {key} is damaged or missing; call cache_features to compute it anew")
        parts.append(load_file(path))
    return Cached(
        features=np.concatenate([part["features"] for part in parts]).astype(np.float32),
        base_logits=np.concatenate([part["base_logits"] for part in parts]),
        labels=np.concatenate([part["labels"] for part in parts]),
        classes=list(index["classes"]),
        commits=dict(index["commits"]),
    )


def load_split(spec: FeatureSpec) -> Split:
    """Open the split of `spec` with ``datasets`` from its folder of parquet files (a hub snapshot or a local one).

    Raises:
        FileNotFoundError: when the data are neither local nor reachable, with the command that fetches them.
        ValueError: when the split, its columns or its class names are not what `spec.dataset` says.
    """
    import datasets

    folder = locate("dataset", spec.dataset_id, spec.dataset_revision)
    with _quiet(datasets):
        try:
            table = datasets.load_dataset(str(folder), split=spec.split)
        except (ValueError, FileNotFoundError, datasets.exceptions.DatasetsError) as error:
            raise ValueError(f"dataset_id: {spec.dataset_id!r} has no readable split {spec.split!r}: {error}") from error
    example, label = COLUMNS[spec.dataset]
    for column in (example, label):
        if column not in table.features:
            raise ValueError(f"dataset_id: expected a column {column!r} for {spec.dataset}, got {sorted(table.features)}")
    if not isinstance(table.features[label], datasets.ClassLabel):
        raise ValueError(f"dataset_id: expected class names with column {label!r}, got {table.features[label]}")
    if spec.max_rows and spec.max_rows < len(table):
        # the same subset for every seed of a study, so that all seeds share one cache
        chosen = rng(0, "feature rows", spec.split).permutation(len(table))[:spec.max_rows]
        table = table.select(np.sort(chosen))
    labels = np.asarray(table[label], dtype=np.int64)
    classes = list(table.features[label].names)
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(f"dataset_id: expected labels in 0..{len(classes) - 1} in split {spec.split!r}, got {len(labels)} rows"
                         + (f" with labels {labels.min()}..{labels.max()}" if len(labels) else ""))
    return Split(lambda start, stop: table[start:stop][example], labels, classes)


def locate(kind: str, identifier: str, revision: str) -> Path:
    """The folder of a hub repository's snapshot (fetched if it can be), or the local folder that `identifier` names.

    ``HF_HUB_OFFLINE=1`` is honoured: then only what was fetched before is found.

    Args:
        kind: ``"model"`` or ``"dataset"``.
        identifier: hub id such as ``openai/clip-vit-base-patch32``, or a local folder.
        revision: commit hash, tag or branch; unused for a local folder.

    Raises:
        ValueError: unknown `kind`, or a hub id without a revision.
        FileNotFoundError: when it is neither local nor reachable, with the command that fetches it.
    """
    choice("kind", kind, ("model", "dataset"))
    name = "backbone" if kind == "model" else "dataset"
    if is_local(identifier):
        folder = Path(identifier).expanduser()
        if not folder.is_dir():
            raise FileNotFoundError(f"{name}_id: expected a hub id or a folder, and {identifier!r} is no folder")
        return folder
    if not revision:
        raise ValueError(f"{name}_revision: expected a commit hash, tag or branch of {identifier}, got an empty text")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    patterns = _WEIGHT_FILES if kind == "model" else None
    try:
        return Path(snapshot_download(identifier, repo_type=kind, revision=revision, allow_patterns=patterns))
    except (OSError, HfHubHTTPError) as error:
        raise FileNotFoundError(
            f"{name}_id: {identifier} at revision {revision} is not on this machine and could not be fetched "
            f"({type(error).__name__}); on a machine with a network run: {fetch_command(kind, identifier, revision)}"
        ) from error


def on_this_machine(kind: str, identifier: str, revision: str) -> bool:
    """Whether weights or data can be read without a network: from a local folder, or from a snapshot in the hub's cache.

    The folder must hold the files too: a snapshot's folder is there from the first file on, and a download that was cut off
    does not count. Never asks the network.
    """
    if is_local(identifier):
        folder = Path(identifier).expanduser()
    elif not revision:
        return False
    else:
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(identifier, repo_type=kind, revision=revision, local_files_only=True))
        except (OSError, ValueError):  # the hub's own errors are of these two kinds
            return False
    if kind == "dataset":
        return any(path.is_file() for path in folder.rglob("*.parquet"))  # a link of the cache may point nowhere
    index = folder / "model.safetensors.index.json"
    names = {"model.safetensors"}
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
    return (folder / "config.json").is_file() and all((folder / name).is_file() for name in names)


def is_cached(spec: FeatureSpec, folder: Path) -> bool:
    """Whether the finished cache of `spec` lies under `folder`; False also where its key cannot be known without a network."""
    sources = ((spec.backbone_id, spec.backbone_revision), (spec.dataset_id, spec.dataset_revision))
    if not all(is_local(identifier) or _COMMIT.match(revision) for identifier, revision in sources):
        return False  # a branch or tag: only the hub knows which commit it is today
    try:
        key = spec.key()
        return _read_index(Path(folder) / key, key) is not None
    except (OSError, ValueError):
        return False


def fetch_command(kind: str, identifier: str, revision: str) -> str:
    """The shell command that fetches exactly what :func:`locate` looks for into the hub cache (``HF_HOME``)."""
    extra = " --repo-type dataset" if kind == "dataset" else "".join(f" --include '{p}'" for p in _WEIGHT_FILES)
    return f"hf download {identifier} --revision {revision}{extra}"


def resolved_commit(kind: str, identifier: str, revision: str) -> str:
    """The commit behind `revision`; for a local folder ``local-`` and a fingerprint of its files.

    A full commit hash is its own answer: nothing is fetched, so a finished cache works without the weights. Where the hub's cache
    holds a toy under that name (a rehearsal's, marked by a file), the answer says so: its features must never pass for real ones.
    """
    if is_local(identifier):
        return f"local-{_fingerprint(locate(kind, identifier, revision))}"
    if _COMMIT.match(revision):
        return f"stand-in-{revision[:12]}" if _is_stand_in(kind, identifier, revision) else revision
    return locate(kind, identifier, revision).name


def _is_stand_in(kind: str, identifier: str, revision: str) -> bool:
    from huggingface_hub import constants

    name = f"{kind}s--{identifier.replace('/', '--')}"
    return (Path(constants.HF_HUB_CACHE) / name / "snapshots" / revision / STAND_IN).is_file()


def is_local(identifier: str) -> bool:
    """Whether it names a folder rather than a repository of the hub."""
    return Path(identifier).expanduser().is_dir() or identifier.startswith(("/", ".", "~"))


def _fingerprint(folder: Path) -> str:
    """Sixteen hex digits from names, sizes and content of the files below `folder` (both ends of those above 1 MiB)."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder).as_posix()}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(_WHOLE_FILE))
            if size > _WHOLE_FILE:
                file.seek(max(_WHOLE_FILE, size - _WHOLE_FILE))
                digest.update(file.read())
    return digest.hexdigest()[:16]


def _encode(backbone: Backbone, items: Sequence[Any], batch_size: int, dtype: str) -> dict[str, torch.Tensor]:
    """One shard's features and logits; examples of like cost share a batch, which keeps padding short."""
    import torch

    order = np.argsort(backbone.cost(items), kind="stable")
    parts = [backbone.encode([items[i] for i in order[a:a + batch_size]]) for a in range(0, len(order), batch_size)]
    back = torch.from_numpy(np.argsort(order))
    features = torch.cat([part.features for part in parts])[back].to(torch.float32 if dtype == "float32" else torch.float16)
    logits = torch.cat([part.base_logits for part in parts])[back].float()
    for name, values in (("features", features), ("base_logits", logits)):
        if not bool(torch.isfinite(values).all()):
            raise ValueError(f"{name}: expected finite numbers, got inf or nan from the backbone in {dtype}; try dtype=float32")
    return {"features": features.contiguous(), "base_logits": logits.contiguous()}


def _save_shard(path: Path, tensors: Mapping[str, torch.Tensor], labels: NDArray[np.int64], key: str, start: int,
                stop: int) -> None:
    import torch
    from safetensors.torch import save

    header = {"key": key, "start": str(start), "stop": str(stop)}
    _write_atomically(path, save({**tensors, "labels": torch.from_numpy(labels.copy())}, metadata=header))


def _is_shard(path: Path, key: str, start: int, stop: int) -> bool:
    """Whether `path` is a whole shard of this cache and these rows (safetensors refuses a file that was cut short)."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return False
    try:
        with safe_open(path, "np") as file:
            return file.metadata() == {"key": key, "start": str(start), "stop": str(stop)}
    except (SafetensorError, OSError):
        return False


def _is_listed(place: Path, key: str, shard: Mapping[str, Any]) -> bool:
    """Whether a shard of the index is there, whole and with the bytes it was written with."""
    path = place / shard["file"]
    return _is_shard(path, key, shard["start"], shard["stop"]) and _digest(path) == shard["sha256"]


def _read_index(place: Path, key: str) -> dict[str, Any] | None:
    path = place / "index.json"
    if not path.is_file():
        return None
    index = json.loads(path.read_text(encoding="utf-8"))
    if index.get("key") != key:
        raise ValueError(f"cache: expected key {key} in {place}, got {index.get('key')}: this folder is another cache's")
    return index


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_atomically(path: Path, content: bytes) -> None:
    """Write beside `path`, sync, rename: after a crash `path` is whole or absent."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Exclusive use of a cache folder; the system drops the lock of a process that dies."""
    with (place / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """No progress bars of ``datasets`` inside the block: a page's output must not depend on them."""
    hidden = datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not hidden:
            datasets.enable_progress_bars()
