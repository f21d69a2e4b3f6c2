"""Build the site, check that it is whole, and only then publish it to ``build/html``.

``make html`` calls this; by hand: ``.venv/bin/python tools/build_site.py [--site DIR]``.

Sphinx runs in a session of its own, so that everything a tutorial starts can be found and ended:
when the build takes too long, at Ctrl-C, and at the end. A build counts when Sphinx succeeds and
says so at its very end (a tutorial may end the interpreter with status 0), its log holds no
warning, every document, every address in ``docs/addresses.txt`` and every tutorial is there, and no
page shows a path of this machine.
After a failure ``build/html`` is the last whole site, or absent, and the next build reads every
page again: a warning about an unchanged page cannot turn green by repetition.

``--pattern REGEX`` (run matching tutorials only) and ``--no-gallery`` (run none) build a preview
in ``build/preview`` and publish nothing. With a pattern, warnings are shown and tolerated: pages
that did not run may lack what others refer to.

Below SITE: ``conf.py``, ``docs/`` (in which sphinx-gallery writes ``tutorials/`` and ``how-to/``),
``tutorials/``, ``how-to/`` and ``build/``. Needs Linux or macOS.
"""

import argparse
import fcntl
import filecmp
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # a script finds its own folder
from docs._ext.support import galleries
from tools import addresses

POLL_S = 0.2
STOP_GRACE_S = 3
LOG_TROUBLE = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b")
CAUSE = re.compile(
    r"^(?:(?=.*\b(?:WARNING|ERROR|CRITICAL)\b\W*\w)"
    r"|\s*sphinx\.errors\.\w+: (?!Here is a summary)"
    r"|\s+(?:\.\./)+(?=\S+ failed leaving traceback))(.+)$"
)
SHOWN_REASONS = 10
TEXT_FILES = {".html", ".js", ".json", ".md", ".xml", ".txt", ".ipynb", ".py", ".svg"}


class BuildError(Exception):
    """The site is not whole; the message says why and what to do."""


def main():
    args = parse_arguments()
    site = args.site.resolve()
    # Sphinx is in another session: it must go when this process is told to.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        with one_build_at_a_time(site):
            index = build(site, args)
    except BuildError as error:
        print(f"\nbuild failed: {error}\n{_state_of(site)}", file=sys.stderr)
        return 1
    except OSError as error:
        why = f"{error}; the build needs a checkout it can write to, and room on the disk"
        print(f"\nbuild failed: {why}\n{_state_of(site)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nbuild interrupted.\n{_state_of(site)}", file=sys.stderr)
        return 130
    print(f"\nopen {os.path.relpath(index)}  ({index.as_uri()})")
    return 0


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(__file__).resolve().parent.parent
    parser.add_argument("--site", type=Path, default=here, help="folder with conf.py")
    parser.add_argument("--pattern", help="preview: run only tutorials whose path matches")
    parser.add_argument("--no-gallery", action="store_true", help="preview: run no tutorial")
    parser.add_argument("--jobs", default="auto", help="processes that read and write pages")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for the whole build")
    return parser.parse_args()


def build(site, args):
    """Run Sphinx, check its result, publish it; return the page to open."""
    preview = args.no_gallery or args.pattern is not None
    if args.pattern is not None:
        check_pattern(site, args.pattern)
    work = site / "build" / ("preview" if preview else "work")
    html, green = work / "html", work / "green"
    if not green.exists():  # the last build failed or died: trust nothing it left
        shutil.rmtree(work / "doctrees", ignore_errors=True)
        shutil.rmtree(html, ignore_errors=True)
    green.unlink(missing_ok=True)
    _finish_interrupted_swap(site)

    options = ["-D", "plot_gallery=0"] if args.no_gallery else []
    if args.pattern is not None:
        options += ["-D", f"sphinx_gallery_conf.filename_pattern={args.pattern}"]
    else:
        options += ["-W", "--keep-going"]
    done = run_sphinx(site, work, options, args)

    problems = page_problems(html, done["pages"])
    if args.pattern is None:
        problems += log_problems(work / "build.log")
    if not preview:
        found = addresses.offered(html)
        problems += addresses.lost(found, site / "docs" / "addresses.txt")
        problems += tutorial_problems(site)
    problems += path_problems(html, site)
    if problems:
        raise BuildError("\n  ".join([f"{len(problems)} problem(s):", *problems]))
    if not preview and (new := addresses.unregistered(found, site / "docs" / "addresses.txt")):
        print(f"\n{len(new)} new address(es); register them with `make addresses`")
    green.touch()
    return (html if preview else publish(html, site / "build" / "html")) / "index.html"


