"""MuJoCo in C against MJX by batch size, and the environment that TorchRL builds on MuJoCo.

A hopper or an ant of TorchRL's assets, one physics step at a time, without control. "MuJoCo in C"
steps one state after another in a Python loop. "MJX" is one call of a jitted and vectorized
function, whose first call, which compiles, is timed apart. Both have one thread. MJX computes in
float32 and MuJoCo in float64: the positions after a few steps are compared with a tolerance. "ends"
is how many steps of TorchRL's environments end an episode under random actions.
"""

import functools
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torchrl
from torchrl.envs import AntEnv, HopperEnv, HumanoidEnv, Walker2dEnv

from benchmarks import interleaved, measure, metrics

SECONDS = 0.7
BATCHES = (1, 32, 1024)
STEPS = 4  # of the whole batch, in a round
C_FRAMES = 4096  # in a round of C, which takes microseconds a frame
CHECKED_STEPS = 10
SEED = 0
TOLERANCE = 1e-3
ENDS_STEPS = 50
ASSETS = Path(torchrl.__file__).parent / "envs/custom/mujoco/assets"
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

METRICS = metrics.declare(f"""
round_time [s] Time of a round: Wall time of the steps of one round.
frames_per_second [1] Frames per second: Steps of single simulations, all of the batch together, in
    a second.
time_vs_c [1] Time against C: Time of a round, divided by that of MuJoCo's C functions on the same
    batch right before it. Below one, the way is faster than C.
first_call_time [s, exact] First call: Wall time of the first call of the jitted function: tracing,
    compilation and one step.
ends [%, exact] Steps that end an episode: Share of the steps of a rollout that are done.
position_error [1, exact] Largest error of a position: Largest difference to a position of C after
    {CHECKED_STEPS} steps.
""")


def starts(model, batch):
    """Positions and velocities of *batch* bodies above the ground, each a little different."""
    rng = np.random.default_rng(SEED)
    positions = np.tile(model.qpos0, (batch, 1)) + rng.uniform(-0.05, 0.05, (batch, model.nq))
    positions[:, 1] += 0.3  # the height of the hopper
    return positions, rng.uniform(-0.1, 0.1, (batch, model.nv))


class C:
    """MuJoCo's C functions, one state after another."""

    def __init__(self, batch, model="hopper"):
        self.mujoco = pytest.importorskip("mujoco")
        self.model = self.mujoco.MjModel.from_xml_path(str(ASSETS / f"{model}.xml"))
        self.states = []
        for position, velocity in zip(*starts(self.model, batch), strict=True):
            state = self.mujoco.MjData(self.model)
            state.qpos[:], state.qvel[:] = position, velocity
            self.states.append(state)

    def step(self):
        step, model = self.mujoco.mj_step, self.model
        for state in self.states:
            step(model, state)

    def positions(self):
        return np.stack([state.qpos for state in self.states])


class Mjx:
    """One jitted call for the batch; *first_call* is the time of the one that compiles."""

    def __init__(self, batch):
        jax, mjx = import_mjx()
        mujoco = pytest.importorskip("mujoco")
        self.jax = jax
        model = mujoco.MjModel.from_xml_path(str(ASSETS / "hopper.xml"))
        on_device = mjx.put_model(model)
        positions, velocities = starts(model, batch)
        single = mjx.make_data(on_device)
        self.state = jax.vmap(lambda q, v: single.replace(qpos=q, qvel=v))(
            jax.numpy.asarray(positions, jax.numpy.float32),
            jax.numpy.asarray(velocities, jax.numpy.float32),
        )
        self.call = jax.jit(jax.vmap(functools.partial(mjx.step, on_device)))
        start = self.state
        begin = time.perf_counter()
        self.step()
        self.wait()
        self.first_call = time.perf_counter() - begin
        self.state = start

    def step(self):
        self.state = self.call(self.state)

    def wait(self):
        self.jax.block_until_ready(self.state.qpos)

    def positions(self):
        return np.asarray(self.state.qpos)


def import_mjx():
    """jax with one thread, and MJX."""
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)
    return pytest.importorskip("jax"), pytest.importorskip("mujoco.mjx")


def rounds_of(steps, simulation, wait=lambda: None):
    def run():
        for _ in range(steps):
            simulation.step()
        wait()

    return run


