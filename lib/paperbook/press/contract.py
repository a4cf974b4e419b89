"""The chapter contract, checked mechanically: one function a rule, each returning messages that say what to write.

A message stands alone: its author sees no other line. So it begins with the file, names the place, and says what to write there,
with an example where the form is not obvious.

Structure rules hold from the first day (a scaffolded chapter passes them); content rules are what an author still owes.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from paperbook.press import ledger, metrics, stamp, toc
from paperbook.press.site.chapter import anchor_ids
from paperbook.press.site.figures import rows as figure_rows
from paperbook.study import paths
from paperbook.study.claims import ClaimError, load_claims
from paperbook.study.params import nearest
from paperbook.study.profiles import list_profiles, load_profile, read_yaml
from paperbook.study.results import ResultError, expected_parameters, load_results

Rule = Callable[[str], list[str]]

SECTIONS = (
    "Claim box", "Notation and shapes", "Derivation", "Method in code", "Checks", "Experiment", "Results vs paper",
    "Where it breaks", "Exercises", "Provenance",
)  # fmt: skip
CELL_LINES = 25
CLAIMS, SEEDS, CHOICES, EXERCISES = 8, 5, 2, 3

_PYTEST_ID = 'write an id that pytest takes, such as "tests/chapters/<slug>/test_method.py::test_name"'
_LITERAL = "`name: type = literal  # help`, one a line, such as `n: int = 1000  # size of the sample`"
_REHEARSE = '`found = rehearse("{}", "1-method", "{}", {{"n": 1000}})` in a test that takes `rehearse`'

_PROSE_DIRECTIVES = {"admonition", "note", "tip", "warning", "important", "hint", "caution", "attention", "seealso", "margin",
                     "exercise", "exercise-start", "solution", "solution-start", "dropdown"}  # fmt: skip
# numbers of the paper's items look like decimals and are none
_ITEM = (
    r"(?:Theorems?|Thm\.?|Lemmas?|Propositions?|Prop\.?|Coroll?ar(?:y|ies)|Cor\.?|Definitions?|Def\.?|Assumptions?|Remarks?|Examples?"
    r"|Sections?|Sec\.?|§+|Equations?|Eqs?\.?|Tables?|Tab\.?|Figures?|Fig\.?|Algorithms?|Alg\.?|Appendix|App\.?|Chapters?|Python|version)"
)

_NUMBER = r"\d+(?:\.\d+)+"
_ITEMS = re.compile(rf"{_ITEM}[\s~]*[A-Z]?\.?{_NUMBER}(?:\s*(?:,|and|or|–|-|to)\s*{_NUMBER})*")


# --- structure ---------------------------------------------------------------------------------------------------


def pages_listed(slug: str) -> list[str]:
    """Pages and table of contents agree, and the chapter opens with 0-overview."""
    have, listed = list(toc.sources(slug)), toc.toc_pages().get(slug, [])
    messages = []
    if not have or have[0] != "0-overview":
        messages.append(f"chapters/{slug}: write 0-overview.md, the page that opens every chapter")
    messages += [f"_toc.yml: list book/pages/{slug}/{page}: write `- file: book/pages/{slug}/{page}` among the chapter's pages"
                 for page in have if page not in listed]  # fmt: skip
    messages += [f"_toc.yml: {slug}/{page} has no source; write chapters/{slug}/{page}.md, or remove the line from _toc.yml"
                 for page in listed if page not in have]  # fmt: skip
    if not messages and have != listed:
        messages.append(f"_toc.yml: list the pages of {slug} in the order {', '.join(have)}")
    return messages


def headers(slug: str) -> list[str]:
    """Every source has the header that makes it a notebook, without which no cell would run, and its cells are Python."""
    messages = []
    for page, path in toc.sources(slug).items():
        try:
            nb = toc.read_source(path)
        except ValueError as error:
            messages.append(f"{_source(slug, page)}: {error}; a header that works stands at the top of the chapter's other pages")
        else:
            messages += [f"{_source(slug, page)}: {problem}; write Python" for problem in stamp.syntax_problems(nb)]
    return messages


def section_order(slug: str) -> list[str]:
    """The ten sections stand once each, in order, across the pages."""
    found = [(title, page) for page, text in _texts(slug) for title in _headings(text) if title in SECTIONS]
    titles = [title for title, _ in found]
    messages = [f"chapters/{slug}: write the section '## {title}' in one of its pages, {_after(title)}"
                for title in SECTIONS if title not in titles]  # fmt: skip
    for title in SECTIONS:
        places = [page for name, page in found if name == title]
        if len(places) > 1:
            messages.append(f"chapters/{slug}: '## {title}' stands {len(places)} times ({', '.join(places)}); keep one, and give "
                            "the others a heading of their own")  # fmt: skip
    if not messages and titles != list(SECTIONS):
        place = next(i for i, title in enumerate(titles) if title != SECTIONS[i])
        messages.append(f"{_source(slug, found[place][1])}: '## {titles[place]}' stands where '## {SECTIONS[place]}' belongs; "
                        f"move it, so that the sections of all pages follow the order {' · '.join(SECTIONS)}")  # fmt: skip
    return messages


def parameters_first(slug: str) -> list[str]:
    """A page with code begins with a tagged cell of literals, and the next cell configures."""
    messages = []
    for page, nb in _notebooks(slug):
        cells = [cell for cell in nb.cells if cell.cell_type == "code"]
        if cells:
            messages += [f"{_source(slug, page)}: {text}" for text in _parameter_problems(cells)]
    return messages


def _parameter_problems(cells: list[Any]) -> list[str]:
    first = cells[0]
    if "parameters" not in first.metadata.get("tags", []):
        return ["give the first code cell the tag `parameters`: write `:tags: [parameters]` as its first line, then a blank one"]
    problems = []
    names = set()
    if _statements(first.source) is None:
        problems.append(f"parameters cell: write nothing but {_LITERAL}")
    for node in _statements(first.source) or []:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None):
            problems.append(f"parameters cell, line {node.lineno} ({ast.unparse(node)[:40]!r}): write {_LITERAL}")
            continue
        names.add(node.target.id)
        try:
            value = ast.literal_eval(node.value)
        except ValueError:
            problems.append(f"parameters cell: {node.target.id}: write a literal, such as 0.5 or [1, 2], so that papermill can "
                            "replace it; derive values in a later cell, from cfg")  # fmt: skip
        else:
            if isinstance(value, tuple):
                problems.append(f"parameters cell: {node.target.id}: write a list, [..], instead of a tuple (YAML has none)")
    always = {"profile": '`profile: str = "smoke"  # smoke | reader | full`',
              "seed": "`seed: int = 0  # seed of every random stream`"}  # fmt: skip
    problems += [f"parameters cell: add `{name}`: write {line}" for name, line in always.items() if name not in names]
    for node in (_statements(cells[1].source) if len(cells) > 1 else None) or []:
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _called(node.value) == "configure":
            return problems
        break
    problems.append("write `cfg = configure(Config)` in the second code cell, with nothing but imports before it; Config is the "
                    "page's class in the chapter's config.py")  # fmt: skip
    return problems


def _statements(source: str) -> list[ast.stmt] | None:
    """The statements of a cell; None where it holds more than Python, such as a magic."""
    try:
        return ast.parse(source).body
    except SyntaxError:
        return None


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""


def cost_line(slug: str) -> list[str]:
    """The measured cost stands under each title."""
    messages = []
    for page, text in _texts(slug):
        start = re.search(r"^# .+$", text, re.M)
        head = re.split(r"^## ", text[start.end() :], maxsplit=1, flags=re.M)[0] if start else ""
        named = re.search(r"^(?:`{3,}|:{3,})\{cost\}[ \t]*(\S*)", head, re.M)
        if not start:
            messages.append(f"{_source(slug, page)}: write a title, `# ...`, below the header")
        elif not named:
            messages.append(f"{_source(slug, page)}: write the cost line under the title, on two lines: "
                            f"```{{cost}} {slug}/{page} and ```")  # fmt: skip
        elif named[1] not in ("", f"{slug}/{page}"):
            messages.append(f"{_source(slug, page)}: its cost line names {named[1]}; write {slug}/{page}")
    return messages


def short_cells(slug: str) -> list[str]:
    """No code cell is longer than a reader takes in; the parameters cell is a list, one a line, and as long as it must be."""
    return [
        f"{_source(slug, page)}: {_cell(cell)} has {count} lines, at most {CELL_LINES}; split it, or move code to "
        f"lib/paperbook/papers/{slug.replace('-', '_')}"
        for page, nb in _notebooks(slug)
        for cell in nb.cells
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", [])
        and (count := len(cell.source.splitlines())) > CELL_LINES
    ]


def figures(slug: str) -> list[str]:
    """Every figure has a caption (the finding) and an alt text (what the eye sees)."""
    messages = []
    for page, path in toc.executed(slug).items():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if not any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
                continue
            options = cell["metadata"].get("mystnb", {})
            caption = str(options.get("figure", {}).get("caption", "")).strip()
            alt = str(options.get("image", {}).get("alt", "")).strip()
            for name, value in (("figure: {caption: what was found}", caption), ("image: {alt: what the eye sees}", alt)):
                if not value or value.endswith(".png"):
                    messages.append(f"{_source(slug, page)}: {_cell(cell)} draws a figure; write `mystnb: {{{name}}}` between "
                                    f"two lines `---` at its top, then `paperbook execute {slug}/{page}`")  # fmt: skip
    return messages


def figure_data(slug: str) -> list[str]:
    """Every figure sends its numbers along as CSV, at least one row of them."""
    messages = []
    for page, path in toc.executed(slug).items():
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for data in (output.get("data", {}) for output in cell.get("outputs", [])):
                for mime in (mime for mime in data if mime.endswith("image/png")):  # glued figures carry a prefix
                    text = "".join(data.get(mime.replace("image/png", "text/csv"), ""))
                    if not figure_rows(text):
                        messages.append(
                            f"{_source(slug, page)}: {_cell(cell)} draws a figure without numbers; make it with "
                            "paperbook.figures.style.panels and draw data (a lone line needs a label to count)"
                        )
    return messages


def no_bare_decimals(slug: str) -> list[str]:
    """Decimals in Experiment and Results are glued or marked as the paper's, never typed."""
    messages = []
    for page, text in _texts(slug):
        for title in ("Experiment", "Results vs paper"):
            for line in _prose(_section(text, title)):
                for match in re.finditer(r"(?<![\w.])\d+\.\d+(?!\.?\d)", _ITEMS.sub("", line)):
                    messages.append(
                        f"{_source(slug, page)}: '## {title}' types the number {match[0]} ({line.strip()[:60]!r}); glue it: "
                        f"`glue(\"{slug}-name\", value)` in a cell and {{glue:text}}`{slug}-name:.3f` here; or write "
                        f"{{paper}}`{match[0]}` if the paper reports it"
                    )
    return messages


