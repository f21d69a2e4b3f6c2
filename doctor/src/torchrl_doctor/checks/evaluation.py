"""Checks: evaluation."""

from __future__ import annotations

import inspect
import math
import pkgutil

import torch

from torchrl_doctor.checks.numbers import FEWEST_ROWS, random_steps
from torchrl_doctor.copies import copied, steppable
from torchrl_doctor.looks import steps_seen
from torchrl_doctor.objects import (
    batches_of,
    below_transforms,
    called_on_entries,
    declared_limit,
    done_of,
    first_of_batched,
    flat,
    get_next,
    in_time,
    innermost_of,
    kinds_of,
    made_from,
    observed_keys,
    transforms_of,
    wrappers_of,
)
from torchrl_doctor.verdicts import STATES, applies, check, clear, undecided


@check("good_in_training_poor_in_evaluation", "Good in training, poor in evaluation")
def good_in_training_poor_in_evaluation(env, eval_env, since=None):
    from torchrl.envs.transforms import ObservationNorm, VecNorm, VecNormV2

    compared = []
    tests = transforms_of(eval_env)
    norms = [t for t in tests if isinstance(t, (ObservationNorm, VecNorm, VecNormV2))]
    own = [t for t in tests if not type(t).__module__.startswith("torchrl.")]
    for train in transforms_of(env):
        for key in getattr(train, "in_keys", []):
            fixed = isinstance(train, ObservationNorm) and train.initialized
            running = isinstance(train, VecNormV2) and train.stateful
            if not fixed and (not running or key in env.reward_keys):
                continue
            before = sum(one[0] == key for one in compared)  # an observation may have several
            test = next(iter([t for t in norms if key in t.in_keys][before:]), None)
            if test is None:
                if own or hasattr(below_transforms(eval_env), "num_workers"):
                    return undecided(f"no norm of {key!r} is seen in the evaluation environment")
                return applies(f"nothing normalizes {key!r} in the evaluation environment")
            compared.append((key, train, test))
    for key, train, test in compared:
        if found := grown_in_evaluation(key, train, test, tests[::-1].index(test), since):
            return found
    for key, train, test in compared:
        if isinstance(train, ObservationNorm):
            if not isinstance(test, ObservationNorm) or not test.initialized:
                return undecided(f"{key!r} has fixed statistics in training, not in evaluation")
            if far(train, test):
                return applies(f"{key!r} is normalized with other statistics in evaluation")
            continue
        seen, seen_in_test = steps_seen(train), steps_seen(test)
        if not seen or seen_in_test == 0:
            return undecided("ask again after a batch and an evaluation")
        found = f"statistics of {seen} steps in training, of {seen_in_test} in evaluation"
        # A frozen copy may be old and still agree.
        if seen_in_test is not None and seen_in_test < seen / 10 and apart(train, test, key):
            return applies(found)
        if not hasattr(test, "to_observation_norm") or apart(train, test, key):
            return undecided(f"the statistics of {key!r} differ: are those of training the newer?")
        if is_apart_and_grows(train, test):
            return undecided(f"{found}, which agree so far: should evaluation have a frozen copy?")
    return clear("the statistics of both agree") if compared else None


@check(
    "evaluation_gives_other_numbers",
    "The environment gives the policy other numbers than the data set",
    "reference/doctor_numbers#normalization",
)
def evaluation_gives_other_numbers(
    policy,
    sample,
    eval_env=None,
    collector=None,
    env=None,
    replay_buffer=None,
    batch=None,
    own_batch=None,
):
    if eval_env is not None:
        key = normalized_in_buffer_alone(replay_buffer, eval_env, policy)
        if key is not None:
            return applies(f"the buffer normalizes {key!r}, and no transform of eval_env does")
    if collector is not None:
        return None
    of_a_copy = own_batch is None and batch is not None
    if of_a_copy and (found := far_from_the_game(batch, sample, policy)):
        return applies(found)
    if eval_env is None or env is not None or (twin := steppable(eval_env)) is None:
        return None
    return data_beside_evaluation(sample, twin, policy)


