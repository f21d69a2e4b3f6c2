"""Checks: multi-process collectors and weight synchronization."""

from __future__ import annotations

import contextlib
import errno
import linecache
import math
import signal
import time
import traceback

import torch

from torchrl_doctor.clock import uninterrupted
from torchrl_doctor.copies import copied
from torchrl_doctor.followers import weights_of_workers
from torchrl_doctor.looks import FEWEST_BATCHES, trained_weights
from torchrl_doctor.objects import (
    FEWEST_SAMPLED,
    FEWEST_UPDATES,
    act,
    batches_of,
    begins,
    below_transforms,
    both_sides,
    compares_answers,
    done_of,
    exploration_modules,
    has_no_policy,
    is_multi_process,
    last_part,
    learns_on_policy,
    other_than_greedy,
    repeats,
    samples,
    says,
    times_changed,
    told_by_workers,
)
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import APPLIES, UNDECIDED, applies, check, clear, undecided


@check("every_environment_starts_alike", "Every environment plays the same episodes")
def every_environment_starts_alike(batch=None, collector=None, env=None, loss_module=None):
    if reseeded := seeds_itself(env):
        return reseeded
    places = places_of(env)
    if len({id(one) for one in places}) < len(places):
        return applies(f"one and the same environment object is in {len(places)} places")
    seen = starts_of(batches_of(batch)[0]) if batch is not None else None
    if seen is not None and seen.state == UNDECIDED:
        seen = starts_of_copies(env) or seeds_of_processes(env) or seen
    if seen is not None and seen.state == APPLIES and compares_answers(loss_module):
        return undecided(f"{seen.evidence}: as a group whose answers are compared?")
    if not is_multi_process(collector) or (seen and seen.state != UNDECIDED):
        return seen
    seeds, why_not = told_by_workers(collector, seeds_of_workers)
    if seeds is None:
        return seen or undecided(why_not or "the environments of the workers tell no seed")
    if len(set(seeds)) == len(seeds):
        return clear(f"the environments of {len(seeds)} workers have seeds of their own")
    return applies(f"the environments of the workers have the seeds {seeds}")


def seeds_itself(env):
    """Applies where a reset leaves a generator in one state, whatever it was before; else None."""
    leaf = below_transforms(env)
    if env is None or hasattr(leaf, "create_env_fn"):
        leaf = next(iter(vars(leaf).get("_envs") or ()), None) if env is not None else None
    if leaf is None or type(leaf).__name__ == "ParallelEnv":
        return None
    twin, seen = copied(leaf), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        for one in generators_of(twin).values():
            if isinstance(one, torch.Generator):
                one.manual_seed(seed)
            else:
                one.bit_generator.state = type(one.bit_generator)(seed).state
        start = twin.reset()
        states = {name: state_of(one) for name, one in generators_of(twin).items()}
        seen.append((states, start))
    (states, start), (others, again) = seen
    fixed = [name for name in states if states[name] == others.get(name)]
    keys = [key for key in start.keys(True, True) if start[key].dtype is not torch.bool]
    if fixed and keys and all(torch.equal(start[key], again[key]) for key in keys):
        return applies(f"each reset seeds {fixed[0]}: every episode starts from the same place")
    return None


def generators_of(env):
    """The random generators that an environment draws from, by name."""
    below = below_transforms(env)
    found = {"torch": torch.default_generator}
    found |= {name: one for name, one in vars(below).items() if isinstance(one, torch.Generator)}
    inner = getattr(below, "np_random", None) if "_env" in vars(below) else None  # of gymnasium
    return found | ({"np_random": inner} if hasattr(inner, "bit_generator") else {})


def state_of(generator):
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    return generator.bit_generator.state


def seeds_of_processes(env):
    """Applies where the environments of a `ParallelEnv` tell one seed of gymnasium; else None."""
    leaf = below_transforms(env)
    if type(leaf).__name__ != "ParallelEnv" or leaf.is_closed:
        return None
    makers = {
        id(m): (m, k) for m, k in zip(leaf.create_env_fn, leaf.create_env_kwargs, strict=True)
    }
    for make, options in makers.values():
        with contextlib.closing(make(**options)) as one:
            if not isinstance(getattr(one, "np_random_seed", None), int):
                return None  # a worker that is asked for what it lacks would end
    with uninterrupted():
        seeds = list(leaf.np_random_seed())
    if len(seeds) < 2 or not all(isinstance(one, int) and one >= 0 for one in seeds):
        return None
    if len(set(seeds)) == len(seeds):
        return None
    return applies(f"the {len(seeds)} environments of ParallelEnv have the seeds {seeds}")


