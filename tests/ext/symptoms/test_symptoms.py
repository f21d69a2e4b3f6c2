"""The debugging map: what a symptom's page has to hold, and what the build makes of it."""

import re

import pytest

from docs._ext.gallery.order import read_order
from docs._ext.symptoms.store import (
    GONE,
    SUBSYSTEMS,
    TOPIC,
    SymptomError,
    read,
    read_outputs,
)
from tests.support import ROOT
from tests.support.fixture_site import Site

PAGES = ROOT / "tutorials" / TOPIC
SLUGS = read_order(PAGES)

PAGE = '''"""
Sums are off
============

The sum of a list is too small. Nothing is raised.

:Subsystem: environments
:Effect: silent
:Cause: The last number is
   left out.
:Fix: Take all.
:Source: the list
:Behind it: this page
:Threads: none found
:Also called: wrong total
"""

# %%
# Break it
# --------

numbers = [1, 2, 3]
broken = {"batch": numbers[:-1]}

# %%
# Check it
# --------


def check(batch):
    return {"sum": sum(batch)}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["sum"] < 6, "no longer reproduces: nothing is left out"

# %%
# Fix it
# ------

fixed = {"batch": numbers}
healthy = check(fixed["batch"])
print("UserWarning: a warning before it")
print(healthy)
assert healthy["sum"] == 6, "the fix does not work"
'''
THREAD = """
[[message]]
text = "RuntimeError: above the rest"
targets = ["other.html#a-section", "linking.html"]
threads = ["pytorch/rl#12"]
"""
RAISING = """
# %%
# The error
# ---------

try:
    numbers[3]
except IndexError as caught:
    error = caught
print(f"{type(error).__name__}: {error}\\nin two lines")
"""


def replaced(before, after):
    assert before in PAGE
    return PAGE.replace(before, after)


# -- One page ------------------------------------------------------------------


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "sums_are_off.py"
    path.write_text(PAGE)
    return path


def test_a_page_is_read(script):
    symptom = read(script)
    assert symptom.title == "Sums are off"
    assert symptom.seen == "The sum of a list is too small. Nothing is raised."
    assert symptom.fields["Cause"] == "The last number is left out."
    assert symptom.check == 'def check(batch):\n    return {"sum": sum(batch)}'
    assert symptom.silent
    assert symptom.docname == "tutorials/debugging/sums_are_off"


def test_the_check_brings_its_imports(script):
    script.write_text(
        replaced("numbers = [", "import math, os\nimport json\n\nnumbers = [").replace(
            "sum(batch)", "math.fsum(x for x in batch)"
        )
    )
    assert read(script).check.splitlines()[:2] == ["import math", "def check(batch):"]