def far_from_the_game(batch, sample, policy):
    """How a data set holds observations of another scale than the environment gives, or None."""
    rows = batches_of(batch)[-1]
    for key in observed_keys(rows, policy) if sample is not None else ():
        seen, held = rows[key], sample.get(key, None)
        if held is None or not (seen.is_floating_point() and held.is_floating_point()):
            continue
        seen, held = (one.reshape(-1, one.shape[-1]).double() for one in (seen, held))
        if seen.shape[-1] != held.shape[-1] or min(len(seen), len(held)) < FEWEST_ROWS:
            continue
        spread = seen.std(0) + held.std(0)
        off = (seen.mean(0) - held.mean(0)).abs()
        far = (off > FAR_OFF * spread) & (spread > 0)
        if far.any():
            place = int(far.nonzero()[0])
            held, seen = (float(one.mean(0)[place]) for one in (held, seen))
            means = f"{held:.3g} in the data set, and {seen:.3g} in the environment"
            return f"entry {place} of {key!r} is about {means}"
    return None


FAR_OFF = 10.0  # deviations: another part of the same game is nearer


def normalized_in_buffer_alone(replay_buffer, eval_env, policy):
    """The key that a buffer normalizes for the loss and nothing for the policy that is evaluated.

    A transform of the reader's own, or a wrapper of the game, may do it as well.
    """
    read = set(getattr(policy, "in_keys", ()))
    norms = {
        key
        for one in transforms_of(replay_buffer)
        if kinds_of(one) & NORMALIZE
        for key in one.out_keys
        if key in read and key in one.in_keys
    }
    of_env = transforms_of(eval_env) if norms else []
    own = any(not type(one).__module__.startswith("torchrl.") for one in of_env)
    wrapped = any("norm" in type(one).__name__.lower() for one in wrappers_of(eval_env))
    done = {key for one in of_env if kinds_of(one) & NORMALIZE for key in one.out_keys}
    return None if own or wrapped else min(norms - done, key=str, default=None)


NORMALIZE = {"ObservationNorm", "VecNorm", "VecNormV2"}


def data_beside_evaluation(sample, eval_env, policy):
    """Whether a data set has observations that the environment of the evaluation cannot give."""
    steps = None
    read = [key for key in getattr(policy, "in_keys", ()) if sample.get(key, None) is not None]
    for key in dict.fromkeys([*observed_keys(sample, policy), *read]):
        space = getattr(eval_env.observation_spec.get(key, None), "space", None)
        low, high, seen = getattr(space, "low", None), getattr(space, "high", None), sample[key]
        if not seen.is_floating_point():
            continue
        if low is None or not (high - low).isfinite().any():  # bounds of an `Unbounded` are huge
            steps = random_steps(eval_env) if steps is None else steps
            if found := of_another_scale(
                key, seen, None if steps is None else steps.get(key, None)
            ):
                return applies(found)
            continue
        if seen.shape[1:] != low.shape:
            continue
        room = MORE_THAN_ITS_SPEC * (high - low)  # infinite where nothing bounds it
        outside = (seen < low - room) | (seen > high + room)
        if not outside.any():
            continue
        steps = random_steps(eval_env) if steps is None else steps
        given = None if steps is None else steps.get(key, None)
        if given is None or ((given < low - room) | (given > high + room)).any():
            return None  # a spec that its own environment does not keep
        count = int(outside.reshape(len(seen), -1).any(-1).sum())
        said = f"{count} of {len(seen)} sampled {key} are outside of what the evaluation gives"
        return applies(f"{said}: from {float(seen.min()):.3g} to {float(seen.max()):.3g}")
    return None


MORE_THAN_ITS_SPEC = 0.05  # of its width


def of_another_scale(key, seen, given):
    """How far the numbers of an evaluation are off those of a data set, if all are; else None."""
    if given is None or not len(seen) or not given.abs().min() > OFF_SCALE * seen.abs().max():
        return None
    ranges = (f"from {float(one.min()):.3g} to {float(one.max()):.3g}" for one in (given, seen))
    return f"{key} is {' in the evaluation, '.join(ranges)} in the data set"


OFF_SCALE = 10  # times the largest number


def is_apart_and_grows(train, test):
    """Whether the evaluation has statistics of its own, and adds to them."""
    seen = [steps_seen(one) for one in (train, test)]
    return not getattr(test, "frozen", True) and None not in seen and seen[0] != seen[1]


