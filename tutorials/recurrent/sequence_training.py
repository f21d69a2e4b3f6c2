"""
Sequence training
=================

A policy that cannot see velocities needs memory. In this lesson you train a GRU policy with PPO on
CartPole, until it clearly beats the same policy without memory.

Here the policy sees only the position and the angle. One observation does not tell whether the pole
is falling or rising; for that, the policy needs the earlier ones. You should know PPO. Four parts
carry the memory: policy, environment, buffer and loss. A mistake in one of them often raises no
error, so run :ref:`two checks <sequence-checks>` on one sample before you train.
"""

# %%
# .. fold:: Imports, sizes, and CartPole without velocities

import logging
import math

import matplotlib.pyplot as plt
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import (
    Binary,
    Categorical,
    Composite,
    LazyTensorStorage,
    SliceSampler,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.transforms import InitTracker
from torchrl.modules import MLP, GRUModule, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

DEVICE = "cpu"  # or "cuda"; the sizes are for a CPU
SEEDS = range(3)
N_ENVS, STEPS_PER_BATCH, N_BATCHES, TIME_LIMIT_STEPS = 48, 32, 11, 160
SLICE_STEPS, N_SLICES, UPDATES_PER_BATCH = 16, 16, 8
HIDDEN_UNITS, LEARNING_RATE = 16, 1e-2
GAMMA, LAMBDA = 0.98, 0.95
RATIO_TOLERANCE = 5e-3
CLIP, CRITIC_WEIGHT, MAX_GRADIENT_NORM = 0.4, 0.05, 1.0
OBSERVATION_SCALE = [1.0, 40.0]

FRAMES_PER_BATCH = N_ENVS * STEPS_PER_BATCH
TRAJ_KEY, STATE_KEY = ("collector", "traj_ids"), "recurrent_state"

torch.set_num_threads(1)
logging.getLogger("torchrl").setLevel("ERROR")  # it announces each storage

GRAVITY, CART_KG, POLE_KG, HALF_POLE_M = 9.8, 1.0, 0.1, 0.5
FORCE_N, STEP_S, MAX_X_M, MAX_ANGLE = 10.0, 0.02, 2.4, math.radians(12)


class CartPoles(EnvBase):
    """Many CartPoles, stepped together.

    The policy sees position and angle under "observation". The angle is multiplied, so that the
    difference of two steps is not lost in the first weights. "state" has the velocities too.
    """

    def __init__(self, n_envs, seed):
        super().__init__(device=DEVICE, batch_size=[n_envs])
        flag = Binary(1, (n_envs, 1), dtype=torch.bool)
        keys = ("done", "terminated", "truncated")
        self.observation_spec = Composite(
            observation=Unbounded((n_envs, 2)),
            state=Unbounded((n_envs, 4)),
            step=Unbounded((n_envs, 1)),
            shape=[n_envs],
        )
        self.action_spec = Categorical(2, [n_envs])
        self.reward_spec = Unbounded((n_envs, 1))
        self.done_spec = Composite({key: flag.clone() for key in keys}, shape=[n_envs])
        self.set_seed(seed)

    def _set_seed(self, seed):
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def _reset(self, tensordict=None, **kwargs):
        shape = (*self.batch_size, 4)
        fresh = torch.rand(shape, generator=self.generator, device=self.device)
        fresh = 0.1 * fresh - 0.05
        if tensordict is None or "_reset" not in tensordict:
            self.state, self.step_ = fresh, torch.zeros_like(fresh[:, :1])
        else:
            mask = tensordict["_reset"]
            self.state = torch.where(mask, fresh, self.state)
            self.step_ = torch.where(mask, 0, self.step_)
        return self._observed()

    def _step(self, tensordict):
        _, v, angle, spin = self.state.unbind(-1)
        force = FORCE_N * (2 * tensordict["action"] - 1)
        total = CART_KG + POLE_KG
        sin, cos = angle.sin(), angle.cos()
        push = (force + POLE_KG * HALF_POLE_M * spin.square() * sin) / total
        lever = HALF_POLE_M * (4 / 3 - POLE_KG * cos.square() / total)
        spin_rate = (GRAVITY * sin - cos * push) / lever
        v_rate = push - POLE_KG * HALF_POLE_M * spin_rate * cos / total
        rates = torch.stack([v, v_rate, spin, spin_rate], -1)
        self.state = self.state + STEP_S * rates
        self.step_ = self.step_ + 1

        fell = self.state[:, 0].abs() > MAX_X_M
        fell = (fell | (self.state[:, 2].abs() > MAX_ANGLE)).unsqueeze(-1)
        late = self.step_ >= TIME_LIMIT_STEPS
        return self._observed(
            reward=torch.ones_like(self.step_),
            done=fell | late,
            terminated=fell,
            truncated=late,
        )

    def _observed(self, **more):
        positions = self.state[:, ::2] * self.state.new_tensor(OBSERVATION_SCALE)
        entries = {"observation": positions, "state": self.state, "step": self.step_}
        return TensorDict({**entries, **more}, self.batch_size, device=self.device)


# %%
# The agent
# ---------
#
# .. redirect-from:: tutorials/recurrent/sequence_training.html#setup
#    tutorials/recurrent/sequence_training.html#cartpole-without-velocities
#
# **The policy** is one :class:`~torchrl.modules.GRUModule` and a linear head. The module reads its
# :term:`hidden state` from one key, and writes the new state to the same key under ``"next"``, as
# an environment does with a new observation. After the step, both move to the root.


def make_policy(memory=True):
    """The recurrent part, and the policy around it."""
    features = GRUModule(
        2,
        HIDDEN_UNITS,
        in_keys=["observation", STATE_KEY],
        out_keys=["features", ("next", STATE_KEY)],
    )
    if not memory:
        features = TensorDictModule(Memoryless(), ["observation"], ["features"])
    head = TensorDictModule(nn.Linear(HIDDEN_UNITS, 2), ["features"], ["logits"])
    policy = ProbabilisticActor(
        TensorDictSequential(features, head),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    return features.to(DEVICE), policy.to(DEVICE)


# %%
# **The environment** gets two transforms. :class:`~torchrl.envs.transforms.InitTracker` writes
# ``"is_init"``, true on the first step of an episode. The primer, a
# :class:`~torchrl.envs.transforms.TensorDictPrimer` that the module makes, writes a hidden state of
# zeros at each reset. It also adds the key of the state to the specs of the environment: without
# it, the environment does not carry the hidden state from step to step. For other modules and
# environments, and for what happens if you leave a part out, see :ref:`recurrent-wiring`.


def make_env(features, seed, primer=True):
    env = TransformedEnv(CartPoles(N_ENVS, seed), InitTracker())
    if isinstance(features, GRUModule) and primer:
        env.append_transform(features.make_tensordict_primer())
    return env


# %%
# **The buffer** samples slices, each from a single trajectory. Pass ``strict_length=False`` to
# :class:`~torchrl.data.SliceSampler`: by default it leaves out trajectories shorter than a slice,
# and a policy that has not learned yet produces many of them.


def make_buffer():
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(FRAMES_PER_BATCH, device=DEVICE),
        sampler=SliceSampler(
            slice_len=SLICE_STEPS, traj_key=TRAJ_KEY, strict_length=False
        ),
        batch_size=N_SLICES * SLICE_STEPS,
    )


# %%
# **The loss** module runs the policy over whole slices. The critic sees the whole state, velocities
# included: you need a critic only in training, where the simulator knows the state. So the critic
# needs no memory, and :class:`~torchrl.objectives.value.GAE` works as usual. With a recurrent
# critic, switch :term:`recurrent mode` on around GAE, which does not switch it on itself: see
# :ref:`recurrent-advantages`.


def make_loss(policy):
    net = MLP(4, 1, num_cells=[32], activation_class=nn.Tanh, device=DEVICE)
    critic = ValueOperator(net, in_keys=["state"])
    gae = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=critic, average_gae=True)
    loss_module = ClipPPOLoss(policy, critic, clip_epsilon=CLIP, entropy_bonus=False)
    return loss_module, gae


