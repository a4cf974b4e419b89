"""What a chapter offers its reader: claims first, numbers that point, proofs and solutions that fold, downloads, search."""

import itertools
import re
from pathlib import Path

import nbformat
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SLUGS = sorted(p.name for p in (ROOT / "chapters").iterdir() if (p / "claims.yaml").is_file())


@pytest.mark.parametrize("slug", SLUGS)
def test_the_chapter_opens_with_its_claims_and_their_verdicts(soups, slug):
    overview = soups[f"book/pages/{slug}/0-overview.html"]
    first = overview.select_one(".bd-article h2")
    assert first.get_text().startswith("Claim box")
    box = overview.select_one(".pb-claim-box")
    claims = yaml.safe_load((ROOT / "chapters" / slug / "claims.yaml").read_text(encoding="utf-8"))
    assert len(box.select("tbody tr")) == len(claims) == len(box.select(".pb-verdict"))
    assert len(overview.select(".pb-index tbody tr")) >= 8


def test_equations_and_theorems_carry_the_chapter(soups, chapters):
    numbers = [e.get_text() for name in chapters for e in soups[name].select(".eqno")]
    assert numbers and not [text for text in numbers if not re.match(r"\(\d+\.\d+\)", text)]
    assert len(set(numbers)) == len(numbers)
    boxes = ".proof .caption-number, .exercise .caption-number"
    titles = [e.get_text().strip() for name in chapters for e in soups[name].select(boxes)]
    assert titles and not [text for text in titles if not re.fullmatch(r"[A-Z]\w+ \d+\.\d+", text)]


def test_pages_are_numbered_by_their_names(soups, chapters):
    for name in chapters:
        page = int(re.search(r"/(\d+)-", name)[1])
        title = soups[name].select_one(".bd-article h1").get_text()
        assert re.match(rf"\d+\.{page}\. " if page else r"\d+\. (?!\d)", title), (name, title)
        assert not [h.get_text() for h in soups[name].select(".bd-article h2") if re.match(r"\d", h.get_text())]


def test_one_can_go_on_and_back(soups, chapters):
    for before, after in itertools.pairwise(chapters):
        if before.split("/")[2] != after.split("/")[2]:
            continue
        assert soups[before].select_one("a.right-next")["href"] == after.split("/")[-1]
        assert soups[after].select_one("a.left-prev")["href"] == before.split("/")[-1]


def test_proofs_and_solutions_fold(soups, chapters):
    proofs = [e for name in chapters for e in soups[name].select(".admonition") if e.select_one(".admonition-title")
              and e.select_one(".admonition-title").get_text().startswith("Proof")]  # fmt: skip
    solutions = [e for name in chapters for e in soups[name].select(".solution")]
    assert proofs and solutions
    assert not [e.get_text()[:60] for e in proofs + solutions if "dropdown" not in e["class"]]


def test_every_page_offers_notebook_and_source(html, soups, chapters):
    for name in chapters:
        links = {link.get_text().strip(): link["href"] for link in soups[name].select(".dropdown-menu a[href]")}
        notebook, source = (((html / name).parent / links[kind]).resolve() for kind in (".ipynb", ".md"))
        executed = nbformat.read(notebook, as_version=4)
        assert any(cell.get("outputs") for cell in executed.cells) or not any(c.cell_type == "code" for c in executed.cells)
        slug, page = name.removesuffix(".html").split("/")[2:]
        assert source.read_bytes() == (ROOT / "chapters" / slug / f"{page}.md").read_bytes()


def test_folded_code_is_there(soups, chapters):
    assert sum(len(soups[name].select("details.hide")) for name in chapters) > 5


def test_search_finds(reader):
    page = reader("search.html?q=minimax")
    page.wait_for_function("document.querySelectorAll('#search-results li a').length > 0", timeout=20_000)
    assert page.locator("#search-results li a", has_text="Trust or learn").count() >= 1


def test_search_from_a_page(reader, chapters):
    page = reader(chapters[0])
    page.keyboard.press("Control+K")
    page.keyboard.type("oracle")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?q=oracle*")
    page.wait_for_function("document.querySelectorAll('#search-results li a').length > 0", timeout=20_000)
    assert page.locator("#search-results li a", has_text="Safety has a price").count() >= 1


def test_sources_of_statements_stand_in_the_margin_where_there_is_one(reader, soups, chapters):
    name = next(name for name in chapters if soups[name].select("section > p > .pb-source"))
    for width, beside in ((1600, True), (1000, False)):
        page = reader(name, width)
        mark = page.locator("section > p > .pb-source").first
        text = mark.locator("xpath=..").bounding_box()
        box = mark.bounding_box()
        assert (box["x"] + box["width"] <= text["x"] + 1) == beside
        assert box["x"] >= 0


@pytest.mark.parametrize("slug", SLUGS)
def test_the_glossary_names_every_judging_number(soups, slug):
    glossary = soups["book/metrics.html"]
    entries = yaml.safe_load((ROOT / "chapters" / slug / "metrics.yaml").read_text(encoding="utf-8"))
    shown = [row.select_one("strong").get_text() for row in glossary.select(".pb-metrics tbody tr")]
    assert {entry["name"] for entry in entries} <= set(shown)
    links = [a["href"] for a in soups["book/ledger.html"].select(".pb-ledger a") if "metrics.html#metric-" in a["href"]]
    claims = yaml.safe_load((ROOT / "chapters" / slug / "claims.yaml").read_text(encoding="utf-8"))
    assert len(links) >= len(claims)


def test_the_page_is_readable_without_a_script(reader, heaviest):
    page = reader(heaviest, 390, java_script_enabled=False)
    assert page.locator("mjx-container").count() > 100
    assert page.locator(".bd-article").text_content().count(" ") > 1000


def test_it_reads_from_the_disk(browser, html, heaviest):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    failed = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.goto((html / heaviest).as_uri(), wait_until="load")
    fonts = page.evaluate("document.fonts.ready.then(() => [...document.fonts].map(font => font.family + font.status))")
    assert not failed and any("MJXTEX" in font and "loaded" in font for font in fonts)
    context.close()


def test_the_index_of_the_search_is_not_on_every_page(soups, chapters):
    assert not [name for name in chapters if soups[name].select("script[src*=searchindex]")]


def test_results_carry_their_seeds(soups):
    """Whatever the open choices show as measured names its number of seeds."""
    for slug in SLUGS:
        rows = soups[f"book/pages/{slug}/0-overview.html"].select(".pb-open-choices tbody tr")
        cells = [row.select("td")[-1].get_text() for row in rows]
        assert cells and not [cell for cell in cells if "seed" not in cell and "not measured" not in cell]
