"""The stamp of an executed page: hashes of everything its outputs depend on, and whether they still match.

A stamp has five parts: `cells` (source, tags and options of every cell), `modules` (each `paperbook` module the page
imports, transitively), `locks` (the constraint lines of the distributions those modules import), `files` (results,
claims and profiles the page read; `null` where a file was missing) and `outputs` (every output of the page, and the
claims it judged). Nothing else stales a page: not the press, not the command line, not a comment in pyproject.toml or in
a YAML file.

`cells` and `outputs` are also compared with what the executed page itself holds, so that a number edited there by hand is
noticed. This is a guard against slips, not a signature: who forges a page on purpose can compute the hashes anew. The
notebook regression runs the page again and compares its verdicts, and it guards those.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from paperbook.press import toc
from paperbook.study import paths

KEY = "paperbook"


@dataclass(frozen=True)
class PageStatus:
    """How one executed page stands: state is fresh, stale, missing or orphan; `reasons` say which part changed."""

    slug: str
    page: str
    state: str
    reasons: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``slug/page``."""
        return f"{self.slug}/{self.page}"


def short_hash(data: bytes | str) -> str:
    """Sixteen hex digits of the SHA-256 of `data`."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()[:16]


def cells_hash(nb: Any) -> str:
    """Hash of the cells as the author wrote them: kind, source, tags and options; neither ids nor outputs."""
    rows = [[cell.cell_type, cell.source.rstrip(), _plain(cell.metadata)] for cell in nb.cells]
    return short_hash(json.dumps(rows, sort_keys=True, ensure_ascii=False))


def _plain(metadata: Any) -> dict[str, Any]:
    return {key: value for key, value in dict(metadata).items() if key not in ("execution", "papermill")}


def outputs_hash(document: dict[str, Any]) -> str:
    """Hash of all outputs and of the claims list of an executed page.

    Args:
        document: the page as parsed JSON, as the file holds it.
    """
    outputs = [[_joined(output) for output in cell.get("outputs", [])] for cell in document["cells"]]
    claims = document["metadata"][KEY].get("claims", [])
    return short_hash(json.dumps([outputs, claims], sort_keys=True, ensure_ascii=False))


def _joined(value: Any) -> Any:
    """The format lets a text be one string or a list of its lines; both mean the same."""
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return "".join(value)
    if isinstance(value, dict):
        return {key: _joined(item) for key, item in value.items()}
    return value


def edited_by_hand(document: dict[str, Any]) -> list[str]:
    """What in an executed page is not what its execution wrote: readable reasons, empty where all is.

    Args:
        document: the page as parsed JSON, with its stamp.
    """
    import nbformat

    stored = document["metadata"][KEY]["stamp"]
    try:
        cells = cells_hash(nbformat.from_dict(_with_joined_sources(document)))
        outputs = outputs_hash(document)
    except (AttributeError, KeyError, TypeError) as error:
        return [f"the executed page is damaged ({type(error).__name__}: {error})"]
    reasons = []
    if cells != stored.get("cells"):
        reasons.append("cells of the executed page changed by hand")
    if outputs != stored.get("outputs"):
        reasons.append("outputs changed by hand" if "outputs" in stored else "the stamp says nothing about outputs")
    return reasons


def _with_joined_sources(document: dict[str, Any]) -> dict[str, Any]:
    return {"cells": [cell | {"source": _joined(cell["source"]) or ""} for cell in document["cells"]]}


def code(nb: Any) -> str:
    """All code cells as one Python text.

    Raises:
        SyntaxError: a cell is no Python; the message names the cell and the line in it.
    """
    problem = next(syntax_problems(nb), None)
    if problem:
        raise SyntaxError(problem)
    return "\n".join(cell.source for cell in nb.cells if cell.cell_type == "code")


def syntax_problems(nb: Any) -> Iterator[str]:
    """For each code cell that is no Python: ``cell 3, line 2: invalid syntax: 'x = = 1'``; lines count from 1."""
    from paperbook.study.closure import imported_by_source

    for position, cell in enumerate(nb.cells):
        if cell.cell_type != "code":
            continue
        try:
            imported_by_source(cell.source)
        except SyntaxError as error:
            lines, line = cell.source.splitlines(), error.lineno or 1
            shown = f": {lines[line - 1].strip()[:80]!r}" if line <= len(lines) else ""
            yield f"cell {position}, line {line}: {error.msg}{shown}"
        except ValueError as error:  # a null byte
            yield f"cell {position}: {error}"


def modules_and_locks(nb: Any) -> tuple[dict[str, str], dict[str, str]]:
    """The `modules` and `locks` parts of the stamp of notebook `nb`.

    Raises:
        SyntaxError: a code cell is no Python; the message names it.
    """
    from paperbook.study.closure import closure, imported_by_source, module_hash

    internal, external = closure(imported_by_source(code(nb)))
    modules = {name: module_hash(name) for name in internal}
    locks = {}
    for name in external:
        for distribution in _distributions().get(name, []):
            key = _normal(distribution)
            locks[key] = _constraints().get(key, "not pinned")
    return modules, dict(sorted(locks.items()))


@lru_cache(maxsize=1)
def _distributions() -> dict[str, list[str]]:
    from importlib.metadata import packages_distributions

    return {name: sorted(set(found)) for name, found in packages_distributions().items()}


def _constraints() -> dict[str, str]:
    """Normalised distribution name -> its line in constraints.txt."""
    path = paths.root() / "constraints.txt"
    return _read_constraints(path, path.stat().st_mtime_ns) if path.is_file() else {}


@lru_cache(maxsize=2)
def _read_constraints(path: Path, mtime: int) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line.split("#")[0].strip() for line in lines]
    return {_normal(row.split("==")[0]): row for row in rows if "==" in row}


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def file_hash(relative: str) -> str | None:
    """Hash of a file of the repository, None where it is missing.

    Of YAML and JSON the content counts, not comments and layout; a file that cannot be parsed counts byte by byte.
    """
    path = paths.root() / relative
    return _content_hash(path.read_bytes(), path.suffix) if path.is_file() else None


@lru_cache(maxsize=256)
def _content_hash(data: bytes, suffix: str) -> str:
    import yaml

    readers: dict[str, Callable[[str], Any]] = {".yaml": yaml.safe_load, ".yml": yaml.safe_load, ".json": json.loads}
    if suffix in readers:
        try:
            # keys keep their order, in which a page may show them; repr tells a date from its text
            return short_hash(json.dumps(readers[suffix](data.decode("utf-8")), default=repr, ensure_ascii=False))
        except (ValueError, TypeError, RecursionError, yaml.YAMLError):
            pass
    return short_hash(data)


def expected(nb: Any) -> dict[str, Any]:
    """The stamp of a source notebook without its `files` and `outputs`, which only an execution knows."""
    modules, locks = modules_and_locks(nb)
    return {"cells": cells_hash(nb), "modules": modules, "locks": locks}


def differences(stored: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What changed between a `stored` stamp and what holds `now`, one readable line a part; empty means fresh."""
    reasons = []
    if stored.get("cells") != now["cells"]:
        reasons.append("cells changed")
    for part, word in (("modules", "modules"), ("locks", "versions")):
        before, after = stored.get(part, {}), now[part]
        changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
        if changed:
            shown = ", ".join(changed[:6]) + (f" and {len(changed) - 6} more" if len(changed) > 6 else "")
            reasons.append(f"{word} changed: {shown}")
    files = stored.get("files", {})
    changed = [name for name, value in sorted(files.items()) if file_hash(name) != value]
    if changed:
        reasons.append("files changed: " + ", ".join(changed))
    return reasons


