"""What `paperbook run` adds to stock papermill on a notebook of half a minute, and what a checkpoint costs.

    python tests/benchmarks/runner/bench.py --out tests/benchmarks/runner/benchmarks.json
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import median_seconds, publish, row, seconds, taking_turns
from paperbook.study import paths

PAGE = "safe-residual/4-estimator"


def commands(folder: Path, reps: int) -> dict[str, Callable[[], Any]]:
    """The same page with the same parameters, started by each; every call has an empty runs folder."""
    bin_ = Path(sys.executable).parent
    turns = iter(range(10**6))

    def job(*words: str) -> Callable[[], Any]:
        def call() -> None:
            runs = folder / f"runs-{next(turns)}"
            env = {**os.environ, "PAPERBOOK_RUNS": str(runs)}
            subprocess.run(words, cwd=paths.root(), env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        return call

    return {
        "papermill": job(str(bin_ / "papermill"), f"chapters/{PAGE}.md", str(folder / "x.ipynb"), "-p", "reps", str(reps)),
        "paperbook": job(str(bin_ / "paperbook"), "run", PAGE, "--profile", "smoke", "--set", f"reps={reps}"),
    }


def checkpoint(folder: Path, megabytes: int) -> tuple[list[tuple[float, Any]], list[tuple[float, Any]]]:
    """Times of saving and of resuming a state of so many MB (10^6 bytes), in turns."""
    import torch

    from paperbook.study.checkpoints import Checkpoints

    kept = Checkpoints(folder, {"config": "bench"})
    state = {"weights": torch.rand(megabytes * 250_000)}
    saves, resumes = [], []
    for step in range(5):
        saves.append(seconds(lambda step=step: kept.save(step, values=state)))
        resumes.append(seconds(kept.resume))
    return saves, resumes


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="toy sizes: whether the script runs, nothing to publish")
    options = parser.parse_args()
    reps, repeats, megabytes = (2, 1, 1) if options.quick else (32, 3, 100)
    with tempfile.TemporaryDirectory(prefix="paperbook-bench-") as name:
        folder = Path(name)
        done = taking_turns(commands(folder, reps), repeats)
        saves, resumes = checkpoint(folder / "checkpoints", megabytes)
    ours, peer = (median_seconds(done[who]) for who in ("paperbook", "papermill"))
    rows = [
        row("one page, one seed: `paperbook run` against `papermill`", ours, peer, "s", "checks, lock, log, manifest included"),
        row(f"checkpoint of {megabytes} MB, saved and synced", median_seconds(saves), None, "s"),
        row(f"checkpoint of {megabytes} MB, checked and resumed", median_seconds(resumes), None, "s"),
    ]
    details = {"page": PAGE, "reps": reps, "seconds": {who: [spent for spent, _ in rounds] for who, rounds in done.items()}}
    publish(options.out, rows, [], details, options.quick)


if __name__ == "__main__":
    main()
