"""The certificate of attackability (Theorem 4.2 of Aguilar Escamilla et al., 2026; T1, T2): eps*, its poison, its dual proof.

The programme maximises eps over poisoned parameters theta_h (h = 0..H-1), values V_h(s) and eps, subject to

    V_h(s) = q_h(s, target),  q_h(s, target) >= q_h(s, a) + eps,  <phi(s, target), theta_h> = truth    on the support,
    V_h(s) >= q_h(s, a) for all a ("optimal") or V_h(s) = q_h(s, target) ("policy")                    off the support,
    ||theta_h|| <= cap,      where q_h(s, a) = <phi(s, a), theta_h> + P_h(.|s, a) V_{h+1}.

Before it goes to the solver the pins are eliminated: on the support V is the target's true value, a constant, and theta_h is
its part in the span of the pinned features, known, plus a free z_h orthogonal to it with ||z_h|| <= sqrt(cap^2 - ||known||^2).
States that no policy reaches are left out. Whatever the solver says, eps is the margin that theta attains by a recursion of
our own, and the upper bound is evaluated from the multipliers alone (T8): both are right to rounding, however it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from paperbook.papers.reward_poisoning.mdp import BoolArray, FloatArray, IntArray, LinearMDP, environment
from paperbook.study.arguments import array, choice, integer, number, raw

SOLVERS = ("CLARABEL", "SCS")
Q_MODES = ("optimal", "policy")
RANK_TOLERANCE = 1e-9  # relative: a direction in which the pinned features reach no further than that counts as free
LARGE_CAP = 20.0  # eps_large_cap is eps* at that multiple of the cap (T7)
HUGE = 1e150  # the largest cap: its square must be a double
ACTIVE = 1e-6  # a multiplier below that share of the whole, or a slack above it, is not reported as binding


class CertificateError(RuntimeError):
    """The programme was not solved."""


class SolverInaccurate(CertificateError):
    """The margin attained and the bound from the multipliers differ by more than the tolerance, at both settings tried."""


class CapInfeasible(ValueError):
    """No parameters within the cap keep the rewards on the support: cost invariance contradicts the cap."""


class MarginInfeasible(ValueError):
    """No poison has the margin asked for: it is above eps* of that cap."""


class NoRival(ValueError):
    """The MDP has a single action, so there is nothing to compare the target with and eps is unbounded."""


@dataclass(frozen=True)
class Binding:
    """A margin constraint that holds eps down: at `step`, `state` the rival `action` has all the slack used up."""

    step: int
    state: int
    action: int
    multiplier: float
    slack: float


@dataclass(frozen=True)
class Verification:
    """The second route (T2): value iteration under the poisoned parameters, and the constraints evaluated one by one."""

    value_gap: float
    pin_error: float
    largest_norm: float
    holds: bool


# ---------------------------------------------------------------------------------------------------------------------------
# the programme in matrices
# ---------------------------------------------------------------------------------------------------------------------------


class _Model:
    """What every target of one MDP shares: sparse features (S*A, d) and sparse kernels (H*S*A, H*S), shifted one step."""

    _known: WeakKeyDictionary[LinearMDP, _Model] = WeakKeyDictionary()

    def __init__(self, mdp: LinearMDP) -> None:
        H, S, A = mdp.horizon, mdp.states, mdp.actions
        self.phi = sp.csr_array(mdp.phi.reshape(S * A, mdp.dim))
        kernel = mdp.P().copy()
        kernel[-1] = 0  # after the last step nothing is collected
        inner = sp.csr_array(kernel.reshape(H * S * A, S))
        step = np.repeat(np.arange(H * S * A) // (S * A), np.diff(inner.indptr))
        self.kernel = sp.csr_array((inner.data, inner.indices + (step + 1) * S, inner.indptr), shape=(H * S * A, H * S))
        reach = np.zeros((H, S), dtype=bool)
        reach[0, mdp.s0] = True
        for h in range(H - 1):
            reach[h + 1] = (kernel[h, reach[h]] > 0).any(axis=(0, 1))
        self.reach = reach

    @classmethod
    def of(cls, mdp: LinearMDP) -> _Model:
        if mdp not in cls._known:
            cls._known[mdp] = cls(mdp)
        return cls._known[mdp]


@dataclass
class _Pins:
    """The pinned part of every theta_h: an orthonormal basis of the pinned features' span, and of what is left free."""

    span: list[FloatArray]  # (d, k_h) each
    free: list[sp.csc_array]  # (d, d - k_h) each
    known: FloatArray  # (H, d), the least-norm parameters that keep the rewards on the support


def _pins(mdp: LinearMDP, target: IntArray, support: BoolArray) -> _Pins:
    span, free = [], []
    for h in range(mdp.horizon):
        at = np.flatnonzero(support[h])
        pinned = mdp.phi[at, target[h, at]]
        touched = np.flatnonzero(pinned.any(axis=0))  # coordinates that no pinned feature has stay as they are: sparse
        other = np.setdiff1d(np.arange(mdp.dim), touched)
        _, size, rows = np.linalg.svd(pinned[:, touched], full_matrices=True)
        rank = int((size > RANK_TOLERANCE * max(size.max(initial=0.0), 1e-300)).sum())
        basis = np.zeros((mdp.dim, rank))
        basis[touched] = rows[:rank].T
        left = len(touched) - rank
        inner = rows[rank:].T  # (touched, left)
        data = np.concatenate([inner.ravel(), np.ones(len(other))])
        row = np.concatenate([np.repeat(touched, left), other])
        col = np.concatenate([np.tile(np.arange(left), len(touched)), left + np.arange(len(other))])
        span.append(basis)
        free.append(sp.csc_array((data, (row, col)), shape=(mdp.dim, left + len(other))))
    known = np.stack([basis @ (basis.T @ theta) for basis, theta in zip(span, mdp.theta, strict=True)])
    return _Pins(span, free, known)


