"""What docs/_ext/site/style_sheets.py takes out of the theme's style sheets, no page can use.

A rule is needed where pages have every class that its selector asks for, or scripts name them.
"""

import re

import pytest

from docs._ext.site.style_sheets import SHEETS
from tests.support.small_site import SmallSite

# Condition, selector and declarations of every rule, in the order of the sheet.
RULES = """(css) => {
    const sheet = new CSSStyleSheet(), found = [];
    sheet.replaceSync(css);
    const walk = (rules, condition) => {
        for (const rule of rules) {
            if (rule.selectorText === undefined && !rule.cssRules)
                found.push([condition, "@", rule.cssText]);
            for (const one of rule.selectorText?.split(/,(?![^(\\[]*[)\\]])/) ?? [])
                found.push([condition, one.trim(), rule.style.cssText]);
            walk(rule.cssRules ?? [], `${condition} ${rule.conditionText ?? rule.name ?? ""}`);
        }
    };
    walk(sheet.cssRules, "");
    return found;
}"""
# Classes of all pages, the addresses of their scripts, and the text of those within them.
USED = """async (pages) => {
    const classes = new Set(), sources = new Set(), inline = new Set();
    for (const page of pages) {
        const html = await (await fetch(page)).text();
        const parsed = new DOMParser().parseFromString(html, "text/html");
        for (const one of parsed.querySelectorAll("[class]"))
            for (const name of one.classList) classes.add(name);
        for (const one of parsed.scripts)
            if (one.src) sources.add(new URL(one.getAttribute("src"), page).href);
            else inline.add(one.text);
    }
    const texts = await Promise.all([...sources].map(async (one) => (await fetch(one)).text()));
    return [[...classes], [...texts, ...inline]];
}"""


def classes_of(selector):
    """The classes without which the selector matches nothing."""
    while (plain := re.sub(r":[\w-]+\([^()]*\)", "", selector)) != selector:
        selector = plain
    return set(re.findall(r"\.(-?[a-zA-Z_][\w-]*)", selector))


def missing(whole, left, used):
    """Rules that are needed and gone."""
    gone = set(map(tuple, whole)) - set(map(tuple, left))
    return sorted(rule for rule in gone if rule[1] != "@" and classes_of(rule[1]) <= used)


def composed(script):
    """Patterns of the names that a script puts together: a template, or text that ends in ``-``."""
    templates = re.findall(r"`((?:[\w-]|\$\{[^{}`]*\})+)`", script)
    templates += [
        f"{text}${{}}" for text in re.findall(r"[\"']([\w-]+-)[\"'](?: *\+|\.concat)", script)
    ]
    patterns = [re.sub(r"\$\{[^{}]*\}", r"[\\w-]+", one) for one in templates if "${" in one]
    return [one for one in patterns if re.search("[a-z]-|-[a-z]", one.replace(r"[\w-]+", ""))]


@pytest.fixture(scope="module")
def rules(browser, site, tmp_path_factory):
    """The rules of each sheet, as the theme has it and as the site has it."""
    sources = {"index.rst": "Home\n====\n"}
    theme = {"html_theme": "pydata_sphinx_theme", "extensions": "sphinx_design"}
    plain = SmallSite(tmp_path_factory.mktemp("plain"), sources, **theme).built().html
    page = browser.new_page()

    def read(folder, name):
        return page.evaluate(RULES, (folder / "_static" / name).read_text(encoding="utf-8"))

    yield {name: (read(plain, name), read(site, name)) for name in SHEETS}
    page.close()


@pytest.fixture(scope="module")
def used(browser, site_url, all_pages):
    """The classes of all pages and the scripts that they run."""
    page = browser.new_page()
    page.goto(site_url + all_pages[0])
    classes, scripts = page.evaluate(USED, [site_url + name for name in all_pages])
    page.close()
    assert {"bd-main", "highlight"} <= set(classes)
    assert any("tooltip-inner" in script for script in scripts)
    return set(classes), scripts


def test_every_rule_that_a_page_needs_is_there(rules, used):
    classes, scripts = used
    named = classes.union(*(re.findall(r"[\w-]+", script) for script in scripts))
    lost = {name: missing(whole, left, named) for name, (whole, left) in rules.items()}
    assert not any(lost.values()), lost


def test_what_is_left_is_in_its_order_and_less_than_half(rules):
    for whole, left in rules.values():
        rest = iter(whole)
        assert all(rule in rest for rule in left)
    sizes = [sum(map(len, both)) for both in zip(*rules.values(), strict=True)]
    assert sizes[1] < sizes[0] / 2


def test_no_script_puts_together_a_name_that_is_gone(rules, used):
    known, kept = (
        {name for rules in sheets for rule in rules for name in classes_of(rule[1])}
        for sheets in zip(*rules.values(), strict=True)
    )
    patterns = [pattern for script in used[1] for pattern in composed(script)]
    assert r"bs-[\w-]+-auto" in patterns
    gone = known - kept
    assert {name for name in gone for one in patterns if re.fullmatch(one, name)} == set()


@pytest.mark.parametrize(
    ("selector", "classes"),
    [
        ("a:is(.b, p:not(.c)).d > e", {"d"}),
        (".a:not(.b):hover::before", {"a"}),
        ("html[data-theme='dark'] .a .b", {"a", "b"}),
        (":focus-visible", set()),
    ],
)
def test_classes_of_a_selector(selector, classes):
    assert classes_of(selector) == classes


def test_a_dropped_rule_is_found():
    whole = [("", ".a", "top: 0px;"), ("print", ".a", "top: 0px;"), ("", ".a .b", "top: 0px;")]
    assert missing(whole, whole[:1], {"a"}) == [("print", ".a", "top: 0px;")]


@pytest.mark.parametrize(
    ("script", "patterns"),
    [
        ("add(`bs-${this.NAME}-auto`)", [r"bs-[\w-]+-auto"]),
        ("add('fa-' + icon)", [r"fa-[\w-]+"]),
        ("`${a}-${b}`, `${c}px`, '-' + d, 'whole'", []),
    ],
)
def test_names_that_a_script_puts_together(script, patterns):
    assert composed(script) == patterns
