"""Sync points and cast flags of ``Collector``, for docs/reference/collectors_internals.rst.

Every cell comes from the code that decides: ``Collector._get_sync_fn`` is called, collectors are
constructed, and a live rollout says which copies it makes and which sync points it reaches.

This runs without an accelerator. Three things are simulated, and nothing else:

* CUDA, MPS or NPU being visible: the functions that ask for them are patched to say so;
* a policy on ``cuda:0`` in ``inferred`` and ``blocking``: the copy to it is recorded, not made;
* a second device: ``cpu:0``, which every machine has and torch calls different from ``cpu``.
"""

import contextlib
import inspect
import itertools
import json
import os
import sys
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from unittest import mock

# Before torchrl is imported: its log lines would be warnings to the build.
os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.envs import GymEnv

FRAMES = 4
CPU, OTHER = "cpu", "cpu:0"
ARGUMENTS = ("device", "policy_device", "env_device", "storing_device")
CONFIGURATION = ("Environment made on", "Arguments")
POINTS = ("_sync_policy", "_sync_env", "_sync_storage")


def make_collector(home, frames=FRAMES, **options):
    """A collector with random actions in an environment that is made on ``home``."""
    return Collector(
        GymEnv("CartPole-v1", device=home),
        policy=None,
        frames_per_batch=frames,
        total_frames=frames,
        **options,
    )


def as_device(name):
    return None if name is None else torch.device(name)


def code(text):
    return f"``{text}``"


def call(home, options):
    """The two cells that name a configuration."""
    arguments = ", ".join(code(f'{name}="{value}"') for name, value in options.items())
    return [code(str(home)), arguments or "none"]


# -- Which function a sync point is -------------------------------------------


@contextlib.contextmanager
def stack(accelerator, initialized=True):
    """torch as it looks where ``accelerator`` is visible; yields the synchronize calls."""
    calls = []
    fake_npu = SimpleNamespace(
        is_available=lambda: accelerator == "npu", synchronize=lambda: calls.append("npu")
    )
    cuda = accelerator == "cuda"
    used = cuda and initialized
    with (
        mock.patch("torch.cuda.is_available", return_value=cuda),
        mock.patch("torch.cuda.is_initialized", return_value=used),
        mock.patch("torch.cuda.synchronize", side_effect=partial(calls.append, "cuda")),
        mock.patch("torch.backends.mps.is_available", return_value=accelerator == "mps"),
        mock.patch("torch.mps.synchronize", side_effect=partial(calls.append, "mps")),
        mock.patch("torch.npu", fake_npu, create=True),
    ):
        yield calls


def chosen(destination, accelerator):
    """Name of the function for ``destination``, and what calling it waits for."""
    with stack(accelerator) as calls:
        try:
            function = Collector._get_sync_fn(None, as_device(destination))
        except RuntimeError as error:
            if str(error) != "Non supported device":
                raise
            return code("RuntimeError")
        function()
    if not calls:
        return code(function.__name__)
    assert calls == [accelerator], "a sync point waits for another accelerator"
    if accelerator == "cuda":
        return code(function.__name__)
    return code(f"{accelerator}.synchronize")


def sync_functions():
    """The function by destination, for each accelerator that torch may see."""
    accelerators = (None, "cuda", "mps", "npu")
    rows = {
        destination: [chosen(destination, accelerator) for accelerator in accelerators]
        for destination in (None, "cpu", "cuda:0", "mps", "meta")
    }
    nothing, refused = code("_do_nothing"), code("RuntimeError")
    assert set(rows[None]) == set(rows["cuda:0"]) == {nothing}, (
        "no device, or a CUDA device, has a sync point that does something"
    )
    assert rows["cpu"][0] == nothing, "the CPU has something to wait for without an accelerator"
    assert rows["mps"] == rows["meta"] == [refused, *rows["cpu"][1:]], (
        "a destination that is neither CPU nor CUDA is treated as the CPU is, or refused"
    )
    assert code("_do_nothing") not in rows["cpu"][1:], "copies to the CPU are not waited for"
    with stack("cuda", initialized=False) as calls:
        Collector._get_sync_fn(None, torch.device("cpu"))()
    assert not calls, "the wrapper waits although CUDA was never used in this process"
    return {
        "columns": ["Copy to", "no accelerator", "CUDA", "MPS", "NPU"],
        "rows": [[code(name) if name else "none", *cells] for name, cells in rows.items()],
    }


