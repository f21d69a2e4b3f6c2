"""The first training step of a new process: tracing, compilation and autotuning.

Each configuration runs in a process of its own, with empty caches of TorchInductor and Triton. The
process takes a step with "pad" first, so that loading and starting torch is no part of the time.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import measure, metrics
from benchmarks.suites import bench_recurrent_backends

ROOT = Path(__file__).parents[2]
SIZES = {"batch": 16, "steps": 128, "hidden": 128, "resets": 4}
LIMIT_S = 500
NAMES = ("pad", "scan", "scan-compiled", "triton")

METRICS = metrics.declare("""
process_time [s] Process: Wall time of the whole process: imports, one step of pad, two steps of the
    configuration.
first_step_time [s] First step: Wall time of the first forward and backward pass.
second_step_time [s] Second step: Wall time of the same pass, once more.
compiled_kernels [1, exact] GPU kernels compiled: Binaries in Triton's cache after the first step:
    autotuning compiles one for each of its configurations.
""")
CASES = [
    pytest.param(cell, name, marks=pytest.mark.cuda if name == "triton" else ())
    for cell in bench_recurrent_backends.CELLS
    for name in NAMES
]

CHILD = """\
import json, sys, time
from pathlib import Path
import torch
from benchmarks import measure
from benchmarks.suites import bench_recurrent_backends as suite

torch.set_num_threads(measure.THREADS)
torch.set_float32_matmul_precision("highest")
sizes, name, device, kernels = json.loads(sys.argv[1])
case, device = suite.Case(**sizes), torch.device(device)
slices = suite.make_slices(case, device)
measure.settled(device, lambda: suite.Contender(case, "pad", device).step(slices))
ours = suite.Contender(case, name, device)
seconds = []
for _ in range(2):
    begin = time.perf_counter()
    measure.settled(device, lambda: ours.step(slices))
    seconds.append(time.perf_counter() - begin)
    binaries = sum(1 for _ in Path(kernels).rglob("*.cubin"))
    seconds.append(binaries)
print(json.dumps(seconds))
"""


def run_child(cell, name, device, folder):
    """Seconds of the first and of the second step, and the kernels compiled by the first."""
    kernels = folder / "triton"
    asked = [{"cell": cell, **SIZES}, name, device.type, str(kernels)]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(asked)],
        cwd=ROOT,
        env=os.environ
        | {"TRITON_CACHE_DIR": str(kernels), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    first, binaries, second, later = json.loads(child.stdout.splitlines()[-1])
    assert later == binaries, "the second step compiled as well"
    return first, second, binaries


@pytest.mark.parametrize(("cell", "name"), CASES)
def bench_first_step(benchmark, device, tmp_path, cell, name):
    first, second, binaries = benchmark.pedantic(
        run_child, args=(cell, name, device, tmp_path), rounds=1
    )
    configuration = bench_recurrent_backends.CONFIGURATIONS[name]
    measure.note(
        benchmark,
        f"{cell}-{name}",
        "process_time",
        title=f"{cell.upper()} {configuration.title}",
        parameters={
            **SIZES,
            "cell": cell.upper(),
            "backend": configuration.title,
            "compiled": configuration.compiled,
            **configuration.arguments,
        },
        exact={"compiled_kernels": binaries},
        sampled={"first_step_time": [first], "second_step_time": [second]},
    )
    benchmark.extra_info["warmup_rounds"] = 0
