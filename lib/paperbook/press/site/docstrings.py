"""Docstrings are written for `help()`: plain text with ASCII mathematics. This makes them reStructuredText that says the same.

Stars, bars and underscores of formulas are escaped, names in single backticks become links where the book documents them,
and lists and indented formulas get the blank lines that the markup wants. It runs after napoleon, which has turned
``Args:`` and its kin into field lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

ROLE = "pb-name"
"""Role of a name in single backticks: a link where the book documents that name, plain code elsewhere."""
STRICT = "pb-ref"
"""Role of a name that the author marked as a reference: a warning where nothing of that name is documented."""

_FIELD = re.compile(r":(?=\w)(?:[^:`\\]|\\.)+:(?=\s|$)")
_ITEM = re.compile(r"(\(\w\)|[-*]|\d+\.)\s+(?=\S)")
_KEY = re.compile(r"([a-z][\w ,]*):\s+(.*)")
_SPAN = re.compile(
    r"(?P<kept>\\.|``.+?``|(?<!\S)\*(?=[^\s*])[^*\n]*[^\s*]\*(?=[\s.,;:)]|$))"
    r"|:(?:py:)?(?P<role>func|class|meth|data|mod|attr|exc|obj):`(?P<marked>[^`]+)`"
    r"|(?P<other>:[\w:-]+:`[^`]+`)"
    r"|`(?P<name>[^`]+)`_?_?"
    r"|(?P<value>(?<![\w\"])\"[\w.+-]+\"(?![\w\"]))"
    r"|(?P<special>[*|`]|_(?![A-Za-z0-9])|--+)",
    re.S,
)


def repaired(lines: list[str]) -> list[str]:
    """`lines` of a docstring, as napoleon left them, as reStructuredText that parses without a warning."""
    found: list[str] = []
    in_field = False
    for block in _blocks(lines):
        first = block[0]
        if first == "::":  # what follows is an example
            found += [".. code-block:: python", ""]
        elif found[-2:] == [".. code-block:: python", ""] and first.startswith(" "):
            found += [*block, ""]
        elif first.startswith(".. "):
            in_field = False
            found += [*block, ""]
        elif _FIELD.match(first):
            in_field = True
            # one list of fields, not one list a paragraph
            if found and not found[-1] and len(found) > 1 and _FIELD.match(_last_start(found)):
                found.pop()
            found += [*_inline(_fields(block)), ""]
        elif first.startswith(" ") and (in_field or not found):
            found += [*_inline(block), ""]
        elif first.startswith(" "):  # an indented formula
            found += [".. code-block:: text", "   :class: pb-formula", "", *(f"   {line.strip()}" for line in block), ""]
        else:
            in_field = False
            found += [*_prose(block), ""]
    return found


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs; a field list below a paragraph is a block of its own, a directive keeps what is indented below it."""
    block: list[str] = []
    for line in [*lines, ""]:
        starts_fields = bool(block) and bool(_FIELD.match(line)) and not _FIELD.match(block[0])
        if not line.strip() or starts_fields:
            if block:
                yield block
            block = []
        if line.strip():
            block.append(line.rstrip())


def _last_start(found: list[str]) -> str:
    return next((line for line in reversed(found) if line and not line.startswith(" ")), "")


def _fields(block: list[str]) -> list[str]:
    """Fields as Sphinx reads them.

    Napoleon takes what stands before a colon in ``Returns:`` for a type; ours are sentences. Sphinx takes what stands before
    a space in ``:param a, b:`` for a type; ours are several names (`Api` sets the space again).
    """
    text = "\n".join(block)
    match = re.search(r"^:rtype: (.*)$", text, re.M)
    if match:
        text = text.replace(match[0], "").strip("\n")
        text = re.sub(r"^:returns: ?", lambda found: f"{found[0].rstrip()} {match[1]}: ", text, flags=re.M)
    text = re.sub(r"^:(param|ivar) [^:\n]+:", lambda found: found[0].replace(", ", ","), text, flags=re.M)
    return [line for line in text.split("\n") if line.strip()]


