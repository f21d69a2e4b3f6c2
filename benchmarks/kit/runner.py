"""On the machine: measure piece after piece until the time is over."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import __main__ as main
from benchmarks.kit import state as states
from benchmarks.kit.plugin import CANNOT_KEEP

# Paths stand in Triton's cache, so it lies in the same place on every machine.
KERNELS = Path(tempfile.gettempdir(), "benchmarks-kit-triton")
WATCH_S = 0.5
SURVEY_S = 300
START_S = 120
ENDING_S = 20


def pytest_command(files, device, asked):
    command = [sys.executable, "-m", "pytest", *files, "--device", device, "-q", "--tb=short"]
    command += ["-o", "python_files=bench_*.py", "-o", "python_functions=bench_*"]
    # A warning that only this machine's torch or driver raises is shown, and ends no benchmark.
    command += ["-W", "default", "-p", "no:cacheprovider"]
    return [*command, "-p", "benchmarks.kit.plugin", "--kit", json.dumps(asked)]


def environment(kernels=False):
    """With *kernels*, those that Triton compiled in an earlier command are found again."""
    found = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
    return found | ({"TRITON_CACHE_DIR": str(KERNELS)} if kernels else {})


def file_of(suite):
    return main.LIBRARY.module(suite).as_posix()


def address(name):
    """What pytest calls the benchmark *name*, ``suite:benchmark``."""
    suite, _, benchmark = name.partition(":")
    return f"{file_of(suite)}::{benchmark}"


def survey(suites, device, every=False):
    """The benchmarks that run on *device*, or *every*, as ``suite:name``; the header of a state."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "survey.json")
        command = pytest_command(map(file_of, suites), device, {"survey": str(found)})
        done = subprocess.run(
            [*command, "--collect-only"],
            cwd=main.ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=SURVEY_S,
            check=False,
        )
        if not found.is_file() or done.returncode:
            raise states.StateError(f"the suites cannot be read:\n{done.stdout}{done.stderr}")
        found = json.loads(found.read_text("utf-8"))
    names = [name for name, cuda in found["names"] if every or device == "cuda" or not cuda]
    versions = {name: v for suite in suites for name, v in main.versions(suite).items()}
    # What else the machine does, and the build of its kernel, may differ from day to day.
    machine = {key: value for key, value in found["machine"].items() if key not in ("os", "memory")}
    code = {
        f"{suite}:{function}": code
        for suite in suites
        for function, code in main.LIBRARY.hashes(suite).items()
    }
    header = {"device": device, "machine": machine, "versions": versions, "code": code}
    return names, header


