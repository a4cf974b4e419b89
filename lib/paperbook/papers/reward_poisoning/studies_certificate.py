"""What the pages on bandits and on the programme show: segments and cones in the plane, certified draws, kinds of robustness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paperbook.papers.reward_poisoning.bandits import planar_eps
from paperbook.papers.reward_poisoning.certificate import (
    AttackabilityCertificate,
    MarginInfeasible,
    certify,
    dual_bound,
    minimal_cost,
)
from paperbook.papers.reward_poisoning.mdp import FloatArray, IntArray, LinearMDP, random_instance
from paperbook.study.arguments import array, generator, integer, number

# ---------------------------------------------------------------------------------------------------------------------------
# bandits
# ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """The poisons of a planar bandit: `z` (n,) along the pinned line, `poison` (n, 2), `margins` (n, K - 1) of the rivals in
    their order, and the `envelope` (n,) below them, whose top is eps*."""

    z: FloatArray
    poison: FloatArray
    margins: FloatArray
    envelope: FloatArray


def pinned_segment(arms: ArrayLike, theta: ArrayLike, target: int, cap: float | None = None, points: int = 41) -> Segment:
    """Walk along the pinned line within the cap's disc (T5).

    Args:
        arms: features (K, 2).
        theta: true parameter (2,).
        target: the arm to be forced.
        cap: radius of the disc; sqrt(2) where it is None.
        points: how many, at least 2, both ends included.

    Raises:
        TypeError, ValueError: as `planar_eps`.
    """
    x = array("arms", arms, ndim=2)
    ends = planar_eps(x, theta, target, cap).ends
    share = np.linspace(0, 1, integer("points", points, 2))[:, None]
    poison = (1 - share) * ends[0] + share * ends[1]
    z = (2 * share[:, 0] - 1) * float(np.linalg.norm(ends[1] - ends[0])) / 2
    margins = (poison @ x[target])[:, None] - poison @ np.delete(x, target, axis=0).T
    return Segment(z, poison, margins, margins.min(axis=1))


def hull_bound(arms: ArrayLike, theta: ArrayLike, target: int, weights: ArrayLike, cap: float | None = None) -> FloatArray:
    """The price of a mixed rival (T5, T8; ours): (1 - c) v + rho ||y - c x_t|| for y = sum of weights times rivals.

    With v = <x_t, theta>, c = <y, x_t> / ||x_t||^2 and rho^2 = cap^2 - v^2 / ||x_t||^2. Its least value over all weights is eps*,
    in any dimension.

    Args:
        arms: features (K, d).
        theta: true parameter (d,).
        target: the arm to be forced, with a length above 0.
        weights: (..., K - 1), at least 0 with sum 1, of the rivals in their order.
        cap: sqrt(d) where it is None.

    Raises:
        TypeError, ValueError: on shapes or ranges, a target of length 0, weights that are not at least 0 with sum 1, a cap below
            what the pinned reward needs.
    """
    x, truth = array("arms", arms, ndim=2), array("theta", theta, ndim=1)
    t = integer("target", target, 0, len(x) - 1)
    share = array("weights", weights, 0)
    if truth.shape != x.shape[1:] or share.shape[-1:] != (len(x) - 1,):
        raise ValueError(
            f"theta, weights: expected shapes {x.shape[1:]} and (..., {len(x) - 1}), got {truth.shape} and {share.shape}"
        )
    if np.abs(share.sum(axis=-1) - 1).max() > 1e-9:
        raise ValueError(f"weights: expected sums of 1, got up to {share.sum(axis=-1).max():.6g}")
    square, v = float(x[t] @ x[t]), float(x[t] @ truth)
    size = float(np.sqrt(x.shape[1])) if cap is None else number("cap", cap, 0, open_low=True)
    if square == 0 or v**2 > size**2 * square * (1 + 1e-9):
        raise ValueError(f"target, cap: expected a target with a length and a cap that admits its reward {v:.6g}, got {size:.6g}")
    rho = np.sqrt(max(size**2 - v**2 / square, 0.0))
    mixed = share @ np.delete(x, t, axis=0)
    c = mixed @ x[t] / square
    return np.asarray((1 - c) * v + rho * np.linalg.norm(mixed - c[..., None] * x[t], axis=-1))


def hull_meets_cone(arms: ArrayLike, theta: ArrayLike, target: int, cap: float | None = None) -> bool:
    """Whether some mixed rival of a planar bandit lies in the cone behind the target (T5, ours), by a linear programme.

    The cone holds the y with (c - 1) v >= rho |part of y across the target's line|, c and rho as in `hull_bound`.

    Raises:
        TypeError, ValueError: as `planar_eps`.
    """
    from scipy.optimize import linprog

    x, truth = array("arms", arms, ndim=2), array("theta", theta, ndim=1)
    ends = planar_eps(x, truth, target, cap).ends  # checks the arguments; half of their distance is rho
    rho = float(np.linalg.norm(ends[1] - ends[0])) / 2
    rivals, goal = np.delete(x, target, axis=0), x[target]
    v, square = float(goal @ truth), float(goal @ goal)
    gain = (rivals @ goal / square - 1) * v
    across = rivals @ np.array([-goal[1], goal[0]]) / np.sqrt(square)
    rows = np.stack([rho * across - gain, -rho * across - gain])
    found = linprog(np.zeros(len(rivals)), A_ub=rows, b_ub=[0, 0], A_eq=np.ones((1, len(rivals))), b_eq=[1], method="highs")
    return bool(found.status == 0)


def rival_map(arms: ArrayLike, theta: ArrayLike, target: int, points: int = 41, cap: float | None = None) -> FloatArray:
    """eps* with one more rival at each point of a square grid over the unit disc, (points, points): row y, column x; NaN outside.

    Raises:
        TypeError, ValueError: as `planar_eps`.
    """
    x = array("arms", arms, ndim=2)
    axis = np.linspace(-1, 1, integer("points", points, 2))
    out = np.full((points, points), np.nan)
    for i, j in np.argwhere(np.hypot(*np.meshgrid(axis, axis)) <= 1):
        out[i, j] = planar_eps(np.vstack([x, [axis[j], axis[i]]]), theta, target, cap).eps
    return out


def random_bandit(arms: int, dim: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Arms (K, d) uniform in the unit ball and a parameter (d,) uniform on the sphere (our choice).

    Raises:
        TypeError, ValueError: on sizes below 2 and 1.
    """
    integer("arms", arms, 2)
    integer("dim", dim, 1)
    generator("rng", rng)
    normal = rng.normal(size=(arms + 1, dim))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    return normal[:-1] * rng.random((arms, 1)) ** (1 / dim), normal[-1]