def _prose(block: list[str]) -> list[str]:
    indented = [line for line in block[1:] if line.startswith(" ")]
    if any(_ITEM.match(line) for line in block):
        return _items(block)
    if indented and _KEY.match(indented[0].strip()) and not block[0].endswith((".", ",")) and len(indented) == len(block) - 1:
        return [*_inline([block[0].rstrip(":") + ":"]), "", *_keys(indented)]
    return _inline([line.strip() for line in block])


def _items(block: list[str]) -> list[str]:
    """A paragraph with items in it, as a paragraph and a list."""
    found: list[str] = []
    part: list[str] = []
    mark = ""

    def close() -> None:
        if part:
            text = _inline(part)
            found.extend([f"{mark}{text[0]}", *(" " * len(mark) + line for line in text[1:]), ""])

    for line in block:
        match = _ITEM.match(line)
        if match:
            close()
            part, mark = [line[match.end() :]], match[1] + " "
        elif line.startswith(" ") or not mark:
            part.append(line.strip())
        else:  # text again, below the list
            close()
            part, mark = [line], ""
    close()
    return found


def _keys(lines: list[str]) -> list[str]:
    """``key: text`` lines as a list; a line without a key goes on with the one before, however it is indented."""
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    found: list[list[str]] = []
    for line in lines:
        match = _KEY.match(line.strip())
        if match and len(line) - len(line.lstrip()) == margin:
            found.append([f"*{match[1]}*: {match[2]}"])
        else:
            found[-1].append(line.strip())
    return [row for part in found for row in (f"- {_inline([' '.join(part)])[0]}", "")]


def _inline(lines: list[str]) -> list[str]:
    """Inline markup of lines that belong together (a span may run over the end of a line)."""
    heads = []
    bodies = []
    for line in lines:
        stripped = line.lstrip()
        match = _FIELD.match(stripped)
        cut = len(line) - len(stripped) + (match.end() if match else 0)
        heads.append(line[:cut])
        bodies.append(line[cut:])
    # what stands in front of a line is cut off before spans are looked for, and put back where the line starts
    marked = _SPAN.sub(_span, "\n".join(bodies)).split("\n")
    return [head + body for head, body in zip(heads, marked, strict=True)]


def _span(match: re.Match[str]) -> str:
    text = match[0]
    lines = "\n" * text.count("\n")  # as many lines as before
    if match["kept"] or match["other"]:
        return text
    if match["special"]:
        return "".join("\\" + character for character in text)
    if match["value"]:  # a text that is passed or returned; typographic quotes would make it another one
        return _code(match, f"``{text}``")
    if match["marked"]:
        title = " ".join(match["marked"].split())
        if not re.fullmatch(r"~?[\w.]+(\(\))?", title):
            return text
        # attributes stand among the arguments of their class and have no place of their own
        return f"{lines}:{ROLE if match['role'] == 'attr' else STRICT}:`{title}`"
    name = " ".join(match["name"].split())
    known = re.fullmatch(r"[A-Za-z_][\w.]*(\(\))?", name)
    return lines + _code(match, f":{ROLE}:`{name}`" if known else f"``{name}``")


def _code(match: re.Match[str], marked: str) -> str:
    """Markup must not touch a letter: an escaped space, which is not shown, stands between."""
    before, after = match.string[max(0, match.start() - 1) : match.start()], match.string[match.end() : match.end() + 1]
    apart = ["\\ " if side and (side.isalnum() or side in "^_*|()[]=") else "" for side in (before, after)]
    return f"{apart[0]}{marked}{apart[1]}"


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Autodoc's event: repair `lines` in place."""
    if name.split(".")[0] != "paperbook":
        return
    kinds = [line for line in lines if line.startswith(":type: ")]
    if what in ("property", "attribute", "data") and kinds and lines:
        # napoleon takes what stands before a colon for a type; ours are sentences
        lines.remove(kinds[0])
        lines[0] = f"{kinds[0].removeprefix(':type: ')}: {lines[0]}"
    lines[:] = repaired(lines)


def setup(app: Any) -> None:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", process, priority=600)  # after napoleon
