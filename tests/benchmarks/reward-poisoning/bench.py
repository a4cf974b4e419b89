"""Certificates in direct conic form beside each problem built anew in cvxpy, and what they cost as the environment grows.

    python tests/benchmarks/reward-poisoning/bench.py --out tests/benchmarks/reward-poisoning/benchmarks.json

`bench_learner.py` in this folder adds the learner and the attacked loop, where it is there.
"""
# ruff: noqa: E402, I001 - the harness sets the number of threads before numpy is imported

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(1, str(HERE))
import harness

import cvxpy  # noqa: F401 - its import is not the peer's work
import numpy as np
from paperbook.papers.reward_poisoning.certificate import certify, certify_batch, changed_targets, minimal_cost, sweep
from paperbook.papers.reward_poisoning.mdp import LinearMDP, random_instance, random_linear_mdp, tabular_linear_mdp
from paperbook.papers.reward_poisoning.programme import plain_programme
from paperbook.papers.reward_poisoning.teaching import rakhsha2020


def rng(*names: int) -> np.random.Generator:
    return np.random.default_rng(names)


def batch(n: int) -> dict[str, Callable[[], Any]]:
    """eps* of n targets of one MDP (S = 8, A = 3, H = 3, d = 5), by the batch and with each problem built anew."""
    mdp = random_linear_mdp(8, 3, 3, 5, rng=rng(1))
    stream = rng(2)
    targets = np.stack([mdp.optimal_policy(stream.uniform(-1, 1, size=(3, 5))) for _ in range(n)])
    return {
        "batch": lambda: certify_batch(mdp, targets).eps,
        "anew": lambda: np.array([plain_programme(mdp, target).eps for target in targets]),
    }


def instance(states: int, actions: int, horizon: int, dim: int) -> tuple[LinearMDP, Any]:
    spread = -(-2 * states // dim)  # most states are reached: leaving out the others would favour ours
    return random_instance(states, actions, horizon, dim, latent_support=min(spread, states), rng=rng(3, states, horizon))


def one(states: int, actions: int, horizon: int, dim: int) -> dict[str, Callable[[], Any]]:
    """One programme: ours with both solvers, and the plain one."""
    mdp, target = instance(states, actions, horizon, dim)
    return {
        "ours": lambda: certify(mdp, target).eps,
        "plain": lambda: plain_programme(mdp, target).eps,
    }


def heat_map(states: int) -> dict[str, Callable[[], Any]]:
    """Every target that differs in one decision: targets that agree on their support share a programme."""
    mdp, target = instance(states, 3, 3, 5)
    flat = changed_targets(mdp, target).reshape(-1, 3, states)
    return {
        "sweep": lambda: sweep(mdp, target).ravel(),
        "one by one": lambda: np.array([certify(mdp, changed).eps for changed in flat]),
    }


def cheapest(states: int) -> dict[str, Callable[[], Any]]:
    """The cheapest pinned poison of a table: the same norm as policy teaching with pinned rewards."""
    stream = rng(4)
    kernel = stream.dirichlet(np.ones(states), size=(3, states, 2))
    mdp = tabular_linear_mdp(kernel, stream.uniform(size=(3, states, 2)))
    target = stream.integers(2, size=(3, states))
    return {
        "ours": lambda: minimal_cost(mdp, target, 0.3, cap=None, q_mode="policy").cost ** 0.5,
        "teaching": lambda: rakhsha2020(mdp, target, 0.3, pinned=True, by_policy=False).cost,
    }


def certificate_job(horizon: int) -> Callable[[], Any]:
    mdp, target = instance(20, 5, horizon, 12)
    certify(mdp, target)  # the model of an MDP is built once
    return lambda: certify(mdp, target)


def memory_child() -> None:
    """Print the growth of the peak memory by one large certificate; runs in a process of its own."""
    mdp, target = instance(60, 5, 6, 12)
    grown = harness.peak_growth_mb(lambda: certify(*instance(8, 3, 3, 5)), lambda: certify(mdp, target))
    if grown is not None:
        print(grown)


def compared(jobs: dict[str, Callable[[], Any]], repeats: int) -> tuple[float, float, float]:
    """Median seconds of the two jobs, in order, and the largest difference of what they found."""
    done = harness.taking_turns(jobs, repeats)
    (ours, first), (peer, second) = ((harness.median_seconds(rounds), rounds[0][1]) for rounds in done.values())
    return ours, peer, float(np.max(np.abs(np.asarray(first) - np.asarray(second))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "benchmarks.json")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one repeat: shows that it runs")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory:
        memory_child()
        return
    quick = given.quick
    repeats = 1 if quick else 5
    memory = None
    if not quick:
        told = subprocess.run([sys.executable, __file__, "--memory"], check=True, capture_output=True, text=True).stdout.split()
        memory = float(told[-1]) if told else None
    n, wide = (3, (8, 3, 3, 5)) if quick else (24, (60, 5, 6, 12))
    certify(*instance(8, 3, 3, 5))
    plain_programme(*instance(8, 3, 3, 5))
    rows, difference = [], {}

    def add(case: str, key: str, jobs: dict[str, Callable[[], Any]], note: str, times: int = repeats) -> None:
        ours, peer, difference[key] = compared(jobs, times)
        rows.append(harness.row(case, ours, peer, "s", f"{note}, largest difference {difference[key]:.0e}"))

    add(f"{n} targets, S = 8, A = 3, H = 3, d = 5: each problem built anew in cvxpy", "batch", batch(n), "the same programme")
    size = ", ".join(f"{name} = {value}" for name, value in zip("SAHd", wide, strict=True))
    add(f"one certificate, {size}: cvxpy, state by state", "one", one(*wide),
        "the same programme" + ("" if memory is None else f", peak memory {memory:.1f} MB"), min(repeats, 3))  # fmt: skip
    states = 4 if quick else 8
    add(f"heat map of {9 * states} targets: one by one, same library", "heat map", heat_map(states), "the same work")
    add(f"cheapest poison of a table, S = {states}, A = 2, H = 3: policy teaching in cvxpy", "cheapest", cheapest(states),
        "the same norm")  # fmt: skip
    sizes = [2, 4] if quick else [8, 16, 32, 64]
    slope, spent = harness.cost_against_size(sizes, certificate_job, repeats)
    slopes = [{"what": "one certificate against steps $H$ ($S = 20$, $A = 5$, $d = 12$)", "measured": slope,
               "theory": 1}]  # fmt: skip
    details: dict[str, Any] = {
        "difference": difference, "peak_mb": memory, "by_steps": {"H": sizes, "seconds": spent},
    }  # fmt: skip
    if (HERE / "bench_learner.py").is_file():
        more_rows, more_slopes, details["learner"] = importlib.import_module("bench_learner").measure(quick, repeats)
        rows += more_rows
        slopes += more_slopes
    harness.publish(given.out, rows, slopes, details, quick)


if __name__ == "__main__":
    main()
