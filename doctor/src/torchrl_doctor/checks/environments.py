"""Checks: environments."""

from __future__ import annotations

import contextlib
import copy
import sys

import torch

from torchrl_doctor.copies import copied, legal_action, steppable
from torchrl_doctor.objects import (
    batches_of,
    below_transforms,
    both_sides,
    done_of,
    made_from,
    next_key,
    rolled_out_by_hand,
    steps_after_an_end,
    tables,
    took_longer_before,
    transforms_of,
)
from torchrl_doctor.verdicts import applies, check, clear, undecided


@check("always_the_first_action", "The environment always takes the first action")
def always_the_first_action(batch, env):
    rows, found = batches_of(batch)[0], None
    for key in env.action_keys:
        spec, action = env.full_action_spec_unbatched[key], rows.get(key)
        if type(spec).__name__ != "OneHot" or action is None:
            continue
        shape = tuple(action.shape[rows.ndim :])
        if shape != tuple(spec.shape):
            return applies(f"{key} has shape {shape}, its one-hot spec {tuple(spec.shape)}")
        found = clear(f"{key} has the shape of its one-hot spec")
    return found


@check("frames_after_the_end", "Episodes go on after they are done")
def frames_after_the_end(batch=None, replay_buffer=None, collector=None):
    seen = None
    for what, rows in tables(batch, replay_buffer, collector):
        stored = what != "rows"
        found = None if stored and rows.ndim != 1 else steps_after_an_end(rows)
        if found is None or not rolled_out_by_hand(rows):  # a collector resets
            continue
        if done_of(rows).all():
            return None  # each_step_ends_an_episode
        count, others = found
        if count > others:
            return applies(f"{count} of {rows.numel()} {what} go on from the end of an episode")
        if not (stored or count):  # what is stored may be in any order
            seen = clear(f"{int(done_of(rows).sum())} ends, none of which is gone on from")
    return seen


@check("last_next_observations_are_nan", "The loss is NaN as soon as an episode ends")
def last_next_observations_are_nan(batch):
    rows = batches_of(batch)[-1]
    _, later = both_sides(rows)
    if later is None or not done_of(rows).any():
        return None
    ends, missing = done_of(rows), later.isnan().any(-1)
    seen = f"{int(missing.sum())} next observations of {rows.numel()} have NaN"
    if not missing.any():
        return clear(f"{seen}, and {int(ends.sum())} of them are last ones of an episode")
    if not torch.equal(missing, ends):
        return None  # rows of which nobody kept the next observation
    if ends[..., -1].all():  # then these may be the last rows of a rebuilt batch
        return undecided(f"{seen}: the last ones of an episode, and of the batch")
    return applies(f"{seen}: the last one of each episode")


@check("decimals_are_lost", "A batched environment loses the decimals")
def decimals_are_lost(env, batch=None):
    env = below_transforms(env)
    if "create_env_fn" not in vars(env):
        return None
    try:
        several = data_of_each(env, batch)
    except Exception as error:
        return undecided(f"one of the environments cannot be made: {type(error).__name__}")
    met, rounded = 0, None
    for key, spec in written_specs(env):
        for data in several:
            value = data.get(key, None)
            if not isinstance(value, torch.Tensor):
                continue
            met += 1
            found = f"{key} is {value.dtype}, its spec {spec.dtype}"
            if lost := share_lost(value, spec.dtype):
                return applies(f"{found}: up to {lost:.0%} of a number is lost")
            rounded = found if differs_by_rounding(value, spec.dtype) else rounded
    for key in env.full_action_spec.keys(True, True):
        spec = env.full_action_spec[key]
        if type(spec).__name__ in DISCRETE or not is_whole(spec.dtype):
            continue
        action = batches_of(batch)[-1].get(key, None) if batch is not None else None
        if action is None:
            return undecided(f"the spec of {key} is {spec.dtype}; give a batch with its actions")
        if lost := share_lost(action, spec.dtype):
            found = f"{key} of the policy is {action.dtype}, its spec {spec.dtype}"
            return applies(f"{found}: up to {lost:.0%} of a number is lost")
    if rounded:
        return undecided(f"{rounded}: are its digits enough?")
    return clear(f"{met} entries of {len(several)} environments keep their numbers")


MOST_PLACES = 8  # of a batched environment that are stepped
DISCRETE = ("OneHot", "Categorical", "MultiOneHot", "MultiCategorical", "Binary")


