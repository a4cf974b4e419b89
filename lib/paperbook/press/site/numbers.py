"""Numbers of chapters and pages: chapter 3, its page 2 is 3.2 whatever sections its overview has.

Sphinx counts the sections of a chapter's first page and the pages after it in one row, so that the first page of a chapter
with six sections would be 3.7. Here a page's number is the one in front of its name; sections carry none. Equations,
figures and theorems count through a chapter (`numfig_secnum_depth` is 1): (3.12), Figure 3.4, Theorem 3.1.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from docutils import nodes


def _restore(app: Any, env: Any) -> list[str]:
    """Give Sphinx the numbers it assigned last time: it rewrites every page whose number differs from what it finds."""
    if hasattr(env, "paperbook_sphinx_numbers"):
        env.toc_secnumbers = env.paperbook_sphinx_numbers
    return []


def _renumber(app: Any, env: Any) -> list[str]:
    before = getattr(env, "paperbook_numbers", {})
    env.paperbook_sphinx_numbers = copy.deepcopy(env.toc_secnumbers)
    env.paperbook_numbers = {}
    for document, numbers in env.toc_secnumbers.items():
        match = re.fullmatch(r"book/pages/[^/]+/(\d+)-[^/]+", document)
        if not match or not numbers.get(""):
            continue
        chapter, page = numbers[""][0], int(match[1])
        number = (chapter, page) if page else (chapter,)
        env.paperbook_numbers[document] = number
        # an empty number for each section, because one that is missing would show the page's
        env.toc_secnumbers[document] = {"": number}
        env.titles[document]["secnumber"] = number
        for reference in env.tocs[document].findall(nodes.reference):
            reference.attributes.pop("secnumber", None)
            if reference["anchorname"]:
                env.toc_secnumbers[document][reference["anchorname"]] = ()
            else:
                reference["secnumber"] = number
    return [document for document, number in env.paperbook_numbers.items() if before.get(document) != number]


def setup(app: Any) -> None:
    """Register with Sphinx."""
    app.connect("env-get-updated", _restore, priority=400)  # Sphinx numbers at 500
    app.connect("env-get-updated", _renumber, priority=600)
