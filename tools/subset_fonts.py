# /// script
# dependencies = ["brotli", "fonttools==4.68.0"]
# ///
"""Cut IBM Plex down to what the pages show: the text and the code face of the site.

``npm pack`` fetches the packages of ``PACKAGES``, whose bytes are pinned. Their license reserves
the name Plex for the original, so the cut faces are called after the site. ``field-manual.css``
declares them; ``tests/pages/test_fonts.py`` fails when a page shows a character that is missing.

Run ``uv run tools/subset_fonts.py`` and commit what changed in ``docs/_static/fonts``.
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


def cut(source, target, name):
    """Write *source* with the glyphs of ``CHARACTERS`` alone to *target*, and call it *name*."""
    from fontTools import subset
    from fontTools.ttLib import TTFont
    from fontTools.varLib import instancer

    font = TTFont(source, recalcTimestamp=False)
    if "fvar" in font:
        instancer.instantiateVariableFont(font, AXES, inplace=True)
        whole = target.with_suffix(".ttf")  # glyphs are numbered anew when they are read
        font.save(whole)
        font = TTFont(whole, recalcTimestamp=False)
        whole.unlink()
    options = subset.Options(
        flavor="woff2",
        hinting=False,
        layout_features=["kern", "ccmp", "mark"],
        name_IDs=[0, 13],
        recalc_timestamp=False,
    )
    subsetter = subset.Subsetter(options)
    subsetter.populate(text=CHARACTERS)
    subsetter.subset(font)
    for name_id in (1, 4):
        font["name"].setName(name, name_id, 3, 1, 0x409)
    subset.save_font(font, str(target), options)


def main():
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        unpacked = {package: fetch(package, Path(folder)) for package in PACKAGES}
        for file, (package, font, name) in FACES.items():
            cut(unpacked[package] / "fonts" / "complete" / font, TARGET / file, name)
            print(f"{file}: {(TARGET / file).stat().st_size / 1000:.1f} kB")
        text = (unpacked[SANS] / "LICENSE.txt").read_text(encoding="utf-8")
        head = "Subsets of IBM Plex Sans and IBM Plex Mono, under names of their own.\n\n"
        (TARGET / "LICENSE.txt").write_text(head + text, encoding="utf-8")


if __name__ == "__main__":
    main()
