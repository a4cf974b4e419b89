"""What a hostile or a careless caller does: refused by name and before work, or harmless; never silently another number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from paperbook.papers.dr_submodular import play as rounds
from paperbook.papers.dr_submodular import studies, studies_drift, studies_graphs
from paperbook.papers.dr_submodular.arrays import numpy_of
from paperbook.papers.dr_submodular.ascent import ExpReparamAscent
from paperbook.papers.dr_submodular.config import FeedbackConfig, OneGradientConfig
from paperbook.papers.dr_submodular.config_graphs import GraphsConfig, NonStationaryConfig
from paperbook.papers.dr_submodular.feedback import FOTZO, OMBQ, SFTT
from paperbook.papers.dr_submodular.functions import (
    CutExtension,
    LambdaDR,
    QuadraticDR,
    RevenueExtension,
    SoftmaxDPP,
    check_nonnegative,
    is_dr_submodular,
    random_dpp,
    random_revenue,
)
from paperbook.papers.dr_submodular.learners import OGD, SOOGD, ImprovedAder
from paperbook.papers.dr_submodular.sets import BudgetBox, Polytope, random_packing
from paperbook.papers.dr_submodular.wrappers import AnchoredNonMonotone, BoostedMonotone, ExponentialDownClosed
from paperbook.study.params import ParameterError, configure

K, WRAPPER = BudgetBox(3, 1.0), ExponentialDownClosed()


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def reduction(batch: tuple[int, ...] = (2,), **options: Any) -> OMBQ:
    return OMBQ(OGD(K, batch, **options), WRAPPER, rng())


F = QuadraticDR.random(3, rng())
FAMILY = QuadraticDR.random(3, rng(), 0.3, (4,))


# --- parameters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "given", "message"), [
    (OneGradientConfig, {"budget": 20.0}, "budget: expected a whole number from 1 to dim = 6, .*got 20.0"),
    (OneGradientConfig, {"budget": 2.5}, "budget: .*got 2.5"),
    (OneGradientConfig, {"budget": 0.5}, "budget: .*got 0.5"),
    (FeedbackConfig, {"budget": 0.1}, "budget: expected so much that a ball of radius .*got 0.1"),
    (FeedbackConfig, {"dim": 16}, "budget: .* where 0.05 fits"),
    (FeedbackConfig, {"device": "tpu"}, "device: expected numpy, auto, cpu, cuda or cuda:<i>, got 'tpu'"),
    (FeedbackConfig, {"device": "cuda:x"}, "device: .*got 'cuda:x'"),
    (GraphsConfig, {"device": ""}, "device: .*got ''"),
    (GraphsConfig, {"k": 35}, "k: expected at most the number of nodes, 34, got 35"),
    (GraphsConfig, {"graph": "edge_list", "path": "x", "max_nodes": 3}, "k: expected at most the number of nodes, 3, got 5"),
    (GraphsConfig, {"graph": "edge_list", "path": "x", "max_nodes": 1, "k": 1}, "max_nodes: expected 0 .* or at least 2"),
    (GraphsConfig, {"max_nodes": 9}, "max_nodes: graph='karate' expects 0, all nodes, got 9"),
    (NonStationaryConfig, {"packing_dims": [5, 5]}, "packing_dims: expected increasing numbers, got"),
    (NonStationaryConfig, {"packing_dims": [5, 10**6]}, "packing_dims.*got 1000000"),
])  # fmt: skip
def test_pages_refuse_what_would_fail_half_way(kind: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        configure(kind, given)


def test_the_sphere_fits_wherever_the_parameters_are_accepted() -> None:
    """The budgets just inside and just outside of the refusal, against the set's own."""
    horizons = [10, 20]
    radii = [studies.smoothing(name, 10) for name in studies.FEEDBACKS] + [0.2]  # 0.2 caps 20^-1/4, which the page compares
    least = max(radii) * (2 + 2**0.5)
    with pytest.raises(ParameterError, match="budget"):
        configure(FeedbackConfig, {"horizons": horizons, "budget": least * 0.999})
    cfg = configure(FeedbackConfig, {"horizons": horizons, "budget": least * 1.001})
    task = studies.problem(cfg.dim, cfg.budget, cfg.rho, 5, 0)
    for name in cfg.feedbacks:
        assert np.isfinite(studies.rung(task, name, horizons, 2, 0).reward).all()
    assert np.isfinite(studies.rung(task, "one value", horizons, 2, 0, delta=0.2).reward).all()


