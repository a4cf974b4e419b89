"""A scaffolded chapter builds and passes everything but the contract's content rules."""

from __future__ import annotations

import re

import pytest
import yaml

from paperbook.press import contract, scaffold, toc
from paperbook.study.claims import Claim


def test_the_new_chapter_keeps_the_structure_rules_and_breaks_every_content_rule(here) -> None:
    assert contract.check("demo-one", contract.STRUCTURE) == {}
    broken = contract.check("demo-one", contract.CONTENT)
    assert set(broken) == {rule.__name__ for rule in contract.CONTENT}
    for messages in broken.values():
        assert all(re.search(r"write|run|commit|name", message) for message in messages)


def test_its_own_tests_lint_and_notebook_regression_pass(book) -> None:
    book.run("pytest", "-q", "--nbval-lax", "--nbval-current-env", "-p", "no:cacheprovider", "-p", "no:xdist",
             "tests/chapters", "book/pages")  # fmt: skip
    book.run("ruff", "check", "lib/paperbook/papers/demo_one", "tests")
    # what a cell may do and a module may not: import where it is used, end with an expression
    book.run("nbqa", "ruff check --extend-ignore=E402,B018,I001", "chapters")


def test_the_book_builds_without_a_warning_and_computes_its_tables(book) -> None:
    row = '  - {item: X, page: 1-method, anchor: LABEL, symbol: demo_one.method.sample_mean, test: "t::test_x"}\n'
    rows = "".join(row.replace("LABEL", label) for label in ("demo-one-mean", "eq-demo-one-mean"))
    book.edit(book.root / "chapters/demo-one/index.yaml", "index: []\n", "index:\n" + rows)
    book.with_mathjax()
    book.run("jupyter-book", "build", ".", "-W", "-n", "--keep-going", "-q")
    method = (book.root / "_build/html/book/pages/demo-one/1-method.html").read_text()
    page = (book.root / "_build/html/book/pages/demo-one/0-overview.html").read_text()
    ledger = (book.root / "_build/html/book/ledger.html").read_text()
    intro = (book.root / "_build/html/book/intro.html").read_text()
    assert "1 claim: 1 holds." in page and 'class="pb-verdict pb-verdict-holds"' in page
    assert re.search(r"Cost: smoke [\d.]+ s, \d+ MB \(measured, one CPU thread\)", page)
    assert "papermill chapters/demo-one/1-method.md" in re.sub(r"<[^>]+>", "", page)
    assert 'href="pages/demo-one/1-method.html"' in ledger and "bound ≤ 1e-12" in ledger
    assert re.search(r'<div aria-label="[^"]+" class="pb-scroll"[^>]* tabindex="0"', ledger)
    assert "Demo one" in intro and "thebe" not in intro.lower()

    # rows of the index lead to a target and to an equation that exist
    for label in ("demo-one-mean", "equation-eq-demo-one-mean"):
        assert f'href="1-method.html#{label}"' in page and f'id="{label}"' in method

    # a table follows its data although the page that holds it has not changed
    path = book.root / "chapters/demo-one/claims.yaml"
    book.edit(path, "The sample mean is a stationary point", "The mean is a stationary point")
    book.run("jupyter-book", "build", ".", "-W", "-n", "--keep-going", "-q")
    assert "The mean is a stationary point" in (book.root / "_build/html/book/ledger.html").read_text()


@pytest.mark.parametrize("slug", ["", "A", "a b", "1a", "a-", "a--b", "../a", "a/b", "x" * 41, "a_b"])
def test_a_bad_slug_is_refused(here, slug: str) -> None:
    before = sorted(here.root.rglob("*"))
    with pytest.raises(ValueError, match="slug: expected"):
        scaffold.new(slug)
    assert sorted(here.root.rglob("*")) == before


@pytest.mark.parametrize("slug", ["class", "import", "async", "not"])
def test_a_word_of_python_is_refused(here, slug: str) -> None:
    before = sorted(here.root.rglob("*"))
    with pytest.raises(ValueError, match=f"slug: '{slug}' is a word of Python.*{slug}-paper"):
        scaffold.new(slug)
    assert sorted(here.root.rglob("*")) == before


