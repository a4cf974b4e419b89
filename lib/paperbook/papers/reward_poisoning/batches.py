"""Copies that play at once: one MDP for all of them, or one MDP each, all of one shape (S, A, H, d)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paperbook.papers.reward_poisoning.mdp import FloatArray, IntArray, LinearMDP
from paperbook.study.arguments import array, integer, raw


def instances(mdp: LinearMDP | Sequence[LinearMDP]) -> tuple[LinearMDP, ...]:
    """`mdp` as a tuple.

    Raises:
        TypeError: neither a LinearMDP nor a sequence of them.
        ValueError: an empty sequence, or one of different shapes.
    """
    out = (mdp,) if isinstance(mdp, LinearMDP) else tuple(mdp) if isinstance(mdp, Sequence) else None
    if out is None or not all(isinstance(one, LinearMDP) for one in out):
        raise TypeError(f"mdp: expected a LinearMDP or a sequence of them, got {type(mdp).__name__}")
    if not out:
        raise ValueError("mdp: expected at least one LinearMDP, got an empty sequence")
    shapes = {(*one.phi.shape, one.horizon) for one in out}
    if len(shapes) > 1:
        raise ValueError(f"mdp: expected instances of one shape (S, A, d, H), got {sorted(shapes)}")
    return out


def copies(name: str, sizes: Sequence[int], batch: int | None) -> int:
    """Number B of copies from the lengths of what is given a copy (1: shared by all) and from `batch`.

    Raises:
        ValueError: lengths that contradict each other or `batch`.
    """
    found = {size for size in sizes if size != 1}
    if batch is not None:
        given = integer("batch", batch, 1)
        found |= {given} if given != 1 or not found else set()
    if len(found) > 1:
        raise ValueError(f"{name}: expected one number of copies, got {sorted(found)}")
    return found.pop() if found else 1


def stacked_targets(mdps: Sequence[LinearMDP], target: Any) -> IntArray:
    """Targets (n, H, S), n = 1 for one (H, S) that all copies share.

    Raises:
        TypeError, ValueError: as `LinearMDP.policy`.
    """
    given = raw("target", target)
    rows = given if given.ndim == 3 else given[None]
    if not len(rows):
        raise ValueError(f"target: expected at least one policy, got shape {given.shape}")
    return np.stack([mdps[0].policy(row, "target") for row in rows])


def stacked_parameters(mdps: Sequence[LinearMDP], theta: Any) -> FloatArray:
    """Parameters (n, H, d), n = 1 for one (H, d); certificates stand for their `theta`.

    Raises:
        TypeError, ValueError: on another kind or shape.
    """
    if isinstance(theta, Sequence):
        theta = raw("theta", [getattr(one, "theta", one) for one in theta])
    value = array("theta", getattr(theta, "theta", theta))
    out = value if value.ndim == 3 else value[None]
    expected = mdps[0].theta.shape
    if out.ndim != 3 or out.shape[1:] != expected:
        raise ValueError(f"theta: expected shape {expected} or (B, {expected[0]}, {expected[1]}), got {value.shape}")
    return out


def stacked_rewards(mdps: Sequence[LinearMDP], theta: FloatArray | None = None) -> FloatArray:
    """<phi(s,a), theta_h> (n, H, S, A), of the true parameters where none (n, H, d) are given."""
    phi = np.stack([one.phi for one in mdps])
    values = np.stack([one.theta for one in mdps]) if theta is None else theta
    n = max(len(phi), len(values))
    phi, values = np.broadcast_to(phi, (n, *phi.shape[1:])), np.broadcast_to(values, (n, *values.shape[1:]))
    return np.einsum("nsad,nhd->nhsa", phi, values)


def value_gaps(mdps: Sequence[LinearMDP], theta: FloatArray | None = None) -> FloatArray:
    """V*_h(s) - Q*_h(s,a) (n, H, S, A), under other parameters (n, H, d) where they are given."""
    n = len(mdps) if theta is None else max(len(mdps), len(theta))
    out = []
    for i in range(n):
        q = mdps[i % len(mdps)].optimal_q(None if theta is None else theta[i % len(theta)])
        out.append(q.max(axis=2, keepdims=True) - q)
    return np.stack(out)
