"""The record format: read, check, write and judge ``results/<suite>/<device>.json``.

Imports neither torch nor a suite: every build of the documentation reads records through here.
"""

import difflib
import json
import os
import re
import tempfile
from pathlib import Path

import jsonschema

from benchmarks import code_hash

FORMAT = 2
DEVICES = ("cpu", "cuda")
UNITS = code_hash.UNITS
STACK = ("torch", "torchrl", "tensordict")
# What the suites measure. torch stands in the stamp: a GPU machine often has a build of its own.
MEASURED = ("torchrl", "tensordict")
AGAIN = "to be measured again"
# A measured value whose quartiles lie further apart, as a share of its median, is called noisy.
NOISE_BOUND = 0.25
LEAST_ROUNDS_WITH_SPREAD = 4
RETAKE = "python -m benchmarks --device {device} --suite {suite}"


class RecordError(ValueError):
    """A record that cannot be trusted; the text names the file, the place and the cure."""


class UnknownError(RecordError):
    """A name that no suite, record or metric bears; the text names the nearest that exists."""


class AbsentError(RecordError):
    """A record of a suite that exists, or a result in it, not taken yet."""


# -- Format --------------------------------------------------------------------


def _object(properties, optional=()):
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(set(properties) - set(optional)),
        "additionalProperties": False,
    }


def _named(values):
    """An object with free keys: those that a role can spell."""
    return {
        "type": "object",
        "propertyNames": {"pattern": r"^[a-z0-9][a-z0-9_.-]*$"},
        "additionalProperties": values,
        "minProperties": 1,
    }


_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 1}
_MEASUREMENT = _object(
    {
        **{point: {"type": "number"} for point in ("min", "q1", "median", "q3", "max", "iqr")},
        "rounds": _COUNT,
        "warmup_rounds": {"type": "integer", "minimum": 0},
    }
)
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **_object(
        {
            "format": {"const": FORMAT},
            "suite": _TEXT,
            "device": {"enum": list(DEVICES)},
            "title": _TEXT,
            "description": _TEXT,
            "code": _named(
                _object(
                    {
                        "hash": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
                        "keys": {"type": "array", "items": _TEXT, "minItems": 1},
                    }
                )
            ),
            "taken": _object(
                {
                    "date": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
                    "commit": {"type": "string", "pattern": "^[0-9a-f]{40}$"},
                    "dirty": {"type": "boolean"},
                    "command": _TEXT,
                    "environment": {"type": "object", "additionalProperties": {"type": "string"}},
                    "threads": _COUNT,
                    "sittings": _COUNT,
                    "remark": _TEXT,  # what else the machine did
                },
                optional=("sittings", "remark"),
            ),
            "skipped": {
                "type": "array",
                "items": _object({"name": _TEXT, "reason": _TEXT}),
                "minItems": 1,
            },
            "unmeasured": {"type": "array", "items": _TEXT, "minItems": 1},
            "noise": _object(
                {
                    "bound": {"type": "number", "exclusiveMinimum": 0},
                    "above": {"type": "array", "items": _TEXT},
                }
            ),
            "machine": _object(
                {
                    "device_name": _TEXT,
                    "device_memory": _COUNT,
                    "cpu": _TEXT,
                    "cores": _COUNT,
                    "memory": _COUNT,
                    "os": _TEXT,
                    "python": _TEXT,
                },
                optional=("device_memory",),
            ),
            "versions": {
                "type": "object",
                "additionalProperties": {"type": ["string", "null"]},
                "required": sorted(STACK),
            },
            "metrics": _named(
                _object(
                    {
                        "title": _TEXT,
                        "description": _TEXT,
                        "unit": {"enum": list(UNITS)},
                        "exact": {"type": "boolean"},
                        "summary": {"const": True},
                    },
                    optional=("summary",),
                )
            ),
            "benchmarks": _named(
                _object(
                    {
                        "title": _TEXT,
                        "parameters": {
                            "type": "object",
                            "additionalProperties": {"type": ["string", "number", "boolean"]},
                        },
                        "metrics": _named(_MEASUREMENT),
                    }
                )
            ),
        },
        optional=("skipped", "unmeasured", "noise"),
    ),
}
_VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def check(record, name, retake):
    """Raise :class:`RecordError` for the first thing in *record* that the format forbids."""
    version = record.get("format") if isinstance(record, dict) else None
    if type(version) is int and version > FORMAT:
        raise RecordError(
            f"{name}: $.format: expected at most {FORMAT}, found {version}: the record was written "
            "by a newer version of the project. Update the working copy."
        )
    errors = sorted(_VALIDATOR.iter_errors(record), key=lambda error: error.json_path)
    problems = [(error.json_path, _expected(error)) for error in errors] or list(_untrue(record))
    for place, expected in problems:
        raise RecordError(f"{name}: {place}: {expected}. Take it again: {retake}")


