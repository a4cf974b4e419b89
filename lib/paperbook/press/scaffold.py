"""``paperbook new <slug>``: a chapter that builds and passes every test except the contract's content rules.

What it writes is real: one parameter class, one function with a test by a second route, one claim judged live. The
linter then says, rule by rule, what the author still owes; comments in the YAML files show one row of each kind, and the page
book/add-a-chapter.md walks the whole way.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from paperbook.press import toc
from paperbook.study import paths

_HEADER = """\
---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---
"""

_OVERVIEW = """
# @TITLE@: overview

```{cost} @SLUG@/0-overview
```

One paragraph: the question of the paper, its answer, and why a reader should care.

## Claim box

```{claim-box} @SLUG@
```

### The paper and the code

```{paper-index} @SLUG@
```

### Choices the paper leaves open

```{open-choices} @SLUG@
```

### How to run it

```{run-commands} @SLUG@
```

## Notation and shapes

| symbol | in code | shape | meaning |
|---|---|---|---|
| $x$ | `x` | `(n,)` | a sample |
| $\\bar x$ | `sample_mean(x)` | scalar | its mean |
"""

_METHOD = """
# @TITLE@: the method

```{cost} @SLUG@/1-method
```

```{code-cell} ipython3
:tags: [parameters]

profile: str = "smoke"  # smoke | reader | full
seed: int = 0  # seed of every random stream
n: int = 1000  # size of the sample
```

```{code-cell} ipython3
from paperbook.papers.@MODULE@.config import MethodConfig
from paperbook.study.params import configure

cfg = configure(MethodConfig)
```

## Derivation

Walk the theory step by step; number the assumptions where they are first needed.

(@SLUG@-mean)=
The mean of a sample minimises the sum of squared distances, because the derivative of that sum vanishes there:

$$
\\sum_i 2\\,(\\bar x - x_i) = 0 .
$$ (eq-@SLUG@-mean)

## Method in code

The library holds the method; the page calls it.

```{code-cell} ipython3
from paperbook.papers.@MODULE@.method import sample_mean
from paperbook.study.results import Run
from paperbook.study.seeds import rng

run = Run("@SLUG@", "1-method", cfg)
x = rng(cfg.seed, "sample").normal(size=cfg.n)
ours = sample_mean(x)
```

## Checks

An independent route for {eq}`eq-@SLUG@-mean`: the derivative of the sum of squares at our value, relative to the sum of
absolute distances.

```{code-cell} ipython3
:tags: [nbval-check-output]

from paperbook.study.claims import load_claims

claims = load_claims("@SLUG@")
slope = abs((ours - x).sum()) / abs(ours - x).sum()
print(claims.verdict("mean-is-stationary", ours=float(slope)))
```

## Experiment

Say what is run on which data, and which baselines stand on the same data, budget and tuner.

```{code-cell} ipython3
path = run.finish({"slope": float(slope), "mean": ours})
```

## Results vs paper

The paper's value stands beside ours in the claim box; say the difference in words.

## Where it breaks

Name an assumption, break it, and show what happens.

## Exercises

Three to six, each with a folded solution that runs in the tests.

## Provenance

Say for each statement whether it comes from the paper, its code, a secondary source, or is our choice.
"""

_CLAIMS = """\
# What the paper says, the bound we wrote down before the run, and where the evidence is (at least eight).
# One whose number comes from a committed result instead of from the page itself:
#
#   - id: error-falls
#     claim: The error of the mean falls as the root of the sample size.
#     kind: theorem                      # theorem, table, figure or property
#     where: Theorem 2
#     paper: -0.5                        # the paper's own value, if it has one
#     paper_source: paper                # paper, code, secondary or our choice
#     criterion: {at_least: -0.55, at_most: -0.45}
#     evidence: {page: 1-method, key: slope, profile: reader}    # live, reader or full
- id: mean-is-stationary
  claim: The sample mean is a stationary point of the sum of squared distances.
  kind: theorem
  where: write the place in the paper
  paper_source: our choice
  # a sum of n terms of either sign loses at most about n rounding errors of 1e-16 relative to the sum of their sizes
  criterion: {at_most: 1.0e-12}
  evidence: {page: 1-method, key: slope, profile: live}
"""

_METRICS = """\
# What each number that judges a claim or an open choice means, which way is better, and its unit (`*` in a key is any part).
- name: relative slope
  keys: [slope]
  definition: Absolute derivative of the sum of squares at our value, over the sum of absolute distances.
  direction: lower
  unit: "1"
