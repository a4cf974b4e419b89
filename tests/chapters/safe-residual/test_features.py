"""Frozen features: preprocessing, both backbones and the cache, each against a second route."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from paperbook.papers.safe_residual import backbones, features
from paperbook.papers.safe_residual.backbones import clip_pixels, load_backbone
from paperbook.papers.safe_residual.features import (
    FeatureSpec,
    cache_features,
    fetch_command,
    is_cached,
    load_cached,
    locate,
    on_this_machine,
)

CPU = torch.device("cpu")
CLIP_PROMPT = "a photo of a {class}."
NEWS_PROMPT = "Classify the news article into one of these topics: {classes}.\n\nArticle: {text}\n\nTopic:"
HASH = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def clip_spec(tiny_clip: Path, cifar_folder: Path) -> FeatureSpec:
    return FeatureSpec("clip", str(tiny_clip), "", "cifar100", str(cifar_folder), "", "train", CLIP_PROMPT)


@pytest.fixture
def news_spec(tiny_qwen: Path, news_folder: Path) -> FeatureSpec:
    return FeatureSpec("causal-lm", str(tiny_qwen), "", "ag_news", str(news_folder), "", "train", NEWS_PROMPT)


def shards(place: Path) -> list[Path]:
    return sorted(place.glob("rows-*.safetensors"))


# --- preprocessing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(32, 32), (47, 33), (33, 47), (300, 401), (224, 224)])
def test_pixels_equal_the_pil_processor(size: tuple[int, int]) -> None:
    """Second route: transformers' own PIL processor, resize, crop and normalisation included, on noise (the hardest case)."""
    from PIL import Image
    from transformers import CLIPImageProcessorPil

    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    processor = CLIPImageProcessorPil()
    theirs = processor(Image.fromarray(image), return_tensors="pt")["pixel_values"][0]
    ours = clip_pixels([image], 224, (224, 224), processor.image_mean, processor.image_std)[0]
    # PIL interpolates in fixed point: a value half way between two grey levels may round the other way, hence one level,
    # 1/255 divided by the smallest std, plus float32 rounding; and such ties are rare
    level = 1 / 255 / min(processor.image_std)
    gap = (ours - theirs).abs()
    assert gap.max() <= level * 1.001
    assert (gap > 1e-5).float().mean() < 0.005


def test_pixels_of_mixed_sizes_equal_one_by_one() -> None:
    rng = np.random.default_rng(1)
    images = [rng.integers(0, 256, (*size, 3), dtype=np.uint8) for size in ((20, 30), (30, 20), (20, 30), (25, 25))]
    together = clip_pixels(images, 24, (24, 24), [0.5] * 3, [0.25] * 3)
    alone = torch.cat([clip_pixels([image], 24, (24, 24), [0.5] * 3, [0.25] * 3) for image in images])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)  # float32 rounding of values below 2


def test_pixels_of_a_constant_image_are_constant() -> None:
    out = clip_pixels([np.full((40, 50, 3), 100, np.uint8)], 24, (20, 20), [0.5] * 3, [0.25] * 3)
    torch.testing.assert_close(out, torch.full((1, 3, 20, 20), (100 / 255 - 0.5) / 0.25))


