"""One rollout of a collector, call by call, for the page on collector internals.

The loop is torchrl's own. The functions that it calls are replaced by ones that call the original
and note which objects went in and came out. Each order is asserted, so a torchrl that casts or
waits elsewhere stops this script.
"""

import contextlib
import functools
import inspect
import io
import json
import sys
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import matplotlib as mpl
import torch
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from tensordict import LazyStackedTensorDict, TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv
from torchrl.envs.utils import exploration_type
from torchrl.modules import Actor, RandomPolicy

STEPS = 3
LOOP = inspect.unwrap(Collector.rollout).__code__
AROUND = inspect.unwrap(Collector.iterator).__code__
INK = "#010203"
COLORS = {"A": "#1f80c4", "B": "#d1661f", "C": "#2f9458", "D": "#b0589f", "E": "#8a7a2f"}


# -- Watching ----------------------------------------------------------------


class Balance(torch.nn.Module):
    """Push the cart to where the pole leans, as a one-hot action."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([0.0, 0.0, 1.0, 0.0]))
        self.seen = []

    def forward(self, observation):
        self.seen.append((exploration_type(), torch.is_grad_enabled()))
        return torch.nn.functional.one_hot((observation @ self.weight > 0).long(), 2)


def make_env():
    env = GymEnv("CartPole-v1")
    env.set_seed(0)
    return env


def make_collector(policy=..., env=None, **options):
    if policy is ...:
        policy = TensorDictModule(Balance(), in_keys=["observation"], out_keys=["action"])
    return Collector(
        env or make_env(),
        policy,
        frames_per_batch=STEPS,
        total_frames=2 * STEPS,
        # The default warns that the environment has no InitTracker; this policy needs none.
        auto_register_policy_transforms=False,
        **options,
    )


class Watch:
    """What the loop of one collector calls, in order: ``(name, arguments, result)``."""

    def __init__(self, collector):
        self.collector = collector
        self.calls = []
        self.stack = contextlib.ExitStack()

    def note(self, name, args=(), result=None, kept=0):
        """*at* is the carrier of this moment, *kept* the number of rows in the loop's list."""
        # The calls hold on to the objects: no two of them can share an id.
        at = self.collector._carrier
        self.calls.append(SimpleNamespace(name=name, args=args, result=result, at=at, kept=kept))

    def replace(self, owner, name, static=False):
        """Note each call of ``owner.name`` that the loop, or what surrounds it, makes."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(*args, **kwargs):
            result = original(*args, **kwargs)
            frame = sys._getframe(1)
            if frame.f_code in (LOOP, AROUND):
                kept = len(frame.f_locals.get("tensordicts", ()))
                self.note(name, args, result, kept)
            return result

        new = staticmethod(watched) if static else watched
        self.stack.enter_context(mock.patch.object(owner, name, new))

    def __enter__(self):
        collector = self.collector
        for name in ("to", "update", "set", "exclude", "copy", "clear_device_", "fill_", "clone"):
            self.replace(TensorDict, name)
        for name in ("step_and_maybe_reset", "rand_action", "reset"):
            self.replace(type(collector.env), name)
        for name in ("_sync_policy", "_sync_env", "_sync_storage"):
            self.replace(collector, name)
        for name in ("_should_use_random_frames", "_update_traj_ids", "_start_new_trajectories"):
            self.replace(collector, name)
        for name in ("rollout", "_maybe_set_truncated", "_increment_frames", "_postproc"):
            self.replace(collector, name)
        self.replace(sys.modules[Collector.__module__], "set_exploration_type")
        self.replace(torch, "stack")
        self.replace(TensorDict, "maybe_dense_stack", static=True)
        self.replace(LazyStackedTensorDict, "lazy_stack", static=True)
        if collector.replay_buffer is not None:
            self.replace(collector.replay_buffer, "add")
            self.replace(collector.replay_buffer, "extend")
        if collector.interruptor is not None:
            self.replace(collector.interruptor, "collection_stopped")
        collector.pre_collect_hook = lambda: self.note("pre_collect_hook")
        collector.post_collect_hook = lambda batch: self.note("post_collect_hook", (batch,))
        hook = collector._wrapped_policy.register_forward_hook(
            lambda module, args, result: self.note("policy", args, result)
        )
        self.stack.callback(hook.remove)
        return self

    def __exit__(self, *raised):
        return self.stack.__exit__(*raised)


def watched_batch(collector):
    """Everything that happens while *collector* delivers its first batch."""
    with Watch(collector) as watch:
        batch = next(iter(collector))
        watch.note("yield", (batch,))
    collector.shutdown()
    return watch.calls


# -- One step ----------------------------------------------------------------

# What one step can do, in the order of 0.14.1: label in the figure, then call and condition.
METHOD = ":source:`{0} <torchrl.collectors.Collector.{0}>`"
STEP = {
    "branch": ("policy or random?", METHOD.format("_should_use_random_frames"), "always"),
    "policy cast": (
        "cast for policy",
        "``carrier.to(policy_device)``",
        METHOD.format("_cast_to_policy_device") + " and ``policy_device`` is set",
    ),
    "_sync_policy": (
        "sync for policy",
        METHOD.format("_sync_policy"),
        "after that cast, unless ``no_cuda_sync``",
    ),
    "policy": ("policy", "the policy", "no random frame is due"),
    "update": (
        "update carrier",
        "``carrier.update(policy_output)``",
        "the policy returned another object than the carrier",
    ),
    "env cast": (
        "cast for env",
        "``carrier.to(env_device)``",
        METHOD.format("_cast_to_env_device") + " and ``env_device`` is set",
    ),
    "_sync_env": (
        "sync for env",
        METHOD.format("_sync_env"),
        "after that cast, unless ``no_cuda_sync``",
    ),
    "env": (
        "environment step",
        ":source:`step_and_maybe_reset <torchrl.envs.EnvBase.step_and_maybe_reset>`",
        "always",
    ),
    "set next": (
        "set next",
        '``carrier.set("next", ...)``',
        "the environment returned another object than the carrier",
    ),
    "compact": ("drop next obs", "``carrier.exclude(...)``", "``compact_obs=True``"),
    "keep": (
        "keep the row",
        "``tensordicts.append(...)``",
        "always, after ``row.to(storing_device)`` if one is set;"
        " a direct write calls ``replay_buffer.add(row)`` instead, without this cast",
    ),
    "_sync_storage": (
        "sync for storage",
        METHOD.format("_sync_storage"),
        "``storing_device`` is set, unless ``no_cuda_sync`` or a direct write",
    ),
    "advance": (
        "advance",
        "``_carrier = env_next_output``",
        "always; it is the second result of the environment step",
    ),
    "_update_traj_ids": (
        "trajectory ids",
        METHOD.format("_update_traj_ids"),
        "``track_traj_ids=True``",
    ),
    "collection_stopped": (
        "interrupted?",
        ":source:`collection_stopped"
        " <torchrl.collectors._constants._Interruptor.collection_stopped>`",
        "there is an ``interruptor``",
    ),
}


def one_step(calls):
    """The second step among *calls* as ``{name: (object before, object after)}``, in order."""
    starts = [n for n, call in enumerate(calls) if call.name == "_should_use_random_frames"]
    assert len(starts) == STEPS, f"{len(starts)} steps instead of {STEPS}"
    step, found, stepped = calls[starts[1] : starts[2]], {}, None

    def add(name, before, after):
        assert name not in found, f"{name} twice in one step"
        found[name] = (before, after)

    for call in step:
        first = call.args[0] if call.args else None
        match call.name:
            case "_should_use_random_frames":
                add("branch", call.at, call.at)
            case "to":
                device = torch.device(call.args[1])
                if stepped:
                    add("keep", first, call.result)
                elif "policy" in found:
                    add("env cast", first, call.result)
                else:
                    add("policy cast", first, call.result)
                assert call.result.device == device, f"{call.name} gave {call.result.device}"
            case "policy":
                add("policy", first, call.result)
            case "update":
                add("update", call.args[1], first)
            case "step_and_maybe_reset":
                stepped = call
                add("env", call.args[1], call.result[0])
            case "set" if call.args[1] == "next":
                add("set next", stepped.result[0], first)
            case "exclude":
                add("compact", first, call.result)
            case "clone":
                add("clone", first, call.result)
            case "copy":
                # The trajectory ids leave the old carrier just before it is replaced.
                if "keep" not in found:
                    row = found.get("compact", (None, call.at))[1]
                    add("keep", row, row)
                add("advance", call.at, stepped.result[1])
            case "clear_device_" | "set":
                pass  # part of "set next" and of "advance"
            case "_update_traj_ids":
                assert call.at is stepped.result[1], "the carrier is not the env's second result"
                add("_update_traj_ids", call.at, call.at)
            case _:
                if call.name == "_sync_storage":
                    assert call.kept == 2, "the row is not in the list when the loop waits for it"
                add(call.name, call.at, call.at)
    return found


def named(step):
    """*step* with the letters A, B, C for its objects, in the order in which they appear."""
    letters = {}

    def letter(thing):
        return letters.setdefault(id(thing), "ABCDEF"[len(letters)])

    return {name: (letter(before), letter(after)) for name, (before, after) in step.items()}


# -- Three configurations ----------------------------------------------------


def all_defaults():
    return make_collector()


def explicit_cpu():
    return make_collector(device="cpu")


def three_devices(**options):
    """Three names of the CPU, which the loop takes for three devices."""
    places = {"policy_device": "cpu:0", "env_device": "cpu:1", "storing_device": "cpu:2"}
    return make_collector(**places, **options)


CONFIGURATIONS = {
    "all defaults": all_defaults,
    'device="cpu"': explicit_cpu,
    "three devices": three_devices,
}


class Never:
    """An interruptor that never stops the collection."""

    def collection_stopped(self):
        return False


def everything():
    """Each call that a step can make, for its place in the order."""
    options = {"compact_obs": True, "interruptor": Never()}
    return three_devices(**options)


# The order of 0.14.1, and which object each call meets. A is the carrier at the start of the step.
EXPECTED = {
    "all defaults": {
        "branch": "AA",
        "policy": "AA",
        "env": "AA",
        "keep": "AA",
        "advance": "AB",
        "_update_traj_ids": "BB",
    },
    'device="cpu"': {
        "branch": "AA",
        "policy": "AA",
        "env": "AA",
        "keep": "AA",
        "_sync_storage": "AA",
        "advance": "AB",
        "_update_traj_ids": "BB",
    },
    "three devices": {
        "branch": "AA",
        "policy cast": "AB",
        "_sync_policy": "AA",
        "policy": "BB",
        "update": "BA",
        "env cast": "AC",
        "_sync_env": "AA",
        "env": "CC",
        "set next": "CA",
        "keep": "AD",
        "_sync_storage": "AA",
        "advance": "AE",
        "_update_traj_ids": "EE",
    },
}


def three_steps():
    """One step in each configuration, checked against the order that the page states."""
    steps = {}
    for title, make in CONFIGURATIONS.items():
        collector = make()
        calls = watched_batch(collector)
        found = one_step(calls)
        letters = named(found)
        if title == "three devices":
            check_devices(collector, found)
        expected = {name: tuple(pair) for name, pair in EXPECTED[title].items()}
        assert list(letters.items()) == list(expected.items()), (
            f"the step of {title} is not the one this page describes: {letters}"
        )
        assert [name for name in STEP if name in letters] == list(letters)
        (stack,) = (call for call in calls if call.name == "stack")
        assert stack.args[0][1] is found["keep"][1], "the batch is not stacked from the kept rows"
        assert calls[-1].args[0]["observation"].shape == (STEPS, 4)
        steps[title] = letters
    order = list(one_step(watched_batch(everything())))
    assert order == list(STEP), f"the calls of a step have another order: {order}"
    return steps


def check_devices(collector, step):
    """Three devices: each cast goes where its name says, and copies."""
    for name, device in (
        ("policy cast", collector.policy_device),
        ("env cast", collector.env_device),
        ("keep", collector.storing_device),
    ):
        before, after = step[name]
        assert after.device == device, f"{name} went to {after.device}"
        pointers = {thing["observation"].data_ptr() for thing in (before, after)}
        assert len(pointers) == 2, f"{name} did not copy"
    assert step["policy cast"][0].device is None, "the carrier has a device"


def step_table(steps):
    """The rows of the figure, for who reads them."""

    def cell(name, found):
        if name not in found:
            return "skipped"
        before, after = found[name]
        if name.startswith("_sync"):
            return "called"
        if name in ("update", "set next"):
            return f"{before} into {after}"
        if name == "keep" and before == after and "_sync_storage" in found:
            return f"{before} to {after}"
        return before if before == after else f"{before} to {after}"

    rows = [
        [label, text, *(cell(name, found) for found in steps.values())]
        for name, (label, text, _) in STEP.items()
    ]
    titles = [f"``{title}``" if "=" in title else title for title in steps]
    return {"columns": ["Step", "Call", *titles], "rows": rows}


def condition_table():
    """When each of these calls is made; the tests of the page compare."""
    return {"columns": ["Step", "Call", "Runs when"], "rows": [list(one) for one in STEP.values()]}


# -- The figure --------------------------------------------------------------


def draw(steps):
    """A lane for each object of a step, a line for each call; SVG."""
    settings = {"svg.fonttype": "none", "svg.hashsalt": "rollout_flow", "font.size": 11.4}
    colors = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**settings, **dict.fromkeys(colors, INK), "font.family": "sans-serif"})
        figure = Figure(figsize=(5.4, 5.2), layout="constrained")
        FigureCanvasSVG(figure)
        widths = [0.9 + len(lanes(found)) for found in steps.values()]
        panels = figure.subplots(1, len(steps), sharey=True, width_ratios=widths)
        for axes, (title, found), width in zip(panels, steps.items(), widths, strict=True):
            panel(axes, title, found, width)
        panels[0].set_yticks(range(len(STEP)), [label for label, *_ in STEP.values()])
        panels[0].set_ylim(len(STEP) - 0.4, -0.9)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return text.getvalue()


def lanes(found):
    return sorted({letter for pair in found.values() for letter in pair})


def panel(axes, title, found, width):
    places = {letter: n for n, letter in enumerate(lanes(found))}
    middle = (len(places) - 1) / 2
    axes.set(xlim=(middle - width / 2, middle + width / 2), xticks=[])
    axes.set_title(title.replace(" ", "\n"), fontsize="medium")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    rows = {letter: [] for letter in places}
    for row, name in enumerate(STEP):
        if name not in found:
            axes.text(middle, row, "–", ha="center", va="center")
            continue
        before, after = found[name]
        if name.startswith("_sync"):
            axes.plot([-0.4, len(places) - 0.6], [row, row], color=INK, linewidth=1.5)
            continue
        for letter in {before, after}:
            rows[letter].append(row)
        if before != after:
            ends = {"xy": (places[after], row), "xytext": (places[before], row)}
            arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.3, "mutation_scale": 10}
            axes.annotate("", **ends, arrowprops=arrow | {"shrinkA": 7, "shrinkB": 6})
    for letter, seen in rows.items():
        for above, below in pairwise(seen):
            ends = [above + 0.36, below - 0.36]
            axes.plot([places[letter]] * 2, ends, color=COLORS[letter], linewidth=1.2)
        for row in seen:
            look = {"ha": "center", "va": "center", "weight": "bold", "color": COLORS[letter]}
            axes.text(places[letter], row, letter, **look)


# -- Around the loop ---------------------------------------------------------

OUTSIDE = {
    "pre_collect_hook": "``pre_collect_hook``",
    "reset": "``env.reset``",
    "_start_new_trajectories": (
        ":source:`_start_new_trajectories <torchrl.collectors.Collector._start_new_trajectories>`"
    ),
    "fill_": "ids of ``_final_rollout`` to -1",
    "set_exploration_type": "``set_exploration_type``",
    "loop": "the loop",
    "add": "``replay_buffer.add``",
    "stack": "``torch.stack``",
    "maybe_dense_stack": "``maybe_dense_stack``",
    "lazy_stack": "``lazy_stack``",
    "_maybe_set_truncated": (
        ":source:`_maybe_set_truncated <torchrl.collectors.Collector._maybe_set_truncated>`"
    ),
    "_increment_frames": (
        ":source:`_increment_frames <torchrl.collectors.Collector._increment_frames>`"
    ),
    "_postproc": ":source:`_postproc <torchrl.collectors.Collector._postproc>`",
    "clone": "``clone``",
    "post_collect_hook": "``post_collect_hook``",
    "extend": "``replay_buffer.extend``",
    "yield": "``yield``",
}


def buffer():
    return ReplayBuffer(storage=LazyTensorStorage(10 * STEPS))


SITUATIONS = {
    "all defaults": dict,
    "``reset_at_each_iter``": lambda: {"reset_at_each_iter": True},
    "``use_buffers=False``": lambda: {"use_buffers": False},
    "``replay_buffer``": lambda: {"replay_buffer": buffer()},
    "``extend_buffer=False``": lambda: {"replay_buffer": buffer(), "extend_buffer": False},
}

AROUND_EXPECTED = {
    "all defaults": "pre_collect_hook fill_ set_exploration_type loop stack _maybe_set_truncated"
    " _increment_frames _postproc clone post_collect_hook yield",
    "``reset_at_each_iter``": "pre_collect_hook reset _start_new_trajectories fill_"
    " set_exploration_type loop stack _maybe_set_truncated _increment_frames _postproc clone"
    " post_collect_hook yield",
    "``use_buffers=False``": "pre_collect_hook set_exploration_type loop maybe_dense_stack"
    " _maybe_set_truncated _increment_frames _postproc clone post_collect_hook yield",
    "``replay_buffer``": "pre_collect_hook set_exploration_type loop lazy_stack"
    " _maybe_set_truncated _increment_frames _postproc post_collect_hook extend yield",
    "``extend_buffer=False``": "pre_collect_hook set_exploration_type loop add _increment_frames"
    " yield",
}


def around(calls):
    """What happens outside the steps, in order; what buffers need inside follows ``loop``."""
    first = next(n for n, call in enumerate(calls) if call.name == "_should_use_random_frames")
    last = max(n for n, call in enumerate(calls) if call.name == "_update_traj_ids")
    inside = [call.name for call in calls[first:last] if call.name in OUTSIDE]
    names = [call.name for call in calls[:first]] + ["loop", *dict.fromkeys(inside)]
    names += [call.name for call in calls[last + 1 :]]
    return [name for name in names if name not in ("rollout", "update", "set")]


def around_table():
    columns, yielded = {}, {}
    for title, options in SITUATIONS.items():
        calls = watched_batch(make_collector(**options()))
        columns[title] = names = around(calls)
        assert names == AROUND_EXPECTED[title].split(), f"{title}: {names}"
        yielded[title] = "``None``" if calls[-1].args[0] is None else "the batch"

    def cell(title, name):
        if name not in columns[title]:
            return "–"
        if title == "``extend_buffer=False``" and name in ("add", "_increment_frames"):
            return "each step"
        if name == "yield":
            return yielded[title]
        return str(columns[title].index(name) + 1)

    rows = [[text, *(cell(title, name) for title in SITUATIONS)] for name, text in OUTSIDE.items()]
    return {"columns": ["Call", *SITUATIONS], "rows": rows}


# -- What an option changes in a step ----------------------------------------

OPTIONS = {
    "``init_random_frames``": lambda: {"init_random_frames": STEPS},
    "``compact_obs=True``": lambda: {"compact_obs": True},
    "``track_traj_ids=False``": lambda: {"track_traj_ids": False},
    '``storing_device="cpu"``': lambda: {"storing_device": "cpu"},
    '``storing_device="cpu"``, ``no_cuda_sync=True``': lambda: {
        "storing_device": "cpu",
        "no_cuda_sync": True,
    },
    "``interruptor``": lambda: {"interruptor": Never()},
    "``replay_buffer``": lambda: {"replay_buffer": buffer()},
    "``replay_buffer``, ``extend_buffer=False``": lambda: {
        "replay_buffer": buffer(),
        "extend_buffer": False,
    },
}
OPTIONS_EXPECTED = {
    "``init_random_frames``": (["rand_action"], ["policy"]),
    "``compact_obs=True``": (["exclude"], []),
    "``track_traj_ids=False``": ([], ["copy", "set", "_update_traj_ids"]),
    '``storing_device="cpu"``': (["to", "_sync_storage"], []),
    '``storing_device="cpu"``, ``no_cuda_sync=True``': (["to"], []),
    "``interruptor``": (["collection_stopped"], []),
    "``replay_buffer``": ([], []),
    "``replay_buffer``, ``extend_buffer=False``": (["add", "_increment_frames"], []),
}
SPELLED = {
    "rand_action": "``env.rand_action(carrier)``",
    "policy": "the policy",
    "exclude": "``carrier.exclude(...)``",
    "copy": "copying the ids",
    "set": "``carrier.set``",
    "_update_traj_ids": "``_update_traj_ids``",
    "to": "``carrier.to(storing_device)``",
    "_sync_storage": "``_sync_storage``",
    "collection_stopped": "``interruptor.collection_stopped()``",
    "add": "``replay_buffer.add(row)``",
    "_increment_frames": "``_increment_frames``",
}


def step_calls(options):
    """Names of the calls of the second step."""
    calls = watched_batch(make_collector(**options))
    starts = [n for n, call in enumerate(calls) if call.name == "_should_use_random_frames"]
    return [call.name for call in calls[starts[1] : starts[2]]]


def option_table():
    plain, rows = step_calls({}), []
    for title, options in OPTIONS.items():
        names = step_calls(options())
        added = [name for name in names if name not in plain]
        missing = [name for name in plain if name not in names]
        assert (added, missing) == OPTIONS_EXPECTED[title], f"{title}: +{added} -{missing}"
        spell = [", ".join(SPELLED[name] for name in part) or "–" for part in (added, missing)]
        rows.append([title, *spell])
    return {"columns": ["Option", "Calls it adds", "Calls it leaves out"], "rows": rows}


# -- The constructor ---------------------------------------------------------


def counted(policy, **options):
    """Resets and policy calls while a collector is constructed."""
    resets = mock.patch.object(GymEnv, "_reset", autospec=True, side_effect=GymEnv._reset)
    draws = mock.patch.object(
        RandomPolicy, "__call__", autospec=True, side_effect=RandomPolicy.__call__
    )
    network, env = Balance(), make_env()
    with resets as reset, draws as draw_action:
        collector = make_collector(policy(network), env, **options)
        found = reset.call_count, len(network.seen) + draw_action.call_count
    collector.shutdown()
    return found


POLICIES = {
    "``None``, for random actions": lambda network: None,
    ":class:`~tensordict.nn.TensorDictModule`": lambda network: TensorDictModule(
        network, in_keys=["observation"], out_keys=["action"]
    ),
    "the same, with a spec": lambda network: Actor(
        network, in_keys=["observation"], spec=GymEnv("CartPole-v1").action_spec
    ),
    "``torch.nn.Module`` that takes tensors": lambda network: network,
    "function of a TensorDict": lambda network: (
        lambda tensordict: tensordict.set("action", network(tensordict["observation"]))
    ),
}
CALLS = {  # by policy: with all defaults, with a replay buffer
    "``None``, for random actions": (1, 1),
    ":class:`~tensordict.nn.TensorDictModule`": (1, 0),
    "the same, with a spec": (1, 0),
    "``torch.nn.Module`` that takes tensors": (2, 1),
    "function of a TensorDict": (1, 1),
}


def constructor_table():
    rows = []
    for title, policy in POLICIES.items():
        plain, direct = counted(policy), counted(policy, replay_buffer=buffer())
        assert plain[0] == direct[0] == 1, "construction resets the environment once"
        assert (plain[1], direct[1]) == CALLS[title], f"{title}: {plain[1]}, {direct[1]}"
        rows.append([title, str(plain[1]), str(direct[1])])
    return {"columns": ["Policy", "all defaults", "``replay_buffer``"], "rows": rows}


if __name__ == "__main__":
    found = three_steps()
    print(
        json.dumps(
            {
                "figure": draw(found),
                "steps": step_table(found),
                "conditions": condition_table(),
                "around": around_table(),
                "options": option_table(),
                "constructor": constructor_table(),
            }
        )
    )