def check_pattern(site, pattern):
    """Refuse a pattern that would quietly run nothing."""
    names = [script.relative_to(site).as_posix() for script in galleries.scripts(site)]
    try:
        found = any(re.search(pattern, name) for name in names)
    except re.error as error:
        raise BuildError(f"{pattern!r} is no regular expression: {error}") from None
    if not found:
        raise BuildError(f"no tutorial's path matches {pattern!r}; there are {', '.join(names)}")


def run_sphinx(site, work, options, args):
    """Run sphinx-build to its end and return what it wrote into complete.json."""
    run_dir = work / "run"
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    token = f"MANUAL_BUILD={uuid.uuid4().hex}"
    command = [sys.executable, "-m", "sphinx", "-c", ".", "-b", "html"]
    # CI=true switches colors on, and a color code before WARNING would hide it from log_problems.
    command += ["--no-color", "-n", "-j", args.jobs, "-d", str(work / "doctrees"), *options]
    command += ["docs", str(html_dir := work / "html")]
    html_dir.mkdir(exist_ok=True)
    environment = dict(
        os.environ,
        MPLBACKEND="Agg",
        MANUAL_RUN_DIR=str(run_dir),
        PYTHONUNBUFFERED="1",
        **dict([token.split("=")]),
    )
    with (work / "build.log").open("wb") as log, (work / "build.log").open("rb") as shown:
        # A file, not a pipe: a process that outlives Sphinx would keep a pipe open for ever.
        sphinx = subprocess.Popen(
            command, cwd=site, env=environment, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            stopped_because = watch(sphinx, shown, args)
        finally:
            survivors = end_processes(token, kill_now=sphinx.poll() is None)
            sphinx.wait()
        _show(shown)
    if stopped_because:
        raise BuildError(stopped_because)
    if sphinx.returncode != 0:
        why = reasons(work / "build.log") or ["see above"]
        raise BuildError(
            f"sphinx-build left with status {sphinx.returncode}:\n  " + "\n  ".join(why)
        )
    complete = _read_json(run_dir / "complete.json")
    if complete is None:
        raise BuildError("sphinx-build left with status 0 before it was done; see above")
    if survivors:
        raise BuildError(
            f"{len(survivors)} process(es) outlived the build and were killed: "
            f"{', '.join(survivors)}; a tutorial must end what it starts"
        )
    return complete


def watch(sphinx, shown, args):
    """Show progress until Sphinx ends; return the reason if it has to be stopped instead."""
    started = time.time()
    while sphinx.poll() is None:
        with suppress(subprocess.TimeoutExpired):  # it goes on: look again
            sphinx.wait(POLL_S)
        _show(shown)
        if time.time() - started > args.limit:
            return f"the build took longer than {args.limit:g} s (--limit) and was killed"
    return None


def end_processes(token, kill_now):
    """End every process of this build, also a daemon; return the names of those found."""
    name, _, value = token.partition("=")
    left = []
    deadline = time.monotonic() + (0 if kill_now else STOP_GRACE_S)
    while left := _processes_with(name, value):
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    names = []
    for process in left:
        try:
            names.append(" ".join(process.cmdline()[:3]) or process.name())
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=STOP_GRACE_S)
    return sorted(names)


