"""
Trace one rollout
=================

When a collector fails, the traceback shows one line of its loop. This lesson puts a tracer around
the loop of a :class:`~torchrl.collectors.Collector`, and prints who touched the :term:`carrier`, in
which order, and whether it was the same object or another.

After it you can

* predict the calls of one step from the devices that you give to the collector;
* read where a cast happens, where a :term:`sync point` follows it, and which object it yields;
* put the same tracer on your own collector, and say what it cannot see.

**Cost.** A few seconds on the CPU, nearly all of them the import of TorchRL. No GPU: two devices
are simulated. The lesson prints order and identity, never a time. Times come from a stamped
:doc:`record </reference/records>`.

**Markers.** A box titled *Wrong on purpose* announces code that fails, or worse, that does not
fail. The code is executed, and the cell asserts what goes wrong.

:doc:`/reference/collectors_internals` explains the loop, the :doc:`glossary
</reference/glossary>` its words. This page is for readers who debug. To collect data, neither is
needed.
"""

# %%
# Setup
# -----
#
# All sizes stand here. A small network picks the actions, seeded and without sampling. It needs no
# transform of the environment, and the collector is told so: it would warn otherwise.
# :claim:`collector-told-no-transform`

import logging
import string
import weakref
from contextlib import ExitStack
from typing import NamedTuple
from unittest import mock

import matplotlib.pyplot as plt
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, TransformedEnv
from torchrl.envs.transforms import StepCounter

logging.getLogger("torchrl").setLevel("ERROR")  # it announces each storage
torch.set_num_threads(1)

SEED = 0
N_STEPS = 3
BUFFER_FRAMES = 10
OBS_FLOATS, N_ACTIONS = 4, 2


class Greedy(nn.Module):
    """The action with the larger output, one-hot."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(OBS_FLOATS, N_ACTIONS)

    def forward(self, observation):
        best = self.layer(observation).argmax(-1)
        return nn.functional.one_hot(best, N_ACTIONS)


def make_collector(env=None, steps=1, **options):
    """A collector on CartPole whose batch holds ``steps`` frames."""
    torch.manual_seed(SEED)
    env = env or GymEnv("CartPole-v1")
    env.set_seed(SEED)
    return Collector(
        env,
        TensorDictModule(Greedy(), ["observation"], ["action"]),
        frames_per_batch=steps,
        **{
            "total_frames": -1,
            "auto_register_policy_transforms": False,
            **options,
        },
    )


# %%
# The tracer
# ----------
#
# The loop is :meth:`Collector.rollout <torchrl.collectors.Collector.rollout>`. It calls the policy
# and the environment, it calls methods of the carrier, and it calls three functions that wait for
# a device. Each of these calls is a seam: a function that can be replaced by one that writes a line
# and calls the original.
#
# Three rules make the lines readable.
#
# * Objects get letters in order of appearance. A letter stands for one object, so ``policy(A) ->
#   A`` says that the policy returned what it was given.
# * A call inside a traced call is not written. What the environment does with the carrier is the
#   environment's business.
# * The name ``_carrier`` is looked at before each line. If it means another object than before,
#   that is a line too.


class Event(NamedTuple):
    who: str  # loop, policy, env, sync, ids or buffer
    call: str
    returns: str  # letters of the returned objects
    on: str  # letter of the object that is acted on
    carrier: str  # letter of the carrier at that moment

    def __str__(self):
        return f"{self.call} -> {self.returns}" if self.returns else self.call


class Tracer:
    """The calls of one collector's loop, in order."""

    def __init__(self, collector):
        self.collector = collector
        self.events = []
        self.met = []  # the objects themselves: see "Wrong on purpose" below
        self.carrier = None
        self.inside = False

    def knows(self, td):
        return any(td is known for known in self.met)

    def show(self, value):
        """The letter of a tensordict; of anything else a short text."""
        if isinstance(value, tuple):
            return ".".join(value)
        if not isinstance(value, TensorDict):
            return str(value)
        if not self.knows(value):
            self.met.append(value)
        turn, position = divmod(
            [value is known for known in self.met].index(True),
            len(string.ascii_uppercase),
        )
        return string.ascii_uppercase[position] + (str(turn) if turn else "")

    def write(self, who, call, returns=(), on=""):
        letters = ", ".join(self.show(td) for td in returns)
        self.events.append(Event(who, call, letters, on, self.show(self.carrier)))

    def look(self):
        """Write a line if ``_carrier`` names another object than at the last look."""
        if self.carrier is not self.collector._carrier:
            self.carrier = self.collector._carrier
            letter = self.show(self.carrier)
            self.write("loop", f"carrier = {letter}", on=letter)

    def wrap(self, who, name, function):
        """``function`` with a line for each call of it."""

        def traced(*args, **options):
            if self.inside:
                return function(*args, **options)
            self.look()
            if who == "loop" and not self.knows(args[0]):
                return function(*args, **options)
            self.inside = True
            try:
                result = function(*args, **options)
            finally:
                self.inside = False
            if who == "loop":  # a method: the object and at most one argument
                shown = [self.show(arg) for arg in args[:2]]
                call = f"{shown[0]}.{name}({', '.join(shown[1:])})"
            else:
                shown = [self.show(arg) for arg in args]
                call = f"{name}({', '.join(shown)})"
            results = result if isinstance(result, tuple) else (result,)
            returned = [td for td in results if isinstance(td, TensorDict)]
            self.write(who, call, returned, on=shown[0] if shown else "")
            return result

        return traced


