"""Which recurrent mode a module sees, by where it is called; for its page.

The mode is asked where a recurrent module would ask for it. Each row of a table asserts what it
says, so a release that changes one stops the build.
"""

import asyncio
import contextlib
import contextvars
import functools
import inspect
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
import torchrl.objectives
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv, InitTracker, SerialEnv, TransformedEnv
from torchrl.envs.transforms import BurnInTransform, Compose
from torchrl.modules import (
    LSTMModule,
    OneHotCategorical,
    ProbabilisticActor,
    ValueOperator,
    recurrent_mode,
    set_recurrent_mode,
)
from torchrl.modules.tensordict_module.rnn import recurrent_mode_state_manager
from torchrl.objectives import ClipPPOLoss, LossModule, SACLoss
from torchrl.objectives.value import GAE, TD0Estimator, TDLambdaEstimator

N_HIDDEN = 8
N_FRAMES = 64
SEED = 0


def forget():
    """Put the mode back after a row that leaves it set."""
    recurrent_mode_state_manager.set_mode(None)


def refusal(kind, function, *args):
    """The text of the error of that kind, or nothing."""
    try:
        function(*args)
    except kind as error:
        return str(error)
    return ""


# -- One thread --------------------------------------------------------------


def nothing():
    return [recurrent_mode()]


def block():
    with set_recurrent_mode(True):
        inside = recurrent_mode()
    return [inside, recurrent_mode()]


def nested():
    with set_recurrent_mode(True):
        with set_recurrent_mode(False):
            inner = recurrent_mode()
        outer = recurrent_mode()
        with set_recurrent_mode(None):
            unset = recurrent_mode()
    return [inner, outer, unset, recurrent_mode()]


def exception():
    with contextlib.suppress(ValueError), set_recurrent_mode(True):
        raise ValueError
    return [recurrent_mode()]


def used_twice():
    mode = set_recurrent_mode(True)
    with mode:
        first = recurrent_mode()
    with mode:
        second = recurrent_mode()
    return [first, second, recurrent_mode()]


def entered_twice():
    mode = set_recurrent_mode(True)
    with mode, mode:
        inside = recurrent_mode()
    return [inside, recurrent_mode()]


def bare_call():
    set_recurrent_mode(True)
    return [recurrent_mode()]


def on_the_module():
    lstm = make_lstm()
    for change in (lstm.set_recurrent_mode, functools.partial(setattr, lstm, "recurrent_mode")):
        assert "context manager" in refusal(RuntimeError, change, True), "a module can be switched"
    return [recurrent_mode()]


def decorator():
    @set_recurrent_mode(True)
    def recursive(depth):
        return recursive(depth - 1) if depth else recurrent_mode()

    return [recursive(2), recurrent_mode()]


def decorated_generator():
    @set_recurrent_mode(True)
    def steps():
        yield recurrent_mode()
        yield recurrent_mode()

    running = steps()
    return [next(running), recurrent_mode(), next(running), recurrent_mode()]


def block_in_generator():
    def steps():
        with set_recurrent_mode(True):
            yield recurrent_mode()

    running = steps()
    return [next(running), recurrent_mode()]


def decorated_coroutine():
    @set_recurrent_mode(True)
    async def step():
        return recurrent_mode()

    return [asyncio.run(step())]


# -- Threads and tasks -------------------------------------------------------


def thread():
    modes = []
    worker = threading.Thread(target=lambda: modes.append(recurrent_mode()))
    with set_recurrent_mode(True):
        worker.start()
        worker.join()
    return modes


def executor():
    with ThreadPoolExecutor(1) as pool, set_recurrent_mode(True):
        return [pool.submit(recurrent_mode).result(), *pool.map(lambda _: recurrent_mode(), "a")]


def executor_with_context():
    with ThreadPoolExecutor(1) as pool, set_recurrent_mode(True):
        return [pool.submit(contextvars.copy_context().run, recurrent_mode).result()]


def loop_executor():
    async def main():
        with set_recurrent_mode(True):
            return await asyncio.get_running_loop().run_in_executor(None, recurrent_mode)

    return [asyncio.run(main())]


def to_thread():
    async def main():
        with set_recurrent_mode(True):
            return await asyncio.to_thread(recurrent_mode)

    return [asyncio.run(main())]