def claims_sound(slug: str) -> list[str]:
    """claims.yaml reads, and each claim's evidence exists: a page, and where it is live, a page that judges it."""
    try:
        claims = load_claims(slug)
    except ClaimError as error:
        return [f"chapters/{error}; write rows such as the first one of a new chapter"]
    pages = toc.sources(slug)
    messages = []
    for claim in claims:
        page, key, profile = claim.evidence.page, claim.evidence.key, claim.evidence.profile
        where = f"chapters/{slug}/claims.yaml: {claim.id}"
        if page not in pages:
            messages.append(f"{where}: its evidence names page {page!r}, which does not exist; write one of {', '.join(pages)}")
        elif profile == "live":
            recorded = stamp.stored_metadata(paths.pages(slug) / f"{page}.ipynb").get("claims", [])
            if claim.id not in {row.get("id") for row in recorded}:
                messages.append(f"{where}: page {page} judges it not; write `print(claims.verdict({claim.id!r}, ours=...))` in a "
                                f"cell of {_source(slug, page)}, then `paperbook execute {slug}/{page}`")  # fmt: skip
        else:
            messages += _result_problems(slug, where, page, key, profile, claim.reason)
    return messages


def _result_problems(slug: str, where: str, page: str, key: str, profile: str, reason: str | None) -> list[str]:
    try:
        results = load_results(slug, page, profile)
        if results is None:
            return [] if reason else [f"{where}: no {profile} result of {page} is committed; {_run(slug, page, profile)}, or "
                                      "write `reason:` why not"]  # fmt: skip
        results.estimate(key)
    except ResultError as error:
        return [f"{where}: {error}; write a key that run.finish hands over in {_source(slug, page)}"]
    return []


