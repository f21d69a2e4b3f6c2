"""Environments: frames per second by vectorization, what TorchRL adds to a step, pitfalls.

Each round of a way of stepping comes right after a round of a plain Python loop over the same
gymnasium environments with the same actions, so that a change of the machine's speed reaches both.
The observations, rewards and ends of every way are compared with those of the loop first. The parts
of a step are measured by taking one away at a time, variants against the environment without them,
pitfalls against the same environment without the pitfall.
"""

import functools
import multiprocessing
import multiprocessing.forkserver
import time
from statistics import median
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from tensordict import TensorDict
from torchrl.data import Binary, Bounded, Composite, Unbounded, tensor_specs
from torchrl.envs import (
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    GymWrapper,
    InitTracker,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
)

from benchmarks import interleaved, measure, metrics

SEED = 0
SECONDS = 0.4  # for the rounds of one benchmark and of its reference
CHECKED_STEPS = 64  # compared before the time is taken; CartPole ends several episodes in them
FRAMES = 128  # in a round, of all environments together, where a frame is cheap
PART_STEPS = 64
PITFALL_STEPS = 32
PIXEL_STEPS = 32
STACKED = 4  # pictures
BATCH = 32  # rows of the environment that has the pitfalls
LARGE_BATCH = 4096
LIST_SIZE = 128
FRAME_SKIP = 4

METRICS = metrics.declare("""
round_time [s] Time of a round: Wall time of the steps of one round.
frames_per_second [1] Frames per second: Steps of single environments, all of them together, in a
    second.
time_vs_loop [1] Time against the loop: Time of a round, divided by that of a Python loop over the
    same gymnasium environments right before it. Below one, the way is faster than the loop.
parent_cpu [%] Processor time of the parent: Processor time that the calling process takes for a
    round, as a share of the round's wall time. Workers are not in it.
time_vs_cut [1] Time against the step without the part: Time of a round, divided by that of the same
    steps where a constant stands in place of the part.
part_share [%, exact] Share of the step: By how much a step shortens without the part, from the
    median ratio.
part_time [s, exact] Time in the step: The median time of a step, less that of a step without the
    part.
time_vs_plain [1] Time against the plain environment: Time of a round, divided by that of the
    environment without the variant, for the same number of simulated frames.
time_vs_repaired [1] Time against the repaired environment: Time of a round with the pitfall,
    divided by that without.
bytes_per_frame [B, exact] Bytes per frame: Bytes of one frame, with its part under next.
repaired_bytes_per_frame [B, exact] Bytes per frame, repaired: The same without the pitfall.
""")


# -- Environments ----------------------------------------------------------------


class Waiting(gymnasium.Env):
    """Costs *milliseconds* a step, asleep or in work for the processor."""

    observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, milliseconds, busy):
        self.seconds, self.busy, self.steps = milliseconds / 1000, busy, 0

    def observation(self):
        return np.full(4, np.cos(self.steps), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), {}

    def step(self, action):
        if self.busy:
            end = time.thread_time() + self.seconds  # of work: it takes longer without a core
            while time.thread_time() < end:
                pass
        else:
            time.sleep(self.seconds)
        self.steps += 1
        return self.observation(), float(action), False, self.steps % 20 == 0, {}


def make_named(name):
    return gymnasium.make(name, disable_env_checker=True)


def make_half_cheetah():
    pytest.importorskip("mujoco")
    return make_named("HalfCheetah-v5")


def make_pong(newaxis=False):
    """Pong as agents see it: grayscale pixels, four frames of the game a step, nothing random."""
    gymnasium.register_envs(pytest.importorskip("ale_py"))
    pytest.importorskip("cv2")
    game = gymnasium.make(
        "ALE/Pong-v5", frameskip=1, repeat_action_probability=0, disable_env_checker=True
    )
    return gymnasium.wrappers.AtariPreprocessing(
        game, noop_max=0, frame_skip=4, grayscale_newaxis=newaxis
    )


class Environment(NamedTuple):
    title: str
    make: object  # a picklable factory of a gymnasium environment
    counts: tuple  # of environments
    name: str | None = None  # that GymEnv takes
    frames: int | None = None  # in a round, where a frame is not cheap
    only: tuple = ()  # the ways to measure; all without it