"""

_INDEX = """\
title: @TITLE@
summary: write one line that says what the chapter shows.
paper: {title: "@TITLE@", authors: write the authors, venue: write the venue, arxiv: ""}
main_page: 1-method

# distributions and data wheels (`paperbook data`) the pages read, by name
data: []

# Each item of the paper: the label in the page where it is derived, its symbol in the library, its test.
#   - item: "Eq. 1, the mean"
#     page: 1-method
#     anchor: @SLUG@-mean
#     symbol: paperbook.papers.@MODULE@.method.sample_mean
#     test: "tests/chapters/@SLUG@/test_method.py::test_mean_minimises_squared_distances"
index: []

# Each choice the paper leaves open (at least two), with the key of a reader result that measures the alternative. In the code
# it is marked `# OPEN(paper §4): why we chose so`.
#   - place: "§4, divisor"
#     choice: n - 1
#     alternative: "n: ratio of the two variances"
#     page: 1-method
#     key: open_choices.divisor
#     unit: ratio
open_choices: []

# Three to six; kind: hand, code or open (stub_test: where there is a stub to fill).
#   - id: @SLUG@-ex-median
#     page: 1-method
#     kind: code
#     solution_test: "tests/chapters/@SLUG@/test_exercises.py::test_solution_passes[@SLUG@-ex-median]"
#     stub_test: "tests/chapters/@SLUG@/test_exercises.py::test_stub_fails[@SLUG@-ex-median]"
exercises: []

# What the full profile takes on a GPU server.
#   gpu: one CUDA GPU, 24 GB
#   wall_clock: 10 minutes a seed on an H100, estimated
#   memory: 16 GB of main memory, 20 GB of disk
#   command: paperbook run @SLUG@ --profile full --seeds 0-4
full: {}

# What did not work, and every criterion that was changed:  - {date: "2026-01-31", text: what was tried and what came out}
negative_results: []

# Errors found in the paper, one sentence each:  - "Eq. 3: the factor 2 is missing; our derivation has it."
errata: []
"""

_PROFILES = {
    "reader": "# A few minutes on two CPU cores: seeds 0 to 4, then `paperbook results @SLUG@`.\nprofile: reader\nn: 10000\n",
    "full": "# The paper's scale on a GPU server.\nprofile: full\nn: 1000000\n",
}

_CONFIG = '''\
"""Parameters of the pages of @SLUG@."""

from __future__ import annotations

from pydantic import Field

from paperbook.study.params import Config


class MethodConfig(Config):
    """Parameters of page 1-method."""

    n: int = Field(1000, ge=1, description="size of the sample")
'''

_MODULE = '''\
"""The method of @SLUG@."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def sample_mean(x: ArrayLike) -> float:
    """Mean of a sample of shape ``(n,)``, n at least 1 (@SLUG@-mean).

    Raises:
        ValueError: `x` is empty, not one-dimensional, or not finite.
    """
    values = np.asarray(x, dtype=float)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"x: expected shape (n,) with n at least 1, got {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"x: expected finite numbers, got {int((~np.isfinite(values)).sum())} that are not")
    return float(values.mean())
'''

_TEST = '''\
"""The method of @SLUG@ by independent routes, and its refusals."""

from __future__ import annotations

import numpy as np
import pytest

from paperbook.papers.@MODULE@.method import sample_mean


def test_mean_minimises_squared_distances() -> None:
    x = np.random.default_rng(0).normal(size=50)
    grid = np.linspace(-1, 1, 2001)  # step 1e-3, so the minimum is found to half a step
    best = grid[np.argmin(((x[:, None] - grid) ** 2).sum(0))]
    assert abs(sample_mean(x) - best) <= 0.5e-3 + 1e-12


