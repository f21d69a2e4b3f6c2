"""What can be read of the reader's objects, for checks of more than one subsystem."""

from __future__ import annotations

import copy
import dis
import math
import traceback

import torch

from torchrl_doctor.clock import uninterrupted
from torchrl_doctor.private import private


def has_no_policy(collector):
    """Whether a collector acts with a `RandomPolicy`, as it does without a policy."""
    policy = getattr(collector, "policy", None)
    if policy is None and is_multi_process(collector):  # each worker makes it
        return not any(getattr(collector, "policy_factory", None) or [])
    return type(policy).__name__ == "RandomPolicy"


FEWEST_SAMPLED = 10  # that many by chance all on the most likely action: about one in 20000


def exploration_modules(policy):
    """The modules of *policy* that change an action on their own schedule."""
    return [m for m in modules_of(policy) if noise_of(m) and hasattr(m, "annealing_num_steps")]


def modules_of(policy):
    return list(policy.modules()) if isinstance(policy, torch.nn.Module) else []


def recurrent_modules(part):
    """The LSTMs and GRUs of a policy, a loss or an estimator; each once."""
    found = {}
    for holder in (part, *vars(part).values()) if hasattr(part, "__dict__") else ():
        if isinstance(holder, torch.nn.Module):
            found |= {id(m): m for m in holder.modules() if hasattr(m, "recurrent_mode")}
    return [m for m in found.values() if hasattr(m, "in_keys")]


def noise_of(module):
    """Start, present value and end of the noise of an exploration module, or None."""
    for name in ("eps", "sigma"):
        values = [getattr(module, f"{name}{part}", None) for part in ("_init", "", "_end")]
        if all(value is not None for value in values):
            return [float(value) for value in values]
    return None


def spec_of_action(module):
    """The spec of the actions that an exploration module changes; None without one."""
    spec, key = getattr(module, "spec", None), getattr(module, "action_key", None)
    return spec.get(key, None) if key is not None and hasattr(spec, "get") else None


def bounds_of_actions(module, key):
    """The least and the largest action that a module writes; None where nothing bounds it."""
    name = getattr(getattr(module, "distribution_class", None), "__name__", "")
    if "Tanh" in name or "Truncated" in name:
        given = module.distribution_kwargs or {}
        return given.get("low", given.get("min", -1.0)), given.get("high", given.get("max", 1.0))
    if type(module).__name__ == "TanhModule":
        name = key if isinstance(key, str) else "_".join(key)
        found = [getattr(module, f"{name}_{side}", None) for side in ("low", "high")]
        return None if None in found else found
    return None


def rolled_out_by_hand(batch):
    """Whether ``env.rollout`` made it: the batches of a collector have its data in them."""
    return not isinstance(batch, (list, tuple)) and batch.get("collector", None) is None


def samples(policy):
    """Whether the policy ends in a distribution."""
    return any(hasattr(m, "default_interaction_type") for m in modules_of(policy))


def act(policy, batch, exploration, training=False):
    """What a copy of *policy* writes for the rows of *batch*."""
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    with set_exploration_type(ExplorationType[exploration]):
        return copy.deepcopy(policy).train(training)(batch.select(*policy.in_keys))


def different(some, others, shape):
    """Per row of a batch of that *shape*, whether two tensors differ."""
    return (~torch.isclose(some.double(), others.double())).reshape(*shape, -1).any(-1)


def other_than_greedy(policy, batch, action):
    """Which rows hold another action than the policy takes without exploration.

    None where some do and nothing else that the policy writes is as in the batch.
    """
    again = act(policy, batch, "DETERMINISTIC")
    other = different(again[action], batch[action], batch.shape)
    both = {*batch.keys(True)} & {*again.keys(True)}  # noise that is off writes nothing
    outputs = [k for k in policy.out_keys if k != action and k in both]
    pairs = [(k, again[k].double(), batch[k].double()) for k in outputs]
    same = [k for k, one, other_one in pairs if torch.allclose(one, other_one, atol=1e-5)]
    return None if other.any() and not same else other


def told_by_workers(collector, question):
    """What the workers of a collector answer to *question*, or a sentence why they are not asked.

    Between two batches those of a `MultiSyncCollector` wait. Others would lose a batch.
    """
    if not is_multi_process(collector, "MultiSyncCollector"):
        return None, f"the workers of a {type(collector).__name__} cannot be asked as they collect"
    if getattr(collector, "closed", False) or not all(p.is_alive() for p in collector.procs):
        return None, "a worker of the collector has ended"
    if private(collector, "_running_free", False) or not hasattr(collector, "get_distant_attr"):
        return None, "the workers of the collector take no questions"
    with uninterrupted():
        return question(collector), None


