"""The loop: its meters against a replay by hand, the theory's bound on every path, and what becomes of each draw."""

import numpy as np
import pytest

from paperbook.papers.reward_poisoning.attacks import AdaptiveTarget, NoAttack, WhiteBox
from paperbook.papers.reward_poisoning.certificate import certify
from paperbook.papers.reward_poisoning.learner import LSVIUCB, EpsilonGreedyLSVI
from paperbook.papers.reward_poisoning.mdp import LinearMDP, random_instance
from paperbook.papers.reward_poisoning.play import AttackHistory, obedience_loss, outcome, run_attack


@pytest.fixture(scope="module")
def draws():
    rng = np.random.default_rng(20)
    pairs = [random_instance(8, 3, 3, 5, rng=rng) for _ in range(100)]
    return pairs, [certify(mdp, target) for mdp, target in pairs]


@pytest.fixture(scope="module")
def attackable(draws):
    """White box on every draw with eps* > .2, bonus 3.0, T = 3,000."""
    pairs, certificates = draws
    chosen = [i for i, one in enumerate(certificates) if one.eps > 0.2]
    return play(pairs, certificates, chosen, 3.0), np.array([certificates[i].eps for i in chosen])


def play(pairs, certificates, chosen, bonus, episodes=3000):
    mdps, targets = [pairs[i][0] for i in chosen], np.stack([pairs[i][1] for i in chosen])
    poison = [certificates[i] for i in chosen]
    learner = LSVIUCB(np.stack([mdp.phi for mdp in mdps]), 3, bonus=bonus)
    return run_attack(mdps, learner, WhiteBox(mdps, targets, poison), targets, episodes, np.random.default_rng(21), theta=poison)


def test_attackable_draws_give_way_and_their_cost_stops(attackable):
    history, eps = attackable
    assert len(eps) > 15
    assert history.deviations[1500:].mean(axis=0).max() < 0.1
    # the share after episode 1,000 would be 1 - 1/sqrt(3) = 0.42 for a cost like sqrt(T), 0.67 for one like T
    assert (history.cost[1000:].sum(axis=0) < 0.5 * history.cost.sum(axis=0)).all()


def test_deviations_are_at_most_regret_over_eps_on_every_path(attackable, draws):
    history, eps = attackable
    # T3: each episode that leaves the target pays at least eps in poisoned regret, in that very episode
    paid = history.poisoned_regret
    assert (paid >= eps * history.deviations - 1e-6).all()  # the certificate's own tolerance
    assert (paid >= -1e-12).all() and (history.deviations.sum(axis=0) <= paid.sum(axis=0) / eps + 1e-3).all()
    # cost: |phi' (theta+ - theta)| <= 2 sqrt(d) at each of at most H steps
    assert (history.cost <= 2 * 3 * 5**0.5 * history.deviations + 1e-9).all()


def test_robust_draws_resist_linearly(draws):
    pairs, certificates = draws
    chosen = [i for i, one in enumerate(certificates) if one.eps < -0.05]
    loss = np.array([obedience_loss(*pairs[i], certificates[i].theta) for i in chosen])
    assert (loss > 0).all()
    history = play(pairs, certificates, chosen, 3.0)
    total = history.deviations.cumsum(axis=0)
    slopes = (np.log(total[2999] / total[999]) / np.log(3))[loss > 0.05]
    # a no-regret learner may obey in sqrt(T) / loss episodes, so with a small loss the line T is not reached yet
    assert len(slopes) > 8 and ((slopes > 0.75) & (slopes < 1.15)).all(), slopes


def test_the_loss_of_obedience_by_playing(draws):
    """Play the target, and the best policy, under the poisoned rewards, and compare what they collect."""
    (mdp, target), theta = draws[0][3], draws[1][3].theta
    poisoned = LinearMDP(mdp.phi, mdp.mu, theta)
    collected = []
    for policy in (poisoned.optimal_policy(), target):
        learner = EpsilonGreedyLSVI(mdp.phi, 3, epsilon=0.0, rng=np.random.default_rng(0), batch=200)
        learner.act = lambda h, s, policy=policy: policy[h, s]
        history = run_attack(poisoned, learner, NoAttack(200), target, 50, np.random.default_rng(26))
        collected.append(history.returns.ravel())
    # 10,000 episodes each, both with the same draws: four standard errors of the difference
    difference = collected[0] - collected[1]
    error = 4 * difference.std() / 100
    assert abs(difference.mean() - obedience_loss(mdp, target, theta)) < error + 1e-9
    assert obedience_loss(mdp, poisoned.optimal_policy(), theta) == pytest.approx(0, abs=1e-12)


class Scripted:
    """Plays the actions it is told."""

    def __init__(self, moves):
        self.moves, self.batch, self.episode, self.seen = moves, 1, -1, []

    def plan(self):
        self.episode += 1

    def act(self, h, s):
        return np.array([self.moves[self.episode][h]])

    def observe(self, h, s, a, r, s2):
        self.seen.append((self.episode, h, int(s[0]), int(a[0]), float(r[0]), int(s2[0])))


