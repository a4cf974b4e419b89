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


def _recorded_claim(document: dict) -> None:
    document["metadata"]["paperbook"]["claims"][0]["value"] = 0.5


def _printed(document: dict) -> None:
    (output,) = next(cell["outputs"] for cell in document["cells"] if cell.get("outputs"))
    output["text"] = ["mean-is-stationary: holds (0.5, bound ≤ 1e-12)\n"]


def _glued(document: dict) -> None:
    (cell,) = (cell for cell in document["cells"] if "finish" in "".join(cell["source"]))
    (output,) = cell["outputs"]
    output["data"]["application/papermill.record/text/plain"] = ["0.5"]


def _source(document: dict) -> None:
    (cell,) = (cell for cell in document["cells"] if "finish" in "".join(cell["source"]))
    cell["source"] = [*cell["source"][:-1], cell["source"][-1] + "  # edited"]


def _text(document: dict) -> None:
    cell = document["cells"][0]
    cell["source"] = ["# Another title\n", *cell["source"][1:]]


def _one_cell_less(document: dict) -> None:
    document["cells"].pop()


def test_what_is_edited_by_hand_in_an_executed_page_stales_it(here) -> None:
    with here.source("1-method").open("a") as stream:
        stream.write("\n+++\n\nThe end.\n")
    glued = 'from paperbook.study.show import glue\nglue("mean", ours)\n'
    here.edit(here.source("1-method"), "path = run.finish(", glued + "path = run.finish(")
    here.paperbook("execute", "demo-one/1-method")
    page, before = here.page("1-method"), here.page("1-method").read_text()
    assert stamp.edited_by_hand(json.loads(before)) == []
    outputs, cells = "outputs changed by hand", "cells of the executed page changed by hand"
    for change, reasons in ((_recorded_claim, [outputs]), (_printed, [outputs]), (_glued, [outputs]), (_source, [cells]),
                            (_text, [cells]), (_one_cell_less, [cells, outputs])):  # fmt: skip
        document = json.loads(before)
        change(document)
        assert stamp.edited_by_hand(document) == reasons, change.__name__
    # an editor that saves lines as one string, or other indentation, changes nothing
    document = json.loads(before)
    for cell in document["cells"]:
        cell["source"] = "".join(cell["source"])
    page.write_text(json.dumps(document))
    assert here.states()["1-method"] == "fresh"
    # the next execution repairs what was edited
    _printed(document)
    page.write_text(json.dumps(document))
    assert here.states()["1-method"] == f"stale {outputs}"
    here.paperbook("execute")
    assert page.read_text() == before


def test_a_stamp_without_outputs_and_damaged_cells_are_stale(here) -> None:
    page = here.page("1-method")
    document = json.loads(page.read_text())
    del document["metadata"]["paperbook"]["stamp"]["outputs"]
    page.write_text(json.dumps(document))
    assert here.states()["1-method"] == "stale the stamp says nothing about outputs"
    document["cells"][0] = "text"
    page.write_text(json.dumps(document))
    assert here.states()["1-method"].startswith("stale the executed page is damaged (TypeError")


def test_of_yaml_and_json_only_the_content_counts(here) -> None:
    def hashed(name: str, text: str) -> str | None:
        (here.root / name).write_text(text)
        return stamp.file_hash(name)

    for name in ("a.yaml", "a.yml"):
        before = hashed(name, "a: 1\nb: [x, 2026-01-01]\n")
        assert hashed(name, "# why\na: 1\n\nb:\n  - x  # which\n  - 2026-01-01\n\n\n# the end\n") == before
        for other in ("a: 2\nb: [x, 2026-01-01]\n", 'a: 1\nb: [x, "2026-01-01"]\n', "b: [x, 2026-01-01]\na: 1\n", "a: [\n"):
            assert hashed(name, other) != before
        assert hashed(name, "a: [\n") != hashed(name, "a: [\n# unparsable: every byte counts\n")
        assert hashed(name, "a: &a [*a]\n") != hashed(name, "a: &a [*a]  # a loop is no plain data\n")
    before = hashed("a.json", '{"a": 1}')
    assert hashed("a.json", '{\n "a": 1\n}\n') == before and hashed("a.json", '{"a": 2}') != before
    assert hashed("a.json", "{") != hashed("a.json", "{\n")
    assert hashed("a.txt", "a: 1") != hashed("a.txt", "a: 1\n")
    assert stamp.file_hash("none.yaml") is None


def test_comments_in_claims_stale_nothing(here) -> None:
    claims = here.root / "chapters/demo-one/claims.yaml"
    claims.write_text("# first\n" + claims.read_text() + "\n\n# last\n\n")
    assert here.states()["1-method"] == "fresh"


def test_a_syntax_error_names_page_cell_and_line(here) -> None:
    here.edit(here.source("1-method"), "path = run.finish(", "%time\nx = = 1\npath = run.finish(")
    position = next(i for i, cell in enumerate(json.loads(here.page("1-method").read_text())["cells"])
                    if "run.finish(" in "".join(cell["source"]))  # fmt: skip
    expected = f"cell {position}, line 2: invalid syntax: 'x = = 1'"
    assert stamp.page_status("demo-one", "1-method").reasons == [f"source cannot be read: {expected}"]
    assert f"demo-one/1-method: {expected}" in here.paperbook("execute", code=1)


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
