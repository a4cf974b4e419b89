"""The plot style: distinguishable without colour, legible when small, the same bytes each time."""

import io

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from paperbook.figures.style import MARKERS, PALETTE, band, panels


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def luminance(colour):
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.03928, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_lines_stand_out_on_their_card():
    # contrast of at least 2:1 on white, and a marker of its own for each, so that colour alone carries nothing
    assert all(1.05 / (luminance(c) + 0.05) >= 2 for c in PALETTE)
    assert len(set(MARKERS)) == len(set(PALETTE)) == len(MARKERS)


# what protanopes, deuteranopes and tritanopes see of linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)
SEEN = {
    "by everybody": np.eye(3),
    "without red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "without green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "without blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def lab(colour, matrix):
    """CIELAB of a colour as somebody sees it."""
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(matrix) @ linear, 0, 1)
    to_xyz = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]])
    x, y, z = np.cbrt(to_xyz @ seen / [0.95047, 1, 1.08883])  # the cube root alone: no colour here is darker than its linear part
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("eyes", SEEN)
def test_no_two_lines_look_alike_to_anybody(eyes):
    colours = [lab(colour, SEEN[eyes]) for colour in PALETTE]
    distance = {(i, j): float(np.linalg.norm(a - b)) for i, a in enumerate(colours) for j, b in enumerate(colours) if i < j}
    assert min(distance.values()) > 10, distance  # about 2 is just noticeable side by side


def test_a_band_draws_one_method():
    figure, axes = panels()
    band(axes, [1, 2], [1.0, 2.0], [0.5, 1.5], [1.5, 2.5], label="ours", index=1)
    (line,) = axes.lines
    assert line.get_color() == PALETTE[1] and line.get_marker() == MARKERS[1] and line.get_label() == "ours"
    assert len(axes.collections) == 1 and figure.get_facecolor() == (1, 1, 1, 1)


def test_the_cycle_wraps():
    _, axes = panels()
    band(axes, [1], [1.0], label="x", index=len(PALETTE))
    assert axes.lines[0].get_color() == PALETTE[0]


def test_panels_are_rows_by_columns():
    figure, axes = panels(columns=2, rows=1, height=2.0)
    assert axes.shape == (2,) and figure.get_size_inches()[1] == 2.0


def test_the_same_figure_has_the_same_bytes():
    images = []
    for _ in range(2):
        figure, axes = panels()
        band(axes, [1, 2], [1.0, 2.0], label="ours", index=0)
        stream = io.BytesIO()
        figure.savefig(stream, metadata={"Software": None})
        images.append(stream.getvalue())
    assert images[0] == images[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: panels(columns=0), "expected at least 1 of each"),
        (lambda: band(panels()[1], [1], [1.0], low=[0.5], label="x", index=0), "both or neither"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
