"""Copies that the doctor may step, sample and change."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import random

import numpy
import torch

from torchrl_doctor.objects import (
    LIKE_THOSE_OF_WORKERS,
    below_transforms,
    in_words,
    is_lazy,
    shallow,
)
from torchrl_doctor.private import private


class CannotCopyError(Exception):
    """Why the doctor collects nothing from these objects; the message is for the reader."""


@contextlib.contextmanager
def random_state_kept():
    """Whatever is drawn inside, the generators of the reader go on as if nothing had been."""
    of_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    of_python, of_numpy, of_torch = (
        random.getstate(),
        numpy.random.get_state(),
        torch.get_rng_state(),
    )
    try:
        yield
    finally:
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        if of_cuda:
            torch.cuda.set_rng_state_all(of_cuda)


@contextlib.contextmanager
def attributes_kept(*things):
    """Undo what reading a lazy property of a module has set in it, and a changed mode."""
    things = [one for one in things if isinstance(one, torch.nn.Module) and "_modules" in vars(one)]
    names = ("_modules", "_parameters", "_buffers")
    modules = [module for one in things for module in one.modules()]
    parts = [part for m in modules for part in (vars(m), *(vars(m)[name] for name in names))]
    kept = [(part, dict(part)) for part in parts]
    try:
        yield
    finally:
        for part, before in kept:
            if part.keys() != before.keys() or any(part[k] is not before[k] for k in before):
                part.clear()
                part.update(before)


def lending(storage):
    """A twin of a storage that gives out copies: a `LazyStackStorage` gives out its own rows."""
    twin = shallow(storage)

    def get(index):
        rows = type(storage).get(twin, index)
        if isinstance(index, slice):  # a sampler reads keys of all rows
            return rows
        if isinstance(rows, list):
            return [one.clone() if hasattr(one, "clone") else one for one in rows]
        return rows.clone() if hasattr(rows, "clone") else rows

    twin.get = get
    return twin


def copied(thing, memo=None):
    """A deep copy; torch has none of a buffer without a shape, such as that of `CatFrames`."""
    from torchrl.envs import EnvBase

    memo = {} if memo is None else memo
    roots = thing if isinstance(thing, tuple) else (thing, *vars(thing).values())
    for root in roots:
        if isinstance(root, torch.nn.Module) and "_modules" in vars(root):
            for buffer in root.buffers():
                if isinstance(buffer, torch.nn.UninitializedBuffer):
                    anew = torch.nn.UninitializedBuffer(device=buffer.device, dtype=buffer.dtype)
                    memo[id(buffer)] = anew
        memo |= locks_of(root)
    try:
        twin = copy.deepcopy(thing, memo)
    except Exception as error:
        raise CannotCopyError(f"copying it raises {in_words(error)}") from error
    for one in twin if isinstance(thing, tuple) else (twin,):
        _rejoin(one)
    if not isinstance(thing, (tuple, EnvBase)):  # a `SerialEnv` that never started does not answer
        _rejoin(getattr(twin, "env", None))
    return twin


def locks_of(env):
    """The locks that an `EnvCreator` hands to its environments, by id: they have no copy."""
    from multiprocessing.synchronize import Lock, RLock

    makers = getattr(below_transforms(env), "create_env_fn", None)
    values = [private(one, "_mp_values", ()) for one in makers] if isinstance(makers, list) else []
    return {id(one): one for each in values for _, one in each if isinstance(one, (Lock, RLock))}


def legal_action(env, step):
    """The step with random actions, which ``action_mask`` allows where there is such a mask.

    A group of agents has its mask beside its action.
    """
    for key in env.action_keys:
        group = key[:-1] if isinstance(key, tuple) else ()
        mask = step.get((*group, "action_mask"), None)
        if mask is None and len(env.action_keys) == 1:
            mask = step.get("action_mask", None)
        spec = env.full_action_spec[key].clone()
        if mask is not None:
            spec.update_mask(mask.reshape(spec.shape) if type(spec).__name__ == "OneHot" else mask)
        action = spec.rand()
        step = step.set(key, action.long() if action.dtype is torch.bool else action)
    return step


def steppable(env):
    """A copy that can be stepped in this process; None of one whose environments are elsewhere."""
    inner = below_transforms(env)
    closed = hasattr(inner, "create_env_fn") and inner.is_closed  # a copy would start it
    return None if type(inner).__name__ == "ParallelEnv" or closed else copied(env)


def _rejoin(env):
    """A deep copy of a started `SerialEnv` resets into other memory than it reads: join the two."""
    from torchrl.envs import SerialEnv

    env = below_transforms(env)
    if isinstance(env, SerialEnv) and "shared_tensordict_parent" in vars(env):
        env.shared_tensordicts = env.shared_tensordict_parent.unbind(0)


def draw(replay_buffer, size=None):
    """A batch from a twin of the buffer: its sampler, transforms and queues stay as they are.

    The twin reads the storage of the original, which may be larger than memory.
    """
    twin, twin._storage = shallow(replay_buffer), lending(replay_buffer._storage)
    if hasattr(twin._storage, "_storages"):  # of an ensemble, which hands its generator on
        twin._storage._storages = [lending(one) for one in twin._storage._storages]
    for name in ("_sampler", "_transform"):
        setattr(twin, name, copied(getattr(replay_buffer, name)))
    generator = private(replay_buffer, "_rng", None)
    if generator is not None:
        twin._rng = twin._storage._rng = twin._sampler._rng = generator.clone_state()
    twin._prefetch = False
    twin._warned_batch_size_conflict = True
    return twin.sample(size or replay_buffer._batch_size or _drawable(replay_buffer))


def _drawable(replay_buffer):
    """A batch size for a buffer without one, which its sampler can split into slices."""
    sampler = replay_buffer._sampler
    if length := getattr(sampler, "slice_len", None):
        return length * max(1, 64 // length)
    if number := getattr(sampler, "num_slices", None):
        return number * 2  # as short as slices are, for trajectories that are short
    return min(len(replay_buffer), 64)


# What a twin of a collector does without: where its batches go, what follows them, and buffers.
NOT_COPIED = (
    "replay_buffer",
    "interruptor",
    "policy_weights",
    "_final_rollout",
    "_iterator",
    "_thread",
    "_traj_assembly",
    "_pre_collect_hook",
    "_post_collect_hook",
    "_weight_sync_schemes",
    "_weight_updater",
)


MOST_ENVIRONMENTS = 4096


MOST_WORKERS = 16


FEWEST_STEPS = 8


LARGEST_POLICY = 2**31  # bytes


def twin_of_collector(collector, frames):
    """A copy that collects about *frames* frames, and nothing where the original puts its own."""
    from torchrl.collectors import Collector

    if not isinstance(collector, Collector):
        raise CannotCopyError(
            f"a {type(collector).__name__} collects in other processes or threads"
        )
    if "env" not in vars(collector):
        raise CannotCopyError("it has been shut down")
    _refuse_a_crowd(collector.env, getattr(collector, "policy", None))
    if reached := reached_by(getattr(collector, "postproc", None)):
        raise CannotCopyError(f"its postproc is not called, as it may change {reached!r}")
    memo = {}
    for name in NOT_COPIED:
        if vars(collector).get(name) is not None:
            memo[id(vars(collector)[name])] = None
    if collector.compiled_policy or collector.cudagraphed_policy:
        memo[id(collector._wrapped_policy_maybe_compiled)] = None
    starts_anew = _without_processes(collector.env, memo)
    twin = copied(collector, memo)
    twin.compiled_policy = twin.cudagraphed_policy = False
    twin._use_buffers = False
    twin.init_random_frames = 0
    number = max(twin.env.batch_size.numel(), 1)
    twin.frames_per_batch = min(twin.frames_per_batch, max(frames // number, FEWEST_STEPS))
    # Enough for one batch, also where a batch is a number of whole trajectories.
    twin.total_frames = twin._frames + 50 * number * twin.frames_per_batch
    if starts_anew:
        twin.reset()
    return twin


HARMLESS = (type(None), bool, int, float, str, tuple, torch.dtype, torch.device, type(torch))
OF_OTHERS = ("torch", "tensordict", "builtins", "functools")


def reached_by(function, seen=()):
    """The name of what a call of *function* may change, as a copy of a function shares it.

    None where it reaches modules, classes, constants and such functions alone.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):  # of an object there is a copy
        function = getattr(type(function), "forward", type(function).__call__)
    if not inspect.isfunction(function) or function.__module__.startswith(OF_OTHERS):
        return None
    codes = [function.__code__]
    for code in codes:
        codes += [one for one in code.co_consts if inspect.iscode(one)]
    names = {name for code in codes for name in code.co_names}
    met = [(name, one) for name, one in function.__globals__.items() if name in names]
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    met += [(name, cell.cell_contents) for name, cell in cells]
    met += [("a default", one) for one in function.__defaults__ or ()]
    for name, one in met:
        if inspect.isfunction(one) and one not in seen:
            name = reached_by(one, (*seen, function, one))
        elif isinstance(one, HARMLESS) or inspect.isroutine(one) or inspect.isclass(one):
            name = None
        if name:
            return name
    return None


