"""What the guide to changing settings says and does not run is so."""

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch._dynamo.testing import CompileCounter
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss

from tests.support.claims import guards


@guards("compiled-loss-follows-coefficients")
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning",
    "ignore:torch._dynamo.config:FutureWarning",
)
def test_a_compiled_loss_follows_its_coefficients():
    torch.manual_seed(0)
    net = TensorDictModule(MLP(4, 2, num_cells=[8]), ["observation"], ["logits"])
    actor = ProbabilisticActor(
        net, ["logits"], distribution_class=OneHotCategorical, return_log_prob=True
    )
    loss = ClipPPOLoss(actor, ValueOperator(MLP(4, 1, num_cells=[8]), ["observation"]))
    with torch.no_grad():
        data = actor(TensorDict(observation=torch.randn(5, 4), batch_size=[5]))
    data["advantage"], data["value_target"] = torch.randn(5, 1), torch.zeros(5, 1)
    data["action_log_prob"] += torch.randn(5)  # ratios that are clipped
    counter = CompileCounter()
    compiled = torch.compile(loss, backend=counter)
    counts, distances, objectives = [], [], set()
    for coefficient in (0.5, 0.25, 0.125):
        loss.entropy_coeff = loss.critic_coeff = loss.clip_epsilon = coefficient
        values = compiled(data)
        bonus = -values["loss_entropy"].detach() / values["entropy"]
        assert bonus.item() == pytest.approx(coefficient)
        distances.append(values["loss_critic"].item() / coefficient)
        objectives.add(values["loss_objective"].item())
        counts.append(counter.frame_count)
    assert counts[0] == counts[-1]
    assert distances == pytest.approx([distances[0]] * len(counts))
    assert len(objectives) == len(counts)
    assert {"entropy_coeff", "critic_coeff", "clip_epsilon"} <= loss.state_dict().keys()
