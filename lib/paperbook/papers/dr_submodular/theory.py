"""The six steps of Theorem 1's proof as numbers, along the curve p(z) = 1 - e^{-zx}, and wrong variants of its inequality."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paperbook.study import arguments as check

from .functions import DRSubmodular
from .wrappers import ExponentialDownClosed


@dataclass(frozen=True)
class ProofSteps:
    """What each step of T2 claims, evaluated: arrays ``(nodes, *batch)``; a slack is never negative if its step holds.

    Attributes:
        z: the nodes in [0, 1], ``(nodes,)``.
        curve: p(z), ``(nodes, *batch, d)``.
        room: (i) smallest coordinate of z x - p(z).
        slope: (ii) d/dz f(p(z)) = <grad f(p) * (1 - p), x>.
        concavity: (iii) <grad f(p), (1 - p) * y> - (f(p (+) y) - f(p)).
        lemma: (iv) f(p (+) y) - e^{-z} f(y).
        growth: (v) left side, d/dz [e^z f(p(z))] = e^z (f(p) + slope).
        floor: (v) right side, e^z <grad f(p) * e^{-zx}, x - y> + f(y).
        slack: growth - floor, the sum of e^z times the slacks of (iii) and (iv).
    """

    z: np.ndarray
    curve: np.ndarray
    room: np.ndarray
    slope: np.ndarray
    concavity: np.ndarray
    lemma: np.ndarray
    growth: np.ndarray
    floor: np.ndarray

    @property
    def slack(self) -> np.ndarray:
        """growth - floor, ``(nodes, *batch)``."""
        return self.growth - self.floor


def probabilistic_sum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x (+) y = x + y - x * y, coordinate by coordinate: the chance that at least one of two independent coins falls (T1)."""
    return x + y - x * y


def proof_steps(f: DRSubmodular, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> ProofSteps:
    """Evaluate the steps (i) to (v) of T2 at the nodes `z` ``(nodes,)`` for points `x`, `y` ``(*batch, d)`` of the box."""
    z = check.array("z", z, 0.0, 1.0, ndim=1)
    if x.shape != y.shape or x.shape[-1] != f.dim:
        raise ValueError(f"x, y: expected the same shape (..., {f.dim}), got {x.shape} and {y.shape}")
    at = z.reshape(-1, *(1,) * x.ndim)
    p = -np.expm1(-at * x)
    grad, value = f.grad(p), f.value(p)
    rest = 1 - p
    joined = f.value(probabilistic_sum(p, np.broadcast_to(y, p.shape)))
    slope = (grad * rest * x).sum(-1)
    e = np.exp(at[..., 0])
    return ProofSteps(
        z=z, curve=p, room=(at * x - p).min(-1), slope=slope,
        concavity=(grad * rest * y).sum(-1) - (joined - value),
        lemma=joined - f.value(y) / e,
        growth=e * (value + slope),
        floor=e * (grad * rest * (x - y)).sum(-1) + f.value(y),
    )  # fmt: skip


def integrated(steps: ProofSteps, weights: np.ndarray) -> np.ndarray:
    """(vi): the integral of the slack of (v) over e, ``(*batch)``; it is the theorem's gap minus f(0) / e.

    Args:
        steps: at quadrature nodes of [0, 1].
        weights: of these nodes for the plain integral over z, ``(nodes,)``.
    """
    return np.tensordot(weights, steps.slack, axes=1) / math.e


def wrong_gap(f: DRSubmodular, x: np.ndarray, y: np.ndarray, variant: str, nodes: int = 40) -> np.ndarray:
    """:meth:`~paperbook.papers.dr_submodular.wrappers.Wrapper.gap` with one thing wrong: below 0 the variant breaks the theorem.

    Args:
        f: reward.
        x: ``(..., d)``.
        y: ``(..., d)``.
        variant: ``"none"`` is the theorem; ``"uniform z"`` drops the weight e^{z-1}, ``"no Jacobian"`` the factor e^{-zx}.
        nodes: of the quadrature.
    """
    check.choice("variant", variant, ("none", "uniform z", "no Jacobian"))
    wrapper = ExponentialDownClosed()
    z, weights = wrapper.nodes(nodes)
    if variant == "uniform z":
        weights = weights / wrapper.density(z)
    at, column = z.reshape(-1, *(1,) * x.ndim), weights.reshape(-1, *(1,) * x.ndim)
    factor = 1.0 if variant == "no Jacobian" else np.exp(-at * x)
    g = (column * factor * f.grad(-np.expm1(-at * x))).sum(0)
    return wrapper.beta * (g * (y - x)).sum(-1) - (wrapper.alpha * f.value(y) - f.value(wrapper.action(x)))
