"""
TensorDictPrimer raises with several environments
=================================================

A primer for the hidden state works with one environment. With a batched or vectorized environment,
it can raise an error about ``expand_specs`` or about shapes.

:Subsystem: recurrent state
:Effect: loud
:Cause: The specs of a hand-written primer have the shape of one environment. The primer cannot tell
   whether to expand them to all environments, because ``expand_specs`` is not set.
:Fix: Use the primer of the module, ``module.make_tensordict_primer()``. If you write a primer by
   hand with the shapes of a single environment, pass ``expand_specs=True``.
:Source: :source:`torchrl.envs.transforms.TensorDictPrimer.transform_observation_spec`
:Behind it: :ref:`recurrent-wiring`
:Threads: :thread:`2323`, :thread:`1493`
:Also called: expand_specs, batch-locked, SerialEnv, ParallelEnv, IsaacLab, vectorized, LSTM
"""

# %%
# Break it
# --------

from torchrl.data import Composite, Unbounded
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
# The specs of a primer must begin with the batch dimensions of the environment.


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
# The primer of the module has the right names and shapes, including the dimension of the layers.
# The first lines of the code try ``expand_specs=True``.

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

# %%
# You do not always get the error. If the environment is reset before anything reads the specs, the
# primer expands them silently. It expands even specs that already have the shape of all
# environments, so these specs get this dimension twice:

full = build(TensorDictPrimer({"recurrent_state": Unbounded((2, 1, 8))}))["env"]
full.reset()
print(tuple(full.observation_spec["recurrent_state"].shape))
assert full.observation_spec["recurrent_state"].shape == (2, 2, 1, 8), (
    "no longer reproduces: specs of all environments stay as they are"
)

# %%
# If your specs have the shape of all environments, pass them in a ``Composite`` with that batch
# shape:

spec = Composite(recurrent_state=Unbounded((2, 1, 8)), shape=[2])
whole = build(TensorDictPrimer(spec))["env"]
whole.reset()
assert whole.observation_spec["recurrent_state"].shape == (2, 1, 8), (
    "the fix does not work: the specs were expanded"
)
