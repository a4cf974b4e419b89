"""The loop of learner, environment and attacker, its meters, and the criterion by which a run counts as attacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from paperbook.papers.reward_poisoning.attacks import RewardAttacker
from paperbook.papers.reward_poisoning.batches import (
    copies,
    instances,
    stacked_parameters,
    stacked_rewards,
    stacked_targets,
    value_gaps,
)
from paperbook.papers.reward_poisoning.mdp import BoolArray, FloatArray, IntArray, LinearMDP
from paperbook.study.arguments import function, generator, integer, number

NOISE = 0.1  # standard deviation of the rewards' noise (our choice)
CHUNK = 128  # episodes for which random numbers are drawn, and meters read, at once

# The criterion of an outcome (our choice), set before any run and not tuned. The share of a power p of T that falls into the
# last quarter, per episode, is below half of the first quarter's for p < 0.71: sqrt(T) falls, T does not.
QUIET = 0.01  # deviating episodes in the last half, as a share, below which a run counts as quiet
FALLEN = 0.5  # last quarter over first quarter, below which an increment counts as fallen


class Learner(Protocol):
    """A victim: `batch` copies; an episode is `plan`, then `act` and `observe` at every step."""

    batch: int

    def plan(self) -> None:
        """Before an episode."""

    def act(self, h: int, s: IntArray) -> IntArray:
        """Actions (B,)."""

    def observe(self, h: int, s: IntArray, a: IntArray, r: FloatArray, s2: IntArray) -> None:
        """The step with the rewards as delivered, (B,) each."""


@dataclass(frozen=True, eq=False)
class AttackHistory:
    """What a run of T episodes and B copies leaves, all (T, B).

    Attributes:
        deviations: whether the episode left the target somewhere. The first action off the target is taken in a state that
            the target reached, so this is "a deviation on the support, reached by following the target".
        wrong_steps: actions of the episode that were not the target's.
        cost: sum of |delta|.
        returns: sum of the true mean rewards <phi, theta>.
        true_regret: sum over the steps of V*_h(s_h) - Q*_h(s_h, a_h) under the true parameters.
        poisoned_regret: the same under the poisoned parameters (T3); None where none were given.
    """

    deviations: BoolArray
    wrong_steps: IntArray
    cost: FloatArray
    returns: FloatArray
    true_regret: FloatArray
    poisoned_regret: FloatArray | None

    @property
    def episodes(self) -> int:
        """Number T of episodes."""
        return len(self.cost)


def run_attack(
    mdp: LinearMDP | Sequence[LinearMDP], learner: Learner, attacker: RewardAttacker, target: ArrayLike, episodes: int,
    rng: np.random.Generator, *, theta: Any = None, noise: float = NOISE, progress: Callable[[int], None] | None = None,
) -> AttackHistory:  # fmt: skip
    """Play `episodes` episodes of every copy. Each copy draws from a stream of its own, so it does not see how many there are.

    Args:
        mdp: the environment of all copies, or one a copy.
        learner: the victim, with B copies; it is used up.
        attacker: with B copies; it is used up.
        target: (H, S) or (B, H, S).
        episodes: T >= 1.
        rng: source of next states and noise; it spawns the streams of the copies.
        theta: poisoned parameters (H, d) or (B, H, d), or certificates, for `poisoned_regret`.
        noise: standard deviation of the rewards.
        progress: called with the number of finished episodes, now and then.

    Raises:
        TypeError, ValueError: on kinds, shapes, ranges and contradicting numbers of copies; perturbations that are not finite.
    """
    mdps = instances(mdp)
    targets = stacked_targets(mdps, target)
    parameters = None if theta is None else stacked_parameters(mdps, theta)
    T = integer("episodes", episodes, 1)
    number("noise", noise, 0)
    generator("rng", rng)
    if progress is not None:
        function("progress", progress)
    B = integer("learner.batch", learner.batch, 1)
    if getattr(learner, "episodes", 0):
        raise ValueError(f"learner: expected a fresh one, got one that has seen {learner.episodes} episodes")  # type: ignore[attr-defined]
    if attacker.batch != B:
        raise ValueError(f"attacker.batch: expected {B}, the copies of the learner, got {attacker.batch}")
    found = copies("mdp, target, theta", (len(mdps), len(targets), 1 if parameters is None else len(parameters)), None)
    if found not in (1, B):
        raise ValueError(f"mdp, target, theta: expected one or {B} copies, as the learner has, got {found}")
    for name in ("states", "actions", "horizon", "dim"):
        own = getattr(mdps[0], name)
        if getattr(learner, name, own) != own:
            raise ValueError(f"learner.{name}: expected {own}, as mdp has, got {getattr(learner, name)}")
    H, S, A = mdps[0].horizon, mdps[0].states, mdps[0].actions
    # tables in one row, looked up by the number of (copy, h, s, a); copies that share an MDP share its rows
    rewards = stacked_rewards(mdps)
    own = np.arange(B) * (H * S * A)
    base = own if len(mdps) > 1 else np.zeros(B, dtype=np.int64)
    mean, true_gap = rewards.ravel(), value_gaps(mdps).ravel()
    cumulative = np.stack([one.cumulative for one in mdps]).reshape(-1, S)
    wrong = np.arange(A) != np.broadcast_to(targets[..., None], (len(targets), H, S, A))
    wrong, at_wrong = wrong.ravel(), own if len(targets) > 1 else np.zeros(B, dtype=np.int64)
    gap = None if parameters is None else value_gaps(mdps, parameters)
    at_gap = own if gap is not None and len(gap) > 1 else np.zeros(B, dtype=np.int64)
    start = np.broadcast_to(np.array([one.s0 for one in mdps]), (B,))
    streams = rng.spawn(B)

    shape = (T, B)
    deviations, wrong_steps = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=np.int64)
    cost, returns, true_regret = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    poisoned = None if gap is None else np.zeros(shape)
    for first in range(0, T, CHUNK):
        size = min(CHUNK, T - first)
        draws = np.stack([stream.random((CHUNK, H)) for stream in streams], axis=2)  # (chunk, H, B)
        noises = noise * np.stack([stream.standard_normal((CHUNK, H)) for stream in streams], axis=2)
        rows, deltas = np.zeros((size, H, B), dtype=np.int64), np.zeros((size, H, B))
        for e in range(size):
            learner.plan()
            attacker.reset()
            s = start
            for h in range(H):
                a = learner.act(h, s)
                if a.min() < 0 or a.max() >= A:
                    raise ValueError(f"learner: expected actions in 0..{A - 1}, got {a.min()}..{a.max()}")
                row = (h * S + s) * A + a
                at = base + row
                r = mean[at] + noises[e, h]
                delta = attacker.perturb(h, s, a, r)
                s2 = (cumulative[at] > draws[e, h][:, None]).argmax(axis=1)
                learner.observe(h, s, a, r + delta, s2)
                attacker.observe(h, s, a, r, s2)
                rows[e, h], deltas[e, h] = row, delta
                s = s2
        if not np.isfinite(deltas).all():
            raise ValueError(f"attacker: expected finite perturbations, got some that are not by episode {first + size}")
        done = slice(first, first + size)
        off = wrong[rows + at_wrong]
        deviations[done], wrong_steps[done] = off.any(axis=1), off.sum(axis=1)
        cost[done] = np.abs(deltas).sum(axis=1)
        returns[done] = mean[rows + base].sum(axis=1)
        true_regret[done] = true_gap[rows + base].sum(axis=1)
        if poisoned is not None and gap is not None:
            poisoned[done] = gap.ravel()[rows + at_gap].sum(axis=1)
        if progress is not None:
            progress(first + size)
    return AttackHistory(deviations, wrong_steps, cost, returns, true_regret, poisoned)


def obedience_loss(mdp: LinearMDP, target: ArrayLike, theta: ArrayLike | None = None) -> float:
    """V* - V^target in the first state under the rewards of `theta` (H, d): what one obedient episode costs a learner (T4).

    A learner with regret R under those rewards plays the target in at most R / loss episodes. Where eps* <= 0 the target is
    not the only optimal play on its support, and with a gap below 0 the loss is positive, whatever the poison.

    Raises:
        TypeError, ValueError: as `LinearMDP.policy_q`.
    """
    goal = mdp.policy(target, "target")
    own = mdp.policy_q(goal, theta)[0, mdp.s0, goal[0, mdp.s0]]
    return float(mdp.optimal_q(theta)[0, mdp.s0].max() - own)


def outcome(history: AttackHistory) -> list[str]:
    """What became of each copy, from increments: "attacked", "resisted" or "unclear" (our choice of thresholds, fixed above).

    Deviating episodes and cost are compared per episode, in the last quarter of the run and in the first. Both have fallen
    below half: the attack sublinear. *Attacked*: that, and fewer than 1 % of the episodes of the last half deviate.
    *Resisted*: deviations or cost have not fallen. Without a cost and without deviations nothing had to be done: attacked.

    Raises:
        ValueError: fewer than 8 episodes.
    """
    T = history.episodes
    if T < 8:
        raise ValueError(f"history: expected at least 8 episodes, got {T}")
    late = history.deviations[T // 2 :].mean(axis=0)
    fallen = np.ones(late.shape, dtype=bool)
    for values in (history.deviations, history.cost):
        first, last = values[: T // 4].mean(axis=0), values[-(T // 4) :].mean(axis=0)
        fallen &= last <= FALLEN * first
    return ["attacked" if quiet and down else "unclear" if down else "resisted"
            for quiet, down in zip(late < QUIET, fallen, strict=True)]  # fmt: skip
