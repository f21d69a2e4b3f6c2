"""A Markdown twin of every page, and ``llms.txt``, for agents and for readers who paste a page.

Switch on: ``"docs._ext.site"`` in ``extensions``, ``copy-markdown.js`` in a folder of
``html_static_path``, and the template of the button where it belongs:
``html_theme_options["article_header_end"] = ["copy-markdown"]``. There is no markup.

What it writes, by the convention of https://llmstxt.org:

* ``page.html.md`` beside each ``page.html``: the text of the article as readers see it, with
  executed output, values of records, and of each drawing the alternative text. On top, as YAML,
  title, description, stamp and address of the page. Formulas are TeX, folds are open, links to
  pages lead to their twins. Navigation, hints of terms and forms are left out.
* ``page.html.md.js``: the same as a script, because a browser gives a page from a plain folder
  nothing else to copy.
* ``<link rel="alternate" type="text/markdown">`` in the head of the page.
* ``llms.txt``: the twins by section, in the order of the tables of contents, each with its
  description.

The twin is converted from the HTML of the page, when Sphinx writes it, so it is as new as the page
and needs nothing to know the directives; `Converter` says what differs from plain markdownify. With
``SITE_URL`` links are absolute.
"""

import json
import re
from pathlib import Path
from posixpath import basename, dirname, join, normpath
from urllib.parse import urljoin, urlsplit

from bs4 import BeautifulSoup
from markdownify import ATX, MarkdownConverter

from docs._ext.site.html_fixes import corrected

NOT_FOUND = "404"
SCRIPT = "copy-markdown.js"
# The longest beginning of a page's name decides.
SECTIONS = {
    "Tutorials": ("index", "tutorials/"),
    "How-to guides": ("how-to/",),
    "Debugging: symptoms": (
        "tutorials/debugging/",
        "reference/debugging_map",
        "reference/doctor",
        "reference/error_index",
        "reference/triage",
    ),
    "Reference": ("",),
    "Performance": ("performance/",),
    "Glossary": ("reference/glossary",),
    "API": ("reference/api/",),
}
LEFT_OUT = (
    ".headerlink, .sd-summary-state-marker, .sphx-glr-thumbnail-title, .term-hints, colgroup, "
    "form, script, .moved"
)
BOLD = "p.admonition-title, p.rubric, summary"
LANGUAGES = {"none": "text", "default": "python", "Python": "python"}

TAG = re.compile(r"<[^>]+>")
PRE = re.compile(r"(<pre\b[^>]*>)(.*?)(?=</pre>)", re.DOTALL)
DRAWING = re.compile(r"<svg\b([^>]*)>.*?</svg>", re.DOTALL)
LABEL = re.compile(r"\baria-label=([\"'])(.*?)\1", re.DOTALL)
# Underscores within a word mean nothing in Markdown, and readers search for names.
SPECIAL = re.compile(r"[\\`*<]|(?<!\w)_|_(?!\w)")