# ---------------------------------------------------------------------------------------------------------------------------
# linear MDPs
# ---------------------------------------------------------------------------------------------------------------------------


def counterexample() -> tuple[LinearMDP, IntArray]:
    """Four states, two steps, d = 5, where the published "policy" programme says attackable and is wrong (T2, ours).

    From s0 the target goes to s1 (0.9) or s1' (0.1), the rival to s2, which the target never visits. States in the order s0,
    s1, s1', s2; the target is action 0 everywhere.
    """
    e = np.eye(5)
    phi = np.array([[e[0], e[1]], [e[2], e[4]], [e[3], e[4]], [e[1], e[3]]])
    mu = np.zeros((2, 5, 4))
    mu[:, 0] = [0, 0.9, 0.1, 0]
    mu[:, 1, 3] = 1
    mu[:, 2:, 1] = 1
    return LinearMDP(phi, mu, np.array([[-1.8, 1, 0, 0, 0], [0, 0, -0.5, 1, 0]])), np.zeros((2, 4), dtype=np.int64)


@dataclass(frozen=True)
class Draws:
    """Certified random instances, none left out: certificates in optimal mode, eps* in policy mode and at 20 caps (n,)."""

    certificates: tuple[AttackabilityCertificate, ...]
    policy: FloatArray
    large_cap: FloatArray

    @property
    def eps(self) -> FloatArray:
        """eps* (n,) in optimal mode."""
        return np.array([c.eps for c in self.certificates])

    @property
    def kinds(self) -> list[str]:
        """The kind of each instance."""
        return [c.kind for c in self.certificates]

    def split(self) -> tuple[list[AttackabilityCertificate], list[AttackabilityCertificate]]:
        """The attackable instances and the robust ones, in order; undecided ones are in neither.

        Raises:
            ValueError: where one of the two is empty.
        """
        positive = [c for c in self.certificates if c.attackable]
        robust = [c for c in self.certificates if c.attackable is False]
        if not positive or not robust:
            raise ValueError(
                f"n_instances: expected draws of both kinds, got {len(positive)} attackable and {len(robust)} robust; draw more, "
                "or other sizes"
            )
        return positive, robust


