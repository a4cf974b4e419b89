"""Checkpoints: what a training loop needs to go on after ``kill -9`` as if nothing had happened.

One file a checkpoint, ``step-<step>.safetensors``: tensors, and in the file's metadata a JSON tree of everything else, the key of
the run it belongs to, and checksums. It is written to a temporary name, synced and renamed, so there is never half a checkpoint
under a checkpoint's name; the newest two are kept, so a damaged one still leaves one to go back to. No pickle is involved.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import random
import re
import sys
import time
import warnings
import weakref
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "1"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
_HINTS = {
    "config": "its parameters differ",
    "seed": "its seed differs",
    "code": "the code behind the page has changed since",
    "part": "it belongs to another part of the run",
}


class CheckpointError(RuntimeError):
    """A checkpoint belongs to another run, is in use by another process, or cannot be written; the message says which."""


class TrainingDiverged(RuntimeError):
    """The loss is no longer a finite number.

    Args:
        step: the step at which that was seen.
        loss: its value.
        checkpoint: step of the last good checkpoint, None where there is none.
        where: name of what was trained.
        hint: what to change, such as ``"lower lr (now 0.1)"``.
    """

    def __init__(self, step: int, loss: float, checkpoint: int | None = None, where: str = "", hint: str = "") -> None:
        self.step, self.loss, self.checkpoint = step, loss, checkpoint
        good = "there is no good checkpoint" if checkpoint is None else f"last good checkpoint: step {checkpoint}"
        place, advice = f" of {where}" if where else "", f"; {hint}" if hint else ""
        super().__init__(f"loss{place}: expected a finite number, got {loss} at step {step}; {good}{advice}")


@dataclass(frozen=True)
class Resumed:
    """What :meth:`Checkpoints.resume` found: the step it was saved at, its plain values, and its file."""

    step: int
    values: dict[str, Any]
    file: Path


class Checkpoints:
    """The checkpoints of one run, or of one part of it that trains on its own (:meth:`child`).

    Args:
        folder: where they lie; made at the first save.
        key: what fixes the numbers (hash of the configuration, seed, hash of the code); another key's checkpoint is refused.
        keep: how many are kept, >= 1.
        every_seconds: how far saves are apart, at least; by default ``PAPERBOOK_CHECKPOINT_SECONDS``, else 60.
        clock: wall seconds of this attempt so far, stored so that a resumed run knows what it has cost in all.

    Raises:
        ValueError: `keep` or `every_seconds` out of range.
    """

    def __init__(self, folder: Path, key: Mapping[str, str], *, keep: int = 2, every_seconds: float | None = None,
                 clock: Callable[[], float] | None = None) -> None:  # fmt: skip
        self._lock: _Lock | None = None
        if keep < 1:
            raise ValueError(f"keep: expected at least 1, got {keep}")
        if every_seconds is None:
            every_seconds = _seconds_from(os.environ.get("PAPERBOOK_CHECKPOINT_SECONDS"))
        if not every_seconds >= 0:
            raise ValueError(f"every_seconds: expected a number >= 0, got {every_seconds}")
        self.folder, self.keep, self.every_seconds = Path(folder), keep, every_seconds
        self._key = {str(name): str(value) for name, value in key.items()}
        start = time.monotonic()
        self._clock = clock or (lambda: time.monotonic() - start)
        self._parent: Checkpoints | None = None
        self._earlier = 0.0
        self._attempt = os.urandom(8).hex()
        self._last = start

    def child(self, name: str) -> Checkpoints:
        """Checkpoints of one part, in ``<folder>/<name>``.

        Raises:
            ValueError: a name that is no plain file name.
        """
        if not _NAME.match(name):
            raise ValueError(f"name: expected letters, digits, '.', '_' and '-', got {name!r}")
        part = Checkpoints(self.folder / name, self._key | {"part": name}, keep=self.keep, every_seconds=self.every_seconds,
                           clock=self._clock)  # fmt: skip
        part._parent, part._attempt = self, self._attempt
        return part

    @property
    def name(self) -> str:
        """How messages call it: its folder's name."""
        return self.folder.name

    @property
    def earlier_seconds(self) -> float:
        """Wall seconds of earlier attempts, as far as resumed checkpoints know; 0.0 where nothing was resumed."""
        return self._earlier if self._parent is None else self._parent.earlier_seconds

    def due(self) -> bool:
        """Whether `every_seconds` have passed since the last save, or since the start."""
        return time.monotonic() - self._last >= self.every_seconds

    def steps(self) -> list[int]:
        """Steps of the checkpoints there are, increasing; a damaged one counts until somebody tries to read it."""
        return sorted(_step(path) for path in self.folder.glob("step-*.safetensors") if _step(path) >= 0)

    def save(self, step: int, *, values: Mapping[str, Any] | None = None, **parts: Any) -> Path:
        """Write a checkpoint and remove all but the newest :attr:`keep`.

        Args:
            step: steps done, >= 0; it names the file.
            values: plain nested data, arrays, tensors.
            parts: models, optimisers, schedulers, samplers (anything with ``state_dict``), torch or numpy generators.
                The global random streams of Python, numpy, torch and every GPU in use are always saved with them.

        Returns:
            The file.

        Raises:
            CheckpointError: another process writes here, the folder cannot be written, or it holds checkpoints of another run or
                of a later step (resume first); earlier checkpoints are intact then.
            TypeError: a value that cannot be stored without pickle, naming it.
        """
        if step < 0:
            raise ValueError(f"step: expected a number >= 0, got {step}")
        states = {name: _state(name, part) for name, part in parts.items()}
        tree = {"parts": states, "values": dict(values or {}), "rng": _streams(), "attempt": self._attempt}
        tensors: dict[str, Any] = {}
        plain = json.dumps(_packed(tree, "", tensors), separators=(",", ":"))
        metadata = {
            "format": FORMAT, "key": json.dumps(self._key, sort_keys=True), "step": str(step), "tree": plain,
            "seconds": repr(self.earlier_seconds + self._clock()),
        }  # fmt: skip
        metadata["checksum"] = str(_checksum(metadata, tensors))
        path = self.folder / f"step-{step:09d}.safetensors"
        fresh = self._lock is None
        self._take()
        if fresh:
            self._refuse_to_replace(step)
        temporary = path.with_suffix(".tmp")
        try:
            _write(temporary, tensors, metadata)
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
            temporary.replace(path)
            _sync(self.folder)
        except BaseException as error:  # Ctrl-C too leaves nothing half written behind
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
                raise
            there = self.steps()
            kept = f"; the checkpoint of step {there[-1]} is intact" if there else ""
            raise CheckpointError(f"checkpoint: {_shown(path)} could not be written ({_reason(error)}){kept}") from None
        for old in self.steps()[: -self.keep]:
            (self.folder / f"step-{old:09d}.safetensors").unlink(missing_ok=True)
        self._last = time.monotonic()
        return path

    def resume(self, **parts: Any) -> Resumed | None:
        """Bring `parts` (as in :meth:`save`) and the global random streams to the newest checkpoint's state.

        A damaged checkpoint is set aside (``*.damaged``) with a warning, and the one before it is taken.

        Returns:
            The checkpoint's step, values and file; None where there is none.

        Raises:
            CheckpointError: it belongs to another configuration, seed or code; or another process writes here.
            ValueError: it holds other parts than were asked for.
        """
        if not self.steps():
            return None
        self._take()
        for step in reversed(self.steps()):
            path = self.folder / f"step-{step:09d}.safetensors"
            try:
                key, seconds, tree = _read(path)
            except _Damaged as error:
                self._set_aside(path, step, str(error))
                continue
            if key != self._key:
                why = _difference(key, self._key)
                raise CheckpointError(f"checkpoint: {_shown(path)} belongs to another run: {why}; start anew with `paperbook run "
                                      "--force`, or remove the folder")  # fmt: skip
            stored = tree["parts"]
            if stored.keys() != parts.keys():
                raise ValueError(f"parts: {_shown(path)} holds {sorted(stored)}, asked for were {sorted(parts)}")
            for name, part in parts.items():
                _restore(part, stored[name])
            _restore_streams(tree["rng"])
            if tree["attempt"] != self._attempt:  # what this attempt saved itself is in its own clock already
                self._remember(seconds)
            self._last = time.monotonic()
            return Resumed(step, tree["values"], path)
        return None

    def _remember(self, seconds: float) -> None:
        """Tell the root what earlier attempts took; a child holds its parent, never the other way round, so both can be freed."""
        if self._parent is None:
            self._earlier = max(self._earlier, seconds)
        else:
            self._parent._remember(seconds)

    def _refuse_to_replace(self, step: int) -> None:
        """Older checkpoints are deleted after a save, so a folder that was not resumed from must not hold anybody else's."""
        there = self.steps()
        if not there:
            return
        newest = self.folder / f"step-{there[-1]:09d}.safetensors"
        try:
            key = json.loads(_header(newest)["key"])
        except (_Damaged, KeyError, ValueError):
            return  # nothing that could be resumed
        if key != self._key:
            self.release()
            why = _difference(key, self._key)
            raise CheckpointError(f"checkpoint: {_shown(newest)} belongs to another run: {why}; start anew with `paperbook run "
                                  "--force`, or remove the folder")  # fmt: skip
        if there[-1] > step:
            self.release()
            raise CheckpointError(f"checkpoint: {_shown(self.folder)} holds step {there[-1]}, later than {step}; resume first, "
                                  "or start anew with `paperbook run --force`")  # fmt: skip

    def _set_aside(self, path: Path, step: int, reason: str) -> None:
        before = [s for s in self.steps() if s < step]
        back = f"going back to step {before[-1]}" if before else "starting from the beginning"
        warnings.warn(f"checkpoint: {_shown(path)} is damaged ({reason}); {back}", RuntimeWarning, stacklevel=3)
        path.replace(path.with_suffix(".damaged"))

    def _take(self) -> None:
        """Lock the folder for as long as this process lives, so that two kernels never write the same checkpoints."""
        if self._lock is not None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CheckpointError(f"checkpoint: {_shown(self.folder)} cannot be written ({_reason(error)})") from None
        status = os.fstat(handle)
        held = _HELD.get((status.st_dev, status.st_ino))
        if held is not None:
            os.close(handle)
            self._lock = held
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            where = _shown(self.folder)
            raise CheckpointError(f"checkpoint: another process writes in {where}; stop it, or wait for it") from None
        self._lock = _HELD[status.st_dev, status.st_ino] = _Lock(handle)
        for left_over in self.folder.glob("*.tmp"):
            left_over.unlink(missing_ok=True)

    def release(self) -> None:
        """Let other processes write here, unless another object of this process does; the end of the process does the same."""
        self._lock = None


