"""Studies of the black box: what it estimates, how often its sign is right and why not, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paperbook.papers.reward_poisoning.attacks import (
    RIDGE,
    AdaptiveTarget,
    Estimate,
    RewardAttacker,
    TooFewData,
    TwoStage,
    WhiteBox,
    estimate,
)
from paperbook.papers.reward_poisoning.certificate import AttackabilityCertificate, CertificateError, certify
from paperbook.papers.reward_poisoning.learner import LSVIUCB
from paperbook.papers.reward_poisoning.mdp import BoolArray, FloatArray, IntArray, LinearMDP, random_instance
from paperbook.papers.reward_poisoning.play import NOISE, AttackHistory, run_attack
from paperbook.study.arguments import array, choice, generator, integer, number

VARIANTS = ("estimate", "true kernels", "true rewards", "likelihood", "uniform play")
ATTACKS = ("white box", "black box", "adaptive target")


# ---------------------------------------------------------------------------------------------------------------------------
# instances
# ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Draws:
    """Instances with |eps*| above a threshold, out of `drawn`; `targets` (n, H, S), `phi` (n, S, A, d), `eps` (n,)."""

    drawn: int
    mdps: tuple[LinearMDP, ...]
    targets: IntArray
    certificates: tuple[AttackabilityCertificate, ...]

    @property
    def phi(self) -> FloatArray:
        """Features of all instances (n, S, A, d)."""
        return np.stack([mdp.phi for mdp in self.mdps])

    @property
    def eps(self) -> FloatArray:
        """eps* (n,)."""
        return np.array([c.eps for c in self.certificates])

    def __len__(self) -> int:
        return len(self.mdps)

    def where(self, keep: ArrayLike) -> Draws:
        """Those for which the mask `keep` (n,) is true; ValueError where that is none."""
        at = np.flatnonzero(np.asarray(keep, dtype=bool))
        if not len(at):
            raise ValueError("keep: expected at least one instance, got none")
        return Draws(self.drawn, tuple(self.mdps[i] for i in at), self.targets[at], tuple(self.certificates[i] for i in at))


def draw_instances(
    n: int, S: int, A: int, H: int, d: int, *, near_zero: float, latent_support: int = 1, rng: np.random.Generator
) -> Draws:
    """Draw `n` instances, certify all, and leave out those with |eps*| <= `near_zero` and no others (our choice).

    Raises:
        TypeError, ValueError: as `random_instance`; where nothing is left.
    """
    integer("n", n, 1)
    number("near_zero", near_zero, 0)
    pairs = [random_instance(S, A, H, d, latent_support=latent_support, rng=rng) for _ in range(n)]
    found = [certify(mdp, target) for mdp, target in pairs]
    everything = Draws(n, tuple(m for m, _ in pairs), np.stack([t for _, t in pairs]), tuple(found))
    return everything.where(np.abs(everything.eps) > near_zero)


# ---------------------------------------------------------------------------------------------------------------------------
# the estimator
# ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Data:
    """What an attacker has counted: `counts` (H, S, A, S), `rewards` (H, S, A), `reached` (H, S) by following the target."""

    counts: FloatArray
    rewards: FloatArray
    reached: FloatArray

    def estimate(self, mdp: LinearMDP, target: IntArray, ridge: float = RIDGE) -> Estimate:
        """The black box's belief; of `mdp` it takes the features and the first state only. Errors as `attacks.estimate`."""
        return estimate(mdp.phi, self.counts, self.rewards, self.reached, target, mdp.s0, ridge)


def uniform_data(mdp: LinearMDP, target: ArrayLike, episodes: int, rng: np.random.Generator, noise: float = NOISE) -> Data:
    """Data of `episodes` episodes of uniformly random actions, all played at once, rewards with Gaussian noise.

    Raises:
        TypeError, ValueError: on kinds, shapes and ranges.
    """
    goal, n = mdp.policy(target, "target"), integer("episodes", episodes, 1)
    number("noise", noise, 0)
    generator("rng", rng)
    H, S, A = mdp.horizon, mdp.states, mdp.actions
    counts, rewards, reached = np.zeros((H, S, A, S)), np.zeros((H, S, A)), np.zeros((H, S))
    s, follows, mean = np.full(n, mdp.s0), np.ones(n, dtype=bool), mdp.r()
    for h in range(H):
        a = rng.integers(A, size=n)
        s2 = (mdp.cumulative[h, s, a] > rng.random(n)[:, None]).argmax(axis=1)
        counts[h] = np.bincount((s * A + a) * S + s2, minlength=S * A * S).reshape(S, A, S)
        seen = mean[h, s, a] + noise * rng.standard_normal(n)
        rewards[h] = np.bincount(s * A + a, seen, minlength=S * A).reshape(S, A)
        reached[h] = np.bincount(s[follows], minlength=S)
        follows &= a == goal[h, s]
        s = s2
    return Data(counts, rewards, reached)


