"""The experiments of pages 3 and 4: their bounds by hand, their certificates by brute force, the same numbers on torch."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from paperbook.papers.dr_submodular import studies
from paperbook.papers.dr_submodular.baselines import subsets
from paperbook.papers.dr_submodular.play import Pool, comparator_values, play, regret
from paperbook.study.seeds import rng

E = math.e


@pytest.fixture(scope="module")
def task() -> studies.Problem:
    return studies.problem(2, 1.0, 0.1, 20, 0)


def test_bounds_on_values_and_gradients_hold_on_a_grid(task: studies.Problem) -> None:
    grid = np.array(list(itertools.product(np.linspace(0, 1, 21), repeat=2)))[:, None]
    values, gradients = task.family.value(grid), np.linalg.norm(task.family.grad(grid), axis=-1)
    assert values.min() >= -1e-12 and values.max() <= task.value_bound
    assert gradients.max() <= task.gradient_bound * (1 + 1e-12)
    assert gradients.max() == pytest.approx(task.gradient_bound, rel=0.5), "no loose bound"


def test_radii_and_blocks() -> None:
    assert studies.smoothing("gradient", 1000) == studies.smoothing("semi-bandit", 1000) == 0
    assert studies.smoothing("one value", 10_000) == pytest.approx(0.03) and studies.smoothing("one value", 1) == 0.2
    assert studies.smoothing("two values", 10_000) == pytest.approx(0.003)
    assert studies.smoothing("bandit", 100_000) == pytest.approx(0.03)
    # 1000^(1/3) is 9.999999999999998 in floating point, and must not become 10 + 1
    assert studies.block_length("semi-bandit", 1000) == 10 and studies.block_length("semi-bandit", 1001) == 11
    assert studies.block_length("bandit", 100_000) == 10 and studies.block_length("one value", 10**6) == 1


def test_the_bound_by_hand(task: studies.Problem) -> None:
    T, D, M0, M1, beta = 1000, math.sqrt(2), task.value_bound, task.gradient_bound, 1 - 1 / E
    assert studies.bound(task, "gradient", T).total == pytest.approx(1.5 * beta * D * M1 * math.sqrt(T))
    semi = studies.bound(task, "semi-bandit", T)
    assert semi.learning == pytest.approx(1.5 * beta * D * M1 * math.sqrt(T * 10))
    assert semi.exploring == pytest.approx(M1 * D * 100) and semi.smoothing == 0
    delta, r = 0.3 * T**-0.25, 1 / (2 + math.sqrt(2))
    one = studies.bound(task, "one value", T)
    assert one.learning == pytest.approx(1.5 * beta * D * 2 * M0 / delta * math.sqrt(T)) and one.exploring == 0
    assert one.smoothing == pytest.approx(delta * M1 * T * (1 + (1 + math.sqrt(2) + D / r) / E))
    assert studies.bound(task, "two values", T).learning == pytest.approx(1.5 * beta * D * 2 * M1 * math.sqrt(T))


@pytest.mark.parametrize("feedback", studies.FEEDBACKS)
def test_exponents_of_the_bounds(task: studies.Problem, feedback: str) -> None:
    """Over eight decades the bound grows as the table of the page says, whatever the constants are."""
    T = [10**8, 10**16]
    low, high = (studies.bound(task, feedback, t).total for t in T)
    assert math.log(high / low) / math.log(10**8) == pytest.approx(studies.RATES[feedback], abs=0.01)


def test_the_certificate_by_brute_force(task: studies.Problem) -> None:
    """Against all vertices, with g by another number of nodes; and it is above the regret itself, which is enumerated."""
    reps, T = 3, 60
    index = rng(1, "index").integers(20, size=(T, reps))
    player = studies.algorithm(task, "gradient", T, reps, lambda name: rng(1, name))
    twin = studies.algorithm(task, "gradient", T, reps, lambda name: rng(1, name))
    history = play(Pool(task.family, index), player, T, surrogate_nodes=12)
    vertices, wrapper = subsets(2, 1).astype(float), twin.base.wrapper
    gained = np.zeros((len(vertices), reps))
    for t in range(T):
        f, x = Pool(task.family, index)[t], twin.base.learner.act()
        twin.act()
        g = wrapper.beta * wrapper.linear_gain(f, x, 60)
        gained += np.stack([(g * (v - x)).sum(-1) for v in vertices])
        twin.update(tuple(f.grad(point) for point in twin.queries()))
    assert history.linear_regret == pytest.approx(gained.max(axis=0), abs=1e-9)  # 12 nodes are exact to 1e-12 a round
    for i in range(reps):
        values = comparator_values(Pool(task.family, index[:, i]), vertices, T)
        alone = regret(history, 1 / E, "static", np.repeat(values[:, :, None], reps, axis=2))[i]
        assert history.linear_regret[i] >= alone - 1e-9


def test_rungs_are_reproducible_and_count_their_calls(task: studies.Problem) -> None:
    expected = {"gradient": 200, "semi-bandit": 200 // 6, "two values": 400, "one value": 200, "bandit": 200 // 3}
    for feedback, calls in expected.items():
        one, two = (studies.rung(task, feedback, [50, 200], 4, 7, nodes=8) for _ in range(2))
        assert np.array_equal(one.certificate, two.certificate) and one.calls[-1] == calls
        assert not np.array_equal(one.certificate, studies.rung(task, feedback, [50, 200], 4, 8, nodes=8).certificate)
        assert one.path_ratio <= 1 and np.isfinite(one.slope()) and one.rounds_per_second > 0
        assert np.all((one.exploring != 0) == (feedback in ("semi-bandit", "bandit")))


def test_torch_plays_the_same_game(task: studies.Problem) -> None:
    """Other random numbers, so the means of 64 players agree within 5 standard errors."""
    ours = studies.rung(task, "gradient", [300, 301], 64, 0, nodes=8).certificate[0]
    theirs = studies.rung(task, "gradient", [300, 301], 64, 0, nodes=8, place=studies.Place("cpu")).certificate[0]
    error = np.hypot(ours.std(ddof=1), theirs.std(ddof=1)) / 8
    assert abs(ours.mean() - theirs.mean()) < 5 * error


def test_auto_is_numpy_without_cuda() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert studies.Place("auto").device == ("cuda" if torch.cuda.is_available() else "numpy")
    with pytest.raises(ValueError, match="device: expected auto, cpu, cuda or cuda:<i>, got 'tpu9'"):
        studies.Place("tpu9").array([1.0])


def test_the_trap_as_the_page_tells_it() -> None:
    from paperbook.papers.dr_submodular.sets import BudgetBox

    T, K = 1000, BudgetBox(2, 1.0)
    env = studies.trap_sequence(T)
    assert env.starts == [0, 100] and env[99].value(np.array([0.0, 1.0])) == 1 and env[100].value(np.array([0.0, 1.0])) == 0.05
    duel = studies.duel(env, studies.contenders(K, 4, T, lambda name: rng(0, "trap", name)), T)
    reward = {name: float(history.average_reward.mean()) for name, (history, _) in duel.items()}
    assert reward["plain"] < 0.16 and reward["exponential"] > 0.6 and 0.45 < reward["anchored"] < reward["exponential"]
    assert duel["plain"][0].final == pytest.approx(np.array([[0.0, 1.0]] * 4))
    assert duel["exponential"][0].final[0] == pytest.approx([1, 0])
    assert duel["meta-frank-wolfe"][0].calls[0] == 32 * T


def test_the_best_of_many_starts_is_a_lower_bound_that_finds_vertices(task: studies.Problem) -> None:
    index = rng(3, "index").integers(20, size=(40, 2))
    found = studies.best_of(task, index, 16, 3)
    total = Pool(task.family, index).total(40)
    grid = np.array([p for p in itertools.product(np.linspace(0, 1, 41), repeat=2) if sum(p) <= 1])[:, None]
    best = total.value(grid).max(axis=0)
    assert found == pytest.approx(best, rel=1e-3), "a grid of 1/40 and ascent see the same optimum"


@pytest.mark.parametrize(("call", "message"), [
    (lambda: studies.algorithm(studies.problem(2, 1.0, 0.1, 2, 0), "telepathy", 10, 1, lambda name: rng(0, name)),
     "feedback: expected one of 'gradient', 'semi-bandit', 'two values', 'one value', 'bandit', got 'telepathy'"),
    (lambda: studies.problem(17, 1.0, 0.1, 2, 0), "dim: expected an integer in"),
    (lambda: studies.problem(2, 0.0, 0.1, 2, 0), "budget: expected a finite number in"),
    (lambda: studies.trap_sequence(5), "T: expected an integer in"),
    (lambda: studies.algorithm(studies.problem(2, 0.1, 0.1, 2, 0), "one value", 10, 1, lambda name: rng(0, name)),
     "delta: expected less than 0.02929, so that the shrunk set contains 0, got 0.1687"),
])  # fmt: skip
def test_bad_requests(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
