"""The debugging map and the error index, made from the pages of ``tutorials/debugging``.

Switch on: ``"docs._ext.symptoms"`` in ``extensions``, ``row-filter.js`` in a folder of
``html_static_path`` and the rules for ``.symptom`` in a style sheet. What a page has to hold is
said in ``store``. Markup, each on one page of the site::

    .. symptom-filter::

    .. symptom-map::

    .. error-index::

    .. symptom-list:: memory and storage

    :effect:`lstm_forgets_every_step`

The map is a section for each subsystem, the one with the first symptom of ``order.txt`` first, with
one closed ``<details>`` for each symptom: title and effect; inside, cause and fix, the check to
paste, what it printed on the healthy side when the gallery ran the page, the other fields, and a
link to copy. ``:ref:`symptom-<slug>``` links a symptom of the map. The index is every exception and
warning that the pages printed, by text, with the pages that print it, and those of public threads
(``reference/messages.toml`` below the sources) with the places that answer them; it has no marks of
effects, as the page of a silent symptom may show what a check of it raises. The list links the
pages of the silent symptoms of a subsystem, or of several with commas between them. The role is the
mark of a symptom, to put behind a link to it. The filter narrows the map to words, a subsystem and
an effect, and keeps all three in the address: ``?q=lstm&subsystem=recurrent+state&effect=silent``.
With words the nearest symptoms come first, whatever their subsystem, as the search of the manual
ranks them. Without scripts the filter hides, and the map is whole and readable: what a row holds
stands in a ``<noscript>``, which costs a phone nothing until ``row-filter.js`` takes it out.

A page without the form of a symptom is the warning ``symptoms.form``, in every build until it is
cured; a loud symptom whose page prints no message ``symptoms.message``, a silent one behind a loud
one in ``order.txt`` ``symptoms.rank``, a message of public threads that an unknown place answers
``symptoms.answer``. A preview that ran no tutorial has no outputs, and says so.
"""

from collections import Counter
from pathlib import Path

from docutils import nodes
from docutils.utils.smartquotes import smartyPants
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from docs._ext.gallery.cache import galleries
from docs._ext.gallery.order import read_order
from docs._ext.site.page_stamp import gallery_runs
from docs._ext.site.search_index import ENTRIES, PUBLIC_MESSAGES, toml
from docs._ext.support import row_filter
from docs._ext.support.page_state import page_state
from docs._ext.symptoms.card import EMPTY, mark
from docs._ext.symptoms.contents import ITEMS, by_subsystem, group_id, item
from docs._ext.symptoms.store import (
    EFFECTS,
    SUBSYSTEMS,
    TOPIC,
    SymptomError,
    effect_of,
    read,
    read_outputs,
)

logger = logging.getLogger(__name__)
SHOWN = "symptoms"  # the pages that show symptoms
MAP = "symptoms: map"  # the page with the map
NOT_RUN = "(not executed in this preview)"
RAISES = {"silent": "no error (silent)", "loud": "an error (loud)"}
LINK = '<a class="symptom-link" href="#{}" aria-live="polite">Link to this symptom</a>\n'


class symptom_row(nodes.General, nodes.Element):
    """A ``details`` element; its first child is the summary."""


class symptom_summary(nodes.General, nodes.TextElement):
    """What a closed row shows."""


def label_of(symptom):
    """The name of its row, for ``:ref:``."""
    return f"symptom-{symptom.slug.replace('_', '-')}"


class thread_answer(nodes.Inline, nodes.Element):
    """A link to a place that answers a message of public threads, once its title is known."""


class SymptomDirective(SphinxDirective):
    """What the two pages share: the symptoms, what their pages printed, and their warnings."""

    def symptoms(self):
        """Pairs of a symptom and its outputs, ranked; the outputs are None in a preview."""
        app = self.env.app
        scripts, generated = (folder / TOPIC for folder in galleries(app)[0])
        self.env.note_dependency(scripts / "order.txt")
        for script in scripts.glob("*.py"):
            self.env.note_dependency(script)
        page_state(self.env, SHOWN)[self.env.docname] = True
        found = []
        for slug in read_order(scripts):
            script, page = scripts / f"{slug}.py", generated / f"{slug}.rst"
            self.env.note_dependency(page)
            ran = gallery_runs(app) and page.with_suffix(".stamp.json").is_file()
            try:
                found.append((read(script), read_outputs(page, script) if ran else None))
            except SymptomError as error:
                if self.name == "symptom-map":  # one page of the site says it
                    self.complain(str(error), "form")
        return found

    def complain(self, text, subtype):
        self.env.note_reread()
        location = self.get_location()
        logger.warning("%s", text, location=location, type="symptoms", subtype=subtype)

    def inline(self, text):
        return self.parse_inline(text, lineno=self.lineno)[0]


