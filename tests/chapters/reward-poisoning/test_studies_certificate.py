"""What pages 1 and 2 show: prices of mixtures, the cone, transformed instances, poisons, by grids and by hand."""

import itertools

import numpy as np
import pytest
from pydantic import ValidationError

from paperbook.papers.reward_poisoning import studies_certificate as studies
from paperbook.papers.reward_poisoning.bandits import bandit_instance, planar_eps
from paperbook.papers.reward_poisoning.certificate import certify
from paperbook.papers.reward_poisoning.config_certificate import BanditsConfig, LinearMDPsConfig
from paperbook.papers.reward_poisoning.mdp import random_instance, tabular_linear_mdp

SOLVER = 1e-6  # a certificate's interval is narrower than that


def simplex(parts, steps):
    """All weights in multiples of 1 / steps."""
    rows = [c for c in itertools.product(range(steps + 1), repeat=parts - 1) if sum(c) <= steps]
    return np.array([(*c, steps - sum(c)) for c in rows]) / steps


def attackable(n, seed=0):
    rng = np.random.default_rng(seed)
    found = []
    while len(found) < n:
        one = certify(*random_instance(6, 3, 3, 5, rng=rng))
        if one.attackable:
            found.append(one)
    return found


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_the_least_price_of_a_mixture_is_the_margin(dim):
    rng = np.random.default_rng(dim)
    grid = simplex(3, 60)
    for _ in range(6):
        arms, theta = studies.random_bandit(4, dim, rng)
        eps = certify(*bandit_instance(arms, theta, 0)).eps
        prices = studies.hull_bound(arms, theta, 0, grid)
        assert prices.min() >= eps - SOLVER
        # the price is Lipschitz in the weights: each vertex moves it by at most |v| (1 + 1/|x_t|) + rho <= 2 sqrt d (1 + 1/|x_t|)
        assert prices.min() <= eps + 2 * np.sqrt(dim) * (1 + 1 / np.linalg.norm(arms[0])) * 3 / 60


def test_the_price_of_a_mixture_by_hand():
    # v = .4, |x_t| = .5: known part (.8, 0), rho = 1.5 at cap 1.7; y = (.5, .6) / 2 has c = .5 and .3 across
    arms = [[0.5, 0.0], [0.5, 0.0], [0.0, 0.6]]
    assert studies.hull_bound(arms, [0.8, 0.3], 0, [0.5, 0.5], cap=1.7) == pytest.approx(0.5 * 0.4 + 1.5 * 0.3)


def test_the_cone_decides_as_a_grid_over_mixtures_does():
    rng, grid, seen = np.random.default_rng(3), simplex(3, 80), {True: 0, False: 0}
    for _ in range(60):
        arms, theta = studies.random_bandit(4, 2, rng)
        price = float(studies.hull_bound(arms, theta, 0, grid).min())
        meets = studies.hull_meets_cone(arms, theta, 0)
        if price <= 0:
            assert meets  # a mixture of the grid is a mixture
        elif price > 0.15:  # no grid is fine enough to hide that much
            assert not meets
        seen[meets] += 1
    assert min(seen.values()) >= 10, "both answers must be among the draws"


def test_the_segment_is_pinned_capped_and_has_the_top():
    arms, theta = np.array([[0.7, 0.3], [0.95, 0.1], [-0.1, 0.6]]), np.array([0.8, 0.6])
    walk = studies.pinned_segment(arms, theta, 0, cap=1.5, points=2001)
    np.testing.assert_allclose(walk.poison @ arms[0], arms[0] @ theta, atol=1e-12)  # rounding
    np.testing.assert_allclose(np.linalg.norm(walk.poison[[0, -1]], axis=1), 1.5)
    np.testing.assert_allclose(np.abs(np.diff(walk.z)), np.linalg.norm(np.diff(walk.poison, axis=0), axis=1))
    np.testing.assert_allclose(walk.margins[:, 1], walk.poison @ (arms[0] - arms[2]))
    # slopes are at most 1, so between points of a grid the top hides at most one spacing
    assert 0 <= planar_eps(arms, theta, 0, 1.5).eps - walk.envelope.max() <= walk.z[1] - walk.z[0]


