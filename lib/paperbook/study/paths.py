"""Where things lie in the repository, whatever folder a kernel happens to start in.

papermill, nbval and Jupyter start kernels in three different folders, so no page uses a relative path: it asks here.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path

_NAME = re.compile(r"^[a-z0-9][a-z0-9-]*$")


@lru_cache(maxsize=8)
def _root(override: str | None) -> Path:
    if override:
        path = Path(override).resolve()
        if not (path / "pyproject.toml").is_file():
            raise ValueError(f"PAPERBOOK_ROOT: expected a folder holding pyproject.toml, got {override!r}")
        return path
    for start in (Path(__file__).resolve(), Path.cwd().resolve()):
        for folder in start.parents if start.is_file() else (start, *start.parents):
            if (folder / "pyproject.toml").is_file() and (folder / "chapters").is_dir():
                return folder
    raise FileNotFoundError(
        "the repository was not found above the package or the working folder; set PAPERBOOK_ROOT to its folder"
    )


def root() -> Path:
    """The repository's root: ``PAPERBOOK_ROOT`` if set, else found above the package or the working folder."""
    return _root(os.environ.get("PAPERBOOK_ROOT"))


def checked_name(kind: str, name: str) -> str:
    """`name` itself if it is a plain slug (``[a-z0-9-]+``), which keeps names from walking out of their folder.

    Raises:
        ValueError: naming `kind`, what came and what was expected.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise ValueError(f"{kind}: expected lower-case letters, digits and hyphens, got {name!r}")
    return name


def chapter(slug: str) -> Path:
    """``chapters/<slug>``: what authors edit."""
    return root() / "chapters" / checked_name("slug", slug)


def pages(slug: str) -> Path:
    """``book/pages/<slug>``: the executed pages."""
    return root() / "book" / "pages" / checked_name("slug", slug)


def profile_file(slug: str, page: str, profile: str) -> Path:
    """The profile of one page: ``profiles/<page>.<profile>.yaml``, or ``profiles/<profile>.yaml`` for the main page."""
    folder = chapter(slug) / "profiles"
    own = folder / f"{checked_name('page', page)}.{checked_name('profile', profile)}.yaml"
    return own if own.is_file() else folder / f"{profile}.yaml"


def results_file(slug: str, page: str, profile: str) -> Path:
    """The joined result of one page: ``chapters/<slug>/results/<page>.<profile>.json``."""
    return chapter(slug) / "results" / f"{checked_name('page', page)}.{checked_name('profile', profile)}.json"


def runs() -> Path:
    """``runs/``, git-ignored: everything a run writes before it is final (``PAPERBOOK_RUNS`` overrides)."""
    override = os.environ.get("PAPERBOOK_RUNS")
    return Path(override).resolve() if override else root() / "runs"


def cache() -> Path:
    """``.cache/``, git-ignored: fetched data wheels and frozen features (``PAPERBOOK_CACHE`` overrides)."""
    override = os.environ.get("PAPERBOOK_CACHE")
    return Path(override).resolve() if override else root() / ".cache"


def relative(path: Path) -> str:
    """`path` as a POSIX string relative to the root (as given when it lies outside), so that no record names a machine."""
    try:
        return path.resolve().relative_to(root()).as_posix()
    except ValueError:
        return path.name