def seeds_of_workers(collector):
    """The seed of each worker's environment; None where they are not one of gymnasium each.

    `get_distant_attr` raises at the first worker that has none, and leaves the answers of the
    others to whoever asks next.
    """
    for pipe in collector.pipes:
        pipe.send(("env.np_random_seed", "get_distant_attr"))
    seeds = [pipe.recv()[0] for pipe in collector.pipes]
    return seeds if all(isinstance(seed, int) for seed in seeds) else None


@check("workers_normalize_differently", "Workers normalize the same observation differently")
def workers_normalize_differently(env=None, collector=None):
    leaf, states = below_transforms(env), None
    if hasattr(leaf, "num_workers") and not leaf.is_closed:
        with uninterrupted():
            states = leaf.state_dict()
    elif is_multi_process(collector):
        told, _ = told_by_workers(collector, lambda one: one.state_dict())
        states = {name: state for name, state in (told or {}).items() if "worker" in name}
    means = [means_of(state) for state in (states or {}).values()]
    if len(means) < 2 or not all(means):
        return None
    if not any(one.any() for mean in means for one in mean.values()):
        return undecided(f"{len(means)} workers have seen nothing yet; ask again after a batch")
    for key, mean in means[0].items():
        others = [other[key] for other in means[1:] if key in other]
        if any(other.shape != mean.shape or not torch.equal(other, mean) for other in others):
            return applies(f"{len(means)} workers have several means of {key!r}")
    return clear(f"{len(means)} workers have one mean")


def means_of(state):
    """The running means that `VecNormV2` has in the ``state_dict`` of one worker, by key."""
    found = {}
    for name, value in state.items():
        if isinstance(value, dict):
            found |= means_of(value)
        elif name.startswith("loc.-|-.") and isinstance(value, torch.Tensor):
            found[name.removeprefix("loc.-|-.")] = value
    return found


def starts_of(rows):
    """Whether the environments of a batch start alike, as its observations tell."""
    observations, _ = both_sides(rows)
    if rows.ndim < 2 or observations is None or rows.shape[:-1].numel() < 2:
        return None
    environments = observations.flatten(0, -3)  # environment, time, features
    ends, begun = done_of(rows).flatten(0, -2)[:, :-1], begins(rows)
    starts = [
        torch.cat([one[:1], one[1:][end]])[0 if begun else 1 :]
        for one, end in zip(environments, ends, strict=True)
    ]
    seen = f"{len(environments)} environments"
    late = undecided(f"{seen}; the batch does not begin with a reset, so give the first one")
    unique = torch.cat([one.unique(dim=0) for one in starts])
    count = min(map(len, starts))
    if len(unique.unique(dim=0)) == len(unique):
        if begun and count < 2:  # seeded alike after the first reset, they look the same
            return undecided(f"{seen} start apart; give a batch with two episodes of each")
        return clear(f"{seen} start from different observations") if begun else late
    if count < 3:
        return undecided("environments start alike; too few episodes to tell from a fixed start")
    _, numbers = torch.cat(starts).unique(dim=0, return_inverse=True)
    each = numbers.split([len(one) for one in starts])
    sequences = torch.stack([one[:count] for one in each]).unique(dim=0)
    if len(sequences) == len(environments):
        threes = [set(triples(one)) for one in each]
        new_each_time = all(len(one.unique()) == len(one) for one in each)
        if new_each_time and sum(map(len, threes)) > len(set().union(*threes)):
            return applies(f"{seen}; one starts as another did some episodes before")
        if len(torch.stack([one[1:count] for one in each]).unique(dim=0)) < len(environments):
            return undecided(f"{seen} start alike from their second episode on; give more of them")
        return clear(f"{seen}, as many sequences of starts") if begun else late
    if sequences.numel() > len(numbers.unique()):  # few places to start from: by chance, or all
        return None
    return applies(f"{seen}, {len(sequences)} sequences of starts")


def places_of(env):
    """The environments of a batched one that run in this process."""
    return vars(below_transforms(env)).get("_envs", ()) if env is not None else ()


