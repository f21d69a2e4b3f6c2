"""Which ranges a trace has, by process, and when no trace is written; for the page on profiling.

Every trace here is one that ``enable_profile`` or ``torch.profiler`` has written, and the tables
count what is in the files. Workers start by "forkserver" with TorchRL preloaded: objects reach them
pickled, as under "spawn", but TorchRL is imported once instead of once for each worker.
"""

import json
import multiprocessing
import os
import tempfile
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

# Before torchrl is imported, which reads the second one then. The third silences a log.
os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")
os.environ["TORCHRL_PROFILING"] = "1"
os.environ["KINETO_LOG_LEVEL"] = "99"

import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torchrl import set_profiling_enabled
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv

FRAMES = 4  # in a batch of one worker; so few that no episode ends
PLAIN = {"activities": ["cpu"], "with_stack": False, "record_shapes": False}
NO_WARMUP = "Profiler won't be using warmup"  # torch's warning about how enable_profile profiles


def make_env():
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter())
    env.set_seed(0)
    return env


def make_collector(**options):
    return Collector(make_env, None, frames_per_batch=FRAMES, total_frames=-1, **options)


def ranges_in(path):
    """How often each named range stands in a trace."""
    events = json.loads(Path(path).read_text("utf-8"))["traceEvents"]
    return Counter(event["name"] for event in events if event.get("cat") == "user_annotation")


def watched(function):
    """The ranges of the driver while *function* runs."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        function()
    profiler.export_chrome_trace("driver.json")
    return ranges_in("driver.json")


# -- Ranges by process -----------------------------------------------------------


def in_one_process():
    collector = make_collector()
    batches = iter(collector)
    next(batches)  # the first one resets
    found = watched(lambda: next(batches))
    collector.shutdown()
    return found


def in_workers():
    """A batch as the driver sees it, and as worker 0 does; then what stops a trace early."""
    collector = MultiSyncCollector(
        [make_env] * 2, None, frames_per_batch=2 * FRAMES, total_frames=-1, cat_results="stack"
    )
    collector.enable_profile(workers=[0], num_rollouts=2, save_path="w{worker_idx}.json", **PLAIN)
    batches = iter(collector)
    next(batches)
    driver = watched(lambda: next(batches))
    try:
        collector.map_fn("set_profiling_enabled", list_of_args=[(False,)] * 2)
        refusal = None
    except AttributeError as error:
        refusal = f"{type(error).__name__}: {error}".partition(" in =")[0]  # the rest is a repr
    collector.shutdown()
    return driver, ranges_in("w0.json"), refusal


def short_in_worker():
    """A worker that is shut down before its last rollout, and one whose profile is disabled.

    A hook switches the ranges of both off.
    """
    written = []
    for disable in (False, True):
        collector = MultiSyncCollector(
            [make_env],
            None,
            frames_per_batch=FRAMES,
            total_frames=-1,
            cat_results="stack",
            pre_collect_hook=partial(set_profiling_enabled, False),
        )
        collector.enable_profile(num_rollouts=9, save_path=f"short-{disable}.json", **PLAIN)
        batches = iter(collector)
        for _ in range(3):
            next(batches)
        if disable:
            collector.disable_profile()
        collector.shutdown()
        written.append(Path(f"short-{disable}.json").exists())
    found = ranges_in("short-True.json")
    assert found["ProfilerStep#1"] == 1
    assert not any(name.startswith("Collector.") for name in found), "the hook changes nothing"
    return written


def ranges_table(driver, worker):
    alone = in_one_process()
    names = [
        "Collector.rollout",
        "Collector.policy",
        "EnvBase.step_and_maybe_reset",
        "EnvBase.step",
        "TransformedEnv._step",
    ]
    assert [alone[name] for name in names] == [1, *[FRAMES] * 4]
    assert [worker[name] for name in names] == [1, *[FRAMES] * 4]
    assert not any(driver[name] for name in names), "the driver of workers sees none of them"
    rows = [
        [f"``{name}``", *(str(seen[name] or "–") for seen in (alone, driver, worker))]
        for name in names
    ]
    columns = [
        "Range",
        "``Collector``",
        "``MultiSyncCollector``, driver",
        "``MultiSyncCollector``, worker 0",
    ]
    return {"columns": columns, "rows": rows}


# -- Traces that are not written ---------------------------------------------------


def attempt(batches=5, disable=False, collector=None, rollout=False, **options):
    """The files and ranges of a profiled run of one process, and the warnings beside torch's."""
    for path in Path().glob("collector_profile_*.json"):
        path.unlink()
    collector = make_collector(**(collector or {}))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        collector.enable_profile(**PLAIN | options)
        if rollout:
            for _ in range(batches):
                collector.rollout()
        else:
            for _, _ in zip(range(batches), collector, strict=False):
                with record_function("update"):
                    torch.ones(1) + 1
        if disable:
            collector.disable_profile()
        collector.shutdown()
    said = [str(warning.message) for warning in said if NO_WARMUP not in str(warning.message)]
    files = list(Path().glob("collector_profile_*.json"))
    return ranges_in(files[0]) if files else None, said


def buffer():
    return ReplayBuffer(storage=LazyTensorStorage(100))


CASES = {
    "five batches": ({}, 2),
    "two batches": ({"batches": 2}, None),
    "two batches, then ``disable_profile()``": ({"batches": 2, "disable": True}, 1),
    "``num_rollouts=1, warmup_rollouts=0``": ({"num_rollouts": 1, "warmup_rollouts": 0}, 0),
    "``num_rollouts=3, warmup_rollouts=0``": ({"num_rollouts": 3, "warmup_rollouts": 0}, 2),
    '``activities=["gpu"]``, which is no name': ({"activities": ["gpu"]}, None),
    "``on_trace_ready`` that writes nothing": ({"on_trace_ready": id}, None),
    "``collector.rollout()`` instead of a loop": ({"rollout": True}, None),
    "``replay_buffer`` with ``extend_buffer=False``": (
        {"collector": {"replay_buffer": buffer, "extend_buffer": False}},
        None,
    ),
}


def silent_table(written_short, written_disabled):
    rows = []
    for title, (options, wanted) in CASES.items():
        options = dict(options)
        if "collector" in options:
            options["collector"] = {
                name: value() if callable(value) else value
                for name, value in options["collector"].items()
            }
        found, said = attempt(**options)
        assert said == [], said
        rollouts = None if found is None else found["Collector.rollout"]
        assert rollouts == wanted, (title, found)
        rows.append([title, "no" if found is None else "yes", str(rollouts or 0)])
    assert [written_short, written_disabled] == [False, True]
    rows.append(["a worker that is shut down early", "no", "0"])
    return {"columns": ["Run", "Trace written", "Rollouts in it"], "rows": rows}


def between_rollouts():
    """What the trace of a single process holds beside rollouts."""
    found, _ = attempt()
    assert found["update"] == found["Collector.rollout"] == 2
    return found["update"]


def main():
    os.chdir(tempfile.mkdtemp())
    driver, worker, refusal = in_workers()
    assert refusal is not None, "map_fn sets the flag of a worker"
    return {
        "ranges": ranges_table(driver, worker),
        "refusal": refusal,
        "silent": silent_table(*short_in_worker()),
        "updates": between_rollouts(),
    }


def start_workers_by_forkserver():
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])


if __name__ == "__main__":
    start_workers_by_forkserver()
    print(json.dumps(main()))
