"""The forms of a report: text for a terminal, HTML for a notebook, Markdown for an issue, JSON."""

from __future__ import annotations

import html
import os
import re
import textwrap

from torchrl_doctor.schema import SCHEMA_VERSION
from torchrl_doctor.verdicts import APPLIES, CHECKS, CLEAR, FAILED, UNDECIDED

WIDTH = 80


STYLES = {
    APPLIES: "1;31",
    FAILED: "1;35",
    UNDECIDED: "33",
    CLEAR: "32",
    "label": "2",
    "code": "1",
}


NOTHING = "No known symptom applies."


SAVINGS_TITLE = "Time and memory, which is no symptom"


WITHOUT_HOST = "Pages are below the address of the manual; site= or --site puts it before them."


FOLLOWING = "These follow from it; look again after the fix:"


def takes_color(stream):
    """Whether a stream is a terminal, and nothing says no (https://no-color.org)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and stream.isatty()


def painted(text, style, color):
    return f"\033[{STYLES[style]}m{text}\033[0m" if color else text


def in_columns(text, indent="", first=None):
    """The lines of a text that fits a terminal."""
    options = {"break_long_words": False, "break_on_hyphens": False}
    first = indent if first is None else first
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=indent, **options)


def parts_of_finding(report, one, brief=False):
    """Label and text of what is said of a finding; *brief* leaves out cause and fix."""
    yield "why" if one.state == UNDECIDED else "seen", one.evidence
    if one.state == FAILED:
        yield "fix", "None: this is a fault of the doctor. Please report it with the line above."
    is_there = one.state == APPLIES
    if is_there and one.row and not brief:
        yield "cause", one.row.cause
        yield "fix", one.row.fix
    if is_there and one.code and not brief:
        yield "code", one.code
    address = report.address(one) if is_there else None
    if address:
        yield "page", address
    if one.slug not in (address or ""):
        yield "check", one.slug


def heading(one):
    """The verdict, the title, and whether it is silent, of a symptom that is there."""
    return one.state, f"{one.title} ({one.effect})" if shows_effect(one) else one.title


def shows_effect(one):
    return one.state == APPLIES and one.effect


# -- Text ----------------------------------------------------------------------


def lines_of(report, one, indent="", brief=False, color=False):
    """The lines of one finding."""
    state, title = heading(one)
    lines = [f"{indent}{painted(f'{state}:', one.state, color)} {title}"]
    for label, text in parts_of_finding(report, one, brief):
        shown = indent + "  " + painted(f"{label:7}", "label", color)
        start = indent + " " * 9
        if label == "code":
            body = [start + painted(line, "code", color) for line in text.splitlines()]
        else:
            body = in_columns(text, start) or [start]
        lines += [shown + body[0][len(start) :], *body[1:]]
    return lines


def as_text(report, everything=False, color=False):
    """See `Report.table`."""
    blocks = []
    for root, below in report.roots:
        blocks.append(lines_of(report, root, color=color))
        if below:
            blocks[-1].append("  " + painted(FOLLOWING, "label", color))
        for one in below:
            blocks[-1] += lines_of(report, one, "    ", brief=True, color=color)
    shown = (FAILED, UNDECIDED, CLEAR) if everything else (FAILED, UNDECIDED)
    blocks += [lines_of(report, one, color=color) for one in report if one.state in shown]
    if everything:
        for slug, names in report.lacking.items():
            title = CHECKS[slug].title if slug in CHECKS else slug
            blocks.append([f"not looked at: {title}", f"  needs  {', '.join(names)}"])
    if report.savings:
        blocks.append([f"{SAVINGS_TITLE}:"])
    for one in report.savings:
        blocks[-1] += in_columns(f"{one.title}: {one.evidence}", "  ")
        blocks[-1].append(f"  {report.address(one)}")
    blocks.append([line for note in report.notes for line in in_columns(note, "  ", "- ")])
    end = in_columns(f"{report.counts}" if report.applies else f"{NOTHING} {report.counts}")
    made_with = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    if not report.site and any(one.page for one in report.applies):
        end += in_columns(WITHOUT_HOST)
    blocks.append([*end, *in_columns(made_with)])
    return "\n\n".join("\n".join(block) for block in blocks if block)


# -- Markdown ------------------------------------------------------------------


def outside_code(text):
    """Markdown of a text with code in backticks: nothing else in it is taken for HTML."""
    parts = text.split("`")
    return "`".join(one if n % 2 else one.replace("<", "&lt;") for n, one in enumerate(parts))


def markdown_of(report, one, indent="", brief=False):
    """The lines of one finding."""
    yield f"{indent}- **{heading(one)[1]}** `{one.slug}`"
    for label, text in parts_of_finding(report, one, brief):
        if label == "check":
            continue  # it stands beside the title
        if label == "code":
            fenced = ["```python", *text.splitlines(), "```"]
            yield from ["", *(f"{indent}  {line}" for line in fenced), ""]
        else:
            is_link = label == "page" and "://" in text
            shown = f"<{text}>" if is_link else outside_code(text)
            yield f"{indent}  - {label}: {shown}"


def as_markdown(report):
    """See `Report.to_markdown`."""
    lines = ["### torchrl-doctor", "", report.counts if report.applies else NOTHING, ""]
    for root, below in report.roots:
        lines += markdown_of(report, root)
        if below:
            lines.append(f"  - {FOLLOWING}")
        for one in below:
            lines += markdown_of(report, one, "    ", brief=True)
    for state in (FAILED, UNDECIDED):
        found = report.of(state)
        if found:
            lines += ["", f"<details><summary>{state}: {len(found)}</summary>", ""]
            lines += [line for one in found for line in markdown_of(report, one)]
            lines += ["", "</details>"]
    if report.savings:
        lines += ["", f"{SAVINGS_TITLE}:", ""]
    for one in report.savings:
        lines.append(f"- {outside_code(f'{one.title}: {one.evidence}')} ({report.address(one)})")
    if report.notes:
        lines += ["", "Notes:", "", *(f"- {outside_code(note)}" for note in report.notes)]
    lines += ["", "| " + " | ".join(report.versions) + " |", "| --- " * len(report.versions) + "|"]
    lines.append("| " + " | ".join(map(str, report.versions.values())) + " |")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


# -- HTML ----------------------------------------------------------------------

# Colors of text and ground are those around it, so that dark and light both do. A bar marks what
# applies; its colors have a contrast of 3 with white and with black.
BARS = {APPLIES: "#d64545", FAILED: "#a855c8", UNDECIDED: "#b07a16", CLEAR: "#3a9148"}


def with_code(text):
    """HTML of a text with code in backticks."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{one}</code>" if n % 2 else one for n, one in enumerate(parts))


