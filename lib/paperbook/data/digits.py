"""Digits: 8x8 images of handwritten digits, a real classification table small enough for seconds.

Card
    source: test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998), UCI repository, as packed in
        scikit-learn; no network needed.
    licence: CC BY 4.0 (UCI); scikit-learn's copy is BSD-3.
    rows, columns: 1,797 images of 64 pixels, grey values 0..16 scaled here to [0, 1]; ten classes of 174 to 183 images.
    known to be wrong: no writer is named, though each wrote many images, so a random split shares writers between its parts and
        accuracies are optimistic for a new hand; the same holds for every method compared on it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Digits(NamedTuple):
    """X (1797, 64) pixels in [0, 1], row by row; y (1797,) the digit 0..9."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]


def load_digits() -> Digits:
    """All images in file order."""
    from sklearn.datasets import load_digits as bundled

    X, y = bundled(return_X_y=True)
    return Digits(X.astype(np.float64) / 16.0, y.astype(np.int64))


def shift_images(X: NDArray[np.float64], dx: int, dy: int) -> NDArray[np.float64]:
    """Images X (n, 64) moved `dx` pixels to the right and `dy` down (negative: left, up), |dx|, |dy| < 8; what enters is 0."""
    if X.ndim != 2 or X.shape[1] != 64:
        raise ValueError(f"X: expected shape (n, 64), got {X.shape}")
    for name, shift in (("dx", dx), ("dy", dy)):
        if isinstance(shift, bool) or not isinstance(shift, int | np.integer):
            raise TypeError(f"{name}: expected an integer, got {type(shift).__name__} {shift!r}")
        if abs(shift) >= 8:
            raise ValueError(f"{name}: expected -7..7, got {shift}")
    images = X.reshape(-1, 8, 8)
    moved = np.zeros_like(images)
    moved[:, max(dy, 0):8 + min(dy, 0), max(dx, 0):8 + min(dx, 0)] = \
        images[:, max(-dy, 0):8 + min(-dy, 0), max(-dx, 0):8 + min(-dx, 0)]
    return moved.reshape(-1, 64)
