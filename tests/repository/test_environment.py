"""Imports and runs that set environment variables leave none behind for later tests."""

import os

# Sets it at its top, for itself and its children.
from benchmarks.suites import bench_advantages  # noqa: F401
from tests.support.evidence_module import load_evidence


def test_an_imported_suite_leaves_no_variable():
    assert "RL_WARNINGS" not in os.environ


def test_a_loaded_run_leaves_no_variable():
    load_evidence("profiling/traces")
    assert "TORCHRL_PROFILING" not in os.environ