def stored_metadata(path: Path) -> dict[str, Any]:
    """What the press stored in an executed page: ``{"stamp": ..., "claims": [...]}``; empty where there is nothing."""
    return _metadata(_document(path))


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _metadata(document: Any) -> dict[str, Any]:
    return dict(document.get("metadata", {}).get(KEY, {})) if isinstance(document, dict) else {}


def page_status(slug: str, page: str) -> PageStatus:
    """How one page stands. A source that cannot be read or parsed counts as stale, with its error as the reason."""
    source = toc.sources(slug).get(page)
    target = paths.pages(slug) / f"{page}.ipynb"
    if source is None:
        return PageStatus(slug, page, "orphan", ["an executed page without a source; delete it"])
    if not target.is_file():
        return PageStatus(slug, page, "missing", ["never executed"])
    document = _document(target)
    stored = _metadata(document).get("stamp")
    if not stored or not isinstance(stored, dict):
        return PageStatus(slug, page, "stale", ["the executed page carries no stamp"])
    try:
        reasons = differences(stored, expected(toc.read_source(source)))
    except (SyntaxError, ValueError) as error:
        reasons = [f"source cannot be read: {error}"]
    reasons += edited_by_hand(document)
    return PageStatus(slug, page, "stale" if reasons else "fresh", reasons)


def status(names: list[str] | None = None) -> list[PageStatus]:
    """How every page stands (or the chapters and pages in `names`), orphans included.

    Raises:
        ValueError: a name that is no chapter or page.
    """
    rows = [page_status(slug, page) for slug, page in toc.targets(names or [])]
    if not names:
        for slug in toc.executed_slugs():
            known = toc.sources(slug)
            rows += [page_status(slug, page) for page in toc.executed(slug) if page not in known]
    return rows
