"""The certificate on continuous environments of gymnasium: a hacked target, learned features, a sampled certificate, a victim.

What runs, in order (the paper's deep part; constants are the published code's where the configuration says so, else ours):

1. the hacked environment, whose reward is negated, teaches the target policy (soft actor-critic, or fitted Q for two actions);
2. transitions of the target, of the target with random deviations, and of random play train the features (`contrastive`);
3. support states of the target's own rollouts give a certificate (`sampled`), with its stability over halves of the data;
4. victims, LSVI-UCB on the learned features with finitely many actions, start from scratch under no attack, under AT (Algorithm
   4) and under the white-box poison of the certificate (Algorithm 2).

Imports torch and, where they are used, gymnasium and stable_baselines3.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from paperbook.papers.reward_poisoning.config_deep import GymnasiumConfig
from paperbook.papers.reward_poisoning.contrastive import ContrastiveFeatures, FeatureConfig, Transitions, fit_features
from paperbook.papers.reward_poisoning.mdp import BoolArray, FloatArray, IntArray
from paperbook.papers.reward_poisoning.sampled import (
    SampledCertificate,
    Samples,
    discounted_certificate,
    finite_horizon_certificate,
    ridge,
    split_stability,
)
from paperbook.study.arguments import array, choice, function, generator, integer, number
from paperbook.study.checkpoints import Checkpoints
from paperbook.study.device import pick_device
from paperbook.study.seeds import rng as stream
from paperbook.study.seeds import torch_generator

Policy = Callable[[FloatArray, np.random.Generator], IntArray]
"""States (n, s) and a generator -> numbers of actions (n,)."""
Report = Callable[[int, int, str], None]
"""Called with (done, in all, what), as :meth:`paperbook.study.results.Run.progress`."""
Keep = Callable[[str], Checkpoints]
"""Gives the checkpoints of one named part, as :meth:`paperbook.study.results.Run.checkpoints`."""
ATTACKS = ("none", "at", "white-box")
QUIET, FALLEN = 0.01, 0.5  # as for finite environments: thresholds of an outcome (our choice, set before any run)


# ---------------------------------------------------------------------------------------------------------------------------
# environments with finitely many actions
# ---------------------------------------------------------------------------------------------------------------------------


class World:
    """An environment of gymnasium with finitely many actions and a limit of `horizon` steps.

    # OPEN(paper, discretised actions): `bins` values a joint, ends included; where that grid has more than `max_actions`
    points (5^6 on HalfCheetah), a random subset of them is drawn once, the same for target, victims and attacker.

    Args:
        env_id: a registered id, with continuous observations in one dimension.
        horizon: H >= 1.
        bins: values of each continuous action, >= 2.
        max_actions: most actions, >= 2.
        reward_scale: factor on every reward, > 0, so that |r| <= 1.
        rng: draws the subset.

    Attributes:
        table: encodings of the actions (A, a): one-hot where they are discrete, the action itself where continuous.
    """

    def __init__(
        self, env_id: str, horizon: int, bins: int, max_actions: int, reward_scale: float, rng: np.random.Generator
    ) -> None:
        import gymnasium

        self.env_id, self.horizon = env_id, integer("horizon", horizon, 1)
        integer("bins", bins, 2)
        integer("max_actions", max_actions, 2)
        self.reward_scale = number("reward_scale", reward_scale, 0.0, open_low=True)
        generator("rng", rng)
        self._spares: list[Any] = []
        env = gymnasium.make(env_id)
        space, seen = env.action_space, env.observation_space
        if not isinstance(seen, gymnasium.spaces.Box) or len(seen.shape) != 1:
            raise ValueError(f"env_id: expected an environment with vectors of observations, got {env_id} with {seen}")
        self.state_dim = int(seen.shape[0])
        self.discrete = isinstance(space, gymnasium.spaces.Discrete)
        if isinstance(space, gymnasium.spaces.Discrete):
            self.table = np.eye(int(space.n))
        elif isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1:
            joints = [np.linspace(low, high, bins) for low, high in zip(space.low, space.high, strict=True)]
            if bins ** len(joints) <= max_actions:
                self.table = np.array(list(itertools.product(*joints)), dtype=float)
            else:
                chosen = rng.integers(bins, size=(4 * max_actions, len(joints)))
                _, first = np.unique(chosen, axis=0, return_index=True)
                rows = chosen[np.sort(first)[:max_actions]]
                self.table = np.stack([joint[rows[:, j]] for j, joint in enumerate(joints)], axis=1)
        else:
            raise ValueError(f"env_id: expected discrete or one-dimensional continuous actions, got {env_id} with {space}")
        env.close()

    @property
    def actions(self) -> int:
        """Number A of actions."""
        return len(self.table)

    def nearest(self, action: FloatArray) -> IntArray:
        """The number (n,) of the action nearest to each continuous one (n, a), in the scale of the action space."""
        return np.asarray(((self.table[None] - action[:, None]) ** 2).sum(axis=2).argmin(axis=1))

    def rollout(self, policy: Policy, episodes: int, rng: np.random.Generator) -> Rollouts:
        """Play `episodes` at once; `policy` is asked once a step for all of them (also for those that have ended)."""
        E, H = integer("episodes", episodes, 1), self.horizon
        out = Rollouts(np.zeros((E, H, self.state_dim)), np.zeros((E, H), dtype=np.int64), np.zeros((E, H)),
                       np.zeros((E, H, self.state_dim)), np.zeros((E, H), dtype=bool), np.zeros((E, H), dtype=bool))  # fmt: skip
        copies = self._copies(E)
        state = np.array([env.reset(seed=int(rng.integers(2**31)))[0] for env in copies], dtype=float)
        alive = np.ones(E, dtype=bool)
        for h in range(H):
            action = policy(state, rng)
            out.state[:, h], out.action[:, h], out.alive[:, h] = state, action, alive
            for i in np.flatnonzero(alive):
                command = int(action[i]) if self.discrete else self.table[action[i]].astype(np.float32)
                seen, reward, ended, _, _ = copies[i].step(command)
                state[i], out.reward[i, h], out.done[i, h] = seen, self.reward_scale * float(reward), ended
            out.next_state[:, h] = state
            alive &= ~out.done[:, h]
            if not alive.any():
                break
        return out

    def _copies(self, n: int) -> list[Any]:
        import gymnasium

        while len(self._spares) < n:
            self._spares.append(gymnasium.make(self.env_id, max_episode_steps=self.horizon + 1))  # our own limit cuts first
        return self._spares[:n]


@dataclass(frozen=True, eq=False)
class Rollouts:
    """E episodes of H steps: state and next_state (E, H, s), the rest (E, H). `alive` says which steps were taken, `done`
    after which one the environment ended; steps never taken are zeros."""

    state: FloatArray
    action: IntArray
    reward: FloatArray
    next_state: FloatArray
    alive: BoolArray
    done: BoolArray

    @property
    def returns(self) -> FloatArray:
        """Sum of the true rewards (E,)."""
        return self.reward.sum(axis=1)


def uniform(actions: int) -> Policy:
    """Random play."""
    return lambda state, rng: rng.integers(actions, size=len(state))


def deviating(policy: Policy, actions: int, share: float) -> Policy:
    """`policy`, with a uniform action in its place at a `share` of the steps."""

    def act(state: FloatArray, rng: np.random.Generator) -> IntArray:
        chosen, other = policy(state, rng), rng.integers(actions, size=len(state))
        return np.where(rng.random(len(state)) < share, other, chosen)

    return act


# ---------------------------------------------------------------------------------------------------------------------------
# the target: what the hacked environment teaches
# ---------------------------------------------------------------------------------------------------------------------------


def fitted_q_target(
    world: World, episodes: int, gamma: float, rng: np.random.Generator, width: int = 100, sweeps: int = 60
) -> Policy:
    """A deterministic target from random play: fitted Q iteration on the negated reward, in random Fourier features.

    Args:
        world: where to play.
        episodes: of random play, >= 1.
        gamma: discount in [0, 1).
        rng: draws play and features.
        width: Fourier features, >= 1, one set of weights an action.
        sweeps: iterations, >= 1.
    """
    number("gamma", gamma, 0.0, 1.0, open_high=True)
    data = world.rollout(uniform(world.actions), episodes, rng)
    rows = data.alive
    state, then, action = data.state[rows], data.next_state[rows], data.action[rows]
    centre, scale = state.mean(axis=0), np.maximum(state.std(axis=0), 1e-6)
    turn, phase = rng.normal(size=(world.state_dim, integer("width", width, 1))) / 2, rng.uniform(0, 2 * np.pi, width)

    def basis(x: FloatArray) -> FloatArray:
        return np.concatenate([np.cos((x - centre) / scale @ turn + phase), np.ones((len(x), 1))], axis=1)

    here, there, weights = basis(state), basis(then), np.zeros((width + 1, world.actions))
    goes_on = ~data.done[rows]
    for _ in range(integer("sweeps", sweeps, 1)):
        goal = -data.reward[rows] + gamma * goes_on * (there @ weights).max(axis=1)
        for a in range(world.actions):
            weights[:, a] = ridge(here[action == a], goal[action == a], 1e-3)
    final = weights.copy()
    return lambda x, _: (basis(x) @ final).argmax(axis=1)


def sac_target(world: World, cfg: GymnasiumConfig, checkpoints: Checkpoints | None = None) -> tuple[Policy, Policy]:
    """The target by soft actor-critic on the negated reward: its mean action, and that rounded to the nearest of the table.

    Returns:
        The policy, as numbers of actions; and, for measuring what rounding costs, a function of states to continuous actions.

    A finished actor is kept in `checkpoints`; a training that was killed starts anew.
    """
    import gymnasium
    from stable_baselines3 import SAC

    scale = cfg.reward_scale
    env = gymnasium.wrappers.TransformReward(gymnasium.make(cfg.environment), lambda reward: -scale * float(reward))
    model = SAC(
        "MlpPolicy", env, learning_rate=cfg.sac_lr, buffer_size=cfg.buffer, batch_size=cfg.batch, tau=cfg.tau, gamma=cfg.gamma,
        learning_starts=cfg.learning_starts, train_freq=cfg.train_freq, gradient_steps=1, seed=cfg.seed,
        device=pick_device(cfg.device),
        policy_kwargs={"net_arch": [cfg.hidden, cfg.hidden]},
    )  # fmt: skip
    if checkpoints is None or checkpoints.resume(actor=model.actor) is None:
        model.learn(cfg.target_steps)
        if checkpoints is not None:
            checkpoints.save(cfg.target_steps, actor=model.actor)
    env.close()

    def mean_action(state: FloatArray, rng: np.random.Generator) -> Any:
        return np.asarray(model.predict(state.astype(np.float32), deterministic=True)[0], dtype=float)

    return (lambda state, rng: world.nearest(mean_action(state, rng))), mean_action


# ---------------------------------------------------------------------------------------------------------------------------
# data, features, certificate
# ---------------------------------------------------------------------------------------------------------------------------


def gather(world: World, target: Policy, episodes: int, rng: np.random.Generator) -> tuple[Rollouts, Rollouts]:
    """Rollouts of the target (the support), and of target with 30 % random actions and random play, a third of `episodes` each.

    # OPEN(paper, behaviour data): random play alone never sees the target's support, the target alone never leaves it.
    """
    third = max(integer("episodes", episodes, 3) // 3, 1)
    follow = world.rollout(target, third, rng)
    rest = [world.rollout(policy, third, rng) for policy in (deviating(target, world.actions, 0.3), uniform(world.actions))]
    joined = [np.concatenate([getattr(part, field.name) for part in rest]) for field in fields(Rollouts)]
    return follow, Rollouts(*joined)


def transitions_of(world: World, target: Policy, rollouts: tuple[Rollouts, ...], rng: np.random.Generator) -> Transitions:
    """The steps that were taken, with what the target would do next."""
    parts = []
    for data in rollouts:
        rows = data.alive
        then = data.next_state[rows]
        parts.append((data.state[rows], world.table[data.action[rows]], data.reward[rows], then, world.table[target(then, rng)],
                      data.done[rows]))  # fmt: skip
    return Transitions(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def samples_of(
    world: World, target: Policy, model: ContrastiveFeatures, rollouts: tuple[Rollouts, ...], support_states: int,
    rng: np.random.Generator,
) -> Samples:  # fmt: skip
    """Everything as features. The support states are those of the first rollouts, at most `support_states` of a step."""
    data = transitions_of(world, target, rollouts, rng)
    next_phi = model.features(data.next_state, data.next_action)
    next_phi[data.done] = 0  # nothing follows
    steps, episodes, first = [], [], 0
    for part in rollouts:
        episode, step = np.nonzero(part.alive)
        steps.append(step)
        episodes.append(episode + first)
        first += len(part.state)
    follow = rollouts[0]
    episode, step = np.nonzero(follow.alive)
    at_most, kept = integer("support_states", support_states, 1), []
    for h in np.unique(step):
        kept += rng.permutation(np.flatnonzero(step == h))[:at_most].tolist()
    episode, step = episode[np.sort(kept)], step[np.sort(kept)]
    state = follow.state[episode, step]
    phi = all_features(model, state, world.table)
    own = target(state, rng)
    rivals = np.arange(world.actions) != own[:, None]
    return Samples(model.features(data.state, data.action), data.reward, next_phi, np.concatenate(steps),
                   np.concatenate(episodes), phi[~rivals], phi[rivals].reshape(len(state), world.actions - 1, -1), step,
                   episode)  # fmt: skip


def all_features(model: ContrastiveFeatures, state: FloatArray, table: FloatArray) -> FloatArray:
    """phi(s, a) (n, A, d) of states (n, s) with every action of `table` (A, a)."""
    n, A = len(state), len(table)
    return model.features(np.repeat(state, A, axis=0), np.tile(table, (n, 1))).reshape(n, A, -1)


def certifier(cfg: GymnasiumConfig) -> Callable[[Samples], SampledCertificate]:
    """The certificate that the configuration asks for, of the samples it is given."""
    if cfg.certificate == "finite":
        return lambda samples: finite_horizon_certificate(
            samples, cfg.horizon, penalty=cfg.penalty, pin_tol=cfg.pin_tol, stationary=True, stretch=True
        )
    return lambda samples: discounted_certificate(
        samples, cfg.gamma, penalty=cfg.penalty, pin_tol=cfg.pin_tol, stretch=True
    )


# ---------------------------------------------------------------------------------------------------------------------------
# the victim
# ---------------------------------------------------------------------------------------------------------------------------


class FeatureLSVI:
    """LSVI-UCB on features of continuous states, with plans that are made seldom.

    With states without end the value of a next state cannot be summed up once and for all: every plan looks at all that was
    stored. So plans are made when the number of episodes has grown by `growth` (rare switching; regret grows by a constant
    factor), which leaves O(T log T) in all. Gram matrices are kept in double precision.

    Args:
        features: phi (n, d) tensor of states (n, s) and actions (n, a).
        table: actions (A, a).
        dim: d. horizon: H. bonus: >= 0. lam: > 0. rmax: > 0, the largest reward thought possible.
        device: where it computes.
        chunk: rows of features at once.
    """

    def __init__(
        self, features: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], table: FloatArray, dim: int, horizon: int,
        bonus: float, lam: float, rmax: float, device: str | torch.device = "cpu", chunk: int = 131_072,
    ) -> None:  # fmt: skip
        self._features = function("features", features)
        array("table", table, ndim=2)
        self.dim, self.horizon = integer("dim", dim, 1), integer("horizon", horizon, 1)
        self.bonus, self.lam = number("bonus", bonus, 0.0), number("lam", lam, 0.0, open_low=True)
        self.rmax, self.chunk = number("rmax", rmax, 0.0, open_low=True), integer("chunk", chunk, 1)
        self._device = torch.device(device)
        self._table = torch.as_tensor(table, dtype=torch.float32, device=self._device)
        eye = torch.eye(dim, dtype=torch.float64, device=self._device)
        self._gram = (self.lam * eye).repeat(horizon, 1, 1)
        self._weights = torch.zeros(horizon, dim, device=self._device)
        self._root = (eye / self.lam**0.5).float().repeat(horizon, 1, 1)  # R_h with R_h R_h' = Lambda_h^{-1}
        self._seen: list[list[tuple[torch.Tensor, ...]]] = [[] for _ in range(horizon)]

    def q(self, h: int, state: torch.Tensor) -> torch.Tensor:
        """Optimistic Q_h (n, A), h from 0, of the last plan; it stays within rmax times the steps still to collect."""
        n, A = len(state), len(self._table)
        phi = self._features(state.repeat_interleave(A, dim=0), self._table.repeat(n, 1))
        width = torch.linalg.vector_norm(phi @ self._root[h], dim=1)
        value = phi @ self._weights[h] + self.bonus * width
        return value.clamp(max=self.rmax * (self.horizon - h)).reshape(n, A)

    def act(self, h: int, state: FloatArray) -> IntArray:
        """The greedy action (n,) in each state (n, s); the first of equal ones."""
        with torch.inference_mode():
            chosen = self.q(h, torch.as_tensor(state, dtype=torch.float32, device=self._device)).argmax(dim=1)
        return np.asarray(chosen.cpu().numpy())

    def observe(
        self, h: int, state: FloatArray, action: IntArray, reward: FloatArray, next_state: FloatArray, done: BoolArray
    ) -> None:
        """Steps (n, ...) with the rewards as delivered."""
        to = {"dtype": torch.float32, "device": self._device}
        x, then, r, ends = (torch.as_tensor(np.asarray(v), **to) for v in (state, next_state, reward, done))  # type: ignore[arg-type]
        row = torch.as_tensor(action, device=self._device)
        with torch.inference_mode():
            phi = self._features(x, self._table[row]).double()
            self._gram[h] += phi.T @ phi
        self._seen[h].append((x, row, r, then, ends))

    def plan(self) -> None:
        """w_h = Lambda_h^{-1} sum phi (r + max_a Q_{h+1}(s', a)), backwards, over all that was seen."""
        with torch.inference_mode():
            for h in range(self.horizon - 1, -1, -1):
                moment = torch.zeros(self.dim, dtype=torch.float64, device=self._device)
                if self._seen[h]:
                    self._seen[h] = [tuple(torch.cat(column) for column in zip(*self._seen[h], strict=True))]
                    whole = self._seen[h][0]
                    rows = max(self.chunk // len(self._table), 1)
                    for start in range(0, len(whole[0]), rows):
                        x, row, r, then, ends = (column[start : start + rows] for column in whole)
                        goal = r if h + 1 == self.horizon else r + (1 - ends) * self.q(h + 1, then).max(dim=1).values
                        moment += self._features(x, self._table[row]).double().T @ goal.double()
                factor = torch.linalg.cholesky(self._gram[h])
                self._weights[h] = torch.cholesky_solve(moment[:, None], factor)[:, 0].float()
                eye = torch.eye(self.dim, dtype=torch.float64, device=self._device)
                self._root[h] = torch.linalg.solve_triangular(factor, eye, upper=False).T.float()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"gram": self._gram, "weights": self._weights, "root": self._root, "seen": [list(part) for part in self._seen]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self._gram, self._weights, self._root = (state[name].to(self._device) for name in ("gram", "weights", "root"))
        self._seen = [[tuple(v.to(self._device) for v in block) for block in part] for part in state["seen"]]


@dataclass(frozen=True, eq=False)
class VictimHistory:
    """T episodes of one victim, (T,) each: whether it left the target; sum |delta|; true return; L2 distance of the actions.

    `distance` is the paper's policy difference, summed over the steps of an episode: ||a - target's action||, 1 a step apart
    where actions are discrete.
    """

    deviations: BoolArray
    cost: FloatArray
    returns: FloatArray
    distance: FloatArray

    def outcome(self) -> str:
        """"attacked", "resisted" or "unclear", by the rule of the finite environments, from increments."""
        T = len(self.cost)
        late = float(self.deviations[T // 2 :].mean())
        ends = [(values[: T // 4].mean(), values[-(T // 4) :].mean()) for values in (self.deviations, self.cost)]
        fallen = all(last <= FALLEN * first for first, last in ends)
        return ("attacked" if late < QUIET else "unclear") if fallen else "resisted"


def run_victim(
    world: World, model: ContrastiveFeatures, target: Policy, attack: str, cfg: GymnasiumConfig,
    certificate: SampledCertificate, rng: np.random.Generator, checkpoints: Checkpoints | None = None,
    progress: Report | None = None,
) -> VictimHistory:  # fmt: skip
    """LSVI-UCB from scratch under one attack, `cfg.episodes` episodes.

    Attacks: "none"; "at" takes `cfg.penalty_at` off the reward of every action that is not the target's; "white-box" delivers
    phi'theta of the certificate, with the true reward's noise, at the first deviation of an episode and after it.
    """
    choice("attack", attack, ATTACKS)
    number_of_episodes, H = cfg.episodes, world.horizon
    victim = FeatureLSVI(lambda x, u: model.phi(x, u), world.table, cfg.d, H, cfg.bonus, cfg.lam, cfg.d**0.5,
                         pick_device(cfg.device))  # fmt: skip
    names = [field.name for field in fields(VictimHistory)]
    record = {name: np.zeros(number_of_episodes) for name in names}
    shift = certificate.theta - certificate.true_theta
    done = 0
    resumed = checkpoints.resume(victim=victim, rng=rng) if checkpoints is not None else None
    if resumed is not None:
        done, record = resumed.step, {name: np.asarray(resumed.values[name]) for name in names}
    while done < number_of_episodes:
        size = min(max(1, int((cfg.growth - 1) * done)), cfg.copies, number_of_episodes - done)
        steps = itertools.count()

        def act(state: FloatArray, _: np.random.Generator, steps: Any = steps) -> IntArray:
            return victim.act(next(steps), state)

        data = world.rollout(act, size, rng)
        wanted = np.stack([target(data.state[:, h], rng) for h in range(H)], axis=1)
        off = (data.action != wanted) & data.alive
        left = np.logical_or.accumulate(off, axis=1) & data.alive
        delta = np.zeros((size, H))
        if attack == "at":
            delta[off] = -cfg.penalty_at
        elif attack == "white-box":
            phi = model.features(data.state.reshape(-1, world.state_dim), world.table[data.action.ravel()]).reshape(size, H, -1)
            delta = np.where(left, np.einsum("ehd,hd->eh", phi, np.broadcast_to(shift, (H, cfg.d))), 0.0)
        for h in range(H):
            rows = data.alive[:, h]
            if rows.any():
                victim.observe(h, data.state[rows, h], data.action[rows, h], (data.reward + delta)[rows, h],
                               data.next_state[rows, h], data.done[rows, h])  # fmt: skip
        gap = np.linalg.norm(world.table[data.action] - world.table[wanted], axis=2)
        part = slice(done, done + size)
        record["deviations"][part], record["cost"][part] = off.any(axis=1), np.abs(delta).sum(axis=1)
        record["returns"][part] = data.returns
        record["distance"][part] = np.where(off, 1.0 if world.discrete else gap, 0.0).sum(axis=1)
        done += size
        victim.plan()
        if progress is not None:
            progress(done, number_of_episodes, f"episodes under attack {attack}")
        if checkpoints is not None and (checkpoints.due() or done == number_of_episodes):
            checkpoints.save(done, values=record, victim=victim, rng=rng)
    return VictimHistory(record["deviations"].astype(bool), record["cost"], record["returns"], record["distance"])


# ---------------------------------------------------------------------------------------------------------------------------
# the study
# ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Prepared:
    """What comes before the features: the world, the target (and before rounding, for SAC), its rollouts, other rollouts."""

    world: World
    target: Policy
    exact: Policy | None
    rollouts: tuple[Rollouts, Rollouts]


def prepare(cfg: GymnasiumConfig, checkpoints: Checkpoints | None = None) -> Prepared:
    """World, target and data of a configuration, from its seed."""
    draw = stream(cfg.seed, "deep", "data")

    def world(horizon: int) -> World:
        return World(cfg.environment, horizon, cfg.bins, cfg.max_actions, cfg.reward_scale, stream(cfg.seed, "deep", "actions"))

    main, exact = world(cfg.horizon), None
    if cfg.target == "sac":
        target, exact = sac_target(main, cfg, checkpoints)
    else:
        # episodes as short as the study's would show random play little of where the reward ends
        target = fitted_q_target(world(5 * cfg.horizon), max(cfg.target_steps // (2 * cfg.horizon), 1), cfg.gamma, draw)
    return Prepared(main, target, exact, gather(main, target, cfg.data_episodes, draw))


def features_and_samples(
    made: Prepared, cfg: GymnasiumConfig, dim: int, checkpoints: Checkpoints | None = None, progress: Report | None = None
) -> tuple[ContrastiveFeatures, dict[str, list[float]], Samples]:
    """Features of `dim` dimensions trained on the data, the history of their losses, and everything in them."""
    draw = stream(cfg.seed, "deep", "samples")
    config = FeatureConfig(dim, cfg.hidden, cfg.lr, cfg.batch, cfg.feature_steps, cfg.reward_weight, cfg.dynamics_weight,
                           cfg.gamma, max(cfg.feature_steps // 8, 1))  # fmt: skip
    data = transitions_of(made.world, made.target, made.rollouts, draw)
    own = torch_generator(cfg.seed, "deep", "features")
    fit = fit_features(data, config, own, pick_device(cfg.device), checkpoints, progress)
    return fit.model, fit.history, samples_of(made.world, made.target, fit.model, made.rollouts, cfg.support_states, draw)


def certificate_summary(samples: Samples, cfg: GymnasiumConfig) -> tuple[SampledCertificate, dict[str, Any]]:
    """The certificate; and eps, its sign, free dimensions, errors (relative to root mean squares), and its stability over halves:
    ``agreement`` on the sign with ``interval``, ``positive`` share, ``violated`` share of held-out margins, ``halves`` eps."""
    certify = certifier(cfg)
    found = certify(samples)
    spread = samples.next_phi - samples.next_phi.mean(axis=0)
    halves = split_stability(samples, certify, cfg.splits, stream(cfg.seed, "deep", "splits"))
    return found, {
        "eps": found.eps, "attackable": int(found.attackable), "free": found.free, "pin_error": found.pin_error,
        "status": found.status, "cap_over_sqrt_d": found.cap / samples.dim**0.5, "states": len(samples.target_phi),
        "reward_error": found.reward_error / max(float(np.sqrt(np.mean(samples.reward**2))), 1e-12),
        "next_error": found.next_error / max(float(np.sqrt((spread**2).sum(axis=1).mean())), 1e-12),
        "agreement": halves.agreement, "interval": halves.interval, "positive": halves.positive, "violated": halves.violated,
        "halves": halves.eps,
    }  # fmt: skip


def deep_study(cfg: GymnasiumConfig, progress: Report | None = None, checkpoints: Keep | None = None) -> dict[str, Any]:
    """One seed: target, features, certificate with its stability, and a victim under each attack.

    Returns:
        ``actions``; ``returns`` (true, mean over episodes: target, random play); ``rounding`` (mean distance from SAC's action to
        the table); ``history`` of the features; ``certificate`` (:func:`certificate_summary`); ``by_states``: eps with fewer
        support states, a list of (states of a step, eps); ``open_choices``: what eps would gain with exact pins and with the
        discounted programme; ``victims``: for each attack the running sums of deviations, cost, distance and returns at
        ``marks``, and the outcome; ``agrees``: 1 where the white-box outcome is the one that the sign of eps says.
    """
    keep: Callable[[str], Checkpoints | None] = (lambda name: None) if checkpoints is None else checkpoints
    made = prepare(cfg, keep("target"))
    world, (follow, rest) = made.world, made.rollouts
    found: dict[str, Any] = {"actions": world.actions, "rounding": 0.0}
    found["returns"] = {"target": float(follow.returns.mean()), "random": float(rest.returns[len(rest.returns) // 2 :].mean())}
    if made.exact is not None:
        wish = np.asarray(made.exact(follow.state[follow.alive], stream(cfg.seed, "deep", "rounding")), dtype=float)
        found["rounding"] = float(np.linalg.norm(wish - world.table[world.nearest(wish)], axis=1).mean())
    model, found["history"], samples = features_and_samples(made, cfg, cfg.d, keep("features"), progress)
    certificate, found["certificate"] = certificate_summary(samples, cfg)
    found["by_states"] = by_support_states(samples, cfg)
    exact_pins = certifier(cfg.model_copy(update={"pin_tol": 1e-6}))(samples).eps
    discounted = discounted_certificate(samples, cfg.gamma, penalty=cfg.penalty, pin_tol=cfg.pin_tol, stretch=True).eps
    found["open_choices"] = {"exact_pins": exact_pins - certificate.eps, "discounted": discounted - certificate.eps}
    marks = np.unique(np.linspace(0, cfg.episodes, 17).astype(int)[1:])
    found["marks"], found["victims"] = marks, {}
    for attack in ATTACKS:
        history = run_victim(world, model, made.target, attack, cfg, certificate, stream(cfg.seed, "deep", "victim"),
                             keep(f"victim-{attack}"), progress)  # fmt: skip
        sums = {field.name: np.cumsum(getattr(history, field.name))[marks - 1].astype(float) for field in fields(VictimHistory)}
        found["victims"][attack] = {**sums, "outcome": history.outcome()}
    said = "attacked" if certificate.attackable else "resisted"
    found["agrees"] = int(found["victims"]["white-box"]["outcome"] == said)
    return found


def by_support_states(samples: Samples, cfg: GymnasiumConfig) -> list[tuple[int, float]]:
    """eps with 1/16, 1/4 and all of the support states of each step, nested, the regressions unchanged: (states, eps)."""
    certify, out = certifier(cfg), []
    order = np.zeros(len(samples.support_step), dtype=np.int64)  # which state of its step each one is
    for h in np.unique(samples.support_step):
        order[samples.support_step == h] = 1 + np.arange(int((samples.support_step == h).sum()))
    for share in (16, 4, 1):
        kept = order <= max(cfg.support_states // share, 1)
        part = replace(samples, target_phi=samples.target_phi[kept], rival_phi=samples.rival_phi[kept],
                       support_step=samples.support_step[kept], support_episode=samples.support_episode[kept])  # fmt: skip
        out.append((int(kept.sum()), certify(part).eps))
    return out


def dimension_study(
    cfg: GymnasiumConfig, progress: Report | None = None, checkpoints: Keep | None = None
) -> list[dict[str, Any]]:
    """The same environment, target and data in features of each dimension of `cfg.d_grid`: ``d`` and the summary of each."""
    if not cfg.d_grid:
        return []
    keep: Callable[[str], Checkpoints | None] = (lambda name: None) if checkpoints is None else checkpoints
    made = prepare(cfg, keep("target"))
    out = []
    for dim in cfg.d_grid:
        _, _, samples = features_and_samples(made, cfg, dim, keep(f"features-{dim}"), progress)
        out.append({"d": dim, **certificate_summary(samples, cfg)[1]})
    return out


def horizon_study(
    cfg: GymnasiumConfig, progress: Report | None = None, checkpoints: Keep | None = None
) -> list[dict[str, Any]]:
    """The certificate with other limits on the steps of an episode, `cfg.h_grid`: ``horizon`` and the summary of each. Target,
    data and features are made anew for each, from the same seed."""
    keep: Callable[[str], Checkpoints | None] = (lambda name: None) if checkpoints is None else checkpoints
    out = []
    for horizon in cfg.h_grid:
        other = cfg.model_copy(update={"horizon": horizon})
        made = prepare(other, keep(f"target-{horizon}"))
        _, _, samples = features_and_samples(made, other, cfg.d, keep(f"features-{horizon}"), progress)
        out.append({"horizon": horizon, **certificate_summary(samples, other)[1]})
    return out
