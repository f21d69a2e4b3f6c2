"""Leave out what sphinx-gallery does in every build and nothing here reads.

Switch on with ``"docs._ext.gallery"`` in ``extensions``. A build in which no tutorial is due then

* imports no matplotlib: sphinx-gallery does so to choose the backend, which it chooses again before
  each tutorial (``reset_modules``);
* writes no ``.examples`` file for each object that a tutorial uses. Which tutorials use an object
  stands in ``backreferences_all.json``, which ``minigallery`` and ``source.api_pages`` read.
"""

from sphinx_gallery import gen_gallery, gen_rst
from sphinx_gallery.backreferences import Backreference


def list_users(names, written, conf, source, target, script, intro, title):
    """In place of ``gen_rst._write_backreferences``: what goes into the list, and no file."""
    user = Backreference(str(script), str(source), str(target), intro, title)
    return {name: [user] for name in sorted(names)}


def setup(app):
    """Replace calls of sphinx-gallery that no setting leaves out (not reported)."""
    gen_gallery._import_matplotlib = lambda: None
    gen_rst._write_backreferences = list_users
    return {"parallel_read_safe": True, "parallel_write_safe": True}
