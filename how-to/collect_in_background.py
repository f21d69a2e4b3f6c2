"""
Collect in the background
=========================

Call ``collector.start()``, and workers write into your replay buffer while you train. Make each
worker wait for a permit before each batch. Without permits, the speed of your machine decides how
many frames you collect for each update.
"""

# %%
# .. fold:: Imports, and a DQN for CartPole

import contextlib
import multiprocessing
import tempfile
import time
import warnings

import gymnasium as gym
import torch
import torchrl
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector, MultiAsyncCollector
from torchrl.data import (
    LazyMemmapStorage,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs import GymEnv, GymWrapper, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces that it shares the buffer
torch.manual_seed(0)
# Workers start by "fork" here, because that is quick. From Python 3.12 on, it warns.
multiprocessing.set_start_method("fork", force=True)
warnings.filterwarnings("ignore", message=r".*fork\(\) may lead to deadlocks")


def make_env():
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter())


spec, net = make_env().action_spec, MLP(in_features=4, out_features=2, num_cells=[64])
actor = QValueActor(net, in_keys=["observation"], spec=spec)
explore = EGreedyModule(spec, annealing_num_steps=1_000)
policy = TensorDictSequential(actor, explore)
loss = DQNLoss(actor, action_space=spec, delay_value=True)
target = SoftUpdate(loss, eps=0.99)
optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)


def update(sample):
    optimizer.zero_grad()
    loss(sample)["loss"].backward()
    optimizer.step()
    target.step()
    explore.step(FRAMES_PER_UPDATE)


# %%
# Copy this together with the setup folded above, which starts workers by "fork". With TorchRL's own
# start method, "spawn", put the code that starts a collector below ``if __name__ == "__main__":``
# (:ref:`symptom-workers-run-the-script-again`).

N_WORKERS, BATCH_FRAMES, WARMUP_FRAMES = 2, 20, 200
N_UPDATES, FRAMES_PER_UPDATE, CAPACITY = 100, 2, 10_000
UPDATES_PER_BATCH = BATCH_FRAMES // FRAMES_PER_UPDATE


class Permits:
    """A worker takes one before each batch, and waits until there is one."""

    def __init__(self, number):
        self.semaphore = multiprocessing.Semaphore(number)

    def __call__(self):  # in a worker, before each batch
        self.semaphore.acquire()

    def add(self, number):
        for _ in range(number):
            self.semaphore.release()


@contextlib.contextmanager
def collecting(env_makers, buffer, permits):
    """Workers in the background, one for each maker of an environment."""
    collector = MultiAsyncCollector(
        env_makers,
        policy,
        frames_per_batch=BATCH_FRAMES,  # of one worker
        total_frames=-1,
        replay_buffer=buffer,
        pre_collect_hook=permits,
        auto_register_policy_transforms=False,  # the policy has no memory
    )
    collector.set_seed(0)
    try:
        collector.start()
        yield collector
    finally:
        permits.add(len(env_makers))  # a worker that waits could not stop
        collector.shutdown()


def make_buffer(**options):
    storage = LazyMemmapStorage(CAPACITY)
    return TensorDictReplayBuffer(storage=storage, batch_size=64, **options)


def wait_for_frames(number, buffer, collector):
    while True:
        if not all(worker.is_alive() for worker in collector.procs):
            raise RuntimeError("a worker died; its error is on the terminal")
        if buffer.write_count >= number:
            return
        time.sleep(0.001)


