"""What torch.compile traces, traces again and refuses, for docs/performance/compile.rst.

Nothing is timed here. Where the subject is tracing, the backend is "eager": Dynamo traces and
guards as it always does, and the graph then runs as it is. CUDA is hidden.
"""

import contextlib
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from unittest import mock

# Before torch is imported.
os.environ.update(CUDA_VISIBLE_DEVICES="", RL_LOGGING_LEVEL="ERROR")
os.environ["KINETO_LOG_LEVEL"] = "99"  # else the profiler reports on stderr

import torch
from tensordict import TensorDict
from tensordict.nn import (
    CudaGraphModule,
    InteractionType,
    NormalParamExtractor,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
    set_interaction_type,
)
from torch import nn
from torch._dynamo.utils import counters
from torch.fx.experimental import symbolic_shapes

torch.set_num_threads(1)
BATCH, INPUTS, OUTPUTS = 8, 3, 4
MARK = "@@"  # separates the cases in what the child writes to stderr


def code(text):
    return f"``{text}``"


def batch(size=BATCH, requires_grad=False, **entries):
    observation = torch.randn(size, INPUTS, requires_grad=requires_grad)
    return TensorDict({"observation": observation, **entries}, [size])


def compiled(function, **options):
    """*function* compiled by a compiler that remembers nothing of what was before."""
    torch.compiler.reset()
    counters.clear()
    return torch.compile(function, backend=options.pop("backend", "eager"), **options)


def graphs():
    return counters["stats"]["unique_graphs"]


def graph_breaks():
    """The first line of each reason, and how often it held."""
    return {reason.splitlines()[0]: count for reason, count in counters["graph_break"].items()}


