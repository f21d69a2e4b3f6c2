"""Builds fixture projects with ``record_timeline`` and reads what a reader would see."""

import re
from xml.etree import ElementTree

import pytest

from benchmarks import record as records
from docs._ext.records import timeline as record_timeline
from tests.ext.records.test_directives import INDEX, Project, clean

DRAWN = [  # lane, depth, name, start, duration
    ("driver", 0, "iteration", 0.0, 0.010),
    ("driver", 1, "collect", 0.0, 0.006),
    ("driver", 1, "epoch", 0.006, 0.002),
    ("driver", 1, "epoch", 0.008, 0.001),
    ("worker 0", 0, "rollout <&>", 0.001, 0.004),
]
PAGE = """
.. record-timeline:: toy@cpu
   :rows: range-*
   :caption: What ``runs`` when
"""
LINE = INDEX.count("\n") + 2


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path)
    project.page(PAGE)
    draw(project)
    return project


def draw(project, edit=lambda benchmarks, metrics: None):
    """Put the ranges into the record, after *edit* has spoiled them."""
    record = records.load(project.path)
    time = record["metrics"]["time"]
    record["metrics"] |= {"start": dict(time), "duration": dict(time)}
    for number, (lane, depth, name, start, duration) in enumerate(DRAWN):
        record["benchmarks"][f"range-{number}"] = {
            "title": name,
            "parameters": {"lane": lane, "depth": depth, "name": name},
            "metrics": {
                "start": records.measurement([start]),
                "duration": records.measurement([duration]),
            },
        }
    edit(record["benchmarks"], record["metrics"])
    project.save(record)


def picture(project):
    (svg,) = re.findall(r"<svg.*?</svg>", project.html(), re.DOTALL)
    return svg


def texts(svg):
    """The texts of the image, as shown."""
    tree = ElementTree.fromstring(svg.replace("xlink:href", "href"))
    found = ("".join(e.itertext()) for e in tree.iter() if e.tag.endswith("text"))
    return [" ".join(text.replace("\u2007", " ").split()) for text in found]


def test_lines_are_numbered_in_order_of_time_and_say_how_long(project):
    clean(project)
    shown = [text for text in texts(picture(project)) if not re.fullmatch(r"0|\d+ ms|Time", text)]
    assert shown == [
        "driver",
        "1 iteration, 10 ms",
        "2 collect, 6 ms",
        "3 epoch, 2 ×, 3 ms together",
        "worker 0",
        "4 rollout <&>, 4 ms",
    ]
    assert {"2 ms", "10 ms", "Time"} <= set(texts(picture(project)))


def test_bars_stand_where_and_as_long_as_the_record_says(project):
    clean(project)
    lanes = record_timeline.lines_of(DRAWN)
    assert lanes["driver"][1, "epoch"] == [(0.006, 0.002), (0.008, 0.001)]
    edges = []
    for style in ("#1f80c4", "#d1661f"):
        for drawn in re.findall(rf'<path d="([^"]*)"[^>]*style="fill: {style}', picture(project)):
            xs = [float(x) for x in re.findall(r"[ML] ([\d.]+) ", drawn)]
            edges.append((min(xs), max(xs)))
    assert len(edges) == len(DRAWN)
    left, right = edges[0]  # the first line spans the axis, from zero to its end
    shares = [((a - left) / (right - left), (b - left) / (right - left)) for a, b in edges]
    wanted = [(start / 0.010, (start + duration) / 0.010) for *_, start, duration in DRAWN]
    assert sorted(shares) == [pytest.approx(pair, abs=1e-4) for pair in sorted(wanted)]


def test_text_takes_the_color_of_the_page_and_the_image_fits_it(project):
    clean(project)
    svg = picture(project)
    assert "currentColor" in svg
    assert record_timeline.charts.INK not in svg
    assert "#000000" not in svg
    assert "max-width:100%" in svg
    assert "font-family: inherit" in svg
    assert "<style" not in svg
    sizes = {
        float(s) for s in re.findall(r"font-size: ([\d.]+)px|font: ([\d.]+)px", svg) for s in s if s
    }
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', svg)[1])
    assert min(sizes) * 340 / width > 8.5, "too small on a phone of 390 px"


