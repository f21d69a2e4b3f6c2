"""Small pictures of the gallery have no letters."""

from docs._ext.site.thumbnails import RULE, without_letters

SVG = '<?xml version="1.0"?>\n<svg\n viewBox="0 0 9 9">\n<text>a</text></svg>\n'


def test_the_rule_stands_once_behind_the_opening_tag():
    once = without_letters(SVG)
    assert once == SVG.replace('9">', f'9">{RULE}')
    assert without_letters(once) == once
