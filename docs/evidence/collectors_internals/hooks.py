"""Where hooks run and which edits survive, for docs/reference/collectors_internals.rst.

One pair of hooks is given to collectors of every kind. ``pre`` notes that it was called. ``post``
notes what it was given and where, and edits the batch in four ways. The run then looks at what was
yielded, or written to the replay buffer, for each edit.

Hooks that run in a worker are copies, so they note into files. What workers and threads write to
standard error is part of the subject: it goes to a file that the run reads.
"""

import contextlib
import json
import os
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

# Before torchrl is imported: its log lines would be warnings to the build.
os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import AsyncBatchedCollector, Collector, MultiSyncCollector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv

FRAMES = 4  # of one batch, in each worker
BATCHES = 3
MARK = 100  # added to step counts, which stay below MAX_STEPS
MAX_STEPS = 3
# Collections that never call the post hook.
SILENT = {"with ``replay_buffer``, ``extend_buffer=False``", "``rollout()`` called directly"}
# Appended to by every post hook, in whatever process it runs.
CALLED = []
EDITS = ("in_place", "assigned", "new_key", "set_")
# Where an edit is not "seen"; what the page says of the reasons depends on each of these.
FATES = {
    ("with ``replay_buffer``", "in_place"): "lost",
    ("``start()``", "in_place"): "lost",
    ("``AsyncBatchedCollector``", "in_place"): "lost",
    ("``MultiSyncCollector``", "assigned"): "first batch only",
    ("``MultiSyncCollector``", "new_key"): "first batch only",
    ("``MultiSyncCollector`` with ``replay_buffer``", "new_key"): "lost",
}


def make_env():
    return TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=MAX_STEPS))


def first_action(observation):
    """Always the first of the two actions, one-hot."""
    action = torch.zeros(*observation.shape[:-1], 2, dtype=torch.int64)
    action[..., 0] = 1
    return action


def make_buffer():
    return ReplayBuffer(storage=LazyTensorStorage(100))


# -- The hooks ----------------------------------------------------------------


