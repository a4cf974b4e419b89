"""The whole book as one PDF: every page of _toc.yml printed by Chromium from the built HTML, merged with one outline.

Chromium sets the pages (its print of the HTML, with ``print.css``); pypdf joins them. Three things get lost when prints are
joined, and are written anew here: page numbers that run on, links between pages, and bookmarks. A link that leads to
something that is not in the PDF (a download, the search page) becomes plain text.
"""

from __future__ import annotations

import functools
import html
import http.server
import io
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

from paperbook.study import paths
from paperbook.study.results import write_atomic

NAME = "papers-that-run.pdf"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip

_WIDTH = 657  # CSS pixels between the margins that print.css sets: 174 mm at 96 px an inch, rounded down
_PATIENCE = 60_000  # ms for one page to load and to be typeset

# What a page may still be doing when its load event comes. Chromium prints what is there, ready or not.
_SETTLE = """async () => {
  dispatchEvent(new Event('beforeprint'));
  if (window.MathJax?.startup?.promise) await MathJax.startup.promise;
  await document.fonts.ready;
  const images = [...document.querySelectorAll('.bd-article img')];
  for (const image of images) image.loading = 'eager';
  const broken = [];
  for (const image of images) await image.decode().catch(() => broken.push(image.getAttribute('src')));
  return broken;
}"""

# Chromium shrinks a whole page to fit the widest thing on it, so that text would have another size on every page.
# Here only the thing itself gets smaller. Returns what is still too wide.
_FIT = """(width) => {
  const inside = e => Math.min(width, e.parentElement.clientWidth || width);
  const things = '.bd-article table, mjx-container[display="true"], .bd-article .output > *, .bd-article svg';
  for (const e of document.querySelectorAll(things)) {
    const room = inside(e);
    for (let zoom = 1, tries = 0; tries < 6; tries++) {
      const needed = Math.max(e.scrollWidth * zoom || 0, e.getBoundingClientRect().width);
      if (needed <= room + 0.5 || zoom <= 0.5) break;
      e.style.zoom = zoom = Math.max(0.5, zoom * room / needed);
    }
  }
  const right = document.querySelector('.bd-article').getBoundingClientRect().right;
  const wide = e => e.getBoundingClientRect().right > right + 1;
  for (const cell of document.querySelectorAll('.bd-article :is(td, th)'))
    if (wide(cell)) cell.style.overflowWrap = 'anywhere';
  return [...document.querySelectorAll('.bd-article :is(table, pre, img, svg, mjx-container, p, div)')].filter(wide)
    .map(e => `${e.tagName.toLowerCase()} ${e.className}`.trim());
}"""

# Chromium writes a destination for what a visible link of the same page leads to; links too small to see make it write all.
# A section may begin on the page before its heading, so that the heading takes over its anchors.
_ANCHORS = """() => {
  for (const section of document.querySelectorAll('.bd-article section[id]')) {
    const heading = section.querySelector(':scope > :is(h1, h2, h3, h4, h5, h6)');
    if (!heading) continue;
    while (heading.previousElementSibling?.matches('span[id]')) heading.prepend(heading.previousElementSibling);
    const id = section.id;
    section.removeAttribute('id');
    if (heading.id) heading.insertAdjacentHTML('afterbegin', '<span></span>');
    (heading.id ? heading.firstElementChild : heading).id = id;
  }
  const box = document.createElement('div');
  box.style = 'position: absolute; top: 0; left: 0; width: 1px; height: 1px; overflow: hidden; line-height: 0';
  for (const e of document.querySelectorAll('.bd-article [id]')) {
    if (e.closest('mjx-container, svg')) continue;
    const link = document.createElement('a');
    link.href = '#' + e.id;
    link.style = 'position: absolute; top: 0; left: 0; display: block; width: 1px; height: 1px';
    box.append(link);
  }
  document.body.prepend(box);
}"""

# Headings come from the page as it was written: typeset maths holds no text.
_HEADINGS = r"""async () => {
  const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), 'text/html');
  return [...page.querySelectorAll('.bd-article :is(h1, h2, h3)')].map(heading => {
    for (const e of heading.querySelectorAll('.headerlink, mjx-assistive-mml')) e.remove();
    const title = heading.textContent.replace(/\\\((.*?)\\\)/g, '$1').replace(/\s+/g, ' ').trim();
    return [Number(heading.tagName[1]), title, heading.closest('section')?.id || heading.id];
  });
}"""


