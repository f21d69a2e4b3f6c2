"""
The script is done, and the process never ends
==============================================

A script with a ``ParallelEnv`` or multi-process collector ran its last line or printed a traceback,
but the prompt does not come back. A cluster job runs until its time limit.

:Subsystem: multi-process and weight sync
:Effect: silent
:Cause: The workers of a multi-process collector or a ``ParallelEnv`` still wait for a command, and
   Python waits for its workers before it ends.
:Fix: Call ``collector.shutdown()`` and ``env.close()`` in a ``finally`` block, so that an exception
   does not skip them.
:Source: :source:`torchrl.collectors.MultiCollector._run_processes`,
   :source:`torchrl.envs.ParallelEnv._start_workers`
:Behind it: this page
:Threads: :thread:`209`
:Also called: program does not exit, process hangs at the end, script hangs after training, hangs on
   exit, terminal does not return, job does not finish, orphaned workers, forgot shutdown, forgot
   close
"""

# %%
# Break it
# --------
#
# The loop collects all frames and ends, but the worker keeps running.
#
# .. fold:: Imports

import multiprocessing
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymEnv

# "fork" is quick, and "spawn" leaves workers in the same way. Python 3.12 and later warn of "fork".
warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
multiprocessing.set_start_method("fork", force=True)

# %%


def make_env():
    return GymEnv("CartPole-v1")


def make_collector():
    return MultiSyncCollector([make_env], frames_per_batch=20, total_frames=40)


collector = make_collector()
batches = list(collector)

broken = {"collector": collector}

# %%
# Check it
# --------
#
# Count the workers still alive at the end of your script.


def check(collector):
    alive = sum(worker.is_alive() for worker in collector.procs)
    return {"workers": len(collector.procs), "alive": alive}


unhealthy = check(broken["collector"])
print(unhealthy)
assert unhealthy["alive"] == 1, "no longer reproduces: the worker ends with the loop"
assert not collector.procs[0].daemon, "no longer reproduces: Python does not wait"

# %%
# ``faulthandler`` shows what a script waits for. This script has a ``ParallelEnv`` and a
# ``prefetch`` buffer, and raises an error:
#
# .. fold:: The script, and where it waits

SCRIPT = """
import faulthandler
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, ParallelEnv

def make_env():
    return GymEnv("CartPole-v1")

def train(env):
    buffer.extend(env.rollout(3).reshape(-1))
    buffer.sample()
    faulthandler.dump_traceback_later({seconds}, exit=True)
    raise RuntimeError("a bug in the loop")

if __name__ == "__main__":
    env = ParallelEnv(1, make_env, mp_start_method="fork")
    storage = LazyTensorStorage(10)
    buffer = TensorDictReplayBuffer(storage=storage, prefetch=2, batch_size=2)
    {call}
"""


def where_it_waits(call, seconds):
    """The functions in which the script is when the time is over, the innermost first."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT.format(call=call, seconds=seconds))
        command = [sys.executable, "train.py"]
        printed = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert "RuntimeError: a bug in the loop" in printed.stderr
    _, _, stack = printed.stderr.partition("(most recent call first):\n")
    functions = [
        f"{function} in {file}"
        for file, function in re.findall(r'(\w+\.py)", line \d+ in (\w+)', stack)
    ]
    return functions[: functions.index("_exit_function in util.py") + 1 if stack else 0]


# %%

functions = where_it_waits("train(env)", seconds=6)
print("\n".join(functions))
assert functions[-1] == "_exit_function in util.py", "no longer reproduces: it ends"
assert "join in process.py" in functions, "no longer reproduces: it joins no worker"

# %%
# The script waits in the exit function of ``multiprocessing``, which joins each worker that is not
# a daemon. A worker also ends when its collector is deleted:

collector = make_collector()
worker = collector.procs[0]
del collector
assert not worker.is_alive(), "no longer reproduces: the worker outlives its collector"

# %%
# But Python deletes global variables only after it has joined the workers. It deletes variables of
# a function when the function returns.
#
# Fix it
# ------

collector = make_collector()
try:
    batches = list(collector)
finally:
    collector.shutdown()

fixed = {"collector": collector}
healthy = check(fixed["collector"])
print(healthy)
assert healthy["alive"] == 0, "the fix does not work: a worker is alive"

# %%
# With ``env.close()`` in a ``finally`` block, the script with a ``ParallelEnv`` ends too. Threads
# of ``prefetch`` end by themselves, when they have drawn their batch.

functions = where_it_waits("try: train(env)\n    finally: env.close()", seconds=60)
assert functions == [], "the fix does not work: the script waits"

# %%
# If your script still hangs, look at ``multiprocessing.active_children()`` and
# ``threading.enumerate()``: Python waits for each process and thread with ``daemon=False``.
#
# .. fold:: What ends the worker of the first collector, so that this page ends

for worker in broken["collector"].procs:
    worker.kill()
    worker.join()
