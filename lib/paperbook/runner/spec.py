"""What one run is, and what became of it: plain data that an engine can send to another process or machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from paperbook.study import paths

Status = Literal["planned", "running", "finished", "failed", "cancelled"]


@dataclass(frozen=True)
class RunSpec:
    """One page, one configuration, one seed.

    Attributes:
        slug, page: the chapter and its page.
        profile: name of the profile file, such as ``full`` or ``full-ag-news``.
        parameters: all that is injected, seed included.
        seed: seed of the run.
        config_hash, code_hash: of the validated configuration and of the code behind the page.
        folder_name: name of the run's folder below ``runs/<slug>/<page>/``.
        gpus: GPUs this run asks for; a fraction shares one; None leaves the environment as it is.
        memory_parameters: names to lower when memory runs out.
    """

    slug: str
    page: str
    profile: str
    parameters: dict[str, Any]
    seed: int
    config_hash: str
    code_hash: str
    folder_name: str
    gpus: float | None = None
    memory_parameters: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``slug/page profile s<seed>``: how messages call it."""
        return f"{self.slug}/{self.page} {self.profile} s{self.seed}"

    @property
    def folder(self) -> Path:
        """Where the run writes, on the machine that asks."""
        return paths.runs() / self.slug / self.page / self.folder_name

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> RunSpec:
        """What :meth:`to_dict` gave."""
        return cls(**content)


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        status: ``"finished"``, ``"failed"`` or ``"cancelled"``.
        seconds: wall time of the attempt.
        kind: what failed: ``"error"``, ``"diverged"``, ``"out_of_memory"``, ``"killed"``, ``"refused"``; empty when nothing did.
        message: one line for a person; empty when finished.
        traceback: of the failing cell, secrets removed; may be empty.
        notes: what a person should know although the run went on, such as a damaged checkpoint.
    """

    status: Status
    seconds: float = 0.0
    kind: str = ""
    message: str = ""
    traceback: str = ""
    notes: tuple[str, ...] = ()
