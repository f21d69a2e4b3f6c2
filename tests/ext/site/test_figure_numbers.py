"""Numbers and stamps of the figures of a page."""

import json
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.utils import new_document

from docs._ext.site.figure_numbers import numbered, stamped_once, walk_points

GALLERY = '<figure class="gallery-figure" style="x">\n<svg aria-label="A &lt; b."/>\n</figure>\n'


def figure(kind, *parts):
    return nodes.figure("", nodes.raw("", "<svg/>", format="html"), *parts, classes=[kind])


def stamp(kind):
    return nodes.paragraph("", kind, classes=[kind])


def page(*parts, app=None):
    doctree = new_document("page")
    doctree += nodes.section("", *parts)
    numbered(app, doctree)
    return doctree[0]


@pytest.fixture
def lesson(tmp_path):
    """A build that reads a tutorial, which the gallery has run."""
    stamp = {"date": "2023-11-14T22:13:20Z", "device": "cpu", "python": "3.11.7"}
    stamp |= {"versions": {"torchrl": "0.14.1"}}
    (tmp_path / "lesson.py").write_text("")
    (tmp_path / "lesson.stamp.json").write_text(json.dumps(stamp))
    env = SimpleNamespace(docname="lesson")
    return SimpleNamespace(srcdir=tmp_path, config=SimpleNamespace(), env=env)


def test_each_figure_is_numbered_and_stands_with_its_stamp():
    folded = [nodes.raw("", "<details>"), nodes.table(), nodes.raw("", "</details>")]
    first = figure("record-plot", nodes.caption("", "Time"))
    last = nodes.paragraph("", "text")
    section = page(
        nodes.paragraph("", "before"),
        first,
        *folded,
        stamp("record-stamp"),
        figure("evidence-figure"),
        stamp("evidence-origin"),
        last,
    )
    before, one, two, after = section
    assert [part.astext() for part in (before, after)] == ["before", "text"]
    assert (one["classes"], two["classes"]) == (["plate"], ["plate"])
    assert list(one[2:]) == folded
    assert [plate[0]["ids"] for plate in (one, two)] == [["plate-1"], ["plate-2"]]
    assert [plate[0][-1].astext() for plate in (one, two)] == ["Plate 1. Time", "Plate 2. "]
    assert [plate[1].astext() for plate in (one, two)] == ["record-stamp", "evidence-origin"]


def test_a_page_loads_the_script_where_a_figure_has_values():
    loaded = []
    app = SimpleNamespace(add_js_file=lambda name, **_: loaded.append(name))
    for body in ("<svg><title>An icon</title></svg>", "<g><title>step 3: 5</title></g>"):
        walk_points(app, "page", "page.html", {"body": body}, None)
    assert loaded == ["chart-points.js"]


def test_a_figure_without_stamp_takes_nothing_with_it():
    plate, text = page(figure("record-plot"), nodes.paragraph("", "text"))
    assert len(plate) == 1
    assert text.astext() == "text"


def test_other_images_are_left_alone():
    section = page(nodes.figure("", nodes.image()), nodes.raw("", "<p>", format="html"))
    assert isinstance(section[0], nodes.figure)
    assert section[0]["ids"] == []


def test_the_figure_of_a_tutorial_gets_both(lesson):
    plot = figure("record-plot")
    section = page(plot, nodes.raw("", GALLERY, format="html"), app=lesson)
    text = section[1].astext()
    assert text.startswith('<div class="plate">\n<figure id="plate-2" class="gallery-figure"')
    assert "<strong>Plate 2.</strong> A &lt; b.<a " in text
    assert text.count("Plate 2.") == text.count('href="#plate-2"') == 1
    assert section[2].astext() == "Executed 2023-11-14, TorchRL 0.14.1, CPU."


def test_a_figure_that_was_not_drawn_in_this_build_says_so(lesson):
    (lesson.srcdir / "lesson.stamp.json").unlink()
    section = page(nodes.raw("", GALLERY, format="html"), app=lesson)
    assert section[1].astext() == "Not executed in this build."


def test_the_stamp_of_a_tutorials_figure_ends_with_its_values(lesson):
    values = nodes.paragraph("", "CSV", classes=["figure-values"])
    plot = nodes.raw("", GALLERY, format="html")
    section = page(plot, values, nodes.paragraph("", "after"), app=lesson)
    before, stamp, behind, after = section
    assert before.astext().endswith("</figure>\n")
    assert stamp["classes"] == ["evidence-origin"]
    assert stamp.astext() == "Executed 2023-11-14, TorchRL 0.14.1, CPU. CSV."
    assert (behind.astext(), after.astext()) == ("</div>\n", "after")


def test_neighbors_with_the_same_stamp_have_it_once():
    def table_with(*stamps):
        return [part for one in stamps for part in (nodes.table(), one)]

    def printed_by(name):
        return nodes.paragraph("", name, classes=["evidence-origin"])

    section = page(*table_with(*map(printed_by, ("a.py", "a.py", "b.py"))), nodes.paragraph())
    section += table_with(printed_by("b.py"))
    stamped_once(None, section.parent)
    kinds = [type(part).__name__ for part in section]
    once = ["table", "paragraph"]
    assert kinds == ["table", *once, *once, "paragraph", *once]
    assert [part.astext() for part in section if part.astext()] == ["a.py", "b.py", "b.py"]
