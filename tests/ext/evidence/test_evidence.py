"""Runs: what a script prints is shown, kept, and refused when it is wrong."""

import json
import os
import re
from importlib.metadata import version
from unittest import mock

import pytest

from docs._ext.evidence import store as evidence_store
from docs._ext.evidence.store import EvidenceError, Store, execute
from tests.support import sphinx_forks
from tests.support.fixture_site import Site

# A bound for a hung child, not an expectation.
LIMIT_S = 60
TABLE = {"columns": ["A", "B"], "rows": [["``x``", '*y* "z"']]}
SAID = "toy.py says there: What it shows."
HEAD = '"""What it shows."""\n\nimport json, os, subprocess, sys, time, warnings\n'


def script(folder, body, name="toy"):
    path = folder / "facts" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEAD + body + "\n")
    return path


def execute_pooled(path, limit):
    """As ``execute``, through the process that forks for many scripts."""
    store = Store(path.parents[1], path.parents[1] / "kept")
    store.refresh(limit, lambda name: None)
    name = f"{path.parent.name}/{path.stem}"
    if name in store.failures:
        raise EvidenceError(store.failures[name])
    return store.results(name)


both = pytest.mark.parametrize("execute", [execute, execute_pooled], ids=["alone", "pooled"])


def printing(**results):
    return f"print(json.dumps(json.loads({json.dumps(results)!r})))"


# -- One script ----------------------------------------------------------------------


@both
def test_every_kind_of_result_comes_back(tmp_path, execute):
    results = {"table": TABLE, "text": "a\nb", "number": 3, "share": 0.5, "truth": True}
    assert execute(script(tmp_path, printing(**results)), LIMIT_S) == results


@both
@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("assert not sys.path, 'the order changed'", r"toy\.py:4: AssertionError: the order"),
        (
            "n = len('ab')\nassert n + 1 == 4",
            r"toy\.py:5: AssertionError: assert n \+ 1 == 4; evaluated again:\n    n \+ 1 = 3\n"
            r"    toy\.py says there: What it shows\.$",
        ),
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
def test_a_bad_script_is_refused_with_the_place(tmp_path, execute, body, complaint):
    with pytest.raises(EvidenceError, match=complaint):
        execute(script(tmp_path, body), LIMIT_S)


@both
def test_a_script_that_hangs_is_killed_with_its_children(tmp_path, execute):
    body = (
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    with pytest.raises(EvidenceError, match=r"toy\.py ran longer than its limit of 2 s"):
        execute(script(tmp_path, body), 2)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_script_that_leaves_a_child_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence_store, "CHILD_GRACE_S", 0.5)
    body = "subprocess.Popen(['sleep', '600'])\nprint('{}')"
    with pytest.raises(EvidenceError, match=r"toy\.py left 1 process\(es\) behind \(sleep\)"):
        execute(script(tmp_path, body), LIMIT_S)


