"""
Trace one rollout
=================

To find out where a :class:`~torchrl.collectors.Collector` copies data or waits for a device, run
one of its rollouts in the tracer of this lesson. It prints the calls of each step in their order,
and says for each call whether it returned the object that it got or another one. It shows no times.

To trace your own collector, open and copy the first cell, and call
``order_table(trace(collector))``. You need this to debug a collector, not to use one. In the trace,
look for each cast, which may copy, and for each :term:`sync point`, where the loop may wait for a
device.
"""

# %%
# .. fold:: The tracer: copy it to trace your own collector

import logging
import string
from contextlib import ExitStack
from typing import NamedTuple
from unittest import mock

import matplotlib.pyplot as plt
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, TransformedEnv
from torchrl.envs.transforms import StepCounter

logging.getLogger("torchrl").setLevel("ERROR")  # it announces each storage
torch.set_num_threads(1)


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
        self.met = []  # the objects themselves, so that no id is given twice
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


# The policy's seam is an attribute: it holds what the property _wrapped_policy returns.
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
# .. fold:: A collector on CartPole, with a small policy that does not sample

SEED, N_STEPS, BUFFER_FRAMES = 0, 3, 10
OBS_FLOATS, N_ACTIONS = 4, 2


class Greedy(nn.Module):
    """The action with the larger output, one-hot."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(OBS_FLOATS, N_ACTIONS)

    def forward(self, observation):
        best = self.layer(observation).argmax(-1)
        return nn.functional.one_hot(best, N_ACTIONS)


def make_collector(env=None, steps=1, policy=TensorDictModule, **options):
    """A collector whose batch holds ``steps`` frames."""
    torch.manual_seed(SEED)
    env = env or GymEnv("CartPole-v1")
    env.set_seed(SEED)
    return Collector(
        env,
        policy(Greedy(), ["observation"], ["action"]),
        frames_per_batch=steps,
        **{"total_frames": -1, "auto_register_policy_transforms": False, **options},
    )


# %%
# No device given
# ---------------
#
# .. redirect-from:: tutorials/collectors/rollout_trace.html#setup
#    tutorials/collectors/rollout_trace.html#the-tracer
#    tutorials/collectors/rollout_trace.html#all-defaults
#
# In each step one TensorDict, the :term:`carrier`, goes through the policy and the environment. If
# you pass no device and the environment has none, the loop does not cast the carrier, does not copy
# it and does not wait:

defaults = trace(make_collector())
order_table(defaults)

# %%
# Each object gets a letter when it first appears. The last column compares the first returned
# object with the one that the call acted on. A line such as ``carrier = B`` is no call: from there
# on B is the carrier.
#
# .. dropdown:: Why each line is there
#
#    Each line follows from the source of the loop (:source:`rollout
#    <torchrl.collectors.Collector.rollout>`) and the attributes of the collector:
#
#    * Line 0: The constructor has reset the environment and made the carrier.
#    * Line 1: ``policy_device`` and ``env_device`` are both ``None``, so nothing is cast. The
#      policy writes its action into A, so there is nothing to update.
#    * Line 2: The environment writes ``"next"`` into A, and returns a second object, B, the root of
#      the next step. ``storing_device`` is ``None``, so nothing is cast before the row is kept.
#    * Lines 3 to 5: B becomes the carrier. The first carrier was made without a device, so the loop
#      clears the device of B. Then it writes the trajectory ids of A into B.
#    * Line 6: ``_update_traj_ids`` reads in A whether the trajectory has ended.
#
# .. fold:: The same lines, predicted

PREDICTED_DEFAULTS = [
    "carrier = A",
    "policy(A) -> A",
    "step_and_maybe_reset(A) -> A, B",
    "carrier = B",
    "B.clear_device_() -> B",
    "B.set(collector) -> B",
    "_update_traj_ids(A)",
]

assert lines(defaults) == PREDICTED_DEFAULTS

# %%
# Each step has its own carrier, and after the step the old one becomes a row of the batch:

several = trace(make_collector(steps=N_STEPS))
carriers = [event.on for event in several if event.call.startswith("carrier")]
print("carriers:", *carriers)
assert len(set(carriers)) == N_STEPS + 1

# %%
# CPU devices given
# -----------------
#
# .. redirect-from:: tutorials/collectors/rollout_trace.html#explicit-cpu-devices
#
# ``device="cpu"`` adds two lines to every step: a cast that copies nothing, and a sync point, which
# waits only in a process that uses a GPU.
#
# The three :term:`collector devices` (``policy_device``, ``env_device`` and ``storing_device``) are
# equal, so the loop casts neither for the policy nor for the environment. The last cast depends on
# ``storing_device`` alone, which is set. A is on the CPU already, so the cast returns A. The
# carrier keeps its device, so there is no ``clear_device_``.
#
# .. fold:: The lines, predicted

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

# %%

cpu = trace(make_collector(device="cpu"))
assert lines(cpu) == PREDICTED_CPU
order_table(cpu)

# %%
# Two devices
# -----------
#
# With all three devices given, and the policy on another than the environment, the loop casts three
# times: for the policy, for the environment and for the batch. Each cast makes another object, and
# a sync point follows each cast.
#
# Here the second device is simulated. For PyTorch and for the collector ``"cpu"`` and ``"cpu:0"``
# are not equal, so the loop takes the same branch as with a GPU.
#
# .. fold:: The lines, predicted

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

# %%

ACROSS = {"policy_device": "cpu:0", "env_device": "cpu", "storing_device": "cpu"}
across = trace(make_collector(**ACROSS))
assert lines(across) == PREDICTED_ACROSS
order_table(across)

# %%
# The policy writes into B and the environment into C, and neither is the carrier. So the loop
# updates A with the outputs of the policy (line 4), and sets ``"next"`` in A (line 8). The row of
# the batch is E, and D, which the environment returned, becomes the carrier.
#
# The carrier has no device of its own, so that it can hold an observation on one device and an
# action on another. Therefore ``.to`` makes another object. A cast copies only the tensors that are
# on another device. :claim:`cast-of-no-device-is-new` Both casts to the CPU start from A, so what
# the policy wrote on its device is moved twice.
#
# In the figure, each mark is one call, and its letter is the object that the call acts on:
#
# .. fold:: Draw the three traces

LANES = ["policy", "env", "loop", "cast", "sync", "ids"]
COLORS = {
    "the carrier": "C0",
    "another object": "C1",
    "no object": "C8",
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
    ax.plot(range(1, len(steps) + 1), lanes, color="C8", linewidth=1)
    for position, (event, lane) in enumerate(zip(steps, lanes, strict=True), start=1):
        color = COLORS[kind_of(event)]
        ring = {"facecolor": "white", "edgecolor": color, "linewidth": 2}
        ax.scatter(position, lane, s=190, zorder=2, **ring)
        letter = {"ha": "center", "va": "center_baseline", "weight": "bold"}
        ax.text(position, lane, event.on, **letter)
    ax.set_yticks(range(len(LANES)), LANES)
    ax.set_ylim(len(LANES) - 0.4, -0.6)
    ax.set_title(title, loc="left", fontsize="medium")
axes[-1].set_xticks(range(2, len(across), 2))
axes[-1].set_xlabel("order of the calls in one step")
fig.suptitle("One step of three collectors, call by call", x=0.01, ha="left")
# Labels in place of a legend, in the colors of the rings.
for x, y, kind in (
    (3, 0.1, "the carrier"),
    (5.5, 0.1, "another object"),
    (9, 0.1, "no object"),
):
    axes[0].text(x, y, kind, color=COLORS[kind], va="center")
objects = {title: len({event.on for event in panels[title]} - {""}) for title in panels}
fig.set_label(
    "The calls of one step on lanes for policy, environment, loop, casts, syncs and ids. "
    f"They act on {objects['no device given']} objects without a device, on "
    f"{objects['CPU devices']} with CPU devices, and on {objects['two devices']} with two devices, "
    "where the casts copy."
)

# %%
# Random frames, compact observations, direct writes
# --------------------------------------------------
#
# .. redirect-from:: tutorials/collectors/rollout_trace.html#three-switches
#
# Three settings of the collector replace or add one line each. :term:`Random frames <random
# frames>` replace the call of the policy. :term:`compact_obs` makes a second object without the
# next observation just before the row is kept. A :class:`replay buffer <torchrl.data.ReplayBuffer>`
# with ``extend_buffer=False`` gets each row at once, in place of a batch at the end.


def make_buffer():
    return ReplayBuffer(storage=LazyTensorStorage(BUFFER_FRAMES))


policy_line, step_line = PREDICTED_DEFAULTS[1:3]
SWITCHES = [  # options, the line they touch, what takes its place
    ({"init_random_frames": 10}, policy_line, ["rand_action(A) -> A"]),
    ({"compact_obs": True}, step_line, [step_line, "A.exclude(next.observation) -> C"]),
    (
        {"replay_buffer": make_buffer(), "extend_buffer": False},
        step_line,
        [step_line, "add(A)"],
    ),
]
for options, touched, new in SWITCHES:
    events = trace(make_collector(**options))
    at = PREDICTED_DEFAULTS.index(touched)
    predicted = [*PREDICTED_DEFAULTS[:at], *new, *PREDICTED_DEFAULTS[at + 1 :]]
    assert lines(events) == predicted
    print(f"{next(iter(options)):20}", new[-1])

# %%
# .. dropdown:: Two devices, the last step, a compiled policy
#
#    With two devices, random frames skip the cast and the sync point of the policy, not those of
#    the environment. :claim:`random-frames-skip-policy-cast` With ``extend_buffer=False`` the last
#    step is shorter: at ``total_frames`` the loop returns right after ``add``, without a new
#    carrier and without an update of the ids. :claim:`direct-write-returns-after-add`
#
#    ``compile_policy=True`` adds lines as well: the loop selects the output keys of the policy,
#    clones them, and updates the carrier with the clones. :claim:`compiled-output-cloned` The
#    tracer wraps the compiled function from outside, and sees nothing of what happens in it.
#
# Your own collector
# ------------------
#
# ``trace`` takes any :class:`~torchrl.collectors.Collector` of this process, and shuts it down at
# the end. Build yours with a small ``frames_per_batch``. If the policy needs no transform of the
# environment, pass ``auto_register_policy_transforms=False``, as here. By default, a collector
# whose policy is a module warns about a missing ``InitTracker``, needed or not.
# :claim:`collector-told-no-transform`
#
# Look for three things in the trace:
#
# #. ``X.to(...) -> Y``, with another letter, copies each tensor that is on another device. Do you
#    want that copy?
# #. A ``sync`` line may wait for the device. Which cast does it follow?
# #. If the policy got no cast, and is neither compiled nor in a CUDA graph, an ``update`` after it
#    means that it returned another object.
#
# The policy below returns a new object, which costs one ``update`` in each step. The transform of
# the environment adds no line, because it runs inside ``step_and_maybe_reset``:


class ReturnsNew(TensorDictModule):
    """The same action, in a tensordict of its own."""

    def forward(self, tensordict):
        return super().forward(tensordict.copy())


limited = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=N_STEPS))
own = trace(make_collector(limited, policy=ReturnsNew))
assert lines(own)[1:3] == ["policy(A) -> B", "A.update(B) -> A"]
order_table(own[:4])

# %%
# What a trace does not show
# --------------------------
#
# .. redirect-from:: tutorials/collectors/rollout_trace.html#where-it-loses
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    In a tracer of your own, do not wrap ``collector.policy``. The loop calls ``_wrapped_policy``,
#    which the constructor made, so your wrapper is never called, and nothing is raised.

collector = make_collector(steps=N_STEPS)
seen = []
original = collector.policy
collector.policy = lambda td: seen.append(td) or original(td)
collector.rollout()
collector.shutdown()
print(f"{N_STEPS} steps, {len(seen)} calls seen")
assert seen == []

# %%
# Also let your tracer keep the objects, not their ``id(td)``. A carrier may be freed during the
# rollout, and Python may give its id to a later object. :claim:`first-carrier-is-freed` Then two
# objects would share one letter. Kept objects cost memory, so trace few steps.
#
# Some of the functions that the tracer of this lesson replaces are private, such as
# :source:`_wrapped_policy <torchrl.collectors.Collector._wrapped_policy>` and :source:`_sync_env
# <torchrl.collectors.Collector._sync_env>`. If a release renames one, the tracer raises.
#
# A trace shows only calls of the functions that the tracer replaces. It does not show
#
# * calls inside a traced call: the policy above copies its input, and the trace has no line for
#   that;
# * parts of the carrier, such as its ``"next"``, which the loop takes out and passes on;
# * other functions, such as ``list.append``, which makes a carrier a row of the batch;
# * kernels: on CUDA, a line says only that the call returned, not that the device has finished;
# * other processes: a collector with :term:`workers <worker>` has no loop of its own in this one.
#   :claim:`multi-collector-has-no-loop`
#
# Nor is the tracer a profiler: each line of the trace takes time of its own. A benchmark puts a
# stopwatch, which does less work per call, in the same places.
#
# .. dropdown:: Time of one step by devices, with the stopwatch
#
#    .. record-table:: collector_rollout@cpu
#       :rows: flow-defaults flow-cpu-devices flow-simulated
#       :metrics: step_time policy_time env_step_time carrier_time
#       :caption: One step by devices, on the CPU
#
#    Two separate runs show roughly what the stopwatch itself costs: one step took
#    :measured:`collector_rollout@cpu:flow-defaults:step_time` with it and
#    :measured:`collector_rollout@cpu:ids-on:step_time` without it.
#
#    .. record-table:: collector_rollout@cuda
#       :rows: flow-defaults flow-policy-on-cuda flow-policy-on-cuda-no-sync flow-cuda-devices
#       :metrics: step_time policy_time env_step_time carrier_time sync_time
#       :caption: One step by devices, with CUDA
#       :if-absent: The loop has not been measured on CUDA yet.
#
# Exercise
# --------
#
# Pass only ``storing_device="cpu"`` to a collector whose environment has no device. How many casts
# are there in one step? Does the last one return the same object, as it does with ``device="cpu"``?
# The :term:`cast flag` of the environment is a misleading hint:

exercise = make_collector(storing_device="cpu")
print("casts for the environment:", exercise._cast_to_env_device)
assert exercise._cast_to_env_device

# %%
# The answer: one cast, and it returns another object.

answer = trace(exercise)
order_table(answer)
assert [line for line in lines(answer) if ".to(" in line] == ["A.to(cpu) -> C"]

# %%
# The flag says only that the environment's device differs from the storing device. There is no
# ``env_device`` to cast to, so the environment gets the carrier as it is. The carrier has no device
# and the batch has one, so the row of the batch is a new object.
#
# Further reading
# ---------------
#
# .. redirect-from:: tutorials/collectors/rollout_trace.html#conclusion
#
# * :doc:`/reference/collectors_internals`: why the loop does what this page shows, with the
#   conditions of every cast and sync point.
# * :doc:`/tutorials/collectors/batch_shapes`: the shape of the batch that the rows become.
# * `Collectors in the TorchRL documentation
#   <https://docs.pytorch.org/rl/0.14/reference/collectors.html>`__
# * `torch.profiler <https://docs.pytorch.org/docs/stable/profiler.html>`__, for time
