"""What the doctor says of logs: of real runs, and of the same runs with a symptom planted.

The series come from runs that learn, recorded by `watch`. No check calls a run ``clear`` that has
its symptom.
"""

import base64
import csv
import math
from unittest import mock

import pytest
import torch
from tensordict.nn import TensorDictSequential
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import RewardSum, TransformedEnv
from torchrl.modules import EGreedyModule, ValueOperator
from torchrl.modules.models import MLP
from torchrl.objectives import ClipPPOLoss, DQNLoss, SoftUpdate
from torchrl.objectives.value import GAE
from torchrl.record import CSVLogger
from torchrl_doctor import APPLIES, CHECKS, CLEAR, FAILED, diagnose, watch
from torchrl_doctor.checks import dynamics
from torchrl_doctor.logs import MOST_POINTS, Series, kind_of, read_log

from tests.support.healthy_pipelines import (
    cartpole,
    categorical_actor,
    collect_from,
    logits,
    q_policy,
    step,
)

SECONDS = 60
SLUGS = [slug for slug, one in CHECKS.items() if one.look.__module__ == dynamics.__name__]


def ppo_run():
    env = TransformedEnv(cartpole(), RewardSum())
    env.set_seed(0)
    actor = categorical_actor(env, logits())
    critic = ValueOperator(MLP(in_features=4, out_features=1, num_cells=[32]))
    collector = collect_from(env, actor, 250, total_frames=6000)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(250), sampler=SamplerWithoutReplacement(), batch_size=50
    )
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic, average_gae=True)
    loss = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 3e-3)
    with watch(collector=collector, loss_module=loss, share=1, seconds=SECONDS) as watching:
        for batch in collector:
            for _ in range(3):
                with torch.no_grad():
                    advantage(batch)
                buffer.extend(batch.reshape(-1))
                for sample in buffer:
                    step(optimizer, loss(sample))
            collector.update_policy_weights_()
    collector.shutdown()
    return watching.series


def dqn_run():
    env = TransformedEnv(cartpole(), RewardSum())
    env.set_seed(0)
    policy = q_policy(env)
    explore = EGreedyModule(spec=env.action_spec, annealing_num_steps=2000, eps_end=0.05)
    collector = collect_from(env, TensorDictSequential(policy, explore), 100, total_frames=4000)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4000), batch_size=64)
    loss = DQNLoss(policy, delay_value=True)
    loss.make_value_estimator(gamma=0.99)
    updater = SoftUpdate(loss, eps=0.98)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
    with watch(collector=collector, loss_module=loss, share=1, seconds=SECONDS) as watching:
        for batch in collector:
            explore.step(batch.numel())
            buffer.extend(batch.reshape(-1))
            for _ in range(15):
                loss(buffer.sample())["loss"].backward()
                optimizer.step()
                optimizer.zero_grad()
                updater.step()
            collector.update_policy_weights_()
    collector.shutdown()
    return watching.series


@pytest.fixture(scope="module")
def runs():
    torch.manual_seed(0)
    with torch.random.fork_rng():
        # Others use this machine, so its speed is that of nobody's run.
        return {
            one.__name__: {name: s for name, s in one().items() if name != "fps"}
            for one in (ppo_run, dqn_run)
        }


def plain(run):
    return {name: list(one.values) for name, one in run.items()}


def found_in(log, slugs=SLUGS):
    with mock.patch.dict(CHECKS, {slug: CHECKS[slug] for slug in slugs}, clear=True):
        report = diagnose(log=log, seconds=SECONDS)
    return {one.slug: (one.state, one.evidence) for one in report}


def test_a_run_that_learns_raises_no_alarm(runs):
    for name, run in runs.items():
        said = found_in(plain(run))
        print(name, *said.items(), sep="\n  ")
        assert [slug for slug, (state, _) in said.items() if state in (APPLIES, FAILED)] == []
        assert said["loss_turns_nan"][0] == CLEAR
    assert found_in(plain(runs["ppo_run"]))["return_stays_flat"][0] == CLEAR


