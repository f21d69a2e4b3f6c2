"""Checks: how a run goes, by what it has logged."""

from __future__ import annotations

import itertools
import math
import statistics

from torchrl_doctor.verdicts import applies, check, clear, undecided

LOOP_PAGE = "reference/doctor_in_a_loop"
FEWEST_POINTS = 20  # of a series, before its shape means something
LEAST_KL = 1e-6  # that a step of the optimizer leaves
MANY_POINTS = 100  # after which something should have happened
COMPUTED = ("loss", "value loss", "entropy", "kl", "gradient norm", "clip fraction")


def parts_of_series(values, number=5):
    """The values in *number* stretches of about one length, in their order."""
    ends = [round(len(values) * n / number) for n in range(number + 1)]
    return [values[a:b] for a, b in itertools.pairwise(ends)]


def medians(values):
    return [statistics.median(part) for part in parts_of_series(values)]


def long_ones(log, *kinds):
    """The series of these kinds that are long enough, and their finite values."""
    pairs = [(one, one.finite) for one in log.of(*kinds)]
    return [(one, values) for one, values in pairs if len(values) >= FEWEST_POINTS]


def gain(values):
    """How far the last fifth is above the first, in standard errors of that difference."""
    parts = parts_of_series(values)
    first, last = parts[0], parts[-1]
    spread = sum(statistics.variance(part) / len(part) for part in (first, last))
    return (statistics.fmean(last) - statistics.fmean(first)) / math.sqrt(spread + 1e-12)


def rise_of_return(log):
    """Whether the return rises; None where nothing tells."""
    found = long_ones(log, "evaluation return") or long_ones(log, "return")
    values = found[0][1] if found else []
    return gain(values) > 2 if len(values) >= FEWEST_POINTS else None


def beside_the_return(found, rises):
    """The verdict on something that is of no concern while the return rises."""
    if rises is None:
        return undecided(f"{found}; does the return rise? Log it, too")
    if rises:
        return None
    return applies(f"{found}, and the return does not rise")


@check(
    "loss_turns_nan", "A loss or its gradient turns NaN", page=f"{LOOP_PAGE}#losses-and-gradients"
)
def loss_turns_nan(log):
    series = log.of(*COMPUTED)
    broken = [one for one in series if not math.isfinite(one.values[-1])]
    if broken:
        starts = [max((n + 1 for n, v in enumerate(one.values) if math.isfinite(v)), default=0)
                  for one in broken]  # fmt: skip
        step, name = min((one.steps[n], one.name) for one, n in zip(broken, starts, strict=True))
        return applies(f"{name} is not finite from step {step:g} on")
    gone = [one for one in series if len(one.finite) < len(one)]
    if gone:
        bad = len(gone[0]) - len(gone[0].finite)
        return undecided(f"{bad} of {len(gone[0])} values of {gone[0].name} are not finite")
    return clear(f"{len(series)} series stay finite") if series else None


@check(
    "loss_never_changes",
    "A loss is one and the same number",
    page=f"{LOOP_PAGE}#losses-and-gradients",
)
def loss_never_changes(log):
    found = [(one, values) for one, values in long_ones(log, "loss", "value loss")]
    for one, values in found:
        if min(values) == max(values):
            return applies(f"{one.name} is {values[0]:.4g} at each of {len(values)} points")
    return clear(f"{len(found)} losses change") if found else None


