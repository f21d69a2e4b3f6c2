"""
Sequence training
=================

A policy that cannot see velocities has to remember. This lesson trains one, from the collector
over the buffer and its slices to the loss, until it clearly beats the same policy without memory.
Then it makes three mistakes on purpose. None of them raises an error.

After it you can

* wire a recurrent policy so that its :term:`hidden state` is carried, stored and restarted where
  it should be;
* train it on slices with :class:`~torchrl.data.SliceSampler` and
  :class:`~torchrl.objectives.ClipPPOLoss`;
* find a broken wiring before you train, with two numbers that cost one batch.

You should know PPO. You need not know anything about recurrent policies in TorchRL.

**Cost.** Less than a minute on one CPU core: thirteen short trainings. Every number is printed by
the run.

**Markers.** A box titled *Wrong on purpose* announces code that does the wrong thing and raises
nothing. The cell measures what it costs, and asserts it.

The life of a hidden state, step by step, is the subject of
:doc:`/reference/recurrent_state_lifecycle`. The words are in the
:doc:`glossary </reference/glossary>`.
"""

# %%
# Setup
# -----

import logging
import math

import gymnasium as gym
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

# %%
# All sizes stand here. The lesson is sized for a CPU; ``DEVICE`` may also be ``"cuda"``.

DEVICE = "cpu"
SEEDS = range(5)

N_ENVS = 64
STEPS_PER_BATCH = 32
N_BATCHES = 12
TIME_LIMIT_STEPS = 200

SLICE_STEPS = 16
N_SLICES = 16
UPDATES_PER_BATCH = 8

HIDDEN_UNITS = 16
LEARNING_RATE = 1e-2
GAMMA, LAMBDA = 0.98, 0.95
RATIO_TOLERANCE = 5e-3
CLIP = 0.4
CRITIC_WEIGHT = 0.05
MAX_GRADIENT_NORM = 1.0
OBSERVATION_SCALE = [1.0, 40.0]

FRAMES_PER_BATCH = N_ENVS * STEPS_PER_BATCH
TRAJ_KEY = ("collector", "traj_ids")

torch.set_num_threads(1)
logging.getLogger("torchrl").setLevel("ERROR")  # it announces each storage


def print_table(header, rows):
    """One aligned table: text to the left, numbers to the right."""
    table = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *table, strict=True)]
    for row in (header, ["-" * width for width in widths], *table):
        first, *rest = zip(row, widths, strict=True)
        cells = [f"{first[0]:<{first[1]}}", *(f"{text:>{w}}" for text, w in rest)]
        print("  ".join(cells).rstrip())


# %%
# CartPole without velocities
# ---------------------------
#
# The state of CartPole is position, velocity, angle, angular velocity. The policy gets positions
# only. Whether the pole is falling or rising is then a question about the past.
#
# For speed, one environment holds all carts and steps them together. It writes the whole state
# under ``"state"``, which the policy does not read, and what the policy sees under
# ``"observation"``: position and angle. There the angle is multiplied, so that the difference
# between two steps is not lost in the network's initial weights.

GRAVITY, CART_KG, POLE_KG, HALF_POLE_M = 9.8, 1.0, 0.1, 0.5
FORCE_N, STEP_S, MAX_X_M, MAX_ANGLE = 10.0, 0.02, 2.4, math.radians(12)


class CartPoles(EnvBase):
    """Many CartPoles, whose observation is position and angle."""

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
# The dynamics and the ends of the episodes are those of Gymnasium's CartPole, with a shorter time
# limit:

rollout = CartPoles(4, seed=0).rollout(40, break_when_any_done=False).reshape(-1).cpu()
reference = gym.make("CartPole-v1").unwrapped
reference.reset()
for row in rollout:
    reference.state = tuple(row["state"].tolist())
    reference.steps_beyond_terminated = None
    state, _, terminated, *_ = reference.step(int(row["action"]))
    torch.testing.assert_close(
        row["next", "state"], torch.from_numpy(state), rtol=0, atol=1e-5
    )
    assert terminated == row["next", "terminated"].item()
assert rollout["next", "done"].any()
print(f"{len(rollout)} steps agree with Gymnasium")

