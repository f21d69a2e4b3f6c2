"""What one look decides, whatever the weights are by now: beside each symptom what is none."""

import copy
import gc
import pickle

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    SliceSampler,
    TensorDictReplayBuffer,
)
from torchrl.envs import InitTracker, ObservationNorm, SerialEnv, TransformedEnv
from torchrl.modules import (
    EGreedyModule,
    LSTMModule,
    OneHotCategorical,
    ProbabilisticActor,
    QValueModule,
    ValueOperator,
    set_recurrent_mode,
)
from torchrl.objectives import ClipPPOLoss, DQNLoss, SoftUpdate
from torchrl.objectives.value import GAE
from torchrl_doctor import APPLIES, CLEAR, UNDECIDED, diagnose

from tests.support.defects import planting
from tests.support.defects.pipelines import SingleTurn
from tests.support.healthy_pipelines import cartpole, collect_from


def said(slug, **given):
    """The state of one check; None where it says nothing."""
    report = diagnose(**given, seconds=60)
    return next((one.state for one in report if one.slug == slug), None)


def q_network():
    net = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["action_value"])
    return TensorDictSequential(net, QValueModule(spec=cartpole().action_spec))


def stochastic(*layers):
    net = torch.nn.Sequential(*layers, torch.nn.Linear(4, 2))
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


def moved(module):
    for weight in module.parameters():
        weight.data.add_(0.1 * torch.randn_like(weight))


@pytest.mark.parametrize(("together", "state"), [(True, APPLIES), (False, UNDECIDED)])
def test_environments_whose_seeds_are_one(together, state):
    env = SerialEnv(2, cartpole)
    env.set_seed(0, static_seed=together)
    collector = Collector(env, None, frames_per_batch=60, total_frames=-1)
    for _ in range(3):
        batch = collector.next().clone()
    assert said("every_environment_starts_alike", batch=batch, env=env) == state
    collector.shutdown()


@pytest.mark.parametrize(
    ("options", "state"),
    [
        ({"annealing_num_steps": 10**9}, APPLIES),
        ({"annealing_num_steps": 10**6}, UNDECIDED),  # in how many frames, nothing tells
        ({"annealing_num_steps": 1000}, CLEAR),
        ({"eps_init": 1.0, "eps_end": 1.0}, APPLIES),
        ({"eps_init": 0.1, "eps_end": 0.1}, None),
    ],
)
def test_epsilon_that_cannot_go_down(options, state):
    noise = EGreedyModule(spec=cartpole().action_spec, **options)
    noise.step(200)
    policy = TensorDictSequential(q_network(), noise)
    assert said("epsilon_never_goes_down", policy=policy) == state


@pytest.mark.parametrize(
    ("frames", "each", "long", "random", "state"),
    [
        (1, 30, 1000, 0, UNDECIDED),  # who counts batches on purpose may mean it
        (1, 30, 10**6, 0, UNDECIDED),
        (1, 30, 4 * 10**6, 0, APPLIES),
        (1, 4, 1000, 0, UNDECIDED),
        (1, 30, 1000, 210, UNDECIDED),
        (30, 30, 1000, 0, CLEAR),
        (30, 30, 4 * 10**6, 0, CLEAR),
        (30, 30, 1000, 210, CLEAR),
        (1, 1, 1000, 0, CLEAR),
    ],
)
def test_epsilon_that_counts_batches(frames, each, long, random, state):
    noise = EGreedyModule(spec=cartpole().action_spec, annealing_num_steps=long)
    policy = TensorDictSequential(q_network(), noise)
    collector = collect_from(cartpole(), policy, each, init_random_frames=random)
    for _ in range(3):
        batch = collector.next()
        noise.step(frames)
    assert said("epsilon_never_goes_down", collector=collector, batch=batch) == state
    collector.shutdown()


@pytest.mark.parametrize(("sets", "state"), [(False, APPLIES), (True, CLEAR)])
def test_priorities_after_training(sets, state):
    loss = DQNLoss(q_network(), action_space="one_hot", delay_value=False)
    sampler = PrioritizedSampler(200, alpha=0.6, beta=0.4)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200), sampler=sampler, batch_size=16, priority_key="td_error"
    )
    buffer.extend(cartpole().rollout(200, break_when_any_done=False))
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.01)
    given = {"replay_buffer": buffer, "loss_module": loss}
    assert said("prioritized_replay_draws_evenly", **given) == UNDECIDED
    for _ in range(10):
        sample = buffer.sample()
        loss(sample)["loss"].backward()
        optimizer.step()
        if sets:
            buffer.update_tensordict_priority(sample)
    assert said("prioritized_replay_draws_evenly", **given) == state


