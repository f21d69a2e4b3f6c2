"""Show on a page what a script printed while the site was built.

Switch on: ``"docs._ext.evidence"`` in ``extensions``. The scripts are
``docs/evidence/<page>/<script>.py``; ``evidence_folder`` names another folder, ``evidence_kept``
the one that keeps results between builds, ``evidence_time_limit`` the seconds after which a script
is killed, ``evidence_preload`` the modules that are imported once for all scripts. What a script
has to print is said in ``store``.

Markup; an address is ``page/script:result``::

    .. evidence-table:: collectors_basics/batch_shapes:shapes
       :caption: One batch from each collector

    .. evidence-output:: collectors_replay/worker_buffers:warning
       :caption: What the sampler says

    .. evidence-figure:: collectors_internals/rollout_flow:figure
       :alt: Ten boxes in a row ...

       One step of the loop.

    The collector takes :evidence:`collectors_basics/batch_shapes:steps` steps.

The cells of a table are inline markup. A figure is an SVG document; the color ``#010203`` in it
becomes the color of the text. It may be a table, too, which becomes a chart (``chart``): its values
show to a pointer, and are a file that the page links.

Every script is executed before the pages are read, beside the tutorials, unless its results are
kept: same script, same stack. What it writes: the table, text or figure, and a line with the date,
the release and the device of its run, which links the script; the site holds it as
``_downloads/evidence/<page>/<script>.py``. A script that fails is the warning ``evidence.failed``
at each place that shows one of its results, in every build until it is cured; an unknown address is
``evidence.unknown``, a result of the wrong kind ``evidence.kind``, a script that no page shows
``evidence.unused``.
"""

import difflib
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from docs._ext.evidence import chart
from docs._ext.evidence.store import Store
from docs._ext.site.page_stamp import in_short
from docs._ext.support import charts, table_nodes
from docs._ext.support.fork import slots
from docs._ext.support.page_state import link_file, page_state

logger = logging.getLogger(__name__)
ROOT = Path(__file__).parents[3]
DOWNLOADS = "_downloads/evidence"
SHOWN = "evidence"  # page -> the scripts whose results it shows


class ContentError(Exception):
    """A page asks for something that cannot be shown; *kind* is the subtype of the warning."""

    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


def result(env, address, kinds):
    """The value at *address*, which has to be of one of *kinds*; note what the page shows."""
    name, separator, key = address.partition(":")
    if not separator:
        raise ContentError("unknown", f"expected page/script:result, found {address!r}")
    store = env.app.evidence_store
    choose(name, store.names(), "script", "docs/evidence")
    page_state(env, SHOWN).setdefault(env.docname, set()).add(name)
    if name in store.failures:
        raise ContentError("failed", f"the script behind this failed: {store.failures[name]}")
    env.note_dependency(store.path(name))
    results = store.results(name)
    choose(key, results, "result", f"docs/evidence/{name}.py")
    value = results[key]
    if not isinstance(value, kinds):
        raise ContentError("kind", f"{address} is a {type(value).__name__}, which this cannot show")
    return value


def choose(name, known, what, where):
    """Raise for a name that is not *known*, with the nearest one that is."""
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ContentError("unknown", f"{where} has no {what} {name!r}{hint}")


def complain(env, error, location):
    """Report *error* as a warning of the content, in every build until it is cured."""
    env.note_reread()
    logger.warning("%s", error, location=location, type="evidence", subtype=error.kind)


class Evidence(SphinxRole):
    """``:evidence:`page/script:result```: a text, number or truth value in a sentence."""

    def run(self):
        try:
            value = result(self.env, self.text, (str, int, float))
        except ContentError as error:
            complain(self.env, error, self.get_location())
            return [nodes.problematic(self.rawtext, self.rawtext)], []
        return [nodes.inline("", str(value), classes=["evidence-value"])], []


