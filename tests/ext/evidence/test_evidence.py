"""Runs: what a script prints is shown, kept, and refused when it is wrong."""

import json
import os
import re
import subprocess
import sys
from unittest import mock

import pytest

from docs._ext.evidence import store as run_store
from docs._ext.evidence.store import RunError, Store, execute
from tests.support.fixture_site import Site

# A bound for a hung child, not an expectation.
LIMIT_S = 60
TABLE = {"columns": ["A", "B"], "rows": [["``x``", '*y* "z"']]}
HEAD = '"""What it shows."""\n\nimport json, os, subprocess, sys, time, warnings\n'


def script(folder, body, name="toy"):
    path = folder / f"{name}.py"
    path.write_text(HEAD + body + "\n")
    return path


def printing(**results):
    return f"print(json.dumps(json.loads({json.dumps(results)!r})))"


# -- One script ----------------------------------------------------------------------


def test_every_kind_of_result_comes_back(tmp_path):
    results = {"table": TABLE, "text": "a\nb", "number": 3, "share": 0.5, "truth": True}
    assert execute(script(tmp_path, printing(**results)), LIMIT_S) == results


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("assert not sys.path, 'the order changed'", r"toy\.py:4: AssertionError: the order"),
        ("def f():\n    raise KeyError('a')\n\n\nf()", r"toy\.py:5: KeyError: 'a'"),
        ("sys.exit(3)", r"toy\.py: ended with status 3 and it said nothing"),
        ("sys.exit('enough')", r"toy\.py: ended with status 1; its last words: enough"),
        ("os.abort()", r"toy\.py: SIGABRT ended it and it said nothing"),
        ("warnings.warn('old')\nprint('{}')", r"toy\.py wrote to standard error.*\n.*UserWarning"),
        ("print('no')", r"toy\.py did not print one JSON object .*'no"),
        ("print('{}{}')", r"toy\.py did not print one JSON object"),
        ("print('[]')", r"toy\.py printed JSON that is no object"),
        (printing(t={"columns": ["A"], "rows": [["1", "2"]]}), r"the result 't' is no text"),
        (printing(t={"columns": ["A"], "rows": [[1]]}), r"the result 't' is no text"),
        (printing(t={"columns": [], "rows": []}), r"the result 't' is no text"),
        (printing(t=None), r"the result 't' is no text"),
    ],
)
def test_a_bad_script_is_refused_with_the_place(tmp_path, body, complaint):
    with pytest.raises(RunError, match=complaint):
        execute(script(tmp_path, body), LIMIT_S)


