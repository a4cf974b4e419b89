"""Every rule of the contract can pass and can fail: a chapter that meets it, mutated once for each way to break it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
import yaml

from paperbook.press import contract

SLUG = "demo-one"
METHOD = f"chapters/{SLUG}/1-method.md"
OVERVIEW = f"chapters/{SLUG}/0-overview.md"
INDEX = f"chapters/{SLUG}/index.yaml"
CLAIMS = f"chapters/{SLUG}/claims.yaml"
METRICS = f"chapters/{SLUG}/metrics.yaml"
RESULT = f"chapters/{SLUG}/results/1-method.reader.json"
BENCH = f"tests/benchmarks/{SLUG}/benchmarks.json"
REHEARSAL = f"tests/chapters/{SLUG}/test_rehearsal.py"
TEST = f"tests/chapters/{SLUG}/test_method.py::test_mean_minimises_squared_distances"

EXERCISE = """
```{{exercise-start}}
:label: {name}
```
Do it.
```{{exercise-end}}
```

```{{solution}} {name}
Done.
```
"""


@pytest.fixture
def complete(here):
    """The scaffold with all that an author owes."""
    exercises = [f"{SLUG}-ex-{i}" for i in range(3)]
    text = (here.root / METHOD).read_text()
    text = text.replace("## Provenance", "".join(EXERCISE.format(name=name) for name in exercises) + "\n## Provenance")
    (here.root / METHOD).write_text(text)

    claims = yaml.safe_load((here.root / CLAIMS).read_text())
    for i in range(7):
        claims.append(claims[0] | {"id": f"result-{i}", "evidence": {"page": "1-method", "key": "mean", "profile": "reader"}})
    (here.root / CLAIMS).write_text(yaml.safe_dump(claims))

    metrics = yaml.safe_load((here.root / METRICS).read_text())
    metrics.append(metrics[0] | {"name": "mean", "keys": ["mean"]})
    (here.root / METRICS).write_text(yaml.safe_dump(metrics))

    (here.root / RESULT).parent.mkdir()
    provenance = {"wall_seconds": 1.0, "peak_mb": 1.0, "parameters": {"profile": "reader", "n": 10000}}
    runs = [{"metrics": {"mean": 0.1 * s}, "provenance": provenance | {"seed": s}} for s in range(5)]
    result = {"slug": SLUG, "page": "1-method", "profile": "reader", "code_hash": "0", "runs": runs}
    (here.root / RESULT).write_text(json.dumps(result))

    folder = (here.root / BENCH).parent
    folder.mkdir(parents=True)
    (folder / "bench.py").write_text("")
    row = {"case": "fit", "ours": 1.0, "peer": 2.0, "unit": "s", "ratio": 0.5, "note": ""}
    slope = {"what": "fit", "measured": 1.0, "theory": 1}
    (here.root / BENCH).write_text(json.dumps({"rows": [row], "slopes": [slope]}))

    index = yaml.safe_load((here.root / INDEX).read_text())
    index["index"] = [{"item": "Eq. 1", "page": "1-method", "anchor": f"{SLUG}-mean", "test": TEST,
                       "symbol": "paperbook.papers.demo_one.method.sample_mean"}]  # fmt: skip
    choice = {"place": "§1", "choice": "a", "alternative": "b", "page": "1-method", "key": "mean", "unit": ""}
    index["open_choices"] = [choice, choice | {"place": "§2"}]
    index["exercises"] = [
        {"id": name, "page": "1-method", "kind": "code", "solution_test": TEST, "stub_test": TEST} for name in exercises
    ]
    index["full"] = {"gpu": "1 x H100", "wall_clock": "1 h", "memory": "10 GB", "command": "papermill"}
    (here.root / INDEX).write_text(yaml.safe_dump(index))
    return here


def test_a_complete_chapter_keeps_the_contract(complete) -> None:
    assert contract.check(SLUG) == {}


def edit(file: str, old: str, new: str) -> Callable[..., None]:
    def change(book) -> None:
        book.edit(book.root / file, old, new)

    return change


def index_row(table: str, **fields) -> Callable[..., None]:
    """Change fields of the first row under `table` (None: drop the field)."""

    def change(book) -> None:
        index = yaml.safe_load((book.root / INDEX).read_text())
        for name, value in fields.items():
            index[table][0][name] = value
            if value is None:
                del index[table][0][name]
        (book.root / INDEX).write_text(yaml.safe_dump(index))

    return change


def index_key(key: str, value) -> Callable[..., None]:
    def change(book) -> None:
        index = yaml.safe_load((book.root / INDEX).read_text())
        (book.root / INDEX).write_text(yaml.safe_dump(index | {key: value}))

    return change


def parameters(seed: int, **values) -> Callable[..., None]:
    """Change the parameters one run was given (None: drop)."""

    def change(data: dict) -> None:
        given = dict(data["runs"][seed]["provenance"]["parameters"])
        data["runs"][seed]["provenance"]["parameters"] = {k: v for k, v in (given | values).items() if v is not None}

    return in_json(RESULT, change)


def marked_choices(count: int) -> Callable[..., None]:
    """Mark so many choices as open in the chapter's code, two of them in one place of the paper."""

    def change(book) -> None:
        for i in range(count):
            with (book.root / "lib/paperbook/papers/demo_one" / ("method.py" if i else "config.py")).open("a") as stream:
                stream.write(f"\n# OPEN(paper §{max(i, 1)}): choice {i}\n")

    return change


