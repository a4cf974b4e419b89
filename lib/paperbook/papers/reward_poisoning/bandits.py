"""Linear bandits: the programme at H = 1 in closed form (T5; Wang, Xu and Wang, 2022), and a bandit as a linear MDP.

The programme: max eps subject to <x_t, th> = <x_t, theta>, <x_t, th> >= <x_i, th> + eps for i != t, ||th|| <= cap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paperbook.papers.reward_poisoning.certificate import HUGE, CapInfeasible, NoRival, SolverInaccurate
from paperbook.papers.reward_poisoning.mdp import FloatArray, IntArray, LinearMDP
from paperbook.study.arguments import array, integer, number

SAME = 1e-12  # numbers closer than that, relative to 1, count as equal when the arms' shape is checked


def _bandit(arms: ArrayLike, theta: ArrayLike, target: int, cap: float | None) -> tuple[FloatArray, FloatArray, int, float]:
    x, truth = array("arms", arms, ndim=2), array("theta", theta, ndim=1)
    if truth.shape != x.shape[1:]:
        raise ValueError(f"theta: expected shape {x.shape[1:]} to go with arms of shape {x.shape}, got {truth.shape}")
    t = integer("target", target, 0, len(x) - 1)
    if len(x) == 1:
        raise NoRival("arms: expected at least 2 arms, got 1: the target has no rival, and eps is unbounded")
    size = float(np.sqrt(x.shape[1])) if cap is None else number("cap", cap, 0, HUGE, open_low=True)
    length, value = float(np.linalg.norm(x[t])), float(x[t] @ truth)
    if abs(value) > size * length * (1 + 1e-9) + SAME:
        raise CapInfeasible(f"cap: expected at least {abs(value) / length:.6g}, which keeps the target's reward, got {size:.6g}")
    return x, truth, t, size


def bandit_instance(arms: ArrayLike, theta: ArrayLike, target: int) -> tuple[LinearMDP, IntArray]:
    """A linear bandit as a linear MDP with one state and one step, and its target policy (1, 1).

    Args:
        arms: features (K, d), norms at most 1.
        theta: true parameter (d,).
        target: the arm to be forced, in 0..K-1.

    Raises:
        TypeError, ValueError: on shapes, ranges or norms.
    """
    x, truth = array("arms", arms, ndim=2), array("theta", theta, ndim=1)
    t = integer("target", target, 0, len(x) - 1)
    if truth.shape != x.shape[1:]:
        raise ValueError(f"theta: expected shape {x.shape[1:]} to go with arms of shape {x.shape}, got {truth.shape}")
    return LinearMDP(x[None], np.zeros((1, x.shape[1], 1)), truth[None]), np.array([[t]])


def parallel_eps(arms: ArrayLike, theta: ArrayLike, target: int, cap: float | None = None) -> float:
    """eps* where every arm is a multiple c_i of the target's (T5): min over rivals of (1 - c_i) <x_t, theta>.

    All rewards are pinned with the target's, so neither the cap nor the attacker changes anything.

    Raises:
        TypeError, ValueError: on shapes or ranges, a target of length 0, or arms that are not parallel to it.
    """
    x, truth, t, _ = _bandit(arms, theta, target, cap)
    length = float(x[t] @ x[t])
    multiple = x @ x[t] / length if length > 0 else np.zeros(len(x))
    if length == 0 or np.abs(x - multiple[:, None] * x[t]).max() > SAME:
        raise ValueError("arms: expected multiples of the target's arm, got another direction or a target of length 0")
    return float(np.delete((1 - multiple) * (x[t] @ truth), t).min())


def orthonormal_eps(arms: ArrayLike, theta: ArrayLike, target: int, cap: float | None = None) -> float:
    """eps* for K orthonormal arms (T5; one-hot arms are a case): with v = <x_t, theta>, v + sqrt((cap^2 - v^2) / (K - 1)).

    The target's coordinate is pinned; what the cap leaves is shared evenly among the rivals, with a minus sign.

    Raises:
        TypeError, ValueError: on shapes or ranges, or arms that are not orthonormal.
        CapInfeasible: where |v| > cap.
    """
    x, truth, t, size = _bandit(arms, theta, target, cap)
    if np.abs(x @ x.T - np.eye(len(x))).max() > SAME:
        raise ValueError("arms: expected orthonormal rows, got others")
    v = float(x[t] @ truth)
    return v + float(np.sqrt(max(size**2 - v**2, 0.0) / (len(x) - 1)))


@dataclass(frozen=True)
class PlanarSolution:
    """The optimum in the plane: `eps`, the poison `theta` (2,), the pinned segment's `ends` (2, 2), and the arms that bind."""

    eps: float
    theta: FloatArray
    ends: FloatArray
    binding: tuple[int, ...]


