"""Our style sheets are whole: a browser drops in silence what it cannot read."""

import re

import pytest

from tests.support import ROOT

SHEETS = sorted((ROOT / "docs" / "_static").glob("*.css"))
NO_RULES = re.compile(r"/\*.*?\*/|\"[^\"\n]*\"", re.DOTALL)
AT_RULE = re.compile(r"@(container|media|page|keyframes|supports)\b")


def unclosed(text):
    """Selectors within a rule that is no at-rule, where a brace must be missing."""
    open_rules, found = [], []
    for part in re.findall(r"[^{}]*\{|\}", NO_RULES.sub("", text)):
        if part == "}":
            if open_rules:
                open_rules.pop()
            else:
                found.append("}")
            continue
        selector = " ".join(re.split(r"[;]", part[:-1])[-1].split())
        if open_rules and not AT_RULE.match(open_rules[-1]):
            found.append(selector)
        open_rules.append(selector)
    return found + open_rules


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.name)
def test_every_rule_is_closed(sheet):
    assert unclosed(sheet.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("text", ["a {\nb { c: d; }", "a { b: c; }}", "@media x { a { b: c; }"])
def test_a_missing_brace_is_found(text):
    assert unclosed(text)
