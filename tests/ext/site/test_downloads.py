"""Where docs/_ext/site/downloads.py puts the files that pages offer."""

from tests.support.small_site import SmallSite


def offered(site):
    """The files below ``_downloads`` and what they hold."""
    files = (site.html / "_downloads").rglob("*")
    return {p.relative_to(site.html).as_posix(): p.read_text() for p in files if p.is_file()}


def test_the_address_is_the_path(tmp_path):
    sources = {
        "../tool.py": "1\n",
        "deep/data 1.csv": "2\n",
        "index.rst": "Home\n====\n\n.. toctree::\n\n   deep/page\n",
        "deep/page.rst": "Deep\n====\n\n"
        ":download:`tool <../../tool.py>` :download:`data <data 1.csv>`\n",
    }
    site = SmallSite(tmp_path, sources, extensions="docs._ext.site.downloads").built()
    expected = {"_downloads/tool.py": "1\n", "_downloads/deep/data 1.csv": "2\n"}
    assert offered(site) == expected
    page = site.page("deep/page")
    assert 'download="" href="../_downloads/tool.py"' in page
    assert 'download="" href="../_downloads/deep/data%201.csv"' in page
    site.write({"../tool.py": "3\n"})  # the page is read again, the other file is not
    assert offered(site.built()) == {**expected, "_downloads/tool.py": "3\n"}
