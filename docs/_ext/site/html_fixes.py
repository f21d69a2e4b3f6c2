"""Corrections to the HTML that the theme and the gallery emit.

Switch on: ``"docs._ext.site"`` in ``extensions`` and ``template_bridge =
"docs._ext.site.html_fixes.Templates"``. Sphinx renders each page through that bridge, so a page is
corrected once, when it is written.

What it changes is the list ``FIXES``, each entry with its reason and the upstream issue that it
waits for. It takes the style sheets and scripts of ``NEEDED_FOR`` off pages that do not use them,
and those of ``UNUSED`` off all. Small files that the first sight of a page waits for, ``SMALL``,
are put into the page: a browser fetches six files at once. A server sends ``404.html`` for
addresses of any depth, so its relative addresses become absolute.
``tests/ext/site/test_html_fixes.py`` shows each fault in the installed package, and so says when an
entry is no longer needed.
"""

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from docutils import nodes
from sphinx.jinja2glue import BuiltinTemplateLoader

NOT_FOUND = "404"

DIALOGS = {
    "search-dialog": "Search",
    "primary-sidebar-modal": "Site navigation",
    "secondary-sidebar-modal": "On this page",
}


class Fix(NamedTuple):
    """A correction, and the upstream issue that makes it superfluous, or "not reported"."""

    upstream: str
    pattern: re.Pattern
    replacement: str | Callable


ROOM = 88  # characters of a block on a desktop
SHORT = 24  # characters of code that keep to a line
# Where the line of a longer word may end.
BETWEEN = re.compile(
    r"(?<=[\w)\]\"';][._=,/(\[])(?=[A-Za-z_\"'&(])|(?<==)(?=\d)|(?<=[A-Za-z]{11}[a-z])(?=[A-Z][a-z]{6})"
)
WORD = re.compile(r'(?<=<span class="pre)">([^<]*)')
IN_HEADER = re.compile(r"(?<=[_=])(?=\w)")


def is_short(html):
    """Whether what a reader sees of it has at most ``SHORT`` characters."""
    return len(unescape(re.sub("<[^>]*>", "", html))) <= SHORT


def with_breaks(classes, inner):
    """Inline code: it and each word of it that is longer than ``SHORT`` are marked, with breaks."""
    if is_short(inner):
        return f'<code class="{classes}">{inner}</code>'

    def word(match):
        return match[0] if is_short(match[1]) else f' is-long">{BETWEEN.sub("<wbr>", match[1])}'

    return f'<code class="{classes} is-long">{WORD.sub(word, inner)}</code>'


