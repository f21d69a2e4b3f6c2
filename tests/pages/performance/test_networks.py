"""The suite networks, run small: results, keys, counts. And the sentences of its page."""

import ast
import itertools
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import tensordict
import torch
import torchrl
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.envs import GymEnv
from torchrl.modules import MultiAgentMLP, NormalParamExtractor, ProbabilisticActor
from torchrl.objectives import ClipPPOLoss, SoftUpdate

from benchmarks import interleaved, measure
from benchmarks.suites import bench_networks as bench
from tests.support.claims import guards
from tests.support.evidence_module import load_evidence
from tests.support.programs import run_python
from tests.support.suites import CPU, noted, recorded

of = partial(recorded, "networks")


@pytest.fixture(autouse=True)
def small():
    with (
        mock.patch.object(bench, "SECONDS", 0),
        mock.patch.object(interleaved, "LEAST_ROUNDS", 1),
        mock.patch.object(interleaved, "WARMUP_ROUNDS", 1),
        mock.patch.object(measure, "ROUNDS", 1),
        mock.patch.dict(bench.TRUNKS, {"mlp": ((bench.OBSERVATION,), 4)}),
    ):
        yield


def test_trunks():
    found = {w: noted(bench.bench_trunks, CPU, kind="mlp", wiring=w) for w in bench.WIRINGS}
    exact = {wiring: info["exact"] for wiring, info in found.items()}
    assert found["head"]["key"] == "trunk-mlp-head"
    assert {wiring: one["trunk_calls"] for wiring, one in exact.items()} == {
        "two": 2,
        "operator": 2,
        "head": 1,
    }
    assert (
        exact["operator"]["parameters"] == exact["head"]["parameters"] < exact["two"]["parameters"]
    )


def test_gradients_of_a_shared_trunk_are_compared():
    """Gradients of the actor alone are refused."""
    real = bench.Trunks.gradients

    def halved(self, data):
        found = real(self, data)
        return [found[0] / 2, *found[1:]] if len(self.trunks) == 1 else found

    with (
        mock.patch.object(bench.Trunks, "gradients", halved),
        pytest.raises(AssertionError),
    ):
        noted(bench.bench_trunks, CPU, kind="mlp", wiring="head")


@pytest.mark.parametrize(("kind", "batch", "part"), [one for one in bench.ACTORS if one[1] == 64])
def test_actors(kind, batch, part):
    info = noted(bench.bench_actor, CPU, kind=kind, batch=batch, part=part)
    assert info["key"] == f"actor-{kind}-{part}-b64"
    assert set(info["sampled"]) == {"time_vs_bare"}


def test_a_wrong_action_is_refused():
    called, network = bench.make_actor("one-hot", "deterministic", CPU)
    observation = torch.randn(64, bench.OBSERVATION)
    result = called(tensordict.TensorDict({"observation": observation}, [64]))
    bench.check_actor("one-hot", "deterministic", result, network, observation)
    result["action"] = result["action"].roll(1, -1)
    with pytest.raises(AssertionError):
        bench.check_actor("one-hot", "deterministic", result, network, observation)


@pytest.mark.parametrize("functional", [True, False])
def test_functional(functional):
    info = noted(bench.bench_functional, CPU, batch=3, functional=functional)
    assert info["key"] == f"functional-{str(functional).lower()}-b3"


@pytest.mark.parametrize("kind", bench.UPDATES)
def test_target_updates(kind):
    info = noted(bench.bench_target_update, CPU, layers=2, width=4, kind=kind)
    assert info["key"] == f"target-{kind}-l2-w4"
    sizes = [bench.OBSERVATION, 4, 4, bench.ACTIONS]
    parameters = sum(sizes[i] * sizes[i + 1] + sizes[i + 1] for i in range(3))
    assert info["exact"]["parameters"] == parameters


def test_another_update_is_refused():
    with mock.patch.object(SoftUpdate, "_step"), pytest.raises(AssertionError):
        noted(bench.bench_target_update, CPU, layers=2, width=4, kind="soft")


@pytest.mark.parametrize("lowered", [False, True])
def test_autocast(lowered):
    info = noted(bench.bench_autocast, CPU, width=8, batch=4, lowered=lowered)
    assert (info["exact"]["gradient_error"] > 0) == lowered