@dataclass
class _Programme:
    """The rows q_h(s, a) <= V_h(s) (off the support) and q_h(s, a) + eps <= V_h(s) (margins), in the variables eps, z, V."""

    mdp: LinearMDP
    target: IntArray
    q_mode: str
    support: BoolArray
    value: FloatArray  # (H, S), the target's true value on the support, 0 elsewhere
    pins: _Pins
    off_rows: tuple[NDArray[Any], ...]
    margin_rows: tuple[NDArray[Any], ...]
    basis: sp.csc_array  # (H*d, number of z)
    sizes: IntArray  # (H,), the length of z_h
    A: sp.csc_array  # rows: off the support, then margins; columns: eps, z, V
    b: FloatArray


def _programme(mdp: LinearMDP, target: IntArray, q_mode: str) -> _Programme:
    model, H, S, A, d = _Model.of(mdp), mdp.horizon, mdp.states, mdp.actions, mdp.dim
    support = mdp.support(target)
    value = np.where(support, mdp.policy_q(target)[np.arange(H)[:, None], np.arange(S), target], 0.0)
    pins = _pins(mdp, target, support)
    rival = np.arange(A) != target[:, :, None]
    off = model.reach & ~support
    off_rows = np.nonzero(off[:, :, None] & (~rival if q_mode == "policy" else np.ones_like(rival)))
    margin_rows = np.nonzero(support[:, :, None] & rival)
    h, s, a = (np.concatenate(pair) for pair in zip(off_rows, margin_rows, strict=True))
    n_off, rows = len(off_rows[0]), len(h)

    local = model.phi[s * A + a]  # (rows, d)
    step = np.repeat(h, np.diff(local.indptr))
    features = sp.csr_array((local.data, local.indices + step * d, local.indptr), shape=(rows, H * d))
    kernel = model.kernel[(h * S + s) * A + a]  # (rows, H*S)
    columns = np.flatnonzero(off.ravel())
    number_of = np.full(H * S, -1)
    number_of[columns] = np.arange(len(columns))
    basis = sp.csc_array(sp.block_diag(pins.free, format="csc"))
    sizes = np.array([block.shape[1] for block in pins.free])

    own = sp.csr_array(  # V_h(s) on the left of the rows off the support
        (-np.ones(n_off), (np.arange(n_off), number_of[h[:n_off] * S + s[:n_off]])), shape=(rows, len(columns))
    )
    eps = sp.csr_array((np.ones(rows - n_off), (np.arange(n_off, rows), np.zeros(rows - n_off, dtype=int))), shape=(rows, 1))
    matrix = sp.csc_array(sp.hstack([eps, features @ basis, kernel[:, columns] + own], format="csc"))
    right = -(features @ pins.known.ravel() + kernel @ value.ravel())
    right[n_off:] += value[h[n_off:], s[n_off:]]
    return _Programme(mdp, target, q_mode, support, value, pins, off_rows, margin_rows, basis, sizes, matrix, right)


def _radii(work: _Programme, cap: float) -> FloatArray:
    """What the cap leaves for z_h (H,); CapInfeasible where the pinned part alone exceeds it."""
    norms = np.linalg.norm(work.pins.known, axis=1)
    h = int(norms.argmax())
    if norms[h] > cap * (1 + 1e-9):  # rounding of theta itself, where its norm equals the cap
        raise CapInfeasible(
            f"cap: expected at least {norms[h]:.6g}, the least norm of parameters that keep the rewards on the target's support "
            f"at step {h}, got {cap:.6g}"
        )
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(cap), np.inf, np.sqrt(np.maximum(cap**2 - norms**2, 0)))


@dataclass
class _Solution:
    status: str
    x: FloatArray
    multipliers: FloatArray  # of the rows of A


def _solve(
    work: _Programme, radii: FloatArray, P: sp.csc_array, q: FloatArray, A: sp.csc_array, b: FloatArray, n_zero: int,
    solver: str, accuracy: float,
) -> _Solution:  # fmt: skip
    """Minimise x'Px / 2 + q'x subject to A x <= b (equality in the first n_zero rows) and ||z_h|| <= radius_h."""
    variables, cones, right, below = A.shape[1], [], [b], [A]
    start = np.concatenate([[0], np.cumsum(work.sizes)]) + 1
    for h in np.flatnonzero((work.sizes > 0) & np.isfinite(radii)):
        n = int(work.sizes[h])
        index = np.arange(start[h], start[h] + n)
        if radii[h] <= 1e-9 * (1 + np.linalg.norm(work.pins.known[h])):  # a ball without interior: z_h >= 0 and z_h <= 0
            radii = radii.copy()
            radii[h] = 1e-9
        below.append(sp.csc_array((-np.ones(n), (1 + np.arange(n), index)), shape=(n + 1, variables)))
        right.append(np.concatenate([[radii[h]], np.zeros(n)]))
        cones.append(n + 1)
    matrix = sp.csc_array(sp.vstack(below, format="csc")) if len(below) > 1 else A
    vector = np.concatenate(right)
    if solver == "SCS":
        return _scs(P, q, matrix, vector, n_zero, len(b), cones, accuracy)
    return _clarabel(P, q, matrix, vector, n_zero, len(b), cones, accuracy)


