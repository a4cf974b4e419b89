"""A small repository of its own for every test that reads or writes files."""

import textwrap

import pytest

from paperbook.study import paths

CLAIMS = """
- id: gap-closes
  claim: The gap closes as the sample grows.
  kind: property
  where: Sec. 1
  paper_source: paper
  criterion: {at_least: 0, at_most: 0.05}
  evidence: {page: 1-page, key: gap, profile: live}
- id: table-one
  claim: The method beats the baseline by ten points.
  kind: table
  where: Tab. 1
  paper: 12.5
  paper_source: paper
  criterion: {at_least: 10}
  evidence: {page: 1-page, key: score.gain, profile: reader}
"""

PAGE = """
---
jupytext:
  text_representation: {extension: .md, format_name: myst}
kernelspec: {display_name: Python 3, language: python, name: python3}
---
# Page

```{code-cell} ipython3
:tags: [parameters]

profile: str = "smoke"
seed: int = 0
steps: int = 10
tau: float = 0.0  # margin
```

```{code-cell} ipython3
from paperbook.papers.safe_residual.rates import minimax_rate
```
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Root of an empty book with one chapter `toy` and one page `1-page`."""
    chapter = tmp_path / "chapters" / "toy"
    (chapter / "profiles").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "constraints.txt").write_text("numpy==2\n")
    (chapter / "claims.yaml").write_text(CLAIMS)
    (chapter / "1-page.md").write_text(textwrap.dedent(PAGE).lstrip())
    (chapter / "profiles" / "reader.yaml").write_text("profile: reader\nsteps: 20\n")
    monkeypatch.setenv("PAPERBOOK_ROOT", str(tmp_path))
    monkeypatch.delenv("PAPERBOOK_RUNS", raising=False)
    assert paths.root() == tmp_path.resolve()
    return tmp_path
