"""The checks of tools/build_site.py, without running Sphinx."""

import os
import sys

import pytest

from tools import build_site

PAGE = "<!DOCTYPE html><html><body>text</body></html>\n"


@pytest.fixture
def html(tmp_path):
    folder = tmp_path / "build" / "work" / "html"
    folder.mkdir(parents=True)
    (folder / "index.html").write_text(PAGE)
    return folder


def test_publish_replaces_everything(html, tmp_path):
    public = tmp_path / "build" / "html"
    public.mkdir()
    (public / "stale.html").write_text(PAGE)
    for name in (".buildinfo", ".buildinfo.bak"):
        (html / name).write_text("state of the incremental build")
    build_site.publish(html, public)
    assert [p.name for p in public.iterdir()] == ["index.html"]
    assert sorted(p.name for p in public.parent.iterdir()) == ["html", "work"]


def test_publish_copies_what_changed_and_nothing_else(html, tmp_path):
    """By the bytes: a time and a size may be those of another text."""
    public = tmp_path / "build" / "html"
    for name in ("same.html", "changed.html"):
        (html / name).write_text("one")
    build_site.publish(html, public)
    before = {page.name: page.stat().st_mtime_ns for page in public.iterdir()}
    (html / "changed.html").write_text("two")
    os.utime(html / "changed.html", ns=(0, before["changed.html"]))
    os.utime(html / "same.html", ns=(0, 0))
    build_site.publish(html, public)
    assert {page.name: page.stat().st_mtime_ns for page in public.iterdir()} == before
    assert (public / "changed.html").read_text() == "two"
    # what Sphinx writes into its own folder is published when it is judged
    assert {page.stat().st_nlink for page in html.iterdir()} == {1}


def test_publish_keeps_the_old_site_when_copying_fails(html, tmp_path):
    public = tmp_path / "build" / "html"
    public.mkdir()
    (public / "old.html").write_text(PAGE)
    (html / "broken").symlink_to("nowhere")
    with pytest.raises(build_site.shutil.Error):
        build_site.publish(html, public)
    assert [p.name for p in public.iterdir()] == ["old.html"]


def test_interrupted_swap_is_finished(tmp_path):
    old = tmp_path / "build" / "html.old"
    old.mkdir(parents=True)
    (old / "index.html").write_text(PAGE)
    build_site._finish_interrupted_swap(tmp_path)
    assert (tmp_path / "build" / "html" / "index.html").is_file()
    assert not old.exists()


def test_folder_that_cannot_be_written(tmp_path, monkeypatch, capsys):
    """A read-only checkout or a full disk is a sentence, not a traceback."""
    (tmp_path / "build").touch()
    monkeypatch.setattr(sys, "argv", ["build_site.py", "--site", str(tmp_path)])
    assert build_site.main() == 1
    said = capsys.readouterr().err
    assert f"'{tmp_path / 'build'}'" in said
    assert "needs a checkout it can write to, and room" in said
    assert "build/html was not written" in said


def test_missing_and_cut_pages(html):
    (html / "cut.html").write_text("<html><body>half a")
    pages = {"index": "index.html", "cut": "cut.html", "gone": "gone.html"}
    assert build_site.page_problems(html, pages) == [
        "cut.html is cut off",
        "gone.html is missing, the page of docs/gone.rst",
    ]


def test_tutorials(tmp_path):
    scripts, copies = tmp_path / "tutorials" / "a", tmp_path / "docs" / "tutorials" / "a"
    for folder in (scripts, copies):
        folder.mkdir(parents=True)
        for name in ("good", "edited", "unfinished", "conftest"):
            (folder / f"{name}.py").write_text("1\n")
    for name in ("good", "edited"):
        (copies / f"{name}.stamp.json").touch()
        (copies / f"{name}.py.md5").touch()
    (copies / "edited.py").write_text("2\n")
    (copies / "unfinished.py.md5").touch()
    assert build_site.tutorial_problems(tmp_path) == [
        "tutorials/a/edited.py differs from the copy that readers download",
        "tutorials/a/unfinished.py was not executed; check its topic's folder and order files",
    ]


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        ("/tmp/tmpab12cd_3/data", True),
        ("a/lib/python3.11/site-packages/torch/nn.py", True),
        (f"{sys.prefix}/bin/python", True),
        ('LazyMemmapStorage(10, scratch_dir="/tmp/buffer")', False),
        ("site-packages in prose", False),
    ],
)
@pytest.mark.parametrize("name", ["page.html", "page.html.md"])
def test_paths_of_this_machine(html, tmp_path, name, text, leaks):
    (html / name).write_text(f"<html>{text}</html>")
    assert bool(build_site.path_problems(html, tmp_path / "elsewhere")) is leaks


def test_log(tmp_path):
    log = tmp_path / "build.log"
    log.write_text("reading\nWARNING: x\nERRORS are fine as a word\nERROR y\n")
    assert build_site.log_problems(log) == ["the log says: WARNING: x", "the log says: ERROR y"]


def test_reasons_of_a_failure_are_repeated(tmp_path):
    """Sphinx ends its report with advice to ask its own developers."""
    log = tmp_path / "build.log"
    log.write_text(
        "docs/a.rst:3: WARNING: no such label\n"
        "docs/a.rst:3: WARNING: no such label\n"
        "WARNING: \n"
        "        raise ExtensionError('x')\n"
        "    sphinx.errors.ExtensionError: symbols.toml:21: no 'GymEnvy'\n"
        "        ../tutorials/memory/long.py failed leaving traceback:\n"
        "please open an issue\n"
    )
    assert build_site.reasons(log) == [
        "docs/a.rst:3: WARNING: no such label",
        "symbols.toml:21: no 'GymEnvy'",
        "tutorials/memory/long.py failed leaving traceback:",
    ]
    log.write_text("".join(f"WARNING: {number}\n" for number in range(30)))
    *shown, last = build_site.reasons(log)
    assert len(shown) == build_site.SHOWN_REASONS
    assert last == "and 20 more, see above"
