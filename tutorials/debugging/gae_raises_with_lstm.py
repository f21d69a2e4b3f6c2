"""
GAE raises with an LSTM critic but works with others
====================================================

With a feed-forward critic, GAE computes advantages. With an LSTM or a GRU in the critic, the call
raises an error about vmap, batching rules or data-dependent control flow.

:Subsystem: recurrent state
:Effect: loud
:Cause: By default, a value estimator runs its network on the observations and the next observations
   at once, with ``torch.vmap``. PyTorch's recurrent layers do not support it, and TorchRL's modules
   around them seldom do.
:Fix: Pass ``deactivate_vmap=True`` to the estimator, and call it in recurrent mode. If the batch
   holds no hidden states from the critic's current weights, pass ``shifted=True`` instead.
   Otherwise V(s') is wrong.
:Source: :source:`torchrl.objectives.value.ValueEstimatorBase._call_value_nets`
:Behind it: :ref:`recurrent-advantages`
:Threads: :thread:`2444`, :thread:`2372`
:Also called: Batching rule not implemented, aten::lstm.input, data-dependent control flow, vmap,
   recurrent critic
"""

# %%
# Break it
# --------
#
# .. redirect-from::
#    tutorials/debugging/gae_raises_with_lstm.html#gae-raises-with-an-lstm-critic-and-works-with-any-other
#
# The first error is raised outside recurrent mode, the second inside it.

import torch
from tensordict.nn import TensorDictSequential
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import LSTMModule, ValueOperator, set_recurrent_mode
from torchrl.objectives.value import GAE

torch.manual_seed(0)
lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
value = ValueOperator(torch.nn.Linear(8, 1), in_keys=["features"])
critic = TensorDictSequential(lstm, value)
env = TransformedEnv(
    GymEnv("CartPole-v1"), Compose(InitTracker(), lstm.make_tensordict_primer())
)
env.set_seed(0)
batch = env.rollout(40, break_when_any_done=False)


def make_gae(**options):
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic, **options)
    return {"value_estimator": gae}


def advantages(gae, recurrent):
    with torch.no_grad(), set_recurrent_mode(recurrent):
        return gae(batch.clone())


broken = make_gae()
for recurrent in (False, True):
    try:
        advantages(broken["value_estimator"], recurrent)
    except RuntimeError as error:
        broken["error"] = error
        print(f"RuntimeError: {str(error).splitlines()[0]}")
    assert "error" in broken, "no longer reproduces: nothing is raised"

# %%
# Check it
# --------
#
# Look for a recurrent module in a network that the estimator calls through ``vmap``.


def check(gae):
    recurrent = [m for m in gae.value_network.modules() if hasattr(m, "recurrent_mode")]
    one_call = gae.shifted or gae.deactivate_vmap
    return {"recurrent modules": len(recurrent), "maps its network": not one_call}


unhealthy = check(broken["value_estimator"])
print(unhealthy)
assert unhealthy == {"recurrent modules": 1, "maps its network": True}, (
    "no longer reproduces: the estimator does not map its network"
)

# %%
# Fix it
# ------
#
# With the losses of PPO and A2C, call ``loss.make_value_estimator(deactivate_vmap=True)``. With SAC
# that call raises; pass ``deactivate_vmap=True`` to ``SACLoss`` instead. An estimator that you make
# yourself also works with ``shifted=True``, because it then calls its network only once.

one_call = make_gae(shifted=True)
assert not check(one_call["value_estimator"])["maps its network"], "it maps"
values = advantages(one_call["value_estimator"], recurrent=True)["advantage"]
assert values.isfinite().all(), (
    "the fix does not work: shifted=True gives no advantages"
)

fixed = make_gae(deactivate_vmap=True)
healthy = check(fixed["value_estimator"])
print(healthy)
assert not healthy["maps its network"], "the fix does not work"
assert (
    advantages(fixed["value_estimator"], recurrent=True)["advantage"].isfinite().all()
), "the fix does not work: no advantages"
