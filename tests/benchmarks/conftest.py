"""torchrl reads RL_WARNINGS when it is imported: here, before a suite silences it."""

import torchrl  # noqa: F401