@check("gradients_explode", "The gradients grow and grow", page=f"{LOOP_PAGE}#losses-and-gradients")
def gradients_explode(log):
    for one, values in long_ones(log, "gradient norm"):
        _, *parts = medians(values)
        growth = parts[-1] / max(parts[0], 1e-12)
        said = f"{one.name} went from {parts[0]:.3g} to {parts[-1]:.3g}"
        if growth > 1000 and parts == sorted(parts):
            return applies(said)
        last = sorted(parts_of_series(values)[-1])
        if last[len(last) // 4] > 0.99 * last[-1]:
            continue  # one number: the bound of a clipping, behind which nothing is seen
        return undecided(said) if growth > 100 else clear(said)
    return None


@check("gradients_are_zero", "The gradients are zero", page=f"{LOOP_PAGE}#losses-and-gradients")
def gradients_are_zero(log):
    for one, values in long_ones(log, "gradient norm"):
        last = parts_of_series(values)[-1]
        zero = sum(value < 1e-10 for value in last)
        if zero == len(last):
            return applies(f"{one.name} is below 1e-10 in the last {zero} of {len(values)} points")
        if zero:
            return undecided(f"{one.name} is zero in {zero} of the last {len(last)} points")
        if (typical := statistics.median(last)) < 1e-6:
            return undecided(f"{one.name} is {typical:.3g} at the end: is it clipped to that?")
        return clear(f"{one.name} is {typical:.3g} at the end")
    return None


@check("entropy_is_gone_early", "The entropy is gone early")
def entropy_is_gone_early(log):
    for one, values in long_ones(log, "entropy"):
        start = max(values[: max(3, len(values) // 20)])  # it may be gone in three updates
        if start <= 0:
            return None  # of a density, which knows no least value
        gone = next((n for n in range(len(values)) if max(values[n:]) < start / 20), len(values))
        share, seen = gone / len(values), f"{one.name} went from {start:.3g} to {values[-1]:.3g}"
        if start < LEAST_ENTROPY:
            return undecided(f"{seen}: was it gone before this log begins?")
        if share == 1:
            return clear(seen)
        if share > 0.25:
            return undecided(f"{seen}, in {share:.0%} of the run: has it learned by then?")
        found = f"{one.name} fell from {start:.3g} below {start / 20:.2g} in {share:.0%} of the run"
        return beside_the_return(found, rise_of_return(log))
    return None


LEAST_ENTROPY = 0.05  # of a choice: the likeliest of two has 99 %


@check("entropy_never_falls", "The entropy never falls", page=f"{LOOP_PAGE}#entropy")
def entropy_never_falls(log):
    for one, values in long_ones(log, "entropy"):
        first, *_, last = medians(values)
        found = f"{one.name} went from {first:.3g} to {last:.3g}"
        if first - last > 0.02 * abs(first):
            return clear(found)
        if len(values) < MANY_POINTS:
            return undecided(f"{found} in {len(values)} points; look again later")
        return beside_the_return(found, rise_of_return(log))
    return None


@check("ppo_clips_almost_everything", "PPO clips almost everything")
def ppo_clips_almost_everything(log):
    for one, values in long_ones(log, "clip fraction"):
        middle = statistics.median(values[len(values) // 2 :])
        found = f"{one.name} has a median of {middle:.2g} in the second half"
        if middle > 0.6:
            return applies(found)
        return undecided(found) if middle > 0.4 else clear(found)
    return None


@check("ppo_never_clips", "PPO never clips", page=f"{LOOP_PAGE}#clip-fraction")
def ppo_never_clips(log, since=None):
    batches = since.batches if since else 0
    actor = since.changed("loss_module") if batches else {}
    learns = any(moved for name, moved in actor.items() if name.startswith("actor"))
    updates = (since.before.optimized or {}).get("steps", 0) if learns else 0
    for one, values in long_ones(log, "kl"):
        if updates > 2 * batches and max(map(abs, values)) < LEAST_KL:
            found = f"{one.name} is zero in {len(values)} updates, several of them on one batch"
            return applies(f"{found}: the old log-probabilities are those of the new policy?")
    for one, values in long_ones(log, "clip fraction"):
        some = sum(value > 1e-3 for value in values)
        found = f"{one.name} is above 0.001 in {some} of {len(values)} points"
        if not some and len(values) >= MANY_POINTS:
            return beside_the_return(found, rise_of_return(log))
        return clear(found) if some > len(values) / 10 else undecided(found)
    return None


@check("policy_moves_too_far", "The policy moves too far per update", page=f"{LOOP_PAGE}#kl")
def policy_moves_too_far(log):
    for one, values in long_ones(log, "kl"):
        middle = statistics.median(values[len(values) // 2 :])
        found = f"{one.name} has a median of {middle:.2g} in the second half"
        if middle > 0.2:
            return beside_the_return(found, rise_of_return(log))
        return clear(found) if abs(middle) < 0.05 else undecided(found)
    return None


@check(
    "value_error_grows", "The value error grows and the return does not",
    page=f"{LOOP_PAGE}#value-error",
)  # fmt: skip
def value_error_grows(log):
    for one, values in long_ones(log, "value loss"):
        _, *parts = medians(values)
        growth = parts[-1] / max(parts[0], 1e-12)
        found = f"{one.name} went from {parts[0]:.3g} to {parts[-1]:.3g}"
        if growth > 10 and parts == sorted(parts):
            return beside_the_return(found, rise_of_return(log))
        return clear(found) if growth < 3 else undecided(found)
    return None


@check("return_falls_after_a_peak", "The return falls after a peak", page=f"{LOOP_PAGE}#return")
def return_falls_after_a_peak(log):
    found = long_ones(log, "evaluation return") or long_ones(log, "return")
    for one, values in found:
        if len(values) < 2 * FEWEST_POINTS:
            return None
        parts = parts_of_series(values, 8)
        means = [statistics.fmean(part) for part in parts]
        spread = statistics.median(statistics.stdev(part) for part in parts)
        noise = max(spread, 1e-9) / math.sqrt(len(values) / 8)
        best = means.index(max(means))
        gained = means[best] - min(means[: best + 1])
        said = f"{one.name} was {means[best]:.4g} on average, and {means[-1]:.4g} at the end"
        if gained <= 5 * noise:
            return None
        kept = max(means[-2:]) - min(means[: best + 1])
        if best < 6 and kept < gained / 4 and means[best] - max(means[-2:]) > 5 * noise:
            return applies(said)
        return clear(said) if kept > gained / 2 else undecided(said)
    return None


@check("return_stays_flat", "The return does not rise", page=f"{LOOP_PAGE}#return")
def return_stays_flat(log):
    found = long_ones(log, "evaluation return") or long_ones(log, "return")
    for one, values in found:
        first, *_, last = (statistics.fmean(part) for part in parts_of_series(values))
        said = f"{one.name} went from {first:.4g} to {last:.4g} in {len(values)} points"
        if gain(values) > 2:
            return clear(said)
        return undecided(f"{said}; if better is possible, begin with the data")
    return None


@check("throughput_decays", "The run gets slower and slower", page=f"{LOOP_PAGE}#throughput")
def throughput_decays(log):
    for one, values in long_ones(log, "throughput"):
        *_, middle, fourth, last = parts_of_series(values)
        said = [statistics.median(part) for part in (middle, fourth, last)]
        found = f"{one.name} went from {said[0]:.4g} to {said[-1]:.4g} in the second half"
        falls = said[0] > said[1] > said[2]
        if falls and said[2] < said[0] / 2 and max(last) < min(middle):
            return applies(found)
        return clear(found) if said[2] > 0.8 * said[0] else undecided(found)
    return None
