"""Which form of GAE is faster on this machine, for docs/performance/advantages_and_losses.rst.

The page shows all below the level of the log. The answer depends on the machine, so the page
shows the code and the answers that are possible.
"""

import json
import os

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import time

import torch
from torchrl.objectives.value import functional

LOOP, VECTORIZED, NEITHER = "vectorized=False", "vectorized=True", "no clear winner"
MARGIN = 1.2  # a smaller factor is noise


def faster_gae(batch, steps, ends, device="cpu", rounds=20):
    """Return the setting of ``vectorized`` for batches of this size, and the factor."""
    value, following, reward = torch.randn(3, batch, steps, 1, device=device)
    done = torch.rand(batch, steps, 1, device=device) < ends
    forms = {
        LOOP: functional.generalized_advantage_estimate,
        VECTORIZED: functional.vec_generalized_advantage_estimate,
    }
    best = dict.fromkeys(forms, float("inf"))
    for _ in range(rounds):  # in turn, so that both meet the same machine
        for name, form in forms.items():
            begin = time.perf_counter()
            advantage, _ = form(0.99, 0.95, value, following, reward, done)
            advantage.sum().item()  # waits for a GPU
            best[name] = min(best[name], time.perf_counter() - begin)
    first, second = sorted(best, key=best.get)
    factor = best[second] / best[first]
    return (first if factor > MARGIN else NEITHER), factor


if __name__ == "__main__":
    verdict, factor = faster_gae(batch=16, steps=128, ends=0.02)
    assert verdict in (LOOP, VECTORIZED, NEITHER)
    assert factor >= 1
    print(json.dumps({"verdicts": f"{LOOP}\n{VECTORIZED}\n{NEITHER}"}))