def repeats(policy, rows):
    """Whether *policy* computes again the floats that *rows* hold of it; None if they do not.

    What it draws is left out: two calls tell. Of an action that was drawn, the batch may hold the
    log-probability, which is computed of that very action.
    """
    from tensordict.nn import ProbabilisticTensorDictSequential
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    keys = [key for key in getattr(policy, "out_keys", []) if rows.get(key) is not None]
    keys = [key for key in keys if rows[key].is_floating_point()]
    if not keys:
        return None
    twin = copy.deepcopy(policy)
    with set_exploration_type(ExplorationType.RANDOM):
        one, other = twin(rows.clone()), twin(rows.clone())
    fixed = [key for key in keys if torch.equal(one[key], other[key])]
    same = [torch.allclose(one[key], rows[key], atol=1e-5) for key in fixed]
    if isinstance(twin, ProbabilisticTensorDictSequential):
        drawn = [key for key in keys if key not in fixed and key in twin.log_prob_keys]
        again = twin.log_prob(rows.clone()) if drawn else None
        if isinstance(again, torch.Tensor) and len(drawn) == 1:
            stored = rows[drawn[0]].reshape(again.shape)
            same.append(torch.allclose(again, stored, atol=1e-4))
    return all(same) if same else None


DROPOUT = torch.nn.modules.dropout._DropoutNd


NOISY_IN_TRAINING = (DROPOUT, torch.nn.modules.batchnorm._BatchNorm)


def noisy_in_training(policy):
    """The layers of a policy that compute something else in training mode."""
    layers = [m for m in modules_of(policy) if isinstance(m, NOISY_IN_TRAINING)]
    return [m for m in layers if getattr(m, "p", 1) > 0]


def batches_of(batch):
    """A list of batches, whether one, several or none were given."""
    return list(batch) if isinstance(batch, (list, tuple)) else [] if batch is None else [batch]


def leaves_of(rows):
    """The tensors of a batch, of each of its rows where answers of several lengths are stacked."""
    return [leaf for one in getattr(rows, "tensordicts", [rows]) for leaf in one.values(True, True)]


def begins(rows):
    """Whether a batch (..., time) begins with the first reset of each of its environments."""
    ids = rows.get(("collector", "traj_ids"), None)
    if ids is not None:  # the first batch numbers the environments
        return int(ids[..., 0].max()) < ids[..., 0].numel()
    started, steps = rows.get("is_init", None), rows.get("step_count", None)
    if started is None and steps is not None:
        started = steps == 0
    return started is not None and bool(started.reshape(*rows.shape, -1)[..., 0, :].all())


def both_sides(rows):
    """The floats that a step and its "next" share, side by side, from either; None without any."""
    later, width = rows.get("next"), (*rows.batch_size, -1)
    if later is None or later.get("done") is None:
        return None, None
    leaves = [key for key in later.keys(True, True) if rows.get(key) is not None]
    keys = [key for key in leaves if later[key].is_floating_point()]
    if not keys:
        return None, None
    return [torch.cat([side[key].reshape(width) for key in keys], -1) for side in (rows, later)]


def items_of(rows):
    """Keys and tensors of a batch, without what rows have in several lengths."""
    stacked = getattr(rows, "tensordicts", [])
    for key in rows.keys(True, True):
        if len({one[key].shape for one in stacked}) < 2:
            yield key, rows[key]


def time_last(rows):
    """A batch with the dimension last along which most rows follow each other."""
    now, later = both_sides(rows) if rows.ndim > 1 else (None, None)
    if now is None or "time" in rows.names:
        return rows
    follow = []
    for dim in range(rows.ndim):
        size = rows.shape[dim] - 1
        pairs = now.narrow(dim, 1, size) == later.narrow(dim, 0, size)
        follow.append(float(pairs.all(-1).double().mean()) if size else 0.0)
    best = max(reversed(range(rows.ndim)), key=follow.__getitem__)
    return rows.transpose(best, rows.ndim - 1)


def done_of(rows):
    """Where an episode ends, in the shape of the batch; nowhere in rows without ``done``."""
    done = get_next(rows, "done")
    if done is None:
        return torch.zeros(rows.batch_size, dtype=torch.bool, device=rows.device)
    return done.reshape(*rows.batch_size, -1).any(-1)


