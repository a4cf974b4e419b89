"""Several processes fill the feature cache with the same bits as one."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from paperbook.papers.safe_residual.features import FeatureSpec, cache_features, load_cached


@pytest.fixture
def spec(tiny_qwen: Path, news_folder: Path) -> FeatureSpec:
    prompt = "Classify the news article into one of these topics: {classes}.\n\nArticle: {text}\n\nTopic:"
    return FeatureSpec(backbone="causal-lm", backbone_id=str(tiny_qwen), backbone_revision="", dataset="ag_news",
                       dataset_id=str(news_folder), dataset_revision="", split="train", prompt=prompt)  # fmt: skip


def test_two_processes_write_the_same_cache_as_one(spec: FeatureSpec, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    place = cache_features(spec, tmp_path / "one", device="cpu", shard_size=50)
    # what a run that was killed leaves: the first shard, and half of the second
    again = tmp_path / "two" / place.name
    again.mkdir(parents=True)
    whole, half = (again / path.name for path in sorted(place.glob("rows-*"))[:2])
    shutil.copy(place / whole.name, whole)
    half.write_bytes((place / half.name).read_bytes()[:-90])
    date = whole.stat().st_mtime_ns
    cache_features(spec, tmp_path / "two", device="cpu", shard_size=50, processes=2, progress=lambda *p: seen.append(p))
    one, two = (load_cached(spec, tmp_path / name) for name in ("one", "two"))
    for a, b in zip(one[:3], two[:3], strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
    # the last shard is short, so the order in which shards are seen shows in the first numbers only
    assert len(seen) == 4 and seen[-1] == (240, 240) and all(a < b for (a, _), (b, _) in itertools.pairwise(seen))
    assert whole.stat().st_mtime_ns == date, "what is whole is not computed again"


def test_more_processes_than_gpus_are_refused(spec: FeatureSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from paperbook.papers.safe_residual import features

    monkeypatch.setattr(features, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="processes: expected at most one a GPU, 1 are visible, got 2"):
        cache_features(spec, tmp_path, processes=2)
    assert list(tmp_path.iterdir()) == []


def test_a_device_that_names_one_gpu_is_refused(spec: FeatureSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from paperbook.papers.safe_residual import features

    monkeypatch.setattr(features, "pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    with pytest.raises(ValueError, match="processes: expected 1 with device='cuda:1', which names one GPU, got 2"):
        cache_features(spec, tmp_path, device="cuda:1", processes=2)
    assert list(tmp_path.iterdir()) == []
