"""Tables under two feature maps: the same environment, the same values, and what the certificate makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paperbook.papers.reward_poisoning import studies_gym as study
from paperbook.papers.reward_poisoning.config_deep import GymnasiumConfig
from paperbook.papers.reward_poisoning.mdp import from_gymnasium
from paperbook.papers.reward_poisoning.programme import plain_programme
from paperbook.papers.reward_poisoning.studies_frequency import certified


@pytest.fixture(scope="module")
def lake() -> tuple[Any, study.LowRank]:
    exact = from_gymnasium("FrozenLake-v1", 12)
    return exact, study.kernel_rows(exact)


def test_kernel_rows_are_the_same_environment(lake: tuple[Any, study.LowRank]) -> None:
    """Not only small errors: every policy is worth the same in both, from every state."""
    exact, low = lake
    assert max(low.error_tv) < 1e-9 and max(low.error_reward) < 1e-9 and low.mdp.dim == 20 < exact.mdp.dim == 64
    rng = np.random.default_rng(0)
    for _ in range(5):
        policy = rng.integers(4, size=(12, 16))
        assert low.mdp.policy_q(policy) == pytest.approx(exact.mdp.policy_q(policy), abs=1e-9)


def test_ends_are_apart_and_worth_nothing(lake: tuple[Any, study.LowRank]) -> None:
    exact, low = lake
    ends = np.flatnonzero(exact.terminal)
    assert len(ends) == 5  # four holes and the goal
    for s in ends:
        assert np.array_equal(low.mdp.phi[s][:, 16:], np.eye(4)) and not low.mdp.phi[s][:, :16].any()
        assert (low.mdp.P()[:, s][..., ends].sum(axis=-1) == pytest.approx(1)) and not low.mdp.r()[:, s].any()
    on = ~exact.terminal
    assert not low.mdp.phi[on][:, :, 16:].any()


def test_errors_of_a_lower_rank_by_loops() -> None:
    exact = from_gymnasium("FrozenLake-v1", 4)
    low = study.ends_apart(exact, from_gymnasium("FrozenLake-v1", 4, 8))
    tv, miss = [], []
    for s in np.flatnonzero(~exact.terminal):
        for a in range(4):
            tv.append(sum(abs(low.mdp.P()[0, s, a, t] - exact.mdp.P()[0, s, a, t]) for t in range(low.mdp.states)) / 2)
            miss.append(abs(low.mdp.r()[0, s, a] - exact.mdp.r()[0, s, a]))
    assert low.error_tv == pytest.approx((max(tv), np.mean(tv))) and low.error_tv[0] > 0.1
    assert low.error_reward == pytest.approx((max(miss), np.mean(miss)))


def test_the_feature_map_decides(lake: tuple[Any, study.LowRank]) -> None:
    """The same targets, one environment: attackable with one-hot features (T6), not with the rows of the kernel."""
    exact, low = lake
    lowest = 0.0
    for target in study.hacked_targets(exact.mdp, 5, np.random.default_rng(3)):
        free, kind = certified(exact.mdp, target, 8.0)
        bound, other = certified(low.mdp, target, 20**0.5)
        assert kind == "attackable" and free.eps > 0.5 and other != "attackable" and bound.eps < 1e-5
        if bound.eps < lowest:
            lowest, worst = bound.eps, target
    assert lowest < -0.01
    # the second route is the programme as written, through cvxpy; both stop near 1e-6
    assert lowest == pytest.approx(float(plain_programme(low.mdp, worst).eps), abs=2e-5)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_mixtures_are_the_same_environment(lake: tuple[Any, study.LowRank], share: float) -> None:
    exact, low = lake
    mixed = study.mixed_with_one_hot(low.mdp, share)
    policy = np.random.default_rng(1).integers(4, size=(12, 16))
    assert mixed.dim == 20 + 64 and mixed.policy_q(policy) == pytest.approx(exact.mdp.policy_q(policy), abs=1e-9)
    if share == 1:
        assert np.array_equal(np.argwhere(mixed.phi.reshape(64, -1))[:, 1], 20 + np.arange(64))


def test_from_robust_through_cap_limited_to_attackable() -> None:
    found = study.mixture_study(GymnasiumConfig(targets=3, table_horizon=12, seed=3))
    assert found["structural"][0] == 1 and found["attackable"][-1] == 1 and found["cap_limited"].max() > 0
    total = found["structural"] + found["cap_limited"] + found["attackable"]
    assert total == pytest.approx(np.ones(8)) and found["eps"].shape == (8, 3)
    assert (np.diff(found["eps"], axis=0) > 0).all(), "a larger share of what is free makes every eps larger"


def test_hacked_targets_are_worth_attacking_for(lake: tuple[Any, study.LowRank]) -> None:
    mdp = lake[0].mdp
    q = mdp.optimal_q()[0, mdp.s0]
    targets = study.hacked_targets(mdp, 4, np.random.default_rng(0))
    assert all(q[target[0, mdp.s0]] < q.max() for target in targets) and len(targets) == 4
    same = np.ones_like(mdp.theta)
    flat = type(mdp)(mdp.phi, mdp.mu, 0 * same, mdp.s0)
    with pytest.raises(RuntimeError, match="hacked_targets"):
        study.hacked_targets(flat, 1, np.random.default_rng(0))  # without rewards every action is optimal


def test_the_study() -> None:
    found = study.table_study(GymnasiumConfig(targets=3, table_horizon=6, ranks=[8, 16], seed=2))
    assert set(found) == {*study.TABLES, "FrozenLake-v1 rank 8", "FrozenLake-v1 kernel rows"}
    for name in study.TABLES:
        assert found[name]["attackable"] == 1 and found[name]["eps"].min() > 0, "T6"
    assert found["FrozenLake-v1 kernel rows"]["error_tv"][0] < 1e-9 < 0.1 < found["FrozenLake-v1 rank 8"]["error_tv"][0]
    assert all(len(row["eps"]) == 3 and row["interval"][0] <= row["attackable"] <= row["interval"][1] for row in found.values())


def test_bad_input_is_named() -> None:
    one, two = from_gymnasium("FrozenLake-v1", 4), from_gymnasium("FrozenLake-v1", 6, 8)
    with pytest.raises(ValueError, match="low"):
        study.ends_apart(one, two)
    with pytest.raises(ValueError, match="share"):
        study.mixed_with_one_hot(one.mdp, 1.5)
    with pytest.raises(ValueError, match="n:"):
        study.hacked_targets(one.mdp, 0, np.random.default_rng(0))


def test_one_environment_two_learners(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is the same environment; its learner gives way where that of the features does not, and at a smaller cost."""
    models, own = [], study.run_attack

    def spy(mdp: Any, *arguments: Any) -> Any:
        models.append(mdp)
        return own(mdp, *arguments)

    monkeypatch.setattr(study, "run_attack", spy)
    found = study.same_environment_two_learners(0, 600)
    policy = np.random.default_rng(0).integers(3, size=(3, 8))
    assert models[1].policy_q(policy) == pytest.approx(models[0].policy_q(policy), abs=1e-9)
    assert (models[0].dim, models[1].dim) == (5, 24)
    assert found["features"]["eps"] < study.BELOW < 0 < found["table"]["eps"]
    # thresholds of the page's claims
    assert found["features"]["late"] > 0.5 and found["table"]["late"] < 0.01
    assert found["table"]["late_cost"] < 0.01 * found["features"]["late_cost"]
