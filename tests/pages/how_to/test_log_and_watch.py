"""What the guide to logging says and does not run is so."""

import ast
import functools
import itertools
import textwrap
from pathlib import Path
from types import ModuleType
from unittest import mock

import gymnasium
import pytest
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.envs import GymEnv
from torchrl.modules import MLP, ValueOperator
from torchrl.objectives.value import GAE
from torchrl.record import (
    CSVLogger,
    LoggerMonitor,
    MLFlowLogger,
    TensorboardLogger,
    WandbLogger,
)
from torchrl.record.loggers import Logger, monitoring, utils
from torchrl.record.loggers.trackio import TrackioLogger
from torchrl_doctor.logs import series_in

from tests.support import ROOT
from tests.support.claims import guards

GUIDE = ROOT / "how-to" / "log_and_watch.py"
KNOWN = {"episode_reward", "entropy", "clip_fraction", "kl_approx", "grad_norm", "loss_critic"}


class Counts:
    """What a monitor watches: *frames*, or an error."""

    def __init__(self):
        self.frames = 0

    def stats(self):
        if self.frames is None:
            raise RuntimeError("gone")
        return {"frames": self.frames}


@pytest.fixture
def logger(tmp_path):
    return CSVLogger("run", log_dir=str(tmp_path))


@guards("loggers-share-an-interface")
def test_loggers_have_the_methods_of_csv_logger(logger):
    for kind in (CSVLogger, TensorboardLogger, WandbLogger, MLFlowLogger, TrackioLogger):
        assert issubclass(kind, Logger)
        for method in ("log_scalar", "log_hparams", "log_video"):
            assert getattr(kind, method) is not getattr(Logger, method)
    packages = {"tensorboard": "_has_tb", "wandb": "_has_wandb", "mlflow": "_has_mlflow"}
    for name, flag in (packages | {"trackio": "_has_trackio"}).items():
        with (
            mock.patch(f"torchrl.record.loggers.{name}.{flag}", False),
            pytest.raises(ImportError),
        ):
            utils.get_logger(name, "log", "run")
    for refuses in (logger.log_histogram, functools.partial(MLFlowLogger.log_histogram, None)):
        with pytest.raises(NotImplementedError):
            refuses("weights", [1.0])


@guards("monitor-rates-count-all-time")
def test_a_rate_counts_the_time_between_two_steps(logger):
    watched = Counts()
    monitor = LoggerMonitor(logger, background=False, on_error="raise")
    monitor.watch(watched, name="watched", step="frames")
    with mock.patch.object(monitoring.time, "monotonic", side_effect=[10.0, 14.0]):
        assert "watched/frames_per_second" not in monitor.step()["watched"]
        watched.frames = 100
        assert monitor.step()["watched"]["watched/frames_per_second"] == 25


@guards("monitor-warns-once")
def test_an_error_in_a_monitor_is_a_warning_or_raises(logger):
    watched = Counts()
    monitor = LoggerMonitor(logger, background=False)
    monitor.watch(watched, name="watched")
    watched.frames = None
    with mock.patch.object(monitoring.torchrl_logger, "warning") as warned:
        assert [monitor.step(), monitor.step()] == [{}, {}]
    assert warned.call_count == 1
    strict = LoggerMonitor(logger, background=False, on_error="raise")
    strict.watch(watched)
    with pytest.raises(RuntimeError, match="gone"):
        strict.step()


@guards("csv-logger-appends")
def test_a_second_run_of_one_name_appends_figures_and_replaces_settings(tmp_path):
    for gamma in (0.9, 0.99):
        logger = CSVLogger("ppo", log_dir=str(tmp_path))
        logger.log_hparams({"gamma": gamma})
        logger.log_metrics({"return": 100 * gamma}, step=400)
        del logger  # closes its files
    figures, settings = sorted((tmp_path / "ppo").glob("*/*.*"))
    assert figures.read_text().count("400,") == 2
    assert "0.99" in settings.read_text()
    assert "0.9\n" not in settings.read_text() + "\n"


@guards("explained-variance-flatters")
def test_a_critic_that_learned_nothing_explains_targets_of_its_own():
    torch.manual_seed(0)
    critic = ValueOperator(MLP(in_features=4, out_features=1, num_cells=[64]), ["observation"])
    frames = GymEnv("CartPole-v1").rollout(1_000, break_when_any_done=False)
    GAE(gamma=0.99, lmbda=0.0, value_network=critic)(frames)
    value, reward, done = frames["state_value"], frames["next", "reward"], frames["next", "done"]
    returns = torch.full_like(reward, torch.nan)  # stays NaN where no end is in the data
    later = returns[0]
    for t in reversed(range(len(reward))):
        later = returns[t] = reward[t] + 0.99 * later.masked_fill(done[t], 0.0)
    known = returns.isfinite()

    def explained(target, value):
        return 1 - (target - value).var() / target.var()

    assert explained(frames["value_target"], value) > explained(returns[known], value[known]) + 0.3