async def ask():
    return recurrent_mode()


def task():
    async def main():
        with set_recurrent_mode(True):
            made = asyncio.create_task(ask())
        return await made  # it runs after the block

    return [asyncio.run(main())]


def earlier_task():
    async def main():
        made = asyncio.create_task(ask())
        with set_recurrent_mode(True):
            return await made  # it runs within the block

    return [asyncio.run(main())]


def side_by_side():
    """Two threads are in blocks of their own at the same time; so are two tasks."""
    seen, meeting = {}, threading.Barrier(2)

    def in_thread(mode):
        with set_recurrent_mode(mode):
            meeting.wait()
            seen[mode] = recurrent_mode()
            meeting.wait()

    threads = [threading.Thread(target=in_thread, args=(mode,)) for mode in (True, False)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    async def in_task(mode):
        with set_recurrent_mode(mode):
            await asyncio.sleep(0)
            return recurrent_mode()

    async def main():
        return await asyncio.gather(in_task(True), in_task(False))

    assert [seen[True], seen[False]] == asyncio.run(main()), "threads and tasks differ"
    return [seen[True], seen[False]]


# -- Code of TorchRL and of the compiler that calls the module ----------------


@functools.cache
def compiled():
    """What a compiled function sees; "eager" keeps what the compiler traced, and compiles fast."""

    def value(tensor):
        mode = recurrent_mode()
        return tensor + (0 if mode is None else 1 if mode else -1)

    return torch.compile(value, backend="eager")


def compiled_mode():
    return {0: None, 1: True, -1: False}[int(compiled()(torch.zeros(())))]


def compiled_alone():
    with set_recurrent_mode(True):
        inside = compiled_mode()
    return [inside, compiled_mode()]


def beside_a_thread(function):
    """The result of *function*, called with what ends the block that another thread is in."""
    entered, leave = threading.Event(), threading.Event()

    def in_block():
        with set_recurrent_mode(True):
            entered.set()
            leave.wait()

    def end():
        leave.set()
        other.join()

    other = threading.Thread(target=in_block)
    other.start()
    entered.wait()
    try:
        return function(end)
    finally:
        end()


def compiled_beside_a_thread():
    """Another thread is in a block, this one is not."""
    return beside_a_thread(lambda end: [recurrent_mode(), compiled_mode()])


def compiled_after_a_thread():
    """Another thread leaves its block while this one is in its own."""

    def within(end):
        with set_recurrent_mode(True):
            end()
            return [recurrent_mode(), compiled_mode()]

    return beside_a_thread(within)


def burned_in(twin):
    """The states that burn-in writes into two samples of equal slices, and the modes it ran in."""
    torch.manual_seed(SEED)
    lstm = make_lstm()
    burner = sequence_twin(lstm) if twin else lstm
    modes = []
    burner.register_forward_pre_hook(lambda module, _: modes.append(module.recurrent_mode))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=2, prefetch=1)
    buffer.append_transform(BurnInTransform(modules=[burner], burn_in=3))
    one = TensorDict(
        {
            "observation": torch.randn(1, 6, 4),
            "is_init": torch.zeros(1, 6, 1, dtype=torch.bool),
            "h": torch.zeros(1, 6, 1, N_HIDDEN),
            "c": torch.zeros(1, 6, 1, N_HIDDEN),
        },
        [1, 6],
    )
    buffer.extend(one.expand(4, 6).clone())
    with contextlib.nullcontext() if twin else set_recurrent_mode(True):
        states = [buffer.sample()["h"][:, 0] for _ in range(2)]
    buffer.shutdown()  # its thread draws from the generator that later rows seed
    return modes[:2], torch.allclose(*states, atol=1e-6)


def sequence_twin(lstm):
    """The same weights in a module that reads sequences unless a block says otherwise."""
    keys = {"in_keys": lstm.in_keys[:3], "out_keys": lstm.out_keys}
    twin = LSTMModule(lstm=lstm.lstm, **keys, default_recurrent_mode=True)
    assert twin.lstm is lstm.lstm
    return twin


def prefetching():
    modes, equal = burned_in(twin=False)
    assert not equal, "equal slices give equal states: the second sample is burned in as well"
    return modes


def prefetching_twin():
    modes, equal = burned_in(twin=True)
    assert equal, "the twin does not burn in the second sample"
    return modes