WAITING_WAYS = ("loop", "async", "serial", "parallel", "parallel-no-buffers")
ENVIRONMENTS = {
    "cartpole": Environment(
        "CartPole", functools.partial(make_named, "CartPole-v1"), (1, 2, 8), "CartPole-v1"
    ),
    "halfcheetah": Environment(
        "HalfCheetah", make_half_cheetah, (2, 8), "HalfCheetah-v5", frames=128
    ),
    "pong": Environment("Pong, pixels", make_pong, (2, 8), frames=64),
    **{
        f"{kind}-{milliseconds}ms": Environment(
            f"{kind} for {milliseconds} ms",
            functools.partial(Waiting, milliseconds, kind == "busy"),
            (2,),
            frames={1: 40, 5: 16}[milliseconds],
            only=WAITING_WAYS,
        )
        for kind in ("sleep", "busy")
        for milliseconds in (1, 5)
    },
}


# -- Ways of stepping ------------------------------------------------------------


class Loop:
    """A Python loop over gymnasium environments, each reset when its episode ends."""

    def __init__(self, environment, count, device):
        self.envs = [environment.make() for _ in range(count)]

    def reset(self):
        return np.stack([env.reset(seed=SEED + i)[0] for i, env in enumerate(self.envs)])

    @staticmethod
    def prepare(actions):
        rows = actions.numpy()
        return rows.tolist() if rows.ndim == 2 else list(rows)  # Discrete takes Python's integers

    def step(self, actions):
        observations, rewards, ends = [], [], []
        for env, action in zip(self.envs, actions, strict=True):
            observation, reward, terminated, truncated, _ = env.step(action)
            if end := terminated or truncated:
                observation, _ = env.reset()
            observations.append(observation)
            rewards.append(reward)
            ends.append(end)
        return observations, rewards, ends

    @staticmethod
    def read(result):
        return tuple(np.asarray(part) for part in result)

    def close(self):
        for env in self.envs:
            env.close()


class Vector:
    """A vector environment of gymnasium that resets in the step that ends an episode."""

    def __init__(self, environment, count, device, kind):
        makers = [environment.make] * count
        self.env = kind(makers, autoreset_mode=AutoresetMode.SAME_STEP)

    def reset(self):
        return self.env.reset(seed=SEED)[0]

    @staticmethod
    def prepare(actions):
        return list(actions.numpy())

    def step(self, actions):
        return self.env.step(actions)

    @staticmethod
    def read(result):
        observations, rewards, terminated, truncated, _ = result
        return observations, rewards, terminated | truncated

    def close(self):
        self.env.close()


class Frames:
    """An environment of TorchRL, stepped as a collector does."""

    def __init__(self, environment, count, device, make):
        self.env = make(environment, count, None if device.type == "cpu" else device)
        self.count = count
        self.device = device
        keys = self.env.observation_spec.keys()
        self.key = next(key for key in ("observation", "pixels") if key in keys)

    def reset(self):
        if isinstance(self.env, (SerialEnv, ParallelEnv)):
            seeds = [{"seed": SEED + i} for i in range(self.count)]
            self.carrier = self.env.reset(list_of_kwargs=seeds)
        else:
            self.carrier = self.env.reset(seed=SEED)
        return self.shaped(self.carrier[self.key])

    def shaped(self, values):
        return values.cpu().numpy().reshape(self.count, *values.shape[len(self.env.batch_size) :])

    def prepare(self, actions):
        rows = actions.to(self.device)
        return list(rows if self.env.batch_size else rows[:, 0])

    def step(self, action):
        self.carrier["action"] = action
        frame, self.carrier = self.env.step_and_maybe_reset(self.carrier)
        return frame

    def read(self, frame):
        observations = self.shaped(self.carrier[self.key])
        rewards = frame["next", "reward"].cpu().numpy().reshape(self.count)
        ends = frame["next", "done"].cpu().numpy().reshape(self.count)
        return observations, rewards, ends

    def close(self):
        self.env.close()


def torchrl_env(environment, device=None):
    if environment.name is None:
        return GymWrapper(environment.make(), device=device, categorical_action_encoding=True)
    return GymEnv(environment.name, device=device, categorical_action_encoding=True)


def one(environment, count, device):
    assert count == 1
    return torchrl_env(environment, device)


def batched(kind, environment, count, device, **options):
    return kind(count, functools.partial(torchrl_env, environment), device=device, **options)