def test_a_script_that_hangs_is_killed_with_its_children(tmp_path):
    body = (
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    with pytest.raises(RunError, match=r"toy\.py ran longer than its limit of 2 s"):
        execute(script(tmp_path, body), 2)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_script_that_leaves_a_child_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(run_store, "CHILD_GRACE_S", 0.5)
    body = "subprocess.Popen(['sleep', '600'])\nprint('{}')"
    with pytest.raises(RunError, match=r"toy\.py left 1 process\(es\) behind \(sleep\)"):
        execute(script(tmp_path, body), LIMIT_S)


def test_a_failure_does_not_wait_for_children(tmp_path):
    """Nor does one that a signal ended, with no chance to shut anything down."""
    body = (
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "os.abort()"
    )
    with (
        mock.patch.object(run_store, "_session", wraps=run_store._session) as looked,
        pytest.raises(RunError, match="SIGABRT"),
    ):
        execute(script(tmp_path, body), LIMIT_S)
    assert looked.call_count == 1
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


SPAWN = """
import contextlib, multiprocessing, tempfile


def speak():
    os.write(2, b"from the worker")


@contextlib.contextmanager
def caught():
    \"\"\"What this process and its workers write to standard error.\"\"\"
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            os.dup2(kept, 2)


if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=speak)
    with {around} as said:
        worker.start()
        worker.join()
        if said:
            said.seek(0)
            print(json.dumps({{"said": said.read().decode()}}))
        else:
            print("{{}}")
"""


def test_what_a_worker_writes_counts(tmp_path):
    """Unless the script catches it, because it is the subject."""
    body = SPAWN.format(around="contextlib.nullcontext()")
    with pytest.raises(RunError, match=r"toy\.py wrote to standard error(?s:.*)from the worker"):
        execute(script(tmp_path, body), LIMIT_S)
    body = SPAWN.format(around="caught()")
    assert execute(script(tmp_path, body), LIMIT_S) == {"said": "from the worker"}


# -- What is kept --------------------------------------------------------------------


def counting(folder, number):
    """A script that leaves a mark whenever it runs."""
    mark = f"open({str(folder / 'ran')!r}, 'a').write('x')"
    return script(folder, f"{mark}\n{printing(n=number)}")


def refreshed(folder):
    store = Store(folder, folder / "kept")
    store.refresh(LIMIT_S, lambda name: None)
    return store


def test_results_are_kept_until_the_script_changes(tmp_path):
    counting(tmp_path, 1)
    assert refreshed(tmp_path).results("toy") == {"n": 1}
    assert refreshed(tmp_path).results("toy") == {"n": 1}
    assert (tmp_path / "ran").read_text() == "x"
    counting(tmp_path, 2)
    assert refreshed(tmp_path).results("toy") == {"n": 2}
    assert (tmp_path / "ran").read_text() == "xx"


def test_another_stack_runs_everything_again(tmp_path, monkeypatch):
    counting(tmp_path, 1)
    refreshed(tmp_path)
    monkeypatch.setattr(run_store, "installed_closure", lambda names: {"torchrl": "9.9"})
    refreshed(tmp_path)
    assert (tmp_path / "ran").read_text() == "xx"


def test_a_failure_is_never_kept_and_drops_what_was(tmp_path):
    counting(tmp_path, 1)
    refreshed(tmp_path)
    script(tmp_path, "assert False, 'changed'")
    for _ in range(2):
        store = refreshed(tmp_path)
        assert store.failures == {"toy": "toy.py:4: AssertionError: changed"}
        assert not store.path("toy").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"n": 1', '"n": 9'),
        lambda text: "",
        lambda text: "[]",
        lambda text: "{}",
        lambda text: "\x00" * len(text),
    ],
    ids=["truncated", "edited", "empty", "a list", "no results", "zeros"],
)
def test_what_is_kept_and_damaged_is_not_shown(tmp_path, damage):
    counting(tmp_path, 1)
    path = refreshed(tmp_path).path("toy")
    path.write_text(damage(path.read_text()))
    with pytest.raises(KeyError):
        Store(tmp_path, tmp_path / "kept").results("toy")
    assert refreshed(tmp_path).results("toy") == {"n": 1}
    assert (tmp_path / "ran").read_text() == "xx"


def test_results_of_a_deleted_script_go(tmp_path):
    counting(tmp_path, 1)
    refreshed(tmp_path)
    (tmp_path / "toy.py").unlink()
    assert refreshed(tmp_path).names() == []
    assert not list((tmp_path / "kept").glob("*.json"))


# -- Through a whole build -----------------------------------------------------------

PAGE = """
It is :run:`toy:number`.

.. run-table:: toy:table
   :caption: A table

.. run-output:: toy:text
   :caption: A text

.. run-figure:: toy:figure
   :alt: A line

   What it *shows*.
"""
SVG = '<svg viewBox="0 0 1 1"><path id="a" stroke="#010203" d="M0 0"/></svg>'
RESULTS = {"number": 3, "table": TABLE, "text": "one\ntwo", "figure": SVG}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("runs") / "site")
    (site.root / "docs" / "runs").mkdir()
    script(site.root / "docs" / "runs", printing(**RESULTS))
    # record_plot, which draws the figures into the page, reads the scale of units from here.
    (site.root / "benchmarks").mkdir()
    for name in ("__init__.py", "record.py"):
        text = (run_store.ROOT / "benchmarks" / name).read_text()
        site.write(f"benchmarks/{name}", text)
    site.append("conf.py", '\nextensions.append("docs._ext.evidence")\n')
    site.append("docs/other.rst", PAGE)
    status, output = site.build()
    assert status == 0, output
    return site


@pytest.fixture
def site(shown, tmp_path):
    return shown.copy(tmp_path / "site")


def line(site, text):
    lines = (site.root / "docs" / "other.rst").read_text().splitlines()
    return 1 + next(number for number, said in enumerate(lines) if text in said)


@pytest.mark.slow
def test_a_page_shows_the_results_and_the_script(shown):
    page = (shown.public / "other.html").read_text()
    assert '<span class="run-value">3</span>' in page
    assert re.search(r"<code[^>]*>.*x.*</code>", page)
    assert "<em>y</em> &quot;z&quot;" in page
    assert "one\ntwo" in page
    assert '<svg role="img" aria-label="A line"' in page
    assert 'stroke="currentColor"' in page
    assert "What it <em>shows</em>." in page
    assert page.count('href="_downloads/runs/toy.py"') == 3
    copy = shown.public / "_downloads" / "runs" / "toy.py"
    assert copy.read_bytes() == (shown.root / "docs" / "runs" / "toy.py").read_bytes()


