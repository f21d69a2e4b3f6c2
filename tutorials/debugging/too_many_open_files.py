"""
ParallelEnv or a collector raises "Too many open files"
=======================================================

A few environments work. With many workers, or with several collectors in one process, starting them
raises ``OSError: [Errno 24]``.

:Subsystem: multi-process and weight sync
:Effect: loud
:Cause: Workers need open files, for their pipes and for each tensor in shared memory. Many systems
   allow 1024 open files per process by default.
:Fix: Raise the soft limit before you start the workers:
   ``resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))``, or ``ulimit -n 65536`` in the
   shell.
:Source: :source:`torchrl.envs.ParallelEnv._start_workers`
:Behind it: this page
:Threads: none found
:Also called: Errno 24, EMFILE, ulimit, file descriptors, sharing strategy, file_system,
   received 0 items of ancdata, SemLock, semaphore
"""

# %%
# Break it
# --------
#
# The code lowers the limit, so that a few environments reach it.
#
# .. fold:: Imports, environment, and how workers start

import multiprocessing
import resource
import warnings
from pathlib import Path

import torch
from torchrl.envs import GymEnv, ParallelEnv

# Python 3.12 and later warn of "fork".
warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
WORKERS = 8


def make_env():
    return GymEnv("CartPole-v1")


def start(workers):
    env = ParallelEnv(workers, make_env, mp_start_method="fork")
    try:
        env.reset()
        env.close()
    finally:  # an environment that fails half-way leaves the workers that it has started
        for worker in multiprocessing.active_children():
            worker.kill()
            worker.join()


def open_files():
    return len(list(Path("/dev/fd").iterdir()))


def lower_limit(room):
    """Leave room for so many open files; return the limits that there were before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = open_files() + room
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    return before


# %%

limits = lower_limit(room=30)
broken = {}
try:
    start(WORKERS)
except OSError as error:
    broken["error"] = error.with_traceback(None)  # which keeps the pipes open
    print(f"{type(error).__name__}: {error}")

assert "Too many open files" in str(broken.get("error")), (
    "no longer reproduces: the workers start"
)

# %%
# Check it
# --------
#
# For a ``ParallelEnv``, expect to need a hundred files for the process, and ten for each worker. A
# collector needs more per worker, and so do observations with many entries.


def check(workers):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {"workers": workers, "limit is high enough": soft >= 100 + 10 * workers}


unhealthy = check(WORKERS)
print(unhealthy)
assert not unhealthy["limit is high enough"], "no longer reproduces: the limit is high"

# %%
# Fix it
# ------
#
# You can raise the soft limit up to the hard limit. Only the administrator can raise the hard
# limit.

soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
healthy = check(WORKERS)
print(healthy)
assert healthy["limit is high enough"], (
    "the fix does not work: the hard limit is too low"
)
start(WORKERS)
fixed = {}

# %%
# If the error comes late in a run, something keeps files open: collectors and environments that
# were not shut down, or tensors in shared memory that you keep in a list. With the sharing strategy
# that torch chooses on Linux, each such tensor needs an open file as long as it exists:

before = open_files()
kept = [torch.zeros(3).share_memory_() for _ in range(100)]
assert open_files() - before == 100, "no longer reproduces: no file a tensor"
del kept
resource.setrlimit(resource.RLIMIT_NOFILE, limits)

# %%
# If ``SemLock`` raises ``[Errno 28] No space left on device``, ``/dev/shm`` is full: on Linux,
# semaphores are files there. :claim:`semaphores-are-files-in-shared-memory` A :ref:`memory-mapped
# buffer <symptom-memmap-buffer-fills-memory>` can fill it.
#
# With "spawn" or "forkserver", a warning of ``leaked semaphore objects`` means that the process
# ended without cleaning up, for example because :doc:`memory ran out </reference/triage>`.
# :claim:`leaked-semaphores-after-a-kill`
