"""The one plot style of the book: a colour-blind-safe cycle, labels legible at 390 px, a white card in dark mode too."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from paperbook.figures import data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's eight, darkest first, yellow left out (too light for a line on white).
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_STYLE: dict[str, Any] = {
    "figure.facecolor": "white",
    "figure.dpi": 110,
    "savefig.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.size": 11,
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "svg.hashsalt": "paperbook",
}


def use_style() -> None:
    """Set matplotlib to the book's style."""
    import matplotlib as mpl
    from matplotlib.rcsetup import cycler

    settings: Any = mpl.rcParams  # its stub admits literal keys only
    settings.update(_STYLE)
    settings["axes.prop_cycle"] = cycler(color=PALETTE)


def panels(columns: int = 1, rows: int = 1, width: float = 6.0, height: float = 3.6, **options: Any) -> tuple[Figure, Any]:
    """A figure in the book's style with ``rows`` × ``columns`` axes; sizes in inches, `height` is of one row.

    Each line colour comes with its own marker in :func:`band`, so that no message rests on colour alone. In a notebook the
    figure's data travel with it as CSV (:mod:`paperbook.figures.data`): give each series a label.
    """
    import matplotlib.pyplot as plt

    if columns < 1 or rows < 1:
        raise ValueError(f"columns, rows: expected at least 1 of each, got {columns} and {rows}")
    use_style()
    found = plt.subplots(rows, columns, figsize=(width, height * rows), **options)
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        data.register(shell)  # after pyplot has chosen its backend, which forgets what was registered for figures
    return found


def band(
    axes: Axes,
    x: ArrayLike,
    mean: ArrayLike,
    low: ArrayLike | None = None,
    high: ArrayLike | None = None,
    *,
    label: str,
    index: int,
    line: str = "-",
) -> None:
    """Draw one method: a line with the `index`-th colour and marker, and its interval as a band of the same colour.

    Args:
        axes: where to draw.
        x: positions, shape ``(k,)``.
        mean: centre, shape ``(k,)``.
        low: lower end of the interval, shape ``(k,)``; given together with `high` or not at all.
        high: upper end of the interval, shape ``(k,)``.
        label: name in the legend.
        index: position in the colour and marker cycle; one method keeps one index throughout a chapter.
        line: matplotlib line style.

    Raises:
        ValueError: when only one of `low` and `high` is given.
    """
    if (low is None) != (high is None):
        raise ValueError("low, high: expected both or neither")
    colour, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
    axes.plot(x, mean, line, color=colour, marker=marker, label=label)
    if low is not None and high is not None:
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
