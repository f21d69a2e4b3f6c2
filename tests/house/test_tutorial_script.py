"""What drivers say of a page that fails: the tests of tutorials read it."""

import pytest

from tests.support.tutorial_script import failing_assertion, run_driver

HELPER = "def check(value):\n    assert value > 1, 'too small'\n"
LIBRARY = "import unittest\nunittest.TestCase().assertEqual(1, 2)\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("print('quiet')\nassert True\n", "the page passed"),
        ("assert (\n    1 ==\n    2\n), 'text'\n", "assert 1 == 2, 'text'"),
        (HELPER + "check(1)\n", "assert value > 1, 'too small'"),
        (LIBRARY, "unittest.TestCase().assertEqual(1, 2)"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("raise SystemExit('stop')\n", "SystemExit: stop"),
    ],
)
def test_what_stops_a_page(tmp_path, capsys, text, said):
    page = tmp_path / "page.py"
    page.write_text(text)
    assert failing_assertion(page) == said
    assert capsys.readouterr().out == ""


def test_a_driver_mutates_in_a_child(tmp_path):
    page = tmp_path / "page.py"
    page.write_text("import string\nassert string.digits == '0123456789'\n")
    driver = """
import json, string, sys
from tests.support.tutorial_script import mutated
page = sys.argv[1]
def mutation(): string.digits = ""
def own_result(): return "found"
def broken(): raise LookupError("no such line")
runs = mutation, own_result, broken, lambda: None
print(json.dumps([mutated(run, page) for run in runs]))
"""
    changed, own, broken, unchanged = run_driver(driver, page)
    assert changed == "assert string.digits == '0123456789'"
    assert own == "found"
    assert broken.endswith("LookupError: no such line\n")
    assert unchanged == "the page passed"
