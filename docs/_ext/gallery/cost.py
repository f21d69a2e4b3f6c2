"""Count the processor time of tutorials, and judge it; ``guard`` calls the counter.

Two limits, for two purposes. ``tutorial_time_limit`` (see ``guard``) bounds a hang in seconds of
wall time and so leaves room for a busy machine. ``tutorial_cpu_budget`` keeps the build cheap, in
seconds of processor time of the tutorial's code and the processes it waited for. The budget is that
of a tutorial which runs alone on a usual machine. A slower machine is allowed for by what the other
tutorials took (``usual_seconds``); a core that is shared, which takes longer for the same work, by
``SHARED_CORE``. Settings in ``conf.py``, switched on with ``"docs._ext.gallery"`` in
``extensions``::

    tutorial_cpu_budget = 15
    # script: (seconds, at most 30, "reason")
    tutorial_cpu_budgets = {"tutorials/memory/big.py": (25, "trains until the loss settles")}

The build never fails by it, because a slow machine is nobody's mistake:
``tests/ext/gallery/test_cost.py`` does, in ``make test``, from ``cpu_seconds`` of the stamps.
"""

import json
import resource
from pathlib import Path

from sphinx.errors import ConfigError

HIGHEST_BUDGET = 30
# Beside others on two cores a tutorial takes less than this times its processor time alone.
SHARED_CORE = 2
# What a script of the gallery takes on a usual machine, on average.
USUAL_SECONDS = 0.6


def cpu_seconds():
    """Processor time of this process and of the children it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def stamped_seconds(generated):
    """Processor time by script, as ``topic/name.py``, of the pages below *generated*."""
    return {
        f"{path.relative_to(generated).as_posix().removesuffix('.stamp.json')}.py": json.loads(
            path.read_text(encoding="utf-8")
        )["cpu_seconds"]
        for path in sorted(Path(generated).rglob("*.stamp.json"))
    }


def usual_seconds(costs):
    """What each script would have cost on a usual machine, to judge by the others of the gallery.

    A machine where they take longer than usual is slow: an empty loop does not show how slow.
    """
    usual = {}
    for name, cost in costs.items():
        others = (sum(costs.values()) - cost) / max(1, len(costs) - 1)
        usual[name] = cost / max(1.0, others / USUAL_SECONDS)
    return usual


def check_budgets(app, config):
    """config-inited: an exception names a tutorial, stays in bounds and has a reason."""
    root = Path(app.srcdir, config.sphinx_gallery_conf["examples_dirs"][0]).resolve().parent
    for name, entry in config.tutorial_cpu_budgets.items():
        place = f"conf.py: tutorial_cpu_budgets[{name!r}]"
        if not (root / name).is_file():
            raise ConfigError(f"{place}: {name} does not exist; remove the entry")
        if not (isinstance(entry, tuple | list) and len(entry) == 2 and str(entry[1]).strip()):
            raise ConfigError(f"{place} must be (seconds, 'reason')")
        if not config.tutorial_cpu_budget < entry[0] <= HIGHEST_BUDGET:
            raise ConfigError(
                f"{place}: {entry[0]} s is not between {config.tutorial_cpu_budget} and "
                f"{HIGHEST_BUDGET} s; make the tutorial cheaper or split it"
            )


def too_costly(generated, budget, budgets):
    """One sentence for each script whose page is below *generated* and costs too much, or nothing.

    *generated* holds the folders of the galleries, as ``docs`` does.
    """
    problems = []
    for name, cost in usual_seconds(stamped_seconds(generated)).items():
        allowed = budgets.get(name, (budget,))[0]
        if cost == 0:
            problems.append(f"{name} did not run: none of its code took any processor time")
        elif cost > SHARED_CORE * allowed:
            problems.append(
                f"{name} took {cost:.1f} s of processor time beside others, at the speed of a "
                f"usual machine; its budget alone is {allowed} s; make it cheaper, or give it an "
                "entry with a reason in tutorial_cpu_budgets in conf.py"
            )
    return problems


def setup(app):
    app.add_config_value("tutorial_cpu_budget", 15, "", types=[int, float])
    app.add_config_value("tutorial_cpu_budgets", {}, "", types=[dict])
    app.connect("config-inited", check_budgets, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
