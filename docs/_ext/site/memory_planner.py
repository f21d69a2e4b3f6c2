"""The memory planner: a form that computes bytes from the formulas of ``torchrl_doctor.planner``.

Switch on: ``"docs._ext.site"`` in ``extensions``, and ``memory-planner.js`` in a folder of
``html_static_path``. Markup::

    .. memory-planner:: replay_buffers@cpu

    .. memory-plans::

    .. memory-formulas::

The argument is the record with the share that compression keeps. The first writes the form and, as
data, the formulas, for the script to evaluate; without scripts it hides. The others write tables,
of what the presets need and of the formulas, which need no script.
"""

import html
import json
import runpy
from pathlib import Path

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from benchmarks import record as records
from docs._ext.support import identifiers, table_nodes
from docs._ext.support.page_state import page_state

SCRIPT = "memory-planner.js"
SHOWN = "memory planner"  # the pages with a form
PLANNER = Path(__file__).parents[3] / "doctor" / "src" / "torchrl_doctor" / "planner.py"
EXPORTED = ("ITEMSIZES", "SPEC_ENTRY", "ROLES", "FIXED", "OF_ENTRY", "PARTS", "TOTALS")
EXPORTED += ("FUNCTIONS", "DEFAULTS")
CONTENTS = ("pong", "blocks", "noise")  # rows of the record: what the images show
STORAGES = {
    "tensor": "LazyTensorStorage",
    "scratch": "LazyMemmapStorage with scratch_dir",
    "memmap": "LazyMemmapStorage without scratch_dir",
    "list": "ListStorage",
    "compressed": "CompressedListStorage",
}
NUMBERS = {
    "frames_per_batch": "Frames per batch",
    "workers": "Workers",
    "rows": "Rows of the buffer",
    "frames": "Frames stacked in an image",
    "share": "Compressed size, least %",
    "share_most": "Compressed size, most %",
}
SWITCHES = {
    "compact": "compact_obs=True",
    "delta": "NextObservationDelta",
    "at_sampling": "Store one frame, stack when sampling",
    "traj_ids": "Trajectory ids",
    "step_count": "StepCounter",
    "is_init": "InitTracker",
    "index": "TensorDictReplayBuffer (adds index)",
}
OF_RECURRENT = {
    "inputs": "Inputs of the LSTM or GRU",
    "hidden": "Hidden size",
    "layers": "Layers",
    "slices": "Slices in a sample",
    "length": "Steps in a slice",
    "resets": "Resets in a slice, after its first step",
}
RECURRENT = {"": "none", "gru": "GRU", "lstm": "LSTM"}
TITLES = {
    "batch": "Batch",
    "collector_process": "Main process, while collecting",
    "collector_shared": "Shared memory of the workers",
    "stored_row": "Row of the buffer",
    "stored": "All rows of the buffer",
    "buffer_process": "Buffer in process memory",
    "buffer_process_most": "The same, with the most that compression keeps",
    "buffer_shared": "Buffer in shared memory",
    "buffer_disk": "Buffer on disk",
    "scan_recomputed": "Update: scan with recomputation",
    "gru_scanned": "Update: GRU with scan",
    "lstm_scanned": "Update: LSTM with scan",
    "gru_padded": "Update: GRU with pad",
    "lstm_padded": "Update: LSTM with pad",
}
UNPLANNED = (
    "No plan: compiled networks, the backend <code>triton</code>, and CUDA. "
    '<a href="recurrent_backends.html#memory">Measured peaks of updates</a>.'
)


def planner():
    """The names of the planner, which needs no torch."""
    return runpy.run_path(str(PLANNER))


def for_script():
    """What the script reads of the planner."""
    data = planner()
    data = {name: data[name] for name in (*EXPORTED, "PRESETS")}
    # In their order: a formula may use the names before it.
    data |= {name: list(data[name].items()) for name in ("OF_ENTRY", "TOTALS")}
    return data | {"titles": TITLES}


def in_bytes(number):
    """A number of bytes as the script shows it."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 999.5 or unit == "TB":
            return f"{number:.3g}\N{NO-BREAK SPACE}{unit}"
        number /= 1000


def number_field(name, label, default):
    return (
        f'<label>{html.escape(label)} <input type="number" name="{name}" min="0" '
        f'step="any" required value="{default}"></label>'
    )


def with_code(text):
    """HTML of a *text*, with its code in code letters."""
    return "".join(
        f"<code>{html.escape(part)}</code>" if code else html.escape(part)
        for part, code in identifiers.split(text)
    )


def switch_field(name, label, on):
    checked = " checked" if on else ""
    return (
        f'<label><input type="checkbox" name="{name}"{checked}> '
        f"<span>{with_code(label)}</span></label>"
    )


def choice_field(name, label, options):
    inner = "".join(f'<option value="{k}">{html.escape(v)}</option>' for k, v in options.items())
    return f'<label>{html.escape(label)} <select name="{name}">{inner}</select></label>'


def form(data):
    """The form and its data."""
    defaults = {**data["DEFAULTS"], **data["shares"]}
    first = next(iter(data["PRESETS"].values()))
    envs = {name: preset["title"] for name, preset in data["PRESETS"].items()}
    envs["own"] = "your own specs"
    numbers = "".join(number_field(k, v, defaults[k]) for k, v in NUMBERS.items())
    switches = "".join(switch_field(k, v, defaults[k]) for k, v in SWITCHES.items())
    recurrent = "".join(number_field(k, v, defaults[k]) for k, v in OF_RECURRENT.items())
    text = json.dumps(data).replace("<", "\\u003c")
    return f"""\
