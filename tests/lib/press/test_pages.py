"""The published form of a page."""

from __future__ import annotations

import base64
import io

import nbformat.v4 as v4
import numpy as np
import pytest
from PIL import Image

from paperbook.press import pages
from paperbook.study import paths


def _notebook(*outputs):
    cell = v4.new_code_cell("1", outputs=list(outputs))
    kernel = {"name": "python3", "display_name": "Python 3"}
    return v4.new_notebook(cells=[cell], metadata={"kernelspec": kernel, "jupytext": {"x": 1}})


def _png(pixels: np.ndarray, **options) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG", **options)
    return stream.getvalue()


def test_cell_ids_fit_the_format() -> None:
    assert pages.cell_id("a-b", "1-c", 3) == "a-b-1-c-3"
    long = pages.cell_id("s" * 60, "1-page.x", 117)
    assert len(long) == 64 and long.endswith("-117") and "." not in long


def test_streams_are_merged_and_noise_goes() -> None:
    nb = _notebook(
        v4.new_output("stream", name="stdout", text="a\n"),
        v4.new_output("stream", name="stderr", text="Matplotlib is building the font cache; this may take a moment.\n"),
        v4.new_output("stream", name="stdout", text="\x1b[31mb\x1b[0m\n"),
        v4.new_output("stream", name="stderr", text="UserWarning: mind this\n"),
    )
    pages.normalise(nb, "s", "1-p")
    assert [(o.name, o.text) for o in nb.cells[0].outputs] == [("stdout", "a\nb\n"), ("stderr", "UserWarning: mind this\n")]
    assert set(nb.metadata) == {"kernelspec", "language_info"}


def test_figures_get_a_palette_on_white_without_metadata() -> None:
    rng = np.random.default_rng(0)
    pixels = np.zeros((40, 60, 4), dtype=np.uint8)  # transparent black: must turn white
    pixels[:20] = np.dstack([rng.integers(0, 255, (20, 60, 3)), np.full((20, 60), 255)])
    png = pages.quantised(_png(pixels))
    with Image.open(io.BytesIO(png)) as image:
        assert image.mode == "P" and image.size == (60, 40) and not image.info.get("Software")
        colours = image.convert("RGB").getcolors(maxcolors=10_000)
        assert image.convert("RGB").getpixel((30, 35)) == (255, 255, 255)
    assert colours is not None and len(colours) <= 256
    assert pages.quantised(_png(pixels)) == png  # a re-run writes the same bytes


def test_a_figure_that_stays_too_large_is_refused_with_its_cell() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (400, 400, 3)).astype(np.uint8)
    nb = _notebook(v4.new_output("display_data", data={"image/png": base64.b64encode(_png(noise)).decode()}))
    with pytest.raises(pages.PageError, match=r"cell 0: a figure of .* kB, at most 25 kB"):
        pages.normalise(nb, "s", "1-p")


@pytest.mark.parametrize("mime", ["text/plain", "text/html", "application/json"])
def test_paths_and_addresses_are_refused_in_every_text(mime: str) -> None:
    for text, message in ((f"{paths.root()}/x.py", "path of this machine"), ("<Line2D at 0x7f12ab34cd56>", "object's address")):
        data = {mime: {"deep": [text]} if mime == "application/json" else text}
        with pytest.raises(pages.PageError, match=message):
            pages.normalise(_notebook(v4.new_output("display_data", data=data)), "s", "1-p")


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([v4.new_output("stream", name="stdout", text="x" * 20_001)], "20.0 kB of text, at most 20 kB"),
        ([v4.new_output("stream", name=name, text="x" * 15_000) for name in ("stdout", "stderr")], "30.0 kB of text"),
        ([v4.new_output("display_data", data={"text/markdown": "ä" * 15_000})], "30.0 kB of text"),
        ([v4.new_output("display_data", data={"application/json": {"x": ["y" * 20_000]}})], "kB of text"),
        ([v4.new_output("display_data", data={"application/papermill.record/text/plain": "x" * 30_000})], "30.0 kB of text"),
        ([v4.new_output("display_data", data={"text/html": "x" * 100_001})], "100.0 kB of HTML or SVG, at most 100 kB"),
        ([v4.new_output("display_data", data={"image/svg+xml": "x" * 200_000})], "200.0 kB of HTML or SVG"),
        ([v4.new_output("display_data", data={"text/csv": "x" * 200_001})], "200.0 kB of figure data, at most 200 kB"),
    ],
)
def test_text_that_nobody_reads_is_refused_with_its_cell(outputs, message: str) -> None:
    with pytest.raises(pages.PageError, match=f"cell 0: its outputs hold .*{message}"):
        pages.normalise(_notebook(*outputs), "s", "1-p")


def test_text_at_its_limits_passes_and_each_cell_counts_alone() -> None:
    printed = v4.new_output("stream", name="stdout", text="x" * 20_000)
    nb = _notebook(printed, v4.new_output("display_data", data={"text/html": "x" * 100_000, "text/csv": "x" * 200_000}))
    nb.cells.append(v4.new_code_cell("2", outputs=[printed]))
    pages.normalise(nb, "s", "1-p")
    assert len(nb.cells[0].outputs) == 2


def test_write_text_keeps_the_file_when_nothing_changes(tmp_path) -> None:
    path = tmp_path / "deep" / "x.txt"
    assert pages.write_text(path, "a") and not pages.write_text(path, "a") and pages.write_text(path, "b")
    assert [p.name for p in path.parent.iterdir()] == ["x.txt"] and path.read_text() == "b"
