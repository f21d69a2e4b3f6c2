# /// script
# dependencies = ["brotli", "fonttools==4.68.0", "pydata-sphinx-theme==0.24.0"]
# ///
"""Cut IBM Plex and the theme's font of icons down to what the pages show.

``npm pack`` fetches the packages of ``PACKAGES``, whose bytes are pinned. The licenses reserve the
names of the originals, so the cut faces are called after the site. ``field-manual.css`` declares
them, the icons for exactly these code points: a browser fetches the theme's font of two thousand
only where a page shows an icon that is missing here. ``tests/pages/test_fonts.py`` fails when a
page shows a character that is missing, ``tests/browser/test_weight.py`` when it shows an icon.

Run ``uv run tools/subset_fonts.py``, commit what changed in ``docs/_static/fonts``, and copy the
printed range into ``field-manual.css``.
"""

import base64
import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

TARGET = Path(__file__).parents[1] / "docs" / "_static" / "fonts"
PACKAGES = {  # package of npm: integrity, as npm's lock files write it
    "@ibm/plex-sans-variable@0.2.0": "sha512-"
    "S8xew9E8CPPKFvitbu2gDtwNFVWwwhClheaIBeykDYg7DrVK3cV5Xq5MjMrWPP5Os0xyiRFjMOmtGBLzz3urTQ==",
    "@ibm/plex-mono@2.5.0": "sha512-"
    "STBJIPxPomOYPmBMO7z5TKPJUotAF9u3gAUumTqVgwgrAO+K4FRNh0MlhsoJjKhJKsMbBJR10/bk4inkj/wc1w==",
}
SANS, MONO = PACKAGES
FACES = {  # file: package, font in it, axes that are kept, name
    "sans.woff2": (SANS, "ttf/IBM Plex Sans Var-Roman.ttf", "Field Manual Sans"),
    "sans-italic.woff2": (SANS, "ttf/IBM Plex Sans Var-Italic.ttf", "Field Manual Sans Italic"),
    "mono.woff2": (MONO, "woff2/IBMPlexMono-Regular.woff2", "Field Manual Mono"),
    "mono-bold.woff2": (MONO, "woff2/IBMPlexMono-SemiBold.woff2", "Field Manual Mono Bold"),
}
AXES = {"wdth": 100, "wght": (400, 700)}  # of the variable fonts
# Without a character that is missing in a face, as Greek letters in the one for code, the browser
# takes it from the next font.
CHARACTERS = (
    "".join(map(chr, range(0x20, 0x7F)))
    + "\u00a0\u2007©®°´µ·½×÷±²³–—‘’“”…′•←↑→↓↔⇒∂∆∏∑−√∞∫≈≠≤≥"
    + "αβγδεθλμπρστφψωΔΣéöü"
)

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
OF_ICONS = "pydata_sphinx_theme/static/vendor/fontawesome/webfonts/fa-solid-900.woff2"
LICENSE_OF_ICONS = "SIL Open Font License 1.1, https://openfontlicense.org"


def fetch(package, folder):
    """Unpack *package* of npm into *folder*, or stop where its bytes are not those pinned."""
    done = subprocess.run(
        ["npm", "pack", "--silent", "--ignore-scripts", package],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    archive = folder / done.stdout.split()[-1]
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != PACKAGES[package]:
        raise SystemExit(f"{package} is not what was pinned: sha512-{digest}")
    target = archive.with_suffix("")
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    return target / "package"


def cut(source, target, name, characters=CHARACTERS, features=("kern", "ccmp", "mark"), license=""):
    """Write *source* with the glyphs of *characters* alone to *target*, and call it *name*."""
    from fontTools import subset
    from fontTools.ttLib import TTFont
    from fontTools.varLib import instancer

    font = TTFont(source, recalcTimestamp=False)
    font.recalcBBoxes = "glyf" in font
    if "fvar" in font:
        instancer.instantiateVariableFont(font, AXES, inplace=True)
        whole = target.with_suffix(".ttf")  # glyphs are numbered anew when they are read
        font.save(whole)
        font = TTFont(whole, recalcTimestamp=False)
        whole.unlink()
    options = subset.Options(
        flavor="woff2",
        hinting=False,
        layout_features=list(features),
        name_IDs=[0, 13],
        recalc_timestamp=False,
    )
    subsetter = subset.Subsetter(options)
    subsetter.populate(text=characters)
    subsetter.subset(font)
    for name_id, text in {1: name, 4: name, **({13: license} if license else {})}.items():
        font["name"].setName(text, name_id, 3, 1, 0x409)
    subset.save_font(font, str(target), options)
    print(f"{target.name}: {target.stat().st_size / 1000:.1f} kB")
    return set(map(ord, characters)) - font.getBestCmap().keys()


def main():
    import pydata_sphinx_theme

    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        unpacked = {package: fetch(package, Path(folder)) for package in PACKAGES}
        for file, (package, font, name) in FACES.items():
            cut(unpacked[package] / "fonts" / "complete" / font, TARGET / file, name)
        text = (unpacked[SANS] / "LICENSE.txt").read_text(encoding="utf-8")
        head = "Subsets of IBM Plex Sans and IBM Plex Mono, under names of their own.\n\n"
        (TARGET / "LICENSE.txt").write_text(head + text, encoding="utf-8")
    source = Path(pydata_sphinx_theme.__file__).parent / "theme" / OF_ICONS
    icons = "".join(map(chr, ICONS))
    target = TARGET / "icons.woff2"
    if missing := cut(source, target, "Field Manual Icons", icons, (), LICENSE_OF_ICONS):
        raise SystemExit(f"{source} has no glyph for {[ICONS[point] for point in sorted(missing)]}")
    print("unicode-range:", ", ".join(f"U+{point:X}" for point in sorted(ICONS)))


if __name__ == "__main__":
    main()
