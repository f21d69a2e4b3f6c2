"""The workers of a collector in other processes: asked where they wait, and never called clear."""

import json
import multiprocessing
import threading
import time
from types import SimpleNamespace

import pytest
from torchrl_doctor.checks.workers import seeds_of_workers
from torchrl_doctor.clock import Clock, TimeUp, uninterrupted

from tests.support import ROOT
from tests.support.claims import guards
from tests.support.programs import run_python

PROGRAM = """
import json
import torch, torch.multiprocessing

def said(**given):
    report = diagnose(**given, seconds=60)
    slugs = ("collector_keeps_its_own_policy", "every_environment_starts_alike")
    states = {one.slug: [one.state, one.evidence] for one in report}
    return [states.get(slug) for slug in slugs] + [len(report.of("check failed"))]

if __name__ == "__main__":
    torch.multiprocessing.set_start_method("forkserver", force=True)
    torch.multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])
    from tests.support.healthy_pipelines import cartpole, categorical_actor, logits
    from tests.support.planted import move_weights
    from torchrl.collectors import MultiAsyncCollector, MultiSyncCollector
    from torchrl_doctor import diagnose

    seen = {}
    for kind in (MultiSyncCollector, MultiAsyncCollector):
        policy = categorical_actor(cartpole(), logits())
        collector = kind(
            [cartpole, cartpole],
            policy,
            frames_per_batch=60,
            total_frames=-1,
            cat_results="stack",
            auto_register_policy_transforms=False,
        )
        name = kind.__name__
        collector.set_seed(0, static_seed=True)
        seen[name, "seeded alike"] = said(collector=collector)
        collector.set_seed(0)
        seen[name, "seeded apart"] = said(collector=collector)
        batches = iter(collector)
        first = next(batches).clone()
        seen[name, "first batch"] = said(collector=collector, policy=policy, batch=first)
        move_weights(policy)
        collector.update_policy_weights_()
        seen[name, "trained"] = said(collector=collector, policy=policy, batch=first)
        another = categorical_actor(cartpole(), logits())
        seen[name, "another"] = said(collector=collector, policy=another, batch=first)
        # The collector goes on as if nobody had asked.
        seen[name, "frames"] = [next(batches).numel() for _ in range(3)]
        collector.shutdown()
        seen[name, "shut down"] = said(collector=collector, policy=policy, batch=first)
    print(json.dumps({"/".join(key): value for key, value in seen.items()}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    path = [ROOT, ROOT / "doctor" / "src"]
    done = run_python(program, cwd=folder, path=path, OMP_NUM_THREADS="1")
    return json.loads(done.stdout.splitlines()[-1])


def states(found):
    assert found[2] == 0, "a check failed"
    return [one and one[0] for one in found[:2]]


@guards("doctor-asks-waiting-workers")
@pytest.mark.slow
def test_workers_that_wait_tell_their_weights_and_seeds(seen):
    undecided = "cannot decide"
    expected = {
        "seeded alike": [undecided, "applies"],
        "seeded apart": [undecided, "clear"],
        "first batch": [undecided, "clear"],
        "trained": ["clear", "clear"],
        "another": [undecided, "clear"],
    }
    told = {name: states(seen[f"MultiSyncCollector/{name}"]) for name in expected}
    assert told == expected
    assert seen["MultiSyncCollector/frames"] == [60] * 3


@guards("doctor-asks-waiting-workers")
@pytest.mark.slow
def test_workers_that_collect_on_are_not_asked(seen):
    moments = ("seeded alike", "seeded apart", "first batch", "trained", "another")
    for moment in moments:
        found = seen[f"MultiAsyncCollector/{moment}"]
        assert "clear" not in states(found)
        assert states(found)[0] == "cannot decide"
        assert "cannot be asked" in found[0][1]
    assert seen["MultiAsyncCollector/frames"] == [60] * 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["MultiSyncCollector", "MultiAsyncCollector"])
def test_workers_that_have_ended_are_not_asked(seen, kind):
    assert "clear" not in states(seen[f"{kind}/shut down"])


def test_an_answer_is_waited_for():
    """Left in its pipe, it would be taken for the answer to the next order."""
    clock, answers = Clock(0.3), []

    def ask():
        with clock.limit(), uninterrupted():
            time.sleep(2 * clock.step)
            answers.append("read")

    # Another thread that would take the signal, were it kept from this one.
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        with pytest.raises(TimeUp):
            ask()
    finally:
        done.set()
        thread.join()
    assert answers == ["read"]


def test_each_worker_is_heard_out():
    """Environments that have no seed to tell leave no answer in a pipe."""
    ours, theirs = zip(*(multiprocessing.Pipe() for _ in range(3)), strict=True)
    for pipe in theirs:
        pipe.send((AttributeError("np_random_seed"), "get_distant_attr"))
    assert seeds_of_workers(SimpleNamespace(pipes=ours)) is None
    assert [pipe.poll() for pipe in ours] == [False] * 3
    assert [pipe.recv() for pipe in theirs] == [("env.np_random_seed", "get_distant_attr")] * 3
