"""Bandits in closed form (T5) against grids, a linear programme of their own, and the certificate at H = 1."""

import numpy as np
import pytest

from paperbook.papers.reward_poisoning.bandits import (
    bandit_instance,
    in_convex_hull,
    orthonormal_eps,
    parallel_eps,
    planar_eps,
)
from paperbook.papers.reward_poisoning.certificate import CapInfeasible, NoRival, certify

SOLVER = 1e-7  # the certificate's own accuracy is 1e-9; rounding of conversions on top


def drawn(seed, arms, dim):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(arms, dim))
    x /= np.linalg.norm(x, axis=1).max()
    theta = rng.normal(size=dim)
    return x, theta / np.linalg.norm(theta) * rng.uniform(0.2, 1.2)


def certified(x, theta, target, cap=None):
    return certify(*bandit_instance(x, theta, target), cap="sqrt_d" if cap is None else cap)


def test_the_numbers_of_the_theory():
    assert parallel_eps([[0.5, 0], [1, 0]], [0.6, 0], 0) == pytest.approx(-0.3, abs=1e-12)
    assert orthonormal_eps(np.eye(2), [0.6, 0.3], 0) == pytest.approx(0.6 + (2 - 0.36) ** 0.5, abs=1e-12)
    assert orthonormal_eps(np.eye(3), [0.2, 0.9, 0.5], 0) == pytest.approx(0.2 + ((3 - 0.04) / 2) ** 0.5, abs=1e-12)
    assert orthonormal_eps(np.eye(2), [0.6, 0.3], 0) == pytest.approx(1.880625, abs=1e-6)
    assert orthonormal_eps(np.eye(3), [0.2, 0.9, 0.5], 0) == pytest.approx(1.416553, abs=1e-6)


def test_the_programme_agrees_with_the_closed_forms():
    assert certified([[0.5, 0], [1, 0]], [0.6, 0], 0).eps == pytest.approx(-0.3, abs=SOLVER)
    assert certified(np.eye(2), [0.6, 0.3], 0).eps == pytest.approx(1.880625, abs=1e-6)
    assert certified(np.eye(3), [0.2, 0.9, 0.5], 0).eps == pytest.approx(1.416553, abs=1e-6)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))
    theta = np.random.default_rng(1).uniform(-1, 1, size=5)
    for target in range(3):
        x = turn[:3]  # three orthonormal arms in five dimensions
        assert certified(x, theta, target, 1.9).eps == pytest.approx(orthonormal_eps(x, theta, target, 1.9), abs=SOLVER)


@pytest.mark.parametrize("seed", range(12))
def test_the_plane_by_geometry_by_grid_and_by_programme(seed):
    x, theta = drawn(seed, 2 + seed % 4, 2)
    found = planar_eps(x, theta, 0, 1.5)
    assert found.eps == pytest.approx(certified(x, theta, 0, 1.5).eps, abs=SOLVER)
    ends = found.ends
    np.testing.assert_allclose(np.linalg.norm(ends, axis=1), 1.5, atol=1e-12)
    grid = ends[0] + np.linspace(0, 1, 20_001)[:, None] * (ends[1] - ends[0])
    margins = (x[0] @ grid.T - x[1:] @ grid.T).min(axis=0)
    # margins change by at most ||x_0|| + ||x_i|| <= 2 a unit of length, and a cell is 3 / 20,000 long
    assert margins.max() <= found.eps + 1e-12 and found.eps - margins.max() <= 2 * 3 / 20_000
    assert x[0] @ found.theta == pytest.approx(x[0] @ theta, abs=1e-12) and np.linalg.norm(found.theta) <= 1.5 + 1e-12
    worst = x[0] @ found.theta - x[list(found.binding)] @ found.theta
    np.testing.assert_allclose(worst, found.eps, atol=1e-8)


@pytest.mark.parametrize("seed", range(6))
def test_a_target_inside_the_hull_of_the_others_is_robust(seed):
    rng = np.random.default_rng(seed)
    others = rng.normal(size=(5, 3))
    others /= 1.1 * np.linalg.norm(others, axis=1).max()
    inside = rng.dirichlet(np.ones(5)) @ others
    assert in_convex_hull(inside, others)
    assert certified(np.vstack([inside, others]), 0.3 * rng.normal(size=3), 0, 50.0).eps <= 1e-9
    outside = others[0] * 1.05 if not in_convex_hull(others[0] * 1.05, others) else -others.sum(axis=0)
    assert not in_convex_hull(outside, others)


def test_bandits_say_what_is_wrong():
    with pytest.raises(CapInfeasible, match=r"cap: expected at least 0\.6, .* got 0\.5"):
        orthonormal_eps(np.eye(2), [0.6, 0.3], 0, 0.5)
    with pytest.raises(ValueError, match="orthonormal rows"):
        orthonormal_eps([[1, 0], [0.1, 0.9]], [0.6, 0.3], 0)
    with pytest.raises(ValueError, match="multiples of the target's arm"):
        parallel_eps(np.eye(2), [0.6, 0.3], 0)
    with pytest.raises(ValueError, match=r"arms: expected shape \(K, 2\)"):
        planar_eps(np.eye(3), [0.1, 0.2, 0.3], 0)
    with pytest.raises(NoRival, match="at least 2 arms"):
        planar_eps([[1.0, 0.0]], [0.6, 0.3], 0)
    with pytest.raises(ValueError, match=r"theta: expected shape \(2,\)"):
        bandit_instance(np.eye(2), [1.0], 0)
    with pytest.raises(ValueError, match="target: expected"):
        bandit_instance(np.eye(2), [1.0, 0.0], 2)
    with pytest.raises(ValueError, match="others: expected"):
        in_convex_hull([1.0], np.eye(2))