class SymptomFilter(SymptomDirective):
    """``symptom-filter``."""

    def run(self):
        symptoms = [symptom for symptom, _ in self.symptoms()]
        counts = {name: len(own) for name, own in by_subsystem(symptoms).items()}
        effects = Counter(symptom.fields["Effect"] for symptom in symptoms)
        subsystems = {name: (name, count) for name, count in counts.items()}
        raises = {name: (RAISES[name], effects[name]) for name in EFFECTS}
        buttons = row_filter.group("subsystem", "Only symptoms of", subsystems)
        buttons += row_filter.group("effect", "Only symptoms with", raises)
        form = row_filter.form(
            "What do you see?",
            "details.symptom",
            "symptom",
            len(symptoms),
            "symptoms",
            hint="LSTM forgets, loss is NaN, workers act alike",
            classes="symptom-filter",
            buttons=buttons,
        )
        return [form]


class SymptomMap(SymptomDirective):
    """``symptom-map``."""

    def run(self):
        page_state(self.env, MAP)[self.env.docname] = True
        groups = {}
        loud = None
        for symptom, outputs in self.symptoms():
            if symptom.silent and loud:
                problem = f"order.txt ranks the silent {symptom.slug!r} behind the loud {loud!r}"
                self.complain(problem, "rank")
            loud = loud if symptom.silent else symptom.slug
            if outputs and not symptom.silent and not outputs.messages:
                problem = f"the page of the loud {symptom.slug!r} prints no message"
                self.complain(f"{problem} as <type>: <text>", "message")
            name = symptom.fields["Subsystem"]
            if name not in groups:
                title = nodes.title("", name.capitalize())
                groups[name] = nodes.section(
                    "", title, ids=[group_id(name)], classes=["symptom-group"]
                )
            groups[name] += self.row(symptom, outputs)
        return list(groups.values())

    def row(self, symptom, outputs):
        label, fields = label_of(symptom), symptom.fields
        summary = symptom_summary("", "", nodes.inline("", "", *self.inline(symptom.title)))
        subsystem = nodes.inline("", fields["Subsystem"], classes=["symptom-subsystem"])
        summary += [nodes.Text(" "), mark(fields["Effect"]), nodes.Text(" "), subsystem]
        row = symptom_row("", summary, ids=[label], classes=["symptom"], **filtered_by(symptom))
        domain = self.env.domains.standard_domain
        domain.note_hyperlink_target(
            label, self.env.docname, label, smartyPants(symptom.title, "q")
        )
        row += nodes.raw("", f"<noscript>\n{LINK.format(label)}", format="html")
        row += self.fields({name: fields[name] for name in ("Cause", "Fix")})
        row += self.caption("The check, to paste")
        row += nodes.literal_block(symptom.check, symptom.check, language="python")
        row += self.caption("What it prints when all is well")
        healthy = outputs.healthy if outputs else NOT_RUN
        row += nodes.literal_block(healthy, healthy, language="none")
        others = ("Source", "Behind it", "Threads", "Also called")
        rest = {"Seen": symptom.seen}
        rest |= {name: fields[name] for name in others if fields[name] != EMPTY.get(name)}
        rest |= {"Executed": f":doc:`/{symptom.docname}`", "Doctor": f"``{symptom.slug}``"}
        row += self.fields(rest)
        row += nodes.raw("", "</noscript>\n", format="html")
        return row

    def fields(self, texts):
        lines = [f":{name}: {text}" for name, text in texts.items()]
        found = self.parse_text_to_nodes("\n".join(lines), offset=self.lineno)
        found[0]["classes"].append("symptom-fields")
        return found

    def caption(self, text):
        return nodes.paragraph(text, text, classes=["symptom-caption"])


def filtered_by(symptom):
    """What the script filters by."""
    fields = {name.lower(): symptom.fields[name] for name in ("Effect", "Subsystem")}
    return {**fields, "page": symptom.docname}


