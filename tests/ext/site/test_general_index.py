"""The index of terms and symbols: what is code is in code letters."""

import pytest

from docs._ext.site.general_index import marked
from tests.support.small_site import SmallSite

SOURCE = """Home
====

.. py:currentmodule:: tiny

.. py:class:: Engine

   .. py:method:: run()

.. glossary::

   carrier
   step_count
      What it is.
"""


@pytest.mark.parametrize(
    ("text", "address", "html"),
    [
        (
            "run() (tiny.Engine method)",
            "a.html#run",
            "<code>run()</code> <span>(tiny.Engine method)</span>",
        ),
        ("Engine (class in tiny)", "a.html#e", "<code>Engine</code> <span>(class in tiny)</span>"),
        ("(in module tiny)", "a.html#e", "<span>(in module tiny)</span>"),
        ("device", "a.html#knob-device", "<code>device</code>"),
        ("device", "a.html#term-device", "device"),
        ("batch <size>", "a.html#b", "batch &lt;size&gt;"),
    ],
)
def test_an_entry_says_what_is_code(text, address, html):
    assert marked(text, [("", address)]) == html


def test_the_index_has_its_entries_in_code_letters(tmp_path):
    site = SmallSite(tmp_path, {"index.rst": SOURCE}, extensions="docs._ext.site.general_index")
    page = site.built().page("genindex")
    for shown in (
        "<code>Engine</code> <span>(class in tiny)</span>",
        "<code>run()</code> <span>(tiny.Engine method)</span>",
        "<code>step_count</code>",
        "carrier",
    ):
        assert shown in page
    assert "<code>carrier" not in page
