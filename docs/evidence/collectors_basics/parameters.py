"""The arguments that decide what a collector's reader gets, for the page "Collector basics".

Names and defaults come from the installed signatures. An argument that is listed here and is gone,
or that a multi-process collector starts to accept, stops the script.
"""

import inspect
import json
import os

os.environ["RL_LOGGING_LEVEL"] = "ERROR"

from torchrl.collectors import Collector, MultiCollector

# "-" stands where an argument is not accepted.
PARAMETERS = {
    "frames_per_batch": "Frames in one batch, rounded up: :ref:`collector-rounding`.",
    "total_frames": "Frames after which the iteration ends; negative: never.",
    "num_collectors": "Number of :term:`workers <worker>`; giving it starts processes.",
    "sync": "``True``: wait for all workers and join their parts. ``None`` means ``False``.",
    "cat_results": "How the parts are joined: :ref:`collector-cat-results`.",
    "init_random_frames": (
        "Frames of random actions at the start, in whole batches (exceptions: "
        ":ref:`internals-random-frames`). :claim:`random-frames-argument`"
    ),
    "max_frames_per_traj": (
        "Truncates each trajectory there, with a step counter that it adds. "
        ":claim:`max-frames-argument`"
    ),
    "reset_at_each_iter": (
        "Resets before each batch; the trajectory that it cuts has no ``done``. "
        ":claim:`reset-argument`"
    ),
    "set_truncated": (
        "Marks the last frame of each batch as :term:`truncated`. :claim:`truncated-argument`"
    ),
    "trajs_per_batch": "Whole trajectories in place of a number of frames.",
    "traj_format": '``"padded"`` or ``"cat"``: their layout.',
    "split_trajs": (
        "One row per trajectory piece, with :term:`padding` and a mask. :claim:`split-argument`"
    ),
    "track_traj_ids": "Writes the :term:`trajectory id` of each frame: :ref:`collector-ids`.",
    "compact_obs": "Leaves out the next observations: :term:`compact observations`.",
    "postproc": "Called on each batch before it is yielded or stored. :claim:`postproc-argument`",
    "replay_buffer": "Fills this buffer and yields ``None``.",
    "extend_buffer": (
        "``True`` writes whole batches, ``False`` (deprecated) single steps. "
        ":claim:`extend-buffer-argument`"
    ),
    "exploration_type": "How a stochastic policy chooses: :term:`exploration type`.",
    "use_buffers": (
        "Stacks the steps into memory that is allocated once. :claim:`use-buffers-argument`"
    ),
    "return_same_td": (
        "Yields that memory itself: the next batch overwrites this one. :claim:`same-td-argument`"
    ),
    "device": "Default of the three below: :ref:`collector-device-arguments`.",
    "policy_device": "Where the policy computes.",
    "env_device": "Where the environment steps.",
    "storing_device": "Where the batch is kept.",
    "pre_collect_hook": "Called before each batch: :ref:`collector-hook-arguments`.",
    "post_collect_hook": "Called with each batch: :ref:`collector-hook-arguments`.",
    "preemptive_threshold": "With ``sync``: share of workers to wait for; the others stop early.",
    "update_at_each_batch": (
        "Sends the weights to the workers at each batch. :claim:`update-argument`"
    ),
}
DIRECT_ONLY = {"track_traj_ids", "return_same_td"}
WORKERS_ONLY = {"cat_results", "preemptive_threshold", "update_at_each_batch"}


def shown(parameter, chosen_by_class):
    if chosen_by_class:
        return "by class"
    if parameter is None:
        return "\N{EN DASH}"
    if parameter.default is inspect.Parameter.empty:
        return "required"
    value = parameter.default
    return f"``{value.name if hasattr(value, 'name') else repr(value)}``"


def table():
    direct = inspect.signature(Collector.__init__).parameters
    workers = inspect.signature(MultiCollector.__init__).parameters
    rows = []
    for name, effect in PARAMETERS.items():
        assert name in direct or name in workers, f"no collector accepts {name} any more"
        selects = name in ("num_collectors", "sync")
        accepted = name in direct, name in workers or selects
        assert accepted == (name not in WORKERS_ONLY, name not in DIRECT_ONLY), (
            f"the page says something else about who accepts {name}: {accepted}"
        )
        of_direct = shown(direct.get(name), False)
        of_workers = shown(workers.get(name), selects)
        rows.append([f"``{name}``", of_direct, of_workers, effect])
    return {"columns": ["Argument", "``Collector``", "``MultiCollector``", "Effect"], "rows": rows}


if __name__ == "__main__":
    print(json.dumps({"parameters": table()}))
