"""Defects of ten rows of which no other file plants one, written after the checks of version 1.1.0.

Each was made from the page of its row alone, without a look at the check. No check was made to find
more of them (one that had said ``clear`` now says that it cannot decide): their share tells what
that of `kept_aside` told before its misses in the map were looked at.
"""

import functools

import torch
from torch import nn
from torchrl.collectors import MultiSyncCollector
from torchrl.data import LazyMemmapStorage
from torchrl.envs import MultiStepTransform

from tests.support.defects.building_blocks import (
    BUFFERS,
    COLLECTORS,
    ENVIRONMENTS,
    EXPLORATION,
    LEARNING,
    LOSSES,
    fills,
)
from tests.support.defects.environments import Corridor
from tests.support.defects.pipelines import OnPolicy, limited
from tests.support.defects.planting import Defects

DEFECTS = Defects()
DEFECTS.newer = True
plant = DEFECTS.plant


@plant(LOSSES, "dqn_random_start", "q_values_explode")
def target_follows_at_once(script):
    script.updater_options = {"eps": 0.005}
    script.learning_rate = 0.03
    script.updates = 200


@plant(LEARNING, "ppo_continuous", "ppo_clips_almost_everything")
def many_epochs_of_large_steps(script):
    script.learning_rate = 0.3
    script.epochs = 8


@plant(ENVIRONMENTS, "a2c_continuous", "one_observation_dwarfs_the_others")
def place_is_in_millimeters(script):
    class Millimeters(Corridor):
        def observed(self):
            seen = super().observed()
            return {"observation": seen["observation"] * torch.tensor([1000.0, 1.0, 1.0])}

    script.task = functools.partial(Millimeters, continuous=True)


@plant(LEARNING, "ppo_many", "entropy_is_gone_early")
def policy_is_certain_after_some_batches(script):
    script.learning_rate = 0.1
    script.loss_options["entropy_coeff"] = 0.0
    script.epochs = 8
    script.rounds = 8


@plant(LEARNING, "a2c_acrobot", "hidden_units_are_dead")
def steps_of_sgd_kill_units(script):
    script.activation = nn.ReLU
    script.largest_gradient = float("inf")
    script.rounds = 10
    script.make_optimizer = lambda: torch.optim.SGD(script.loss.parameters(), lr=30.0)


@plant(EXPLORATION, "dqn_serial", "epsilon_goes_down_too_soon")
def epsilon_steps_in_each_update(script):
    script.does -= {"anneal"}
    script.updates = 8
    script.greedy_options = {"annealing_num_steps": 1200}
    update = script.update

    def update_and_step(sample):
        update(sample)
        script.explore.step(script.batch.numel())

    script.update = update_and_step


@plant(BUFFERS, "dqn_priority", "most_rows_are_never_drawn")
def workers_fill_the_prioritized_buffer(script):
    make_env = OnPolicy(task=script.task, transforms=script.transforms).make_env
    script.storage = LazyMemmapStorage

    def workers(env, policy, **options):
        script.buffer.extend(env.rollout(30, policy, break_when_any_done=False))
        return MultiSyncCollector([make_env] * 2, policy, **options)

    script.collector_type = workers
    fills(script)


@plant(COLLECTORS, "dqn_dueling", "same_seed_different_start")
def collector_is_seeded_after_it_is_built(script):
    script.make_env = script.fresh_env
    script.then("collector", lambda script: script.collector.set_seed(0))


@plant(LOSSES, "dqn_n_step_serial", "n_step_value_after_the_end")
def multi_step_keeps_its_done_keys(script):
    script.buffer_options["transform"] = lambda: MultiStepTransform(3, script.gamma)


@plant(LOSSES, "ppo_limited", "part_of_the_batch_has_no_advantage")
def too_few_slots_for_cut_trajectories(script):
    script.transforms = limited(8)
    script.advantage_options = {"shifted": True, "shifted_budget": 1}