def collecting(n_envs, mode):
    """The hidden state at the first four steps of a batch, collected within a block."""
    lstm, policy = make_policy()
    base = SerialEnv(n_envs, make_env) if n_envs > 1 else make_env()
    env = TransformedEnv(base, Compose(InitTracker(), lstm.make_tensordict_primer()))
    options = {"frames_per_batch": 4 * n_envs, "total_frames": 4 * n_envs}
    collector = Collector(env, policy, auto_register_policy_transforms=False, **options)
    seen = []
    lstm.register_forward_pre_hook(lambda *_: seen.append(recurrent_mode()))
    try:
        with set_recurrent_mode(mode):
            batch = next(iter(collector))
    finally:
        collector.shutdown()
    return seen, batch["h"].flatten(batch.ndim).any(-1)


def collecting_one():
    text = refusal(ValueError, collecting, 1, True)
    assert "at least one batch dim (time). Got a 0-d tensordict" in text, "it is collected"
    return [True]


def collecting_several():
    _, carried = collecting(2, None)
    assert carried.tolist() == [[False, True, True, True]] * 2, carried
    seen, carried = collecting(2, True)
    assert set(seen) == {True}
    # Two environments are read as two steps of one sequence: the first is never its end.
    assert carried.tolist() == [[False, True, False, False], [False, True, True, True]], carried
    return [True]


SAFE, SILENT, LOUD = "safe", "**silent**", "loud"
SITUATIONS = [  # situation, what asks, what it must see, verdict, what to do
    ("nothing sets it", nothing, [None], SAFE, "what a collector needs"),
    ("inside ``with set_recurrent_mode(True)``; after it", block, [True, None], SAFE, ""),
    (
        "``False`` inside ``True``; back in ``True``; ``None`` inside ``True``; after all",
        nested,
        [False, True, None, None],
        SAFE,
        "",
    ),
    ("after an exception in the block", exception, [None], SAFE, ""),
    (
        "one instance in two blocks, one after the other; after both",
        used_twice,
        [True, True, None],
        SAFE,
        "",
    ),
    (
        "one instance in two blocks, one inside the other; after both",
        entered_twice,
        [True, True],
        SILENT,
        "call ``set_recurrent_mode(True)`` anew in each ``with``",
    ),
    (
        "after ``set_recurrent_mode(True)`` without ``with``",
        bare_call,
        [None],
        SILENT,
        "write ``with``",
    ),
    (
        "``module.set_recurrent_mode(True)``, ``module.recurrent_mode = True``",
        on_the_module,
        [None],
        LOUD + ", ``RuntimeError``",
        "``default_recurrent_mode=True`` in the constructor",
    ),
    (
        "decorated function, here a recursive one; after it",
        decorator,
        [True, None],
        SAFE,
        "",
    ),
    (
        "decorated generator function; its caller; generator; caller",
        decorated_generator,
        [True, None, True, None],
        SAFE,
        "",
    ),
    (
        "``with`` around a ``yield``; the caller of the generator",
        block_in_generator,
        [True, True],
        SILENT,
        "decorate the generator function",
    ),
    (
        "decorated ``async def``",
        decorated_coroutine,
        [None],
        SILENT,
        "``with`` inside the coroutine",
    ),
    (
        "thread that is started in the block",
        thread,
        [None],
        SILENT,
        "``with`` in the function that the thread runs",
    ),
    (
        "``ThreadPoolExecutor``: ``submit``; ``map``",
        executor,
        [None, None],
        SILENT,
        "the same, or the next row",
    ),
    (
        "``submit(contextvars.copy_context().run, function)``",
        executor_with_context,
        [True],
        SAFE,
        "",
    ),
    ("``loop.run_in_executor``", loop_executor, [None], SILENT, "``asyncio.to_thread``"),
    ("``asyncio.to_thread``", to_thread, [True], SAFE, ""),
    ("asyncio task that is made in the block, and runs later", task, [True], SAFE, ""),
    (
        "asyncio task that is made before the block, and runs in it",
        earlier_task,
        [None],
        SILENT,
        "``with`` inside the coroutine",
    ),
    (
        "two threads, or two tasks, each in its own block",
        side_by_side,
        [True, False],
        SAFE,
        "",
    ),
    (
        "``BurnInTransform`` of a buffer with ``prefetch``: first sample; second",
        prefetching,
        [True, False],
        SILENT,
        "a twin module with ``default_recurrent_mode=True`` for the transform",
    ),
    ("the same with such a twin, and no block", prefetching_twin, [True, True], SAFE, ""),
    (
        "collector that runs in the block, one environment",
        collecting_one,
        [True],
        LOUD + ", ``ValueError``",
        "leave the block",
    ),
    (
        "collector that runs in the block, batched environment",
        collecting_several,
        [True],
        SILENT + ": environments are read as time steps",
        "leave the block, or put ``set_recurrent_mode(False)`` around it",
    ),
    ("compiled function in the block; after it", compiled_alone, [True, None], SAFE, ""),
    (
        "no block here, another thread is in one: eager code here; compiled code here",
        compiled_beside_a_thread,
        [None, True],
        SILENT,
        "collect with a compiled policy in another process, not in a thread",
    ),
    (
        "in the block, after another thread has left its own: eager; compiled",
        compiled_after_a_thread,
        [True, None],
        SILENT,
        "the same",
    ),
]


