"""Linear MDPs: values by enumeration, reachability by simulation of every path, generators, tables of gymnasium."""

import itertools

import numpy as np
import pytest

from paperbook.papers.reward_poisoning.mdp import (
    LinearMDP,
    from_gymnasium,
    random_instance,
    random_linear_mdp,
    tabular_linear_mdp,
)

ROUNDING = 1e-12  # sums of a few dozen products of numbers of size 1


def small(seed, states=3, actions=2, horizon=3, dim=3):
    return random_linear_mdp(states, actions, horizon, dim, latent_support=2, rng=np.random.default_rng(seed))


def returns(mdp, policy, h, s, theta=None):
    """Expected return of a policy from (h, s), by recursion over single transitions."""
    if h == mdp.horizon:
        return 0.0
    a = policy[h][s]
    parameters = mdp.theta if theta is None else theta
    reward = sum(mdp.phi[s, a, i] * parameters[h, i] for i in range(mdp.dim))
    chance = [sum(mdp.phi[s, a, i] * mdp.mu[h, i, t] for i in range(mdp.dim)) for t in range(mdp.states)]
    return reward + sum(p * returns(mdp, policy, h + 1, t, theta) for t, p in enumerate(chance) if p)


@pytest.mark.parametrize("seed", range(3))
def test_value_iteration_is_the_best_of_all_policies(seed):
    mdp = small(seed)
    every = [np.array(p).reshape(3, 3) for p in itertools.product(range(2), repeat=9)]
    best = max(returns(mdp, p, 0, mdp.s0) for p in every)
    assert mdp.optimal_q()[0, mdp.s0].max() == pytest.approx(best, abs=ROUNDING)
    assert returns(mdp, mdp.optimal_policy(), 0, mdp.s0) == pytest.approx(best, abs=ROUNDING)


def test_values_of_a_policy_under_other_rewards():
    mdp, rng = small(4), np.random.default_rng(4)
    policy, theta = rng.integers(2, size=(3, 3)), rng.normal(size=(3, 3))
    q = mdp.policy_q(policy, theta)
    for s, a in itertools.product(range(3), range(2)):
        other = policy.copy()
        other[0, s] = a
        assert q[0, s, a] == pytest.approx(returns(mdp, other, 0, s, theta), abs=ROUNDING)


def test_occupancy_and_support_are_those_of_all_paths():
    mdp = random_linear_mdp(5, 2, 4, 4, latent_support=2, rng=np.random.default_rng(5))
    policy = np.random.default_rng(6).integers(2, size=(4, 5))
    law = np.zeros((4, 5))
    for path in itertools.product(range(5), repeat=3):
        states, chance = (0, *path), 1.0
        for h in range(3):
            law[h, states[h]] += 0.0
            chance *= mdp.phi[states[h], policy[h, states[h]]] @ mdp.mu[h][:, states[h + 1]]
        for h in range(4):
            law[h, states[h]] += chance
    np.testing.assert_allclose(mdp.occupancy(policy), law, atol=ROUNDING)
    np.testing.assert_array_equal(mdp.support(policy), law > 1e-12)


def test_the_last_step_of_a_bandit_needs_no_kernel():
    mdp = LinearMDP(np.array([[[0.5, 0], [1, 0]]]), np.zeros((1, 2, 1)), np.array([[0.6, 0]]))
    np.testing.assert_array_equal(mdp.P(), np.ones((1, 1, 2, 1)))
    np.testing.assert_allclose(mdp.optimal_q()[0, 0], [0.3, 0.6], atol=ROUNDING)
    with pytest.raises(ValueError, match="rows of P"):  # a step that leads somewhere does need one
        LinearMDP(np.array([[[0.5, 0], [1, 0]]]), np.zeros((2, 2, 1)), np.zeros((2, 2)))


def test_the_generator_draws_what_it_says():
    mdp = random_linear_mdp(7, 3, 2, 6, latent_support=3, feature_support=2, rng=np.random.default_rng(7))
    assert ((mdp.phi > 0).sum(axis=2) == 2).all() and ((mdp.mu > 0).sum(axis=2) == 3).all()
    np.testing.assert_allclose(mdp.phi.sum(axis=2), 1, atol=ROUNDING)
    np.testing.assert_allclose(mdp.mu.sum(axis=2), 1, atol=ROUNDING)
    assert mdp.theta.min() >= 0 and mdp.theta.max() <= 1


def test_instances_have_something_to_attack():
    for seed in range(10):
        mdp, target = random_instance(5, 3, 3, 4, rng=np.random.default_rng(seed))
        first = mdp.optimal_q()[0, mdp.s0]
        assert first[target[0, mdp.s0]] < first.max() - 1e-9


