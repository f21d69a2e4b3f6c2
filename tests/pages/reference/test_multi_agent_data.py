"""What docs/reference/multi_agent_data.rst says without showing it."""

import textwrap
from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.collectors.utils import split_trajectories
from torchrl.data import (
    Categorical,
    Composite,
    LazyTensorStorage,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import (
    Compose,
    EnvBase,
    InitTracker,
    PettingZooWrapper,
    SerialEnv,
    TensorDictPrimer,
    TransformedEnv,
)
from torchrl.modules import (
    GRUModule,
    MultiAgentMLP,
    NormalParamExtractor,
    ProbabilisticActor,
    TanhNormal,
    set_recurrent_mode,
)
from torchrl.objectives.multiagent import MAPPOLoss
from torchrl.objectives.value import GAE, MultiAgentGAE

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.shown_calls import bound_calls

PAGE = ROOT / "docs" / "reference" / "multi_agent_data.rst"
VALUE, REWARD = ("agents", "state_value"), ("agents", "reward")
SEEN, ACTION = [("agents", "observation")], ("agents", "action")


class Team(EnvBase):
    """The first of three agents leaves after two steps, the last after four."""

    def __init__(self, root=True):
        super().__init__()
        self.root = root
        self.observation_spec = self.group(observation=Unbounded((3, 2)))
        self.action_spec = self.group(action=Unbounded((3, 1)))
        self.reward_spec = self.group(reward=Unbounded((3, 1)))
        self.done_spec = self.group(**self.flags(3, 1))
        if root:
            self.done_spec = self.done_spec.update(self.flags(1))

    def group(self, **specs):
        return Composite(agents=Composite(specs, shape=(3,)))

    def flags(self, *shape):
        return {name: Categorical(2, shape, dtype=torch.bool) for name in ("done", "terminated")}

    def _reset(self, tensordict=None):
        self.time = 0
        return self.now()

    def _step(self, tensordict):
        self.time += 1
        return self.now().update({"agents": {"reward": torch.ones(3, 1)}})

    def now(self):
        gone = self.time >= torch.tensor([[2], [3], [4]])
        seen = torch.full((3, 2), float(self.time))
        agents = TensorDict({"observation": seen, "done": gone, "terminated": gone}, [3])
        whole = {"done": gone.all(0), "terminated": gone.all(0)} if self.root else {}
        return TensorDict({"agents": agents, **whole})

    def _set_seed(self, seed):
        pass


def collected(env, frames=8):
    collector = Collector(env, None, frames_per_batch=frames, total_frames=frames)
    (batch,) = list(collector)
    collector.shutdown()
    return batch


def signals(*batch):
    """Values, rewards and ends of three agents, one per agent."""
    torch.manual_seed(0)
    draw = [torch.randn(*batch, 3, 1) for _ in range(3)]
    ends = torch.rand(*batch, 1, 1).expand(*batch, 3, 1) < 0.3
    after = {"state_value": draw[1], "reward": draw[2], "done": ends, "terminated": ends}
    now = TensorDict({"state_value": draw[0]}, [*batch, 3])
    return TensorDict({"agents": now, "next": {"agents": TensorDict(after, [*batch, 3])}}, [*batch])


def estimated(kind, data, **keys):
    estimator = kind(gamma=0.9, lmbda=0.8, value_network=None)
    estimator.set_keys(**keys)
    return estimator(data.clone())["advantage"]


def per_agent(data):
    keys = {name: ("agents", name) for name in ("reward", "done", "terminated")}
    return estimated(GAE, data, value=VALUE, **keys)


def actor():
    sizes = {"n_agent_inputs": 2, "n_agent_outputs": 2, "n_agents": 3, "num_cells": 4}
    net = MultiAgentMLP(**sizes, depth=1, centralized=False, share_params=True)
    keys = [("agents", "loc"), ("agents", "scale")]
    return ProbabilisticActor(
        TensorDictModule(torch.nn.Sequential(net, NormalParamExtractor()), SEEN, keys),
        in_keys=keys,
        out_keys=[ACTION],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )


def acted(policy, size, **advantage):
    torch.manual_seed(0)
    seen = TensorDict({"observation": torch.randn(*size, 3, 2)}, [*size, 3])
    with torch.no_grad():
        data = policy(TensorDict({"agents": seen}, size))
    return data.update(advantage)


@guards("team-signals-reach-agents")
def test_signals_of_the_team_count_for_each_agent():
    each = signals(6)
    each["next", "agents", "reward"] = each["next", "agents", "reward"][:, :1].expand(6, 3, 1)
    team = each.clone()
    for name in ("reward", "done", "terminated"):
        team["next", name] = team["next", "agents", name][:, 0]
    torch.testing.assert_close(estimated(MultiAgentGAE, team, value=VALUE), per_agent(each))


@guards("group-flags-reset-agents")
def test_flags_in_the_group_alone_reset_single_agents():
    seen = collected(Team(root=False))["agents", "observation"][..., 0].tolist()
    assert seen[2] == [0.0, 2.0, 2.0]
    assert collected(Team())["agents", "observation"][2, :, 0].tolist() == [2.0, 2.0, 2.0]


@guards("flat-batch-keeps-agents")
def test_a_flat_batch_keeps_its_agents():
    batch = collected(SerialEnv(2, Team))
    assert batch.shape == (2, 4)
    assert batch.reshape(-1)["agents"].shape == (8, 3)


@guards("split-cuts-where-one-leaves")
def test_split_trajectories_cuts_where_one_leaves():
    batch = collected(Team(), 4)
    assert batch["next", "done"].flatten().tolist() == [False, False, False, True]
    assert split_trajectories(batch)["collector", "mask"].sum(-1).tolist() == [2, 1, 1]


@guards("gae-on-the-group-mixes-agents")
def test_gae_on_the_group_mixes_agents():
    data = signals(6)
    group = data["agents"].clone()
    group["next"] = data["next", "agents"].clone()
    right = per_agent(data)
    assert not torch.allclose(estimated(GAE, group), right)
    turned = group.transpose(0, 1)  # now time is the last dimension
    torch.testing.assert_close(estimated(GAE, turned), right.transpose(0, 1))
    group.names = ["time", None]  # as in a batch of a collector
    torch.testing.assert_close(estimated(GAE, group), right)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=8)
    buffer.extend(collected(Team()))
    assert "time" not in buffer.sample()["agents"].names


