"""What the doctor says about each training script of a folder, to see whether it accuses wrongly.

    python tools/doctor_on_scripts.py FOLDER [--calls 12] [--seconds 120] [--json FILE]

Point it at the examples and implementations of torchrl, or at your own. Each script that imports
torchrl runs as ``__main__`` in a process and a folder of its own, without arguments. After some
*calls* of a loss it is stopped, and the collector, buffer, estimator, updater, optimizer and loss
that live then go to ``diagnose``, with a look at them from the first call where the doctor compares
two. A script that ends, raises or takes longer than *seconds* is looked at as far as it has come.
"""

import argparse
import contextlib
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARGIN_S = 60  # for imports and the doctor itself


class Enough(BaseException):
    """Stops a script; no `Exception`, so that scripts do not catch it."""


class Gathered:
    """The parts of a script, as they live when a loss is called."""

    def __init__(self, calls):
        self.calls, self.called = calls, 0
        self.parts, self.several, self.earlier = {}, {}, None

    def hook(self, module, arguments):
        from torchrl.objectives import LossModule

        if not isinstance(module, LossModule):
            return
        self.called += 1
        if self.called in (1, self.calls):
            self.gather(module)
        if self.called >= self.calls:
            raise Enough

    def gather(self, loss=None):
        import torch
        import torchrl_doctor
        from torchrl.collectors import BaseCollector
        from torchrl.data import ReplayBuffer
        from torchrl.objectives import LossModule, TargetNetUpdater
        from torchrl.objectives.value import ValueEstimatorBase

        kinds = {
            "collector": BaseCollector,
            "replay_buffer": ReplayBuffer,
            "loss_module": LossModule,
            "value_estimator": ValueEstimatorBase,
            "target_updater": TargetNetUpdater,
            "optimizer": torch.optim.Optimizer,
        }
        # `type`, as `isinstance` would ask each lazy object of the process for its class.
        alive = [one for one in gc.get_objects() if type(one).__module__ != "builtins"]
        for name, kind in kinds.items():
            found = [one for one in alive if issubclass(type(one), kind)]
            if name == "value_estimator":
                owned = {id(getattr(one, "_value_estimator", None)) for one in alive_losses(alive)}
                found = [one for one in found if id(one) not in owned]
            self.several[name] = len(found)
            if name == "loss_module" and loss is not None:
                found = [loss]
            if len(found) == 1:
                self.parts[name] = found[0]
        if self.earlier is None and self.parts and hasattr(torchrl_doctor, "look"):
            self.earlier = torchrl_doctor.look(**self.parts)

    def diagnosed(self, error):
        import torchrl_doctor

        given = dict(self.parts) | ({"error": error} if error is not None else {})
        if self.earlier is not None:
            given["since"] = self.earlier
        return torchrl_doctor.diagnose(**given, seconds=MARGIN_S / 2)


def alive_losses(alive):
    from torchrl.objectives import LossModule

    return [one for one in alive if issubclass(type(one), LossModule)]


def run(script, calls, seconds):
    """Run the script in this process, and return what the doctor says of it."""
    import torch

    gathered = Gathered(calls)
    hooked = torch.nn.modules.module.register_module_forward_pre_hook(gathered.hook)

    def out_of_time(*_):
        raise Enough

    signal.signal(signal.SIGALRM, out_of_time)
    signal.alarm(seconds)
    sys.argv, error, ended = [str(script)], None, "ended"
    sys.path.insert(0, str(script.parent))
    scope = {}
    try:
        scope = runpy.run_path(str(script), run_name="__main__")
    except Enough:
        ended = f"stopped in call {gathered.called} of a loss"
    except SystemExit as left:
        ended = f"left with {left.code}"
    except Exception as raised:
        error, ended = raised, "".join(traceback.format_exception_only(raised)).strip()
    signal.alarm(0)
    hooked.remove()  # the doctor calls the loss as well
    if not gathered.parts:
        gathered.gather()
    del scope
    answer = {"ended": ended, "given": sorted(gathered.parts), "findings": [], "notes": []}
    answer["several"] = {name: many for name, many in gathered.several.items() if many > 1}
    if gathered.parts or error is not None:
        report = gathered.diagnosed(error)
        answer["findings"] = [
            {"check": one.slug, "verdict": one.state, "evidence": one.evidence} for one in report
        ]
        answer["notes"] = [str(note) for note in report.notes]
    return answer


def in_a_child(script, calls, seconds):
    """What `run` returns in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "answer.json"
        command = [sys.executable, __file__, str(script), "--answer", str(place)]
        command += ["--calls", str(calls), "--seconds", str(seconds)]
        path = os.pathsep.join([str(ROOT / "doctor/src"), os.environ.get("PYTHONPATH", "")])
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds + MARGIN_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if place.exists():
            return json.loads(place.read_text())
        return {"ended": "died or hung", "given": [], "findings": [], "notes": [], "several": {}}


def lines(name, answer):
    """The answer about a script, as text."""
    yield f"{name}: {answer['ended']}"
    yield f"  given: {', '.join(answer['given']) or 'nothing'}"
    for part, many in answer["several"].items():
        yield f"  {many} live objects of kind {part}"
    for one in answer["findings"]:
        if one["verdict"] in ("applies", "check failed"):
            yield f"  {one['verdict']}  {one['check']}: {one['evidence']}"
    for note in answer["notes"]:
        yield f"  note: {note}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="scripts, or one script")
    parser.add_argument("--calls", type=int, default=12, help="of a loss, after which to stop")
    parser.add_argument("--seconds", type=int, default=120, help="for each script")
    parser.add_argument("--json", type=Path, help="where to write all that was said")
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        answer = run(given.folder.resolve(), given.calls, given.seconds)
        given.answer.write_text(json.dumps(answer))
        os._exit(0)  # whatever the script has started
    folder = given.folder.resolve()
    scripts = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    scripts = [one for one in scripts if "torchrl" in one.read_text(errors="replace")]
    answers = {}
    for script in scripts:
        name = script.name if script == folder else str(script.relative_to(folder))
        answers[name] = in_a_child(script, given.calls, given.seconds)
        print(*lines(name, answers[name]), sep="\n", flush=True)
    verdicts = [one["verdict"] for answer in answers.values() for one in answer["findings"]]
    looked = sum(bool(answer["given"]) for answer in answers.values())
    print(
        f"{len(scripts)} scripts, {looked} looked at: {verdicts.count('applies')} apply,"
        f" {verdicts.count('check failed')} checks failed"
    )
    if given.json:
        given.json.write_text(json.dumps(answers, indent=1) + "\n")
    return 1 if "check failed" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
