"""Take the CUDA records in pieces: ``python -m benchmarks.kit --help``.

plan      what each piece holds, and its budget
prepare   at home: download the wheels that the machine lacks, print sizes and commands
run       on the machine: measure until the time is over
status    what a state holds
records   at home: turn states into records
"""

import argparse
import signal
import sys
import time
from pathlib import Path

from benchmarks import __main__ as main
from benchmarks import record
from benchmarks.kit import pack, plan, state
from benchmarks.kit.runner import Runner


def arguments():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--plan", type=Path, default=plan.PLAN, help="default: the committed one")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("plan")
    prepare = verbs.add_parser("prepare")
    prepare.add_argument("--has", type=Path, help="the machine's `pip list --format=freeze`")
    prepare.add_argument("--python", default="3.12", help="that of the machine")
    prepare.add_argument("--limit", type=int, default=540, help="seconds a command may take")
    run = verbs.add_parser("run")
    run.add_argument("--device", choices=record.DEVICES, default="cuda")
    run.add_argument("--piece", type=int, default=1, help="where to begin; later ones follow")
    run.add_argument("--limit", type=int, default=540, help="seconds until this command ends")
    run.add_argument("--state", type=Path, action="append", default=[], help="go on after it")
    run.add_argument("--out", type=Path, required=True, help="folder for the state, which returns")
    run.add_argument("--commit", help="for a copy of the tree without git: what it is a copy of")
    run.add_argument("--retry", action="store_true", help="what failed or was ended, once more")
    run.add_argument("--held", action="store_true", help="the next command has this machine still")
    run.add_argument("--rehearse", action="store_true", help="few rounds; no record comes of it")
    for verb in ("status", "records"):
        command = verbs.add_parser(verb)
        command.add_argument("--state", type=Path, action="append", required=True)
    command.add_argument("--remark", help="what else the machine did, for each stamp")
    return parser.parse_args()


def show_plan(found):
    for piece in found.pieces:
        print(f"{piece.number:2} {piece.seconds:4} s  {piece.title}")
        for pattern in piece.patterns:
            print(f"             {pattern}")
    print(f"   {sum(piece.seconds for piece in found.pieces):4} s  all pieces")
    for suite, why in found.left_out.items():
        print(f"left out: {suite}: {why}")


def run(options, found):
    commit, dirty = main.state_of_tree(options.commit)
    kept = state.State(options.out)
    if kept.path.exists() and options.out not in options.state:
        raise state.StateError(
            f"{options.out} holds results: go on after them with --state {options.out}, "
            "or name another folder"
        )
    runner = Runner(
        found,
        kept,
        options.device,
        limit=options.limit,
        commit=commit,
        dirty=dirty,
        rehearse=options.rehearse,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.time()
    runner.begin([state.State(folder) for folder in options.state], options.retry)
    try:
        runner.warm(options.piece)
        runner.run(options.piece)
    finally:
        if not options.held:
            runner.pack()
        show_status([kept])
        print(f"{time.time() - began:.0f} s; the state is in {options.out}")
    return 0


def show_status(kept):
    for suite, parts in parts_of(kept).items():
        finished = {one["name"] for part in parts for one in part.finished}
        every = {name for part in parts for line in part._all("every") for name in line}
        print(f"{suite}: {len(finished)} of {len(every)}")
        for name, why in merged(parts).items():
            print(f"    {name}: {why}")


def parts_of(kept):
    """Suite -> its part in each of the states *kept*, which are of one machine and code."""
    for other in kept[1:]:
        state.refuse_another(other.header, kept[0].header, other.path)
    suites = dict.fromkeys(suite for one in kept for suite in one.suites())
    return {suite: [one.part(suite) for one in kept] for suite in suites}


def merged(parts):
    """Why a benchmark has no result in any of *parts*."""
    finished = {one["name"] for part in parts for one in part.finished}
    reasons = {one["name"]: short_of_time(one) for part in parts for one in part._all("cut")}
    reasons |= {name: why for part in parts for name, why in part.skipped.items()}
    return {name: why for name, why in reasons.items() if name not in finished}


def short_of_time(cut):
    return f"had run for {cut['seconds']:.0f} s when the time was over"


class Merged:
    """The parts of one suite as one checkpoint, for ``assemble``."""

    def __init__(self, parts):
        self.state = next((part.state for part in parts if part.state), None)
        self.sittings = [said for part in parts for said in part.sittings]
        self.skipped = merged(parts)
        self.finished = list({one["name"]: one for part in parts for one in part.finished}.values())
        every = [name for part in parts for line in part._all("every") for name in line]
        known = self.skipped.keys() | {one["name"] for one in self.finished}
        self.unmeasured = [name for name in dict.fromkeys(every) if name not in known]
        self.last = max(
            (line["started"]["at"] for part in parts for line in part.lines() if "started" in line),
            default=0,
        )


def write_records(options):
    kept = [state.State(folder) for folder in options.state]
    header = kept[0].header
    if header["rehearsal"]:
        raise state.StateError("a rehearsal measures nothing: no record comes of it")
    device = header["device"]
    for suite, parts in parts_of(kept).items():
        checkpoint = Merged(parts)
        if not checkpoint.finished:
            print(f"{suite}@{device}: nothing was measured")
            continue
        if checkpoint.state["code"] != main.LIBRARY.hashes(suite):
            raise state.StateError(f"the code of {suite} has changed since: check out what ran")
        found = main.assemble(suite, device, checkpoint)
        found["taken"]["date"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(checkpoint.last))
        if options.remark:
            found["taken"]["remark"] = options.remark
        path = main.LIBRARY.path(suite, device)
        if checkpoint.unmeasured:
            found["unmeasured"] = checkpoint.unmeasured
            if stands(path):
                print(f"{suite}@{device}: {path.name} is whole and stands; not replaced by a part")
                continue
        record.save(found, path)
        left = f", {len(checkpoint.unmeasured)} not measured yet" if checkpoint.unmeasured else ""
        print(f"{suite}@{device}: wrote {len(checkpoint.finished)} results{left}")
    return 0


def stands(path):
    """Whether there is a whole, valid record already."""
    if not path.is_file():
        return False
    found = record.load(path)
    return not found.get("unmeasured") and not main.LIBRARY.outdated(found)


def main_():
    options = arguments()
    try:
        found = plan.load(options.plan)
        if options.verb == "plan":
            return show_plan(found)
        if options.verb == "prepare":
            return pack.prepare(options, found)
        if options.verb == "run":
            return run(options, found)
        if options.verb == "records":
            return write_records(options)
        return show_status([state.State(folder) for folder in options.state])
    except (state.StateError, plan.PlanError, record.RecordError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main_())
