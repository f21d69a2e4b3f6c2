"""PPO with environments on the device: it learns, resumes, nothing crosses, faults are noticed.

MJX is not in the environment of the site, so most tests step a pendulum in torch in its place,
which begins new episodes in its step, too. What needs MJX is skipped without it; the suite asserts
it before it times anything, and notes the counts in its record.
"""

import inspect
import sys
from types import ModuleType, SimpleNamespace
from unittest import mock

import gymnasium
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase
from torchrl.envs.libs import gym as gym_library
from torchrl.envs.libs import isaac_lab
from torchrl.envs.utils import check_env_specs
from torchrl.objectives import ClipPPOLoss

from benchmarks.recipes import ppo_resident as recipe
from benchmarks.recipes import ppo_resident_contenders as contenders
from benchmarks.suites import bench_recipe_ppo_resident as suite
from tests.support.claims import guards
from tests.support.ppo_recipes import (
    WrongSign,
    assert_prints_a_table,
    assert_resumes,
    complaints,
    planted_in,
)
from tests.support.shown_calls import bound_calls
from tests.support.suites import CPU, noted

SMALL = ["--envs", "8", "--steps", "8", "--frames", "320", "--threshold", "1000"]
HORIZON = 40


class Poles:
    """Poles that fall unless they are pushed, all rows at once; an ended one starts anew."""

    def __init__(self, count):
        self.count, self.resets = count, 0
        self.generator = torch.Generator()

    def start(self):
        return (torch.rand(self.count, 4, generator=self.generator) - 0.5) / 50

    def reset(self):
        self.resets += 1
        self.seen, self.steps = self.start(), torch.zeros(self.count)

    def step(self, push):
        angle, speed = self.seen[:, 1], self.seen[:, 3]
        speed = speed + 0.04 * (15 * angle - 20 * push.clamp(-1, 1))
        angle = angle + 0.04 * speed
        self.steps = self.steps + 1
        rest = torch.zeros_like(angle)
        self.seen = torch.stack([rest, angle, rest, speed], -1)
        terminated = angle.abs() > 0.2
        truncated = ~terminated & (self.steps >= HORIZON)
        done = terminated | truncated
        self.seen = torch.where(done[:, None], self.start(), self.seen)
        self.steps = torch.where(done, 0, self.steps)
        return (~terminated).float(), terminated, truncated


class Stand(EnvBase):
    """What the recipe's environment is, in torch."""

    def __init__(self, count, device):
        super().__init__(device=device, batch_size=[count])
        self._torchrl_native_autoreset = True
        self.poles = Poles(count)
        flag = Categorical(2, (count, 1), dtype=torch.bool)
        flags = {name: flag.clone() for name in ("done", "terminated", "truncated")}
        self.observation_spec = Composite(observation=Unbounded((count, 4)), shape=[count])
        self.action_spec = Bounded(-1, 1, (count, 1))
        self.reward_spec = Unbounded((count, 1))
        self.full_done_spec = Composite(flags, shape=[count])

    def _set_seed(self, seed):
        self.poles.generator.manual_seed(seed)

    def _reset(self, tensordict=None):
        self.poles.reset()
        never = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        return self.frame({name: never.clone() for name in self.done_keys})

    def _step(self, tensordict):
        reward, *flags = self.poles.step(tensordict["action"].squeeze(-1))
        terminated, truncated = (flag[:, None] for flag in flags)
        found = {"terminated": terminated, "truncated": truncated}
        return self.frame(found | {"done": terminated | truncated, "reward": reward[:, None]})

    def frame(self, found):
        found["observation"] = self.poles.seen
        return TensorDict(found, batch_size=self.batch_size)


PENDULUMS = recipe.Pendulums


@pytest.fixture(autouse=True)
def stand():
    with mock.patch.object(recipe, "Pendulums", Stand):
        yield


