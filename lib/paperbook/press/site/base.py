"""What the book's directives share: their nodes, which files they read, and the pieces they build tables from."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from paperbook.press import execute, ledger
from paperbook.study import paths
from paperbook.study.closure import library_hash

logger = logging.getLogger(__name__)

Content: TypeAlias = str | nodes.Node | Sequence[nodes.Node]
Visitor: TypeAlias = Callable[[Any, Any], None]

LIBRARY = "@library"  # stands for the whole package: whether a result was measured with older code depends on it


class pb_scroll(nodes.General, nodes.Element):
    """A region that scrolls sideways by itself, reachable by keyboard."""


class pb_paper(nodes.Inline, nodes.TextElement):
    """A value the paper reports, marked as such."""


class Dependencies:
    """Which files each document's directives read, with their hashes at that time."""

    @staticmethod
    def store(env: Any) -> dict[str, dict[str, str | None]]:
        if not hasattr(env, "paperbook_reads"):
            env.paperbook_reads = {}
        return env.paperbook_reads

    @staticmethod
    def digest(name: str) -> str | None:
        if name == LIBRARY:
            return library_hash()
        if "#" in name:
            return json.dumps(execute.costs().get(name.partition("#")[2]))
        path = paths.root() / name
        if path.is_dir():  # a folder stands for everything in it
            names = sorted(p for p in path.rglob("*") if p.is_file() and p.suffix != ".pyc")
            return hashlib.sha256(b"".join(p.name.encode() + p.read_bytes() for p in names)).hexdigest()
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None

    @classmethod
    def note(cls, env: Any, *names: str) -> None:
        known = cls.store(env).setdefault(env.docname, {})
        for name in names:
            known[name] = cls.digest(name)
            if (paths.root() / name).is_file():
                env.note_dependency(str(paths.root() / name))

    @classmethod
    def outdated(cls, app: Any, env: Any, added: Any, changed: Any, removed: Any) -> list[str]:
        store = cls.store(env)
        now = {name: cls.digest(name) for name in {name for reads in store.values() for name in reads}}
        return [
            document
            for document, reads in store.items()
            if document in env.found_docs and any(now[name] != value for name, value in reads.items())
        ]

    @classmethod
    def purge(cls, app: Any, env: Any, docname: str) -> None:
        cls.store(env).pop(docname, None)

    @classmethod
    def merge(cls, app: Any, env: Any, docnames: Any, other: Any) -> None:
        reads = cls.store(other)
        cls.store(env).update({name: reads[name] for name in docnames if name in reads})


class Computed(SphinxDirective):
    """A directive without content; failures in the data become build warnings, which -W turns into errors."""

    has_content = False
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        try:
            argument = self.arguments[0].strip() if self.arguments else ""
            return self.show(argument)
        except (ValueError, OSError, KeyError, TypeError) as error:
            message = f"{self.name}: {type(error).__name__}: {error}"
            logger.warning(message, location=self.get_location())
            return [nodes.paragraph("", message)]

    def show(self, argument: str) -> list[nodes.Node]:
        raise NotImplementedError

    def slug(self, argument: str) -> str:
        """The chapter a directive is about: its argument, or the chapter of the page it stands in."""
        match = re.match(r"book/pages/([^/]+)/", self.env.docname)
        slug = argument or (match[1] if match else "")
        if not slug or not paths.chapter(slug).is_dir():
            raise ValueError(f"expected the slug of a chapter as argument, got {slug!r}")
        return slug

    def depend(self, *names: str) -> None:
        Dependencies.note(self.env, *names)

    def depend_on_claims(self, slug: str) -> None:
        self.depend(f"chapters/{slug}/claims.yaml", f"chapters/{slug}/results", f"book/pages/{slug}", LIBRARY)

    # building blocks

    def inline(self, text: str) -> list[nodes.Node]:
        """Text of a data file as inline Markdown: mathematics and emphasis work."""
        found, messages = self.state.inline_text(str(text), self.lineno)
        return [*found, *messages]

    def paragraph(self, text: str, *classes: str) -> nodes.paragraph:
        node = nodes.paragraph("", "", *self.inline(text))
        node["classes"] += list(classes)
        return node

    def link(self, slug: str, page: str, text: str = "", anchor: str = "") -> nodes.Node:
        """A link to a page of the book, by default with its number and title; plain text while that page is not built."""
        inner = nodes.inline("", text or page)
        return pending_xref("", inner, refdomain="", reftype="pb-page", reftarget=f"book/pages/{slug}/{page}", pb_anchor=anchor,
                            pb_titled=not text, refexplicit=True, refwarn=False)  # fmt: skip

    def api(self, symbol: str) -> nodes.Node:
        """A library name, linked where the book documents it."""
        # the last two parts say enough; the whole name is the target
        inner = nodes.literal("", ".".join(symbol.split(".")[-2:]), classes=["pb-symbol"])
        return pending_xref("", inner, refdomain="py", reftype="obj", reftarget=symbol, refexplicit=True, refwarn=False,
                            pb_optional=True)  # fmt: skip

    def table(self, label: str, header: list[str], body: list[list[Content]], *classes: str) -> nodes.Node:
        """A table in a region of its own that scrolls sideways; `label` names it for screen readers."""
        if not body:
            return nodes.paragraph("", "Nothing is written here yet.", classes=["pb-empty"])
        table = nodes.table(classes=["pb-table", *classes])
        group = nodes.tgroup(cols=len(header))
        table += group
        for _ in header:
            group += nodes.colspec(colwidth=1)
        head, rows = nodes.thead(), nodes.tbody()
        head += self._row(header)
        for row in body:
            rows += self._row(row)
        group += head
        group += rows
        return pb_scroll("", table, pb_label=label)

    def _row(self, cells: Sequence[Content]) -> nodes.row:
        row = nodes.row()
        for cell in cells:
            inner = as_nodes(cell)
            if not any(isinstance(node, nodes.paragraph) for node in inner):
                inner = [nodes.paragraph("", "", *inner)]
            row += nodes.entry("", *inner)
        return row

    def verdict(self, row: ledger.Row) -> list[nodes.Node]:
        badge = nodes.inline("", row.verdict, classes=["pb-verdict", "pb-verdict-" + row.verdict.replace(" ", "-")])
        note = [nodes.Text(" "), nodes.inline("", f"({row.note})", classes=["pb-note"])] if row.note else []
        return [badge, *note]

    def paper_value(self, row: ledger.Row) -> Content:
        if row.claim.paper is None:
            return "–"
        value = row.claim.paper
        shown = self.inline(value) if isinstance(value, str) else [nodes.Text(ledger.digits(value))]
        found: list[nodes.Node] = [pb_paper("", "", *shown)]
        if row.claim.paper_source != "paper":
            found.append(nodes.inline("", f" ({row.claim.paper_source})", classes=["pb-note"]))
        return found