# %%
# ``trace`` puts the tracer into the seams for one rollout and takes it out again.
# ``mock.patch.object`` does both, and raises if a seam is gone. The seams of the policy, of the
# three sync points and of the ids are private members: :source:`_wrapped_policy
# <torchrl.collectors.Collector._wrapped_policy>`, :source:`_sync_policy
# <torchrl.collectors.Collector._sync_policy>`, :source:`_sync_env
# <torchrl.collectors.Collector._sync_env>`, :source:`_sync_storage
# <torchrl.collectors.Collector._sync_storage>` and :source:`_update_traj_ids
# <torchrl.collectors.Collector._update_traj_ids>`. The environment's are public:
# :meth:`~torchrl.envs.EnvBase.step_and_maybe_reset`, :meth:`~torchrl.envs.EnvBase.rand_action` and
# :meth:`~torchrl.envs.EnvBase.reset`. ``_wrapped_policy`` is a property; the attribute
# named below holds what it returns.

POLICY = "_wrapped_policy_maybe_compiled"
METHODS = ["to", "update", "set", "exclude", "select", "clone", "clear_device_"]


def trace(collector):
    """The events of one rollout of ``collector``, which is shut down afterwards."""
    tracer = Tracer(collector)
    assert collector._wrapped_policy is getattr(collector, POLICY)  # filled by now
    seams = {
        "policy": (collector, [POLICY]),
        "env": (collector.env, ["reset", "rand_action", "step_and_maybe_reset"]),
        "sync": (collector, ["_sync_policy", "_sync_env", "_sync_storage"]),
        "ids": (collector, ["_update_traj_ids"]),
        "buffer": (collector.replay_buffer, ["add"]),
        "loop": (TensorDict, METHODS),
    }
    with ExitStack() as stack:
        for who, (owner, names) in seams.items():
            for name in names if owner is not None else []:
                label = "policy" if name == POLICY else name
                traced = tracer.wrap(who, label, getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, traced))
        collector.rollout()
    tracer.look()
    collector.shutdown()
    return tracer.events


# %%
# One more helper prints a trace. *Returns* says whether a call gave back the object it acted on.


def order_table(events, start=0):
    """One line per event: position, actor, call, what came back."""
    rows = [["order", "who", "call", "returns", "the first is"]]
    for position, event in enumerate(events, start):
        first = event.returns.split(", ")[0]
        kind = "the same" if first == event.on else "another"
        kind = kind if event.returns else ""
        rows.append([str(position), event.who, event.call, event.returns, kind])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def lines(events):
    return [str(event) for event in events]


