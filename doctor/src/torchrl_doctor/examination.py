"""What there is to look at, and the run of one check."""

from __future__ import annotations

import traceback
import warnings
from pathlib import PurePath

import torch

from torchrl_doctor.clock import TimeUp
from torchrl_doctor.copies import (
    CannotCopyError,
    collect,
    draw,
    env_of_workers,
    make_one_like_those_of_workers,
)
from torchrl_doctor.logs import Log, read_log
from torchrl_doctor.looks import Look, Since
from torchrl_doctor.objects import batches_of, in_words, is_multi_process, leaves_of
from torchrl_doctor.private import private
from torchrl_doctor.progress import DOING
from torchrl_doctor.verdicts import FAILED, Verdict, undecided

ARGUMENTS = (
    "collector",
    "replay_buffer",
    "loss_module",
    "value_estimator",
    "env",
    "eval_env",
    "policy",
    "batch",
    "target_updater",
    "optimizer",
    "error",
    "since",
    "log",
)


KINDS = {
    "collector": "a collector",
    "replay_buffer": "a replay buffer",
    "env": "an environment",
    "eval_env": "an environment, or the collector of the evaluation",
    "loss_module": "a module",
    "value_estimator": "a module",
    "policy": "a policy",
    "batch": "a tensordict, or a list of them",
    "target_updater": "a target updater",
    "optimizer": "an optimizer, or a list of them",
    "error": "an exception",
    "since": "an earlier look()",
    "log": "a dictionary of series, a CSV file or a folder of TensorBoard",
}


# What a check calls the batch: any, or the one that the reader gave, and no other.
BATCHES = ("batch", "own_batch")


ARGUMENT_FOR = {"own_batch": "batch"}


def is_of_kind(name, value):
    """Whether *value* can be the argument *name*."""
    if name == "error":
        return isinstance(value, BaseException)
    if name == "since":
        return isinstance(value, Look)
    if name == "log":
        return hasattr(value, "items") or isinstance(value, (Log, str, PurePath))
    if name == "batch":
        from tensordict import is_tensor_collection

        batches = value if isinstance(value, (list, tuple)) else [value]
        return bool(batches) and all(is_tensor_collection(one) for one in batches)
    if name == "optimizer":
        several = value if isinstance(value, (list, tuple)) else [value]
        return bool(several) and all(hasattr(one, "param_groups") for one in several)
    if name in ("loss_module", "value_estimator", "policy"):
        return callable(value) and not isinstance(value, type)
    methods = {
        "collector": ("update_policy_weights_",),
        "replay_buffer": ("sample", "extend"),
        "env": ("step", "reset", "batch_size"),
        "eval_env": ("step", "reset", "batch_size"),
        "target_updater": ("step",),
    }
    return not isinstance(value, type) and all(hasattr(value, one) for one in methods[name])


def is_meta(name, value):
    """Whether a module or a batch has a tensor on the meta device."""
    tensors = ()
    if name == "batch":
        tensors = [one for rows in batches_of(value) for one in leaves_of(rows)]
    elif name in ("loss_module", "value_estimator", "policy") and hasattr(value, "parameters"):
        tensors = value.parameters()
    return any(getattr(one, "is_meta", False) for one in tensors)


def with_rows(batch):
    """A batch or several, in a list; of a single step a view with one row."""
    if isinstance(batch, (list, tuple)):
        return [with_rows(one) for one in batch]
    return batch if batch.ndim else batch.unsqueeze(0)