def _expected(error):
    """What a schema error asks for, in one sentence without the whole offending object."""
    if error.validator in ("required", "additionalProperties", "pattern", "minLength", "minimum"):
        return error.message
    found = json.dumps(error.instance)
    found = found if len(found) <= 40 else found[:37] + "..."
    wanted = error.validator_value
    wanted = " or ".join(map(str, wanted)) if isinstance(wanted, list) else wanted
    return f"expected {error.validator} {wanted}, found {found}"


def _untrue(record):
    """What a schema cannot say: all has code, metrics are declared, quartiles are ordered."""
    timed = {key for function in record["code"].values() for key in function["keys"]}
    if timed != record["benchmarks"].keys():
        odd = sorted(timed ^ record["benchmarks"].keys())
        yield "$.code", f"expected the keys of the benchmarks, found a difference in {odd}"
    for key, benchmark in record["benchmarks"].items():
        for metric, values in benchmark["metrics"].items():
            place = f"$.benchmarks.{key}.metrics.{metric}"
            if metric not in record["metrics"]:
                yield place, f"expected one of the declared metrics {sorted(record['metrics'])}"
                continue
            declared = record["metrics"][metric]
            points = [values[name] for name in ("min", "q1", "median", "q3", "max")]
            if points != sorted(points):
                yield place, f"expected min <= q1 <= median <= q3 <= max, found {points}"
            if declared["unit"] in ("B", "s") and points[0] < 0:
                yield place, f"expected no negative amount, found {points[0]}"
            if declared["unit"] == "B" and not all(type(point) is int for point in points):
                yield place, f"expected whole bytes, found {points}"
            if declared["exact"] and len(set(points)) != 1:
                yield place, f"expected one exact value without spread, found {points}"
    if "noise" in record:
        above = noisy(record, record["noise"]["bound"])
        if record["noise"]["above"] != above:
            yield "$.noise.above", f"expected {above}, as the quartiles say"


def is_noisy(declared, values, bound=NOISE_BOUND):
    """Whether the quartiles of a measured value lie further apart than *bound* times its median."""
    enough = not declared["exact"] and values["rounds"] >= LEAST_ROUNDS_WITH_SPREAD
    return enough and values["iqr"] > bound * abs(values["median"])


def noisy(record, bound=NOISE_BOUND):
    """``key:metric`` of every noisy value of *record*, in order."""
    return sorted(
        f"{key}:{metric}"
        for key, benchmark in record["benchmarks"].items()
        for metric, values in benchmark["metrics"].items()
        if is_noisy(record["metrics"][metric], values, bound)
    )


def spread(record):
    """How many values of *record* have a spread at all."""
    return sum(
        not record["metrics"][metric]["exact"] and values["rounds"] >= LEAST_ROUNDS_WITH_SPREAD
        for benchmark in record["benchmarks"].values()
        for metric, values in benchmark["metrics"].items()
    )


# -- Reading and writing -------------------------------------------------------


def _refuse_constant(text):
    raise ValueError(f"{text} is not a number")


