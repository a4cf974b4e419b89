"""LSVI-UCB on counts: against a learner that keeps every transition, copy by copy, and against the optimum."""

import numpy as np
import pytest

from paperbook.papers.reward_poisoning import learner as learner_module
from paperbook.papers.reward_poisoning.attacks import NoAttack
from paperbook.papers.reward_poisoning.learner import LSVIUCB, EpsilonGreedyLSVI
from paperbook.papers.reward_poisoning.mdp import random_linear_mdp
from paperbook.papers.reward_poisoning.play import run_attack


def small(seed=0, S=5, A=3, H=3, d=4):
    return random_linear_mdp(S, A, H, d, rng=np.random.default_rng(seed))


def naive_q(mdp, data, bonus, lam, rmax):
    """Algorithm as in the literature, from the list of all transitions: (H, S, A)."""
    H, S, A, d = mdp.horizon, mdp.states, mdp.actions, mdp.dim
    q = np.zeros((H + 1, S, A))
    for h in reversed(range(H)):
        gram, right = lam * np.eye(d), np.zeros(d)
        for step, s, a, r, s2 in data:
            if step == h:
                gram += np.outer(mdp.phi[s, a], mdp.phi[s, a])
                right += mdp.phi[s, a] * (r + (max(q[h + 1, s2]) if h + 1 < H else 0))
        w = np.linalg.solve(gram, right)
        for s in range(S):
            for a in range(A):
                x = mdp.phi[s, a]
                q[h, s, a] = min(x @ w + bonus * np.sqrt(x @ np.linalg.solve(gram, x)), rmax * (H - h))
    return q[:H]


@pytest.mark.parametrize("bonus", [0.0, 0.7])
def test_counts_equal_a_list_of_transitions(bonus, monkeypatch):
    monkeypatch.setattr(learner_module, "REFACTOR", 17)  # both the rank-one updates and the exact inversion are met
    mdp, rng, data = small(), np.random.default_rng(1), []
    learner = LSVIUCB(mdp.phi, mdp.horizon, bonus=bonus, lam=0.8, rmax=1.7)
    for _ in range(60):
        learner.plan()
        # rounding of 60 rank-one updates of 4 x 4 matrices with condition at most 80: far below 1e-9
        np.testing.assert_allclose(learner.q[0], naive_q(mdp, data, bonus, 0.8, 1.7), atol=1e-9)
        s = 0
        for h in range(mdp.horizon):
            a = int(learner.act(h, [s])[0]) if rng.random() < 0.5 else int(rng.integers(mdp.actions))
            r, s2 = rng.normal(), int(rng.choice(mdp.states, p=mdp.P()[h, s, a]))
            learner.observe(h, [s], [a], [r], [s2])
            data.append((h, s, a, r, s2))
            s = s2


def test_a_batch_is_its_copies_one_by_one():
    mdps = [small(seed) for seed in range(4)]
    rng = np.random.default_rng(2)
    batch = LSVIUCB(np.stack([m.phi for m in mdps]), 3, bonus=0.5)
    alone = [LSVIUCB(m.phi, 3, bonus=0.5) for m in mdps]
    for _ in range(50):
        batch.plan()
        for one in alone:
            one.plan()
        for h in range(3):
            s, a, s2 = rng.integers(5, size=4), rng.integers(3, size=4), rng.integers(5, size=4)
            r = rng.normal(size=4)
            np.testing.assert_array_equal(batch.act(h, s), [one.act(h, s[i : i + 1])[0] for i, one in enumerate(alone)])
            batch.observe(h, s, a, r, s2)
            for i, one in enumerate(alone):
                one.observe(h, s[i : i + 1], a[i : i + 1], r[i : i + 1], s2[i : i + 1])
    # products of stacked matrices may add in another order: rounding of sums of a few terms
    np.testing.assert_allclose(batch.q, np.concatenate([one.q for one in alone]), atol=1e-10)


