"""The private attributes of TorchRL that the doctor uses: which class has each, and what for.

A test looks for each of them in the installed release, and for others in the doctor.
Where a release has no such attribute, a check takes the default that it gives, or fails and says
which attribute it missed.
"""

from __future__ import annotations

BUFFER = "torchrl.data.ReplayBuffer"
COLLECTOR = "torchrl.collectors.Collector"
MEMMAP = "torchrl.data.LazyMemmapStorage"
PRIVATE = {
    "_batch_size": (BUFFER, "how many rows a sample has that is drawn without a number"),
    "_initialized": (BUFFER, "whether len() would initialize it"),
    "_prefetch": (BUFFER, "whether samples are drawn ahead; off in a copy, which has no threads"),
    "_prefetch_queue": (BUFFER, "samples that were drawn ahead, to tell old ones"),
    "_rng": (BUFFER, "its generator, which a copy gets a twin of"),
    "_sampler": (BUFFER, "what draws: a copy of it draws for the checks"),
    "_set_index_in_td": ("torchrl.data.TensorDictReplayBuffer", "whether rows get their index"),
    "_storage": (BUFFER, "the stored rows, and in a storage the tensordict or list that has them"),
    "_transform": (BUFFER, "what changes rows on their way in and out"),
    "_warned_batch_size_conflict": (BUFFER, "set in a copy, so that it does not warn the reader"),
    "_storages": ("torchrl.data.StorageEnsemble", "its storages, which a copy reads alone"),
    "_auto_cleanup": (MEMMAP, "whether it deletes its folder when it is deleted"),
    "_cleaned_up": (MEMMAP, "whether it has done so"),
    "_MEMMAP_STORAGE_REGISTRY": (MEMMAP, "those of this process that are no copies"),
    "_last_cursor_index": ("torchrl.data.TensorStorage", "which row was written last"),
    "_max_capacity": ("torchrl.data.PrioritizedSampler", "how many rows it has places for"),
    "_sum_tree": ("torchrl.data.PrioritizedSampler", "the priorities"),
    "_sample_unit": (BUFFER, "whether it draws sequences as one row"),
    "_batch_size_multiplier": ("torchrl.data.SliceSampler", "how many rows it draws for one"),
    "_traj_key_auto": ("torchrl.data.SliceSampler", "whether it found the trajectory key itself"),
    "_carrier": (COLLECTOR, "the step that goes on into the next batch"),
    "_final_rollout": (COLLECTOR, "the buffer of a rollout, which use_buffers=False leaves out"),
    "_frames": (COLLECTOR, "how many it has collected"),
    "_iterator": (COLLECTOR, "the loop of the reader, which a copy does without"),
    "_orig_policy": (COLLECTOR, "the policy that the reader gave, beside the copy that acts"),
    "_post_collect_hook": (COLLECTOR, "the reader's hook, which a copy does not call"),
    "_pre_collect_hook": (COLLECTOR, "the reader's hook, which a copy does not call"),
    "_thread": (COLLECTOR, "what collects in the background, which a copy does without"),
    "_traj_assembly": (COLLECTOR, "trajectories that have begun, which a copy begins anew"),
    "_use_buffers": (COLLECTOR, "off in a copy, whose batches are few"),
    "_weight_sync_schemes": (COLLECTOR, "how weights reach the workers"),
    "_weight_updater": (COLLECTOR, "how weights reached the workers before the schemes"),
    "_wrapped_policy_maybe_compiled": (COLLECTOR, "the compiled policy, which is not copied"),
    "_running_free": ("torchrl.collectors.MultiCollector", "whether workers go on collecting"),
    "_env": ("torchrl.envs.GymWrapper", "what it wraps, whose generator it passes on"),
    "_max_episode_steps": (
        "gymnasium.wrappers.TimeLimit",
        "after how many steps it ends an episode",
    ),
    "_envs": ("torchrl.envs.SerialEnv", "its environments, once it has started"),
    "_mp_values": ("torchrl.envs.EnvCreator", "its locks, which a copy of an environment keeps"),
    "_count": ("torchrl.envs.VecNormV2", "how many steps its statistics have seen"),
    "_loc": ("torchrl.envs.VecNormV2", "the mean, to see whether it changes"),
    "_var": ("torchrl.envs.VecNormV2", "the variance, to see whether it changes"),
    "_td": ("torchrl.envs.VecNorm", "its statistics, to see whether they change"),
    "_version_key": ("torchrl.data.StalenessAwareSampler", "where it reads the version"),
    "_entropy_coeff_map": ("torchrl.objectives.PPOLoss", "the coefficients of several heads"),
    "_has_update_associated": ("torchrl.objectives.LossModule", "which targets have an updater"),
    "_target_entropy": ("torchrl.objectives.SACLoss", "the entropy that alpha is moved for"),
    "_tensor_keys": ("torchrl.objectives.LossModule", "the keys that the reader has set"),
    "_value_estimator": ("torchrl.objectives.LossModule", "the estimator; the property makes one"),
    "_call_value_nets": ("torchrl.objectives.value.ValueEstimatorBase", "what a traceback names"),
    "_cache": ("tensordict.TensorDict", "what was read of a locked one, and so whether it was"),
    "_items_list": (
        "tensordict.TensorDict",
        "the part of that cache that an updater leaves",
    ),
    "_targets": ("torchrl.objectives.TargetNetUpdater", "the parameters that it moves"),
}


def listed(name):
    if name not in PRIVATE:
        raise LookupError(f"{name!r} is not in torchrl_doctor/private.py: say there what it is for")
    return name


def has(thing, name):
    return hasattr(thing, listed(name))


def private(thing, name, *default):
    """The attribute, or *default* where there is one and the attribute is not there."""
    return getattr(thing, listed(name), *default)