def planar_eps(arms: ArrayLike, theta: ArrayLike, target: int, cap: float | None = None) -> PlanarSolution:
    """eps* for arms in the plane, by geometry (T5, ours): the poison moves on the pinned line within the cap's disc.

    On that segment th = (v / ||x_t||^2) x_t + z n, |z| <= rho, every rival's margin is a straight line in z, and eps* is the
    highest point of their lower envelope: at an end of the segment or where two lines cross.

    Raises:
        TypeError, ValueError: on shapes or ranges, arms that are not in the plane, or a target of length 0.
        CapInfeasible: where the pinned line misses the disc.
    """
    x, truth, t, size = _bandit(arms, theta, target, cap)
    length = float(x[t] @ x[t])
    if x.shape[1] != 2 or length == 0:
        raise ValueError(f"arms: expected shape (K, 2) and a target with a length, got {x.shape} and {np.sqrt(length):.6g}")
    v = float(x[t] @ truth)
    foot, normal = v / length * x[t], np.array([-x[t, 1], x[t, 0]]) / np.sqrt(length)
    rho = float(np.sqrt(max(size**2 - foot @ foot, 0.0)))
    rivals = np.delete(np.arange(len(x)), t)
    height, slope = v - x[rivals] @ foot, -(x[rivals] @ normal)  # margin of rival i: height_i + slope_i z
    with np.errstate(divide="ignore", invalid="ignore"):
        crossings = (height[:, None] - height) / (slope - slope[:, None])
    inside = crossings[np.isfinite(crossings) & (np.abs(crossings) <= rho)]
    z = np.concatenate([[-rho, rho, 0.0], inside])  # 0: among equal margins prefer the smallest poison, where lines are flat
    margins = (height[:, None] + slope[:, None] * z).min(axis=0)
    best = float(margins.max())
    near = z[margins >= best - SAME]
    at = float(near[np.abs(near).argmin()])
    active = rivals[height + slope * at <= best + 1e-9]
    return PlanarSolution(best, foot + at * normal, np.stack([foot - rho * normal, foot + rho * normal]),
                          tuple(int(i) for i in active))  # fmt: skip


def in_convex_hull(point: ArrayLike, others: ArrayLike) -> bool:
    """Whether `point` (d,) lies in the convex hull of `others` (K, d), by a linear programme; then eps* <= 0 (T5).

    Raises:
        TypeError, ValueError: on shapes.
        SolverInaccurate: where the solver does not say which it is.
    """
    from scipy.optimize import linprog

    p, rows = array("point", point, ndim=1), array("others", others, ndim=2)
    if rows.shape[1] != len(p):
        raise ValueError(f"others: expected shape (K, {len(p)}), got {rows.shape}")
    found = linprog(np.zeros(len(rows)), A_eq=np.vstack([rows.T, np.ones(len(rows))]), b_eq=np.append(p, 1.0), method="highs")
    if found.status not in (0, 2):  # 2: infeasible
        raise SolverInaccurate(f"in_convex_hull: expected a solved or an infeasible programme, got {found.message}")
    return bool(found.status == 0)
