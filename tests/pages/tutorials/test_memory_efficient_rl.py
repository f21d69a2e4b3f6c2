"""The memory tutorial can fail."""

import ast

import pytest

from tests.support import ROOT
from tests.support.tutorial_script import run_driver

pytestmark = pytest.mark.slow

PAGE = ROOT / "tutorials" / "memory" / "memory_efficient_rl.py"

# Runs in one process: it imports torchrl once and forks per mutation, because an import costs
# more than the page. Writes {mutation: failing assertion of the page} as JSON.
DRIVER = '''
import functools, inspect, json, os, sys
os.environ["RL_LOGGING_LEVEL"] = "ERROR"
page = sys.argv[1]
import matplotlib
matplotlib.use("agg")
import torch, torchrl.data
from torchrl.collectors import Collector
from torchrl.data import LazyMemmapStorage
from torchrl.envs.transforms import NextObservationDelta, NextStateReconstructor
from torchrl.envs.transforms import MultiStepTransform
from torchrl.objectives.value import TD0Estimator, TDLambdaEstimator, ValueEstimatorBase
from tests.support.tutorial_script import mutated


def defaults(cls, **new):
    """Change defaults of keyword arguments, signature included."""
    init = cls.__init__
    signature = inspect.signature(init)

    @functools.wraps(init)
    def wrapper(self, *args, **kwargs):
        init(self, *args, **{**new, **kwargs})

    wrapper.__signature__ = signature.replace(parameters=[
        p.replace(default=new.get(p.name, p.default)) for p in signature.parameters.values()
    ])
    cls.__init__ = wrapper


def no_sanitizer():
    ValueEstimatorBase._sanitize_next_obs_nan = staticmethod(lambda data, keys: data)


def sanitized_estimate():
    for cls in (TD0Estimator, TDLambdaEstimator):
        def value_estimate(self, data, *args, _old=cls.value_estimate, **kwargs):
            return _old(self, self._sanitize_next_obs_nan(data, ["observation"]), *args, **kwargs)
        cls.value_estimate = value_estimate


def reconstructor_checks_steps():
    defaults(NextStateReconstructor, step_count_key="step_count")


def compact_keeps_everything():
    Collector._setup_compact_obs = lambda self, *args, **kwargs: setattr(
        self, "_compact_next_keys", ()
    )


def delta_in_bfloat16():
    defaults(NextObservationDelta, delta_dtype=torch.bfloat16)


def existsok_true():
    defaults(LazyMemmapStorage, existsok=True)


def no_chunks():
    ValueEstimatorBase._split_value_net_input = lambda self, data: (data,)


def reward_not_n_step():
    MultiStepTransform._inv_call = lambda self, td: td


def docstring_corrected():
    NextStateReconstructor.__doc__ = "Corrected."


MUTATIONS = [no_sanitizer, sanitized_estimate, reconstructor_checks_steps,
             compact_keeps_everything, delta_in_bfloat16, existsok_true, no_chunks,
             reward_not_n_step, docstring_corrected]


def plain_scan():
    """What the page says about scan without recomputation, which is too slow to run there."""
    from torch._higher_order_ops.partitioner import HopGraphMinCutPartitioner as partitioner

    names = {"__name__": "__main__"}
    source = open(page).read()
    assert source.count("PLAIN_SCAN = False") == 1
    exec(compile(source.replace("PLAIN_SCAN = False", "PLAIN_SCAN = True"), page, "exec"), names)
    saved = names["saved_bytes"]
    assert saved["GRU", "scan"] > saved["GRU", "pad"] and ("LSTM", "scan") in saved
    traces = []
    create = partitioner.create_partitioned_graph
    partitioner.create_partitioned_graph = staticmethod(
        lambda *args, **kwargs: traces.append(1) or create(*args, **kwargs)
    )
    counts = {}
    for kind in ("GRU", "LSTM"):
        names["train_pass"](names["recurrent"](kind, "scan"), names["inputs"])
        counts[kind] = len(traces)
        del traces[:]
    return f"traces on the second call: {counts}"


chosen = [plain_scan] if PLAIN_SCAN else MUTATIONS
print(json.dumps({run.__name__: mutated(run, page) for run in chosen}))
'''

CAUGHT_BY = {
    "no_sanitizer": "assert all(row[0] == 0 for row in nan_table.values())",
    "sanitized_estimate": (
        "assert all(row[2] > 0 for name, row in nan_table.items() if name != 'GAE')"
    ),
    "reconstructor_checks_steps": "assert n_wrong > 0",
    "compact_keeps_everything": "assert dropped == {NEXT_OBS}",
    "delta_in_bfloat16": "assert overflow.any()",
    "existsok_true": (
        "assert inspect.signature(LazyMemmapStorage).parameters['existsok'].default is False"
    ),
    "no_chunks": "assert predicted_peak < meter.peak < predicted_peak + 2 * truth.bytes()",
    "docstring_corrected": (
        "assert found, f'{symbol.__name__} no longer says {quote!r}: correct this section'"
    ),
    "reward_not_n_step": "assert torch.equal(n_step_truth[NEXT_OBS], truth[NEXT_OBS][lookup])",
}


@pytest.fixture(scope="module")
def caught():
    return run_driver(f"PLAIN_SCAN = False\n{DRIVER}", PAGE)


@pytest.mark.mutation
@pytest.mark.parametrize("mutation", CAUGHT_BY)
def test_page_notices_a_changed_torchrl(caught, mutation):
    assert caught[mutation] == ast.unparse(ast.parse(CAUGHT_BY[mutation]))


def test_plain_scan_is_as_described():
    said = run_driver(f"PLAIN_SCAN = True\n{DRIVER}", PAGE)["plain_scan"]
    assert said == "traces on the second call: {'GRU': 0, 'LSTM': 1}"
