"""What turns a page stale, and what does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paperbook.press import stamp


def test_only_what_a_page_imports_stales_it(book) -> None:
    assert book.states() == {"0-overview": "fresh", "1-method": "fresh"}
    method = book.root / "lib/paperbook/papers/demo_one/method.py"

    # no part of any stamp: comments, docstrings, the press, the command, pyproject's comments, another paper
    book.edit(method, "    values = np.asarray", "    # a comment\n    values = np.asarray")
    book.edit(method, '"""The method of', '"""Another docstring of')
    for name in ("press/execute.py", "press/stamp.py", "cli.py"):
        with (book.root / "lib/paperbook" / name).open("a") as stream:
            stream.write("\nUNUSED = 1\n")
    with (book.root / "pyproject.toml").open("a") as stream:
        stream.write("\n# a comment\n")
    other = book.root / "lib/paperbook/papers/other"
    other.mkdir()
    (other / "__init__.py").write_text("VALUE = 1\n")
    assert book.states() == {"0-overview": "fresh", "1-method": "fresh"}

    book.edit(method, "values.size == 0", "values.size == 1")
    states = book.states()
    assert states["0-overview"] == "fresh"
    assert states["1-method"] == "stale modules changed: paperbook.papers.demo_one.method"


def test_a_shared_module_stales_every_page_that_imports_it_indirectly(book) -> None:
    # 1-method does not name statistics; claims.py does
    with (book.root / "lib/paperbook/study/statistics.py").open("a") as stream:
        stream.write("\nNEW_CONSTANT = 1\n")
    assert book.states() == {"0-overview": "fresh", "1-method": "stale modules changed: paperbook.study.statistics"}


def test_a_package_on_the_way_counts(book) -> None:
    with (book.root / "lib/paperbook/papers/__init__.py").open("a") as stream:
        stream.write("\nNEW_CONSTANT = 1\n")
    assert book.states()["1-method"] == "stale modules changed: paperbook.papers"


def test_versions_files_and_cells(book) -> None:
    lock = book.root / "constraints.txt"
    before = lock.read_text()
    numpy = next(line for line in before.splitlines() if line.startswith("numpy=="))
    lock.write_text(before.replace(numpy, "numpy==0.0.1"))
    assert book.states() == {"0-overview": "fresh", "1-method": "stale versions changed: numpy"}
    # a distribution that no module of the page imports directly
    lock.write_text(before.replace("sphinx==", "sphinx==9."))
    assert book.states()["1-method"] == "fresh"
    lock.write_text(before)

    claims = book.root / "chapters/demo-one/claims.yaml"
    book.edit(claims, "1.0e-12", "1.0e-11")
    assert book.states()["1-method"] == "stale files changed: chapters/demo-one/claims.yaml"
    book.edit(claims, "1.0e-11", "1.0e-12")

    book.edit(book.source("0-overview"), "One paragraph", "Two paragraphs")
    book.edit(book.source("1-method"), "[nbval-check-output]", "[nbval-check-output, other]")
    assert book.states() == {"0-overview": "stale cells changed", "1-method": "stale cells changed"}


def test_missing_orphan_and_exit_code(book) -> None:
    book.paperbook("status", code=0)
    book.page("0-overview").unlink()
    book.page("1-method").rename(book.page("9-gone"))
    text = book.paperbook("status", code=1)
    assert "missing" in text and "orphan" in text and "0 of 3 pages fresh" in text
    assert "did you mean demo-one" in book.paperbook("status", "demo-on", code=2)


def test_a_result_that_appears_or_changes_stales_the_page_that_asked_for_it(here) -> None:
    page, name = here.page("0-overview"), "chapters/demo-one/results/1-method.reader.json"
    stored = json.loads(page.read_text())
    stored["metadata"]["paperbook"]["stamp"]["files"] = {name: None}  # as recorded when the file was missing
    page.write_text(json.dumps(stored))
    now = {part: stored["metadata"]["paperbook"]["stamp"][part] for part in ("cells", "modules", "locks")}
    assert stamp.differences(stamp.stored_metadata(page)["stamp"], now) == []
    result = here.root / name
    result.parent.mkdir()
    result.write_text("{}")
    assert stamp.differences(stamp.stored_metadata(page)["stamp"], now) == [f"files changed: {name}"]


def test_a_damaged_page_is_stale_not_a_crash(book) -> None:
    book.page("1-method").write_text("{")
    book.source("0-overview").write_text("# no header\n")
    states = book.states()
    assert states["1-method"].startswith("stale the executed page carries no stamp")
    assert states["0-overview"].startswith("stale source cannot be read")


@pytest.mark.parametrize("content", ["", "[]", "null"])
def test_stored_metadata_of_nonsense_is_empty(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.ipynb"
    path.write_text(content)
    assert stamp.stored_metadata(path) == {}
