"""Stand-ins of this chapter, built once a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rehearsal.hub import chapter_standins

OURS = chapter_standins("safe-residual")


@pytest.fixture(scope="session")
def tiny_clip(standins: Any) -> Path:
    """Stands for openai/clip-vit-base-patch32."""
    return OURS.clip(standins)


@pytest.fixture(scope="session")
def tiny_qwen(standins: Any) -> Path:
    """Stands for Qwen/Qwen3-8B."""
    return OURS.qwen(standins)


@pytest.fixture(scope="session")
def cifar_folder(standins: Any) -> Path:
    """Stands for uoft-cs/cifar100 with 240 + 60 images."""
    return OURS.cifar(standins)


@pytest.fixture(scope="session")
def large_cifar_folder(standins: Any) -> Path:
    """The same with 2,000 images to train on, the number of labels a claim is about."""
    return OURS.cifar(standins, 2000)


@pytest.fixture(scope="session")
def news_folder(standins: Any) -> Path:
    """Stands for fancyzhx/ag_news."""
    return OURS.news(standins)


@pytest.fixture(autouse=True)
def own_datasets_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever ``datasets`` prepares during the tests goes to a temporary folder."""
    import sys

    if "datasets" in sys.modules:
        monkeypatch.setattr(sys.modules["datasets"].config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "hf")
