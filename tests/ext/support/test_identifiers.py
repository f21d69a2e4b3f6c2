"""Which words of a text without markup are code."""

import pytest
from docutils import nodes

from docs._ext.support.identifiers import curled, nodes_of, split


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Collector, ParallelEnv", ["Collector", "ParallelEnv"]),
        ("Collector 1,200", ["Collector"]),
        ("Frames per second against Collector", ["Collector"]),
        ("Line at 1×: Collector with one environment", ["Collector"]),
        ("GymWrapper of AsyncVectorEnv", ["GymWrapper", "AsyncVectorEnv"]),
        ("SliceSampler(traj_key, compile=True), 10 rows", ["SliceSampler(traj_key, compile=True)"]),
        ("torch.compile(ReplayBuffer(a=1).sample)", ["torch.compile(ReplayBuffer(a=1).sample)"]),
        ("Optimizer.step#Adam.step", ["Optimizer.step", "Adam.step"]),
        ("GRU torch.nn, no resets", ["torch.nn"]),
        ("DQNLoss and VTrace", ["DQNLoss", "VTrace"]),
        ('transport="auto"', ['transport="auto"']),
        (
            "max_restarts=-1 and preemptive_threshold=0.5",
            ["max_restarts=-1", "preemptive_threshold=0.5"],
        ),
        ("Pitfall: one .item() a step", [".item()"]),
        ("GAE(vectorized=True) with a critic", ["GAE(vectorized=True)"]),
        ("run_type_checks, smooth_l1", ["run_type_checks", "smooth_l1"]),
        ("a loop in _step", ["_step"]),
        ('"scan" and "triton" compute', ['"scan"', '"triton"']),
        ("expected one of ['pad', 'scan']", ["['pad', 'scan']"]),
        ('under ("next", "done")', ['("next", "done")']),
        ("end_key=('next', 'done') or mode='pad'", ["end_key=('next', 'done')", "mode='pad'"]),
        ("'GAE' object has no attribute 'shape'", ["'GAE'", "'shape'"]),
        ("shape '[6, 3]' of <class 'torch.Size'>", ["'[6, 3]'", "<class 'torch.Size'>"]),
    ],
)
def test_code_is_found(text, code):
    parts = split(text)
    assert [part for part, is_code in parts if is_code] == code
    assert "".join(part for part, _ in parts) == text


@pytest.mark.parametrize(
    "text",
    [
        "CartPole, HalfCheetah and MsPacman in MuJoCo, TorchRL and PyTorch",
        "Collectors by the cost of a step",
        "4096 CartPoles of PufferLib’s",
        "TD(lambda), A2C, GPUs, LSTMs, 64 MiB, SB3 (8 x 32)",
        "1.04 ms (1.02–1.07), noisy",
        "torch 2.15.0+cpu, Linux-6.1-x86_64-with-glibc2.36",
        "Stable-Baselines3",
        "",
    ],
)
def test_other_words_are_none(text):
    assert [part for part, is_code in split(text) if is_code] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The collector's own work", "The collector’s own work"),
        ("a SliceSampler's rows, PyTorch's", "a SliceSampler’s rows, PyTorch’s"),
        ("its workers' errors", "its workers’ errors"),
        ("the sampler's mode='pad' and 'scan'", "the sampler’s mode='pad' and 'scan'"),
        ("pad: ValueError: it doesn't work", "pad: ValueError: it doesn't work"),  # as it is raised
    ],
)
def test_an_apostrophe_of_a_word_is_curly(text, expected):
    assert curled(text) == expected


def test_code_is_a_literal():
    found = nodes_of("a SerialEnv of 4")
    assert [(type(one), one.astext()) for one in found] == [
        (nodes.Text, "a "),
        (nodes.literal, "SerialEnv"),
        (nodes.Text, " of 4"),
    ]
