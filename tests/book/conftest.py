"""The built book, served on loopback, and a browser to read it with."""

import functools
import gzip
import http.server
import shutil
import threading
from pathlib import Path

import pytest
from browse import FLAGS, pages, scroll_through, without
from bs4 import BeautifulSoup

HTML = Path(__file__).resolve().parents[2] / "_build" / "html"


@pytest.fixture(scope="session")
def html():
    """Folder of the built book."""
    if not (HTML / "index.html").is_file():
        pytest.fail("there is no built book under _build/html; run `make pages` (or `make book`)")
    return HTML


class _Packed(http.server.SimpleHTTPRequestHandler):
    """Serves text gzipped, as a web server does, and says nothing: the log of a test run is for failures."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        """Say nothing."""

    def do_GET(self):
        """Send one file."""
        path = Path(self.translate_path(self.path))
        if path.is_dir():
            path /= "index.html"
        if not path.is_file():
            self.send_error(404)
            return
        data, kind = path.read_bytes(), self.guess_type(str(path))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if kind.startswith("text/") or "javascript" in kind or "json" in kind or "svg" in kind:
            data = gzip.compress(data, 6)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(scope="session")
def site(html):
    """Address of the served book."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Packed, directory=str(html)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture(scope="session")
def chromium():
    """Path of Debian's chromium."""
    return shutil.which("chromium") or without("chromium", "on Debian: apt-get install chromium")


@pytest.fixture(scope="session")
def browser(chromium):
    """A headless browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def reader(browser, site):
    """Opens pages: ``reader(name, width, scheme)`` is a page whose maths and images are there, scrolled through once."""
    contexts = []

    def opened(name, width=1280, scheme="light", height=900, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
        contexts.append(context)
        page = context.new_page()
        page.goto(f"{site}/{name}", wait_until="load")
        if options.get("java_script_enabled", True):
            scroll_through(page)
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def soups(html):
    """Parsed pages by path relative to the book."""
    read = {path.relative_to(html).as_posix(): path.read_text(encoding="utf-8") for path in pages(html)}
    return {name: BeautifulSoup(text, "html.parser") for name, text in read.items()}


@pytest.fixture(scope="session")
def chapters(soups):
    """Names of the chapters' pages."""
    return [name for name in soups if name.startswith("book/pages/")]


@pytest.fixture(scope="session")
def heaviest(soups, chapters):
    """The page with the most formulas."""
    return max(chapters, key=lambda name: len(soups[name].select("mjx-container")))
