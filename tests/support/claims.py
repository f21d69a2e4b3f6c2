"""Tie a test to the sentence that it guards.

::

    @guards("docs/reference/collectors_internals.rst", "The carrier is bound anew at each step.")
    def test_the_carrier_is_bound_anew(): ...

The sentence has to stand on the page word for word, line breaks apart. When the test fails, its
report ends with the page, the line and the sentence.
"""

import functools
import re

from tests.support import ROOT


def line_of(page, sentence):
    """The line of *page*, a path below the repository, where *sentence* begins."""
    text = (ROOT / page).read_text(encoding="utf-8")
    pattern = r"\s+".join(map(re.escape, sentence.split()))
    found = re.search(pattern, text)
    if found is None:
        raise AssertionError(
            f"{page} does not say {sentence!r}; correct the sentence in the test, or delete the "
            "test with the sentence it guarded"
        )
    return text.count("\n", 0, found.start()) + 1


def guards(page, *sentences):
    """Decorator for a test: it fails when a sentence is gone, and names it when it fails."""

    def decorate(test):
        @functools.wraps(test)
        def guarded(*args, **kwargs):
            places = [f"{page}:{line_of(page, said)}: {said}" for said in sentences]
            try:
                return test(*args, **kwargs)
            except BaseException as error:  # what pytest.raises raises is no Exception
                for place in places:
                    error.add_note(f"This test guards {place}")
                raise

        return guarded

    return decorate
