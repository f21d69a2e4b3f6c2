"""Write the notebook and the archive that readers download with each tutorial.

Switch on with ``"docs._ext.gallery"`` in ``extensions``, after sphinx-gallery. From every script it
writes, over what sphinx-gallery wrote, ``<name>.ipynb`` and ``<name>.zip`` (script and notebook)
beside the generated page. The code cells are the script's code; the text is made readable without
Sphinx:

* ``:class:`~torch.nn.LSTM``` becomes ```` `LSTM` ````, ``:term:`text <entry>``` becomes *text*;
* a field list becomes a bullet list, ``:thread:`` the name of the repository with the number;
* the marks of claims are left out;
* a note or another admonition becomes a quote that starts with its title, a list table a table;
* the title of a fold becomes a line in bold;
* a record directive, or that of a listing from another file, becomes a sentence that points at the
  page, which shows it.

The first cell holds the pinned ``%pip install``, commented out: packages from the setting
``notebook_requirements``. What has no counterpart is a warning (``notebooks.markup``) that names
the script. The files depend on the script and the versions alone: cell ids are numbers, the
archive has no times.
"""

import io
import json
import re
import textwrap
import zipfile

from sphinx.util import logging
from sphinx_gallery import py_source_parser
from sphinx_gallery.notebook import jupyter_notebook

from docs._ext.gallery.cache import galleries
from docs._ext.gallery.stack import installed_version
from docs._ext.site.claims import unmarked
from docs._ext.support.files import state_of, write_if_changed
from docs._ext.support.page_state import page_state

logger = logging.getLogger(__name__)

ADMONITIONS = [
    "attention",
    "caution",
    "danger",
    "error",
    "hint",
    "important",
    "note",
    "seealso",
    "tip",
    "warning",
]
TITLED = ["admonition", "dropdown", "topic"]
KEPT = ["code-block", "math", "image"]  # sphinx-gallery converts these
DROPPED = [
    "contents",
    "currentmodule",
    "index",
    "minigallery",
    "only",
    "raw",
    "redirect-from",
    "rst-class",
]
RECORDS = ["record-table", "record-plot"]
DOMAIN_ROLES = ["attr", "class", "data", "exc", "func", "meth", "mod", "obj", "source"]

DIRECTIVE = re.compile(
    r"^(?P<indent>[ ]*)\.\. (?P<name>[a-z][\w:-]*)::[ ]*(?P<argument>[^\n]*)\n"
    r"(?P<body>(?:(?P=indent)[ ]+\S[^\n]*(?:\n|\Z)|[ ]*\n(?=[ ]*\n|(?P=indent)[ ]+\S))*)",
    re.M,
)
OPTION = re.compile(r"^:[\w-]+:[^\n]*\n?", re.M)
ROLE = re.compile(r":(?P<role>[a-z][\w:+.-]*):`(?P<text>[^`]+)`", re.S)
TARGETED = re.compile(r"^(?P<text>.+?)\s*<(?P<target>[^<>]+)>$", re.S)
LITERAL_OR_ROLE = re.compile(rf"(?P<literal>``.+?``)|{ROLE.pattern}", re.S)
ANONYMOUS_LINK = re.compile(r"(`[^`<]+<[^`>]+>`_)_")
DEFINITIONS = re.compile(
    r"(?:\A|(?<=\n\n))"
    r"(?:(?!\.\. |[*+>#-] |\d+\. |\|)\S[^\n]*\n(?:[ ]+\S[^\n]*(?:\n|\Z))+)+(?=\n|\Z)"
)
# Consecutive fields of the text, each with the lines that continue it.
FIELD = re.compile(r"^:(?P<name>[A-Z][\w ]*):[ ]+(?P<text>\S[^\n]*(?:\n[ ]+\S[^\n]*)*)$", re.M)
LEFT_OVER = re.compile(r"^[ ]*\.\. [\w:-]+::|(?<!`):[a-z][\w:-]*:`[^`]", re.M)


def plain_role(match):
    """The readable form of one role; math stays for sphinx-gallery."""
    if match["literal"] or match["role"] == "math":
        return match[0]
    text, role = " ".join(match["text"].split()), match["role"].split(":")[-1]
    titled = TARGETED.match(text)
    if role == "measured":
        return f"(measured; the page shows ``{text}``)"
    if titled and role != "source":
        return titled["text"]
    if titled:
        text = titled["text"]
        return text if " " in text else f"``{text}``"
    if role == "thread":
        return f"pytorch/rl#{text}"
    if role in DOMAIN_ROLES:
        name = text.lstrip("!")
        return f"``{name[1:].rpartition('.')[2] if name.startswith('~') else name}``"
    if role in ("doc", "ref"):
        return f"*{text.strip('/').rpartition('/')[2].replace('_', ' ').replace('-', ' ')}*"
    if role in ("term", "abbr", "sup", "sub", "guilabel", "download"):
        return text
    return match[0]


def plain_directive(match, page):
    """The readable form of one directive, or the directive itself where there is none."""
    name, argument = match["name"], match["argument"].strip()
    body = textwrap.dedent(match["body"])
    content = body
    while (option := OPTION.match(content)) is not None:
        content = content[option.end() :]
    content = content.strip("\n")
    if name in KEPT:
        return match[0]
    if name in DROPPED:
        text = ""
    elif name in RECORDS:
        text = f"The measured values (record ``{argument}``) stand on the page {page}."
    elif name == "literalinclude":
        text = f"The listing stands on the page {page}."
    elif name == "not-executed":
        text = f"This code is not executed here. {argument}\n\n.. code-block:: python\n\n"
        text += textwrap.indent(content, "    ")
    elif name == "fold":
        text = f"**{argument}**"
    elif name in ADMONITIONS:
        text = _quote(name.capitalize(), "\n".join(filter(None, [argument, content])))
    elif name in TITLED:
        text = _quote(argument, content)
    elif name == "list-table":
        text = _table(argument, content)
    else:
        return match[0]
    return textwrap.indent(f"{text}\n\n" if text else "", match["indent"])


