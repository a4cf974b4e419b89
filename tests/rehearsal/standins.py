"""Stand-ins for full-scale data and weights: the same files and schemas, sizes of a toy, random but the same every time.

Each function writes a folder and returns it. Nothing here knows a chapter; heavy packages are imported where they are used.
:class:`StandIns` keeps what was built, so that a session builds each stand-in once.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

LAYER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
"""Sizes that every transformers configuration understands."""

Rows = Mapping[str, Sequence[Any]]


class StandIns:
    """Builds stand-ins under one folder and remembers them by what they were asked to be.

    Args:
        folder: where they lie; a temporary folder of the session.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._built: dict[str, Path] = {}

    def clip(self, words: Sequence[str], **overrides: Any) -> Path:
        """:func:`clip`, built once for the same arguments."""
        return self._once(clip, words, **overrides)

    def causal_lm(self, words: Sequence[str], **overrides: Any) -> Path:
        """:func:`causal_lm`, built once for the same arguments."""
        return self._once(causal_lm, words, **overrides)

    def transformer(self, architecture: str, **overrides: Any) -> Path:
        """:func:`transformer`, built once for the same arguments."""
        return self._once(transformer, architecture, **overrides)

    def diffusion(self, architecture: str, **overrides: Any) -> Path:
        """:func:`diffusion`, built once for the same arguments."""
        return self._once(diffusion, architecture, **overrides)

    def parquet(self, name: str, splits: Mapping[str, Rows], columns: Mapping[str, Any], **options: Any) -> Path:
        """:func:`parquet`, built once for the same `name`."""
        return self._named(f"parquet {name}", lambda folder: parquet(folder, splits, columns, **options))

    def images(self, classes: Sequence[str], **options: Any) -> Path:
        """:func:`images`, built once for the same arguments."""
        return self._once(images, classes, **options)

    def episodes(self, **options: Any) -> Path:
        """:func:`episodes`, built once for the same arguments."""
        return self._once(episodes, **options)

    def _once(self, build: Callable[..., Path], *arguments: Any, **options: Any) -> Path:
        return self._named(f"{build.__name__} {arguments!r} {sorted(options.items())!r}",
                           lambda folder: build(folder, *arguments, **options))

    def _named(self, name: str, build: Callable[[Path], Path]) -> Path:
        if name not in self._built:
            # the words in front tell a person what lies there, the hash tells apart
            place = self.folder / f"{name.split()[0]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
            place.mkdir(parents=True)
            self._built[name] = build(place)
        return self._built[name]


# --- models ------------------------------------------------------------------------------------------------------------------


def clip(folder: Path, words: Sequence[str], *, seed: int = 0, image_size: int = 32, projection: int = 16) -> Path:
    """A random CLIP of two layers with the files of the released repository: weights, tokenizer, preprocessor.

    Args:
        folder: where to write.
        words: texts whose words become whole tokens.
        seed: of the weights.
        image_size: edge of the square images, a multiple of 16.
        projection: width of the joint space.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    raw = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=600, end_of_word_suffix="</w>", show_progress=False,
                                  initial_alphabet=_alphabet())
    raw.train_from_iterator([f" {text}" for text in words], trainer)
    model = json.loads(raw.to_str())["model"]
    # the trainer numbers its alphabet in the order of a hash map, which changes from process to process
    vocab = _in_order(model["vocab"], model["merges"])
    for letter in _alphabet():
        vocab.setdefault(letter + "</w>", len(vocab))
    for token in ("<|startoftext|>", "<|endoftext|>"):
        vocab.setdefault(token, len(vocab))
    tokenizer = CLIPTokenizer(vocab=vocab, merges=[tuple(pair) for pair in model["merges"]])
    tokenizer.save_pretrained(folder)
    ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = CLIPConfig(
        text_config={**LAYER, **ends, "vocab_size": len(vocab), "max_position_embeddings": 77, "projection_dim": projection},
        vision_config={**LAYER, "image_size": image_size, "patch_size": 16, "projection_dim": projection},
        projection_dim=projection,
    )
    with _weights(seed):
        CLIPModel(config).save_pretrained(folder)
    # the released repository's preprocessor file is this old, terse form
    (folder / "preprocessor_config.json").write_text(json.dumps({
        "crop_size": image_size, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3,
        "size": image_size, "feature_extractor_type": "CLIPFeatureExtractor",
        "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
    }), encoding="utf-8")
    return folder


def causal_lm(folder: Path, words: Sequence[str], *, seed: int = 0, **overrides: Any) -> Path:
    """A random Qwen3 of two layers with a byte-level BPE tokenizer whose whole tokens are the words given.

    Args:
        folder: where to write.
        words: texts whose words become whole tokens.
        seed: of the weights.
        overrides: fields of ``Qwen3Config``.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    end = "<|endoftext|>"
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False, initial_alphabet=_alphabet(), special_tokens=[end])
    raw.train_from_iterator([f" {text}" for text in words], trainer)
    model = json.loads(raw.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    raw = Tokenizer(models.BPE(vocab=_in_order(model["vocab"], model["merges"], first=[end]), merges=merges))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=end, pad_token=end)
    tokenizer.save_pretrained(folder)
    sizes = {"vocab_size": raw.get_vocab_size(), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 1024,
             "tie_word_embeddings": False, "initializer_range": 0.2}  # fmt: skip
    with _weights(seed):
        Qwen3ForCausalLM(Qwen3Config(**{**sizes, **overrides})).save_pretrained(folder)
    return folder


