"""
TensorDictPrimer raises with several environments
=================================================

A primer for the hidden state works with one environment. Around a batched or vectorized one it
raises, with a word about ``expand_specs`` or about shapes.

:Subsystem: recurrent state
:Effect: loud
:Cause: A primer that is written by hand has to be told whether its specs are of one environment
   or of all.
:Fix: Take ``module.make_tensordict_primer()``, or say ``expand_specs=True``.
:Decided in: :source:`torchrl.envs.transforms.TensorDictPrimer.transform_observation_spec`
:Behind it: :ref:`recurrent-wiring`
:Threads: :thread:`2323`, :thread:`1493`
:Also called: expand_specs, batch-locked, SerialEnv, ParallelEnv, IsaacLab, vectorized, LSTM
"""

# %%
# Break it
# --------

from torchrl.data import Unbounded
from torchrl.envs import GymEnv, InitTracker, SerialEnv, TensorDictPrimer
from torchrl.modules import GRUModule

gru = GRUModule(4, 8, in_key="observation", out_key="features")


def build(primer):
    env = SerialEnv(2, lambda: GymEnv("CartPole-v1")).append_transform(InitTracker())
    return {"env": env.append_transform(primer)}


def use(env):
    env.set_seed(0)
    return env.rollout(2, lambda tensordict: env.rand_action(gru(tensordict)))


state = {"recurrent_state": Unbounded((1, 8))}
broken = build(TensorDictPrimer(state))
try:
    use(broken["env"])
except RuntimeError as error:
    broken["error"] = error

assert "error" in broken, "no longer reproduces: nothing is raised"
assert "expand_specs wasn't specified" in str(broken["error"]), "no longer reproduces"
print(f"RuntimeError: {broken['error']}")

# %%
# Check it
# --------
#
# The specs of a primer have the batch dimensions of the environment, or are told to take them.


def check(env, primer):
    fits = primer.primers.shape[: len(env.batch_size)] == env.batch_size
    return {"environments": env.batch_size.numel(), "specs fit": fits}


unhealthy = check(broken["env"], broken["env"].transform[-1])
print(unhealthy)
assert not unhealthy["specs fit"], "no longer reproduces: the specs fit"

# %%
# Fix it
# ------
#
# The primer of the module also knows names and shapes, the dimension of layers among them.

told = build(TensorDictPrimer(state, expand_specs=True))
assert use(told["env"])["recurrent_state"][:, 1].any(), (
    "the fix does not work: not told"
)

fixed = build(gru.make_tensordict_primer())
state = use(fixed["env"])["recurrent_state"]
healthy = check(fixed["env"], fixed["env"].transform[-1])
print(healthy)
assert healthy["specs fit"], "the fix does not work: the specs do not fit"
assert state[:, 1].any(), "the fix does not work: no state is carried"
