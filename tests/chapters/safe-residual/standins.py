"""This chapter's stand-ins: CLIP and a language model that know its words, data with the columns of CIFAR-100 and AG News."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rehearsal.standins import StandIns, tinted

CIFAR_CLASSES = ["apple", "aquarium_fish", "bear", "bicycle", "bus"]
NEWS_CLASSES = ["World", "Sports", "Business", "Sci/Tech"]
NEWS_WORDS = {
    "World": "minister border treaty election president talks",
    "Sports": "coach season goal match league striker",
    "Business": "shares profit market bank quarter oil",
    "Sci/Tech": "software chip space web network laser",
}
WORDS = [*NEWS_WORDS.values(), *NEWS_CLASSES, *CIFAR_CLASSES, "a photo of a Article: Topic: N/A",
         "Classify the news article into one of these topics"]  # fmt: skip


def clip(standins: StandIns) -> Path:
    """Stands for openai/clip-vit-base-patch32."""
    return standins.clip(WORDS)


def qwen(standins: StandIns) -> Path:
    """Stands for Qwen/Qwen3-8B."""
    return standins.causal_lm(WORDS)


def cifar(standins: StandIns, train: int = 240, test: int = 60) -> Path:
    """Parquet with the columns of uoft-cs/cifar100: images with a colour a class."""
    rng = np.random.default_rng(0)
    tints = rng.integers(40, 215, (len(CIFAR_CLASSES), 3))
    splits = {}
    for split, rows in (("train", train), ("test", test)):
        labels = np.arange(rows) % len(CIFAR_CLASSES)
        splits[split] = {"img": [tinted(tints[label], 32, rng) for label in labels], "fine_label": labels,
                         "coarse_label": labels % 2}  # fmt: skip
    columns = {"img": "image", "fine_label": CIFAR_CLASSES, "coarse_label": ["things", "animals"]}
    return standins.parquet(f"cifar {train} {test}", splits, columns, config="cifar100", place="cifar100")


def news(standins: StandIns) -> Path:
    """Stands for fancyzhx/ag_news (text, label): 240 + 60 texts, half of their words typical of the class."""
    rng = np.random.default_rng(0)
    everything = " ".join(NEWS_WORDS.values()).split()
    splits = {}
    for split, rows in (("train", 240), ("test", 60)):
        labels = np.arange(rows) % 4
        texts = []
        for label in labels:
            own = NEWS_WORDS[NEWS_CLASSES[label]].split()
            length = int(rng.integers(4, 16))
            texts.append(" ".join(str(rng.choice(own if rng.random() < 0.5 else everything)) for _ in range(length)))
        splits[split] = {"text": texts, "label": labels}
    return standins.parquet("news", splits, {"text": "string", "label": NEWS_CLASSES}, card=False)


HUB = {"openai/clip-vit-base-patch32": clip, "uoft-cs/cifar100": cifar, "Qwen/Qwen3-8B": qwen, "fancyzhx/ag_news": news}
"""What stands for which repository of the hub."""
