"""What the page on PPO on CartPole says, of the record and of tensordict."""

import importlib.util
from functools import partial
from unittest import mock

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from tests.support.claims import guards
from tests.support.suites import recorded as recorded_of

recorded = partial(recorded_of, "recipe_ppo_cartpole")


@guards("forward-searches-pandas")
def test_each_output_of_a_module_searches_for_pandas():
    module = TensorDictModule(nn.Linear(1, 1), ["a"], ["b"])
    two = TensorDictModule(lambda a: (a, a), ["a"], ["b", "c"])
    given = TensorDict(a=torch.zeros(2, 1), batch_size=2)
    for one, outputs in ((module, 1), (two, 2)):
        with mock.patch.object(importlib.util, "find_spec", return_value=None) as search:
            one(given)
        assert [call.args for call in search.call_args_list] == [("pandas",)] * outputs
