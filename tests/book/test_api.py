"""The reference of the library in the built book, against the sources: nothing public is missing, and links go both ways.

What is public is found here by walking the sources, not by asking the code that writes the pages.
"""

import ast
import re
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import pytest
import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "lib" / "paperbook"
PACKAGES = ["study", "kits", "data", "figures", "press", "runner"]


def packages():
    """Folder below lib/paperbook -> page of the book, for each package that holds modules."""
    found = {name: name for name in PACKAGES}
    found |= {f"papers/{path.parent.name}": path.parent.name.replace("_", "-") for path in LIBRARY.glob("papers/*/__init__.py")}
    modules = {folder: [p for p in (LIBRARY / folder).rglob("*.py") if p.name != "__init__.py"] for folder in found}
    return {folder: page for folder, page in found.items() if modules[folder]}


def public_names(path):
    """Full names of what a module defines for others, and of the documented methods of its classes."""
    parts = path.relative_to(LIBRARY).with_suffix("").parts
    module = ".".join(("paperbook", *(parts[:-1] if parts[-1] == "__init__" else parts)))
    found = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        else:
            names = [node.target.id] if isinstance(node, ast.AnnAssign) else []
        found += [f"{module}.{name}" for name in names if not name.startswith("_")]
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found += [f"{module}.{node.name}.{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)
                      and not method.name.startswith("_") and ast.get_docstring(method)]  # fmt: skip
    return found


@pytest.fixture(scope="module")
def api(html):
    """Parsed pages of the reference by name."""
    paths = (html / "book/api").glob("*.html")
    return {path.stem: BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser") for path in paths}


@pytest.fixture(scope="module")
def index_rows():
    """(slug, row) of every chapter's index.yaml."""
    files = sorted(ROOT.glob("chapters/*/index.yaml"))
    return [(path.parent.name, row) for path in files for row in yaml.safe_load(path.read_text(encoding="utf-8"))["index"]]


def signatures(api):
    return [(name, sig.get("id", "?"), sig.get_text()) for name, soup in api.items() for sig in soup.select("dt.sig")]


def test_every_package_has_its_page(api):
    assert set(api) == {"index", *packages().values()}
    assert {"safe-residual", "study", "runner"} <= set(api)


def test_every_public_name_has_an_anchor(api):
    missing = []
    for folder, page in packages().items():
        anchors = {element["id"] for element in api[page].find_all(id=True)}
        for path in (LIBRARY / folder).rglob("*.py"):
            if not any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(LIBRARY).parts):
                missing += [name for name in public_names(path) if name not in anchors]
    assert not missing


def test_nothing_private_is_documented(api):
    named = [anchor for _, anchor, _ in signatures(api) if re.search(r"\._|model_config|model_fields", anchor)]
    assert not named and len(signatures(api)) > 300


def test_what_an_estimator_inherits_from_scikit_learn_is_not_repeated(api):
    start = "paperbook.papers.safe_residual.estimators.SafeResidualRegressor."
    methods = {anchor.removeprefix(start) for _, anchor, _ in signatures(api) if anchor.startswith(start)}
    assert methods == {"fit", "predict", "correction"}  # the first two stand in a private base: no other place shows them


def test_every_symbol_of_a_chapter_links_to_its_description(html, api, index_rows):
    for slug in {slug for slug, _ in index_rows}:
        page = html / f"book/pages/{slug}/0-overview.html"
        table = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser").select_one("table.pb-index")
        linked = []
        for row in table.select("tbody tr"):
            link = row.select("td")[2].find("a")
            assert link is not None, row.get_text(" | ")
            target, anchor = urldefrag(urljoin(page.relative_to(html).as_posix(), link["href"]))
            assert api[Path(target).stem].find(id=anchor) is not None
            linked.append(anchor)
        assert linked == [row["symbol"] for other, row in index_rows if other == slug]


