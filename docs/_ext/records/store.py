"""Reach a record from a page, and link to it.

The extension ``records`` switches this on. A page depends on every file that decides what it shows;
the domain knows which page shows the stamps and which pages are to be read again.
"""

from functools import lru_cache

from docutils import nodes
from sphinx import addnodes
from sphinx.util import logging
from sphinx.util.nodes import make_refnode
from sphinx.util.osutil import relative_uri

from benchmarks import record as records
from docs._ext.support.page_domain import PageDomain

logger = logging.getLogger(__name__)
DOWNLOADS = "_downloads/records"


def library(env):
    return records.Library(env.config.records_folder, env.config.records_requirements)


def split_address(address):
    suite, separator, device = address.partition("@")
    if not separator:
        raise records.UnknownError(f"expected suite@device, found {address!r}")
    return suite, device


def reach(env, suite, device):
    """Return a record and why which of its benchmarks is outdated.

    The page then depends on what decides both.
    """
    found = library(env)
    domain = env.domains[RecordsDomain.name]
    path = found.path(suite, device)
    decisive = [*found.code(suite), found.requirements]
    if path.is_file():
        decisive.append(path)
    for item in decisive:
        env.note_dependency(item)
    if path not in decisive:  # as a dependency it would have the page read on every build
        domain.data["absent"].setdefault(env.docname, set()).add(str(path))
        found.find(suite, device)
    stamps = tuple((str(item), item.stat().st_mtime_ns) for item in decisive)
    return _judged(found.folder, found.requirements, suite, device, stamps)


@lru_cache
def _judged(folder, requirements, suite, device, stamps):
    found = records.Library(folder, requirements)
    record = found.find(suite, device)
    return record, found.outdated(record)


def complain(env, error, location):
    """Report *error* as a warning of the content, in every build until it is cured."""
    env.domains[RecordsDomain.name].data["complained"][env.docname] = True
    kinds = {records.UnknownError: "unknown", records.AbsentError: "absent"}
    subtype = kinds.get(type(error), "malformed")
    logger.warning("%s", error, location=location, type="records", subtype=subtype)


def note_outdated(address, reasons, location):
    if reasons:
        logger.info("%s is %s: %s", address, records.AGAIN, "; ".join(reasons), location=location)


class RecordsDomain(PageDomain):
    """Knows which page shows the stamps, and which pages wait for a record."""

    name = "records"
    label = "Benchmark records"
    initial_data = {"index": {}, "absent": {}, "complained": {}}  # noqa: RUF012 - Sphinx's interface
    dangling_warnings = {  # noqa: RUF012
        "stamp": "no page shows the stamp of %(target)s; put '.. record-index::' on one"
    }

    def resolve_xref(self, env, fromdocname, builder, typ, target, node, contnode):
        if typ == "file":
            here = builder.get_target_uri(fromdocname)
            uri = relative_uri(here, f"{DOWNLOADS}/{target.replace('@', '-')}.json")
            return nodes.reference("", "", contnode, refuri=uri, internal=True)
        for docname in sorted(self.data["index"]):
            if target in self.data["index"][docname]:
                anchor = stamp_id(target)
                title = node.get("hover")
                return make_refnode(builder, fromdocname, docname, anchor, contnode, title)
        return None


def stamp_id(address):
    return nodes.make_id(f"record-{address}")


def link(env, kind, address, text, title=None):
    """A link to the stamp or to the file of a record, resolved when all pages are read."""
    reference = addnodes.pending_xref(
        "",
        nodes.inline(text, text, classes=["measured"] if title else []),
        refdomain=RecordsDomain.name,
        reftype=kind,
        reftarget=address,
        refdoc=env.docname,
        refwarn=True,
        hover=title,
    )
    return reference