def test_a_failure_does_not_wait_for_children(tmp_path):
    """Nor does one that a signal ended, with no chance to shut anything down."""
    body = (
        "child = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "os.abort()"
    )
    with (
        mock.patch.object(evidence_store, "_session", wraps=evidence_store._session) as looked,
        pytest.raises(EvidenceError, match="SIGABRT"),
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


@both
def test_what_a_worker_writes_counts(tmp_path, execute):
    """Unless the script catches it, because it is the subject."""
    body = SPAWN.format(around="contextlib.nullcontext()")
    with pytest.raises(
        EvidenceError, match=r"toy\.py wrote to standard error(?s:.*)from the worker"
    ):
        execute(script(tmp_path, body), LIMIT_S)
    body = SPAWN.format(around="caught()")
    assert execute(script(tmp_path, body), LIMIT_S) == {"said": "from the worker"}


# -- Many scripts --------------------------------------------------------------------

ISOLATED = """
import fractions, multiprocessing, threading

seen = [getattr(fractions, "mark", None), os.environ.get("MARK"), os.getcwd() in places()]
fractions.mark = os.environ["MARK"] = "another script was here"
with open(os.path.join({folder!r}, "places"), "a") as file:
    file.write(os.getcwd() + "\\n")
assert os.listdir() == [] and sys.argv == [__file__] and sys.path[0] == os.path.dirname(__file__)
assert sys.modules["__main__"].__dict__ is globals() and sys.stdin.read() == ""
open("left", "w").close()
"""


def pool(folder, **options):
    store = Store(folder, folder / "kept", **options)
    store.refresh(LIMIT_S, lambda name: None)
    return store


def test_scripts_of_one_process_see_nothing_of_each_other(tmp_path):
    (tmp_path / "places").touch()
    places = f"def places():\n    return open({str(tmp_path / 'places')!r}).read().split()\n"
    for name in "abcd":
        body = (
            places + ISOLATED.format(folder=str(tmp_path)) + "print(json.dumps({'n': str(seen)}))"
        )
        script(tmp_path, body, name=name)
    store = pool(tmp_path, preload=["fractions"])
    assert store.failures == {}
    for name in "abcd":
        assert store.results(f"facts/{name}") == {"n": "[None, None, False]"}


def test_the_end_of_a_script_is_that_of_an_interpreter(tmp_path):
    """Threads are waited for, then come the functions of atexit, then what is deleted."""
    body = """
import atexit, threading


class Last:
    def __del__(self):
        print("}")


last = Last()
atexit.register(lambda: print('2]'))
threading.Thread(target=lambda: (time.sleep(0.5), print('{"a": "b"', end=""))).start()
atexit.unregister(print)
"""
    body = body.replace("print('2]')", 'print(\', "c": "d"\', end="")')
    for run in (execute, execute_pooled):
        assert run(script(tmp_path, body), LIMIT_S) == {"a": "b", "c": "d"}


def test_a_module_that_starts_a_thread_is_not_preloaded(tmp_path, monkeypatch):
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True,"
        " name='busy').start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in "ab":
        script(tmp_path, "print('{}')", name=name)
    store = pool(tmp_path, preload=["threaded"])
    assert set(store.failures) == {"facts/a", "facts/b"}
    assert "starts threads: MainThread, busy" in store.failures["facts/a"]


@pytest.mark.parametrize(
    ("line", "alone"),
    [
        ('os.environ["RL_LOGGING_LEVEL"] = "ERROR"', False),
        ('os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")', False),
        ('os.environ["TORCHRL_PROFILING"] = "1"', True),
        ('os.environ.update(CUDA_VISIBLE_DEVICES="", RL_LOGGING_LEVEL="ERROR")', True),
        ("def f():\n    os.environ.clear()", False),
    ],
)
def test_a_script_that_changes_the_environment_shares_no_import(tmp_path, line, alone):
    body = "import fractions as f\nprint(json.dumps({'mark': hasattr(f, 'mark')}))"
    (tmp_path / "facts").mkdir()
    for name in "ab":
        (tmp_path / "facts" / f"{name}.py").write_text(f"import json, os\n{line}\n{body}\n")
    (tmp_path / "marking.py").write_text("import fractions\nfractions.mark = 1\n")
    with mock.patch.dict(os.environ, PYTHONPATH=str(tmp_path)):
        store = pool(tmp_path, preload=["marking"])
    assert store.results("facts/a") == {"mark": not alone}


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
    assert refreshed(tmp_path).results("facts/toy") == {"n": 1}
    assert refreshed(tmp_path).results("facts/toy") == {"n": 1}
    assert (tmp_path / "ran").read_text() == "x"
    counting(tmp_path, 2)
    assert refreshed(tmp_path).results("facts/toy") == {"n": 2}
    assert (tmp_path / "ran").read_text() == "xx"


def test_another_stack_runs_everything_again(tmp_path, monkeypatch):
    counting(tmp_path, 1)
    refreshed(tmp_path)
    monkeypatch.setattr(evidence_store, "installed_closure", lambda names: {"torchrl": "9.9"})
    refreshed(tmp_path)
    assert (tmp_path / "ran").read_text() == "xx"


def test_a_failure_is_never_kept_and_drops_what_was(tmp_path):
    counting(tmp_path, 1)
    refreshed(tmp_path)
    script(tmp_path, "assert False, 'changed'")
    for _ in range(2):
        store = refreshed(tmp_path)
        assert store.failures == {
            "facts/toy": f"facts/toy.py:4: AssertionError: changed\n    {SAID}"
        }
        assert not store.path("facts/toy").exists()


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
    path = refreshed(tmp_path).path("facts/toy")
    path.write_text(damage(path.read_text()))
    with pytest.raises(KeyError):
        Store(tmp_path, tmp_path / "kept").results("facts/toy")
    assert refreshed(tmp_path).results("facts/toy") == {"n": 1}
    assert (tmp_path / "ran").read_text() == "xx"


def test_results_of_a_deleted_script_go(tmp_path):
    counting(tmp_path, 1)
    refreshed(tmp_path)
    (tmp_path / "facts" / "toy.py").unlink()
    assert refreshed(tmp_path).names() == []
    assert not list((tmp_path / "kept").rglob("*.json"))


# -- Through a whole build -----------------------------------------------------------

PAGE = """
It is :evidence:`facts/toy:number`.

.. evidence-table:: facts/toy:table
   :caption: A table

.. evidence-output:: facts/toy:text
   :caption: A text

.. evidence-figure:: facts/toy:figure
   :alt: A line

   What it *shows*.

.. evidence-figure:: facts/toy:chart
   :alt: A line that falls

.. evidence-figure:: facts/toy:marked
   :alt: A mark
"""
SVG = '<svg viewBox="0 0 1 1"><path id="a" stroke="#010203" d="M0 0"/></svg>'
CHART = {
    "columns": ["one", "steps", "share [%]"],
    "rows": [["a & b", "0", "20"], ["a & b", "1", "0.5"], ["c", "1", "40"]],
}
MARKED = {
    "columns": ["one", "step", "value [m]"],
    "rows": [["a", "3", "-0.5"]],
    "svg": '<svg viewBox="0 0 1 1"><g id="point-0"><path d="M0 0"/></g></svg>',
}
RESULTS = {
    "number": 3,
    "table": TABLE,
    "text": "one\ntwo",
    "figure": SVG,
    "chart": CHART,
    "marked": MARKED,
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("evidence") / "site")
    (site.root / "docs" / "evidence").mkdir(parents=True)
    script(site.root / "docs" / "evidence", printing(**RESULTS))
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
    assert '<span class="evidence-value">3</span>' in page
    assert re.search(r"<code[^>]*>.*x.*</code>", page)
    assert re.search(r"<em>y</em> <code[^>]*>(<span[^>]*>)?&quot;z&quot;", page)
    assert "one\ntwo" in page
    assert '<svg role="img" aria-label="A line"' in page
    assert 'stroke="currentColor"' in page
    assert "What it <em>shows</em>." in page
    assert page.count('href="_downloads/evidence/facts/toy.py"') == 5
    stamp = f"Executed 2023-11-14, TorchRL {version('torchrl')}, CPU: output of toy.py."
    assert re.sub("<[^>]+>", "", page).count(stamp) == 5
    copy = shown.public / "_downloads" / "evidence" / "facts" / "toy.py"
    assert copy.read_bytes() == (shown.root / "docs" / "evidence" / "facts" / "toy.py").read_bytes()


@pytest.mark.slow
def test_a_chart_has_its_values_to_point_at_and_as_a_file(shown):
    page = (shown.public / "other.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    drawn = re.findall(r'<figure class="(?:record-plot|evidence).*?</figure>', page, re.DOTALL)
    _, plot, marked = drawn
    assert 'aria-label="A line that falls"' in plot
    titles = [re.findall("<title>(.*?)</title>", one) for one in (plot, marked)]
    assert titles[0] == ["a &amp; b, 0: 20 %", "a &amp; b, 1: 0.50 %", "c, 1: 40 %"]
    assert titles[1] == ["a, step 3: value \N{MINUS SIGN}0.5 m"]
    assert "share" in re.sub("<[^>]+>", "", plot)
    links = re.findall(r'href="(_downloads/evidence/facts/toy-\w+\.csv)"', page)
    assert len(links) == 2
    first, second = ((shown.public / link).read_text().splitlines() for link in links)
    assert first == ["one,steps,share [%]", "a & b,0,20", "a & b,1,0.5", "c,1,40"]
    assert second == ["one,step,value [m]", "a,3,-0.5"]


@pytest.mark.slow
def test_a_preview_repeats_the_warnings_about_an_unchanged_page(site):
    script(site.root / "docs" / "evidence", "assert False, 'the order changed'")
    site.append("docs/other.rst", "\n.. evidence-table:: facts/toyy:table\n")
    for _ in range(2):
        status, output = site.build("--pattern", "sums")
        assert status == 0, output
        assert output.count("failed: facts/toy.py:4: AssertionError: the order changed") == 6
        assert "did you mean 'facts/toy'? [evidence.unknown]" in output
    script(site.root / "docs" / "evidence", printing(**RESULTS))
    output = site.build("--pattern", "sums")[1]
    assert "[evidence.failed]" not in output
    assert "[evidence.unknown]" in output


@pytest.mark.slow
def test_a_page_follows_its_script(site):
    site.build()  # in another folder than before, everything is read
    script(site.root / "docs" / "evidence", printing(**{**RESULTS, "number": 4}))
    status, output = site.build()
    assert status == 0, output
    assert '<span class="evidence-value">4</span>' in (site.public / "other.html").read_text()


@pytest.mark.slow
def test_wrong_addresses_and_unused_scripts_are_named(site):
    site.append(
        "docs/other.rst",
        "\n.. evidence-table:: facts/toyy:table\n\n.. evidence-table:: facts/toy:tbl\n"
        "\n.. evidence-table:: facts/toy:text\n"
        "\n.. evidence-figure:: facts/toy:figure\n\nAnd :evidence:`toy`.\n",
    )
    script(site.root / "docs" / "evidence", printing(n=1), name="spare")
    status, output = site.build()
    assert status == 1
    for complaint in (
        r"no script 'facts/toyy'; did you mean 'facts/toy'\? \[evidence.unknown\]",
        r"toy\.py has no result 'tbl'; did you mean 'table'\?",
        r"facts/toy:text is a str, which this cannot show \[evidence.kind\]",
        r"evidence-figure needs :alt:",
        r"expected page/script:result, found 'toy'",
        r"no page shows a result of docs/evidence/facts/spare\.py.*\[evidence.unused\]",
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
    site.append("conf.py", "\nevidence_time_limit = 5\n")
    assert site.build()[0] == 0
    scripts = site.root / "docs" / "evidence"
    (scripts / "facts" / "toy.py").unlink()
    for name, (body, _) in FAULTS.items():
        script(scripts, body, name=name)
        site.append("docs/linking.rst", f"\n.. evidence-table:: facts/{name}:t\n")
    lines = (site.root / "docs" / "linking.rst").read_text().splitlines()
    for _ in range(2):
        status, output = site.build()
        assert status == 1
        for name, (_, complaint) in FAULTS.items():
            number = 1 + lines.index(f".. evidence-table:: facts/{name}:t")
            place = (
                rf"linking\.rst:{number}: WARNING: the script behind this failed: facts/{complaint}"
            )
            assert re.search(place, output), output
        for use in (":evidence:", "evidence-table", "evidence-output", "evidence-figure"):
            place = (
                rf"other\.rst:{line(site, use)}: WARNING: docs/evidence has no script 'facts/toy'"
            )
            assert re.search(place, output), output


@pytest.mark.slow
def test_a_preview_shows_the_results(site):
    status, output = site.build("--no-gallery")
    assert status == 0, output
    page = site.root / "build" / "preview" / "html" / "other.html"
    assert '<span class="evidence-value">3</span>' in page.read_text()


@pytest.mark.slow
def test_linkcheck_takes_the_results(site):
    """As ``make linkcheck`` calls Sphinx; and with two processes that read, every use is known."""
    options = ["-W", "-n", "-j", "2", "-c", ".", "-b", "linkcheck", "-D", "plot_gallery=0"]
    done = sphinx_forks.run(*options, "docs", "build/linkcheck", cwd=site.root)
    assert done.returncode == 0, done.stdout + done.stderr