FAULTS = {
    "field": (":Fix: Take all.\n", "", 1, "the field 'Fix' is missing"),
    "other field": (":Fix: Take", ":Fixed: Take", 11, "no field 'Fixed'"),
    "subsystem": (": environments", ": weather", 7, "'weather' is no subsystem; use one of coll"),
    "effect": (": silent", ": quiet", 8, "'quiet' is no effect; use one of silent, loud"),
    "seen": (
        "The sum of a list is too small. Nothing is raised.\n\n",
        "",
        2,
        "say below the title what a reader sees",
    ),
    "long check": (
        "    return {",
        "    a = 1\n    b = a\n    c = b\n    return {",
        30,
        "check has 4 statements; make it 3",
    ),
    "name of the page": ("sum(batch)", "sum(numbers)", 30, "check uses numbers of its page"),
    "check": ("def check", "def look", 1, "no function check"),
    "syntax": ("def check(batch):", "def check(batch:", 30, "not Python: '(' was never closed"),
    "fixed": ("fixed = {", "mended = {", 1, "nothing is assigned to 'fixed'"),
    "assertion": (GONE, "gone", 1, f"has to say {GONE!r}"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_names_file_line_and_cure(script, fault):
    before, after, line, text = FAULTS[fault]
    script.write_text(replaced(before, after))
    with pytest.raises(SymptomError) as caught:
        read(script)
    assert str(caught.value).startswith(f"tutorials/debugging/sums_are_off.py:{line}: ")
    assert text in str(caught.value)


def test_a_name_in_the_order_without_a_page(tmp_path):
    with pytest.raises(SymptomError, match=r"gone\.py:1: no such file"):
        read(tmp_path / "gone.py")


# -- The pages of the manual ---------------------------------------------------


@pytest.mark.parametrize("slug", SLUGS)
def test_every_page_is_a_symptom(slug):
    symptom = read(PAGES / f"{slug}.py")
    assert len(symptom.title) <= 70, "a title is read in a list"
    source = (PAGES / f"{slug}.py").read_text(encoding="utf-8")
    before, _, after = source.partition("\nfixed = ")
    assert GONE in before, "the broken side asserts that it is broken"
    assert re.search(r"^assert ", after, re.M), "the fixed side asserts that it is mended"


def test_the_map_covers_the_library():
    symptoms = [read(PAGES / f"{slug}.py") for slug in SLUGS]
    assert len(symptoms) >= 50
    assert {symptom.fields["Subsystem"] for symptom in symptoms} == set(SUBSYSTEMS)
    effects = [symptom.silent for symptom in symptoms]
    assert effects == sorted(effects, reverse=True), "silent symptoms come first"
    titles = [symptom.title for symptom in symptoms]
    assert len(titles) == len(set(titles))


def test_no_two_pages_share_a_paragraph():
    """No page repeats another's set-up text."""
    seen = {}
    for slug in SLUGS:
        for text in re.findall(r"(?:^# \S[^\n]*\n)+", (PAGES / f"{slug}.py").read_text(), re.M):
            if len(text) > 120:
                assert text not in seen, f"{slug} and {seen.get(text)} say: {text}"
                seen[text] = slug


# -- The build -----------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site with a map and an index of one symptom."""
    site = Site(tmp_path_factory.mktemp("symptoms") / "site")
    conf = (site.root / "conf.py").read_text()
    conf = conf.replace('search_index",', 'search_index",\n    "docs._ext.symptoms",')
    site.write("conf.py", conf + '\nhtml_static_path = ["docs/_static"]\n')
    (site.root / "docs" / "_static").mkdir()
    site.write("docs/_static/row-filter.js", "")
    (site.root / "tutorials" / TOPIC).mkdir()
    site.write(f"tutorials/{TOPIC}/GALLERY_HEADER.rst", "Debugging\n---------\n\nAll.\n")
    site.write(f"tutorials/{TOPIC}/order.txt", "sums_are_off\n")
    site.write(f"tutorials/{TOPIC}/sums_are_off.py", PAGE)
    site.append("tutorials/order.txt", f"{TOPIC}\n")
    site.write(
        "docs/map.rst",
        ":orphan:\n\nMap\n===\n\n.. symptom-filter::\n\n.. symptom-map::\n\n"
        "Silent\n------\n\n.. symptom-list:: devices, environments\n",
    )
    link = f":doc:`/tutorials/{TOPIC}/sums_are_off` :effect:`sums_are_off`"
    site.write("docs/naming.rst", f":orphan:\n\nNaming\n======\n\n{link}\n")
    site.write("docs/errors.rst", ":orphan:\n\nErrors\n======\n\n.. error-index::\n")
    status, said = site.build()
    assert status == 0, said
    return site


@pytest.mark.slow
def test_the_map_shows_the_page_and_its_run(site):
    html = (site.public / "map.html").read_text()
    row = html[html.index("<details") : html.index("</details>")]
    assert 'id="symptom-sums-are-off"' in row
    assert 'data-effect="silent" data-subsystem="environments"' in row
    text = re.sub(r"<[^>]+>", "", row)
    plain = text.replace("&#39;", "'")
    shown = ["Sums are off", "number is left", "Take all", "def check(batch)", "{'sum': 6}"]
    places = [plain.index(words) for words in [*shown, "too small", "wrong total"]]
    assert places == sorted(places), "cause and fix, the check and its healthy output, the rest"
    assert "'sum': 3" not in text.replace("&#39;", "'"), "the unhealthy output is on the page"
    assert 'href="tutorials/debugging/sums_are_off.html"' in row
    assert '<form class="row-filter symptom-filter pst-js-only"' in html
    assert 'value="environments" aria-pressed="false">environments <b>1</b>' in html
    assert '<section class="symptom-group" id="symptoms-environments">\n<h2>Environments' in html
    page = (site.public / "tutorials" / "debugging" / "sums_are_off.html").read_text()
    assert 'href="../../map.html#symptom-sums-are-off"' in page


@pytest.mark.slow
def test_a_page_is_a_card_and_a_foot(site):
    html = (site.public / "tutorials" / TOPIC / "sums_are_off.html").read_text()
    shown = [
        "is too small",
        "symptom-card is-silent",
        '<span class="symptom-effect is-silent">silent',
        "no error is raised",
        "executed 2023-11-14, TorchRL",
        "Cause",
        "Take all",
        "<h2>Break it",
        "<h2>Fix it",
        "symptom-foot",
        "Source",
        "wrong total",
        "In the map",
        "sphx-glr-footer",
    ]
    places = [html.index(words, html.index("<h1>")) for words in shown]
    assert places == sorted(places)
    assert "none found" not in html
    assert "Behind it" not in html
    assert "Effect" not in html


@pytest.mark.slow
def test_the_indexes_list_symptoms_by_subsystem(site):
    own, above = (
        (site.public / "tutorials" / name).read_text()
        for name in (f"{TOPIC}/index.html", "index.html")
    )
    group = own[own.index('<section id="symptoms-environments">') :]
    assert 'href="sums_are_off.html"><span class="doc">Sums are off' in group
    assert '<span class="symptom-effect is-silent">silent' in group
    assert '<ul class="symptom-items' in group, "the marks in a column of their own"
    assert f'href="{TOPIC}/index.html#symptoms-environments">Environments</a> 1' in above
    for page in (own, above):
        assert "sums_are_off_thumb" not in page
    assert "sphx-glr-thumbcontainer" not in own
    assert "sphx-glr-thumbcontainer" in above, "other topics keep their cards"


MARKED = (
    'debugging/sums_are_off.html"><span class="doc">Sums are off</span></a> '
    '<span class="symptom-effect is-{0}">{0}</span>'
)


@pytest.mark.slow
def test_a_named_symptom_has_the_mark_that_its_page_has_now(site, tmp_path):
    assert MARKED.format("silent") in (site.public / "naming.html").read_text()
    other = site.copy(tmp_path / "site")
    script = replaced(": silent", ": loud") + RAISING
    other.write(f"tutorials/{TOPIC}/sums_are_off.py", script)
    status, said = other.build()
    assert status == 0, said
    assert MARKED.format("loud") in (other.public / "naming.html").read_text()
    other.append("docs/naming.rst", "\n:effect:`sums_are_of`\n")
    status, said = other.build()
    assert status == 1
    assert "naming.rst:8: ERROR: no symptom 'sums_are_of'" in said


@pytest.mark.slow
def test_the_index_shows_what_was_printed(site, tmp_path):
    other = site.copy(tmp_path / "site")
    other.append(f"tutorials/{TOPIC}/sums_are_off.py", RAISING)
    loud = replaced("Sums are off\n====", "Loud sums\n=").replace(": silent", ": loud") + RAISING
    other.write(f"tutorials/{TOPIC}/loud_sums.py", loud)
    other.append(f"tutorials/{TOPIC}/order.txt", "loud_sums\n")
    (other.root / "docs" / "reference").mkdir()
    page = f"tutorials/{TOPIC}/loud_sums.html"
    thread = THREAD.replace('"linking.html"', f'"linking.html", "{page}"')
    other.write("docs/reference/messages.toml", thread)
    status, said = other.build()
    assert status == 0, said
    rows = (other.public / "map.html").read_text()
    assert 'id="symptom-loud-sums"' in rows
    listed = re.search(r'(?s)<ul class="[^"]*symptom-list.*?</ul>', rows)[0]
    assert "sums_are_off.html" in listed
    assert MARKED.format("silent") in listed
    assert "debugging/loud_sums.html" not in re.sub(r"(?s)<details.*</details>", "", rows), (
        "the list holds silent symptoms"
    )
    html = (other.public / "errors.html").read_text()
    assert "IndexError: list index out of range\nin two lines" in html
    assert "debugging/sums_are_off.html" in html
    assert "map.html#symptom" not in html, "the page of a symptom leads to its row"
    heading = re.search(r'(?s)<section id="messages-indexerror">\s*<h\d>(.*?)</h', html)[1]
    assert re.match(r'<code class="error-kind [^"]*"><span class="pre">IndexError', heading)
    assert "symptom-effect" not in html, "a silent symptom may raise in a check"
    places = [
        "IndexError: list index",
        'id="messages-runtimeerror"',
        "RuntimeError: above the rest",
    ]
    assert sorted(places, key=html.index) == places
    for link in (
        '<a class="reference internal" href="other.html#a-section">A section (Other)</a>',
        '<a class="reference internal" href="linking.html">Linking</a>',
        f'<a class="reference internal" href="{page}">Loud sums</a>',
        '<a class="reference external" href="https://github.com/pytorch/rl/issues/12">pytorch/rl#12',
    ):
        assert link in html
    script = other.root / "tutorials" / TOPIC / "sums_are_off.py"
    outputs = read_outputs(other.generated / TOPIC / "sums_are_off.rst", script)
    assert outputs.messages == (
        "UserWarning: a warning before it",
        "IndexError: list index out of range\nin two lines",
    )
    assert (outputs.unhealthy, outputs.healthy) == ("{'sum': 3}", "{'sum': 6}")


@pytest.mark.slow
def test_an_edit_reaches_map_index_and_list(site, tmp_path):
    """Builds that start from the last one; the last of them is the build from nothing."""
    other = site.copy(tmp_path / "site")

    def built():
        status, said = other.build()
        assert status == 0, said
        page, errors = ((other.public / name).read_text() for name in ("map.html", "errors.html"))
        rows = re.findall(r'<details[^>]* id="symptom-([^"]+)"', page)
        listed = re.findall(r"<li>.*debugging/(\w+)\.html", page)
        assert rows == [slug.replace("_", "-") for slug in listed]
        return listed, page, errors

    edited = replaced("Sums are off\n====", "Sums are low\n====")
    other.write(f"tutorials/{TOPIC}/sums_are_off.py", edited)
    _, page, errors = built()
    assert page.count("Sums are low") == 3, "the row, its link to the page, and the list"
    assert "Sums are low" in errors
    other.write(f"tutorials/{TOPIC}/sums_are_off.py", edited.replace("UserW", "OtherW"))
    assert "OtherWarning: a warning before it" in built()[2]
    other.write(
        f"tutorials/{TOPIC}/other_sums.py", replaced("Sums are off\n====", "Other sums\n==")
    )
    for order in (["other_sums", "sums_are_off"], ["sums_are_off", "other_sums"]):
        other.write(f"tutorials/{TOPIC}/order.txt", "\n".join(order) + "\n")
        listed, _, errors = built()
        assert listed == order
        assert "other_sums.html" in errors
    (other.root / "tutorials" / TOPIC / "other_sums.py").unlink()
    other.write(f"tutorials/{TOPIC}/order.txt", "sums_are_off\n")
    listed, _, errors = built()
    assert listed == ["sums_are_off"]
    assert "other_sums.html" not in errors


@pytest.mark.slow
def test_previous_and_next_keep_to_the_subsystem(site, tmp_path):
    other = site.copy(tmp_path / "site")
    named = replaced("Sums are off\n====", "NAME sums\n==")
    for name, subsystem in {"alone": "evaluation", "later": "environments"}.items():
        page = named.replace("NAME", name).replace(": environments", f": {subsystem}")
        other.write(f"tutorials/{TOPIC}/{name}_sums.py", page)
    other.append(f"tutorials/{TOPIC}/order.txt", "alone_sums\nlater_sums\n")
    status, said = other.build()
    assert status == 0, said

    def ways(name):
        html = (other.public / "tutorials" / TOPIC / f"{name}.html").read_text()
        return dict(re.findall(r'<link rel="(prev|next)" title="[^"]*" href="([^"]*)"', html))

    group = "../../map.html#symptoms-{}".format
    assert ways("sums_are_off") == {"prev": group("environments"), "next": "later_sums.html"}
    assert ways("later_sums") == {"prev": "sums_are_off.html", "next": group("environments")}
    assert ways("alone_sums") == {"prev": group("evaluation"), "next": group("evaluation")}
    html = (other.public / "tutorials" / TOPIC / "later_sums.html").read_text()
    [way] = re.findall(r'<li class="nav-item nav-item-0">.*?</ul>', html, re.DOTALL)[:1]
    crumbs = re.findall(r'nav-item-[1-9]"><a href="([^"]*)"[^>]*>([^<]*)', way)
    assert [href for href, _ in crumbs] == ["../../map.html", group("environments")]
    assert crumbs[1][1] == "Environments"
    other.write(
        f"tutorials/{TOPIC}/alone_sums.py",
        named.replace("NAME", "alone"),  # it moves to the others
    )
    status, said = other.build()
    assert status == 0, said
    assert ways("sums_are_off")["next"] == "alone_sums.html", "a page that nobody edited"


@pytest.mark.slow
def test_a_message_that_nothing_answers_stops_the_build(site, tmp_path):
    other = site.copy(tmp_path / "site")
    (other.root / "docs" / "reference").mkdir()
    other.write("docs/reference/messages.toml", THREAD.replace("#a-section", "#no-section"))
    for _ in range(2):  # a repeated build says it again
        status, said = other.build()
        assert status != 0
        assert "messages.toml:4: WARNING: no page has the place 'other.html#no-section'" in said


BUILDS = {
    "form": ({"sums_are_off": replaced(": silent", ": quiet")}, "sums_are_off.py:8: 'quiet'"),
    "silent output": (
        {"sums_are_off": replaced("print(healthy)\n", "")},
        "no cell prints the dictionary of healthy = check",
    ),
    "message": (
        {"sums_are_off": replaced(": silent", ": loud").replace("UserWarning", "Careful")},
        "'sums_are_off' prints no message",
    ),
    "rank": (
        {
            "sums_are_off": replaced(": silent", ": loud") + RAISING,
            "other_sums": replaced("Sums are off\n====", "Other sums\n=="),
        },
        "ranks the silent 'other_sums' behind the loud 'sums_are_off'",
    ),
    "gone": (
        {"sums_are_off": replaced("numbers[:-1]", "numbers")},
        "AssertionError: no longer reproduces: nothing is left out",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", BUILDS)
def test_a_fault_stops_the_build(site, tmp_path, fault):
    pages, text = BUILDS[fault]
    other = site.copy(tmp_path / "site")
    for slug, source in pages.items():
        other.write(f"tutorials/{TOPIC}/{slug}.py", source)
    other.write(f"tutorials/{TOPIC}/order.txt", "\n".join(pages) + "\n")
    for _ in range(2):  # a repeated build says it again
        status, said = other.build()
        assert status != 0
        assert text in said, said