@guards("sum-of-losses-keeps-graphs")
def test_a_sum_of_losses_keeps_every_graph():
    def nodes(root):
        found, todo = set(), [root]
        while todo:
            node = todo.pop()
            if node is not None and node not in found:
                found.add(node)
                todo += [following for following, _ in node.next_functions]
        return len(found)

    parameter = torch.nn.Parameter(torch.ones(2))
    total, detached, sizes = 0.0, 0.0, []
    for _ in range(3):
        loss = (parameter**2).sum()
        loss.backward()
        total, detached = total + loss, detached + loss.detach()
        sizes.append(nodes(total.grad_fn))
    assert sizes[0] < sizes[1] < sizes[2]
    assert detached.grad_fn is None


@pytest.mark.usefixtures("forkserver")
@guards("workers-count")
def test_workers_count_calls_and_the_collector_does_not():
    policy = TensorDictModule(torch.nn.Linear(4, 2), ["observation"], ["action"])
    env = functools.partial(GymEnv, "CartPole-v1")
    sizes = {"frames_per_batch": 4, "total_frames": 8, "track_policy_version": True}
    collector = MultiSyncCollector([env], policy, **sizes)
    ages = []
    for batch in collector:
        ages.append((collector.policy_version - batch["next", "policy_version"]).unique().tolist())
        collector.update_policy_weights_()
    assert ages == [[0], [-1]]
    collector.increment_version()
    assert collector.policy_version == 1
    collector.shutdown()


def code_below(text, heading):
    """The code block that is next below a heading, which the page does not run."""
    block = text.split(heading, 1)[1].split(".. code-block:: python\n#\n", 1)[1]
    lines = [line[1:] for line in block.splitlines()]
    indented = itertools.takewhile(lambda line: not line or line.startswith("    "), lines)
    return textwrap.dedent("\n".join(indented))


def test_the_progress_bar_uses_what_the_loop_has():
    text = GUIDE.read_text(encoding="utf-8")
    bar = ast.parse(code_below(text, "Show a progress bar"))
    (train,) = [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and node.name == "train"
    ]
    names = [node.id for node in ast.walk(bar) if isinstance(node, ast.Name)]
    assert set(names) - {"bar", "tqdm"} <= {
        getattr(node, "id", None) or getattr(node, "arg", None) for node in ast.walk(train)
    }
    assert {"frames", "mean", "recent", "collector"} <= set(names)


@guards("len-of-a-collector-is-batches")
def test_the_length_of_a_collector_counts_batches():
    sizes = {"frames_per_batch": 40, "total_frames": 120}
    collector = Collector(functools.partial(GymEnv, "CartPole-v1"), None, **sizes)
    assert collector.total_frames == 120
    assert len(collector) == len(list(collector)) == 3
    collector.shutdown()


def test_the_doctor_watches_the_loop_and_reads_its_log():
    text = GUIDE.read_text(encoding="utf-8")
    guide = ModuleType("guide")
    setup, rest = text.split("scratch = tempfile", 1)
    exec(setup, vars(guide))
    block = code_below(rest, "Let the doctor read the log")
    guide.sizes = {"frames_per_batch": 100, "total_frames": 200, "track_policy_version": True}
    with guide.tempfile.TemporaryDirectory() as folder:
        guide.logger = CSVLogger("run", log_dir=folder)
        guide.scalars = guide.Path(folder, "run", "scalars")
        exec(block.replace("loss_module=loss", "loss_module=loss, share=1"), vars(guide))
        names = {series.name for series in series_in(guide.scalars)}
    guide.collector.shutdown()
    assert set(guide.watching.series) > {"episode_reward", "grad_norm"}
    assert names > KNOWN


@guards("mujoco-gl-chooses-the-renderer")
def test_a_variable_chooses_what_mujoco_draws_with():
    """Read in the source: MuJoCo is not installed here."""
    source = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "mujoco_rendering.py"
    module = ast.parse(source.read_text(encoding="utf-8"))
    known = next(
        node.value
        for node in module.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "_ALL_RENDERERS"
    )
    assert {key.value for key in known.keys} == {"glfw", "egl", "osmesa"}
    calls = [ast.unparse(node) for node in ast.walk(module) if isinstance(node, ast.Call)]
    assert "os.environ.get('MUJOCO_GL')" in calls
