"""
The hidden state under "next" is zero in every step
===================================================

The hidden states at the root of the batch are right, but those under ``"next"`` are zero in every
step. A critic that computes V(s') from them gets zeros.

:Subsystem: recurrent state
:Effect: silent
:Cause: With ``compact_obs=True``, the collector does not write the next states. But it has already
   reserved memory for them in the batch, and this memory stays zero.
:Fix: Collect without ``compact_obs``. Or add ``use_buffers=False``, which removes the zeros, and
   rebuild the next states.
:Source: :source:`torchrl.collectors.Collector._maybe_make_final_rollout`,
   :source:`torchrl.modules.LSTMModule.forward`
:Behind it: :doc:`/reference/recurrent_state_lifecycle`
:Threads: none found
:Also called: compact observations, next recurrent_state_h zeros, wrong V(s'), memory saved
"""

# %%
# Break it
# --------

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import GRUModule, QValueModule


def collect(**options):
    torch.manual_seed(0)
    gru = GRUModule(4, 8, in_key="observation", out_key="features")
    base = GymEnv("CartPole-v1")
    base.set_seed(0)
    env = TransformedEnv(base, Compose(InitTracker(), gru.make_tensordict_primer()))
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    collector = Collector(
        env,
        TensorDictSequential(gru, head, QValueModule(spec=base.action_spec)),
        frames_per_batch=40,
        total_frames=-1,
        auto_register_policy_transforms=False,
        **options,
    )
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"batch": batch, "policy": collector.policy}


broken = collect(compact_obs=True)

# %%
# Check it
# --------
#
# A hidden state should be all zeros where an episode begins, and never after a step.


def check(batch, key="recurrent_state"):
    now, after = batch[key], batch["next"].get(key, None)
    return {
        "steps": len(batch),
        "zero now": int((now == 0).flatten(1).all(1).sum()),
        "has a next state": after is not None,
        "zero next": 0 if after is None else int((after == 0).flatten(1).all(1).sum()),
    }


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["has a next state"], "no longer reproduces: there is no next state"
assert unhealthy["zero next"] == unhealthy["steps"], "no longer reproduces: not zero"

# %%
# The policy is not affected, because it reads the states at the root. By default, GAE raises,
# because the next observations and ``is_init`` are missing as well. Once you rebuild these, GAE
# with ``deactivate_vmap=True`` computes V(s') from the zero states, and nothing is raised.

gru, batch = broken["policy"][0], broken["batch"]
left_out = {"observation", "is_init"} - set(batch["next"].keys())
assert len(left_out) == 2, "no longer reproduces: a next observation is in the batch"
rebuilt = batch["next"][:-1].clone().update(batch[1:].select(*left_out))
again = gru(rebuilt)["features"]
same = torch.isclose(again, batch["features"][1:], atol=1e-5).all(-1)
assert (~same).sum() > 20, "no longer reproduces: the next step has its state"

# %%
# Fix it
# ------
#
# With ``use_buffers=False``, the next states are missing, as are the next observations. Rebuild
# both in the same way. The second printed line is from a collector without ``compact_obs``.

fixed = collect(compact_obs=True, use_buffers=False)
healthy = check(fixed["batch"])
print(healthy)
assert not healthy["has a next state"], "the fix does not work: there is a next state"
whole = collect()
print(check(whole["batch"]))
assert check(whole["batch"])["zero next"] == 0, "the fix does not work: zero without it"
