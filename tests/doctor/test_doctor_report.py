"""What a report looks like: as text, HTML, Markdown and JSON."""

import collections
import io
import json
import re

import jsonschema
import pytest
from bs4 import BeautifulSoup
from tensordict import TensorDict
from torchrl_doctor import APPLIES, CHECKS, CLEAR, FAILED, SCHEMA, UNDECIDED, Report, Row
from torchrl_doctor.report import Finding
from torchrl_doctor.rows import ROWS

from tests.support.claims import guards

Saving = collections.namedtuple("Saving", ("slug", "title", "evidence", "page"))
SITE = "https://manual.example/en"


def made(slug, state=APPLIES, evidence="3 of 4 rows", code=None):
    page = f"tutorials/debugging/{slug}.html" if slug in ROWS else ""
    title = CHECKS[slug].title if slug in CHECKS else "Of somebody else"
    return Finding(slug, title, state, evidence, code, page, ROWS.get(slug))


@pytest.fixture
def report():
    report = Report(SITE)
    report.findings = [
        made("epsilon_never_goes_down", CLEAR, "epsilon is 0.5"),
        made("is_init_not_found", UNDECIDED, "give batch="),
        made("lstm_raises_in_parallel_env_only", evidence="the error names the <key>"),
        made("lstm_forgets_every_step", code="lstm = make()\nenv.append(lstm.primer())"),
        made("rewards", FAILED, "ZeroDivisionError (values.py:3)"),
    ]
    told = ("list", "A list is stacked: use a tensor", "5 <rows>", "performance/x.html#y")
    report.savings = [Saving(*told)]
    report.notes = ["replay_buffer is of type int; it is left out."]
    report.lacking = {"gae_raises_with_lstm": ["value_estimator"]}
    report.unconcerned = ["decimals_are_lost"]
    return report


TEXT = """\
applies: The LSTM forgets everything between steps (silent)
  seen   3 of 4 rows
  cause  The specs of the environment do not include the hidden state, so it is
         dropped after each step. The LSTM starts each step from zeros.
  fix    Append `lstm.make_tensordict_primer()` to the transforms of the
         environment.
  code   lstm = make()
         env.append(lstm.primer())
  page   https://manual.example/en/tutorials/debugging/lstm_forgets_every_step.html
  These follow from it; look again after the fix:
    applies: The LSTM policy raises in a ParallelEnv, nowhere else (loud)
      seen   the error names the <key>
      page   https://manual.example/en/tutorials/debugging/lstm_raises_in_parallel_env_only.html

check failed: Of somebody else
  seen   ZeroDivisionError (values.py:3)
  fix    None: this is a fault of the doctor. Please report it with the line
         above.
  check  rewards

cannot decide: KeyError "is_init" when an LSTM policy runs
  why    give batch=
  check  is_init_not_found

Time and memory, which is no symptom:
  A list is stacked: use a tensor: 5 <rows>
  https://manual.example/en/performance/x.html#y

- replay_buffer is of type int; it is left out.

7 checks: 2 apply, 1 check failed, 1 cannot decide, 1 clear, 1 of no concern
here, 1 not looked at for lack of value_estimator.
"""


@guards("doctor-name-of-check", "doctor-not-looked-at", "doctor-root-first")
def test_the_text_has_the_root_first_and_below_it_what_follows(report):
    assert str(report).startswith(TEXT)
    assert [one.slug for one in report][:2] == [
        "lstm_forgets_every_step",
        "lstm_raises_in_parallel_env_only",
    ]
    everything = report.table(everything=True)
    clear = "clear: Epsilon never goes down\n  seen   epsilon is 0.5\n"
    assert f"{clear}  check  epsilon_never_goes_down\n" in everything
    assert "not looked at: GAE raises with an LSTM critic" in everything
    assert "\n  needs  value_estimator\n" in everything


def test_a_text_fits_a_terminal_but_for_addresses(report):
    report.findings.append(made("decimals_are_lost", evidence="a few words " * 20))
    report.notes.append("no" * 9 + " a note" * 20)
    lines = [line for line in report.table(everything=True).splitlines() if "://" not in line]
    assert max(map(len, lines)) <= 80
    assert sum("few words" in line for line in lines) > 1


def test_a_report_without_findings_says_so():
    assert str(Report()).startswith("No known symptom applies. 0 checks")
    assert repr(Report()) == "<Report: 0 symptoms apply>"


def test_in_one_line(report):
    assert repr(report) == "<Report: 2 symptoms apply: lstm_forgets_every_step>"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "colored"),
    [
        (Terminal, {}, True),
        (Terminal, {"NO_COLOR": "1"}, False),
        (Terminal, {"NO_COLOR": ""}, True),
        (Terminal, {"TERM": "dumb"}, False),
        (io.StringIO, {}, False),
    ],
)
def test_colors_are_for_terminals_that_take_them(report, monkeypatch, stream, environment, colored):
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    shown = stream()
    report.show(file=shown)
    assert ("\033[" in shown.getvalue()) == colored
    assert re.sub(r"\033\[[\d;]*m", "", shown.getvalue()) == f"{report}\n"