def starts_of_copies(env):
    """Applies where copies of two of the environments go on through the same starts; else None."""
    if env is None:
        return None
    leaf = below_transforms(env)
    several = vars(leaf).get("create_env_fn") is None and leaf.batch_size.numel() > 1
    if not (places := [leaf] if several else places_of(env)):
        return None
    twins = [copied(one) for one in places]
    end, starts = time.perf_counter() + MOST_SECONDS, []
    while len(starts) < MOST_RESETS and time.perf_counter() < end:
        rows = [row for one in twins for row in one.reset().reshape(-1)[:MOST_ALIKE]]
        leaves = [[x for x in row.values(True, True) if x.is_floating_point()] for row in rows]
        starts.append([tuple(n for x in each for n in x.flatten().tolist()) for each in leaves])
    starts = [*zip(*starts, strict=True)]  # of each environment
    if any(len(set(seen)) < len(seen) for seen in starts):
        return None  # few places to start from
    threes = [set(zip(seen, seen[1:], seen[2:], strict=False)) for seen in starts]
    common = sum(map(len, threes)) - len(set().union(*threes))
    if not common:
        return None
    seen = f"{common} times two of them start three episodes in a row from the same places"
    return applies(
        f"copies of {len(starts)} environments were reset {len(starts[0])} times: {seen}"
    )


MOST_RESETS, MOST_SECONDS, MOST_ALIKE = 30, 0.5, 32


def triples(numbers):
    """Each three that follow one another."""
    return zip(*(numbers[n:].tolist() for n in range(3)), strict=False)


@check("update_weights_wants_data", "update_policy_weights_(policy) raises AttributeError")
def update_weights_wants_data(error):
    if not isinstance(error, AttributeError) or "no attribute 'data'" not in str(error):
        return None
    step, places = error.__traceback__, []
    while step is not None:
        places.append(step.tb_frame.f_code.co_name)
        step = step.tb_next
    if any(name.startswith("update_policy_weights_") for name in places):
        return applies("a module was passed where a TensorDict of weights is read")
    return None if places else undecided("the error has no traceback")


@check("script_never_ends", "The script is done, and the process never ends")
def script_never_ends(collector, since=None):
    if not is_multi_process(collector):
        return None
    if getattr(collector, "closed", False):
        return clear("the collector is shut down")
    watched = since is not None and since.seen("learned") is not None  # its block ends before
    if has_all_frames(collector) and not watched:
        return applies("all frames are collected, and collector.shutdown() was not called yet")
    return undecided("call collector.shutdown() once the loop is over")


def has_all_frames(collector):
    return private(collector, "_frames", 0) >= getattr(collector, "total_frames", math.inf)


@check("training_goes_on_without_a_worker", "Training goes on although a worker is dead")
def training_goes_on_without_a_worker(collector):
    workers = getattr(collector, "procs", None) if is_multi_process(collector) else None
    if not isinstance(workers, (list, tuple)) or not workers or has_all_frames(collector):
        return None
    codes = [getattr(worker, "exitcode", None) for worker in workers]
    dead = [f"{n} (exit code {code})" for n, code in enumerate(codes) if code not in OF_ITS_OWN]
    if dead:
        return applies(f"of {len(codes)} workers, dead: {', '.join(dead)}")
    return clear(f"none of {len(codes)} workers has ended by an error or a signal")


OF_ITS_OWN = (None, 0, -signal.SIGTERM)  # runs, was told to stop, or did not listen to that


@check("workers_run_the_script_again", 'Workers raise "bootstrapping phase", or fail to initialize')
def workers_run_the_script_again(error):
    if says(error, RuntimeError, "bootstrapping phase"):
        return applies("a worker imports a script that starts workers")
    ended = says(error, RuntimeError, "failed to initialize and closed the connection")
    if not (ended or isinstance(error, EOFError)):
        return None
    if torch.multiprocessing.get_start_method(allow_none=True) == "fork":
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    scripts = [
        frame.f_code.co_filename
        for frame in frames
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    ]
    lines = linecache.getlines(scripts[-1]) if scripts else []
    if lines and "__main__" not in "".join(lines):
        return applies("workers start in a script that has no __main__ guard")
    return undecided("a worker ended; its own error was printed above") if ended else None


@check("too_many_open_files", 'ParallelEnv or a collector raises "Too many open files"')
def too_many_open_files(error):
    if not isinstance(error, OSError) or error.errno != errno.EMFILE:
        return None
    return applies("the process has as many open files as its soft limit allows")


@check("cuda_in_forked_workers", 'Workers raise "Cannot re-initialize CUDA in forked subprocess"')
def cuda_in_forked_workers(error):
    if not says(error, RuntimeError, "Cannot re-initialize CUDA in forked subprocess"):
        return None
    method = torch.multiprocessing.get_start_method(allow_none=True)
    return applies(f"a forked process uses CUDA; the start method is now {method!r}")


