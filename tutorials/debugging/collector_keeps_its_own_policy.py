"""
The collector never sees the trained policy
===========================================

The loss goes down and your policy gets better, but the collected episodes do not get better.
Training runs on one device and collection on another.

:Subsystem: devices
:Effect: silent
:Cause: If the policy is not on the collector's ``policy_device`` (by default its ``device``), the
   collector acts with a copy. The optimizer does not change the copy.
:Fix: Call ``collector.update_policy_weights_()`` after the optimizer steps, or put the policy on
   ``policy_device`` before the collector is made.
:Source: :source:`torchrl.collectors.BaseCollector._get_policy_and_device`
:Behind it: :doc:`/reference/collectors_basics`
:Threads: :thread:`3032`, :thread:`3587`
:Also called: agent is not learning, reward does not increase, not learning,
   ``update_policy_weights_``,
   policy_device, device="cuda", stale weights, return does not improve, deepcopy
"""

# %%
# Break it
# --------
#
# Here ``cpu:0`` stands for a second device. The collector sees that ``cpu`` and ``cpu:0`` differ,
# and copies the policy.

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, QValueActor


def collect(syncs):
    torch.manual_seed(0)
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    network = MLP(in_features=4, out_features=2, num_cells=[16])
    policy = QValueActor(network, in_keys=["observation"], spec=env.action_spec)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    collector = Collector(
        env,
        policy,
        policy_device="cpu:0",
        frames_per_batch=20,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )
    batches = []
    for batch in collector:
        batches.append(batch.clone())
        if len(batches) == 3:
            break
        policy(batch.clone())["action_value"].square().mean().backward()
        optimizer.step()
        if syncs:
            collector.update_policy_weights_()
    collector.shutdown()
    return {"collector": collector, "policy": policy, "batch": batches}


broken = collect(syncs=False)

# %%
# Check it
# --------
#
# Compare the weights of the policy that collects with those of the policy that learns.


def check(collector, policy):
    pairs = zip(collector.policy.parameters(), policy.parameters(), strict=True)
    far = max((acts - learns).abs().max().item() for acts, learns in pairs)
    return {"same object": collector.policy is policy, "difference": round(far, 4)}


unhealthy = check(broken["collector"], broken["policy"])
print(unhealthy)
assert not unhealthy["same object"], "no longer reproduces: the policy is not copied"
assert unhealthy["difference"] > 0, "no longer reproduces: the copy is trained"

# %%
# If you pass neither ``policy_device`` nor ``device``, a ``Collector`` acts with your own policy
# object, so training changes its weights. The same holds if the policy is already on that device.
# So code written for the CPU may never call ``update_policy_weights_``.
#
# Fix it
# ------
#
# Without an argument, ``update_policy_weights_()`` copies from your own policy.

fixed = collect(syncs=True)
healthy = check(fixed["collector"], fixed["policy"])
print(healthy)
assert healthy["difference"] == 0, "the fix does not work"