def likelihood_kernels(phi: ArrayLike, counts: ArrayLike, steps: int = 200, floor: float = 1e-3) -> FloatArray:
    """Kernels mu (H, d, S) of greatest likelihood, by expectation-maximisation: features are known weights of a mixture.

    Ours, beside the regression that is clipped. Every step shares each transition out among the latents that may have caused
    it; the rows stay probabilities by themselves. From even rows; what has less than `floor` at the end counts as 0.

    Args:
        phi: features (S, A, d), mixtures.
        counts: transitions (H, S, A, S).
        steps: of the iteration, at least 1.
        floor: in [0, 1).

    Raises:
        TypeError, ValueError: on kinds, shapes and ranges.
    """
    weights, N = array("phi", phi, 0, ndim=3), array("counts", counts, 0, ndim=4)
    if N.shape[1:] != (*weights.shape[:2], weights.shape[0]):
        raise ValueError(f"counts: expected shape (H, {', '.join(map(str, weights.shape[:2]))}, S), got {N.shape}")
    number("floor", floor, 0, 1, open_high=True)
    H, S, A, _ = N.shape
    flat, seen = weights.reshape(S * A, -1), N.reshape(H, S * A, S)
    mu = np.full((H, flat.shape[1], S), 1 / S)

    def normalised(rows: FloatArray) -> FloatArray:
        total = rows.sum(axis=2, keepdims=True)
        return np.where(total > 0, rows / np.where(total > 0, total, 1), mu)  # a latent without data keeps its row

    for _ in range(integer("steps", steps, 1)):
        mu = normalised(mu * (flat.T @ (seen / np.maximum(flat @ mu, 1e-300))))
    return normalised(np.where(mu < floor, 0, mu))


def uniform_law(mdp: LinearMDP) -> FloatArray:
    """The law of (s, a) at each step under uniformly random actions (H, S, A); each step sums to 1."""
    law = np.zeros((mdp.horizon, mdp.states, mdp.actions))
    here = np.eye(mdp.states)[mdp.s0]
    for h in range(mdp.horizon):
        law[h] = here[:, None] / mdp.actions
        here = np.tensordot(law[h], mdp.P()[h], axes=2)
    return law


def estimation_errors(truth: LinearMDP, believed: LinearMDP) -> tuple[float, float]:
    """How far a belief is from the truth where uniform play goes: (rms error of a step's reward, mean total variation of its
    kernel). Directions that no state and action of a step has are not seen by anybody, and do not count.

    The last step's kernel leads nowhere, and does not count either; with H = 1 the second error is 0.
    """
    law = uniform_law(truth)
    miss = believed.r() - truth.r()
    rewards = math.sqrt(float((law * miss**2).sum() / truth.horizon))
    if truth.horizon == 1:
        return rewards, 0.0
    apart = np.abs(believed.P() - truth.P()).sum(axis=3) / 2
    return rewards, float((law * apart)[:-1].sum() / (truth.horizon - 1))


def expected_reward_error(mdp: LinearMDP, episodes: int, noise: float = NOISE) -> float:
    """The rms error that least squares must have: noise sqrt(mean_h rank_h / n), rank_h that of the features met at step h.

    In-sample prediction error of least squares has mean noise^2 rank / n whatever the design; the law of uniform play is the
    design of large n.
    """
    law = uniform_law(mdp)
    ranks = [np.linalg.matrix_rank(mdp.phi[law[h] > 0]) for h in range(mdp.horizon)]
    return noise * math.sqrt(float(np.mean(ranks)) / integer("episodes", episodes, 1))


