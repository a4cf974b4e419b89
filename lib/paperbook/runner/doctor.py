"""What a machine can do with the book and what it cannot, in plain words: what each missing thing costs, and what mends it.

Nothing here asks the network; what would have to be fetched is named with the command that fetches it.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from paperbook.press import toc
from paperbook.runner import checks
from paperbook.study import paths

_DISK_GB = 5.0  # the environment takes 2.5 GB, a build, its caches and the runs of the reader profile the rest


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: its name.
        good: whether it is as it should be.
        needed: whether reading and building the book needs it.
        detail: what is there.
        cost: what it costs the reader where it is not as it should be.
        mend: the command that brings it; empty where there is none.
    """

    what: str
    good: bool
    needed: bool
    detail: str
    cost: str = ""
    mend: str = ""

    @property
    def mark(self) -> str:
        """ok, MISSING (needed) or absent (optional)."""
        return "ok" if self.good else "MISSING" if self.needed else "absent"


@dataclass(frozen=True)
class Ability:
    """One thing a reader may want to do here: whether it goes (yes, partly, no), and how or why not."""

    what: str
    goes: str
    how: str


def examine() -> list[Finding]:
    """All findings, in the order in which one would mend them."""
    return [python(), *packages(), mathjax(), disk(), memory(), browser(), npm(), cuda(), ray(), wheels(), weights()]


def abilities(findings: Iterable[Finding]) -> list[Ability]:
    """What the findings add up to: reading, building, testing, and the three scales of runs."""
    found = {finding.what: finding for finding in findings}

    def lacking(*names: str) -> str:
        return ", ".join(name for name in names if name in found and not found[name].good)

    building = lacking("Python", "packages", "MathJax", "disk")
    built = (paths.root() / "_build" / "html" / "index.html").is_file()
    gpus = checks.gpus()
    lists = [
        Ability("read the book", "yes" if built else "no" if building else "partly",
                "open _build/html/index.html; it asks for no network" if built else "build it first: make book"),
        Ability("build the book", "no" if building else "yes", f"lacks {building}" if building else "make book"),
        Ability("run its tests", "no" if building else "partly" if lacking("chromium", "npm") else "yes",
                f"page tests that need {lacking('chromium', 'npm')} are skipped" if lacking("chromium", "npm") else "make test"),
        Ability("print it as a PDF", "no" if building or lacking("chromium") else "yes",
                "needs chromium" if lacking("chromium") else "make pdf"),
        Ability("run the smoke and reader profiles",
                "no" if lacking("Python", "packages") else "partly" if lacking("data") else "yes",
                "on the CPU; seconds a page, minutes a chapter"
                + (f"; pages that need {_wheels_missing()} stop" if lacking("data") else "")),
        *(_full(slug, name, gpus) for slug in toc.chapter_slugs() for name in _full_profiles(slug)),
        Ability("use several GPUs", "yes" if len(gpus) > 1 else "no",
                f"{len(gpus)} at once: one run each, or one run on several with --gpus-per-run" if len(gpus) > 1
                else "one GPU: one run at a time, or several small ones that share it with --gpus-per-run 0.5" if gpus
                else "there is none"),
        Ability("spread runs over machines with Ray", "no" if lacking("Ray") else "yes",
                "needs Ray" if lacking("Ray") else "paperbook run ... --engine ray; RAY_ADDRESS names a cluster"),
        _offline(found),
    ]  # fmt: skip
    return lists


def _full_profiles(slug: str) -> list[str]:
    from paperbook.press.contract import full_profiles

    return sorted({name.removesuffix(".yaml").split(".")[-1] for name in full_profiles(slug)})


def _full(slug: str, profile: str, gpus: tuple[checks.Gpu, ...]) -> Ability:
    """A full profile against this machine, as `paperbook run --dry-run` sees it."""
    from paperbook.runner import plan

    what = f"run {slug} --profile {profile}"
    try:
        found = plan.make(slug, profile, "0")
    except (ValueError, OSError, ImportError) as error:
        return Ability(what, "no", str(error))
    absent = [problem.split(" at ")[0] for problem in found.problems if "not on this machine" in problem]
    other = [problem for problem in found.problems if "not on this machine" not in problem]
    reasons = [f"not fetched: {', '.join(absent)}"] if absent else []
    reasons += other
    if not gpus:
        reasons.append("no GPU, so what it does would take a CPU far longer than its forecast")
    goes = "yes" if not reasons else "partly" if not found.problems else "no"
    return Ability(what, goes, "; ".join(reasons) or f"on {gpus[0].name}")


def _offline(found: dict[str, Finding]) -> Ability:
    """Without a network all goes on that needs nothing fetched; what does is named."""
    waiting = [name for name in ("packages", "MathJax", "data", "weights") if name in found and not found[name].good]
    said = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
    return Ability("go on without a network", "partly" if waiting else "yes",
                   (f"fetch first: {', '.join(waiting)}" if waiting else "everything it uses is here")
                   + (" (HF_HUB_OFFLINE is set: nothing is fetched)" if said and waiting else ""))  # fmt: skip


def python() -> Finding:
    """The interpreter against requires-python."""
    version = sys.version_info
    good = (3, 11) <= version[:2] < (3, 13)
    detail = f"{version.major}.{version.minor}.{version.micro}"
    return Finding("Python", good, True, detail, "nothing of the book runs: it needs 3.11 or 3.12",
                   "apt-get install python3.11 python3.11-venv")  # fmt: skip


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
    installed = f"not installed: {', '.join(missing)}" if missing else "all installed"
    versions = "; ".join(other) if other else "as in constraints.txt"
    return [
        Finding("packages", not missing, True, installed, "pages that import them stop with an error", "make setup"),
        Finding("versions", not other, False, versions, "late digits may differ from the printed ones", "make setup"),
    ]


