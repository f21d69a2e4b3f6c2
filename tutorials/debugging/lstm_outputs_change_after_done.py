"""
LSTM outputs change in the loss after an episode ends
=====================================================

Collection looks right. The loss then runs the policy on the batch. Even before any update, the
policy's outputs equal the collected ones only up to the first end of an episode. In later rows they
differ, and the PPO ratio is not one.

:Subsystem: recurrent state
:Effect: silent
:Cause: ``is_init`` is in the data but never True, so the loss carries the state of the LSTM from
   one episode into the next.
:Fix: Append ``InitTracker()`` to the environment, and remove whatever else writes ``is_init``
   there.
:Source: :source:`torchrl.modules.tensordict_module.rnn._split_and_pad_for_reset`
:Behind it: :ref:`recurrent-zeroing`
:Threads: :thread:`4474`
:Also called: is_init always False, memory leaks across episodes, ratio not 1, KL is not zero
   before the first update
"""

# %%
# Break it
# --------
#
# ``LSTMModule`` raises if ``is_init`` is missing. Here a primer avoids that error with an
# ``is_init`` that stays False.

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import Unbounded
from torchrl.envs import Compose, GymEnv, InitTracker, TensorDictPrimer, TransformedEnv
from torchrl.modules import LSTMModule, QValueModule, set_recurrent_mode


def collect(marker):
    torch.manual_seed(0)
    lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
    base = GymEnv("CartPole-v1")
    base.set_seed(0)
    env = TransformedEnv(base, Compose(marker, lstm.make_tensordict_primer()))
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    policy = TensorDictSequential(lstm, head, QValueModule(spec=base.action_spec))
    options = {"auto_register_policy_transforms": False}
    collector = Collector(env, policy, frames_per_batch=60, total_frames=-1, **options)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"batch": batch, "policy": policy}


flag = Unbounded((1,), dtype=torch.bool)
broken = collect(TensorDictPrimer({"is_init": flag}))

# %%
# Check it
# --------
#
# Run the module on the batch as a loss does. Without an update in between, each output must equal
# the collected one.


def check(batch, lstm):
    with torch.no_grad(), set_recurrent_mode(True):
        again = lstm(batch.clone())["features"]
    same = torch.isclose(again, batch["features"], atol=1e-5).all(-1)
    return {
        "ends": int(batch["next", "done"].sum()),
        "marked starts": int(batch["is_init"].sum()),
        "steps that differ": int((~same).sum()),
        "first of them": int((~same).int().argmax()),
    }


unhealthy = check(broken["batch"], broken["policy"][0])
print(unhealthy)
first_end = int(broken["batch"]["next", "done"].int().argmax())
assert unhealthy["steps that differ"] > 20, "no longer reproduces: the outputs agree"
assert unhealthy["first of them"] == first_end + 1, (
    "no longer reproduces: not at an end"
)

# %%
# Why nobody noticed
# ------------------
#
# During collection, the primer of the LSTM sets the state to zero at each reset, whatever
# ``is_init`` says. So the collected outputs are right. The loss switches on :term:`recurrent mode`.
# The rows then form one sequence. It :source:`is cut
# <torchrl.modules.tensordict_module.rnn._split_and_pad_for_reset>` only at ``is_init`` and not at
# ``done``.

after_an_end = broken["batch"]["next", "done"][:-1, 0]
states = broken["batch"]["recurrent_state_h"][1:][after_an_end]
assert not states.any(), "the primer does not zero the state at a reset"

# %%
# Fix it
# ------
#
# If you put data together yourself, set ``is_init`` to True in the first row of each episode and
# slice.

fixed = collect(InitTracker())
healthy = check(fixed["batch"], fixed["policy"][0])
print(healthy)
assert healthy["steps that differ"] == 0, "the fix does not work"
assert healthy["marked starts"] == healthy["ends"] + 1, "the fix does not work"