def test_regret_without_attack_falls():
    mdps = [small(seed, S=8, d=5) for seed in range(12)]
    targets = np.stack([m.optimal_policy() for m in mdps])
    learner = LSVIUCB(np.stack([m.phi for m in mdps]), 3, bonus=3.0)
    history = run_attack(mdps, learner, NoAttack(12), targets, 3000, np.random.default_rng(3))
    early, late = history.true_regret[:300].mean(), history.true_regret[-300:].mean()
    # regret of order sqrt(T) falls per episode by (sqrt(3000) - sqrt(2700)) / sqrt(300) = 0.16; without learning the ratio is 1
    assert late < 0.2 * early


def test_what_is_stored_does_not_grow():
    mdp = small()
    learner = LSVIUCB(mdp.phi, 3)

    def stored():
        return sum(value.nbytes for value in vars(learner).values() if isinstance(value, np.ndarray))

    before = stored()
    run_attack(mdp, learner, NoAttack(), mdp.optimal_policy(), 500, np.random.default_rng(4))
    assert stored() == before and learner.episodes == 499  # the last episode is taken in by the next plan


def test_constant_exploration_goes_on_for_ever():
    mdp = small(5)
    target = mdp.optimal_policy()
    learner = EpsilonGreedyLSVI(mdp.phi, 3, epsilon=0.3, rng=np.random.default_rng(6), batch=20)
    history = run_attack(mdp, learner, NoAttack(20), target, 800, np.random.default_rng(7))
    # a step leaves the target with probability at least 0.3 * 2/3; H = 3 of them: at least 1 - 0.8^3 = 0.488.
    # 20 * 400 episodes: four standard errors are 0.022
    assert history.deviations[400:].mean() > 0.488 - 0.022
    learner.plan()
    other = np.mean([learner.act(0, np.zeros(20, dtype=int)) != learner.greedy[:, 0, 0] for _ in range(1000)])
    assert abs(other - 0.2) < 4 * 0.4 / np.sqrt(20_000)  # 0.3 * 2/3, within four standard errors


def test_bad_inputs():
    mdp = small()
    for key, value in (("lam", 0.0), ("bonus", -1.0), ("rmax", 0.0), ("batch", 0)):
        with pytest.raises(ValueError, match=f"{key}: expected"):
            LSVIUCB(mdp.phi, 3, **{key: value})
    with pytest.raises(ValueError, match="phi: expected norms"):
        LSVIUCB(2 * mdp.phi, 3)
    with pytest.raises(ValueError, match="rmax: expected one of"):
        LSVIUCB(mdp.phi, 3, rmax="d")
    with pytest.raises(ValueError, match="batch: expected 2"):
        LSVIUCB(np.stack([mdp.phi] * 2), 3, batch=3)
    with pytest.raises(ValueError, match="epsilon: expected"):
        EpsilonGreedyLSVI(mdp.phi, 3, epsilon=1.5, rng=np.random.default_rng(0))
    learner = LSVIUCB(mdp.phi, 3)
    with pytest.raises(RuntimeError, match="act: expected a call of plan"):
        learner.act(0, [0])
    learner.plan()
    with pytest.raises(ValueError, match="h, s: expected"):
        learner.act(0, [5])
    with pytest.raises(ValueError, match="h: expected step 0"):
        learner.observe(1, [0], [0], [0.0], [0])
    learner.observe(0, [0], [0], [0.0], [0])
    with pytest.raises(RuntimeError, match="finished episode"):
        learner.plan()
    learner.observe(1, [0], [3], [0.0], [0])
    learner.observe(2, [0], [0], [0.0], [0])
    with pytest.raises(ValueError, match=r"a: expected values in 0\.\.2"):
        learner.plan()
    learner = LSVIUCB(mdp.phi, 3)
    learner.plan()
    for h in range(3):
        learner.observe(h, [0], [0], [np.nan], [0])
    with pytest.raises(ValueError, match="r: expected finite"):
        learner.plan()