def steps_after_an_end(rows):
    """How many ends are followed by another, from where they left and from elsewhere.

    None without ends.
    """
    rows = time_last(rows)
    now, later = both_sides(rows)
    if now is None or not done_of(rows)[..., :-1].any():
        return None
    done, moved = done_of(rows), (now != later).any(-1)
    goes_on = (now[..., 1:, :] == later[..., :-1, :]).all(-1) & moved[..., :-1]
    pairs = done[..., :-1] & done[..., 1:]
    return int((pairs & goes_on).sum()), int((pairs & ~goes_on).sum())


def took_longer_before(rows, collector):
    """Whether an episode before this batch took more than one step, as the collector counts."""
    ids, frames = rows.get(TRAJ_IDS, None), private(collector, "_frames", 0)
    step = private(collector, "_carrier", None)
    now = step.get(TRAJ_IDS, None) if step is not None else None
    if ids is None or now is None:
        return False
    if ids.max() <= now.max():  # the collector has counted it
        frames -= rows.numel()
    last = ids.max() >= now.max() - now.numel()  # no older batch
    return bool(last) and frames > int(ids[..., 0].max()) + 1


def is_multi_process(collector, name="MultiCollector"):
    return name in kinds_of(collector)


def kinds_of(thing):
    """The names of the class of an object and of those that it is made from."""
    return {kind.__name__ for kind in type(thing).__mro__}


TRAJ_IDS = ("collector", "traj_ids")


PADDING = ("collector", "mask")


def learns_on_policy(loss_module):
    return bool(kinds_of(loss_module) & {"PPOLoss", "A2CLoss", "ReinforceLoss"})


def compares_answers(loss_module):
    """Whether advantages come from no critic: of GRPO, a group starts alike on purpose."""
    compares = kinds_of(loss_module) & {"PPOLoss", "GRPOLoss"}
    return bool(compares) and getattr(loss_module, "critic_network", None) is None


FEW_THOUSAND = 20_000  # rows that a check reads of a buffer


def says(error, kind, *words):
    return isinstance(error, kind) and all(one in str(error) for one in words)


def functions_of(error):
    """The names of the functions that an exception went through."""
    return [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]


def storage_of(ndim, storage):
    """Code that makes a storage like *storage* with *ndim* dimensions."""
    return f"{type(storage).__name__}({storage.max_size}, ndim={ndim})"