def bench(
    benchmark,
    device,
    key,
    title,
    ours,
    reference,
    steps,
    wait=lambda: None,
    model="hopper",
    **noted,
):
    """Time *ours* against C on the same batch; both go on from where the check left them."""
    batch = len(reference.states)
    spent = []

    def timed():
        begin = time.perf_counter()
        rounds_of(steps, ours, wait)()
        spent.append(time.perf_counter() - begin)

    ratios = interleaved.paired(
        benchmark, device, timed, rounds_of(steps, reference), seconds=SECONDS
    )
    interleaved.note(
        benchmark,
        key,
        "round_time",
        title=title,
        parameters={
            "way": title.partition(",")[0],
            "batch": batch,
            "model": model,
            "threads": measure.THREADS,
            "steps_per_round": steps,
        },
        exact=noted,
        sampled={
            "frames_per_second": [steps * batch / wall for wall in spent[-len(ratios) :]],
            "time_vs_c": ratios,
        },
    )


def checked(ours, reference):
    for _ in range(CHECKED_STEPS):
        ours.step()
        reference.step()
    error = float(np.abs(ours.positions() - reference.positions()).max())
    assert error < TOLERANCE, error
    return error


@pytest.mark.parametrize("batch", BATCHES)
def bench_c(benchmark, device, batch):
    ours, reference = C(batch), C(batch)
    error = checked(ours, reference)
    bench(
        benchmark,
        device,
        f"c-b{batch}",
        f"MuJoCo in C, batch {batch}",
        ours,
        reference,
        steps=max(STEPS, C_FRAMES // batch),
        position_error=error,
    )


# MJX's modules warn of what newer versions of jax and MuJoCo rename.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("batch", BATCHES)
def bench_mjx(benchmark, device, batch):
    ours, reference = Mjx(batch), C(batch)
    if device.type == "cuda" and ours.jax.default_backend() != "gpu":
        pytest.skip("jax finds no GPU: install jax with CUDA")
    error = checked(ours, reference)
    bench(
        benchmark,
        device,
        f"mjx-b{batch}",
        f"MJX, batch {batch}",
        ours,
        reference,
        steps=STEPS,
        wait=ours.wait,
        first_call_time=ours.first_call,
        position_error=error,
    )


class Ant:
    """TorchRL's AntEnv, whose actions are zero; a step of it is one physics step."""

    def __init__(self, batch):
        options = {"num_envs": batch, "parallel": False} if batch > 1 else {}
        self.env = AntEnv(backend="mujoco", frame_skip=1, **options)
        self.carrier = self.env.reset()
        self.action = torch.zeros(self.env.action_spec.shape)

    def step(self):
        self.carrier["action"] = self.action
        frame, self.carrier = self.env.step_and_maybe_reset(self.carrier)
        return frame


@pytest.mark.parametrize("batch", BATCHES[:2])
def bench_torchrl(benchmark, device, batch):
    """TorchRL's own environment with ``backend="mujoco"``: SerialEnv from two on."""
    pytest.importorskip("mujoco")
    torch.manual_seed(SEED)
    ours = Ant(batch)
    frame = ours.step()
    assert frame.numel() == batch
    assert not frame["next", "done"].any()  # no reset is in the time
    bench(
        benchmark,
        device,
        f"torchrl-b{batch}",
        f"AntEnv of TorchRL, batch {batch}",
        ours,
        C(batch, "ant"),
        steps=max(STEPS, 64 // batch),
        model="ant",
    )
    ours.env.close()


@pytest.mark.parametrize("kind", [AntEnv, HopperEnv, HumanoidEnv, Walker2dEnv])
def bench_ends(benchmark, device, kind):
    """How many steps end an episode: from a start that counts as fallen, each does."""
    pytest.importorskip("mujoco")
    torch.manual_seed(SEED)
    env = kind(backend="mujoco")

    def run():
        return env.rollout(ENDS_STEPS, break_when_any_done=False)

    rollout = run()
    assert rollout.numel() == ENDS_STEPS
    benchmark.pedantic(
        run, rounds=interleaved.LEAST_ROUNDS, warmup_rounds=interleaved.WARMUP_ROUNDS
    )
    name = kind.__name__.lower()
    interleaved.note(
        benchmark,
        f"ends-{name}",
        "round_time",
        title=f"{kind.__name__}, ends of episodes",
        parameters={"way": kind.__name__, "batch": 1, "steps_per_round": ENDS_STEPS},
        exact={"ends": 100 * rollout["next", "done"].double().mean().item()},
    )
    env.close()
