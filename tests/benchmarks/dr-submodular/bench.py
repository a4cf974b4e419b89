"""Batched players beside a loop over players, one gradient a round beside Meta-Frank-Wolfe, our projection beside a solver's.

    python tests/benchmarks/dr-submodular/bench.py --out tests/benchmarks/dr-submodular/benchmarks.json
"""
# ruff: noqa: E402, I001 - the harness sets the number of threads before numpy is imported

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import harness

import numpy as np
from paperbook.data.graphs import load_graph
from paperbook.papers.dr_submodular.baselines import MetaFrankWolfe, measured_continuous_greedy
from paperbook.papers.dr_submodular.feedback import OMBQ
from paperbook.papers.dr_submodular.functions import CutExtension, take
from paperbook.papers.dr_submodular.learners import OGD, SOOGD
from paperbook.papers.dr_submodular.play import Fixed, Pool, play
from paperbook.papers.dr_submodular.sets import BudgetBox, Polytope, random_packing
from paperbook.papers.dr_submodular.studies import problem
from paperbook.papers.dr_submodular.wrappers import ExponentialDownClosed


def rng(*names: int) -> np.random.Generator:
    return np.random.default_rng(names)


def players(T: int, reps: int) -> dict[str, Callable[[], Any]]:
    """The same players and rewards, as one batch and one after the other; and Meta-Frank-Wolfe on the same rewards."""
    task = problem(6, 3.0, 0.3, 50, 0)
    index = rng(1).integers(50, size=(T, reps))
    wrapper = ExponentialDownClosed()

    def batched() -> np.ndarray:
        return play(Pool(task.family, index), OMBQ(OGD(task.K, (reps,)), wrapper, rng(2)), T).average_reward

    def loop() -> np.ndarray:
        return np.array([
            play(Pool(task.family, index[:, i]), OMBQ(OGD(task.K), wrapper, rng(2, i)), T).average_reward for i in range(reps)
        ])  # fmt: skip

    def by_hand() -> np.ndarray:
        """A loop over players in plain NumPy, with the projection by bisection: what one writes first."""
        return np.array([_one_player(task, index[:, i], rng(2, i)) for i in range(reps)])

    def meta() -> np.ndarray:
        return play(Pool(task.family, index), MetaFrankWolfe(task.K, (reps,), 16), T).average_reward

    return {"batched": batched, "loop": loop, "by hand": by_hand, "meta": meta}


def _one_player(task: Any, index: np.ndarray, stream: np.random.Generator) -> float:
    x, squares, total, D = task.K.centre(), 0.0, 0.0, task.K.diameter
    for i in index:
        f = take(task.family, int(i))
        total += float(f.value(-np.expm1(-x)))
        shrink = np.exp(-np.log1p((np.e - 1) * stream.random()) * x)
        q = f.grad(1 - shrink) * shrink
        squares += float(q @ q)
        y = x + D * q / squares**0.5
        low, high = 0.0, float(max(y.max(), 0.0))
        if np.clip(y, 0, 1).sum() > task.K.budget:
            for _ in range(50):
                middle = (low + high) / 2
                low, high = (middle, high) if np.clip(y - middle, 0, 1).sum() > task.K.budget else (low, middle)
        else:
            high = 0.0
        x = np.clip(y - high, 0, 1)
    return total / len(index)


def projections(batch: int, dim: int) -> dict[str, Callable[[], Any]]:
    """One budget box, in closed form and as a polytope that Clarabel projects onto."""
    box, same = BudgetBox(dim, dim / 4), Polytope(np.ones((1, dim)), [dim / 4])
    y = rng(3).normal(0.5, 1.0, size=(batch, dim))
    return {"closed form": lambda: box.project(y), "Clarabel": lambda: same.project(y)}


def without_projections(T: int) -> dict[str, Callable[[], Any]]:
    """T linear gains on a random packing polytope: separation oracle against projection."""
    K = random_packing(10, 5, rng(4))
    gains = rng(5).normal(size=(T, 4, 10))

    def run(make: Callable[[], Any]) -> Callable[[], Any]:
        def job() -> Any:
            learner = make()
            for g in gains:
                learner.update(g)
            return learner.regret()

        return job

    return {"separation": run(lambda: SOOGD(K, (4,), horizon=T, gain_bound=6.0)), "projection": run(lambda: OGD(K, (4,)))}


def offline(steps: int) -> dict[str, Callable[[], Any]]:
    """The karate club's cut with as many gradients: the wrapped player against measured continuous greedy."""
    f = CutExtension(load_graph("karate"))
    K = BudgetBox(f.dim, 5.0)
    wrapper = ExponentialDownClosed()

    def ours() -> float:
        history = play(Fixed(f), OMBQ(OGD(K), wrapper, rng(6)), steps)
        return float(f.value(wrapper.action(history.final)))

    return {"ours": ours, "greedy": lambda: float(f.value(measured_continuous_greedy(f, K, steps)))}


