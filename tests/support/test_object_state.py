"""What tests/support/object_state.py tells apart."""

import functools
import random

import numpy
import pytest

from tests.support.object_state import fingerprint


class Slotted:
    __slots__ = ["value"]

    def __init__(self, value):
        self.value = value

    def one(self):
        pass

    def two(self):
        pass


SAME = Slotted(1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Slotted(1), Slotted(2)),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (functools.partial(max, key=1), functools.partial(max, key=2)),
        (random.Random(1), random.Random(2)),
        (numpy.random.RandomState(1), numpy.random.RandomState(2)),
        (SAME.one, SAME.two),
    ],
)
def test_a_change_is_seen(one, other):
    assert fingerprint(it=one) == fingerprint(it=one)
    assert fingerprint(it=one) != fingerprint(it=other)