# %%
# .. fold:: The same policy without memory, and the collector


class Memoryless(nn.Module):
    """A GRU that starts from zeros at every step; same parameters, same initial values."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, HIDDEN_UNITS, batch_first=True)

    def forward(self, observation):
        one_step = observation.reshape(-1, 1, 2)
        return self.gru(one_step)[0].reshape(*observation.shape[:-1], HIDDEN_UNITS)


def make_collector(env, policy, n_batches=1):
    return Collector(
        env,
        policy,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=n_batches * FRAMES_PER_BATCH,
        auto_register_policy_transforms=False,  # make_env has done it
    )


# %%
# What the collector stores
# -------------------------
#
# .. redirect-from:: tutorials/recurrent/sequence_training.html#one-batch
#
# Each row stores the hidden state that the policy read at that step. The state is zero on the first
# step of an episode. At other steps, it is the state that the previous step wrote, even if that
# step is in the batch before.

torch.manual_seed(0)
features, policy = make_policy()
collector = make_collector(make_env(features, seed=0), policy, n_batches=2)
first, batch = (data.clone() for data in collector)
collector.shutdown()

# %%
# .. fold:: Compare the states of all rows

assert STATE_KEY in batch
is_init = batch["is_init"].squeeze(-1)
read, written = batch[STATE_KEY], batch["next", STATE_KEY]
carried = ~first["next", "done"][:, -1, 0]
assert torch.equal(read.flatten(2).eq(0).all(-1), is_init)
assert torch.equal(read[:, 1:][~is_init[:, 1:]], written[:, :-1][~is_init[:, 1:]])
assert torch.equal(read[carried, 0], first["next", STATE_KEY][carried, -1])
print(f"{batch.numel()} rows, {is_init.sum()} first steps of an episode")
print(f"{carried.sum()} of {N_ENVS} episodes go on from the batch before")

# %%
# From rows to slices
# -------------------
#
# Compute advantages on the batch as collected: on a sample, GAE would stop at the end of each
# slice. Then flatten and store the batch.
#
# Flattening is safe here for three reasons. GAE has already run. The sampler cuts where
# ``traj_key`` changes from row to row, so no slice crosses from one environment into the next. And
# the buffer holds one batch at a time, so no trajectory is stored in two pieces. If one of these
# conditions does not hold, flattening mixes environments or loses sequences:
# :doc:`/tutorials/debugging/advantages_leak_between_environments`,
# :doc:`/tutorials/debugging/slices_jump_to_another_environment`, :ref:`replay-flat`.

buffer = make_buffer()
buffer.extend(batch.reshape(-1))
sample = buffer.sample()

# %%
# The sample is flat, with one slice after the other. ``"is_init"`` marks the first row of each
# slice, even in the middle of an episode. At such a row the loss starts from the hidden state
# stored in it (the :term:`stored state`), not from zeros.

starts = sample["is_init"].squeeze(-1)
same_trajectory = sample[TRAJ_KEY][1:] == sample[TRAJ_KEY][:-1]
restarted = sample[STATE_KEY][starts].flatten(1).ne(0).any(-1)
assert starts.sum() == N_SLICES
assert same_trajectory[~starts[1:]].all()
assert restarted.any()
print(
    f"{len(sample)} rows, {starts.sum()} slices, {restarted.sum()} start in mid-episode"
)

# %%
# .. _sequence-checks:
#
# Two checks before you train
# ---------------------------
#
# .. redirect-from:: tutorials/recurrent/sequence_training.html#from-slices-to-the-loss
#
# The collector called the GRU step by step. The loss runs it over each slice at once, so that
# gradients flow back through time. For that, the ``forward`` of a loss module, here
# :class:`~torchrl.objectives.ClipPPOLoss`, switches :term:`recurrent mode` on. Before the first
# update, check two numbers on one sample:
#
# * ``max_ratio``, the largest ratio of new to old probability, must be one up to rounding, because
#   no weight has changed yet;
# * the *reach*, the number of rows that the gradient reaches, must be the number of all rows. To
#   measure it, set the advantage to zero except in the last row of each slice, and count the rows
#   whose observation gets a gradient.
#
# The argument ``mistake`` is for the end of the lesson; here it is ``None``.


def losses_of(loss_module, sample, mistake=None):
    """What the loss module returns, after a mistake or none."""
    if mistake == "all-False is_init":
        sample["is_init"] = torch.zeros_like(sample["is_init"])
    if mistake == "no recurrent mode":
        return ClipPPOLoss.forward.__wrapped__(loss_module, sample)
    return loss_module(sample)


def check(loss_module, sample, mistake=None):
    """Largest ratio, rows that the gradient reaches, rows."""
    slice_ends = sample["is_init"].squeeze(-1).roll(-1)
    max_ratio = losses_of(loss_module, sample.clone(), mistake)["max_ratio"].item()

    sample = sample.clone()
    observation = sample["observation"].requires_grad_()
    sample["advantage"] = sample["advantage"] * slice_ends.unsqueeze(-1)
    loss = losses_of(loss_module, sample, mistake)["loss_objective"]
    (gradient,) = torch.autograd.grad(loss, observation)
    return max_ratio, int(gradient.ne(0).any(-1).sum()), len(sample)


# %%
# .. fold:: The loss module, and a sample of the second batch


def first_sample(mistake=None):
    """Before any update."""
    torch.manual_seed(0)
    features, policy = make_policy()
    env = make_env(features, seed=0, primer=mistake != "no primer")
    loss_module, gae = make_loss(policy)
    collector = make_collector(env, policy, n_batches=2)
    *_, batch = (data.clone() for data in collector)
    collector.shutdown()
    with torch.no_grad():
        gae(batch)
    buffer = make_buffer()
    buffer.extend(batch.reshape(-1))
    torch.manual_seed(0)
    return loss_module, buffer.sample()


# %%

loss_module, sample = first_sample()
max_ratio, reach, n_rows = check(loss_module, sample)
print(f"max_ratio {max_ratio:.3f}, reach {reach} of {n_rows} rows")
assert abs(max_ratio - 1) < RATIO_TOLERANCE
assert reach == n_rows

# %%
# Training
# --------
#
# This is the usual loop of PPO. It empties the buffer before each batch, because PPO learns
# on-policy.


def update(loss_module, optimizer, sample, mistake=None):
    """One step of the optimizer; the loss before it."""
    losses = losses_of(loss_module, sample, mistake)
    loss = losses["loss_objective"] + CRITIC_WEIGHT * losses["loss_critic"]
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(loss_module.parameters(), MAX_GRADIENT_NORM)
    optimizer.step()
    return loss.item()


def train(seed, memory=True, mistake=None):
    """Mean return of the episodes that ended last, at each batch."""
    torch.manual_seed(seed)
    features, policy = make_policy(memory)
    env = make_env(features, seed, primer=mistake != "no primer")
    loss_module, gae = make_loss(policy)
    optimizer = torch.optim.Adam(loss_module.parameters(), lr=LEARNING_RATE)
    buffer = make_buffer()
    collector = make_collector(env, policy, N_BATCHES)
    returns, curve = torch.zeros(0), []
    for batch in collector:
        ended = batch["next", "done"].squeeze(-1).T
        steps = batch["next", "step"].squeeze(-1).T[ended]  # the reward is one per step
        returns = torch.cat([returns, steps.cpu()])[-N_ENVS:]
        curve.append(returns.mean().item())

        with torch.no_grad():
            gae(batch)  # on the batch as collected
        buffer.empty()
        buffer.extend(batch.reshape(-1))
        for _ in range(UPDATES_PER_BATCH):
            update(loss_module, optimizer, buffer.sample(), mistake)
    collector.shutdown()
    return curve


# %%
# Before you run the loop, overfit *one* sample: repeated updates must lower its loss. In the loop
# itself, the loss of PPO need not fall from batch to batch.

optimizer = torch.optim.Adam(loss_module.parameters(), lr=LEARNING_RATE)
losses = [update(loss_module, optimizer, sample) for _ in range(30)]
assert losses[-1] < 0.5 * losses[0]
print(f"loss of one sample: first {losses[0]:.2f}, last {losses[-1]:.2f}")

# %%
# Then train with memory and without, on each seed:

with_memory = torch.tensor([train(seed) for seed in SEEDS])
without = torch.tensor([train(seed, memory=False) for seed in SEEDS])
last, plateau = with_memory[:, -1], without[:, -1]

assert last.min() > plateau.max()
for name, end in ("with memory", last), ("memoryless", plateau):
    low, mean, high = end.min(), end.mean(), end.max()
    print(f"{name:12} last return {mean:4.0f}, from {low:.0f} to {high:.0f}")

# %%
# .. fold:: Draw the curves, a thin line for each seed

figure, axes = plt.subplots(figsize=(5.4, 4), layout="constrained")
frames = torch.arange(1, N_BATCHES + 1) * FRAMES_PER_BATCH
for curves, color, name in [
    (with_memory, "C0", "with memory"),
    (without, "C1", "memoryless"),
]:
    axes.plot(frames, curves.T, color=color, lw=0.8, alpha=0.6)
    axes.plot(frames, curves.mean(0), color=color, lw=3)
    axes.text(frames[-1], curves[:, -1].mean(), f"  {name}", color=color, va="center")
axes.set_title("CartPole without velocities: memory pays")
axes.set_xlabel("frames")
axes.set_ylabel("return of an episode [reward]")
axes.set_ylim(bottom=0)
figure.set_label(
    "Mean return of an episode while training. Both policies improve at first; with memory it "
    f"rises to {last.mean():.0f} steps, without memory it stays at {plateau.mean():.0f}, "
    f"and the worst of {len(SEEDS)} seeds with memory ends above the best without."
)
plt.show()

# %%
# The :term:`memoryless policy` stays on a plateau that the GRU policy leaves. On your own task,
# train the policy without memory first, so that you have a baseline.
#
# Three silent mistakes
# ---------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    With each of these mistakes, training runs to the end without an error. ``max_ratio`` reveals
#    each of them before the first update.
#
# **No primer.** The module finds no hidden state and starts from zeros at every step. The loss
# still runs over whole slices, with memory. So the policy that you train is not the one that
# collects.
#
# **All-False is_init in the loss.** Without the marks, the loss treats the sample as one long
# sequence. The hidden state at the end of a slice runs into the next slice, which can come from
# anywhere in the data.
#
# **No recurrent mode.** A plain function that you write as a loss does not switch the mode on. Here
# ``__wrapped__``, the ``forward`` without the switch, takes its place. The GRU treats each row as a
# single step that starts from the stored state, and zeroes that state where ``is_init`` marks the
# start of a slice.
#
# .. fold:: Check and train with each mistake

MISTAKES = ["no primer", "all-False is_init", "no recurrent mode"]
print(f"{'mistake':18} max_ratio  reach [rows]  last return")
for mistake in [None, *MISTAKES]:
    if mistake is None:
        ratio, rows, final = max_ratio, n_rows, last[0]
    else:
        ratio, reach, rows = check(*first_sample(mistake), mistake)
        final = train(SEEDS[0], mistake=mistake)[-1]
    print(
        f"{mistake or 'none':18} {ratio:9.2f}  {f'{reach}/{rows}':>12}  {final:11.0f}"
    )
    if mistake is not None:
        assert ratio > 1 + 2 * RATIO_TOLERANCE, mistake
    if mistake == "no primer":
        assert final < min(1.5 * plateau.max(), last.min())
    elif mistake is not None:
        assert plateau.max() < final < last.mean(), mistake

# %%
# In these runs with one seed, the return stays on the plateau without the primer. The other two
# mistakes cost part of the return, as if the policy learned slowly. Without recurrent mode, the
# gradient of a row reaches no earlier row, so nothing trains the GRU to remember over several
# steps.
#
# If the environment never sets ``is_init`` to true, nothing changes *in this setup*: the sampler
# writes its own marks, and the primer has set the states to zeros. Missing marks do harm if a loss
# gets the batch without a sampler in between. :claim:`sampler-marks-without-tracker`
#
# Where this stops being true
# ---------------------------
#
# .. redirect-from:: tutorials/recurrent/sequence_training.html#conclusion
#
# This lesson discards each batch after a few updates, so the weights have changed little since the
# states in it were stored. In a large replay buffer stored states become stale: see
# :term:`burn-in`.
#
# Further reading
# ---------------
#
# * :doc:`/reference/recurrent_state_lifecycle`, who writes the hidden state, and when
# * :doc:`/tutorials/recurrent/backends`, other ways to run the same GRU
# * :doc:`/reference/collectors_replay`, more about slices
# * `Recurrent modules in the TorchRL documentation
#   <https://docs.pytorch.org/rl/0.14/reference/modules_rnn.html>`__
# * `Recurrent experience replay in distributed reinforcement learning
#   <https://openreview.net/forum?id=r1lyTjAqYX>`__, on stored states and burn-in
# * `Asymmetric actor critic <https://arxiv.org/abs/1710.06542>`__, on critics that see more