def grown_in_evaluation(key, train, test, number, since):
    """Whether an evaluation between two looks has added to statistics, of its own or of training.

    Where training and evaluation have the same ones, a look on either side of an evaluation tells.
    """
    changed = since.changed("eval_env") if since else {}
    grown = any(has for name, has in changed.items() if name.startswith(f"{number}."))
    if not grown or getattr(test, "frozen", True):
        return None
    others = [has for name, has in since.changed("env").items() if has]
    then, now = since.number(f"eval_env.{number}", "eval_env") or (0, 0)
    if not others or is_apart_and_grows(train, test):
        return applies(f"evaluation added {now - then} steps to statistics of {key!r} of its own")
    frames = since.number("frames", "collector")
    if frames and frames[0] == frames[1]:
        return applies(f"{now - then} steps of evaluation are in the statistics of {key!r}")
    return None


def apart(train, test, key):
    """Whether an observation a deviation off the mean of training moves by half of one in test."""
    if not hasattr(test, "to_observation_norm"):
        return False
    a, b = (
        next(n for n in flat(norm.to_observation_norm()) if key in n.in_keys)
        for norm in (train, test)
    )
    return far(a, b)


def far(norm, other):
    """Whether the other `ObservationNorm` moves by 0.5 what the first one takes to -1 or 1."""
    (slope, start), (theirs, begin) = line(norm), line(other)
    moved = [theirs * (side - start) / slope + begin - side for side in (-1, 1)]
    return not bool((torch.stack(moved).abs() <= 0.5).all())  # NaN is far, too


def line(norm):
    """Slope and start of what it computes; the numbers of environments may differ."""
    parts = (torch.atleast_1d(x.detach()) for x in (norm.loc, norm.scale))
    loc, scale = (x.reshape(-1, x.shape[-1]).mean(0) for x in parts)
    return (1 / scale, -loc / scale) if norm.standard_normal else (scale, loc)


@check("evaluation_rollout_ends_too_early", "The evaluation rollout ends much too early")
def evaluation_rollout_ends_too_early(batch):
    if isinstance(batch, list) or batch.ndim != 2 or batch.get("collector") is not None:
        return None
    done = batch.get(("next", "done"))
    if done is None or len(done) < 2 or done.shape[1] < 2 or batch.names[-1] != "time":
        return None  # slices end with an episode too; a rollout names its time
    done = done.reshape(*batch.shape, -1).any(-1)
    at_the_end, before = done[:, -1].sum().item(), done[:, :-1].any().item()
    if not before and 0 < at_the_end < len(done):
        return applies(
            f"{at_the_end} of {len(done)} environments ended at step {done.shape[1]}, "
            "and with it the rollout"
        )
    if not before:
        return undecided(f"no environment ended before step {done.shape[1]}; give a longer rollout")
    return clear(f"the rollout did not stop at the first of {len(done)} environments")


@check("episode_return_looks_too_low", "The episode return looks too low")
def episode_return_looks_too_low(batch, collector=None, env=None, own_batch=None, log=None):
    if found := sums_that_begin_anew(batch, env):
        return found
    if own_batch is not None and log is not None and (found := logged_of_all_steps(batch, log)):
        return applies(found)
    if isinstance(batch, list) or batch.get(("next", "episode_reward")) is None:
        return None
    returns, done = batch["next", "episode_reward"], batch["next", "done"]
    hook = getattr(collector, "post_collect_hook", None)
    # Without a hook, what is logged is in no object.
    if not hasattr(hook, "__code__") or returns.shape != done.shape or not done.any():
        return None
    mean, of_episodes = returns.mean().item(), returns[done].mean().item()
    found = (
        f"episode_reward has a mean of {mean:.1f}, and of {of_episodes:.1f} where an episode ends"
    )
    if (("next", "episode_reward"), "mean") in called_on_entries(hook):
        return applies(f"{found}; the hook takes the first")
    return undecided(f"{found}; which of them do you log?")


def logged_of_all_steps(batch, log):
    """How the last return in a log is the mean of the sums so far; None where it is not."""
    rows = batches_of(batch)[-1]
    done = done_of(rows)
    for key in rows.keys(True, True) if done.any() else ():
        if key[0] != "next" or key[-1] != "episode_reward":
            continue
        sums = rows[key].reshape(*rows.shape, -1)
        mean, of_episodes = float(sums.mean()), float(sums[done].mean())
        for series in log.of("return") if not math.isclose(mean, of_episodes, rel_tol=1e-3) else ():
            if math.isclose(series.values[-1], mean, rel_tol=1e-5):
                said = f"{series.name} is {mean:.4g}, the mean of all sums so far"
                return f"{said}; where an episode ends it is {of_episodes:.4g}"
    return None


