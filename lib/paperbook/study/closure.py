"""Which code a page or a result depends on, and a hash of it.

The hash is of meaning, not of bytes: comments, docstrings and layout do not count, so a better sentence in a docstring
neither turns a page stale nor devalues a result that took hours.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

PACKAGE = "paperbook"


def imported_by_source(code: str) -> list[str]:
    """Modules a notebook's `code` imports, sorted; IPython magics and shell lines are ignored.

    ``from paperbook.study.params import configure`` gives ``paperbook.study.params``; ``from paperbook.study import
    params`` gives that module too, because a name that is a module is imported as one.

    Raises:
        SyntaxError: when the code cannot be parsed.
    """
    lines = ("" if line.lstrip().startswith(("%", "!")) else line for line in code.splitlines())
    found: set[str] = set()
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if _is_module(f"{node.module}.{alias.name}")}
    return sorted(found)


def closure(modules: Iterable[str]) -> tuple[list[str], list[str]]:
    """Everything that `modules` import, transitively, lazy imports inside functions included.

    Returns:
        The package's own modules (with the ``__init__`` of every ancestor, which Python runs too), and the top-level
        names of the external packages that those modules or `modules` themselves import; both sorted.
    """
    graph = _graph(_package_folder())
    internal: set[str] = set()
    external: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module.split(".")[0] != PACKAGE:
            external.add(module.split(".")[0])
        elif module in graph.modules and module not in internal:
            internal.add(module)
            parts = module.split(".")
            # Python also runs the __init__ of every ancestor, and those may import
            waiting += graph.find_modules_directly_imported_by(module)
            waiting += [".".join(parts[:i]) for i in range(1, len(parts))]
    external -= sys.stdlib_module_names | {"__future__"}
    return sorted(internal), sorted(external)


def source_hash(modules: Iterable[str]) -> str:
    """Sixteen hex digits over the meaning of the sources of `modules` (names of this package's modules)."""
    digest = hashlib.sha256()
    for name in sorted(set(modules)):
        digest.update(name.encode() + b"\0" + module_hash(name).encode() + b"\0")
    return digest.hexdigest()[:16]


def module_hash(name: str) -> str:
    """Sixteen hex digits over the meaning of one module's source.

    Raises:
        FileNotFoundError: when the package has no such module.
    """
    path = _module_file(name)
    return _file_hash(path, path.stat().st_mtime_ns, path.stat().st_size)


def code_hash(slug: str, page: str) -> str:
    """Hash of the paper, kit and data modules that a chapter's page imports: what a result was measured with.

    Raises:
        FileNotFoundError: when the chapter has no such page.
    """
    import jupytext

    from paperbook.study.paths import chapter

    notebook = jupytext.read(chapter(slug) / f"{page}.md")
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    internal, _ = closure(imported_by_source(code))
    measured = (f"{PACKAGE}.papers.", f"{PACKAGE}.kits.", f"{PACKAGE}.data.")
    return source_hash(name for name in internal if name.startswith(measured))


def library_hash() -> str:
    """Hash of the whole package, as provenance of a run."""
    folder = _package_folder()
    names = []
    for path in folder.rglob("*.py"):
        parts = (PACKAGE, *path.relative_to(folder).with_suffix("").parts)
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return source_hash(names)


def _package_folder() -> Path:
    return Path(__file__).resolve().parents[1]


def _module_file(name: str) -> Path:
    base = _package_folder().joinpath(*name.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    raise FileNotFoundError(f"module: {PACKAGE} has no module {name!r}")


def _is_module(name: str) -> bool:
    if name.split(".")[0] != PACKAGE:
        return False
    try:
        _module_file(name)
    except FileNotFoundError:
        return False
    return True


@lru_cache(maxsize=2)
def _graph(folder: Path) -> Any:
    import grimp

    return grimp.build_graph(PACKAGE, include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None)


@lru_cache(maxsize=512)
def _file_hash(path: Path, mtime: int, size: int) -> str:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return hashlib.sha256(_meaning(tree).encode()).hexdigest()[:16]


def _meaning(node: Any) -> str:
    """The syntax tree as text, without docstrings and without empty fields (which differ between Python 3.11 and 3.12)."""
    if isinstance(node, list):
        return "[" + ",".join(_meaning(item) for item in node) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = []
    for name, value in ast.iter_fields(node):
        if name == "body" and isinstance(value, list) and _starts_with_docstring(value):
            value = value[1:]
        if value not in (None, []):
            parts.append(f"{name}={_meaning(value)}")
    return f"{type(node).__name__}({','.join(parts)})"


def _starts_with_docstring(body: list[ast.stmt]) -> bool:
    return bool(body) and (
        isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str)
    )
