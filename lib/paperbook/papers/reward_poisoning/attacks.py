"""Attackers of the rewards: white box (T3), two stages (black box), adaptive target, random; B copies at once.

An attacker sees the step and delivers r + delta; its cost is the sum of |delta|. States, actions and rewards are (B,).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from paperbook.papers.reward_poisoning.batches import (
    copies,
    instances,
    stacked_parameters,
    stacked_rewards,
    stacked_targets,
)
from paperbook.papers.reward_poisoning.certificate import CertificateError, certify
from paperbook.papers.reward_poisoning.mdp import NORM_TOLERANCE, BoolArray, FloatArray, IntArray, LinearMDP
from paperbook.study.arguments import array, choice, flag, generator, integer, number

RIDGE = 1e-3  # of the black box's regressions


class RewardAttacker(Protocol):
    """What stands between environment and learner: `batch` copies, an episode begins with `reset`."""

    batch: int

    def reset(self) -> None:
        """A new episode begins."""

    def observe(self, h: int, s: IntArray, a: IntArray, r: FloatArray, s2: IntArray) -> None:
        """See the step h as it truly was: states, actions, true rewards and next states, (B,) each."""

    def perturb(self, h: int, s: IntArray, a: IntArray, r: FloatArray) -> FloatArray:
        """What is added to the rewards of step h, (B,)."""


class _Attacker:
    """Does nothing and remembers nothing; checks its targets (n, H, S), n = 1 or B, where it has any."""

    def __init__(self, batch: int, targets: IntArray | None = None) -> None:
        self.batch = batch
        self._rows = np.arange(batch)
        if targets is not None:
            self._target = np.broadcast_to(targets, (batch, *targets.shape[1:]))

    def reset(self) -> None:
        """A new episode begins."""

    def observe(self, h: int, s: IntArray, a: IntArray, r: FloatArray, s2: IntArray) -> None:
        """See a step; this attacker learns nothing from it."""

    def _off(self, h: int, s: IntArray, a: IntArray) -> BoolArray:
        off: BoolArray = np.asarray(a) != self._target[self._rows, h, s]
        return off


class NoAttack(_Attacker):
    """Rewards are delivered as they are, to `batch` copies."""

    def __init__(self, batch: int = 1) -> None:
        super().__init__(integer("batch", batch, 1))

    def perturb(self, h: int, s: IntArray, a: IntArray, r: FloatArray) -> FloatArray:
        """Zeros (B,)."""
        return np.zeros(self.batch)


class WhiteBox(_Attacker):
    """Algorithm 2: from the first deviation in an episode on, rewards are those of the poisoned parameters (T3).

    Args:
        mdp: the true environment, or one a copy.
        target: the target policy (H, S), or (B, H, S).
        theta: poisoned parameters (H, d) or (B, H, d), or the certificates (`minimal_cost` results) that hold them.
        batch: B where all copies share everything.

    Raises:
        TypeError, ValueError: on kinds, shapes and contradicting numbers of copies.
    """

    def __init__(self, mdp: LinearMDP | Sequence[LinearMDP], target: ArrayLike, theta: Any, *, batch: int | None = None) -> None:
        mdps = instances(mdp)
        targets, parameters = stacked_targets(mdps, target), stacked_parameters(mdps, theta)
        super().__init__(copies("mdp, target, theta, batch", (len(mdps), len(targets), len(parameters)), batch), targets)
        shift = stacked_rewards(mdps, parameters) - stacked_rewards(mdps)
        self._shift = np.broadcast_to(shift, (self.batch, *shift.shape[1:]))
        self._left = np.zeros(self.batch, dtype=bool)

    def reset(self) -> None:
        """A new episode begins: nobody has left the target."""
        self._left = np.zeros(self.batch, dtype=bool)

    def perturb(self, h: int, s: IntArray, a: IntArray, r: FloatArray) -> FloatArray:
        """<phi(s,a), theta+_h - theta_h> for copies that have left the target in this episode, 0 for the others; (B,)."""
        self._left |= self._off(h, s, a)
        return np.where(self._left, self._shift[self._rows, h, s, a], 0.0)


class AdaptiveTarget(_Attacker):
    """Algorithm 4, the baseline of Xu and Singh: -delta whenever the action is not the target's.

    Args:
        target: the target policy (H, S), or (B, H, S).
        delta: penalty, at least 0.
        batch: B where all copies share the target.

    Raises:
        TypeError, ValueError: on kinds, shapes and ranges.
    """

    def __init__(self, target: ArrayLike, delta: float, *, batch: int | None = None) -> None:
        targets = _policies(target)
        super().__init__(copies("target, batch", (len(targets),), batch), targets)
        self.delta = number("delta", delta, 0)

    def perturb(self, h: int, s: IntArray, a: IntArray, r: FloatArray) -> FloatArray:
        """-delta off the target, 0 on it; (B,)."""
        return np.where(self._off(h, s, a), -self.delta, 0.0)


class RandomPerturbation(_Attacker):
    """The fair baseline: the budget of another attack, spent at random steps with random signs.

    Args:
        budget: what each copy may spend in all, (B,) or a number, at least 0.
        magnitude: size of one perturbation, positive; the last one is cut to what is left.
        steps: T * H, the steps over which the spending is spread evenly in expectation.
        rng: source of steps and signs.
        batch: B where `budget` is a number.

    Raises:
        TypeError, ValueError: on kinds, shapes and ranges.
    """

    def __init__(
        self, budget: ArrayLike, magnitude: float, steps: int, rng: np.random.Generator, *, batch: int | None = None
    ) -> None:
        budgets = np.atleast_1d(array("budget", budget, 0))
        if budgets.ndim != 1:
            raise ValueError(f"budget: expected a number or shape (B,), got {budgets.shape}")
        super().__init__(copies("budget, batch", (len(budgets),), batch))
        self.left = np.broadcast_to(budgets, (self.batch,)).copy()
        self.magnitude = number("magnitude", magnitude, 0, open_low=True)
        self._share = np.minimum(self.left / (self.magnitude * integer("steps", steps, 1)), 1)
        self._rng = generator("rng", rng)

    def perturb(self, h: int, s: IntArray, a: IntArray, r: FloatArray) -> FloatArray:
        """Plus or minus `magnitude` at random steps, while the budget lasts; (B,)."""
        u = self._rng.random((2, self.batch))
        size = np.where(u[0] < self._share, np.minimum(self.magnitude, self.left), 0.0)
        self.left -= size
        return np.where(u[1] < 0.5, -size, size)


class Shifted(_Attacker):
    """Always delivers r + shift, on the target too: how a table of taught rewards is played (policy teaching).

    Args:
        shift: (H, S, A) or (B, H, S, A), finite.
        batch: B where all copies share it.

    Raises:
        TypeError, ValueError: on kinds and shapes.
    """

    def __init__(self, shift: ArrayLike, *, batch: int | None = None) -> None:
        table = array("shift", shift)
        if table.ndim not in (3, 4):
            raise ValueError(f"shift: expected shape (H, S, A) or (B, H, S, A), got {table.shape}")
        table = table if table.ndim == 4 else table[None]
        super().__init__(copies("shift, batch", (len(table),), batch))
        self._shift = np.broadcast_to(table, (self.batch, *table.shape[1:]))

    def perturb(self, h: int, s: IntArray, a: IntArray, r: FloatArray) -> FloatArray:
        """The shift of the step, (B,)."""
        return self._shift[self._rows, h, s, a].copy()


class Budgeted(_Attacker):
    """Another attacker until its money is spent; the last perturbation is cut to what is left.

    Args:
        inner: the attacker.
        budget: what each copy may spend in all, (B,) or a number, at least 0.

    Raises:
        TypeError, ValueError: on kinds, shapes and ranges.
    """

    def __init__(self, inner: RewardAttacker, budget: ArrayLike) -> None:
        super().__init__(inner.batch)
        budgets = np.atleast_1d(array("budget", budget, 0))
        if budgets.shape not in ((1,), (self.batch,)):
            raise ValueError(f"budget: expected a number or shape ({self.batch},), got {budgets.shape}")
        self.inner, self.left = inner, np.broadcast_to(budgets, (self.batch,)).copy()

    def reset(self) -> None:
        """A new episode begins."""
        self.inner.reset()

    def observe(self, h: int, s: IntArray, a: IntArray, r: FloatArray, s2: IntArray) -> None:
        """Hand the step on."""
        self.inner.observe(h, s, a, r, s2)

    def perturb(self, h: int, s: IntArray, a: IntArray, r: FloatArray) -> FloatArray:
        """The inner perturbation, cut to what is left; (B,)."""
        wanted = self.inner.perturb(h, s, a, r)
        size = np.minimum(np.abs(wanted), self.left)
        self.left -= size
        return np.copysign(size, wanted)


class TooFewData(RuntimeError):
    """The black box has not seen enough to estimate the environment on the target's support."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """What the black box believes: a linear MDP, and the states (H, S) that it saw the target reach."""

    mdp: LinearMDP
    support: BoolArray


