"""Checks: collectors."""

from __future__ import annotations

import copy
import math

import torch

from torchrl_doctor.copies import copied
from torchrl_doctor.objects import (
    FEWEST_UPDATES,
    PADDING,
    batches_of,
    begins,
    different,
    done_of,
    has_no_policy,
    is_multi_process,
    learns_on_policy,
    times_changed,
    value_key,
)
from torchrl_doctor.private import has, private
from torchrl_doctor.verdicts import applies, check, clear, undecided


@check("same_seed_different_start", "Two runs with the same seed start differently")
def same_seed_different_start(collector, env):
    if private(collector, "_frames", 1) or env.batch_size:
        return None
    twin = copy.deepcopy(env)
    seed = getattr(twin, "np_random_seed", None)  # of gymnasium; 128 bits where nobody chose it
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        return None
    now = twin.np_random.bit_generator.state
    twin.set_seed(seed, static_seed=True)
    seeded = twin.np_random.bit_generator.state
    twin.reset()
    if now != seeded or twin.np_random.bit_generator.state == seeded:
        return clear("the environment was reset after it was seeded")
    return applies("seeded after the reset that gave the first observation")


@check("log_probability_is_zero", "The first batches have a log-probability of zero")
def log_probability_is_zero(batch, policy, loss_module=None, collector=None):
    keys = getattr(loss_module, "tensor_keys", None)
    if isinstance(batch, (list, tuple)) or (keys and not hasattr(keys, "sample_log_prob")):
        return None
    outputs = getattr(policy, "out_keys", [])
    probabilities = [k for k in outputs if "log_prob" in str(k)]
    if not probabilities:
        return None
    unasked = getattr(collector, "init_random_frames", None)
    if unasked and keys:
        return applies(f"init_random_frames={unasked}, and the loss reads {probabilities[0]}")
    if any(k not in batch.keys(True) for k in probabilities):
        return undecided(f"the batch lacks {probabilities[0]}; were its actions random?")
    computed = [k for k in outputs if k != value_key("action", loss_module)]  # it may be drawn
    floats = [k for k in computed if k in batch.keys(True) and batch[k].is_floating_point()]
    if floats == probabilities:
        return None
    zero = [~different(batch[k], torch.zeros_like(batch[k]), batch.shape) for k in floats]
    silent = torch.stack(zero).all(0)
    silent &= batch.get(PADDING, torch.ones_like(silent))
    if not silent.any():
        if unasked:
            said = f"init_random_frames={unasked}, and the policy writes {probabilities[0]}"
            return undecided(f"{said}; does your loss read it?")
        if collector is None and not begins(batch):
            return undecided("the policy was asked in this batch; give the first, or collector=")
        return clear("the policy was asked for each action")
    return applies(f"{int(silent.sum())} of {silent.numel()} rows hold nothing of the policy")


@check("kept_batches_are_all_the_same", "All the batches that I kept are the same")
def kept_batches_are_all_the_same(batch):
    if not isinstance(batch, (list, tuple)) or len(batch) < 2:
        return None
    places = {memory_of(one) for one in batch}
    if len(places) == len(batch) or () in places:
        return clear(f"{len(places)} batches, each in its own memory") if all(places) else None
    return applies(f"{len(batch)} batches share the memory of {len(places)}")


def memory_of(batch):
    """Where the numbers of a batch lie; nothing for those that have no place."""
    leaves = [leaf for leaf in batch.values(True, True) if isinstance(leaf, torch.Tensor)]
    leaves = [leaf for leaf in leaves if leaf.numel() and leaf.device.type != "meta"]
    return tuple((leaf.data_ptr(), leaf.shape) for leaf in leaves)


@check("actions_stay_random", "The actions stay random however long I train")
def actions_stay_random(collector, loss_module, replay_buffer=None):
    if not hasattr(getattr(loss_module, "tensor_keys", None), "action"):
        return None
    unasked, total = (getattr(collector, n, None) or 0 for n in INIT_AND_TOTAL)
    if unasked and unasked >= total > 0:
        return applies(f"init_random_frames={unasked}, and total_frames={total}")
    if unasked > (frames := private(collector, "_frames", 0)):
        said = f"init_random_frames={unasked}: the policy has not acted yet in {frames} frames"
        held = getattr(getattr(replay_buffer, "storage", None), "max_size", None)
        updates = times_changed(getattr(loss_module, "parameters", list)())
        if held and unasked > MANY_TIMES * held and updates >= FEWEST_UPDATES:
            said = f"{said}, and {updates} updates; the replay buffer holds {held} rows"
            return applies(said)
        return undecided(said)
    if not has_no_policy(collector):
        return clear("the collector has a policy")
    return applies("the collector acts with a RandomPolicy, and the loss trains another")


INIT_AND_TOTAL = ("init_random_frames", "total_frames")
MANY_TIMES = 100  # what a buffer holds: no warm-up fills it as often


@check("collector_yields_nothing", "The collector ends without yielding anything")
def collector_yields_nothing(collector, env, policy):
    if not getattr(collector, "trajs_per_batch", None) or not collector.reset_at_each_iter:
        return None
    if getattr(collector, "set_truncated", False):
        return clear("set_truncated=True ends the episodes that the reset cuts")
    (twin, agent), steps = copied((env, policy)), collector.frames_per_batch
    if steps > MOST_STEPS:
        return undecided(
            f"the batches are longer than the {MOST_STEPS} steps that this check takes"
        )
    from torchrl.envs.utils import set_exploration_type

    with set_exploration_type(collector.exploration_type):
        rollouts = [twin.rollout(steps, agent) for _ in range(3)]
    if any(r["next", "done"].any() for r in rollouts):
        return clear(f"an episode ended within {steps} steps")
    return applies(f"no episode ended within the {steps} steps between two resets")


