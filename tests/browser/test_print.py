"""Paper: dark on white, whole to its last words, no heading alone, stamp and address on top."""

import ctypes
import functools
import html
import re
import unicodedata
from typing import NamedTuple

import pypdfium2
import pypdfium2.raw as pdfium
import pytest

from tests.support import ROOT

# Kinds of pages (see the fixture `sample`), the longest of each.
KINDS = ("home", "tutorial", "internals", "performance", "terms", "api", "symptom")
MARGIN = 18 / 25.4 * 72  # below the text, in points: 18 mm
WIDTH = round((210 - 2 * 15) / 25.4 * 96)  # of the text of A4, in pixels

# The words of the article that are on paper, and its headings, those of folds among them.
WORDS = """(article) => {
    const shown = (e) => e.checkVisibility({ visibilityProperty: true });
    const headings = [...article.querySelectorAll("h1, h2, h3, h4, summary")].filter(shown);
    const walk = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
    const words = [];
    for (let node; (node = walk.nextNode()); )
        if (shown(node.parentElement) && !node.parentElement.closest("script, style, .headerlink"))
            words.push(...node.data.split(/\\s+/).filter(Boolean));
    const said = (e) => [...e.childNodes].filter((n) => !n.classList?.contains("headerlink"));
    return {
        words,
        headings: headings.map((e) => said(e).map((n) => n.textContent).join("")),
        address: document.querySelector(".page-stamp").dataset.address,
    };
}"""


def letters(text):
    """The text without spaces, soft hyphens and ligatures: lines break anywhere on paper."""
    return "".join(unicodedata.normalize("NFKC", text).replace("\u00ad", "").split())


class Sheet(NamedTuple):
    """What is on a sheet: its text in the order of the file, its lines by height, its own height.

    Heights are in points above the foot. The lines are those above the margin.
    """

    text: str
    lines: dict[int, str]
    height: float


def read(page):
    text, lines = page.get_textpage(), {}
    left, base = ctypes.c_double(), ctypes.c_double()
    for number in range(text.count_chars()):
        pdfium.FPDFText_GetCharOrigin(text, number, left, base)
        if base.value > MARGIN:
            letter = chr(pdfium.FPDFText_GetUnicode(text, number))
            lines[round(base.value)] = lines.get(round(base.value), "") + letter
    filled = {height: line for height, line in lines.items() if line.strip()}
    return Sheet(text.get_text_range(), filled, page.get_height())


def lowest(sheet):
    """The last line of a sheet. Letters of another font in it may stand a point lower."""
    foot = [
        height for height in sorted(sheet.lines, reverse=True) if height <= min(sheet.lines) + 2
    ]
    return letters("".join(sheet.lines[height] for height in foot))


@pytest.fixture(scope="session")
def printed(browser, site_url, sample):
    """A function: the sheets of a page of this kind, and what its article says."""
    pages = sample | {
        "performance": "performance/collectors.html",
        "symptom": "tutorials/debugging/lstm_forgets_every_step.html",
        "tall drawings": "reference/recurrent_state_lifecycle.html",
        "recipe": "performance/recipes/sac_halfcheetah.html",
        "map": "reference/debugging_map.html",
    }

    @functools.cache
    def sheets_of(kind):
        page = browser.new_page(color_scheme="dark")
        try:
            page.goto(site_url + pages[kind])
            pdf = page.pdf(format="A4")
            page.emulate_media(media="print", color_scheme="dark")
            said = page.locator("article").evaluate(WORDS)
            return [read(sheet) for sheet in pypdfium2.PdfDocument(pdf)], said
        finally:
            page.close()

    return sheets_of


@pytest.mark.parametrize("kind", KINDS)
def test_paper_has_the_whole_page(printed, kind):
    sheets, said = printed(kind)
    whole = letters("".join(sheet.text for sheet in sheets))
    last = letters("".join(said["words"][-3:]))
    assert last in whole, f"{kind}: {' '.join(said['words'][-3:])!r} is not on paper"
    lost = [title for title in said["headings"] if letters(title) not in whole]
    assert not lost, f"{kind}: headings that are not on paper"
    start = letters(sheets[0].text)
    assert letters(said["address"]) in start, f"{kind}: the address is not on the first sheet"


