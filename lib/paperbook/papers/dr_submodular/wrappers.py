r"""Wrappers: what turns the maximisation of DR-submodular functions into the maximisation of linear ones.

A class of functions on a set K is *upper-linearizable* if there are g, h, alpha, beta with

    alpha f(y) - f(h(x)) <= beta <g(f, x), y - x>    for all x, y in K.

In the four known cases g is an average of gradients, g(f, x) = E_z[factor(x, z) * grad f(point(x, z))], so one gradient at a
random point is an unbiased estimate of it. A wrapper holds exactly that: the law of z, the point, the factor, h, alpha and
beta (T11).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any

import numpy as np

from paperbook.study import arguments as check

from .arrays import Array, Stream, is_stream, like, namespace, numpy_of, uniform
from .functions import DRSubmodular, check_nonnegative

ONE_OVER_E = math.exp(-1)


@lru_cache(maxsize=64)
def _gauss_legendre(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on [0, 1]."""
    z, w = np.polynomial.legendre.leggauss(n)
    return (z + 1) / 2, w / 2


class Wrapper(ABC):
    """One row of the table of upper-linearizable classes (T11).

    Attributes:
        name: the class it is for.
        alpha: the ratio that is guaranteed, in (0, 1].
        beta: scale of the linear function, > 0.
    """

    name: str
    alpha: float
    beta: float

    @abstractmethod
    def action(self, x: Array) -> Array:
        """h(x), what is played, ``(..., d)``."""

    @abstractmethod
    def density(self, z: np.ndarray) -> np.ndarray:
        """Density of the law of z on [0, 1], at `z` ``(n,)``."""

    @abstractmethod
    def quantile(self, u: Array) -> Array:
        """Quantile function of the law of z, so that z = quantile(U) with U uniform."""

    @abstractmethod
    def point(self, x: Array, z: Any) -> Array:
        """Where the gradient is asked for; `z` has the batch shape of `x` with a last axis of 1, or is a number."""

    @abstractmethod
    def factor(self, x: Array, z: Any) -> Any:
        """What the gradient is multiplied by, coordinate by coordinate: an array like `x` or a number."""

    @abstractmethod
    def potential_weight(self, z: np.ndarray) -> np.ndarray:
        """Weight of f(point(x, z)) - f(point(0, .)) in the potential: density times factor over the Jacobian of the point."""

    def nodes(self, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
        """Gauss-Legendre nodes z ``(n,)`` and weights ``(n,)`` that integrate against the law of z; the weights sum to 1."""
        z, w = _gauss_legendre(check.integer("n", n, 1))
        return z.copy(), w * self.density(z)  # the nodes are kept for the next call

    def draw_z(self, rng: Stream, *shape: int) -> Array:
        """Independent draws of z, of the given shape."""
        return self.quantile(uniform(is_stream("rng", rng), *shape))

    def query(self, x: Array, rng: Stream) -> tuple[Array, Array]:
        """One random query (Algorithm 1): the point to ask the gradient at and the factor for it, z drawn for each row of `x`.

        ``E[factor * grad f(point)] = g(f, x)``; with 0 <= factor <= 1 the estimate is no longer than the gradient (T6).
        """
        z = like(self.draw_z(rng, *x.shape[:-1], 1), x)
        return self.point(x, z), self.factor(x, z)

    def linear_gain(self, f: DRSubmodular, x: Array, nodes: int = 40) -> Array:
        """g(f, x) ``(..., d)``, by quadrature with `nodes` gradients for each point; exact to rounding for smooth f."""
        z, weights = self.nodes(nodes)
        column = (-1,) + (1,) * x.ndim
        z, weights = like(z.reshape(column), x), like(weights.reshape(column), x)
        return (weights * self.factor(x, z) * f.grad(self.point(x, z))).sum(0)

    def potential(self, f: DRSubmodular, x: Array, nodes: int = 40) -> Array:
        """F_f(x) ``(...)`` with F_f(0) = 0, whose gradient is g(f, x)."""
        z, w = _gauss_legendre(check.integer("nodes", nodes, 1))
        column = (-1,) + (1,) * (x.ndim - 1)
        weights = like((w * self.potential_weight(z)).reshape(column), x)
        z = like(z.reshape((*column, 1)), x)
        return (weights * (f.value(self.point(x, z)) - f.value(self.point(0 * x, z)))).sum(0)

    def gap(self, f: DRSubmodular, x: Array, y: Array, nodes: int = 40) -> Array:
        """beta <g(f, x), y - x> - (alpha f(y) - f(h(x))), shape ``(...)``: the theorem says that it is never negative."""
        bound = self.beta * (self.linear_gain(f, x, nodes) * (y - x)).sum(-1)
        return bound - (self.alpha * f.value(y) - f.value(self.action(x)))

    def check(self, f: DRSubmodular, K: Any, rng: np.random.Generator | None = None) -> None:
        """Refuse a function and a set that the guarantee does not cover, as far as a check can tell.

        Raises:
            ValueError: dimensions that differ, f negative at a vertex of the box, a set without the property the row asks for.
        """
        if f.dim != K.dim:
            raise ValueError(f"f, K: expected the same dimension, got {f.dim} and {K.dim}")
        self.check_set(K)
        check_nonnegative(f, rng)

    def check_set(self, K: Any) -> None:  # noqa: B027 - not abstract: some rows take every convex set
        """Refuse a set for which h leaves K or the guarantee fails; by default every convex set is taken."""


class IdentityMonotone(Wrapper):
    """Row 1: monotone, gamma-weakly DR-submodular of curvature c over any convex set; h(x) = x and g = grad f.

    Also what plain gradient ascent does, so with a non-monotone f it is the method without a guarantee (T4).

    Args:
        gamma: in (0, 1]; 1 for DR-submodular functions.
        curvature: c in [0, 1]; 1 claims nothing, 0 says that f is linear.
    """

    def __init__(self, gamma: float = 1.0, curvature: float = 1.0) -> None:
        gamma = check.number("gamma", gamma, 0.0, 1.0, open_low=True)
        c = check.number("curvature", curvature, 0.0, 1.0)
        self.name = "monotone, curvature c"
        self.alpha, self.beta = gamma**2 / (1 + c * gamma**2), gamma / (1 + c * gamma**2)

    def action(self, x: Array) -> Array:
        """h(x) = x."""
        return x

    def density(self, z: np.ndarray) -> np.ndarray:
        """Uniform; the point does not depend on z."""
        return np.ones_like(z)

    def quantile(self, u: Array) -> Array:
        """z = u."""
        return u

    def point(self, x: Array, z: Any) -> Array:
        """x, whatever z is."""
        return x + 0 * z

    def factor(self, x: Array, z: Any) -> Any:
        """1."""
        return 1.0

    def potential_weight(self, z: np.ndarray) -> np.ndarray:
        """1: the potential is f itself, up to a constant."""
        return np.ones_like(z)

    def potential(self, f: DRSubmodular, x: Array, nodes: int = 40) -> Array:
        """f(x) - f(0)."""
        return f.value(x) - f.value(0 * x)

    def linear_gain(self, f: DRSubmodular, x: Array, nodes: int = 40) -> Array:
        """grad f(x): there is nothing to average."""
        return f.grad(x)


class BoostedMonotone(Wrapper):
    """Row 2: monotone, gamma-weakly DR-submodular over a convex set that contains 0; h(x) = x, alpha = 1 - e^-gamma.

    Args:
        gamma: in (0, 1].
    """

    def __init__(self, gamma: float = 1.0) -> None:
        self.gamma = check.number("gamma", gamma, 0.0, 1.0, open_low=True)
        self.name = "monotone, 0 in K"
        self.alpha = -math.expm1(-self.gamma)
        self.beta = self.alpha / self.gamma

    def action(self, x: Array) -> Array:
        """h(x) = x."""
        return x

    def density(self, z: np.ndarray) -> np.ndarray:
        """gamma e^{gamma (z - 1)} / (1 - e^-gamma)."""
        return self.gamma * np.exp(self.gamma * (z - 1)) / self.alpha

    def quantile(self, u: Array) -> Array:
        """log(1 + (e^gamma - 1) u) / gamma."""
        return namespace(u).log1p(math.expm1(self.gamma) * u) / self.gamma

    def point(self, x: Array, z: Any) -> Array:
        """z x."""
        return z * x

    def factor(self, x: Array, z: Any) -> Any:
        """1."""
        return 1.0

    def potential_weight(self, z: np.ndarray) -> np.ndarray:
        """Density over z: the Jacobian of z x is z."""
        return self.density(z) / z

    def check_set(self, K: Any) -> None:
        """Refuse a set without 0: the points z x would leave it."""
        if not bool(K.contains(np.zeros((1, K.dim)))[0]):
            raise ValueError(f"K: expected a set that contains 0 ({self.name}), got one that does not")


class AnchoredNonMonotone(Wrapper):
    """Row 3: non-monotone over any convex set, with an anchor u in it; h(x) = (x + u) / 2, alpha = (1 - max u) / 4.

    Args:
        u: anchor ``(d,)`` in [0, 1]; best the point of K with the least largest coordinate, which is 0 in a down-closed set
            (alpha = 1/4).
    """

    def __init__(self, u: Any) -> None:
        self.u = check.array("u", u, 0.0, 1.0, ndim=1)
        self.name = "non-monotone, any convex set"
        self.alpha, self.beta = (1 - float(self.u.max())) / 4, 3 / 8
        if self.alpha <= 0:
            raise ValueError(f"u: expected an anchor with all coordinates below 1 (else alpha is 0), got {self.u.tolist()}")

    def action(self, x: Array) -> Array:
        """h(x) = (x + u) / 2."""
        return (x + like(self.u, x)) / 2

    def density(self, z: np.ndarray) -> np.ndarray:
        """1 / (3 (1 - z/2)^3)."""
        return 1 / (3 * (1 - z / 2) ** 3)

    def quantile(self, u: Array) -> Array:
        """2 - 2 / sqrt(1 + 3 u): the distribution function is ((1 - z/2)^-2 - 1) / 3."""
        return 2 - 2 / (1 + 3 * u) ** 0.5

    def point(self, x: Array, z: Any) -> Array:
        """u + z (x - u) / 2."""
        u = like(self.u, x)
        return u + z * (x - u) / 2

    def factor(self, x: Array, z: Any) -> Any:
        """1."""
        return 1.0

    def potential_weight(self, z: np.ndarray) -> np.ndarray:
        """Density times 2/z: the Jacobian of the point is z/2."""
        return self.density(z) * 2 / z

    def check_set(self, K: Any) -> None:
        """Refuse a set without the anchor."""
        if self.u.shape != (K.dim,):
            raise ValueError(f"u: expected shape ({K.dim},), got {self.u.shape}")
        if not bool(K.contains(self.u[None])[0]):
            raise ValueError(f"u: expected an anchor in K, got {self.u.tolist()}, which is not")


class ExponentialDownClosed(Wrapper):
    """Row 4, the paper's: non-monotone over a down-closed set; h(x) = 1 - e^-x, alpha = 1/e, beta = 1 - 1/e (Theorem 1, T2)."""

    def __init__(self) -> None:
        self.name = "non-monotone, down-closed (Lu et al.)"
        self.alpha, self.beta = ONE_OVER_E, 1 - ONE_OVER_E

    def action(self, x: Array) -> Array:
        """h(x) = 1 - e^-x, coordinate by coordinate; at most x, so a down-closed set keeps it."""
        return -namespace(x).expm1(-x)

    def density(self, z: np.ndarray) -> np.ndarray:
        """e^{z - 1} / (1 - 1/e)."""
        return np.exp(z - 1) / self.beta

    def quantile(self, u: Array) -> Array:
        """log(1 + (e - 1) u)."""
        return namespace(u).log1p((math.e - 1) * u)

    def point(self, x: Array, z: Any) -> Array:
        """1 - e^{-z x}."""
        return -namespace(x).expm1(-z * x)

    def factor(self, x: Array, z: Any) -> Any:
        """e^{-z x}."""
        return namespace(x).exp(-z * x)

    def potential_weight(self, z: np.ndarray) -> np.ndarray:
        """Density over z: the Jacobian of 1 - e^{-z x} is z e^{-z x}."""
        return self.density(z) / z

    def check_set(self, K: Any) -> None:
        """Refuse a set that is not down-closed: 1 - e^-x may lie outside it (step (i))."""
        if not K.is_down_closed():
            raise ValueError("K: expected a down-closed set (y in K and 0 <= x <= y imply x in K), got one that is not")


def wrapper_named(name: str, dim: int) -> Wrapper:
    """The wrapper called ``"exponential"``, ``"anchored"`` (anchor 0), ``"boosted"`` or ``"identity"``."""
    check.choice("name", name, ("exponential", "anchored", "boosted", "identity"))
    if name == "anchored":
        return AnchoredNonMonotone(np.zeros(dim))
    return {"exponential": ExponentialDownClosed, "boosted": BoostedMonotone, "identity": IdentityMonotone}[name]()


def normalised_gap(wrapper: Wrapper, f: DRSubmodular, x: Array, y: Array, nodes: int = 40) -> np.ndarray:
    """:meth:`Wrapper.gap` over the scale max(1, |f(y)|, |f(h(x))|), so that functions of any size compare; a NumPy array."""
    scale = np.maximum(np.abs(numpy_of(f.value(y))), np.abs(numpy_of(f.value(wrapper.action(x)))))
    return numpy_of(wrapper.gap(f, x, y, nodes)) / np.maximum(1.0, scale)
