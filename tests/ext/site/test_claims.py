"""The marks of claims leave no trace in what Sphinx writes."""

import pytest

from docs._ext.site.claims import unmarked
from tests.support.small_site import SmallSite

EXTENSIONS = ("claims", "page_meta", "search_index", "term_hints")
PAGE = """\
First "words" -- of the page. :claim:`first-words` More of *it*.
:claim:`more-of-it` And **bold** :claim:`bold`, so on :claim:`so-on`::

   code

A title :claim:`a-title`
------------------------

.. list-table:: Its caption :claim:`its-caption`

   * - Cell
     - One. :claim:`one-cell`
       Two.

.. glossary::

   carrier
      What goes around. :claim:`goes-around` And on.

The :term:`carrier`, ``literally``
:claim:`literally`

**It** ``is`` *so*, :claim:`is-so` **it** ``was`` so.

:Field: A body
   :claim:`a-body`
"""


def build(folder, page):
    extensions = ",".join(f"docs._ext.site.{name}" for name in EXTENSIONS)
    site = SmallSite(folder, {"index.rst": f"Home\n====\n\n{page}"}, extensions=extensions)
    said = site.build().stderr
    names = ("index.html", "_static/search.js", "genindex.html")
    return said, [(site.html / name).read_bytes().split() for name in names]


@pytest.mark.slow
def test_a_page_is_the_same_with_and_without_marks(tmp_path):
    marked = build(tmp_path / "marked", PAGE)
    assert marked[0] == ""
    assert marked == build(tmp_path / "plain", unmarked(PAGE))


@pytest.mark.slow
def test_what_is_no_id_is_an_error_of_the_page(tmp_path):
    errors, _ = build(tmp_path / "site", "Words. :claim:`No id`\n")
    assert "index.rst:4: ERROR: 'No id' is no id of a claim" in errors
