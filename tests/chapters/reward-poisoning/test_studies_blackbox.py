"""Studies of the black box: data, estimator, signs and costs, each against a second route."""

import math

import numpy as np
import pytest

from paperbook.papers.reward_poisoning import studies_blackbox as box
from paperbook.papers.reward_poisoning.attacks import AdaptiveTarget, TwoStage, estimate
from paperbook.papers.reward_poisoning.certificate import certify
from paperbook.papers.reward_poisoning.config_blackbox import BlackBoxConfig
from paperbook.papers.reward_poisoning.learner import LSVIUCB
from paperbook.papers.reward_poisoning.mdp import LinearMDP, random_instance
from paperbook.papers.reward_poisoning.play import run_attack


@pytest.fixture(scope="module")
def draws():
    return box.draw_instances(10, 8, 3, 3, 5, near_zero=0.05, rng=np.random.default_rng(8))


def test_all_draws_above_the_threshold_are_kept_and_no_others(draws):
    rng = np.random.default_rng(8)
    pairs = [random_instance(8, 3, 3, 5, rng=rng) for _ in range(10)]
    eps = np.array([certify(mdp, target).eps for mdp, target in pairs])
    assert draws.drawn == 10
    np.testing.assert_array_equal(draws.eps, eps[np.abs(eps) > 0.05])
    assert 0 < (draws.eps > 0).sum() < len(draws)  # both kinds, which other tests need
    kept = draws.where(draws.eps > 0)
    np.testing.assert_array_equal(kept.eps, draws.eps[draws.eps > 0])
    np.testing.assert_array_equal(kept.targets[0], draws.targets[np.flatnonzero(draws.eps > 0)[0]])
    with pytest.raises(ValueError, match="keep: expected at least one instance, got none"):
        draws.where(draws.eps > 1e9)


def test_uniform_data_have_the_law_of_uniform_play(draws):
    mdp, target, n = draws.mdps[0], draws.targets[0], 20_000
    data = box.uniform_data(mdp, target, n, np.random.default_rng(1), noise=0.0)
    visits = data.counts.sum(axis=3)
    np.testing.assert_array_equal(visits.sum(axis=(1, 2)), n)
    np.testing.assert_array_equal(data.counts[0].sum(axis=(0, 1)), visits[1].sum(axis=1))  # who arrives goes on from there
    np.testing.assert_allclose(data.rewards, visits * mdp.r(), atol=1e-8)  # sums of 20,000 terms of at most 1
    # the law by enumeration of all sequences of actions
    law, follow = np.zeros((3, 8, 3)), np.zeros((3, 8))
    for actions in np.ndindex(3, 3, 3):
        here, obeys = np.eye(8)[mdp.s0] / 27, np.eye(8)[mdp.s0] / 27
        for h, a in enumerate(actions):
            law[h, :, a] += here
            follow[h] += obeys
            here, obeys = here @ mdp.P()[h, :, a], (obeys * (target[h] == a)) @ mdp.P()[h, :, a]
    np.testing.assert_allclose(box.uniform_law(mdp), law, atol=1e-14)
    error = 4.5 * np.sqrt(law * (1 - law) / n) + 1e-12  # standard errors of a share; 72 of them are looked at
    assert (np.abs(visits / n - law) <= error).all()
    error = 4.5 * np.sqrt(follow * (1 - follow) / n) + 1e-12
    assert (np.abs(data.reached / n - follow) <= error).all()


def test_rewards_noise_has_its_size(draws):
    mdp, n = draws.mdps[0], 5000
    data = box.uniform_data(mdp, draws.targets[0], n, np.random.default_rng(2), noise=0.3)
    visits = data.counts.sum(axis=3)
    z = (data.rewards - visits * mdp.r())[visits > 0] / (0.3 * np.sqrt(visits[visits > 0]))
    # independent standard normals: their mean square has standard error sqrt(2 / number)
    assert abs((z**2).mean() - 1) < 4 * math.sqrt(2 / len(z))