@pytest.mark.parametrize(("image", "crop", "message"), [
    (np.zeros((8, 8), np.uint8), (4, 4), "images[0]: expected uint8 of shape (height, width, 3), got uint8 (8, 8)"),
    (np.zeros((8, 8, 3)), (4, 4), "images[0]: expected uint8 of shape (height, width, 3), got float64 (8, 8, 3)"),
    (np.zeros((8, 8, 3), np.uint8), (20, 4), "crop: expected at most the resized image (16, 16), got (20, 4)"),
])
def test_pixels_refuse(image: np.ndarray, crop: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        clip_pixels([image], 16, crop, [0.5] * 3, [0.25] * 3)


# --- CLIP --------------------------------------------------------------------------------------------------------------------


def test_clip_equals_the_model_called_by_hand(clip_spec: FeatureSpec, tmp_path: Path) -> None:
    """Second route: tokenizer, PIL processor and CLIPModel.forward, one image at a time."""
    from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

    folder = Path(clip_spec.backbone_id)
    cache_features(clip_spec, tmp_path, device="cpu", batch_size=50)
    cached = load_cached(clip_spec, tmp_path)
    model = CLIPModel.from_pretrained(folder).eval()
    texts = AutoTokenizer.from_pretrained(folder)([f"a photo of a {c.replace('_', ' ')}." for c in cached.classes], padding=True,
                                                  return_tensors="pt")
    processor = CLIPImageProcessorPil.from_pretrained(folder)
    split = features.load_split(clip_spec)
    with torch.inference_mode():
        for row in (0, 7, 239):
            image = split.items(row, row + 1)[0]
            out = model(**texts, pixel_values=processor(image, return_tensors="pt")["pixel_values"])
            # 32 x 32 images meet a 32 x 32 model: no resize, so only float32 rounding (1e-7 x some hundred operations) differs
            np.testing.assert_allclose(cached.features[row], out.image_embeds[0], atol=1e-5)
            np.testing.assert_allclose(cached.base_logits[row], out.logits_per_image[0], atol=2e-4)  # temperature 14 x 1e-5
    assert cached.features.shape == (240, 16) and cached.classes[1] == "aquarium_fish"
    np.testing.assert_allclose(np.linalg.norm(cached.features, axis=1), 1, atol=1e-6)
    assert np.array_equal(cached.labels, np.arange(240) % 5)


# --- causal LM ---------------------------------------------------------------------------------------------------------------


def by_hand(spec: FeatureSpec, texts: list[str], classes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Last state and first-token logits by Qwen3ForCausalLM.forward on one unpadded prompt at a time."""
    from transformers import AutoTokenizer, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(spec.backbone_id)
    model = Qwen3ForCausalLM.from_pretrained(spec.backbone_id).eval()
    first = [tokenizer(f" {name}")["input_ids"][0] for name in classes]
    states, logits = [], []
    with torch.inference_mode():
        for text in texts:
            prompt = spec.prompt.format(classes=", ".join(classes), text=text)
            out = model(**tokenizer(prompt, return_tensors="pt"), output_hidden_states=True)
            states.append(out.hidden_states[-1][0, -1])
            logits.append(out.logits[0, -1, first])
    return torch.stack(states).numpy(), torch.stack(logits).numpy()


def test_lm_equals_unbatched_unpadded_forward(news_spec: FeatureSpec, tmp_path: Path) -> None:
    cache_features(news_spec, tmp_path, device="cpu", batch_size=64)
    cached = load_cached(news_spec, tmp_path)
    rows = [0, 1, 2, 3, 100, 239]
    split = features.load_split(news_spec)
    states, logits = by_hand(news_spec, [split.items(r, r + 1)[0] for r in rows], cached.classes)
    np.testing.assert_allclose(cached.features[rows], states, atol=1e-5)  # float32: 1e-7 x states near 3 x ten operations
    np.testing.assert_allclose(cached.base_logits[rows], logits, atol=1e-5)
    assert len({len(split.items(r, r + 1)[0]) for r in rows}) > 1, "the prompts must differ in length for the padding to matter"


def test_calibration_subtracts_the_content_free_prompt(news_spec: FeatureSpec, tmp_path: Path) -> None:
    calibrated = dataclasses.replace(news_spec, calibrate=True)
    for spec in (news_spec, calibrated):
        cache_features(spec, tmp_path, device="cpu")
    plain, shifted = load_cached(news_spec, tmp_path), load_cached(calibrated, tmp_path)
    _, empty = by_hand(news_spec, ["N/A"], plain.classes)
    np.testing.assert_allclose(plain.base_logits - shifted.base_logits, np.repeat(empty, 240, 0), atol=2e-5)  # two float32 routes
    np.testing.assert_array_equal(plain.features, shifted.features)


def test_a_long_text_loses_its_end_not_the_instruction(tiny_qwen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "MAX_TOKENS", 60)
    model = load_backbone("causal-lm", tiny_qwen, ["World", "Sports"], NEWS_PROMPT, device=CPU, dtype=torch.float32)
    ids = model.tokens("goal match " * 200)
    text = model._tokenizer.decode(ids)
    assert 55 <= len(ids) <= 60 and text.startswith("Classify") and text.endswith("\n\nTopic:") and "goal match" in text
    monkeypatch.setattr(backbones, "MAX_TOKENS", 10)
    with pytest.raises(ValueError, match="prompt: expected at most 10 tokens without its text"):
        model.tokens("goal match " * 200)


def test_class_names_that_share_a_first_token_are_refused(tiny_qwen: Path) -> None:
    with pytest.raises(ValueError, match="classes: expected names with different first tokens"):
        load_backbone("causal-lm", tiny_qwen, ["Sports", "Sports news"], NEWS_PROMPT, device=CPU, dtype=torch.float32)


@pytest.mark.parametrize("name", ["clip_spec", "news_spec"])
def test_batch_size_does_not_matter(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    spec = request.getfixturevalue(name)
    caches = []
    for batch in (1, 7, 256):
        cache_features(spec, tmp_path / str(batch), device="cpu", batch_size=batch, shard_size=100)
        caches.append(load_cached(spec, tmp_path / str(batch)))
    for other in caches[1:]:  # float32 sums in another order; padding adds exact zeros
        np.testing.assert_allclose(other.features, caches[0].features, atol=1e-5)
        np.testing.assert_allclose(other.base_logits, caches[0].base_logits, atol=1e-4)


def test_half_precision_stays_near_float32(clip_spec: FeatureSpec, tmp_path: Path) -> None:
    half = dataclasses.replace(clip_spec, dtype="bfloat16")
    for spec in (clip_spec, half):
        cache_features(spec, tmp_path, device="cpu")
    full, low = load_cached(clip_spec, tmp_path), load_cached(half, tmp_path)
    assert clip_spec.key() != half.key()
    # bfloat16 keeps 8 bits: about 0.4 % a step, a few steps deep, on unit vectors
    assert np.linalg.norm(low.features - full.features, axis=1).max() < 0.05
    assert not np.array_equal(low.features, full.features)


# --- cache -------------------------------------------------------------------------------------------------------------------


class Killed(RuntimeError):
    """Stands for the end of the process between two shards."""


@pytest.mark.parametrize("name", ["clip_spec", "news_spec"])
def test_an_interrupted_cache_resumes_to_the_same_bits(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    spec = request.getfixturevalue(name)
    options = {"device": "cpu", "batch_size": 32, "shard_size": 64}
    cache_features(spec, tmp_path / "whole", **options)

    def kill(done: int, total: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        cache_features(spec, tmp_path / "cut", progress=kill, **options)
    with pytest.raises(FileNotFoundError, match="no finished cache"):
        load_cached(spec, tmp_path / "cut")
    place = tmp_path / "cut" / spec.key()
    (first,) = shards(place)
    before = first.stat().st_mtime_ns
    (place / "rows-0000064-0000128.safetensors.tmp").write_bytes(b"half a shard")
    seen: list[tuple[int, int]] = []
    cache_features(spec, tmp_path / "cut", progress=lambda done, total: seen.append((done, total)), **options)
    assert seen == [(128, 240), (192, 240), (240, 240)]
    assert first.stat().st_mtime_ns == before and not list(place.glob("*.tmp"))
    for ours, theirs in zip(load_cached(spec, tmp_path / "cut")[:3], load_cached(spec, tmp_path / "whole")[:3], strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("indexed", [True, False])
def test_a_truncated_shard_is_found_and_computed_anew(indexed: bool, clip_spec: FeatureSpec, tmp_path: Path) -> None:
    options = {"device": "cpu", "batch_size": 32, "shard_size": 64}
    place = cache_features(clip_spec, tmp_path, **options)
    whole = load_cached(clip_spec, tmp_path)
    victim = shards(place)[1]
    victim.write_bytes(victim.read_bytes()[:-100])
    if not indexed:  # killed before the index was written
        (place / "index.json").unlink()
    else:
        with pytest.raises(ValueError, match=f"cache: {victim.name} of {clip_spec.key()} is damaged"):
            load_cached(clip_spec, tmp_path)
    seen: list[int] = []
    cache_features(clip_spec, tmp_path, progress=lambda done, total: seen.append(done), **options)
    assert seen == [240]  # one shard, the last of the 240 to be missing
    assert load_cached(clip_spec, tmp_path).features.tobytes() == whole.features.tobytes()


def test_one_flipped_bit_is_found(clip_spec: FeatureSpec, tmp_path: Path) -> None:
    place = cache_features(clip_spec, tmp_path, device="cpu")
    victim = shards(place)[0]
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        load_cached(clip_spec, tmp_path)


def test_a_finished_cache_needs_neither_weights_nor_data(clip_spec: FeatureSpec, tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    place = cache_features(clip_spec, tmp_path, device="cpu")
    before = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a finished cache must not load anything")

    monkeypatch.setattr(features, "load_split", refuse)
    assert cache_features(clip_spec, tmp_path, device="cpu", shard_size=10, load=refuse) == place
    after = {path.name: path.stat().st_mtime_ns for path in place.iterdir()}
    assert {n: t for n, t in after.items() if n != ".lock"} == {n: t for n, t in before.items() if n != ".lock"}


def test_two_at_once_take_turns(clip_spec: FeatureSpec, tmp_path: Path) -> None:
    """Seeds started together share the work: whoever comes second waits, then finds the cache done."""
    import threading
    import time

    loads = []

    def slow(*args: object, **kwargs: object) -> backbones.Backbone:
        loads.append(args)
        time.sleep(0.2)
        return load_backbone(*args, **kwargs)  # type: ignore[arg-type]

    both = [threading.Thread(target=cache_features, args=(clip_spec, tmp_path), kwargs={"device": "cpu", "load": slow})
            for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert len(loads) == 1 and len(load_cached(clip_spec, tmp_path).labels) == 240


def test_another_shard_size_does_not_mix_shards(clip_spec: FeatureSpec, tmp_path: Path) -> None:
    def kill(done: int, total: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        cache_features(clip_spec, tmp_path, device="cpu", shard_size=64, progress=kill)
    cache_features(clip_spec, tmp_path, device="cpu", shard_size=100)
    assert np.array_equal(load_cached(clip_spec, tmp_path).labels, np.arange(240) % 5)


def test_the_cache_of_another_key_is_refused(clip_spec: FeatureSpec, tmp_path: Path) -> None:
    other = dataclasses.replace(clip_spec, prompt="a blurry photo of a {class}.")
    place = cache_features(clip_spec, tmp_path, device="cpu")
    place.rename(tmp_path / other.key())
    for call in (lambda: load_cached(other, tmp_path), lambda: cache_features(other, tmp_path, device="cpu")):
        with pytest.raises(ValueError, match=f"cache: expected key {other.key()} in .*, got {clip_spec.key()}"):
            call()


@pytest.mark.parametrize("change", [
    {"backbone_revision": "f" * 40}, {"backbone_id": "other/weights"}, {"dataset_revision": "f" * 40},
    {"dataset_id": "other/data"}, {"split": "test"}, {"prompt": "an image of a {class}"}, {"dtype": "bfloat16"},
    {"max_rows": 10}, {"dataset": "ag_news"},
])
def test_the_key_changes_with_everything_that_fixes_the_numbers(change: dict[str, object]) -> None:
    spec = FeatureSpec("clip", "openai/clip", HASH, "cifar100", "uoft-cs/cifar100", HASH, "train", CLIP_PROMPT)
    assert dataclasses.replace(spec, **change).key() != spec.key() == dataclasses.replace(spec).key()


def test_the_key_of_local_folders_follows_content_not_place(clip_spec: FeatureSpec, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(clip_spec.backbone_id, copy)
    moved = dataclasses.replace(clip_spec, backbone_id=str(copy))
    assert moved.key() == clip_spec.key()
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "note": 1}))
    assert moved.key() != clip_spec.key()
    assert str(tmp_path) not in json.dumps(moved.identity())


def test_max_rows_takes_the_same_rows_every_time(clip_spec: FeatureSpec) -> None:
    few = dataclasses.replace(clip_spec, max_rows=30)
    first, again, whole = (features.load_split(s) for s in (few, few, clip_spec))
    assert len(first.labels) == 30 and np.array_equal(first.labels, again.labels)
    everything = [image.tobytes() for image in whole.items(0, 240)]
    places = [everything.index(image.tobytes()) for image in first.items(0, 30)]
    assert len(set(places)) == 30 and np.array_equal(whole.labels[places], first.labels)


# --- hub and bad input -------------------------------------------------------------------------------------------------------


def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repositories: dict[str, Path]) -> None:
    """An offline hub cache: the named repositories at the commit `HASH`, which branch main points to."""
    import shutil

    import huggingface_hub.constants

    hub = tmp_path / "hub"
    for name, source in repositories.items():
        shutil.copytree(source, hub / name / "snapshots" / HASH)
        (hub / name / "refs").mkdir()
        (hub / name / "refs" / "main").write_text(HASH)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("revision", [HASH, "main"])
def test_offline_hub_cache_serves_ids_and_revisions(revision: str, tiny_clip: Path, cifar_folder: Path, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(tmp_path, monkeypatch, {"models--some--clip": tiny_clip, "datasets--some--images": cifar_folder})
    spec = FeatureSpec("clip", "some/clip", revision, "cifar100", "some/images", revision, "test", CLIP_PROMPT)
    cache_features(spec, tmp_path / "cache", device="cpu")
    cached = load_cached(spec, tmp_path / "cache")
    assert cached.commits == {"backbone": HASH, "dataset": HASH} and len(cached.labels) == 60


@pytest.mark.parametrize(("kind", "identifier", "message"), [
    ("model", "some/clip", "backbone_id: some/clip at revision main is not on this machine"),
    ("dataset", "some/images", "dataset_id: some/images at revision main is not on this machine"),
    ("model", "/no/such/folder", "backbone_id: expected a hub id or a folder, and '/no/such/folder' is no folder"),
])
def test_what_is_missing_is_named_with_the_command_that_fetches_it(kind: str, identifier: str, message: str, tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(tmp_path, monkeypatch, {})
    with pytest.raises(FileNotFoundError, match=re.escape(message)) as caught:
        locate(kind, identifier, "main")
    if not identifier.startswith("/"):
        assert fetch_command(kind, identifier, "main") in str(caught.value)
    assert fetch_command("dataset", "a/b", "c") == "hf download a/b --revision c --repo-type dataset"


@pytest.mark.parametrize("revision", [HASH, "main"])
def test_a_snapshot_counts_once_its_files_are_there(revision: str, tiny_clip: Path, cifar_folder: Path, tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that was cut off leaves a folder, a shard short or a link to nowhere."""
    fake_hub(tmp_path, monkeypatch, {"models--some--clip": tiny_clip, "datasets--some--images": cifar_folder})
    assert on_this_machine("model", "some/clip", revision) and on_this_machine("dataset", "some/images", revision)
    for kind, name in (("model", "some/clip"), ("dataset", "some/images"), ("model", "some/images"), ("dataset", "some/clip")):
        there = (kind, name) in (("model", "some/clip"), ("dataset", "some/images"))
        assert on_this_machine(kind, name, revision) == there
        assert not on_this_machine(kind, name, "0" * 40) and not on_this_machine(kind, name, "")
    model = tmp_path / "hub" / "models--some--clip" / "snapshots" / HASH
    (model / "model.safetensors").rename(model / "model-00001-of-00002.safetensors")
    assert not on_this_machine("model", "some/clip", revision)
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {str(i): f"model-0000{i}-of-00002.safetensors" for i in (1, 2)}}))
    assert not on_this_machine("model", "some/clip", revision)
    (model / "model-00002-of-00002.safetensors").symlink_to(tmp_path / "nowhere")
    assert not on_this_machine("model", "some/clip", revision)
    (tmp_path / "nowhere").write_bytes(b"weights")
    assert on_this_machine("model", "some/clip", revision)
    index.write_text(index.read_text()[:-9])
    assert not on_this_machine("model", "some/clip", revision)
    data = tmp_path / "hub" / "datasets--some--images" / "snapshots" / HASH
    for path in data.rglob("*.parquet"):
        path.unlink()
        path.symlink_to(tmp_path / "not there")
    assert not on_this_machine("dataset", "some/images", revision)


