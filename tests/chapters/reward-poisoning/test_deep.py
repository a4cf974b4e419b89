"""Continuous environments: actions, rollouts, the victim against a naive LSVI-UCB, attacks by hand, the study end to end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from paperbook.papers.reward_poisoning import deep
from paperbook.papers.reward_poisoning.config_deep import GymnasiumConfig
from paperbook.papers.reward_poisoning.contrastive import ContrastiveFeatures
from paperbook.papers.reward_poisoning.mdp import random_instance
from paperbook.papers.reward_poisoning.sampled import SampledCertificate
from paperbook.study.checkpoints import Checkpoints
from paperbook.study.params import ParameterError, configure

TINY: dict[str, Any] = {"horizon": 6, "target_steps": 600, "d": 6, "hidden": 16, "batch": 32, "feature_steps": 40,
                        "data_episodes": 30, "support_states": 5, "splits": 2, "episodes": 24, "copies": 4}  # fmt: skip


def cartpole(horizon: int = 12) -> deep.World:
    return deep.World("CartPole-v1", horizon, 5, 64, 1.0, np.random.default_rng(0))


class SixJoints(gymnasium.Env[Any, Any]):
    """A stand-in with HalfCheetah's action space: the state is the last action."""

    action_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)
    observation_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(6, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.asarray(action), float(action[0]), False, False, {}


@pytest.fixture(scope="module")
def six() -> Iterator[str]:
    gymnasium.register("SixJointsOfATest-v0", SixJoints)
    yield "SixJointsOfATest-v0"
    gymnasium.registry.pop("SixJointsOfATest-v0")


def test_actions(six: str) -> None:
    assert cartpole().table.tolist() == [[1, 0], [0, 1]]
    assert deep.World("Pendulum-v1", 5, 5, 64, 1.0, np.random.default_rng(0)).table[:, 0].tolist() == [-2, -1, 0, 1, 2]
    many = deep.World(six, 5, 5, 64, 1.0, np.random.default_rng(0))
    assert many.table.shape == (64, 6) and len(np.unique(many.table, axis=0)) == 64
    assert set(many.table.ravel()) == {-1, -0.5, 0, 0.5, 1}
    again = deep.World(six, 5, 5, 64, 1.0, np.random.default_rng(0))
    assert np.array_equal(many.table, again.table)
    wish = np.random.default_rng(1).uniform(-1, 1, (20, 6))
    by_hand = [min(range(64), key=lambda k: np.linalg.norm(many.table[k] - w)) for w in wish]
    assert many.nearest(wish).tolist() == by_hand
    assert len(deep.World(six, 5, 2, 64, 1.0, np.random.default_rng(0)).table) == 64, "2^6 fits: the whole grid"


def test_rollouts_are_the_environments_own(six: str) -> None:
    """Replayed action by action in a bare environment with the same seeds, reward scale included."""
    world = deep.World("CartPole-v1", 15, 5, 64, 0.5, np.random.default_rng(0))
    data = world.rollout(lambda state, rng: np.ones(len(state), dtype=np.int64), 3, np.random.default_rng(4))
    seeds = np.random.default_rng(4)
    for e in range(3):
        env = gymnasium.make("CartPole-v1")
        state, _ = env.reset(seed=int(seeds.integers(2**31)))
        for h in range(15):
            assert data.alive[e, h] and data.state[e, h] == pytest.approx(state)
            state, reward, ended, _, _ = env.step(1)
            assert data.next_state[e, h] == pytest.approx(state) and data.reward[e, h] == 0.5 * float(reward)
            assert data.done[e, h] == ended
            if ended:
                break
        assert h < 14 and not data.alive[e, h + 1 :].any() and not data.reward[e, h + 1 :].any(), "pushing one way falls"
    moved = deep.World(six, 4, 5, 8, 1.0, np.random.default_rng(0))
    path = moved.rollout(deep.uniform(8), 5, np.random.default_rng(0))
    assert path.next_state == pytest.approx(moved.table[path.action]) and path.reward == pytest.approx(path.next_state[..., 0])
    assert path.alive.all() and not path.done.any() and path.returns == pytest.approx(path.reward.sum(axis=1))


def test_behaviours() -> None:
    rng, state = np.random.default_rng(0), np.zeros((20_000, 1))
    chosen = deep.deviating(lambda s, _: np.zeros(len(s), dtype=np.int64), 4, 0.3)(state, rng)
    # 30 % draw uniformly among 4: 22.5 % leave; 4 standard errors of 20,000 draws are 0.012
    assert abs((chosen != 0).mean() - 0.225) < 0.012
    assert np.bincount(deep.uniform(4)(state, rng), minlength=4) / 20_000 == pytest.approx(np.full(4, 0.25), abs=0.013)


def test_the_hacked_environment_teaches_to_fall() -> None:
    world, rng = cartpole(60), np.random.default_rng(0)
    target = deep.fitted_q_target(world, 150, 0.95, rng)
    returns = [world.rollout(policy, 40, rng).returns.mean() for policy in (target, deep.uniform(2))]
    assert returns[0] < 12 < 17 < returns[1], returns  # nothing falls before step 8; random play lasts about 22


def naive_lsvi(phi: np.ndarray, seen: list[tuple[int, int, int, float, int, bool]], H: int, bonus: float, lam: float, rmax: float
               ) -> np.ndarray:  # fmt: skip
    """Q (H, S, A) by lists and loops, in double precision."""
    S, A, d = phi.shape
    q = np.zeros((H + 1, S, A))
    for h in range(H - 1, -1, -1):
        gram, moment = lam * np.eye(d), np.zeros(d)
        for step, s, a, r, s2, ends in seen:
            if step == h:
                gram += np.outer(phi[s, a], phi[s, a])
                moment += phi[s, a] * (r + (0 if ends or h == H - 1 else q[h + 1, s2].max()))
        w = np.linalg.inv(gram) @ moment
        for s in range(S):
            for a in range(A):
                width = np.sqrt(phi[s, a] @ np.linalg.inv(gram) @ phi[s, a])
                q[h, s, a] = min(phi[s, a] @ w + bonus * width, rmax * (H - h))
    return q[:H]


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_the_victim_is_lsvi_ucb(chunk: int) -> None:
    """States are numbers in a one-dimensional box; features look them up; every plan equals that of the naive learner."""
    S, A, H, d, bonus, lam, rmax = 8, 3, 3, 5, 0.7, 0.5, 1.0
    mdp, _ = random_instance(S, A, H, d, rng=np.random.default_rng(0))
    table = torch.tensor(mdp.phi.tolist(), dtype=torch.float32)

    def features(x: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        return table[x[:, 0].long(), u.argmax(dim=1)]

    victim = deep.FeatureLSVI(features, np.eye(A), d, H, bonus, lam, rmax, chunk=chunk)
    rng, seen = np.random.default_rng(1), []
    every = np.arange(S)[:, None]
    for _ in range(12):
        s = np.full(4, mdp.s0)
        for h in range(H):
            a = victim.act(h, s[:, None])
            s2 = np.array([rng.choice(S, p=mdp.P()[h, i, j]) for i, j in zip(s, a, strict=True)])
            r, ends = mdp.r()[h, s, a] + 0.1 * rng.normal(size=4), rng.random(4) < 0.2
            victim.observe(h, s[:, None], a, r, s2[:, None], ends)
            seen += [(h, *row) for row in zip(s.tolist(), a.tolist(), r.tolist(), s2.tolist(), ends.tolist(), strict=True)]
            s = s2
        victim.plan()
        wanted = naive_lsvi(mdp.phi, seen, H, bonus, lam, rmax)
        for h in range(H):
            # features and rewards are kept in single precision: errors of 1e-7 times about 100 rows
            assert victim.q(h, torch.as_tensor(every)).numpy() == pytest.approx(wanted[h], abs=2e-5)
    assert (wanted == rmax * np.arange(H, 0, -1)[:, None, None]).any(), "the clip was met"


class Setting:
    """A small CartPole world with features that were not trained, and a poison by hand."""

    def __init__(self, horizon: int = 8, d: int = 6) -> None:
        self.cfg = GymnasiumConfig(**{**TINY, "horizon": horizon, "d": d, "penalty_at": 0.75})
        self.world = cartpole(horizon)
        self.model = ContrastiveFeatures(4, 2, d, 16, torch.Generator().manual_seed(0))
        truth, shift = np.full((1, d), 0.3), np.linspace(-1, 1, horizon * d).reshape(horizon, d)
        self.certificate = SampledCertificate(0.1, truth + shift, truth + 0 * shift, shift, np.zeros(horizon, int), 0.0, 0.0,
                                              0.0, "optimal", 3.0)  # fmt: skip
        self.shift = shift

    def target(self, state: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return (state[:, 2] > 0).astype(np.int64)

    def run(self, attack: str, **options: Any) -> tuple[deep.VictimHistory, list[deep.Rollouts], list[np.ndarray]]:
        """The history, what was played, and the rewards that the victim was given, by step."""
        played, delivered = [], []
        world, own = self.world, deep.World.rollout

        class Spy(deep.FeatureLSVI):
            def observe(self, h: int, state: Any, action: Any, reward: Any, next_state: Any, done: Any) -> None:
                delivered.append(np.asarray(reward))
                super().observe(h, state, action, reward, next_state, done)

        def rollout(policy: Any, episodes: int, rng: Any) -> deep.Rollouts:
            played.append(own(world, policy, episodes, rng))
            return played[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deep, "FeatureLSVI", Spy)
            patch.setattr(world, "rollout", rollout)
            history = deep.run_victim(world, self.model, self.target, attack, self.cfg, self.certificate,
                                      np.random.default_rng(3), **options)  # fmt: skip
        return history, played, delivered


@pytest.mark.parametrize("attack", deep.ATTACKS)
def test_attacks_by_hand(attack: str) -> None:
    """Every episode retold step by step: the first deviation counts, obeying is free, nothing is charged after an end."""
    setting = Setting()
    history, played, delivered = setting.run(attack)
    blocks = iter(delivered)
    episode = 0
    for data in played:
        wanted_rewards: list[list[float]] = [[] for _ in range(8)]
        for e in range(len(data.state)):
            left, cost, off_steps = False, 0.0, 0
            for h in range(8):
                if not data.alive[e, h]:
                    break
                off = int(data.action[e, h]) != int(data.state[e, h, 2] > 0)
                left, off_steps = left or off, off_steps + off
                phi = setting.model.features(data.state[e, h], setting.world.table[data.action[e, h]][None])[0]
                delta = {"none": 0.0, "at": -0.75 * off, "white-box": float(phi @ setting.shift[h]) if left else 0.0}[attack]
                cost += abs(delta)
                wanted_rewards[h].append(data.reward[e, h] + delta)
            assert history.deviations[episode] == left and history.cost[episode] == pytest.approx(cost, abs=1e-5)
            assert history.distance[episode] == off_steps and history.returns[episode] == data.returns[e]
            if not left:
                assert history.cost[episode] == 0
            episode += 1
        for h in range(8):
            if wanted_rewards[h]:
                assert next(blocks) == pytest.approx(wanted_rewards[h], abs=1e-5)
    assert episode == setting.cfg.episodes == len(history.cost) and next(blocks, None) is None
    assert history.deviations.any() and (attack == "none") == (history.cost.sum() == 0)


def test_a_killed_victim_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, _, _ = Setting().run("at")

    class Killed(Exception):
        pass

    def kill(done: int, total: int, what: str) -> None:
        if done >= 9:
            raise Killed

    keep = {"checkpoints": Checkpoints(tmp_path, {"run": "a"}, every_seconds=0)}
    with pytest.raises(Killed):
        Setting().run("at", progress=kill, **keep)
    resumed, played, _ = Setting().run("at", checkpoints=Checkpoints(tmp_path, {"run": "a"}, every_seconds=0))
    assert sum(len(data.state) for data in played) < 24, "it did not start anew"
    for name in ("deviations", "cost", "returns", "distance"):
        assert np.array_equal(getattr(whole, name), getattr(resumed, name)), name


def test_outcomes_by_the_rule() -> None:
    t, zero = np.arange(100), np.zeros(100)

    def outcome(deviations: np.ndarray, cost: np.ndarray) -> str:
        return deep.VictimHistory(deviations.astype(bool), cost, zero, zero).outcome()

    assert outcome(t < 20, np.exp(-t / 10)) == "attacked"
    assert outcome(t >= 0, zero) == "resisted"
    assert outcome(t < 20, zero + 1) == "resisted", "obeyed, at a cost that does not fall"
    assert outcome((t < 20) | (t == 80), np.exp(-t / 10)) == "unclear"


def test_samples_are_features_of_what_was_seen() -> None:
    setting, rng = Setting(), np.random.default_rng(0)
    world, target, model = setting.world, setting.target, setting.model
    both = deep.gather(world, target, 30, rng)
    assert [len(part.state) for part in both] == [10, 20]
    assert (both[0].action == target(both[0].state.reshape(-1, 4), rng).reshape(10, 8))[both[0].alive].all()
    samples = deep.samples_of(world, target, model, both, 4, rng)
    data = deep.transitions_of(world, target, both, rng)
    assert len(samples.phi) == len(data) == sum(int(part.alive.sum()) for part in both)
    assert not samples.next_phi[data.done].any() and (np.linalg.norm(samples.next_phi[~data.done], axis=1) > 0).all()
    assert np.bincount(samples.support_step).max() == 4 and set(np.unique(samples.support_episode)) <= set(range(10))
    assert np.bincount(samples.episode, minlength=30).tolist() == [int(n) for part in both for n in part.alive.sum(axis=1)]
    i = 5
    states = both[0].state[samples.support_episode[i], samples.support_step[i]]
    own = int(states[2] > 0)
    phi = model.features(np.tile(states, (2, 1)), np.eye(2))
    assert samples.target_phi[i] == pytest.approx(phi[own], abs=1e-6) and samples.rival_phi[i, 0] == pytest.approx(phi[1 - own])
    # episodes of different behaviours have numbers of their own, so halves of the data never share one
    assert len(np.unique(samples.episode)) == 30


def test_sac_is_rounded_and_kept(tmp_path: Path) -> None:
    cfg = GymnasiumConfig(**{**TINY, "environment": "Pendulum-v1", "target": "sac", "target_steps": 120, "learning_starts": 100})
    world = deep.World("Pendulum-v1", 6, 5, 64, 1.0, np.random.default_rng(0))
    state, rng = np.random.default_rng(0).normal(size=(40, 3)), np.random.default_rng(0)
    target, exact = deep.sac_target(world, cfg, Checkpoints(tmp_path, {"run": "a"}))
    assert np.array_equal(target(state, rng), world.nearest(np.asarray(exact(state, rng), dtype=float)))
    assert np.abs(exact(state, rng) - world.table[target(state, rng)]).max() <= 0.5 + 1e-6  # bins lie 1 apart
    from stable_baselines3 import SAC

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished target is not trained again")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SAC, "learn", never)
        _, again = deep.sac_target(world, cfg, Checkpoints(tmp_path, {"run": "a"}))
    assert np.array_equal(again(state, rng), exact(state, rng))


@pytest.mark.parametrize("certificate", ["finite", "discounted"])
def test_the_study_end_to_end(certificate: str) -> None:
    found = deep.deep_study(GymnasiumConfig(**TINY, certificate=certificate, seed=1))
    assert set(found["victims"]) == set(deep.ATTACKS) and found["marks"][-1] == 24 and found["actions"] == 2
    assert found["certificate"]["attackable"] == (found["certificate"]["eps"] > 0)
    assert len(found["certificate"]["free"]) == (6 if certificate == "finite" else 1)
    assert found["victims"]["none"]["cost"][-1] == 0 and found["certificate"]["halves"].shape == (2, 2)
    said = "attacked" if found["certificate"]["attackable"] else "resisted"
    assert found["agrees"] == (found["victims"]["white-box"]["outcome"] == said)
    states, eps = zip(*found["by_states"], strict=True)
    assert states[-1] == found["certificate"]["states"] > states[0] and eps[-1] == found["certificate"]["eps"]
    assert all(later <= before + 1e-6 for before, later in pairwise(eps)), "more states, more constraints"
    if certificate == "finite":  # the same bits again
        assert str(deep.deep_study(GymnasiumConfig(**TINY, seed=1))) == str(found)


def test_other_dimensions() -> None:
    cfg = GymnasiumConfig(**{**TINY, "d_grid": [4, 6], "seed": 1})
    four, six = deep.dimension_study(cfg)
    assert (four["d"], six["d"]) == (4, 6) and four["free"].max() <= 4 < six["free"].max() + 1
    # d = 6 is also the study's own dimension: the same data, streams and features
    assert six["eps"] == deep.deep_study(cfg)["certificate"]["eps"]
    assert deep.dimension_study(GymnasiumConfig(**TINY, d_grid=[])) == []


def test_other_horizons() -> None:
    cfg = GymnasiumConfig(**{**TINY, "h_grid": [4, 6], "seed": 1})
    four, six = deep.horizon_study(cfg)
    assert [row["horizon"] for row in (four, six)] == [4, 6] and [len(row["free"]) for row in (four, six)] == [4, 6]
    # 6 is the study's own horizon: the same target, data, streams and features
    assert six["eps"] == deep.deep_study(cfg)["certificate"]["eps"]
    assert deep.horizon_study(GymnasiumConfig(**TINY, h_grid=[])) == []


def test_configuration() -> None:
    cheetah: dict[str, Any] = {"environment": "HalfCheetah-v5", "target": "sac", "d": 1024, "certificate": "discounted",
                               "horizon": 50, "d_grid": [], "h_grid": []}  # fmt: skip
    assert [asset.name for asset in GymnasiumConfig(**cheetah).assets()] == ["the package mujoco"]
    assert GymnasiumConfig().assets() == []
    small, large = GymnasiumConfig().needs(), GymnasiumConfig(**cheetah, device="cuda").needs()
    assert small.gpu_gb is None and large.gpu_gb and small.memory_gb and large.memory_gb and small.memory_gb < 3
    one, two = (GymnasiumConfig(episodes=n).work().amount for n in (10_000, 20_000))
    assert 1.5 < two / one < 2.1
    wrong = [({"target": "sac"}, "target"), ({**cheetah, "certificate": "finite"}, "certificate"), ({"ranks": [4, 2]}, "ranks"),
             ({"environment": "Taxi-v3"}, "environment"), ({"target_steps": 100, "horizon": 200}, "target_steps"),
             ({"target_steps": 100, "h_grid": [200]}, "target_steps"), ({"d": 1}, "d"),
             ({"environment": "Pendulum-v1", "target": "sac", "learning_starts": 5000}, "learning_starts")]  # fmt: skip
    for values, word in wrong:
        with pytest.raises(ParameterError, match=word):
            configure(GymnasiumConfig, values)


def test_bad_input_is_named() -> None:
    rng = np.random.default_rng(0)
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: deep.World("FrozenLake-v1", 5, 5, 64, 1.0, rng), ValueError, "env_id"),
        (lambda: deep.World("CartPole-v1", 0, 5, 64, 1.0, rng), ValueError, "horizon"),
        (lambda: deep.World("CartPole-v1", 5, 5, 64, 0.0, rng), ValueError, "reward_scale"),
        (lambda: cartpole().rollout(deep.uniform(2), 0, rng), ValueError, "episodes"),
        (lambda: deep.fitted_q_target(cartpole(), 2, 1.0, rng), ValueError, "gamma"),
        (lambda: deep.FeatureLSVI(lambda x, u: x, np.eye(2), 4, 2, -1.0, 1.0, 1.0), ValueError, "bonus"),
        (lambda: Setting().run("black-box"), ValueError, "attack"),
    ]
    for call, kind, word in calls:
        with pytest.raises(kind, match=word):
            call()
