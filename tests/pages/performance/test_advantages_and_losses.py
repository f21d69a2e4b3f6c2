"""The suites advantages and loss_breakdown, run small, and what their page says of the records."""

from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.objectives.value import GAE, functional

from benchmarks import interleaved
from benchmarks.suites import bench_advantages as suite
from benchmarks.suites import bench_loss_breakdown as breakdown
from benchmarks.timing import Benchmark
from tests.support.claims import guards
from tests.support.evidence_module import load_evidence
from tests.support.suites import CPU, benchmarks_of, noted
from tests.support.suites import recorded as recorded_of

# -- In turn ---------------------------------------------------------------------


def test_rounds_call_every_way_in_every_round():
    called = []
    ways = {name: lambda name=name: called.append(name) for name in "ab"}
    spent = interleaved.rounds(CPU, ways, count=3, warmup=2)
    assert called == list("ab" * 5)
    assert {name: len(seconds) for name, seconds in spent.items()} == {"a": 3, "b": 3}


def test_a_report_states_the_seconds_they_were_given():
    benchmark, seconds = Benchmark(), [0.5, 0.25, 2.0]
    interleaved.report(benchmark, seconds, 2, "key", "time", title="t", parameters={})
    assert benchmark.seconds == seconds
    assert benchmark.extra_info["warmup_rounds"] == 2
    assert benchmark.extra_info["timing"] == "time"


# -- advantages ------------------------------------------------------------------


@pytest.fixture
def few_rounds():
    with (
        mock.patch.object(suite, "SECONDS", 0),
        mock.patch.object(suite, "LEAST_ROUNDS", 2),
        mock.patch("benchmarks.interleaved.LEAST_ROUNDS", 2),
    ):
        yield
    suite.both_forms.cache_clear()


@pytest.mark.parametrize("kind", ["scalar", "tensor"])
@pytest.mark.parametrize("name", suite.FUNCTIONS)
def test_entry_of_a_function(few_rounds, name, kind):
    case, forms = (name, kind, 2, 9, 2), (suite.VECTORIZED, suite.LOOP)
    vectorized, loop = (noted(suite.bench_function, CPU, case, form) for form in forms)
    assert (vectorized["parameters"]["form"], loop["parameters"]["form"]) == forms
    assert loop["key"] == vectorized["key"] + "-loop" == f"{name}-{kind}-b2-t9-d2-loop"
    assert len(vectorized["sampled"]["time_vs_loop"]) == 2
    ratio = vectorized["exact"]["peak_memory"] / loop["exact"]["peak_memory"]
    assert vectorized["exact"]["peak_vs_loop"] == ratio > 1


def test_a_wrong_form_fails_the_suite(few_rounds):
    def wrong(*arguments):
        advantage, target = suite.vec_generalized_advantage_estimate(*arguments)
        return advantage + 0.01, target

    broken = {"gae": ("GAE", suite.generalized_advantage_estimate, wrong)}
    with mock.patch.dict(suite.FUNCTIONS, broken), pytest.raises(AssertionError):
        suite.bench_function(Benchmark(), CPU, ("gae", "scalar", 2, 9, 0), suite.LOOP)


@pytest.mark.parametrize("dones", [0, 2])
def test_share_of_ends(dones):
    *_, done = suite.make_signals(100, 100, dones, CPU)
    assert done.float().mean() == pytest.approx(dones / 100, abs=0.005)


def test_entry_of_the_estimator(few_rounds):
    with mock.patch.object(suite, "BATCH", 2):
        entry = noted(suite.bench_estimator, CPU, 9, 2)
    assert entry["key"] == "estimator-gae-t9-d2"
    assert entry["metrics"] == set(suite.METRICS) - {"time_vs_default"}


@pytest.mark.parametrize("name", suite.KNOBS)
def test_entry_of_a_knob(few_rounds, name):
    with mock.patch.multiple(suite, BATCH=2, MIDDLE=40):
        entry = noted(suite.bench_knob, CPU, name)
    assert entry["key"] == f"knob-{name}"
    assert entry["metrics"] == {"time", "time_vs_default", "error"}


# -- loss_breakdown --------------------------------------------------------------


