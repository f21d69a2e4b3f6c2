"""
Normalize observations across workers
=====================================

Give all workers one ``EnvCreator`` whose environment has a ``VecNormV2``, and put the statistics
into shared memory yourself. Evaluate with a frozen copy, save the statistics with the policy, and
keep raw observations in a replay buffer.
"""

# %%
# .. fold:: Imports, and how the workers start

import multiprocessing
import tempfile
import warnings
from pathlib import Path

import torch
import torchrl
from torchrl.collectors import MultiSyncCollector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import (
    Compose,
    EnvCreator,
    GymEnv,
    ParallelEnv,
    RewardScaling,
    RewardSum,
    StepCounter,
    TransformedEnv,
    VecNorm,
    VecNormV2,
)
from torchrl.modules import MLP, QValueActor

torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage
torch.manual_seed(0)
# This page forks its workers, which is quick; TorchRL's default is "spawn". From Python
# 3.12 on, forking a process that has threads warns.
warnings.filterwarnings("ignore", message=r".*fork\(\) may lead to deadlocks")
start_method = multiprocessing.get_start_method()
multiprocessing.set_start_method("fork", force=True)

# %%
# Copy this with the setup folded above. MountainCar's observation is a position near -0.5 and a
# velocity near zero.

N_WORKERS, BATCH_FRAMES, MAX_STEPS = 2, 200, 20


def make_env(decay=1.0):  # not the default, see below
    norm = VecNormV2(["observation"], ["normed"], decay=decay)  # the raw one stays
    return TransformedEnv(
        GymEnv("MountainCar-v0"), Compose(StepCounter(MAX_STEPS), norm)
    )


def statistics_of(creator):
    """The tensors that all environments of the creator read and update."""
    states = creator.state_dict().items()
    states = [(name, state) for name, state in states if isinstance(state, dict)]
    return {f"{name} {key}": state[key] for name, state in states for key in state}


creator = EnvCreator(make_env)
for tensor in statistics_of(creator).values():  # before the workers start
    tensor.share_memory_().zero_()  # EnvCreator has made a reset and a step, which count

net = MLP(in_features=2, out_features=3, num_cells=[32])
actor = QValueActor(net, in_keys=["normed"], spec=make_env().action_spec)
collector = MultiSyncCollector(
    [creator] * N_WORKERS,
    actor,
    frames_per_batch=BATCH_FRAMES,
    total_frames=2 * BATCH_FRAMES,
    auto_register_policy_transforms=False,  # the policy has no memory
)
collector.set_seed(0)
batches = [batch.clone() for batch in collector]
collector.shutdown()

# %%
# The statistics cover all observations of both workers:

norm = creator().transform[-1]  # of one more environment, in this process
frames = torch.cat(batches, 1).reshape(-1)
first = frames["step_count"].squeeze(-1) == 0
seen = torch.cat([frames["next", "observation"], frames["observation"][first]])
mean, deviation = seen.mean(0), seen.std(0, correction=0)
print(f"{len(frames)} steps, {int(first.sum())} resets in the batches")
apart = (norm.loc["observation"] - mean).abs() / deviation
share = 0.05
assert (apart < share).all()
assert torch.allclose(norm.scale["observation"], deviation, rtol=share)
print(f"mean and deviation are within {share:.0%} of those of the raw observations")

# %%
# The statistics differ a little from those of the batches, because the observations of a few resets
# are in no row. Two runs with one seed can differ: an observation is normalized with
# what all workers have counted before it, and their order varies.
#
# ``decay=1.0`` weighs all observations alike. The default is a moving average that starts at zero.
# ``VecNormV2`` corrects the scale for that only after it has subtracted the square of the mean. If
# the mean is far from zero, the scale is far too large at first.
# :claim:`vecnorm-v2-decay-inflates-scale`
#
# Evaluate
# --------
#
# Take a new frozen copy before each evaluation: a ``VecNormV2`` does not pass later statistics on
# to its copies. ``to_observation_norm()`` gives you an ``ObservationNorm`` with the same numbers.

