"""The page of a symptom as a specimen card: what is wrong and what mends it, on the first screen.

Switch on: ``"docs._ext.symptoms"`` in ``extensions``, ``sphinx_copybutton`` and the rules for
``.symptom-card`` in a style sheet. There is no markup: the fields that ``store`` asks for become

* below the first paragraph a card: a band that says silent or loud, in words and with the stamp of
  the run; cause; and fix, where each piece of code that can be pasted gets a copy button;
* at the end of the page, before the downloads, the other fields and a link to the row of the map.
  ``Threads`` is not shown where none was found, nor ``Behind it`` where that is the page itself.

The card takes the place of the fields when the page is read, so the search, the side bar and the
Markdown twin read what is left: fields, as before.
"""

import ast

from docutils import nodes
from sphinx import addnodes

from docs._ext.site.page_stamp import run_in_short
from docs._ext.symptoms.store import EFFECTS, FIELDS, TOPIC

MEANING = {"silent": "no error is raised", "loud": "an error is raised"}
ON_CARD = ("Cause", "Fix")
EMPTY = {"Threads": "none found", "Behind it": "this page"}
FOOTER = "sphx-glr-footer"
CODE_TO_COPY = ".symptom-card code.to-copy"


def mark(effect):
    """The mark of an effect: the same wherever a failure is named."""
    return nodes.inline("", effect, classes=["symptom-effect", f"is-{effect}"])


def field_list(fields, *classes):
    return nodes.field_list("", *fields, classes=["symptom-fields", *classes])


def can_be_pasted(text):
    """Whether it is Python, whole, and more than a name: an attribute, a call or an argument."""
    try:
        tree = ast.parse(f"{text} pass" if text.endswith(":") else text)
    except SyntaxError:
        return False
    found = list(ast.walk(tree))
    whole = not any(getattr(node, "value", None) is ... for node in found)
    return whole and any(isinstance(node, ast.Assign | ast.Attribute | ast.Call) for node in found)


def run_line(app, docname):
    """The stamp of the run, in short; the foot of the page has all of it."""
    run = run_in_short(app, docname)
    if run is None:
        return nodes.inline("", "not executed in this build", classes=["symptom-run", "not-run"])
    return nodes.inline("", f"executed {run}", classes=["symptom-run"])


def cross_reference(docname, kind, target, text, *, explicit):
    """A reference from the page *docname*, as the role *kind* leaves it; *text* is its node."""
    where = {"reftype": kind, "reftarget": target, "refdoc": docname}
    more = {"refdomain": "std", "refexplicit": explicit, "refwarn": True}
    return addnodes.pending_xref("", text, **where, **more)


def row_link(docname, slug):
    """A field that leads to the row of the map."""
    text = nodes.inline("", "this symptom, among those of its subsystem")
    target = f"symptom-{slug.replace('_', '-')}"
    link = cross_reference(docname, "ref", target, text, explicit=True)
    body = nodes.field_body("", nodes.paragraph("", "", link))
    return nodes.field("", nodes.field_name("", "In the map"), body)


def make_card(app, doctree):
    """doctree-read: the fields of a symptom's page as a card and a foot."""
    docname = app.env.docname
    folder = f"{app.config.sphinx_gallery_conf['gallery_dirs'][0]}/{TOPIC}/"
    fields = next(iter(doctree.findall(nodes.field_list)), None)
    if not docname.startswith(folder) or fields is None:
        return
    own = {field[0].astext(): field for field in fields}
    effect = own.pop("Effect")[1].astext() if own.keys() >= set(FIELDS) else None
    if effect not in EFFECTS:  # the map says it
        return
    for name, text in EMPTY.items():
        if own[name][1].astext() == text:
            del own[name]
    for code in list(own["Fix"].findall(nodes.literal)):
        if isinstance(code.parent, nodes.paragraph) and can_be_pasted(code.astext()):
            code["classes"].append("to-copy")
            code.replace_self(nodes.inline("", "", code.deepcopy(), classes=["code-to-copy"]))
    meaning = nodes.inline("", MEANING[effect], classes=["symptom-meaning"])
    words = [mark(effect), nodes.Text(" "), meaning, nodes.Text(" "), run_line(app, docname)]
    card = nodes.container(
        "",
        nodes.paragraph("", "", *words, classes=["symptom-band"]),
        field_list(own.pop(name) for name in ON_CARD),
        classes=["symptom-card", f"is-{effect}"],
    )
    fields.replace_self(card)
    link = row_link(docname, docname.removeprefix(folder))
    foot = field_list([*own.values(), link], "symptom-foot")
    page = next(iter(doctree.findall(nodes.section)))
    page += foot
    for footer in [one for one in doctree.findall(nodes.container) if FOOTER in one["classes"]]:
        wrapper = footer.parent  # ``only``, with the label of the downloads
        wrapper.parent.remove(wrapper)
        page += wrapper


def copy_code(app, config):
    """config-inited: a copy button for the code of a fix, as for blocks."""
    config.copybutton_selector += f", {CODE_TO_COPY}"


def setup(app):
    app.setup_extension("sphinx_copybutton")
    app.connect("config-inited", copy_code, priority=400)  # before it is read
    app.connect("doctree-read", make_card)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
