"""Several losses, buffers or policies by name, as a loop over groups of agents has them."""

from __future__ import annotations

from torchrl_doctor.report import Report

BY_NAME = ("loss_module", "replay_buffer", "value_estimator", "policy", "target_updater")
BY_NAME += ("optimizer",)


def groups_of(named):
    """The names of the groups, in their order; none where no argument is a dictionary."""
    dictionaries = [named[name] for name in BY_NAME if type(named.get(name)) is dict]
    return list(dict.fromkeys(group for one in dictionaries for group in one))


def of_groups(value):
    """An argument by group; by None where all groups share it, or there are none."""
    return value if type(value) is dict else {None: value}


def given_to(group, named):
    """The arguments of one group: its own of each dictionary, and what all groups share."""
    own = {n: one for n, one in named.items() if n in BY_NAME and type(one) is dict}
    given = named | {name: one.get(group) for name, one in own.items()} | {"by_group": own}
    looks = getattr(named.get("since"), "groups", {})  # an earlier look had those of the group
    return given | ({"since": looks[group]} if group in looks else {})


def merged(reports, site):
    """One report of those of the groups, by name: what all say is said once."""
    whole = Report(site)
    for group, report in reports.items():
        for one in report.findings:
            alike = [other for other in reports.values() if one in other.findings]
            said = (
                one
                if len(alike) == len(reports)
                else one._replace(evidence=f"{group}: {one.evidence}")
            )
            if said not in whole.findings:
                whole.findings.append(said)
        whole.savings += [one for one in report.savings if one not in whole.savings]
        whole.notes += [one for one in report.notes if one not in whole.notes]
        whole.refused += [one for one in report.refused if one not in whole.refused]
        whole.lacking |= report.lacking
    looked_at = {one.slug for one in whole.findings}
    whole.lacking = {slug: names for slug, names in whole.lacking.items() if slug not in looked_at}
    unconcerned = [slug for report in reports.values() for slug in report.unconcerned]
    seen = looked_at | whole.lacking.keys()
    whole.unconcerned = list(dict.fromkeys(one for one in unconcerned if one not in seen))
    return whole