def wrapped(kind, environment, count, device):
    vector = kind([environment.make] * count, autoreset_mode=AutoresetMode.DISABLED)
    return GymWrapper(vector, device=device, categorical_action_encoding=True)


def num_envs(environment, count, device):
    return GymEnv(environment.name, num_envs=count, device=device, categorical_action_encoding=True)


class Way(NamedTuple):
    title: str
    make: object
    longer: int = 1  # rounds, where a frame of CartPole takes microseconds


WAYS = {
    "loop": Way("gymnasium, Python loop", Loop, 16),
    "sync": Way("gymnasium SyncVectorEnv", functools.partial(Vector, kind=SyncVectorEnv), 16),
    "async": Way("gymnasium AsyncVectorEnv", functools.partial(Vector, kind=AsyncVectorEnv)),
    "gymenv": Way("GymEnv", functools.partial(Frames, make=one)),
    "serial": Way(
        "SerialEnv", functools.partial(Frames, make=functools.partial(batched, SerialEnv))
    ),
    "parallel": Way(
        "ParallelEnv", functools.partial(Frames, make=functools.partial(batched, ParallelEnv))
    ),
    "parallel-no-buffers": Way(
        "ParallelEnv, use_buffers=False",
        functools.partial(Frames, make=functools.partial(batched, ParallelEnv, use_buffers=False)),
    ),
    "num-envs": Way("GymEnv, num_envs", functools.partial(Frames, make=num_envs)),
    "wrapped-sync": Way(
        "GymWrapper of SyncVectorEnv",
        functools.partial(Frames, make=functools.partial(wrapped, SyncVectorEnv)),
    ),
    "wrapped-async": Way(
        "GymWrapper of AsyncVectorEnv",
        functools.partial(Frames, make=functools.partial(wrapped, AsyncVectorEnv)),
    ),
}


def cases():
    for key, environment in ENVIRONMENTS.items():
        for count in environment.counts:
            for way in environment.only or WAYS:
                if way == "gymenv" and count > 1:
                    continue
                if way == "num-envs" and environment.name is None:
                    continue
                yield key, count, way


def key_of(environment, count, way):
    return f"ways-{environment}-{way}-n{count}"


def make_actions(environment, steps, count):
    """The same for every way: ``[steps, count]`` and more for actions that are vectors."""
    env = environment.make()
    env.action_space.seed(SEED)
    actions = [[env.action_space.sample() for _ in range(count)] for _ in range(steps)]
    env.close()
    return torch.as_tensor(np.array(actions))


def trace(way, actions):
    """What a policy would see: observations after resets, rewards, ends; time first."""
    first = way.reset()
    seen = [way.read(way.step(action)) for action in way.prepare(actions)]
    observations, rewards, ends = (np.stack(part) for part in zip(*seen, strict=True))
    return np.concatenate([first[None], observations]), rewards, ends


def until_first_end(ends):
    """True for the steps up to the one that ends the first episode of an environment."""
    return np.cumsum(ends, axis=0) - ends == 0


def assert_same(ours, reference, name):
    """*ours* is *reference*; under ``num_envs`` each environment's first episode alone is.

    There gymnasium takes a step for each reset, which TorchRL takes for a step of an episode.
    """
    (observations, rewards, ends), (expected, expected_rewards, expected_ends) = ours, reference
    assert observations.shape == expected.shape, name
    if name == "num-envs":
        kept = until_first_end(expected_ends)
        assert np.array_equal(until_first_end(ends), kept), name
        first = np.concatenate([np.ones_like(kept[:1]), kept & ~expected_ends])
        observations, expected = observations[first], expected[first]
        rewards, expected_rewards = rewards[kept], expected_rewards[kept]
        ends, expected_ends = ends[kept], expected_ends[kept]
    assert np.array_equal(observations.astype(expected.dtype), expected), name
    assert np.allclose(rewards, expected_rewards, rtol=1e-6), name
    assert np.array_equal(ends, expected_ends), name


# -- Timing ----------------------------------------------------------------------


class Clock:
    """Calls *function* and keeps the wall and the processor time of each call."""

    def __init__(self, function):
        self.function, self.walls, self.processor = function, [], []

    def __call__(self):
        wall, processor = time.perf_counter(), time.process_time()
        result = self.function()
        self.processor.append(time.process_time() - processor)
        self.walls.append(time.perf_counter() - wall)
        return result


