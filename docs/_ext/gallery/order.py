"""Order tutorials by text files beside them.

Switch on with ``"docs._ext.gallery"`` in ``extensions`` and, in ``sphinx_gallery_conf``::

    "subsection_order": "docs._ext.gallery.order.topic_position",
    "within_subsection_order": "docs._ext.gallery.order.TutorialPosition",

``tutorials/order.txt`` lists the topics (folders) and ``tutorials/<topic>/order.txt`` the
tutorials of one topic without ``.py``, one name a line; ``#`` starts a comment. In a gallery
without topics, as ``how-to/``, ``order.txt`` lists the scripts. A name that is missing from its
file, stands there twice or names nothing is a warning, and so is a tutorial beside topics, a topic
without ``GALLERY_HEADER.rst``, which sphinx-gallery skips, and a name that does not suit an
address. sphinx-gallery's own warning about spaces is suppressed: it means the
whole path, so a checkout in a folder with a space could not be built.
"""

import re
from pathlib import Path

from sphinx.util import logging

logger = logging.getLogger(__name__)

NAME = re.compile(r"[a-z][a-z0-9_]*")


def read_order(folder):
    """The names in ``folder/order.txt``; an absent file is an empty one."""
    path = Path(folder, "order.txt")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    names = (line.partition("#")[0].strip() for line in lines)
    return [name for name in names if name]


def topic_position(path):
    """Sort key of a topic, given as a path relative to the Sphinx source folder."""
    topic = Path(path)
    # sphinx-gallery resolves it against srcdir but hands over the relative form.
    return _position(_galleries[topic.parent.name], topic.name)


def position(script):
    """Sort key of a script among those of all galleries."""
    of = next(
        number for number, folder in enumerate(_galleries.values()) if folder in script.parents
    )
    in_topic = script.parent.parent.name in _galleries
    topic = topic_position(script.parent) if in_topic else ()
    return of, topic, TutorialPosition(script.parent)(script.name)


class TutorialPosition:
    """Sort key of the tutorials of one topic; sphinx-gallery passes the topic's folder."""

    def __init__(self, src_dir):
        self.folder = src_dir

    def __call__(self, filename):
        return _position(self.folder, Path(filename).stem)


def _position(folder, name):
    order = read_order(folder)
    return (order.index(name) if name in order else len(order), name)


_galleries = {}  # by name


def remember_galleries(app, config):
    """config-inited: the sort keys get no app; names are checked here alone."""
    folders = [Path(app.srcdir, name) for name in config.sphinx_gallery_conf["examples_dirs"]]
    _galleries.clear()
    _galleries.update({folder.name: folder.resolve() for folder in folders})
    config.suppress_warnings = [*config.suppress_warnings, "sphinx_gallery.space_in_filename"]


def check_orders(app):
    """builder-inited: compare every order file with the folder it stands in."""
    for root in _galleries.values():
        _check_gallery(root)


def _check_gallery(root):
    topics = sorted({script.parent.name for script in root.glob("*/*.py")})
    if not topics:
        return _check_scripts(root, root.name)
    _compare(root, topics, f"a topic of {root.name}/")
    for script in sorted(root.glob("*.py")):
        _warn(f"{root.name}/{script.name}: a tutorial stands in the folder of a topic; move it")
    for topic in topics:
        _check_scripts(root / topic, f"{root.name}/{topic}")


def _check_scripts(folder, shown):
    if not (folder / "GALLERY_HEADER.rst").is_file():
        _warn(f"{shown}: without GALLERY_HEADER.rst nothing here is run; add it")
    names = sorted(script.stem for script in folder.glob("*.py"))
    _compare(folder, names, f"a tutorial of {shown}/")
    topics = [folder.name] if "/" in shown else []
    for name in (name for name in (*topics, *names) if not NAME.fullmatch(name)):
        _warn(f"{shown}: {name!r} is an address; use a-z, 0-9 and _ in it")


def _compare(folder, present, kind):
    listed = read_order(folder)
    parents = next(iter(_galleries.values())).parent
    path = (folder / "order.txt").relative_to(parents).as_posix()
    problems = [f"{n!r} is {kind} but not listed; add it" for n in present if n not in listed]
    problems += [f"{n!r} is not {kind}; remove it" for n in listed if n not in present]
    problems += [f"{n!r} is listed twice" for n in dict.fromkeys(listed) if listed.count(n) > 1]
    for problem in problems:
        _warn(f"{path}: {problem}")


def _warn(problem):
    logger.warning(problem, type="gallery_order", subtype="order")


def setup(app):
    app.connect("config-inited", remember_galleries, priority=900)
    app.connect("builder-inited", check_orders, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