def estimate(
    phi: ArrayLike, counts: ArrayLike, rewards: ArrayLike, reached: ArrayLike, target: ArrayLike, s0: int,
    ridge: float = RIDGE,
) -> Estimate:  # fmt: skip
    """A linear MDP from counts: ridge regressions of rewards and of indicators of the next state on the features.

    theta_hat is the best one within the cap sqrt(d), which is known: where it is outside, the ridge is raised. mu_hat is
    clipped at 0 and its rows are scaled to sum 1. A next state that was never reached while the target was followed is taken
    out of the latents that the target mixes there: with features that are mixtures it cannot have mass. A latent about which
    nothing is known goes everywhere alike.

    Args:
        phi: features (S, A, d), mixtures of latents: at least 0 with sum 1 for each (s,a).
        counts: transitions N[h,s,a,s'] (H, S, A, S), at least 0.
        rewards: sums of the true rewards (H, S, A).
        reached: how often the target, followed from the start, was at s at step h, (H, S).
        target: the target policy (H, S).
        s0: the first state.
        ridge: of both regressions, positive.

    Raises:
        TypeError, ValueError: on kinds, shapes and ranges; features that are no mixtures.
        TooFewData: where at some step no episode has followed the target.
    """
    features = array("phi", phi, ndim=3)
    S, A, d = features.shape
    N = array("counts", counts, 0, ndim=4)
    H = len(N)
    R, seen = array("rewards", rewards, ndim=3), array("reached", reached, 0, ndim=2)
    goal = _policies(target)
    for name, value, expected in (
        ("counts", N, (H, S, A, S)), ("rewards", R, (H, S, A)), ("reached", seen, (H, S)), ("target", goal[0], (H, S)),
    ):  # fmt: skip
        if value.shape != expected:
            raise ValueError(f"{name}: expected shape {expected}, got {value.shape}")
    number("ridge", ridge, 0, open_low=True)
    integer("s0", s0, 0, S - 1)
    if features.min() < -1e-9 or np.abs(features.sum(axis=2) - 1).max() > 1e-9:  # rounding of a Dirichlet draw
        raise ValueError(
            "phi: expected mixtures (entries at least 0 with sum 1), as the estimate of the kernels is made of theirs, got "
            f"entries from {features.min():.3g} and sums up to {features.sum(axis=2).max():.3g}"
        )
    support = seen > 0
    support[0, s0] = True
    if not support.any(axis=1).all():
        raise TooFewData(f"reached: expected an episode that follows the target at every step, got none at step "
                         f"{int(support.any(axis=1).argmin())}")  # fmt: skip
    visits = N.sum(axis=3)
    gram = np.einsum("hsa,sad,sae->hde", visits, features, features) + ridge * np.eye(d)
    moment = np.einsum("hsa,sad->hd", R, features)
    theta = np.stack([_within(one, rest, math.sqrt(d)) for one, rest in zip(gram, moment, strict=True)])
    mu = np.maximum(np.linalg.solve(gram, np.einsum("hsat,sad->hdt", N, features)), 0)
    for h in range(H):
        after = support[h + 1] if h + 1 < H else np.ones(S, dtype=bool)
        at = np.flatnonzero(support[h])
        mixed = features[at, goal[0][h, at]].max(axis=0) > 0
        mu[h, mixed] = np.where(after, mu[h, mixed], 0)
        total = mu[h].sum(axis=1)
        known = total > 1e-9  # less is rounding of a regression without a visit
        # OPEN(paper, black-box attack): where a latent without data leads is not said; here to all (possible) states alike
        guess = np.where(mixed[:, None], after, True).astype(float)
        guess /= guess.sum(axis=1, keepdims=True)
        mu[h] = np.where(known[:, None], mu[h] / np.where(known, total, 1)[:, None], guess)
    return Estimate(LinearMDP(features, mu, theta, s0), support)


