"""
The LSTM forgets everything between steps
=========================================

A recurrent policy trains, but no better than one without memory.

:Subsystem: recurrent state
:Effect: silent
:Cause: The specs of the environment do not include the hidden state, so it is dropped after each
   step. The LSTM starts each step from zeros.
:Fix: Append ``lstm.make_tensordict_primer()`` to the transforms of the environment.
:Source: :source:`torchrl.modules.LSTMModule.forward`
:Behind it: :ref:`recurrent-wiring`
:Threads: :thread:`1406`, :thread:`2327`, :thread:`2362`
:Also called: no memory, policy does not remember, hidden state is always zero,
   recurrent_state_h missing
"""

# %%
# Break it
# --------
#
# The environment marks where an episode starts, but has no spec for the hidden state.

import matplotlib.pyplot as plt
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import LSTMModule, QValueModule


def collect(with_primer):
    torch.manual_seed(0)
    lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
    base = GymEnv("CartPole-v1")
    base.set_seed(0)
    primer = [lstm.make_tensordict_primer()] if with_primer else []
    env = TransformedEnv(base, Compose(InitTracker(), *primer))
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    policy = TensorDictSequential(lstm, head, QValueModule(spec=base.action_spec))
    options = {"auto_register_policy_transforms": False}
    collector = Collector(env, policy, frames_per_batch=40, total_frames=-1, **options)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"batch": batch, "policy": policy}


broken = collect(with_primer=False)

# %%
# Check it
# --------
#
# Compare the features of each step with those of an LSTM that starts from zeros. They should be
# equal only at the first step of an episode.


def check(batch, lstm):
    alone = lstm.lstm(batch["observation"].unsqueeze(1))[0].squeeze(1)
    same = torch.isclose(alone, batch["features"], atol=1e-6).all(-1)
    return {"steps": len(batch), "forgot": int((same & ~batch["is_init"][:, 0]).sum())}


unhealthy = check(broken["batch"], broken["policy"][0])
print(unhealthy)
assert unhealthy["forgot"] > 20, "no longer reproduces: steps are remembered"

# %%
# Fix it
# ------
#
# The primer adds the hidden state to the specs, so each step passes it on to the next. With
# ``auto_register_policy_transforms=True``, a ``Collector`` appends it. By default, a ``Collector``
# only warns that a transform is missing.

fixed = collect(with_primer=True)
healthy = check(fixed["batch"], fixed["policy"][0])
print(healthy)
assert healthy["forgot"] == 0, "the fix does not work"

# %%
# Without the primer, the hidden state is zero at every step. With it, the state is zero only at the
# first step of each episode.
#
# .. fold:: Draw both

zeros = torch.zeros(40, 1, 8)
figure, axes = plt.subplots(figsize=(5.4, 3.2), layout="constrained")
for side, line in ((broken, "C0x--"), (fixed, "C1o-")):
    state = side["batch"].get("recurrent_state_h", zeros)
    axes.plot(state.flatten(1).norm(dim=1), line)
axes.text(2.5, 0.04, "no primer", color="C0")
axes.text(0, 0.7, "primer", color="C1")
axes.set(title="Hidden state at each step", xlabel="step of the batch", ylabel="norm")
figure.set_label(
    "Without the primer the norm of the hidden state is zero at every step. With the primer it "
    "is zero where an episode begins, and nowhere else."
)
plt.show()
