"""Which chapters and pages there are: the sources under chapters/, the executed pages, and what _toc.yml lists."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from paperbook.study import paths

SLUG = re.compile(r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$")
PAGE = re.compile(r"^\d+-[a-z0-9]+(-[a-z0-9]+)*$")


def chapter_slugs() -> list[str]:
    """Slugs of all folders under chapters/ that hold at least one page, sorted."""
    folder = paths.root() / "chapters"
    return sorted(p.name for p in folder.glob("*") if p.is_dir() and SLUG.match(p.name) and sources(p.name))


def sources(slug: str) -> dict[str, Path]:
    """Page name -> source file of one chapter, in reading order (by the number in front of the name)."""
    found = [p for p in paths.chapter(slug).glob("*.md") if PAGE.match(p.stem)]
    return {p.stem: p for p in sorted(found, key=lambda p: (int(p.stem.split("-")[0]), p.stem))}


def executed(slug: str) -> dict[str, Path]:
    """Page name -> executed notebook of one chapter."""
    return {p.stem: p for p in sorted(paths.pages(slug).glob("*.ipynb"))}


def executed_slugs() -> list[str]:
    """Slugs of all folders under book/pages/ that hold an executed page."""
    folder = paths.root() / "book" / "pages"
    return sorted({p.parent.name for p in folder.glob("*/*.ipynb")})


def toc_files() -> list[str]:
    """All files that _toc.yml lists, in order, as written there.

    Raises:
        FileNotFoundError: there is no _toc.yml.
    """
    import yaml

    files: list[str] = []

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            for key in ("root", "file"):
                if isinstance(node.get(key), str):
                    files.append(node[key])
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(yaml.safe_load((paths.root() / "_toc.yml").read_text(encoding="utf-8")))
    return files


def toc_pages() -> dict[str, list[str]]:
    """Slug -> page names that _toc.yml lists, both in the order of the book."""
    found: dict[str, list[str]] = {}
    for name in toc_files():
        match = re.fullmatch(r"book/pages/([^/]+)/([^/.]+)(\.ipynb)?", name)
        if match:
            found.setdefault(match[1], []).append(match[2])
    return found


def toc_slugs() -> list[str]:
    """The chapters of the book, in its order."""
    return list(toc_pages())


def index(slug: str) -> dict[str, Any]:
    """The chapter's ``index.yaml``; an empty dict where there is none.

    Raises:
        ValueError: the file is no mapping.
    """
    path = paths.chapter(slug) / "index.yaml"
    if not path.is_file():
        return {}
    data = _read_index(path, path.stat().st_mtime_ns, path.stat().st_size)
    if not isinstance(data, dict):
        raise ValueError(f"chapters/{slug}/index.yaml: expected a mapping, got {type(data).__name__}")
    return dict(data)


@lru_cache(maxsize=128)
def _read_index(path: Path, mtime: int, size: int) -> Any:
    """Dozens of directives of one build ask for it, and YAML is slow."""
    import yaml

    return yaml.safe_load(path.read_text(encoding="utf-8")) or {}


def targets(names: list[str]) -> list[tuple[str, str]]:
    """(slug, page) pairs that `names` (``slug`` or ``slug/page``; empty: every page) stand for.

    Raises:
        ValueError: a name that is no chapter or page, with the nearest known name.
    """
    from paperbook.study.params import nearest

    everything = [(slug, page) for slug in chapter_slugs() for page in sources(slug)]
    if not names:
        return everything
    known = {slug for slug, _ in everything} | {f"{slug}/{page}" for slug, page in everything}
    chosen: list[tuple[str, str]] = []
    for name in names:
        name = name.strip("/").removeprefix("chapters/").removesuffix(".md")
        if name not in known:
            raise ValueError(f"{name}: no such chapter or page{nearest(name, known) or '; see `paperbook list`'}")
        chosen += [pair for pair in everything if name in (pair[0], "/".join(pair)) and pair not in chosen]
    return chosen


def read_source(path: Path) -> Any:
    """The MyST notebook at `path` as an nbformat notebook.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the header is no YAML, or lacks jupytext's text_representation or the kernelspec, so that no cell would run.
    """
    import jupytext

    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such page")
    # the header as written: jupytext fills in what is missing, Sphinx does not
    header = _header(path.read_text(encoding="utf-8"))
    representation = (header.get("jupytext") or {}).get("text_representation") or {}
    if representation.get("format_name") != "myst" or "kernelspec" not in header:
        raise ValueError(
            f"{path.name}: the header must hold both `jupytext: text_representation: {{extension: .md, format_name: myst}}` "
            "and `kernelspec`; without them the cells silently do not run"
        )
    nb = jupytext.read(path)
    nb.metadata["kernelspec"].setdefault("language", "python")
    return nb


def _header(text: str) -> dict[str, Any]:
    import yaml

    match = re.match(r"---\n(.*?)\n---\n", text, re.S)
    try:
        header = yaml.safe_load(match[1]) if match else None
    except yaml.YAMLError as error:
        raise ValueError(f"the header is no YAML: {' '.join(str(error).split())}") from None
    return header if isinstance(header, dict) else {}