@dataclass(frozen=True, eq=False)
class EstimationStudy:
    """Errors against the number of episodes of uniform play, (k, n): `rewards` and what they are `expected` to be; `kernels`,
    and `likelihood`, those of `likelihood_kernels`."""

    n_grid: tuple[int, ...]
    rewards: FloatArray
    kernels: FloatArray
    likelihood: FloatArray
    expected: FloatArray


def estimation_study(draws: Draws, n_grid: Sequence[int], rng: np.random.Generator, noise: float = NOISE) -> EstimationStudy:
    """Errors of the estimator on data of uniform play, every instance with fresh data at every length.

    Raises:
        TooFewData: a length at which no episode follows the target through.
    """
    shape = (len(n_grid), len(draws))
    rewards, kernels, likelihood, expected = (np.zeros(shape) for _ in range(4))
    for k, n in enumerate(n_grid):
        for i, (mdp, target) in enumerate(zip(draws.mdps, draws.targets, strict=True)):
            data = uniform_data(mdp, target, n, rng, noise)
            belief = data.estimate(mdp, target).mdp
            rewards[k, i], kernels[k, i] = estimation_errors(mdp, belief)
            other = LinearMDP(mdp.phi, likelihood_kernels(mdp.phi, data.counts), belief.theta, mdp.s0)
            likelihood[k, i] = estimation_errors(mdp, other)[1]
            expected[k, i] = expected_reward_error(mdp, n, noise)
    return EstimationStudy(tuple(n_grid), rewards, kernels, likelihood, expected)


def slope(x: ArrayLike, values: ArrayLike) -> FloatArray:
    """Least-squares slope of log values (k, ...) against log x (k,), for each of the other axes.

    Raises:
        ValueError: fewer than two points, or values that are not positive.
    """
    at, y = np.log(array("x", x, 0, open_low=True)), np.log(array("values", values, 0, open_low=True))
    if len(at) < 2 or len(y) != len(at):
        raise ValueError(f"x, values: expected the same number of points, at least 2, got {len(at)} and {len(y)}")
    centred = at - at.mean()
    result: FloatArray = np.tensordot(centred, y, axes=1) / (centred**2).sum()
    return result


# ---------------------------------------------------------------------------------------------------------------------------
# the sign
# ---------------------------------------------------------------------------------------------------------------------------


class _Snapshots:
    """A first stage that never ends, and copies of what it has counted after given numbers of episodes."""

    def __init__(self, inner: TwoStage, at: Sequence[int]) -> None:
        self.batch, self.inner, self._at, self._episode = inner.batch, inner, set(at), 0
        self.taken: dict[int, list[Data]] = {}

    def take(self) -> None:
        if self._episode in self._at:
            inner = self.inner
            parts = (inner.counts.copy(), inner.rewards.copy(), inner.reached.copy())
            self.taken[self._episode] = [Data(*(part[b] for part in parts)) for b in range(self.batch)]

    def reset(self) -> None:
        self.take()
        self._episode += 1
        self.inner.reset()

    def perturb(self, h: int, s: IntArray, a: IntArray, r: FloatArray) -> FloatArray:
        return self.inner.perturb(h, s, a, r)

    def observe(self, h: int, s: IntArray, a: IntArray, r: FloatArray, s2: IntArray) -> None:
        self.inner.observe(h, s, a, r, s2)


@dataclass(frozen=True, eq=False)
class SignStudy:
    """Estimated margins against the length of the first stage.

    Attributes:
        t1_grid: lengths T1 (k).
        eps: true eps* (n,).
        found: estimated margins by variant, (k, n) each: the estimate; with the true kernels or the true rewards in its
            place; with kernels of greatest likelihood; and the estimate from as many episodes of uniform play. NaN where the
            data do not suffice.
        off: share of the steps of the first stage that were off the target (k, n).
    """

    t1_grid: tuple[int, ...]
    eps: FloatArray
    found: dict[str, FloatArray]
    off: FloatArray

    def agrees(self, variant: str = "estimate") -> BoolArray:
        """Whether the estimate has the sign of eps* (k, n); where there is no estimate it has not."""
        value = self.found[choice("variant", variant, tuple(self.found))]
        agreed: BoolArray = np.where(np.isnan(value), False, (value > 0) == (self.eps > 0))
        return agreed