def plain_definitions(match):
    """A definition list as a bullet list, which Markdown has."""
    lines = match[0].splitlines()
    return "\n".join(f"  {x.strip()}" if x[0] == " " else f"* {x.strip()}:" for x in lines) + "\n"


def readable(text, page):
    """reST of a tutorial, without what only Sphinx understands."""
    text = DIRECTIVE.sub(lambda match: plain_directive(match, page), f"{unmarked(text)}\n")
    text = FIELD.sub(lambda match: f"* **{match['name']}:** {match['text']}", text)
    text = DEFINITIONS.sub(plain_definitions, text)
    text = ANONYMOUS_LINK.sub(r"\1", text)  # sphinx-gallery would leave the second underscore
    return LITERAL_OR_ROLE.sub(plain_role, text)


def notebook_of(script, gallery_conf, page, requirements):
    """Return the notebook of a script as a dictionary and the markup that was left in it."""
    _, blocks = py_source_parser.split_code_and_text_blocks(script)
    cells = []
    for kind, content, line in blocks:
        content = py_source_parser.remove_ignore_blocks(content)
        if kind == "text":
            content = readable(content, page)
        else:
            content = py_source_parser.remove_config_comments(content)
        if content.strip():
            cells.append(py_source_parser.Block(kind, content, line))
    conf = {**gallery_conf, "first_notebook_cell": install_line(requirements)}
    notebook = jupyter_notebook(cells, conf, script.parent)
    for number, cell in enumerate(notebook["cells"]):
        cell["id"] = f"cell-{number:03d}"
        cell["source"] = "".join(cell["source"]).strip("\n").splitlines(keepends=True)
        cell["metadata"] = {}
    notebook["nbformat_minor"] = 5
    del notebook["metadata"]["language_info"]["version"]
    texts = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "markdown"]
    left = [found.group() for text in texts for found in LEFT_OVER.finditer(_without_code(text))]
    return notebook, left


def install_line(requirements):
    """A comment and a commented-out magic: it must run in no cell unasked."""
    pins = [f"{n}=={v.partition('+')[0]}" for n in requirements if (v := installed_version(n))]
    return (
        "# Uncomment to install the versions with which this page was built.\n"
        f"# %pip install {' '.join(pins)}"
    )


def write_notebooks(app):
    """builder-inited, after the gallery: write notebook and archive of every tutorial."""
    conf = app.config.sphinx_gallery_conf
    known = page_state(app.env, "notebooks")
    for script, copy in [pair for gallery in galleries(app) for pair in gallery.copies()]:
        if not copy.is_file():
            continue
        page = copy.relative_to(app.srcdir).with_suffix(".html").as_posix()
        page = app.config.html_baseurl + page if app.config.html_baseurl else f"``{page}``"
        name = copy.relative_to(app.srcdir).as_posix()
        files = [copy, *(copy.with_suffix(suffix) for suffix in (".ipynb", ".zip"))]
        if known.get(name) == state_of(page, *files):
            continue
        notebook, left = notebook_of(script, conf, page, app.config.notebook_requirements)
        for markup in left:
            logger.warning(
                "%s: the notebook cannot show %r; reword it, or add a converter to "
                "docs/_ext/gallery/notebooks.py",
                name,
                markup.strip(),
                type="notebooks",
                subtype="markup",
            )
        text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
        write_if_changed(copy.with_suffix(".ipynb"), text)
        members = {copy.name: copy.read_bytes(), copy.with_suffix(".ipynb").name: text.encode()}
        write_if_changed(copy.with_suffix(".zip"), archive(members))
        if not left:
            known[name] = state_of(page, *files)


def archive(members):
    """The bytes of a zip, which depend on its members alone."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            file.writestr(entry, content)
    return buffer.getvalue()


def _quote(title, content):
    # The blank at the end of an empty line stays: sphinx-gallery takes a bare ">" for an underline.
    lines = [f"**{title}**", "", *content.splitlines()]
    return "\n".join(f"> {line}" for line in lines)


def _table(title, content):
    """A Markdown table from the nested list of a list-table; its first row is the header."""
    rows = []
    for line in content.splitlines():
        if found := re.match(r"\* - ?(.*)", line):
            rows.append([found[1].strip()])
        elif found := re.match(r"  - ?(.*)", line):
            rows[-1].append(found[1].strip())
        elif line.strip():
            rows[-1][-1] += f" {line.strip()}"
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + " --- |" * len(rows[0]))
    return "\n".join([*([f"**{title}**", ""] if title else []), *lines])


def _without_code(markdown):
    return re.sub(r"^```.*?^```|``.*?``", "", markdown, flags=re.S | re.M)


def setup(app):
    defaults = ["torch", "torchrl", "tensordict", "gymnasium", "matplotlib", "numpy", "psutil"]
    app.add_config_value("notebook_requirements", defaults, "", types=[list])
    app.connect("builder-inited", write_notebooks, priority=700)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
