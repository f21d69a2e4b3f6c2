"""Compare two records of one suite, if they are of the same work on the same kind of machine.

``python -m benchmarks --compare BEFORE AFTER`` prints the comparison; ``record-repeat`` shows how
far the second record of a suite repeats the first.
"""

from statistics import median
from typing import NamedTuple

from benchmarks import record


class IncomparableError(ValueError):
    """Two records whose difference would say nothing; the text says why."""


class Row(NamedTuple):
    """One measured value, before and after."""

    key: str
    metric: str
    unit: str
    before: dict
    after: dict

    @property
    def factor(self):
        """After divided by before; None where that has no meaning."""
        if not self.before["median"]:
            return None
        return self.after["median"] / self.before["median"]

    @property
    def overlaps(self):
        """Whether the quartiles of the two meet, so that noise may be all there is."""
        return self.before["q1"] <= self.after["q3"] and self.after["q1"] <= self.before["q3"]

    def __str__(self):
        old, new = (record.text(self.unit, one["median"]) for one in (self.before, self.after))
        factor = "" if self.factor is None else f", factor {record.text('1', self.factor)}"
        verdict = "within the quartiles" if self.overlaps else "differs"
        return f"{self.key}:{self.metric}: {old} -> {new}{factor}: {verdict}"


def compare(before, after):
    """The rows of all values that have a spread in both records.

    Raises :class:`IncomparableError` unless suite, code, kind of device, threads and versions
    agree. Another processor of the same kind is allowed: ratios may hold there, times need not.
    """
    reasons = list(_differences(before, after))
    if reasons:
        raise IncomparableError(
            f"these records of {before['suite']}@{before['device']} do not compare: "
            + "; ".join(reasons)
        )
    return [
        Row(key, metric, before["metrics"][metric]["unit"], values, found)
        for key, benchmark in before["benchmarks"].items()
        for metric, values in benchmark["metrics"].items()
        if not before["metrics"][metric]["exact"]
        and (found := after["benchmarks"].get(key, {}).get("metrics", {}).get(metric))
    ]


def _differences(before, after):
    def said(name, one, other):
        if one != other:
            yield f"{name} {one} against {other}"

    yield from said("suite", before["suite"], after["suite"])
    yield from said("device", before["device"], after["device"])
    for name in sorted(before["code"].keys() & after["code"].keys()):
        one, other = (record["code"][name]["hash"][:16] for record in (before, after))
        yield from said(f"code of {name}", one, other)
    yield from said("threads", before["taken"]["threads"], after["taken"]["threads"])
    for name in sorted(before["versions"].keys() | after["versions"].keys()):
        yield from said(name, before["versions"].get(name), after["versions"].get(name))


class Repeat(NamedTuple):
    """How far the values of a second record lie from those of the first, as shares of the first."""

    values: int
    typical: float
    largest: float
    where: str
    within: int


def repeat(before, after, metrics, bound=record.NOISE_BOUND):
    """Judge all values of *metrics* in two records; *within* counts those nearer than *bound*."""
    for metric in metrics:
        record.choose(metric, before["metrics"], "metric", before["suite"])
    rows = [row for row in compare(before, after) if row.metric in metrics and row.factor]
    if not rows:
        raise IncomparableError(f"the records of {before['suite']} share no value of {metrics}")
    distance = {f"{row.key}:{row.metric}": abs(row.factor - 1) for row in rows}
    where = max(distance, key=distance.get)
    within = sum(one <= bound for one in distance.values())
    return Repeat(len(rows), median(distance.values()), distance[where], where, within)