def round_job(batch: int, dim: int) -> Callable[[], Any]:
    """What a round costs without the oracle: one query, one linear gain, one projected step."""
    K, wrapper, stream = BudgetBox(dim, dim / 4), ExponentialDownClosed(), rng(7)
    learner = OGD(K, (batch,))
    gradient = rng(8).normal(size=(batch, dim))

    def job() -> None:
        _, factor = wrapper.query(learner.act(), stream)
        learner.update(factor * gradient)
        wrapper.action(learner.act())

    return job


def memory_child(T: int, reps: int) -> None:
    """Print the growth of the peak memory by the batched players; runs in a process of its own."""
    grown = harness.peak_growth_mb(lambda: players(20, 4)["batched"](), players(T, reps)["batched"])
    if grown is not None:
        print(grown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "benchmarks.json")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one repeat: shows that it runs")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    quick = given.quick
    T, reps, repeats = (20, 4, 1) if quick else (1000, 64, 5)
    if given.memory:
        memory_child(1000, 64)
        return
    memory = None
    if not quick:
        told = subprocess.run([sys.executable, __file__, "--memory"], check=True, capture_output=True, text=True).stdout.split()
        memory = float(told[-1]) if told else None
    jobs = players(T, reps)
    jobs["batched"]()
    played = harness.taking_turns(jobs, repeats)
    seconds = {name: harness.median_seconds(done) for name, done in played.items()}
    reward = {name: float(np.mean(done[0][1])) for name, done in played.items()}
    case = f"{reps} players, {T:,} rounds, d = 6"
    note = "the same work" + ("" if memory is None else f"; peak memory {memory:.1f} MB")
    rows = [
        harness.row(f"{case}: a loop over players, same library", seconds["batched"], seconds["loop"], "s", note),
        harness.row(f"{case}: a loop over players in plain NumPy", seconds["batched"], seconds["by hand"], "s",
                    "projection by bisection"),
        harness.row(f"{case}: Meta-Frank-Wolfe, 16 gradients a round", seconds["batched"], seconds["meta"], "s",
                    f"reward ratio {reward['batched'] / reward['meta']:.3f}, one gradient a round"),
    ]  # fmt: skip
    batch, dim = (4, 10) if quick else (64, 50)
    projected = harness.taking_turns(projections(batch, dim), repeats)
    gap = float(np.abs(projected["closed form"][0][1] - projected["Clarabel"][0][1]).max())
    rows.append(harness.row(
        f"projection of {batch} points, d = {dim}: Clarabel", 1e3 * harness.median_seconds(projected["closed form"]),
        1e3 * harness.median_seconds(projected["Clarabel"]), "ms", f"largest difference {gap:.0e}",
    ))  # fmt: skip
    free = harness.taking_turns(without_projections(20 if quick else 1000), repeats)
    ratio = float(np.mean(free["separation"][0][1]) / np.mean(free["projection"][0][1]))
    rows.append(harness.row(
        f"{20 if quick else 1000} linear rounds on a packing polytope, d = 10: projected ascent (Clarabel)",
        harness.median_seconds(free["separation"]), harness.median_seconds(free["projection"]), "s",
        f"ours: SO-OGD, separation only; regret ratio {ratio:.2f}",
    ))  # fmt: skip
    steps = 20 if quick else 500
    off = harness.taking_turns(offline(steps), repeats)
    rows.append(harness.row(
        f"karate cut, k = 5, {steps} gradients: measured continuous greedy", harness.median_seconds(off["ours"]),
        harness.median_seconds(off["greedy"]), "s", f"value ratio {off['ours'][0][1] / off['greedy'][0][1]:.3f}",
    ))  # fmt: skip
    dims = [100, 200] if quick else [2000, 8000, 32_000, 128_000]
    batches = [2, 4] if quick else [16, 64, 256, 1024]
    by_dim, dim_seconds = harness.cost_against_size(dims, lambda d: round_job(8, d), repeats)
    by_batch, batch_seconds = harness.cost_against_size(batches, lambda b: round_job(b, 1000), repeats)
    slopes = [
        {"what": "round without the oracle against $d$", "measured": by_dim, "theory": 1},
        {"what": "round without the oracle against players", "measured": by_batch, "theory": 1},
    ]
    details = {
        "players": {"T": T, "reps": reps, "seconds": seconds, "reward": reward, "peak_mb": memory},
        "by_dim": {"d": dims, "seconds": dim_seconds}, "by_batch": {"players": batches, "seconds": batch_seconds},
    }  # fmt: skip
    harness.publish(given.out, rows, slopes, details, quick)


if __name__ == "__main__":
    main()
