"""The shape checks of `--shapes` have teeth: a swapped axis in a call is caught before it computes something."""

import numpy as np
import pytest

from paperbook.papers.safe_residual.classifier import log_losses
from paperbook.papers.safe_residual.piecewise import solve_cells

CALLS = {
    "labels of another length": lambda: log_losses(np.zeros((3, 2)), np.zeros(4, dtype=np.int64)),
    "logits transposed": lambda: log_losses(np.zeros((2, 3)), np.zeros(3, dtype=np.int64)),
    "labels that are floats": lambda: log_losses(np.zeros((3, 2)), np.zeros(3)),
    "axes swapped": lambda: solve_cells(np.ones((5, 2, 2)), np.ones((2, 5, 1)), 1e-3),
}


def caught(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__ == "TypeCheckError"
    return False


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_shape_is_caught(name, request):
    if not request.config.getoption("--shapes"):
        pytest.skip("needs pytest --shapes, which `make unit` passes")
    assert caught(CALLS[name])


def test_right_shapes_pass():
    assert log_losses(np.zeros((3, 2)), np.zeros(3, dtype=np.int64)).shape == (3,)