@guards("autocast-error-larger", "bfloat-keeps-eight-bits")
def test_precision():
    for kind in ("one-hot", "tanh"):
        found = {
            lowering: noted(bench.bench_precision, CPU, kind=kind, lowering=lowering)["exact"]
            for lowering in bench.LOWERINGS
        }
        assert min(one["parameter_error"] for one in found.values()) > 1e-3
        assert found["network"]["log_prob_error"] < found["all"]["log_prob_error"]
        assert found["network"]["log_prob_error"] < found["module"]["log_prob_error"]


# -- What the page says -------------------------------------------------------------


@guards("import-disables-validation", "knob-validate-args-default")
def test_validation_is_off_after_the_import():
    program = (
        "import torch, tensordict.nn\n"
        "assert torch.distributions.Distribution._validate_args\n"
        "import torchrl.modules\n"
        "assert not torch.distributions.Distribution._validate_args\n"
    )
    run_python("-c", program)


@guards("nan-weights-act-unnoticed")
def test_a_policy_with_nan_weights_acts_without_an_error():
    """PyTorch's own check would raise, with the message that the doctor's page has."""
    net = TensorDictModule(torch.nn.Linear(3, 2), ["observation"], ["both"])
    torch.nn.init.constant_(net.module.weight, float("nan"))
    split = TensorDictModule(NormalParamExtractor(), ["both"], ["loc", "scale"])
    actor = ProbabilisticActor(
        TensorDictSequential(net, split),
        ["loc", "scale"],
        distribution_class=torch.distributions.Normal,
    )
    rollout = GymEnv("Pendulum-v1").rollout(2, actor)
    assert rollout["action"].isnan().all()
    with pytest.raises(ValueError, match=r"Expected parameter loc .*but found invalid values"):
        torch.distributions.Normal(rollout["loc"], rollout["scale"], validate_args=True)


@guards("cache-dist-unread")
def test_nothing_reads_cache_dist():
    reads = []
    for package in (tensordict, torchrl):
        for file in Path(package.__file__).parent.rglob("*.py"):
            text = file.read_text("utf-8")
            if "cache_dist" not in text:
                continue
            reads += [
                file.name
                for node in ast.walk(ast.parse(text))
                if isinstance(node, ast.Attribute)
                and node.attr == "cache_dist"
                and isinstance(node.ctx, ast.Load)
            ]
    assert reads == []
    module = tensordict.nn.ProbabilisticTensorDictModule(["logits"], ["action"], cache_dist=True)
    assert hasattr(module, "cache_dist")


@guards("updater-cost-per-tensor")
def test_an_update_has_a_cost_per_call_and_per_tensor():
    entered = load_evidence("networks/calls").entered

    def functions(layers):
        _, updater = bench.make_update("soft", layers, 4, CPU)
        updater.step()
        return entered(updater.step)

    few, some, many = (functions(layers) for layers in (2, 12, 22))
    assert some - few == many - some > 0
    per_tensor = (some - few) / 20  # a weight and a bias in each layer
    assert few - 6 * per_tensor > per_tensor  # per call


@guards("functional-false-no-updater")
def test_without_target_parameters_no_updater_is_accepted():
    network = bench.QValueActor(
        torch.nn.Linear(3, 2), in_keys=["observation"], spec=bench.OneHot(2)
    )
    loss = bench.DQNLoss(network, action_space="one-hot", delay_value=False)
    with pytest.raises(RuntimeError):
        SoftUpdate(loss, tau=0.1)


@guards("functional-false-effects")
def test_what_functional_false_gives_up():
    loss = bench.make_ppo(False, CPU)
    assert loss.target_actor_network_params is None
    with pytest.raises(ValueError, match="delay_actor=True requires functional=True"):
        ClipPPOLoss(loss.actor_network, loss.critic_network, functional=False, delay_actor=True)


@guards("value-head-trunk-once")
def test_the_loss_leaves_the_batch_alone():
    shape, batch = bench.TRUNKS["mlp"]
    data = bench.make_batch(shape, batch, CPU)
    keys = set(data.keys())
    trunks = bench.Trunks("mlp", "head", CPU)
    trunks.loss(data)
    assert set(data.keys()) == keys


@guards("own-parameters-run-under-vmap")
def test_agents_with_networks_of_their_own_run_under_vmap():
    mapped = []
    for shared in (True, False):
        network = MultiAgentMLP(4, 2, 3, centralized=False, share_params=shared, num_cells=[8])
        with mock.patch.object(torch, "vmap", side_effect=torch.vmap) as vmap:
            network(torch.zeros(5, 3, 4))
        mapped.append(vmap.called)
    assert mapped == [False, True]


