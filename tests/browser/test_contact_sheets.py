"""`make contact-sheets`: every page that it lists is there, and a look of each is photographed."""

import struct
import subprocess
import sys

from tests.support import ROOT
from tools.contact_sheets import LOOKS, PAGES, SCREENS


def taken(site, out, *pages):
    command = [sys.executable, "-m", "tools.contact_sheets", "--site", site, "--out", out, *pages]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_every_page_is_there(site):
    assert [name for name in PAGES if not (site / f"{name}.html").is_file()] == []


def test_each_look_of_a_page_is_a_picture_of_its_size(site, chromium, tmp_path):
    done = taken(site, tmp_path, "404")
    assert done.returncode == 0, done.stderr
    shown = (tmp_path / "index.html").read_text(encoding="utf-8")
    for look, (width, height, *_) in LOOKS.items():
        picture = tmp_path / f"404.{look}.png"
        assert picture.name in shown
        size = struct.unpack(">II", picture.read_bytes()[16:24])
        assert size[0] == width
        assert 0 < size[1] <= SCREENS * height


def test_a_page_that_is_missing_is_named(site, tmp_path):
    done = taken(site, tmp_path, "no/such_page")
    assert done.returncode == 1
    assert "no/such_page" in done.stderr
    assert "make html" in done.stderr
