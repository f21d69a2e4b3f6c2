"""
Only the first episode is long
==============================

In a custom environment, the first episode has the right length. All later episodes end after one
step, so each of their returns is a single reward.

:Subsystem: environments
:Effect: silent
:Cause: ``_step`` changes an attribute (here the number of steps) that ``_reset`` does not reset.
   The attribute keeps its last value.
:Fix: In ``_reset``, set every attribute of the episode that ``_step`` changes.
:Source: :source:`torchrl.envs.EnvBase.reset`
:Behind it: :doc:`/reference/data_layout`
:Threads: none found
:Also called: episodes of length 1, reset does not reset, counter keeps counting, episode return
   grows over episodes
"""

# %%
# Break it
# --------
#
# An episode should last ten steps. ``_reset`` resets the position, but not ``clock``, the number of
# steps.

import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase


class Walk(EnvBase):
    """Left or right, ten times."""

    def __init__(self, resets_clock):
        super().__init__()
        self.resets_clock = resets_clock
        self.position, self.clock = torch.zeros(1), 0
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec = Categorical(2)
        self.reward_spec = Unbounded((1,))

    def _data(self, done):
        return {"observation": self.position.clone(), "done": torch.tensor([done])}

    def _reset(self, tensordict=None, **options):
        self.position = torch.zeros(1)
        if self.resets_clock:
            self.clock = 0
        return TensorDict(self._data(done=False))

    def _step(self, tensordict):
        self.clock += 1
        self.position = self.position + 2 * tensordict["action"] - 1
        data = self._data(done=self.clock >= 10)
        return TensorDict({**data, "reward": self.position.clone()})

    def _set_seed(self, seed):
        """Nothing in here is random."""


def collect(resets_clock):
    collector = Collector(
        Walk(resets_clock), None, frames_per_batch=50, total_frames=-1
    )
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"batch": batch}


broken = collect(resets_clock=False)

# %%
# Check it
# --------


def check(batch):
    ends = batch["next", "done"][:, 0].nonzero().flatten().tolist()
    return {"lengths": [b - a for a, b in zip([-1, *ends], ends, strict=False)][:5]}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["lengths"] == [10, 1, 1, 1, 1], "no longer reproduces"

# %%
# TorchRL's ``reset`` calls ``_reset`` and adds the done flags that are missing. It does not know
# the attributes of your environment.
#
# Fix it
# ------
#
# Reset ``clock`` as well. Or use :class:`~torchrl.envs.transforms.StepCounter`, which keeps a
# counter in the TensorDict and resets it for you.

fixed = collect(resets_clock=True)
healthy = check(fixed["batch"])
print(healthy)
assert healthy["lengths"] == [10] * 5, "the fix does not work"