def slice_length(replay_buffer, sample):
    """How long the slices of the buffer's sampler are; None if it draws no slices."""
    sampler = replay_buffer.sampler
    if not hasattr(sampler, "slice_len"):
        return None
    return sampler.slice_len or max(sample.numel() // sampler.num_slices, 1)


def may_glue(collector):
    """Whether batches of workers are joined along time; True if no collector says it."""
    return collector is None or getattr(collector, "cat_results", None) not in (None, "stack")


def stored_rows(replay_buffer):
    """The first rows of the storage, time first, and the pairs of neighbors that nothing cuts."""
    storage = shallow(replay_buffer.storage)  # which keeps its shape once it was asked for it
    rows = storage[: min(storage.shape[0], FEW_THOUSAND)]
    joined = torch.ones(len(rows) - 1, *rows.shape[1:], dtype=torch.bool, device=rows.device)
    cursor = private(storage, "_last_cursor_index", None)
    if cursor is not None and 0 <= int(cursor) < len(joined):
        joined[int(cursor)] = False
    return rows, joined


def any_flag(rows, keys):
    """Whether any of the entries is True, one value for each row."""
    found = [rows.get(key, None) for key in keys]
    flags = [value.reshape(*rows.shape, -1).any(-1) for value in found if value is not None]
    return torch.stack(flags).any(0) if flags else None


def cuts_at_ids(sampler, rows):
    keys = rows.keys(True)
    chosen = sampler.traj_key in keys if sampler.traj_key else False
    return chosen or (private(sampler, "_traj_key_auto", False) and TRAJ_IDS in keys)


def end_keys_of(sampler):
    """The keys that a slice sampler cuts at; before TorchRL 0.14 there was one."""
    return getattr(sampler, "end_keys", None) or [sampler.end_key]


def pieces(replay_buffer):
    """The lengths of the pieces that the sampler cuts the storage into, and which end with done."""
    sampler = replay_buffer.sampler
    rows, joined = stored_rows(replay_buffer)
    end = torch.ones(rows.shape, dtype=torch.bool, device=rows.device)
    if cuts_at_ids(sampler, rows):
        ids = rows.get(sampler.traj_key or TRAJ_IDS).reshape(rows.shape)
        end[:-1] = ids[1:] != ids[:-1]
    else:
        end[:-1] = any_flag(rows, end_keys_of(sampler))[:-1]
    end[:-1] |= ~joined
    done = any_flag(rows, [("next", "done")])
    done = torch.zeros_like(end) if done is None else done
    end, done = (x.reshape(len(x), -1).mT.flatten() for x in (end, done))
    stops = end.nonzero().flatten()
    return stops.diff(prepend=stops.new_full((1,), -1)), done[stops]


def is_sliced(replay_buffer):
    """Whether slices are drawn from rows that can be read in one block, without a copy."""
    storage = replay_buffer.storage
    inner = private(storage, "_storage", None)
    sliced = hasattr(replay_buffer.sampler, "slice_len") and len(replay_buffer) > 1
    if not sliced or getattr(inner, "ndim", None) != storage.ndim or not hasattr(inner, "keys"):
        return False
    keys, sampler = inner.keys(True), replay_buffer.sampler
    return cuts_at_ids(sampler, inner) or bool({*end_keys_of(sampler)} & set(keys))


def transforms_of(owner):
    """The transforms of an environment or a replay buffer in one list, the innermost first.

    Those inside a batched environment are of its first one, where that is in this process.
    """
    from torchrl.envs import EnvBase, TransformedEnv

    if isinstance(owner, TransformedEnv):
        return transforms_of(owner.base_env) + flat(owner.transform)
    if isinstance(owner, EnvBase):
        first = first_of_batched(owner)
        if first is None or first is owner:
            return []
        found = transforms_of(first)
        if owner in LIKE_THOSE_OF_WORKERS:  # which have statistics of their own
            found = [one for one in found if not any("Norm" in kind for kind in kinds_of(one))]
        return found
    return flat(private(owner, "_transform", None))


def flat(transform):
    if hasattr(transform, "transforms"):
        return [one for inner in transform.transforms for one in flat(inner)]
    return [] if transform is None else [transform]


def called_on_entries(function):
    """The key and the method of each ``td[key].method`` in the code, where td is an argument."""
    own = function.__code__
    arguments, code = own.co_varnames[: own.co_argcount], list(dis.get_instructions(function))
    for whose, key, read, method in zip(code, code[1:], code[2:], code[3:], strict=False):
        is_read = read.opname == "BINARY_SUBSCR" or read.argrepr == "[]"
        if is_read and whose.argval in arguments:
            yield key.argval, method.argval


def multi_steps(replay_buffer, collector):
    """What makes rewards of several steps, of a buffer and of a collector."""
    found = list(transforms_of(replay_buffer)) if replay_buffer is not None else []
    found += [getattr(collector, "postproc", None)]
    return [one for one in found if type(one).__name__ in ("MultiStep", "MultiStepTransform")]


def stored_leaves(replay_buffer):
    """The tensors of the storage, not copied; none where it holds other things or nothing."""
    storage = getattr(replay_buffer, "storage", None)
    if "TensorStorage" not in kinds_of(storage) or not len(storage):
        return []
    leaves = torch.utils._pytree.tree_leaves(storage.get(slice(None)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def stored_leaf(replay_buffer, key):
    """One tensor of the storage, or None."""
    data = stored_data(replay_buffer)
    return None if data is None else data.get(key, None)


def goes_on(batch):
    """Not a shuffled batch, as far as the observations show it."""
    keys = observed_keys(batch, None)
    if not keys or batch.shape[-1] < 2 or get_next(batch, "done") is None:
        return True
    strange, pairs = strangers(batch, batch.ndim - 1, keys, "done")
    return strange <= pairs / 2


def in_time(batch):
    """One batch, or each of several, whose last dimension is time."""
    batches = batches_of(batch)
    timed = [b for b in batches if getattr(b, "ndim", 0) and b.names[-1] in (None, "time")]
    return [b for b in timed if goes_on(b)]


def states(batch, hidden):
    """Pairs of a hidden state now and under "next", as (..., time, numbers), where both are."""
    for key in hidden:
        now, after = batch.get(key, None), batch.get(("next", key), None)
        if now is not None and after is not None:
            yield now.reshape(*batch.shape, -1), after.reshape(*batch.shape, -1)


def keys_of(owner):
    """The keys that a loss or a value estimator reads; asking for `tensor_keys` may set them."""
    kept = private(owner, "_tensor_keys", None)
    return kept if kept is not None else getattr(owner, "default_keys", object)()


def value_key(name, loss_module=None, value_estimator=None):
    """The key of *name* ("done", "advantage"...) as the estimator, else the loss, reads it."""
    for owner in (value_estimator, loss_module):
        key = getattr(keys_of(owner), name, None)
        if isinstance(key, (str, tuple)):
            return key
    return name


def one_batch(batch):
    """The batch, or the first of several."""
    return batch[0] if isinstance(batch, (list, tuple)) else batch


def next_key(key):
    """``("next", key)``, flat."""
    return ("next", *key) if isinstance(key, tuple) else ("next", key)


def get_next(data, key):
    """``("next", key)`` of the data, or None."""
    if data is None:
        return None
    return data.get(next_key(key), None)


def paid_in(data):
    """The rewards of the data, also of groups of agents, one line for each row; None without."""
    later = data.get("next", None) if hasattr(data, "get") else None
    if later is None:
        return None
    one = later.get("reward", None)
    if one is not None:
        return one
    width = (data.numel(), -1)
    leaves = [key for key in later.keys(True, True) if key[-1] == "reward"]
    found = [later[key] for key in leaves if isinstance(later[key], torch.Tensor)]
    return torch.cat([one.reshape(width) for one in found], -1) if found else None


def written_as(name, rows, policy):
    """The entry *name* of the rows, or that of a group of agents, which the policy writes."""
    keys = [key for key in getattr(policy, "out_keys", ()) if key[-1] == name]
    found = [rows.get(key, None) for key in (name, *keys)]
    return next((one for one in found if isinstance(one, torch.Tensor)), None)


def stored_data(replay_buffer):
    """The rows of the storage, where they are in one block; else None."""
    data = replay_buffer.storage.get(slice(None)) if stored_leaves(replay_buffer) else None
    return data if hasattr(data, "get") else None


def tables(batch, replay_buffer=None, collector=None):
    """Pairs of a name and rows: the last batch and, without a collector, some that are stored."""
    found = [] if batch is None else [("rows", batches_of(batch)[-1])]
    data = None if replay_buffer is None or collector is not None else stored_data(replay_buffer)
    if hasattr(data, "batch_size"):  # a dictionary of tensors may be stored as well
        found.append(("stored rows", data[: min(len(replay_buffer), SOME_ROWS)]))
    return found


SOME_ROWS = 2000  # of a storage that are compared


def stored_observation(replay_buffer, policy):
    """The key that a data set has its observations under: ``observation``, or what is read."""
    data = stored_data(replay_buffer)
    if data is None or data.get("observation", None) is not None:
        return "observation"
    return next(iter(observed_keys(data, policy)), "observation")


def is_seen(key):
    """Whether a key has the name of an observation, also of a group of agents."""
    return last_part(key) in ("observation", "pixels")


def last_part(key):
    return key[-1] if isinstance(key, tuple) else key


def observed_keys(data, network):
    """Keys of *network* that stand at the root and under next, and so tell which row follows."""
    of_data = data.keys(True, True) if hasattr(data, "batch_size") else data.keys()
    keys = getattr(network, "in_keys", None) or list(filter(is_seen, of_data))
    pairs = {key: (data.get(key, None), get_next(data, key)) for key in keys if key != "is_init"}
    return [
        k for k, (a, b) in pairs.items() if a is not None and b is not None and a.shape == b.shape
    ]


def strangers(data, dim, keys, done_key):
    """Pairs of neighbors along *dim*, none of them done between: (strange ones, all)."""
    length = data.shape[dim]
    done = get_next(data, done_key).reshape(*data.shape, -1).any(-1)
    open_ = ~done.narrow(dim, 0, length - 1)
    mask = data.get(("collector", "mask"), None)
    if mask is not None:
        mask = mask.reshape(data.shape)
        open_ &= mask.narrow(dim, 1, length - 1) & mask.narrow(dim, 0, length - 1)
    strange = torch.zeros_like(open_)
    for key in keys:
        after = get_next(data, key).narrow(dim, 0, length - 1)
        row = data.get(key).narrow(dim, 1, length - 1)
        if row.is_floating_point():
            # A transform may have made one of the two double.
            near = torch.isclose(after.double(), row.double(), 1e-3, 1e-6, equal_nan=True)
            differ = ~near & ~after.isnan()
        else:
            differ = after != row
        strange |= differ.reshape(*strange.shape, -1).any(-1)
    return int((strange & open_).sum()), int(open_.sum())


def walked_dim(data, estimator):
    """The dimension along which the estimator sums."""
    dim = getattr(estimator, "time_dim", None)
    if dim is None:
        names = getattr(data, "names", None) or [None] * data.ndim
        dim = names.index("time") if "time" in names else data.ndim - 1
    return dim % data.ndim


def shallow(thing):
    """Another object with the same attributes, none of them copied, whose end ends nothing.

    The ``__del__`` of a storage may remove its files, which belong to the original.
    """
    kind = type(thing)
    twin = object.__new__(type(kind)(kind.__name__, (kind,), {"__del__": lambda self: None}))
    twin.__dict__.update(vars(thing))
    return twin


def step_limits(env):
    """Numbers in the attributes of an environment that look like a limit of steps.

    They are those of the innermost one, and of what that wraps.
    """
    if (env := innermost_of(env)) is None:
        return {}
    words = ("max", "limit", "horizon", "length", "steps")
    own = [vars(kind) for kind in type(env).__mro__ if not kind.__module__.startswith("torch")]
    named = {name: value for part in reversed([vars(env), *own]) for name, value in part.items()}
    for one in wrappers_of(env):  # which may count steps as well
        for name, value in getattr(one, "__dict__", {}).items():
            if any(word in name.lower() for word in words[:3]) and not name.startswith("_"):
                named.setdefault(name, value)
    return {
        value: name
        for name, value in named.items()
        if type(value) is int and any(word in name.lower() for word in words)
    }


def wrapped_by(env):
    """What an environment wraps, of gymnasium say; None where it wraps nothing."""
    env = innermost_of(env)
    return private(env, "_env", None) if "_env" in getattr(env, "__dict__", ()) else None


def made_from(env):
    """The ``EnvSpec`` that ``gymnasium.make`` made an environment from; None where it has none.

    A wrapper of gymnasium makes a spec when it is asked for one, and keeps it: the game is asked.
    """
    return getattr(getattr(wrapped_by(env), "unwrapped", None), "spec", None)


def wrappers_of(env):
    """What an environment wraps, of gymnasium say, and what that wraps, from the outside in."""
    found, wrapper = [], wrapped_by(env)
    while wrapper is not None:
        found.append(wrapper)
        wrapper = getattr(wrapper, "__dict__", {}).get("env")
    return found


def time_limit(env):
    """After how many steps a ``TimeLimit`` of gymnasium ends an episode; None without one."""
    limits = [getattr(one, "__dict__", {}).get("_max_episode_steps") for one in wrappers_of(env)]
    return min(filter(None, limits), default=None)


def declared_limit(env):
    """After how many steps transforms, or gymnasium, say that an episode ends; else infinity."""
    found = [getattr(one, "max_steps", None) for one in transforms_of(env)]
    found.append(time_limit(env))
    return min(filter(None, found), default=math.inf)


def innermost_of(env):
    """The environment below all transforms, of a batched one the first that is in this process."""
    while env is not None and env is not (inner := first_of_batched(env)):
        env = inner
    return env


def below_transforms(env):
    """What transforms were put on; asked for a ``base_env``, a new `SerialEnv` never answers."""
    from torchrl.envs import TransformedEnv

    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def first_of_batched(env):
    """The first environment of a batched one, as far as it is in this process; else None.

    The environment itself where it is not batched. Of a `ParallelEnv` one that is made alike.
    """
    if "create_env_fn" not in vars(env := below_transforms(env)):
        return env
    return next(iter(vars(env).get("_envs") or ()), LIKE_THOSE_OF_WORKERS.get(env))


LIKE_THOSE_OF_WORKERS = {}  # of each `ParallelEnv` under examination: to be read, not stepped


FEWEST_UPDATES = 10  # a loop may take some before its first step of an updater, or of priorities


def times_changed(weights):
    """How often the weight of the most changes was changed in place."""
    return max((weight._version for weight in weights), default=0)


def is_lazy(parameter):
    return isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin)


def in_words(error):
    """An exception in one line that fits a table."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}{'…' * (len(text) > 160)}".rstrip(": ")