def note(folder, **what):
    """Append a line to the file of this process."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    line = json.dumps({"pid": os.getpid(), "in_main_thread": in_main_thread, **what})
    with Path(folder, f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def notes(folder):
    """What was noted, by process."""
    return {
        int(file.stem): [
            json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]
        ]
        for file in sorted(Path(folder).glob("*.jsonl"))
    }


def pre(folder):
    note(folder, hook="pre", grad=torch.is_grad_enabled())


def edit(batch):
    """Change a batch in four ways; each can be recognized in what is yielded."""
    batch["step_count"].add_(MARK)  # in_place
    key = ("next", "step_count")
    batch.set_(key, batch[key] + MARK)  # set_
    batch["observation"] = -batch["observation"].abs() - MARK  # assigned
    batch["copied"] = batch["step_count"].clone()  # new_key


def post(folder, batch):
    CALLED.append(batch.shape)
    note(
        folder,
        hook="post",
        type=type(batch).__name__,
        shape=list(batch.shape),
        postprocessed=batch.get("postprocessed") is not None,
        grad=torch.is_grad_enabled(),
    )
    edit(batch)


def postprocess(batch):
    return batch.set("postprocessed", torch.ones(batch.shape))


def fail(*_):
    raise ValueError("raised in the hook")


def survived(batch):
    """Which edits a batch shows."""
    copied = batch.get("copied")
    return {
        "in_place": bool((batch["step_count"] >= MARK).all()),
        "assigned": bool((batch["observation"] <= -MARK).all()),
        "new_key": copied is not None and bool((copied % MARK == batch["step_count"] % MARK).all()),
        "set_": bool((batch["next", "step_count"] >= MARK).all()),
    }


# -- Collecting ----------------------------------------------------------------


@contextlib.contextmanager
def standard_error():
    """Send file descriptor 2 to a file, as child processes inherit it; yields the file."""
    with tempfile.TemporaryFile("w+") as file:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        failed = True
        try:
            yield file
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            if failed:
                sys.stderr.write(text_of(file))


@contextlib.contextmanager
def shut_down(collector):
    """Also when an assertion fails: a worker that is left behind keeps the script from ending."""
    try:
        yield collector
    finally:
        collector.shutdown()


def text_of(file):
    file.seek(0)
    return file.read()


def summary(folder, batches):
    """Calls, what the hook got, where it ran, and the fate of each edit."""
    processes = notes(folder)
    lines = [line for found in processes.values() for line in found]
    assert lines, "no hook was called"
    calls = {
        hook: {sum(line["hook"] == hook for line in found) for found in processes.values()}
        for hook in ("pre", "post")
    }
    assert all(len(count) <= 1 for count in calls.values()), "workers differ in their calls"
    got = {(line["type"], tuple(line["shape"])) for line in lines if line["hook"] == "post"}
    assert len(got) <= 1, "the post hook gets different things in one collection"
    here = {line["pid"] == os.getpid() for line in lines}
    thread = {line["in_main_thread"] for line in lines}
    seen = [survived(batch) for batch in batches]
    return {
        "pre": calls["pre"].pop(),
        "post": calls["post"].pop(),
        "got": got.pop() if got else None,
        "main": here.pop(),
        "main_thread": thread.pop(),
        "edits": {name: [one[name] for one in seen] for name in EDITS},
        "order": [line["hook"] for line in next(iter(processes.values()))],
        "grad": {(line["hook"], line["grad"]) for line in lines},
        "postprocessed": {line["postprocessed"] for line in lines if line["hook"] == "post"},
    }


def rows_of(buffer, batches=BATCHES):
    """The rows that each batch wrote."""
    rows = buffer[:]
    assert len(rows) == batches * FRAMES
    return list(rows.split(FRAMES))


def collect(how, **options):
    """Summary of a single-process collection; ``how`` drives it and returns batches."""
    with tempfile.TemporaryDirectory() as folder:
        collector = Collector(
            make_env(),
            policy=None,
            frames_per_batch=FRAMES,
            total_frames=BATCHES * FRAMES,
            pre_collect_hook=partial(pre, folder),
            post_collect_hook=partial(post, folder),
            **options,
        )
        batches = how(collector)
        collector.shutdown()
        return summary(folder, batches)


def yielded(collector):
    batches = list(collector)
    assert None not in batches
    return batches


def buffered(collector):
    assert list(collector) == [None] * BATCHES
    return rows_of(collector.replay_buffer)


def trajectories(collector):
    """All trajectories, without their padding."""
    batches = list(collector)
    assert [tuple(batch.shape) for batch in batches] == [(2, MAX_STEPS)] * 2
    return [batch[batch["collector", "mask"]] for batch in batches]


def buffered_trajectories(collector):
    assert list(collector) == [None] * BATCHES
    return [collector.replay_buffer[:]]


def called_directly(collector):
    return [collector.rollout().clone() for _ in range(BATCHES)]


def in_a_thread(collector):
    collector.start()
    collector._thread.join()
    return rows_of(collector.replay_buffer)


def single():
    """The situations of one process."""
    padded = {"trajs_per_batch": 2, "traj_format": "padded"}
    return {
        "``Collector``": collect(yielded, postproc=postprocess),
        "with ``replay_buffer``": collect(
            buffered, replay_buffer=make_buffer(), postproc=postprocess
        ),
        "with ``replay_buffer``, ``extend_buffer=False``": collect(
            buffered, replay_buffer=make_buffer(), extend_buffer=False
        ),
        "with ``trajs_per_batch``": collect(trajectories, **padded),
        "with ``trajs_per_batch`` and ``replay_buffer``": collect(
            buffered_trajectories, replay_buffer=make_buffer(), **padded
        ),
        "``rollout()`` called directly": collect(called_directly),
        "``start()``": collect(in_a_thread, replay_buffer=make_buffer()),
    }


def async_batched():
    """Environments in threads around one policy; the hook is the caller's."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "policy": TensorDictModule(first_action, in_keys=["observation"], out_keys=["action"]),
            "frames_per_batch": FRAMES,
            "total_frames": BATCHES * FRAMES,
            "env_backend": "threading",
        }
        refused = raised_by(
            partial(AsyncBatchedCollector, [make_env], pre_collect_hook=print, **options)
        )
        assert type(refused) is TypeError
        assert "pre_collect_hook" in str(refused)
        collector = AsyncBatchedCollector(
            [make_env], post_collect_hook=partial(post, folder), **options
        )
        collector.pre_collect_hook = partial(pre, folder)
        batches = list(collector)
        collector.shutdown()
        found = summary(folder, batches)
        failing = AsyncBatchedCollector([make_env], post_collect_hook=fail, **options)
        error = raised_by(partial(list, failing))
        failing.shutdown()
        return found, error


