"""A small book of its own for every test: a copy of the library with one scaffolded, executed chapter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from paperbook.study import paths

SLUG = "demo-one"


@dataclass
class Book:
    """A repository in a temporary folder; commands run in it use its own copy of the library."""

    root: Path

    def env(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("PAPERBOOK_")}
        scripts = str(Path(sys.executable).parent)
        return env | {"PYTHONPATH": str(self.root / "lib"), "PAPERBOOK_ROOT": str(self.root), "OMP_NUM_THREADS": "1",
                      "PATH": scripts + os.pathsep + env["PATH"]}  # fmt: skip

    def run(self, *command: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a command; `code` is the exit code it must have (None: any)."""
        done = subprocess.run(command, cwd=self.root, env=self.env(), capture_output=True, text=True, timeout=120, check=False)
        assert code is None or done.returncode == code, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def paperbook(self, *arguments: str, code: int | None = 0) -> str:
        """Run the command of this copy; both streams of its output."""
        done = self.run(sys.executable, "-m", "paperbook.cli", *arguments, code=code)
        return done.stdout + done.stderr

    def states(self) -> dict[str, str]:
        """Page -> "state reason" as `paperbook status` says."""
        found = {}
        for line in self.paperbook("status", code=None).splitlines():
            words = line.split(None, 2)
            if len(words) >= 2 and "/" in words[1]:
                found[words[1].split("/")[1]] = " ".join([words[0], *words[2:]])
        return found

    def source(self, page: str) -> Path:
        return self.root / "chapters" / SLUG / f"{page}.md"

    def page(self, page: str) -> Path:
        return self.root / "book" / "pages" / SLUG / f"{page}.ipynb"

    def with_mathjax(self) -> None:
        """Lend it MathJax, without which a book cannot be built."""
        (self.root / "vendor" / "mathjax").symlink_to(paths.root() / "vendor" / "mathjax")

    def edit(self, path: Path, old: str, new: str) -> None:
        text = path.read_text(encoding="utf-8")
        assert old in text, f"{path.name} holds no {old!r}"
        path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The executed book that `book` copies."""
    root, origin = tmp_path_factory.mktemp("template") / "repo", paths.root()

    def unwanted(folder: str, names: list[str]) -> set[str]:
        inside_papers = Path(folder).name == "papers"
        return {name for name in names if name == "__pycache__" or (inside_papers and name != "__init__.py")}

    shutil.copytree(origin / "lib" / "paperbook", root / "lib" / "paperbook", ignore=unwanted)
    for name in ("pyproject.toml", "constraints.txt", "_config.yml"):
        shutil.copy(origin / name, root / name)
    for name in ("_static", "_templates"):
        shutil.copytree(origin / "book" / name, root / "book" / name)
    for name in ("chapters", "tests", "vendor"):
        (root / name).mkdir()
    # what a chapter's tests share: the fixtures, and the harness of the rehearsals
    shutil.copy(origin / "tests" / "conftest.py", root / "tests" / "conftest.py")
    shutil.copytree(origin / "tests" / "rehearsal", root / "tests" / "rehearsal", ignore=unwanted)
    (root / "book" / "references.bib").write_text("")
    (root / "book" / "intro.md").write_text("# A small book\n\n```{chapter-table}\n```\n")
    (root / "book" / "ledger.md").write_text("# Ledger\n\n```{ledger}\n```\n\n```{cost-table}\n```\n")
    (root / "_toc.yml").write_text(
        "format: jb-book\nroot: book/intro\nparts:\n  - caption: Chapters\n    chapters:\n"
        "  - caption: The whole\n    chapters:\n      - file: book/ledger\n"
    )
    made = Book(root)
    made.paperbook("new", SLUG)
    made.paperbook("execute")
    return root


@pytest.fixture
def book(template: Path, tmp_path: Path) -> Book:
    shutil.copytree(template, tmp_path / "repo")
    return Book(tmp_path / "repo")


@pytest.fixture
def here(book: Book, monkeypatch: pytest.MonkeyPatch) -> Book:
    """The same book, seen by the library of this process."""
    monkeypatch.setenv("PAPERBOOK_ROOT", str(book.root))
    monkeypatch.delenv("PAPERBOOK_RECORD", raising=False)
    return book
