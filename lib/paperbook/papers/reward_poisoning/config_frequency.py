"""Parameters of the page on how common robustness is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from paperbook.study.params import Config
from paperbook.study.requirements import Needs, Work

Grid = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]


class FrequencyConfig(Config):
    """The base of all settings, the values of each axis, and how many instances are drawn of each."""

    model_config = ConfigDict(allow_inf_nan=False)

    n_instances: int = Field(24, ge=2, description="random instances of each setting")
    S: int = Field(8, ge=2, description="states")
    A: int = Field(3, ge=2, description="actions")
    H: int = Field(3, ge=1, description="steps of an episode")
    d: int = Field(5, ge=2, description="dimension of the features")
    latent_support: int = Field(1, ge=1, description="states that a latent kernel reaches")
    feature_support: int = Field(2, ge=1, description="latents that a feature mixes")
    d_grid: Grid = Field([3, 5, 8, 12], description="values of d, increasing")
    A_grid: Grid = Field([2, 3, 5, 8], description="values of A, increasing")
    H_grid: Grid = Field([1, 2, 3, 5], description="values of H, increasing")
    feature_grid: Grid = Field([1, 2, 3, 5], description="values of feature_support, increasing")
    latent_grid: Grid = Field([1, 2, 4, 8], description="values of latent_support, increasing")
    cap_factor: float = Field(1.0, gt=0, description="cap of ||theta_h|| in units of sqrt(d)")
    q_mode: Literal["optimal", "policy"] = Field("optimal", description="what Q means off the target's support")

    @model_validator(mode="after")
    def _fits_together(self) -> FrequencyConfig:
        for name in ("d_grid", "A_grid", "H_grid", "feature_grid", "latent_grid"):
            values = getattr(self, name)
            if values != sorted(set(values)):
                raise ValueError(f"{name}: expected increasing numbers, got {values}")
        if self.A_grid[0] < 2:
            raise ValueError(f"A_grid: expected at least 2 actions, got {self.A_grid[0]}")
        least = min(self.d, self.d_grid[0])
        for name, most, what in (("latent_support", self.S, "S"), ("feature_support", least, "d, d_grid[0]")):
            if getattr(self, name) > most:
                raise ValueError(f"{name}: expected at most {most} ({what}), got {getattr(self, name)}")
        for name, most, what in (("latent_grid", self.S, "S"), ("feature_grid", self.d, "d")):
            if getattr(self, name)[-1] > most:
                raise ValueError(f"{name}: expected at most {most} ({what}), got {getattr(self, name)[-1]}")
        return self

    def needs(self) -> Needs:
        """One certificate at a time, and its rows."""
        rows = max(self.H, self.H_grid[-1]) * self.S * max(self.A, self.A_grid[-1])
        return Needs(memory_gb=0.5 + 2e-6 * rows)

    def work(self) -> Work:
        """Certificates, each of about its number of rows; d times H settings make the phase plot."""
        rows = self.S * (self.A * (sum(self.H_grid) * len(self.d_grid) + self.H * 12) + self.H * sum(self.A_grid))
        return Work("frequency", float(self.n_instances * (rows + 400 * (12 + len(self.d_grid) * len(self.H_grid)))))