@pytest.mark.parametrize("kind", [*KINDS, "map"])
def test_no_heading_is_alone_at_the_foot_of_a_sheet(printed, kind):
    sheets, said = printed(kind)
    titles = {letters(title) for title in said["headings"]}
    alone = {n: line for n, sheet in enumerate(sheets[:-1], 1) if (line := lowest(sheet)) in titles}
    assert not alone, f"{kind}: sheets that end with a heading"


def test_paper_has_the_fix_of_each_symptom_and_no_check(printed):
    sheets, _ = printed("map")
    whole = letters("".join(sheet.text for sheet in sheets))
    symptoms = len([*(ROOT / "tutorials" / "debugging").glob("*.py")])
    for part in ("Cause:", "Fix:"):
        assert whole.count(part) >= symptoms
    assert letters("What it prints when all is well") not in whole
    assert len(sheets) < symptoms / 5


def test_paper_has_the_values_of_a_chart(printed, site):
    sheets, _ = printed("home")
    whole = letters("".join(sheet.text for sheet in sheets))
    fold = (site / "index.html").read_text("utf-8").partition('<details class="record-points">')[2]
    values = re.findall(r'<span class="one-line">(.*?)</span>', fold.partition("</details>")[0])
    assert len(values) > 4
    assert not [value for value in values if letters(html.unescape(value)) not in whole]


def test_a_short_page_does_not_leave_a_sheet_to_its_foot(printed):
    """The symptom page with a figure and two listings fits on two."""
    sheets, _ = printed("symptom")
    assert len(sheets) == 2


@pytest.mark.parametrize("kind", [*KINDS, "tall drawings", "map"])
def test_no_sheet_but_the_last_is_blank_by_a_third(printed, kind):
    sheets, _ = printed(kind)
    ends = {n: min(sheet.lines) for n, sheet in enumerate(sheets[:-1], 1)}
    bound = sheets[0].height / 3
    assert not {n: end for n, end in ends.items() if end > bound}, f"{kind}: sheets that end early"


@pytest.mark.parametrize("kind", ["home", "tutorial", "api"])
def test_the_stamp_is_above_the_title(at, sample, kind):
    """Below the text, it would take a sheet of its own where the last one is full."""
    page = at(sample[kind], width=WIDTH)
    page.emulate_media(media="print")
    stamp, title = (page.locator(at).bounding_box() for at in (".page-stamp", "article h1"))
    assert 0 <= stamp["y"] < stamp["y"] + stamp["height"] <= title["y"]


def test_a_whole_script_is_not_printed(printed):
    sheets, _ = printed("recipe")
    whole = letters("".join(sheet.text for sheet in sheets))
    assert "sac_halfcheetah.pyisnotprinted" in whole
    assert "importargparse" not in whole


def test_paper_is_white_whatever_the_screen_shows(browser, site_url, sample):
    page = browser.new_page(color_scheme="dark")
    try:
        page.goto(site_url + sample["reference"])
        shade = "getComputedStyle(document.body).color"
        dark = page.evaluate(shade)
        page.emulate_media(media="print", color_scheme="dark")
        page.wait_for_function("document.documentElement.dataset.theme == 'light'")
        assert page.evaluate(shade) != dark
        page.emulate_media(media="screen", color_scheme="dark")
        page.wait_for_function("document.documentElement.dataset.theme == 'dark'")
        assert page.evaluate(shade) == dark
    finally:
        page.close()


def test_nothing_scrolls_around_the_text_on_paper(at, sample):
    """Paper cuts off what scrolls: a page would lose its end."""
    page = at(sample["tutorial"])
    page.emulate_media(media="print")
    around = """(e) => {
        const found = [];
        for (let one = e; one; one = one.parentElement) found.push(getComputedStyle(one).overflowY);
        return found;
    }"""
    assert set(page.locator("article").evaluate(around)) == {"visible"}


def test_links_of_code_print_as_other_links(at):
    page = at("performance/knobs.html")
    page.emulate_media(media="print")
    colors = page.locator("table.knobs a").evaluate_all(
        "all => all.map((e) => getComputedStyle(e.firstElementChild).color)"
    )
    text = page.locator("article p").first.evaluate("(e) => getComputedStyle(e).color")
    assert set(colors) == {text}
