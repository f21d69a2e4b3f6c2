"""Scores of Lighthouse, the site being served compressed.

Where readers begin it is asked of a phone, with accessibility, which elsewhere is not asked again:
Lighthouse runs part of axe, of which test_accessibility.py runs all, on these pages too.
"""

import json
import threading

import pytest

from tests.browser.probes import FLAGS
from tools.serve import server

FULL = ["best-practices", "seo"]
ALL = ["accessibility", *FULL]
BEGINNINGS = {
    "landing": "index.html",
    "map": "reference/debugging_map.html",
    "glossary": "reference/glossary.html",
    "flagship": "tutorials/memory/memory_efficient_rl.html",
}
HIGHEST_SHIFT = 0.1  # what Lighthouse still calls good


@pytest.fixture(scope="module")
def scores(node, chromium, tmp_path_factory):
    """A function from an address to its scores and to the audits that cost points."""

    def measured(address, *options, names=FULL):
        report = tmp_path_factory.mktemp("lighthouse") / "report.json"
        done = node(
            "node_modules/lighthouse/cli/index.js",
            address,
            "--quiet",
            "--disable-full-page-screenshot",
            "--output=json",
            f"--output-path={report}",
            f"--chrome-flags=--headless {' '.join(FLAGS)}",
            "--no-enable-error-reporting",
            f"--only-categories={','.join(names)}",
            "--only-audits=cumulative-layout-shift",
            *options,
            env={"CHROME_PATH": chromium, "HOME": str(report.parent)},
        )
        assert done.returncode == 0, done.stderr
        result = json.loads(report.read_text())
        categories = result["categories"]
        lost = [
            f"{name}: {reference['id']}"
            for name in names
            if name in categories
            for reference in categories[name]["auditRefs"]
            if reference["weight"] and result["audits"][reference["id"]]["score"] not in (1, None)
        ]
        found = {name: round(100 * (row["score"] or 0)) for name, row in categories.items()}
        return found, lost, result["audits"]["cumulative-layout-shift"]["numericValue"]

    return measured


@pytest.mark.parametrize("kind", ["home", "tutorial", "api"])
def test_desktop(scores, site_url, sample, kind):
    """Speed is not measured: a busy machine costs wall time.

    What decides it whatever the machine is asserted: the shift of the layout here, bytes and
    requests in test_weight.py.
    """
    found, lost, shift = scores(site_url + sample[kind], "--preset=desktop")
    assert [found[name] for name in FULL] == [100, 100], lost
    assert shift <= HIGHEST_SHIFT


@pytest.mark.parametrize("page", BEGINNINGS)
def test_phone(scores, site_url, page):
    found, lost, shift = scores(site_url + BEGINNINGS[page], names=ALL)
    assert [found[name] for name in ALL] == [100, 100, 100], lost
    assert shift <= HIGHEST_SHIFT


def test_an_image_without_alternative_text_costs_points(scores, site, tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken")
    (folder / "index.html").write_text(
        "<!DOCTYPE html><html><body><img src='data:,'><a href='#'></a></body></html>"
    )
    running = server(folder)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    try:
        found, lost, _ = scores(
            f"http://127.0.0.1:{running.server_address[1]}/", "--preset=desktop"
        )
    finally:
        running.shutdown()
        thread.join()
        running.server_close()
    assert min(found[name] for name in FULL) < 100
    assert "seo: image-alt" in lost
