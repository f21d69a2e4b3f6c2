"""Checks: exploration."""

from __future__ import annotations

import copy

import torch

from torchrl_doctor.looks import FEWEST_BATCHES, LOOK_TWICE
from torchrl_doctor.objects import (
    DROPOUT,
    FEWEST_SAMPLED,
    FEWEST_UPDATES,
    TRAJ_IDS,
    act,
    batches_of,
    bounds_of_actions,
    different,
    exploration_modules,
    in_words,
    modules_of,
    noise_of,
    noisy_in_training,
    other_than_greedy,
    rolled_out_by_hand,
    samples,
    says,
    stored_leaf,
)
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import applies, check, clear, undecided


@check("evaluation_takes_random_actions", "Evaluation still takes random actions")
def evaluation_takes_random_actions(eval_env, policy, batch, collector=None, loss_module=None):
    noisy = [m for m in exploration_modules(policy) if noise_of(m)[1] > 0]
    # Without a collector the batch may be for training.
    trains = loss_module is not None and not getattr(collector, "track_traj_ids", False)
    if not (noisy or samples(policy)) or trains or not rolled_out_by_hand(batch):
        return None
    other = other_than_greedy(policy, batch, eval_env.action_key)
    if other is None:
        return undecided("the policy is not the one that took these actions any more")
    few = undecided(f"{other.numel()} actions are too few to tell; give a longer rollout")
    if not noisy and not other.any():
        drawn = act(policy, batch, "RANDOM")[eval_env.action_key]
        if different(drawn, batch[eval_env.action_key], batch.shape).sum() < FEWEST_SAMPLED:
            return few
    elif not other.any():
        # Of the actions that epsilon changes, half may be the same by chance.
        chance = (1 - min(max(noise_of(m)[1] for m in noisy), 1) / 2) ** other.numel()
        if chance > 0.001:
            return few
    if not other.any():
        return clear("each action is the one that the policy takes without exploration")
    return applies(f"{int(other.sum())} of {other.numel()} actions are explored ones")


@check("epsilon_never_goes_down", "Epsilon never goes down")
def epsilon_never_goes_down(policy, batch=None, collector=None, since=None):
    modules = exploration_modules(policy)
    decaying = [m for m in modules if noise_of(m)[0] > noise_of(m)[2]]
    if any(hasattr(m, "eps") and noise_of(m)[1] == noise_of(m)[2] == 1 for m in modules):
        return applies("eps is 1 and ends at 1: each action is random, whatever is learned")
    if not decaying:
        return None
    module = min(decaying, key=lambda m: m.annealing_num_steps)
    start, now, end = noise_of(module)
    name = type(module).__name__
    (stepped := copy.deepcopy(module)).step()
    if now > end and noise_of(stepped)[1] == now:
        part = (start - end) / module.annealing_num_steps
        return applies(f"{name} is at {now:.3g}; a step() takes {part:.1g} off, and rounds it away")
    collected = frames_of(batch, collector) - (getattr(collector, "init_random_frames", None) or 0)
    total = getattr(collector, "total_frames", None) or -1
    if now > end and 0 < MANY_TIMES_TOO_LONG * total < module.annealing_num_steps:
        steps = f"its annealing_num_steps are {module.annealing_num_steps}"
        return applies(f"{name} is at {now:.3g} of {start:.3g}: {steps}, the frames {total}")
    if now < start:
        went = f"{name} went from {start:.3g} to {now:.3g}"
        counted = steps_counted(module)
        pace = steps_per_frame(module, policy, collector, collected, since)
        taken = counted + pace * (total - collected) if pace else 0.0
        if now > end and 0 < MANY_TIMES_TOO_LONG * taken < module.annealing_num_steps:
            part = taken / module.annealing_num_steps
            return applies(
                f"{went}, {counted:.0f} steps in {collected} frames: after all {total} frames it"
                f" will have gone {part:.1%} of the way; step(frames)?"
            )
        size = getattr(collector, "requested_frames_per_batch", 0)
        frames = collected if collected > 0 else frames_of(batch, collector)
        said = f"{went}, {counted:.0f} steps in {frames} frames"
        if now > end and size > 1 and pace and abs(pace * size - 1) <= 0.1:
            needed = module.annealing_num_steps * size
            said = f"{said}, one a batch: it needs {needed:.3g} frames; step(frames)?"
            many = needed >= MORE_FRAMES_THAN_A_RUN
            many = many and module.annealing_num_steps >= MORE_BATCHES_THAN_A_RUN
            return applies(said) if many else undecided(said)
        if now > end and 10 * counted < frames:
            return undecided(f"{said}; step(frames)?")
        if now > end and not frames and counted < 0.1 * module.annealing_num_steps:
            return undecided(f"{went}; in how many frames? Give the collector")
        return clear(went)
    seen = f"{name} is at its start, {start:.3g}, after {collected} frames"
    if collected >= module.annealing_num_steps:
        return applies(f"{seen}; it should have reached {end:.3g}")
    if collected <= 0:
        return None
    number = exploration_modules(policy).index(module)
    noise = since.number(f"noise {number}", "policy") if since else None
    begun = since and (since.had_begun("policy") or (since.seen("learned") or 0) >= FEWEST_BATCHES)
    learned = begun and any(since.changed("policy").values())
    if noise and noise[0] == noise[1] and learned and since.batches >= FEWEST_BATCHES:
        found = f"in {since.batches} batches since the first look, in which the policy learned"
        return applies(f"{name} stayed at {now:.3g} {found}")
    return undecided(f"{seen}; is its step() called? {LOOK_TWICE}")