class _Lock:
    """A locked file, for as long as somebody refers to this."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._handle)  # bound above: at the interpreter's end the module `os` may be gone first


# By device and inode: a cell that was interrupted leaves its objects in the notebook's traceback, and the same kernel may go on.
_HELD: weakref.WeakValueDictionary[tuple[int, int], _Lock] = weakref.WeakValueDictionary()


class _Damaged(Exception):
    """The file is no whole checkpoint."""


def check_finite(loss: float, step: int, checkpoints: Checkpoints | None = None, hint: str = "") -> None:
    """Stop training whose loss is NaN or infinite.

    Raises:
        TrainingDiverged: naming the step, the loss and the last good checkpoint.
    """
    if math.isfinite(loss):
        return
    there = checkpoints.steps() if checkpoints is not None else []
    raise TrainingDiverged(step, loss, there[-1] if there else None, checkpoints.name if checkpoints is not None else "", hint)


def _seconds_from(text: str | None) -> float:
    if not text:
        return 60.0
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"PAPERBOOK_CHECKPOINT_SECONDS: expected a number, got {text!r}") from None


def _step(path: Path) -> int:
    match = re.fullmatch(r"step-(\d{9,})\.safetensors", path.name)
    return int(match[1]) if match else -1


def _shown(path: Path) -> str:
    """The last parts of a path: enough to find it, without the folders of this machine."""
    return "/".join(path.parts[-3:])


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return {errno.ENOSPC: "the disk is full", errno.EROFS: "the disk is read-only", errno.EDQUOT: "the quota is used up",
                errno.EACCES: "no permission"}.get(error.errno, error.strerror or str(error))  # fmt: skip
    return "the disk is full" if "No space left" in str(error) else str(error)


def _difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    names = [name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)]
    return "; ".join(f"{_HINTS.get(name, name + ' differs')} ({theirs.get(name)} there, {ours.get(name)} here)" for name in names)


def _torch() -> Any:
    """torch where it is imported already: nothing of torch's can be in a state otherwise."""
    return sys.modules.get("torch")


