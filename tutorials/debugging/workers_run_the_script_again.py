"""
Workers raise "bootstrapping phase", or fail to initialize
==========================================================

The script works with a ``Collector`` and one environment. With a multi-process collector or a
``ParallelEnv``, it raises an error before the first batch, and what it has printed by then appears
once more for each worker.

:Subsystem: multi-process and weight sync
:Effect: loud
:Cause: By default, TorchRL starts its workers with ``spawn``, so each worker imports your script.
   Without a guard, this import starts workers again.
:Fix: Put everything that the script does into a function, and call it below ``if __name__ ==
   "__main__":``.
:Source: :source:`torchrl._utils._get_default_mp_start_method`
:Behind it: :term:`start method`
:Threads: :thread:`2123`, :thread:`1805`, :thread:`1825`
:Also called: missing __main__ guard, freeze_support, EOFError in ParallelEnv, closed the connection
   before sending status, infinite processes, script runs twice, spawn
"""

# %%
# Break it
# --------
#
# This script has everything at top level.
#
# .. fold:: Imports, and how a script runs and its workers' errors are kept

import contextlib
import io
import linecache
import multiprocessing
import os
import re
import runpy
import tempfile
from pathlib import Path

import torchrl.collectors  # noqa: F401

multiprocessing.set_start_method("spawn", force=True)  # what TorchRL chooses


def run(script):
    """Run a script as if it were started with python: what it prints, and its workers' errors."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile("w+") as errors,
    ):
        file = Path(folder, "train.py")
        file.write_text(script)
        linecache.getlines(str(file))  # for the traceback, which outlives the file
        stderr, printed = os.dup(2), io.StringIO()
        os.dup2(errors.fileno(), 2)  # workers write there
        try:
            with contextlib.redirect_stdout(printed):
                runpy.run_path(str(file), run_name="__main__")
        except (RuntimeError, EOFError) as error:
            broken["error"] = error
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        errors.seek(0)
        return printed.getvalue().strip(), errors.read()


# %%

SCRIPT = """
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymEnv

def make_env():
    return GymEnv("CartPole-v1")

collector = MultiSyncCollector([make_env], frames_per_batch=20, total_frames=20)
print("batches:", len(list(collector)))
collector.shutdown()
"""

broken = {}
_, told = run(SCRIPT)
error = broken["error"]
print(f"{type(error).__name__}: {error}")
assert "closed the connection" in str(error), (
    "no longer reproduces: the script needs no guard"
)

# %%
# Before that, the worker printed the reason:

message = re.search(r"^RuntimeError: .*?(?=^\S|\Z)", told, re.MULTILINE | re.DOTALL)[0]
print(" ".join(message.split()))
assert "bootstrapping phase" in message, (
    "no longer reproduces: the worker fails otherwise"
)

# %%
# A worker of a ``ParallelEnv`` prints the same, but your script raises ``EOFError``.
#
# Check it
# --------


def check(script):
    guarded = '__name__ == "__main__"' in script
    return {"start method": multiprocessing.get_start_method(), "guard": guarded}


unhealthy = check(SCRIPT)
print(unhealthy)
assert not unhealthy["guard"], "no longer reproduces: the script has a guard"

# %%
# Fix it
# ------
#
# Imports and definitions can stay at the top level.

SCRIPT = """
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymEnv

def make_env():
    return GymEnv("CartPole-v1")

def main():
    collector = MultiSyncCollector([make_env], frames_per_batch=20, total_frames=20)
    try:
        print("batches:", len(list(collector)))
    finally:
        collector.shutdown()

if __name__ == "__main__":
    main()
"""

printed, _ = run(SCRIPT)
print(printed)
assert printed == "batches: 1", "the fix does not work"
assert broken["error"] is error, "the fix does not work: it raises as well"
fixed = {}

# %%

healthy = check(SCRIPT)
print(healthy)
assert healthy["guard"], "the fix does not work: the script has no guard"

# %%
# If your script has the guard and a worker still closes the connection, read what the worker
# printed above the error of the script. The worker may be unable to make the environment.
