"""Checks: recurrent state."""

from __future__ import annotations

import contextvars
import copy
import re

import torch

from torchrl_doctor.objects import (
    below_transforms,
    goes_on,
    in_time,
    in_words,
    is_sliced,
    pieces,
    recurrent_modules,
    slice_length,
    states,
    stored_leaf,
    transforms_of,
)
from torchrl_doctor.private import private
from torchrl_doctor.verdicts import applies, check, clear, undecided


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


DEFAULT_STATES = "recurrent_state_h", "recurrent_state_c", "recurrent_state"


def flag(batch, key):
    """A flag as one bool for each step, or None."""
    value = batch.get(key, None)
    return None if value is None else value.reshape(*batch.shape, -1).bool().any(-1)


@check("lstm_forgets_every_step", "The LSTM forgets everything between steps")
def lstm_forgets_every_step(batch, policy, env=None):
    modules = recurrent_modules(policy)
    hidden, batches = state_keys(modules), in_time(batch)
    if not hidden or not batches:
        return None
    if carried(hidden, env):
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
def lstm_outputs_change_after_done(batch, policy, replay_buffer=None):
    batches = in_time(batch) if recurrent_modules(policy) else []
    if batches and (ends := ends_without_a_beginning(replay_buffer)) > 1:
        return applies(f"{ends} episodes end in the buffer, and is_init is False in each row of it")
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
        return applies(f"is_init is False after {unmarked} of {ends} ends: the state goes on")
    if unmarked:
        return undecided(f"is_init is False after {unmarked} of {ends} ends: the state goes on")
    return clear(f"is_init follows {ends} ends") if ends else None


def ends_without_a_beginning(replay_buffer):
    """How many ends are stored; 0 where a stored row is the first of its episode."""
    start, done = (stored_leaf(replay_buffer, key) for key in ("is_init", ("next", "done")))
    return 0 if start is None or done is None or start.any() else int(done.sum())


@check(
    "lstm_learns_nothing_from_the_past", "The LSTM acts on its memory but never learns to use it"
)
def lstm_learns_nothing_from_the_past(loss_module, batch, sample=None):
    from torchrl.objectives import LossModule

    batches = in_time(batch)
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
def critic_ignores_the_past_in_gae(value_estimator, batch, since=None, env=None):
    from torchrl.modules import set_recurrent_mode

    batches, keys = in_time(batch), getattr(value_estimator, "tensor_keys", None)
    critic = getattr(value_estimator, "value_network", None)
    if not recurrent_modules(critic) or keys is None:
        return None
    if not batches:
        return None
    modes = since.seen("modes of the estimator") if since else None
    stored = any(
        batches[0].get(key, None) is not None for key in state_keys(recurrent_modules(critic))
    )
    if modes == {False} and not stored:
        return applies("the estimator took single steps, and the batch has no state of the critic")
    if modes == {True}:
        return clear("the estimator was called in recurrent mode")
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
    of_env = carried(state_keys(recurrent_modules(critic)), env)  # the batch may have lost them
    if not of_env and forgets_all(value_estimator, batches[0]):
        return applies("a step has the value that its observation had as the next one")
    return undecided("the weights have changed since, or the batch is another one")


def forgets_all(value_estimator, batch):
    """Whether values in the batch depend on one observation, whatever the weights are by now.

    Where the sequences of root and next begin with one step more or less, memory tells them apart.
    """
    key, critic = value_estimator.tensor_keys.value, value_estimator.value_network
    now, after = batch.get(key, None), batch.get(("next", key), None)
    hidden = state_keys(recurrent_modules(critic))
    stored = any(batch.get(one, None) is not None for one in hidden)
    done = flag(batch, ("next", "done"))
    if stored or now is None or after is None or getattr(value_estimator, "shifted", False):
        return False
    width = (*batch.shape, -1)
    same = torch.isclose(now.reshape(width)[..., 1:, :], after.reshape(width)[..., :-1, :])
    same = same.all(-1)[~done[..., :-1]]
    return len(same) > 0 and bool(same.all())


