"""
Save a run and resume it
========================

Register everything that changes during training with one ``Checkpoint``. If the process is killed,
start the same script again: it continues from its last save. With one process and one environment,
it computes the same numbers as a run that was not killed.
"""

# %%
# .. fold:: Imports, and the parts of a run: DQN with prioritized replay on CartPole

import multiprocessing
import os
import random
import signal
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import torchrl
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointRotation,
    GlobalRNGState,
    StateDictCheckpointAdapter,
)
from torchrl.collectors import Collector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import (
    Compose,
    GymEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    VecNormV2,
)
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage
SEED, CAPACITY, BATCH_FRAMES, SAVE_EVERY_FRAMES = 0, 2_000, 50, 200


def make_run():
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    transform = Compose(VecNormV2(in_keys=["observation"]), StepCounter())
    env = TransformedEnv(GymEnv("CartPole-v1"), transform)
    env.set_seed(SEED)
    net = MLP(in_features=4, out_features=2, num_cells=[64])
    actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
    explore = EGreedyModule(env.action_spec, annealing_num_steps=1_000)
    loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
    loss.make_value_estimator(gamma=0.99)  # before a load, which restores gamma
    collector = Collector(
        env,
        TensorDictSequential(actor, explore),
        frames_per_batch=BATCH_FRAMES,
        total_frames=-1,
        auto_register_policy_transforms=False,  # the policy has no memory
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        sampler=PrioritizedSampler(CAPACITY, alpha=0.7, beta=0.5),
        priority_key="td_error",
        batch_size=32,
    )
    return SimpleNamespace(
        env=env,
        explore=explore,
        collector=collector,
        buffer=buffer,
        loss=loss,
        optimizer=torch.optim.Adam(loss.parameters(), lr=1e-3),
        target=SoftUpdate(loss, eps=0.99),
        progress={"frames": 0},
        rng=GlobalRNGState(),
    )


def collect_and_learn(run):
    batch = run.collector.next()
    run.explore.step(batch.numel())
    run.buffer.extend(batch)
    sample = run.buffer.sample()
    loss = run.loss(sample)["loss"]
    run.optimizer.zero_grad()
    loss.backward()
    run.optimizer.step()
    run.target.step()
    run.buffer.update_tensordict_priority(sample)
    run.progress["frames"] += batch.numel()


# %%
# Copy this, with the parts of your own run in place of those folded above. Add anything else that
# has a ``state_dict``, such as a learning-rate scheduler. Keep your own numbers in a dict: a bare
# number is saved as it was when you registered it. :claim:`checkpoint-keeps-the-first-number`


def make_checkpoint(run):
    return Checkpoint(
        collector=run.collector,  # with the policy, epsilon, the statistics of VecNormV2
        buffer=run.buffer,  # with its sampler and writer
        loss=run.loss,  # online and target network
        optimizer=run.optimizer,
        target=run.target,
        progress=run.progress,  # your own numbers, in a dict
        rng=run.rng,  # of Python, NumPy and torch
    )


def start_episode(run):
    """The environment does not save its state: begin anew after each save and load."""
    run.env.set_seed(SEED + run.progress["frames"])
    run.collector.reset()


def main(folder, n_frames):
    """The same call starts a run and resumes it."""
    run = make_run()
    checkpoint = make_checkpoint(run)
    saves = CheckpointRotation(folder, keep_last=2)
    if saves.latest() is not None:
        saves.load_latest(checkpoint)
        start_episode(run)
    while run.progress["frames"] < n_frames:
        collect_and_learn(run)
        if run.progress["frames"] % SAVE_EVERY_FRAMES == 0:
            saves.save(checkpoint, step=run.progress["frames"])
            start_episode(run)
    return run


# %%
# A run that is killed
# --------------------
#
# A child process trains, and is killed with SIGKILL between two saves.
#
# .. fold:: The child process and a temporary folder

scratch = tempfile.TemporaryDirectory(prefix="save_and_resume_")
folder = Path(scratch.name)
KILLED_AT_FRAMES, END_FRAMES = 500, 1_000


