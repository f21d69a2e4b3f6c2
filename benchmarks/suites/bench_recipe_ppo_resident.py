"""PPO on inverted pendulums in MJX, which stay on one device, and on the same ones stepped in C.

Solved means that the mean return of the last 20 finished training episodes is 190 of 200 at the end
of an iteration. Each training is a process of its own with one thread, and the contenders take
turns, seed by seed. Seconds begin before environments and networks are made, and after the imports
and the compilation of the simulator, which are given apart. "On the host" steps gymnasium's
environment with the same model, one state after another in C. A batch is collected with each way in
turns, with a policy that does not learn; "MujocoEnv" is TorchRL's class with ``backend="mjx"``,
which TorchRL resets. Reads are counted in a batch in which episodes end.
"""

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.envs import RewardSum, TransformedEnv
from torchrl.envs.custom.mujoco.base import MujocoEnv
from torchrl.envs.utils import check_env_specs

from benchmarks import interleaved, metrics, simulated_cuda
from benchmarks.recipes import ppo_resident
from benchmarks.recipes.ppo_resident_contenders import STEPS, THRESHOLD, host_env
from benchmarks.suites.bench_recipe_ppo_cartpole import estimate, value_at

ROOT = Path(__file__).parents[2]
SEEDS = 5
CHILD = "benchmarks.recipes.ppo_resident_contenders"
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
ROUNDS, WARMUP_ROUNDS = 10, 2
CHECKED_STEPS, TOLERANCE = 10, 1e-4

AT = {"seconds": (1, 2, 3, 4, 6, 8, 10, 12), "frames": (32768, 65536, 131072, 262144, 524288)}
CONTENDERS = {
    "resident-64": "MJX, 64 environments",
    "resident-256": "MJX, 256 environments",
    "resident-1024": "MJX, 1024 environments",
    "host-64": "C, 64 environments",
    "host-256": "C, 256 environments",
}
METRICS = metrics.declare(f"""
time_to_threshold [s] Time to the threshold: Wall time until the pendulum is solved, without imports
    and compilation; each round is a seed.
cpu_to_threshold [s] Processor time to the threshold: The same in seconds of the processor.
cpu_iqm [s, summary] Processor time: Interquartile mean of the processor time to the threshold.
cpu_iqm_low [s, summary] From: Lower end of the 95 percent interval of that mean.
cpu_iqm_high [s, summary] To: Upper end of that interval.
frames_to_threshold [1] Frames to the threshold: Frames until the pendulum is solved.
solved [1] Solved: Share of the seeds that reached the threshold within 2 000 000 frames.
frames_per_second [1] Frames per second: Steps of single pendulums in a second of the whole
    training, or of collection where nothing is trained.
compile_time [s] Compilation: Wall time until jax has compiled the simulator, once in a process.
import_time [s] Time of the imports: Wall time from the start of the process to the first
    line that makes anything.
peak_memory [B] Peak memory: Highest resident memory of the process, with its libraries.
collect_time [s] Collection: Wall time of collecting 1000 frames.
advantage_time [s] Advantage: Wall time of the advantages of 1000 frames.
update_time [s] Update: Wall time of the updates on 1000 frames.
episode_return [1] Return of an episode: Mean return of the last 20 finished episodes; each round is
    a seed.
batch_time [s] Time of a batch: Wall time of collecting {STEPS} steps of all environments.
time_vs_host [1] Time against C: Time of a batch, divided by that of the host in the same turn;
    below one, the way is faster.
reads [1, exact] Values read: Values of tensors that Python asks for while it collects {STEPS}
    steps; on a GPU, each waits for the work before it.
resets [1, exact] Resets: Calls of the environment's own reset from its start to the end of that
    batch.
ends [1, exact] Ends of episodes: Episodes that ended in that time.
position_error [1, exact] Largest error: Largest difference to an observation of C after
    {CHECKED_STEPS} steps from the same state.
""")


@functools.cache
def trained():
    """What each contender came to, by seed."""
    found = {way: [] for way in CONTENDERS}
    variables = os.environ | {"OMP_NUM_THREADS": "1", "RL_WARNINGS": "False"}
    variables |= {"XLA_FLAGS": ONE_THREAD}
    for seed in range(SEEDS):
        for way in CONTENDERS:
            command = [sys.executable, "-m", CHILD, way, str(seed)]
            options = {"cwd": ROOT, "env": variables, "capture_output": True, "text": True}
            child = subprocess.run(command, check=False, **options)
            assert child.returncode == 0, child.stderr
            found[way].append(json.loads(child.stdout.splitlines()[-1]))
            print(way, seed, found[way][-1]["points"][-1], file=sys.stderr, flush=True)
    return found