# -- Workers --------------------------------------------------------------------


def workers():
    """Batches from a worker, then an exception in a hook of its own."""
    with tempfile.TemporaryDirectory() as folder, standard_error() as captured:
        collector = MultiSyncCollector(
            [make_env],
            policy=None,
            frames_per_batch=FRAMES,
            total_frames=-1,
            pre_collect_hook=partial(pre, folder),
            post_collect_hook=partial(post, folder),
            postproc=postprocess,
        )
        with shut_down(collector):
            stream = iter(collector)
            called_before = len(CALLED)
            batches, buffers = [], []
            for _ in range(BATCHES):
                batches.append(next(stream).clone())
                buffers.extend(collector.buffers)
            assert len(CALLED) == called_before, "a worker appends to a list of the main process"
            assert all(buffer is buffers[0] for buffer in buffers), "a worker sends its batch anew"
            found = summary(folder, batches)
            before = text_of(captured)
            collector.post_collect_hook = fail
            error = raised_by(partial(next, stream))
            found["closed"] = collector.closed
        written = text_of(captured)
    assert not before, before
    assert all(batch.get("postprocessed") is not None for batch in batches)
    # Assigning puts another tensor into the worker's batch. The collector goes on writing its
    # rollouts there, and the main process goes on reading the first one.
    second, third = (batch["observation"] for batch in batches[1:])
    found["frozen"] = bool((second == third).all())
    assert found["frozen"], "an assigned leaf is read anew after the second batch"
    assert (batches[0]["copied"] == batches[2]["copied"]).all(), "an added key is read anew"
    return found, error, written


def workers_with_buffer():
    """One worker that writes to a buffer, first after a profile that was switched off again."""
    with tempfile.TemporaryDirectory() as folder, standard_error() as captured:
        buffer = make_buffer()
        collector = MultiSyncCollector(
            [make_env],
            policy=None,
            frames_per_batch=FRAMES,
            total_frames=-1,
            replay_buffer=buffer,
            postproc=postprocess,
            pre_collect_hook=partial(pre, folder),
            post_collect_hook=partial(post, folder),
        )
        with shut_down(collector):
            collector.enable_profile(workers=[0], num_rollouts=2, activities=["cpu"])
            collector.disable_profile()
            assert buffer._storage.initialized, "the storage waits for the data of the workers"
            stream = iter(collector)
            assert next(stream) is None
            (lines,) = notes(folder).values()
            assert [line["hook"] for line in lines] == ["pre"], "a profile leaves the hook in place"
            for file in Path(folder).iterdir():
                file.unlink()
            buffer.empty()
            collector.post_collect_hook = partial(post, folder)
            assert [next(stream) for _ in range(BATCHES)] == [None] * BATCHES
            found = summary(folder, rows_of(buffer))
        written = text_of(captured)
    assert not written, written
    return found


# -- Exceptions -------------------------------------------------------------------


