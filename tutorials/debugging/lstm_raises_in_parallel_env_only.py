"""
The LSTM policy raises in a ParallelEnv, nowhere else
=====================================================

A single environment and ``SerialEnv`` work. In a collector, ``ParallelEnv`` raises ``KeyError`` at
the first step. The message names a hidden state and a "dest tensordict".

:Subsystem: recurrent state
:Effect: loud
:Cause: ``ParallelEnv`` shares memory only for keys in the specs of the environment, and the hidden
   state is not among them. The policy has no memory in the other environments either: they drop the
   state without an error.
:Fix: Append ``lstm.make_tensordict_primer()`` to the environment in each worker, or to the
   ``ParallelEnv``.
:Source: :source:`torchrl.envs.ParallelEnv.step_and_maybe_reset`,
   :source:`torchrl.modules.LSTMModule.make_tensordict_primer`
:Behind it: :ref:`recurrent-wiring`
:Threads: :thread:`1406`
:Also called: key not found in the dest tensordict, recurrent_state_h, vectorized environments
"""

# %%
# Break it
# --------
#
# The environments mark where episodes start, but have no primer. To start faster, the workers are
# forked from a server that has already imported TorchRL.

import multiprocessing

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, InitTracker, ParallelEnv, SerialEnv
from torchrl.modules import LSTMModule


def push(features):
    return torch.nn.functional.one_hot((features.sum(-1) > 0).long(), 2)


def worker():
    return GymEnv("CartPole-v1").append_transform(InitTracker())


def collect(env):
    options = {"auto_register_policy_transforms": False}
    collector = Collector(env, policy, frames_per_batch=80, total_frames=-1, **options)
    try:
        return next(iter(collector)).clone()
    finally:
        collector.shutdown(close_env=False)


torch.manual_seed(0)
lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
policy = TensorDictSequential(lstm, TensorDictModule(push, ["features"], ["action"]))

if __name__ == "__main__":
    before = multiprocessing.get_start_method()
    if "forkserver" in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method("forkserver", force=True)
        multiprocessing.set_forkserver_preload(["torchrl.envs", "torchrl.modules"])
    serial, parallel = SerialEnv(2, worker), ParallelEnv(2, worker)
    broken = {"policy": policy, "batch": collect(serial)}
    serial.close()
    try:
        collect(parallel)
    except KeyError as error:
        broken["error"] = error
        print(f"KeyError: {error.args[0]}")
    parallel.close(raise_if_closed=False)
    assert "error" in broken, "no longer reproduces: nothing is raised"
    assert "not found in the dest" in str(broken["error"]), "no longer reproduces"

# %%
# Check it
# --------


def check(env, lstm):
    keys = set(env.observation_spec.keys())
    return {f"{key} in the specs": key in keys for key in lstm.in_keys[1:3]}


unhealthy = check(worker(), lstm)
if __name__ == "__main__":
    print(unhealthy)
    assert not any(unhealthy.values()), "no longer reproduces: they are in the specs"

# %%
# ``SerialEnv`` returned a batch, but without the state: :doc:`the LSTM forgets everything
# </tutorials/debugging/lstm_forgets_every_step>`. The same holds for a ``ParallelEnv`` with any
# transform around it, and for one with ``use_buffers=False``. Only a bare ``ParallelEnv`` with
# buffers raises, in a collector and in a rollout that goes on after ``done``.

# %%
# Fix it
# ------


def primed_worker():
    return worker().append_transform(lstm.make_tensordict_primer())


fixed = {"policy": policy}
healthy = check(primed_worker(), lstm)
if __name__ == "__main__":
    print(healthy)
assert all(healthy.values()), "the fix does not work: no state in the specs"

if __name__ == "__main__":
    parallel = ParallelEnv(2, primed_worker)
    fixed["batch"] = collect(parallel)
    parallel.close(raise_if_closed=False)
    multiprocessing.set_start_method(before, force=True)
    state = fixed["batch"].get("recurrent_state_h", torch.zeros(()))
    assert state.any(), "the fix does not work: the state is lost"
