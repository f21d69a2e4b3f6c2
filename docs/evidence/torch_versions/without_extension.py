"""What of TorchRL works when its C++ extension cannot be loaded, and what is printed.

For the page reference/torch_versions. The extension is refused as the loader of shared libraries
refuses one that was built for another torch: it is found, and loading it raises an ImportError.
"""

import os

os.environ["RL_WARNINGS"] = "1"  # before the import of torchrl: an interpreter without it
os.environ["RL_LOGGING_LEVEL"] = "WARNING"

import contextlib
import importlib
import importlib.machinery
import io
import json
import logging
import sys
import warnings

UNDEFINED = "undefined symbol"


class Unloadable:
    """Finds the extension, and cannot load it."""

    def find_spec(self, name, path, target=None):
        if name == "torchrl._torchrl":
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec):
        raise ImportError(UNDEFINED)

    def exec_module(self, module):
        raise AssertionError("no module was made")


sys.meta_path.insert(0, Unloadable())


def listened(action):
    """What *action* raises, and what is printed, warned or logged on the way."""
    text, error = io.StringIO(), None
    handler = logging.StreamHandler(text)
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        logging.getLogger("torchrl").addHandler(handler)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                action()
            except (ImportError, RuntimeError) as raised:
                error = f"{type(raised).__name__}: {raised}"
        logging.getLogger("torchrl").removeHandler(handler)
    said = text.getvalue() + "".join(str(one.message) for one in caught)
    return error, said


def batch():
    """Eight steps of CartPole."""
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv

    collector = Collector(GymEnv("CartPole-v1"), frames_per_batch=8, total_frames=8)
    (found,) = list(collector)
    collector.shutdown()
    return found


def replay(sampler, *arguments, **options):
    """A sample of a buffer with a sampler of this name."""
    from torchrl import data

    buffer = data.TensorDictReplayBuffer(
        storage=data.LazyTensorStorage(8),
        sampler=getattr(data, sampler)(*arguments, **options),
        batch_size=4,
    )
    buffer.extend(batch())
    assert len(buffer.sample()) == 4


def train():
    """A loss, advantages, and a distribution that had a compiled part in older releases."""
    import torch
    from tensordict.nn import TensorDictModule
    from torchrl.envs import GymEnv
    from torchrl.modules import MLP, QValueActor, TanhNormal
    from torchrl.objectives import DQNLoss
    from torchrl.objectives.value import GAE

    data = batch()
    actor = QValueActor(MLP(in_features=4, out_features=2), spec=GymEnv("CartPole-v1").action_spec)
    DQNLoss(actor, delay_value=False)(data)["loss"].backward()
    value = TensorDictModule(MLP(in_features=4, out_features=1), ["observation"], ["state_value"])
    GAE(gamma=0.9, lmbda=0.9, value_network=value)(data)
    TanhNormal(torch.zeros(2), torch.ones(2)).rsample()


ACTIONS = {
    "``import torchrl``": lambda: importlib.import_module("torchrl"),
    "``import torchrl._torchrl``": lambda: importlib.import_module("torchrl._torchrl"),
    "``Collector``": batch,
    "``DQNLoss``, ``GAE``, ``TanhNormal``": train,
    "``RandomSampler``": lambda: replay("RandomSampler"),
    "``SliceSampler``": lambda: replay("SliceSampler", slice_len=2),
    "``PrioritizedSampler``": lambda: replay("PrioritizedSampler", 8, alpha=0.6, beta=0.4),
    "``PrioritizedSliceSampler``": lambda: replay(
        "PrioritizedSliceSampler", 8, alpha=0.6, beta=0.4, slice_len=2
    ),
}
FAIL = {"``import torchrl._torchrl``", "``PrioritizedSampler``", "``PrioritizedSliceSampler``"}


def show_failures():
    """One row for each action: does it work, and with which message not."""
    rows = []
    for name, action in ACTIONS.items():
        error, said = listened(action)
        assert "C++" not in said, f"{name} says {said!r}; the page says that nothing warns"
        assert bool(error) is (name in FAIL), f"{name}: {error}"
        rows.append([name, f"``{error}``" if error else "works"])
    from torchrl import logger
    from torchrl._extension import EXTENSION_WARNING

    _, said = listened(lambda: logger.warning(EXTENSION_WARNING))
    assert EXTENSION_WARNING in said, "a warning of TorchRL would not have been heard"
    (build,) = (part for part in EXTENSION_WARNING.split(". ") if "was built with" in part)
    return {"columns": ["What", "Without the extension"], "rows": rows}, build


def main():
    failures, build = show_failures()
    return {"failures": failures, "build": build}


if __name__ == "__main__":
    print(json.dumps(main()))
