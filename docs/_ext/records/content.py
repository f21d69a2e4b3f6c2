"""What a record looks like on a page: values, tables, stamps; ``directives`` places it."""

import re
from math import ceil, floor, log10

from docutils import nodes

from benchmarks import record as records
from benchmarks.record import AGAIN
from docs._ext.records.store import library, link_csv, link_record, link_stamp, stamp_id
from docs._ext.support import table_nodes
from docs._ext.support.charts import written

SAME = 1.05  # values whose ratio is at most about this are about the same
ONCE = "one run"
RATIO = {"unit": "1", "exact": False, "description": ""}
SMALL = 1e-3  # written with a power of ten below it
MOST_METRICS = 5  # columns for which a page has room
TIMED = re.compile(r"(Wall t|T)ime\b")
EMPHASIS = re.compile(r"(?<![\w*-])\*(\w[^*]*\w)\*(?!\w)")  # not the stars of trunk-*

# -- Values ----------------------------------------------------------------------


def counted(declared):
    """Whether a value is a count, to be shown whole. What comes from a time is none."""
    timed = declared["unit"] == "s" or TIMED.match(declared["description"])
    return declared["exact"] and not timed


def once(declared, values):
    """Whether *values* are of a single measurement, which has no spread."""
    several = "summary" in declared or "median" in declared["description"].lower()
    return values["rounds"] == 1 and not counted(declared) and not several


def with_interval(found, metric):
    """The values of a *metric* among those *found*, with ``_low`` and ``_high`` as its range.

    A metric that is an end of such a range has no cell of its own: :func:`whole`.
    """
    values = found[metric]
    if f"{metric}_low" not in found:
        return values
    low, high = (found[f"{metric}_{end}"]["median"] for end in ("low", "high"))
    return values | {"q1": low, "q3": high, "iqr": high - low}


def whole(metrics):
    """The *metrics* without those that are the ends of the range of another."""
    ends = {f"{metric}_{end}" for metric in metrics for end in ("low", "high")}
    return [metric for metric in metrics if metric not in ends]


def last_digit(declared, values):
    """The power of ten of the last digit that the spread of *values* allows.

    A step of that digit is at most half of what lies between the quartiles. Two digits stay all the
    same, of a single measurement as well, and there are at most three; two of a ratio below 1,
    which is read in the same steps as one above.
    """
    first = floor(log10(abs(values["median"]) or 1))
    most = first - (1 if declared["unit"] == "1" and first < 0 else 2)
    if once(declared, values):
        return first - 1
    if not values["iqr"]:
        return most
    return max(most, min(first - 1, floor(log10(values["iqr"] / 2))))


def numbers(declared, values, points):
    """The *points* of *values* as texts without a unit, and their unit."""
    unit = declared["unit"]
    factor, name = records.scale(unit, values["median"])
    if counted(declared) and unit != "%":  # a share of counts need not be whole
        return [records.number(unit, values[point], factor) for point in points], name
    last = last_digit(declared, values)
    places = max(0, round(log10(factor)) - last)
    if name == "B" or (name == "1" and abs(values["median"]) < SMALL):
        return [records.number(unit, round(values[point], -last), factor) for point in points], name
    texts = (f"{round(values[point], -last) / factor:,.{places}f}" for point in points)
    return [text.replace("-", "\N{MINUS SIGN}") for text in texts], name


def with_unit(text, name):
    return f"{text}\u00a0{name}".removesuffix("\u00a01")


def ratio(over, under):
    """The ratio of two values with its digits, and a multiplication sign."""
    found = {
        point: over[point] / under[other]
        for point, other in (("q1", "q3"), ("median", "median"), ("q3", "q1"))
    }
    found |= {"iqr": found["q3"] - found["q1"], "rounds": min(over["rounds"], under["rounds"])}
    [text], _ = numbers(RATIO, found, ["median"])
    return f"{text}×"


def shown(declared, values, reasons):
    """A value as text; *reasons* say why it no longer stands."""
    if reasons:
        return AGAIN
    [text], name = numbers(declared, values, ["median"])
    return with_unit(text, name)


