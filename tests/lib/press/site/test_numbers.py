"""Numbers of chapters and pages, and that a build without a change rewrites no page."""

from sphinx.application import Sphinx


def book(folder, sections=3):
    pages = folder / "book" / "pages" / "one"
    pages.mkdir(parents=True)
    (folder / "conf.py").write_text("extensions = ['paperbook.press.site.numbers']\nnumfig = True\nroot_doc = 'index'\n")
    (folder / "index.rst").write_text("Book\n====\n\n.. toctree::\n   :numbered: 2\n\n   book/pages/one/0-overview\n")
    body = "".join(f"Section {i}\n{'-' * 9}\n\ntext\n\n" for i in range(sections))
    (pages / "0-overview.rst").write_text(f"Chapter\n=======\n\n.. toctree::\n\n   1-first\n   2-second\n\n{body}")
    for page in ("1-first", "2-second"):
        equation = f".. math:: a\n   :label: eq-{page}"
        (pages / f"{page}.rst").write_text(f"{page}\n{'=' * 8}\n\n{equation}\n\nPart\n----\n\n:eq:`eq-{page}`\n")
    return folder


def build(folder):
    app = Sphinx(folder, folder, folder / "out", folder / "trees", "html", status=None, warning=None)
    app.build()
    return app


def test_a_page_has_the_number_of_its_name(tmp_path):
    app = build(book(tmp_path))
    numbers = {name.split("/")[-1]: found[""] for name, found in app.env.toc_secnumbers.items() if "pages" in name}
    assert numbers == {"0-overview": (1,), "1-first": (1, 1), "2-second": (1, 2)}
    html = (tmp_path / "out" / "book" / "pages" / "one" / "2-second.html").read_text()
    assert "1.2. </span>2-second" in html and "(1.2)" in html
    assert "</span>Part" not in html  # sections carry none


def test_nothing_changed_means_nothing_written(tmp_path):
    build(book(tmp_path))
    page = tmp_path / "out" / "book" / "pages" / "one" / "2-second.html"
    before = page.stat().st_mtime_ns
    build(tmp_path)
    assert page.stat().st_mtime_ns == before
    html = page.read_text()
    assert "1.2. </span>2-second" in html


def test_pages_that_move_are_rewritten(tmp_path):
    build(book(tmp_path))
    (tmp_path / "index.rst").write_text("Book\n====\n\n.. toctree::\n   :numbered: 2\n\n   zero\n   book/pages/one/0-overview\n")
    (tmp_path / "zero.rst").write_text("Zero\n====\n")
    build(tmp_path)
    assert "2.1. </span>1-first" in (tmp_path / "out" / "book" / "pages" / "one" / "1-first.html").read_text()
