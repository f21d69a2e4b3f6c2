"""Tie a test to the sentences that it guards.

::

    @guards("carrier-bound-anew")
    def test_the_carrier_is_bound_anew(): ...

guards the sentence that ends with ``:claim:`carrier-bound-anew``` (docs/_ext/site/claims.py). When
the test fails, its report ends with the page, the line and the sentence as it reads now.
"""

import functools

from docs._ext.site.claims import scan
from tests.support import ROOT


@functools.cache
def claims():
    """Every claim of the pages, by id."""
    return {claim.id: claim for claim in scan(ROOT)}


def guards(*ids):
    """Decorator for a test: it fails when a claim is gone, and names it when it fails."""

    def decorate(test):
        @functools.wraps(test)
        def guarded(*args, **kwargs):
            gone = [name for name in ids if name not in claims()]
            assert not gone, f"no page claims {', '.join(gone)}; delete the test with its sentence"
            try:
                return test(*args, **kwargs)
            except BaseException as error:  # what pytest.raises raises is no Exception
                for name in ids:
                    error.add_note(f"This test guards {claims()[name]}")
                raise

        return guarded

    return decorate