def flat(values):
    """The beginning of a series, again and again."""
    start = values[: max(len(values) // 5, 5)]
    return [start[n % len(start)] for n in range(len(values))]


def scaled(values, factor):
    """The series times a factor that goes from 1 to *factor*."""
    return [value * factor ** (n / len(values)) for n, value in enumerate(values)]


def planted(slug, run):
    """The series of a run with a symptom, once for each way to plant it; () if it has none."""
    rewards = run["episode_reward"]
    length = len(rewards)
    unlearned = {**run, "episode_reward": flat(rewards)}
    if slug == "loss_turns_nan":
        for name in ("loss", "loss_critic", "grad_norm"):
            if name in run:
                for bad in (math.nan, math.inf):
                    yield {**run, name: run[name][:-5] + [bad] * 5}
    elif slug == "loss_never_changes":
        for name in ("loss", "loss_objective", "loss_critic"):
            if name in run:
                yield {**run, name: [0.25] * len(run[name])}
    elif slug == "gradients_explode":
        yield {**run, "grad_norm": scaled([1.0] * len(run["grad_norm"]), 1e6)}
        yield {**run, "grad_norm": [0.5] * len(run["grad_norm"])}  # after clipping
    elif slug == "gradients_are_zero":
        half = len(run["grad_norm"]) // 2
        yield {**run, "grad_norm": run["grad_norm"][:half] + [0.0] * half}
    elif slug == "entropy_is_gone_early" and "entropy" in run:
        gone = [
            one if n < 0.1 * len(run["entropy"]) else 1e-3 for n, one in enumerate(run["entropy"])
        ]
        yield {**unlearned, "entropy": gone}
        yield {**run, "entropy": gone}
        yield {"entropy": gone}
    elif slug == "entropy_never_falls" and "entropy" in run:
        stays = [0.6931 - 1e-5 * (n % 7) for n in range(len(run["entropy"]))]
        yield {**unlearned, "entropy": stays}
        yield {"entropy": stays}
    elif slug.startswith("ppo_") and "clip_fraction" in run:
        values = run["clip_fraction"]
        much = slug == "ppo_clips_almost_everything"
        yield {
            **unlearned,
            "clip_fraction": [0.7 + 0.2 * v for v in values] if much else [0.0] * 100,
        }
    elif slug == "policy_moves_too_far" and "kl_approx" in run:
        far = [0.5 + abs(value) for value in run["kl_approx"]]
        yield {**unlearned, "kl_approx": far}
        yield {"approx_kl": far}
    elif slug == "value_error_grows":
        name = "loss_critic" if "loss_critic" in run else "value_loss"
        values = run.get(name, run.get("loss"))
        yield {**unlearned, name: scaled([1 + v / max(values) for v in values], 1e4)}
        yield {name: scaled([1 + v / max(values) for v in values], 1e4)}
    elif slug == "return_falls_after_a_peak":
        low = rewards[: length // 4]
        high = [one + 200 for one in low]
        yield {**run, "episode_reward": low * 2 + high * 3 + low * 3}
    elif slug == "return_stays_flat":
        yield unlearned
    elif slug == "throughput_decays":
        yield {**run, "fps": scaled([1000.0 + n % 5 for n in range(60)], 0.01)}


# Whether a flat return is the best there is, no log tells.
ONLY_ASKED = {"return_stays_flat"}


@pytest.mark.parametrize("slug", SLUGS)
def test_a_planted_symptom_is_found_and_never_called_clear(slug, runs):
    said = []
    for run in runs.values():
        for log in planted(slug, plain(run)):
            said.append(found_in(log, [slug]).get(slug, (None, "")))
    print(slug, *said, sep="\n  ")
    states = [state for state, _ in said]
    assert states
    assert CLEAR not in states
    assert FAILED not in states
    assert APPLIES in states or slug in ONLY_ASKED


def test_what_clipping_hides_is_seen_in_the_norm_before_it():
    clipped = {"grad_norm": [1.0] * 60}
    grows = [10.0 ** (n / 10) for n in range(60)]
    assert found_in(clipped, ["gradients_explode"]) == {}
    said = found_in({**clipped, "unclipped_grad_norm": grows}, ["gradients_explode"])
    assert said["gradients_explode"][0] == APPLIES


def test_noise_and_short_series_raise_no_alarm():
    torch.manual_seed(0)
    names = ("episode_reward", "loss_objective", "loss_critic", "entropy", "grad_norm")
    names += ("clip_fraction", "fps")
    alarms = []
    for length in (3, 10, 25, 80):
        for _ in range(20):
            log = {name: (torch.rand(length) + 0.1).tolist() for name in names}
            log["clip_fraction"] = [value / 4 for value in log["clip_fraction"]]
            said = found_in(log)
            alarms += [one for one in said.items() if one[1][0] in (APPLIES, FAILED)]
    assert alarms == []


# -- Reading -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind"),
    {
        "loss_objective": "loss",
        "train/actor loss": "loss",
        "loss_critic": "value loss",
        "train/value_loss": "value loss",
        "losses/qf1_loss": "value loss",
        "td_error": "value loss",
        "loss_entropy": None,
        "entropy_coef": None,
        "entropy": "entropy",
        "train/entropy": "entropy",
        "kl_approx": "kl",
        "train/approx_kl": "kl",
        "clip_fraction": "clip fraction",
        "losses/clipfrac": "clip fraction",
        "grad_norm": "gradient norm",
        "Gradient Norm": "gradient norm",
        "unclipped_grad_norm": "gradient norm",
        "explained_variance": "explained variance",
        "time/fps": "throughput",
        "charts/SPS": "throughput",
        "episode_reward": "return",
        "rollout/ep_rew_mean": "return",
        "charts/episodic_return": "return",
        "eval/reward": "evaluation return",
        "reward_std": None,
        "reward_scale": None,
        "learning_rate": None,
    }.items(),
)
def test_series_are_known_by_their_spellings(name, kind):
    assert kind_of(name) == kind


FALLING = [0.7 - 0.002 * n for n in range(60)]


def test_a_table_has_steps_and_cells_without_a_number(tmp_path):
    path = tmp_path / "progress.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "train/value_loss", "rollout/ep_rew_mean", "note"])
        for n in range(40):
            writer.writerow([100 * n, "nan" if n > 30 else n, 1.5 * n if n % 10 == 0 else "", "x"])
    said = found_in(path)
    assert said["loss_turns_nan"] == (APPLIES, "train/value_loss is not finite from step 3100 on")
    assert found_in(str(path)) == said


def test_the_files_of_torchrls_own_logger_are_read(tmp_path):
    logger = CSVLogger("run", log_dir=str(tmp_path))
    for n, value in enumerate(FALLING):
        logger.log_scalar("train/entropy", value, step=n)
    said = found_in(tmp_path)
    assert said["entropy_never_falls"][0] == CLEAR


# Of TensorBoard 2.21: a ``simple_value``, two kinds of tensors as `tf.summary` writes, and a text.
EVENTS = base64.b85decode(
    b"NB{r;00000{*p+Y2?{}^XamC9K^hHWa$#w1E=6`_Zge^_QZ5QCbY*UHZ*pR9VRB?Hb9HTPVRCsccXDZTWpXZMc4c"
    b"mKUuJ1+WnXu4X>?_BhkZ$uBLDyZ00000u%CBB2><{90002+KPngs777n^a$#w1FK2RLWM6J?a%~j=0002ICe@K80"
    b"00000002$yf*U*0000006<wl5M(MC3Kj|vbaG*7ZZBtYVPs!!Z*pxF0000#^V1Z0CIA2c00000b5G*{2><{9001C"
    b"qKoH0QDi{hD3J-L0VQFqJXL4a=Uv6)5Z503jfIm-nd5$vx00000000c9AXW(g000000PsI5C<-PD3v6$5b6;a}X>"
    b"@60LJ9~05&$X$0000$N(%}J3I}szVQgV?bK`&vCN=;70000008dwp?+E|^00000@INXm3MmQ>WpHV8Z)9a(a%Fd6"
    b"a%4gZ2mulRA_M>c;J``?3JD4ab7Ns_VRCbITFJ6C000000002i#a-qJ0000006<wl5M(MS3ML8*Y;SXOUt@A<bZK"
    b"Kk3J3ub04f9k06;)W3knGe2XkX#Y+-V9KY>E!H~;_u00000qj`N-2><{9002N)KoDdqD+(zJ4rOp@b8lp2Uvg!4V"
    b"RB?b3J3ub03rkc006;C3knGe2XkX#Y+-V9nB!v^EdT%j00000JVA>42><{90000OKoA8gAPOD|1axJ1bV3XW2NDD"
    b"l0tf*@0%&PU2nq%Y1axJ1bi1;AdH"
)


def test_event_files_of_tensorboard_are_read(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "events.out.tfevents.1.host").write_bytes(EVENTS)
    (folder / "events.out.tfevents.2.host").write_bytes(EVENTS[:-3])  # while it is written
    for source in (tmp_path, folder / "events.out.tfevents.1.host"):
        found = {one.name: one for one in read_log(source).series}
        assert found.keys() == {"train/grad_norm", "loss_critic", "episode_reward"}
        norms = list(
            zip(found["train/grad_norm"].steps, found["train/grad_norm"].values, strict=True)
        )
        assert norms[:3] == [(0, 0.0), (100, 0.5), (200, 1.0)]
        assert found["loss_critic"].values[:2] == [2.0, 3.0]
        assert found["episode_reward"].values[:2] == [-7.0, -8.0]
    assert len(read_log(tmp_path).of("gradient norm")[0]) == 6


def test_an_event_file_without_scalars_gets_a_note(tmp_path):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"")
    report = diagnose(log=tmp_path, seconds=SECONDS)
    assert "it holds no series of numbers" in " ".join(report.notes)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ({}, "it holds no series of numbers"),
        ("nowhere.csv", "there is no nowhere.csv"),
        (3, "log is of type int, not a dictionary of series"),
    ],
)
def test_what_cannot_be_read_gets_a_note(log, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = diagnose(log=log, seconds=SECONDS)
    assert said in " ".join(report.notes)
    assert report.refused == ["log"]
    assert "loss_turns_nan" in report.lacking


def test_tensors_and_arrays_are_series():
    log = {"loss": torch.ones(30), "entropy": torch.tensor(FALLING).numpy(), "who": "me"}
    said = found_in(log)
    assert said["loss_never_changes"][0] == APPLIES
    assert said["entropy_never_falls"][0] == CLEAR


def test_a_long_series_stays_bounded_and_spread_over_the_run():
    series = Series("loss")
    for n in range(50_000):
        series.add(n, n)
    assert MOST_POINTS / 4 < len(series) <= MOST_POINTS
    assert series.steps[0] < 100
    assert series.steps[-1] > 49_900
