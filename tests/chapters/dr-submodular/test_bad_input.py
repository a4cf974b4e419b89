"""Wrong input: the message begins with the variable's name and says what came and what was expected; nothing is written to."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from paperbook.papers.dr_submodular import arrays, baselines, functions, play, wrappers
from paperbook.papers.dr_submodular.baselines import MetaFrankWolfe
from paperbook.papers.dr_submodular.feedback import FOTZO, OMBQ, SFTT
from paperbook.papers.dr_submodular.functions import (
    CutExtension,
    LambdaDR,
    QuadraticDR,
    RevenueExtension,
    Smoothed,
    SoftmaxDPP,
)
from paperbook.papers.dr_submodular.learners import OGD, SOOGD, ImprovedAder
from paperbook.papers.dr_submodular.play import Fixed, History, Pool, Segments
from paperbook.papers.dr_submodular.sets import BudgetBox, Polytope

NAN, INF = math.nan, math.inf
RNG = np.random.default_rng(0)
BOX, SLAB = BudgetBox(2, 1), Polytope([[-1.0, -1.0]], [-0.5])
TRAP = functions.trap()
FAMILY = QuadraticDR.random(2, np.random.default_rng(1), batch=(3,))
OURS = wrappers.ExponentialDownClosed()
H, LOW = np.array([[0.0, -1.0], [-1.0, 0.0]]), np.array([1.0, 0.5])
PAIR = np.array([[0.0, 0.5], [0.5, 0.0]])
HISTORY = History(np.zeros((3, 2)), np.zeros(2), np.zeros(2), None, np.zeros(2), np.zeros(2), None, np.zeros((2, 2)))


def changed(a: np.ndarray, at: Any, value: float) -> np.ndarray:
    out = a.copy()
    out[at] = value
    return out


def first_order() -> OMBQ:
    return OMBQ(OGD(BOX.shrink(0.1)), OURS, RNG)


def stream_of(value: Any) -> str:
    return f"rng: expected a numpy.random.Generator or a torch.Generator, got {value}"


FUNCTIONS = [
    (QuadraticDR, ([[0.0]], LOW, 0.0), TypeError, "H: expected an array, got list [[0.0]]"),
    (QuadraticDR, (H, 1.0, 0.0), TypeError, "h: expected an array, got float 1.0"),
    (QuadraticDR, (H[:, :1], LOW, 0.0), ValueError, "H, h: expected (..., d, d) and (..., d), got (2, 1) and (2,)"),
    (QuadraticDR, (H, np.zeros(3), 0.0), ValueError, "H, h: expected (..., d, d) and (..., d), got (2, 2) and (3,)"),
    (QuadraticDR, (H, np.zeros((1, 2)), 0.0), ValueError, "H, h: expected (..., d, d) and (..., d), got (2, 2) and (1, 2)"),
    (QuadraticDR, (H, LOW, np.zeros(2)), ValueError, "c: expected a number or shape (), got (2,)"),
    (QuadraticDR, (changed(H, 0, NAN), LOW, 0.0), ValueError, "H: expected finite numbers, got nan"),
    (QuadraticDR, (H, changed(LOW, 1, -INF), 0.0), ValueError, "h: expected finite numbers, got -inf"),
    (QuadraticDR, (H, LOW, INF), ValueError, "c: expected finite numbers, got inf"),
    (QuadraticDR, (changed(H, (0, 0), 0.5), LOW, 0.0), ValueError, "H: expected no positive entry (DR-submodular), got 0.5"),
    (QuadraticDR, (changed(H, (0, 1), -3.0), LOW, 0.0), ValueError, "H: expected a symmetric matrix, got entries 2 apart"),
    (QuadraticDR.random, (0, RNG), ValueError, "dim: expected an integer in [1, 16], got 0"),
    (QuadraticDR.random, (17, RNG), ValueError, "dim: expected an integer in [1, 16], got 17"),
    (QuadraticDR.random, (2.0, RNG), TypeError, "dim: expected an integer, got float 2.0"),
    (QuadraticDR.random, (2, 7), TypeError, "rng: expected a numpy.random.Generator, got int 7"),
    (QuadraticDR.random, (2, RNG, 1.0), ValueError, "rho: expected a finite number in (0, 1), got 1.0"),
    (CutExtension, ([[0.0]],), TypeError, "W: expected an array, got list"),
    (CutExtension, (PAIR[:1],), ValueError, "W: expected a square matrix (d, d), got shape (1, 2)"),
    (CutExtension, (-PAIR,), ValueError, "W: expected finite numbers in [0, inf), got "),
    (CutExtension, (changed(PAIR, (0, 1), NAN),), ValueError, "W: expected finite numbers in [0, inf), got "),
    (CutExtension, (PAIR + np.eye(2),), ValueError, "W: expected a zero diagonal (no loops), got 1"),
    (RevenueExtension, (np.zeros(2),), ValueError, "P: expected a square matrix (d, d), got shape (2,)"),
    (RevenueExtension, (2 * PAIR,), ValueError, "P: expected finite numbers in [0, 1), got "),
    (RevenueExtension, (-PAIR,), ValueError, "P: expected finite numbers in [0, 1), got "),
    (RevenueExtension, (np.eye(2) / 4,), ValueError, "P: expected a zero diagonal, got 0.25"),
    (SoftmaxDPP, (np.ones((2, 3)),), ValueError, "L: expected a square matrix (d, d), got shape (2, 3)"),
    (SoftmaxDPP, (changed(np.eye(2), (0, 1), 0.1),), ValueError, "L: expected a symmetric matrix, got entries 0.1 apart"),
    (SoftmaxDPP, (changed(np.eye(2), (0, 0), INF),), ValueError, "L: expected finite numbers in (-inf, inf), got "),
    (SoftmaxDPP, (np.ones((2, 2)) - 2 * np.eye(2),), ValueError, "L: expected a positive definite matrix, got the eigenvalue -2"),
    (LambdaDR, (1, abs, 2), TypeError, "value: expected a callable, got int 1"),
    (LambdaDR, (abs, None, 2), TypeError, "grad: expected a callable, got NoneType None"),
    (LambdaDR, (abs, abs, 0), ValueError, "dim: expected an integer in [1, inf), got 0"),
    (Smoothed, (CutExtension(PAIR), 0.1), TypeError, "f: expected a QuadraticDR, whose smoothing is known, got CutExtension"),
    (Smoothed, (TRAP, -0.1), ValueError, "delta: expected a finite number in [0, inf), got -0.1"),
    (functions.trap, (1.5,), ValueError, "eps: expected a finite number in [0, 1], got 1.5"),
    (functions.sharp_instance, (2.0,), ValueError, "a: expected a finite number in [0, 1], got 2.0"),
    (functions.sharp_instance, (0.5, 0), ValueError, "k: expected an integer in [1, inf), got 0"),
    (functions.drifting_trap, (0, 1), ValueError, "dim: expected an integer in [2, inf), got 1"),
    (functions.drifting_trap, (3, 3), ValueError, "c: expected an integer in [0, 2], got 3"),
    (functions.drifting_trap, (True, 3), TypeError, "c: expected an integer, got bool True"),
    (functions.summed, (TRAP, np.ones(2)), ValueError, "f: expected functions along one batch axis, got the batch ()"),
    (functions.summed, (FAMILY, np.ones(2)), ValueError, "weights: expected a last axis of 3, one weight a function, got shape"),
    (functions.summed, (FAMILY, -np.ones(3)), ValueError, "H: expected no positive entry"),
    (functions.stacked, ([],), ValueError, "functions: expected at least one, all of one shape, got []"),
    (functions.stacked, ([TRAP, functions.drifting_trap(0, 3)],), ValueError, "functions: expected at least one, all of one"),
    # as many members as vertices: they would meet one by one
    (functions.min_on_vertices, (QuadraticDR.random(2, RNG, batch=(4,)),), TypeError, "f: expected one function, got a batch of"),
    (functions.is_dr_submodular, (FAMILY, RNG), TypeError, "f: expected one function, got a batch of shape (3,)"),
    (functions.check_nonnegative, (QuadraticDR(H, LOW - 1, 0.0),), ValueError, "f: expected f >= 0 on the whole box, got -1.5"),
    (functions.check_dr_submodular, (TRAP, RNG, 0), ValueError, "n: expected an integer in [1, inf), got 0"),
    (functions.check_dr_submodular, (TRAP, 3), TypeError, "rng: expected a numpy.random.Generator, got int 3"),
    (functions.is_dr_submodular, (TRAP, None), TypeError, "rng: expected a numpy.random.Generator, got NoneType None"),
    (functions.random_cut, (1, RNG), ValueError, "dim: expected an integer in [2, inf), got 1"),
    (functions.random_cut, (3, RNG, 0.0), ValueError, "density: expected a finite number in (0, 1], got 0.0"),
    (functions.random_revenue, (3, "seed"), TypeError, "rng: expected a numpy.random.Generator, got str 'seed'"),
    (functions.random_dpp, (3, RNG, -1.0), ValueError, "scale: expected a finite number in (0, inf), got -1.0"),
    (functions.corner_points, (5, 10, 2), TypeError, stream_of("int 5")),
]
WRAPPERS = [
    (wrappers.IdentityMonotone, (0.0,), ValueError, "gamma: expected a finite number in (0, 1], got 0.0"),
    (wrappers.IdentityMonotone, (1.0, 1.5), ValueError, "curvature: expected a finite number in [0, 1], got 1.5"),
    (wrappers.BoostedMonotone, ("1",), TypeError, "gamma: expected a real number, got str '1'"),
    (wrappers.AnchoredNonMonotone, ([0.2, 1.0],), ValueError, "u: expected an anchor with all coordinates below 1 (else alpha"),
    (wrappers.AnchoredNonMonotone, ([-0.1],), ValueError, "u: expected finite numbers in [0, 1], got "),
    (wrappers.AnchoredNonMonotone, (0.5,), ValueError, "u: expected 1 dimension(s), got shape ()"),
    (wrappers.wrapper_named, ("ours", 2), ValueError, "name: expected one of 'exponential', 'anchored', 'boosted', 'identity',"),
    (OURS.nodes, (0,), ValueError, "n: expected an integer in [1, inf), got 0"),
    (OURS.draw_z, (7, 3), TypeError, stream_of("int 7")),
    (OURS.potential, (TRAP, LOW, 0), ValueError, "nodes: expected an integer in [1, inf), got 0"),
    (OURS.check, (TRAP, BudgetBox(3, 1)), ValueError, "f, K: expected the same dimension, got 2 and 3"),
    (OURS.check, (TRAP, SLAB), ValueError, "K: expected a down-closed set (y in K and 0 <= x <= y imply x in K), got one that"),
    (OURS.check, (QuadraticDR(H, LOW - 1, 0.0), BOX), ValueError, "f: expected f >= 0 on the whole box"),
    (wrappers.BoostedMonotone().check_set, (SLAB,), ValueError, "K: expected a set that contains 0"),
    (wrappers.AnchoredNonMonotone([0.1]).check_set, (BOX,), ValueError, "u: expected shape (2,), got (1,)"),
    (wrappers.AnchoredNonMonotone([0.9, 0.9]).check_set, (BOX,), ValueError, "u: expected an anchor in K, got [0.9, 0.9]"),
]
LEARNERS = [
    (OGD, (BOX, 3), TypeError, "batch: expected a tuple of integers, got int 3"),
    (OGD, (BOX, (2, 0)), ValueError, "batch: expected an integer in [1, inf), got 0"),
    (OGD, (BOX, (2,), "adam"), ValueError, "step: expected one of 'adagrad', got 'adam'"),
    (OGD, (BOX, (2,), 0.0), ValueError, "step: expected a finite number in (0, inf), got 0.0"),
    (OGD, (BOX, (2,), np.array([[0.1], [-0.1]])), ValueError, "step: expected finite numbers in (0, inf), got "),
    # one step a coordinate by mistake: it would broadcast, since there are as many copies as coordinates
    (OGD, (BOX, (2,), np.array([0.1, 0.2])), ValueError, "step: expected a number or shape (2, 1), got (2,)"),
    (OGD, (BOX, (), "adagrad", np.ones(2)), ValueError, "x0: expected points of K, got [1.0, 1.0]"),
    (OGD, (BOX, (), "adagrad", [0.1]), ValueError, "x0: expected shape (2,) or (2,), got (1,)"),
    (OGD, (BOX, (3,), "adagrad", np.zeros((2, 2))), ValueError, "x0: expected shape (2,) or (3, 2), got (2, 2)"),
    (OGD, (BOX, (), "adagrad", [NAN, 0.1]), ValueError, "x0: expected finite numbers"),
    (OGD(BOX, (2,)).update, (np.zeros(2),), ValueError, "g: expected an array of shape (2, 2), got shape (2,)"),
    (OGD(BOX).update, ([0.1, 0.2],), ValueError, "g: expected an array of shape (2,), got list [0.1, 0.2]"),
    (lambda **k: SOOGD(BOX, **k), {"horizon": 0, "gain_bound": 1.0}, ValueError, "horizon: expected an integer in [1, inf),"),
    (lambda **k: SOOGD(BOX, **k), {"horizon": 9, "gain_bound": 0.0}, ValueError, "gain_bound: expected a finite number in (0,"),
    (lambda **k: SOOGD(BOX, **k), {"horizon": 9, "gain_bound": 1.0, "step": -1.0}, ValueError, "step: expected a finite number"),
    (lambda **k: SOOGD(BOX, **k), {"horizon": 9.0, "gain_bound": 1.0}, TypeError, "horizon: expected an integer, got float 9.0"),
    (lambda **k: ImprovedAder(BOX, **k), {"horizon": 0, "gain_bound": 1.0}, ValueError, "horizon: expected an integer in [1,"),
    (lambda **k: ImprovedAder(BOX, **k), {"horizon": 9, "gain_bound": NAN}, ValueError, "gain_bound: expected a finite number"),
    (ImprovedAder(BOX, horizon=9, gain_bound=1.0).bound, (-1.0,), ValueError, "path_length: expected finite numbers in [0,"),
]
FEEDBACK = [
    (OMBQ, (OGD(BOX), OURS, 0), TypeError, stream_of("int 0")),
    (OMBQ, (OGD(SLAB), OURS, RNG), ValueError, "K: expected a down-closed set"),
    (OMBQ, (OGD(BOX), OURS, RNG, 0), ValueError, "nodes: expected an integer in [1, inf), got 0"),
    (FOTZO, (first_order(), 0.5, RNG), ValueError, "delta: expected a finite number in (0, 0.5), got 0.5"),
    (FOTZO, (first_order(), 0.2, RNG), ValueError, "delta: expected 0.1, by which the learner's set was shrunk, got 0.2"),
    (FOTZO, (OMBQ(OGD(BOX), OURS, RNG), 0.1, RNG), ValueError, "delta: expected 0, by which the learner's set was shrunk"),
    (FOTZO, (first_order(), 0.1, None), TypeError, stream_of("NoneType None")),
    (FOTZO, (FOTZO(first_order(), 0.1, RNG), 0.1, RNG), ValueError, "algorithm: expected a first-order algorithm"),
    # these two hear gradients, but not one for one query in every round
    (FOTZO, (SFTT(first_order(), 2, 4, RNG), 0.1, RNG), ValueError, "algorithm: expected a first-order algorithm with one"),
    (FOTZO, (MetaFrankWolfe(BOX, (), 2), 0.1, RNG), ValueError, "algorithm: expected a first-order algorithm with one random"),
    (SFTT, (MetaFrankWolfe(BOX, (), 2), 2, 4, RNG), ValueError, "algorithm: expected one query a round; two values"),
    (SFTT, (OMBQ(OGD(BOX), OURS, RNG, 5), 2, 4, RNG), ValueError, "algorithm: expected one query a round; two values"),
    (SFTT, (first_order(), 0, 10, RNG), ValueError, "block: expected an integer in [1, inf), got 0"),
    (SFTT, (first_order(), 5, 4, RNG), ValueError, "horizon: expected an integer in [5, inf), got 4"),
    (SFTT, (first_order(), 2, 4, "x"), TypeError, stream_of("str 'x'")),
    (SFTT, (FOTZO(first_order(), 0.1, RNG, two_point=True), 2, 4, RNG), ValueError, "algorithm: expected one query a round; two"),
    (SFTT, (SFTT(first_order(), 2, 4, RNG), 2, 4, RNG), ValueError, "algorithm: expected one that is not in blocks already"),
    (BOX.shrink, (0.3,), ValueError, "delta: expected less than 0.2929, so that the shrunk set contains 0, got 0.3"),
]
PLAYING = [
    (Pool, (TRAP, np.zeros(3, dtype=int)), ValueError, "family: expected quadratics along one batch axis, got the batch ()"),
    (Pool, (FAMILY, np.array([0, 3])), ValueError, "index: expected integers in 0..2 of shape (T,) or (T, B), got int64 (2,)"),
    (Pool, (FAMILY, np.array([-1])), ValueError, "index: expected integers in 0..2"),
    (Pool, (FAMILY, np.zeros(4)), ValueError, "index: expected integers in 0..2 of shape (T,) or (T, B), got float64 (4,)"),
    (Pool, (FAMILY, np.zeros((0, 2), dtype=int)), ValueError, "index: expected integers in 0..2"),
    (Pool, (FAMILY, [0, 1]), TypeError, "index: expected an array, got list [0, 1]"),
    (Pool(FAMILY, np.array([0, 1])).total, (3,), ValueError, "rounds: expected an integer in [1, 2], got 3"),
    (Pool(FAMILY, np.array([0, 1])).total, (-1,), ValueError, "rounds: expected an integer in [1, 2], got -1"),
    (Segments, ([TRAP], [1]), ValueError, "starts: expected one increasing round a function, beginning with 0, got [1]"),
    (Segments, ([TRAP, TRAP], [0]), ValueError, "starts: expected one increasing round a function"),
    (Segments, ([TRAP, TRAP], [0, 0]), ValueError, "starts: expected one increasing round a function"),
    (Segments, ([], []), ValueError, "starts: expected one increasing round a function"),
    (play.play, (Fixed(TRAP), first_order(), 0), ValueError, "rounds: expected an integer in [1, inf), got 0"),
    (lambda **k: play.play(Fixed(TRAP), first_order(), 5, **k), {"surrogate_nodes": -1}, ValueError, "surrogate_nodes:"),
    (play.play, (Fixed(functions.sharp_instance()), first_order(), 5), ValueError,
     "env: expected rewards of 2 coordinates, as K has, got 3 in round 0"),
    (play.regret, (HISTORY, 0.0, "static", np.zeros((3, 1))), ValueError, "alpha: expected a finite number in (0, 1], got 0.0"),
    (play.regret, (HISTORY, 0.5, "best", np.zeros((3, 1))), ValueError, "kind: expected one of 'static', 'adaptive', 'dynamic'"),
    (play.regret, (HISTORY, 0.5, "surrogate"), ValueError, "history: expected a run of play(..., surrogate_nodes=...)"),
    (play.regret, (HISTORY, 0.5, "static"), ValueError, "values: expected rewards of the comparators for static regret, got"),
    (play.regret, (HISTORY, 0.5, "static", np.zeros(3)), ValueError, "values: expected 3 rounds first, then the batch (2,), got"),
    (play.regret, (HISTORY, 0.5, "adaptive", np.zeros((4, 1))), ValueError, "values: expected 3 rounds first"),
    (play.regret, (HISTORY, 0.5, "dynamic", np.zeros((3, 5))), ValueError, "values: expected 3 rounds first"),
    (play.regret, (HISTORY, 0.5, "dynamic", [0.0, NAN, 0.0]), ValueError, "values: expected finite numbers in (-inf, inf), got "),
    (play.comparator_values, (Fixed(TRAP), np.eye(2), 0), ValueError, "rounds: expected an integer in [1, inf), got 0"),
    (play.path_length, ([1.0, 2.0],), ValueError, "points: expected 2 dimension(s), got shape (2,)"),
    (play.online_to_batch, (TRAP, first_order(), 0, RNG), ValueError, "rounds: expected an integer in [1, inf), got 0"),
    (play.online_to_batch, (functions.sharp_instance(), first_order(), 3, RNG), ValueError, "f: expected 2 coordinates, got 3"),
    (play.online_to_batch, (TRAP, first_order(), 3, 0), TypeError, "rng: expected a numpy.random.Generator, got int 0"),
]
BASELINES = [
    (baselines.measured_continuous_greedy, (TRAP, SLAB), ValueError, "K: expected a down-closed set"),
    (baselines.measured_continuous_greedy, (TRAP, BudgetBox(3, 1)), ValueError, "f, K: expected the same dimension, got 2 and 3"),
    (baselines.measured_continuous_greedy, (TRAP, BOX, 0), ValueError, "steps: expected an integer in [1, inf), got 0"),
    (baselines.non_monotone_frank_wolfe, (TRAP, SLAB), ValueError, "K: expected a down-closed set"),
    (baselines.non_monotone_frank_wolfe, (TRAP, BOX, 1.5), TypeError, "steps: expected an integer, got float 1.5"),
    (baselines.projected_ascent, (TRAP, BOX, np.zeros((1, 3))), ValueError, "starts: expected the dimension of f and K, got"),
    (baselines.projected_ascent, (TRAP, BOX, [[NAN, 0.0]]), ValueError, "starts: expected finite numbers"),
    (baselines.projected_ascent, (TRAP, BOX, np.zeros((1, 2)), 0), ValueError, "steps: expected an integer in [1, inf), got 0"),
    (baselines.projected_ascent, (TRAP, BOX, np.zeros((1, 2)), 5, -1.0), ValueError, "step: expected a finite number in (0,"),
    (MetaFrankWolfe, (BOX, (), 0), ValueError, "inner: expected an integer in [1, inf), got 0"),
    (MetaFrankWolfe, (SLAB, (), 2), ValueError, "K: expected a down-closed set"),
    (baselines.subsets, (3, 4), ValueError, "size: expected an integer in [0, 3], got 4"),
    (baselines.subsets, (60, 8), ValueError, "size: expected few enough sets to enumerate (2 million), got"),
    (baselines.best_set, (TRAP, 1, 0), ValueError, "chunk: expected an integer in [1, inf), got 0"),
    (baselines.greedy_set, (TRAP, 3), ValueError, "size: expected an integer in [0, 2], got 3"),
    (baselines.quadratic_upper_bound, (FAMILY, BOX), ValueError, "f: expected one quadratic, got a batch (3,)"),
    (baselines.quadratic_upper_bound, (TRAP, BudgetBox(3, 1)), ValueError, "f, K: expected the same dimension, got 2 and 3"),
    (baselines.quadratic_upper_bound, (functions.sharp_instance(), BOX), TypeError, "f: expected a QuadraticDR, got LambdaDR"),
    (baselines.quadratic_upper_bound, (TRAP, BOX, 1), ValueError, "tangents: expected an integer in [2, inf), got 1"),
]


def numbers(args: Any) -> list[np.ndarray]:
    return [np.array(a) for a in (args.values() if isinstance(args, dict) else args) if isinstance(a, np.ndarray)]


@pytest.mark.parametrize(("call", "args", "error", "message"), FUNCTIONS + WRAPPERS + LEARNERS + FEEDBACK + PLAYING + BASELINES)
def test_the_message_names_the_variable(call: Any, args: Any, error: type[Exception], message: str) -> None:
    before = copy.deepcopy(numbers(args))
    with pytest.raises(error, match="^" + re.escape(message)) as caught:
        call(**args) if isinstance(args, dict) else call(*args)
    assert type(caught.value) is error
    assert re.search(r"\bexpected\b.*\bgot\b", str(caught.value)), "what was expected and what came"
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(numbers(args), before, strict=True)), "nothing is written to"


def test_a_refused_gain_leaves_the_learner_as_it_was() -> None:
    learner = OGD(BOX, (2,))
    learner.update(np.full((2, 2), 0.1))
    kept = {name: np.array(value) for name, value in vars(learner).items() if isinstance(value, np.ndarray)}
    with pytest.raises(ValueError, match="^g: expected an array of shape"):
        learner.update(np.ones((3, 2)))
    assert all(np.array_equal(getattr(learner, name), value) for name, value in kept.items()) and len(kept) >= 4


def test_a_refused_run_has_not_begun() -> None:
    algorithm = first_order()
    at = algorithm.learner.act() + 0
    for rounds, options in ((0, {}), (3, {"surrogate_nodes": 1.5})):
        with pytest.raises((TypeError, ValueError), match="^(rounds|surrogate_nodes): expected"):
            play.play(Fixed(TRAP), algorithm, rounds, **options)
    assert np.array_equal(algorithm.learner.act(), at) and not algorithm.learner.gain_square.any()


def test_streams_are_generators_of_either_kind() -> None:
    for stream in (np.random.default_rng(0), torch.Generator()):
        assert arrays.is_stream("rng", stream) is stream
    for bad in (0, np.random.RandomState(0), np.random, torch):
        with pytest.raises(TypeError, match="^rng: expected a numpy.random.Generator or a torch.Generator, got"):
            arrays.is_stream("rng", bad)


@pytest.mark.parametrize("stream", [np.random.default_rng(3), torch.Generator().manual_seed(3)], ids=["numpy", "torch"])
def test_draws_have_the_law_they_say(stream: Any) -> None:
    n = 40_000
    u, v = arrays.numpy_of(arrays.uniform(stream, n)), arrays.numpy_of(arrays.sphere(stream, n, 3))
    k, g = arrays.numpy_of(arrays.integers(stream, 4, n, 2)), arrays.numpy_of(arrays.normal(stream, n))
    error = 4 / math.sqrt(n)
    assert u.dtype == v.dtype == g.dtype == np.float64 and u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < error * math.sqrt(1 / 12) and abs((u**2).mean() - 1 / 3) < error * math.sqrt(4 / 45)
    assert abs(g.mean()) < error and abs((g**2).mean() - 1) < error * math.sqrt(2)
    assert np.linalg.norm(v, axis=1) == pytest.approx(np.ones(n), abs=1e-12)
    # E v = 0 and E v v' = I/3; entries of v v' have variances up to 4/45
    assert np.abs(v.mean(axis=0)).max() < error * math.sqrt(1 / 3)
    assert np.abs(v.T @ v / n - np.eye(3) / 3).max() < error * math.sqrt(4 / 45)
    assert k.shape == (n, 2) and set(np.unique(k)) == {0, 1, 2, 3}
    assert np.abs(np.bincount(k[:, 0]) / n - 0.25).max() < error * math.sqrt(3 / 16)
