"""Files that pages offer with ``:download:`` at addresses that say what they are.

Switch on: ``"docs._ext.site"`` in ``extensions``. Sphinx copies such a file into a folder named by
the hash of its path. Here the path itself is the address, seen from ``docs``, or from the
repository for a file outside: ``_downloads/tutorials/memory/memory_efficient_rl.ipynb``,
``_downloads/doctor/torchrl_doctor.py``. A file that is there as it is now is left alone.
"""

from functools import partial
from pathlib import Path, PurePosixPath

from sphinx import addnodes
from sphinx.util import logging

from docs._ext.support.files import write_if_changed

logger = logging.getLogger(__name__)

DOWNLOADS = "_downloads"


def address(source):
    """Where a file lies below ``_downloads``, by its path relative to the folder of the pages."""
    parts = PurePosixPath(source).parts
    return "/".join(part for part in parts if part != "..")


def name_links(app, doctree, docname):
    """doctree-resolved: point each link at the address."""
    for link in doctree.findall(addnodes.download_reference):
        if "filename" in link:
            link["filename"] = address(app.env.relfn2path(link["reftarget"], docname)[0])


def copy_files(app):
    """In place of the builder's ``copy_download_files``."""
    for source in app.env.dlfiles:
        target = Path(app.outdir, DOWNLOADS, address(source))
        try:
            write_if_changed(target, Path(app.srcdir, source).read_bytes())
        except OSError as error:
            logger.warning("cannot copy the download %s: %s", source, error)


def replace_copying(app):
    """builder-inited: the builder copies with ``copy_files``."""
    if app.builder.format == "html":
        app.builder.copy_download_files = partial(copy_files, app)


def setup(app):
    app.connect("builder-inited", replace_copying)
    app.connect("doctree-resolved", name_links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
