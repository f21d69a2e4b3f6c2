"""What an item of the checklist gains in a pipeline, for docs/performance/checklist.rst.

The verdicts shown are those on iterations whose difference is known: one of them sleeps longer.
"""

import json
import os
import statistics
import time
from functools import partial

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from torchrl.collectors import Collector
from torchrl.envs import GymEnv

FASTER, SLOWER, NEITHER = "faster: keep it", "slower: leave it out", "no clear difference"


def gain(before, after, rounds=7):
    """Whether *after* is faster than *before*, and how many times; both run one iteration."""
    gains = []
    for turn in range(rounds + 1):
        seconds = [0.0, 0.0]
        for which in (0, 1) if turn % 2 else (1, 0):
            start = time.perf_counter()
            (before, after)[which]()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[which] = time.perf_counter() - start
        gains.append(seconds[0] / seconds[1])
    low, middle, high = statistics.quantiles(gains[1:], n=4)  # the first warms up
    return (FASTER if low > 1 else SLOWER if high < 1 else NEITHER), middle


def make_iteration(**options):
    """A collector, and one iteration of a loop with it; yours has an update as well."""
    collector = Collector(
        GymEnv("CartPole-v1"), None, frames_per_batch=16, total_frames=-1, **options
    )
    batches = iter(collector)
    return collector, lambda: next(batches)


def try_it():
    """The verdict on an item in a real collector; it depends on the machine."""
    without, before = make_iteration()
    with_item, after = make_iteration(track_traj_ids=False)
    verdict, times = gain(before, after)
    without.shutdown()
    with_item.shutdown()
    assert times > 0
    return verdict


def main():
    torch.set_num_threads(1)
    assert try_it() in (FASTER, SLOWER, NEITHER)
    short, long = partial(time.sleep, 0.01), partial(time.sleep, 0.15)
    rows = [
        ["the item takes a sleep away", gain(long, short, rounds=5)[0]],
        ["the item adds a sleep", gain(short, long, rounds=5)[0]],
    ]
    assert [verdict for _, verdict in rows] == [FASTER, SLOWER]
    return {"columns": ["Iterations", "Verdict"], "rows": rows}


if __name__ == "__main__":
    print(json.dumps({"verdicts": main()}))