@contextlib.contextmanager
def quiet():
    """Drop what torch logs of an error before it raises it."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


# -- Recompilation: the child -----------------------------------------------------


def make_module():
    return TensorDictModule(nn.Linear(INPUTS, OUTPUTS), ["observation"], ["action"])


def make_policy():
    return ProbabilisticTensorDictSequential(
        TensorDictModule(nn.Linear(INPUTS, OUTPUTS), ["observation"], ["logits"]),
        ProbabilisticTensorDictModule(
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=torch.distributions.Categorical,
            default_interaction_type=InteractionType.RANDOM,
        ),
    )


def sizes(**options):
    module = compiled(make_module(), **options)
    for size in (8, 9, 10):
        yield lambda size=size: module(batch(size))


def size_one():
    module = compiled(make_module(), dynamic=True)
    for size in (8, 9, 1):
        yield lambda size=size: module(batch(size))


def requires_grad():
    module = compiled(make_module())
    for requires in (False, True, False):
        yield lambda requires=requires: module(batch(requires_grad=requires))


def no_grad():
    module = compiled(make_module())
    for enabled in (True, False, True):
        with torch.set_grad_enabled(enabled):
            yield lambda: module(batch())


def frozen():
    module = make_module()
    call = compiled(module)
    for requires in (True, False, True):
        module.requires_grad_(requires)
        yield lambda: call(batch())


def new_key():
    module = compiled(make_module())
    for entries in ({}, {"reward": torch.zeros(BATCH, 1)}, {"step": torch.zeros(BATCH, 1)}):
        yield lambda entries=entries: module(batch(**entries))


def numbers(values):
    module = make_module()
    scaled = compiled(lambda data, scale: module(data)["action"] * scale)
    for value in values:
        yield lambda value=value: scaled(batch(), value)


def interaction():
    policy = compiled(make_policy())
    for mode in (InteractionType.RANDOM, InteractionType.DETERMINISTIC, InteractionType.RANDOM):
        with set_interaction_type(mode):
            yield lambda: policy(batch())


# What changes from call to call, the calls, and the calls that compile.
CHANGES = {
    "batch size 8, 9, 10": (sizes, [1, 2]),
    "the same with ``dynamic=True``": (lambda: sizes(dynamic=True), [1]),
    "batch size 8, 9, 1 with ``dynamic=True``": (size_one, [1, 3]),
    "an input requires gradients": (requires_grad, [1, 2]),
    "parameters frozen (``requires_grad_(False)``)": (frozen, [1, 2]),
    "the same call under ``torch.no_grad()``": (no_grad, [1, 2]),
    "a key that the module does not read": (new_key, [1, 2, 3]),
    "a Python number 0.1, 0.2, 0.3": (lambda: numbers([0.1, 0.2, 0.3]), [1, 2]),
    "a tensor of no dimension 0.1, 0.2, 0.3": (
        lambda: numbers([torch.tensor(0.1), torch.tensor(0.2), torch.tensor(0.3)]),
        [1],
    ),
    "interaction type RANDOM, DETERMINISTIC, RANDOM": (interaction, [1, 2]),
}


def log_changes():
    """Make every change; Dynamo logs to stderr what it compiles again. One list to stdout."""
    found = []
    for calls, _ in CHANGES.values():
        compiling, before = [], 0
        print(MARK, file=sys.stderr, flush=True)
        for number, call in enumerate(calls(), 1):
            call()
            if graphs() > before:
                compiling.append(number)
            before = graphs()
        found.append(compiling)
    print(json.dumps(found))


def recompilations():
    """The changes as rows, with the first reason that ``TORCH_LOGS=recompiles`` gives."""
    child = subprocess.run(
        [sys.executable, __file__, "log"],
        env=os.environ | {"TORCH_LOGS": "recompiles"},
        capture_output=True,
        text=True,
        check=True,
    )
    logs = child.stderr.split(MARK)[1:]
    rows = []
    for (change, (_, expected)), found, log in zip(
        CHANGES.items(), json.loads(child.stdout), logs, strict=True
    ):
        assert found == expected, f"{change}: calls {found} compiled, not {expected}"
        reasons = re.findall(r"\[__recompiles\]\s+- \d/\d: (.*)", log)
        assert bool(reasons) == (len(expected) > 1), f"{change}: {log}"
        rows.append(
            [change, ", ".join(map(str, found)), code(tidy(reasons[0])) if reasons else "–"]
        )
    return {"columns": ["What changes", "Calls that compile", "Reason in the log"], "rows": rows}


def tidy(reason):
    """The guard without the comment, the address and the advice behind it."""
    reason = reason.partition("  # ")[0].partition(". Guard failed")[0].strip()
    reason = re.sub(r"___check_obj_id\((.*), \d+\), type=.*", r"\1 is another object", reason)
    return re.sub(r"G\['__import_tensordict_dot_nn_dot_probabilistic'\]\.", "", reason)


# -- mark_dynamic -------------------------------------------------------------------


def marked():
    """What mark_dynamic does for a tensor and for an entry of a tensordict."""
    rows = []
    linear = compiled(nn.Linear(INPUTS, OUTPUTS))
    for size in (8, 9, 10):
        observation = torch.randn(size, INPUTS)
        torch._dynamo.mark_dynamic(observation, 0)
        linear(observation)
    assert graphs() == 1, "marked tensors share one graph"
    rows.append(["an ``nn.Module`` that gets tensors", code("mark_dynamic"), "1 graph for 3 sizes"])
    for mark in ("mark_dynamic", "maybe_mark_dynamic"):
        module, said = compiled(make_module()), None
        for size in (8, 9, 10):
            data = batch(size)
            getattr(torch._dynamo, mark)(data["observation"], 0)
            with mock.patch.object(torch._guards, "log"):  # it logs what it then raises
                try:
                    module(data)
                except symbolic_shapes.ConstraintViolationError as error:
                    said = str(error)
                    break
        if mark == "mark_dynamic":
            assert "your code specialized it to be a constant (8)" in said
            outcome = "raises: your code specialized it to be a constant (8)"
        else:
            outcome = f"{graphs()} graphs for 3 sizes"
        rows.append(["a ``TensorDictModule``", code(mark), outcome])
    return {"columns": ["What is compiled", "Marked with", "Outcome"], "rows": rows}


# -- Graph breaks -------------------------------------------------------------------


def sampling(name):
    """A function that samples, one that asks for a log-probability, and their batch."""
    from torchrl import modules

    kinds = {
        "Categorical": (torch.distributions.Categorical, torch.arange(BATCH) % OUTPUTS),
        "OneHotCategorical": (
            modules.OneHotCategorical,
            nn.functional.one_hot(torch.arange(BATCH) % OUTPUTS, OUTPUTS),
        ),
        "IndependentNormal": (modules.IndependentNormal, torch.zeros(BATCH, 2)),
        "TanhNormal": (modules.TanhNormal, torch.zeros(BATCH, 2)),
        "TruncatedNormal": (modules.TruncatedNormal, torch.zeros(BATCH, 2)),
    }
    kind, action = kinds[name]
    network = TensorDictModule(nn.Linear(INPUTS, OUTPUTS), ["observation"], ["logits"])
    keys = ["logits"]
    if not name.endswith("Categorical"):
        keys = ["loc", "scale"]
        split = TensorDictModule(NormalParamExtractor(), ["logits"], keys)
        network = TensorDictSequential(network, split)
    policy = modules.ProbabilisticActor(network, keys, distribution_class=kind)

    def sample(data):
        return policy.get_dist(data).sample()

    def log_prob(data):
        return policy.get_dist(data).log_prob(data["action"])

    def both(data):
        distribution = policy.get_dist(data)
        return distribution.log_prob(distribution.sample())

    functions = {"sample": sample, "log_prob": log_prob, "both": both}
    return functions, batch(action=action)


# Distribution and what of it breaks the graph.
DISTRIBUTIONS = {
    "Categorical": (),
    "IndependentNormal": (),
    "TanhNormal": (),
    "OneHotCategorical": ("sample",),
    "TruncatedNormal": ("sample", "log_prob"),
}


def distributions():
    """Graph breaks of a sample and of a log-probability, by distribution."""
    rows = []
    for name, expected in DISTRIBUTIONS.items():
        functions, data = sampling(name)
        row, reasons = [code(name)], []
        for what in ("sample", "log_prob"):
            function, results = functions[what], []
            with warnings.catch_warnings():
                # tensordict asks for a setting that torch has deprecated.
                warnings.filterwarnings("ignore", "torch._dynamo.config.inline_inbuilt_nn_modules")
                for call in (function, compiled(function)):
                    torch.manual_seed(0)
                    results.append(call(data))
            torch.testing.assert_close(*results)
            breaks = graph_breaks()
            assert bool(breaks) == (what in expected), f"{what} of {name}: {breaks}"
            row.append(str(sum(breaks.values())))
            reasons += [reason for reason in breaks if reason not in reasons]
        rows.append([*row, "; ".join(reasons) or "–"])
    columns = ["Distribution", "Breaks in a sample", "Breaks in a log-probability", "Reasons"]
    return {"columns": columns, "rows": rows}


def regions():
    """Compiled regions that the profiler sees in one call."""
    rows, counts = [], []
    for name in ("Categorical", "OneHotCategorical"):
        functions, data = sampling(name)
        call = compiled(functions["both"])
        for _ in range(2):
            call(data)
        with torch.profiler.profile() as profiler:
            call(data)
        named = [e for e in profiler.key_averages() if e.key.startswith("Torch-Compiled Region")]
        counts.append(sum(event.count for event in named))
        rows.append([code(name), str(counts[-1])])
    assert counts[0] == 1 < counts[1], counts
    return {"columns": ["Distribution", "Entries ``Torch-Compiled Region``"], "rows": rows}


def valid_rows(data):
    """Only the rows that count: how many these are, the data decides."""
    return data["observation"][data["valid"]].sum()


def valid_where(data):
    """The same sum over a tensor of one shape."""
    return torch.where(data["valid"].unsqueeze(-1), data["observation"], 0).sum()


def branch(data):
    """Python's ``if`` reads a tensor."""
    if data["valid"].all():
        return data["observation"].sum()
    return valid_where(data)


