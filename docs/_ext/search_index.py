"""Keep glossary terms and other index entries in the search after an incremental build.

Sphinx fills the search index from the pages that it writes, and takes what it knows of the others
from the index of the build before. It reads their words and titles back, and forgets their index
entries: after an edit of one page, a search for a glossary term no longer leads to its entry.

Switch on: ``"search_index"`` in ``extensions``. There is no markup.

What it writes: ``indexentries`` of ``searchindex.js``, complete and in the order of a full build.
``tests/test_search_index.py`` compares the two.
"""

from sphinx.util.index_entries import split_index_msg


def entries_of(env, docname):
    """What Sphinx's ``IndexBuilder.feed`` finds in the page, from the environment."""
    found = set()
    for kind, value, target, main, _ in env.domains["index"].entries.get(docname, []):
        found |= {(name, target or "", main) for name in split_index_msg(kind, value)}
    return sorted(found)


def complete(app):
    """html-collect-pages, when the pages are written and the search index is not: add entries."""
    indexer = getattr(app.builder, "indexer", None)
    if indexer is not None:
        known = indexer._index_entries
        names = sorted(indexer._titles)
        every = {name: known.get(name) or entries_of(app.env, name) for name in names}
        known.clear()
        known.update(every)
    return []


def setup(app):
    app.connect("html-collect-pages", complete)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
