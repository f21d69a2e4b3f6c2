"""What tools/addresses.py calls an address, and what it says of one that is lost or new."""

import subprocess
import sys

import pytest

from tests.support import ROOT
from tools import addresses

PAGE = """<!DOCTYPE html><html><body><form id="search"></form>
<article class="bd-article"><section id="a-title"><span id="a-label"></span><h1>T</h1>
<svg id="plot0"><g id="plot0-axis_1"></g></svg><table id="id7"></table>
<dl><dt class="sig" id="torchrl.envs.GymEnv">x</dt></dl><div class="hint" id="hint-term-x"></div>
<p data-id="no">1 &lt; id="text"</p></section></article><footer id="foot"></footer></body></html>
"""
OFFERED = [
    "404.html",
    "_downloads/records/toy.json",
    "deep/page.html",
    "deep/page.html#a-label",
    "deep/page.html#a-title",
    "deep/page.html#torchrl.envs.GymEnv",
    "index.html",
    "llms.txt",
]


@pytest.fixture
def site(tmp_path):
    """A site with two pages, an error page and a download, each of which is registered."""
    html = tmp_path / "build" / "html"
    for name, text in {
        "404.html": PAGE,
        "index.html": "<html></html>",
        "deep/page.html": PAGE,
        "_static/template.html": PAGE,
        "_downloads/records/toy.json": "{}",
        "_downloads/records/page-plot0.csv": "not registered: the number of a plot moves",
        "_downloads/a/images/sphx_glr_b_001.csv": "not registered: so does that of a figure",
        "_downloads/doctor/tool-1.0.0-py3-none-any.whl": "not registered: its version moves",
        "deep/page.html.md": "",
        "llms.txt": "",
        "searchindex.js": "",
    }.items():
        path = html / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "addresses.txt").write_text("\n".join(["# comment", *OFFERED]) + "\n")
    (tmp_path / "docs" / "changes.txt").write_text("2026-01-02 deep/page\n")
    return tmp_path


def lost(site):
    html, listing = site / "build" / "html", site / "docs" / "addresses.txt"
    return list(addresses.lost(addresses.offered(html), listing))


def test_pages_files_and_named_anchors_are_offered(site):
    assert sorted(addresses.offered(site / "build" / "html")) == OFFERED


def test_a_whole_site_has_lost_nothing(site):
    assert lost(site) == []


def test_a_lost_anchor_is_named_with_the_cure(site):
    page = site / "build" / "html" / "deep" / "page.html"
    page.write_text(PAGE.replace("a-label", "another"))
    assert lost(site) == [
        "addresses.txt:5: deep/page.html#a-label is not in the site; where its content is now, "
        "write '.. redirect-from:: deep/page.html#a-label' (docs/_ext/site/redirects.py)"
    ]


def test_a_lost_page_is_named_once_with_its_anchors(site):
    (site / "build" / "html" / "deep" / "page.html").unlink()
    names = OFFERED[2:6]
    assert lost(site) == [
        f"addresses.txt:4: {', '.join(names)} is not in the site; where its content is now, "
        f"write '.. redirect-from:: {' '.join(names)}' (docs/_ext/site/redirects.py)"
    ]


def test_a_lost_file_comes_back_or_has_a_reason(site):
    (site / "build" / "html" / OFFERED[1]).unlink()
    (problem,) = lost(site)
    assert problem == (
        "addresses.txt:3: _downloads/records/toy.json is not in the site; put it back, or end "
        "the line with '# gone: <reason>'"
    )
    listing = site / "docs" / "addresses.txt"
    listing.write_text(listing.read_text().replace("toy.json", "toy.json  # gone: split"))
    assert lost(site) == []


def test_the_command_adds_and_never_removes(site):
    listing = site / "docs" / "addresses.txt"
    listing.write_text("old.html#x\nold.html  # gone: why\nindex.html\n")
    command = [sys.executable, ROOT / "tools" / "addresses.py", "--site", site]
    for new in (7, 0):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == f"{new} new address(es) in addresses.txt"
        expected = [*OFFERED, "old.html  # gone: why", "old.html#x"]
        assert listing.read_text() == addresses.HEADER + "\n".join(expected) + "\n"


def test_a_new_page_gets_its_day_and_one_that_leads_on_another(site):
    html, dated = site / "build" / "html", site / "docs" / "changes.txt"
    addresses.date(html, dated, "2026-01-03")
    assert dated.read_text() == addresses.CHANGES + "2026-01-02 deep/page\n"
    (html / "deep" / "page.html").write_text(f"<html>{addresses.LEADS_ON}</html>")
    (html / "new.html").write_text(PAGE)
    (html / "deep" / "index.html").write_text(PAGE)
    assert addresses.undated(html, dated) == ["deep/page gone", "new"]
    for day in ("2026-01-04", "2026-01-05"):
        addresses.date(html, dated, day)
        lines = dated.read_text().splitlines()
        assert lines[1:] == [
            "2026-01-04 deep/page gone",
            "2026-01-04 new",
            "2026-01-02 deep/page",
        ]
