"""
The PPO ratio of an LSTM is off in every minibatch
==================================================

PPO worked with a feed-forward policy. With an LSTM or GRU, nearly every row has a ratio other than
one, even before the first update. Some may be clipped, and the KL divergence is not zero.

:Subsystem: recurrent state
:Effect: silent
:Cause: The minibatches are drawn row by row, but the loss treats the rows of a minibatch as
   consecutive steps.
:Fix: Draw slices of consecutive steps: ``SliceSampler(slice_len=8, end_key=("next", "done"))``.
:Source: :source:`torchrl.modules.LSTMModule.forward`,
   :source:`torchrl.data.SliceSampler`
:Behind it: :ref:`recurrent-slices`
:Threads: :thread:`3147`
:Also called: shuffled minibatches, SamplerWithoutReplacement, RandomSampler, kl, clip fraction
"""

# %%
# Break it
# --------

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.data import (
    LazyTensorStorage,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import (
    Compose,
    ExplorationType,
    GymEnv,
    InitTracker,
    TransformedEnv,
    set_exploration_type,
)
from torchrl.modules import (
    GRUModule,
    OneHotCategorical,
    ProbabilisticActor,
    set_recurrent_mode,
)

torch.manual_seed(0)
gru = GRUModule(4, 8, in_key="observation", out_key="features")
head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["logits"])
policy = ProbabilisticActor(
    TensorDictSequential(gru, head),
    in_keys=["logits"],
    distribution_class=OneHotCategorical,
    return_log_prob=True,
)
env = TransformedEnv(
    GymEnv("CartPole-v1"), Compose(InitTracker(), gru.make_tensordict_primer())
)
env.set_seed(0)
with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
    for weight in policy.parameters():
        weight.mul_(3)  # so that the hidden state matters
    batch = env.rollout(120, policy, break_when_any_done=False)


def fill(sampler):
    storage = LazyTensorStorage(120)
    buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=40)
    buffer.extend(batch)
    return {"replay_buffer": buffer, "policy": policy}


broken = fill(SamplerWithoutReplacement())

# %%
# Check it
# --------
#
# As long as the weights do not change, each action should have its stored probability. Count the
# rows where it does not.


def check(sample, policy):
    with torch.no_grad(), set_recurrent_mode(True):
        now = policy.get_dist(sample.clone()).log_prob(sample["action"])
    off = ((now - sample["action_log_prob"]).exp() - 1).abs()
    return {"rows": len(sample), "ratio not 1": int((off > 1e-4).sum())}


unhealthy = check(broken["replay_buffer"].sample(), broken["policy"])
print(unhealthy)
assert unhealthy["ratio not 1"] > 20, "no longer reproduces: the ratios are one"

# %%
# The policy reads stored hidden states only in the first row of the sample and where ``is_init`` is
# true. In all other rows it continues from the row above, even if that row is from another episode.

# %%
# Fix it
# ------
#
# ``TensorDictReplayBuffer`` marks the slices, so each one starts from the hidden state stored in
# its first row.

sampler = SliceSampler(slice_len=8, end_key=("next", "done"))
fixed = fill(sampler)
healthy = check(fixed["replay_buffer"].sample(), fixed["policy"])
print(healthy)
assert healthy["ratio not 1"] == 0, "the fix does not work"
