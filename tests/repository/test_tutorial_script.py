"""What drivers say of a page that fails: the tests of tutorials read it."""

import string
from unittest import mock

import pytest

from tests.support.tutorial_script import Changes, all_of, failing_assertion, in_a_process

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


def test_changes_are_made_and_taken_back(tmp_path):
    page = tmp_path / "page.py"
    page.write_text("import string\nassert string.digits == '0123456789'\n")
    changes = Changes(page)

    @changes.caught_by("assert  string.digits == '0123456789'")
    def no_digits():
        return mock.patch.object(string, "digits", "")

    @changes.caught_by("the page passed")
    def no_letters():
        return all_of(mock.patch.object(string, "ascii_letters", ""))

    @changes.caught_by("nothing")
    def no_such_line():
        raise LookupError("no such line")

    outcomes = changes.outcomes()
    assert outcomes.pop("no_such_line").endswith("LookupError: no such line\n")
    assert outcomes == {change.name: change.assertion for change in changes[:2]}
    assert string.digits


def test_a_process_has_the_names_of_a_module(tmp_path):
    module = tmp_path / "module.py"
    module.write_text("import os\ndef gpus(): return os.environ['CUDA_VISIBLE_DEVICES']\n")
    assert in_a_process(module, "[gpus(), __name__]") == ["", "module"]
