"""Options and fixtures of the suites. ``python -m benchmarks`` runs them and writes the records."""

import inspect
import os
import platform
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks import measure
from benchmarks.checkpoint import Checkpoint
from benchmarks.record import DEVICES
from benchmarks.timing import Benchmark

# Named one by one: a variable of another name may hold a path or a secret.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TRITON_INTERPRET",
)
SUITE = pytest.StashKey[dict]()


def pytest_addoption(parser):
    parser.addoption("--device", choices=DEVICES, default="cpu", help="where to measure")
    parser.addoption(
        "--checkpoint", help="file that keeps each finished benchmark; goes on after it"
    )


def pytest_configure(config):
    if path := config.getoption("--checkpoint"):
        config.pluginmanager.register(Keeper(Checkpoint(path)))
    torch.set_num_threads(measure.THREADS)
    # Tracing scan raises it in torch 2.11; as an error it would fail the check that scan runs.
    config.addinivalue_line(
        "filterwarnings", "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
    )
    # The profiler of torch 2.11 raises it at its end.
    config.addinivalue_line(
        "filterwarnings", "ignore:Warning. Profiler clears events at the end:UserWarning"
    )
    if config.getoption("--device") == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError("--device cuda: torch finds no CUDA device; use --device cpu")


def pytest_collection_modifyitems(config, items):
    """Leave out what the device cannot run; remember what the suite says about itself."""
    if config.getoption("--device") == "cpu":
        left_out = [item for item in items if item.get_closest_marker("cuda")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        title, _, description = inspect.getdoc(item.module).partition("\n\n")
        config.stash[SUITE] = {
            "title": title.removesuffix("."),
            "description": " ".join(description.split()),
            "metrics": item.module.METRICS,
        }


@pytest.fixture(scope="session")
def device(request):
    # With its index, as a tensor on it says: a collector copies a policy from "cuda:0" to "cuda".
    name = request.config.getoption("--device")
    return torch.device(name, 0) if name == "cuda" else torch.device(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skip what needs torchrl's C++ extension where it does not load beside this torch."""
    try:
        return (yield)
    except RuntimeError as error:
        if "is not available. See warning above" not in str(error):
            raise
        pytest.skip(f"torchrl's C++ extension does not load beside torch {torch.__version__}")


@pytest.fixture
def benchmark():
    return Benchmark()


class Keeper:
    """Writes the checkpoint of a run, and leaves out what an interrupted run has finished."""

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        if items:
            self.checkpoint.add(suite=config.stash[SUITE] | describe_settings(config))
        finished = {entry["name"] for entry in self.checkpoint.finished}
        config.hook.pytest_deselected(items=[item for item in items if item.name in finished])
        items[:] = [item for item in items if item.name not in finished]

    def pytest_collectreport(self, report):
        if report.skipped:  # a module that lacks what all of it needs
            self.checkpoint.add(
                skipped={"name": Path(report.nodeid).stem, "reason": reason(report)}
            )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.skipped:
            self.checkpoint.add(skipped={"name": item.name, "reason": reason(report)})
        elif report.passed and call.when == "call":
            benchmark = item.funcargs["benchmark"]
            if not benchmark.seconds:
                raise pytest.UsageError(f"{item.name} has timed nothing: call measure.timed")
            stats = {"data": benchmark.seconds}
            noted = {"extra_info": benchmark.extra_info, "stats": stats}
            self.checkpoint.add(passed={"name": item.name, **noted})
        return report


def reason(report):
    """The words of a skip, without the place."""
    return str(report.longrepr[2]).removeprefix("Skipped: ")


def describe_settings(config):
    return {
        "machine": describe_machine(config.getoption("--device")),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "threads": torch.get_num_threads(),
    }


def describe_machine(device):
    cpu = cpu_model()
    machine = {
        "device_name": cpu,
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        machine |= {"device_name": properties.name, "device_memory": properties.total_memory}
    return machine


def cpu_model():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123
            names = [line.partition(":")[2] for line in file if line.startswith("model name")]
    except OSError:  # not Linux
        names = []
    return (names or [platform.processor() or platform.machine()])[0].strip()