def inferred():
    """``_sync_env`` where CUDA is visible: the argument chooses it, not the device in use."""
    configurations = [(None, {"env_device": CPU}), (CPU, {"env_device": CPU}), (CPU, {})]
    rows = []
    for home, options in configurations:
        with stack("cuda", initialized=False):
            collector, events = traced(home, stub=("cuda",), policy_device="cuda:0", **options)
        function = collector._sync_env.__name__
        copy = next(event for event in events if event.point == "_sync_env")
        assert collector.env_device == torch.device(CPU)
        assert copy.non_blocking, "the copy to the environment blocks"
        with stack("cuda", initialized=False):
            _, quiet = traced(
                home, stub=("cuda",), policy_device="cuda:0", no_cuda_sync=True, **options
            )
        to_env = [event for event in quiet if event.device == torch.device(CPU)]
        assert len(to_env) == FRAMES
        assert not any(event.non_blocking for event in to_env), (
            "with no_cuda_sync the copy to an environment on the CPU does not wait"
        )
        rows.append([*call(home, options), code(str(collector.env_device)), "no", code(function)])
    functions = [row[-1] for row in rows]
    assert functions == [code("_cuda_sync_if_initialized")] * 2 + [code("_do_nothing")], (
        "_sync_env is chosen from the env_device argument, not from the inferred device"
    )
    return {
        "columns": [
            *CONFIGURATION,
            code("env_device") + " in use",
            "Copy blocks",
            code("_sync_env"),
        ],
        "rows": rows,
    }


# -- A live rollout ------------------------------------------------------------


@dataclass
class Copy:
    """One ``.to`` of the loop, and the sync point that the loop reached after it."""

    device: torch.device
    non_blocking: bool
    same: bool  # it returned the carrier itself
    shared: bool  # what it returned holds the carrier's tensors
    point: str | None = None


def pointers(tensordict):
    return [leaf.data_ptr() for leaf in tensordict.values(True, True, sort=True)]


def traced(home, stub=(), **options):
    """The collector after a rollout, and each copy that its loop asked for.

    ``stub`` names types of device to which a copy is not made.
    """
    loop = inspect.unwrap(Collector.rollout).__code__
    original = TensorDict.to
    events = []

    def to(self, *args, **kwargs):
        device = torch.device(args[0]) if args and args[0] is not None else None
        stubbed = device is not None and device.type in stub
        moved = self.copy() if stubbed else original(self, *args, **kwargs)
        if sys._getframe(1).f_code is loop:
            non_blocking = kwargs["non_blocking"]
            shared = pointers(moved) == pointers(self)
            same = moved is self
            events.append(Copy(device, non_blocking, same=same, shared=shared))
        return moved

    def note(point):
        def reached():
            assert events[-1].point is None, f"{point} does not follow a copy of its own"
            events[-1].point = point

        return reached

    with mock.patch.object(TensorDict, "to", to):
        collector = make_collector(home, **options)
        functions = {point: getattr(collector, point) for point in POINTS}
        for point in POINTS:
            setattr(collector, point, note(point))
        collector.rollout()
    vars(collector).update(functions)
    collector.shutdown()
    return collector, events


def one_step(events, frames=FRAMES):
    """The copies of a step, which have to be the same at every step."""
    assert len(events) % frames == 0
    size = len(events) // frames
    steps = [events[start : start + size] for start in range(0, len(events), size or 1)]
    assert all(step == steps[0] for step in steps), "two steps make different copies"
    return steps[0] if steps else []


def describe(step, points):
    """The copies in their order, by where they lead."""
    names = {"_sync_policy": "policy", "_sync_env": "environment", "_sync_storage": "storage"}
    return ", ".join(
        names[point]
        + (" (already there)" if copy.same else " (same tensors)" if copy.shared else "")
        for copy, point in zip(step, points, strict=True)
    )


def live():
    """Copies and sync points of one step, by configuration."""
    configurations = [
        (None, {}),
        (None, {"device": CPU}),
        (CPU, {}),
        (None, {"policy_device": CPU}),
        (None, {"env_device": CPU}),
        (None, {"storing_device": CPU}),
        (CPU, {"policy_device": CPU}),
        (CPU, {"device": CPU, "policy_device": OTHER}),
    ]
    rows = []
    for home, options in configurations:
        collector, events = traced(home, **options)
        step = one_step(events)
        points = [copy.point for copy in step]
        assert None not in points, "a copy is not followed by its sync point"
        assert all(copy.non_blocking for copy in step), "a copy blocks without no_cuda_sync"
        quiet = one_step(traced(home, no_cuda_sync=True, **options)[1])
        assert [copy.device for copy in quiet] == [copy.device for copy in step]
        assert all(copy.point is None for copy in quiet), "no_cuda_sync reaches a sync point"
        assert not any(copy.non_blocking for copy in quiet), (
            "no_cuda_sync leaves a copy to the CPU non-blocking"
        )
        assert ("_sync_storage" in points) == (collector.storing_device is not None), (
            "_sync_storage runs at each step exactly when storing_device is set"
        )
        rows.append(
            [
                *call(home, options),
                describe(step, points) or "none",
                ", ".join(map(code, points)) or "none",
            ]
        )
    copied = {tuple(row[:2]): row[2] for row in rows}
    assert copied[tuple(call(None, {}))] == "none", "with the defaults something is copied"
    assert copied[tuple(call(None, {"device": CPU}))] == "storage (already there)", (
        "with device='cpu' the only copy is one that moves nothing"
    )
    assert copied[tuple(call(CPU, {}))] == "environment (same tensors)", (
        "an environment with a device costs nothing, or copies tensors, with the defaults"
    )
    assert copied[tuple(call(None, {"policy_device": CPU}))] == "policy (same tensors)", (
        "a flag casts although the device that it leads to is not set"
    )
    indexed = copied[tuple(call(CPU, {"device": CPU, "policy_device": OTHER}))]
    assert indexed.split(", ")[0] == "policy", "an index in one argument copies no tensor"
    return {
        "columns": [*CONFIGURATION, "Copies in a step", "Sync points reached"],
        "rows": rows,
    }


