"""What a chapter's overview computes from its index.yaml: paper and code, open choices, commands, notes; links to pages."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.util.nodes import make_refnode

from paperbook.press import ledger, toc
from paperbook.press.site.base import Computed, Content, register
from paperbook.study import paths, profiles


class PaperIndex(Computed):
    """``{paper-index} slug``: item of the paper, its place in the chapter, its symbol in the library, its test."""

    def show(self, argument: str) -> list[nodes.Node]:
        slug = self.slug(argument)
        # the last: symbols become links when the chapter's reference appears
        self.depend(f"chapters/{slug}/index.yaml", f"chapters/{slug}", f"book/api/{slug}.md")
        anchors = anchor_ids(slug)
        body: list[list[Content]] = [
            [
                self.inline(row["item"]),
                self.link(slug, row["page"], "", anchors.get((row["page"], row["anchor"]), row["anchor"])),
                self.api(row["symbol"]),
                nodes.literal("", row["test"].split("/")[-1], classes=["pb-test"]),
            ]
            for row in toc.index(slug).get("index") or []
        ]
        return [self.table("Paper and code", ["In the paper", "In the chapter", "In the library", "Test"], body, "pb-index")]


class OpenChoices(Computed):
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


class RunCommands(Computed):
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


class _Notes(Computed):
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


def _resolve(app: Any, env: Any, node: pending_xref, inner: nodes.Node) -> nodes.Node | None:
    """Links to pages; and library names that the book does not document stay plain without a warning."""
    if node.get("reftype") == "pb-page":
        if node["reftarget"] not in env.found_docs:
            return inner
        if node["pb_titled"]:
            title = env.titles[node["reftarget"]]
            number = ".".join(map(str, title.get("secnumber", ())))
            inner = nodes.inline("", f"{number} {title.astext()}".strip())
        return make_refnode(app.builder, node["refdoc"], node["reftarget"], node["pb_anchor"] or None, inner)
    return inner if node.get("pb_optional") else None


def setup(app: Any) -> None:
    """Register with Sphinx."""
    register(app, {
        "paper-index": PaperIndex, "open-choices": OpenChoices, "run-commands": RunCommands,
        "negative-results": NegativeResults, "errata": Errata,
    })  # fmt: skip
    app.connect("missing-reference", _resolve)