def make_run(*arguments, seed=0):
    run = recipe.Run(recipe.parse([*SMALL, *map(str, arguments)]), seed)
    run.batches = iter(run.collector)
    return run


# -- What one iteration does -----------------------------------------------------


class Ajar(Stand):
    """It resets by itself, and does not say so."""

    def __init__(self, count, device):
        super().__init__(count, device)
        self._torchrl_native_autoreset = False


PLANTED = planted_in(recipe) | {
    "resets that are not told": (mock.patch.object(recipe, "Pendulums", Ajar), {"resets", "ends"}),
}


def complaints_of(run):
    """What the first iteration of *run* does wrong."""
    found, batch = set(), next(run.batches)
    done = batch["next", "done"].squeeze(-1)
    assert done.any()
    if run.env.base_env.poles.resets != 1:
        found.add("resets")
    if not batch["next", "observation"][done].isnan().all():
        found.add("ends")
    return found | complaints(run, batch, run.read)


@pytest.mark.parametrize("planted", PLANTED)
def test_an_iteration_raises_what_was_good_and_fits_the_critic(planted):
    change, expected = PLANTED[planted]
    with change:
        assert complaints_of(make_run("--envs", 32, "--steps", 32, "--frames", 100_000)) == expected


@pytest.mark.parametrize("loss", [ClipPPOLoss, WrongSign])
def test_the_recipe_learns_and_with_a_wrong_sign_it_does_not(loss, capsys):
    arguments = ["--threshold", "36", "--frames", "65536", "--envs", "64"]
    with mock.patch.object(recipe, "ClipPPOLoss", loss):
        recipe.main(arguments)
    assert ("not solved" in capsys.readouterr().out) == (loss is WrongSign)


# -- Episodes that begin in the step, and what crosses ---------------------------


@guards("native-autoreset-resets-once")
def test_the_environment_is_reset_once_while_episodes_go_on():
    run = make_run("--frames", 100_000)
    for episodes in (0, 1, 2):
        while run.progress["episodes"] <= 8 * episodes:
            run.iterate()
        assert run.env.base_env.poles.resets == 1
    run.collector.shutdown()


@guards("native-autoreset-nan-sum")
def test_the_sum_of_rewards_is_missing_at_an_end_and_the_recipe_has_it():
    run = make_run("--steps", 64)
    batch = next(run.batches)
    done = batch["next", "done"]
    assert batch["next", "episode_reward"][done].isnan().all()
    expected, sums = [], torch.zeros(8)
    for step in range(64):
        sums = sums + batch["next", "reward"][:, step, 0]
        ended = done[:, step, 0]
        expected += [(row, step, sums[row].item()) for row in range(8) if ended[row]]
        sums = torch.where(ended, 0, sums)
    run.note(batch)
    in_order = [value for _, _, value in sorted(expected)]
    assert run.progress["returns"] == in_order[-recipe.EPISODES :]
    assert run.progress["episodes"] == len(in_order) > 8
    run.collector.shutdown()


@guards("resident-reads-nothing-while-collecting")
def test_no_value_is_read_while_a_batch_is_collected_and_few_after_it():
    run = make_run("--frames", 100_000)
    run.iterate()
    for steps in (8, 8):
        with suite.Reads() as reads:
            next(run.batches)
        assert not reads.counts, steps
    with suite.Reads() as reads:
        run.iterate()
    assert reads.counts == {
        "tolist": 1,
        "aten.index.Tensor": 1,
        "aten._local_scalar_dense.default": 1,
    }
    run.collector.shutdown()


@pytest.mark.parametrize("read", ["item", "tolist", "cpu", "numpy", "if"])
def test_a_read_is_counted(read):
    given = torch.ones(1)
    with suite.Reads() as reads:
        getattr(given, read)() if read != "if" else bool(given > 0)
    assert reads.counts


