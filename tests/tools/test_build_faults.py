"""Faults that a build must survive: it names the culprit and never publishes a half site."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from tests.support.fixture_site import SCRIPTS, Site, tree
from tests.support.search import index_of

pytestmark = pytest.mark.slow

# Commands to look for afterwards, unlike those of any other run of these tests.
NAP, LONG_NAP, DAEMON = (["sleep", f"{seconds}.{os.getpid()}"] for seconds in (600, 601, 602))

# Pages that Sphinx writes without reading a document.
WITHOUT_DOCUMENT = ["genindex.html"]

# For conf.py: list who uses matplotlib, and say who reads and what the build imported.
WATCHED = """
import os

BUILD = os.getpid()
sphinx_gallery_conf["backreferences_dir"] = "tutorials/_backreferences"
sphinx_gallery_conf["doc_module"] = ("matplotlib",)

def setup(app):
    app.connect("source-read", lambda *_: print("forked" if os.getpid() != BUILD else "here"))
    heavy = {"matplotlib", "torch", "torchrl"}
    app.connect("build-finished", lambda *_: print("imported", sorted(heavy & {*sys.modules})))
"""

# Culprits that one build reports together: name -> code, and what the report must contain.
CULPRITS = {
    "raising": ('raise KeyError("no such key")', ["raising.py", "KeyError: 'no such key'"]),
    "hanging": (
        "while True:\n    pass",
        ["tutorials/basics/hanging.py ran longer than its limit of 2 s", "tutorial_time_limits"],
    ),
    "late": (
        "import time\ntry:\n    time.sleep(60)\nexcept Exception:\n    pass",
        ["tutorials/basics/late.py ran longer than its limit of 2 s"],
    ),
    "asserting": (
        "N = 2\n\n# %%\n# One more is one. It is not.\nassert N + 1 == 1",
        ["asserting.py", "assert N + 1 == 1", "N + 1 = 3", "says there: One more is one. It is"],
    ),
    "exiting": (
        "import sys\nsys.exit(0)",
        ["tutorials/basics/exiting.py called sys.exit(0)", "let the script run to its end"],
    ),
    "warning": (
        'import warnings\nwarnings.warn("old name", DeprecationWarning)',
        ["warning.py", "DeprecationWarning: old name"],
    ),
    "parent": (
        f"import subprocess\nsubprocess.Popen({NAP})\nprint('started')",
        ["tutorials/basics/parent.py left 1 child process(es) running (sleep)", "shut down"],
    ),
    "markup": (
        "# %%\n# .. csv-table:: T\n#\n#    a, b\n\nprint(1)",
        [
            "tutorials/basics/markup.py: the notebook cannot show '.. csv-table::'",
            "add a converter",
        ],
    ),
    "leaking": (
        "print('2026-01-02 03:04:05,678 [torchrl][INFO] saved to /home/me/run/x.pt')\n"
        "print(object())",
        [
            "leaking.py prints an absolute path: '/home/me/run/x.pt'",
            "leaking.py prints a log line with a time: '2026-01-02 03:04:05,678",
            "leaking.py prints the address of an object: '0x",
            "same on every machine",
        ],
    ),
    "guide_raising": (
        'raise KeyError("not in a guide")',
        ["guide_raising.py", "KeyError: 'not in a guide'"],
    ),
    "guide_hanging": (
        "while True:\n    pass",
        ["how-to/guide_hanging.py ran longer than its limit of 2 s", "tutorial_time_limits"],
    ),
    "guide_parent": (
        f"import subprocess\nsubprocess.Popen({NAP})\nprint('started')",
        ["how-to/guide_parent.py left 1 child process(es) running (sleep)", "shut down"],
    ),
    "guide_leaking": ("print('/home/me/x')", ["how-to/guide_leaking.py prints an absolute path"]),
    "wordless": (
        "import matplotlib.pyplot as plt\nplt.plot([1, 0])",
        ["tutorials/basics/wordless.py: figure 1 has no alternative text", "set_label("],
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A site that was built once."""
    site = Site(tmp_path_factory.mktemp("whole") / "site")
    status, output = site.build()
    assert status == 0, output
    return site


@pytest.fixture
def site(whole, tmp_path):
    """A copy of the built site."""
    return whole.copy(tmp_path / "site")


