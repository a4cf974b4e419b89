"""What a page shows: numbers glued into prose, verdict lines, small tables."""

from __future__ import annotations

from typing import Any


def glue(name: str, value: Any) -> None:
    """Make `value` available to the page's prose as ``{glue:text}`name:.3f``.

    Where myst-nb is not installed (a GPU server that only computes) there is no prose to paste into: nothing happens.
    """
    try:
        from myst_nb import glue as paste
    except ImportError:
        return
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()  # numpy scalars render as np.float64(...)
    paste(name, value, display=False)