MORE_FRAMES_THAN_A_RUN = 1e8  # anneals; who counts batches on purpose stays below one of the two
MORE_BATCHES_THAN_A_RUN = 1e5
MANY_TIMES_TOO_LONG = 10  # as all frames of a run


def steps_per_frame(module, policy, collector, collected, since):
    """How many steps an exploration module takes for a frame, as two looks or each batch tell.

    A loop may take none for a while, so all frames so far do not tell.
    """
    number = exploration_modules(policy).index(module)
    noise = since.number(f"noise {number}", "policy") if since else None
    frames = since.number("frames", "collector") if since else None
    if noise and frames and since.batches >= FEWEST_BATCHES:
        start, _, end = noise_of(module)
        moved = (noise[0] - noise[1]) / (start - end) * module.annealing_num_steps
        return moved / (frames[1] - frames[0])
    size, counted = getattr(collector, "requested_frames_per_batch", 0), steps_counted(module)
    each_batch = size and collected and abs(counted * size - collected) <= 0.1 * collected
    return 1 / size if each_batch else None


def frames_of(batch, collector):
    """How many frames were collected, as far as a list of batches or the collector tells."""
    collected = sum(b.numel() for b in batch) if isinstance(batch, (list, tuple)) else 0
    return max(collected, private(collector, "_frames", 0))


def steps_counted(module):
    """How many steps an exploration module has taken, or at least, by where its noise is."""
    start, now, end = noise_of(module)
    return (start - now) / (start - end) * module.annealing_num_steps


@check("epsilon_goes_down_too_soon", "Epsilon goes down too soon")
def epsilon_goes_down_too_soon(policy, batch=None, collector=None, since=None):
    modules = exploration_modules(policy)
    moved = [
        m for m in modules if noise_of(m)[0] > noise_of(m)[2] and noise_of(m)[1] < noise_of(m)[0]
    ]
    collected = frames_of(batch, collector)
    if not moved or not collected:
        return None
    module = max(moved, key=steps_counted)
    counted, now = steps_counted(module), noise_of(module)[1]
    number = exploration_modules(policy).index(module)
    noise = since.number(f"noise {number}", "policy") if since else None
    frames = since.number("frames", "collector") if since else None
    if noise and frames and noise[1] < noise[0] and frames[1] > frames[0]:
        start, _, end = noise_of(module)
        taken = (noise[0] - noise[1]) / (start - end) * module.annealing_num_steps
        if taken > FAR_TOO_OFTEN * (passed := frames[1] - frames[0]):
            return applies(f"{taken:.0f} steps in {passed} frames since the first look")
    said = f"{type(module).__name__} is at {now:.3g}, {counted:.0f} steps in {collected} frames"
    if counted > FAR_TOO_OFTEN * collected:
        return applies(f"{said}; is step() called in each update?")
    if counted > 1.5 * collected:
        return undecided(f"{said}; does step() count skipped frames, or earlier runs?")
    if now <= noise_of(module)[2]:
        return undecided(f"{said} or before: it is at its end; {LOOK_TWICE} early in the run")
    return clear(said)