def transformer(folder: Path, architecture: str, *, seed: int = 0, **overrides: Any) -> Path:
    """A random two-layer model of any class of ``transformers``, without a tokenizer.

    Args:
        folder: where to write.
        architecture: a model class by name, such as ``"BertModel"``.
        seed: of the weights.
        overrides: fields of its configuration; sizes are those of ``LAYER`` where the configuration has them.

    Raises:
        ValueError: transformers has no such class.
    """
    import transformers

    model = getattr(transformers, architecture, None)
    if model is None or not hasattr(model, "config_class"):
        raise ValueError(f"architecture: expected the name of a model class of transformers, got {architecture!r}")
    known = model.config_class()
    sizes = {name: value for name, value in LAYER.items() if hasattr(known, name)}
    if hasattr(known, "vocab_size"):
        sizes["vocab_size"] = 128
    with _weights(seed):
        model(model.config_class(**{**sizes, **overrides})).save_pretrained(folder)
    return folder


def diffusion(folder: Path, architecture: str = "UNet2DModel", *, seed: int = 0, scheduler: str = "DDPMScheduler",
              part: str = "", **overrides: Any) -> Path:
    """A random denoiser of ``diffusers`` and its noise schedule, in the folders of a pipeline's repository.

    Args:
        folder: where to write: ``<part>/`` and ``scheduler/``.
        architecture: a model class by name, such as ``"UNet2DModel"`` or ``"DiTTransformer2DModel"``.
        seed: of the weights.
        scheduler: a scheduler class by name.
        part: folder of the weights; ``"unet"`` or ``"transformer"`` after the class when empty.
        overrides: arguments of the model class, on top of small ones.

    Raises:
        ValueError: diffusers has no such class.
    """
    import diffusers

    classes = []
    for kind, name in (("architecture", architecture), ("scheduler", scheduler)):
        found = getattr(diffusers, name, None)
        if found is None or not hasattr(found, "config_name"):
            raise ValueError(f"{kind}: expected the name of a class of diffusers, got {name!r}")
        classes.append(found)
    model, schedule = classes
    if architecture == "UNet2DModel":
        small = {"sample_size": 8, "in_channels": 3, "out_channels": 3, "block_out_channels": (8, 16), "layers_per_block": 1,
                 "norm_num_groups": 4, "attention_head_dim": 8, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
                 "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}  # fmt: skip
    elif architecture == "DiTTransformer2DModel":
        small = {"sample_size": 8, "in_channels": 4, "out_channels": 8, "num_attention_heads": 2, "attention_head_dim": 8,
                 "num_layers": 2, "patch_size": 2, "num_embeds_ada_norm": 10, "norm_num_groups": 4}  # fmt: skip
    else:
        small = {}
    with _weights(seed):
        model(**{**small, **overrides}).save_pretrained(folder / (part or ("unet" if "UNet" in architecture else "transformer")))
    schedule().save_pretrained(folder / "scheduler")
    return folder


# --- data --------------------------------------------------------------------------------------------------------------------


def parquet(folder: Path, splits: Mapping[str, Rows], columns: Mapping[str, Any], *, config: str = "default",
            place: str = "data", card: bool = True) -> Path:
    """Parquet files as the hub keeps a data set: ``<place>/<split>-00000-of-00001.parquet`` and a card that names them.

    Args:
        folder: where to write.
        splits: split -> column -> its values; an image is given as a uint8 array of shape (height, width, 3).
        columns: column -> a ``datasets`` feature, ``"image"``, a list of class names, or the name of a plain type such as
            ``"string"``.
        config: the configuration's name in the card.
        place: folder of the files.
        card: whether to write the card; without one ``datasets`` guesses the splits from the file names.

    Raises:
        ValueError: a split lacks a column or has one too many.
    """
    import datasets

    features = datasets.Features({name: _feature(feature) for name, feature in columns.items()})
    (folder / place).mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        if set(rows) != set(columns):
            raise ValueError(f"splits: expected the columns {sorted(columns)} in {split}, got {sorted(rows)}")
        pictures = {name for name, feature in features.items() if isinstance(feature, datasets.Image)}
        values = {name: [{"bytes": _png(pixels), "path": None} for pixels in rows[name]] if name in pictures else rows[name]
                  for name in columns}
        with _no_bars(datasets):
            table = datasets.Dataset.from_dict(values, features=features)
            table.to_parquet(folder / place / f"{split}-00000-of-00001.parquet")
    if card:
        lines = [f"  - split: {split}\n    path: {place}/{split}-*\n" for split in splits]
        (folder / "README.md").write_text(
            f"---\nconfigs:\n- config_name: {config}\n  data_files:\n{''.join(lines)}  default: true\n---\n", encoding="utf-8")
    return folder


def images(folder: Path, classes: Sequence[str], *, splits: Mapping[str, int] | None = None, size: int = 32,
           seed: int = 0) -> Path:
    """A folder of PNG images as ``ImageFolder`` and ``datasets`` read it: ``<split>/<class>/00000.png``, a colour a class.

    Args:
        folder: where to write.
        classes: class names.
        splits: split -> images in all; 24 and 8 when not given.
        size: edge in pixels.
        seed: of colours and noise.
    """
    rng = np.random.default_rng(seed)
    tints = rng.integers(40, 215, (len(classes), 3))
    for split, rows in (splits or {"train": 24, "test": 8}).items():
        for i in range(rows):
            label = i % len(classes)
            target = folder / split / classes[label] / f"{i:05d}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_png(tinted(tints[label], size, rng)))
    return folder


def tinted(tint: Sequence[int] | np.ndarray, size: int, rng: np.random.Generator, noise: float = 40.0) -> np.ndarray:
    """A noisy square of one colour, uint8 of shape (size, size, 3)."""
    return np.clip(np.asarray(tint) + rng.normal(0, noise, (size, size, 3)), 0, 255).astype(np.uint8)


def episodes(folder: Path, *, name: str = "stand-in/walk/random-v0", count: int = 4, steps: int = 10, observation: int = 3,
             action: int = 2, seed: int = 0) -> Path:
    """A minari data set of random walks; needs the package minari (with h5py), which writes its own format.

    Args:
        folder: becomes ``MINARI_DATASETS_PATH``: ``minari.load_dataset(name)`` finds it with that variable set.
        name: id of the data set, with its version.
        count, steps: episodes, and actions in each.
        observation, action: widths.
        seed: of the walks.
    """
    import gymnasium
    import minari
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(seed)
    walks = []
    for i in range(count):
        moves = rng.uniform(-1, 1, (steps, action)).astype(np.float32)
        places = rng.normal(size=(steps + 1, observation)).cumsum(axis=0).astype(np.float32)
        last = [step == steps - 1 for step in range(steps)]
        walks.append(EpisodeBuffer(id=i, seed=i, observations=places, actions=moves, rewards=rng.normal(size=steps).tolist(),
                                   terminations=[False] * steps, truncations=last))
    box = gymnasium.spaces.Box
    with _variable("MINARI_DATASETS_PATH", str(folder)), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that no environment is named: there is none
        minari.create_dataset_from_buffers(
            name, walks, observation_space=box(-np.inf, np.inf, (observation,), np.float32), algorithm_name="random walk",
            action_space=box(-1, 1, (action,), np.float32), author="stand-in", author_email="stand-in", code_permalink="none",
        )
    return folder


# --- shared ------------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _weights(seed: int) -> Iterator[None]:
    """Weights drawn from `seed`, with the caller's global stream as it was and no progress bars."""
    import torch
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextlib.contextmanager
def _no_bars(datasets: Any) -> Iterator[None]:
    shown = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    import os

    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _alphabet() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _in_order(vocab: Mapping[str, int], merges: Sequence[Sequence[str]], first: Sequence[str] = ()) -> dict[str, int]:
    """The same tokens, numbered the same way in every process: `first`, letters in order, then merges as they were learnt."""
    learnt = list(dict.fromkeys("".join(pair) for pair in merges))
    letters = sorted(set(vocab) - set(learnt) - set(first))
    return {token: i for i, token in enumerate([*first, *letters, *learnt])}


def _feature(feature: Any) -> Any:
    import datasets

    if feature == "image":
        return datasets.Image()
    if isinstance(feature, str):
        return datasets.Value(feature)
    if isinstance(feature, list | tuple):
        return datasets.ClassLabel(names=list(feature))
    return feature


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