MOST_STEPS = 200


@check("more_frames_than_asked_for", "Batches hold more frames than I asked for")
def more_frames_than_asked_for(collector=None, error=None):
    if isinstance(error, Warning) and "not exactly divisible by" in str(error):
        return applies(f"{type(error).__name__}: {str(error).partition(',')[0]}")
    frames = getattr(collector, "requested_frames_per_batch", None)
    total = getattr(collector, "total_frames", math.inf)
    if isinstance(frames, int) and frames and math.isfinite(total) and total % frames:
        return applies(f"batches have {frames} frames, and total_frames={total} is no multiple")
    if not isinstance(frames, int) or not frames:
        return None
    if is_multi_process(collector, "MultiSyncCollector"):  # each worker rounds its part
        workers = collector.num_workers
        if frames % workers:
            more = -(-frames // workers) * workers
            return applies(f"{workers} workers collect {more} frames where {frames} are asked for")
    places = getattr(getattr(collector, "env", None), "batch_size", torch.Size()).numel()
    # Of what was asked for nothing is left; who asks takes a round number.
    asked = [one for one in range(frames - places + 1, frames) if is_round(one)]
    if asked and not is_round(frames) and not is_multi_process(collector):
        said = f"batches have {frames} frames, of {places} environments; did you ask for {asked[0]}"
        return undecided(f"{said}? Then pass the warning as error=")
    return None


def is_round(number):
    """Whether somebody chooses this number of frames."""
    return number % 10 == 0 or number % 16 == 0


@check(
    "no_batch_sees_an_end",
    "No batch is long enough to see the end of an episode",
    "reference/doctor_numbers#no-end",
)
def no_batch_sees_an_end(collector, batch, loss_module=None):
    if not isinstance(steps := getattr(collector, "frames_per_batch", None), int):
        return None
    if is_multi_process(collector):
        return None
    rows = batches_of(batch)[-1]
    seen_whole = done_of(rows).any(-1).all()  # episodes as short as that
    if learns_on_policy(loss_module) and steps < FEWEST_OF_ADVANTAGE and not seen_whole:
        return applies(f"frames_per_batch is {steps} steps: too short for an advantage of returns")
    if not getattr(collector, "reset_at_each_iter", False):
        return None
    if getattr(collector, "set_truncated", False) or done_of(rows).any():
        return clear("a batch has ends")
    seen = f"reset_at_each_iter=True resets after {steps} steps, and no episode ends before"
    return applies(seen) if rows.shape[-1] >= steps else undecided(f"{seen}, so far")


FEWEST_OF_ADVANTAGE = 3


@check("set_truncated_marks_nothing", "set_truncated=True marks nothing in the buffer")
def set_truncated_marks_nothing(collector, replay_buffer):
    if not getattr(collector, "set_truncated", False):
        return None
    if getattr(collector, "extend_buffer", True):
        return clear("the buffer is extended by whole batches")
    return applies("extend_buffer=False writes each frame before it can be marked")


@check("stopping_a_rollout_raises", "Stopping a rollout early raises an AttributeError")
def stopping_a_rollout_raises(collector=None, error=None):
    if isinstance(error, AttributeError) and "_final_rollout" in str(error):
        return applies("the loop found no output buffer")
    if getattr(collector, "interruptor", None) is None or not has(collector, "_carrier"):
        return None
    if has(collector, "_final_rollout") or not getattr(collector, "extend_buffer", True):
        return clear("an interrupted rollout finds what it reaches for")
    return applies("the collector has an interruptor and no output buffer")


@check("whole_trajectories_blame_split_trajs", "trajs_per_batch fails and blames split_trajs")
def whole_trajectories_blame_split_trajs(collector=None, error=None):
    if isinstance(error, KeyError) and "trajs_per_batch requires" in str(error):
        return applies("the batch has no trajectory ids")
    if not getattr(collector, "trajs_per_batch", None):
        return None
    if getattr(collector, "track_traj_ids", True):
        return clear("trajs_per_batch with trajectory ids")
    return applies("trajs_per_batch with track_traj_ids=False")


@check("old_policy_version_after_update", "The frame after an update has the old policy version")
def old_policy_version_after_update(batch, replay_buffer=None):
    if isinstance(batch, (list, tuple)):
        return None
    read = batch.get("policy_version", None)
    acted = batch.get(("next", "policy_version"), None)
    if not isinstance(read, torch.Tensor) or not isinstance(acted, torch.Tensor):
        return None
    old, count = int((read != acted).sum()), len(acted.unique())
    seen = f"{old} frames have the version of the step before; next has their own"
    keys = versions_read_by(replay_buffer)
    if keys and "policy_version" not in keys:
        return clear("the replay buffer reads the version of next")
    if not old and count > 1:
        return clear(f"root and next have the same of {count} versions")
    if not old:
        return undecided("all frames have one version; give a batch that follows an update")
    if keys:
        return applies(f"{seen}, and the replay buffer does not read it")
    return undecided(f"{seen}; which of them is read?")


def versions_read_by(replay_buffer):
    """The keys from which a buffer learns how old its rows are."""
    parts = [private(replay_buffer, "_sampler", None), private(replay_buffer, "_transform", None)]
    parts += getattr(parts[1], "transforms", [])
    names = ("_version_key", "policy_version_key")
    return [getattr(part, name) for part in parts for name in names if hasattr(part, name)]


@check("max_frames_per_traj_is_refused", "max_frames_per_traj is refused by my environment")
def max_frames_per_traj_is_refused(error):
    if isinstance(error, ValueError) and "'step_count' key is already present" in str(error):
        return applies("max_frames_per_traj, and the environment counts its steps already")
    return None
