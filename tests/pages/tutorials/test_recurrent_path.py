"""A recurrent policy from the collector to the gradient, against each trajectory by itself.

The path under test is the one of the site: collector, buffer, slices (or a whole batch), GAE,
ClipPPOLoss. The other side shares no code of torchrl with it: it takes the stored rows, cuts them
into trajectories by id and step number, runs ``torch.nn.LSTM`` or ``torch.nn.GRU`` over each from
its stored state, and does the arithmetic of log-probability, value, advantage and loss itself.

Between collection and loss the weights change, so that stored states are stale, probabilities have
a ratio other than one, and a step computed from the state of its own row is wrong.
"""

import contextlib
from dataclasses import dataclass, field
from functools import cache
from unittest import mock

import pytest
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import Compose, GymEnv, InitTracker, StepCounter, TransformedEnv
from torchrl.modules import (
    GRUModule,
    LSTMModule,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
    set_recurrent_mode,
)
from torchrl.objectives import ClipPPOLoss, common
from torchrl.objectives.value import GAE

HIDDEN = 6
FRAMES, BATCHES = 60, 2
MAX_STEPS = 14
SLICE_LEN, N_SLICES = 10, 6
GAMMA, LMBDA = 0.98, 0.9
CLIP, ENTROPY, CRITIC = 0.2, 0.01, 0.5
IDS = ("collector", "traj_ids")
# torch looks at .grad while it traces the body of a scan, and would be stopped by its own warning.
pytestmark = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)
MODULES = {"LSTM": LSTMModule, "GRU": GRUModule}
PLAIN = {"LSTM": torch.nn.LSTM, "GRU": torch.nn.GRU}


@dataclass
class Agent:
    kind: str
    cores: dict = field(default_factory=dict)  # the recurrent module of actor and critic
    heads: dict = field(default_factory=dict)  # the linear layer after it
    actor: ProbabilisticActor = None
    critic: TensorDictSequential = None

    def parameters(self):
        for who in ("actor", "critic"):
            for name, parameter in self.plain(who).named_parameters():
                yield f"{who}.{name}", parameter
            for name, parameter in self.heads[who].named_parameters():
                yield f"{who}.head.{name}", parameter

    def plain(self, who):
        return getattr(self.cores[who], self.kind.lower())


def make_agent(kind, backend):
    agent = Agent(kind)
    for who, outputs in (("actor", 2), ("critic", 1)):
        states = [f"{who}_{letter}" for letter in ("hc" if kind == "LSTM" else "h")]
        agent.cores[who] = MODULES[kind](
            4,
            HIDDEN,
            in_keys=["observation", *states],
            out_keys=[f"{who}_feature", *(("next", state) for state in states)],
            recurrent_backend=backend,
        )
        agent.heads[who] = torch.nn.Linear(HIDDEN, outputs)
    head = TensorDictModule(agent.heads["actor"], ["actor_feature"], ["logits"])
    agent.actor = ProbabilisticActor(
        TensorDictSequential(agent.cores["actor"], head),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    value = ValueOperator(agent.heads["critic"], in_keys=["critic_feature"])
    agent.critic = TensorDictSequential(agent.cores["critic"], value)
    return agent


@cache
def collected(kind):
    """Two batches of one collector, its weights, and those that the loss is computed with."""
    torch.manual_seed(9)
    agent = make_agent(kind, "pad")
    with torch.no_grad():
        for _, parameter in agent.parameters():
            parameter.uniform_(-0.8, 0.8)
    primers = [core.make_tensordict_primer() for core in agent.cores.values()]
    env = TransformedEnv(
        GymEnv("CartPole-v1"), Compose(InitTracker(), StepCounter(MAX_STEPS), *primers)
    )
    env.set_seed(0)
    collector = Collector(
        env,
        TensorDictSequential(agent.actor, agent.critic),
        frames_per_batch=FRAMES,
        total_frames=FRAMES * BATCHES,
        auto_register_policy_transforms=False,
    )
    batches = [batch.clone() for batch in collector]
    collector.shutdown()
    then = {name: parameter.detach().clone() for name, parameter in agent.parameters()}
    now = {name: weight + 0.3 * torch.randn_like(weight) for name, weight in then.items()}
    batch = batches[1]
    assert not batch["is_init"][0]
    assert not batch["next", "done"][-1]
    assert batch["next", "done"].sum() >= 3
    assert batch["next", "terminated"].any()
    assert batch["next", "truncated"].any()
    return batches, then, now


def load(agent, weights):
    with torch.no_grad():
        for name, parameter in agent.parameters():
            parameter.copy_(weights[name])


def drawn(kind, rows, init_key="is_init"):
    """What the loss is given, and the same rows as the storage holds them."""
    batches = collected(kind)[0]
    if rows == "batch":
        return batches[1].clone(), batches[1].clone()
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(FRAMES * BATCHES),
        sampler=SliceSampler(
            slice_len=SLICE_LEN, traj_key=IDS, strict_length=False, init_key=init_key
        ),
        batch_size=SLICE_LEN * N_SLICES,
    )
    for batch in batches:
        buffer.extend(batch)
    torch.manual_seed(4)
    sample = buffer.sample()
    return sample, torch.cat(batches)[sample["index"].flatten()]


