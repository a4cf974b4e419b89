"""Victims: least-squares value iteration with optimism (LSVI-UCB), and with constant exploration; B copies learn at once.

With finitely many states the regression needs no list of transitions. For every step h the learner keeps the Gram matrix
Lambda_h = lam I + sum phi phi', its inverse, b_h = sum phi r and C_h = sum phi 1[s'], a matrix (d, S). Then
w_h = Lambda_h^{-1} (b_h + C_h V_{h+1}), exactly, whatever the number of episodes: the cost of one does not depend on it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from paperbook.papers.reward_poisoning.mdp import NORM_TOLERANCE, BoolArray, FloatArray, IntArray
from paperbook.study.arguments import array, choice, generator, integer, number

REFACTOR = 1000  # episodes between exact inversions: rank-one updates add about one rounding error each


class LSVIUCB:
    """LSVI-UCB in an episodic linear MDP: Q_h = min(<phi, w_h> + bonus ||phi||_{Lambda^{-1}}, rmax (H - h + 1)), h from 1.

    One episode: `plan`, then for h = 0..H-1 `act` and `observe`. Greedy; the first of equal actions. With the poison of T3 the
    rewards may be negative, hence rmax = sqrt(d) (our choice: the bound on |<phi, theta>| under the cap).

    Args:
        phi: features (S, A, d), norms at most 1, for all copies; or (B, S, A, d), a copy each.
        horizon: H.
        lam: ridge of the Gram matrices, positive.
        bonus: factor of the width, at least 0.
        rmax: largest reward that is thought possible, positive, or "sqrt_d".
        batch: B where `phi` is shared.

    Raises:
        TypeError, ValueError: on kinds, shapes and ranges.
    """

    def __init__(
        self, phi: ArrayLike, horizon: int, *, lam: float = 1.0, bonus: float = 0.3, rmax: float | str = "sqrt_d",
        batch: int | None = None,
    ) -> None:  # fmt: skip
        features = array("phi", phi)
        if features.ndim not in (3, 4):
            raise ValueError(f"phi: expected shape (S, A, d) or (B, S, A, d), got {features.shape}")
        norm = float(np.linalg.norm(features, axis=-1).max())
        if norm > 1 + NORM_TOLERANCE:
            raise ValueError(f"phi: expected norms of at most 1, got {norm:.6g}")
        if features.ndim == 3:
            features = features[None]
        elif batch is not None and batch != len(features):
            raise ValueError(f"batch: expected {len(features)}, the copies of phi, got {batch}")
        self.batch = integer("batch", len(features) if batch is None else batch, 1)
        self.horizon = integer("horizon", horizon, 1)
        self.lam = number("lam", lam, 0, open_low=True)
        self.bonus = number("bonus", bonus, 0)
        _, self.states, self.actions, self.dim = features.shape
        if isinstance(rmax, str):
            choice("rmax", rmax, ("sqrt_d",))
        self.rmax = self.dim**0.5 if isinstance(rmax, str) else number("rmax", rmax, 0, open_low=True)
        B, H, S, A, d = self.batch, self.horizon, self.states, self.actions, self.dim
        self._phi = np.ascontiguousarray(features.reshape(-1, S * A, d))  # (1 or B, SA, d)
        self._phi_t = np.ascontiguousarray(self._phi.transpose(0, 2, 1))[:, None]  # (1 or B, 1, d, SA)
        self._rows = np.arange(B)
        self._phi_rows = self._rows[:, None] if len(self._phi) > 1 else 0
        self._steps = np.arange(H)
        self._gram = np.broadcast_to(self.lam * np.eye(d), (B, H, d, d)).copy()
        self._moment = np.zeros((B, H, d))
        self._next = np.zeros((B, H, S, d))  # C_h, transposed: the row of a next state is contiguous
        self._invert()
        self._q = np.zeros((B, H, S, A))
        self._greedy = np.zeros((B, H, S), dtype=np.int64)
        self._pending = np.zeros((3, B, H), dtype=np.int64)  # state, action, next state
        self._reward = np.zeros((B, H))
        self._step = 0
        self._planned = False
        self.episodes = 0

    @property
    def q(self) -> FloatArray:
        """The optimistic Q_h(s,a) of the last `plan` (B, H, S, A), a copy."""
        return self._q.copy()

    @property
    def greedy(self) -> IntArray:
        """The greedy policy of the last `plan` (B, H, S), a copy."""
        return self._greedy.copy()

    def plan(self) -> None:
        """Take in the episode that was observed and solve backwards for the next policy.

        Raises:
            RuntimeError: in the middle of an episode.
            ValueError: states or actions out of range, or rewards that are not finite, in what was observed.
        """
        if self._step not in (0, self.horizon):
            raise RuntimeError(f"plan: expected a finished episode of {self.horizon} steps, got {self._step} steps")
        if self._step:
            self._take_in()
        width = self.bonus * np.sqrt(self._square) if self.bonus else None
        value = None
        for h in range(self.horizon - 1, -1, -1):
            moment = self._moment[:, h, :, None]
            if value is not None:
                moment = moment + self._transposed[:, h] @ value
            q = (self._phi @ (self._inverse[:, h] @ moment))[..., 0]  # (B, SA)
            if width is not None:
                q += width[:, h]
            np.minimum(q, self.rmax * (self.horizon - h), out=q)
            table = q.reshape(self.batch, self.states, self.actions)
            self._q[:, h] = table
            table.argmax(axis=2, out=self._greedy[:, h])
            value = table.max(axis=2)[..., None]
        self._step, self._planned = 0, True

    def act(self, h: int, s: ArrayLike) -> IntArray:
        """Actions (B,) at step h = 0..H-1 in the states `s` (B,).

        Raises:
            RuntimeError: before the first `plan`.
            ValueError: a shape, state or step out of range.
        """
        states = np.asarray(s)
        if not self._planned:
            raise RuntimeError("act: expected a call of plan before, got none")
        if states.shape != (self.batch,) or states.min() < 0 or states.max() >= self.states or not 0 <= h < self.horizon:
            raise ValueError(
                f"h, s: expected a step in 0..{self.horizon - 1} and {self.batch} states in 0..{self.states - 1}, got {h}, {s!r}"
            )
        return self._greedy[self._rows, h, states]

    def observe(self, h: int, s: ArrayLike, a: ArrayLike, r: ArrayLike, s2: ArrayLike) -> None:
        """Remember the step h of every copy: states, actions, delivered rewards and next states, (B,) each. `plan` checks them.

        Raises:
            RuntimeError: before `plan`, which begins an episode.
            TypeError: states or actions that are not integers.
            ValueError: a step that is not the next one.
        """
        if not self._planned or self._step == self.horizon:
            raise RuntimeError("observe: expected a call of plan before each episode, got none")
        if h != self._step:
            raise ValueError(f"h: expected step {self._step}, got {h}")
        row = np.array((s, a, s2))  # of one kind: anything but integers shows
        if row.dtype.kind not in "iu":
            raise TypeError(f"s, a, s2: expected integers, got dtype {row.dtype}")
        self._pending[:, :, h] = row
        self._reward[:, h] = r
        self._step += 1

    def _take_in(self) -> None:
        s, a, s2 = self._pending
        for name, value, limit in (("s", s, self.states), ("a", a, self.actions), ("s2", s2, self.states)):
            if value.min() < 0 or value.max() >= limit:
                raise ValueError(f"{name}: expected values in 0..{limit - 1}, got {value.min()}..{value.max()}")
        if not np.isfinite(self._reward).all():
            raise ValueError("r: expected finite rewards, got some that are not")
        x = self._phi[self._phi_rows, s * self.actions + a]  # (B, H, d)
        self._gram += x[..., :, None] * x[..., None, :]
        self._moment += x * self._reward[..., None]
        self._next[self._rows[:, None], self._steps, s2] += x
        self.episodes += 1
        if self.episodes % REFACTOR == 0:
            self._invert()
            return
        u = (self._inverse @ x[..., None])[..., 0]
        u /= np.sqrt(1 + (x * u).sum(axis=-1, keepdims=True))  # Sherman-Morrison
        self._inverse -= u[..., :, None] * u[..., None, :]
        change = (u[:, :, None] @ self._phi_t)[:, :, 0]  # (B, H, SA)
        self._square -= change * change
        np.maximum(self._square, 0, out=self._square)

    def _invert(self) -> None:
        self._inverse = np.linalg.inv(self._gram)
        left = self._phi[:, None] @ self._inverse  # (B, H, SA, d)
        self._square = np.einsum("bhxd,bxd->bhx", left, np.broadcast_to(self._phi, (self.batch, *self._phi.shape[1:])))
        self._transposed = self._next.swapaxes(2, 3)  # a view


class EpsilonGreedyLSVI(LSVIUCB):
    """Least-squares value iteration that plays a uniform action with constant probability: not no-regret (T8c).

    Args:
        phi, horizon, lam, rmax, batch: as `LSVIUCB`; there is no bonus.
        epsilon: probability of a uniform action, in [0, 1], at every step.
        rng: source of the exploration.

    Raises:
        TypeError, ValueError: on kinds, shapes and ranges.
    """

    def __init__(
        self, phi: ArrayLike, horizon: int, *, epsilon: float, rng: np.random.Generator, lam: float = 1.0,
        rmax: float | str = "sqrt_d", batch: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(phi, horizon, lam=lam, bonus=0.0, rmax=rmax, batch=batch)
        self.epsilon = number("epsilon", epsilon, 0, 1)
        self._rng = generator("rng", rng)

    def act(self, h: int, s: ArrayLike) -> IntArray:
        """Actions (B,): uniform with probability `epsilon`, else greedy; errors as `LSVIUCB.act`."""
        greedy = super().act(h, s)
        explores: BoolArray = self._rng.random(self.batch) < self.epsilon
        return np.where(explores, self._rng.integers(self.actions, size=self.batch), greedy)
