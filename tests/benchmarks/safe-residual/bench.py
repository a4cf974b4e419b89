"""Speed, quality and memory of the safe residual beside its peers, and how our cost grows with the size of the data.

    python tests/benchmarks/safe-residual/bench.py --out tests/benchmarks/safe-residual/benchmarks.json
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
from paperbook.data.diamonds import load_diamonds
from paperbook.papers.safe_residual.estimators import SafeResidualRegressor
from paperbook.papers.safe_residual.kernel import KernelResidual
from paperbook.papers.safe_residual.piecewise import PiecewisePolynomialRegressor
from paperbook.papers.safe_residual.rivals import LightGBMInitScore, XGBoostBaseMargin
from paperbook.papers.safe_residual.studies import LOW_CLARITY
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.kernel_ridge import KernelRidge

METHODS = {"ours": SafeResidualRegressor, "lightgbm": LightGBMInitScore, "xgboost": XGBoostBaseMargin}
PEERS = {"lightgbm": "LightGBM `init_score`", "xgboost": "XGBoost `base_margin`"}


class Split:
    """Diamonds with the biased black box, as in the chapter: 3,000 low-clarity stones for f_0, target stones for the rest."""

    def __init__(self, seed: int, n: int, n_test: int) -> None:
        diamonds = load_diamonds()
        rng = np.random.default_rng(seed)
        is_low = diamonds.clarity <= LOW_CLARITY
        low, target = (rng.permutation(np.flatnonzero(mask)) for mask in (is_low, ~is_low))
        low = low[:3000]
        box = HistGradientBoostingRegressor(early_stopping=False, random_state=0).fit(diamonds.X[low], diamonds.y[low])
        test, pool = target[:n_test], target[n_test : n_test + n]
        self.X, self.y, self.X_test, self.y_test = diamonds.X[pool], diamonds.y[pool], diamonds.X[test], diamonds.y[test]
        self.f0, self.f0_test = box.predict(self.X), box.predict(self.X_test)

    def run(self, method: str, seed: int) -> float:
        """Fit and predict; the mean squared error on the test stones."""
        fitted = METHODS[method](random_state=seed).fit(self.X, self.y, f0=self.f0)
        return float(np.mean((fitted.predict(self.X_test, f0=self.f0_test) - self.y_test) ** 2))


def memory_child(method: str, n: int, n_test: int) -> None:
    """Print the growth of the peak memory by one fit and predict; runs in a process of its own."""
    split = Split(0, n, n_test)
    grown = harness.peak_growth_mb(lambda: Split(0, 30, 100).run(method, 0), lambda: split.run(method, 0))
    if grown is not None:
        print(grown)


def peak_megabytes(method: str, n: int, n_test: int) -> float | None:
    command = [sys.executable, __file__, "--memory", method, "--n", str(n), "--n-test", str(n_test)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(told[-1]) if told else None


def against_peers(sizes: list[int], repeats: int, n_test: int, memory: bool) -> list[dict[str, Any]]:
    """Each size: median seconds and error of every method over `repeats` splits, all methods on the same splits."""
    found = []
    for n in sizes:
        for method in METHODS:
            Split(0, 30, 100).run(method, 0)  # warm
        splits = [Split(repeat, n, n_test) for repeat in range(repeats)]
        rounds: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
        for seed, split in enumerate(splits):
            once = harness.taking_turns({m: lambda m=m, s=split, i=seed: s.run(m, i) for m in METHODS}, 1)
            for method, (result,) in once.items():
                rounds[method].append(result)
        found.append({
            "n": n, "repeats": repeats,
            "methods": {
                method: {
                    "seconds": harness.median_seconds(done),
                    "mse": float(np.median([error for _, error in done])),
                    "peak_mb": peak_megabytes(method, n, n_test) if memory else None,
                }
                for method, done in rounds.items()
            },
        })  # fmt: skip
    return found


def rows_of(sizes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for size in sizes:
        ours = size["methods"]["ours"]
        for name, title in PEERS.items():
            peer = size["methods"][name]
            note = f"MSE ratio {ours['mse'] / peer['mse']:.2f}"
            if ours["peak_mb"] is not None:
                note += f"; peak {ours['peak_mb']:.0f} against {peer['peak_mb']:.0f} MB"
            rows.append(harness.row(f"diamonds, n = {size['n']}, {title}", ours["seconds"], peer["seconds"], "s", note))
    return rows


def kernel_job(n: int) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, 9)), rng.normal(size=n)
    return lambda: KernelResidual().fit(X, y)


def piecewise_job(n: int) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(n, 1)), rng.normal(size=n)
    return lambda: PiecewisePolynomialRegressor(order=1, n_cells=100, domain=(0.0, 1.0)).fit(X, y)


def penalty_grid(n: int, penalties: int, repeats: int) -> dict[str, Any]:
    """One eigendecomposition for the grid against a KernelRidge (Cholesky) refit a penalty, with the same predictions."""
    rng = np.random.default_rng(0)
    X, y, Z = rng.normal(size=(n, 9)), rng.normal(size=n), rng.normal(size=(n // 2, 9))
    grid = np.logspace(-3, 0, penalties)

    def ours() -> Any:
        return KernelResidual(gamma=0.15, alphas=grid, scale=False).fit(X, y).path(Z)

    def refits() -> Any:
        return np.stack([KernelRidge(alpha=a, kernel="laplacian", gamma=0.15).fit(X, y).predict(Z) for a in grid], axis=1)

    done = harness.taking_turns({"ours": ours, "refits": refits}, repeats)
    return {
        "n": n, "penalties": penalties,
        "seconds_eigendecomposition": harness.median_seconds(done["ours"]),
        "seconds_refits": harness.median_seconds(done["refits"]),
        "largest_difference": float(np.max(np.abs(done["ours"][0][1] - done["refits"][0][1]))),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "benchmarks.json")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one repeat: shows that it runs")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    parser.add_argument("--n", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--n-test", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.memory:
        memory_child(given.memory, given.n, given.n_test)
        return
    quick = given.quick
    sizes = against_peers([30] if quick else [50, 500, 5000], 1 if quick else 5, 200 if quick else 6000, not quick)
    grid = penalty_grid(60 if quick else 1000, 3 if quick else 20, 1 if quick else 5)
    kernel_n = [50, 100] if quick else [500, 1000, 2000, 4000]
    cell_n = [1000, 2000] if quick else [10**5, 3 * 10**5, 10**6, 3 * 10**6]
    kernel_slope, kernel_seconds = harness.cost_against_size(kernel_n, kernel_job, 1 if quick else 3)
    cell_slope, cell_seconds = harness.cost_against_size(cell_n, piecewise_job, 1 if quick else 5)
    rows = rows_of(sizes)
    rows.append(harness.row(
        f"{grid['penalties']} penalties at n = {grid['n']}, a `KernelRidge` refit for each", grid["seconds_eigendecomposition"],
        grid["seconds_refits"], "s", "same predictions from one eigendecomposition",
    ))  # fmt: skip
    at = cell_n[-2]
    rows.append(harness.row(f"piecewise fit, n = {at:,}, 100 cells", cell_seconds[-2], None, "s", "no peer: goal below 1 s"))
    slopes = [
        {"what": "kernel learner, seconds against n", "measured": kernel_slope, "theory": 3},
        {"what": "piecewise learner, seconds against n", "measured": cell_slope, "theory": 1},
    ]
    details = {
        "against_peers": sizes, "penalty_grid": grid,
        "kernel_cost": {"n": kernel_n, "seconds": kernel_seconds},
        "piecewise_cost": {"n": cell_n, "seconds": cell_seconds},
    }  # fmt: skip
    harness.publish(given.out, rows, slopes, details, quick)


if __name__ == "__main__":
    main()