class Converter(MarkdownConverter):
    """Markdown of a page's article.

    *link* makes an address of an ``href``. Signatures become code, other lists of definitions
    bullets, admonitions quotes; a pipe in a cell and a fence in code cannot end what they are in.
    """

    def __init__(self, link):
        super().__init__(bullets="-", heading_style=ATX, wrap=True, wrap_width=None)
        self.link = link

    def escape(self, text, parent_tags):
        return SPECIAL.sub(r"\\\g<0>", text)

    def convert_a(self, el, text, parent_tags):
        if "_noformat" in parent_tags or not text.strip():
            return text
        return f"[{text.strip()}]({self.link(el['href'])})" if el.get("href") else text

    def convert_dd(self, el, text, parent_tags):
        if el.parent.get("class", [""])[0] == "py":
            return f"\n\n{text.strip()}\n\n"
        text = text.strip().replace("\n", "\n  ").replace("\n  \n", "\n\n")
        begins = el.find(True)
        return (": " if begins is None or begins.name == "p" else ":\n  ") + text + "\n"

    def convert_div(self, el, text, parent_tags):
        classes = el.get("class", [])
        if "admonition" in classes:
            return self.convert_blockquote(el, text, parent_tags)
        if "sphx-glr-script-out" in classes:
            text = f"Output:\n\n{text.strip()}"
        return super().convert_div(el, text, parent_tags)

    def convert_dt(self, el, text, parent_tags):
        if "sig" in el.get("class", []):
            source = el.find(class_="viewcode-link")
            address = f"[Source]({source.extract()['href']})" if source else ""
            return self.code(" ".join(el.get_text().split()), "python") + address
        return f"\n- **{' '.join(text.split()).removesuffix(':')}**"

    def convert_img(self, el, text, parent_tags):
        alt = SPECIAL.sub(r"\\\g<0>", " ".join(el.get("alt", "").split()))
        return f"![{alt}]({self.link(el['src'])})" if alt else ""

    def convert_math(self, el, text, parent_tags):
        tex = el.annotation.get_text().strip()
        return f"\n\n$$\n{tex}\n$$\n\n" if el.get("display") == "block" else f"${tex}$"

    def convert_pre(self, el, text, parent_tags):
        wrapper = el.find_parent(class_=re.compile("^highlight-")) or {}
        names = [name for name in wrapper.get("class", []) if name.startswith("highlight-")]
        name = names[0].removeprefix("highlight-") if names else "none"
        name = "pycon" if text.lstrip().startswith(">>>") else LANGUAGES.get(name, name)
        return self.code(text, name)

    def code(self, text, language):
        fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", text))])
        return "\n".join(["\n", fence + language, text.strip("\n"), fence, "\n"])

    def convert_span(self, el, text, parent_tags):
        stamped = "symptom-effect" in el.get("class", []) and el.previous_sibling
        return f"({text})" if stamped else text  # behind a link the page shows a stamp

    def convert_td(self, el, text, parent_tags):
        return super().convert_td(el, text.replace("|", r"\|"), parent_tags)

    convert_th = convert_td


def lightened(html):
    """The HTML without what makes it slow to parse: colors of code, lines of drawings."""

    def labeled(match):
        label = LABEL.search(match[1])
        return f"<p>Chart: {label[2]}</p>" if label else ""

    html = PRE.sub(lambda match: match[1] + TAG.sub("", match[2]), html)
    return DRAWING.sub(labeled, html)


def converted(html, link=str):
    """Markdown of a piece of a page."""
    soup = BeautifulSoup(lightened(corrected(html)), "html.parser")
    for node in soup.select(LEFT_OUT):
        node.decompose()
    for node in soup.select("summary span + span, .symptom-band span + span"):
        node.insert_before(" · ")
    for node in soup.select(BOLD):
        node.name = "strong"
        node.wrap(soup.new_tag("p"))
    for node in soup.select("details, figure"):
        node.name = "div"
    for node in soup.select("dl.field-list em"):  # types in pieces
        node.unwrap()
    soup.smooth()
    return Converter(link).convert_soup(soup).replace("\xa0", " ")


def twin_of(page):
    """Where the twin of a page is, by the address of the page."""
    return f"{page}.md"


def linker(app, pagename):
    """A function that makes the address on a page the address in its twin."""
    here = app.builder.get_target_uri(pagename)
    base = app.config.site_url and urljoin(app.config.site_url, here)
    pages = app.env.found_docs - {NOT_FOUND}

    def link(address):
        parts = urlsplit(address)
        name, _, kind = normpath(join(dirname(here), parts.path)).rpartition(".")
        if not parts.netloc and kind == "html" and name in pages:
            address = parts._replace(path=twin_of(parts.path)).geturl()
        return urljoin(base, address) if parts.path else address

    return link


