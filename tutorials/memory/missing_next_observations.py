"""
Missing next observations
=========================

A batch of float observations that is collected with ``compact_obs`` and rebuilt with
``step_count_key`` holds NaN where the next observation is unknown. If you call GAE or a TD
estimator on it, the advantages are finite. The losses of DQN and discrete SAC become NaN, unless
you first drop the rows that they cannot use.
"""

# %%
# .. fold:: Imports, seed, device and log level

from unittest import mock

import torch
import torchrl
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import (
    LazyTensorStorage,
    RandomSampler,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import NextStateReconstructor
from torchrl.modules import (
    MLP,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, DiscreteSACLoss, DQNLoss
from torchrl.objectives.value import (
    GAE,
    TD0Estimator,
    TDLambdaEstimator,
    ValueEstimatorBase,
)

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEED = 0
torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage

# %%
# For an off-policy loss on single transitions, keep only the rows that this function returns:

NEXT_OBS = ("next", "observation")


def usable(sample):
    """The rows of *sample* that a loss with a bootstrapped target may use."""
    missing = sample[NEXT_OBS].isnan().any(-1)
    terminated = sample["next", "terminated"].squeeze(-1)
    sample = sample[~missing | terminated]
    return sample.set(NEXT_OBS, sample[NEXT_OBS].nan_to_num(0.0))


# %%
# It keeps the rows whose next observation is known, and the :term:`terminated` rows. The target of
# a terminated row does not use the value of the next observation, so the function fills in zeros
# there. Do not use it before GAE, which needs the row that ends a slice.
#
# .. list-table:: What a missing next observation does
#    :header-rows: 1
#
#    * - You call
#      - You get
#      - Do this
#    * - GAE, TD(0), TD(lambda) on the batch
#      - finite advantages, biased at truncations and at the ends of slices
#      - measure :ref:`the bias <memory-bias>`
#    * - ``value_estimate()`` of TD(0), TD(lambda)
#      - NaN
#      - TD(0): ``usable(sample)``. TD(lambda) sums over rows: keep both observations
#    * - a loss that calls it with TD(0): :class:`~torchrl.objectives.DQNLoss`,
#        :class:`~torchrl.objectives.DiscreteSACLoss`
#      - a NaN loss
#      - ``usable(sample)``
#    * - :class:`~torchrl.objectives.ClipPPOLoss` with ``clip_value``, after GAE
#      - a ``KeyError``
#      - :ref:`call the critic on the batch <memory-state-value>`
#    * - integer observations
#      - a ``TypeError``, or a filled frame
#      - :ref:`compare step counts <memory-integers>`
#    * - n-step returns
#      - a wrong next observation, silently
#      - :doc:`keep both observations <n_step_and_truncations>`
#
# Where rows are missing
# ----------------------
#
# :doc:`memory_efficient_rl` introduces ``compact_obs``, which drops next observations, and the
# reconstructor, which rebuilds them. Here you compare a full rollout of CartPole with the compact
# one. A time limit :term:`truncates <truncated>` some trajectories.
#
# .. fold:: Collect both rollouts

N_FRAMES, TIME_LIMIT_STEPS = 200, 12
TRAJ_KEY = ("collector", "traj_ids")


def collect(**options):
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=TIME_LIMIT_STEPS))
    env.set_seed(SEED)
    options |= {"frames_per_batch": N_FRAMES, "total_frames": N_FRAMES}
    collector = Collector(env, storing_device=DEVICE, **options)
    torch.manual_seed(SEED)
    try:
        return next(iter(collector))
    finally:
        collector.shutdown()


full, compact = collect(), collect(compact_obs=True)

# %%
# The kinds of rows, where their next observation is, and whether a bootstrapped target needs it:

done = full["next", "done"].squeeze(-1)
terminated = full["next", "terminated"].squeeze(-1)
last_row = torch.arange(N_FRAMES, device=DEVICE) == N_FRAMES - 1
trajectory_end = done | last_row
for rows, kind in (
    (~trajectory_end, "inside a trajectory: the next row has it, the target needs it"),
    (terminated, "terminated: gone, not needed"),
    (done & ~terminated, "truncated by the limit: gone, needed"),
    (last_row & ~done, "end of the batch: not here yet, needed"),
):
    print(f"{int(rows.sum()):4} rows  {kind}")

# %%
# On the whole rollout, the reconstructor leaves NaN at these ends only. A sampled batch has more
# NaN: each slice has an end, and with a random sampler the next step is hardly ever in the next
# row.
#
# .. fold:: Sample with both samplers, with and without step_count_key

BATCH_FRAMES, SLICE_FRAMES, N_BATCHES = 64, 4, 16
rebuild = NextStateReconstructor(step_count_key="step_count")
rebuilt = rebuild(compact.clone())
assert torch.equal(rebuilt[NEXT_OBS].isnan().any(-1), trajectory_end)