def sums_that_begin_anew(batch, env):
    """Applies where a `RewardSum` does not go on from its value inside an episode; else None."""
    from torchrl.envs.transforms import RewardSum

    transforms = transforms_of(env)
    sums = [one for one in transforms if isinstance(one, RewardSum)]
    last = {
        summed: key
        for place, one in enumerate(transforms)
        for key, summed in zip(one.in_keys, one.out_keys, strict=False)
        if one in sums and not any(key in other.out_keys for other in transforms[place + 1 :])
    }
    for rows in in_time(batch):
        inside = ~done_of(rows)[..., :-1]
        for key in {key for one in sums for key in one.out_keys}:
            now, after = rows.get(key, None), get_next(rows, key)
            if now is None or after is None:
                continue
            width = (*rows.shape, -1)
            reward = get_next(rows, last[key]) if key in last else None
            if reward is not None and reward.shape == now.shape and "steps_to_next_obs" not in rows:
                wrong = ~same(now + reward, after, 1e-4).reshape(width).all(-1)
                if wrong.sum() > 0.05 * rows.numel():
                    steps = f"{int(wrong.sum())} of {rows.numel()} steps"
                    return applies(f"{key} is not the sum so far and the reward in {steps}")
            now, after = now.reshape(width)[..., 1:, :], after.reshape(width)[..., :-1, :]
            lost = ~same(now, after, 1e-5).all(-1) & inside
            if lost.sum() > 0.05 * inside.sum():
                steps = f"{int(lost.sum())} of {int(inside.sum())} steps inside episodes"
                return applies(f"{key} begins anew in {steps}")
    return None


def same(one, other, atol):
    """Where two sums agree; a NaN among the rewards is no fault of the sum."""
    return torch.isclose(one, other, 1e-3, atol, equal_nan=True)


@check("return_is_not_the_score", "The logged return is not the score of the game")
def return_is_not_the_score(env=None, eval_env=None):
    verdicts = [score_of(one) for one in (env, eval_env) if one is not None]
    verdicts = sorted(filter(None, verdicts), key=lambda one: STATES.index(one.state))
    return next(iter(verdicts), None)


def score_of(env):
    """Whether `RewardSum` adds up what one environment paid."""
    from torchrl.envs import transforms

    names = ("RewardScaling", "RewardClipping", "SignTransform", "BinarizeReward")
    names += ("VecNorm", "VecNormV2")
    kinds = tuple(getattr(transforms, name) for name in names if hasattr(transforms, name))
    changed, unknown, summed = {}, {}, set()
    inner = first_of_batched(env)
    if inner is None:
        unknown["reward"] = f"a transform inside {type(below_transforms(env)).__name__}"
    for one in wrappers_of(inner):
        if any("Reward" in kind.__name__ for kind in type(one).__mro__):
            changed["reward"] = type(one).__name__
    for one in transforms_of(env):
        if isinstance(one, transforms.RewardSum):
            # With a sum of its own before, the second one is meant.
            for key in changed.keys() & set(one.in_keys) - summed:
                return applies(f"RewardSum adds up {key!r} after {changed[key]} has changed it")
            for key in unknown.keys() & set(one.in_keys) - summed:
                return undecided(f"does {unknown[key]} change {key!r}, which RewardSum adds up?")
            summed |= set(one.in_keys)
        elif not isinstance(one, transforms.DTypeCastTransform):
            seen = changed if isinstance(one, kinds) else unknown
            seen |= {key: type(one).__name__ for key in one.out_keys if key in one.in_keys}
    return clear("RewardSum adds up what the environment paid") if summed else None