def remove(file: str) -> Callable[..., None]:
    return lambda book: (book.root / file).unlink()


def in_json(file: str, change_data: Callable[[dict], None]) -> Callable[..., None]:
    def change(book) -> None:
        data = json.loads((book.root / file).read_text())
        change_data(data)
        (book.root / file).write_text(json.dumps(data))

    return change


def figure(options: dict, **more: str) -> Callable[..., None]:
    """Give the last code cell of the executed page a figure with these options, and `more` kinds of data beside the PNG."""

    def change(book) -> None:
        data = json.loads(book.page("1-method").read_text())
        cell = [c for c in data["cells"] if c["cell_type"] == "code"][-1]
        cell["outputs"] = [{"output_type": "display_data", "metadata": {}, "data": {"image/png": "AA=="} | more}]
        cell["metadata"]["mystnb"] = options
        book.page("1-method").write_text(json.dumps(data))

    return change


def typed(section: str, text: str) -> Callable[..., None]:
    return edit(METHOD, f"## {section}\n", f"## {section}\n\n{text}\n")


def full_profile(name: str, **values) -> Callable[..., None]:
    """One more full profile."""
    return lambda book: (book.root / f"chapters/{SLUG}/profiles" / name).write_text(yaml.safe_dump({"profile": "full"} | values))