def test_the_run_notices_another_package():
    """The table is refused if an actor's call were no longer mostly Python."""
    run = load_evidence("networks/calls")
    with (
        mock.patch.object(run, "make_calls", return_value=dict.fromkeys("abcde", list)),
        pytest.raises(AssertionError),
    ):
        run.count_calls()


# -- What the page says of the record -------------------------------------------------


@guards("value-operator-trunk-twice", "value-head-trunk-once", "sharing-time-by-wiring")
def test_sharing_pays_by_head():
    for kind in ("mlp", "conv"):
        operator, head = (f"trunk-{kind}-{wiring}" for wiring in ("operator", "head"))
        assert (of(operator, "trunk_calls"), of(head, "trunk_calls")) == (2, 1)
        assert abs(of(operator, "time_vs_two_trunks") - 1) < 0.1
        assert of(head, "time_vs_two_trunks") < 2 / 3
        assert of(head, "parameters") < 0.51 * of(f"trunk-{kind}-two", "parameters")


def against_bare(part, batch=1, kind="one-hot"):
    return f"actor-{kind}-{part}-b{batch}", "time_vs_bare"


@guards(
    "actor-loses-to-pytorch", "actor-cost-per-call", "actor-cost-fades", "forward-exceeds-products"
)
def test_wrappers_lose_and_fade():
    for batch in bench.BATCHES:
        assert of(*against_bare("random", batch)) > of(*against_bare("plain", batch))
    assert of(*against_bare("random", 64, "tanh")) > of(*against_bare("plain", 64, "tanh"))
    one, some, many = (of(*against_bare("random", batch)) for batch in bench.BATCHES)
    assert one > 5
    assert one > some > many
    assert many < 2.5
    extra = [
        of(f"actor-one-hot-random-b{batch}", "calls_time")
        - of(f"actor-one-hot-plain-b{batch}", "calls_time")
        for batch in bench.BATCHES
    ]
    assert max(extra) < 1.5 * min(extra)


@guards("sampling-costs-over-network", "sample-dearer-than-mode")
def test_what_log_probabilities_cost():
    parts = ("deterministic", "random", "log-prob", "validated")
    times = [of(*against_bare(part)) for part in parts]
    assert min(b - a for a, b in itertools.pairwise(times)) > 1


@guards("functional-swap-small")
def test_the_swap_is_small():
    small, large = (of(f"functional-false-b{b}", "time_vs_functional") for b in (64, 1024))
    assert 0.8 < small < large < 1
    for batch in bench.FUNCTIONAL_BATCHES:
        assert of(f"functional-false-b{batch}", "gradient_error") == 0


@guards("foreach-update-wins", "many-small-layers-longer", "hard-update-between-copies")
def test_target_updates_against_foreach():
    for kind in ("soft", "hard"):
        ratios = [of(f"target-{kind}-l2-w{w}", "time_vs_foreach") for w in (64, 512, 2048)]
        assert ratios == sorted(ratios, reverse=True)
        assert ratios[0] > 20
        assert 1 < ratios[-1] < 2
        thin, wide = f"target-{kind}-l32-w64", f"target-{kind}-l2-w512"
        assert of(thin, "time_vs_foreach") > 1
        assert of(thin, "calls_time") > of(wide, "calls_time")
        assert 1.8 < of(wide, "parameters") / of(thin, "parameters") < 2.3
    for layers, width in bench.SIZES:
        skipped, copied = (f"target-{kind}-l{layers}-w{width}" for kind in ("skipped", "hard"))
        assert of(skipped, "calls_time") < 0.1 * of(copied, "calls_time")


@guards("compiled-actor-cheaper")
def test_a_compiled_actor_is_faster():
    assert recorded("compile", "actor-b1", "time_vs_eager", "q3") < 1


@guards("autocast-wide-layers")
def test_autocast_wins_on_wide_layers():
    narrow, *wide = (of(f"bf16-bfloat16-w{w}", "time_vs_float32") for w in (64, 512, 2048))
    assert narrow > 1 > max(wide)


@guards("autocast-error-larger")
def test_errors_of_the_record():
    for kind in ("one-hot", "tanh"):
        network, whole = (
            of(f"precision-{kind}-{lowered}", "log_prob_error") for lowered in ("network", "all")
        )
        assert network < whole