@guards("loss-has-shape-of-agents")
def test_the_loss_without_reduction_has_the_shape_of_the_agents():
    policy, size = actor(), (5, 3, 1)
    data = acted(policy, (5,), advantage=torch.randn(size), value_target=torch.zeros(size))
    critic = TensorDictModule(torch.nn.Linear(2, 1), SEEN, [VALUE])
    loss = MAPPOLoss(policy, critic, reduction="none")
    loss.set_keys(action=ACTION, value=VALUE)
    assert loss(data)["loss_objective"].shape == (5, 3)


@guards("team-value-gives-nan")
def test_one_value_for_the_team_gives_nan_in_minibatches():
    policy = actor()
    data = acted(policy, (5,), advantage=torch.randn(5, 1), value_target=torch.zeros(5, 1))
    one = torch.nn.Sequential(torch.nn.Flatten(-2), torch.nn.Linear(6, 1))
    loss = MAPPOLoss(policy, TensorDictModule(one, SEEN, ["state_value"]))
    loss.set_keys(action=ACTION)
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert loss(data)["loss_objective"].isnan()


def per_agent_module(*arguments):
    """``PerAgent`` as the page defines it."""
    text = PAGE.read_text(encoding="utf-8")
    block = text[text.index("   from tensordict.nn import TensorDictModuleBase") :]
    names = {"torch": torch}
    exec(textwrap.dedent(block.partition("   gru = GRUModule")[0]), names)
    return names["PerAgent"](*arguments)


def recurrent_actor(gru):
    """An actor whose agents remember."""
    head = torch.nn.Sequential(torch.nn.Linear(4, 2), NormalParamExtractor())
    keys = [("agents", "loc"), ("agents", "scale")]
    return ProbabilisticActor(
        TensorDictSequential(
            per_agent_module(gru), TensorDictModule(head, [("agents", "features")], keys)
        ),
        in_keys=keys,
        out_keys=[ACTION],
        distribution_class=TanhNormal,
        return_log_prob=True,
    )


def primed(env):
    states = Composite(agents=Composite(h=Unbounded((3, 1, 4)), shape=(3,)))
    return TransformedEnv(env, Compose(InitTracker(), TensorDictPrimer(states, reset_key="_reset")))


