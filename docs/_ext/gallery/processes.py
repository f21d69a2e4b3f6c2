"""Give each tutorial a process of its own, as many at once as cores are free.

Switch on with ``"docs._ext.gallery"`` in ``extensions``. Settings in ``conf.py``::

    gallery_preload = ["torchrl.collectors"]  # imported once, before the first tutorial
    tutorial_time_grace = 15  # seconds past its limit before the process of a tutorial is killed

sphinx-gallery executes one script after another, all in the process of the build. Here each is
executed in a fork of that process, and sphinx-gallery is handed what it would have got: no tutorial
sees what another one did, and what is written does not depend on the order in which they end. What
ignores its limit (see ``guard``) is killed with its children; that, and a process that ends early,
ends the build.
"""

import atexit
import contextlib
import gc
import multiprocessing.util
import pickle
import re
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx_gallery import gen_rst

from docs._ext.gallery import guard
from docs._ext.gallery.cache import galleries
from docs._ext.gallery.order import position
from docs._ext.support.fork import POLL_S, Fork, preload, slots

logger = logging.getLogger(__name__)

KILL_S = 5  # a killed process is gone by then
_generate_here = gen_rst.generate_file_rst
_build = {}  # of the build that runs: app, and what sphinx-gallery will be handed, by script


def begin(app):
    """builder-inited, before the gallery: it asks for one page after another, and gets no app."""
    _build.clear()
    _build.update(app=app, generated={}, ran=[])


def generate(fname, target_dir, src_dir, gallery_conf):
    """In place of ``gen_rst.generate_file_rst``; the first script that is due has all executed."""
    script = Path(src_dir, fname).resolve()
    if script not in _build["generated"] and is_due(script, Path(target_dir, fname), gallery_conf):
        execute(sorted({*due_scripts(gallery_conf), script}, key=position), gallery_conf)
    if script in _build["generated"]:
        return _build["generated"].pop(script)
    return _generate_here(fname, target_dir, src_dir, gallery_conf)


def is_due(script, copy, gallery_conf):
    """Whether sphinx-gallery would execute *script*."""
    checksum = Path(f"{copy}.md5")
    return gen_rst.executable_script(script, gallery_conf) and not (
        checksum.is_file() and checksum.read_text() == gen_rst.get_md5sum(script, mode="t")
    )


def due_scripts(gallery_conf):
    """The scripts of every folder that sphinx-gallery will come to and have to execute."""
    for script, copy in [pair for one in galleries(_build["app"]) for pair in one.copies()]:
        listed = (script.parent / "GALLERY_HEADER.rst").is_file()
        ignored = re.search(gallery_conf["ignore_pattern"], str(script))
        if listed and not ignored and is_due(script, copy, gallery_conf):
            yield script


def execute(scripts, gallery_conf):
    """Generate the pages of *scripts*, each in a process of its own."""
    preload(_build["app"].config.gallery_preload)
    atexit.register(gc.unfreeze)  # else extension modules call leaked what nobody may collect
    waiting, running, free = list(reversed(scripts)), {}, slots(_build["app"])
    with tempfile.TemporaryDirectory() as folder:
        try:
            while waiting or running:
                while waiting and (slot := free.take()):
                    script = waiting.pop()
                    answer = Path(folder, f"{len(waiting)}.pickle")
                    logger.info("executing %s", guard.name_and_limit(script)[0])
                    process = Fork(_answer, script, gallery_conf, answer)
                    running[script] = process, answer, slot, time.monotonic()
                for script, (process, answer, slot, began) in list(running.items()):
                    if _ended(script, process, began):
                        del running[script]
                        free.give(slot)
                        _take(script, process.returncode, answer)
                time.sleep(POLL_S)
        finally:
            for process, *_ in running.values():
                _kill(process)


def _answer(script, gallery_conf, answer):
    """In the fork: generate one page, and write down what the build has to know.

    What multiprocessing does at the end of an interpreter has no public name; not reported.
    """
    copies = dict(pair for gallery in galleries(_build["app"]) for pair in gallery.copies())
    target = copies[script].parent
    (target / "images" / "thumb").mkdir(parents=True, exist_ok=True)
    collector = logging.LogCollector()
    with collector.collect():
        try:
            page = _generate_here(script.name, target, script.parent, gallery_conf)
        except Exception as error:
            page = error  # sphinx-gallery refuses the script, and with it the build
    logging.convert_serializable(collector.logs)
    answer.write_bytes(pickle.dumps((page, collector.logs, guard.take_account())))
    gc.collect()  # a fork runs no finalizer by itself
    multiprocessing.util._exit_function()
    return 0


def _ended(script, process, began):
    """Whether a process ended; one that is far beyond the limit of its tutorial is killed."""
    shown, limit = guard.name_and_limit(script)
    grace = _build["app"].config.tutorial_time_grace
    if process.poll() is None and time.monotonic() - began > limit + grace:
        raise ExtensionError(
            f"{shown} hangs: it ignored its limit of {limit} s and was killed; look for a "
            "blocking call, or an except that catches everything"
        )
    return process.poll() is not None


def _take(script, status, answer):
    shown, _ = guard.name_and_limit(script)
    try:
        page, logs, account = pickle.loads(b"" if status else answer.read_bytes())
    except (FileNotFoundError, EOFError, pickle.UnpicklingError):
        raise ExtensionError(
            f"{shown} ended its process (with status {status}); a tutorial must not call "
            "os._exit or crash the interpreter"
        ) from None
    for record in logs:
        logger.handle(record)
    if isinstance(page, Exception):
        raise page
    guard.settle(*account)
    _build["generated"][script] = page
    _build["ran"].append(shown.removesuffix(".py"))


def _kill(process):
    """End a process with everything it started."""
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it back
        process.wait(KILL_S)


def outdate_tutorials_that_ran(app, env, added, changed, removed):
    """env-get-outdated: a figure or stamp may differ although the page's text does not."""
    return sorted(_build["ran"])


def setup(app):
    gen_rst.generate_file_rst = generate
    app.add_config_value("gallery_preload", [], "", types=[list])
    app.add_config_value("tutorial_time_grace", 15, "", types=[int, float])
    app.connect("builder-inited", begin, priority=100)
    app.connect("env-get-outdated", outdate_tutorials_that_ran)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
