"""Closures and hashes: every import counts, meaning counts, layout does not."""

import importlib

import pytest

from paperbook.study import closure as c


def test_imports_of_a_notebook_are_seen():
    code = (
        "%matplotlib inline\n!ls\nimport numpy as np\n"
        "from paperbook.study import params\nfrom paperbook.study.claims import load_claims\n"
    )
    found = c.imported_by_source(code)
    assert {"numpy", "paperbook.study.params", "paperbook.study.claims"} <= set(found)


def test_closure_is_transitive_and_has_every_ancestor():
    internal, external = c.closure(["paperbook.study.claims", "seaborn"])
    assert {"paperbook", "paperbook.study", "paperbook.study.results", "paperbook.study.seeds"} <= set(internal)
    assert {"numpy", "pydantic", "seaborn"} <= set(external) and "json" not in external


def test_the_press_is_in_no_page():
    internal, _ = c.closure(["paperbook.study.claims", "paperbook.study.results", "paperbook.figures.style"])
    assert not [name for name in internal if ".press" in name or ".cli" in name]


@pytest.fixture
def module(tmp_path, monkeypatch):
    path = tmp_path / "m.py"
    monkeypatch.setattr(c, "_module_file", lambda name: path)

    def hashed(text):
        path.write_text(text)
        c._file_hash.cache_clear()
        return c.module_hash("m")

    return hashed


def test_comments_docstrings_and_layout_do_not_count(module):
    plain = "x = 1\ndef f():\n    return x\n"
    assert module(plain) == module('"""Doc."""\nx = 1  # why\n\ndef f():\n    """D."""\n    return (x)\n')


@pytest.mark.parametrize(
    "changed", ["x = 2\n", "y = 1\n", "x = 1.0\n", "x = -1\n", "x = '1'\n", "x = 1\ny = 'a docstring no more'\n"]
)
def test_meaning_counts(module, changed):
    assert module("x = 1\n") != module(changed)


def test_a_module_that_is_not_there():
    with pytest.raises(FileNotFoundError, match=r"no module 'paperbook\.nope'"):
        c.module_hash("paperbook.nope")


@pytest.mark.parametrize("name", ["paperbook.study", "paperbook.papers", "paperbook.kits", "paperbook.data", "paperbook.figures"])
def test_packages_import_nothing_themselves(name):
    assert importlib.import_module(name).__file__.endswith("__init__.py")
    assert c.closure([name])[0] == sorted({"paperbook", name})
