"""Symptoms of several environments and of workers."""

import copy

import torch
from torchrl.envs import StepCounter, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from tests.support.healthy_pipelines import cartpole
from tests.support.planted import collect_anew, only, with_batch


def every_environment_starts_alike(pipeline):
    if "collector" not in pipeline or not pipeline["env"].batch_size:
        return
    pipeline["env"].set_seed(0, static_seed=True)
    given = collect_anew(pipeline, frames_per_batch=200)
    yield given
    given = with_batch(given)
    yield given
    for _ in range(2):
        given = with_batch(given)
    yield given  # in mid-training
    late = collect_anew(pipeline)
    late["collector"].set_seed(0, static_seed=True)
    yield with_batch(late)


def workers_act_alike(pipeline):
    """A fork server that has torch loaded gives each worker the same generator."""
    if "recurrent_state_h" in pipeline["batch"]:
        return
    single = not pipeline["env"].batch_size
    env = pipeline["env"] if single else TransformedEnv(cartpole(), StepCounter())
    for seeds in ((0, 1), (0, 0)):  # the second plants every_environment_starts_alike as well
        lines = []
        for seed in seeds:
            twin = copy.deepcopy(env)
            twin.set_seed(seed)
            torch.manual_seed(0)
            with torch.no_grad(), set_exploration_type(ExplorationType.RANDOM):
                lines.append(twin.rollout(40, pipeline["policy"], break_when_any_done=False))
        batch = torch.stack(lines).exclude("is_init")
        yield only(pipeline, "policy", "loss_module") | {"batch": batch}