@guards("default-reset-reads")
def test_without_native_autoreset_each_step_reads():
    with mock.patch.object(recipe, "Pendulums", Ajar):
        run = make_run()
    with suite.Reads() as reads:
        next(run.batches)
    assert sum(reads.counts.values()) >= 8
    run.collector.shutdown()


@guards("gae-replaces-missing-next")
def test_the_advantage_takes_the_observation_before_a_missing_one():
    with mock.patch(f"{__name__}.HORIZON", 16):
        run = make_run("--steps", 64)
        batch = next(run.batches)
    assert batch["next", "truncated"].any()
    assert batch["next", "terminated"].any()
    filled = batch.clone()
    missing = filled["next", "observation"].isnan()
    other = torch.where(missing, filled["observation"], filled["next", "observation"])
    filled["next", "observation"] = other
    fallen = filled.clone()
    terminated = fallen["next", "terminated"].expand_as(other)
    fallen["next", "observation"] = torch.where(terminated, 7.0, other)
    with torch.no_grad():
        for given in (batch, filled, fallen):
            run.advantage(given)
    for given in (filled, fallen):
        torch.testing.assert_close(batch["advantage"], given["advantage"], rtol=0, atol=0)
    run.collector.shutdown()


# -- Isaac Lab -------------------------------------------------------------------


class ManagerBasedEnv(gymnasium.Env):
    """As an environment of Isaac Lab: a batch of tensors, whose observations are of "policy"."""

    def __init__(self, cfg):
        self.num_envs, self.device = cfg.num_envs, "cpu"
        box = gymnasium.spaces.Box(-float("inf"), float("inf"), (self.num_envs, 4))
        self.observation_space = gymnasium.spaces.Dict(policy=box)
        self.action_space = gymnasium.spaces.Box(-1, 1, (self.num_envs, 1))
        self.poles = Poles(self.num_envs)

    def reset(self, *, seed=None, options=None):
        self.poles.reset()
        return {"policy": self.poles.seen}, {}

    def step(self, action):
        reward, terminated, truncated = self.poles.step(action.squeeze(-1))
        return {"policy": self.poles.seen}, reward, terminated, truncated, {}


@pytest.fixture
def isaac():
    """Modules with the names that the recipe imports; calls are bound to signatures as read."""
    calls = []

    def parse_env_cfg(task_name, device="cuda:0", num_envs=None, use_fabric=None):
        calls.append((task_name, device, num_envs))
        return SimpleNamespace(num_envs=num_envs)

    class AppLauncher:
        def __init__(self, launcher_args=None, **kwargs):
            calls.append(kwargs)

    names = {
        "isaaclab": {},
        "isaaclab.app": {"AppLauncher": AppLauncher},
        "isaaclab.envs": {"ManagerBasedEnv": ManagerBasedEnv},
        "isaaclab_tasks": {},
        "isaaclab_tasks.utils": {"parse_env_cfg": parse_env_cfg},
    }
    for name in ("DirectRLEnv", "DirectMARLEnv"):
        names["isaaclab.envs"][name] = type(name, (), {})
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        vars(module).update(names[name])
    gymnasium.register("Fake-Isaac-v0", ManagerBasedEnv, disable_env_checker=True)
    with (
        mock.patch.dict(sys.modules, modules),
        mock.patch.object(isaac_lab, "_has_isaaclab", True),
        mock.patch.object(gym_library, "_has_isaaclab", True),
    ):
        yield calls
    del gymnasium.registry["Fake-Isaac-v0"]


ISAAC = [*SMALL, "--isaac", "Fake-Isaac-v0"]