def load(path):
    """Return the record in *path*, or raise :class:`RecordError`."""
    path = Path(path)
    suite, device = path.parent.name, path.stem
    name = "/".join(path.parts[-4:])
    retake = RETAKE.format(device=device, suite=suite)
    try:
        record = json.loads(path.read_text("utf-8"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        place = f"{name}:{error.lineno}:{error.colno}"
        raise RecordError(f"{place}: expected JSON, {error.msg}. Take it again: {retake}") from None
    except ValueError as error:
        problem = f"expected finite numbers, {error}"
        raise RecordError(f"{name}: {problem}. Take it again: {retake}") from None
    check(record, name, retake)
    if (record["suite"], record["device"]) != (suite, device):
        raise RecordError(
            f"{name}: expected the record of {suite}@{device}, found "
            f"{record['suite']}@{record['device']}. Move the file or take it again: {retake}"
        )
    record["benchmarks"] = dict(sorted(record["benchmarks"].items(), key=_natural))
    return record


def _natural(item):
    """Sort key under which t32 stands before t128."""
    return [part.zfill(9) if part.isdigit() else part for part in re.split(r"(\d+)", item[0])]


def rounded(value):
    """*value* with every float in it cut to five significant digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return value


def save(record, path):
    """Note the noise of *record*, check it, and put it in place of *path* in one step."""
    path = Path(path)
    record = rounded(record)
    record["noise"] = {"bound": NOISE_BOUND, "above": noisy(record)}
    check(record, path.name, RETAKE.format(device=record["device"], suite=record["suite"]))
    text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(draft, 0o644)  # noqa: PTH101 - mkstemp makes private files
        os.replace(draft, path)  # noqa: PTH105
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def measurement(values, *, warmup_rounds=0):
    """Summarize the raw *values* of one metric; of whole numbers the quartiles are whole too."""
    values = sorted(values)
    whole = all(type(value) is int for value in values)
    quantile = _rounded_quantile if whole else _quantile
    q1, median, q3 = (quantile(values, share) for share in (0.25, 0.5, 0.75))
    return {
        "min": values[0],
        "q1": q1,
        "median": median,
        "q3": q3,
        "max": values[-1],
        "iqr": q3 - q1,
        "rounds": len(values),
        "warmup_rounds": warmup_rounds,
    }


def _quantile(values, share):
    """Linear interpolation between closest ranks of sorted *values*."""
    position = share * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (position - low)


def _rounded_quantile(values, share):
    return round(_quantile(values, share))


# -- Suites and validity -------------------------------------------------------


class Library:
    """The suites and records of one ``benchmarks`` folder."""

    def __init__(self, folder, requirements):
        self.folder = Path(folder)
        self.requirements = Path(requirements)

    def _modules(self):
        folders = ("", "suites/", "recipes/")
        return [path for folder in folders for path in self.folder.glob(f"{folder}*.py")]

    def suites(self):
        prefix = code_hash.PREFIX
        stems = [path.stem for path in self._modules()]
        return sorted(stem.removeprefix(prefix) for stem in stems if stem.startswith(prefix))

    def module(self, suite):
        """The file of *suite*."""
        return self.folder / "suites" / f"{code_hash.PREFIX}{suite}.py"

    def path(self, suite, device):
        return self.folder / "results" / suite / f"{device}.json"

    def replicate(self, suite, device):
        """Where a second record stands, which says how far the first one repeats."""
        return self.folder / "replicates" / suite / f"{device}.json"

    def replicates(self):
        """The ``(suite, device)`` of every second record."""
        paths = self.folder.glob("replicates/*/*.json")
        return sorted((path.parent.name, path.stem) for path in paths)

    def find(self, suite, device):
        """Return the record of *suite* on *device*."""
        choose(suite, self.suites(), "suite", str(self.folder.name))
        choose(device, DEVICES, "device", f"{suite}@{device}")
        path = self.path(suite, device)
        if not path.is_file():
            retake = RETAKE.format(device=device, suite=suite)
            raise AbsentError(f"{suite}@{device} is not measured yet. Take it: {retake}")
        return load(path)

    def plain(self, written):
        """What ``:measured:`written``` says, for a text that Sphinx does not render."""
        suite, device, key, metric, if_absent = split(written)
        try:
            record = self.find(suite, device)
            declared, values = value(record, key, metric)
        except AbsentError:
            if if_absent:
                return if_absent
            raise
        again = key in self.outdated(record)
        return AGAIN if again else text(declared["unit"], values["median"])

    def taken(self):
        """The ``(suite, device)`` of every record file."""
        paths = self.folder.glob("results/*/*.json")
        return sorted((path.parent.name, path.stem) for path in paths)

    def files(self):
        """The paths of all records, the second ones last."""
        firsts = [self.path(*one) for one in self.taken()]
        return firsts + [self.replicate(*one) for one in self.replicates()]

    def _suite(self, suite, renamed=()):
        return code_hash.Suite(f"{code_hash.PREFIX}{suite}", self._modules(), renamed)

    def code(self, suite):
        """The suite's module and the modules of this folder that it imports, at any depth."""
        return self._suite(suite).paths

    def hashes(self, suite, renamed=()):
        """The name of each benchmark function of *suite* -> the hash of its code."""
        return self._suite(suite, renamed).hashes()

    def pins(self):
        """The version of each stack package that the documentation is built with."""
        text = self.requirements.read_text("utf-8")
        found = dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", text, re.MULTILINE))
        if missing := [name for name in STACK if name not in found]:
            raise RecordError(
                f"{self.requirements.name}: expected a line {missing[0]}==<version>. Run make lock"
            )
        return {name: found[name] for name in STACK}

    def outdated(self, record):
        """Key -> why that benchmark no longer stands for today's code and stack.

        Keys that still do are left out.
        """
        today, found = self.hashes(record["suite"]), {}
        for name, function in record["code"].items():
            if function["hash"] != today.get(name):
                for key in function["keys"]:
                    found.setdefault(key, []).append(f"the code of {name} has changed")
        for name in MEASURED:
            if self._differs(record, name):
                taken = record["versions"][name]
                reason = f"taken with {name} {taken}, this site uses {self.pins()[name]}"
                for key in record["benchmarks"]:
                    found.setdefault(key, []).append(reason)
        return found

    def remark(self, record):
        """What a reader of a valid record is to know about its torch; empty if it is the pinned."""
        return (
            f"this site uses torch {self.pins()['torch']}" if self._differs(record, "torch") else ""
        )

    def _differs(self, record, name):
        return (record["versions"][name] or "none").partition("+")[0] != self.pins()[name]


def restamp(record, then, now, renamed):
    """Give *record* the hashes of *now* where the code that it was taken with is the same.

    *then* and *now* are libraries; *renamed* maps names of *then* to those of *now*. Return what
    is left as it is, and why.
    """
    left = []
    suite, old, new = record["suite"], then.hashes(record["suite"]), now.hashes(record["suite"])
    same = then.hashes(suite, renamed)
    for name, function in list(record["code"].items()):
        name_now = renamed.get(name, name)
        if function["hash"] == new.get(name):
            continue
        if function["hash"] != old.get(name):
            left.append(f"{name} was taken with code that is in neither of the two")
        elif name_now not in new or same.get(name_now) != new[name_now]:
            left.append(f"the code of {name} differs in more than names")
        else:
            del record["code"][name]
            record["code"][name_now] = function | {"hash": new[name_now]}
    return left


def name_of(path):
    """How to say which record *path* is."""
    return f"{path.parent.name}@{path.stem}{' replicate' * (path.parts[-3] != 'results')}"


def reasons(outdated):
    """Every reason in the result of :meth:`Library.outdated`, once."""
    return list(dict.fromkeys(reason for found in outdated.values() for reason in found))


def split(written):
    """Take ``suite@device:key:metric|text if absent`` apart."""
    address, _, if_absent = written.partition("|")
    match = re.fullmatch(r"([^@:]+)@([^@:]+):([^:]+):([^:]+)", address.strip())
    if not match:
        raise UnknownError(f"expected suite@device:key:metric, found {written!r}")
    return (*match.groups(), if_absent.strip())


def choose(name, names, kind, where):
    """Return *name* if it is among *names*, else say which is nearest."""
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(names))}"
    raise UnknownError(f"{where} has no {kind} {name!r}; {hint}")


