"""The built pages as a reader meets them: in a browser, on a phone, without a network."""

import base64
import copy
import gzip
import io
import re
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import pytest
from browse import pages, scroll_through
from fontTools.ttLib import TTFont

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"


@pytest.fixture(scope="session")
def visits(html, site, browser):
    """Each page opened on a phone in dark mode: what it asked for, complained about, and how wide it is."""
    context = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    seen = {}
    for path in pages(html):
        name = path.relative_to(html).as_posix()
        if name == "index.html":  # only sends on to the first page
            continue
        page = context.new_page()
        requests, complaints, packed = [], [], []
        page.on("requestfinished", lambda r, packed=packed: packed.append(r))
        page.on("request", lambda r, requests=requests: requests.append(r.url))
        page.on("console", lambda m, out=complaints: out.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e, out=complaints: out.append(str(e)))
        page.on("response", lambda r, out=complaints: out.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        page.goto(f"{site}/{name}", wait_until="load")
        scroll_through(page)
        wide = page.evaluate(
            """() => [...document.querySelectorAll('.bd-content *')].filter(e => {
                 const r = e.getBoundingClientRect();
                 if (r.right <= innerWidth + 1 || !r.width) return false;
                 for (let p = e; p; p = p.parentElement)
                   if (/(auto|scroll|hidden)/.test(getComputedStyle(p).overflowX) && p !== document.body) return false;
                 return true;
               }).slice(0, 3).map(e => e.tagName + '.' + e.className)"""
        )
        seen[name] = {
            "requests": requests,
            "complaints": complaints,
            "overflow": page.evaluate("document.scrollingElement.scrollWidth") - 390,
            "wide": wide,
            "maths": page.evaluate("document.querySelectorAll('.math').length"),
            "typeset": page.evaluate("document.querySelectorAll('mjx-container').length"),
            "spoken": page.evaluate("document.querySelectorAll('mjx-assistive-mml > math').length"),
            "scripts": page.evaluate("typeof window.MathJax"),
            "packed": sum(r.sizes()["responseBodySize"] for r in packed),
        }
        page.close()
    context.close()
    return seen


def test_the_book_is_whole(soups):
    assert "index.html" in soups and len(soups) >= 7


def test_no_request_leaves_the_machine(visits, site):
    strays = {name: [url for url in v["requests"] if not url.startswith((site, "data:", "blob:"))] for name, v in visits.items()}
    assert not {name: urls for name, urls in strays.items() if urls}


def test_no_page_complains(visits):
    assert not {name: v["complaints"] for name, v in visits.items() if v["complaints"]}


def test_nothing_overflows_on_a_phone(visits):
    assert not {name: (v["overflow"], v["wide"]) for name, v in visits.items() if v["overflow"] > 0 or v["wide"]}


def test_every_formula_is_typeset_and_spoken(visits):
    assert not {name: (v["maths"], v["typeset"]) for name, v in visits.items() if v["typeset"] != v["maths"]}
    assert not {name: (v["maths"], v["spoken"]) for name, v in visits.items() if v["spoken"] != v["maths"]}
    assert {v["scripts"] for v in visits.values()} == {"undefined"}  # typeset when it was built, not here
    assert sum(v["maths"] for v in visits.values()) > 50


def test_a_page_weighs_at_most_800_kb_to_its_end(visits):
    assert not {name: v["packed"] for name, v in visits.items() if v["packed"] > 800_000}
    assert max(v["packed"] for v in visits.values()) > 100_000  # figures, styles and fonts were counted


def test_links_and_anchors_resolve(html, soups):
    anchors = {name: {e["id"] for e in soup.find_all(id=True)} | {e["name"] for e in soup.find_all("a", attrs={"name": True})}
               for name, soup in soups.items()}  # fmt: skip
    broken = []
    for name, soup in soups.items():
        for link in soup.find_all("a", href=True):
            target, anchor = urldefrag(link["href"])
            if urlparse(target).scheme or target.startswith("//"):
                continue
            path = unquote(urlparse(urljoin(name, target)).path).lstrip("/") if target else name
            if not (html / path).is_file() or (anchor and path in anchors and anchor not in anchors[path] | {"", "top"}):
                broken.append(f"{name}: {link['href']}")
    assert not broken


def test_figures_say_what_they_show(soups):
    poor = []
    for name, soup in soups.items():
        for image in soup.select(".bd-article img"):
            alt = (image.get("alt") or "").strip()
            if len(alt) < 15 or alt.endswith((".png", ".svg", ".jpg")):
                poor.append(f"{name}: {image.get('src')}: alt {alt!r}")
    assert not poor


def test_no_raw_markup_is_left(soups):
    left = []
    marks = re.compile(r"```|:::|\{(glue|ref|doc|cite|eq|numref|prf)[^}]*\}|\$\$|\bglue:text\b|(?<!\w)\*\*(?=\w)")
    for name, soup in soups.items():
        article = copy.copy(soup.select_one(".bd-article") or soup)  # other tests read the same pages
        for e in article.select("pre, code, script, style, .math, .sig"):
            e.extract()
        left += [f"{name}: {m.group(0)!r} near {article.get_text()[max(0, m.start() - 40):m.end() + 40]!r}"
                 for m in marks.finditer(article.get_text())]  # fmt: skip
    assert not left


def test_no_file_names_a_machine(html):
    home = "/" + "root" + "/"
    marks = [str(ROOT).encode(), home.encode(), ("/" + "home" + "/").encode(), b"site-" + b"packages"]
    named = []
    for path in html.rglob("*"):
        if path.is_file() and path.suffix in {".html", ".js", ".json", ".txt", ".ipynb", ".md", ".inv", ".css", ".svg"}:
            content = path.read_bytes()
            named += [f"{path.relative_to(html)}: {mark.decode()}" for mark in marks if mark in content]
    assert not named


def test_pages_stay_light(html):
    heavy = {p.relative_to(html).as_posix(): p.stat().st_size for p in html.rglob("*.png") if p.stat().st_size > 25_000}
    heavy.pop("_static/page.png", None)
    assert not heavy


def test_the_stylesheet_is_whole_and_light(html):
    css = (html / "_static" / "book.css").read_text(encoding="utf-8")
    assert "@import" not in css and "url(../" not in css
    assert len(gzip.compress(css.encode())) < 70_000
    missing = [name for name in re.findall(r"url\([\"']?(?!data:|#)([^\"')]+)", css) if not (html / "_static" / name).is_file()]
    assert not missing


def test_icons_are_drawn(reader, heaviest):
    """Every icon a page asks for is in the cut font: a missing one would be drawn, as a box, by some other font."""
    page = reader(heaviest)
    asked = page.evaluate(
        """() => [...document.querySelectorAll('body *')]
                 .flatMap(e => ['::before', '::after'].map(part => getComputedStyle(e, part)))
                 .filter(style => /Awesome/.test(style.fontFamily) && /^"[\\ue000-\\uf8ff]"$/.test(style.content))
                 .map(style => style.content[1])"""
    )
    css = (HTML / "_static" / "book.css").read_text(encoding="utf-8")
    fonts = [TTFont(io.BytesIO(base64.b64decode(data))) for data in re.findall(r"font/woff;base64,([^)]+)", css)]
    fonts += [TTFont(path) for path in (HTML / "_static" / "fonts").glob("fa-*")]
    drawn = {chr(point) for font in fonts for point in font.getBestCmap()}
    assert len(set(asked)) >= 3 and not set(asked) - drawn