def stage_one(
    draws: Draws, t1_grid: Sequence[int], rng: np.random.Generator, *, bonus: float, noise: float = NOISE, penalty: float = 1.0
) -> dict[int, list[Data]]:
    """What the black box has counted after T1 episodes of its first stage, for each T1 (increasing) and every instance.

    The first stage does not know how long it will last, so one run gives them all. `penalty` is in units of sqrt(d).
    """
    last = max(t1_grid)
    d = draws.mdps[0].dim
    inner = TwoStage(draws.phi, draws.targets, last + 1, explore=last + 1, delta=penalty * math.sqrt(d))
    watcher = _Snapshots(inner, t1_grid)
    learner = LSVIUCB(draws.phi, draws.mdps[0].horizon, bonus=bonus)
    run_attack(draws.mdps, learner, watcher, draws.targets, last, rng, noise=noise)
    watcher.take()
    return watcher.taken


def believed_eps(belief: LinearMDP, target: IntArray) -> float:
    """eps* of a belief; NaN where the solver gives up."""
    try:
        return certify(belief, target).eps
    except CertificateError:
        return math.nan


def sign_study(
    draws: Draws, t1_grid: Sequence[int], rng: np.random.Generator, *, bonus: float, noise: float = NOISE, penalty: float = 1.0,
    ridge: float = RIDGE, variants: Sequence[str] = VARIANTS,
) -> SignStudy:  # fmt: skip
    """The sign of the estimate for every instance and T1, and what becomes of it when one part of the belief is replaced.

    Raises:
        TypeError, ValueError: on another variant, kinds and ranges.
    """
    for variant in variants:
        choice("variants", variant, VARIANTS)
    play, uniform = rng.spawn(2)
    taken = stage_one(draws, t1_grid, play, bonus=bonus, noise=noise, penalty=penalty)
    shape = (len(t1_grid), len(draws))
    found, off = {variant: np.full(shape, np.nan) for variant in variants}, np.zeros(shape)
    for k, n in enumerate(t1_grid):
        for i, (mdp, target) in enumerate(zip(draws.mdps, draws.targets, strict=True)):
            data = taken[n][i]
            visits = data.counts.sum(axis=3)
            off[k, i] = 1 - np.take_along_axis(visits, target[:, :, None], axis=2).sum() / visits.sum()
            for variant in variants:
                source = uniform_data(mdp, target, n, uniform, noise) if variant == "uniform play" else data
                try:
                    belief = source.estimate(mdp, target, ridge).mdp
                except TooFewData:
                    continue
                if variant == "true kernels":
                    belief = LinearMDP(mdp.phi, mdp.mu, belief.theta, mdp.s0)
                elif variant == "likelihood":
                    belief = LinearMDP(mdp.phi, likelihood_kernels(mdp.phi, data.counts), belief.theta, mdp.s0)
                elif variant == "true rewards":
                    belief = LinearMDP(mdp.phi, belief.mu, mdp.theta, mdp.s0)
                found[variant][k, i] = believed_eps(belief, target)
    return SignStudy(tuple(t1_grid), draws.eps, found, off)


# ---------------------------------------------------------------------------------------------------------------------------
# the attacks
# ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AttackStudy:
    """Whole runs against their length: by attack, `cost` and `deviations` of a run of T episodes, (k, n) each.

    Attributes:
        T_grid: lengths T (k).
        cost: sum of |delta|.
        deviations: number of episodes that left the target.
        late: share of such episodes in the last half.
        first: cost of the black box's first stage (k, n).
        eps_hat: what the black box estimated (k, n), NaN where its first stage has not ended for want of data.
        margin: `delivered_margin` of its poison (k, n), NaN there too.
        explore: lengths of the first stage (k).
    """

    T_grid: tuple[int, ...]
    cost: dict[str, FloatArray]
    deviations: dict[str, FloatArray]
    late: dict[str, FloatArray]
    first: FloatArray
    eps_hat: FloatArray
    margin: FloatArray
    explore: tuple[int, ...]