before = norm.loc["observation"].clone()
eval_env = TransformedEnv(
    GymEnv("MountainCar-v0"), Compose(StepCounter(MAX_STEPS), norm.frozen_copy())
)
rollout = eval_env.rollout(MAX_STEPS, actor)
assert torch.equal(norm.loc["observation"], before)
fixed = norm.to_observation_norm()
torch.testing.assert_close(fixed(rollout.clone())["normed"], rollout["normed"])
print("evaluation leaves the statistics as they are")

# %%
# Save and load
# -------------
#
# The policy has no statistics in its ``state_dict``, so save both. Load the statistics by copying
# into the tensors that the workers share. ``load_state_dict`` of a collector or of a
# ``ParallelEnv`` gives the workers new tensors, which this process does not see.
# :claim:`vecnorm-load-detaches-workers`

with tempfile.TemporaryDirectory(prefix="normalize_") as folder:
    path = Path(folder) / "agent.pt"
    state = {"policy": actor.state_dict(), "statistics": statistics_of(creator)}
    torch.save(state, path)
    saved = torch.load(path)

resumed = EnvCreator(make_env)
for name, tensor in statistics_of(resumed).items():
    tensor.share_memory_().copy_(saved["statistics"][name])
actor.load_state_dict(saved["policy"])
assert torch.equal(resumed().transform[-1].loc["observation"], before)
print("the new creator has the saved statistics")

# %%
# Replay
# ------
#
# A stored row keeps the normalization of the moment when it was collected. ``denorm`` does not
# restore the raw observation, because it uses the current statistics. Store raw observations, and
# normalize each sample with the current statistics, both at the root and under ``next``:

buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(1_000), batch_size=64)
buffer.extend(frames.exclude("normed", ("next", "normed")))


def sample_normed():
    sample, now = buffer.sample(), norm.to_observation_norm()
    for place in (sample, sample["next"]):
        now(place)
    return sample


assert {"normed", "observation"} <= set(sample_normed()["next"].keys())
old, now = batches[0], norm.to_observation_norm()
again = now(old.select("observation").clone())["normed"]
restored = norm.denorm(old.clone())["observation"]
assert (again - old["normed"]).abs().max() > 0.5
assert (restored - old["observation"]).abs().max() > 0.01
print("a stored row is not what the policy would see now")

# %%
# Rewards
# -------
#
# Scale rewards by a constant, so that returns are of the order of one. A ``VecNormV2`` of the
# reward subtracts the mean as well, which changes the task: each step of MountainCar costs 1, and
# the subtraction removes that cost. A ``RewardSum`` before the scaling keeps the score for your log
# (:ref:`symptom-return-is-not-the-score`).

for one in (RewardScaling(loc=0.0, scale=0.01), VecNormV2(["reward"], decay=1.0)):
    env = TransformedEnv(GymEnv("MountainCar-v0"), Compose(RewardSum(), one))
    steps = env.rollout(MAX_STEPS)["next"]
    largest, score = steps["reward"].abs().max(), steps["episode_reward"][-1].item()
    print(f"{type(one).__name__}: rewards up to {largest:.2f}, score {score:.0f}")

# %%
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    An ``EnvCreator`` without shared memory, in workers that fork. Each worker then keeps
#    statistics of its own: :ref:`symptom-workers-normalize-differently`. The same happens with a
#    plain function without ``shared_data``, under any start method. Below, each worker counts 30
#    steps and its resets. An ``EnvCreator`` has counted a reset and a step before the workers
#    start.

COUNT = "count.-|-.observation"  # how a VecNormV2 names its counter in a state_dict


def steps_by_worker(make):
    env = ParallelEnv(N_WORKERS, make, mp_start_method="fork")
    env.rollout(30, break_when_any_done=False)
    states = [dict(state) for state in env.state_dict().values()]
    env.close()
    return [int(state["transforms.1._extra_state"][COUNT]) for state in states]


alone, together = EnvCreator(make_env), EnvCreator(make_env)
for tensor in statistics_of(together).values():
    tensor.share_memory_().zero_()
print("plain function:     ", steps_by_worker(make_env))
print("EnvCreator:         ", steps_by_worker(alone))
print("and shared memory:  ", steps_by_worker(together))

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    An evaluation that changes the statistics of training. ``eval()`` does not stop the updates,
#    and after ``load_state_dict``, two ``VecNormV2`` share their tensors:
#    :ref:`symptom-good-in-training-poor-in-evaluation`.