def test_memory_is_asked_for_what_grows() -> None:
    """2^16 vertices of 100,000 quadratics are 839 GB a copy; a billion rounds of 64 copies in 20 dimensions are 10 TB."""
    assert configure(OneGradientConfig, {"dim": 16, "members": 10**5}).needs().memory_gb > 839
    assert configure(FeedbackConfig, {"dim": 2, "members": 10**5}).needs().memory_gb > 39  # the page's curves reach d = 12
    assert configure(NonStationaryConfig, {"packing_rounds": 10**9}).needs().memory_gb > 10_000
    assert configure(OneGradientConfig, {"trap_rounds": 10**7, "reps": 10**5}).needs().memory_gb > 8_000


def test_a_graph_without_an_edge_is_refused(tmp_path: Any) -> None:
    """The two nodes of highest degree of two stars do not know each other: every cut would be 0 and every ratio 0/0."""
    path = tmp_path / "stars.txt"
    path.write_text("".join(f"{hub} {10 * hub + leaf}\n" for hub in (1, 2) for leaf in range(3)), encoding="utf-8")
    cfg = configure(GraphsConfig, {"graph": "edge_list", "path": str(path), "max_nodes": 2, "k": 1})
    with pytest.raises(ValueError, match="graph: expected an edge among the 2 nodes that are kept"):
        studies_graphs.graph_study(cfg)


