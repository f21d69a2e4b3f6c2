"""Effect, cause and fix of what has no page of its own: wrong numbers and settings."""

from __future__ import annotations

from torchrl_doctor.rows import Row

OTHER_ROWS = {
    "numbers_are_not_finite": Row(
        "silent",
        "The environment divides by zero or its simulation diverges. One such number makes the "
        "loss NaN, and with the next step the weights. So does an advantage that is divided by a "
        "deviation of zero.",
        "Mend it in the environment. Until then leave that row out, and end the episode at the row "
        "before, as truncated; a NaN that becomes zero is an observation that never was.",
    ),
    "numbers_are_far_from_one": Row(
        "silent",
        "Observations reach the network in units of their own, or rewards the loss. Gradients are "
        "clipped, layers saturate, and values take very long to follow.",
        "Append `VecNormV2` or `ObservationNorm` to the environment, and `RewardScaling` for the "
        "reward.",
    ),
    "observations_never_change": Row(
        "silent",
        "A sensor is not connected, a normalization has a scale of zero, or a wrapper returns the "
        "first frame. The policy learns one action for all.",
        "Print `env.rollout(5)` without transforms, then with each of them, to see which one "
        "loses the observation.",
    ),
    "truncated_is_not_done": Row(
        "silent",
        "The environment sets `truncated` or `terminated` and not `done`, on which a collector "
        "resets, and where GAE and slices cut.",
        "Return `done = terminated | truncated` from `_step`.",
    ),
    "advantage_has_a_graph": Row(
        "silent",
        "The advantage was computed with gradients on, so the loss of the policy trains the "
        "critic, too.",
        "Compute it under `torch.no_grad()`, or store `advantage.detach()`.",
    ),
    "types_of_floats_differ": Row(
        "loud",
        "The environment returns float64 and the weights are float32.",
        "Append `DoubleToFloat()` to the transforms of the environment.",
    ),
    "number_of_steps_is_lost": Row(
        "silent",
        "`MultiStepTransform` says under `steps_to_next_obs` how many steps a reward sums. Without "
        "that entry the loss discounts the next value by one step.",
        "Keep `steps_to_next_obs` wherever keys are selected, excluded or copied.",
    ),
    "reward_is_a_running_sum": Row(
        "silent",
        "`RewardSum` writes the return so far. A loss that reads it counts the first reward in "
        "each later step.",
        'Leave the key of the reward at `"reward"`, and read the sum for your logs alone.',
    ),
    "optimizer_trains_others": Row(
        "silent",
        "The optimizer was made of a copy of the network, or of a critic of which the loss has "
        "made several.",
        "Make it of `loss_module.parameters()`.",
    ),
    "loss_is_maximized": Row(
        "silent",
        "The optimizer has `maximize=True`, or the loop calls `backward()` of the negative loss. "
        "The losses of TorchRL fall as the policy gets better.",
        "Leave out `maximize=True`, and call `loss.backward()` without a minus.",
    ),
    "optimizer_is_made_anew": Row(
        "silent",
        "The optimizer is made inside the loop. Adam then forgets its moments, and each step is as "
        "long as its first.",
        "Make the optimizer once, before the loop.",
    ),
    "deaths_are_not_terminated": Row(
        "silent",
        "A wrapper swaps `terminated` and `truncated`, or calls every end truncated. A loss then "
        "adds the value of a state that nobody comes to.",
        "Pass on `terminated` as the game returns it, and add limits to `truncated`.",
    ),
    "end_without_a_reason": Row(
        "silent",
        "The environment sets `done`, and returns `terminated` and `truncated` as false. A loss "
        "bootstraps over such an end.",
        "Return `terminated` where the task ends and `truncated` where it is cut off.",
    ),
    "done_after_a_reset": Row(
        "silent",
        "The environment keeps a flag of the last episode and returns it from `_reset`, or "
        "right after it.",
        "Set the flags to false in `_reset`.",
    ),
    "each_step_ends_an_episode": Row(
        "silent",
        "A flag is never taken back, or the limit of steps is 1.",
        "Look at `env.rollout(5)` without transforms, and at the limit of `StepCounter`.",
    ),
    "all_rewards_are_zero": Row(
        "silent",
        "A scale of zero, rewards that a data set has lost, or a sparse task that the policy "
        "never solves.",
        "Print `env.rollout(100)['next', 'reward']` without transforms, then with each of them.",
    ),
    "repeat_loses_rewards": Row(
        "silent",
        "A wrapper repeats each action and returns the reward of the last step, so those of the "
        "others are lost.",
        "Add up the rewards in the wrapper, or leave it out and pass `frame_skip` to `GymWrapper`.",
    ),
    "no_batch_sees_an_end": Row(
        "silent",
        "A batch is shorter than an episode, and the next one begins with a reset, or an advantage "
        "is summed over a step or two.",
        "Leave out `reset_at_each_iter`, or raise `frames_per_batch`.",
    ),
    "evaluation_gives_other_numbers": Row(
        "silent",
        "The data set is normalized, and the environment in which the policy acts is not, or with "
        "other statistics. There the policy reads numbers that it has never seen.",
        "Append `ObservationNorm` with the statistics of the data set and `standard_normal=True` "
        "to that environment.",
    ),
    "each_sample_has_the_same_rows": Row(
        "silent",
        "The sampler seeds its generator for each sample, or does not draw at all.",
        "Seed once, before the loop, and use `RandomSampler()`.",
    ),
    "evaluation_is_another_task": Row(
        "silent",
        "The environment for evaluation was made by other code than the one for training.",
        "Make both with one function, and leave out of evaluation what changes rewards alone.",
    ),
    "no_episode_ends": Row(
        "silent",
        "Neither the task nor a limit ends an episode, so nothing is reset and no return is "
        "complete.",
        "Append `StepCounter(max_steps=...)` to the transforms of the environment.",
    ),
    "norm_does_not_normalize": Row(
        "silent",
        "The statistics are not those of the observations: a few steps of one episode may be all "
        "alike. Or `standard_normal` is false and multiplies by `scale` where you meant to divide. "
        "Or a second normalization takes the output of the first for raw numbers.",
        "Pass `standard_normal=True`, take `loc` and `scale` from `init_stats` with the steps of "
        "several episodes, and normalize each key once.",
    ),
    "rewards_are_clipped_to_one": Row(
        "silent",
        "A clipping whose bounds meet, or lie closer to zero than all rewards, a sign where all "
        "rewards have the same, or a scale of zero.",
        "Give `RewardClipping` bounds that the rewards reach, or scale them with `RewardScaling`.",
    ),
    "masked_actions_are_taken": Row(
        "silent",
        "The policy does not read `action_mask`, or the mask is the wrong way round: true means "
        "allowed.",
        "Append `ActionMask()` to the environment, and use a distribution such as "
        "`MaskedCategorical`.",
    ),
    "pixels_are_not_scaled": Row(
        "silent",
        "Pixels reach the network as numbers up to 255, or were divided by 255 twice.",
        "Divide by 255 as the first layer, or append `ToTensorImage()`.",
    ),
    "rows_are_stored_twice": Row(
        "silent",
        "The collector fills the buffer, and the loop extends it with the same batch.",
        "Extend the buffer in one place.",
    ),
    "data_set_has_no_ends": Row(
        "silent",
        "The data were written without their `done`, so a loss bootstraps from the next episode.",
        "Set `done` and `terminated` in the last row of each episode before you extend the buffer.",
    ),
    "data_set_is_shifted": Row(
        "silent",
        "The next observations, the actions or the rewards were taken from another row than "
        "their own.",
        "Build the next observations as `observation[1:]`, beside `action[:-1]` and the reward of "
        "that action, and drop the last row of each episode.",
    ),
    "actions_have_no_effect": Row(
        "silent",
        "The environment, or a wrapper, reads another key than the action that the policy writes.",
        "Compare `env.action_keys` with what `_step` reads.",
    ),
    "output_ignores_its_input": Row(
        "silent",
        "Weights of zero, dead units, or a layer that drops the observation.",
        "Look at the output of each layer for two observations; lower weight decay or the "
        "learning rate.",
    ),
    "log_prob_of_another_action": Row(
        "silent",
        "An action was changed after the policy had written its log-probability: by an exploration "
        "module after the policy, or where it was cut before it was stored. The ratio of PPO then "
        "compares two actions, and an action that was cut after the step is not the one that was "
        "taken.",
        "Leave the module out: a policy that samples explores by itself, the more the higher "
        "`entropy_coeff` is. Cut nothing: give `TanhNormal` the bounds of the environment.",
    ),
    "noise_is_gone_or_all": Row(
        "silent",
        "The standard deviation has collapsed, has grown without a bound, or is negative, since "
        "nothing makes it positive.",
        "Bound it with `NormalParamExtractor(scale_lb=...)`, and look at the entropy coefficient.",
    ),
    "probabilities_as_logits": Row(
        "silent",
        "A softmax stands before `logits`, and the distribution applies another.",
        "Remove the softmax, or write the output as `probs`.",
    ),
    "values_cannot_reach_returns": Row(
        "silent",
        "The last layer of the critic, or the support of its distribution, is narrower than the"
        " returns.",
        "Drop the last activation, widen the support, or scale the rewards.",
    ),
    "a_setting_is_out_of_range": Row(
        "silent",
        "A coefficient or a discount has a value that works against the training.",
        "Set it to a value inside its range.",
    ),
    "targets_follow_at_once": Row(
        "silent",
        "With `tau=1`, `eps=0` or an interval of zero the targets are the networks themselves, and "
        "with an interval of one they are in every second step. So they are where parameters were "
        "assigned and not copied.",
        "`SoftUpdate(loss_module, tau=0.005)`, or a longer interval of `HardUpdate`, and the "
        "targets that the loss made.",
    ),
    "two_critics": Row(
        "silent",
        "The value estimator was made with another critic than the loss, or with a copy.",
        "Give both the same module.",
    ),
    "critic_without_action": Row(
        "silent",
        "The critic has the state alone in its `in_keys`.",
        "`ValueOperator(network, in_keys=['observation', 'action'])`.",
    ),
    "part_of_the_loss_is_frozen": Row(
        "silent",
        "`requires_grad_(False)` was called on the module, or its parameters were detached.",
        "Call `requires_grad_(True)` before the loss is made.",
    ),
    "learning_rate_is_wrong": Row(
        "silent",
        "The rate is zero, as at the end of a schedule, or so large that weights cannot settle.",
        "Print `optimizer.param_groups[0]['lr']` in the loop; start from 3e-4 with Adam.",
    ),
    "epsilon_starts_at_zero": Row(
        "silent",
        "The exploration module adds no noise from its first step on.",
        "Set `eps_init`, or `sigma_init`, above zero.",
    ),
    "one_environment_for_both": Row(
        "silent",
        "Evaluation resets the environment in which the collector is in mid-episode.",
        "Make a second environment for evaluation.",
    ),
    "buffer_below_a_sample": Row(
        "silent",
        "The storage is smaller than a batch, so each sample repeats rows.",
        "Give the storage room for many batches.",
    ),
    "collected_rows_are_lost": Row(
        "silent",
        "The buffer is emptied before it is full, gets one step of each batch, or is never sampled "
        "from. Or its prioritized sampler is smaller than its storage, and then writes beyond its "
        "memory.",
        "Extend the buffer with whole batches, leave out `empty()`, call the loss with "
        "`buffer.sample()`, and give the sampler the `max_capacity` of the storage.",
    ),
    "collector_fills_another_buffer": Row(
        "silent",
        "The collector was given another buffer than the one in the loop.",
        "Pass the same buffer to the collector and to the loop.",
    ),
    "advantages_are_constant": Row(
        "silent",
        "The advantage is one number, or far larger than one: each action is pushed alike, by as "
        "much as the step allows.",
        "Subtract a baseline, and pass `average_gae=True` to GAE.",
    ),
    "advantages_mix_agents": Row(
        "silent",
        "The advantage was normalized over the agents of a row, or is their mean, so an agent is "
        "told how the others did and not what its own action was worth.",
        "Normalize over time and environments alone: `normalize_advantage_exclude_dims=(-2,)` "
        "keeps the agents apart. The advantage has the shape `(..., agents, 1)` of the reward.",
    ),
    "estimator_reads_two_shapes": Row(
        "loud",
        "A group of agents has a reward for each agent, and the end of an episode is stored once "
        "for all.",
        "Expand `done` and `terminated` to the shape of the reward, under keys of the group, and "
        "name these with `set_keys`.",
    ),
    "old_batches_stay": Row(
        "silent",
        "The buffer has room for several batches, and PPO or A2C expects the present one.",
        "Give the storage the size of a batch, or call `replay_buffer.empty()` before `extend`.",
    ),
    "group_of_one": Row(
        "silent",
        "The advantage of GRPO compares the answers of a group, and there is one.",
        "Set `grpo_size` to at least 2.",
    ),
    "values_leave_all_returns": Row(
        "silent",
        "A target moves with the values that follow it, so an error of both grows from step to "
        "step: without a target network, or with one that follows too fast or too large steps.",
        "Give the loss a target network (`delay_value=True`, or `delay_qvalue=True`) and call "
        "`step()` of a `SoftUpdate` after each update. Lower the learning rate.",
    ),
    "returns_run_over_ends": Row(
        "silent",
        "A loop over the batch sums rewards backwards and does not begin anew where an episode "
        "ends, so each episode is credited with the rewards of the next one.",
        "Write `total = reward[t] + gamma * total * ~done[t]`, or use "
        "`torchrl.objectives.value.functional.reward2go`, which reads `done`.",
    ),
    "next_observation_has_another_scale": Row(
        "silent",
        "The observations were normalized, or scaled, and the next observations were not, or "
        "otherwise. A loss then adds the value of a state that there is not.",
        "Change the observation and the next observation alike, with the same numbers.",
    ),
    "a_batch_is_learned_many_times": Row(
        "silent",
        "A2C and REINFORCE have no ratio between the policy that acted and the one that learns. "
        "After the first epoch the batch is no longer that of the policy.",
        "Take one epoch over each batch, or `ClipPPOLoss`, which has a ratio.",
    ),
    "gradients_are_never_zeroed": Row(
        "silent",
        "`zero_grad()` is missing, so each step follows the sum of all gradients so far.",
        "Call `optimizer.zero_grad()` after each `optimizer.step()`.",
    ),
    "part_of_the_network_never_changes": Row(
        "silent",
        "No optimizer holds these parameters, or no gradient reaches them.",
        "Make the optimizer of `loss_module.parameters()`, and look for `detach()`, `no_grad()`"
        " and frozen modules on the way to them.",
    ),
    "loss_turns_nan": Row(
        "loud",
        "A NaN in the data, a division by zero, or steps that are too large.",
        "Look at the batch of that step first. Then lower the learning rate and clip the norm "
        "of the gradients.",
    ),
    "loss_never_changes": Row(
        "silent",
        "The optimizer holds other parameters, the learning rate is zero, or the loss is "
        "computed of constants.",
        "Give the doctor `optimizer=` and a batch.",
    ),
    "gradients_explode": Row(
        "silent",
        "Steps are too large for values that follow themselves, or rewards are large.",
        "Clip the norm with `torch.nn.utils.clip_grad_norm_`, lower the learning rate, scale "
        "the rewards.",
    ),
    "gradients_are_zero": Row(
        "silent",
        "Units are dead, the output is clipped or saturated, or the graph is cut.",
        "Look at `parameter.grad` of each network after one `backward()`.",
    ),
    "entropy_never_falls": Row(
        "silent",
        "The entropy coefficient outweighs the advantages, or the policy does not learn.",
        "Lower `entropy_coeff`, and look whether the parameters of the policy change.",
    ),
    "ppo_never_clips": Row(
        "silent",
        "The policy hardly moves: a learning rate next to zero, or an advantage of zero.",
        "Look at the advantages of a batch and at the learning rate.",
    ),
    "policy_moves_too_far": Row(
        "silent",
        "After an update the policy is another one than that which collected the batch: too many "
        "epochs on it, or too large a learning rate.",
        "Take fewer epochs or a smaller learning rate, or stop the epochs at a divergence.",
    ),
    "value_error_grows": Row(
        "silent",
        "Values follow a target that runs away: large rewards, a discount of one, or "
        "bootstrapping over ends.",
        "Scale the rewards, and look at `terminated` and the discount.",
    ),
    "return_falls_after_a_peak": Row(
        "silent",
        "Later updates undo what was learned: too large steps, too old data, or too little "
        "exploration left.",
        "Keep the best checkpoint; lower the learning rate over the run.",
    ),
    "return_stays_flat": Row(
        "silent",
        "The policy does not learn, or the return does not depend on it.",
        "Begin with the triage: `It learns nothing`.",
    ),
    "throughput_decays": Row(
        "silent",
        "Something grows with each step: a buffer that is searched, a log that is kept, a graph"
        " that is not freed.",
        "Profile an early and a late iteration, and look at the memory of the process.",
    ),
}
