"""Say on every page which stack and device it was built or executed on, and when.

Switch on: ``"docs._ext.site"`` in ``extensions``, and with the pydata theme put the template where
it belongs: ``html_theme_options["article_footer_items"] = ["page-stamp"]``.
Without the template the stamp still reaches machines through ``page_stamp`` in the context.

There is no markup; every page gets one stamp:

* An RST page, the index and the search page say "Built on <date> ... with torch ...".
  Versions come from package metadata: importing torch would cost more than the rebuild.
* A tutorial page says "Executed on <date> ... with torch ...". The gallery writes
  ``<page>.stamp.json`` beside the generated page when the script really runs::

      {"date": "2026-11-20T10:00:00Z", "device": "cpu", "python": "3.11.7",
       "versions": {"torch": "2.15.0", ...}}

  A tutorial without that file is the warning ``page_stamp.missing``, with a malformed one
  ``page_stamp.malformed``. A build with ``plot_gallery=0`` says "Not executed in this build".

What it writes, in the footer of the article: ``<p class="page-stamp">`` for people, and for
machines ``<script type="application/json" id="page-stamp">`` with the keys

``kind``      ``built``, ``executed`` or ``not-executed``
``date``      UTC, ISO 8601: of the execution, or of the build (``SOURCE_DATE_EPOCH`` wins)
``device``    ``cpu`` for a built page, what the script saw for an executed one
``versions``  torchrl, tensordict, torch, gymnasium, python; null if not installed
``commit``    commit of this manual the page was rendered from, with ``+`` when the tree had
              changes; null outside a git checkout

An unchanged page keeps its stamp, because Sphinx does not write it again; a page therefore
tells when *it* was rendered, not when the last build ran. Only two things rewrite pages:
the versions are a config value with ``rebuild="html"``, so a changed stack rewrites them all,
and a tutorial page depends on its stamp file, so a rerun rewrites that page. The commit and
the date are no config values: they would rewrite every page on every commit.
"""

import json
import platform
import subprocess
from pathlib import Path

from sphinx.util import logging

from docs._ext.gallery.stack import installed_version, utc_now

logger = logging.getLogger(__name__)

PACKAGES = ("torchrl", "tensordict", "torch", "gymnasium")
STAMP_KEYS = {"date", "device", "python", "versions"}


def installed_versions():
    """Versions of the stack without importing it."""
    return {
        **{package: installed_version(package) for package in PACKAGES},
        "python": platform.python_version(),
    }


def manual_commit(folder):
    """Short commit hash of the checkout, ``+`` appended when tracked files differ from it."""
    git = ["git", "-C", str(folder)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
        )
        status = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True
        )
    except FileNotFoundError:  # no git on this machine
        return None
    if head.returncode or status.returncode:
        return None
    return head.stdout.strip() + ("+" if status.stdout.strip() else "")


def in_order(versions):
    """The versions in the order in which every page names them."""
    order = [package for package in PACKAGES if package in versions]
    return {package: versions[package] for package in [*order, *sorted({*versions} - {*order})]}


def gallery_runs(app):
    """Whether this build executes the tutorials."""
    conf = getattr(app.config, "sphinx_gallery_conf", {})
    return str(conf.get("plot_gallery", True)).lower() not in {"0", "false"}


def stamp_file(app, docname):
    """Where the gallery leaves the stamp of a tutorial page; None for any other page.

    The gallery copies each script beside the page it generates, which tells a tutorial
    from the indexes of the gallery.
    """
    page = Path(app.srcdir, docname)
    return page.with_suffix(".stamp.json") if page.with_suffix(".py").is_file() else None


def read_stamp(path):
    """The parsed stamp, or a sentence that says what is wrong with it."""
    try:
        stamp = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{path.name} is missing: the gallery has not executed this tutorial"
    except ValueError as error:
        return f"{path.name} is not JSON ({error}); delete it and rebuild"
    if not isinstance(stamp, dict) or not set(stamp) >= STAMP_KEYS:
        return f"{path.name} lacks one of the keys {sorted(STAMP_KEYS)}; delete it and rebuild"
    return stamp


def in_short(date, torchrl, device):
    """When, with which release and on what something ran, for a line beside it."""
    return f"{date[:10]}, TorchRL {torchrl}, {'CPU' if device == 'cpu' else device}"


def run_in_short(app, docname):
    """That of a tutorial's run, which its page stamp has in full; None for one that did not run."""
    stamp = read_stamp(stamp_file(app, docname)) if gallery_runs(app) else None
    if not isinstance(stamp, dict):
        return None
    return in_short(stamp["date"], stamp["versions"]["torchrl"], stamp["device"])


def watch_versions(app, config):
    """config-inited: a changed stack rewrites every page."""
    config.page_stamp_versions = installed_versions()
    app.page_stamp_commit = manual_commit(app.confdir)


def check_tutorials(app, env, docnames):
    """env-before-read-docs: every executed tutorial has a stamp.

    Checked for all pages on every build, so that a repeated build repeats the warning.
    """
    if not gallery_runs(app):
        return
    for docname in sorted(env.found_docs):
        path = stamp_file(app, docname)
        if path is None:
            continue
        problem = read_stamp(path)
        if isinstance(problem, str):
            kind = "malformed" if path.exists() else "missing"
            logger.warning(problem, location=docname, type="page_stamp", subtype=kind)


def depend_on_stamp(app, docname, source):
    """source-read: rewrite a tutorial's page when its stamp changes."""
    path = stamp_file(app, docname)
    if path is not None:
        app.env.note_dependency(str(path))


def page_stamp(app, pagename):
    """The stamp of one page, as the dictionary that machines read."""
    stamp = {
        "kind": "built",
        "date": utc_now(),
        "device": "cpu",
        "versions": app.config.page_stamp_versions,
        "commit": app.page_stamp_commit,
    }
    path = stamp_file(app, pagename)
    if path is None:
        return stamp
    executed = read_stamp(path)
    if isinstance(executed, str) or not gallery_runs(app):
        return {**stamp, "kind": "not-executed"}
    return {
        **stamp,
        "kind": "executed",
        "date": executed["date"],
        "device": executed["device"],
        "versions": {**in_order(executed["versions"]), "python": executed["python"]},
    }


def add_stamp(app, pagename, templatename, context, doctree):
    """html-page-context: hand the stamp to page-stamp.html."""
    stamp = page_stamp(app, pagename)
    context["page_stamp"] = stamp
    # "</" would end the script element early.
    context["page_stamp_json"] = json.dumps(stamp, sort_keys=True).replace("</", "<\\/")


def setup(app):
    app.add_config_value("page_stamp_versions", {}, "html")
    app.connect("config-inited", watch_versions)
    app.connect("env-before-read-docs", check_tutorials)
    app.connect("source-read", depend_on_stamp)
    app.connect("html-page-context", add_stamp)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
