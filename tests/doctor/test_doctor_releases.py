"""Releases of TorchRL: those that the doctor was run on, and what an older one lacks."""

import csv
import importlib.metadata

import pytest
import torch
import torchrl.collectors
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl_doctor import APPLIES, CHECKS, CLEAR, FAILED, diagnose, releases
from torchrl_doctor.releases import KNOWN_RELEASES

from tests.support.claims import guards
from tests.support.healthy_pipelines import cartpole, q_policy
from tools import doctor_releases

SECONDS = 60  # so that a busy machine changes no verdict


@guards("doctor-other-release")
@pytest.mark.parametrize(
    ("version", "is_known"),
    [("0.14.1", True), ("0.11.0", True), ("0.15.0", False), ("0.10.1", False), ("1.0", False)],
)
def test_on_another_release_the_report_says_so_and_goes_on(monkeypatch, version, is_known):
    monkeypatch.setattr(releases, "installed_version", lambda name: version)
    report = diagnose(batch=TensorDict(batch_size=[2]), only="lstm_forgets_every_step")
    said = [note for note in report.notes if "This doctor was run on TorchRL" in note]
    assert said == (
        []
        if is_known
        else [f"This doctor was run on TorchRL 0.11 to 0.14, not on {version}; it goes on."]
    )
    assert report.counts.startswith("1 check:")


def test_a_slice_sampler_may_have_one_end_key():
    """``end_keys`` is of TorchRL 0.14."""
    data = TensorDict(
        {
            "observation": torch.arange(40.0).unsqueeze(-1),
            ("next", "done"): torch.zeros(40, 1, dtype=torch.bool),
            ("next", "truncated"): (torch.arange(40) % 10 == 9).unsqueeze(-1),
        },
        batch_size=[40],
    )
    sampler = SliceSampler(slice_len=4, end_key=("next", "truncated"))
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40), sampler=sampler, batch_size=8)
    buffer.extend(data)
    del sampler.end_keys
    found = {one.slug: one.state for one in diagnose(replay_buffer=buffer, seconds=SECONDS)}
    assert FAILED not in found.values()
    assert found["no_trajectory_is_long_enough"] == CLEAR


def test_a_collector_may_register_no_transforms(monkeypatch):
    """``auto_register_policy_transforms`` is of TorchRL 0.13."""

    def older(*arguments, **options):
        if "auto_register_policy_transforms" in options:
            raise TypeError("Keys ['auto_register_policy_transforms'] are unknown to Collector.")
        return Collector(*arguments, **options)

    monkeypatch.setattr(torchrl.collectors, "Collector", older)
    env = cartpole()
    report = diagnose(env=env, policy=q_policy(env), only="actions_stay_noisy", seconds=SECONDS)
    assert "no batch could be collected" not in " ".join(report.notes)


@guards("doctor-releases-table")
def test_the_table_has_the_releases_that_the_doctor_knows():
    with doctor_releases.TARGET.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == doctor_releases.COLUMNS
    releases = [".".join(row[0].split(".")[:2]) for row in rows]
    assert sorted(releases) == sorted(KNOWN_RELEASES)
    for row in rows:
        ran, named, on_fixed_side, failed = map(int, row[3:])
        assert 0 < named <= ran <= len(CHECKS)
        assert on_fixed_side == (row[0] < "0.13")
        assert failed == 0
    cure = "run: python tools/doctor_releases.py .venv/bin/python"
    assert importlib.metadata.version("torchrl") in [row[0] for row in rows], cure


def test_the_counts_of_a_release():
    def page(broken, fixed=(), error=None):
        return {"error": error, "broken": broken, "fixed": list(fixed)}

    a, b = (["a", "A", state, ""] for state in (APPLIES, FAILED))
    pages = {"a": page([a]), "b": page([a, b], [a]), "c": page([a], error="TypeError")}
    assert doctor_releases.counts(pages) == (2, 1, 1, 1)
