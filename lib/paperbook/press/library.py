"""What the library offers, read from its sources: public modules and names, and where the book uses them.

Nothing is imported here: sources are parsed, so a module that needs a GPU or an extra is listed like any other. A name is
public when it has no leading underscore and is defined in its module (not imported into it).
"""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from paperbook.press import stamp, toc
from paperbook.study import paths

PACKAGE = "paperbook"


@dataclass(frozen=True)
class Name:
    """A public name of a module.

    Attributes:
        name: as written.
        kind: ``"function"``, ``"class"`` or ``"data"``.
        node: its definition.
        note: of data: the text that describes it (docstring below it, or comment beside or above it); empty where none does.
        value: of data: the value as the source writes it.
    """

    name: str
    kind: str
    node: ast.AST
    note: str = ""
    value: str = ""


@dataclass(frozen=True)
class Place:
    """A row of a chapter's index.yaml: where in the book a symbol is derived or used."""

    slug: str
    page: str
    anchor: str
    item: str


def folder() -> Path:
    """The folder of the package itself."""
    return Path(__file__).resolve().parents[1]


def source(module: str) -> Path:
    """The file of one module.

    Raises:
        ValueError: when the library has no such module.
    """
    base = folder().joinpath(*module.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if module.split(".")[0] == PACKAGE and path.is_file():
            return path
    raise ValueError(f"package: expected a package or module of {PACKAGE}, got {module!r}")


def modules(package: str) -> list[str]:
    """Public modules of `package` that define a public name, sorted; packages below it included.

    Raises:
        ValueError: when the library has no such package.
    """
    start = source(package)
    if start.name != "__init__.py":
        return [package] if names(package) else []
    found = []
    for path in start.parent.rglob("*.py"):
        parts = path.relative_to(start.parent).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        module = ".".join((package, *parts))
        if not any(part.startswith("_") for part in parts) and names(module):
            found.append(module)
    return sorted(found)


def names(module: str) -> list[Name]:
    """Public names of one module, in the order of its source."""
    path = source(module)
    return _names(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def tree(path: Path, mtime: int) -> ast.Module:
    """The syntax of a source file; `mtime`, in nanoseconds, is there so that a changed file is read again."""
    return ast.parse(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=256)
def _names(path: Path, mtime: int) -> list[Name]:
    text = path.read_text(encoding="utf-8")
    found: dict[str, Name] = {}
    for name in _defined(tree(path, mtime).body, text):
        if not name.name.startswith("_"):
            found.setdefault(name.name, name)
    return list(found.values())


def _defined(body: list[ast.stmt], text: str) -> list[Name]:
    found: list[Name] = []
    lines = text.splitlines()
    for position, node in enumerate(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(Name(node.name, "function", node))
        elif isinstance(node, ast.ClassDef):
            found.append(Name(node.name, "class", node))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            after = body[position + 1] if position + 1 < len(body) else None
            note, value = _note(node, after, lines), ast.get_source_segment(text, node.value) or ""
            found += [Name(target.id, "data", node, note, value) for target in targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.Try):
            found += _defined(node.body, text)
        elif isinstance(node, ast.If) and not _never_runs(node.test):
            found += _defined([*node.body, *node.orelse], text)
    return found


def _never_runs(test: ast.expr) -> bool:
    """Whether a branch holds nothing an importer could use: imports for annotations, and what runs as a script."""
    return bool(re.search(r"\bTYPE_CHECKING\b|__name__", ast.unparse(test)))


def _note(node: ast.stmt, after: ast.stmt | None, lines: list[str]) -> str:
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return after.value.value
    behind = lines[(node.end_lineno or node.lineno) - 1].encode()[node.end_col_offset or 0 :].decode()
    match = re.match(r"\s*#:?\s+(?!fmt:|noqa|type:)(.+)", behind)
    if match:
        return match[1].removesuffix("# fmt: skip").strip()
    above: list[str] = []
    for line in reversed(lines[: node.lineno - 1]):
        comment = re.match(r"\s*#:?\s+(?!-{5}|fmt:|noqa|type:)(.+)", line)
        if not comment:
            break
        above.insert(0, comment[1])
    return " ".join(above)


def origins(module: str) -> dict[str, str]:
    """What each name used in a module stands for: ``{"np": "numpy", "FloatArray": "paperbook....arguments.FloatArray"}``."""
    path = source(module)
    return _origins(module, path, path.stat().st_mtime_ns)


@lru_cache(maxsize=256)
def _origins(module: str, path: Path, mtime: int) -> dict[str, str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    parsed = tree(path, mtime)
    found: dict[str, str] = {}
    for node in ast.walk(parsed):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]  # `import a.b` binds a
                found.setdefault(alias.asname or top, alias.name if alias.asname else top)
        elif isinstance(node, ast.ImportFrom):
            start = importlib.util.resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, f"{start}.{alias.name}")
    for node in parsed.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = f"{module}.{node.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found[target.id] = f"{module}.{target.id}"
    return found


def places() -> dict[str, list[Place]]:
    """Symbol of the library -> the rows of the book's index.yaml files that name it, in the order of the book."""
    found: dict[str, list[Place]] = {}
    for slug in toc.toc_slugs():
        for row in toc.index(slug).get("index") or []:
            found.setdefault(row["symbol"], []).append(Place(slug, row["page"], row["anchor"], row["item"]))
    return found


def users() -> dict[str, dict[str, list[str]]]:
    """Module of the library -> chapter -> executed pages whose stamp says that they run it, directly or through others."""
    found: dict[str, dict[str, list[str]]] = {}
    for slug, pages in toc.toc_pages().items():
        for page in pages:
            stored: Any = stamp.stored_metadata(paths.pages(slug) / f"{page}.ipynb").get("stamp") or {}
            for module in stored.get("modules", {}):
                found.setdefault(module, {}).setdefault(slug, []).append(page)
    return found


def documents() -> dict[str, str]:
    """Package -> document of the book that is its reference (``book/api/study``), in the order of _toc.yml."""
    found: dict[str, str] = {}
    for name in toc.toc_files():
        if re.fullmatch(r"book/api/[\w-]+", name):
            text = (paths.root() / f"{name}.md").read_text(encoding="utf-8")
            found |= dict.fromkeys(re.findall(r"^```\{api\}\s+(\S+)", text, re.M), name)
    return found
