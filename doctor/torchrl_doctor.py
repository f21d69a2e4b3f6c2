"""Which known symptoms does a TorchRL pipeline show? One file, needs torchrl alone.

On the command line, ``make`` returns a dictionary with any of the arguments of `diagnose`::

    python -m torchrl_doctor pipeline.py:make
    python -m torchrl_doctor pipeline.py:make --json

In a session::

    from torchrl_doctor import diagnose

    print(diagnose(collector=collector, replay_buffer=replay_buffer, loss_module=loss_module))

The doctor looks at copies: it steps no environment of yours, writes to no buffer and takes no
training step. Each check has the name of a page of the manual, which shows the symptom, its cause
and its cure.
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import copy
import dis
import importlib.metadata
import importlib.util
import inspect
import json
import os
import random
import re
import signal
import sys
import textwrap
import threading
import time
import traceback
import warnings
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy
import torch

# -- Verdicts ----------------------------------------------------------------

APPLIES = "applies"
CLEAR = "clear"
UNDECIDED = "cannot decide"
FAILED = "check failed"  # an error in the check itself
STATES = (APPLIES, FAILED, UNDECIDED, CLEAR)  # in the order of a report


class Verdict(NamedTuple):
    """What one check found: `state` is APPLIES, CLEAR or UNDECIDED."""

    state: str
    evidence: str


def applies(evidence):
    """The symptom is there; *evidence* says what was seen, in a few words with numbers."""
    return Verdict(APPLIES, evidence)


def clear(evidence):
    """The symptom is not there, and the check could have seen it."""
    return Verdict(CLEAR, evidence)


def undecided(reason):
    """The check concerns these objects but cannot tell; *reason* says what it would need."""
    return Verdict(UNDECIDED, reason)


# -- Checks ------------------------------------------------------------------


class Check(NamedTuple):
    """One symptom: the name of its page, its title there, and the function that looks."""

    slug: str
    title: str
    look: object

    @property
    def needs(self):
        """The arguments of `diagnose` that the check cannot do without."""
        parameters = inspect.signature(self.look).parameters.values()
        return [p.name for p in parameters if p.default is p.empty]

    @property
    def takes(self):
        return list(inspect.signature(self.look).parameters)


CHECKS = {}


def check(slug, title):
    """Register a function whose parameters are arguments of `diagnose`.

    It returns `applies`, `clear` or `undecided`, or None where it does not concern the objects.
    It may change nothing that it is given.
    """

    def register(look):
        if slug in CHECKS:
            raise ValueError(f"two checks for {slug!r}")
        CHECKS[slug] = Check(slug, title, look)
        return look

    return register


# -- Collectors -----------------------------------------------------------------


@check("same_seed_different_start", "Two runs with the same seed start differently")
def same_seed_different_start(collector, env):
    if getattr(collector, "_frames", 1) or env.batch_size:
        return None
    twin = copy.deepcopy(env)
    seed = getattr(twin, "np_random_seed", None)  # of gymnasium; 128 bits where nobody chose it
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        return None
    now = twin.np_random.bit_generator.state
    twin.set_seed(seed, static_seed=True)
    seeded = twin.np_random.bit_generator.state
    twin.reset()
    if now != seeded or twin.np_random.bit_generator.state == seeded:
        return clear("the environment was reset after it was seeded")
    return applies("seeded after the reset that gave the first observation")


@check("log_probability_is_zero", "The first batches have a log-probability of zero")
def log_probability_is_zero(batch, policy, loss_module=None, collector=None):
    keys = getattr(loss_module, "tensor_keys", None)
    if isinstance(batch, (list, tuple)) or (keys and not hasattr(keys, "sample_log_prob")):
        return None
    outputs = getattr(policy, "out_keys", [])
    probabilities = [k for k in outputs if "log_prob" in str(k)]
    if not probabilities:
        return None
    unasked = getattr(collector, "init_random_frames", None)
    if unasked and keys:
        return applies(f"init_random_frames={unasked}, and the loss reads {probabilities[0]}")
    if any(k not in batch.keys(True) for k in probabilities):
        return undecided(f"the batch lacks {probabilities[0]}; were its actions random?")
    computed = [k for k in outputs if k != value_key("action", loss_module)]  # it may be drawn
    floats = [k for k in computed if k in batch.keys(True) and batch[k].is_floating_point()]
    if floats == probabilities:
        return None
    zero = [~different(batch[k], torch.zeros_like(batch[k]), batch.shape) for k in floats]
    silent = torch.stack(zero).all(0)
    silent &= batch.get(PADDING, torch.ones_like(silent))
    if not silent.any():
        if unasked:
            said = f"init_random_frames={unasked}, and the policy writes {probabilities[0]}"
            return undecided(f"{said}; does your loss read it?")
        if collector is None and not begins(batch):
            return undecided("the policy was asked in this batch; give the first, or collector=")
        return clear("the policy was asked for each action")
    return applies(f"{int(silent.sum())} of {silent.numel()} rows hold nothing of the policy")


@check("kept_batches_are_all_the_same", "All the batches that I kept are the same")
def kept_batches_are_all_the_same(batch):
    if not isinstance(batch, (list, tuple)) or len(batch) < 2:
        return None
    places = {memory_of(one) for one in batch}
    if len(places) == len(batch) or () in places:
        return clear(f"{len(places)} batches, each in its own memory") if all(places) else None
    return applies(f"{len(batch)} batches share the memory of {len(places)}")


def memory_of(batch):
    """Where the numbers of a batch lie; nothing for those that have no place."""
    leaves = [leaf for leaf in batch.values(True, True) if isinstance(leaf, torch.Tensor)]
    leaves = [leaf for leaf in leaves if leaf.numel() and leaf.device.type != "meta"]
    return tuple((leaf.data_ptr(), leaf.shape) for leaf in leaves)


@check("actions_stay_random", "The actions stay random however long I train")
def actions_stay_random(collector, loss_module):
    if not hasattr(getattr(loss_module, "tensor_keys", None), "action"):
        return None
    unasked, total = (getattr(collector, n, None) or 0 for n in INIT_AND_TOTAL)
    if unasked and unasked >= total > 0:
        return applies(f"init_random_frames={unasked}, and total_frames={total}")
    if not has_no_policy(collector):
        return clear("the collector has a policy")
    return applies("the collector acts with a RandomPolicy, and the loss trains another")


INIT_AND_TOTAL = ("init_random_frames", "total_frames")


def has_no_policy(collector):
    """Whether a collector acts with a `RandomPolicy`, as it does without a policy."""
    policy = getattr(collector, "policy", None)
    if policy is None and is_multi_process(collector):  # each worker makes it
        return not any(getattr(collector, "policy_factory", None) or [])
    return type(policy).__name__ == "RandomPolicy"


@check("collector_yields_nothing", "The collector ends without yielding anything")
def collector_yields_nothing(collector, env, policy):
    if not getattr(collector, "trajs_per_batch", None) or not collector.reset_at_each_iter:
        return None
    if getattr(collector, "set_truncated", False):
        return clear("set_truncated=True ends the episodes that the reset cuts")
    (twin, agent), steps = copied((env, policy)), collector.frames_per_batch
    if steps > MOST_STEPS:
        return undecided(
            f"the batches are longer than the {MOST_STEPS} steps that this check takes"
        )
    from torchrl.envs.utils import set_exploration_type

    with set_exploration_type(collector.exploration_type):
        rollouts = [twin.rollout(steps, agent) for _ in range(3)]
    if any(r["next", "done"].any() for r in rollouts):
        return clear(f"an episode ended within {steps} steps")
    return applies(f"no episode ended within the {steps} steps between two resets")


MOST_STEPS = 200


@check("more_frames_than_asked_for", "Batches hold more frames than I asked for")
def more_frames_than_asked_for(error):
    if isinstance(error, Warning) and "not exactly divisible by" in str(error):
        return applies(f"{type(error).__name__}: {str(error).partition(',')[0]}")
    return None


@check("set_truncated_marks_nothing", "set_truncated=True marks nothing in the buffer")
def set_truncated_marks_nothing(collector, replay_buffer):
    if not getattr(collector, "set_truncated", False):
        return None
    if getattr(collector, "extend_buffer", True):
        return clear("the buffer is extended by whole batches")
    return applies("extend_buffer=False writes each frame before it can be marked")


@check("stopping_a_rollout_raises", "Stopping a rollout early raises an AttributeError")
def stopping_a_rollout_raises(collector=None, error=None):
    if isinstance(error, AttributeError) and "_final_rollout" in str(error):
        return applies("the loop found no output buffer")
    if getattr(collector, "interruptor", None) is None or not hasattr(collector, "_carrier"):
        return None
    if hasattr(collector, "_final_rollout") or not getattr(collector, "extend_buffer", True):
        return clear("an interrupted rollout finds what it reaches for")
    return applies("the collector has an interruptor and no output buffer")


@check("whole_trajectories_blame_split_trajs", "trajs_per_batch fails and blames split_trajs")
def whole_trajectories_blame_split_trajs(collector=None, error=None):
    if isinstance(error, KeyError) and "trajs_per_batch requires" in str(error):
        return applies("the batch has no trajectory ids")
    if not getattr(collector, "trajs_per_batch", None):
        return None
    if getattr(collector, "track_traj_ids", True):
        return clear("trajs_per_batch with trajectory ids")
    return applies("trajs_per_batch with track_traj_ids=False")


@check("old_policy_version_after_update", "The frame after an update has the old policy version")
def old_policy_version_after_update(batch, replay_buffer=None):
    if isinstance(batch, (list, tuple)):
        return None
    read = batch.get("policy_version", None)
    acted = batch.get(("next", "policy_version"), None)
    if not isinstance(read, torch.Tensor) or not isinstance(acted, torch.Tensor):
        return None
    old, count = int((read != acted).sum()), len(acted.unique())
    seen = f"{old} frames have the version of the step before; next has their own"
    keys = versions_read_by(replay_buffer)
    if keys and "policy_version" not in keys:
        return clear("the replay buffer reads the version of next")
    if not old and count > 1:
        return clear(f"root and next have the same of {count} versions")
    if not old:
        return undecided("all frames have one version; give a batch that follows an update")
    if keys:
        return applies(f"{seen}, and the replay buffer does not read it")
    return undecided(f"{seen}; which of them is read?")


def versions_read_by(replay_buffer):
    """The keys from which a buffer learns how old its rows are."""
    parts = [getattr(replay_buffer, "_sampler", None), getattr(replay_buffer, "_transform", None)]
    parts += getattr(parts[1], "transforms", [])
    names = ("_version_key", "policy_version_key")
    return [getattr(part, name) for part in parts for name in names if hasattr(part, name)]


@check("max_frames_per_traj_is_refused", "max_frames_per_traj is refused by my environment")
def max_frames_per_traj_is_refused(error):
    if isinstance(error, ValueError) and "'step_count' key is already present" in str(error):
        return applies("max_frames_per_traj, and the environment counts its steps already")
    return None


# -- Exploration ----------------------------------------------------------------


@check("evaluation_takes_random_actions", "Evaluation still takes random actions")
def evaluation_takes_random_actions(eval_env, policy, batch, collector=None, loss_module=None):
    noisy = [m for m in exploration_modules(policy) if noise_of(m)[1] > 0]
    trains = collector is not None or loss_module is not None  # the batch may be for that
    if not noisy or trains or not rolled_out_by_hand(batch):
        return None
    other = other_than_greedy(policy, batch, eval_env.action_key)
    if other is None:
        return undecided("the policy is not the one that took these actions any more")
    if not other.any():
        # Of the actions that epsilon changes, half may be the same by chance.
        chance = (1 - min(max(noise_of(m)[1] for m in noisy), 1) / 2) ** other.numel()
        if chance > 0.001:
            return undecided(f"{other.numel()} actions are too few to tell; give a longer rollout")
        return clear("each action is the one that the policy takes without exploration")
    return applies(f"{int(other.sum())} of {other.numel()} actions are explored ones")


@check("epsilon_never_goes_down", "Epsilon never goes down")
def epsilon_never_goes_down(policy, batch=None, collector=None):
    decaying = [m for m in exploration_modules(policy) if noise_of(m)[0] > noise_of(m)[2]]
    if not decaying:
        return None
    module = min(decaying, key=lambda m: m.annealing_num_steps)
    start, now, end = noise_of(module)
    name = type(module).__name__
    if now < start:
        return clear(f"{name} went from {start:.3g} to {now:.3g}")
    collected = sum(b.numel() for b in batch) if isinstance(batch, (list, tuple)) else 0
    collected = max(collected, getattr(collector, "_frames", 0))
    collected -= getattr(collector, "init_random_frames", None) or 0
    seen = f"{name} is at its start, {start:.3g}, after {collected} frames"
    if collected >= module.annealing_num_steps:
        return applies(f"{seen}; it should have reached {end:.3g}")
    return undecided(f"{seen}; step() belongs into the training loop") if collected > 0 else None


@check("stochastic_policy_does_not_sample", "A stochastic policy takes no random action")
def stochastic_policy_does_not_sample(policy, loss_module, batch):
    action = getattr(getattr(loss_module, "tensor_keys", None), "action", None)
    if isinstance(batch, (list, tuple)) or action is None or not samples(policy):
        return None
    other = other_than_greedy(policy, batch, action)
    if other is None:
        return undecided("the policy is not the one that took these actions any more")
    if other.any():
        return clear("actions differ from the most likely one")
    drawn = act(policy, batch, "RANDOM")
    wanted = different(drawn[action], batch[action], batch.shape)
    if wanted.sum() < FEWEST_SAMPLED:
        return None
    return applies(f"sampling would change {int(wanted.sum())} of {wanted.numel()} actions")


FEWEST_SAMPLED = 10  # that many by chance all on the most likely action: about one in 20000


def exploration_modules(policy):
    """The modules of *policy* that change an action on their own schedule."""
    return [m for m in modules_of(policy) if noise_of(m) and hasattr(m, "annealing_num_steps")]


def modules_of(policy):
    return list(policy.modules()) if isinstance(policy, torch.nn.Module) else []


def noise_of(module):
    """Start, present value and end of the noise of an exploration module, or None."""
    for name in ("eps", "sigma"):
        values = [getattr(module, f"{name}{part}", None) for part in ("_init", "", "_end")]
        if all(value is not None for value in values):
            return [float(value) for value in values]
    return None


def rolled_out_by_hand(batch):
    """Whether ``env.rollout`` made it: the batches of a collector have its data in them."""
    return not isinstance(batch, (list, tuple)) and batch.get("collector", None) is None


def samples(policy):
    """Whether the policy ends in a distribution."""
    return any(hasattr(m, "default_interaction_type") for m in modules_of(policy))


def act(policy, batch, exploration, training=False):
    """What a copy of *policy* writes for the rows of *batch*."""
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    with set_exploration_type(ExplorationType[exploration]):
        return copy.deepcopy(policy).train(training)(batch.select(*policy.in_keys))


def different(some, others, shape):
    """Per row of a batch of that *shape*, whether two tensors differ."""
    return (~torch.isclose(some.double(), others.double())).reshape(*shape, -1).any(-1)


def other_than_greedy(policy, batch, action):
    """Which rows hold another action than the policy takes without exploration.

    None where some do and nothing else that the policy writes is as in the batch.
    """
    again = act(policy, batch, "DETERMINISTIC")
    other = different(again[action], batch[action], batch.shape)
    outputs = [k for k in policy.out_keys if k != action and k in batch.keys(True)]
    pairs = [(k, again[k].double(), batch[k].double()) for k in outputs]
    same = [k for k, one, other_one in pairs if torch.allclose(one, other_one, atol=1e-5)]
    return None if other.any() and not same else other


@check("actions_stay_noisy", "Actions stay noisy with exploration switched off")
def actions_stay_noisy(policy, own_batch=None, collector=None):
    layers = [m for m in modules_of(policy) if isinstance(m, NOISY_IN_TRAINING)]
    layers = [m for m in layers if getattr(m, "p", 1) > 0]
    if not layers:
        return None
    active = sorted({type(m).__name__ for m in layers if m.training})
    single = own_batch is not None and not isinstance(own_batch, (list, tuple))
    single = single and hasattr(policy, "in_keys")
    strange = distance_from_evaluation(policy, own_batch) if single else None
    if strange == 0:
        return clear("the batch was collected in evaluation mode")
    if not active:
        return undecided("in evaluation mode now; give a batch, to see whether it was before")
    seen = f"in training mode: {', '.join(active)}"
    dropout = any(m.training and isinstance(m, DROPOUT) for m in layers)
    if collector is not None or strange is None or not dropout:
        # A loop may switch the mode before each batch; that of a copy of the collector is noisy.
        return undecided(f"{seen}; is eval() called before the collection?")
    if strange < 0.5:
        return clear("the batch is nearer to evaluation mode than to training mode")
    return applies(f"{seen}, and the outputs in the batch are as far off as it makes them")


DROPOUT = torch.nn.modules.dropout._DropoutNd
NOISY_IN_TRAINING = (DROPOUT, torch.nn.modules.batchnorm._BatchNorm)


def distance_from_evaluation(policy, batch):
    """How far the batch is from the policy in evaluation mode; 1 is as far as training mode is.

    Small steps of an optimizer since then make less of a difference than dropout.
    """
    calm, noisy = (act(policy, batch, "DETERMINISTIC", mode) for mode in (False, True))
    floats = [k for k in policy.out_keys if k in batch.keys(True) and calm[k].is_floating_point()]
    floats = [k for k in floats if not torch.equal(calm[k], noisy[k])]
    if any(torch.allclose(calm[k], batch[k]) for k in floats):
        return 0
    off = [(batch[k] - calm[k]).abs().mean() / (noisy[k] - calm[k]).abs().mean() for k in floats]
    return float(min(off)) if off else None


@check("evaluation_collector_explores", "The collector explores although it is switched off")
def evaluation_collector_explores(
    collector, eval_env, policy, loss_module=None, replay_buffer=None
):
    trains = loss_module is not None or replay_buffer is not None
    explores = samples(policy) or exploration_modules(policy)
    if trains or not explores or getattr(collector, "env", None) is not eval_env:
        return None
    kind = getattr(collector, "exploration_type", None)
    if kind is None:
        return undecided("the collector does not say its exploration type")
    if kind.name == "RANDOM":
        return applies("the collector of the evaluation has exploration_type RANDOM")
    return clear(f"the collector of the evaluation has exploration_type {kind.name}")


@check("actor_of_many_fails_in_one", "The policy of many environments fails in one")
def actor_of_many_fails_in_one(policy=None, eval_env=None, error=None):
    if isinstance(error, ValueError) and "does not match the action shape" in str(error):
        return applies(str(error))
    if eval_env is None:
        return None
    greedy = [m for m in exploration_modules(policy) if hasattr(m, "action_mask_key")]
    specs = [m.spec[m.action_key] for m in greedy]
    action = eval_env.full_action_spec[eval_env.action_key].shape
    if any(len(s.shape) > len(action) for s in specs if s is not None):
        return undecided("the spec to explore is too large here; not used without exploration")
    return clear("the spec to explore fits the actions") if specs else None


@check("noisy_network_never_learns_its_noise", "A noisy network never learns its noise")
def noisy_network_never_learns_its_noise(policy, loss_module):
    layers = [m for m in noisy_layers(policy) if m.weight_sigma.requires_grad]
    if not layers or not any(trained(m.weight_mu) for m in layers):
        return None
    without = [m for m in layers if trained(m.weight_mu) and not trained(m.weight_sigma)]
    if not without and not all(m.weight_sigma._version for m in layers):
        return undecided("the noise has a gradient, and nothing has changed it yet")
    if not without:
        return clear("weights and noise are trained")
    return applies(f"{len(without)} of {len(layers)} layers train their weights, not their noise")


@check("noisy_network_repeats_its_noise", "A noisy network always makes the same noise")
def noisy_network_repeats_its_noise(policy, loss_module):
    layers = [m for m in noisy_layers(policy) if m.weight_mu._version > 1]
    if not layers:
        return None
    drawn = min(m.weight_epsilon._version for m in layers)
    steps = max(m.weight_mu._version for m in layers)
    if drawn > 1 and 10 * drawn < steps:
        return undecided(f"drawn {drawn} times in {steps} updates of the weights")
    if drawn > 1:
        return clear(f"drawn {drawn} times in {steps} updates of the weights")
    return applies(f"drawn once, when it was built, in {steps} updates of the weights")


def noisy_layers(policy):
    return [m for m in modules_of(policy) if "weight_sigma" in m._parameters]


def trained(parameter):
    """Whether it has a gradient or was changed in place, as an optimizer does it."""
    return parameter.grad is not None or parameter._version > 0


# -- Devices --------------------------------------------------------------------


@check("collector_keeps_its_own_policy", "The collector never sees the trained policy")
def collector_keeps_its_own_policy(collector, policy=None, batch=None, loss_module=None):
    acts = getattr(collector, "policy", None)
    if is_multi_process(collector):
        if any(getattr(collector, "policy_factory", None) or []):
            return None  # workers_never_learn
        learns = policy if isinstance(policy, torch.nn.Module) else acts
        known = isinstance(learns, torch.nn.Module)
        return weights_of_workers(collector, learns, batch) if known else None
    if not isinstance(acts, torch.nn.Module):
        return None
    ours, theirs = trained_weights(policy, acts, collector, loss_module), acts.state_dict()
    if ours is None or not ours or ours.keys() != theirs.keys():
        return None
    if all(ours[name].data_ptr() == theirs[name].data_ptr() for name in ours):
        return None
    batches = batches_of(batch)
    if all(torch.equal(ours[name].cpu(), theirs[name].cpu()) for name in ours):
        if batches and repeats(acts, batches[0]) is False:
            return clear("the collector's copy has new weights, and they are those of the policy")
        return undecided("the collector's copy has the weights of the policy so far; train first")
    if len(batches) < 2:
        return undecided("the collector's copy has other weights; give a list of batches")
    first, last = (repeats(acts, rows) for rows in (batches[0], batches[-1]))
    if first is None or last is None:
        return undecided("the batches do not hold what the policy computed")
    if not first and last:
        return clear("the copy acts as in the last batch, and otherwise than in the first")
    if not first:
        return undecided("the copy computes neither the first batch again nor the last")
    learned = copy.deepcopy(acts)
    learned.load_state_dict(ours)
    if repeats(learned, batches[0]):
        return undecided("weights differ, and both compute what the first batch holds")
    return applies("the copy acts as in the first batch; the policy has other weights by now")


def told_by_workers(collector, question):
    """What the workers of a collector answer to *question*, or a sentence why they are not asked.

    Between two batches those of a `MultiSyncCollector` wait. Others would lose a batch.
    """
    if not is_multi_process(collector, "MultiSyncCollector"):
        return None, f"the workers of a {type(collector).__name__} cannot be asked as they collect"
    if getattr(collector, "closed", False) or not all(p.is_alive() for p in collector.procs):
        return None, "a worker of the collector has ended"
    if getattr(collector, "_running_free", False) or not hasattr(collector, "get_distant_attr"):
        return None, "the workers of the collector take no questions"
    with uninterrupted():
        return question(collector), None


def weights_of_workers(collector, policy, batch):
    """What is seen of weights in other processes: clear, where they have changed with ours."""
    told, why_not = told_by_workers(collector, lambda one: one.state_dict())
    if told is None:
        return undecided(why_not)
    ours = policy.state_dict()
    states = [told[name].get("policy_state_dict") for name in told if name.startswith("worker")]
    if not ours or any(state is None or not ours.keys() <= state.keys() for state in states):
        return undecided("the workers do not show the weights that they act with")
    pairs = [(ours[name].cpu(), state[name].cpu()) for state in states for name in ours]
    if not all(torch.equal(*pair) for pair in pairs):
        return undecided("the workers have other weights; does each update reach them?")
    batches = batches_of(batch)
    if batches and repeats(policy, batches[0]) is False:
        return clear("the workers have new weights, and they are those of the policy")
    return undecided("the workers have the weights of the policy so far; give the first batch")


def trained_weights(policy, acts, collector, loss_module):
    """The weights that are trained, by name: those of the policy, or of the loss's actor."""
    learns = policy if policy is not acts else getattr(collector, "_orig_policy", None)
    if isinstance(learns, torch.nn.Module) and learns is not acts:
        return learns.state_dict()
    for name in ("actor_network_params", "value_network_params"):
        params = getattr(loss_module, name, None)
        if params is not None:
            flat = params.flatten_keys(".")
            return {name: flat[name].data for name in acts.state_dict() if name in flat}
    return None


