"""Parameters of the page on gymnasium's environments: tables, and learned features of continuous ones."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from paperbook.study.params import Config
from paperbook.study.requirements import Asset, Needs, Work

Rank = Annotated[int, Field(ge=1)]

_WIDTHS = {"CartPole-v1": (4, 2), "Pendulum-v1": (3, 1), "MountainCarContinuous-v0": (2, 1), "HalfCheetah-v5": (17, 6)}


class GymnasiumConfig(Config):
    """Which continuous environment, how its target and features are learned, and who is attacked; and the finite tables."""

    model_config = ConfigDict(allow_inf_nan=False)
    memory_parameters: ClassVar[tuple[str, ...]] = ("copies", "support_states", "max_actions")

    environment: Literal["CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "HalfCheetah-v5"] = Field(
        "CartPole-v1", description="continuous environment"
    )
    tables: bool = Field(True, description="also certify FrozenLake, CliffWalking and Taxi (seconds)")
    table_horizon: int = Field(10, ge=6, le=64, description="steps H of the tabular environments")
    ranks: list[Rank] = Field([4, 8, 12], min_length=1, description="ranks of the low-rank models of FrozenLake, increasing")
    targets: int = Field(4, ge=2, description="random targets of each tabular environment")
    horizon: int = Field(3, ge=2, le=1000, description="steps H of an episode of the continuous environment")
    bins: int = Field(5, ge=2, description="values of a continuous action (unused for CartPole)")
    max_actions: int = Field(64, ge=2, description="most actions; a larger grid is sampled (unused for CartPole)")
    reward_scale: float = Field(1.0, gt=0, description="factor on every reward")
    target: Literal["fitted-q", "sac"] = Field("fitted-q", description="who learns the target from the negated reward")
    target_steps: int = Field(4000, ge=100, description="environment steps the target is learned from")
    learning_starts: int = Field(1000, ge=1, description="steps before the first update (sac only)")
    train_freq: int = Field(1, ge=1, description="environment steps between two updates (sac only)")
    sac_lr: float = Field(0.001, gt=0, description="learning rate of actor and critics (sac only)")
    tau: float = Field(0.005, gt=0, le=1, description="step of the target critics (sac only)")
    buffer: int = Field(10_000, ge=1000, description="replay buffer (sac only)")
    d: int = Field(64, ge=2, description="dimension of the features")
    d_grid: list[Annotated[int, Field(ge=2)]] = Field(
        [16], description="other dimensions to certify in, may be none; victims play in the first too"
    )
    h_grid: list[Annotated[int, Field(ge=2)]] = Field([8], description="other horizons to certify, may be none")
    hidden: int = Field(64, ge=4, description="width of all networks")
    lr: float = Field(0.001, gt=0, description="learning rate of the features")
    batch: int = Field(128, ge=2, description="rows of an update, of features and of sac")
    feature_steps: int = Field(300, ge=1, description="updates of the features")
    reward_weight: float = Field(0.9, ge=0, description="weight of the reward's loss")
    dynamics_weight: float = Field(0.7, ge=0, description="weight of the dynamics' loss")
    gamma: float = Field(0.95, ge=0, lt=1, description="discount of target, dynamics' loss and discounted certificate")
    data_episodes: int = Field(240, ge=24, description="episodes of data: a third each of target, mixed and random play")
    certificate: Literal["finite", "discounted"] = Field("finite", description="programme: H steps, or one theta for all time")
    support_states: int = Field(40, ge=1, description="support states of a step")
    penalty: float = Field(1e-6, gt=0, description="ridge of the regressions behind the certificate")
    pin_tol: float = Field(0.03, gt=0, lt=1, description="singular values below that share of the largest are not pinned")
    splits: int = Field(4, ge=2, description="random halves of the data on which the sign is checked")
    episodes: int = Field(1500, ge=16, description="episodes of each victim")
    copies: int = Field(16, ge=1, description="copies of the environment that a victim plays at once")
    growth: float = Field(1.1, gt=1, le=2, description="a victim plans when its episodes have grown by that factor")
    bonus: float = Field(0.3, ge=0, description="optimism of the victim")
    lam: float = Field(0.1, gt=0, description="ridge of the victim")
    penalty_at: float = Field(4.0, gt=0, description="what the attack AT takes off an action that is not the target's")
    device: str = Field("cpu", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:<i>")

    @model_validator(mode="after")
    def _fits_together(self) -> GymnasiumConfig:
        if self.ranks != sorted(set(self.ranks)):
            raise ValueError(f"ranks: expected increasing numbers, got {self.ranks}")
        if self.target == "sac" and self.environment == "CartPole-v1":
            raise ValueError("target: CartPole-v1 has two discrete actions and expects 'fitted-q', got 'sac'")
        if self.target == "sac" and self.learning_starts >= self.target_steps:
            raise ValueError(f"learning_starts: expected less than target_steps = {self.target_steps}, got "
                             f"{self.learning_starts}")  # fmt: skip
        if self.target_steps < max([self.horizon, *self.h_grid]):
            raise ValueError(f"target_steps: expected at least horizon = {self.horizon} and all of h_grid = {self.h_grid}, "
                             f"got {self.target_steps}")  # fmt: skip
        unknowns = max([self.d, *self.d_grid]) * max([self.horizon, *self.h_grid])
        if self.certificate == "finite" and unknowns > 4096:
            raise ValueError(f"certificate: d * horizon = {unknowns} unknowns expect 'discounted', got 'finite'")
        return self

    def assets(self) -> list[Asset]:
        """HalfCheetah needs the package mujoco; the other simulators come with gymnasium."""
        if self.environment != "HalfCheetah-v5":
            return []
        return [Asset("the package mujoco", find_spec("mujoco") is not None, "pip install -c constraints.txt -e '.[full]'")]

    def needs(self) -> Needs:
        """Estimates: stored states of the victim, its Gram matrices, the certificate (dense, thrice)."""
        width, _ = _WIDTHS[self.environment]
        stored = 4 * self.episodes * self.horizon * (2 * width + 3) / 1e9
        gram = 3 * 8 * self.horizon * self.d**2 / 1e9
        dim, longest = max([self.d, *self.d_grid]), max([self.horizon, *self.h_grid])
        steps = longest if self.certificate == "finite" else 1
        states = self.support_states * longest
        solver = 3 * 16 * states * (self._actions() - 1) * dim * steps / 1e9
        chunk = 4 * 131_072 * (self.d + 2 * self.hidden) / 1e9
        memory = 1.2 + solver + 8 * 6 * self.data_episodes * longest * dim / 1e9
        if self.device == "cpu":
            return Needs(memory_gb=memory + stored + gram + chunk, disk_gb=0.1 + 2 * (stored + gram))
        return Needs(memory_gb=memory + 2, gpu_gb=1 + stored + gram + chunk, disk_gb=0.1 + 2 * (stored + gram))

    def work(self) -> Work:
        """Steps of environments, of the target's learning, and rows of features in plans: all stored, ten times (growth 1.1)."""
        steps = 3.0 * self.episodes * self.horizon * (2 if self.d_grid else 1)
        plans = steps * self._actions() / (self.growth - 1) * self.d * self.hidden / 1e6
        studies = 1 + len(self.d_grid) + len(self.h_grid)
        learned = studies * (self.target_steps * (20.0 if self.target == "sac" else 1.0) + 10.0 * self.feature_steps)
        return Work(f"deep on {self.device}", steps + plans + learned)

    def _actions(self) -> int:
        """Number of actions at most."""
        _, width = _WIDTHS[self.environment]
        return 2 if self.environment == "CartPole-v1" else min(self.max_actions, self.bins**width)
