"""Reach a record from a page, and link to it.

A page depends on every file that decides what it shows, and waits for a record that is absent.
"""

import csv
from functools import lru_cache
from io import StringIO

from docutils import nodes
from sphinx.util import logging

from benchmarks import record as records
from docs._ext.support.page_state import link, link_file, page_state

logger = logging.getLogger(__name__)
DOWNLOADS = "_downloads/records"
ABSENT = "records: absent"  # page -> files of records that it waits for


def library(env):
    return records.Library(env.config.records_folder, env.config.records_requirements)


def split_address(address):
    suite, separator, device = address.partition("@")
    if not separator:
        raise records.UnknownError(f"expected suite@device, found {address!r}")
    return suite, device


def reach(env, suite, device):
    """Return a record and why which of its benchmarks is outdated.

    The page then depends on what decides both.
    """
    found = library(env)
    path = found.path(suite, device)
    decisive = [*found.code(suite), found.requirements]
    if path.is_file():
        decisive.append(path)
    for item in decisive:
        env.note_dependency(item)
    if path not in decisive:  # as a dependency it would have the page read on every build
        page_state(env, ABSENT).setdefault(env.docname, set()).add(path)
        found.find(suite, device)
    stamps = tuple((str(item), item.stat().st_mtime_ns) for item in decisive)
    return _judged(found.folder, found.requirements, suite, device, stamps)


@lru_cache
def _judged(folder, requirements, suite, device, stamps):
    found = records.Library(folder, requirements)
    record = found.find(suite, device)
    return record, found.outdated(record)


def complain(env, error, location):
    """Report *error* as a warning of the content, in every build until it is cured."""
    env.note_reread()
    kinds = {records.UnknownError: "unknown", records.AbsentError: "absent"}
    subtype = kinds.get(type(error), "malformed")
    logger.warning("%s", error, location=location, type="records", subtype=subtype)


def note_outdated(address, reasons, location):
    if reasons:
        logger.info("%s is %s: %s", address, records.AGAIN, "; ".join(reasons), location=location)


def stamp_id(address):
    return nodes.make_id(f"record-{address}")


def link_stamp(env, address, text, hover=None):
    """A link to the stamp of a record; as a value of it, where there is something to *hover*."""
    content = nodes.inline(text, text, classes=["measured"] if hover else [])
    return link(env, "stamp", address, content, hover)


def link_record(env, address, text):
    """A link to a record itself."""
    path = f"{DOWNLOADS}/{address.replace('@', '-')}.json"
    source = library(env).path(*split_address(address))
    return link_file(env, source, path, nodes.inline(text, text))


def link_csv(env, record, address):
    """A link to every value of *record*, one on a line."""
    path = f"{DOWNLOADS}/{address.replace('@', '-')}.csv"
    return link_file(env, as_csv(record), path, nodes.inline("", "CSV"))


def link_chart_csv(env, record, name, keys, metric):
    """A link to the values of a chart, whose *name* is its own on its page."""
    path = f"{DOWNLOADS}/{env.docname.replace('/', '-')}-{name}.csv"
    text = as_csv(record, keys, [metric])
    return link_file(env, text, path, nodes.inline("", "CSV of this chart"))


def as_csv(record, keys=None, metrics=None):
    """The values of *record*: key and title, each parameter, the metric, its quartiles.

    All of them, or those of some *keys* and *metrics*.
    """
    chosen = record["benchmarks"] if keys is None else keys
    benchmarks = [(key, record["benchmarks"][key]) for key in chosen]
    parameters = list(dict.fromkeys(name for _, one in benchmarks for name in one["parameters"]))
    points = ("median", "q1", "q3", "min", "max", "rounds")
    output = StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["key", "title", *parameters, "metric", "unit", *points])
    for key, one in benchmarks:
        given = [one["parameters"].get(name, "") for name in parameters]
        for metric, values in one["metrics"].items():
            if metrics and metric not in metrics:
                continue
            unit = record["metrics"][metric]["unit"]
            found = (values[point] for point in points)
            writer.writerow([key, one["title"], *given, metric, unit, *found])
    return output.getvalue()