@pytest.mark.parametrize("way", CONTENDERS)
def bench_training(benchmark, device, way):
    pytest.importorskip("mujoco.mjx")
    if device.type == "cuda":
        pytest.skip("the contenders train on the CPU")
    runs = trained()[way]
    frames, seconds, cpu, _ = zip(*(run["points"][-1] for run in runs), strict=True)
    parts = {
        f"{part}_time": [1000 * run["parts"][part] / n for run, n in zip(runs, frames, strict=True)]
        for part in ("collect", "advantage", "update")
    }
    compiling = {} if way.startswith("host") else {"compile_time": [r["compile"] for r in runs]}
    interleaved.report(
        benchmark,
        seconds,
        0,
        way,
        "time_to_threshold",
        title=CONTENDERS[way],
        parameters={
            "contender": CONTENDERS[way],
            "environments": int(way.partition("-")[2]),
            "steps": STEPS,
            "seeds": SEEDS,
            "threshold": THRESHOLD,
        },
        sampled={
            "cpu_to_threshold": list(cpu),
            "frames_to_threshold": list(frames),
            "frames_per_second": [n / s for n, s in zip(frames, seconds, strict=True)],
            "solved": [sum(run["solved"] for run in runs) / SEEDS],
            "import_time": [run["imports"] - run["compile"] for run in runs],
            "peak_memory": [run["memory"] for run in runs],
            **compiling,
            **parts,
            **estimate(cpu, "cpu_iqm"),
        },
    )


@pytest.mark.parametrize(("axis", "at"), [(axis, at) for axis in AT for at in AT[axis]])
@pytest.mark.parametrize("way", CONTENDERS)
def bench_curve(benchmark, device, way, axis, at):
    pytest.importorskip("mujoco.mjx")
    if device.type == "cuda":
        pytest.skip("the contenders train on the CPU")
    runs = trained()[way]
    values = [value_at(run["points"], axis, at) for run in runs]
    if None in values:
        pytest.skip(f"no episode of {CONTENDERS[way]} has ended after {at} {axis} in some seed")
    interleaved.report(
        benchmark,
        [run["points"][-1][1] for run in runs],
        0,
        f"{way}-{axis}-{at}",
        "time_to_threshold",
        title=f"{CONTENDERS[way]}, after {at} {axis}",
        parameters={"contender": CONTENDERS[way], axis: at, "seeds": SEEDS},
        sampled={"episode_return": [round(value, 1) for value in values]},
    )


# -- Collection ------------------------------------------------------------------


class Reads(TorchDispatchMode):
    """Counts what asks for the value of a tensor, and copies from one device to another."""

    ASK = ("cpu", "numpy", "tolist", "__array__")  # no operator of torch, for what is on the CPU

    def __enter__(self):
        self.counts, self.patches = Counter(), contextlib.ExitStack()
        for name in self.ASK:
            self.patches.enter_context(mock.patch.object(torch.Tensor, name, self.asked(name)))
        return super().__enter__()

    def __exit__(self, *raised):
        self.patches.close()
        return super().__exit__(*raised)

    def asked(self, name):
        plain = getattr(torch.Tensor, name)

        def ask(tensor, *arguments, **named):
            self.counts[name] += 1
            return plain(tensor, *arguments, **named)

        return ask

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        moved = func in simulated_cuda.COPIES and args[-1 if len(args) > 1 else 0].device
        if simulated_cuda.is_read(func, args) or (moved and moved != result.device):
            self.counts[str(func)] += 1
        return result


class Shipped(MujocoEnv):
    """The same task in the form that TorchRL's class for MuJoCo asks for."""

    FRAME_SKIP, RESET_NOISE_SCALE = ppo_resident.SKIP, ppo_resident.NOISE

    def _compute_reward(self, state, action, next_state):
        return (~self._compute_done(state, next_state)).float()

    def _compute_done(self, state, next_state):
        return ~(next_state["qpos"][:, 1].abs() <= ppo_resident.TILT)


def shipped_env(options, seed):
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "pendulum.xml")
        model.write_text(ppo_resident.MODEL, "utf-8")
        base = Shipped(
            xml_path=model,
            backend="mjx",
            num_envs=options.envs,
            device=options.device,
            seed=seed,
            max_episode_steps=ppo_resident.HORIZON,
        )
    return TransformedEnv(base, RewardSum())


