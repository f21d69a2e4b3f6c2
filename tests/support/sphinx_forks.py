"""``python -m sphinx`` without its imports, which take longer than the build of a small site.

Each build is a fork of one process, started with the first build of a pytest worker, that has
imported Sphinx, theme and gallery, and nothing of this repository: a fork imports the extensions
itself, from wherever its ``conf.py`` finds them. A build that asks for a PYTHONHASHSEED is a fresh
process, because a fork has the seed of its parent.

As a program this is the process: it reads one build a line, a JSON object, and answers its status.
"""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 600  # a bound for a hung build, not an expectation
SEED = "PYTHONHASHSEED"


def run(*arguments, cwd=None, env=None, check=False):
    """What ``python -m sphinx ARGUMENTS`` prints and returns, in *cwd* with the environment *env*.

    A ``subprocess.CompletedProcess`` with text; with *check* a failure is an AssertionError.
    """
    command = [sys.executable, "-m", "sphinx", *map(str, arguments)]
    env = dict(os.environ if env is None else env)
    if env.get(SEED) == os.environ.get(SEED):
        done = _fork(command, str(Path(cwd or ".").absolute()), env)
    else:
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    assert not (check and done.returncode), done.stdout + done.stderr
    return done


def _fork(command, cwd, env):
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("output", "errors")]
        order = {"arguments": command[3:], "cwd": cwd, "env": env}
        server = _server()
        server.stdin.write(json.dumps(order | {"files": [str(file) for file in files]}) + "\n")
        server.stdin.flush()
        status = json.loads(server.stdout.readline())
        output, errors = (file.read_text(encoding="utf-8") for file in files)
    if status is None:
        raise subprocess.TimeoutExpired(command, LIMIT_S, output, errors)
    return subprocess.CompletedProcess(command, status, output, errors)


@functools.cache
def _server():
    """The process that has the imports; it ends with this one."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    server = subprocess.Popen(
        [sys.executable, __file__],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)
    return server


# -- In the process that has the imports -----------------------------------------------


def build(order):
    """In a fork: be ``python -m sphinx``; return its status."""
    import sphinx.cmd.build

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, file in enumerate(order["files"], 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [order["cwd"], *own]
    sys.argv = ["sphinx", *order["arguments"]]
    try:
        status = sphinx.cmd.build.main(order["arguments"])
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    atexit._run_exitfuncs()
    return status


def main():
    sys.path[:1] = [str(ROOT)]
    from sphinx.application import builtin_extensions

    from docs._ext.support.fork import Fork, preload

    preload([*builtin_extensions, "sphinx.cmd.build", "sphinx_gallery.gen_gallery"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "docs"]:
        del sys.modules[name]  # a site may have a copy of its own
    for line in sys.stdin:
        process = Fork(build, json.loads(line))
        try:
            status = process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = None
        print(json.dumps(status), flush=True)


if __name__ == "__main__":
    main()
