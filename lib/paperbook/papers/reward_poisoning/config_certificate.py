"""Parameters of the pages on bandits and on the programme."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from paperbook.study.params import Config


class BanditsConfig(Config):
    """One step, two dimensions: random bandits against the formula, and the maps."""

    model_config = ConfigDict(allow_inf_nan=False)

    n_bandits: int = Field(200, ge=2, le=10**5, description="random bandits for each check")
    arms: int = Field(4, ge=2, le=1000, description="arms of a random bandit")
    map_points: int = Field(61, ge=5, le=500, description="points a side of the map of rivals")


class LinearMDPsConfig(Config):
    """The programme in H steps: random instances, all certified."""

    model_config = ConfigDict(allow_inf_nan=False)

    S: int = Field(8, ge=2, le=1000, description="states")
    A: int = Field(3, ge=2, le=100, description="actions")
    H: int = Field(3, ge=1, le=100, description="steps of an episode")
    d: int = Field(5, ge=2, le=1000, description="dimension of the features")
    latent_support: int = Field(1, ge=1, description="states that a latent kernel reaches")
    n_instances: int = Field(60, ge=4, le=10**5, description="random instances, none left out")
    n_peers: int = Field(6, ge=1, le=1000, description="instances also given to the plain programme and to policy teaching")
    caps: list[Annotated[float, Field(ge=1)]] = Field([1.0, 1.5, 2.0, 5.0, 20.0], min_length=2, description="multiples of cap")

    @model_validator(mode="after")
    def _fits(self) -> LinearMDPsConfig:
        if self.latent_support > self.S:
            raise ValueError(f"latent_support: expected at most S = {self.S}, got {self.latent_support}")
        if any(b <= a for a, b in zip(self.caps, self.caps[1:], strict=False)):
            raise ValueError(f"caps: expected increasing multiples, got {self.caps}")
        return self
