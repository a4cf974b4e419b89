"""A small repository for every test."""

from pathlib import Path

import pytest
from faults.toy import Toy, make


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return make(tmp_path)
