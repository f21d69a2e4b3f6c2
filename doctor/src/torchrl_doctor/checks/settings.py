"""Checks: numbers that the reader has set, in losses, estimators, optimizers and buffers.

They have no rows in the debugging map; ``reference/doctor_settings`` shows them.
"""

from __future__ import annotations

import math

import torch

from torchrl_doctor.checks.training import groups_of_optimizers, steps_of
from torchrl_doctor.looks import LOOK_TWICE
from torchrl_doctor.objects import (
    DROPOUT,
    FEWEST_UPDATES,
    SOME_ROWS,
    batches_of,
    below_transforms,
    exploration_modules,
    get_next,
    is_lazy,
    keys_of,
    kinds_of,
    learns_on_policy,
    modules_of,
    noise_of,
    other_than_greedy,
    rolled_out_by_hand,
    samples,
    spec_of_action,
    stored_data,
    transforms_of,
    value_key,
    wrapped_by,
)
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import APPLIES, CLEAR, UNDECIDED, applies, check, clear, undecided

SETTINGS = "reference/doctor_settings"


def number(value):
    """A setting as a float; None where it is no single number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
        return float(value)
    return float(value) if isinstance(value, (int, float)) else None


# What a setting must not be, by its name: on losses, value estimators, target updaters.
WRONG = {
    "entropy_coeff": (lambda v: v < 0, "which rewards a policy for less entropy"),
    "critic_coeff": (lambda v: v <= 0, "which leaves the critic untrained, or worse"),
    "clip_epsilon": (lambda v: not 0 < v < 1, "where a ratio is clipped at 1 - epsilon"),
    "expectile": (lambda v: not 0.5 <= v < 1, "where the best actions are at 0.5 and above"),
    "temperature": (lambda v: v <= 0, "which gives the best action no more weight than others"),
    "min_q_weight": (lambda v: v <= 0, "which leaves out the penalty of CQL"),
    "alpha": (lambda v: v <= 0, "which leaves the critic out of the policy"),
    "beta": (lambda v: v < 0, "which rewards a policy for moving away"),
    "rho_thresh": (lambda v: v <= 0, "which cuts all that V-trace learns from"),
    "c_thresh": (lambda v: v < 0, "where a trace has a weight of at least 0"),
    "gamma": (lambda v: not 0 < v <= 1, "where a discount is above 0 and at most 1"),
    "lmbda": (lambda v: not 0 <= v <= 1, "where lambda is from 0 to 1"),
}
LARGE_ENTROPY = 1.0  # times the entropy: advantages are of that size after normalization
LARGE_ALPHA = 100.0


@check("a_setting_is_out_of_range", "A setting is out of its range", f"{SETTINGS}#out-of-range")
def a_setting_is_out_of_range(
    loss_module=None,
    value_estimator=None,
    env=None,
    optimizer=None,
    batch=None,
    replay_buffer=None,
):
    inner = private(loss_module, "_value_estimator", None)  # the property would make one
    seen, endless = [], None
    for one in optimizer if isinstance(optimizer, list) else filter(None, [optimizer]):
        if any(group.get("maximize") for group in one.param_groups):
            return applies(f"maximize of {type(one).__name__} is True, which makes the loss larger")
    for owner in (loss_module, value_estimator, inner):
        for name, (wrong, why) in WRONG.items():
            # A property of a loss may make what it gives.
            kept = {} if owner is None else {**vars(owner), **getattr(owner, "_buffers", {})}
            value = number(kept.get(name, kept.get(f"_{name}")))
            if value is None:
                continue
            seen.append(f"{name}={value:g}")
            said = f"{name} of {type(owner).__name__} is {value:g}"
            if wrong(value):
                fix = f"{name}={-value:g}" if name == "entropy_coeff" else None
                return applies(f"{said}, {why}", fix=fix)
            if name == "gamma" and value == 1 and (cut := ends_cut_off(batch)):
                endless = (
                    f"{said}, and none of {cut} ends terminates: if none ever does, values grow"
                )
            if name == "entropy_coeff" and value >= LARGE_ENTROPY:
                return applies(f"{said}: the entropy outweighs normalized advantages")
    beta = number(getattr(getattr(replay_buffer, "sampler", None), "beta", None))
    if beta and getattr(loss_module, "use_prioritized_weights", None) is False:
        said = f"use_prioritized_weights of {type(loss_module).__name__} is False"
        return applies(f"{said}: it leaves out the weights that a sampler with beta={beta:g} gives")
    for head, value in (private(loss_module, "_entropy_coeff_map", None) or {}).items():
        if value < 0:
            return applies(f"entropy_coeff is {value:g} for {head}: less entropy is rewarded")
    fixed = number(getattr(loss_module, "_buffers", {}).get("log_alpha"))  # else a parameter
    if fixed is not None and fixed > math.log(LARGE_ALPHA):
        return applies(f"alpha is fixed at {math.exp(fixed):g}: the entropy outweighs the values")
    buffers = getattr(loss_module, "_buffers", {})
    low, high = (buffers.get(name) for name in ("min_action", "max_action"))
    noise = number(vars(loss_module).get("policy_noise")) if loss_module is not None else None
    clipped = number(getattr(loss_module, "noise_clip", None))
    if noise and low is not None and min(noise, clipped or noise) > float((high - low).max()):
        return applies(f"policy_noise is {noise:g}, clipped at {clipped:g}: more than all actions")
    kept = {
        **getattr(loss_module, "__dict__", {}),
        **buffers,
    }  # it is a number until the first call
    named = ("_target_entropy", "target_entropy_buffer", "target_entropy")
    wanted = number(next((kept[name] for name in named if name in kept), None))
    if wanted is not None:
        seen.append(f"target_entropy={wanted:g}")
    if wanted is not None and env is not None and wanted > (most := largest_entropy(env)):
        return applies(f"target_entropy is {wanted:g}, and no policy has more than {most:.3g}")
    discrete = "DiscreteSACLoss" in kinds_of(loss_module)
    if wanted is not None and wanted < 0 and discrete:
        return applies(f"target_entropy is {wanted:g}, and no choice has less than 0: alpha falls")
    if endless:
        return undecided(endless)
    if wanted is not None and wanted > 0 and not discrete:
        return undecided(
            f"target_entropy is {wanted:g}: did it lose its sign? -dim(action) is usual"
        )
    return clear(", ".join(dict.fromkeys(seen))) if seen else None


def ends_cut_off(batch):
    """How many episodes are truncated in batches where none terminates; 0 for a few."""
    ends = {"truncated": 0, "terminated": 0}
    for rows in batches_of(batch):
        for name in ends:
            flags = get_next(rows, name)
            ends[name] += 0 if flags is None else int(flags.sum())
    return ends["truncated"] if ends["truncated"] >= FEWEST_CUT and not ends["terminated"] else 0


FEWEST_CUT = 3


def largest_entropy(env):
    """That of random actions, one of n or inside their bounds; infinite without bounds."""
    if len(env.action_keys) > 1:
        return math.inf
    spec = env.full_action_spec[env.action_key]
    space = getattr(spec, "space", None)
    if type(spec).__name__ in ("OneHot", "Categorical"):
        return math.log(space.n)
    if getattr(space, "low", None) is None:
        return math.inf
    width = (space.high - space.low).double()
    if not (width.isfinite() & (width > 0)).all():
        return math.inf
    return float(width.log().sum()) / max(env.batch_size.numel(), 1)


@check("targets_follow_at_once", "Target networks copy at once", f"{SETTINGS}#target-networks")
def targets_follow_at_once(target_updater=None, loss_module=None):
    if tied := next(tied_targets(loss_module), None):
        return applies(f"the tensors of {tied} are those of {tied[len('target_') :]}")
    if target_updater is None:
        return None
    eps = number(getattr(target_updater, "eps", None))
    every = number(getattr(target_updater, "value_network_update_interval", None))
    if eps == 0:
        return applies("eps=0, or tau=1: each step copies the whole network")
    if every in (0, 1):
        often = "second step" if every == 1 else "step"  # the counter is compared, then raised
        return applies(f"value_network_update_interval={every:g}: every {often} copies the network")
    if (eps is None and every is None) or (eps or 1) < 0.5:  # q_values_explode speaks of that
        return None
    return clear("a step leaves part of the targets")


def tied_targets(loss_module):
    """The names of target networks that have the very tensors of the networks they should follow.

    `named_children` leaves out what is there twice.
    """
    parts = getattr(loss_module, "_modules", {})
    for name in parts:
        if name.startswith("target_") and (source := parts.get(name[len("target_") :])) is not None:
            trained = {one.data_ptr() for one in source.parameters() if not is_lazy(one)}
            held = {one.data_ptr() for one in parts[name].values(True, True) if not is_lazy(one)}
            if held and held <= trained:
                yield name


@check("two_critics", "GAE and the loss have two critics", f"{SETTINGS}#two-critics")
def two_critics(
    value_estimator, loss_module, by_group=None, replay_buffer=None, collector=None, sample=None
):
    if found := one_advantage_for_two(value_estimator, loss_module, by_group or {}):
        frames, written = private(collector, "_frames", 0), getattr(replay_buffer, "write_count", 0)
        once = sample is not None and sample.ndim == 1 and len(replay_buffer) < written == frames
        if once and "replay_buffer" not in by_group:
            return applies(f"{found}, and the buffer holds one of them in each row")
        return undecided(f"{found}: does a loss learn before the next one is written?")
    critic = getattr(loss_module, "critic_network_params", None)
    network = getattr(value_estimator, "value_network", None)
    if critic is None or not isinstance(network, torch.nn.Module):
        return None
    ours = {one.data_ptr() for one in network.parameters()}
    trained = {one.data_ptr() for one in critic.values(True, True)}
    if not ours or not trained:
        return None
    if ours & trained:
        return clear("the value network of the estimator is the critic of the loss")
    return applies("the value network of the estimator shares no parameter with the critic")


def one_advantage_for_two(value_estimator, loss_module, by_group):
    """What is wrong if the estimator of another group writes what this loss reads; else None."""
    key = getattr(keys_of(loss_module), "advantage", None)
    estimators = by_group.get("value_estimator", {})
    ours = [name for name, one in estimators.items() if one is value_estimator]
    for name, other in estimators.items():
        both = [one for one in (value_estimator, other) if one is not None]
        if name in ours or {value_key("advantage", None, one) for one in both} != {key}:
            continue
        paid = {value_key("reward", None, one) for one in both}
        weights = [{id(p) for p in one.parameters()} for one in both]
        if len(paid) > 1 or not weights[0] & weights[-1]:
            return f"the estimators of {' and '.join(sorted((ours[0], name)))} both write {key!r}"
    return None


@check("critic_without_action", "The critic does not read the action", f"{SETTINGS}#the-critic")
def critic_without_action(loss_module):
    critic = getattr(loss_module, "qvalue_network", None)
    if critic is None and getattr(loss_module, "actor_network", None) is not None:
        critic = getattr(loss_module, "value_network", None)
    kinds = kinds_of(loss_module)
    if not kinds & READ_THE_ACTION or kinds & {"DiscreteSACLoss", "DiscreteIQLLoss"}:
        return None
    if critic is None:
        return None
    action = getattr(keys_of(loss_module), "action", "action")
    read = list(getattr(critic, "in_keys", []))
    if action in read:
        return clear(f"it reads {action!r}")
    return applies(f"the critic reads {', '.join(map(repr, read))}, and no {action!r}")


READ_THE_ACTION = {"SACLoss", "TD3Loss", "DDPGLoss", "REDQLoss", "CQLLoss", "IQLLoss"}
READ_THE_ACTION |= {"TD3BCLoss", "CrossQLoss"}


@check("part_of_the_loss_is_frozen", "A network of the loss is frozen", f"{SETTINGS}#frozen")
def part_of_the_loss_is_frozen(loss_module):
    networks = {}
    for name, parameter in loss_module.named_parameters():
        if not name.startswith("target_"):
            networks.setdefault(name.split(".")[0], []).append(parameter.requires_grad)
    for name, trained in networks.items():
        if not any(trained):
            return applies(f"no parameter of {name} requires a gradient")
    return clear(f"{', '.join(networks)}: trained") if networks else None


@check("optimizer_trains_others", "The optimizer trains other parameters", f"{SETTINGS}#optimizer")
def optimizer_trains_others(optimizer, loss_module, since=None):
    held = {id(one) for group in groups_of_optimizers(optimizer) for one in group["params"]}
    named = {name: one for name, one in loss_module.named_parameters() if one.requires_grad}
    missing = [name for name, one in named.items() if id(one) not in held]
    if not missing:
        return clear(f"it holds the {len(named)} parameters of the loss")
    networks = ", ".join(dict.fromkeys(name.split(".")[0] for name in missing))
    said = f"{len(missing)} of {len(named)} parameters of the loss are not in it: {networks}"
    strangers_held = held - {id(one) for one in named.values()}
    if isinstance(optimizer, (list, tuple)) or strangers_held or len(missing) == len(named):
        return applies(said)
    changed = since.changed("loss_module") if since else {}
    still = all(changed.get(name) is False for name in missing)
    if still and since.updates("loss_module") >= FEWEST_UPDATES:
        return applies(f"{said}; they have not changed as the others have")
    return undecided(f"{said}; does another optimizer hold them, or will it? {LOOK_TWICE}")


@check("optimizer_is_made_anew", "The optimizer is made anew", f"{SETTINGS}#optimizer")
def optimizer_is_made_anew(loss_module, since):
    steps, taken = since.seen("steps without moments"), (since.before.optimized or {}).get("steps")
    if steps is None or not taken or taken < FEWEST_UPDATES:
        return None
    if 2 * steps > taken and steps >= FEWEST_UPDATES:
        return applies(f"{steps} of {taken} steps were the first of their optimizer")
    return clear(f"{taken} steps were taken with moments of earlier ones")


@check("loss_is_maximized", "A loss is made larger", f"{SETTINGS}#optimizer")
def loss_is_maximized(loss_module, since):
    pulls, maximize = since.seen("pulls") or {}, since.seen("maximize") or set()
    pulls = {k: v for k, v in pulls.items() if k.startswith("loss") and len(v) >= FEWEST_BACKWARDS}
    if not pulls or len(maximize) != 1:
        return None
    (up,) = maximize  # two wrong signs are a right one
    down = {name: [-one if up else one for one in values] for name, values in pulls.items()}
    if wrong := [name for name, values in down.items() if max(values) < 0]:
        how = "maximize=True" if up else "backward() of its negative"
        said = f"{', '.join(wrong)}: {how} in {len(down[wrong[0]])} updates"
        # A reader's own class may return what has to grow.
        of_torchrl = type(loss_module).forward.__module__.startswith("torchrl.")
        return applies(said) if of_torchrl else undecided(f"{said}; is that meant?")
    smaller = all(min(values) > 0 for values in down.values())
    return clear(f"{', '.join(down)}: each is made smaller") if smaller else None


FEWEST_BACKWARDS = 3


@check("learning_rate_is_wrong", "The learning rate trains nothing", f"{SETTINGS}#learning-rate")
def learning_rate_is_wrong(optimizer=None, since=None, collector=None):
    for rates in (since.seen("rates") if since else None) or []:
        if found := falls_and_rises(rates):
            return applies(found)
    if optimizer is None:
        return None
    several = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
    rates, large = [], None
    for one in several:
        for group in one.param_groups:
            adaptive = "betas" in group or type(one).__name__ in ("RMSprop", "Adagrad")
            rate, decay = number(group.get("lr")), number(group.get("weight_decay")) or 0.0
            if rate is None:
                continue
            rates.append(f"{rate:g}")
            if rate == 0:
                return applies("lr=0: no parameter changes")
            start, total = number(group.get("initial_lr")), getattr(collector, "total_frames", -1)
            if start and rate < END_OF_A_SCHEDULE * start and steps_of(one) >= FEWEST_SCHEDULED:
                frames = private(collector, "_frames", 0)
                said = f"lr={rate:.2g} of {start:g}, after {steps_of(one)} steps of the optimizer"
                # A run that is resumed counts its frames anew, and not the steps of its optimizer.
                seen = ((since and since.before.optimized) or {}).get("steps", 0)
                whole = len(several) == 1 and seen >= steps_of(one)
                if 0 < 2 * frames < total and whole:
                    return applies(f"{said} and {frames} of {total} frames: the schedule is over")
                large = large or f"{said}: is the schedule over, and the run not?"
            if adaptive and rate < LEAST_RATE:
                return applies(f"lr={rate:g}: a float32 weight has no digits for such a step")
            if adaptive and rate >= 1:
                return applies(f"lr={rate:g}: {type(one).__name__} moves each weight by about that")
            if adaptive and rate >= LARGE_OF_ADAPTIVE and any(map(is_layer, group["params"])):
                large = (
                    f"lr={rate:g}: {type(one).__name__} moves each weight by about that; so far?"
                )
            if rate >= LARGEST_RATE:
                return applies(f"lr={rate:g}: a step is as many times as long as the gradient")
            if rate * decay >= 0.1:
                return applies(f"weight_decay={decay:g} with lr={rate:g} shrinks weights to zero")
    if large:
        return undecided(large)
    return clear(f"lr={', '.join(dict.fromkeys(rates))}") if rates else None


END_OF_A_SCHEDULE = 1e-3  # of the rate that it begins with
FEWEST_SCHEDULED = 20  # steps: in the first ones a warm-up is as low


def falls_and_rises(rates):
    """How a rate has come back from next to zero little by little; None where it has not.

    A schedule that is meant to begin again jumps; a warm-up begins with the least.
    """
    most = rates.before
    if rates.count < FEWEST_SCHEDULED or rates.rise > 0.5 * most:
        return None
    if rates.least > END_OF_A_SCHEDULE * most or rates.after < FAR_UP * most:
        return None
    said = f"lr fell from {most:g} to {rates.least:.2g} in {rates.place} steps, and rises again"
    return f"{said}, to {rates.after:.2g}: is its schedule stepped more often than it counts?"


FAR_UP = 0.05


def is_layer(parameter):
    """Whether it is the weights of several units; one number, or a table, may take long steps."""
    return parameter.ndim > 1 and min(parameter.shape) > 1


LARGEST_RATE = 10.0
LARGE_OF_ADAPTIVE = 0.05  # weights of a layer are about as large
LEAST_RATE = 1e-10  # with Adam; the next number after 0.01 is ten times as far


@check("epsilon_starts_at_zero", "The policy never explores", f"{SETTINGS}#no-exploration")
def epsilon_starts_at_zero(policy, loss_module=None, batch=None, collector=None, eval_env=None):
    kind = getattr(getattr(collector, "exploration_type", None), "name", "RANDOM")
    learns = kinds_of(loss_module) & LEARN_FROM_ANY_ACTION
    evaluates = eval_env is not None and getattr(collector, "env", None) is eval_env
    if kind != "RANDOM" and learns and not evaluates and exploration_modules(policy):
        return applies(f"the collector has exploration_type {kind}: no module of the policy acts")
    acts = getattr(collector, "policy", None)
    for module in modules_of(policy):
        for name in ("eps", "sigma"):
            start = number(getattr(module, f"{name}_init", None))
            if start is not None and hasattr(module, "annealing_num_steps"):
                if start == 0:
                    return applies(f"{name}_init of {type(module).__name__} is 0")
                if (noise := start * widest_noise(module)) < LEAST_NOISE:
                    said = f"{name}_init={start:g} of {type(module).__name__}"
                    return applies(f"{said} changes an action by {noise:.2g} of its range")
                if isinstance(acts, torch.nn.Module) and not exploration_modules(acts):
                    other = "the policy of the collector is another one"
                    return applies(f"{other}, without {type(module).__name__}")
                seen = f"{name}_init is {start:g}"
                return clear(seen) if kind == "RANDOM" else undecided(f"{seen}, in a {kind} run")
    names = kinds_of(loss_module)
    if collector is None or batch is None or not names & LEARN_FROM_ANY_ACTION:
        return None
    if samples(policy) or not hasattr(policy, "out_keys") or any(map(is_noisy, modules_of(policy))):
        return None
    rows = batches_of(batch)[-1].reshape(-1)
    action = value_key("action", loss_module)
    if len(rows) < FEWEST_ACTIONS or rows.get(action, None) is None:
        return None
    other = other_than_greedy(policy, rows, action)
    if other is None or other.any():
        return None
    return applies(f"each of {len(rows)} actions is greedy, and nothing in the policy explores")


LEAST_NOISE = 1e-4


def widest_noise(module):
    """What one sigma of an exploration module adds, in ranges of the action; 1 of an epsilon."""
    deviation, space = number(getattr(module, "std", None)), None
    if deviation is not None:
        space = getattr(spec_of_action(module), "space", None)
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or not (width := float((high - low).min())) > 0:
        return 1.0
    return deviation / width


LEARN_FROM_ANY_ACTION = {"DQNLoss", "DistributionalDQNLoss", "DDPGLoss", "TD3Loss", "QMixerLoss"}
FEWEST_ACTIONS = 30


@check(
    "log_prob_of_another_action",
    "The log-probability is of another action",
    f"{SETTINGS}#no-exploration",
)
def log_prob_of_another_action(
    policy,
    loss_module,
    collector=None,
    batch=None,
    own_batch=None,
    replay_buffer=None,
    sample=None,
):
    on_policy = learns_on_policy(loss_module)
    acts = getattr(collector, "policy", None) or policy  # what draws the batches
    found = exploration_modules(acts) if on_policy and samples(acts) else []
    for module in found:
        _, now, end = noise_of(module)
        if max(now, end) > 0:
            name = type(module).__name__
            return applies(f"{name} changes an action after its log-probability is written")
    rows = {
        "batch": one_of(batch if own_batch is None else own_batch),
        "buffer": some_stored(replay_buffer),
        "sample": one_of(sample),
    }
    said = {
        name: compared_log_probs(acts, some, f"of the {name}", on_policy)
        for name, some in rows.items()
        if some is not None
    }
    said = {name: one for name, one in said.items() if one is not None}
    for state in (APPLIES, UNDECIDED):
        if wrong := [one for one in said.values() if one.state == state]:
            return wrong[0]
    if own_batch is None:
        said.pop("batch", None)  # a loop may change its own
    if said:
        return next(iter(said.values()))
    return clear("the noise of the policy is at zero, and stays there") if found else None


def one_of(batch):
    """The last batch as one row after another; None without one."""
    last = batches_of(batch)[-1:]
    return last[0].reshape(-1) if last and not hasattr(last[0], "tensordicts") else None


def some_stored(replay_buffer):
    """Some rows of a buffer, where it has them in one block; else None."""
    data = None if replay_buffer is None else stored_data(replay_buffer)
    if not hasattr(data, "batch_size"):
        return None
    return data[: min(len(replay_buffer), SOME_ROWS)].reshape(-1)


def compared_log_probs(policy, rows, where, on_policy):
    """Whether the action of a row is the one whose log-probability is in it; None if untold.

    The parameters of the distribution are in the row as well, so no later policy plays a part. A
    loss that never reads the log-probability still learns from actions that were cut afterwards.
    """
    for module in reversed(modules_of(policy)):
        keys = list(getattr(module, "log_prob_keys", None) or ())
        if not hasattr(module, "distribution_class") or len(keys) != 1 or not keys[0]:
            continue
        drawn = [key for key in module.out_keys if key not in keys]
        needed = [*module.in_keys, *drawn, *keys]
        found = [rows.get(key, None) for key in needed]
        drawn_too = found[len(module.in_keys) :]
        if any(one is None for one in found) or not all(map(torch.is_tensor, drawn_too)):
            continue
        known = rows.select(*needed)
        floats = [key for key in drawn if known[key].is_floating_point()]
        if any(known[key].dtype not in (torch.float32, torch.float64) for key in floats):
            continue
        stored = known[keys[0]].double()
        off, near, told, again = far_log_probs(module, known, floats, stored)
        number, wrong = int(told.sum()), int((off & told).sum())
        if number < FEWEST_DRAWN:
            return None
        if not wrong:
            return clear(f"{number} log-probabilities {where} are those of the actions beside them")
        cuts = [cut for key in floats if (cut := cut_at(known[key], off & told))]
        said = f"{wrong} of {number} actions {where} are not those of {keys[0]!r}"
        if cuts:
            return applies(f"{said}: they were cut at {cuts[0]} after they were drawn")
        if not on_policy:
            return None
        summed = again.sum(-1, keepdim=True).expand_as(stored)
        if stored.ndim > 1 and torch.allclose(summed, stored, 1e-3, 1e-3):
            return applies(f"{keys[0]!r} {where} is the sum over {stored.shape[-1]} agents")
        # A loss may have written the parameters of a later policy, which fit no row exactly.
        exact = int((near & told).sum())
        others = 2 * exact > number and exact + wrong > 0.98 * number
        return applies(said) if others else undecided(f"{said}: of another policy?")
    return None


def far_log_probs(module, rows, floats, stored):
    """Which log-probabilities are not those of the actions, and which are exactly.

    With them which can be told at all, and what they should be.

    Next to a bound of a squashed distribution the last digit of an action makes a difference.
    """
    moved = []
    for by in (0.0, 1e-6, -1e-6):
        shifted = rows.clone()
        for key in floats:
            shifted[key] = shifted[key] + by * shifted[key].abs().clamp(min=1.0)
        with torch.no_grad():
            again = module.log_prob(shifted)
        if not isinstance(again, torch.Tensor) or again.numel() != stored.numel():
            return *[torch.zeros_like(stored, dtype=torch.bool)] * 3, stored
        moved.append(again.double().reshape(stored.shape))
    again, *near = moved
    blur = torch.stack([(one - again).abs() for one in near]).amax(0)
    told = torch.stack([*moved, stored]).isfinite().all(0) & (stored != 0) & (blur < 0.1)
    off = (again - stored).abs()
    far = off > 0.02 + 1e-3 * stored.abs() + 5 * blur
    return far, off <= 1e-4 * (1 + stored.abs()) + 5 * blur, told, again


FEWEST_DRAWN = 16


def cut_at(action, wrong):
    """The values at which actions were cut; "" where the wrong ones are not alike."""
    whole = wrong.reshape(*wrong.shape, *[1] * (action.ndim - wrong.ndim)).expand_as(action)
    values = action[whole]
    ends = sorted({float(end) for end in (action.min(), action.max())})
    met = [end for end in ends if int((values == end).sum()) >= FEWEST_AT_A_CUT]
    lines = action[wrong].reshape(int(wrong.sum()), -1)
    there = torch.stack([(lines == end).any(-1) for end in ends]).any(0)
    return " and ".join(f"{end:.3g}" for end in met) if there.double().mean() > 0.9 else ""


FEWEST_AT_A_CUT = 3


def is_noisy(module):
    """Whether a module adds noise of its own: in its weights, or as dropout in training mode."""
    return "weight_sigma" in module._parameters or (isinstance(module, DROPOUT) and module.training)


@check("one_environment_for_both", "Evaluation steps the training one", f"{SETTINGS}#evaluation")
def one_environment_for_both(eval_env, env):
    if eval_env is env:
        return applies("eval_env is env: each evaluation resets the episodes of the collector")
    if common := innermost(env).keys() & innermost(eval_env).keys():
        kind = type(innermost(env)[common.pop()]).__name__
        return applies(f"both have one and the same {kind} inside: evaluation resets it")
    return clear("two environments")


def innermost(env):
    """The environments below transforms, and what these wrap, by id."""
    leaf = below_transforms(env)
    found = [*(vars(leaf).get("_envs") or [leaf])]
    found += [getattr(inner, "unwrapped", inner) for inner in map(wrapped_by, found)]
    return {id(one): one for one in found if one is not None}


@check("buffer_below_a_sample", "The buffer is smaller than a sample", f"{SETTINGS}#buffer")
def buffer_below_a_sample(replay_buffer, collector=None, since=None, loss_module=None):
    size, drawn = getattr(replay_buffer.storage, "max_size", None), replay_buffer.batch_size
    in_slices = hasattr(replay_buffer.sampler, "slice_len")
    if None in (size, drawn) or in_slices or getattr(replay_buffer.storage, "ndim", 1) > 1:
        return None
    if size < drawn:
        return applies(f"the storage holds {size} rows, a sample has {drawn}")
    frames = getattr(collector, "requested_frames_per_batch", None)
    row = replay_buffer.storage.get(0) if len(replay_buffer) else None
    if frames and frames > size and getattr(row, "ndim", 1) == 0:
        return applies(f"the storage holds {size} rows, a batch of the collector has {frames}")
    if frames == size and getattr(row, "ndim", 1) == 0 and has_targets(loss_module):
        said = f"the storage holds {size} rows, as many as a batch of the collector"
        return applies(f"{said}: nothing older is replayed")
    if 0 < len(replay_buffer) < drawn and since and since.updates("loss_module"):
        return applies(f"the loss learned from samples of {drawn} of {len(replay_buffer)} rows")
    return clear(f"{size} rows for samples of {drawn}")


def has_targets(loss_module):
    """Whether a loss has target networks, as those have that learn from old rows."""
    children = getattr(loss_module, "named_children", list)()
    return any(name.startswith("target_") for name, _ in children)


@check("collector_fills_another_buffer", "The collector fills another buffer", f"{SETTINGS}#buffer")
def collector_fills_another_buffer(collector, replay_buffer):
    own = getattr(collector, "replay_buffer", None)
    if own is None:
        return None
    if own is not replay_buffer:
        return applies("collector.replay_buffer is not the buffer that you sample")
    return clear("it fills the buffer that you sample")


@check("advantages_are_constant", "The advantage teaches nothing", f"{SETTINGS}#the-advantage")
def advantages_are_constant(own_batch, loss_module=None, value_estimator=None):
    rows = batches_of(own_batch)[-1]
    values = rows.get(value_key("advantage", loss_module, value_estimator), None)
    if values is None or values.numel() < FEWEST_ADVANTAGES or not values.isfinite().all():
        return None
    low, high = float(values.min()), float(values.max())
    if high - low <= 1e-6 * max(abs(low), abs(high)):
        return applies(f"the advantage is {low:.3g} in each of {values.numel()} rows")
    target, value = (
        rows.get(value_key(name, loss_module, value_estimator), None)
        for name in ("value_target", "value")
    )
    if target is not None and value is not None and target.shape == value.shape == values.shape:
        pair = torch.stack([values.flatten(), (target - value).flatten()])
        if type(value_estimator).__name__ == "GAE" and (alike := pair.corrcoef()[0, 1]) < -0.5:
            return applies(f"the advantage goes against value_target - value: {alike:.2f}")
    middle = float(values.abs().median())
    if middle > LARGE_ADVANTAGE:
        return applies(f"half of the advantages are larger than {middle:.3g}: scale or normalize")
    return clear(f"advantages from {low:.3g} to {high:.3g}")


FEWEST_ADVANTAGES, LARGE_ADVANTAGE = 16, 1e4


@check("advantages_mix_agents", "The advantages mix the agents", f"{SETTINGS}#the-advantage")
def advantages_mix_agents(loss_module, own_batch=None, sample=None, value_estimator=None):
    if not learns_on_policy(loss_module):
        return None
    last = batches_of(own_batch)[-1] if own_batch is not None else None
    found = []
    for rows in (sample, last):  # a loss gets samples where there are any
        values, agents = advantage_of_agents(rows, loss_module, value_estimator)
        if values is not None:
            if not found:
                found.append(mixed_in_loss(values, rows, agents, loss_module, rows is sample))
            found.append(mixed_in_rows(values, rows, agents, loss_module, value_estimator))
    found = [one for one in found if one is not None]
    return min(found, key=by_weight, default=None)


def by_weight(verdict):
    return (APPLIES, UNDECIDED, CLEAR).index(verdict.state)


def advantage_of_agents(rows, loss_module, value_estimator):
    """The advantage of rows, with the agents in the last dimension but one, and their number."""
    nothing = None, 0
    if rows is None or hasattr(rows, "tensordicts"):
        return nothing
    values = rows.get(value_key("advantage", loss_module), None)
    paid = get_next(rows, value_key("reward", loss_module, value_estimator))
    key = value_key("action", loss_module)
    group = rows.get(key[:-1], None) if isinstance(key, tuple) and len(key) > 1 else None
    shape = paid.shape[:-1] if isinstance(paid, torch.Tensor) else ()
    if len(shape) != rows.ndim + 1:
        shape = getattr(group, "batch_size", ())
    if len(shape) != rows.ndim + 1 or shape[-1] < 2 or not isinstance(values, torch.Tensor):
        return nothing
    if values.numel() < FEWEST_ADVANTAGES or not values.isfinite().all():
        return nothing
    return values.detach().double(), shape[-1]


def mixed_in_loss(values, rows, agents, loss_module, drawn):
    """Whether the loss normalizes what the agents of a row have, alone or with other rows."""
    left_out = tuple(getattr(loss_module, "normalize_advantage_exclude_dims", None) or ())
    if not getattr(loss_module, "normalize_advantage", False) or rows.numel() < 2:
        return None
    kept = {dim % values.ndim for dim in left_out}
    over = [dim for dim in range(values.ndim) if dim not in kept and values.shape[dim] > 1]
    said = f"normalize_advantage_exclude_dims={left_out}"
    if not drawn and any(dim >= 0 for dim in left_out):
        return undecided(f"{said}: give replay_buffer=, to see the shape that the loss gets")
    if values.shape[-2:] != (agents, 1) or values.ndim - 2 not in over:
        return None
    if over == [values.ndim - 2]:
        shape = tuple(values.shape)
        found = f"{said} compares the {agents} agents of a row with each other, of shape {shape}"
        return applies(found, fix="normalize_advantage_exclude_dims=(-2,)")
    spread = values.reshape(-1, agents).std(0)
    if 0 < float(spread.min()) < float(spread.max()) / OTHER_SCALE:
        ends = f"{float(spread.min()):.2g} to {float(spread.max()):.2g}"
        return undecided(f"{said} and advantages of agents with deviations from {ends}: meant?")
    return None


OTHER_SCALE = 20


def mixed_in_rows(values, rows, agents, loss_module, value_estimator):
    """What the advantages tell, beside the value targets that they are made of; None if little."""
    target, value = (
        rows.get(value_key(name, loss_module, value_estimator), None)
        for name in ("value_target", "value")
    )
    shapes = {
        name: tuple(one.shape)
        for name, one in {"value_target": target, "state_value": value}.items()
        if isinstance(one, torch.Tensor)
    }
    if len({*shapes.values()}) > 1:
        both = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        return applies(f"of {agents} agents: {both}")
    wide = (*rows.batch_size, agents, 1)
    if values.shape != wide or set(shapes.values()) != {wide} or len(shapes) < 2:
        return None
    raw = (target - value).detach().double()
    size, of_raw = (float(one.abs().mean()) for one in (values, raw))
    middle, of_each = values.mean(-2, keepdim=True), raw.mean(-2, keepdim=True)
    if not size or not of_raw:
        return None
    differ = float((raw - of_each).abs().mean()) > SOME_OF_IT * of_raw
    if float(middle.abs().max()) < NONE_OF_IT * size and float(of_each.abs().mean()) > (
        SOME_OF_IT * of_raw
    ):
        said = f"in each of {rows.numel()} rows the advantages of {agents} agents sum to zero"
        return applies(f"{said}: they are normalized over the agents")
    if float((values - middle).abs().max()) < NONE_OF_IT * size and differ:
        said = f"in each of {rows.numel()} rows {agents} agents have one advantage"
        paid = get_next(rows, value_key("reward", loss_module, value_estimator))
        if paid.shape == wide and float((paid - paid.mean(-2, keepdim=True)).abs().max()) > 1e-6:
            return applies(f"{said}, and their rewards and values differ")
        return undecided(f"{said}, and their values differ: is it meant to be a mean?")
    if not differ:
        return None  # a mean over them would be the same
    return clear(f"{agents} agents have advantages of their own")


NONE_OF_IT, SOME_OF_IT = 1e-4, 1e-2


SHAPED_ALIKE = ("GAE", "TD0Estimator", "TD1Estimator", "TDLambdaEstimator", "VTrace")


@check("estimator_reads_two_shapes", "Reward, value and done have two shapes", f"{SETTINGS}#shapes")
def estimator_reads_two_shapes(
    value_estimator=None, batch=None, error=None, loss_module=None, sample=None
):
    raised = "must share a unique shape" in str(error)
    of_loss = raised and value_estimator is None  # which has an estimator of its own
    if not of_loss and type(value_estimator).__name__ not in SHAPED_ALIKE:
        return None
    batch = sample if of_loss and sample is not None else batch
    names = ("reward", "done", "terminated")
    shapes = {}
    rows = batches_of(batch)[-1] if batch is not None else None
    for name in names:
        key = value_key(name, loss_module if of_loss else None, value_estimator)
        if (one := get_next(rows, key)) is not None:
            shapes[name, key] = tuple(one.shape)
    key = value_key("value", None, value_estimator)
    if rows is not None and (value := rows.get(key, None)) is not None:
        shapes["value", key] = tuple(value.shape)
    said = ", ".join(f"{name} {key!r} {shape}" for (name, key), shape in shapes.items())
    if len(set(shapes.values())) > 1:
        flat = {one[:-1] if one[-1:] == (1,) else one for one in shapes.values()}
        guess = (
            "one lacks the last dimension"
            if len(flat) == 1
            else "a group of agents has a reward for each?"
        )
        return applies(f"{said}: {guess}")
    if raised:
        keys = ", ".join(f"{name}={value_key(name, None, value_estimator)!r}" for name in names)
        return applies(f"the estimator reads {keys} and found two shapes: one of agents?")
    return clear(said) if len(shapes) > 2 else None


@check("old_batches_stay", "An on-policy buffer keeps old batches", f"{SETTINGS}#old-batches")
def old_batches_stay(replay_buffer, loss_module, own_batch, eval_env=None):
    if eval_env is not None and rolled_out_by_hand(own_batch):
        return None  # it may be of an evaluation
    storage, rows = replay_buffer.storage, batches_of(own_batch)[-1].numel()
    if not learns_on_policy(loss_module) or transforms_of(replay_buffer):
        return None
    held = len(replay_buffer)
    if held > rows and getattr(storage, "ndim", 1) == 1:
        return applies(f"{held} rows stay in the buffer, and a batch has {rows}")
    return None


@check("group_of_one", "The group of GRPO has one answer", f"{SETTINGS}#out-of-range")
def group_of_one(replay_buffer):
    for one in transforms_of(replay_buffer):
        if type(one).__name__ == "MCAdvantage":
            size = getattr(one, "grpo_size", None)
            if size == 1:
                return applies("grpo_size=1: an answer alone has an advantage of zero")
            return clear(f"grpo_size={size}")
    return None