@pytest.mark.parametrize(("x", "message"), [([], "shape"), ([[1.0]], "shape"), ([1.0, float("nan")], "finite")])
def test_refuses_bad_input(x: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sample_mean(x)
'''

_REHEARSAL = '''\
"""The full profile walks its own code path end to end; only places and sizes differ from a GPU server's run."""

from __future__ import annotations

from typing import Any


def test_method(rehearse: Any) -> None:
    found = rehearse("@SLUG@", "1-method", "full.yaml", {"n": 1000})
    assert abs(found.metrics["mean"]) < 4 / 1000**0.5  # four standard errors of a mean of unit variance
'''


_API = """\
# @SLUG@: what the chapter computes with

The functions behind the chapter {doc}`@TITLE@ </book/pages/@SLUG@/0-overview>`, ready to import.

```{api} paperbook.papers.@MODULE@
```
"""


def new(slug: str) -> list[Path]:
    """Write a chapter and add it to _toc.yml; return the files written, _toc.yml last.

    Where _toc.yml has a part "The library", the chapter's package gets a page there too: ``book/api/<slug>.md``.

    Raises:
        ValueError: `slug` is no slug or no name of a module, or _toc.yml has no part "Chapters" to add to.
        FileExistsError: the chapter or one of its files is already there; nothing is written then.
    """
    if not isinstance(slug, str) or not toc.SLUG.match(slug) or len(slug) > 40:
        raise ValueError(f"slug: expected at most 40 lower-case letters, digits and hyphens, a letter first, got {slug!r}")
    root, module = paths.root(), slug.replace("-", "_")
    if not module.isidentifier() or keyword.iskeyword(module):
        raise ValueError(
            f"slug: {slug!r} is a word of Python, so that no page could import paperbook.papers.{module}; "
            f"add a word to it, as in {slug}-paper"
        )
    table = root / "_toc.yml"
    files = {
        f"chapters/{slug}/0-overview.md": _HEADER + _OVERVIEW,
        f"chapters/{slug}/1-method.md": _HEADER + _METHOD,
        f"chapters/{slug}/claims.yaml": _CLAIMS,
        f"chapters/{slug}/metrics.yaml": _METRICS,
        f"chapters/{slug}/index.yaml": _INDEX,
        **{f"chapters/{slug}/profiles/{name}.yaml": text for name, text in _PROFILES.items()},
        f"lib/paperbook/papers/{module}/__init__.py": "",
        f"lib/paperbook/papers/{module}/config.py": _CONFIG,
        f"lib/paperbook/papers/{module}/method.py": _MODULE,
        f"tests/chapters/{slug}/test_method.py": _TEST,
        f"tests/chapters/{slug}/test_rehearsal.py": _REHEARSAL,
    }
    contents = table.read_text(encoding="utf-8")
    listed = _with_library_page(contents, slug)
    if listed is not None:
        files[f"book/api/{slug}.md"] = _API
    there = [name for name in (f"chapters/{slug}", *files) if (root / name).exists()]
    if there or slug in toc.toc_slugs():
        raise FileExistsError(f"{slug}: already there: {', '.join(there) or '_toc.yml'}")
    contents = _with_chapter(listed or contents, slug)
    title = slug.replace("-", " ").capitalize()
    written = []
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("@TITLE@", title).replace("@SLUG@", slug).replace("@MODULE@", module), encoding="utf-8")
        written.append(path)
    table.write_text(contents, encoding="utf-8")
    return [*written, table]


def _with_chapter(contents: str, slug: str) -> str:
    """The text of _toc.yml with the chapter at the end of the part "Chapters"; comments and layout stay."""
    lines = contents.splitlines()
    part = _part(lines, "Chapters")
    if part is None:
        raise ValueError('_toc.yml: expected a part with "- caption: Chapters" to add the chapter to')
    start, end = part
    margin = _indent(lines[start])
    first = next((line for line in lines[start:end] if re.match(r"\s*- file:", line)), margin + "    - file:")
    inner = _indent(first)
    added = [
        f"{inner}- file: book/pages/{slug}/0-overview",
        f"{inner}  sections:",
        f"{inner}    - file: book/pages/{slug}/1-method",
    ]
    return "\n".join([*lines[:end], *added, *lines[end:]]) + "\n"


def _with_library_page(contents: str, slug: str) -> str | None:
    """The text of _toc.yml with ``book/api/<slug>`` after the other papers' packages; None where it has no part "The library"."""
    lines = contents.splitlines()
    part = _part(lines, "The library")
    if part is None:
        return None
    start, end = part
    listed = [i for i in range(start, end) if re.match(r"\s*- file:\s*book/api/", lines[i])]
    papers = [i for i in listed if lines[i].rsplit("/", 1)[-1].strip() in toc.toc_slugs()]
    inner, at = _indent(lines[start]) + "    ", end
    if papers or listed:
        after = (papers or listed)[-1]
        inner, at = _indent(lines[after]), after + 1
    return "\n".join([*lines[:at], f"{inner}- file: book/api/{slug}", *lines[at:]]) + "\n"


def _part(lines: list[str], caption: str) -> tuple[int, int] | None:
    """First line of the part of that caption, and the line after its last; None where there is no such part."""
    start = next((i for i, line in enumerate(lines) if re.match(rf"\s*-\s+caption:\s*['\"]?{caption}['\"]?\s*$", line)), None)
    if start is None:
        return None
    margin = _indent(lines[start])
    end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith(margin + "- ")), len(lines))
    while not lines[end - 1].strip():
        end -= 1
    return start, end


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
