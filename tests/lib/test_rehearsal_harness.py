"""The harness of the rehearsals: what it builds is read by the real loaders, what it must refuse it refuses."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rehearsal import harness
from rehearsal.harness import PROVENANCE, RehearsalError, Rehearse
from rehearsal.standins import StandIns, tinted
from rehearsal.warm import WarmKernels

from paperbook.study import paths

# --- what a rehearsal may change -----------------------------------------------------------------------------------------------

VALUES = {"profile": "full", "n": 100, "n_grid": [10, 1000], "lr": 0.1, "backbone_id": "a/b", "backbone_revision": "c",
          "max_rows": 0, "warmup": 0, "device": "auto", "cache_dir": "", "method": "x", "flag": True, "seed": 0,
          "ratios": [1, 0.5], "width_path": "p"}  # fmt: skip


@pytest.mark.parametrize("change", [
    {"n": 5}, {"n_grid": [10]}, {"n_grid": [5, 20]}, {"backbone_id": "/tmp/x", "backbone_revision": ""}, {"max_rows": 7},
    {"device": "cpu"}, {"cache_dir": "/tmp"}, {"width_path": "q"}, {},
])  # fmt: skip
def test_places_and_smaller_sizes_may_change(change: dict[str, Any]) -> None:
    harness._check_changes("full.yaml", VALUES, change, {})


@pytest.mark.parametrize(("change", "name"), [
    ({"n": 101}, "n"), ({"n": 5.0}, "n"), ({"n": True}, "n"), ({"n_grid": [10, 1001]}, "n_grid"), ({"n_grid": []}, "n_grid"),
    ({"n_grid": [1, 2, 3]}, "n_grid"), ({"lr": 0.05}, "lr"), ({"method": "y"}, "method"), ({"flag": False}, "flag"),
    ({"warmup": 3}, "warmup"), ({"ratios": [1]}, "ratios"), ({"seed": -1}, "seed"), ({"profile": "smoke"}, "profile"),
    ({"n_grid": 3}, "n_grid"),
])  # fmt: skip
def test_anything_else_needs_a_reason(change: dict[str, Any], name: str) -> None:
    with pytest.raises(RehearsalError, match=f"changes: {name} of full.yaml is .* say why it must differ"):
        harness._check_changes("full.yaml", VALUES, change, {})
    harness._check_changes("full.yaml", VALUES, change, {name: "the stand-in has one layer"})
    with pytest.raises(RehearsalError, match="say why"):
        harness._check_changes("full.yaml", VALUES, change, {name: " "})


def test_unknown_changes_and_idle_reasons_are_refused() -> None:
    with pytest.raises(RehearsalError, match="changes: m is no parameter"):
        harness._check_changes("full.yaml", VALUES, {"m": 1}, {"m": "why not"})
    with pytest.raises(RehearsalError, match="reasons: lr is not changed"):
        harness._check_changes("full.yaml", VALUES, {"n": 5}, {"lr": "smaller steps"})


@pytest.mark.parametrize(("name", "expected"), [
    ("full.yaml", "full"), ("full-ag-news.yaml", "full-ag-news"), ("1-a.full.yaml", "full"), ("1-a.full-big.yaml", "full-big"),
])  # fmt: skip
def test_the_name_of_a_profile(name: str, expected: str) -> None:
    assert harness._profile_name("1-a", name) == expected


@pytest.mark.parametrize("name", ["reader.yaml", "1-b.full.yaml", "full", "../full.yaml", "fuller.yaml", "full-.yaml"])
def test_other_profiles_are_refused(name: str) -> None:
    with pytest.raises(RehearsalError, match="profile: expected full.yaml"):
        harness._profile_name("1-a", name)


# --- what a result must hold ---------------------------------------------------------------------------------------------------


def document() -> dict[str, Any]:
    provenance: dict[str, Any] = dict.fromkeys(PROVENANCE, "")
    provenance |= {"status": "finished", "profile": "full", "seed": 3, "parameters": {"profile": "full", "n": 5},
                   "execution": {"processes": 2}}  # fmt: skip
    return {"schema": harness.SCHEMA, "slug": "a", "page": "1-a", "provenance": provenance, "metrics": {"x": {"y": [1.0, 2]}}}


def test_a_complete_result_passes() -> None:
    harness.check_result("here", document(), "a", "1-a", "full", 3)
    given = {"n": 5, "seed": 3, "profile": "full", "processes": 2}
    harness.check_parameters("here", document(), given, frozenset(given))


@pytest.mark.parametrize(("part", "value", "message"), [
    ("schema", 0, "schema: expected 1, got 0"), ("page", "2-b", "page: expected '1-a', got '2-b'"),
    ("metrics", {}, "expected some, got none"),
    ("metrics", {"x": {"y": [1.0, math.nan]}}, r"metrics.x.y\[1\]: expected a finite number, got nan"),
    ("metrics", {"x": math.inf}, "metrics.x: expected a finite number, got inf"),
])  # fmt: skip
def test_an_incomplete_result_is_refused(part: str, value: Any, message: str) -> None:
    with pytest.raises(RehearsalError, match=f"here: incomplete result: .*{message}"):
        harness.check_result("here", document() | {part: value}, "a", "1-a", "full", 3)


@pytest.mark.parametrize("field", sorted(PROVENANCE))
def test_each_field_of_the_provenance_is_asked_for(field: str) -> None:
    result = document()
    del result["provenance"][field]
    with pytest.raises(RehearsalError, match=f"provenance lacks {field}"):
        harness.check_result("here", result, "a", "1-a", "full", 3)


@pytest.mark.parametrize(("field", "value"), [("status", "cancelled"), ("profile", "smoke"), ("seed", 4)])
def test_the_provenance_must_fit(field: str, value: Any) -> None:
    result = document()
    result["provenance"][field] = value
    with pytest.raises(RehearsalError, match=f"provenance.{field}: expected"):
        harness.check_result("here", result, "a", "1-a", "full", 3)


def test_a_dead_or_lost_parameter_is_named() -> None:
    with pytest.raises(RehearsalError, match="here: nothing read n; use the parameter"):
        harness.check_parameters("here", document(), {"n": 5}, frozenset({"seed", "profile", "processes"}))
    with pytest.raises(RehearsalError, match="here: nothing read processes"):
        harness.check_parameters("here", document(), {"n": 5}, frozenset({"seed", "profile", "n"}))
    for given in ({"n": 6}, {"n": 5, "m": 1}, {"processes": 1}):
        with pytest.raises(RehearsalError, match="did not have the values it was given: (m|n|processes)$"):
            harness.check_parameters("here", document(), given, frozenset({"n", "seed", "profile", "processes"}))


# --- a page of its own, in a real kernel ---------------------------------------------------------------------------------------

PAGE = '''\
---
jupytext:
  text_representation: {extension: .md, format_name: myst}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# A page

```{code-cell} ipython3
:tags: [parameters]

profile: str = "smoke"
seed: int = 0
n: int = 3
case: str = "good"
data_dir: str = ""
```

```{code-cell} ipython3
from paperbook.study.params import Config, configure


class PageConfig(Config):
    n: int
    case: str
    data_dir: str


cfg = configure(PageConfig)
```

```{code-cell} ipython3
import os

from paperbook.study.results import Run

run = Run("demo", "1-page", cfg)
places = [cfg.data_dir] if cfg.case != "dead" else []
if cfg.case == "fails":
    raise RuntimeError(f"no more than {cfg.n} rows")
found = {"size": cfg.n, "offline": os.environ["HF_HUB_OFFLINE"], "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}
if cfg.case != "silent":
    run.finish(found | ({} if cfg.case == "poor" else {"score": 1.5}))
```
'''
CLAIM = """\
- {id: scores, claim: The page scores well., kind: property, where: none, paper_source: our choice, criterion: {at_least: 1},
   evidence: {page: 1-page, key: score, profile: full}}
