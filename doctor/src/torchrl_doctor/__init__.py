"""Which known symptoms does a TorchRL pipeline show? Needs torchrl alone.

On the command line, ``make`` returns a dictionary with any of the arguments of `diagnose`::

    torchrl-doctor pipeline.py:make
    torchrl-doctor pipeline.py:make --json
    torchrl-doctor env

In a session::

    from torchrl_doctor import diagnose

    print(diagnose(collector=collector, replay_buffer=replay_buffer, loss_module=loss_module))

The doctor looks at copies: it steps no environment of yours, writes to no buffer and takes no
training step. Each check has the name of a page of the manual, which shows the symptom, its cause
and its cure.
"""

import importlib

from torchrl_doctor.about import SITE, __version__
from torchrl_doctor.machine import environment

# What needs torch is imported when it is asked for, and `environment` works without.
HOMES = {
    "diagnosis": ["diagnose"],
    "examination": ["ARGUMENTS"],
    "looks": ["Look", "look"],
    "own_plan": ["plan"],
    "report": ["Finding", "Report"],
    "rows": ["Row"],
    "schema": ["SCHEMA"],
    "verdicts": [
        "APPLIES",
        "CHECKS",
        "CLEAR",
        "FAILED",
        "STATES",
        "UNDECIDED",
        "applies",
        "check",
        "clear",
        "undecided",
    ],
    "watching": ["watch"],
}

__all__ = ["SITE", "__version__", "environment"]
__all__ += sorted(name for names in HOMES.values() for name in names)


def __getattr__(name):
    for module, names in HOMES.items():
        if name in names:
            importlib.import_module(f"{__name__}.checks")  # registers them
            globals()[name] = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted({*globals(), *__all__})
