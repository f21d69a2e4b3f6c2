"""Check a built site from its files: links, anchors, ids, alternative texts, foreign assets.

    python tools/check_links.py [--prefix /] [folder]

Exits with 1 and one line per fault, ``page: fault: address``. Needs no network: a link to another
host is not followed (``make linkcheck`` does that), an asset from another host is a fault. An
address that begins with a slash must begin with the prefix, the path below which the site lives.
"""

import argparse
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

DEFAULT = Path(__file__).parents[1] / "build" / "html"
ASSETS = {  # element -> attributes a browser fetches by itself
    "audio": ["src"],
    "embed": ["src"],
    "iframe": ["src"],
    "image": ["href", "xlink:href"],
    "img": ["src", "srcset"],
    "input": ["src"],
    "link": ["href"],
    "object": ["data"],
    "script": ["src"],
    "source": ["src", "srcset"],
    "track": ["src"],
    "use": ["href", "xlink:href"],
    "video": ["src", "poster"],
}
NOT_FETCHED = {
    "alternate",
    "author",
    "canonical",
    "help",
    "license",
    "me",
    "next",
    "prev",
    "search",
}
NOT_FETCHED |= {"index", "top", "up"}


class Page(HTMLParser):
    """What a page defines and what it asks for."""

    def __init__(self, path):
        super().__init__()
        self.ids = Counter()
        self.links = []
        self.assets = []
        self.without_alt = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if values.get("id"):
            self.ids[values["id"]] += 1
        if tag in ("a", "area") and values.get("href"):
            self.links.append(values["href"])
        if tag == "form" and values.get("action"):
            self.links.append(values["action"])
        if tag == "img" and "alt" not in values:
            self.without_alt.append(values.get("src", ""))
        fetched = tag != "link" or not set(values.get("rel", "").lower().split()) <= NOT_FETCHED
        for name in ASSETS.get(tag, []):
            for address in addresses(name, values.get(name)):
                (self.assets if fetched else self.links).append(address)


def addresses(name, value):
    """The addresses in an attribute; a srcset holds several."""
    if not value:
        return []
    if name == "srcset":
        return [part.split()[0] for part in value.split(",") if part.strip()]
    return [value.strip()]


def is_foreign(address):
    """Whether a browser would ask another host for it."""
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme in ("http", "https")


def target(root, page, address, prefix):
    """The file an address leads to, or None for an absolute one outside the prefix."""
    path = unquote(urlsplit(address).path)
    if path.startswith("/"):
        if not path.startswith(prefix):
            return None
        found = root / path[len(prefix) :]
    elif path:
        found = page.parent / path
    else:
        found = page
    found = found.resolve()
    return found / "index.html" if found.is_dir() else found


def faults(root, prefix="/"):
    """Pairs of page and fault, for every page below the folder."""
    root = Path(root).resolve()
    pages = {
        path: Page(path)
        for path in sorted(root.rglob("*.html"))
        if path.relative_to(root).parts[0] != "_static"  # the theme ships a template there
    }
    for path, page in pages.items():
        name = path.relative_to(root).as_posix()
        for id_, count in page.ids.items():
            if count > 1:
                yield name, f"id used {count} times: {id_}"
        for source in page.without_alt:
            yield name, f"image without alternative text: {source}"
        for address in page.assets:
            if is_foreign(address):
                yield name, f"asset from another host: {address}"
        for address in dict.fromkeys(page.links + page.assets):
            if urlsplit(address).scheme or is_foreign(address):
                continue
            found = target(root, path, address, prefix)
            if found is None:
                yield name, f"absolute address outside {prefix}: {address}"
            elif not found.is_file():
                yield name, f"link to a file that is not there: {address}"
            elif not found.is_relative_to(root):
                yield name, f"link out of the site: {address}"
            else:
                fragment = unquote(urlsplit(address).fragment)
                if fragment and found in pages and fragment not in pages[found].ids:
                    yield name, f"link to an anchor that is not there: {address}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--prefix", default="/", help="path below which the site is served")
    options = parser.parse_args()
    if not (options.folder / "index.html").is_file():
        parser.error(f"{options.folder} holds no site; run `make html` first")
    found = [f"{page}: {fault}" for page, fault in faults(options.folder, options.prefix)]
    print("\n".join(found) if found else "links, anchors, ids and assets: no fault")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