def log_problems(log):
    """Warnings that did not pass through Sphinx, and so did not count under -W."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"the log says: {line.strip()}" for line in lines if LOG_TROUBLE.search(line)]


def reasons(log):
    """The lines of the log that name a cause; Sphinx buries them above advice of its own."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    found = [match.group(1) for line in lines if (match := CAUSE.search(line))]
    found = list(dict.fromkeys(found))
    if len(found) > SHOWN_REASONS:
        found[SHOWN_REASONS:] = [f"and {len(found) - SHOWN_REASONS} more, see above"]
    return found


def page_problems(html, pages):
    """Documents of the build whose page is absent or cut off."""
    problems = []
    for document, address in pages.items():
        page = html / address
        if not page.is_file():
            problems.append(f"{address} is missing, the page of docs/{document}.rst")
        elif not page.read_text(encoding="utf-8").rstrip().endswith("</html>"):
            problems.append(f"{address} is cut off")
    return problems


def tutorial_problems(site):
    """Tutorials without the traces of an execution that passed, or not offered as they are."""
    problems = []
    for script in galleries.scripts(site):
        name = script.relative_to(site).as_posix()
        copy = site / "docs" / name
        stamp, checksum = copy.with_suffix(".stamp.json"), Path(f"{copy}.md5")
        if not (stamp.is_file() and checksum.is_file()):
            problems.append(f"{name} was not executed; check its topic's folder and order files")
        elif copy.read_bytes() != script.read_bytes():
            problems.append(f"{name} differs from the copy that readers download")
    return problems


def path_problems(html, site):
    """Pages that show where they were built."""
    roots = {str(site), str(Path.home())}
    if sys.prefix != sys.base_prefix:  # else it is a common word like /usr
        roots.add(sys.prefix)
    if tempfile.gettempdir() != "/tmp":
        roots.add(tempfile.gettempdir())
    literal = "|".join(re.escape(f"{root}/") for root in sorted(roots) if root != "/")
    leak = re.compile(rf"(?:{literal}|/tmp/tmp\w{{8}}|/site-packages/)[^\s\"'<]*")
    problems = []
    for page in sorted(html.rglob("*")):
        if page.suffix in TEXT_FILES and page.is_file():
            found = leak.search(page.read_text(encoding="utf-8", errors="replace"))
            if found:
                name = page.relative_to(html).as_posix()
                problems.append(f"{name} shows a path of this machine: {found.group()[:100]}")
    return problems


def publish(html, public):
    """Replace the public folder by renaming: at every moment it is absent or whole.

    A file that it has already, byte for byte, is linked, not copied; nothing writes into either.
    """
    new, old = public.with_name("html.new"), public.with_name("html.old")

    def bring(source, target):
        had = public / Path(source).relative_to(html)
        if had.is_file() and filecmp.cmp(source, had, shallow=False):
            os.link(had, target)
        else:
            shutil.copy2(source, target)

    for folder in (new, old):
        shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns(".buildinfo*")
    shutil.copytree(html, new, ignore=ignored, copy_function=bring)
    if public.exists():
        public.rename(old)
    new.rename(public)
    shutil.rmtree(old, ignore_errors=True)
    return public


@contextmanager
def one_build_at_a_time(site):
    """Hold the lock of this checkout, or raise with the process that holds it."""
    lock_path = site / "build" / "lock"
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    with lock_path.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise BuildError(
                f"another build runs in this folder (process {lock.read().strip() or 'unknown'}); "
                "wait for it or stop it"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _state_of(site):
    if (site / "build" / "html" / "index.html").is_file():
        return "build/html is untouched: it still holds the last whole site."
    return "build/html was not written: there is no whole site yet."


def _finish_interrupted_swap(site):
    public = site / "build" / "html"
    old = public.with_name("html.old")
    if old.exists() and not public.exists():
        old.rename(public)


def _processes_with(name, value):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def _show(log):
    sys.stdout.write(log.read().decode("utf-8", errors="replace"))
    sys.stdout.flush()


def _interrupt(number, frame):
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
