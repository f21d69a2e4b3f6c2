"""What is read from a buffer that workers filled, by start method; for the page on replay.

Two workers write one batch each. CartPole pays a reward of one at every step, so a row with another
reward was written by nobody.
"""

import json
import multiprocessing
import os
import warnings

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv

N_FRAMES = 200  # so many that two streams of random actions are not equal by chance


def cartpole():
    return GymEnv("CartPole-v1")


def started(method, kind, options, seed):
    """Whether what was read was written, and whether both workers acted alike."""
    multiprocessing.set_start_method(method, force=True)  # first: a buffer holds locks
    buffer = TensorDictReplayBuffer(storage=kind(N_FRAMES, **options), batch_size=16)
    collector = MultiSyncCollector(
        [cartpole] * 2,
        None,
        frames_per_batch=N_FRAMES,
        total_frames=N_FRAMES,
        replay_buffer=buffer,
    )
    try:
        if seed is not None:
            collector.set_seed(seed)
        for _ in collector:
            pass
    finally:
        collector.shutdown()
    rows = buffer[:]
    assert len(buffer) == len(rows) == N_FRAMES
    written = bool((rows["next", "reward"] == 1).all())
    first, second = rows["action"].chunk(2)
    return written, torch.equal(first, second)


def table():
    shared = {"shared_init": True}
    default = multiprocessing.get_start_method()
    assert default == "spawn", f"torchrl sets {default}"
    cells = (
        ("fork", LazyTensorStorage, {}, None),
        ("fork", LazyTensorStorage, shared, None),
        ("fork", LazyMemmapStorage, {}, 0),
        ("forkserver", LazyTensorStorage, {}, None),
        ("forkserver", LazyTensorStorage, {}, 0),
    )
    rows = []
    for method, storage, options, seed in cells:
        written, alike = started(method, storage, options, seed)
        sound = method != "fork" or storage is LazyMemmapStorage or options == shared
        assert written is sound, (
            f"{method}, {storage.__name__}: what was read was written: {written}"
        )
        if sound:
            copied = seed is None
            assert alike is copied, f"{method}, seed {seed}: the workers act alike: {alike}"
        text = ", ".join(["n", *(f"{name}={value}" for name, value in options.items())])
        rows.append(
            [
                f'``"{method}"``',
                f"``{storage.__name__}({text})``",
                str(N_FRAMES),
                "the rows that were written" if written else "**uninitialized memory**",
                "no" if seed is None else f"``set_seed({seed})``",
                ("**yes**" if alike else "no") if sound else "cannot be read",
            ]
        )
    columns = [
        "Start method",
        "Storage",
        "``len``",
        "What the main process reads",
        "Seeded",
        "Workers act alike",
    ]
    return {"columns": columns, "rows": rows}


if __name__ == "__main__":
    # Python from 3.12 on says so itself; that it may is the subject of this run.
    warnings.filterwarnings("ignore", message=".*use of fork\\(\\) may lead to deadlocks")
    multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])
    torch.set_num_threads(1)
    result = {"methods": table()}
    print(json.dumps(result))
