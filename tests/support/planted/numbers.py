"""Symptoms of the numbers in the data, and of those that the reader has set."""

import functools
import math

import torch
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import (
    MultiStepTransform,
    ObservationNorm,
    RewardClipping,
    RewardSum,
    TransformedEnv,
)

from tests.support.planted import in_batch


def _changed(pipeline, key, values):
    batch = pipeline["batch"].clone()
    batch[key] = values(batch[key].clone())
    return in_batch(pipeline, batch)


def numbers_are_not_finite(pipeline):
    for key in ("observation", ("next", "reward")):
        for wrong in (math.nan, math.inf):

            def spoil(values, wrong=wrong):
                values.view(-1)[-1] = wrong
                return values

            yield _changed(pipeline, key, spoil)


def observations_never_change(pipeline):
    yield _changed(pipeline, "observation", torch.zeros_like)


def numbers_are_far_from_one(pipeline):
    def enlarge(values):
        return 1e6 * (values.abs() + 1)

    def enlarge_one(values):
        values.view(-1)[-1] = 1e6
        return values

    for key in ("observation", ("next", "reward")):
        yield _changed(pipeline, key, enlarge)
    yield _changed(pipeline, ("next", "reward"), enlarge_one)


def one_observation_dwarfs_the_others(pipeline):
    for entry in range(pipeline["batch"]["observation"].shape[-1]):

        def enlarge(values, entry=entry):
            values[..., entry] *= 1e4
            return values

        yield _changed(pipeline, "observation", enlarge)


def truncated_is_not_done(pipeline):
    batch = pipeline["batch"].clone()
    for end in ("truncated", "terminated"):
        spoiled = batch.clone()
        spoiled["next", end] = torch.ones_like(batch["next", "done"])
        spoiled["next", "done"] = torch.zeros_like(batch["next", "done"])
        yield in_batch(pipeline, spoiled)


def actions_and_bounds_differ(pipeline):
    for module in pipeline["policy"].modules():
        given = getattr(module, "distribution_kwargs", None) or {}
        if "low" in given:
            module.distribution_kwargs = {"low": -1.0, "high": 1.0}
            yield pipeline | {"planted_in": "policy"}


def advantage_has_a_graph(pipeline):
    values = torch.ones(pipeline["batch"].shape, requires_grad=True).unsqueeze(-1)
    for key in ("advantage", "value_target"):
        batch = pipeline["batch"].clone()
        batch[key] = values * 2
        yield in_batch(pipeline, batch)


def types_of_floats_differ(pipeline):
    spoiled = _changed(pipeline, "observation", torch.Tensor.double)
    if "lstm" not in str(pipeline["policy"]).lower():
        yield spoiled


def _several_steps(pipeline, gamma):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        transform=MultiStepTransform(n_steps=3, gamma=gamma),
        batch_size=8,
    )
    buffer.extend(pipeline["batch"].reshape(-1))
    return buffer


def number_of_steps_is_lost(pipeline):
    buffer = _several_steps(pipeline, 0.99)
    del buffer.storage._storage["steps_to_next_obs"]
    yield pipeline | {"replay_buffer": buffer, "planted_in": "replay_buffer"}


def two_discounts(pipeline):
    yield pipeline | {
        "replay_buffer": _several_steps(pipeline, 0.5),
        "planted_in": "replay_buffer",
    }


def reward_is_a_running_sum(pipeline):
    env = TransformedEnv(pipeline["env"], RewardSum(in_keys=["reward"], out_keys=["sum"]))
    for owner in {"value_estimator", "loss_module"} & pipeline.keys():
        pipeline[owner].set_keys(reward="sum")
        yield pipeline | {"env": env, "planted_in": owner}
        pipeline[owner].set_keys(reward="reward")


def end_without_a_reason(pipeline):
    batch = pipeline["batch"].clone()
    batch["next", "done"][..., -1, :] = True
    for end in ("truncated", "terminated"):
        batch["next", end] = torch.zeros_like(batch["next", "done"])
    yield in_batch(pipeline, batch)


