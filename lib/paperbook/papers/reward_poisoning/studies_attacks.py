"""Experiments of the white-box page: every draw attacked, by every attacker, on the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paperbook.papers.reward_poisoning.attacks import (
    AdaptiveTarget,
    Budgeted,
    NoAttack,
    RandomPerturbation,
    RewardAttacker,
    Shifted,
    WhiteBox,
)
from paperbook.papers.reward_poisoning.certificate import AttackabilityCertificate, certify, minimal_cost
from paperbook.papers.reward_poisoning.learner import LSVIUCB, EpsilonGreedyLSVI
from paperbook.papers.reward_poisoning.mdp import BoolArray, FloatArray, IntArray, LinearMDP, random_instance
from paperbook.papers.reward_poisoning.play import NOISE, AttackHistory, obedience_loss, outcome, run_attack
from paperbook.papers.reward_poisoning.teaching import rakhsha2020
from paperbook.study.arguments import integer, number
from paperbook.study.seeds import rng

DECIDED = 0.05  # |eps*| above which a draw's outcome is compared with its sign (set before any run)
TOLERANCE = 1e-5  # of the certificates: far below DECIDED, and no draw is lost to a solver that stops a little early
CLEAR = 0.2  # eps* from which theory promises an end of the deviations within some thousand episodes
ATTACKS = ("none", "white", "cheap", "at", "at_budget", "random", "teaching")
OUTCOMES = ("attacked", "unclear", "resisted")


@dataclass(frozen=True, eq=False)
class Draws:
    """All instances drawn, none left out, and what the certificate says of them: n of them."""

    mdps: tuple[LinearMDP, ...]
    targets: IntArray  # (n, H, S)
    certificates: tuple[AttackabilityCertificate, ...]

    @property
    def eps(self) -> FloatArray:
        """eps* (n,)."""
        return np.array([one.eps for one in self.certificates])

    @property
    def kinds(self) -> list[str]:
        """Kind of each (T7)."""
        return [one.kind for one in self.certificates]

    @property
    def loss(self) -> FloatArray:
        """What one obedient episode costs a learner under the certificate's poison (n,), T4."""
        pairs = zip(self.mdps, self.targets, self.certificates, strict=True)
        return np.array([obedience_loss(mdp, target, one.theta) for mdp, target, one in pairs])

    @property
    def phi(self) -> FloatArray:
        """Features (n, S, A, d)."""
        return np.stack([mdp.phi for mdp in self.mdps])

    def sides(self) -> tuple[BoolArray, BoolArray]:
        """Which draws count as attackable, eps* > DECIDED, and which as robust, eps* < -DECIDED; (n,) each.

        Raises:
            ValueError: where a side is empty, or no eps* is above CLEAR.
        """
        able, robust = self.eps > DECIDED, self.eps < -DECIDED
        if not (robust.any() and (self.eps > CLEAR).any()):
            raise ValueError(
                f"n_instances: expected so many that some eps* are below {-DECIDED} and some above {CLEAR}, got {len(able)} "
                f"draws with eps* from {self.eps.min():.3g} to {self.eps.max():.3g}"
            )
        return able, robust

    def subset(self, mask: BoolArray) -> Draws:
        """The draws where `mask` (n,) holds.

        Raises:
            ValueError: where it holds nowhere.
        """
        at = np.flatnonzero(mask)
        if not len(at):
            raise ValueError("mask: expected at least one draw, got none; draw more instances")
        return Draws(tuple(self.mdps[i] for i in at), self.targets[at], tuple(self.certificates[i] for i in at))