def folder_of(name):
    """Where a culprit stands: in a topic, or in a gallery without topics."""
    return "how-to" if name.startswith("guide_") else "tutorials/basics"


@pytest.fixture(scope="module")
def culprits(whole, tmp_path_factory):
    """A built site to which all culprits are added, built twice: both outputs, and the site."""
    site = Site(tmp_path_factory.mktemp("culprits") / "site")
    shutil.copytree(whole.public, site.public)
    before = tree(site.public)
    for name, (code, _) in CULPRITS.items():
        site.tutorial(name, code, folder_of(name))
    slow = [f"{folder_of(name)}/{name}.py" for name in ("hanging", "late", "guide_hanging")]
    limits = dict.fromkeys(slow, (2, "must fail soon"))
    site.append("conf.py", f"\ntutorial_time_limits = {limits}\ntutorial_time_grace = 60\n")
    results = [site.build(), site.build()]
    assert tree(site.public) == before
    return results


@pytest.mark.parametrize("name", CULPRITS)
@pytest.mark.parametrize("attempt", [0, 1], ids=["first", "repeated"])
def test_culprit_is_named(culprits, name, attempt):
    _, output = culprits[attempt]
    for part in CULPRITS[name][1]:
        assert part in output


@pytest.mark.parametrize("attempt", [0, 1], ids=["first", "repeated"])
def test_culprits_fail_the_build(culprits, attempt):
    status, output = culprits[attempt]
    assert status == 1
    assert "build/html is untouched: it still holds the last whole site." in output


def test_no_child_survives(culprits):
    left = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == NAP]
    assert left == []


def fails(site, *parts, **environment):
    """Build; assert failure, every part of the message, and that the old site is whole."""
    before = tree(site.public)
    status, output = site.build(**environment)
    assert status == 1, output
    for part in parts:
        assert part in output
    assert tree(site.public) == before
    assert "build/html is untouched" in output
    return output


def succeeds(site, *options, **environment):
    status, output = site.build(*options, **environment)
    assert status == 0, output
    return output


def test_swallowed_alarm_is_killed_from_outside(site):
    code = f"""
    import subprocess, time
    child = subprocess.Popen({LONG_NAP}, start_new_session=True)
    while True:
        try:
            time.sleep(60)
        except Exception:  # the fault under test: a script that swallows its time limit
            continue
    """
    site.tutorial("stubborn", textwrap.dedent(code))
    site.append("conf.py", "\ntutorial_time_limit = 5\n")
    fails(site, "tutorials/basics/stubborn.py hangs: it ignored its limit of 5 s", "killed")
    left = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == LONG_NAP]
    assert left == []


FAKE_TORCH = """
import types

cuda = types.SimpleNamespace(is_available=lambda: False)
float32 = None
threads = 5


def get_num_threads():
    return threads


def set_num_threads(number):
    global threads
    threads = number


def set_default_dtype(dtype):
    pass


set_default_device = set_grad_enabled = set_default_dtype
"""


SEES_MARKS = """
import fractions, os

print("marked" if hasattr(fractions, "mark") or "MARK" in os.environ else "unmarked")
fractions.mark = os.environ["MARK"] = "was here"
"""
SERVES = """
import multiprocessing.forkserver, time

server = multiprocessing.forkserver._forkserver
print("no server yet" if server._forkserver_pid is None else "a server runs already")
worker = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(0,))
worker.start()
worker.join()
print("a server of its own" if server._forkserver_pid else "no server")
"""
BURNS = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
LETS_BURN = f"import subprocess, sys\ndone = subprocess.run([sys.executable, '-c', {BURNS!r}])"
PAIR = ("before", "next")


@pytest.fixture(scope="module")
def alone(whole, tmp_path_factory):
    """A site whose tutorials would notice each other, built."""
    site = whole.copy(tmp_path_factory.mktemp("alone") / "site")
    for place in PAIR:
        site.tutorial(f"marks_{place}", SEES_MARKS)
        site.tutorial(f"serves_{place}", SERVES)
    site.tutorial("busy", f"{BURNS}\n{LETS_BURN}")
    site.tutorial("idle", "")
    site.append("conf.py", '\ngallery_preload = ["fractions"]\n')
    succeeds(site)
    return site


@pytest.mark.parametrize("place", PAIR)
def test_tutorials_see_nothing_of_each_other(alone, place):
    """Whichever comes first, and although both are forks of one process."""
    page = (alone.public / f"tutorials/basics/marks_{place}.html").read_text()
    assert ">unmarked\n" in page