def train_and_die():
    main(folder / "killed", KILLED_AT_FRAMES)
    os.kill(os.getpid(), signal.SIGKILL)


# From Python 3.12 on, forking a process that has threads warns. The child uses one
# thread and no accelerator, so that message is expected.
warnings.filterwarnings("ignore", message=r".*fork\(\) may lead to deadlocks")
child = multiprocessing.get_context("fork").Process(target=train_and_die)
child.start()
child.join()
assert child.exitcode == -signal.SIGKILL
child.close()

# %%
# Except for the trajectory ids, the resumed run and a run that was not killed end with the same
# bits.
#
# .. fold:: What is compared between two runs


def state(run):
    generators = run.rng.state_dict()
    return {
        "networks": dict(run.loss.state_dict()),
        "optimizer": run.optimizer.state_dict()["state"],
        "epsilon": run.explore.eps,
        "statistics": run.env.transform[0].state_dict()["_extra_state"],
        "rows": run.buffer[:].exclude(("collector", "traj_ids")).to_dict(),
        "generators": [generators["torch_cpu"], generators["numpy"][1]],
        "next sample": run.buffer.sample()["index"],
    }


# %%

print("killed after", KILLED_AT_FRAMES, "frames; the last save is", end=" ")
print(CheckpointRotation(folder / "killed", keep_last=2).latest().name)

whole = main(folder / "whole", END_FRAMES)
expected = state(whole)
resumed = main(folder / "killed", END_FRAMES)
found = state(resumed)
for name in expected:
    torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)
    print(f"{name}: equal")

# %%
# Why it is right
# ---------------
#
# For each component, ``Checkpoint`` uses ``dump`` and ``load`` if there are such methods, otherwise
# ``state_dict`` and ``load_state_dict``, otherwise JSON. :claim:`checkpoint-chooses-dump-first` It
# writes into a hidden folder and renames this folder at the end, so a kill during a save leaves the
# earlier saves whole. :claim:`checkpoint-killed-in-save` The hidden folder stays until you delete
# it. :claim:`checkpoint-stage-stays`
#
# Neither the position in the episode nor the generator of the environment is saved. So the loop
# begins a new episode after each save and each load, with the number of frames in its seed, and a
# resumed run plays the same episodes. Each save cuts an episode off. Without ``start_episode``,
# none is cut, but a resumed run gives other numbers. :claim:`resume-without-start-episode-differs`
#
# Loading draws a new :ref:`trajectory id <collector-ids>`, so the ids of the resumed run are
# shifted. :claim:`loading-draws-a-trajectory-number` With asynchronous
# workers, a prefetching buffer or nondeterministic CUDA kernels, two runs can differ without an
# interruption.

ids = ("collector", "traj_ids")
assert not torch.equal(resumed.buffer[:][ids], whole.buffer[:][ids])

# %%
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Restoring the buffer without the collector. A new collector numbers its trajectories from zero
#    again, and a slice may join two episodes of one number: :ref:`symptom-sequences-mix-two-runs`.

latest = CheckpointRotation(folder / "killed", keep_last=2).latest()
fresh = make_run()
make_checkpoint(fresh).load(latest, components=["buffer"])
old = set(fresh.buffer[:][ids].tolist())
new = set(fresh.collector.next()[ids].tolist())
print(f"{len(new)} new trajectories, {len(new & old)} with a number of the buffer")
assert new & old

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``VecNormV2`` inside a batched environment. If there is a ``TransformedEnv`` around the batched
#    environment, the collector saves only the outer transforms. The statistics start from scratch,
#    and the policy acts poorly at first: :ref:`symptom-good-in-training-poor-in-evaluation`.


def worker():
    return TransformedEnv(GymEnv("CartPole-v1"), VecNormV2(in_keys=["observation"]))


env = TransformedEnv(SerialEnv(2, worker), StepCounter())
collector = Collector(env, frames_per_batch=100, total_frames=-1)
collector.next()
saved = collector.state_dict()["env_state_dict"]
workers = env.base_env.state_dict()
print(f"statistics of {len(workers)} workers, {len(saved)} saved")
assert (len(workers), len(saved)) == (2, 0)