@pytest.mark.parametrize(
    ("layout", "kernel", "options", "state"),
    [
        (torch.channels_last, 3, {"fused": True}, APPLIES),
        (torch.channels_last, 3, {"fused": True, "amsgrad": True}, APPLIES),
        (torch.channels_last, 3, {"fused": False}, None),
        (torch.channels_last, 1, {"fused": True}, CLEAR),  # other strides, and the same order
        (torch.contiguous_format, 3, {"fused": True}, CLEAR),
    ],
)
def test_moments_in_another_order_than_the_weights(layout, kernel, options, state):
    layer = torch.nn.Conv2d(3, 4, kernel).to(memory_format=layout)
    optimizer = torch.optim.Adam(layer.parameters(), **options)
    assert said("updates_differ_after_loading", optimizer=optimizer) is None
    layer(torch.rand(2, 3, 5, 5)).sum().backward()
    optimizer.step()
    expected = None if state is None else CLEAR
    assert said("updates_differ_after_loading", optimizer=optimizer) == expected
    for value in optimizer.state[layer.weight].values():
        value.data = value.data.contiguous()
    assert said("updates_differ_after_loading", optimizer=optimizer) == state


def test_a_storage_that_deletes_the_folder_of_another(tmp_path):
    def state(buffer):
        return said("files_gone_after_a_copy", replay_buffer=buffer)

    def in_folder(name, auto_cleanup):
        storage = LazyMemmapStorage(4, scratch_dir=tmp_path / name, auto_cleanup=auto_cleanup)
        buffer = TensorDictReplayBuffer(storage=storage, batch_size=2)
        buffer.extend(TensorDict({"observation": torch.zeros(4, 2)}, [4]))
        return buffer

    original, kept = in_folder("deleted", True), in_folder("kept", False)
    assert (state(original), state(kept)) == (CLEAR, None)
    assert state(pickle.loads(pickle.dumps(kept))) is None
    assert state(copy.deepcopy(original)) == APPLIES
    gc.collect()
    assert not (tmp_path / "deleted").exists()
    assert state(original) == UNDECIDED
    original.storage.cleanup()
    assert state(original) is None


@pytest.mark.parametrize(
    ("before", "make", "steps", "state"),
    [
        ("loss", torch.optim.Adam, 0, CLEAR),
        ("updater", torch.optim.Adam, 0, CLEAR),  # it copies when it is made
        ("optimizer", torch.optim.Adam, 0, APPLIES),
        ("optimizer", torch.optim.Adam, 1, None),
        ("optimizer", torch.optim.SGD, 0, None),  # it does not tell whether it has stepped
        ("a lag", torch.optim.Adam, 0, None),
    ],
)
def test_weights_that_were_loaded_beside_the_target(before, make, steps, state):
    torch.manual_seed(0)
    actor, trained = q_network(), q_network().state_dict()
    trained["module.0.module.bias"] += 50
    if before == "loss":
        actor.load_state_dict(trained)
    loss = DQNLoss(actor, action_space="one_hot", delay_value=True)
    if before == "updater":
        actor.load_state_dict(trained)
    SoftUpdate(loss, tau=0.01)
    if before == "optimizer":
        actor.load_state_dict(trained)
    if before == "a lag":
        moved(actor)
    optimizer = make(loss.parameters(), lr=1e-3)
    for _ in range(steps):
        loss(cartpole().rollout(5))["loss"].backward()
        optimizer.step()
    assert said("loaded_policy_gets_worse", loss_module=loss, optimizer=optimizer) == state


def test_a_discount_that_the_loss_does_not_read():
    loss = DQNLoss(q_network(), action_space="one_hot")
    loss.make_value_estimator(gamma=0.99)
    assert said("a_new_gamma_changes_nothing", loss_module=loss) is None
    loss.gamma = 0.9
    assert said("a_new_gamma_changes_nothing", loss_module=loss) == APPLIES


@pytest.mark.parametrize(("flat", "state"), [(True, APPLIES), (False, CLEAR)])
def test_rows_along_which_advantages_were_computed(flat, state):
    batch = SerialEnv(3, cartpole).rollout(30, break_when_any_done=False)
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    with torch.no_grad():
        if flat:
            batch.update(gae(batch.reshape(-1)).reshape(batch.shape))
        else:
            gae(batch)
    moved(critic)
    given = {"batch": batch, "value_estimator": gae}
    assert said("advantages_leak_between_environments", **given) == state


