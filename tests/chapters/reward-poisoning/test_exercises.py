"""The exercises of the chapter: each solution passes its check, each stub fails it."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paperbook.papers.reward_poisoning.bandits import bandit_instance
from paperbook.papers.reward_poisoning.certificate import certify
from paperbook.papers.reward_poisoning.mdp import LinearMDP, random_instance, tabular_linear_mdp

# the folder's name has a hyphen and is no package: the helper is loaded from its file
_spec = importlib.util.spec_from_file_location("chapter_exercises", Path(__file__).parents[1] / "exercises.py")
assert _spec is not None and _spec.loader is not None
exercises = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(exercises)

PLACE = ("reward-poisoning", "6-gymnasium")


def check_feature(crossing: Callable[[float], tuple[float, float]]) -> None:
    """The programme just below and just above the crossing; by hand at s = 0.1."""

    def eps(arms: list[list[float]]) -> float:
        # arms at half the length with parameters of twice the length are the same bandit, and keep ||x|| <= 1 with c > 1
        return float(certify(*bandit_instance(np.array(arms) / 2, [1.0, 0.0], 0), cap=2 * math.sqrt(2)).eps)

    for s in (0.05, 0.1, 0.2):
        one, two = crossing(s)
        assert eps([[1, 0], [one - 1e-3, s]]) > 0 > eps([[1, 0], [one + 1e-3, s]])
        assert eps([[1, 0], [two - 1e-3, s], [two - 1e-3, -s]]) > 0 > eps([[1, 0], [two + 1e-3, s], [two + 1e-3, -s]])
    assert crossing(0.1)[0] == pytest.approx(1 + 0.1 * math.sqrt(7))


def check_cap(smallest_cap: Callable[..., float]) -> None:
    """A closed form (two one-hot arms, pinned -0.6: the rival must go below it), a random cap-limited MDP, a structural one."""
    lottery = tabular_linear_mdp([[[1.0], [1.0]]], [[-0.6, 0.2]], horizon=1)
    # bisection to a relative 1e-6, and the certificate's dead zone of 1e-6 around 0
    assert smallest_cap(lottery, np.array([[0]])) == pytest.approx(0.6 * math.sqrt(2), rel=1e-5)
    found: dict[str, Any] = {}
    rng = np.random.default_rng(0)
    while {"cap-limited", "structurally-robust"} - found.keys():
        pair = random_instance(6, 3, 2, 4, rng=rng)
        found.setdefault(certify(*pair).kind, pair)
    mdp, target = found["cap-limited"]
    cap = smallest_cap(mdp, target, accuracy=1e-4)
    assert cap > 2 and certify(mdp, target, cap=1.01 * cap).eps > 0 >= certify(mdp, target, cap=0.99 * cap).eps - 1e-6
    assert smallest_cap(*found["structurally-robust"], accuracy=1e-2) == math.inf


def check_duals(slope: Callable[[Any, Any], float]) -> None:
    """Central differences of eps* along random directions, on attackable and robust instances."""
    rng, kinds = np.random.default_rng(7), set()
    for _ in range(6):
        mdp, target = random_instance(8, 3, 3, 5, rng=rng)
        here = certify(mdp, target)
        direction, t = rng.normal(size=mdp.theta.shape), 1e-4
        ends = [certify(LinearMDP(mdp.phi, mdp.mu, mdp.theta + sign * t * direction, mdp.s0), target).eps for sign in (-1, 1)]
        # eps is good to 1e-6 at either end, over 2e-4; the curvature adds less
        assert slope(here, direction) == pytest.approx((ends[1] - ends[0]) / (2 * t), abs=2e-2)
        kinds.add(here.attackable)
    assert kinds == {True, False}


def check_decoy(decoy: Callable[[Any, Any], Any]) -> None:
    """Kernel, rewards and optimal value are kept; no cap makes the new MDP attackable."""
    rng, met = np.random.default_rng(3), 0
    for _ in range(6):
        mdp, target = random_instance(8, 3, 3, 8, rng=rng)
        if not certify(mdp, target).attackable:
            continue
        met += 1
        other = decoy(mdp, target)
        assert other.actions == 4 and np.array_equal(other.phi[:, :3], mdp.phi)
        assert other.optimal_q()[0, mdp.s0].max() == pytest.approx(mdp.optimal_q()[0, mdp.s0].max())
        assert all(certify(other, target, cap=cap).eps < 1e-5 for cap in (8**0.5, 50.0))
    assert met >= 2


def check_white_box(perturbed: Callable[[Any, Any, Any], Any]) -> None:
    """Nothing before the first deviation, the shift of every step from there on."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        H = int(rng.integers(1, 7))
        actions, goal, shift = rng.integers(3, size=H), rng.integers(3, size=H), rng.normal(size=H)
        first = next((h for h in range(H) if actions[h] != goal[h]), H)
        wanted = np.concatenate([np.zeros(first), shift[first:]])
        assert np.array_equal(perturbed(actions, goal, shift), wanted)


CHECKS: dict[str, tuple[str, Callable[[Any], None]]] = {
    "rp-ex-feature": ("crossing", check_feature),
    "rp-ex-cap": ("smallest_cap", check_cap),
    "rp-ex-white-box": ("perturbed", check_white_box),
    "rp-ex-duals": ("slope", check_duals),
    "rp-ex-decoy": ("decoy", check_decoy),
}


@pytest.mark.parametrize("exercise", CHECKS)
def test_solution_passes(exercise: str) -> None:
    exercises.assert_solution_passes(PLACE, CHECKS, exercise)


@pytest.mark.parametrize("exercise", CHECKS)
def test_stub_fails(exercise: str) -> None:
    exercises.assert_stub_fails(PLACE, CHECKS, exercise)
