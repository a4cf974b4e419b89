"""Sphinx directives that compute what they show at build time: claims, costs, chapters, benchmarks, the index.

Nothing of it is typed into a page. A page is rebuilt when a file that its directives read has changed, appeared or
vanished (`_Dependencies`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

from paperbook.press import costs, execute, ledger, toc
from paperbook.study import paths, profiles
from paperbook.study.closure import library_hash

logger = logging.getLogger(__name__)

Content: TypeAlias = str | nodes.Node | Sequence[nodes.Node]

_LIBRARY = "@library"  # stands for the whole package: whether a result was measured with older code depends on it


class pb_scroll(nodes.General, nodes.Element):
    """A region that scrolls sideways by itself, reachable by keyboard."""


class pb_paper(nodes.Inline, nodes.TextElement):
    """A value the paper reports, marked as such."""


# --- dependencies ------------------------------------------------------------------------------------------------


class _Dependencies:
    """Which files each document's directives read, with their hashes at that time."""

    @staticmethod
    def store(env: Any) -> dict[str, dict[str, str | None]]:
        if not hasattr(env, "paperbook_reads"):
            env.paperbook_reads = {}
        return env.paperbook_reads

    @staticmethod
    def digest(name: str) -> str | None:
        if name == _LIBRARY:
            return library_hash()
        if "#" in name:
            return json.dumps(execute.costs().get(name.partition("#")[2]))
        path = paths.root() / name
        if path.is_dir():  # a folder stands for everything in it
            names = sorted(p for p in path.rglob("*") if p.is_file())
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


# --- directives --------------------------------------------------------------------------------------------------


class _Computed(SphinxDirective):
    """A directive without content; failures in the data become build warnings, which -W turns into errors."""

    has_content = False
    optional_arguments = 1
    reads: ClassVar[tuple[str, ...]] = ()

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
        _Dependencies.note(self.env, *names)

    def depend_on_claims(self, slug: str) -> None:
        self.depend(f"chapters/{slug}/claims.yaml", f"chapters/{slug}/results", f"book/pages/{slug}", _LIBRARY)

    # building blocks

    def inline(self, text: str) -> list[nodes.Node]:
        """Text of a data file as inline Markdown: mathematics and emphasis work."""
        found, messages = self.state.inline_text(str(text), self.lineno)
        return [*found, *messages]

    def paragraph(self, text: str, *classes: str) -> nodes.paragraph:
        node = nodes.paragraph("", "", *self.inline(text))
        node["classes"] += list(classes)
        return node

    def link(self, slug: str, page: str, text: str, anchor: str = "") -> nodes.Node:
        """A link to a page of the book; plain text while that page is not built."""
        inner = nodes.inline("", text)
        return pending_xref("", inner, refdomain="", reftype="pb-page", reftarget=f"book/pages/{slug}/{page}", pb_anchor=anchor,
                            refexplicit=True, refwarn=False)  # fmt: skip

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
            inner = _as_nodes(cell)
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


class ClaimBox(_Computed):
    """``{claim-box} slug``: what the chapter claims, the paper's value beside ours, the computed verdict."""

    def show(self, argument: str) -> list[nodes.Node]:
        slug = self.slug(argument)
        self.depend_on_claims(slug)
        found = ledger.rows(slug)
        body: list[list[Content]] = [
            [self.inline(row.claim.claim), self.paper_value(row), self.measured(row), self.verdict(row)] for row in found
        ]
        box = nodes.container(classes=["pb-claim-box"])
        box += nodes.paragraph("", ledger.totals_text(found).capitalize() + ".", classes=["pb-totals"])
        if body:
            box += self.table("Claims of this chapter", ["Claim", "Paper", "Ours", "Verdict"], body, "pb-claims")
        return [box]

    def measured(self, row: ledger.Row) -> Content:
        if row.ours is None:
            return "–"
        return self.link(row.slug, row.claim.evidence.page, row.value)