def as_nodes(content: Content) -> list[nodes.Node]:
    if isinstance(content, str):
        return [nodes.Text(content)]
    return [content] if isinstance(content, nodes.Node) else list(content)


def with_unit(value: Any, unit: Any) -> str:
    return ledger.digits(value) + (f" {unit}" if unit and value is not None else "")


def text_of(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else ledger.digits(value)


def register(app: Any, directives: Mapping[str, type[Computed]]) -> None:
    """Add directives to Sphinx."""
    for name, directive in directives.items():
        app.add_directive(name, directive)


def add_node(app: Any, node: type[nodes.Element], visit: Visitor, depart: Visitor) -> None:
    """A node that HTML shows in a way of its own and every other format as its content."""
    plain = (_pass, _pass)
    app.add_node(node, html=(visit, depart), latex=plain, text=plain, man=plain, texinfo=plain)


def _visit_scroll(self: Any, node: pb_scroll) -> None:
    label = {"aria-label": node.get("pb_label", "Table")}
    self.body.append(self.starttag(node, "div", CLASS="pb-scroll", tabindex="0", role="region", **label))


def _depart_scroll(self: Any, node: pb_scroll) -> None:
    self.body.append("</div>\n")


def _visit_paper(self: Any, node: pb_paper) -> None:
    self.body.append(self.starttag(node, "span", "", CLASS="pb-paper", title="value reported by the paper"))


def _depart_paper(self: Any, node: pb_paper) -> None:
    self.body.append("</span>")


def _pass(self: Any, node: nodes.Node) -> None:
    """Other output formats show the content as it is."""


def _paper_role(name: str, rawtext: str, text: str, *_: Any, **__: Any) -> tuple[list[nodes.Node], list[Any]]:
    return [pb_paper(rawtext, text)], []


SOURCES = ("paper", "code", "secondary", "our choice")


def _source_role(
    name: str, rawtext: str, text: str, lineno: int, inliner: Any, *_: Any, **__: Any
) -> tuple[list[nodes.Node], list[Any]]:
    """``{src}`paper```: where a statement comes from; in the margin where there is room."""
    kinds = [kind for kind in SOURCES if re.search(rf"\b{kind}\b", text)]
    if not kinds:
        message = f"src: expected one of {', '.join(SOURCES)} in it, got {text!r}"
        logger.warning(message, location=(inliner.document.current_source, lineno) if inliner else None)
    return [nodes.inline(rawtext, text, classes=["pb-source", *(f"pb-source-{nodes.make_id(kind)}" for kind in kinds[:1])])], []


def setup(app: Any) -> None:
    """Register with Sphinx."""
    add_node(app, pb_scroll, _visit_scroll, _depart_scroll)
    add_node(app, pb_paper, _visit_paper, _depart_paper)
    app.add_role("paper", _paper_role)
    app.add_role("src", _source_role)
    app.connect("env-get-outdated", Dependencies.outdated)
    app.connect("env-purge-doc", Dependencies.purge)
    app.connect("env-merge-info", Dependencies.merge)
