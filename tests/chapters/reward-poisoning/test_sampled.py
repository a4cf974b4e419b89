"""Certificates from samples: exact features give the exact certificate, cvxpy gives the same optimum, bad input is named."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from paperbook.papers.reward_poisoning.certificate import CapInfeasible, certify
from paperbook.papers.reward_poisoning.mdp import LinearMDP, random_instance
from paperbook.papers.reward_poisoning.sampled import (
    Samples,
    discounted_certificate,
    finite_horizon_certificate,
    ridge,
    split_stability,
    wilson,
)

S, A, H, D = 8, 3, 3, 5


def rollouts(mdp: LinearMDP, target: np.ndarray, episodes: int, rng: np.random.Generator, noise: float = 0.0) -> Samples:
    """Half the episodes follow the target (they give the support), half play at random."""
    rows: list[tuple[Any, ...]] = []
    support: list[tuple[int, int, int]] = []
    for episode in range(episodes):
        follows, s = episode % 2 == 0, mdp.s0
        for h in range(mdp.horizon):
            a = int(target[h, s]) if follows else int(rng.integers(mdp.actions))
            s2 = int(rng.choice(mdp.states, p=mdp.P()[h, s, a]))
            then = mdp.phi[s2, target[h + 1, s2]] if h + 1 < mdp.horizon else np.zeros(mdp.dim)
            rows.append((mdp.phi[s, a], mdp.r()[h, s, a] + noise * rng.normal(), then, h, episode))
            if follows:
                support.append((h, s, episode))
            s = s2
    phi, reward, then, step, episode_of = (np.array(column) for column in zip(*rows, strict=True))
    steps, states, episodes_of = np.array(support).T
    chosen = target[steps, states]
    rivals = np.array([np.delete(mdp.phi[s], a, axis=0) for s, a in zip(states, chosen, strict=True)])
    return Samples(phi, reward, then, step, episode_of, mdp.phi[states, chosen], rivals, steps, episodes_of)


def instances(n: int, seed: int) -> list[tuple[LinearMDP, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [random_instance(S, A, H, D, rng=rng) for _ in range(n)]


def test_exact_features_give_the_exact_certificate() -> None:
    """Deterministic kernels and noiseless rewards: with every (h, s, a) seen, regression is exact up to its penalty."""
    for i, (mdp, target) in enumerate(instances(6, 1)):
        # latents mix two deterministic kernels, so next features are random; the regression needs many to average them
        found = finite_horizon_certificate(rollouts(mdp, target, 3000, np.random.default_rng(i)), H, penalty=1e-8)
        exact = certify(mdp, target, q_mode="policy")
        # 500 visits of a random step-state-action leave an error of the mean of about 0.02 a feature, times |theta| ~ 2
        assert abs(found.eps - exact.eps) < 0.15, (found.eps, exact.eps)
        if abs(exact.eps) > 0.15:
            assert found.attackable == (exact.eps > 0)
        assert found.pin_error < 1e-5 and found.reward_error < 1e-5 and found.status == "optimal"
        assert np.linalg.norm(found.theta, axis=1).max() <= np.sqrt(D) * (1 + 1e-9)


def test_the_error_falls_with_the_samples() -> None:
    """Root-n, with noisy rewards: 16 times the episodes leave well under 0.6 of the error (a quarter expected; 8 instances)."""
    errors = []
    for episodes in (200, 3200):
        rng, miss = np.random.default_rng(3), []
        for mdp, target in instances(8, 2):
            exact = certify(mdp, target, q_mode="policy").eps
            samples = rollouts(mdp, target, episodes, rng, noise=0.3)
            miss.append(abs(finite_horizon_certificate(samples, H, penalty=1e-8, pin_tol=1e-6).eps - exact))
        errors.append(np.mean(miss))
    assert errors[1] < 0.6 * errors[0], errors


def toy(seed: int = 0, d: int = 4, n: int = 80, horizon: int = 3) -> Samples:
    """Random features in general position, the target's on-support features in a plane."""
    rng = np.random.default_rng(seed)

    def unit(*shape: int) -> np.ndarray:
        x = rng.normal(size=(*shape, d))
        return 0.9 * x / np.linalg.norm(x, axis=-1, keepdims=True)

    plane = unit(2)
    weights = rng.dirichlet([1, 1], size=30)
    return Samples(unit(n), rng.normal(size=n) / 3, unit(n) / 2, np.arange(n) % horizon, np.arange(n) // horizon, weights @ plane,
                   unit(30, 2), np.arange(30) % horizon, np.arange(30) // horizon)  # fmt: skip


@pytest.mark.parametrize("stationary", [False, True])
def test_the_finite_programme_against_cvxpy(stationary: bool) -> None:
    """The second route writes T1 as it stands: parameters, not what is free of them; values by recursion, not by products."""
    import cvxpy as cp

    samples, cap, lam = toy(), 1.7, 1e-4
    parameters = [cp.Variable(samples.dim) for _ in range(3)]
    eps, constraints, value = cp.Variable(), [], None
    for h in (2, 1, 0):
        at = np.ones(len(samples.step), bool) if stationary else samples.step == h
        X, Y = samples.phi[at], np.column_stack([samples.next_phi[at], samples.reward[at]])
        # least squares with lam * n extra rows is ridge
        fit = np.linalg.lstsq(np.vstack([X, np.sqrt(lam * len(X)) * np.eye(samples.dim)]),
                              np.vstack([Y, np.zeros((samples.dim, samples.dim + 1))]), rcond=None)[0]  # fmt: skip
        w = parameters[h] if value is None else parameters[h] + fit[:, :-1] @ value
        for i in np.flatnonzero(samples.support_step == h):
            constraints.append(samples.target_phi[i] @ (parameters[h] - fit[:, -1]) == 0)
            constraints += [(samples.target_phi[i] - rival) @ w >= eps for rival in samples.rival_phi[i]]
        constraints.append(cp.norm(parameters[h]) <= cap)
        value = w
    cp.Problem(cp.Maximize(eps), constraints).solve(solver="CLARABEL")
    found = finite_horizon_certificate(samples, 3, cap=cap, penalty=lam, stationary=stationary)
    assert found.eps == pytest.approx(float(eps.value), abs=1e-6)  # both solvers stop at about 1e-8
    assert found.free.tolist() == [2, 2, 2] and found.pin_error < 1e-9


def test_the_discounted_programme_against_cvxpy() -> None:
    """Q by summing gamma^t of the features' mean dynamics, T = 400 terms, in place of the inverse."""
    import cvxpy as cp

    samples, gamma, cap = toy(3), 0.8, 1.5
    second = samples.phi.T @ samples.phi
    step = np.linalg.solve(second, samples.phi.T @ samples.next_phi)
    assert np.abs(np.linalg.eigvals(step)).max() < 1 / gamma, "else the sum below has no limit"
    total, power = np.zeros_like(step), np.eye(samples.dim)
    for _ in range(400):
        total, power = total + power, gamma * power @ step
    truth = np.linalg.solve(second, samples.phi.T @ samples.reward)
    theta, eps = cp.Variable(samples.dim), cp.Variable()
    difference = (samples.target_phi[:, None] - samples.rival_phi).reshape(-1, samples.dim)
    problem = cp.Problem(cp.Maximize(eps), [difference @ total @ theta >= eps, samples.target_phi @ (theta - truth) == 0,
                                            cp.norm(theta) <= cap])  # fmt: skip
    problem.solve(solver="CLARABEL")
    found = discounted_certificate(samples, gamma, cap=cap, penalty=1e-12)
    assert found.eps == pytest.approx(float(eps.value), abs=1e-6)
    assert found.theta.shape == (1, samples.dim) and found.weights[0] == pytest.approx(total @ found.theta[0], abs=1e-6)


def test_discount_zero_is_one_step() -> None:
    samples = toy(1, horizon=1)
    assert discounted_certificate(samples, 0.0).eps == pytest.approx(finite_horizon_certificate(samples, 1).eps, abs=1e-5)


def test_the_sign_is_that_of_a_margin() -> None:
    """A rival shorter than the target along a rewarding direction loses by hand: phi = (1, 0) against (.5, 0), reward .6."""
    phi = np.array([[1.0, 0.0], [0.5, 0.0]])
    for target, rival, eps in ((0, 1, 0.3), (1, 0, -0.3)):  # T5: parallel arms, both signs
        samples = Samples(phi, 0.6 * phi[:, 0], 0 * phi, [0, 0], [0, 1], phi[[target]], phi[None, [rival]], [0], [0])
        found = finite_horizon_certificate(samples, 1, penalty=1e-10)
        assert found.eps == pytest.approx(eps, abs=1e-6) and found.attackable == (eps > 0)
        assert found.free.tolist() == [1] and found.status == "pinned"  # what is free touches neither arm


def test_pins_by_tolerance_and_what_they_cost() -> None:
    """A tiny bend of the support's features pins everything at a fine tolerance and charges little at a coarse one."""
    samples = toy()
    bent = replace(samples, target_phi=samples.target_phi + 1e-4 * np.random.default_rng(0).normal(size=samples.target_phi.shape))
    fine, coarse = (finite_horizon_certificate(bent, 3, pin_tol=tol) for tol in (1e-6, 1e-2))
    assert fine.free.tolist() == [0, 0, 0] and fine.status == "pinned" and np.array_equal(fine.theta, fine.theta)
    assert np.allclose(fine.theta, fine.true_theta, atol=1e-9)
    assert coarse.free.tolist() == [2, 2, 2] and 1e-7 < coarse.pin_error < 1e-2 and coarse.eps > fine.eps


def test_margins_are_those_of_the_poison_on_other_states() -> None:
    samples = toy()
    found = finite_horizon_certificate(samples, 3)
    margins = found.margins(samples)
    assert margins.shape == (30, 2) and margins.min() == found.eps
    i, h = 7, int(samples.support_step[7])
    by_hand = float(samples.target_phi[i] @ found.weights[h] - samples.rival_phi[i, 1] @ found.weights[h])
    assert margins[i, 1] == pytest.approx(by_hand, abs=1e-12)


def test_split_stability_knows_clear_signs_from_coin_tosses() -> None:
    certify_half = partial(finite_horizon_certificate, horizon=H)
    clear = []
    for mdp, target in instances(12, 4):
        exact = certify(mdp, target, q_mode="policy").eps
        if abs(exact) > 0.3:
            samples = rollouts(mdp, target, 400, np.random.default_rng(5))
            clear.append((exact, split_stability(samples, certify_half, 6, np.random.default_rng(6))))
    assert len(clear) >= 3 and any(eps > 0 for eps, _ in clear)
    assert np.mean([stability.agreement for _, stability in clear]) > 0.8
    for eps, stability in clear:
        assert stability.eps.shape == stability.held_out.shape == (6, 2)
        assert stability.interval[0] <= stability.agreement <= stability.interval[1]
        if eps > 0 and stability.positive == 1:
            assert stability.violated < 0.5
    # rewards and features without any structure, eps near 0 by construction of the median: halves disagree sometimes
    noise = toy(8, d=3, n=24)
    loose = split_stability(noise, partial(finite_horizon_certificate, horizon=3, stationary=True), 30, np.random.default_rng(7))
    assert loose.violated > 0, "no poison from a handful of states keeps its margin everywhere else"


def test_wilson_by_its_equation() -> None:
    """Its ends are where the share lies 1.96 standard errors away: a root of a quadratic, checked by plugging in."""
    for k, n in ((3, 10), (1, 40), (39, 40)):
        for end in wilson(k, n):
            assert abs(k / n - end) == pytest.approx(1.959964 * np.sqrt(end * (1 - end) / n), abs=1e-6)
    assert wilson(0, 10)[0] == 0 and wilson(10, 10)[1] == 1 and wilson(0, 10)[1] == pytest.approx(0.2775, abs=1e-4)


def test_ridge_shrinks_and_interpolates() -> None:
    X = np.eye(2)
    assert ridge(X, np.array([1.0, 2.0]), 0.5) == pytest.approx([0.5, 1.0])  # (1/2 + 1/2)^{-1} y / 2


def test_bad_input_is_named() -> None:
    samples = toy()
    for change, error, word in [
        ({"reward": samples.reward[:-1]}, ValueError, "reward"), ({"next_phi": samples.next_phi[:, :-1]}, ValueError, "next_phi"),
        ({"phi": 3 * samples.phi}, ValueError, "phi: expected norms"), ({"step": samples.step.astype(float)}, TypeError, "step"),
        ({"step": samples.step - 5}, ValueError, "step"), ({"rival_phi": samples.target_phi}, ValueError, "rival_phi"),
        ({"reward": samples.reward * np.nan}, ValueError, "reward"),
    ]:  # fmt: skip
        with pytest.raises(error, match=word):
            replace(samples, **change)
    calls: list[tuple[Any, type[Exception], str]] = [
        (lambda: finite_horizon_certificate(samples, 2), ValueError, "horizon"),
        (lambda: finite_horizon_certificate(samples, 5), ValueError, "step 3"),
        (lambda: finite_horizon_certificate(samples, 3, penalty=0.0), ValueError, "penalty"),
        (lambda: finite_horizon_certificate(samples, 3, pin_tol=1.0), ValueError, "pin_tol"),
        (lambda: finite_horizon_certificate(None, 3), TypeError, "samples"),  # type: ignore[arg-type]
        (lambda: discounted_certificate(samples, 1.0), ValueError, "gamma"),
        (lambda: finite_horizon_certificate(replace(samples, reward=samples.phi @ np.full(4, 50.0)), 3), CapInfeasible, "cap"),
        (lambda: split_stability(samples, finite_horizon_certificate, 0, np.random.default_rng(0)), ValueError, "splits"),
        (lambda: split_stability(samples, None, 1, np.random.default_rng(0)), TypeError, "certify"),  # type: ignore[arg-type]
        (lambda: wilson(3, 2), ValueError, "successes"),
        (lambda: samples.of(np.array([999])), ValueError, "episodes"),
    ]
    for call, kind, word in calls:
        with pytest.raises(kind, match=word):
            call()


def test_a_cap_that_is_too_small_is_stretched_where_asked() -> None:
    samples = toy()
    steep = replace(samples, reward=samples.phi @ np.full(4, 50.0))
    for found in (finite_horizon_certificate(steep, 3, stretch=True), discounted_certificate(steep, 0.5, stretch=True)):
        norms = np.linalg.norm(found.theta, axis=1)
        assert found.cap > 2 and norms.max() <= found.cap * (1 + 1e-9)
    assert finite_horizon_certificate(samples, 3, stretch=True).cap == 2, "sqrt d where it is enough"