def item(data):
    """A number out of a tensor, which becomes a shape."""
    return torch.zeros(int(data["valid"].sum())).sum() + data["observation"].sum()


# Graphs, and whether fullgraph=True refuses.
SHAPES = {
    "``x[mask]``": (valid_rows, 2, False),
    "``int(mask.sum())``": (item, 2, False),
    "``if mask.all():``": (branch, 2, True),
    "``torch.where(mask, x, 0)``": (valid_where, 1, False),
}


def shapes():
    """What depends on the data: graphs, and what fullgraph=True makes of it."""
    rows = []
    data = batch(valid=torch.arange(BATCH) % 2 == 0)
    for name, (function, expected, refuses) in SHAPES.items():
        with quiet():
            torch.testing.assert_close(compiled(function)(data), function(data))
        found = graphs()
        assert found == expected, f"{name}: {found} graphs"
        whole, refused = compiled(function, fullgraph=True), None
        try:
            torch.testing.assert_close(whole(data), function(data))
        except torch._dynamo.exc.Unsupported as error:
            refused = str(error).splitlines()[0]
        assert bool(refused) == refuses, f"{name}: {refused}"
        rows.append([name, str(found), f"raises: {refused}" if refused else "1 graph"])
    return {"columns": ["In the function", "Graphs", "With ``fullgraph=True``"], "rows": rows}


# -- RSSMRollout ------------------------------------------------------------------


