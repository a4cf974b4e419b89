"""Tables over the whole book: chapters, costs, benchmarks."""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes

from paperbook.press import costs, ledger, toc
from paperbook.press.site.base import Computed, Content, register, text_of, with_unit
from paperbook.study import paths


class ChapterTable(Computed):
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


class Cost(Computed):
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


class CostTable(Computed):
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
                    self.link(slug, page),
                    costs.duration(row["seconds"]) if row else "–",
                    costs.duration(row["cpu_seconds"]) if row else "–",
                    costs.memory(row["peak_mb"]) if row else "–",
                    self._measured(slug, page, "reader"),
                    full,
                ])  # fmt: skip
            total = nodes.strong("", f"{meta.get('title', slug)}, all pages")
            body.append([total, costs.duration(seconds), costs.duration(cpu), "", "", ""])
        header = ["Page", "Smoke, wall", "Smoke, CPU", "Smoke, memory", "Reader", "Full"]
        return [self.table("What the pages cost", header, body, "pb-costs")]

    @staticmethod
    def _measured(slug: str, page: str, profile: str) -> str:
        found = costs.measured(slug, page, profile)
        if found is None:
            return "–"
        return f"{costs.duration(found.seconds)} × {found.seeds}, {costs.memory(found.peak_mb)} ({found.hardware})"


class BenchmarkTable(Computed):
    """``{benchmark-table} slug``: ours against the peer, and slopes of cost against size; ``runner`` is the runner's."""

    def show(self, argument: str) -> list[nodes.Node]:
        slug = argument if argument == "runner" else self.slug(argument)
        name = f"tests/benchmarks/{slug}/benchmarks.json"
        self.depend(name)
        path = paths.root() / name
        if not path.is_file():
            return [self.paragraph("No benchmark is recorded yet; `make bench` measures it.")]
        data = json.loads(path.read_text(encoding="utf-8"))
        body: list[list[Content]] = [
            [
                self.inline(row["case"]),
                with_unit(row.get("ours"), row.get("unit")),
                with_unit(row.get("peer"), row.get("unit")),
                ledger.digits(row.get("ratio")),
                self.inline(row.get("note") or "–"),
            ]
            for row in data["rows"]
        ]
        found = [self.table(f"Benchmark of {slug}", ["Case", "Ours", "Peer", "Ours / peer", "Note"], body, "pb-benchmark")]
        slopes: list[list[Content]] = [
            [self.inline(row["what"]), ledger.digits(row["measured"]), text_of(row.get("theory"))]
            for row in data.get("slopes") or []
        ]
        if slopes:
            header = ["Cost against size", "Slope measured", "Theory"]
            found.append(self.table(f"Cost against size of {slug}", header, slopes, "pb-slopes"))
        return found


def setup(app: Any) -> None:
    """Register with Sphinx."""
    register(app, {"chapter-table": ChapterTable, "cost": Cost, "cost-table": CostTable, "benchmark-table": BenchmarkTable})
