"""Symptoms of value estimation and losses."""

import copy

import torch
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import MultiStepTransform
from torchrl.objectives import HardUpdate, SoftUpdate, ValueEstimators
from torchrl.objectives.value import GAE

from tests.support.planted import episodes_of, in_batch, in_buffer, move_weights, only, stored

PIPELINES = ("ppo", "a2c", "batched_ppo", "sac", "ddpg", "dqn", "rebuilt_dqn", "recurrent_ppo")
TARGETS = ("advantage", "value_target", "state_value")


def _gae(pipeline):
    return type(pipeline.get("value_estimator")).__name__ == "GAE"


def values_too_low_at_time_limits(pipeline):
    batch = pipeline["batch"]
    if batch.get(("next", "truncated")) is None:
        return
    bare = batch.exclude(("next", "terminated"))
    bare["next", "truncated"][..., -1, :] = True
    bare["next", "done"][..., -1, :] = True
    plain = {name: value for name, value in pipeline.items() if name != "replay_buffer"}
    yield in_batch(plain, bare)
    yield in_batch(plain, bare.exclude(("next", "truncated")))
    dead = batch.clone()
    dead["next", "truncated"].zero_()
    dead["next", "terminated"].zero_()
    dead["next", "terminated"][..., 4::5, :] = True
    dead["next", "done"] = dead["next", "terminated"].clone()
    yield in_batch(plain, dead)
    for owner in ("loss_module", "value_estimator"):
        if owner in pipeline and hasattr(pipeline[owner], "set_keys"):
            pipeline[owner].set_keys(terminated="done")
    yield pipeline


def _drop_updater(pipeline):
    loss = pipeline["loss_module"]
    for name in loss._has_update_associated:
        loss._has_update_associated[name] = False
    return {name: value for name, value in pipeline.items() if name != "target_updater"}


def q_values_stop_improving(pipeline):
    if "target_updater" not in pipeline:
        return
    loss, updater = pipeline["loss_module"], pipeline["target_updater"]
    another = SoftUpdate(copy.deepcopy(loss), eps=0.99)
    given = _drop_updater(pipeline)
    yield given
    yield given | {"target_updater": another}
    move_weights(loss)
    yield given
    yield given | {"target_updater": another}
    # An updater that nobody calls is of no use either.
    yield pipeline | {"target_updater": type(updater)(loss, **_options(updater))}


def _options(updater):
    if hasattr(updater, "eps"):
        return {"eps": updater.eps}
    return {"value_network_update_interval": updater.value_network_update_interval}


def q_values_explode(pipeline):
    if not hasattr(pipeline.get("target_updater"), "eps"):
        return
    updater = SoftUpdate(pipeline["loss_module"], eps=0.5)
    updater.eps = 0.005  # the constructor warns of it
    yield pipeline | {"target_updater": updater}
    updater.step()
    yield pipeline | {"target_updater": updater}


def n_step_value_after_the_end(pipeline):
    rows = pipeline["batch"].reshape(-1)
    rows["next", "terminated"][5] = rows["next", "done"][5] = True
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        transform=MultiStepTransform(n_steps=3, gamma=0.99),
        batch_size=8,
    )
    buffer.extend(rows)
    yield in_buffer(pipeline, buffer)


def target_updater_never_steps(pipeline):
    if "target_updater" not in pipeline:
        return
    loss = pipeline["loss_module"]
    for make in (
        lambda: SoftUpdate(loss, eps=0.99),
        lambda: HardUpdate(loss, value_network_update_interval=2),
        lambda: HardUpdate(loss, value_network_update_interval=1000),
    ):
        updater = make()
        yield pipeline | {"target_updater": updater}
        move_weights(loss)
        yield pipeline | {"target_updater": updater}
    slow = [SoftUpdate(loss, eps=eps) for eps in (1.0, 1 - 1e-7)]
    slow += [HardUpdate(loss, value_network_update_interval=steps) for steps in (1000, 1_000_000)]
    move_weights(loss)
    for updater in (*slow, SoftUpdate(copy.deepcopy(loss), eps=0.99)):
        for _ in range(3):
            updater.step()
        yield pipeline | {"target_updater": updater}


def loaded_policy_gets_worse(pipeline):
    if "target_updater" not in pipeline:
        return
    loss = pipeline["loss_module"]
    with torch.no_grad():
        for name, weights in loss.named_parameters():
            if "value" in name:
                weights.copy_(torch.randn_like(weights))
    for make in (torch.optim.Adam, torch.optim.RMSprop):
        yield only(pipeline, "loss_module") | {"optimizer": make(loss.parameters(), lr=1e-3)}


