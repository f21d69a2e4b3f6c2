"""Where one step of a collector's loop spends its time, and what trajectory ids cost.

A small network acts in one CartPole-v1. The keys ``flow-*`` are rollouts whose parts are timed from
inside the running loop: policy, environment, and the rest, which is the collector's own work. The
watch costs time itself, which falls to the rest. The keys ``ids-*`` run without it. All
configurations take turns, one rollout each per round, so that a change of the machine's speed
reaches all of them.
"""

import functools
import time
from collections import Counter
from unittest import mock

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymEnv
from torchrl.modules import MLP

from benchmarks import measure, metrics

FRAMES = 1000
# Two devices may round differently, and choose another action once in a long while: the first
# frames are compared, not all.
COMPARED_FRAMES = 50
HIDDEN_UNITS = 64
SEED = 0

WHOLE_STEPS = "Mean over the steps of a rollout, from one call of the policy to the next. "
METRICS = metrics.declare(f"""
step_time [s] Time per step: Wall time of one step. Keys flow-*: mean from one call of the policy to
    the next. Keys ids-*: that of one batch, divided by its frames.
policy_time [s] Policy: {WHOLE_STEPS}Wall time of the policy call. On CUDA it returns once its
    kernels are queued.
env_step_time [s] Environment: {WHOLE_STEPS}Wall time of env.step_and_maybe_reset.
carrier_time [s] The collector's own work: {WHOLE_STEPS}What is left: casts, sync points, updates of
    the carrier, trajectory ids, the rest of the loop body, and the watch itself.
cast_time [s] Casts: {WHOLE_STEPS}Wall time of the calls of .to on the carrier; a part of the
    collector's own work.
sync_time [s] Sync points: {WHOLE_STEPS}Wall time of _sync_policy, _sync_env and _sync_storage, with
    the waiting for queued kernels; a part of the collector's own work.
ids_time [s] Trajectory ids: {WHOLE_STEPS}Wall time of _update_traj_ids; a part of the collector's
    own work.
casts_per_step [1, exact] Casts per step: Calls of .to on the carrier in one step.
syncs_per_step [1, exact] Sync points per step: Calls of _sync_policy, _sync_env and _sync_storage
    in one step.
frames_per_second [1] Frames per second: Frames of one batch, divided by the wall time of collecting
    it.
bytes_per_frame [B, exact] Bytes per frame: Bytes in the batch divided by its frames.
construction_time [s] Construction time: Wall time of building environment, policy and collector.
    The constructor resets the environment and, here, calls the policy.
""")

# The second device of the simulation is the CPU under another name. "cpu:0" and "cpu" are unequal,
# so the collector casts, and the cast to "cpu:0" copies every tensor. Those to "cpu" make new
# containers only, where a GPU's would copy what the policy wrote.
ACROSS = {"env_device": "cpu", "storing_device": "cpu"}
# key: (title, arguments of the collector)
FLOWS = {
    "flow-defaults": ("no device given", {}),
    "flow-cpu-devices": ('device="cpu"', {"device": "cpu"}),
    "flow-simulated": (
        "two devices, simulated on the CPU",
        {"policy_device": "cpu:0", **ACROSS},
    ),
}
IDS = {
    "ids-on": ("track_traj_ids=True", {"track_traj_ids": True}),
    "ids-off": ("track_traj_ids=False", {"track_traj_ids": False}),
}
CUDA_FLOWS = {
    "flow-policy-on-cuda": (
        "policy on CUDA, environment and batch on the CPU",
        {"policy_device": "cuda", **ACROSS},
    ),
    "flow-policy-on-cuda-no-sync": (
        "policy on CUDA, environment and batch on the CPU, no_cuda_sync=True",
        {"policy_device": "cuda", "no_cuda_sync": True, **ACROSS},
    ),
    "flow-cuda-devices": ('device="cuda"', {"device": "cuda"}),
}
CONFIGURATIONS = FLOWS | IDS | CUDA_FLOWS
CASES = [*FLOWS, *IDS, *(pytest.param(key, marks=pytest.mark.cuda) for key in CUDA_FLOWS)]


class Greedy(nn.Module):
    """The action of the larger output, one-hot."""

    def __init__(self):
        super().__init__()
        self.network = MLP(4, 2, num_cells=[HIDDEN_UNITS, HIDDEN_UNITS])

    def forward(self, observation):
        return nn.functional.one_hot(self.network(observation).argmax(-1), 2)


def make_collector(key):
    torch.manual_seed(SEED)
    env = GymEnv("CartPole-v1")
    env.set_seed(SEED)
    return Collector(
        env,
        TensorDictModule(Greedy(), ["observation"], ["action"]),
        frames_per_batch=FRAMES,
        total_frames=-1,
        auto_register_policy_transforms=False,
        **CONFIGURATIONS[key][1],
    )


