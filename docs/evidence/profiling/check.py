"""Which half of a training loop to look at; for the page on profiling.

The verdicts shown are those on loops whose slow half is known: one of them sleeps.
"""

import json
import os
import time
from functools import partial

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from torchrl import timeit
from torchrl.collectors import Collector
from torchrl.envs import GymEnv

FRAMES = 8
SLEEP = 1.0  # seconds, many times what the other half takes, on a busy machine too


def which_half(collector, update, batches=5, warmup=2):
    """Which half of a loop to look at, and the share of collection."""
    source = iter(collector)
    for number in range(warmup + batches):
        if number == warmup:
            timeit.erase()
        with timeit("collect", sync=True):
            batch = next(source)
        with timeit("update", sync=True):
            update(batch)
    seconds = timeit.todict()
    share = seconds["collect"] / (seconds["collect"] + seconds["update"])
    if share > 2 / 3:
        return "collection: environments, collectors, device_placement", share
    if share < 1 / 3:
        return "update: replay_buffers, advantages_and_losses, compile, networks", share
    return "both: overlap them with MultiAsyncCollector, see collectors", share


def verdict(collecting, updating):
    """The verdict on a loop whose halves sleep for so many seconds."""
    env = GymEnv("CartPole-v1")
    policy = env.rand_action

    def act(data):
        time.sleep(collecting / FRAMES)
        return policy(data)

    collector = Collector(env, act, frames_per_batch=FRAMES, total_frames=-1, trust_policy=True)
    half, share = which_half(collector, lambda batch: time.sleep(updating), batches=1, warmup=1)
    collector.shutdown()
    assert 0 < share < 1
    return half


def main():
    torch.set_num_threads(1)
    loops = {
        "the policy sleeps": partial(verdict, SLEEP, 0),
        "the update sleeps": partial(verdict, 0, SLEEP),
    }
    rows = [[name, find()] for name, find in loops.items()]
    assert [said.partition(":")[0] for _, said in rows] == ["collection", "update"]
    return {"columns": ["Loop", "Verdict"], "rows": rows}


if __name__ == "__main__":
    print(json.dumps({"verdicts": main()}))
