"""What several defects need: names of subsystems, small modules and transforms."""

import torch
from torch import nn
from torchrl.envs import Transform

AGENTS = "several agents"
BUFFERS = "replay buffers"
COLLECTORS = "collectors"
ENVIRONMENTS = "environments"
EVALUATION = "evaluation"
EXPLORATION = "exploration"
LEARNING = "optimization"
LOSSES = "value estimation and losses"
PROCESSES = "multi-process"
RECURRENT_STATE = "recurrent state"
SLICES = "trajectories and slices"
STORAGE = "memory and storage"


class Shifted(nn.Module):
    """Adds a constant to the second half, the logarithm of a scale."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, numbers):
        loc, scale = numbers.chunk(2, -1)
        return torch.cat([loc, scale + self.by], -1)


class Times(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, numbers):
        return self.by * numbers


class Scaled(Transform):
    """One entry times a constant."""

    def __init__(self, key, by):
        super().__init__(in_keys=[key], out_keys=[key])
        self.by = by

    def _apply_transform(self, entry):
        return self.by * entry

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset) if self.in_keys[0] != "reward" else tensordict_reset


class Spoiled(Transform):
    """One entry is not a number in every seventh step."""

    def __init__(self, key, value):
        super().__init__(in_keys=[key], out_keys=[key])
        self.value, self.calls = value, 0

    def _apply_transform(self, entry):
        self.calls += 1
        return torch.full_like(entry, self.value) if self.calls % 7 == 0 else entry


class Doubles(Transform):
    """Observations as doubles, as numpy gives them; the specification follows."""

    def __init__(self):
        super().__init__(in_keys=["observation"], out_keys=["observation"])

    def _apply_transform(self, entry):
        return entry.double()

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec):
        observation_spec["observation"] = observation_spec["observation"].to(torch.float64)
        return observation_spec


class Halved(Transform):
    """For a buffer: the reward, halved where it lies."""

    def __init__(self):
        super().__init__(in_keys=[("next", "reward")])

    def forward(self, tensordict):
        tensordict["next", "reward"].mul_(0.5)
        return tensordict


def made_like(script, kind):
    """*kind* with the options of the `Corridor` that the script has."""
    from tests.support.defects.pipelines import TASKS

    options = getattr(TASKS[script.task], "keywords", {})
    return lambda: kind(**options)


def ready(script):
    """The buffer is made before the collector, which writes to it."""
    stages = list(script.stages)
    stages.remove("buffer")
    stages.insert(stages.index("collector"), "buffer")
    script.stages = tuple(stages)


def fills(script, **options):
    """The collector writes to the buffer of the script and yields nothing."""
    ready(script)
    make = script.make_collector

    def make_collector():
        script.collector_options |= {"replay_buffer": script.buffer} | options
        return make()

    script.make_collector = make_collector
    script.log_returns = lambda batch: None
    script.fill = lambda batch: None
    script.does -= {"anneal"}


def keep_last_steps(script, place=-1):
    """One step of each batch goes into a list."""
    kept = []
    log = script.log_returns

    def keep(batch):
        kept.append(batch[..., place])
        log(batch)

    script.log_returns = keep
    script.also = ("batch",)
    script.then("train", lambda script: setattr(script, "batch", kept))


def rowwise(script, sample):
    """An update on single steps, each a sequence of its own."""
    type(script).update(script, sample.unsqueeze(-1))