def done_after_a_reset(pipeline):
    def set_first(done):
        done[..., 0, :] = True
        return done

    if "collector" in pipeline:
        yield _changed(pipeline, "done", set_first)


def each_step_ends_an_episode(pipeline):
    yield _changed(pipeline, ("next", "done"), torch.ones_like)

    def every_second(done):
        done[..., ::2, :] = True
        return done

    yield _changed(pipeline, ("next", "done"), every_second)


def all_rewards_are_zero(pipeline):
    if "collector" in pipeline:
        yield _changed(pipeline, ("next", "reward"), torch.zeros_like)


def rewards_are_clipped_to_one(pipeline):
    for bounds in ((0.5, 0.5), (1.0, -1.0)):
        env = TransformedEnv(pipeline["env"], RewardClipping(*bounds))
        yield pipeline | {"env": env, "planted_in": "env"}


def norm_does_not_normalize(pipeline):
    batch = pipeline["batch"].clone()
    batch["observation"] = batch["observation"] * 100 + 500
    env = TransformedEnv(pipeline["env"], ObservationNorm(0.0, 1.0, in_keys=["observation"]))
    yield in_batch(pipeline | {"env": env}, batch)


def rows_are_stored_twice(pipeline):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(500), batch_size=8)
    for _ in range(2):
        buffer.extend(pipeline["batch"].reshape(-1))
    yield pipeline | {"replay_buffer": buffer, "planted_in": "replay_buffer"}


def output_ignores_its_input(pipeline):
    for module in pipeline["policy"].modules():
        if isinstance(module, torch.nn.Linear):
            with torch.no_grad():
                module.weight.zero_()
    yield pipeline | {"planted_in": "policy"}


def hidden_units_are_dead(pipeline):
    found = [
        (module, name)
        for module in pipeline["policy"].modules()
        for name, child in module.named_children()
        if isinstance(child, torch.nn.Tanh)
    ]
    if "recurrent_state_h" in pipeline["batch"] or not found:
        return
    for module, name in found:
        setattr(module, name, torch.nn.ReLU())
        with torch.no_grad():
            module[0].bias.fill_(-100.0)
    yield pipeline | {"planted_in": "policy"}


def noise_is_gone_or_all(pipeline):
    if "scale" in set(pipeline["batch"].keys()):
        for factor in (1e-7, 1e7):
            yield _changed(pipeline, "scale", lambda scale, factor=factor: scale * factor)

            def of_one_number(scale, factor=factor):
                return torch.cat([scale * factor, scale], -1)

            yield _changed(pipeline, "scale", of_one_number)


def probabilities_as_logits(pipeline):
    if "logits" in set(pipeline["batch"].keys()):
        yield _changed(pipeline, "logits", lambda logits: logits.softmax(-1))


def masked_actions_are_taken(pipeline):
    batch = pipeline["batch"].clone()
    if batch["action"].dtype in (torch.bool, torch.int64):
        forbids = ~batch["action"].bool()
        for mask in (forbids, torch.ones_like(forbids)):  # the second has forbidden nothing yet
            batch["action_mask"] = mask
            yield in_batch(pipeline, batch)


def no_episode_ends(pipeline):
    """Attributes whose names have "max" in them are no limits of time."""
    if "collector" not in pipeline or pipeline["env"].batch_size:
        return
    if any(getattr(one, "max_steps", None) for one in pipeline["env"].modules()):
        return
    inner = _below(pipeline["env"])
    inner.max_speed, inner.track_length = 3, 5
    batch = pipeline["batch"].clone()
    for end in ("done", "truncated", "terminated"):
        batch["next", end].zero_()
    inner._step = functools.partial(_without_end, inner._step)
    yield in_batch(pipeline, batch)


def _without_end(step, tensordict):
    after = step(tensordict)
    for end in ("done", "truncated", "terminated"):
        after[end] = torch.zeros_like(after[end])
    return after


def _below(env):
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env
