"""The search index: what becomes an entry, what is left out, and the same after any build."""

from itertools import product

import pytest

from docs._ext.site.search_index import ENGLISH_STOPWORDS, split, stems
from tests.support.search import evaluate, index_of, titles_and_addresses
from tests.support.small_site import SmallSite

PAGES = {
    "index.rst": "Home\n====\n\n.. toctree::\n\n   other\n   words\n",
    "other.rst": "Other\n=====\n\nSee :doc:`words`.\n\nA part’s name\n-------------\n\nText.\n",
    "words.rst": "Words\n=====\n\n.. glossary::\n\n   shuttle\n      See elsewhere.\n",
}
EXTENSIONS = "docs._ext.site.search_index,docs._ext.source.renamed_api"


def build(site, *options, **environment):
    """The script that holds the index."""
    site.built(*options, **environment)
    return (site.html / "_static" / "search.js").read_text(encoding="utf-8")


@pytest.fixture
def site(tmp_path):
    return SmallSite(tmp_path, PAGES, extensions=EXTENSIONS)


def snippets(site):
    """Title -> snippet of each entry."""
    return {entry[1]: entry[2] for entry in index_of(site.html)["entries"]}


def fields(site, name):
    """Title -> terms that each entry has in the field, as the engine reads them."""
    every = evaluate(site.html, [None], "() => ManualSearch.entries()")["answers"][0]
    return {one["title"]: one["fields"][name] for one in every}


def test_an_edit_elsewhere_loses_nothing(site):
    build(site)
    site.append("index.rst", "\nMore.\n")
    again = build(site)
    assert "shuttle" in snippets(site)
    assert again == build(site, "-E", "-a", "-j", "2", PYTHONHASHSEED="1")


def test_a_removed_page_takes_its_entries_along(site):
    assert "Other" in build(site)
    (site.docs / "other.rst").unlink()
    site.edit("index.rst", "   other\n", "")
    again = build(site)
    assert "Other" not in again
    assert "shuttle" in snippets(site)


def test_a_removed_term_leaves_the_index(site):
    assert "shuttle" in build(site)
    site.edit("words.rst", "shuttle", "carrier")
    again = build(site)
    assert "shuttle" not in again
    assert "carrier" in snippets(site)
    assert again == build(site, "-E", "-a")


def test_sections_and_terms_have_addresses_and_names_as_they_are_spelled(site):
    site.append("words.rst", "\n   _AcceptedKeys\n   n-step return\n      More.\n")
    build(site)
    assert titles_and_addresses(site.html) == [
        ("Home", "index.html"),
        ("Other", "other.html"),
        ("A part’s name", "other.html#a-parts-name"),
        ("Words", "words.html"),
        ("shuttle", "words.html#term-shuttle"),
        ("_AcceptedKeys", "words.html#term-_AcceptedKeys"),
        ("n-step return", "words.html#term-n-step-return"),
    ]
    assert '<section id="a-parts-name">' in site.page("other")


def test_a_snippet_names_the_page_it_refers_to(site):
    build(site)
    assert snippets(site)["Other"] == "See Words."


def test_a_snippet_names_a_page_of_its_own_folder_and_keeps_no_escape(site):
    one = ":orphan:\n\nOne\n===\n\n**See** ``it``\\ **:** :doc:`two`, not :doc:`/words`.\n"
    site.write({"near/one.rst": one, "near/two.rst": ":orphan:\n\nTwo\n===\n\nText.\n"})
    build(site)
    assert snippets(site)["One"] == "See it: Two, not Words."


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


def test_code_and_what_the_gallery_adds_are_left_out(site):
    site.write({"other.rst": TEXT})
    script = build(site)
    assert snippets(site)["Page"] == "Kept words."
    assert fields(site, "body")["Page"] == ["paragraph", "second"]
    assert "left_out" not in script
    assert "RuntimeError" not in script  # nothing printed it: no symptom