def test_a_table_and_its_linear_form_agree():
    rng = np.random.default_rng(8)
    P, r = rng.dirichlet(np.ones(4), size=(4, 3)), rng.normal(size=(4, 3))
    mdp = tabular_linear_mdp(P, r, horizon=2)
    np.testing.assert_allclose(mdp.P()[1], P, atol=ROUNDING)
    np.testing.assert_allclose(mdp.r()[0], r, atol=0)
    np.testing.assert_allclose(mdp.optimal_q()[0], r + P @ r.max(axis=1), atol=ROUNDING)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phi": np.full((2, 2, 2), 0.9)}, "norms of at most 1"),
        ({"mu": np.ones((2, 3, 2))}, r"mu: expected \(H, 2, 2\)"),
        ({"mu": np.full((2, 2, 2), 0.4)}, "rows of P that are probabilities"),
        ({"theta": np.ones((3, 2))}, "theta: expected"),
        ({"theta": np.full((2, 2), np.nan)}, "theta: expected finite"),
        ({"s0": 2}, "s0: expected"),
    ],
)
def test_bad_models_are_refused(change, message):
    good = {"phi": np.eye(2)[[0, 1, 1, 0]].reshape(2, 2, 2), "mu": np.full((2, 2, 2), 0.5), "theta": np.ones((2, 2)), "s0": 0}
    LinearMDP(**good)
    with pytest.raises(ValueError, match=message):
        LinearMDP(**(good | change))


def test_bad_policies_are_refused():
    mdp = small(9)
    with pytest.raises(TypeError, match="stochastic policies are not supported"):
        mdp.support(np.full((3, 3), 0.5))
    with pytest.raises(ValueError, match=r"expected shape \(3, 3\)"):
        mdp.support(np.zeros((2, 3), dtype=int))
    with pytest.raises(ValueError, match=r"actions in 0\.\.1"):
        mdp.support(np.full((3, 3), 2))


# tables of gymnasium


def play(env, policy, horizon, episodes):
    total = np.zeros(episodes)
    for i in range(episodes):
        s, _ = env.reset(seed=i)
        for h in range(horizon):
            s, r, done, _, _ = env.step(int(policy(h, int(s))))
            total[i] += r
            if done:
                break
    return total


def test_frozen_lake_plays_as_its_model_says():
    gymnasium = pytest.importorskip("gymnasium")
    env = gymnasium.make("FrozenLake-v1")
    model = from_gymnasium(env, 20)
    mdp, number = model.mdp, {int(s): i for i, s in enumerate(model.labels)}
    best = mdp.optimal_policy()
    got = play(env, lambda h, s: best[h, number[s]], 20, 1500)
    value = mdp.optimal_q()[0, mdp.s0].max()
    assert 0.05 < value < 0.95
    assert got.mean() == pytest.approx(value, abs=4 * (value * (1 - value) / 1500) ** 0.5)  # 4 standard errors of a rate
    assert model.error_tv == (0, 0) and model.error_reward == (0, 0) and model.terminal.sum() == 5


def test_the_cliff_is_thirteen_steps_wide():
    pytest.importorskip("gymnasium")
    model = from_gymnasium("CliffWalking-v1", 13, reward_scale=0.5)
    assert model.mdp.optimal_q()[0, model.mdp.s0].max() == -6.5  # 13 steps of reward -1 reach the goal; whole numbers, halved
    first = from_gymnasium("CliffWalking-v1", 30).mdp.optimal_q()[0].max(axis=1)
    assert sorted(first)[-2:] == [-1, 0]  # in the goal nothing is paid any more; beside it, one step
    assert model.labels.max() == 47 and model.labels[model.terminal].tolist() == [47]


def test_a_taxi_needs_its_first_state():
    pytest.importorskip("gymnasium")
    with pytest.raises(ValueError, match="s0: expected the first state, as TaxiEnv draws"):
        from_gymnasium("Taxi-v4", 5)
    start = ((0 * 5 + 0) * 5 + 0) * 4 + 1  # taxi and passenger in the top left corner, the goal in the top right one
    model = from_gymnasium("Taxi-v4", 12, s0=start)
    # pick up, round the wall by 2 down, 4 right, 2 up, put down: nine steps of -1, then +20
    assert model.mdp.optimal_q()[0, model.mdp.s0].max() == -9 + 20
    with pytest.raises(ValueError, match="ends an episode only on some ways into it"):
        from_gymnasium("Taxi-v4", 5, s0=((1 * 5 + 0) * 5 + 0) * 4 + 0)  # the passenger is where he wants to be: no start


def test_low_rank_tables_state_their_error():
    pytest.importorskip("gymnasium")
    exact = from_gymnasium("FrozenLake-v1", 4)
    for rank in (3, 8):
        model = from_gymnasium("FrozenLake-v1", 4, rank)
        distance = np.abs(model.mdp.P() - exact.mdp.P()).sum(axis=3) / 2
        assert model.error_tv == pytest.approx((distance.max(), distance.mean()), abs=1e-9)
        miss = np.abs(model.mdp.r() - exact.mdp.r())
        assert model.error_reward == pytest.approx((miss.max(), miss.mean()), abs=1e-9)
        assert model.mdp.dim == rank and np.linalg.norm(model.mdp.theta, axis=1).max() <= rank**0.5
    full = from_gymnasium("FrozenLake-v1", 4, len(exact.labels))
    assert full.error_tv[0] < 1e-3 < from_gymnasium("FrozenLake-v1", 4, 3).error_tv[0]  # a full factorisation exists


def test_environments_without_a_table_are_refused():
    gymnasium = pytest.importorskip("gymnasium")
    with pytest.raises(ValueError, match="table of transitions P, got CartPoleEnv"):
        from_gymnasium(gymnasium.make("CartPole-v1"), 5)
    with pytest.raises(ValueError, match="rank: expected"):
        from_gymnasium("FrozenLake-v1", 3, 500)
    with pytest.raises(ValueError, match="reward_scale: expected"):
        from_gymnasium("FrozenLake-v1", 3, reward_scale=0)
