"""Attackers: what they deliver, what it costs, and what the black box believes."""

import numpy as np
import pytest

from paperbook.papers.reward_poisoning.attacks import (
    AdaptiveTarget,
    Budgeted,
    NoAttack,
    RandomPerturbation,
    Shifted,
    TooFewData,
    TwoStage,
    WhiteBox,
    estimate,
)
from paperbook.papers.reward_poisoning.certificate import certify
from paperbook.papers.reward_poisoning.learner import LSVIUCB, EpsilonGreedyLSVI
from paperbook.papers.reward_poisoning.mdp import LinearMDP, random_instance
from paperbook.papers.reward_poisoning.play import run_attack


def sparse(seed):
    return random_instance(8, 3, 3, 5, rng=np.random.default_rng(seed))


class Recorder:
    """Hands everything on to an attacker and writes down what passes."""

    def __init__(self, inner):
        self.inner, self.batch, self.rows = inner, inner.batch, []

    def reset(self):
        self.inner.reset()
        self.rows.append([])

    def observe(self, h, s, a, r, s2):
        self.inner.observe(h, s, a, r, s2)

    def perturb(self, h, s, a, r):
        delta = self.inner.perturb(h, s, a, r)
        self.rows[-1].append((h, int(s[0]), int(a[0]), float(r[0]), float(delta[0])))
        return delta


def test_white_box_is_free_on_the_target_and_costs_the_shift_elsewhere():
    mdp, target = sparse(0)
    certificate = certify(mdp, target)
    attacker = Recorder(WhiteBox(mdp, target, certificate))
    history = run_attack(mdp, LSVIUCB(mdp.phi, 3, bonus=3.0), attacker, target, 300, np.random.default_rng(1))
    for episode, row in enumerate(attacker.rows):
        left, total = False, 0.0
        for h, s, a, _, delta in row:
            left = left or a != target[h, s]
            shift = mdp.phi[s, a] @ (certificate.theta[h] - mdp.theta[h])
            assert delta == pytest.approx(shift if left else 0.0, abs=1e-12)  # rounding of a product of five terms
            total += abs(shift) if left else 0.0
        assert history.cost[episode, 0] == pytest.approx(total, abs=1e-12)
        assert history.deviations[episode, 0] == left
    assert 0 < history.deviations.mean() < 0.5


def test_the_learner_that_obeys_is_told_the_truth_on_the_support():
    mdp, target = sparse(0)
    certificate = certify(mdp, target)
    reached = np.array(mdp.support(target))
    for h, s in np.argwhere(reached):
        # cost invariance, to the solver's feasibility tolerance; pins are eliminated, so in fact to rounding
        assert abs(mdp.phi[s, target[h, s]] @ (certificate.theta[h] - mdp.theta[h])) < 1e-7


def test_adaptive_target():
    mdp, target = sparse(2)
    attacker = Recorder(AdaptiveTarget(target, 1.5))
    history = run_attack(mdp, LSVIUCB(mdp.phi, 3), attacker, target, 100, np.random.default_rng(1))
    for row in attacker.rows:
        for h, s, a, _, delta in row:
            assert delta == (0.0 if a == target[h, s] else -1.5)
    assert history.cost.sum() == 1.5 * history.wrong_steps.sum() > 0


def test_random_perturbation_spends_its_budget_evenly_and_without_bias():
    rng = np.random.default_rng(3)
    attacker = RandomPerturbation(np.array([0.0, 50.0, 120.0]), 0.5, 3000, rng)
    zero = np.zeros(3, dtype=int)
    deltas = np.array([attacker.perturb(0, zero, zero, np.zeros(3)) for _ in range(3000)])
    spent = np.abs(deltas).sum(axis=0)
    assert spent[0] == 0 and (spent <= [0, 50, 120]).all()
    # the number of perturbations before the budget binds is binomial with mean 100 and 240: four standard deviations
    assert spent[1] > 50 - 0.5 * 4 * 10 and spent[2] > 120 - 0.5 * 4 * 15.5
    assert np.abs(deltas[1:]).max() == 0.5 and np.abs(deltas[:1500]).sum() < 0.65 * spent.sum()
    assert abs(deltas[:, 2].sum()) < 0.5 * 4 * 15.5


def test_a_budget_is_spent_in_order_and_never_exceeded():
    mdp, target = sparse(2)
    free = Recorder(AdaptiveTarget(target, 1.5))
    run_attack(mdp, LSVIUCB(mdp.phi, 3), free, target, 60, np.random.default_rng(1))
    poor = Recorder(Budgeted(AdaptiveTarget(target, 1.5), 10.0))
    history = run_attack(mdp, LSVIUCB(mdp.phi, 3), poor, target, 60, np.random.default_rng(1))
    assert history.cost.sum() == pytest.approx(10.0, abs=1e-12)
    deltas = [delta for row in poor.rows for *_, delta in row if delta]
    assert deltas == [-1.5] * 6 + [-1.0]
    first = next(e for e in range(60) if sum(d for row in free.rows[: e + 1] for *_, d in row) < -9.0)
    assert free.rows[:first] == poor.rows[:first]