"""


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one chapter of one page."""
    root, origin = tmp_path / "repo", paths.root()
    folder = root / "chapters" / "demo"
    (folder / "profiles").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(origin / name, root / name)
    (root / "lib").symlink_to(origin / "lib")
    (folder / "1-page.md").write_text(PAGE, encoding="utf-8")
    (folder / "claims.yaml").write_text(CLAIM, encoding="utf-8")
    (folder / "profiles" / "full.yaml").write_text("profile: full\nn: 50\ndata_dir: /nowhere\n", encoding="utf-8")
    monkeypatch.setenv("PAPERBOOK_ROOT", str(root))
    return tmp_path


def test_a_rehearsal_runs_the_page_as_profiled(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPERBOOK_RUNS", str(book / "untouched"))
    rehearse = Rehearse(book)
    done = rehearse("demo", "1-page", "full.yaml", {"n": 7, "data_dir": "here"}, seed=5)
    assert done.metrics == {"size": 7, "offline": "1", "gpus": "", "score": 1.5} and done.result["provenance"]["seed"] == 5
    assert done.read == {"profile", "seed", "n", "case", "data_dir"} and done.seconds > 0
    assert 0 < done.cpu_seconds == rehearse.spent["demo"] < harness.SLOWER_MACHINES * harness.CHAPTER_SECONDS
    assert [cell for cell in done.notebook.cells if "injected-parameters" in cell.metadata.get("tags", [])]
    assert done.folder.parent.parent.name == "demo" and not (book / "untouched").exists()
    import os

    assert "PAPERBOOK_RECORD" not in os.environ and os.environ["PAPERBOOK_RUNS"] == str(book / "untouched")

    monkeypatch.setattr(harness, "CHAPTER_SECONDS", 0.001)
    monkeypatch.setattr(harness, "rehearse", lambda *_, **__: done)
    with pytest.raises(RehearsalError, match="demo: its rehearsals took .* s of CPU time, at most 0; make the stand-ins"):
        rehearse("demo", "1-page", "full.yaml", {})


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmKernels]:
    kernels = WarmKernels(tmp_path_factory.mktemp("w"), preloaded=["numpy", "ipykernel.kernelapp", "no_such_package"])
    yield kernels
    kernels.close()


