"""What docs/_ext/site/redirects.py writes, on a small site; tests/browser has where it leads."""

import os
import re

import pytest

from tests.support import ROOT, sphinx_forks

REGISTER = """\
gone.html
gone.html#a-part
gone.html#the-rest
kept.html
kept.html#went-away
new.html#old-name
words.html
"""
PAGES = {
    "index.rst": "Home\n====\n\n.. toctree::\n\n   kept\n   deep/new\n   new\n   words\n",
    "kept.rst": "Kept\n====\n\nText.\n",
    "new.rst": (
        "New\n===\n\nA section\n---------\n\n.. redirect-from:: new.html#old-name\n\nText.\n"
    ),
    "deep/new.rst": (
        "Deep & new\n==========\n\n.. redirect-from:: gone.html\n   gone.html#the-rest\n\n"
        "A part\n------\n\n.. redirect-from:: gone.html#a-part kept.html#went-away\n\nText.\n"
    ),
    "words.rst": "Words\n=====\n\n.. glossary::\n\n   carrier\n      What carries.\n",
}


def write(folder, pages):
    for name, text in pages.items():
        path = folder / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def build(folder, *options):
    """Build; return what was said."""
    settings = {
        "extensions": "docs._ext.site.redirects",
        "templates_path": ROOT / "docs" / "_templates",
        "html_theme": "basic",
        "html_copy_source": 0,
    }
    options = [*options, "-C", *(f"-D{name}={value}" for name, value in settings.items())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    folders = folder / "docs", folder / "html"
    return sphinx_forks.run("-q", *options, *folders, env=environment).stderr


def page(folder, name):
    return (folder / "html" / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("redirects")
    write(folder, {**PAGES, "addresses.txt": REGISTER})
    assert build(folder, "-j2") == ""
    return folder


def test_a_vanished_page_leads_to_its_new_place(built):
    gone = page(built, "gone.html")
    assert gone.startswith("<!DOCTYPE html>\n<html")
    assert '<meta http-equiv="refresh" content="0; url=deep/new.html">' in gone
    assert '<p>It is now at <a href="deep/new.html">Deep &amp; new</a>.</p>' in gone
    assert '<p id="a-part">This part is now at <a href="deep/new.html#a-part">A part</a>.' in gone
    assert '<p id="the-rest">This part is now at <a href="deep/new.html">' in gone


def test_a_lost_anchor_leads_on_from_the_page_that_is_there(built):
    kept = page(built, "kept.html")
    assert '<p id="went-away">This part is now at <a href="deep/new.html#a-part">' in kept
    assert kept.count("<script>\n(() => {") == 1
    assert "location.replace" not in page(built, "deep/new.html")


def test_an_anchor_of_the_same_page_is_an_id_of_the_section(built):
    new = page(built, "new.html")
    assert re.search(r'<section id="a-section">\s*<span id="old-name"></span><h2>', new)
    assert "moved" not in new


def test_the_page_that_lost_an_anchor_is_written_again(built):
    """It did not change itself."""
    text = PAGES["deep/new.rst"]
    write(built, {"deep/new.rst": text.replace(" kept.html#went-away", "")})
    build(built)
    assert "went-away" not in page(built, "kept.html")
    assert "went-away" not in page(built, "gone.html")
    write(built, {"deep/new.rst": text})
    build(built)
    assert "went-away" in page(built, "kept.html")
    times = [(built / "html" / name).stat().st_mtime_ns for name in ("kept.html", "new.html")]
    build(built)
    assert times == [
        (built / "html" / name).stat().st_mtime_ns for name in ("kept.html", "new.html")
    ]


def test_below_a_term_it_leads_to_the_term(tmp_path):
    term = PAGES["words.rst"] + "\n      .. redirect-from:: kept.html#went-away\n"
    new = {"deep/new.rst": "New\n===\n", "words.rst": term, "addresses.txt": REGISTER}
    write(tmp_path, {**PAGES, **new})
    assert build(tmp_path) == ""
    assert '<a href="words.html#term-carrier">carrier</a>' in page(tmp_path, "kept.html")


def test_claims_that_cannot_be_are_named(tmp_path):
    claims = "gone.html#the-rest words.html kept.html#went-awry kept.html#went-away"
    pages = {
        "deep/new.rst": f"New\n===\n\n.. redirect-from:: {claims} kept.html#went-away\n",
        "words.rst": "Words\n=====\n\n.. redirect-from:: kept.html#went-away\n",
    }
    write(tmp_path, {**PAGES, **pages, "addresses.txt": REGISTER})
    said = build(tmp_path)
    assert re.findall(r"WARNING: (.*)", said) == [
        "kept.html#went-away is claimed twice on this page [redirects.twice]",
        "words.html is a page of this site [redirects.there]",
        "docs/addresses.txt has no kept.html#went-awry; did you mean kept.html#went-away? "
        "[redirects.unknown]",
        "kept.html#went-away is claimed by deep/new, too [redirects.twice]",
        "gone.html#the-rest leads on, and gone.html itself does not: claim both [redirects.page]",
    ]
    assert re.search(r"deep/new\.rst:4: WARNING", said)


def test_above_the_title_it_leads_to_the_page(tmp_path):
    new = {"deep/new.rst": ".. redirect-from:: gone.html gone.html#a-part\n\nNew\n===\n"}
    write(tmp_path, {**PAGES, **new, "addresses.txt": REGISTER})
    assert build(tmp_path) == ""
    assert "deep/new.html" in page(tmp_path, "gone.html")


@pytest.mark.parametrize("claimant", ["kept.rst", "new.rst"])
def test_a_part_that_is_there_is_not_claimed(tmp_path, claimant):
    listed = REGISTER.replace("kept.html\n", "kept.html\nkept.html#kept\n")
    text = PAGES[claimant] + "\n.. redirect-from:: kept.html#kept\n"
    write(tmp_path, {**PAGES, claimant: text, "addresses.txt": listed})
    assert re.findall(r"WARNING: (.*)", build(tmp_path)) == [
        {
            "kept.rst": "kept.html#kept is a part of this page [redirects.there]",
            "new.rst": "kept.html#kept is a part of that page [redirects.there]",
        }[claimant]
    ]
