"""tools/torch_pairs.py --check: what differs from the table, and what to do then."""

import pytest

from tools import torch_pairs


@pytest.fixture
def table():
    return torch_pairs.read()


@pytest.fixture
def tried(monkeypatch, table):
    """Pairs that a check has tried; they answer as the table says, and new ones as its first."""
    rows, pairs = torch_pairs.by_pair(table), []

    def rows_of(torch, releases, python):
        for torchrl in releases:
            pairs.append((torchrl, torch))
            yield rows.get((torchrl, torch), {**table[0], "TorchRL": torchrl, "torch": torch})

    newest = [table[0]["TorchRL"], table[0]["torch"]]
    monkeypatch.setattr(torch_pairs, "released", lambda *_: newest)
    monkeypatch.setattr(torch_pairs, "rows_of", rows_of)
    return pairs, rows, newest


def test_a_check_tries_the_whole_table_and_leaves_it(tried, table):
    pairs, rows, _ = tried
    before = torch_pairs.TARGET.stat().st_mtime_ns
    torch_pairs.main(["--check"])
    assert len(pairs) == len(table)
    assert set(pairs) == rows.keys()
    assert torch_pairs.TARGET.stat().st_mtime_ns == before


@pytest.mark.parametrize("column", torch_pairs.COMPARED)
def test_another_answer_fails_with_the_command_that_mends_it(tried, column):
    _, rows, (torchrl, torch) = tried
    said = rows[torchrl, torch][column]
    rows[torchrl, torch] = rows[torchrl, torch] | {column: "other"}
    with pytest.raises(SystemExit) as stop:
        torch_pairs.main(["--check"])
    pair = f"TorchRL {torchrl} with torch {torch}"
    assert stop.value.code.splitlines() == [
        f"{pair}, {column}: the table has {said!r}, this run 'other'.",
        "Take these rows again, which writes them into docs/reference/torch_pairs*.csv:",
        f"  python tools/torch_pairs.py --torchrl {torchrl} --torch {torch}",
        "Then run tests/pages/reference/test_torch_versions.py: it names the sentences of"
        " docs/reference/torch_versions.rst that no longer hold.",
    ]


@pytest.mark.parametrize("column", ["Python", "Platform", "Date"])
def test_another_machine_is_no_difference(tried, column):
    _, rows, (torchrl, torch) = tried
    rows[torchrl, torch] = rows[torchrl, torch] | {column: "other"}
    torch_pairs.main(["--check"])


def test_a_new_torch_is_tried_beside_every_release(tried, table):
    _, _, newest = tried
    newest[1] = "99.0"
    with pytest.raises(SystemExit) as stop:
        torch_pairs.main(["--check"])
    releases = list(dict.fromkeys(row["TorchRL"] for row in table))
    for torchrl in releases:
        line = f"TorchRL {torchrl} with torch 99.0 is not in the table. It answers **loads**."
        assert line in stop.value.code
    command = f"  python tools/torch_pairs.py --torchrl {' '.join(releases)} --torch 99.0"
    assert command in stop.value.code.splitlines()


def test_a_check_of_chosen_pairs_tries_no_others(tried):
    pairs, _, (torchrl, torch) = tried
    torch_pairs.main(["--check", "--torchrl", torchrl, "--torch", torch])
    assert pairs == [(torchrl, torch)]


def test_without_a_check_releases_have_to_be_named(capsys):
    with pytest.raises(SystemExit):
        torch_pairs.main(["--torch", "2.15.0"])
    assert "name releases with --torchrl and --torch" in capsys.readouterr().err


@pytest.mark.parametrize("lines", ["numpy==2\ntorch==2.15.0+cpu\n", "torch==2.15.0\nx==1\n"])
def test_a_build_of_torch_counts_as_its_release(lines):
    assert torch_pairs.version_of("torch", lines) == "2.15.0"
