r"""Rates, bounds and prices of black-box assisted regression, in closed form or by quadrature (no simulation here).

Setting: X uniform on [0,1]^d, Y = f*(X) + xi with xi ~ N(0, sigma^2); the residual r* = f* - f_0 lies in a Hölder ball of
smoothness `beta` and constant `L` and has L2 norm at most `delta`. Risks are squared L2 distances (units of Y^2).
The constants are ours: the paper's theorems give rates only.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import beta as beta_function
from scipy.special import log_ndtr, ndtr

from paperbook.study import arguments as check
from paperbook.study.arguments import FloatArray

# Largest ratio (2 E|Z|^q / q!)^(1/(q-2)) over integers q >= 3, Z standard normal; attained at q = 3 (see `bernstein_constants`).
_MOMENT_RATIO = (2.0 / 3.0) * math.sqrt(2.0 / math.pi)


def _class(beta: float, d: int, sigma: float, L: float) -> tuple[float, int, float, float]:
    return (
        check.number("beta", beta, 0.0, open_low=True),
        check.integer("d", d, 1),
        check.number("sigma", sigma, 0.0, open_low=True),
        check.number("L", L, 0.0, open_low=True),
    )


# ---------------------------------------------------------------------------------------------------------------- rates


def minimax_rate(n: ArrayLike, beta: float, d: int, sigma: float, L: float) -> FloatArray:
    """psi_n = L^(2d/(2 beta+d)) (sigma^2/n)^(2 beta/(2 beta+d)), the squared-error rate of S1 without its constant.

    `n` >= 1 (any shape, the result has it). The minimax risk with a black box is min(delta^2, psi_n) up to constants.
    """
    beta, d, sigma, L = _class(beta, d, sigma, L)
    rows = check.array("n", n, 1.0)
    return (L ** (2 * d / (2 * beta + d)) * (sigma**2 / rows) ** (2 * beta / (2 * beta + d)))[()]


def critical_radius(n: ArrayLike, beta: float, d: int, sigma: float, L: float) -> FloatArray:
    """delta_c(n) = sqrt(psi_n) ~ n^(-beta/(2 beta+d)): where trusting and learning cost the same, up to a constant."""
    return np.sqrt(minimax_rate(n, beta, d, sigma, L))[()]


def critical_radius_variance(n_train: ArrayLike, n_cells: int, sigma: float, d: int = 1, order: int = 1) -> FloatArray:
    """delta_c where delta^2 equals the variance sigma^2 K^d p / n_train of a piecewise polynomial fit whose bias is negligible.

    K = `n_cells` >= 1 an axis, p = C(d + order - 1, d) coefficients a cell (total degree below `order` >= 1).
    """
    n_cells, d, order = check.integer("n_cells", n_cells, 1), check.integer("d", d, 1), check.integer("order", order, 1)
    sigma = check.number("sigma", sigma, 0.0, open_low=True)
    rows = check.array("n_train", n_train, 1.0)
    return np.sqrt(sigma**2 * float(n_cells) ** d * math.comb(d + order - 1, d) / rows)[()]


def critical_radius_lower_bound(n: ArrayLike, beta: float, d: int, sigma: float, L: float) -> FloatArray:
    """delta_c where the lower bound S2 saturates: delta^2 = c^2 L^2 m^(-2 beta) at the m that maximises the plateau."""
    beta, d, sigma, L = _class(beta, d, sigma, L)
    ceiling = math.sqrt(bump_constant(beta, d)) * L
    m = lower_bound_resolution(n, ceiling, sigma, L, beta, d)
    return np.asarray(ceiling * np.asarray(m, dtype=np.float64) ** -beta)[()]


# ---------------------------------------------------------------------------------------------------------- lower bound


def bpsk_mmse(snr: ArrayLike) -> FloatArray:
    r"""Bayes risk of a random sign seen in Gaussian noise: mmse(s) = 1 - E tanh(s + sqrt(s) Z) (S2), `snr` s >= 0, any shape.

    Averaging over the two signs gives the same number as e^(-s/2) E sech(sqrt(s) Z), whose integrand is positive and even, so
    nothing cancels at large s. With z = x / sqrt(1+s) its poles stay at |Im x| >= pi/2 and the Gaussian at least one wide,
    hence the trapezoidal rule with step 0.2 errs by about exp(-pi^2/0.2) < 1e-20 (relative to the integral) for every s; the
    cut at x = 40 loses less than 1e-16. (Gauss-Hermite on the defining formula converges slowly once s is large.)
    """
    s = check.array("snr", snr, 0.0)
    x = 0.2 * np.arange(201)
    weight = np.where(x == 0.0, 0.1, 0.2) * 2.0 / math.sqrt(2.0 * math.pi)  # half line, doubled
    flat = s.reshape(-1)
    out = np.empty_like(flat)
    for start in range(0, flat.size, 65536):  # bounds the (rows, 201) work array
        part = flat[start : start + 65536, None]
        z = x / np.sqrt(1.0 + part)
        t = np.sqrt(part) * z
        log_sech = math.log(2.0) - t - np.log1p(np.exp(-2.0 * t))
        out[start : start + 65536] = (np.exp(-0.5 * z**2 + log_sech - 0.5 * part) @ weight) / np.sqrt(1.0 + part[:, 0])
    return out.reshape(s.shape)[()]


def bump_constant(beta: float, d: int) -> float:
    r"""c_psi^2 = integral of psi^2 over the unit cube for the bump of S2: 0 on the faces, Hölder constant 1 whatever the signs.

    beta <= 1, any d: psi(x) = 2^(beta-1) dist(x, faces)^beta. The distance is 1-Lipschitz, so inside a cell
    \|psi(x)-psi(y)\| <= 2^(beta-1) \|x-y\|^beta. In two cells with opposite signs, a segment crosses the face, its two parts
    are at least the distances a and b, and a^beta + b^beta <= 2^(1-beta) (a+b)^beta: the factor makes the constant 1.
    P(dist > t) = (1-2t)^d gives c^2 = 2^(2 beta-2) 2 beta 2^(-2 beta) B(2 beta, d+1); beta = d = 1: 1/12 (the tent).

    1 < beta <= 2, d = 1 (the class: psi' is (beta-1)-Hölder): psi' is the bump above, with exponent beta-1 and width 1/2,
    first with sign +, then -; it integrates to zero and any signs of psi are signs of psi', so the constant is again 1.

    ValueError elsewhere: a smooth bump with a proven constant for every choice of signs is coded for these classes only.
    """
    beta, d = check.number("beta", beta, 0.0, open_low=True), check.integer("d", d, 1)
    if beta <= 1.0:
        return float(0.5 * beta * beta_function(2 * beta, d + 1))
    if beta > 2.0 or d > 1:
        raise ValueError(
            f"beta: expected beta <= 1, or beta <= 2 with d = 1 (no bump with a proven Hölder constant is coded "
            f"beyond), got beta={beta:g}, d={d}"
        )
    # psi = P x^beta on [0, 1/4], then 2 P 4^-beta - P (1/2-x)^beta, then mirrored; integrate the square term by term.
    scale = 2.0 ** (beta - 2.0) / beta
    return float(2.0 * scale**2 * 0.25 ** (2 * beta + 1) * (4.0 - 4.0 / (beta + 1) + 2.0 / (2 * beta + 1)))


@lru_cache(maxsize=256)
def _plateau_snr(beta: float, d: int) -> float:
    """SNR at which s^(2 beta/(2 beta+d)) mmse(s) is largest: the best resolution of the plateau, as a continuous number."""
    power = 2 * beta / (2 * beta + d)
    # The maximum lies between the scales where the power and where exp(-s/2) rule; log s is searched, the function is unimodal.
    best = minimize_scalar(
        lambda v: -(power * v + np.log(bpsk_mmse(np.exp(v)))), bounds=(-12.0, 4.0), method="bounded", options={"xatol": 1e-10}
    )
    return float(np.exp(best.x))


def _bound_at(m: FloatArray, n: FloatArray, delta: FloatArray, sigma: float, L: float, beta: float, d: int) -> FloatArray:
    energy = np.minimum(delta**2, bump_constant(beta, d) * L**2 * m ** (-2 * beta))
    return energy * bpsk_mmse(n * energy / (sigma**2 * m**d))


def _best(n: ArrayLike, delta: ArrayLike, sigma: float, L: float, beta: float, d: int) -> tuple[FloatArray, FloatArray]:
    beta, d, sigma, L = _class(beta, d, sigma, L)
    constant = bump_constant(beta, d)
    rows, radius = np.broadcast_arrays(check.array("n", n, 1.0), check.array("delta", delta, 0.0))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        largest = rows.max() * constant * np.square(L) / np.square(sigma)  # bounds every SNR below
        finite = np.isfinite(largest / _plateau_snr(beta, d)) and np.isfinite(np.square(sigma))
    if not finite:
        raise ValueError(
            f"sigma: expected noise with finite sigma^2 and n L^2 / sigma^2, got sigma={sigma!r}, L={L!r}, n={rows.max():g}"
        )
    # As a function of real m the bound rises while A = delta, then follows m^(-2 beta) mmse(C m^-(2 beta+d)), which has one
    # peak: the best integer neighbours the larger of the two break points (brute force over m in the tests).
    peak = (constant * L**2 * rows / (sigma**2 * _plateau_snr(beta, d))) ** (1 / (2 * beta + d))
    with np.errstate(divide="ignore"):
        corner = np.where(radius > 0, (math.sqrt(constant) * L / np.maximum(radius, 1e-150)) ** (1 / beta), 1.0)
    centre = np.maximum(np.maximum(peak, corner), 1.0)
    # 1e12: the corner of delta = 1e-13 or below; m beyond it changes nothing, A^2 mmse(0) = delta^2 already.
    lower = np.floor(np.minimum(centre, 1e12))
    low, high = (_bound_at(m, rows, radius, sigma, L, beta, d) for m in (lower, lower + 1))
    return np.maximum(low, high), np.where(high > low, lower + 1, lower)


def lower_bound(n: ArrayLike, delta: ArrayLike, sigma: float, L: float, beta: float, d: int) -> FloatArray:
    """Explicit finite-sample minimax lower bound of S2: max over m of A^2 mmse(n A^2 / (sigma^2 m^d)).

    A^2 = min(delta^2, c^2 L^2 m^(-2 beta)), c^2 = `bump_constant`. `n` >= 1 and `delta` >= 0 broadcast; the result has their
    shape. Cost: two evaluations of the mmse for each pair, whatever m. ValueError where `bump_constant` knows no bump.
    """
    return _best(n, delta, sigma, L, beta, d)[0][()]


def lower_bound_resolution(n: ArrayLike, delta: ArrayLike, sigma: float, L: float, beta: float, d: int) -> np.ndarray:
    """The number m of bumps an axis at which `lower_bound` is attained (same arguments), as int64."""
    return _best(n, delta, sigma, L, beta, d)[1].astype(np.int64)[()]


# ------------------------------------------------------------------------------------------------------ price of safety


def selection_cost(R1: ArrayLike, sigma: float, n_v: int) -> FloatArray:
    """Expected risk of the safe rule at delta = 0 (S5, Gaussian limit): R_1 Phi(-sqrt(n_v R_1) / (2 sigma)), `R1` >= 0.

    Exact where the validation mean of r^^2 equals R_1; inputs drawn at random can only raise it (Phi is convex there).
    """
    sigma, n_v = check.number("sigma", sigma, 0.0, open_low=True), check.integer("n_v", n_v, 2)
    risk = check.array("R1", R1, 0.0)
    return (risk * ndtr(-np.sqrt(n_v * risk) / (2 * sigma)))[()]


@lru_cache(maxsize=1)
def selection_cost_supremum() -> tuple[float, float]:
    """(value, u): the largest 4 u^2 Phi(-u) and where.

    The cost S5 is at most value * sigma^2 / n_v, to leading order, for estimates without spikes (n_v ||r^||^4 / E r^^4 large);
    an estimate that lives on a set of measure about 1/n_v can cost more.
    """
    best = minimize_scalar(
        lambda u: -(math.log(4.0) + 2.0 * math.log(u) + log_ndtr(-u)),
        bounds=(0.1, 5.0),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return float(math.exp(-best.fun)), float(best.x)


def adoption_probability(
    R0: ArrayLike, R1: ArrayLike, sigma: float, n_v: int, *, tau: float = 0.0, residual_norm2: ArrayLike | None = None
) -> FloatArray:
    """P(mean D > tau se(D)) for a fixed residual estimate, Gaussian limit: Phi(sqrt(n_v) (R_0-R_1) / (2 sigma ||r^||) - tau).

    `R0`, `R1` >= 0 broadcast; `tau` >= 0. ||r^||^2 defaults to R_0 + R_1, exact at delta = 0 and right on average when
    the error of the estimate is pure noise (in general it is R_0 + R_1 - 2 <r*, r*-r^>); the spread of r^(2r* - r^), small
    beside sigma, is left out. A zero estimate is a tie and is never adopted.
    """
    sigma, n_v = check.number("sigma", sigma, 0.0, open_low=True), check.integer("n_v", n_v, 2)
    tau = check.number("tau", tau, 0.0)
    r0, r1 = check.array("R0", R0, 0.0), check.array("R1", R1, 0.0)
    norm2 = r0 + r1 if residual_norm2 is None else check.array("residual_norm2", residual_norm2, 0.0)
    r0, r1, norm2 = np.broadcast_arrays(r0, r1, norm2)
    standard = math.sqrt(n_v) * (r0 - r1) / (2 * sigma * np.sqrt(np.where(norm2 > 0, norm2, 1.0)))
    return np.where(norm2 > 0, ndtr(standard - tau), 0.0)[()]


def bernstein_constants(B: float, sigma: float) -> tuple[float, float]:
    r"""(V, b') of S4: with probability >= 1 - eta, \|mean D - Delta\| <= sqrt(4 V (R_0+R_1) l) + b' l, l = log(2/eta) / n_v.

    D = r^ (2 r* - r^ + 2 xi) with \|r^\|, \|r*\| <= B and xi ~ N(0, sigma^2). Write mu = 2 r* - r^, \|mu\| <= 3B.
    (1) E D^2 = E r^^2 (mu^2 + 4 sigma^2) <= V ||r^||^2, V = 9 B^2 + 4 sigma^2.
    (2) For q >= 3, E \|D\|^q <= B^(q-2) ||r^||^2 sup E\|mu + 2 sigma Z\|^q. A constant is a sign times its size and a Gaussian
        is a limit of signs, so Khintchine's inequality with its sharp constant gives E\|mu + 2 sigma Z\|^q <= V^(q/2) E\|Z\|^q.
    (3) E\|Z\|^q <= (q!/2) k^(q-2) for all integers q >= 3 with k = (2/3) sqrt(2/pi) = 0.532, equality at q = 3.
    (4) So raw moments obey E \|D\|^q <= (q!/2) V ||r^||^2 (k B sqrt(V))^(q-2): Bernstein's inequality (Boucheron, Lugosi &
        Massart, Theorem 2.10, raw moments, each tail at eta/2) holds with variance factor V ||r^||^2 and scale b' = k B sqrt(V).
    (5) ||r^||^2 <= 2 (R_0 + R_1), because r^ = r* - (r* - r^).
    """
    B, sigma = check.number("B", B, 0.0, open_low=True), check.number("sigma", sigma, 0.0)
    V = 9 * B**2 + 4 * sigma**2
    return V, _MOMENT_RATIO * B * math.sqrt(V)


def _oracle_terms(min_risk: ArrayLike, B: float, sigma: float, n_v: int, eta: float) -> tuple[FloatArray, float, float, float]:
    V, scale = bernstein_constants(B, sigma)
    n_v, eta = check.integer("n_v", n_v, 2), check.number("eta", eta, 0.0, 1.0, open_low=True, open_high=True)
    return check.array("min_risk", min_risk, 0.0), V, scale, math.log(2 / eta) / n_v


def oracle_bound(min_risk: ArrayLike, B: float, sigma: float, n_v: int, eta: float, t: float | FloatArray = 1 / 3) -> FloatArray:
    """Oracle inequality S4 (our Theorem 5.7): with probability >= 1 - eta the risk of the safe rule (tau = 0) is at most

        (1+t)/(1-t) min(R_0, R_1) + (V/t + b') log(2/eta) / ((1-t) n_v)

    (2 min(R_0, R_1) + (4.5 V + 1.5 b') log(2/eta)/n_v at t = 1/3). `B` bounds |r*| and |r^|; `min_risk` >= 0 of any shape;
    0 < t < 1, a number or an array that broadcasts. Step beyond `bernstein_constants`: if the worse one is chosen, |Delta| is
    at most the deviation, and 2 sqrt(V l x) <= t x + V l / t with x = R_0 + R_1 = 2 min + |Delta|.
    """
    risk, V, scale, level = _oracle_terms(min_risk, B, sigma, n_v, eta)
    share = check.array("t", t, 0.0, 1.0, open_low=True, open_high=True)
    return ((1 + share) / (1 - share) * risk + (V / share + scale) * level / (1 - share))[()]


def best_t(min_risk: ArrayLike, B: float, sigma: float, n_v: int, eta: float) -> FloatArray:
    """The t in (0, 1/2] that minimises `oracle_bound` (same arguments): root of (2 m + b' l) t^2 + 2 V l t - V l = 0."""
    risk, V, scale, level = _oracle_terms(min_risk, B, sigma, n_v, eta)
    price = V * level
    return (price / (price + np.sqrt(price**2 + price * (2 * risk + scale * level))))[()]


def split_factor(rho: ArrayLike, beta: float, d: int) -> FloatArray:
    """(1-rho)^(-2 beta/(2 beta+d)): what holding out a fraction `rho` in (0, 1) multiplies the learning risk with (S10)."""
    beta, d = check.number("beta", beta, 0.0, open_low=True), check.integer("d", d, 1)
    fraction = check.array("rho", rho, 0.0, 1.0, open_low=True, open_high=True)
    return ((1 - fraction) ** (-2 * beta / (2 * beta + d)))[()]


def best_split(n: int, beta: float, d: int, sigma: float, L: float) -> float:
    """The rho in (0, 1) that minimises psi_n split_factor(rho) + .663 sigma^2/(rho n) (S10); it shrinks as `n` >= 4 grows.

    The unknown constant of psi_n is taken as 1.
    """
    rate = float(minimax_rate(check.integer("n", n, 4), beta, d, sigma, L))
    floor = selection_cost_supremum()[0] * sigma**2 / n
    best = minimize_scalar(
        lambda r: rate * float(split_factor(r, beta, d)) + floor / r,
        bounds=(1e-6, 1 - 1e-6),
        method="bounded",
        options={"xatol": 1e-8},
    )
    return float(best.x)