def slices():
    return SliceSampler(slice_len=SLICE_FRAMES, traj_key=TRAJ_KEY)


def sample_batches(sampler, step_count_key):
    """Batches, and masks of their rows: next observation missing, and wrong."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(N_FRAMES, device=DEVICE),
        sampler=sampler,
        transform=NextStateReconstructor(step_count_key=step_count_key),
        batch_size=BATCH_FRAMES,
    )
    buffer.extend(compact.clone())
    torch.manual_seed(SEED)
    samples = torch.cat([buffer.sample() for _ in range(N_BATCHES)])
    missing = samples[NEXT_OBS].isnan().any(-1)
    wanted = full[NEXT_OBS][samples["index"].flatten()]
    return samples, missing, (samples[NEXT_OBS] != wanted).any(-1) & ~missing


# %%
# With the default ``step_count_key=None``, some rows are wrong, and nothing marks them:

audits = {}
print("sampler  step_count_key   right  missing  wrong")
for sampler in (slices, RandomSampler):
    for key in (None, "step_count"):
        name = "slices" if sampler is slices else "random"
        audits[name, key] = samples, nan, bad = sample_batches(sampler(), key)
        n_right = int((~nan & ~bad).sum())
        counts = f"{n_right:5} {int(nan.sum()):8} {int(bad.sum()):6}"
        print(f"{name:8} {key!s:15} {counts}")
        assert bad.any() == (key is None)

# %%
# With ``step_count_key``, these rows are NaN. So is the last row of a slice, unless the next slice
# happens to continue it. With a random sampler, almost nothing can be rebuilt, and where two rows
# of one trajectory happen to be neighbors, most of what the default fills in is wrong.
#
# NaN safety
# ----------
#
# .. redirect-from:: tutorials/memory/memory_efficient_rl.html#nan-safety
#
# When you call a :term:`value estimator` on a batch, its :term:`sanitizer`
# (:source:`torchrl.objectives.value.advantages.ValueEstimatorBase._sanitize_next_obs_nan`) uses the
# current observation where the next one is NaN. Without it, one NaN would spread: zero times NaN is
# NaN, so a mask does not remove it, and GAE sums backward over time, so by default the NaN would
# reach every row before it. With ``vectorized=True``, it would stay within its trajectory.
#
# Switch the sanitizer off to see what it does:
#
# .. fold:: Networks, and a way to switch the sanitizer off


def mlp(out_features):
    torch.manual_seed(SEED)
    return MLP(in_features=4, out_features=out_features, num_cells=[64], device=DEVICE)


critic = ValueOperator(mlp(1), in_keys=["observation"])
no_sanitizer = mock.patch.object(
    ValueEstimatorBase,
    "_sanitize_next_obs_nan",
    staticmethod(lambda data, in_keys: data),
)

# %%
# Count the rows with a NaN advantage and, in the last column, with a NaN value estimate:

settings = {"gamma": 0.99, "value_network": critic}
gae = GAE(lmbda=0.95, **settings)
estimators = {
    "GAE": gae,
    "TD(0)": TD0Estimator(**settings),
    "TD(lambda)": TDLambdaEstimator(lmbda=0.95, **settings),
}
nan_rows = {}
print(f"{'estimator':10} forward  sanitizer off  value_estimate()")
for name, estimator in estimators.items():
    advantages = [estimator(rebuilt.clone())["advantage"]]
    with no_sanitizer:
        advantages.append(estimator(rebuilt.clone())["advantage"])
    advantages.append(estimator.value_estimate(rebuilt.clone()))
    nan_rows[name] = [int(x.isnan().any(-1).sum()) for x in advantages]
    print("{:10} {:7} {:14} {:17}".format(name, *nan_rows[name]))

assert all(row[0] == 0 for row in nan_rows.values())
assert all(row[2] > 0 for name, row in nan_rows.items() if name != "GAE")

# %%
# The sanitizer runs in ``forward``, when you call the estimator. ``value_estimate()`` of GAE calls
# its networks as ``forward`` does, and stays finite. In TD(0) and TD(lambda), ``value_estimate()``
# evaluates the next observation itself and skips the sanitizer.
#
# A finite advantage can still be wrong. At a terminated row, it does not matter which observation
# is used. At a truncated row, the current observation causes :ref:`a bias <memory-bias>`. And the
# sanitizer looks for NaN only: it finds neither a wrong next observation nor a ``fill_value``.
#
# Losses that turn NaN
# --------------------
#
# A loss that calls ``value_estimate()`` of TD(0) inherits the NaN.
# :class:`~torchrl.objectives.DQNLoss` and :class:`~torchrl.objectives.DiscreteSACLoss` do so:
# ``make_value_estimator(gamma=...)`` without an estimator type gives both TD(0). For another loss,
# search its source for ``value_estimate(``. A loss whose policy samples the next action may raise
# earlier, as ``CrossQLoss`` does with a normal distribution.
#
# .. fold:: Both losses, with what they need

spec = GymEnv("CartPole-v1").action_spec.to(DEVICE)
actor = ProbabilisticActor(
    TensorDictModule(mlp(2), in_keys=["observation"], out_keys=["logits"]),
    in_keys=["logits"],
    distribution_class=OneHotCategorical,
    spec=spec,
    return_log_prob=True,
)
dqn_loss = DQNLoss(
    QValueActor(mlp(2), in_keys=["observation"], spec=spec),
    action_space="one-hot",
    delay_value=False,
)
sac_loss = DiscreteSACLoss(
    actor,
    TensorDictModule(mlp(2), in_keys=["observation"], out_keys=["action_value"]),
    action_space="one-hot",
    num_actions=2,
    delay_qvalue=False,
)
for loss_module in (dqn_loss, sac_loss):
    loss_module.make_value_estimator(gamma=0.99)
    assert isinstance(loss_module.value_estimator, TD0Estimator)

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Both losses on rebuilt slices, as they come from the buffer.

sample = audits["slices", "step_count"][0][:BATCH_FRAMES]
loss = dqn_loss(sample.clone())["loss"]
loss.backward()

assert loss.isnan()
assert sac_loss(sample.clone())["loss_qvalue"].isnan()
assert all(p.grad.isnan().any() for p in dqn_loss.parameters())

# %%
# With ``usable``, both losses are finite. If you dropped the terminated rows, too, the loss would
# never see that an episode can end:

good = usable(sample.clone())
assert dqn_loss(good.clone())["loss"].isfinite()
assert sac_loss(good.clone())["loss_qvalue"].isfinite()
missing = sample[NEXT_OBS].isnan().any(-1)
print(f"{len(sample)} rows, {int((~missing).sum())} complete, {len(good)} usable")

# %%
# .. _memory-state-value:
#
# A batch without ``state_value``
# -------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Relying on GAE for ``"state_value"``. If the batch has NaN in its next observations, the
#    sanitizer works on a shallow copy, and GAE writes the state values to that copy. Your batch
#    does not get them, and :class:`~torchrl.objectives.ClipPPOLoss` with ``clip_value`` raises.
#    Without NaN the batch gets them.

assert "state_value" in gae(full.clone())
batch = gae(rebuilt.clone())
assert "state_value" not in batch
assert ("next", "state_value") not in batch

ppo_loss = ClipPPOLoss(actor, critic, clip_value=0.2)
with torch.no_grad():
    batch["action_log_prob"] = actor.get_dist(batch).log_prob(batch["action"])
try:
    ppo_loss(batch)
except KeyError as error:
    assert "state_value" in str(error)
    print("KeyError: the loss asks for state_value")
else:
    raise AssertionError("ClipPPOLoss ran without the state value")

# %%
# Call the critic on the batch yourself:

with torch.no_grad():
    critic(batch)
assert ppo_loss(batch)["loss_critic"].isfinite()

# %%
# .. _memory-integers:
#
# Integer observations have no NaN
# --------------------------------
#
# For integers, the transform raises unless you pass a ``fill_value``. It then fills the missing
# frame with that number, and a NaN check does not find it.

pixels = compact.clone()
pixels["observation"] = (pixels["observation"] * 50 + 100).to(torch.uint8)
try:
    rebuild(pixels.clone())
except TypeError as error:
    assert "pass an explicit integer `fill_value`" in str(error)
    print(type(error).__name__, "without a fill_value")
else:
    raise AssertionError("uint8 observations were rebuilt without a fill_value")

fill = NextStateReconstructor(step_count_key="step_count", fill_value=0)
filled = fill(pixels.clone())[NEXT_OBS]
assert (filled[trajectory_end] == 0).all()
assert torch.equal(
    filled[:-1][~trajectory_end[:-1]], pixels["observation"][1:][~trajectory_end[:-1]]
)

# %%
# Find the missing frames by step count and trajectory id instead: a row is complete if the row
# below continues it. The last row of the batch has no row below, so its next observation is
# missing, too. On the sampled slices, this finds the NaN rows:

steps, ids = sample["step_count"].flatten(), sample[TRAJ_KEY].flatten()
continued = (steps.diff() == 1) & (ids.diff() == 0)
assert torch.equal(~continued, missing[:-1])

# %%
# Where to go on
# --------------
#
# * :doc:`n_step_and_truncations`: how large the bias is, and when to keep both observations
# * :ref:`symptom-off-policy-loss-is-nan`, :ref:`symptom-state-value-missing-on-some-batches`,
#   :ref:`symptom-next-image-is-black`, :ref:`symptom-most-next-observations-nan`: the symptom pages
# * `Time limits in reinforcement learning <https://arxiv.org/abs/1712.00378>`__, on why a truncated
#   trajectory must bootstrap