def test_errors_by_hand(draws):
    mdp = draws.mdps[0]
    assert box.estimation_errors(mdp, mdp) == (0.0, 0.0)
    shifted = LinearMDP(mdp.phi, mdp.mu, mdp.theta + np.array([[0.1], [0.2], [0.2]]), mdp.s0)
    rewards, kernels = box.estimation_errors(mdp, shifted)  # features sum to 1, so every reward moves by the shift
    assert rewards == pytest.approx(math.sqrt((0.01 + 0.04 + 0.04) / 3)) and kernels == 0
    phi = np.eye(2)[None].repeat(2, axis=0)
    one = LinearMDP(phi, np.array([[[1.0, 0], [1, 0]]] * 3), np.zeros((3, 2)))
    other = LinearMDP(phi, np.array([[[0.0, 1], [1, 0]]] * 3), np.zeros((3, 2)))
    assert box.estimation_errors(one, other)[1] == pytest.approx(0.5)  # one of the two actions, of which each is half


def test_reward_errors_are_those_of_least_squares(draws):
    found = box.estimation_study(draws, (200, 800, 3200), np.random.default_rng(3))
    # the mean square against noise^2 rank / n, over some 70 degrees of freedom a length: relative error sqrt(2 / 70) = 0.17
    ratio = (found.rewards**2).mean(axis=1) / (found.expected**2).mean(axis=1)
    assert (np.abs(ratio - 1) < 4 * 0.17).all()
    # the mean over lengths has sqrt(3) less; a wrong rank or noise is a factor
    assert abs(ratio.mean() - 1) < 0.4
    # each end's log is off by 0.17 / 2, the lengths are ln 16 apart: 4 standard errors
    assert abs(box.slope(found.n_grid, np.sqrt((found.rewards**2).mean(axis=1))) + 0.5) < 4 * 0.085 * math.sqrt(2) / math.log(16)


def test_expected_reward_error_counts_the_features_that_are_met():
    phi = np.eye(6).reshape(3, 2, 6)
    mu = np.zeros((2, 6, 3))
    mu[:, 0, 1] = mu[:, 1:, 0] = 1  # from state 0 to state 1 or back to 0; nobody comes to state 2
    mdp = LinearMDP(phi, mu, np.zeros((2, 6)))
    # two features at the first step, four at the second: the mean is 3
    assert box.expected_reward_error(mdp, 100, 0.2) == pytest.approx(0.2 * math.sqrt(3 / 100))


def test_kernels_of_greatest_likelihood(draws):
    mdp = draws.mdps[1]
    data = box.uniform_data(mdp, draws.targets[1], 400, np.random.default_rng(4))
    mu = box.likelihood_kernels(mdp.phi, data.counts, floor=0.0)
    np.testing.assert_allclose(mu.sum(axis=2), 1, atol=1e-12)

    def likelihood(kernels):
        p = np.einsum("sad,hdt->hsat", mdp.phi, kernels)
        return (data.counts * np.log(np.where(data.counts > 0, p, 1))).sum()

    assert likelihood(mu) >= likelihood(mdp.mu) - 0.5  # 200 steps are near the top; the truth is not above it
    rng = np.random.default_rng(5)
    for _ in range(50):  # and no small change goes up: first order, so by the square of the step
        other = mu + 1e-3 * (rng.dirichlet(np.ones(8), size=mu.shape[:2]) - mu)
        assert likelihood(other) <= likelihood(mu) + 1e-2
    # one latent a state and action: frequencies
    phi = np.eye(4).reshape(2, 2, 4)
    counts = rng.integers(1, 9, size=(1, 2, 2, 2)).astype(float)
    frequencies = (counts / counts.sum(axis=3, keepdims=True)).reshape(1, 4, 2)
    np.testing.assert_allclose(box.likelihood_kernels(phi, counts), frequencies, atol=1e-12)
    with pytest.raises(ValueError, match="counts: expected shape"):
        box.likelihood_kernels(phi, counts[:, :1])


def test_the_reward_estimate_in_the_ball_by_brute_force():
    """Two actions with nearly the same features: least squares would leave the cap."""
    phi = np.array([[[0.5, 0.5], [0.51, 0.49]]])
    n, seen = np.array([300.0, 40.0]), np.array([0.3, 0.36])
    found = estimate(phi, n.reshape(1, 1, 2, 1), (n * seen).reshape(1, 1, 2), [[9]], [[0]], 0).mdp.theta[0]
    angle = np.linspace(0, 2 * np.pi, 400_001)
    ring = math.sqrt(2) * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    loss = ((ring @ phi[0].T - seen) ** 2) @ n
    np.testing.assert_allclose(found, ring[loss.argmin()], atol=1e-4)  # spacing 2e-5, and the ridge of 1e-3 beside 340 visits
    assert np.abs(phi[0] @ found - seen).max() < 0.06  # the well determined direction is kept: shortening loses more


