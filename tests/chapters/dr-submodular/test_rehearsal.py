"""The full profiles walk their own code path end to end on a CPU: only places and sizes differ from a GPU server's run."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paperbook.papers.dr_submodular.config_graphs import GraphsConfig
from paperbook.study.paths import chapter
from paperbook.study.profiles import read_yaml

SLUG, PAGE = "dr-submodular", "6-graphs"
SIZES: dict[str, Any] = {"k": 4, "rounds": 60, "reps": 3}


def edges(folder: Path) -> Path:
    """A random graph in SNAP's format, gzipped, with a comment, a loop and ids with gaps."""
    pairs = np.random.default_rng(0).integers(40, size=(200, 2)) * 3
    path = folder / "edges.txt.gz"
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        stream.write("# FromNodeId ToNodeId\n5 5\n" + "".join(f"{a} {b}\n" for a, b in pairs))
    return path


def ratings(folder: Path) -> Path:
    """Ratings of thirty movies by twenty people in MovieLens' format."""
    rng = np.random.default_rng(1)
    path = folder / "ratings.dat"
    lines = [f"{u}::{m}::{rng.integers(1, 6)}::978300760" for u in range(1, 21) for m in range(1, 31) if rng.random() < 0.4]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("profile", "make"), [("full.yaml", edges), ("full-movielens.yaml", ratings)])
def test_full_path_end_to_end(profile: str, make: Any, rehearse: Any, tmp_path: Path) -> None:
    values = read_yaml(chapter(SLUG) / "profiles" / profile)
    assert set(GraphsConfig.model_fields) - set(values) == {"seed"}, "the profile names every parameter"
    found = rehearse(SLUG, PAGE, profile, {"path": str(make(tmp_path)), **SIZES}, seed=3).metrics
    assert found["nodes"] == (40 if profile == "full.yaml" else 30)
    assert found["exact"] and found["greedy"] <= (1 + 1e-12) * found["optimum"] <= found["total_weight"]  # two orders of a sum
    assert len(found["average"]) == len(found["last"]) == len(found["certificate"]) == 3
    assert found["claims"]["average_over_greedy"] == pytest.approx(np.mean(found["average"]) / found["greedy"])
    assert found["curve"]["round"][-1] == 60 and min(found["average"]) > found["optimum"] / np.e


def test_feedback(rehearse: Any) -> None:
    found = rehearse(SLUG, "4-feedback", "4-feedback.full.yaml", {"horizons": [100, 300], "reps": 4, "members": 10, "nodes": 6})
    assert found.metrics
