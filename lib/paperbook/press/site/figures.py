"""The numbers behind each figure beside the built page, with a link in its caption; and what a what-if panel needs.

The CSV comes from the executed notebook, where `paperbook.figures` has put it into the same output as the picture. It is
written to ``_data/<slug>/<page>/<figure name>.csv`` of the built book.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docutils import nodes

from paperbook.press import toc
from paperbook.press.site import base

FOLDER = "_data"
PANEL = "pb-whatif"  # class of a what-if panel, as paperbook.figures.whatif writes it
_GLUED = "application/papermill.record/"


class pb_data(nodes.Inline, nodes.Element):
    """A link to the numbers of a figure; it has no text, so that lists of figures and other formats show nothing of it."""


@dataclass(frozen=True)
class FigureData:
    """The CSV of one output: `name` of its file, `shown` what tells the output apart (hash of its picture or its HTML)."""

    name: str
    text: str
    shown: str
    rows: int


def of_notebook(document: dict[str, Any]) -> list[FigureData]:
    """The figure data of an executed page, in its order.

    Args:
        document: the page as parsed JSON. A file is called after the figure's name, the key it was glued under, or its cell.
    """
    found: list[FigureData] = []
    for position, cell in enumerate(document["cells"]):
        for output in cell.get("outputs", []):
            data = {mime.removeprefix(_GLUED): _joined(value) for mime, value in output.get("data", {}).items()}
            if "text/csv" not in data:
                continue
            key = output.get("metadata", {}).get("scrapbook", {}).get("name")
            option = cell["metadata"].get("mystnb", {}).get("figure", {}).get("name")
            name = re.sub(r"[^\w.-]+", "-", str(key or option or f"cell-{position}")).strip(".-")
            taken = {one.name for one in found}
            names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
            name = next(free for free in names if free not in taken)
            found.append(FigureData(name, data["text/csv"], _shown(data), rows(data["text/csv"])))
    return found


def rows(text: str) -> int:
    """Number of rows of figure data, without comments and header."""
    return max(0, sum(1 for line in text.splitlines() if line and not line.startswith("#")) - 1)


def _joined(value: Any) -> Any:
    return "".join(value) if isinstance(value, list) else value


def _shown(data: dict[str, Any]) -> str:
    if "image/png" in data:
        return hashlib.sha256(base64.b64decode(data["image/png"])).hexdigest()
    return hashlib.sha256(data.get("text/html", "").encode()).hexdigest()


def _pages(env: Any) -> Iterator[tuple[str, Path]]:
    """(slug/page, executed notebook) of each page in the book."""
    for slug in toc.executed_slugs():
        for page, path in toc.executed(slug).items():
            if f"book/pages/{slug}/{page}" in env.found_docs:
                yield f"{slug}/{page}", path


def _without_data(app: Any, docname: str, source: list[str]) -> None:
    """Take the CSV out of a page's outputs before myst-nb reads them: it would warn of a kind that it cannot show."""
    if not re.fullmatch(r"book/pages/[^/]+/[^/]+", docname) or '"text/csv"' not in source[0].replace(_GLUED, ""):
        return
    document = json.loads(source[0])
    for cell in document["cells"]:
        for output in cell.get("outputs", []):
            for mime in [mime for mime in output.get("data", {}) if mime.removeprefix(_GLUED) == "text/csv"]:
                del output["data"][mime]
    source[0] = json.dumps(document, ensure_ascii=False)


def _link(app: Any, doctree: nodes.document) -> None:
    """Put a link to its data into each caption of a page."""
    match = re.fullmatch(r"book/pages/([^/]+)/([^/]+)", app.env.docname)
    path = toc.executed(match[1]).get(match[2]) if match else None
    if match is None or path is None:
        return
    known = {one.shown: one for one in reversed(of_notebook(json.loads(path.read_text(encoding="utf-8"))))}
    for figure in doctree.findall(nodes.figure):
        caption = next(iter(figure.findall(nodes.caption)), None)
        hashes = [Path(image["uri"]).stem for image in figure.findall(nodes.image)]
        hashes += [hashlib.sha256(raw.astext().encode()).hexdigest() for raw in figure.findall(nodes.raw)]
        data = next((known[shown] for shown in hashes if shown in known), None)
        if caption is None or data is None:
            continue
        href = "../" * app.env.docname.count("/") + f"{FOLDER}/{match[1]}/{match[2]}/{data.name}.csv"
        finding = re.split(r"(?<=[.:;!?])\s", caption.astext(), maxsplit=1)[0].rstrip(".:;")
        caption += pb_data("", href=href, label=f"data (CSV) of the figure: {finding}")


def _write(app: Any, exception: Exception | None) -> None:
    """Write every page's data, also of pages that this build did not touch, and drop what no figure has any more."""
    if exception is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir) / FOLDER
    wanted: set[Path] = set()
    for name, path in _pages(app.env):
        for one in of_notebook(json.loads(path.read_text(encoding="utf-8"))):
            target = folder / name / f"{one.name}.csv"
            wanted.add(target)
            content = one.text.encode("utf-8")
            if not target.is_file() or target.read_bytes() != content:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    for path in sorted(folder.rglob("*.csv")):
        if path not in wanted:
            path.unlink()


def _panel_files(app: Any, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """The script of what-if panels goes to the pages that have one; the style is in the one stylesheet of all pages."""
    if doctree is not None and any(f'class="{PANEL}"' in raw.astext() for raw in doctree.findall(nodes.raw)):
        app.add_js_file("whatif.js", loading_method="defer")


def _visit_data(self: Any, node: pb_data) -> None:
    attributes = {"href": node["href"], "aria-label": node["label"], "download": ""}
    self.body.append(" " + self.starttag(node, "a", "", CLASS="pb-data", **attributes) + "data (CSV)</a>")


def _depart_data(self: Any, node: pb_data) -> None:
    """Everything was written when the link began."""


def setup(app: Any) -> None:
    """Register with Sphinx."""
    base.add_node(app, pb_data, _visit_data, _depart_data)
    app.connect("source-read", _without_data)
    app.connect("doctree-read", _link)
    app.connect("html-page-context", _panel_files)
    app.connect("build-finished", _write)
