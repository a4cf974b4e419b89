"""Pages, a configuration class, results, checkpoints and GPUs for the tests of the runner."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from paperbook.runner import checks
from paperbook.runner.spec import RunSpec
from paperbook.study.params import Config
from paperbook.study.requirements import Asset, Needs, Work
from paperbook.study.results import parameter_cell, write_json

HEADER = """---
jupytext:
  text_representation: {extension: .md, format_name: myst}
kernelspec: {display_name: Python 3, language: python, name: python3}
---
"""
PARAMETERS = """
```{code-cell} ipython3
:tags: [parameters]

profile: str = "smoke"
seed: int = 0
steps: int = 10          # gradient steps
lr: float = 0.1          # step size
batch_size: int = 64     # rows a step
grid: list = [1.0, 2.0]  # sizes
note: str = ""           # anything
flag: bool = False       # yes or no
device: str = "cpu"      # where
```
"""
SECOND = """
```{code-cell} ipython3
from paperbook.study.params import configure
from runner_pages import TrainConfig as Chosen

cfg = configure(Chosen)
```
"""


class TrainConfig(Config):
    """What the toy pages are validated with; a test sets what a run needs here."""

    memory_parameters: ClassVar[tuple[str, ...]] = ("batch_size",)
    wanted: ClassVar[Needs] = Needs()
    data: ClassVar[list[Asset]] = []
    kind: ClassVar[str | None] = "training"

    steps: int = Field(10, ge=1)
    lr: float = Field(0.1, gt=0)
    batch_size: int = 64
    grid: list[float] = [1.0, 2.0]
    note: str = ""
    flag: bool = False
    device: str = "cpu"

    def assets(self) -> list[Asset]:
        return self.data

    def needs(self) -> Needs:
        return self.wanted

    def work(self) -> Work | None:
        return Work(f"{self.kind}, batches of {self.batch_size}", self.steps) if self.kind else None


def page(second: str = SECOND) -> str:
    return HEADER + "# A page\n" + PARAMETERS + second


def write_page(root: Path, name: str, second: str = SECOND) -> None:
    (root / "chapters" / "toy" / f"{name}.md").write_text(page(second))


def store_result(spec: RunSpec, **changes: Any) -> Path:
    """What the page of `spec` would leave behind; `changes` go into its provenance."""
    given = parameter_cell(spec.slug, spec.page) | spec.parameters
    parameters = {name: value for name, value in given.items() if name != "seed"}
    provenance = {
        "status": "finished", "profile": given["profile"], "seed": spec.seed, "parameters": parameters,
        "config_hash": spec.config_hash, "code_hash": spec.code_hash, "lock_hash": "l", "commit": "c0ffee", "dirty": False,
        "versions": {"numpy": "2"}, "date": "2026-01-01T00:00:00+00:00", "wall_seconds": 8.0,
        "hardware": {"processor": "a processor"},
    } | changes  # fmt: skip
    content = {"schema": 1, "slug": spec.slug, "page": spec.page, "provenance": provenance, "metrics": {"loss": 0.5}}
    return write_json(spec.folder / "result.json", content)


def store_checkpoint(spec: RunSpec, step: int, **key: str) -> Path:
    from paperbook.study.checkpoints import Checkpoints

    full = {"config": spec.config_hash, "seed": str(spec.seed), "code": spec.code_hash} | key
    # a second a step: what is newer is told by the seconds of the run behind it
    return Checkpoints(spec.folder / "checkpoints", full, clock=lambda: float(step)).save(step, values={"loss": 1.0})


@dataclass
class Smi:
    """A machine with GPUs, as nvidia-smi tells it."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def says(self, text: str, code: int = 0) -> None:
        script = self.folder / "nvidia-smi"
        script.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\nexit {code}\n")
        script.chmod(0o755)
        self.monkeypatch.setenv("PATH", str(self.folder), prepend=":")
        checks.gpus.cache_clear()

    def has(self, count: int, mib: int = 143771) -> None:
        self.says("\n".join(f"{i}, GPU-{i}{i}{i}{i}-abc, NVIDIA H200, {mib}" for i in range(count)))

    def visible(self, value: str) -> list[str]:
        self.monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        checks.gpus.cache_clear()
        return [gpu.id for gpu in checks.gpus()]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below `folder` and what is in it; empty folders by name."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


def documents(text: str) -> list[Any]:
    """The JSON documents in `text`, which must hold nothing else."""
    decoder, found, rest = json.JSONDecoder(), [], text.strip()
    while rest:
        value, end = decoder.raw_decode(rest)
        found.append(value)
        rest = rest[end:].strip()
    return found
