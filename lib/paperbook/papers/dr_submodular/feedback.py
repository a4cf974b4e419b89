"""From a linear learner to an online algorithm for DR-submodular rewards, under any of five kinds of feedback.

Each object is an online algorithm: ``act`` is what is played, ``queries`` where the oracle is asked, ``update`` hears the
answers. They nest:

::

    OMBQ(OGD(K, (seeds,)), ExponentialDownClosed(), rng)                      # first order, one gradient a round
    SFTT(OMBQ(...), block, horizon, rng)                                      # semi-bandit: the query is what is played
    FOTZO(OMBQ(OGD(K.shrink(delta), ...), ...), delta, rng, two_point=True)   # two values a round
    FOTZO(OMBQ(...), delta, rng)                                              # one value a round
    SFTT(FOTZO(OMBQ(...), delta, rng), block, horizon, rng)                   # bandit: the value of what is played
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from paperbook.study import arguments as check

from .arrays import Array, Stream, integers, like, namespace, numpy_of, sphere, stream_for
from .functions import DRSubmodular
from .learners import OnlineLearner
from .wrappers import Wrapper


class Algorithm(ABC):
    """An online algorithm over a batch of independent copies.

    Attributes:
        oracle: what the queries are answered with: ``"gradient"`` or ``"value"``.
        base: the :class:`OMBQ` at the bottom.
        explores: whether some rounds play something else than :meth:`intended`.
        certified: whether the linear regret of the learner in `base` bounds the alpha-regret, as in every reduction here.
    """

    oracle: str
    base: OMBQ
    explores = False
    certified = True

    @abstractmethod
    def act(self) -> Array:
        """The point played this round, ``(*batch, d)``. Call it once a round, before :meth:`queries`."""

    @abstractmethod
    def queries(self) -> tuple[Array, ...]:
        """Points at which the oracle of this round's reward is asked; none, one or two arrays ``(*batch, d)``."""

    @abstractmethod
    def update(self, answers: tuple[Array, ...]) -> None:
        """Hear the answers to :meth:`queries`: gradients ``(*batch, d)`` or values ``(*batch)``."""

    @abstractmethod
    def calls(self) -> Any:
        """Oracle calls of the present round by each copy, a number or an array ``(*batch)``."""

    def intended(self) -> Array:
        """What would be played if nothing had to be explored; other than :meth:`act` only with :class:`SFTT`."""
        return self.act()

    def seen(self, f: DRSubmodular) -> DRSubmodular:
        """The reward f as the linear learner's coordinates see it (exact for quadratics where it is smoothed)."""
        return f


class OMBQ(Algorithm):
    """Online maximisation by quadratization, the reduction itself (Algorithm 2, T5).

    Plays h(x_t), asks one gradient at a random point and hands ``factor * gradient`` to the learner. For every learner its
    alpha-regret is at most beta times the learner's regret on these vectors, static, adaptive or dynamic, in expectation.

    Args:
        learner: any online linear learner.
        wrapper: a row of the table (T11).
        rng: stream of the random z, one for each copy and round.
        nodes: None for one random query; a number for that many quadrature nodes, whose average is g itself (no randomness
            left).
    """

    oracle = "gradient"

    def __init__(self, learner: OnlineLearner, wrapper: Wrapper, rng: Stream, nodes: int | None = None) -> None:
        wrapper.check_set(learner.K)
        self.learner, self.wrapper, self.rng = learner, wrapper, stream_for("rng", rng, learner.act())
        self.nodes = None if nodes is None else check.integer("nodes", nodes, 1)
        self.base = self

    def act(self) -> Array:
        """h(x_t)."""
        return self.wrapper.action(self.learner.act())

    def queries(self) -> tuple[Array, ...]:
        """One random point, or all nodes ``(nodes, *batch, d)``."""
        x = self.learner.act()
        if self.nodes is None:
            point, self._factor = self.wrapper.query(x, self.rng)
            return (point,)
        xp = namespace(x)
        z, w = self.wrapper.nodes(self.nodes)
        column = (-1,) + (1,) * x.ndim
        z, w = (xp.asarray(v, dtype=x.dtype, device=x.device) for v in (z.reshape(column), w.reshape(column)))
        self._factor = w * self.wrapper.factor(x, z)
        return (self.wrapper.point(x, z),)

    def update(self, answers: tuple[Array, ...]) -> None:
        """Hand the learner its linear gain."""
        (gradient,) = answers
        gain = self._factor * gradient
        self.learner.update(gain if self.nodes is None else gain.sum(0))

    def calls(self) -> int:
        """One, or the number of nodes."""
        return self.nodes or 1


