"""Symptoms of older documents that this release does not show; for the debugging map."""

import json
import os

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.envs import Compose, GymEnv, InitTracker, TransformedEnv
from torchrl.modules import (
    LSTMModule,
    OneHotCategorical,
    ProbabilisticActor,
    QValueModule,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss

N_FRAMES = 60


def make_env(*transforms):
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    return TransformedEnv(env, Compose(*transforms)) if transforms else env


def collector_of(env, policy=None, **options):
    options = {"frames_per_batch": N_FRAMES, "total_frames": -1, **options}
    return Collector(env, policy, auto_register_policy_transforms=False, **options)


def first_batch(env, policy=None, **options):
    collector = collector_of(env, policy, **options)
    try:
        return next(iter(collector)).clone()
    finally:
        collector.shutdown()


def recurrent(*marks):
    """An environment with a primer, and its policy with an LSTM."""
    torch.manual_seed(0)
    lstm = LSTMModule(4, 8, in_key="observation", out_key="features")
    env = make_env(*marks, lstm.make_tensordict_primer())
    head = TensorDictModule(torch.nn.Linear(8, 2), ["features"], ["action_value"])
    return env, TensorDictSequential(lstm, head, QValueModule(spec=env.action_spec))


def missing_tracker():
    error = None
    try:
        collector_of(*recurrent())
    except KeyError as caught:
        error = caught
    assert error is not None, "a missing InitTracker is not loud any more"
    assert "is_init" in str(error)
    batch = first_batch(*recurrent(InitTracker()))
    state, start = batch["recurrent_state_h"].flatten(1), batch["is_init"].squeeze(-1)
    assert (state[start] == 0).all(), "an episode does not start from zeros"
    assert len(state[~start].unique(dim=0)) == int((~start).sum()), "states repeat"
    return (
        "Without ``InitTracker`` the hidden state is the same in every trajectory, silently",
        f"It is loud: ``{type(error).__name__}`` on ``is_init`` while the collector is built. With "
        "the tracker the state is the same only where an episode starts: zeros.",
    )


def max_frames_per_traj():
    limits = (1, 2, 5, 2 * N_FRAMES)
    for limit in limits:
        batch = first_batch(make_env(), max_frames_per_traj=limit)
        assert batch.shape == (N_FRAMES,), f"max_frames_per_traj={limit} gives {batch.shape}"
    return (
        "``max_frames_per_traj`` gives empty batches",
        "A batch is full with each limit that was tried (" + ", ".join(map(str, limits)) + "). A "
        "collector with ``trajs_per_batch`` and ``reset_at_each_iter`` may yield nothing.",
    )


def advantage_kept():
    env = make_env()
    torch.manual_seed(0)
    actor = ProbabilisticActor(
        TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    batch = first_batch(env, actor)
    ClipPPOLoss(actor, critic)(batch)
    assert "advantage" not in batch, "the loss writes the advantage into the batch"
    return (
        "A PPO loss leaves its advantage in the batch, and the next epoch uses the stale one",
        "The loss writes none: a batch without ``advantage`` has none afterwards.",
    )


def edited_batch():
    collector = collector_of(make_env())
    batches = iter(collector)
    next(batches)["observation"].fill_(torch.nan)
    fresh = next(batches)
    collector.shutdown()
    assert fresh["observation"].isfinite().all(), "an edited batch leaks into the next"
    return (
        "A batch that is edited in place leaks into the next one",
        "By default a ``Collector`` yields a copy: the next batch is untouched.",
    )


def main():
    rows = [missing_tracker(), max_frames_per_traj(), advantage_kept(), edited_batch()]
    table = {"columns": ["Said", "What happens"], "rows": rows}
    print(json.dumps({"table": table}))


if __name__ == "__main__":
    main()
