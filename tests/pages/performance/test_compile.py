"""The suite compile, run small: graphs, results, keys. And the sentences of its page."""

import dataclasses
import json
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from benchmarks.suites import bench_compile as bench
from tests.support.claims import guards
from tests.support.suites import CPU, benchmarks_of, noted, recorded

of = partial(recorded, "compile")

# tensordict asks for a setting that torch has deprecated.
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch._dynamo.config.inline_inbuilt_nn_modules:FutureWarning"
)


@pytest.fixture
def small():
    """Few rounds, and no TorchInductor."""
    with (
        mock.patch.object(bench, "SECONDS", 0),
        mock.patch.object(bench, "ROUND_S", 0),
        mock.patch.object(bench, "LEAST_ROUNDS", 2),
        mock.patch.object(bench.torch._inductor.config, "fallback_random", False),
    ):
        torch.compiler.reset()
        yield
        torch.compiler.reset()


def in_this_process(case, device, folder, first_calls_alone=False):
    torch.compiler.reset()
    case = dataclasses.replace(case, backend="eager", batch=3)
    return json.loads(json.dumps(bench.measure_case(case, device, first_calls_alone)))


@pytest.mark.parametrize("subject", ["value", "actor", "dqn"])
def test_compiled_results_are_compared(small, tmp_path, subject):
    case = bench.Case(subject, 256, warm=subject == "value")
    with mock.patch.object(bench, "run_child", in_this_process):
        info = noted(bench.bench_compiled_step, CPU, tmp_path, case)
    assert info["key"] == f"{subject}-b256"
    assert info["exact"]["graphs"] == 1
    assert info["exact"]["graph_breaks"] == 0
    may_be_absent = {"break_even_steps", "warm_break_even_steps", "warm_compile_time"}
    assert set(bench.METRICS) - may_be_absent <= info["metrics"]
    assert ("warm_compile_time" in info["metrics"]) == case.warm


def test_a_wrong_result_is_refused(small):
    """The comparison sees outputs and gradients."""
    module, data = bench.dqn(3)
    case = bench.Case("dqn", 3)
    eager = bench.Step(case, module, module, data)

    def doubled(data):
        return module(data).apply(lambda loss: 2 * loss)

    with pytest.raises(AssertionError, match="output_error"):
        bench.errors(bench.Step(case, module, doubled, data), eager)

    def other_gradient(data):
        return module(data).apply(lambda loss: loss.detach() + 2 * (loss - loss.detach()))

    with pytest.raises(AssertionError, match="gradient_error"):
        bench.errors(bench.Step(case, module, other_gradient, data), eager)


def test_what_goes_on_compiling_is_refused(small):
    """A later compilation would be within a time that claims to be free of it."""
    case = bench.Case("value", 3)
    sizes = iter(range(2, 20))

    def step():
        graphs = torch.compile(lambda tensor: tensor + 1, backend="eager", dynamic=False)
        graphs(torch.zeros(next(sizes)))

    with pytest.raises(AssertionError, match="the last of 4 calls compiled as well"):
        bench.settle(case, step, CPU)
    with pytest.raises(AssertionError, match="nothing was compiled"):
        bench.settle(case, lambda: None, CPU)


def test_break_even():
    found = {"compiled": [1.0, 1.0], "eager": [3.0, 3.0]}
    assert bench.break_even(found, 24.0) == (20.0, [10.0])
    assert bench.break_even({"compiled": [3.0], "eager": [3.0]}, 24.0) == (12.0, [])


def test_a_child_that_fails_says_why(tmp_path):
    """One that imports nothing: importing torchrl takes longer than to fail."""
    with (
        mock.patch.object(bench, "CHILD", "import sys\nraise KeyError(sys.argv[1])"),
        pytest.raises(AssertionError, match=r"KeyError: .*no such subject"),
    ):
        bench.run_child(SimpleCase("no such subject"), CPU, tmp_path)


@dataclasses.dataclass
class SimpleCase:
    subject: str
    batch: int = 1


def test_without_a_compiler_the_suite_is_skipped():
    from torch._inductor import cpp_builder, exc

    with (
        mock.patch.object(cpp_builder, "get_cpp_compiler", side_effect=exc.InvalidCxxCompiler),
        pytest.raises(pytest.skip.Exception, match="no C\\+\\+ compiler"),
    ):
        bench.compiler.__wrapped__(CPU)
    bench.compiler.__wrapped__(SimpleNamespace(type="cuda"))  # Triton brings its own