@dataclass(frozen=True)
class ShrunkView:
    """f at point(u) = delta 1 + (1 - 2 delta) u, as a function of u in [0,1]^d: what zeroth-order feedback learns (T8).

    Non-negative and DR-submodular if f is: the map is affine, increasing and stays in the box.
    """

    f: DRSubmodular
    delta: float

    @property
    def dim(self) -> int:
        """Number of coordinates d."""
        return self.f.dim

    def point(self, u: Array) -> Array:
        """delta + (1 - 2 delta) u."""
        return self.delta + (1 - 2 * self.delta) * u

    def value(self, u: Array) -> Array:
        """f(point(u))."""
        return self.f.value(self.point(u))

    def grad(self, u: Array) -> Array:
        """(1 - 2 delta) grad f(point(u)), by the chain rule."""
        return (1 - 2 * self.delta) * self.f.grad(self.point(u))


def _called(algorithm: Any) -> str:
    """What a message calls an algorithm that does not fit."""
    nodes = getattr(getattr(algorithm, "base", None), "nodes", None)
    two = " with two points" if getattr(algorithm, "two_point", False) else ""
    return type(algorithm).__name__ + two + ("" if nodes is None else f" with {nodes} nodes")


class FOTZO(Algorithm):
    """First order to zeroth order: values at random points of a small sphere stand in for the gradient (Algorithm 4, T8).

    The algorithm inside works in u-coordinates, on ``K.shrink(delta)``. Where it asks for the gradient at u this asks for the
    value at point(u) + delta v with v uniform on the sphere, and answers (1 - 2 delta) (d / delta) (value - m) v: an unbiased
    gradient of u -> E f(point(u) + delta v). With two points the difference of the values at +v and -v, halved, takes the
    place of value - m.

    Args:
        algorithm: a first-order algorithm with one random query, whose learner lives on ``K.shrink(delta)``.
        delta: radius of the sphere, in (0, 1/2): that by which the set was shrunk.
        rng: stream of the directions v.
        two_point: two values of the same reward a round.
        baseline: with one point, subtract the mean m of the values heard in earlier rounds; that keeps the estimate unbiased.
    """

    oracle = "value"

    def __init__(self, algorithm: Algorithm, delta: float, rng: Stream, two_point: bool = False, baseline: bool = True) -> None:
        # blocks ask in some rounds only, and an algorithm of many learners asks in many points
        if not isinstance(algorithm, OMBQ) or algorithm.nodes is not None:
            got = _called(algorithm)
            raise ValueError(f"algorithm: expected a first-order algorithm with one random query a round, got {got}")
        self.delta = check.number("delta", delta, 0.0, 0.5, open_low=True, open_high=True)
        margin = algorithm.base.learner.K.margin
        if margin != self.delta:  # on another set the sphere leaves K, or K is not used to its border
            raise ValueError(f"delta: expected {margin:g}, by which the learner's set was shrunk, got {delta}")
        self.algorithm, self.base = algorithm, algorithm.base
        self.rng = stream_for("rng", rng, self.base.learner.act())
        self.two_point, self.baseline = two_point, baseline
        self._mean, self._heard = 0.0, 0

    def point(self, u: Array) -> Array:
        """From u-coordinates to the box: delta + (1 - 2 delta) u."""
        return self.delta + (1 - 2 * self.delta) * u

    def act(self) -> Array:
        """point(h(u_t))."""
        return self.point(self.algorithm.act())

    def queries(self) -> tuple[Array, ...]:
        """point(u) + delta v, and point(u) - delta v with two points."""
        (u,) = self.algorithm.queries()
        self._v = like(sphere(self.rng, *u.shape), u)
        centre = self.point(u)
        first = centre + self.delta * self._v
        return (first, centre - self.delta * self._v) if self.two_point else (first,)

    def update(self, answers: tuple[Array, ...]) -> None:
        """Turn values into the estimate of the gradient and hand it on."""
        if self.two_point:
            plus, minus = answers
            signal = (plus - minus) / 2
        else:
            (value,) = answers
            # OPEN(paper, FOTZO): the paper's estimate subtracts nothing; a mean of the past changes no expectation
            signal = value - self._mean if self.baseline else value
            self._heard += 1
            self._mean = self._mean + (value - self._mean) / self._heard
        dim = self._v.shape[-1]
        self.algorithm.update(((1 - 2 * self.delta) * dim / self.delta * signal[..., None] * self._v,))

    def calls(self) -> int:
        """One or two."""
        return 2 if self.two_point else 1

    def seen(self, f: DRSubmodular) -> DRSubmodular:
        """f in u-coordinates; its smoothing is left out, which for a quadratic changes a constant only."""
        return self.algorithm.seen(ShrunkView(f, self.delta))


