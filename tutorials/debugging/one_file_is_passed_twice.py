"""
Starting a worker raises "bad value(s) in fds_to_keep"
======================================================

A process that starts by ``spawn`` raises a ``ValueError`` before it runs. With ``fork``, the same
script works.

:Subsystem: multi-process and weight sync
:Effect: loud
:Cause: What is sent to the process refers to one open file more than once. ``spawn`` hands each
   file on by its number, and refuses a number that it has twice.
:Fix: Pass each connection, and each tensor in shared memory, as one object, or send copies:
   ``tensor.clone()``.
:Decided in: :source:`torchrl.collectors.MultiCollector._run_processes`
:Behind it: :term:`start method`
:Threads: none found
:Also called: fds_to_keep, spawnv_passfds, fork_exec, file descriptor passed twice, shared tensors
   in spawn, views of a shared tensor
"""

# %%
# Break it
# --------
#
# Two objects for one socket. A collector sends its workers what you give it: environment functions,
# their arguments and the policy.

import multiprocessing
import socket
from multiprocessing.reduction import ForkingPickler
from unittest import mock

import torch

one = socket.socket()
same = socket.socket(fileno=one.fileno())

broken = {}
try:
    context = multiprocessing.get_context("spawn")
    context.Process(target=print, args=(one, same)).start()
except ValueError as error:
    broken["error"] = error
    print(f"{type(error).__name__}: {error}")

assert "fds_to_keep" in str(broken.get("error")), (
    "no longer reproduces: the process gets one file twice"
)

# %%
# Check it
# --------
#
# Count the files that a process would get. Try your objects one by one.


def check(*given):
    files = []
    with mock.patch("multiprocessing.reduction.DupFd", lambda file: files.append(file)):
        ForkingPickler.dumps(given)
    return {"files": len(files), "different": len(set(files))}


unhealthy = check(one, same)
print(unhealthy)
assert unhealthy == {"files": 2, "different": 1}, (
    "no longer reproduces: the process gets one file twice"
)

# %%
# Fix it
# ------
#
# One object may be in several places: it is sent once.

healthy = check(one, [one])
print(healthy)
assert healthy["files"] == healthy["different"] == 1, "the fix does not work"
same.detach()
fixed = {}

# %%
# Views of one tensor in shared memory are no cause with this torch, which sends their memory once:

shared = torch.zeros(10).share_memory_()
views = check(shared[:5], shared[5:])
print(views)
assert views == {"files": 1, "different": 1}, "views of one tensor are sent twice"
one.close()