def test_the_map_of_rivals_has_the_cone():
    target, theta = np.array([[0.4, 0.0]]), np.array([0.6, 0.8])
    values = studies.rival_map(target, theta, 0, points=21)
    axis, rho, v = np.linspace(-1, 1, 21), np.sqrt(2 - 0.36), 0.24
    for i, j in itertools.product(range(21), repeat=2):
        if axis[j] ** 2 + axis[i] ** 2 > 1 + 1e-9:
            assert np.isnan(values[i, j])
        elif axis[j] ** 2 + axis[i] ** 2 < 1 - 1e-9:  # x is the column, along the target
            assert values[i, j] == pytest.approx((1 - axis[j] / 0.4) * v + rho * abs(axis[i]))


def test_draws_leave_none_out_and_know_their_kinds():
    found = studies.draws(30, 6, 3, 3, 4, 1, np.random.default_rng(1))
    assert len(found.eps) == len(found.policy) == len(found.large_cap) == len(found.kinds) == 30
    again = [random_instance(6, 3, 3, 4, rng=rng) for rng in [np.random.default_rng(1)] for _ in range(30)]
    assert all((c.mdp.phi == mdp.phi).all() for c, (mdp, _) in zip(found.certificates, again, strict=True))
    assert {"attackable", "structurally-robust"} <= set(found.kinds)
    assert (found.large_cap >= found.eps - 2 * SOLVER).all() and (found.policy >= found.eps - 2 * SOLVER).all()
    positive, robust = found.split()
    assert [c.eps for c in positive] == found.eps[found.eps > 0].tolist() and all(c.eps < 0 for c in robust)
    assert len(positive) + len(robust) == 30
    with pytest.raises(ValueError, match=r"n_instances: expected draws of both kinds, got 0 attackable and \d robust"):
        studies.Draws(tuple(robust[:2]), found.policy[:2], found.large_cap[:2]).split()
    curves = studies.cap_curves(found.certificates[:4], [1.0, 20.0])
    np.testing.assert_allclose(curves[:, 0], found.eps[:4], atol=SOLVER)
    np.testing.assert_allclose(curves[:, 1], found.large_cap[:4], atol=20 * SOLVER)  # a solver's tolerance grows with the cap


def test_draws_know_both_modes():
    found = studies.draws(60, 8, 3, 3, 5, 1, np.random.default_rng(0))
    i = int((found.policy - found.eps).argmax())
    assert found.policy[i] > found.eps[i] + 1e-3, "sparse draws are not all alike in both modes"
    one = found.certificates[i]
    assert found.policy[i] == pytest.approx(certify(one.mdp, one.target, q_mode="policy").eps, abs=SOLVER)


def test_what_must_not_matter_does_not_and_what_must_does():
    certificate = attackable(1)[0]
    mdp, target = certificate.mdp, certificate.target
    moves = studies.invariances(mdp, target, np.random.default_rng(2))
    assert set(moves) == {"order", "rotation", "scale", "off the support"}
    assert max(moves.values()) <= 4 * SOLVER  # two certificates, one of them at twice the scale
    assert certify(mdp, target, cap=2 * mdp.dim**0.5).eps > certificate.eps + 1e-3, "a scale of the cap alone does matter"


