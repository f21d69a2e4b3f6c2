"""What a defect is, what the doctor says about it, and the table of it all."""

import binascii
import collections
import inspect
import re
import time
import warnings
from typing import NamedTuple

import torchrl_doctor
from torchrl_doctor import APPLIES, CLEAR, FAILED, diagnose

from tests.support.defects.pipelines import PIPELINES


class Defect(NamedTuple):
    """Something that a user does wrong in a healthy pipeline.

    ``slugs`` are the rows of the map that name it; the first is *promised* where a row is about
    this very defect. Without one, a finding has to have all of ``words`` (regular expressions).
    """

    name: str
    subsystem: str
    pipeline: str
    slugs: tuple
    words: tuple
    loud: bool | None  # whether it raises; None: it may
    alter: object
    newer: bool = False

    @property
    def promised(self):
        return bool(self.slugs) and not self.words

    @property
    def group(self):
        if self.newer:
            return "newer"
        return "kept aside" if is_kept_aside(self.alter.__name__) else "seen"

    @property
    def kind(self):
        """One of `GROUPS`."""
        return ("promised" if self.promised else "others", self.group)

    def names(self, finding):
        """Whether *finding* (a dictionary) tells what is wrong."""
        if finding["state"] != APPLIES:
            return False
        said = " ".join((finding["slug"].replace("_", " "), finding["title"], finding["evidence"]))
        return finding["slug"] in self.slugs or (
            bool(self.words) and all(re.search(word, said, re.I) for word in self.words)
        )


GROUPS = (
    ("promised", "seen"),
    ("promised", "kept aside"),
    ("promised", "newer"),
    ("others", "seen"),
    ("others", "kept aside"),
)
MORE_ROUNDS = 6  # of training that is watched


def is_kept_aside(name):
    """Every third, by a checksum of its name."""
    return binascii.crc32(name.encode()) % 3 == 0


class Defects(dict):
    """Defects by name; `plant` adds one for each pipeline."""

    newer = False

    def plant(self, subsystem, pipelines, *slugs, words=(), loud=False):
        def added(alter):
            for pipeline in pipelines.split():
                name = f"{alter.__name__} in {pipeline}"
                assert name not in self, name
                words_ = (words,) if isinstance(words, str) else words
                self[name] = Defect(
                    name, subsystem, pipeline, slugs, words_, loud, alter, self.newer
                )
            return alter

        return added


def looked_at(script):
    """What the doctor says about a script: of one look, and of watching it go on.

    Each finding has the number of its look. A script that raised is not watched.
    """
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        given = script.build()
        built = time.perf_counter()
        reports = [diagnose(**accepted(diagnose, given), seconds=60)]
        if hasattr(torchrl_doctor, "watch") and script.goes_on and "error" not in given:
            report, given["error"] = watched(script)
            reports.append(report)
        looked = time.perf_counter()
        script.shutdown()
    findings = [
        {"slug": one.slug, "title": one.title, "state": one.state, "evidence": one.evidence}
        | {"look": number}
        for number, report in enumerate(reports, 1)
        for one in report or ()
    ]
    error = given.get("error")
    return {
        "findings": findings,
        "notes": [str(note) for note in reports[0].notes],
        "error": error and f"{type(error).__name__}: {error}",
        "warnings": sorted({f"{one.category.__name__}: {one.message}" for one in warned}),
        "build_s": built - start,
        "look_s": looked - built,
    }


def accepted(function, given):
    """Those of the parts that the function takes."""
    taken = inspect.signature(function).parameters
    return {name: part for name, part in given.items() if name in taken}


def watched(script):
    """The report about some more rounds of training, and what they raised."""
    script.rounds = max(script.rounds, MORE_ROUNDS)
    watch = torchrl_doctor.watch
    # How much is recorded must not depend on how fast the machine is.
    error = None
    try:
        with watch(**accepted(watch, script.given()), share=1.0, seconds=60) as watching:
            script.train()
            script.finish("train")
    except Exception as raised:
        error = raised
    return watching.report, error


def healthy(name):
    return looked_at(PIPELINES[name]())


def broken(defect):
    script = PIPELINES[defect.pipeline]()
    defect.alter(script)
    return looked_at(script)


def alarms(seen):
    return [one for one in seen["findings"] if one["state"] in (APPLIES, FAILED)]


def is_named(defect, seen, looks=2):
    """Whether one of the first *looks* names the defect."""
    return any(defect.names(one) for one in seen["findings"] if one["look"] <= looks)


def wrongly_clear(defect, seen):
    """Rows that promise this defect and say ``clear``."""
    if not defect.promised:
        return []
    return [
        one for one in seen["findings"] if one["slug"] == defect.slugs[0] and one["state"] == CLEAR
    ]


def share(defects, results, looks=2):
    """How many are named, and of how many."""
    return sum(is_named(one, results[one.name], looks) for one in defects), len(defects)


def table(defects, results):
    """Shares by subsystem, of what the map promises and of the rest, by `GROUPS`."""
    groups = collections.defaultdict(list)
    for one in defects:
        for row in (one.subsystem, "all"):
            groups[row, one.kind].append(one)
    heads = [f"{kind}, {group}" for kind, group in GROUPS]
    lines = [f"{'named of planted':30}" + "".join(f"{head:>22}" for head in heads)]
    rows = [(row, row, 2) for row in sorted({one.subsystem for one in defects})]
    rows += [("all", "all", 2), ("all, without watching", "all", 1)]
    for title, row, looks in rows:
        cells = []
        for kind in GROUPS:
            named, planted = share(groups[row, kind], results, looks)
            cells.append(f"{named} of {planted}" if planted else "")
        lines.append(f"{title:30}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def misses(defects, results):
    """What is not named, and which promised rows say ``clear``; of what is seen alone."""
    lines = []
    for one in sorted(defects, key=lambda one: (not one.promised, one.subsystem)):
        if one.group != "seen":
            continue
        result = results[one.name]
        wanted = " or ".join(one.slugs) or " and ".join(f"/{word}/" for word in one.words)
        lines += [
            f"wrong clear: {one.name}: {said['evidence']}" for said in wrongly_clear(one, result)
        ]
        if not is_named(one, result):
            raised = f", raised {result['error']}" if result["error"] else ""
            lines.append(f"missed: {one.subsystem}: {one.name}: {wanted}{raised}")
    return "\n".join(lines)