def draw_instances(
    n: int, states: int, actions: int, horizon: int, dim: int, stream: np.random.Generator, *, latent_support: int = 1,
    cap: float = 1.0, q_mode: str = "optimal",
) -> Draws:  # fmt: skip
    """Draw n instances by `random_instance` and certify them.

    Args:
        n: how many, at least 1.
        states, actions, horizon, dim, latent_support: of `random_instance`.
        stream: source of the draws.
        cap: bound on ||theta_h|| in units of sqrt(d).
        q_mode: of the certificate.

    Raises:
        TypeError, ValueError, CertificateError: as `random_instance` and `certify`.
    """
    integer("n", n, 1)
    limit = number("cap", cap, 0, open_low=True) * float(np.sqrt(dim))
    pairs = [random_instance(states, actions, horizon, dim, latent_support=latent_support, rng=stream) for _ in range(n)]
    certificates = tuple(certify(mdp, target, cap=limit, q_mode=q_mode, tol=TOLERANCE) for mdp, target in pairs)
    return Draws(tuple(mdp for mdp, _ in pairs), np.stack([target for _, target in pairs]), certificates)


@dataclass(frozen=True, eq=False)
class Trace:
    """A run of n copies, kept at k episodes.

    Attributes:
        at: numbers of episodes (k,), from 1 to T, with T/4 and T/2 among them.
        deviations, cost, regret: sums up to there (k, n); `regret` under the poisoned parameters, NaN where none were given.
        late: share of deviating episodes in the last half (n,).
        obedient_cost: the largest cost of an episode without a deviation (n,).
        outcome: of each copy.
        bound_ratio: largest deviations * eps* / regret over all episodes (n,), NaN where eps* <= 0 or there is no regret (T3).
    """

    at: IntArray
    deviations: FloatArray
    cost: FloatArray
    regret: FloatArray
    late: FloatArray
    obedient_cost: FloatArray
    outcome: tuple[str, ...]
    bound_ratio: FloatArray

    def slope(self, what: str) -> FloatArray:
        """Exponent p of "grows like T^p" between T/4 and T (n,), of "deviations" or "cost"; 0 where nothing was added."""
        values = getattr(self, what)
        quarter = values[np.searchsorted(self.at, self.at[-1] // 4)]
        # + 1: a copy without a deviation so far has an exponent too
        return np.asarray(np.log((values[-1] + 1) / (quarter + 1)) / np.log(self.at[-1] / (self.at[-1] // 4)))


def trace(history: AttackHistory, eps: FloatArray | None = None) -> Trace:
    """What the page keeps of a history, with the bound of T3 looked at after every episode where eps* (n,) is given."""
    T = history.episodes
    points = np.geomspace(1, T, 50).round().astype(int)
    at = np.unique(np.concatenate([points, [max(T // 4, 1), max(T // 2, 1)]]))
    deviations, cost = history.deviations.cumsum(axis=0), history.cost.cumsum(axis=0)
    regret = np.full(deviations.shape, np.nan) if history.poisoned_regret is None else history.poisoned_regret.cumsum(axis=0)
    ratio = np.full(deviations.shape[1], np.nan)
    if eps is not None and history.poisoned_regret is not None:
        for i in np.flatnonzero(eps > 0):
            seen = deviations[:, i] > 0
            ratio[i] = float((deviations[seen, i] * eps[i] / np.maximum(regret[seen, i], 1e-300)).max(initial=0.0))
    obedient = np.where(history.deviations, 0.0, history.cost).max(axis=0)
    return Trace(
        at, deviations[at - 1].astype(float), cost[at - 1], regret[at - 1], history.deviations[T // 2 :].mean(axis=0), obedient,
        tuple(outcome(history)), ratio,
    )  # fmt: skip


def cheap_poison(draws: Draws) -> FloatArray:
    """Parameters (n, H, d): the cheapest poison of margin eps*/2 where eps* > 0 (T8b), the certificate's elsewhere."""
    out = []
    for mdp, target, one in zip(draws.mdps, draws.targets, draws.certificates, strict=True):
        cap = None if np.isinf(one.cap) else one.cap
        attackable = one.attackable and np.isfinite(one.eps)
        out.append(minimal_cost(mdp, target, one.eps / 2, cap, one.q_mode).theta if attackable else one.theta)
    return np.stack(out)


def taught_rewards(draws: Draws, margin: float = 0.1) -> FloatArray:
    """Changes of the rewards (n, H, S, A): tabular policy teaching that leaves the target's own rewards alone.

    It knows states and actions, not features, so it always exists; a margin a visit, as the certificate has it.
    """
    number("margin", margin, 0, open_low=True)
    return np.stack([
        rakhsha2020(mdp, target, margin, pinned=True, by_policy=False).reward - mdp.r()
        for mdp, target in zip(draws.mdps, draws.targets, strict=True)
    ])  # fmt: skip


def attack_study(
    draws: Draws, attacks: Sequence[str], episodes: int, seed: int, *, bonus: float, lam: float = 1.0, noise: float = NOISE,
    epsilon: float | None = None, delta: float | None = None, progress: Callable[[str], None] | None = None,
) -> dict[str, Trace]:  # fmt: skip
    """Play each of `attacks` on all draws, each copy with the same random numbers whatever the attack.

    Args:
        draws: the instances.
        attacks: out of ATTACKS; "at_budget" and "random" spend what "white" has spent on the same copy, so need it before.
        episodes: T.
        seed: of the play.
        bonus, lam: of LSVI-UCB.
        noise: of the rewards.
        epsilon: take `EpsilonGreedyLSVI` with it in place of LSVI-UCB.
        delta: penalty of "at" and "at_budget", and size of a random perturbation; sqrt(d) where None.
        progress: called with the name of an attack when it has been played.

    Raises:
        TypeError, ValueError: unknown attacks, a missing "white", and as the parts do.
    """
    for i, name in enumerate(attacks):
        if name not in ATTACKS:
            raise ValueError(f"attacks: expected names out of {', '.join(ATTACKS)}, got {name!r}")
        if name in ("at_budget", "random") and "white" not in attacks[:i]:
            raise ValueError(f"attacks: expected 'white' before {name!r}, whose budget it sets, got {list(attacks)}")
    mdps, phi, horizon, n = draws.mdps, draws.phi, draws.mdps[0].horizon, len(draws.mdps)
    penalty = float(np.sqrt(mdps[0].dim)) if delta is None else delta
    found: dict[str, Trace] = {}
    for name in attacks:
        spent = found["white"].cost[-1] if "white" in found else None
        theta: Any = None
        attacker: RewardAttacker
        if name in ("white", "cheap"):
            theta = draws.certificates if name == "white" else cheap_poison(draws)
            attacker = WhiteBox(mdps, draws.targets, theta)
        elif name == "random":
            steps = episodes * horizon
            attacker = RandomPerturbation(spent, penalty, steps, rng(seed, "attack", "random"), batch=n)  # type: ignore[arg-type]
        elif name == "teaching":
            attacker = Shifted(taught_rewards(draws))
        elif name == "none":
            attacker = NoAttack(n)
        else:
            attacker = AdaptiveTarget(draws.targets, penalty)
            if name == "at_budget":
                attacker = Budgeted(attacker, spent)  # type: ignore[arg-type]
        learner = (
            LSVIUCB(phi, horizon, bonus=bonus, lam=lam)
            if epsilon is None
            else EpsilonGreedyLSVI(phi, horizon, epsilon=epsilon, rng=rng(seed, "attack", "exploration"), lam=lam)
        )
        history = run_attack(
            mdps, learner, attacker, draws.targets, episodes, rng(seed, "attack", "play"), theta=theta, noise=noise
        )
        margin = draws.eps / 2 if name == "cheap" else draws.eps
        found[name] = trace(history, margin if theta is not None else None)
        if progress is not None:
            progress(name)
    return found


def against_sign(eps: FloatArray, outcomes: Sequence[str]) -> dict[str, dict[str, int]]:
    """Counts of outcomes by sign, over all draws with |eps*| > DECIDED: {"attackable" | "robust": {outcome: count}}."""
    values = np.array(outcomes)
    return {
        name: {one: int(((values == one) & mask).sum()) for one in OUTCOMES}
        for name, mask in (("attackable", eps > DECIDED), ("robust", eps < -DECIDED))
    }
