"""Certificates from samples: continuous states, learned features (the paper's deep part), policy mode of T1.

A continuous environment has no list of support states and no kernel. What stands in their place is sampled: support states
from rollouts of the target, the transition of features by regression, the reward's parameters by regression. So what comes out
is *only statistical*: another sample gives another eps, and `split_stability` measures how often even the sign changes.

Q of the target is linear: w_h = theta_h + M_h w_{h+1} with phi(s,a)' M_h = E[phi(s', target(s'))' | s, a] (finite horizon), or
w = M theta with M = (S - gamma S')^{-1} S, S = E phi phi', S' = E phi phi(s', target(s'))' (discounted, LSTD). NumPy throughout;
clarabel is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse as sp

from paperbook.papers.reward_poisoning.certificate import HUGE, CapInfeasible, SolverInaccurate
from paperbook.papers.reward_poisoning.mdp import BoolArray, FloatArray, IntArray
from paperbook.study.arguments import array, function, generator, integer, number

NORM_TOLERANCE = 1e-5  # ||phi|| may exceed 1 by that much: features of a network come in single precision
ACCURACY = 1e-9  # of the solver, absolute and relative
Z95 = 1.959963984540054  # the normal quantile of a two-sided 95 % interval


@dataclass(frozen=True, eq=False)
class Samples:
    """What was seen, as features.

    Args:
        phi: phi(s,a) of n transitions (n, d), norm at most 1.
        reward: their true rewards (n,).
        next_phi: phi(s', target(s')) (n, d); a row of zeros where the episode ended: nothing is collected after.
        step: their steps (n,), 0..H-1.
        episode: which episode each belongs to (n,), any integers.
        target_phi: phi(s, target(s)) of m states visited by the target's own rollouts (m, d).
        rival_phi: phi(s, a) of all other actions there (m, A-1, d).
        support_step: steps of those states (m,).
        support_episode: their episodes (m,).

    Raises:
        TypeError, ValueError: on shapes, numbers that are not finite, norms above 1, steps below 0.
    """

    phi: FloatArray
    reward: FloatArray
    next_phi: FloatArray
    step: IntArray
    episode: IntArray
    target_phi: FloatArray
    rival_phi: FloatArray
    support_step: IntArray
    support_episode: IntArray

    def __post_init__(self) -> None:
        phi = array("phi", self.phi, ndim=2)
        n, d = phi.shape
        target_phi = array("target_phi", self.target_phi, ndim=2)
        m = len(target_phi)
        rival_phi = array("rival_phi", self.rival_phi, ndim=3)
        checked = {"phi": phi, "reward": array("reward", self.reward, ndim=1),
                   "next_phi": array("next_phi", self.next_phi, ndim=2), "target_phi": target_phi,
                   "rival_phi": rival_phi}  # fmt: skip
        wanted = {"reward": (n,), "next_phi": (n, d), "target_phi": (m, d), "rival_phi": (m, rival_phi.shape[1], d)}
        for name, shape in wanted.items():
            if checked[name].shape != shape:
                raise ValueError(f"{name}: expected shape {shape}, got {checked[name].shape}")
        for name in ("phi", "next_phi", "target_phi", "rival_phi"):
            norm = float(np.linalg.norm(checked[name], axis=-1).max())
            if norm > 1 + NORM_TOLERANCE:
                raise ValueError(f"{name}: expected norms of at most 1, got {norm:.6g}")
        for name, size, low in (("step", n, 0), ("episode", n, None), ("support_step", m, 0), ("support_episode", m, None)):
            value = np.asarray(getattr(self, name))
            if value.dtype.kind not in "iu":
                raise TypeError(f"{name}: expected integers, got dtype {value.dtype}")
            if value.shape != (size,):
                raise ValueError(f"{name}: expected shape ({size},), got {value.shape}")
            if low is not None and value.min() < low:
                raise ValueError(f"{name}: expected steps of at least 0, got {value.min()}")
            checked[name] = value.astype(np.int64)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def dim(self) -> int:
        """Dimension d of the features."""
        return self.phi.shape[1]

    def of(self, episodes: IntArray) -> Samples:
        """The part whose episodes are among `episodes`; ValueError where nothing is left of either kind."""
        rows, states = np.isin(self.episode, episodes), np.isin(self.support_episode, episodes)
        if not rows.any() or not states.any():
            raise ValueError(f"episodes: expected some with transitions and some with support states, got {rows.sum()} "
                             f"transitions and {states.sum()} states")  # fmt: skip
        return Samples(self.phi[rows], self.reward[rows], self.next_phi[rows], self.step[rows], self.episode[rows],
                       self.target_phi[states], self.rival_phi[states], self.support_step[states],
                       self.support_episode[states])  # fmt: skip


@dataclass(frozen=True, eq=False)
class SampledCertificate:
    """A certificate in policy mode from samples.

    Attributes:
        eps: the largest margin at the sampled support states; its sign is an estimate, not a proof.
        theta: the poison (H, d); (1, d) where discounted.
        true_theta: the regression's parameters of the true reward, of the same shape.
        weights: w of the target's Q under the poison, of the same shape.
        free: dimensions left free by the pins at each step (H,).
        pin_error: the largest |phi' (theta - true_theta)| at the sampled support states: what obeying would be charged, as pins
            hold to `pin_tol` only.
        reward_error: root mean square error of phi' true_theta on the transitions: how linear the reward is.
        next_error: the same of phi' M on the next features, per transition: how linear the dynamics are.
        status: the solver's, or "pinned" where nothing is free.
        cap: the limit of ||theta_h|| that was used.
    """

    eps: float
    theta: FloatArray = field(repr=False)
    true_theta: FloatArray = field(repr=False)
    weights: FloatArray = field(repr=False)
    free: IntArray
    pin_error: float
    reward_error: float
    next_error: float
    status: str
    cap: float

    @property
    def attackable(self) -> bool:
        """The sign of eps, as the paper's code takes it; see `split_stability` for how far it can be trusted."""
        return self.eps > 0

    def margins(self, samples: Samples) -> FloatArray:
        """Q(s, target) - Q(s, a) (m, A-1) under this poison at the support states of (other) samples."""
        _is_samples(samples)
        if samples.dim != self.weights.shape[1]:
            raise ValueError(f"samples: expected features of dimension {self.weights.shape[1]}, got {samples.dim}")
        return _margins(samples, self.weights)


