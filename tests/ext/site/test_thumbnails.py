"""Small pictures of the gallery have no letters, and its cards have code as code."""

import re

import pytest

from docs._ext.site.thumbnails import RULE, with_code, without_letters
from docs._ext.support import galleries
from tests.support import SITE

SCRIPT = '''"""
Title
=====

.. a comment

Set ``done_keys`` or ``done``, and ``a="b"``.

Not ``here``.
"""
'''

SVG = '<?xml version="1.0"?>\n<svg\n viewBox="0 0 9 9">\n<text>a</text></svg>\n'


def test_the_rule_stands_once_behind_the_opening_tag():
    once = without_letters(SVG)
    assert once == SVG.replace('9">', f'9">{RULE}')
    assert without_letters(once) == once


def test_code_of_the_first_paragraph_is_code_in_the_card():
    said = with_code("Set done_keys or done, and a=&quot;b&quot;. Not here.", SCRIPT)
    assert said == (
        "Set <code>done_keys</code> or <code>done</code>, and <code>a=&quot;b&quot;</code>. "
        "Not here."
    )
    assert with_code("Set done.", SCRIPT.replace("``", "")) == "Set done."


@pytest.mark.site
@pytest.mark.parametrize("gallery", galleries.NAMES)
def test_cards_of_the_site_have_code(gallery):
    page = (SITE / gallery / "index.html").read_text("utf-8")
    cards = re.findall(r'<p class="sphx-glr-thumbnail-intro">(.*?)</p>', page)
    assert any("<code>" in card for card in cards)
