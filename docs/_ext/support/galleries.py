"""The folders of scripts that become pages, and where the build writes those pages.

``conf.py`` hands `NAMES` to sphinx-gallery, and what reads the sources without Sphinx (tools,
tests) takes the scripts from here. The scripts of ``<name>/`` are generated into ``docs/<name>/``.
A gallery has topics, which are folders of scripts, or scripts and no topics.
"""

import re
from pathlib import Path

NAMES = ("tutorials", "how-to")
NO_PAGES = {"__init__.py", "conftest.py"}
GENERATED = re.compile(
    rf"docs/(?:{'|'.join(NAMES)})/|docs/reference/api/[^/]+(?<!/index)\.rst"
)  # below the repository, with the pages of the API


def scripts_in(gallery):
    """Every script of the folder of one gallery, in the order of the paths."""
    found = [*Path(gallery).glob("*.py"), *Path(gallery).glob("*/*.py")]
    return sorted(script for script in found if script.name not in NO_PAGES)


def scripts(root):
    """The scripts of every gallery below *root*."""
    return [script for name in NAMES for script in scripts_in(Path(root, name))]


def is_generated(page, docs):
    """Whether a page below *docs* is that of a script, or lists such pages."""
    return any(Path(docs, name) in page.parents for name in NAMES)


def headers(root):
    """The texts of the indexes of every gallery below *root*."""
    return sorted(path for name in NAMES for path in Path(root, name).rglob("*.rst"))
