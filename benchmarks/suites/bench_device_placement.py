"""The four devices of a collector: what crosses between host and GPU in a step, and what waits.

Each key is an environment and where its parts are. ``gym`` is CartPole-v1, whose simulator runs on
the processor wherever its tensors are; ``tensor`` is a batch of environments that compute on their
device. Copies, bytes, waits and reads are counted from inside a rollout. On the CPU the GPU is
simulated for that: the collector sees a device cuda:0, and its copies are counted, not timed. Times
are taken without the watch. On the CPU the GPU is then called "cpu:0": the collector casts as it
would, and each cast to it copies memory, but nothing crosses a bus and nothing waits.
"""

import functools

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase, GymEnv

from benchmarks import measure, metrics, simulated_cuda
from benchmarks.interleaved import note, paired

STEPS = 50
ENVIRONMENTS = 16  # of the key tensor
FEATURES = 64
EPISODE = 20  # steps of an episode of the key tensor
SEED = 0
SECONDS = 0.5  # for the rounds of one configuration
MEMORY_ROUNDS = 2

HOST, GPU, NONE = "host", "GPU", "none"
PER_STEP = "in one step, mean over a rollout. On the CPU the GPU is simulated."
METRICS = metrics.declare(f"""
rollout_time [s] Time of a rollout: Wall time of a rollout of {STEPS} steps. On the CPU the GPU is
    the processor under another name.
time_vs_host [1] Time against all on the host: Time of a rollout, divided by that of the same
    environment with everything on the host right before it. On the CPU: what the casts cost before
    anything crosses.
copies_to_gpu [1, exact] Copies to the GPU: Tensors copied from host to GPU {PER_STEP}
copies_to_host [1, exact] Copies to the host: Tensors copied from GPU to host {PER_STEP}
bytes_to_gpu [B, exact] Bytes to the GPU: Bytes copied from host to GPU {PER_STEP}
bytes_to_host [B, exact] Bytes to the host: Bytes copied from GPU to host {PER_STEP}
syncs [1, exact] Device-wide waits: Calls of torch.cuda.synchronize, which waits for all that the
    GPU has to do, {PER_STEP}
stream_waits [1, exact] Waits of tensordict: Waits for an event at the end of TensorDict.to or of a
    constructor, which last until the work queued before is done, {PER_STEP}
blocking_copies [1, exact] Copies that block: Copies between host and GPU that the host waits for,
    with the work queued before them, {PER_STEP}
reads [1, exact] Values read from the GPU: Values that Python asks the GPU for, as .item() and if
    do; each waits for the work queued before, {PER_STEP}
early_reads [1, exact] Early reads: Host tensors whose values are used before anything has waited
    for their copy from the GPU, {PER_STEP}
waits [1, exact] Waits: Times that the host stands still for the GPU: device-wide waits, waits of
    tensordict, copies that block and values read, {PER_STEP}
bytes_crossed [B, exact] Bytes between host and GPU: Bytes copied in either direction {PER_STEP}
copy_time [s] Time of a copy: Wall time of TensorDict.to between host and GPU, until the copy is
    done.
casts [1, exact] Casts: Calls of .to on a TensorDict in one step, of the loop and of the
    environment, mean over a rollout.
batch_on_gpu [B, exact] Batch on the GPU: Bytes of a batch that lie on the GPU, divided by its
    steps.
batch_on_host [B, exact] Batch on the host: Bytes of a batch that lie on the host, divided by its
    steps.
gpu_peak [B] Peak on the GPU: Bytes that the GPU holds at most during a rollout, beyond what it held
    before. On the CPU: in the simulation, without the allocator's rounding.
""")

# placement: (environment made on, policy_device, env_device, storing_device)
PLACEMENTS = {
    "gym-nothing": (NONE, NONE, NONE, NONE),
    "gym-host": (NONE, HOST, HOST, HOST),
    "gym-policy": (NONE, GPU, HOST, HOST),
    "gym-policy-env-unnamed": (HOST, GPU, NONE, HOST),
    "gym-policy-alone": (NONE, GPU, NONE, NONE),
    "gym-policy-batch": (NONE, GPU, HOST, GPU),
    "gym-gpu": (NONE, GPU, GPU, GPU),
    "gym-gpu-batch-host": (NONE, GPU, GPU, HOST),
    "tensor-host": (HOST, HOST, HOST, HOST),
    "tensor-gpu": (GPU, GPU, GPU, GPU),
    "tensor-gpu-unnamed": (GPU, NONE, NONE, NONE),
    "tensor-gpu-batch-host": (GPU, GPU, GPU, HOST),
    "tensor-gpu-batch-host-alone": (GPU, NONE, NONE, HOST),
    "tensor-env": (GPU, HOST, GPU, HOST),
}
CASES = [(name, False) for name in PLACEMENTS]
CASES += [(name, True) for name, places in PLACEMENTS.items() if GPU in places]
WAITS = ("syncs", "stream_waits", "blocking", "reads")
BASELINES = {"gym": "gym-nothing", "tensor": "tensor-host"}