# -- What the page says -------------------------------------------------------------


@pytest.fixture
def eager_backend():
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield lambda function: torch.compile(function, backend="eager")
    torch.compiler.reset()


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@guards("compiled-loss-draws", "eager-entropy-analytic", "compiled-random-stream")
def test_a_compiled_ppo_loss_samples(eager_backend):
    loss, data = bench.clip_ppo(3)
    before = torch.get_rng_state()
    expected = loss(data.copy())
    assert torch.equal(torch.get_rng_state(), before)
    found = eager_backend(loss)(data.copy())
    assert not torch.equal(torch.get_rng_state(), before)
    for key in ("loss_objective", "loss_entropy", "loss_critic"):
        torch.testing.assert_close(found[key], expected[key])


@guards("one-hot-entropy-sample-breaks")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("bonus", [True, False])
def test_the_sample_for_the_entropy_breaks_the_graph(eager_backend, bonus):
    loss, data = bench.clip_ppo_one_hot(3)
    loss = bench.ClipPPOLoss(loss.actor_network, loss.critic_network, entropy_bonus=bonus)
    eager_backend(loss)(data.copy())
    assert bool(torch._dynamo.utils.counters["graph_break"]) is bonus
    assert (graphs() == 1) is not bonus


@guards("batch-of-one-compiles")
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_batch_of_one_compiles(eager_backend, dynamic):
    module = bench.make_value()
    call = torch.compile(module, backend="eager", dynamic=dynamic)
    found = []
    for size in (3, 4, 5, 1):
        call(bench.make_batch(size).select("observation"))
        found.append(graphs())
    assert found == ([1, 1, 1, 2] if dynamic else [1, 2, 2, 3])


@guards("recompile-limit-graphs", "over-limit-runs-eagerly")
def test_beyond_the_limit_it_runs_eagerly(eager_backend, caplog):
    limit = torch._dynamo.config.recompile_limit
    module = bench.TensorDictModule(torch.nn.Linear(3, 2), ["observation"], ["action"])
    call = eager_backend(module)
    observation = torch.randn(4, 3)
    for count in range(limit + 3):
        extra = {f"key{number}": torch.zeros(4) for number in range(count)}
        result = call(bench.TensorDict({"observation": observation, **extra}, [4]))
        torch.testing.assert_close(result["action"], module.module(observation))
    assert graphs() == limit
    said = [one for one in caplog.records if "hit config.recompile_limit" in one.getMessage()]
    assert len(said) == 1


@guards("over-limit-fullgraph-raises")
def test_beyond_the_limit_a_full_graph_raises(eager_backend):
    double = torch.compile(lambda row: 2 * row, backend="eager", fullgraph=True, dynamic=False)
    for size in range(2, torch._dynamo.config.recompile_limit + 2):
        double(torch.zeros(size))
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        double(torch.zeros(100))


@guards("keep-model-and-function", "compiled-shares-parameters")
def test_the_function_of_warmup_calls_the_model():
    from torchrl import compile_with_warmup

    model = torch.nn.Linear(3, 2)
    call = compile_with_warmup(model, warmup=0, backend="eager")
    call(torch.ones(1, 3)).sum().backward()
    assert model.weight.grad is not None


@guards("compile-policy-warms-up")
def test_the_collector_compiles_with_warmup():
    from torchrl.collectors import Collector

    compiled, seen = [], []

    def backend(graph, inputs):
        compiled.append(graph)
        return graph.forward

    collector = SimpleNamespace(
        compiled_policy=True,
        compiled_policy_kwargs={"warmup": 2, "backend": backend},
        cudagraphed_policy=False,
    )
    policy = Collector._compile_wrapped_policy(collector, torch.nn.Linear(1, 1))
    for _ in range(4):
        policy(torch.ones(1))
        seen.append(len(compiled))
    assert seen == [0, 0, 1, 1]


@guards("compile-mode-meaning", "mode-excludes-options")
def test_mode_excludes_options():
    with pytest.raises(RuntimeError, match=r"mode.*options"):
        torch.compile(abs, mode="reduce-overhead", options={"trace.enabled": True})


