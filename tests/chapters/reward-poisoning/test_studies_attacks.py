"""The white-box page's experiments: what they keep of a run, and that attacks meet the same random numbers."""

import numpy as np
import pytest

from paperbook.papers.reward_poisoning import studies_attacks as study
from paperbook.papers.reward_poisoning.config_attacks import WhiteBoxConfig
from paperbook.papers.reward_poisoning.play import AttackHistory


@pytest.fixture(scope="module")
def draws():
    return study.draw_instances(14, 8, 3, 3, 5, np.random.default_rng(3))


@pytest.fixture(scope="module")
def found(draws):
    return study.attack_study(draws, study.ATTACKS, 400, 0, bonus=3.0)


def history(deviations, cost, regret):
    deviations = np.asarray(deviations, dtype=bool)[:, None]
    column = np.asarray(cost, dtype=float)[:, None]
    zero = np.zeros(deviations.shape)
    return AttackHistory(deviations, deviations.astype(int), column, zero, zero, np.asarray(regret, dtype=float)[:, None])


def test_trace_by_hand():
    deviations = np.tile([1, 0, 0, 0, 1], 8)  # 40 episodes, 16 deviations
    kept = study.trace(history(deviations, 0.5 * deviations, 0.4 * deviations + 0.1), np.array([0.3]))
    assert kept.at[0] == 1 and kept.at[-1] == 40 and {10, 20} <= set(kept.at)
    for k, t in enumerate(kept.at):
        assert kept.deviations[k, 0] == deviations[:t].sum()
        assert kept.cost[k, 0] == pytest.approx(0.5 * deviations[:t].sum())
        assert kept.regret[k, 0] == pytest.approx(0.4 * deviations[:t].sum() + 0.1 * t)
    assert kept.late[0] == 0.4 and kept.obedient_cost[0] == 0
    # the ratio is largest after the first episode, where one deviation has paid 0.5
    assert kept.bound_ratio[0] == pytest.approx(0.3 / 0.5)
    assert kept.slope("deviations")[0] == pytest.approx(np.log(17 / 5) / np.log(4))


def test_late_is_the_last_half():
    deviations = np.concatenate([np.ones(20), np.tile([0, 0, 0, 1], 5)])
    assert study.trace(history(deviations, deviations, deviations)).late[0] == 0.25


def test_sides(draws):
    able, robust = draws.sides()
    np.testing.assert_array_equal(able, draws.eps > 0.05)
    np.testing.assert_array_equal(robust, draws.eps < -0.05)
    near = draws.eps[~able & ~robust]
    assert len(near) and np.abs(near).max() <= 0.05 and (near > 0).any(), "a draw near 0 on the positive side is on neither"


def test_an_obedient_episode_with_a_cost_is_seen():
    deviations = np.zeros(40)
    assert study.trace(history(deviations, np.full(40, 0.2), np.zeros(40))).obedient_cost[0] == 0.2


def test_what_the_attacks_have_in_common(draws, found):
    assert set(found) == set(study.ATTACKS)
    assert found["none"].cost.max() == 0 and found["white"].obedient_cost.max() == 0
    for name in ("at_budget", "random"):
        # sums of a few hundred floats
        assert (found[name].cost[-1] <= found["white"].cost[-1] + 1e-9).all()
    positive = draws.eps > 0
    for name in ("white", "cheap"):
        assert np.nanmax(found[name].bound_ratio[positive]) <= 1 + 1e-5  # the certificate's tolerance over eps
    again = study.attack_study(draws, ("white",), 400, 0, bonus=3.0)["white"]
    np.testing.assert_array_equal(again.deviations, found["white"].deviations)
    # without a perturbation the runs are one and the same: a penalty of nothing is no attack
    silent = study.attack_study(draws, ("at",), 400, 0, bonus=3.0, delta=0.0)["at"]
    np.testing.assert_array_equal(silent.deviations, found["none"].deviations)


