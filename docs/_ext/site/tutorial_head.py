"""What a tutorial costs its reader and needs, and its downloads, below its first paragraph.

Switch on: ``"docs._ext.site"`` in ``extensions``, with sphinx-gallery, and the rules for
``.tutorial-facts`` in a style sheet. There is no markup. What it writes on the page of a tutorial:

* time to read: the words of text and code, without output, at ``WORDS_PER_MINUTE``;
* time to run: the processor time that ``tutorials/run_times.json`` has of it, because what a run
  took differs from build to build (``tools/run_times.py``). Of a script that is not there, or whose
  code has changed since, the budget that ``make test`` holds it to (``docs/_ext/gallery/cost.py``);
* what it needs: the packages that the script imports, and the device it was executed on;
* the gallery's downloads, from the end of the page. The gallery's line above the title, which
  leads there, is taken off.

The page of a symptom keeps its downloads at the end, and has no facts.
"""

import ast
import hashlib
import json
import re
import sys
from math import ceil
from pathlib import Path

from docutils import nodes

from docs._ext.site.page_stamp import gallery_runs, read_stamp, stamp_file
from docs._ext.support.page_state import page_state
from docs._ext.symptoms.store import TOPIC

RUN_TIMES = "tutorials/run_times.json"  # below the folder of conf.py
WORDS_PER_MINUTE = 200
MINUTES = "minutes to read"  # page of a tutorial or guide -> how many
NAMES = {"torchrl": "TorchRL", "torch": "PyTorch", "gymnasium": "Gymnasium", "numpy": "NumPy"}
DOWNLOADS = {".ipynb": "Notebook", ".py": "Python script", ".zip": "Both, zipped"}
NOTE, FOOTER, OUTPUT = "sphx-glr-download-link-note", "sphx-glr-footer", "sphx-glr-script-out"
TRADEMARK = re.compile(r"\((?:R|TM)\)")
WORD = re.compile(r"\w+(?:[.'-]\w+)*")


def packages(script):
    """The packages that the script uses, by the names that people say, sorted."""
    modules = set()
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module)
            if any(name.name.startswith("Gym") for name in node.names):
                modules.add("gymnasium")  # which torchrl imports for these
    found = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    return sorted((NAMES.get(name, name) for name in found), key=str.casefold)


def minutes_to_read(doctree):
    """Whole minutes for the text and the code of a page, one at least."""
    texts = (
        node.astext()
        for node in doctree.findall(nodes.TextElement)
        if not isinstance(node.parent, nodes.TextElement)
        and not isinstance(node, nodes.Invisible | nodes.raw)  # notes of the gallery, drawings
        and OUTPUT not in node["classes"]
    )
    return ceil(sum(len(WORD.findall(text)) for text in texts) / WORDS_PER_MINUTE)


def code_digest(script):
    """What changes with the code of a script, and not with its text and comments."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    code = ast.unparse(tree.body[1:] if ast.get_docstring(tree) else tree)
    return hashlib.sha256(code.encode()).hexdigest()[:12]


def time_to_run(app, script):
    """Processor time as it was recorded, or else the budget."""
    name, config = f"{app.env.docname}.py", app.config
    file = Path(app.confdir, RUN_TIMES)
    if file.is_file():
        app.env.note_dependency(file)
        record = json.loads(file.read_text(encoding="utf-8"))
        digest, seconds = record["scripts"].get(name, (None, None))
        if digest == code_digest(script):
            took = f"{seconds:.0f} s" if seconds >= 1 else "less than 1 s"
            machine = TRADEMARK.sub("", record["machine"]).removesuffix(" Processor")
            return f"{took} of processor time, after imports ({machine})"
    budget = config.tutorial_cpu_budgets.get(name, (config.tutorial_cpu_budget,))[0]
    return f"within {budget} s of processor time"


def facts(app, doctree):
    """A list of fields."""
    docname = app.env.docname
    script = Path(app.srcdir, docname).with_suffix(".py")
    minutes = page_state(app.env, MINUTES)[docname] = minutes_to_read(doctree)
    texts = {
        "To read": f"{minutes} min",
        "To run": time_to_run(app, script),
        "Needs": ", ".join(packages(script)),
    }
    stamp = read_stamp(stamp_file(app, docname)) if gallery_runs(app) else None
    if isinstance(stamp, dict):
        texts["Needs"] += "; no GPU" if stamp["device"] == "cpu" else f"; ran on {stamp['device']}"
    fields = nodes.field_list("", classes=["tutorial-facts"])
    for title, text in texts.items():
        body = nodes.field_body("", nodes.paragraph("", text))
        fields += nodes.field("", nodes.field_name("", title), body)
    return fields


def with_class(doctree, name):
    return [node for node in doctree.findall(nodes.Element) if name in node.get("classes", ())]


def add_head(app, doctree):
    """doctree-read: put the head below the first paragraph."""
    docname = app.env.docname
    if stamp_file(app, docname) is None:
        return
    for note in with_class(doctree, NOTE):
        wrapper = note.parent
        wrapper.parent.remove(wrapper)
    footers = [footer.parent for footer in with_class(doctree, FOOTER)]
    for download in doctree.findall(lambda node: node.tagname == "download_reference"):
        if title := DOWNLOADS.get(Path(download["reftarget"]).suffix):  # the values of a figure not
            download[0].children = [nodes.Text(title)]
    if f"/{TOPIC}/" in docname:
        return
    lead = next(
        node for node in doctree.findall(nodes.paragraph) if node.parent.tagname == "section"
    )
    place = lead.parent.index(lead) + 1
    for footer in footers:  # with the label that it carries
        footer.parent.remove(footer)
        lead.parent.insert(place, footer)
    lead.parent.insert(place, facts(app, doctree))


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.connect("doctree-read", add_head)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