def test_words_of_readers_lead_there_too(site):
    groups = 'groups = [["OOM", "out of memory"], ["yarn", "thread"]]\n'
    called = '[also_called]\n"other.html" = "a place apart"\n'
    said = '[[message]]\ntext = "ValueError: no size"\ntargets = ["words.html#term-shuttle"]\n'
    asked = '"words.html" = ["who spins the yarn", "loom"]\n'
    site.write(
        {
            "search_synonyms.toml": groups + called,
            "search_questions.toml": asked,
            "reference/messages.toml": said,
        }
    )
    site.append("index.rst", "\nThe process ran out of memory.\n")
    build(site)
    traceback = 'Traceback:\n  File "/x/no.py"\nValueError: no size 12'
    queries = ["place apart", "spin yarn", "looms", "thread", "oom", traceback]
    first = "(query) => ManualSearch.search(query).map(({ address }) => address)[0]"
    found = evaluate(site.html, queries, first)["answers"]
    assert found == ["other.html", *["words.html"] * 3, "index.html", "words.html#term-shuttle"]


def test_a_phrase_of_words_that_say_nothing_alone_counts_as_a_word(site):
    words = """groups = [["after a while", "late"]]
    [also_called]
    "yarn.html" = "yarn"
    "other.html" = "yarn breaks late at the loom"
    """
    yarn = ":orphan:\n\nYarn\n====\n\nYarn is yarn.\n"
    site.write({"search_synonyms.toml": words, "yarn.rst": yarn})
    build(site)
    first = "(query) => ManualSearch.search(query)[0].address"
    found = evaluate(site.html, ["yarn", "yarn after a while"], first)["answers"]
    assert found == ["yarn.html", "other.html"]


def test_german_words_stand_for_english_ones(site):
    site.write({"search_german.toml": 'thread = "garn faden"\n"" = "wie das"\n'})
    site.append("words.rst", "\n   yarn\n      A thread.\n")
    build(site)
    ask = "(q) => { const hits = ManualSearch.search(q); return [hits[0]?.address, hits.unknown]; }"
    found = evaluate(site.html, ["wie das Garn", "F\u00e4den"], ask)["answers"]
    assert found == [["words.html#term-yarn", []]] * 2


def test_the_engine_reads_what_is_packed(site):
    """Words that share few letters and many; a place first, and one, two or three digits later."""
    words = ["".join(letters) for letters in product("bdfgklmnprtvz", repeat=3)]
    words += ["v" * 30 + end for end in ("b", "bd", "d")]
    site.write(
        {
            "search_questions.toml": f'"index.html" = {words}\n',
            "search_synonyms.toml": f'[also_called]\n"other.html" = "{", ".join(words)}"\n',
        }
    )
    build(site)
    names = "() => ManualSearch.entries().map(({ names }) => names.slice(1).map((one) => [...one]))"
    called = evaluate(site.html, [None], names)["answers"][0]
    assert called == [[], [[word] for word in words], [], [], []]
    assert sorted(fields(site, "body")["Home"]) == sorted(words)


def test_a_snippet_ends_with_a_sentence_or_says_that_more_follows(site):
    first, second = "One " + "word " * 15 + "here.", "Two " + "word " * 15 + "there."
    endless = "Word " + "word " * 40
    texts = {"a": f"{first} {second} {first}", "b": f"{first} {endless}", "c": f"Short. {endless}"}
    texts["d"] = f"{first} And more"
    pages = {f"{name}.rst": f":orphan:\n\n{name}\n=\n\n{text}\n" for name, text in texts.items()}
    site.write(pages)
    build(site)
    found = snippets(site)
    assert found["a"] == first
    assert found["b"] == first
    assert found["d"] == texts["d"]
    assert found["c"] == "Short. Word " + "word " * 23 + "…"


def test_a_term_does_not_answer_for_its_page(site):
    site.write({"other.rst": "Yard\n====\n\nOf steam.\n\nA shed\n------\n\nText.\n"})
    build(site)
    hits = "(query) => ManualSearch.search(query).map(({ address }) => address)"
    found = evaluate(site.html, ["steam", "words"], hits)["answers"]
    assert found == [["other.html", "other.html#a-shed"], ["words.html"]]