def test_cheap_poison_keeps_its_margin_and_changes_less(draws):
    cheap = study.cheap_poison(draws)
    for mdp, target, one, theta in zip(draws.mdps, draws.targets, draws.certificates, cheap, strict=True):
        if one.eps <= 0:
            np.testing.assert_array_equal(theta, one.theta)
            continue
        q = mdp.optimal_q(theta)
        own = np.take_along_axis(q, target[..., None], axis=2)[..., 0]
        np.put_along_axis(q, target[..., None], -np.inf, axis=2)
        gap = (own - q.max(axis=2))[mdp.support(target)].min()
        assert gap > one.eps / 2 - 1e-6  # the solver's tolerance
        assert ((theta - mdp.theta) ** 2).sum() <= ((one.theta - mdp.theta) ** 2).sum() + 1e-6


def test_taught_rewards_teach_and_leave_the_target_alone(draws):
    shifts = study.taught_rewards(draws, 0.1)
    for mdp, target, shift in zip(draws.mdps, draws.targets, shifts, strict=True):
        q, later = np.zeros(shift.shape), np.zeros(mdp.states)
        for h in reversed(range(mdp.horizon)):
            q[h] = mdp.r()[h] + shift[h] + mdp.P()[h] @ later
            later = np.take_along_axis(q[h], target[h][:, None], axis=1)[:, 0]
        own = np.take_along_axis(q, target[..., None], axis=2)[..., 0]
        np.put_along_axis(q, target[..., None], -np.inf, axis=2)
        at = mdp.support(target)
        assert (own - q.max(axis=2))[at].min() > 0.1 - 1e-5  # Clarabel's default tolerance, scaled by H
        assert np.abs(np.take_along_axis(shift, target[..., None], axis=2)[..., 0][at]).max() < 1e-6


def test_loss_is_at_least_the_margin_times_the_rarest_state(draws):
    loss, eps = draws.loss, draws.eps
    rare = np.array([mdp.occupancy(goal)[mdp.support(goal)].min() for mdp, goal in zip(draws.mdps, draws.targets, strict=True)])
    robust = eps < -1e-4
    assert robust.any() and (loss[robust] >= rare[robust] * -eps[robust] - 1e-9).all()
    assert np.abs(loss[eps > 1e-4]).max() < 1e-6


def test_counts_by_sign():
    eps = np.array([0.5, 0.04, -0.3, -0.06, 0.06])
    assert study.against_sign(eps, ["attacked", "resisted", "resisted", "unclear", "unclear"]) == {
        "attackable": {"attacked": 1, "unclear": 1, "resisted": 0},
        "robust": {"attacked": 0, "unclear": 1, "resisted": 1},
    }


def test_bad_inputs(draws):
    with pytest.raises(ValueError, match="attacks: expected names out of"):
        study.attack_study(draws, ("black",), 10, 0, bonus=3.0)
    with pytest.raises(ValueError, match="expected 'white' before 'random'"):
        study.attack_study(draws, ("random", "white"), 10, 0, bonus=3.0)
    with pytest.raises(ValueError, match="mask: expected at least one draw"):
        draws.subset(np.zeros(14, dtype=bool))
    with pytest.raises(ValueError, match="n_instances: expected so many"):
        draws.subset(draws.eps > 0).sides()
    with pytest.raises(ValueError, match="n: expected"):
        study.draw_instances(0, 8, 3, 3, 5, np.random.default_rng(0))
    with pytest.raises(ValueError, match="cap: expected"):
        study.draw_instances(1, 8, 3, 3, 5, np.random.default_rng(0), cap=0.0)


def test_parameters():
    assert WhiteBoxConfig().needs().memory_gb < 1
    with pytest.raises(ValueError, match="latent_support: expected at most S = 4, got 5"):
        WhiteBoxConfig(S=4, latent_support=5)
    assert WhiteBoxConfig(episodes=6000).work().amount == 2 * WhiteBoxConfig().work().amount