def _until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_a_warm_kernel_is_a_kernel_like_any_other(book: Path, warm: WarmKernels) -> None:
    cold, changes = Rehearse(book), {"n": 7, "data_dir": "here"}
    ours = [Rehearse(book, warm)("demo", "1-page", "full.yaml", changes, seed=5) for _ in range(2)]
    theirs = cold("demo", "1-page", "full.yaml", changes, seed=5)
    assert ours[0].metrics == ours[1].metrics == theirs.metrics and ours[0].read == theirs.read
    assert ours[0].cpu_seconds > 0.1, "the kernel's time is counted although it is no child of this process"
    assert ours[0].result["provenance"]["parameters"] == theirs.result["provenance"]["parameters"]
    assert [cell.get("outputs") for cell in ours[0].notebook.cells] == [cell.get("outputs") for cell in theirs.notebook.cells]


def _runs(client: Any) -> bool:
    return bool(client.execute_interactive("1 + 1", timeout=30, output_hook=lambda message: None)["content"]["status"] == "ok")


def test_warm_kernels_end_with_their_client_and_with_the_server(tmp_path: Path) -> None:
    import psutil

    kernels = WarmKernels(tmp_path, preloaded=["ipykernel.kernelapp"])
    server = psutil.Process(kernels._process.pid)
    try:
        clients = []
        for _ in range(2):
            manager = kernels.manager(is_async=False)()
            manager.start_kernel()
            client = manager.blocking_client()
            client.start_channels()
            client.wait_for_ready(timeout=30)
            clients.append((manager, client))
        assert len(server.children()) == 2
        clients[0][0].provisioner.process.kill()  # kill -9 of the client: its kernel must not be left behind
        _until(lambda: len(server.children()) == 1)
        manager, client = clients[1]
        assert _runs(client), "its idle message says that the kernel ignores interrupts again"
        waits = psutil.Process(manager.provisioner.process.pid).num_ctx_switches
        before = waits().voluntary
        manager.interrupt_kernel()
        _until(lambda: waits().voluntary > before)  # the thin client has passed the signal on and waits again
        for _ in range(2):
            kernels.cpu_seconds()  # the second answer comes after the server has sent the kernel what lay before the first
        assert _runs(client), "an interrupt while nothing runs leaves the kernel alive"
        (left,) = server.children()
    finally:
        kernels.close()
        for _, client in clients:
            client.stop_channels()
    _until(lambda: not left.is_running() or left.status() == psutil.STATUS_ZOMBIE)


