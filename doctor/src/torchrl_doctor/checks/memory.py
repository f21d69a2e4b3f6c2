"""Checks: memory and storage."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path, PurePath

import torch

from torchrl_doctor.objects import (
    batches_of,
    kinds_of,
    multi_steps,
    next_key,
    one_batch,
    storage_of,
    stored_leaf,
    stored_leaves,
    transforms_of,
)
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import applies, check, clear, undecided


@check("next_observation_of_another_step", "Some next observations belong to another step")
def next_observation_of_another_step(replay_buffer, sample):
    rebuilders = rebuilders_with_nan(replay_buffer)
    if not rebuilders or sample.get(("next", "done"), None) is None:
        return None
    if all(one.step_count_key is not None for one in rebuilders):
        return clear("the step count decides which row is the next step")
    jumps = jumps_in(sample)
    if jumps is None or jumps.float().mean() > 0.5:
        return None
    # Inside a slice that a sampler joined from several pieces the index may jump, too.
    ends = jumps & sample["next", "done"].flatten(1).any(1)[:-1]
    keys = [key for one in rebuilders for key in one.keys]
    filled = sum(int((ends & known(sample, key)[:-1]).sum()) for key in keys)
    if filled:
        return applies(f"{filled} of {int(ends.sum())} ends of slices have a next observation")
    return undecided(f"none of {int(ends.sum())} ends of slices was filled in this sample")


@check("most_next_observations_nan", "Most next observations of a sample are NaN")
def most_next_observations_nan(replay_buffer, sample):
    rebuilders = rebuilders_with_nan(replay_buffer)
    if not rebuilders:
        return None
    key = rebuilders[0].keys[0]
    missing = ~known(sample, key)
    if (ended := sample.get(("next", "terminated"), None)) is not None:
        missing &= ~ended.reshape(len(sample), -1).any(1)  # nothing follows these
    missing = int(missing.sum())
    if missing > len(sample) / 2:
        return applies(f"{missing} of {len(sample)} rows have no next observation")
    return clear(f"{missing} of {len(sample)} rows have no next observation")


@check("off_policy_loss_is_nan", "The loss of DQN or SAC is NaN from the first batch")
def off_policy_loss_is_nan(loss_module, batch=None, sample=None):
    found = None
    for data in (one_batch(batch), sample):
        missing = rows_without_next(data)
        if missing is None:
            continue
        what = f"{int(missing.sum())} of {len(missing)} rows have no next observation"
        if missing.all():
            found = undecided(what)
        elif not missing.any():
            other = gives_nan(loss_module, data)
            found = undecided(f"{what}, and the loss is NaN") if other else found or clear(what)
        elif not gives_nan(loss_module, data):
            found = found or clear(f"{what}, and the loss does not depend on them")
        elif gives_nan(loss_module, data[~missing & finite_now(data)]):
            found = undecided(f"{what}, and the loss is NaN without them as well")
        elif data is sample and any(one.isnan().any() for one in loss_module.parameters()):
            return applies(f"{what}; they make the loss NaN, and its weights are NaN by now")
        elif data is not sample:
            return applies(f"{what}; with them the loss is NaN, without them it is finite")
        else:
            return undecided(f"{what} in a sample and make the loss NaN unless you drop them")
    return found


@check("n_step_next_observation_wrong", "N-step rewards come with the wrong next observation")
def n_step_next_observation_wrong(replay_buffer, collector=None, env=None, policy=None):
    steps = [one.n_steps for one in transforms_in(replay_buffer, "MultiStepTransform")]
    if not steps or max(steps) == 1:
        return None
    before = [one.n_steps for one in multi_steps(None, collector)]
    if before and max(before) > 1:
        twice = f"the collector sums {max(before)} steps, the buffer {max(steps)} of these sums"
        return applies(twice, fix="leave out one of the two")
    places = getattr(env, "batch_size", torch.Size()).numel()
    places *= getattr(collector, "num_workers", None) or 1
    row = replay_buffer.storage.get(0) if len(replay_buffer) else None
    if places > 1 and replay_buffer.storage.ndim == 1 and getattr(row, "ndim", 1) == 0:
        found = f"MultiStepTransform sums {max(steps)} rows of {places} environments in one line"
        return applies(found, fix=storage_of(2, replay_buffer.storage))
    for one in transforms_in(replay_buffer, "NextStateReconstructor", "NextObservationDelta"):
        name = type(one).__name__
        return applies(f"{name} looks one step ahead, MultiStepTransform {max(steps)}")
    keys = {*row.keys(True, True)} if hasattr(row, "keys") else set()
    seen = [key for key in getattr(policy, "in_keys", ()) if key in keys and key != "is_init"]
    lacking = [key for key in [*seen, "observation", "pixels"] if next_key(key) not in keys]
    if keys and (lost := keys.intersection(lacking)):
        what = f"no next {min(lost, key=str)!r} is stored; what rebuilds it looks one step ahead"
        return applies(what) if getattr(collector, "compact_obs", False) else undecided(what)
    return clear(f"{max(steps)} steps ahead, and next observations are stored")


@check("memmap_buffer_fills_memory", "A memory-mapped buffer fills the memory, not the disk")
def memmap_buffer_fills_memory(replay_buffer, collector=None):
    leaves = memory_mapped(replay_buffer)
    if not leaves:
        return None
    files = [(leaf, file_of(leaf)) for leaf in leaves]
    nameless = [leaf for leaf, file in files if file is None and place_of(leaf) in SHARED]
    named = [leaf for leaf, file in files if file is not None and in_memory(file)]
    size = sum(leaf.untyped_storage().nbytes() for leaf in nameless + named)
    of_a_name = "nameless files" if len(nameless) >= len(named) else "files"
    what = f"{size >> 20} MiB of the storage are in {of_a_name} in shared memory"
    if size < 16 << 20:
        return clear(what)
    if hasattr(collector, "procs"):
        return undecided(f"{what}: fine if they are there for the workers of the collector")
    return applies(what)


@check("buffer_outlives_its_files", "The buffer works, but its files are gone")
def buffer_outlives_its_files(replay_buffer):
    leaves = memory_mapped(replay_buffer)
    files = [file_of(leaf) for leaf in leaves if file_of(leaf) is not None]
    gone = [file for file in files if not Path(file).exists()]
    if gone:
        return applies(f"{len(gone)} of {len(files)} files are gone, such as {gone[0]}")
    return clear(f"{len(files)} files are there") if files else None


@check("files_gone_after_a_copy", "The files of a buffer are gone after a copy is deleted")
def files_gone_after_a_copy(replay_buffer):
    from torchrl.data.replay_buffers import storages

    storage = replay_buffer.storage
    folder = getattr(storage, "scratch_dir", None)
    if not folder or not private(storage, "_auto_cleanup", False):
        return None
    if all(one is not storage for one in private(storages, "_MEMMAP_STORAGE_REGISTRY")):
        return applies("the storage is a copy, and deletes the folder that the original uses")
    if not storage.initialized or Path(folder).exists():
        return clear("the storage is no copy, and its folder is there")
    if private(storage, "_cleaned_up"):
        return None
    return undecided("the folder is gone, and this storage has not deleted it: has a copy?")


@check("reading_changes_the_buffer", "Stored rewards change although nothing is written")
def reading_changes_the_buffer(replay_buffer, own_batch=None, collector=None, since=None):
    leaves = stored_leaves(replay_buffer)
    rows = since.number("some rows", "replay_buffer") if since else None
    if rows and (moved := moved_by_arithmetic(*rows)):
        return applies(f"{moved} since the first look, and nothing else in them has changed")
    stored = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    items = [item for one in batches_of(own_batch) for item in one.items(True, True)]
    views = [(k, leaf) for k, leaf in items if leaf.untyped_storage().data_ptr() in stored]
    if not stored:
        return None
    writes = {key: leaf._version for key, leaf in views if not leaf.is_inference()}
    most = max(writes, key=writes.get, default=None)
    # A `TensorStorage` of a reader's own tensordict may have been written before it was one.
    lazy = "Lazy" in type(replay_buffer.storage).__name__
    if lazy and most is not None and writes[most] > min(writes.values()):
        return applies(f"{most} of a view of the buffer was written more often than the rest")
    if views:
        return undecided("the batch is a view of the buffer: has something changed it?")
    written = {None if leaf.is_inference() else leaf._version for leaf in leaves}
    if len(written) == 1 and None not in written:
        return clear("each entry of the storage was written equally often")
    reward = stored_leaf(replay_buffer, ("next", "reward"))
    others = {
        leaf._version
        for leaf in leaves
        if reward is not None and leaf.data_ptr() != reward.data_ptr()
    }
    if len(others) == 1 and None not in written:
        more = reward._version - others.pop()
        said = f"the stored reward was written {more} times more than other entries"
        if more > 0 and lazy and collector is not None and is_centered(reward):
            return applies(f"{said}, and has a mean of zero")
        if more > 0:
            return undecided(f"{said}: to relabel it, or by arithmetic on buffer[:]?")
    return undecided(
        "some entries of the storage were written more often than others: by extend()?"
    )


def moved_by_arithmetic(before, after):
    """What was scaled or shifted in rows that are otherwise as they were; None if nothing was.

    Rewards that somebody has computed anew are no such function of the old ones.
    """
    moved = {}
    for place in before.keys() & after.keys():
        ours, theirs = before[place], after[place]
        changed = [key for key in ours if theirs.get(key) != ours[key]]
        if len(changed) == 1 and len(ours) > 1:
            moved.setdefault(changed[0], []).append((ours[changed[0]], theirs[changed[0]]))
    for key, pairs in moved.items():
        old, new = torch.tensor(pairs, dtype=torch.float64).unbind(1)
        columns = zip(old.T, new.T, strict=True)
        if len(pairs) >= FEWEST_MOVED and all(is_linear(*both) for both in columns):
            said = f"{key} of {len(pairs)} stored rows was scaled or shifted"
            return f"{said}, such as {float(old[0, 0]):.3g} to {float(new[0, 0]):.3g},"
    return None


def is_linear(old, new):
    """Whether one line goes through all points."""
    low, high = old.argmin(), old.argmax()
    width = old[high] - old[low]
    slope = (new[high] - new[low]) / width if width else 1.0
    return torch.allclose(new, new[low] + slope * (old - old[low]), 1e-3, 1e-6)


FEWEST_MOVED = 8


def is_centered(values):
    """Whether their mean is zero up to rounding, which no values have that were only collected."""
    values = values.detach().double()
    return values.numel() > 1 and bool(values.mean().abs() <= 1e-6 * values.std())


@check("delta_saves_no_memory", "NextObservationDelta saves no memory on images")
def delta_saves_no_memory(env):
    deltas = [one for one in transforms_of(env) if type(one).__name__ == "NextObservationDelta"]
    if not deltas:
        return None
    leaves = [leaf for _, leaf in env.observation_spec.items(True, True) if leaf.dtype]
    total = sum(leaf.shape.numel() * leaf.dtype.itemsize for leaf in leaves)
    of_bytes = sum(leaf.shape.numel() for leaf in leaves if leaf.dtype is torch.uint8)
    what = f"{of_bytes} of {total} bytes of an observation are of type uint8"
    return applies(what) if of_bytes > total / 2 else clear(what)


@check("restored_observations_infinite", "Some next observations of a sample are infinite")
def restored_observations_infinite(replay_buffer, sample):
    for one in transforms_in(replay_buffer, "NextObservationDelta"):
        pairs = [(sample.get(key, None), sample.get(next_key(key), None)) for key in one.in_keys]
        bad = [(~now.isinf() & then.isinf()).sum() for now, then in pairs if then is not None]
        if sum(bad):
            return applies(f"{int(sum(bad))} numbers became infinite as {one.delta_dtype}")
        if sample.numel() < len(replay_buffer):
            return undecided(f"{sample.numel()} of {len(replay_buffer)} rows are finite")
        return clear(f"no number became infinite as {one.delta_dtype}")


@check("next_image_is_black", "Some next images of a sample are all black")
def next_image_is_black(replay_buffer, sample):
    for one in transforms_in(replay_buffer, "NextStateReconstructor"):
        jumps = jumps_in(sample)
        if jumps is None or one.fill_value != one.fill_value:
            continue
        key = next_key(one.keys[0])
        filled = sample[key].new_full((), one.fill_value)
        plain = (sample[key] == filled).reshape(len(sample), -1).all(1)[:-1] & jumps
        if (ended := sample.get(("next", "terminated"), None)) is not None:
            jumps = jumps & ~ended.reshape(len(sample), -1).any(1)[:-1]  # no loss looks beyond
        plain &= jumps
        if plain.any():
            return applies(f"{int(plain.sum())} rows of {key} are {filled.item()} everywhere")
        if not jumps.any():
            return undecided("no slice of this sample ends inside an episode")
        return clear(f"no row of {key} is {filled.item()} everywhere")
    return None


@check("sampling_images_raises_type_error", "Sampling images raises TypeError: non-floating dtype")
def sampling_images_raises_type_error(replay_buffer=None, error=None):
    if isinstance(error, TypeError) and "root key" in str(error):
        return applies(str(error)) if "has non-floating dtype" in str(error) else None
    for one in transforms_in(replay_buffer, "NextStateReconstructor"):
        first = next(iter(private(replay_buffer, "_transform")), None)
        if one.fill_value == one.fill_value or one is not first:
            continue  # another number stands for NaN, or another transform may turn to floats
        leaves = [stored_leaf(replay_buffer, key) for key in one.keys]
        dtypes = [leaf.dtype for leaf in leaves if leaf is not None]
        bytes_only = [str(dtype) for dtype in dtypes if not dtype.is_floating_point]
        if not dtypes:
            return None
        if bytes_only:
            return applies(f"NextStateReconstructor needs NaN in observations of {bytes_only[0]}")
        return clear(f"observations of {dtypes[0]} have NaN")
    return None


@check("sampling_raises_nonetype_floating", 'Sampling raises "NoneType has no is_floating_point"')
def sampling_raises_nonetype_floating(replay_buffer=None, error=None):
    said = "'NoneType' object has no attribute 'is_floating_point'"
    if isinstance(error, AttributeError) and said in str(error):
        return applies(f"{said}: a transform reads a key that is not there")
    stored = stored_leaves(replay_buffer)
    for one in transforms_in(replay_buffer, "NextStateReconstructor") if stored else ():
        absent = [key for key in one.keys if stored_leaf(replay_buffer, key) is None]
        if absent and one is next(iter(private(replay_buffer, "_transform")), None):
            return applies(f"NextStateReconstructor rebuilds {absent[0]!r}, which is not stored")
        return None if absent else clear("what is rebuilt is stored")
    return None


@check("first_extend_takes_all_memory", "The first extend of a buffer takes all memory")
def first_extend_takes_all_memory(replay_buffer=None, batch=None, error=None):
    if isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate" in str(error):
        return applies(str(error).partition("DefaultCPUAllocator: ")[2].partition(".")[0])
    storage = getattr(replay_buffer, "storage", None)
    rows = one_batch(batch)
    kinds = kinds_of(storage)
    if rows is None or "LazyTensorStorage" not in kinds or storage.initialized:
        return None
    if getattr(storage, "scratch_dir", None) is not None:
        return clear("it takes its space on a disk")
    if str(storage.device) != "cpu":
        return None
    needed = rows.bytes() // rows.numel() * storage.max_size
    limit = memory_of_machine()
    if limit is None:
        return undecided(f"it takes {needed / 2**30:.1f} GiB; compare with your memory")
    what = f"it takes {needed / 2**30:.1f} GiB of {limit / 2**30:.1f}"
    return applies(what) if needed > limit else clear(what)


@check("memmap_storage_refuses_gpu", "A memory-mapped buffer refuses the GPU")
def memmap_storage_refuses_gpu(error):
    if isinstance(error, ValueError) and "Memory map device other than CPU" in str(error):
        return applies(str(error).partition(". ")[0])
    return None


@check("one_kept_step_keeps_the_batch", "Memory grows although only one step per batch is kept")
def one_kept_step_keeps_the_batch(batch, replay_buffer=None):
    if not isinstance(batch, list):
        return None
    stored = {leaf.untyped_storage().data_ptr() for leaf in stored_leaves(replay_buffer)}
    leaves = [leaf for one in batch for leaf in one.values(True, True)]
    leaves = [leaf for leaf in leaves if leaf.untyped_storage().data_ptr() not in stored]
    blocks = {leaf.untyped_storage().data_ptr(): leaf.untyped_storage() for leaf in leaves}
    shown = sum(leaf.nbytes for leaf in leaves)
    alive = sum(block.nbytes() for block in blocks.values())
    what = f"{len(batch)} batches show {shown} bytes and keep {alive} alive"
    return applies(what) if alive > 4 * shown else clear(what)


@check("updates_differ_after_loading", "Updates differ after a checkpoint is loaded")
def updates_differ_after_loading(optimizer):
    several = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    groups = [(one.state, group) for one in several for group in one.param_groups]
    fused = [(state, group["params"]) for state, group in groups if group.get("fused")]
    pairs = [
        (weight, name, value)
        for state, weights in fused
        for weight in weights
        for name, value in state.get(weight, {}).items()
        if isinstance(value, torch.Tensor) and value.shape == weight.shape
    ]
    other = [pair for pair in pairs if order_in_memory(pair[0]) != order_in_memory(pair[2])]
    if not other:
        return clear(f"{len(pairs)} tensors are ordered as their weights are") if pairs else None
    weight, name, value = other[0]
    said = f"{len(other)} of {len(pairs)} tensors, such as {name} with strides {value.stride()}"
    said += f" for a weight with {weight.stride()}"
    return applies(said) if weight.device.type == "cpu" else undecided(said)


def order_in_memory(tensor):
    """Its strides, less those that lead nowhere."""
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    return [stride for stride, size in sizes if size > 1]


@check("buffer_file_already_exists", 'Extending a buffer raises "The file already exists"')
def buffer_file_already_exists(replay_buffer=None, error=None):
    if isinstance(error, RuntimeError) and re.search(r"\.memmap already exists", str(error)):
        return applies(str(error))
    storage = getattr(replay_buffer, "storage", None)
    folder = getattr(storage, "scratch_dir", None)
    if not folder or getattr(storage, "existsok", True):
        return None
    files = list(Path(folder).rglob("*.memmap"))
    if files and not storage.initialized:
        return applies(f"the folder of the empty buffer holds {len(files)} files already")
    return clear("the files are those of this buffer" if files else "the folder is empty")


def transforms_in(replay_buffer, *kinds):
    """The transforms of the buffer that are of one of these classes, by name."""
    found = transforms_of(replay_buffer) if replay_buffer is not None else []
    return [one for one in found if kinds_of(one) & {*kinds}]


def rebuilders_with_nan(replay_buffer):
    """The reconstructors of the buffer that write NaN, and no number, where nothing is known."""
    rebuilders = transforms_in(replay_buffer, "NextStateReconstructor")
    return [one for one in rebuilders if one.fill_value != one.fill_value]


def known(data, key):
    """Which rows have a next observation that is not NaN."""
    return ~data[next_key(key)].isnan().reshape(len(data), -1).any(1)


def jumps_in(sample):
    """Where the row below was not stored right after; None if the sample does not say."""
    index = sample.get("index")
    if index is None or sample.batch_dims != 1 or len(sample) < 2:
        return None
    steps = index.reshape(len(sample), -1).diff(dim=0)
    return (steps[:, 0] != 1) | (steps[:, 1:] != 0).any(1)


def rows_without_next(data):
    """Which rows have NaN under "next" where the root has none; None where it cannot be asked."""
    if data is None or data.batch_dims != 1 or data.get("next", None) is None:
        return None
    both = [
        (data.get(key, None), value)
        for key, value in data["next"].items(include_nested=True, leaves_only=True)
        if value.is_floating_point()
    ]
    both = [(now, then) for now, then in both if now is not None and now.shape == then.shape]
    if not both:
        return None
    nan = [(then.isnan() & ~now.isnan()).reshape(len(data), -1).any(1) for now, then in both]
    return torch.stack(nan).any(0)


def finite_now(data):
    """Which rows have no NaN at the root, where a policy whose weights are NaN writes some."""
    leaves = [one for key, one in data.items(True, True) if key[0] != "next"]
    leaves = [one for one in leaves if isinstance(one, torch.Tensor) and one.is_floating_point()]
    return ~torch.stack([one.isnan().reshape(len(data), -1).any(1) for one in leaves]).any(0)


def gives_nan(loss_module, data):
    """Whether the loss of the data is NaN, or one of several; weights that are NaN are zero."""
    if not len(data):
        return True
    twin = copy.deepcopy(loss_module)
    vars(twin).pop("_cache", None)  # of SAC: weights that a copy holds a second time
    for weight in (*twin.parameters(), *twin.buffers()):
        weight.data.nan_to_num_()
    losses = twin(data.clone())
    return any(value.isnan().any() for key, value in losses.items() if "loss" in str(key))


def memory_mapped(replay_buffer):
    """The tensors of the storage that are memory-mapped."""
    return [leaf for leaf in stored_leaves(replay_buffer) if hasattr(type(leaf), "filename")]


def file_of(leaf):
    try:
        return leaf.filename
    except RuntimeError:  # it has none
        return None


SHARED = ("/dev/shm", None)  # None: the system does not say


def place_of(leaf):
    """The folder of a nameless file: where shared memory has no room, one for temporary files."""
    maps, address = Path("/proc/self/maps"), leaf.data_ptr()
    for line in maps.read_text().splitlines() if maps.exists() else ():
        span, *_, path = line.split(maxsplit=5)
        begin, end = (int(part, 16) for part in span.split("-"))
        if begin <= address < end:
            return str(PurePath(path).parent)
    return None


def in_memory(file):
    """Whether the file system of *file* has no disk; False where the system does not say."""
    mounts = Path("/proc/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else ()
    kinds = {line.split()[1]: line.split()[2] for line in lines}
    places = [str(one) for one in Path(file).resolve().parents]
    return next((kinds[one] for one in places if one in kinds), None) in ("tmpfs", "ramfs")


def memory_of_machine():
    """The bytes that there are, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows and macOS lack one of the names
        return None