BREAKS = [
    ("pages_listed", edit("_toc.yml", "        sections:\n          - file: book/pages/demo-one/1-method\n", ""),
     "list book/pages/demo-one/1-method"),
    ("pages_listed", remove(OVERVIEW), "write 0-overview.md"),
    ("pages_listed", edit("_toc.yml", "1-method", "1-methods"), "1-methods has no source"),
    ("headers", edit(METHOD, "    format_name: myst\n", ""), "text_representation"),
    ("headers", edit(METHOD, "cfg = configure(", "x = = 1\ncfg = configure("), "line 4: invalid syntax: 'x = = 1'"),
    ("section_order", edit(METHOD, "## Checks", "## Check"), "write the section '## Checks'"),
    ("section_order", edit(METHOD, "## Exercises", "## Checks\n\n## Exercises"), "stands 2 times"),
    ("section_order", lambda b: (typed("Checks", "## X")(b), edit(METHOD, "## Checks", "## T")(b),
                                 edit(METHOD, "## Experiment", "## Checks")(b), edit(METHOD, "## T", "## Experiment")(b)),
     "stands where '## Checks' belongs"),
    ("parameters_first", edit(METHOD, ":tags: [parameters]", ":tags: [other]"), "tag `parameters`"),
    ("parameters_first", edit(METHOD, "n: int = 1000", "n: int = 10 * 100"), "n: write a literal"),
    ("parameters_first", edit(METHOD, "n: int = 1000", "n: tuple = (1, 2)"), "write a list"),
    ("parameters_first", edit(METHOD, "n: int = 1000", "n = 1000"), "name: type = literal"),
    ("parameters_first", edit(METHOD, "seed: int = 0  # seed of every random stream\n", ""), "add `seed`"),
    ("parameters_first", edit(METHOD, "n: int = 1000", "%time\nn: int = 1000"), "nothing but `name: type = literal"),
    ("parameters_first", edit(METHOD, "cfg = configure(", "%time\ncfg = configure("), "second code cell"),
    ("parameters_first", edit(METHOD, "cfg = configure(", "m = n\ncfg = configure("), "second code cell"),
    ("cost_line", edit(METHOD, "```{cost} demo-one/1-method\n```\n", ""), "```{cost} demo-one/1-method and ```"),
    ("cost_line", edit(METHOD, "```{cost} demo-one/1-method", "```{cost} demo-one/0-overview"), "names demo-one/0-overview"),
    ("short_cells", edit(METHOD, "ours = sample_mean(x)", "ours = sample_mean(x)\n" + "x = x\n" * 25), "at most 25"),
    ("figures", figure({"image": {"alt": "A line."}}), "figure: {caption"),
    ("figures", figure({"figure": {"caption": "Found."}, "image": {"alt": "x.png"}}), "image: {alt"),
    ("figure_data", figure({}), "draws a figure without numbers"),
    ("figure_data", figure({}, **{"text/csv": "# panel 1\npanel,series,x,y\n"}), "draws a figure without numbers"),
    ("no_bare_decimals", typed("Experiment", "We reach 59.4 percent."), "types the number 59.4"),
    ("no_bare_decimals", typed("Results vs paper", ":::{note}\nThe gap is -0.25.\n:::"), "types the number 0.25"),
    ("metrics_named", edit(METRICS, "unit: ", "unity: "), "write name, keys"),
    ("metrics_named", edit(METRICS, "- mean\n", "- other\n"), "whose keys cover 'mean'"),
    ("claims_sound", edit(CLAIMS, "page: 1-method", "page: 7-none"), "does not exist"),
    ("claims_sound", edit(CLAIMS, "id: mean-is-stationary", "id: mean-is-silent"), "judges it not"),
    ("claims_sound", edit(CLAIMS, "key: mean\n", "key: maen\n"), "maen"),
    ("claims_sound", edit(CLAIMS, "at_most: 1.0e-12", "at_moss: 1.0e-12"), "at_moss"),
    ("profiles_sound", remove(f"chapters/{SLUG}/profiles/full.yaml"), "write profiles/full.yaml"),
    ("profiles_sound", edit(f"chapters/{SLUG}/profiles/full.yaml", "n: ", "m: "), "m is no parameter"),
    ("profiles_sound", edit(f"chapters/{SLUG}/profiles/full.yaml", "profile: full", "profile: reader"), "write `profile: full`"),
    ("profiles_sound", index_key("main_page", "9-none"), "main_page"),
    ("results_as_profiled", parameters(3, n=500),
     "seed 3: n was 500, the profile says 10000; commit, and run `paperbook run demo-one/1-method --profile reader --seeds 0-4`"),
    ("results_as_profiled", parameters(0, n=None), "seed 0: n is missing, the profile says 10000"),
    ("results_as_profiled", parameters(4, m=1), "m was 1, the page has no such parameter"),
    ("results_as_profiled", edit(f"chapters/{SLUG}/profiles/reader.yaml", "n: 10000", "n: 20000"), "the profile says 20000"),
    ("results_as_profiled", in_json(RESULT, lambda d: d["runs"][1]["provenance"].pop("parameters")), "names no parameters"),
    ("results_as_profiled", lambda b: (b.root / RESULT).write_text("{"), "damaged"),
    ("results_as_profiled", lambda b: (b.root / RESULT).rename((b.root / RESULT).with_name("2-gone.reader.json")),
     "belongs to no page"),
    ("results_as_profiled", remove(f"chapters/{SLUG}/profiles/reader.yaml"), "has no reader.yaml"),
    ("rehearsal", remove(REHEARSAL), "test_rehearsal.py: write it, with a rehearsal of full.yaml"),
    ("rehearsal", edit(REHEARSAL, '"full.yaml", {', '"reader.yaml", {  # not full.yaml\n'), "write a rehearsal of full.yaml"),
    ("rehearsal", full_profile("full-large.yaml"), "write a rehearsal of full-large.yaml"),
    ("rehearsal", full_profile("1-method.full.yaml"), "write a rehearsal of 1-method.full.yaml"),
    ("rehearsal", edit(REHEARSAL, "def test_method(rehearse", "def test_method(other"), "calls the fixture `rehearse`"),
    ("rehearsal", edit(REHEARSAL, "found = rehearse(", "found = print("), "calls the fixture `rehearse`"),
    ("rehearsal", edit(REHEARSAL, "found = rehearse(", "found = = rehearse("), "line 9: write Python"),
    ("pinned", full_profile("full-large.yaml", backbone_id="a/b"), "write `backbone_revision:` as the 40-digit commit hash of a"),
    ("pinned", full_profile("full-large.yaml", data_id="a/b", data_revision="main"), "hash of a/b, got 'main'"),
    ("pinned", full_profile("1-method.full.yaml", data_id="a/b", data_revision="a" * 39), "data_revision"),
    ("pinned", lambda b: (b.root / f"chapters/{SLUG}/profiles/full.yaml").write_text("a: [", encoding="utf-8"), "not valid YAML"),
    ("claims_enough", lambda b: (b.root / CLAIMS).write_text(yaml.safe_dump(yaml.safe_load((b.root / CLAIMS).read_text())[:7])),
     "write 1 more"),
    ("reader_results", in_json(RESULT, lambda d: d["runs"].pop()), "has 4"),
    ("reader_results", remove(RESULT), "has 0"),
    ("full_config", index_key("full", {"gpu": "1"}), "write `wall_clock`"),
    ("benchmark", remove(BENCH), "make bench"),
    ("benchmark", in_json(BENCH, lambda d: d.pop("slopes")), "write `slopes`"),
    ("benchmark", in_json(BENCH, lambda d: d["rows"][0].pop("peer")), "lacks 'peer'"),
    ("benchmark", remove(f"tests/benchmarks/{SLUG}/bench.py"), "write bench.py"),
    ("index_resolves", index_key("index", []), "write rows"),
    ("index_resolves", index_row("index", anchor="nowhere"), "no label 'nowhere'"),
    ("index_resolves", index_row("index", symbol="paperbook.papers.demo_one.method.median"), "defines no median"),
    ("index_resolves", index_row("index", symbol="nothing.at.all"), "has no 'nothing.at.all'"),
    ("index_resolves", index_row("index", test=TEST + "_not"), "defines no test_mean"),
    ("index_resolves", index_row("index", test="tests/none.py::test_x"), "no file tests/none.py"),
    ("index_resolves", index_row("index", symbol=None), "write symbol"),
    ("open_choices", index_key("open_choices", []), "write 2 more"),
    ("open_choices", marked_choices(3),
     "marks 3 choices and 2 are listed; write a row for each of config.py:15, method.py:22, method.py:24"),
    ("open_choices", index_row("open_choices", key="effect"), "effect"),
    ("open_choices", index_row("open_choices", alternative=None), "write alternative"),
    ("exercises", index_key("exercises", []), "write 3 more"),
    ("exercises", index_row("exercises", id="other"), "no {exercise} with the label other"),
    ("exercises", index_row("exercises", stub_test=None), "write stub_test"),
    ("exercises", index_row("exercises", solution_test="tests/none.py::test_x"), "no file"),
    ("exercises", edit(METHOD, "{solution} demo-one-ex-0", "{note} demo-one-ex-0"), "no {solution}"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "break_it", "message"), BREAKS, ids=[f"{rule}-{i}" for i, (rule, _, _) in enumerate(BREAKS)])
