"""
update_policy_weights_(policy) raises AttributeError
====================================================

You pass the policy to ``update_policy_weights_``, as its docstring allows. A ``Collector`` raises
an ``AttributeError``: one of the modules in the policy has no attribute ``data``.

:Subsystem: multi-process and weight sync
:Effect: loud
:Cause: Without a weight-sync scheme, the collector expects a TensorDict of weights and reads its
   ``data``. A module has no ``data``.
:Fix: Call ``collector.update_policy_weights_(TensorDict.from_module(policy))``. If you passed the
   policy itself to the collector, make the call without an argument.
:Source: :source:`torchrl.collectors.Collector._maybe_fallback_update`
:Behind it: :doc:`/reference/collectors_basics`
:Threads: none found
:Also called: object has no attribute 'data', weight update fails, policy_factory
"""

# %%
# Break it
# --------
#
# The collector creates its own policy with ``policy_factory``, and you train another policy.

import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor


def make_policy():
    network = MLP(in_features=4, out_features=2, num_cells=[8])
    spec = GymEnv("CartPole-v1").action_spec
    return QValueActor(network, in_keys=["observation"], spec=spec)


def update(prepare):
    policy, found = make_policy(), {}
    collector = Collector(
        GymEnv("CartPole-v1"),
        policy_factory=make_policy,
        frames_per_batch=10,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    try:
        collector.update_policy_weights_(prepare(policy))
    except Exception as error:
        found["error"] = error
    collector.shutdown()
    return {"collector": collector, "policy": policy, **found}


broken = update(lambda policy: policy)
error = broken.get("error")
assert error, "no longer reproduces: nothing is raised"
print(f"{type(error).__name__}: {error}")
assert "has no attribute 'data'" in str(error), "no longer reproduces: another error"

# %%
# Check it
# --------


def check(collector, policy):
    pairs = zip(collector.policy.parameters(), policy.parameters(), strict=True)
    return {"equal weights": all(torch.equal(theirs, ours) for theirs, ours in pairs)}


unhealthy = check(broken["collector"], broken["policy"])
print(unhealthy)
assert not unhealthy["equal weights"], "no longer reproduces: a module is accepted"

# %%
# Fix it
# ------
#
# A collector with ``policy=`` keeps a reference to your policy, even if it acts with a copy on
# another device. The call without an argument is then enough.

fixed = update(TensorDict.from_module)
assert "error" not in fixed, "the fix does not work"
healthy = check(fixed["collector"], fixed["policy"])
print(healthy)
assert healthy["equal weights"], "the fix does not work"