# %%
# Register the batched environment itself, or keep one set of statistics for all workers
# (:doc:`normalize_across_workers`). If you register it, pass an adapter. Without one,
# ``Checkpoint`` asks a ``ParallelEnv`` for ``dump``, and that ends its workers.
# :claim:`checkpoint-kills-parallel-env`

adapter = StateDictCheckpointAdapter()
checkpoint = Checkpoint().register("workers", env.base_env, adapter=adapter)
checkpoint.save(folder / "workers")
assert "workers" in checkpoint.load(folder / "workers").loaded
collector.shutdown()

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``Adam(fused=True)`` on the CPU, with weights in ``channels_last``. The moments come back in
#    another order in memory, so the fused step pairs them with the wrong weights:
#    :ref:`symptom-updates-differ-after-loading`.


def differs(fused):
    def update(layer, optimizer):
        optimizer.zero_grad()
        layer(pixels).sum().backward()
        optimizer.step()

    def make():
        layer = torch.nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        return layer, torch.optim.Adam(layer.parameters(), fused=fused)

    pixels = torch.rand(1, 3, 2, 2)
    (layer, optimizer), (again, its_optimizer) = make(), make()
    update(layer, optimizer)
    Checkpoint(layer=layer, optimizer=optimizer).save(folder / f"fused-{fused}")
    Checkpoint(layer=again, optimizer=its_optimizer).load(folder / f"fused-{fused}")
    assert torch.equal(layer.weight, again.weight)
    update(layer, optimizer)
    update(again, its_optimizer)
    return not torch.equal(layer.weight, again.weight)


print("differs:", {f"fused={fused}": differs(fused) for fused in (False, True)})
assert differs(True)
assert not differs(False)

# %%
# Register the optimizer with ``adapter=StateDictCheckpointAdapter("torch")``, or do without
# ``fused``.
#
# A large buffer, without a copy
# ------------------------------
#
# ``Checkpoint`` copies a memory-mapped buffer at each save. Leave a large buffer out and save it
# beside the checkpoint. If ``scratch_dir`` is the subfolder ``storage`` of the folder that you pass
# to the buffer's ``dumps``, no row is copied. :claim:`dumps-in-place-writes-no-rows`


def mapped_buffer():
    (folder / "buffer").mkdir(exist_ok=True)
    storage = LazyMemmapStorage(CAPACITY, scratch_dir=folder / "buffer" / "storage")
    return TensorDictReplayBuffer(storage=storage, batch_size=32)


rows = whole.buffer[:].exclude("index")
buffer = mapped_buffer()
buffer.extend(rows)
buffer.dumps(folder / "buffer")
buffer.extend(rows[:100])  # after the save
again = mapped_buffer()
again.loads(folder / "buffer")
print(f"{len(buffer):,} rows before, {len(again):,} after loading")
assert len(again) == len(rows)

# %%
# The files go on changing after ``dumps``. In a full buffer, new rows overwrite saved ones, and a
# resumed run finds the new ones. Off-policy training tolerates that, but gives other numbers.
#
# A buffer with prefetch
# ----------------------
#
# The batches in the queue are saved, and a resumed run trains on them first. Loading into a buffer
# with another ``prefetch`` raises.


def prefetching(n_batches):
    storage = LazyTensorStorage(CAPACITY)
    return TensorDictReplayBuffer(storage=storage, batch_size=32, prefetch=n_batches)


ahead, same, more = prefetching(2), prefetching(2), prefetching(4)
ahead.extend(rows)
ahead.sample()
path = Checkpoint(buffer=ahead).save(folder / "ahead")
Checkpoint(buffer=same).load(path)
for _ in range(2):
    assert torch.equal(same.sample()["index"], ahead.sample()["index"])
print("the two batches of the queue: equal")
try:
    Checkpoint(buffer=more).load(path)
except CheckpointError as error:
    print(error.__cause__)

# %%
# To change ``prefetch``, delete the queue from the save
# (:ref:`details <symptom-saved-prefetch-queue-is-refused>`). The run then draws other batches.

