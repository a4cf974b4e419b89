"""What the book changes about its theme's pages: no live code, images that wait until they are near, and what axe found."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from docutils import nodes


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
    body = body.replace(' role="doc-biblioentry"', "").replace('<div role="list" class="citation-list">', '<div class="citation-list">')
    sources = {f"_images/{name}": Path(app.srcdir) / source for source, name in app.builder.images.items()}
    context["body"] = re.sub(r"<img\b[^>]*>", lambda match: _waiting(match[0], sources), body)


def _named(match: re.Match[str]) -> str:
    """A header that is a formula alone has no text; its symbols as a label make it a name."""
    attributes, content = match.groups()
    if "aria-label" in attributes or re.sub(r"<mjx-assistive-mml>.*?</mjx-assistive-mml>|<[^>]*>|\s", "", content, flags=re.S):
        return match[0]
    symbols = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", content)).strip()
    return f'<th{attributes} aria-label="{symbols}">{content}</th>'


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


def setup(app: Any) -> None:
    """Register with Sphinx."""
    app.connect("html-page-context", _without_thebe, priority=900)  # after sphinx-thebe has added what goes here
    app.connect("html-page-context", _body, priority=900)
    app.connect("doctree-resolved", _without_thebe_config, priority=900)
