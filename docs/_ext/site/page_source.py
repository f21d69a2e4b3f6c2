"""Links from a page to its source and to a report of an error in it.

Switch on: ``"docs._ext.site"`` in ``extensions``, and ``page-stamp.html`` among the footer items of
an article. Nothing is shown until a build knows the repository, on GitHub or what answers like it:

    REPO_URL=https://github.com/owner/manual make html

What it writes, below the stamp: a link to the file that a maintainer edits, at the commit of the
stamp, and one to a new issue that holds the title, the address, the source and the stamp of the
page. A page that Sphinx makes without a file, as the index, has the second link only.
"""

import os
from pathlib import Path
from urllib.parse import urlencode, urljoin

from docs._ext.gallery.cache import galleries
from docs._ext.site.page_meta import absolute_address

API = "reference/api"  # docs/_ext/source/api_pages.py


def read_address(app, config):
    """config-inited: take the repository's address from REPO_URL."""
    config.repo_url = absolute_address("REPO_URL", config.repo_url)


def source_of(app, pagename):
    """The file to edit for the page, as a path in the repository; None if there is none."""
    if pagename not in app.env.found_docs:
        return None
    page, api = Path(app.srcdir, pagename), Path(app.srcdir, API)
    gallery = next((one for one in galleries(app) if page.is_relative_to(one.generated)), None)
    if gallery:
        script = gallery.scripts / page.relative_to(gallery.generated)
        header = script.with_name("GALLERY_HEADER.rst")
        source = header if script.name == "index" else script.with_name(f"{script.name}.py")
    elif page.parent == api and page.name != "index":
        notes = api / "notes" / f"{page.name}.rst"
        source = notes if notes.is_file() else api / "symbols.toml"
    else:
        source = Path(app.env.doc2path(pagename))
    return source.relative_to(app.confdir).as_posix()


def report(page, source, stamp):
    """Text of a new issue: where, with what, and a place for the words of the reader."""
    versions = ", ".join(f"{name} {number}" for name, number in stamp["versions"].items() if number)
    lines = [
        "What is wrong, and what should it say?",
        "",
        "",
        "",
        "---",
        f"Page: {page}",
        *([f"Source: {source}"] if source else []),
        f"Stamp: {stamp['kind']} on {stamp['date']} on {stamp['device']} with {versions}",
        f"Commit: {stamp['commit'] or 'unknown'}",
    ]
    return "\n".join(lines)


def add_links(app, pagename, templatename, context, doctree):
    """html-page-context, behind ``page_stamp``: hand the links to page-stamp.html."""
    repository, stamp = app.config.repo_url, context.get("page_stamp")
    if not repository or not stamp:
        return
    source = source_of(app, pagename)
    page = urljoin(app.config.site_url, app.builder.get_target_uri(pagename))
    title = app.env.titles[pagename].astext() if pagename in app.env.titles else pagename
    query = {"title": f"{title}: ", "body": report(page, source, stamp)}
    context["page_report"] = f"{repository}/issues/new?{urlencode(query)}"
    if source:
        commit = (stamp["commit"] or "HEAD").removesuffix("+")
        context["page_source"] = f"{repository}/blob/{commit}/{source}"


def setup(app):
    app.setup_extension("docs._ext.site.page_meta")
    app.setup_extension("docs._ext.site.page_stamp")
    app.add_config_value("repo_url", os.environ.get("REPO_URL", ""), "html", types=str)
    app.connect("config-inited", read_address)
    app.connect("html-page-context", add_links, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