def ridge(X: FloatArray, Y: FloatArray, lam: float) -> FloatArray:
    """(X'X + n lam I)^{-1} X'Y for X (n, d) and Y (n,) or (n, k); `lam` > 0 means the same for any number of rows.

    Raises:
        TypeError, ValueError: on `lam`, shapes, or numbers that are not finite.
    """
    number("lam", lam, 0.0, open_low=True)
    if np.ndim(X) != 2 or np.ndim(Y) not in (1, 2) or len(X) != len(Y):
        raise ValueError(f"X, Y: expected (n, d) and (n,) or (n, k), got {np.shape(X)} and {np.shape(Y)}")
    if not (np.isfinite(X).all() and np.isfinite(Y).all()):
        raise ValueError("X, Y: expected finite numbers, got some that are not")
    n = max(len(X), 1)
    return np.asarray(np.linalg.solve(X.T @ X / n + lam * np.eye(X.shape[1]), X.T @ Y / n), dtype=np.float64)


def finite_horizon_certificate(
    samples: Samples, horizon: int, cap: float | None = None, penalty: float = 1e-6, pin_tol: float = 1e-6,
    stationary: bool = False, stretch: bool = False,
) -> SampledCertificate:  # fmt: skip
    """The published programme on samples, H steps (T1, policy mode).

    Args:
        samples: transitions and support states.
        horizon: H >= 1, above every step of the samples.
        cap: limit of ||theta_h||; None is sqrt d.
        penalty: of the ridge regressions, > 0.
        pin_tol: singular values of the on-support features below that share of the largest are not pinned, in (0, 1).
        stationary: fit one kernel and one reward for all steps (an environment does not know the step), not one for each.
        stretch: where the pinned part of theta_h alone exceeds the cap, take 1.05 times its norm as the cap instead of raising
            an error (our choice, for learned features, which nobody promised to be long enough); `cap` says so.

    Raises:
        TypeError, ValueError: naming the argument; ValueError too for a step without transitions, unless `stationary`.
        CapInfeasible: the pinned part of theta_h alone exceeds the cap.
        SolverInaccurate: the solver did not solve the programme.
    """
    H, cap = integer("horizon", horizon, 1), _arguments(samples, cap, penalty, pin_tol)
    last = max(int(samples.step.max()), int(samples.support_step.max()))
    if last >= H:
        raise ValueError(f"horizon: expected more than {last}, the last step of the samples, got {H}")
    d = samples.dim
    theta, kernel = np.zeros((H, d)), np.zeros((H, d, d))
    missed = np.zeros(2)  # summed squared errors of rewards and of next features
    for h in range(1 if stationary else H):
        rows = np.ones(len(samples.step), dtype=bool) if stationary else samples.step == h
        if not rows.any():
            raise ValueError(f"samples: expected transitions at every step (or stationary=True), got none at step {h}")
        X, steps = samples.phi[rows], slice(None) if stationary else h
        theta[steps] = own = ridge(X, samples.reward[rows], penalty)
        missed[0] += float(((samples.reward[rows] - X @ own) ** 2).sum())
        if stationary or h < H - 1:  # what follows the last step is never collected
            kernel[steps] = then = ridge(X, samples.next_phi[rows], penalty)
            missed[1] += float(((samples.next_phi[rows] - X @ then) ** 2).sum())
    errors = np.sqrt(missed / len(samples.phi))

    bases, known = _pins(samples, theta, [samples.support_step == h for h in range(H)], pin_tol)
    left, right = [], []
    for h in range(H):
        at = samples.support_step == h
        if not at.any():
            continue
        difference = (samples.target_phi[at][:, None] - samples.rival_phi[at]).reshape(-1, d)
        carried = np.unique(difference, axis=0)  # finite state spaces repeat their rows
        row, constant = [np.zeros((len(carried), bases[k].shape[1])) for k in range(h)], np.zeros(len(carried))
        for k in range(h, H):  # carried = (difference) M_h ... M_{k-1}, what theta_k is worth from step h
            row.append(carried @ bases[k])
            constant += carried @ known[k]
            carried = carried @ kernel[k]
        left.append(np.concatenate(row, axis=1))
        right.append(constant)
    cap = _room(known, cap, stretch)
    poison, status = _maximise(np.concatenate(left), np.concatenate(right), bases, known, cap)
    weights = poison.copy()
    for h in range(H - 2, -1, -1):
        weights[h] += kernel[h] @ weights[h + 1]
    return _finished(samples, poison, theta, weights, bases, errors, status, cap)


