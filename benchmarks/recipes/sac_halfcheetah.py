"""SAC on HalfCheetah-v5, until the mean return of the last episodes reaches a threshold.

    python sac_halfcheetah.py                                # one seed, on one core
    python sac_halfcheetah.py --seeds 0 1 2 --folder runs    # saves; the same command resumes
    python sac_halfcheetah.py --env Pendulum-v1 --threshold -200    # needs no MuJoCo

A comment with a path such as performance/checklist names the page of the TorchRL Field Manual that
explains the line.
"""

import argparse
import functools
import random
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.checkpoint import Checkpoint, CheckpointRotation, GlobalRNGState
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import DoubleToFloat, GymWrapper, RewardSum, TransformedEnv
from torchrl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate

GAMMA, TAU, LR, ALPHA, CELLS, BATCH = 0.99, 0.005, 1e-3, 0.2, [256, 256], 256
EPISODES = 4  # whose mean return is compared with the threshold
READ = ("observation", "action", ("next", "observation"), ("next", "reward"))  # by the loss
READ += (("next", "done"), ("next", "terminated"))
COLUMNS = ("seed", "frames", "seconds", "frames/s", "episodes", "return")


def parse(arguments=None):
    describe = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=describe)
    add = parser.add_argument
    add("--env", default="HalfCheetah-v5", help="of gymnasium, with continuous actions")
    add("--seeds", type=int, nargs="+", default=[0], help="trained one after another")
    add("--threshold", type=float, default=500.0, help="the return that ends a seed")
    add("--frames", type=int, default=24_000, help="the most that a seed may take")
    add("--envs", type=int, default=4, help="environments that step together")
    add("--steps", type=int, default=8, help="of each environment, from one update to the next")
    add("--ratio", type=float, default=1.0, help="updates for each frame")
    add("--random", type=int, default=1024, help="frames with random actions, at first")
    add("--folder", type=Path, help="save here, and resume from what is saved here")
    add("--save-every", type=int, default=250, help="iterations from one save to the next")
    return parser.parse_args(arguments)