# -- The path ----------------------------------------------------------------


def along_the_path(kind, backend, sample, before, gae_mode=True, loss_mode=True):
    """Every quantity that is compared, computed by torchrl.

    *before*: advantages come before the update, from two calls of the critic, as in PPO. Otherwise
    after it, from one call, the only one that needs no state of the new weights.
    """
    _, then, now = collected(kind)
    agent = make_agent(kind, backend)
    loss = ClipPPOLoss(
        agent.actor,
        agent.critic,
        clip_epsilon=CLIP,
        entropy_coeff=ENTROPY,
        critic_coeff=CRITIC,
        loss_critic_type="l2",
        normalize_advantage=False,
    )
    call = {"deactivate_vmap": True} if before else {"shifted": True, "shifted_budget": FRAMES}
    gae = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=agent.critic, **call)
    data = sample.exclude("state_value", "critic_feature", "actor_feature", "logits").clone()
    load(agent, then if before else now)
    with torch.no_grad(), set_recurrent_mode(gae_mode):
        gae(data)
    load(agent, now)
    replaced = contextlib.nullcontext()
    if not loss_mode:
        off = mock.Mock(side_effect=lambda mode: set_recurrent_mode(False))
        replaced = mock.patch.object(common, "set_recurrent_mode", off)
    with replaced:
        losses = loss(data)
    with torch.no_grad(), set_recurrent_mode(loss_mode):
        log_prob = agent.actor.get_dist(data.clone()).log_prob(data["action"])
    parts = ["loss_objective", "loss_entropy", "loss_critic"]
    sum(losses[part] for part in parts).backward()
    return {
        "log_prob": log_prob,
        "value": data["state_value"].squeeze(-1),
        "next_value": data["next", "state_value"].squeeze(-1),
        "advantage": data["advantage"].squeeze(-1),
        "value_target": data["value_target"].squeeze(-1),
        **{part: losses[part].detach() for part in parts},
        **{f"grad of {name}": parameter.grad for name, parameter in agent.parameters()},
    }


# -- The same, one trajectory at a time --------------------------------------


def pieces(stored):
    """``(first, last)`` of each stretch of one trajectory."""
    ids, steps = stored[IDS], stored["step_count"].flatten()
    cuts = [0]
    for row in range(1, len(stored)):
        if ids[row] != ids[row - 1] or steps[row] != steps[row - 1] + 1:
            cuts.append(row)
    return list(zip(cuts, [*cuts[1:], len(stored)], strict=True))


class Plain:
    """The recurrent network and the layer after it of one agent, in modules of torch alone."""

    def __init__(self, kind, who, weights):
        self.who = who
        self.core = PLAIN[kind](4, HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, 2 if who == "actor" else 1)
        self.states = [f"{who}_{letter}" for letter in ("hc" if kind == "LSTM" else "h")]
        with torch.no_grad():
            for name, parameter in self.parameters():
                parameter.copy_(weights[name])

    def parameters(self):
        for name, parameter in self.core.named_parameters():
            yield f"{self.who}.{name}", parameter
        for name, parameter in self.head.named_parameters():
            yield f"{self.who}.head.{name}", parameter

    def __call__(self, rows, observations):
        """One step after the other, from the state that is stored in the first row."""
        state = tuple(rows[key][0].unsqueeze(1) for key in self.states)
        state = state if len(state) == 2 else state[0]
        found = []
        for observation in observations:
            feature, state = self.core(observation[None, None], state)
            found.append(self.head(feature[0, 0]))
        return torch.stack(found)