buffer, ahead = make_buffer(), []
permits = Permits(WARMUP_FRAMES // BATCH_FRAMES + N_WORKERS)
with collecting([make_env] * N_WORKERS, buffer, permits) as collector:
    for n_updates in range(N_UPDATES):
        needed = WARMUP_FRAMES + n_updates * FRAMES_PER_UPDATE
        wait_for_frames(needed, buffer, collector)
        ahead.append(buffer.write_count - needed)
        update(buffer.sample())
        if (n_updates + 1) % UPDATES_PER_BATCH == 0:
            permits.add(1)
            collector.update_policy_weights_()  # for a policy on another device

# %%
# The learner and the workers keep the ratio of frames to updates, and no process is left:

most = N_WORKERS * BATCH_FRAMES
assert 0 <= min(ahead) <= max(ahead) <= most
print(f"{N_UPDATES} updates, one for every {FRAMES_PER_UPDATE} frames")
print(f"the buffer was never more than {most} frames ahead of them")
print("exit codes:", [worker.exitcode for worker in collector.procs])

# %%
# Why it is right
# ---------------
#
# * **A fast learner waits** in ``wait_for_frames``. Otherwise it trains more often on the same
#   rows.
# * **Fast workers wait** in the hook, which each worker calls before a batch. You give a permit
#   when the updates for one batch are done. Start with ``N_WORKERS`` more permits than the warm-up
#   needs, so that the workers collect during the updates.
# * **The first update waits for the warm-up**, because sampling from an empty buffer raises:
#   :ref:`symptom-sampling-raises-at-the-start`.
# * **No sample sees a half-written batch.** ``buffer.sample()`` takes the lock under which workers
#   write. :claim:`background-sample-takes-lock` Reading ``buffer[:]`` does not take it, so read the
#   whole buffer only at the end.
# * **Weights stay current.** On the CPU, the workers act with your tensors: they see each optimizer
#   step and each new epsilon at once, even within a batch. :claim:`background-weights-arrive` Only
#   a policy on another device needs ``update_policy_weights_()``: :doc:`/performance/weight_sync`.
# * **You decide when it ends.** After ``start()`` the workers ignore ``total_frames``.
#   :claim:`background-total-frames-ignored` Add permits before ``shutdown()``. A worker that waits
#   for a permit misses the request to stop, and is terminated some seconds later.
#   :claim:`background-waiting-worker-terminated`
#
# The batches of several workers are interleaved in the buffer: :ref:`replay-writers` samples slices
# from it. Under "fork", workers share a ``LazyTensorStorage`` only if it has ``shared_init=True``.
#
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Training without checking the workers. If one of them raises, only the terminal shows its
#    error, and your loop goes on with the rows that are there:
#    :ref:`symptom-training-goes-on-without-a-worker`.
#
# .. fold:: An environment that fails, and what workers print


class Failing(gym.Wrapper):
    def step(self, action):
        raise ValueError("the simulator failed")


def make_failing_env():
    return TransformedEnv(GymWrapper(Failing(gym.make("CartPole-v1"))), StepCounter())


@contextlib.contextmanager
def terminal():
    with tempfile.TemporaryFile("w+") as file:
        with contextlib.redirect_stderr(file):
            yield
        file.seek(0)
        print("on the terminal:", file.read().splitlines()[-1])


# %%

watched, makers = make_buffer(), [make_env, make_failing_env]
with terminal(), collecting(makers, watched, Permits(20)) as collector:
    collector.procs[1].join()  # it is dead
    while watched.write_count < WARMUP_FRAMES:  # without checking the workers
        time.sleep(0.001)
    update(watched.sample())
    print("trained; exit codes:", [worker.exitcode for worker in collector.procs])
    try:
        wait_for_frames(WARMUP_FRAMES, watched, collector)
        raise AssertionError("nobody looked")
    except RuntimeError as error:
        print("wait_for_frames:", error)

# %%
# If all workers die, a loop that only waits for frames never ends. If a single worker dies,
# ``update_policy_weights_()`` never returns either, because it waits for an answer from each
# worker. :claim:`background-update-waits-for-the-dead`
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``collector.pause()`` around the updates. A worker that is in the middle of a batch throws this
#    batch away. The episode goes on, and these rows are missing.
#
# .. fold:: How many rows are missing


def gaps(rows):
    """How many rows do not follow the step before them in their trajectory."""
    rows = rows[rows["collector", "traj_ids"].argsort(stable=True)]
    starts = rows["collector", "traj_ids"].diff(prepend=torch.tensor([-1])) != 0
    steps = rows["step_count"].flatten()
    return int((steps != torch.where(starts, 0, steps.roll(1) + 1)).sum())


# %%

paused = make_buffer()
with collecting([make_env] * N_WORKERS, paused, Permits(10_000)) as collector:
    for n_pauses in range(15):
        wait_for_frames(n_pauses * BATCH_FRAMES, paused, collector)
        time.sleep(0.005)  # log something
        with collector.pause():
            pass  # train
print("with pauses, rows are missing:", gaps(paused[:]) > 0)
print("with permits, rows are missing:", gaps(buffer[:]) > 0)
assert gaps(paused[:]) > 0 == gaps(buffer[:])

# %%
# Single transitions remain valid. Slices do not: the rows on both sides of a gap have the same
# trajectory id, so a ``SliceSampler`` treats them as neighbors. :claim:`background-gap-in-slice`
# The symptom is :ref:`symptom-sequences-run-into-each-other`. Use permits instead.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A plain prioritized sampler with workers. It does not notice rows that another process writes,
#    and draws only rows that your own process wrote: :ref:`symptom-most-rows-are-never-drawn`.
#
# .. fold:: A buffer with a warm-up

some_rows = buffer[:100].exclude("index")


def make_prioritized(sync):
    prioritized = TensorDictPrioritizedReplayBuffer(
        alpha=0.7,
        beta=0.5,
        storage=LazyMemmapStorage(CAPACITY),
        batch_size=64,
        sync=sync,
    )
    prioritized.extend(some_rows.clone())  # your warm-up
    return prioritized


# %%

for sync in (True, False):
    prioritized = make_prioritized(sync)
    with collecting([make_env], prioritized, Permits(5)) as collector:
        wait_for_frames(200, prioritized, collector)
        drawn = torch.cat([prioritized.sample()["index"] for _ in range(100)])
    n_drawn = len(drawn.unique())
    print(f"sync={sync}: {n_drawn} of {len(prioritized)} rows are drawn")
    assert n_drawn == (len(prioritized) if not sync else len(some_rows))

# %%
# With ``sync=False``, your process looks for new rows before it samples. With the default, a worker
# does not start under "spawn", and ``sample()`` raises under "fork" if there was no warm-up.
# :claim:`background-priorities-elsewhere`
#
# In a thread
# -----------
#
# ``start()`` of a ``Collector`` collects in a thread of your process. It takes the same hook, and
# ends by itself after ``total_frames``.

limits = {"frames_per_batch": BATCH_FRAMES, "total_frames": 100}
options = {"replay_buffer": make_buffer(), "auto_register_policy_transforms": False}
collector = Collector(make_env(), policy, **limits, **options)
collector.start()
while collector.is_running():
    time.sleep(0.001)  # train
collector.shutdown()
print("a thread has written", options["replay_buffer"].write_count, "rows")

# %%
# An exception ends the thread, too: its error goes to the terminal, and your loop notices only if
# it calls ``is_running()`` (:doc:`/reference/collectors_hooks`). The thread shares the interpreter
# with your updates, so you gain less than with workers.
#
# .. _collect-own-processes:
#
# With processes of your own
# --------------------------
#
# Make the buffer with ``shared=True``, and its storage with ``shared_init=True``. Set the start
# method first (:ref:`replay-start-method`).


def write(own, writer, n_batches=100):
    for first in range(0, 5 * n_batches, 5):
        rows = {
            "step": torch.arange(first, first + 5),
            "writer": torch.full((5,), writer),
        }
        own.extend(TensorDict(rows, [5]))


with tempfile.TemporaryDirectory() as folder:
    storage = LazyMemmapStorage(CAPACITY, scratch_dir=folder, shared_init=True)
    own = TensorDictReplayBuffer(storage=storage, batch_size=64, shared=True)
    writers = [multiprocessing.Process(target=write, args=(own, n)) for n in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    rows = own[:]
    n_different = len((2 * rows["step"] + rows["writer"]).unique())
    print(f"{len(own)} rows, of which {n_different} are different")
    assert len(own) == n_different == 1_000

# %%
# * ``shared_init``: the first process that writes creates the storage for all. Otherwise "spawn"
#   raises, and under "fork" each process makes its own (:ref:`symptom-buffer-holds-garbage`).
#   :claim:`own-processes-need-shared-init`
# * ``shared``: one process writes or samples at a time. Otherwise two writers can use the same
#   place, and rows are lost. :claim:`unshared-writers-lose-rows`
# * The length and the next place are always shared, priorities never:
#   :ref:`symptom-most-rows-are-never-drawn`.
#
# What it costs
# -------------
#
# Collecting in the background pays if a core is free, or if the environment waits. If each step
# waits for a short time, two workers on two cores give
# :measured:`collectors@cpu:throughput-n2-multi-async-sleep-1:vs_collector` times the frames per
# second of one process. If each step computes for a short time, they give
# :measured:`collectors@cpu:throughput-n2-multi-async-busy-1:vs_collector` times as many. Updates
# were not part of this measurement. Running collection and updates at once saves at most the
# shorter of the two: :ref:`performance-collectors-check` prints your rate with and without the
# update. Small batches cost more (:ref:`performance-collectors-batches`).
#
# .. dropdown:: To start workers, to write, and to update weights
#
#    From the constructor to the first batch, two workers of a ``MultiSyncCollector`` take
#    :measured:`collectors@cpu:start-spawn:start_time` with "spawn", and
#    :measured:`collectors@cpu:start-fork:start_time` with "fork".
#    :claim:`background-start-by-method` A ``Collector`` that writes small frames to the buffer
#    itself takes :measured:`collector_knobs@cpu:buffer-direct:time_vs_off` times as long per frame
#    as one whose batches you ``extend`` it with. Each ``update_policy_weights_()`` is a round trip
#    to every worker (:ref:`performance-weight_sync-cost`).