class ErrorIndex(SymptomDirective):
    """``error-index``."""

    def run(self):
        answers = {}
        for symptom, outputs in self.symptoms():
            for message in outputs.messages if outputs else ():
                answers.setdefault(message, []).append(self.link(symptom))
        ran = bool(answers)
        self.env.note_dependency(Path(self.env.srcdir, PUBLIC_MESSAGES))
        for one in toml(self.env, PUBLIC_MESSAGES).get("message", []):
            places = [[thread_answer(address=address)] for address in one["targets"]]
            answers[one["text"]] = [*places, self.inline(self.cited(one["threads"]))]
        found = [] if ran else [nodes.paragraph(NOT_RUN, NOT_RUN)]
        for message in sorted(answers, key=by_text):
            kind = message.partition(":")[0]
            if not found or kind not in found[-1]["names"]:
                title = nodes.title(kind, "", nodes.literal(kind, kind, classes=["error-kind"]))
                where = {"ids": [nodes.make_id(f"messages {kind}")], "names": [kind]}
                found.append(nodes.section("", title, **where))
            entry = nodes.container(classes=["error-entry"])
            entry += nodes.literal_block(message, message, language="none")
            links = []
            for link in answers[message]:
                links += [nodes.Text(", " if links else ""), *link]
            entry += nodes.paragraph("", "", *links)
            found[-1] += entry
        return found

    def link(self, symptom):
        return self.inline(f":doc:`/{symptom.docname}`")

    def cited(self, threads):
        """Public threads, named ``owner/name#number``."""
        address = "`{0}#{1} <https://github.com/{0}/issues/{1}>`__"
        return ", ".join(address.format(*thread.split("#")) for thread in threads)


class SymptomList(SymptomDirective):
    """``symptom-list``."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self):
        items = nodes.bullet_list(bullet="*", classes=["symptom-list", ITEMS])
        for wanted in self.arguments[0].split(", "):
            if wanted not in SUBSYSTEMS:
                raise self.error(f"no subsystem {wanted!r}; use one of {', '.join(SUBSYSTEMS)}")
            for symptom, _ in self.symptoms():
                if symptom.silent and symptom.fields["Subsystem"] == wanted:
                    items += item(self.env.docname, symptom)
        return [items] if items.children else []


class EffectMark(SphinxRole):
    """``effect``."""

    def run(self):
        script = galleries(self.env.app)[0].scripts / TOPIC / f"{self.text}.py"
        if not script.is_file():
            problem = self.inliner.reporter.error(f"no symptom {self.text!r}", line=self.lineno)
            return [], [problem]
        self.env.note_dependency(script)
        effect = effect_of(script)
        return [mark(effect)] if effect else [], []


def link_answers(app, doctree, docname):
    """doctree-resolved: link each place under the title that the search knows it by."""
    for place in list(doctree.findall(thread_answer)):
        page, _, anchor = place["address"].partition(".html")
        own = page_state(app.env, ENTRIES).get(page, [])
        title = next((one.title for one in own if one.anchor == anchor.removeprefix("#")), None)
        if title is None:
            title = place["address"]
            file = Path(app.srcdir, PUBLIC_MESSAGES)
            lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
            where = next(f"{file}:{n}" for n, line in lines if f'"{title}"' in line)
            problem = "no page has the place %r; name one that answers the message"
            logger.warning(problem, title, location=where, type="symptoms", subtype="answer")
        of = f" ({app.env.titles[page].astext()})" if anchor and page in app.env.titles else ""
        to = app.builder.get_relative_uri(docname, page) + anchor
        place.replace_self(nodes.reference("", f"{title}{of}", internal=True, refuri=to))


def by_text(message):
    """Sort key: the type of a message, then its words."""
    kind, _, text = message.partition(": ")
    return kind.casefold(), text.strip("'\"` ").casefold()


def visit_row(translator, node):
    data = {f"data-{name}": node[name] for name in ("effect", "subsystem")}
    builder = translator.builder
    data["data-target"] = builder.get_relative_uri(builder.current_docname, node["page"])
    translator.body.append(translator.starttag(node, "details", **data))


def depart_row(translator, node):
    translator.body.append("</details>\n")


def visit_summary(translator, node):
    translator.body.append(translator.starttag(node, "summary", ""))


def depart_summary(translator, node):
    translator.body.append("</summary>\n")


def read_again(app, env, added, changed, removed):
    """env-get-outdated: what shows the symptoms, when one comes or goes."""
    moved = any(f"/{TOPIC}/" in name for name in added | removed)
    return sorted(env.found_docs & set(page_state(env, SHOWN))) if moved else []


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.setup_extension("docs._ext.support.row_filter")
    app.add_node(symptom_row, html=(visit_row, depart_row))
    app.add_node(symptom_summary, html=(visit_summary, depart_summary))
    app.add_node(thread_answer)
    app.add_directive("symptom-filter", SymptomFilter)
    app.add_directive("symptom-map", SymptomMap)
    app.add_directive("error-index", ErrorIndex)
    app.add_directive("symptom-list", SymptomList)
    app.add_role("effect", EffectMark())
    app.connect("doctree-resolved", link_answers)
    app.connect("env-get-outdated", read_again)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
