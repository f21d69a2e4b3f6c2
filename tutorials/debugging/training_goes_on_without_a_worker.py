"""
Training goes on, and a worker is dead
======================================

Workers write into a replay buffer in the background. The buffer grows more slowly than before, or
the loop waits for frames and never goes on. Nothing raises.

:Subsystem: multi-process and weight sync
:Effect: silent
:Cause: After ``start()``, the main process gets no news of its workers. If one raises, its error is
   on the terminal; if the system kills it, for lack of memory for instance, there is none.
:Fix: Look at ``collector.procs`` whenever you wait for frames, and raise if one is not alive.
:Decided in: :source:`torchrl.collectors.MultiCollector.start`
:Behind it: :doc:`/how-to/collect_in_background`
:Threads: none found
:Also called: worker died silently, worker was killed by the OOM killer, dead worker, exit code -9,
   collector waits for ever, buffer stops growing, write_count does not change, training stalls
"""

# %%
# Break it
# --------
#
# Two workers. One of them is killed within its second batch.
#
# .. fold:: Imports, an environment that is killed, and how workers start

import multiprocessing
import os
import signal
import time
import warnings

import gymnasium
import torchrl
from torchrl.collectors import MultiAsyncCollector
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, GymWrapper

torchrl.logger.setLevel("ERROR")
warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
multiprocessing.set_start_method("fork", force=True)


class Killed(gymnasium.Wrapper):
    n_steps = 0

    def step(self, action):
        self.n_steps += 1
        if self.n_steps == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def make_env():
    return GymEnv("CartPole-v1")


def make_killed_env():
    return GymWrapper(Killed(gymnasium.make("CartPole-v1")))


def train(env_makers, wait):
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(100_000), batch_size=32)
    sizes = {"frames_per_batch": 20, "total_frames": -1}
    collector = MultiAsyncCollector(env_makers, replay_buffer=buffer, **sizes)
    collector.start()
    try:
        for n_updates in range(50):
            wait(collector, buffer, 200 + 20 * n_updates)
            buffer.sample()  # and an update
    finally:
        collector.shutdown()
    return {"collector": collector}


# %%


def wait(collector, buffer, n_frames):
    while buffer.write_count < n_frames:
        time.sleep(0.001)


broken = train([make_env, make_killed_env], wait)
print("all updates are done")

# %%
# Check it
# --------
#
# An exit code is ``None`` while a worker runs. A negative one is the signal that ended it: ``-9``
# comes from the system, ``-15`` from ``shutdown()``.


def check(collector):
    return {"exit codes": [worker.exitcode for worker in collector.procs]}


unhealthy = check(**broken)
print(unhealthy)
assert unhealthy["exit codes"][1] == -signal.SIGKILL, (
    "no longer reproduces: the worker is alive"
)

# %%
# Fix it
# ------


def wait(collector, buffer, n_frames):
    while buffer.write_count < n_frames:
        if not all(worker.is_alive() for worker in collector.procs):
            raise RuntimeError("a worker is dead")
        time.sleep(0.001)


try:
    train([make_env, make_killed_env], wait)
    raise AssertionError("the fix does not work: nobody looked")
except RuntimeError as error:
    print("raised:", error)

# %%
# Then fix what killed it.

fixed = train([make_env] * 2, wait)
healthy = check(**fixed)
print(healthy)
assert -signal.SIGKILL not in healthy["exit codes"], (
    "the fix does not work: one is dead"
)