def test_the_meters_by_hand(draws):
    (mdp, target), theta = draws[0][0], draws[1][0].theta
    rng = np.random.default_rng(22)
    learner = Scripted(rng.integers(3, size=(200, 3)))
    history = run_attack(mdp, learner, AdaptiveTarget(target, 0.5), target, 200, rng, theta=theta, noise=0.0)
    expected = np.zeros((200, 6))
    for episode, h, s, a, r, _ in learner.seen:
        wrong = a != target[h, s]
        mean = float(mdp.phi[s, a] @ mdp.theta[h])
        assert r == pytest.approx(mean - 0.5 * wrong, abs=1e-12)
        gaps = [mdp.optimal_q(t)[h, s].max() - mdp.optimal_q(t)[h, s, a] for t in (None, theta)]
        expected[episode] += [0, wrong, 0.5 * wrong, mean, *gaps]
    expected[:, 0] = expected[:, 1] > 0
    for column, name in enumerate(("deviations", "wrong_steps", "cost", "returns", "true_regret", "poisoned_regret")):
        np.testing.assert_allclose(getattr(history, name)[:, 0], expected[:, column], atol=1e-12, err_msg=name)
    for (e, h, *_, s2), (e2, h2, s, *_) in zip(learner.seen, learner.seen[1:], strict=False):
        assert s2 == s if e == e2 else (h, h2, s) == (2, 0, mdp.s0)


def test_next_states_follow_the_kernel(draws):
    mdp, target = draws[0][1]
    learner = Scripted(np.zeros((6000, 3), dtype=int))
    run_attack(mdp, learner, NoAttack(), target, 6000, np.random.default_rng(23))
    law = np.zeros(8)
    for _, h, _, _, _, s2 in learner.seen:
        law[s2] += h == 0
    # 6,000 draws: four standard errors of a share are at most 4 * 0.5 / 77
    np.testing.assert_allclose(law / 6000, mdp.P()[0, mdp.s0, 0], atol=0.026)


def test_noise_has_the_size_it_is_given(draws):
    mdp, target = draws[0][0]
    learner = Scripted(np.zeros((4000, 3), dtype=int))
    run_attack(mdp, learner, NoAttack(), target, 4000, np.random.default_rng(24), noise=0.25)
    noise = np.array([r - mdp.phi[s, a] @ mdp.theta[h] for _, h, s, a, r, _ in learner.seen])
    assert abs(noise.std() - 0.25) < 4 * 0.25 / np.sqrt(2 * 12000) and abs(noise.mean()) < 4 * 0.25 / np.sqrt(12000)


def test_a_copy_does_not_see_the_others(draws):
    pairs, certificates = draws
    together = play(pairs, certificates, [0, 1, 2], 1.0, episodes=150)
    for i in range(3):
        mdp, target = pairs[i]
        learner = LSVIUCB(mdp.phi, 3, bonus=1.0)
        # a stream spawned i-th is the same whoever else is there
        stream = np.random.default_rng(21)
        stream.spawn(i)
        alone = run_attack(mdp, learner, WhiteBox(mdp, target, certificates[i]), target, 150, stream)
        np.testing.assert_array_equal(alone.deviations[:, 0], together.deviations[:, i])
        np.testing.assert_allclose(alone.cost[:, 0], together.cost[:, i], atol=1e-9)


def made(deviations, cost):
    deviations, cost = np.asarray(deviations), np.asarray(cost, dtype=float)
    zero = np.zeros(deviations.shape)
    return AttackHistory(deviations.astype(bool), deviations.astype(int), cost, zero, zero, None)


def test_outcomes():
    T = 8000
    k = np.arange(1, T + 1)
    rng = np.random.default_rng(25)
    columns = {
        "attacked": rng.random(T) < 0.2 / k**0.5 + (k < 50),  # sqrt(T), thin at the end
        "unclear": rng.random(T) < np.minimum(1, 3 / k**0.5),  # sqrt(T) too, but more than 1 % at the end
        "resisted": rng.random(T) < 0.03,  # few, but as many at the end as at the beginning
    }
    stack = np.stack(list(columns.values()), axis=1)
    assert outcome(made(stack, stack)) == list(columns)
    quiet = columns["attacked"][:, None]
    assert outcome(made(quiet, np.ones((T, 1)))) == ["resisted"]  # obedience that is paid for every day
    assert outcome(made(0 * quiet, 0 * quiet)) == ["attacked"]
    with pytest.raises(ValueError, match="at least 8 episodes"):
        outcome(made(quiet[:7], quiet[:7]))


def test_bad_inputs(draws):
    (mdp, target), (other, _) = draws[0][0], draws[0][1]
    rng = np.random.default_rng(0)
    learner = LSVIUCB(mdp.phi, 3)
    with pytest.raises(ValueError, match="episodes: expected"):
        run_attack(mdp, learner, NoAttack(), target, 0, rng)
    with pytest.raises(ValueError, match=r"attacker\.batch: expected 1"):
        run_attack(mdp, learner, NoAttack(2), target, 5, rng)
    with pytest.raises(ValueError, match="mdp, target, theta: expected one or 1 copies"):
        run_attack([mdp, other], learner, NoAttack(), target, 5, rng)
    with pytest.raises(ValueError, match=r"learner\.horizon: expected 3"):
        run_attack(mdp, LSVIUCB(mdp.phi, 2), NoAttack(), target, 5, rng)
    with pytest.raises(TypeError, match="rng: expected"):
        run_attack(mdp, learner, NoAttack(), target, 5, 0)
    with pytest.raises(ValueError, match="noise: expected"):
        run_attack(mdp, learner, NoAttack(), target, 5, rng, noise=-1.0)

    class Mad(NoAttack):
        def perturb(self, h, s, a, r):
            return np.array([np.inf])

    with pytest.raises(ValueError, match="expected finite"):
        run_attack(mdp, learner, Mad(), target, 5, rng)
