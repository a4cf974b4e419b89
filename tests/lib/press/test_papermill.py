"""Stock papermill on the text sources."""

from __future__ import annotations

import json

import pytest

from paperbook.press.papermill_io import chapter_handler
from paperbook.press.toc import read_source

PAGE = "chapters/demo-one/1-method.md"


@pytest.mark.parametrize("prefix", ["", "./", "{root}/"])
def test_papermill_runs_a_source_with_a_parameter(book, prefix: str) -> None:
    source = prefix.format(root=book.root) + PAGE
    options = ["--no-progress-bar"] if prefix == "" else ["--no-progress-bar", "--prepare-only"]
    done = book.run("papermill", source, "x.ipynb", "-p", "seed", "1", *options)
    assert "does not end in one of" not in done.stderr
    nb = json.loads((book.root / "x.ipynb").read_text())
    assert any("injected-parameters" in cell["metadata"].get("tags", []) for cell in nb["cells"])
    if prefix == "":
        assert any(run.name.endswith("-s1") for run in (book.root / "runs/demo-one/1-method").iterdir())


def test_papermill_refuses_a_misspelt_parameter_with_the_nearest_name(book) -> None:
    done = book.run("papermill", PAGE, "x.ipynb", "-p", "sead", "1", "--no-progress-bar", code=1)
    assert "sead: no such parameter; did you mean seed?" in done.stderr
    assert not any(run.name.endswith("-s1") for run in (book.root / "runs/demo-one/1-method").iterdir())


def test_a_source_is_never_written(tmp_path) -> None:
    with pytest.raises(ValueError, match="expected a path ending in .ipynb"):
        chapter_handler.write("{}", str(tmp_path / "x.md"))


def test_a_source_without_the_notebook_header_is_refused(tmp_path) -> None:
    path = tmp_path / "1-x.md"
    path.write_text("---\nkernelspec: {display_name: Python 3, name: python3}\n---\n\n```{code-cell}\n1\n```\n")
    with pytest.raises(ValueError, match="text_representation"):
        chapter_handler.read(str(path))
    with pytest.raises(FileNotFoundError):
        read_source(tmp_path / "2-y.md")
