"""Calls that are shown without a run are bound to the signatures that are installed."""

import pytest

from tests.support import shown_calls

PAGE = """
.. not-executed:: Needs a server.

   from torchrl.data import ReplayBuffer, StoreStorage

   buffer = ReplayBuffer(storage=StoreStorage(10, port=1), batch_size=4)
   buffer.extend(steps)

.. code-block:: python

   from torchrl.data import LazyTensorStorage
   LazyTensorStorage(misspelled=1)
"""


@pytest.fixture
def bound(tmp_path, monkeypatch):
    monkeypatch.setattr(shown_calls, "ROOT", tmp_path)

    def bound(text):
        (tmp_path / "page.rst").write_text(text)
        return shown_calls.bound_calls("page.rst")

    return bound


def test_the_calls_of_blocks_that_do_not_run(bound):
    assert sorted(bound(PAGE)) == ["ReplayBuffer", "ReplayBuffer.extend", "StoreStorage"]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("port=1", "prot=1", "StoreStorage has no argument prot"),
        ("batch_size=4", "batch_sise=4", "unexpected keyword argument 'batch_sise'"),
        ("StoreStorage(10, port=1)", "StoreStorage(port=1)", "missing a required argument"),
        ("extend(steps)", "extend()", "missing a required argument"),
    ],
)
def test_an_argument_that_does_not_fit_raises(bound, old, new, complaint):
    assert old in PAGE
    with pytest.raises(TypeError, match=complaint):
        bound(PAGE.replace(old, new))


def test_a_name_that_is_gone_raises(bound):
    with pytest.raises(AttributeError, match="StoreStroage"):
        bound(PAGE.replace("StoreStorage", "StoreStroage"))
