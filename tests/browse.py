"""What the page tests share: how the browser starts, which files are pages, and reading one to its end."""

import os

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


def without(tool, mend):
    """Under CI a missing tool is a failure, elsewhere the tests are skipped with the line that mends it."""
    message = f"{tool} is missing; {mend}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def scroll_through(page):
    """To the end and back, as a reader would: what waits until it is near comes."""
    page.evaluate(
        """async () => {
             const step = innerHeight * 0.8;
             for (let y = 0; y < document.documentElement.scrollHeight; y += step) {
               scrollTo({top: y, behavior: "instant"});
               await new Promise(done => requestAnimationFrame(() => setTimeout(done, 10)));
             }
             await document.fonts.ready;
             scrollTo({top: 0, behavior: "instant"});
           }"""
    )


def pages(html):
    """Every page of the book (not the search page and the generated index, which hold no text of ours)."""
    kept = [path for path in sorted(html.rglob("*.html")) if path.name not in ("search.html", "genindex.html")]
    return [path for path in kept if "_static" not in path.parts]
