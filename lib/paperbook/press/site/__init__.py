"""The book's Sphinx extension: what it shows is computed when it is built, nothing of it is typed into a page.

One module a concern, each with its own ``setup``. A page is rebuilt when a file that its directives read has changed,
appeared or vanished (`base.Dependencies`).
"""

from __future__ import annotations

from typing import Any

from paperbook.press.site import (
    api,
    base,
    chapter,
    claims,
    figures,
    glossary,
    maths,
    numbers,
    rules,
    tables,
    theme,
    weight,
)  # fmt: skip

PARTS = (base, claims, tables, chapter, api, figures, glossary, maths, numbers, rules, theme, weight)


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    for part in PARTS:
        part.setup(app)
    return {"version": "1", "env_version": 2, "parallel_read_safe": True, "parallel_write_safe": True}
