"""Links, anchors, ids and assets of the built site, and the checker that reads them."""

import subprocess
import sys

import pytest

from tests.support import ROOT, SITE
from tools.check_links import faults

INDEX = '<!DOCTYPE html><title>t</title><h1 id="top">t</h1>'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(INDEX)
    (tmp_path / "sub" / "index.html").write_text(INDEX)
    (tmp_path / "a b.png").write_bytes(b"")
    return tmp_path


def found(folder, html, **options):
    (folder / "sub" / "page.html").write_text(INDEX + html)
    return [fault for page, fault in faults(folder, **options) if page == "sub/page.html"]


@pytest.mark.parametrize(
    "html",
    [
        '<a href="../index.html">x</a> <a href="../index.html#top">x</a> <a href="#top">x</a>',
        '<a href="../sub/">x</a> <a href="../">x</a> <a href="?q=1">x</a>',
        '<img src="../a%20b.png" alt=""> <img srcset="../a%20b.png 2x" alt="x">',
        '<a href="https://example.org/x#y">x</a> <a href="mailto:a@example.org">x</a>',
        '<link rel="canonical" href="https://example.org/"> <img src="data:," alt="">',
        '<link rel="search" href="../index.html"> <form action="../index.html"></form>',
    ],
)
def test_a_right_page_has_no_fault(folder, html):
    assert found(folder, html) == []


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<a href="gone.html">x</a>', "link to a file that is not there: gone.html"),
        ('<img src="gone.png" alt="">', "link to a file that is not there: gone.png"),
        ('<script src="gone.js"></script>', "link to a file that is not there: gone.js"),
        ('<link rel="stylesheet" href="gone.css">', "link to a file that is not there: gone.css"),
        (
            '<a href="../index.html#no">x</a>',
            "link to an anchor that is not there: ../index.html#no",
        ),
        ('<a href="#no">x</a>', "link to an anchor that is not there: #no"),
        ('<p id="top"></p>', "id used 2 times: top"),
        ('<img src="../a%20b.png">', "image without alternative text: ../a%20b.png"),
        (
            '<script src="https://example.org/x.js"></script>',
            "asset from another host: https://example.org/x.js",
        ),
        (
            '<link rel="preload stylesheet" href="//example.org/x.css">',
            "asset from another host: //example.org/x.css",
        ),
        (
            '<img srcset="http://example.org/x.png 2x" alt="">',
            "asset from another host: http://example.org/x.png",
        ),
        (
            '<iframe src="https://example.org/"></iframe>',
            "asset from another host: https://example.org/",
        ),
    ],
)
def test_a_fault_is_named(folder, html, fault):
    assert found(folder, html) == [fault]


def test_a_link_must_stay_in_the_site(folder):
    outside = folder / "sub"
    (outside / "page.html").write_text(INDEX + '<a href="../index.html">x</a>')
    assert list(faults(outside)) == [("page.html", "link out of the site: ../index.html")]


def test_absolute_addresses_follow_the_prefix(folder):
    link = '<a href="/manual/index.html">x</a>'
    assert found(folder, link, prefix="/manual/") == []
    assert found(folder, link) == ["link to a file that is not there: /manual/index.html"]
    assert found(folder, '<a href="/index.html">x</a>', prefix="/manual/") == [
        "absolute address outside /manual/: /index.html"
    ]


def test_the_command_fails_on_a_fault(folder):
    command = [sys.executable, ROOT / "tools" / "check_links.py", folder]
    assert subprocess.run(command, capture_output=True).returncode == 0
    (folder / "sub" / "page.html").write_text(INDEX + '<a href="gone.html">x</a>')
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "sub/page.html: link to a file that is not there: gone.html" in done.stdout


@pytest.mark.site
def test_the_site_has_no_fault():
    assert [f"{page}: {fault}" for page, fault in faults(SITE)] == []