@guards("group-loss-takes-sequences")
def test_the_loss_of_agents_that_remember_takes_whole_sequences():
    torch.manual_seed(0)
    gru = GRUModule(2, 4, in_keys=["observation", "h"], out_keys=["features", ("next", "h")])
    policy = recurrent_actor(gru)
    with torch.no_grad():
        batch = primed(Team()).rollout(8, policy, break_when_any_done=False)
    batch["advantage"] = torch.randn(8, 3, 1)
    batch["value_target"] = torch.zeros(8, 3, 1)
    critic = TensorDictModule(torch.nn.Linear(2, 1), SEEN, [VALUE])
    loss = MAPPOLoss(policy, critic, normalize_advantage=False)
    loss.set_keys(action=ACTION, value=VALUE)

    def of(data):
        with set_recurrent_mode(True):
            return loss(data)

    whole = of(batch)
    assert whole["kl_approx"].abs() < 1e-6
    assert of(batch[torch.randperm(8)])["kl_approx"].abs() > 1e-6
    several = of(torch.stack([batch, batch]))
    torch.testing.assert_close(several["loss_objective"], whole["loss_objective"])
    several["loss_objective"].backward()
    weights = dict(loss.named_parameters())
    (recurrent,) = [weights[name] for name in weights if name.endswith("weight_hh_l0")]
    assert recurrent.grad.abs().max() > 0


@guards("gru-refuses-keys-of-a-group")
def test_a_gru_refuses_the_keys_of_a_group():
    keys = [("agents", "observation"), ("agents", "h")]
    gru = GRUModule(2, 4, in_keys=keys, out_keys=[("agents", "f"), ("next", "agents", "h")])
    with pytest.raises(ValueError, match="Expected input to be 2D or 3D, got 4D"):
        gru(primed(Team()).reset())


@guards("gae-adds-the-opponents-value")
def test_gae_adds_the_value_of_the_next_row():
    """Whoever it is good for: a position that is good for the opponent makes a move look good."""
    flags = torch.zeros(2, 1, dtype=torch.bool)
    after = {
        "reward": torch.zeros(2, 1),
        "done": torch.tensor([[False], [True]]),
        "terminated": flags,
        "state_value": torch.tensor([[1.0], [0.0]]),
    }
    rows = TensorDict(
        {"state_value": torch.tensor([[0.0], [1.0]]), "next": TensorDict(after, [2])}, [2]
    )
    rows = GAE(gamma=0.5, lmbda=0.0, value_network=None)(rows)
    assert rows["advantage"][0].item() == 0.5


# -- PettingZoo, which is not installed: methods of its wrapper, without an environment ----


def test_the_environment_of_pettingzoo_fits_the_installed_signature():
    assert bound_calls("docs/reference/multi_agent_data.rst") == ["PettingZooEnv"]


@guards("pettingzoo-group-names")
def test_a_group_has_the_name_of_its_agents():
    def groups(parallel):
        return PettingZooWrapper._get_default_group_map(
            SimpleNamespace(parallel=parallel), ["archer_0", "archer_1", "knight_0"]
        )

    assert groups(True) == {"archer": ["archer_0", "archer_1"], "knight": ["knight_0"]}
    assert all(name == agent for name, (agent,) in groups(False).items())


@guards("pettingzoo-ends-on-any")
def test_the_first_agent_ends_the_episode_unless_all_have_to_be_done():
    """By default ``done_on_any`` is ``parallel``; that was read."""
    wrapper = SimpleNamespace(done_keys=list(flags_of(False, False)), device=None)
    ends = PettingZooWrapper._aggregate_done
    for first, second in ((False, False), (True, False), (True, True)):
        flags = TensorDict(flags_of(first, second))
        assert torch.cat(ends(wrapper, flags, use_any=True)).tolist() == [first] * 3
        assert torch.cat(ends(wrapper, flags, use_any=False)).tolist() == [second] * 3


def flags_of(*agents):
    names = ("done", "terminated", "truncated")
    return {("archer", name): torch.tensor(agents).unsqueeze(-1) for name in names}


@guards("pettingzoo-dead-rows", "pettingzoo-mask-of-turns")
@pytest.mark.parametrize("parallel", [True, False])
def test_the_mask_has_those_who_are_there_or_the_one_who_acts(parallel):
    wrapper = SimpleNamespace(
        use_mask=True,
        parallel=parallel,
        agents=["archer_1", "archer_2"],
        agent_selection="archer_2",
        group_map={"archer": ["archer_0", "archer_1", "archer_2"]},
    )
    rows = TensorDict({("archer", "mask"): torch.zeros(3, dtype=torch.bool)})
    PettingZooWrapper._update_agent_mask(wrapper, rows)
    assert rows["archer", "mask"].tolist() == [False, parallel, True]
