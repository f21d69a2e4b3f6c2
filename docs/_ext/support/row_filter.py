"""The field that narrows the rows of a page to those that are asked for.

Switch on: ``app.setup_extension("docs._ext.support.row_filter")``, with ``row-filter.js`` in a
folder of ``html_static_path`` and the rules for ``.row-filter`` in a style sheet. A directive puts
``form`` before its rows::

    form("Name or effect", "table.knobs tbody tr", "performance", 70, "knobs", hint="prefetch")

With words, the engine of the search fields (``search_index``) finds rows of that kind, the nearest
first. A row is the place that its first link leads to, or its ``data-target``. A button keeps the
rows whose ``data-<name>`` is its value. The address has the words and what is pressed:
``?q=prefetch``.
Without scripts the form hides, and all rows are there.
"""

from html import escape

from docutils import nodes

SCRIPT = "row-filter.js"
FORM = """\
<form class="row-filter {classes}pst-js-only" data-rows="{rows}" data-kind="{kind}" \
data-near="{near}">
<label>{label} <input type="search" name="q" autocomplete="off" spellcheck="false"
placeholder="{hint}"></label>
{buttons}<output aria-live="polite">{total} of {total} {noun}</output>
</form>
"""
GROUP = """\
<div class="filter-group" role="group" aria-labelledby="filter-{name}">
<span id="filter-{name}">{label}</span>
<div class="filter-buttons">
{buttons}</div>
</div>
"""
BUTTON = '<button type="button" name="{}" value="{}" aria-pressed="false">{} <b>{}</b></button>\n'


def group(name, label, values):
    """Buttons that keep the rows with one value of *name*: value -> its words, number of rows."""
    buttons = (BUTTON.format(name, value, escape(text), n) for value, (text, n) in values.items())
    return GROUP.format(name=name, label=escape(label), buttons="".join(buttons))


def form(label, rows, kind, total, noun, *, hint, near=0.3, classes="", buttons=""):
    """The form for *total* rows, which the selector *rows* finds in the page.

    A row that is found has *near* of the score of the best one.
    """
    texts = {"label": escape(label), "hint": escape(hint), "noun": noun, "buttons": buttons}
    classes = f"{classes} ".lstrip()
    html = FORM.format(rows=rows, kind=kind, near=near, total=total, classes=classes, **texts)
    return nodes.raw("", html, format="html")


def add_script(app, pagename, templatename, context, doctree):
    """html-page-context: the pages with a form get the script."""
    if '<form class="row-filter ' in context.get("body", ""):
        app.add_js_file(SCRIPT, loading_method="defer", priority=900)  # after search-box.js


def setup(app):
    app.connect("html-page-context", add_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
