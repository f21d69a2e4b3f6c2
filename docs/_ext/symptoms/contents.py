"""The indexes of the gallery list the symptoms by subsystem, in place of a card for each.

Switch on: ``"docs._ext.symptoms"`` in ``extensions``. There is no markup. On the index of the
folder of symptoms each subsystem is a section, whose list links the pages with the mark of their
effect; on the index above it each subsystem is a link to that section. Both keep the order of
``order.txt``.
"""

from docutils import nodes
from sphinx import addnodes

from docs._ext.gallery.cache import galleries
from docs._ext.gallery.order import read_order
from docs._ext.symptoms.card import cross_reference, mark
from docs._ext.symptoms.store import TOPIC, SymptomError, read

ITEMS = "symptom-items"  # the list whose items are a link and a mark each
CARDS = (nodes.comment, nodes.raw, addnodes.only)


def by_subsystem(symptoms):
    """Each subsystem -> its symptoms; both in the order in which the symptoms come."""
    groups = {}
    for symptom in symptoms:
        groups.setdefault(symptom.fields["Subsystem"], []).append(symptom)
    return groups


def group_id(subsystem):
    """The id of its section, here and in the map."""
    return f"symptoms-{nodes.make_id(subsystem)}"


def symptoms_of(app):
    """Every symptom that has the form of one, ranked; the page depends on their scripts."""
    scripts = galleries(app)[0].scripts / TOPIC
    app.env.note_dependency(scripts / "order.txt")
    found = []
    for slug in read_order(scripts):
        app.env.note_dependency(scripts / f"{slug}.py")
        try:
            found.append(read(scripts / f"{slug}.py"))
        except SymptomError:  # the map says it
            continue
    return found


def item(docname, symptom):
    """An item that links the page of a symptom, with its mark."""
    text = nodes.inline("", symptom.title, classes=["xref", "std", "std-doc"])
    link = cross_reference(docname, "doc", f"/{symptom.docname}", text, explicit=False)
    effect = mark(symptom.fields["Effect"])
    return nodes.list_item("", nodes.paragraph("", "", link, nodes.Text(" "), effect))


def list_symptoms(app, doctree):
    """doctree-read, before images and tables of contents are collected."""
    docname, top = app.env.docname, app.config.sphinx_gallery_conf["gallery_dirs"][0]
    own = f"{top}/{TOPIC}/index"
    if docname not in (own, f"{top}/index"):
        return
    groups = by_subsystem(symptoms_of(app))
    places = [one for one in doctree.findall(nodes.section) if TOPIC in one["ids"]]
    if not groups or not places:
        return
    place = places[0]
    for card in [child for child in place.children if isinstance(child, CARDS)]:
        place.remove(card)
    if docname == own:
        for name, symptoms in groups.items():
            title = nodes.title("", name.capitalize())
            items = [item(docname, one) for one in symptoms]
            listed = nodes.bullet_list("", *items, classes=[ITEMS])
            place += nodes.section("", title, listed, ids=[group_id(name)], names=[name])
        return
    address = app.builder.get_relative_uri(docname, own)
    items = nodes.bullet_list("", classes=["symptom-groups"])
    for name, symptoms in groups.items():
        link = nodes.reference("", name.capitalize(), refuri=f"{address}#{group_id(name)}")
        count = nodes.Text(f" {len(symptoms)}")
        items += nodes.list_item("", nodes.paragraph("", "", link, count))
    place.insert(place.first_child_matching_class(nodes.paragraph) + 1, items)


def setup(app):
    app.connect("doctree-read", list_symptoms, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
