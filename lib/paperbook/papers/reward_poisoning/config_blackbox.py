"""Parameters of the page on the black box."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from paperbook.study.params import Config
from paperbook.study.requirements import Needs, Work

Episodes = Annotated[list[Annotated[int, Field(ge=8)]], Field(min_length=2)]


class BlackBoxConfig(Config):
    """Instances, lengths of the first stage and of whole runs, and the constants of Algorithm 3 that are our choice."""

    model_config = ConfigDict(allow_inf_nan=False)

    n_instances: int = Field(30, ge=4, le=10**4, description="random instances drawn; those near 0 are then left out")
    S: int = Field(8, ge=2, description="states")
    A: int = Field(3, ge=2, description="actions")
    H: int = Field(3, ge=1, description="steps of an episode")
    d: int = Field(5, ge=2, description="dimension of the features")
    latent_support: int = Field(1, ge=1, description="states that a latent kernel reaches")
    near_zero: float = Field(0.05, ge=0, description="instances with |eps*| up to that are left out")
    n_grid: Episodes = Field([100, 400, 1600, 6400], description="episodes of uniform play, increasing")
    t1_grid: Episodes = Field([50, 200, 800], description="lengths T1 of the first stage, increasing")
    T_grid: Episodes = Field([500, 1000, 2000], description="episodes T of whole runs, increasing")
    bonus: float = Field(3.0, ge=0, description="optimism of the learner")
    noise: float = Field(0.1, gt=0, description="standard deviation of the rewards' noise")
    exponent: float = Field(0.75, gt=0, lt=1, description="the first stage lasts T to that power")
    penalty: float = Field(1.0, gt=0, description="penalty of the first stage, in units of sqrt(d)")

    @model_validator(mode="after")
    def _fits_together(self) -> BlackBoxConfig:
        for name in ("n_grid", "t1_grid", "T_grid"):
            values = getattr(self, name)
            if values != sorted(set(values)):
                raise ValueError(f"{name}: expected increasing numbers, got {values}")
        if self.latent_support > self.S:
            raise ValueError(f"latent_support: expected at most S = {self.S}, got {self.latent_support}")
        return self

    def needs(self) -> Needs:
        """Histories of the longest run, and the table of probabilities of every instance."""
        history = 6 * 8 * self.T_grid[-1] * self.n_instances
        tables = 4 * 8 * self.n_instances * self.H * self.S**2 * self.A
        return Needs(memory_gb=0.5 + (3 * history + tables) / 1e9)

    def work(self) -> Work:
        """Episodes of all copies, each with a fixed cost beside that of its copies."""
        played = self.t1_grid[-1] + 2 * sum(self.T_grid) + 5 * self.T_grid[-1]
        return Work("black box", float(played * (20 + self.n_instances) * self.H))
