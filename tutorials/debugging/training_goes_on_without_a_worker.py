"""
Training goes on although a worker is dead
==========================================

Workers fill a replay buffer in the background. The buffer grows more slowly than before, or your
loop waits for frames forever. No error is raised.

:Subsystem: multi-process and weight sync
:Effect: silent
:Cause: After ``collector.start()``, the main process does not notice when a worker dies. If the
   worker raised an error, you see it only on the terminal. If the system killed it, for example
   because memory ran out, there is no error.
:Fix: Whenever you wait for frames, call ``is_alive()`` on each worker in ``collector.procs``, and
   raise if one is dead.
:Source: :source:`torchrl.collectors.MultiCollector.start`
:Behind it: :doc:`/how-to/collect_in_background`
:Threads: none found
:Also called: worker died silently, worker was killed by the OOM killer, dead worker, exit code -9,
   collector waits for ever, buffer stops growing, write_count does not change, training stalls
"""

# %%
# Break it
# --------
#
# .. redirect-from::
#    tutorials/debugging/training_goes_on_without_a_worker.html#training-goes-on-and-a-worker-is-dead
#
# One of two workers is killed during its second batch.
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
# The exit code of a worker is ``None`` while it runs. A negative code is the signal that ended it:
# ``-9`` if the system killed it, ``-15`` if ``shutdown()`` did.


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
# Then fix what killed the worker. Here both environments are healthy:

fixed = train([make_env] * 2, wait)
healthy = check(**fixed)
print(healthy)
assert -signal.SIGKILL not in healthy["exit codes"], (
    "the fix does not work: one is dead"
)
