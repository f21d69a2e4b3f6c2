"""Style sheets: what goes, what stays, and the same after any build."""

import hashlib
import re
from types import SimpleNamespace

import pytest
from sphinx.errors import ExtensionError

from docs._ext.site import style_sheets
from tests.support.small_site import SmallSite

KEPT = """\
.used{color:red}
.used>.by-script{margin:0}
.used:not(.unused){top:0}
.by-script{left:0}
.bs-tooltip-auto{left:1px}
blockquote{left:2px}
:focus-visible{outline:0}
p:is(.unused-too,.used)>a{left:3px}
@media print{.used{color:#000}}
"""
GONE = """\
.unused{color:red}
.used .unused{margin:1px}
@media print{.unused{color:#000}}
"""
CONF = """
extensions = ["docs._ext.site.style_sheets"]
html_static_path = ["static"]
html_css_files = ["basic.css"]
html_js_files = ["toggle.js"]
"""
SOURCES = {
    "conf.py": CONF,
    "index.rst": "Home\n====\n\n.. container:: used\n\n   Text.\n",
    "static/toggle.js": "document.body.classList.add('by-script');",
    "static/basic.css": KEPT + GONE.replace("{margin", ",.used b{margin"),
}


@pytest.fixture
def site(tmp_path):
    return SmallSite(tmp_path, SOURCES)


def sheet(site):
    return (site.html / "_static" / "basic.css").read_text(encoding="utf-8")


def linked(site, name="basic.css"):
    """The checksum in the address of the sheet or script, on each page."""
    pages = [page.read_text(encoding="utf-8") for page in site.html.glob("*.html")]
    return [re.search(rf"_static/{re.escape(name)}\?v=(\w+)\"", page)[1] for page in pages]


def checksum(text):
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def test_the_address_of_a_sheet_follows_what_is_left_of_it(site):
    site.write({"other.rst": ":orphan:\n\nNot written again\n=================\n"})
    assert set(linked(site.built())) == {checksum(sheet(site))}
    site.append("index.rst", "\n.. container:: unused\n\n   More.\n")
    assert set(linked(site.built())) == {checksum(SOURCES["static/basic.css"])}


def test_the_address_of_the_search_field_follows_the_index(site):
    scripts = {"static/search-box.js": "field;", "static/search.js": "index;"}
    site.write({"conf.py": CONF.replace("toggle.js", "search-box.js"), **scripts})
    site.write({"other.rst": ":orphan:\n\nNot written again\n=================\n"})
    assert set(linked(site.built(), style_sheets.FIELD)) == {checksum("field;index;")}
    site.edit("static/search.js", "index;", "other index;")
    assert set(linked(site.built(), style_sheets.FIELD)) == {checksum("field;other index;")}


def test_what_no_page_can_use_goes_and_the_rest_is_spelled_as_it_was(site):
    assert sheet(site.built()) == KEPT + ".used b{margin:1px}\n"


def test_a_class_that_comes_brings_its_rules_and_one_that_goes_takes_them(site):
    first = sheet(site.built())
    site.append("index.rst", "\n.. container:: unused\n\n   More.\n")
    assert sheet(site.built()) == SOURCES["static/basic.css"]
    site.write({"index.rst": SOURCES["index.rst"]})
    assert sheet(site.built()) == first == sheet(site.built("-E", "-a", PYTHONHASHSEED="1"))


def test_an_edit_that_changes_no_class_starts_no_program(site):
    words = site.built().html / ".doctrees" / style_sheets.CONTENT
    first, written = sheet(site), words.stat().st_mtime_ns
    assert sheet(site.built()) == first
    site.append("index.rst", "\nMore.\n")
    assert sheet(site.built()) == first
    assert words.stat().st_mtime_ns == written


def test_another_sheet_is_read_anew(site):
    site.built()
    site.edit("static/basic.css", ".used{color:red}", ".used{color:green}")
    assert ".used{color:green}" in sheet(site.built())


def test_a_missing_program_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(style_sheets, "PURGECSS", tmp_path / "purgecss")
    app = SimpleNamespace(builder=SimpleNamespace(format="html"))
    with pytest.raises(ExtensionError, match="PurgeCSS is not installed; `make venv` does that"):
        style_sheets.trim(app, None)
