"""Graphs and ratings: the card's numbers, and the readers on small files written here, right and wrong."""

import gzip
import itertools
import sys

import numpy as np
import pytest

from paperbook.data.graphs import GRAPHS, load_graph, read_edge_list, read_movielens

SNAP = """# Directed graph: wiki-Vote.txt
# FromNodeId\tToNodeId
30\t1412
30 3352

1412\t30
7 7
3352\t5   # a remark
5 30
5 30
"""
RATINGS = "2::1193::5::978300760\n2::661::3::978302109\n9::1193::4::978301968\n1::20::1.5::978300275\n\n9::20::2::97\n9::5::1::9"


@pytest.mark.parametrize(("name", "nodes", "edges"), [
    ("karate", 34, 78), ("les_miserables", 77, 254), ("davis", 32, 89), ("florentine", 15, 20),
])  # fmt: skip
def test_the_numbers_of_the_card(name, nodes, edges):
    A = load_graph(name)
    assert A.shape == (nodes, nodes) and A.dtype == np.float64
    assert (A == A.T).all() and not np.diag(A).any() and (A >= 0).all()
    assert np.count_nonzero(np.triu(A)) == edges
    assert (A.max() > 1) is np.bool_(name == "les_miserables")
    assert (A.sum(axis=0) > 0).all()


def test_what_is_known_of_the_four_graphs():
    karate = load_graph("karate")
    assert karate.sum(axis=0)[[0, 33]].tolist() == [16, 17]  # the instructor and the administrator
    assert karate[22, 33] == 1  # the tie on which Zachary's matrix disagrees with itself
    davis = load_graph("davis")
    assert set(np.round(np.linalg.eigvalsh(davis), 9)) == set(np.round(-np.linalg.eigvalsh(davis), 9))  # bipartite
    assert load_graph("florentine").sum(axis=0).max() == 6  # the Medici
    assert load_graph("les_miserables").max() == 31  # Valjean and Cosette, Knuth's heaviest edge


def test_the_best_cut_of_five_karate_players_by_enumeration():
    A = load_graph("karate")
    sets = np.array(list(itertools.combinations(range(34), 5)))
    inside = sum(A[sets[:, i], sets[:, j]] for i, j in itertools.combinations(range(5), 2))
    cuts = A.sum(axis=0)[sets].sum(axis=1) - 2 * inside
    assert len(sets) == 278_256 and cuts.max() == 54
    x = np.zeros(34)
    x[sets[np.argmax(cuts)]] = 1
    assert x @ A @ (1 - x) == 54  # the same as edges from the set to the rest


def test_another_name_is_refused():
    with pytest.raises(ValueError, match="name: expected one of 'karate', .*, got 'karat'"):
        load_graph("karat")
    assert set(GRAPHS) == {"karate", "les_miserables", "davis", "florentine"}


