"""What a machine has and lacks for the book: interpreter, packages, browser, MathJax, GPU, disk."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from paperbook.study import paths

_DISK_GB = 4.0  # the environment takes 2 GB, a build and its caches the rest


@dataclass(frozen=True)
class Finding:
    """One line of the doctor: what was looked at, whether it is good, whether the book needs it, and how to get it."""

    what: str
    good: bool
    needed: bool
    detail: str

    @property
    def mark(self) -> str:
        """ok, MISSING (needed) or absent (optional)."""
        return "ok" if self.good else "MISSING" if self.needed else "absent"


def examine() -> list[Finding]:
    """All findings, in the order in which one would mend them. Nothing here asks the network."""
    return [python(), *packages(), mathjax(), browser(), cuda(), disk(), wheels()]


def python() -> Finding:
    """The interpreter against requires-python."""
    version = sys.version_info
    good = (3, 11) <= version[:2] < (3, 13)
    detail = f"{version.major}.{version.minor}.{version.micro}" + ("" if good else "; the book needs 3.11 or 3.12")
    return Finding("Python", good, True, detail)


def packages() -> list[Finding]:
    """Required distributions of the package, the book and the tests, against constraints.txt."""
    pinned = _pinned(paths.root() / "constraints.txt")
    missing, other = [], []
    for requirement in metadata.requires("paperbook") or []:
        name = re.split(r"[\s;<>=!\[(~]", requirement, maxsplit=1)[0]
        extra = re.search(r"extra\s*==\s*['\"](\w+)['\"]", requirement)
        if extra and extra[1] not in ("book", "test", "chapters"):
            continue
        try:
            # a local label such as +cpu names a build of the same release
            version = metadata.version(name).split("+")[0]
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        wanted = pinned.get(_normal(name))
        if wanted and version != wanted:
            other.append(f"{name} {version}, pinned {wanted}")
    installed = f"not installed: {', '.join(missing)}; run `make setup`" if missing else "all installed"
    versions = "; ".join(other) + "; run `make setup`" if other else "as in constraints.txt"
    return [Finding("packages", not missing, True, installed), Finding("versions", not other, False, versions)]


def mathjax() -> Finding:
    """MathJax beside the book, so that pages ask no network for their equations."""
    good = (paths.root() / "vendor" / "mathjax" / "input" / "tex-full.js").is_file()
    return Finding("MathJax", good, True, "in vendor/mathjax" if good else "not in vendor/mathjax; run `make setup`")


def browser() -> Finding:
    """Chromium for the page tests."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    detail = "found" if path else "page tests are skipped without it; on Debian: apt-get install chromium"
    return Finding("chromium", bool(path), False, detail)


def cuda() -> Finding:
    """A GPU, which only the full profiles need."""
    try:
        import torch
    except ImportError:
        return Finding("CUDA", False, False, "torch is not installed")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = sorted({torch.cuda.get_device_name(i) for i in range(count)})
    return Finding("CUDA", count > 0, False, f"{count} × {', '.join(names)}" if count else "no GPU; only full profiles need one")


def disk() -> Finding:
    """Free space where the repository lies."""
    free = shutil.disk_usage(paths.root()).free / 1e9
    detail = f"{free:.0f} GB free" + ("" if free >= _DISK_GB else f", needs {_DISK_GB:.0f}")
    return Finding("disk", free >= _DISK_GB, True, detail)


def wheels() -> Finding:
    """Data wheels of the chapters; without a network the missing ones cannot be fetched later."""
    from paperbook.data import wheels as store
    from paperbook.press import toc

    missing = []
    for slug in toc.chapter_slugs():
        needed, _ = store.needs(toc.index(slug).get("data") or [])
        missing += [wheel.name for wheel in needed if store.cached(wheel.name) is None]
    detail = f"not fetched: {', '.join(missing)}; run `paperbook data --all`" if missing else "all there"
    return Finding("data", not missing, False, detail)


def _pinned(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    rows = [line.split("#")[0].strip().split("==") for line in path.read_text(encoding="utf-8").splitlines()]
    return {_normal(row[0]): row[1] for row in rows if len(row) == 2}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
