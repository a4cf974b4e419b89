"""Episodic linear MDPs with finitely many states: model, values, reachability, random and tabular instances."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paperbook.study.arguments import array, generator, integer, number, raw

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

PROBABILITY_TOLERANCE = 1e-8  # a row of P may miss 1, or a probability 0, by that much: rounding of d products
NORM_TOLERANCE = 1e-9  # ||phi|| may exceed 1 by that much


@dataclass(frozen=True, eq=False)
class LinearMDP:
    """An episodic linear MDP (S, A, H): P_h(s'|s,a) = <phi(s,a), mu_h(s')> and r_h(s,a) = <phi(s,a), theta_h>.

    Steps are counted from 0 in code (h = 0..H-1), from 1 in the text.

    Args:
        phi: features (S, A, d), Euclidean norm at most 1.
        mu: measures of the latent kernels (H, d, S); mu[h, :, s'] is mu_h(s'). The last step leads nowhere: mu[H-1] may be all
            zeros, as features of a bandit (H = 1) need not allow probabilities; the state then stays where it is.
        theta: parameters of the rewards (H, d). Whether they keep the cap is the certificate's question, not the model's.
        s0: the first state, in 0..S-1.

    Raises:
        TypeError: where an argument is of another kind.
        ValueError: on wrong shapes, numbers that are not finite, norms of features above 1, or rows of P that are no
            probabilities (to 1e-8).
    """

    phi: FloatArray
    mu: FloatArray
    theta: FloatArray
    s0: int = 0

    def __post_init__(self) -> None:
        phi = array("phi", self.phi, ndim=3)
        mu = array("mu", self.mu, ndim=3)
        theta = array("theta", self.theta, ndim=2)
        states, _, dim = phi.shape
        if mu.shape[1:] != (dim, states):
            raise ValueError(f"mu: expected (H, {dim}, {states}) to go with phi of shape {phi.shape}, got {mu.shape}")
        if theta.shape != (mu.shape[0], dim):
            raise ValueError(f"theta: expected ({mu.shape[0]}, {dim}) to go with mu of shape {mu.shape}, got {theta.shape}")
        integer("s0", self.s0, 0, states - 1)
        norms = np.linalg.norm(phi, axis=2)
        if norms.max() > 1 + NORM_TOLERANCE:
            s, a = np.unravel_index(norms.argmax(), norms.shape)
            raise ValueError(f"phi: expected norms of at most 1, got {norms.max():.6g} at state {s}, action {a}")
        for name, value in (("phi", phi), ("mu", mu), ("theta", theta)):
            value.setflags(write=False)
            object.__setattr__(self, name, value)
        kernel = (phi.reshape(-1, dim) @ mu).reshape(len(mu), *phi.shape[:2], states)
        if not mu[-1].any():
            kernel[-1] = np.eye(states)[:, None]
        low, error = kernel.min(), np.abs(kernel.sum(axis=3) - 1)
        if not (low >= -PROBABILITY_TOLERANCE and error.max() <= PROBABILITY_TOLERANCE):  # so NaN, of numbers too large, fails
            h, s, a = np.unravel_index(error.argmax(), error.shape) if low >= -PROBABILITY_TOLERANCE else (
                np.unravel_index(kernel.argmin(), kernel.shape)[:3]
            )  # fmt: skip
            raise ValueError(
                f"phi, mu: expected rows of P that are probabilities, got a row with sum {kernel[h, s, a].sum():.6g} and "
                f"smallest entry {kernel[h, s, a].min():.6g} at step {h}, state {s}, action {a}"
            )
        kernel = np.maximum(kernel, 0)
        kernel /= kernel.sum(axis=3, keepdims=True)  # exact probabilities, so that a sampler never falls off the end
        kernel.setflags(write=False)
        object.__setattr__(self, "_kernel", kernel)

    @property
    def states(self) -> int:
        """Number of states S."""
        return self.phi.shape[0]

    @property
    def actions(self) -> int:
        """Number of actions A."""
        return self.phi.shape[1]

    @property
    def dim(self) -> int:
        """Dimension d of the features."""
        return self.phi.shape[2]

    @property
    def horizon(self) -> int:
        """Steps H of an episode."""
        return self.mu.shape[0]

    def P(self) -> FloatArray:
        """Transition probabilities (H, S, A, S), read-only; rows sum to 1."""
        return self._kernel  # type: ignore[attr-defined]

    @cached_property
    def cumulative(self) -> FloatArray:
        """Cumulative transition probabilities (H, S, A, S), last entry 1: a uniform draw searches the next state in it."""
        out = np.cumsum(self.P(), axis=3)
        out[..., -1] = 1.0
        return out

    def r(self, theta: ArrayLike | None = None) -> FloatArray:
        """Rewards <phi(s,a), theta_h> (H, S, A); of other parameters (H, d) where they are given."""
        return np.einsum("sad,hd->hsa", self.phi, self._parameters(theta))

    def optimal_q(self, theta: ArrayLike | None = None) -> FloatArray:
        """Q*_h(s,a) (H, S, A) by value iteration, under the rewards of `theta` where it is given."""
        q = self.r(theta)
        for h in range(self.horizon - 2, -1, -1):
            q[h] += self.P()[h] @ q[h + 1].max(axis=1)
        return q

    def policy_q(self, policy: ArrayLike, theta: ArrayLike | None = None) -> FloatArray:
        """Q^pi_h(s,a) (H, S, A) of a deterministic policy (H, S), under the rewards of `theta` where it is given."""
        actions, q = self.policy(policy), self.r(theta)
        for h in range(self.horizon - 2, -1, -1):
            q[h] += self.P()[h] @ np.take_along_axis(q[h + 1], actions[h + 1][:, None], axis=1)[:, 0]
        return q

    def optimal_policy(self, theta: ArrayLike | None = None) -> IntArray:
        """The greedy policy (H, S) of `optimal_q`; the first of equal actions."""
        return self.optimal_q(theta).argmax(axis=2)

    def occupancy(self, policy: ArrayLike) -> FloatArray:
        """d_h^pi(s) (H, S): the law of the state at each step under a deterministic policy (H, S), from s0."""
        actions = self.policy(policy)
        law = np.zeros((self.horizon, self.states))
        law[0, self.s0] = 1
        for h in range(self.horizon - 1):
            law[h + 1] = law[h] @ self.P()[h, np.arange(self.states), actions[h]]
        return law

    def support(self, policy: ArrayLike, tol: float = 1e-12) -> BoolArray:
        """Supp_h (H, S): the states that a deterministic policy (H, S) reaches at each step with probability above `tol`."""
        return self.occupancy(policy) > number("tol", tol, 0)

    def policy(self, policy: ArrayLike, name: str = "policy") -> IntArray:
        """`policy` as (H, S) actions; TypeError unless integers (no stochastic policies), ValueError on shape or range."""
        out = raw(name, policy)
        if out.dtype.kind not in "iu":
            raise TypeError(
                f"{name}: expected an integer action for each step and state (stochastic policies are not supported), "
                f"got dtype {out.dtype}"
            )
        if out.shape != (self.horizon, self.states):
            raise ValueError(f"{name}: expected shape ({self.horizon}, {self.states}), got {out.shape}")
        if out.min() < 0 or out.max() >= self.actions:
            raise ValueError(f"{name}: expected actions in 0..{self.actions - 1}, got {out.min()}..{out.max()}")
        return out.astype(np.int64)

    def _parameters(self, theta: ArrayLike | None) -> FloatArray:
        if theta is None:
            return self.theta
        value = array("theta", theta, ndim=2)
        if value.shape != self.theta.shape:
            raise ValueError(f"theta: expected shape {self.theta.shape}, got {value.shape}")
        return value


def environment(name: str, value: Any) -> LinearMDP:
    """Return `value`; TypeError unless it is a LinearMDP."""
    if not isinstance(value, LinearMDP):
        raise TypeError(f"{name}: expected a LinearMDP, got {type(value).__name__}")
    return value


def random_linear_mdp(
    states: int,
    actions: int,
    horizon: int,
    dim: int,
    *,
    latent_support: int = 1,
    feature_support: int = 2,
    rng: np.random.Generator,
) -> LinearMDP:
    """Draw a linear MDP (our generator): each phi(s,a) mixes `feature_support` latents with Dirichlet(1) weights, each latent
    kernel puts its mass on `latent_support` random states (Dirichlet(1) among them), theta is uniform on [0, 1]^d at every step.

    Raises:
        TypeError, ValueError: sizes below 1, `latent_support` above `states`, `feature_support` above `dim`.
    """
    for name, value in (("states", states), ("actions", actions), ("horizon", horizon), ("dim", dim)):
        integer(name, value, 1)
    integer("latent_support", latent_support, 1, states)
    integer("feature_support", feature_support, 1, dim)
    generator("rng", rng)
    phi = np.zeros((states, actions, dim))
    for row in phi.reshape(-1, dim):
        row[rng.choice(dim, feature_support, replace=False)] = rng.dirichlet(np.ones(feature_support))
    mu = np.zeros((horizon, dim, states))
    for row in mu.reshape(-1, states):
        row[rng.choice(states, latent_support, replace=False)] = rng.dirichlet(np.ones(latent_support))
    return LinearMDP(phi, mu, rng.uniform(size=(horizon, dim)))


def random_instance(
    states: int,
    actions: int,
    horizon: int,
    dim: int,
    *,
    latent_support: int = 1,
    feature_support: int = 2,
    rng: np.random.Generator,
) -> tuple[LinearMDP, IntArray]:
    """Draw an MDP by `random_linear_mdp` and a target: the optimal policy (H, S) of a reward uniform on [-1, 1]^d at every step.
    Draws whose target already plays an optimal first action are rejected, as there would be nothing to attack.

    Raises:
        TypeError, ValueError: as `random_linear_mdp`; ValueError too for fewer than 2 actions, with which there is no instance.
        RuntimeError: after ten thousand rejections.
    """
    integer("actions", actions, 2)
    for _ in range(10_000):
        mdp = random_linear_mdp(
            states, actions, horizon, dim, latent_support=latent_support, feature_support=feature_support, rng=rng
        )
        target = mdp.optimal_policy(rng.uniform(-1, 1, size=(horizon, dim)))
        first = mdp.optimal_q()[0, mdp.s0]
        if first[target[0, mdp.s0]] < first.max() - 1e-9:  # rounding: equal actions count as optimal
            return mdp, target
    raise RuntimeError("random_instance: no draw in 10,000 had a target that differs from the optimal first action")


def tabular_linear_mdp(P: ArrayLike, r: ArrayLike, horizon: int | None = None, s0: int = 0) -> LinearMDP:
    """A tabular MDP as a linear one: one-hot features, d = S * A (T6).

    Args:
        P: probabilities (S, A, S) for every step, with `horizon`, or (H, S, A, S).
        r: rewards (S, A) or (H, S, A), finite.
        horizon: H where P has no axis of steps.
        s0: the first state.

    Raises:
        TypeError, ValueError: on shapes, a missing or contradicting `horizon`, rows that are no probabilities.
    """
    kernel, reward = array("P", P), array("r", r)
    if kernel.ndim == 3:
        if horizon is None:
            raise ValueError("horizon: expected the number of steps, as P has no axis of steps, got None")
        kernel = np.broadcast_to(kernel, (integer("horizon", horizon, 1), *kernel.shape))
    if kernel.ndim != 4 or kernel.shape[1] != kernel.shape[3]:
        raise ValueError(f"P: expected (S, A, S) or (H, S, A, S), got {np.shape(P)}")
    steps, states, actions, _ = kernel.shape
    if horizon is not None and integer("horizon", horizon, 1) != steps:
        raise ValueError(f"horizon: expected {steps}, the steps of P, got {horizon}")
    if reward.shape not in ((states, actions), (steps, states, actions)):
        raise ValueError(f"r: expected ({states}, {actions}) or ({steps}, {states}, {actions}), got {reward.shape}")
    dim = states * actions
    phi = np.eye(dim).reshape(states, actions, dim)
    theta = np.broadcast_to(reward, (steps, states, actions)).reshape(steps, dim)
    return LinearMDP(phi, kernel.reshape(steps, dim, states), theta, s0)


@dataclass(frozen=True, eq=False)
class GymnasiumModel:
    """An environment's own table as a linear MDP, and how far the MDP is from the table.

    Attributes:
        mdp: the model, exact and tabular without a rank.
        labels: the environment's number of each state of the model (S,).
        terminal: which states end an episode (S,); the model stays there with reward 0.
        error_tv: total variation between the table's rows and the model's: (largest, mean) over states and actions.
        error_reward: difference of expected rewards: (largest, mean), in the units of the model.
    """

    mdp: LinearMDP
    labels: IntArray
    terminal: BoolArray
    error_tv: tuple[float, float]
    error_reward: tuple[float, float]


def from_gymnasium(
    env: Any, horizon: int, rank: int | None = None, *, s0: int | None = None, reward_scale: float = 1.0
) -> GymnasiumModel:
    """The exact table `env.unwrapped.P` (FrozenLake, CliffWalking, Taxi) as a tabular or a low-rank linear MDP (our choice).

    States that `horizon` steps from the start cannot reach are left out. Rewards are expected ones, r(s, a), times
    `reward_scale`. With a `rank` the stacked kernel (S*A, S) is factorised into non-negative W M (scikit-learn's NMF, from a
    deterministic start) and the rows of both are normalised to sum 1: W is phi (so ||phi|| <= 1, d = rank), M is mu at every
    step. Rewards are regressed on phi with latent rewards between the smallest and the largest true one, so ||theta_h|| <=
    sqrt(d) where rewards keep [-1, 1]. Nothing is hidden in a coordinate of its own: what rank features cannot say of kernel and
    rewards is returned as an error. Rewards larger than 1 want a `reward_scale`, or a cap of their own in the certificate.

    Args:
        env: an environment, or the id of a registered one.
        horizon: H.
        rank: d of a low-rank model, or None for the exact table.
        s0: the environment's number of the first state; needed where it draws one (Taxi).
        reward_scale: factor on every reward, above 0.

    Raises:
        TypeError, ValueError: on another kind of argument; an environment without a table; a start that is not given, or from
            which a terminal state is entered without an end; a rank above the number of states.
    """
    import gymnasium

    integer("horizon", horizon, 1)
    number("reward_scale", reward_scale, 0, open_low=True)
    made = gymnasium.make(env) if isinstance(env, str) else env
    base = getattr(made, "unwrapped", made)
    table = getattr(base, "P", None)
    if not isinstance(table, dict) or not table:
        raise ValueError(f"env: expected an environment with a table of transitions P, got {type(base).__name__}")
    start = _start(base, len(table), s0)
    ends = {int(t) for rows in table.values() for row in rows.values() for p, t, _, done in row if done and p > 0}

    seen, front = {start}, {start}
    for _ in range(horizon - 1):
        front = {
            int(t) for s in front if s not in ends for row in table[s].values() for p, t, _, _ in row if p > 0
        } - seen  # fmt: skip
        seen |= front
    # the last step leads to states whose rewards are never collected; they are needed as targets of its rows all the same
    rim = {int(t) for s in seen if s not in ends for row in table[s].values() for p, t, _, _ in row if p > 0}
    labels = np.array(sorted(seen | rim))
    number_of = {int(s): i for i, s in enumerate(labels)}
    states, actions = len(labels), len(table[start])
    kernel, reward = np.zeros((states, actions, states)), np.zeros((states, actions))
    terminal = np.array([int(s) in ends for s in labels])
    for s, i in number_of.items():
        if terminal[i] or s not in seen:
            kernel[i, :, i] = 1
            continue
        for a, row in table[s].items():
            for p, t, r, done in row:
                if p > 0 and not done and int(t) in ends:
                    raise ValueError(
                        f"env, s0: expected terminal states that always end an episode, got state {t}, which ends an episode "
                        f"only on some ways into it, from {start}"
                    )
                if p > 0:
                    kernel[i, a, number_of[int(t)]] += p
                    reward[i, a] += p * r * reward_scale
    if rank is None:
        exact = tabular_linear_mdp(kernel, reward, horizon, number_of[start])
        return GymnasiumModel(exact, labels, terminal, (0.0, 0.0), (0.0, 0.0))
    from scipy.optimize import lsq_linear

    phi, latent = _factorised(kernel.reshape(-1, states), integer("rank", rank, 1, states))
    room = 1e-9 + 1e-9 * float(np.abs(reward).max())  # the solver wants bounds that differ
    theta = lsq_linear(phi, reward.ravel(), (reward.min() - room, reward.max() + room)).x
    mdp = LinearMDP(
        phi.reshape(states, actions, rank), np.broadcast_to(latent, (horizon, *latent.shape)), np.tile(theta, (horizon, 1)),
        number_of[start],
    )  # fmt: skip
    distance = np.abs(phi @ latent - kernel.reshape(-1, states)).sum(axis=1) / 2
    miss = np.abs(phi @ theta - reward.ravel())
    return GymnasiumModel(
        mdp, labels, terminal, (float(distance.max()), float(distance.mean())), (float(miss.max()), float(miss.mean()))
    )


def _start(env: Any, states: int, s0: int | None) -> int:
    if s0 is not None:
        return integer("s0", s0, 0, states - 1)
    law = getattr(env, "initial_state_distrib", None)
    likely = np.flatnonzero(np.asarray(law) > 0) if law is not None else np.arange(states)
    if len(likely) != 1:
        raise ValueError(f"s0: expected the first state, as {type(env).__name__} draws one of {len(likely)}, got None")
    return int(likely[0])


def _factorised(rows: FloatArray, rank: int) -> tuple[FloatArray, FloatArray]:
    """`rows` (N, S), stochastic, as a product of stochastic factors (N, rank) and (rank, S), nearly."""
    import warnings

    from sklearn.decomposition import NMF
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the error of whatever it reached is returned
        model = NMF(rank, init="nndsvda", solver="cd", tol=1e-6, max_iter=2000, random_state=0)
        weights, latent = model.fit_transform(rows), model.components_
    size = latent.sum(axis=1)
    weights, latent = weights * size, latent / np.where(size > 0, size, 1)[:, None]
    latent[size == 0] = 1 / latent.shape[1]  # an unused latent: any distribution serves
    total = weights.sum(axis=1, keepdims=True)
    weights = np.where(total > 0, weights / np.where(total > 0, total, 1), 1 / rank)
    return weights, latent