@pytest.fixture
def small():
    with (
        mock.patch.multiple(breakdown, ROUNDS=2, WARMUP_ROUNDS=1, TRACED_ROUNDS=2, LEAST_SHARE=50),
        mock.patch.multiple(breakdown.PPO, frames=32, epochs=1, minibatch=16),
        mock.patch.multiple(breakdown.IMPALA, frames=16, minibatch=16),
        mock.patch.multiple(breakdown.SAC, frames=16, epochs=2, minibatch=16),
    ):
        yield
    breakdown.measured.cache_clear()


@pytest.mark.parametrize("name", ["ppo", "impala", "sac"])
def test_parts_add_up(small, name):
    shares, traced, operators = {}, {}, {}
    for part in (breakdown.WHOLE, *breakdown.PARTS[name], breakdown.REST):
        entry = noted(breakdown.bench_part, CPU, name, part)
        assert entry["key"] == f"{name}-{part}"
        assert entry["metrics"] == set(breakdown.METRICS)
        assert len(entry["seconds"]) == len(entry["sampled"]["share"]) == breakdown.ROUNDS
        shares[part] = entry["sampled"]["share"][0]
        traced[part] = entry["sampled"]["traced_share"][0]
        operators[part] = entry["sampled"]["operators"][0]
    for found in (shares, traced, operators):
        whole = found.pop(breakdown.WHOLE)
        assert sum(found.values()) == pytest.approx(whole)
    assert min(operators["forward"], operators["backward"], operators["optimizer"]) > 50


def test_iteration_with_a_hole_fails_the_suite():
    spent = {"collect": 1.0, "advantage": 1.0, "forward": 1.0, "backward": 1.0, "optimizer": 1.0}
    breakdown.complete(spent | {breakdown.WHOLE: 5.1}, "a2c")
    with pytest.raises(AssertionError, match="of the iteration"):
        breakdown.complete(spent | {breakdown.WHOLE: 6.0}, "a2c")
    with pytest.raises(AssertionError, match="of the iteration"):
        breakdown.complete(spent | {breakdown.WHOLE: 4.9}, "a2c")


def test_operators_are_counted_where_they_start():
    def event(name, start, length, category="cpu_op"):
        return {"name": name, "ts": start, "dur": length, "cat": category}

    spent, operators = breakdown.read_trace(
        [
            event("part:iteration", 0, 100, "user_annotation"),
            event("part:collect", 0, 40, "user_annotation"),
            event("part:forward", 50, 30, "user_annotation"),
            event("aten::a", 5, 3),
            event("aten::b", 45, 3),
            event("aten::c", 50, 3),
            event("aten::d", 90, 3),
            {"name": "no duration", "ts": 3, "cat": "ac2g"},
        ]
    )
    assert spent == {"iteration": 100, "collect": 40, "forward": 30}
    assert operators == {"iteration": 4, "collect": 1, "forward": 1, "rest": 2}


# -- Sentences about the records -------------------------------------------------


def recorded(key, metric, of="advantages", point="median"):
    return recorded_of(of, key, metric, point)


def part(name, of, metric="share"):
    return recorded(f"{name}-{of}", metric, "loss_breakdown")


def against_loop(name="gae", kind="scalar", batch=16, steps=128, dones=0, metric="time_vs_loop"):
    return recorded(suite.function_key(name, kind, batch, steps, dones), metric)


@guards(
    "on-policy-waits-for-collector",
    "check-learning-share-first",
    "a2c-impala-collector-first",
    "ppo-learns-more-than-a2c",
    "sac-forward-pass-largest",
)
def test_where_an_iteration_goes():
    def learning(name):
        return sum(part(name, step) for step in breakdown.STEP)

    for name in ("ppo", "a2c", "impala"):
        shares = {step: part(name, step) for step in breakdown.PARTS[name]}
        assert max(shares, key=shares.get) == "collect"
    assert min(part("a2c", "collect"), part("impala", "collect")) > 80
    assert part("ppo", "advantage") < 5
    assert learning("ppo") > 2 * learning("a2c")
    assert breakdown.PPO.epochs > 1
    assert breakdown.SAC.frames == breakdown.SAC.epochs
    shares = {step: part("sac", step) for step in breakdown.PARTS["sac"]}
    assert max(shares, key=shares.get) == "forward"
    assert shares["collect"] < 15


