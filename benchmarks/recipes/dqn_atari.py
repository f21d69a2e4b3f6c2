"""DQN on an Atari game, with a replay buffer that stores each frame once.

    python dqn_atari.py                                            # one seed, on one core
    python dqn_atari.py --game breakout --frames 1000000 --rows 500000 --size 84
    python dqn_atari.py --seeds 0 1 2 --folder runs                # saves; repeat it to resume

Needs ale-py. Double DQN with returns of five steps. A frame is one step of the agent, which is
four of the game. A comment with a path such as how-to/pixel_replay names the page of the TorchRL
Field Manual that explains the line.
"""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
import torchrl
from gymnasium.vector import AutoresetMode
from tensordict.nn import TensorDictSequential
from torch import nn
from torchrl.checkpoint import Checkpoint, CheckpointRotation, GlobalRNGState
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer
from torchrl.envs import GymWrapper, RewardSum, StepCounter
from torchrl.envs.transforms import Transform
from torchrl.modules import EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, HardUpdate

GAMMA, N_STEPS, STACKED = 0.99, 5, 4
LR, BATCH, CELLS = 3e-4, 64, 256
EPS_END, EXPLORE, WARM_UP = 0.02, 0.25, 0.04  # the latter two are shares of all frames
EPISODES = 10  # whose mean return is shown
COLUMNS = ("seed", "frames", "seconds", "frames/s", "episodes", "return")
PARTS = ("collect", "store", "sample", "update")
TRAJ = ("collector", "traj_ids")


def parse(arguments=None):
    describe = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=describe)
    add = parser.add_argument
    add("--game", default="kung_fu_master", help="the name of a ROM of ale-py, such as pong")
    add("--seeds", type=int, nargs="+", default=[0], help="trained one after another")
    add("--frames", type=int, default=40_000, help="of each seed")
    add("--rows", type=int, default=100_000, help="of the buffer; each holds one frame")
    add("--size", type=int, default=48, help="pixels of a side, a multiple of four")
    add("--envs", type=int, default=8, help="games that step together")
    add("--steps", type=int, default=4, help="of each game between two rounds of updates")
    add("--every", type=int, default=2, help="frames for each update")
    add("--target-every", type=int, default=500, help="updates from one target network to the next")
    add("--prioritized", action="store_true", help="draw rows by their error")
    add("--prefetch", type=int, help="samples that a thread draws ahead; needs a spare core")
    add("--device", default="cpu", help="of the networks; games and buffer stay on the CPU")
    add("--folder", type=Path, help="save here, and resume from what is saved here")
    add("--save-every", type=int, default=500, help="iterations from one save to the next")
    return parser.parse_args(arguments)


def make_games(options):
    """The games as a vector environment of gymnasium, with four gray frames in an observation."""
    try:
        from ale_py.vector_env import AtariVectorEnv
    except ImportError as error:
        raise SystemExit("The games are in ale-py: pip install ale-py") from error
    # It steps, scales and stacks in C++: faster than wrappers around each game.
    return AtariVectorEnv(
        options.game,
        options.envs,
        num_threads=1,
        img_height=options.size,
        img_width=options.size,
        stack_num=STACKED,
        reward_clipping=False,  # the buffer clips, so that the table has the score
        autoreset_mode=AutoresetMode.SAME_STEP,
    )


class FrameReplay(Transform):
    """Stores one frame a row; a sample has stacks, and the rewards of the next steps.

    Rows of *envs* games take turns in the *storage*, so a game's next row is *envs* places on.
    """

    def __init__(self, storage, envs, size):
        super().__init__()
        self.storage, self.envs, self.size = storage, envs, size
        self.ahead = torch.arange(1 - STACKED, N_STEPS + 1)
        self.discount = GAMMA ** torch.arange(N_STEPS)

    def _inv_call(self, rows):  # when you extend the buffer
        kept = rows.select("action", "step_count", TRAJ, ("next", "reward"), ("next", "terminated"))
        # Eight bytes as one number: performance/replay_buffers, "Pixels".
        newest = rows["observation"][:, -1].flatten(1).contiguous()
        return kept.set("frame", newest.view(torch.int64))

    def forward(self, rows):  # when you sample: how-to/pixel_replay
        rows = rows.copy()  # those of buffer[:] are the storage itself
        step = rows["step_count"] + self.ahead
        places = (rows["index"].unsqueeze(-1) + self.ahead * self.envs) % len(self.storage)
        near = self.storage.get(places.flatten()).view(places.shape)
        found = near[TRAJ] == rows[TRAJ].unsqueeze(-1)
        found &= near["step_count"].squeeze(-1) == step
        before = (step < 0)[:, :STACKED]
        # The rewards until the episode ends.
        ended = (near["next", "terminated"].squeeze(-1) & found)[:, STACKED - 1 : -1]
        after = ended.cumsum(-1) - ended.long() > 0
        rewards = near["next", "reward"].squeeze(-1)[:, STACKED - 1 : -1].sign()
        over = ended.any(-1, keepdim=True)
        past, coming = found[:, :STACKED] | before, found[:, STACKED:] | over
        rows["complete"] = past.all(-1) & coming.all(-1)
        frames = near["frame"]
        frames[:, :STACKED][before] = 0  # as the games do where an episode begins
        rows["observation"] = self.pixels(frames[:, :STACKED])
        rows["next", "observation"] = self.pixels(frames[:, -STACKED:])
        rows["next", "reward"] = (
            (rewards * self.discount).masked_fill(after, 0).sum(-1, keepdim=True)
        )
        rows["next", "terminated"] = rows["next", "done"] = over
        return rows.exclude("frame")

    def pixels(self, frames):
        return frames.contiguous().view(torch.uint8).unflatten(-1, (self.size, self.size))


