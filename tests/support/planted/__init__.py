"""Known symptoms, planted into copies of healthy pipelines.

A function has the name of its symptom. It takes a pipeline, the arguments of ``diagnose`` after
some training steps with a ``batch``, which it may change, and yields what to diagnose, once for
each way to plant the symptom; nothing where the symptom does not concern the pipeline. Where one
argument alone has the symptom, ``planted_in`` is its name.
"""

import copy
import importlib

import torch
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import SerialEnv, TransformedEnv

MODULES = (
    "collectors",
    "exploration",
    "workers",
    "trajectories",
    "replay_buffers",
    "recurrent",
    "values",
    "language",
    "environments",
    "numbers",
    "settings",
)


def plants():
    """By the name of the symptom: its function, and the names of the pipelines, or None for all."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in MODULES]
    return {
        name: (value, getattr(module, "PIPELINES", None))
        for module in modules
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    }


def in_batch(pipeline, batch):
    return pipeline | {"batch": batch, "planted_in": "batch"}


def in_buffer(pipeline, buffer):
    return pipeline | {"replay_buffer": buffer, "planted_in": "replay_buffer"}


def collect_anew(pipeline, policy="the same", **options):
    """The pipeline with a collector of these *options*, which has collected nothing yet."""
    options = {"total_frames": -1, "auto_register_policy_transforms": False} | options
    options.setdefault("frames_per_batch", 24)
    policy = pipeline["policy"] if policy == "the same" else policy
    collector = Collector(pipeline["env"], policy, **options)
    kept = {name: value for name, value in pipeline.items() if name != "batch"}
    return kept | {"collector": collector}


def with_batch(pipeline, number=None):
    """The pipeline with the next batch of its collector, or a list of the next ones."""
    batches = [next(iter(pipeline["collector"])).clone() for _ in range(number or 1)]
    return pipeline | {"batch": batches if number else batches[0]}


def stored(data, size=None, kind=TensorDictReplayBuffer, **options):
    """A replay buffer that holds *data*."""
    size = size or data.shape[0]
    buffer = kind(storage=LazyTensorStorage(size, ndim=options.pop("ndim", 1)), **options)
    buffer.extend(data)
    return buffer


def only(pipeline, *names):
    """The pipeline without other arguments than these."""
    return {name: pipeline[name] for name in names if name in pipeline}


def episodes_of(rows, lengths):
    """A line of rows with episodes of these *lengths*, by ids, ``done`` and ``terminated``."""
    flat = rows.reshape(-1)
    count = sum(lengths)
    flat = torch.cat([flat] * (count // len(flat) + 1))[:count].clone()
    ends = torch.tensor(lengths).cumsum(0) - 1
    for key in ("done", "terminated", "truncated"):
        flag = torch.zeros(count, 1, dtype=torch.bool)
        flag[ends] = key != "truncated"
        flat["next", key] = flag
    flat["collector", "traj_ids"] = torch.arange(len(lengths)).repeat_interleave(
        torch.tensor(lengths)
    )
    return flat


def move_weights(module, by=0.1):
    """Change parameters in place, as some steps of an optimizer do."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            for _ in range(10):
                weight.add_(by * torch.randn(weight.shape, generator=generator))


def copy_of(pipeline):
    """A deep copy; that of a started `SerialEnv` resets into other memory than it reads."""
    twin = copy.deepcopy(pipeline)
    env = twin["env"]
    while isinstance(env, TransformedEnv):
        env = env.base_env
    if isinstance(env, SerialEnv):
        env.shared_tensordicts = env.shared_tensordict_parent.unbind(0)
    return twin