def metrics_named(slug: str) -> list[str]:
    """Each number that a claim or an open choice is judged by is in the glossary: what it is, which way is better, its unit."""
    where = f"chapters/{slug}/metrics.yaml"
    try:
        known = metrics.load(slug)
        keys = metrics.judged_keys(slug)
    except ValueError as error:
        return [str(error)]
    return [f"{where}: write an entry (name, keys, definition, direction, unit) whose keys cover {key!r}, such as "
            f"`- {{name: ..., keys: [{key}], definition: ..., direction: lower, unit: \"1\"}}`"
            for key in keys if not metrics.of_key(known, key)]  # fmt: skip


def profiles_sound(slug: str) -> list[str]:
    """The reader and the full profile of the main page exist and name only parameters the page has."""
    page = toc.index(slug).get("main_page")
    if page not in toc.sources(slug):
        return [_main_page(slug, page)]
    known = _parameters(slug, page)
    messages: list[str] = []
    if known is None:
        return messages
    for profile in ("reader", "full"):
        name = f"chapters/{slug}/profiles/{profile}.yaml"
        try:
            values = load_profile(slug, page, profile)
        except (FileNotFoundError, ValueError) as error:
            messages.append(f"chapters/{slug}: write profiles/{profile}.yaml for {page}: `profile: {profile}` and a line "
                            f"`name: value` for each parameter that differs from the page's ({error})")  # fmt: skip
            continue
        if values.get("profile") != profile:
            messages.append(f"{name}: write `profile: {profile}`")
        messages += [f"{name}: {key} is no parameter of {page}{nearest(key, known)}; write one of its parameters cell: "
                     f"{', '.join(sorted(known))}" for key in values if key not in known]  # fmt: skip
    return messages


