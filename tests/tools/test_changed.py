"""What `make test-changed` runs for a diff."""

import pytest

from tests.support import ROOT
from tests.support.repository import git
from tools import changed

TREE = {
    "docs/reference/page.rst": "Title\n=====\n\nIt is so. :claim:`it-is-so`\n\n>>> 1\n1\n",
    "docs/evidence/page/shown.py": "print('{}')\n",
    "docs/_ext/site/words.py": "",
    "tutorials/debugging/it_hangs.py": "",
    "tutorials/memory/lesson.py": "# Short. :claim:`short`\n",
    "benchmarks/suites/queues.py": "",
    "benchmarks/results/queues/cpu.json": "{}",
    "tools/serve.py": "",
    "tests/conftest.py": "",
    "tests/repository/test_layout.py": "",
    "tests/support/site_of.py": "",
    "tests/ext/site/test_words.py": "from tests.support.site_of import Site\n",
    "tests/ext/site/test_other.py": "",
    "tests/pages/reference/test_page.py": "",
    "tests/pages/reference/test_far.py": "@guards('it-is-so')\ndef test_so(): ...\n",
    "tests/pages/reference/test_run.py": "load_evidence('page/shown')\n",
    "tests/pages/facts.toml": "",
    "tests/pages/test_facts.py": "",
    "tests/pages/symptoms/test_repairs.py": "",
    "requirements-docs.txt": "",
    "tests/pages/test_mutations.py": (
        "EDIT = 'page/shown'\nfrom tests.support.site_of import Site\n@pytest.mark.mutation\n"
    ),
    "tests/pages/test_more_mutations.py": "pytestmark = [pytest.mark.slow, pytest.mark.mutation]",
    "tests/pages/test_of_mutations.py": "TEXT = 'shown, @pytest.mark.mutation'",
    "tests/benchmarks/test_far.py": 'RECORDS.find("queues", "cpu")\n',
    "tests/pages/tutorials/test_rows.py": "PAGE = ROOT / 'memory' / 'lesson.py'\n".replace(
        "'", '"'
    ),
    "tests/benchmarks/test_queues.py": "",
    "tests/pages/performance/test_queues.py": "",
    "tests/tools/test_serve.py": "",
    "tests/tools/test_typed_numbers.py": "",
}


@pytest.fixture
def tree(tmp_path):
    for path, text in TREE.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "whole", "fast", "scripts"),
    [
        (
            "docs/reference/page.rst",
            ["docs/reference/page.rst", "tests/pages/reference/test_page.py"],
            ["tests/pages/reference/test_far.py"],
            [],
        ),
        (
            "docs/evidence/page/shown.py",
            ["tests/pages/reference/test_page.py"],
            ["tests/pages/reference/test_run.py", "tests/pages/test_mutations.py"],
            ["docs/evidence/page/shown.py"],
        ),
        ("docs/_ext/site/words.py", ["tests/ext/site/test_words.py"], ["tests/ext/site"], []),
        (
            "tutorials/debugging/it_hangs.py",
            [f"{changed.DOCTOR_NAMES}[it_hangs]", "tests/pages/symptoms/test_repairs.py"],
            [],
            ["tutorials/debugging/it_hangs.py"],
        ),
        (
            "tutorials/memory/lesson.py",
            [],
            ["tests/pages/tutorials/test_rows.py"],
            ["tutorials/memory/lesson.py"],
        ),
        (
            "benchmarks/suites/queues.py",
            ["tests/benchmarks/test_queues.py"],
            ["tests/benchmarks"],
            [],
        ),
        (
            "benchmarks/results/queues/cpu.json",
            ["tests/pages/performance/test_queues.py"],
            ["tests/benchmarks/test_far.py"],
            [],
        ),
        ("tests/pages/facts.toml", ["tests/pages/test_facts.py"], [], []),
        ("tools/serve.py", ["tests/tools/test_serve.py"], [], []),
        ("tests/ext/site/test_other.py", ["tests/ext/site/test_other.py"], [], []),
        (
            "tests/support/site_of.py",
            [],
            ["tests/ext/site/test_words.py", "tests/pages/test_mutations.py"],
            [],
        ),
        ("tests/conftest.py", [], ["tests"], []),
        ("README.md", [], [], []),
        ("tools/gone.py", [], [], []),
    ],
)
def test_what_belongs_to_a_file(tree, path, whole, fast, scripts):
    found = changed.selection([path], tree)
    always = [] if fast == ["tests"] else changed.ALWAYS
    assert found == (whole, sorted([*fast, *always]), scripts)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("docs/evidence/page/shown.py", ["test_mutations.py"]),
        ("tests/support/site_of.py", ["test_mutations.py"]),
        ("docs/reference/page.rst", []),
        *(
            (path, ["test_more_mutations.py", "test_mutations.py"])
            for path in sorted(changed.STACK)
        ),
    ],
)
def test_mutations_run_where_what_they_name_or_the_stack_changed(tree, path, found):
    files = [f"tests/pages/{name}" for name in found]
    assert sorted(changed.mutation_tests([path], tree)) == files
    (last,) = [command for command in changed.commands([path], tree) if "mutation" in command] or [
        ["mutation"]
    ]
    assert last[last.index("mutation") + 1 :] == files


