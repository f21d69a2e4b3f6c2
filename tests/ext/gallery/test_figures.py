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

from docs._ext.gallery import figure_axes, figures


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
    axes.set(title="Title", ylabel="height [m]")
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


def data_of(folder):
    return [path.read_text().splitlines() for path in sorted(folder.glob("images/*.csv"))]


def said_by(page):
    return re.findall("<title>(.*)</title>", page)


def test_the_values_of_a_figure_are_a_file_and_points_to_point_at(written, tmp_path):
    figure, axes = plt.subplots(layout="constrained")
    axes.plot([0, 12_000], [1, -0.123456789], color="C0")
    axes.scatter([3], [0.5], color="C1", label="a dot")
    axes.text(1, 1, "  with\nmemory", color="C0")
    axes.axhline(0.7, color="C2")
    axes.set(xlabel="frames", ylabel="return & more [reward]")
    figure.set_label("Says something")
    rest, (page,), _ = written()
    assert ".. rst-class:: figure-values" in rest
    assert ":download:`CSV of this chart <images/sphx_glr_lesson_001.csv>`" in rest
    assert data_of(tmp_path) == [
        [
            "series,line,frames,return & more [reward]",
            "with memory,1,0,1",
            "with memory,1,12000,-0.123457",
            "a dot,2,3,0.5",
        ]
    ]
    assert said_by(page) == [
        "with memory, frames 0: return &amp; more 1 reward",
        "with memory, frames 12,000: return &amp; more \N{MINUS SIGN}0.1235 reward",
        "a dot, frames 3: return &amp; more 0.5 reward",
    ]


def test_a_value_is_where_its_mark_is(written):
    _, axes = plt.subplots(layout="constrained")
    axes.plot([0, 1, 4], [5, 3, 8], marker="o")
    axes.set_title("Title")
    _, (page,), _ = written()
    uses = re.findall(r'<use xlink:href="#drawing001-m\w+" x="([\d.]+)" y="([\d.]+)"', page)
    circles = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', page)
    marks = [tuple(map(float, use)) for use in uses]
    for circle in circles:
        across, down = map(float, circle)
        assert any(abs(x - across) < 0.1 and abs(y - down) < 0.1 for x, y in marks), circle
    assert len(circles) == 3


def test_bars_ticks_with_names_and_panels(written, tmp_path):
    _, (above, below) = plt.subplots(2, sharex=True)
    above.bar([0, 1], [2, 3], color="C0")
    above.set_title("Above")
    below.barh([0, 1], [4, 5], color="C1")
    below.set_yticks([0, 1], ["one", "two"])
    below.set(xlabel="size")
    _, (page,), _ = written()
    [data] = data_of(tmp_path)
    assert data[0] == "panel,series,line,size,y"
    assert data[1:] == ["Above,,1,0,2", "Above,,1,1,3", "panel 2,,2,4,one", "panel 2,,2,5,two"]
    assert said_by(page)[-1] == "size 5: two"


def test_of_many_values_the_first_and_the_last_are_among_those_to_point_at(written, tmp_path):
    figure, axes = plt.subplots()
    axes.plot(range(1001))
    figure.set_label("A line that rises")
    _, (page,), _ = written()
    said = said_by(page)
    assert len(said) <= figures.figure_values.MOST + 1
    assert (said[0], said[-1]) == ("0: 0", "1000: 1000")
    assert len(data_of(tmp_path)[0]) == 1002


def test_a_figure_without_values_has_no_file(written, tmp_path):
    figure, axes = plt.subplots()
    axes.axvline(2)
    axes.imshow([[0, 1]])
    figure.set_label("Two pixels")
    rest, (page,), _ = written()
    assert "download" not in rest
    assert "chart-points" not in page
    assert not data_of(tmp_path)


def restyled(figure):
    figure_axes.restyle(figure)
    figure.draw_without_rendering()


def test_the_title_of_y_is_a_level_line_between_the_axes_and_their_title(written):
    figure, axes = plt.subplots(layout="constrained")
    axes.plot([1, 10_000])
    axes.set(title="A title", ylabel="return [reward]")
    restyled(figure)
    [text] = axes.texts
    title, line = (one.get_window_extent() for one in (axes._left_title, text))
    names = [label.get_window_extent() for label in axes.get_yticklabels()]
    names = [box for box in names if axes.bbox.y0 < box.y1 and box.y0 < axes.bbox.y1]
    assert (text.get_text(), text.get_rotation()) == ("return [reward]", 0)
    assert max(box.y1 for box in names) < line.y0 < line.y1 < title.y0
    assert title.y1 < figure.bbox.y1
    assert line.x0 == pytest.approx(title.x0, abs=1)
    assert line.x0 == pytest.approx(min(box.x0 for box in names), abs=1)
    plt.close(figure)
    drawn()
    _, (page,), _ = written()
    assert "rotate(-90" not in page


def test_the_one_title_of_axes_that_share_y_is_above_the_first(written):
    figure, axes = plt.subplots(3, sharey=True)
    axes[1].set_ylabel("error")
    restyled(figure)
    assert [one.get_ylabel() for one in axes] == ["error", "", ""]
    figure, axes = plt.subplots(2)
    axes[1].set_ylabel("error")
    restyled(figure)
    assert [one.get_ylabel() for one in axes] == ["", "error"]


TICKS = [  # ends of an axis, its scale, and what is written
    ((0, 16_900), "linear", "0, 5 k, 10 k, 15 k"),
    ((0, 2000), "linear", "0, 500, 1000, 1500, 2000"),
    ((0, 20), "linear", "0, 5, 10, 15, 20"),
    ((-0.2, 0.8), "linear", "\N{MINUS SIGN}0.2, 0, 0.2, 0.4, 0.6, 0.8"),
    ((10, 100_000), "log", "10, 100, 1 k, 10 k, 100 k"),
]


@pytest.mark.parametrize(("ends", "scale", "said"), TICKS)
def test_ticks_are_plain(written, ends, scale, said):
    figure, axes = plt.subplots(figsize=(3, 3))
    axes.set(xscale=scale, xlim=ends)
    restyled(figure)
    shown = [
        text.get_text().replace("\N{NO-BREAK SPACE}", " ")
        for text in axes.get_xticklabels()
        if ends[0] - 1e-9 <= text.get_position()[0] <= ends[1]
    ]
    assert ", ".join(shown) == said


def test_ticks_that_a_tutorial_chose_stay(written):
    figure, axes = plt.subplots()
    axes.set_xticks([0, 2.5], ["one", "two"])
    axes.set_yticks([0, 2.5])
    restyled(figure)
    texts = ([text.get_text() for text in axes.get_xticklabels()], axes.get_yticks().tolist())
    assert texts == (["one", "two"], [0, 2.5])


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
