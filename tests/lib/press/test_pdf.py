"""The pure parts of the PDF: the book's order, where links lead, what is written into stylesheets and the front matter."""

from __future__ import annotations

import builtins

import pytest

from paperbook.press import pdf
from paperbook.press.pdf import Node, destination, files, front_matter, page_style
from paperbook.study import paths

BASE = "http://127.0.0.1:8123/"
KNOWN = {"book/intro": 1, "book/pages/demo-one/1-method": 2}


@pytest.fixture
def toc(tmp_path, monkeypatch):
    """Write a _toc.yml into a repository of its own."""

    def write(text: str) -> None:
        (tmp_path / "pyproject.toml").touch()
        (tmp_path / "_config.yml").write_text("title: A book\nauthor: Us\n", encoding="utf-8")
        (tmp_path / "_toc.yml").write_text(text, encoding="utf-8")
        monkeypatch.setenv("PAPERBOOK_ROOT", str(tmp_path))

    return write


def test_the_order_is_that_of_the_toc(toc) -> None:
    toc(
        "format: jb-book\nroot: book/intro\nparts:\n- caption: First\n  chapters:\n  - file: book/a.md\n"
        "    sections:\n    - file: book/b.ipynb\n  - url: https://example.org\n- chapters:\n  - file: book/c\n"
    )
    root, part, last = pdf.contents()
    assert (root.file, part.title, part.file, last.file) == ("book/intro", "First", None, "book/c")
    assert part.children[0].children == [Node("", "book/b")]
    assert files([root, part, last]) == ["book/intro", "book/a", "book/b", "book/c"]


def test_a_toc_without_pages_is_refused(toc) -> None:
    toc("format: jb-book\n")
    with pytest.raises(ValueError, match="got no page"):
        pdf.contents()


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (f"{BASE}book/pages/demo-one/1-method.html#the-%C3%A9", ("book/pages/demo-one/1-method", "the-é")),
        (f"{BASE}book/intro.html", ("book/intro", "")),
        (f"{BASE}index.html", ("book/intro", "")),
        (BASE, ("book/intro", "")),
        (f"{BASE}genindex.html", None),
        (f"{BASE}_sources/book/intro.md", None),
        ("http://127.0.0.1:9/other.html", None),
        ("http://localhost/other.html", None),
        ("file:///etc/passwd", None),
        ("javascript:alert(1)", None),
        ("https://arxiv.org/abs/2608.25743", "https://arxiv.org/abs/2608.25743"),
        ("mailto:a@example.org", "mailto:a@example.org"),
    ],
)
def test_where_a_link_leads(target, found) -> None:
    assert destination(target, BASE, "book/intro", KNOWN) == found


def test_a_title_cannot_end_its_stylesheet() -> None:
    style = page_style(7, 'The "book"', "a\\b </style>\n c")
    assert "counter-reset: page 6" in style
    assert r'"The \"book\""' in style and r'"a\\b \3c /style> c"' in style


def test_the_front_matter_lists_every_page_with_its_number() -> None:
    nodes = [Node("Intro", "book/intro"), Node("Part <1>", None, [Node("A & B", "book/a", [Node("Deep", "book/b")])])]
    text = front_matter({"title": "T", "author": "A<"}, nodes, {"book/intro": 1, "book/a": 12, "book/b": 345}, BASE)
    assert "Part &lt;1&gt;" in text and "A &amp; B" in text and "A&lt;" in text
    rows = [line for line in text.split("<div class=") if line.startswith('"row')]
    assert [row.split('"')[1] for row in rows] == ["row l0", "row l0", "row l1"]
    assert "book/b.html" in rows[2] and ">345</a>" in rows[2]


def test_a_book_that_is_not_built_is_refused(toc) -> None:
    toc("root: book/intro\nchapters:\n- file: book/a\n")
    with pytest.raises(FileNotFoundError, match=r"no book/intro.html and 1 more; run `make book`"):
        pdf.bind()
    assert not (paths.root() / "_build").exists()


@pytest.fixture
def built(toc):
    """One built page."""
    toc("root: book/intro\n")
    page = paths.root() / "_build" / "html" / "book" / "intro.html"
    page.parent.mkdir(parents=True)
    page.write_text("<h1>Hello</h1>", encoding="utf-8")


def test_without_chromium_the_line_that_mends_it_is_said(built, monkeypatch) -> None:
    monkeypatch.setattr(pdf.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="apt-get install chromium"):
        pdf.bind()


@pytest.mark.parametrize("name", ["pypdf", "playwright.sync_api"])
def test_without_its_packages_setup_is_named(built, monkeypatch, name) -> None:
    real = builtins.__import__

    def absent(wanted, *args, **kwargs):
        if wanted == name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(wanted, *args, **kwargs)

    monkeypatch.setattr(pdf.shutil, "which", lambda name: "/usr/bin/true")
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(FileNotFoundError, match=rf"{name.split('.')[0]} is not installed; run `make setup`"):
        pdf.bind()
