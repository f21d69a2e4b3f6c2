"""One module for each subsystem of the debugging map; a check has the name of its page.

The order of the imports is that of the checks in a report.
"""

from torchrl_doctor.checks import (  # noqa: I001
    collectors,
    exploration,
    devices,
    workers,
    trajectories,
    replay_buffers,
    memory,
    recurrent,
    values,
    estimates,
    language,
    environments,
    evaluation,
    numbers,
    networks,
    settings,
    training,
    dynamics,
)

__all__ = [
    "collectors",
    "devices",
    "dynamics",
    "environments",
    "estimates",
    "evaluation",
    "exploration",
    "language",
    "memory",
    "networks",
    "numbers",
    "recurrent",
    "replay_buffers",
    "settings",
    "training",
    "trajectories",
    "values",
    "workers",
]