def test_snapshots_are_what_the_black_box_estimates_from(draws):
    taken = box.stage_one(draws, (30, 90), np.random.default_rng(6), bonus=3.0)
    for explore in (30, 90):
        attacker = TwoStage(draws.phi, draws.targets, explore + 1, explore=explore)
        learner = LSVIUCB(draws.phi, 3, bonus=3.0)
        run_attack(draws.mdps, learner, attacker, draws.targets, explore + 1, np.random.default_rng(6))
        for i, (mdp, target) in enumerate(zip(draws.mdps, draws.targets, strict=True)):
            own = box.believed_eps(taken[explore][i].estimate(mdp, target).mdp, target)
            assert own == pytest.approx(attacker.eps[i], abs=1e-9)


def test_signs(draws):
    study = box.sign_study(draws, (30, 300), np.random.default_rng(7), bonus=3.0)
    assert set(study.found) == set(box.VARIANTS)
    for variant, found in study.found.items():
        by_hand = [[not math.isnan(e) and (e > 0) == (t > 0) for e, t in zip(row, study.eps, strict=True)] for row in found]
        np.testing.assert_array_equal(study.agrees(variant), by_hand)
    assert ((study.off > 0) & (study.off < 0.5)).all() and (study.off[1] < study.off[0]).all()
    # the variants once more, from the same data
    play, uniform = np.random.default_rng(7).spawn(2)
    data = box.stage_one(draws, (30, 300), play, bonus=3.0)[30][0]
    mdp, target = draws.mdps[0], draws.targets[0]
    belief = data.estimate(mdp, target).mdp
    both = {
        "true kernels": LinearMDP(mdp.phi, mdp.mu, belief.theta),
        "true rewards": LinearMDP(mdp.phi, belief.mu, mdp.theta),
        "likelihood": LinearMDP(mdp.phi, box.likelihood_kernels(mdp.phi, data.counts), belief.theta),
        "uniform play": box.uniform_data(mdp, target, 30, uniform).estimate(mdp, target).mdp,
    }
    for variant, one in both.items():
        assert study.found[variant][0, 0] == pytest.approx(certify(one, target).eps, abs=1e-9)
    # with the whole truth but for rewards that are good to a hundredth, margins are good to some hundredths
    assert np.abs(study.found["true kernels"][1] - study.eps).max() < 0.1 * max(1, np.abs(study.eps).max())
    with pytest.raises(ValueError, match="variants"):
        box.sign_study(draws, (30,), np.random.default_rng(7), bonus=3.0, variants=("guess",))


def test_runs_share_their_random_numbers(draws):
    study = box.attack_study(draws, (60, 200), np.random.default_rng(9), bonus=3.0)
    assert study.explore == (22, 54)  # 60^(3/4) = 21.6, 200^(3/4) = 53.2
    # the first stage is the adaptive target's attack on the same learner with the same numbers
    seed = np.random.default_rng(9).spawn(1)[0].integers(2**63)
    learner = LSVIUCB(draws.phi, 3, bonus=3.0)
    other = run_attack(
        draws.mdps, learner, AdaptiveTarget(draws.targets, math.sqrt(5)), draws.targets, 200, np.random.default_rng(seed)
    )
    np.testing.assert_allclose(study.first, [other.cost[:22].sum(axis=0), other.cost[:54].sum(axis=0)])
    np.testing.assert_allclose(study.cost["adaptive target"], [other.cost[:60].sum(axis=0), other.cost.sum(axis=0)])
    np.testing.assert_array_equal(study.deviations["adaptive target"][1], other.deviations.sum(axis=0))
    late = [other.deviations[30:60].mean(axis=0), other.deviations[100:].mean(axis=0)]
    np.testing.assert_allclose(study.late["adaptive target"], late)
    for name in box.ATTACKS:
        assert (study.deviations[name] <= np.array([[60], [200]])).all()
        # at most H steps of at most 2 sqrt(d) and the noise of a step, in episodes that deviate
        assert (study.cost[name] <= 3 * (2 * math.sqrt(5) + 0.6) * study.deviations[name] + 1e-9).all()


