"""The smallest fix as code, with the names that the reader has for the objects."""

from __future__ import annotations

import inspect
import re

from torchrl_doctor.objects import exploration_modules, recurrent_modules

NO_NOISE = "with set_exploration_type(ExplorationType.DETERMINISTIC):"
AFTER = "# after each optimizer.step()"

# By the name of a symptom: code in which objects have the names of the arguments of `diagnose`.
CODES = {
    "actions_and_bounds_differ": "space = env.action_spec_unbatched.space\n"
    'distribution_kwargs={"low": space.low, "high": space.high}',
    "actions_stay_noisy": "policy.eval()  # before the collection\n"
    "policy.train()  # before the loss",
    "advantage_has_a_graph": "with torch.no_grad():\n    value_estimator(batch)",
    "advantages_look_like_noise": "value_estimator(batch)  # before rows are drawn of it",
    "collector_keeps_its_own_policy": f"collector.update_policy_weights_()  {AFTER}",
    "critic_ignores_the_past_in_gae": "with set_recurrent_mode(True):\n    value_estimator(batch)",
    "evaluation_collector_explores": "exploration_type=ExplorationType.DETERMINISTIC",
    "evaluation_takes_random_actions": f"{NO_NOISE}\n    eval_env.rollout(1000, policy)",
    "gradients_are_never_zeroed": f"optimizer.zero_grad()  {AFTER}",
    "is_init_not_found": "env.append_transform(InitTracker())",
    "no_episode_ends": "env.append_transform(StepCounter(max_steps=1000))",
    "old_batches_stay": "replay_buffer.empty()  # before each replay_buffer.extend(batch)",
    "part_of_the_loss_is_frozen": "loss_module.requires_grad_(True)",
    "prioritized_replay_draws_evenly": "replay_buffer.update_tensordict_priority(sample)"
    "  # after loss_module(sample)",
    "q_values_stop_improving": "target_updater = SoftUpdate(loss_module, tau=0.005)\n"
    f"target_updater.step()  {AFTER}",
    "script_never_ends": "collector.shutdown()",
    "target_updater_never_steps": f"target_updater.step()  {AFTER}",
    "types_of_floats_differ": "env.append_transform(DoubleToFloat())",
    "workers_act_alike": "collector.set_seed(0)  # before the first batch",
}


def way_to(module, root, name):
    """How to get at a module inside of sequences of modules, ``policy[0][1]`` say; else None."""
    if root is module:
        return name
    inner = getattr(root, "module", None)
    if not hasattr(root, "__getitem__") or not hasattr(inner, "__len__"):
        return None
    found = (way_to(module, one, f"{name}[{n}]") for n, one in enumerate(inner))
    return next(filter(None, found), None)


def annealed(given):
    """The module whose noise goes down is stepped once for each batch."""
    modules = exploration_modules(given.get("policy"))
    place = way_to(modules[0], given["policy"], "policy") if modules else None
    return place and f"{place}.step(batch.numel())  # once for each batch"


def primed(given):
    """The environment carries the hidden state of the first recurrent module."""
    modules = recurrent_modules(given.get("policy"))
    place = way_to(modules[0], given["policy"], "policy") if modules else None
    return place and f"env.append_transform({place}.make_tensordict_primer())"


def of_the_loss(given):
    """An optimizer of PyTorch anew, with the parameters of the loss; None of another library."""
    optimizer = given.get("optimizer")
    if optimizer is None or isinstance(optimizer, list):
        return None
    kind, rate = type(optimizer), optimizer.param_groups[0].get("lr")
    if rate is None or not kind.__module__.startswith("torch.optim."):
        return None
    made = f"torch.optim.{kind.__name__}"
    return f"optimizer = {made}(loss_module.parameters(), lr={float(rate):g})"


MADE = {
    "epsilon_never_goes_down": annealed,
    "lstm_forgets_every_step": primed,
    "optimizer_trains_others": of_the_loss,
}


def code_of(slug, given):
    """The fix of a symptom as code; None where it depends on more than the objects."""
    made = MADE.get(slug)
    return made(given) if made else CODES.get(slug)


def names_of_reader(named):
    """By argument the variable that holds it where the doctor was called, if there is one.

    Where several hold it, one that has the name of the argument, or else the first. Of a list of
    objects, no code has the name.
    """
    frame = inspect.currentframe()
    while frame is not None and of_the_doctor(frame.f_globals):
        frame = frame.f_back
    if frame is None:
        return {}
    places = [frame.f_locals, frame.f_globals]
    found = {}
    for argument, value in named.items():
        names = [n for place in places for n, one in place.items() if one is value]
        names = [name for name in names if name.isidentifier() and not name.startswith("_")]
        if value is not None and names and not isinstance(value, (list, tuple, dict)):
            found[argument] = argument if argument in names else names[0]
    return found


def of_the_doctor(names):
    """Whether the global names of a frame are those of the doctor."""
    own = __name__.partition(".")[0]
    return names is globals() or str(names.get("__name__")).partition(".")[0] == own


def in_names(code, names):
    """The code with the reader's names in place of those of the arguments.

    In a comment, a name is one with a dot or a bracket behind it.
    """

    def renamed(one):
        line = code[code.rfind("\n", 0, one.start()) + 1 : one.start()]
        is_word = "#" in line and code[one.end() : one.end() + 1] not in (".", "(")
        return one[0] if is_word else names.get(one[0], one[0])

    return re.sub(r"(?<![.\w])[a-z_]+\b(?!=)", renamed, code)
