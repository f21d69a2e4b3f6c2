"""A small site of a few pages, built by Sphinx as the real one is."""

import copy
import os
import shutil

from tests.support import ROOT, sphinx_forks


class SmallSite:
    """Sources in ``docs``, given as name -> text, of which Sphinx makes ``html``.

    The *settings* stand for a ``conf.py`` where the sources have none.
    """

    def __init__(self, folder, sources, **settings):
        self.docs, self.html = folder / "docs", folder / "html"
        self.settings = {"project": "Toy", "html_theme": "basic", **settings}
        self.write(sources)

    def copy(self, folder):
        """This site with all it has built, in another folder, where Sphinx reads it anew."""
        other = copy.copy(self)
        other.docs, other.html = folder / "docs", folder / "html"
        for ours, theirs in ((self.docs, other.docs), (self.html, other.html)):
            shutil.copytree(ours, theirs)
        return other

    def write(self, sources):
        """Add or replace sources."""
        for name, text in sources.items():
            path = self.docs / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def append(self, name, text):
        """Add to the end of a source."""
        self.write({name: (self.docs / name).read_text(encoding="utf-8") + text})

    def edit(self, name, old, new):
        """Replace a part of a source."""
        text = (self.docs / name).read_text(encoding="utf-8")
        assert old in text
        self.write({name: text.replace(old, new)})

    def build(self, *options, **environment):
        """Build, without cleaning up first; the finished process. A warning is a failure."""
        if not (self.docs / "conf.py").exists():
            settings = (f"-D{name}={value}" for name, value in self.settings.items())
            options = ("-C", *settings, *options)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", **environment}
        options = ("-nWq", "--keep-going", *options, self.docs, self.html)
        return sphinx_forks.run(*options, env=environment)

    def built(self, *options, **environment):
        """This site, built without a warning."""
        done = self.build(*options, **environment)
        assert (done.returncode, done.stderr) == (0, "")
        return self

    def fails(self, *options, **environment):
        """Build with a warning or an error; what it says."""
        done = self.build(*options, **environment)
        assert done.returncode, "the build passed"
        return done.stderr

    def page(self, name):
        """The HTML of a page."""
        return (self.html / f"{name}.html").read_text(encoding="utf-8")
