"""The one failure of a machine without a browser."""

import pytest

from tests.browser.probes import WHAT_TO_DO, find_chromium


def test_chromium_is_installed(playwright):
    if find_chromium(playwright) is None:
        pytest.fail(WHAT_TO_DO, pytrace=False)


def test_a_named_chromium_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "none"))
    assert find_chromium() is None


def test_no_name_on_path_is_no_chromium(monkeypatch, tmp_path):
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_chromium() is None