def test_a_shift_is_delivered_on_the_target_too():
    mdp, target = sparse(2)
    shift = np.random.default_rng(3).normal(size=(3, 8, 3))
    recorder = Recorder(Shifted(shift))
    run_attack(mdp, LSVIUCB(mdp.phi, 3), recorder, target, 50, np.random.default_rng(1))
    for row in recorder.rows:
        assert all(delta == shift[h, s, a] for h, s, a, _, delta in row)


def uniform_counts(mdp, target, episodes, rng, noise=0.1):
    """Data as a uniform player makes them, drawn transition by transition from the kernel's own table."""
    H, S, A = mdp.horizon, mdp.states, mdp.actions
    counts, rewards, reached = np.zeros((H, S, A, S)), np.zeros((H, S, A)), np.zeros((H, S))
    kernel, r = mdp.P(), mdp.r()
    for _ in range(episodes):
        s, follows = mdp.s0, True
        for h in range(H):
            a = int(rng.integers(A))
            reached[h, s] += follows
            follows &= a == target[h, s]
            s2 = int(np.searchsorted(np.cumsum(kernel[h, s, a]), rng.random()))
            counts[h, s, a, s2] += 1
            rewards[h, s, a] += r[h, s, a] + noise * rng.standard_normal()
            s = s2
    return counts, rewards, reached


def test_estimates_approach_the_truth_like_one_over_root_n():
    # latents must all be met at every step, else theta is not identified: H = 2 and a start from which all actions mix
    rng = np.random.default_rng(4)
    phi = rng.dirichlet(np.ones(3), size=(4, 3))
    mu = rng.dirichlet(np.ones(4), size=(2, 3))
    mdp = LinearMDP(phi, mu, rng.uniform(size=(2, 3)))
    target = mdp.optimal_policy()
    sizes, errors = [100, 1600], []
    for n in sizes:
        copies = []
        for _ in range(6):
            found = estimate(phi, *uniform_counts(mdp, target, n, rng), target, mdp.s0)
            copies.append(np.abs(found.mdp.r() - mdp.r()).mean() + np.abs(found.mdp.P()[:1] - mdp.P()[:1]).mean())
        errors.append(np.mean(copies))
    slope = np.log(errors[1] / errors[0]) / np.log(sizes[1] / sizes[0])
    assert -0.75 < slope < -0.25  # -1/2; six copies scatter by 0.1 or so
    assert errors[1] < 0.06


def test_estimate_knows_a_world_without_noise():
    mdp, target = sparse(5)
    rng = np.random.default_rng(6)
    found = estimate(mdp.phi, *uniform_counts(mdp, target, 6000, rng, noise=0.0), target, mdp.s0)
    seen = np.array(mdp.support(target))
    np.testing.assert_array_equal(found.support, seen)
    at = [(h, s) for h, s in np.argwhere(seen)]
    for h, s in at:  # ridge 1e-3 against hundreds of visits: below 1e-3 where the uniform player goes
        a = target[h, s]
        assert abs(found.mdp.phi[s, a] @ (found.mdp.theta[h] - mdp.theta[h])) < 1e-3
    assert certify(found.mdp, target).eps == pytest.approx(certify(mdp, target).eps, abs=0.05)


def test_estimate_fails_by_name():
    mdp, target = sparse(5)
    rng = np.random.default_rng(7)
    counts, rewards, reached = uniform_counts(mdp, target, 50, rng)
    with pytest.raises(TooFewData, match="reached: expected an episode that follows the target at every step"):
        estimate(mdp.phi, counts, rewards, 0 * reached, target, 0)
    with pytest.raises(ValueError, match="rewards: expected shape"):
        estimate(mdp.phi, counts, rewards[:, :-1], reached, target, 0)
    with pytest.raises(ValueError, match="phi: expected mixtures"):
        estimate(0.5 * mdp.phi, counts, rewards, reached, target, 0)
    with pytest.raises(ValueError, match="counts: expected"):
        estimate(mdp.phi, -counts, rewards, reached, target, 0)


def test_two_stages():
    mdp, target = sparse(8)
    attacker = TwoStage(mdp.phi, target, 400, override=True)
    assert attacker.explore == 90 and attacker.delta == pytest.approx(5**0.5)  # 400^(3/4) = 89.4
    recorder = Recorder(attacker)
    learner = EpsilonGreedyLSVI(mdp.phi, 3, epsilon=0.5, rng=np.random.default_rng(9))
    run_attack(mdp, learner, recorder, target, 400, np.random.default_rng(10))
    for row in recorder.rows[:90]:
        assert all(delta == (0.0 if a == target[h, s] else -(5**0.5)) for h, s, a, _, delta in row)
    for row in recorder.rows[90:]:
        left = False
        for h, s, a, r, delta in row:
            left = left or a != target[h, s]
            # what arrives after a deviation is <phi, theta+_hat>, whatever the true reward was
            assert r + delta == pytest.approx(mdp.phi[s, a] @ attacker.theta[0, h] if left else r, abs=1e-12)
    assert attacker.counts.sum() == 90 * 3  # the second stage records nothing
    assert np.isfinite(attacker.eps).all()