def test_without_networkx_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[chapters\]"):
        load_graph("karate")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_an_edge_list_plain_or_packed_whatever_its_name(tmp_path, packed, suffix):
    path = tmp_path / f"graph{suffix}"
    path.write_bytes(gzip.compress(SNAP.encode()) if packed else SNAP.encode())
    graph = read_edge_list(path)
    # nodes 5, 30, 1412, 3352; node 7 has only a loop
    expected = [[0, 1, 0, 1], [1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 0, 0]]
    np.testing.assert_array_equal(graph.toarray(), expected)
    assert graph.format == "csr" and graph.nnz == 8
    # degrees 2, 3, 1, 2
    np.testing.assert_array_equal(read_edge_list(str(path), 3).toarray(), [[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    np.testing.assert_array_equal(read_edge_list(path, 2).toarray(), [[0, 1], [1, 0]])  # of 5 and 3352 the lower id
    np.testing.assert_array_equal(read_edge_list(path, 99).toarray(), expected)


def test_a_graph_survives_being_written_and_read(tmp_path):
    A = load_graph("les_miserables") > 0
    rng = np.random.default_rng(0)
    edges = rng.permutation(np.argwhere(np.triu(A)))
    edges = np.where(rng.random((len(edges), 1)) < 0.5, edges, edges[:, ::-1])
    path = tmp_path / "edges.txt"
    path.write_text("\n".join(f"{3 * i + 8} {3 * j + 8}" for i, j in edges))
    np.testing.assert_array_equal(read_edge_list(path).toarray(), A)
    top = sorted(sorted(range(77), key=lambda i: (-A[i].sum(), i))[:20])
    np.testing.assert_array_equal(read_edge_list(path, 20).toarray(), A[np.ix_(top, top)])


def test_ratings_by_hand(tmp_path):
    path = tmp_path / "ratings.dat"
    path.write_text(RATINGS)
    # users 1, 2, 9; movies 20 and 1193 have two ratings each, 5 and 661 one
    expected = [[1.5, 0, 0, 0], [0, 5, 0, 3], [2, 4, 1, 0]]
    table = read_movielens(path)
    np.testing.assert_array_equal(table.toarray(), expected)
    assert table.format == "csr" and table.nnz == 6
    np.testing.assert_array_equal(read_movielens(path, 1).toarray(), [[1.5], [0], [2]])
    packed = tmp_path / "ratings.dat.gz"
    packed.write_bytes(gzip.compress(RATINGS.encode()))
    np.testing.assert_array_equal(read_movielens(packed, 9).toarray(), expected)


@pytest.mark.parametrize(("reader", "command"), [
    (read_edge_list, r"https://snap\.stanford\.edu/data/facebook_combined\.txt\.gz"),
    (read_movielens, r"https://files\.grouplens\.org/datasets/movielens/ml-1m\.zip"),
])  # fmt: skip
def test_a_missing_file_names_its_download(tmp_path, reader, command):
    with pytest.raises(FileNotFoundError, match=f"path: no file .*none.txt; download one with .*{command}"):
        reader(tmp_path / "none.txt")
    with pytest.raises(FileNotFoundError, match="path: no file"):
        reader(tmp_path)  # a folder
    with pytest.raises(TypeError, match="path: expected a str or a Path, got int 3"):
        reader(3)
    assert command.replace("\\", "") in reader.__doc__


@pytest.mark.parametrize("line", ["1", "1 2 3", "1 b", "-1 2", "1.5 2", "<html>", "1 ²", "1 99999999999999999999"])
def test_a_malformed_edge_is_named_by_its_line(tmp_path, line):
    path = tmp_path / "graph.txt"
    path.write_text(f"# one\n1 2\n{line}\n3 4\n", encoding="utf-8")
    with pytest.raises(ValueError, match=f"path: .*graph.txt, line 3: expected two non-negative integers, got '{line}'"):
        read_edge_list(path)


@pytest.mark.parametrize("line", ["1::2::3", "1,2,3,4", "a::2::3::4", "1::2::x::4", "1::2::0::4", "1::2::6::4", "1::2::nan::4"])
def test_a_malformed_rating_is_named_by_its_line(tmp_path, line):
    path = tmp_path / "ratings.dat"
    path.write_text(f"1::1::5::1\n{line}\n")
    with pytest.raises(ValueError, match=f"line 2: expected user::movie::rating::time, got '{line}'"):
        read_movielens(path)


def test_a_second_rating_is_refused(tmp_path):
    path = tmp_path / "ratings.dat"
    path.write_text("1::7::5::1\n2::7::5::1\n1::7::4::1\n")
    with pytest.raises(ValueError, match=r"line 3: expected one rating a user and movie, got a second of \(1, 7\)"):
        read_movielens(path)


@pytest.mark.parametrize("text", ["", "# only a remark\n", "4 4\n", "4 04\n"])
def test_a_file_without_edges_is_refused(tmp_path, text):
    path = tmp_path / "graph.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match="path: expected a file with at least one edge between two nodes"):
        read_edge_list(path)


def test_a_file_without_ratings_is_refused(tmp_path):
    path = tmp_path / "ratings.dat"
    path.write_text("\n")
    with pytest.raises(ValueError, match="path: expected a file with at least one rating"):
        read_movielens(path)


def test_a_download_that_broke_off_is_refused(tmp_path):
    path = tmp_path / "graph.txt.gz"
    whole = gzip.compress("".join(f"{i} {i * i + 1}\n" for i in range(999)).encode())
    for broken in (whole[:-9], whole[:40] + bytes(40) + whole[80:]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match="is a broken gzip file|line [0-9]+: expected two"):
            read_edge_list(path)


@pytest.mark.parametrize(("reader", "name"), [(read_edge_list, "max_nodes"), (read_movielens, "max_movies")])
def test_bad_limits_are_refused_before_the_file_is_opened(reader, name):
    with pytest.raises(ValueError, match=f"{name}: expected an integer in"):
        reader("nowhere", -1)
    with pytest.raises(TypeError, match=f"{name}: expected an integer, got float"):
        reader("nowhere", 2.0)