def raised_by(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("the exception of the hook did not come out")


def exceptions(worker_error, worker_closed, worker_stderr, async_error):
    """What the caller sees when a hook raises."""
    for hook in ("pre_collect_hook", "post_collect_hook"):
        buffer = make_buffer()
        collector = Collector(
            make_env(),
            policy=None,
            frames_per_batch=FRAMES,
            total_frames=FRAMES,
            replay_buffer=buffer,
            **{hook: fail},
        )
        error = raised_by(partial(list, collector))
        assert repr(error) == repr(ValueError("raised in the hook")), "another exception comes out"
        assert collector.closed, "the collector is not shut down"
        assert len(buffer) == 0, "the batch was written although the hook raised"
    with standard_error() as captured:
        collector = Collector(
            make_env(),
            policy=None,
            frames_per_batch=FRAMES,
            total_frames=FRAMES,
            replay_buffer=make_buffer(),
            post_collect_hook=fail,
        )
        collector.start()
        collector._thread.join()
        assert collector.closed
        assert not collector.is_running()
        collector.async_shutdown()  # raises nothing
        thread_stderr = text_of(captured)
    assert "ValueError: raised in the hook" in thread_stderr
    assert type(worker_error) is RuntimeError
    assert str(worker_error).startswith("At least one process failed: worker ")
    assert "raised in the hook" not in repr(worker_error)
    assert worker_closed, "the collector is not shut down"
    assert "ValueError: raised in the hook" in worker_stderr, "the worker says nothing"
    assert repr(async_error) == repr(ValueError("raised in the hook"))
    original = "``ValueError: raised in the hook``"
    return {
        "columns": ["Collection", "Reaches the caller", "The original"],
        "rows": [
            ["``Collector``", original, "is what arrives"],
            ["``start()``", "nothing; ``is_running()`` is ``False``", "on standard error"],
            [
                "``MultiSyncCollector``",
                f"``RuntimeError: {str(worker_error).split(': worker')[0]}: ...``",
                "on the standard error of the worker",
            ],
            ["``AsyncBatchedCollector``", original, "is what arrives"],
        ],
    }


# -- The tables ----------------------------------------------------------------------


def fate(seen):
    """One word for what happened to an edit over the batches."""
    if all(seen):
        return "seen"
    if not any(seen):
        return "lost"
    assert seen == [True] + [False] * (len(seen) - 1), seen
    return "first batch only"


def place(found):
    if not found["main"]:
        return "worker"
    return "main process" if found["main_thread"] else "thread of ``start()``"


def calls(situations):
    rows = []
    for name, found in situations.items():
        kind, shape = found["got"] or (None, None)
        got = f"``{kind}`` {shape}" if kind else "nothing"
        rows.append([name, str(found["pre"]), str(found["post"]), got, place(found)])
    return {
        "columns": [
            "Collection",
            "Calls of ``pre``",
            "Calls of ``post``",
            "``post`` gets",
            "They run in",
        ],
        "rows": rows,
    }


def edits(situations):
    rows = [
        [name, *(fate(found["edits"][edit_name]) for edit_name in EDITS)]
        for name, found in situations.items()
        if found["post"]
    ]
    found = {
        (name, edit_name): fated
        for name, *fates in rows
        for edit_name, fated in zip(EDITS, fates, strict=True)
        if fated != "seen"
    }
    assert found == FATES, f"other edits are lost than the page says: {found}"
    return {
        "columns": [
            "Collection",
            "In place",
            "Assigned",
            "New key",
            "``set_``",
        ],
        "rows": rows,
    }


def main():
    assert (BATCHES, FRAMES) == (3, 4), "the caption of the table says so"
    situations = single()
    batched, async_error = async_batched()
    in_workers, worker_error, worker_stderr = workers()
    situations["``MultiSyncCollector``"] = in_workers
    situations["``MultiSyncCollector`` with ``replay_buffer``"] = workers_with_buffer()
    situations["``AsyncBatchedCollector``"] = batched

    plain = situations["``Collector``"]
    assert plain["order"] == ["pre", "post"] * BATCHES, "the hooks do not take turns"
    for hook, never in (("pre", {"``AsyncBatchedCollector``"}), ("post", SILENT)):
        for name, found in situations.items():
            expected = 0 if name in never else BATCHES
            assert found[hook] == expected, f"{name}: {found[hook]} calls of {hook}"
    lazy = {name for name, found in situations.items() if "Lazy" in str(found["got"])}
    assert lazy == {"with ``replay_buffer``", "``start()``", "``AsyncBatchedCollector``"}
    lost = {
        name
        for name, found in situations.items()
        if found["post"] and not all(found["edits"]["in_place"])
    }
    assert lost == lazy, "in-place edits are lost elsewhere than on a lazy stack"
    after = {name for name, found in situations.items() if found["postprocessed"] == {True}}
    assert after == {
        "``Collector``",
        "with ``replay_buffer``",
        "``MultiSyncCollector`` with ``replay_buffer``",
    }, "postproc comes before the hook in other collections than these"
    assert in_workers["postprocessed"] == {False}, "in workers the hook comes after postproc"
    assert not in_workers["main"], "the hook of a worker runs in the main process"
    grads = {grad for found in situations.values() for grad in found["grad"]}
    assert grads == {("pre", False), ("post", True)}, "gradients are on in pre, or off in post"

    result = {
        "calls": calls(situations),
        "edits": edits(situations),
        "exceptions": exceptions(worker_error, in_workers["closed"], worker_stderr, async_error),
        "collections": len(situations),
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
