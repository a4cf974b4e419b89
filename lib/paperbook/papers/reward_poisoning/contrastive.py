"""Learned features for continuous environments: a contrastive representation phi(s,a), mu(s') with a linear reward (CTRL).

phi(s,a) . mu(s') is trained to tell the state that followed from those that followed other pairs of the batch; at its optimum it
is log P(s'|s,a)/P(s') up to a constant of (s,a). A logarithm: that the kernel itself is linear in phi does not follow, and is
only hoped for; `sampled` measures how far next features are linear in phi. Imports torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paperbook.papers.reward_poisoning.mdp import BoolArray, FloatArray
from paperbook.study.arguments import array, integer, number
from paperbook.study.checkpoints import Checkpoints, check_finite

FORMAT = "reward-poisoning features 1"


@dataclass(frozen=True, eq=False)
class Transitions:
    """Steps of an environment.

    Args:
        state: (n, s), finite.
        action: (n, a), finite; one-hot for discrete actions.
        reward: (n,).
        next_state: (n, s).
        next_action: what the target would do there (n, a).
        done: whether the environment ended there (n,), so that nothing follows; a mere time limit is no end.

    Raises:
        TypeError, ValueError: on shapes, kinds, numbers that are not finite.
    """

    state: FloatArray
    action: FloatArray
    reward: FloatArray
    next_state: FloatArray
    next_action: FloatArray
    done: BoolArray

    def __post_init__(self) -> None:
        for name, ndim in (("state", 2), ("action", 2), ("reward", 1), ("next_state", 2), ("next_action", 2)):
            object.__setattr__(self, name, array(name, getattr(self, name), ndim=ndim))
        done = np.asarray(self.done)
        if done.dtype.kind != "b":
            raise TypeError(f"done: expected truth values, got dtype {done.dtype}")
        object.__setattr__(self, "done", done)
        n = len(self.state)
        for name, shape in (("action", (n, self.action.shape[1])), ("reward", (n,)), ("next_state", self.state.shape),
                            ("next_action", self.action.shape), ("done", (n,))):  # fmt: skip
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {getattr(self, name).shape}")

    def __len__(self) -> int:
        return len(self.state)


@dataclass(frozen=True)
class FeatureConfig:
    """How features are trained; defaults are the smoke values, in brackets those of the published code.

    Args:
        dim: d >= 1 (1024).
        hidden: width of both networks, two hidden layers (512).
        lr: of AdamW, > 0 (1e-4).
        batch: rows of a step, >= 2: one row has nothing to be told from (512).
        steps: gradient steps, >= 0.
        reward_weight, dynamics_weight: of the two other losses, >= 0 (0.9, 0.7).
        gamma: discount in the dynamics loss, in [0, 1] (0.99).
        check_every: steps between two entries of the history, >= 1.

    Raises:
        TypeError, ValueError: naming the field.
    """

    dim: int = 16
    hidden: int = 64
    lr: float = 1e-3
    batch: int = 128
    steps: int = 400
    reward_weight: float = 0.9
    dynamics_weight: float = 0.7
    gamma: float = 0.95
    check_every: int = 50

    def __post_init__(self) -> None:
        for name, least in (("dim", 1), ("hidden", 1), ("batch", 2), ("steps", 0), ("check_every", 1)):
            integer(name, getattr(self, name), least)
        number("lr", self.lr, 0.0, open_low=True)
        number("reward_weight", self.reward_weight, 0.0)
        number("dynamics_weight", self.dynamics_weight, 0.0)
        number("gamma", self.gamma, 0.0, 1.0)


class ContrastiveFeatures(nn.Module):
    """phi(s,a) in the open unit ball of R^d, mu(s') in R^d, a reward head theta (d,) and a dynamics head M (d, d).

    Args:
        state_dim, action_dim: widths of states and actions, >= 1.
        dim, hidden: d, and the width of both networks.
        generator: draws the weights; None draws from torch's global stream.
    """

    state_mean: Tensor
    state_scale: Tensor

    def __init__(
        self, state_dim: int, action_dim: int, dim: int, hidden: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        sizes = {"state_dim": state_dim, "action_dim": action_dim, "dim": dim, "hidden": hidden}
        self.sizes = {name: integer(name, value, 1) for name, value in sizes.items()}
        with torch.random.fork_rng(devices=[], enabled=generator is not None):
            if generator is not None:
                torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            self.encoder = _network(state_dim + action_dim, hidden, dim)
            self.mu = _network(state_dim, hidden, dim)
            self.theta = nn.Linear(dim, 1, bias=False)
            self.dynamics = nn.Linear(dim, dim, bias=False)
        self.register_buffer("state_mean", torch.zeros(state_dim))
        self.register_buffer("state_scale", torch.ones(state_dim))

    def phi(self, state: Tensor, action: Tensor) -> Tensor:
        """Features (n, d) of states (n, s) and actions (n, a); norm below 1 for whatever comes."""
        raw = self.encoder(torch.cat([self._scaled(state), action], dim=-1)).float()
        # OPEN(paper, ||phi|| <= 1 for learned features): a smooth map into the ball, invertible, where clipping would lose
        # gradients outside it; the sum is taken in float32 under autocast too, or large outputs would leave the ball
        size = torch.linalg.vector_norm(raw, dim=-1, keepdim=True)
        return raw / torch.sqrt(1 + size**2)

    def logits(self, phi: Tensor, next_state: Tensor) -> Tensor:
        """phi(s_i,a_i) . mu(s'_j) (n, m)."""
        return phi @ self.mu(self._scaled(next_state)).float().T

    def losses(self, batch: tuple[Tensor, ...], gamma: float) -> tuple[Tensor, Tensor, Tensor]:
        """Contrastive cross-entropy with identity labels (nats), 0.5 mean (theta'phi - r)^2, mean ||M'phi - gamma phi'||^2.

        `batch` is (state, action, reward, next_state, next_action, done); phi' = phi(s', target(s')), 0 after an end.
        """
        state, action, reward, next_state, next_action, done = batch
        phi = self.phi(state, action)
        contrast = nn.functional.cross_entropy(self.logits(phi, next_state), torch.arange(len(phi), device=phi.device))
        error = self.theta(phi).float()[:, 0] - reward
        with torch.no_grad():  # OPEN(paper, target of the dynamics loss): the same network, no gradient through it
            then = gamma * (1 - done)[:, None] * self.phi(next_state, next_action)
        drift = ((self.dynamics(phi).float() - then) ** 2).sum(dim=1).mean()
        return contrast, 0.5 * (error**2).mean(), drift

    def features(self, state: Any, action: Any, chunk: int = 65_536) -> FloatArray:
        """phi as float64 NumPy (n, d) of arrays (n, s), (n, a), `chunk` rows at a time, no gradients."""
        states, actions = np.atleast_2d(array("state", state)), np.atleast_2d(array("action", action))
        integer("chunk", chunk, 1)  # a negative one would return memory as it was found
        if states.shape[1:] != (self.sizes["state_dim"],) or actions.shape != (len(states), self.sizes["action_dim"]):
            raise ValueError(f"state, action: expected (n, {self.sizes['state_dim']}) and (n, {self.sizes['action_dim']}), got "
                             f"{states.shape} and {actions.shape}")  # fmt: skip
        device, out = self.state_mean.device, np.empty((len(states), self.sizes["dim"]))
        with torch.inference_mode():
            for start in range(0, len(states), chunk):
                part = slice(start, start + chunk)
                x, u = (torch.as_tensor(v[part], dtype=torch.float32, device=device) for v in (states, actions))
                out[part] = self.phi(x, u).cpu().numpy()
        return out

    def _scaled(self, state: Tensor) -> Tensor:
        return (state - self.state_mean) / self.state_scale


def _network(width: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, out))


@dataclass
class FeatureFit:
    """What `fit_features` found: the model in evaluation mode, and the losses of the checks.

    `history` holds lists of one length: ``step``, ``contrast`` (nats; log(batch) is chance), ``reward``, ``dynamics``: each of
    the batch of that step, before its update.
    """

    model: ContrastiveFeatures
    history: dict[str, list[float]]


def fit_features(
    transitions: Transitions, config: FeatureConfig, generator: torch.Generator, device: str | torch.device = "cpu",
    checkpoints: Checkpoints | None = None, progress: Callable[[int, int, str], None] | None = None,
) -> FeatureFit:  # fmt: skip
    """Train features on transitions: contrastive + 0.9 x reward + 0.7 x dynamics loss, by AdamW.

    On CUDA under bfloat16 autocast, compiled, with the fused optimiser; on the CPU in float32 on one thread, so that a run
    repeats to the bit, resumed from a checkpoint or not.

    Args:
        transitions: at least two.
        config: sizes and weights.
        generator: draws weights and batches (a CPU generator).
        device: where the training runs; the data lie there once.
        checkpoints: where to go on from and save to.
        progress: called with (steps done, steps in all, "features").

    Raises:
        TypeError, ValueError: naming the argument.
        TrainingDiverged: the loss is no finite number; nothing of that state is saved.
        CheckpointError: a checkpoint that belongs to another run.
    """
    for name, value, kind in (("transitions", transitions, Transitions), ("config", config, FeatureConfig),
                              ("generator", generator, torch.Generator)):  # fmt: skip
        if not isinstance(value, kind):
            raise TypeError(f"{name}: expected {kind.__name__}, got {type(value).__name__}")
    n = len(transitions)
    if n < 2:
        raise ValueError(f"transitions: expected at least 2, got {n}")
    place = torch.device(device)
    cuda, batch = place.type == "cuda", min(config.batch, n)
    model = ContrastiveFeatures(transitions.state.shape[1], transitions.action.shape[1], config.dim, config.hidden, generator)
    model.state_mean.copy_(torch.as_tensor(transitions.state.mean(axis=0)))
    model.state_scale.copy_(torch.as_tensor(np.maximum(transitions.state.std(axis=0), 1e-6)))  # a constant coordinate stays 0
    model.to(place)
    data = [torch.as_tensor(np.asarray(value), dtype=torch.float32, device=place)
            for value in (transitions.state, transitions.action, transitions.reward, transitions.next_state,
                          transitions.next_action, transitions.done)]  # fmt: skip
    update = torch.optim.AdamW(model.parameters(), lr=config.lr, fused=cuda)
    weights = (1.0, config.reward_weight, config.dynamics_weight)

    def losses(*parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(place.type, torch.bfloat16, enabled=cuda):
            return model.losses(parts, config.gamma)

    measure: Callable[..., tuple[Tensor, Tensor, Tensor]] = torch.compile(losses) if cuda else losses
    history: dict[str, list[float]] = {"step": [], "contrast": [], "reward": [], "dynamics": []}
    step = 0
    parts = {"model": model, "optimiser": update, "generator": generator}
    resumed = checkpoints.resume(**parts) if checkpoints is not None else None
    if resumed is not None:
        step, history = resumed.step, resumed.values["history"]
    with _one_thread(not cuda):
        while step < config.steps:
            rows = torch.randint(n, (batch,), generator=generator).to(place)
            update.zero_grad(set_to_none=True)
            found = measure(*(part[rows] for part in data))
            total = sum(weight * loss for weight, loss in zip(weights, found, strict=True))
            assert isinstance(total, Tensor)
            due = checkpoints is not None and checkpoints.due()
            if step % config.check_every == 0 or due or step + 1 == config.steps:  # read back only then
                check_finite(float(total.detach()), step, checkpoints, f"lower lr (now {config.lr:g})")
            if step % config.check_every == 0 or step + 1 == config.steps:
                entries = (float(step), *(float(loss.detach()) for loss in found))
                for key, entry in zip(history, entries, strict=True):
                    history[key].append(entry)
                if progress is not None:
                    progress(step, config.steps, "features")
            total.backward()
            update.step()
            step += 1
            if checkpoints is not None and (due or step == config.steps):
                checkpoints.save(step, values={"history": history}, **parts)
    model.eval()
    return FeatureFit(model, history)


@contextmanager
def _one_thread(wanted: bool) -> Iterator[None]:
    """Sums are split among threads, so their number changes the last bits."""
    threads = torch.get_num_threads()
    if wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def save_features(model: ContrastiveFeatures, path: str | Path) -> Path:
    """Write weights and sizes to one safetensors file; returns its path."""
    from safetensors.torch import save_file

    state = {name: value.detach().to("cpu").contiguous() for name, value in model.state_dict().items()}
    save_file(state, path, {"format": FORMAT, "sizes": json.dumps(model.sizes)})
    return Path(path)


def load_features(path: str | Path) -> ContrastiveFeatures:
    """Read what `save_features` wrote, in evaluation mode on the CPU.

    Raises:
        FileNotFoundError: where there is no such file.
        ValueError: for a file of another kind.
    """
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = file.metadata() or {}
        if about.get("format") != FORMAT:
            raise ValueError(f"path: expected a file of format {FORMAT!r}, got {about.get('format')!r}")
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no mapping
    model = ContrastiveFeatures(**json.loads(about["sizes"]))
    model.load_state_dict(state)
    return model.eval()


def chance(batch: int) -> float:
    """The contrastive loss, in nats, of logits that know nothing: log(batch)."""
    return math.log(integer("batch", batch, 1))
