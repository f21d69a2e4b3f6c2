"""Effect, cause and fix of each symptom. Made of the pages: ``python tools/doctor_rows.py``."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """What the page of a symptom says: `effect` is "silent" or "loud"."""

    effect: str
    cause: str
    fix: str


ROWS = {
    "a_new_gamma_changes_nothing": Row(
        "silent",
        "`make_value_estimator(gamma=...)` makes a new estimator, and an argument that you leave "
        "out gets its default. Code that kept the old `loss.value_estimator` still uses the old "
        "settings.",
        "Call `loss.value_estimator(batch)` instead of an estimator that you keep, and pass all "
        "settings to each call of `make_value_estimator`.",
    ),
    "a_reset_of_one_resets_others": Row(
        "silent",
        "`_reset` draws a new state for every row, and the environment keeps its state on `self`. "
        'It ignores the entry `"_reset"` of its input, which marks the rows whose episode has '
        "ended.",
        "Change only the marked rows, or keep the state in the TensorDict.",
    ),
    "a_step_changes_the_last_one": Row(
        "silent",
        "The environment returns the tensor in which it keeps its state, and the next step "
        "changes this tensor in place. So the observation before the step changes as well.",
        "Return a new tensor from `_reset` and `_step`, for example `self.position.clone()`.",
    ),
    "actions_and_bounds_differ": Row(
        "silent",
        "A distribution does not take its bounds from the `spec` of the actor. `TanhNormal` "
        "covers -1 to 1 by default, and `Normal` has no bounds.",
        'Give `TanhNormal` the bounds of the environment: `distribution_kwargs={"low": space.low, '
        '"high": space.high}`, with `space = env.action_spec_unbatched.space`.',
    ),
    "actions_stay_noisy": Row(
        "silent",
        "The collector does not call `policy.eval()`, so dropout is active and batch "
        "normalization updates its statistics. The exploration type has no effect on either.",
        "Call `policy.eval()` before you collect, and `policy.train()` before the loss. For PPO, "
        "stay in evaluation mode: its ratio compares the two passes.",
    ),
    "actions_stay_random": Row(
        "silent",
        "A collector that gets neither `policy` nor `policy_factory` acts with a `RandomPolicy`.",
        "Pass the policy that you train as `policy`.",
    ),
    "actor_of_many_fails_in_one": Row(
        "loud",
        "The spec of the batched environment has a dimension for the environments. "
        "`EGreedyModule` draws its random actions from this spec. The module can expand a spec to "
        "more dimensions, but cannot reduce it to fewer.",
        "Give `EGreedyModule` the spec `env.action_spec_unbatched`.",
    ),
    "advantages_leak_between_environments": Row(
        "silent",
        'GAE works along the dimension that is named `"time"`, or along the last one if none has '
        "that name. A batch loses the name when you flatten it, or unbind it along time and stack "
        "it again. Neighbors along its last dimension may then belong to different environments.",
        "Compute advantages before you flatten or rearrange the batch. If time is not the last "
        "dimension, pass `time_dim`.",
    ),
    "advantages_look_like_noise": Row(
        "silent",
        "GAE is called on a minibatch of single rows that were drawn at random. Unless `lmbda` is "
        "0, GAE assumes that the next row is the next step of the trajectory.",
        "Call GAE on the batch of the collector, before it goes into the buffer.",
    ),
    "advantages_wrong_with_several_workers": Row(
        "silent",
        "`cat_results=-1` joins the batches of the workers along time. `cat_results=0` does the "
        "same if each worker has one environment. By default, the collector does not mark where "
        "one worker ends, so GAE runs from one worker into the next.",
        'Leave `cat_results` at `"stack"`, its default. If you need one dimension, flatten after '
        "GAE.",
    ),
    "always_the_first_action": Row(
        "silent",
        "The policy writes the index of an action where the environment expects a one-hot vector. "
        "The environment looks for the largest entry. In a single number, this is entry 0.",
        "Use `OneHotCategorical`, or make the environment with `categorical_action_encoding=True`.",
    ),
    "answers_lose_their_end": Row(
        "silent",
        "The tokenizer uses the same token for padding and for the end of an answer. "
        "`TransformersWrapper` sets this up if the tokenizer has no `pad_token`. By default, the "
        "wrapper removes padding from answers, and so removes the end.",
        "Give the tokenizer a `pad_token` that the model never generates, before you make the "
        "wrapper.",
    ),
    "buffer_file_already_exists": Row(
        "loud",
        "A storage creates its files in `scratch_dir`. It does not read the files that an earlier "
        "run left there, and by default refuses to overwrite them.",
        "Save the buffer with `dumps`. After the restart, make a buffer in a new folder and call "
        "`loads`. If you do not need the old rows, delete the old folder.",
    ),
    "buffer_holds_garbage": Row(
        "silent",
        "With the start method `fork`, each worker writes to its own copy of a "
        "`LazyTensorStorage`. The main process reads from another copy, whose rows the workers "
        "never write.",
        "Extend the buffer in the main process, make the storage with `shared_init=True`, or keep "
        "TorchRL's start method.",
    ),
    "buffer_outlives_its_files": Row(
        "silent",
        "Something deleted the folder during the run, such as a `with` block that ended or a job "
        "that cleans `/tmp`. The open mapping keeps the data readable until the process ends.",
        "Give the storage `scratch_dir=tempfile.mkdtemp()` and `auto_cleanup=True`, so that the "
        "folder lives as long as the buffer. If a job cleans `/tmp`, choose another place with "
        "`mkdtemp(dir=...)`. Call `dumps` to save rows that have to outlive the run.",
    ),
    "burn_in_works_once": Row(
        "silent",
        "With `prefetch`, a buffer transforms its samples in threads. A thread does not see the "
        "`set_recurrent_mode(True)` of the code that samples, so the LSTM takes single steps "
        "there.",
        "Give the transform a second module, with the same weights and "
        "`default_recurrent_mode=True`. Or do not prefetch.",
    ),
    "collector_keeps_its_own_policy": Row(
        "silent",
        "If the policy is not on the collector's `policy_device` (by default its `device`), the "
        "collector acts with a copy. The optimizer does not change the copy.",
        "Call `collector.update_policy_weights_()` after the optimizer steps, or put the policy "
        "on `policy_device` before the collector is made.",
    ),
    "collector_yields_nothing": Row(
        "silent",
        "With `trajs_per_batch` and `reset_at_each_iter=True`, the collector by default throws "
        "away each episode that does not end within one batch. If all episodes are longer, it "
        "yields nothing.",
        "Leave out `reset_at_each_iter`, or make `frames_per_batch` large enough for a whole "
        "episode of each environment.",
    ),
    "critic_ignores_the_past_in_gae": Row(
        "silent",
        "A loss module switches recurrent modules to whole sequences. A value estimator that you "
        "call yourself does not. The critic then computes each step alone, from the stored state, "
        "or from zeros if there is none.",
        "Call the estimator under `set_recurrent_mode(True)`. Make it with `shifted=True`. "
        "`deactivate_vmap=True` also works if the batch holds hidden states from the critic's "
        "current weights.",
    ),
    "cuda_in_forked_workers": Row(
        "loud",
        "The workers are forked from a process that has used CUDA, and a forked process cannot "
        "use CUDA again. TorchRL starts workers with `spawn`, unless your code or a library has "
        "set `fork`.",
        'Start the workers with `spawn`: remove `set_start_method("fork")` and '
        '`mp_start_method="fork"`. If you need `fork`, keep the environments and the policy of '
        "the workers on the CPU.",
    ),
    "decimals_are_lost": Row(
        "silent",
        "By default, if all specs have a fixed shape, a batched environment copies each result "
        "into buffers made from the spec. The copy casts to the dtype of the spec.",
        "Give the spec the dtype that the environment returns, and run `check_env_specs` on a "
        "single environment before you batch it.",
    ),
    "delta_saves_no_memory": Row(
        "silent",
        "By default, the transform skips integer observations. It stores deltas as 16-bit floats, "
        "which are larger than the bytes of an image.",
        "For `uint8` images, use `compact_obs=True` in the collector, with `ToTensorImage` and "
        "then `NextStateReconstructor` in the buffer.",
    ),
    "end_signal_has_two_dimensions": Row(
        "loud",
        "The batch has two dimensions, environments and time, but the storage has `ndim=1`, the "
        "default. So each stored row holds all steps of one environment, not one step.",
        "Make the storage with `LazyTensorStorage(..., ndim=2)`: `ndim` is the number of "
        "dimensions of the batch.",
    ),
    "entropy_is_gone_early": Row(
        "silent",
        "The optimizer steps are too large, and the entropy bonus is zero or too small. The "
        "policy becomes deterministic before it has learned. With discrete actions, its "
        "log-probability then has hardly any gradient.",
        "Lower the learning rate. If that is not enough, raise the entropy bonus: "
        "`ClipPPOLoss(..., entropy_coeff=0.1)`.",
    ),
    "environments_share_one_memory": Row(
        "silent",
        "The policy acts in recurrent mode, which treats the last batch dimension as time. During "
        "a step, the last dimension is the environments.",
        "Collect outside `set_recurrent_mode(True)`, with a module that has "
        "`default_recurrent_mode=False`.",
    ),
    "episode_return_looks_too_low": Row(
        "silent",
        "`RewardSum` writes a running sum to every step. The mean over all steps averages the "
        "sums of unfinished episodes.",
        'Read `("next", "episode_reward")` where `("next", "done")` is set.',
    ),
    "episodes_get_shorter_with_every_sample": Row(
        "silent",
        "A `LazyStackStorage` returns the stored rows themselves, and with a `SliceSampler` a "
        "`TensorDictReplayBuffer` marks the ends of the sampled slices in them.",
        "Use `LazyTensorStorage`, or give the buffer a transform that clones the sampled rows.",
    ),
    "epsilon_goes_down_too_soon": Row(
        "silent",
        "`annealing_num_steps` counts what you pass to `step()`. The loop passes the number of "
        "collected frames at every update, so each frame is counted once per update.",
        "Call `explore.step(batch.numel())` once for each batch, outside of the loop over updates.",
    ),
    "epsilon_never_goes_down": Row(
        "silent",
        "Neither the collector nor the loss calls `EGreedyModule.step`. Your own training loop "
        "has to.",
        "Call `egreedy.step(batch.numel())` after each batch.",
    ),
    "evaluation_collector_explores": Row(
        "silent",
        "While it collects, a collector sets its own exploration type, `RANDOM` by default. This "
        "overrides the type that is set around the collector.",
        "Pass `exploration_type=ExplorationType.DETERMINISTIC` to the collector.",
    ),
    "evaluation_rollout_ends_too_early": Row(
        "silent",
        "By default, a rollout stops for all environments as soon as one of them is done.",
        "Call `rollout(100, break_when_any_done=False)`, and read the return of each episode at "
        "its end.",
    ),
    "evaluation_takes_random_actions": Row(
        "silent",
        "Outside of `set_exploration_type(...)`, the exploration type is `None`. Modules that "
        "change the action to explore treat `None` like `RANDOM`.",
        "Evaluate under `set_exploration_type(ExplorationType.DETERMINISTIC)`.",
    ),
    "every_environment_starts_alike": Row(
        "silent",
        "The function that makes an environment also gives it a fixed seed, so all environments "
        "draw the same random numbers.",
        "Seed the batched environment or the collector, and take the seed out of the function.",
    ),
    "files_gone_after_a_copy": Row(
        "silent",
        "With a `scratch_dir` and `auto_cleanup=True`, a storage deletes this folder when the "
        "storage itself is deleted. A copy has the same folder and does the same.",
        "Pass `auto_cleanup=False` if you pickle, copy or send the buffer, and delete the folder "
        "yourself. For a copy with files of its own, call `dumps` and `loads`.",
    ),
    "filling_a_buffer_raises_about_dimensions": Row(
        "loud",
        "The `ndim` of the storage is larger than the number of dimensions of the batch. `ndim=2` "
        "is for environments and steps, but the batch of a single environment has only steps.",
        "Make the storage with `LazyTensorStorage(..., ndim=batch.ndim)`.",
    ),
    "first_extend_takes_all_memory": Row(
        "loud",
        "`LazyTensorStorage` learns the size of a row from the first rows, and then allocates "
        "memory for `max_size` rows at once.",
        "Multiply `max_size` by the bytes of a row. If that is more than your memory, choose a "
        "smaller `max_size` or use `LazyMemmapStorage` with `scratch_dir`. Store images as "
        "`uint8`.",
    ),
    "first_samples_after_refill_are_old": Row(
        "silent",
        "With `prefetch`, threads draw the next samples in advance. `empty` and `extend` do not "
        "discard samples that are already drawn.",
        "Leave out `prefetch` if you refill the buffer with each batch. If the buffer is large "
        "and changes slowly, you can prefetch.",
    ),
    "frames_after_the_end": Row(
        "silent",
        "`EnvBase.step()` neither resets the environment nor refuses to go on after the end of an "
        "episode.",
        "Call `EnvBase.step_and_maybe_reset()` and go on from its second result.",
    ),
    "gae_none_not_subscriptable": Row(
        "loud",
        'The critic does not write its value to `"state_value"`, where GAE and the loss look for '
        "it by default.",
        "Pass the key to GAE and the loss with `set_keys(value=...)`, or let the critic write "
        '`"state_value"`.',
    ),
    "gae_raises_with_lstm": Row(
        "loud",
        "By default, a value estimator runs its network on the observations and the next "
        "observations at once, with `torch.vmap`. PyTorch's recurrent layers do not support it, "
        "and TorchRL's modules around them seldom do.",
        "Pass `deactivate_vmap=True` to the estimator, and call it in recurrent mode. If the "
        "batch holds no hidden states from the critic's current weights, pass `shifted=True` "
        "instead. Otherwise V(s') is wrong.",
    ),
    "good_in_training_poor_in_evaluation": Row(
        "silent",
        "The two environments have separate `VecNormV2` transforms, with separate statistics. The "
        "transform of the evaluation environment has seen only a few steps, so it normalizes "
        "observations differently.",
        "Give the evaluation environment a frozen copy of the training environment's transform: "
        "`vecnorm.frozen_copy()`.",
    ),
    "grpo_clips_before_the_first_update": Row(
        "silent",
        "`TransformersWrapper` stores a log-probability of zero for the first token of each "
        "answer that it generates. This means a probability of one, but the model gives the token "
        "a lower probability.",
        "Score the generated tokens with a second wrapper, made with `generate=False`, and store "
        "its log-probabilities.",
    ),
    "gym_env_skips_no_frames": Row(
        "silent",
        "`GymEnv` makes the environment with `frameskip=1` unless you pass `frame_skip`. This "
        "value replaces the registered one, such as 4 for `ALE/Pong-v5`. It also replaces a "
        "`frameskip=4` that you pass.",
        "Write `GymEnv(name, frame_skip=4)`.",
    ),
    "hidden_units_are_dead": Row(
        "silent",
        "Optimizer steps that were too large made the inputs of many ReLUs negative for every "
        "observation. Such a ReLU outputs zero, and the weights into it get no gradient.",
        "Lower the learning rate, and clip the norm of the gradients. Start the training again, "
        "because dead units rarely recover.",
    ),
    "hook_changes_nothing_that_is_stored": Row(
        "silent",
        "With `replay_buffer`, a `Collector` by default gives the hook a `LazyStackedTensorDict`, "
        "which keeps each step separate. Reading a key makes a copy, and the hook changes only "
        "the copy.",
        "Assign instead of changing in place: `td[key] = td[key] * 100`.",
    ),
    "is_init_not_found": Row(
        "loud",
        "A recurrent module needs `is_init` to know where an episode begins, and no transform of "
        "the environment writes that key.",
        "Append two transforms to the environment: `InitTracker()` and the primer of the module, "
        "`module.make_tensordict_primer()`.",
    ),
    "kept_batches_are_all_the_same": Row(
        "silent",
        "With `return_same_td=True`, the collector yields the same object each time and "
        "overwrites it with the next batch, unless another option copies the batch.",
        "Leave out `return_same_td`, or append `batch.clone()`.",
    ),
    "last_next_observations_are_nan": Row(
        "silent",
        "When an episode ends, the simulator returns the first observation of the next episode, "
        "and the last observation is lost. With Isaac Lab's environments, TorchRL writes NaN in "
        "its place.",
        "Pass `missing_obs_value=0.0` to the wrapper. Zeros are correct where an episode "
        "terminates. Where a time limit cuts the episode, the target needs the lost observation. "
        "`GAE(auto_reset_env=True)` uses the observation before it.",
    ),
    "loaded_policy_gets_worse": Row(
        "silent",
        "The weights were loaded after the loss and its updater were made. The target network "
        "still has the weights that you replaced, and it gives the targets.",
        "Load the weights before you make the loss and its updater.",
    ),
    "log_prob_not_found": Row(
        "loud",
        "The actor was made without `return_log_prob=True`, so the batches hold actions without "
        "log-probabilities. Losses that compare an old policy with a new one need both.",
        "Pass `return_log_prob=True` to the actor that collects.",
    ),
    "log_probability_is_zero": Row(
        "silent",
        "During `init_random_frames`, the collector does not call the policy. The keys that the "
        "policy would write keep the zeros from the collector's preallocated buffer.",
        "Leave out `init_random_frames`, or do not train on the batches that it covers.",
    ),
    "loss_and_data_on_two_devices": Row(
        "loud",
        "A batch stays on the device where the collector or the storage put it, and a loss module "
        "does not move it.",
        "Call `loss_module(batch.to(device))`, or give the storage of the buffer the device of "
        "the loss.",
    ),
    "loss_stays_high_with_normalized_observations": Row(
        "silent",
        "In a buffer, `ObservationNorm` changes only the keys in `in_keys`. "
        '`in_keys=["observation"]` leaves `("next", "observation")` raw.',
        'Pass `in_keys=["observation", ("next", "observation")]`.',
    ),
    "lstm_forgets_every_step": Row(
        "silent",
        "The specs of the environment do not include the hidden state, so it is dropped after "
        "each step. The LSTM starts each step from zeros.",
        "Append `lstm.make_tensordict_primer()` to the transforms of the environment.",
    ),
    "lstm_learns_nothing_from_the_past": Row(
        "silent",
        "By default, in a loss that is not a `LossModule`, the LSTM takes each row on its own, as "
        "one step from its stored state. This state is a constant, so no gradient reaches earlier "
        "steps.",
        "Compute the loss under `set_recurrent_mode(True)`, or derive the loss from `LossModule`.",
    ),
    "lstm_outputs_change_after_done": Row(
        "silent",
        "`is_init` is in the data but never True, so the loss carries the state of the LSTM from "
        "one episode into the next.",
        "Append `InitTracker()` to the environment, and remove whatever else writes `is_init` "
        "there.",
    ),
    "lstm_outputs_differ_in_slices": Row(
        "silent",
        "The buffer does not hold the hidden state, so each slice starts from zeros, even in the "
        "middle of an episode.",
        "Store the hidden state with the other keys.",
    ),
    "lstm_raises_in_parallel_env_only": Row(
        "loud",
        "`ParallelEnv` shares memory only for keys in the specs of the environment, and the "
        "hidden state is not among them. The policy has no memory in the other environments "
        "either: they drop the state without an error.",
        "Append `lstm.make_tensordict_primer()` to the environment in each worker, or to the "
        "`ParallelEnv`.",
    ),
    "max_frames_per_traj_is_refused": Row(
        "loud",
        "`max_frames_per_traj` appends a `StepCounter` to the environment, and refuses an "
        "environment that already has a `step_count`.",
        "Leave out the argument, and set the limit in the existing counter: "
        "`StepCounter(max_steps=...)`.",
    ),
    "mean_reward_is_far_too_low": Row(
        "silent",
        "`split_trajs=True` fills each trajectory with rows of zeros up to the length of the "
        "longest one, and the buffer stores these rows as steps.",
        'Store `batch[batch["collector", "mask"]]`, or leave out `split_trajs`.',
    ),
    "memmap_buffer_fills_memory": Row(
        "silent",
        "On Linux without `scratch_dir`, the tensors are mapped to unnamed files in `/dev/shm`, "
        "which is part of RAM and not on a disk.",
        "Give the storage a folder on a disk: `LazyMemmapStorage(size, scratch_dir=folder)`.",
    ),
    "memmap_storage_refuses_gpu": Row(
        "loud",
        "A memory-mapped tensor is a file that the operating system maps into the memory of the "
        "CPU, so no other device can hold it.",
        "Leave the storage on the CPU and move the samples, in the training loop or with "
        "`replay_buffer.append_transform(lambda batch: batch.to(device))`.",
    ),
    "more_frames_than_asked_for": Row(
        "silent",
        "A batch holds the same number of steps from each environment, so `frames_per_batch` is "
        "rounded up to a multiple of the number of environments.",
        "Choose `frames_per_batch` as a multiple of the number of environments, and "
        "`total_frames` as a multiple of `frames_per_batch`.",
    ),
    "most_next_observations_nan": Row(
        "silent",
        "`NextStateReconstructor` takes the next observation from the following row of the "
        "sample. A random sampler puts an unrelated row there, so in most rows the transform "
        "writes NaN. The value estimator then replaces NaN with the current observation.",
        "Sample slices with `SliceSampler(...)`, and pass `step_count_key` to the reconstructor. "
        "If you need single transitions, store both observations: leave out `compact_obs`.",
    ),
    "most_rows_are_never_drawn": Row(
        "silent",
        "Each process has its own copy of the priorities of a `PrioritizedSampler`. A row that a "
        "worker writes gets a priority in the worker, but none in the process that samples.",
        "Make the buffer with `TensorDictPrioritizedReplayBuffer(..., sync=False)`, which gives "
        "new rows their priorities before it samples. Or extend the buffer in the main process, "
        "with the batches of the workers.",
    ),
    "mps_refuses_float64": Row(
        "loud",
        "MPS, the GPU backend of a Mac, has no float64. Many environments, such as those of "
        "MuJoCo, return observations in float64, and TorchRL keeps this dtype.",
        "Leave the environment on the CPU, wrap it with `TransformedEnv(env, DoubleToFloat())`, "
        "and move its batches to `mps`.",
    ),
    "n_step_next_observation_wrong": Row(
        "silent",
        "`MultiStepTransform` replaces next observations when rows are written to the buffer. "
        "With `compact_obs` or `NextObservationDelta` there are none yet. The buffer rebuilds "
        "them later, from one step, when you sample.",
        "Store both observations of each step: do not combine `MultiStepTransform` with "
        "`compact_obs` or `NextObservationDelta`.",
    ),
    "n_step_value_after_the_end": Row(
        "silent",
        'By default, `MultiStepTransform` keeps the `"terminated"` of the first of the n steps. '
        "So the n - 1 rows before a terminated step are not marked as terminated. Their targets "
        "add the value of the last observation, although no reward follows it.",
        'Leave `"terminated"` out of `done_keys`, so that it moves with the next observation: '
        '`MultiStepTransform(..., done_keys=["done", "truncated"])`.',
    ),
    "new_weights_arrive_late": Row(
        "silent",
        "The workers of `MultiAsyncCollector` collect while you train, so the next batch is "
        "complete or partly complete when the new weights arrive.",
        "Use `MultiSyncCollector`, or a loss that corrects for data of older policies.",
    ),
    "next_batch_does_not_fit_the_buffer": Row(
        "loud",
        "A tensor storage allocates its memory for the shapes of the first batch. "
        "`split_trajs=True` pads trajectories to the length of the longest one in their batch, "
        "and that length differs from batch to batch.",
        'Store single steps instead of padded trajectories: `batch[batch["collector", "mask"]]` '
        "(the mask is true for real steps). Or collect without `split_trajs`.",
    ),
    "next_hidden_state_is_zero": Row(
        "silent",
        "With `compact_obs=True`, the collector does not write the next states. But it has "
        "already reserved memory for them in the batch, and this memory stays zero.",
        "Collect without `compact_obs`. Or add `use_buffers=False`, which removes the zeros, and "
        "rebuild the next states.",
    ),
    "next_image_is_black": Row(
        "silent",
        "Where a sample does not hold the next image, `NextStateReconstructor` writes its "
        "`fill_value`. In bytes, the result is a valid image.",
        "Put `ToTensorImage` before the reconstructor in the buffer, so that the reconstructor "
        "gets floats, and pass no `fill_value`.",
    ),
    "next_observation_of_another_step": Row(
        "silent",
        "Two slices of one trajectory can follow each other in a sample. If the first slice stops "
        "before the trajectory ends, `NextStateReconstructor` by default takes the second slice's "
        "first row as the next step.",
        'Put a `StepCounter` on the environment and pass `step_count_key="step_count"` to '
        "`NextStateReconstructor`.",
    ),
    "next_states_vanish_after_one_use": Row(
        "silent",
        "A module writes its outputs into the TensorDict that you pass. In recurrent mode, a GRU "
        "or LSTM writes next hidden states only for the last step of each sequence, and zeros for "
        "the others.",
        "When you call a module yourself, pass it a copy: `batch.copy()`.",
    ),
    "no_trajectory_is_long_enough": Row(
        "loud",
        "Each batch holds one step of every environment. After flattening, the environments "
        "alternate from row to row, so consecutive rows never belong to the same trajectory.",
        "Do not flatten the batch: `LazyTensorStorage(..., ndim=2)` keeps the steps of each "
        "environment together. Collect at least two steps per environment at a time. If the "
        "episodes themselves are shorter than a slice, set `strict_length=False`.",
    ),
    "noisy_network_never_learns_its_noise": Row(
        "silent",
        "By default, `DQNLoss` calls its network with the exploration type `DETERMINISTIC`. In "
        "this mode `NoisyLinear` adds no noise, so the scale of the noise gets no gradient.",
        "Set `loss.deterministic_sampling_mode = ExplorationType.RANDOM`.",
    ),
    "noisy_network_repeats_its_noise": Row(
        "silent",
        "`NoisyLinear` draws its noise once, when it is built. A forward pass does not draw "
        "again, and neither do collectors and losses.",
        "Call `network.apply(reset_noise)` after each step of the optimizer.",
    ),
    "off_policy_loss_is_nan": Row(
        "silent",
        "With `compact_obs=True`, the next observation in the last row of nearly every slice is "
        "NaN. Losses such as `DQNLoss` call the value estimator's `value_estimate`, and this "
        "method does not replace NaN. The estimator's `forward`, which PPO uses, replaces it.",
        "With TD(0), the default of these losses, write zeros for NaN in terminated rows, and "
        "drop the other rows whose next observation is NaN. With TD(lambda), store both "
        "observations of each step.",
    ),
    "old_policy_version_after_update": Row(
        "silent",
        "A step writes the version beside the next observation. Unless the environment is reset "
        "between them, both move to the root of the next frame, so the root has the version of "
        "the step before.",
        'Read `("next", "policy_version")`, as with `StalenessAwareSampler(version_key=("next", '
        '"policy_version"))`.',
    ),
    "one_file_is_passed_twice": Row(
        "loud",
        "The objects that you send to the process refer to the same open file more than once. "
        "`spawn` passes files by their numbers, and refuses to pass a number twice.",
        "Pass each connection and each tensor in shared memory as a single object, or send copies "
        "(`tensor.clone()`).",
    ),
    "one_kept_step_keeps_the_batch": Row(
        "silent",
        "Indexing a TensorDict with a number or a slice returns views, and a view keeps the "
        "memory of the whole batch alive.",
        "Keep a copy: `batch[i].clone()`.",
    ),
    "one_observation_dwarfs_the_others": Row(
        "silent",
        "The entries of the observation have different scales. The first layer starts with "
        "weights of similar size for all entries, so the largest entry dominates nearly every "
        "hidden unit.",
        'Bring all entries to the same scale: append `ObservationNorm(in_keys=["observation"], '
        "standard_normal=True)` and call its `init_stats`, or append `VecNormV2`.",
    ),
    "one_step_cannot_be_stored": Row(
        "loud",
        "With `ndim=2`, `TensorDictReplayBuffer` writes two coordinates for each row into the "
        "batch. With one step per environment, it gets the shape of these coordinates wrong.",
        "Collect at least two steps at a time, or use a plain `ReplayBuffer` if you need neither "
        "priorities nor done marks at the ends of slices.",
    ),
    "one_worker_never_updates": Row(
        "silent",
        "The `policy_device` of that worker is not the device of your policy, so the worker has a "
        "copy of the policy. The default weight-sync scheme shares memory with the other workers, "
        "and never updates the copy.",
        'Pass `weight_sync_schemes={"policy": MultiProcessWeightSyncScheme()}`, and call '
        "`collector.update_policy_weights_()` after the optimizer steps.",
    ),
    "only_the_first_episode_is_long": Row(
        "silent",
        "`_step` changes an attribute (here the number of steps) that `_reset` does not reset. "
        "The attribute keeps its last value.",
        "In `_reset`, set every attribute of the episode that `_step` changes.",
    ),
    "part_of_the_batch_has_no_advantage": Row(
        "silent",
        "With `shifted=True`, each trajectory that was cut needs an extra slot in the call of the "
        "critic. If `shifted_budget` is too small, these slots take the place of the last rows in "
        "time.",
        "Set `shifted_budget` to the number of cut trajectories in a batch plus one, or use "
        "`shifted=False`.",
    ),
    "ppo_clips_almost_everything": Row(
        "silent",
        "The optimizer steps are too large, or there are too many of them on one batch. A ratio "
        "that the advantage has pushed out of the clipping range gets no gradient.",
        "Lower the learning rate, run fewer epochs on each batch, or stop the epochs when "
        "`kl_approx` is above a bound.",
    ),
    "ppo_clips_before_the_first_update": Row(
        "silent",
        "The stored log-probability has shape `[N, 1]` and the loss computes one of shape `[N]`. "
        "Their difference broadcasts to shape `[N, N]`, so there is a ratio for each pair of "
        "rows.",
        "Store the log-probability as the policy wrote it, with the shape of the batch. If your "
        'own code added a dimension, drop it: `batch["action_log_prob"] = log_prob.squeeze(-1)`.',
    ),
    "ppo_ratio_off_in_minibatches": Row(
        "silent",
        "The minibatches are drawn row by row, but the loss treats the rows of a minibatch as "
        "consecutive steps.",
        'Draw slices of consecutive steps: `SliceSampler(slice_len=8, end_key=("next", "done"))`.',
    ),
    "ppo_worse_with_small_minibatches": Row(
        "silent",
        "The batch has no advantage, so the loss computes an advantage for each minibatch, as if "
        "its shuffled rows were consecutive steps.",
        "Call an advantage module such as `GAE` on each batch of the collector before you store "
        "the batch.",
    ),
    "primer_raises_in_batched_env": Row(
        "loud",
        "A hand-written primer cannot tell whether its specs have the shape of one environment or "
        "of all environments, because `expand_specs` is not set.",
        "Use the primer of the module, `module.make_tensordict_primer()`. If you write a primer "
        "by hand with the shapes of a single environment, pass `expand_specs=True`.",
    ),
    "prioritized_replay_draws_evenly": Row(
        "silent",
        "The loss writes the error under a key that the buffer does not read, or writes it to a "
        "copy of the sample. The buffer then gives all rows the same default priority.",
        'Give the buffer the key that the loss writes (`priority_key="td_error"`, the default). '
        "Pass the same sample first to the loss, then to `update_tensordict_priority`.",
    ),
    "prioritized_replay_not_available": Row(
        "loud",
        "The compiled part of TorchRL cannot be loaded, for example because it was built for "
        "another version of torch. The import hides this error, and the classes of the compiled "
        "part become `None`.",
        "Install versions of torch and torchrl that belong together, or build torchrl from "
        'source. `python -c "import torchrl._torchrl"` shows the hidden error.',
    ),
    "q_values_explode": Row(
        "silent",
        "In each step of `SoftUpdate`, the target network keeps the share `eps` of its weights. "
        "With `eps=0.005`, it becomes nearly a copy of the trained network, which then chases its "
        "own values.",
        "Pass the small number as `tau`: `SoftUpdate(loss, tau=0.005)` is the same as `eps=0.995`.",
    ),
    "q_values_stop_improving": Row(
        "silent",
        "`delay_value=True` gives the loss a target network. Without an updater, the target "
        "network keeps its initial random weights.",
        "Create `updater = SoftUpdate(loss, tau=0.005)`, or a `HardUpdate`, and call "
        "`updater.step()` after each step of the optimizer.",
    ),
    "reading_changes_the_buffer": Row(
        "silent",
        "With a `LazyTensorStorage` or `LazyMemmapStorage`, `buffer[:]` and `buffer[i]` are "
        "views, so an in-place operation on them edits the stored rows. `sample()` returns a "
        "copy.",
        "Clone what you read by index before you change it: `buffer[:].clone()`.",
    ),
    "restored_observations_infinite": Row(
        "silent",
        "By default, `NextObservationDelta` stores differences as `float16`, and a difference "
        "beyond the largest `float16` becomes infinite.",
        "Pass `delta_dtype=torch.bfloat16` to the `NextObservationDelta` of the environment. It "
        "takes no more memory and has the range of `float32`. Or scale the observations.",
    ),
    "return_is_not_the_score": Row(
        "silent",
        "`RewardSum` adds up rewards that the transforms before it have scaled, clipped, or "
        "reduced to the sign.",
        "Put `RewardSum` before the transforms that change the reward.",
    ),
    "same_seed_different_start": Row(
        "silent",
        "A `Collector` resets its environment when it is built, before you call `set_seed`. "
        "`set_seed` resets a `GymEnv` again, but the policy's first step still gets the old "
        "observation.",
        "Seed the environment before the collector is built.",
    ),
    "sample_asks_for_a_batch_size": Row(
        "loud",
        "The size of a sample has no default. A buffer that prefetches or drops the last batch "
        "needs the size in its constructor.",
        "Pass the size: `ReplayBuffer(..., batch_size=32)`. For plain sampling, `sample(32)` is "
        "enough.",
    ),
    "sample_has_fewer_rows_than_asked": Row(
        "loud",
        "With `strict_length=False`, an episode that is shorter than a slice is drawn as it is, "
        "and nothing fills the missing rows.",
        "In a `TensorDictReplayBuffer`, pass `pad_output=True` to the sampler, and use the mask "
        'that it writes. Or do not reshape the sample, but cut it at `("next", "truncated")`.',
    ),
    "sample_returns_far_more_rows": Row(
        "silent",
        "The batch has two dimensions, environments and time. By default, a storage counts only "
        "the first dimension, so one item holds all steps of one environment.",
        "Store single transitions with `buffer.extend(batch.reshape(-1))`. Or create the storage "
        "with `ndim=2`.",
    ),
    "sampler_refuses_the_batch_size": Row(
        "loud",
        "`batch_size` counts rows, not slices. The slice sampler divides these rows into slices.",
        "Pass `batch_size=n_slices * slice_len`.",
    ),
    "samples_differ_from_what_the_policy_saw": Row(
        "silent",
        "The same `ObservationNorm` is a transform of the environment and of the replay buffer. "
        "The batch is already normalized, and the buffer normalizes each sample again.",
        "Keep only one of the two transforms. If you keep the buffer's transform, the policy has "
        "to normalize its observations itself.",
    ),
    "sampling_images_raises_type_error": Row(
        "loud",
        "`NextStateReconstructor` marks a missing next observation with NaN. Images are stored as "
        "bytes, which cannot be NaN.",
        'Convert the bytes to floats first: `Compose(ToTensorImage(in_keys=["pixels"]), '
        'NextStateReconstructor(["pixels"], ...))`.',
    ),
    "sampling_raises_at_the_start": Row(
        "loud",
        "Nothing is stored yet. A `Collector` writes to its `replay_buffer` when you ask for a "
        "batch or after you call `start()`, not when you create the collector.",
        "Sample inside the loop over the collector, as soon as `replay_buffer.can_sample()` is "
        "True.",
    ),
    "sampling_raises_nonetype_floating": Row(
        "loud",
        'By default, `NextStateReconstructor` rebuilds the key `"observation"`. The observation '
        "of this environment has another key.",
        'Pass the keys of the observations, for example `NextStateReconstructor(["pixels"], ...)`.',
    ),
    "sampling_raises_with_a_transform": Row(
        "loud",
        "`TensorDictReplayBuffer` writes the index of each drawn row into the sample. After a "
        "transform has changed the number of rows, the indices no longer fit.",
        "Do not change the number of rows in the transform. Reshape the returned sample instead.",
    ),
    "saved_prefetch_queue_is_refused": Row(
        "loud",
        "The checkpoint holds `prefetch` and the batches that the buffer had prefetched, if any. "
        "Only a buffer with the same `prefetch` can load it.",
        "Create the buffer with the same `prefetch` as before. To change `prefetch`, delete the "
        'saved queue: `del state["_prefetch_state"]`.',
    ),
    "script_never_ends": Row(
        "silent",
        "The workers of a multi-process collector or a `ParallelEnv` still wait for a command, "
        "and Python waits for its workers before it ends.",
        "Call `collector.shutdown()` and `env.close()` in a `finally` block, so that an exception "
        "does not skip them.",
    ),
    "sequences_mix_two_runs": Row(
        "silent",
        "A new collector counts its trajectories from zero, so both use the same ids. The sampler "
        "treats neighboring rows with equal ids as one trajectory.",
        "Before you extend, add an offset to the ids of each collector after the first: "
        '`batch["collector", "traj_ids"] += offset`.',
    ),
    "sequences_mix_workers": Row(
        "silent",
        "The workers take turns to write their batches, so an unfinished episode of one worker is "
        "followed by rows of another. A sampler that cuts only at `done` sees no end there.",
        "Pass `trajs_per_batch=1` to the collector, so that workers write whole episodes. Or "
        "leave out `end_key`, so that the sampler cuts at trajectory ids.",
    ),
    "sequences_run_into_each_other": Row(
        "silent",
        "The batch does not mark where one slice ends and the next begins. The slice sampler "
        "returns these marks, but a plain `ReplayBuffer` does not write them into the batch.",
        "Use `TensorDictReplayBuffer`, which writes these marks. Or call "
        "`sample(return_info=True)` and write the returned marks into the batch yourself.",
    ),
    "sequences_run_over_episode_ends": Row(
        "silent",
        '`"done"` at the root of a row belongs to the state before the step, and is never True in '
        'the batches of a collector. An episode ends where `("next", "done")` is True.',
        'Pass `end_key=("next", "done")`, or leave `end_key` out.',
    ),
    "set_truncated_marks_nothing": Row(
        "silent",
        "With `extend_buffer=False`, each frame goes into the buffer as soon as it is collected. "
        "The marks are set on whole batches, and here no batch is built.",
        "Leave out `extend_buffer=False`.",
    ),
    "sets_of_keys_are_exclusive": Row(
        "loud",
        "The policy contains the critic, and writes `state_value` at the root while it acts. "
        "Nothing writes it under `next`, but by default GAE stacks the root and `next`.",
        "Collect with `actor_critic.get_policy_operator()`, which does not write the value.",
    ),
    "short_episodes_are_never_replayed": Row(
        "silent",
        "With `strict_length=True`, the default, a slice sampler leaves out every trajectory that "
        "is shorter than a slice.",
        "Use `SliceSampler(..., strict_length=False, pad_output=True)` and the mask that it "
        "writes. Or sample shorter slices.",
    ),
    "slice_sampler_refuses_trajectory_key": Row(
        "loud",
        "The argument is called `traj_key`. Older examples call it `trajectory_key`, as "
        "`split_trajectories` does.",
        'Write `SliceSampler(..., traj_key=("collector", "traj_ids"))`. You can also omit the '
        "argument: without `end_key`, the sampler finds these ids itself.",
    ),
    "slices_jump_to_another_environment": Row(
        "silent",
        "In a flat batch, the last step of one environment precedes the first of the next. Unless "
        "that step is done, a sampler that cuts only at `done` sees no end there.",
        "Store the batch as it is, in a storage with `ndim=2`. Or leave out `end_key`, so that "
        "the sampler cuts at trajectory ids.",
    ),
    "specs_and_data_disagree": Row(
        "loud",
        "The data that `_reset` and `_step` return do not match the specs. The fake TensorDict is "
        "made from the specs, the real one comes from a short rollout.",
        "Correct the spec or the returned tensor, whichever is wrong.",
    ),
    "splitting_a_sample_fails": Row(
        "loud",
        "`split_trajectories` cuts where the trajectory id changes, but two slices of a sample "
        "can come from the same trajectory. If these slices are neighbors, they are merged. If "
        "not, their rows are counted twice.",
        "Use `sample.reshape(-1, slice_len)`. For slices of different length, exclude the "
        'trajectory ids from the sample and pass `done_key="truncated"`.',
    ),
    "stacked_frames_of_different_episodes": Row(
        "silent",
        "`CatFrames` in a buffer stacks rows that are neighbors in the sample. A random sampler "
        "draws rows from anywhere, and a slice sampler draws no rows from before a slice.",
        "Use `transform, sampler = catframes.make_rb_transform_and_sampler(batch_size)` in a "
        "plain `ReplayBuffer`. This sampler draws the frames that belong together.",
    ),
    "state_value_missing_on_some_batches": Row(
        "loud",
        "The batch has NaN in its next observations. GAE replaces the NaN in a copy of the batch, "
        "and writes `state_value` only to this copy.",
        "After GAE, call the critic on each batch in which `state_value` is missing.",
    ),
    "stochastic_policy_does_not_sample": Row(
        "silent",
        "Outside of `set_exploration_type`, a `ProbabilisticActor` uses its own default, which is "
        "deterministic. By default, a collector sets `RANDOM`; `env.rollout` does not.",
        "Call `env.rollout` under `set_exploration_type(ExplorationType.RANDOM)`, or use a "
        "collector.",
    ),
    "stopping_a_rollout_raises": Row(
        "loud",
        "With `extend_buffer=True`, the default, an interrupted collector reads its output "
        "buffer. A collector with a replay buffer has no output buffer.",
        "Leave out the argument `replay_buffer`, and extend the buffer yourself with the rows "
        'before the cut: `buffer.extend(batch[batch["collector", "traj_ids"] >= 0])`.',
    ),
    "stored_log_prob_requires_grad": Row(
        "loud",
        "The policy acted with gradients enabled, so each stored log-probability keeps the graph "
        "of the old policy. A collector disables gradients; `env.rollout` does not.",
        "Run `env.rollout` and your own collection loops under `torch.no_grad()`.",
    ),
    "target_updater_never_steps": Row(
        "silent",
        "Once it is created, an updater changes the target network only in its `step()`. The "
        "training loop does not call it, and neither the loss nor the optimizer calls it for you.",
        "Call `target_updater.step()` after each `optimizer.step()`.",
    ),
    "too_many_open_files": Row(
        "loud",
        "Workers need open files, for their pipes and for each tensor in shared memory. Many "
        "systems allow 1024 open files per process by default.",
        "Raise the soft limit before you start the workers: "
        "`resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))`, or `ulimit -n 65536` in the "
        "shell.",
    ),
    "training_goes_on_without_a_worker": Row(
        "silent",
        "After `collector.start()`, the main process does not notice when a worker dies. If the "
        "worker raised an error, you see it only on the terminal. If the system killed it, for "
        "example because memory ran out, there is no error.",
        "Whenever you wait for frames, call `is_alive()` on each worker in `collector.procs`, and "
        "raise if one is dead.",
    ),
    "two_discounts": Row(
        "silent",
        "`MultiStepTransform` sums the rewards with its own `gamma`. The loss discounts the next "
        "value with another `gamma`, for example its default.",
        "Pass the same `gamma` to the transform and to `loss.make_value_estimator`.",
    ),
    "two_lstms_share_their_memory": Row(
        "silent",
        "With `in_key=` and `out_key=`, every LSTM has the same keys for its hidden state, so the "
        "second LSTM overwrites the state of the first.",
        "Give the hidden state of each LSTM its own keys, with `in_keys=` and `out_keys=`.",
    ),
    "update_weights_wants_data": Row(
        "loud",
        "Without a weight-sync scheme, the collector expects a TensorDict of weights and reads "
        "its `data`. A module has no `data`.",
        "Call `collector.update_policy_weights_(TensorDict.from_module(policy))`. If you passed "
        "the policy itself to the collector, make the call without an argument.",
    ),
    "updates_differ_after_loading": Row(
        "silent",
        "On the CPU, an optimizer with `fused=True` pairs weights and moments by their position "
        "in memory. By default, `Checkpoint` saves the moments in the order of their indices. "
        "Weights in `channels_last` have another order in memory.",
        "Save the optimizer with `torch.save`, which keeps the order: "
        '`checkpoint.register("optimizer", optimizer, '
        'adapter=StateDictCheckpointAdapter(payload_format="torch"))`.',
    ),
    "value_loss_dwarfs_the_policy": Row(
        "silent",
        'The gradient of an `"l2"` value loss grows with the rewards. With normalized advantages, '
        "the gradient of the policy loss does not grow. In the shared layers, the value gradient "
        "drowns the policy gradient.",
        "Scale the rewards until returns are of the order of 10: "
        "`env.append_transform(RewardScaling(loc=0, scale=0.001))`.",
    ),
    "values_are_zero_for_no_reason": Row(
        "silent",
        "Not all stored batches had that key. If a key first comes with a later batch, "
        "`LazyTensorStorage` adds it, with zeros in the earlier rows. If a still later batch "
        "lacks it, its rows keep the values that were in memory before.",
        "Write the same keys to every batch, with a mark such as `nan` where a value is not known.",
    ),
    "values_too_low_at_time_limits": Row(
        "silent",
        'The batch has lost `("next", "terminated")`. The value estimator then reads `done` in '
        "its place, so each time limit counts as a termination with no reward after it.",
        'Keep `("next", "terminated")` wherever you select, exclude or copy keys.',
    ),
    "whole_trajectories_blame_split_trajs": Row(
        "loud",
        "`trajs_per_batch` joins the pieces of a trajectory by their trajectory id, but "
        "`track_traj_ids=False` leaves the ids out.",
        "Leave out `track_traj_ids=False`.",
    ),
    "workers_act_alike": Row(
        "silent",
        'A worker that is started by `fork`, or by a "forkserver" that has preloaded PyTorch, '
        "inherits the state of the random generator. So all workers continue from the same state.",
        "Call `collector.set_seed(seed)` before the first batch, or keep TorchRL's start method, "
        "`spawn`.",
    ),
    "workers_never_learn": Row(
        "silent",
        "With `policy_factory` and no `policy`, each worker makes its own policy, and by default "
        "nothing sends it the trained weights.",
        'Pass `policy=policy` and `weight_sync_schemes={"policy": '
        "MultiProcessWeightSyncScheme()}` beside `policy_factory`. Call "
        "`collector.update_policy_weights_()` after the optimizer steps.",
    ),
    "workers_normalize_differently": Row(
        "silent",
        "Each worker makes its own `VecNormV2`, which sees only the observations of this worker. "
        'An `EnvCreator` shares the statistics in one process and under "spawn", but not under '
        '"fork".',
        "Give all workers one `EnvCreator`, and call `share_memory_()` on the tensors of its "
        "`state_dict()` before the workers start.",
    ),
    "workers_run_the_script_again": Row(
        "loud",
        "By default, TorchRL starts its workers with `spawn`, so each worker imports your script. "
        "Without a guard, this import starts workers again.",
        "Put everything that the script does into a function, and call it below `if __name__ == "
        '"__main__":`.',
    ),
    "worse_with_a_shorter_time_limit": Row(
        "silent",
        "The environment reports its limit as `terminated`. Or it reports only `done`, and "
        "TorchRL copies it to `terminated`. So the return after the limit counts as zero.",
        "Leave the limit out of `_step` and append `StepCounter(max_steps=...)`, which reports it "
        "as `truncated`.",
    ),
}
