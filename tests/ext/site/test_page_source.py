"""Links to the source of a page and to a report, on a small site."""

import os
import re
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support import ROOT, sphinx_forks
from tests.support.repository import git

CONF = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
extensions = ["docs._ext.site.page_source"]
html_theme = "pydata_sphinx_theme"
html_theme_options = {{"article_footer_items": ["page-stamp"]}}
templates_path = [{str(ROOT / "docs" / "_templates")!r}]
exclude_patterns = ["reference/api/notes"]
suppress_warnings = ["page_stamp"]

def setup(app):
    names = ["tutorials", "how-to"]
    folders = {{"examples_dirs": [f"../{{name}}" for name in names], "gallery_dirs": names}}
    app.add_config_value("sphinx_gallery_conf", {{"plot_gallery": False, **folders}}, "")
"""
# Page -> the file that a maintainer edits.
SOURCES = {
    "index": "docs/index.rst",
    "reference/api/torchrl.data.Bounded": "docs/reference/api/notes/torchrl.data.Bounded.rst",
    "reference/api/torchrl.data.Binary": "docs/reference/api/symbols.toml",
    "reference/api/index": "docs/reference/api/index.rst",
    "tutorials/index": "tutorials/GALLERY_HEADER.rst",
    "tutorials/memory/index": "tutorials/memory/GALLERY_HEADER.rst",
    "tutorials/memory/lesson": "tutorials/memory/lesson.py",
    "how-to/index": "how-to/GALLERY_HEADER.rst",
    "how-to/guide": "how-to/guide.py",
}
REPOSITORY = "https://example.org/owner/manual"

pytestmark = pytest.mark.slow


def build(root, repository):
    environment = {**os.environ, "REPO_URL": repository, "NO_COLOR": "1"}
    return sphinx_forks.run("-q", "-W", "-c", ".", "docs", "build", cwd=root, env=environment)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A checkout with a commit, and its pages."""
    root = tmp_path_factory.mktemp("source")
    pages = {**dict.fromkeys(SOURCES, "Title & more\n============\n")}
    pages["index"] += "\n.. toctree::\n   :glob:\n\n" + "".join(
        f"   {page}\n" for page in SOURCES if page != "index"
    )
    pages["reference/api/notes/torchrl.data.Bounded"] = "Notes\n"
    for page, text in pages.items():
        path = root / "docs" / f"{page}.rst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for lesson in ("tutorials/memory/lesson", "how-to/guide"):
        (root / "docs" / f"{lesson}.py").write_text("")
    (root / "conf.py").write_text(CONF)
    for command in (["init"], ["add", "conf.py"], ["commit", "-m", "All"]):
        git(root, *command)
    return root


def links(root, page):
    """Text of each link below the stamp -> its address."""
    html = (root / "build" / f"{page}.html").read_text()
    (below,) = re.findall(r'<p class="page-links">(.*?)</p>', html, re.DOTALL) or [""]
    return {text: unescape(to) for to, text in re.findall(r'<a href="([^"]*)">([^<]*)<', below)}


def test_pages_link_their_source_and_a_report(root):
    done = build(root, REPOSITORY + "/")
    assert done.returncode == 0, done.stderr
    commit = git(root, "rev-parse", "--short=12", "HEAD")
    for page, source in SOURCES.items():
        found = links(root, page)
        assert found["Source of this page"] == f"{REPOSITORY}/blob/{commit}/{source}"
        address, _, query = found["Report an error in it"].partition("?")
        assert address == f"{REPOSITORY}/issues/new"
        issue = parse_qs(query)
        assert issue["title"] == ["Title & more: "]
        (body,) = issue["body"]
        for line in (f"Page: {page}.html", f"Source: {source}", f"Commit: {commit}"):
            assert line in body.splitlines()
        assert re.search(r"^Stamp: (?:not-executed|built) on \d{4}.* torch \d", body, re.MULTILINE)
    assert urlsplit(links(root, "genindex")["Report an error in it"]).query
    assert "Source of this page" not in links(root, "genindex")


def test_without_the_address_nothing_shows_and_no_page_keeps_it(root):
    assert build(root, REPOSITORY).returncode == 0
    done = build(root, "")
    assert done.returncode == 0, done.stderr
    assert [page for page in [*SOURCES, "genindex"] if links(root, page)] == []
    assert "example.org" not in (root / "build" / "index.html").read_text()


def test_an_address_that_is_none_stops_the_build(root):
    done = build(root, "owner/manual")
    assert done.returncode != 0
    assert "REPO_URL is 'owner/manual'; give an absolute http(s) address" in done.stderr
