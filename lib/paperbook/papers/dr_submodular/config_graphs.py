"""Parameters of the pages on changing worlds and on graphs."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from paperbook.study.params import Config
from paperbook.study.requirements import Needs, Work

Positive = Annotated[int, Field(ge=1)]


class NonStationaryConfig(Config):
    """Drifting traps: horizons, numbers of segments, copies; and the polytopes of the price of a projection."""

    model_config = ConfigDict(allow_inf_nan=False)

    dim: int = Field(4, ge=2, le=16, description="dimension d of the drifting traps")
    t_grid: list[Annotated[int, Field(ge=16)]] = Field(
        [200, 800, 3200], min_length=2, description="horizons T, increasing; 3200 must be among them"
    )
    segments: list[Positive] = Field([1, 4, 16], min_length=2, description="numbers S of segments, increasing; 1, 4, 16 first")
    reps: int = Field(8, ge=2, description="independent copies: sequences and queries of their own")
    packing_dims: list[Annotated[int, Field(ge=2)]] = Field([5, 10, 20], min_length=1, description="dimensions of the polytopes")
    packing_rounds: int = Field(100, ge=2, description="rounds on each polytope")
    packing_copies: int = Field(64, ge=2, description="copies that play at once on each polytope")

    @model_validator(mode="after")
    def _fits_together(self) -> NonStationaryConfig:
        for name, needed in (("t_grid", {3200}), ("segments", {1, 4, 16})):
            values = getattr(self, name)
            if values != sorted(set(values)) or not needed <= set(values):
                raise ValueError(f"{name}: expected increasing numbers with {sorted(needed)} among them, got {values}")
        if self.segments[-1] > self.t_grid[0]:
            raise ValueError(f"segments: expected at most t_grid[0] = {self.t_grid[0]} of them, got {self.segments[-1]}")
        return self

    def needs(self) -> Needs:
        """Gains, iterates, paths and rewards of every vertex for the longest horizon, a few copies of each."""
        numbers = self.t_grid[-1] * len(self.segments) * self.reps * self.dim
        return Needs(memory_gb=0.4 + 20 * 8 * numbers / 1e9)

    def work(self) -> Work:
        """Rounds, each with a fixed cost beside that of its copies."""
        return Work("drift", sum(self.t_grid) * (40.0 + len(self.segments) * self.reps))