def test_alternative_text_has_every_line(project):
    clean(project)
    label = re.search(r'role="img" aria-label="([^"]*)"', picture(project))[1]
    assert label.replace("\u00a0", " ") == (
        "Timeline. driver: 1, iteration: 10 ms, from the start. 2, collect: 6 ms, from the start. "
        "3, epoch: 2 ×, 3 ms together, from 6 ms on. worker 0: "
        "4, rollout &lt;&amp;&gt;: 4 ms, from 1 ms on."
    )
    project.page(PAGE + "   :alt: In short\n")
    clean(project)
    assert 'aria-label="In short"' in picture(project)


def test_caption_stamp_and_one_lane_without_a_heading(project):
    project.page(PAGE.replace("range-*", "range-0 range-1"))
    clean(project)
    assert "What runs when" in project.text()
    assert "Toy CPU, 2 cores" in project.text()
    assert "driver" not in texts(picture(project))


def test_two_builds_give_the_same_bytes(project):
    clean(project)
    first = picture(project)
    project.page(PAGE + "\nAnd more.\n")
    clean(project)
    assert picture(project) == first


def test_what_is_not_measured_yet_is_said(project):
    text = PAGE.replace("@cpu", "@cuda")
    project.page(text + "   :if-absent: Not measured on CUDA yet.\n")
    clean(project)
    assert "Not measured on CUDA yet." in project.text()
    assert "<svg" not in project.html()


def test_outdated_record_draws_nothing(project):
    (project.benchmarks / "shared.py").write_text("ROUNDS = 6\n")
    clean(project)
    assert "<svg" not in project.html()
    assert "To be measured again: the code of bench_large has changed" in project.text()


def without(kind, name):
    def edit(benchmarks, metrics):
        del benchmarks["range-1"][kind][name]

    return edit


def of_unit(unit):
    def edit(benchmarks, metrics):
        metrics["start"]["unit"] = unit

    return edit


def of_depth(depth):
    def edit(benchmarks, metrics):
        benchmarks["range-1"]["parameters"]["depth"] = depth

    return edit


SPOILED = [
    (
        without("parameters", "lane"),
        "toy@cpu:range-1 has no parameter 'lane'; let the suite give it to every range",
    ),
    (
        without("metrics", "start"),
        "toy@cpu:range-1 has no metric 'start'; let the suite note it for every range",
    ),
    (of_unit("1"), "toy@cpu has start in '1'; a timeline is drawn of seconds"),
    (of_depth(-1), "toy@cpu:range-1 has the depth -1; let the suite write 0, 1, 2 and so on"),
    (of_depth("1"), "toy@cpu:range-1 has the depth '1'; let the suite write 0, 1, 2 and so on"),
]


@pytest.mark.parametrize(("edit", "message"), SPOILED)
def test_what_cannot_be_drawn_is_a_warning_with_line_and_cure(project, edit, message):
    draw(project, edit)
    warnings, _ = project.build()
    place = f"{project.docs / 'index.rst'}:{LINE}"
    assert warnings == f"{place}: WARNING: {message} [records.unknown]\n"
    assert "<svg" not in project.html()


def test_a_suite_without_ranges_is_a_warning(project):
    record = records.load(project.path)
    record["benchmarks"] = {"small-a": record["benchmarks"]["small-a"]}
    for metric in ("start", "duration"):
        del record["metrics"][metric]
    project.save(record)
    project.page(PAGE.replace("range-*", "*"))
    warnings, _ = project.build()
    assert "toy@cpu has no metric 'start'; let the suite note it for every range" in warnings


def test_pattern_that_fits_no_range_is_a_warning(project):
    project.page(PAGE.replace("range-*", "ranges-*"))
    warnings, _ = project.build()
    assert f"index.rst:{LINE}: WARNING: toy@cpu has no key 'ranges-*'" in warnings