def test_the_margin_of_parameters_by_value_iteration():
    for certificate in attackable(4, 5):
        # under the poison the target is optimal on its support, so the programme's values are those of value iteration
        assert studies.margin_of(certificate, certificate.theta) == pytest.approx(certificate.value_gap, abs=SOLVER)
        # at the truth nothing is changed on the support: its own values against the best of what deviates, path by path
        mdp, target = certificate.mdp, certificate.target
        own, later, least = mdp.policy_q(target), dict.fromkeys(range(mdp.states), 0.0), np.inf
        for h in reversed(range(mdp.horizon)):
            now = {}
            for s in range(mdp.states):
                q = [mdp.phi[s, a] @ mdp.theta[h] for a in range(mdp.actions)]
                q = [q[a] + sum(mdp.P()[h, s, a, t] * later[t] for t in later) for a in range(mdp.actions)]
                now[s] = own[h, s, target[h, s]] if certificate.support[h, s] else max(q)
                if certificate.support[h, s]:
                    least = min(least, *(now[s] - q[a] for a in range(mdp.actions) if a != target[h, s]))
            later = now
        assert studies.margin_of(certificate, mdp.theta) == pytest.approx(least, abs=1e-12)  # rounding


def test_half_the_margin_costs_what_concavity_allows():
    for certificate in attackable(8, 7):
        found = studies.compare_poisons(certificate)
        assert 0 < found.cost[0] <= found.bound * (1 + SOLVER) < found.cost[1]
        assert found.change[0] > 0


def test_the_bound_on_the_cheapest_poison_is_tight_with_one_rival():
    # two one-hot arms, the target at .2: half the margin is reached by moving the rival's reward alone
    mdp, target = tabular_linear_mdp(np.ones((1, 1, 2, 1)), [[[0.2, 0.9]]]), np.array([[0]])
    found = studies.compare_poisons(certify(mdp, target))
    eps = 0.2 + np.sqrt(2 - 0.04)
    assert found.cost[0] == pytest.approx((0.9 - 0.2 + eps / 2) ** 2, abs=1e-5)
    assert found.bound == pytest.approx(found.cost[0], rel=1e-4)
    assert found.change[1] == pytest.approx(eps + 0.7, abs=1e-4)


def test_a_duplicate_of_the_target_makes_it_robust():
    certificate = attackable(1)[0]
    changed = studies.with_duplicate(certificate.mdp, certificate.target)
    own = certificate.target[0, certificate.mdp.s0]
    same = (changed.phi[certificate.mdp.s0] == certificate.mdp.phi[certificate.mdp.s0, own]).all(axis=1)
    assert same.sum() == 2 and (changed.phi[1:] == certificate.mdp.phi[1:]).all()
    assert certify(changed, certificate.target).eps <= SOLVER


def test_restricted_teaching_knows_the_same_margin():
    rng = np.random.default_rng(11)
    found = studies.draws(2, 4, 2, 2, 3, 1, rng)
    assert all(studies.teaching_agrees(c) for c in found.certificates)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: studies.hull_bound([[1, 0], [0, 1]], [1, 0], 0, [0.5]), ValueError, "weights: expected sums of 1"),
        (lambda: studies.hull_bound([[1, 0], [0, 1]], [1, 0], 0, [0.5, 0.5]), ValueError, "theta, weights: expected shapes"),
        (lambda: studies.hull_bound([[0, 0], [0, 1]], [1, 0], 0, [1.0]), ValueError, "expected a target with a length"),
        (lambda: studies.pinned_segment([[1, 0], [0, 1]], [1, 0], 0, points=1), ValueError, "points: expected"),
        (lambda: studies.random_bandit(1, 2, np.random.default_rng(0)), ValueError, "arms: expected"),
        (lambda: studies.compare_poisons(certify(*studies.counterexample())), ValueError, "expected an attackable instance"),
        (lambda: studies.compare_poisons(attackable(1)[0], 1.0), ValueError, "share: expected"),
        (lambda: BanditsConfig(arms=1), ValidationError, "arms"),
        (lambda: LinearMDPsConfig(S=2, latent_support=3), ValidationError, "latent_support: expected at most"),
        (lambda: LinearMDPsConfig(caps=[2.0, 1.0]), ValidationError, "caps: expected increasing"),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
