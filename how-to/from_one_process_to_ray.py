"""
Move from one process to workers to Ray
=======================================

Change the constructor of the collector and keep the loop. Seed in the function that makes the
environment, and call ``update_policy_weights_()`` after the updates of each batch. Then one
process, one worker and one remote collector give the same results, bit for bit, unless your updates
draw random numbers.

Use workers on one machine, and Ray only for several. With CartPole on two cores, two workers
collected :measured:`scaling_ray@cpu:throughput-workers-2:vs_one` times as many frames per second as
one process, and needed :measured:`scaling_ray@cpu:start-workers-2:start_time` until their first
batch. Two remote collectors of Ray collected
:measured:`scaling_ray@cpu:throughput-ray-2:vs_one` times as many, and needed
:measured:`scaling_ray@cpu:start-ray-2:start_time`. :claim:`scaling-two-processes-use-two-cores`
More cores or a network were not measured.

**From one process to workers.** Each worker makes its own environment. So pass functions with
different seeds: ``partial(make_env, 0)()`` does ``make_env(0)``.

.. code-block:: diff

        return Collector(
   -        partial(make_env, 0),
   +        [partial(make_env, seed) for seed in range(number)],
            policy,
   +        num_collectors=number,
   +        sync=True,  # a batch waits for all workers
            **FRAMES,
            **QUIET,
        )

**From workers to Ray.** ``backend_options`` has the arguments of each remote collector, and the
processors and the memory that Ray reserves for it:

.. code-block:: diff

            policy,
   +        backend="ray",
            num_collectors=number,
            sync=True,  # a batch waits for all workers
            **FRAMES,
   -        **QUIET,
   +        backend_options={"collector_kwargs": dict(QUIET), "remote_configs": RESOURCES},
        )
"""

# %%
# .. fold:: Imports, and how the workers start

import importlib.util
import multiprocessing
import time
import warnings
from functools import partial
from types import SimpleNamespace
from unittest import mock

import torch
from tensordict.nn import TensorDictModule
from torch.distributions import Categorical
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.set_num_threads(1)
# Workers start by "fork" here, which is quick and warns from Python 3.12 on.
multiprocessing.set_start_method("fork", force=True)
warnings.filterwarnings("ignore", message=r".*fork\(\) may lead to deadlocks")

# %%
# The loop is PPO on CartPole. With "spawn", TorchRL's own start method, call the loop
# below ``if __name__ == "__main__":`` (:ref:`why <symptom-workers-run-the-script-again>`).

FRAMES = {"frames_per_batch": 200, "total_frames": 400}  # of all workers together
QUIET = {"auto_register_policy_transforms": False}
RESOURCES = {"num_cpus": 1, "memory": 500 * 1024**2}  # for each remote collector


def make_env(seed):
    torch.manual_seed(seed)  # the policy acts in this process
    env = GymEnv("CartPole-v1", categorical_action_encoding=True)
    env.set_seed(seed)  # before the collector resets it
    return env


def make_actor():
    torch.manual_seed(0)
    net = TensorDictModule(MLP(4, 2, num_cells=[64]), ["observation"], ["logits"])
    options = {"distribution_class": Categorical, "return_log_prob": True}
    return ProbabilisticActor(net, in_keys=["logits"], **options)


def train(make_collector):
    actor = make_actor()
    critic = ValueOperator(MLP(4, 1, num_cells=[64]), in_keys=["observation"])
    loss = ClipPPOLoss(actor, critic)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)
    n_frames = n_updates = 0
    collector = make_collector(actor)
    collector.update_policy_weights_()  # for Ray, before the first batch too
    for batch in collector:
        advantage(batch)
        for _ in range(3):  # whole batches: nothing is drawn at random
            values = loss(batch.reshape(-1)).items()
            optimizer.zero_grad()
            sum(value for key, value in values if key.startswith("loss_")).backward()
            optimizer.step()
            n_updates += 1
        collector.update_policy_weights_()
        n_frames += batch.numel()
    collector.shutdown()
    greedy = make_env(7).rollout(500, actor)
    return SimpleNamespace(
        frames=n_frames,
        updates=n_updates,
        batch=tuple(batch.shape),
        episode_return=greedy["next", "reward"].sum().item(),
        weights=torch.cat([weight.flatten() for weight in loss.parameters()]),
    )


def one_process(policy):
    return Collector(
        partial(make_env, 0),
        policy,
        **FRAMES,
        **QUIET,
    )