class Drift(EnvBase):
    """Vectors that drift and are pushed; each episode has the same number of steps."""

    def __init__(self, device):
        super().__init__(device=device, batch_size=[ENVIRONMENTS])
        shape = (ENVIRONMENTS, FEATURES)
        self.observation_spec = Composite(
            observation=Unbounded(shape),
            count=Unbounded((ENVIRONMENTS, 1), dtype=torch.int64),
            shape=[ENVIRONMENTS],
        ).to(device)
        self.action_spec = Bounded(-1, 1, shape, device=device)
        self.reward_spec = Unbounded((ENVIRONMENTS, 1), device=device)

    def _reset(self, tensordict):
        """All of them at their start; TorchRL takes those that were asked for."""
        zeros = functools.partial(torch.zeros, device=self.device)
        return TensorDict(
            {
                "observation": zeros(ENVIRONMENTS, FEATURES),
                "count": zeros(ENVIRONMENTS, 1, dtype=torch.int64),
                "done": zeros(ENVIRONMENTS, 1, dtype=torch.bool),
                "terminated": zeros(ENVIRONMENTS, 1, dtype=torch.bool),
            },
            batch_size=self.batch_size,
            device=self.device,
        )

    def _step(self, tensordict):
        observation = 0.9 * tensordict["observation"] + tensordict["action"] + 0.1
        count = tensordict["count"] + 1
        done = count >= EPISODE
        return TensorDict(
            {
                "observation": observation,
                "count": count,
                "reward": -observation.square().mean(-1, keepdim=True),
                "done": done,
                "terminated": done.clone(),
            },
            batch_size=self.batch_size,
            device=self.device,
        )

    def _set_seed(self, seed):
        pass


class Discrete(nn.Module):
    """The action of the larger of two products, one-hot."""

    def __init__(self, device):
        super().__init__()
        generator = torch.Generator().manual_seed(SEED)
        self.weight = nn.Parameter(torch.randn(4, 2, generator=generator).to(device))

    def forward(self, observation):
        return nn.functional.one_hot((observation @ self.weight).argmax(-1), 2)


class Continuous(nn.Module):
    def __init__(self, device):
        super().__init__()
        generator = torch.Generator().manual_seed(SEED)
        weight = torch.randn(FEATURES, FEATURES, generator=generator) / FEATURES
        self.weight = nn.Parameter(weight.to(device))

    def forward(self, observation):
        return torch.tanh(observation @ self.weight)


def make_collector(name, gpu, no_cuda_sync=False):
    """The collector of a placement, where *gpu* is the name of the GPU."""
    real = {HOST: "cpu", GPU: str(gpu), NONE: None}
    home, policy, env, storing = (real[place] for place in PLACEMENTS[name])
    where = policy or home or "cpu"
    if name.startswith("gym"):
        environment = GymEnv("CartPole-v1", device=home)
        environment.set_seed(SEED)
        module = Discrete(where)
    else:
        environment, module = Drift(home), Continuous(where)
    arguments = {"policy_device": policy, "env_device": env, "storing_device": storing}
    return Collector(
        environment,
        TensorDictModule(module, ["observation"], ["action"]),
        frames_per_batch=STEPS * environment.batch_size.numel(),
        total_frames=-1,
        auto_register_policy_transforms=False,
        no_cuda_sync=no_cuda_sync,
        **{key: value for key, value in arguments.items() if value is not None},
    )


def leaves(batch):
    return list(batch.values(include_nested=True, leaves_only=True))


def nbytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def per_step(metric, count):
    """A count of a rollout, per step; bytes are whole."""
    whole = METRICS[metric]["unit"] == "B" or count % STEPS == 0
    return round(count / STEPS) if whole else round(count / STEPS, 4)


@functools.cache
def counted(device, name, no_cuda_sync):
    """The exact metrics of a configuration, samples of its peak, and a batch on the host."""
    gpu = simulated_cuda.FAR if device.type == "cpu" else device
    casts = []
    plain = TensorDict.to

    def to(self, *args, **kwargs):
        casts.append(args)
        return plain(self, *args, **kwargs)

    with torch.no_grad(), simulated_cuda.watch(device) as watch:
        collector = make_collector(name, gpu, no_cuda_sync)
        peaks = [rollout_peak(device, watch, collector) for _ in range(MEMORY_ROUNDS)]
        TensorDict.to = to
        try:
            watch.reset()
            batch = collector.rollout()
            counts = watch.counts.copy()
        finally:
            TensorDict.to = plain
        on_gpu = [leaf for leaf in leaves(batch) if leaf.is_cuda]
        size, size_on_gpu = nbytes(leaves(batch)), nbytes(on_gpu)
        watch.reset()
        batch = TensorDict({key: batch[key].cpu() for key in ("observation", "action")})
        collector.shutdown()
        del collector, on_gpu
    exact = {
        "copies_to_gpu": counts["to_device"],
        "copies_to_host": counts["to_host"],
        "bytes_to_gpu": counts["to_device_bytes"],
        "bytes_to_host": counts["to_host_bytes"],
        "syncs": counts["syncs"],
        "stream_waits": counts["stream_waits"],
        "blocking_copies": counts["blocking"],
        "reads": counts["reads"],
        "early_reads": counts["early"],
        "waits": sum(counts[kind] for kind in WAITS),
        "bytes_crossed": counts["to_device_bytes"] + counts["to_host_bytes"],
        "casts": len(casts),
        "batch_on_gpu": size_on_gpu,
        "batch_on_host": size - size_on_gpu,
    }
    return {metric: per_step(metric, count) for metric, count in exact.items()}, peaks, batch