BATCHES = (64, 256, 1024)
CASES = [("resident", n) for n in BATCHES] + [("shipped", 256)] + [("host", n) for n in BATCHES]
COLLECTED = {
    "resident": ("the recipe", ppo_resident.make_env),
    "shipped": ("MujocoEnv", shipped_env),
    "host": ("on the host, in C", host_env),
}


class Collecting(ppo_resident.Run):
    """A run that collects alone, and counts resets and ends from its start."""

    def __init__(self, way, batch, device):
        arguments = ["--envs", str(batch), "--device", "cpu" if way == "host" else device.type]
        self.make, self.resets, self.ends = COLLECTED[way][1], 0, 0
        with mock.patch.object(ppo_resident, "make_env", self.make_env):
            super().__init__(ppo_resident.parse(arguments), 0)
        self.batches = iter(self.collector)

    def make_env(self, options, seed):
        """An environment that counts how often it is reset."""
        env = self.make(options, seed)
        plain = env.base_env._reset

        def count(*arguments, **named):
            self.resets += 1
            return plain(*arguments, **named)

        env.base_env._reset = count
        return env

    def turn(self):
        self.batch = next(self.batches)
        return self.batch

    def counted(self):
        """The counts of a batch, after one that begins with the reset of all."""
        self.ends = int(self.turn()["next", "done"].sum())
        with Reads() as reads:
            self.turn()
        self.ends += int(self.batch["next", "done"].sum())
        return {"reads": sum(reads.counts.values()), "resets": self.resets, "ends": self.ends}


def shares_memory(env):
    """Whether torch and jax have the same memory: what is seen, and what is pushed."""
    push = torch.zeros(env.action_spec.shape, device=env.device)
    there = env.jax.dlpack.from_dlpack(push)
    seen = env.frame({})["observation"]
    pairs = (push, there), (seen, env.state[0])
    return all(here.data_ptr() == array.unsafe_buffer_pointer() for here, array in pairs)


def position_error(env):
    """The largest difference to an observation of C, after the same pushes from the same states."""
    import mujoco

    model = mujoco.MjModel.from_xml_string(ppo_resident.MODEL)
    rng = np.random.default_rng(0)
    pushes = rng.uniform(-0.02, 0.02, (CHECKED_STEPS, *env.action_spec.shape)).astype("float32")
    env.reset()
    state, expected = env.state, np.asarray(env.state[0]).astype(float)
    for push in pushes:
        state, found = env.advance(*state, env.jax.numpy.asarray(push))
        assert not found["done"].any()
    for seen, pushed in zip(expected, pushes.swapaxes(0, 1), strict=True):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = np.split(seen, 2)
        for push in pushed:
            data.ctrl[:] = push
            mujoco.mj_step(model, data, nstep=ppo_resident.SKIP)
        seen[:] = np.concatenate([data.qpos, data.qvel])
    return float(abs(np.asarray(state[0]) - expected).max())


@functools.cache
def collected(device, batch):
    """Seconds of the rounds by way, and their counts."""
    pytest.importorskip("mujoco.mjx")
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)
    torch.set_num_threads(1)
    try:
        runs = {way: Collecting(way, batch, device) for way, n in CASES if n == batch}
    except RuntimeError as error:
        if "cuda" in str(error):
            pytest.skip("jax finds no GPU: install jax with CUDA")
        raise
    counts = {way: run.counted() for way, run in runs.items()}
    pendulums = ppo_resident.Pendulums(batch, device.type)
    counts["resident"]["position_error"] = position_error(pendulums)
    assert counts["resident"]["position_error"] < TOLERANCE
    assert shares_memory(pendulums)
    check_env_specs(pendulums)
    turns = {way: run.turn for way, run in runs.items()}
    spent = interleaved.rounds(device, turns, ROUNDS, WARMUP_ROUNDS)
    for run in runs.values():
        run.collector.shutdown()
    return spent, counts


# MJX's modules warn of what newer versions of jax and MuJoCo rename.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("way", "batch"), CASES)
def bench_collection(benchmark, device, way, batch):
    spent, counts = collected(device, batch)
    ratios = [ours / host for ours, host in zip(spent[way], spent["host"], strict=True)]
    frames = batch * STEPS
    interleaved.report(
        benchmark,
        spent[way],
        WARMUP_ROUNDS,
        f"collect-{way}-{batch}",
        "batch_time",
        title=f"{COLLECTED[way][0]}, {batch} environments",
        parameters={"way": COLLECTED[way][0], "environments": batch, "steps": STEPS},
        exact=counts[way],
        sampled={
            "frames_per_second": [frames / seconds for seconds in spent[way]],
            **({} if way == "host" else {"time_vs_host": ratios}),
        },
    )
