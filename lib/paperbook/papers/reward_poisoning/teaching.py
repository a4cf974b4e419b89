"""Peers of the certificate: tabular programmes that teach a policy by changing rewards, in cvxpy.

Both ask for the least change of rewards that gives the target a margin. Neither knows of T episodes, of features or of what
may not be touched; `linear`, `pinned` and `cap` add those, one by one, and with all three the programme's feasibility is the
published certificate's question ("policy" mode).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paperbook.papers.reward_poisoning.certificate import MarginInfeasible, NoRival, SolverInaccurate
from paperbook.papers.reward_poisoning.mdp import BoolArray, FloatArray, IntArray, LinearMDP, environment
from paperbook.study.arguments import flag, number

NORMS = (1, 2, "inf")


@dataclass(frozen=True, eq=False)
class Teaching:
    """Taught rewards: `reward` (H, S, A), their `cost` = ||reward - true||_norm, `theta` (H, d) where they are linear."""

    reward: FloatArray
    cost: float
    theta: FloatArray | None
    status: str


def ma2019(
    mdp: LinearMDP,
    target: ArrayLike,
    margin: float,
    *,
    norm: int | str = 2,
    linear: bool = False,
    pinned: bool = False,
    cap: float | None = None,
) -> Teaching:
    """Batch policy poisoning (Ma, Zhang, Sun and Zhu, 2019), adapted: known tables instead of a data set, H steps, no discount.

    min ||r' - r|| subject to Q_h(s, target) >= Q_h(s, a) + margin at EVERY step and state, Q the target's own Bellman values
    under r' (with a margin above 0 the target is then optimal, so Q = Q*).

    Args:
        mdp: the true environment.
        target: the target policy (H, S).
        margin: above 0.
        norm: 1, 2 or "inf", over all (h, s, a).
        linear: restrict r' to <phi, theta'>.
        pinned: keep the rewards that the target collects on its support.
        cap: bound on ||theta'_h||; needs `linear`.

    Raises:
        TypeError, ValueError: on another kind of argument, or out of range; NoRival with a single action.
        MarginInfeasible: where no such rewards exist.
        SolverInaccurate: where the solver does not say that it solved the programme.
    """
    goal = _checked(mdp, target, margin, norm, linear, pinned, cap)
    ones = np.ones((mdp.horizon, mdp.states))
    return _teach(mdp, goal, ones.astype(bool), margin * ones, norm, linear, pinned, cap)


def rakhsha2020(
    mdp: LinearMDP,
    target: ArrayLike,
    margin: float,
    *,
    norm: int | str = 2,
    linear: bool = False,
    pinned: bool = False,
    cap: float | None = None,
    by_policy: bool = True,
) -> Teaching:
    """Policy teaching by rewards (Rakhsha, Radanovic, Devidze, Zhu and Singla, 2020), adapted to H steps.

    The original compares average rewards of the target and of every policy that differs at one state. From s_1 over H steps,
    a policy that differs at (h, s) loses d_h(s) (Q_h(s, target) - Q_h(s, a)), so its condition "better than each neighbour by
    `margin`" reads Q_h(s, target) >= Q_h(s, a) + margin / d_h(s), on the support only (neighbours elsewhere tie with it).
    With `by_policy` False the division by d_h(s) is dropped: a margin per visit, as the certificate has it.

    Args:
        mdp, target, margin, norm, linear, pinned, cap: as `ma2019`.
        by_policy: a margin between policies (the original) or per visit.

    Raises:
        As `ma2019`.
    """
    goal = _checked(mdp, target, margin, norm, linear, pinned, cap)
    flag("by_policy", by_policy)
    law, support = mdp.occupancy(goal), mdp.support(goal)
    need = np.where(support, margin / np.where(support, law if by_policy else 1.0, 1.0), 0.0)
    return _teach(mdp, goal, support, need, norm, linear, pinned, cap)


def _checked(
    mdp: LinearMDP, target: ArrayLike, margin: float, norm: int | str, linear: bool, pinned: bool, cap: float | None
) -> IntArray:
    goal = environment("mdp", mdp).policy(target, "target")
    if mdp.actions == 1:
        raise NoRival("mdp: expected at least 2 actions, got 1: the target has no rival")
    number("margin", margin, 0, open_low=True)
    if isinstance(norm, bool) or norm not in NORMS:
        raise ValueError(f"norm: expected 1, 2 or 'inf', got {norm!r}")
    flag("linear", linear)
    flag("pinned", pinned)
    if cap is not None:
        number("cap", cap, 0, open_low=True)
        if not linear:
            raise ValueError("cap: expected linear=True with a cap, as a cap bounds parameters of linear rewards")
    return goal


def _teach(
    mdp: LinearMDP,
    goal: IntArray,
    where: BoolArray,
    need: FloatArray,
    norm: int | str,
    linear: bool,
    pinned: bool,
    cap: float | None,
) -> Teaching:
    import cvxpy as cp

    H, S, A = mdp.horizon, mdp.states, mdp.actions
    theta = cp.Variable((H, mdp.dim)) if linear else None
    phi = mdp.phi.reshape(S * A, mdp.dim)
    taught = [phi @ theta[h] if theta is not None else cp.Variable(S * A) for h in range(H)]
    at = [np.arange(S) * A + goal[h] for h in range(H)]
    truth, support, rows, later = mdp.r().reshape(H, S * A), mdp.support(goal), [], None
    for h in range(H - 1, -1, -1):
        q = taught[h] if later is None else taught[h] + mdp.P()[h].reshape(S * A, S) @ later
        later = q[at[h]]
        rival = np.flatnonzero((where[h][:, None] & (np.arange(A) != goal[h][:, None])).ravel())
        rows.append(later[rival // A] >= q[rival] + need[h][rival // A])
        if pinned:
            kept = at[h][support[h]]
            rows.append(taught[h][kept] == truth[h][kept])
        if cap is not None and theta is not None:
            rows.append(cp.norm(theta[h], 2) <= cap)
    problem = cp.Problem(cp.Minimize(cp.norm(cp.hstack(taught) - truth.ravel(), norm)), rows)
    problem.solve(solver="CLARABEL")
    if problem.status in ("infeasible", "infeasible_inaccurate"):
        raise MarginInfeasible(f"margin: expected one that some rewards of this class have, got {need.max():.6g}")
    if problem.status != "optimal":
        raise SolverInaccurate(f"teaching: expected status optimal from CLARABEL, got {problem.status}")
    reward = np.stack([np.asarray(row.value) for row in taught]).reshape(H, S, A)
    return Teaching(reward, float(problem.value), None if theta is None else np.asarray(theta.value), str(problem.status))
