"""What a configuration asks of the machine and how much work it is: stated by a page's config, read before a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Asset:
    """Data or weights that must lie on this machine before a run starts.

    Attributes:
        name: what a person calls it, with its pinned revision.
        here: whether it lies on this machine.
        fetch: the exact shell command that fetches it; for a local folder that is missing, what to do instead.
    """

    name: str
    here: bool
    fetch: str


@dataclass(frozen=True)
class Needs:
    """Estimates, in GB (10^9 bytes); None where there is none.

    Attributes:
        memory_gb: main memory at the peak.
        gpu_gb: memory of one GPU at the peak; None or 0 for a run without a GPU.
        disk_gb: what the run writes (checkpoints, caches, notebook).
    """

    memory_gb: float | None = None
    gpu_gb: float | None = None
    disk_gb: float | None = None


@dataclass(frozen=True)
class Work:
    """How much a run computes, up to a constant: what the complexity in the docstrings says.

    Attributes:
        kind: runs of one kind differ in size only, so the seconds of one forecast those of another.
        amount: relative amount of work, > 0.
    """

    kind: str
    amount: float
