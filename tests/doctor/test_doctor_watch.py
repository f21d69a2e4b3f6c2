"""`watch` around training loops: what it records and finds, and that nothing of it stays."""

import copy
import pickle
import time
from types import SimpleNamespace

import pytest
import torch
from torch.optim import optimizer as torch_optimizer
from torchrl.envs import ExplorationType, RewardSum, TransformedEnv, set_exploration_type
from torchrl.modules import MLP, ValueOperator
from torchrl.objectives import DQNLoss, ReinforceLoss
from torchrl_doctor import APPLIES, CLEAR, FAILED, UNDECIDED, diagnose, watch
from torchrl_doctor.checks.workers import script_never_ends
from torchrl_doctor.watching import SHARE, SHORTEST_S, Budget, Returns

from tests.doctor.test_doctor_two_looks import no_target_update
from tests.support.claims import guards
from tests.support.healthy_pipelines import (
    PIPELINES,
    cartpole,
    categorical_actor,
    collect_from,
    logits,
    q_policy,
)
from tests.support.object_state import fingerprint

OPTIONS = {"frames": 10, "seconds": 60}


def global_hooks():
    names = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    return [len(getattr(torch_optimizer, name)) for name in names]


def states(report):
    return {one.slug: one.state for one in report}


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac", "recurrent_dqn", "vtrace"])
def test_a_healthy_loop_is_recorded_and_raises_no_alarm(name):
    torch.manual_seed(0)
    given, train = PIPELINES[name]()
    with watch(**given, **OPTIONS, share=1) as watching:
        for _ in range(6):
            train()
    given["collector"].shutdown()
    report = watching.report
    assert [one for one in report if one.state in (APPLIES, FAILED)] == []
    assert states(report)["part_of_the_network_never_changes"] == CLEAR
    series = watching.series
    assert any(key.startswith("loss") for key in series)
    assert len(series["grad_norm"]) == watching.updates > 10
    assert len(series["fps"]) == watching.batches - 1
    print(name, {key: len(one) for key, one in series.items()}, f"{watching.overhead:.1%}")


def test_a_loop_without_target_updates_is_named():
    torch.manual_seed(0)
    given, train = PIPELINES["sac"]()
    with no_target_update(given), watch(**given, **OPTIONS) as watching:
        for _ in range(6):
            train()
    given["collector"].shutdown()
    assert states(watching.report)["target_updater_never_steps"] == APPLIES


