"""An environment that counts its steps and costs what it is told to, and a check of its frames.

A frame says which environment made it, in which episode and at which step, so every frame that a
collector returns can be checked against the one before it. The cost of a step stands in a file that
all processes map into memory: it can be changed while workers run.

A change here voids the benchmarks that reach it.
"""

import mmap
import struct
import time
from pathlib import Path

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Binary, Composite, Unbounded
from torchrl.envs import EnvBase

EPISODE = 100  # steps
OBSERVED = 3  # environment, episode, step
ACTIONS = 2
SEED = 0
WAITS = ("none", "busy", "sleep")
_COST = struct.Struct("dd")  # seconds, index into WAITS


class StepCost:
    """The cost of a step: a file beside the processes that use it."""

    def __init__(self, path):
        self.path = str(path)
        if not Path(path).exists():
            Path(path).write_bytes(_COST.pack(0, 0))
        with open(path, "r+b") as file:  # noqa: PTH123
            self.memory = mmap.mmap(file.fileno(), _COST.size)

    def __reduce__(self):
        return StepCost, (self.path,)

    def set(self, step_ms, wait):
        assert (step_ms == 0) is (wait == "none"), (step_ms, wait)
        _COST.pack_into(self.memory, 0, step_ms / 1000, WAITS.index(wait))

    def spend(self, share=1.0):
        """Burn or wait, as set. To burn keeps the interpreter's lock, as Python code does."""
        seconds, wait = _COST.unpack_from(self.memory)
        wait = WAITS[int(wait)]
        if wait == "sleep":
            time.sleep(share * seconds)
        elif wait == "busy":
            end = time.thread_time() + share * seconds
            while time.thread_time() < end:
                pass


class Counting(EnvBase):
    """Observes ``(environment, episode, step)``; an episode has EPISODE steps.

    *share* of *step_cost* is the cost of a step. With *image_bytes* a frame carries an
    observation of that size beside the small one.
    """

    def __init__(self, number, step_cost=None, share=1.0, image_bytes=0):
        super().__init__()
        self.number, self.step_cost, self.share = number, step_cost, share
        self.image_bytes = image_bytes
        self.episode, self.step_number = -1, 0
        self.observation_spec = Composite(observation=Unbounded((OBSERVED,)))
        if image_bytes:
            self.observation_spec["image"] = Unbounded((image_bytes,), dtype=torch.uint8)
        self.action_spec = Unbounded((ACTIONS,))
        self.reward_spec = Unbounded((1,))
        flag = Binary(1, dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone(), truncated=flag.clone())

    def _data(self, done):
        image = {}
        if self.image_bytes:
            value = self.step_number % 256
            image["image"] = torch.full((self.image_bytes,), value, dtype=torch.uint8)
        return {
            **image,
            "observation": torch.tensor([self.number, self.episode, self.step_number]).float(),
            "done": torch.tensor([done]),
            "terminated": torch.tensor([done]),
            "truncated": torch.tensor([False]),
        }

    def _reset(self, tensordict=None, **options):
        self.episode, self.step_number = self.episode + 1, 0
        return TensorDict(self._data(done=False), [])

    def _step(self, tensordict):
        if self.step_cost is not None:
            self.step_cost.spend(self.share)
        self.step_number += 1
        data = self._data(self.step_number == EPISODE)
        return TensorDict({**data, "reward": tensordict["action"].sum(-1, keepdim=True)}, [])

    def _set_seed(self, seed):
        """Nothing here is random."""


def make_policy(hidden_units=64):
    """The same weights in every process."""
    torch.manual_seed(SEED)
    network = nn.Sequential(
        nn.Linear(OBSERVED, hidden_units), nn.Tanh(), nn.Linear(hidden_units, ACTIONS)
    )
    return TensorDictModule(network, ["observation"], ["action"])


# -- The check -------------------------------------------------------------------


def rows_of(batch):
    """Per environment its frames in order: ``(episode, step, next step, done)``."""
    assert batch.ndim == 1 or batch.names[-1] == "time", batch.names
    found = {}
    columns = [
        batch["observation"],
        batch["next", "observation"][..., 1:],
        batch["next", "done"].float(),
    ]
    columns = [column.cpu() for column in columns]
    for number, *row in torch.cat(columns, -1).reshape(-1, 6).tolist():
        found.setdefault(int(number), []).append(tuple(map(int, row)))
    return found


def check_frames(batches, contiguous=True, episode_steps=EPISODE):
    """Assert that each environment went on where it was, frame by frame; return the frames.

    Without *contiguous*, frames between two batches may be missing: none may come twice.
    *episode_steps* is the length of the episodes.
    """
    last, frames = {}, 0
    for batch in batches:
        for number, rows in rows_of(batch).items():
            for position, (episode, step, next_episode, next_step, done) in enumerate(rows):
                assert (next_episode, next_step) == (episode, step + 1), rows
                assert done == (next_step == episode_steps), rows
                if number in last:
                    before = last[number]
                    if contiguous or position:
                        wanted = (before[0] + 1, 0) if before[1] == episode_steps else before
                        assert (episode, step) == wanted, (number, wanted, (episode, step))
                    else:
                        assert (episode, step) >= before, (number, before, (episode, step))
                last[number] = (next_episode, next_step)
            frames += len(rows)
    assert frames, "no frames"
    return frames


def check_actions(batch, policy):
    """Assert that the actions are those of *policy*."""
    batch = batch.reshape(-1)
    with torch.no_grad():
        wanted = policy.module(batch["observation"].cpu())
    torch.testing.assert_close(batch["action"].cpu(), wanted)
    torch.testing.assert_close(batch["next", "reward"].cpu(), wanted.sum(-1, keepdim=True))