def discounted_certificate(
    samples: Samples, gamma: float = 0.99, cap: float | None = None, penalty: float = 1e-6, pin_tol: float = 1e-6,
    stretch: bool = False,
) -> SampledCertificate:  # fmt: skip
    """The discounted variant of the published code, one theta for all time: Q = phi' M theta, M = (S - gamma S')^{-1} S.

    The code multiplies eps by -1 after solving and takes the transposed matrix of a dynamics layer; neither is copied: M is
    LSTD's own, and eps is the margin.

    Args:
        samples: transitions and support states; steps do not matter.
        gamma: discount in [0, 1).
        cap: limit of ||theta||; None is sqrt d.
        penalty: added to the diagonal of S - gamma S', > 0.
        pin_tol, stretch: as in `finite_horizon_certificate`.

    Raises:
        TypeError, ValueError, CapInfeasible, SolverInaccurate: as `finite_horizon_certificate`.
    """
    cap = _arguments(samples, cap, penalty, pin_tol)
    number("gamma", gamma, 0.0, 1.0, open_high=True)
    X, n, d = samples.phi, len(samples.phi), samples.dim
    second, cross = X.T @ X / n, X.T @ samples.next_phi / n
    M = np.linalg.solve(second - gamma * cross + penalty * np.eye(d), second)
    theta = ridge(X, samples.reward, penalty)[None]
    step = ridge(X, samples.next_phi, penalty)
    missed = (samples.reward - X @ theta[0]) ** 2, ((samples.next_phi - X @ step) ** 2).sum(axis=1)
    errors = np.sqrt([part.mean() for part in missed])
    bases, known = _pins(samples, theta, [np.ones(len(samples.target_phi), dtype=bool)], pin_tol)
    difference = np.unique((samples.target_phi[:, None] - samples.rival_phi).reshape(-1, d), axis=0) @ M
    cap = _room(known, cap, stretch)
    poison, status = _maximise(difference @ bases[0], difference @ known[0], bases, known, cap)
    return _finished(samples, poison, theta, poison @ M.T, bases, errors, status, cap)