@dataclass
class Node:
    """A place in the outline: a part (no file) or a page of the book, with what stands below it."""

    title: str
    file: str | None = None
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where an anchor lies: a PDF page (its object in the merged file) and a point on it, in points from the lower left."""

    page: Any
    left: float
    top: float


@dataclass(frozen=True)
class Link:
    """A link as Chromium wrote it: the PDF page it lies on, its rectangle in points, and an address or a name of its page."""

    page: Any
    box: tuple[float, float, float, float]
    target: str


@dataclass
class Printed:
    """One printed page of the book: its first number, its headings (level, title, anchor), its anchors and its links."""

    number: int
    start: Place
    headings: list[tuple[int, str, str]]
    anchors: dict[str, Place]
    links: list[Link]


@dataclass(frozen=True)
class Bound:
    """The finished file: where it is, its pages (front matter among them), what did not fit the paper, by page of the book."""

    path: Path
    pages: int
    front: int
    wide: dict[str, list[str]]


def contents() -> list[Node]:
    """The book as _toc.yml orders it: the root page, then its parts or chapters. Titles of pages are still empty.

    Raises:
        FileNotFoundError: there is no _toc.yml.
        ValueError: it lists no page.
    """
    import yaml

    data = yaml.safe_load((paths.root() / "_toc.yml").read_text(encoding="utf-8")) or {}

    def pages(rows: list[dict[str, Any]] | None) -> list[Node]:
        kept = [row for row in rows or [] if isinstance(row.get("file"), str)]  # an entry may also be an address
        return [Node("", _plain(row["file"]), pages(row.get("sections"))) for row in kept]

    nodes = [Node("", _plain(data["root"]))] if isinstance(data.get("root"), str) else []
    nodes += pages(data.get("chapters"))
    for part in data.get("parts") or []:
        below = pages(part.get("chapters"))
        nodes += [Node(str(part["caption"]), None, below)] if part.get("caption") else below
    if not files(nodes):
        raise ValueError("_toc.yml: expected a root and chapters, got no page")
    return nodes


def _plain(file: str) -> str:
    return re.sub(r"\.(md|ipynb|rst)$", "", file)


def files(nodes: list[Node]) -> list[str]:
    """The pages of `nodes` in reading order."""
    found: list[str] = []
    for node in nodes:
        found += [node.file] if node.file else []
        found += files(node.children)
    return found


def destination(target: str, base: str, start: str, known: dict[str, Any]) -> tuple[str, str] | str | None:
    """Where a printed link leads.

    Args:
        target: the address in the print.
        base: the address under which the book was served, with a slash at its end.
        start: the page that the book's index.html leads to.
        known: the pages of the book, by file.

    Returns:
        (file, anchor) for a page of the book, the address itself for another site, None for what the PDF does not hold.
    """
    if not target.startswith(base):
        return target if re.match(r"(https?|mailto):", target) and not re.match(r"https?://(127\.|localhost\b)", target) else None
    address, anchor = urldefrag(target.removeprefix(base))
    file = unquote(address).removesuffix(".html")
    file = start if file in ("", "index") else file
    return (file, unquote(anchor)) if file in known else None


def css_string(text: str) -> str:
    """`text` as a string of a stylesheet."""
    plain = " ".join(text.split())
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"').replace("<", "\\3c ") + '"'


def page_style(number: int, book: str, title: str) -> str:
    """The stylesheet of one page of the book: its first number, and the titles at the head of all but its first sheet."""
    head = "font: 8.5pt sans-serif; color: #555; white-space: nowrap"
    return (
        f"html {{ counter-reset: page {number - 1}; }}\n"
        f"@page {{ @top-left {{ content: {css_string(book)}; {head} }} @top-right {{ content: {css_string(title)}; {head} }} }}\n"
        "@page :first { @top-left { content: none } @top-right { content: none } }"
    )


def front_matter(config: dict[str, Any], nodes: list[Node], numbers: dict[str, int], base: str) -> str:
    """Title page and table of contents as one HTML page, numbered in roman.

    Args:
        config: title, author and copyright of _config.yml.
        nodes: the titled book.
        numbers: the first number of each page, by file.
        base: the address under which the book is served; its links are rewritten like those of the pages.
    """
    rows: list[str] = []

    def walk(level: int, below: list[Node]) -> None:
        for node in below:
            title = html.escape(node.title)
            if node.file is None:
                rows.append(f'<h2 class="part">{title}</h2>')
            else:
                link = f'<a href="{html.escape(base + node.file)}.html">'
                rows.append(f'<div class="row l{level}">{link}{title}</a><i></i>{link}{numbers[node.file]}</a></div>')
            walk(level + (node.file is not None), node.children)

    walk(0, nodes)
    title, author, year = (html.escape(str(config.get(key, ""))) for key in ("title", "author", "copyright"))
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
@page {{ size: A4; margin: 20mm 18mm;
  @bottom-center {{ content: counter(page, lower-roman); font: 8.5pt sans-serif; color: #555 }} }}
@page :first {{ @bottom-center {{ content: none }} }}
body {{ margin: 0; font: 10pt/1.45 system-ui, sans-serif; color: #000 }}
a {{ color: inherit; text-decoration: none }}
.title {{ break-after: page; padding-top: 70mm }}
.title h1 {{ font-size: 32pt; line-height: 1.15; font-weight: 600; margin: 0 0 6mm }}
.title p {{ margin: 0 0 2mm; color: #333 }}
.title .rule {{ width: 30mm; border-top: 2pt solid #0a4b78; margin: 8mm 0 }}
h2 {{ break-after: avoid; font-size: 18pt; font-weight: 500; margin: 0 0 6mm }}
h2.part {{ font-size: 11pt; font-weight: 600; margin: 6mm 0 2mm }}
.row {{ display: flex; align-items: baseline; break-inside: avoid; margin: 0.6mm 0 }}
.row i {{ flex: 1 1 10mm; border-bottom: 0.8pt dotted #999; margin: 0 2mm }}
.row.l1 {{ padding-left: 6mm }} .row.l2 {{ padding-left: 12mm }}
</style></head><body><div class="title"><h1>{title}</h1><div class="rule"></div><p>{author}</p><p>{year}</p></div>
<h2>Contents</h2>{"".join(rows)}</body></html>"""