def html_of(report, one, below=(), brief=False):
    """One finding as a block, with those that follow from it inside."""
    state, title = heading(one)
    style = f"border-left: 4px solid {BARS[one.state]}; padding-left: 0.8em; margin: 0.8em 0"
    rows = []
    for label, text in parts_of_finding(report, one, brief):
        if label == "code":
            shown = f"<pre>{html.escape(text)}</pre>"
        elif label == "page" and "://" in text:
            shown = f'<a href="{html.escape(text)}" style="color: inherit">{html.escape(text)}</a>'
        else:
            shown = with_code(text)
        rows.append(f"<div><b>{label}</b> {shown}</div>")
    inner = "".join(html_of(report, other, brief=True) for other in below)
    if below:
        rows.append(f'<div style="margin: 0.8em 0 0 1em">{FOLLOWING}{inner}</div>')
    head = f"<div>{html.escape(state)}: <b>{with_code(title)}</b></div>"
    return f'<div style="{style}">{head}{"".join(rows)}</div>'


def as_html(report):
    """The report for a notebook; it has no script and loads nothing."""
    parts = [html_of(report, root, below) for root, below in report.roots]
    parts += [html_of(report, one) for one in report.of(FAILED)]
    if undecided := report.of(UNDECIDED):
        blocks = "".join(html_of(report, one) for one in undecided)
        head = f"<summary>{UNDECIDED}: {len(undecided)}</summary>"
        parts.append(f"<details>{head}{blocks}</details>")
    if report.savings:
        told = [with_code(f"{one.title}: {one.evidence}") for one in report.savings]
        parts.append(f"<div>{SAVINGS_TITLE}:<ul><li>{'</li><li>'.join(told)}</li></ul></div>")
    if report.notes:
        notes = "".join(f"<li>{with_code(note)}</li>" for note in report.notes)
        parts.append(f"<ul>{notes}</ul>")
    end = report.counts if report.applies else f"{NOTHING} {report.counts}"
    made_with = ", ".join(f"{name} {number}" for name, number in report.versions.items())
    parts.append(f"<p>{html.escape(end)}<br>{html.escape(made_with)}</p>")
    return f'<div style="text-align: left; max-width: 50em">{"".join(parts)}</div>'


# -- JSON ----------------------------------------------------------------------


def as_document(report):
    """A dictionary of the form `SCHEMA`."""
    above = {one.slug: root.slug for root, below in report.roots for one in below}
    findings = [
        {
            "check": one.slug,
            "title": one.title,
            "verdict": one.state,
            "effect": one.effect,
            "evidence": one.evidence,
            "cause": one.row.cause if one.row and one.state == APPLIES else None,
            "fix": one.row.fix if one.row and one.state == APPLIES else None,
            "code": one.code,
            "page": report.address(one),
            "follows_from": above.get(one.slug),
        }
        for one in report
    ]
    known = dict(report.versions)
    return {
        "schema": SCHEMA_VERSION,
        "doctor": known.pop("torchrl-doctor"),
        "findings": findings,
        "savings": [
            {
                "name": one.slug,
                "title": one.title,
                "evidence": one.evidence,
                "page": report.address(one),
            }
            for one in report.savings
        ],
        "notes": report.notes,
        "lacking": report.lacking,
        "unconcerned": report.unconcerned,
        "versions": known,
    }
