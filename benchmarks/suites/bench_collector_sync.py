"""Actions that the environment reads before the policy's device has computed them.

The policy writes a known, random sequence of actions to CartPole-v1, behind a product of two large
matrices that keeps its device busy. What the environment is handed is copied the moment it is
handed over and compared with what the policy chose. The configurations differ in where the
environment's device is named; ``_sync_env`` is chosen from the collector's argument.
"""

import pytest
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymEnv

from benchmarks import measure, metrics

FRAMES = 50
WORK = {"cpu": 64, "cuda": 4096}  # rows and columns; on a GPU some milliseconds
SEED = 0

METRICS = metrics.declare("""
batch_time [s] Time of a batch: Wall time of collecting one batch.
wrong_actions [1] Wrong actions: Steps of a batch in which the environment read another action than
    the policy chose, and than the batch holds.
frames [1, exact] Frames: Steps of a batch.
""")

# key: (title, arguments of the collector beside policy_device and storing_device, wrong allowed)
CONFIGURATIONS = {
    "named": ("env_device named", {"env_device": "cpu"}, False),
    "adopted": ("env_device adopted from the environment", {}, True),
    "adopted-no-sync": (
        "env_device adopted, no_cuda_sync=True",
        {"no_cuda_sync": True},
        False,
    ),
}


class Script(nn.Module):
    """Plays a fixed sequence of one-hot actions, each behind a large matrix product."""

    def __init__(self, device):
        super().__init__()
        size = WORK[device.type]
        self.work = nn.Parameter(torch.zeros(size, size, device=device))
        bits = torch.randint(2, (FRAMES,), generator=torch.Generator().manual_seed(SEED))
        self.actions = nn.functional.one_hot(bits, 2).to(device)
        self.step = 0

    def forward(self, observation):
        busy = (self.work @ self.work)[0, 0].long()
        self.step += 1
        return self.actions[(self.step - 1) % FRAMES] + busy


class Watched(GymEnv):
    """CartPole-v1 that keeps what it is handed, as it is at that moment."""

    def _step(self, tensordict):
        self.seen.append(tensordict["action"].clone())
        return super()._step(tensordict)


def make_collector(key, device):
    env = Watched("CartPole-v1", device="cpu")
    env.seen = []
    env.set_seed(SEED)
    collector = Collector(
        env,
        TensorDictModule(Script(device), ["observation"], ["action"]),
        frames_per_batch=FRAMES,
        total_frames=-1,
        # On the CPU another name of it: the collector casts as it would for a GPU.
        policy_device=device if device.type == "cuda" else "cpu:0",
        storing_device="cpu",
        auto_register_policy_transforms=False,
        **CONFIGURATIONS[key][1],
    )
    # Where the device has another name than the policy's, the collector plays a copy.
    (script,) = (module for module in collector.policy.modules() if isinstance(module, Script))
    return collector, env, script


def wrong_actions(collector, env, script, device):
    """Collect one batch; return how many actions the environment got wrong."""
    measure.settled(device, lambda: None)
    env.seen.clear()
    script.step = 0
    batch = measure.settled(device, collector.rollout)
    chosen = script.actions.cpu()
    assert len(env.seen) == FRAMES
    assert torch.equal(batch["action"].cpu(), chosen)
    return int((torch.stack(env.seen) != chosen).any(-1).sum())


@pytest.mark.parametrize("key", CONFIGURATIONS)
def bench_batch(benchmark, device, key):
    title, arguments, may_be_wrong = CONFIGURATIONS[key]
    collector, env, script = make_collector(key, device)
    found = []
    measure.timed(
        benchmark, device, lambda: found.append(wrong_actions(collector, env, script, device))
    )
    collector.shutdown()
    found = found[measure.WARMUP_ROUNDS :]
    if device.type == "cpu" or not may_be_wrong:
        assert not any(found)
    measure.note(
        benchmark,
        key,
        "batch_time",
        title=title,
        parameters={
            "env_device": arguments.get("env_device", "none"),
            "no_cuda_sync": arguments.get("no_cuda_sync", False),
            "environment": "CartPole-v1",
        },
        exact={"frames": FRAMES},
        sampled={"wrong_actions": found},
    )