def _main_page(slug: str, page: Any) -> str:
    there = ", ".join(toc.sources(slug))
    return f"chapters/{slug}/index.yaml: main_page: name the page of the main experiment, one of {there}; got {page!r}"


def results_as_profiled(slug: str) -> list[str]:
    """Every run of a committed result was given what the page's parameters cell and the profile say, nothing else."""
    messages = []
    for path in sorted((paths.chapter(slug) / "results").glob("*.json")):
        page, _, profile = path.stem.rpartition(".")
        name = f"chapters/{slug}/results/{path.name}"
        if page not in toc.sources(slug):
            messages.append(f"{name}: belongs to no page; name it <page>.<profile>.json, or remove it")
            continue
        try:
            expected = expected_parameters(slug, page, profile)
            results = load_results(slug, page, profile)
        except SyntaxError:
            continue  # `headers` reports it
        except (FileNotFoundError, ValueError) as error:
            messages.append(f"{name}: {error}; write that profile, or remove the result")
            continue
        seeds: dict[str, list[str]] = {}  # what differs -> where; usually all seeds of a file differ in the same way
        for run in results.provenance if results else ():
            # what changes the speed only may differ from the profile
            wanted = {name: value for name, value in expected.items() if name not in run.get("execution", {})}
            problem = "; ".join(_different_parameters(run.get("parameters"), wanted))
            seeds.setdefault(problem, []).append(str(run["seed"]))
        messages += [
            f"{name}: seed {', '.join(where)}: {problem}; commit, and {_run(slug, page, profile)}"
            for problem, where in seeds.items()
            if problem
        ]
    return messages


def rehearsal(slug: str) -> list[str]:
    """Every full profile is rehearsed: the chapter's tests/chapters/<slug>/test_rehearsal.py names its file."""
    profiles = full_profiles(slug)
    name = f"tests/chapters/{slug}/test_rehearsal.py"
    path = paths.root() / name
    if not profiles:
        return []
    if not path.is_file():
        return [f"{name}: write it, with a rehearsal of {', '.join(profiles)}: {_REHEARSE.format(slug, profiles[0])}"]
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError as error:
        return [f"{name}, line {error.lineno}: write Python ({error.msg})"]
    # a whole text of the code, so that no comment and no sentence counts as a rehearsal
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    messages = [f"{name}: write a rehearsal of {profile}: {_REHEARSE.format(slug, profile)}"
                for profile in profiles if profile not in texts]  # fmt: skip
    if not messages and not any(isinstance(n, ast.FunctionDef) and n.name.startswith("test") and _takes(n, "rehearse")
                                for n in tree.body):  # fmt: skip
        messages.append(f"{name}: write a test that calls the fixture `rehearse`: {_REHEARSE.format(slug, profiles[0])}")
    return messages