def value(record, key, metric):
    """Return the declaration and the values of one *metric* of one benchmark."""
    address = f"{record['suite']}@{record['device']}"
    benchmark = record["benchmarks"][find(record, key, record["benchmarks"], "key", address)]
    find(record, metric, benchmark["metrics"], "metric", f"{address}:{key}")
    return record["metrics"][metric], benchmark["metrics"][metric]


def has_gaps(record):
    """Whether a name that *record* lacks may be one that was skipped or is not measured yet."""
    return "skipped" in record or "unmeasured" in record


def find(record, name, names, kind, where):
    """As :func:`choose`, but what a record with gaps lacks is absent."""
    if name not in names and has_gaps(record):
        raise AbsentError(f"{where} has no {kind} {name!r}: it was skipped, or is not measured yet")
    return choose(name, names, kind, where)


# -- As text -------------------------------------------------------------------

_SCALES = {
    "B": ((1e9, "GB"), (1e6, "MB")),
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
}


def scale(unit, value):
    """The factor and the unit in which *value* reads best."""
    if unit == "B" and value < 100_000:
        return 1, "B"
    fallback = (1, unit) if unit != "s" else (1e-9, "ns")
    return next((step for step in _SCALES.get(unit, ()) if value >= step[0]), fallback)


def text(unit, value):
    """*value* in a readable unit: ``13,200 B``, ``24.24 %``, ``42.3 ms``."""
    factor, name = scale(unit, value)
    return f"{number(unit, value, factor)}\u00a0{name}".removesuffix("\u00a01")


def number(unit, value, factor):
    if value < 0:
        return f"\N{MINUS SIGN}{number(unit, -value, factor)}"
    value = value / factor
    if unit == "%":
        return f"{value:.2f}".rstrip("0").rstrip(".")
    if unit == "B" and factor == 1:
        return f"{round(value):,}"
    if unit == "1" and value < 1:  # steps of 0.01, as of a ratio from 1 to 10
        return f"{value:.2g}".replace("e-0", "e-")
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"
