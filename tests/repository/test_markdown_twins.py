"""The Markdown twins of the built site, against its pages; and llms.txt."""

import html
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

from tests.support import SITE

WITHOUT = {"404.html", "genindex.html", "search.html"}
# What no twin has: links of the page to itself, hints, forms, cards' second titles, drawn text,
# where old sections are.
LEFT_OUT = (
    ".headerlink, .viewcode-link, .term-hints, form, script, svg, .sphx-glr-thumbnail-title, math, "
    ".moved"
)
ARTICLE = re.compile(r"(?<=<article class=\"bd-article\">).*(?=</article>)", re.DOTALL)
PRE = re.compile(r"(?<=<pre>).*?(?=</pre>)", re.DOTALL)
FENCED = re.compile(r"^([> ]*)(`{3,})\w*\n.*?^\1\2\n", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)")
LEAKS = {
    "directive": re.compile(r"^\s*\.\. [\w-]+::", re.MULTILINE),
    "role": re.compile(r"(?<!\S):[a-z][\w:+-]*:(?=\\?`|\w)"),
    "tag": re.compile(r"(?<!\\)<[a-z/!]", re.IGNORECASE),
    "entity": re.compile(r"&#?\w+;"),
    "fence": re.compile("```"),
}
LINK = re.compile(r"\]\(([^)\s]+)\)")

pytestmark = pytest.mark.site


def leaks(text):
    """What is neither text nor Markdown, outside of code."""
    text = SPAN.sub("`", FENCED.sub("", text))
    return [(kind, found[0]) for kind, pattern in LEAKS.items() for found in pattern.finditer(text)]


def flat(text):
    """The text of a cell, in one line and without Markdown."""
    text = re.sub(r"\[((?:\\.|[^\]])*)\]\([^)]*\)", r"\1", text)
    return " ".join(re.sub(r"\\(.)|[*`]", r"\1", text).split())


def rows(twin):
    """Each row of a table, as a tuple of its cells."""
    lines = [line.lstrip("> ") for line in twin.splitlines() if line.lstrip("> ").startswith("| ")]
    return Counter(tuple(map(flat, re.split(r"(?<!\\)\|", line)[1:-1])) for line in lines)


@cache
def pages():
    """Every page that has a twin: its address -> its text, parsed, and its twin."""
    found = {}
    for path in sorted(SITE.rglob("*.html")):
        name = path.relative_to(SITE).as_posix()
        text = path.read_text(encoding="utf-8")
        if name in WITHOUT or name.startswith("_static/") or 'http-equiv="refresh"' in text:
            continue
        colored = ARTICLE.search(text)[0]
        plain = PRE.sub(lambda match: re.sub("<[^>]+>", "", match[0]), colored)
        article = BeautifulSoup(f"<article>{plain}</article>", "html.parser").article
        for node in article("wbr"):
            node.decompose()
        article.smooth()  # one text around each place where a word may break
        for node in article.select(LEFT_OUT):
            if node.get("aria-label"):
                node.replace_with(node["aria-label"])
            else:
                node.decompose()
        twin = path.with_name(f"{path.name}.md")
        found[name] = text, article, twin.read_text(encoding="utf-8") if twin.is_file() else ""
    return found


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("a \\<b> `<i>` c_d\n```python\n<i> .. note::\n```\nat 12:30: one", []),
        (".. note:: a", ["directive"]),
        ("see :term:`carrier` and :ref:\\`there\\`", ["role", "role"]),
        ("a <span>b</span> &lt;", ["tag", "tag", "entity"]),
        ("```\nnever closed", ["fence"]),
    ],
)
def test_leaks(text, kinds):
    assert [kind for kind, _ in leaks(text)] == kinds