def repeats(policy, rows):
    """Whether *policy* computes again the floats that *rows* hold of it; None if they do not.

    What it draws is left out: two calls tell. Of an action that was drawn, the batch may hold the
    log-probability, which is computed of that very action.
    """
    from tensordict.nn import ProbabilisticTensorDictSequential
    from torchrl.envs.utils import ExplorationType, set_exploration_type

    keys = [key for key in getattr(policy, "out_keys", []) if rows.get(key) is not None]
    keys = [key for key in keys if rows[key].is_floating_point()]
    if not keys:
        return None
    twin = copy.deepcopy(policy)
    with set_exploration_type(ExplorationType.RANDOM):
        one, other = twin(rows.clone()), twin(rows.clone())
    fixed = [key for key in keys if torch.equal(one[key], other[key])]
    same = [torch.allclose(one[key], rows[key], atol=1e-5) for key in fixed]
    if isinstance(twin, ProbabilisticTensorDictSequential):
        drawn = [key for key in keys if key not in fixed and key in twin.log_prob_keys]
        again = twin.log_prob(rows.clone()) if drawn else None
        if isinstance(again, torch.Tensor) and len(drawn) == 1:
            stored = rows[drawn[0]].reshape(again.shape)
            same.append(torch.allclose(again, stored, atol=1e-4))
    return all(same) if same else None


def batches_of(batch):
    """A list of batches, whether one, several or none were given."""
    return list(batch) if isinstance(batch, (list, tuple)) else [] if batch is None else [batch]


@check("loss_and_data_on_two_devices", "Loss and data are on two devices")
def loss_and_data_on_two_devices(loss_module=None, batch=None, sample=None, error=None):
    if isinstance(error, RuntimeError) and is_about_two_devices(str(error)):
        return applies(str(error).partition("\n")[0][:100])
    data = sample if sample is not None else batches_of(batch)[0] if batch is not None else None
    if loss_module is None or data is None:
        return None
    weights = {weight.device.type for weight in loss_module.parameters()}
    leaves = {leaf.device.type for leaf in data.values(True, True) if hasattr(leaf, "device")}
    if leaves - weights:  # a loop may move each batch before the loss sees it
        return None
    return clear(f"loss and data are on {', '.join(sorted(leaves))}") if weights else None


def is_about_two_devices(text):
    one = "is not on the expected device" in text
    return one or "to be on the same device" in text or "not at the same device" in text


# -- Multi-process and weight sync ----------------------------------------------


@check("every_environment_starts_alike", "Every environment plays the same episodes")
def every_environment_starts_alike(batch=None, collector=None):
    seen = starts_of(batches_of(batch)[0]) if batch is not None else None
    if not is_multi_process(collector) or (seen and seen.state != UNDECIDED):
        return seen
    seeds, why_not = told_by_workers(collector, seeds_of_workers)
    if seeds is None:
        return seen or undecided(why_not or "the environments of the workers tell no seed")
    if len(set(seeds)) == len(seeds):
        return clear(f"the environments of {len(seeds)} workers have seeds of their own")
    return applies(f"the environments of the workers have the seeds {seeds}")


def seeds_of_workers(collector):
    """The seed of each worker's environment; None where they are not one of gymnasium each."""
    try:
        seeds = collector.get_distant_attr("env.np_random_seed")
    except AttributeError:
        return None
    return seeds if all(isinstance(seed, int) for seed in seeds) else None


def starts_of(rows):
    """Whether the environments of a batch start alike, as its observations tell."""
    observations, _ = both_sides(rows)
    if rows.ndim < 2 or observations is None or rows.shape[:-1].numel() < 2:
        return None
    environments = observations.flatten(0, -3)  # environment, time, features
    ends, begun = done_of(rows).flatten(0, -2)[:, :-1], begins(rows)
    starts = [
        torch.cat([one[:1], one[1:][end]])[0 if begun else 1 :]
        for one, end in zip(environments, ends, strict=True)
    ]
    seen = f"{len(environments)} environments"
    late = undecided(f"{seen}; the batch does not begin with a reset, so give the first one")
    unique = torch.cat([one.unique(dim=0) for one in starts])
    count = min(map(len, starts))
    if len(unique.unique(dim=0)) == len(unique):
        if begun and count < 2:  # seeded alike after the first reset, they look the same
            return undecided(f"{seen} start apart; give a batch with two episodes of each")
        return clear(f"{seen} start from different observations") if begun else late
    if count < 3:
        return undecided("environments start alike; too few episodes to tell from a fixed start")
    _, numbers = torch.cat(starts).unique(dim=0, return_inverse=True)
    each = numbers.split([len(one) for one in starts])
    sequences = torch.stack([one[:count] for one in each]).unique(dim=0)
    if len(sequences) == len(environments):
        threes = [set(triples(one)) for one in each]
        new_each_time = all(len(one.unique()) == len(one) for one in each)
        if new_each_time and sum(map(len, threes)) > len(set().union(*threes)):
            return applies(f"{seen}; one starts as another did some episodes before")
        if len(torch.stack([one[1:count] for one in each]).unique(dim=0)) < len(environments):
            return undecided(f"{seen} start alike from their second episode on; give more of them")
        return clear(f"{seen}, as many sequences of starts") if begun else late
    if sequences.numel() > len(numbers.unique()):  # few places to start from: by chance, or all
        return None
    return applies(f"{seen}, {len(sequences)} sequences of starts")


def triples(numbers):
    """Each three that follow one another."""
    return zip(*(numbers[n:].tolist() for n in range(3)), strict=False)


def begins(rows):
    """Whether a batch (..., time) begins with the first reset of each of its environments."""
    ids = rows.get(("collector", "traj_ids"), None)
    if ids is not None:  # the first batch numbers the environments
        return int(ids[..., 0].max()) < ids[..., 0].numel()
    started, steps = rows.get("is_init", None), rows.get("step_count", None)
    if started is None and steps is not None:
        started = steps == 0
    return started is not None and bool(started.reshape(*rows.shape, -1)[..., 0, :].all())


def both_sides(rows):
    """The floats that a step and its "next" share, side by side, from either; None without any."""
    later, width = rows.get("next"), (*rows.batch_size, -1)
    if later is None or later.get("done") is None:
        return None, None
    leaves = [key for key in later.keys(True, True) if rows.get(key) is not None]
    keys = [key for key in leaves if later[key].is_floating_point()]
    if not keys:
        return None, None
    return [torch.cat([side[key].reshape(width) for key in keys], -1) for side in (rows, later)]


def done_of(rows):
    """Where an episode ends, in the shape of the batch."""
    return rows["next", "done"].reshape(*rows.batch_size, -1).any(-1)


@check("update_weights_wants_data", "update_policy_weights_(policy) raises AttributeError")
def update_weights_wants_data(error):
    if not isinstance(error, AttributeError) or "no attribute 'data'" not in str(error):
        return None
    step, places = error.__traceback__, []
    while step is not None:
        places.append(step.tb_frame.f_code.co_name)
        step = step.tb_next
    if any(name.startswith("update_policy_weights_") for name in places):
        return applies("a module was passed where a TensorDict of weights is read")
    return None if places else undecided("the error has no traceback")


@check("workers_never_learn", "The workers act with their first weights forever")
def workers_never_learn(collector, policy=None, batch=None):
    factories = getattr(collector, "policy_factory", None)
    if not is_multi_process(collector) or not isinstance(factories, (list, tuple)):
        return None
    if not any(factories):
        return None
    learns = isinstance(policy, torch.nn.Module)
    if getattr(collector, "_weight_sync_schemes", None) or collector.weight_updater is not None:
        if learns:
            return weights_of_workers(collector, policy, batch)
        return undecided("a scheme takes weights to the workers; pass the trained policy=")
    if not learns:
        return undecided("nothing sends weights to policy_factory's; pass the trained policy=")
    theirs = getattr(next(factory for factory in factories if factory)(), "state_dict", dict)()
    ours = policy.state_dict()
    if theirs.keys() != ours.keys():
        return None
    if all(torch.equal(ours[name].cpu(), theirs[name].cpu()) for name in ours):
        return undecided("nothing sends weights to policy_factory's; so far these are the same")
    return applies("policy_factory makes this policy, and no scheme or updater sends its weights")


def is_multi_process(collector, name="MultiCollector"):
    return any(kind.__name__ == name for kind in type(collector).__mro__)


@check("new_weights_arrive_late", "The batch after an update is from old weights")
def new_weights_arrive_late(collector, loss_module, batch, value_estimator=None):
    on_policy = any(
        kind.__name__ in ("PPOLoss", "A2CLoss", "ReinforceLoss")
        for kind in type(loss_module).__mro__
    )
    estimators = (value_estimator, getattr(loss_module, "_value_estimator", None))
    if not on_policy or any(type(one).__name__ == "VTrace" for one in estimators):
        return None
    if not is_multi_process(collector, "MultiAsyncCollector"):
        return None
    versions = [rows.get(("next", "policy_version")) for rows in batches_of(batch)]
    if any(version is None for version in versions):
        return undecided("collect with track_policy_version=True, and give a list of batches")
    acted = [version.unique() for version in versions]
    mixed = [numbers.tolist() for numbers in acted if len(numbers) > 1]
    if mixed:
        return applies(f"one batch holds actions of the versions {mixed[0]}, for an on-policy loss")
    numbers = torch.stack(acted).flatten()
    if len(numbers) < 4:
        return undecided("give four batches, with an update between each two")
    steps, seen = numbers.diff().tolist(), f"versions {numbers.tolist()}"
    if steps == [0] + [1] * (len(numbers) - 2):
        return applies(f"one update a batch, and {seen} for an on-policy loss")
    if set(steps) == {1} and begins(batches_of(batch)[0]):
        return clear(f"batches of the {seen}")
    return undecided(f"batches of the {seen}; give the first four, with an update between each two")


@check("workers_act_alike", "All workers take the same random actions")
def workers_act_alike(batch, collector=None, policy=None):
    rows = batches_of(batch)[0]
    observations, _ = both_sides(rows)
    action = rows.get("action")
    if observations is None or action is None or rows.ndim < 2 or rows.shape[-1] < 32:
        return None
    workers = rows.shape[:-1].numel()
    moves = action.reshape(workers, rows.shape[-1], -1)
    if workers < 2 or (moves == moves[:, :1]).all():
        return None
    alike, one_place = (moves == moves[:1]).all(), (observations == observations[:1]).all()
    seen = f"{workers} streams of {moves.shape[1]} actions"
    drawn = policy is not None and (samples(policy) or exploration_modules(policy))
    if alike and one_place:
        return undecided(f"{seen} are the same, as are the observations")
    if alike and not (drawn or has_no_policy(collector)):
        return None  # a policy that draws nothing may do the same everywhere
    if alike:
        return applies(f"{seen} are one and the same")
    if has_no_policy(collector):
        return clear(f"{seen} differ, and no policy makes a difference")
    if not drawn or "action" not in policy.out_keys:
        return undecided(f"{seen} differ; pass the policy= that drew them")
    if other_than_greedy(policy, rows, "action") is None:
        return undecided(f"{seen} differ; the policy= is not the one that drew them any more")
    noise = moves.double() - act(policy, rows, "DETERMINISTIC")["action"].reshape(moves.shape)
    common = in_common(noise)
    # Noise that remembers may look alike for a while.
    if common is not None and common > 0.9 and samples(policy):
        return applies(f"what was drawn in {seen} correlates by {common:.2f}")
    if common is None or common > 0.3:
        return undecided(f"{seen} differ; is what was drawn the same? Give more frames")
    return clear(f"what was drawn in {seen} correlates by {common:.2f} at most")


def in_common(noise):
    """The largest correlation of what two workers drew, (workers, time, numbers).

    None where a stream has too few draws that made a difference.
    """
    if int((noise != 0).any(-1).sum(1).min()) < FEWEST_SAMPLED:
        return None
    lines = noise - noise.mean(1, keepdim=True)
    return float(torch.corrcoef(lines.flatten(1)).triu(1).abs().max())


@check("buffer_holds_garbage", "The buffer is full and holds garbage")
def buffer_holds_garbage(collector, replay_buffer):
    storage = getattr(getattr(replay_buffer, "_storage", None), "_storage", None)
    if getattr(collector, "replay_buffer", None) is not replay_buffer:
        return None  # the main process writes
    if not is_multi_process(collector) or not hasattr(storage, "values"):
        return None
    leaves = [leaf for leaf in storage.values(True, True) if isinstance(leaf, torch.Tensor)]
    leaves = [leaf for leaf in leaves if type(leaf).__name__ != "MemoryMappedTensor"]
    private = [leaf for leaf in leaves if not leaf.is_shared()]
    if private:
        return applies(f"{len(private)} of {len(leaves)} entries are not in shared memory")
    return clear("the workers write to memory that is shared")


# -- Trajectories and slices ----------------------------------------------------


TRAJ_IDS = ("collector", "traj_ids")
PADDING = ("collector", "mask")
FEW_THOUSAND = 20_000  # rows that a check reads of a buffer
A_FEW_MILLION = 10_000_000  # numbers that it compares of an entry


@check("sequences_run_into_each_other", "Sampled sequences run into each other")
def sequences_run_into_each_other(replay_buffer, sample, batch=None, value_estimator=None):
    length = slice_length(replay_buffer, sample)
    key = length and getattr(replay_buffer.sampler, "truncated_key", None)
    if not key or sample.ndim != 1:
        return None
    slices, marks = sample.numel() // length, sample.get(key)
    marked = 0 if marks is None else int(marks.reshape(len(sample), -1).any(-1).sum())
    found = f"{marked} rows of a sample of {slices} slices are truncated"
    if marked >= slices:
        return clear(found)
    if jumps_every(length, one_batch(batch), value_estimator):
        return applies(f"{found}, and the batch holds the slices in one line")
    return undecided(f"{found}; do you reshape it to ({slices}, {length}) before it is read?")


@check("slices_jump_to_another_environment", "Sequences jump to another environment in the middle")
def slices_jump_to_another_environment(replay_buffer, collector=None):
    return None if has_workers(collector) else mixed_slices(replay_buffer)


@check("sample_returns_far_more_rows", "sample(32) returns far more than 32 transitions")
def sample_returns_far_more_rows(
    replay_buffer, sample, batch, value_estimator=None, loss_module=None
):
    if slice_length(replay_buffer, sample) is not None:
        return None
    found = f"a sample of {len(sample)} items has {sample.numel()} rows"
    if sample.ndim == 1:
        return clear(found)
    one = batch[0] if isinstance(batch, list) else batch
    if one.ndim < 2 or sample.shape[1:] != one.shape[1:]:
        return None
    sequences = [value_estimator, getattr(loss_module, "_value_estimator", None)]
    walked = any(map(along_time, sequences)) and "advantage" not in sample
    if walked or {"is_init", PADDING} & set(sample.keys(True)):
        return undecided(f"{found}; that may be meant, for a network that reads sequences")
    return applies(f"{found}: an item is {sample.shape[-1]} steps of one environment")