@guards("inductor-cache-folder")
def test_the_cache_is_a_temporary_folder(monkeypatch, tmp_path):
    from torch._inductor.runtime import cache_dir_utils

    assert Path(cache_dir_utils.default_cache_dir()).parent == Path(tempfile.gettempdir())
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert cache_dir_utils.cache_dir() == str(tmp_path)


@guards("select-keys-before-loss")
def test_the_keys_that_a_loss_reads():
    """Of shuffled rows, as of a minibatch: anew, they give other advantages."""
    loss, data = bench.clip_ppo(8)
    data = data[torch.arange(8).roll(3)].set("unread", torch.zeros(8))
    selected = data.select(*loss.in_keys, "advantage", "value_target", strict=False)
    assert "unread" not in set(selected.keys())
    whole, ours = loss(data.copy()), loss(selected)
    bare = loss(data.select(*loss.in_keys, strict=False))
    for key in ("loss_objective", "loss_critic"):
        torch.testing.assert_close(ours[key], whole[key])
        assert not torch.allclose(bare[key], whole[key])


# -- What the page says of the record -------------------------------------------------


@pytest.fixture
def record():
    return benchmarks_of("compile")


@guards("compiled-faster-pays-late", "break-even-order", "larger-batch-pays-sooner")
def test_break_even_by_length_of_a_step(record):
    assert max(of(key, "time_vs_eager") for key in record) < 1
    assert min(of(key, "break_even_steps") for key in record) > 1000
    late = [key for key in record if of(key, "break_even_steps") > 10_000]
    assert len(late) > len(record) / 2  # in most cases, as the page begins
    by_length = sorted(record, key=lambda key: -of(key, "eager_time"))
    by_break_even = sorted(record, key=lambda key: of(key, "break_even_steps"))
    assert set(by_length[:2]) == set(by_break_even[:2]) == {"dqn-b4096", "sac-b256"}
    assert by_break_even[-1] == "value-b256"
    assert of("dqn-b4096", "time_vs_eager") > of("dqn-b256", "time_vs_eager")
    assert of("dqn-b4096", "break_even_steps") < of("dqn-b256", "break_even_steps")


@guards("graph-break-halves-gain", "one-hot-ppo-compiles-longer")
def test_a_broken_graph_costs():
    whole, broken = "clip-ppo-b256", "clip-ppo-one-hot-b256"
    assert (of(whole, "graph_breaks"), of(broken, "graph_breaks")) == (0, 2)
    gained = {key: 1 - of(key, "time_vs_eager") for key in (whole, broken)}
    assert 0.6 < gained[broken] / gained[whole] < 0.73  # about two thirds
    assert of(broken, "compile_time") > of(whole, "compile_time")


@guards("warm-cache-compiles-sooner", "keep-cache-between-jobs")
def test_a_filled_cache_helps():
    assert of("dqn-b256", "warm_compile_time") < 0.5 * of("dqn-b256", "compile_time")


@guards("compilation-timed-once", "break-even-is-rough")
def test_a_compilation_is_timed_once(record):
    assert {record[key]["metrics"]["compile_time"]["rounds"] for key in record} == {1}


@guards("compiled-results-compared")
def test_every_case_is_compared(record):
    for key in record:
        assert of(key, "output_error") < bench.TOLERANCE
        assert of(key, "gradient_error") < bench.TOLERANCE


on_gpu = partial(recorded, "compile", device="cuda")


@guards("cuda-graph-helps-more")
def test_a_cuda_graph_helps_the_loss_more_than_compilation():
    graph, compiled = "dqn-b256-reduce-overhead", "dqn-b256"
    assert on_gpu(graph, "time_vs_eager", "q3") < on_gpu(compiled, "time_vs_eager", "q1") < 1
    assert on_gpu(compiled, "break_even_steps") < of(compiled, "break_even_steps")


@guards("cpu-faster-at-this-size")
def test_the_step_is_faster_on_the_cpu():
    assert of("dqn-b256", "compiled_time") < on_gpu("dqn-b256-reduce-overhead", "compiled_time")
    assert of("dqn-b256", "eager_time") < on_gpu("dqn-b256", "eager_time")


@guards("value-network-graph-alone")
def test_a_cuda_graph_alone_helps_the_value_network():
    assert on_gpu("value-b256", "time_vs_eager", "q1") > 1
    assert on_gpu("value-b256-cudagraph", "time_vs_eager", "q3") < 0.6