def ppo_clips_before_the_first_update(pipeline):
    if "Clip" not in type(pipeline["loss_module"]).__name__:
        return
    batch = pipeline["batch"]
    wide = batch.clone()
    wide["action_log_prob"] = wide["action_log_prob"].unsqueeze(-1)
    yield in_batch(pipeline, wide)
    # The environment executes another action than the one that was drawn.
    batch["action_log_prob"] = batch["action_log_prob"] - 1
    yield in_batch(pipeline, batch)


def stored_log_prob_requires_grad(pipeline):
    if "action_log_prob" not in pipeline["batch"]:
        return
    batch = pipeline["batch"]
    batch["action_log_prob"] = batch["action_log_prob"].clone().requires_grad_()
    yield in_batch(pipeline, batch)


def worse_with_a_shorter_time_limit(pipeline):
    if "next" not in pipeline["batch"] or pipeline["batch"].ndim > 1:
        return
    rows = pipeline["batch"].exclude("step_count", ("next", "step_count"), *TARGETS)
    if "observation" not in rows["next"]:
        return
    pipeline["env"].base_env.max_steps = 10
    for lengths in ([10] * 5, [10, 10, 4, 10], [4, 10], [4, 10, 7, 3]):
        yield in_batch(pipeline, episodes_of(rows, lengths).refine_names("time"))
    del pipeline["env"].base_env.max_steps
    for lengths in ([10] * 5, [10, 10, 4, 10], [4, 10], [4, 10, 7, 3]):
        yield in_batch(pipeline, episodes_of(rows, lengths).refine_names("time"))


def advantages_leak_between_environments(pipeline):
    if not _gae(pipeline) or pipeline["batch"].ndim < 2:
        return
    batch = pipeline["batch"].exclude(*TARGETS, ("next", "state_value"))
    pipeline["value_estimator"].time_dim = 0
    given = {name: value for name, value in pipeline.items() if name != "replay_buffer"}
    yield given | {"batch": batch}
    pipeline["value_estimator"].time_dim = None
    yield in_batch(given, batch.reshape(-1))


def advantages_look_like_noise(pipeline):
    if not _gae(pipeline):
        return
    batch = pipeline["batch"].exclude(*TARGETS, ("next", "state_value"))
    yield in_buffer(pipeline, stored(batch.reshape(-1), batch_size=16))
    flat = batch.reshape(-1)
    yield only(pipeline, "value_estimator", "loss_module", "policy") | {
        "batch": flat[torch.randperm(len(flat))]
    }


def ppo_worse_with_small_minibatches(pipeline):
    if not _gae(pipeline):
        return
    batch = pipeline["batch"].exclude(*TARGETS, ("next", "state_value"))
    given = only(pipeline, "loss_module", "policy")
    yield in_buffer(given, stored(batch.reshape(-1), batch_size=16))
    other = copy.deepcopy(pipeline)
    other["value_estimator"].set_keys(advantage="mine")
    yield other | {"planted_in": "value_estimator"}


def part_of_the_batch_has_no_advantage(pipeline):
    if _gae(pipeline) and "recurrent_state_h" not in pipeline["batch"]:
        batch = pipeline["batch"].exclude(*TARGETS, ("next", "state_value"))
        batch["next", "done"][..., 5:25:2, :] = True
        gae = pipeline["value_estimator"]
        shifted = GAE(gamma=0.9, lmbda=0.9, value_network=gae.value_network, shifted=True)
        yield in_batch(pipeline | {"value_estimator": shifted}, batch)


def a_new_gamma_changes_nothing(pipeline):
    loss = pipeline["loss_module"]
    if _gae(pipeline):
        loss.make_value_estimator(ValueEstimators.GAE, gamma=0.9, lmbda=0.95)
        yield pipeline


def log_prob_not_found(pipeline):
    if "Clip" in type(pipeline["loss_module"]).__name__:
        given = only(pipeline, "loss_module", "policy", "collector")
        yield in_batch(given, pipeline["batch"].exclude("action_log_prob"))


def gae_none_not_subscriptable(pipeline):
    if _gae(pipeline):
        pipeline["value_estimator"].value_network.out_keys[-1] = "mine"
        yield pipeline


def state_value_missing_on_some_batches(pipeline):
    if "Clip" in type(pipeline["loss_module"]).__name__:
        pipeline["loss_module"].clip_value = torch.tensor(0.2)
        batch = pipeline["batch"].exclude(*TARGETS, ("next", "state_value"))
        batch["advantage"] = torch.zeros_like(batch["next", "reward"])
        yield in_batch(pipeline, batch)


def sets_of_keys_are_exclusive(pipeline):
    if _gae(pipeline):
        batch = pipeline["batch"].exclude(*TARGETS, ("next", "state_value"))
        batch["state_value"] = torch.zeros_like(batch["next", "reward"])
        yield in_batch(pipeline, batch)
