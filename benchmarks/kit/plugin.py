"""Inside pytest: keep every result as soon as it is there, and stop before the time is over.

``runner.py`` hands over what to do as ``--kit JSON``: either where to list every benchmark, or
which state to write, and when to stop.
"""

import json
import os
import re
import time
from pathlib import Path

import pytest

from benchmarks.kit.state import Part

CANNOT_KEEP = 74  # exit status: os.EX_IOERR
REHEARSAL = {"ROUNDS": 2, "LEAST_ROUNDS": 2, "MOST_ROUNDS": 2, "SECONDS": 0.01}


def pytest_addoption(parser):
    parser.addoption("--kit", type=json.loads, default={}, help="of benchmarks.kit")


def pytest_configure(config):
    asked = config.getoption("--kit")
    if "survey" in asked:
        config.pluginmanager.register(Survey(asked["survey"]))
    elif asked:
        config.pluginmanager.register(keeper(asked))


def suite_of(item):
    return item.path.stem.removeprefix("bench_")


class Survey:
    """Lists every benchmark, and says what this machine is."""

    def __init__(self, path):
        self.path = Path(path)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config, items):
        from benchmarks.conftest import describe_machine

        found = [
            [f"{suite_of(item)}:{item.name}", bool(item.get_closest_marker("cuda"))]
            for item in items
        ]
        machine = describe_machine(config.getoption("--device"))
        self.path.write_text(json.dumps({"names": found, "machine": machine}), "utf-8")


def keeper(asked):
    from benchmarks.conftest import Keeper

    class KitKeeper(Keeper):
        """The keeper of the suites, which also watches the clock and keeps failures."""

        def __init__(self):
            super().__init__(Part(asked["state"], asked["suite"]))
            self.parent = os.getppid()
            self.seconds = self.checkpoint.seconds()

        def keep(self, **line):
            try:
                self.checkpoint.add(**line)
            except OSError as error:
                pytest.exit(f"cannot keep results: {error}", CANNOT_KEEP)

        def expected(self, name):
            """Seconds that *name* will take: as long as the slowest of its function so far."""
            function = name.partition("[")[0]
            alike = [s for key, s in self.seconds.items() if key.partition("[")[0] == function]
            return self.seconds.get(name) or max(alike, default=asked["first"])

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, config, items):
            try:
                super().pytest_collection_modifyitems(config, items)
            except OSError as error:
                pytest.exit(f"cannot keep results: {error}", CANNOT_KEEP)
            if asked["rehearse"]:
                shorten(modules_of(items))

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(self, item, nextitem):
            if os.getppid() != self.parent:
                os._exit(1)  # nobody watches any more
            if time.time() + self.expected(item.name) > asked["until"]:
                item.session.shouldstop = f"no time is left for {item.name}"
                return True
            self.begin = time.time()
            self.keep(started={"name": item.name, "at": self.begin})
            return None

        def pytest_runtest_logfinish(self, nodeid, location):
            name, seconds = location[2], time.time() - self.begin
            self.seconds[name] = seconds
            self.keep(took={"name": name, "seconds": round(seconds, 3)})

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self, item, call):
            try:
                report = yield from super().pytest_runtest_makereport(item, call)
            except OSError as error:
                pytest.exit(f"cannot keep results: {error}", CANNOT_KEEP)
            if report.failed and call.when != "teardown":
                said = str(call.excinfo.value).strip().splitlines() or [""]
                # a record names no place on its machine
                why = re.sub(
                    r"(?<![\w.])/[^\s'\"]*/", ".../", f"{call.excinfo.typename}: {said[0]}"
                )
                self.keep(failed={"name": item.name, "reason": why[:400]})
            return report

    return KitKeeper()


def modules_of(items):
    """The suites of *items*, and what they share."""
    import benchmarks

    shared = [module for module in vars(benchmarks).values() if hasattr(module, "__file__")]
    return [*{item.module for item in items}, *shared]


def shorten(modules):
    """As few rounds as the suites allow: a rehearsal runs every path and measures nothing."""
    for module in modules:
        for name, value in REHEARSAL.items():
            if isinstance(getattr(module, name, None), int | float):
                setattr(module, name, value)