def test_a_name_with_a_slip_leads_to_it(site):
    text = "\n   LazyMemmapStorage\n      A storage.\n\n   burn-in\n      First.\n"
    site.append("words.rst", text)
    build(site)
    slips = ["LazyMemapStorage", "LazyMemmapStroage", "lazymemmapstorages", "brun-in", "shutlle"]
    first = "(query) => ManualSearch.search(query)[0]?.title"
    found = evaluate(site.html, slips, first)["answers"]
    assert found == [*["LazyMemmapStorage"] * 3, "burn-in", "shuttle"]


def test_a_slip_before_an_ending_leads_to_the_word(site):
    site.append("words.rst", "\n   training\n      First.\n")
    build(site)
    first = "(query) => ManualSearch.search(query)[0]?.title"
    slips = ["traning", "trianed"]  # codespell:ignore
    found = evaluate(site.html, slips, first)["answers"]
    assert found == ["training"] * 2


def test_sphinx_makes_no_index_beside_it(site):
    build(site)
    static = site.html / "_static"
    assert not (site.html / "searchindex.js").exists()
    assert not (static / "searchtools.js").exists()
    licenses = (static / "search-license.txt").read_text()
    assert "Permission is hereby granted" in licenses  # of the library
    assert "Dr Martin Porter" in licenses  # of the stemmer


def test_without_scripts_a_field_has_links_to_the_maps_that_there_are(site):
    site.append("index.rst", "\n.. search-box:: What do you see?\n")
    build(site)
    assert "<noscript>" not in (site.html / "index.html").read_text()
    (site.docs / "reference").mkdir()
    (site.docs / "reference" / "error_index.rst").write_text(":orphan:\n\nErrors\n======\n")
    build(site, "-a", "-E")
    line = '<noscript><p>Look it up: <a href="reference/error_index.html">what it prints</a>.</p>'
    assert line in (site.html / "index.html").read_text()


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


def test_the_engine_splits_and_stems_alike(site):
    """Here a few words; ``tests/search`` compares every one of the site."""
    build(site)
    texts = [*WORDS, *sorted(ENGLISH_STOPWORDS), "its n-step returns, of 3 kinds"]
    found = evaluate(site.html, texts, "(text) => ManualSearch.stems(text)")["answers"]
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


def test_old_names_lead_to_their_row(site):
    site.write({"other.rst": TABLE})
    build(site)
    rows = {name: f"other.html#old-{name}" for name in ("OldSpec", "old_flag", "_walk_back")}
    found = dict(titles_and_addresses(site.html))
    assert {name: at for name, at in found.items() if "#old-" in at} == rows
    text = site.page("other")
    assert all(f'id="old-{name}"' in text for name in rows)
    assert 'id="old-NotOld"' not in text
    assert snippets(site)["OldSpec"] == "OldSpec of toy.data → Spec"


API = """
:orphan:

sampled
=======

.. py:function:: sampled(rows, no_wait=False, row_key='row_number', shuttle_mode=None)

   Some rows.

.. py:function:: sampled.once(wait_at_end=True)

   One row.
"""


def test_an_argument_and_its_default_key_lead_to_what_takes_them(site):
    """Unless a place has that name; a plain word is no name."""
    site.write({"reference/api/sampled.rst": API})
    site.append("words.rst", "\n   shuttle mode\n      One of two.\n")
    build(site)
    queries = ["no_wait", "sampled(no_wait=True)", "row_number", "shuttle_mode", "rows"]
    hits = "(query) => ManualSearch.search(query).map(({ address }) => address)"
    found = evaluate(site.html, queries, hits)["answers"]
    page = "reference/api/sampled.html"
    assert [first for first, *_ in found[:3]] == [page] * 3
    assert found[3][0] == "words.html#term-shuttle-mode"
    assert page not in found[3]
    assert sorted(fields(site, "also")["sampled"]) == ["no_wait", "row_key", "row_number"]


def test_a_name_is_found_before_it_is_typed_to_the_end(site):
    site.append(
        "words.rst", "\n   carrierDevices\n      More.\n\n   carrier_devices_of_all\n      All.\n"
    )
    build(site)
    first = "(query) => ManualSearch.search(query)[0]?.address"
    found = evaluate(site.html, ["carrierDev", "carrier_dev"], first)["answers"]
    assert found == ["words.html#term-carrierDevices"] * 2
