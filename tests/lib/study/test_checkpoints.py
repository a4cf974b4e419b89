"""Checkpoints: exact round trips, bitwise resumption, and what survives damage, full disks, other runs and other processes."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from paperbook.study import checkpoints as module
from paperbook.study.checkpoints import CheckpointError, Checkpoints, TrainingDiverged, check_finite

KEY = {"config": "abc", "seed": "0", "code": "def"}


def made(folder: Path, **options: Any) -> Checkpoints:
    return Checkpoints(folder, KEY, **{"every_seconds": 0, **options})


def again(folder: Path, values: dict[str, Any], **options: Any) -> dict[str, Any]:
    """`values` after a round through a file."""
    made(folder, **options).save(1, values=values)
    resumed = made(folder, **options).resume()
    assert resumed is not None and resumed.step == 1 and resumed.file == folder / "step-000000001.safetensors"
    return resumed.values


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes()


# --- the tree ---------------------------------------------------------------------------------------------------------


PLAIN = {
    "none": None, "yes": True, "no": False, "zero": 0, "large": 2**127 + 3, "negative": -5, "text": "é\n\"{'x':", "empty": "",
    "lists": [[], [1, [2.5, None]], ()], "pair": (1, ("a", [True])), "ints": {0: {"step": 1.0}, 17: {}, -1: "x"}, "dict": {},
    "same digits": {1: "number", "1": "text"}, "looks like ours": {"x": "000000 t", "d": [["a", 1]], "f": "nan"},
    "floats": [0.1, 1e-320, 1.7976931348623157e308, math.pi, 3.0],
}  # fmt: skip


def same(a: Any, b: Any) -> bool:
    """Equal in value and in type, all the way down; also the order of keys."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and [type(k) for k in a] == [type(k) for k in b] and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def test_plain_data_come_back_as_they_were(tmp_path: Path) -> None:
    assert same(again(tmp_path, PLAIN), PLAIN)
    assert not same({"a": [1]}, {"a": (1,)}) and not same({"a": 1}, {"a": True})


DTYPES = st.sampled_from(["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?"]).map(np.dtype)
ARRAYS = arrays_of.arrays(DTYPES, arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | ARRAYS | DTYPES.flatmap(arrays_of.from_dtype)
    | ARRAYS.map(torch.from_numpy) | ARRAYS.map(lambda array: torch.from_numpy(array).to(torch.bfloat16))
)  # fmt: skip
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3), max_leaves=8,
)  # fmt: skip


def told(value: Any) -> Any:
    """Kind and bits of everything in `value`, so that NaN and -0.0 can be compared."""
    if isinstance(value, dict):
        return ["dict", [(type(key).__name__, key, told(item)) for key, item in value.items()]]
    if isinstance(value, list | tuple):
        return [type(value).__name__, [told(item) for item in value]]
    if isinstance(value, torch.Tensor):
        return ["tensor", value.dtype, tuple(value.shape), bits(value)]
    if isinstance(value, np.ndarray | np.generic):
        return [type(value).__name__, value.dtype.str, value.shape, value.tobytes()]
    # JSON has one NaN: its sign and payload mean nothing to a training
    return [type(value).__name__, "nan" if value != value else repr(value)]