@check("lstm_outputs_differ_in_slices", "LSTM outputs in slices differ from the collected ones")
def lstm_outputs_differ_in_slices(
    policy, replay_buffer=None, sample=None, own_batch=None, env=None
):
    hidden = state_keys(recurrent_modules(policy))
    if hidden and own_batch is not None and (lost := began_inside(own_batch, hidden, env)):
        return applies(lost)
    marks = None if sample is None else flag(sample, "is_init")
    if not hidden or marks is None or not hasattr(replay_buffer.sampler, "slice_len"):
        return None
    if (state := sample.get(hidden[0], None)) is not None:
        if (~marks).any() and not state[~marks].any():
            found = f"{hidden[0]} is zero in each of {int((~marks).sum())} rows inside an episode"
            return applies(f"{found}: nothing was stored that the policy remembered")
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


def carried(hidden, env):
    """Whether an environment carries these hidden states from step to step."""
    return env is not None and set(hidden) <= set(env.observation_spec.keys(True))


def began_inside(batch, hidden, env):
    """How many sequences begin inside an episode, without the hidden states that there were."""
    for rows in in_time(batch) if carried(hidden, env) else ():
        start = flag(rows, "is_init")
        if start is None or any(rows.get(key, None) is not None for key in hidden):
            continue
        if inside := int((~start[..., 0]).sum()):
            said = f"{inside} of {start[..., 0].numel()} sequences begin inside an episode"
            return f"{said}, and the batch has lost {hidden[0]}, which the environment carries"
    return None


@check("burn_in_works_once", "Burn-in works for the first sample only")
def burn_in_works_once(replay_buffer):
    from torchrl.envs.transforms import BurnInTransform

    burns = [t for t in transforms_of(replay_buffer) if isinstance(t, BurnInTransform)]
    modules = [m for t in burns for part in t.modules for m in recurrent_modules(part)]
    if not modules:
        return None
    if not private(replay_buffer, "_prefetch", False):
        return clear("the buffer does not prefetch")
    # A thread begins with an empty context.
    modes = [contextvars.Context().run(lambda m=m: m.recurrent_mode) for m in modules]
    if all(modes):
        return clear("the modules read sequences by default")
    return applies(f"{modes.count(False)} modules take single steps in the threads of prefetch")


@check("next_hidden_state_is_zero", 'The hidden state under "next" is zero in every step')
def next_hidden_state_is_zero(policy, batch=None, sample=None):
    hidden = state_keys(recurrent_modules(policy))
    rows = in_time(batch) if batch is not None else []
    rows += [sample] if sample is not None else []  # a copy of a collector may leave them out
    pairs = [pair for one in rows for pair in states(one, hidden)]
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
def environments_share_one_memory(batch=None, policy=None, error=None, own_batch=None):
    if isinstance(error, ValueError) and "(recurrent_mode=True) requires the" in str(error):
        return applies("the policy is called in recurrent mode on a single step")
    hidden, batches = state_keys(recurrent_modules(policy)), in_time(batch)
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
    if own_batch is None:  # a copy collects one step at a time, whatever the loop does
        return undecided("give a batch of your own: does the loop collect in recurrent mode?")
    return clear(f"the first environment has a state in {steps - alone} of {steps} steps")


@check("is_init_not_found", 'KeyError "is_init" when an LSTM policy runs')
def is_init_not_found(policy=None, env=None, error=None, batch=None):
    if isinstance(error, KeyError) and "is_init" in str(error):
        return applies("the error names is_init, which InitTracker writes")
    if env is None or not recurrent_modules(policy):
        return None
    if "is_init" in env.observation_spec:
        return clear("the environment writes is_init")
    if any(one.get("is_init", None) is not None for one in in_time(batch)):
        return clear("the batch holds is_init")
    if not in_time(batch):
        return undecided("nothing was collected with this policy; give batch=")
    return applies("the policy reads is_init, and the environment does not write it")


@check("gae_raises_with_lstm", "GAE raises with an LSTM critic but works with others")
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
    if type(below_transforms(env)).__name__ != "ParallelEnv" or not hidden:
        return None
    absent = set(hidden) - set(env.observation_spec.keys(True))
    if any(one.get(hidden[0], None) is not None for one in in_time(batch)):
        return clear("the batch holds a hidden state")
    if absent:
        return applies(f"no spec of the environment names {sorted(map(str, absent))[0]}")
    return clear("the specs name the hidden state")


@check("next_states_vanish_after_one_use", "Hidden states vanish from the batch after one use")
def next_states_vanish_after_one_use(own_batch, policy):
    hidden = state_keys(recurrent_modules(policy))
    pairs = [(one, *pair) for one in in_time(own_batch) for pair in states(one, hidden)]
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