class Ledger(_Computed):
    """``{ledger}``: all claims of all chapters with criterion, evidence and verdict, and the totals."""

    def show(self, argument: str) -> list[nodes.Node]:
        slugs = [self.slug(argument)] if argument else toc.toc_slugs()
        self.depend("_toc.yml")
        for slug in slugs:
            self.depend_on_claims(slug)
            self.depend(f"chapters/{slug}/index.yaml")
        everything = ledger.all_rows(slugs)
        found: list[nodes.Node] = [nodes.paragraph("", ledger.totals_text(everything).capitalize() + ".", classes=["pb-totals"])]
        for slug in slugs:
            rows = [row for row in everything if row.slug == slug]
            title = str(toc.index(slug).get("title", slug))
            if len(slugs) > 1:
                found.append(nodes.rubric("", title))
            body: list[list[Content]] = [
                [self.verdict(row), self.described(row), row.value, self.paper_value(row), self.judged_by(row)] for row in rows
            ]
            header = ["Verdict", "Claim", "Ours", "Paper", "Criterion, evidence"]
            found.append(self.table(f"Ledger of {title}", header, body, "pb-ledger"))
        return found

    def described(self, row: ledger.Row) -> list[nodes.Node]:
        place = self.inline(f"{row.claim.kind}, {row.claim.where}")
        note = nodes.paragraph("", "", nodes.literal("", row.claim.id), nodes.Text(" "), *place, classes=["pb-note"])
        return [nodes.paragraph("", "", *self.inline(row.claim.claim)), note]

    def judged_by(self, row: ledger.Row) -> list[nodes.Node]:
        page = row.claim.evidence.page
        where = nodes.paragraph("", "", self.link(row.slug, page, page), nodes.Text(f", {row.claim.evidence.profile}"))
        return [nodes.paragraph("", str(row.claim.criterion)), where]


class ChapterTable(_Computed):
    """``{chapter-table}``: the chapters of the book with pages, cost and claims."""

    def show(self, argument: str) -> list[nodes.Node]:
        self.depend("_toc.yml", "book/pages/costs.json")
        body: list[list[Content]] = []
        for slug, pages in toc.toc_pages().items():
            self.depend_on_claims(slug)
            self.depend(f"chapters/{slug}/index.yaml")
            meta = toc.index(slug)
            paper = meta.get("paper") or {}
            known = [row for row in (costs.smoke(slug, page) for page in pages) if row]
            summary = nodes.inline("", "", nodes.Text(" "), *self.inline(meta.get("summary", "")), classes=["pb-note"])
            body.append([
                [self.link(slug, pages[0], str(meta.get("title", slug))), summary],
                self.inline(", ".join(str(paper[key]) for key in ("authors", "venue") if paper.get(key)) or "–"),
                str(len(pages)),
                costs.duration(sum(row["seconds"] for row in known)) if known else "–",
                ledger.totals_text(ledger.rows(slug)),
            ])  # fmt: skip
        header = ["Chapter", "Paper", "Pages", "Smoke run", "Claims"]
        return [self.table("Chapters of the book", header, body, "pb-chapters")]


class Cost(_Computed):
    """``{cost} slug/page``: one line with measured seconds and memory; without argument, of the page it stands in."""

    def show(self, argument: str) -> list[nodes.Node]:
        name = argument or self.env.docname.removeprefix("book/pages/")
        slug, _, page = name.partition("/")
        if not page or page not in toc.sources(slug):
            raise ValueError(f"expected slug/page of an existing page, got {name!r}")
        # its own entry only: one page that is executed anew must not rebuild the book
        self.depend(f"book/pages/costs.json#{slug}/{page}", f"chapters/{slug}/index.yaml")
        self.depend(*(f"chapters/{slug}/results/{page}.{profile}.json" for profile in ("reader", "full")))
        return [nodes.paragraph("", costs.line(slug, page), classes=["pb-cost"])]