def _takes(function: ast.FunctionDef, name: str) -> bool:
    """Whether the test asks for the fixture and calls it."""
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    return name in {a.arg for a in function.args.args} and any(_called(call) == name for call in calls)


def pinned(slug: str) -> list[str]:
    """In a full profile each `<what>_id` that names a hub repository comes with a `<what>_revision` that is a commit hash."""
    messages = []
    for name in full_profiles(slug):
        where = f"chapters/{slug}/profiles/{name}"
        try:
            values = read_yaml(paths.chapter(slug) / "profiles" / name)
        except ValueError as error:
            messages.append(f"chapters/{slug}/profiles: {error}; write lines `name: value`")
            continue
        for key, value in (values if isinstance(values, dict) else {}).items():
            if not (isinstance(key, str) and key.endswith("_id") and isinstance(value, str) and value) or _local(value):
                continue
            revision = f"{key.removesuffix('_id')}_revision"
            if not re.fullmatch(r"[0-9a-f]{40}", str(values.get(revision, ""))):
                got = values.get(revision)
                messages.append(f"{where}: write `{revision}:` as the 40-digit commit hash of {value}, got {got!r}")
    return messages


def full_profiles(slug: str) -> list[str]:
    """File names of the full profiles of a chapter: ``full.yaml``, ``full-<what>.yaml``, ``<page>.full.yaml`` and so on."""
    return [name for name in list_profiles(slug) if re.fullmatch(r"(?:[^.]+\.)?full(?:-[^.]+)?\.yaml", name)]


def _local(identifier: str) -> bool:
    return identifier.startswith(("/", ".", "~"))


def _different_parameters(given: Any, expected: dict[str, Any]) -> list[str]:
    if not isinstance(given, dict):
        return ["its provenance names no parameters"]
    found = []
    for name in sorted(given.keys() | expected.keys()):
        if name not in given:
            found.append(f"{name} is missing, the profile says {expected[name]!r}")
        elif name not in expected:
            found.append(f"{name} was {given[name]!r}, the page has no such parameter")
        elif given[name] != expected[name]:
            found.append(f"{name} was {given[name]!r}, the profile says {expected[name]!r}")
    return found


def _parameters(slug: str, page: str) -> set[str] | None:
    """Names in the page's parameters cell; None where the page cannot be read, which `headers` reports."""
    nb = dict(_notebooks(slug)).get(page)
    if nb is None:
        return None
    cell = next((c for c in nb.cells if "parameters" in c.metadata.get("tags", [])), None)
    body = (_statements(cell.source) if cell else None) or []
    return {node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}


# --- content -----------------------------------------------------------------------------------------------------


def claims_enough(slug: str) -> list[str]:
    """At least eight claims, each with criterion and evidence (the file's schema demands those)."""
    count = len(ledger.rows(slug))
    if count >= CLAIMS:
        return []
    return [f"chapters/{slug}/claims.yaml: write {CLAIMS - count} more claims (has {count}, at least {CLAIMS}); each has id, "
            "claim, kind, where, paper_source, criterion and evidence, as the first one shows"]  # fmt: skip


def reader_results(slug: str) -> list[str]:
    """The reader result of the main page is committed, with at least five seeds."""
    page = toc.index(slug).get("main_page", "")
    if page not in toc.sources(slug):
        return [_main_page(slug, page)]
    try:
        results = load_results(slug, page, "reader")
    except ResultError as error:
        return [f"chapters/{slug}/results: {error}"]
    seeds = len(set(results.seeds)) if results else 0
    if seeds < SEEDS:
        return [f"chapters/{slug}/results/{page}.reader.json: commit a reader result of at least {SEEDS} seeds (has {seeds}): "
                f"commit what you have, then {_run(slug, page, 'reader')}"]  # fmt: skip
    return []


def full_config(slug: str) -> list[str]:
    """index.yaml states what the full profile takes: GPU, wall clock, memory, exact command."""
    full = toc.index(slug).get("full") or {}
    examples = {"gpu": "one CUDA GPU, 24 GB", "wall_clock": "10 minutes a seed on an H100, estimated",
                "memory": "16 GB of main memory, 20 GB of disk",
                "command": f"paperbook run {slug} --profile full --seeds 0-4"}  # fmt: skip
    return [f"chapters/{slug}/index.yaml: full: write `{key}`, such as `{key}: {example}`"
            for key, example in examples.items() if not full.get(key)]  # fmt: skip