def test_each_rule_can_fail_and_says_what_to_write(complete, rule: str, break_it, message: str) -> None:
    break_it(complete)
    messages = getattr(contract, rule)(SLUG)
    assert any(message in text for text in messages), messages
    for text in messages:  # an author sees this line alone: where, and what to do
        assert re.match(r"(chapters|tests/chapters|tests/benchmarks)/demo-one\b|_toc\.yml: ", text), text
        assert re.search(r"\b(write|run|list|keep|name|move|split|glue|commit|remove|make|delete)\b", text), text


def test_a_figure_with_a_row_of_data_keeps_the_rule(complete) -> None:
    figure({}, **{"text/csv": "# panel 1\npanel,series,x,y\n1,ours,1,2\n"})(complete)
    assert contract.figure_data(SLUG) == []


def test_every_rule_is_broken_once() -> None:
    assert {rule for rule, _, _ in BREAKS} == {rule.__name__ for rule in contract.RULES}


@pytest.mark.parametrize(
    "text",
    [
        "See Theorem 5.7 and Eq. 3.2, Sections 4.1 and 4.2, Appendix F.1.", "We reach {paper}`59.4` and {glue:text}`gap:.2f`.",
        "With $\\sigma = 0.5$ and `tau=0.5`.", "$$\nx = 0.5\n$$", "```python\nx = 0.5\n```", "Version 5.24.0 of the library.",
        "10 seeds, 5 % and 1,000 rows.", "[a link](https://example.org/1.5)", "<!-- 0.5 -->", "```{math}\n0.5\n```",
    ],
)  # fmt: skip
def test_what_is_no_bare_decimal(complete, text: str) -> None:
    typed("Experiment", text)(complete)
    assert contract.no_bare_decimals(SLUG) == []


