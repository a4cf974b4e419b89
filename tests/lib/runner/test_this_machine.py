"""What the machine has, and what a configuration that asks for more is told."""

from __future__ import annotations

import os
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from toybook import Smi, tree

from paperbook.runner import checks
from paperbook.study.requirements import Asset, Needs

Usage = namedtuple("Usage", "total used free")


def ids() -> list[str]:
    checks.gpus.cache_clear()
    return [gpu.id for gpu in checks.gpus()]


def test_without_nvidia_smi_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ids() == []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert ids() == []


@pytest.mark.parametrize(("text", "code"), [("", 0), ("No devices were found", 0), ("NVIDIA-SMI has failed", 9), ("", 9)])
def test_nvidia_smi_that_finds_nothing(smi: Smi, text: str, code: int) -> None:
    smi.says(text, code)
    assert ids() == []


def test_eight_gpus_with_names_and_memory(smi: Smi) -> None:
    smi.has(8)
    assert ids() == [str(i) for i in range(8)]
    gpu = checks.gpus()[3]
    assert gpu.name == "NVIDIA H200" and gpu.memory_gb == pytest.approx(143771 * 1.048576e-3)


def test_memory_that_is_not_told(smi: Smi) -> None:
    smi.says("0, GPU-a, NVIDIA GB10, [N/A]")
    assert ids() == ["0"] and checks.gpus()[0].memory_gb is None


@pytest.mark.parametrize(("variable", "expected"), [
    ("2,5", ["2", "5"]), ("5, 2", ["5", "2"]), ("GPU-3333-abc,GPU-0000-abc", ["GPU-3333-abc", "GPU-0000-abc"]), ("", []),
    ("-1", []), ("0,-1,1", ["0"]), ("NoDevFiles", []), ("1,9,2", ["1"]), ("MIG-1234", ["MIG-1234"]), ("GPU-33", ["GPU-33"]),
])  # fmt: skip
def test_what_cuda_visible_devices_leaves(smi: Smi, variable: str, expected: list[str]) -> None:
    smi.has(8)
    assert smi.visible(variable) == expected


def test_a_gpu_by_its_uuid_has_its_memory(smi: Smi) -> None:
    smi.has(8)
    smi.visible("GPU-3333-abc")
    assert checks.gpus()[0].memory_gb == pytest.approx(150.755, abs=0.01)


@pytest.mark.parametrize(
    ("device", "wants"), [("auto", True), ("cuda", True), ("cuda:1", True), ("cpu", False), ("numpy", False)]
)
def test_who_wants_a_gpu(needs: Any, device: str, wants: bool) -> None:
    assert checks.wants_gpu(needs(device=device)) is wants


def found(cfg: Any, gpus_per_run: float | None = None) -> tuple[list[str], list[str]]:
    return checks.machine(cfg, gpus_per_run)


def test_a_machine_that_has_everything(needs: Any, root: Path) -> None:
    assert found(needs()) == ([], [])


def test_a_missing_asset_comes_with_what_to_do(needs: Any, root: Path) -> None:
    needs.data = [
        Asset("weights at 1a2b", False, "hf download me/weights --revision 1a2b --include '*.safetensors'"),
        Asset("rows", True, "hf download me/rows"),
        Asset("a folder", False, "there is no folder /data/x"),
    ]
    assert found(needs())[0] == [
        "weights at 1a2b: not on this machine; fetch it with: hf download me/weights --revision 1a2b --include '*.safetensors'",
        "a folder: not on this machine; there is no folder /data/x",
    ]


def test_cuda_without_a_gpu(needs: Any, root: Path) -> None:
    (problem,), warnings = found(needs(device="cuda"))
    assert problem == "device: 'cuda' was asked for, but nvidia-smi finds no GPU here; use --set device=cpu" and not warnings


def test_auto_without_a_gpu_is_worth_a_note(needs: Any, root: Path, smi: Smi) -> None:
    assert found(needs(device="auto")) == ([], ["device: auto, and there is no GPU here: it will run on the CPU"])
    smi.has(1)
    assert found(needs(device="auto")) == ([], [])