def bind(out: Path | None = None, say: Callable[[str], None] = lambda line: None) -> Bound:
    """Print every page of the built book and write one PDF.

    Args:
        out: the file to write; default ``_build/papers-that-run.pdf``.
        say: takes a line for each page.

    Raises:
        FileNotFoundError: the book is not built, or Chromium, playwright or pypdf is missing.
        ValueError: a page cannot be printed: it does not load, or a picture is missing.
    """
    import yaml

    nodes, built = contents(), paths.root() / "_build" / "html"
    absent = [file for file in files(nodes) if not (built / f"{file}.html").is_file()]
    if absent:
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise FileNotFoundError(f"the book is not built: _build/html has no {absent[0]}.html{more}; run `make book`")
    config = yaml.safe_load((paths.root() / "_config.yml").read_text(encoding="utf-8")) or {}
    with _served(built) as base, _browser() as browser:
        bound = _Binder(nodes, config, base, browser.new_page(viewport={"width": _WIDTH, "height": 1000}), say)
        return bound.write(out or paths.root() / "_build" / NAME)


class _Binder:
    """Prints page by page into one writer; what stands in memory is the writer and small records, one page's print at most."""

    def __init__(self, nodes: list[Node], config: dict[str, Any], base: str, page: Any, say: Callable[[str], None]) -> None:
        from pypdf import PdfWriter

        self.nodes, self.config, self.base, self.page, self.say = nodes, config, base, page, say
        self.writer = PdfWriter()
        self.files = files(nodes)
        self.printed: dict[str, Printed] = {}
        self.wide: dict[str, list[str]] = {}
        self.front: list[Link] = []

    def write(self, out: Path) -> Bound:
        self.page.emulate_media(media="print", color_scheme="light")
        for file in self.files:
            self._print(file)
        self._title(self.nodes)
        numbers = {file: printed.number for file, printed in self.printed.items()}
        self.page.set_content(front_matter(self.config, self.nodes, numbers, self.base))
        front, _, self.front = self._take(self.page.pdf(prefer_css_page_size=True, print_background=True), at_front=True)
        self._number(len(front))
        self._link()
        self._outline(self.nodes, None)
        self._describe()
        buffer = io.BytesIO()
        self.writer.write(buffer)
        write_atomic(out, buffer.getvalue())
        return Bound(out, len(self.writer.pages), len(front), self.wide)

    def _print(self, file: str) -> None:
        from playwright.sync_api import Error

        number = len(self.writer.pages) + 1
        try:
            answer = self.page.goto(f"{self.base}{file}.html", wait_until="load", timeout=_PATIENCE)
            broken = self.page.evaluate(_SETTLE)
            if answer is None or not answer.ok or broken:
                problem = f"a picture is missing: {broken[0]}" if broken else "the page did not load"
                raise ValueError(f"{file}: {problem}; run `make book`")
            headings = [(int(level), str(title), str(anchor)) for level, title, anchor in self.page.evaluate(_HEADINGS)]
            title = headings[0][1] if headings else file
            self.page.add_style_tag(content=page_style(number, str(self.config.get("title", "")), title))
            wide = self.page.evaluate(_FIT, _WIDTH)
            self.page.evaluate(_ANCHORS)
            content = self.page.pdf(prefer_css_page_size=True, print_background=True)
        except Error as error:
            raise ValueError(f"{file}: Chromium could not print it: {str(error).splitlines()[0]}") from None
        if wide:
            self.wide[file] = wide
        pages, anchors, links = self._take(content)
        start = Place(pages[0], 0.0, _top(self.writer, pages[0]))
        self.printed[file] = Printed(number, start, headings, anchors, links)
        self.say(f"{file}: pages {number}-{number + len(pages) - 1}")

    def _take(self, content: bytes, at_front: bool = False) -> tuple[list[Any], dict[str, Place], list[Link]]:
        """Move one print into the writer without its links; its pages, anchors and links."""
        from pypdf import PdfReader

        reader = PdfReader(io.BytesIO(content))
        moved, places, links = [], {}, []
        for index, source in enumerate(reader.pages):
            # links are written anew; the numbers of tagged content would point into a structure tree that is not taken along
            excluded = ["/Annots", "/StructParents", "/Tabs"]
            page = self.writer.insert_page(source, index, excluded) if at_front else self.writer.add_page(source, excluded)
            moved.append(page.indirect_reference)
            places[source.indirect_reference.idnum if source.indirect_reference else -1] = page.indirect_reference
            for reference in source.get("/Annots") or []:
                annotation = reference.get_object()
                left, low, right, high = (float(edge) for edge in annotation["/Rect"])
                target = str(annotation["/Dest"]) if "/Dest" in annotation else str((annotation.get("/A") or {}).get("/URI", ""))
                if right - left > 1 and high - low > 1:  # not one of ours
                    links.append(Link(page.indirect_reference, (left, low, right, high), target))
        anchors = {}
        for name, point in reader.named_destinations.items():
            where = places.get(point.raw_get("/Page").idnum)
            if where is not None:
                anchors[name] = Place(where, float(point.left or 0), float(point.top or 0))
        return moved, anchors, links

    def _title(self, nodes: list[Node]) -> None:
        for node in nodes:
            if node.file:
                headings = self.printed[node.file].headings
                node.title = headings[0][1] if headings else node.file
            self._title(node.children)

    def _number(self, front: int) -> None:
        """The numbers that viewers show are those on the paper: roman in front, then from 1."""
        from pypdf.constants import PageLabelStyle

        self.writer.set_page_label(0, front - 1, style=PageLabelStyle.LOWERCASE_ROMAN, start=1)
        self.writer.set_page_label(front, len(self.writer.pages) - 1, style=PageLabelStyle.DECIMAL, start=1)

    def _link(self) -> None:
        by_page: dict[int, list[Any]] = {}
        for file, links in [(None, self.front), *((file, printed.links) for file, printed in self.printed.items())]:
            for link in links:
                action = self._action(file, link.target)
                if action is not None:
                    by_page.setdefault(link.page.idnum, []).append((link, action))
        for rows in by_page.values():
            rows[0][0].page.get_object()[_name("/Annots")] = _array([self.writer._add_object(_annotation(*row)) for row in rows])

    def _action(self, file: str | None, target: str) -> Place | str | None:
        if file and target.startswith("/"):  # a name of its own page
            printed = self.printed[file]
            return printed.start if target == "/" else printed.anchors.get(target)
        found = destination(target, self.base, self.files[0], self.printed)
        if found is None or isinstance(found, str):
            return found
        page = self.printed[found[0]]
        return page.anchors.get(f"/{found[1]}", page.start) if found[1] else page.start

    def _outline(self, nodes: list[Node], parent: Any) -> None:
        for node in nodes:
            if node.file is None:
                first = self.printed[files([node])[0]]
                self._outline(node.children, self._bookmark(node.title, first.start, parent, True))
                continue
            printed = self.printed[node.file]
            item = self._bookmark(node.title, printed.start, parent, False)
            above: dict[int, Any] = {1: item}
            for level, title, anchor in printed.headings[1:]:
                holder = above.get(level - 1, item)
                above[level] = self._bookmark(title, printed.anchors.get(f"/{anchor}", printed.start), holder, False)
            self._outline(node.children, item)

    def _bookmark(self, title: str, place: Place, parent: Any, is_open: bool) -> Any:
        from pypdf.generic import Fit

        fit = Fit.xyz(left=place.left, top=place.top, zoom=0)
        return self.writer.add_outline_item(title=title, page_number=place.page, parent=parent, fit=fit, is_open=is_open)

    def _describe(self) -> None:
        """Title, author, language; no date, so that the same book gives the same file."""
        from pypdf.generic import BooleanObject, DictionaryObject, TextStringObject

        title, author = str(self.config.get("title", "")), str(self.config.get("author", ""))
        self.writer.metadata = None
        self.writer.add_metadata({"/Title": title, "/Author": author, "/Creator": "paperbook", "/Producer": "Chromium and pypdf"})
        root = self.writer.root_object
        root[_name("/Lang")] = TextStringObject("en")
        root[_name("/ViewerPreferences")] = DictionaryObject({_name("/DisplayDocTitle"): BooleanObject(True)})
        self.writer.page_mode = "/UseOutlines"