class Watch:
    """Time of the parts of each step of one collector, taken from inside its loop."""

    PARTS = ("policy", "env_step", "cast", "sync", "ids")

    def __init__(self, collector):
        self.collector = collector
        self.inside = False
        self.wrap(collector, "_wrapped_policy", "policy")
        self.wrap(collector.env, "step_and_maybe_reset", "env_step")
        for name in ("_sync_policy", "_sync_env", "_sync_storage"):
            self.wrap(collector, name, "sync")
        self.wrap(collector, "_update_traj_ids", "ids")

    def wrap(self, owner, name, part):
        setattr(owner, name, self.timed(part, getattr(owner, name)))

    def timed(self, part, function):
        def wrapper(*args, **kwargs):
            if self.inside:  # what the environment casts is time of the environment
                return function(*args, **kwargs)
            self.inside = True
            begin = time.perf_counter()
            if part == "policy":
                self.open_step(begin)
            try:
                return function(*args, **kwargs)
            finally:
                self.spent[-1][part] += time.perf_counter() - begin
                self.calls[-1][part] += 1
                self.inside = False

        return wrapper

    def open_step(self, begin):
        self.begins.append(begin)
        self.spent.append(Counter())
        self.calls.append(Counter())

    def rollout(self):
        """One batch; what was before the first call of the policy goes into a step left out."""
        self.begins, self.spent, self.calls = [], [Counter()], [Counter()]
        with mock.patch.object(TensorDict, "to", self.timed("cast", TensorDict.to)):
            return self.collector.rollout()

    def mean_times(self):
        """Seconds per part and step; without the last step, which no call of the policy ends."""
        steps = len(self.begins) - 1
        mean = {part: sum(spent[part] for spent in self.spent[1:-1]) / steps for part in self.PARTS}
        mean["step"] = (self.begins[-1] - self.begins[0]) / steps
        mean["carrier"] = mean["step"] - mean["policy"] - mean["env_step"]
        return {f"{part}_time": seconds for part, seconds in mean.items()}

    def calls_per_step(self):
        """How often each part is called in a step: in every step the same."""
        first, *others = self.calls[1:-1]
        assert all(calls == first for calls in others)
        assert first["policy"] == first["env_step"] == first["ids"] == 1
        return {"casts_per_step": first["cast"], "syncs_per_step": first["sync"]}


def sample(device):
    """Per key: samples of the metrics, exact values, and the first batch."""
    flows = [*FLOWS, *(CUDA_FLOWS if device.type == "cuda" else ())]
    collectors = {key: make_collector(key) for key in (*flows, *IDS)}
    watches = {key: Watch(collectors[key]) for key in flows}
    runs = {key: functools.partial(flow_round, watch, device) for key, watch in watches.items()}
    runs |= {key: functools.partial(ids_round, collectors[key], device) for key in IDS}
    # A batch is a buffer that the next rollout writes into.
    batches = {key: (watches.get(key) or collectors[key]).rollout().clone() for key in runs}
    samples = {key: {} for key in runs}
    for turn in range(measure.WARMUP_ROUNDS + measure.ROUNDS):
        for key, run in runs.items():
            found = run()
            if turn >= measure.WARMUP_ROUNDS:
                for metric, value in found.items():
                    samples[key].setdefault(metric, []).append(value)
    exact = {key: watch.calls_per_step() for key, watch in watches.items()}
    exact |= {key: {"bytes_per_frame": bytes_per_frame(batches[key])} for key in IDS}
    for collector in collectors.values():
        collector.shutdown()
    return samples, exact, batches


def flow_round(watch, device):
    measure.settled(device, watch.rollout)
    return watch.mean_times()


def ids_round(collector, device):
    begin = time.perf_counter()
    measure.settled(device, collector.rollout)
    seconds = time.perf_counter() - begin
    return {"step_time": seconds / FRAMES, "frames_per_second": FRAMES / seconds}


def bytes_per_frame(batch):
    size = batch.bytes()
    assert size % FRAMES == 0
    return size // FRAMES


sample_once = functools.cache(sample)


def expected_calls(key):
    """Casts and sync points of a step, from the arguments alone."""
    arguments = CONFIGURATIONS[key][1]
    casts = sum(name.endswith("_device") for name in arguments) + ("device" in arguments)
    syncs = 0 if arguments.get("no_cuda_sync") else casts
    return {"casts_per_step": casts, "syncs_per_step": syncs}


@pytest.mark.parametrize("key", CASES)
def bench_rollout(benchmark, device, key):
    samples, exact, batches = sample_once(device)
    built = []
    measure.timed(benchmark, device, lambda: built.append(make_collector(key)))
    for collector in built:
        collector.shutdown()

    batch, default = batches[key], batches["flow-defaults"]
    assert batch.numel() == FRAMES
    first = slice(COMPARED_FRAMES)
    torch.testing.assert_close(
        batch["observation"][first].cpu(), default["observation"][first], rtol=0, atol=0
    )
    if key in IDS:
        ids = batches["ids-on"]["collector", "traj_ids"]
        without = exact["ids-on"]["bytes_per_frame"] - ids.dtype.itemsize
        assert exact["ids-off"]["bytes_per_frame"] == without
    else:
        assert exact[key] == expected_calls(key)
    title, arguments = CONFIGURATIONS[key]
    devices = ("policy_device", "env_device", "storing_device")
    measure.note(
        benchmark,
        key,
        "construction_time",
        title=title,
        parameters={
            "configuration": title,
            **{name: arguments.get(name, arguments.get("device", "none")) for name in devices},
            "no_cuda_sync": arguments.get("no_cuda_sync", False),
            "track_traj_ids": arguments.get("track_traj_ids", True),
            "instrumented": key not in IDS,
            "environment": "CartPole-v1",
            "frames": FRAMES,
            "hidden_units": HIDDEN_UNITS,
        },
        exact=exact[key],
        sampled=samples[key],
    )