def draws(n: int, states: int, actions: int, horizon: int, dim: int, latent_support: int, rng: np.random.Generator) -> Draws:
    """Draw `n` instances (`random_instance`) and certify each in both modes.

    Raises:
        TypeError, ValueError: as `random_instance`, and for n below 1.
    """
    integer("n", n, 1)
    pairs = [
        random_instance(states, actions, horizon, dim, latent_support=latent_support, rng=rng) for _ in range(n)
    ]  # fmt: skip
    certificates = tuple(certify(mdp, target) for mdp, target in pairs)
    policy = np.array([certify(mdp, target, q_mode="policy").eps for mdp, target in pairs])
    return Draws(certificates, policy, np.array([c.eps_large_cap for c in certificates]))


def cap_curves(certificates: Sequence[AttackabilityCertificate], factors: Sequence[float]) -> FloatArray:
    """eps* (n, k) of each instance at each multiple of its cap (T7).

    Raises:
        TypeError, ValueError: as `certify`.
    """
    return np.array([
        [certify(c.mdp, c.target, cap=float(f) * c.cap, q_mode=c.q_mode).eps for f in factors] for c in certificates
    ])  # fmt: skip


def without_kappa(certificate: AttackabilityCertificate) -> float:
    """The bound of T8 with the same multipliers, but play off the support that follows the target instead of kappa."""
    c = certificate
    return dual_bound(c.mdp, c.target, c.lam, c.nu, None, c.cap)


def invariances(mdp: LinearMDP, target: IntArray, rng: np.random.Generator) -> dict[str, float]:
    """How much eps* moves under changes that must not move it: order of latents, a rotation, a common scale of theta and cap
    (against the scale), one more identical policy off the support."""
    generator("rng", rng)
    base, d = certify(mdp, target).eps, mdp.dim
    order = rng.permutation(d)
    turned = np.linalg.qr(rng.normal(size=(d, d)))[0]

    def moved(phi: FloatArray, mu: FloatArray, theta: FloatArray) -> LinearMDP:
        return LinearMDP(phi, mu, theta, mdp.s0)

    permuted = moved(mdp.phi[:, :, order], mdp.mu[:, order], mdp.theta[:, order])
    rotated = moved(mdp.phi @ turned, np.einsum("ji,hjs->his", turned, mdp.mu), mdp.theta @ turned)
    doubled = certify(moved(mdp.phi, mdp.mu, 2 * mdp.theta), target, cap=2 * float(np.sqrt(d))).eps
    elsewhere = np.where(mdp.support(target), target, (target + 1) % mdp.actions)
    return {
        "order": abs(certify(permuted, target).eps - base),
        "rotation": abs(certify(rotated, target).eps - base),
        "scale": abs(doubled - 2 * base),
        "off the support": abs(certify(mdp, elsewhere).eps - base),
    }


