"""Parameters of the pages: what no page could compute is refused with the variable, what came and what was expected."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from paperbook.papers.safe_residual.config import (
    CrossingConfig,
    EstimatorConfig,
    OverviewConfig,
    SafetyConfig,
    TablesConfig,
    TrustConfig,
)
from paperbook.papers.safe_residual.config_classifiers import ClassifierConfig
from paperbook.papers.safe_residual.crossing import safe_curve
from paperbook.papers.safe_residual.kernel import KernelResidual
from paperbook.papers.safe_residual.piecewise import piecewise_risks
from paperbook.papers.safe_residual.synthetic import cosine
from paperbook.papers.safe_residual.zero_shot import frozen_features
from paperbook.study import paths
from paperbook.study.params import ParameterError, config_hash, configure

CONFIGS = [TrustConfig, CrossingConfig, SafetyConfig, OverviewConfig, EstimatorConfig, TablesConfig, ClassifierConfig]
INF = float("1e400")


def _floats(kind: Any) -> list[tuple[Any, str, Any]]:
    """Every float field, and every list of floats with one of them infinite at its end."""
    plain = [(kind, name, INF) for name, field in kind.model_fields.items() if isinstance(field.default, float)]
    return plain + [(kind, name, [*field.default, INF]) for name, field in kind.model_fields.items()
                    if isinstance(field.default, list) and isinstance(field.default[0], float)]


@pytest.mark.parametrize(("kind", "name", "value"), [row for kind in CONFIGS for row in _floats(kind)])
def test_infinity_is_no_parameter(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=rf"{name}.*(finite number|less than).*got inf"):
        configure(kind, {name: value})


def test_there_are_floats_to_check() -> None:
    assert {name for kind in CONFIGS for _, name, _ in _floats(kind)} >= {"sigma", "tau", "delta_grid", "smoothness_constant"}


@pytest.mark.parametrize(("kind", "values", "message"), [
    (CrossingConfig, {"n_grid": [16, 17]}, "n_grid: expected sizes whose halves, the training rows, differ; they are [8, 8]"),
    (CrossingConfig, {"n_grid": [18, 19]}, "n_grid: expected sizes whose halves, the training rows, differ; they are [9, 9]"),
    (CrossingConfig, {"n_grid": [19, 20]}, "n_grid: expected sizes whose halves, the training rows, differ; they are [10, 10]"),
    (CrossingConfig, {"n_grid": [512, 10**9]}, "n_grid.1: Input should be less than or equal to 100000000, got 1000000000"),
    (CrossingConfig, {"n_routes": 10**9}, "n_routes: Input should be less than or equal to 100000000, got 1000000000"),
    (CrossingConfig, {"batch_rows": 10**9}, "batch_rows: Input should be less than or equal to 536870912, got 1000000000"),
    (CrossingConfig, {"reps": 10**9}, "reps: Input should be less than or equal to 10000000, got 1000000000"),
    (TrustConfig, {"n": 10**8}, "n: Input should be less than or equal to 5000000, got 100000000"),
    (OverviewConfig, {"n": 10**9}, "n: Input should be less than or equal to 100000000, got 1000000000"),
    (SafetyConfig, {"n": 10**9}, "n: Input should be less than or equal to 100000000, got 1000000000"),
    (SafetyConfig, {"n": 10**8},
     "n: expected validation sets within 64 GB of memory, got n=100000000, val_fraction=0.5, cost_draws=4000, which take 1000"),
    (EstimatorConfig, {"n_grid": [100, 100_000]},
     "n_grid: expected at most 20000 rows, since the kernel matrix of 100000 alone takes 80 GB, got [100, 100000]"),
    (EstimatorConfig, {"dim_grid": [1, 10**6]}, "dim_grid.1: Input should be less than or equal to 10000, got 1000000"),
    (TablesConfig, {"n_grid": [50, 20_001]}, "n_grid: expected at most 20000 rows, since the kernel matrix of 20001 alone takes"),
])
def test_what_no_page_can_compute_is_refused(kind: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=re.escape(message)):
        configure(kind, values)


def test_sizes_at_the_limits_pass() -> None:
    assert configure(CrossingConfig, {"n_grid": [17, 21]}).n_grid == [17, 21]  # halves 8 and 10
    assert configure(EstimatorConfig, {"n_grid": [20_000]}).n_grid == [20_000]
    assert configure(SafetyConfig, {"n": 6 * 10**6}).n == 6 * 10**6


def test_the_profiles_are_within_them() -> None:
    kinds = {"1-trust-or-learn": TrustConfig, "2-critical-radius": CrossingConfig, "3-price-of-safety": SafetyConfig,
             "4-estimator": EstimatorConfig, "5-real-tables": TablesConfig}
    files: list[Path] = sorted((paths.chapter("safe-residual") / "profiles").glob("[0-9]-*.yaml"))
    assert files
    for file in files:
        assert configure(kinds[file.name.split(".")[0]], yaml.safe_load(file.read_text()))


# --- what a run asks of the machine ---------------------------------------------------------------------------------------


def full(name: str = "full", **changes: Any) -> ClassifierConfig:
    values = yaml.safe_load((paths.chapter("safe-residual") / "profiles" / f"{name}.yaml").read_text())
    return configure(ClassifierConfig, values | changes)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_page_says_what_it_needs_and_how_much_work_it_is(kind: Any) -> None:
    cfg = kind()
    work, needs = cfg.work(), cfg.needs()
    assert work is not None and work.amount > 0 and 0.1 < needs.memory_gb < 4 and needs.gpu_gb is None, "smoke fits any laptop"
    assert set(cfg.memory_parameters) | set(cfg.speed_parameters) <= set(kind.model_fields) and cfg.memory_parameters
    assert cfg.assets() == []


@pytest.mark.parametrize(("kind", "less", "more"), [
    (TrustConfig, {}, {"n": 100_000}), (CrossingConfig, {}, {"batch_rows": 2**24}), (SafetyConfig, {}, {"n": 10**6}),
    (OverviewConfig, {}, {"n": 10**7}), (EstimatorConfig, {}, {"n_grid": [20_000]}), (TablesConfig, {}, {"n_grid": [50, 20_000]}),
])
def test_more_rows_need_more_memory_and_lowering_the_named_parameter_helps(kind: Any, less: Any, more: Any) -> None:
    small, large = kind(**less), kind(**more)
    assert set(more) <= set(kind.memory_parameters) and large.needs().memory_gb > 1.2 * small.needs().memory_gb


def test_a_batch_holds_at_least_one_data_set() -> None:
    """piecewise_risks never splits a data set, so a small batch does not help a large n."""
    assert CrossingConfig(n_grid=[512, 10**8], batch_rows=1).needs().memory_gb > 1 + 5e7 * 8 * 8 / 1e9


@pytest.mark.parametrize(("device", "memory", "gpu"), [("numpy", True, False), ("cpu", True, False), ("auto", True, True),
                                                       ("cuda", False, True), ("cuda:1", False, True)])  # fmt: skip
def test_a_batch_counts_where_it_lies(device: str, memory: bool, gpu: bool) -> None:
    needs = CrossingConfig(device=device, batch_rows=2**25).needs()
    assert needs.memory_gb is not None and (needs.memory_gb > 3) == memory and (needs.gpu_gb is not None) == gpu
    assert needs.gpu_gb is None or needs.gpu_gb > 3


def peak_gb(call: Callable[[], object]) -> float:
    """Peak of what NumPy allocated during the second call; the first fills caches that do not grow with the rows."""
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1] / 1e9
    finally:
        tracemalloc.stop()


def test_the_estimates_are_near_what_is_measured() -> None:
    """Without their constant (the interpreter and its libraries) they are above the peak, and below three times of it."""
    for order, d, rows in ((1, 1, 2**18), (2, 1, 2**18), (1, 2, 2**21)):  # in 2-d more than quadrature (0.12 GB)
        estimate = CrossingConfig(n_grid=[512, 8192], batch_rows=rows).needs().memory_gb - 1.0
        peak = peak_gb(partial(piecewise_risks, 4096, 16, order, cosine, 0.5, rows // 4096, np.random.default_rng(0), d=d,
                               max_elements=rows))  # fmt: skip
        assert peak < estimate < 3 * peak, (order, d)
    rng = np.random.default_rng(0)
    X, y = rng.random((1000, 3)), rng.normal(size=1000)
    # the eigensolver's own workspace, as large as the matrix, is among the four and not seen by tracemalloc
    peak, estimate = peak_gb(lambda: KernelResidual().fit(X, y)), EstimatorConfig(n_grid=[1000]).needs().memory_gb - 0.3
    assert 0.99 * peak <= estimate + 0.001 < 3 * peak
    peak = peak_gb(lambda: safe_curve([0.1, 0.3], 2000, 2 * 2**19 // 2000, np.random.default_rng(0)))
    assert peak < OverviewConfig(n=2000).needs().memory_gb - 0.4 < 3 * peak


@pytest.mark.parametrize(("small", "large", "ratio"), [
    (CrossingConfig(reps=100), CrossingConfig(reps=300), 3), (OverviewConfig(n=1000), OverviewConfig(n=4000), 4),
    (TrustConfig(reps=50), TrustConfig(reps=200), 4), (EstimatorConfig(reps=2), EstimatorConfig(reps=10), 5),
    (TablesConfig(splits=1), TablesConfig(splits=7), 7), (SafetyConfig(n=1000), SafetyConfig(n=8000), 8),
    (ClassifierConfig(n_grid=[20, 30]), ClassifierConfig(n_grid=[100, 150]), 5),
])
def test_work_grows_as_the_complexity_says(small: Any, large: Any, ratio: float) -> None:
    assert small.work().kind == large.work().kind and large.work().amount / small.work().amount == pytest.approx(ratio)


def test_a_kernel_fit_is_cubic_in_the_end() -> None:
    one, two = (EstimatorConfig(n_grid=[n]).work().amount for n in (8000, 16_000))
    assert 7.9 < two / one <= 8


def test_runs_on_other_devices_or_backbones_do_not_forecast_each_other() -> None:
    kinds = {CrossingConfig(device=device).work().kind for device in ("numpy", "cuda")}
    kinds |= {full(name, device=device).work().kind for name in ("full", "full-ag-news") for device in ("cuda", "cpu")}
    assert len(kinds | {ClassifierConfig().work().kind}) == 7


# --- page 6: weights and data ---------------------------------------------------------------------------------------------


def test_full_profiles_say_which_weights_and_data_are_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    asked, real = [], huggingface_hub.snapshot_download

    def download(*args: Any, **options: Any) -> str:
        asked.append(options["local_files_only"])
        return real(*args, **options)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for name in ("full", "full-ag-news"):
        cfg = full(name, cache_dir=str(tmp_path / "cache"))
        weights, data = cfg.assets()
        assert not weights.here and not data.here
        assert weights.name == f"{cfg.backbone_id} at {cfg.backbone_revision}"
        assert weights.fetch.startswith(f"hf download {cfg.backbone_id} --revision {cfg.backbone_revision} --include")
        assert data.fetch == f"hf download {cfg.dataset_id} --revision {cfg.dataset_revision} --repo-type dataset"
        # a branch's commit is known to the hub only: not even then may a look before the run ask it
        assert [asset.here for asset in full(name, backbone_revision="main", cache_dir=str(tmp_path)).assets()] == [False, False]
    assert asked and all(asked)
    assert full(backbone_revision="").assets()[0].fetch == "backbone_revision must be a commit hash"


def test_local_folders_count_when_they_hold_the_files(tiny_clip: Path, cifar_folder: Path, tmp_path: Path) -> None:
    there = {"backbone_id": str(tiny_clip), "dataset_id": str(cifar_folder), "backbone_revision": "", "dataset_revision": ""}
    here = full(**there, cache_dir=str(tmp_path / "cache"))
    assert [(asset.name, asset.here) for asset in here.assets()] == [(str(tiny_clip), True), (str(cifar_folder), True)]
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "none"):
        weights, data = full(**there | {"backbone_id": str(folder), "dataset_id": str(folder)}).assets()
        assert not weights.here and weights.fetch == "backbone_id must be a hub id or a folder with config.json and *.safetensors"
        assert not data.here and data.fetch == "dataset_id must be a hub id or a folder with *.parquet"


def test_finished_features_need_neither(
    tiny_clip: Path, cifar_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    import huggingface_hub.constants

    cfg = full(device="cpu", cache_dir=str(tmp_path / "cache"), max_train=2000, n_grid=[20, 60])
    for kind, name, revision, source in (("models", cfg.backbone_id, cfg.backbone_revision, tiny_clip),
                                         ("datasets", cfg.dataset_id, cfg.dataset_revision, cifar_folder)):  # fmt: skip
        shutil.copytree(source, tmp_path / "hub" / f"{kind}--{name.replace('/', '--')}" / "snapshots" / revision)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert [asset.here for asset in cfg.assets()] == [True, True]
    frozen_features(cfg)
    shutil.rmtree(tmp_path / "hub")
    assert cfg.assets() == [], "the key is known from the commits alone"
    assert [asset.here for asset in cfg.model_copy(update={"dtype": "bfloat16"}).assets()] == [False, False], "other features"


def test_needs_of_the_backbones() -> None:
    clip, news = full(), full("full-ag-news")
    for cfg, gpu in ((clip, 8), (news, 24)):  # the cards that the chapter's index names
        assert cfg.needs().gpu_gb < gpu and cfg.needs().memory_gb < 24 and cfg.needs().disk_gb < 3.5
    assert news.needs().gpu_gb > 16.4, "the weights alone"
    for name in news.memory_parameters[:1]:
        lower = news.model_copy(update={name: getattr(news, name) // 2})
        assert lower.needs().gpu_gb < news.needs().gpu_gb
    cpu = full("full-ag-news", device="cpu").needs()
    assert cpu.gpu_gb is None and cpu.memory_gb > 2 * 16.4, "float32 there"
    assert full(processes=4).needs().memory_gb > clip.needs().memory_gb + 3
    rows = {name: full(name, max_train=0, max_test=0, epochs=1, n_grid=[8]).work().amount for name in ("full", "full-ag-news")}
    assert rows == {"full": pytest.approx(60_000, abs=1), "full-ag-news": pytest.approx(127_600, abs=1)}
    assert full(max_train=10**6).work() == full(max_train=50_000).work() != full(max_train=10_000).work()


def test_the_number_of_processes_is_no_part_of_the_run() -> None:
    assert config_hash(full(processes=4)) == config_hash(full()) != config_hash(full(batch_size=8))
