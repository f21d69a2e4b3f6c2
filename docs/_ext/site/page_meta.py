"""Head of every page: description and link preview; with an address, canonical link and sitemap.

Switch on: ``"docs._ext.site"`` in ``extensions``. Nothing else is needed for a local build, which
names no host. A deployment says where the site will live, and absolute addresses appear:

    SITE_URL=https://example.org/manual/ make html

The description is the page's first paragraph, or the field before its title:

    :description: One sentence for search engines and link previews.

What it writes: ``description`` and Open Graph tags in each head; with ``SITE_URL`` also canonical
links, ``og:url``, ``og:image`` (``_static/card.png``), ``sitemap.xml`` and ``robots.txt``.
"""

import os
from html import escape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ConfigError

NOT_FOUND = "404"
MAX_DESCRIPTION = 200  # characters; search engines show fewer
GENERATED = {
    "genindex": "Every term, symbol and section of the site in alphabetical order.",
    "search": "Search every page of the site. The index is part of the site; no request leaves it.",
}


def absolute_address(variable, address):
    """The address that an environment variable holds, without a slash at its end; "" if none."""
    parts = urlsplit(address)
    if address and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise ConfigError(
            f"{variable} is {address!r}; give an absolute http(s) address or unset it"
        )
    return address.rstrip("/")


def read_address(app, config):
    """config-inited: take the site's address from SITE_URL."""
    if config.site_url:
        address = absolute_address("SITE_URL", config.site_url)
        config.site_url = config.html_baseurl = address + "/"


def shortened(text, limit=MAX_DESCRIPTION):
    """The text in one line, cut after a word."""
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    return text[:limit].rsplit(" ", 1)[0].rstrip(",;:.") + " …"


def first_paragraph(doctree):
    """Text of the first paragraph: one of a section if there is, else the first of a definition."""
    paragraphs = list(doctree.findall(nodes.paragraph))
    for parent in (nodes.section, addnodes.desc_content, nodes.definition):
        for paragraph in paragraphs:
            if isinstance(paragraph.parent, parent):
                return paragraph.astext()
    return ""


def description_of(pagename, title, meta, doctree):
    """What the page says of itself, else what its first paragraph says, else where it belongs."""
    text = meta.get("description") or GENERATED.get(pagename)
    if not text and doctree is not None:
        text = first_paragraph(doctree)
    return shortened(text or f"{title}, a page of executed, measured documentation for TorchRL.")


def preview_tags(site_url, address, title, description, site_name):
    """Kind, name and content of each tag, in the order in which they are written."""
    yield "property", "og:type", "website"
    yield "property", "og:site_name", site_name
    yield "property", "og:title", title
    yield "name", "description", description
    yield "property", "og:description", description
    if site_url:
        yield "property", "og:url", address
        yield "property", "og:image", urljoin(site_url, "_static/card.png")
        yield "property", "og:image:alt", f"{site_name}, the name and the mark of the site"
        yield "property", "og:image:width", "1200"
        yield "property", "og:image:height", "630"
        yield "name", "twitter:card", "summary_large_image"


def describe(app, pagename, templatename, context, doctree):
    """html-page-context: add the tags to the head."""
    if pagename in app.env.titles:
        title = app.env.titles[pagename].astext()
    else:
        title = context.get("title") or app.config.html_title
    description = description_of(pagename, title, context.get("meta") or {}, doctree)
    context["description"] = description
    site_url = context["site_url"] = app.config.site_url
    address = urljoin(site_url, app.builder.get_target_uri(pagename)) if site_url else ""
    tags = [
        f'<meta {kind}="{name}" content="{escape(value)}" />'
        for kind, name, value in preview_tags(
            site_url, address, title, description, app.config.html_title
        )
    ]
    if pagename == NOT_FOUND:
        tags.append('<meta name="robots" content="noindex" />')
    context["metatags"] = context.get("metatags", "") + "\n    ".join(["", *tags]) + "\n"


def write_crawler_files(app, exception):
    """build-finished: sitemap.xml and robots.txt if the site's address is known, else neither."""
    if exception or app.builder.format != "html":
        return
    out = Path(app.outdir)
    if not app.config.site_url:
        for name in ("sitemap.xml", "robots.txt"):
            (out / name).unlink(missing_ok=True)
        return
    pages = [
        urljoin(app.config.site_url, app.builder.get_target_uri(name))
        for name in sorted(app.env.found_docs - {NOT_FOUND})
    ]
    rows = "".join(f"<url><loc>{escape(page)}</loc></url>\n" for page in pages)
    (out / "sitemap.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{rows}</urlset>\n',
        encoding="utf-8",
    )
    sitemap = urljoin(app.config.site_url, "sitemap.xml")
    (out / "robots.txt").write_text(
        f"User-agent: *\nAllow: /\nSitemap: {sitemap}\n", encoding="utf-8"
    )


def setup(app):
    app.add_config_value("site_url", os.environ.get("SITE_URL", ""), "html", types=str)
    app.connect("config-inited", read_address)
    app.connect("html-page-context", describe)
    app.connect("build-finished", write_crawler_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