def _is_samples(samples: Any) -> None:
    if not isinstance(samples, Samples):
        raise TypeError(f"samples: expected Samples, got {type(samples).__name__}")


def _arguments(samples: Any, cap: float | None, penalty: float, pin_tol: float) -> float:
    _is_samples(samples)
    number("penalty", penalty, 0.0, open_low=True)
    number("pin_tol", pin_tol, 0.0, 1.0, open_low=True, open_high=True)
    return float(np.sqrt(samples.dim)) if cap is None else number("cap", cap, 0.0, HUGE, open_low=True)


def _pins(
    samples: Samples, theta: FloatArray, at: list[BoolArray], pin_tol: float
) -> tuple[list[FloatArray], FloatArray]:
    """For each step the directions that stay free (d, k), orthonormal, and the pinned part of theta (H, d)."""
    # OPEN(paper, cost invariance on samples): equality at every sampled state pins all d directions as soon as features
    # bend a little, and then nothing could be poisoned; a direction counts as pinned where the support's features have a
    # singular value above pin_tol of the largest. `pin_error` says what that costs.
    bases, known = [], np.zeros_like(theta)
    for h, rows in enumerate(at):
        if not rows.any():  # the target never gets here: nothing is pinned
            bases.append(np.eye(samples.dim))
            continue
        pinned = samples.target_phi[rows]
        _, size, right = np.linalg.svd(pinned.T @ pinned)  # d x d, however many states there are
        rank = int((np.sqrt(size) > pin_tol * np.sqrt(size[0])).sum())
        bases.append(right[rank:].T)
        known[h] = right[:rank].T @ (right[:rank] @ theta[h])
    return bases, known


def _room(known: FloatArray, cap: float, stretch: bool) -> float:
    """The cap, or what it must be; CapInfeasible where it is too small for the pinned parts and may not be stretched."""
    norms = np.linalg.norm(known, axis=1)
    h = int(norms.argmax())
    if norms[h] <= cap * (1 + 1e-9):
        return cap
    if stretch:
        return float(1.05 * norms[h])
    raise CapInfeasible(f"cap: expected at least {norms[h]:.6g}, the norm of the pinned part of theta at step {h}, got {cap:.6g}")


def _maximise(
    G: FloatArray, constant: FloatArray, bases: list[FloatArray], known: FloatArray, cap: float
) -> tuple[FloatArray, str]:
    """Maximise min(G z + constant) over ||known_h + basis_h z_h|| <= cap; the theta (H, d) that does, and the status."""
    radii = np.sqrt(np.maximum(cap**2 - (known**2).sum(axis=1), 0.0))
    sizes = [basis.shape[1] for basis in bases]
    poison, total = known.copy(), sum(sizes)
    if total == 0 or not G.any():
        return poison, "pinned"
    import clarabel

    blocks = [sp.csc_array(np.concatenate([np.ones((len(G), 1)), -G], axis=1))]
    right, cones, start = [constant], [clarabel.NonnegativeConeT(len(G))], 1
    for size, radius in zip(sizes, radii, strict=True):
        if size:
            column = np.arange(start, start + size)
            blocks.append(sp.csc_array((-np.ones(size), (1 + np.arange(size), column)), shape=(size + 1, total + 1)))
            right.append(np.concatenate([[max(radius, 1e-9)], np.zeros(size)]))
            cones.append(clarabel.SecondOrderConeT(size + 1))
        start += size
    settings = clarabel.DefaultSettings()
    settings.verbose, settings.max_threads = False, 1  # the same bits on every machine
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = ACCURACY
    goal = np.concatenate([[-1.0], np.zeros(total)])
    matrix = sp.csc_matrix(sp.vstack(blocks))
    found = clarabel.DefaultSolver(sp.csc_matrix((total + 1, total + 1)), goal, matrix, np.concatenate(right), cones,
                                   settings).solve()  # fmt: skip
    status = str(found.status)
    if status not in ("Solved", "AlmostSolved"):
        raise SolverInaccurate(f"sampled certificate: expected status Solved from CLARABEL, got {status}")
    z, start = np.asarray(found.x)[1:], 0
    for k, (size, radius) in enumerate(zip(sizes, radii, strict=True)):
        part = z[start : start + size]
        length = float(np.linalg.norm(part))
        poison[k] += bases[k] @ (part * min(1.0, radius / length) if length > 0 else part)  # back into the ball, exactly
        start += size
    return poison, "optimal" if status == "Solved" else "optimal_inaccurate"