def shown_with_spread(declared, values, reasons=(), say_once=True):
    """A value as a cell of a table; *say_once* where its column does not say "one run"."""
    if once(declared, values) and not reasons:
        return shown(declared, values, reasons) + (f", {ONCE}" if say_once else "")
    if reasons or (values["rounds"] == 1 and not values["iqr"]):
        return shown(declared, values, reasons)
    (low, middle, high), name = numbers(declared, values, ("q1", "median", "q3"))
    to = "\u00a0to\u00a0" if low.startswith(("-", "\N{MINUS SIGN}")) else "–"
    text = with_unit(middle, name)
    if low != high:
        text += f" ({low}{to}{high})"
    return f"{text}, noisy" if records.is_noisy(declared, values) else text


def where_and_when(record):
    """One line on the machine, the stack and the date of *record*."""
    machine, versions, taken = record["machine"], record["versions"], record["taken"]
    plural = "" if taken["threads"] == 1 else "s"
    return (
        f"{machine['device_name']}, {machine['cores']} cores, {taken['threads']} thread{plural}; "
        f"torch {versions['torch']}, torchrl {versions['torchrl']}; {taken['date'][:10]}"
    )


def hover(record, declared, values, reasons):
    if reasons:
        return f"{declared['title']}: {'; '.join(reasons)}"
    if counted(declared):
        spread = "exact"
    elif "summary" in declared:
        spread = declared["description"].rstrip(".")
    elif once(declared, values):
        spread = ONCE
    else:
        texts, name = numbers(declared, values, ("q1", "q3"))
        low, high = (with_unit(text, name) for text in texts)
        spread = f"median of {values['rounds']} rounds, quartiles {low} and {high}"
        spread += ", noisy" if records.is_noisy(declared, values) else ""
    return f"{declared['title']}: {spread}. {where_and_when(record)}"


def described(series, metric, x_title, x_unit):
    """The alternative text of a plot: the finding. The values stand in ``points_table``.

    It says who is lowest and highest at both ends of an axis of numbers, and elsewhere, or of one
    series alone, where it is.
    """
    said = [f"{metric.title} by {x_title[0].lower()}{x_title[1:]}."]
    by_x = {}
    for one in series:
        for x, values in one.points:
            by_x.setdefault(x, []).append((values["median"], one.name))
    shared = [x for x, found in by_x.items() if len(found) > 1 and not isinstance(x, str)]
    for x in dict.fromkeys((min(shared), max(shared))) if shared else ():
        (low, lowest), (high, highest) = min(by_x[x]), max(by_x[x])
        at = f"At {written(x_unit, x, None)},"
        if high - low <= (SAME - 1) * min(abs(low), abs(high)):
            said.append(f"{at} all are about {metric.text(high)}.")
            continue
        # Beside a value below zero, a ratio means nothing.
        times = f", {written('1', float(f'{high / low:.2g}'))} times as much" if low > 0 else ""
        said.append(
            f"{at} the lowest is {lowest} ({metric.text(low)}) and the highest is {highest} "
            f"({metric.text(high)}){times}."
        )
    for one in () if shared else series:
        (_, low), (_, high) = (
            (values["median"], f"{metric.text(values['median'])} at {written(x_unit, x, None)}")
            for x, values in (
                pick(one.points, key=lambda point: point[1]["median"]) for pick in (min, max)
            )
        )
        of = f" of {one.name}" if one.name else ""
        said.append(f"Lowest{of}: {low}; highest: {high}.")
    return " ".join(said)


def points_table(series, declared, x_title, x_unit):
    """The values of a plot, with their quartiles, below a line that opens the table."""
    xs = list(dict.fromkeys(x for one in series for x, _ in one.points))
    if not any(isinstance(x, str) for x in xs):
        xs.sort()
    found = {
        key: shown_with_spread(declared, values)
        for one in series
        for x, values in one.points
        for key in ((one.name, x), (x, one.name))
    }
    named = {one.name: one.name or declared["title"] for one in series}
    places = {x: written(x_unit, x, None) for x in xs}
    across, down = (places, named) if len(places) <= len(named) else (named, places)
    corner = x_title if down is places else declared["title"]
    rows = [
        [text, *(found.get((one, other)) or missing() for other in across)]
        for one, text in down.items()
    ]
    said = "Values as a table"
    if not declared["exact"]:
        said += "; bars show the quartiles"
    return fold("record-points", said, table([corner, *across.values()], rows))


def fold(kind, summary, *content):
    """The *content* below a line that opens it, as a ``details`` element of a class."""
    opening = f'<details class="{kind}"><summary>{summary}</summary>'
    return [
        nodes.raw("", opening, format="html"),
        *content,
        nodes.raw("", "</details>", format="html"),
    ]


# -- Tables ----------------------------------------------------------------------