def trajectory_by_trajectory(kind, stored, before):
    """Every quantity again, without torchrl, from the rows of the storage."""
    _, then, now = collected(kind)
    actor, critic = Plain(kind, "actor", now), Plain(kind, "critic", now)
    judge = Plain(kind, "critic", then if before else now)
    columns = ("log_prob", "value", "next_value", "advantage", "entropy", "learned")
    result = {name: [] for name in columns}
    for first, last in pieces(stored):
        rows = stored[first:last]
        log_probs = actor(rows, rows["observation"]).log_softmax(-1)
        result["log_prob"].append((log_probs * rows["action"]).sum(-1))
        result["entropy"].append(-(log_probs.exp() * log_probs).sum(-1))
        result["learned"].append(critic(rows, rows["observation"]).squeeze(-1))
        seen = [*rows["observation"], rows["next", "observation"][-1]]
        values = judge(rows, seen).squeeze(-1).detach()
        value, following = values[:-1], values[1:]
        reward, ended = rows["next", "reward"].flatten(), rows["next", "terminated"].flatten()
        advantages, carried = [], 0.0
        for one in reversed((reward + GAMMA * following * ~ended - value).tolist()):
            carried = one + GAMMA * LMBDA * carried
            advantages.insert(0, carried)
        result["value"].append(value)
        result["next_value"].append(following)
        result["advantage"].append(torch.tensor(advantages))
    result = {name: torch.cat(parts) for name, parts in result.items()}
    advantage, learned = result["advantage"], result.pop("learned")
    result["value_target"] = advantage + result["value"]
    ratio = (result["log_prob"] - stored["action_log_prob"]).exp()
    assert (ratio - 1).abs().max() > CLIP / 2, "the weights are those that collected"
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    losses = {
        "loss_objective": -gain.mean(),
        "loss_entropy": -ENTROPY * result.pop("entropy").mean(),
        "loss_critic": CRITIC * (result["value_target"] - learned).square().mean(),
    }
    sum(losses.values()).backward()
    result = {name: found.detach() for name, found in (result | losses).items()}
    for plain in (actor, critic):
        result |= {f"grad of {name}": found.grad for name, found in plain.parameters()}
    return result


def differing(path, kind, stored, before):
    """The names of the quantities in which the path is not each trajectory by itself."""
    truth = trajectory_by_trajectory(kind, stored, before)
    assert path.keys() == truth.keys()
    goes_on = ~stored["next", "terminated"].flatten()
    wrong = set()
    for name, expected in truth.items():
        found = path[name]
        if name == "next_value":  # multiplied by zero at a terminated row
            found, expected = found[goes_on], expected[goes_on]
        if not torch.allclose(found, expected, rtol=1e-4, atol=1e-5):
            wrong.add(name.split(".")[0] if name.startswith("grad") else name)
    return wrong


CASES = pytest.mark.parametrize(
    ("kind", "backend"), [(kind, backend) for kind in MODULES for backend in ("pad", "scan")]
)
# torch traces the scan anew for each loss, so a mistake is made once with it and twice with pad.
CASES_AND_ROWS = pytest.mark.parametrize(
    ("kind", "backend", "rows"),
    [
        (kind, backend, rows)
        for kind in MODULES
        for backend, rows in (("pad", "slices"), ("pad", "batch"), ("scan", "slices"))
    ],
)
FORWARD = {"log_prob", "value", "next_value", "advantage", "value_target"}
GRADIENTS = {"grad of actor", "grad of critic"}


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize(
    ("backend", "rows", "before"),
    [
        *(("pad", rows, before) for rows in ("slices", "batch") for before in (True, False)),
        ("scan", "slices", True),
        ("scan", "batch", False),
    ],
)
def test_the_path_is_each_trajectory_by_itself(kind, backend, rows, before):
    sample, stored = drawn(kind, rows)
    lengths = [last - first for first, last in pieces(stored)]
    assert len(lengths) >= 4
    assert len(set(lengths)) > 1
    assert min(lengths) > 1, "a piece of one row, for which shifted=True is an approximation"
    assert stored["next", "terminated"][:-1].any(), "no episode ends inside"
    path = along_the_path(kind, backend, sample, before)
    assert differing(path, kind, stored, before) == set()


