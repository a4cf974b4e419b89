"""Random streams: explicit generators, independent by name, the same on every machine."""

from __future__ import annotations

import hashlib
import os
import random
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def seed_everything(seed: int) -> None:
    """Seed Python, numpy's legacy generator and, where it is already imported, torch.

    Library code takes explicit generators; this is the safety net for third-party code that uses global ones. torch is
    left alone unless imported (2.5 s): a page that imports it later calls :func:`torch_generator` for its own streams.
    """
    import sys

    _checked(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - the global generator is the very thing to fix here
    os.environ["PYTHONHASHSEED"] = "0"
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def rng(seed: int, *stream: str | int) -> np.random.Generator:
    """A numpy generator for one named stream of `seed`; different names give independent streams."""
    return np.random.default_rng(np.random.SeedSequence([_checked(seed), *_words(stream)]))


def torch_generator(seed: int, *stream: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """A torch generator for one named stream of `seed`, living on `device`."""
    import torch

    state = np.random.SeedSequence([_checked(seed), *_words(stream)]).generate_state(1, np.uint64)
    return torch.Generator(device=device).manual_seed(int(state[0] >> 1))  # 63 bits: torch takes a signed integer


def paired_seeds(seed: int, n: int) -> list[int]:
    """`n` distinct seeds derived from `seed`; run every method on the same list and its results are paired.

    The first `k` do not depend on `n`, so a study can be extended without repeating what is done.
    """
    if n < 1:
        raise ValueError(f"n: expected at least 1 seed, got {n}")
    _checked(seed)
    return [seed + i for i in range(n)]


def _checked(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise TypeError(f"seed: expected an integer, got {type(seed).__name__}")
    if seed < 0:
        raise ValueError(f"seed: expected a non-negative integer, got {seed}")
    return int(seed)


def _words(stream: tuple[str | int, ...]) -> list[int]:
    """Stable integers for the names of a stream (Python's own hash of a str differs from process to process)."""
    return [int.from_bytes(hashlib.sha256(repr(part).encode()).digest()[:8], "big") for part in stream]
