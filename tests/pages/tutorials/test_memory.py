"""The lessons on memory can fail, and what they say and do not run is so."""

import ast

import pytest

from benchmarks.record import Library
from tests.support import ROOT
from tests.support.claims import guards
from tests.support.tutorial_script import run_driver

LESSONS = ROOT / "tutorials" / "memory"
COMMITTED = Library(ROOT / "benchmarks", ROOT / "requirements-docs.txt")

# Runs in one process: it imports torchrl once and forks per mutation, because an import costs
# more than a page. Writes {mutation: failing assertion of its page} as JSON.
DRIVER = '''
import functools, inspect, json, os, sys
os.environ["RL_LOGGING_LEVEL"] = "ERROR"
lessons = sys.argv[1]
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


MUTATIONS = {
    no_sanitizer: "missing_next_observations",
    sanitized_estimate: "missing_next_observations",
    reconstructor_checks_steps: "memory_efficient_rl",
    compact_keeps_everything: "memory_efficient_rl",
    delta_in_bfloat16: "saving_by_observation_size",
    existsok_true: "buffers_on_disk",
    no_chunks: "activation_memory",
    reward_not_n_step: "n_step_and_truncations",
}
print(json.dumps({
    run.__name__: mutated(run, f"{lessons}/{page}.py") for run, page in MUTATIONS.items()
}))
'''

CAUGHT_BY = {
    "no_sanitizer": "assert all(row[0] == 0 for row in nan_rows.values())",
    "sanitized_estimate": (
        "assert all(row[2] > 0 for name, row in nan_rows.items() if name != 'GAE')"
    ),
    "reconstructor_checks_steps": "assert wrong.any()",
    "compact_keeps_everything": (
        "assert set(plain.keys(True, True)) - set(compact.keys(True, True)) == {NEXT_OBS}"
    ),
    "delta_in_bfloat16": "assert overflow.any()",
    "existsok_true": (
        "assert inspect.signature(LazyMemmapStorage).parameters['existsok'].default is False"
    ),
    "no_chunks": "assert predicted < meter.peak < predicted + 2 * batch.bytes()",
    "reward_not_n_step": "assert torch.equal(n_step[NEXT_OBS], full[NEXT_OBS][lookup])",
}


@pytest.fixture(scope="module")
def caught():
    return run_driver(DRIVER, LESSONS)


@pytest.mark.slow
@pytest.mark.mutation
@pytest.mark.parametrize("mutation", CAUGHT_BY)
def test_page_notices_a_changed_torchrl(caught, mutation):
    assert caught[mutation] == ast.unparse(ast.parse(CAUGHT_BY[mutation]))


# After the lesson, with its names: rows where one slice touches the next, in the sample and in
# what the transform saw.
TOUCHING = """
import contextlib, io, json, runpy, sys
import matplotlib
matplotlib.use("agg")
with contextlib.redirect_stdout(io.StringIO()):
    page = runpy.run_path(sys.argv[1])
touching, wrong, id_key = page["touching"], page["wrong"], page["TRAJ_KEY"]
stored = page["full"]["next", "done"][touching["index"].flatten()]
same_id = touching[id_key][1:] == touching[id_key][:-1]
print(json.dumps({
    "done in the sample": touching["next", "done"][wrong].all().item(),
    "done when rebuilt": stored[wrong].any().item(),
    "one trajectory": same_id[wrong[:-1]].all().item(),
}))
"""


@pytest.mark.slow
@guards("touching-rows-are-done-in-the-sample")
def test_the_sampler_marks_ends_after_the_transform():
    assert run_driver(TOUCHING, LESSONS / "memory_efficient_rl.py") == {
        "done in the sample": True,
        "done when rebuilt": False,
        "one trajectory": True,
    }


# Scan without recomputation is traced, which takes longer than all else in the lesson.
PLAIN_SCAN = """
import contextlib, io, json, runpy, sys
import torch
from torch._higher_order_ops.partitioner import HopGraphMinCutPartitioner as partitioner
with contextlib.redirect_stdout(io.StringIO()):
    page = runpy.run_path(sys.argv[1])
train_pass, recurrent, inputs = page["train_pass"], page["recurrent"], page["inputs"]
create, traces, counts = partitioner.create_partitioned_graph, [], {}
partitioner.create_partitioned_graph = staticmethod(
    lambda *args, **kwargs: traces.append(1) or create(*args, **kwargs)
)
for kind in ("GRU", "LSTM"):
    wanted = train_pass(recurrent(kind, "pad"), inputs)
    for _ in range(2):
        del traces[:]
        found = train_pass(recurrent(kind, "scan"), inputs)
        torch.testing.assert_close(found[0], wanted[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found[1], wanted[1], rtol=1e-4, atol=1e-3)
    counts[kind] = len(traces)  # of the second call
print(json.dumps(counts))
"""


@pytest.mark.slow
@guards("eager-lstm-scan-traced-each-call")
def test_plain_scan_is_as_described():
    traced = run_driver(PLAIN_SCAN, LESSONS / "activation_memory.py")
    assert traced == {"GRU": 0, "LSTM": 1}


@guards("plain-scan-peaks-above-pad")
def test_peak_of_plain_scan():
    rows = COMMITTED.find("memory_recurrent", "cpu")["benchmarks"]
    peak = {key: row["metrics"]["peak_memory"]["median"] for key, row in rows.items()}
    assert 1 < peak["gru-scan-t32"] / peak["gru-pad-t32"] < 1.5
    assert peak["lstm-scan-t32"] / peak["lstm-pad-t32"] > 3
