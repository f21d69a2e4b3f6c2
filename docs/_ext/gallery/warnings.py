"""Make every warning in a tutorial an error, unless its message is listed with a reason.

Switch on with ``"docs._ext.gallery"`` in ``extensions``; ``guard`` applies it. In
``conf.py``, by the beginning of the message::

    tutorial_warnings_allowed = {r"regular expression": "why readers may ignore it"}

An entry that no tutorial needs any more is itself a warning (``gallery_warnings.unused``).
"""

import re
import warnings

from sphinx.errors import ConfigError
from sphinx.util import logging

from docs._ext.gallery.cache import galleries, rerun_everything

logger = logging.getLogger(__name__)

_allowed = {}  # the setting
_runs = []  # for each tutorial of this build, the patterns that it used


class CountedMessage:
    """A message pattern that remembers whether the warnings filter matched it."""

    def __init__(self, pattern):
        self.pattern = pattern
        self.used = False
        self._regex = re.compile(pattern)

    def match(self, text):
        found = self._regex.match(text)
        self.used = self.used or found is not None
        return found


class TutorialWarnings:
    """The filters of one tutorial: in force while its code runs, not while Sphinx writes."""

    def __init__(self):
        self._messages = [CountedMessage(pattern) for pattern in _allowed]
        # A filter only calls .match() on its message, so an object that keeps count fits.
        self._filters = [("ignore", message, Warning, None, 0) for message in self._messages]
        self._filters.append(("error", None, Warning, None, 0))

    @property
    def used(self):
        """The allowed patterns that matched."""
        return [message.pattern for message in self._messages if message.used]

    def __enter__(self):
        self._outside = _exchange_filters(self._filters)

    def __exit__(self, *exc_info):
        self._filters = _exchange_filters(self._outside)


def _exchange_filters(new):
    old = warnings.filters[:]
    warnings.resetwarnings()  # also forgets what was shown once and would not be shown again
    warnings.filters[:] = new
    return old


def read_allowances(app, config):
    """config-inited: check the setting and keep it for the tutorials, which get no app."""
    for pattern, reason in config.tutorial_warnings_allowed.items():
        if not str(reason).strip():
            raise ConfigError(f"conf.py: tutorial_warnings_allowed[{pattern!r}] needs a reason")
    _allowed.clear()
    _allowed.update(config.tutorial_warnings_allowed)
    _runs.clear()


def record_run(used):
    """Note which allowed patterns one tutorial used."""
    _runs.append(used)


def report_unused_allowances(app):
    """builder-inited, after the gallery: an allowed warning that nobody emits is a warning.

    Judged when every tutorial ran in this build.
    """
    if len(_runs) < sum(len(list(gallery.copies())) for gallery in galleries(app)):
        return
    unused = sorted(set(_allowed) - {pattern for used in _runs for pattern in used})
    for pattern in unused:
        logger.warning(
            "conf.py: tutorial_warnings_allowed: no tutorial emits %r any more; remove the entry",
            pattern,
            type="gallery_warnings",
            subtype="unused",
        )
    if unused:
        rerun_everything(app)


def setup(app):
    app.add_config_value("tutorial_warnings_allowed", {}, "", types=[dict])
    app.connect("config-inited", read_allowances, priority=900)
    app.connect("builder-inited", report_unused_allowances, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