@pytest.mark.parametrize(("loc", "state"), [(0.0, CLEAR), (2.0, APPLIES)])
@pytest.mark.parametrize("standard_normal", [True, False])
def test_fixed_statistics_of_evaluation(loc, standard_normal, state):
    def env(loc):
        loc, scale = torch.full((4,), loc), torch.full((4,), 2.0)
        if not standard_normal:
            loc, scale = -loc / scale, 1 / scale
        norm = ObservationNorm(loc, scale, ["observation"], standard_normal=standard_normal)
        return TransformedEnv(cartpole(), norm)

    slug = "good_in_training_poor_in_evaluation"
    assert said(slug, env=env(0.0), eval_env=env(loc)) == state


@pytest.mark.parametrize(("mode", "state"), [(False, APPLIES), (True, UNDECIDED)])
def test_values_of_a_critic_that_has_changed_since(mode, state):
    env = TransformedEnv(cartpole(), InitTracker())
    batch = env.rollout(40, break_when_any_done=False)
    memory = LSTMModule(4, 8, in_key="observation", out_key="features")
    head = ValueOperator(torch.nn.Linear(8, 1), in_keys=["features"])
    critic = TensorDictSequential(memory, head)
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic, deactivate_vmap=True)
    with torch.no_grad(), set_recurrent_mode(mode):
        gae(batch)
    moved(critic)
    assert said("critic_ignores_the_past_in_gae", batch=batch, value_estimator=gae) == state


@pytest.mark.parametrize(("rate", "training"), [(0.5, True), (0.5, False), (0.0, True)])
def test_an_actor_that_is_another_in_each_call(rate, training):
    torch.manual_seed(0)
    actor = stochastic(torch.nn.Dropout(rate)).train(training)
    loss = ClipPPOLoss(actor, ValueOperator(torch.nn.Linear(4, 1)))  # keeps the mode
    batch = cartpole().rollout(40, copy.deepcopy(actor).eval(), break_when_any_done=False)
    state = APPLIES if rate and training else CLEAR
    assert said("ppo_clips_before_the_first_update", batch=batch, loss_module=loss) == state


@pytest.mark.parametrize(("training", "state"), [(True, UNDECIDED), (False, CLEAR)])
def test_an_actor_that_is_another_in_training(training, state):
    torch.manual_seed(0)
    actor = stochastic(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()
    env = SerialEnv(1, cartpole)
    batch = env.rollout(40, copy.deepcopy(actor), break_when_any_done=False).reshape(-1)
    loss = ClipPPOLoss(actor.train(training), ValueOperator(torch.nn.Linear(4, 1)))
    before = copy.deepcopy(actor.state_dict())
    assert said("ppo_clips_before_the_first_update", batch=batch, loss_module=loss) == state
    assert all(torch.equal(before[name], value) for name, value in actor.state_dict().items())


def test_actions_that_the_doctor_drew_tell_nothing_of_the_readers():
    policy = stochastic()
    loss = ClipPPOLoss(policy, ValueOperator(torch.nn.Linear(4, 1)))
    given = {"env": cartpole(), "policy": policy, "loss_module": loss}
    assert said("stochastic_policy_does_not_sample", **given) == UNDECIDED


def test_a_batch_of_several_environments_may_be_flattened_later():
    batch = SerialEnv(3, cartpole).rollout(30, break_when_any_done=False)
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    slug = "advantages_leak_between_environments"
    assert said(slug, batch=batch, value_estimator=gae) == UNDECIDED


@pytest.mark.parametrize(("ids", "state"), [((0, 1, 2), CLEAR), ((0, 1, 0), UNDECIDED)])
def test_trajectories_that_end_again(ids, state):
    key = ("collector", "traj_ids")
    episodes = [cartpole().rollout(100) for _ in ids]
    for number, one in zip(ids, episodes, strict=True):
        one[key] = torch.full(one.shape, number)
    sampler = SliceSampler(slice_len=4, traj_key=key)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(300), sampler=sampler, batch_size=16)
    buffer.extend(torch.cat(episodes))
    assert said("sequences_mix_two_runs", replay_buffer=buffer) == state


def test_grpo_with_one_action_for_an_answer_is_told_nothing():
    """Each step ends an episode, and answers to one prompt start alike; all of it is meant."""
    seen = planting.looked_at(SingleTurn())
    assert (seen["error"], planting.alarms(seen)) == (None, [])