class Runner:
    """One command: a plan, a state to write, and a deadline."""

    def __init__(self, plan, state, device, *, limit, commit, dirty, rehearse=False):
        self.plan, self.state, self.device, self.rehearse = plan, state, device, rehearse
        self.deadline = time.time() + limit - plan.end
        self.stamp = {"commit": commit, "dirty": dirty}
        self.child = None

    def begin(self, sources, retry=False):
        """Read the suites, and go on after what *sources* hold."""
        self.state.open()
        for source in sources:
            _ = source.header  # a state that is none is named before anything runs
        states.load_kernels(sources[0].folder if sources else "", KERNELS)
        self.names, header = survey(self.plan.suites(), self.device)
        header["rehearsal"] = self.rehearse
        self.state.begin(header, sources, retry)
        self.shares = self.plan.share_out(self.names)

    def warm(self, first=1):
        """Compile the kernels of piece *first* side by side; of it nothing is kept but their cache.

        A benchmark alone would compile them one after another, on one core of many.
        """
        done = {name for suite in self.plan.kernels for name in self.finished(suite)}
        share = self.shares[first]
        names = [name for name in share if name not in done and self.plan.warms(name)]
        if not names:
            return
        until = min(time.time() + self.plan.warm_seconds, self.deadline)
        print(f"warming: {len(names)} sets of kernels", flush=True)
        children = [
            subprocess.Popen(
                pytest_command([address(name)], self.device, {}),
                cwd=main.ROOT,
                env=environment(kernels=True),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
            for name in names
        ]
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(until - time.time(), 0))
        for child, name in zip(children, names, strict=True):
            if child.poll() is None:
                print(f"    not ready in time: {name}", flush=True)
                end(child)

    def finished(self, suite):
        return {f"{suite}:{one['name']}" for one in self.state.part(suite).finished}

    def run(self, first=1):
        """Measure from piece *first* on; what its budget left out comes when all had their turn."""
        for within_budget in (True, False):
            for piece in self.plan.pieces[first - 1 :]:
                end = time.time() + piece.seconds if within_budget else self.deadline
                self.measure(piece, min(end, self.deadline))

    def measure(self, piece, until):
        names = self.shares[piece.number]
        for suite in dict.fromkeys(name.partition(":")[0] for name in names):
            asked = [name.partition(":")[2] for name in names if name.startswith(f"{suite}:")]
            part = self.state.part(suite)
            while todo := [name for name in asked if name not in part.ended()]:
                if time.time() + self.plan.start + self.plan.first > until:
                    return
                self.describe(part, suite)
                print(f"[{piece.number}] {suite}: {len(todo)} to measure", flush=True)
                if not self.attempt(part, suite, todo, until):
                    break

    def describe(self, part, suite):
        """What a record says of the code, and which benchmarks it could have."""
        code = main.LIBRARY.hashes(suite)
        stamp = self.stamp | {"code": code, "versions": main.versions(suite)}
        every = [name.partition(":")[2] for name in self.names if name.startswith(f"{suite}:")]
        if part.state is None:
            part.add(state=stamp)
            part.add(every=every)

    def attempt(self, part, suite, todo, until):
        """Start pytest for *todo*; return whether it is worth another start for what is left."""
        asked = {
            "state": str(self.state.path),
            "suite": suite,
            "until": until,
            "first": self.plan.first,
            "rehearse": self.rehearse,
        }
        files = [address(f"{suite}:{name}") for name in todo]
        before = part.ended()
        self.child = subprocess.Popen(
            pytest_command(files, self.device, asked),
            cwd=main.ROOT,
            env=environment(kernels=suite in self.plan.kernels),
            process_group=0,  # so that what the benchmark started ends with it
        )
        try:
            return self.watch(part, todo) and part.ended() != before
        finally:
            self.end_child()
            self.state.mend()

    def watch(self, part, todo):
        """Wait for the child; end it when one benchmark takes too long or the time is over."""
        start = began = time.time()
        seen, name = 0, None
        while (code := self.poll()) is None:
            size = self.state.path.stat().st_size
            if size != seen:  # reading costs what is measured a little
                seen = size
                began, name = in_flight(part, start) or (time.time(), None)
            spent = round(time.time() - began, 1)
            over = time.time() > self.deadline
            if over or spent > (self.plan.longest if name else START_S):
                self.end_child()
                if name and over:
                    self.note(part, cut={"name": name, "seconds": spent})
                elif name:
                    reason = f"took longer than {self.plan.longest} s and was ended"
                    self.note(part, hung={"name": name, "reason": reason})
                return bool(name) and not over  # a suite that does not start is left alone
        if code == CANNOT_KEEP:
            raise states.StateError(f"cannot keep results in {self.state.folder}: see above")
        flying = in_flight(part, start)
        if code >= 0 and not flying:
            return False  # all had their turn, or no time is left
        name = flying[1] if flying else todo[0]
        self.note(part, died={"name": name, "reason": f"the process ended with {code}"})
        return True

    def poll(self):
        try:
            return self.child.wait(WATCH_S)
        except subprocess.TimeoutExpired:
            return None

    def note(self, part, **line):
        """Write what the child can no longer write itself."""
        self.state.mend()
        try:
            part.add(**line)
        except OSError as error:
            raise states.StateError(f"cannot keep results: {error}") from None

    def end_child(self):
        end(self.child)

    def pack(self):
        """Keep Triton's kernels for the next command."""
        if any(KERNELS.iterdir()):
            size = states.save_kernels(KERNELS, self.state.folder)
            print(f"kernels: {size:,} B" if size else "kernels: too many to send back")


def end(child):
    """End *child* and all that it started in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold a process back
        child.wait(ENDING_S)


def in_flight(part, since):
    """When the benchmark began that has no end yet, and its name; None if there is none."""
    begun = None
    for line in part.lines():
        if "started" in line and line["started"]["at"] >= since:
            begun = line["started"]["at"], line["started"]["name"]
        elif {"took", "hung", "died", "cut"} & line.keys():
            begun = None
    return begun
