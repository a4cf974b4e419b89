"""LSVI-UCB on counts beside one that keeps its transitions, and many copies at once beside a loop over them. `bench.py` runs it.

It needs `harness` imported first, as `bench.py` does: that sets the number of threads before numpy is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import harness
from paperbook.papers.reward_poisoning.attacks import AdaptiveTarget
from paperbook.papers.reward_poisoning.learner import LSVIUCB
from paperbook.papers.reward_poisoning.mdp import LinearMDP, random_linear_mdp
from paperbook.papers.reward_poisoning.play import run_attack

BONUS = 0.3


def large() -> tuple[LinearMDP, np.ndarray]:
    """d = 12, S = 60, A = 5, H = 6, and a target: the optimal policy."""
    mdp = random_linear_mdp(60, 5, 6, 12, rng=np.random.default_rng(0))
    return mdp, mdp.optimal_policy(-mdp.theta)


class Transitions:
    """LSVI-UCB as one writes it down: all transitions are kept, and every episode sums over them again, in NumPy."""

    def __init__(self, mdp: LinearMDP, episodes: int) -> None:
        self.mdp, self.batch, self.t = mdp, 1, 0
        self.seen = np.zeros((3, mdp.horizon, episodes), dtype=np.int64)
        self.r = np.zeros((mdp.horizon, episodes))

    def plan(self) -> None:
        mdp, d = self.mdp, self.mdp.dim
        self.q = np.zeros((mdp.horizon + 1, mdp.states, mdp.actions))
        for h in reversed(range(mdp.horizon)):
            s, a, s2 = self.seen[:, h, : self.t]
            x = mdp.phi[s, a]
            gram = np.eye(d) + x.T @ x
            w = np.linalg.solve(gram, x.T @ (self.r[h, : self.t] + self.q[h + 1].max(axis=1)[s2]))
            inverse = np.linalg.inv(gram)
            width = np.sqrt(np.einsum("sad,de,sae->sa", mdp.phi, inverse, mdp.phi))
            self.q[h] = np.minimum(mdp.phi @ w + BONUS * width, d**0.5 * (mdp.horizon - h))

    def act(self, h: int, s: np.ndarray) -> np.ndarray:
        return self.q[h, s].argmax(axis=1)

    def observe(self, h: int, s: np.ndarray, a: np.ndarray, r: np.ndarray, s2: np.ndarray) -> None:
        self.seen[:, h, self.t] = s[0], a[0], s2[0]
        self.r[h, self.t] = r[0]
        self.t += h == self.mdp.horizon - 1


def episodes(T: int) -> dict[str, Callable[[], Any]]:
    """T episodes under a penalty, learner, environment and attacker together: on counts, and from the list."""
    mdp, target = large()

    def run(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: run_attack(mdp, make(), AdaptiveTarget(target, 1.0), target, T, np.random.default_rng(1))

    return {
        "counts": run(lambda: LSVIUCB(mdp.phi, mdp.horizon, bonus=BONUS)),
        "transitions": run(lambda: Transitions(mdp, T)),
    }


def copies(T: int, batch: int) -> dict[str, Callable[[], Any]]:
    """T episodes of `batch` copies (S = 8, A = 3, H = 3, d = 5): together, and one after the other."""
    pairs = [random_linear_mdp(8, 3, 3, 5, rng=np.random.default_rng(i)) for i in range(batch)]
    targets = np.stack([mdp.optimal_policy(-mdp.theta) for mdp in pairs])

    def together() -> float:
        learner = LSVIUCB(np.stack([mdp.phi for mdp in pairs]), 3, bonus=BONUS)
        return float(run_attack(pairs, learner, AdaptiveTarget(targets, 1.0), targets, T, np.random.default_rng(2)).cost.sum())

    def loop() -> float:
        total = 0.0
        for i, (mdp, target) in enumerate(zip(pairs, targets, strict=True)):
            stream = np.random.default_rng(2)
            stream.spawn(i)  # the stream that the copy has in the batch
            learner = LSVIUCB(mdp.phi, 3, bonus=BONUS)
            total += float(run_attack(mdp, learner, AdaptiveTarget(target, 1.0), target, T, stream).cost.sum())
        return total

    return {"together": together, "loop": loop}


def measure(quick: bool, repeats: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Rows, slopes and details of the cost page."""
    T, batch = (30, 4) if quick else (4000, 100)
    jobs = episodes(T)
    found = harness.taking_turns(jobs, repeats)
    ms = {name: 1e3 * harness.median_seconds(done) / T for name, done in found.items()}
    gap = abs(found["counts"][0][1].cost.sum() - found["transitions"][0][1].cost.sum())
    size = "d = 12, S = 60, A = 5, H = 6"
    rows = [harness.row(f"an episode, {size}, mean of {T:,}: all transitions kept", ms["counts"], ms["transitions"], "ms",
                        f"difference of the costs {gap:.0e}")]  # fmt: skip
    short = 20 if quick else 1000
    many = harness.taking_turns(copies(short, batch), repeats)
    seconds = {name: harness.median_seconds(done) for name, done in many.items()}
    difference = abs(many["together"][0][1] - many["loop"][0][1])
    rows.append(harness.row(f"{batch} copies, {short:,} episodes: a loop over copies, same library", seconds["together"],
                            seconds["loop"], "s", f"difference of the costs {difference:.0e}"))  # fmt: skip
    sizes = [10, 20, 40] if quick else [1000, 4000, 16_000]
    slope, spent = harness.cost_against_size(sizes, lambda n: episodes(n)["counts"], repeats)
    slopes = [{"what": "time of a run against its episodes $T$", "measured": slope, "theory": 1}]
    return rows, slopes, {"ms_per_episode": ms, "copies": seconds, "by_episodes": {"T": sizes, "seconds": spent}}