def situation_table():
    rows = []
    for situation, function, expected, verdict, cure in SITUATIONS:
        try:
            seen = function()
        finally:
            forget()
        assert seen == expected, f"{situation}: {seen}"
        rows.append([situation, ", ".join(f"``{mode}``" for mode in seen), verdict, cure or "–"])
    return {"columns": ["Situation", "The mode seen", "Verdict", "What to do"], "rows": rows}


# -- Who sets it -------------------------------------------------------------


def make_env():
    env = GymEnv("CartPole-v1")
    env.set_seed(SEED)
    return env


def make_lstm(**options):
    return LSTMModule(
        4,
        N_HIDDEN,
        in_keys=["observation", "h", "c"],
        out_keys=["features", ("next", "h"), ("next", "c")],
        **options,
    )


def best(logits):
    return torch.nn.functional.one_hot(logits.argmax(-1), 2)


def make_policy():
    """An LSTM that picks the better of two actions."""
    torch.manual_seed(SEED)
    lstm = make_lstm()
    head = TensorDictModule(torch.nn.Linear(N_HIDDEN, 2), ["features"], ["logits"])
    return lstm, TensorDictSequential(lstm, head, TensorDictModule(best, ["logits"], ["action"]))


class Agent:
    """A recurrent actor and critic on one LSTM, which notes the mode at each call."""

    def __init__(self):
        torch.manual_seed(SEED)
        self.modes = []
        lstm = make_lstm()
        lstm.register_forward_pre_hook(lambda *_: self.modes.append(recurrent_mode()))
        head = TensorDictModule(torch.nn.Linear(N_HIDDEN, 2), ["features"], ["logits"])
        self.actor = ProbabilisticActor(
            TensorDictSequential(lstm, head),
            in_keys=["logits"],
            out_keys=["action"],
            distribution_class=OneHotCategorical,
            return_log_prob=True,
        )
        self.critic = TensorDictSequential(
            lstm, ValueOperator(torch.nn.Linear(N_HIDDEN, 1), in_keys=["features"])
        )
        self.env = TransformedEnv(make_env(), Compose(InitTracker(), lstm.make_tensordict_primer()))
        self.loss = ClipPPOLoss(self.actor, self.critic)
        self.loss.make_value_estimator(gamma=0.99, lmbda=0.95, deactivate_vmap=True)

    def collect(self):
        collector = Collector(
            self.env,
            self.actor,
            frames_per_batch=N_FRAMES,
            total_frames=N_FRAMES,
            auto_register_policy_transforms=False,
        )
        batch = next(iter(collector)).clone()
        collector.shutdown(close_env=False)
        return batch.set("value_target", torch.zeros(N_FRAMES, 1))

    def seen(self, function):
        """The one mode in which *function* calls the LSTM."""
        self.modes.clear()
        function()
        assert len(set(self.modes)) == 1, self.modes
        return self.modes[0]


