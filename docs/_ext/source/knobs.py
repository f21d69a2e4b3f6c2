"""Performance knobs: one entry each, with the default that the installed package has.

Purpose
    A reader knows a knob by its name and wants to know what it does, what it costs and when to turn
    it. The default and the source link come from the package, so a knob that upstream renames or
    removes stops the build.

Switch on
    ``"docs._ext.source"`` in ``extensions``, beside ``"docs._ext.site"``, whose ``search_index``
    lists the entries for the search.

Markup
    ::

        .. knob:: no_cuda_sync
           :of: torchrl.collectors.Collector torchrl.collectors.MultiSyncCollector
           :trade-off: Batches may hold what a copy has not finished writing.
           :flip: Never on a GPU without a check of your own.
           :benchmark: not measured on CUDA yet

           Leaves out the synchronization after copies between devices.

        .. knob:: HardUpdate
           :of: torchrl.objectives.HardUpdate
           :parameter: value_network_update_interval
           ...

        .. knob:: TORCHRL_PROFILING
           :source: torchrl._utils.set_profiling_enabled
           :default: unset, which is off :claim:`profiling-variable-off`
           ...

        :knob:`no_cuda_sync` :knob:`without a sync <no_cuda_sync>`

        .. knob-index::

    ``:of:`` takes classes and functions that have a parameter (or a dataclass field) of this name,
    or take it out of their keywords (``kwargs.pop(name, default)``). ``:parameter:`` names it where
    the knob has another name. What is no parameter has ``:source:`` and ``:default:`` instead: a
    claim that a test guards, or ``not used`` for what you use or leave. With ``:of:``, ``:source:``
    says what to link in its place. A remark tells apart knobs that share a name: ``num_threads
    (ParallelEnv)``. ``ProfileConfig.workers`` is the parameter ``workers``, found by the whole
    name, where the last one alone is another word of the glossary. ``knob-index`` is the table of
    all knobs, below a field that filters it.

What it writes
    A description with the id ``knob-no-cuda-sync``, whose fields are folded behind its default
    (as plain text), an entry of the index, and the table. A parameter or symbol that is not there,
    a missing field, a knob with two entries (``knobs.duplicate``) and a reference to no knob are
    reported.
"""

import ast
import difflib
import textwrap
from html import escape
from itertools import pairwise
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole
from sphinx.util.nodes import make_refnode

from docs._ext.site.claims import unmarked
from docs._ext.site.term_hints import first_sentence
from docs._ext.source import lookup as source_lookup
from docs._ext.source import role as source_role
from docs._ext.source.lookup import SymbolNotFound
from docs._ext.support import row_filter
from docs._ext.support.identifiers import curled
from docs._ext.support.page_state import MISSING, link, note_target, page_state
from docs._ext.support.site_table import SiteTable, add_site_table

logger = logging.getLogger(__name__)

ENTRIES = "knobs"  # page -> its entries
SAID = {"flip": "When", "trade-off": "Trade-off", "benchmark": "Measured"}
FOLD = (
    '<details class="knob-more"><summary>Default: <span>{}</span>. When to turn it, trade-off, '
    "measured</summary>"
)


# -- Defaults ------------------------------------------------------------------


def default(symbol, name):
    """The default of the parameter or field *name* of *symbol* as source text; None: required.

    Raises :class:`SymbolNotFound` if *symbol* has no such parameter.
    """
    location = source_lookup.locate(symbol)
    field = None
    if location.kind == "class":
        field = source_lookup.find(f"{symbol}.{name}")
        location = source_lookup.find(f"{symbol}.__init__")
    is_function = location and location.kind == "function"
    known = {**_keywords(location), **_parameters(location)} if is_function else {}
    if name not in known and field and field.kind == "value":
        known.update(_assigned(field.text, name))
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(known) or 'none'}"
        raise SymbolNotFound(f"{symbol} has no parameter {name!r}; {hint}")
    return known[name]


def _assigned(text, name):
    """Name -> value of a field such as ``with_stack: bool = True``."""
    statement = ast.parse(textwrap.dedent(text)).body[0]
    if isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "") == name:
        return {name: statement.value and ast.unparse(statement.value)}
    return {}


def _parameters(location):
    """Name of each parameter -> its default."""
    function = ast.parse(textwrap.dedent(location.text)).body[0]
    arguments = function.args
    plain = [*arguments.posonlyargs, *arguments.args]
    given = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    pairs = [*zip(plain, given, strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {
        argument.arg: value and ast.unparse(value)
        for argument, value in pairs
        if argument.arg not in ("self", "cls")
    }


def _keywords(location):
    """Name of each parameter that the function pops from its ``**kwargs`` -> its default."""
    found = {}
    for node in ast.walk(ast.parse(textwrap.dedent(location.text))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="kwargs"), attr="pop" | "get"),
                args=[ast.Constant(value=str(name)), value],
            ):
                found[name] = ast.unparse(value)
    return found


# -- Entries -------------------------------------------------------------------


def entries(env):
    """``(page, entry)`` of every knob, by name."""
    found = [(page, one) for page, own in page_state(env, ENTRIES).items() for one in own]
    return sorted(found, key=lambda pair: (pair[1]["name"].lower(), pair[0]))


