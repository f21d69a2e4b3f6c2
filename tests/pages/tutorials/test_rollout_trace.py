"""The tutorial that traces a rollout can fail."""

import ast
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.tutorial_script import run_driver

PAGE = ROOT / "tutorials" / "collectors" / "rollout_trace.py"
PROOFS = Path(__file__).parent / "proofs" / "rollout_trace.py"

# Runs in one process: it imports torchrl once and forks per mutation, because an import costs
# more than the page. Writes {mutation: what stopped the page} as JSON.
DRIVER = '''
import inspect, json, os, sys, textwrap
os.environ["RL_LOGGING_LEVEL"] = "ERROR"
page = sys.argv[1]
import matplotlib
matplotlib.use("agg")
import torchrl.collectors._single as module
from torchrl.collectors import Collector, MultiSyncCollector
from tests.support.tutorial_script import mutated


def rewrite(method, old, new):
    """Compile a method of Collector anew with its text changed in one place."""
    source = textwrap.dedent(inspect.getsource(getattr(Collector, method)))
    old, new = (textwrap.dedent(text).strip("\\n") for text in (old, new))
    squeezed = "\\n".join(line.strip() for line in old.splitlines())
    lines = source.splitlines()
    for at in range(len(lines)):
        found = lines[at : at + len(old.splitlines())]
        if "\\n".join(line.strip() for line in found) == squeezed:
            margin = len(found[0]) - len(found[0].lstrip())
            lines[at : at + len(found)] = textwrap.indent(new, " " * margin).splitlines()
            break
    else:
        raise LookupError(f"Collector.{method} has no such lines: {old}")
    names = {}
    exec("\\n".join(lines), vars(module), names)
    setattr(Collector, method, names[method])


def batch_cast_after_its_sync():
    rewrite(
        "rollout",
        """
        tensordicts.append(
            carrier_for_out.to(
                self.storing_device, non_blocking=non_blocking
            )
        )
        if not self.no_cuda_sync:
            self._sync_storage()
        """,
        """
        if not self.no_cuda_sync:
            self._sync_storage()
        tensordicts.append(
            carrier_for_out.to(self.storing_device, non_blocking=non_blocking)
        )
        """,
    )


def no_sync_of_the_environment():
    rewrite("rollout", "self._sync_env()", "pass")


def sync_env_renamed():
    rewrite("rollout", "self._sync_env()", "self._sync_environment()")
    rewrite(
        "_setup_devices",
        "self._sync_env = self._get_sync_fn(env_device)",
        "self._sync_environment = self._get_sync_fn(env_device)",
    )


def carrier_not_rebound():
    rewrite("rollout", "self._carrier = env_next_output", "self._carrier.update(env_next_output)")


def carriers_kept():
    rewrite(
        "rollout",
        "self._carrier = env_next_output",
        "self.kept = [*getattr(self, 'kept', []), self._carrier]; self._carrier = env_next_output",
    )


def always_updated():
    rewrite("rollout", "if self._carrier is not policy_output:", "if True:")


def random_frames_cast_for_the_policy():
    rewrite(
        "rollout",
        "self.env.rand_action(self._carrier)",
        "self.env.rand_action(self._carrier); self._sync_policy()",
    )


def direct_write_goes_on():
    rewrite(
        "rollout",
        """
        if self._increment_frames(carrier_for_out.numel()):
            return
        """,
        "self._increment_frames(carrier_for_out.numel())",
    )


def loop_calls_policy():
    """And the page's own tracer follows it, so that only the gotcha is wrong."""
    rewrite(
        "rollout",
        "policy_output = self._wrapped_policy(policy_input)",
        """
        policy_output = (
            self.policy if inspect.isfunction(self.policy) else self._wrapped_policy
        )(policy_input)
        """,
    )


def compiled_output_as_it_is():
    rewrite("rollout", "if self.compiled_policy or self.cudagraphed_policy:", "if False:")


def storing_device_ignored_by_the_flag():
    rewrite(
        "_apply_env_device",
        """
        self._cast_to_env_device = self._cast_to_policy_device or (
            self.env.device != self.storing_device
        )
        """,
        "self._cast_to_env_device = self._cast_to_policy_device",
    )


def workers_loop_in_the_main_process():
    MultiSyncCollector.rollout = Collector.rollout


MUTATIONS = [batch_cast_after_its_sync, no_sync_of_the_environment, sync_env_renamed,
             carrier_not_rebound, carriers_kept, always_updated,
             random_frames_cast_for_the_policy, direct_write_goes_on, loop_calls_policy,
             compiled_output_as_it_is, storing_device_ignored_by_the_flag,
             workers_loop_in_the_main_process]


def unchanged():
    """The driver itself: rewriting a line to itself changes nothing."""
    rewrite("rollout", "self._carrier = env_next_output", "self._carrier = env_next_output")


text = open(page).read() + PROOFS
runs = [unchanged, *MUTATIONS * MUTATE]
print(json.dumps({run.__name__: mutated(run, page, text) for run in runs}))
'''

DEFAULTS = "assert lines(defaults) == PREDICTED_DEFAULTS"
CAUGHT_BY = {
    "batch_cast_after_its_sync": "assert lines(cpu) == PREDICTED_CPU",
    "no_sync_of_the_environment": "assert lines(across) == PREDICTED_ACROSS",
    "sync_env_renamed": "AttributeError: 'Collector' object has no attribute '_sync_env'",
    "carrier_not_rebound": DEFAULTS,
    "carriers_kept": "assert first_carrier() is None",
    "always_updated": DEFAULTS,
    "random_frames_cast_for_the_policy": "assert lines(events) == predicted",
    "direct_write_goes_on": "assert last[-1].call == 'add(C)'",
    "loop_calls_policy": "assert seen == []",
    "compiled_output_as_it_is": "assert lines(compiled)",
    "storing_device_ignored_by_the_flag": "assert exercise._cast_to_env_device",
    "workers_loop_in_the_main_process": "assert not hasattr(MultiSyncCollector, 'rollout')",
}


def test_page_needs_published_packages_only():
    names = [
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(PAGE.read_text("utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    published = {"torch", "torchrl", "tensordict", "matplotlib"}
    assert {name.partition(".")[0] for name in names} <= published | sys.stdlib_module_names


@guards("collector-told-no-transform")
def test_collector_warns_about_a_transform_that_no_policy_needs():
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv

    env, policy = GymEnv("CartPole-v1"), TensorDictModule(nn.Linear(4, 2), ["observation"], ["x"])
    with pytest.warns(FutureWarning, match="missing transforms required by the policy"):
        Collector(env, policy, frames_per_batch=1, total_frames=1, use_buffers=False).shutdown()


def run_changed(mutate):
    return run_driver(f"PROOFS = {PROOFS.read_text()!r}\nMUTATE = {mutate}\n{DRIVER}", PAGE)


@pytest.mark.slow
@guards(
    "cast-of-no-device-is-new",
    "random-frames-skip-policy-cast",
    "direct-write-returns-after-add",
    "compiled-output-cloned",
    "first-carrier-is-freed",
    "multi-collector-has-no-loop",
)
def test_page_and_its_proofs_pass():
    assert run_changed(mutate=False) == {"unchanged": "the page passed"}


@pytest.fixture(scope="module")
def caught():
    return run_changed(mutate=True)


@pytest.mark.mutation
@pytest.mark.parametrize("mutation", CAUGHT_BY)
def test_page_notices_a_changed_torchrl(caught, mutation):
    assert caught[mutation].partition(" == [")[0] == CAUGHT_BY[mutation].partition(" == [")[0]
