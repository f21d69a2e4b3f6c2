"""What a reader gets on the first screen: of the landing page, of a symptom, of an API page."""

import pytest

from tests.browser.probes import CLIPBOARD
from tests.support import ROOT

SYMPTOM = "tutorials/debugging/kept_batches_are_all_the_same.html"
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def boxes(page, selector):
    """Position and size of each, in the order of the page."""
    return [one.bounding_box() for one in page.locator(selector).all()]


def test_the_landing_page_shows_search_and_four_ways_two_by_two(at):
    page = at(**DESKTOP)
    field = page.locator("#search-here").bounding_box()
    cards = boxes(page, ".entry-card")
    assert len(cards) == 4
    assert field["y"] + field["height"] < cards[0]["y"]
    assert len({card["y"] for card in cards}) == len({card["x"] for card in cards}) == 2
    assert cards[3]["y"] + cards[3]["height"] < DESKTOP["height"]
    article = page.locator(".bd-article").bounding_box()
    right = DESKTOP["width"] - article["x"] - article["width"]
    assert abs(article["x"] - right) < 32, "no empty column beside the article"
    for card in page.locator(".entry-card").all():
        assert card.locator("li a").count() == 3
    page.set_viewport_size(PHONE)
    assert len({card["x"] for card in boxes(page, ".entry-card")}) == 1


def test_the_doctor_and_what_is_new_stand_beside_the_figure(at):
    page = at(**DESKTOP)
    plate, doctor, new = boxes(page, "figure.record-plot, #ask-the-doctor, #what-is-new")
    assert plate["x"] + plate["width"] <= doctor["x"] == new["x"]
    assert doctor["y"] + doctor["height"] <= new["y"] < plate["y"] + plate["height"]
    assert page.locator("#what-is-new dl.change-list > dt").count() == 1
    page.set_viewport_size(PHONE)
    assert len({box["x"] for box in boxes(page, "#ask-the-doctor, #what-is-new")}) == 1


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_symptom_shows_effect_cause_and_fix(at, viewport):
    page = at(SYMPTOM, **viewport)
    card = page.locator(".symptom-card").bounding_box()
    assert card["y"] + card["height"] < viewport["height"]
    assert page.locator(".symptom-band").inner_text().lower().startswith("silent")
    assert page.locator(".symptom-card dt").all_inner_texts() == ["Cause:", "Fix:"]


def test_the_code_of_a_fix_is_copied(at):
    page = at(SYMPTOM, permissions=CLIPBOARD)
    page.locator("code.to-copy + button.copybtn").click()
    page.wait_for_selector("code.to-copy + button.copybtn.success")
    assert page.evaluate("navigator.clipboard.readText()") == "batch.clone()"


def test_buttons_that_copy_show_where_nothing_hovers(at):
    page = at(SYMPTOM, has_touch=True, is_mobile=True, **PHONE)
    buttons = page.locator(".highlight button.copybtn")
    buttons.first.wait_for()
    assert buttons.first.evaluate("(e) => getComputedStyle(e).opacity") == "1"
    covered = buttons.evaluate_all("""all => all.map((e) => {
        const code = document.createRange();
        code.selectNodeContents(e.parentElement.querySelector("pre"));
        return e.getBoundingClientRect().bottom - code.getBoundingClientRect().top;
    })""")
    assert max(covered) < 4, "above the letters of the first line"


def test_an_api_page_starts_with_its_signature_in_short(at):
    page = at("reference/api/torchrl.collectors.Collector.html", **DESKTOP)
    short = page.locator("h1 + dl.py > dt")
    assert "frames_per_batch, total_frames=-1, device=None" in short.inner_text()
    note = page.locator(".bd-article .admonition").first.bounding_box()
    assert short.bounding_box()["y"] < note["y"] < DESKTOP["height"]


@pytest.mark.parametrize(
    ("viewport", "screens"), [(DESKTOP, 1.8), (PHONE, 2.5)], ids=["desktop", "phone"]
)
def test_the_longest_signature_is_short_and_its_names_stand_out(at, viewport, screens):
    page = at("reference/api/torchrl.collectors.Collector.html", **viewport)
    sentence = page.get_by_text("Main construction entry point").bounding_box()
    assert sentence["y"] < screens * viewport["height"]
    parameter = page.locator(".sig-params .sig-param").filter(has_text="total_frames: int")
    weights = parameter.locator(".n").evaluate_all(
        "all => all.map((e) => getComputedStyle(e).fontWeight)"
    )
    assert weights == ["600", "400"]


