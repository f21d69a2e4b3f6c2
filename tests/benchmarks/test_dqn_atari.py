"""The recipe of DQN on pixels: what it stores, samples and learns; mistakes in it are noticed."""

import inspect
import sys
import types
from functools import partial
from unittest import mock

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation
from torch.nn.functional import smooth_l1_loss

from benchmarks.recipes import dqn_atari as recipe
from tests.support.claims import guards
from tests.support.ppo_recipes import assert_resumes

CELL, CELLS = 4, 6
ROWS = 80  # as many steps of each game as whole balls take, so that steps after the newest fit
SMALL = ["--envs", "4", "--steps", "8", "--frames", "320", "--size", str(CELL * CELLS)]
SMALL += ["--every", "16", "--target-every", "3"]


class Catch(gymnasium.Env):
    """Balls that fall one cell a step, and a paddle; an episode has one ball or two."""

    action_space = gymnasium.spaces.Discrete(3)
    observation_space = gymnasium.spaces.Box(0, 255, (CELL * CELLS,) * 2, np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.paddle, self.left = CELLS // 2, int(self.np_random.integers(1, 3))
        self.drop()
        return self.draw(), {}

    def drop(self):
        self.row, self.column = 0, int(self.np_random.integers(CELLS))

    def step(self, action):
        self.paddle = min(max(self.paddle + int(action) - 1, 0), CELLS - 1)
        reward = 7.0 if self.column == self.paddle else -7.0  # larger than one, to be clipped
        self.row += 1
        if self.row == CELLS - 1:
            self.left -= 1
            self.drop()
        return self.draw(), reward, self.left == 0, False, {}

    def draw(self):
        cells = np.zeros((CELLS, CELLS), np.uint8)
        cells[self.row, self.column] = 255
        cells[-1, self.paddle] = 120
        return cells.repeat(CELL, 0).repeat(CELL, 1)


def make_catch(options):
    one = lambda: FrameStackObservation(Catch(), recipe.STACKED, padding_type="zero")  # noqa: E731
    return SyncVectorEnv([one] * options.envs, autoreset_mode=AutoresetMode.SAME_STEP)


def make_run(module, *arguments):
    run = module.Run(module.parse([*SMALL, *map(str, arguments)]), 0, make_catch)
    run.batches = iter(run.collector)
    return run


# -- What it samples and learns --------------------------------------------------

PLANTED = {  # what stands in the script, what is put there, and what is noticed
    "nothing": ("", "", set()),
    "wrong sign": ('self.loss(sample)["loss"]', '(-self.loss(sample)["loss"])', {"descent"}),
    "frozen target network": ("self.target.step()", "pass", {"target"}),
    "no double DQN": ("double_dqn=True", "double_dqn=False", {"loss"}),
    "discount of one step": ("gamma=GAMMA**N_STEPS", "gamma=GAMMA", {"loss"}),
    "stack one frame late": (
        "self.pixels(frames[:, :STACKED])",
        "self.pixels(frames[:, 1 : STACKED + 1])",
        {"stack"},
    ),
    "next stack one frame early": (
        "frames[:, -STACKED:]",
        "frames[:, -STACKED - 1 : -1]",
        {"next"},
    ),
    "stack over the start of an episode": ("frames[:, :STACKED][before] = 0", "pass", {"stack"}),
    "frames of another game": ("self.ahead * self.envs", "self.ahead", {"complete"}),
    "rows of other episodes": (
        "near[TRAJ] == rows[TRAJ].unsqueeze(-1)",
        "near[TRAJ] >= 0",
        {"complete"},
    ),
    "rewards after the end": (".masked_fill(after, 0)", "", {"reward"}),
    "reward of the last step missing": ("- ended.long() > 0", "> 0", {"reward"}),
    "values after the end": (
        'rows["next", "done"] = over',
        'rows["next", "done"] = over & False',
        {"end"},
    ),
    "rewards as they are": ("[:, STACKED - 1 : -1].sign()", "[:, STACKED - 1 : -1]", {"reward"}),
}


def mutated(old, new):
    """The recipe with *new* in place of *old*."""
    source = inspect.getsource(recipe)
    assert old in source
    module = types.ModuleType("mutated")
    exec(compile(source.replace(old, new), recipe.__file__, "exec"), module.__dict__)
    return module


def expected_of(shown, number, envs, oldest):
    """Stack, return and whether it is over, of row *number*; None if the buffer lacks a part."""
    time, game = divmod(number, envs)
    last = len(shown["reward"]) - 1
    if time - min(shown["step"][time, game], recipe.STACKED - 1) < oldest:
        return None
    value, over = 0.0, False
    for k in range(recipe.N_STEPS):
        if time + k > last:
            return None
        value += recipe.GAMMA**k * np.sign(shown["reward"][time + k, game])
        if over := shown["done"][time + k, game]:
            break
    later = time + recipe.N_STEPS
    if not over and later > last:
        return None
    return shown["stack"][time, game], value, over, None if over else shown["stack"][later, game]


def complaints_of_rows(run, shown):
    """What the buffer makes of rows that the games have *shown*."""
    rows, envs = run.buffer[:], run.options.envs
    complete, stacks, laters = (
        rows[key].numpy() for key in ("complete", "observation", ("next", "observation"))
    )
    names = ("reward", "terminated", "done")
    rewards, terminated, done = (rows["next", name].squeeze(-1).numpy() for name in names)
    total, kept = shown["reward"].size, len(rows)
    assert total > kept  # some rows are overwritten
    found = set()
    for place in range(kept):
        number = place + kept * ((total - 1 - place) // kept)
        expected = expected_of(shown, number, envs, (total - kept) // envs)
        if complete[place] != (expected is not None):
            found.add("complete")
        if expected is None or not complete[place]:
            continue
        stack, value, over, later = expected
        if not np.array_equal(stacks[place], stack):
            found.add("stack")
        if not np.isclose(rewards[place], value):
            found.add("reward")
        if not terminated[place] == done[place] == over:
            found.add("end")
        if later is not None and not np.array_equal(laters[place], later):
            found.add("next")
    return found


def values(run, params, pixels):
    with torch.no_grad(), params.data.to_module(run.loss.value_network):
        return run.loss.value_network(observation=pixels)[1]


def complaints_of_updates(run):
    """What the loss and the updates do wrong with a sample."""
    loss, found = run.loss, set()
    sample = run.buffer.sample()
    sample = sample[sample["complete"]]
    online, target = loss.value_network_params, loss.target_value_network_params

    def best(params):
        return values(run, params, sample["next", "observation"]).argmax(-1, keepdim=True)

    def aim():
        later = values(run, target, sample["next", "observation"]).gather(-1, best(online))
        bootstrap = recipe.GAMMA**recipe.N_STEPS * later * ~sample["next", "terminated"]
        return sample["next", "reward"] + bootstrap

    def error(aim):
        taken = values(run, online, sample["observation"])
        return smooth_l1_loss(taken.gather(-1, sample["action"].unsqueeze(-1)), aim)

    fixed = aim()
    before, renewed = error(fixed), 0
    for _ in range(run.options.target_every):
        run.learn(sample)
        renewed += bool((online.data == target.data).all())
    if renewed != 1:
        found.add("target")
    if not error(fixed) < before:
        found.add("descent")
    while torch.equal(best(online), best(target)):
        for parameter in target.values(True, True):
            parameter.data += 0.1 * torch.randn_like(parameter)
    if not torch.isclose(loss(sample)["loss"], error(aim()), rtol=1e-4):
        found.add("loss")
    return found


def complaints(module):
    """What some iterations with the script *module* do wrong."""
    run = make_run(module, "--rows", ROWS, "--steps", 20, "--every", 80)
    kept = []
    run.batches = (kept.append(batch.clone()) or batch for batch in run.batches)
    for _ in range(2):
        run.iterate()
    run.collector.shutdown()
    seen = torch.cat([batch.transpose(0, 1) for batch in kept])
    columns = {"stack": "observation", "step": "step_count"}
    columns |= {"reward": ("next", "reward"), "done": ("next", "done")}
    shown = {name: seen[key].numpy() for name, key in columns.items()}
    for name in ("step", "reward", "done"):
        shown[name] = shown[name].squeeze(-1)
    return complaints_of_rows(run, shown) or complaints_of_updates(run)


@guards("dqn-recipe-is-plain-torch")
@pytest.mark.parametrize("planted", PLANTED)
def test_a_mistake_in_the_script_is_noticed(planted):
    old, new, expected = PLANTED[planted]
    found = complaints(mutated(old, new) if old else recipe)
    assert found >= expected
    assert bool(found) == bool(expected)


# -- The command -----------------------------------------------------------------


def test_the_command_prints_a_table_and_ends_with_its_frames(capsys):
    recipe.main([*SMALL, "--seeds", "3", "--prioritized", "--prefetch", "1"], make_catch)
    head, lines = capsys.readouterr().out.split("\n", 1)
    assert tuple(head.split()) == recipe.COLUMNS
    rows = lines.strip().split("\r")
    assert len(rows) == 10 + 1  # one for each iteration, and the last once more
    assert rows[-1].split()[:2] == ["3", "320"]
    assert "update" in rows[-1]


def test_a_sample_without_a_complete_row_is_no_update():
    run = make_run(recipe, "--prioritized")
    run.iterate()
    sample = run.buffer.sample()
    sample["complete"] = torch.zeros_like(sample["complete"])
    updates = run.progress["updates"]
    with mock.patch.object(run.buffer, "sample", return_value=sample):
        run.iterate()
    run.collector.shutdown()
    assert run.progress["updates"] == updates


@guards("dqn-recipe-resumes-with-the-same-bits")
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_resumed_run_has_the_bits_of_one_that_nobody_killed(tmp_path, prioritized):
    catch = types.SimpleNamespace(
        parse=recipe.parse, Run=partial(recipe.Run, make_games=make_catch)
    )
    assert_resumes(catch, SMALL + ["--prioritized"] * prioritized, tmp_path)


def test_without_ale_py_the_error_says_what_to_install():
    with (
        mock.patch.dict(sys.modules, {"ale_py": None}),
        pytest.raises(SystemExit, match="pip install ale-py"),
    ):
        recipe.main([])


# -- Memory ----------------------------------------------------------------------


def test_a_row_is_one_frame_and_some_numbers():
    run = make_run(recipe, "--rows", 64)
    run.iterate()
    run.collector.shutdown()
    row = run.buffer.storage.get(0)
    assert row["frame"].nbytes == (CELL * CELLS) ** 2
    assert row.bytes() - row["frame"].nbytes < 64