@guards("doctor-html-takes-colors")
def test_the_html_is_safe_needs_nothing_and_takes_the_colors_around_it(report):
    html = report._repr_html_()
    page = BeautifulSoup(html, "html.parser")
    assert "the error names the <key>" in page.get_text()
    assert "A list is stacked: use a tensor: 5 <rows>" in page.get_text()
    assert [link["href"] for link in page.find_all("a")] == [
        f"{SITE}/tutorials/debugging/{slug}.html"
        for slug in ("lstm_forgets_every_step", "lstm_raises_in_parallel_env_only")
    ]
    assert page.find_all(["script", "img", "link", "style"]) == []
    assert not re.search(r"(?<!-)color: (?!inherit)|background", html)
    assert page.pre.get_text() == "lstm = make()\nenv.append(lstm.primer())"
    assert "code>lstm.make_tensordict_primer()</code" in html
    root = page.find(string=re.compile("forgets everything")).find_parent("div").parent
    assert "nowhere else" in root.get_text()


def luminance(color):
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_bars_are_seen_on_dark_and_on_light():
    from torchrl_doctor.renderings import BARS

    for color in BARS.values():
        for ground in ("#ffffff", "#111111"):
            dark, light = sorted((luminance(color), luminance(ground)))
            assert (light + 0.05) / (dark + 0.05) >= 3, (color, ground)


def test_markdown_for_an_issue(report):
    text = report.to_markdown()
    assert (
        "- **The LSTM forgets everything between steps (silent)** `lstm_forgets_every_step`" in text
    )
    assert "\n    - **The LSTM policy raises in a ParallelEnv, nowhere else (loud)**" in text
    assert "<details><summary>cannot decide: 1</summary>\n\n- **KeyError" in text
    assert "check:" not in text
    assert "\n\n  ```python\n  lstm = make()\n  env.append(lstm.primer())\n  ```\n\n" in text
    assert "the error names the &lt;key>" in text
    assert f"tensor: 5 &lt;rows> ({SITE}/performance/x.html#y)" in text
    assert (
        "\n| torchrl-doctor | torchrl | tensordict | torch |\n| --- | --- | --- | --- |\n" in text
    )
    assert f"page: <{SITE}/tutorials/debugging/lstm_forgets_every_step.html>" in text


def test_the_document_follows_its_schema(report):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    document = json.loads(report.to_json(status=1, meaning="a symptom applies", error=None))
    jsonschema.validate(document, SCHEMA)
    assert document["findings"][0] == {
        "check": "lstm_forgets_every_step",
        "title": "The LSTM forgets everything between steps",
        "verdict": "applies",
        "effect": "silent",
        "evidence": "3 of 4 rows",
        "cause": ROWS["lstm_forgets_every_step"].cause,
        "fix": ROWS["lstm_forgets_every_step"].fix,
        "code": "lstm = make()\nenv.append(lstm.primer())",
        "page": f"{SITE}/tutorials/debugging/lstm_forgets_every_step.html",
        "follows_from": None,
    }
    assert document["findings"][1]["follows_from"] == "lstm_forgets_every_step"
    assert [one["verdict"] for one in document["findings"]] == [
        APPLIES,
        APPLIES,
        FAILED,
        UNDECIDED,
        CLEAR,
    ]
    assert document["findings"][3]["fix"] is None
    assert document["savings"] == [
        {
            "name": "list",
            "title": "A list is stacked: use a tensor",
            "evidence": "5 <rows>",
            "page": f"{SITE}/performance/x.html#y",
        }
    ]
    assert document["notes"] == report.notes
    assert document["lacking"] == {"gae_raises_with_lstm": ["value_estimator"]}
    assert document["unconcerned"] == ["decimals_are_lost"]


def test_a_document_of_another_form_is_noticed(report):
    document = json.loads(report.to_json())
    for spoiled in (
        document | {"schema": "0.1"},
        document | {"findings": [document["findings"][0] | {"verdict": "maybe"}]},
        {name: value for name, value in document.items() if name != "doctor"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(spoiled, SCHEMA)


# -- What a check says ---------------------------------------------------------


@guards("doctor-no-verdict")
def test_a_check_may_give_the_fix_as_code_and_its_own_row(no_checks):
    from torchrl_doctor import applies, check, diagnose

    row = Row("loud", "A cause.", "A fix.")
    page = "https://elsewhere.example/page"
    check("own", "Own", page, row)(lambda batch: applies("seen", fix="batch = batch[:2]"))
    check("bare", "Bare")(lambda batch: applies("seen"))
    check("lstm_forgets_every_step", "Of the manual")(lambda batch: applies("seen"))
    check("none", "Says nothing")(lambda batch: None)
    report = diagnose(batch=TensorDict(batch_size=[2]), site=SITE)
    own, bare, known = sorted(
        report,
        key=lambda one: ("own", "bare").index(one.slug) if one.slug in ("own", "bare") else 2,
    )
    assert (own.code, own.row, report.address(own)) == ("batch = batch[:2]", row, page)
    assert (bare.code, bare.row, report.address(bare)) == (None, None, None)
    assert known.row == ROWS["lstm_forgets_every_step"]
    assert report.address(known) == f"{SITE}/tutorials/debugging/lstm_forgets_every_step.html"
    assert report.unconcerned == ["none"]
    jsonschema.validate(json.loads(report.to_json()), SCHEMA)


def test_without_an_address_of_the_manual_a_page_is_relative(report):
    report.site = ""
    assert "\n  page   tutorials/debugging/lstm_forgets_every_step.html\n" in str(report)
