"""The full profiles walk their own code path end to end on a CPU: only places and sizes differ from a GPU server's run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paperbook.papers.safe_residual import backbones, zero_shot
from paperbook.papers.safe_residual.config_classifiers import ClassifierConfig
from paperbook.papers.safe_residual.features import Cached
from paperbook.papers.safe_residual.zero_shot import METHODS, classifiers_run, feature_specs
from paperbook.study.params import configure
from paperbook.study.paths import chapter
from paperbook.study.profiles import read_yaml

SLUG, PAGE = "safe-residual", "6-classifiers"
FOLDERS = {"full.yaml": ("tiny_clip", "large_cifar_folder"), "full-ag-news.yaml": ("tiny_qwen", "news_folder")}
# 2,000 labels stay in the first: a claim reads the accuracy there
SIZES: dict[str, dict[str, Any]] = {"full.yaml": {"n_grid": [100, 2000], "max_test": 50},
                                    "full-ag-news.yaml": {"n_grid": [50, 200], "max_train": 220, "head_batch_size": 32}}
PER_N = ("n", "n_train", "n_val", "safe_other", "adopted", "adopted_other", "gain", "gain_se", "best_epoch")


def profile(name: str) -> dict[str, Any]:
    return read_yaml(chapter(SLUG) / "profiles" / name)


def stand_in(request: pytest.FixtureRequest, folders: tuple[str, str]) -> dict[str, str]:
    weights, data = (str(request.getfixturevalue(name)) for name in folders)
    return {"backbone_id": weights, "backbone_revision": "", "dataset_id": data, "dataset_revision": ""}


@pytest.mark.parametrize("name", list(FOLDERS))
def test_full_path_end_to_end(name: str, rehearse: Any, request: pytest.FixtureRequest) -> None:
    values = profile(name)
    assert set(ClassifierConfig.model_fields) - set(values) == {"seed"}, "the profile names every parameter"
    assert all(len(commit) == 40 and not commit.startswith("local-")  # a full hash needs no network to be resolved
               for spec in feature_specs(configure(ClassifierConfig, values)).values() for commit in spec.commits().values())
    found = rehearse(SLUG, PAGE, name, {**stand_in(request, FOLDERS[name]), **SIZES[name]}, seed=3).metrics
    sizes = SIZES[name]["n_grid"]
    assert all(len(found[key]) == len(sizes) for key in PER_N)
    for measure in ("accuracy", "nll"):
        assert set(found[measure]) == set(METHODS) and all(len(v) == len(sizes) for v in found[measure].values())
    pool, test = (2000, 50) if name == "full.yaml" else (220, 60)
    assert (found["n"], found["pool_size"], found["test_size"]) == (sizes, pool, test)
    assert found["percent"][f"safe_{sizes[1]}"] == 100 * found["accuracy"]["safe"][1]
    assert found["percent"]["black_box"] == 100 * found["accuracy"]["f0"][0]
    assert found["backbone_commit"].startswith("local-") and found["dataset_commit"].startswith("local-")
    for i, adopted in enumerate(found["adopted"]):  # the safe answer is one of the two, never a blend
        assert found["accuracy"]["safe"][i] == found["accuracy"]["residual" if adopted else "f0"][i]
        assert adopted == (found["gain"][i] > 0)
    assert found["nll"]["residual"][-1] < 0.8 * found["nll"]["f0"][-1], "f_0 is at chance; a head that trains is not"


def test_critical_radius(rehearse: Any) -> None:
    found = rehearse(SLUG, "2-critical-radius", "2-critical-radius.full.yaml", {"n_grid": [512, 2048], "reps": 12, "draws": 10})
    assert found.metrics["n"] == [512, 2048] and set(found.metrics["slope"]) == set(found.metrics["radius"]) - {
        "fixed", "hard"} | {"oracle", "least_favourable"}  # fmt: skip
    assert all(len(radii) == 2 and radii[1] < radii[0] for radii in found.metrics["radius"].values()), "more rows, less to trust"


# --- one process, small: what survives a kill, what a second run and a second seed share --------------------------------


@pytest.fixture(params=list(FOLDERS))
def small(request: pytest.FixtureRequest, tmp_path: Path) -> ClassifierConfig:
    weights, data = FOLDERS[request.param]
    changes = stand_in(request, (weights, data.removeprefix("large_")))
    sizes = {"n_grid": [20, 60], "max_test": 50, "max_train": 220, "shard_size": 100, "head_batch_size": 32, "batch_size": 32,
             "device": "cpu", "cache_dir": str(tmp_path / "cache"), "seed": 3}  # fmt: skip
    return configure(ClassifierConfig, {**profile(request.param), **changes, **sizes})


class Killed(RuntimeError):
    """Stands for the end of the process between two shards."""


def refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("a second run must not touch a model")


def test_a_second_run_touches_no_model_and_seeds_share_one_cache(
    small: ClassifierConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, str]] = []
    monkeypatch.setenv("PAPERBOOK_RECORD", str(tmp_path / "read.jsonl"))
    watched = configure(ClassifierConfig, small.model_dump())
    first = classifiers_run(watched, progress=lambda *told: seen.append(told))
    monkeypatch.delenv("PAPERBOOK_RECORD")
    features = [(done, total) for done, total, what in seen if what.startswith("features")]
    assert features == [(100, 220), (200, 220), (220, 220), (50, 50)] and seen[-1][0] == seen[-1][1]
    read = {json.loads(line)["name"] for line in (tmp_path / "read.jsonl").read_text(encoding="utf-8").splitlines()}
    assert read == set(ClassifierConfig.model_fields) - {"profile"}, "the study itself reads every parameter, not only the page"

    caches = sorted(Path(small.cache_dir).iterdir())
    monkeypatch.setattr(backbones.ClipBackbone, "__init__", refuse)
    monkeypatch.setattr(backbones.CausalLmBackbone, "__init__", refuse)
    assert classifiers_run(small) == first
    second = classifiers_run(small.model_copy(update={"seed": 4}))
    assert sorted(Path(small.cache_dir).iterdir()) == caches and len(caches) == 2
    assert first["accuracy"]["f0"] == second["accuracy"]["f0"] and first["nll"]["residual"] != second["nll"]["residual"]
    assert np.isfinite(second["nll"]["residual"]).all()


def test_a_killed_run_resumes_to_the_same_bits(small: ClassifierConfig, tmp_path: Path) -> None:
    def kill_after_first(*told: object) -> None:
        raise Killed

    whole = zero_shot.frozen_features(small)
    again = small.model_copy(update={"cache_dir": str(tmp_path / "again")})
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
