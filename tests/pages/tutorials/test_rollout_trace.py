"""The tutorial that traces a rollout can fail."""

import ast
import inspect
import sys
import textwrap
from pathlib import Path
from unittest import mock

import pytest
import torchrl.collectors._single as module
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.envs import GymEnv

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.tutorial_script import Changes, all_of, failing_assertion, in_a_process

PAGE = ROOT / "tutorials" / "collectors" / "rollout_trace.py"
PROOFS = Path(__file__).parent / "proofs" / "rollout_trace.py"

TEXT = PAGE.read_text("utf-8") + PROOFS.read_text("utf-8")
DEFAULTS = "assert lines(defaults) == PREDICTED_DEFAULTS"
CHANGES = Changes(PAGE, TEXT)


def rewritten(method, old, new):
    """A patch: a method of Collector is compiled anew with its text changed in one place."""
    source = textwrap.dedent(inspect.getsource(getattr(Collector, method)))
    old, new = (textwrap.dedent(text).strip("\n") for text in (old, new))
    squeezed = "\n".join(line.strip() for line in old.splitlines())
    lines = source.splitlines()
    for at in range(len(lines)):
        found = lines[at : at + len(old.splitlines())]
        if "\n".join(line.strip() for line in found) == squeezed:
            margin = len(found[0]) - len(found[0].lstrip())
            lines[at : at + len(found)] = textwrap.indent(new, " " * margin).splitlines()
            break
    else:
        raise LookupError(f"Collector.{method} has no such lines: {old}")
    names = {}
    exec("\n".join(lines), vars(module), names)
    return mock.patch.object(Collector, method, names[method])


@CHANGES.caught_by("assert lines(cpu) == PREDICTED_CPU")
def batch_cast_after_its_sync():
    return rewritten(
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


@CHANGES.caught_by("assert lines(across) == PREDICTED_ACROSS")
def no_sync_of_the_environment():
    return rewritten("rollout", "self._sync_env()", "pass")


@CHANGES.caught_by("AttributeError: 'Collector' object has no attribute '_sync_env'")
def sync_env_renamed():
    return all_of(
        rewritten("rollout", "self._sync_env()", "self._sync_environment()"),
        rewritten(
            "_setup_devices",
            "self._sync_env = self._get_sync_fn(env_device)",
            "self._sync_environment = self._get_sync_fn(env_device)",
        ),
    )


@CHANGES.caught_by(DEFAULTS)
def carrier_not_rebound():
    return rewritten(
        "rollout", "self._carrier = env_next_output", "self._carrier.update(env_next_output)"
    )


@CHANGES.caught_by("assert first_carrier() is None")
def carriers_kept():
    return rewritten(
        "rollout",
        "self._carrier = env_next_output",
        "self.kept = [*getattr(self, 'kept', []), self._carrier]; self._carrier = env_next_output",
    )


@CHANGES.caught_by(DEFAULTS)
def always_updated():
    return rewritten("rollout", "if self._carrier is not policy_output:", "if True:")


@CHANGES.caught_by("assert lines(events) == predicted")
def random_frames_cast_for_the_policy():
    return rewritten(
        "rollout",
        "self.env.rand_action(self._carrier)",
        "self.env.rand_action(self._carrier); self._sync_policy()",
    )


@CHANGES.caught_by("assert last[-1].call == 'add(C)'")
def direct_write_goes_on():
    return rewritten(
        "rollout",
        """
        if self._increment_frames(carrier_for_out.numel()):
            return
        """,
        "self._increment_frames(carrier_for_out.numel())",
    )


@CHANGES.caught_by("assert seen == []")
def loop_calls_policy():
    """And the page's own tracer follows it, so that only the gotcha is wrong."""
    return rewritten(
        "rollout",
        "policy_output = self._wrapped_policy(policy_input)",
        """
        policy_output = (
            self.policy if inspect.isfunction(self.policy) else self._wrapped_policy
        )(policy_input)
        """,
    )


@CHANGES.caught_by("assert lines(compiled)")
def compiled_output_as_it_is():
    return rewritten("rollout", "if self.compiled_policy or self.cudagraphed_policy:", "if False:")


@CHANGES.caught_by("assert exercise._cast_to_env_device")
def storing_device_ignored_by_the_flag():
    return rewritten(
        "_apply_env_device",
        """
        self._cast_to_env_device = self._cast_to_policy_device or (
            self.env.device != self.storing_device
        )
        """,
        "self._cast_to_env_device = self._cast_to_policy_device",
    )


@CHANGES.caught_by("assert not hasattr(MultiSyncCollector, 'rollout')")
def workers_loop_in_the_main_process():
    return mock.patch.object(MultiSyncCollector, "rollout", Collector.rollout, create=True)


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
    env, policy = GymEnv("CartPole-v1"), TensorDictModule(nn.Linear(4, 2), ["observation"], ["x"])
    with pytest.warns(FutureWarning, match="missing transforms required by the policy"):
        Collector(env, policy, frames_per_batch=1, total_frames=1, use_buffers=False).shutdown()


def page_and_proofs():
    return failing_assertion(PAGE, TEXT)


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
    assert in_a_process(__file__, "page_and_proofs()") == "the page passed"


@pytest.mark.mutation
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_page_notices_a_changed_torchrl(caught, change):
    assert caught[change.name].partition(" == [")[0] == change.assertion.partition(" == [")[0]
