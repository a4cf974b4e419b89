"""The wrapper as a torch optimiser, for rewards that come from a model: one gradient at a random point, then a projected step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from paperbook.study import arguments as check


class ExpReparamAscent(Optimizer):
    """Maximises a non-negative DR-submodular reward over a down-closed set, with ratio 1/e at every stationary point (T2, T4).

    A parameter of shape ``(..., d)`` holds x between steps. :meth:`step` moves it to the random point 1 - e^{-zx}, calls the
    closure, which computes the reward there and its gradient, and takes the ascent step on x with gradient * e^{-zx}. What to
    use in the end is not x but :meth:`action`:

    ::

        x = torch.nn.Parameter(torch.full((d,), 0.1, dtype=torch.float64))
        optimiser = ExpReparamAscent([x], K)
        for _ in range(steps):
            optimiser.step(lambda: reward(x))          # a scalar; its backward pass is done here
        best = optimiser.action(x)                     # 1 - e^-x

    Args:
        params: parameters, or groups of them.
        K: down-closed set with a projection and a diameter.
        lr: None for the steps D / sqrt(sum of squared gains), else a fixed step > 0.
        generator: stream of the random z.
    """

    def __init__(
        self, params: Iterable[Any], K: Any, lr: float | None = None, generator: torch.Generator | None = None
    ) -> None:
        if lr is not None:
            lr = check.number("lr", lr, 0.0, open_low=True)
        if not K.is_down_closed():
            raise ValueError("K: expected a down-closed set, got one that is not")
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(f"generator: expected a torch.Generator or None, got {type(generator).__name__}")
        self.K, self.generator, self._made = K, generator, False
        super().__init__(params, {"lr": lr})
        for group in self.param_groups:  # not before all of them are accepted
            self._enter(group)
        self._made = True

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take further parameters, of shape ``(..., d)``, and move them to the nearest point of K.

        Raises:
            ValueError: a parameter of another shape, with numbers that are not finite, or a step that is not above 0.
            TypeError: a parameter of integers.

        """
        super().add_param_group(param_group)
        try:
            self._accept(self.param_groups[-1])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        if self._made:
            self._enter(self.param_groups[-1])

    def _accept(self, group: dict[str, Any]) -> None:
        if group["lr"] is not None:
            check.number("lr", group["lr"], 0.0, open_low=True)
        for p in group["params"]:
            if not p.ndim or p.shape[-1] != self.K.dim:
                raise ValueError(f"params: expected a last axis of {self.K.dim}, got shape {tuple(p.shape)}")
            if not p.is_floating_point():
                raise TypeError(f"params: expected floating-point numbers, got {p.dtype}")
            if not bool(torch.isfinite(p).all()):
                raise ValueError("params: expected finite numbers, got some that are not")

    def _enter(self, group: dict[str, Any]) -> None:
        with torch.no_grad():
            for p in group["params"]:
                p.copy_(self.K.project(p))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One ascent step; `closure` computes the reward, a scalar, at the parameters' present values, and is called once.

        Raises:
            ValueError: without a closure: the gradient is wanted elsewhere than at x; a closure that has done the backward pass
                itself, whose gradient would count twice; a reward that is not finite.
            TypeError: a reward that is no scalar tensor with a gradient.
        """
        if closure is None:
            raise ValueError("closure: expected a function that computes the reward; its gradient is taken at a random point")
        parameters = [(p, group["lr"]) for group in self.param_groups for p in group["params"]]
        held = []
        with torch.no_grad():
            for p, _ in parameters:
                u = torch.rand(*p.shape[:-1], 1, generator=self.generator, dtype=p.dtype, device=p.device)
                x = p.clone()
                factor = torch.exp(-torch.log1p((math.e - 1) * u) * x)
                held.append((x, factor))
                p.copy_(1 - factor)
        self.zero_grad()
        try:
            with torch.enable_grad():
                reward = closure()
                if not isinstance(reward, torch.Tensor) or reward.numel() != 1 or not reward.requires_grad:
                    got = f"shape {tuple(reward.shape)}" if isinstance(reward, torch.Tensor) else type(reward).__name__
                    raise TypeError(f"closure: expected a scalar tensor that depends on the parameters, got {got}")
                if any(p.grad is not None for p, _ in parameters):
                    raise ValueError("closure: expected the reward alone, got gradients as well; its backward pass is done here")
                if not bool(torch.isfinite(reward)):
                    raise ValueError(f"closure: expected a finite reward, got {float(reward.detach())}")
                reward.backward()
        finally:
            with torch.no_grad():  # an error must not leave the parameters at the random point
                for (p, _), (x, _) in zip(parameters, held, strict=True):
                    p.copy_(x)
        with torch.no_grad():
            for (p, lr), (x, factor) in zip(parameters, held, strict=True):
                if p.grad is None:
                    continue  # the reward does not depend on it
                gain = factor * p.grad
                if lr is None:
                    state = self.state[p]
                    total = state.get("squares", 0.0) + (gain * gain).sum(-1, keepdim=True)
                    state["squares"] = total
                    gain = self.K.diameter * gain / total.sqrt().clamp_min(torch.finfo(p.dtype).tiny)
                else:
                    gain = lr * gain
                p.copy_(self.K.project(x + gain))
        return reward.detach()

    @staticmethod
    def action(x: torch.Tensor) -> torch.Tensor:
        """h(x) = 1 - e^-x, the point to use."""
        return -torch.expm1(-x.detach())
