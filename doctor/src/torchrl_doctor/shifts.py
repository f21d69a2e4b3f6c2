"""Whether a column of a data set stands some rows away from where it belongs."""

from __future__ import annotations

import torch

from torchrl_doctor.objects import next_key, paid_in

FEWEST_PAIRS = 60  # of rows, to tell a function from chance
MOST_INPUTS = 12  # of which products are taken, too
BLOCK = 10  # rows that are left out together
TOLD = 0.5  # of the variance is left at most
TIMES_WORSE = 4.0  # than another lag


def best_lag(rows, key, name):
    """By which lag, -1, 0 or 1, observations fit ``action`` or ``reward``; None if none tells.

    The change of an observation follows from it and its action, a reward from all three. Each lag
    is tried on the same rows, with a fit that has not seen them.
    """
    columns = None if rows is None else columns_of(rows, key)
    if columns is None:
        return None
    now, later, action, reward = columns
    same = (later[:-1] == now[1:]).all(-1)  # the row below goes on
    inner = (same[:-1] & same[1:]).nonzero().flatten() + 1
    if len(inner) < FEWEST_PAIRS:
        return None
    left = []
    for lag in (0, -1, 1):
        if name == "action":
            inputs = torch.cat([now[inner], action[inner + lag]], -1)
            left.append(unexplained(inputs, (later - now)[inner]))
        else:
            inputs = torch.cat([now[inner], action[inner], (later - now)[inner]], -1)
            left.append(unexplained(inputs, reward[inner + lag]))
    errors = torch.stack(left)  # lags, outputs
    told = errors.min(0).values <= TOLD
    if not told.any():
        return None
    worse = errors[0] / errors[1:].clamp_min(1e-6)
    for place, lag in ((0, -1), (1, 1)):
        if (worse[place][told] > TIMES_WORSE).any():
            return lag
    fits = (errors[1:] / errors[0].clamp_min(1e-6))[:, told] > TIMES_WORSE
    return 0 if fits.all(0).any() else None


def columns_of(rows, key):
    """Observation, next observation, action and reward as lines of doubles; None without all."""
    rows = rows.reshape(-1)
    parts = [rows.get(one, None) for one in (key, next_key(key), "action")] + [paid_in(rows)]
    if any(one is None or one.is_complex() for one in parts):
        return None
    lines = [one.detach().cpu().reshape(len(rows), -1).double() for one in parts]
    known = all(bool(one.isfinite().all()) for one in lines)
    return lines if known and lines[0].shape == lines[1].shape else None


def unexplained(inputs, outputs):
    """The share of the variance of each output that a fit leaves, in rows that it has not seen."""
    spread = inputs.std(0)
    inputs = (inputs - inputs.mean(0))[:, spread > 1e-9] / spread[spread > 1e-9]
    features = [torch.ones(len(inputs), 1, dtype=inputs.dtype), inputs]
    if 0 < inputs.shape[1] <= MOST_INPUTS:
        pairs = torch.triu_indices(*[inputs.shape[1]] * 2)
        features.append(inputs[:, pairs[0]] * inputs[:, pairs[1]])
    features = torch.cat(features, -1)
    places = torch.arange(len(inputs)) // BLOCK
    wrong = torch.zeros_like(outputs)
    for part in range(4):
        unseen = places % 4 == part
        seen = features[~unseen]
        ridge = 1e-3 * len(seen) * torch.eye(seen.shape[1], dtype=seen.dtype)
        weights = torch.linalg.solve(seen.T @ seen + ridge, seen.T @ outputs[~unseen])
        wrong[unseen] = outputs[unseen] - features[unseen] @ weights
    variance = outputs.var(0)
    left = wrong.square().mean(0) / variance.clamp_min(1e-12)
    return torch.where(variance > 1e-9, left, torch.full_like(left, torch.inf))
