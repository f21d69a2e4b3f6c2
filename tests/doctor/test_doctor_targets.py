"""Whether the updater of a target network was stepped, as one look at it tells."""

import copy

import pytest
import torch
from torchrl.objectives import DQNLoss, HardUpdate, SoftUpdate
from torchrl_doctor import APPLIES, CLEAR, UNDECIDED, diagnose

from tests.support.healthy_pipelines import cartpole, ddpg, q_policy


def soft(loss):
    return SoftUpdate(loss, eps=0.9)


def hard(loss):
    return HardUpdate(loss, value_network_update_interval=2)


def rarely(loss):
    return HardUpdate(loss, value_network_update_interval=1000)


def hardly_ever(loss):
    return HardUpdate(loss, value_network_update_interval=1_000_000)


def hardly_moving(loss):
    return SoftUpdate(loss, tau=1e-6)


def at_once(loss):
    return HardUpdate(loss, value_network_update_interval=0)


def frozen(loss):
    return SoftUpdate(loss, eps=1.0)


def said(loss, updater=None):
    """The states of the two checks of target networks."""
    report = diagnose(loss_module=loss, target_updater=updater, seconds=60)
    states = {one.slug: one.state for one in report}
    return states.get("q_values_stop_improving"), states.get("target_updater_never_steps")


def trained(make, updates, steps=True):
    """A loss and its updater after some updates of the weights, of which the last has no step."""
    torch.manual_seed(0)
    env = cartpole()
    loss = DQNLoss(q_policy(env), action_space=env.action_spec, delay_value=True)
    updater, batch = make(loss), env.rollout(10)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    for number in range(updates):
        loss(batch)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
        if steps and number < updates - 1:
            updater.step()
    return loss, updater


@pytest.mark.parametrize("make", [soft, hard, at_once])
@pytest.mark.parametrize("updates", [2, 4, 7, 10, 13])
def test_a_loop_in_which_the_updater_steps_next(make, updates):
    """A `HardUpdate` counts to 0 again when it has copied."""
    assert said(*trained(make, updates)) == (CLEAR, CLEAR)


def test_a_copy_that_is_still_to_come():
    assert said(*trained(rarely, 13)) == (UNDECIDED, UNDECIDED)


@pytest.mark.parametrize("make", [hardly_ever, hardly_moving])
def test_an_updater_that_is_too_slow_for_any_training(make):
    assert said(*trained(make, 13)) == (UNDECIDED, APPLIES)


def test_the_updater_of_a_copy_of_the_loss():
    loss, updater = trained(soft, 12)
    another = soft(copy.deepcopy(loss))
    assert said(loss, another) == (UNDECIDED, UNDECIDED), "that of the loss is alive"
    del updater
    assert said(loss, another)[1] == APPLIES


@pytest.mark.parametrize("make", [soft, hard, rarely])
def test_an_updater_that_was_never_stepped(make):
    assert said(*trained(make, 12, steps=False)) == (UNDECIDED, APPLIES)
    assert said(*trained(make, 3, steps=False)) == (UNDECIDED, UNDECIDED)  # the first is to come
    assert said(*trained(make, 0)) == (None, None)


def test_a_step_that_leaves_the_target_as_it_is():
    assert said(*trained(frozen, 12))[1] == APPLIES


def test_an_updater_of_another_loss():
    loss, _ = trained(soft, 12, steps=False)
    for name in loss._has_update_associated:
        loss._has_update_associated[name] = False
    _, another = trained(soft, 12)
    assert said(loss, another)[0] == APPLIES
    assert said(loss)[0] == APPLIES


def test_an_updater_that_is_not_given():
    loss, _ = trained(soft, 12)
    assert said(loss) == (UNDECIDED, UNDECIDED)


def test_a_copy_of_an_updater_has_no_trace_of_its_steps():
    assert said(*copy.deepcopy(trained(soft, 12))) == (UNDECIDED, UNDECIDED)


def test_two_target_networks():
    given, train = ddpg()
    train()
    given["collector"].shutdown()
    assert said(given["loss_module"], given["target_updater"]) == (CLEAR, CLEAR)


@pytest.mark.parametrize(("interval", "often", "copies"), [(0, "step", 6), (1, "second step", 3)])
def test_an_interval_that_copies_at_once_says_how_often(interval, often, copies):
    env = cartpole()
    loss = DQNLoss(q_policy(env), action_space=env.action_spec, delay_value=True)
    updater = HardUpdate(loss, value_network_update_interval=interval)
    report = {one.slug: one for one in diagnose(loss_module=loss, target_updater=updater)}
    assert f"every {often} copies the network" in report["targets_follow_at_once"].evidence
    counted = 0
    for _ in range(6):
        for weight in loss.value_network_params.values(True, True):
            weight.data.add_(1.0)
        before = loss.target_value_network_params.clone()
        updater.step()
        counted += bool((before != loss.target_value_network_params).any())
    assert counted == copies