def test_two_stages_without_override_leave_a_robust_estimate_alone():
    mdp, target = next(pair for pair in map(sparse, range(100)) if certify(*pair).eps < -0.1)
    for override in (False, True):
        attacker = TwoStage(mdp.phi, target, 3000, explore=1500, override=override)
        learner = EpsilonGreedyLSVI(mdp.phi, 3, epsilon=0.8, rng=np.random.default_rng(11))
        history = run_attack(mdp, learner, attacker, target, 3000, np.random.default_rng(12))
        assert attacker.eps[0] < 0
        assert (history.cost[1500:].sum() > 0) == override


def test_what_the_first_stage_writes_down():
    mdp, target = sparse(8)
    attacker = TwoStage(np.stack([mdp.phi] * 2), target, 100, explore=40)
    recorder = Recorder(attacker)
    reached, counts, rewards = np.zeros((3, 8)), np.zeros((3, 8, 3, 8)), np.zeros((3, 8, 3))

    class Stubborn:
        """Copy 0 plays at random; copy 1 always leaves the target at once, so that nothing is known of its second step."""

        batch, rng = 2, np.random.default_rng(9)

        def plan(self):
            self.left, self.last = False, []

        def act(self, h, s):
            self.at, self.a = s, np.array([self.rng.integers(3), (target[h, s[1]] + 1) % 3])
            return self.a

        def observe(self, h, s, a, r, s2):
            if len(recorder.rows) > 40:
                return
            reached[h, s[0]] += not self.left  # the state in which it leaves was reached by following
            self.left = self.left or a[0] != target[h, s[0]]
            counts[h, s[0], a[0], s2[0]] += 1
            rewards[h, s[0], a[0]] += recorder.rows[-1][h][3]

    run_attack(mdp, Stubborn(), recorder, target, 100, np.random.default_rng(10))
    np.testing.assert_array_equal(attacker.reached[0], reached)
    np.testing.assert_array_equal(attacker.counts[0], counts)
    np.testing.assert_allclose(attacker.rewards[0], rewards, atol=1e-12)
    # copy 1 stays in the first stage, and is counted to the end
    assert np.isfinite(attacker.eps[0]) and np.isnan(attacker.eps[1]) and attacker.counts[1].sum() == 300


def test_only_lower_never_raises():
    mdp, target = sparse(8)
    recorder = Recorder(TwoStage(mdp.phi, target, 400, override=True, only_lower=True))
    learner = EpsilonGreedyLSVI(mdp.phi, 3, epsilon=0.5, rng=np.random.default_rng(9))
    run_attack(mdp, learner, recorder, target, 400, np.random.default_rng(10))
    deltas = np.array([delta for row in recorder.rows[90:] for *_, delta in row])
    assert deltas.max() <= 0 > deltas.min()


def test_bad_inputs():
    mdp, target = sparse(0)
    for make, match in (
        (lambda: NoAttack(0), "batch: expected"),
        (lambda: AdaptiveTarget(target, -1.0), "delta: expected"),
        (lambda: AdaptiveTarget(-target - 1, 1.0), "target: expected actions"),
        (lambda: WhiteBox(mdp, target, np.zeros((2, 5))), "theta: expected shape"),
        (lambda: WhiteBox([mdp, mdp], np.stack([target] * 3), mdp.theta), "expected one number of copies"),
        (lambda: WhiteBox([], target, mdp.theta), "mdp: expected at least one"),
        (lambda: RandomPerturbation(-1.0, 0.5, 10, np.random.default_rng(0)), "budget: expected"),
        (lambda: RandomPerturbation(1.0, 0.0, 10, np.random.default_rng(0)), "magnitude: expected"),
        (lambda: Budgeted(NoAttack(2), [1.0, 2.0, 3.0]), "budget: expected"),
        (lambda: Shifted(np.zeros((2, 2))), "shift: expected shape"),
        (lambda: TwoStage(mdp.phi, target, 0), "episodes: expected"),
        (lambda: TwoStage(mdp.phi, target[:, :-1], 10), "target: expected 8 states"),
        (lambda: TwoStage(mdp.phi, target, 10, ridge=0.0), "ridge: expected"),
    ):
        with pytest.raises(ValueError, match=match):
            make()
    with pytest.raises(TypeError, match="target: expected an integer action"):
        AdaptiveTarget(target.astype(float), 1.0)
    with pytest.raises(TypeError, match="mdp: expected a LinearMDP"):
        WhiteBox("mdp", target, mdp.theta)
