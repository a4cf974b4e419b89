"""The GPU script on a CPU: every line runs at toy size, its skips and failures say what they should."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("gpu.py")


@pytest.fixture(scope="module")
def gpu() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_script", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def start(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False, **options)


def test_every_check_runs_at_toy_size(tmp_path: Path, gpu: Any) -> None:
    out = tmp_path / "sub" / "gpu.json"
    done = start(str(SCRIPT), "--out", str(out), "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text(encoding="utf-8"))
    rows = {row["check"]: row for row in report["checks"]}
    assert list(rows) == [check.__name__ for check, _ in gpu.CHECKS] and report["toy"]
    assert {row["status"] for row in rows.values()} == {"passed"}, done.stdout
    for name in ("head_throughput", "crossing_throughput", "clip_throughput", "language_throughput"):
        found = rows[name]["found"]
        for rates in found.values() if name == "head_throughput" else [found]:
            assert rates["samples_per_s"] > 0 and rates["tflop_per_s"] > 0 and rates["mfu"] is None
    assert rows["resumes"]["found"]["resumed_at"] == 10
    assert rows["head_resumes"]["found"] == {"resumed_at": 5, "checks": 5}
    assert any("safe-residual" in file for file in rows["rehearsals"]["found"]["files"])
    assert report["seconds"] < gpu.BUDGET


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = start(str(SCRIPT), "--out", str(tmp_path / "gpu.json"), env={"CUDA_VISIBLE_DEVICES": "", "PATH": ""})
    assert done.returncode == 0 and done.stdout.startswith("skipped: torch ") and len(done.stdout.splitlines()) == 1
    assert json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["skipped"].endswith("sees no CUDA device")


PLAIN = """
import runpy, sys
MISSING = {"jaxtyping", "pydantic", "datasets", "pyarrow", "papermill", "jupytext", "nbformat", "ipykernel", "pytest", "grimp"}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in MISSING else found(name, package)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_plain_image_is_enough_for_the_torch_parts(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    only = ["heads_agree", "crossing_agrees", "resumes", "rehearsals"]
    done = start("-c", PLAIN, str(SCRIPT), "--out", str(out), "--device", "cpu", "--only", *only)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["jaxtyping"].startswith("missing")
    assert [row["status"] for row in report["checks"]] == ["passed", "passed", "passed", "skipped"]
    reason = report["checks"][-1]["reason"]
    assert reason.startswith("not installed: ") and "pydantic" in reason and "datasets" in reason


def test_a_check_that_fails_or_hangs_is_reported_and_the_next_one_runs(gpu: Any) -> None:
    def hangs(bench: Any) -> dict[str, Any]:
        import time

        time.sleep(30)
        return {}

    def wrong(bench: Any) -> dict[str, Any]:
        return gpu.within({"gap": float("nan"), "other": 1.0}, {"gap": 0.1, "other": 2.0})

    def breaks(bench: Any) -> dict[str, Any]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def lacks(bench: Any) -> dict[str, Any]:
        gpu.need("json", "no_such_package")
        return {}

    rows = [gpu.run_check(check, None, limit) for check, limit in ((hangs, 0.2), (wrong, 5), (breaks, 5), (lacks, 5))]
    assert [row["status"] for row in rows] == ["failed", "failed", "failed", "skipped"]
    assert rows[0]["reason"] == "took longer than 0 s" and rows[0]["seconds"] < 5
    assert rows[1]["reason"] == "gap = nan, at most 0.1"
    assert "illegal memory access" in rows[2]["reason"] and rows[3]["reason"] == "not installed: no_such_package"


@pytest.mark.parametrize(("name", "peak"), [
    ("NVIDIA H200", 989.0), ("NVIDIA H100 80GB HBM3", 989.0), ("NVIDIA H100 PCIe", 756.0), ("NVIDIA A100-SXM4-80GB", 312.0),
    ("NVIDIA L40S", 362.0), ("NVIDIA L4", 121.0), ("NVIDIA GeForce RTX 4090", 165.0), ("Some Other Chip", None),
])  # fmt: skip
def test_the_peak_by_name(gpu: Any, name: str, peak: float | None) -> None:
    assert gpu.chip(name)[0] == peak


def test_an_unknown_check_is_refused(tmp_path: Path) -> None:
    done = start(str(SCRIPT), "--out", str(tmp_path / "x.json"), "--device", "cpu", "--only", "nothing")
    assert done.returncode == 2 and "no check nothing; there are backbones_agree" in done.stderr
