"""Run every Python block of docs/**/*.rst, one namespace per page, in the order of the page.

Collected by ``pytest docs``: ``code-block:: python`` and ``>>>`` examples. The body of
``not-executed`` is left out, counted, and listed with its reason in the summary. There is no
other way to skip a block: tests/tools/test_rst_blocks.py fails on a Python block that nothing runs.
"""

import os

# Before torchrl is imported: its log lines would land in the captured output of an example.
os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

from pathlib import Path

import pytest
from sybil import Sybil
from sybil.integration.pytest import SybilItem

from docs._ext.support.galleries import NAMES
from tools.rst_blocks import parse_python, python_blocks, rst_pages, within

DOCS = Path(__file__).parent

# The gallery has executed these pages.
collect_ignore = list(NAMES)
pytest_collect_file = Sybil(parsers=[parse_python], pattern="*.rst").pytest()


class Tally:
    """Which examples were collected, and which ran, with and without workers (pytest-xdist).

    Each worker collects every example and says at its end which; all of them run somewhere, and
    the process that prints the summary hears of each.
    """

    def __init__(self):
        self.lines = {}  # page: {example: its line}
        self.ran = set()
        self.partial = False

    def pytest_deselected(self, items):
        """With -k or -m against some examples, the summary keeps to pages that ran."""
        self.partial = self.partial or any(isinstance(item, SybilItem) for item in items)

    def pytest_collection_finish(self, session):
        """Count what is left after -k and -m."""
        for item in session.items:
            if isinstance(item, SybilItem):
                self.lines.setdefault(str(item.path), {})[item.nodeid] = item.example.line

    def pytest_sessionfinish(self, session):
        """Tell the process that prints the summary what this worker has collected."""
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output["rst"] = self.lines, self.partial

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """Take over what a worker has collected; one that crashed says nothing."""
        lines, self.partial = getattr(node, "workeroutput", {}).get("rst", ({}, self.partial))
        self.lines |= lines

    def pytest_runtest_logreport(self, report):
        """An example that failed ran as well."""
        if report.when == "call" and not report.skipped:
            self.ran.add(report.nodeid)

    def pytest_terminal_summary(self, terminalreporter):
        """Print the share of Python blocks that ran."""
        asked = [] if self.partial else pages_asked_for(terminalreporter.config)
        executed, left_out = self.count({*map(Path, self.lines), *asked})
        total = executed + len(left_out)
        if total:
            share = 100 * executed / total
            terminalreporter.section("RST Python blocks")
            terminalreporter.line(
                f"RST Python blocks: {executed} executed of {total} ({share:.1f} %)"
            )
            for place, reason in left_out:
                terminalreporter.line(f"  not executed: {place}: {reason}")

    def count(self, pages):
        """Number of blocks that ran, and (place, reason) of the others."""
        executed, left_out = 0, []
        for page in sorted(pages):
            examples = self.lines.get(str(page), {})
            lines = [line for name, line in examples.items() if name in self.ran]
            for block in python_blocks(page):
                if any(within(block, line) for line in lines):
                    executed += 1
                    continue
                reason = block.argument if block.directive == "not-executed" else "did not run"
                place = f"{page.relative_to(DOCS.parent).as_posix()}:{block.first_line}"
                left_out.append((place, " ".join(reason.split())))
        return executed, left_out


def pages_asked_for(config):
    """Pages below the collected folders: one that shows only unexecuted blocks has no item."""
    roots = [
        Path(config.invocation_params.dir, arg.split("::")[0]).resolve() for arg in config.args
    ]
    return [page for page in rst_pages(DOCS) if any(r in (page, *page.parents) for r in roots)]


def pytest_configure(config):
    config.pluginmanager.register(Tally(), "rst-tally")