class CostTable(_Computed):
    """``{cost-table}``: what every page costs at each profile."""

    def show(self, argument: str) -> list[nodes.Node]:
        self.depend("_toc.yml", "book/pages/costs.json")
        body: list[list[Content]] = []
        for slug, pages in toc.toc_pages().items():
            self.depend(f"chapters/{slug}/results", f"chapters/{slug}/index.yaml")
            meta = toc.index(slug)
            seconds = cpu = 0.0
            for page in pages:
                row = costs.smoke(slug, page)
                if row:
                    seconds, cpu = seconds + row["seconds"], cpu + row["cpu_seconds"]
                full = self._measured(slug, page, "full")
                if full == "–" and meta.get("main_page") == page:
                    full = costs.full_estimate(meta).removeprefix("full ") or "–"
                body.append([
                    self.link(slug, page, f"{slug}/{page}"),
                    costs.duration(row["seconds"]) if row else "–",
                    costs.duration(row["cpu_seconds"]) if row else "–",
                    costs.memory(row["peak_mb"]) if row else "–",
                    self._measured(slug, page, "reader"),
                    full,
                ])  # fmt: skip
            body.append([nodes.strong("", f"{slug}, all pages"), costs.duration(seconds), costs.duration(cpu), "", "", ""])
        header = ["Page", "Smoke, wall", "Smoke, CPU", "Smoke, memory", "Reader", "Full"]
        return [self.table("What the pages cost", header, body, "pb-costs")]

    @staticmethod
    def _measured(slug: str, page: str, profile: str) -> str:
        found = costs.measured(slug, page, profile)
        if found is None:
            return "–"
        return f"{costs.duration(found.seconds)} × {found.seeds}, {costs.memory(found.peak_mb)} ({found.hardware})"


class BenchmarkTable(_Computed):
    """``{benchmark-table} slug``: ours against the peer, and slopes of cost against size; ``runner`` is the runner's."""

    def show(self, argument: str) -> list[nodes.Node]:
        slug = argument if argument == "runner" else self.slug(argument)
        name = f"tests/benchmarks/{slug}/benchmarks.json"
        self.depend(name)
        path = paths.root() / name
        if not path.is_file():
            return [nodes.paragraph("", "No benchmark is recorded yet; `make bench` measures it.")]
        data = json.loads(path.read_text(encoding="utf-8"))
        body: list[list[Content]] = [
            [
                self.inline(row["case"]),
                _with_unit(row.get("ours"), row.get("unit")),
                _with_unit(row.get("peer"), row.get("unit")),
                ledger.digits(row.get("ratio")),
                self.inline(row.get("note") or "–"),
            ]
            for row in data["rows"]
        ]
        found = [self.table("Benchmark", ["Case", "Ours", "Peer", "Ours / peer", "Note"], body, "pb-benchmark")]
        slopes: list[list[Content]] = [
            [self.inline(row["what"]), ledger.digits(row["measured"]), _text(row.get("theory"))]
            for row in data.get("slopes") or []
        ]
        if slopes:
            found.append(self.table("Cost against size", ["Cost against size", "Slope measured", "Theory"], slopes, "pb-slopes"))
        return found


class PaperIndex(_Computed):
    """``{paper-index} slug``: item of the paper, its place in the chapter, its symbol in the library, its test."""

    def show(self, argument: str) -> list[nodes.Node]:
        slug = self.slug(argument)
        self.depend(f"chapters/{slug}/index.yaml", f"chapters/{slug}")
        anchors = anchor_ids(slug)
        body: list[list[Content]] = [
            [
                self.inline(row["item"]),
                self.link(slug, row["page"], row["page"], anchors.get((row["page"], row["anchor"]), row["anchor"])),
                self.api(row["symbol"]),
                nodes.literal("", row["test"].split("/")[-1], classes=["pb-test"]),
            ]
            for row in toc.index(slug).get("index") or []
        ]
        return [self.table("Paper and code", ["In the paper", "In the chapter", "In the library", "Test"], body, "pb-index")]


