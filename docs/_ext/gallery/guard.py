"""Guard every tutorial while it runs.

Switch on with ``"docs._ext.gallery"`` in ``extensions`` and, in ``sphinx_gallery_conf``::

    "reset_argv": "docs._ext.gallery.guard.start_tutorial",
    "reset_modules": ["matplotlib", ..., "docs._ext.gallery.guard.finish_tutorial"],
    "reset_modules_order": "both",

Settings in ``conf.py``::

    tutorial_time_limit = 180  # seconds of wall time
    tutorial_time_limits = {"tutorials/memory/big.py": (240, "waits for a server to start")}

Each tutorial runs in a process of its own (see ``processes``). The limit bounds a hang; what a
tutorial may cost is the concern of ``cost``. A tutorial that exceeds its limit, emits a warning
(see ``warnings``), calls ``sys.exit`` or leaves a child process behind fails, is named, and runs
again in the next build. An assertion that fails says what it saw.

Writes ``<name>.stamp.json`` beside the page of a tutorial that passed (see ``stack``).
"""

import os
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path

from sphinx.errors import ConfigError, ExtensionError
from sphinx.util import logging
from sphinx_gallery import gen_rst

from docs._ext.gallery.children import children, end_children, end_server
from docs._ext.gallery.cost import cpu_seconds
from docs._ext.gallery.stack import write_stamp
from docs._ext.gallery.warnings import TutorialWarnings, record_run
from docs._ext.support.assertions import explain

logger = logging.getLogger(__name__)


class TutorialTimeoutError(Exception):
    """A tutorial ran longer than its limit."""


class TutorialExitError(Exception):
    """A tutorial tried to end the interpreter, and with it the build."""


@dataclass
class RunningTutorial:
    """What must be known to judge and clean up after one tutorial."""

    shown: str
    target: Path
    limit: float
    warnings: TutorialWarnings = field(default_factory=TutorialWarnings)
    children: set = field(default_factory=lambda: {child.pid for child in children()})
    executing: bool = False
    timed_out: bool = False
    cpu_seconds: float = 0.0
    images: list = field(default_factory=list)

    @property
    def too_long(self):
        """What to say about a tutorial that exceeded its limit."""
        return (
            f"{self.shown} ran longer than its limit of {self.limit} s; make it faster or give "
            "it an entry with a reason in tutorial_time_limits in conf.py"
        )


_settings = {}
_running = None
_finished = None  # the last one that ran in this process
_images = []  # of earlier runs: path, content, status


class GuardedBlock(getattr(gen_rst, "_exec_once", object)):
    """One code block; sphinx-gallery lets SystemExit end the build (not reported)."""

    def __call__(self):
        _running.executing = True
        used_before = cpu_seconds()
        try:
            with _running.warnings:
                super().__call__()
        except AssertionError as error:
            explain(error)
            raise
        except SystemExit as stop:
            raise TutorialExitError(
                f"{_running.shown} called sys.exit({stop.code!r}), which would end the build; "
                "let the script run to its end"
            ).with_traceback(stop.__traceback__) from None
        finally:
            _running.executing = False
            _running.cpu_seconds += cpu_seconds() - used_before


def read_settings(app, config):
    """config-inited: check the settings and keep them for the hooks, which get no app."""
    _images.clear()
    folders = [Path(app.srcdir, name) for name in config.sphinx_gallery_conf["examples_dirs"]]
    root = folders[0].resolve().parent
    for name, entry in config.tutorial_time_limits.items():
        if not (root / name).is_file():
            raise ConfigError(
                f"conf.py: tutorial_time_limits names {name!r}, which does not exist; "
                "remove the entry or correct the name"
            )
        if not (isinstance(entry, tuple | list) and len(entry) == 2 and str(entry[1]).strip()):
            raise ConfigError(
                f"conf.py: tutorial_time_limits[{name!r}] must be (seconds, 'reason')"
            )
    _settings.update(
        root=root,
        limit=config.tutorial_time_limit,
        limits=config.tutorial_time_limits,
    )