@guards("resident-isaac-calls-bind")
def test_the_calls_for_isaac_lab_are_those_of_the_installed_wrapper(isaac):
    assert bound_calls("docs/performance/recipes/ppo_resident.rst") == ["IsaacLabWrapper"]
    signature = inspect.signature(isaac_lab.IsaacLabWrapper.__init__)
    with mock.patch.object(isaac_lab, "IsaacLabWrapper") as wrapper:
        recipe.make_isaac(recipe.parse([*ISAAC, "--device", "cuda:0"]), 3)
    (call,) = wrapper.call_args_list
    bound = signature.bind(None, *call.args, **call.kwargs).arguments
    assert "kwargs" not in bound  # all of them are named in the signature
    assert bound["native_autoreset"] is True
    assert bound["device"] == torch.device("cuda:0")
    assert isaac == [{"headless": True}, ("Fake-Isaac-v0", "cuda:0", 8)]


@guards("resident-isaac-shape-trains")
def test_the_wrapper_around_what_has_the_shape_of_isaac_lab_trains(isaac):
    run = recipe.Run(recipe.parse(ISAAC), 0)
    assert run.seen == "policy"
    assert isinstance(run.env.base_env, isaac_lab.IsaacLabWrapper)
    poles = run.env.base_env._env.unwrapped.poles
    before = poles.resets  # by the seed and by the collector
    run.train(lambda run: None)
    assert run.progress["frames"] == 320
    assert run.progress["episodes"] > 8
    assert poles.resets == before
    assert all(0 < value <= HORIZON for value in run.progress["returns"])
    assert all(parameter.isfinite().all() for parameter in run.parameters)


# -- The command -----------------------------------------------------------------


def test_the_command_prints_a_table_and_ends_with_its_frames(capsys):
    assert_prints_a_table(recipe, ["--envs", "4", *SMALL[2:]], capsys)


@guards("resident-recipe-resumes-with-the-same-bits")
def test_a_resumed_run_has_the_bits_of_one_that_nobody_killed(tmp_path):
    assert_resumes(recipe, ["--envs", "4", *SMALL[2:]], tmp_path)


def test_without_mjx_the_command_says_what_to_install():
    recipe.compiled.cache_clear()
    with (
        mock.patch.dict(sys.modules, {"jax": None}),
        mock.patch.object(recipe, "Pendulums", PENDULUMS),
        pytest.raises(SystemExit, match="pip install mujoco-mjx"),
    ):
        recipe.main([])


# -- With MJX ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_pendulums_are_those_of_c_and_share_their_memory():
    pytest.importorskip("mujoco.mjx")
    with mock.patch.object(recipe, "Pendulums", PENDULUMS):
        run = make_run("--steps", 200)
    pendulums = run.env.base_env
    check_env_specs(pendulums)
    assert suite.position_error(pendulums) < suite.TOLERANCE
    assert suite.shares_memory(pendulums)
    next(run.batches)
    with pendulums.jax.transfer_guard("disallow"), suite.Reads() as reads:
        batch = next(run.batches)
    assert not reads.counts
    assert batch["next", "done"].sum() > 8
    run.collector.shutdown()


# -- The suite ---------------------------------------------------------------------


@guards("resident-peers-share-settings")
def test_contenders_agree_on_what_is_solved():
    assert contenders.EPISODES == recipe.EPISODES
    options = recipe.parse([])
    assert (options.threshold, options.frames) == (contenders.THRESHOLD, contenders.FRAMES)
    assert options.steps == contenders.STEPS
    assert suite.CONTENDERS.keys() == contenders.WAYS.keys()


def test_a_contender_reports_each_iteration(monkeypatch):
    monkeypatch.setattr(contenders.common, "FRAMES", 2048)
    monkeypatch.setattr(recipe, "compiled", lambda *_: None)
    run = contenders.WAYS["resident-64"](0)
    assert run["points"][-1][0] == 2048
    monkeypatch.setattr(suite, "trained", lambda: {"resident-64": [run] * suite.SEEDS})
    monkeypatch.setattr(pytest, "importorskip", lambda name: None)
    said = noted(suite.bench_training, CPU, "resident-64")
    assert said["sampled"]["frames_to_threshold"] == [2048] * suite.SEEDS
    assert {"import_time", "compile_time"} <= said["sampled"].keys()
