"""The book as one PDF: whole, in order, numbered, linked within itself; and what a reader prints from the browser."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from bs4 import BeautifulSoup
from pypdf import PdfReader

ROOT = Path(__file__).resolve().parents[2]
FOLDED = "Show code cell source"


def squeezed(text):
    """Without spaces and ligatures, which a print sets as it likes."""
    return re.sub(r"\s+", "", text).replace("ﬁ", "fi").replace("ﬂ", "fl").replace("ﬀ", "ff").replace("ﬃ", "ffi")


@pytest.fixture(scope="module")
def made(html, browser, tmp_path_factory):
    """The command's own run: the file and what was said. The browser is asked for so that its absence is met as elsewhere."""
    out = tmp_path_factory.mktemp("pdf") / "book.pdf"
    command = [sys.executable, "-m", "paperbook.cli", "pdf", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out, done.stdout, done.stderr


@pytest.fixture(scope="module")
def book(made):
    """The read PDF."""
    return PdfReader(made[0])


@pytest.fixture(scope="module")
def texts(book):
    """Text of each page of the PDF, squeezed."""
    return [squeezed(page.extract_text()) for page in book.pages]


@pytest.fixture(scope="module")
def toc():
    """(depth, caption or file) in the order of _toc.yml; a part is a depth of its own."""
    rows = []

    def walk(below, depth):
        for row in below or []:
            rows.append((depth, row["file"]))
            walk(row.get("sections"), depth + 1)

    data = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    rows.append((0, data["root"]))
    for part in data["parts"]:
        rows.append((0, part["caption"]))
        walk(part["chapters"], 1)
    return rows


@pytest.fixture(scope="module")
def soups(html, toc):
    """Articles of the built pages, by file."""
    files = [name for _, name in toc if (html / f"{name}.html").is_file()]
    articles = {f: BeautifulSoup((html / f"{f}.html").read_text("utf-8"), "html.parser").select_one(".bd-article") for f in files}
    for article in articles.values():
        for e in article.select(".headerlink"):
            e.extract()
    return articles


def heading(e):
    return " ".join(e.get_text().split())


@pytest.fixture(scope="module")
def outline(book):
    """(depth, title, page of the PDF) of every bookmark."""
    rows = []

    def walk(items, depth):
        for item in items:
            if isinstance(item, list):
                walk(item, depth + 1)
            else:
                rows.append((depth, item.title, book.get_destination_page_number(item)))

    walk(book.outline, 0)
    return rows


@pytest.fixture(scope="module")
def spans(soups, outline):
    """File -> the pages of the PDF that it fills."""
    starts, at = {}, 0
    for file, article in soups.items():
        title = heading(article.h1)
        at = next(i for i in range(at, len(outline)) if outline[i][1] == title and (i > 0 or file == next(iter(soups))))
        starts[file], at = outline[at][2], at + 1
    ends = [*list(starts.values())[1:], None]
    return {file: range(starts[file], end or starts[file] + 1) for file, end in zip(starts, ends, strict=True)}


def test_the_bookmarks_are_the_toc_and_its_sections(toc, soups, outline):
    wanted = []
    for depth, name in toc:
        if name not in soups:
            wanted.append((depth, name))
            continue
        wanted.append((depth, heading(soups[name].h1)))
        wanted += [(depth + int(h.name[1]) - 1, heading(h)) for h in soups[name].select("h2, h3")]
    assert [(depth, title) for depth, title, _ in outline] == wanted
    assert [page for *_, page in outline] == sorted(page for *_, page in outline)


def test_a_bookmark_leads_to_its_heading(toc, outline, texts):
    captions = {name for _, name in toc}
    lost = [(title, page) for _, title, page in outline if title not in captions and squeezed(title) not in texts[page]]
    assert not lost


def test_every_page_is_there_and_numbered_as_the_viewer_says(book, texts, soups, outline):
    front = outline[0][2]
    assert front >= 2 and len(book.pages) - front >= len(soups)
    assert book.page_labels[:front] == ["i", "ii", "iii", "iv", "v", "vi"][:front]
    assert book.page_labels[front:] == [str(i + 1) for i in range(len(book.pages) - front)]
    odd = []
    for index in range(front, len(book.pages)):
        number, text = str(index - front + 1), texts[index]
        # margins come before the text: the heads, which the first page of each has not, then the number
        if not re.match(rf"(PapersThatRun.*?)?{number}", text):
            odd.append((index, number, text[:60]))
    assert not odd


def test_the_contents_name_every_page_with_its_number(book, texts, soups, spans, outline):
    front = outline[0][2]
    listed = "".join(texts[1:front])
    for file, article in soups.items():
        assert re.search(re.escape(squeezed(heading(article.h1))) + rf"\D*{spans[file][0] - front + 1}", listed), file


def images(book, pages):
    drawn = [x.get_object()["/Subtype"] for i in pages for x in (book.pages[i]["/Resources"].get("/XObject") or {}).values()]
    return drawn.count("/Image")


def test_no_figure_is_lost(book, soups, spans):
    figures = {file: len({i["src"] for i in article.select("img[src$='.png']")}) for file, article in soups.items()}
    assert sum(figures.values()) >= 10
    assert not {file: n for file, n in figures.items() if images(book, spans[file]) < n}


def test_maths_is_set_not_quoted(book, soups, spans, texts):
    fonts = {}
    for file, pages in spans.items():
        found = [f.get_object() for i in pages for f in (book.pages[i]["/Resources"].get("/Font") or {}).values()]
        fonts[file] = " ".join(str(f.get("/BaseFont") or f.get("/FontDescriptor", {}).get("/FontName", "")) for f in found)
    formulas = {file for file, article in soups.items() if article.select(".math")}
    assert len(formulas) >= 5
    assert not {file: fonts[file] for file in formulas if "MathJax" not in fonts[file]}
    raw = re.compile(r"\\(frac|sum|hat|delta|sigma|begin|mathrm|left|le)(?![a-z])|\$\$|\\\(|\\\[")
    for file, article in soups.items():
        said = Counter(m.group(0) for code in article.select("pre, code") for m in raw.finditer(code.get_text()))
        quoted = Counter(m.group(0) for i in spans[file] for m in raw.finditer(texts[i]))
        assert quoted <= said, file


def printed(words, text):
    """Whether `text` holds `words`; a page that ends between them, with its number, may cut one piece of a long sentence."""
    pieces = [words[i : i + 25] for i in range(0, len(words), 25)]
    return words in text or (len(pieces) > 2 and sum(piece not in text for piece in pieces) <= 1)


def test_proofs_and_solutions_are_open_and_folded_code_is_left_out(soups, spans, texts):
    whole = {file: "".join(texts[i] for i in pages) for file, pages in spans.items()}
    opened = 0
    for file, article in soups.items():
        for box in article.select(".admonition.dropdown"):
            prose = [s for s in box.find_all(string=True) if not s.find_parent(["pre", "a", "summary"])]
            prose = [str(s) for s in prose if not s.find_parent(class_="math")]
            # a proof may be formulas with a few words between them: then its longest words have to do
            words = [squeezed(s) for s in prose if len(s) > 30] or [squeezed(max(prose, key=len))]
            words += [squeezed(pre.get_text())[:40] for pre in box.select("pre")]  # the code of a solution
            assert words and not [w for w in words if not printed(w, whole[file])], file
            opened += 1
    assert opened >= 5
    assert squeezed(FOLDED) not in "".join(texts)
    for file, article in soups.items():
        hidden = [pre for pre in article.select("details.hide pre") if not pre.find_parent(class_="dropdown")]
        folded = [squeezed(pre.get_text()) for pre in hidden]
        assert not [code[:60] for code in folded if len(code) > 80 and code[:80] in whole[file]], file


def annotations(book):
    for index, page in enumerate(book.pages):
        for reference in page.get("/Annots") or []:
            yield index, reference.get_object()


def test_links_stay_inside_the_book_or_lead_to_the_world(book, soups):
    world = {a["href"].split("#")[0] for article in soups.values() for a in article.select("a[href^='http']")}
    assert {str(a["/A"]["/URI"]).split("#")[0] for _, a in annotations(book) if "/A" in a} == world
    numbers = {page.indirect_reference.idnum for page in book.pages}
    inner = [list.__getitem__(a["/Dest"], 0) for _, a in annotations(book) if "/Dest" in a]
    assert len(inner) > 100 and {place.idnum for place in inner} <= numbers


def test_a_link_lands_on_its_theorem_figure_or_section(book, soups, spans, texts):
    pages = {page.indirect_reference.idnum: i for i, page in enumerate(book.pages)}
    landed = {}
    for index, a in annotations(book):
        if "/Dest" in a:
            landed.setdefault(index, set()).add(pages[list.__getitem__(a["/Dest"], 0).idnum])
    checked, lost = 0, []
    for file, article in soups.items():
        for link in article.select("a.internal[href*='#']"):
            address, anchor = link["href"].split("#", 1)
            target = os.path.normpath(Path(file).parent / address).removesuffix(".html") if address else file
            goal = target in soups and soups[target].find(id=anchor)
            title = goal and goal.select_one(".admonition-title, .caption-number, h2, h3")
            if not title or title.select(".math") or link.select(".math") or goal.name == "span" or not squeezed(link.get_text()):
                continue
            here = [i for i in spans[file] if squeezed(link.get_text()) in texts[i]]
            there = {i for i in spans[target] if squeezed(heading(title)) in texts[i]}
            lost += [] if any(landed.get(i, set()) & there for i in here) else [f"{file}: {link['href']}"]
            checked += 1
    assert checked >= 5 and not lost


def test_nothing_is_too_wide_for_the_paper(made):
    assert "wider than the paper" not in made[2]


def test_it_says_whose_it_is_and_names_no_machine(made, book, texts):
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert (book.metadata.title, book.metadata.author) == (config["title"], config["author"])
    assert book.root_object["/Lang"] == "en" and book.metadata.creation_date is None
    content = made[0].read_bytes()
    marks = [str(ROOT), "/" + "root" + "/", "/" + "home" + "/", "127.0.0.1", "localhost"]
    assert not [mark for mark in marks if mark.encode() in content]
    assert str(ROOT) not in "".join(texts)
    assert re.search(rf"{len(book.pages)} pages, [\d.]+ MB", made[1])


def test_a_reader_prints_light_and_open_pages(browser, site, soups, tmp_path):
    file = next(f for f, article in soups.items() if article.select(".admonition.dropdown") and article.select("details.hide"))
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(f"{site}/{file}.html", wait_until="load")
    theme = "document.documentElement.dataset.theme"
    folded = "document.querySelectorAll('.bd-article .toggle-hidden').length"
    assert page.evaluate(theme) == "dark" and page.evaluate(folded) > 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(theme) == "light" and page.evaluate(folded) == 0
    page.emulate_media(media="print", color_scheme="dark")
    screen_only = "[...document.querySelectorAll('button, nav, footer, summary, input, dialog')]"
    assert page.evaluate(f"{screen_only}.filter(e => e.checkVisibility()).map(e => e.outerHTML)") == []
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(theme) == "dark" and page.evaluate(folded) > 0
    page.emulate_media(media="null", color_scheme="dark")
    page.pdf(path=tmp_path / "one.pdf", prefer_css_page_size=True)
    read = PdfReader(tmp_path / "one.pdf")
    text = squeezed("".join(p.extract_text() for p in read.pages))
    box = soups[file].select_one(".admonition.dropdown .admonition-title ~ p")
    words = next(squeezed(str(s)) for s in box.find_all(string=True) if len(s) > 20 and not s.find_parent(class_="math"))
    assert words in text and squeezed(FOLDED) not in text
    assert [round(float(edge)) for edge in read.pages[0].mediabox[2:]] == [595, 842]
    context.close()
