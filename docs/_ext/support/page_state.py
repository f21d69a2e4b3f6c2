"""What a page leaves for other pages: one Sphinx domain for all extensions.

Switch on: ``app.setup_extension("docs._ext.support.page_state")`` in the ``setup`` of an extension
that imports it. There is no markup. In Python::

    page_state(env, "shown").setdefault(env.docname, set()).add(name)   # while a page is read
    for page, names in page_state(env, "shown").items(): ...            # when all are

    note_target(env, "knob", name, anchor, what_it_does)                # any page may now use
    link(env, "knob", name, nodes.Text(name))
    link_file(env, script, "_downloads/scripts/one.py", nodes.Text("one.py"))  # a path, or a text

A store is a dictionary by page. What a page left is dropped when the page is read anew or goes, and
what parallel readers found is collected; all of it survives to the next build. Stores have no
order.

It writes links, and the files that they lead to. ``link`` leads to what any page named with
``note_target``, whose ``hover`` shows unless the link has its own. A name that no page noted is a
warning; an extension words it by an entry in ``MISSING``.
"""

from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.domains import Domain
from sphinx.util.nodes import make_refnode
from sphinx.util.osutil import relative_uri

from docs._ext.support.files import write_if_changed

FILES = "files"  # page -> {path in the site: file, or its text, that it links there}
MISSING = {}  # kind of a target -> warning, with the name as %(target)s


class PageState(Domain):
    """The stores, and the links to targets that one of them holds."""

    name = "page_state"
    label = "What pages leave for each other"
    initial_data = {"stores": {}}  # noqa: RUF012 - Sphinx's interface
    dangling_warnings = MISSING

    def clear_doc(self, docname):
        for store in self.data["stores"].values():
            store.pop(docname, None)

    def merge_domaindata(self, docnames, otherdata):
        for name, theirs in otherdata["stores"].items():
            own = page_state(self.env, name)
            own.update({page: theirs[page] for page in docnames if page in theirs})

    def resolve_xref(self, env, fromdocname, builder, typ, target, node, contnode):
        if typ == "file":
            if builder.format != "html":
                return contnode  # only there the files are put beside the pages
            address = relative_uri(builder.get_target_uri(fromdocname), target)
            return nodes.reference("", "", contnode, refuri=address, internal=True)
        for page, targets in sorted(page_state(env, f"targets: {typ}").items()):
            if target in targets:
                anchor, hover = targets[target]
                hover = node.get("hover") or hover
                return make_refnode(builder, fromdocname, page, anchor, contnode, hover)
        return None


def page_state(env, store):
    """The dictionary by page that *store* names."""
    return env.domains[PageState.name].data["stores"].setdefault(store, {})


def note_target(env, kind, name, anchor, hover=None):
    """Let links to *name* lead to *anchor* of the page that is being read."""
    page_state(env, f"targets: {kind}").setdefault(env.docname, {})[name] = (anchor, hover)


def link(env, kind, name, content, hover=None):
    """A link from the page that is being read, resolved when all pages are."""
    return addnodes.pending_xref(
        "",
        content,
        refdomain=PageState.name,
        reftype=kind,
        reftarget=name,
        refdoc=env.docname,
        refwarn=True,
        hover=hover,
    )


def link_file(env, source, path, content):
    """A link to *source*, which the HTML site holds as *path*: for years, without a hash in it.

    *source* is a file, or the text of one.
    """
    page_state(env, FILES).setdefault(env.docname, {})[path] = source
    return link(env, "file", path, content)


def copy_files(app, exception):
    """build-finished: put the files where the pages link them."""
    if exception or app.builder.format != "html":
        return
    for files in page_state(app.env, FILES).values():
        for path, source in files.items():
            content = source if isinstance(source, str) else Path(source).read_bytes()
            write_if_changed(Path(app.outdir, path), content)


def setup(app):
    app.add_domain(PageState)
    app.connect("build-finished", copy_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