def benchmark(slug: str) -> list[str]:
    """The peer and ours were measured on the same work, with the slope of cost against size."""
    folder = paths.root() / "tests" / "benchmarks" / slug
    messages = []
    if not (folder / "bench.py").is_file():
        messages.append(f"tests/benchmarks/{slug}: write bench.py, which runs the peer and ours on the same work and publishes "
                        "it with tests/benchmarks/harness.py; the page 'Add a chapter' has one to copy")  # fmt: skip
    if not (folder / "benchmarks.json").is_file():
        command = f"python tests/benchmarks/{slug}/bench.py --out tests/benchmarks/{slug}/benchmarks.json"
        return [*messages, f"tests/benchmarks/{slug}: run `{command}` (`make bench` does that for every chapter)"]
    data = json.loads((folder / "benchmarks.json").read_text(encoding="utf-8"))
    for key, fields in (("rows", ("case", "ours", "peer", "unit", "ratio")), ("slopes", ("what", "measured", "theory"))):
        rows = data.get(key) or []
        if not rows:
            messages.append(f"tests/benchmarks/{slug}/benchmarks.json: write `{key}`: hand some to harness.publish in bench.py, "
                            "and run it again")  # fmt: skip
        for row in rows:
            messages += [f"tests/benchmarks/{slug}/benchmarks.json: {key}: {row} lacks {f!r}; write it in bench.py and run it"
                         for f in fields if f not in row]  # fmt: skip
    return messages


def index_resolves(slug: str) -> list[str]:
    """Each row of the paper-code index resolves: page, anchor, symbol, test."""
    rows = toc.index(slug).get("index") or []
    if not rows:
        return [f"chapters/{slug}/index.yaml: index: write rows (item, page, anchor, symbol, test) for the paper's items, such "
                f'as `- {{item: "Eq. 1", page: 1-method, anchor: {slug}-mean, symbol: {_package(slug)}.method.sample_mean, '
                f'test: "tests/chapters/{slug}/test_method.py::test_..."}}`']  # fmt: skip
    anchors = anchor_ids(slug)
    messages = []
    for row in rows:
        missing = [key for key in ("item", "page", "anchor", "symbol", "test") if not row.get(key)]
        if missing:
            messages.append(f"chapters/{slug}/index.yaml: index: {row.get('item', row)}: write {', '.join(missing)}")
            continue
        where = f"chapters/{slug}/index.yaml: index: {row['item']}"
        if (row["page"], row["anchor"]) not in anchors:
            messages.append(f"{where}: no label {row['anchor']!r} in page {row['page']}; write ({row['anchor']})= on a line of "
                            f"its own above the place, in {_source(slug, row['page'])}")  # fmt: skip
        messages += [f"{where}: {text}" for text in (symbol_problem(row["symbol"]), test_problem(row["test"])) if text]
    return messages


def open_choices(slug: str) -> list[str]:
    """At least two choices the paper leaves open, and no fewer than the code marks, each with a measured effect."""
    rows = toc.index(slug).get("open_choices") or []
    messages = []
    if len(rows) < CHOICES:
        more = f"write {CHOICES - len(rows)} more (has {len(rows)}, at least {CHOICES})"
        messages.append(f"chapters/{slug}/index.yaml: open_choices: {more}: a choice that the paper leaves open, with the key of "
                        'the reader result that measures the alternative, such as `- {place: "§4", choice: a tenth, alternative: '
                        "a quarter, page: 1-method, key: open_choices.trim}`")  # fmt: skip
    marked = _open_comments(slug)
    if len(rows) < len(marked):
        messages.append(
            f"chapters/{slug}/index.yaml: open_choices: the code marks {len(marked)} choices and {len(rows)} are listed; write a "
            f"row for each of {', '.join(marked)}"
        )
    for row in rows:
        missing = [key for key in ("place", "choice", "alternative", "page", "key") if not row.get(key)]
        where = f"chapters/{slug}/index.yaml: open_choices: {row.get('place', row)}"
        if missing:
            messages.append(f"{where}: write {', '.join(missing)}")
        else:
            messages += _result_problems(slug, where, row["page"], row["key"], row.get("profile", "reader"), None)
    return messages