class Knob(SphinxDirective):
    """``knob``: one entry."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {
        **dict.fromkeys(SAID, directives.unchanged_required),
        "of": str.split,
        "parameter": directives.unchanged_required,
        "source": directives.unchanged_required,
        "default": directives.unchanged_required,
    }

    def run(self):
        try:
            node, entry = self.entry()
        except SymbolNotFound as problem:
            raise self.error(f"knob: {problem}") from None
        page_state(self.env, ENTRIES).setdefault(self.env.docname, []).append(entry)
        note_target(self.env, "knob", entry["name"], entry["id"], entry["what"])
        return [node]

    def entry(self):
        """The description, and what other pages show of it."""
        self.assert_has_content()
        name = " ".join(self.arguments[0].split())
        bare = name.partition(" ")[0]
        missing = [option for option in SAID if option not in self.options]
        if ("of" in self.options) == ("default" in self.options):
            missing.append("either of or default")
        if "default" in self.options and "source" not in self.options:
            missing.append("source")
        if missing:
            raise self.error(f"knob {name!r} needs the options {', '.join(missing)}")
        target = f"knob-{nodes.make_id(name)}"
        term = nodes.term("", "", nodes.literal(bare, bare), ids=[target])
        if name != bare:
            term += nodes.Text(f" {name.removeprefix(bare).strip()}")
        for one in dict.fromkeys((bare, name)):
            index = addnodes.index(entries=[("single", one, target, "main", None)])
            term.insert(0, index)
        body = nodes.definition()
        body += self.parse_content_to_nodes()
        what = curled(first_sentence(body.next_node(nodes.paragraph).astext()))
        value, source = self.facts(bare.rpartition(".")[2])
        fields = nodes.field_list(classes=["knob-fields"])
        for option, title in SAID.items():
            fields += field(title, self.parse_inline(self.options[option])[0])
        fields += field("Source", source)
        body += nodes.raw("", FOLD.format("".join(map(html_of, value))), format="html")
        body += [fields, nodes.raw("", "</details>", format="html")]
        item = nodes.definition_list_item("", term, body)
        node = nodes.definition_list("", item, classes=["knob"])
        known = {"name": name, "id": target, "what": what}
        known["default"] = [(part.astext(), isinstance(part, nodes.literal)) for part in value]
        return node, known | {"line": self.lineno}

    def facts(self, name):
        """Nodes for the default, and for the links to the source."""
        shown = [self.options["source"]] if "source" in self.options else self.options["of"]
        source = []
        for symbol in shown:
            source += [nodes.Text(", ")] if source else []
            source += [source_role.source_link(symbol, self.config.source_repositories)]
        if "default" in self.options:
            return self.parse_inline(unmarked(self.options["default"]))[0], source
        parameter = self.options.get("parameter", name)
        owners = {}
        for symbol in self.options["of"]:
            text = default(symbol, parameter)
            text = f"{parameter}={text}" if text and parameter != name else text
            owners.setdefault(text, []).append(symbol.rpartition(".")[2])
        value = []
        for text, classes in owners.items():
            value += [nodes.Text(", ")] if value else []
            value += [nodes.literal(text, text) if text else nodes.Text("required")]
            if len(owners) > 1:
                value += [nodes.Text(f" ({', '.join(classes)})")]
        return value, source


def field(title, content):
    return nodes.field(
        "", nodes.field_name("", title), nodes.field_body("", nodes.paragraph("", "", *content))
    )


def html_of(node):
    is_code = isinstance(node, nodes.literal)
    return f"<code>{escape(node.astext())}</code>" if is_code else escape(curled(node.astext()))


class KnobRole(SphinxRole):
    """``:knob:`name``` and ``:knob:`text <name>```."""

    def run(self):
        text, bracket, target = self.text.rpartition("<")
        target = target.rstrip(">").strip() if bracket else self.text
        label = nodes.inline(text, text.strip()) if bracket else nodes.literal(target, target)
        reference = link(self.env, "knob", target, label)
        self.set_source_info(reference)
        return [reference], []


# -- The table -----------------------------------------------------------------


class KnobIndex(SiteTable):
    """``knob-index``: every knob with its page."""

    columns: ClassVar = {"Knob": 33, "What it does": 34, "Default": 33}
    classes: ClassVar = ["knobs"]
    entries = staticmethod(entries)

    @classmethod
    def content(cls, app, docname):
        form = row_filter.form(
            "Which knob, or what for?",
            "table.knobs tbody tr",
            "performance",
            len(cls.entries(app.env)),
            "knobs",
            hint="prefetch, copies to the GPU, compile",
            near=0.2,
        )
        return [form, super().content(app, docname)]

    @staticmethod
    def row(app, docname, page, entry):
        label = nodes.literal(entry["name"], entry["name"])
        value = [
            nodes.literal(text, text) if is_code else nodes.Text(text)
            for text, is_code in entry["default"]
        ]
        anchor = make_refnode(app.builder, docname, page, entry["id"], label)
        return [anchor, entry["what"], value]


def name_twins(app, env):
    """env-updated: a knob with two entries, at the second one."""
    for (first, known), (docname, entry) in pairwise(entries(env)):
        if known["name"] == entry["name"]:
            logger.warning(
                "the knob %r has an entry on page %s already; link to it",
                entry["name"],
                first,
                location=(docname, entry["line"]),
                type="knobs",
                subtype="duplicate",
            )


def setup(app):
    app.setup_extension("docs._ext.source.role")
    app.setup_extension("docs._ext.support.page_state")
    app.setup_extension("docs._ext.support.row_filter")
    MISSING["knob"] = "there is no knob %(target)r; write '.. knob::' for it"
    app.add_directive("knob", Knob)
    app.add_role("knob", KnobRole())
    add_site_table(app, "knob-index", KnobIndex)
    app.connect("env-updated", name_twins)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