@pytest.mark.parametrize(("case", "message"), [
    ("dead", "demo/1-page with full.yaml: nothing read data_dir"),
    ("fails", "demo/1-page: a cell failed: RuntimeError: no more than 50 rows"),
    ("silent", "demo/1-page: expected one result.json, found 0"),
    ("poor", "the claim scores asks for the metric score, expected a number, got None"),
])  # fmt: skip
def test_a_page_that_falls_short_is_refused(book: Path, warm: WarmKernels, case: str, message: str) -> None:
    with pytest.raises(RehearsalError, match=message):
        Rehearse(book, warm)("demo", "1-page", "full.yaml", {"case": case}, reasons={"case": "plays a page that falls short"})


def test_a_profile_with_an_unknown_name_runs_nothing(book: Path) -> None:
    (book / "repo/chapters/demo/profiles/full-b.yaml").write_text("profile: full\nm: 50\n", encoding="utf-8")
    with pytest.raises(RehearsalError, match="full-b.yaml: no parameter of 1-page: m"):
        Rehearse(book)("demo", "1-page", "full-b.yaml", {})
    with pytest.raises(RehearsalError, match="demo has no full-c.yaml"):
        Rehearse(book)("demo", "1-page", "full-c.yaml", {})


# --- stand-ins -----------------------------------------------------------------------------------------------------------------


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_stand_ins_are_built_once_and_the_same_every_time(tmp_path: Path) -> None:
    one, two = StandIns(tmp_path / "one"), StandIns(tmp_path / "two")
    words = ["red apple", "blue bus"]
    for make in (lambda s: s.clip(words), lambda s: s.causal_lm(words), lambda s: s.transformer("BertModel"),
                 lambda s: s.images(["a", "b"]), lambda s: s.diffusion("UNet2DModel")):  # fmt: skip
        folder = make(one)
        assert make(one) == folder and content(folder) == content(make(two)) and content(folder)
    assert one.clip(words, seed=1) != one.clip(words)
    assert content(one.clip(words, seed=1))["model.safetensors"] != content(one.clip(words))["model.safetensors"]


def test_building_leaves_the_global_stream_alone(tmp_path: Path) -> None:
    import torch

    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    StandIns(tmp_path).transformer("BertModel")
    assert torch.equal(torch.rand(3), expected)