<form class="memory-planner pst-js-only">
<div class="planner-fields">
{choice_field("env", "Environment", envs)}
{choice_field("storage", "Storage", STORAGES)}
<label class="planner-wide">Specs: key, dtype and shape <input name="specs" spellcheck="false"
autocomplete="off" value="{html.escape(first["specs"])}"></label>
<label class="planner-wide">What the policy adds, in the same form <input name="policy"
spellcheck="false" autocomplete="off" placeholder="action_log_prob: float32 1"></label>
{numbers}
</div>
<p class="planner-error" role="alert"></p>
<div class="planner-answer" aria-live="polite"></div>
<fieldset><legend>Switches</legend>{switches}</fieldset>
<details class="planner-recurrent"><summary>Recurrent policy</summary><div class="planner-fields">
{choice_field("cell", "Cell", RECURRENT)}{recurrent}</div>
<p class="planner-unplanned">{UNPLANNED}</p></details>
<div class="planner-results"></div>
</form>
<script type="application/json">{text}</script>
"""


class MemoryPlanner(SphinxDirective):
    """``memory-planner``: the form."""

    required_arguments = 1

    def run(self):
        data = for_script() | {"shares": self.shares()}
        page_state(self.env, SHOWN)[self.env.docname] = True
        self.env.note_dependency(str(PLANNER))
        return [nodes.raw("", form(data), format="html")]

    def shares(self):
        """What compression keeps of a row, in percent, from the record."""
        suite, device = self.arguments[0].split("@")
        path = Path(records.__file__).parent / "results" / suite / f"{device}.json"
        self.env.note_dependency(str(path))
        rows = json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
        savings = [
            rows[f"bytes-{one}-compressed"]["metrics"]["saving"]["median"] for one in CONTENTS
        ]
        kept = [round(100 - saving, 1) for saving in savings]
        return {"share": min(kept), "share_most": max(kept)}


class MemoryPlans(SphinxDirective):
    """``memory-plans``: what the presets need."""

    def run(self):
        data = planner()
        self.env.note_dependency(str(PLANNER))
        rows = []
        for preset in data["PRESETS"].values():
            options = {key: value for key, value in preset.items() if key not in ("title", "specs")}
            options |= {"rows": 1_000_000}
            variants = [("as it comes", {}), ("compact_obs", {"compact": 1})]
            if options.get("frames", 1) > 1:
                variants += [
                    ("one frame stored", {"at_sampling": 1}),
                    ("one frame, compact_obs", {"at_sampling": 1, "compact": 1}),
                ]
            for name, switches in variants:
                totals = data["planned"](preset["specs"], **options, **switches).totals
                quantities = (totals[key] for key in ("row", "collector_process", "stored_row"))
                rows.append(
                    [preset["title"], name, *map(in_bytes, quantities), in_bytes(totals["stored"])]
                )
        header = [
            "Environment",
            "Setting",
            "Row of the batch",
            "Peak of the collector, 1,000 frames",
            "Row of the buffer",
            "Buffer of a million rows",
        ]
        return [table_nodes.table(header, rows, classes=["memory-plans"])]


class MemoryFormulas(SphinxDirective):
    """``memory-formulas``: the formulas as the script reads them."""

    def run(self):
        data = planner()
        self.env.note_dependency(str(PLANNER))
        rows = [
            [nodes.literal("", name), TITLES[name], nodes.literal("", formula)]
            for name, formula in data["TOTALS"].items()
        ]
        rows += [
            [nodes.literal("", f"{name}(x)"), "x, rounded up", nodes.literal("", body)]
            for name, body in data["FUNCTIONS"].items()
        ]
        header = ["Name", "Bytes of", "Formula"]
        return [table_nodes.table(header, rows, classes=["memory-formulas"])]


def add_script(app, pagename, templatename, context, doctree):
    """html-page-context: the pages with a form get the script."""
    if pagename in page_state(app.env, SHOWN):
        app.add_js_file(SCRIPT, loading_method="defer")


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.setup_extension("docs._ext.support.table_nodes")
    app.add_directive("memory-planner", MemoryPlanner)
    app.add_directive("memory-plans", MemoryPlans)
    app.add_directive("memory-formulas", MemoryFormulas)
    app.connect("html-page-context", add_script)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
