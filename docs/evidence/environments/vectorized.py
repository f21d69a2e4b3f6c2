"""Frames that GymEnv(num_envs=...) makes up, wrapped vector environments, and which way to try.

For the page on environments. CartPole is pushed to the right until the pole falls, several times.
"""

import cProfile
import json
import multiprocessing
import os
from functools import partial

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv

# torchrl is imported where it is used: a worker of AsyncVectorEnv imports this module and needs
# gymnasium alone.

COUNT = 2
STEPS = 24
SEED = 1  # the poles do not fall in the same step
MAKE = partial(gymnasium.make, "CartPole-v1")


def with_num_envs():
    from torchrl.envs import GymEnv

    return GymEnv("CartPole-v1", num_envs=COUNT, categorical_action_encoding=True)


def with_wrapper():
    from torchrl.envs import GymWrapper

    vector = SyncVectorEnv([MAKE] * COUNT, autoreset_mode=AutoresetMode.DISABLED)
    return GymWrapper(vector, categorical_action_encoding=True)


def collected(make):
    """Frames of the second CartPole: what it starts from, and what the step gives."""
    import torch

    env = make()
    carrier, frames = env.reset(seed=SEED), []
    for _ in range(STEPS):
        carrier["action"] = torch.ones(COUNT, dtype=torch.int64)
        frame, carrier = env.step_and_maybe_reset(carrier)
        frames.append(frame[1])
    env.close()
    return torch.stack(frames)


def position(observation):
    return f"``{observation[0]:.2f}, {observation[2]:.2f}``"


def around_the_first_end(frames, label):
    """Rows of the frame that ends the first episode and the two after it."""
    end = frames["next", "done"].squeeze().nonzero()[0].item()
    for step in range(end, end + 3):
        frame = frames[step]
        yield [
            label,
            str(step),
            position(frame["observation"]),
            position(frame["next", "observation"]),
            f"``{frame['next', 'reward'].item():.0f}``",
            f"``{frame['next', 'done'].item()}``",
        ]


def made_up(frames):
    """Frames that lead from the last observation of an episode to the first of the next."""
    return (frames["next", "reward"] == 0).sum().item()


def lost(frames):
    """Ends whose last observation is not there, but zeros or "not a number"."""
    ends = frames["next", "done"].squeeze(-1)
    last = frames["next", "observation"][ends]
    return (~last.nan_to_num().any(-1)).sum().item()


def num_envs():
    by_option, by_wrapper = collected(with_num_envs), collected(with_wrapper)
    rows = [
        *around_the_first_end(by_option, "``GymEnv(num_envs=2)``"),
        *around_the_first_end(by_wrapper, "``GymWrapper(SyncVectorEnv)``"),
    ]
    ends = by_wrapper["next", "done"].sum().item()
    assert ends >= 2, "the pole falls more than once"
    assert made_up(by_option) > 0, "num_envs makes frames up"
    assert lost(by_option) > 0, "num_envs loses last observations"
    assert made_up(by_wrapper) == lost(by_wrapper) == 0, "the wrapper does neither"
    columns = ["Environment", "Frame", "Starts from", "Ends in", "Reward", "Done"]
    return {
        "around": {"columns": columns, "rows": rows},
        "made_up": made_up(by_option),
        "lost": lost(by_option),
        "ends": by_option["next", "done"].sum().item(),
        "frames": len(by_option),
    }


# -- What can be wrapped -----------------------------------------------------------


def outcome(make):
    """The batch size of what *make* gives, or its error."""
    try:
        env = make()
    except (RuntimeError, AttributeError) as error:
        return f"``{type(error).__name__}``", f"``{error}``"
    size = list(env.batch_size)
    env.close()
    return f"batch size ``{size}``", "none"


def wrapped():
    from torchrl.envs import GymWrapper

    def native():
        return gymnasium.make_vec(
            "CartPole-v1", num_envs=COUNT, vectorization_mode="vector_entry_point"
        )

    makers = {
        "``SyncVectorEnv(makers)``": lambda: SyncVectorEnv([MAKE] * COUNT),
        **{
            f"the same, ``autoreset_mode=AutoresetMode.{mode.name}``": partial(
                SyncVectorEnv, [MAKE] * COUNT, autoreset_mode=mode
            )
            for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
        },
        "``make_vec``, ``vector_entry_point``: ``CartPoleVectorEnv``": native,
    }
    rows = [[name, *outcome(lambda make=make: GymWrapper(make()))] for name, make in makers.items()]
    results = [row[1] for row in rows]
    assert results == ["``RuntimeError``", *["batch size ``[2]``"] * 2, "``AttributeError``"]
    return {"columns": ["In ``GymWrapper(...)``", "Result", "Message"], "rows": rows}


# -- A profile ---------------------------------------------------------------------

PROFILED = (
    "CartPoleEnv.step",
    "torchrl.envs.libs.gym.GymWrapper.read_action",
    "torchrl.envs.gym_like.GymLikeEnv.read_obs",
    "torchrl.envs.gym_like.GymLikeEnv.read_reward",
    "torchrl.envs.gym_like.GymLikeEnv.read_done",
    "torchrl.envs.EnvBase._step_proc_data",
    "torchrl.envs.EnvBase.maybe_reset",
)
PROFILED_STEPS = 8  # no pole falls in them


