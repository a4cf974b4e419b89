"""The page "Add a chapter", done literally and in order: what has a file name is written there, what is a command is run.

The book is the small one of the other tests. Two things differ from an author's clone: `make` is a shim, because the real one
installs an environment, and the page's last block (lint, build, notebooks) is checked here by its parts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paperbook.press import contract, toc

SLUG = "my-chapter"
REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "book" / "add-a-chapter.md").read_text(encoding="utf-8")
_FENCE = re.compile(r"^(?P<fence>`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.M | re.S)


@dataclass(frozen=True)
class Step:
    """One block of the page: commands (`file` empty), or text with the file and the place where it goes."""

    file: str
    place: str
    text: str


def steps(page: str) -> Iterator[Step]:
    """The blocks of the page that ask the author to do something, in order."""
    for found in _FENCE.finditer(page):
        info, body = found["info"].strip(), found["body"]
        if info == "bash":
            yield Step("", "", body)
        elif info.startswith("{code-block}"):
            caption, _, text = body.partition("\n\n")
            where = caption.removeprefix(":caption:").strip()
            if where.startswith('"'):
                where = where[1:-1].replace('\\"', '"')
            file, _, place = where.partition(", ")
            yield Step(file, place, text)


def apply(step: Step, root: Path) -> None:
    """Do what a block's caption says: the whole file, at its end, in place of one line, or in place of a section."""
    path = root / step.file
    there = path.read_text(encoding="utf-8") if path.is_file() else ""
    line = re.fullmatch(r"in place of `(.+)`", step.place)
    section = re.fullmatch(r"in place of the section `(## .+)`", step.place)
    if section:
        pattern = re.compile(rf"^{re.escape(section[1])}\n.*?(?=^## |\Z)", re.M | re.S)
        assert len(pattern.findall(there)) == 1, f"{step.file}: expected one section {section[1]}"
        text = pattern.sub(lambda _: step.text + "\n", there)
    elif line:
        assert there.splitlines().count(line[1]) == 1, f"{step.file}: expected one line {line[1]!r}"
        text = there.replace(line[1] + "\n", step.text, 1)
    elif step.place == "at the end":
        assert path.is_file(), f"{step.file}: nothing to append to"
        text = there + step.text
    else:
        assert not step.place, f"{step.file}: what is {step.place!r}?"
        text = step.text
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def clone(book: Any) -> Any:
    """The small book with what a chapter's tests and benchmarks share, committed, and a `make` that only says its target."""
    for name in ("chapters/test_contract.py", "chapters/exercises.py", "benchmarks/harness.py"):
        (book.root / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / "tests" / name, book.root / "tests" / name)
    # a citation resolves where there is a bibliography, as the real book has one
    (book.root / "book" / "bibliography.md").write_text("# Bibliography\n\n```{bibliography}\n```\n")
    last = "      - file: book/ledger\n"
    book.edit(book.root / "_toc.yml", last, f"{last}      - file: book/bibliography\n")
    (book.root / ".gitignore").write_text("runs/\n.cache/\n_build/\nbin/\n__pycache__/\n")
    shim = book.root / "bin" / "make"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\necho make $1\n")
    shim.chmod(0o755)
    for words in ("init -q", "config user.name x", "config user.email x@x", "add -A", "commit -qm x"):
        subprocess.run(["git", *words.split()], cwd=book.root, check=True)
    return book


def test_the_page_walks_to_a_chapter_that_keeps_the_contract(clone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPERBOOK_ROOT", str(clone.root))
    *before, last = steps(PAGE)
    assert "make book" in last.text, "the last block says how to see that one is done"
    first_look = ""
    for step in before:
        if step.file:
            apply(step, clone.root)
        else:
            looks = "test_contract" in step.text  # the first look at what is owed: it fails, and says why
            done = clone.run("bash", "-euc", f'export PATH="{clone.root}/bin:$PATH"\n{step.text}', code=1 if looks else 0)
            first_look = done.stdout if looks else first_look
    seven = {rule.__name__ for rule in contract.CONTENT}
    assert {rule for rule in seven if f"test_contract[{SLUG}-{rule}]" in first_look} == seven
    assert f"{len(seven)} failed" in first_look and "Seven rules fail" in PAGE
    shown = re.search(r"such as `(chapters/.+?)`", PAGE)
    assert shown and shown[1] in first_look

    clone.paperbook("execute", SLUG)
    assert contract.check(SLUG) == {}
    assert toc.sources(SLUG).keys() == {"0-overview", "1-method"}
    status = clone.paperbook("status", SLUG)
    assert "2 of 2 pages fresh" in status
    verdicts = re.findall(rf"^{SLUG} +\S+ +(holds weakly|holds|fails)", clone.paperbook("claims", SLUG), re.M)
    assert len(verdicts) == contract.CLAIMS and "fails" not in verdicts

    clone.run("ruff", "check", "lib/paperbook/papers/my_chapter", "tests")
    clone.run("nbqa", "ruff check --extend-ignore=E402,B018,I001", "chapters")
    clone.with_mathjax()
    clone.run("jupyter-book", "build", ".", "-W", "-n", "--keep-going", "-q")


def test_the_blocks_name_the_files_that_the_scaffold_wrote_or_that_a_chapter_adds() -> None:
    files = {step.file for step in steps(PAGE) if step.file}
    own = {name for name in files if SLUG in name or "my_chapter" in name}
    assert files - own == {"book/references.bib"}
    assert {f"tests/chapters/{SLUG}/test_exercises.py", f"tests/benchmarks/{SLUG}/bench.py"} <= own


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("in place of `gone`", "expected one line"),
        ("in place of the section `## Gone`", "expected one section"),
        ("somewhere", "what is"),
    ],
)
def test_a_block_that_fits_nowhere_is_an_error(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "a.md").write_text("## There\nline\n")
    with pytest.raises(AssertionError, match=message):
        apply(Step("a.md", place, "text\n"), tmp_path)
    with pytest.raises(AssertionError, match="nothing to append"):
        apply(Step("b.md", "at the end", "text\n"), tmp_path)


def test_every_rule_says_what_it_wants() -> None:
    from paperbook.press.site.rules import wanted

    texts = [wanted(rule) for rule in contract.RULES]
    assert all(text.endswith(".") and len(text) < 200 for text in texts) and len(set(texts)) == len(texts)
