"""Other tests go on with torch's own generator after a run of a recipe has seeded it."""

import pytest
import torch
import torchrl  # noqa: F401  # before a suite silences its warnings


@pytest.fixture(autouse=True)
def generators():
    with torch.random.fork_rng():
        yield