class OpenChoices(_Computed):
    """``{open-choices} slug``: choices the paper leaves open, with the measured effect of the alternative."""

    def show(self, argument: str) -> list[nodes.Node]:
        slug = self.slug(argument)
        self.depend(f"chapters/{slug}/index.yaml", f"chapters/{slug}/results")
        body: list[list[Content]] = []
        for row in toc.index(slug).get("open_choices") or []:
            body.append([
                self.inline(row["place"]), self.inline(row["choice"]), self.inline(row["alternative"]), self._effect(slug, row),
            ])  # fmt: skip
        header = ["Place", "Our choice", "The alternative", "Measured effect"]
        return [self.table("Choices the paper leaves open", header, body, "pb-open-choices")]

    def _effect(self, slug: str, row: dict[str, Any]) -> Content:
        from paperbook.study.results import load_results

        results = load_results(slug, row["page"], row.get("profile", "reader"))
        if results is None:
            return "not measured yet"
        estimate = results.estimate(row["key"])
        unit = f" {row['unit']}" if row.get("unit") else ""
        value = ledger.digits(float(f"{estimate.mean:.3g}")) + unit
        low, high = ledger.digits(estimate.low), ledger.digits(estimate.high)
        interval = f" [{low}, {high}], {estimate.n} seeds" if estimate.n > 1 else ""
        return [self.link(slug, row["page"], value), nodes.Text(interval)]


class RunCommands(_Computed):
    """``{run-commands} slug``: commands that run the chapter at every profile, ready to copy."""

    def show(self, argument: str) -> list[nodes.Node]:
        slug = self.slug(argument)
        self.depend(f"chapters/{slug}/index.yaml", f"chapters/{slug}/profiles")
        meta = toc.index(slug)
        page = meta.get("main_page") or next(iter(toc.sources(slug)))
        lines = ["# smoke: what this book shows, on a laptop", f"paperbook execute {slug} --force"]
        if any(name.endswith("reader.yaml") for name in profiles.list_profiles(slug)):
            lines += ["", "# reader: the trend with intervals, on a CPU; every page that has the profile"]
            lines += [f"paperbook run {slug} --profile reader --seeds 0-4"]
        for name in self.full_profiles(slug):
            lines += ["", f"# {name}: the paper's scale, on a GPU server; --dry-run says what it needs"]
            lines += [f"paperbook run {slug} --profile {name} --seeds 0-4"]
        path = paths.profile_file(slug, page, "full")
        if path.is_file():
            lines += ["", "# the same with stock papermill, one seed"]
            lines += [f"papermill chapters/{slug}/{page}.md runs/{page}.full.s0.ipynb \\",
                      f"    -f {paths.relative(path)} -p seed 0"]  # fmt: skip
        lines += ["", "# join the finished seeds into the results that pages read", f"paperbook results {slug}"]
        block = nodes.literal_block("\n".join(lines), "\n".join(lines), language="bash")
        return [block]

    @staticmethod
    def full_profiles(slug: str) -> list[str]:
        """Names of the chapter's full profiles, as ``--profile`` takes them: full, full-ag-news."""
        names = {name.removesuffix(".yaml").split(".")[-1] for name in profiles.list_profiles(slug)}
        return sorted(name for name in names if name == "full" or name.startswith("full-"))


class _Notes(_Computed):
    key: ClassVar[str] = ""
    empty: ClassVar[str] = ""

    def show(self, argument: str) -> list[nodes.Node]:
        slug = self.slug(argument)
        self.depend(f"chapters/{slug}/index.yaml")
        rows = toc.index(slug).get(self.key) or []
        if not rows:
            return [nodes.paragraph("", self.empty)]
        found = nodes.bullet_list(classes=[f"pb-{self.name}"])
        for row in rows:
            text = row if isinstance(row, str) else row["text"]
            start = [] if isinstance(row, str) or not row.get("date") else [nodes.strong("", str(row["date"])), nodes.Text(": ")]
            found += nodes.list_item("", nodes.paragraph("", "", *start, *self.inline(text)))
        return [found]


