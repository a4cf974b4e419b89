"""Parameters of the white-box page."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from paperbook.study.params import Config
from paperbook.study.requirements import Needs, Work


class WhiteBoxConfig(Config):
    """Random linear MDPs, all attacked: how many, of what size, for how long, and against which learner."""

    model_config = ConfigDict(allow_inf_nan=False)
    memory_parameters: ClassVar[tuple[str, ...]] = ("n_instances", "episodes")

    n_instances: int = Field(36, ge=12, le=10**5, description="random linear MDPs, none left out")
    episodes: int = Field(3000, ge=400, le=10**8, description="episodes T")
    S: int = Field(8, ge=2, le=1000, description="states")
    A: int = Field(3, ge=2, le=100, description="actions")
    H: int = Field(3, ge=1, le=100, description="steps of an episode")
    d: int = Field(5, ge=2, le=200, description="dimension of the features")
    latent_support: int = Field(1, ge=1, description="states that a latent kernel may reach")
    cap: float = Field(1.0, gt=0, description="bound on the poison, in units of sqrt(d)")
    q_mode: Literal["optimal", "policy"] = Field("optimal", description="values off the target's support")
    bonus: float = Field(3.0, ge=0, description="optimism of the learner")
    lam: float = Field(1.0, gt=0, description="ridge of the learner")
    noise: float = Field(0.1, ge=0, description="standard deviation of the rewards")
    epsilon: float = Field(0.1, ge=0, le=1, description="constant exploration of the learner that is not no-regret")

    @model_validator(mode="after")
    def _fits_together(self) -> WhiteBoxConfig:
        if self.latent_support > self.S:
            raise ValueError(f"latent_support: expected at most S = {self.S}, got {self.latent_support}")
        return self

    def needs(self) -> Needs:
        """The meters of one run: about fifteen arrays (episodes, instances) while they are summed up."""
        return Needs(memory_gb=0.5 + 15 * 8 * self.episodes * self.n_instances / 1e9)

    def work(self) -> Work:
        """Episodes of all copies in ten runs, each with a fixed cost beside that of its copies."""
        return Work("episodes", self.episodes * (20.0 + self.n_instances))