def workers(policy, number=2):
    return Collector(
        [partial(make_env, seed) for seed in range(number)],
        policy,
        num_collectors=number,
        sync=True,  # a batch waits for all workers
        **FRAMES,
        **QUIET,
    )


# %%
# The site is built without Ray, so **the Ray version did not run here.** It ran in the
# benchmark, and this script runs it if Ray is installed. ``RayCollector`` writes into
# ``collector_kwargs``, so pass a copy. :claim:`scaling-ray-writes-into-options`


def on_ray(policy, number=2):
    return Collector(
        [partial(make_env, seed) for seed in range(number)],
        policy,
        backend="ray",
        num_collectors=number,
        sync=True,  # a batch waits for all workers
        **FRAMES,
        backend_options={"collector_kwargs": dict(QUIET), "remote_configs": RESOURCES},
    )


# %%
# What is equal
# -------------
#
# .. fold:: Train with each version

VERSIONS = {  # with the shape of a batch
    "one process": (one_process, (200,)),
    "one worker": (partial(workers, number=1), (1, 200)),
    "two workers": (workers, (2, 100)),
}
TWINS = [("one process", "one worker")]
if importlib.util.find_spec("ray"):
    one_remote = partial(on_ray, number=1)
    VERSIONS |= {"one remote": (one_remote, (1, 200)), "two remote": (on_ray, (2, 100))}
    TWINS += [("one process", "one remote"), ("two workers", "two remote")]
results = {version: train(make) for version, (make, _) in VERSIONS.items()}


def same(one, other):
    counts = ("frames", "updates", "episode_return")
    return torch.equal(one.weights, other.weights) and all(
        getattr(one, name) == getattr(other, name) for name in counts
    )


# %%

for version, found in results.items():
    print(f"{version:<12}{found.frames:>4} frames {found.updates:>2} updates  ", end="")
    print(f"batch {found.batch!s:<9} return {found.episode_return:>3.0f}")
    assert found.batch == VERSIONS[version][1]
for twins in TWINS:
    assert same(*map(results.get, twins))
    print(" and ".join(twins) + ": the same results")
single, double = results["one process"], results["two workers"]
assert (double.frames, double.updates) == (single.frames, single.updates)
assert not torch.equal(double.weights, single.weights)

# %%
# The return is that of a greedy episode after the last update. In the benchmark, one remote
# collector gave the results of one process, and two gave those of two workers.
# :claim:`scaling-ray-same-results` If ``frames_per_batch`` is a multiple of the number of workers,
# the number of updates stays the same. The weights change with:
#
# * **More workers.** Each has its own seed and a shorter piece of each batch, so GAE bootstraps
#   more often. Multiplying ``frames_per_batch`` by the number of workers keeps the length
#   of each piece, with fewer updates.
# * **Minibatches that you shuffle.** One process shuffles with the same generator that draws its
#   actions. :claim:`scaling-shuffling-in-one-process`
#
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``collector.set_seed(0)`` for reproducible runs. It does not do the same in every version.


def seeded_late(make_collector, policy):
    collector = make_collector(policy)
    collector.set_seed(0)
    return collector


versions = (one_process, partial(workers, number=1))
assert not same(*[train(partial(seeded_late, make)) for make in versions])
print("one process and one worker: other results")

# %%
# On ``set_seed``, workers seed torch and reset their environment. A ``Collector`` does neither,
# and each remote collector is a ``Collector``: :ref:`symptom-same-seed-different-start`.
# :claim:`scaling-set-seed-differs` Without any seed, workers that fork :ref:`draw the same
# actions <symptom-workers-act-alike>`.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    No ``sync=True``. Workers and Ray are asynchronous by default. A batch then comes from one
#    worker, and from old weights if the learner takes a while
#    (:ref:`symptom-new-weights-arrive-late`).
#
# .. fold:: The largest ratio of PPO in the batch after an update


def after_an_update(**options):
    actor, envs = make_actor(), [partial(make_env, seed) for seed in range(2)]
    collector = Collector(envs, actor, num_collectors=2, **options, **FRAMES, **QUIET)
    collector.next()
    time.sleep(0.5)
    with torch.no_grad():
        actor.module[0].module[-1].bias[0] += 0.5  # an update
    collector.update_policy_weights_()
    batch = collector.next()
    collector.shutdown()
    now = actor.get_dist(batch).log_prob(batch["action"])
    return tuple(batch.shape), (now - batch["action_log_prob"]).exp().max()