def values_table(record, titles, metrics, outdated, title=None, keys=False):
    """The table of benchmarks by key, with what their rows are called.

    With *keys*, for who wants to cite them, the rows have both.
    """
    declared = {metric: record["metrics"][metric] for metric in whole(metrics)}
    measured = {key: record["benchmarks"][key]["metrics"] for key in titles}
    singles = {
        metric
        for metric, one in declared.items()
        if {once(one, found[metric]) for found in measured.values() if metric in found} == {True}
    }
    header = ["Benchmark, key" if keys else "Benchmark"]
    header += [
        f"{one['title']}, {ONCE}" if metric in singles else one["title"]
        for metric, one in declared.items()
    ]
    rows = []
    for key, name in titles.items():
        own = nodes.inline("", "", code(key), classes=["record-key"])
        row = [[name, " ", own] if keys else name]
        for metric, one in declared.items():
            values = with_interval(measured[key], metric) if metric in measured[key] else None
            reasons = outdated.get(key, [])
            say_once = metric not in singles
            row.append(shown_with_spread(one, values, reasons, say_once) if values else missing())
        rows.append(row)
    return table(header, rows, title)


def table(header, rows, title=None, ids=()):
    return table_nodes.table(header, rows, classes=["record-table"], title=title, ids=ids)


def missing():
    """The cell of what was not measured."""
    return nodes.inline("", "–", classes=["not-measured"])


def code(text):
    """Text that is to be copied: no typographic quotes or dashes."""
    return nodes.literal(text, text)


def stamp_line(env, record, outdated, full=True, values=None):
    """The paragraph below a table or a plot: where and when, with links; *full* to its stamp.

    The last link is *values*, or leads to all values of the record.
    """
    address = f"{record['suite']}@{record['device']}"
    reasons = "; ".join(records.reasons(outdated))
    mark = AGAIN.capitalize() if reasons else "Measured"
    text = f": {reasons}. " if reasons else " on "
    remark = library(env).remark(record)
    where, _, day = where_and_when(record).rpartition(" ")
    paragraph = nodes.paragraph("", "", nodes.strong(mark, mark), classes=["record-stamp"])
    paragraph += [nodes.Text(f"{text}{where} "), nodes.inline("", day, classes=["one-line"])]
    text = f" ({remark}). " if remark else ". "
    if waiting := record.get("unmeasured"):
        text += f"{len(waiting)} more benchmarks of this suite are not measured yet. "
    if above := records.noisy(record):
        verb = "is" if len(above) == 1 else "are"
        text += f"{len(above)} of {records.spread(record)} measured values {verb} noisy. "
    paragraph += nodes.Text(text)
    if full:
        paragraph += link_stamp(env, address, "Full stamp")
        paragraph += nodes.Text(", ")
    paragraph += link_record(env, address, "raw data" if full else "Raw data")
    paragraph += nodes.Text(", ")
    paragraph += values or link_csv(env, record, address)
    paragraph += nodes.Text(".")
    return paragraph


def noise(record):
    """A sentence on the values whose spread is above the bound; empty if there is none."""
    above = records.noisy(record)
    if not above:
        return ""
    bound = records.text("%", 100 * records.NOISE_BOUND)
    return (
        f"{len(above)} of {records.spread(record)} measured values are noisy: their quartiles lie "
        f"further apart than {bound} of the median. "
    )


# -- Stamps ----------------------------------------------------------------------


def index_list(env, taken):
    """Pairs of an address and its record as a table of suites: a link for each device."""
    suites = {}
    for address, record in taken:
        row = suites.setdefault(record["suite"], {"": record["title"]})
        row[record["device"]] = link_stamp(env, address, record["taken"]["date"][:10])
    rows = [
        [code(suite), row[""], *(row.get(device, "–") for device in records.DEVICES)]
        for suite, row in suites.items()
    ]
    names = ["Suite", "What was measured", *(device.upper() for device in records.DEVICES)]
    return table_nodes.table(names, rows, classes=["record-table", "record-list"])