def test_a_finished_cache_is_known_before_anything_is_loaded(clip_spec: FeatureSpec, tmp_path: Path) -> None:
    assert not is_cached(clip_spec, tmp_path)
    cache_features(clip_spec, tmp_path, device="cpu")
    assert is_cached(clip_spec, tmp_path) and not is_cached(dataclasses.replace(clip_spec, split="test"), tmp_path)
    assert not is_cached(dataclasses.replace(clip_spec, backbone_id=str(tmp_path / "none")), tmp_path)
    (index,) = tmp_path.rglob("index.json")
    index.write_text(index.read_text()[:40])
    assert not is_cached(clip_spec, tmp_path)


def test_weights_without_safetensors_are_refused(tiny_clip: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(tiny_clip, copy)
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="backbone_id: copy lacks a file of the model"):
        load_backbone("clip", copy, ["cat", "dog"], CLIP_PROMPT, device=CPU, dtype=torch.float32)


SPEC = {"backbone": "clip", "backbone_id": "a/b", "backbone_revision": HASH, "dataset": "cifar100", "dataset_id": "c/d",
        "dataset_revision": HASH, "split": "train", "prompt": CLIP_PROMPT}


@pytest.mark.parametrize(("change", "message"), [
    ({"backbone": "resnet"}, "backbone: expected one of"),
    ({"dataset": "mnist"}, "dataset: expected one of"),
    ({"split": "validation"}, "split: expected one of"),
    ({"dtype": "int8"}, "dtype: expected one of"),
    ({"prompt": "a photo"}, "prompt: expected a template with {class}"),
    ({"backbone": "causal-lm"}, "prompt: expected a template with {classes}"),
    ({"max_rows": -1}, "max_rows: expected an integer in"),
    ({"calibrate": True}, "calibrate: expected False for backbone='clip'"),
])
def test_a_wrong_spec_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        FeatureSpec(**{**SPEC, **change})