# %%
# The agent
# ---------
#
# The policy is one :class:`~torchrl.modules.GRUModule` and a linear head. The module reads its
# hidden state under one key and writes the new one under ``("next", ...)`` with the same name, as
# an environment does with an observation. The collector then makes the next value the current one.
#
# The :term:`memoryless policy` is the same GRU, but it starts from zeros at every step. It has the
# same parameters with the same initial values.
#
# The critic sees the whole state. It is needed in training only, and there a simulator can tell it
# everything. So the critic needs no memory, and :class:`~torchrl.objectives.value.GAE` works as it
# always does. What changes with a recurrent critic is in :ref:`recurrent-advantages`.

STATE_KEY = "recurrent_state"


class Memoryless(nn.Module):
    """A GRU that starts from zeros at every step."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, HIDDEN_UNITS, batch_first=True)

    def forward(self, observation):
        one_step = observation.reshape(-1, 1, 2)
        return self.gru(one_step)[0].reshape(*observation.shape[:-1], HIDDEN_UNITS)


def make_policy(memory=True):
    """The part with or without memory, and the policy around it."""
    if memory:
        features = GRUModule(
            2,
            HIDDEN_UNITS,
            in_keys=["observation", STATE_KEY],
            out_keys=["features", ("next", STATE_KEY)],
        )
    else:
        features = TensorDictModule(Memoryless(), ["observation"], ["features"])
    head = TensorDictModule(nn.Linear(HIDDEN_UNITS, 2), ["features"], ["logits"])
    policy = ProbabilisticActor(
        TensorDictSequential(features, head),
        in_keys=["logits"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    return features.to(DEVICE), policy.to(DEVICE)


def make_critic():
    net = MLP(4, 1, num_cells=[32], activation_class=nn.Tanh, device=DEVICE)
    return ValueOperator(net, in_keys=["state"])


# %%
# The environment gets two transforms. :class:`~torchrl.envs.transforms.InitTracker` writes
# ``"is_init"``, true on the first step of an episode. The module makes its own
# :class:`~torchrl.envs.transforms.TensorDictPrimer`, which writes a hidden state of zeros at each
# reset. Only with the primer does the environment know the key and carry it from step to step.


def make_env(features, seed, primer=True):
    env = TransformedEnv(CartPoles(N_ENVS, seed), InitTracker())
    if isinstance(features, GRUModule) and primer:
        env.append_transform(features.make_tensordict_primer())
    return env


def make_collector(env, policy, n_batches=1):
    return Collector(
        env,
        policy,
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=n_batches * FRAMES_PER_BATCH,
        auto_register_policy_transforms=False,  # make_env has done it
    )


# %%
# One batch
# ---------
#
# **Claim.** Each row of a batch stores the hidden state that the policy read at that step. It is
# zero where an episode starts, and only there. Everywhere else it is what the step before wrote.

torch.manual_seed(0)
features, policy = make_policy()
collector = make_collector(make_env(features, seed=0), policy, n_batches=2)
first, batch = (data.clone() for data in collector)
collector.shutdown()

assert STATE_KEY in batch
is_init = batch["is_init"].squeeze(-1)
done = batch["next", "done"].squeeze(-1)
read, written = batch[STATE_KEY], batch["next", STATE_KEY]

assert batch.shape == (N_ENVS, STEPS_PER_BATCH)
assert done[:, :-1].any()
assert torch.equal(read.flatten(2).eq(0).all(-1), is_init)
assert torch.equal(is_init[:, 1:], done[:, :-1])
assert torch.equal(read[:, 1:][~is_init[:, 1:]], written[:, :-1][~is_init[:, 1:]])
carried = ~first["next", "done"][:, -1, 0]
assert torch.equal(read[carried, 0], first["next", STATE_KEY][carried, -1])
print_table(
    ["second batch", "rows"],
    [
        ["all", batch.numel()],
        ["first step of an episode", int(is_init.sum())],
        ["done in the middle of the batch", int(done[:, :-1].sum())],
        ["episodes cut by the start of the batch", int(carried.sum())],
    ],
)

# %%
# **Reading.** The start of a batch cuts episodes, but not the memory. The first row of the second
# batch reads what the last row of the first batch wrote.
#
# From rows to slices
# -------------------
#
# **Claim.** :class:`~torchrl.data.SliceSampler` draws slices that lie inside one trajectory each,
# and lays them one behind the other in a flat sample. It marks the first row of each by
# ``"is_init"``, also in the middle of an episode. There the loss restarts from the hidden state
# that the row stored (the :term:`stored state`), not from zeros.
#
# Where a trajectory is shorter than ``slice_len``, so is its slice. With ``strict_length=True``,
# the default, it would be left out: those are the episodes that a bad policy has.


def make_buffer():
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(FRAMES_PER_BATCH, device=DEVICE),
        sampler=SliceSampler(
            slice_len=SLICE_STEPS, traj_key=TRAJ_KEY, strict_length=False
        ),
        batch_size=N_SLICES * SLICE_STEPS,
    )


buffer = make_buffer()
buffer.extend(batch.reshape(-1))
sample = buffer.sample()

starts = sample["is_init"].squeeze(-1)
same_trajectory = sample[TRAJ_KEY][1:] == sample[TRAJ_KEY][:-1]
first_rows = starts.nonzero().squeeze(-1)
lengths = first_rows.diff(append=first_rows.new_tensor([len(sample)]))
restarted = sample[STATE_KEY][starts].flatten(1).ne(0).any(-1)
_, traj_lengths = batch[TRAJ_KEY].unique(return_counts=True)
n_short = int((traj_lengths < SLICE_STEPS).sum())

assert starts[0]
assert starts.sum() == N_SLICES
assert same_trajectory[~starts[1:]].all()
assert lengths.min() < lengths.max() == SLICE_STEPS
assert restarted.any()
assert n_short > 0
print_table(
    ["one sample", "number"],
    [
        ["rows", len(sample)],
        ["slices", int(starts.sum())],
        ["slices that start in the middle of an episode", int(restarted.sum())],
        [
            "trajectories that strict_length would drop",
            f"{n_short}/{len(traj_lengths)}",
        ],
    ],
)

# %%
# From slices to the loss
# -----------------------
#
# **Claim.** Before the first update the loss finds the log-probabilities that the collector wrote.
# It gets them another way: the collector called the GRU step by step, the loss runs it over each
# slice at once, so that gradients flow back through time.
#
# :class:`~torchrl.objectives.ClipPPOLoss` switches :term:`recurrent mode` on by itself, as all loss
# modules do. The advantage comes first, on the batch as collected. A slice is too short for it.
#
# The function below takes the name of a mistake. Ignore it for now.


def make_loss(policy):
    critic = make_critic()
    gae = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=critic, average_gae=True)
    loss_module = ClipPPOLoss(policy, critic, clip_epsilon=CLIP, entropy_bonus=False)
    return loss_module, gae


def losses_of(loss_module, sample, mistake=None):
    """What the loss module returns, after a mistake or none."""
    if mistake == "all-False is_init":
        sample["is_init"] = torch.zeros_like(sample["is_init"])
    if mistake == "no recurrent mode":
        return ClipPPOLoss.forward.__wrapped__(loss_module, sample)
    return loss_module(sample)


# %%
# Two checks of the claim cost one sample each. ``max_ratio`` is the largest ratio of new to old
# probability, and before the first update it is one. The *reach* counts the rows whose observation
# gets a gradient when only the last row of each slice has an advantage. With memory it is all rows.


def first_sample(mistake=None):
    """The loss module, and a sample of the second batch, before any update."""
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


def check(mistake=None):
    """Largest ratio, rows that the gradient reaches, rows."""
    loss_module, sample = first_sample(mistake)
    slice_ends = sample["is_init"].squeeze(-1).roll(-1)
    max_ratio = losses_of(loss_module, sample.clone(), mistake)["max_ratio"].item()

    observation = sample["observation"].requires_grad_()
    sample["advantage"] = sample["advantage"] * slice_ends.unsqueeze(-1)
    loss = losses_of(loss_module, sample, mistake)["loss_objective"]
    (gradient,) = torch.autograd.grad(loss, observation)
    reach = int(gradient.ne(0).any(-1).sum())
    return max_ratio, reach, len(sample)


max_ratio, reach, n_rows = check()
assert abs(max_ratio - 1) < RATIO_TOLERANCE
assert reach == n_rows
print(f"max_ratio {max_ratio:.3f}, reach {reach} of {n_rows} rows")

# %%
# The third check is the usual one: updates on one sample lower its loss.


def update(loss_module, optimizer, sample, mistake=None):
    """One step of the optimizer; the loss before it."""
    losses = losses_of(loss_module, sample, mistake)
    loss = losses["loss_objective"] + CRITIC_WEIGHT * losses["loss_critic"]
    assert loss.isfinite()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(loss_module.parameters(), MAX_GRADIENT_NORM)
    optimizer.step()
    return loss.item()


loss_module, sample = first_sample()
optimizer = torch.optim.Adam(loss_module.parameters(), lr=LEARNING_RATE)
losses = [update(loss_module, optimizer, sample) for _ in range(30)]
assert losses[-1] < 0.5 * losses[0]
print(f"loss of one sample: first {losses[0]:.2f}, last {losses[-1]:.2f}")

# %%
# Training
# --------
#
# **Claim.** With memory the return rises far above what the memoryless policy reaches.
#
# The loop is that of PPO. The buffer is emptied for each batch, because PPO learns on-policy. The
# reward is one per step, so the return of an episode is its length. The curve is the mean over the
# episodes that ended last.


def train(seed, memory=True, mistake=None):
    """Mean return of the last episodes, at each batch."""
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
        steps = batch["next", "step"].squeeze(-1).T[ended]
        returns = torch.cat([returns, steps.cpu()])[-N_ENVS:]
        curve.append(returns.mean().item())

        with torch.no_grad():
            gae(batch)
        buffer.empty()
        buffer.extend(batch.reshape(-1))
        for _ in range(UPDATES_PER_BATCH):
            update(loss_module, optimizer, buffer.sample(), mistake)
    collector.shutdown()
    return curve


# %%
# Five seeds, with memory and without, and nothing else differs.

curves = {True: [], False: []}
for memory, seed_curves in curves.items():
    for seed in SEEDS:
        seed_curves.append(train(seed, memory))

with_memory, without = (torch.tensor(curves[memory]) for memory in (True, False))
first, last = with_memory[:, 0], with_memory[:, -1]

assert (last > 3 * first).all()
assert last.min() > without[:, -1].max()
assert last.mean() > 2 * without[:, -1].mean()
print_table(
    ["last batch, return", "lowest seed", "mean", "highest seed"],
    [
        [name, *(f"{value:.0f}" for value in (end.min(), end.mean(), end.max()))]
        for name, end in [
            ("with memory", last),
            ("memoryless", without[:, -1]),
        ]
    ],
)

# %%
# The curves: one thin line per seed, and their mean.

figure, axes = plt.subplots(figsize=(5.4, 4), layout="constrained")
frames = torch.arange(1, N_BATCHES + 1) * FRAMES_PER_BATCH / 1000
for curve_of_seed, color, name in [
    (with_memory, "C0", "with memory"),
    (without, "C1", "memoryless"),
]:
    axes.plot(frames, curve_of_seed.T, color=color, lw=0.8, alpha=0.6)
    axes.plot(frames, curve_of_seed.mean(0), color=color, lw=3)
    axes.text(frames[-1], curve_of_seed[:, -1].mean(), f"  {name}", va="center")
axes.set_title("CartPole without velocities: memory pays")
axes.set_xlabel("frames [thousands]")
axes.set_ylabel("return of an episode [steps]")
axes.set_ylim(bottom=0)
figure.set_label(
    "Mean return of an episode while training. Both policies improve at first; with memory it "
    f"rises to {last.mean():.0f} steps, without memory it stays at {without[:, -1].mean():.0f}, "
    f"and the worst of {len(SEEDS)} seeds with memory ends above the best without."
)
plt.show()

# %%
# **Reading.** The curves rise together at first: both policies learn to push against the tilt. Then
# the memoryless one stays where it is, on every seed, and the other one goes on. A healthy run
# looks like this:
#
# * before the first update ``max_ratio`` is one and the reach is all rows;
# * the loss is finite, and falls on *one* sample. From batch to batch it need not fall;
# * the return leaves the plateau of the memoryless policy. Train that one first, or you do not know
#   what memory is worth.
#
# Three silent mistakes
# ---------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Each mistake runs to the end without an error. The two checks find it before the first update.
#
# **No primer.** ``InitTracker`` alone is enough for the module to run. The module finds no hidden
# state and starts from zeros at every step. The loss still runs over whole slices, with memory. The
# policy that acts is not the one that learns.
#
# **All-False is_init in the loss.** Without the marks the sample is one long sequence. The memory
# of each slice runs into the next one, which comes from elsewhere.
#
# **No recurrent mode.** A loss module switches it on, a loss function of your own does not. To show
# the difference, ``losses_of`` calls the method without the wrapper that switches the mode:
# ``__wrapped__``. The GRU then takes each row for a single step, from its stored state, and zeroes
# that state where ``is_init`` marks a slice.

MISTAKES = ["no primer", "all-False is_init", "no recurrent mode"]
checks = {None: (max_ratio, reach, n_rows)}
for mistake in MISTAKES:
    checks[mistake] = check(mistake)
    assert checks[mistake][0] > 1 + 2 * RATIO_TOLERANCE, mistake
reach, n_rows = checks["no recurrent mode"][1:]
assert reach == N_SLICES < n_rows

finals = {mistake: train(SEEDS[0], mistake=mistake)[-1] for mistake in MISTAKES}
finals[None] = last[0].item()
plateau = without[:, -1].max()
assert finals["no primer"] < min(1.5 * plateau, last.min())
for mistake in MISTAKES[1:]:
    assert plateau < finals[mistake] < last.mean(), mistake
print_table(
    ["mistake", "first max_ratio", "reach [rows]", "last return"],
    [
        [mistake or "none", f"{ratio:.2f}", f"{reach}/{rows}", f"{finals[mistake]:.0f}"]
        for mistake, (ratio, reach, rows) in checks.items()
    ],
)

# %%
# **Reading.** Without the primer, memory is worth nothing: the return stays on the plateau. The
# other two hide. They cost part of the return, but it leaves the plateau and looks like a slow
# learner's. This task forgives them: a velocity is the difference of two observations, and the
# stored state brings the last one along. The checks do not forgive. Without recurrent mode the
# gradient reaches one row per slice, so nothing teaches the GRU to keep anything for longer.
#
# **Where all-False is_init does nothing.** The sampler sets its marks whatever the environment
# wrote, and the primer has set the state to zeros already. So a tracker that is never true changes
# nothing *here*. It does with ``init_key=None``, or where a loss gets the batch without a sampler.

never = batch.clone()
never["is_init"] = torch.zeros_like(never["is_init"])
samples = []
for stored in (batch, never):
    buffer = make_buffer()
    buffer.extend(stored.reshape(-1))
    torch.manual_seed(0)
    samples.append(buffer.sample())
assert not never["is_init"].any()
assert (samples[0] == samples[1]).all()
print("with SliceSampler the marks of the environment do not matter")

# %%
# Where this stops being true
# ---------------------------
#
# * The batch is thrown away after a few updates, so the stored states are nearly those that the
#   present weights would write. In a large replay buffer they grow stale: see :term:`burn-in`.
# * The critic has no memory. One that has needs recurrent mode around GAE as well, which does not
#   switch it on: see :ref:`recurrent-advantages`.
#
# Conclusion
# ----------
#
# Give the environment an ``InitTracker`` and the module's primer, store what comes, cut it with a
# ``SliceSampler``, and let a loss module read it. Before you train, look at ``max_ratio`` and at
# the reach. The return finds one of three mistakes, these two numbers find all three.
#
# Further reading
# ---------------
#
# * :doc:`/reference/recurrent_state_lifecycle`, who writes the hidden state, and when
# * :ref:`recurrent-wiring`, what each omission does, with other environments too
# * :doc:`/tutorials/recurrent/backends`, other ways to run the same GRU
# * :doc:`/reference/collectors_replay`, more about slices
# * `Recurrent modules in the TorchRL documentation
#   <https://docs.pytorch.org/rl/0.14/reference/modules_rnn.html>`__
# * `Recurrent experience replay in distributed reinforcement learning
#   <https://openreview.net/forum?id=r1lyTjAqYX>`__, on stored states and burn-in
# * `Asymmetric actor critic <https://arxiv.org/abs/1710.06542>`__, on critics that see more
