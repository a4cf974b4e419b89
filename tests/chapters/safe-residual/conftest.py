"""Stand-ins for the full-scale data and weights: the same files and schemas, sizes of a toy."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

CIFAR_CLASSES = ["apple", "aquarium_fish", "bear", "bicycle", "bus"]
CIFAR_CARD = """---
configs:
- config_name: cifar100
  data_files:
  - split: train
    path: cifar100/train-*
  - split: test
    path: cifar100/test-*
  default: true
---
"""
NEWS_CLASSES = ["World", "Sports", "Business", "Sci/Tech"]
NEWS_WORDS = {
    "World": "minister border treaty election president talks",
    "Sports": "coach season goal match league striker",
    "Business": "shares profit market bank quarter oil",
    "Sci/Tech": "software chip space web network laser",
}


def _corpus() -> list[str]:
    """Every word of the stand-ins after a space, as it stands in a prompt."""
    lines = [*NEWS_WORDS.values(), *NEWS_CLASSES, *CIFAR_CLASSES, "a photo of a Article: Topic: N/A",
             "Classify the news article into one of these topics"]
    return [f" {line}" for line in lines]


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random CLIP of two layers with the files of the released repository: weights, tokenizer, preprocessor."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    folder = tmp_path_factory.mktemp("clip")
    raw = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=600, end_of_word_suffix="</w>", show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    raw.train_from_iterator(_corpus(), trainer)
    model = json.loads(raw.to_str())["model"]
    vocab = model["vocab"]
    for letter in pre_tokenizers.ByteLevel.alphabet():
        vocab.setdefault(letter + "</w>", len(vocab))
    for token in ("<|startoftext|>", "<|endoftext|>"):
        vocab.setdefault(token, len(vocab))
    tokenizer = CLIPTokenizer(vocab=vocab, merges=[tuple(pair) for pair in model["merges"]])
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    layer = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = CLIPConfig(
        text_config={**layer, **ends, "vocab_size": len(vocab), "max_position_embeddings": 77, "projection_dim": 16},
        vision_config={**layer, "image_size": 32, "patch_size": 16, "projection_dim": 16},
        projection_dim=16,
    )
    CLIPModel(config).save_pretrained(folder)
    # the released repository's preprocessor file is this old, terse form
    (folder / "preprocessor_config.json").write_text(json.dumps({
        "crop_size": 32, "do_center_crop": True, "do_normalize": True, "do_resize": True, "resample": 3, "size": 32,
        "feature_extractor_type": "CLIPFeatureExtractor", "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }))
    return folder


@pytest.fixture(scope="session")
def tiny_qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 of two layers with a byte-level BPE tokenizer trained on the stand-in's own words."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("qwen")
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  special_tokens=["<|endoftext|>"])
    raw.train_from_iterator(_corpus(), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=raw.get_vocab_size(), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, head_dim=8, max_position_embeddings=1024,
                         tie_word_embeddings=False, initializer_range=0.2)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def cifar_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet with the columns of uoft-cs/cifar100 (img, fine_label, coarse_label): 240 + 60 images with a colour a class."""
    import datasets
    from PIL import Image

    folder = tmp_path_factory.mktemp("cifar")
    rng = np.random.default_rng(0)
    tints = rng.integers(40, 215, (len(CIFAR_CLASSES), 3))
    features = datasets.Features({"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=CIFAR_CLASSES),
                                  "coarse_label": datasets.ClassLabel(names=["things", "animals"])})
    for split, rows in (("train", 240), ("test", 60)):
        labels = np.arange(rows) % len(CIFAR_CLASSES)
        images = []
        for label in labels:
            pixels = np.clip(tints[label] + rng.normal(0, 40, (32, 32, 3)), 0, 255).astype(np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(pixels).save(buffer, "PNG")
            images.append({"bytes": buffer.getvalue(), "path": None})
        table = datasets.Dataset.from_dict({"img": images, "fine_label": labels, "coarse_label": labels % 2}, features=features)
        (folder / "cifar100").mkdir(exist_ok=True)
        table.to_parquet(folder / "cifar100" / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text(CIFAR_CARD)
    return folder


@pytest.fixture(scope="session")
def news_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet with the columns of fancyzhx/ag_news (text, label): 240 + 60 texts, half of their words typical of the class."""
    import datasets

    folder = tmp_path_factory.mktemp("news")
    rng = np.random.default_rng(0)
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=NEWS_CLASSES)})
    everything = " ".join(NEWS_WORDS.values()).split()
    for split, rows in (("train", 240), ("test", 60)):
        labels = np.arange(rows) % 4
        texts = []
        for label in labels:
            own = NEWS_WORDS[NEWS_CLASSES[label]].split()
            length = int(rng.integers(4, 16))
            texts.append(" ".join(str(rng.choice(own if rng.random() < 0.5 else everything)) for _ in range(length)))
        table = datasets.Dataset.from_dict({"text": texts, "label": labels}, features=features)
        (folder / "data").mkdir(exist_ok=True)
        table.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


@pytest.fixture(autouse=True)
def own_datasets_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever ``datasets`` prepares during the tests goes to a temporary folder."""
    import sys

    if "datasets" in sys.modules:
        monkeypatch.setattr(sys.modules["datasets"].config, "HF_DATASETS_CACHE", tmp_path_factory.getbasetemp() / "hf")