class Examination:
    """What there is to look at: the reader's objects, and data from copies of them."""

    def __init__(self, given, clock, report):
        self.given = given
        self.clock = clock
        self.report = report

    def prepare(self, frames):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.complete(frames)
        for said in sorted({in_words(one.message) for one in caught}):
            self.report.notes.append(f"a copy warns: {said}")

    def complete(self, frames):
        # An environment that has not started may never answer; its class does.
        if hasattr(type(self.given.get("eval_env")), "update_policy_weights_"):
            self.given["eval_collector"] = self.given.pop("eval_env")
        for name in [one for one in self.given if one in ARGUMENTS]:
            self.attempt(f"{name} cannot be looked at", self.keep_if_usable, name)
        collector = self.given.get("collector")
        for name in ("env", "policy", "replay_buffer"):
            if collector is not None and name not in self.given:
                value = self.attempt(f"collector.{name}", getattr, collector, name, None)
                if value is not None:
                    self.given[name] = value
        for name, of in {"env": "collector", "eval_env": "eval_collector"}.items():
            if name not in self.given and (one := self.given.get(of)) is not None:
                self.attempt(
                    f"{name}: none like those of the workers is made", self.keep_env, name, one
                )
        for name in {"env", "eval_env"} & self.given.keys():
            what = f"{name}: an environment like those of its workers cannot be made"
            self.attempt(what, make_one_like_those_of_workers, self.given[name])
        if (before := self.given.pop("since", None)) is not None:
            now = self.attempt("nothing could be compared with since", Look, self.given)
            if now is not None:
                self.given["since"] = Since(before, now)
        if (source := self.given.pop("log", None)) is not None:
            log = self.attempt("log cannot be read", read_log, source)
            if log is None:
                self.report.refused.append("log")
            else:
                self.given["log"] = log
        buffer = self.given.get("replay_buffer")
        if buffer is not None:
            self.attempt("nothing could be drawn from replay_buffer", self.draw, buffer)
        if "batch" in self.given:
            self.given["own_batch"] = self.given["batch"]
        elif collector is not None or {"env", "policy"} <= set(self.given):
            self.attempt("no batch could be collected", self.collect, frames)

    def attempt(self, what, function, *arguments):
        """The function's result; None, and a note, where it raises or takes too long."""
        DOING[0] = "collecting a batch" if function == self.collect else "reading the objects"
        try:
            with self.clock.limit():
                return function(*arguments)
        except TimeUp as error:
            cure = " Give it more seconds=, or a batch=." if function == self.collect else ""
            self.report.notes.append(f"{what}: {error}.{cure}")
        except CannotCopyError as error:
            self.report.notes.append(f"{what}: {error}. Pass a batch of your own as batch=.")
        except (Exception, SystemExit) as error:
            self.report.notes.append(f"{what}: {in_words(error)}")
            if function == self.collect:
                # The reader's own objects raise it too, so the loud symptoms are looked for.
                self.given.setdefault("error", error)
        return None

    def keep_if_usable(self, name):
        value = self.given.pop(name)
        if not is_of_kind(name, value):
            said = f"{name} is of type {type(value).__name__}, not {KINDS[name]}; it is left out."
            self.report.notes.append(said)
            self.report.refused.append(name)
        elif name == "batch" and any(0 in one.batch_size for one in batches_of(value)):
            self.report.notes.append("batch has no rows; it is left out.")
        elif is_meta(name, value):
            said = f"{name} is on the meta device, which holds no numbers; it is left out."
            self.report.notes.append(said)
        elif name == "batch":
            self.given[name] = with_rows(value)
        else:
            self.given[name] = list(value) if isinstance(value, tuple) else value

    def keep_env(self, name, collector):
        """Keep the environment of a collector, or one that is made as its workers make theirs."""
        many = is_multi_process(collector)
        value = env_of_workers(collector) if many else getattr(collector, "env", None)
        if value is not None:
            self.given[name] = value

    def draw(self, buffer):
        if not private(buffer, "_initialized", True):
            # Its length would initialize it.
            del self.given["replay_buffer"]
            self.report.notes.append("replay_buffer is not initialized yet; it is left out.")
        elif len(buffer) == 0:
            self.report.notes.append("replay_buffer is empty, so nothing is drawn from it.")
        else:
            from tensordict import is_tensor_collection

            sample = draw(buffer)
            if not is_tensor_collection(sample):
                said = "replay_buffer holds no tensordicts; its samples are not looked at."
                self.report.notes.append(said)
            elif 0 not in sample.batch_size:
                self.given["sample"] = sample

    def collect(self, frames):
        self.given["batch"] = collect(self.given, frames)

    def look(self, one):
        """Run a check; its verdict, or None where it does not concern the objects."""
        arguments = {name: self.given[name] for name in one.takes if name in self.given}
        verdict = self.verdict_of(one, arguments)
        if (
            verdict
            and verdict.state == FAILED
            and any(isinstance(arguments.get(name), (list, tuple)) for name in BATCHES)
        ):
            # A check that is made for one batch.
            last = {name: arguments[name][-1] for name in BATCHES if name in arguments}
            verdict = self.verdict_of(one, arguments | last)
        return verdict

    def verdict_of(self, one, arguments):
        DOING[0] = one.title
        try:
            with self.clock.limit():
                return one.look(**arguments)
        except TimeUp as error:
            return undecided(str(error))
        except (Exception, SystemExit) as error:
            policy = self.given.get("policy")
            plain = policy is not None and not isinstance(policy, torch.nn.Module)
            if plain and isinstance(error, AttributeError) and error.obj is policy:
                of_type = type(policy).__name__
                return undecided(f"policy is of type {of_type}, without {error.name!r}")
            frame, line = list(traceback.walk_tb(error.__traceback__))[-1]
            file = frame.f_code.co_filename
            place = f"{in_words(error)} ({PurePath(file).name}:{line})"
            doctor, module = __name__.split(".")[0], frame.f_globals.get("__name__", "")
            own = module.split(".")[0] == doctor or file == one.look.__code__.co_filename
            return Verdict(FAILED, place) if own else undecided(place)
