"""Graphs and ratings: four small networks that come with networkx, and readers of two kinds of file for the full scale.

Card
    source: W. Zachary, J. Anthropological Research 33 (1977), the karate club; D. Knuth, The Stanford GraphBase (1993), scenes of
        Les Misérables; A. Davis, B. Gardner, M. Gardner, Deep South (1941), women at social events; J. Padgett, marriages of
        Florentine families, in R. Breiger, P. Pattison, Social Networks 8 (1986). All as packed in networkx (extra `chapters`),
        read without a connection. Full scale, downloaded by the reader: SNAP, ego-Facebook (J. McAuley, J. Leskovec, 2012) and
        wiki-Vote (J. Leskovec, D. Huttenlocher, J. Kleinberg, 2010); GroupLens, MovieLens 1M (M. Harper, J. Konstan, 2015).
    licence: networkx is BSD-3; the four networks are facts published in the literature. SNAP names no licence and asks for
        citation. MovieLens is for research, not for sale, and must not be passed on: nothing of it lies in this repository.
    nodes, edges: karate 34, 78; les_miserables 77, 254 (weight: scenes shared); davis 32, 89 (18 women, 14 events, bipartite);
        florentine 15, 20. By their pages, ego-Facebook 4,039, 88,234; wiki-Vote 7,115, 103,689 directed; MovieLens 1M has
        1,000,209 ratings of 3,706 films by 6,040 people.
    known to be wrong: Zachary's printed matrix disagrees with itself on one tie (23 and 34); it counts as one here. The Pucci, a
        sixteenth Florentine family, married none of the others and is left out. Both sides of `davis` are nodes alike.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from paperbook.study import arguments as check

GRAPHS = {
    "karate": ("karate_club_graph", None),
    "les_miserables": ("les_miserables_graph", "weight"),
    "davis": ("davis_southern_women_graph", None),
    "florentine": ("florentine_families_graph", None),
}  # name: networkx function, edge attribute with the weight (None: every edge weighs 1)

EDGES_FROM = "curl -fLO https://snap.stanford.edu/data/facebook_combined.txt.gz (or .../wiki-Vote.txt.gz)"
RATINGS_FROM = "curl -fLO https://files.grouplens.org/datasets/movielens/ml-1m.zip && unzip ml-1m.zip ml-1m/ratings.dat"


def load_graph(name: str) -> NDArray[np.float64]:
    """Adjacency ``(d, d)`` of a small network: symmetric, zero diagonal, nodes in sorted order of their names.

    Args:
        name: ``karate`` (d = 34), ``davis`` (32), ``florentine`` (15), entries 0 and 1, or ``les_miserables`` (77, weighted).

    Raises:
        ValueError: another name.
        ModuleNotFoundError: networkx is missing; names the extra to install.
   
    """
    maker, weight = GRAPHS[check.choice("name", name, tuple(GRAPHS))]
    try:
        import networkx
    except ModuleNotFoundError:
        message = "graphs: the package networkx is missing; pip install -c constraints.txt -e '.[chapters]'"
        raise ModuleNotFoundError(message) from None
    graph = getattr(networkx, maker)()
    # weight=None on purpose for the karate club: networkx carries counts of meetings, the customary graph is 0/1
    return networkx.to_numpy_array(graph, nodelist=sorted(graph), weight=weight, dtype=np.float64)


def read_edge_list(path: str | Path, max_nodes: int = 0) -> sparse.csr_array:
    """Adjacency ``(d, d)`` of an edge list in SNAP's format: two integers a line, comments behind ``#``, plain or gzipped.

    Directions and repeats are dropped, loops too, and with them nodes that have no other neighbour; entries are 0 and 1. Nodes
    come in increasing id. Download, 0.2 and 0.3 MB:

    ::

        curl -fLO https://snap.stanford.edu/data/facebook_combined.txt.gz
        curl -fLO https://snap.stanford.edu/data/wiki-Vote.txt.gz

    Args:
        path: the file.
        max_nodes: keep only so many nodes, those of highest degree in the whole graph (ties: lower id first); 0 keeps all.

    Raises:
        FileNotFoundError: no such file, with the command that downloads one.
        ValueError: a line that is not two non-negative integers (with its number), no edge, or a broken gzip file.
   
    """
    keep = check.integer("max_nodes", max_nodes, 0)
    pairs = []
    for number, line in _lines(path, EDGES_FROM):
        text = line.split("#")[0].split()
        if not text:
            continue
        if len(text) != 2 or not all(_whole(part) for part in text):
            raise ValueError(f"path: {path}, line {number}: expected two non-negative integers, got {line[:80]!r}")
        if text[0] != text[1]:
            pairs.append((int(text[0]), int(text[1])))
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    ends = ends[ends[:, 0] != ends[:, 1]]  # 07 and 7 are one node as well
    if len(ends) == 0:
        raise ValueError(f"path: expected a file with at least one edge between two nodes, {path} has none")
    ids, places = np.unique(ends, return_inverse=True)
    i, j = places.reshape(-1, 2).T
    graph = sparse.csr_array((np.ones(2 * len(i)), (np.append(i, j), np.append(j, i))), shape=(len(ids), len(ids)))
    graph.sum_duplicates()
    graph.data[:] = 1.0
    if 0 < keep < len(ids):
        top = np.sort(np.argsort(-graph.sum(axis=1), kind="stable")[:keep])
        graph = graph[top][:, top]
    return graph


def read_movielens(path: str | Path, max_movies: int = 0) -> sparse.csr_array:
    """Ratings ``(users, movies)`` from MovieLens' ``ratings.dat``, lines of ``user::movie::rating::time``, plain or gzipped.

    Users come in increasing id; movies with the most ratings come first (ties: lower id first). What is not rated is 0; ratings
    are above 0 and at most 5. Users who rated none of the movies that are kept keep their empty rows. Download, 6 MB:

    ::

        curl -fLO https://files.grouplens.org/datasets/movielens/ml-1m.zip && unzip ml-1m.zip ml-1m/ratings.dat

    Args:
        path: the file.
        max_movies: keep only so many movies, those rated most; 0 keeps all.

    Raises:
        FileNotFoundError: no such file, with the command that downloads it.
        ValueError: a malformed line or a second rating by the same user (with its number), no rating, or a broken gzip file.
   
    """
    keep = check.integer("max_movies", max_movies, 0)
    users, movies, ratings, seen = [], [], [], set()
    for number, line in _lines(path, RATINGS_FROM):
        text = line.strip().split("::")
        if text == [""]:
            continue
        value = _rating(text[2]) if len(text) == 4 and _whole(text[0]) and _whole(text[1]) else None
        if value is None:
            raise ValueError(f"path: {path}, line {number}: expected user::movie::rating::time, got {line[:80]!r}")
        pair = int(text[0]), int(text[1])
        if pair in seen:
            raise ValueError(f"path: {path}, line {number}: expected one rating a user and movie, got a second of {pair}")
        seen.add(pair)
        users.append(pair[0])
        movies.append(pair[1])
        ratings.append(value)
    if not ratings:
        raise ValueError(f"path: expected a file with at least one rating, {path} has none")
    rows, columns = np.unique(users, return_inverse=True)[1], np.unique(movies, return_inverse=True)[1]
    table = sparse.csr_array((np.array(ratings), (rows, columns)), shape=(rows.max() + 1, columns.max() + 1))
    most = np.argsort(-np.bincount(columns), kind="stable")
    return table[:, most[:keep] if keep else most]


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19  # fits 64 bits


def _rating(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value <= 5 else None


def _lines(path: str | Path, command: str) -> Iterator[tuple[int, str]]:
    """Lines of a text file with their numbers from 1; gzip is told by its first bytes: browsers unpack and keep the name."""
    if not isinstance(path, str | Path):
        raise TypeError(f"path: expected a str or a Path, got {type(path).__name__} {path!r}")
    if not Path(path).is_file():
        raise FileNotFoundError(f"path: no file {path}; download one with `{command}`")
    with Path(path).open("rb") as start:
        zipped = start.read(2) == b"\x1f\x8b"
    opener: Any = gzip.open if zipped else open
    try:
        with opener(path, "rt", encoding="utf-8", errors="replace") as stream:
            for number, line in enumerate(stream, 1):
                yield number, line.rstrip("\n")
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        raise ValueError(f"path: {path} is a broken gzip file ({problem}); download it again with `{command}`") from None