def _clarabel(
    P: Any, q: FloatArray, A: Any, b: FloatArray, n_zero: int, n_rows: int, cones: Sequence[int], accuracy: float
) -> _Solution:
    import clarabel

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.max_threads = 1
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = accuracy
    sets = [clarabel.ZeroConeT(n_zero)] if n_zero else []
    sets += [clarabel.NonnegativeConeT(n_rows - n_zero)] + [clarabel.SecondOrderConeT(n) for n in cones]
    found = clarabel.DefaultSolver(sp.csc_matrix(P), q, sp.csc_matrix(A), b, sets, settings).solve()
    name = str(found.status)
    status = {"Solved": "optimal", "AlmostSolved": "optimal_inaccurate", "DualInfeasible": "unbounded",
              "PrimalInfeasible": "infeasible", "AlmostDualInfeasible": "unbounded",
              "AlmostPrimalInfeasible": "infeasible"}.get(name, name)  # fmt: skip
    return _Solution(status, np.asarray(found.x), np.asarray(found.z)[:n_rows])


def _scs(
    P: Any, q: FloatArray, A: Any, b: FloatArray, n_zero: int, n_rows: int, cones: Sequence[int], accuracy: float
) -> _Solution:
    import scs

    data = {"P": sp.csc_matrix(P), "A": sp.csc_matrix(A), "b": b, "c": q}
    sets = {"z": n_zero, "l": n_rows - n_zero, "q": list(cones)}
    found = scs.SCS(data, sets, verbose=False, eps_abs=accuracy, eps_rel=accuracy, eps_infeas=1e-9, max_iters=200_000).solve()
    name = found["info"]["status"]
    status = {"solved": "optimal", "solved (inaccurate - reached max_iters)": "optimal_inaccurate"}.get(name, name.split(" ")[0])
    return _Solution(status, found["x"], found["y"][:n_rows])


def _parameters(work: _Programme, z: FloatArray, radii: FloatArray) -> FloatArray:
    """theta (H, d) from z, drawn back into the balls that a solver may leave by its tolerance."""
    theta, start = work.pins.known.copy(), 0
    for h, n in enumerate(work.sizes):
        part = z[start : start + n]
        size = float(np.linalg.norm(part))
        theta[h] += work.pins.free[h] @ (part * (min(1.0, radii[h] / size) if size > 0 else 0.0))
        start += n
    return theta


def _slack(work: _Programme, theta: FloatArray) -> FloatArray:
    """V_h(s) - q_h(s, a) (H, S, A) on the support, inf elsewhere and at the target; off it V is the least that is allowed."""
    mdp, later = work.mdp, np.zeros(work.mdp.states)
    slack = np.full((mdp.horizon, mdp.states, mdp.actions), np.inf)
    r = mdp.r(theta)
    for h in range(mdp.horizon - 1, -1, -1):
        q = r[h] + mdp.P()[h] @ later
        off = q.max(axis=1) if work.q_mode == "optimal" else q[np.arange(mdp.states), work.target[h]]
        later = np.where(work.support[h], work.value[h], off)
        slack[h] = np.where(work.support[h][:, None], work.value[h][:, None] - q, np.inf)
    np.put_along_axis(slack, work.target[:, :, None], np.inf, axis=2)
    return slack


def _multipliers(
    work: _Programme, radii: FloatArray, cap: float, rows: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray | None]:
    """lam (H, S, A), nu (H, S), kappa (H, S, A) of T8 from the solver's multipliers of the rows.

    The pins are eliminated, so the solver returns no nu. With f_h the features that the deviating play collects (its part
    outside the pinned span of length p), the best u_h = sum nu phi inside the span has a closed form: that part of f_h plus
    known_h p / radius_h.
    """
    mdp, n_off = work.mdp, len(work.off_rows[0])
    shape = (mdp.horizon, mdp.states, mdp.actions)
    lam, kappa = np.zeros(shape), np.zeros(shape)
    lam[work.margin_rows] = np.maximum(rows[n_off:], 0)
    total = lam.sum()
    if not total > 0:  # the solver failed: an even proof is still a proof
        lam[work.margin_rows], total = 1.0, len(work.margin_rows[0])
    lam /= total
    if work.q_mode == "optimal":
        kappa[work.off_rows] = np.maximum(rows[:n_off], 0)
    play, following = _flows(mdp, work.target, work.support, lam, kappa)
    nu = np.zeros(shape[:2])
    for h in range(mdp.horizon):
        at = np.flatnonzero(work.support[h])
        f = np.einsum("sa,sad->d", play[h], mdp.phi)
        span = work.pins.span[h]
        outside = float(np.linalg.norm(f - span @ (span.T @ f)))
        u = span @ (span.T @ f)
        if np.isfinite(cap):
            u = u + work.pins.known[h] * (outside / max(radii[h], 1e-9 * (1 + cap)))
        pinned = mdp.phi[at, work.target[h, at]]
        nu[h, at] = following[h, at] - np.linalg.lstsq(pinned.T, u, rcond=RANK_TOLERANCE)[0]
    return lam, nu, kappa if work.q_mode == "optimal" else None


