"""The environment and the wrapper, as gymnasium checks them and as the chapter's own loop plays them."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from paperbook.papers.reward_poisoning.attacks import AdaptiveTarget, WhiteBox
from paperbook.papers.reward_poisoning.envs import ENV_ID, LinearMDPEnv, PoisonedRewardWrapper, register
from paperbook.papers.reward_poisoning.mdp import random_instance


@pytest.fixture(scope="module")
def pair():
    return random_instance(8, 3, 3, 5, rng=np.random.default_rng(0))


@pytest.mark.filterwarnings("ignore::UserWarning")  # the checker advises against a reward without a render mode
@pytest.mark.parametrize("observe_step", [False, True])
def test_gymnasium_accepts_it(pair, observe_step):
    env = LinearMDPEnv(pair[0], observe_step=observe_step)
    check_env(env, skip_render_check=True)
    check_env(PoisonedRewardWrapper(env, AdaptiveTarget(pair[1], 1.0)), skip_render_check=True)


def test_registered_once(pair):
    assert register() == register() == ENV_ID
    env = gymnasium.make(ENV_ID, mdp=pair[0])
    assert env.reset(seed=0)[0] == pair[0].s0


def test_episodes_are_those_of_the_mdp(pair):
    mdp, rng = pair[0], np.random.default_rng(1)
    env = LinearMDPEnv(mdp, noise=0.2, observe_step=True)
    went, noise = np.zeros((3, 8, 3, 8)), []
    env.reset(seed=2)
    for _ in range(4000):
        (h, s), info = env.reset()
        assert (h, s, info["step"]) == (0, mdp.s0, 0)
        for step in range(3):
            a = int(rng.integers(3))
            (h, s2), reward, terminated, truncated, info = env.step(a)
            assert (h, info["step"], terminated, truncated) == (step + 1, step, step == 2, False)
            noise.append(reward - mdp.phi[s, a] @ mdp.theta[step])
            went[step, s, a, s2] += 1
            s = s2
    noise = np.array(noise)
    assert abs(noise.mean()) < 4 * 0.2 / np.sqrt(12000) and abs(noise.std() - 0.2) < 4 * 0.2 / np.sqrt(24000)
    total = went.sum(axis=3)
    often = total > 200
    share = went[often] / total[often][:, None]
    # 200 draws or more: 4.5 standard errors (hundreds of shares are looked at) are at most 4.5 * 0.5 / 14
    assert np.abs(share - mdp.P()[often]).max() < 0.16 and (went[mdp.P() == 0] == 0).all()


def test_the_wrapper_reports_the_true_reward_untouched(pair):
    mdp, target = pair
    theta = mdp.theta - 0.5
    plain, poisoned = LinearMDPEnv(mdp), PoisonedRewardWrapper(LinearMDPEnv(mdp), WhiteBox(mdp, target, theta))
    rng, cost = np.random.default_rng(3), 0.0
    for episode in range(50):
        s, _ = plain.reset(seed=episode)
        poisoned.reset(seed=episode)
        left = False
        for h in range(3):
            a = int(rng.integers(3))
            left = left or a != target[h, s]
            s2, truth, *_ = plain.step(a)
            after, reward, *_, info = poisoned.step(a)
            delta = mdp.phi[s, a] @ (theta[h] - mdp.theta[h]) if left else 0.0
            assert after == s2 and info["true_reward"] == truth
            # rounding of a product of five terms
            assert info["delta"] == pytest.approx(delta, abs=1e-12) and reward == pytest.approx(truth + delta, abs=1e-12)
            cost += abs(delta)
            s = s2
    assert poisoned.cost == pytest.approx(cost, abs=1e-9)


def test_a_callable_poisons_any_environment():
    seen = []

    def attacker(observation, action, reward, after):
        seen.append((observation, action, reward, after))
        return -0.25 if action else 0.0

    env = PoisonedRewardWrapper(gymnasium.make("CartPole-v1"), attacker)
    before, _ = env.reset(seed=0)
    for action in (0, 1, 1):
        after, reward, *_, info = env.step(action)
        assert (info["true_reward"], info["delta"], reward) == (1.0, -0.25 * action, 1.0 - 0.25 * action)
        np.testing.assert_array_equal(seen[-1][0], before)
        np.testing.assert_array_equal(seen[-1][3], after)
        before = after
    assert env.cost == 0.5


def test_bad_inputs(pair):
    mdp, target = pair
    with pytest.raises(TypeError, match="mdp: expected a LinearMDP"):
        LinearMDPEnv(mdp.phi)
    with pytest.raises(ValueError, match="noise: expected"):
        LinearMDPEnv(mdp, noise=-1.0)
    env = LinearMDPEnv(mdp)
    with pytest.raises(RuntimeError, match="call of reset"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action: expected 0\.\.2"):
        env.step(3)
    with pytest.raises(TypeError, match="attacker: expected a callable"):
        PoisonedRewardWrapper(env, 1.0)
    with pytest.raises(ValueError, match="single copy"):
        PoisonedRewardWrapper(env, AdaptiveTarget(target, 1.0, batch=2))
    with pytest.raises(ValueError, match="env: expected a LinearMDPEnv"):
        PoisonedRewardWrapper(gymnasium.make("CartPole-v1"), AdaptiveTarget(target, 1.0))
    wrapped = PoisonedRewardWrapper(env, lambda *_: np.nan)
    wrapped.reset(seed=0)
    with pytest.raises(ValueError, match="finite perturbation"):
        wrapped.step(0)