def name_twin(app, pagename, templatename, context, doctree):
    """html-page-context, before the theme drops templates that are empty: lead to the twin."""
    if doctree is None or pagename == NOT_FOUND:
        return
    twin = context["markdown_twin"] = basename(twin_of(app.builder.get_target_uri(pagename)))
    alternate = f'<link rel="alternate" type="text/markdown" href="{twin}" />'
    context["metatags"] = f"{context.get('metatags', '')}    {alternate}\n"
    app.add_js_file(SCRIPT, loading_method="defer")


def write_twin(app, pagename, templatename, context, doctree):
    """html-page-context, when the body is complete: write the twin and its script."""
    if "markdown_twin" not in context:
        return
    page = app.builder.get_target_uri(pagename)
    head = {
        "title": app.env.titles[pagename].astext(),
        "description": context["description"],
        "stamp": converted(app.builder.templates.render("page-stamp.html", context)),
        "page": urljoin(app.config.site_url, page if app.config.site_url else basename(page)),
    }
    head = "".join(f"{key}: {json.dumps(text, ensure_ascii=False)}\n" for key, text in head.items())
    text = f"---\n{head}---\n\n{converted(context['body'], linker(app, pagename))}\n"
    twin = Path(app.outdir, twin_of(page))
    twin.parent.mkdir(parents=True, exist_ok=True)
    twin.write_text(text, encoding="utf-8")
    script = f"window.markdownTwin = {json.dumps(text, ensure_ascii=False)};\n"
    twin.with_name(f"{twin.name}.js").write_text(script, encoding="utf-8")


def remove_orphans(app, exception):
    """build-finished, before ``gallery.cache`` deletes empty folders: twins of pages that went."""
    if exception or app.builder.format != "html":
        return
    pages = {Path(app.builder.get_output_path(name)) for name in app.env.found_docs}
    for twin in Path(app.outdir).rglob("*.html.md*"):
        if twin.with_name(twin.name.partition(".md")[0]) not in pages:
            twin.unlink()


def reading_order(env):
    """Every page but 404, in the order of the tables of contents; those in none come last."""
    found = []

    def walk(name):
        if name not in found:
            found.append(name)
            for child in env.toctree_includes.get(name, ()):
                walk(child)

    walk(env.config.root_doc)
    return [name for name in [*found, *sorted(env.found_docs - {*found})] if name != NOT_FOUND]


def section_of(name):
    """The section of llms.txt that lists the page."""
    return max(
        (len(start), section)
        for section, starts in SECTIONS.items()
        for start in starts
        if name.startswith(start)
    )[1]


def head_of(twin):
    """What the twin says of its page."""
    lines = twin.read_text(encoding="utf-8").split("---\n", 2)[1].splitlines()
    return {key: json.loads(value) for key, _, value in (line.partition(": ") for line in lines)}


def write_index(app, exception):
    """build-finished: llms.txt from the twins, those of this build and those of earlier ones."""
    if exception or app.builder.format != "html":
        return
    listed = {section: [] for section in SECTIONS}
    for name in reading_order(app.env):
        page = twin_of(app.builder.get_target_uri(name))
        head = head_of(Path(app.outdir, page))
        address = urljoin(app.config.site_url, page)
        listed[section_of(name)].append(f"- [{head['title']}]({address}): {head['description']}\n")
    root = Path(app.outdir, twin_of(app.builder.get_target_uri(app.config.root_doc)))
    text = f"# {app.config.html_title}\n\n> {head_of(root)['description']}\n"
    for section, lines in listed.items():
        if lines:
            text += f"\n## {section}\n\n{''.join(lines)}"
    Path(app.outdir, "llms.txt").write_text(text, encoding="utf-8")


def setup(app):
    app.setup_extension("docs._ext.site.page_meta")
    app.setup_extension("docs._ext.site.page_stamp")
    app.connect("html-page-context", name_twin)
    app.connect("html-page-context", write_twin, priority=900)
    app.connect("build-finished", remove_orphans, priority=400)
    app.connect("build-finished", write_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