def delivered_margin(mdp: LinearMDP, target: ArrayLike, theta: ArrayLike) -> float:
    """The margin that a poison really has: min over the target's support of V^target - Q+, in the true environment.

    Who obeys is told the truth, so V^target is the true value; who leaves it gets <phi, theta+> from then on and the true next
    states, so Q+ is the optimal action value under `theta` (H, d). For the poison of a certificate with eps* > 0 it is eps*;
    for one made from estimates it may be anything. T3 speaks of this margin.
    """
    goal = mdp.policy(target, "target")
    own = np.take_along_axis(mdp.policy_q(goal), goal[:, :, None], axis=2)
    slack = own - mdp.optimal_q(theta)
    np.put_along_axis(slack, goal[:, :, None], np.inf, axis=2)
    return float(slack[mdp.support(goal)].min())


def black_box_run(
    draws: Draws, episodes: int, rng: np.random.Generator, *, bonus: float, noise: float = NOISE, exponent: float = 0.75,
    penalty: float = 1.0, override: bool = False, only_lower: bool = False,
) -> tuple[TwoStage, AttackHistory]:  # fmt: skip
    """One run of Algorithm 3 on every instance: T1 = ceil(T^exponent), penalty in units of sqrt(d) (our choices)."""
    explore = math.ceil(episodes ** number("exponent", exponent, 0, 1, open_low=True))
    delta = number("penalty", penalty, 0, open_low=True) * math.sqrt(draws.mdps[0].dim)
    attacker = TwoStage(
        draws.phi, draws.targets, episodes, explore=explore, delta=delta, override=override, only_lower=only_lower
    )
    learner = LSVIUCB(draws.phi, draws.mdps[0].horizon, bonus=bonus)
    return attacker, run_attack(draws.mdps, learner, attacker, draws.targets, episodes, rng, noise=noise)


def attack_study(
    draws: Draws, T_grid: Sequence[int], rng: np.random.Generator, *, bonus: float, noise: float = NOISE, exponent: float = 0.75,
    penalty: float = 1.0, override: bool = False, progress: Callable[[int], None] | None = None,
) -> AttackStudy:  # fmt: skip
    """White box (its certificate's theta), black box and adaptive target on the same instances with the same random numbers.

    Only the black box depends on T beforehand; the other two play once, to the largest T.
    """
    shape = (len(T_grid), len(draws))
    cost = {name: np.zeros(shape) for name in ATTACKS}
    deviations, late = {name: np.zeros(shape) for name in ATTACKS}, {name: np.zeros(shape) for name in ATTACKS}
    first, eps_hat, margin, explore = np.zeros(shape), np.zeros(shape), np.zeros(shape), []
    (stream,) = rng.spawn(1)
    seed = stream.integers(2**63)  # every run spawns the same streams from it

    def fresh() -> np.random.Generator:
        return np.random.default_rng(seed)

    d = draws.mdps[0].dim
    single: dict[str, RewardAttacker] = {
        "white box": WhiteBox(draws.mdps, draws.targets, draws.certificates),
        "adaptive target": AdaptiveTarget(draws.targets, penalty * math.sqrt(d)),
    }
    runs = {}
    for name, attacker in single.items():
        learner = LSVIUCB(draws.phi, draws.mdps[0].horizon, bonus=bonus)
        runs[name] = run_attack(draws.mdps, learner, attacker, draws.targets, T_grid[-1], fresh(), noise=noise)
    for k, T in enumerate(T_grid):
        box, history = black_box_run(
            draws, T, fresh(), bonus=bonus, noise=noise, exponent=exponent, penalty=penalty, override=override
        )
        first[k], eps_hat[k] = history.cost[: box.explore].sum(axis=0), box.eps
        own = [delivered_margin(*one) for one in zip(draws.mdps, draws.targets, box.theta, strict=True)]
        margin[k] = np.where(np.isnan(box.eps), np.nan, own)
        explore.append(box.explore)
        for name, one in {**runs, "black box": history}.items():
            cost[name][k] = one.cost[:T].sum(axis=0)
            deviations[name][k] = one.deviations[:T].sum(axis=0)
            late[name][k] = one.deviations[T // 2 : T].mean(axis=0)
        if progress is not None:
            progress(k + 1)
    return AttackStudy(tuple(T_grid), cost, deviations, late, first, eps_hat, margin, tuple(explore))