FIXES = {
    # Only the theme's script turns "auto" into a theme; without scripts no color is defined.
    "theme without scripts": Fix(
        "not reported",
        re.compile(r'(<html [^>]*data-theme=)"auto"'),
        r'\1"light"',
    ),
    # The theme's script decides once the page is drawn: without colors and borders, which moves it.
    "theme at first sight": Fix(
        "not reported",
        re.compile(r'(localStorage\.getItem\("theme"\) \|\| )"auto"'),
        r'\1(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")',
    ),
    # Draws icons of the user's own making only; every page would fetch and run it for nothing.
    "icon script": Fix(
        "pydata/pydata-sphinx-theme#2379",
        re.compile(r'\s*<script defer src="[^"]*fontawesome\.js[^"]*"></script>'),
        "",
    ),
    # `tooltip` is no attribute of HTML and shows to a mouse only: the card gets a line of text.
    "gallery card": Fix(
        "not reported",
        re.compile(
            r'<div class="sphx-glr-thumbcontainer" tooltip="([^"]*)">(.*?)'
            r'(<div class="sphx-glr-thumbnail-title">.*?</div>)',
            re.DOTALL,
        ),
        r'<div class="sphx-glr-thumbcontainer">\2\3<p class="sphx-glr-thumbnail-intro">\1</p>',
    ),
    # One per gallery section, all with the same id, and no tutorial has tags.
    "gallery tags": Fix(
        "not reported",
        re.compile(r"<div id='sg-tag-list' class='sphx-glr-tag-list'></div>"),
        "",
    ),
    # The fold of the side bar is an icon; a screen reader has nothing to say for it.
    "sidebar fold": Fix(
        "not reported",
        re.compile(r'<summary>(?=<span class="toctree-toggle")'),
        '<summary aria-label="Pages of this section">',
    ),
    # A browser ends a line of code behind a hyphen or a space, else in the middle of a name.
    "long code": Fix(
        "not reported",
        re.compile(r'<code class="([^"]*)">((?:(?!</code>).)*class="pre".*?)</code>', re.DOTALL),
        lambda match: with_breaks(*match.groups()),
    ),
    # Above a column of short numbers it does not fit in one line, however short it is.
    "code in a header": Fix(
        "not reported",
        re.compile(r'<th class="head.*?</th>', re.DOTALL),
        lambda match: WORD.sub(lambda word: IN_HEADER.sub("<wbr>", word[0]), match[0]),
    ),
    # In a side bar a long name breaks anywhere; between two words of it is better.
    "long name": Fix(
        "not reported",
        re.compile(r'(?<=<a class="reference internal" href=")([^"]*">)(\w{26,})(?=</a></li>)'),
        lambda match: match[1] + re.sub(r"(?<=[a-z])(?=[A-Z])", "<wbr>", match[2]),
    ),
    # A screen reader says "dialog" and nothing else.
    "unnamed dialog": Fix(
        "not reported",
        re.compile(r'<dialog id="pst-(search-dialog|(?:primary|secondary)-sidebar-modal)"(?= |>)'),
        lambda match: f'{match[0]} aria-label="{DIALOGS[match[1]]}"',
    ),
    # They wait for the page to be there anyway; in the head they only hold up its first sight.
    "blocking script": Fix(
        "not reported",
        re.compile(
            r'<script (?=src="(?:[^"]*/)?(?:doctools|clipboard\.min|copybutton)'
            r"\.js\b)"
        ),
        "<script defer ",
    ),
    # It comes before the style sheets that the first sight waits for; nobody waits for the script.
    "scripts before style": Fix(
        "not reported", re.compile(r'\s*<link rel="preload" as="script" [^>]*>'), ""
    ),
    # Drawn like the text around them, in both themes; half of the elements of a page of code.
    "plain spans": Fix(
        "not reported",
        re.compile(r'<span class="(?:n|nn|p|w|colon)">([^<]*)</span>'),
        r"\1",
    ),
    # All it does is to import the other, which the browser then learns late.
    "style sheet that imports": Fix(
        "not reported", re.compile(r"_static/styles/theme\.css\?digest=\w+"), "_static/basic.css"
    ),
    # A signature in several lines is a list of definitions without a term.
    "parameter list": Fix(
        "not reported",
        re.compile(r'<dl>\n((?:<dd><em class="sig-param">.*</dd>\n)+)</dl>'),
        lambda match: '<ul class="sig-params">\n{}</ul>'.format(
            match[1].replace("<dd>", "<li>").replace("</dd>", "</li>")
        ),
    ),
}

# An extension gives every page its assets. Here: asset -> what a page that uses it contains.
NEEDED_FOR = {
    "clipboard.min.js": '<div class="highlight',
    "copybutton.css": '<div class="highlight',
    "copybutton.js": '<div class="highlight',
    "design-tabs.js": '"sd-tab-set',
    "on-this-page.js": "<h2",
    "sg_gallery.css": "sphx-glr-",
    "sg_gallery-binder.css": "binder-badge",
    "sg_gallery-dataframe.css": 'class="dataframe',
    "sg_gallery-rendered-html.css": "rendered_html",
    "sg-tags.js": "sphx-glr-tag-",
    "sphinx-design.min.css": '"sd-',
}

UNUSED = {"sphinx_highlight.js"}  # marks the words of a hit, as the search of this site does

SMALL = re.compile(
    r'<script src="[^"]*?_static/(documentation_options\.js)[^"]*"></script>'
    r'|<link [^>]*href="[^"]*?_static/(copybutton\.css)[^"]*"[^>]*>'
)