# %%
# All defaults
# ------------
#
# **Claim.** With no device given, one object goes through policy and environment. Nothing is cast,
# nothing waits, nothing is copied. After the step the name ``_carrier`` means another object.
#
# **By hand.** Read the source of the loop (:source:`rollout
# <torchrl.collectors.Collector.rollout>`) with the attributes of this collector at hand, and write
# the lines down before you run anything:
#
# #. ``policy_device`` and ``env_device`` are both ``None``, so nothing is cast before the policy.
# #. The policy writes its action into the object it gets, so there is nothing to update.
# #. The environment writes ``"next"`` into the object it gets, so there is nothing to set. It
#    returns a second object, the root of the next step.
# #. ``storing_device`` is ``None``, so nothing is cast before the row is kept.
# #. The second object becomes the carrier. The carrier was made without a device, so its successor
#    loses its own. It gets the trajectory ids of the first.
# #. ``_update_traj_ids`` reads in the first object whether the trajectory has ended.

PREDICTED_DEFAULTS = [
    "carrier = A",
    "policy(A) -> A",
    "step_and_maybe_reset(A) -> A, B",
    "carrier = B",
    "B.clear_device_() -> B",
    "B.set(collector) -> B",
    "_update_traj_ids(A)",
]

# %%
# **Measured.**

defaults = trace(make_collector())
assert lines(defaults) == PREDICTED_DEFAULTS
order_table(defaults)

# %%
# The first line is no call of the loop: it says which object the carrier is when the rollout
# starts. The constructor made it, with a reset of the environment. Further steps repeat the other
# lines with further letters, and every step has a carrier of its own:

several = trace(make_collector(steps=N_STEPS))
assert [event.who for event in several[1:]] == N_STEPS * [
    event.who for event in defaults[1:]
]
carriers = [event.on for event in several if event.call.startswith("carrier")]
assert len(set(carriers)) == N_STEPS + 1
print("carriers:", *carriers)

# %%
# **Reading.** The carrier is a name, not a container that is used again. Object A is one step:
# observation, action and ``"next"``. After the step it is a row of the batch, and no longer the
# carrier.
#
# Explicit CPU devices
# --------------------
#
# **Claim.** ``device="cpu"`` adds a cast that copies nothing, and a sync point that has nothing to
# wait for. Both run at every step.
#
# **By hand.** The three :term:`collector devices` are equal, so the loop casts neither for the
# policy nor for the environment. ``storing_device`` is set, and that alone decides about the last
# cast. The object already is on the CPU. The carrier keeps its device, so ``clear_device_`` goes.

PREDICTED_CPU = [
    "carrier = A",
    "policy(A) -> A",
    "step_and_maybe_reset(A) -> A, B",
    "A.to(cpu) -> A",
    "_sync_storage()",
    "carrier = B",
    "B.set(collector) -> B",
    "_update_traj_ids(A)",
]

cpu = trace(make_collector(device="cpu"))
assert lines(cpu) == PREDICTED_CPU
order_table(cpu)

# %%
# **Reading.** ``A.to(cpu) -> A``: the cast returned the object it was called on. The cast comes
# first, the sync point second, because there is nothing to wait for before the copy is queued.
#
# Two devices
# -----------
#
# **Claim.** With the policy on one device and the environment on another, the carrier stays the
# carrier, and three more objects are made from it: one for the policy, one for the environment, one
# for the batch. A sync point follows each cast.
#
# **Simulated.** PyTorch takes ``"cpu"`` and ``"cpu:0"`` for unequal devices. The collector compares
# devices in the same way, so it runs the branch that a GPU would.
#
# A cast makes another object unless the tensordict is on that device already. Whether it also
# copies a tensor depends on where the tensor is: to the simulated device it does, to the CPU it
# does not.

row = TensorDict(
    {"observation": torch.zeros(OBS_FLOATS)}
)  # no device, like the carrier
place = {name: row.to(name)["observation"].data_ptr() for name in ("cpu", "cpu:0")}
assert torch.device("cpu") != torch.device("cpu:0")
cast = row.to("cpu")
assert cast is not row
assert cast.to("cpu") is cast
assert place["cpu"] == row["observation"].data_ptr() != place["cpu:0"]

# %%
# **By hand.**
#
# #. The carrier A is cast for the policy: B. The sync point of the policy follows.
# #. The policy writes into B. That is not the carrier, so the loop updates A with the output keys.
# #. A is cast for the environment: C. The sync point of the environment follows.
# #. The environment writes into C. That is not the carrier either, so the loop sets ``"next"`` in
#    A.
# #. A is cast for the batch: E, because A has no device. The last sync point follows.
# #. D, which the environment returned, becomes the carrier.

