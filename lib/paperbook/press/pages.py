"""What the press does to a freshly executed notebook, so that an unchanged re-run writes the same bytes.

Cell ids follow the position, volatile metadata go, streams are merged, figures become PNGs of at most 256 colours. An
output that names this machine, or an object by its address, is refused with the number of its cell.
"""

from __future__ import annotations

import base64
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from paperbook.study import paths
from paperbook.study.results import write_atomic

FIGURE_LIMIT = 25_000  # bytes of a PNG: 95 pages of six figures stay below 15 MB
TEXT_LIMIT = 20_000  # bytes of text that one cell may show: some 200 full lines, more than anybody reads
MARKUP_LIMIT = 100_000  # bytes of HTML tables, SVG and the like in one cell
DATA_LIMIT = 200_000  # bytes of the CSV behind the figures of one cell

# Text on stderr that tells a reader nothing: it comes and goes with the machine.
_NOISE = re.compile(
    r"Matplotlib is building the font cache|IProgress not found|TqdmWarning|from \.autonotebook import tqdm"
    r"|Kernel is running over TCP without encryption|Font family .* not found"
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{6,}")


class PageError(Exception):
    """An executed page may not be published; the message names the cell and says what to do."""


def normalise(nb: Any, slug: str, page: str) -> None:
    """Bring an executed notebook into its published form, in place.

    Raises:
        PageError: a figure or the text of a cell above its limit, a machine path, or an object's address in an output.
    """
    for position, cell in enumerate(nb.cells):
        cell.id = cell_id(slug, page, position)
        for key in ("execution", "papermill"):
            cell.metadata.pop(key, None)
        if cell.cell_type != "code":
            cell.pop("attachments", None)
            continue
        cell.outputs = _merged([output for output in cell.outputs if not _is_noise(output)])
        for output in cell.outputs:
            _strip(output)
        _refuse_bulk(cell.outputs, position)  # first: what follows looks through every character
        for output in cell.outputs:
            _quantise_figures(output, position)
            _refuse(output, position)
    nb.metadata = _kept_metadata(nb.metadata)
    nb.nbformat, nb.nbformat_minor = 4, 5


def cell_id(slug: str, page: str, position: int) -> str:
    """Id of a cell from its place: ``<slug>-<page>-<position>`` within nbformat's 64 characters of ``[a-zA-Z0-9-_]``."""
    tail = f"-{position}"
    stem = re.sub(r"[^a-zA-Z0-9_-]", "-", f"{slug}-{page}")
    return stem[: 64 - len(tail)] + tail


def dumps(nb: Any) -> str:
    """The notebook as the text that is committed: sorted keys, one line a row, one newline at the end."""
    import nbformat

    return str(nbformat.writes(nbformat.from_dict(nb), version=4)).rstrip("\n") + "\n"


def write_text(path: Path, text: str) -> bool:
    """Write `text` to `path` atomically; False (and nothing touched) when it already holds exactly that."""
    data = text.encode("utf-8")
    if path.is_file() and path.read_bytes() == data:
        return False
    write_atomic(path, data)
    return True


def _kept_metadata(metadata: Any) -> dict[str, Any]:
    """Notebook metadata that mean the same on every machine; the press adds its stamp afterwards."""
    kernel = metadata.get("kernelspec", {})
    return {
        "kernelspec": {
            "display_name": kernel.get("display_name", "Python 3"),
            "language": "python",
            "name": kernel.get("name", "python3"),
        },
        "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
    }


def _is_noise(output: Any) -> bool:
    if output.output_type != "stream" or output.name != "stderr":
        return False
    lines = [line for line in output.text.splitlines() if line.strip()]
    return not lines or all(_NOISE.search(line) for line in lines)


def _merged(outputs: list[Any]) -> list[Any]:
    """Neighbouring pieces of the same stream joined: how a kernel cuts a stream depends on timing."""
    merged: list[Any] = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last is not None and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def _strip(output: Any) -> None:
    output.pop("transient", None)
    if "text" in output:
        output.text = _ANSI.sub("", output.text)


def _quantise_figures(output: Any, position: int) -> None:
    data = output.get("data", {})
    for mime in [mime for mime in data if mime.endswith("image/png")]:  # glued figures carry a prefix
        png = quantised(base64.b64decode(data[mime]))
        if len(png) > FIGURE_LIMIT:
            raise PageError(
                f"cell {position}: a figure of {len(png) / 1000:.1f} kB, at most {FIGURE_LIMIT / 1000:.0f} kB; "
                "draw fewer points, a smaller figsize or a lower dpi"
            )
        data[mime] = base64.b64encode(png).decode() + "\n"


def quantised(raw: bytes) -> bytes:
    """`raw` (a PNG) on white, with a palette of 256 colours (64 where that is needed to stay small), without metadata."""
    from PIL import Image

    with Image.open(io.BytesIO(raw)) as opened:
        image = opened.convert("RGBA")
    flat = Image.new("RGB", image.size, "white")
    flat.paste(image, mask=image.getchannel("A"))
    png = b""
    for colours in (256, 64):
        stream = io.BytesIO()
        palette = flat.quantize(colors=colours, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        palette.save(stream, format="PNG", optimize=True)
        png = stream.getvalue()
        if len(png) <= FIGURE_LIMIT:
            break
    return png


def _texts(output: Any) -> list[str]:
    """Everything a reader could see of one output, pictures left out."""
    texts = [str(output.get("text", "")), str(output.get("evalue", "")), *map(str, output.get("traceback", []))]
    for mime, value in output.get("data", {}).items():
        if "image/" not in mime or mime == "image/svg+xml":
            texts.append(value if isinstance(value, str) else json.dumps(value))
    return texts


def machine_paths() -> list[str]:
    """Beginnings of paths that mean something on this machine only."""
    found = {str(paths.root()), str(Path.home()), sys.prefix, sys.base_prefix, tempfile.gettempdir()}
    return sorted((p.rstrip("/") + "/" for p in found if len(p) > 1), key=len, reverse=True)


def _refuse_bulk(outputs: list[Any], position: int) -> None:
    """Text and markup of one cell, all its outputs together, stay below their limits; PNGs have a limit of their own."""
    text = markup = data = 0
    for output in outputs:
        text += sum(_size(output.get(key, "")) for key in ("text", "ename", "evalue", "traceback"))
        for mime, value in output.get("data", {}).items():
            if mime.endswith("text/html") or ("image/" in mime and not mime.endswith("image/png")):
                markup += _size(value)
            elif mime.endswith("text/csv"):
                data += _size(value)
            elif not mime.endswith("image/png"):
                text += _size(value)
    for what, size, limit, advice in (
        ("text", text, TEXT_LIMIT, "print a summary, or the first rows"),
        ("HTML or SVG", markup, MARKUP_LIMIT, "show fewer rows"),
        ("figure data", data, DATA_LIMIT, "draw fewer series, or fewer figures in one cell"),
    ):
        if size > limit:
            raise PageError(
                f"cell {position}: its outputs hold {size / 1000:.1f} kB of {what}, at most {limit // 1000} kB; {advice}"
            )


def _size(value: Any) -> int:
    """Bytes of a text, or of anything else as JSON."""
    return len((value if isinstance(value, str) else json.dumps(value)).encode("utf-8", errors="replace"))


def _refuse(output: Any, position: int) -> None:
    root = str(paths.root())
    for text in _texts(output):
        for start in machine_paths():
            # the root itself is as telling as a file in it
            if start in text or (start.rstrip("/") == root and root in text):
                line = next((row for row in text.splitlines() if start.rstrip("/") in row), start)
                raise PageError(
                    f"cell {position}: its output names a path of this machine: {line.strip()[:160]!r}; "
                    "print paths relative to the repository, and fix what warns"
                )
        match = _ADDRESS.search(text)
        if match:
            raise PageError(
                f"cell {position}: its output shows an object's address ({text.strip()[:80]!r}), which changes with "
                "every run; end the cell with a semicolon or assign the value"
            )
