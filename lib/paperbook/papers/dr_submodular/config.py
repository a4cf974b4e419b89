"""Parameters of the chapter's pages, one class a page."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, field_validator

from paperbook.papers.dr_submodular.studies import FEEDBACKS
from paperbook.study.params import Config
from paperbook.study.requirements import Needs, Work

Horizons = Annotated[list[Annotated[int, Field(ge=10, le=10**8)]], Field(min_length=2)]


class PageConfig(Config):
    """Base of the pages' parameters: numbers are finite (-p rho 1e400 arrives as infinity)."""

    model_config = ConfigDict(allow_inf_nan=False)


def _increasing(values: list[int]) -> list[int]:
    if any(later <= earlier for earlier, later in pairwise(values)):
        raise ValueError("expected increasing values without repetition")
    return values


class OverviewConfig(PageConfig):
    """The whole story in one figure: the trap."""

    rounds: int = Field(1000, ge=50, le=10**6, description="rounds T of the trap")
    reps: int = Field(8, ge=2, le=10**4, description="copies of each player")


class LinearizableConfig(PageConfig):
    """From concave to linearizable: random functions and pairs for the four rows."""

    instances: int = Field(60, ge=1, le=10**5, description="random functions for each row of the table")
    pairs: int = Field(200, ge=1, le=10**6, description="pairs (x, y) for each function")
    nodes: int = Field(40, ge=24, le=200, description="quadrature nodes of g; from 24 on nothing but rounding is left")


class ReparametrizationConfig(PageConfig):
    """The exponential reparametrization: random functions and pairs for the proof's steps and the theorem."""

    instances: int = Field(100, ge=4, le=10**5, description="random functions of each kind")
    pairs: int = Field(350, ge=10, le=10**6, description="pairs (x, y) for each function")
    nodes: int = Field(40, ge=24, le=200, description="quadrature nodes of g; from 24 on nothing but rounding is left")


class OneGradientConfig(PageConfig):
    """One gradient a round: horizons, the random quadratics, and the number of players."""

    horizons: Horizons = Field([250, 500, 1000, 2000, 4000], description="horizons T, increasing")
    dim: int = Field(6, ge=2, le=16, description="coordinates d")
    budget: float = Field(3.0, gt=0, description="k in sum x <= k")
    rho: float = Field(0.3, gt=0, lt=1, description="h = -rho H 1: small is far from monotone")
    members: int = Field(50, ge=2, le=10**5, description="quadratics the adversary draws from")
    reps: int = Field(12, ge=2, le=10**5, description="copies of each player, each with its own sequence")
    nodes: int = Field(12, ge=4, le=200, description="quadrature nodes of the exact gains")
    trap_rounds: int = Field(1000, ge=50, le=10**7, description="rounds of the trap")

    _sorted = field_validator("horizons")(_increasing)

    def work(self) -> Work:
        """Rounds of one copy; a batch costs little more."""
        return Work("rounds", float(sum(self.horizons) * 3))


class FeedbackConfig(PageConfig):
    """The feedback ladder: horizons, the random quadratics, the rungs, and the device that plays."""

    memory_parameters: ClassVar[tuple[str, ...]] = ("reps",)

    horizons: Horizons = Field([250, 500, 1000, 2000, 4000], description="horizons T, increasing")
    feedbacks: list[str] = Field(list(FEEDBACKS), min_length=1, description="rungs of the ladder")
    dim: int = Field(2, ge=2, le=16, description="coordinates d")
    budget: float = Field(1.0, gt=0, description="k in sum x <= k")
    rho: float = Field(0.1, gt=0, lt=1, description="h = -rho H 1: small is far from monotone")
    members: int = Field(50, ge=2, le=10**5, description="quadratics the adversary draws from")
    reps: int = Field(16, ge=2, le=10**5, description="copies of each player, each with its own sequence")
    nodes: int = Field(12, ge=4, le=200, description="quadrature nodes of the exact gains")
    device: str = Field("numpy", description="numpy, a torch device (cpu, cuda, cuda:<i>), or auto: CUDA, else numpy")

    _sorted = field_validator("horizons")(_increasing)

    @field_validator("feedbacks")
    @classmethod
    def _known(cls, values: list[str]) -> list[str]:
        for name in values:
            if name not in FEEDBACKS:
                raise ValueError(f"expected names out of {', '.join(map(repr, FEEDBACKS))}, got {name!r}")
        if len(set(values)) < len(values):
            raise ValueError("expected each name once")
        return values

    def needs(self) -> Needs:
        """Rewards and indices of all rounds and copies of the longest horizon."""
        return Needs(memory_gb=0.5 + 3 * 8 * max(self.horizons) * self.reps / 1e9)

    def work(self) -> Work:
        """Rounds of one copy; a batch costs little more."""
        return Work("rounds", float(sum(self.horizons) * len(self.feedbacks)))
