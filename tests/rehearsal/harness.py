"""Runs a page with its full profile in a real kernel; only places and sizes may differ from a GPU server's run.

The page's own source runs through papermill, with the profile's own values. What differs is declared by the test, and is
either a place (an id, a folder, a device) or an integer size made smaller; anything else needs a reason in words. Afterwards the
result must be complete and every parameter must have been read by the page or the library, not merely accepted.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paperbook.study import paths
from paperbook.study.claims import load_claims
from paperbook.study.profiles import read_yaml
from paperbook.study.results import SCHEMA, parameter_cell
from rehearsal.warm import WarmKernels

CHAPTER_SECONDS = 25.0
"""CPU seconds that the rehearsals of one chapter may take on the machine they were written on."""
SLOWER_MACHINES = 3.0
"""A machine may be this many times slower before a rehearsal fails for its cost."""

PROVENANCE = {
    "status", "profile", "seed", "parameters", "config_hash", "code_hash", "commit", "dirty", "library_hash", "lock_hash",
    "versions", "hardware", "date", "wall_seconds", "cpu_seconds", "peak_mb", "command", "resumed", "execution",
}  # fmt: skip
_PLACE = re.compile(r"^device$|(^|_)(id|revision|dir|folder|file|path|url)$")


class RehearsalError(AssertionError):
    """A rehearsal does not show what it should: the message says which rule was broken, and where."""


@dataclass(frozen=True)
class Rehearsal:
    """What a rehearsal left.

    Attributes:
        result: the document of ``result.json``.
        notebook: the executed notebook.
        read: names of the parameters that were read.
        seconds, cpu_seconds: wall and CPU time, kernel included.
        folder: the run's folder.
    """

    result: dict[str, Any]
    notebook: Any
    read: frozenset[str]
    seconds: float
    cpu_seconds: float
    folder: Path

    @property
    def metrics(self) -> dict[str, Any]:
        """The metrics of the result."""
        return self.result["metrics"]


@dataclass
class Rehearse:
    """Rehearses full profiles below one folder and adds up what each chapter costs.

    Args:
        folder: where runs and caches go.
        warm: starts the kernels; None starts each afresh.
    """

    folder: Path
    warm: WarmKernels | None = None
    spent: dict[str, float] = field(default_factory=dict)

    def __call__(self, slug: str, page: str, profile: str, changes: Mapping[str, Any], *, seed: int = 0,
                 reasons: Mapping[str, str] | None = None) -> Rehearsal:
        """Run `page` with `profile` overlaid by `changes`, and check what it did.

        Args:
            slug, page: the page.
            profile: file name of the profile, such as ``full.yaml``, ``full-ag-news.yaml`` or ``2-critical-radius.full.yaml``.
            changes: parameters that differ from the profile: places and sizes.
            seed: of the run.
            reasons: parameter -> why it must differ although it is neither a place nor a size made smaller.

        Raises:
            RehearsalError: a change that may not be made; a cell that failed; a parameter nobody read; an incomplete result;
                more CPU time than a chapter may take.
        """
        scratch = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"{page}-"))
        done = rehearse(slug, page, profile, changes, seed=seed, reasons=reasons, scratch=scratch, warm=self.warm)
        self.spent[slug] = self.spent.get(slug, 0.0) + done.cpu_seconds
        limit = SLOWER_MACHINES * CHAPTER_SECONDS
        if self.spent[slug] > limit:
            raise RehearsalError(f"{slug}: its rehearsals took {self.spent[slug]:.0f} s of CPU time, at most {limit:.0f}; "
                                 "make the stand-ins or the sizes smaller")
        return done


def rehearse(slug: str, page: str, profile: str, changes: Mapping[str, Any], *, scratch: Path, seed: int = 0,
             reasons: Mapping[str, str] | None = None, warm: WarmKernels | None = None) -> Rehearsal:
    """As :class:`Rehearse`, without a limit on the time; everything is written below `scratch`."""
    name = _profile_name(page, profile)
    path = paths.chapter(slug) / "profiles" / profile
    if not path.is_file():
        raise RehearsalError(f"profile: {slug} has no {profile}")
    values = read_yaml(path)
    defaults = parameter_cell(slug, page)
    unknown = sorted(set(values) - set(defaults))
    if unknown:
        raise RehearsalError(f"{profile}: no parameter of {page}: {', '.join(unknown)}")
    _check_changes(profile, {**defaults, **values}, changes, dict(reasons or {}))
    given = {**values, **changes, "seed": seed}

    start, cpu = time.perf_counter(), _cpu(warm)
    record = scratch / "record.jsonl"
    with _environment(scratch, record):
        notebook = _execute(paths.chapter(slug) / f"{page}.md", given, warm)
    seconds, cpu = time.perf_counter() - start, _cpu(warm) - cpu

    found = sorted((scratch / "runs" / slug / page).glob("*/result.json"))
    if len(found) != 1:
        raise RehearsalError(f"{slug}/{page}: expected one result.json, found {len(found)}; the page must end with run.finish()")
    result = json.loads(found[0].read_text(encoding="utf-8"))
    read = frozenset(line["name"] for line in _lines(record) if line["kind"] == "parameter")
    where = f"{slug}/{page} with {profile}"
    check_parameters(where, result, given, read)
    check_result(where, result, slug, page, given["profile"], seed)
    check_claims(where, result, slug, page, name)
    return Rehearsal(result, notebook, read, seconds, cpu, found[0].parent)


def check_parameters(where: str, result: Mapping[str, Any], given: Mapping[str, Any], read: frozenset[str]) -> None:
    """What was given is what ran, and every field of the page's configuration was read.

    Raises:
        RehearsalError: naming the parameters.
    """
    provenance = result["provenance"]
    # what changes the speed only stands apart from the parameters that name a result
    parameters = {**provenance["parameters"], **provenance["execution"], "seed": provenance["seed"]}
    lost = sorted(name for name, value in given.items() if name not in parameters or parameters[name] != value)
    if lost:
        raise RehearsalError(f"{where}: the run did not have the values it was given: {', '.join(lost)}")
    dead = sorted(set(parameters) - read)
    if dead:
        raise RehearsalError(f"{where}: nothing read {', '.join(dead)}; use the parameter or remove it")


def check_result(where: str, result: Mapping[str, Any], slug: str, page: str, profile: str, seed: int) -> None:
    """The result document is complete: schema, provenance, finite metrics.

    Raises:
        RehearsalError: naming what is missing or not finite.
    """
    expected = {"schema": SCHEMA, "slug": slug, "page": page}
    wrong = [f"{key}: expected {value!r}, got {result.get(key)!r}" for key, value in expected.items() if result.get(key) != value]
    provenance = result.get("provenance", {})
    missing = sorted(PROVENANCE - set(provenance))
    wrong += [f"provenance lacks {', '.join(missing)}"] if missing else []
    expected = {"status": "finished", "profile": profile, "seed": seed}
    wrong += [f"provenance.{key}: expected {value!r}, got {provenance.get(key)!r}"
              for key, value in expected.items() if key in provenance and provenance[key] != value]
    wrong += [f"{key}: expected a finite number, got {value}" for key, value in _leaves(result.get("metrics"), "metrics")
              if isinstance(value, float) and not math.isfinite(value)]
    if not result.get("metrics"):
        wrong.append("metrics: expected some, got none")
    if wrong:
        raise RehearsalError(f"{where}: incomplete result: {'; '.join(wrong)}")


def check_claims(where: str, result: Mapping[str, Any], slug: str, page: str, profile: str) -> None:
    """Every number that a claim will read from this page's committed result is there.

    Raises:
        RehearsalError: naming claim and key.
    """
    for claim in load_claims(slug):
        if (claim.evidence.page, claim.evidence.profile) == (page, profile):
            value: Any = result["metrics"]
            for part in claim.evidence.key.split("."):
                value = value.get(part) if isinstance(value, dict) else None
            if not isinstance(value, int | float):
                raise RehearsalError(f"{where}: the claim {claim.id} asks for the metric {claim.evidence.key}, "
                                     f"expected a number, got {value!r}")


def _profile_name(page: str, profile: str) -> str:
    """``full`` for ``full.yaml`` and for ``<page>.full.yaml``, ``full-ag-news`` for ``full-ag-news.yaml``."""
    match = re.fullmatch(rf"(?:{re.escape(page)}\.)?(full(?:-[a-z0-9-]+)?)\.yaml", profile)
    if not match:
        raise RehearsalError(f"profile: expected full.yaml, full-<what>.yaml or {page}.full.yaml, got {profile!r}")
    return match[1]


def _check_changes(profile: str, values: Mapping[str, Any], changes: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    for name, new in changes.items():
        if name not in values:
            raise RehearsalError(f"changes: {name} is no parameter of the page")
        if reasons.get(name, "").strip() or _PLACE.search(name) or _smaller(name, values[name], new):
            continue
        raise RehearsalError(f"changes: {name} of {profile} is {values[name]!r}; {new!r} is neither another place nor a smaller "
                             f"size, say why it must differ: reasons={{{name!r}: '...'}}")
    idle = sorted(set(reasons) - set(changes))
    if idle:
        raise RehearsalError(f"reasons: {', '.join(idle)} is not changed")


def _smaller(name: str, old: Any, new: Any) -> bool:
    """An integer made smaller, or a list of integers with a smaller largest one; 0 of a ``max_...`` stands for all."""
    if isinstance(old, list) and isinstance(new, list):
        whole = all(type(value) is int for value in (*old, *new))
        return whole and 0 < len(new) <= len(old) and max(new) <= max(old)
    if type(old) is not int or type(new) is not int or name == "seed":
        return False
    return new <= old or (old == 0 and name.startswith("max_"))


def _execute(source: Path, parameters: Mapping[str, Any], warm: WarmKernels | None) -> Any:
    """The executed notebook, which is not written (papermill would, after each cell); the failing cell as an error."""
    import papermill
    from papermill.exceptions import PapermillExecutionError

    from paperbook.press.worker import this_environment

    try:
        with warnings.catch_warnings():  # papermill warns about every input that is not .ipynb
            warnings.filterwarnings("ignore", message=r".*does not end in one of.*", category=UserWarning)
            return papermill.execute_notebook(
                str(source), None, parameters=dict(parameters), kernel_name="python3", progress_bar=False,
                cwd=str(paths.root()), kernel_manager_class=warm.manager() if warm else this_environment(),
            )  # fmt: skip
    except PapermillExecutionError as error:
        trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
        where = f"{source.parent.name}/{source.stem}"
        raise RehearsalError(f"{where}: a cell failed: {error.ename}: {error.evalue}\n{trace}") from None


@contextlib.contextmanager
def _environment(scratch: Path, record: Path) -> Iterator[None]:
    """The variables of the kernel, which inherits this process's: everything it writes goes to `scratch`, nothing is fetched.

    GPUs are hidden unless ``PAPERBOOK_REHEARSE_ON=cuda``, so that a rehearsal tests the same thing on every machine.
    """
    variables = {
        "PAPERBOOK_RECORD": str(record), "PAPERBOOK_RUNS": str(scratch / "runs"), "PAPERBOOK_CACHE": str(scratch / "cache"),
        "HF_DATASETS_CACHE": str(scratch / "datasets"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    if os.environ.get("PAPERBOOK_REHEARSE_ON") != "cuda":
        variables["CUDA_VISIBLE_DEVICES"] = ""
    before = {name: os.environ.get(name) for name in (*variables, "MPLBACKEND")}
    os.environ.update(variables)
    os.environ.pop("MPLBACKEND", None)  # the kernel sets its inline backend itself
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _lines(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()] if record.is_file() else []


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{name}.{key}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _leaves(item, f"{name}[{i}]")
    else:
        yield name, value


def _cpu(warm: WarmKernels | None) -> float:
    """CPU seconds of this process and of all kernels that have ended (a kernel ends with its notebook)."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime + (warm.cpu_seconds() if warm else 0.0)
