"""What the suites share: device, rounds, synchronization and peak memory.

A change here voids the benchmarks that reach it.
"""

import json
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

ROUNDS = 15
WARMUP_ROUNDS = 3
MEMORY_ROUNDS = 3
THREADS = 1  # steady on a machine that does something else at the same time

# cuDNN's recurrent kernels round to TF32 by default; the other backends do not.
torch.backends.cudnn.allow_tf32 = False


def settled(device, function):
    """Return *function*'s result once *device* has finished all work."""
    result = function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return result


def timed(benchmark, device, function):
    """Time *function* over the stated rounds; return the result of its last call."""
    return benchmark.pedantic(
        settled, args=(device, function), rounds=ROUNDS, warmup_rounds=WARMUP_ROUNDS
    )


def peak_memory(device, function):
    """Bytes that torch's allocator holds at most for *function*, over what it held before.

    On CUDA the caching allocator keeps this number. On the CPU it is the highest running sum of
    the profiler's allocation events. Memory that NumPy owns is not in it.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        settled(device, function)
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = function()  # held until the profiler stops: what is returned counts
    del result
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    held = peak = 0
    for event in sorted((e for e in events if e["name"] == "[memory]"), key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


def peaks(device, function):
    """The peak memory of *function*, several times."""
    function()
    return [peak_memory(device, function) for _ in range(MEMORY_ROUNDS)]


def note(benchmark, key, timing, *, title, parameters, exact=None, sampled=None):
    """Attach to *benchmark* what its record needs beside the timing.

    *timing* names the metric of the timed rounds, *exact* maps metrics to single values, *sampled*
    maps metrics to lists of whole numbers.
    """
    benchmark.extra_info.update(
        key=key,
        timing=timing,
        warmup_rounds=WARMUP_ROUNDS,
        title=title,
        parameters=parameters,
        exact=exact or {},
        sampled=sampled or {},
    )


def resident_memory(field):
    """Bytes of this process: ``VmRSS`` now, ``VmHWM`` at most so far. Linux only."""
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return 1024 * int(value.split()[0])
    raise RuntimeError(f"/proc/self/status has no field {field}; run this on Linux")