def test_a_word_of_python_within_a_slug_is_fine(here) -> None:
    # soft keywords name modules without harm
    assert scaffold.new("class-imbalance") and scaffold.new("match")


def test_an_existing_chapter_is_refused_and_untouched(here) -> None:
    before = here.source("0-overview").read_text()
    with pytest.raises(FileExistsError, match="already there"):
        scaffold.new("demo-one")
    assert here.source("0-overview").read_text() == before
    assert "already there" in here.paperbook("new", "demo-one", code=2)


def test_a_second_chapter_follows_the_first_and_comments_stay(here) -> None:
    table = here.root / "_toc.yml"
    table.write_text("# about the book\n" + table.read_text())
    scaffold.new("second")
    assert toc.toc_pages() == {"demo-one": ["0-overview", "1-method"], "second": ["0-overview", "1-method"]}
    assert toc.toc_files()[-1] == "book/ledger" and table.read_text().startswith("# about the book")


def test_without_a_part_for_chapters_nothing_is_written(here) -> None:
    (here.root / "_toc.yml").write_text("format: jb-book\nroot: book/intro\n")
    with pytest.raises(ValueError, match="caption: Chapters"):
        scaffold.new("second")
    assert not (here.root / "chapters/second").exists()


def test_a_book_with_a_part_for_the_library_gets_a_page_of_the_package(here) -> None:
    table = here.root / "_toc.yml"
    part = "  - caption: The library\n    chapters:\n      - file: book/api/index\n        sections:\n"
    pages = "".join(f"          - file: book/api/{name}\n" for name in ("figures", "demo-one", "press"))
    table.write_text(table.read_text() + part + pages)
    assert here.root / "book/api/second.md" in scaffold.new("second")
    assert toc.toc_files()[-4:] == ["book/api/figures", "book/api/demo-one", "book/api/second", "book/api/press"]
    assert toc.toc_pages()["second"] == ["0-overview", "1-method"]
    text = (here.root / "book/api/second.md").read_text()
    assert text.startswith("# second: ") and "```{api} paperbook.papers.second\n```" in text
    assert "/book/pages/second/0-overview" in text


def test_a_page_of_the_library_follows_what_is_there(here) -> None:
    table = here.root / "_toc.yml"
    before = table.read_text()
    table.write_text(before + "  - caption: The library\n    chapters:\n      - file: book/api/index\n")
    scaffold.new("second")
    assert toc.toc_files()[-2:] == ["book/api/index", "book/api/second"]
    table.write_text(before + "  - caption: The library\n    chapters:\n")
    scaffold.new("third")
    assert toc.toc_files()[-1] == "book/api/third"


def test_a_book_without_that_part_gets_no_page_of_the_library(here) -> None:
    scaffold.new("second")
    assert not (here.root / "book/api").exists()


def test_the_command_names_the_next_steps(here) -> None:
    said = here.paperbook("new", "second").rstrip().splitlines()
    assert "  paperbook execute second" in said and "  pytest tests/chapters/test_contract.py -k second" in said
    assert "book/add-a-chapter.md" in said[-1]


@pytest.mark.parametrize("name", ["claims", "index"])
def test_the_samples_in_the_comments_are_rows_that_count(here, name: str) -> None:
    """What a comment shows must be what the schema and the rules read."""
    path = here.root / f"chapters/demo-one/{name}.yaml"
    lines = [line[1:] for line in path.read_text().splitlines() if re.match(r"#   ( *\w+:|- )", line)]
    rows = yaml.safe_load("\n".join(line for line in lines if not re.match(r"   \w+:", line)))
    if name == "claims":
        assert [Claim.model_validate(row).id for row in rows] == ["error-falls"]
        return
    assert [set(row) for row in rows] == [
        {"item", "page", "anchor", "symbol", "test"},
        {"place", "choice", "alternative", "page", "key", "unit"},
        {"id", "page", "kind", "solution_test", "stub_test"},
    ]
    path.write_text(path.read_text().replace("index: []", yaml.safe_dump({"index": rows[:1]})))
    assert contract.index_resolves("demo-one") == []
