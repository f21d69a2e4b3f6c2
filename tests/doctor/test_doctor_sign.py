"""The sign with which a loop takes a loss: what watching it tells, and what it does not."""

import pytest
import torch
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss
from torchrl_doctor import APPLIES, CLEAR, UNDECIDED, watch

from tests.support.healthy_pipelines import cartpole


class Own(DQNLoss):
    """A reader's own loss, which may return what has to grow."""

    def forward(self, batch):
        return super().forward(batch)


@pytest.mark.parametrize(
    ("kind", "sign", "maximize", "state"),
    [
        (DQNLoss, 1, False, CLEAR),
        (DQNLoss, 0.5, False, CLEAR),
        (DQNLoss, -1, False, APPLIES),
        (DQNLoss, 1, True, APPLIES),
        (DQNLoss, -1, True, CLEAR),
        (DQNLoss, 0, False, None),
        (Own, -1, False, UNDECIDED),
    ],
)
def test_a_loss_that_grows(kind, sign, maximize, state):
    network = torch.nn.Linear(4, 2)
    actor = QValueActor(network, in_keys=["observation"], action_space="one_hot")
    loss = kind(actor, action_space="one_hot", delay_value=False)
    batch = cartpole().rollout(10)
    optimizer = torch.optim.SGD(loss.parameters(), 1e-3, maximize=maximize)
    with watch(loss_module=loss, share=1.0, only="loss_is_maximized", seconds=60) as watching:
        for _ in range(12):
            (sign * loss(batch)["loss"]).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert next((one.state for one in watching.report), None) == state
