"""Checkpoints where they once went wrong: other runs' files, headers that lie, odd strides."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paperbook.study.checkpoints import CheckpointError, Checkpoints

KEY = {"config": "abcdef", "seed": "0", "code": "c"}


def back(folder: Path, value: Any) -> Any:
    Checkpoints(folder, KEY).save(1, values={"v": value})
    resumed = Checkpoints(folder, KEY).resume()
    assert resumed is not None
    return resumed.values["v"]


def test_a_save_never_deletes_what_another_run_left(tmp_path: Path) -> None:
    theirs = Checkpoints(tmp_path, KEY)
    files = [theirs.save(10), theirs.save(20)]
    theirs.release()
    with pytest.raises(CheckpointError, match=r"belongs to another run: its seed differs \(0 there, 1 here\).*--force"):
        Checkpoints(tmp_path, KEY | {"seed": "1"}).save(30)
    with pytest.raises(CheckpointError, match="holds step 20, later than 5; resume first"):
        Checkpoints(tmp_path, KEY).save(5)
    assert all(file.is_file() for file in files) and Checkpoints(tmp_path, KEY).steps() == [10, 20]


@pytest.mark.parametrize("field", [b"abcdef", b'"step":"20"', b'"seconds":"'])
def test_a_flipped_bit_anywhere_in_the_header_is_damage_not_another_run(tmp_path: Path, field: bytes) -> None:
    kept = Checkpoints(tmp_path, KEY, clock=lambda: 5.0)
    kept.save(10)
    victim = kept.save(20)
    kept.release()
    content = bytearray(victim.read_bytes())
    at = content.find(field)
    assert at > 0
    last = at + len(field) - (2 if field.endswith(b'0"') else 1) + (1 if field.endswith(b':"') else 0)
    content[last] ^= 1
    victim.write_bytes(content)
    with pytest.warns(RuntimeWarning, match="step-000000020.safetensors is damaged .*; going back to step 10"):
        resumed = Checkpoints(tmp_path, KEY).resume()
    assert resumed is not None and resumed.step == 10 and victim.with_suffix(".damaged").is_file()


def test_the_step_is_the_one_it_was_saved_at_not_the_files_name(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, KEY)
    file = kept.save(10)
    kept.release()
    file.rename(file.with_name("step-000000030.safetensors"))
    with pytest.warns(RuntimeWarning, match="it was saved at step 10.*starting from the beginning"):
        assert Checkpoints(tmp_path, KEY).resume() is None


def test_what_this_attempt_saved_is_no_earlier_attempt(tmp_path: Path) -> None:
    now = 50.0
    run = Checkpoints(tmp_path, KEY, clock=lambda: now)
    run.child("head").save(1)
    run.child("head").resume()
    assert run.earlier_seconds == 0.0
    again = Checkpoints(tmp_path, KEY, clock=lambda: 7.0)
    again.child("head").resume()
    assert again.earlier_seconds == 50.0
    again.child("head").save(2)
    third = Checkpoints(tmp_path, KEY, clock=lambda: 0.0)
    third.child("head").resume()
    assert third.earlier_seconds == 57.0, "the time of all attempts"


@pytest.mark.parametrize("tensor", [
    torch.arange(4.0)[::2][:1], torch.arange(12.0).reshape(3, 4)[:1, 1:2].T, torch.tensor([1 + 2j]).conj().imag,
    torch.ones(1).expand(3, 3), torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.zeros(0, 3, dtype=torch.bfloat16),
])  # fmt: skip
def test_strides_do_not_matter(tmp_path: Path, tensor: torch.Tensor) -> None:
    found = back(tmp_path, tensor)
    assert found.dtype == tensor.dtype and found.shape == tensor.shape and torch.equal(found, tensor)


@pytest.mark.parametrize("value", [
    np.array([1.0], ">f8"), np.longdouble(1.5), np.complex64(1j), torch.eye(2).to_sparse(), torch.empty(2, device="meta"),
    torch.ones(2, dtype=torch.complex128), np.str_("text"), os.stat_result(range(10)),
], ids=["byte order", "longdouble", "complex", "sparse", "meta", "complex128", "numpy text", "named tuple"])  # fmt: skip
def test_what_would_not_come_back_as_it_was_is_refused_with_its_place(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match=r"values\.a\[1\]: expected"):
        Checkpoints(tmp_path, KEY).save(1, values={"a": [0, value]})
    assert not list(tmp_path.glob("step-*")) and not list(tmp_path.glob("*.tmp"))