@check("advantages_wrong_with_several_workers", "Advantages are wrong when several workers collect")
def advantages_wrong_with_several_workers(batch, value_estimator, collector=None):
    one = batch[0] if isinstance(batch, list) else batch
    known = one.get(value_key("advantage", None, value_estimator), None) is not None
    if known or not along_time(value_estimator) or not may_glue(collector):
        return None
    ids, done = one.get(TRAJ_IDS, None), any_flag(one, [("next", "done")])
    if ids is None or done is None or ids.shape != one.shape or not one.ndim:
        return None  # of no collector
    time_dim = walked_dim(one, value_estimator)
    ids, done = ids.movedim(time_dim, -1), done.movedim(time_dim, -1)
    seams = (ids[..., 1:] != ids[..., :-1]) & ~done[..., :-1]
    masked = one.get(PADDING, None)
    if masked is not None:
        masked = masked.movedim(time_dim, -1)
        seams = seams & masked[..., 1:] & masked[..., :-1]
    if 2 * seams.sum() > seams.numel():
        return None  # rows in another order than that of time
    found = f"along time, {int(seams.sum())} trajectory ids change without done"
    return applies(found) if seams.any() else clear(found)


@check("sequences_mix_two_runs", "Sequences of one buffer mix two runs")
def sequences_mix_two_runs(replay_buffer):
    sampler = replay_buffer.sampler
    if not is_sliced(replay_buffer):
        return None
    rows, joined = stored_rows(replay_buffer)
    if not cuts_at_ids(sampler, rows):
        return None
    ids = rows.get(sampler.traj_key or TRAJ_IDS)
    inside = (ids[1:] == ids[:-1]).reshape(joined.shape) & joined
    continued = steps_that_continue(rows, inside)
    if continued is None:
        return undecided("the rows hold nothing that tells whether one follows the other")
    jumps = inside & ~continued
    found = f"{int(jumps.sum())} pairs of rows with one trajectory id do not follow each other"
    return applies(found) if jumps.any() else clear(found)


@check("short_episodes_are_never_replayed", "Short episodes are never replayed")
def short_episodes_are_never_replayed(replay_buffer, sample):
    if not is_sliced(replay_buffer):
        return None
    length, sampler = slice_length(replay_buffer, sample), replay_buffer.sampler
    if not sampler.strict_length or getattr(sampler, "fragmented", False):
        return clear("the sampler leaves no episode out")
    rows, _ = stored_rows(replay_buffer)
    done = any_flag(rows, [("next", "done")])
    if done is None:
        return undecided("the buffer holds no done")
    if cuts_at_ids(sampler, rows):
        # An episode counts whole, though it may be stored in several pieces.
        ids = rows.get(sampler.traj_key or TRAJ_IDS).flatten()
        ids = ids.unique(return_inverse=True)[1]
        episodes = ids.bincount()[ids[done.flatten()].unique()]
    else:
        lengths, finished = pieces(replay_buffer)
        episodes = lengths[finished]
    short = int((episodes < length).sum())
    found = f"{short} of {len(episodes)} finished episodes are shorter than {length} steps"
    if short > max(2, 0.2 * len(episodes)):
        return applies(found)
    if short or not len(episodes):
        return undecided(f"{found}; do these matter?" if short else "no episode has ended")
    return clear(found)


@check("mean_reward_is_far_too_low", "The mean reward of a sample is far too low")
def mean_reward_is_far_too_low(replay_buffer, sample):
    mask = sample.get(PADDING, None)
    if mask is None or getattr(replay_buffer.sampler, "pad_output", False):
        return None
    found = f"{int((~mask).sum())} of {mask.numel()} rows of a sample are padding"
    stored = stored_leaf(replay_buffer, PADDING)
    if mask.all() and stored is not None and stored.all():
        return clear("no stored row is padding")
    if sample.ndim == 1 and not mask.all():
        return applies(found)
    if stored is not None:
        found += f", and {int((~stored).sum())} of {stored.numel()} in the storage"
    return undecided(f"{found}; do you mask them?")


@check("no_trajectory_is_long_enough", "No trajectory is long enough for a slice")
def no_trajectory_is_long_enough(error=None, replay_buffer=None, sample=None):
    if says(error, RuntimeError, "Did not find a single trajectory with sufficient length"):
        return applies(str(error))
    if replay_buffer is None or not is_sliced(replay_buffer):
        return None
    if sample is not None and replay_buffer.batch_size:
        return clear("the sampler found a trajectory that is long enough")
    sampler, lengths = replay_buffer.sampler, pieces(replay_buffer)[0]
    length = sampler.slice_len or (replay_buffer.batch_size or 0) // sampler.num_slices
    if not length or not sampler.strict_length or getattr(sampler, "fragmented", False):
        return None
    found = f"a slice has {length} rows, the longest trajectory {int(lengths.max())}"
    return applies(found) if lengths.max() < length else clear(found)


@check("one_step_cannot_be_stored", "A single step of several environments cannot be stored")
def one_step_cannot_be_stored(error=None, replay_buffer=None, batch=None):
    if says(error, RuntimeError, "tensor shape is incompatible with dest shape") and (
        "_set_index_in_td" in functions_of(error)
    ):
        return applies(str(error))
    write_index = getattr(replay_buffer, "_set_index_in_td", None)
    one = batch[0] if isinstance(batch, list) else batch
    if write_index is None or one is None or not 1 < one.ndim == replay_buffer.storage.ndim:
        return None
    try:
        write_index(one.empty(), torch.zeros(one.numel(), one.ndim, dtype=torch.long))
    except RuntimeError:
        return applies(f"the buffer refuses a batch of shape {tuple(one.shape)}")
    return clear(f"the buffer takes a batch of shape {tuple(one.shape)}")


@check("splitting_a_sample_fails", "Splitting a sample into its sequences fails")
def splitting_a_sample_fails(error=None, batch=None, replay_buffer=None):
    if says(error, RuntimeError, "split_with_sizes expects split_sizes to sum exactly") and (
        "split_trajectories" in functions_of(error)
    ):
        return applies(f"split_trajectories raised: {error}")
    length = getattr(getattr(replay_buffer, "sampler", None), "slice_len", None)
    one = batch[0] if isinstance(batch, list) else batch
    if length is None or one is None or one.ndim < 2:
        return None
    if not {"index", PADDING} <= set(one.keys(True)):
        return None  # no slices, or no sample that was split
    longest = int(one.get(PADDING).sum(-1).max())
    found = f"a slice has {length} rows, the longest sequence of the batch {longest}"
    return applies(found) if longest > length else clear(found)


@check("end_signal_has_two_dimensions", "The end-of-trajectory signal has one dimension too many")
def end_signal_has_two_dimensions(error=None, replay_buffer=None):
    if says(error, RuntimeError, "Expected the end-of-trajectory signal to be", "-dimensional"):
        return applies(str(error))
    storage = getattr(replay_buffer, "storage", None)
    inner = getattr(storage, "_storage", None)
    if not hasattr(getattr(replay_buffer, "sampler", None), "slice_len") or not len(storage):
        return None
    if not hasattr(inner, "batch_size"):
        return undecided("the storage keeps its rows in no single block")
    found = f"the storage has ndim={storage.ndim}, its rows have {inner.ndim} dimensions"
    return applies(found) if inner.ndim > storage.ndim else clear(found)


@check("sequences_mix_workers", "Sequences mix the episodes of two workers")
def sequences_mix_workers(replay_buffer, collector):
    return mixed_slices(replay_buffer) if has_workers(collector) else None


@check("sample_has_fewer_rows_than_asked", "A sample has fewer rows than asked for")
def sample_has_fewer_rows_than_asked(replay_buffer, sample=None, error=None):
    sampler, asked = replay_buffer.sampler, replay_buffer.batch_size
    if getattr(sampler, "strict_length", True) or sampler.pad_output:
        return None
    if says(error, AssertionError, "invalid shape") or (
        says(error, RuntimeError, "is invalid for input of size")
    ):
        return applies(f"slices may be short and are not padded; then: {error}")
    if sample is None or asked is None:
        return None
    found = f"{sample.numel()} rows for a sample of {asked}"
    if sample.numel() >= asked:
        length = slice_length(replay_buffer, sample)
        if not is_sliced(replay_buffer) or length is None:
            return undecided(f"{found}; are there trajectories shorter than a slice?")
        short = int((pieces(replay_buffer)[0] < length).sum())
        if not short:
            return clear(f"{found}, and no stored trajectory is shorter than a slice")
        found += f", and {short} stored trajectories are shorter than a slice"
    return undecided(f"{found}; do you reshape it?")


@check("episodes_get_shorter_with_every_sample", "Stored episodes get shorter with every sample")
def episodes_get_shorter_with_every_sample(replay_buffer):
    storage, sampler = replay_buffer.storage, replay_buffer.sampler
    marks = [getattr(sampler, name, None) for name in ("truncated_key", "init_key")]
    if not any(marks) or not hasattr(replay_buffer, "_set_index_in_td") or not len(storage):
        return None
    rows, transform = storage.get([0]), getattr(replay_buffer, "_transform", None)
    handed_out = [id(row) for row in getattr(rows, "tensordicts", [])]
    if id(storage.get(0)) not in handed_out:
        return clear("the storage returns copies of its rows")
    if transform is not None and len(transform):
        return undecided("the storage returns its own rows; does a transform clone them?")
    return applies("the storage returns its own rows, and a sample is marked in place")


@check("sequences_run_over_episode_ends", "Sequences run over the ends of episodes")
def sequences_run_over_episode_ends(replay_buffer):
    if not is_sliced(replay_buffer):
        return None
    sampler, (rows, joined) = replay_buffer.sampler, stored_rows(replay_buffer)
    ended = any_flag(rows, [("next", "done")])
    if cuts_at_ids(sampler, rows) or ended is None:
        return None
    cut = any_flag(rows, sampler.end_keys or [sampler.end_key])
    missed = int((ended & ~cut)[:-1][joined].sum())
    found = f"the sampler's key marks {int(cut.sum())} ends and misses {missed} episodes that end"
    if missed:
        return applies(found)
    if ("next", "done") not in (sampler.end_keys or [sampler.end_key]):
        return undecided(f"{found}; has an episode ended otherwise, as by a time limit?")
    return clear(found)


@check("slice_sampler_refuses_trajectory_key", "SliceSampler refuses trajectory_key")
def slice_sampler_refuses_trajectory_key(error):
    refused = says(error, TypeError, "SliceSampler", "argument 'trajectory_key'")
    return applies(str(error)) if refused else None


@check("sampler_refuses_the_batch_size", "The slice sampler refuses the batch size")
def sampler_refuses_the_batch_size(error=None, replay_buffer=None):
    if says(error, RuntimeError, "The batch-size must be divisible by the "):
        return applies(str(error))
    sampler = getattr(replay_buffer, "sampler", None)
    asked = getattr(replay_buffer, "batch_size", None)
    part = getattr(sampler, "slice_len", None) or getattr(sampler, "num_slices", None)
    if part is None or asked is None:
        return None
    found = f"a batch size of {asked} rows, divided by {part}, leaves {asked % part}"
    return applies(found) if asked % part else clear(found)


def says(error, kind, *words):
    return isinstance(error, kind) and all(one in str(error) for one in words)


def functions_of(error):
    """The names of the functions that an exception went through."""
    return [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]


