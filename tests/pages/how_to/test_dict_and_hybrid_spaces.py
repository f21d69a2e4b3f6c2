"""What the guide to dict observations and hybrid actions says and does not run is so."""

import pytest
import torch
from tensordict.nn import set_composite_lp_aggregate

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.guides import defined_by

GUIDE = ROOT / "how-to" / "dict_and_hybrid_spaces.py"


@pytest.fixture(scope="module")
def guide():
    with defined_by("dict_and_hybrid_spaces", "env = make_env()") as page:
        yield page


@guards("composite-sum-raises-in-ppo")
def test_summed_log_probabilities_raise_in_ppo(guide):
    def loss_of_a_batch():
        actor = guide.make_actor(guide.make_env())
        critic = guide.ValueOperator(guide.MLP(3, 1), in_keys=["observation"])
        advantage = guide.GAE(gamma=0.99, lmbda=0.95, value_network=critic)
        with torch.no_grad():
            batch = advantage(guide.make_env().rollout(10, actor))
        summed.append("sample_log_prob" in batch)
        return guide.ClipPPOLoss(actor, critic)(batch)["loss_objective"]

    summed = []
    assert loss_of_a_batch().isfinite()
    with set_composite_lp_aggregate(True), pytest.raises(AttributeError):
        loss_of_a_batch()
    assert summed == [False, True]