@check(
    "evaluation_is_another_task",
    "Evaluation differs from training in its transforms or its limit",
    "reference/doctor_settings#evaluation",
)
def evaluation_is_another_task(env, eval_env, batch=None, policy=None):
    if eval_env is env:
        return None
    if (other := another_game(env, eval_env)) is not None:
        return applies(other)
    ours, theirs = (skipped_frames(one) for one in (env, eval_env))
    if ours != theirs:
        return applies(f"frame_skip is {ours} in training, {theirs} in evaluation")
    read = set(getattr(policy, "in_keys", ()))
    names, others = (
        [type(t).__name__ for t in transforms_of(one) if read & set(getattr(t, "out_keys", ()))]
        for one in (env, eval_env)
    )
    unlike = [one for one in names if names.count(one) > others.count(one) and "Norm" not in one]
    known = not hasattr(below_transforms(eval_env), "num_workers")  # which may have them inside
    if unlike and known:
        return applies(f"{unlike[0]} changes an observation in training, and not in evaluation")
    ours, theirs = map(declared_limit, (env, eval_env))
    steps = [get_next(rows, "step_count") for rows in batches_of(batch)]
    longest = max((int(one.max()) for one in steps if one is not None), default=0)
    if theirs < min(ours, longest):
        seen = f"evaluation ends at its limit of {theirs}, an episode of training took {longest}"
        return applies(f"{seen} steps")
    if unlike or theirs < ours:
        return None
    key = seen_otherwise(env, eval_env, read)
    if key:
        return applies(f"transforms make another {key!r} of one state in training and evaluation")
    return None if key is None else clear("transforms, frame_skip and limit agree")


def another_game(env, eval_env):
    """How the games that ``gymnasium.make`` made differ; None where they do not, or nothing tells.

    What is drawn has no part in it, nor has the limit of steps.
    """
    ours, theirs = (made_from(first_of_batched(one)) for one in (env, eval_env))
    if ours is None or theirs is None:
        return None
    if ours.id != theirs.id:
        return f"the game is {ours.id!r} in training, {theirs.id!r} in evaluation"
    made = ours.entry_point
    made = made if callable(made) else pkgutil.resolve_name(made)
    defaults = inspect.signature(made).parameters
    for name in sorted({*ours.kwargs, *theirs.kwargs} - DRAWN_OR_SKIPPED):
        default = getattr(defaults.get(name), "default", None)
        own, other = (one.kwargs.get(name, default) for one in (ours, theirs))
        if own is not other and repr(own) != repr(other):
            return f"{name} of {ours.id!r} is {own} in training, {other} in evaluation"
    return None


DRAWN_OR_SKIPPED = {"render_mode", "frameskip", "repeat_action_probability"}
DRAWN_OR_SKIPPED |= {"full_action_space", "camera_id", "camera_name", "width", "height"}


def seen_otherwise(env, eval_env, read):
    """What the policy reads and the two make differently of one reset; "" where all is alike.

    None where nothing tells: only where each has its transforms right around one environment, and
    draws nothing in them.
    """
    from torchrl.envs import TransformedEnv

    both, seen = (env, eval_env), []
    leaves = [below_transforms(one) for one in both]
    if any(one.batch_size or hasattr(one, "create_env_fn") for one in leaves):
        return None
    if type(leaves[0]) is not type(leaves[1]):
        return None
    if any("Norm" in type(t).__name__ for one in both for t in transforms_of(one)):
        return None  # its statistics are another matter
    if any(
        getattr(one, "base_env", leaf) is not leaf for one, leaf in zip(both, leaves, strict=True)
    ):
        return None
    for number, one in enumerate((*both, *both)):
        twin = copied(leaves[1])
        if isinstance(one, TransformedEnv):
            twin = TransformedEnv(twin, one.transform.clone())
        twin.set_seed(0)
        torch.manual_seed(number // 2)
        seen.append(twin.reset())
    alike = None
    for key in sorted(read, key=str):
        ours, theirs, *again = (rows.get(key, None) for rows in seen)
        if any(not isinstance(one, torch.Tensor) for one in (ours, theirs, *again)):
            continue
        if not (torch.equal(ours, again[0]) and torch.equal(theirs, again[1])):
            continue
        if ours.shape != theirs.shape or not torch.allclose(ours, theirs, 1e-3, 1e-5):
            return key
        alike = ""
    return alike


def skipped_frames(env):
    """How many frames a step takes, as a transform or the environment says."""
    # A batched environment that has not started never answers.
    asked = (*transforms_of(env), innermost_of(env))
    found = [getattr(one, "frame_skip", None) for one in asked]
    return max([one for one in found if isinstance(one, int)], default=1)
