"""What would run, and what stands against it: everything is checked before the first run starts."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from paperbook.press import toc
from paperbook.runner import checks, folder
from paperbook.runner.forecast import Forecast, forecast, records
from paperbook.runner.spec import RunSpec
from paperbook.study import paths
from paperbook.study.params import Config, ParameterError, config_hash, configure, nearest
from paperbook.study.profiles import list_profiles, load_profile
from paperbook.study.results import current_code_hash, parameter_cell, run_folder

Action = Literal["run", "resume", "skip"]
_MOST_SEEDS = 10_000
_MOST_SHARING = 100  # runs on one GPU at once: a slip such as 1e-9 must not ask for so many


class PlanError(ValueError):
    """The request itself is wrong; the message names what came and what was expected."""


@dataclass(frozen=True)
class Item:
    """One run of the plan: what would be done with it and why, and what it would cost (None: no record)."""

    spec: RunSpec
    action: Action
    why: str
    forecast: Forecast | None


@dataclass
class Plan:
    """Runs in order, what stands against them (nothing may start then), and what is worth knowing."""

    items: list[Item] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    gpu: bool = False

    @property
    def pending(self) -> list[Item]:
        """What is not finished yet."""
        return [item for item in self.items if item.action != "skip"]


def make(
    target: str, profile: str, seeds: str = "0", changes: Iterable[str] = (), *, gpus_per_run: float | None = None,
    force: bool = False, check_machine: bool = True,
) -> Plan:  # fmt: skip
    """The plan for one chapter or page.

    Args:
        target: ``slug`` (every page that has the profile) or ``slug/page``.
        profile: name of a profile file: ``reader``, ``full``, ``full-ag-news``; ``smoke`` is the page's own values.
        seeds: such as ``0-4`` or ``0,3,7-9``.
        changes: ``name=value``, overlaid on the profile.
        gpus_per_run: GPUs of one run; a fraction shares one.
        force: run finished ones anew, from the beginning.
        check_machine: look at this machine's devices, disk, memory and data (an engine that runs elsewhere looks there).

    Raises:
        PlanError: unknown chapter, page, profile or parameter (with the nearest name), wrong type or range, no such seeds.
    """
    numbers = parse_seeds(seeds)
    overlay = parse_changes(changes)
    if gpus_per_run is not None and not (gpus_per_run >= 0 and (gpus_per_run < 1 or float(gpus_per_run).is_integer())):
        raise PlanError(f"gpus-per-run: expected a whole number, or a fraction between 0 and 1, got {gpus_per_run:g}")
    if gpus_per_run is not None and 0 < gpus_per_run < 1 / _MOST_SHARING:
        raise PlanError(f"gpus-per-run: expected 0 or at least {1 / _MOST_SHARING:g}, got {gpus_per_run:g}")
    plan = Plan()
    seen: dict[str, None] = {}
    for slug, page in pages_with(target, profile):
        values = ({} if profile == "smoke" else load_profile(slug, page, profile)) | overlay
        config = config_class(slug, page)
        known, code, cell = records(slug, page), current_code_hash(slug, page), parameter_cell(slug, page)
        checked = False
        for seed in numbers:
            parameters = values | {"seed": seed}
            try:
                # the page's own cell stands behind what is not named, as papermill injects after it
                cfg = configure(config, cell | parameters)
            except ParameterError as error:
                raise PlanError(f"{slug}/{page} at {profile}: {error}") from None
            wants = checks.wants_gpu(cfg)
            plan.gpu |= wants
            share = gpus_per_run if gpus_per_run is not None else (1.0 if wants and checks.gpus() else None)
            spec = RunSpec(slug, page, profile, parameters, seed, config_hash(cfg), code, run_folder(slug, page, cfg).name,
                           share, list(cfg.memory_parameters))  # fmt: skip
            action, why = _action(spec, force, plan.problems)
            plan.items.append(Item(spec, action, why, forecast(cfg, known)))
            if check_machine and action != "skip" and not checked:
                checked = True  # seeds of one configuration need the same
                problems, warnings = checks.machine(cfg, share)
                seen |= dict.fromkeys(problems)
                plan.warnings += [line for line in warnings if line not in plan.warnings]
    plan.problems += list(seen)
    return plan


def _action(spec: RunSpec, force: bool, problems: list[str]) -> tuple[Action, str]:
    if force:
        return "run", "anew, by --force"
    document, why = folder.finished_result(spec.folder, spec.config_hash)
    if document is not None:
        measured = document["provenance"].get("code_hash")
        if spec.code_hash in (measured, "unknown"):
            return "skip", "finished"
        why = "finished with other code than today's"
    found = folder.checkpoint_key(spec.folder)
    if found is None:
        return "run", why
    step, key = found
    # a page that could not hash its code wrote "unknown", and so does this one then
    if key.get("code") != spec.code_hash:
        problems.append(f"{spec.name}: its checkpoint (step {step}) was written by other code than today's; --force starts it "
                        "anew, or check out the code it was started with to go on")  # fmt: skip
    part = f" of {key['part']}" if "part" in key else ""
    manifest = folder.read_manifest(spec.folder) or {}
    if (manifest.get("error") or {}).get("kind") == "diverged":
        why = "it diverged after that, and will again unless a parameter changes"
    return "resume", f"from its checkpoint at step {step}{part}" + (f" ({why})" if why else "")


def pages_with(target: str, profile: str) -> list[tuple[str, str]]:
    """(slug, page) pairs of `target` that have `profile`.

    Raises:
        PlanError: unknown chapter or page, or none with this profile, naming the nearest or what there is.
    """
    if not target.strip(" /"):
        raise PlanError(f"target: expected a chapter, or chapter/page, got {target!r}")
    try:
        pairs = toc.targets([target])
    except ValueError as error:
        raise PlanError(str(error)) from None
    slug = pairs[0][0]
    if profile == "smoke":
        return pairs
    main = toc.index(slug).get("main_page")
    there = list_profiles(slug)

    def has(page: str) -> bool:
        return f"{page}.{profile}.yaml" in there or (page == main and f"{profile}.yaml" in there)

    if own := [pair for pair in pairs if has(pair[1])]:
        return own
    names = {name.removesuffix(".yaml").split(".")[-1] for name in there}
    if profile not in names:
        known = ", ".join(sorted(names | {"smoke"}))
        raise PlanError(f"profile: {slug} has no {profile!r}{nearest(profile.lower(), names)}; it has: {known}")
    pages = [page for page in toc.sources(slug) if has(page)]
    raise PlanError(f"profile: {target} has no {profile!r}; in this chapter these pages have it: {', '.join(pages) or 'none'}")


def parse_seeds(text: str) -> list[int]:
    """``0-4`` or ``0,3,7-9`` as increasing numbers.

    Raises:
        PlanError: anything else, or more than 10,000 seeds.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        if not match or int(match[2] or match[1]) < int(match[1]):
            raise PlanError(f"seeds: expected numbers and ranges such as 0-4 or 0,3,7-9, got {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first < _MOST_SEEDS:
            found |= set(range(first, last + 1))
        if last - first >= _MOST_SEEDS or len(found) > _MOST_SEEDS:
            raise PlanError(f"seeds: expected numbers and ranges such as 0-4 or 0,3,7-9, at most {_MOST_SEEDS:,}, got {text!r}")
    return sorted(found)


def parse_changes(changes: Iterable[str]) -> dict[str, Any]:
    """``name=value`` pairs as parameters; values are read as YAML with the numbers of Python (1e-4, also in a list).

    Raises:
        PlanError: no ``=``, a name twice, ``seed`` or ``profile`` (which have options of their own), or a value that is not YAML.
    """
    found: dict[str, Any] = {}
    for change in changes:
        name, sign, text = change.partition("=")
        name, text = name.strip(), text.strip()
        if not sign or not name.isidentifier():
            raise PlanError(f"set: expected name=value, got {change!r}")
        if name in found:
            raise PlanError(f"set: {name} is given twice")
        if name in ("seed", "profile"):
            raise PlanError(f"set: {name} is given by --{'seeds' if name == 'seed' else name}")
        if not text:
            found[name] = ""  # name= is the empty text
            continue
        try:
            value = yaml.load(text, Loader=_ValueSafeLoader)
        except (yaml.YAMLError, ValueError) as error:
            raise PlanError(f"set: {name}: not valid YAML: {' '.join(str(error).split())}") from None
        # what follows " #" is a comment to YAML: it must not vanish from a text without a word
        if (isinstance(value, str) and text[0] not in "'\"|>!&" and value != text) or (value is None and text[0] == "#"):
            raise PlanError(f"set: {name}: YAML reads {text!r} as {value!r}; put quotes around a text: {name}='\"...\"'")
        found[name] = value
    return found


class _ValueSafeLoader(yaml.SafeLoader):
    """YAML's safe loader with the numbers of Python: 1e-4 is one; 010 is ten, not octal; 1:30 and dates are texts."""

    yaml_implicit_resolvers = {
        first: [pair for pair in pairs if pair[0].rpartition(":")[2] not in ("int", "float", "timestamp")]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_ValueSafeLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?\d+(_\d+)*$"), list("-+0123456789"))
_ValueSafeLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+(_\d+)*\.?\d*|\.\d+)(e[-+]?\d+)?$|[-+]?\.inf$|\.nan$", re.IGNORECASE), list("-+.0123456789"),
)  # fmt: skip
_ValueSafeLoader.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))