@guards("breakdown-parts-add-up")
def test_parts_add_up_in_the_record():
    for name, parts in breakdown.PARTS.items():
        for metric in ("share", "traced_share"):
            rest = part(name, breakdown.REST, metric)
            assert 0 <= rest < 100 - breakdown.LEAST_SHARE
            total = rest + sum(part(name, step, metric) for step in parts)
            assert total == pytest.approx(100, abs=3)  # medians do not quite add up


@guards("ppo-forward-calls-networks-once", "minibatch-operators-small")
def test_forward_pass_of_the_loss():
    per_call = part("ppo", "forward", "operators") / part("ppo", "forward", "calls")
    assert per_call > 100
    actor, critic = suite.make_actor(CPU), suite.make_critic(CPU)
    calls = []
    for module in (actor.module[0], critic.module):
        module.register_forward_pre_hook(lambda *_, module=module: calls.append(module))
    with torch.no_grad(), mock.patch.object(suite, "BATCH", 2):
        batch = suite.make_gae(CPU, critic)(actor(suite.make_batch(5, 0, CPU)))
    loss = suite.ClipPPOLoss(actor, critic)
    calls.clear()
    loss(batch)
    assert len(calls) == 2


@guards(
    "gae-short-rows",
    "gae-many-rows",
    "filter-length-until-threshold",
    "gae-ends-inside-batch",
    "vectorized-pads-and-filters",
)
def test_where_the_vectorized_form_loses():
    for dones in suite.DONES:
        assert against_loop(steps=8, dones=dones) > 1
        ratios = [against_loop(batch=batch, dones=dones) for batch in (16, 64, 256)]
        assert ratios == sorted(ratios)
        assert ratios[-1] > 1
        small, large = (
            recorded(suite.function_key("gae", "scalar", batch, 128, dones) + "-loop", "time")
            for batch in (16, 256)
        )
        assert large < 256 / 16 * small / 3
    for steps in (128, 512, 2048):
        assert against_loop(steps=steps, dones=2) > against_loop(steps=steps, dones=0)