def twin_of_loop(env, policy, frames):
    """A collector with copies of *env* and *policy*."""
    from torchrl.collectors import Collector

    _refuse_a_crowd(env, policy)
    memo = {}
    _without_processes(env, memo)
    env, policy = copied((env, policy), memo)
    number = max(env.batch_size.numel(), 1)
    options = {"frames_per_batch": number * max(frames // number, FEWEST_STEPS), "total_frames": -1}
    try:
        return Collector(env, policy, **options, auto_register_policy_transforms=False)
    except TypeError as error:
        if "auto_register_policy_transforms" not in str(error):
            raise
        return Collector(env, policy, **options)  # before TorchRL 0.13


def _refuse_a_crowd(env, policy):
    if env.batch_size.numel() > MOST_ENVIRONMENTS:
        raise CannotCopyError(f"it steps {env.batch_size.numel()} environments at once")
    if isinstance(policy, torch.nn.Module):
        size = sum(p.numel() * p.element_size() for p in policy.parameters() if not is_lazy(p))
        if size > LARGEST_POLICY:
            raise CannotCopyError(f"its policy has {size} bytes of parameters")


def _without_processes(env, memo):
    """Let a copy of *env* step in this process the environments that *env* has in others.

    Whether the copy has to be reset: its environments are new, as they are where *env* was closed,
    which a collector does at the end of its frames. An `EnvCreator` is copied: its environments
    would update statistics that workers read.
    """
    from torchrl.envs import ParallelEnv, SerialEnv

    env = below_transforms(env)
    if not isinstance(env, ParallelEnv):
        return isinstance(env, SerialEnv) and env.is_closed
    if env.num_workers > MOST_WORKERS:
        raise CannotCopyError(f"its {env.num_workers} environments are in other processes")
    makers = makers_of(env)
    memo[id(env)] = SerialEnv(env.num_workers, makers, create_env_kwargs=env.create_env_kwargs)
    return True


def makers_of(env):
    """What makes the environments of a batched one; an `EnvCreator` is copied."""
    from torchrl.envs import EnvCreator

    locks = locks_of(env)
    return [
        copy.deepcopy(maker, locks) if isinstance(maker, EnvCreator) else maker
        for maker in env.create_env_fn
    ]


def env_of_workers(collector):
    """An environment as the first worker of a multi-process collector has one, made here.

    Where the collector was given environments, the first of them; None where it tells of none.
    """
    from torchrl.envs import EnvBase

    makers = getattr(collector, "create_env_fn", None)
    if not isinstance(makers, (list, tuple)) or not makers:
        return None
    if isinstance(makers[0], EnvBase):
        return makers[0]
    options = getattr(collector, "create_env_kwargs", None)
    made = makers_of(collector)[0](**(options[0] if isinstance(options, (list, tuple)) else {}))
    MADE_ANEW.append(made)
    return made


MADE_ANEW = []  # environments that are closed when the examination ends


def make_one_like_those_of_workers(env):
    """Of a `ParallelEnv`, so that checks can read what its processes hold."""
    inner = below_transforms(env)
    if type(inner).__name__ == "ParallelEnv":
        one = makers_of(inner)[0](**inner.create_env_kwargs[0])
        LIKE_THOSE_OF_WORKERS[inner] = one
        one.close()


def collect(given, frames):
    """A batch from copies of the reader's collector, or of environment and policy."""
    from torchrl.modules import set_recurrent_mode

    if "collector" in given:
        twin = twin_of_collector(given["collector"], frames)
    else:
        twin = twin_of_loop(given["env"], given["policy"], frames)
    batches = iter(twin)
    try:
        with set_recurrent_mode(False):  # wherever the reader calls the doctor
            batch = next(batches, None)
    finally:
        batches.close()
        twin.shutdown(raise_on_error=False)
    if batch is None:
        raise CannotCopyError("no trajectory has ended yet")
    return batch