def make_rollout(**options):
    from torchrl.data import Bounded
    from torchrl.modules.models.model_based import RSSMPosterior, RSSMPrior, RSSMRollout

    torch.manual_seed(0)
    size = {"rnn_hidden_dim": 4, "state_dim": 3}
    prior = TensorDictModule(
        RSSMPrior(action_spec=Bounded(-1, 1, (1,)), hidden_dim=4, action_dim=1, **size),
        ["state", "belief", "action"],
        [("next", key) for key in ("prior_mean", "prior_std", "state", "belief")],
    )
    posterior = TensorDictModule(
        RSSMPosterior(hidden_dim=4, obs_embed_dim=2, **size),
        [("next", "belief"), ("next", "encoded_latents")],
        [("next", key) for key in ("posterior_mean", "posterior_std", "state")],
    )
    return RSSMRollout(prior, posterior, **options)


def imagined(steps):
    return TensorDict(
        {
            "state": torch.zeros(2, steps, 3),
            "belief": torch.zeros(2, steps, 4),
            "action": torch.zeros(2, steps, 1),
            "next": {"encoded_latents": torch.zeros(2, steps, 2)},
        },
        [2, steps],
    )


def rssm():
    """What the loop becomes when it is compiled, and what use_scan=True raises."""
    rows, calls = [], []
    for steps in (2, 3):
        rollout = compiled(make_rollout())
        with torch.no_grad():
            rollout(imagined(steps))
        assert (graphs(), graph_breaks()) == (1, {}), "the Python loop becomes one graph"
        calls.append(counters["stats"]["calls_captured"])
        rows.append([code(f"use_scan=False, {steps} steps"), f"1 graph, {calls[-1]} calls in it"])
    assert calls[1] > 1.25 * calls[0], "the loop is unrolled: half as many steps more, more calls"
    found = []
    for steps in (2, 3):
        torch.compiler.reset()
        counters.clear()
        with torch.no_grad():
            make_rollout(compile_step=True, compile_backend="eager")(imagined(steps))
        assert graph_breaks() == {}
        found.append((graphs(), counters["stats"]["calls_captured"]))
        outcome = "{} graphs, {} calls in them".format(*found[-1])
        rows.append([code(f"compile_step=True, {steps} steps"), outcome])
    assert found[0] == found[1], "the graphs of a step do not grow with the number of steps"
    torch.compiler.reset()
    try:
        with torch.no_grad(), quiet():
            make_rollout(use_scan=True)(imagined(2))
    except Exception as error:
        message = str(error).splitlines()[0]
        rows.append(
            [code("use_scan=True, 2 steps"), f"raises ``{type(error).__name__}``: {message}"]
        )
    else:
        raise AssertionError("RSSMRollout(use_scan=True) runs; correct the page")
    return {"columns": ["``RSSMRollout``", "Outcome"], "rows": rows}


# -- CUDA graphs without CUDA, and no compiler ----------------------------------------


def scale(observation):
    return 2 * observation


def without_cuda():
    """What asking for CUDA graphs does on a machine without CUDA."""
    rows = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with quiet():
            module = CudaGraphModule(make_module())
        data = [batch() for _ in range(5)]
        for one in data:
            torch.testing.assert_close(module(one.copy())["action"], module.module(one)["action"])
    assert not hasattr(module, "graph"), "nothing was captured"
    said = [str(warning.message) for warning in caught if "without CUDA" in str(warning.message)]
    assert len(said) == 1
    rows.append([code("CudaGraphModule(module)"), "warns, and calls the module", "0"])

    torch.compiler.reset()
    counters.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        reduced = torch.compile(scale, mode="reduce-overhead")
        with quiet():  # torch says where it would look for CUDA
            torch.testing.assert_close(reduced(torch.ones(3)), 2 * torch.ones(3))
    assert not [warning for warning in caught if "graph" in str(warning.message).lower()]
    assert graphs() == 1
    rows.append([code('torch.compile(mode="reduce-overhead")'), "compiles, says nothing", "0"])
    return {"columns": ["Asked for", "What happens", "CUDA graphs"], "rows": rows}


def no_compiler():
    """TorchInductor on a machine without a C++ compiler: simulated by a name that none bears."""
    from torch._inductor import config

    torch.compiler.reset()
    with mock.patch.object(config.cpp, "cxx", ("no-such-compiler",)), quiet():
        try:
            torch.compile(scale)(torch.ones(5, 5))
        except torch._inductor.exc.InductorError as error:
            said = str(error).splitlines()[0]
        else:
            raise AssertionError("TorchInductor compiled without a compiler")
    return said


def main():
    print(
        json.dumps(
            {
                "recompilations": recompilations(),
                "marked": marked(),
                "regions": regions(),
                "distributions": distributions(),
                "shapes": shapes(),
                "rssm": rssm(),
                "without_cuda": without_cuda(),
                "no_compiler": no_compiler(),
            }
        )
    )


if __name__ == "__main__":
    log_changes() if sys.argv[1:] == ["log"] else main()
