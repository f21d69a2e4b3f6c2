"""
Workers normalize the same observation differently
==================================================

Several environments normalize observations with ``VecNormV2``, but they turn the same raw
observation into different numbers. The policy then gets different inputs for the same state.

:Subsystem: multi-process and weight sync
:Effect: silent
:Cause: Each worker makes its own ``VecNormV2``, which sees only the observations of this worker. An
   ``EnvCreator`` shares the statistics in one process and under "spawn", but not under "fork".
:Fix: Give all workers one ``EnvCreator``, and call ``share_memory_()`` on the tensors of its
   ``state_dict()`` before the workers start.
:Source: :source:`torchrl.envs.transforms.VecNormV2._maybe_stateful_init`,
   :source:`torchrl.envs.EnvCreator.share_memory`
:Behind it: :doc:`/how-to/normalize_across_workers`
:Threads: none found
:Also called: VecNorm statistics not shared, statistics differ per worker, each worker has its own
   statistics, EnvCreator, running mean of each worker
"""

# %%
# Break it
# --------
#
# .. redirect-from::
#    tutorials/debugging/workers_normalize_differently.html#workers-normalize-one-observation-differently
#
# A ``SerialEnv`` shows this in one process. The workers of a ``ParallelEnv`` or of a collector have
# separate statistics, too.

import torch
from torchrl.envs import EnvCreator, GymEnv, SerialEnv, TransformedEnv, VecNormV2


def make_env():
    norm = VecNormV2(in_keys=["observation"], decay=1.0)
    return TransformedEnv(GymEnv("CartPole-v1"), norm)


def collect(make):
    torch.manual_seed(0)
    env = SerialEnv(2, make)
    env.set_seed(0)
    env.rollout(50, break_when_any_done=False)
    return {"env": env}


broken = collect(make_env)

# %%
# Check it
# --------
#
# Normalize one observation with the statistics of each worker, which are in the ``state_dict``.

raw = torch.tensor([0.1, 0.5, 0.05, -0.5])


def check(states, raw, key="observation"):
    mean, square = (
        torch.stack([state["_extra_state"][f"{name}.-|-.{key}"] for state in states])
        for name in ("loc", "var")
    )
    apart = ((raw - mean) / (square - mean**2).sqrt()).diff(dim=0).abs().max()
    return {"largest difference": round(apart.item(), 2)}


unhealthy = check(broken["env"].state_dict().values(), raw)
print(unhealthy)
assert unhealthy["largest difference"] > 0.1, (
    "no longer reproduces: two workers now agree on one observation"
)

# %%
# Fix it
# ------
#
# The creator gives its statistics to each environment that it makes. In shared memory, all
# environments use the same statistics, with every start method.

creator = EnvCreator(make_env)
for tensor in creator.state_dict()["_extra_state"].values():
    tensor.share_memory_()

fixed = collect(creator)
healthy = check(fixed["env"].state_dict().values(), raw)
print(healthy)
assert healthy["largest difference"] == 0, (
    "the fix does not work: each worker still has statistics of its own"
)
