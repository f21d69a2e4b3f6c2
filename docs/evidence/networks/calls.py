"""What one call of a policy consists of, counted, for docs/performance/networks.rst.

Python functions that are entered and operators that PyTorch dispatches, once what a first call
builds is there. Counts depend on the release alone, so a machine makes no difference.
"""

import json
import os
import sys

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule, set_interaction_type
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.data import OneHot
from torchrl.modules import OneHotCategorical, ProbabilisticActor

INPUTS, ACTIONS = 8, 4


class Operators(TorchDispatchMode):
    """Counts what reaches the dispatcher."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def entered(call):
    """Python functions that *call* enters."""
    count = 0

    def on_event(frame, event, argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(on_event)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def make_calls():
    """What is counted, each on an observation or a tensordict of one row."""
    network = nn.Sequential(nn.Linear(INPUTS, 64), nn.Tanh(), nn.Linear(64, ACTIONS))
    module = TensorDictModule(network, in_keys=["observation"], out_keys=["logits"])
    observation = torch.randn(1, INPUTS)
    data = TensorDict({"observation": observation}, [1])

    def plain():
        logits = network(observation)
        return torch.distributions.OneHotCategorical(logits=logits, validate_args=False).sample()

    def actor(**options):
        return ProbabilisticActor(
            module,
            in_keys=["logits"],
            spec=OneHot(ACTIONS),
            distribution_class=OneHotCategorical,
            **options,
        )

    sampling, with_log_prob = actor(), actor(return_log_prob=True)
    return {
        "the bare network": lambda: network(observation),
        "the same, with a distribution of PyTorch and a sample": plain,
        "``TensorDictModule``": lambda: module(data.copy()),
        "``ProbabilisticActor``": lambda: sampling(data.copy()),
        "``ProbabilisticActor``, ``return_log_prob=True``": lambda: with_log_prob(data.copy()),
    }


def count_calls():
    rows = []
    with torch.no_grad(), set_interaction_type(InteractionType.RANDOM):
        for name, call in make_calls().items():
            for _ in range(3):
                call()
            functions = entered(call)
            assert functions == entered(call), f"{name}: the count changes from call to call"
            with Operators() as operators:
                call()
            rows.append((name, functions, operators.count))
    bare, plain, module, actor, log_prob = (functions for _, functions, _ in rows)
    assert bare < plain < actor < log_prob, rows
    assert bare < module < actor, rows
    assert actor > 10 * bare, "most of an actor's call is Python around the network"
    columns = ["What is called", "Python functions", "Operators"]
    return {"columns": columns, "rows": [[name, str(a), str(b)] for name, a, b in rows]}


if __name__ == "__main__":
    print(json.dumps({"calls": count_calls()}))
