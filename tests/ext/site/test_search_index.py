"""The search index: what becomes an entry, what is left out, and the same after any build."""

import os

import pytest

from docs._ext.site.search_index import ENGLISH_STOPWORDS, split, stems
from tests.support import ROOT, sphinx_forks
from tests.support.search import evaluate, index_of, titles_and_addresses

PAGES = {
    "index.rst": "Home\n====\n\n.. toctree::\n\n   other\n   words\n",
    "other.rst": "Other\n=====\n\nSee :doc:`words`.\n\nA part’s name\n-------------\n\nText.\n",
    "words.rst": "Words\n=====\n\n.. glossary::\n\n   shuttle\n      See elsewhere.\n",
}
EXTENSIONS = "docs._ext.site.search_index,docs._ext.source.renamed_api"


def build(folder, *options, **environment):
    options = ["-q", "-W", *options, "-C", "-D", "project=Toy", "-D", f"extensions={EXTENSIONS}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    sphinx_forks.run(*options, folder / "docs", folder / "html", env=environment, check=True)
    return (folder / "html" / "_static" / "search.js").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "docs").mkdir()
    for name, text in PAGES.items():
        (tmp_path / "docs" / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_an_edit_elsewhere_loses_nothing(folder):
    assert '"shuttle"' in build(folder)
    with (folder / "docs" / "index.rst").open("a", encoding="utf-8") as page:
        page.write("\nMore.\n")
    again = build(folder)
    assert '"shuttle"' in again
    assert again == build(folder, "-E", "-a", "-j", "2", PYTHONHASHSEED="1")


def test_a_removed_page_takes_its_entries_along(folder):
    assert "Other" in build(folder)
    (folder / "docs" / "other.rst").unlink()
    (folder / "docs" / "index.rst").write_text(PAGES["index.rst"].replace("   other\n", ""))
    again = build(folder)
    assert "Other" not in again
    assert '"shuttle"' in again


def test_a_removed_term_leaves_the_index(folder):
    assert '"shuttle"' in build(folder)
    text = PAGES["words.rst"].replace("shuttle", "carrier")
    (folder / "docs" / "words.rst").write_text(text, encoding="utf-8")
    again = build(folder)
    assert '"shuttle"' not in again
    assert '"carrier"' in again
    assert again == build(folder, "-E", "-a")


def test_sections_and_terms_have_addresses_and_names_as_they_are_spelled(folder):
    text = PAGES["words.rst"] + "\n   _AcceptedKeys\n   n-step return\n      More.\n"
    (folder / "docs" / "words.rst").write_text(text, encoding="utf-8")
    build(folder)
    assert titles_and_addresses(folder / "html") == [
        ("Home", "index.html"),
        ("Other", "other.html"),
        ("A part’s name", "other.html#a-parts-name"),
        ("Words", "words.html"),
        ("shuttle", "words.html#term-shuttle"),
        ("_AcceptedKeys", "words.html#term-_AcceptedKeys"),
        ("n-step return", "words.html#term-n-step-return"),
    ]
    page = (folder / "html" / "other.html").read_text(encoding="utf-8")
    assert '<section id="a-parts-name">' in page


def test_a_snippet_names_the_page_it_refers_to(folder):
    build(folder)
    assert [entry[4] for entry in index_of(folder / "html")["entries"] if entry[3] == "Other"] == [
        "See Words."
    ]


def test_a_snippet_names_a_page_of_its_own_folder_and_keeps_no_escape(folder):
    (folder / "docs" / "near").mkdir()
    (folder / "docs" / "near" / "one.rst").write_text(
        ":orphan:\n\nOne\n===\n\n**See** ``it``\\ **:** :doc:`two`, not :doc:`/words`.\n"
    )
    (folder / "docs" / "near" / "two.rst").write_text(":orphan:\n\nTwo\n===\n\nText.\n")
    build(folder)
    assert [entry[4] for entry in index_of(folder / "html")["entries"] if entry[3] == "One"] == [
        "See it: Two, not Words."
    ]


TEXT = """
Page
====

Kept words.

And a second paragraph.

.. code-block:: python

   left_out_code = 1

::

   RuntimeError: sizes do not match

.. container:: sphx-glr-footer

   left_out_footer

.. search-box:: left_out_label
"""


def test_code_and_what_the_gallery_adds_are_left_out(folder):
    (folder / "docs" / "other.rst").write_text(TEXT, encoding="utf-8")
    script = build(folder)
    index = index_of(folder / "html")
    assert [entry[4] for entry in index["entries"] if entry[3] == "Page"] == ["Kept words."]
    assert index["terms"].split() == ["paragraph", "second"]
    assert "left_out" not in script
    assert "RuntimeError" not in script  # nothing printed it: no symptom


def test_words_of_readers_lead_there_too(folder):
    words = 'groups = [["OOM", "out of memory"]]\n[also_called]\n"other.html" = "a place apart"\n'
    (folder / "docs" / "search_synonyms.toml").write_text(words)
    said = '[[message]]\ntext = "ValueError: no size"\ntargets = ["words.html#term-shuttle"]\n'
    (folder / "docs" / "reference").mkdir()
    (folder / "docs" / "reference" / "messages.toml").write_text(said)
    with (folder / "docs" / "index.rst").open("a", encoding="utf-8") as page:
        page.write("\nThe process ran out of memory.\n")
    build(folder)
    queries = ["place apart", "oom", 'Traceback:\n  File "/x/no.py"\nValueError: no size 12']
    first = "(query) => ManualSearch.search(query).map(({ address }) => address)[0]"
    found = evaluate(folder / "html", queries, first)["answers"]
    assert found == ["other.html", "index.html", "words.html#term-shuttle"]


def test_a_term_does_not_answer_for_its_page(folder):
    text = "Yard\n====\n\nOf steam.\n\nA shed\n------\n\nText.\n"
    (folder / "docs" / "other.rst").write_text(text, encoding="utf-8")
    build(folder)
    hits = "(query) => ManualSearch.search(query).map(({ address }) => address)"
    found = evaluate(folder / "html", ["steam", "words"], hits)["answers"]
    assert found == [["other.html", "other.html#a-shed"], ["words.html"]]


def test_a_name_with_a_slip_leads_to_it(folder):
    text = "\n   LazyMemmapStorage\n      A storage.\n\n   burn-in\n      First.\n"
    (folder / "docs" / "words.rst").write_text(PAGES["words.rst"] + text, encoding="utf-8")
    build(folder)
    slips = ["LazyMemapStorage", "LazyMemmapStroage", "lazymemmapstorages", "brun-in", "shutlle"]
    first = "(query) => ManualSearch.search(query)[0]?.title"
    found = evaluate(folder / "html", slips, first)["answers"]
    assert found == [*["LazyMemmapStorage"] * 3, "burn-in", "shuttle"]


def test_sphinx_makes_no_index_beside_it(folder):
    build(folder)
    static = folder / "html" / "_static"
    assert not (folder / "html" / "searchindex.js").exists()
    assert not (static / "searchtools.js").exists()
    assert "Permission is hereby granted" in (static / "search-license.txt").read_text()


WORDS = {
    "SliceSampler": ["slicesampler", "slice", "sampler"],
    "traj_ids": ["traj_ids", "traj", "id"],
    "_cast_to_env": ["cast_to_env", "cast", "to", "env"],
    "DQNLoss": ["dqnloss", "dqn", "loss"],
    "TD0Estimate": ["td0estimate", "td", "estim"],
    "recompiles": ["recompil"],
}


@pytest.mark.parametrize("word", WORDS)
def test_symbols_are_split_and_whole(word):
    assert split(word) == WORDS[word]


def test_the_engine_splits_and_stems_alike(folder):
    """Here a few words; ``tests/search`` compares every one of the site."""
    build(folder)
    texts = [*WORDS, *sorted(ENGLISH_STOPWORDS), "its n-step returns, of 3 kinds"]
    found = evaluate(folder / "html", texts, "(text) => ManualSearch.stems(text)")["answers"]
    assert found == [stems(text) for text in texts]


TABLE = """Changes
=======

.. list-table::
   :header-rows: 1

   * - Old
     - New
   * - ``OldSpec`` of ``toy.data``
     - ``Spec``
   * - ``StillThere(old_flag=...)``
     - nothing
   * - ``Loop._walk_back``
     - ``Loop.back``
   * - ``costs``
     - a word

.. list-table::
   :header-rows: 1

   * - Name
   * - ``NotOld``
"""


def test_old_names_lead_to_their_row(folder):
    (folder / "docs" / "other.rst").write_text(TABLE, encoding="utf-8")
    build(folder)
    rows = {name: f"other.html#old-{name}" for name in ("OldSpec", "old_flag", "_walk_back")}
    found = dict(titles_and_addresses(folder / "html"))
    assert {name: at for name, at in found.items() if "#old-" in at} == rows
    text = (folder / "html" / "other.html").read_text(encoding="utf-8")
    assert all(f'id="old-{name}"' in text for name in rows)
    assert 'id="old-NotOld"' not in text
    snippets = {entry[3]: entry[4] for entry in index_of(folder / "html")["entries"]}
    assert snippets["OldSpec"] == "OldSpec of toy.data → Spec"