@pytest.mark.parametrize("place", PAIR)
def test_server_of_a_tutorial_ends_with_it(alone, place):
    """Its workers would hand what this tutorial preloaded to the next one."""
    page = (alone.public / f"tutorials/basics/serves_{place}.html").read_text()
    assert "no server yet\na server of its own" in page


def test_processor_time_is_stamped(alone):
    """Of the code and the processes it waited for; a script without code took none."""

    def seconds(name):
        stamp = (alone.generated / f"basics/{name}.stamp.json").read_text()
        return json.loads(stamp)["cpu_seconds"]

    assert seconds("idle") == 0
    assert seconds("busy") >= 1


def test_number_of_threads_is_restored(site):
    """The first tutorial imports torch and lowers the number in the same cell."""
    fake = site.root / "fake"
    fake.mkdir()
    (fake / "torch.py").write_text(FAKE_TORCH)
    site.tutorial("aside", "import torch\ntorch.set_num_threads(1)\nprint('set')")
    site.tutorial("later", "import torch\nprint(f'{torch.get_num_threads()} threads')")
    site.append("conf.py", '\ngallery_stack = ["torch"]\n')
    succeeds(site, PYTHONPATH=str(fake))
    assert "5 threads" in (site.public / "tutorials/basics/later.html").read_text()


def test_os_exit_is_noticed(site):
    site.tutorial("leaver", "import os\nos._exit(0)")
    fails(site, "tutorials/basics/leaver.py ended its process", "must not call os._exit")


def test_a_crash_after_the_last_line_is_noticed(site):
    site.tutorial(
        "crashing",
        "import multiprocessing.util, os\n"
        "multiprocessing.util.Finalize(None, os._exit, args=[7], exitpriority=1)",
    )
    fails(site, "tutorials/basics/crashing.py ended its process (with status 7)")


def test_what_sphinx_gallery_refuses_is_its_own_error(site):
    site.tutorial("untitled", "")
    site.write("tutorials/basics/untitled.py", '"""\n.. note:: No title.\n"""\n')
    output = fails(site, "untitled.py", "for the example title")
    assert "ended its process" not in output


def test_daemon_is_noticed_and_killed(site):
    code = (
        "import subprocess\n"
        f"subprocess.run(['sh', '-c', 'setsid {' '.join(DAEMON)} >/dev/null 2>&1 &'], check=True)"
    )
    site.tutorial("daemon", code)
    fails(site, "1 process(es) outlived the build and were killed: " + " ".join(DAEMON))
    left = [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == DAEMON]
    assert left == []


BARE_MACHINE = """
import socket, sys, types

def refuse(event, args):
    remote = event == "socket.connect" and args[0].family != socket.AF_UNIX
    if event == "socket.getaddrinfo" or (remote and not str(args[1][0]).startswith("127.")):
        print("NETWORK", event, args, file=sys.stderr)
        raise OSError("no network")

sys.addaudithook(refuse)
sys.modules["triton"] = None  # find_spec answers None, import raises ModuleNotFoundError
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_available=lambda: False)
"""


def test_no_network_no_cuda_no_triton(site):
    """The build asks no other host for anything, and a tutorial says what it cannot show."""
    hook = site.root / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(BARE_MACHINE)
    site.tutorial(
        "kernel",
        "import importlib.util\nimport torch\n"
        "fast = torch.cuda.is_available() and importlib.util.find_spec('triton')\n"
        "print('Triton' if fast else 'No CUDA and no Triton here.')",
    )
    site.append("conf.py", "\n# rerun all\n")
    output = succeeds(site, PYTHONPATH=str(hook))
    assert "NETWORK" not in output
    page = site.public / "tutorials/basics/kernel.html"
    assert "No CUDA and no Triton here." in page.read_text()
    stamp = json.loads((site.generated / "basics/kernel.stamp.json").read_text())
    assert stamp["device"] == "cpu"
    assert stamp["date"] == "2023-11-14T22:13:20Z"  # EPOCH
    probe = [sys.executable, "-c", "import socket; socket.create_connection(('192.0.2.1', 80))"]
    blocked = subprocess.run(
        probe, env={**os.environ, "PYTHONPATH": str(hook)}, capture_output=True, check=False
    )
    assert b"no network" in blocked.stderr


