"""Files that pages offer with ``:download:`` at addresses that say what they are.

Switch on: ``"docs._ext.site"`` in ``extensions``. Sphinx copies such a file into a folder named by
the hash of its path. Here the path itself is the address, seen from ``docs``, or from the
repository for a file outside: ``_downloads/tutorials/memory/memory_efficient_rl.ipynb``,
``_downloads/doctor/torchrl_doctor.py``.
"""

from pathlib import Path, PurePosixPath

from sphinx import addnodes

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


def move_files(app, exception):
    """build-finished, before ``gallery.cache`` deletes what no page links: put the files there."""
    if exception or app.builder.format != "html":
        return
    folder = Path(app.outdir, DOWNLOADS)
    for source, (_, hashed) in app.env.dlfiles.items():
        target = folder / address(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        (folder / hashed).replace(target)
        (folder / hashed).parent.rmdir()


def setup(app):
    app.connect("doctree-resolved", name_links)
    app.connect("build-finished", move_files, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
