"""What a configuration needs against what this machine has: looked at before any work, answered in plain words."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from paperbook.runner.folder import shown
from paperbook.study import paths
from paperbook.study.params import Config

LEAST_DISK_GB = 0.02
"""What any run needs for its log, notebook and result."""


@dataclass(frozen=True)
class Gpu:
    """One GPU: what CUDA_VISIBLE_DEVICES calls it, its name, its memory in GB (10^9 bytes; None if unknown)."""

    id: str
    name: str
    memory_gb: float | None


@lru_cache(maxsize=1)
def gpus() -> tuple[Gpu, ...]:
    """The GPUs this process may use, by nvidia-smi and CUDA_VISIBLE_DEVICES; torch is not imported (2.5 s) for the question."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        query = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
        lines = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip().splitlines()
    except (OSError, subprocess.SubprocessError):
        return ()
    found: dict[str, Gpu] = {}
    for line in lines:
        parts = [part.strip() for part in line.split(",")]
        if len(parts) != 4:
            continue  # "No devices were found" and other words
        index, uuid, name, memory = parts
        gpu = Gpu(index, name, float(memory) * 2**20 / 1e9 if memory.replace(".", "").isdigit() else None)
        found |= {index: gpu, uuid: Gpu(uuid, name, gpu.memory_gb)}
    if visible is None:
        return tuple(gpu for key, gpu in found.items() if key.isdigit())
    chosen = []
    for key in visible.replace(" ", "").split(","):
        # CUDA stops at the first name that is none; an abbreviated UUID or a MIG name is one, though not listed under it
        if key not in found and not key.startswith(("GPU-", "MIG-")):
            break
        chosen.append(found.get(key, Gpu(key, "GPU", None)))
    return tuple(chosen)


def wants_gpu(cfg: Config) -> bool:
    """Whether the configuration would use a GPU where there is one."""
    return str(getattr(cfg, "device", "cpu")).split(":")[0] in ("auto", "cuda")


def machine(cfg: Config, gpus_per_run: float | None) -> tuple[list[str], list[str]]:
    """What stands against running `cfg` here, and what is worth knowing: (problems, warnings), one line each."""
    problems: list[str] = []
    warnings: list[str] = []
    for asset in cfg.assets():
        if not asset.here:
            problems.append(f"{asset.name}: not on this machine; {_do(asset.fetch)}")
    _gpu(cfg, gpus_per_run, problems, warnings)
    _memory(cfg, problems, warnings)
    _disk(cfg, problems)
    return problems, warnings


def _do(fetch: str) -> str:
    return f"fetch it with: {fetch}" if fetch.split(" ")[0] in ("hf", "pip", "paperbook") else fetch


def _gpu(cfg: Config, gpus_per_run: float | None, problems: list[str], warnings: list[str]) -> None:
    have = gpus()
    device = str(getattr(cfg, "device", "cpu"))
    if gpus_per_run == 0:  # the runs will see none, whatever is there
        if device.startswith("cuda"):
            problems.append(f"device: {device!r} was asked for, and with --gpus-per-run 0 runs see no GPU; use --set device=cpu")
        return
    seen = len(have) if gpus_per_run is None else max(1, int(gpus_per_run))
    if device.startswith("cuda") and not have:
        problems.append(f"device: {device!r} was asked for, but nvidia-smi finds no GPU here; use --set device=cpu")
    elif device.startswith("cuda:") and device[5:].isdigit() and int(device[5:]) >= seen:
        problems.append(f"device: {device!r} was asked for, but each run sees {seen} of the GPUs, counted from 0; use --set "
                        "device=cuda")  # fmt: skip
    elif device == "auto" and not have:
        warnings.append("device: auto, and there is no GPU here: it will run on the CPU")
    if gpus_per_run and gpus_per_run > len(have):
        problems.append(f"gpus-per-run: {gpus_per_run:g} were asked for, this machine has {len(have)}")
    need = cfg.needs().gpu_gb
    sizes = [gpu.memory_gb for gpu in have if gpu.memory_gb]
    if need and sizes and wants_gpu(cfg):
        share = min(sizes) * min(gpus_per_run or 1.0, 1.0)
        if need > share:
            problems.append(f"GPU memory: about {need:.1f} GB are needed, {share:.1f} GB are there; {_lower(cfg)}")


def _memory(cfg: Config, problems: list[str], warnings: list[str]) -> None:
    import psutil

    need, memory = cfg.needs().memory_gb, psutil.virtual_memory()
    if need is None:
        return
    if need > memory.total / 1e9:
        problems.append(f"memory: about {need:.1f} GB are needed, this machine has {memory.total / 1e9:.1f} GB; {_lower(cfg)}")
    elif need > memory.available / 1e9:
        warnings.append(f"memory: about {need:.1f} GB are needed, {memory.available / 1e9:.1f} GB are free now")


def _disk(cfg: Config, problems: list[str]) -> None:
    folder = paths.runs()
    try:
        place = _existing(folder)  # nothing is made here: a dry run leaves no trace
        with tempfile.TemporaryFile(dir=place):
            shutil.disk_usage(place)
    except OSError as error:
        problems.append(f"{shown(folder)}: cannot be written ({error.strerror}); PAPERBOOK_RUNS names another folder")
        return
    need = max(cfg.needs().disk_gb or 0.0, LEAST_DISK_GB)
    for at, label in ((place, shown(folder)), (_existing(paths.cache()), "the cache")):
        free = shutil.disk_usage(at).free / 1e9
        if need > free:
            problems.append(f"{label}: about {need:.2g} GB are needed, {free:.2g} GB are free; PAPERBOOK_RUNS and "
                            "PAPERBOOK_CACHE name other folders")  # fmt: skip


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def _lower(cfg: Config) -> str:
    halves = [f"--set {name}={max(1, value // 2)}" for name in cfg.memory_parameters
              if isinstance(value := getattr(cfg, name), int) and value > 1]  # fmt: skip
    return "lower " + (" or ".join(halves) or "the sizes of its parameters")