class Network(nn.Sequential):
    """Two convolutions, on pixels as they are stored."""

    def __init__(self, size, actions):
        side = ((size - 8) // 4 + 1 - 4) // 2 + 1
        super().__init__(
            *(nn.Conv2d(STACKED, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(32 * side**2, CELLS), nn.ReLU(), nn.Linear(CELLS, actions)),
        )

    def forward(self, pixels):  # channels last or first: performance/recipes/dqn_atari
        return super().forward((pixels / 255).contiguous(memory_format=torch.channels_last))


class Run:
    """One seed: what it trains with, and what it has done so far."""

    def __init__(self, options, seed, make_games=make_games):
        self.options, self.seed = options, seed
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        torchrl.logger.setLevel("ERROR")  # it announces each storage
        self.env = self.make_env(make_games(options))
        self.actor = self.make_actor()
        frames = int(options.frames * EXPLORE)
        spec = self.env.action_spec_unbatched
        self.explore = EGreedyModule(spec, eps_end=EPS_END, annealing_num_steps=frames)
        self.explore.to(options.device)
        self.collector = self.make_collector()
        self.buffer = self.make_buffer()
        self.loss = self.make_loss()
        self.target = HardUpdate(self.loss, value_network_update_interval=options.target_every)
        self.parameters = list(self.loss.parameters())
        # All parameters in one operator: performance/checklist, "fused".
        self.optimizer = torch.optim.Adam(self.parameters, LR, eps=1e-4, fused=True)
        self.progress = {"frames": 0, "iterations": 0, "updates": 0, "episodes": 0, "returns": []}
        self.progress |= dict.fromkeys(("seconds", *PARTS), 0.0)

    def make_env(self, games):
        env = GymWrapper(games, categorical_action_encoding=True)
        # It has a transform already, which undoes the resets of the games.
        env.append_transform(RewardSum())
        env.append_transform(StepCounter())  # where an episode begins, for the stacks
        env.set_seed(self.seed)
        return env

    def make_actor(self):
        spec = self.env.action_spec_unbatched
        network = Network(self.options.size, spec.n)
        return QValueActor(network, in_keys=["observation"], spec=spec).to(self.options.device)

    def make_collector(self):
        options, devices = self.options, {}
        if options.device != "cpu":  # performance/device_placement
            devices = {"policy_device": options.device, "env_device": "cpu"}
            devices["storing_device"] = "cpu"
        return Collector(
            self.env,
            TensorDictSequential(self.actor, self.explore),
            frames_per_batch=options.steps * options.envs,
            total_frames=-1,
            compact_obs=True,  # no next stacks: the buffer has no use for them
            auto_register_policy_transforms=False,  # the policy has no memory
            **devices,
        )

    def make_buffer(self):
        options = self.options
        rows = options.rows // options.envs * options.envs
        storage = LazyTensorStorage(rows)
        sampler = PrioritizedSampler(rows, alpha=0.6, beta=0.4) if options.prioritized else None
        return TensorDictReplayBuffer(
            storage=storage,
            sampler=sampler,
            transform=FrameReplay(storage, options.envs, options.size),
            priority_key="td_error",
            batch_size=self.updates * BATCH,
            prefetch=options.prefetch,  # performance/replay_buffers
        )

    def make_loss(self):
        loss = DQNLoss(
            self.actor,
            action_space="categorical",
            loss_function="smooth_l1",
            double_dqn=True,
            delay_value=True,  # with a target network
        )
        loss.make_value_estimator(gamma=GAMMA**N_STEPS)  # the buffer discounts the steps before
        return loss

    def iterate(self):
        """Collect a batch, store it, learn from samples, and keep the seconds of each part."""
        clock, progress = time.perf_counter, self.progress
        begin = mark = clock()

        def spent(part):
            nonlocal mark
            now = clock()
            progress[part] += now - mark
            mark = now

        batch = next(self.batches)
        self.explore.step(batch.numel())
        spent("collect")
        self.note(batch)
        self.buffer.extend(batch.transpose(0, 1).reshape(-1))  # step by step, game after game
        spent("store")
        if progress["frames"] > WARM_UP * self.options.frames:
            sample = self.buffer.sample()  # of all updates: performance/replay_buffers
            # Without the newest rows, whose next steps are yet to come.
            sample = sample[sample["complete"]].to(self.options.device)
            spent("sample")
            if len(sample):  # early on, priorities may draw the newest rows alone
                for minibatch in sample.chunk(self.updates):
                    self.learn(minibatch)
            spent("update")
            self.collector.update_policy_weights_()
        progress["seconds"] += clock() - begin

    def note(self, batch):
        # With a mask, not frame by frame: performance/checklist, "masked-log".
        # compact_obs leaves the sum before a step, and not the one after it.
        scores = batch["episode_reward"] + batch["next", "reward"]
        ended = scores[batch["next", "done"]].tolist()
        progress = self.progress
        progress["returns"] = (progress["returns"] + ended)[-EPISODES:]
        progress["episodes"] += len(ended)
        progress["frames"] += batch.numel()
        progress["iterations"] += 1

    def learn(self, sample):
        self.loss(sample)["loss"].backward()
        nn.utils.clip_grad_norm_(self.parameters, 10.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.target.step()
        self.progress["updates"] += 1
        if self.options.prioritized:
            self.buffer.update_tensordict_priority(sample)

    @property
    def updates(self):
        """How many follow each batch of the collector."""
        return max(1, self.options.steps * self.options.envs // self.options.every)

    @property
    def mean_return(self):
        returns = self.progress["returns"]
        return sum(returns) / len(returns) if returns else float("nan")

    @property
    def over(self):
        return self.progress["frames"] >= self.options.frames

    def train(self, each_iteration):
        """Train until the last frame; call *each_iteration* with the run."""
        saves = self.resume()
        self.batches = iter(self.collector)
        while not self.over:
            self.iterate()
            if saves and (self.over or self.progress["iterations"] % self.options.save_every == 0):
                saves.save(self.checkpoint, step=self.progress["frames"])
                self.start_episodes()
            each_iteration(self)
        self.collector.shutdown()

    def resume(self):  # how-to/save_and_resume
        if self.options.folder is None:
            return None
        parts = {"loss": self.loss, "optimizer": self.optimizer, "target": self.target}
        parts |= {"collector": self.collector, "buffer": self.buffer}
        self.checkpoint = Checkpoint(**parts, progress=self.progress, rng=GlobalRNGState())
        saves = CheckpointRotation(self.options.folder / f"seed-{self.seed}", keep_last=2)
        if saves.latest() is not None:
            saves.load_latest(self.checkpoint)
            self.collector.update_policy_weights_()
            self.start_episodes()
        return saves

    def start_episodes(self):
        """No environment saves its state, so begin new episodes after a save and after a load."""
        self.collector.env.set_seed(self.seed + self.progress["frames"])
        self.collector.reset()


def row(run):
    """The line of the table that says where *run* is."""
    done = run.progress
    speed = done["frames"] / done["seconds"]
    numbers = f"{done['frames']:>8,} {done['seconds']:>8.1f} {speed:>9,.0f} {done['episodes']:>9,}"
    return f"{run.seed:>4} {numbers} {run.mean_return:>7.1f}"


def main(arguments=None, make_games=make_games):
    options = parse(arguments)
    torch.set_num_threads(1)  # a network this small loses time with more
    print("{:>4} {:>8} {:>8} {:>9} {:>9} {:>7}".format(*COLUMNS))
    for seed in options.seeds:
        run = Run(options, seed, make_games)
        run.train(lambda run: print(row(run), end="\r", flush=True))
        share = ", ".join(f"{part} {run.progress[part]:.1f} s" for part in PARTS)
        print(f"{row(run)}  {share}", flush=True)


if __name__ == "__main__":
    main()