def test_words_are_whole_tokens(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = StandIns(tmp_path).causal_lm(["World Sports", "red apple"], num_hidden_layers=1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for word in ("World", "Sports", "apple"):
        assert tokenizer.convert_ids_to_tokens(tokenizer(f" {word}")["input_ids"]) == [f"\u0120{word}"]
    assert tokenizer.decode(tokenizer("zebra, 7!")["input_ids"]) == "zebra, 7!"
    model = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True)
    assert model.config.num_hidden_layers == 1 and model.config.vocab_size == len(tokenizer)


def test_models_of_any_class(tmp_path: Path) -> None:
    from transformers import AutoModel

    made = StandIns(tmp_path)
    model = AutoModel.from_pretrained(made.transformer("ViTModel", image_size=16, patch_size=8), use_safetensors=True)
    assert type(model).__name__ == "ViTModel" and model.config.hidden_size == 32 and model.config.image_size == 16
    with pytest.raises(ValueError, match="architecture: expected the name of a model class of transformers, got 'NoModel'"):
        made.transformer("NoModel")


@pytest.mark.parametrize(("architecture", "part"), [("UNet2DModel", "unet"), ("DiTTransformer2DModel", "transformer")])
def test_diffusion_models_load_and_denoise(tmp_path: Path, architecture: str, part: str) -> None:
    import diffusers
    import torch

    folder = StandIns(tmp_path).diffusion(architecture)
    model = getattr(diffusers, architecture).from_pretrained(folder / part, use_safetensors=True)
    schedule = diffusers.DDPMScheduler.from_pretrained(folder / "scheduler")
    channels = model.config.in_channels
    x, options = torch.randn(2, channels, 8, 8), {"class_labels": torch.tensor([0, 1])} if part == "transformer" else {}
    with torch.inference_mode():
        noise = model(x, torch.tensor([3, 3]), **options).sample[:, :channels]
        assert schedule.step(noise, 3, x).prev_sample.shape == x.shape
    with pytest.raises(ValueError, match="scheduler: expected the name of a class of diffusers, got 'Nothing'"):
        StandIns(tmp_path / "b").diffusion(architecture, scheduler="Nothing")


def test_parquet_is_read_by_the_real_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    pixels = [tinted((200, 10, 10), 8, np.random.default_rng(i)) for i in range(3)]
    rows = {"img": pixels, "label": [0, 1, 0], "text": ["a", "b", "c"], "score": [0.5, 1.5, 2.5]}
    columns = {"img": "image", "label": ["cat", "dog"], "text": "string", "score": datasets.Value("float32")}
    folder = StandIns(tmp_path).parquet("pets", {"train": rows, "test": rows}, columns, config="plain", place="plain")
    datasets.disable_progress_bars()
    table = datasets.load_dataset(str(folder), "plain", split="test")
    assert table.features["label"].names == ["cat", "dog"] and table["text"][:] == ["a", "b", "c"]
    assert np.array_equal(np.asarray(table[1]["img"]), pixels[1]) and table["score"][2] == 2.5
    with pytest.raises(ValueError, match=r"splits: expected the columns \['a', 'b'\] in train, got \['a'\]"):
        StandIns(tmp_path / "b").parquet("bad", {"train": {"a": [1]}}, {"a": "int64", "b": "int64"})


def test_images_lie_in_folders_by_class(tmp_path: Path) -> None:
    from PIL import Image

    folder = StandIns(tmp_path).images(["cat", "dog"], splits={"train": 5}, size=8)
    found = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    assert found == [f"train/{'cat' if i % 2 == 0 else 'dog'}/{i:05d}.png" for i in (0, 2, 4, 1, 3)]
    assert Image.open(folder / found[0]).size == (8, 8)


def test_episodes_are_read_by_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari", reason="minari is not installed; it writes and reads its own format")
    pytest.importorskip("h5py", reason="h5py is not installed; minari stores episodes with it")
    import minari

    folder = StandIns(tmp_path).episodes(count=3, steps=6, observation=4, action=2)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    data = minari.load_dataset("stand-in/walk/random-v0")
    assert data.total_episodes == 3 and data.total_steps == 18
    episode = next(data.iterate_episodes())
    assert episode.observations.shape == (7, 4) and episode.actions.shape == (6, 2) and episode.truncations[-1]
    assert json.loads(json.dumps([float(reward) for reward in episode.rewards])) == pytest.approx(episode.rewards)