def compare(benchmark, device, ours, reference):
    """The ratios of the rounds, and the clocks cut to the same rounds."""
    clocks = Clock(ours), Clock(reference)
    ratios = interleaved.paired(benchmark, device, *clocks, seconds=SECONDS)
    for clock in clocks:
        clock.walls = clock.walls[-len(ratios) :]
        clock.processor = clock.processor[-len(ratios) :]
    return ratios, *clocks


def stepping(way, actions):
    rows = way.prepare(actions)

    def run():
        for row in rows:
            way.step(row)

    return run


@pytest.fixture(scope="module", autouse=True)
def workers():
    """Workers start from a server that has imported what they need, once for all of them."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_forkserver_preload(["benchmarks.suites.bench_environments"])
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.forkserver.ensure_running()
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.fixture
def one_thread():
    """ParallelEnv changes the threads of its process when it starts and when it closes."""
    torch.set_num_threads(measure.THREADS)
    yield
    torch.set_num_threads(measure.THREADS)


# -- The suite: ways -------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def prepare(environment, count):
    """The loop that the ways are compared with, actions, and what the loop sees under them."""
    entry = ENVIRONMENTS[environment]
    actions = make_actions(entry, CHECKED_STEPS, count)
    loop = Loop(entry, count, None)
    return loop, actions, trace(loop, actions)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("environment", "count", "way"), [pytest.param(*c, id=key_of(*c)) for c in cases()]
)
def bench_ways(benchmark, device, environment, count, way):
    entry, (title, make, longer) = ENVIRONMENTS[environment], WAYS[way]
    loop, actions, expected = prepare(environment, count)
    steps = max(1, (entry.frames or longer * FRAMES) // count)
    rows = torch.arange(steps) % len(actions)
    ours = make(entry, count, device)
    try:
        assert_same(trace(ours, actions), expected, way)
        ours.reset()
        loop.reset()
        ratios, clock, _ = compare(
            benchmark, device, stepping(ours, actions[rows]), stepping(loop, actions[rows])
        )
    finally:
        ours.close()
    interleaved.note(
        benchmark,
        key_of(environment, count, way),
        "round_time",
        title=f"{entry.title}, {count}: {title}",
        parameters={
            "environment": entry.title,
            "environments": count,
            "way": title,
            "frames_per_round": steps * count,
        },
        sampled={
            "frames_per_second": [steps * count / wall for wall in clock.walls],
            "time_vs_loop": ratios,
            "parent_cpu": shares(clock),
        },
    )


def shares(clock):
    times = zip(clock.processor, clock.walls, strict=True)
    return [100 * processor / wall for processor, wall in times]


# -- The suite: parts of a step --------------------------------------------------


def put(env, **methods):
    """Replace methods of this one environment."""
    vars(env).update(methods)


def without_simulator(env, frame):
    """*frame* is what the simulator returned for a step that ended nothing."""
    env._env.step = lambda action: frame


def without_read_action(env, frame):
    put(env, read_action=lambda action: 0)


def without_read_observation(env, frame):
    observation = env.observation_spec["observation"].encode(frame[0])
    put(env, read_obs=lambda _: {"observation": observation})


def without_read_reward(env, frame):
    reward = env.reward_spec.encode(frame[1])
    put(env, read_reward=lambda _: reward)


def without_read_done(env, frame):
    flags = env.read_done(terminated=False, truncated=False)
    put(env, read_done=lambda **_: flags)


def without_completion(env, frame):
    put(env, _step_proc_data=lambda data: data)


def without_step_mdp(env, frame):
    carriers = [env.reset(seed=SEED) for _ in range(2)]

    def other_carrier(_):
        carriers.reverse()
        carriers[0]._tensordict.pop("next", None)
        return carriers[0]

    env._step_mdp  # noqa: B018 - fills the cache that is replaced
    env._cache["_step_mdp"] = other_carrier


def without_maybe_reset(env, frame):
    put(env, maybe_reset=lambda data: data)


class Part(NamedTuple):
    title: str
    remove: object


PARTS = {
    "simulator": Part("simulator", without_simulator),
    "read-action": Part("action to numpy", without_read_action),
    "read-observation": Part("observation to tensor", without_read_observation),
    "read-reward": Part("reward to tensor", without_read_reward),
    "read-done": Part("flags to tensors", without_read_done),
    "completion": Part("shapes and missing flags", without_completion),
    "step-mdp": Part("step_mdp", without_step_mdp),
    "maybe-reset": Part("test for ends", without_maybe_reset),
}


class Endless(gymnasium.Wrapper):
    """Never ends: a part that is left out cannot change when the others reset."""

    def step(self, action):
        observation, reward, _, _, info = self.env.step(action)
        return observation, reward, False, False, info


def endless(device=None):
    """CartPole under GymWrapper; the pole falls on and on, at the same price."""
    cartpole = gymnasium.make("CartPole-v1", disable_env_checker=True).unwrapped
    cartpole.theta_threshold_radians = cartpole.x_threshold = np.inf
    env = GymWrapper(Endless(cartpole), device=device, categorical_action_encoding=True)
    env.reset(seed=SEED)
    return env


def step_alone(env, actions):
    """Step *env* over *actions*, from a reset each time."""
    rows = list(actions)

    def run():
        carrier = env.reset(seed=SEED)
        for row in rows:
            carrier["action"] = row
            frame, carrier = env.step_and_maybe_reset(carrier)
        return frame

    return run


@pytest.mark.parametrize("part", PARTS)
def bench_part(benchmark, device, part):
    whole, cut = endless(), endless()
    title, remove = PARTS[part]
    remove(cut, cut._env.step(0))
    actions = torch.zeros(PART_STEPS, dtype=torch.int64)
    ours, reference = step_alone(whole, actions), step_alone(cut, actions)
    frame, cut_frame = ours(), reference()
    wanted, found = (set(each.keys(True, True)) for each in (frame, cut_frame))
    assert wanted == found, wanted ^ found
    ratios, clock, cut_clock = compare(benchmark, device, ours, reference)
    times = median(clock.walls), median(cut_clock.walls)
    interleaved.note(
        benchmark,
        f"part-{part}",
        "round_time",
        title=f"A step of GymEnv: {title}",
        parameters={"part": title, "environment": "CartPole", "steps_per_round": PART_STEPS},
        exact={
            "part_share": 100 * (1 - 1 / median(ratios)),
            "part_time": (times[0] - times[1]) / PART_STEPS,
        },
        sampled={"time_vs_cut": ratios},
    )


# -- The suite: variants of GymEnv -----------------------------------------------


def plain(device):
    return GymEnv("Pendulum-v1")


def with_transform(transform, device):
    return TransformedEnv(plain(device), transform())


def with_type_checks(device):
    env = plain(device)
    env.run_type_checks = True
    return env


class Variant(NamedTuple):
    title: str
    make: object
    skipped: int = 1  # simulated frames per step


VARIANTS = {
    "plain": Variant("as it is", plain),
    "device": Variant("device given", lambda device: GymEnv("Pendulum-v1", device=device)),
    "type-checks": Variant("run_type_checks", with_type_checks),
    "encode-checks": Variant("CHECK_SPEC_ENCODE=1", plain),
    "step-counter": Variant("StepCounter", functools.partial(with_transform, StepCounter)),
    "reward-sum": Variant("RewardSum", functools.partial(with_transform, RewardSum)),
    "init-tracker": Variant("InitTracker", functools.partial(with_transform, InitTracker)),
    "frame-skip": Variant(
        "frame_skip",
        lambda device: GymEnv("Pendulum-v1", frame_skip=FRAME_SKIP),
        FRAME_SKIP,
    ),
}


def checking(function):
    """*function* with the checks that the variable CHECK_SPEC_ENCODE switches on at import."""

    def run():
        before = tensor_specs._CHECK_SPEC_ENCODE
        tensor_specs._CHECK_SPEC_ENCODE = True
        try:
            return function()
        finally:
            tensor_specs._CHECK_SPEC_ENCODE = before

    return run


@pytest.mark.parametrize("variant", VARIANTS)
def bench_variant(benchmark, device, variant):
    title, make, skipped = VARIANTS[variant]
    generator = torch.Generator().manual_seed(SEED)
    actions = 4 * torch.rand(PART_STEPS // skipped, 1, generator=generator) - 2
    env = make(device)
    ours = step_alone(env, actions.to(device))
    reference = step_alone(plain(device), actions.repeat_interleave(skipped, 0))
    if variant == "encode-checks":
        ours = checking(ours)
    last, expected = ours(), reference()
    torch.testing.assert_close(last["next", "observation"].cpu(), expected["next", "observation"])
    ratios, clock, _ = compare(benchmark, device, ours, reference)
    interleaved.note(
        benchmark,
        f"variant-{variant}",
        "round_time",
        title=f"GymEnv: {title}",
        parameters={
            "variant": title,
            "environment": "Pendulum",
            "frames_per_round": PART_STEPS,
            "frame_skip": skipped,
        },
        sampled={
            "time_vs_plain": ratios,
            "frames_per_second": [PART_STEPS / wall for wall in clock.walls],
        },
    )


# -- The suite: transforms of pixels ---------------------------------------------


def pong(stacked=1, newaxis=False):
    game = make_pong(newaxis)
    return gymnasium.wrappers.FrameStackObservation(game, stacked) if stacked > 1 else game


def transformed_pong(*transforms):
    return TransformedEnv(GymWrapper(pong(newaxis=True)), Compose(*transforms))


PIXELS = {
    "plain": Variant("as it is", lambda: GymWrapper(pong())),
    "to-tensor-image": Variant(
        "ToTensorImage", lambda: transformed_pong(ToTensorImage(in_keys=["observation"]))
    ),
    "frame-stack": Variant(
        "FrameStackObservation of gymnasium", lambda: GymWrapper(pong(stacked=STACKED))
    ),
    "cat-frames": Variant(
        "ToTensorImage and CatFrames",
        lambda: transformed_pong(
            ToTensorImage(in_keys=["observation"]),
            CatFrames(STACKED, dim=-3, in_keys=["observation"]),
        ),
    ),
}


def step_on(env, actions):
    """Step *env* over *actions*, from where the last call left it: a reset costs many frames."""
    carrier = env.reset(seed=SEED)

    def run():
        nonlocal carrier
        for row in actions:
            carrier["action"] = row
            frame, carrier = env.step_and_maybe_reset(carrier)
        return frame

    return run


def latest(frame):
    """The newest picture of *frame*, from 0 to 1."""
    picture = frame["next", "observation"]
    scaled = picture if picture.is_floating_point() else picture / 255
    return scaled if scaled.ndim == 2 else scaled[-1]


@pytest.mark.parametrize("pixels", PIXELS)
def bench_pixels(benchmark, device, pixels):
    title, make, _ = PIXELS[pixels]
    env = make()
    generator = torch.Generator().manual_seed(SEED)
    choices = torch.randint(env.action_spec.shape[-1], (PIXEL_STEPS,), generator=generator)
    actions = torch.eye(env.action_spec.shape[-1], dtype=torch.int64)[choices]
    ours = step_on(env, actions)
    reference = step_on(PIXELS["plain"].make(), actions)
    last = ours()
    torch.testing.assert_close(latest(last), latest(reference()))
    if pixels == "cat-frames":
        stacked = step_alone(PIXELS["frame-stack"].make(), actions)()
        stacked = stacked["next", "observation"] / 255
        torch.testing.assert_close(last["next", "observation"], stacked)
    ratios, clock, _ = compare(benchmark, device, ours, reference)
    interleaved.note(
        benchmark,
        f"pixels-{pixels}",
        "round_time",
        title=f"Pong, pixels: {title}",
        parameters={
            "variant": title,
            "environment": "Pong, pixels",
            "frames_per_round": PIXEL_STEPS,
            "stacked": STACKED if pixels in ("frame-stack", "cat-frames") else 1,
        },
        exact={"bytes_per_frame": last.bytes()},
        sampled={
            "time_vs_plain": ratios,
            "frames_per_second": [PIXEL_STEPS / wall for wall in clock.walls],
        },
    )


# -- The suite: pitfalls ---------------------------------------------------------


class Swing(EnvBase):
    """Pendulums that run as one batch; the subclasses each add one pitfall."""

    def __init__(self, rows=None, first=0, dtype=torch.float32, device=None):
        super().__init__(batch_size=[] if rows is None else [rows], device=device)
        shape = self.batch_size
        self.first, self.dtype = first, dtype
        self.observation_spec = Composite(
            observation=Unbounded((*shape, 3), dtype=dtype, device=device),
            shape=shape,
            device=device,
        )
        self.action_spec = Bounded(-2, 2, (*shape, 1), dtype=dtype, device=device)
        self.reward_spec = Unbounded((*shape, 1), dtype=dtype, device=device)
        flag = Binary(shape=(*shape, 1), dtype=torch.bool, device=device)
        self.full_done_spec = Composite(
            done=flag, terminated=flag.clone(), shape=shape, device=device
        )
        self.off = torch.zeros(*shape, 1, dtype=torch.bool, device=device)
        self.weights = torch.tensor([1.0, 0.1, 0.001], dtype=dtype, device=device)

    def observe(self):
        return torch.cat([self.angle.cos(), self.angle.sin(), self.speed], -1)

    def _reset(self, tensordict=None, **options):
        rows = self.first + torch.arange(self.numel(), dtype=self.dtype, device=self.device)
        start = rows.reshape(*self.batch_size, 1) / 10
        self.angle, self.speed = start, torch.zeros_like(start)
        data = {"observation": self.observe(), "done": self.off, "terminated": self.off}
        return TensorDict(data, self.batch_size, device=self.device)

    def costs(self, action):
        parts = torch.cat([self.wrapped() ** 2, self.speed**2, action**2], -1)
        return -(parts * self.weights).sum(-1, keepdim=True)

    def wrapped(self):
        return (self.angle + torch.pi) % (2 * torch.pi) - torch.pi

    def advance(self, action):
        force = 15 * self.angle.sin() + 3 * action
        self.speed = (self.speed + 0.05 * force).clamp(-8, 8)
        self.angle = self.angle + 0.05 * self.speed

    def _step(self, tensordict):
        action = tensordict["action"]
        reward = self.costs(action)
        self.advance(action)
        data = {
            "observation": self.observe(),
            "reward": reward,
            "done": self.off,
            "terminated": self.off,
        }
        return TensorDict(data, self.batch_size, device=self.device)

    def _set_seed(self, seed):
        """Nothing here is random."""


class ItemOnce(Swing):
    """One number a step leaves the tensors, for a log."""

    best = -float("inf")

    def costs(self, action):
        reward = super().costs(action)
        self.best = max(self.best, reward.max().item())
        return reward


class ItemPerRow(Swing):
    """A condition in Python for each row."""

    def wrapped(self):
        angles = []
        for row in self.angle:
            angle = row.item()
            while angle >= torch.pi:
                angle -= 2 * torch.pi
            while angle < -torch.pi:
                angle += 2 * torch.pi
            angles.append([angle])
        return torch.tensor(angles, dtype=self.dtype, device=self.device)


class RowByRow(Swing):
    """The batch is computed one row after another."""

    def advance(self, action):
        speeds, angles = [], []
        for angle, speed, push in zip(self.angle, self.speed, action, strict=True):
            force = 15 * angle.sin() + 3 * push
            speed = (speed + 0.05 * force).clamp(-8, 8)
            speeds.append(speed)
            angles.append(angle + 0.05 * speed)
        self.speed, self.angle = torch.stack(speeds), torch.stack(angles)


class Allocating(Swing):
    """Constants are built anew at each step."""

    def costs(self, action):
        self.weights = torch.tensor([1.0, 0.1, 0.001], dtype=self.dtype, device=self.device)
        self.off = torch.zeros(*self.batch_size, 1, dtype=torch.bool, device=self.device)
        return super().costs(action)


class FilledSpec(Swing):
    """Each step fills what the specs allocate."""

    def _step(self, tensordict):
        out = self.full_observation_spec.zero()
        out.update(self.full_reward_spec.zero()).update(self.full_done_spec.zero())
        return out.update_(super()._step(tensordict))


class Checking(Swing):
    """Each step tests what it returns against the specs."""

    def _step(self, tensordict):
        out = super()._step(tensordict)
        assert self.full_observation_spec.is_in(out.select("observation"))
        assert self.full_reward_spec.is_in(out.select("reward"))
        assert self.full_done_spec.is_in(out.select("done", "terminated"))
        return out


class Wide(gymnasium.Env):
    """Returns *read(observation)* of a float32 array."""

    observation_space = gymnasium.spaces.Box(-1, 1, (LIST_SIZE,), np.float32)
    action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

    def __init__(self, read):
        self.read, self.steps = read, 0

    def observation(self):
        return self.read(np.full(LIST_SIZE, np.cos(self.steps), np.float32))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation(), {}

    def step(self, action):
        self.steps += 1
        return self.observation(), 1.0, False, False, {}


def wide(read, rows, device):
    return GymWrapper(Wide(read), device=None if device.type == "cpu" else device)


def as_it_is(array):
    return array


def swing(kind, rows, device, **options):
    return kind(rows, device=device, **options)


def serial(rows, device):
    return SerialEnv(rows, [functools.partial(Swing, first=i, device=device) for i in range(rows)])


class Pitfall(NamedTuple):
    title: str
    before: object
    after: object
    rows: int | None
    tolerance: float = 1e-3


GOOD = functools.partial(swing, Swing)
PITFALLS = {
    "none": Pitfall("none, for the noise", GOOD, GOOD, BATCH),
    "item-once": Pitfall("one .item() a step", functools.partial(swing, ItemOnce), GOOD, BATCH),
    "item-rows": Pitfall(
        ".item() and a condition per row", functools.partial(swing, ItemPerRow), GOOD, BATCH
    ),
    "row-by-row": Pitfall(
        "a loop over the rows in _step", functools.partial(swing, RowByRow), GOOD, BATCH
    ),
    "unbatched": Pitfall("SerialEnv of unbatched environments", serial, GOOD, BATCH),
    "allocate": Pitfall(
        "constants built at each step", functools.partial(swing, Allocating), GOOD, BATCH
    ),
    "filled-spec": Pitfall(
        "spec.zero() filled at each step", functools.partial(swing, FilledSpec), GOOD, BATCH
    ),
    "checks": Pitfall(
        "is_in of every spec at each step", functools.partial(swing, Checking), GOOD, BATCH
    ),
    "double": Pitfall(
        "float64 by oversight",
        functools.partial(swing, Swing, dtype=torch.float64),
        GOOD,
        LARGE_BATCH,
        0.1,  # pendulums that turn over amplify what float32 rounds
    ),
    "list": Pitfall(
        "observation as a Python list",
        functools.partial(wide, np.ndarray.tolist),
        functools.partial(wide, as_it_is),
        None,
    ),
    "cast": Pitfall(
        "float64 array for a float32 space",
        functools.partial(wide, np.float64),
        functools.partial(wide, as_it_is),
        None,
    ),
}


def swinging(env, actions):
    """Step over *actions* from a reset; return the last frame."""
    carrier = env.reset()
    for row in actions:
        carrier["action"] = row
        frame, carrier = env.step_and_maybe_reset(carrier)
    return frame


def actions_for(env, rows, device):
    generator = torch.Generator().manual_seed(SEED)
    shape = (PITFALL_STEPS, 1) if rows is None else (PITFALL_STEPS, rows, 1)
    actions = 4 * torch.rand(shape, generator=generator) - 2
    dtype = env.action_spec.dtype
    return list(actions.to(device=device, dtype=dtype))


@pytest.mark.parametrize("pitfall", PITFALLS)
def bench_pitfall(benchmark, device, pitfall):
    title, before, after, rows, tolerance = PITFALLS[pitfall]
    envs = before(rows, device), after(rows, device)
    runs = [functools.partial(swinging, env, actions_for(env, rows, device)) for env in envs]
    last, expected = (run() for run in runs)
    for key in ("observation", "reward", "done"):
        found, wanted = last["next", key], expected["next", key]
        torch.testing.assert_close(found.to(wanted.dtype), wanted, rtol=1e-3, atol=tolerance)
    sizes = [frame.bytes() // (rows or 1) for frame in (last, expected)]
    ratios, clock, _ = compare(benchmark, device, *runs)
    for env in envs:
        env.close()
    frames = PITFALL_STEPS * (rows or 1)
    interleaved.note(
        benchmark,
        f"pitfall-{pitfall}",
        "round_time",
        title=f"Pitfall: {title}",
        parameters={"pitfall": title, "rows": rows or 1, "frames_per_round": frames},
        exact={"bytes_per_frame": sizes[0], "repaired_bytes_per_frame": sizes[1]},
        sampled={
            "time_vs_repaired": ratios,
            "frames_per_second": [frames / wall for wall in clock.walls],
        },
    )
