"""Tabular peers: their rewards teach the target, two of them by hand, and what they share with the certificate."""

import numpy as np
import pytest

from paperbook.papers.reward_poisoning.certificate import CapInfeasible, MarginInfeasible, NoRival, certify, minimal_cost
from paperbook.papers.reward_poisoning.mdp import random_instance, random_linear_mdp, tabular_linear_mdp
from paperbook.papers.reward_poisoning.teaching import ma2019, rakhsha2020

MODELLED = 1e-5  # the modelling tool's solver at its default accuracy of 1e-8, on norms of numbers of size 1


def instance(seed):
    return random_instance(5, 3, 3, 4, rng=np.random.default_rng(seed))


def margins(mdp, target, reward):
    """Q(s, target) - Q(s, a) (H, S, A) by backward induction on the target's values, written out again."""
    later, out = np.zeros(mdp.states), np.zeros(reward.shape)
    for h in reversed(range(mdp.horizon)):
        q = reward[h] + np.einsum("sat,t->sa", mdp.P()[h], later)
        later = np.array([q[s, target[h, s]] for s in range(mdp.states)])
        out[h] = later[:, None] - q
        out[h][np.arange(mdp.states), target[h]] = np.inf
    return out


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("norm", [1, 2, "inf"])
def test_taught_rewards_have_the_margin(seed, norm):
    mdp, target = instance(seed)
    everywhere = ma2019(mdp, target, 0.2, norm=norm)
    assert margins(mdp, target, everywhere.reward).min() >= 0.2 - MODELLED
    law = mdp.occupancy(target)
    reached = rakhsha2020(mdp, target, 0.2, norm=norm)
    found = margins(mdp, target, reached.reward).min(axis=2)
    assert (found * law)[law > 1e-12].min() >= 0.2 - MODELLED
    per_visit = rakhsha2020(mdp, target, 0.2, norm=norm, by_policy=False)
    assert per_visit.cost <= min(everywhere.cost, reached.cost) + MODELLED  # it asks for less than either


def test_one_state_by_hand():
    # rewards (0, 1), target action 0, margin m: the least change in the 2-norm moves both by (1 + m) / 2
    mdp = tabular_linear_mdp(np.ones((1, 2, 1)), [[0.0, 1.0]], horizon=1)
    target = np.array([[0]])
    found = ma2019(mdp, target, 0.4)
    np.testing.assert_allclose(found.reward.ravel(), [0.7, 0.3], atol=MODELLED)
    assert found.cost == pytest.approx(1.4 / 2**0.5, abs=MODELLED)
    kept = rakhsha2020(mdp, target, 0.4, pinned=True)  # the target's reward stays 0, so the rival falls to -0.4
    np.testing.assert_allclose(kept.reward.ravel(), [0, -0.4], atol=MODELLED)


def test_no_change_where_the_target_is_already_best():
    mdp, _ = instance(3)
    best = mdp.optimal_policy()
    gap = np.sort(mdp.optimal_q(), axis=2)
    margin = 0.9 * float((gap[..., -1] - gap[..., -2]).min())
    assert ma2019(mdp, best, margin).cost == pytest.approx(0, abs=MODELLED)


@pytest.mark.parametrize("seed", range(4))
def test_restricted_to_linear_pinned_rewards_it_is_the_certificate(seed):
    mdp, target = instance(seed)
    cap = float(np.sqrt(mdp.dim)) * 1.5
    eps = certify(mdp, target, cap=cap, q_mode="policy").eps
    options = {"linear": True, "pinned": True, "cap": cap, "by_policy": False}
    if eps > 0:
        assert rakhsha2020(mdp, target, 0.98 * eps, **options).status == "optimal"
    with pytest.raises(MarginInfeasible, match="margin: expected"):
        rakhsha2020(mdp, target, max(1.02 * eps, 1e-3), **options)


def test_the_cheapest_tabular_poison_is_theirs():
    # one-hot features: parameters are rewards, so T8b and pinned teaching minimise the same norm
    rng = np.random.default_rng(5)
    mdp = tabular_linear_mdp(rng.dirichlet(np.ones(3), size=(2, 3, 2)), rng.uniform(size=(2, 3, 2)))
    target = rng.integers(2, size=(2, 3))
    ours = minimal_cost(mdp, target, 0.3, cap=None, q_mode="policy")
    theirs = rakhsha2020(mdp, target, 0.3, pinned=True, by_policy=False)
    assert ours.cost**0.5 == pytest.approx(theirs.cost, abs=MODELLED)


def test_free_tables_can_always_be_taught_but_linear_ones_cannot():
    found = {True: 0, False: 0}
    for seed in range(12):
        mdp, target = instance(seed)
        try:
            robust = certify(mdp, target, cap=None, q_mode="policy").eps < 0.05
        except CapInfeasible:  # not without a cap
            raise AssertionError from None
        found[robust] += 1
        assert rakhsha2020(mdp, target, 0.05, pinned=True).status == "optimal"
        if robust:
            with pytest.raises(MarginInfeasible):
                rakhsha2020(mdp, target, 0.05, linear=True, pinned=True, by_policy=False)
    assert min(found.values()) > 0, "both kinds must be among the draws"


def test_teaching_says_what_is_wrong():
    mdp, target = instance(0)
    with pytest.raises(ValueError, match="norm: expected 1, 2 or 'inf', got 3"):
        ma2019(mdp, target, 0.1, norm=3)
    with pytest.raises(ValueError, match="margin: expected"):
        ma2019(mdp, target, 0.0)
    with pytest.raises(ValueError, match="cap: expected linear=True"):
        rakhsha2020(mdp, target, 0.1, cap=1.0)
    alone = random_linear_mdp(3, 1, 2, 3, rng=np.random.default_rng(0))
    with pytest.raises(NoRival, match="at least 2 actions"):
        ma2019(alone, np.zeros((2, 3), dtype=int), 0.1)