@check("one_file_is_passed_twice", 'Starting a worker raises "bad value(s) in fds_to_keep"')
def one_file_is_passed_twice(error):
    if not says(error, ValueError, "fds_to_keep"):
        return None
    return applies("what is sent to a process that starts by spawn has one open file twice")


@check("one_worker_never_updates", "One worker of several never updates")
def one_worker_never_updates(collector, policy=None, batch=None):
    devices = getattr(collector, "policy_device", None)
    if not is_multi_process(collector) or not isinstance(devices, (list, tuple)):
        return None
    if len(set(devices)) < 2:
        return None
    batches = batches_of(batch)
    if not isinstance(policy, torch.nn.Module) or not batches:
        return undecided("policies act on several devices; pass policy= and the newest batch=")
    rows = batches[-1]
    if rows.ndim < 2 or len(rows) != len(devices):
        return undecided(f"a batch of shape {tuple(rows.shape)} does not tell its workers apart")
    acted = [repeats(policy, one) for one in rows.unbind(0)]
    if None in acted:
        return None
    if all(acted):
        return clear(f"each of {len(acted)} workers acted with the weights of the policy")
    if not any(acted):
        return undecided("no worker acted with these weights; give the batch after an update")
    late = [f"{number} ({devices[number]})" for number, same in enumerate(acted) if not same]
    return applies(f"worker {', '.join(late)} acted with other weights than the policy has")


@check("workers_never_learn", "The workers act with their first weights forever")
def workers_never_learn(collector, policy=None, batch=None, since=None, loss_module=None):
    factories = getattr(collector, "policy_factory", None)
    if not is_multi_process(collector) or not isinstance(factories, (list, tuple)):
        return None
    if not any(factories):
        return None
    learns = isinstance(policy, torch.nn.Module)
    if private(collector, "_weight_sync_schemes", None) or collector.weight_updater is not None:
        if learns:
            return weights_of_workers(collector, policy, batch, since)
        return undecided("a scheme takes weights to the workers; pass the trained policy=")
    made = next(factory for factory in factories if factory)()
    theirs = getattr(made, "state_dict", dict)()
    ours = policy.state_dict() if learns else None
    if not learns and isinstance(made, torch.nn.Module):
        ours = trained_weights(None, made, collector, loss_module)
        theirs = dict(made.named_parameters())
    if ours is None:
        return undecided("nothing sends weights to policy_factory's; pass the trained policy=")
    if any(ours[name].data_ptr() == theirs[name].data_ptr() for name in ours if name in theirs):
        return undecided("policy_factory returns the trained policy: is its memory shared?")
    if theirs.keys() != ours.keys():
        return None
    if all(torch.equal(ours[name].cpu(), theirs[name].cpu()) for name in ours):
        updates = times_changed(getattr(loss_module, "parameters", list)())
        if updates >= FEWEST_UPDATES:  # a copy of now, and the workers made theirs before
            return applies(f"nothing sends them the weights of about {updates} updates")
        return undecided("nothing sends weights to policy_factory's; so far these are the same")
    return applies("policy_factory makes this policy, and no scheme or updater sends its weights")


