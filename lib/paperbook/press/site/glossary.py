"""The glossary of metrics as a page shows it."""

from __future__ import annotations

from typing import Any

from docutils import nodes

from paperbook.press import metrics, toc
from paperbook.press.site.base import Computed, Content, register


class MetricTable(Computed):
    """``{metrics}``: every metric that judges a claim or an open choice, chapter by chapter; with a slug, of one chapter."""

    def show(self, argument: str) -> list[nodes.Node]:
        self.depend("_toc.yml")
        found: list[nodes.Node] = []
        slugs = [self.slug(argument)] if argument else toc.toc_slugs()
        for slug in slugs:
            self.depend(f"chapters/{slug}/metrics.yaml", f"chapters/{slug}/index.yaml")
            title = str(toc.index(slug).get("title", slug))
            if not argument:
                found.append(nodes.rubric("", title))
            body: list[list[Content]] = [self.row(metric) for metric in metrics.load(slug)]
            header = ["Metric", "What it is", "Better is", "Unit"]
            found.append(self.table(f"Metrics of {title}", header, body, "pb-metrics"))
        return found

    def row(self, metric: metrics.Metric) -> list[Content]:
        name = nodes.strong("", metric.name, ids=[metric.anchor])
        keys = nodes.inline("", "", classes=["pb-note"])
        for key in metric.keys:
            keys += [nodes.Text(" "), nodes.literal("", key)]
        first = [nodes.paragraph("", "", name), nodes.paragraph("", "", keys)]
        return [first, self.inline(metric.definition), self.inline(metric.direction), self.inline(metric.unit)]


def setup(app: Any) -> None:
    """Register with Sphinx."""
    register(app, {"metrics": MetricTable})