def index_entry(env, record, outdated):
    """The section of a record: its stamp in one line; the rest is closed."""
    address = f"{record['suite']}@{record['device']}"
    title = f"{record['title']} ({record['device'].upper()})"
    section = nodes.section("", nodes.title(title, title), ids=[stamp_id(address)])
    section += stamp_line(env, record, outdated, full=False)
    stamp = table(["Stamp", address], [list(pair) for pair in full_stamp(record, outdated)])
    about = nodes.paragraph("", "", *with_literals(record["description"]))
    section += fold("record-fold", "How it was measured, and the full stamp", about, stamp)
    metrics = [
        [code(metric), unit_and_kind(record, metric), declared["description"]]
        for metric, declared in record["metrics"].items()
    ]
    section += fold(
        "record-fold",
        f"Metrics ({len(metrics)})",
        table(["Metric", "Unit", "Meaning"], metrics),
    )
    if len(outdated) < len(record["benchmarks"]):
        chosen = record["benchmarks"]
        values = [values_table(record, *part, outdated, keys=True) for part in parts(record)]
        section += fold("record-fold", f"Values of {len(chosen)} benchmarks", *values)
    return section


def parts(record):
    """Benchmarks with the same metrics, by key, and of these as many as stand beside each other."""
    alike = {}
    for key, one in record["benchmarks"].items():
        metrics = tuple(metric for metric in record["metrics"] if metric in one["metrics"])
        alike.setdefault(metrics, {})[key] = one["title"]
    for metrics, titles in alike.items():
        metrics = whole(metrics)
        size = ceil(len(metrics) / ceil(len(metrics) / MOST_METRICS))
        for start in range(0, len(metrics), size):
            yield titles, metrics[start : start + size]


def with_literals(text):
    """The nodes of a suite's docstring: double backticks are code, stars around words emphasis."""
    found = []
    for place, part in enumerate(text.split("``")):
        pieces = [part] if place % 2 else EMPHASIS.split(part)
        for number, piece in enumerate(pieces):
            said = nodes.emphasis(piece, piece) if number % 2 else nodes.Text(piece)
            found.append(code(piece) if place % 2 else said)
    return found


def unit_and_kind(record, metric):
    """How the values of a metric are to be read."""
    declared = record["metrics"][metric]
    unit = {"1": "no unit"}.get(declared["unit"], declared["unit"])
    if kind := next((one for one in ("exact", "summary") if declared.get(one)), None):
        return f"{unit}, {kind}"
    found = [entry["metrics"].get(metric) for entry in record["benchmarks"].values()]
    measured = [values for values in found if values]
    if not measured:
        return f"{unit}, not measured on this device"
    rounds = min(values["rounds"] for values in measured)
    if rounds == max(values["rounds"] for values in measured) == 1:
        return f"{unit}, {ONCE}"
    warmup = min(values["warmup_rounds"] for values in measured)
    after = f" after {warmup} unmeasured" if warmup else ""
    return f"{unit}, median (quartiles) of {rounds} rounds{after}"


def full_stamp(record, outdated):
    """Every field of the stamp with its name."""
    taken, machine = record["taken"], record["machine"]
    reasons = "; ".join(records.reasons(outdated))
    yield "Validity", f"{AGAIN}: {reasons}" if reasons else "code and stack unchanged"
    yield "Date", taken["date"]
    yield "Commit", code(taken["commit"] + (" with uncommitted changes" if taken["dirty"] else ""))
    yield "Command", code(taken["command"])
    hashes = (f"{name} {one['hash'][:16]}…" for name, one in sorted(record["code"].items()))
    yield "Code", code(", ".join(hashes))
    memory = machine.get("device_memory")
    size = f", {records.text('B', memory)}" if memory else ""
    yield "Device", machine["device_name"] + size
    yield "Processor", f"{machine['cpu']}, {machine['cores']} cores"
    yield "Memory", records.text("B", machine["memory"])
    yield "System", f"{machine['os']}, Python {machine['python']}"
    yield "Threads", str(taken["threads"])
    if taken.get("sittings", 1) > 1:
        yield "Sittings", f"{taken['sittings']}: the run was interrupted and went on"
    if remark := taken.get("remark"):
        yield "Beside it", remark
    yield "Noise", noise(record) or "no measured value spreads above the bound"
    if waiting := record.get("unmeasured"):
        names = [part for name in waiting for part in (nodes.Text(", "), code(name))]
        yield "Not measured yet", names[1:]
    for one in record.get("skipped", []):
        yield "Not measured", [code(one["name"]), nodes.Text(f": {one['reason']}")]
    variables = (f"{name}={value}" for name, value in sorted(taken["environment"].items()))
    yield "Environment variables", ", ".join(variables) or "none of those that matter"
    versions = sorted(record["versions"].items())
    yield "Versions", ", ".join(f"{name} {version or 'absent'}" for name, version in versions)
