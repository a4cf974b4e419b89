"""Parameters of the overview: the whole story in one figure."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from paperbook.study.params import Config


class OverviewConfig(Config):
    """A handful of random linear MDPs, all attacked, whatever their certificate says."""

    model_config = ConfigDict(allow_inf_nan=False)

    n_instances: int = Field(24, ge=2, le=10**4, description="random linear MDPs, none left out")
    episodes: int = Field(8000, ge=100, le=10**7, description="episodes T")
    S: int = Field(8, ge=2, description="states")
    A: int = Field(3, ge=2, description="actions")
    H: int = Field(3, ge=1, description="steps of an episode")
    d: int = Field(5, ge=2, description="dimension of the features")
    bonus: float = Field(3.0, ge=0, description="optimism of the learner")
