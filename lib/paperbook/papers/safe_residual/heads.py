"""The zero-initialised head in torch, its training loop, and the closed form of its gradient path (S8). Imports torch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from paperbook.study.arguments import FloatArray, array, choice, integer, number
from paperbook.study.checkpoints import Checkpoints, check_finite


class ZeroInitHead(nn.Module):
    """logits(x) = base + out(body(features)), `out` zero at the start: before training the output IS the base logits, bit for
    bit.

    Args:
        in_dim, out_dim: width of the features and number of outputs, >= 1.
        hidden: width of a hidden layer with GELU; None is a linear head. With a hidden layer the first step moves `out` only: the
            gradient that reaches the body passes through `out`, which is zero.
    """

    def __init__(self, in_dim: int, out_dim: int, hidden: int | None = None, *, generator: torch.Generator | None = None,
                 device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        integer("in_dim", in_dim, 1)
        integer("out_dim", out_dim, 1)
        if hidden is not None:
            integer("hidden", hidden, 1)
        self.in_dim, self.out_dim = in_dim, out_dim
        factory = {"device": device, "dtype": dtype}
        self.body = nn.Identity() if hidden is None else nn.Sequential(nn.Linear(in_dim, hidden, **factory), nn.GELU())
        self.out = nn.Linear(in_dim if hidden is None else hidden, out_dim, **factory)
        with torch.no_grad():
            if hidden is not None and generator is not None:  # nn.Linear drew from the global stream; draw from the given one
                for parameter in self.body.parameters():
                    draw = torch.rand(parameter.shape, generator=generator, device=generator.device) * 2 - 1
                    parameter.copy_(draw / math.sqrt(in_dim))
            self.out.weight.zero_()
            self.out.bias.zero_()

    def forward(self, features: Float[torch.Tensor, "batch in"],
                base_logits: Float[torch.Tensor, "batch out"]) -> Float[torch.Tensor, "batch out"]:
        """Logits (n, out_dim) for features (n, in_dim) and base logits (n, out_dim); no gradient flows into the base logits."""
        if features.ndim != 2 or features.shape[1] != self.in_dim:
            raise ValueError(f"features: expected shape (n, {self.in_dim}), got {tuple(features.shape)}")
        if base_logits.shape != (len(features), self.out_dim):
            raise ValueError(f"base_logits: expected shape ({len(features)}, {self.out_dim}), got {tuple(base_logits.shape)}")
        return base_logits.detach() + self.out(self.body(features))


@dataclass
class HeadData:
    """Features (n, p), base logits (n, k) and targets: class numbers (n,) for log-loss, values (n, k) for squared error."""

    features: torch.Tensor
    base_logits: torch.Tensor
    targets: torch.Tensor


@dataclass
class HeadResult:
    """What `train_head` found. `head` carries the weights of the best check, which is number `best_step`; 0 is the head as it
    came.

    `steps` and `val_losses` are the path of the checks (empty without validation data); `stopped_early` says whether patience
    ran out.
    """

    head: ZeroInitHead
    best_step: int
    steps: list[int]
    val_losses: list[float]
    stopped_early: bool


def _losses(loss: str) -> Callable[..., torch.Tensor]:
    return nn.functional.cross_entropy if loss == "cross_entropy" else nn.functional.mse_loss


def _checked(name: str, data: HeadData, head: ZeroInitHead, loss: str, device: torch.device, dtype: torch.dtype) -> HeadData:
    n = len(data.features)
    if n == 0:
        raise ValueError(f"{name}.features: expected at least one row, got none")
    if data.features.ndim != 2 or data.features.shape[1] != head.in_dim:
        raise ValueError(f"{name}.features: expected shape (n, {head.in_dim}), got {tuple(data.features.shape)}")
    if data.base_logits.shape != (n, head.out_dim):
        raise ValueError(f"{name}.base_logits: expected shape ({n}, {head.out_dim}), got {tuple(data.base_logits.shape)}")
    wanted: tuple[int, ...] = (n,) if loss == "cross_entropy" else (n, head.out_dim)
    if data.targets.shape != wanted:
        raise ValueError(f"{name}.targets: expected shape {wanted}, got {tuple(data.targets.shape)}")
    for part, values in (("features", data.features), ("base_logits", data.base_logits)):
        if not torch.isfinite(values).all():
            raise ValueError(f"{name}.{part}: expected finite values, got NaN or infinity")
    if loss == "cross_entropy":
        if data.targets.is_floating_point() or data.targets.is_complex():
            raise TypeError(f"{name}.targets: expected class numbers of an integer dtype, got {data.targets.dtype}")
        low, high = int(data.targets.min()), int(data.targets.max())
        if low < 0 or high >= head.out_dim:
            raise ValueError(f"{name}.targets: expected class numbers in 0..{head.out_dim - 1}, got {low}..{high}")
        targets = data.targets.to(device, torch.long)
    else:
        if not torch.isfinite(data.targets).all():
            raise ValueError(f"{name}.targets: expected finite values, got NaN or infinity")
        targets = data.targets.to(device, dtype)
    return HeadData(data.features.detach().to(device, dtype), data.base_logits.detach().to(device, dtype), targets)


def train_head(head: ZeroInitHead, train: HeadData, validation: HeadData | None = None, *, loss: str = "cross_entropy",
               optimiser: str = "adamw", lr: float = 1e-3, weight_decay: float = 1e-2, steps: int = 1000,
               batch_size: int | None = None, check_every: int = 10, patience: int | None = None,
               generator: torch.Generator | None = None, device: Any = "cpu", dtype: torch.dtype = torch.float32,
               autocast: bool | None = None, compile: bool = False, checkpoints: Checkpoints | None = None) -> HeadResult:
    """Train `head` in place; the data lie on `device` once and nothing is read back between checks.

    optimiser "gd" is gradient descent on loss + weight_decay/2 |weights|^2 (biases free); "adamw" decays decoupled (weights
    only). Both pull towards the base logits. The validation loss is logged at step 0, where it equals that of the base logits,
    and then every `check_every` steps; the best check is restored, ties to the earlier. `patience` ends training after so many
    checks without a new best (one host read a check). Without `validation` the bare loop runs: no checks, no copies, the last
    weights are returned.

    Args:
        train, validation: `HeadData` of the head's widths.
        loss: "cross_entropy" (nats) or "mse".
        batch_size: None is full batch; otherwise rows are drawn without replacement, epoch by epoch, from `generator` (required
            then).
        steps: gradient steps, >= 0.
        autocast: bfloat16 autocast in training steps; None switches it on exactly on CUDA. Parameters and checks stay in `dtype`.
        compile: whether the loss is compiled with torch.compile on CUDA (ignored on the CPU, where results are to repeat bit
            for bit).
        checkpoints: where to go on from and to save to, at a check when a save is due and at the end. A resumed training ends
            with the same bits as an uninterrupted one (on the CPU); a finished one is not trained again.

    Raises:
        ValueError, TypeError: wrong shapes, values not finite, class numbers out of range, parameters out of range.
        TrainingDiverged: the loss is no finite number: that of the validation data at a check, without such data that of the
            last batch when a save is due and at the end. Nothing of that state is saved.
        CheckpointError: the checkpoint belongs to another run, or cannot be written.
    """
    choice("loss", loss, ("cross_entropy", "mse"))
    choice("optimiser", optimiser, ("gd", "adamw"))
    number("lr", lr, 0.0, open_low=True)
    number("weight_decay", weight_decay, 0.0)
    integer("steps", steps, 0)
    integer("check_every", check_every, 1)
    if patience is not None:
        integer("patience", patience, 1)
        if validation is None:
            raise ValueError("patience: expected validation data to judge by, got validation=None")
    if batch_size is not None:
        integer("batch_size", batch_size, 1)
        if generator is None:
            raise ValueError("generator: expected a torch.Generator where batch_size is given, got None")
    device = torch.device(device)
    data = _checked("train", train, head, loss, device, dtype)
    held = None if validation is None else _checked("validation", validation, head, loss, device, dtype)

    head.to(device, dtype)
    measure = _losses(loss)
    cuda = device.type == "cuda"
    mixed = cuda if autocast is None else autocast

    def objective(features: torch.Tensor, base: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=mixed):
            correction = head.out(head.body(features))
        return measure(base + correction.to(dtype), targets)  # the sum with the base and the loss stay in full precision

    step_loss = torch.compile(objective) if compile and cuda else objective
    weights = [p for p in head.parameters() if p.ndim > 1]
    biases = [p for p in head.parameters() if p.ndim <= 1]
    groups = [{"params": weights, "weight_decay": weight_decay}, {"params": biases, "weight_decay": 0.0}]
    update: torch.optim.Optimizer
    update = torch.optim.SGD(groups, lr=lr) if optimiser == "gd" else torch.optim.AdamW(groups, lr=lr, fused=cuda)

    def validation_loss() -> torch.Tensor:
        assert held is not None
        with torch.no_grad():
            return measure(head(held.features, held.base_logits), held.targets)

    checked: list[int] = []
    logged: list[float] = []
    best_state, best_step, waited, stopped = copy.deepcopy(head.state_dict()), 0, 0, False
    n = len(data.features)
    rows_left = torch.empty(0, dtype=torch.long, device=device)
    step = 0
    parts = {"head": head, "optimiser": update} | ({} if generator is None else {"generator": generator})
    resumed = checkpoints.resume(**parts) if checkpoints is not None else None
    if resumed is not None:
        step, kept = resumed.step, resumed.values
        checked, logged, best_step, waited, stopped = (kept[k] for k in ("checked", "logged", "best_step", "waited", "stopped"))
        best_state = {name: value.to(device) for name, value in kept["best_state"].items()}
        rows_left = kept["rows_left"].to(device)
    elif held is not None:
        checked, logged = [0], [float(validation_loss())]
        check_finite(logged[0], 0)

    def save() -> None:
        assert checkpoints is not None
        path = {"checked": checked, "logged": logged, "best_step": best_step, "waited": waited, "stopped": stopped}
        checkpoints.save(step, values={**path, "best_state": best_state, "rows_left": rows_left}, **parts)

    advice = f"lower lr (now {lr:g})"
    batch = data

    def loss_now() -> float:
        """Loss of the weights as they are, after the last update: what a step computes is that of the weights before it."""
        with torch.no_grad():
            return float(measure(head(batch.features, batch.base_logits), batch.targets))

    while step < steps and not stopped:
        step += 1
        if batch_size is None or batch_size >= n:
            batch = data
        else:
            assert generator is not None
            if len(rows_left) == 0:  # a new epoch; its last batch may be short
                rows_left = torch.randperm(n, generator=generator, device=generator.device).to(device)
            rows, rows_left = rows_left[:batch_size], rows_left[batch_size:]
            batch = HeadData(data.features[rows], data.base_logits[rows], data.targets[rows])
        update.zero_grad(set_to_none=True)
        step_loss(batch.features, batch.base_logits, batch.targets).backward()
        update.step()
        if held is None and checkpoints is not None and step % check_every == 0 and step < steps and checkpoints.due():
            check_finite(loss_now(), step, checkpoints, advice)  # read back only when a save is due
            save()
        if held is not None and (step % check_every == 0 or step == steps):
            now = float(validation_loss())
            check_finite(now, step, checkpoints, advice)
            if now < min(logged):
                best_state, best_step, waited = copy.deepcopy(head.state_dict()), step, 0
            else:
                waited += 1
                stopped = patience is not None and waited >= patience
            checked.append(step)
            logged.append(now)
            if checkpoints is not None and step < steps and not stopped and checkpoints.due():
                save()
    if held is None:
        best_step = step
        check_finite(loss_now(), step, checkpoints, advice)
    if checkpoints is not None and (resumed is None or step > resumed.step):
        save()
    if held is not None:
        head.load_state_dict(best_state)
    return HeadResult(head, best_step, checked, logged, stopped)


def gd_path_closed_form(X: Any, y: Any, lr: float, steps: Any) -> FloatArray:
    """Weights after t steps of gradient descent from zero on 1/(2n) |y - X w|^2, without taking the steps (S8).

    W_t = V diag((1 - (1 - lr l)^t)/l) V' X'y/n with l, V eigenvalues and eigenvectors of X'X/n: every direction is shrunk by
    1 - (1 - lr l)^t, from 0 (t = 0, the black box) to 1 (least squares). Needs lr < 2/max(l) to converge; the identity holds
    for any lr.

    Args:
        X: (n, p). y: (n,) or (n, k), the residual targets.
        lr: step size > 0. steps: one t >= 0, or several (T,).

    Returns:
        Weights (p,) or (p, k) for one t; for several, the same with a leading axis T.

    Raises:
        ValueError, TypeError: naming the argument; `lr` where the path leaves the floating-point numbers, as it does for
            lr > 2/max(l) and many steps.
    """
    X = array("X", X, ndim=2)
    y = array("y", y)
    if y.ndim not in (1, 2) or len(y) != len(X):
        raise ValueError(f"y: expected shape ({len(X)},) or ({len(X)}, k), got {y.shape}")
    number("lr", lr, 0.0, open_low=True)
    times = np.asarray(steps)
    if times.dtype.kind not in "iu" or times.ndim > 1 or (times < 0).any():
        raise ValueError(f"steps: expected whole numbers >= 0, got {steps!r}")
    values, vectors = np.linalg.eigh(X.T @ X / len(X))
    values = np.maximum(values, 0.0)
    moment = vectors.T @ (X.T @ y.reshape(len(y), -1)) / len(X)  # (p, k)
    t = times.reshape(-1, 1).astype(float)
    with np.errstate(over="ignore"):
        shrink = 1.0 - (1.0 - lr * values) ** t  # (T, p)
        # l = 0 has moment 0 too (X v = 0); its limit t lr keeps the division away from 0/0
        factor = np.where(values > 0, shrink / np.where(values > 0, values, 1.0), t * lr)
    with np.errstate(over="ignore", invalid="ignore"):
        path = np.einsum("pq,tq,qk->tpk", vectors, factor, moment)
    if not np.isfinite(path).all():
        raise ValueError(f"lr: expected a step size whose path stays finite (lr < 2/max(l) does), got {lr!r} with max(l) = "
                         f"{values.max():.3g}")
    path = path[..., 0] if y.ndim == 1 else path
    return path if times.ndim else path[0]
