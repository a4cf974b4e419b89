"""What the book changes about its theme's pages: no live code, images that wait until they are near, and what axe found."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from docutils import nodes

from paperbook.study import paths


def _without_thebe(app: Any, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Live code is off in this book: its scripts would declare a name twice and name a foreign host."""

    def of_thebe(script: Any) -> bool:
        return "thebe" in f"{getattr(script, 'filename', script)} {getattr(script, 'attributes', '')}".lower()

    for key in ("script_files", "css_files"):
        if key in context:
            context[key] = [script for script in context[key] if not of_thebe(script)]


def _without_thebe_config(app: Any, doctree: nodes.document, docname: str) -> None:
    for node in list(doctree.findall(nodes.raw)):
        if "thebe" in node.astext():
            node.parent.remove(node)


def _body(app: Any, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Mend what docutils and sphinxcontrib-bibtex write, and give images their size, so that nothing moves when they come."""
    body = context.get("body")
    if not body:
        return
    body = re.sub(r"<th([^>]*)>\s*(?:<p>\s*</p>)?\s*</th>", r"<td\1></td>", body)  # a header that names nothing is none
    body = re.sub(r"<th\b([^>]*)>((?:(?!</th>).)*<math\b(?:(?!</th>).)*)</th>", _named, body, flags=re.S)
    body = body.replace(' role="doc-biblioentry"', "").replace('<div role="list" class="citation', '<div class="citation')
    # Sphinx writes a long signature as a list of definitions without terms
    body = re.sub(r"<dl>\s*((?:<dd>(?:(?!</?d[ldt]\b).)*</dd>\s*)+)</dl>", _parameters, body, flags=re.S)
    sources = {f"_images/{name}": Path(app.srcdir) / source for source, name in app.builder.images.items()}
    context["body"] = re.sub(r"<img\b[^>]*>", lambda match: _waiting(match[0], sources), body)


def _parameters(match: re.Match[str]) -> str:
    return f'<div class="pb-params">{match[1].replace("<dd>", "<div>").replace("</dd>", "</div>")}</div>'


def _named(match: re.Match[str]) -> str:
    """A header that is a formula alone has no text of its own; its symbols, unseen beside it, make it a name."""
    attributes, content = match.groups()
    if re.sub(r"<mjx-assistive-mml>.*?</mjx-assistive-mml>|<[^>]*>|\s", "", content, flags=re.S):
        return match[0]
    symbols = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", content)).strip()
    shown = content.replace("<mjx-container", '<mjx-container aria-hidden="true"')
    return f'<th{attributes}>{shown}<span class="pb-unseen">{symbols}</span></th>'


def _waiting(tag: str, sources: dict[str, Path]) -> str:
    if " loading=" in tag:
        return tag
    source = re.search(r'src="(?:\.\./)*([^"]+)"', tag)
    size = _size(sources[source[1]]) if source and source[1] in sources and " width=" not in tag else None
    room = f' width="{size[0]}" height="{size[1]}"' if size else ""
    return tag.replace("<img", f'<img loading="lazy" decoding="async"{room}', 1)


@functools.cache
def _size(path: Path) -> tuple[int, int] | None:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return image.size
    except (OSError, UnidentifiedImageError):  # a vector image says its size itself
        return None


_PAGE = re.compile(r"book/pages/([^/]+)/([^/]+)")


def _downloads(app: Any, pagename: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """A chapter page offers its executed notebook (the theme's own button) and the text it is made from."""
    match = _PAGE.fullmatch(pagename)
    group = next((b for b in context.get("header_buttons", []) if b.get("label") == "download-buttons"), None)
    if not match or group is None:
        return
    address = f"{context['pathto']('_sources', 1)}/chapters/{match[1]}/{match[2]}.md"
    source = {"type": "link", "url": address, "text": ".md", "icon": "fas fa-file", "label": "download-myst-button",
              "tooltip": "Download the MyST source: what authors edit and papermill runs"}  # fmt: skip
    group["buttons"].insert(1, source)


def _sources(app: Any, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    for document in app.env.found_docs:
        match = _PAGE.fullmatch(document)
        path = paths.chapter(match[1]) / f"{match[2]}.md" if match else None
        if match and path and path.is_file():
            target = Path(app.outdir) / "_sources" / "chapters" / match[1] / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())


def setup(app: Any) -> None:
    """Register with Sphinx."""
    app.connect("html-page-context", _without_thebe, priority=900)  # after sphinx-thebe has added what goes here
    app.connect("html-page-context", _body, priority=900)
    app.connect("html-page-context", _downloads, priority=900)
    app.connect("build-finished", _sources)
    app.connect("doctree-resolved", _without_thebe_config, priority=900)
