"""The programme of Theorem 4.2 (Aguilar Escamilla et al., 2026) as one writes it down, in cvxpy: the peer of `certificate`.

Nothing is eliminated and nothing is vectorised here. It shares no code with the certificate and takes about a hundred times as
long, most of it spent on building the problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from paperbook.papers.reward_poisoning.mdp import FloatArray, LinearMDP, environment
from paperbook.study.arguments import choice, number


@dataclass(frozen=True)
class PlainSolution:
    """What the modelling tool returned: `eps`, `theta` (H, d), its `status`, and the problem with its named constraints."""

    eps: float
    theta: FloatArray
    status: str
    problem: Any


def plain_programme(
    mdp: LinearMDP,
    target: ArrayLike,
    *,
    cap: float | None = None,
    q_mode: str = "optimal",
    solver: str = "CLARABEL",
    accuracy: float = 1e-9,
) -> PlainSolution:
    """Write the programme of T1, with the values off the support of T2, state by state, and solve it.

    Args:
        mdp: the true environment.
        target: the target policy (H, S).
        cap: bound on ||theta_h||; sqrt(d) where it is None.
        q_mode: "optimal" or "policy".
        solver: "CLARABEL" or "SCS".
        accuracy: tolerance handed to the solver, in (0, 1].

    Raises:
        TypeError, ValueError: on another kind of argument, or out of range.
    """
    import cvxpy as cp

    goal = environment("mdp", mdp).policy(target, "target")
    choice("q_mode", q_mode, ("optimal", "policy"))
    choice("solver", solver, ("CLARABEL", "SCS"))
    number("accuracy", accuracy, 0, 1, open_low=True)
    size = float(np.sqrt(mdp.dim)) if cap is None else number("cap", cap, 0, open_low=True)
    H, S, A = mdp.horizon, mdp.states, mdp.actions
    support, P, phi = mdp.support(goal), mdp.P(), mdp.phi
    eps = cp.Variable()
    theta, V = cp.Variable((H, mdp.dim)), cp.Variable((H + 1, S))
    rows = [V[H] == 0]
    for h in range(H - 1, -1, -1):
        for s in range(S):
            q = phi[s] @ theta[h] + P[h, s] @ V[h + 1]
            own = int(goal[h, s])
            if support[h, s]:
                rows += [V[h, s] == q[own], phi[s, own] @ theta[h] == phi[s, own] @ mdp.theta[h]]
                rows += [q[own] >= q[a] + eps for a in range(A) if a != own]
            elif q_mode == "optimal":
                rows += [V[h, s] >= q[a] for a in range(A)]
            else:
                rows += [V[h, s] == q[own]]
        rows += [cp.norm(theta[h], 2) <= size]
    problem = cp.Problem(cp.Maximize(eps), rows)
    if solver == "CLARABEL":
        problem.solve(solver="CLARABEL", tol_gap_abs=accuracy, tol_gap_rel=accuracy, tol_feas=accuracy)
    else:
        problem.solve(solver="SCS", eps_abs=accuracy, eps_rel=accuracy, max_iters=100_000)
    found = float("nan") if eps.value is None else float(eps.value)
    parameters = np.full((H, mdp.dim), np.nan) if theta.value is None else np.asarray(theta.value)
    return PlainSolution(found, parameters, str(problem.status), problem)