def data_of_each(env, batch):
    """Steps of each of the environments that are not made alike, outside of the batched one."""
    started = vars(env).get("_envs")  # an attribute of ParallelEnv asks the workers
    if started:
        return [some_steps(copy.deepcopy(one), batch) for one in started[:MOST_PLACES]]
    makers = {
        id(make): (make, given)
        for make, given in zip(env.create_env_fn, env.create_env_kwargs, strict=True)
    }
    several = []
    for make, given in list(makers.values())[:MOST_PLACES]:
        with contextlib.closing(make(**given)) as one:
            several.append(some_steps(one, batch))
    return several


def some_steps(env, batch):
    """Of random actions, or with one in *batch*: some environments take those of a policy alone."""
    try:
        return env.rollout(2)
    except Exception:  # raised again, unless the batch has an action to try
        rows = batches_of(batch)[-1:]
        if not rows or any(rows[0].get(key, None) is None for key in env.action_keys):
            raise
        first = rows[0].reshape(-1)[0].select(*env.action_keys)
        return env.step(env.reset().update(first))


def written_specs(env):
    """What a batched environment copies into its memory: keys of a rollout, and their specs."""
    for key in env.full_observation_spec.keys(True, True):
        yield key, env.full_observation_spec[key]
    for key in env.full_reward_spec.keys(True, True):
        yield next_key(key), env.full_reward_spec[key]


MOST_ROUNDED = 1e-3  # of a number: what a narrower type may take without a word


def share_lost(values, kind):
    """The largest share of a number that a cast takes away; 0 where it only rounds."""
    if not isinstance(kind, torch.dtype) or values.dtype == kind:
        return 0.0
    if is_whole(kind) and values.is_floating_point():
        return 1.0 if (values != values.round()).any() else largest_change(values, kind)
    change = largest_change(values, kind)
    return change if change > MOST_ROUNDED else 0.0


def differs_by_rounding(values, kind):
    return isinstance(kind, torch.dtype) and largest_change(values, kind) > 0


def largest_change(values, kind):
    """How much of a number a cast there and back changes at most."""
    before = values.double()
    after = values.to(kind).double()
    known = before.isfinite() & (before != 0)
    change = ((after - before).abs() / before.abs())[known]
    return min(float(change.max()), 1.0) if change.numel() else 0.0


def is_whole(kind):
    return isinstance(kind, torch.dtype) and not (kind.is_floating_point or kind.is_complex)


@check("only_the_first_episode_is_long", "Only the first episode is long")
def only_the_first_episode_is_long(batch, env=None, collector=None):
    rows = batches_of(batch)[0]
    gone_on, others = steps_after_an_end(rows) or (1, 0)
    if gone_on > others:  # no end, or not reset at all
        return None
    played = []
    for ends in done_of(rows).reshape(-1, rows.shape[-1]):
        stops = ends.nonzero().flatten()
        played.append(stops.diff(prepend=-torch.ones_like(stops[:1])).tolist())
    if any(len(lengths) < 4 for lengths in played):
        return None
    if all(lengths[0] >= 5 and set(lengths[1:]) == {1} for lengths in played):
        return applies(f"{played[0][0]} steps, then {len(played[0]) - 1} episodes of one step")
    longest = max(max(lengths[1:]) for lengths in played)
    if longest > 1:
        return clear(f"later episodes take {longest} steps and less")
    seen = f"{sum(map(len, played))} episodes of one step"
    if took_longer_before(rows, collector) and ends_at_once(env, rows):
        return applies(f"{seen}, random actions end them as well, and earlier ones took longer")
    return undecided(f"{seen}; give the first batch")


def ends_at_once(env, rows):
    """Whether random actions end all episodes of a copy in a step, but for the first."""
    if env is None or type(below_transforms(env)).__name__ == "ParallelEnv":
        return False
    twin = copied(env)
    step, ends = twin.reset(), []
    for _ in range(8):
        step = twin.rand_action(step)
        step.update({key: step[key].to(rows[key].dtype) for key in twin.action_keys})
        taken, step = twin.step_and_maybe_reset(step)
        ends.append(done_of(taken))
    return all(one.all() for one in ends[1:])


