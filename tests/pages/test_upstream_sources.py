"""Code of TorchRL that pages were written from is the code that was read."""

from itertools import count

import pytest

from docs._ext.source import lookup
from docs._ext.source.lookup import locate
from tests.support import ROOT
from tests.support.claims import claims
from tests.support.upstream_sources import FILE, conclusions, digest, read_claims, sources


@pytest.mark.parametrize("symbol", sources())
def test_the_code_is_what_was_read(symbol):
    entry, found, now = sources()[symbol], locate(symbol), digest(symbol)
    places = conclusions(entry).items()
    to_read = "\n".join(f"{claims().get(place, place)}\n    {said}" for place, said in places)
    assert now == entry["digest"], (
        f"{symbol} changed: {found.path}:{found.first}-{found.last}. Read it, and these sentences "
        f"again; correct what they say and what was concluded, then put the digest {now!r} into "
        f"{FILE.relative_to(ROOT)}:\n{to_read}"
    )


def test_each_place_is_a_claim_or_a_page():
    assert read_claims() <= set(claims())
    for entry in sources().values():
        for place in conclusions(entry):
            assert place in claims() or (ROOT / place).is_file(), place


FRESH = count()  # what is looked up once is known by its name
CODE = '''
def f(a):
    """Doc."""
    return a + 1  # more


class Other: ...
'''


@pytest.fixture
def code_digest(tmp_path, monkeypatch):
    """The digest of the function ``f`` of a module with this text."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(lookup, "is_installed", lambda package: True)

    def of(text):
        name = f"read{next(FRESH)}"
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(text, encoding="utf-8")
        return digest(f"{name}.f")

    return of


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("Doc.", "Documentation.", True),
        ('    """Doc."""\n', "", True),
        ("  # more", "", True),
        ("return a + 1", "return (\n        a\n        + 1\n    )", True),
        ("class Other: ...", "", True),
        ("a + 1", "a + 2", False),
        ("return a", "a += 1\n    return a", False),
        ("def f(a)", "def f(a=2)", False),
        ("def f", "@staticmethod\ndef f", False),
    ],
)
def test_what_counts_as_a_change(code_digest, before, after, same):
    assert (code_digest(CODE) == code_digest(CODE.replace(before, after))) == same
