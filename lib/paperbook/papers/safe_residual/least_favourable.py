r"""The least favourable residuals of S2: bumps with random signs on a designed grid, where the Bayes rule is known exactly.

e = sum_j epsilon_j a psi_j(x) + sigma * noise with independent signs epsilon_j. The bumps do not overlap, so <psi_j, e> is
sufficient for epsilon_j, its posterior mean is tanh(a <psi_j, e> / sigma^2), and the Bayes risk is A^2 mmse(s).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from paperbook.study import arguments as check
from paperbook.study.arguments import FloatArray

from .rates import bpsk_mmse, bump_constant, lower_bound_resolution
from .synthetic import bump


def posterior_mean_sign(statistic: ArrayLike, amplitude: float, sigma: float) -> FloatArray:
    """E[epsilon | e] = tanh(a <psi, e> / sigma^2) for the sufficient statistic <psi, e> (any shape), height `amplitude` a >=
    0."""
    amplitude, sigma = check.number("amplitude", amplitude, 0.0), check.number("sigma", sigma, 0.0, open_low=True)
    return np.tanh(amplitude * check.array("statistic", statistic) / sigma**2)[()]


@dataclass(frozen=True)
class LeastFavourable:
    """Monte Carlo of the least favourable problem: `m` bumps an axis, `n` design rows used, `energy` A^2, `snr` s of each bump,
    `predicted` = A^2 mmse(s), and `risks`: rule -> (reps,) squared L2 distances for "bayes", "linear", "sign" and "black_box"."""

    m: int
    n: int
    energy: float
    snr: float
    predicted: float
    risks: dict[str, FloatArray]


def least_favourable(
    n: int,
    delta: float,
    sigma: float,
    L: float,
    beta: float,
    d: int,
    reps: int,
    rng: np.random.Generator,
    *,
    m: int | None = None,
) -> LeastFavourable:
    """Simulate S2 and apply four rules to the same data; every average over signs is at least `predicted`.

    `n` >= 1, `delta`, `sigma`, `L` > 0, class as in `rates.bump_constant`; `m` None maximises the lower bound. The design is a
    grid of midpoints, round((n/m^d)^(1/d)) >= 1 an axis in each cell, so the rows used (`.n`) differ a little from `n`; `snr`
    is that of the design itself, a^2 sum psi^2(x_i) / sigma^2. Rules: "bayes" tanh; "linear" the best linear one, T/(1+s) with
    T the statistic scaled to mean s; "sign" decides hard; "black_box" keeps f_0 (risk A^2). Memory and cost O(reps n), in
    batches.
    """
    check.generator("rng", rng)
    n, reps, d = check.integer("n", n, 1), check.integer("reps", reps, 1), check.integer("d", d, 1)
    delta, sigma = check.number("delta", delta, 0.0, open_low=True), check.number("sigma", sigma, 0.0, open_low=True)
    L = check.number("L", L, 0.0, open_low=True)
    constant = bump_constant(beta, d)
    m = int(lower_bound_resolution(n, delta, sigma, L, beta, d)) if m is None else check.integer("m", m, 1)
    bumps = m**d
    energy = min(delta**2, constant * L**2 * m ** (-2.0 * beta))
    amplitude = math.sqrt(energy / constant)  # ||sum_j epsilon_j a psi_j||^2 = a^2 c_psi^2
    axis_rows = max(1, round((n / bumps) ** (1 / d)))
    midpoints = (np.arange(axis_rows) + 0.5) / axis_rows
    points = np.stack([g.reshape(-1) for g in np.meshgrid(*([midpoints] * d), indexing="ij")], axis=-1)
    profile = bump(points, beta)  # the design repeats in every cell
    snr = amplitude**2 * float(profile @ profile) / sigma**2
    parts: dict[str, list[FloatArray]] = {rule: [] for rule in ("bayes", "linear", "sign", "black_box")}
    per_batch = max(1, 2**19 // (bumps * profile.size))
    for start in range(0, reps, per_batch):
        batch = min(per_batch, reps - start)
        signs = rng.choice(np.array([-1.0, 1.0]), size=(batch, bumps))
        e = amplitude * signs[..., None] * profile + sigma * rng.standard_normal((batch, bumps, profile.size))
        statistic = e @ profile
        scaled = amplitude * statistic / sigma**2
        guesses = {
            "bayes": posterior_mean_sign(statistic, amplitude, sigma),
            "linear": scaled / (1.0 + snr),
            "sign": np.sign(scaled),
            "black_box": np.zeros_like(scaled),
        }
        for rule, guess in guesses.items():
            parts[rule].append(energy * ((signs - guess) ** 2).mean(axis=1))
    risks = {rule: np.concatenate(group) for rule, group in parts.items()}
    return LeastFavourable(m, bumps * profile.size, energy, snr, energy * float(bpsk_mmse(snr)), risks)
