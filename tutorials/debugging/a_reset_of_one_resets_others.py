"""
The end of one episode resets all environments
==============================================

An environment with a batch size of its own, such as a vectorized simulator, plays several episodes
at once. Whenever one of them ends, the others jump to a start, too. Their episodes go on, and
no row marks the jump.

:Subsystem: environments
:Effect: silent
:Cause: ``_reset`` draws a new state for every row, and the environment keeps its state on ``self``.
   It ignores the entry ``"_reset"`` of its input, which marks the rows whose episode has ended.
:Fix: Change only the marked rows, or keep the state in the TensorDict.
:Source: :source:`torchrl.envs.EnvBase.reset`
:Behind it: :doc:`/how-to/write_an_environment`
:Threads: none found
:Also called: partial reset, reset mask, auto-reset of vectorized environments, teleport in
   mid-episode, returns differ with more environments
"""

# %%
# Break it
# --------
#
# Four points go to the right or wait, each until it has passed nine. They start at random places,
# so their episodes end at different times.

import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, check_env_specs


class Walks(EnvBase):
    """Several points, each with an episode of its own."""

    def __init__(self, reads_the_mask):
        super().__init__(batch_size=[4])
        self.reads_the_mask = reads_the_mask
        self.observation_spec = Composite(observation=Unbounded((4, 1)), shape=[4])
        self.action_spec = Categorical(2, shape=[4])
        self.reward_spec = Unbounded((4, 1))

    def _data(self):
        observation = self.position.clone()
        return {"observation": observation, "terminated": observation > 9}

    def _reset(self, tensordict=None, **options):
        start = torch.rand(4, 1) * 8
        if self.reads_the_mask and tensordict is not None and "_reset" in tensordict:
            start = torch.where(tensordict["_reset"], start, self.position)
        self.position = start
        return TensorDict(self._data(), batch_size=[4])

    def _step(self, tensordict):
        self.position = self.position + tensordict["action"].unsqueeze(-1)
        reward = torch.ones(4, 1)
        return TensorDict({**self._data(), "reward": reward}, batch_size=[4])

    def _set_seed(self, seed):
        torch.manual_seed(seed)


def collect(reads_the_mask):
    env = Walks(reads_the_mask)
    check_env_specs(env)
    collector = Collector(env, None, frames_per_batch=200, total_frames=-1)
    collector.set_seed(0)
    batch = next(iter(collector)).clone()
    collector.shutdown()
    return {"env": env, "batch": batch}


broken = collect(reads_the_mask=False)

# %%
# Check it
# --------
#
# Count the steps that are longer than one action can make them.


def check(batch, longest):
    moved = (batch["next", "observation"] - batch["observation"]).abs()
    return {"steps": batch.numel(), "jumps": int((moved > longest).sum())}


unhealthy = check(broken["batch"], longest=1.01)
print(unhealthy)
assert unhealthy["jumps"] > 10, "no longer reproduces: the others are kept"

# %%
# The jump comes one step after the end. The observations between the two are kept: TorchRL takes
# only the marked rows from what ``_reset`` returns, and the other rows go on as they were.

batch = broken["batch"]
goes_on = ~batch["next", "done"][:, :-1]
before, after = batch["next", "observation"][:, :-1], batch["observation"][:, 1:]
assert torch.equal(before[goes_on], after[goes_on])

# %%
# Fix it
# ------
#
# Without ``"_reset"`` in the input, reset all rows. An environment without state on ``self``, as in
# :doc:`the guide </how-to/write_an_environment>`, may draw all rows at any time.

fixed = collect(reads_the_mask=True)
healthy = check(fixed["batch"], longest=1.01)
print(healthy)
assert healthy["jumps"] == 0, "the fix does not work"
