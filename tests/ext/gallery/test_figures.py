"""Figures of tutorials: the style they get, and what is written of them."""

import base64
import io
import re
from types import SimpleNamespace

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from docutils import nodes
from docutils.utils import new_document
from PIL import Image
from sphinx_gallery.scrapers import ImagePathIterator

from docs._ext.gallery import figures


@pytest.fixture
def written(tmp_path):
    """A function that saves the open figures; the reST, the elements of the page and the files."""
    (tmp_path / "images").mkdir()
    template = tmp_path / "images" / "sphx_glr_lesson_{0:03}.png"

    def save():
        rest = figures.save(None, {"image_path_iterator": ImagePathIterator(template)}, None)
        pages, files = (
            [path.read_text() for path in sorted(template.parent.glob(f"*.{kind}"))]
            for kind in ("html", "svg")
        )
        return rest, pages, files

    with mpl.rc_context():
        mpl.rcdefaults()
        figures.use_style(None, None, "before")
        yield save
    plt.close("all")


def drawn(label="A line that rises"):
    figure, axes = plt.subplots(layout="constrained")
    axes.plot([0, 1], color="black")
    axes.plot([1, 2], marker="o", markeredgecolor="white")
    axes.set_title("Title")
    figure.set_label(label)
    return figure


def test_every_figure_is_included_in_order(written):
    drawn("First <one>")
    drawn("Second\n  one")
    rest, (first, second), files = written()
    assert re.findall(r":file: (.*)", rest) == [
        "images/sphx_glr_lesson_001.html",
        "images/sphx_glr_lesson_002.html",
    ]
    assert 'aria-label="First &lt;one&gt;"' in first
    assert 'aria-label="Second one"' in second
    assert len(files) == 2
    ids = [re.findall(r'\bid="([^"]+)"', page) for page in (first, second)]
    assert not set(ids[0]) & set(ids[1])
    assert plt.get_fignums() == []


def test_text_and_black_take_the_color_of_the_page(written):
    drawn()
    _, (page,), (file,) = written()
    assert "currentColor" in page
    assert "var(--pst-color-background)" in page
    for color in (figures.charts.INK, "#000000", "#ffffff"):
        assert color not in page
    assert "currentColor" not in file
    assert figures.ON_WHITE in file


def test_the_same_figure_has_the_same_bytes(written):
    drawn()
    once = written()
    drawn()
    assert written() == once


def test_a_wide_figure_is_drawn_narrower(written):
    figure = drawn()
    figure.set_size_inches(2 * figures.WIDTH, 4)
    _, (page,), _ = written()
    assert f'width="{72 * figures.WIDTH:g}pt" height="144pt"' in page


def test_an_array_has_the_pixels_of_a_dense_screen(written):
    figure = plt.figure(figsize=(2, 1))
    figure.add_axes((0, 0, 1, 1)).imshow([[0, 1]], aspect="auto")
    figure.set_label("Two pixels")
    _, (page,), _ = written()
    image = base64.b64decode(re.search(r"data:image/png;base64,\s*([^\"]+)", page)[1])
    assert Image.open(io.BytesIO(image)).width == pytest.approx(2 * figures.DENSITY, abs=2)


def test_the_style_ends_with_the_tutorial():
    with mpl.rc_context():
        mpl.rcdefaults()
        figures.use_style(None, None, "after")
        assert mpl.rcParams["svg.fonttype"] == mpl.rcParamsDefault["svg.fonttype"]


def test_a_figure_without_alternative_text_is_a_warning(written, monkeypatch):
    drawn("Says something")
    drawn("")
    _, pages, _ = written()
    document = new_document("")
    document += [nodes.raw("", page, format="html") for page in pages]
    said = []
    monkeypatch.setattr(
        figures.logger, "warning", lambda text, *args, **_: said.append(text % args)
    )
    app = SimpleNamespace(env=SimpleNamespace(docname="tutorials/a/lesson"))
    figures.ask_for_alternative_texts(app, document)
    assert len(said) == 1
    assert said[0].startswith("tutorials/a/lesson.py: figure 2 has no alternative text; say what")
    assert "set_label(" in said[0]
