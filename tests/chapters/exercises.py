"""Exercises of the chapters: find stub and solution in the page's source, run them, hand out what they define.

Stub and solution are blocks of the page that open with a marker comment: ``# exercise: <id> (stub)`` in a plain ``python``
block, which the page shows and never runs, and ``# exercise: <id> (solution)`` in an executed code cell. What a reader sees is
what is tested.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pytest

from paperbook.study import paths

_BLOCK = re.compile(r"^(`{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^\1[ \t]*$", re.M | re.S)


def source(slug: str, page: str, exercise: str, part: Literal["stub", "solution"]) -> str:
    """The code of one part of an exercise; AssertionError unless the page has it exactly once, in the right kind of block."""
    text = (paths.chapter(slug) / f"{page}.md").read_text(encoding="utf-8")
    marker = f"# exercise: {exercise} ({part})"
    found = [match for match in _BLOCK.finditer(text) if marker in match["body"].splitlines()]
    assert len(found) == 1, f"{slug}/{page}: expected one block with the line {marker!r}, found {len(found)}"
    executed = found[0]["info"].strip().startswith("{code-cell}")
    assert executed == (part == "solution"), f"{slug}/{page}: {marker}: a stub is shown, a solution is an executed cell"
    body = re.sub(r"\A(?:---\n.*?\n---\n|(?::[\w-]+:[^\n]*\n)+)", "", found[0]["body"], flags=re.S)     # cell options
    return body.strip() + "\n"


def run(slug: str, page: str, exercise: str, part: Literal["stub", "solution"]) -> tuple[dict[str, Any], str]:
    """Execute one part in a fresh namespace; returns it with what was printed. Nothing of the page but the part itself is run."""
    code = compile(source(slug, page, exercise, part), f"{slug}/{page}:{exercise} ({part})", "exec")
    space: dict[str, Any] = {"__name__": "exercise"}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, space)
    return space, printed.getvalue()


Checks = Mapping[str, tuple[str, Callable[[Any], None]]]
"""Exercise -> the name that its code defines, and the check of what stands behind that name."""


def assert_solution_passes(place: tuple[str, str], checks: Checks, exercise: str) -> None:
    """The solution prints the line that the page shows and passes its check."""
    name, check = checks[exercise]
    space, printed = run(*place, exercise, "solution")
    assert printed == "True\n"
    check(space[name])


def assert_stub_fails(place: tuple[str, str], checks: Checks, exercise: str) -> None:
    """The stub, which is not implemented or wrong on purpose, fails the check of the solution."""
    name, check = checks[exercise]
    space, _ = run(*place, exercise, "stub")
    with pytest.raises((NotImplementedError, AssertionError)):
        check(space[name])
