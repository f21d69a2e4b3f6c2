"""What the browser tests look for, as functions; test_probes.py tries them on pages with faults."""

import os
import shutil

from axe_playwright_python.sync_playwright import Axe

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
]
WHAT_TO_DO = (
    "no Chromium found: install one (apt-get install chromium, or "
    "playwright install chromium-headless-shell), name one in CHROMIUM, or set SKIP_BROWSER=1"
)


def find_chromium(playwright=None):
    """Path of a Chromium: CHROMIUM, else one of NAMES on PATH, else the one Playwright keeps."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    for name in NAMES:
        if path := shutil.which(name):
            return path
    if playwright and os.access(playwright.chromium.executable_path, os.X_OK):
        return playwright.chromium.executable_path
    return None


def settle(page):
    """Wait for transitions, so that no color is measured halfway."""
    page.evaluate("() => Promise.allSettled(document.getAnimations().map((a) => a.finished))")


def violations(page, within=None):
    """What axe finds, on the page or in what *within* selects: rule, impact, element, reason."""
    settle(page)
    found = Axe().run(page, context=within).response["violations"]
    return [
        f"{rule['id']} ({rule['impact']}) at {' '.join(map(str, node['target']))}: "
        + node["failureSummary"].replace("\n", " ")
        for rule in found
        for node in rule["nodes"]
    ]


def sideways(page):
    """Elements that stick out to the right, if the page or a box around its text scrolls for them.

    Tables, code, formulas and plots may scroll in a box of their own; the box with the heading may
    not.
    """
    return page.evaluate("""() => {
        const heading = document.querySelector("h1");
        const boxes = [];
        for (let e = heading && heading.parentElement; e; e = e.parentElement) boxes.push(e);
        boxes.push(document.scrollingElement);
        const wide = boxes.find((e) => e.scrollWidth > e.clientWidth + 1);
        if (!wide) return [];
        const edge = wide.getBoundingClientRect().left + wide.clientWidth;
        const scrolls = (e) => getComputedStyle(e).overflowX !== "visible";
        const boxed = (e) => e !== wide && (scrolls(e) || boxed(e.parentElement));
        const out = [...wide.querySelectorAll("*")]
            .filter((e) => e.getBoundingClientRect().right > edge + 0.5)
            .filter((e) => !boxed(e.parentElement))
            .map((e) => e.outerHTML.slice(0, 120));
        return out.length ? out : ["the page is wider than the window"];
    }""")


def unreachable_scrollers(page):
    """Boxes in the main content that scroll sideways and that a keyboard cannot reach."""
    return page.evaluate("""() =>
        [...document.querySelectorAll("main *")]
            .filter((e) => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)
            .filter((e) => ["auto", "scroll"].includes(getComputedStyle(e).overflowX))
            .filter((e) => e.tabIndex < 0 && !e.querySelector("a, button, input, [tabindex='0']"))
            .map((e) => e.outerHTML.slice(0, 120))
    """)


FOCUS_STYLE = """(e) => {
    // A card shows the focus of the link that covers it, a fold that of its icon.
    const card = e.closest(".sphx-glr-thumbcontainer, .entry-card");
    const icon = e.querySelector(":scope > span");
    const seen = [e, card, icon].filter(Boolean);
    return seen.map((x) => {
        const s = getComputedStyle(x), after = getComputedStyle(x, "::after");
        return [s.outlineStyle, s.outlineWidth, s.boxShadow, s.borderColor, s.backgroundColor,
                s.color, s.textDecoration, after.outlineStyle, after.boxShadow].join(" ");
    }).join(" | ");
}"""


def walk(page, limit=200):
    """Press Tab through the page; names of the stops, and of those that look the same in focus."""
    stops, invisible = [], []
    page.evaluate("document.activeElement.blur()")
    for _ in range(limit):
        page.keyboard.press("Tab")
        element = page.evaluate_handle("document.activeElement").as_element()
        name = element.evaluate(
            "(e) => e === document.body ? '' : e.tagName + ' ' +"
            " (e.getAttribute('aria-label') || e.textContent.trim().slice(0, 40) || e.className)"
        )
        if not name or element.evaluate("(e) => e.dataset.walked === '1'"):
            break
        stops.append(name)
        element.evaluate("(e) => { e.dataset.walked = '1'; }")
        settle(page)
        focused = element.evaluate(FOCUS_STYLE)
        element.evaluate("(e) => e.blur()")
        settle(page)
        if element.evaluate(FOCUS_STYLE) == focused:
            invisible.append(name)
        element.evaluate("(e) => e.focus({focusVisible: true})")
    return stops, invisible


class Traffic:
    """Everything a page asks for and complains about, from the moment this listens to it.

    In a ``with`` block it listens until the block ends.
    """

    def __init__(self, page, home):
        self.home, self.page = home, page
        self.outside, self.failed, self.complaints, self.responses = [], [], [], []
        self.heard = {
            "request": self._request,
            "requestfailed": lambda request: self.failed.append(request.url),
            "response": self._response,
            "console": self._console,
            "pageerror": lambda error: self.complaints.append(str(error)),
        }
        for event, listener in self.heard.items():
            page.on(event, listener)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        for event, listener in self.heard.items():
            self.page.remove_listener(event, listener)

    def _request(self, request):
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.outside.append(request.url)

    def _response(self, response):
        self.responses.append(response)
        if response.status >= 400:
            self.failed.append(f"{response.status} {response.url}")

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")


def overlaps(page, selector):
    """Pairs of visible elements that cover each other, by their text or label."""
    return page.evaluate(
        """(selector) => {
            const name = (e) => e.getAttribute("aria-label") || e.textContent.trim();
            const all = [...document.querySelectorAll(selector)];
            const seen = all.filter((e) => e.checkVisibility());
            const rects = seen.map((e) => {
                const range = document.createRange(); // also text that leaves its element
                range.selectNodeContents(e);
                return [name(e), range.getBoundingClientRect()];
            });
            return rects.flatMap(([a, p], i) => rects.slice(i + 1)
                .filter(([b, q]) => p.left < q.right - 1 && q.left < p.right - 1
                    && p.top < q.bottom - 1 && q.top < p.bottom - 1)
                .map(([b]) => [a, b]));
        }""",
        selector,
    )