class EvidenceDirective(SphinxDirective):
    """What the directives share: reaching the result, and the line that names the script."""

    required_arguments = 1
    option_spec = {"caption": directives.unchanged}  # noqa: RUF012 - docutils' interface
    kinds = (str,)

    def run(self):
        address = self.arguments[0]
        try:
            value = result(self.env, address, self.kinds)
            name, _, key = address.partition(":")
            shown, origin = self.render(value), self.origin(name)
            origin += self.values(name, key, value)
            return [*shown, origin]
        except ContentError as error:
            complain(self.env, error, self.get_location())
            return []

    def inline(self, text):
        """The nodes of inline markup; a fault in it is logged with the line of the directive."""
        return self.parse_inline(text, lineno=self.lineno)[0]

    def origin(self, name):
        """The paragraph below: which script printed this, when and on what."""
        store = self.env.app.evidence_store
        script, run = store.script(name), in_short(*store.run(name))
        text = nodes.literal(script.name, script.name)
        return nodes.paragraph(
            "",
            "",
            nodes.strong("", "Executed"),
            nodes.Text(f" {run}: output of "),
            link_file(self.env, script, f"{DOWNLOADS}/{name}.py", text),
            nodes.Text("."),
            classes=["evidence-origin"],
        )

    def values(self, name, key, value):
        """The end of that paragraph: a link to the values of a chart."""
        return []


class EvidenceTable(EvidenceDirective):
    """``evidence-table``."""

    kinds = (dict,)

    def render(self, value):
        caption = self.options.get("caption")
        title = nodes.title(caption, "", *self.inline(caption)) if caption else None
        lines = [value["columns"], *value["rows"]]
        header, *rows = ([self.inline(cell) for cell in line] for line in lines)
        return [table_nodes.table(header, rows, classes=["evidence-table"], title=title)]


class EvidenceOutput(EvidenceDirective):
    """``evidence-output``: a text as it was printed."""

    def render(self, value):
        block = nodes.literal_block(value, value, language="none")
        caption = self.options.get("caption")
        if not caption:
            return [block]
        title = nodes.caption("", "", *self.inline(caption))
        return [nodes.container("", title, block, literal_block=True, classes=["evidence-output"])]


class EvidenceFigure(EvidenceDirective):
    """``evidence-figure``: an image that the script drew."""

    kinds = (str, dict)
    has_content = True
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012

    def render(self, value):
        if "alt" not in self.options:
            raise ContentError("unknown", "evidence-figure needs :alt:, for who cannot see it")
        name = f"figure{self.env.new_serialno('evidence-figure')}"
        kind = "evidence-figure"
        if isinstance(value, dict):
            svg = chart.draw(value, name, self.options["alt"])
            kind = "evidence-figure" if "svg" in value else "record-plot"
        elif "<svg" in value:
            svg = charts.part_of_page(value, name, self.options["alt"])
        else:
            raise ContentError("kind", f"{self.arguments[0]} is no SVG document")
        figure = nodes.figure("", nodes.raw("", svg, format="html"), classes=[kind])
        if self.content:
            figure += nodes.caption("", "", *self.inline(" ".join(self.content)))
        return [figure]

    def values(self, name, key, value):
        if not isinstance(value, dict):
            return []
        text = nodes.inline("", "CSV of this chart")
        path = f"{DOWNLOADS}/{name}-{key}.csv"
        link = link_file(self.env, chart.as_csv(value), path, text)
        return [nodes.Text(" "), link, nodes.Text(".")]


def start_scripts(app):
    """builder-inited, before the gallery: begin to execute what has no results."""
    config = app.config
    store = app.evidence_store = Store(
        config.evidence_folder, config.evidence_kept, config.evidence_preload, slots(app).folder
    )
    limit = config.evidence_time_limit
    store.start(limit, lambda name: logger.info("executing evidence %s.py", name))


def wait_for_scripts(app):
    """builder-inited, last: have the results before Sphinx asks which pages changed."""
    app.evidence_store.finish()


def name_unused(app, env):
    """env-check-consistency: a script nobody shows costs time and guards nothing."""
    shown = set().union(*page_state(env, SHOWN).values())
    for name in app.evidence_store.names():
        if name not in shown:
            logger.warning(
                "no page shows a result of docs/evidence/%s.py; show one or delete the script",
                name,
                type="evidence",
                subtype="unused",
            )


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.setup_extension("docs._ext.support.table_nodes")
    app.add_config_value("evidence_folder", str(ROOT / "docs" / "evidence"), "env", [str])
    app.add_config_value("evidence_kept", str(ROOT / "build" / "evidence"), "", [str])
    app.add_config_value("evidence_preload", [], "", [list])
    app.add_config_value("evidence_time_limit", 300, "", [int, float])
    app.add_role("evidence", Evidence())
    app.add_directive("evidence-table", EvidenceTable)
    app.add_directive("evidence-output", EvidenceOutput)
    app.add_directive("evidence-figure", EvidenceFigure)
    app.connect("builder-inited", start_scripts, priority=450)
    app.connect("builder-inited", wait_for_scripts, priority=900)
    app.connect("env-check-consistency", name_unused)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
