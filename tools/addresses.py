"""The addresses of the built site that others may link to, and the register that keeps them.

    python tools/addresses.py [--site DIR]

adds to ``docs/addresses.txt`` what ``build/html`` has and the register lacks. It takes nothing out:
an address stays for years. A page, section or term that moves leaves a redirect where it went
(``docs/_ext/site/redirects.py``). A file cannot lead on; one that is given up keeps its line, with
the reason::

    _downloads/records/old-cpu.json  # gone: no page quotes it

Registered are pages, their anchors, the files below ``_downloads``, and ``llms.txt``. Not
registered is what has no name of its own: ids that docutils, the gallery or a drawing number,
plates, the values of a plate, hints of terms, search fields, the Markdown twin of a page. Nor is a
wheel, whose name has a version: what stays is the page that links it, where installers look.

Beside it, ``docs/changes.txt`` has the day on which each page came, newest first, and of a page
that only leads on, the day on which it went, for the list of changes
(``docs/_ext/records/change_list.py``). A page that this script finds anew came today.
"""

import argparse
import datetime
import re
import sys
from pathlib import Path

HEADER = "# Addresses that others may link to; tools/addresses.py says how the list is kept.\n"
CHANGES = "# When a page came, or went (gone); tools/addresses.py adds to the list.\n"
GONE = "# gone: "
LEADS_ON = '<main class="moved">'
ARTICLE = re.compile(r"<article\b.*</article>", re.DOTALL)
DRAWING = re.compile(r"<svg\b.*?</svg>", re.DOTALL)
ANCHOR = re.compile(r"<[a-z][^<>]*?\sid=\"([^\"]+)\"")
NAMELESS = re.compile(
    r"id\d+|plate-\d+|hint-.*|upstream-says-\d+|sphx-glr-.*|search-here(?:-hits)?"
)
NAMELESS_FILE = re.compile(
    r"_downloads/(?:records/.*-plot\d+\.csv|.*/images/sphx_glr_.*_\d{3}\.csv|doctor/.*\.whl)"
)
WITHOUT_ANCHORS = {"404.html", "genindex.html", "search.html"}


def offered(html):
    """The addresses of the site in the folder *html*."""
    found = set()
    for path in sorted(html.rglob("*")):
        name = path.relative_to(html).as_posix()
        if name == "llms.txt" or (name.startswith("_downloads/") and path.is_file()):
            if not NAMELESS_FILE.fullmatch(name):
                found.add(name)
        elif path.suffix == ".html" and not name.startswith("_static/"):
            found.add(name)
            if name not in WITHOUT_ANCHORS:
                found |= {f"{name}#{anchor}" for anchor in anchors(path.read_text("utf-8"))}
    return found


def anchors(page):
    """The anchors that readers can name: those of the text, or of the whole page that has none."""
    article = ARTICLE.search(page)
    text = DRAWING.sub("", article[0] if article else page)
    return {anchor for anchor in ANCHOR.findall(text) if not NAMELESS.fullmatch(anchor)}


def registered(listing):
    """Address -> number of its line, without those that are gone."""
    lines = listing.read_text(encoding="utf-8").splitlines()
    return {
        line.partition(" ")[0]: number
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#") and GONE not in line
    }


def lost(found, listing):
    """A sentence for each page or file that the register has and the site has not."""
    missing = {}
    for address, number in registered(listing).items():
        if address not in found:
            page, _, anchor = address.partition("#")
            missing.setdefault(page, (number, []))[1].append(anchor)
    for page, (number, parts) in missing.items():
        addresses = [f"{page}#{anchor}" if anchor else page for anchor in parts]
        where = f"{listing.name}:{number}: {', '.join(addresses)} "
        if page.endswith(".html"):
            yield (
                f"{where}is not in the site; where its content is now, write "
                f"'.. redirect-from:: {' '.join(addresses)}' (docs/_ext/site/redirects.py)"
            )
        else:
            yield f"{where}is not in the site; put it back, or end the line with '{GONE}<reason>'"


def unregistered(found, listing):
    """The addresses of the site that the register lacks, sorted."""
    return sorted(found - set(registered(listing)), key=position)


def position(line):
    """Sort key of a line: anchors follow their page."""
    return line.partition(" ")[0].partition("#")


def add(found, listing):
    """Write the register anew with what it lacks; return the addresses that are new."""
    new = unregistered(found, listing)
    lines = listing.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line and not line.startswith("#")]
    listing.write_text(HEADER + "\n".join(sorted([*kept, *new], key=position)) + "\n", "utf-8")
    return new


def changes(html):
    """Each page of the site, and "gone" behind one that only leads on; indexes are no pages."""
    for path in sorted(html.rglob("*.html")):
        page = path.relative_to(html).with_suffix("").as_posix()
        if path.name not in {*WITHOUT_ANCHORS, "index.html"} and not page.startswith("_"):
            yield f"{page} gone" if LEADS_ON in path.read_text("utf-8") else page


def undated(html, dated):
    """The changes of the site that the list lacks."""
    lines = dated.read_text(encoding="utf-8").splitlines()
    known = {line.partition(" ")[2] for line in lines}
    return [change for change in changes(html) if change not in known]


def date(html, dated, day):
    """Write the list anew, with what it lacks as of *day*."""
    new = [f"{day} {change}" for change in undated(html, dated)]
    lines = dated.read_text(encoding="utf-8").splitlines()
    kept = sorted([*new, *(line for line in lines if not line.startswith("#"))])
    newest = sorted(kept, key=lambda line: line[: len("2026-01-01")], reverse=True)
    dated.write_text(CHANGES + "\n".join(newest) + "\n", "utf-8")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("--site", type=Path, default=here, help="folder with docs/ and build/")
    site = parser.parse_args().site
    html, listing = site / "build" / "html", site / "docs" / "addresses.txt"
    if not (html / "index.html").is_file():
        parser.error(f"{html} holds no site; run `make html` first")
    new = add(offered(html), listing)
    date(html, listing.with_name("changes.txt"), datetime.date.today())
    print("\n".join(new))
    print(f"{len(new)} new address(es) in {listing.name}")


if __name__ == "__main__":
    sys.exit(main())