@pytest.mark.slow
def test_a_preview_repeats_the_warnings_about_an_unchanged_page(site):
    script(site.root / "docs" / "runs", "assert False, 'the order changed'")
    site.append("docs/other.rst", "\n.. run-table:: toyy:table\n")
    for _ in range(2):
        status, output = site.build("--pattern", "sums")
        assert status == 0, output
        assert output.count("failed: toy.py:4: AssertionError: the order changed") == 4
        assert "did you mean 'toy'? [runs.unknown]" in output
    script(site.root / "docs" / "runs", printing(**RESULTS))
    output = site.build("--pattern", "sums")[1]
    assert "[runs.failed]" not in output
    assert "[runs.unknown]" in output


@pytest.mark.slow
def test_a_page_follows_its_run(site):
    site.build()  # in another folder than before, everything is read
    script(site.root / "docs" / "runs", printing(**{**RESULTS, "number": 4}))
    status, output = site.build()
    assert status == 0, output
    assert '<span class="run-value">4</span>' in (site.public / "other.html").read_text()


@pytest.mark.slow
def test_wrong_addresses_and_unused_scripts_are_named(site):
    site.append(
        "docs/other.rst",
        "\n.. run-table:: toyy:table\n\n.. run-table:: toy:tbl\n\n.. run-table:: toy:text\n"
        "\n.. run-figure:: toy:figure\n\nAnd :run:`toy`.\n",
    )
    script(site.root / "docs" / "runs", printing(n=1), name="spare")
    status, output = site.build()
    assert status == 1
    for complaint in (
        r"docs/runs has no run 'toyy'; did you mean 'toy'\? \[runs.unknown\]",
        r"toy\.py has no result 'tbl'; did you mean 'table'\?",
        r"toy:text is a str, which this cannot show \[runs.kind\]",
        r"run-figure needs the option :alt:",
        r"expected script:result, found 'toy'",
        r"no page shows a result of docs/runs/spare\.py.*\[runs.unused\]",
    ):
        assert re.search(complaint, output), complaint


FAULTS = {
    "wrong": ("assert False, 'the order changed'", r"wrong\.py:4: AssertionError: the order"),
    "hung": ("time.sleep(600)", r"hung\.py ran longer than its limit of 5 s"),
    "crashed": ("os.abort()", r"crashed\.py: SIGABRT ended it"),
    "malformed": ("print('{')", r"malformed\.py did not print one JSON object .*'{"),
}


@pytest.mark.slow
def test_every_fault_names_page_and_line_in_every_build(site):
    site.append("conf.py", "\nruns_time_limit = 5\n")
    assert site.build()[0] == 0
    runs = site.root / "docs" / "runs"
    (runs / "toy.py").unlink()
    for name, (body, _) in FAULTS.items():
        script(runs, body, name=name)
        site.append("docs/linking.rst", f"\n.. run-table:: {name}:t\n")
    lines = (site.root / "docs" / "linking.rst").read_text().splitlines()
    for _ in range(2):
        status, output = site.build()
        assert status == 1
        for name, (_, complaint) in FAULTS.items():
            number = 1 + lines.index(f".. run-table:: {name}:t")
            place = rf"linking\.rst:{number}: WARNING: the run behind this failed: {complaint}"
            assert re.search(place, output), output
        for use in (":run:", "run-table", "run-output", "run-figure"):
            place = rf"other\.rst:{line(site, use)}: WARNING: docs/runs has no run 'toy'"
            assert re.search(place, output), output


@pytest.mark.slow
def test_a_preview_shows_the_results(site):
    status, output = site.build("--no-gallery")
    assert status == 0, output
    page = site.root / "build" / "preview" / "html" / "other.html"
    assert '<span class="run-value">3</span>' in page.read_text()


@pytest.mark.slow
def test_linkcheck_takes_the_results(site):
    """As ``make linkcheck`` calls Sphinx; and with two processes that read, every use is known."""
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "-j", "2", "-c", ".", "-b", "linkcheck"]
    done = subprocess.run(
        [*command, "-D", "plot_gallery=0", "docs", "build/linkcheck"],
        cwd=site.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