def mathjax() -> Finding:
    """MathJax, which typesets the equations when the book is built."""
    good = (paths.root() / "vendor" / "mathjax" / "input" / "tex-full.js").is_file() and find_spec("py_mini_racer") is not None
    detail = "in vendor/mathjax, run by V8" if good else "not in vendor/mathjax"
    return Finding("MathJax", good, True, detail, "the book cannot be built: its equations are typeset then",
                   "make setup")  # fmt: skip


def browser() -> Finding:
    """Chromium for the page tests and the PDF."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    return Finding("chromium", bool(path), False, "found" if path else "not found",
                   "no page tests and no PDF; reading and running do not need it", "apt-get install chromium")  # fmt: skip


def npm() -> Finding:
    """npm for Lighthouse."""
    path = shutil.which("npm")
    return Finding("npm", bool(path), False, "found" if path else "not found",
                   "the test of a page's speed is skipped", "apt-get install npm")  # fmt: skip


def cuda() -> Finding:
    """GPUs, which only the full profiles need; torch must be able to use them."""
    have = checks.gpus()
    names = ", ".join(sorted({gpu.name + (f" ({gpu.memory_gb:.0f} GB)" if gpu.memory_gb else "") for gpu in have}))
    if not have:
        cost = "full profiles would run on the CPU, far too slowly where they train or encode; the others need none"
        return Finding("GPU", False, False, "none found by nvidia-smi", cost)
    try:
        import torch

        usable = torch.cuda.is_available()
    except ImportError:
        usable = False
    return Finding("GPU", usable, False, f"{len(have)} × {names}", "torch here cannot use it: it is a build for CPUs",
                   "pip install -c constraints.txt torch")  # fmt: skip


def ray() -> Finding:
    """Ray, the engine for several machines."""
    good = find_spec("ray") is not None
    return Finding("Ray", good, False, metadata.version("ray") if good else "not installed",
                   "runs stay on this machine; the local engine does the same on its own GPUs",
                   "pip install -c constraints.txt -e '.[cluster]'")  # fmt: skip


def disk() -> Finding:
    """Free space where the repository lies."""
    free = shutil.disk_usage(paths.root()).free / 1e9
    good = free >= _DISK_GB
    return Finding("disk", good, True, f"{free:.0f} GB free", f"a build with its environment takes {_DISK_GB:.0f} GB",
                   "free some, or set PAPERBOOK_RUNS and PAPERBOOK_CACHE to another disk")  # fmt: skip


def memory() -> Finding:
    """Main memory against what two pages side by side take."""
    import psutil

    total = psutil.virtual_memory().total / 1e9
    good = total >= 3.5
    return Finding("memory", good, False, f"{total:.0f} GB", "two pages at once may not fit",
                   "make book JOBS=1")  # fmt: skip


def wheels() -> Finding:
    """Data wheels of the chapters; without a network the missing ones cannot be fetched later."""
    missing = _wheels_missing()
    return Finding("data", not missing, False, f"not fetched: {missing}" if missing else "all there",
                   "pages that read them stop, and say so", "paperbook data --all")  # fmt: skip


def _wheels_missing() -> str:
    from paperbook.data import wheels as store

    missing = []
    for slug in toc.chapter_slugs():
        needed, _ = store.needs(toc.index(slug).get("data") or [])
        missing += [wheel.name for wheel in needed if store.cached(wheel.name) is None]
    return ", ".join(dict.fromkeys(missing))


def weights() -> Finding:
    """Weights and data sets of the full profiles, which come from a hub and are never fetched unasked."""
    from paperbook.runner import plan

    missing: list[str] = []
    for slug in toc.chapter_slugs():
        for profile in _full_profiles(slug):
            try:
                problems = plan.make(slug, profile, "0").problems
            except (ValueError, OSError, ImportError):
                continue  # the full profile's own line says why
            missing += [problem.split(" at ")[0] for problem in problems if "not on this machine" in problem]
    names = ", ".join(dict.fromkeys(missing))
    return Finding("weights", not names, False, f"not fetched: {names}" if names else "all there",
                   "full profiles that use them cannot start; nothing else needs them",
                   "paperbook run <chapter> --profile <full> --dry-run prints the commands")  # fmt: skip


def report(findings: list[Finding]) -> list[str]:
    """The doctor's answer, in lines of at most 80 columns."""
    cores = os.cpu_count() or 1
    sizes = {finding.what: finding.detail for finding in findings}
    lines = [f"This machine: {cores} {'core' if cores == 1 else 'cores'}, {sizes['memory']} of memory, "
             f"{sizes['disk']} on its disk", "", "What it can do"]  # fmt: skip
    for ability in abilities(findings):
        lines += _wrapped(f"  {ability.goes:<8}", f"{ability.what}: {ability.how}")
    lines += ["", "What was looked at"]
    for finding in findings:
        lines += _wrapped(f"  {finding.mark:<8}", f"{finding.what}: {finding.detail}")
    lacking = [finding for finding in findings if not finding.good]
    if lacking:
        lines += ["", "What is missing, what that costs you, and what mends it"]
    for finding in lacking:
        lines += _wrapped("  ", f"{finding.what}: {finding.cost}")
        if finding.mend:
            lines += [f"      {finding.mend}"]
    return lines


def _wrapped(head: str, text: str) -> list[str]:
    import textwrap

    return textwrap.wrap(text, 80, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip


def _pinned(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    rows = [line.split("#")[0].strip().split("==") for line in path.read_text(encoding="utf-8").splitlines()]
    return {_normal(row[0]): row[1] for row in rows if len(row) == 2}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