class Run:
    """One seed: what it trains with, and what it has done so far."""

    def __init__(self, options, seed):
        self.options, self.seed = options, seed
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.env = self.make_env()
        spec = self.env.action_spec_unbatched
        self.actions = spec.shape[-1]
        self.inputs = self.env.observation_spec["observation"].shape[-1]
        self.actor = self.make_actor(spec)
        self.collector = self.make_collector()
        self.loss = self.make_loss(spec)
        self.target = SoftUpdate(self.loss, tau=TAU)  # of the critics alone
        # No compact_obs: rows this small need no reconstruction, performance/replay_buffers.
        self.buffer = ReplayBuffer(storage=LazyTensorStorage(options.frames))
        self.parameters = list(self.loss.parameters())
        # Actor, critics and temperature in one operator: performance/checklist, "fused".
        self.optimizer = torch.optim.Adam(self.parameters, LR, fused=True)
        self.progress = {"frames": 0, "iterations": 0, "episodes": 0, "returns": []}
        self.progress |= {"seconds": 0.0, "collect": 0.0, "sample": 0.0, "update": 0.0}

    def make_env(self):
        # One batch of environments, not one environment: performance/checklist, "batched-env".
        # Disabled, because the collector resets by itself: performance/environments.
        makers = [functools.partial(gymnasium.make, self.options.env)] * self.options.envs
        try:
            vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
        except gymnasium.error.DependencyNotInstalled as missing:
            cure = "Or take --env Pendulum-v1 --threshold -200, which needs nothing more."
            raise SystemExit(f"{self.options.env}: {missing}. {cure}") from missing
        env = TransformedEnv(GymWrapper(vector), RewardSum())
        env.append_transform(DoubleToFloat())  # MuJoCo has doubles
        env.set_seed(self.seed)
        return env

    def make_actor(self, spec):
        net = MLP(self.inputs, 2 * self.actions, num_cells=CELLS, activation_class=nn.ReLU)
        net = nn.Sequential(net, NormalParamExtractor())
        # No log-probability: the loss computes its own, performance/networks.
        return ProbabilisticActor(
            TensorDictModule(net, ["observation"], ["loc", "scale"]),
            ["loc", "scale"],
            spec=spec,
            distribution_class=TanhNormal,
            distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        )

    def make_collector(self):
        return Collector(
            self.env,
            self.actor,
            frames_per_batch=self.options.steps * self.options.envs,
            total_frames=-1,
            init_random_frames=self.options.random,
            auto_register_policy_transforms=False,  # the policy has no memory
            track_traj_ids=False,  # nothing reads the ids: performance/checklist, "no-ids"
        )

    def make_loss(self, spec):
        sizes = self.inputs + self.actions, 1
        net = MLP(*sizes, num_cells=CELLS, activation_class=nn.ReLU)
        critic = ValueOperator(net, ["observation", "action"])  # the loss makes two of it
        options = {"loss_function": "l2", "alpha_init": ALPHA}  # the default is smooth_l1
        loss = SACLoss(self.actor, critic, action_spec=spec, **options)
        loss.make_value_estimator(gamma=GAMMA)
        return loss

    def iterate(self):
        """Collect a batch, store it, learn from what is stored, and keep the seconds of each."""
        begin = time.perf_counter()
        batch = next(self.batches)
        collected = time.perf_counter()
        self.note(batch)
        self.buffer.extend(batch.select(*READ).reshape(-1))
        minibatches = self.draw(round(self.options.ratio * batch.numel())) if self.learning else ()
        sampled = time.perf_counter()
        for minibatch in minibatches:
            self.learn(minibatch)
        end = time.perf_counter()
        self.progress["collect"] += collected - begin
        self.progress["sample"] += sampled - collected
        self.progress["update"] += end - sampled
        self.progress["seconds"] += end - begin

    def note(self, batch):
        # With a mask, not frame by frame: performance/checklist, "masked-log".
        ended = batch["next", "episode_reward"][batch["next", "done"]].tolist()
        progress = self.progress
        progress["returns"] = (progress["returns"] + ended)[-EPISODES:]
        progress["episodes"] += len(ended)
        progress["frames"] += batch.numel()
        progress["iterations"] += 1

    @property
    def learning(self):
        return self.progress["frames"] >= self.options.random

    def draw(self, updates):
        """The minibatches of *updates*, sampled in one call."""
        return self.buffer.sample(updates * BATCH).split(BATCH)

    def learn(self, minibatch):
        losses = self.loss(minibatch)
        # One backward pass: each of the three has parameters of its own.
        (losses["loss_actor"] + losses["loss_qvalue"] + losses["loss_alpha"]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.target.step()

    @property
    def mean_return(self):
        returns = self.progress["returns"]
        return sum(returns) / len(returns) if len(returns) == EPISODES else float("nan")

    @property
    def solved(self):
        return self.mean_return >= self.options.threshold

    @property
    def over(self):
        return self.solved or self.progress["frames"] >= self.options.frames

    def train(self, each_iteration):
        """Train until the threshold or the last frame; call *each_iteration* with the run."""
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
        parts = {"loss": self.loss, "optimizer": self.optimizer, "collector": self.collector}
        parts |= {"buffer": self.buffer, "progress": self.progress, "rng": GlobalRNGState()}
        self.checkpoint = Checkpoint(**parts)
        saves = CheckpointRotation(self.options.folder / f"seed-{self.seed}", keep_last=2)
        if saves.latest() is not None:
            saves.load_latest(self.checkpoint)
            self.start_episodes()
        return saves

    def start_episodes(self):
        """No environment saves its state, so begin new episodes after a save and after a load."""
        self.env.set_seed(self.seed + self.progress["frames"])
        self.collector.reset()


def row(run):
    """The line of the table that says where *run* is."""
    done = run.progress
    speed = done["frames"] / done["seconds"]
    numbers = f"{done['frames']:>8,} {done['seconds']:>8.1f} {speed:>9,.0f} {done['episodes']:>9,}"
    return f"{run.seed:>4} {numbers} {run.mean_return:>7.1f}"


def main(arguments=None):
    options = parse(arguments)
    torch.set_num_threads(1)  # networks this small lose time with more
    print("{:>4} {:>8} {:>8} {:>9} {:>9} {:>7}".format(*COLUMNS))
    for seed in options.seeds:
        run = Run(options, seed)
        run.train(lambda run: print(row(run), end="\r", flush=True))
        parts = ("collect", "sample", "update")
        share = ", ".join(f"{part} {run.progress[part]:.1f} s" for part in parts)
        print(f"{row(run)}  {'solved' if run.solved else 'not solved'}: {share}", flush=True)


if __name__ == "__main__":
    main()