class SFTT(Algorithm):
    """Semi-bandit or bandit feedback from full information: explore once a block (Algorithm 3, T7).

    Rounds come in blocks. In each block one round, uniformly random for each copy, plays the query point of the algorithm
    inside; all others play what it would play. At the end of the block it hears that one answer. A last block that is not
    whole is played without a query.

    Args:
        algorithm: full-information algorithm with at most one query a round.
        block: length L >= 1 of a block.
        horizon: T >= block.
        rng: stream of the positions.
    """

    explores = True

    def __init__(self, algorithm: Algorithm, block: int, horizon: int, rng: Stream) -> None:
        if isinstance(algorithm, SFTT):
            raise ValueError(f"algorithm: expected one that is not in blocks already, got {_called(algorithm)}")
        one = isinstance(algorithm, OMBQ | FOTZO) and algorithm.base.nodes is None
        if not one or getattr(algorithm, "two_point", False):
            raise ValueError("algorithm: expected one query a round; two values of the same reward cannot both be played; "
                             f"got {_called(algorithm)}")
        self.block = check.integer("block", block, 1)
        self.horizon = check.integer("horizon", horizon, self.block)
        self.algorithm, self.base, self.oracle = algorithm, algorithm.base, algorithm.oracle
        self.rng, self.t = stream_for("rng", rng, self.base.learner.act()), 0
        self._batch = tuple(algorithm.base.learner.batch)

    def act(self) -> Array:
        """The query point where this round was drawn, else what the algorithm inside plays.

        Raises:
            ValueError: the horizon is over: no block is left, and what followed would never be learned from.

        """
        if self.t >= self.horizon:
            raise ValueError(f"horizon: expected at most {self.horizon} rounds, got a further one; make a new algorithm")
        where = self.t % self.block
        if where == 0:
            whole = self.t + self.block <= self.horizon
            self._position = integers(self.rng, self.block, *self._batch) if whole else None
            self._exploit = self.algorithm.act()
            (self._explore,) = self.algorithm.queries() if whole else (None,)
            self._answer: Any = None
        self._mask = None if self._position is None else self._position == where
        if self._mask is None:
            return self._exploit
        return namespace(self._exploit).where(self._mask[..., None], self._explore, self._exploit)

    def intended(self) -> Array:
        """What the algorithm inside plays in this block."""
        return self._exploit

    def queries(self) -> tuple[Array, ...]:
        """The point played, if any copy explores this round; the answers of the other copies are not looked at."""
        return (self._explore,) if self._mask is not None and bool(self._mask.any()) else ()

    def update(self, answers: tuple[Array, ...]) -> None:
        """Keep the answer of the copies that explored; at the end of the block hand all of them on."""
        if answers:
            assert self._mask is not None
            mask = self._mask if self.oracle == "value" else self._mask[..., None]
            xp = namespace(answers[0])
            self._answer = xp.where(mask, answers[0], xp.zeros_like(answers[0]) if self._answer is None else self._answer)
        self.t += 1
        if self._position is not None and self.t % self.block == 0:
            self.algorithm.update((self._answer,))

    def calls(self) -> Any:
        """1 for copies that explore this round, else 0."""
        return 0 if self._mask is None else numpy_of(self._mask).astype(float)

    def seen(self, f: DRSubmodular) -> DRSubmodular:
        """As the algorithm inside sees it."""
        return self.algorithm.seen(f)