class NegativeResults(_Notes):
    """``{negative-results} slug``: what was tried and did not work, dated."""

    key, empty = "negative_results", "No negative result is recorded."


class Errata(_Notes):
    """``{errata} slug``: errors of the paper found on the way."""

    key, empty = "errata", "No erratum was found."


def anchor_ids(slug: str) -> dict[tuple[str, str], str]:
    """(page, label in the source) -> id of the element in the built page, for all labels of a chapter.

    A label is a target ``(label)=``, the ``:label:`` or ``:name:`` of a directive, the name of a figure, or the label of
    a displayed equation (``$$ ... $$ (label)``), whose element Sphinx calls ``equation-label``.
    """
    found = {}
    for page, path in toc.sources(slug).items():
        text = path.read_text(encoding="utf-8")
        for label in re.findall(r"^\$\$\s*\(([\w:.-]+)\)", text, re.M) + re.findall(
            r"\{math\}[^\n]*\n(?:---\n)?:?label:\s*([\w:.-]+)", text
        ):
            found[page, label] = "equation-" + nodes.make_id(label)
        for label in re.findall(r"^\(([\w:.-]+)\)=", text, re.M) + re.findall(r"\b(?:label|name):\s*['\"]?([\w:.-]+)", text):
            found.setdefault((page, label), nodes.make_id(label))
    return found


def _as_nodes(content: Content) -> list[nodes.Node]:
    if isinstance(content, str):
        return [nodes.Text(content)]
    return [content] if isinstance(content, nodes.Node) else list(content)


def _with_unit(value: Any, unit: Any) -> str:
    return ledger.digits(value) + (f" {unit}" if unit and value is not None else "")


def _text(value: Any) -> str:
    return "–" if value is None else value if isinstance(value, str) else ledger.digits(value)


# --- roles, references, page context -----------------------------------------------------------------------------


def _paper_role(name: str, rawtext: str, text: str, *_: Any, **__: Any) -> tuple[list[nodes.Node], list[Any]]:
    return [pb_paper(rawtext, text)], []


def _resolve(app: Any, env: Any, node: pending_xref, inner: nodes.Node) -> nodes.Node | None:
    """Links to pages; and library names that the book does not document stay plain without a warning."""
    if node.get("reftype") == "pb-page":
        if node["reftarget"] not in env.found_docs:
            return inner
        return make_refnode(app.builder, node["refdoc"], node["reftarget"], node["pb_anchor"] or None, inner)
    return inner if node.get("pb_optional") else None


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


DIRECTIVES: dict[str, type[_Computed]] = {
    "claim-box": ClaimBox,
    "ledger": Ledger,
    "chapter-table": ChapterTable,
    "cost": Cost,
    "cost-table": CostTable,
    "benchmark-table": BenchmarkTable,
    "paper-index": PaperIndex,
    "open-choices": OpenChoices,
    "run-commands": RunCommands,
    "negative-results": NegativeResults,
    "errata": Errata,
}


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx."""
    visitors: dict[str, tuple[Callable[..., None], Callable[..., None]]]
    plain = (_pass, _pass)
    for node, html in ((pb_scroll, (_visit_scroll, _depart_scroll)), (pb_paper, (_visit_paper, _depart_paper))):
        visitors = {"html": html, "latex": plain, "text": plain, "man": plain, "texinfo": plain}
        app.add_node(node, **visitors)
    for name, directive in DIRECTIVES.items():
        app.add_directive(name, directive)
    app.add_role("paper", _paper_role)
    app.connect("missing-reference", _resolve)
    app.connect("env-get-outdated", _Dependencies.outdated)
    app.connect("env-purge-doc", _Dependencies.purge)
    app.connect("env-merge-info", _Dependencies.merge)
    app.connect("html-page-context", _without_thebe, priority=900)  # after sphinx-thebe has added what goes here
    app.connect("doctree-resolved", _without_thebe_config, priority=900)
    return {"version": "1", "env_version": 1, "parallel_read_safe": True, "parallel_write_safe": True}
