"""Random streams are repeatable, independent by name, and do not depend on the process."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from paperbook.study.seeds import paired_seeds, rng, seed_everything, torch_generator


def test_same_stream_same_numbers():
    assert (rng(3, "noise").normal(size=4) == rng(3, "noise").normal(size=4)).all()


def test_other_names_seeds_and_orders_are_other_streams():
    draws = [rng(3, "noise"), rng(3, "split"), rng(4, "noise"), rng(3, "noise", 1), rng(3, 1, "noise"), rng(3)]
    values = [g.normal() for g in draws]
    assert len(set(values)) == len(values)


def test_streams_are_uncorrelated():
    a, b = rng(0, "a").normal(size=20_000), rng(0, "b").normal(size=20_000)
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(20_000)  # four standard errors under independence


def test_another_process_draws_the_same():
    code = "from paperbook.study.seeds import rng; print(rng(3, 'noise').integers(10**9))"
    there = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert there == rng(3, "noise").integers(10**9)


def test_torch_streams():
    a, b, c = (torch.randn(3, generator=torch_generator(*key)) for key in ((1, "x"), (1, "x"), (1, "y")))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_global_generators_are_fixed_too():
    draws = []
    for _ in range(2):
        seed_everything(5)
        draws.append((np.random.rand(), torch.rand(1).item()))  # noqa: NPY002
    assert draws[0] == draws[1]


def test_paired_seeds_extend():
    assert paired_seeds(7, 3) == [7, 8, 9] and paired_seeds(7, 5)[:3] == paired_seeds(7, 3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rng(-1), ValueError, "seed: .*got -1"),
        (lambda: rng(1.5), TypeError, "seed: .*float"),
        (lambda: rng(True), TypeError, "seed: .*bool"),
        (lambda: paired_seeds(1, 0), ValueError, "n: .*got 0"),
        (lambda: seed_everything("1"), TypeError, "seed: .*str"),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
