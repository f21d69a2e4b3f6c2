"""What the browser tests look for, as functions; test_probes.py tries them on pages with faults."""

import os
import shutil

from axe_playwright_python.base import AXE_SCRIPT
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
CLIPBOARD = ("clipboard-read", "clipboard-write")  # permissions of a page
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


# The animations that come to an end; the others follow a scroll.
TIMED = "document.getAnimations().filter((a) => a.timeline === document.timeline)"


def settle(page):
    """Wait for transitions, so that no color is measured halfway."""
    page.evaluate(f"() => Promise.allSettled({TIMED}.map((a) => a.finished))")


# Contrast is three quarters of what axe costs on a long page. Elements that look the same on
# ancestors that look the same have the same contrast: axe is asked of the first of them. What is
# placed over other elements, or is a part of a drawing, is always asked.
AXE = Axe(
    AXE_SCRIPT
    + """;
    axe.configure({rules: [
        {id: "color-contrast", selector: ":not([data-looks-the-same])"},
        {id: "target-size", enabled: true},  // WCAG 2.2, which axe does not ask by itself
    ]});
    (() => {
        const numbers = new Map(), looks = new Map([[null, 0]]), asked = new Set();
        const look = (e) => {
            if (looks.has(e)) return looks.get(e);
            const s = getComputedStyle(e);
            const over = e.localName === "svg" || /absolute|fixed|sticky/.test(s.position);
            const own = [look(e.parentElement), over && looks.size, s.color, s.backgroundColor,
                s.backgroundImage, s.opacity, s.fontSize, s.fontWeight, s.textShadow, s.filter,
                s.mixBlendMode, s.visibility, s.display].join();
            if (!numbers.has(own)) numbers.set(own, numbers.size + 1);
            looks.set(e, numbers.get(own));
            return looks.get(e);
        };
        for (const e of document.querySelectorAll("body *")) {
            e.toggleAttribute("data-looks-the-same", asked.has(look(e)));
            asked.add(look(e));
        }
    })();"""
)


# What a page that was right can get wrong in another look.
COLOR_RULES = ["color-contrast", "link-in-text-block"]


def violations(page, within=None, rules=None):
    """What axe finds, on the page or in what *within* selects: rule, impact, element, reason.

    *rules* are those that axe applies, all by default.
    """
    settle(page)
    axe = Axe() if within else AXE  # what looks the same may be outside
    options = {"resultTypes": ["violations"]} | ({"runOnly": rules} if rules else {})
    found = axe.run(page, context=within, options=options).response["violations"]
    return [
        f"{rule['id']} ({rule['impact']}) at {' '.join(map(str, node['target']))}: "
        + node["failureSummary"].replace("\n", " ")
        for rule in found
        for node in rule["nodes"]
    ]


def sideways(page):
    """Elements that stick out to the right, if the page or a box around its text scrolls for them.

    Tables, code, formulas and plots may scroll in a box of their own; the box with the heading may
    not. What shows in the margin of a box makes nothing scroll.
    """
    return page.evaluate("""() => {
        const heading = document.querySelector("h1");
        const boxes = [];
        for (let e = heading && heading.parentElement; e; e = e.parentElement) boxes.push(e);
        boxes.push(document.scrollingElement);
        const scrolls = (e) =>
            e === document.scrollingElement || getComputedStyle(e).overflowX !== "visible";
        const wide = boxes.find((e) => scrolls(e) && e.scrollWidth > e.clientWidth + 1);
        if (!wide) return [];
        const edge = wide.getBoundingClientRect().left + wide.clientWidth;
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


# The name of what has the focus, "" behind the last stop, and whether it looks otherwise without.
STOP = """async () => {
    const e = document.activeElement;
    if (e === document.body || e.dataset.walked) return ["", true];
    e.dataset.walked = "1";
    const name = e.getAttribute("aria-label") || e.textContent.trim().slice(0, 40) || e.className;
    // A card shows the focus of the link that covers it, a fold that of its icon.
    const card = e.closest(".sphx-glr-thumbcontainer, .entry-card");
    const icon = e.querySelector(":scope > span");
    const style = async () => {
        await Promise.allSettled(TIMED.map((a) => a.finished));
        return [e, card, icon].filter(Boolean).map((x) => {
            const s = getComputedStyle(x), after = getComputedStyle(x, "::after");
            return [s.outlineStyle, s.outlineWidth, s.boxShadow, s.borderColor, s.backgroundColor,
                    s.color, s.textDecoration, after.outlineStyle, after.boxShadow].join(" ");
        }).join(" | ");
    };
    const focused = await style();
    e.blur();
    const seen = await style() !== focused;
    e.focus({focusVisible: true});
    return [e.tagName + " " + name, seen];
}""".replace("TIMED", TIMED)


def walk(page, limit=200):
    """Press Tab through the page; names of the stops, and of those that look the same in focus."""
    stops, invisible = [], []
    page.evaluate("document.activeElement.blur()")
    for _ in range(limit):
        page.keyboard.press("Tab")
        name, seen = page.evaluate(STOP)
        if not name:
            break
        stops.append(name)
        if not seen:
            invisible.append(name)
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
            "requestfailed": self._failed,
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

    def _failed(self, request):
        if request.failure != "net::ERR_ABORTED":  # which the browser gave up to leave a page
            self.failed.append(request.url)

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