@check("new_weights_arrive_late", "The batch after an update is from old weights")
def new_weights_arrive_late(collector, loss_module, batch=None, value_estimator=None, since=None):
    estimators = (value_estimator, private(loss_module, "_value_estimator", None))
    if not learns_on_policy(loss_module) or any(
        type(one).__name__ == "VTrace" for one in estimators
    ):
        return None
    if not is_multi_process(collector, "MultiAsyncCollector"):
        return None
    seen = (since.seen("versions") if since else None) or []
    late = [(max(acted), now) for acted, now in seen if isinstance(now, int) and max(acted) < now]
    if len(late) >= 3 and 2 * len(late) > len(seen):
        acted, now = late[-1]
        return applies(f"{len(late)} of {len(seen)} batches are of older weights: {acted} at {now}")
    versions = [rows.get(("next", "policy_version"), None) for rows in batches_of(batch)]
    now, sent = getattr(collector, "policy_version", None), private(collector, "_frames", 0)
    sent //= getattr(collector, "requested_frames_per_batch", None) or max(sent, 1)
    if versions and versions[-1] is not None and isinstance(now, int) and now <= sent:
        acted = int(versions[-1].max())
        if acted + 1 < now:  # its own update has made one more
            return applies(f"the last batch has version {acted} of {now}, an update for each batch")
    if not versions or any(version is None for version in versions):
        if since and since.batches >= FEWEST_BATCHES and since.updates("loss_module"):
            seen = f"{since.batches} batches since the first look, and the loss learned"
            return applies(f"{seen} while the workers of MultiAsyncCollector went on")
        return undecided("collect with track_policy_version=True, and give a list of batches")
    acted = [version.unique() for version in versions]
    mixed = [numbers.tolist() for numbers in acted if len(numbers) > 1]
    if mixed:
        return applies(f"one batch holds actions of the versions {mixed[0]}, for an on-policy loss")
    numbers = torch.stack(acted).flatten()
    if len(numbers) < 4:
        return undecided("give four batches, with an update between each two")
    steps, seen = numbers.diff().tolist(), f"versions {numbers.tolist()}"
    if steps == [0] + [1] * (len(numbers) - 2):
        return applies(f"one update a batch, and {seen} for an on-policy loss")
    if set(steps) == {1} and begins(batches_of(batch)[0]):
        return clear(f"batches of the {seen}")
    return undecided(f"batches of the {seen}; give the first four, with an update between each two")


@check("workers_act_alike", "All workers take the same random actions")
def workers_act_alike(batch, collector=None, policy=None):
    rows = batches_of(batch)[0]
    observations, _ = both_sides(rows)
    key = next((one for one in getattr(policy, "out_keys", ()) if last_part(one) == "action"), None)
    action = rows.get(key or "action", None)
    if observations is None or action is None or rows.ndim < 2 or rows.shape[-1] < 32:
        return None
    workers = rows.shape[:-1].numel()
    moves = action.reshape(workers, rows.shape[-1], -1)
    if workers < 2 or (moves == moves[:, :1]).all():
        return None
    alike, one_place = (moves == moves[:1]).all(), (observations == observations[:1]).all()
    seen = f"{workers} streams of {moves.shape[1]} actions"
    drawn = policy is not None and (samples(policy) or exploration_modules(policy))
    if alike and one_place:
        return undecided(f"{seen} are the same, as are the observations")
    if alike and not (drawn or has_no_policy(collector)):
        return None  # a policy that draws nothing may do the same everywhere
    if alike:
        return applies(f"{seen} are one and the same")
    if has_no_policy(collector):
        return clear(f"{seen} differ, and no policy makes a difference")
    if not drawn or key is None:
        return undecided(f"{seen} differ; pass the policy= that drew them")
    if other_than_greedy(policy, rows, key) is None:
        return undecided(f"{seen} differ; the policy= is not the one that drew them any more")
    noise = moves.double() - act(policy, rows, "DETERMINISTIC")[key].reshape(moves.shape)
    common = in_common(noise)
    # Noise that remembers may look alike for a while.
    if common is not None and common > 0.9 and samples(policy):
        return applies(f"what was drawn in {seen} correlates by {common:.2f}")
    if common is None or common > 0.3:
        return undecided(f"{seen} differ; is what was drawn the same? Give more frames")
    return clear(f"what was drawn in {seen} correlates by {common:.2f} at most")


def in_common(noise):
    """The largest correlation of what two workers drew, (workers, time, numbers).

    None where a stream has too few draws that made a difference.
    """
    if int((noise != 0).any(-1).sum(1).min()) < FEWEST_SAMPLED:
        return None
    lines = noise - noise.mean(1, keepdim=True)
    return float(torch.corrcoef(lines.flatten(1)).triu(1).abs().max())


@check("buffer_holds_garbage", "The buffer is full and holds garbage")
def buffer_holds_garbage(collector, replay_buffer):
    storage = private(private(replay_buffer, "_storage", None), "_storage", None)
    if getattr(collector, "replay_buffer", None) is not replay_buffer:
        return None  # the main process writes
    if not is_multi_process(collector) or not hasattr(storage, "values"):
        return None
    leaves = [leaf for leaf in storage.values(True, True) if isinstance(leaf, torch.Tensor)]
    leaves = [leaf for leaf in leaves if type(leaf).__name__ != "MemoryMappedTensor"]
    unshared = [leaf for leaf in leaves if not leaf.is_shared()]
    if unshared:
        return applies(f"{len(unshared)} of {len(leaves)} entries are not in shared memory")
    return clear("the workers write to memory that is shared")