@guards("filter-fixed-operators")
def test_operators_by_length():
    class Operators(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += 1
            return function(*args, **(kwargs or {}))

    def count(function, steps):
        value, following, reward = torch.randn(3, 16, steps, 1)
        with Operators() as found:
            function(0.99, 0.95, value, following, reward, torch.rand(16, steps, 1) < 0.02)
        return found.count

    loop = functional.generalized_advantage_estimate
    vectorized = functional.vec_generalized_advantage_estimate
    assert count(vectorized, 8) == count(vectorized, 128) == count(vectorized, 512)
    assert count(loop, 8) <= count(vectorized, 8) < count(loop, 128)


@guards("td-vectorized-always-faster", "gae-vectorized-loses", "td-default-unless-discount-tensor")
def test_td_lambda_is_better_vectorized():
    keys = benchmarks_of("advantages")
    keys = [key for key in keys if key.startswith("tdlambda-scalar") and not key.endswith("-loop")]
    assert len(keys) > 10
    ratios = {key: recorded(key, "time_vs_loop") for key in keys}
    assert max(recorded(key, "time_vs_loop", point="q3") for key in keys) < 1
    assert max(ratios, key=ratios.get) == suite.function_key("tdlambda", "scalar", 256, 128, 2)
    for key in keys:
        loop = f"{key}-loop"
        assert recorded(loop.replace("tdlambda", "gae"), "time") < recorded(loop, "time")


@guards("loop-wins-discount-tensor", "td-discount-tensor-short-rows")
def test_td_lambda_with_a_discount_per_step():
    for dones in suite.DONES:
        for name in suite.FUNCTIONS:
            key = suite.function_key(name, "tensor", 16, 512, dones)
            assert recorded(key, "time_vs_loop", point="q1") > 1
        for steps in (8, 32, 128):
            key = suite.function_key("tdlambda", "tensor", 16, steps, dones)
            assert recorded(key, "time_vs_loop", point="q3") < 1
            assert recorded(key, "peak_vs_loop") > 2


@guards("large-critic-called-once", "loss-options-not-speed")
def test_options_of_the_critic_and_of_the_loss():
    assert recorded("knob-shifted", "time_vs_default", point="q3") < 0.95
    for key in ("knob-separate-losses", "knob-reduction-none"):
        assert abs(recorded(key, "time_vs_default") - 1) < 0.05


@guards(
    "when-to-vectorize-gae",
    "long-rows-vectorized-gae",
    "padding-shows-in-memory",
)
def test_advice_about_vectorized():
    assert against_loop(steps=512) < 0.5
    assert against_loop(batch=256, dones=2) > 2
    plain, padded = (
        recorded(suite.function_key("gae", "scalar", 16, 2048, dones), "peak_memory")
        for dones in (0, 2)
    )
    assert padded > 3 * plain


@guards("slow-critic-hides-form")
def test_a_critic_hides_the_form():
    for steps in suite.STEPS:
        for dones in suite.DONES:
            alone = against_loop(steps=steps, dones=dones)
            with_critic = recorded(f"estimator-gae-t{steps}-d{dones}", "time_vs_loop")
            assert abs(with_critic - 1) < max(abs(alone - 1), 0.1)


@guards("discount-per-step-quadratic", "discount-tensor-makes-table", "pass-discount-as-number")
def test_a_discount_per_step():
    for name in suite.FUNCTIONS:
        for dones in suite.DONES:
            assert against_loop(name, "tensor", steps=512, dones=dones) > 2
            small, large = (
                against_loop(name, "tensor", steps=steps, dones=dones, metric="peak_memory")
                for steps in (128, 512)
            )
            assert large > 2 * (512 / 128) * small


# -- Sentences about the package -------------------------------------------------


@guards("estimator-defaults-differ", "compile-takes-the-loop")
def test_under_compile_both_take_the_loop():
    from torchrl.objectives.value import TDLambdaEstimator, advantages

    for kind, default in ((GAE, False), (TDLambdaEstimator, True)):
        options = {"gamma": 0.9, "lmbda": 0.9, "value_network": None}
        assert bool(kind(**options).vectorized) is default
        ours = kind(**options, vectorized=True)
        with mock.patch.object(advantages, "is_dynamo_compiling", return_value=True):
            assert not ours.vectorized
        assert ours.vectorized


@pytest.mark.parametrize("shape", [(9,), (2, 9)])
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
@guards("lambda-per-step")
def test_a_lambda_for_each_step(shape):
    from tensordict import TensorDict
    from torchrl.objectives.value import TDLambdaEstimator

    values, ends = torch.randn(*shape[:-1], 10, 1), torch.zeros(*shape, 1, dtype=torch.bool)
    following = {"done": ends, "terminated": ends, "reward": torch.randn(*shape, 1)}
    following["state_value"] = values[..., 1:, :]
    batch = TensorDict({"state_value": values[..., :-1, :], "next": following}, shape)
    factor, advantage = torch.rand(*shape, 1), torch.zeros(*shape, 1)
    errors = following["reward"] + 0.9 * following["state_value"] - batch["state_value"]
    after = 0.0
    for step in reversed(range(9)):
        after = errors[..., step, :] + 0.9 * factor[..., step, :] * after
        advantage[..., step, :] = after

    def estimated(kind, **options):
        estimator = kind(gamma=0.9, value_network=None, **options)
        return estimator(batch.copy())["advantage"]

    for kind, vectorized in ((GAE, False), (GAE, True), (TDLambdaEstimator, False)):
        found = estimated(kind, lmbda=factor, vectorized=vectorized)
        torch.testing.assert_close(found, advantage)
    with pytest.raises((IndexError, RuntimeError), match=r"Dimension out of range|number of sizes"):
        estimated(TDLambdaEstimator, lmbda=factor)


@guards("multi-step-discount-tensor")
def test_multi_step_writes_the_key():
    from torchrl.envs.transforms import MultiStepTransform

    batch = suite.make_batch(6, 0, CPU)[0]
    found = MultiStepTransform(n_steps=2, gamma=0.9)._inv_call(batch)
    assert found is not None
    assert "steps_to_next_obs" in found.keys()  # noqa: SIM118 - no dict


@guards("shared-signals-expanded")
def test_shared_signals_are_expanded():
    from torchrl.objectives.value import MultiAgentGAE

    reward, values = torch.randn(2, 5, 1), torch.randn(2, 5, 3, 1)
    spread = MultiAgentGAE._broadcast_to_agents(reward, values, -2)
    assert spread.shape == values.shape
    assert spread.data_ptr() == reward.data_ptr()


@guards("loss-makes-own-estimator", "loss-estimator-differentiable", "critic-parameters-held-out")
def test_estimator_of_a_loss():
    loss = suite.ClipPPOLoss(suite.make_actor(CPU), suite.make_critic(CPU))
    assert loss._value_estimator is None
    assert isinstance(loss.value_estimator, GAE)
    assert loss.value_estimator.differentiable
    with mock.patch.object(suite, "BATCH", 2):
        batch = suite.make_batch(5, 0, CPU)
    assert not loss.value_estimator(batch)["advantage"].requires_grad


@guards("shared-trunk-not-trained", "separate-losses-holds-trunk")
@pytest.mark.parametrize("separate", [False, True])
def test_separate_losses(separate):
    from tensordict.nn import TensorDictModule, TensorDictSequential

    trunk = TensorDictModule(torch.nn.Linear(4, 8), ["observation"], ["hidden"])
    actor = suite.ProbabilisticActor(
        TensorDictSequential(
            trunk, TensorDictModule(torch.nn.Linear(8, 2), ["hidden"], ["logits"])
        ),
        in_keys=["logits"],
        distribution_class=suite.OneHotCategorical,
        return_log_prob=True,
    )
    critic = TensorDictSequential(trunk, suite.ValueOperator(torch.nn.Linear(8, 1), ["hidden"]))
    with mock.patch.object(suite, "BATCH", 2), torch.no_grad():
        batch = GAE(gamma=0.9, lmbda=0.9, value_network=critic)(actor(suite.make_batch(5, 0, CPU)))
    loss = suite.ClipPPOLoss(actor, critic, separate_losses=separate)
    loss(batch)["loss_critic"].backward()
    trained = trunk.module.weight.grad
    assert (trained is None or not trained.any()) is separate


@guards("vec-advantage-is-return-less-value")
def test_the_vectorized_advantage_is_the_return_less_the_value():
    value, following, reward, done = suite.make_signals(2, 7, 20, CPU)
    found = functional.vec_td_lambda_advantage_estimate(
        0.9, 0.8, value, following, reward, done, done
    )
    returns = suite.vec_td_lambda_return_estimate(0.9, 0.8, following, reward, done, done)
    assert torch.equal(found, returns - value)


@guards("td-gae-differ-by-rounding", "vtrace-calls-actor")
def test_td_lambda_is_gae():
    ours, default = suite.KNOBS["tdlambda"].make(CPU)
    assert suite.difference(ours(), default()) < 1e-4
    calls = []
    actor = suite.make_actor(CPU)
    actor.module[0].register_forward_pre_hook(lambda *_: calls.append(1))
    with mock.patch.object(suite, "BATCH", 2), torch.no_grad():
        batch = actor(suite.make_batch(5, 0, CPU))
        calls.clear()
        critic = suite.make_critic(CPU)
        suite.VTrace(gamma=0.9, actor_network=actor, value_network=critic)(batch)
    assert calls


def test_verdicts_of_the_check():
    check = load_evidence("advantages_and_losses/check")
    clock = iter(range(10_000))
    with mock.patch.object(check.time, "perf_counter", side_effect=clock):
        assert check.faster_gae(2, 5, 0.1, rounds=2) == (check.NEITHER, 1)
    seconds = iter([0, 1, 10, 15, 20, 21, 30, 35])  # the loop takes one, the other five
    with mock.patch.object(check.time, "perf_counter", side_effect=seconds):
        assert check.faster_gae(2, 5, 0.1, rounds=2) == (check.LOOP, 5)
