"""Bad input is refused by name, before any work."""

import numpy as np
import pytest

from paperbook.papers.reward_poisoning import attacks, bandits, certificate, learner, mdp, play, sampled, teaching

MDP, TARGET = mdp.random_instance(5, 3, 3, 4, rng=np.random.default_rng(0))


@pytest.mark.parametrize("call, error, text", [
    (lambda: certificate.certify(MDP, [[0], [0, 1]]), ValueError, "target: expected rows"),
    (lambda: certificate.certify(MDP, TARGET, cap=1e200), ValueError, "cap: expected"),
    (lambda: certificate.certify(MDP, TARGET, cap=10**400), ValueError, "cap: expected"),
    (lambda: certificate.sweep(MDP, TARGET, step=True), TypeError, "step: expected"),
    (lambda: certificate.sweep(None, TARGET), TypeError, "mdp: expected"),
    (lambda: certificate.certify_batch(None, [TARGET]), TypeError, "mdp: expected"),
    (lambda: teaching.ma2019(MDP, TARGET, 0.1, norm=True), ValueError, "norm: expected"),
    (lambda: teaching.ma2019(MDP, TARGET, 0.1, linear="yes"), TypeError, "linear: expected"),
    (lambda: bandits.orthonormal_eps(np.eye(2), [0.0, 0.0], 0, 1e200), ValueError, "cap: expected"),
    (lambda: attacks.TwoStage(MDP.phi, TARGET, 100, cap=-1.0), ValueError, "cap: expected"),
    (lambda: attacks.TwoStage(MDP.phi, TARGET, 100, cap="x"), ValueError, "cap: expected"),
    (lambda: attacks.TwoStage(2 * MDP.phi, TARGET, 100), ValueError, "phi: expected"),
    (lambda: attacks.TwoStage(MDP.phi, TARGET, 100, override="yes"), TypeError, "override: expected"),
    (lambda: sampled.ridge(np.eye(2), np.ones(2), -1.0), ValueError, "lam: expected"),
    (lambda: sampled.ridge(np.eye(2) * np.nan, np.ones(2), 1.0), ValueError, "X, Y: expected"),
])  # fmt: skip
def test_refused_by_name(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_the_bound_does_not_depend_on_the_scale_of_the_weights():
    rivals = (np.arange(3) != TARGET[:, :, None]) & MDP.support(TARGET)[:, :, None]
    bounds = [certificate.dual_bound(MDP, TARGET, np.where(rivals, size, 0.0), np.zeros(TARGET.shape)) for size in (1.0, 1e308)]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)  # rounding


def test_a_learner_is_told_whole_episodes_of_integers():
    victim = learner.LSVIUCB(MDP.phi, 3)
    with pytest.raises(RuntimeError, match="plan"):
        victim.observe(0, [0], [0], [0.0], [0])
    victim.plan()
    with pytest.raises(TypeError, match="s, a, s2: expected integers"):
        victim.observe(0, [0], [0.5], [0.0], [0])
    for h in range(3):
        victim.observe(h, [0], [0], [0.0], [0])
    with pytest.raises(RuntimeError, match="plan"):
        victim.observe(3, [0], [0], [0.0], [0])


@pytest.mark.parametrize("action", [-1, 3])
def test_a_victim_that_plays_no_action_is_refused(action):
    class Odd(learner.LSVIUCB):
        def act(self, h, s):
            return super().act(h, s) * 0 + action

        def observe(self, h, s, a, r, s2):
            super().observe(h, s, np.abs(a) % 3, r, s2)

    with pytest.raises(ValueError, match=r"actions in 0\.\.2"):
        play.run_attack(MDP, Odd(MDP.phi, 3), attacks.NoAttack(), TARGET, 2, np.random.default_rng(0))


def test_a_used_victim_is_refused():
    victim = learner.LSVIUCB(MDP.phi, 3)
    play.run_attack(MDP, victim, attacks.NoAttack(), TARGET, 3, np.random.default_rng(0))
    with pytest.raises(ValueError, match="learner: expected a fresh one"):
        play.run_attack(MDP, victim, attacks.NoAttack(), TARGET, 3, np.random.default_rng(0))