class Named(LossModule):
    """Methods of a loss, by name."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, batch):
        self.module(batch)
        return TensorDict()

    def my_loss(self, batch):
        self.module(batch)

    def loss_of_mine(self, batch):
        self.module(batch)

    def _my_loss(self, batch):
        self.module(batch)


def is_wrapped(method):
    return getattr(method, "__code__", None) is Named.my_loss.__code__


def unwrapped_methods():
    """Public methods of TorchRL's losses that compute a loss and do not set the mode."""
    found = set()
    for name in torchrl.objectives.__all__:
        loss = getattr(torchrl.objectives, name)
        if not (inspect.isclass(loss) and issubclass(loss, LossModule)):
            continue
        for method, function in inspect.getmembers(loss, inspect.isfunction):
            if method.startswith(("loss_", "actor_", "critic_")) and not is_wrapped(function):
                found.add(f"{name}.{method}")
    return sorted(found)


def inside_false(function, *args):
    with set_recurrent_mode(False):
        return function(*args)


def estimator(kind, critic, **options):
    return kind(gamma=0.99, value_network=critic, deactivate_vmap=True, **options)


def who_table():
    agent = Agent()
    batch = agent.collect()
    named, ppo, critic = Named(agent.critic), agent.loss, agent.critic
    assert is_wrapped(SACLoss.actor_loss)
    lam = {"lmbda": 0.95}
    calls = [
        ("``Collector``", lambda data: agent.collect(), None),
        ("``env.rollout``", lambda data: agent.env.rollout(4, agent.actor), None),
        ("``policy(batch)``", agent.actor, None),
        ("``ClipPPOLoss.forward``, and the estimator it calls", ppo, True),
        (
            "the same inside ``set_recurrent_mode(False)``",
            functools.partial(inside_false, ppo),
            True,
        ),
        ("``forward`` of your own ``LossModule``", named, True),
        (
            "its methods whose names end in ``loss``; ``SACLoss.actor_loss``",
            named.my_loss,
            True,
        ),
        ("its other methods, such as ``loss_of_mine``", named.loss_of_mine, None),
        ("its methods with an underscore in front, such as ``_my_loss``", named._my_loss, None),
        ("``ClipPPOLoss.loss_critic``", ppo.loss_critic, None),
        ("``loss.value_estimator(batch)``", ppo.value_estimator, None),
        ("``GAE``", estimator(GAE, critic, **lam), None),
        ("``TDLambdaEstimator``", estimator(TDLambdaEstimator, critic, **lam), None),
        ("``TD0Estimator``", estimator(TD0Estimator, critic), None),
    ]
    rows = []
    for name, call, expected in calls:
        seen = agent.seen(lambda call=call: call(batch.clone()))
        assert seen is expected, f"{name}: {seen}"
        rows.append([name, f"``{seen}``", "no" if seen else "if ``batch`` holds sequences"])
    for row in rows[:2]:
        row[2] = "no: it calls the policy step by step"
    return {"columns": ["Call", "The mode seen", "Needs a block around it"], "rows": rows}


# -- What the module computes in either --------------------------------------


def reach(mode):
    """Steps with a gradient from the last output of an episode, and the output's error."""
    lstm, policy = make_policy()
    env = TransformedEnv(make_env(), Compose(InitTracker(), lstm.make_tensordict_primer()))
    episode = env.rollout(N_FRAMES, policy)
    assert episode["next", "done"][-1], "the episode does not end"
    collected = episode["features"].clone()
    observation = episode["observation"].clone().requires_grad_()
    with set_recurrent_mode(mode):
        features = lstm(episode.clone().set("observation", observation))["features"]
    (gradient,) = torch.autograd.grad(features[-1].sum(), observation)
    assert torch.allclose(features, collected, atol=1e-6), "the outputs differ"
    return int(gradient.any(-1).sum()), len(episode)


def gradient_table():
    (alone, n_steps), (all_steps, _) = reach(False), reach(True)
    assert alone == 1 < all_steps == n_steps, (alone, all_steps, n_steps)
    said = "equal to those that were collected"
    rows = [
        ["``False``, ``None``", said, f"{alone} of {n_steps}"],
        ["``True``", said, f"{all_steps} of {n_steps}"],
    ]
    columns = ["Mode", "Outputs", "Steps that the gradient of the last output reaches"]
    return {"columns": columns, "rows": rows}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(
        json.dumps(
            {
                "situations": situation_table(),
                "who": who_table(),
                "unwrapped": ", ".join(unwrapped_methods()),
                "gradient": gradient_table(),
            }
        )
    )