BLOCKS = (
    nodes.Admonition,
    nodes.block_quote,
    nodes.bullet_list,
    nodes.definition_list,
    nodes.doctest_block,
    nodes.enumerated_list,
    nodes.field_list,
    nodes.line_block,
    nodes.literal_block,
    nodes.math_block,
    nodes.paragraph,
    nodes.table,
)

PRINTED = (nodes.doctest_block, nodes.literal_block)
CONSOLE = {"pycon"}
PROMPTS = (">>> ", "... ")
RELATIVE = re.compile(
    r'(?P<name>\b(?:href|src|action|data-content_root))="(?!\w+:|[/#])(?:\./)?(?P<path>[^"]*)"'
)


def corrected(html):
    """The page with every fix applied."""
    for fix in FIXES.values():
        html = fix.pattern.sub(fix.replacement, html)
    return html


def absolute(html, prefix):
    """The page of the root folder with its relative addresses below the prefix."""
    return RELATIVE.sub(rf'\g<name>="{prefix}\g<path>"', html)


def split_paragraphs(app, doctree, docname):
    """doctree-resolved: move blocks out of paragraphs (sphinx-doc/sphinx#9141).

    Sphinx puts the description of a parameter into the paragraph of its name. Where it has
    paragraphs or lists of its own, they would end that paragraph early in HTML.
    """
    for paragraph in reversed(list(doctree.findall(nodes.paragraph))):
        blocks = [child for child in paragraph if isinstance(child, BLOCKS)]
        if not blocks:
            continue
        rest = paragraph[paragraph.index(blocks[0]) :]
        del paragraph[paragraph.index(blocks[0]) :]
        if isinstance(rest[0], nodes.paragraph):
            paragraph.extend(rest.pop(0).children)
        place = paragraph.parent.index(paragraph) + 1
        paragraph.parent[place:place] = rest


def mark_long_lines(app, doctree):
    """doctree-read: printed lines that no block has room for are messages, which break anywhere."""
    for block in doctree.findall(lambda node: isinstance(node, PRINTED)):
        long = [line for line in block.astext().splitlines() if len(line) > ROOM]
        code = isinstance(block, nodes.doctest_block) or block.get("language") in CONSOLE
        if code:
            long = [line for line in long if not line.startswith(PROMPTS)]
        if long and (code or block.get("language") == "none"):
            block["classes"].append("has-long-lines")


def trim_assets(app, pagename, templatename, context, doctree):
    """html-page-context: keep the assets that the page uses (not reported)."""
    body = corrected(context.get("body") or "")

    def wanted(asset):
        name = str(getattr(asset, "filename", asset) or "").rpartition("/")[2]
        return name not in UNUSED and NEEDED_FOR.get(name, "") in body

    for kind in ("css_files", "script_files"):
        context[kind] = [asset for asset in context[kind] if wanted(asset)]


class Templates(BuiltinTemplateLoader):
    """Sphinx's own templates, corrected, with what ``SMALL`` has (not reported)."""

    def init(self, builder, theme=None, dirs=None):
        super().init(builder, theme, dirs)
        self.static = Path(builder.outdir, "_static")

    def in_page(self, match):
        """The element that holds what a match of ``SMALL`` refers to."""
        name, tag = match[1] or match[2], "script" if match[1] else "style"
        return f"<{tag}>{(self.static / name).read_text(encoding='utf-8')}</{tag}>"

    def render(self, template, context):
        html = super().render(template, context)
        if "<html" not in html:
            return html
        html = corrected(html)
        html = SMALL.sub(self.in_page, html)
        if context.get("pagename") == NOT_FOUND:
            html = absolute(html, urlsplit(context.get("site_url") or "/").path)
        return html


def setup(app):
    app.add_js_file("on-this-page.js", loading_method="defer")
    app.connect("doctree-read", mark_long_lines)
    app.connect("doctree-resolved", split_paragraphs, priority=900)  # when links are in place
    app.connect("html-page-context", trim_assets, priority=900)  # after those who add some
    return {"parallel_read_safe": True, "parallel_write_safe": True}
