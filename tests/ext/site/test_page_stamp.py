"""The stamp on every page, and the not-executed directive, on a tiny site."""

import json
import re
from importlib.metadata import version

import pytest

from tests.support import ROOT
from tests.support.repository import git
from tests.support.small_site import SmallSite

NOON = "1763640000"  # 2025-11-20 12:00 UTC
EVENING = "1763661600"

CONF = f"""\
extensions = ["docs._ext.site.page_stamp", "docs._ext.site.not_executed"]
html_theme = "pydata_sphinx_theme"
html_theme_options = {{"article_footer_items": ["page-stamp"]}}
templates_path = [{str(ROOT / "docs" / "_templates")!r}]

def setup(app):
    app.add_config_value("sphinx_gallery_conf", {{"plot_gallery": PLOT}}, "")
"""
STAMP = {
    "date": "2024-01-02T03:04:05Z",
    "device": "NVIDIA </script> H200",
    "python": "3.11.7",
    "versions": {"torch": "9.8.7", "torchrl": "0.14.1"},
}
PAGES = {
    "conf.py": CONF.replace("PLOT", "True"),
    "index.rst": "Home\n====\n\n.. toctree::\n\n   other\n   page\n   tutorials/lesson\n",
    "other.rst": "Other\n=====\n",
    "page.rst": "Page\n====\n\n.. not-executed:: It needs ``four`` GPUs.\n\n   x = 1\n",
    "tutorials/lesson.rst": "Lesson\n======\n",
    "tutorials/lesson.py": '"""Lesson"""\n',
    "tutorials/lesson.stamp.json": json.dumps(STAMP),
}

pytestmark = pytest.mark.slow


class Site(SmallSite):
    """A site that is built at a given time."""

    def build(self, epoch=NOON):
        return super().build(SOURCE_DATE_EPOCH=epoch)

    def stamp(self, page):
        """What a machine reads."""
        element = r'<script type="application/json" id="page-stamp">(.*?)</script>'
        (text,) = re.findall(element, self.page(page))
        return json.loads(text)

    def sentence(self, page):
        """What a person reads."""
        (text,) = re.findall(r'<p class="page-stamp"[^>]*>(.*?)</p>', self.page(page), re.DOTALL)
        return " ".join(re.sub("<[^>]+>", " ", text).replace("&nbsp;", " ").split())


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path, PAGES)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return Site(tmp_path_factory.mktemp("stamped"), PAGES).built()


@pytest.mark.parametrize("page", ["index", "page", "genindex", "search"])
def test_page_says_with_what_it_was_built(built, page):
    stamp = built.stamp(page)
    assert stamp["kind"] == "built"
    assert stamp["date"] == "2025-11-20T12:00:00Z"
    assert stamp["commit"] is None  # the fixture is no git checkout
    for package in ("torch", "torchrl", "tensordict", "gymnasium"):
        assert stamp["versions"][package] == version(package)
    sentence = built.sentence(page)
    assert sentence.startswith("Built on 2025-11-20 12:00:00 UTC on CPU with")
    assert f"torchrl {version('torchrl')}" in sentence
    assert "commit" not in sentence


def test_tutorial_says_where_it_was_executed(built):
    stamp = built.stamp("tutorials/lesson")
    assert stamp == {
        "kind": "executed",
        "commit": None,
        "date": STAMP["date"],
        "device": STAMP["device"],
        "versions": {"python": "3.11.7", "torch": "9.8.7", "torchrl": "0.14.1"},
    }
    sentence = built.sentence("tutorials/lesson")
    assert sentence.startswith("Executed on 2024-01-02 03:04:05 UTC on NVIDIA")
    assert "torchrl 0.14.1, torch 9.8.7, Python 3.11.7." in sentence


def test_unchanged_page_keeps_its_stamp_and_a_changed_one_gets_a_new_one(site):
    site.build()
    site.append("page.rst", "\nMore.\n")
    site.built(EVENING)
    assert site.stamp("other")["date"] == "2025-11-20T12:00:00Z"
    assert site.stamp("page")["date"] == "2025-11-20T18:00:00Z"


def test_rerun_tutorial_gets_its_new_stamp(site):
    site.build()
    rerun = {**STAMP, "date": "2024-02-02T00:00:00Z"}
    site.write({"tutorials/lesson.stamp.json": json.dumps(rerun)})
    site.built()
    assert site.stamp("tutorials/lesson")["date"] == "2024-02-02T00:00:00Z"


def test_changed_stack_rewrites_every_page(site):
    site.build()
    # The site's conf.py stands in for an upgraded package: it answers before the metadata does.
    upgrade = "    from docs._ext.site import page_stamp\n"
    site.append("conf.py", f"{upgrade}    page_stamp.installed_version = str.upper\n")
    site.built(EVENING)
    for page in ("index", "other"):
        assert site.stamp(page)["date"] == "2025-11-20T18:00:00Z"
        assert site.stamp(page)["versions"]["torch"] == "TORCH"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "lesson.stamp.json is missing: the gallery has not executed this tutorial"),
        ("{", "lesson.stamp.json is not JSON"),
        ('{"date": ""}', "lesson.stamp.json lacks one of the keys"),
    ],
)
def test_bad_stamp_is_a_warning_on_every_build(site, content, complaint):
    stamp = site.docs / "tutorials" / "lesson.stamp.json"
    stamp.unlink()
    if content is not None:
        stamp.write_text(content)
    for _ in range(2):  # a warning that only the first build gives turns the second green
        said = site.fails()
        assert complaint in said
        assert "lesson.rst" in said


def test_build_without_execution_says_so(site):
    site.edit("conf.py", "True", "False")
    (site.docs / "tutorials" / "lesson.stamp.json").unlink()
    site.built()
    assert site.stamp("tutorials/lesson")["kind"] == "not-executed"
    assert site.sentence("tutorials/lesson").startswith("Not executed in this build")


def test_commit_is_stamped_and_a_changed_tree_is_marked(site):
    git(site.docs, "init")
    git(site.docs, "add", "index.rst", "page.rst")
    git(site.docs, "commit", "-m", "pages")
    head = git(site.docs, "rev-parse", "--short=12", "HEAD")
    site.build()
    assert site.stamp("index")["commit"] == head
    site.append("page.rst", "\nMore.\n")
    site.build()
    assert site.stamp("page")["commit"] == head + "+"
    assert site.sentence("page").endswith(f"from commit {head} and uncommitted changes.")


def test_not_executed_shows_the_reason_and_the_code(built):
    html = built.page("page")
    (box,) = re.findall(r'<div class="not-executed[^"]*">(.*?)</div>\s*</section>', html, re.DOTALL)
    text = " ".join(re.sub("<[^>]+>", "", box).split())
    assert text.startswith("This code is not executed here. It needs four GPUs.")
    assert "highlight-python" in box


@pytest.mark.parametrize(
    ("markup", "complaint"),
    [
        (".. not-executed::\n\n   x = 1\n", "not-executed needs a reason"),
        (".. not-executed:: Reason.\n", "not-executed needs the Python code"),
        (".. not-executed:: Reason.\n\n   x = = 1\n", "the body of not-executed is not Python"),
    ],
)
def test_not_executed_reports_misuse_with_its_line(site, markup, complaint):
    site.write({"page.rst": f"Page\n====\n\n{markup}"})
    said = site.fails()
    assert complaint in said
    assert "page.rst:4:" in said
