"""Where docs/_ext/site/downloads.py puts the files that pages offer."""

import os

from tests.support import ROOT, sphinx_forks


def build(folder):
    options = ["-q", "-W", "-n", "-C"]
    options += ["-Dextensions=docs._ext.site.downloads", "-Dhtml_theme=basic"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    sphinx_forks.run(*options, folder / "docs", folder / "html", env=environment, check=True)
    files = (folder / "html" / "_downloads").rglob("*")
    return {p.relative_to(folder / "html").as_posix(): p.read_text() for p in files if p.is_file()}


def test_the_address_is_the_path(tmp_path):
    deep = tmp_path / "docs" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "tool.py").write_text("1\n")
    (deep / "data 1.csv").write_text("2\n")
    (deep.parent / "index.rst").write_text("Home\n====\n\n.. toctree::\n\n   deep/page\n")
    (deep / "page.rst").write_text(
        "Deep\n====\n\n:download:`tool <../../tool.py>` :download:`data <data 1.csv>`\n"
    )
    expected = {"_downloads/tool.py": "1\n", "_downloads/deep/data 1.csv": "2\n"}
    assert build(tmp_path) == expected
    page = (tmp_path / "html" / "deep" / "page.html").read_text()
    assert 'download="" href="../_downloads/tool.py"' in page
    assert 'download="" href="../_downloads/deep/data%201.csv"' in page
    (tmp_path / "tool.py").write_text("3\n")  # the page is read again, the other file is not
    assert build(tmp_path) == {**expected, "_downloads/tool.py": "3\n"}