PREDICTED_ACROSS = [
    "carrier = A",
    "A.to(cpu:0) -> B",
    "_sync_policy()",
    "policy(B) -> B",
    "A.update(B) -> A",
    "A.to(cpu) -> C",
    "_sync_env()",
    "step_and_maybe_reset(C) -> C, D",
    "A.set(next) -> A",
    "A.to(cpu) -> E",
    "_sync_storage()",
    "carrier = D",
    "D.clear_device_() -> D",
    "D.set(collector) -> D",
    "_update_traj_ids(C)",
]

ACROSS = {"policy_device": "cpu:0", "env_device": "cpu", "storing_device": "cpu"}
across = trace(make_collector(**ACROSS))
assert lines(across) == PREDICTED_ACROSS
order_table(across)

# %%
# **Reading.** The carrier has no device of its own, so that it can hold an observation of one
# device and an action of another. So ``.to`` always makes another object, and the row of the batch
# is E, not A. Both casts to the CPU start from A: what the policy wrote on its device is moved
# twice.
#
# The three traces as a figure. Each mark is one call, from left to right in its order. The letter
# is the object that the call acts on. Of the lines of the loop, the casts have a lane of their own.

LANES = ["policy", "env", "loop", "cast", "sync", "ids"]
COLORS = {
    "the carrier": "C0",
    "another object": "C1",
    "no object": "tab:gray",
}


def kind_of(event):
    if not event.on:
        return "no object"
    return "the carrier" if event.on == event.carrier else "another object"


panels = {"no device given": defaults, "CPU devices": cpu, "two devices": across}
fig, axes = plt.subplots(3, sharex=True, figsize=(5.4, 7.4), layout="constrained")
for ax, (title, events) in zip(axes, panels.items(), strict=True):
    steps = events[1:]  # the first line is no call
    lanes = [
        LANES.index("cast" if ".to(" in event.call else event.who) for event in steps
    ]
    ax.plot(range(1, len(steps) + 1), lanes, color="tab:gray", linewidth=1)
    for position, (event, lane) in enumerate(zip(steps, lanes, strict=True), start=1):
        color = COLORS[kind_of(event)]
        ring = {"facecolor": "white", "edgecolor": color, "linewidth": 2}
        ax.scatter(position, lane, s=190, zorder=2, **ring)
        letter = {"ha": "center", "va": "center_baseline", "weight": "bold"}
        ax.text(position, lane, event.on, **letter)
    ax.set_yticks(range(len(LANES)), LANES)
    ax.set_ylim(len(LANES) - 0.4, -0.6)
    ax.set_title(title, loc="left", fontsize="medium")
for label, color in COLORS.items():
    axes[0].scatter([], [], s=190, label=label, **ring | {"edgecolor": color})
axes[-1].set_xticks(range(2, len(across), 2))
axes[-1].set_xlabel("order of the calls in one step")
fig.suptitle("One step of three collectors, call by call")
objects = {title: len({event.on for event in panels[title]} - {""}) for title in panels}
fig.set_label(
    "The calls of one step on lanes for policy, environment, loop, casts, syncs and ids. "
    f"They act on {objects['no device given']} objects without a device, on "
    f"{objects['CPU devices']} with CPU devices, and on {objects['two devices']} with two devices, "
    "where the casts copy."
)
_ = fig.legend(loc="outside lower center", ncols=3, handletextpad=0.2)

# %%
# Three switches
# --------------
#
# **Claim.** Each of three arguments replaces or adds one line. The rest of the step stays what it
# was.
#
# **By hand.** :term:`Random frames <random frames>` replace the call of the policy, and with it the
# cast and the sync point before it. ``compact_obs=True`` makes a second object without the next
# observation just before the row is kept; see :term:`compact_obs`. A :class:`replay buffer
# <torchrl.data.ReplayBuffer>` with ``extend_buffer=False`` gets each row at once, in place of a
# batch at the end.


def replaced(predicted, old, *new):
    """``predicted`` with the line ``old`` replaced by ``new``."""
    at = predicted.index(old)
    return [*predicted[:at], *new, *predicted[at + 1 :]]


def make_buffer():
    return ReplayBuffer(storage=LazyTensorStorage(BUFFER_FRAMES))