def rollout_peak(device, watch, collector):
    if device.type == "cuda":
        return measure.peak_memory(device, collector.rollout)
    before = watch.start_peak()
    collector.rollout()
    return watch.peak - before


def title_of(name, no_cuda_sync):
    home, policy, env, storing = PLACEMENTS[name]
    parts = [f"policy {policy}, env {env}, batch {storing}"]
    parts += [f"env made on {home}"] if home not in (NONE, env) else []
    parts += ["no_cuda_sync"] if no_cuda_sync else []
    return f"{name.partition('-')[0]}: {', '.join(parts)}"


def key_of(name, no_cuda_sync):
    return f"{name}-no-sync" if no_cuda_sync else name


@pytest.mark.parametrize(("name", "no_cuda_sync"), CASES, ids=[key_of(*case) for case in CASES])
def bench_rollout(benchmark, device, name, no_cuda_sync):
    exact, peaks, batch = counted(device, name, no_cuda_sync)
    environment = name.partition("-")[0]
    _, _, expected = counted(device, BASELINES[environment], False)
    exactly = {"rtol": 0, "atol": 0} if device.type == "cpu" else {"rtol": 1e-4, "atol": 1e-5}
    if device.type == "cpu" or not exact["early_reads"]:
        torch.testing.assert_close(batch.to_dict(), expected.to_dict(), **exactly)

    gpu = "cpu:0" if device.type == "cpu" else "cuda:0"
    ours = make_collector(name, gpu, no_cuda_sync)
    host = make_collector(BASELINES[environment], gpu)
    with torch.no_grad():
        ratios = paired(benchmark, device, ours.rollout, host.rollout, seconds=SECONDS)
    ours.shutdown()
    host.shutdown()
    home, policy, env, storing = PLACEMENTS[name]
    assert not (no_cuda_sync and (exact["syncs"] or exact["early_reads"]))
    note(
        benchmark,
        key_of(name, no_cuda_sync),
        "rollout_time",
        title=title_of(name, no_cuda_sync),
        parameters={
            "placement": name.partition("-")[2],
            "environment": "CartPole-v1" if environment == "gym" else "tensors on their device",
            "environment_on": home,
            "policy_device": policy,
            "env_device": env,
            "storing_device": storing,
            "no_cuda_sync": no_cuda_sync,
            "steps": STEPS,
            "environments": 1 if environment == "gym" else ENVIRONMENTS,
        },
        exact=exact,
        sampled={"time_vs_host": ratios, "gpu_peak": peaks},
    )


# -- One copy, on a GPU ---------------------------------------------------------------

LEAVES, LEAF_SIZE = 12, 4096  # floats
BLOCKING = {"default": {}, "blocking": {"non_blocking": False}, "async": {"non_blocking": True}}


def make_leaves(device):
    generator = torch.Generator().manual_seed(SEED)
    return TensorDict(
        {f"leaf{n}": torch.randn(LEAF_SIZE, generator=generator) for n in range(LEAVES)},
        batch_size=[],
        device="cpu",
    ).to(device)


@pytest.mark.cuda
@pytest.mark.parametrize("how", BLOCKING)
@pytest.mark.parametrize("direction", ["to-gpu", "to-host"])
def bench_copy(benchmark, device, direction, how):
    near, far = torch.device("cpu"), device
    source, target = (near, far) if direction == "to-gpu" else (far, near)
    leaves_there = make_leaves(source)
    copy = measure.timed(benchmark, device, lambda: leaves_there.to(target, **BLOCKING[how]))
    assert (copy.to(near) == make_leaves(near)).all()
    measure.note(
        benchmark,
        f"copy-{direction}-{how}",
        "copy_time",
        title=f"TensorDict.to, {direction}, {how}",
        parameters={
            "direction": direction,
            "non_blocking": str(BLOCKING[how].get("non_blocking", "not given")),
            "leaves": LEAVES,
            "leaf_bytes": LEAF_SIZE * torch.float32.itemsize,
        },
    )