def test_every_description_links_back_to_its_chapter(html, api, index_rows):
    pages = {}
    for slug, row in index_rows:
        (description,) = [found.find_parent("dl") for soup in api.values() for found in soup.find_all(id=row["symbol"])]
        links = [link["href"] for line in description.select(".pb-in-the-book") for link in line.find_all("a")]
        targets = [urldefrag(urljoin("book/api/x.html", link)) for link in links]
        page = f"book/pages/{slug}/{row['page']}.html"
        anchors = [target.fragment for target in targets if target.url == page]
        if page not in pages:
            soup = BeautifulSoup((html / page).read_text(encoding="utf-8"), "html.parser")
            pages[page] = {element["id"] for element in soup.find_all(id=True)}
        assert anchors and set(anchors) <= pages[page], row["symbol"]


def test_a_module_says_which_chapters_use_it(api):
    sections = [section for soup in api.values() for section in soup.select("section.pb-module")]
    used = {section["id"]: section.select_one(".pb-used-by") for section in sections}
    assert "every page" in used["paperbook-study-params"].get_text()
    line = used["paperbook-data-diamonds"]
    assert re.search(r"\(page 5\)$", line.get_text()) and line.find_all("a")[-1]["href"].endswith("5-real-tables.html")
    assert used["paperbook-press-stamp"] is None  # pages do not import the press


def test_modules_stand_in_the_contents_of_their_page(api):
    for soup in api.values():
        contents = {link["href"] for link in soup.select(".page-toc a")}
        assert {f"#{section['id']}" for section in soup.select("section.pb-module")} <= contents


def test_signatures_hold_shapes(api):
    shown = " ".join(text for name, _, text in signatures(api) if name == "safe-residual")
    assert 'Float[ndarray, "n dim"]' in shown and 'Float[Tensor, "batch in"]' in shown
    (written,) = [text for _, anchor, text in signatures(api) if anchor.endswith(".estimators.gain_and_error")]
    assert re.sub(r"\s+", "", written).startswith('gain_and_error(differences:Float[ndarray,"n_v"],)→tuple[float,float]')


def test_signatures_show_what_somebody_wrote(api):
    strange = re.compile(r"0x[0-9a-f]{6}|<\w|object at|ForwardRef|paperbook\.|jaxtyping|typing\.|Optional\[|Union\[")
    texts = {anchor: re.sub(r"'[^']*'|\"[^\"]*\"", "", text) for _, anchor, text in signatures(api)}  # a value may be any text
    assert not [(anchor, found[0]) for anchor, text in texts.items() if (found := strange.search(text))]
    assert not [text for _, _, text in signatures(api) if re.search(r"/(?:home|tmp|usr)/|" + re.escape(str(ROOT)), text)]


def test_parameters_of_a_page_stand_in_a_table(api):
    description = api["safe-residual"].find(id="paperbook.papers.safe_residual.config.TrustConfig").find_parent("dl")
    rows = [[cell.get_text() for cell in row.select("td")] for row in description.select("table.pb-fields tbody tr")]
    assert ["val_fraction", "float", "0.5", "0 < x < 1", "share of the rows kept for selection (rho)"] in rows
    assert ["n", "int", "2000", "16 ≤ x ≤ 5 × 10⁶", "labelled rows"] in rows
    assert "profile, seed of params.Config" in " ".join(description.select_one(".pb-inherited").get_text().split())


def test_the_table_of_packages_counts_what_there_is(api):
    rows = {row.select("td")[0].get_text(): row for row in api["index"].select("table.pb-api tbody tr")}
    assert set(rows) == {folder.replace("/", ".") for folder in packages()}
    cells = [cell.get_text() for cell in rows["figures"].select("td")]
    names = [name for path in (LIBRARY / "figures").rglob("*.py") for name in public_names(path)]
    names = [name for name in names if name.count(".") == 3]  # paperbook.figures.module.name: no methods
    assert cells[3] == str(len(names)) and rows["figures"].select("td")[4].find("a")


def test_nothing_of_the_reference_overflows_on_a_phone(site, browser, api):
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    wide = {}
    for name in api:
        page.goto(f"{site}/book/api/{name}.html", wait_until="load")
        over = page.evaluate(
            """() => [...document.querySelectorAll('.bd-article dt.sig, .bd-article dd, .pb-fields td, .bd-article p')]
                 .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.pb-scroll:has(.pb-api), pre'))
                 .map(e => e.id || e.className || e.textContent.slice(0, 40))"""
        )
        if over or page.evaluate("document.scrollingElement.scrollWidth") > 390:
            wide[name] = over
    context.close()
    assert not wide