@pytest.mark.parametrize("kind", MODULES)
def test_the_slices_are_what_the_sampler_was_asked_for(kind):
    """The cuts by id and step number are its cuts: no two slices join by chance."""
    sample, stored = drawn(kind, "slices")
    ends = sample["next", "truncated"].flatten().nonzero().flatten() + 1
    assert [last for _, last in pieces(stored)] == ends.tolist()
    assert len(ends) == N_SLICES


def no_marks(data):
    data["is_init"] = torch.zeros_like(data["is_init"])
    return data


def no_state(data):
    keys = {key for key in sorted(data.keys()) if key.endswith(("_h", "_c"))}
    assert keys
    return data.exclude(*keys, *(("next", key) for key in keys))


@CASES
def test_a_sampler_that_marks_nothing_is_noticed(kind, backend):
    sample, stored = drawn(kind, "slices", init_key=None)
    path = along_the_path(kind, backend, sample, before=False)
    assert differing(path, kind, stored, before=False) >= FORWARD | GRADIENTS


@CASES_AND_ROWS
@pytest.mark.parametrize("mistake", [no_marks, no_state])
def test_missing_marks_and_missing_states_are_noticed(kind, backend, rows, mistake):
    sample, stored = drawn(kind, rows)
    path = along_the_path(kind, backend, mistake(sample), before=False)
    assert differing(path, kind, stored, before=False) >= FORWARD | GRADIENTS


@CASES_AND_ROWS
def test_advantages_outside_recurrent_mode_are_noticed(kind, backend, rows):
    sample, stored = drawn(kind, rows)
    path = along_the_path(kind, backend, sample, before=True, gae_mode=None)
    wrong = differing(path, kind, stored, before=True)
    assert wrong >= {"next_value", "advantage", "loss_objective", *GRADIENTS}
    assert ("value" in wrong) == (rows == "slices")
    assert "log_prob" not in wrong


@CASES_AND_ROWS
def test_a_loss_outside_recurrent_mode_is_noticed(kind, backend, rows):
    sample, stored = drawn(kind, rows)
    path = along_the_path(kind, backend, sample, before=False, loss_mode=False)
    wrong = differing(path, kind, stored, before=False)
    assert wrong >= {"log_prob", "loss_critic", *GRADIENTS}
    assert "advantage" not in wrong


@pytest.mark.parametrize("kind", MODULES)
def test_fresh_weights_hide_a_loss_outside_recurrent_mode(kind):
    """Without an update in between only the gradients tell: why the weights change here."""
    agent = make_agent(kind, "pad")
    load(agent, collected(kind)[1])
    batch, _ = drawn(kind, "batch")
    with torch.no_grad(), set_recurrent_mode(False):
        log_prob = agent.actor.get_dist(batch.clone()).log_prob(batch["action"])
    torch.testing.assert_close(log_prob, batch["action_log_prob"])


@CASES_AND_ROWS
def test_two_calls_of_the_critic_after_an_update_are_noticed(kind, backend, rows):
    """V(s') then starts from a next state of the old weights."""
    sample, stored = drawn(kind, rows)
    with mock.patch.object(GAE, "__init__", two_calls(GAE.__init__)):
        path = along_the_path(kind, backend, sample, before=False)
    wrong = differing(path, kind, stored, before=False)
    assert wrong >= {"next_value", "advantage", "loss_objective"}
    assert not wrong & {"value", "log_prob"}


def two_calls(init):
    def changed(self, *, shifted, shifted_budget, **options):
        init(self, deactivate_vmap=True, **options)

    return changed