# %%

for options in ({"sync": True}, {}):
    shape, ratio = after_an_update(**options)
    print(
        f"{options!s:<14} batches {shape!s:<8} ratio of PPO above 1: {ratio > 1.0001}"
    )
    assert (ratio > 1.0001) != bool(options)

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    No ``update_policy_weights_()``. Workers that share your weights hide the mistake:

with mock.patch.object(MultiSyncCollector, "update_policy_weights_"):
    assert same(train(workers), double)
print("two workers, with and without the call: the same results")

# %%
# Without a call, remote collectors keep the first weights (:ref:`performance-weight_sync-ray`), and
# so do workers :ref:`with a policy_factory <symptom-workers-never-learn>`. With
# ``total_frames=-1`` a loop is endless, except on Ray, where it ends before its first batch.
# :claim:`scaling-ray-endless-is-empty` Pass a large number.
#
# A worker that dies
# ------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    An ``except`` that asks the same collector for another batch. The collector returns ``None``,
#    as at the end of training. If the collector fills a buffer in the background
#    (``collector.start()``), there is :ref:`not even an error
#    <symptom-training-goes-on-without-a-worker>`.

FAILURES = (RuntimeError, ValueError, OSError)  # Ray: ray.exceptions.RayError
collector = workers(make_actor())
collector.next()
collector.procs[1].kill()
collector.procs[1].join()
try:
    collector.next()
except FAILURES:
    print("an error")
print("next batch:", collector.next())

# %%
# The batch in progress is lost, your networks are not. Go on with new workers (in your own run,
# with other seeds):


def batches_of(make_collector, policy, n_frames):
    while n_frames > 0:
        collector = make_collector(policy)
        collector.update_policy_weights_()
        try:
            for batch in collector:
                n_frames -= batch.numel()
                yield collector, batch
                if n_frames <= 0:
                    break
        except FAILURES:
            print("new workers")
        finally:
            collector.shutdown()


for number, (collector, _) in enumerate(batches_of(workers, make_actor(), 400)):
    if number == 0:
        collector.procs[1].kill()
print("batches:", number + 1)

# %%
# Check ``stats()["workers_alive"]`` before ``update_policy_weights_()``, which waits forever for
# a dead worker. :claim:`scaling-update-waits-for-the-dead` If a worker process dies, the next batch
# raises one of two errors, by chance: ``RuntimeError: At least one process failed: worker 1 (exit
# code -9)`` or ``ValueError: Cannot close a process while it is still running``.
# :claim:`scaling-death-is-hidden` By what dies (a node is one machine):
#
# .. record-table:: scaling_ray@cpu
#    :rows: killed-* removed-node
#    :metrics: raises batches_after stale_share update_raises returns
#    :caption: What the loop sees after a death (1 is yes)
#
# .. dropdown:: The two nodes of the last row, simulated on one machine
#
#    .. literalinclude:: ../../benchmarks/suites/bench_scaling_ray.py
#       :pyobject: two_nodes
#
# Do not set ``max_restarts`` and ``max_task_retries``. With both, the loop goes on without an
# error, although the restarted collector has the initial weights. The next update raises.
# :claim:`scaling-restart-is-stale` After a node is lost, a new collector waits for the missing
# processors without raising. :claim:`scaling-constructor-waits`
#
# What it costs
# -------------
#
# The figures at the top are for workers that start by "spawn". Starting Ray itself took another
# :measured:`scaling_ray@cpu:init:init_time`.
#
# .. dropdown:: Starts in two records, and time of a batch in each version
#
#    .. record-table:: weight_sync_ray@cpu
#       :rows: start update-w2-20kb
#       :metrics: start_time construction_time first_update_time first_batch_time update_time
#       :caption: A local Ray with two remote collectors and a small policy
#
#    .. record-table:: scaling_ray@cpu
#       :rows: start-*
#       :metrics: start_time construction_time first_update_time first_batch_time
#       :caption: From the constructor to the first batch, and the parts of that time
#
#    .. record-table:: scaling_ray@cpu
#       :rows: throughput-*
#       :metrics: round_time vs_one
#       :caption: A batch of CartPole in each version; the versions take turns
#
# When workers pay: :doc:`/performance/collectors`. Over a network: only a
# :doc:`model </performance/scaling>`.
