"""Tables of gymnasium under two feature maps: one-hot, and low rank (page 6). Nothing here plots.

The published condition is about an environment *and a feature map*. FrozenLake shows the difference with nothing in between: the
rows of its own kernel are features that say kernel and rewards exactly, in fewer dimensions than one-hot features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from paperbook.papers.reward_poisoning.attacks import WhiteBox
from paperbook.papers.reward_poisoning.certificate import certify
from paperbook.papers.reward_poisoning.config_deep import GymnasiumConfig
from paperbook.papers.reward_poisoning.learner import LSVIUCB
from paperbook.papers.reward_poisoning.mdp import (
    FloatArray,
    GymnasiumModel,
    IntArray,
    LinearMDP,
    from_gymnasium,
    random_instance,
    tabular_linear_mdp,
)
from paperbook.papers.reward_poisoning.play import run_attack
from paperbook.papers.reward_poisoning.sampled import wilson
from paperbook.papers.reward_poisoning.studies_frequency import certified
from paperbook.study.arguments import generator, integer, number
from paperbook.study.seeds import rng as stream

TABLES: dict[str, dict[str, Any]] = {
    "FrozenLake-v1": {"reward_scale": 1.0},
    "CliffWalking-v1": {"reward_scale": 0.01},  # the cliff costs 100
    "Taxi-v4": {"reward_scale": 0.05, "s0": 1},  # a ride pays 20; taxi at a corner, passenger at the second stop
}
"""Environments with a table of transitions; rewards are scaled into [-1, 1]."""
SHARES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Shares of the one-hot part in the features of :func:`mixture_study`."""
BELOW = -0.1
"""How robust the instance of :func:`same_environment_two_learners` is."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """A low-rank model whose ends are kept apart, and how far it is from the table.

    Attributes:
        mdp: the model; its last A latents belong to the ends.
        error_tv: total variation between rows of the kernels, (largest, mean) over states that are no ends, and actions.
        error_reward: difference of the rewards there, (largest, mean).
    """

    mdp: LinearMDP
    error_tv: tuple[float, float]
    error_reward: tuple[float, float]


def ends_apart(exact: GymnasiumModel, low: GymnasiumModel) -> LowRank:
    """Give the actions of ended episodes features of their own in a low-rank model, and fit its rewards without them.

    After an end all actions do the same, so a factorisation gives them one feature, and identical actions admit no margin
    (eps* <= 0) although nothing happens there any more. A latents more tell them apart; they lead to an end and pay 0.

    Args:
        exact: the table without a rank.
        low: the same environment, horizon and start with one.

    Raises:
        ValueError: where the two do not have the same states.
    """
    if not np.array_equal(exact.labels, low.labels) or exact.mdp.horizon != low.mdp.horizon:
        raise ValueError("low: expected a model of the same environment, horizon and start as exact, got other states")
    S, A, rank = low.mdp.phi.shape
    ends, on = np.flatnonzero(low.terminal), ~low.terminal
    extra = A if len(ends) else 0
    phi = np.zeros((S, A, rank + extra))
    phi[on, :, :rank] = low.mdp.phi[on]
    mu = np.zeros((low.mdp.horizon, rank + extra, S))
    mu[:, :rank] = low.mdp.mu
    if extra:
        phi[ends[:, None], np.arange(A), rank + np.arange(A)] = 1
        mu[:, rank:, ends[0]] = 1  # one end is as good as another
    rows, reward = low.mdp.phi[on].reshape(-1, rank), exact.mdp.r()[0, on].ravel()
    theta = np.zeros(rank + extra)
    theta[:rank] = np.linalg.lstsq(rows, reward, rcond=1e-9)[0]
    mdp = LinearMDP(phi, mu, np.tile(theta, (low.mdp.horizon, 1)), low.mdp.s0)
    distance = np.abs(mdp.P()[0, on] - exact.mdp.P()[0, on]).sum(axis=2) / 2
    miss = np.abs(mdp.r()[0, on] - exact.mdp.r()[0, on])
    return LowRank(mdp, (float(distance.max()), float(distance.mean())), (float(miss.max()), float(miss.mean())))


def kernel_rows(exact: GymnasiumModel) -> LowRank:
    """The table with phi(s, a) = P(.|s, a) as features, ends apart: the same environment exactly, wherever rewards are expected
    values of something that the next state says (as in FrozenLake, where the goal pays); else `error_reward` is not 0.
    """
    mdp = exact.mdp
    identity = np.broadcast_to(np.eye(mdp.states), (mdp.horizon, mdp.states, mdp.states))
    plain = LinearMDP(mdp.P()[0], identity, np.zeros((mdp.horizon, mdp.states)), mdp.s0)
    return ends_apart(exact, GymnasiumModel(plain, exact.labels, exact.terminal, (0.0, 0.0), (0.0, 0.0)))


def mixed_with_one_hot(mdp: LinearMDP, share: float) -> LinearMDP:
    """The same MDP, kernel and rewards exactly, with features ((1 - share) phi, share one-hot) in d + S A dimensions.

    At share 0 only what phi says can be poisoned; at any share above 0 every reward is free, at a price: the parameter of a
    single (s, a) must grow as 1/share, against the cap.

    Raises:
        TypeError, ValueError: for a share outside [0, 1].
    """
    weight = number("share", share, 0.0, 1.0)
    S, A, _ = mdp.phi.shape
    one = np.eye(S * A)
    phi = np.concatenate([(1 - weight) * mdp.phi, weight * one.reshape(S, A, S * A)], axis=2)
    mu = np.concatenate([mdp.mu, mdp.P().reshape(mdp.horizon, S * A, S)], axis=1)
    theta = np.concatenate([mdp.theta, mdp.r().reshape(mdp.horizon, S * A)], axis=1)
    return LinearMDP(phi, mu, theta, mdp.s0)


def hacked_targets(mdp: LinearMDP, n: int, rng: np.random.Generator) -> list[IntArray]:
    """`n` optimal policies (H, S) of rewards uniform on [-1, 1]^d, none of which plays an optimal first action already.

    Raises:
        RuntimeError: after 200 draws for each that is wanted.
    """
    generator("rng", rng)
    first, found = mdp.optimal_q()[0, mdp.s0], []
    for _ in range(200 * integer("n", n, 1)):
        target = mdp.optimal_policy(rng.uniform(-1, 1, size=mdp.theta.shape))
        if first[target[0, mdp.s0]] < first.max() - 1e-9:
            found.append(target)
        if len(found) == n:
            return found
    raise RuntimeError(f"hacked_targets: expected {n} targets that differ from the optimal first action, found {len(found)}")


def table_study(cfg: GymnasiumConfig) -> dict[str, dict[str, Any]]:
    """Certify `cfg.targets` hacked targets of each table with one-hot features, and those of FrozenLake with other features:
    at each rank below its number of states, and with the rows of its kernel.

    Returns:
        By name ("FrozenLake-v1", "FrozenLake-v1 rank 8", "FrozenLake-v1 kernel rows", ...): ``states``, ``dim``, ``eps`` (n,),
        ``attackable`` (share), ``interval`` (95 %), ``structural`` (share of structurally robust ones), ``error_tv`` and
        ``error_reward`` (largest, mean).
    """
    out: dict[str, dict[str, Any]] = {}
    for env, options in TABLES.items():
        exact = from_gymnasium(env, cfg.table_horizon, **options)
        targets = _targets(cfg, exact, env)
        out[env] = _certify_all(LowRank(exact.mdp, (0.0, 0.0), (0.0, 0.0)), targets)
        if env == "FrozenLake-v1":
            for rank in [r for r in cfg.ranks if r < exact.mdp.states]:
                low = ends_apart(exact, from_gymnasium(env, cfg.table_horizon, rank, **options))
                out[f"{env} rank {rank}"] = _certify_all(low, targets)
            out[f"{env} kernel rows"] = _certify_all(kernel_rows(exact), targets)
    return out


def mixture_study(cfg: GymnasiumConfig) -> dict[str, FloatArray]:
    """eps* and kinds of the same targets of FrozenLake while its exact features pass from kernel rows to one-hot.

    Returns:
        ``share`` (k,); ``eps`` (k, n); ``attackable``, ``cap_limited``, ``structural``: shares of the targets (k,).
    """
    exact = from_gymnasium("FrozenLake-v1", cfg.table_horizon, **TABLES["FrozenLake-v1"])
    targets, rows = _targets(cfg, exact, "FrozenLake-v1"), kernel_rows(exact).mdp
    mixtures = [mixed_with_one_hot(rows, share) for share in SHARES]
    found = [[certified(mixed, target, mixed.dim**0.5) for target in targets] for mixed in mixtures]
    kinds = np.array([[kind for _, kind in row] for row in found])
    names = {"attackable": "attackable", "cap_limited": "cap-limited", "structural": "structurally-robust"}
    return {"share": np.array(SHARES), "eps": np.array([[certificate.eps for certificate, _ in row] for row in found]),
            **{name: (kinds == kind).mean(axis=1) for name, kind in names.items()}}  # fmt: skip


def _targets(cfg: GymnasiumConfig, exact: GymnasiumModel, env: str) -> list[IntArray]:
    return hacked_targets(exact.mdp, cfg.targets, stream(cfg.seed, "tables", env))


def _certify_all(model: LowRank, targets: list[IntArray]) -> dict[str, Any]:
    found = [certified(model.mdp, target, model.mdp.dim**0.5) for target in targets]
    good = sum(kind == "attackable" for _, kind in found)
    eps: FloatArray = np.array([certificate.eps for certificate, _ in found])
    return {"states": model.mdp.states, "dim": model.mdp.dim, "eps": eps, "attackable": good / len(found),
            "interval": wilson(good, len(found)), "structural": float(np.mean([k == "structurally-robust" for _, k in found])),
            "error_tv": model.error_tv, "error_reward": model.error_reward}  # fmt: skip


def same_environment_two_learners(seed: int, episodes: int = 2000) -> dict[str, dict[str, float]]:
    """One robust random MDP, played by LSVI-UCB on its own features and by LSVI-UCB on one-hot features, under the white box.

    The MDP is the first draw whose certificate is structurally robust with eps* below :data:`BELOW`. Bonus 0.3, 8 states, 3
    actions, 3 steps, d = 5.

    Returns:
        For "features" and "table": ``eps``; ``late``, the share of episodes off the target in the last half; ``cost``, total;
        ``late_cost``, of an episode in the last half.
    """
    integer("episodes", episodes, 2)
    draw = stream(seed, "two learners", "instance")
    while True:
        mdp, target = random_instance(8, 3, 3, 5, rng=draw)
        robust = certify(mdp, target)
        if robust.kind == "structurally-robust" and robust.eps < BELOW:
            break
    table = tabular_linear_mdp(mdp.P(), mdp.r())
    out = {}
    for name, model, found in (("features", mdp, robust), ("table", table, certify(table, target))):
        history = run_attack(model, LSVIUCB(model.phi, 3, bonus=0.3), WhiteBox(model, target, found), target, episodes,
                             stream(seed, "two learners", "play"))  # fmt: skip
        half = episodes // 2
        out[name] = {"eps": found.eps, "late": float(history.deviations[half:].mean()), "cost": float(history.cost.sum()),
                     "late_cost": float(history.cost[half:].mean())}  # fmt: skip
    return out