def name_and_limit(script):
    """A tutorial as it is shown, and its limit in seconds of wall time."""
    name = script.relative_to(_settings["root"]).as_posix()
    return name, _settings["limits"].get(name, (_settings["limit"],))[0]


def start_tutorial(gallery_conf, script_vars):
    """reset_argv hook, the only one that is told the script's path: arm the guard."""
    global _running
    target = Path(script_vars["target_file"])
    shown, limit = name_and_limit(Path(script_vars["src_file"]))
    _running = RunningTutorial(shown, target, limit)
    _running.images = _forget_earlier_run(target)
    signal.signal(signal.SIGALRM, _on_alarm)
    signal.setitimer(signal.ITIMER_REAL, limit)
    return []


def finish_tutorial(gallery_conf, fname, when):
    """reset_modules hook: judge the tutorial that just ran, clean up, write its stamp."""
    global _running, _finished
    if when == "before" or _running is None:
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    tutorial, _running = _running, None
    problems = [tutorial.too_long] if tutorial.timed_out else []
    if left := end_children(tutorial.children):
        problems.append(
            f"{tutorial.shown} left {len(left)} child process(es) running ({', '.join(left)}); "
            "shut down collectors and close environments before the script ends"
        )
    for problem in problems:
        logger.warning(problem, type="gallery_guard", subtype="tutorial")
    used_before = cpu_seconds()
    end_server()  # whose time counts from now on, with that of its workers
    tutorial.cpu_seconds += cpu_seconds() - used_before
    passed = Path(f"{tutorial.target}.md5").is_file()  # sphinx-gallery's word for it
    if passed and not problems:
        write_stamp(tutorial.target, tutorial.warnings.used, tutorial.cpu_seconds)
    _finished = tutorial


def take_account():
    """What the process that waits for a tutorial has to know of it."""
    return (_finished.images, _finished.warnings.used) if _finished else ([], [])


def settle(images, used):
    """Remember, in the process of the build, what the process of a tutorial took account of."""
    _images.extend(images)
    record_run(used)


def _on_alarm(signum, frame):
    _running.timed_out = True
    if _running.executing:
        raise TutorialTimeoutError(_running.too_long)


def _forget_earlier_run(target):
    """Without this a run that dies would leave the marks of the one before; return its images."""
    Path(f"{target}.md5").unlink(missing_ok=True)
    target.with_suffix(".stamp.json").unlink(missing_ok=True)
    images = []
    for image in target.parent.glob(f"images/**/sphx_glr_{target.stem}_*.*"):
        if re.fullmatch(r"\d{3}|thumb", image.stem.removeprefix(f"sphx_glr_{target.stem}_")):
            images.append((image, image.read_bytes(), image.stat()))
            image.unlink()
    return images


def give_back_times(app):
    """builder-inited, after the gallery: an image that came out the same is not a new one.

    Sphinx would read the pages again that it is a part of.
    """
    for path, content, stat in _images:
        if path.is_file() and path.read_bytes() == content:
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def setup(app):
    if not hasattr(gen_rst, "_exec_once"):
        raise ExtensionError(
            "gallery.guard: this sphinx-gallery has no gen_rst._exec_once to guard; "
            "install the version in requirements-docs.txt"
        )
    gen_rst._exec_once = GuardedBlock  # no setting wraps the execution of a block (not reported)
    # torchrl reads this at import; its log lines carry the time and a path.
    os.environ["RL_LOGGING_LEVEL"] = "ERROR"
    app.add_config_value("tutorial_time_limit", 60, "", types=[int, float])
    app.add_config_value("tutorial_time_limits", {}, "", types=[dict])
    app.connect("config-inited", read_settings, priority=900)
    app.connect("builder-inited", give_back_times, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
