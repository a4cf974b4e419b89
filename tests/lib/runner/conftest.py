"""A small book with pages that train, their configuration class in reach, and a machine of the test's own making."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paperbook.runner import checks

# tests are no package: what the files of this folder share is imported from here
sys.path.insert(0, str(Path(__file__).parent))

from toybook import Smi, TrainConfig, write_page


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither the GPUs of the machine that tests nor its variables: every test says what there is."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    for name in ("CUDA_VISIBLE_DEVICES", "PAPERBOOK_RUNS", "PAPERBOOK_CACHE", "PAPERBOOK_RECORD", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    checks.gpus.cache_clear()
    yield
    checks.gpus.cache_clear()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A book with one chapter `toy`: 1-train is its main page, 2-more has a profile of its own, 3-plain has none."""
    chapter = tmp_path / "chapters" / "toy"
    (chapter / "profiles").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "constraints.txt").write_text("numpy==2\n")
    (chapter / "index.yaml").write_text("title: Toy\nmain_page: 1-train\n")
    (chapter / "profiles" / "full.yaml").write_text("profile: full\nsteps: 100\n")
    (chapter / "profiles" / "reader.yaml").write_text("profile: reader\nsteps: 20\n")
    (chapter / "profiles" / "2-more.full.yaml").write_text("profile: full\nsteps: 300\n")
    monkeypatch.setenv("PAPERBOOK_ROOT", str(tmp_path))
    module: Any = types.ModuleType("runner_pages")
    module.TrainConfig = type("TrainConfig", (TrainConfig,), {"__module__": "runner_pages"})
    module.number = 3
    monkeypatch.setitem(sys.modules, "runner_pages", module)
    for name in ("1-train", "2-more", "3-plain"):
        write_page(tmp_path, name)
    return tmp_path


@pytest.fixture
def needs(root: Path) -> Any:
    """The toy pages' configuration class; what a test sets on it ends with the test."""
    return sys.modules["runner_pages"].TrainConfig  # type: ignore[attr-defined]


@pytest.fixture
def smi(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """An nvidia-smi that a test tells what to say."""
    return Smi(tmp_path_factory.mktemp("smi"), monkeypatch)
