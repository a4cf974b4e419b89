"""Parameters of the chapter's pages, one class a page."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from paperbook.papers.dr_submodular.sets import BudgetBox
from paperbook.papers.dr_submodular.studies import FEEDBACKS, smoothing
from paperbook.study.params import Config
from paperbook.study.requirements import Needs, Work

Horizons = Annotated[list[Annotated[int, Field(ge=10, le=10**8)]], Field(min_length=2)]


def _device(name: str) -> str:
    """`name` if it is written like a device; whether the machine has it is asked where the run is."""
    if name not in ("numpy", "auto", "cpu", "cuda") and not (name.startswith("cuda:") and name[5:].isdigit()):
        raise ValueError("expected numpy, auto, cpu, cuda or cuda:<i>")
    return name


Device = Annotated[str, AfterValidator(_device)]


def vertex_memory(dim: int, members: int) -> float:
    """Gigabytes at the peak while `members` quadratics are looked at on all 2^d vertices: three arrays of that many points."""
    return 3 * 8 * 2**dim * members * dim / 1e9


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


class QuadraticsConfig(PageConfig):
    """Base of the two pages whose adversary draws random quadratics (E1)."""

    horizons: Horizons = Field([250, 500, 1000, 2000, 4000], description="horizons T, increasing")
    dim: int = Field(6, ge=2, le=16, description="coordinates d")
    budget: float = Field(3.0, gt=0, description="k in sum x <= k")
    rho: float = Field(0.3, gt=0, lt=1, description="h = -rho H 1: small is far from monotone")
    members: int = Field(50, ge=2, le=10**5, description="quadratics the adversary draws from")
    reps: int = Field(12, ge=2, le=10**5, description="copies of each player, each with its own sequence")
    nodes: int = Field(12, ge=4, le=200, description="quadrature nodes of the exact gains")

    _sorted = field_validator("horizons")(_increasing)


class OneGradientConfig(QuadraticsConfig):
    """One gradient a round: horizons, the random quadratics, and the number of players."""

    trap_rounds: int = Field(1000, ge=50, le=10**7, description="rounds of the trap")

    @model_validator(mode="after")
    def _budget_fits(self) -> OneGradientConfig:
        if not 1 <= self.budget <= self.dim or self.budget % 1:
            raise ValueError(f"budget: expected a whole number from 1 to dim = {self.dim}, so that the page can list the "
                             f"vertices, got {self.budget}")  # fmt: skip
        return self

    def needs(self) -> Needs:
        """Rewards and indices of the longest run, and the vertices that the family is shifted by."""
        longest = max(*self.horizons, self.trap_rounds)
        return Needs(memory_gb=0.5 + 5 * 8 * longest * self.reps / 1e9 + vertex_memory(self.dim, self.members))

    def work(self) -> Work:
        """Rounds of one copy; a batch costs little more."""
        return Work("rounds", float(sum(self.horizons) * 3))


class FeedbackConfig(QuadraticsConfig):
    """The feedback ladder: horizons, the random quadratics, the rungs, and the device that plays."""

    memory_parameters: ClassVar[tuple[str, ...]] = ("reps",)

    feedbacks: list[str] = Field(list(FEEDBACKS), min_length=1, description="rungs of the ladder")
    dim: int = Field(2, ge=2, le=16, description="coordinates d")
    budget: float = Field(1.0, gt=0, description="k in sum x <= k")
    rho: float = Field(0.1, gt=0, lt=1, description="h = -rho H 1: small is far from monotone")
    reps: int = Field(16, ge=2, le=10**5, description="copies of each player, each with its own sequence")
    device: Device = Field("numpy", description="numpy, a torch device (cpu, cuda, cuda:<i>), or auto: CUDA, else numpy")

    @field_validator("feedbacks")
    @classmethod
    def _known(cls, values: list[str]) -> list[str]:
        for name in values:
            if name not in FEEDBACKS:
                raise ValueError(f"expected names out of {', '.join(map(repr, FEEDBACKS))}, got {name!r}")
        if len(set(values)) < len(values):
            raise ValueError("expected each name once")
        return values

    @model_validator(mode="after")
    def _room_for_the_sphere(self) -> FeedbackConfig:
        # the page plays one value again with radius T^-1/4, whatever the rungs
        radii = [smoothing(name, self.horizons[0]) for name in self.feedbacks] + [min(0.2, self._compared() ** -0.25)]
        r = BudgetBox(self.dim, self.budget).inner_ball()[1]
        if max(radii) >= r:
            raise ValueError(f"budget: expected so much that a ball of radius {max(radii):.4g}, the largest smoothing of these "
                             f"horizons and feedbacks, fits into the set, got {self.budget}, where {r:.4g} fits")  # fmt: skip
        return self

    def _compared(self) -> int:
        """The horizon at which the page compares choices: the last one up to 32,000, else the first."""
        return max(self.horizons[0], *(T for T in self.horizons if T <= 32_000))

    def needs(self) -> Needs:
        """Rewards and indices of all rounds and copies of the longest horizon, and vertices (the page goes up to d = 12)."""
        rounds = 3 * 8 * max(self.horizons) * self.reps / 1e9
        return Needs(memory_gb=0.5 + rounds + vertex_memory(max(self.dim, 12), self.members))

    def work(self) -> Work:
        """Rounds of one copy; a batch costs little more."""
        return Work("rounds", float(sum(self.horizons) * len(self.feedbacks)))