def blocking():
    """``non_blocking`` of the copies of one step, with and without ``no_cuda_sync``."""
    options = {"policy_device": "cuda:0", "env_device": CPU, "storing_device": CPU}
    steps = {}
    for no_cuda_sync in (False, True):
        with stack("cuda", initialized=False):
            _, events = traced(None, stub=("cuda",), no_cuda_sync=no_cuda_sync, **options)
        steps[no_cuda_sync] = one_step(events)
    assert [copy.point for copy in steps[False]] == list(POINTS)
    assert [copy.point for copy in steps[True]] == [None] * 3
    asked = {key: [copy.non_blocking for copy in step] for key, step in steps.items()}
    assert asked[False] == [True, True, True], "a copy blocks without no_cuda_sync"
    assert asked[True] == [True, False, False], (
        "no_cuda_sync makes copies to other devices than CUDA blocking, and only those"
    )
    rows = [
        [
            f"{role} on {code(str(copy.device))}",
            *(code(str(asked[key][position])) for key in (False, True)),
        ]
        for position, (role, copy) in enumerate(
            zip(("policy", "environment", "storage"), steps[False], strict=True)
        )
    ]
    return {
        "columns": ["Copy to", code("no_cuda_sync=False"), code("no_cuda_sync=True")],
        "rows": rows,
    }


# -- The cast flags ------------------------------------------------------------


def formula(home, device=None, policy_device=None, env_device=None, storing_device=None):
    """The three flags as the page states them."""
    policy = policy_device or device
    env = env_device or device
    storing = storing_device or device
    if storing is None and policy == env:
        storing = env
    in_use = env or home
    cast_to_policy = policy != env
    cast_to_env = cast_to_policy or in_use != storing
    no_device = policy != in_use or in_use is None
    return cast_to_policy, cast_to_env, no_device


def flags(home, options):
    collector = make_collector(home, frames=1, **options)
    found = (
        collector._cast_to_policy_device,
        collector._cast_to_env_device,
        collector._carrier_has_no_device,
    )
    devices = tuple(
        getattr(collector, name) for name in ("policy_device", "env_device", "storing_device")
    )
    collector.shutdown()
    return found, devices


def grid():
    """Every configuration: environment on None or cpu, each argument None, cpu or the other."""
    for home in (None, CPU):
        for values in itertools.product((None, CPU, OTHER), repeat=len(ARGUMENTS)):
            named = zip(ARGUMENTS, values, strict=True)
            yield home, {name: value for name, value in named if value}


def cast_flags():
    """The table, and the configurations where the flag is not "the two devices differ"."""
    reached = set()
    for home, options in grid():
        found, _ = flags(home, options)
        assert found == formula(home, **options), (
            f"the flags of {home} with {options} are not those of the formula"
        )
        reached.add(found)
    configurations = [
        (None, {}),
        (None, {"device": CPU}),
        (None, {"storing_device": CPU}),
        (CPU, {"storing_device": CPU}),
        (CPU, {}),
        (CPU, {"device": CPU, "storing_device": OTHER}),
        (None, {"policy_device": CPU}),
        (None, {"env_device": CPU}),
        (CPU, {"env_device": CPU}),
        (CPU, {"policy_device": CPU}),
        (None, {"policy_device": CPU, "env_device": CPU}),
        (CPU, {"policy_device": OTHER}),
    ]
    rows, shown, wrong = [], set(), []
    for home, options in configurations:
        found, (policy, env, storing) = flags(home, options)
        shown.add(found)
        differ = policy != env
        if differ != found[0]:
            wrong.append((home, options))
        rows.append(
            [
                *call(home, options),
                code(f"{policy}, {env}, {storing}"),
                *("yes" if value else "no" for value in found),
            ]
        )
    assert shown == reached, "the table misses a combination of flags"
    return {
        "columns": [
            *CONFIGURATION,
            "Policy, env, storing",
            "To policy",
            "To env",
            "No device",
        ],
        "rows": rows,
    }, wrong


def main():
    truth, wrong = cast_flags()
    # "_cast_to_policy_device is True iff policy_device != env_device" fails for these.
    assert (CPU, {}) in wrong
    assert (CPU, {"policy_device": CPU}) in wrong
    result = {
        "sync_functions": sync_functions(),
        "inferred": inferred(),
        "live": live(),
        "blocking": blocking(),
        "cast_flags": truth,
        "configurations": len(list(grid())),
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