def margin_of(certificate: AttackabilityCertificate, theta: ArrayLike) -> float:
    """The margin that parameters (H, d) have in the programme: on the support the target's true value stands for V, off it the
    best action's (the target's in policy mode). A concave function of theta (T8b); eps* is its top over pinned theta.

    Raises:
        TypeError, ValueError: on shapes.
    """
    c = certificate
    r, rows = c.mdp.r(theta), np.arange(c.mdp.states)
    own = c.mdp.policy_q(c.target)
    later, least = np.zeros(c.mdp.states), np.inf
    for h in range(c.mdp.horizon - 1, -1, -1):
        q, here, a = r[h] + c.mdp.P()[h] @ later, c.support[h], c.target[h]
        value = np.where(here, own[h, rows, a], q.max(axis=1) if c.q_mode == "optimal" else q[rows, a])
        rivals = np.where(np.arange(c.mdp.actions) == a[:, None], -np.inf, q)
        least = min(least, float((value - rivals.max(axis=1))[here].min()))
        later = value
    return least


@dataclass(frozen=True)
class Poisons:
    """The cheapest poison of a margin and the one of the largest: `cost` = sum_h ||theta - true||^2 and the `change` of the
    reward that is changed most, cheapest first; and the `bound` on the first cost that concavity proves (T8b)."""

    cost: tuple[float, float]
    change: tuple[float, float]
    bound: float


def compare_poisons(certificate: AttackabilityCertificate, share: float = 0.5) -> Poisons:
    """The cheapest poison of the margin `share` * eps* (T8b) beside the poison of the certificate.

    The margin is concave in theta, so the mixture that goes the part a of the way from the truth (margin m0) to theta† (eps*)
    has at least the margin (1 - a) m0 + a eps*, at a^2 times the cost; with a = (share eps* - m0) / (eps* - m0) that bounds the
    cheapest cost.

    Raises:
        TypeError, ValueError: on a share outside (0, 1), or an instance that is not attackable.
    """
    c = certificate
    number("share", share, 0, 1, open_low=True, open_high=True)
    if not c.attackable:
        raise ValueError(f"certificate: expected an attackable instance, got eps* = {c.eps:.6g}")
    cheap = minimal_cost(c.mdp, c.target, share * c.eps, c.cap, c.q_mode)
    widest = float(((c.theta - c.mdp.theta) ** 2).sum())
    truth = margin_of(c, c.mdp.theta)
    part = max(0.0, (share * c.eps - truth) / (c.eps - truth))
    change = [float(np.abs(c.mdp.r(theta) - c.mdp.r()).max()) for theta in (cheap.theta, c.theta)]
    return Poisons((cheap.cost, widest), (change[0], change[1]), part**2 * widest)


def with_duplicate(mdp: LinearMDP, target: IntArray) -> LinearMDP:
    """The same MDP, except that one rival at the first state has the target's features there: two identical actions.

    Raises:
        TypeError, ValueError: on shapes or ranges of the target.
    """
    own = int(mdp.policy(target, "target")[0, mdp.s0])
    phi = mdp.phi.copy()
    phi[mdp.s0, (own + 1) % mdp.actions] = phi[mdp.s0, own]
    return LinearMDP(phi, mdp.mu, mdp.theta, mdp.s0)


def teaching_agrees(certificate: AttackabilityCertificate, slack: float = 0.02) -> bool:
    """Whether policy teaching with linear, pinned and capped rewards knows the same largest margin, to a share `slack`.

    It must succeed a little below eps* of policy mode (where that is positive) and fail a little above it. Slow: two problems in
    cvxpy.

    Raises:
        TypeError, ValueError: on a slack outside (0, 1).
    """
    from paperbook.papers.reward_poisoning.teaching import rakhsha2020

    number("slack", slack, 0, 1, open_low=True, open_high=True)
    c = certificate
    eps = certify(c.mdp, c.target, cap=c.cap, q_mode="policy").eps

    def taught(margin: float) -> bool:
        try:
            rakhsha2020(c.mdp, c.target, margin, linear=True, pinned=True, cap=c.cap, by_policy=False)
        except MarginInfeasible:
            return False
        return True

    return (eps <= 1e-3 or taught((1 - slack) * eps)) and not taught(max((1 + slack) * eps, 1e-3))