FAR_TOO_OFTEN = 5  # more than the frames that an environment skips


@check("stochastic_policy_does_not_sample", "A stochastic policy takes no random action")
def stochastic_policy_does_not_sample(policy, loss_module, batch, own_batch=None, collector=None):
    action = getattr(getattr(loss_module, "tensor_keys", None), "action", None)
    if action is None or not samples(policy):
        return None
    batch = batches_of(batch)[-1]
    own_batch = None if own_batch is None else batches_of(own_batch)[-1]
    if own_batch is None and collector is None:
        return undecided("give a batch of your own, to see how its actions were drawn")
    if own_batch is not None and collector is not None and rolled_out_by_hand(own_batch):
        return None  # an evaluation
    part = last_draw(policy, batch, action)
    if part is None:
        part, other = policy, other_than_greedy(policy, batch, action)
    else:
        greedy = act(part, batch, "DETERMINISTIC")[action]
        other = different(greedy, batch[action], batch.shape)
    if other is None:
        return undecided("the policy is not the one that took these actions any more")
    kind = getattr(getattr(collector, "exploration_type", None), "name", "RANDOM")
    if other.any() and kind != "RANDOM":  # a mean or a median is another action than the mode
        calm = act(part, batch, kind)[action]
        other = different(calm, batch[action], batch.shape)
    if other.any():
        return clear("actions differ from the most likely one")
    drawn = act(part, batch, "RANDOM")
    wanted = different(drawn[action], batch[action], batch.shape)
    if wanted.sum() < FEWEST_SAMPLED:
        return None
    return applies(f"sampling would change {int(wanted.sum())} of {wanted.numel()} actions")


def last_draw(policy, batch, action):
    """The module that draws *action*, where the batch has what it drew from; else None."""
    draws = [m for m in modules_of(policy) if hasattr(m, "distribution_class")]
    known = [m for m in draws if all(batch.get(key, None) is not None for key in m.in_keys)]
    return next((m for m in known if [*m.out_keys][:1] == [action]), None)


@check("actions_stay_noisy", "Actions stay noisy with exploration switched off")
def actions_stay_noisy(policy, own_batch=None, collector=None, since=None, eval_env=None):
    layers = noisy_in_training(policy)
    if not layers:
        return None
    kind = getattr(getattr(collector, "exploration_type", None), "name", "RANDOM")
    modes = since.seen("modes") if since else None
    if modes == {True} and kind != "RANDOM":
        names = ", ".join(sorted({type(m).__name__ for m in layers}))
        return applies(f"each batch came in training mode ({names}), with exploration {kind}")
    if modes == {False}:
        return clear("each batch came in evaluation mode")
    active = sorted({type(m).__name__ for m in layers if m.training})
    single = own_batch is not None and not isinstance(own_batch, (list, tuple))
    single = single and hasattr(policy, "in_keys")
    strange = distance_from_evaluation(policy, own_batch) if single else None
    if strange == (0, 0):
        return clear("the batch was collected in evaluation mode")
    if not active:
        return undecided("in evaluation mode now; give a batch, to see whether it was before")
    seen = f"in training mode: {', '.join(active)}"
    dropout = any(m.training and isinstance(m, DROPOUT) for m in layers)
    evaluated = eval_env is not None and single and rolled_out_by_hand(own_batch)
    if (collector is not None and not evaluated) or strange is None or not dropout:
        # A loop may switch the mode before each batch; that of a copy of the collector is noisy.
        return undecided(f"{seen}; is eval() called before the collection?")
    if max(strange) < 0.5:
        return clear("the batch is nearer to evaluation mode than to training mode")
    if min(strange) < 0.5:
        return undecided(f"{seen}; some outputs in the batch are as far off as it makes them")
    return applies(f"{seen}, and the outputs in the batch are as far off as it makes them")


