"""Symptoms of recurrent state."""

import torch
from torchrl.data import SamplerWithoutReplacement, SliceSampler
from torchrl.envs import InitTracker, TransformedEnv
from torchrl.modules import set_recurrent_mode

from tests.support.planted import collect_anew, in_batch, in_buffer, stored, with_batch

PIPELINES = ("recurrent_ppo", "recurrent_dqn")
STATES = ("recurrent_state_h", "recurrent_state_c")


def lstm_forgets_every_step(pipeline):
    pipeline["env"] = TransformedEnv(pipeline["env"].base_env, InitTracker())
    given = collect_anew(pipeline)
    yield given
    given = with_batch(given)
    yield given
    yield with_batch(given, 2)


def lstm_outputs_change_after_done(pipeline):
    for batch in (pipeline["batch"], with_batch(pipeline)["batch"]):
        starts = batch["is_init"].flatten(-2).reshape(*batch.shape)
        if batch["next", "done"].reshape(*batch.shape)[..., :-1].any():
            starts[..., 1:] = False
            batch["is_init"] = starts.unsqueeze(-1)
            yield in_batch(pipeline, batch)


def lstm_learns_nothing_from_the_past(pipeline):
    """The buffer draws single steps, in no order."""
    rows = pipeline["batch"].reshape(-1)
    yield in_buffer(pipeline, stored(rows, batch_size=20))


def critic_ignores_the_past_in_gae(pipeline):
    if "value_estimator" in pipeline:
        batch = pipeline["batch"].exclude("advantage", "value_target", "state_value")
        with set_recurrent_mode(False), torch.no_grad():
            pipeline["value_estimator"](batch)
        yield in_batch(pipeline, batch)


def lstm_outputs_differ_in_slices(pipeline):
    rows = pipeline["batch"].exclude(*STATES, *(("next", key) for key in STATES)).reshape(-1)
    sampler = SliceSampler(slice_len=5, traj_key=("collector", "traj_ids"))
    yield in_buffer(pipeline, stored(rows, sampler=sampler, batch_size=20))
    one_slice = SliceSampler(slice_len=5, traj_key=("collector", "traj_ids"))
    yield in_buffer(pipeline, stored(rows, sampler=one_slice, batch_size=5))


def next_hidden_state_is_zero(pipeline):
    batch = pipeline["batch"]
    for key in STATES:
        batch["next", key].zero_()
    yield in_batch(pipeline, batch)
    yield in_batch(pipeline, batch[..., :1])


def next_states_vanish_after_one_use(pipeline):
    batch = pipeline["batch"]
    with set_recurrent_mode(True), torch.no_grad():
        pipeline["policy"](batch)
    yield in_batch(pipeline, batch)
    yield {name: value for name, value in pipeline.items() if name != "batch"}


def is_init_not_found(pipeline):
    pipeline["env"] = pipeline["env"].base_env
    yield {name: value for name, value in pipeline.items() if name in ("policy", "env")}


def ppo_ratio_off_in_minibatches(pipeline):
    rows = pipeline["batch"].reshape(-1)
    yield in_buffer(pipeline, stored(rows, batch_size=20))
    some = torch.cat([rows[:12], rows[20:24], rows[30:34]])  # few of the rows do not go on
    some["is_init"][[12, 16]] = False  # nor is one of those the start of an episode
    yield in_buffer(
        pipeline, stored(some, batch_size=20, sampler=SamplerWithoutReplacement(shuffle=False))
    )
