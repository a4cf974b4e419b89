"""Cuts, determinants and long runs: optima by brute force, checkpoints to the same bits, and what the parameters refuse."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paperbook.papers.dr_submodular import studies_graphs as study
from paperbook.papers.dr_submodular.config_graphs import GraphsConfig, NonStationaryConfig
from paperbook.papers.dr_submodular.functions import CutExtension, check_nonnegative, sharp_instance, take
from paperbook.papers.dr_submodular.sets import BudgetBox
from paperbook.study.checkpoints import Checkpoints
from paperbook.study.params import ParameterError, configure


def cut_value(W: np.ndarray, chosen: tuple[int, ...]) -> float:
    """Weight between a set and the rest, by two loops."""
    rest = [j for j in range(len(W)) if j not in chosen]
    return float(sum(W[i, j] for i in chosen for j in rest))


def test_optimum_and_greedy_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    W = np.triu(rng.random((8, 8)), 1)
    W += W.T
    values = {s: cut_value(W, s) for r in range(4) for s in itertools.combinations(range(8), r)}
    assert study.optimum(CutExtension(W), 3) == pytest.approx(max(values.values()))
    chosen: tuple[int, ...] = ()
    for _ in range(3):
        chosen = max(((*chosen, i) for i in range(8) if i not in chosen), key=lambda s: cut_value(W, s))
    found, value = study.greedy_cut(W, 3)
    assert tuple(found) == chosen and value == pytest.approx(cut_value(W, chosen))


def test_greedy_stops_where_nothing_gains() -> None:
    W = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert study.greedy_cut(W, 2)[1] == 1.0 and len(study.greedy_cut(W, 2)[0]) == 1
    assert study.optimum(CutExtension(np.ones((60, 60)) - np.eye(60)), 30) is None, "too many sets"


def test_karate_is_54() -> None:
    W = study.weights("karate")
    assert study.optimum(CutExtension(W), 5) == 54 and study.greedy_cut(W, 5)[1] == 54


def test_files_become_weights(tmp_path: Path) -> None:
    edges = tmp_path / "edges.txt"
    edges.write_text("# a comment\n0 1\n1 2\n2 0\n2 3\n", encoding="utf-8")
    triangle_and_tail = [[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 1], [0, 0, 1, 0]]
    np.testing.assert_array_equal(study.weights("edge_list", str(edges)), triangle_and_tail)
    ratings = tmp_path / "ratings.dat"
    ratings.write_text("1::10::3::0\n1::20::4::0\n2::10::4::0\n2::30::5::0\n", encoding="utf-8")
    W = study.weights("movielens", str(ratings))
    # movie 10 has the vector (3, 4), movie 20 (4, 0), movie 30 (0, 5): cosines 3/5 and 4/5 with the first, 0 between them
    np.testing.assert_allclose(W, [[0, 0.6, 0.8], [0.6, 0, 0], [0.8, 0, 0]], atol=1e-12)


@pytest.mark.parametrize("name", study.PEERS)
def test_peers_keep_to_set_and_budget(name: str) -> None:
    f, K = CutExtension(study.weights("florentine")), BudgetBox(15, 3.0)
    best = study.optimum(f, 3)
    assert best is not None
    found = study.peer(name, f, K, 100, 4, 0)
    assert found.last.shape == found.average.shape == (4,) and found.calls == 100
    assert found.last.max() <= best + 1e-9, "a cut's optimum over the polytope is a vertex"
    assert found.last.min() > best / 4
    assert 0 < found.solver <= found.seconds


def test_peers_are_reproducible() -> None:
    f, K = CutExtension(study.weights("davis")), BudgetBox(32, 3.0)
    first, again = (study.peer("wrapped", f, K, 50, 3, 9) for _ in range(2))
    np.testing.assert_array_equal(first.last, again.last)
    with pytest.raises(ValueError, match="name: expected one of"):
        study.peer("adam", f, K, 50, 3, 9)


def test_quadratics_have_bounds_in_order() -> None:
    f, K, low, high = study.quadratics(5, 3, 4, 0.3, 0)
    assert (low <= high + 1e-9).all() and (low > 0).all()
    points = K.project(np.random.default_rng(1).random((300, 1, 5)))
    assert (f.value(points).max(axis=0) <= high + 1e-9).all()
    check_nonnegative(take(f, 0))


def test_kernel_straddles_one() -> None:
    spectrum = np.linalg.eigvalsh(study.digits_kernel(30, 0))
    assert (spectrum < 1).sum() == 15 == (spectrum > 1).sum()
    np.testing.assert_allclose(study.digits_kernel(30, 0, 2.0), 2 * study.digits_kernel(30, 0))


def test_best_minor_by_loops() -> None:
    L = study.digits_kernel(7, 1, 3.0)
    slow = max([0.0, *(math.log(np.linalg.det(L[np.ix_(s, s)])) for r in (1, 2, 3) for s in itertools.combinations(range(7), r))])
    assert study.best_minor(L, 3) == pytest.approx(slow)


def test_shift_makes_the_promise_empty() -> None:
    found = study.determinant(20, 3, 0.8, 60, 2, 0)
    assert found.offset >= found.needed > 0 > found.at_most >= found.promised
    assert found.reached >= found.promised, "the theorem, at the point where ascent ends"
    large = study.determinant(12, 3, 1.5, 60, 2, 0)
    assert large.optimum > large.best + 0.2, "log det is concave along some directions: a point inside beats every set of k"
    raised = study.determinant(12, 3, 1 / np.linalg.eigvalsh(study.digits_kernel(12, 0))[0], 60, 2, 0)
    assert raised.offset == pytest.approx(0, abs=1e-9) and raised.promised > 0


def test_least_minor_is_the_least_vertex() -> None:
    L = study.digits_kernel(9, 2, 0.8)
    values = [np.linalg.slogdet(L[np.ix_(s, s)])[1] for r in range(1, 10) for s in itertools.combinations(range(9), r)]
    assert study.least_minor(L, 0) == pytest.approx(min(0.0, *values))


def test_wrong_pieces_are_wrong_somewhere() -> None:
    x, y = [0, 1, 1], [1, 0, 0]
    # the numbers of T3: lhs -.13195, and right sides -.19294 (uniform z), -.16657 (no factor)
    assert study.violation(study.UniformZ(), sharp_instance(), x, y) == pytest.approx(0.19294 - 0.13195, abs=2e-5)
    assert study.violation(study.NoJacobian(), sharp_instance(), x, y) == pytest.approx(0.16657 - 0.13195, abs=2e-5)
    assert study.violation(study.ExponentialDownClosed(), sharp_instance(), x, y) < 1e-12


# --- many rounds ----------------------------------------------------------------------------------------------------------


class Killed(RuntimeError):
    """Stands for the end of the process between two rounds."""


@pytest.mark.parametrize("options", [
    {}, {"learner": "ader"}, {"learner": "so_ogd"}, {"feedback": "semi-bandit"}, {"feedback": "one value"},
    {"feedback": "bandit"}, {"device": "cpu"}, {"device": "cpu", "learner": "ader", "feedback": "two values"},
])  # fmt: skip
def test_a_killed_run_goes_on_to_the_same_bits(options: dict[str, Any], tmp_path: Path) -> None:
    cfg = GraphsConfig(graph="davis", k=3, rounds=200, reps=3, **options)
    whole = study.graph_study(cfg)

    def kill(done: int, total: int, what: str) -> None:
        if done >= 128:
            raise Killed

    def kept() -> Checkpoints:
        return Checkpoints(tmp_path / "rounds", {"config": "x"}, every_seconds=0)

    with pytest.raises(Killed):
        study.graph_study(cfg, kill, kept())
    assert kept().steps()[-1] >= 120
    resumed = study.graph_study(cfg, None, kept())
    for key in ("average", "last", "certificate"):
        np.testing.assert_array_equal(resumed[key], whole[key])
    assert resumed["curve"] == whole["curve"] and whole["curve"]["round"][-1] == 200


def test_torch_and_numpy_agree_without_chance() -> None:
    """With the identity wrapper nothing is random, so both libraries must give the same numbers."""
    runs = [study.graph_study(GraphsConfig(graph="karate", rounds=60, reps=2, wrapper="identity", device=device))
            for device in ("numpy", "cpu")]  # fmt: skip
    np.testing.assert_allclose(runs[0]["average"], runs[1]["average"], rtol=1e-9)


def test_certificate_bounds_the_optimum() -> None:
    found = study.graph_study(GraphsConfig(rounds=100, reps=20))
    # in expectation; twenty copies with a spread of a few hundredths stand far above 54
    assert found["certificate"].mean() > found["optimum"] == 54 and found["exact"]
    assert (found["average"] > 54 / math.e).all()


def test_graph_study_refuses_a_budget_above_the_nodes() -> None:
    with pytest.raises(ValueError, match="k: expected at most the number of nodes, 32, got 40"):
        study.graph_study(GraphsConfig(graph="davis", k=40))


# --- parameters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "message"), [
    ({"graph": "edge_list"}, "path: graph='edge_list' expects a file, got an empty text"),
    ({"feedback": "bandit", "wrapper": "identity"}, "wrapper: feedback='bandit' expects 'exponential', got 'identity'"),
    ({"rounds": 3}, "rounds"),
    ({"learner": "adam"}, "learner"),
])  # fmt: skip
def test_graphs_config_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        configure(GraphsConfig, changes)


@pytest.mark.parametrize(("changes", "message"), [
    ({"t_grid": [200, 800]}, "t_grid: expected increasing numbers with \\[3200\\] among them"),
    ({"segments": [1, 16, 4]}, "segments: expected increasing numbers"),
    ({"t_grid": [20, 3200], "segments": [1, 4, 16, 64]}, "segments: expected at most t_grid"),
])  # fmt: skip
def test_non_stationary_config_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        configure(NonStationaryConfig, changes)


def test_full_profile_says_what_to_fetch(tmp_path: Path) -> None:
    path = tmp_path / "some folder" / "facebook_combined.txt.gz"
    (asset,) = GraphsConfig(graph="edge_list", path=str(path)).assets()
    assert not asset.here and "https://snap.stanford.edu/data/facebook_combined.txt.gz" in asset.fetch and "'" in asset.fetch
    path.parent.mkdir()
    path.write_bytes(b"")
    assert GraphsConfig(graph="edge_list", path=str(path)).assets()[0].here
    (asset,) = GraphsConfig(graph="movielens", path="runs/data/ratings.dat").assets()
    assert "ml-1m.zip" in asset.fetch and asset.fetch.endswith("> runs/data/ratings.dat")
    assert GraphsConfig().assets() == []


def test_needs_and_work_grow_with_the_graph() -> None:
    small, large = (GraphsConfig(graph="edge_list", path="x", max_nodes=n, device="cuda") for n in (1000, 10_000))
    assert large.needs().gpu_gb > 1.6 > small.needs().gpu_gb > 0  # type: ignore[operator]  # two copies of 0.8 GB
    assert large.work().amount > 50 * small.work().amount
    assert NonStationaryConfig(t_grid=[3200, 12800]).work().amount > NonStationaryConfig().work().amount  # type: ignore[union-attr]