def _flows(
    mdp: LinearMDP, target: IntArray, support: BoolArray, lam: FloatArray, kappa: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """Deviating play (H, S, A) and the target's play on the support (H, S) that it is set against (the latter signed).

    A deviation starts with weight lam, goes on off the support as kappa shares it out (as the target does, where kappa is
    silent) and ends where it returns to the support. The target's play starts with the same weight and ends there too.
    """
    play = np.zeros_like(lam)
    following = np.zeros(lam.shape[:2])
    rows, P = np.arange(mdp.states), mdp.P()
    for h in range(mdp.horizon):
        play[h] = lam[h]
        following[h] = lam[h].sum(axis=1)
        if h == 0:
            continue
        inflow = np.einsum("sa,sat->t", play[h - 1], P[h - 1])
        following[h] += following[h - 1] @ P[h - 1, rows, target[h - 1]] - inflow
        following[h][~support[h]] = 0
        share = np.zeros((mdp.states, mdp.actions))
        share[rows, target[h]] = 1
        if kappa is not None:
            weight = kappa[h].sum(axis=1)
            told = weight > 0
            share[told] = kappa[h][told] / weight[told, None]
        play[h] += np.where(support[h], 0, inflow)[:, None] * share
    return play, following


# ---------------------------------------------------------------------------------------------------------------------------
# the certificate
# ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AttackabilityCertificate:
    """What `certify` found, with its proof in both directions.

    Attributes:
        eps: eps*, the margin that `theta` attains by a recursion of our own; inf where the programme is unbounded (cap None).
        bound: the upper bound on eps* from the multipliers alone (T8); eps <= eps* <= bound, to rounding.
        theta: poisoned parameters (H, d); with an unbounded programme, some that have a margin of 1.
        status: "optimal", "optimal_inaccurate" (the solver was not content, the interval is) or "unbounded".
        lam: multipliers of the margins (H, S, A), at least 0, with sum 1.
        nu: multipliers of the pinned rewards (H, S), of either sign.
        kappa: multipliers off the support (H, S, A), at least 0; None in policy mode, in which that play follows the target.
        slack: V_h(s) - q_h(s, a) (H, S, A) where the programme asks for a margin, inf elsewhere.
        support: Supp_h (H, S).
        value_gap: the gap of the target on the support under `theta` by value iteration (T2): equals eps where eps > 0 in
            optimal mode; elsewhere it may differ.
    """

    mdp: LinearMDP = field(repr=False)
    target: IntArray = field(repr=False)
    cap: float
    q_mode: str
    solver: str
    tol: float
    eps: float
    bound: float
    status: str
    value_gap: float
    theta: FloatArray = field(repr=False)
    lam: FloatArray = field(repr=False)
    nu: FloatArray = field(repr=False)
    kappa: FloatArray | None = field(repr=False)
    slack: FloatArray = field(repr=False)
    support: BoolArray = field(repr=False)

    @property
    def gap(self) -> float:
        """bound - eps: how far the certificate is from an exact one; 0 where eps is infinite."""
        return 0.0 if np.isinf(self.eps) else self.bound - self.eps

    @property
    def interval(self) -> tuple[float, float]:
        """The numbers between which eps* lies: attained, and proved."""
        return self.eps, max(self.bound, self.eps)

    @property
    def duals(self) -> dict[str, FloatArray | None]:
        """The multipliers lam, nu, kappa, by name, as `dual_bound` takes them."""
        return {"lam": self.lam, "nu": self.nu, "kappa": self.kappa}

    @property
    def attackable(self) -> bool | None:
        """True where eps* > 0, False where eps* <= 0 (Theorem 4.2), None where |eps| < tol: undecided."""
        if abs(self.eps) < self.tol:
            return None
        return self.eps > 0

    @cached_property
    def binding(self) -> tuple[Binding, ...]:
        """The margins that hold eps down, heaviest first: multiplier above 1e-6."""
        rows = np.argwhere(self.lam > ACTIVE)
        found = [Binding(int(h), int(s), int(a), float(self.lam[h, s, a]), float(self.slack[h, s, a])) for h, s, a in rows]
        return tuple(sorted(found, key=lambda row: -row.multiplier))

    @cached_property
    def eps_uncapped(self) -> float:
        """eps* without a cap, cut off at 1 so that it is never unbounded (T7): at most 0 where no cap makes it attackable."""
        if np.isinf(self.cap):
            return min(self.eps, 1.0)
        return min(1.0, _certify(_programme(self.mdp, self.target, self.q_mode), np.inf, self.solver, self.tol, cut=True).eps)

    @cached_property
    def eps_large_cap(self) -> float:
        """eps* at 20 times the cap (T7)."""
        return certify(
            self.mdp, self.target, cap=None if np.isinf(self.cap) else LARGE_CAP * self.cap, q_mode=self.q_mode,
            solver=self.solver, tol=self.tol,
        ).eps  # fmt: skip

    @cached_property
    def kind(self) -> str:
        """One of "attackable", "cap-limited" (robust, but not at a large enough cap), "structurally-robust" (no cap lifts eps*
        above `tol`) and "undecided" (|eps| < tol), T7."""
        if self.attackable is None:
            return "undecided"
        if self.attackable:
            return "attackable"
        return "cap-limited" if self.eps_uncapped >= self.tol else "structurally-robust"

    @cached_property
    def protecting(self) -> tuple[tuple[int, int, float, float], ...]:
        """The pinned rewards that the bound rests on, heaviest first: (step, state, nu, pinned reward)."""
        pinned = np.take_along_axis(self.mdp.r(), self.target[:, :, None], axis=2)[:, :, 0]
        rows = np.argwhere(np.abs(self.nu) > ACTIVE)
        found = [(int(h), int(s), float(self.nu[h, s]), float(pinned[h, s])) for h, s in rows]
        return tuple(sorted(found, key=lambda row: -abs(row[2])))

    def explain(self) -> str:
        """The certificate in plain sentences: what binds, and for a robust instance what protects it (T7, T8)."""
        cap = "without a cap" if np.isinf(self.cap) else f"with norms up to {self.cap:.4g}"
        lines = []
        if self.kind == "attackable":
            lines.append(f"Attackable {cap}: some rewards that leave the target's own play untouched give it a margin of "
                         f"{self.eps:.6g} over every rival.")  # fmt: skip
        elif self.kind == "undecided":
            low, high = self.interval
            lines.append(f"Undecided {cap}: eps* lies in [{low:.3g}, {high:.3g}], within the dead zone of {self.tol:.1g} "
                         "around zero.")  # fmt: skip
        elif self.kind == "cap-limited":
            lines.append(f"Robust {cap}, by the cap alone: the best margin is {self.eps:.6g}, and larger parameters would make "
                         "it positive.")  # fmt: skip
        else:
            lines.append(f"Structurally robust: the best margin {cap} is {self.eps:.6g}, and no cap lifts it above zero.")
        if np.isinf(self.eps):
            lines.append("Nothing binds: the margin grows without limit.")
            return "\n".join(lines)
        for row in self.binding[:5]:
            lines.append(f"At step {row.step}, state {row.state}, the rival action {row.action} binds against the target's "
                         f"action {self.target[row.step, row.state]} (multiplier {row.multiplier:.4g}).")  # fmt: skip
        if len(self.binding) > 5:
            lines.append(f"{len(self.binding) - 5} more constraints bind with smaller multipliers.")
        if self.attackable is False:
            if self.protecting:
                shown = ", ".join(f"step {h} state {s} (reward {r:.4g}, weight {n:.4g})" for h, s, n, r in self.protecting[:5])
                rest = f", and {len(self.protecting) - 5} more" if len(self.protecting) > 5 else ""
                lines.append(f"The proof uses the rewards that the attacker may not touch at {shown}{rest}.")
            else:
                lines.append("The proof needs no pinned reward: rivals share the target's features.")
        lines.append(f"Value iteration under the poisoned rewards finds a gap of {self.value_gap:.6g} on the support; "
                     f"the multipliers prove eps* <= {self.bound:.6g}.")  # fmt: skip
        return "\n".join(lines)


def certify(
    mdp: LinearMDP,
    target: ArrayLike,
    *,
    cap: str | float | None = "sqrt_d",
    q_mode: str = "optimal",
    solver: str = "CLARABEL",
    tol: float = 1e-6,
) -> AttackabilityCertificate:
    """eps* of Theorem 4.2 (Aguilar Escamilla et al., 2026; T1): positive if and only if a cost of o(T) forces the target.

    Args:
        mdp: the true environment.
        target: the target policy (H, S), an action for each step and state.
        cap: bound on ||theta_h||; "sqrt_d" as in the paper, a positive number, or None for no bound.
        q_mode: "optimal" (our choice, exact off the support: T2) or "policy" (the published programme).
        solver: "CLARABEL" or "SCS".
        tol: half the dead zone around 0, and the largest difference allowed between eps and its bound; without a cap that
            difference is allowed to grow with the norm of the poison found, where it is above 1.

    Raises:
        TypeError, ValueError: on another kind of argument, or out of range.
        NoRival: with a single action.
        CapInfeasible: where the cap contradicts cost invariance; names the step and the norm that is needed.
        SolverInaccurate: where eps and its bound differ by more than `tol` at both settings tried.
    """
    goal, limit = _checked(mdp, target, cap, q_mode)
    choice("solver", solver, SOLVERS)
    number("tol", tol, 0, 1, open_low=True)
    return _certify(_programme(mdp, goal, q_mode), limit, solver, tol)


def _checked(mdp: LinearMDP, target: ArrayLike, cap: str | float | None, q_mode: str) -> tuple[IntArray, float]:
    goal = environment("mdp", mdp).policy(target, "target")
    choice("q_mode", q_mode, Q_MODES)
    if mdp.actions == 1:
        raise NoRival("mdp: expected at least 2 actions, got 1: the target has no rival, and eps is unbounded")
    return goal, limit_of(mdp.dim, cap)


def limit_of(dim: int, cap: Any) -> float:
    """The number that a cap stands for, inf for none; TypeError or ValueError unless it is one that `certify` takes."""
    if cap is None:
        return np.inf
    if isinstance(cap, str):
        choice("cap", cap, ("sqrt_d",))
        return float(np.sqrt(dim))
    return number("cap", cap, 0, HUGE, open_low=True)


def _certify(work: _Programme, cap: float, solver: str, tol: float, cut: bool = False) -> AttackabilityCertificate:
    """Solve and prove. Without a cap the margin is first cut off at 1, as a bounded programme is the steadier one; where it
    reaches that, the programme is solved again without the cut (unless `cut` says to keep it)."""
    radii = _radii(work, cap)
    free = np.isinf(cap)
    answer = _attempts(work, cap, radii, solver, tol, 1.0 if free else None)
    if free and not cut and answer.eps >= 1 - 10 * tol:
        n_zero = len(work.off_rows[0]) if work.q_mode == "policy" else 0
        q = np.zeros(work.A.shape[1])
        q[0] = -1
        probe = _solve(work, radii, sp.csc_array((len(q), len(q))), q, work.A, work.b, n_zero, solver, 1e-9)
        if probe.status == "unbounded":
            none = np.zeros_like(answer.lam)
            return _certificate(work, cap, solver, tol, np.inf, np.inf, "unbounded", answer.theta, none, answer.nu * 0, None)
        answer = _attempts(work, cap, radii, solver, tol, None)
    return answer


def _attempts(
    work: _Programme, cap: float, radii: FloatArray, solver: str, tol: float, cut: float | None
) -> AttackabilityCertificate:
    mdp, variables = work.mdp, work.A.shape[1]
    q = np.zeros(variables)
    q[0] = -1
    n_zero = len(work.off_rows[0]) if work.q_mode == "policy" else 0
    A, b = work.A, work.b
    if cut is not None:
        A = sp.csc_array(sp.vstack([A, sp.csc_array(([1.0], ([0], [0])), shape=(1, variables))], format="csc"))
        b = np.concatenate([b, [cut]])
    none = sp.csc_array((variables, variables))
    best: AttackabilityCertificate | None = None
    for accuracy in (min(1e-9, tol / 100), min(1e-7, tol / 10)):  # the second for programmes too flat for the first
        found = _solve(work, radii, none, q, A, b, n_zero, solver, accuracy)
        if not np.isfinite(found.x).all() or not np.isfinite(found.multipliers).all():
            continue
        theta = _parameters(work, found.x[1 : 1 + int(work.sizes.sum())], radii)
        eps = float(_slack(work, theta).min())
        if cut is not None and eps >= cut - tol:  # the cut binds, so the multipliers of the margins prove nothing
            none_said = _multipliers(work, radii, cap, np.zeros(len(work.b)))
            return _certificate(work, cap, solver, tol, eps, np.inf, found.status, theta, *none_said)
        lam, nu, kappa = _multipliers(work, radii, cap, found.multipliers[: len(work.b)])
        # without a cap the residual must vanish; the solver leaves some, priced here at the norm of the poison found
        price = cap if np.isfinite(cap) else float(np.linalg.norm(theta, axis=1).max()) + 1e-300
        bound = dual_bound(mdp, work.target, lam, nu, kappa, price)
        answer = _certificate(work, cap, solver, tol, eps, bound, found.status, theta, lam, nu, kappa)
        if best is None or answer.gap < best.gap:
            best = answer
        if best.gap <= tol * (1.0 if np.isfinite(cap) else max(1.0, price)):  # what rounding leaves is priced at that norm too
            return best
    if best is None:
        raise CertificateError(f"certify: the solver {solver} returned no finite point")
    raise SolverInaccurate(
        f"certify: expected the margin and its bound within tol = {tol:.1g}, got [{best.eps:.9g}, {best.bound:.9g}] "
        f"with status {best.status} from {solver}"
    )


def _certificate(
    work: _Programme, cap: float, solver: str, tol: float, eps: float, bound: float, status: str, theta: FloatArray,
    lam: FloatArray, nu: FloatArray, kappa: FloatArray | None,
) -> AttackabilityCertificate:  # fmt: skip
    gap = _value_gap(work.mdp, work.target, work.support, theta)
    return AttackabilityCertificate(
        work.mdp, work.target, cap, work.q_mode, solver, tol, eps, bound, status, gap, theta, lam, nu, kappa,
        _slack(work, theta), work.support,
    )  # fmt: skip


def _value_gap(mdp: LinearMDP, target: IntArray, support: BoolArray, theta: FloatArray) -> float:
    q = mdp.optimal_q(theta)
    own = np.take_along_axis(q, target[:, :, None], axis=2)
    rivals = q.copy()
    np.put_along_axis(rivals, target[:, :, None], -np.inf, axis=2)
    return float((own[:, :, 0] - rivals.max(axis=2))[support].min())


def verify(certificate: AttackabilityCertificate, tol: float | None = None) -> Verification:
    """Check a certificate by value iteration and by its constraints, from `theta` alone (T2).

    `holds` asks for the cap (1e-6 relative), for the pins (1e-7) and, where eps > 0 in optimal mode, for a gap equal to eps;
    where eps is not above 0, for a gap that is not above 0 either, in optimal mode. To `tol`, the certificate's by default.

    Raises:
        TypeError, ValueError: on another kind of argument.
    """
    if not isinstance(certificate, AttackabilityCertificate):
        raise TypeError(f"certificate: expected an AttackabilityCertificate, got {type(certificate).__name__}")
    allowed = certificate.tol if tol is None else number("tol", tol, 0, open_low=True)
    mdp, target, theta = certificate.mdp, certificate.target, certificate.theta
    pins = np.take_along_axis(mdp.r(theta) - mdp.r(), target[:, :, None], axis=2)[:, :, 0]
    error = float(np.abs(pins[certificate.support]).max())
    norm = float(np.linalg.norm(theta, axis=1).max())
    gap = _value_gap(mdp, target, mdp.support(target), theta)
    fits = True
    if certificate.q_mode == "optimal" and np.isfinite(certificate.eps):
        fits = abs(gap - certificate.eps) <= allowed if certificate.eps > 0 else gap <= allowed
    return Verification(gap, error, norm, bool(fits and error <= 1e-7 and norm <= certificate.cap * (1 + 1e-6)))


def dual_bound(
    mdp: LinearMDP,
    target: ArrayLike,
    lam: ArrayLike,
    nu: ArrayLike,
    kappa: ArrayLike | None = None,
    cap: str | float | None = "sqrt_d",
) -> float:
    """The upper bound on eps* that multipliers prove (T8, ours), from them alone: sum nu r + cap sum_h ||residual_h||.

    Valid for any lam >= 0 (scaled to sum 1 here) on the margins, any nu on the support and any kappa >= 0, of which only the
    shares among the actions of a state count: the weight that arrives there is fixed by what came before. A state without a
    share is played as the target plays it; so kappa None is the certificate of policy mode, valid in both modes.

    Args:
        mdp: the true environment.
        target: the target policy (H, S).
        lam: weights of the margins (H, S, A), with some weight on rivals at support states; weight elsewhere is refused.
        nu: weights of the pinned rewards (H, S); off the support they are ignored.
        kappa: weights off the support (H, S, A), or None.
        cap: as in `certify`; without one the bound is inf unless every residual is 0 (to 1e-9).

    Raises:
        TypeError, ValueError: on shapes, negative or missing weights, or weight where the programme has no margin.
    """
    goal, limit = _checked(mdp, target, cap, "optimal")
    shape = (mdp.horizon, mdp.states, mdp.actions)
    weights = _shaped("lam", array("lam", lam, 0), shape)
    pins = _shaped("nu", array("nu", nu), shape[:2])
    shares = None if kappa is None else _shaped("kappa", array("kappa", kappa, 0), shape)
    support = mdp.support(goal)
    allowed = support[:, :, None] & (np.arange(mdp.actions) != goal[:, :, None])
    if (weights[~allowed] > 0).any() or not weights.any():
        raise ValueError(
            f"lam: expected weight on rivals at support states and nowhere else, got {weights[allowed].sum():.6g} there and "
            f"{weights[~allowed].sum():.6g} elsewhere"
        )
    weights = weights / weights.max()  # first, as a sum of large weights may not be finite
    weights /= weights.sum()
    total, size = 0.0, 0.0
    # weight of deviating play and of the target's, arriving at each state; step by step, with no value function
    deviating, following = np.zeros(mdp.states), np.zeros(mdp.states)
    for h in range(mdp.horizon):
        start = weights[h]
        features, chosen = mdp.phi, mdp.phi[np.arange(mdp.states), goal[h]]
        here = support[h]
        following = np.where(here, following + start.sum(axis=1) - deviating, 0.0)
        play = start.copy()
        for s in np.flatnonzero(~here & (deviating > 0)):
            told = shares is not None and shares[h, s].sum() > 0
            share = shares[h, s] / shares[h, s].sum() if shares is not None and told else np.eye(mdp.actions)[goal[h, s]]
            play[s] += deviating[s] * share
        residual = (following - np.where(here, pins[h], 0.0)) @ chosen - np.tensordot(play, features, axes=2)
        total += float(pins[h][here] @ (chosen @ mdp.theta[h])[here])
        size += float(np.linalg.norm(residual))
        if h + 1 < mdp.horizon:
            deviating = np.tensordot(play, mdp.P()[h], axes=2)
            following = following @ mdp.P()[h, np.arange(mdp.states), goal[h]]
    if np.isinf(limit):
        return total if size <= 1e-9 else np.inf
    return total + limit * size


def _shaped(name: str, value: NDArray[Any], shape: tuple[int, ...]) -> Any:
    if value.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {value.shape}")
    return value


# ---------------------------------------------------------------------------------------------------------------------------
# many targets
# ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class BatchCertificate:
    """eps* of many targets of one MDP: `eps`, `bound`, `status` and `attackable` (1, 0, or -1 where undecided), each (N,)."""

    targets: IntArray = field(repr=False)
    certificates: tuple[AttackabilityCertificate | None, ...] = field(repr=False)
    eps: FloatArray
    bound: FloatArray
    status: NDArray[np.str_]
    solved: int

    def __len__(self) -> int:
        return len(self.eps)

    def __getitem__(self, i: int) -> AttackabilityCertificate:
        found = self.certificates[i]
        if found is None:
            raise CapInfeasible(f"targets[{i}]: expected a target whose rewards a theta within the cap can keep, got none")
        return found

    @cached_property
    def attackable(self) -> NDArray[np.int8]:
        """1 where attackable, 0 where robust, -1 where undecided or infeasible."""
        signs = [None if c is None else c.attackable for c in self.certificates]
        return np.array([-1 if sign is None else int(sign) for sign in signs], dtype=np.int8)


def certify_batch(
    mdp: LinearMDP,
    targets: ArrayLike,
    *,
    cap: str | float | None = "sqrt_d",
    q_mode: str = "optimal",
    solver: str = "CLARABEL",
    tol: float = 1e-6,
) -> BatchCertificate:
    """Certify many targets (N, H, S) of one MDP. Nothing is compiled, the sparse features and kernels are built once, and in
    optimal mode targets that agree on their support share one certificate. A target whose rewards no theta within the cap
    can keep has eps NaN and status "infeasible".

    Raises:
        TypeError, ValueError, SolverInaccurate: as `certify`.
    """
    environment("mdp", mdp)
    stack = raw("targets", targets)
    if stack.ndim != 3 or len(stack) == 0:
        raise ValueError(f"targets: expected shape (N, {mdp.horizon}, {mdp.states}) with N >= 1, got {stack.shape}")
    known: dict[bytes, AttackabilityCertificate | None] = {}
    out: list[AttackabilityCertificate | None] = []
    for target in stack:
        goal, limit = _checked(mdp, target, cap, q_mode)
        key = goal.tobytes() if q_mode == "policy" else np.where(mdp.support(goal), goal, -1).tobytes()
        if key not in known:
            try:
                known[key] = certify(mdp, goal, cap=None if np.isinf(limit) else limit, q_mode=q_mode, solver=solver, tol=tol)
            except CapInfeasible:
                known[key] = None
        out.append(known[key])
    eps = np.array([np.nan if c is None else c.eps for c in out])
    bound = np.array([np.nan if c is None else c.bound for c in out])
    status = np.array(["infeasible" if c is None else c.status for c in out])
    return BatchCertificate(stack.astype(np.int64), tuple(out), eps, bound, status, len(known))


def changed_targets(mdp: LinearMDP, target: ArrayLike) -> IntArray:
    """Every target obtained by changing `target` at one step and state, and itself: (H, S, A, H, S)."""
    goal = environment("mdp", mdp).policy(target, "target")
    H, S, A = mdp.horizon, mdp.states, mdp.actions
    out = np.broadcast_to(goal, (H, S, A, H, S)).copy()
    h, s, a = np.meshgrid(np.arange(H), np.arange(S), np.arange(A), indexing="ij")
    out[h, s, a, h, s] = a
    return out


def sweep(
    mdp: LinearMDP,
    target: ArrayLike,
    *,
    step: int | None = None,
    cap: str | float | None = "sqrt_d",
    q_mode: str = "optimal",
    solver: str = "CLARABEL",
    tol: float = 1e-6,
) -> FloatArray:
    """The heat map of targets: eps* with the target's action at one (step, state) changed to each action, (H, S, A), or
    (S, A) for one `step`. NaN where the cap contradicts cost invariance.

    Raises:
        TypeError, ValueError, SolverInaccurate: as `certify`; ValueError for a `step` outside 0..H-1.
    """
    targets = changed_targets(mdp, target)
    if step is not None:
        targets = targets[integer("step", step, 0, mdp.horizon - 1)]
    flat = targets.reshape(-1, mdp.horizon, mdp.states)
    return certify_batch(mdp, flat, cap=cap, q_mode=q_mode, solver=solver, tol=tol).eps.reshape(targets.shape[:-2])


# ---------------------------------------------------------------------------------------------------------------------------
# the cheapest poison of a given margin
# ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class MinimalCost:
    """The cheapest poison of a margin (T8b): `theta` (H, d), `cost` = sum_h ||theta_h - true||^2, `attained` margin."""

    theta: FloatArray
    cost: float
    margin: float
    attained: float
    status: str
    lam: FloatArray = field(repr=False)


def minimal_cost(
    mdp: LinearMDP,
    target: ArrayLike,
    margin: float,
    cap: str | float | None = "sqrt_d",
    q_mode: str = "optimal",
    *,
    solver: str = "CLARABEL",
) -> MinimalCost:
    """Minimise sum_h ||theta_h - true theta_h||^2 subject to a margin, cost invariance and the cap (T8b): a quadratic programme.

    It exists if and only if margin <= eps*(cap), and is the poison to use where eps* > 0 (our choice: margin eps*/2).

    Raises:
        TypeError, ValueError: on another kind of argument, or a margin that is not above 0.
        MarginInfeasible: where no poison has that margin.
        CapInfeasible, NoRival: as `certify`.
        SolverInaccurate: where the solver does not say that it solved the programme.
    """
    goal, limit = _checked(mdp, target, cap, q_mode)
    number("margin", margin, 0, open_low=True)
    choice("solver", solver, SOLVERS)
    work = _programme(mdp, goal, q_mode)
    radii = _radii(work, limit)
    n_off, n = len(work.off_rows[0]), int(work.sizes.sum())
    A = work.A[:, 1:]
    b = work.b.copy()
    b[n_off:] -= margin
    # the truth keeps its own rewards, so it is the known part plus free @ z_true, and the objective is ||z - z_true||^2
    truth = work.basis.T @ (mdp.theta - work.pins.known).ravel()
    variables = A.shape[1]
    P = sp.csc_array(sp.diags_array(np.concatenate([np.full(n, 2.0), np.zeros(variables - n)])))
    q = np.concatenate([-2 * truth, np.zeros(variables - n)])
    zero = sp.csc_array((A.shape[0], 1))  # a column in the place of eps keeps the layout of the balls
    wide = sp.csc_array(sp.hstack([zero, A], format="csc"))
    pad = sp.csc_array(sp.block_diag([sp.csc_array([[1.0]]), P], format="csc"))
    n_zero = n_off if q_mode == "policy" else 0
    for accuracy in (1e-9, 1e-7):
        found = _solve(work, radii, pad, np.concatenate([[0.0], q]), wide, b, n_zero, solver, accuracy)
        if found.status == "infeasible":
            raise MarginInfeasible(
                f"margin: expected at most eps* of this cap, got {margin:.6g}, which no parameters within "
                f"{'any cap' if np.isinf(limit) else f'a cap of {limit:.6g}'} have"
            )
        if found.status == "optimal":
            break
    else:
        raise SolverInaccurate(f"minimal_cost: expected status optimal from {solver}, got {found.status}")
    theta = _parameters(work, found.x[1 : 1 + n], radii)
    lam = np.zeros((mdp.horizon, mdp.states, mdp.actions))
    lam[work.margin_rows] = np.maximum(found.multipliers[n_off:], 0)
    cost = float(((theta - mdp.theta) ** 2).sum())
    return MinimalCost(theta, cost, float(margin), float(_slack(work, theta).min()), found.status, lam)