def counted(env):
    """How often a step of *env* calls each function of PROFILED."""
    import torch

    carrier = env.reset(seed=SEED)
    action = torch.zeros(env.batch_size, dtype=torch.int64)

    def run():
        nonlocal carrier
        for step in range(PROFILED_STEPS):
            carrier["action"] = action + step % 2
            _, carrier = env.step_and_maybe_reset(carrier)

    run()
    carrier = env.reset(seed=SEED)
    profile = cProfile.Profile()
    profile.runcall(run)
    found = dict.fromkeys(PROFILED, 0)
    for entry in profile.getstats():
        if hasattr(entry.code, "co_qualname"):
            name, file = entry.code.co_qualname, entry.code.co_filename
            for symbol in PROFILED:
                own = "torchrl" if symbol.startswith("torchrl") else "cartpole"
                if symbol.endswith(name) and own in file and "." in name:
                    found[symbol] += entry.callcount
    return found


def calls():
    """The calls of one step for eight frames, by who batches them."""
    from torchrl.envs import GymWrapper, SerialEnv

    def one():
        return GymWrapper(MAKE(), categorical_action_encoding=True)

    def vector():
        mode = AutoresetMode.DISABLED
        wrapped = SyncVectorEnv([MAKE] * 8, autoreset_mode=mode)
        return GymWrapper(wrapped, categorical_action_encoding=True)

    makers = {
        "One ``GymEnv``": one,
        "``SerialEnv`` of eight": lambda: SerialEnv(8, one),
        "Eight in one ``GymWrapper``": vector,
    }
    columns = []
    for make in makers.values():
        env = make()
        columns.append(counted(env))
        env.close()
    rows = []
    for symbol in PROFILED:
        name = f":source:`{symbol}`" if symbol.startswith("torchrl") else f"``{symbol}``"
        numbers = [found[symbol] / PROFILED_STEPS for found in columns]
        assert all(number == int(number) for number in numbers), (symbol, numbers)
        rows.append([name, *(f"{number:.0f}" for number in numbers)])
    single, serial, batched = ({row[0]: row[i] for row in rows} for i in (1, 2, 3))
    read = ":source:`torchrl.envs.gym_like.GymLikeEnv.read_obs`"
    assert (single[read], serial[read], batched[read]) == ("1", "8", "1"), "one conversion a call"
    return {"columns": ["Calls in one step", *makers], "rows": rows}


# -- Measure it yourself -----------------------------------------------------------


def seconds_per_frame(reset, step, count=1, rounds=5, steps=100):
    """The median over rounds of *step*, for one of *count* environments."""
    import time
    from statistics import median

    seconds = []
    for _ in range(rounds):
        reset()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        seconds.append((time.perf_counter() - begin) / steps / count)
    return median(seconds)


def gymnasium_seconds(make, **length):
    """A frame of the bare environment, with resets where episodes end."""
    env = make()
    action = env.action_space.sample()

    def step():
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()

    seconds = seconds_per_frame(env.reset, step, **length)
    env.close()
    return seconds


def torchrl_seconds(env, **length):
    """A frame of an environment of TorchRL, stepped as a collector does; closes it."""
    carrier = env.reset()
    action = env.rand_action(carrier.clone())["action"]

    def reset():
        nonlocal carrier
        carrier = env.reset()

    def step():
        nonlocal carrier
        carrier["action"] = action
        _, carrier = env.step_and_maybe_reset(carrier)

    seconds = seconds_per_frame(reset, step, max(1, env.numel()), **length)
    env.close(raise_if_closed=False)
    return seconds


def which_side(make, count, workers=True, **length):
    """What dominates a step of ``GymWrapper(make())``, and the fastest way for *count* of them.

    Without *workers* no process is started. For a slow environment pass fewer ``rounds`` and
    ``steps``.
    """
    from functools import partial

    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
    from torchrl.envs import GymWrapper, ParallelEnv, SerialEnv

    def one():
        return GymWrapper(make())

    def vector(kind):
        return GymWrapper(kind([make] * count, autoreset_mode=AutoresetMode.DISABLED))

    ways = {
        "SerialEnv": partial(SerialEnv, count, one),
        "SyncVectorEnv, wrapped": partial(vector, SyncVectorEnv),
    }
    if workers:
        ways["ParallelEnv"] = partial(ParallelEnv, count, one)
        ways["AsyncVectorEnv, wrapped"] = partial(vector, AsyncVectorEnv)
    bare, whole = gymnasium_seconds(make, **length), torchrl_seconds(one(), **length)
    seconds = {name: torchrl_seconds(build(), **length) for name, build in ways.items()}
    return {
        "dominates": "the environment" if bare > whole / 2 else "TorchRL",
        "try": min(seconds, key=seconds.get),
        "times": {"gymnasium": bare, "TorchRL": whole, **seconds},
    }


def ask():
    """Times are no part of a page, so neither is the answer: it has to be one of the possible."""
    answer = which_side(MAKE, COUNT, workers=False)
    assert answer["dominates"] in ("the environment", "TorchRL"), answer
    assert answer["try"] in ("SerialEnv", "SyncVectorEnv, wrapped"), answer
    assert min(answer["times"].values()) > 0, answer


def main():
    multiprocessing.set_forkserver_preload(["gymnasium"])
    multiprocessing.set_start_method("forkserver", force=True)
    import torch

    torch.set_num_threads(1)
    ask()
    print(json.dumps({**num_envs(), "wrapped": wrapped(), "calls": calls()}))


if __name__ == "__main__":
    main()
