"""The built book, served on loopback, and a browser to read it with."""

import functools
import http.server
import os
import shutil
import threading
from pathlib import Path

import pytest

HTML = Path(__file__).resolve().parents[2] / "_build" / "html"
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session")
def html():
    """Folder of the built book."""
    if not (HTML / "index.html").is_file():
        pytest.fail("there is no built book under _build/html; run `make pages` (or `make book`)")
    return HTML


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Say nothing: the log of a test run is for failures."""


@pytest.fixture(scope="session")
def site(html):
    """Address of the served book."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(html)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture(scope="session")
def browser():
    """Debian's chromium; under CI its absence is a failure, elsewhere the tests are skipped with the line that mends it."""
    executable = shutil.which("chromium")
    if executable is None:
        message = "chromium is missing; on Debian: apt-get install chromium"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield browser
        browser.close()
