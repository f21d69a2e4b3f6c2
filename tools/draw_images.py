"""Draw the raster images of the site from its mark: two icons and the card of link previews.

Run ``.venv/bin/python tools/draw_images.py`` after a change to ``docs/_static/logo.svg``; needs a
Chromium (see ``tests/browser/conftest.py`` for how one is found).
"""

import io
import os
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

STATIC = Path(__file__).parents[1] / "docs" / "_static"
CARD = """
<body style="margin:0;width:1200px;height:630px;background:#0a6375;color:#fff;display:flex;
             flex-direction:column;justify-content:center;padding:0 96px;box-sizing:border-box;
             font-family:'DejaVu Sans',sans-serif">
<div style="width:150px;margin-left:-8px">{logo}</div>
<div style="font-size:72px;font-weight:700;margin-top:28px">TorchRL Field Manual</div>
<div style="font-size:34px;margin-top:20px">Every example executed, every figure measured.</div>
</body>
"""
ICON = '<body style="margin:0;width:{size}px;height:{size}px">{logo}</body>'


def draw(page, html, width, height, name):
    page.set_viewport_size({"width": width, "height": height})
    page.set_content(html)
    image = Image.open(io.BytesIO(page.screenshot(omit_background=True)))
    image = image.convert("RGBA").quantize(64, method=Image.Quantize.FASTOCTREE)
    image.save(STATIC / name, optimize=True)


def main():
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    logo = (STATIC / "logo.svg").read_text(encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        draw(page, CARD.format(logo=logo), 1200, 630, "card.png")
        for size in (32, 180):
            draw(page, ICON.format(logo=logo, size=size), size, size, f"icon-{size}.png")
        browser.close()


if __name__ == "__main__":
    main()