switched = creator().eval()
loaded = make_env()
loaded.transform[-1].load_state_dict(norm.state_dict())
for name, eval_env in (("eval()", switched), ("load_state_dict", loaded)):
    before = norm.loc["observation"].clone()
    eval_env.rollout(MAX_STEPS, actor)
    moved = not torch.equal(norm.loc["observation"], before)
    print(f"{name}: the statistics of training changed: {moved}")
    assert moved

# %%
# In both cases, call ``freeze()`` on the transform of the evaluation. It then follows the
# statistics without changing them.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A policy that is loaded without its statistics. A new ``VecNormV2`` maps any first observation
#    nearly to zero, so the policy sees other inputs than in training (the same symptom).

print("first observation, normalized:", make_env().reset()["normed"].tolist())
assert all(name.startswith("module") for name in actor.state_dict())

# %%
# What shares statistics
# ----------------------
#
# ================================================= ==== =====
# In the workers                                    fork spawn
# ================================================= ==== =====
# a plain function                                  no   no
# a plain function, ``VecNormV2(shared_data=...)``  yes  no
# ``EnvCreator``                                    no   yes
# ``EnvCreator`` and shared memory, as above        yes  yes
# ================================================= ==== =====
#
# Around a batched environment, ``VecNormV2`` gives each environment a mean of its own. With
# ``reduce_batch_dims=True``, all share one mean. But when one environment is reset, an old
# observation of every other one is counted again. :claim:`vecnorm-v2-counts-rows-again`
#
# The start method "spawn" pickles what it sends to a worker. It shares the tensors of an
# ``EnvCreator``, and copies those of a function. :claim:`vecnorm-shared-by-start-method`
# ``shared_data`` is a ``TensorDict`` of ``loc``, ``var`` and ``count``. Pass the same ``lock`` too,
# or updates may get lost. An ``EnvCreator`` passes its lock on to the workers.
#
# The older ``VecNorm`` is deprecated. Its ``frozen_copy()`` follows training, unlike that of
# ``VecNormV2``. :claim:`vecnorm-frozen-copy-follows` Its function for shared statistics raises:

assert creator().transform[-1].lock is norm.lock
try:
    VecNorm.build_td_for_shared_vecnorm(make_env())
except NotImplementedError as error:
    print(f"NotImplementedError: {error}")
else:
    raise AssertionError("it works by now")

# %%
# What it costs
# -------------
#
# On CartPole with two workers, a batch took :measured:`normalization@cpu:own-w2:vs_none` times as
# long with a ``VecNormV2`` in each environment as without normalization. Workers that
# share statistics wait for one lock at each step, but this made no clear difference. Fixed numbers
# (``ObservationNorm``) cost about as much as no normalization. :claim:`normalization-cost-by-way`
#
# .. dropdown:: Time of a batch with two workers
#
#    .. record-table:: normalization@cpu
#       :rows: none-w2 fixed-w2 own-w2 shared-w2
#       :metrics: batch_time vs_none vs_own
#       :caption: A batch of CartPole from two workers, by its normalization
#
# Storing the normalized observation beside the raw one makes a row larger:

n_bytes = frames.bytes() // len(frames)
n_raw = frames.exclude("normed", ("next", "normed")).bytes() // len(frames)
print(f"{n_bytes} bytes a row, {n_raw} without the normalized observations")
multiprocessing.set_start_method(start_method, force=True)

# %%
# If an observation hardly varies and is far from zero, rounding in float32 can make its variance
# negative and the normalized observation NaN. :claim:`vecnorm-v2-nan-far-from-zero` Subtract a
# constant before you normalize.
#
# If statistics may stay fixed, compute them once with ``init_stats`` of ``ObservationNorm``, and
# give ``loc`` and ``scale`` to every environment. Then nothing is shared, and the normalization of
# old rows stays correct.
#
# Related: :doc:`save_and_resume`, and :ref:`symptom-loss-stays-high-with-normalized-observations`
# for ``ObservationNorm`` in a buffer.