def _top(writer: Any, page: Any) -> float:
    return float(page.get_object()["/MediaBox"][3])


def _name(text: str) -> Any:
    from pypdf.generic import NameObject

    return NameObject(text)


def _array(items: list[Any]) -> Any:
    from pypdf.generic import ArrayObject

    return ArrayObject(items)


def _annotation(link: Link, action: Place | str) -> Any:
    """A link annotation without a border, to a place in the file or to an address."""
    from pypdf.generic import DictionaryObject, FloatObject, NumberObject, TextStringObject

    made = DictionaryObject({_name("/Type"): _name("/Annot"), _name("/Subtype"): _name("/Link"), _name("/F"): NumberObject(4)})
    made[_name("/Rect")] = _array([FloatObject(round(edge, 2)) for edge in link.box])
    made[_name("/Border")] = _array([NumberObject(0)] * 3)
    if isinstance(action, str):
        made[_name("/A")] = DictionaryObject({_name("/S"): _name("/URI"), _name("/URI"): TextStringObject(action)})
    else:
        point = [FloatObject(round(action.left, 2)), FloatObject(round(action.top, 2)), NumberObject(0)]
        made[_name("/Dest")] = _array([action.page, _name("/XYZ"), *point])
    return made


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the requests are our own."""


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the browser drops what it still loads when it goes to the next page. What is missing is met there."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """`folder` on loopback: from a file:// address Chromium loads no fonts for the maths."""
    server = _Server(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _browser() -> Iterator[Any]:
    """Debian's Chromium.

    Raises:
        FileNotFoundError: it, playwright or pypdf is missing.
    """
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        raise FileNotFoundError("chromium is missing; on Debian: apt-get install chromium")
    try:
        import pypdf  # noqa: F401
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError as error:
        raise FileNotFoundError(f"{(error.name or 'a package').split('.')[0]} is not installed; run `make setup`") from None
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        except Error as error:
            raise ValueError(f"chromium does not start: {str(error).splitlines()[0]}") from None
        yield browser
        browser.close()
