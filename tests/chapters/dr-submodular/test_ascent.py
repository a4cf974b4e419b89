"""The torch optimiser: step by step the loop of NumPy, from gradients that nobody wrote down."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from paperbook.papers.dr_submodular.ascent import ExpReparamAscent
from paperbook.papers.dr_submodular.functions import QuadraticDR, trap
from paperbook.papers.dr_submodular.sets import BudgetBox, Polytope, random_packing

ROUNDING = 1e-10  # 60 steps of which each repeats the rounding 1e-15 of the one before, stretched by projections at most 1


def parameter(x: object) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.as_tensor(np.array(x, dtype=float)))


def in_torch(f: QuadraticDR) -> QuadraticDR:
    return QuadraticDR(*(torch.as_tensor(part) for part in (f.H, f.h, f.c)))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("lr", [None, 0.05])
def test_the_steps_are_those_of_a_plain_loop_with_the_same_random_numbers(lr: float | None) -> None:
    rng, K, steps = np.random.default_rng(1), BudgetBox(4, 2), 60
    f, start = QuadraticDR.random(4, rng), 0.3 * rng.random((3, 4))
    x, twin = parameter(start), in_torch(f)
    optimiser = ExpReparamAscent([x], K, lr=lr, generator=seeded(2))
    draws, at, squares = seeded(2), start.copy(), np.zeros((3, 1))
    for _ in range(steps):
        reward = optimiser.step(lambda: twin.value(x).sum())
        u = torch.rand(3, 1, generator=draws, dtype=torch.float64).numpy()
        z = np.log(1 + (math.e - 1) * u)
        point = 1 - np.exp(-z * at)
        assert float(reward) == pytest.approx(f.value(point).sum(), abs=ROUNDING)
        gain = (point @ f.H + f.h) * (1 - point)
        squares += (gain**2).sum(axis=1, keepdims=True)
        at = K.project(at + (2 * gain / np.sqrt(squares) if lr is None else lr * gain))  # D = 2
        assert x.detach().numpy() == pytest.approx(at, abs=ROUNDING)
    assert not np.allclose(at, start)
    assert optimiser.action(x).numpy() == pytest.approx(1 - np.exp(-at), abs=ROUNDING)


def test_rows_of_a_parameter_are_independent_runs() -> None:
    K, f = BudgetBox(3, 1), in_torch(QuadraticDR.random(3, np.random.default_rng(3)))
    both = parameter([[0.1, 0.2, 0.3], [0.0, 0.6, 0.1]])
    optimiser = ExpReparamAscent([both], K, generator=seeded(4))
    for _ in range(3):
        optimiser.step(lambda: f.value(both).sum())
    draws = seeded(4)
    us = [torch.rand(2, 1, generator=draws, dtype=torch.float64) for _ in range(3)]
    at = np.array([0.0, 0.6, 0.1])
    total = 0.0
    for u in us:
        factor = np.exp(-np.log1p((math.e - 1) * float(u[1, 0])) * at)
        gain = factor * f.grad(torch.as_tensor(1 - factor)).numpy()
        total += float(gain @ gain)
        at = K.project(at + math.sqrt(2) * gain / math.sqrt(total))
    assert both.detach()[1].numpy() == pytest.approx(at, abs=ROUNDING)


def test_it_leaves_the_bad_corner_of_the_trap() -> None:
    f, K, x = in_torch(trap(0.05)), BudgetBox(2, 1), parameter([0.0, 1.0])
    optimiser = ExpReparamAscent([x], K, generator=seeded(5))
    for _ in range(150):
        optimiser.step(lambda: f.value(x))
    assert x.detach().numpy() == pytest.approx(np.array([1.0, 0.0]), abs=1e-9)
    assert float(f.value(optimiser.action(x))) == pytest.approx(1 - 1 / math.e, abs=1e-9)


def test_any_closure_that_can_be_differentiated_will_do_and_is_called_once() -> None:
    """Expected coverage, as a model might compute it: 1 - prod_i (1 - x_i) for each of three groups of items."""
    groups = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    x, calls = parameter(np.full(4, 0.25)), []

    def reward() -> torch.Tensor:
        calls.append(1)
        covered = 1 - torch.prod(1 - groups * x, dim=1)
        return covered.sum() - 0.3 * x.sum() + 1.2

    optimiser = ExpReparamAscent([x], BudgetBox(4, 2), generator=seeded(6))
    first = reward().item()
    for _ in range(100):
        returned = optimiser.step(reward)
    assert len(calls) == 101 and not returned.requires_grad and returned.ndim == 0
    with torch.no_grad():
        x.copy_(optimiser.action(x))
    # items 2 and 4 cover all three groups: 3 - .6 + 1.2 = 3.6
    assert reward().item() > max(first, 3.6 / math.e)


def test_several_parameters_and_groups_with_their_own_steps() -> None:
    f, K = in_torch(QuadraticDR.random(3, np.random.default_rng(7))), BudgetBox(3, 1.5)
    start = [0.1, 0.3, 0.2]
    x, y, unused = parameter(start), parameter(start), parameter(start)
    optimiser = ExpReparamAscent([{"params": [x], "lr": 0.01}, {"params": [y, unused]}], K, lr=0.5, generator=seeded(8))
    optimiser.step(lambda: f.value(x) + f.value(y))
    draws = seeded(8)
    for p, lr in ((x, 0.01), (y, 0.5)):
        u = float(torch.rand(1, generator=draws, dtype=torch.float64))
        factor = np.exp(-math.log1p((math.e - 1) * u) * np.array(start))
        gain = factor * f.grad(torch.as_tensor(1 - factor)).numpy()
        assert p.detach().numpy() == pytest.approx(K.project(np.array(start) + lr * gain), abs=ROUNDING)
    assert unused.tolist() == start, "the reward does not depend on it"


def test_it_stays_in_a_polytope() -> None:
    K = random_packing(4, 2, np.random.default_rng(9))
    f, x = in_torch(QuadraticDR.random(4, np.random.default_rng(10))), parameter(np.ones((2, 4)))
    optimiser = ExpReparamAscent([x], K, generator=seeded(11))
    assert K.contains(x.detach().numpy(), 1e-9).all(), "projected at once"
    for _ in range(20):
        optimiser.step(lambda: f.value(x).sum())
        assert K.contains(x.detach().numpy(), 1e-9).all()
        assert K.contains(optimiser.action(x).numpy(), 1e-9).all()


def test_a_run_goes_on_from_its_saved_state() -> None:
    f, K = in_torch(QuadraticDR.random(3, np.random.default_rng(12))), BudgetBox(3, 1.5)
    stream, x = seeded(13), parameter(np.full((2, 3), 0.2))
    optimiser = ExpReparamAscent([x], K, generator=stream)
    for _ in range(10):
        optimiser.step(lambda: f.value(x).sum())
    # a copy: as with torch's own optimisers the dictionary refers to the state, which goes on
    saved, position, at = copy.deepcopy(optimiser.state_dict()), stream.get_state(), x.detach().clone()
    for _ in range(10):
        optimiser.step(lambda: f.value(x).sum())
    y, stream = torch.nn.Parameter(at.clone()), seeded(0)
    stream.set_state(position)
    again, fresh = ExpReparamAscent([y], K, generator=stream), torch.nn.Parameter(at.clone())
    again.load_state_dict(saved)
    for _ in range(10):
        again.step(lambda: f.value(y).sum())
    assert torch.equal(x, y)
    stream.set_state(position)
    forgetful = ExpReparamAscent([fresh], K, generator=stream)
    for _ in range(10):
        forgetful.step(lambda: f.value(fresh).sum())
    assert not torch.equal(x, fresh), "without the sum of squares the steps are longer"


def test_before_the_first_gain_that_is_not_zero_nothing_moves() -> None:
    x = parameter([0.2, 0.3])
    ExpReparamAscent([x], BudgetBox(2, 1)).step(lambda: (0 * x).sum())
    assert x.tolist() == [0.2, 0.3]


def test_single_precision_stays_single() -> None:
    x = torch.nn.Parameter(torch.full((2,), 0.2))
    optimiser = ExpReparamAscent([x], BudgetBox(2, 1), generator=seeded(14))
    optimiser.step(lambda: (x * (1 - x)).sum())
    assert x.dtype == torch.float32 and torch.isfinite(x).all() and optimiser.action(x).dtype == torch.float32


def test_an_error_in_the_reward_leaves_the_parameters_where_they_were() -> None:
    x = parameter([0.2, 0.3])
    optimiser = ExpReparamAscent([x], BudgetBox(2, 1))

    def fails() -> torch.Tensor:
        assert x.tolist() != [0.2, 0.3], "it is asked elsewhere"
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="^no data"):
        optimiser.step(fails)
    assert x.tolist() == [0.2, 0.3]


def test_what_it_cannot_do_is_refused() -> None:
    x, K = parameter([0.9, 0.9]), BudgetBox(2, 1)
    with pytest.raises(ValueError, match="^K: expected a down-closed set"):
        ExpReparamAscent([x], Polytope([[-1.0, -1.0]], [-0.5]))
    for bad in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match=r"^lr: expected a finite number in \(0, inf\), got"):
            ExpReparamAscent([x], K, lr=bad)
    with pytest.raises(ValueError, match="^lr: expected"):
        ExpReparamAscent([{"params": [x], "lr": -0.1}], K)
    with pytest.raises(ValueError, match=r"^params: expected a last axis of 2, got shape \(3,\)"):
        ExpReparamAscent([x, parameter([0.1, 0.1, 0.1])], K)
    with pytest.raises(ValueError, match=r"^params: expected a last axis of 2, got shape \(\)"):
        ExpReparamAscent([x, parameter(0.1)], K)
    assert x.tolist() == [0.9, 0.9], "nothing is projected before everything is accepted"
    with pytest.raises(ValueError, match="^closure: expected a function that computes the reward"):
        ExpReparamAscent([x], K).step()
