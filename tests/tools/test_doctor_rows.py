"""The module of rows is what the pages say, and its text is plain."""

import re

import pytest
from torchrl_doctor.rows import ROWS

from docs._ext.symptoms.store import EFFECTS
from tests.support import ROOT
from tools import doctor_rows


def test_the_module_is_what_the_pages_say():
    path = doctor_rows.TARGET.relative_to(ROOT).as_posix()
    cure = f"{path} is not what the pages say; run: {doctor_rows.CURE}"
    assert doctor_rows.TARGET.read_text(encoding="utf-8") == doctor_rows.module(), cure


def test_each_page_has_a_row_of_plain_text():
    assert sorted(ROWS) == sorted(page.stem for page in doctor_rows.PAGES.glob("*.py"))
    for slug, row in ROWS.items():
        assert row.effect in EFFECTS
        for text in (row.cause, row.fix):
            assert not re.search(r"``|:\w+:`|~", text), f"{slug}: {text}"
            assert text.count("`") % 2 == 0, f"{slug}: {text}"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("Call ``f(x)``.", "Call `f(x)`."),
        ("Use :class:`~torchrl.data.LazyTensorStorage`.", "Use `LazyTensorStorage`."),
        (":meth:`~torchrl.envs.EnvBase.step` goes on.", "`EnvBase.step()` goes on."),
        ("See :ref:`the map <symptoms>`.", "See the map."),
        ("*Fake* is made, ``a * b`` is not *real*.", "Fake is made, `a * b` is not real."),
    ],
)
def test_markup_becomes_plain_text(markup, text):
    assert doctor_rows.plain(markup) == text


def test_markup_without_a_plain_form_is_refused():
    with pytest.raises(ValueError, match="without this markup: see `link`_"):
        doctor_rows.plain("see `link`_")


@pytest.mark.parametrize("text", ['a "b"', "it's", 'it\'s "b"', "a \\ b", "x" * 120, "ab " * 60])
def test_a_string_is_written_as_it_is(text):
    assert eval(f"({' '.join(doctor_rows.literal(text))})") == text.strip()