def _open_comments(slug: str) -> list[str]:
    """``module.py:line`` of each comment ``# OPEN(paper ...)`` in the chapter's part of the library."""
    folder = paths.root() / "lib" / "paperbook" / "papers" / slug.replace("-", "_")
    return [
        f"{path.relative_to(folder).as_posix()}:{number}"
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if re.search(r"#\s*OPEN\(paper\b", line)
    ]


def exercises(slug: str) -> list[str]:
    """At least three exercises in the pages, their solutions run by a test, their stubs proven to fail it."""
    rows = toc.index(slug).get("exercises") or []
    messages = []
    if len(rows) < EXERCISES:
        more = f"write {EXERCISES - len(rows)} more (has {len(rows)}, at least {EXERCISES})"
        test = f"tests/chapters/{slug}/test_exercises.py::test_solution_passes[{slug}-ex-one]"
        messages.append(f"chapters/{slug}/index.yaml: exercises: {more}, such as `- {{id: {slug}-ex-one, page: 1-method, kind: "
                        f'hand, solution_test: "{test}"}}`; the page "Add a chapter" has some to copy')  # fmt: skip
    texts = dict(_texts(slug))
    for row in rows:
        name = row.get("id")
        where = f"chapters/{slug}/index.yaml: exercises: {name or row}"
        missing = [key for key in ("id", "page", "kind") if not row.get(key)]
        # an exercise by hand or an open one has a solution to check, but no stub to fill
        missing += [key for key in ("solution_test", *(["stub_test"] if row.get("kind") == "code" else [])) if not row.get(key)]
        if missing:
            messages.append(f"{where}: write {', '.join(missing)}")
            continue
        text = texts.get(row["page"], "")
        if not re.search(rf"\{{exercise(?:-start)?\}}[^\n]*\n(?:---\n)?(?::?\w+:[^\n]*\n)*?:?label: *{re.escape(name)}\b", text):
            messages.append(f"{where}: page {row['page']} has no {{exercise}} with the label {name}; write ```{{exercise-start}} "
                            f"Title, :label: {name} and ``` on three lines of {_source(slug, row['page'])}")  # fmt: skip
        if not re.search(rf"\{{solution(?:-start)?\}} *{re.escape(name)}\b", text):
            messages.append(f"{where}: page {row['page']} has no {{solution}} {name}; write ```{{solution-start}} {name}, "
                            f":class: dropdown and ``` on three lines of {_source(slug, row['page'])}")  # fmt: skip
        tests = [row[key] for key in ("solution_test", "stub_test") if row.get(key)]
        messages += [f"{where}: {problem}" for problem in map(test_problem, tests) if problem]
    return messages


STRUCTURE: tuple[Rule, ...] = (
    pages_listed, headers, section_order, parameters_first, cost_line, short_cells, figures, figure_data, no_bare_decimals,
    claims_sound, metrics_named, profiles_sound, results_as_profiled, rehearsal, pinned,
)  # fmt: skip
CONTENT: tuple[Rule, ...] = (
    claims_enough, reader_results, full_config, benchmark, index_resolves, open_choices, exercises,
)  # fmt: skip
RULES: tuple[Rule, ...] = STRUCTURE + CONTENT


def check(slug: str, rules: Iterable[Rule] = RULES) -> dict[str, list[str]]:
    """Rule name -> its messages, for the rules a chapter breaks."""
    found = {rule.__name__: rule(slug) for rule in rules}
    return {name: messages for name, messages in found.items() if messages}


# --- reading -----------------------------------------------------------------------------------------------------


def _package(slug: str) -> str:
    return "paperbook.papers." + slug.replace("-", "_")


def _source(slug: str, page: str) -> str:
    return f"chapters/{slug}/{page}.md"


def _cell(cell: Any) -> str:
    """A cell as an author finds it: by its first line, since nobody counts cells."""
    source = cell["source"]
    lines = ("".join(source) if isinstance(source, list) else source).strip().splitlines()
    return f"the cell that begins {lines[0][:60]!r}" if lines else "an empty cell"


def _after(title: str) -> str:
    place = SECTIONS.index(title)
    return f"after '## {SECTIONS[place - 1]}'" if place else "before all others"


