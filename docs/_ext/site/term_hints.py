"""The first sentence of a glossary entry, shown where a page refers to the term.

Switch on: ``"docs._ext.site"`` in ``extensions``, ``term-hints.js`` in a folder of
``html_static_path`` and the rules for ``.term-hint`` in a style sheet. Markup: the ordinary role,
on any page.

    The collector binds the :term:`carrier` anew at each step.

What it writes: at the end of each page with such a reference, one hidden ``role="tooltip"`` for
each term, which the references name in ``aria-describedby``; and the script on those pages alone.
The script shows the hint on hover and on focus, Escape hides it, a pointer may rest on it. A tap
follows the link. Without the script a reference is a plain link that a screen reader still
describes.

An edited definition writes the pages with the term again, without reading them again.
"""

import re
from html import escape

from docutils import nodes
from sphinx import addnodes

SENTENCES = "term_sentences"  # on the environment: page -> {id of the term: its first sentence}
USES = "term_uses"  # page -> terms that it refers to, in lower case
SHOWN = "term_shown"  # page -> what its hints said in the last build
SCRIPT = "term-hints.js"

END = re.compile(r"(?<=[.!?])\s+(?=[^a-z])")
LINK = re.compile(
    r'<a (?=class="reference internal" href="([^"]+)"[^>]*><span class="[^"]*\bstd-term\b)'
)


def first_sentence(text):
    """Of a paragraph, in one line."""
    return END.split(" ".join(text.split()), maxsplit=1)[0]


def sentences(doctree):
    """Id of each term on the page -> the first sentence of its definition."""
    found = {}
    for glossary in doctree.findall(addnodes.glossary):
        for item in glossary.findall(nodes.definition_list_item):
            text = next(iter(item.findall(nodes.paragraph)), None)
            if text is not None:
                for term in item.findall(nodes.term):
                    found |= dict.fromkeys(term["ids"], first_sentence(text.astext()))
    return found


def start(app, env, docnames):
    """env-before-read-docs: make room."""
    for name in (SENTENCES, USES, SHOWN):
        if not hasattr(env, name):
            setattr(env, name, {})


def collect(app, doctree):
    """doctree-read: what the page defines, and what it refers to."""
    docname = app.env.docname
    defined = sentences(doctree)
    used = {
        reference["reftarget"].lower()
        for reference in doctree.findall(addnodes.pending_xref)
        if (reference.get("refdomain"), reference.get("reftype")) == ("std", "term")
    }
    if defined:
        getattr(app.env, SENTENCES)[docname] = defined
    if used:
        getattr(app.env, USES)[docname] = sorted(used)


def forget(app, env, docname):
    """env-purge-doc: drop what the page said."""
    for name in (SENTENCES, USES):
        getattr(env, name, {}).pop(docname, None)


def merge(app, env, docnames, other):
    """env-merge-info: collect what a parallel reader found."""
    for name in (SENTENCES, USES):
        found = getattr(other, name)
        getattr(env, name).update({page: found[page] for page in docnames if page in found})


def hints(env, pagename):
    """What the page's references say: (page, id, sentence) of each term that has one."""
    found = set()
    for term in getattr(env, USES).get(pagename, []):
        page, term_id = env.domains.standard_domain._terms.get(term, ("", ""))
        sentence = getattr(env, SENTENCES).get(page, {}).get(term_id)
        if sentence:
            found.add((page, term_id, sentence))
    return sorted(found)


def rewrite(app, env):
    """env-updated: the pages whose hints say something else than when they were written."""
    now = {page: hints(env, page) for page in getattr(env, USES)}
    before = getattr(env, SHOWN)
    setattr(env, SHOWN, now)
    return sorted(page for page in now if now[page] != before.get(page))


def describe(app, pagename, templatename, context, doctree):
    """html-page-context: tie each reference to its hint, and write the hints below the text."""
    if doctree is None or not (known := hints(app.env, pagename)):
        return
    texts = {}
    for page, term_id, sentence in known:
        address = "" if page == pagename else app.builder.get_relative_uri(pagename, page)
        texts[f"{address}#{term_id}"] = f"hint-{term_id}", sentence
    shown = {}

    def described(match):
        if match[1] not in texts:
            return match[0]
        name, sentence = texts[match[1]]
        shown[name] = sentence
        return f'<a aria-describedby="{name}" '

    body = LINK.sub(described, context["body"])
    boxes = "".join(
        f'<div class="term-hint" role="tooltip" id="{name}" hidden>{escape(text, False)}</div>\n'
        for name, text in sorted(shown.items())
    )
    if boxes:
        context["body"] = f'{body}<div class="term-hints">\n{boxes}</div>\n'
        app.add_js_file(SCRIPT, loading_method="defer")


def setup(app):
    app.connect("env-before-read-docs", start)
    app.connect("doctree-read", collect)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("env-updated", rewrite)
    app.connect("html-page-context", describe)
    return {
        "version": "1",
        "env_version": 1,
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
