"""The one call."""

from __future__ import annotations

import contextlib
import warnings

import torch

from torchrl_doctor.about import SITE
from torchrl_doctor.choice import checks_of_others, chosen_checks
from torchrl_doctor.clock import Clock
from torchrl_doctor.copies import MADE_ANEW, attributes_kept, random_state_kept
from torchrl_doctor.examination import ARGUMENT_FOR, ARGUMENTS, Examination
from torchrl_doctor.fixes import code_of, in_names, names_of_reader
from torchrl_doctor.groups import given_to, groups_of, merged
from torchrl_doctor.objects import LIKE_THOSE_OF_WORKERS
from torchrl_doctor.progress import quiet_libraries
from torchrl_doctor.releases import release_note
from torchrl_doctor.report import Finding, Report
from torchrl_doctor.savings import savings_of
from torchrl_doctor.verdicts import APPLIES


def diagnose(
    *,
    collector=None,
    replay_buffer=None,
    loss_module=None,
    value_estimator=None,
    env=None,
    eval_env=None,
    policy=None,
    batch=None,
    target_updater=None,
    optimizer=None,
    error=None,
    since=None,
    log=None,
    frames=256,
    seconds=10.0,
    site=SITE,
    only=(),
    ignore=(),
):
    """Run every check that the given objects allow, and return a `Report`.

    Without *batch*, about *frames* frames come from a copy of the collector, or of *env* and
    *policy*. With *since*, an earlier `look` at the same objects, checks compare then and now.
    *seconds* bounds the whole examination; *site* is put before the address of a page.
    Of the checks, *only* and *ignore* name those to run and those to leave out; ValueError for a
    name that is none.
    """
    named = {name: value for name, value in locals().items() if name in ARGUMENTS}
    if groups := groups_of(named):
        limits = (frames, seconds / len(groups), site, only, ignore)
        return merged({one: examined(given_to(one, named), *limits) for one in groups}, site)
    return examined(named, frames, seconds, site, only, ignore)


def examined(named, frames, seconds, site, only, ignore):
    """The report on arguments of `diagnose`, those of one group where there are several."""
    notes = [*checks_of_others(), release_note()]
    chosen = chosen_checks(only, ignore)
    report = Report(site)
    report.notes += filter(None, notes)
    clock = Clock(seconds)
    if not clock.can_interrupt:
        report.notes.append(
            "Outside the main thread of a POSIX system nothing that hangs is stopped."
        )
    given = {name: value for name, value in named.items() if value is not None}
    by_group = given.pop("by_group", None)
    examination = Examination(given, clock, report)
    with (
        random_state_kept(),
        quiet_libraries(),
        torch.inference_mode(False),
        torch.no_grad(),
        made_anew_for(examination),
    ):
        examination.prepare(frames)
        known_as = names_of_reader(examination.given)
        if by_group is not None:
            examination.given["by_group"] = by_group
        names = ("loss_module", "value_estimator", "policy")
        modules = [examination.given.get(name) for name in names]
        # Checks provoke warnings.
        with attributes_kept(*modules), warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            for one in chosen:
                lacking = [name for name in one.needs if name not in examination.given]
                if lacking:
                    report.lacking[one.slug] = [ARGUMENT_FOR.get(name, name) for name in lacking]
                elif (verdict := examination.look(one)) is None:
                    report.unconcerned.append(one.slug)
                else:
                    if verdict.state == APPLIES:
                        code = verdict.fix or examination.attempt(
                            f"no fix of {one.slug} as code", code_of, one.slug, examination.given
                        )
                        code = code and in_names(code, known_as)
                        verdict = verdict._replace(fix=code)
                    found = Finding(one.slug, one.title, *verdict, one.page, one.row)
                    report.findings.append(found)
            report.savings = savings_of(examination)
    return report


@contextlib.contextmanager
def made_anew_for(examination):
    """Close the environments that are made for an examination, however it ends."""
    try:
        yield
    finally:
        LIKE_THOSE_OF_WORKERS.clear()
        while MADE_ANEW:
            examination.attempt("an environment like those of the workers", MADE_ANEW.pop().close)