def test_stack_that_does_not_load(site):
    """A torchrl whose extension was built for another torch."""
    fake = site.root / "fake" / "torchrl"
    fake.mkdir(parents=True)
    (fake / "__init__.py").touch()
    (fake / "_torchrl.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    site.append("conf.py", '\ngallery_stack_probe = "torchrl._torchrl"\n')
    site.log_runs()
    parts = ["torchrl._torchrl does not load with torch ", "undefined symbol: _ZN3c10"]
    parts += ["No tutorial was run.", "--reinstall -r requirements-docs.txt"]
    for _ in range(2):
        fails(site, *parts, PYTHONPATH=str(site.root / "fake"))
        assert site.runs() == []


def test_bad_reference_fails_again_when_repeated(site):
    site.append("docs/other.rst", "\nSee :ref:`nothing-there`.\n")
    for _ in range(2):
        output = fails(site, "other.rst:", "undefined label: 'nothing-there'")
        assert "undefined label: 'nothing-there'" in output.partition("build failed: ")[2]


def test_vanished_target_is_noticed_on_an_unchanged_page(site):
    succeeds(site)  # in the copied folder Sphinx reads everything once
    page = (site.root / "docs/other.rst").read_text()
    site.write("docs/other.rst", page.replace(".. _a-section:\n", ""))
    for _ in range(2):
        fails(site, "linking.rst:", "undefined label: 'a-section'")


def test_deleted_tutorial_leaves_nothing(site):
    site.tutorial("short", "print('short')", "how-to")
    succeeds(site)
    (site.root / "tutorials/basics/sums.py").unlink()
    site.write("tutorials/basics/order.txt", "figure\n")
    (site.root / "how-to/count.py").unlink()
    site.write("how-to/order.txt", "short\n")
    succeeds(site)
    files = [*tree(site.public), *tree(site.root / "docs")]
    assert [name for name in files if "sums" in name or "count." in name] == []
    assert "how-to/short.html" in files
    assert "sums" not in str(index_of(site.public))


def test_deleted_address_fails(site):
    site.append("docs/addresses.txt", "tutorials/basics/promised.html\n")
    cure = "write '.. redirect-from:: tutorials/basics/promised.html'"
    fails(site, "addresses.txt:4: tutorials/basics/promised.html is not in the site", cure)


def test_log_has_no_colors(site):
    """Continuous integration switches them on; they would hide a warning from the last check."""
    status, output = site.build(CI="true", FORCE_COLOR="1")
    assert status == 0, output
    assert not re.search(r"\x1b\[\d+m", output)


def test_what_runs_again(site):
    """Edited: itself. Nothing: none. Another extension: none. Another conf.py or helper: all.

    Pages that show the thumbnail of an edited tutorial are left alone: they would be read again for
    a file that holds what it held before. Another version of an extension reads every page: what
    the old one remembered would be shown, or crash the new one.
    """
    site.log_runs()
    site.append("conf.py", "\n# another conf\n")
    assert "changed: every tutorial runs" in succeeds(site)
    assert site.runs() == SCRIPTS
    site.append("tutorials/basics/figure.py", "\nprint('more')\n")
    assert " 0 added, 1 changed, 0 removed" in succeeds(site)
    assert site.runs() == ["tutorials/basics/figure.py"]
    site.append("docs/other.rst", "\nMore text.\n")
    output = succeeds(site)
    assert site.runs() == []
    assert " 0 added, 1 changed, 0 removed" in output
    assert "More text." in site.public.joinpath("other.html").read_text()
    site.append("docs/_ext/site/search_index.py", "\n# another version\n")
    pages = len(list(site.public.rglob("*.html"))) - len(WITHOUT_DOCUMENT)
    assert f" {pages} added, 0 changed, 0 removed" in succeeds(site)
    assert site.runs() == []
    site.append("docs/_ext/gallery/stack.py", "\n# another helper\n")
    succeeds(site)
    assert site.runs() == SCRIPTS


def test_a_download_that_was_written_over_is_made_again(site):
    """sphinx-gallery writes notebooks as well, over those that a build does not make anew."""
    succeeds(site)
    notebook = site.generated / "basics" / "figure.ipynb"
    archive = notebook.with_suffix(".zip")
    before = notebook.read_bytes(), archive.read_bytes()
    for path in (notebook, archive):
        path.write_bytes(b"another")
        succeeds(site)
        assert (notebook.read_bytes(), archive.read_bytes()) == before


def test_a_build_costs_what_changed(site):
    """Without a change no file is new; no build without a tutorial that is due imports its stack.

    Sphinx copies no download that is there and forks no reader of a single page, and the gallery
    leaves no file for each object.
    """
    site.append("conf.py", WATCHED)
    assert "forked" in succeeds(site, "--jobs", "2")
    before = {path: path.stat() for path in (site.root / "build").rglob("*") if path.is_file()}
    output = succeeds(site)
    assert "imported []" in output
    assert "copying downloadable files" not in output
    (listed,) = site.generated.glob("_backreferences/*")  # and no file for each object
    assert "figure.py" in json.dumps(json.loads(listed.read_text())["matplotlib.pyplot.plot"])
    published = [path for path in before if site.public in path.parents]
    assert new_files(published, before) == set()
    downloads = [path for path in before if "work/html/_downloads/" in path.as_posix()]
    assert len(downloads) > len(SCRIPTS)
    assert [path for path in downloads if path.stat().st_ctime_ns != before[path].st_ctime_ns] == []
    site.append("docs/other.rst", "\nQuantiles.\n")
    output = succeeds(site, "--jobs", "2")
    assert "imported []" in output
    assert "here" in output.split()
    assert "forked" not in output
    assert new_files(published, before) == {"other", "search"}


def new_files(paths, before):
    """The names of the files that were written since; the copy of an old one has its time."""
    new = [path for path in paths if path.stat().st_mtime_ns != before[path].st_mtime_ns]
    return {path.name.partition(".")[0] for path in new}


def test_order_files(site):
    site.append("tutorials/order.txt", "invented\nmore\n")
    site.write("tutorials/basics/order.txt", "figure\nghost\n")
    (site.root / "tutorials/more/GALLERY_HEADER.rst").unlink()
    shutil.copy(site.root / "tutorials/basics/sums.py", site.root / "tutorials/stray.py")
    site.tutorial("two words", "pass")
    site.write("how-to/order.txt", "gone\n")
    fails(
        site,
        "WARNING: tutorials/stray.py: a tutorial stands in the folder of a topic; move it",
        "WARNING: tutorials/more: without GALLERY_HEADER.rst nothing here is run; add it",
        "WARNING: tutorials/order.txt: 'invented' is not a topic of tutorials/; remove it",
        "WARNING: tutorials/order.txt: 'more' is listed twice",
        "WARNING: tutorials/basics/order.txt: 'sums' is a tutorial of tutorials/basics/ but not",
        "WARNING: tutorials/basics: 'two words' is an address; use a-z, 0-9 and _ in it",
        "WARNING: tutorials/basics/order.txt: 'ghost' is not a tutorial of tutorials/basics/",
        "WARNING: how-to/order.txt: 'gone' is not a tutorial of how-to/; remove it",
        "WARNING: how-to/order.txt: 'count' is a tutorial of how-to/ but not listed; add it",
    )


def test_a_figure_is_a_part_of_its_page_and_a_thumbnail(whole):
    page = whole.public.joinpath("tutorials/basics/figure.html").read_text(encoding="utf-8")
    label = "A line that rises from zero to one."
    assert f'<svg role="img" aria-label="{label}"' in page
    assert "currentColor" in page
    assert "#000000" not in page
    twin = whole.public.joinpath("tutorials/basics/figure.html.md").read_text(encoding="utf-8")
    assert f"Chart: {label}" in twin
    index = whole.public.joinpath("tutorials/index.html").read_text(encoding="utf-8")
    assert "_images/sphx_glr_figure_thumb.svg" in index
    assert whole.public.joinpath("_images/sphx_glr_figure_thumb.svg").is_file()
    script = whole.public.joinpath("_downloads").rglob("figure.py")
    assert "rcParams" not in next(script).read_text(encoding="utf-8")


def test_order_is_the_one_of_the_files(whole):
    index = whole.public.joinpath("tutorials/index.html").read_text()
    assert index.index("more/words.html") < index.index("basics/sums.html")
    assert index.index("basics/sums.html") < index.index("basics/figure.html")


def test_settings(site):
    site.tutorial("warned", 'import warnings\nwarnings.warn("gone in 2.0", FutureWarning)')
    site.append("conf.py", '\ntutorial_warnings_allowed = {"gone in": "r", "never seen": "r"}\n')
    for _ in range(2):
        output = fails(site, "no tutorial emits 'never seen' any more; remove the entry")
    assert "no tutorial emits 'gone in'" not in output
    assert "FutureWarning" not in output
    site.append(
        "conf.py", '\ntutorial_time_limits = {"tutorials/basics/gone.py": (9, "is slow")}\n'
    )
    fails(site, "tutorial_time_limits names 'tutorials/basics/gone.py'", "remove the entry")


def test_page_with_a_path_of_this_machine(site):
    site.append("docs/other.rst", f"\nIt lies in ``{site.root}/data``.\n")
    fails(site, "other.html shows a path of this machine", f"{site.root}/data")


def test_logged_error_that_sphinx_does_not_count(site):
    site.append(
        "conf.py",
        "\nimport sys\ndef setup(app):\n    print('ERROR by another logger', file=sys.stderr)\n",
    )
    fails(site, "the log says: ERROR by another logger")


def test_tutorial_that_is_not_executed(site):
    site.append("conf.py", '\nsphinx_gallery_conf["filename_pattern"] = "(sums|words)[.]py$"\n')
    fails(
        site,
        "figure.rst",
        "figure.stamp.json is missing: the gallery has not executed this tutorial",
    )


def test_interrupted_build_leaves_no_process_and_no_half_site(site):
    site.tutorial("slow", "import time\nopen('started', 'w').close()\ntime.sleep(90)")
    site.append(
        "conf.py", '\ntutorial_time_limits = {"tutorials/basics/slow.py": (120, "waits")}\n'
    )
    before = tree(site.public)
    building = subprocess.Popen(
        site.command(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's & ignores it
    )
    marker = site.root / "tutorials/basics/started"
    deadline = time.monotonic() + 60
    while not marker.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second, said = site.build()
    building.send_signal(signal.SIGINT)
    output, _ = building.communicate(timeout=60)
    assert second == 1
    assert f"another build runs in this folder (process {building.pid})" in said
    assert building.returncode == 130
    assert b"build interrupted." in output
    assert tree(site.public) == before
    inside = [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(site.root)]
    assert psutil.wait_procs(inside, timeout=20)[1] == []  # what was killed may still be dying


def test_downloads_are_the_sources(whole):
    assert [path.name for path in sorted(whole.public.glob("_downloads/*"))] == [
        "how-to",
        "tutorials",
    ]
    for name in SCRIPTS:
        assert (whole.public / "_downloads" / name).read_bytes() == (whole.root / name).read_bytes()


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_two_builds_are_identical(whole, tmp_path, jobs):
    """Another folder, hash seed, time and number of processes: the same bytes in every file."""
    other = Site(tmp_path / "another folder" / "für")
    status, output = other.build("--jobs", jobs, PYTHONHASHSEED="4321")
    assert status == 0, output
    first, second = tree(whole.public), tree(other.public)
    assert sorted(first) == sorted(second)
    assert [name for name in first if first[name] != second[name]] == []


def test_edited_page_leaves_the_search_entries_of_the_others(site):
    site.append("docs/linking.rst", "\n.. _here:\n\nAn entry\n--------\n\nText.\n")
    succeeds(site)
    before = index_of(site.public)["entries"]
    assert "An entry" in [title for _, title, *_ in before]
    site.append("docs/other.rst", "\nPassing.\n")
    succeeds(site)
    after = index_of(site.public)["entries"]
    assert after == before


def test_preview_publishes_nothing(site):
    site.append("tutorials/basics/sums.py", "\nprint('more')\n")
    before = tree(site.public)
    output = succeeds(site, "--no-gallery")
    assert tree(site.public) == before
    assert "build/preview/html/index.html" in output


def test_preview_of_one_tutorial(site):
    site.log_runs()
    site.build("--pattern", "sums")
    assert site.runs() == ["tutorials/basics/sums.py"]
    succeeds(site)
    assert site.runs() == [name for name in SCRIPTS if "sums" not in name]


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("summs", "no tutorial's path matches 'summs'; there are tutorials/basics/figure.py, "),
        ("(", "'(' is no regular expression: "),
    ],
)
def test_preview_of_nothing(site, pattern, said):
    status, output = site.build("--pattern", pattern)
    assert status == 1
    assert said in output
