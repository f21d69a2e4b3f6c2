"""Cards of the gallery are words: code as code, the time to read, and no picture."""

import re
from types import SimpleNamespace

import pytest
from docutils.core import publish_doctree

from docs._ext.site.gallery_cards import (
    CLOSE,
    OPEN,
    SHOWN,
    START,
    TOCTREE,
    drop_thumbnails,
    grouped,
    rewrite,
    with_code,
)
from docs._ext.site.tutorial_head import MINUTES
from docs._ext.support import galleries
from docs._ext.support.page_state import page_state
from tests.support import SITE

SCRIPT = '''"""
Title
=====

.. a comment

Set ``done_keys`` or ``done``, and ``a="b"``.

Not ``here``.
"""
'''


def test_code_of_the_first_paragraph_is_code_in_the_card():
    said = with_code("Set done_keys or done, and a=&quot;b&quot;. Not here.", SCRIPT)
    assert said == (
        "Set <code>done_keys</code> or <code>done</code>, and <code>a=&quot;b&quot;</code>. "
        "Not here."
    )
    assert with_code("Set done.", SCRIPT.replace("``", "")) == "Set done."


def test_an_apostrophe_of_a_card_is_that_of_the_text():
    said = with_code("TorchRL&#x27;s, or one's, done_keys.", SCRIPT)
    assert said == "TorchRL’s, or one’s, <code>done_keys</code>."


CARDS = "".join(f"{START}>\n\n  :doc:`/how-to/{name}`\n\n" for name in ("one", "two", "three"))


def test_cards_come_in_the_groups_that_the_order_has_titles_for():
    tree = "   /how-to/one\n   /how-to/two\n   /how-to/three\n"
    page = f"Guides\n======\n\n{OPEN}{CARDS}{CLOSE}{TOCTREE}\n{tree}"
    order = "# Ranked.\n## Set up\n# Two.\none\ntwo\n\n## Run it\nthree\n"
    shown = grouped(page, order)
    parts = ["Set up\n------", "/one`", "/two`", "Run it\n------", "/three`"]
    places = [shown.index(part) for part in parts]
    assert places == sorted(places)
    assert shown.count(OPEN) == shown.count(CLOSE) == 2
    assert shown.index(OPEN) > shown.index("Set up"), "no empty group before the first"
    side = re.findall(r":caption: (.*)|^   /how-to/(\w+)$", shown, re.MULTILINE)
    assert ["".join(one) for one in side] == ["Set up", "one", "two", "Run it", "three"]
    assert shown.count(TOCTREE) == 2
    assert grouped(page, "one\ntwo\nthree\n") == page


@pytest.mark.site
def test_every_guide_stands_in_a_group():
    page = (SITE / "how-to" / "index.html").read_text("utf-8")
    before, *groups = page.partition("<article")[2].split("<h2>")
    assert "sphx-glr-thumbcontainer" not in before
    assert [group.count("sphx-glr-thumbcontainer") > 1 for group in groups] == [True] * 4
    captions = re.findall(r'<span class="caption-text">(.*?)</span>', page)
    assert captions == [group.partition("<")[0] for group in groups]


def test_pages_lose_their_thumbnails_and_are_written_again_when_a_time_changes():
    stores = SimpleNamespace(data={"stores": {}})
    env = SimpleNamespace(domains={"page_state": stores}, docname="tutorials/index")
    images = ("/tutorials/images/thumb/sphx_glr_a_thumb.svg", "images/own.svg")
    page = publish_doctree("\n\n".join(f".. image:: {name}" for name in images))
    drop_thumbnails(SimpleNamespace(env=env), page)
    assert [image["uri"] for image in page.findall(lambda node: node.tagname == "image")] == [
        "images/own.svg"
    ]
    assert page_state(env, SHOWN) == {"tutorials/index": True}
    for minutes in (1, 2):
        page_state(env, MINUTES)["tutorials/a"] = minutes
        assert rewrite(None, env) == ["tutorials/index"]
        assert rewrite(None, env) == []


@pytest.mark.site
@pytest.mark.parametrize("gallery", galleries.NAMES)
def test_cards_of_the_site_are_words(gallery):
    page = (SITE / gallery / "index.html").read_text("utf-8")
    texts = re.findall(r'<p class="sphx-glr-thumbnail-intro">(.*?)</p>', page)
    assert len(texts) > 5
    assert any("<code>" in text for text in texts)
    assert all(re.search(r" <small>\d+ min to read</small>$", text) for text in texts)
    assert "_thumb." not in page