def test_a_phone_shows_the_whole_command(at):
    page = at("reference/doctor.html", **PHONE)
    commands = page.locator(".highlight-console pre:visible")
    assert commands.count() > 1
    assert commands.evaluate_all("all => all.filter((e) => e.scrollWidth > e.clientWidth)") == []


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_our_notes_leave_the_docstring_on_the_first_screen(open_page, site_url, viewport):
    page = open_page(**viewport)
    below = {}
    for note in sorted((ROOT / "docs" / "reference" / "api" / "notes").glob("*.rst")):
        page.goto(f"{site_url}reference/api/{note.stem}.html")
        top = page.locator("#signature-and-docstring > h2").bounding_box()["y"]
        below |= {note.stem: top} if top > viewport["height"] else {}
    assert below == {}, "fold some of these notes"


def test_a_link_to_a_folded_note_opens_the_fold(at):
    page = at("reference/api/torchrl.modules.LSTMModule.html", **DESKTOP)
    note = page.locator("details #upstream-says-3")
    assert not note.is_visible()
    page.locator('a.upstream-erratum[href="#upstream-says-3"]').click()
    note.wait_for(state="visible")
    assert note.bounding_box()["y"] < DESKTOP["height"]


def test_the_short_sections_of_the_landing_page_follow_each_other(at):
    page = at(**DESKTOP)
    first, second = page.locator("section.beside").all()
    end = first.locator(":scope > *").last.bounding_box()
    hole = second.locator("h2").bounding_box()["y"] - end["y"] - end["height"]
    assert 0 < hole < 80


LAPTOP = {"width": 1280, "height": 800}


@pytest.mark.parametrize(
    ("name", "answer", "most"),
    [
        ("index", ".entry-card:nth-child(4)", 800),
        ("how-to/save_and_resume", ".bd-article :not(details) > div > .highlight", 780),
        ("how-to/index", ".sphx-glr-thumbcontainer", 730),
        ("reference/api/index", "dl.api-subjects", 800),
        ("reference/memory_planner", ".planner-answer table", 680),
        ("performance/knobs", "table.knobs tbody tr:nth-child(4)", 730),
        ("reference/triage", ".bd-article table", 730),
        ("reference/records", ".record-list tbody tr:nth-child(5)", 780),
    ],
)
def test_the_answer_is_on_the_first_screen_of_a_laptop(at, name, answer, most):
    """Its end, and of code the tenth line."""
    page = at(f"{name}.html", **LAPTOP)
    box = page.locator(answer).first.bounding_box()
    height = 200 if "highlight" in answer else box["height"]
    assert box["y"] + height < most


def test_a_phone_shows_the_answer_of_the_planner_first(at):
    page = at("reference/memory_planner.html", width=412, height=823)
    [answer] = boxes(page, ".planner-answer table")
    assert answer["y"] + answer["height"] < boxes(page, ".planner-fields")[0]["y"] < 823
    buffer, peak = boxes(page, ".planner-lead")
    assert buffer["y"] == peak["y"] < answer["y"]


def test_a_phone_shows_every_subject_of_the_api_at_once(at):
    page = at("reference/api/index.html", **PHONE)
    subjects = boxes(page, "dl.api-subjects dt")
    assert len(subjects) == page.locator("article section section").count() > 9
    assert max(box["y"] + box["height"] for box in subjects) < PHONE["height"]
    assert len({box["x"] for box in subjects}) == 2


@pytest.mark.parametrize("width", [960, 1199, 1200, 1280])
def test_the_header_is_one_line_with_a_search_to_see(at, width):
    page = at("how-to/save_and_resume.html", width=width)
    assert page.locator("#pst-header").bounding_box()["height"] < 70
    button = page.locator("#pst-header").get_by_role("button", name="Search", exact=True)
    assert (button.bounding_box()["width"] > 150) == (width >= 1200)
    button.click()
    page.locator("#pst-search-dialog[open] #search-header:focus").wait_for()


def test_a_closed_side_bar_leaves_its_width_to_the_page(at):
    page = at("how-to/save_and_resume.html", **LAPTOP)
    page.get_by_role("button", name="Collapse sidebar").click()
    button = page.get_by_role("button", name="Expand sidebar")
    page.wait_for_function("document.querySelector('.bd-sidebar-primary').clientWidth < 70")
    assert button.bounding_box()["x"] < 40
    button.click()
    page.wait_for_function("document.querySelector('.bd-sidebar-primary').clientWidth > 200")


def test_what_is_found_has_titles_and_words_in_one_line_down(at):
    page = at("search.html?q=lstm+hidden+state", **LAPTOP)
    page.locator(".search-hit .search-snippet").first.wait_for()
    places = boxes(page, ".search-hit :is(.search-title, .search-snippet)")
    assert len({round(box["x"]) for box in places}) == 1
