"""Parameters of the pages on changing worlds and on graphs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from paperbook.papers.dr_submodular.config import Device
from paperbook.study.params import Config
from paperbook.study.requirements import Asset, Needs, Work

_NODES = {"karate": 34, "les_miserables": 77, "davis": 32, "edge_list": 4039, "movielens": 3706}

Positive = Annotated[int, Field(ge=1)]


class NonStationaryConfig(Config):
    """Drifting traps: horizons, numbers of segments, copies; and the polytopes of the price of a projection."""

    model_config = ConfigDict(allow_inf_nan=False)

    dim: int = Field(4, ge=2, le=16, description="dimension d of the drifting traps")
    t_grid: list[Annotated[int, Field(ge=16)]] = Field(
        [200, 800, 3200], min_length=2, description="horizons T, increasing; 3200 must be among them"
    )
    segments: list[Positive] = Field([1, 4, 16], min_length=2, description="numbers S of segments, increasing; 1, 4, 16 first")
    reps: int = Field(8, ge=2, description="independent copies: sequences and queries of their own")
    packing_dims: list[Annotated[int, Field(ge=2, le=1000)]] = Field(
        [5, 10, 20], min_length=1, description="dimensions of the polytopes, increasing"
    )
    packing_rounds: int = Field(50, ge=2, description="rounds on each polytope")
    packing_copies: int = Field(64, ge=2, description="copies that play at once on each polytope")

    @model_validator(mode="after")
    def _fits_together(self) -> NonStationaryConfig:
        for name, needed in (("t_grid", {3200}), ("segments", {1, 4, 16}), ("packing_dims", set())):
            values = getattr(self, name)
            if values != sorted(set(values)) or not needed <= set(values):
                among = f" with {sorted(needed)} among them" if needed else ""
                raise ValueError(f"{name}: expected increasing numbers{among}, got {values}")
        if self.segments[-1] > self.t_grid[0]:
            raise ValueError(f"segments: expected at most t_grid[0] = {self.t_grid[0]} of them, got {self.segments[-1]}")
        return self

    def needs(self) -> Needs:
        """Gains, iterates, paths and rewards of every vertex for the longest horizon, a few copies of each."""
        numbers = self.t_grid[-1] * len(self.segments) * self.reps * self.dim
        packing = self.packing_rounds * self.packing_copies * self.packing_dims[-1]
        return Needs(memory_gb=0.4 + (20 * 8 * numbers + 2 * 8 * packing) / 1e9)

    def work(self) -> Work:
        """Rounds, each with a fixed cost beside that of its copies."""
        return Work("drift", sum(self.t_grid) * (40.0 + len(self.segments) * self.reps))


class GraphsConfig(Config):
    """Which graph, how many rounds and copies, and which pieces of the method; and whether the peers run beside it."""

    model_config = ConfigDict(allow_inf_nan=False)
    memory_parameters: ClassVar[tuple[str, ...]] = ("max_nodes", "reps")

    graph: Literal["karate", "les_miserables", "davis", "edge_list", "movielens"] = Field(
        "karate", description="a graph of networkx, or a file of edges or of ratings"
    )
    path: str = Field("", description="the file (unused for graphs of networkx)")
    max_nodes: int = Field(0, ge=0, description="keep so many nodes of highest degree, or movies with most ratings; 0 = all")
    k: int = Field(5, ge=1, description="budget: sum x <= k")
    rounds: int = Field(400, ge=20, le=10**8, description="rounds T")
    reps: int = Field(10, ge=2, description="independent copies, batched")
    feedback: Literal["gradient", "semi-bandit", "two values", "one value", "bandit"] = Field(
        "gradient", description="what is heard each round"
    )
    learner: Literal["ogd", "ader", "so_ogd"] = Field("ogd", description="online linear learner")
    wrapper: Literal["exponential", "anchored", "identity"] = Field("exponential", description="row of the table of wrappers")
    device: Device = Field("numpy", description="numpy, a torch device (cpu, cuda, cuda:<i>), or auto: CUDA, else numpy")
    peers: bool = Field(True, description="also run peers, determinants, quadratics and what breaks (seconds)")

    @model_validator(mode="after")
    def _fits_together(self) -> GraphsConfig:
        if self.graph in ("edge_list", "movielens") and not self.path:
            raise ValueError(f"path: graph={self.graph!r} expects a file, got an empty text")
        if self.graph not in ("edge_list", "movielens") and self.max_nodes:
            raise ValueError(f"max_nodes: graph={self.graph!r} expects 0, all nodes, got {self.max_nodes}")
        if self.max_nodes == 1:
            raise ValueError("max_nodes: expected 0 (all) or at least 2, between which there can be an edge, got 1")
        most = self.max_nodes or _NODES[self.graph]
        if self.k > most and (self.max_nodes or self.graph not in ("edge_list", "movielens")):  # of files, read first
            raise ValueError(f"k: expected at most the number of nodes, {most}, got {self.k}")
        if self.feedback != "gradient" and self.wrapper != "exponential":
            raise ValueError(f"wrapper: feedback={self.feedback!r} expects 'exponential', got {self.wrapper!r}")
        return self

    def assets(self) -> list[Asset]:
        """The file, with the command that fetches it; none for graphs of networkx."""
        if self.graph not in ("edge_list", "movielens"):
            return []
        path = Path(self.path)
        folder = shlex.quote(str(path.parent))
        if self.graph == "edge_list":
            source = "https://snap.stanford.edu/data/facebook_combined.txt.gz"
            fetch = f"mkdir -p {folder} && curl -fL -o {shlex.quote(self.path)} {source}"
        else:
            source = "https://files.grouplens.org/datasets/movielens/ml-1m.zip"
            fetch = (f"mkdir -p {folder} && curl -fL -o {folder}/ml-1m.zip {source} && "
                     f"unzip -p {folder}/ml-1m.zip ml-1m/ratings.dat > {shlex.quote(self.path)}")  # fmt: skip
        return [Asset(self.path, path.is_file(), fetch)]

    def needs(self) -> Needs:
        """Estimates: the weights are dense float64, d^2 numbers (0.8 GB at d = 10^4), held twice while they are made."""
        matrix = 8 * self._nodes() ** 2 / 1e9
        # points, gains, sums, sorted breakpoints of the projection
        points = 40 * 8 * self.reps * self._nodes() / 1e9
        if self.device in ("numpy", "cpu"):
            return Needs(memory_gb=0.5 + 4 * matrix + points, disk_gb=0.1)
        return Needs(memory_gb=2.5 + 4 * matrix, gpu_gb=0.6 + 2 * matrix + points, disk_gb=0.1 + points)

    def work(self) -> Work:
        """Three products of the weights with all copies' points a round."""
        return Work(f"graph on {self.device}", self.rounds * (2e4 + 3.0 * self.reps * self._nodes() ** 2))

    def _nodes(self) -> int:
        """Nodes; of files, what their publishers say, where no limit is set."""
        whole = _NODES[self.graph]
        if self.graph in ("edge_list", "movielens") and self.max_nodes:
            return min(whole, self.max_nodes) if self.graph == "movielens" else self.max_nodes
        return whole