def _run(slug: str, page: str, profile: str) -> str:
    seeds = f"0-{SEEDS - 1}"
    return f"run `paperbook run {slug}/{page} --profile {profile} --seeds {seeds}`, then `paperbook results {slug}`"


def symbol_problem(symbol: str) -> str:
    """Why a dotted name is no definition in the library; empty when it is one. Nothing is imported."""
    parts = symbol.split(".")
    for cut in range(len(parts), 0, -1):
        base = paths.root().joinpath("lib", *parts[:cut])
        path = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
        if path.is_file():
            return "" if _defines(path, parts[cut:]) else (f"symbol: {'.'.join(parts[:cut])} defines no {'.'.join(parts[cut:])}; "
                                                           "write the dotted name of a class or function there")
    return f"symbol: the library has no {symbol!r}; write a dotted name such as paperbook.papers.<package>.<module>.<function>"


def test_problem(test: str) -> str:
    """Why a pytest id names no test; empty when it does. Nothing is imported."""
    name, _, inside = test.partition("::")
    path = paths.root() / name
    if not path.is_file():
        return f"test: no file {name}; {_PYTEST_ID}"
    parts = inside.split("[")[0].split("::") if inside else []
    if not parts or not parts[-1].startswith("test"):
        return f"test: {test!r} names no test function; {_PYTEST_ID}"
    return "" if _defines(path, parts) else f"test: {name} defines no {'::'.join(parts)}; {_PYTEST_ID}"


def _defines(path: Path, names: list[str]) -> bool:
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for name in names:
        node = next((node for node in body if name in _names_of(node)), None)
        if node is None:
            return False
        body = node.body if isinstance(node, ast.ClassDef) else []
    return True


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def _texts(slug: str) -> list[tuple[str, str]]:
    """(page, source without its YAML header) in reading order."""
    texts = []
    for page, path in toc.sources(slug).items():
        text = path.read_text(encoding="utf-8")
        texts.append((page, re.sub(r"\A---\n.*?\n---\n", "", text, count=1, flags=re.S)))
    return texts


def _notebooks(slug: str) -> list[tuple[str, Any]]:
    """(page, notebook) of the sources that can be read and parsed; `headers` reports the others."""
    found = []
    for page, path in toc.sources(slug).items():
        try:
            nb = toc.read_source(path)
        except ValueError:
            continue
        if not any(stamp.syntax_problems(nb)):
            found.append((page, nb))
    return found


def _outside_fences(text: str) -> Iterable[str]:
    """Lines that are prose: not in code, mathematics or directives that hold no prose."""
    closing: list[tuple[str, bool]] = []
    for line in text.splitlines():
        fence = re.match(r"^\s*(`{3,}|~{3,}|:{3,})\s*(?:\{([\w:-]+)\})?(.*)$", line)
        hidden = any(not prose for _, prose in closing)
        if fence:
            mark, name, rest = fence.groups()
            opened = closing[-1][0] if closing else ""
            if opened and name is None and not rest.strip() and mark[0] == opened[0] and len(mark) >= len(opened):
                closing.pop()
            elif not hidden:
                prose = mark[0] == ":" if name is None else name in _PROSE_DIRECTIVES or name.startswith("prf:")
                closing.append((mark, prose))
            continue
        if not hidden:
            yield line


def _headings(text: str) -> list[str]:
    return [line[3:].strip() for line in _outside_fences(text) if line.startswith("## ")]


def _section(text: str, title: str) -> str:
    match = re.search(rf"^## {re.escape(title)}\s*$(.*?)(?=^## |\Z)", text, re.M | re.S)
    return match[1] if match else ""


def _prose(text: str) -> list[str]:
    """Lines of prose with roles, inline code, mathematics, links and comments taken out."""
    joined = "\n".join(_outside_fences(text))
    joined = re.sub(r"<!--.*?-->", " ", joined, flags=re.S)
    joined = re.sub(r"\$\$.*?\$\$", " ", joined, flags=re.S)
    joined = re.sub(r"(?:\{[\w:-]+\})?(`+)(?!`).*?(?<!`)\1(?!`)", " ", joined, flags=re.S)
    joined = re.sub(r"\$[^$\n]+(?:\n[^$\n]+)*\$", " ", joined)
    joined = re.sub(r"\]\([^)]*\)|<https?://[^>]*>", "] ", joined)
    return [line for line in joined.splitlines() if not line.startswith(("%", "+++"))]