step_line = "step_and_maybe_reset(A) -> A, B"
SWITCHES = [
    (
        {"init_random_frames": BUFFER_FRAMES},
        replaced(PREDICTED_DEFAULTS, "policy(A) -> A", "rand_action(A) -> A"),
    ),
    (
        {"compact_obs": True},
        replaced(
            PREDICTED_DEFAULTS, step_line, step_line, "A.exclude(next.observation) -> C"
        ),
    ),
    (
        {"replay_buffer": make_buffer(), "extend_buffer": False},
        replaced(PREDICTED_DEFAULTS, step_line, step_line, "add(A)"),
    ),
]
for options, predicted in SWITCHES:
    events = trace(make_collector(**options))
    assert lines(events) == predicted
    new = [line for line in predicted if line not in PREDICTED_DEFAULTS]
    print(f"{next(iter(options)):20}", *new)

# %%
# **Reading.** With two devices, random frames skip the first cast. The second stays:

random_across = trace(make_collector(init_random_frames=BUFFER_FRAMES, **ACROSS))
calls = lines(random_across)
assert "_sync_policy()" not in calls
assert calls[1] == "rand_action(A) -> A"
assert calls.index("A.to(cpu) -> B") + 1 == calls.index("_sync_env()")

# %%
# The direct write has an end of its own. When ``total_frames`` is reached, the loop returns right
# after ``add``. The carrier stays what it was, and no id is updated:

last = trace(
    make_collector(
        steps=N_STEPS,
        total_frames=N_STEPS,
        replay_buffer=make_buffer(),
        extend_buffer=False,
    )
)
assert last[-1].call == "add(C)"
assert sum(event.who == "ids" for event in last) == N_STEPS - 1
order_table(last[-3:], start=len(last) - 3)

# %%
# Where it loses
# --------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``collector.policy`` looks like the place to wrap. The loop does not read it: it calls
#    ``_wrapped_policy``, which the constructor made. The wrapper is never called, and nothing says
#    so.

collector = make_collector(steps=N_STEPS)
seen = []
original = collector.policy
collector.policy = lambda td: seen.append(td) or original(td)
collector.rollout()
collector.shutdown()
assert seen == []
print(f"{N_STEPS} steps, {len(seen)} calls seen")

# %%
# The right seam sees one call per step:

assert sum(event.who == "policy" for event in several) == N_STEPS

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A tracer that keeps ``id(td)`` in place of ``td``. The first carrier is freed while the
#    rollout goes on, and Python may give its id to a later object. Two objects then have one
#    letter, and the carrier seems to be used again.

collector = make_collector(
    steps=N_STEPS, replay_buffer=make_buffer(), extend_buffer=False
)
first_carrier = weakref.ref(collector._carrier)
collector.rollout()
collector.shutdown()
assert first_carrier() is None
print("the first carrier is freed:", first_carrier() is None)

# %%
# ``Tracer.met`` holds the objects, so their ids stay taken. The price is memory: trace few steps.
#
# **What it cannot see.** A trace is what goes through the seams, no more.
#
# * A call inside a traced call. The policy of the section *Your own collector* copies its input,
#   and the trace has no line for it.
# * A part of the carrier, such as its ``"next"``, which the loop takes out and passes on.
# * What is no method call. ``A`` becomes a row of the batch by ``list.append``.
# * Kernels. On CUDA a line says when the call returned, not when the device was done.
# * Other processes. A collector with :term:`workers <worker>` has no loop of its own in this one:

assert not hasattr(MultiSyncCollector, "rollout")
assert not hasattr(MultiSyncCollector, "_sync_env")

# %%
# **Compiled policies.** The tracer wraps the compiled function from outside; what happens inside is
# compiled code. The loop treats the output of such a policy in another way too: it selects the
# output keys and clones them. So the update, which the defaults do not need, is there again. The
# warm-up below is longer than the rollout, so that this page need not wait for a compiler.

# At each step the loop tells CUDA graphs that one begins; without CUDA there is nothing to tell.
mark = mock.patch("torchrl.collectors._single.cudagraph_mark_step_begin")
with mark as marked:
    compiled = trace(make_collector(compile_policy={"warmup": 10 * N_STEPS}))
assert marked.called
assert lines(compiled) == [
    "carrier = A",
    "policy(A) -> A",
    "A.select(action) -> B",
    "B.clone() -> C",
    "A.update(C) -> A",
    "step_and_maybe_reset(A) -> A, D",
    "carrier = D",
    "D.clear_device_() -> D",
    "D.set(collector) -> D",
    "_update_traj_ids(A)",
]
order_table(compiled)