def _finished(
    samples: Samples, poison: FloatArray, theta: FloatArray, weights: FloatArray, bases: list[FloatArray],
    errors: FloatArray, status: str, cap: float,
) -> SampledCertificate:  # fmt: skip
    steps = np.minimum(samples.support_step, len(theta) - 1)
    pins = float(np.abs(np.einsum("md,md->m", samples.target_phi, (poison - theta)[steps])).max())
    eps = float(_margins(samples, weights).min())  # the margin that this poison has, whatever the solver says
    free = np.array([basis.shape[1] for basis in bases])
    return SampledCertificate(eps, poison, theta, weights, free, pins, float(errors[0]), float(errors[1]), status, cap)


def _margins(samples: Samples, weights: FloatArray) -> FloatArray:
    own = weights[np.minimum(samples.support_step, len(weights) - 1)]
    return np.einsum("mad,md->ma", samples.target_phi[:, None] - samples.rival_phi, own)


# ---------------------------------------------------------------------------------------------------------------------------
# how far the sign can be trusted
# ---------------------------------------------------------------------------------------------------------------------------


def wilson(successes: int, n: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share; ValueError unless 0 <= successes <= n and n >= 1."""
    n = integer("n", n, 1)
    k = integer("successes", successes, 0, n)
    share, spread = k / n, Z95**2 / n
    middle = (share + spread / 2) / (1 + spread)
    half = Z95 * np.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return (0.0 if k == 0 else float(middle - half)), (1.0 if k == n else float(middle + half))


@dataclass(frozen=True, eq=False)
class Stability:
    """What happened over random splits of the episodes into two halves, each certified on its own.

    Attributes:
        eps: of the two halves (splits, 2).
        agreement: share of splits whose halves agree on the sign.
        interval: 95 % Wilson interval of it. Splits share episodes, so it speaks of the splits of these data, not of new data.
        positive: share of the halves with eps > 0.
        held_out: margin that each half's poison keeps at the other half's support states, the smallest (splits, 2).
        violated: share of the other half's (state, rival) pairs at which it keeps no margin, mean over the halves.
    """

    eps: FloatArray
    agreement: float
    interval: tuple[float, float]
    positive: float
    held_out: FloatArray
    violated: float


def split_stability(
    samples: Samples, certify: Callable[[Samples], SampledCertificate], splits: int, rng: np.random.Generator
) -> Stability:
    """Split the episodes at random into halves, certify each half, and let each poison be judged by the other half's states.

    Args:
        samples: with at least four episodes of transitions and of support states.
        certify: for one half, e.g. a lambda around `finite_horizon_certificate`.
        splits: number of random splits, >= 1.
        rng: draws them.

    Raises:
        TypeError, ValueError: naming the argument; errors of `certify` are passed on.
    """
    _is_samples(samples)
    function("certify", certify)
    integer("splits", splits, 1)
    generator("rng", rng)
    follow = np.unique(samples.support_episode)
    other = np.setdiff1d(np.unique(samples.episode), follow)
    if len(follow) < 4:
        raise ValueError(f"samples: expected support states of at least 4 episodes, got {len(follow)}")
    eps, kept, violated = np.zeros((splits, 2)), np.zeros((splits, 2)), []
    for i in range(splits):
        first = np.concatenate([rng.permutation(part)[: len(part) // 2] for part in (follow, other)])  # halves of each kind
        halves = samples.of(first), samples.of(np.setdiff1d(np.concatenate([follow, other]), first))
        found = [certify(half) for half in halves]
        for j in (0, 1):
            margins = found[j].margins(halves[1 - j])
            eps[i, j], kept[i, j] = found[j].eps, margins.min()
            violated.append(float((margins <= 0).mean()))
    same = int(((eps[:, 0] > 0) == (eps[:, 1] > 0)).sum())
    return Stability(eps, same / splits, wilson(same, splits), float((eps > 0).mean()), kept, float(np.mean(violated)))
