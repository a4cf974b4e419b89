r"""Synthetic black-box regression: X uniform on [0,1]^d, f_0 exactly f* - delta * shape, the shape of unit L2 norm.

Shapes are pure functions of the inputs; they take NumPy arrays or torch tensors of shape (..., d) and return (...).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paperbook.study import arguments as check
from paperbook.study.arguments import FloatArray

from .rates import bump_constant

Shape = Callable[[Any], Any]
_SHAPES = ("cos", "weierstrass", "bumps")


def namespace(x: Any) -> Any:
    """The array module `x` belongs to: torch for its tensors, numpy for the rest. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else np


def cosine(X: Any, frequency: int = 1) -> Any:
    """prod_j sqrt(2) cos(pi frequency x_j), `X` (..., d): unit L2 norm on [0,1]^d for every integer `frequency` >= 1."""
    return (math.sqrt(2.0) * namespace(X).cos(math.pi * frequency * X)).prod(-1)


def weierstrass(X: Any, beta: float, terms: int = 12) -> Any:
    """prod_j w(x_j), w(x) = sum_{k < terms} 2^(-k beta) cos(2^k pi x) over its norm; `X` (..., d), beta > 0.

    The cosines are orthogonal with squared norm 1/2, so ||w||^2 = sum 4^(-k beta) / 2. Smoothness beta, rough at every scale
    down to 2^-terms.
    """
    xp = namespace(X)
    total = xp.zeros_like(X)
    for k in range(terms):
        total = total + 2.0 ** (-k * beta) * xp.cos(2.0**k * math.pi * X)
    return (total / math.sqrt(0.5 * sum(4.0 ** (-k * beta) for k in range(terms)))).prod(-1)


def bump(U: Any, beta: float) -> Any:
    """The bump psi of S2 on the unit cube, `U` (..., d) in [0,1]: see `rates.bump_constant`, which is its squared L2 norm."""
    bump_constant(beta, U.shape[-1])  # refuses the classes without a bump
    xp = namespace(U)
    if beta <= 1:
        distance = xp.minimum(U, 1.0 - U).clip(0.0)
        distance = distance.min(-1) if xp is np else distance.amin(-1)
        return 2.0 ** (beta - 1.0) * distance**beta
    u = xp.minimum(U, 1.0 - U).clip(0.0)[..., 0]  # mirrored at 1/2
    scale = 2.0 ** (beta - 2.0) / beta
    return scale * xp.where(u <= 0.25, u**beta, 2.0 * 0.25**beta - (0.5 - u).clip(0.0) ** beta)


def signed_bumps(X: Any, signs: Any, beta: float) -> Any:
    """m^d disjoint bumps with the given signs, scaled to unit L2 norm; `X` (..., d) in [0,1], `signs` (m,)*d of +1 and -1.

    Their Hölder constant is m^beta / c_psi, so delta * shape lies in the ball of constant L iff delta <= c_psi L m^(-beta).
    """
    m, d = signs.shape[0], X.shape[-1]
    xp = namespace(X)
    scaled = m * X
    cell = xp.floor(scaled).clip(0, m - 1)
    index = tuple(c.astype(np.int64) if xp is np else c.long() for c in (cell[..., j] for j in range(d)))
    return signs[index] * bump(scaled - cell, beta) / math.sqrt(bump_constant(beta, d))


def residual_shape(
    shape: str,
    beta: float,
    d: int,
    *,
    frequency: int = 1,
    n_bumps: int = 8,
    active: int | None = None,
    rng: np.random.Generator | None = None,
) -> Shape:
    """A residual shape of unit L2 norm on [0,1]^d: a callable (..., d) -> (...) of the first `active` coordinates (default all).

    "cos" uses `frequency` >= 1 half-waves an axis; "weierstrass" has smoothness `beta`; "bumps" has `n_bumps` an axis with
    signs drawn from `rng` (needed for it alone). ValueError or TypeError names what is wrong.
    """
    check.choice("shape", shape, _SHAPES)
    beta, d = check.number("beta", beta, 0.0, open_low=True), check.integer("d", d, 1)
    used = d if active is None else check.integer("active", active, 1, d)
    if shape == "cos":
        frequency = check.integer("frequency", frequency, 1)
        return lambda X: cosine(X[..., :used], frequency)
    if shape == "weierstrass":
        return lambda X: weierstrass(X[..., :used], beta)
    n_bumps = check.integer("n_bumps", n_bumps, 1)
    bump_constant(beta, used)
    if n_bumps**used > 2**22:
        raise ValueError(f"n_bumps: expected n_bumps**active <= {2**22}, got {n_bumps}**{used}")
    signs = check.generator("rng", rng).choice(np.array([-1.0, 1.0]), size=(n_bumps,) * used)

    def bumps(X: Any) -> Any:
        xp = namespace(X)
        return signed_bumps(X[..., :used], signs if xp is np else xp.as_tensor(signs, device=X.device), beta)

    return bumps


def default_truth(X: FloatArray) -> FloatArray:
    """f*(x) = d^(-1/2) sum_j [2 sin(6 pi x_j) + x_j], `X` (..., d): rougher than a smooth residual, so f_0 is worth having."""
    return np.asarray((2.0 * np.sin(6.0 * math.pi * X) + X).sum(-1) / math.sqrt(X.shape[-1]))


@dataclass(frozen=True)
class BlackBoxRegression:
    """A draw of the synthetic problem: `X` (n, d) uniform, `y` (n,) = f*(X) + sigma * noise; callables take (..., d) arrays.

    `f_star`, `f_0`, `residual` satisfy f_0 = f_star - residual and ||residual|| = `delta` in L2 of the uniform law.
    """

    X: FloatArray
    y: FloatArray
    f_star: Callable[[FloatArray], FloatArray]
    f_0: Callable[[FloatArray], FloatArray]
    residual: Callable[[FloatArray], FloatArray]
    delta: float
    sigma: float


def make_black_box_regression(
    n: int,
    d: int,
    delta: float,
    shape: str = "cos",
    beta: float = 1.0,
    sigma: float = 0.5,
    rng: np.random.Generator | None = None,
    *,
    truth: Callable[[FloatArray], FloatArray] | None = None,
    frequency: int = 1,
    n_bumps: int = 8,
    active: int | None = None,
) -> BlackBoxRegression:
    """Draw n rows of the synthetic study (simulated; honest because delta is the axis and no learner sees delta or the shape).

    `n` >= 1, `d` >= 1, `delta` >= 0, `sigma` >= 0, `rng` a numpy Generator (required), `truth` replaces `default_truth`;
    the rest goes to `residual_shape`. With "bumps" the signs are drawn first: one generator state, one residual.
    """
    n, d = check.integer("n", n, 1), check.integer("d", d, 1)
    delta, sigma = check.number("delta", delta, 0.0), check.number("sigma", sigma, 0.0)
    generator = check.generator("rng", rng)
    if truth is not None and not callable(truth):
        raise TypeError(f"truth: expected a callable or None, got {type(truth).__name__}")
    unit = residual_shape(shape, beta, d, frequency=frequency, n_bumps=n_bumps, active=active, rng=generator)
    f_star = default_truth if truth is None else truth

    def residual(points: FloatArray) -> FloatArray:
        return np.asarray(delta * unit(points))

    def f_0(points: FloatArray) -> FloatArray:
        return f_star(points) - residual(points)

    X = generator.random((n, d))
    y = f_star(X) + sigma * generator.standard_normal(n)
    return BlackBoxRegression(X, y, f_star, f_0, residual, delta, sigma)