# %%
# **Time.** Each line of the trace takes time of its own, so the tracer is no profiler. A benchmark
# puts a watch into the same seams, with less work per call. One step takes
# :measured:`collector_rollout@cpu:flow-defaults:step_time` with that watch and
# :measured:`collector_rollout@cpu:ids-on:step_time` without. The parts of the step:
#
# .. record-table:: collector_rollout@cpu
#    :rows: flow-defaults flow-cpu-devices flow-simulated
#    :metrics: step_time policy_time env_step_time carrier_time
#    :caption: One step by devices, on the CPU
#
# On CUDA the second device is real:
#
# .. record-table:: collector_rollout@cuda
#    :rows: flow-defaults flow-policy-on-cuda flow-policy-on-cuda-no-sync flow-cuda-devices
#    :metrics: step_time policy_time env_step_time carrier_time sync_time
#    :caption: One step by devices, with CUDA
#    :if-absent: The loop has not been measured on CUDA yet.

# %%
# Your own collector
# ------------------
#
# ``trace`` takes any :class:`~torchrl.collectors.Collector` of this process. Build yours with a
# small ``frames_per_batch``, trace it, and look for three things.
#
# #. ``X.to(...) -> Y``, with another letter, copies each tensor that is on another device. Is it
#    wanted?
# #. A ``sync`` line may wait for the device. Which cast does it follow?
# #. An ``update`` after the policy says that the policy returned an object of its own.
#
# Here with a policy that returns a new object. It looks innocent, and costs one line in every step:


class ReturnsNew(TensorDictModule):
    """The same action, in a tensordict of its own."""

    def forward(self, tensordict):
        return super().forward(tensordict.copy())


def own_collector():
    limited = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=N_STEPS))
    return Collector(
        limited,
        ReturnsNew(Greedy(), ["observation"], ["action"]),
        frames_per_batch=1,
        total_frames=-1,
        auto_register_policy_transforms=False,
    )


own = trace(own_collector())
assert lines(own)[1:3] == ["policy(A) -> B", "A.update(B) -> A"]
assert [event.who for event in own[3:]] == [event.who for event in defaults[2:]]
assert not any("clone" in line for line in lines(own))  # the copy of the policy
order_table(own)

# %%
# The transform of the environment leaves no line: it works inside ``step_and_maybe_reset``.
#
# Exercise
# --------
#
# ``storing_device="cpu"`` alone, with an environment that has no device. Two questions, before you
# read on: how many casts are there in one step, and does the last one return the same object, as it
# does with ``device="cpu"``? The :term:`cast flag` of the environment is a hint that misleads:

exercise = make_collector(storing_device="cpu")
assert exercise._cast_to_env_device
assert not exercise._cast_to_policy_device
print("casts for the environment:", exercise._cast_to_env_device)

# %%
# The answer:

answer = trace(exercise)
assert [event.call for event in answer if ".to(" in event.call] == ["A.to(cpu)"]
assert lines(answer)[3:5] == ["A.to(cpu) -> C", "_sync_storage()"]
order_table(answer)

# %%
# One cast, and it returns another object. The flag says that the environment's device differs from
# the storing device. But there is no ``env_device`` to cast to, so the branch passes the carrier
# on. The row of the batch then is a new object, because the carrier has no device and the batch
# has one.
#
# Conclusion
# ----------
#
# Ask the running loop, not the source from memory. Four lines of a trace answer most questions
# about devices: which object the policy got, which the environment got, which became the row, and
# which one is the carrier now.
#
# Further reading
# ---------------
#
# * :doc:`/reference/collectors_internals`: why the loop does what this page shows, with the
#   conditions of every cast and sync point.
# * :doc:`/tutorials/collectors/batch_shapes`: what the batch looks like that the rows become.
# * :doc:`/reference/glossary`: :term:`carrier`, :term:`sync point`, :term:`cast flag`.
# * `Collectors in the TorchRL documentation
#   <https://docs.pytorch.org/rl/0.14/reference/collectors.html>`__
# * `torch.profiler <https://docs.pytorch.org/docs/stable/profiler.html>`__, for time
