"""Photograph one page of each kind for a reader who judges its looks: light, dark, phone, print.

``build/contact-sheets/index.html`` shows them beside each other, three screens of each page; the
pictures lie beside it. Without Chromium it says how to get one and exits with 1.
"""

import argparse
import html
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.probes import FLAGS, WHAT_TO_DO, find_chromium, settle

ROOT = Path(__file__).parents[1]
PAGES = (
    "index",
    "404",
    "search",
    "tutorials/index",
    "tutorials/memory/memory_efficient_rl",
    "tutorials/recurrent/sequence_training",
    "how-to/index",
    "how-to/size_a_replay_buffer",
    "how-to/pixel_replay",
    "tutorials/debugging/lstm_forgets_every_step",
    "reference/index",
    "reference/debugging_map",
    "reference/error_index",
    "reference/triage",
    "reference/doctor",
    "reference/memory_planner",
    "reference/collectors_internals",
    "reference/recurrent_state_lifecycle",
    "reference/glossary",
    "reference/glossary/collecting",
    "reference/api/index",
    "reference/api/torchrl.data.ReplayBuffer",
    "genindex",
    "performance/index",
    "performance/collectors",
    "performance/replay_buffers",
    "performance/knobs",
    "reference/records",
    "performance/recipes/index",
    "performance/recipes/sac_halfcheetah",
)
SCREENS = 3
# By name: width and height of the window, color scheme, medium. A sheet of A4 has 680 px of text.
LOOKS = {
    "light": (1280, 900, "light", "screen"),
    "dark": (1280, 900, "dark", "screen"),
    "phone": (390, 844, "light", "screen"),
    "phone-dark": (390, 844, "dark", "screen"),
    "print": (680, 986, "light", "print"),
}


def photograph(browser, site, folder, name):
    """Write the pictures of page *name* into *folder*; their names by look."""
    pictures = {}
    for look, (width, height, scheme, medium) in LOOKS.items():
        window = {"width": width, "height": height}
        page = browser.new_page(viewport=window, color_scheme=scheme, reduced_motion="reduce")
        page.emulate_media(media=medium, color_scheme=scheme)
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_selector(f"html[data-theme={scheme}]")
        settle(page)
        pictures[look] = f"{name.replace('/', '-')}.{look}.png"
        tall = page.evaluate("document.documentElement.scrollHeight")
        page.screenshot(
            path=folder / pictures[look],
            full_page=True,
            clip={"x": 0, "y": 0, "width": width, "height": min(tall, SCREENS * height)},
        )
        page.close()
    return pictures


def sheet(name, pictures):
    """The pictures of a page beside each other, as HTML."""
    widths = {look: size[0] for look, size in LOOKS.items()}
    shown = "".join(
        f'<figure style="flex:{widths[look]}"><img src="{src}" alt="{look}"></figure>'
        for look, src in pictures.items()
    )
    return f"<h2>{html.escape(name)}</h2><div>{shown}</div>"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", default=PAGES, help="as reference/glossary")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "html")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "contact-sheets")
    args = parser.parse_args()
    site = args.site.resolve()
    missing = [name for name in args.pages if not (site / f"{name}.html").is_file()]
    if missing:
        return f"{site} has no {', '.join(missing)}; run `make html`, or name pages that are there"
    args.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        path = find_chromium(playwright)
        if path is None:
            return WHAT_TO_DO
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        sheets = [sheet(name, photograph(browser, site, args.out, name)) for name in args.pages]
        browser.close()
    style = "div{display:flex;gap:8px;align-items:start}figure{margin:0}img{width:100%}"
    index = args.out / "index.html"
    index.write_text(f"<!doctype html><meta charset=utf-8><style>{style}</style>{''.join(sheets)}")
    print(index)


if __name__ == "__main__":
    sys.exit(main())
