"""A linear MDP as a gymnasium environment, and a wrapper that poisons rewards of any environment.

The module imports gymnasium; nothing else of the method does, so import it where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

from paperbook.papers.reward_poisoning.attacks import RewardAttacker
from paperbook.papers.reward_poisoning.mdp import LinearMDP
from paperbook.papers.reward_poisoning.play import NOISE
from paperbook.study.arguments import flag, function, number

ENV_ID = "paperbook/LinearMDP-v0"


class LinearMDPEnv(gymnasium.Env[Any, Any]):
    """Episodes of a linear MDP: actions 0..A-1, rewards <phi, theta_h> plus noise, terminated after H steps.

    Args:
        mdp: the environment.
        noise: standard deviation of the rewards, at least 0.
        observe_step: observe (h, s), h = 0..H, instead of s alone; a stationary learner needs it to be Markov.

    Raises:
        TypeError, ValueError: on another kind of argument, or out of range.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, mdp: LinearMDP, noise: float = NOISE, observe_step: bool = False) -> None:
        if not isinstance(mdp, LinearMDP):
            raise TypeError(f"mdp: expected a LinearMDP, got {type(mdp).__name__}")
        self.mdp, self.noise, self.observe_step = mdp, number("noise", noise, 0), flag("observe_step", observe_step)
        self._rewards = mdp.r()
        self.action_space = gymnasium.spaces.Discrete(mdp.actions)
        self.observation_space = (
            gymnasium.spaces.MultiDiscrete([mdp.horizon + 1, mdp.states])
            if self.observe_step
            else gymnasium.spaces.Discrete(mdp.states)
        )
        self._h, self._s = mdp.horizon, mdp.s0  # as after an episode: `reset` comes first

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start at s0; `info["step"]` is 0. There are no `options`."""
        super().reset(seed=seed)
        self._h, self._s = 0, self.mdp.s0
        return self._observed(), {"step": 0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; `info` has its number in `step`, the state in `state` and the mean reward in `mean_reward`.

        Raises:
            ValueError: an action outside 0..A-1.
            RuntimeError: before `reset`, or after the last step.
        """
        if not self.action_space.contains(action):
            raise ValueError(f"action: expected 0..{self.mdp.actions - 1}, got {action!r}")
        if self._h >= self.mdp.horizon:
            raise RuntimeError(f"step: expected a call of reset before, got one after {self._h} of {self.mdp.horizon} steps")
        h, s, a = self._h, self._s, int(action)
        mean = float(self._rewards[h, s, a])
        reward = mean + self.noise * float(self.np_random.standard_normal())
        self._s = int((self.mdp.cumulative[h, s, a] > self.np_random.random()).argmax())
        self._h += 1
        info = {"step": h, "state": s, "mean_reward": mean}
        return self._observed(), reward, self._h == self.mdp.horizon, False, info

    def _observed(self) -> Any:
        return np.array([self._h, self._s]) if self.observe_step else self._s


class PoisonedRewardWrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Delivers reward + delta; the true reward stays in `info["true_reward"]`, the perturbation in `info["delta"]`.

    Args:
        env: any environment; a `LinearMDPEnv` with states as observations for a `RewardAttacker`.
        attacker: a `RewardAttacker` of one copy, or a callable (observation, action, reward, next observation) -> delta.

    Attributes:
        cost: sum of |delta| since the wrapper was made.

    Raises:
        TypeError, ValueError: an attacker that cannot be called, or one of several copies.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], attacker: RewardAttacker | Callable[[Any, Any, float, Any], SupportsFloat]
    ) -> None:
        super().__init__(env)
        self._whole = all(hasattr(attacker, name) for name in ("reset", "observe", "perturb"))
        if not self._whole:
            function("attacker", attacker)
        elif getattr(attacker, "batch", 1) != 1:
            raise ValueError(f"attacker: expected one of a single copy, got {attacker.batch}")  # type: ignore[union-attr]
        elif not isinstance(env.unwrapped, LinearMDPEnv):
            raise ValueError(f"env: expected a LinearMDPEnv with a RewardAttacker, got {type(env.unwrapped).__name__}; "
                             "pass a callable for other environments")  # fmt: skip
        self.attacker: Any = attacker
        self.cost = 0.0
        self._before: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, of the attacker too."""
        self._before, info = self.env.reset(seed=seed, options=options)
        if self._whole:
            self.attacker.reset()
        return self._before, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step with the poisoned reward.

        Raises:
            ValueError: a perturbation that is not finite.
        """
        after, reward, terminated, truncated, info = self.env.step(action)
        truth = float(reward)
        if self._whole:
            inner: Any = self.env.unwrapped
            h, s, a = info["step"], np.array([info["state"]]), np.array([int(action)])
            delta = float(self.attacker.perturb(h, s, a, np.array([truth]))[0])
            self.attacker.observe(h, s, a, np.array([truth]), np.array([inner._s]))
        else:
            delta = float(self.attacker(self._before, action, truth, after))
        if not np.isfinite(delta):
            raise ValueError(f"attacker: expected a finite perturbation, got {delta}")
        self.cost += abs(delta)
        self._before = after
        return after, truth + delta, terminated, truncated, {**info, "true_reward": truth, "delta": delta}


def register() -> str:
    """Register `LinearMDPEnv` as "paperbook/LinearMDP-v0" (once), for `gymnasium.make(id, mdp=...)`; returns the id."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(ENV_ID, entry_point=f"{LinearMDPEnv.__module__}:{LinearMDPEnv.__name__}")
    return ENV_ID