def test_a_device_beyond_those_a_run_sees(needs: Any, root: Path, smi: Smi) -> None:
    smi.has(4)
    (problem,), _ = found(needs(device="cuda:3"), 1.0)
    assert problem == "device: 'cuda:3' was asked for, but each run sees 1 of the GPUs, counted from 0; use --set device=cuda"
    assert found(needs(device="cuda:3"), 4.0)[0] == found(needs(device="cuda:0"), 0.5)[0] == []
    assert found(needs(device="cuda:4"), None)[0] != [] == found(needs(device="cuda:3"), None)[0]


def test_runs_without_a_gpu_on_a_machine_that_has_some(needs: Any, root: Path, smi: Smi) -> None:
    smi.has(2, mib=10)
    needs.wanted = Needs(gpu_gb=500)
    assert found(needs(device="auto"), 0) == ([], [])  # it will run on the CPU, where GPU memory does not count
    (problem,), _ = found(needs(device="cuda"), 0)
    assert "with --gpus-per-run 0 runs see no GPU" in problem


def test_more_gpus_than_there_are(needs: Any, root: Path, smi: Smi) -> None:
    assert found(needs(), 0.5)[0] == ["gpus-per-run: 0.5 were asked for, this machine has 0"]
    smi.has(2)
    assert found(needs(), 3)[0] == ["gpus-per-run: 3 were asked for, this machine has 2"]
    assert found(needs(), 2)[0] == []


def test_gpu_memory_names_the_parameter_to_lower(needs: Any, root: Path, smi: Smi) -> None:
    smi.has(1, mib=16000)
    needs.wanted = Needs(gpu_gb=12)
    assert found(needs(device="auto"), 1.0)[0] == []
    (problem,), _ = found(needs(device="auto", batch_size=256), 0.5)
    assert problem == "GPU memory: about 12.0 GB are needed, 8.4 GB are there; lower --set batch_size=128"
    assert found(needs(device="cpu"), None)[0] == []
    needs.wanted = Needs(gpu_gb=17)
    assert "about 17.0 GB are needed, 16.8 GB are there" in found(needs(device="cuda"), 2.0)[0][-1]


def test_memory_names_the_parameter_to_lower_or_says_what_is_free(needs: Any, root: Path) -> None:
    import psutil

    memory = psutil.virtual_memory()
    needs.wanted = Needs(memory_gb=memory.total / 1e9 + 1)
    (problem,), warnings = found(needs())
    assert problem.startswith("memory: about ") and problem.endswith("GB; lower --set batch_size=32") and not warnings
    assert found(needs(batch_size=1))[0][0].endswith("lower the sizes of its parameters")
    needs.wanted = Needs(memory_gb=memory.total / 1e9 - 0.001)
    problems, (warning,) = found(needs())
    assert not problems and warning.startswith("memory: about ") and warning.endswith("are free now")


def test_too_little_disk_for_runs_and_for_the_cache(
    needs: Any, root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setenv("PAPERBOOK_CACHE", str(cache / "not" / "yet"))
    usage = {root: 5e9, cache: 50e9}
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda at: Usage(100e9, 0, usage[Path(at)]))
    needs.wanted = Needs(disk_gb=20)
    assert found(needs())[0] == [
        "runs: about 20 GB are needed, 5 GB are free; PAPERBOOK_RUNS and PAPERBOOK_CACHE name other folders",
    ]
    needs.wanted = Needs(disk_gb=60)
    assert [line.split(":")[0] for line in found(needs())[0]] == ["runs", "the cache"]
    needs.wanted = Needs(disk_gb=4)
    assert found(needs())[0] == []


def test_a_folder_that_cannot_be_written(needs: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "file").write_text("")
    for place in (root / "file", root / "file" / "below"):
        monkeypatch.setenv("PAPERBOOK_RUNS", str(place))
        (problem,), _ = found(needs())
        assert problem == f"{place.relative_to(root)}: cannot be written (Not a directory); PAPERBOOK_RUNS names another folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user that is not root")
def test_a_folder_without_permission(needs: Any, root: Path) -> None:
    (root / "runs").mkdir(mode=0o555)
    assert "runs: cannot be written (Permission denied)" in found(needs())[0][0]


def test_looking_leaves_no_trace(needs: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPERBOOK_RUNS", str(root / "a" / "b"))
    before = tree(root)
    assert found(needs())[0] == []
    assert tree(root) == before
