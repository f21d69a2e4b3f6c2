"""Which collector to try, what cudagraph_policy does without a GPU, and frames thrown away.

For the performance page on collectors. ``advise`` is the check that the page prints.
"""

import contextlib
import io
import json
import logging
import multiprocessing
import os
import time
import warnings
from functools import partial

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch.utils import _pytree
from torchrl.collectors import Collector, MultiAsyncCollector
from torchrl.data import Binary, Composite, Unbounded
from torchrl.envs import EnvBase

FRAMES = 20
STEP_SECONDS = 0.02
WORKERS = 2
PAUSE_SECONDS = 2.5  # more than a worker waits for room in the queue


def advise(make_env, policy=None, update_seconds=0.0, frames=200, cores=None, **options):
    """Print what a frame costs here, and return what to change first.

    *update_seconds* is what your update takes for *frames* frames; fewer frames do for a slow
    environment. *options* go to the collector, like policy_device. Run it on a quiet machine.
    """
    import os
    import time

    from torchrl.collectors import Collector

    def collect(policy, **options):
        collector = Collector(
            make_env,
            policy,
            frames_per_batch=frames,
            total_frames=-1,
            auto_register_policy_transforms=False,
            **options,
        )
        batches = iter(collector)
        next(batches)  # warm
        begin = time.perf_counter()
        next(batches)
        seconds = time.perf_counter() - begin
        collector.shutdown()
        return seconds

    env = make_env()
    rows = max(1, env.numel())  # of a batched environment
    steps = max(1, frames // rows)
    frames = steps * rows
    state = env.reset()
    waited, worked = time.perf_counter(), time.process_time()
    for _ in range(steps):
        _, state = env.step_and_maybe_reset(env.rand_action(state))
    waited, worked = time.perf_counter() - waited, time.process_time() - worked
    env.close()
    at_random = collect(None)
    collected = at_random if policy is None else collect(policy, **options)

    for name, seconds in (
        ("environment", waited),
        ("with a collector, random actions", at_random),
        ("with your policy", collected),
        ("with your update", collected + update_seconds),
    ):
        print(f"{name}: {frames / seconds:.0f} frames/s")
    if update_seconds > collected:
        verdict = "leave the collector: the update takes longer"
    elif collected > 2 * at_random:
        verdict = "the policy: call it for several environments at once, or compile it"
    elif worked < 0.5 * waited:  # the processor is idle for more than half of a step
        verdict = "MultiSyncCollector, more workers than cores: a step waits"
    elif (cores or os.cpu_count()) < 2:
        verdict = "Collector: there is no core for a second worker"
    else:
        verdict = "MultiSyncCollector, one worker per core: a step computes"
    print(verdict)
    return verdict


# -- An environment that says which step it is at --------------------------------


class Steps(EnvBase):
    """Observes ``(environment, step)``, without an end; a step waits."""

    def __init__(self, number=0, seconds=0.0):
        super().__init__()
        self.number, self.seconds, self.step_number = number, seconds, 0
        self.observation_spec = Composite(observation=Unbounded((2,), dtype=torch.int64))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((1,))
        flag = Binary(1, dtype=torch.bool)
        self.full_done_spec = Composite(done=flag, terminated=flag.clone())

    def _data(self):
        return {
            "observation": torch.tensor([self.number, self.step_number]),
            "done": torch.tensor([False]),
            "terminated": torch.tensor([False]),
        }

    def _reset(self, tensordict=None, **options):
        return TensorDict(self._data(), [])

    def _step(self, tensordict):
        time.sleep(self.seconds)
        self.step_number += 1
        return TensorDict({**self._data(), "reward": torch.ones(1)}, [])

    def _set_seed(self, seed):
        """Nothing here is random."""


def slow_action(observation):
    time.sleep(STEP_SECONDS)
    return torch.zeros(1)


def verdicts():
    """The advice where it is known which part takes the time."""
    make_env = partial(Steps, seconds=STEP_SECONDS)
    slow = TensorDictModule(slow_action, ["observation"], ["action"])
    found = {
        "A step waits": quiet(advise, make_env, frames=FRAMES),
        "A step costs nothing, the policy waits": quiet(advise, Steps, slow, frames=FRAMES),
        "A step waits, the update takes a minute": quiet(
            advise, make_env, frames=FRAMES, update_seconds=60.0
        ),
    }
    waits, policy, leave = found.values()
    assert waits.startswith("MultiSyncCollector, more workers than cores"), found
    assert policy.startswith("the policy"), found
    assert leave.startswith("leave"), found
    assert quiet(advise, Steps, frames=FRAMES, cores=1).startswith(("Collector", "MultiSync"))
    rows = [[name, verdict] for name, verdict in found.items()]
    return {"columns": ["Situation", "Verdict"], "rows": rows}


def quiet(function, *arguments, **options):
    """What it prints are times of this machine."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        found = function(*arguments, **options)
    assert told.getvalue().count("frames/s") == 4
    return found


# -- Frames that nobody gets -----------------------------------------------------


def thrown_away():
    """How many environments have steps that no batch holds, after the main process paused."""
    collector = MultiAsyncCollector(
        [partial(Steps, number, 0.001) for number in range(WORKERS)],
        None,
        frames_per_batch=FRAMES,
        total_frames=-1,
    )
    try:
        iterator = iter(collector)
        for attempt in range(4):
            batches = [next(iterator) for _ in range(2 * WORKERS)]
            without_pause = gaps(batches) if not attempt else 0
            time.sleep((1 + attempt) * PAUSE_SECONDS)
            batches += [next(iterator) for _ in range(2 * WORKERS)]
            if found := gaps(batches):
                break
    finally:
        collector.shutdown()
    assert not without_pause, "steps are missing without a pause"
    assert found == WORKERS - 1, f"{found} environments have lost steps"
    return f"{found} of {WORKERS}"


def gaps(batches):
    """The number of environments whose steps are not consecutive."""
    steps = {}
    for batch in batches:
        for number, step in batch["observation"].tolist():
            steps.setdefault(number, []).append(step)
    return sum(found != list(range(found[0], found[0] + len(found))) for found in steps.values())


# -- CUDA graphs without CUDA ----------------------------------------------------


def cudagraph():
    """What a collector with ``cudagraph_policy=True`` says and does on a machine without a GPU."""
    assert not torch.cuda.is_available(), "the page shows what happens without CUDA"
    policy = TensorDictModule(torch.nn.Linear(2, 1), ["float"], ["action"])

    def batch_of(**options):
        env = Floats()
        collector = Collector(
            env,
            policy,
            frames_per_batch=4,
            total_frames=4,
            auto_register_policy_transforms=False,
            **options,
        )
        return next(iter(collector))

    logging.getLogger("tensordict").setLevel(logging.WARNING)  # it tells stream and device
    plain = batch_of()
    before = TensorDict in _pytree.SUPPORTED_NODES
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graphed = batch_of(cudagraph_policy=True)
    after = TensorDict in _pytree.SUPPORTED_NODES
    said = [str(warning.message).split(". ")[0] for warning in caught]
    assert any("without CUDA device available" in text for text in said), said
    assert torch.equal(plain["action"], graphed["action"])
    assert (before, after) == (True, False), (before, after)
    rows = [
        ["Raises", "no"],
        ["Warns", "; ".join(said)],
        ["Actions", "the same"],
        ["``TensorDict`` is a pytree of PyTorch before", "yes" if before else "no"],
        ["``TensorDict`` is a pytree of PyTorch afterwards, in the whole process", "no"],
    ]
    return {"columns": ["``cudagraph_policy=True`` without CUDA", "Result"], "rows": rows}


class Floats(Steps):
    """Observes the same as floating point numbers."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(float=Unbounded((2,)))

    def _data(self):
        data = super()._data()
        return {**data, "float": data.pop("observation").float()}


def main():
    result = {"verdicts": verdicts(), "thrown-away": thrown_away(), "cudagraph": cudagraph()}
    assert not multiprocessing.active_children()
    return result


def start_workers_by_forkserver():
    """Import TorchRL once for all workers; call it before the first collector."""
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload(["torchrl.collectors", "torchrl.envs"])


if __name__ == "__main__":
    start_workers_by_forkserver()
    torch.set_num_threads(1)
    result = main()
    print(json.dumps(result))