@settings(deadline=None, max_examples=150, database=None)
@given(TREES)
def test_any_tree_comes_back_to_the_bit(tree: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert told(again(Path(folder), {"tree": tree})["tree"]) == told(tree)


def test_numbers_that_json_cannot_say(tmp_path: Path) -> None:
    found = again(tmp_path, {"odd": [math.nan, math.inf, -math.inf, -0.0]})["odd"]
    assert math.isnan(found[0]) and found[1:3] == [math.inf, -math.inf] and math.copysign(1, found[3]) == -1


@pytest.mark.parametrize("with_torch", [False, True], ids=["arrays only", "beside a tensor"])
def test_arrays_keep_dtype_shape_and_bits(with_torch: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    kinds = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool"]
    arrays = {name: (rng.normal(size=(3, 4)) * 100).astype(name) for name in kinds}
    arrays |= {"nan": np.array([np.nan, -0.0, np.inf]), "empty": np.empty((0, 3)), "scalar shape": np.array(2.5),
               "transposed": rng.normal(size=(3, 4)).T, "strided": np.arange(12)[::-3]}  # fmt: skip
    extra = {"tensor": torch.ones(2)} if with_torch else {}
    found = again(tmp_path, {**arrays, **extra})
    for name, array in arrays.items():
        assert isinstance(found[name], np.ndarray) and found[name].dtype == array.dtype and found[name].shape == array.shape, name
        assert found[name].tobytes() == array.tobytes(), name
    scalars = again(tmp_path / "scalars", {"half": np.float16(1.5), "count": np.int64(7), "yes": np.bool_(True), **extra})
    assert (type(scalars["half"]), type(scalars["count"]), type(scalars["yes"])) == (np.float16, np.int64, np.bool_)
    assert scalars["half"] == 1.5 and scalars["count"] == 7 and scalars["yes"]


def test_tensors_keep_dtype_shape_and_bits(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    base = torch.randn(6, 4, generator=g)
    tensors = {str(kind): base.to(kind) for kind in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64,
                                                     torch.int32, torch.uint8, torch.bool)}  # fmt: skip
    tensors |= {"tied": base, "tied too": base, "part": base[1:3, ::2], "transposed": base.T, "empty": torch.empty(0, 3),
                "scalar": torch.tensor(2.5), "nan": torch.tensor([math.nan, -0.0]), "expanded": torch.ones(1).expand(5),
                "gradient": base.clone().requires_grad_()}  # fmt: skip
    found = again(tmp_path, tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert bits(found[name]) == bits(tensor.detach()), name
    found["tied"].zero_()
    assert torch.equal(found["tied too"], base), "two tensors, not two names of one"


@pytest.mark.parametrize(("value", "message"), [
    (object(), r"a\.b\[1\]: expected plain data, an array or a tensor, got object"),
    ({1, 2}, r"a\.b\[1\]: expected plain data, an array or a tensor, got set"),
    (lambda: 0, r"a\.b\[1\]: expected plain data, an array or a tensor, got function"),
    (b"raw", r"a\.b\[1\]: expected plain data, an array or a tensor, got bytes"),
    (np.array([object()]), r"a\.b\[1\]: expected an array of numbers, got dtype (object|\|O)"),
    (np.array(["text"]), r"a\.b\[1\]: expected an array of numbers, got dtype <U4"),
    ({(1, 2): 3}, r"a\.b\[1\]: expected keys of text or whole numbers, got \(1, 2\)"),
    ({True: 3}, r"a\.b\[1\]: expected keys of text or whole numbers, got True"),
])  # fmt: skip
def test_what_needs_pickle_is_refused_by_its_place(value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=message):
        made(tmp_path / "c").save(1, values={"a": {"b": [0, value]}})
    assert not (tmp_path / "c").exists() or names(tmp_path / "c") == []


def test_no_pickle_is_in_the_file(tmp_path: Path) -> None:
    """A reader that knows nothing of this project opens it: eight bytes of length, JSON, then the tensors."""
    path = made(tmp_path).save(3, values={"w": torch.ones(2)})
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert header["__metadata__"]["step"] == "3" and json.loads(header["__metadata__"]["key"]) == KEY
    assert b"\x80\x04" not in raw[:2]


def test_without_tensors_torch_is_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys; import numpy as np; from paperbook.study.checkpoints import Checkpoints\n"
        f"c = Checkpoints({str(tmp_path)!r}, {{'config': 'x'}}, every_seconds=0); g = np.random.default_rng(3)\n"
        "c.save(1, values={'w': np.ones(3)}, g=g); first = g.random(2).tolist()\n"
        "assert c.resume(g=g).values['w'].sum() == 3 and g.random(2).tolist() == first\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- resuming a training ----------------------------------------------------------------------------------------------


def train(folder: Path, *, stop: int | None = None, steps: int = 30, optimiser: str = "adamw", every: int = 4) -> dict[str, Any]:
    """A small training that draws from every random stream there is; `stop` ends it as a kill would, between two steps."""
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)  # noqa: NPY002 - the global stream is under test
    generator, arrays = torch.Generator().manual_seed(4), np.random.default_rng(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    if optimiser == "adamw":
        opt: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    else:
        opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    schedule: torch.optim.lr_scheduler.LRScheduler
    if optimiser == "adamw":  # this one moves the optimiser's momentum too
        schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.05, total_steps=steps)
    else:
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    kept = made(folder)
    parts = {"model": model, "optimiser": opt, "schedule": schedule, "generator": generator, "arrays": arrays}
    resumed = kept.resume(**parts)
    first, path = (resumed.step, list(resumed.values["path"])) if resumed else (0, [])
    for step in range(first + 1, steps + 1):
        x = torch.randn(16, 4, generator=generator) + float(arrays.normal()) + random.random() + np.random.rand()  # noqa: NPY002
        loss = ((model(x) - x.sum(dim=1, keepdim=True)) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        path.append(float(loss.detach()))
        if step % every == 0:
            kept.save(step, values={"path": path}, **parts)
        if step == stop:
            break
    state = {name: value.clone() for name, value in model.state_dict().items()}
    after = (random.random(), float(np.random.rand()), float(torch.rand(())), float(arrays.random()))  # noqa: NPY002
    return {"path": path, "state": state, "lr": schedule.get_last_lr(), "first": first, "next": after}


@pytest.mark.parametrize("optimiser", ["adamw", "momentum"])
@pytest.mark.parametrize("stop", [3, 4, 17, 29])
def test_a_resumed_training_ends_with_the_same_bits(stop: int, optimiser: str, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", optimiser=optimiser)
    train(tmp_path / "killed", stop=stop, optimiser=optimiser)
    gc.collect()
    resumed = train(tmp_path / "killed", optimiser=optimiser)
    assert resumed["first"] == stop // 4 * 4
    for key in ("path", "lr", "next"):
        assert resumed[key] == whole[key], key
    assert resumed["state"].keys() == whole["state"].keys()
    assert all(bits(resumed["state"][name]) == bits(value) for name, value in whole["state"].items())
    assert names(tmp_path / "killed") == names(tmp_path / "whole") == ["step-000000024.safetensors", "step-000000028.safetensors"]


def test_the_training_of_these_tests_needs_every_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would not see a stream that is forgotten."""
    whole = train(tmp_path / "whole")["path"]
    train(tmp_path / "killed", stop=17)
    real = module._read

    def forgetful(drop: str) -> Callable[[Path], Any]:
        def read(path: Path) -> Any:
            *rest, tree = real(path)
            torch.manual_seed(99)
            now = module._streams()
            return (*rest, {**tree, "rng": {name: now[name] if name == drop else value for name, value in tree["rng"].items()}})

        return read

    for stream in ("python", "numpy", "torch"):
        monkeypatch.setattr(module, "_read", forgetful(stream))
        copy = tmp_path / stream
        copy.mkdir()
        for path in (tmp_path / "killed").glob("*.safetensors"):
            (copy / path.name).write_bytes(path.read_bytes())
        assert train(copy)["path"] != whole, stream


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_every_numpy_generator_goes_on_where_it_was(kind: str, tmp_path: Path) -> None:
    stream = np.random.Generator(getattr(np.random, kind)(3))
    stream.integers(7, size=3, dtype=np.uint32)  # an odd number: half of a 64-bit draw is left over
    made(tmp_path).save(1, stream=stream)
    ahead = stream.integers(7, size=3, dtype=np.uint32).tolist(), stream.normal(size=5).tolist()
    other = np.random.Generator(getattr(np.random, kind)(4))
    assert made(tmp_path).resume(stream=other) is not None
    assert (other.integers(7, size=3, dtype=np.uint32).tolist(), other.normal(size=5).tolist()) == ahead


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made(tmp_path).save(1, model=torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"parts: .*step-000000001.safetensors holds \['model'\], asked for were \['head'\]"):
        made(tmp_path).resume(head=torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="lr: expected something with state_dict, or a torch or numpy generator, got float"):
        made(tmp_path / "b").save(1, lr=0.1)


def test_nothing_to_resume(tmp_path: Path) -> None:
    assert made(tmp_path / "none").resume() is None and not (tmp_path / "none").exists(), "looking must not write"


# --- which and how many -----------------------------------------------------------------------------------------------


def test_the_newest_two_are_kept_by_step_not_by_clock(tmp_path: Path) -> None:
    kept = made(tmp_path)
    for step in (2, 9, 10, 100):
        assert kept.save(step, values={"step": step}).is_file()
        assert len(names(tmp_path)) == min(2, [2, 9, 10, 100].index(step) + 1)
    assert kept.steps() == [10, 100]
    # a clock that went backwards: the older one carries the later date
    os.utime(tmp_path / "step-000000010.safetensors", (4e9, 4e9))
    os.utime(tmp_path / "step-000000100.safetensors", (1, 1))
    found = kept.resume()
    assert found is not None and found.values == {"step": 100} and found.step == 100


def test_steps_of_more_than_nine_digits_are_in_order(tmp_path: Path) -> None:
    kept = made(tmp_path)
    for step in (999_999_999, 1_000_000_000, 10_000_000_000):
        kept.save(step)
    assert kept.steps() == [1_000_000_000, 10_000_000_000]


@pytest.mark.parametrize("keep", [1, 3])
def test_keep(keep: int, tmp_path: Path) -> None:
    kept = made(tmp_path, keep=keep)
    for step in range(5):
        kept.save(step)
    assert kept.steps() == list(range(5 - keep, 5))


def test_an_old_one_goes_only_after_the_new_one_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    kept = made(tmp_path)
    kept.save(1)
    kept.save(2)
    replace, unlink, fsync = Path.replace, Path.unlink, os.fsync

    def note(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **options: Any) -> Any:
            order.append(what)
            return call(*args, **options)

        return noted

    monkeypatch.setattr(Path, "replace", note("rename", replace))
    monkeypatch.setattr(Path, "unlink", note("remove", unlink))
    monkeypatch.setattr(os, "fsync", note("sync", fsync))
    kept.save(3)
    assert order == ["sync", "rename", "sync", "remove"], "the file, its name, the folder; only then the oldest goes"
    assert kept.steps() == [2, 3]


def test_due_follows_the_seconds_that_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    kept = made(tmp_path, every_seconds=60)
    assert not kept.due()
    now[0] += 59.9
    assert not kept.due()
    now[0] += 0.2
    assert kept.due() and kept.due()
    kept.save(1)
    assert not kept.due(), "a save starts the count anew"
    monkeypatch.setattr(time, "time", lambda: -1e9)  # a wall clock that jumps back changes nothing
    now[0] += 61
    assert kept.due()


def test_the_interval_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAPERBOOK_CHECKPOINT_SECONDS", raising=False)
    assert Checkpoints(tmp_path, KEY).every_seconds == 60
    monkeypatch.setenv("PAPERBOOK_CHECKPOINT_SECONDS", "0.5")
    assert Checkpoints(tmp_path, KEY).every_seconds == 0.5 == Checkpoints(tmp_path, KEY).child("part").every_seconds
    for text in ("soon", "-1", "nan"):
        monkeypatch.setenv("PAPERBOOK_CHECKPOINT_SECONDS", text)
        with pytest.raises(ValueError, match="(PAPERBOOK_CHECKPOINT_SECONDS|every_seconds): expected a number.*, got"):
            Checkpoints(tmp_path, KEY)


@pytest.mark.parametrize(("call", "message"), [
    (lambda folder: Checkpoints(folder, KEY, keep=0), "keep: expected at least 1, got 0"),
    (lambda folder: Checkpoints(folder, KEY, every_seconds=-1), "every_seconds: expected a number >= 0, got -1"),
    (lambda folder: made(folder).save(-1), "step: expected a number >= 0, got -1"),
    (lambda folder: made(folder).child("../up"), "name: expected letters, digits, '.', '_' and '-', got '../up'"),
    (lambda folder: made(folder).child(".hidden"), "name: expected letters"),
    (lambda folder: made(folder).child(""), "name: expected letters"),
])  # fmt: skip
def test_bad_arguments(call: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        call(tmp_path / "c")
    assert not (tmp_path / "c").exists()


# --- seconds of earlier attempts --------------------------------------------------------------------------------------


def test_seconds_of_all_attempts_add_up(tmp_path: Path) -> None:
    first = made(tmp_path, clock=lambda: 40.0)
    first.child("a").save(1)
    assert first.earlier_seconds == 0.0
    second = made(tmp_path, clock=lambda: 2.5)
    part = second.child("a")
    assert part.resume() is not None
    assert second.earlier_seconds == part.earlier_seconds == 40.0
    second.child("b").save(1)  # knows what the attempt before its own has cost
    part.save(2)
    part.release()
    third = made(tmp_path, clock=lambda: 0.0)
    assert third.child("b").resume() is not None and third.earlier_seconds == 42.5
    assert third.child("a").resume() is not None and third.earlier_seconds == 42.5, "the most that any part knows, not the sum"


# --- damage -----------------------------------------------------------------------------------------------------------


def two(folder: Path) -> list[Path]:
    kept = made(folder)
    files = [kept.save(step, values={"step": step, "w": torch.arange(50.0)}) for step in (10, 20)]
    kept.release()
    return files


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip_tensor(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(bytes(raw))


def _flip_tree(path: Path) -> None:
    raw = path.read_bytes()
    assert raw.count(rb"[\"step\",20]") == 1 or raw.count(rb"[\"step\",10]") == 1
    path.write_bytes(raw.replace(rb"[\"step\",20]", rb"[\"step\",21]").replace(rb"[\"step\",10]", rb"[\"step\",11]"))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _text(path: Path) -> None:
    path.write_text("<html>not found</html>")


def _header(path: Path) -> None:
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])


def _foreign(path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"w": torch.ones(2)}, path)  # whole, but no checkpoint of ours


def _later_format(path: Path) -> None:
    raw = path.read_bytes()
    assert raw.count(b'"format":"1"') == 1
    path.write_bytes(raw.replace(b'"format":"1"', b'"format":"9"'))


DAMAGE = [_cut, _flip_tensor, _flip_tree, _empty, _text, _header, _foreign, _later_format]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_a_damaged_one_falls_back_to_the_one_before_and_says_so(damage: Callable[[Path], None], tmp_path: Path) -> None:
    old, new = two(tmp_path)
    damage(new)
    content = new.read_bytes()
    with pytest.warns(RuntimeWarning, match=r"step-000000020\.safetensors is damaged \(.+\); going back to step 10") as told:
        found = made(tmp_path).resume()
    assert found is not None and (found.step, found.values["step"], found.file) == (10, 10, old) and len(told) == 1
    assert torch.equal(found.values["w"], torch.arange(50.0))
    # set aside as evidence, never counted again
    assert names(tmp_path) == ["step-000000010.safetensors", "step-000000020.damaged"]
    assert (tmp_path / "step-000000020.damaged").read_bytes() == content


def test_both_damaged_start_from_the_beginning(tmp_path: Path) -> None:
    files = two(tmp_path)
    _cut(files[0])
    _flip_tensor(files[1])
    with pytest.warns(RuntimeWarning) as told:
        assert made(tmp_path).resume() is None
    assert [str(w.message).rsplit("; ", 1)[1] for w in told] == ["going back to step 10", "starting from the beginning"]
    made(tmp_path).save(1)  # and the folder is usable


def test_every_byte_that_is_cut_is_seen(tmp_path: Path) -> None:
    """No length of a half-written file passes for a checkpoint."""
    path = made(tmp_path).save(1, values={"w": np.arange(6.0)})
    raw = path.read_bytes()
    for length in sorted({*range(0, len(raw), 97), *range(len(raw) - 49, len(raw))}):
        path.write_bytes(raw[:length])
        with pytest.raises(module._Damaged):
            module._read(path)
    path.write_bytes(raw)
    assert module._read(path)[-1]["values"]["w"].tolist() == list(range(6))


def test_a_save_killed_half_way_leaves_no_checkpoint_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two(tmp_path)

    class Killed(BaseException):
        """Stands for the end of the process."""

    def half(path: Path, *_: Any) -> None:
        path.write_bytes(b"half of it")
        raise Killed

    kept = made(tmp_path)
    assert kept.resume() is not None
    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", half)
        with pytest.raises(Killed):
            kept.save(30)
    assert kept.steps() == [10, 20]
    kept.release()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is damaged
        found = made(tmp_path).resume()
    assert found is not None and found.step == 20
    assert names(tmp_path) == ["step-000000010.safetensors", "step-000000020.safetensors"]


def test_left_overs_of_a_killed_save_are_removed_and_never_read(tmp_path: Path) -> None:
    two(tmp_path)
    (tmp_path / "step-000000030.tmp").write_bytes(b"half")
    found = made(tmp_path).resume()
    assert found is not None and found.step == 20
    assert names(tmp_path) == ["step-000000010.safetensors", "step-000000020.safetensors"]


# --- another run ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"config": "other"}, r"its parameters differ \(abc there, other here\)"),
        ({"seed": "7"}, r"its seed differs \(0 there, 7 here\)"),
        ({"code": "new"}, r"the code behind the page has changed since \(def there, new here\)"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(change: dict[str, str], reason: str, tmp_path: Path) -> None:
    two(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}
    model = torch.nn.Linear(2, 2)
    weights = model.weight.detach().clone()
    with pytest.raises(CheckpointError, match=rf"step-000000020\.safetensors belongs to another run: {reason}; start anew with"):
        Checkpoints(tmp_path, KEY | change).resume(model=model)
    assert torch.equal(model.weight, weights) and {p.name: p.read_bytes() for p in tmp_path.glob("*.safetensors")} == before


def test_parts_have_folders_and_keys_of_their_own(tmp_path: Path) -> None:
    root = made(tmp_path)
    root.save(5)
    root.child("one").save(1, values={"part": 1})
    root.child("two").save(2, values={"part": 2})
    assert names(tmp_path) == ["one", "step-000000005.safetensors", "two"] and root.child("one").name == "one"
    found = root.child("two").resume()
    assert found is not None and found.values == {"part": 2}
    (tmp_path / "two" / "step-000000002.safetensors").replace(tmp_path / "one" / "step-000000002.safetensors")
    with pytest.raises(CheckpointError, match=r"it belongs to another part of the run \(two there, one here\)"):
        root.child("one").resume()


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "reason"), [
    (errno.ENOSPC, "the disk is full"), (errno.EROFS, "the disk is read-only"), (errno.EDQUOT, "the quota is used up"),
    (errno.EACCES, "no permission"),
])  # fmt: skip
@pytest.mark.parametrize("when", ["write", "sync", "rename"])
def test_a_disk_that_refuses_leaves_what_was_there(
    code: int, reason: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = made(tmp_path)
    kept.save(10, values={"w": 1})
    kept.save(20, values={"w": 2})
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")}

    def refuse(*args: Any, **options: Any) -> None:
        raise OSError(code, os.strerror(code))

    target: dict[str, tuple[Any, str]] = {"write": (module, "_write"), "sync": (os, "fsync"), "rename": (Path, "replace")}
    with monkeypatch.context() as patch:
        patch.setattr(*target[when], refuse)
        message = rf"step-000000030\.safetensors could not be written \({reason}\); the checkpoint of step 20 is intact"
        with pytest.raises(CheckpointError, match=message):
            kept.save(30)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.safetensors")} == before
    assert names(tmp_path) == ["step-000000010.safetensors", "step-000000020.safetensors"], "no temporary file is left"
    kept.save(40)  # once there is room again it goes on
    assert kept.steps() == [20, 40]


@pytest.mark.parametrize("with_torch", [False, True], ids=["arrays", "tensors"])
def test_a_disk_that_is_really_full(with_torch: bool, tmp_path: Path) -> None:
    """What the file format's own writer says and leaves when there is no room, not what we make it say."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"],
                                                         capture_output=True, check=False).returncode:  # fmt: skip
        pytest.skip("no permission to mount a small disk (unshare -rm); the test above makes the system calls fail instead")
    code = f"""
import sys
import numpy as np
from pathlib import Path
from paperbook.study.checkpoints import CheckpointError, Checkpoints
{"import torch" if with_torch else ""}
folder = Path(sys.argv[1])
kept = Checkpoints(folder, {{"config": "x"}}, every_seconds=0)
def values(rows): return {{"w": {"torch" if with_torch else "np"}.ones(rows)}}
kept.save(1, values=values(10))
try:
    kept.save(2, values=values(500_000))
except CheckpointError as error:
    print(error)
print(sorted(path.name for path in folder.iterdir()))
assert kept.resume().values["w"].sum() == 10
kept.save(3, values=values(20))
print(kept.steps())
"""
    script = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", str(tmp_path), sys.executable, code],
                          capture_output=True, text=True, check=False, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    message, files, steps = done.stdout.splitlines()
    assert message.endswith("2.safetensors could not be written (the disk is full); the checkpoint of step 1 is intact")
    assert files == "['.lock', 'step-000000001.safetensors']" and steps == "[1, 3]"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match=r"checkpoint: .*file/checkpoints cannot be written \(Not a directory\)"):
        made(tmp_path / "file" / "checkpoints").save(1)
    assert (tmp_path / "file").read_text() == "in the way"


# --- other processes --------------------------------------------------------------------------------------------------


def test_two_never_write_the_same_checkpoints(tmp_path: Path) -> None:
    """A second process is refused while the first lives, whatever it wants, and goes on once that one is killed."""
    code = (
        "import sys, time; from paperbook.study.checkpoints import Checkpoints\n"
        f"c = Checkpoints({str(tmp_path / 'c')!r}, {KEY!r}, every_seconds=0); c.save(1)\n"
        "print('saved', flush=True); time.sleep(600)"
    )
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "saved\n"
        mine = made(tmp_path / "c")
        for attempt in (lambda: mine.save(2), mine.resume):
            with pytest.raises(CheckpointError, match=r"another process writes in .*/c; stop it, or wait for it"):
                attempt()
        assert mine.steps() == [1]
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
        if other.stdout is not None:
            other.stdout.close()
    found = mine.resume()
    assert found is not None and found.step == 1


def test_the_lock_goes_with_release_and_with_the_object(tmp_path: Path) -> None:
    def taken() -> bool:
        """Whether another process would be refused: what it opens itself is locked against, as here."""
        with (tmp_path / ".lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    kept = made(tmp_path)
    kept.save(1)
    assert taken()
    kept.release()
    kept.release()
    assert not taken()
    assert kept.resume() is not None and taken(), "the next use takes it again"
    del kept
    assert not taken()


# --- losses that are no number ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_names_step_and_checkpoint(loss: float, tmp_path: Path) -> None:
    check_finite(0.0, 1)
    with pytest.raises(TrainingDiverged, match=rf"^loss: expected a finite number, got {loss} at step 7; there is no good ch"):
        check_finite(loss, 7)
    kept = made(tmp_path).child("residual-n20")
    kept.save(100)
    kept.save(110)
    with pytest.raises(TrainingDiverged) as caught:
        check_finite(loss, 120, kept, "lower lr (now 0.1)")
    assert (caught.value.step, caught.value.checkpoint) == (120, 110) and str(caught.value.loss) == str(loss)
    assert str(caught.value) == (f"loss of residual-n20: expected a finite number, got {loss} at step 120; last good checkpoint: "
                                 "step 110; lower lr (now 0.1)")  # fmt: skip
