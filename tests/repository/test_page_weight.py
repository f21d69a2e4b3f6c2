"""Weight of every page from its files: the page, its style sheets and its scripts, compressed.

``tests/browser/test_weight.py`` measures what a browser fetches for one page of each kind.
"""

import gzip
import os
from functools import cache
from urllib.parse import unquote, urlsplit

import pytest

from tests.support import SITE
from tools.check_links import Page

BUDGET = 300_000  # bytes, as in tests/browser/test_weight.py
WEIGHED = {".html", ".css", ".js"}


@cache
def compressed_size(path):
    return len(gzip.compress(path.read_bytes()))


def weight(path, root):
    """Bytes of the page and of each style sheet and script it names, once each."""
    files = {path}
    for address in Page(path).assets:
        name = unquote(urlsplit(address).path)
        files.add((root / name[1:] if name.startswith("/") else path.parent / name).resolve())
    return sum(compressed_size(file) for file in files if file.suffix in WEIGHED)


def test_weight_counts_each_asset_once(tmp_path):
    (tmp_path / "a.js").write_bytes(os.urandom(5000))
    page = tmp_path / "index.html"
    page.write_text('<script src="a.js?v=1"></script><script src="a.js"></script><img src="a.png">')
    assert 5000 < weight(page, tmp_path) < 5300


@pytest.mark.site
def test_every_page_is_light():
    root = SITE.resolve()
    weights = {
        path.relative_to(root).as_posix(): weight(path, root)
        for path in root.rglob("*.html")
        if path.relative_to(root).parts[0] != "_static"
    }
    heaviest = max(weights, key=weights.get)
    print(f"{len(weights)} pages, heaviest {heaviest}: {weights[heaviest] / 1000:.0f} kB")
    assert {name: size for name, size in weights.items() if size > BUDGET} == {}