def slice_length(replay_buffer, sample):
    """How long the slices of the buffer's sampler are; None if it draws no slices."""
    sampler = replay_buffer.sampler
    if not hasattr(sampler, "slice_len"):
        return None
    return sampler.slice_len or max(sample.numel() // sampler.num_slices, 1)


def jumps_every(length, data, value_estimator):
    """Is *data* one line in which no row follows after each *length* rows, and none is done?"""
    if data is None or data.ndim != 1 or len(data) <= length:
        return False
    keys = observed_keys(data, getattr(value_estimator, "value_network", None))
    done_key = value_key("done", None, value_estimator)
    if not keys or get_next(data, done_key) is None:
        return False
    last = torch.arange(length - 1, len(data) - 1, length, device=data.device)
    strange, _ = strangers(torch.stack([data[last], data[last + 1]], 1), 1, keys, done_key)
    return 2 * strange > len(last)


def along_time(value_estimator):
    """Whether the estimator carries something from a row to the one before."""
    return value_estimator is not None and not type(value_estimator).__name__.startswith("TD0")


def may_glue(collector):
    """Whether batches of workers are joined along time; True if no collector says it."""
    return collector is None or getattr(collector, "cat_results", None) not in (None, "stack")


def has_workers(collector):
    return getattr(collector, "num_workers", 1) > 1


def stored_rows(replay_buffer):
    """The first rows of the storage, time first, and the pairs of neighbors that nothing cuts."""
    storage = shallow(replay_buffer.storage)  # which keeps its shape once it was asked for it
    rows = storage[: min(storage.shape[0], FEW_THOUSAND)]
    joined = torch.ones(len(rows) - 1, *rows.shape[1:], dtype=torch.bool, device=rows.device)
    cursor = getattr(storage, "_last_cursor_index", None)
    if cursor is not None and 0 <= int(cursor) < len(joined):
        joined[int(cursor)] = False
    return rows, joined


def any_flag(rows, keys):
    """Whether any of the entries is True, one value for each row."""
    found = [rows.get(key, None) for key in keys]
    flags = [value.reshape(*rows.shape, -1).any(-1) for value in found if value is not None]
    return torch.stack(flags).any(0) if flags else None


def cuts_at_ids(sampler, rows):
    keys = rows.keys(True)
    chosen = sampler.traj_key in keys if sampler.traj_key else False
    return chosen or (getattr(sampler, "_traj_key_auto", False) and TRAJ_IDS in keys)


def mixed_slices(replay_buffer):
    """Do slices that are cut at done contain rows of two trajectories?"""
    sampler = replay_buffer.sampler
    if not is_sliced(replay_buffer):
        return None
    rows, joined = stored_rows(replay_buffer)
    ids = rows.get(TRAJ_IDS, None)
    if cuts_at_ids(sampler, rows):
        return clear("the sampler cuts at trajectory ids")
    done = any_flag(rows, sampler.end_keys or [sampler.end_key])
    if ids is None or done is None:
        return undecided("the buffer holds no trajectory ids or no done to compare")
    ended = any_flag(rows, [("next", "done")])
    done = done if ended is None else done | ended
    seams = (ids[1:] != ids[:-1]) & ~done[:-1] & joined
    found = f"{int(seams.sum())} rows are not done and followed by another trajectory"
    return applies(found) if seams.any() else clear(found)


def steps_that_continue(rows, inside):
    """Whether the next observation of each row is the observation of the one below.

    Only entries count for which that holds nearly everywhere: a transform may change the rest.
    """
    kept = []
    led_to_rows = rows.get("next", rows.empty())
    for key in led_to_rows.keys(True, True):
        now, led_to = rows.get(key, None), led_to_rows.get(key)
        if now is None or not now.is_floating_point():
            continue
        few = max(2, A_FEW_MILLION // now[0].numel())  # of images, the first ones
        equal = now[1:few] == led_to[: min(few, len(now)) - 1]
        equal = equal.reshape(*equal.shape[: inside.ndim], -1).all(-1)
        looked_at = inside[: len(equal)]
        if looked_at.any() and equal[looked_at].float().mean() > 0.8:
            kept.append(torch.ones_like(inside))
            kept[-1][: len(equal)] = equal
    return torch.stack(kept).all(0) if kept else None


def pieces(replay_buffer):
    """The lengths of the pieces that the sampler cuts the storage into, and which end with done."""
    sampler = replay_buffer.sampler
    rows, joined = stored_rows(replay_buffer)
    end = torch.ones(rows.shape, dtype=torch.bool, device=rows.device)
    if cuts_at_ids(sampler, rows):
        ids = rows.get(sampler.traj_key or TRAJ_IDS).reshape(rows.shape)
        end[:-1] = ids[1:] != ids[:-1]
    else:
        end[:-1] = any_flag(rows, sampler.end_keys or [sampler.end_key])[:-1]
    end[:-1] |= ~joined
    done = any_flag(rows, [("next", "done")])
    done = torch.zeros_like(end) if done is None else done
    end, done = (x.reshape(len(x), -1).mT.flatten() for x in (end, done))
    stops = end.nonzero().flatten()
    return stops.diff(prepend=stops.new_full((1,), -1)), done[stops]


def is_sliced(replay_buffer):
    """Whether slices are drawn from rows that can be read in one block, without a copy."""
    storage = replay_buffer.storage
    inner = getattr(storage, "_storage", None)
    sliced = hasattr(replay_buffer.sampler, "slice_len") and len(replay_buffer) > 1
    if not sliced or getattr(inner, "ndim", None) != storage.ndim or not hasattr(inner, "keys"):
        return False
    keys, sampler = inner.keys(True), replay_buffer.sampler
    return cuts_at_ids(sampler, inner) or bool(
        {*(sampler.end_keys or [sampler.end_key])} & set(keys)
    )


# -- Replay buffers -------------------------------------------------------------


def transforms_of(owner):
    """The transforms of an environment or a replay buffer in one list."""
    from torchrl.envs import EnvBase, TransformedEnv

    if isinstance(owner, TransformedEnv):
        return transforms_of(owner.base_env) + flat(owner.transform)
    return [] if isinstance(owner, EnvBase) else flat(getattr(owner, "_transform", None))


def flat(transform):
    if hasattr(transform, "transforms"):
        return [one for inner in transform.transforms for one in flat(inner)]
    return [] if transform is None else [transform]


@check("prioritized_replay_draws_evenly", "Prioritized replay draws every sample equally often")
def prioritized_replay_draws_evenly(replay_buffer, loss_module=None):
    from torchrl.data import PrioritizedSampler

    sampler = getattr(replay_buffer, "sampler", None)
    if not isinstance(sampler, PrioritizedSampler) or sampler.alpha == 0:
        return None
    tree = getattr(sampler, "_sum_tree", None)
    if tree is None or len(replay_buffer) < 2:
        return undecided("there are no priorities to compare yet")
    rows = torch.as_tensor(tree[torch.arange(len(replay_buffer))])
    different = len(rows.unique())
    if different > 1:
        return clear(f"{different} different priorities in {len(rows)} rows")
    same = f"all {len(rows)} rows have one priority"
    read = getattr(replay_buffer, "priority_key", None)
    written = getattr(getattr(loss_module, "tensor_keys", None), "priority", read)
    if read is not None and read != written:  # else priorities are passed, not read
        return applies(f"{same}; the loss writes {written!r}, the buffer reads {read!r}")
    if replay_buffer.write_count >= 2 * len(rows):
        return applies(f"{same} after {replay_buffer.write_count} writes")
    return undecided(f"{same}; look again after an update")


@check(
    "loss_stays_high_with_normalized_observations",
    "The loss stays high with normalized observations",
)
def loss_stays_high_with_normalized_observations(replay_buffer, loss_module=None):
    from torchrl.envs.transforms import ObservationTransform

    transforms = transforms_of(replay_buffer)
    reached = {key for one in transforms for key in one.in_keys}
    changed = []
    for one in transforms:
        if isinstance(one, ObservationTransform):
            changed += [key for key in one.in_keys if key in one.out_keys and isinstance(key, str)]
    if not changed or not len(replay_buffer):
        return None
    row, read = replay_buffer.storage.get(0), getattr(loss_module, "in_keys", None)
    if not hasattr(row, "keys") or "advantage" in set(row.keys()):
        return None  # what a loss reads under "next" is read already
    for key in changed:
        later = ("next", key)
        # What is rebuilt after the transform is made of what it has changed.
        first = next(one for one in transforms if key in one.in_keys or key in rebuilt_by(one))
        there = later in row.keys(True) or key in rebuilt_by(first)
        if not there or later in reached:
            continue
        what = f"a transform of the buffer changes {key!r} and not {later!r}"
        if read is None:
            return undecided(f"{what}; does your loss read it?")
        if later in read:
            return applies(what)
    return clear("changed keys are changed in the next step too")


def rebuilt_by(transform):
    """The keys whose next value a transform of a replay buffer takes from the row below."""
    return transform.keys if type(transform).__name__ == "NextStateReconstructor" else ()


@check("samples_differ_from_what_the_policy_saw", "Samples differ from what the policy saw")
def samples_differ_from_what_the_policy_saw(env, replay_buffer):
    from torchrl.envs.transforms import CatFrames, ObservationNorm, VecNormV2

    same = [(ObservationNorm, VecNormV2), (CatFrames,)]
    for kinds in same:
        in_env = [one for one in transforms_of(env) if isinstance(one, kinds)]
        written = {key for one in in_env for key in one.out_keys}
        for one in transforms_of(replay_buffer):
            twice = written.intersection(one.in_keys)
            if isinstance(one, kinds) and twice:
                name = type(one).__name__
                return applies(f"{name} changes {min(twice, key=str)!r} again in the buffer")
    return clear("the buffer repeats no transform of the environment")


@check("first_samples_after_refill_are_old", "The first samples after a refill hold old data")
def first_samples_after_refill_are_old(replay_buffer):
    waiting = [f for f in getattr(replay_buffer, "_prefetch_queue", ()) if f.done()]
    if not waiting:
        return None
    sample, info = waiting[0].result()
    index = info["index"]
    if not isinstance(index, torch.Tensor) or index.ndim > 1 or not hasattr(sample, "keys"):
        return undecided("samples drawn ahead compare to no row")
    if index.max() >= len(replay_buffer):
        return applies("the next sample, drawn ahead, holds rows that are gone")
    now = replay_buffer[index]
    keys = set(now.keys(True, True)).intersection(sample.keys(True, True))
    if transforms_of(replay_buffer):
        keys &= {TRAJ_IDS}  # which transforms leave alone
    if not keys:
        return undecided("samples drawn ahead are transformed and compare to no row")
    pairs = [
        (now[key].reshape(len(index), -1), sample[key].reshape(len(index), -1)) for key in keys
    ]
    old = torch.stack([((a != b) & (a == a)).any(1) for a, b in pairs]).any(0).sum().item()
    found = f"{old} of {len(index)} rows of the next sample were overwritten after it was drawn"
    if old > len(index) / 2:
        return applies(found)
    if transforms_of(replay_buffer):
        return undecided(f"{found}, as far as trajectory ids tell: another run may have the same")
    return undecided(f"{found}: was the buffer filled anew?") if old else clear(found)


@check("values_are_zero_for_no_reason", "Part of the sampled values is zero for no reason")
def values_are_zero_for_no_reason(batch, replay_buffer):
    if not isinstance(batch, list) or not stored_leaves(replay_buffer):
        return None
    keys = [set(one.keys(True, True)) for one in batch]
    somewhere = set.union(*keys) - set.intersection(*keys)
    somewhere = [k for k in sorted(somewhere, key=str) if stored_leaf(replay_buffer, k) is not None]
    rows = sum(one.numel() for one in batch)
    if not somewhere and rows < len(replay_buffer):
        return undecided(f"{rows} rows in batches, {len(replay_buffer)} stored: give all batches")
    if not somewhere:
        return clear(f"what is stored is in all {len(batch)} batches or in none")
    stored = replay_buffer.storage.get(slice(0, min(len(replay_buffer), FEW_THOUSAND)))
    for key in somewhere:
        rows = stored.get(key, None) if hasattr(stored, "keys") else None
        zero = 0 if rows is None else int((rows.reshape(len(rows), -1) == 0).all(1).sum())
        if zero and zero >= min(map(len, batch)):
            having = f"{sum(key in one for one in keys)} of {len(batch)} batches"
            found = f"{key!r} is in {having}, and zero in {zero} of {len(rows)} stored rows"
            if rows.is_floating_point():
                return applies(found)
            return undecided(f"{found}; is zero a value of it?")
    return undecided(f"{somewhere[0]!r} is not in all batches; what do its stored rows hold?")


@check("stacked_frames_of_different_episodes", "Stacked frames come from different episodes")
def stacked_frames_of_different_episodes(replay_buffer):
    from torchrl.envs.transforms import CatFrames

    stacking = [one for one in transforms_of(replay_buffer) if isinstance(one, CatFrames)]
    if not any(not one.as_inverse for one in stacking):
        return None
    name = type(replay_buffer.sampler).__name__
    if hasattr(replay_buffer.sampler, "slice_len"):
        return clear("the sampler draws slices")
    if not getattr(replay_buffer.sampler, "shuffle", True):
        return clear("the sampler draws rows in their order")
    known = ("RandomSampler", "PrioritizedSampler", "SamplerWithoutReplacement")
    if name not in known or getattr(replay_buffer, "_sample_unit", None) is not None:
        return undecided(f"does a {name} draw rows that follow each other?")
    if not len(replay_buffer) or getattr(replay_buffer.storage.get(0), "ndim", 1):
        return undecided("no single steps are stored")
    return applies(f"CatFrames stacks what a {name} draws, rows that do not follow each other")


@check("hook_changes_nothing_that_is_stored", "The hook changes nothing that is stored")
def hook_changes_nothing_that_is_stored(collector, replay_buffer):
    hook = getattr(collector, "post_collect_hook", None)
    if hook is None or not getattr(collector, "extend_buffer", True):
        return None
    if not hasattr(hook, "__code__"):
        return undecided("the hook is no plain function")
    for key, method in called_on_entries(hook):
        if method in CHANGE_IN_PLACE:
            return applies(f"the hook calls {method} on {key!r}, of which it has a copy")
    return undecided("does the hook change an entry in place? It has copies of the entries")


def called_on_entries(function):
    """The key and the method of each ``td[key].method`` in the code, where td is an argument."""
    own = function.__code__
    arguments, code = own.co_varnames[: own.co_argcount], list(dis.get_instructions(function))
    for whose, key, read, method in zip(code, code[1:], code[2:], code[3:], strict=False):
        is_read = read.opname == "BINARY_SUBSCR" or read.argrepr == "[]"
        if is_read and whose.argval in arguments:
            yield key.argval, method.argval


CHANGE_IN_PLACE = {"add_", "clamp_", "clip_", "copy_", "div_", "mul_", "neg_", "sub_", "zero_"}


@check("sampling_raises_with_a_transform", "Sampling raises as soon as the buffer has a transform")
def sampling_raises_with_a_transform(replay_buffer=None, sample=None, error=None):
    if says(error, RuntimeError, "Failed to set the metadata", "in the sampled tensordict"):
        return applies("the index of a sample does not fit what a transform returned")
    if sample is None or not transforms_of(replay_buffer):
        return None
    return clear("the index of a sample fits what the transforms return")


@check("filling_a_buffer_raises_about_dimensions", "Filling the buffer raises about dim0 and dim1")
def filling_a_buffer_raises_about_dimensions(env=None, replay_buffer=None, error=None):
    raised = says(error, ValueError, "dim0 and dim1 must be within the range")
    if env is None or replay_buffer is None:
        return applies("a tensordict with too few dimensions was transposed") if raised else None
    counts = getattr(getattr(replay_buffer, "storage", None), "ndim", 1)
    has = len(env.batch_size) + 1
    found = f"the storage counts {counts} batch dimensions, a batch of the environment has {has}"
    if raised:
        return applies(found)
    if counts > has and not len(replay_buffer):
        return undecided(f"{found}; something has to add the others before it is stored")
    return clear(found)


@check("sampling_raises_at_the_start", "Sampling from the buffer raises at the start")
def sampling_raises_at_the_start(error, replay_buffer=None):
    empty = says(error, RuntimeError, "Cannot sample from an empty storage")
    if not empty and not says(error, RuntimeError, "Could not get a tensordict out of the storage"):
        return None
    stored = 0 if replay_buffer is None else len(replay_buffer)
    return applies(f"the storage was empty; now it holds {stored} rows")


@check("sample_asks_for_a_batch_size", "The buffer raises because it knows no batch size")
def sample_asks_for_a_batch_size(error, replay_buffer=None):
    known = getattr(replay_buffer, "batch_size", None)
    words = ("batch_size not specified", "Dynamic batch-size", "predictable batch-size")
    if any(says(error, (RuntimeError, ValueError), one) for one in words):
        return applies(f"the batch size of the buffer is {known}")
    return None


@check(
    "prioritized_replay_not_available",
    'Prioritized replay: "SumSegmentTreeFp32 is not available"',
)
def prioritized_replay_not_available(error):
    said = re.search(r"\w+SegmentTreeFp\d+ is not available", str(error))
    if isinstance(error, RuntimeError) and said:
        return applies(f"{said[0]}; torch is {torch.__version__}")
    return None


# -- Memory and storage ---------------------------------------------------------


@check("next_observation_of_another_step", "Some next observations belong to another step")
def next_observation_of_another_step(replay_buffer, sample):
    rebuilders = rebuilders_with_nan(replay_buffer)
    if not rebuilders or sample.get(("next", "done"), None) is None:
        return None
    if all(one.step_count_key is not None for one in rebuilders):
        return clear("the step count decides which row is the next step")
    jumps = jumps_in(sample)
    if jumps is None or jumps.float().mean() > 0.5:
        return None
    # Inside a slice that a sampler joined from several pieces the index may jump, too.
    ends = jumps & sample["next", "done"].flatten(1).any(1)[:-1]
    keys = [key for one in rebuilders for key in one.keys]
    filled = sum(int((ends & known(sample, key)[:-1]).sum()) for key in keys)
    if filled:
        return applies(f"{filled} of {int(ends.sum())} ends of slices have a next observation")
    return undecided(f"none of {int(ends.sum())} ends of slices was filled in this sample")


@check("most_next_observations_nan", "Most next observations of a sample are NaN")
def most_next_observations_nan(replay_buffer, sample):
    rebuilders = rebuilders_with_nan(replay_buffer)
    if not rebuilders:
        return None
    key = rebuilders[0].keys[0]
    missing = ~known(sample, key)
    if (ended := sample.get(("next", "terminated"), None)) is not None:
        missing &= ~ended.reshape(len(sample), -1).any(1)  # nothing follows these
    missing = int(missing.sum())
    if missing > len(sample) / 2:
        return applies(f"{missing} of {len(sample)} rows have no next observation")
    return clear(f"{missing} of {len(sample)} rows have no next observation")


@check("off_policy_loss_is_nan", "The loss of DQN or SAC is NaN from the first batch")
def off_policy_loss_is_nan(loss_module, batch=None, sample=None):
    found = None
    for data in (one_batch(batch), sample):
        missing = rows_without_next(data)
        if missing is None:
            continue
        what = f"{int(missing.sum())} of {len(missing)} rows have no next observation"
        if missing.all():
            found = undecided(what)
        elif not missing.any():
            found = found or clear(what)
        elif not gives_nan(loss_module, data) or gives_nan(loss_module, data[~missing]):
            found = found or clear(f"{what}, and the loss does not depend on them")
        elif data is not sample:
            return applies(f"{what}; with them the loss is NaN, without them it is finite")
        else:
            return undecided(f"{what} in a sample and make the loss NaN unless you drop them")
    return found


@check("n_step_next_observation_wrong", "N-step rewards come with the wrong next observation")
def n_step_next_observation_wrong(replay_buffer):
    steps = [one.n_steps for one in transforms_in(replay_buffer, "MultiStepTransform")]
    if not steps or max(steps) == 1:
        return None
    for one in transforms_in(replay_buffer, "NextStateReconstructor", "NextObservationDelta"):
        name = type(one).__name__
        return applies(f"{name} looks one step ahead, MultiStepTransform {max(steps)}")
    return clear(f"{max(steps)} steps ahead, and next observations are stored")


@check("memmap_buffer_fills_memory", "A memory-mapped buffer fills the memory, not the disk")
def memmap_buffer_fills_memory(replay_buffer, collector=None):
    leaves = memory_mapped(replay_buffer)
    if not leaves:
        return None
    files = [(leaf, file_of(leaf)) for leaf in leaves]
    nameless = [leaf for leaf, file in files if file is None and place_of(leaf) in SHARED]
    named = [leaf for leaf, file in files if file is not None and in_memory(file)]
    size = sum(leaf.untyped_storage().nbytes() for leaf in nameless + named)
    of_a_name = "nameless files" if len(nameless) >= len(named) else "files"
    what = f"{size >> 20} MiB of the storage are in {of_a_name} in shared memory"
    if size < 16 << 20:
        return clear(what)
    if hasattr(collector, "procs"):
        return undecided(f"{what}: fine if they are there for the workers of the collector")
    return applies(what)


@check("buffer_outlives_its_files", "The buffer works, but its files are gone")
def buffer_outlives_its_files(replay_buffer):
    leaves = memory_mapped(replay_buffer)
    files = [file_of(leaf) for leaf in leaves if file_of(leaf) is not None]
    gone = [file for file in files if not Path(file).exists()]
    if gone:
        return applies(f"{len(gone)} of {len(files)} files are gone, such as {gone[0]}")
    return clear(f"{len(files)} files are there") if files else None


@check("reading_changes_the_buffer", "Stored rewards change although nothing is written")
def reading_changes_the_buffer(replay_buffer, own_batch=None):
    leaves = stored_leaves(replay_buffer)
    stored = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    items = [item for one in batches_of(own_batch) for item in one.items(True, True)]
    views = [(k, leaf) for k, leaf in items if leaf.untyped_storage().data_ptr() in stored]
    if not stored:
        return None
    writes = {key: leaf._version for key, leaf in views if not leaf.is_inference()}
    most = max(writes, key=writes.get, default=None)
    if most is not None and writes[most] > min(writes.values()):
        return applies(f"{most} of a view of the buffer was written more often than the rest")
    if views:
        return undecided("the batch is a view of the buffer: has something changed it?")
    written = {None if leaf.is_inference() else leaf._version for leaf in leaves}
    if len(written) == 1 and None not in written:
        return clear("each entry of the storage was written equally often")
    return undecided(
        "some entries of the storage were written more often than others: by extend()?"
    )


@check("delta_saves_no_memory", "NextObservationDelta saves no memory on images")
def delta_saves_no_memory(env):
    deltas = [one for one in env_modules(env) if type(one).__name__ == "NextObservationDelta"]
    if not deltas:
        return None
    leaves = [leaf for _, leaf in env.observation_spec.items(True, True) if leaf.dtype]
    total = sum(leaf.shape.numel() * leaf.dtype.itemsize for leaf in leaves)
    of_bytes = sum(leaf.shape.numel() for leaf in leaves if leaf.dtype is torch.uint8)
    what = f"{of_bytes} of {total} bytes of an observation are of type uint8"
    return applies(what) if of_bytes > total / 2 else clear(what)


@check("restored_observations_infinite", "Some next observations of a sample are infinite")
def restored_observations_infinite(replay_buffer, sample):
    for one in transforms_in(replay_buffer, "NextObservationDelta"):
        pairs = [(sample.get(key, None), sample.get(next_key(key), None)) for key in one.in_keys]
        bad = [(~now.isinf() & then.isinf()).sum() for now, then in pairs if then is not None]
        if sum(bad):
            return applies(f"{int(sum(bad))} numbers became infinite as {one.delta_dtype}")
        if sample.numel() < len(replay_buffer):
            return undecided(f"{sample.numel()} of {len(replay_buffer)} rows are finite")
        return clear(f"no number became infinite as {one.delta_dtype}")


@check("next_image_is_black", "Some next images of a sample are all black")
def next_image_is_black(replay_buffer, sample):
    for one in transforms_in(replay_buffer, "NextStateReconstructor"):
        jumps = jumps_in(sample)
        if jumps is None or one.fill_value != one.fill_value:
            continue
        key = next_key(one.keys[0])
        filled = sample[key].new_full((), one.fill_value)
        plain = (sample[key] == filled).reshape(len(sample), -1).all(1)[:-1] & jumps
        if (ended := sample.get(("next", "terminated"), None)) is not None:
            jumps = jumps & ~ended.reshape(len(sample), -1).any(1)[:-1]  # no loss looks beyond
        plain &= jumps
        if plain.any():
            return applies(f"{int(plain.sum())} rows of {key} are {filled.item()} everywhere")
        if not jumps.any():
            return undecided("no slice of this sample ends inside an episode")
        return clear(f"no row of {key} is {filled.item()} everywhere")
    return None


@check("sampling_images_raises_type_error", "Sampling images raises TypeError: non-floating dtype")
def sampling_images_raises_type_error(replay_buffer=None, error=None):
    if isinstance(error, TypeError) and "root key" in str(error):
        return applies(str(error)) if "has non-floating dtype" in str(error) else None
    for one in transforms_in(replay_buffer, "NextStateReconstructor"):
        first = next(iter(replay_buffer._transform), None)
        if one.fill_value == one.fill_value or one is not first:
            continue  # another number stands for NaN, or another transform may turn to floats
        leaves = [stored_leaf(replay_buffer, key) for key in one.keys]
        dtypes = [leaf.dtype for leaf in leaves if leaf is not None]
        bytes_only = [str(dtype) for dtype in dtypes if not dtype.is_floating_point]
        if not dtypes:
            return None
        if bytes_only:
            return applies(f"NextStateReconstructor needs NaN in observations of {bytes_only[0]}")
        return clear(f"observations of {dtypes[0]} have NaN")
    return None


@check("sampling_raises_nonetype_floating", 'Sampling raises "NoneType has no is_floating_point"')
def sampling_raises_nonetype_floating(replay_buffer=None, error=None):
    said = "'NoneType' object has no attribute 'is_floating_point'"
    if isinstance(error, AttributeError) and said in str(error):
        return applies(f"{said}: a transform reads a key that is not there")
    stored = stored_leaves(replay_buffer)
    for one in transforms_in(replay_buffer, "NextStateReconstructor") if stored else ():
        absent = [key for key in one.keys if stored_leaf(replay_buffer, key) is None]
        if absent and one is next(iter(replay_buffer._transform), None):
            return applies(f"NextStateReconstructor rebuilds {absent[0]!r}, which is not stored")
        return None if absent else clear("what is rebuilt is stored")
    return None


@check("first_extend_takes_all_memory", "The first extend of a buffer takes all memory")
def first_extend_takes_all_memory(replay_buffer=None, batch=None, error=None):
    if isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate" in str(error):
        return applies(str(error).partition("DefaultCPUAllocator: ")[2].partition(".")[0])
    storage = getattr(replay_buffer, "storage", None)
    rows = batch[0] if isinstance(batch, list) else batch
    kinds = {kind.__name__ for kind in type(storage).__mro__}
    if rows is None or "LazyTensorStorage" not in kinds or storage.initialized:
        return None
    if getattr(storage, "scratch_dir", None) is not None:
        return clear("it takes its space on a disk")
    if str(storage.device) != "cpu":
        return None
    needed = rows.bytes() // rows.numel() * storage.max_size
    limit = memory_of_machine()
    if limit is None:
        return undecided(f"it takes {needed / 2**30:.1f} GiB; compare with your memory")
    what = f"it takes {needed / 2**30:.1f} GiB of {limit / 2**30:.1f}"
    return applies(what) if needed > limit else clear(what)


@check("memmap_storage_refuses_gpu", "A memory-mapped buffer refuses the GPU")
def memmap_storage_refuses_gpu(error):
    if isinstance(error, ValueError) and "Memory map device other than CPU" in str(error):
        return applies(str(error).partition(". ")[0])
    return None


@check("one_kept_step_keeps_the_batch", "Memory grows although only one step per batch is kept")
def one_kept_step_keeps_the_batch(batch, replay_buffer=None):
    if not isinstance(batch, list):
        return None
    stored = {leaf.untyped_storage().data_ptr() for leaf in stored_leaves(replay_buffer)}
    leaves = [leaf for one in batch for leaf in one.values(True, True)]
    leaves = [leaf for leaf in leaves if leaf.untyped_storage().data_ptr() not in stored]
    blocks = {leaf.untyped_storage().data_ptr(): leaf.untyped_storage() for leaf in leaves}
    shown = sum(leaf.nbytes for leaf in leaves)
    alive = sum(block.nbytes() for block in blocks.values())
    what = f"{len(batch)} batches show {shown} bytes and keep {alive} alive"
    return applies(what) if alive > 4 * shown else clear(what)


@check("buffer_file_already_exists", 'Extending a buffer raises "The file already exists"')
def buffer_file_already_exists(replay_buffer=None, error=None):
    if isinstance(error, RuntimeError) and re.search(r"\.memmap already exists", str(error)):
        return applies(str(error))
    storage = getattr(replay_buffer, "storage", None)
    folder = getattr(storage, "scratch_dir", None)
    if not folder or getattr(storage, "existsok", True):
        return None
    files = list(Path(folder).rglob("*.memmap"))
    if files and not storage.initialized:
        return applies(f"the folder of the empty buffer holds {len(files)} files already")
    return clear("the files are those of this buffer" if files else "the folder is empty")


def transforms_in(replay_buffer, *kinds):
    """The transforms of the buffer that are of one of these classes, by name."""
    transform = getattr(replay_buffer, "_transform", None)
    modules = [] if transform is None else transform.modules()
    return [m for m in modules if any(c.__name__ in kinds for c in type(m).__mro__)]


def rebuilders_with_nan(replay_buffer):
    """The reconstructors of the buffer that write NaN, and no number, where nothing is known."""
    rebuilders = transforms_in(replay_buffer, "NextStateReconstructor")
    return [one for one in rebuilders if one.fill_value != one.fill_value]


def next_key(key):
    return ("next", *key) if isinstance(key, tuple) else ("next", key)


def known(data, key):
    """Which rows have a next observation that is not NaN."""
    return ~data[next_key(key)].isnan().reshape(len(data), -1).any(1)


def jumps_in(sample):
    """Where the row below was not stored right after; None if the sample does not say."""
    index = sample.get("index")
    if index is None or sample.batch_dims != 1 or len(sample) < 2:
        return None
    steps = index.reshape(len(sample), -1).diff(dim=0)
    return (steps[:, 0] != 1) | (steps[:, 1:] != 0).any(1)


def rows_without_next(data):
    """Which rows have NaN under "next" where the root has none; None where it cannot be asked."""
    if data is None or data.batch_dims != 1 or data.get("next", None) is None:
        return None
    both = [
        (data.get(key, None), value)
        for key, value in data["next"].items(include_nested=True, leaves_only=True)
        if value.is_floating_point()
    ]
    both = [(now, then) for now, then in both if now is not None and now.shape == then.shape]
    if not both:
        return None
    nan = [(then.isnan() & ~now.isnan()).reshape(len(data), -1).any(1) for now, then in both]
    return torch.stack(nan).any(0)


def gives_nan(loss_module, data):
    """Whether the loss of the data is NaN, or one of several."""
    losses = copy.deepcopy(loss_module)(data.clone())
    return any(value.isnan().any() for key, value in losses.items() if "loss" in str(key))


def stored_leaves(replay_buffer):
    """The tensors of the storage, not copied; none where it holds other things or nothing."""
    storage = getattr(replay_buffer, "storage", None)
    in_one_block = any(kind.__name__ == "TensorStorage" for kind in type(storage).__mro__)
    if not in_one_block or not len(storage):
        return []
    leaves = torch.utils._pytree.tree_leaves(storage.get(slice(None)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def memory_mapped(replay_buffer):
    """The tensors of the storage that are memory-mapped."""
    return [leaf for leaf in stored_leaves(replay_buffer) if hasattr(type(leaf), "filename")]


def file_of(leaf):
    try:
        return leaf.filename
    except RuntimeError:  # it has none
        return None


SHARED = ("/dev/shm", None)  # None: the system does not say


def place_of(leaf):
    """The folder of a nameless file: where shared memory has no room, one for temporary files."""
    maps, address = Path("/proc/self/maps"), leaf.data_ptr()
    for line in maps.read_text().splitlines() if maps.exists() else ():
        span, *_, path = line.split(maxsplit=5)
        begin, end = (int(part, 16) for part in span.split("-"))
        if begin <= address < end:
            return str(PurePath(path).parent)
    return None


def in_memory(file):
    """Whether the file system of *file* has no disk; False where the system does not say."""
    mounts = Path("/proc/mounts")
    lines = mounts.read_text().splitlines() if mounts.exists() else ()
    kinds = {line.split()[1]: line.split()[2] for line in lines}
    places = [str(one) for one in Path(file).resolve().parents]
    return next((kinds[one] for one in places if one in kinds), None) in ("tmpfs", "ramfs")


def env_modules(env):
    """The transforms of the environment and of those that it wraps."""
    from torchrl.envs import TransformedEnv

    found = []
    while isinstance(env, TransformedEnv):
        found += env.transform.modules()
        env = env.base_env
    return found


def stored_leaf(replay_buffer, key):
    """One tensor of the storage, or None."""
    data = replay_buffer.storage.get(slice(None)) if stored_leaves(replay_buffer) else None
    return data.get(key, None) if hasattr(data, "get") else None


def memory_of_machine():
    """The bytes that there are, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


# -- Recurrent state ---------------------------------------------------------


def recurrent_modules(part):
    """The LSTMs and GRUs of a policy, a loss or an estimator; each once."""
    found = {}
    for holder in (part, *vars(part).values()) if hasattr(part, "__dict__") else ():
        if isinstance(holder, torch.nn.Module):
            found |= {id(m): m for m in holder.modules() if hasattr(m, "recurrent_mode")}
    return [m for m in found.values() if hasattr(m, "in_keys")]


def replica(part):
    """A copy that computes the same, without what the scan takes to trace its gradient."""
    part = copy.deepcopy(part)
    for module in recurrent_modules(part):
        module.recurrent_backend = "pad"
    return part


def keys_written_next(module):
    """The keys that *module* writes for the next step, without their ``"next"``."""
    keys = [key for key in module.out_keys if isinstance(key, tuple) and key[0] == "next"]
    return [key[1] if len(key) == 2 else key[1:] for key in keys]


def state_keys(modules):
    """The keys of the hidden states that *modules* read, where they also write them."""
    return [key for m in modules for key in m.in_keys if key in keys_written_next(m)]


def in_order(batch):
    """One batch, or each of several, whose last dimension is time."""
    batches = batch if isinstance(batch, (list, tuple)) else [batch]
    timed = [b for b in batches if getattr(b, "ndim", 0) and b.names[-1] in (None, "time")]
    return [b for b in timed if goes_on(b)]


def goes_on(batch):
    """Not a shuffled batch, as far as the observations show it."""
    keys = observed_keys(batch, None)
    if not keys or batch.shape[-1] < 2 or get_next(batch, "done") is None:
        return True
    strange, pairs = strangers(batch, batch.ndim - 1, keys, "done")
    return strange <= pairs / 2


DEFAULT_STATES = "recurrent_state_h", "recurrent_state_c", "recurrent_state"


def flag(batch, key):
    """A flag as one bool for each step, or None."""
    value = batch.get(key, None)
    return None if value is None else value.reshape(*batch.shape, -1).bool().any(-1)


@check("lstm_forgets_every_step", "The LSTM forgets everything between steps")
def lstm_forgets_every_step(batch, policy, env=None):
    modules = recurrent_modules(policy)
    hidden, batches = state_keys(modules), in_order(batch)
    if not hidden or not batches:
        return None
    if env is not None and set(hidden) <= set(env.observation_spec.keys(True)):
        return clear("the environment carries the hidden state")
    absent = [key for key in hidden if batches[0].get(key, None) is None]
    if not absent:
        return clear(f"the batch holds {len(hidden)} hidden states")
    if env is None and not forgets(modules[0], batches[0]):
        return undecided(f"the batch holds no {absent[0]}; does the environment carry it?")
    return applies(f"the policy reads {absent[0]}, and each step starts from none")


def forgets(module, batch):
    """Whether the outputs in the batch are those of a module that has seen one step."""
    from torchrl.modules import set_recurrent_mode

    observed, out = module.in_keys[0], module.out_keys[0]
    if any(batch.get(key, None) is None for key in (observed, out, "is_init")):
        return False
    rows = batch.reshape(-1)
    with set_recurrent_mode(False):
        alone = replica(module)(rows.select(observed, "is_init"))[out]
    return torch.allclose(alone, rows[out], atol=1e-5)


@check("lstm_outputs_change_after_done", "LSTM outputs change in the loss after an episode ends")
def lstm_outputs_change_after_done(batch, policy):
    batches = in_order(batch) if recurrent_modules(policy) else []
    ends = unmarked = 0
    for one in batches:
        start, done = flag(one, "is_init"), flag(one, ("next", "done"))
        if start is None or done is None or ("collector", "mask") in one.keys(True):
            return None
        # A step after the end of an episode that was not reset is done as well.
        begun = done[..., :-1] & ~done[..., 1:] | done[..., :-1] & start[..., 1:]
        ends += int(begun.sum())
        unmarked += int((begun & ~start[..., 1:]).sum())
    if unmarked > ends / 2:  # where environments are joined end to end, one may lack it
        return applies(f"is_init is False after {unmarked} of {ends} ends of an episode")
    if unmarked:
        return undecided(f"is_init is False after {unmarked} of {ends} ends of an episode")
    return clear(f"is_init follows {ends} ends") if ends else None


@check(
    "lstm_learns_nothing_from_the_past", "The LSTM acts on its memory but never learns to use it"
)
def lstm_learns_nothing_from_the_past(loss_module, batch, sample=None):
    from torchrl.objectives import LossModule

    batches = in_order(batch)
    hidden = state_keys(recurrent_modules(loss_module))
    if not hidden or not batches or batches[0].get("is_init", None) is None:
        return None
    if isinstance(loss_module, LossModule):
        if sample is not None and sample.ndim and not goes_on(sample):
            return undecided("a LossModule runs sequences, and a sample holds rows in no order")
        return clear("a LossModule runs sequences")
    if batches[0].get(hidden[0], None) is None:
        return undecided(f"needs {hidden[0]} in the batch")
    data = batches[0][..., :32].contiguous().clone()
    inner = ~flag(data, "is_init")
    inner[..., 0] = False  # a sequence begins there, marked or not
    state = data[hidden[0]].requires_grad_()
    try:
        with torch.enable_grad():
            losses = replica(loss_module)(data)
            total = sum(v.sum() for key, v in losses.items() if key.startswith("loss"))
            (gradient,) = torch.autograd.grad(total, state, allow_unused=True)
    except Exception as error:
        return undecided(f"the loss raises {in_words(error)}")
    if gradient is None or not gradient.any():
        return undecided(f"{hidden[0]} has no effect on the losses")
    reached = gradient.reshape(*data.shape, -1).any(-1) & inner
    # A loss may cut the batch into shorter sequences: then a few do.
    if reached.sum() > inner.sum() / 2:
        return applies(f"{int(reached.sum())} of {int(inner.sum())} steps do not continue another")
    return clear("the steps of a sequence are one graph")


@check("critic_ignores_the_past_in_gae", "A recurrent critic gives values as if it had no memory")
def critic_ignores_the_past_in_gae(value_estimator, batch):
    from torchrl.modules import set_recurrent_mode

    batches, keys = in_order(batch), getattr(value_estimator, "tensor_keys", None)
    critic = getattr(value_estimator, "value_network", None)
    if not recurrent_modules(critic) or not batches or keys is None:
        return None
    given = batches[0].get(keys.value_target, None)
    if given is None:
        return undecided(f"needs a batch that the estimator wrote {keys.value_target} to")
    written = [keys.value, ("next", keys.value), keys.value_target, keys.advantage]
    for mode in (True, False):
        with set_recurrent_mode(mode):
            try:
                again = replica(value_estimator)(batches[0].exclude(*written).clone())
            except Exception as error:
                return undecided(f"the estimator raises {in_words(error)}")
        if torch.allclose(again[keys.value_target], given, atol=1e-4):
            found = applies if mode is False else clear
            steps = "sequences" if mode else "single steps"
            return found(f"{keys.value_target} is that of {steps}")
    return undecided("the weights have changed since, or the batch is another one")


@check("lstm_outputs_differ_in_slices", "LSTM outputs in slices differ from the collected ones")
def lstm_outputs_differ_in_slices(replay_buffer, sample, policy):
    hidden = state_keys(recurrent_modules(policy))
    marks = flag(sample, "is_init")
    if not hidden or marks is None or not hasattr(replay_buffer.sampler, "slice_len"):
        return None
    if sample.get(hidden[0], None) is not None:
        return clear(f"the sample holds {hidden[0]}")
    if sample.get("index", None) is None:
        return undecided(f"the sample holds no {hidden[0]}; do its slices begin episodes?")
    index = sample["index"]
    if index.ndim > sample.ndim:  # one for each dimension of the storage
        index = index.unbind(-1)
    stored = flag(replay_buffer.storage.get(index), "is_init")
    inside = int((marks & ~stored.reshape(marks.shape)).sum())
    if inside:
        return applies(f"{inside} slices begin inside an episode, and {hidden[0]} is not stored")
    length = slice_length(replay_buffer, sample)
    if not is_sliced(replay_buffer) or pieces(replay_buffer)[0].max() > length:
        return undecided("each slice of this sample begins an episode; do the others?")
    return clear("each slice begins an episode")


@check("burn_in_works_once", "Burn-in works for the first sample only")
def burn_in_works_once(replay_buffer):
    from torchrl.envs.transforms import BurnInTransform

    burns = [t for t in transforms_of(replay_buffer) if isinstance(t, BurnInTransform)]
    modules = [m for t in burns for part in t.modules for m in recurrent_modules(part)]
    if not modules:
        return None
    if not getattr(replay_buffer, "_prefetch", False):
        return clear("the buffer does not prefetch")
    # A thread begins with an empty context.
    modes = [contextvars.Context().run(lambda m=m: m.recurrent_mode) for m in modules]
    if all(modes):
        return clear("the modules read sequences by default")
    return applies(f"{modes.count(False)} modules take single steps in the threads of prefetch")


def states(batch, hidden):
    """Pairs of a hidden state now and under "next", as (..., time, numbers), where both are."""
    for key in hidden:
        now, after = batch.get(key, None), batch.get(("next", key), None)
        if now is not None and after is not None:
            yield now.reshape(*batch.shape, -1), after.reshape(*batch.shape, -1)


@check("next_hidden_state_is_zero", 'The hidden state under "next" is zero in every step')
def next_hidden_state_is_zero(batch, policy):
    hidden = state_keys(recurrent_modules(policy))
    pairs = [pair for one in in_order(batch) for pair in states(one, hidden)]
    if not pairs:
        return None
    empty = sum(bool(now.any()) and not after.any() for now, after in pairs)
    if empty:
        return applies("all next hidden states are zero, those of the steps are not")
    if not any(after.any() for _, after in pairs):
        return undecided("all hidden states are zero")
    return clear("there are next hidden states")


@check("ppo_ratio_off_in_minibatches", "The PPO ratio of an LSTM is off in every minibatch")
def ppo_ratio_off_in_minibatches(sample, policy):
    marks = flag(sample, "is_init")
    pairs = list(states(sample, state_keys(recurrent_modules(policy))))
    if marks is None or not pairs:
        return None
    now, after = pairs[0]
    goes_on = ~marks[..., 1:] & (after[..., :-1, :] != 0).any(-1)
    follows = torch.isclose(now[..., 1:, :], after[..., :-1, :], atol=1e-5).all(-1)
    jumps, rows = int((goes_on & ~follows).sum()), int(goes_on.sum())
    if rows and jumps > rows / 2:
        return applies(f"{jumps} of {rows} rows do not continue the row above")
    if jumps:
        return undecided(f"{jumps} of {rows} rows do not continue the row above")
    return clear(f"{rows} rows continue the row above") if rows else None


@check("two_lstms_share_their_memory", "With a second LSTM the policy acts on the wrong memory")
def two_lstms_share_their_memory(policy):
    hidden = state_keys(run_in_turn(policy).values())
    twice = sorted({str(key) for key in hidden if hidden.count(key) > 1})
    if twice:
        return applies(f"two modules of the policy write {', '.join(twice)}")
    return clear("each module has its own keys") if hidden else None


def run_in_turn(part):
    """The recurrent modules that a sequence of modules calls; others may not be called."""
    if hasattr(part, "recurrent_mode") and hasattr(part, "in_keys"):
        return {id(part): part}
    inner = getattr(part, "module", None) if hasattr(part, "in_keys") else None
    parts = inner if isinstance(inner, torch.nn.ModuleList) else [inner]
    return {} if inner is None else {k: m for one in parts for k, m in run_in_turn(one).items()}


@check("environments_share_one_memory", "An LSTM remembers other environments, not its own past")
def environments_share_one_memory(batch=None, policy=None, error=None):
    if isinstance(error, ValueError) and "(recurrent_mode=True) requires the" in str(error):
        return applies("the policy is called in recurrent mode on a single step")
    hidden, batches = state_keys(recurrent_modules(policy)), in_order(batch)
    if not hidden or not batches or batches[0].ndim < 2:
        return None
    pairs = list(states(batches[0], hidden))
    if not pairs or ("collector", "mask") in batches[0].keys(True):
        return None
    empty = (pairs[0][1] == 0).all(-1)
    # Of a sequence the last row alone gets a state; without any, nothing ran, as in random frames.
    first, last = empty[..., 0, :], empty[..., -1, :]
    steps, alone = int((~last).sum()), int((first & ~last).sum())
    if not steps:
        return undecided("all hidden states are zero")
    if alone > steps / 2:
        return applies(f"in {alone} of {steps} steps the last environment alone has a state")
    return clear(f"the first environment has a state in {steps - alone} of {steps} steps")


@check("is_init_not_found", 'KeyError "is_init" when an LSTM policy meets the environment')
def is_init_not_found(policy=None, env=None, error=None, batch=None):
    if isinstance(error, KeyError) and "is_init" in str(error):
        return applies("the error names is_init, which InitTracker writes")
    if env is None or not recurrent_modules(policy):
        return None
    if "is_init" in env.observation_spec:
        return clear("the environment writes is_init")
    if any(one.get("is_init", None) is not None for one in in_order(batch)):
        return clear("the batch holds is_init")
    if not in_order(batch):
        return undecided("nothing was collected with this policy; give batch=")
    return applies("the policy reads is_init, and the environment does not write it")


@check("gae_raises_with_lstm", "GAE raises with an LSTM critic and works with any other")
def gae_raises_with_lstm(value_estimator=None, error=None):
    mapped = re.search(r"(?s)atching rule.*aten::(lstm|gru)|vmap: .*data-dependent", str(error))
    if isinstance(error, RuntimeError) and mapped:
        return applies("the error is of torch.vmap over a recurrent module")
    modules = recurrent_modules(getattr(value_estimator, "value_network", None))
    if not modules or not hasattr(value_estimator, "deactivate_vmap"):
        return None
    if value_estimator.deactivate_vmap or getattr(value_estimator, "shifted", False):
        return clear("the estimator does not map its network")
    # In one of the two modes an LSTM in Python, or with the scan backend, can be mapped.
    python = [m for m in modules if not isinstance(getattr(m, "lstm", None), torch.nn.LSTM)]
    if all(hasattr(m, "lstm") and (m in python or m.recurrent_backend == "scan") for m in modules):
        return undecided("an LSTM of this kind can be mapped, in one mode and slowly")
    return applies(f"the estimator maps its network, which has {len(modules)} recurrent modules")


@check("lstm_raises_in_parallel_env_only", "The LSTM policy raises in a ParallelEnv, nowhere else")
def lstm_raises_in_parallel_env_only(policy=None, env=None, error=None, batch=None):
    hidden = state_keys(recurrent_modules(policy))
    lost = re.search("The key (.*) was not found in the dest tensordict", str(error))
    if isinstance(error, KeyError) and lost and lost[1] in [*map(str, hidden), *DEFAULT_STATES]:
        return applies(f"{lost[1]} is a hidden state, and in no spec of the environment")
    if type(env).__name__ != "ParallelEnv" or not hidden:
        return None
    absent = set(hidden) - set(env.observation_spec.keys(True))
    if any(one.get(hidden[0], None) is not None for one in in_order(batch)):
        return clear("the batch holds a hidden state")
    if absent:
        return applies(f"no spec of the environment names {sorted(map(str, absent))[0]}")
    return clear("the specs name the hidden state")


@check("next_states_vanish_after_one_use", "Hidden states vanish from the batch after one use")
def next_states_vanish_after_one_use(own_batch, policy):
    hidden = state_keys(recurrent_modules(policy))
    pairs = [(one, *pair) for one in in_order(own_batch) for pair in states(one, hidden)]
    lost = steps = 0
    for one, now, after in pairs:
        if (start := flag(one, "is_init")) is not None and after.any():
            empty = (after == 0).all(-1)[..., :-1] & (now != 0).any(-1)[..., 1:]
            lost += int((empty & ~start[..., 1:]).sum())
            steps += int((~start[..., 1:]).sum())
    if lost:
        return applies(
            f"{lost} of {steps} next states are zero, and the states that follow are not"
        )
    return clear(f"{steps} next states are kept") if steps else None


@check("primer_raises_in_batched_env", "TensorDictPrimer raises with several environments")
def primer_raises_in_batched_env(error):
    if isinstance(error, RuntimeError) and "expand_specs wasn't specified" in str(error):
        return applies("the error asks for expand_specs")
    return None


# -- Value estimation and losses ------------------------------------------------


def keys_of(owner):
    """The keys that a loss or a value estimator reads; asking for `tensor_keys` may set them."""
    kept = getattr(owner, "_tensor_keys", None)
    return kept if kept is not None else getattr(owner, "default_keys", object)()


def value_key(name, loss_module=None, value_estimator=None):
    """The key of *name* ("done", "advantage"...) as the estimator, else the loss, reads it."""
    for owner in (value_estimator, loss_module):
        key = getattr(keys_of(owner), name, None)
        if isinstance(key, (str, tuple)):
            return key
    return name


def one_batch(batch):
    """The batch, or the first of several."""
    return batch[0] if isinstance(batch, (list, tuple)) else batch


@check("values_too_low_at_time_limits", "Values are too low in a task with a time limit")
def values_too_low_at_time_limits(batch=None, sample=None, value_estimator=None, loss_module=None):
    if value_estimator is None and loss_module is None:
        return None
    done_key, key = (value_key(n, loss_module, value_estimator) for n in ("done", "terminated"))
    given = {"batch": one_batch(batch), "sample of the buffer": sample}
    if key == done_key and any(get_next(data, key) is not None for data in given.values()):
        cuts = [get_next(data, "truncated") for data in given.values()]
        cut = sum(int(one.sum()) for one in cuts if one is not None)
        found = f"{done_key} is read as terminated"
        if cut:
            return applies(f"{found}: {cut} time limits count as death")
        return undecided(f"{found}; are there time limits?")
    lacking = {
        name: data
        for name, data in given.items()
        if get_next(data, done_key) is not None and get_next(data, key) is None
    }
    for name, data in lacking.items():
        ends, cut = get_next(data, done_key), get_next(data, "truncated")
        if cut is not None and cut.any():
            return applies(f"no {key} in the {name}: {int(cut.sum())} time limits count as death")
        if cut is None and ends.any():
            return undecided(
                f"no {key} and no truncated in the {name}, to judge {int(ends.sum())} ends"
            )
    return clear(f"nothing lacks {key}") if any(d is not None for d in given.values()) else None


def get_next(data, key):
    """``("next", key)`` of the data, or None."""
    if data is None:
        return None
    return data.get(("next", *key) if isinstance(key, tuple) else ("next", key), None)


# Rows that GAE and its kin take for neighbors in time, and that are not.

FOLLOWING_ESTIMATORS = ("GAE", "MultiAgentGAE", "TD1Estimator", "TDLambdaEstimator", "VTrace")


def follows_rows(value_estimator):
    """Does the estimator sum over the rows that follow? TD(0) does not."""
    names = {kind.__name__ for kind in type(value_estimator).__mro__}
    return bool(names & set(FOLLOWING_ESTIMATORS))


def observed_keys(data, network):
    """Keys of *network* that stand at the root and under next, and so tell which row follows."""
    keys = getattr(network, "in_keys", None) or ["observation", "pixels"]
    pairs = {key: (data.get(key, None), get_next(data, key)) for key in keys if key != "is_init"}
    return [
        k for k, (a, b) in pairs.items() if a is not None and b is not None and a.shape == b.shape
    ]


def strangers(data, dim, keys, done_key):
    """Pairs of neighbors along *dim*, none of them done between: (strange ones, all)."""
    length = data.shape[dim]
    done = get_next(data, done_key).reshape(*data.shape, -1).any(-1)
    open_ = ~done.narrow(dim, 0, length - 1)
    mask = data.get(("collector", "mask"), None)
    if mask is not None:
        mask = mask.reshape(data.shape)
        open_ &= mask.narrow(dim, 1, length - 1) & mask.narrow(dim, 0, length - 1)
    strange = torch.zeros_like(open_)
    for key in keys:
        after = get_next(data, key).narrow(dim, 0, length - 1)
        row = data.get(key).narrow(dim, 1, length - 1)
        if row.is_floating_point():
            # A transform may have made one of the two double.
            near = torch.isclose(after.double(), row.double(), 1e-3, 1e-6, equal_nan=True)
            differ = ~near & ~after.isnan()
        else:
            differ = after != row
        strange |= differ.reshape(*strange.shape, -1).any(-1)
    return int((strange & open_).sum()), int(open_.sum())


def walked_dim(data, estimator):
    """The dimension along which the estimator sums."""
    dim = getattr(estimator, "time_dim", None)
    if dim is None:
        names = getattr(data, "names", None) or [None] * data.ndim
        dim = names.index("time") if "time" in names else data.ndim - 1
    return dim % data.ndim


def neighbors(data, estimator, network, done_key):
    """Strange pairs by dimension, and the dimension that the estimator walks; None if unknown."""
    keys = observed_keys(data, network) if data is not None and data.ndim else []
    if not keys or data.get("steps_to_next_obs", None) is not None:
        return None
    if get_next(data, done_key) is None:
        return None
    dim = walked_dim(data, estimator)
    counts = {d: strangers(data, d, keys, done_key) for d in range(data.ndim) if data.shape[d] > 1}
    return (counts, dim) if dim in counts else None


@check("advantages_leak_between_environments", "One environment changes the advantages of another")
def advantages_leak_between_environments(batch, value_estimator, collector=None):
    data, done_key = one_batch(batch), value_key("done", None, value_estimator)
    if not follows_rows(value_estimator) or (collector is not None and may_glue(collector)):
        return None
    if data.get(value_key("advantage", None, value_estimator), None) is not None:
        return None  # it was computed before
    found = neighbors(data, value_estimator, value_estimator.value_network, done_key)
    if found is None:
        return None
    counts, dim = found
    strange, pairs = counts[dim]
    if not strange:
        return clear(f"{pairs} pairs of rows along dimension {dim} follow each other")
    for other, (bad, _) in counts.items():
        if not bad:
            return applies(f"dimension {other} is time, and the estimator walks dimension {dim}")
    if strange < pairs / 2:
        return applies(f"{strange} of {pairs} pairs of rows along dimension {dim} are no neighbors")
    return None  # rows in no order at all: the next check


def in_no_order(data, estimator, network, done_key):
    """Evidence that the rows were drawn at random; "" where they were not, None if unknown."""
    found = neighbors(data, estimator, network, done_key)
    if found is None:
        return None
    counts, dim = found
    index = data.get("index", None)
    if index is not None and data.ndim == 1 and (index.diff(dim=0) == 1).float().mean() > 0.5:
        return ""  # in the order of the storage
    strange, pairs = counts[dim]
    random = pairs and all(2 * bad > all_ for bad, all_ in counts.values())
    return f"{strange} of {pairs} rows are not followed by their next row" if random else ""


@check("advantages_look_like_noise", "Advantages look like noise")
def advantages_look_like_noise(value_estimator, batch=None, sample=None):
    if not follows_rows(value_estimator):
        return None
    done_key = value_key("done", None, value_estimator)
    advantage = value_key("advantage", None, value_estimator)
    network, seen = value_estimator.value_network, None
    for name, data in {"batch": one_batch(batch), "sample of the buffer": sample}.items():
        if data is None or data.get(advantage, None) is not None:
            continue
        why = in_no_order(data, value_estimator, network, done_key)
        if why:
            return applies(f"the {name} holds no {advantage} yet, and {why}")
        seen = seen if why is None else name
    return clear(f"the rows of the {seen} follow each other") if seen else None


@check("ppo_worse_with_small_minibatches", "PPO gets worse with smaller minibatches")
def ppo_worse_with_small_minibatches(loss_module, batch=None, sample=None, value_estimator=None):
    key = getattr(keys_of(loss_module), "advantage", None)
    kind = getattr(getattr(loss_module, "value_type", None), "name", None)
    if key is None or kind == "TD0":
        return None
    written = value_key("advantage", None, value_estimator)
    if value_estimator is not None and written != key:
        return applies(f"the value estimator writes {written!r}, the loss reads {key!r}")
    network = getattr(loss_module, "critic_network", None)
    seen = None
    for name, data in {"batch": one_batch(batch), "sample of the buffer": sample}.items():
        if data is None or value_estimator is not None:
            continue
        if data.get(key, None) is not None:
            seen = name
            continue
        why = in_no_order(data, None, network, value_key("done", loss_module))
        if why and data is sample:
            return undecided(f"no {key} in the {name}: it has to come before rows are drawn")
        if why:
            return applies(f"no {key} in the {name}, and {why}")
    return clear(f"the {seen} holds the {key}") if seen else None


@check("q_values_stop_improving", "Q-values stop improving after the first steps")
def q_values_stop_improving(loss_module, target_updater=None):
    pairs = target_networks(loss_module)
    attached = getattr(loss_module, "_has_update_associated", None)
    if not pairs:
        return None
    other = getattr(target_updater, "loss_module", loss_module) is not loss_module
    if attached is None and target_updater is None:
        return undecided("pass target_updater; this release does not say whether there is one")
    missing = [n for n in pairs if attached is not None and not attached.get(n[7:-7], True)]
    left = targets_left(pairs)
    if (target_updater is not None and not other) or not missing:
        if not left:
            return None
        if target_updater is None or other:
            return undecided("the loss has an updater; pass it as target_updater=")
        if has_stepped(target_updater):
            return clear("the target networks have an updater, and it has stepped")
        return undecided("the target networks have an updater; has it stepped?")
    none = "the updater is of another loss" if other else "no updater"
    for name in missing:
        if name in left:
            return applies(f"{none}, and {left.count(name)} tensors have left {name} behind")
    return undecided(f"{none} is attached; ask again after a few training steps")


@check("target_updater_never_steps", "The target network has an updater and never changes")
def target_updater_never_steps(loss_module, target_updater=None):
    pairs = target_networks(loss_module)
    attached = getattr(loss_module, "_has_update_associated", None) or {}
    updated = target_updater is not None or any(attached.get(name[7:-7]) for name in pairs)
    if not pairs or not updated:
        return None
    if target_updater is None:
        pass_it = "the loss has an updater; pass it as target_updater="
        return undecided(pass_it) if targets_left(pairs) else None
    if getattr(target_updater, "eps", None) == 1:
        return applies("eps is 1, so step() leaves the target network as it is")
    stepped = has_stepped(target_updater)
    if stepped:
        return clear("step() was called")
    if not targets_left(pairs):
        return None  # before the first training step
    updates = updates_of(pairs)
    if stepped is False and updates >= FEWEST_UPDATES:
        return applies(f"step() was not called once in about {updates} updates of the weights")
    return undecided("there is an updater; is its step() called? Ask again later")


FEWEST_UPDATES = 10  # a loop may take some before its first step of the updater


def updates_of(pairs):
    """How often the weights were changed in place, as their start and an optimizer do it."""
    weights = [one for source, _ in pairs.values() for one in source.values(True, True)]
    return max((weight._version for weight in weights), default=0)


def has_stepped(target_updater):
    """Whether ``step()`` of the updater was called; None where nothing tells.

    A `HardUpdate` counts, and begins anew when it has copied. Arithmetic in place leaves a list of
    leaves in a locked tensordict, here the updater's own. A copy shows whether it does so in this
    release; compiled code may not.
    """
    if getattr(target_updater, "counter", None):
        return True
    compiled = sys.modules.get("torch._dynamo.utils")
    if compiled is not None and compiled.counters["frames"]:
        return None
    if _has_trace(target_updater):
        return True
    if not getattr(getattr(target_updater, "_targets", None), "is_locked", False):
        return None
    twin = copied(target_updater)
    twin._targets.lock_()  # a copy is not
    if hasattr(twin, "counter"):
        twin.counter = twin.value_network_update_interval
    twin.step()
    return False if _has_trace(twin) else None


def _has_trace(target_updater):
    targets = getattr(target_updater, "_targets", {})
    return any("_items_list" in (getattr(one, "_cache", None) or {}) for one in targets.values())


def target_networks(loss_module):
    """Parameters of each network that has a target, and of the target, by its name."""
    named = dict(getattr(loss_module, "named_children", list)())
    return {
        name: (named[name[7:]], target)
        for name, target in named.items()
        if name.startswith("target_") and name.endswith("_params") and name[7:] in named
    }


def targets_left(pairs):
    """For each tensor that differs from its target, the name of the target network."""
    left = []
    for name in pairs:
        source, target = (td.detach().flatten_keys(".") for td in pairs[name])
        left += [name for k, weights in target.items() if not torch.equal(weights, source[k])]
    return left


@check("ppo_clips_before_the_first_update", "PPO clips ratios before the first update")
def ppo_clips_before_the_first_update(loss_module, batch=None, sample=None):
    key = getattr(keys_of(loss_module), "sample_log_prob", None)
    agree = None
    for name, data in {"batch": one_batch(batch), "sample of the buffer": sample}.items():
        if data is None or not data.ndim or not isinstance(key, (str, tuple)):
            continue
        rows = data[..., :32]
        stored, computed = rows.get(key, None), computed_log_prob(loss_module, rows)
        if not isinstance(stored, torch.Tensor) or not isinstance(computed, torch.Tensor):
            continue
        if stored.shape != computed.shape:
            shapes = f"{tuple(stored.shape)} in {rows.shape[-1]} rows of the {name}"
            return applies(
                f"{key} has shape {shapes}, and the loss computes {tuple(computed.shape)}"
            )
        off = float((stored - computed).abs().max())
        found = f"{key} of the {name} is off by up to {off:.2g} from what the loss computes"
        if off < 0.01:
            agree = agree or clear(f"{key} of the {name} is what the loss computes")
        else:
            agree = agree or undecided(f"{found}; has the policy changed since?")
    return agree


def computed_log_prob(loss_module, rows):
    """What the actor of the loss says of the stored actions; None for a loss without one."""
    from torchrl.modules import set_recurrent_mode

    key = keys_of(loss_module).action
    action = rows.get(key, None) if isinstance(key, (str, tuple)) else None
    if action is None or not hasattr(getattr(loss_module, "actor_network", None), "get_dist"):
        return None
    actor = loss_module.get_stateful_net("actor_network", copy=loss_module.functional)
    if any(is_lazy(parameter) for parameter in actor.parameters()):
        return None  # a call would initialize it
    with attributes_kept(actor), set_recurrent_mode(True):
        actor.eval()  # a batch norm counts no batch
        return actor.get_dist(rows.clone(False)).log_prob(action)


@check("state_value_missing_on_some_batches", "KeyError: state_value, on some batches only")
def state_value_missing_on_some_batches(loss_module=None, batch=None, error=None):
    if isinstance(error, KeyError) and "clip_value is set to" in str(error):
        return applies("the loss found no old values to clip against")
    data, key = one_batch(batch), value_key("value", loss_module)
    if data is None or getattr(loss_module, "clip_value", None) is None:
        return None
    if data.get(key, None) is not None:
        return clear(f"the batch holds {key}")
    if data.get(value_key("advantage", loss_module), None) is not None:
        return applies(f"the batch holds an advantage and no {key}, which clip_value needs")
    keys = observed_keys(data, getattr(loss_module, "critic_network", None))
    unknown = [k for k in keys if data[k].is_floating_point() and get_next(data, k).isnan().any()]
    if unknown:
        return undecided(f"NaN in the next {unknown[0]}: after GAE, see whether {key} is there")
    return clear(f"no NaN in the next {keys[0]}") if keys else None


@check("stored_log_prob_requires_grad", "RuntimeError: stored action_log_prob requires grad")
def stored_log_prob_requires_grad(loss_module=None, own_batch=None, sample=None, error=None):
    words = str(error)
    if isinstance(error, RuntimeError) and "stored" in words and "requires grad" in words:
        return applies(f"the loss refuses the data: {words}")
    if not hasattr(keys_of(loss_module), "sample_log_prob"):
        return None
    keys = [value_key(name, loss_module) for name in ("sample_log_prob", "action")]
    given = [data for data in (one_batch(own_batch), sample) if data is not None]
    stored = [(key, data.get(key, None)) for data in given for key in keys]
    stored = [(key, value) for key, value in stored if isinstance(value, torch.Tensor)]
    for key, value in stored:
        if value.requires_grad:
            return applies(f"{key} in the data requires grad")
    return clear("log-probabilities and actions are plain numbers") if stored else None


@check("part_of_the_batch_has_no_advantage", "The last rows of each batch have no advantage")
def part_of_the_batch_has_no_advantage(batch, value_estimator):
    data = one_batch(batch)
    if getattr(value_estimator, "shifted", False) is not True or not data.ndim:
        return None
    done, terminated = (
        get_next(data, value_key(name, None, value_estimator)) for name in ("done", "terminated")
    )
    if done is None:
        return None
    dim = walked_dim(data, value_estimator)
    ends = done & ~(done if terminated is None else terminated)
    cut = ends.reshape(*data.shape, -1).any(-1).movedim(dim, -1)
    steps = cut.shape[-1]
    before = cut.long().cumsum(-1) - cut.long()
    slot = torch.arange(1, steps + 1, device=cut.device) + before
    lost = int((slot >= steps + value_estimator.shifted_budget).sum())
    if lost:
        return applies(f"{int(cut.sum())} cuts push {lost} of {cut.numel()} rows out of the budget")
    return clear(f"the budget holds all {cut.numel()} rows")


@check("worse_with_a_shorter_time_limit", "A shorter time limit makes the policy worse")
def worse_with_a_shorter_time_limit(batch, env, value_estimator=None, loss_module=None):
    data = one_batch(batch)
    keys = [value_key(name, loss_module, value_estimator) for name in ("done", "terminated")]
    done, terminated = (get_next(data, key) for key in keys)
    if done is None or terminated is None or not data.ndim:
        return None
    names = getattr(data, "names", None) or [None]
    if (value_estimator is None and loss_module is None) or "time" in names[:-1]:
        return None
    ends = done.reshape(data.numel(), -1).any(-1).nonzero().flatten()
    deaths = terminated.reshape(data.numel(), -1).any(-1)
    lines = ends // data.shape[-1]
    whole = lines[1:] == lines[:-1]  # both ends in one line: the length of an episode
    lengths = ends.diff()[whole & deaths[ends[1:]]].tolist()
    longest, limits = max(lengths, default=0), step_limits(env)
    if not lengths:
        return None
    network = getattr(
        value_estimator, "value_network", getattr(loss_module, "critic_network", None)
    )
    if any(end_is_seen(data, key, deaths) for key in observed_keys(data, network)):
        return clear("the observation tells the last step from all others")
    cut = get_next(data, "truncated")
    if cut is not None and (cut & ~terminated.reshape(cut.shape)).any():
        return clear("a time limit is reported as truncated")
    ties = lengths.count(longest)
    found = f"{ties} of {len(lengths)} episodes terminate after {longest} steps, none later"
    if longest in limits and ties > 1 and longest > 1:
        return applies(f"{found}, and env.{limits[longest]} is {longest}")
    if longest in limits or ties > 1:
        return undecided(f"{found}: if that is a time limit, report it as truncated")
    if len(lengths) < ENOUGH_EPISODES:
        return undecided(f"{len(lengths)} whole episodes are too few to tell a time limit")
    return clear(found)


ENOUGH_EPISODES = 10  # of one of which alone is the longest


def end_is_seen(data, key, ends):
    """Has a part of the observation one value at all ends and that value nowhere else?"""
    after = get_next(data, key).reshape(data.numel(), -1)
    last, rest = after[ends], after[~ends]
    return bool(((last == last[0]).all(0) & (rest != last[0]).all(0)).any())


def step_limits(env):
    """Numbers in the attributes of the innermost environment that look like a limit of steps."""
    env = below_transforms(env)
    words = ("max", "limit", "horizon", "length", "steps")
    return {
        value: name
        for name, value in vars(env).items()
        if type(value) is int and any(word in name.lower() for word in words)
    }


@check("gae_none_not_subscriptable", "GAE: 'NoneType' object is not subscriptable")
def gae_none_not_subscriptable(value_estimator=None, loss_module=None, error=None):
    networks = {
        "value estimator": (value_estimator, getattr(value_estimator, "value_network", None)),
        "loss": (loss_module, getattr(loss_module, "critic_network", None)),
    }
    agree = []
    for name, (owner, network) in networks.items():
        key = getattr(keys_of(owner), "value", None)
        written = getattr(network, "out_keys", None)
        if not isinstance(key, (str, tuple)) or not written:
            continue
        if key not in written:
            return applies(f"the {name} reads {key!r}, the critic writes {list(written)}")
        agree.append(name)
    if isinstance(error, KeyError) and "not found in value network out_keys" in str(error):
        return applies(f"the keys do not fit: {error.args[0]}")
    if isinstance(error, TypeError) and "_call_value_nets" in functions_of(error):
        return applies("a value estimator found no value in what its critic returned")
    return clear(f"{' and '.join(agree)} read what the critic writes") if agree else None


@check("sets_of_keys_are_exclusive", "GAE: the sets of keys to stack are exclusive")
def sets_of_keys_are_exclusive(batch=None, value_estimator=None, loss_module=None, error=None):
    data, key = one_batch(batch), value_key("value", None, value_estimator)
    network = getattr(value_estimator, "value_network", None)
    if value_key("action", loss_module) in (getattr(network, "out_keys", None) or ()):
        data = None  # a network of Q-values, whose loss asks for the values of next alone
    if data is not None and network is not None and not getattr(value_estimator, "shifted", True):
        known = data.get(value_key("advantage", None, value_estimator), None) is not None
        root, after = data.get(key, None) is not None, get_next(data, key) is not None
        if root and not after and not known:
            return applies(f"{key} stands at the root of the batch and not under next")
        if error is None:
            return clear(f"{key} stands in both halves of the batch or in none")
    if isinstance(error, RuntimeError) and "sets of keys" in str(error):
        if "_call_value_nets" in functions_of(error):
            return applies("root and next of the batch do not hold the same inputs of the critic")
        return undecided("keys differ in something that was stacked, not in a value estimator")
    return None


BY_DEFAULT = {"gamma": 0.99, "lmbda": 0.95}  # what make_value_estimator takes


@check("a_new_gamma_changes_nothing", "A new gamma changes nothing")
def a_new_gamma_changes_nothing(value_estimator, loss_module):
    inner = getattr(loss_module, "_value_estimator", None)  # the property would make one
    if inner is None or inner is value_estimator or type(inner) is not type(value_estimator):
        return None
    other = False
    for name in ("gamma", "lmbda"):
        given, used = (getattr(one, name, None) for one in (value_estimator, inner))
        if given is None or used is None:
            continue
        given, used = (torch.as_tensor(value).cpu() for value in (given, used))
        if given.numel() != 1 or used.numel() != 1 or torch.allclose(given, used):
            continue
        if not torch.allclose(used, torch.full_like(used, BY_DEFAULT[name])):
            values = f"{given.item():.4g}, that of the loss {used.item():.4g}"
            return applies(f"{name} of the value estimator is {values}")
        other = True
    if other:
        return None  # nobody chose the settings of the loss, which may not use them
    return clear("the value estimator and that of the loss have the same settings")


@check("log_prob_not_found", "KeyError: couldn't find the log-prob")
def log_prob_not_found(loss_module=None, batch=None, sample=None, error=None):
    if isinstance(error, KeyError) and "find the log-prob" in str(error):
        return applies(f"the loss says: {error.args[0]}")
    if "PPOLoss" not in {kind.__name__ for kind in type(loss_module).__mro__}:
        return None
    key, action = (value_key(name, loss_module) for name in ("sample_log_prob", "action"))
    if isinstance(getattr(keys_of(loss_module), "sample_log_prob", None), list):
        return None  # an action of several parts, each with a key of its own
    given = {"batch": one_batch(batch), "sample of the buffer": sample}
    found = None
    for name, data in given.items():
        if data is None or data.get(action, None) is None:
            continue
        if data.get(key, None) is None:
            return applies(f"the {name} holds {action} and no {key}")
        found = clear(f"the {name} holds {action} and {key}")
    return found


# -- Environments ---------------------------------------------------------------


@check("always_the_first_action", "The environment always takes the first action")
def always_the_first_action(batch, env):
    rows, found = batches_of(batch)[0], None
    for key in env.action_keys:
        spec, action = env.full_action_spec_unbatched[key], rows.get(key)
        if type(spec).__name__ != "OneHot" or action is None:
            continue
        shape = tuple(action.shape[rows.ndim :])
        if not shape or shape[-1] != spec.shape[-1]:
            return applies(f"{key} has shape {shape}, its one-hot spec {tuple(spec.shape)}")
        found = clear(f"{key} has the shape of its one-hot spec")
    return found


@check("frames_after_the_end", "Episodes go on after they are done")
def frames_after_the_end(batch):
    rows = batches_of(batch)[0]
    count = steps_after_an_end(rows)
    if count is None or not rolled_out_by_hand(rows):  # a collector resets
        return None
    if count:
        return applies(f"{count} of {rows.numel()} steps go on from the end of an episode")
    return clear(f"{int(done_of(rows).sum())} ends, none of which is gone on from")


def steps_after_an_end(rows):
    """How many ends are followed by another, if always from where they left; None without ends."""
    now, later = both_sides(rows)
    if now is None or not done_of(rows)[..., :-1].any():
        return None
    done, moved = done_of(rows), (now != later).any(-1)
    goes_on = (now[..., 1:, :] == later[..., :-1, :]).all(-1) & moved[..., :-1]
    pairs = done[..., :-1] & done[..., 1:]
    return int(pairs.sum()) if goes_on[pairs].all() else 0


@check("decimals_are_lost", "A batched environment loses the decimals")
def decimals_are_lost(env):
    while type(env).__name__ == "TransformedEnv":
        env = env.base_env
    if "create_env_fn" not in vars(env):
        return None
    whole = [key for key, kind in types_of(env.full_observation_spec) if is_whole(kind)]
    if not whole:
        return clear("the specs of all observations are of floats")
    started = vars(env).get("_envs")  # an attribute of ParallelEnv asks the workers
    try:
        if started:
            data = copy.deepcopy(started[0]).rollout(2)
        else:
            with contextlib.closing(env.create_env_fn[0](**env.create_env_kwargs[0])) as one:
                data = one.rollout(2)
    except Exception as error:
        return undecided(f"one of the environments cannot be made: {type(error).__name__}")
    for key in whole:
        kind = getattr(data.get(key, None), "dtype", None)
        if isinstance(kind, torch.dtype) and not is_whole(kind):
            return applies(f"{key} is {kind}, its spec {env.full_observation_spec[key].dtype}")
    return clear(f"{len(whole)} observations keep their type")


def types_of(specs):
    return [(key, specs[key].dtype) for key in specs.keys(True, True)]


def is_whole(kind):
    return isinstance(kind, torch.dtype) and not (kind.is_floating_point or kind.is_complex)


@check("only_the_first_episode_is_long", "Only the first episode is long")
def only_the_first_episode_is_long(batch):
    rows = batches_of(batch)[0]
    if steps_after_an_end(rows) != 0:  # no end, or not reset at all
        return None
    played = []
    for ends in done_of(rows).reshape(-1, rows.shape[-1]):
        stops = ends.nonzero().flatten()
        played.append(stops.diff(prepend=-torch.ones_like(stops[:1])).tolist())
    if any(len(lengths) < 4 for lengths in played):
        return None
    if all(lengths[0] >= 5 and set(lengths[1:]) == {1} for lengths in played):
        return applies(f"{played[0][0]} steps, then {len(played[0]) - 1} episodes of one step")
    return clear(f"later episodes take {max(played[0][1:])} steps and less")


@check("specs_and_data_disagree", "check_env_specs says that specs and data differ")
def specs_and_data_disagree(env=None, error=None):
    if isinstance(error, AssertionError) and is_about_specs(str(error)):
        return applies(str(error).partition("\n")[0][:100])
    if env is None or hasattr(env, "create_env_fn"):  # a batched one casts its data to the specs
        return None
    try:
        copy.deepcopy(env).check_env_specs()
    except AssertionError as found:
        if is_about_specs(str(found)):
            return applies(str(found).partition("\n")[0][:100])
        return undecided(f"check_env_specs raises {str(found)[:60]!r}")
    except Exception as found:
        return undecided(f"a copy cannot be checked: {type(found).__name__}")
    return clear("check_env_specs finds nothing")


def is_about_specs(text):
    return "real and fake tensordict don't match" in text or "of the specs and data do" in text


# -- Evaluation -----------------------------------------------------------------


@check("good_in_training_poor_in_evaluation", "Good in training, poor in evaluation")
def good_in_training_poor_in_evaluation(env, eval_env):
    from torchrl.envs.transforms import ObservationNorm, VecNorm, VecNormV2

    compared = []
    tests = transforms_of(eval_env)
    norms = [t for t in tests if isinstance(t, (ObservationNorm, VecNorm, VecNormV2))]
    own = [t for t in tests if not type(t).__module__.startswith("torchrl.")]
    for train in transforms_of(env):
        for key in getattr(train, "in_keys", []):
            if not isinstance(train, VecNormV2) or not train.stateful or key in env.reward_keys:
                continue
            test = next((t for t in norms if key in t.in_keys), None)
            if test is None:
                if own or hasattr(leaf_env(eval_env), "num_workers"):
                    return undecided(f"no norm of {key!r} is seen in the evaluation environment")
                return applies(f"nothing normalizes {key!r} in the evaluation environment")
            compared.append((key, train, test))
    for key, train, test in compared:
        seen, seen_in_test = steps_seen(train), steps_seen(test)
        if not seen or seen_in_test == 0:
            return undecided("ask again after a batch and an evaluation")
        found = f"statistics of {seen} steps in training, of {seen_in_test} in evaluation"
        # A frozen copy may be old and still agree.
        if seen_in_test is not None and seen_in_test < seen / 10 and apart(train, test, key):
            return applies(found)
        if not hasattr(test, "to_observation_norm") or apart(train, test, key):
            return undecided(f"the statistics of {key!r} differ: are those of training the newer?")
    return clear("the statistics of both agree") if compared else None


def leaf_env(env):
    """The environment below all transforms."""
    from torchrl.envs import TransformedEnv

    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def apart(train, test, key):
    """Whether an observation a deviation off the mean of training moves by half of one in test."""
    if not hasattr(test, "to_observation_norm"):
        return False
    a, b = (
        next(n for n in flat(norm.to_observation_norm()) if key in n.in_keys)
        for norm in (train, test)
    )
    # The numbers of environments may differ.
    a, b = ([x.reshape(-1, x.shape[-1]).mean(0) for x in (n.loc, n.scale)] for n in (a, b))
    moved = [(a[0] + side * a[1] - b[0]) / b[1] - side for side in (-1, 1)]
    return not bool((torch.stack(moved).abs() <= 0.5).all())  # NaN is apart, too


def steps_seen(norm):
    """How many steps the statistics of *norm* rest on, None where nothing counts them."""
    count = getattr(norm, "_count", None)
    if not hasattr(count, "values"):
        return None
    return max((int(n) for n in count.values(True, True)), default=0)


@check("evaluation_rollout_ends_too_early", "The evaluation rollout ends much too early")
def evaluation_rollout_ends_too_early(batch):
    if isinstance(batch, list) or batch.ndim != 2 or batch.get("collector") is not None:
        return None
    done = batch.get(("next", "done"))
    if done is None or len(done) < 2 or done.shape[1] < 2 or batch.names[-1] != "time":
        return None  # slices end with an episode too; a rollout names its time
    done = done.reshape(*batch.shape, -1).any(-1)
    at_the_end, before = done[:, -1].sum().item(), done[:, :-1].any().item()
    if not before and 0 < at_the_end < len(done):
        return applies(
            f"{at_the_end} of {len(done)} environments ended at step {done.shape[1]}, "
            "and with it the rollout"
        )
    if not before:
        return undecided(f"no environment ended before step {done.shape[1]}; give a longer rollout")
    return clear(f"the rollout did not stop at the first of {len(done)} environments")


@check("episode_return_looks_too_low", "The episode return looks too low")
def episode_return_looks_too_low(batch, collector=None):
    if isinstance(batch, list) or batch.get(("next", "episode_reward")) is None:
        return None
    returns, done = batch["next", "episode_reward"], batch["next", "done"]
    hook = getattr(collector, "post_collect_hook", None)
    # Without a hook, what is logged is in no object.
    if not hasattr(hook, "__code__") or returns.shape != done.shape or not done.any():
        return None
    mean, of_episodes = returns.mean().item(), returns[done].mean().item()
    found = (
        f"episode_reward has a mean of {mean:.1f}, and of {of_episodes:.1f} where an episode ends"
    )
    if (("next", "episode_reward"), "mean") in called_on_entries(hook):
        return applies(f"{found}; the hook takes the first")
    return undecided(f"{found}; which of them do you log?")


@check("return_is_not_the_score", "The logged return is not the score of the game")
def return_is_not_the_score(env):
    from torchrl.envs import transforms

    names = ("RewardScaling", "RewardClipping", "SignTransform", "BinarizeReward", "VecNormV2")
    kinds = tuple(getattr(transforms, name) for name in names if hasattr(transforms, name))
    changed, unknown, summed = {}, {}, set()
    for one in transforms_of(env):
        if isinstance(one, transforms.RewardSum):
            # With a sum of its own before, the second one is meant.
            for key in changed.keys() & set(one.in_keys) - summed:
                return applies(f"RewardSum adds up {key!r} after {changed[key]} has changed it")
            for key in unknown.keys() & set(one.in_keys) - summed:
                return undecided(f"does {unknown[key]} change {key!r}, which RewardSum adds up?")
            summed |= set(one.in_keys)
        elif not isinstance(one, transforms.DTypeCastTransform):
            seen = changed if isinstance(one, kinds) else unknown
            seen |= {key: type(one).__name__ for key in one.out_keys if key in one.in_keys}
    return clear("RewardSum adds up what the environment paid") if summed else None


# -- Copies ------------------------------------------------------------------


class TimeUp(BaseException):
    """Not an `Exception`, which an ``except Exception`` of the reader's code would swallow."""


class CannotCopyError(Exception):
    """Why the doctor collects nothing from these objects; the message is for the reader."""


class Clock:
    """The time that an examination may take, and each step of it."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds
        self.step = seconds / 3
        in_main_thread = threading.current_thread() is threading.main_thread()
        self.can_interrupt = hasattr(signal, "setitimer") and in_main_thread

    @contextlib.contextmanager
    def limit(self):
        """Raise `TimeUp` in what runs inside, once its share is used up."""
        started = time.monotonic()
        share = min(self.step, self.end - started)
        if share <= 0:
            raise TimeUp("no time was left")
        if not self.can_interrupt:
            yield
            return
        armed = [True]

        def ring(signum, frame):
            if armed and PUT_OFF:
                PUT_OFF[-1].append(signum)
            elif armed:
                raise TimeUp("it took too long")

        handler = signal.signal(signal.SIGALRM, ring)
        # Again after each second: a bare ``except`` may have swallowed the first.
        delay, interval = signal.setitimer(signal.ITIMER_REAL, share, 1.0)
        try:
            try:
                yield
            finally:
                armed.clear()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL if handler is None else handler)
            if delay:
                left = delay - (time.monotonic() - started)
                signal.setitimer(signal.ITIMER_REAL, max(left, 1e-3), interval)


PUT_OFF = []  # for each `uninterrupted` that is open: the rings of a clock inside it


@contextlib.contextmanager
def uninterrupted():
    """Put `TimeUp` off: an answer that nobody reads would be taken for that to the next order.

    Masking the signal would not do: the system gives it to another thread, and Python to this one.
    """
    PUT_OFF.append([])
    try:
        yield
    finally:
        rings = PUT_OFF.pop()
    if rings:
        raise TimeUp("it took too long")


@contextlib.contextmanager
def random_state_kept():
    """Whatever is drawn inside, the generators of the reader go on as if nothing had been."""
    of_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    of_python, of_numpy, of_torch = (
        random.getstate(),
        numpy.random.get_state(),
        torch.get_rng_state(),
    )
    try:
        yield
    finally:
        random.setstate(of_python)
        numpy.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        if of_cuda:
            torch.cuda.set_rng_state_all(of_cuda)


@contextlib.contextmanager
def attributes_kept(*things):
    """Undo what reading a lazy property of a module has set in it, and a changed mode."""
    things = [one for one in things if isinstance(one, torch.nn.Module) and "_modules" in vars(one)]
    names = ("_modules", "_parameters", "_buffers")
    modules = [module for one in things for module in one.modules()]
    parts = [part for m in modules for part in (vars(m), *(vars(m)[name] for name in names))]
    kept = [(part, dict(part)) for part in parts]
    try:
        yield
    finally:
        for part, before in kept:
            if part.keys() != before.keys() or any(part[k] is not before[k] for k in before):
                part.clear()
                part.update(before)


def shallow(thing):
    """Another object with the same attributes, none of them copied, whose end ends nothing.

    The ``__del__`` of a storage may remove its files, which belong to the original.
    """
    kind = type(thing)
    twin = object.__new__(type(kind)(kind.__name__, (kind,), {"__del__": lambda self: None}))
    twin.__dict__.update(vars(thing))
    return twin


def lending(storage):
    """A twin of a storage that gives out copies: a `LazyStackStorage` gives out its own rows."""
    twin = shallow(storage)

    def get(index):
        rows = type(storage).get(twin, index)
        if isinstance(index, slice):  # a sampler reads keys of all rows
            return rows
        if isinstance(rows, list):
            return [one.clone() if hasattr(one, "clone") else one for one in rows]
        return rows.clone() if hasattr(rows, "clone") else rows

    twin.get = get
    return twin


def copied(thing, memo=None):
    """A deep copy; torch has none of a buffer without a shape, such as that of `CatFrames`."""
    memo = {} if memo is None else memo
    roots = thing if isinstance(thing, tuple) else (thing, *vars(thing).values())
    for root in roots:
        if isinstance(root, torch.nn.Module) and "_modules" in vars(root):
            for buffer in root.buffers():
                if isinstance(buffer, torch.nn.UninitializedBuffer):
                    anew = torch.nn.UninitializedBuffer(device=buffer.device, dtype=buffer.dtype)
                    memo[id(buffer)] = anew
    try:
        twin = copy.deepcopy(thing, memo)
    except Exception as error:
        raise CannotCopyError(f"copying it raises {in_words(error)}") from error
    for one in twin if isinstance(thing, tuple) else (twin, getattr(twin, "env", None)):
        _rejoin(one)
    return twin


def below_transforms(env):
    """What transforms were put on; asked for a ``base_env``, a new `SerialEnv` never answers."""
    from torchrl.envs import TransformedEnv

    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def _rejoin(env):
    """A deep copy of a started `SerialEnv` resets into other memory than it reads: join the two."""
    from torchrl.envs import SerialEnv

    env = below_transforms(env)
    if isinstance(env, SerialEnv) and "shared_tensordict_parent" in vars(env):
        env.shared_tensordicts = env.shared_tensordict_parent.unbind(0)


def draw(replay_buffer, size=None):
    """A batch from a twin of the buffer: its sampler, transforms and queues stay as they are.

    The twin reads the storage of the original, which may be larger than memory.
    """
    twin, twin._storage = shallow(replay_buffer), lending(replay_buffer._storage)
    if hasattr(twin._storage, "_storages"):  # of an ensemble, which hands its generator on
        twin._storage._storages = [lending(one) for one in twin._storage._storages]
    for name in ("_sampler", "_transform"):
        setattr(twin, name, copied(getattr(replay_buffer, name)))
    generator = getattr(replay_buffer, "_rng", None)
    if generator is not None:
        twin._rng = twin._storage._rng = twin._sampler._rng = generator.clone_state()
    twin._prefetch = False
    twin._warned_batch_size_conflict = True
    return twin.sample(size or replay_buffer._batch_size or _drawable(replay_buffer))


def _drawable(replay_buffer):
    """A batch size for a buffer without one, which its sampler can split into slices."""
    sampler = replay_buffer._sampler
    if length := getattr(sampler, "slice_len", None):
        return length * max(1, 64 // length)
    if number := getattr(sampler, "num_slices", None):
        return number * 2  # as short as slices are, for trajectories that are short
    return min(len(replay_buffer), 64)


# What a twin of a collector does without: where its batches go, what follows them, and buffers.
NOT_COPIED = (
    "replay_buffer",
    "interruptor",
    "policy_weights",
    "_final_rollout",
    "_iterator",
    "_thread",
    "_traj_assembly",
    "_pre_collect_hook",
    "_post_collect_hook",
    "_profiler_hook",
    "_weight_sync_schemes",
    "_weight_updater",
)
MOST_ENVIRONMENTS = 4096
MOST_WORKERS = 16
FEWEST_STEPS = 8
LARGEST_POLICY = 2**31  # bytes


def twin_of_collector(collector, frames):
    """A copy that collects about *frames* frames, and nothing where the original puts its own."""
    from torchrl.collectors import Collector

    if not isinstance(collector, Collector):
        raise CannotCopyError(
            f"a {type(collector).__name__} collects in other processes or threads"
        )
    if "env" not in vars(collector):
        raise CannotCopyError("it has been shut down")
    _refuse_a_crowd(collector.env, getattr(collector, "policy", None))
    memo = {}
    for name in NOT_COPIED:
        if vars(collector).get(name) is not None:
            memo[id(vars(collector)[name])] = None
    if collector.compiled_policy or collector.cudagraphed_policy:
        memo[id(collector._wrapped_policy_maybe_compiled)] = None
    starts_anew = _without_processes(collector.env, memo)
    twin = copied(collector, memo)
    twin.compiled_policy = twin.cudagraphed_policy = False
    twin._use_buffers = False
    twin.init_random_frames = 0
    number = max(twin.env.batch_size.numel(), 1)
    twin.frames_per_batch = min(twin.frames_per_batch, max(frames // number, FEWEST_STEPS))
    # Enough for one batch, also where a batch is a number of whole trajectories.
    twin.total_frames = twin._frames + 50 * number * twin.frames_per_batch
    if starts_anew:
        twin.reset()
    return twin


def twin_of_loop(env, policy, frames):
    """A collector with copies of *env* and *policy*."""
    from torchrl.collectors import Collector

    _refuse_a_crowd(env, policy)
    memo = {}
    _without_processes(env, memo)
    env, policy = copied((env, policy), memo)
    number = max(env.batch_size.numel(), 1)
    return Collector(
        env,
        policy,
        frames_per_batch=number * max(frames // number, FEWEST_STEPS),
        total_frames=-1,
        auto_register_policy_transforms=False,
    )


def _refuse_a_crowd(env, policy):
    if env.batch_size.numel() > MOST_ENVIRONMENTS:
        raise CannotCopyError(f"it steps {env.batch_size.numel()} environments at once")
    if isinstance(policy, torch.nn.Module):
        size = sum(p.numel() * p.element_size() for p in policy.parameters() if not is_lazy(p))
        if size > LARGEST_POLICY:
            raise CannotCopyError(f"its policy has {size} bytes of parameters")


def _without_processes(env, memo):
    """Let a copy of *env* step in this process the environments that *env* has in others."""
    from torchrl.envs import ParallelEnv, SerialEnv

    env = below_transforms(env)
    if not isinstance(env, ParallelEnv):
        return False
    if env.num_workers > MOST_WORKERS:
        raise CannotCopyError(f"its {env.num_workers} environments are in other processes")
    memo[id(env)] = SerialEnv(
        env.num_workers, env.create_env_fn, create_env_kwargs=env.create_env_kwargs
    )
    return True


def collect(given, frames):
    """A batch from copies of the reader's collector, or of environment and policy."""
    from torchrl.modules import set_recurrent_mode

    if "collector" in given:
        twin = twin_of_collector(given["collector"], frames)
    else:
        twin = twin_of_loop(given["env"], given["policy"], frames)
    batches = iter(twin)
    try:
        with set_recurrent_mode(False):  # wherever the reader calls the doctor
            batch = next(batches, None)
    finally:
        batches.close()
        twin.shutdown(raise_on_error=False)
    if batch is None:
        raise CannotCopyError("no trajectory has ended yet")
    return batch


# -- What can be looked at ---------------------------------------------------

ARGUMENTS = (
    "collector",
    "replay_buffer",
    "loss_module",
    "value_estimator",
    "env",
    "eval_env",
    "policy",
    "batch",
    "target_updater",
    "error",
)
KINDS = {
    "collector": "a collector",
    "replay_buffer": "a replay buffer",
    "env": "an environment",
    "eval_env": "an environment",
    "loss_module": "a module",
    "value_estimator": "a module",
    "policy": "a policy",
    "batch": "a tensordict, or a list of them",
    "target_updater": "a target updater",
    "error": "an exception",
}


# What a check calls the batch: any, or the one that the reader gave, and no other.
BATCHES = ("batch", "own_batch")
ARGUMENT_FOR = {"own_batch": "batch"}


def is_lazy(parameter):
    return isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin)


def is_of_kind(name, value):
    """Whether *value* can be the argument *name*."""
    from tensordict import is_tensor_collection

    if name == "batch":
        batches = value if isinstance(value, (list, tuple)) else [value]
        return bool(batches) and all(is_tensor_collection(one) for one in batches)
    if name == "error":
        return isinstance(value, BaseException)
    if name in ("loss_module", "value_estimator", "policy"):
        return callable(value) and not isinstance(value, type)
    methods = {
        "collector": ("update_policy_weights_",),
        "replay_buffer": ("sample", "extend"),
        "env": ("step", "reset", "batch_size"),
        "eval_env": ("step", "reset", "batch_size"),
        "target_updater": ("step",),
    }
    return not isinstance(value, type) and all(hasattr(value, one) for one in methods[name])


def in_words(error):
    """An exception in one line that fits a table."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}{'…' * (len(text) > 160)}".rstrip(": ")


class Examination:
    """What there is to look at: the reader's objects, and data from copies of them."""

    def __init__(self, given, clock, report):
        self.given = given
        self.clock = clock
        self.report = report

    def prepare(self, frames):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.complete(frames)
        for said in sorted({in_words(one.message) for one in caught}):
            self.report.notes.append(f"a copy warns: {said}")

    def complete(self, frames):
        for name in list(self.given):
            self.attempt(f"{name} cannot be looked at", self.keep_if_usable, name)
        collector = self.given.get("collector")
        for name in ("env", "policy", "replay_buffer"):
            if collector is not None and name not in self.given:
                value = self.attempt(f"collector.{name}", getattr, collector, name, None)
                if value is not None:
                    self.given[name] = value
        buffer = self.given.get("replay_buffer")
        if buffer is not None:
            self.attempt("nothing could be drawn from replay_buffer", self.draw, buffer)
        if "batch" in self.given:
            self.given["own_batch"] = self.given["batch"]
        elif collector is not None or {"env", "policy"} <= set(self.given):
            self.attempt("no batch could be collected", self.collect, frames)

    def attempt(self, what, function, *arguments):
        """The function's result; None, and a note, where it raises or takes too long."""
        try:
            with self.clock.limit():
                return function(*arguments)
        except TimeUp as error:
            cure = " Give it more seconds=, or a batch=." if function == self.collect else ""
            self.report.notes.append(f"{what}: {error}.{cure}")
        except CannotCopyError as error:
            self.report.notes.append(f"{what}: {error}. Pass a batch of your own as batch=.")
        except (Exception, SystemExit) as error:
            self.report.notes.append(f"{what}: {in_words(error)}")
            if function == self.collect:
                # The reader's own objects raise it too, so the loud symptoms are looked for.
                self.given.setdefault("error", error)
        return None

    def keep_if_usable(self, name):
        value = self.given.pop(name)
        if not is_of_kind(name, value):
            said = f"{name} is of type {type(value).__name__}, not {KINDS[name]}; it is left out."
            self.report.notes.append(said)
            self.report.refused.append(name)
        elif name == "batch" and any(0 in one.batch_size for one in batches_of(value)):
            self.report.notes.append("batch has no rows; it is left out.")
        else:
            self.given[name] = list(value) if isinstance(value, tuple) else value

    def draw(self, buffer):
        if not getattr(buffer, "_initialized", True):
            # Its length would initialize it.
            del self.given["replay_buffer"]
            self.report.notes.append("replay_buffer is not initialized yet; it is left out.")
        elif len(buffer) == 0:
            self.report.notes.append("replay_buffer is empty, so nothing is drawn from it.")
        else:
            from tensordict import is_tensor_collection

            sample = draw(buffer)
            if not is_tensor_collection(sample):
                said = "replay_buffer holds no tensordicts; its samples are not looked at."
                self.report.notes.append(said)
            elif 0 not in sample.batch_size:
                self.given["sample"] = sample

    def collect(self, frames):
        self.given["batch"] = collect(self.given, frames)

    def look(self, one):
        """Run a check; its verdict, or None where it does not concern the objects."""
        arguments = {name: self.given[name] for name in one.takes if name in self.given}
        verdict = self.verdict_of(one, arguments)
        if (
            verdict
            and verdict.state == FAILED
            and any(isinstance(arguments.get(name), (list, tuple)) for name in BATCHES)
        ):
            # A check that is made for one batch.
            last = {name: arguments[name][-1] for name in BATCHES if name in arguments}
            verdict = self.verdict_of(one, arguments | last)
        return verdict

    def verdict_of(self, one, arguments):
        try:
            with self.clock.limit():
                return one.look(**arguments)
        except TimeUp as error:
            return undecided(str(error))
        except (Exception, SystemExit) as error:
            policy = self.given.get("policy")
            plain = policy is not None and not isinstance(policy, torch.nn.Module)
            if plain and isinstance(error, AttributeError) and error.obj is policy:
                of_type = type(policy).__name__
                return undecided(f"policy is of type {of_type}, without {error.name!r}")
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{in_words(error)} ({PurePath(frame.filename).name}:{frame.lineno})"
            own = frame.filename == one.look.__code__.co_filename
            return Verdict(FAILED, place) if own else undecided(place)


# -- The report --------------------------------------------------------------


def in_columns(text, indent=""):
    """The lines of a text that fits a terminal."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, 80, initial_indent=indent, subsequent_indent=indent, **options)


class Finding(NamedTuple):
    """A verdict with the check that gave it."""

    slug: str
    title: str
    state: str
    evidence: str

    @property
    def page(self):
        """The address of the symptom's page below that of the manual."""
        return f"tutorials/debugging/{self.slug}.html"


def versions():
    """Of what the findings were made with, by name; None where there is none."""
    return {name: metadata_version(name) for name in ("torchrl", "tensordict", "torch")}


def metadata_version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


class Report:
    """The findings, those that apply first; `str` is a table."""

    def __init__(self, site=""):
        self.site = f"{site.rstrip('/')}/" if site else ""
        self.findings = []
        self.notes = []  # what could not be had, one sentence each
        self.refused = []  # arguments that are not what they should be
        self.lacking = {}  # by check, the arguments it would need
        self.unconcerned = []  # checks that do not concern these objects

    def __iter__(self):
        return iter(sorted(self.findings, key=lambda one: STATES.index(one.state)))

    def __len__(self):
        return len(self.findings)

    def of(self, state):
        return [one for one in self.findings if one.state == state]

    @property
    def applies(self):
        """The findings whose symptom is there."""
        return self.of(APPLIES)

    def table(self, everything=False):
        """The report as text; *everything* adds what is clear and what nothing was given for."""
        shown = [one for one in self if everything or one.state != CLEAR]
        width = max(map(len, STATES))
        lines = []
        for one in shown:
            lines.append(f"{one.state:{width}}  {one.title}")
            lines += in_columns(one.evidence, " " * (width + 2))
            lines.append(" " * (width + 2) + self.site + one.page)
        for note in self.notes:
            lines += in_columns(note)
        if everything:
            for slug, names in self.lacking.items():
                lines.append(f"{'not looked at':{width}}  {CHECKS[slug].title}")
                lines.append(f"{'':{width}}  needs {', '.join(names)}")
        counts = [f"{len(self.of(state))} {state}" for state in STATES if self.of(state)]
        if self.unconcerned:
            counts.append(f"{len(self.unconcerned)} of no concern here")
        if self.lacking:
            counts.append(f"{len(self.lacking)} not looked at for lack of an argument")
        lines += in_columns(f"{len(CHECKS)} checks: {', '.join(counts)}.")
        return "\n".join(lines)

    __str__ = table

    def to_json(self, **more):
        """The report as a JSON document; *more* is added to it."""
        findings = [
            {
                "check": one.slug,
                "title": one.title,
                "verdict": one.state,
                "evidence": one.evidence,
                "page": self.site + one.page,
            }
            for one in self
        ]
        document = {"findings": findings, "notes": self.notes, "lacking": self.lacking}
        document["unconcerned"] = self.unconcerned
        document |= {"versions": versions()} | more
        return json.dumps(document, indent=1, ensure_ascii=False)


def diagnose(
    *,
    collector=None,
    replay_buffer=None,
    loss_module=None,
    value_estimator=None,
    env=None,
    eval_env=None,
    policy=None,
    batch=None,
    target_updater=None,
    error=None,
    frames=256,
    seconds=10.0,
    site="",
):
    """Run every check that the given objects allow, and return a `Report`.

    Without *batch*, about *frames* frames come from a copy of the collector, or of *env* and
    *policy*. *seconds* bounds the whole examination; *site* is put before the address of a page.
    """
    named = {name: value for name, value in locals().items() if name in ARGUMENTS}
    report = Report(site)
    clock = Clock(seconds)
    if not clock.can_interrupt:
        report.notes.append(
            "Outside the main thread of a POSIX system nothing that hangs is stopped."
        )
    given = {name: value for name, value in named.items() if value is not None}
    examination = Examination(given, clock, report)
    with random_state_kept(), torch.inference_mode(False), torch.no_grad():
        examination.prepare(frames)
        names = ("loss_module", "value_estimator", "policy")
        modules = [examination.given.get(name) for name in names]
        # Checks provoke warnings.
        with attributes_kept(*modules), warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            for one in CHECKS.values():
                lacking = [name for name in one.needs if name not in examination.given]
                if lacking:
                    report.lacking[one.slug] = [ARGUMENT_FOR.get(name, name) for name in lacking]
                elif (verdict := examination.look(one)) is None:
                    report.unconcerned.append(one.slug)
                else:
                    report.findings.append(Finding(one.slug, one.title, *verdict))
    return report


# -- The command line --------------------------------------------------------


class UsageError(Exception):
    """The command cannot be run as it was given; the message names the cure."""


def line_in(path, error):
    """The line of the file *path* that an exception comes from, the innermost one."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [one.lineno for one in frames if one.filename == str(path)]
    return lines[-1] if lines else getattr(error, "lineno", None) or 1


def load(target):
    """The function that *target*, ``file.py:function``, names."""
    path, colon, name = target.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise UsageError(f"{target!r}: write it as pipeline.py:make")
    path = Path(path).resolve()
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    # Its workers import it by name, and it imports its neighbors.
    sys.path.insert(0, str(path.parent))
    module_name = path.stem if path.stem not in sys.modules else f"{path.stem}_under_examination"
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        place = f"{path}:{line_in(path, error)}"
        cure = "the file has to be importable; what trains belongs below its main guard"
        raise UsageError(f"{place}: importing it raises {in_words(error)}; {cure}") from error
    make = getattr(module, name, None)
    if not callable(make):
        functions = [one for one in vars(module).values() if inspect.isfunction(one)]
        known = [one.__name__ for one in functions if one.__module__ == module_name]
        raise UsageError(f"{path}:1: no function {name!r}; it defines {', '.join(known) or 'none'}")
    return make


def made_by(make):
    """The arguments of `diagnose` that *make* returns; the exception where it raises."""
    code = inspect.unwrap(make).__code__ if inspect.isfunction(inspect.unwrap(make)) else None
    path, line = (code.co_filename, code.co_firstlineno) if code else (make, 1)
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        cure = "the doctor calls it without arguments; give them defaults"
        raise UsageError(f"{path}:{line}: {error}; {cure}") from error
    try:
        made = make()
    except (Exception, SystemExit) as error:
        place = f"{PurePath(str(path)).name}:{line_in(path, error)}"
        print(f"torchrl_doctor: {place}: it raises {in_words(error)}", file=sys.stderr)
        return {"error": error}
    if not isinstance(made, dict):
        made = {"collector": made}
    for name in made:
        if name not in ARGUMENTS:
            known = ", ".join(ARGUMENTS)
            raise UsageError(f"{path}:{line}: {name!r} is no argument of diagnose; use {known}")
    if all(value is None for value in made.values()):
        raise UsageError(f"{path}:{line}: it returns nothing; return a dictionary or a collector")
    return made


def put_away(made):
    """End what *make* has started: it was made for this examination alone."""
    for name, method in {"collector": "shutdown", "env": "close", "eval_env": "close"}.items():
        value = made.get(name)
        if getattr(value, "closed", False) or getattr(value, "is_closed", False):
            continue
        if hasattr(value, method):
            try:
                getattr(value, method)()
            except Exception as error:
                print(f"torchrl_doctor: {name}.{method}(): {in_words(error)}", file=sys.stderr)


STATUSES = {
    0: "nothing applies",
    1: "a symptom applies",
    2: "the command, or an argument that make returned, is not what it should be",
    3: "make raised, left or returned an error, and no symptom explains it",
    4: "a check failed, which is a fault of the doctor",
}


def main(arguments=None):
    """The command line; its status is one of STATUSES."""
    parser = argparse.ArgumentParser(prog="torchrl_doctor", description=__doc__.split("\n")[0])
    parser.epilog = "exit status: " + "; ".join(f"{n}: {text}" for n, text in STATUSES.items())
    parser.add_argument("target", metavar="pipeline.py:make", help="a function in a file")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    parser.add_argument("--all", action="store_true", help="list also what is clear")
    parser.add_argument("--site", default="", help="address of the manual, put before each page")
    parser.add_argument("--seconds", type=float, default=10.0, help="bound of the examination")
    parser.add_argument("--frames", type=int, default=256, help="about how many to collect")
    options = parser.parse_args(arguments)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the pipeline prints
            made = made_by(load(options.target))
    except UsageError as error:
        print(f"torchrl_doctor: {error}", file=sys.stderr)
        return 2
    limits = {"frames": options.frames, "seconds": options.seconds, "site": options.site}
    with contextlib.redirect_stdout(sys.stderr):
        report = diagnose(**made, **limits)
        put_away(made)
    status = status_of(report, made)
    if options.json:
        error = made.get("error")
        said = None if error is None else {"type": type(error).__name__, "message": str(error)}
        print(report.to_json(error=said, status=status, meaning=STATUSES[status]))
    else:
        print(report.table(options.all))
    return status


def status_of(report, made):
    """The first of STATUSES that is true, the symptoms before all."""
    if report.applies:
        return 1
    if report.refused:
        return 2
    if made.get("error") is not None:
        return 3
    return 4 if report.of(FAILED) else 0


if __name__ == "__main__":
    # The checks and the one that a pipeline imports have to be the same module.
    sys.modules["torchrl_doctor"] = sys.modules["__main__"]
    sys.exit(main())
