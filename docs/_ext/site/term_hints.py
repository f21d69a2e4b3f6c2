"""The first sentence of a glossary entry, shown where a page refers to the term.

Switch on: ``"docs._ext.site"`` in ``extensions``, ``term-hints.js`` in a folder of
``html_static_path`` and the rules for ``.term-hint`` in a style sheet. Markup: the ordinary role,
on any page.

    The collector binds the :term:`carrier` anew at each step.

What it writes: at the end of each page with such a reference, one hidden ``role="tooltip"`` for
each term, which the references name in ``aria-describedby``; and the script on those pages alone.
The script shows the hint on hover and on focus, Escape hides it, a pointer may rest on it. A tap
follows the link, and an entry that another page led to ends with a way back. Without the script a
reference is a plain link that a screen reader still describes.

An edited definition writes the pages with the term again, without reading them again.
"""

import re
from html import escape
from typing import NamedTuple

from docutils import nodes
from sphinx import addnodes

from docs._ext.support.page_state import page_state

DEFINED = "term_hints: defined"  # page -> {a term, in lower case: what the page says of it}
USES = "term_hints: uses"  # page -> terms that it refers to, in lower case
SHOWN = "term_hints: shown"  # page -> what its hints said in the last build
SCRIPT = "term-hints.js"

END = re.compile(r"(?<=[.!?])\s+(?=[^a-z])")
LINK = re.compile(
    r'<a (?=class="reference internal" href="([^"]+)"[^>]*><span class="[^"]*\bstd-term\b)'
)


class Definition(NamedTuple):
    """A term as its page spells it, its id, the first sentence and the first id of its entry.

    *code* is what the first paragraph marks as code.
    """

    name: str
    id: str
    sentence: str
    head: str
    code: tuple[str, ...] = ()


def first_sentence(text):
    """Of a paragraph, in one line."""
    return END.split(" ".join(text.split()), maxsplit=1)[0]


def definitions(doctree):
    """Each term on the page, in lower case -> its definition."""
    found = {}
    for glossary in doctree.findall(addnodes.glossary):
        for item in glossary.findall(nodes.definition_list_item):
            text = next(iter(item.findall(nodes.paragraph)), None)
            if text is not None:
                sentence = first_sentence(text.astext())
                code = (" ".join(one.astext().split()) for one in text.findall(nodes.literal))
                code = tuple(dict.fromkeys(code))
                terms = list(item.findall(nodes.term))
                head = terms[0]["ids"][0]
                for term in terms:
                    name = term.astext()
                    for target in term["ids"]:
                        found[name.lower()] = Definition(name, target, sentence, head, code)
    return found


def sentence_parts(term):
    """The first sentence of a term: ``[(part, whether it is code)]``."""
    names = "|".join(map(re.escape, sorted(term.code, key=len, reverse=True)))
    parts = re.split(rf"(?<!\w)({names})(?!\w)", term.sentence) if names else [term.sentence]
    return [(part, number % 2 == 1) for number, part in enumerate(parts)]


def collect(app, doctree):
    """doctree-read: what the page defines, and what it refers to."""
    docname = app.env.docname
    defined = definitions(doctree)
    used = {
        reference["reftarget"].lower()
        for reference in doctree.findall(addnodes.pending_xref)
        if (reference.get("refdomain"), reference.get("reftype")) == ("std", "term")
    }
    if defined:
        page_state(app.env, DEFINED)[docname] = defined
    if used:
        page_state(app.env, USES)[docname] = sorted(used)


def hints(env, pagename):
    """What the page's references say: (page, id, parts) of each term that has one."""
    used = page_state(env, USES).get(pagename, [])
    glossaries = page_state(env, DEFINED).items()
    found = ((page, own[term]) for term in used for page, own in glossaries if term in own)
    return sorted((page, one.id, sentence_parts(one)) for page, one in found)


def rewrite(app, env):
    """env-updated: the pages whose hints say something else than when they were written."""
    now, shown = {page: hints(env, page) for page in page_state(env, USES)}, page_state(env, SHOWN)
    changed = sorted(page for page in now if now[page] != shown.get(page))
    shown.update(now)
    return changed


def html_of(part):
    text, is_code = part
    return f"<code>{escape(text, False)}</code>" if is_code else escape(text, False)


def describe(app, pagename, templatename, context, doctree):
    """html-page-context: tie each reference to its hint, and write the hints below the text."""
    if doctree is None or not (known := hints(app.env, pagename)):
        return
    texts = {}
    for page, term_id, parts in known:
        address = "" if page == pagename else app.builder.get_relative_uri(pagename, page)
        texts[f"{address}#{term_id}"] = f"hint-{term_id}", "".join(map(html_of, parts))
    shown = {}

    def described(match):
        if match[1] not in texts:
            return match[0]
        name, text = texts[match[1]]
        shown[name] = text
        return f'<a aria-describedby="{name}" '

    body = LINK.sub(described, context["body"])
    boxes = "".join(
        f'<div class="term-hint" role="tooltip" id="{name}" hidden>{text}</div>\n'
        for name, text in sorted(shown.items())
    )
    if boxes:
        context["body"] = f'{body}<div class="term-hints">\n{boxes}</div>\n'
        app.add_js_file(SCRIPT, loading_method="defer")


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.connect("doctree-read", collect)
    app.connect("env-updated", rewrite)
    app.connect("html-page-context", describe)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