part = Checkpoint.manifest(path)["components"]["buffer"]["path"]
(path / part / "prefetch.pkl").unlink()
Checkpoint(buffer=more).load(path)
assert not torch.equal(more.sample()["index"], ahead.sample()["index"])
print(f"{len(more):,} rows")
for made in (ahead, same, more):
    made.shutdown()

# %%
# What it costs
# -------------
#
# With ten thousand frames of Atari's size in the buffer, a save takes
# :measured:`saving@cpu:copied-pixels:save_time`; with the buffer memory-mapped beside the
# checkpoint, :measured:`saving@cpu:mapped-pixels:save_time`; without a buffer,
# :measured:`saving@cpu:none:save_time`. :claim:`a-mapped-buffer-is-saved-faster`
#
# .. dropdown:: Saving and loading, by what the buffer holds
#
#    .. record-table:: saving@cpu
#       :metrics: save_time load_time saved_bytes
#       :caption: A save of DQN with prioritized replay, and its loading, with files in the cache
#
# Each save holds the whole capacity of the buffer, however few rows it has.
# :claim:`save-holds-the-capacity`


def size(path):
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


print(f"{len(rows):,} of {CAPACITY:,} rows, {rows.bytes() // len(rows)} bytes each\n")
print(f"{'component':<10} {'saved by':<19} {'bytes':>8}")
for name, part in sorted(Checkpoint.manifest(latest)["components"].items()):
    print(f"{name:<10} {part['adapter']:<19} {size(latest / part['path']):>8,}")
assert size(latest) > CAPACITY * rows.bytes() // len(rows)

# %%
# The policy alone
# ----------------
#
# ``torch.export`` makes a program of the policy that runs without TorchRL. An ``ObservationNorm``
# cannot be exported, so write the normalization yourself, with its numbers.
#
# .. dropdown:: ONNX
#
#    Give the same arguments to ``torch.onnx.export``. It needs another package, and was not run for
#    this page.

norm = whole.env.transform[0].to_observation_norm()
loc, scale = norm.loc.clone(), norm.scale.clone()
normalize = TensorDictModule(
    lambda observation: (observation - loc) / scale, ["observation"], ["observation"]
)
seen = np.zeros(4, np.float32)  # one observation, from wherever it comes
actor, observation = whole.collector.policy[0], {"observation": torch.from_numpy(seen)}
expected = TensorDictSequential(norm, actor)(TensorDict(observation))["action"]
agent = TensorDictSequential(normalize, actor).select_out_keys("action")
program = torch.export.export(agent, args=(), kwargs=observation)
torch.export.save(program, folder / "policy.pt2")
act = torch.export.load(folder / "policy.pt2").module()
assert torch.equal(act(**observation), expected)

# %%
# .. fold:: Clean up

for run in (whole, resumed, fresh):
    run.collector.shutdown()
del buffer, again
scratch.cleanup()
assert not folder.exists()

# %%
# When it raises
# --------------
#
# * ``Unexpected key(s) in state_dict: "_value_estimator.gamma"``: call ``make_value_estimator``
#   before you load. Otherwise the loss makes its estimator at its first use.
#   :claim:`loss-state-needs-estimator`
# * ``Cannot save a non-initialized storage``: the buffer is empty. ``ListStorage doesn't
#   support serialization``: write ``state_dict()`` of the buffer with ``torch.save``.
#   :claim:`checkpoint-refuses-empty-and-list`
# * ``sampler_metadata.json`` not found: the save is from a buffer with another sampler. Load it
#   into a buffer with that sampler, and ``extend`` a new prioritized buffer with the rows. Do not
#   pass the loaded storage to a new buffer. New rows would overwrite the first ones, and the length
#   would still grow. :claim:`new-buffer-on-an-old-storage`
# * ``missing=[...]``: the save lacks a component. With ``strict="ignore"``, that component stays as
#   it is. :claim:`checkpoint-strict-ignore`
#
# Related: :doc:`/tutorials/memory/buffers_on_disk`, and :doc:`/performance/weight_sync` if the
# policy of your collector is a copy.