@pytest.mark.parametrize(("options", "message"), [
    ({"batch_size": 0}, "batch_size: expected an integer in"),
    ({"shard_size": 0}, "shard_size: expected an integer in"),
    ({"device": "tpu"}, "device: expected auto, cpu"),
])
def test_wrong_options_leave_nothing_behind(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        cache_features(FeatureSpec(**SPEC), tmp_path / "cache", **{"device": "cpu", **options})
    assert not (tmp_path / "cache").exists()


def test_an_empty_revision_of_a_hub_id_is_refused() -> None:
    with pytest.raises(ValueError, match="dataset_revision: expected a commit hash, tag or branch of c/d, got an empty text"):
        FeatureSpec(**{**SPEC, "dataset_revision": ""}).key()


def test_data_of_another_schema_are_refused(clip_spec: FeatureSpec, news_folder: Path, tmp_path: Path) -> None:
    wrong = dataclasses.replace(clip_spec, dataset_id=str(news_folder))
    with pytest.raises(ValueError, match=re.escape("dataset_id: expected a column 'img' for cifar100, got ['label', 'text']")):
        cache_features(wrong, tmp_path, device="cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no readable split 'train'"):
        cache_features(dataclasses.replace(clip_spec, dataset_id=str(tmp_path / "empty")), tmp_path, device="cpu")


def test_features_that_are_not_finite_are_refused(clip_spec: FeatureSpec, tmp_path: Path) -> None:
    class Broken:
        def cost(self, items: list[object]) -> list[int]:
            return [1] * len(items)

        def encode(self, items: list[object]) -> backbones.Encoded:
            return backbones.Encoded(torch.full((len(items), 2), 1e6), torch.zeros(len(items), 5))

    half = dataclasses.replace(clip_spec, dtype="float16")
    with pytest.raises(ValueError, match="features: expected finite numbers, got inf or nan from the backbone in float16"):
        cache_features(half, tmp_path, device="cpu", load=lambda *args, **kwargs: Broken())
    with pytest.raises(FileNotFoundError):
        load_cached(half, tmp_path)