def loop(steps, of_a_copy=False, compiled=False):
    """DQN on CartPole: its arguments and a training loop."""
    torch.manual_seed(0)
    env = TransformedEnv(cartpole(), RewardSum())
    env.set_seed(0)
    policy = q_policy(env)
    collector = collect_from(env, policy, 25, total_frames=25 * steps)
    loss = DQNLoss(policy, action_space=env.action_spec, delay_value=False)
    trained = copy.deepcopy(loss) if of_a_copy else loss
    optimizer = torch.optim.Adam(trained.parameters(), 1e-3)

    def train(fails_at=None):
        for number, batch in enumerate(collector):
            if number == fails_at:
                raise KeyError("log-prob")
            loss(batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()

    return {"collector": collector, "loss_module": loss}, train


def test_an_optimizer_of_other_parameters_is_named():
    given, train = loop(15, of_a_copy=True)
    with watch(**given, **OPTIONS) as watching:
        train()
    given["collector"].shutdown()
    found = {one.slug: one.evidence for one in watching.report.applies}
    said = found["part_of_the_network_never_changes"]
    assert said == "no optimizer that took 15 steps holds one of the loss"


@guards("doctor-watch-taken-off")
@pytest.mark.parametrize("fails_at", [None, 3])
def test_everything_is_taken_off_at_the_end(fails_at):
    given, train = loop(5)
    collector, loss = given["collector"], given["loss_module"]
    before, hooks, names = global_hooks(), len(loss._forward_hooks), set(vars(collector))
    watching = watch(**given, **OPTIONS)
    try:
        with watching:
            assert global_hooks() != before
            train(fails_at)
    except KeyError:
        assert fails_at is not None
    assert global_hooks() == before
    assert len(loss._forward_hooks) == hooks
    assert set(vars(collector)) - names <= {"_iteration_started", "_iterator"}
    assert watching.report is not None
    collector.shutdown()


@guards("doctor-watch-same-numbers")
def test_a_watched_loop_computes_the_same():
    parameters = []
    for watched in (False, True):
        given, train = loop(6)
        if watched:
            with watch(**given, **OPTIONS, share=1) as watching:
                train()
        else:
            train()
        given["collector"].shutdown()
        parameters.append(fingerprint(weights=list(given["loss_module"].parameters())))
    assert watching.updates == 6
    assert parameters[0] == parameters[1]


@guards("doctor-watch-error")
def test_the_error_of_a_loop_is_looked_at():
    given, _ = loop(5)
    with pytest.raises(KeyError), watch(**given, **OPTIONS) as watching:
        raise KeyError("TargetNet: couldn't find the log-prob in the data")
    given["collector"].shutdown()
    assert states(watching.report)["log_prob_not_found"] == APPLIES


def test_a_fault_of_the_recording_does_not_reach_the_loop(monkeypatch):
    def fail(self, batch):
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(Returns, "of", fail)
    given, train = loop(4)
    with watch(**given, **OPTIONS) as watching:
        train()
    given["collector"].shutdown()
    assert "watching: ZeroDivisionError: a fault" in watching.report.notes


def test_a_copy_of_what_is_watched_is_not_watched():
    given, _ = loop(3)
    with watch(**given, **OPTIONS, share=1) as watching:
        collector, loss = copy.deepcopy((given["collector"], given["loss_module"]))
        batches = iter(collector)
        batch = next(batches)
        loss(batch)
        pickle.loads(pickle.dumps(given["loss_module"]))(batch)
        batches.close()
    collector.shutdown()
    given["collector"].shutdown()
    assert (watching.steps, watching.batches) == (0, 0)
    assert given["collector"]._frames == 0


@pytest.mark.parametrize("zeroed", [True, False])
def test_a_loss_that_no_step_follows_is_named(zeroed):
    given, _ = loop(2)
    optimizer = torch.optim.Adam(given["loss_module"].parameters())
    batch = next(iter(given["collector"]))
    with watch(**given, **OPTIONS, share=1) as watching:
        for _ in range(12):
            given["loss_module"](batch)["loss"].backward()
            if zeroed:  # too early
                optimizer.zero_grad()
                optimizer.step()
    given["collector"].shutdown()
    said = {one.slug: one.evidence for one in watching.report.applies}
    cause = "had a gradient in 12 steps" if zeroed else "12 losses were computed"
    assert cause in said["part_of_the_network_never_changes"]


def test_a_compiled_loss_is_not_hooked():
    given, _ = loop(2)
    given["loss_module"].compile()  # without a call nothing is compiled
    with watch(**given, **OPTIONS) as watching:
        pass
    given["collector"].shutdown()
    assert "The loss is compiled, so its values were not recorded." in watching.report.notes


def test_a_plain_loop_records_what_it_has():
    env = TransformedEnv(cartpole(), RewardSum())
    with watch(**OPTIONS) as watching:
        for number in range(3):
            batch = env.rollout(500)
            watching.record(batch, return_of_mine=number)
    assert watching.series["return_of_mine"].values == [0, 1, 2]
    assert len(watching.series["episode_reward"]) == 3


@guards("doctor-watch-throughput")
@pytest.mark.parametrize("shortest_s", [0, SHORTEST_S])
def test_throughput_of_a_short_loop_is_not_judged(monkeypatch, shortest_s):
    monkeypatch.setattr("torchrl_doctor.watching.SHORTEST_S", shortest_s)
    batch = cartpole().rollout(3)
    with watch(**OPTIONS) as watching:
        for number in range(60):
            time.sleep(1e-5 * number**2)
            watching.record(batch)
    assert len(watching.series["fps"]) == 59
    said = states(watching.report).get("throughput_decays")
    assert said == (None if shortest_s else APPLIES)
    assert SHORTEST_S == 60, "the page says a minute"


# -- Bounds --------------------------------------------------------------------


class FakeClock:
    """A step of the loop takes 1, a call that is recorded 0.1."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def work(self):
        self.now += 0.1


@guards("doctor-watch-share")
def test_recording_takes_no_more_than_its_share_of_the_time():
    clock = FakeClock()
    budget = Budget(SHARE, clock)
    for _ in range(1000):
        clock.now += 1
        budget.spend(clock.work)
    assert SHARE == 0.005  # half a percent
    assert 0.9 * SHARE < budget.used < 1.05 * SHARE
    assert budget.left_out == 1000 - round(budget.spent / 0.1)


def test_a_loop_with_no_time_to_spare_is_counted_and_not_recorded():
    given, train = loop(6)
    with watch(**given, **OPTIONS, share=0) as watching:
        train()
    given["collector"].shutdown()
    assert (watching.steps, watching.updates, watching.batches) == (6, 6, 6)
    assert "loss" not in watching.series
    assert watching.budget.left_out > 10


@pytest.mark.parametrize("skipped", [(), (2, 5)])
def test_returns_are_those_of_whole_episodes(skipped):
    """Summed over batches by trajectory, they are what `RewardSum` says at the end of each."""
    torch.manual_seed(0)
    env = TransformedEnv(cartpole(), RewardSum())
    env.set_seed(0)
    collector = collect_from(env, None, 30, total_frames=900)
    returns, summed, wanted = Returns(), [], []
    for number, batch in enumerate(collector):
        if number in skipped:
            returns.forget()
            continue
        wanted += batch["next", "episode_reward"][batch["next", "done"]].tolist()
        summed += returns.of(batch.exclude(("next", "episode_reward")))
    collector.shutdown()
    assert len(wanted) > 5
    if not skipped:
        assert summed == wanted
    else:  # those that a gap cut are missing
        assert set(summed) <= set(wanted)
        assert len(wanted) / 2 < len(summed) < len(wanted)


def test_a_report_of_a_watched_loop_is_that_of_diagnose():
    given, train = loop(4)
    with watch(**given, **OPTIONS) as watching:
        train()
    given["collector"].shutdown()
    assert type(watching.report) is type(diagnose(**given, **OPTIONS))


@guards("doctor-watch-last-batch")
@pytest.mark.parametrize("drawn", [True, False])
def test_a_batch_that_the_loop_records_is_looked_at(drawn):
    """Without a collector nobody else knows how it came about."""
    env = cartpole()
    actor = categorical_actor(env, logits())
    loss = ReinforceLoss(actor, ValueOperator(MLP(in_features=4, out_features=1)))
    given = {"env": env, "policy": actor, "loss_module": loss}
    how = ExplorationType.RANDOM if drawn else ExplorationType.DETERMINISTIC
    with watch(**given, **OPTIONS) as watching, set_exploration_type(how):
        for _ in range(3):
            watching.record(env.rollout(50, actor, break_when_any_done=False).detach())
    state = states(watching.report).get("stochastic_policy_does_not_sample")
    assert (state == APPLIES) is not drawn


@pytest.mark.parametrize(("watched", "state"), [(True, UNDECIDED), (False, APPLIES)])
def test_workers_may_be_shut_down_after_the_block(watched, state):
    class MultiCollector:
        _frames = total_frames = 40

    since = SimpleNamespace(seen={"learned": 3}.get) if watched else None
    assert script_never_ends(MultiCollector(), since).state == state