@pytest.mark.parametrize(("call", "message"), [
    (lambda task: studies.smoothing("two value", 10), "feedback: expected one of"),
    (lambda task: studies.smoothing("one value", 0), "T: expected an integer in"),
    (lambda task: studies.block_length("bandits", 10), "feedback: expected one of"),
    (lambda task: studies.block_length("bandit", -1), "T: expected an integer in"),
    (lambda task: studies.rung(task, "gradient", [], 2, 0), "horizons: expected at least one"),
    (lambda task: studies.rung(task, "gradient", [10, 0], 2, 0), "horizons: expected an integer in"),
    (lambda task: studies.rung(task, "gradient", [10], 2, 0, nodes=0), "nodes: expected an integer in"),
    (lambda task: studies.rung(task, "one value", [10**7, 10], 2, 0), "delta: expected less than"),  # before ten million rounds
    (lambda task: studies_drift.price_of_projection(3, 0, 0), "rounds: expected an integer in"),
    (lambda task: studies_graphs.peer("frank-wolfe", F, K, 5, 0, 0), "reps: expected an integer in"),
    (lambda task: studies_graphs.greedy_cut(np.triu(np.ones((3, 3)), 1), 1), "W: expected a symmetric matrix"),
    (lambda task: studies_graphs.greedy_cut(np.eye(3), 1), "W: expected a symmetric matrix with a zero diagonal"),
])  # fmt: skip
def test_studies_refuse_before_work(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(studies.problem(3, 0.4, 0.3, 5, 0))


# --- integers, shapes, copies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapper", [WRAPPER, AnchoredNonMonotone(np.zeros(3)), BoostedMonotone()])
def test_whole_numbers_are_numbers(wrapper: Any) -> None:
    """A vertex given as integers once cut the nodes z to 0, and the gain with them."""
    x, y = np.array([0, 1, 1]), np.array([1, 0, 0])
    for whole, real in ((x, x.astype(float)), (torch.tensor(x), torch.tensor(x, dtype=torch.float64))):
        f = F if isinstance(whole, np.ndarray) else QuadraticDR(torch.tensor(F.H), torch.tensor(F.h), torch.tensor(F.c))
        np.testing.assert_array_equal(numpy_of(wrapper.linear_gain(f, whole)), numpy_of(wrapper.linear_gain(f, real)))
        np.testing.assert_array_equal(numpy_of(wrapper.potential(f, whole)), numpy_of(wrapper.potential(f, real)))
    assert wrapper.gap(F, x, y) == wrapper.gap(F, x.astype(float), y.astype(float))


@pytest.mark.parametrize("K_", [K, random_packing(3, 2, rng())])
def test_sets_do_not_round_whole_numbers(K_: Any) -> None:
    y = np.array([2, 1, 1])
    np.testing.assert_array_equal(K_.project(y), K_.project(y.astype(float)))
    np.testing.assert_array_equal(K_.lmo(y), K_.lmo(y.astype(float)))
    assert OGD(K_, (2,), like_array=np.zeros(1, dtype=int)).act().dtype == np.float64


def test_faces_that_the_solver_missed_are_found() -> None:
    """The nearest point of a half-space is known; the polish starts without any face and a point a ten-thousandth outside."""
    a = np.array([1.0, 2.0, 2.0]) / 3
    K_, inside = Polytope(a[None], [0.5]), np.array([0.5, 0.25, 0.25])
    none = np.zeros(len(K_._constraints[1]), dtype=bool)
    for far in (1e-4, 1e-2):
        y = inside + (0.5 - a @ inside + far) * a
        np.testing.assert_allclose(K_._polished(y, np.zeros(3), none), y - far * a, atol=1e-12)  # rounding


@pytest.mark.parametrize("f", [F, CutExtension(np.ones((3, 3)) - np.eye(3)), random_revenue(3, rng()), random_dpp(3, rng())])
@pytest.mark.parametrize("shape", [(), (1,), (2, 1), (4,)])
def test_points_of_another_dimension_do_not_broadcast(f: Any, shape: tuple[int, ...]) -> None:
    for method in (f.value, f.grad):
        with pytest.raises(ValueError, match=r"x: expected shape \(\.\.\., 3\), got"):
            method(np.full(shape, 0.5))


@pytest.mark.parametrize(("make", "part"), [
    (lambda M: QuadraticDR(M, np.ones(2), np.zeros(())), -np.ones((2, 2))), (CutExtension, 1 - np.eye(2)),
    (RevenueExtension, (1 - np.eye(2)) / 2), (SoftmaxDPP, 2 * np.eye(2)),
])  # fmt: skip
def test_a_function_keeps_what_was_checked(make: Any, part: np.ndarray) -> None:
    x = np.array([0.3, 0.6])
    for given in (part.copy(), torch.tensor(part)):
        if isinstance(given, torch.Tensor) and make not in (CutExtension, RevenueExtension, SoftmaxDPP):
            continue  # its other arguments are NumPy's
        f, at = make(given), x if isinstance(given, np.ndarray) else torch.tensor(x)
        before = float(f.value(at)), numpy_of(f.grad(at))
        given *= -3.0
        assert float(f.value(at)) == before[0]
        np.testing.assert_array_equal(numpy_of(f.grad(at)), before[1])


def test_the_nodes_that_are_kept_cannot_be_spoiled() -> None:
    z, _ = WRAPPER.nodes(7)
    z[:] = 0.0
    assert WRAPPER.nodes(7)[0].min() > 0


@pytest.mark.parametrize(("H", "h"), [
    (np.zeros((0, 0)), np.zeros(0)), (np.zeros((2, 2)), np.zeros(())), (np.zeros(2), np.zeros(2)),
])  # fmt: skip
def test_quadratics_without_coordinates(H: np.ndarray, h: np.ndarray) -> None:
    with pytest.raises(ValueError, match="H, h: expected"):
        QuadraticDR(H, h, 0.0)


def test_nan_is_neither_submodular_nor_non_negative() -> None:
    broken = LambdaDR(lambda x: x.sum(-1) * np.nan, lambda x: x * np.nan, 3)
    assert not is_dr_submodular(broken, rng())
    assert not is_dr_submodular(LambdaDR(lambda x: x.sum(-1), lambda x: 0 * x[..., :2], 3), rng())
    with pytest.raises(ValueError, match="f: expected f >= 0 on the whole box, got nan"):
        check_nonnegative(broken)


# --- algorithms -----------------------------------------------------------------------------------------------------------


def test_numbers_that_are_not_finite_end_a_run() -> None:
    for broken, what in ((LambdaDR(lambda x: x.sum(-1) / 0.0, lambda x: 1 + 0 * x, 3), "values"),
                         (LambdaDR(lambda x: x.sum(-1), lambda x: x * np.nan, 3), "gradients")):  # fmt: skip
        with np.errstate(all="ignore"), pytest.raises(ValueError, match=f"env: expected finite numbers, got .*{what}"):
            rounds.play(rounds.Fixed(broken), reduction(), 5)


@pytest.mark.parametrize("gain", [np.inf, np.nan, 1e12])
def test_the_walk_back_ends(gain: float) -> None:
    """Steps of delta r: an infinite gain would take for ever, one of 1e12 times the bound some weeks."""
    walker = SOOGD(K, (2,), horizon=10, gain_bound=1.0)
    with pytest.raises(ValueError, match="g: expected norms within gain_bound = 1, got"):
        walker.update(np.full((2, 3), gain))


@pytest.mark.parametrize(("env", "message"), [
    (rounds.Fixed(QuadraticDR.random(4, rng())), "env: expected rewards of 3 coordinates, as K has, got 4 in round 0"),
    (rounds.Fixed(LambdaDR(lambda x: x, lambda x: x, 3)), r"env: expected values of shape \(2,\), one a copy, got \(2, 3\)"),
    (rounds.Fixed(LambdaDR(lambda x: x.sum(), lambda x: x, 3)), r"env: expected values of shape \(2,\), one a copy, got \(\)"),
])  # fmt: skip
def test_rewards_of_another_shape_end_a_run(env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rounds.play(env, reduction(), 5)


def test_a_batch_of_rewards_does_not_make_copies() -> None:
    with pytest.raises(ValueError, match=r"env: expected values of shape \(\), one a copy, got \(4,\)"):
        rounds.play(rounds.Fixed(FAMILY), reduction(()), 5)
    with pytest.raises(ValueError, match="env: expected rewards without a batch"):
        rounds.comparator_values(rounds.Fixed(FAMILY), np.zeros((4, 3)), 2)


def test_an_algorithm_is_played_once() -> None:
    player = reduction()
    rounds.play(rounds.Fixed(F), player, 3)
    for again in (player, OMBQ(player.learner, WRAPPER, rng()), SFTT(OMBQ(player.learner, WRAPPER, rng()), 2, 4, rng())):
        with pytest.raises(ValueError, match="algorithm: expected one at its first round"):
            rounds.play(rounds.Fixed(F), again, 3)


def test_blocks_end_with_the_horizon() -> None:
    player = SFTT(reduction(), 2, 5, rng())
    with pytest.raises(ValueError, match="horizon: expected at most 5 rounds"):
        rounds.play(rounds.Fixed(F), player, 6)
    assert player.t == 5
    player.learner = None  # type: ignore[attr-defined]  # nothing else looks at it
    with pytest.raises(ValueError, match="algorithm: expected a first-order algorithm with one random query a round"):
        FOTZO(SFTT(OMBQ(OGD(K.shrink(0.05), (2,)), WRAPPER, rng()), 2, 4, rng()), 0.05, rng())


def test_streams_live_where_the_iterates_do() -> None:
    tensors = OGD(K, (2,), like_array=torch.zeros(1, dtype=torch.float32))
    for learner, stream in ((OGD(K, (2,)), torch.Generator()), (tensors, rng())):
        with pytest.raises(TypeError, match="rng: expected a generator of .*, where the iterates are, got one of"):
            OMBQ(learner, WRAPPER, stream)
    inside = reduction()
    with pytest.raises(TypeError, match="rng: expected a generator of numpy"):
        FOTZO(OMBQ(OGD(K.shrink(0.05), (2,)), WRAPPER, rng()), 0.05, torch.Generator())
    with pytest.raises(TypeError, match="rng: expected a generator of numpy"):
        SFTT(inside, 2, 4, torch.Generator())


@pytest.mark.parametrize("two_point", [None, True, False])
def test_single_precision_stays_single(two_point: bool | None) -> None:
    f = QuadraticDR(*(torch.tensor(part, dtype=torch.float32) for part in (F.H, F.h, F.c)))
    delta = 0.0 if two_point is None else 0.05
    learner = OGD(K.shrink(delta) if delta else K, (2,), like_array=torch.zeros(1, dtype=torch.float32))
    player: Any = OMBQ(learner, WRAPPER, torch.Generator().manual_seed(0))
    if two_point is not None:
        player = FOTZO(player, delta, torch.Generator().manual_seed(1), two_point)
    assert rounds.play(rounds.Fixed(f), player, 4, surrogate_nodes=4).final.dtype == np.float32
    assert learner.act().dtype == torch.float32


def test_sequences_have_an_end_and_no_past() -> None:
    pool = rounds.Pool(FAMILY, np.array([0, 1]))
    for t in (-1, 2):
        with pytest.raises(IndexError, match=rf"t: expected a round in 0\.\.1, got {t}"):
            pool[t]
    for T in (0, 3):
        with pytest.raises(ValueError, match=r"rounds: expected an integer in \[1, 2\]"):
            pool.total(T)
    with pytest.raises(IndexError, match="t: expected a round >= 0, got -1"):
        rounds.Segments([F], [0])[-1]


def test_a_reset_walker_counts_from_zero() -> None:
    walker = SOOGD(K, (2,), horizon=10, gain_bound=1.0)
    walker.update(np.full((2, 3), 0.5))
    assert (walker.oracle_calls > 0).all()
    walker.reset()
    assert (walker.oracle_calls == 0).all() and (walker.gain_sum == 0).all()


def test_paths_have_no_negative_length() -> None:
    with pytest.raises(ValueError, match="path_length: expected finite numbers"):
        ImprovedAder(K, horizon=10, gain_bound=1.0).bound(-1.0)


@pytest.mark.parametrize("k", [1, 12])
def test_the_sphere_of_a_graph_run_leaves_half_of_the_room(k: int) -> None:
    """Radius and gain bound by hand: a ball of radius k/(d + sqrt d) fits, |values| <= total weight M, so |q| <= d M / delta."""
    cfg = configure(GraphsConfig, {"k": k, "feedback": "one value", "learner": "ader", "rounds": 10_000})
    W = studies_graphs.weights("karate")
    made: Any = studies_graphs.graph_algorithm(cfg, W, rng(), np.zeros(()))
    delta = min(0.3 * 10_000**-0.25, 0.5 * k / (34 + 34**0.5))
    assert made.delta == pytest.approx(delta, rel=1e-12)
    assert made.base.learner.gain_bound == pytest.approx(34 * 156 / delta, rel=1e-12)  # 78 edges, once a direction


def test_every_feedback_and_horizon_has_random_numbers_of_its_own() -> None:
    draws = [studies._stream_of(studies.Place(), 0, feedback, T, name).random()
             for feedback in studies.FEEDBACKS for T in (100, 200) for name in ("z", "direction", "position")]  # fmt: skip
    assert len(set(draws)) == len(draws) == 30


def test_a_graph_run_reports_what_the_loop_of_the_library_measures() -> None:
    """The same algorithm and stream through `play`, which keeps its own sums; 78 ties of weight 1."""
    cfg = configure(GraphsConfig, {"rounds": 50, "reps": 3})
    found = studies_graphs.graph_study(cfg)
    W = studies_graphs.weights("karate")
    made = studies_graphs.graph_algorithm(cfg, W, studies.Place().stream(cfg.seed, "graph"), np.zeros(()))
    history = rounds.play(rounds.Fixed(CutExtension(W)), made, 50)
    # sums in another order
    np.testing.assert_allclose(found["average"], history.average_reward, rtol=1e-12)
    np.testing.assert_allclose(found["certificate"], np.e * (history.average_reward + history.query_regret / 50), rtol=1e-12)
    assert found["total_weight"] == 78
    assert (found["certificate"] > found["optimum"]).all()


# --- the optimiser --------------------------------------------------------------------------------------------------------


def _parameter(*shape: int, value: float = 0.1) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.full(shape, value, dtype=torch.float64))


def _twice(x: torch.Tensor) -> torch.Tensor:
    reward = x.sum()
    reward.backward()
    return reward


@pytest.mark.parametrize(("reward", "error", "message"), [
    (_twice, ValueError, "closure: expected the reward alone, got gradients as well"),  # torch's own habit; counted twice
    (lambda x: x.sum() * float("nan"), ValueError, "closure: expected a finite reward, got nan"),
    (lambda x: x + 0, TypeError, r"closure: expected a scalar tensor that depends on the parameters, got shape \(3,\)"),
    (lambda x: 1.0, TypeError, "closure: expected a scalar tensor .*, got float"),
    (lambda x: x.detach().sum(), TypeError, r"closure: expected a scalar tensor .*, got shape \(\)"),
])  # fmt: skip
def test_rewards_that_teach_nothing_leave_the_point_alone(reward: Any, error: type[Exception], message: str) -> None:
    x = _parameter(3)
    optimiser = ExpReparamAscent([x], K)
    with pytest.raises(error, match=message):
        optimiser.step(lambda: reward(x))
    assert torch.equal(x.detach(), torch.full((3,), 0.1, dtype=torch.float64))


@pytest.mark.parametrize(("group", "error", "message"), [
    ({"params": [_parameter(4)]}, ValueError, r"params: expected a last axis of 3, got shape \(4,\)"),
    ({"params": [_parameter(3, value=float("nan"))]}, ValueError, "params: expected finite numbers"),
    ({"params": [torch.zeros(3, dtype=torch.int64)]}, TypeError, "params: expected floating-point numbers, got torch.int64"),
    ({"params": [_parameter(3)], "lr": -1.0}, ValueError, "lr: expected a finite number"),
])  # fmt: skip
def test_later_parameters_are_checked_like_the_first(group: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ExpReparamAscent([dict(group)], K)
    optimiser = ExpReparamAscent([_parameter(3)], K)
    with pytest.raises(error, match=message):
        optimiser.add_param_group(dict(group))
    assert len(optimiser.param_groups) == 1
    far = _parameter(3, value=5.0)
    optimiser.add_param_group({"params": [far]})
    assert bool(K.contains(far.detach()))
    with pytest.raises(TypeError, match="generator: expected a torch.Generator or None, got Generator"):
        ExpReparamAscent([_parameter(3)], K, generator=rng())  # type: ignore[arg-type]


@pytest.mark.parametrize("feedback", ["one value", "bandit"])
def test_options_of_a_rung_reach_the_layer_they_are_for(feedback: str) -> None:
    task = studies.problem(2, 1.0, 0.1, 5, 0)
    for baseline in (False, True):
        made: Any = studies.algorithm(task, feedback, 100, 2, lambda name: rng(), baseline=baseline, delta=0.05, step=0.5)
        layer = made.algorithm if feedback == "bandit" else made
        assert layer.baseline is baseline and layer.delta == 0.05 and made.base.learner.step == 0.5


@pytest.mark.parametrize(("rise", "refused"), [(5e-9, True), (1e-10, False)])
def test_the_slack_for_rounding_is_no_larger_than_said(rise: float, refused: bool) -> None:
    """A gradient of size 1 that rises by up to `rise` along the first coordinate; the slack is 1e-9."""
    def grad(x: Any) -> Any:
        return np.stack([1 + rise * x[..., 0], -np.ones_like(x[..., 0])], axis=-1)

    assert is_dr_submodular(LambdaDR(lambda x: x.sum(-1), grad, 2), rng()) is not refused