def test_without_an_estimate_there_is_no_margin():
    """A learner without optimism and with no reason to obey: the fine of a thousandth does not move it."""
    phi, mu = np.eye(2)[None], np.ones((1, 2, 1))
    mdp = LinearMDP(phi, np.repeat(mu, 2, axis=0), np.array([[1.0, 0.0]] * 2))
    target = np.array([[1], [1]])
    draws = box.Draws(1, (mdp,), target[None], (certify(mdp, target),))
    study = box.attack_study(draws, (40, 80), np.random.default_rng(2), bonus=0.0, penalty=1e-3)
    assert np.isnan(study.eps_hat).all() and np.isnan(study.margin).all()
    assert (study.late["black box"] == 1).all()
    working = box.attack_study(draws, (40, 80), np.random.default_rng(2), bonus=3.0)
    # one-hot features: obeying is worth 0, leaving -sqrt(2) a step. What is pinned was seen some twenty times with a noise of
    # 0.1 when T1 = 27 episodes were over: 0.1 / sqrt(20), four times, at two steps
    np.testing.assert_allclose([working.margin[1], working.eps_hat[1]], math.sqrt(2), atol=0.18)


def test_override_goes_on_where_the_estimate_says_robust(draws):
    robust = draws.where(draws.eps < 0)
    runs = [box.black_box_run(robust, 300, np.random.default_rng(1), bonus=3.0, override=o) for o in (False, True)]
    (quiet, left), (loud, right) = runs
    said = quiet.eps <= 0
    assert said.any()
    np.testing.assert_array_equal(quiet.eps, loud.eps)
    late = slice(quiet.explore, None)
    assert (left.cost[late][:, said] == 0).all() and (right.cost[late][:, said].sum(axis=0) > 0).all()
    np.testing.assert_array_equal(left.cost[:, ~said], right.cost[:, ~said])
    for one in (left, right):
        assert (one.cost[~one.deviations] == 0).all()  # obeying is free


def test_the_margin_that_is_delivered(draws):
    for mdp, target, certificate in zip(draws.mdps, draws.targets, draws.certificates, strict=True):
        margin = box.delivered_margin(mdp, target, certificate.theta)
        # the certificate's programme says the same of its own poison; 1e-6 is its tolerance
        assert margin == pytest.approx(certificate.eps, abs=2e-6)


def test_the_margin_that_is_delivered_by_enumeration():
    rng = np.random.default_rng(11)
    for _ in range(20):
        phi, mu = rng.dirichlet(np.ones(3), size=(2, 2)), rng.dirichlet(np.ones(2), size=(2, 3))
        mdp = LinearMDP(phi, mu, rng.uniform(-1, 1, size=(2, 3)))
        target, theta = rng.integers(2, size=(2, 2)), rng.uniform(-1, 1, size=(2, 3))
        truth, false = phi @ mdp.theta[1], phi @ theta[1]  # (S, A) at the last step
        P = phi[0] @ mu[0]  # (A, S) from the first state
        t0, other = target[0, 0], 1 - target[0, 0]
        obeys = phi[0, t0] @ mdp.theta[0] + sum(P[t0, s] * truth[s, target[1, s]] for s in (0, 1))
        leaves = [
            phi[0, other] @ theta[0] + P[other, 0] * false[0, x] + P[other, 1] * false[1, y] for x in (0, 1) for y in (0, 1)
        ]
        later = [truth[s, target[1, s]] - false[s, 1 - target[1, s]] for s in (0, 1)]  # both states are reached
        assert box.delivered_margin(mdp, target, theta) == pytest.approx(min(obeys - max(leaves), *later), abs=1e-12)


def test_slope_of_a_power():
    x = np.array([10, 100, 400])
    np.testing.assert_allclose(box.slope(x, np.stack([3 * x**0.75, x**-0.5], axis=1)), [0.75, -0.5])
    with pytest.raises(ValueError, match="x, values: expected the same number of points"):
        box.slope([1.0], [1.0])


def test_configuration_says_what_it_expects():
    assert BlackBoxConfig().needs().memory_gb < 2 and BlackBoxConfig().work().amount > 0
    with pytest.raises(ValueError, match="t1_grid: expected increasing numbers"):
        BlackBoxConfig(t1_grid=[200, 50])
    with pytest.raises(ValueError, match="latent_support: expected at most S = 4, got 5"):
        BlackBoxConfig(S=4, latent_support=5)
