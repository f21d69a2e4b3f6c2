"""A run of a recipe seeds Python, NumPy and torch; other tests go on with their own generators."""

import pytest
import torch


@pytest.fixture(autouse=True)
def generators():
    with torch.random.fork_rng():
        yield
