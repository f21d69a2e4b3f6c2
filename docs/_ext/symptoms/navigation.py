"""Side bar, previous and next on the pages of symptoms: by subsystem, as in the map.

Switch on: ``"docs._ext.symptoms"`` in ``extensions``, and with the pydata theme the templates
``symptom-nav.html`` and ``components/prev-next.html`` in a folder of ``templates_path``. There is
no markup.

A page of a symptom, and the index of their folder, get a side bar with a fold for each subsystem:
the one of the page is open. Previous and next keep to the subsystem, in the order of ``order.txt``;
before the first and behind the last is the map. The way above the title leads by the map and the
subsystem, and not by the folders of the tutorials. As a section, with the pages of its toctree, the
map is called SECTION. The page behind the last symptom of the toctree
has the index of the folder before it.

When a symptom comes, goes, moves or gets another title, the pages of all symptoms are written
again, without being read again.
"""

from functools import cache

from docutils import nodes

from docs._ext.support.page_state import page_state
from docs._ext.symptoms.contents import group_id
from docs._ext.symptoms.directives import MAP
from docs._ext.symptoms.store import TOPIC

SUBSYSTEM = "symptoms: subsystem"  # page -> the subsystem of its symptom
WRITTEN = "symptoms: side bar"  # index of the folder -> the groups in the last build
SIDE_BAR = "sidebar-nav-bs"
SECTION = "Debugging"


def folder_index(config):
    """The page above those of the symptoms."""
    return f"{config.sphinx_gallery_conf['gallery_dirs'][0]}/{TOPIC}/index"


def collect(app, doctree):
    """doctree-read: note the subsystem of a symptom's page."""
    page = app.env.docname
    if page.startswith(folder_index(app.config).removesuffix("index")):
        for field in doctree.findall(nodes.field):
            if field[0].astext() == "Subsystem":
                page_state(app.env, SUBSYSTEM)[page] = field[1].astext()


def groups(app):
    """Each subsystem -> the pages of its symptoms; both in the order of the first symptoms."""
    own, found = page_state(app.env, SUBSYSTEM), {}
    for page in app.env.toctree_includes.get(folder_index(app.config), []):
        if page in own:
            found.setdefault(own[page], []).append(page)
    return found


def rewrite(app, env):
    """env-updated: all pages of symptoms, when their side bar is another than the last one."""
    now = [
        (name, [(page, env.titles[page].astext()) for page in pages])
        for name, pages in groups(app).items()
    ]
    written, index = page_state(env, WRITTEN), folder_index(app.config)
    if written.get(index) == now:
        return []
    written[index] = now
    return [page for _, pages in now for page, _ in pages]


@cache
def title_of(app, page):
    """The title of a page as HTML; each page of a symptom has those of all the others."""
    return app.builder.render_partial(app.env.titles[page])["title"]


def navigate(app, pagename, templatename, context, doctree):
    """html-page-context, before the theme looks at the side bars."""
    index, found = folder_index(app.config), groups(app)
    subsystem = page_state(app.env, SUBSYSTEM).get(pagename)

    def link(page, label=None, anchor=""):
        address = context["pathto"](page) + anchor
        return {"title": title_of(app, page), "link": address, "label": label}

    if pagename == index or subsystem:
        bars = context.get("sidebars") or ()
        context["sidebars"] = ["symptom-nav" if bar == SIDE_BAR else bar for bar in bars]
        context["symptom_groups"] = [
            (name.capitalize(), name == subsystem, [(link(page), page == pagename) for page in own])
            for name, own in found.items()
        ]
    maps = sorted(page_state(app.env, MAP))
    home = link(maps[0]) | {"title": SECTION} if maps else link(index)
    context["symptom_map"] = home
    above = [parent["link"] for parent in context.get("parents") or ()]
    if maps and (pagename == index or above == [home["link"]]):
        context["parents"] = [home]
    if subsystem:
        before = maps[:1] or [index]
        pages = [*before, *found[subsystem], *before]
        place = pages.index(pagename, 1)
        if maps:
            group = link(maps[0], anchor=f"#{group_id(subsystem)}")
            context["parents"] = [home, group | {"title": subsystem.capitalize()}]
        for key, page in (("prev", pages[place - 1]), ("next", pages[place + 1])):
            word = "Previous" if key == "prev" else "Next"
            is_map = page in before
            label = "All symptoms" if is_map else f"{word} in {subsystem}"
            context[key] = link(page, label, f"#{group_id(subsystem)}" if is_map and maps else "")
    elif pagename != index and app.builder.relations.get(pagename, [None] * 3)[1] in {
        page for pages in found.values() for page in pages
    }:
        context["prev"] = link(index)


def setup(app):
    app.setup_extension("docs._ext.support.page_state")
    app.connect("doctree-read", collect)
    app.connect("env-updated", rewrite)
    app.connect("html-page-context", navigate, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
