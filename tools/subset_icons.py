# /// script
# dependencies = ["brotli", "fonttools", "pydata-sphinx-theme==0.24.0"]
# ///
"""Cut the theme's icon font down to the icons the site shows.

The theme draws two dozen icons from a font of two thousand. ``field-manual.css`` declares the cut
font for exactly these code points, so a browser fetches the whole font only where a page shows an
icon that is missing here; ``tests/browser/test_weight.py`` fails when one does.

Run ``uv run tools/subset_icons.py`` and copy the printed range into ``field-manual.css``.
"""

from pathlib import Path

import pydata_sphinx_theme
from fontTools import subset
from fontTools.ttLib import TTFont

ICONS = {
    0xF002: "magnifying glass",
    0xF00C: "check",
    0xF00D: "cross",
    0xF010: "magnifying glass, minus",
    0xF015: "house",
    0xF019: "download",
    0xF03A: "list",
    0xF03B: "outdent",
    0xF042: "half circle",
    0xF054: "chevron right",
    0xF057: "cross in circle",
    0xF058: "check in circle",
    0xF05A: "information",
    0xF062: "arrow up",
    0xF064: "share",
    0xF06A: "exclamation",
    0xF071: "triangle",
    0xF078: "chevron down",
    0xF0C9: "bars",
    0xF0EB: "light bulb",
    0xF0F3: "bell",
    0xF104: "angle left",
    0xF105: "angle right",
    0xF185: "sun",
    0xF186: "moon",
    0xF303: "pencil",
    0xF35D: "external link",
}
THEME = Path(pydata_sphinx_theme.__file__).parent / "theme" / "pydata_sphinx_theme" / "static"
SOURCE = THEME / "vendor" / "fontawesome" / "webfonts" / "fa-solid-900.woff2"
TARGET = Path(__file__).parents[1] / "docs" / "_static" / "fonts" / "icons.woff2"
LICENSE = "SIL Open Font License 1.1, https://openfontlicense.org"


def main():
    options = subset.Options(
        flavor="woff2", hinting=False, layout_features=[], name_IDs=[0], recalc_timestamp=False
    )
    font = subset.load_font(str(SOURCE), options)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=ICONS)
    subsetter.subset(font)
    # The license reserves the name of the original for the original.
    for name_id, text in {1: "Field Manual Icons", 4: "Field Manual Icons", 13: LICENSE}.items():
        font["name"].setName(text, name_id, 3, 1, 0x409)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    subset.save_font(font, str(TARGET), options)
    missing = ICONS.keys() - TTFont(TARGET).getBestCmap().keys()
    if missing:
        raise SystemExit(f"{SOURCE} has no glyph for {[ICONS[point] for point in sorted(missing)]}")
    print("unicode-range:", ", ".join(f"U+{point:X}" for point in sorted(ICONS)))


if __name__ == "__main__":
    main()
