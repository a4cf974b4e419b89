"""Learned features: the losses by hand, what the contrastive optimum says about P, repeatable and resumable training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paperbook.papers.reward_poisoning.contrastive import (
    ContrastiveFeatures,
    FeatureConfig,
    Transitions,
    chance,
    fit_features,
    load_features,
    save_features,
)
from paperbook.study.checkpoints import Checkpoints, TrainingDiverged

SMALL = FeatureConfig(dim=6, hidden=16, batch=32, steps=30, check_every=10)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def transitions(n: int = 200, seed: int = 0) -> Transitions:
    rng = np.random.default_rng(seed)
    state, action = rng.normal(size=(n, 3)), np.eye(2)[rng.integers(2, size=n)]
    after = 0.8 * state + action @ np.array([[0.5, 0, 0], [0, -0.5, 0]])
    return Transitions(state, action, state[:, 0] * action[:, 1], after, np.eye(2)[(after[:, 0] > 0).astype(int)],
                       rng.random(n) < 0.1)  # fmt: skip


def test_features_never_leave_the_ball() -> None:
    model = ContrastiveFeatures(3, 2, 5, 8, stream())
    for scale in (1e-3, 1.0, 1e6):
        phi = model.features(scale * np.random.default_rng(0).normal(size=(50, 3)), np.eye(2)[np.arange(50) % 2])
        assert np.isfinite(phi).all() and np.linalg.norm(phi, axis=1).max() <= 1 + 1e-6  # float32 rounds at 6e-8 a number
    assert np.linalg.norm(phi, axis=1).min() > 0.99, "far outside the data features lie near the sphere"


def test_no_gradient_flows_through_the_target_of_the_dynamics_loss() -> None:
    """Finite differences of the loss with its target held fixed, along a random direction of all weights."""
    model, gamma = ContrastiveFeatures(3, 2, 5, 8, stream(1)), 0.9
    data = transitions(4)
    batch = tuple(torch.as_tensor(v, dtype=torch.float32)
                  for v in (data.state, data.action, data.reward, data.next_state, data.next_action, data.done))  # fmt: skip
    model.losses(batch, gamma)[2].backward()
    weights = [p for p in model.parameters() if p.grad is not None]
    way = [torch.randn(p.shape, generator=stream(2)) for p in weights]
    slope = sum(float((p.grad * w).sum()) for p, w in zip(weights, way, strict=True) if p.grad is not None)
    with torch.no_grad():
        fixed = gamma * (1 - batch[5])[:, None] * model.phi(batch[3], batch[4])

        def loss(size: float) -> float:
            for p, w in zip(weights, way, strict=True):
                p += size * w
            value = float(((model.dynamics(model.phi(batch[0], batch[1])) - fixed) ** 2).sum(dim=1).mean())
            for p, w in zip(weights, way, strict=True):
                p -= size * w
            return value

        step = 1e-2  # float32: rounding 1e-7 / step, curvature step^2
        assert (loss(step) - loss(-step)) / (2 * step) == pytest.approx(slope, rel=2e-2)


def test_losses_by_hand() -> None:
    """NumPy and loops against the module, with a batch of four of which one ended."""
    model, gamma = ContrastiveFeatures(3, 2, 5, 8, stream(1)), 0.9
    data = transitions(4)
    done = np.array([False, True, False, False])
    batch = tuple(torch.as_tensor(v, dtype=torch.float32)
                  for v in (data.state, data.action, data.reward, data.next_state, data.next_action, done))  # fmt: skip
    with torch.no_grad():
        contrast, reward, dynamics = (float(loss) for loss in model.losses(batch, gamma))
        mu = model.mu(batch[3]).numpy().astype(float)
    phi, then = model.features(data.state, data.action), model.features(data.next_state, data.next_action)
    theta, M = model.theta.weight[0].detach().numpy(), model.dynamics.weight.detach().numpy()
    by_hand = [0.0, 0.0, 0.0]
    for i in range(4):
        scores = [np.dot(phi[i], mu[j]) for j in range(4)]
        by_hand[0] += (np.log(sum(np.exp(scores))) - scores[i]) / 4
        by_hand[1] += 0.5 * (theta @ phi[i] - data.reward[i]) ** 2 / 4
        by_hand[2] += sum((M @ phi[i] - (0 if done[i] else gamma) * then[i]) ** 2) / 4
    assert [contrast, reward, dynamics] == pytest.approx(by_hand, rel=1e-5)  # float32


def test_the_contrastive_optimum_is_the_kernel() -> None:
    """Six states, two actions: P(s'|s,a) is proportional to P(s') exp(phi . mu), read off after training (tabular inputs)."""
    rng = np.random.default_rng(2)
    P = rng.dirichlet(0.4 * np.ones(6), size=(6, 2))
    n = 12_000
    s, a = rng.integers(6, size=n), rng.integers(2, size=n)
    s2 = (rng.random(n)[:, None] > P[s, a].cumsum(axis=1)).sum(axis=1)
    one = np.eye(6)
    data = Transitions(one[s], np.eye(2)[a], np.zeros(n), one[s2], np.eye(2)[0 * s], np.zeros(n, bool))
    config = FeatureConfig(dim=8, hidden=48, batch=256, steps=700, lr=3e-3, reward_weight=0.0, dynamics_weight=0.0)
    fit = fit_features(data, config, stream(3))
    phi = fit.model.features(np.repeat(one, 2, axis=0), np.tile(np.eye(2), (6, 1)))
    with torch.no_grad():
        scores = fit.model.logits(torch.as_tensor(phi, dtype=torch.float32), torch.eye(6)).numpy()
    learned = np.bincount(s2, minlength=6) * np.exp(scores)
    learned /= learned.sum(axis=1, keepdims=True)
    distance = 0.5 * np.abs(learned - P.reshape(12, 6)).sum(axis=1)
    marginal = 0.5 * np.abs(np.bincount(s2, minlength=6) / n - P.reshape(12, 6)).sum(axis=1)
    # 1,000 draws a pair estimate a row to about 0.03; knowing nothing (the marginal) misses by about 0.5
    assert distance.mean() < 0.1 and marginal.mean() > 0.35, (distance.mean(), marginal.mean())
    assert fit.history["contrast"][0] == pytest.approx(chance(256), abs=0.1)
    assert fit.history["contrast"][-1] < chance(256) - 0.3


def test_the_reward_head_learns() -> None:
    fit = fit_features(transitions(2000), replace(SMALL, steps=300, lr=3e-3), stream())
    assert fit.history["reward"][-1] < 0.3 * fit.history["reward"][0]
    assert fit.history["step"] == [*range(0, 300, 10), 299] and not fit.model.training


def test_same_bits_and_nothing_global_is_touched() -> None:
    torch.manual_seed(5)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    one, two = (fit_features(transitions(), SMALL, stream(4)).model.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(before, torch.get_rng_state()) and threads == torch.get_num_threads()
    other = fit_features(transitions(), SMALL, stream(5)).model.state_dict()
    assert not torch.equal(one["theta.weight"], other["theta.weight"])


def test_a_killed_training_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = fit_features(transitions(), SMALL, stream(1))

    class Killed(Exception):
        pass

    def kill(done: int, total: int, what: str) -> None:
        if done == 20:
            raise Killed

    with pytest.raises(Killed):
        fit_features(transitions(), SMALL, stream(1), checkpoints=Checkpoints(tmp_path, {"run": "a"}, every_seconds=0),
                     progress=kill)  # fmt: skip
    steps = []
    resumed = fit_features(transitions(), SMALL, stream(99), checkpoints=Checkpoints(tmp_path, {"run": "a"}, every_seconds=0),
                           progress=lambda done, *_: steps.append(done))  # fmt: skip
    assert steps[0] == 20, "it went on, not from the start"
    assert resumed.history == whole.history
    assert all(torch.equal(value, resumed.model.state_dict()[name]) for name, value in whole.model.state_dict().items())


def test_a_loss_that_is_no_number_is_said() -> None:
    with pytest.raises(TrainingDiverged, match="lower lr"):
        fit_features(transitions(), replace(SMALL, lr=1e20), stream())


def test_save_and_load(tmp_path: Path) -> None:
    data = transitions()
    model = fit_features(data, SMALL, stream()).model
    back = load_features(save_features(model, tmp_path / "phi.safetensors"))
    assert np.array_equal(back.features(data.state, data.action), model.features(data.state, data.action))
    assert back.sizes == model.sizes and not np.allclose(back.state_scale.numpy(), 1)
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="format"):
        load_features(tmp_path / "other.safetensors")


def test_chunks_do_not_change_features() -> None:
    data, model = transitions(), ContrastiveFeatures(3, 2, 5, 8, stream())
    # rows of a matrix product may be summed in another order: float32 rounding
    assert model.features(data.state, data.action, chunk=7) == pytest.approx(model.features(data.state, data.action), abs=1e-6)


def test_bad_input_is_named() -> None:
    data = transitions(10)
    for change, error, word in [
        ({"reward": data.reward[:-1]}, ValueError, "reward"), ({"next_state": data.state[:, :1]}, ValueError, "next_state"),
        ({"done": data.reward}, TypeError, "done"), ({"state": data.state * np.inf}, ValueError, "state"),
        ({"next_action": data.action[:-1]}, ValueError, "next_action"),
    ]:  # fmt: skip
        with pytest.raises(error, match=word):
            replace(data, **change)
    for field, value in {"dim": 0, "batch": 1, "lr": 0.0, "gamma": 1.1, "reward_weight": -1.0, "steps": -1}.items():
        with pytest.raises(ValueError, match=field):
            FeatureConfig(**{field: value})  # type: ignore[arg-type]
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: fit_features(None, SMALL, stream()), TypeError, "transitions"),  # type: ignore[arg-type]
        (lambda: fit_features(data, SMALL, np.random.default_rng(0)), TypeError, "generator"),  # type: ignore[arg-type]
        (lambda: ContrastiveFeatures(3, 2, 5, 8).features(np.zeros((2, 4)), np.zeros((2, 2))), ValueError, "state"),
        (lambda: chance(0), ValueError, "batch"),
    ]
    for call, kind, word in calls:
        with pytest.raises(kind, match=word):
            call()
