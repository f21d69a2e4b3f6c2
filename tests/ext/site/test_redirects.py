"""What docs/_ext/site/redirects.py writes, on a small site; tests/browser has where it leads."""

import re

import pytest

from tests.support import ROOT
from tests.support.small_site import SmallSite

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


def site(folder, **changed):
    sources = {**PAGES, "addresses.txt": REGISTER, **changed}
    settings = {"templates_path": ROOT / "docs" / "_templates", "html_copy_source": 0}
    return SmallSite(folder, sources, extensions="docs._ext.site.redirects", **settings)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return site(tmp_path_factory.mktemp("redirects")).built("-j2")


def test_a_vanished_page_leads_to_its_new_place(built):
    gone = built.page("gone")
    assert gone.startswith("<!DOCTYPE html>\n<html")
    assert '<meta http-equiv="refresh" content="0; url=deep/new.html">' in gone
    assert '<p>It is now at <a href="deep/new.html">Deep &amp; new</a>.</p>' in gone
    assert '<p id="a-part">This part is now at <a href="deep/new.html#a-part">A part</a>.' in gone
    assert '<p id="the-rest">This part is now at <a href="deep/new.html">' in gone


def test_a_lost_anchor_leads_on_from_the_page_that_is_there(built):
    kept = built.page("kept")
    assert '<p id="went-away">This part is now at <a href="deep/new.html#a-part">' in kept
    assert kept.count("<script>\n(() => {") == 1
    assert "location.replace" not in built.page("deep/new")


def test_an_anchor_of_the_same_page_is_an_id_of_the_section(built):
    new = built.page("new")
    assert re.search(r'<section id="a-section">\s*<span id="old-name"></span><h2>', new)
    assert "moved" not in new


def test_the_page_that_lost_an_anchor_is_written_again(built):
    """It did not change itself."""
    text = PAGES["deep/new.rst"]
    built.write({"deep/new.rst": text.replace(" kept.html#went-away", "")})
    built.build()
    assert "went-away" not in built.page("kept")
    assert "went-away" not in built.page("gone")
    built.write({"deep/new.rst": text})
    built.build()
    assert "went-away" in built.page("kept")
    files = [built.html / name for name in ("kept.html", "new.html")]
    times = [file.stat().st_mtime_ns for file in files]
    built.build()
    assert times == [file.stat().st_mtime_ns for file in files]


def test_below_a_term_it_leads_to_the_term(tmp_path):
    term = PAGES["words.rst"] + "\n      .. redirect-from:: kept.html#went-away\n"
    moved = site(tmp_path, **{"deep/new.rst": "New\n===\n", "words.rst": term}).built()
    assert '<a href="words.html#term-carrier">carrier</a>' in moved.page("kept")


def test_claims_that_cannot_be_are_named(tmp_path):
    claims = "gone.html#the-rest words.html kept.html#went-awry kept.html#went-away"
    pages = {
        "deep/new.rst": f"New\n===\n\n.. redirect-from:: {claims} kept.html#went-away\n",
        "words.rst": "Words\n=====\n\n.. redirect-from:: kept.html#went-away\n",
    }
    said = site(tmp_path, **pages).build().stderr
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
    assert "deep/new.html" in site(tmp_path, **new).built().page("gone")


@pytest.mark.parametrize("claimant", ["kept.rst", "new.rst"])
def test_a_part_that_is_there_is_not_claimed(tmp_path, claimant):
    listed = REGISTER.replace("kept.html\n", "kept.html\nkept.html#kept\n")
    text = PAGES[claimant] + "\n.. redirect-from:: kept.html#kept\n"
    said = site(tmp_path, **{claimant: text, "addresses.txt": listed}).build().stderr
    assert re.findall(r"WARNING: (.*)", said) == [
        {
            "kept.rst": "kept.html#kept is a part of this page [redirects.there]",
            "new.rst": "kept.html#kept is a part of that page [redirects.there]",
        }[claimant]
    ]