def _within(gram: FloatArray, moment: FloatArray, cap: float) -> FloatArray:
    """The solution (d,) of gram theta = moment, or of (gram + rise I) theta = moment with the least rise that keeps ||theta||
    within the cap: least squares in the ball. Shortening theta instead would spoil the directions that the data do determine,
    for the sake of one that they hardly do."""
    values, vectors = np.linalg.eigh(gram)
    along = vectors.T @ moment
    low, high = 0.0, float(np.linalg.norm(along)) / cap  # ||theta|| <= ||moment|| / rise
    if np.linalg.norm(along / values) > cap:
        for _ in range(60):  # halvings: beyond a double's digits
            middle = (low + high) / 2
            low, high = (middle, high) if np.linalg.norm(along / (values + middle)) > cap else (low, middle)
        values = values + high
    theta: FloatArray = vectors @ (along / values)
    return theta


class TwoStage(_Attacker):
    """Algorithm 3, the black box: penalise and watch, then estimate, certify the estimate, and poison by it.

    Args:
        phi: features (S, A, d), or (B, S, A, d).
        target: the target policy (H, S), or (B, H, S).
        episodes: T, all episodes that will be played.
        explore: T1, episodes of the first stage, or None for the default.
        delta: penalty of the first stage, or None for the default.
        ridge: of the regressions.
        cap: of the programme, as in `certify`.
        override: go on with the estimate's best poison where its eps is not positive; else such copies are left alone.
        only_lower: deliver the poisoned reward only where it is below the true one.
        s0: the first state.
        batch: B where all copies share everything.

    Attributes:
        eps: estimated eps* (B,), NaN before the second stage (or where the data do not suffice: the first goes on then, and
            the estimate is tried again after as many episodes).

    Raises:
        TypeError, ValueError: on kinds, shapes and ranges.
    """

    def __init__(
        self, phi: ArrayLike, target: ArrayLike, episodes: int, *, explore: int | None = None, delta: float | None = None,
        ridge: float = RIDGE, cap: str | float | None = "sqrt_d", override: bool = False, only_lower: bool = False,
        s0: int = 0, batch: int | None = None,
    ) -> None:  # fmt: skip
        features = array("phi", phi)
        if features.ndim not in (3, 4):
            raise ValueError(f"phi: expected shape (S, A, d) or (B, S, A, d), got {features.shape}")
        norm = float(np.linalg.norm(features, axis=-1).max())
        if norm > 1 + NORM_TOLERANCE:
            raise ValueError(f"phi: expected norms of at most 1, got {norm:.6g}")
        features = features if features.ndim == 4 else features[None]
        targets = _policies(target)
        super().__init__(copies("phi, target, batch", (len(features), len(targets)), batch), targets)
        S, A, d = features.shape[1:]
        H = targets.shape[1]
        if targets.shape[2] != S or targets.max() >= A:
            raise ValueError(f"target: expected {S} states and actions in 0..{A - 1}, got {targets.shape[2]} states and "
                             f"actions up to {targets.max()}")  # fmt: skip
        self._phi = np.broadcast_to(features, (self.batch, S, A, d))
        total = integer("episodes", episodes, 1)
        # OPEN(paper, black-box attack): the length of the first stage is read off a slide's cost, T^(3/4)
        self.explore = math.ceil(total**0.75) if explore is None else integer("explore", explore, 1)
        # OPEN(paper, black-box attack): the size of the penalty is not given; sqrt(d) is the most a reward can be under the cap
        self.delta = math.sqrt(d) if delta is None else number("delta", delta, 0, open_low=True)
        # OPEN(paper, black-box attack): the ridge of the estimates is not given; 1e-3
        self.ridge = number("ridge", ridge, 0, open_low=True)
        if isinstance(cap, str):
            choice("cap", cap, ("sqrt_d",))
        elif cap is not None:
            number("cap", cap, 0, open_low=True)
        self.cap, self.override, self.only_lower = cap, flag("override", override), flag("only_lower", only_lower)
        self.s0 = integer("s0", s0, 0, S - 1)
        self.counts = np.zeros((self.batch, H, S, A, S))
        self.rewards = np.zeros((self.batch, H, S, A))
        self.reached = np.zeros((self.batch, H, S))
        self.eps = np.full(self.batch, np.nan)
        self.theta = np.zeros((self.batch, H, d))
        self._poison = np.zeros((self.batch, H, S, A))
        self._second = np.zeros(self.batch, dtype=bool)
        self._silent = np.zeros(self.batch, dtype=bool)
        self._left = np.zeros(self.batch, dtype=bool)
        self._leaving = np.zeros(self.batch, dtype=bool)
        self._next_try, self._episode = self.explore, 0

    def reset(self) -> None:
        """A new episode begins; at the end of the first stage, estimate and certify."""
        if self._episode == self._next_try and not self._second.all():
            for b in np.flatnonzero(~self._second):
                self._estimate(int(b))
            self._next_try += self.explore
        self._episode += 1
        self._left = np.zeros(self.batch, dtype=bool)

    def observe(self, h: int, s: IntArray, a: IntArray, r: FloatArray, s2: IntArray) -> None:
        """Count the step of copies that are in the first stage."""
        if self._second.all():
            return
        first = (~self._second).astype(float)
        self.counts[self._rows, h, s, a, s2] += first
        self.rewards[self._rows, h, s, a] += first * r
        # `perturb` came before, so those that leave the target at this very step are marked already; at s they still followed
        self.reached[self._rows, h, s] += first * ~(self._left & ~self._leaving)

    def perturb(self, h: int, s: IntArray, a: IntArray, r: FloatArray) -> FloatArray:
        """First stage: -delta off the target. Second: what turns the reward into <phi, theta+_hat> after a deviation; (B,)."""
        off = self._off(h, s, a)
        self._leaving = off & ~self._left
        self._left |= off
        penalty = np.where(off, -self.delta, 0.0)
        if not self._second.any():
            return penalty
        poison = self._poison[self._rows, h, s, a] - r
        if self.only_lower:
            poison = np.minimum(poison, 0)
        return np.where(self._second, np.where(self._left & ~self._silent, poison, 0.0), penalty)

    def _estimate(self, b: int) -> None:
        try:
            found = estimate(self._phi[b], self.counts[b], self.rewards[b], self.reached[b], self._target[b], self.s0, self.ridge)
            certificate = certify(found.mdp, self._target[b], cap=self.cap)
        except (TooFewData, CertificateError):
            return
        self._second[b] = True
        self.eps[b], self.theta[b] = certificate.eps, certificate.theta
        self._silent[b] = certificate.eps <= 0 and not self.override
        self._poison[b] = found.mdp.r(certificate.theta)


def _policies(target: Any) -> IntArray:
    raw = np.asarray(target)
    if raw.dtype.kind not in "iu":
        raise TypeError(f"target: expected an integer action for each step and state, got dtype {raw.dtype}")
    if raw.ndim not in (2, 3) or not raw.size:
        raise ValueError(f"target: expected shape (H, S) or (B, H, S), got {raw.shape}")
    if raw.min() < 0:
        raise ValueError(f"target: expected actions of at least 0, got {raw.min()}")
    return (raw if raw.ndim == 3 else raw[None]).astype(np.int64)
