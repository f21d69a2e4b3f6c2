"""Keep nothing stale: decide what runs again, and remove what no longer belongs.

Switch on with ``"docs._ext.gallery"`` in ``extensions``. sphinx-gallery reruns a tutorial when its
text changed and at no other time. This extension adds:

* a fingerprint of everything else a run depends on (versions of the stack and of all it requires,
  Python, NVIDIA devices, ``conf.py``, the modules of this package, the look of drawings, what runs
  a fork), kept in ``docs/tutorials/fingerprint.json``; another fingerprint reruns every gallery,
  after ``stack`` has checked the stack;
* generated files of a removed or renamed tutorial are deleted, and so are its page, its images
  and its downloads in the output folder;
* when a document, label or term vanishes, every page is written again, so that a link to it is
  reported although the linking page did not change.

The folders in ``gallery_dirs`` hold generated files only: they are deleted as a whole.
"""

import hashlib
import json
import platform
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from sphinx.util import logging

from docs._ext.gallery.stack import check_stack, installed_closure, visible_accelerator
from docs._ext.support import charts, fork
from docs._ext.support.galleries import scripts_in

logger = logging.getLogger(__name__)

ASSET = re.compile(r"_(?:images|downloads)/[^\"'\s?#,)<>&]+")
ASSET_FOLDERS = ("_images", "_downloads")


def fingerprint(app):
    """Everything but its own text that the result of a tutorial depends on."""
    sources = [Path(app.confdir, "conf.py"), Path(charts.__file__), Path(fork.__file__)]
    sources += sorted(Path(__file__).parent.rglob("*.py"))
    return {
        "python": platform.python_version(),
        "distributions": installed_closure([*app.config.gallery_stack, "sphinx-gallery"]),
        "accelerator": visible_accelerator(),
        "sources": {s.name: hashlib.sha256(s.read_bytes()).hexdigest() for s in sources},
    }


class Gallery(NamedTuple):
    """The folder of the scripts, and the one of their pages, which has the same name."""

    scripts: Path
    generated: Path

    def copies(self):
        """Pairs of a script and its copy beside its page."""
        for script in scripts_in(self.scripts):
            yield script, self.generated / script.relative_to(self.scripts)


def galleries(app):
    """Every `Gallery`, with absolute folders, in the order of ``conf.py``."""
    conf = app.config.sphinx_gallery_conf
    pairs = zip(conf["examples_dirs"], conf["gallery_dirs"], strict=True)
    return [Gallery(Path(app.srcdir, a).resolve(), Path(app.srcdir, b)) for a, b in pairs]


def _fingerprint_file(app):
    return galleries(app)[0].generated / "fingerprint.json"


def rerun_everything(app):
    """Make the next build run every tutorial."""
    _fingerprint_file(app).unlink(missing_ok=True)


def forget_another_stack(app):
    """builder-inited, before the gallery: another fingerprint reruns everything."""
    if not app.config.sphinx_gallery_conf["plot_gallery"]:
        return
    path = _fingerprint_file(app)
    now = json.dumps(fingerprint(app), indent=1, sort_keys=True) + "\n"
    if path.is_file() and path.read_text(encoding="utf-8") == now:
        return
    logger.info("the stack, conf.py or a gallery extension changed: every tutorial runs")
    for gallery in galleries(app):
        shutil.rmtree(gallery.generated, ignore_errors=True)
    if app.config.gallery_stack_probe:
        check_stack(app.config.gallery_stack_probe)
    path.parent.mkdir(parents=True)
    path.write_text(now, encoding="utf-8")


def remove_orphans(app):
    """builder-inited, before the gallery: delete what a removed tutorial generated."""
    backreferences = app.config.sphinx_gallery_conf["backreferences_dir"]
    kept = {"images", Path(backreferences).name if backreferences else "images"}
    for scripts, generated in galleries(app):
        _keep(generated, {s.stem for s in scripts.glob("*.py")} | {"fingerprint"})
        for folder in [p for p in generated.glob("*") if p.is_dir() and p.name not in kept]:
            if stems := {s.stem for s in (scripts / folder.name).glob("*.py")}:
                _keep(folder, stems)
            else:
                shutil.rmtree(folder)


def _keep(folder, stems):
    """Delete what no script of these *stems* generated into *folder*."""
    for path in [p for p in (*folder.glob("*"), *folder.glob("images/**/*")) if p.is_file()]:
        image = re.fullmatch(r"sphx_glr_(.+)_(?:\d{3}|thumb)", path.stem)
        stem = image[1] if image else path.name.partition(".")[0]
        if stem not in stems | {"index"}:
            path.unlink()


def forget_unfinished_runs(app):
    """builder-inited, before the gallery: without a stamp a run did not pass every check.

    sphinx-gallery writes its checksum before the guard has judged the run.
    """
    for gallery in galleries(app):
        for _, copy in gallery.copies():
            if not copy.with_suffix(".stamp.json").is_file():
                Path(f"{copy}.md5").unlink(missing_ok=True)


def _targets(env):
    """Everything a page can link to by name."""
    labels = env.domains["std"].data["anonlabels"]
    terms = {f"{kind}:{name}" for kind, name in env.domains["std"].data["objects"]}
    symbols = {f"py:{name}" for name in env.domains["py"].data["objects"]}
    return set(env.found_docs) | set(labels) | terms | symbols


def remember_targets(app, env, docnames):
    """env-before-read-docs: what earlier builds linked to (documents already purged included)."""
    env.gallery_cache_before = getattr(env, "gallery_cache_targets", set())


def rewrite_when_a_target_vanished(app, env):
    """env-updated: name every page if one of its links may have lost its target."""
    env.gallery_cache_targets = _targets(env)
    vanished = env.gallery_cache_before - env.gallery_cache_targets
    return sorted(env.found_docs) if vanished else []


def remember_page(app, pagename, templatename, context, doctree):
    """html-page-context: pages without a document (search, index, 404) are written each time."""
    _written.add(pagename)


def prune_output(app, exception):
    """build-finished: delete pages and assets that no page of this build needs."""
    if exception is not None or app.builder.format != "html":
        return
    out = Path(app.outdir)
    current = {app.builder.get_output_path(page) for page in _written | app.env.found_docs}
    used = set()
    for page in out.rglob("*.html"):
        if page.is_relative_to(out / "_static"):
            continue
        if page not in current:
            page.unlink()
        else:
            used.update(ASSET.findall(page.read_text(encoding="utf-8")))
    for folder in ASSET_FOLDERS:
        for path in [p for p in out.joinpath(folder).rglob("*") if p.is_file()]:
            if path.relative_to(out).as_posix() not in used:
                path.unlink()
    for folder in sorted((p for p in out.rglob("*") if p.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


_written = set()


def start_anew(app):
    """builder-inited: this process may build twice (tests do)."""
    _written.clear()


def setup(app):
    app.connect("builder-inited", start_anew, priority=100)
    app.connect("builder-inited", forget_another_stack, priority=200)
    app.connect("builder-inited", remove_orphans, priority=300)
    app.connect("builder-inited", forget_unfinished_runs, priority=310)
    app.connect("env-before-read-docs", remember_targets)
    app.connect("env-updated", rewrite_when_a_target_vanished)
    app.connect("html-page-context", remember_page)
    app.connect("build-finished", prune_output, priority=700)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
