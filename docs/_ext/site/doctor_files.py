"""The doctor as one file and as a wheel, made anew before the pages are read.

Switch on: ``"docs._ext.site"`` in ``extensions``. Both lie in ``docs/doctor/``, which git ignores,
for the pages to offer. A file that would be the same is left as it is, so that no page is read
again. A site without a folder ``doctor`` beside its ``conf.py`` has none. With ``SITE_URL`` (see
``page_meta``) the doctor knows the address of the manual, and gives those of its pages in full.

Markup; the name of the wheel has its version, which no page has to repeat::

    Or install the :doctor-wheel:`wheel`.

    .. doctor-install::

The role is a link to the file, so that the page is one that pip takes as ``--find-links``. The
directive is the command to install it: from the page itself where the address of the site is known,
else from the file that one has downloaded.
"""

import runpy
import shutil
import subprocess
import tempfile
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective, SphinxRole
from uv import find_uv_bin

from docs._ext.support.files import state_of, write_if_changed
from docs._ext.support.page_state import page_state

FOLDER = "doctor"
ADDRESS = Path("src", "torchrl_doctor", "about.py")
UNKNOWN = 'SITE = ""'


def with_address(package, site_url):
    """Let the package know where the manual is."""
    path = package / ADDRESS
    text = path.read_text(encoding="utf-8")
    if UNKNOWN not in text:
        raise ExtensionError(f"{ADDRESS}: no line {UNKNOWN!r}, which takes the site's address")
    path.write_text(text.replace(UNKNOWN, f"SITE = {site_url!r}"), encoding="utf-8")


def make_files(app):
    """builder-inited: write the single file and the wheel; a wheel of another version goes."""
    source, folder = Path(app.confdir, "doctor"), Path(app.srcdir, FOLDER)
    if not source.is_dir():
        return
    known = page_state(app.env, FOLDER)
    if known.get("made of") == state(app, source, folder):
        return
    with tempfile.TemporaryDirectory() as made:
        package = Path(made, "package")
        shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
        if app.config.site_url:
            with_address(package, app.config.site_url)
        single_file = runpy.run_path(str(package / "single_file.py"))["single_file"]
        write_if_changed(folder / "torchrl_doctor.py", single_file())
        command = [find_uv_bin(), "build", "--wheel", "--offline", "--out-dir", made, package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(made).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            raise ExtensionError(f"{source}/pyproject.toml: no wheel was built: {done.stderr}")
        write_if_changed(folder / wheels[0].name, wheels[0].read_bytes())
    for old in folder.glob("*.whl"):
        if old.name != wheels[0].name:
            old.unlink()
    known["made of"] = state(app, source, folder)


def state(app, source, folder):
    """Of the package, the address of the site, and the files that were made of both."""
    files = [path for path in source.rglob("*") if "__pycache__" not in path.parts]
    files = sorted([*files, *folder.rglob("*")])
    return state_of(app.config.site_url, *map(str, files), *files)


def wheel_of(app):
    """The name of the wheel; None where there is none."""
    return next((path.name for path in Path(app.srcdir, FOLDER).glob("*.whl")), None)


class DoctorWheel(SphinxRole):
    """A link to the wheel."""

    def run(self):
        target = f"/{FOLDER}/{wheel_of(self.env.app)}"
        link = addnodes.download_reference(self.rawtext, reftarget=target, refdoc=self.env.docname)
        link += nodes.literal("", self.text, classes=["xref", "download"])
        return [link], []


class DoctorInstall(SphinxDirective):
    """The command that installs the wheel."""

    def run(self):
        wheel, site_url = wheel_of(self.env.app), self.config.site_url
        page = self.env.app.builder.get_target_uri(self.env.docname)
        # A package of this name on an index is not ours.
        from_page = f"torchrl-doctor --no-index --find-links {site_url}{page}"
        text = f"$ pip install {from_page if site_url else wheel}"
        return [nodes.literal_block(text, text, language="console")]


def setup(app):
    app.setup_extension("docs._ext.site.page_meta")
    app.setup_extension("docs._ext.support.page_state")
    app.add_role("doctor-wheel", DoctorWheel())
    app.add_directive("doctor-install", DoctorInstall)
    app.connect("builder-inited", make_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