def test_as_many_rows_as_marked_choices_suffice(complete) -> None:
    marked_choices(2)(complete)
    assert contract.open_choices(SLUG) == []


def test_a_page_that_cannot_be_parsed_breaks_no_rule_by_crashing(complete) -> None:
    edit(METHOD, "seed: int = 0", "seed: int = = 0")(complete)
    assert "headers" in contract.check(SLUG, contract.STRUCTURE)


def test_headings_inside_code_do_not_count(complete) -> None:
    typed("Experiment", "```python\n## Checks\n```")(complete)
    assert contract.section_order(SLUG) == []


@pytest.mark.parametrize("values", [
    {"backbone_id": "a/b", "backbone_revision": "0123456789" * 4}, {"backbone_id": ""}, {"backbone_id": "./weights"},
    {"backbone_id": "/data/weights", "backbone_revision": ""}, {"n": 3}, {"run_id": 7},
])  # fmt: skip
def test_what_is_pinned(complete, values: dict) -> None:
    full_profile("full-large.yaml", **values)(complete)
    assert contract.pinned(SLUG) == []


def test_what_changes_the_speed_only_may_differ_from_the_profile(complete) -> None:
    page = edit(METHOD, "n: int = 1000", "processes: int = 1\nn: int = 1000")
    page(complete)
    assert "processes is missing" in contract.results_as_profiled(SLUG)[0]
    in_json(RESULT, lambda d: [run["provenance"].update(execution={"processes": 4}) for run in d["runs"]])(complete)
    assert contract.results_as_profiled(SLUG) == []


def test_a_chapter_without_a_full_profile_owes_no_rehearsal(complete) -> None:
    (complete.root / f"chapters/{SLUG}/profiles/full.yaml").unlink()
    (complete.root / REHEARSAL).unlink()
    assert contract.rehearsal(SLUG) == []


def test_reader_profiles_are_not_full_ones(complete) -> None:
    folder = complete.root / f"chapters/{SLUG}/profiles"
    for name in ("1-method.reader.yaml", "fuller.yaml", "1-method.full-small.yaml"):
        (folder / name).write_text("profile: reader\n")
    assert contract.full_profiles(SLUG) == ["1-method.full-small.yaml", "full.yaml"]