def test_every_page_has_a_twin_and_leads_to_it():
    sizes = {name: len(twin.encode()) for name, (_, _, twin) in pages().items()}
    assert [name for name, size in sizes.items() if not size] == []
    largest = max(sizes, key=sizes.get)
    total, most = sum(sizes.values()) / 1e6, sizes[largest] / 1e3
    print(f"{len(sizes)} twins, {total:.1f} MB; largest {largest}: {most:.0f} kB")
    twins = {path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html.md")}
    assert twins == {f"{name}.md" for name in sizes}
    for name, (text, _, twin) in pages().items():
        file = Path(name).name
        assert f'<link rel="alternate" type="text/markdown" href="{file}.md" />' in text, name
        script = (SITE / f"{name}.md.js").read_text(encoding="utf-8")
        assert json.loads(script.removeprefix("window.markdownTwin = ")[:-2]) == twin, name
        assert f'data-twin="{file}.md"' in text, name


def test_twins_begin_with_what_the_page_says_of_itself():
    for name, (text, article, twin) in pages().items():
        head, body = twin.removeprefix("---\n").split("\n---\n", 1)
        head = dict(line.split(": ", 1) for line in head.splitlines())
        head = {key: json.loads(value) for key, value in head.items()}
        description = re.search(r'<meta name="description" content="([^"]*)"', text)[1]
        stamp = re.search(r'<p class="page-stamp"[^>]*>.*?</p>', text, re.DOTALL)[0]
        stamp = BeautifulSoup(stamp, "html.parser").get_text()
        assert head["description"] == html.unescape(description), name
        assert flat(head["stamp"]) == " ".join(stamp.split()), name
        assert body.startswith("\n# "), name
        assert flat(body.split("\n")[1][2:]) == " ".join(article.h1.get_text().split()), name


def test_no_markup_is_left():
    assert {name: found for name, (_, _, twin) in pages().items() if (found := leaks(twin))} == {}


def test_every_word_of_a_page_is_in_its_twin():
    missing = {}
    for name, (_, article, twin) in pages().items():
        text = article.get_text(" ") + " ".join(img.get("alt", "") for img in article.select("img"))
        said = Counter(re.findall(r"\w+", text))
        said -= Counter(re.findall(r"\w+", re.sub(r"\\([_*])", r"\1", twin)))
        if said:
            missing[name] = dict(said)
    assert missing == {}


def test_every_value_of_a_record_is_in_the_twin():
    values = cells = 0
    for name, (_, article, twin) in pages().items():
        shown = Counter(flat(value.get_text()) for value in article.select("a .measured"))
        linked = re.findall(r"\[([^\]]*)\]\([^)]*records\.html\.md#record-[\w-]+\)", twin)
        assert shown - Counter(map(flat, linked)) == Counter(), name
        tables = article.select(".record-table tr, .evidence-table tr")
        in_tables = Counter(
            tuple(" ".join(cell.get_text().split()) for cell in row.select("td, th"))
            for row in tables
        )
        assert in_tables - rows(twin) == Counter(), name
        for value in article.select(".evidence-value"):
            assert flat(value.get_text()) in flat(twin), name
        values, cells = values + shown.total(), cells + sum(map(len, in_tables))
    print(f"{values} values and {cells} different cells of records and evidence")
    assert min(values, cells) > 100


def test_executed_output_is_in_the_twin():
    found = 0
    for name, (_, article, twin) in pages().items():
        for output in article.select(".sphx-glr-script-out pre, .evidence-output pre"):
            mark = "" if output.find_parent(class_="evidence-output") else "Output:\n\n"
            fence = r"`{3,}"
            text = re.escape(output.get_text().strip("\n"))
            plain = re.sub("^> ?", "", twin, flags=re.MULTILINE)
            assert re.search(rf"{mark}{fence}text\n{text}\n{fence}\n", plain), (name, output)
            found += 1
    assert found > 100


def test_links_of_twins_lead_to_twins_and_files():
    twins = {(SITE / f"{name}.md").resolve() for name in pages()}
    wrong = []
    for name, (_, _, twin) in pages().items():
        for address in LINK.findall(FENCED.sub("", twin)):
            parts = urlsplit(address)
            target = (SITE / name).parent / unquote(parts.path)
            if not parts.scheme and parts.path:
                page = target.resolve().with_name(f"{target.name}.md")
                if not target.is_file() or page in twins:
                    wrong.append((name, address))
    assert wrong == []


def test_llms_txt_lists_every_twin_with_a_description():
    text = (SITE / "llms.txt").read_text(encoding="utf-8")
    print(f"llms.txt: {len(text.encode()) / 1e3:.0f} kB")
    title, summary, sections = text.split("\n\n", 2)
    assert title == "# TorchRL Field Manual"
    assert summary.startswith("> ")
    assert re.findall("^## (.*)", sections, re.MULTILINE) == [
        "Tutorials",
        "How-to guides",
        "Debugging: symptoms",
        "Reference",
        "Performance",
        "Glossary",
        "API",
    ]
    entries = re.findall(r"^- \[.+?\]\((\S+)\): \S.*", sections, re.MULTILINE)
    assert sorted(entries) == sorted(f"{name}.md" for name in pages())
    assert len(entries) == sections.count("\n- ")
