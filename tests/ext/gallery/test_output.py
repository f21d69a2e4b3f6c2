"""What a tutorial must not print."""

import pytest

from docs._ext.gallery.output import find_leaks


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("saved to /home/me/x", "an absolute path"),
        ("2026-01-02 03:04:05,1 [torchrl]", "a log line with a time"),
        ("<object at 0x7f3938b496d0>", "the address of an object"),
        ("Exception ignored in: <f>", "an exception that was ignored"),
        ("read from /srv/checkout/data", "an absolute path"),
    ],
)
def test_leaks_in_output(text, what):
    assert [found for found, _ in find_leaks(text, "/srv/checkout")] == [what]


@pytest.mark.parametrize(
    "text",
    ["13200 B/frame", "('next', 'observation')", "2026-01-02", "mask 0x1f", "https://x.org/usr/a"],
)
def test_output_that_may_stay(text):
    assert list(find_leaks(text, "/srv/checkout")) == []
