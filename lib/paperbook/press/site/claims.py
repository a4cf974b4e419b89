"""Claims with their verdicts, computed when the book is built: the box of a chapter, and the ledger of them all."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref

from paperbook.press import ledger, metrics, toc
from paperbook.press.site.base import Computed, Content, register


class ClaimBox(Computed):
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


class Ledger(Computed):
    """``{ledger}``: all claims of all chapters with criterion, evidence and verdict, and the totals."""

    def show(self, argument: str) -> list[nodes.Node]:
        slugs = [self.slug(argument)] if argument else toc.toc_slugs()
        self.depend("_toc.yml")
        for slug in slugs:
            self.depend_on_claims(slug)
            self.depend(f"chapters/{slug}/index.yaml", f"chapters/{slug}/metrics.yaml")
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
        where = nodes.paragraph("", "", self.link(row.slug, page), nodes.Text(f", {row.claim.evidence.profile}"))
        return [nodes.paragraph("", "", *self.measure(row), nodes.Text(str(row.claim.criterion))), where]

    def measure(self, row: ledger.Row) -> list[nodes.Node]:
        """The metric a claim is judged by, with a link to what it means."""
        metric = metrics.of_key(metrics.load(row.slug), row.claim.evidence.key)
        if metric is None:
            return []
        inner = nodes.inline("", metric.name)
        link = pending_xref("", inner, refdomain="", reftype="pb-page", reftarget="book/metrics", pb_anchor=metric.anchor,
                            pb_titled=False, refexplicit=True, refwarn=False)  # fmt: skip
        return [link, nodes.Text(": ")]


def setup(app: Any) -> None:
    """Register with Sphinx."""
    register(app, {"claim-box": ClaimBox, "ledger": Ledger})