def distance_from_evaluation(policy, batch):
    """How far outputs in the batch are, at least and at most, from those in evaluation mode.

    As far as those in training mode are is 1.
    Small steps of an optimizer since then make less of a difference than dropout.
    """
    calm, noisy = (act(policy, batch, "DETERMINISTIC", mode) for mode in (False, True))
    floats = [k for k in policy.out_keys if k in batch.keys(True) and calm[k].is_floating_point()]
    floats = [k for k in floats if not torch.equal(calm[k], noisy[k])]
    if any(torch.allclose(calm[k], batch[k]) for k in floats):
        return 0, 0
    off = [(batch[k] - calm[k]).abs().mean() / (noisy[k] - calm[k]).abs().mean() for k in floats]
    return (float(min(off)), float(max(off))) if off else None


@check("evaluation_collector_explores", "The collector explores although exploration is off")
def evaluation_collector_explores(
    eval_env, policy, collector=None, loss_module=None, replay_buffer=None, eval_collector=None
):
    explores = samples(policy) or exploration_modules(policy)
    if eval_collector is not None:
        collector = eval_collector
    elif collector is None or getattr(collector, "env", None) is not eval_env:
        return None
    if not explores:
        return None
    trains = eval_collector is None and (loss_module is not None or replay_buffer is not None)
    if trains and not filled_by_another(replay_buffer, collector):
        return undecided("the collector has the environment of the evaluation; does it train?")
    kind = getattr(collector, "exploration_type", None)
    if kind is None:
        return undecided("the collector does not say its exploration type")
    if kind.name == "RANDOM":
        return applies("the collector of the evaluation has exploration_type RANDOM")
    return clear(f"the collector of the evaluation has exploration_type {kind.name}")


def filled_by_another(replay_buffer, collector):
    """Whether a buffer holds more rows of collectors than this one has collected."""
    ids = stored_leaf(replay_buffer, TRAJ_IDS)
    return ids is not None and ids.numel() > private(collector, "_frames", 0)


@check("actor_of_many_fails_in_one", "A policy for many environments fails in a single one")
def actor_of_many_fails_in_one(policy=None, eval_env=None, error=None, env=None):
    if isinstance(error, ValueError) and "does not match the action shape" in str(error):
        return applies(str(error))
    if env is not None and env.batch_size and says(error, RuntimeError, "must match the size of"):
        spec = env.full_action_spec_unbatched[env.action_key]
        bounds = [bounds_of_actions(one, env.action_key) for one in modules_of(policy)]
        for low in (torch.as_tensor(one[0]) for one in bounds if one is not None):
            if low.ndim > len(spec.shape):
                shape = f"the policy have the shape {tuple(low.shape)}, that of many environments"
                return applies(f"bounds in {shape}: {in_words(error)}")
    if eval_env is None:
        return None
    greedy = [m for m in exploration_modules(policy) if hasattr(m, "action_mask_key")]
    specs = [m.spec[m.action_key] for m in greedy]
    action = eval_env.full_action_spec[eval_env.action_key].shape
    if any(len(s.shape) > len(action) for s in specs if s is not None):
        return undecided("the spec to explore is too large here; not used without exploration")
    return clear("the spec to explore fits the actions") if specs else None


@check("noisy_network_never_learns_its_noise", "A noisy network never learns its noise")
def noisy_network_never_learns_its_noise(policy, loss_module, since=None):
    layers = [m for m in noisy_layers(policy) if m.weight_sigma.requires_grad]
    changed = since.changed("policy") if since else {}
    names = [name for name, m in policy.named_modules() if m in layers] if layers else []
    learned = [name for name in names if changed.get(f"{name}.weight_mu")]
    still = [name for name in learned if not changed[f"{name}.weight_sigma"]]
    if learned and not still:
        return clear(f"the noise of {len(learned)} layers has changed since the first look")
    if still and (updates := since.updates("policy")) >= FEWEST_UPDATES:
        return applies(f"the noise of {still[0]} stayed as it is in about {updates} updates")
    if not layers or not any(trained(m.weight_mu) for m in layers):
        return None
    without = [m for m in layers if trained(m.weight_mu) and not trained(m.weight_sigma)]
    if not without and not all(m.weight_sigma._version for m in layers):
        return undecided(f"the noise has a gradient, and nothing has changed it; {LOOK_TWICE}")
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
