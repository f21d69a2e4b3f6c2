"""
Starting a worker raises "bad value(s) in fds_to_keep"
======================================================

With the start method ``spawn``, starting a process raises a ``ValueError``. With ``fork``, the same
script works.

:Subsystem: multi-process and weight sync
:Effect: loud
:Cause: The objects that you send to the process refer to the same open file more than once.
   ``spawn`` passes files by their numbers, and refuses to pass a number twice.
:Fix: Pass each connection and each tensor in shared memory as a single object, or send copies
   (``tensor.clone()``).
:Source: :source:`torchrl.collectors.MultiCollector._run_processes`
:Behind it: :term:`start method`
:Threads: none found
:Also called: fds_to_keep, spawnv_passfds, fork_exec, file descriptor passed twice, shared tensors
   in spawn, views of a shared tensor
"""

# %%
# Break it
# --------
#
# Two objects refer to one socket. With a collector, look for such pairs in what it sends to its
# workers: ``create_env_kwargs``, the policy and the replay buffer.

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
# The same object may be in several places, because it is sent only once.

healthy = check(one, [one])
print(healthy)
assert healthy["files"] == healthy["different"] == 1, "the fix does not work"
same.detach()
fixed = {}

# %%
# With this version of torch, views of one tensor in shared memory do not cause the error. Their
# memory is sent once:

shared = torch.zeros(10).share_memory_()
views = check(shared[:5], shared[5:])
print(views)
assert views == {"files": 1, "different": 1}, "views of one tensor are sent twice"
one.close()
