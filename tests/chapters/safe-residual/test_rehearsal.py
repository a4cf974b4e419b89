"""The full profiles walk their own code path end to end on a CPU: only ids, sizes and device differ from a GPU server's run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from paperbook.papers.safe_residual import backbones, zero_shot
from paperbook.papers.safe_residual.config_classifiers import ClassifierConfig
from paperbook.papers.safe_residual.features import Cached
from paperbook.papers.safe_residual.zero_shot import METHODS, classifiers_run, feature_specs
from paperbook.study.params import configure
from paperbook.study.paths import chapter
from paperbook.study.results import Run

# what a rehearsal may change: places and sizes. Everything else is the profile's own value.
SIZES: dict[str, Any] = {"head_batch_size": 32, "batch_size": 32, "shard_size": 100, "max_test": 50, "device": "cpu"}
RUNS = {"full": {"n_grid": [20, 60, 200], "max_train": 0}, "full-ag-news": {"n_grid": [20, 60, 200], "max_train": 220}}
PER_N = ("n", "n_train", "n_val", "safe_other", "adopted", "adopted_other", "gain", "gain_se", "best_epoch")


class Watched:
    """A configuration that remembers which of its fields were read."""

    def __init__(self, cfg: ClassifierConfig) -> None:
        self.cfg, self.read = cfg, set()

    def __getattr__(self, name: str) -> Any:
        if name in ClassifierConfig.model_fields:
            self.read.add(name)
        return getattr(self.cfg, name)


@pytest.fixture(params=list(RUNS))
def rehearsed(request: pytest.FixtureRequest, tmp_path: Path) -> ClassifierConfig:
    folders = {"full": ("tiny_clip", "cifar_folder"), "full-ag-news": ("tiny_qwen", "news_folder")}[request.param]
    weights, data = (str(request.getfixturevalue(name)) for name in folders)
    values = yaml.safe_load((chapter("safe-residual") / "profiles" / f"{request.param}.yaml").read_text(encoding="utf-8"))
    assert set(ClassifierConfig.model_fields) - set(values) == {"seed"}, "the profile names every parameter"
    stand_in = {"backbone_id": weights, "backbone_revision": "", "dataset_id": data, "dataset_revision": "",
                "cache_dir": str(tmp_path / "cache")}
    return configure(ClassifierConfig, {**values, **SIZES, **RUNS[request.param], **stand_in, "seed": 3})


@pytest.mark.parametrize("name", list(RUNS))
def test_the_profiles_themselves_are_valid_and_pinned(name: str) -> None:
    values = yaml.safe_load((chapter("safe-residual") / "profiles" / f"{name}.yaml").read_text(encoding="utf-8"))
    cfg = configure(ClassifierConfig, values)
    for spec in feature_specs(cfg).values():
        commits = spec.commits()  # a full hash needs no network to be resolved
        assert all(len(commit) == 40 and not commit.startswith("local-") for commit in commits.values())


def test_full_path_end_to_end(rehearsed: ClassifierConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPERBOOK_RUNS", str(tmp_path / "runs"))
    watched, seen = Watched(rehearsed), []
    run = Run("safe-residual", "6-classifiers", watched)  # type: ignore[arg-type]
    metrics = classifiers_run(watched, progress=lambda done, total: seen.append((done, total)))  # type: ignore[arg-type]
    result = json.loads(run.finish(metrics).read_text(encoding="utf-8"))

    assert watched.read == set(ClassifierConfig.model_fields), "every parameter of the profile is consumed"
    pool = rehearsed.max_train or 240
    assert seen == [(100, pool), (200, pool), (pool, pool), (50, 50)]
    assert result["provenance"]["parameters"]["selection"] == "accuracy"
    found = result["metrics"]
    sizes = len(rehearsed.n_grid)
    assert all(len(found[key]) == sizes for key in PER_N)
    for measure in ("accuracy", "nll"):
        assert set(found[measure]) == set(METHODS) and all(len(v) == sizes for v in found[measure].values())
    assert (found["n"], found["pool_size"], found["test_size"]) == (rehearsed.n_grid, pool, 50)
    assert found["percent"]["safe_60"] == 100 * found["accuracy"]["safe"][1]
    assert found["percent"]["black_box"] == 100 * found["accuracy"]["f0"][0]
    assert found["backbone_commit"].startswith("local-") and found["dataset_commit"].startswith("local-")
    for i, adopted in enumerate(found["adopted"]):  # the safe answer is one of the two, never a blend
        assert found["accuracy"]["safe"][i] == found["accuracy"]["residual" if adopted else "f0"][i]
        assert adopted == (found["gain"][i] > 0)
    assert found["nll"]["residual"][-1] < 0.8 * found["nll"]["f0"][-1], "f_0 is at chance; a head that trains is not"

    # the rerun finds its features: no weights are loaded, nothing is encoded, and the numbers are the same
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the rerun must not touch a model")

    monkeypatch.setattr(backbones.ClipBackbone, "__init__", refuse)
    monkeypatch.setattr(backbones.CausalLmBackbone, "__init__", refuse)
    assert classifiers_run(rehearsed, progress=refuse) == metrics


class Killed(RuntimeError):
    """Stands for the end of the process between two shards."""


def test_a_killed_run_resumes_to_the_same_bits(rehearsed: ClassifierConfig, tmp_path: Path) -> None:
    def kill_after_first(done: int, total: int) -> None:
        raise Killed

    whole = zero_shot.frozen_features(rehearsed)
    again = rehearsed.model_copy(update={"cache_dir": str(tmp_path / "again")})
    with pytest.raises(Killed):
        classifiers_run(again, progress=kill_after_first)
    # the machine also lost half of what it had written
    (shard,) = (tmp_path / "again").rglob("rows-*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-64])
    resumed = zero_shot.frozen_features(again)
    for split in ("train", "test"):
        _same_bits(resumed[split], whole[split])


def _same_bits(ours: Cached, theirs: Cached) -> None:
    for a, b in zip(ours[:3], theirs[:3], strict=True):
        assert a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_seeds_share_one_cache_and_differ(rehearsed: ClassifierConfig) -> None:
    first = classifiers_run(rehearsed)
    caches = sorted(Path(rehearsed.cache_dir).iterdir())
    second = classifiers_run(rehearsed.model_copy(update={"seed": 4}))
    assert sorted(Path(rehearsed.cache_dir).iterdir()) == caches and len(caches) == 2
    assert first["accuracy"]["f0"] == second["accuracy"]["f0"] and first["nll"]["residual"] != second["nll"]["residual"]
    assert np.isfinite(second["nll"]["residual"]).all()