def _state(name: str, part: Any) -> Any:
    torch = _torch()
    if torch is not None and isinstance(part, torch.Generator):
        return part.get_state()
    if isinstance(part, np.random.Generator):
        return part.bit_generator.state
    if hasattr(part, "state_dict"):
        return part.state_dict()
    raise TypeError(f"{name}: expected something with state_dict, or a torch or numpy generator, got {type(part).__name__}")


def _restore(part: Any, state: Any) -> None:
    torch = _torch()
    if torch is not None and isinstance(part, torch.Generator):
        part.set_state(state)
    elif isinstance(part, np.random.Generator):
        part.bit_generator.state = state
    else:
        part.load_state_dict(state)


def _streams() -> dict[str, Any]:
    """The global random streams."""
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator is the very thing to keep
    streams: dict[str, Any] = {"python": random.getstate(), "numpy": numpy}
    if torch := _torch():
        streams["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            streams["cuda"] = torch.cuda.get_rng_state_all()
    return streams


def _restore_streams(streams: dict[str, Any]) -> None:
    random.setstate(streams["python"])
    np.random.set_state(streams["numpy"])  # noqa: NPY002
    if "torch" in streams:
        import torch

        torch.set_rng_state(streams["torch"])
        if "cuda" in streams and torch.cuda.is_available() and len(streams["cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(streams["cuda"])


def _packed(value: Any, place: str, tensors: dict[str, Any]) -> Any:
    """`value` as JSON, its arrays and tensors put into `tensors` under the names that stand in the JSON."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"f": repr(value)}
    if isinstance(value, Mapping):
        rows = []
        for key, item in value.items():
            if type(key) not in (str, int):
                raise TypeError(f"{place or 'state'}: expected keys of text or whole numbers, got {key!r}")
            rows.append([key, _packed(item, f"{place}.{key}" if place else str(key), tensors)])
        return {"d": rows}
    if type(value) in (list, tuple):
        return {"l" if isinstance(value, list) else "t": [_packed(v, f"{place}[{i}]", tensors) for i, v in enumerate(value)]}
    torch = _torch()
    if torch is not None and isinstance(value, torch.Tensor):
        name = f"{len(tensors):06d} {place}"
        if value.layout != torch.strided or value.device.type == "meta" or value.dtype == torch.complex128:
            raise TypeError(f"{place}: expected a dense tensor, got {value.layout}, {value.dtype} on {value.device}")
        # own memory: safetensors refuses tensors that share theirs, as tied weights do; and row-major strides, which contiguous()
        # leaves odd where a dimension has one element
        dense = value.detach().resolve_conj().resolve_neg()
        tensors[name] = dense.to("cpu", copy=True, memory_format=torch.contiguous_format)
        return {"x": name}
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.kind not in "biuf" or not value.dtype.isnative or value.dtype.itemsize > 8:
            raise TypeError(f"{place}: expected an array of numbers, got dtype {value.dtype}")
        name = f"{len(tensors):06d} {place}"
        tensors[name] = np.ascontiguousarray(value).reshape(value.shape)
        return {"a" if isinstance(value, np.ndarray) else "s": name}
    raise TypeError(f"{place}: expected plain data, an array or a tensor, got {type(value).__name__}")


def _unpacked(node: Any, tensors: Mapping[str, Any]) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == "f":
        return float(content)
    if kind == "d":
        return {key: _unpacked(item, tensors) for key, item in content}
    if kind == "l":
        return [_unpacked(item, tensors) for item in content]
    if kind == "t":
        return tuple(_unpacked(item, tensors) for item in content)
    if kind == "x":
        return tensors[content]
    array = tensors[content]
    array = array if isinstance(array, np.ndarray) else array.numpy()
    return array if kind == "a" else array[()]


def _checksum(metadata: Mapping[str, str], tensors: Mapping[str, Any]) -> int:
    """Of everything else in the metadata, and of the tensors' memory."""
    value = zlib.crc32(json.dumps([metadata[name] for name in sorted(metadata) if name != "checksum"]).encode())
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(_bytes(tensors[name]), value)
    return value


def _bytes(tensor: Any) -> Any:
    """The memory of an array or CPU tensor, without a copy."""
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1).view(np.uint8).data
    return memoryview(tensor.reshape(-1).view(_torch().uint8).numpy())


def _write(path: Path, tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    if any(not isinstance(value, np.ndarray) for value in tensors.values()):
        import torch
        from safetensors.torch import save_file

        everything = {name: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for name, v in tensors.items()}
        save_file(everything, path, metadata)
    else:
        from safetensors.numpy import save_file as save_arrays

        save_arrays(tensors, path, metadata)


def _header(path: Path) -> dict[str, str]:
    """The metadata of a checkpoint, unchecked.

    Raises:
        _Damaged: when it cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise _Damaged(" ".join(str(error).split()) or type(error).__name__) from None


def _read(path: Path) -> tuple[dict[str, str], float, dict[str, Any]]:
    """Key, seconds and tree of a checkpoint.

    Raises:
        _Damaged: when it is not whole.
    """
    from safetensors import SafetensorError, safe_open

    try:
        metadata = _header(path)
        plain = metadata["tree"]
        framework = "pt" if '{"x":' in plain else "np"  # torch is imported only where a tensor of it was saved
        with safe_open(path, framework=framework) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no mapping
        if metadata["format"] != FORMAT:
            raise _Damaged(f"format {metadata['format']}, expected {FORMAT}")
        if framework == "pt":
            import torch  # noqa: F401 - _checksum asks for it
        if int(metadata["checksum"]) != _checksum(metadata, tensors):
            raise _Damaged("its checksum does not match")
        if int(metadata["step"]) != _step(path):
            raise _Damaged(f"it was saved at step {metadata['step']}")
        return json.loads(metadata["key"]), float(metadata["seconds"]), _unpacked(json.loads(plain), tensors)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise _Damaged(" ".join(str(error).split()) or type(error).__name__) from None


def _sync(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