@check("gym_env_skips_no_frames", "GymEnv skips no frames")
def gym_env_skips_no_frames(env):
    from torchrl.envs import GymEnv

    below = below_transforms(env)
    first = next(iter(vars(below).get("_envs") or [below]))  # those of a ParallelEnv stay away
    spec = made_from(first) if isinstance(first, GymEnv) else None
    used = getattr(spec, "kwargs", {}).get("frameskip")
    if used is None or any("FrameSkip" in type(one).__name__ for one in transforms_of(env)):
        return None
    registered = sys.modules["gymnasium"].spec(spec.id).kwargs.get("frameskip")
    if used == 1 and registered not in (None, 1):
        return applies(f"{spec.id} is registered with frameskip={registered}, this one has 1")
    return clear(f"frameskip is {used}") if registered else None


@check("specs_and_data_disagree", "check_env_specs says that specs and data differ")
def specs_and_data_disagree(env=None, error=None, batch=None):
    if isinstance(error, AssertionError) and is_about_specs(str(error)):
        return applies(str(error).partition("\n")[0][:100])
    if env is None:
        return None
    leaf = below_transforms(env)
    if batched := hasattr(leaf, "create_env_fn"):
        if leaf.is_closed:
            return undecided("the batched environment has not started, or has been closed")
    else:
        leaf = below_transforms(twin := copied(env))
    changed = {key for one in transforms_of(env) for key in getattr(one, "out_keys", ())}
    for rows in batches_of(batch):
        for key, spec in leaf.observation_spec.items(True, True):
            values = rows.get(key, None)
            if values is None or key in changed or not hasattr(spec.space, "low"):
                continue
            low, high = float(spec.space.low.min()), float(spec.space.high.max())
            reach = float(values.min()), float(values.max())
            if reach[0] < low - abs(low) * 1e-3 or reach[1] > high + abs(high) * 1e-3:
                said = f"{key} goes from {reach[0]:.3g} to {reach[1]:.3g}"
                return applies(f"{said}, outside of its spec: {low:.3g} to {high:.3g}")
    if batched:  # it casts its data to the specs
        return None
    try:
        twin.check_env_specs()
    except AssertionError as found:
        if is_about_specs(str(found)):
            return applies(str(found).partition("\n")[0][:100])
        return undecided(f"check_env_specs raises {str(found)[:60]!r}")
    except Exception as found:
        return undecided(f"a copy cannot be checked: {type(found).__name__}")
    return clear("check_env_specs finds nothing")


@check("a_step_changes_the_last_one", "Observation and next observation are the same")
def a_step_changes_the_last_one(env):
    if (twin := steppable(env)) is None:
        return None
    now = legal_action(twin, twin.reset())
    seen = now.clone()
    twin.step(now)
    for key in twin.observation_keys:
        before, after = seen.get(key, None), now.get(key, None)
        if isinstance(before, torch.Tensor) and not torch.equal(before, after):
            return applies(f"{key} of the last step is overwritten in place: return a copy of it")
    return clear("a step leaves the last observation as it was")


@check("a_reset_of_one_resets_others", "The end of one episode resets all environments")
def a_reset_of_one_resets_others(env):
    inner = below_transforms(env)
    if inner.batch_size.numel() < 2 or hasattr(inner, "create_env_fn"):
        return None  # each environment has a reset of its own
    twin = copied(inner)
    if "done" not in twin.done_keys:
        return None
    step = twin.reset()
    for _ in range(2):
        step = twin.step_mdp(twin.step(legal_action(twin, step)))
    if step["done"].any():
        return None
    action = legal_action(twin, step)
    one = torch.zeros_like(step["done"])
    one[(0,) * one.ndim] = True
    ways = []
    for which in (None, None, one):
        other, now = copied(twin), action.clone()
        if which is not None:
            now = other.reset(now.update({"_reset": which}))
            now.update(action.select(*other.action_keys))
        ways.append(other.step(now)["next"].select(*other.observation_keys))
    plain, again, after = (side.flatten(0, side.ndim - 1)[1:] for side in ways)
    if any(
        (a != b).any()
        for a, b in zip(plain.values(True, True), again.values(True, True), strict=True)
    ):
        return None  # what else is random differs, too
    for key in plain.keys(True, True):
        if (plain[key] != after[key]).any():
            return applies(f"reset with _reset for one of {len(plain) + 1} changes {key} of others")
    return clear(f"a reset of one of {len(plain) + 1} leaves the others")


def is_about_specs(text):
    return "real and fake tensordict don't match" in text or "of the specs and data do" in text
