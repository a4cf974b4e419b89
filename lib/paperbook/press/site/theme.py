"""What the book changes about its theme's pages."""

from __future__ import annotations

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


def setup(app: Any) -> None:
    """Register with Sphinx."""
    app.connect("html-page-context", _without_thebe, priority=900)  # after sphinx-thebe has added what goes here
    app.connect("doctree-resolved", _without_thebe_config, priority=900)
