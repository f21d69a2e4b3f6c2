"""The parts of a drawing that no page shows alone."""

import itertools
import re

import pytest

from docs._ext.support import charts


def relative_luminance(color):
    channels = (int(color[index : index + 2], 16) / 255 for index in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("background", ["#ffffff", "#14181e"])  # the theme's, light and dark
def test_colors_stand_out_from_the_background(background):
    for color in charts.COLORS.values():
        high, low = sorted(map(relative_luminance, (color, background)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 3, f"{color} on {background}"


TICKS = [
    ("1", 64_000, "64 k"),
    ("1", 1_000_000, "1 M"),
    ("1", 4000, "4 k"),
    ("1", 12_500, "12.5 k"),
    ("1", 2048, "2048"),
    ("1", 2500, "2500"),
    ("1", -4000, "\N{MINUS SIGN}4 k"),
    ("1", -66, "\N{MINUS SIGN}66"),
    ("1", 65_536, "65,536"),
    ("1", 0, "0"),
    ("×", 0.6, "0.6×"),
    ("×", 1000, "1000×"),
    ("s", 0.01, "10 ms"),
    ("s", 3e-7, "300 ns"),
    ("B", 1e4, "10 kB"),
    ("kB", 16_000, "16 MB"),
    ("%", 40, "40 %"),
    ("1", "collect", "collect"),
]


@pytest.mark.parametrize(("unit", "value", "text"), TICKS)
def test_ticks_are_written_as_people_write_them(unit, value, text):
    assert charts.written(unit, value, None).replace("\u00a0", " ") == text


MEASURED = [
    ("×", 1.97, 2, "2.0×"),
    ("×", 0.0959, 2, "0.096×"),
    ("×", 892.4, 2, "892×"),
    ("s", 0.00545, 3, "5.45 ms"),
    ("s", 0.9999, 3, "1.00 s"),
    ("B", 917_568, 3, "918 kB"),
    ("%", 92.73, 2, "93 %"),
]


@pytest.mark.parametrize(("unit", "value", "digits", "text"), MEASURED)
def test_measured_values_have_the_digits_that_count(unit, value, digits, text):
    assert charts.written(unit, value, digits).replace("\u00a0", " ") == text


@pytest.mark.parametrize(
    ("wanted", "heights"),
    [
        ([50], [10]),
        ([50, 50, 50], [10, 20, 10]),
        ([0, 1, 2, 99, 100], [10] * 5),
        ([70, 10, 69, 68], [30, 10, 30, 10]),
        ([5, 5, 5, 5, 5], [20] * 5),
    ],
)
def test_labels_stay_apart_in_their_order_and_inside(wanted, heights):
    found = charts.apart(wanted, heights, 0, 100)
    boxes = sorted(
        (center - height / 2, center + height / 2)
        for center, height in zip(found, heights, strict=True)
    )
    assert boxes[0][0] >= -1e-9
    assert boxes[-1][1] <= 100 + 1e-9
    for (_, high), (low, _) in itertools.pairwise(boxes):
        assert low >= high - 1e-9
    order = sorted(range(len(wanted)), key=lambda index: (wanted[index], index))
    assert order == sorted(range(len(wanted)), key=found.__getitem__)


def test_a_label_that_nothing_pushes_stays_where_it_belongs():
    assert charts.apart([20, 60], [10, 10], 0, 100) == [20, 60]


def test_a_label_in_the_color_of_a_series_is_nearer_to_the_ink():
    color = charts.COLORS["blue"]
    svg = f'<svg><path style="fill: {color}"/><text x="1" style="fill: {color}">a</text></svg>'
    page = charts.part_of_page(svg, "name", "A label")
    assert f'<path style="fill: {color}"/>' in page
    assert f'<text x="1" style="fill: color-mix(in srgb, {color} 60%, currentColor)">' in page


def test_apostrophes_of_a_chart_are_curly():
    svg = """<svg><text>The Zoo's</text><g id="dot"></g></svg>"""
    page = charts.part_of_page(svg, "name", "The env's", {"dot": "The policy's mode='pad'"})
    assert ">The Zoo’s</text>" in page
    assert 'aria-label="The env’s"' in page
    assert "<title>The policy’s mode='pad'</title>" in page


def test_code_in_a_label_has_code_letters_and_their_width():
    label = "SerialEnv &amp; a loop"
    svg = f'<svg><title>SerialEnv</title><text x="1">{label}</text><text>2 ms</text></svg>'
    page = charts.part_of_page(svg, "name", "A label")
    [code] = re.findall(r"<text x=\"1\">(<tspan .*?>)SerialEnv</tspan> &amp; a loop</text>", page)
    assert "font-family: var(--pst-font-family-monospace)" in code
    assert "<title>SerialEnv</title>" in page
    assert "<text>2 ms</text>" in page
    assert charts.width_of("ill_ill") == pytest.approx(7 * charts.CODE * charts.LETTER)
    assert charts.width_of("illill") < 6 * charts.CODE * charts.LETTER
