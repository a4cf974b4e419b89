"""Online linear optimisation: learners that see one linear gain a round and know nothing of submodularity.

A learner holds a batch of independent copies, so that all seeds and step sizes of a sweep are one tensor program. Everything
here maximises: after :meth:`OnlineLearner.act` returned x_t, :meth:`OnlineLearner.update` hears g_t, and the regret against y
is sum_t <g_t, y - x_t>.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from paperbook.study import arguments as check

from .arrays import Array, like, namespace


class OnlineLearner(ABC):
    """Base of the learners: the iterate, and the three sums that its regret needs.

    Args:
        K: the convex set of the iterates (module ``sets``).
        batch: leading axes: that many independent copies.
        x0: first iterate, broadcast to ``(*batch, d)``; by default the centre of K.
        like_array: an array whose kind, dtype and device the iterates take; NumPy float64 by default.

    Attributes:
        gain_sum: sum of the gains heard, ``(*batch, d)``.
        gain_dot: sum of <g_t, x_t>, ``(*batch)``.
        gain_square: sum of ||g_t||^2, ``(*batch)``.
    """

    def __init__(self, K: Any, batch: tuple[int, ...] = (), x0: Any = None, like_array: Array | None = None) -> None:
        if not isinstance(batch, tuple):
            raise TypeError(f"batch: expected a tuple of integers, got {type(batch).__name__} {batch!r}")
        self.K, self.batch = K, tuple(check.integer("batch", size, 1) for size in batch)
        reference = np.zeros(()) if like_array is None else like_array
        first = check.array("x0", K.centre() if x0 is None else x0)
        if first.shape[-1:] != (K.dim,) or first.shape[:-1] not in ((), self.batch):
            raise ValueError(f"x0: expected shape ({K.dim},) or {(*self.batch, K.dim)}, got {first.shape}")
        start = np.broadcast_to(first, (*self.batch, K.dim))
        inside = np.asarray(K.contains(start))
        if not inside.all():
            raise ValueError(f"x0: expected points of K, got {np.atleast_2d(start[~inside])[0].tolist()}")
        self._start = like(start.copy(), reference)
        self.reset()

    def reset(self) -> None:
        """Back to the first iterate; forget all gains."""
        self.x = self._start + 0
        self.gain_sum = 0 * self._start
        self.gain_dot = 0 * self._start[..., 0]
        self.gain_square = 0 * self._start[..., 0]

    def act(self) -> Array:
        """The iterate x_t, ``(*batch, d)``, a point of K."""
        return self.x

    def update(self, g: Array) -> None:
        """Hear the gain g_t ``(*batch, d)`` of the last iterate and move."""
        if tuple(getattr(g, "shape", ())) != tuple(self.x.shape):
            came = f"shape {tuple(g.shape)}" if hasattr(g, "shape") else f"{type(g).__name__} {g!r}"
            raise ValueError(f"g: expected an array of shape {tuple(self.x.shape)}, got {came}")
        self.gain_sum = self.gain_sum + g
        self.gain_dot = self.gain_dot + (g * self.x).sum(-1)
        self.gain_square = self.gain_square + (g * g).sum(-1)
        self._step(g)

    @abstractmethod
    def _step(self, g: Array) -> None:
        """Set the next iterate."""

    def regret(self) -> Array:
        """max_{y in K} sum_t <g_t, y - x_t> so far, ``(*batch)``; exact, by the linear oracle of K."""
        return (self.gain_sum * self.K.lmo(self.gain_sum)).sum(-1) - self.gain_dot


class OGD(OnlineLearner):
    """Projected online gradient ascent.

    Args:
        K: with a projection.
        batch: leading axes.
        step: ``"adagrad"``: D / sqrt(sum_{s <= t} ||g_s||^2), which needs no bound on the gains and has regret <= 1.5 D
            sqrt(sum_t ||g_t||^2) on every sequence (T5); a number or an array ``(*batch, 1)``: that step in every round, best
            D / (G sqrt T), with regret <= D G sqrt T.
        x0: first iterate.
        like_array: kind of the arrays.
    """

    def __init__(
        self, K: Any, batch: tuple[int, ...] = (), step: Any = "adagrad", x0: Any = None, like_array: Array | None = None
    ) -> None:
        super().__init__(K, batch, x0, like_array)
        if isinstance(step, str):
            check.choice("step", step, ("adagrad",))
        elif np.ndim(step) == 0:
            check.number("step", step, 0.0, open_low=True)
        else:
            steps = check.array("step", step, 0.0, open_low=True)
            if steps.shape != (*self.batch, 1):  # one that broadcasts along the coordinates would be no step size
                raise ValueError(f"step: expected a number or shape {(*self.batch, 1)}, got {steps.shape}")
            step = like(steps, self.x)
        self.step = step

    def _step(self, g: Array) -> None:
        if isinstance(self.step, str):
            xp = namespace(g)
            total = self.gain_square[..., None]
            # before the first gain that is not zero there is nowhere to go
            self.x = self.K.project(self.x + self.K.diameter * g / xp.where(total > 0, total, 1.0) ** 0.5)
        else:
            self.x = self.K.project(self.x + self.step * g)


class SOOGD(OnlineLearner):
    """Online gradient ascent with a separation oracle in place of the projection (after Garber and Kretzu 2022).

    After the gradient step the point walks back: as long as the oracle returns a unit vector w that separates it from K, it
    moves by delta r against w, where r is the radius of a ball inside K. No move increases its distance to any point of the
    shrunk set (1 - delta) K + delta c, so every interval of rounds has regret O(sqrt T): the regret is adaptive. All in all
    the oracle is called O(T) times.

    Args:
        K: with ``separate`` and ``inner_ball``.
        batch: leading axes.
        horizon: T >= 1; delta = T^{-1/2}.
        gain_bound: G > 0, a bound on ||g_t||.
        step: eta; by default D / (G sqrt T).
        x0: first iterate.
        like_array: kind of the arrays.

    Attributes:
        oracle_calls: how often each copy asked the oracle, ``(*batch)``.
    """

    def __init__(
        self, K: Any, batch: tuple[int, ...] = (), *, horizon: int, gain_bound: float, step: float | None = None, x0: Any =
        None,
        like_array: Array | None = None,
    ) -> None:  # fmt: skip
        T = check.integer("horizon", horizon, 1)
        self.gain_bound = G = check.number("gain_bound", gain_bound, 0.0, open_low=True)
        self.delta, self.radius = T**-0.5, K.inner_ball()[1]
        # OPEN(paper, SO-OGD): the constants of step and shrinkage; these balance the two terms of the regret (page 5)
        self.step = K.diameter / (G * T**0.5) if step is None else check.number("step", step, 0.0, open_low=True)
        super().__init__(K, batch, x0, like_array)

    def reset(self) -> None:
        """Back to the first iterate; forget gains and calls."""
        super().reset()
        self.oracle_calls = 0 * self.gain_dot

    def _step(self, g: Array) -> None:
        # the walk back goes delta r at a time: some excess voids the bound on regret only, a thousandfold takes forever
        longest = float(namespace(g).max((g * g).sum(-1))) ** 0.5
        if not longest <= 1000 * self.gain_bound:
            raise ValueError(f"g: expected norms within gain_bound = {self.gain_bound:g}, got {longest:g}")
        y = self.x + self.step * g
        active = self.gain_dot == self.gain_dot  # all True, in the kind of the arrays
        while True:
            w = self.K.separate(y)
            self.oracle_calls = self.oracle_calls + active
            active = active & ((w * w).sum(-1) > 0)
            if not bool(active.any()):
                break
            y = y - self.delta * self.radius * w  # w is 0 for copies that are inside
        self.x = y


class ImprovedAder(OnlineLearner):
    """Experts with step sizes on a geometric grid, averaged by exponential weights (Zhang et al. 2018).

    Its dynamic regret is O(sqrt(T (1 + P_T))), with the constants of :meth:`bound`. All experts hear the same linear gain, so one
    gradient a round serves all of them.

    Args:
        K: with a projection.
        batch: leading axes.
        horizon: T >= 1.
        gain_bound: G > 0, a bound on ||g_t||.
        x0: first iterate of every expert.
        like_array: kind of the arrays.
    """

    def __init__(
        self, K: Any, batch: tuple[int, ...] = (), *, horizon: int, gain_bound: float, x0: Any = None, like_array: Array |
        None = None
    ) -> None:
        self.horizon = T = check.integer("horizon", horizon, 1)
        self.gain_bound = G = check.number("gain_bound", gain_bound, 0.0, open_low=True)
        D = K.diameter
        self.experts = math.ceil(0.5 * math.log2(1 + 4 * T / 7)) + 1
        i = np.arange(1, self.experts + 1)
        self.steps = 2.0 ** (i - 1) * (D / G) * math.sqrt(7 / (2 * T))
        self._prior = (1 + 1 / self.experts) / (i * (i + 1))
        self.rate = math.sqrt(2 / (T * G**2 * D**2))
        super().__init__(K, batch, x0, like_array)

    def reset(self) -> None:
        """All experts back to the first iterate, weights back to the prior."""
        super().reset()
        ones = (1,) * len(self.batch)
        self._each = self._start[None] + like(np.zeros((self.experts, *ones, 1)), self._start)
        self._log_weights = like(np.log(self._prior).reshape(-1, *ones), self._start) + 0 * self.gain_dot
        self._eta = like(self.steps.reshape(-1, *ones, 1), self._start)

    def weights(self) -> Array:
        """Weights of the experts, ``(experts, *batch)``; they sum to 1 along the first axis."""
        xp = namespace(self._log_weights)
        w = xp.exp(self._log_weights - xp.max(self._log_weights, axis=0))
        return w / w.sum(0)

    def _step(self, g: Array) -> None:
        self._log_weights = self._log_weights + self.rate * (g * (self._each - self.x)).sum(-1)
        self._each = self.K.project(self._each + self._eta * g)
        self.x = (self.weights()[..., None] * self._each).sum(0)

    def bound(self, path_length: Any) -> Any:
        """Bound on the dynamic regret against paths of length P_T: the best expert's regret and the price of finding it."""
        T, G, D = self.horizon, self.gain_bound, self.K.diameter
        P = check.array("path_length", path_length, 0.0)
        k = np.floor(0.5 * np.log2(1 + 4 * P / (7 * D))) + 1
        return 0.75 * G * np.sqrt(2 * T * (7 * D**2 + 4 * D * P)) + 0.5 * G * D * math.sqrt(2 * T) * (1 + 2 * np.log(k + 1))