def test_a_mutation_runs_with_its_page_and_once(tree):
    """A page brings the whole file of its name, mutations included, and not a second time."""
    (tree / "tests/pages/tutorials/test_lesson.py").write_text(
        'PAGE = "tutorials/memory/lesson.py"\npytestmark = pytest.mark.mutation\n'
    )
    fast, whole = list(changed.commands(["tutorials/memory/lesson.py"], tree))[-2:]
    assert fast[fast.index("-m", 3) + 1] == changed.FAST
    assert "not mutation" in changed.FAST
    assert whole[-2:] == [changed.WHOLE, "tests/pages/tutorials/test_lesson.py"]
    assert "mutation" not in changed.WHOLE


def test_a_page_that_is_named_alone_is_found_by_its_claims_and_its_path():
    assert changed.names_of("docs/reference/page.rst", ROOT / "nowhere") == {
        "docs/reference/page.rst",
        "docs.reference.page",
        'reference" / "page.rst',
        "reference/page",
    }


def test_a_diff_is_what_is_committed_since_the_base_edited_and_new(tree):
    git(tree, "init", "--initial-branch", "main")
    git(tree, "add", ".")
    git(tree, "commit", "-m", "first")
    git(tree, "checkout", "-b", "topic")
    (tree / "tools/serve.py").write_text("1\n")
    git(tree, "commit", "-am", "second")
    (tree / "docs/_ext/site/words.py").unlink()
    (tree / "tests/ext/site/test_new.py").write_text("")
    edited = ["docs/_ext/site/words.py", "tests/ext/site/test_new.py"]
    assert changed.changed_files("main", tree) == [*edited, "tools/serve.py"]
    assert changed.changed_files("HEAD", tree) == edited
    with pytest.raises(SystemExit, match=r"no/such/branch(.|\n)*BASE="):
        changed.changed_files("no/such/branch", tree)


def test_every_rule_has_something_in_the_repository():
    """A folder that moved would leave a rule behind that selects nothing."""
    paths = git(ROOT, "ls-files").splitlines()
    for rule in changed.LAYOUT:
        found = [path for path in paths if any(changed.selection_of_rule(rule, path, ROOT))]
        assert found, rule[0]
    assert all((ROOT / path).exists() for path in [*changed.ALWAYS, *changed.STACK])
    assert len(changed.mutation_tests(changed.STACK)) > 5
    file, _, name = changed.DOCTOR_NAMES.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")


def test_a_failure_ends_with_its_command(monkeypatch, capfd):
    ran = [["true"], ["false", "of", "two"], ["sh", "-c", "exit 5"]]
    monkeypatch.setattr(changed, "commands", lambda paths: ran)
    with pytest.raises(SystemExit) as ended:
        changed.main(["--base", "HEAD"])
    assert str(ended.value) == "Failed:\nfalse of two"
    with pytest.raises(SystemExit) as ended:
        changed.main(["--base", "HEAD", "--dry-run"])
    assert not ended.value.code
    assert "$ false of two" in capfd.readouterr().out
