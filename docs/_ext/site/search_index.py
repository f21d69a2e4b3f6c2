"""Complete the search index: glossary terms by name, and nothing lost in an incremental build.

Sphinx fills the search index from the pages that it writes, and takes what it knows of the others
from the index of the build before. It reads their words and titles back, and forgets their index
entries: after an edit of one page, a search for a glossary term no longer leads to its entry.
It also gives every hit on an index entry the title of its page.

Switch on: ``"docs._ext.site"`` in ``extensions``, and ``search_names.js`` beside this file as
``html_search_scorer``, which names the hits. There is no markup.

What it writes: ``indexentries`` of ``searchindex.js``, complete and in the order of a full build,
and among its ``alltitles`` the glossary terms, the knobs of ``source.knobs`` and the old names that
``source.renamed_api`` finds.
``tests/ext/site/test_search_index.py`` compares the builds.
"""

from sphinx.util.index_entries import split_index_msg

from docs._ext.support.page_state import page_state


def entries_of(env, docname):
    """What Sphinx's ``IndexBuilder.feed`` finds in the page, from the environment."""
    found = set()
    for kind, value, target, main, _ in env.domains["index"].entries.get(docname, []):
        found |= {(name, target or "", main) for name in split_index_msg(kind, value)}
    return sorted(found)


def terms_of(env):
    """Each page with a glossary -> its terms, as they are spelled, with their ids."""
    found = {}
    for (kind, name), (docname, target) in env.domains.standard_domain.objects.items():
        if kind == "term":
            found.setdefault(docname, []).append((name, target))
    return found


def knobs_of(env):
    """Each page with performance knobs -> their names with their ids."""
    found = page_state(env, "knobs")
    return {page: [(one["name"], one["id"]) for one in own] for page, own in found.items()}


def old_names_of(env):
    """Each page with a table of old names -> those that nothing of today is called."""
    present = {
        name.rpartition(".")[2].lower()
        for domain in env.domains.sorted()
        for name, _, kind, *_ in domain.get_objects()
        if domain.name == "py" or kind == "term"
    }
    return {
        page: [(name, target) for name, target in names if name.lower() not in present]
        for page, names in page_state(env, "renamed_api").items()
    }


def complete(app):
    """html-collect-pages, when the pages are written and the search index is not.

    What it adds has no public way in (sphinx-doc/sphinx#12599 is the loss of index entries).
    """
    indexer = getattr(app.builder, "indexer", None)
    if indexer is not None:
        known = indexer._index_entries
        names = sorted(indexer._titles)
        every = {name: known.get(name) or entries_of(app.env, name) for name in names}
        known.clear()
        known.update(every)
        for docname, old in old_names_of(app.env).items():
            known[docname] = known[docname] + [(name, target, "main") for name, target in old]
            titles = indexer._all_titles[docname]
            titles[:] = [title for title in titles if not str(title[1]).startswith("old-")] + old
        for named in (terms_of(app.env), knobs_of(app.env)):
            for docname, names in named.items():
                titles = indexer._all_titles[docname]
                titles += sorted(set(names) - set(map(tuple, titles)))
    return []


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.connect("html-collect-pages", complete)
    return {"version": "2", "parallel_read_safe": True, "parallel_write_safe": True}
