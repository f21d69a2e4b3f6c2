"""In which order workers get files: the pages, what is slow, the rest."""

from pathlib import Path
from types import SimpleNamespace

from tests.conftest import pytest_collection_modifyitems


def item(path, slow=False):
    return SimpleNamespace(path=Path(path), get_closest_marker=lambda name: slow)


def test_pages_begin_then_files_with_a_slow_test_and_a_file_stays_together():
    items = [
        item("tests/test_a.py"),
        item("tests/test_b.py"),
        item("tests/test_b.py", slow=True),
        item("docs/c.rst"),
    ]
    pytest_collection_modifyitems(items)
    assert [one.path.name for one in items] == ["c.rst", "test_b.py", "test_b.py", "test_a.py"]
