"""Symptoms of collectors."""

import torch

from tests.support.planted import collect_anew, in_batch, move_weights, only, with_batch

PIPELINES = ("ppo", "batched_ppo", "ddpg", "dqn", "recurrent_ppo")


def same_seed_different_start(pipeline):
    if pipeline["env"].batch_size or "collector" not in pipeline:
        return
    given = collect_anew(pipeline)
    pipeline["env"].set_seed(0)
    yield given


def log_probability_is_zero(pipeline):
    if "collector" not in pipeline or not _has_log_prob(pipeline):
        return
    given = collect_anew(pipeline, init_random_frames=48)
    yield with_batch(given)
    yield given | {"batch": pipeline["batch"]}  # a later one


def _has_log_prob(pipeline):
    return "action_log_prob" in getattr(pipeline["policy"], "out_keys", ())


def kept_batches_are_all_the_same(pipeline):
    yield in_batch(pipeline, [pipeline["batch"]] * 3)
    later = pipeline["batch"].clone()
    yield in_batch(pipeline, [later, pipeline["batch"], pipeline["batch"]])


def actions_stay_random(pipeline):
    if "collector" not in pipeline:
        return
    given = collect_anew(pipeline, policy=None)
    del given["policy"]
    yield given
    yield with_batch(given)
    yield collect_anew(pipeline, init_random_frames=960, total_frames=960)


def collector_yields_nothing(pipeline):
    if "collector" not in pipeline or pipeline["env"].batch_size:
        return
    options = {"trajs_per_batch": 1, "traj_format": "padded", "reset_at_each_iter": True}
    yield collect_anew(pipeline, frames_per_batch=5, **options)


def set_truncated_marks_nothing(pipeline):
    if "collector" in pipeline and "replay_buffer" in pipeline and not pipeline["env"].batch_size:
        buffer = pipeline["replay_buffer"]
        options = {"set_truncated": True, "extend_buffer": False}
        yield collect_anew(pipeline, replay_buffer=buffer, **options)


def whole_trajectories_blame_split_trajs(pipeline):
    if "collector" in pipeline:
        yield collect_anew(pipeline, trajs_per_batch=2, traj_format="padded", track_traj_ids=False)


def old_policy_version_after_update(pipeline):
    if "collector" not in pipeline:
        return
    given = collect_anew(pipeline, track_policy_version=True)
    yield given
    given = with_batch(given)
    yield given
    given["collector"].increment_version()
    yield with_batch(given)


def collector_keeps_its_own_policy(pipeline):
    if "collector" not in pipeline or not list(pipeline["policy"].parameters()):
        return
    given = collect_anew(pipeline, policy_device="cpu:0")
    yield given
    first = with_batch(given)
    yield first
    yield with_batch(given, 2)
    move_weights(pipeline["policy"])
    yield with_batch(given)
    yield first
    second = next(iter(given["collector"])).clone()
    yield given | {"batch": [first["batch"], second]}
    yield only(given, "collector", "loss_module") | {"batch": [first["batch"], second]}


def hook_changes_nothing_that_is_stored(pipeline):
    if "collector" not in pipeline or "replay_buffer" not in pipeline:
        return

    def at_once(batch):
        batch["next", "reward"].clamp_(-1, 1)

    def by_name(batch):
        reward = batch["next", "reward"]
        reward.clamp_(-1, 1)

    def with_get(batch):
        batch.get(("next", "reward")).clamp_(-1, 1)

    def by_operator(batch):
        reward = batch["next", "reward"]
        reward *= 0.1

    def by_index(batch):
        batch["next", "reward"][:] = 0

    def by_function(batch):
        torch.clamp_(batch["next", "reward"], -1, 1)

    def elsewhere(batch):
        at_once(batch)

    for hook in (at_once, by_name, with_get, by_operator, by_index, by_function, elsewhere):
        yield only(pipeline, "replay_buffer", "policy", "env") | _hooked(pipeline, hook)


def _hooked(pipeline, hook):
    pipeline["collector"]._post_collect_hook = hook
    return {"collector": pipeline["collector"]}


def episode_return_looks_too_low(pipeline):
    if "collector" not in pipeline or pipeline["batch"].get(("next", "episode_reward")) is None:
        return
    seen = []

    def at_once(batch):
        seen.append(batch["next", "episode_reward"].mean())

    def by_name(batch):
        returns = batch["next", "episode_reward"]
        seen.append(returns.mean())

    def by_function(batch):
        seen.append(torch.mean(batch["next", "episode_reward"]))

    for hook in (at_once, by_name, by_function):
        yield only(pipeline, "batch") | _hooked(pipeline, hook)