def config_class(slug: str, page: str) -> type[Config]:
    """The class with which the page's second cell validates its parameters.

    Raises:
        PlanError: when the page has no such cell, or the class cannot be imported or defined, or is no ``Config``.
    """
    where = f"{slug}/{page}"
    for cell in toc.read_source(paths.chapter(slug) / f"{page}.md").cells:
        if cell.cell_type != "code" or "configure(" not in cell.source:
            continue
        try:
            tree = ast.parse(cell.source)
        except SyntaxError as error:
            raise PlanError(f"{where}: its cell with configure is no Python: {error}") from None
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "configure" and node.args):
                continue
            name = getattr(node.args[0], "id", "")
            try:
                found = _named(name, tree)
            except Exception as error:  # whatever the import or the page's own definitions raise
                raise PlanError(f"{where}: its parameter class cannot be imported: {type(error).__name__}: {error}") from None
            if isinstance(found, type) and issubclass(found, Config):
                return found
            came = ast.unparse(node.args[0])
            raise PlanError(f"{where}: configure: expected the name of a class derived from Config, got {came}")
    raise PlanError(f"{where}: no cell of the form `cfg = configure(<class>)` was found")


def _named(name: str, tree: ast.Module) -> Any:
    """What `name` stands for in a cell: imported from where the cell imports it, or made by the cell's own definitions."""
    defined = any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body)
    for node in () if defined else ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return getattr(importlib.import_module(str(node.module)), alias.name)
    # run the cell's imports, classes and aliases of types, nothing else of the page: not the call of configure
    namespace: dict[str, Any] = {"__name__": "page"}
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef) or (
            isinstance(statement, ast.Assign) and "configure(" not in ast.unparse(statement)
        ):
            # this module's `from __future__` would turn the page's annotations into texts that nobody can resolve
            exec(compile(ast.Module([statement], []), "page", "exec", dont_inherit=True), namespace)
        if defined and name in namespace:
            break
    return namespace.get(name)
