"""PPO on CartPole-v1, until the mean return of the last episodes reaches a threshold.

    python ppo_cartpole.py                                # one seed, less than a minute on one core
    python ppo_cartpole.py --seeds 0 1 2 --folder runs    # saves; the same command resumes

The hyperparameters are those that rl-baselines3-zoo publishes for CartPole-v1, but for a batch of
32 x 8 frames in place of 8 x 32. A comment with a path such as performance/checklist names the page
of the TorchRL Field Manual that explains the line.
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
from torch.distributions import Categorical
from torchrl.checkpoint import Checkpoint, CheckpointRotation, GlobalRNGState
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, RewardSum, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

GAMMA, LMBDA, LR, CLIP = 0.98, 0.8, 1e-3, 0.2
EPOCHS, CELLS = 20, [64, 64]
EPISODES = 20  # whose mean return is compared with the threshold
READ = ("observation", "action", "action_log_prob", "advantage", "value_target")  # by the loss
COLUMNS = ("seed", "frames", "seconds", "frames/s", "episodes", "return")


def parse(arguments=None):
    describe = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=describe)
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0], help="trained one after another")
    add("--threshold", type=float, default=gymnasium.spec("CartPole-v1").reward_threshold)
    add("--frames", type=int, default=100_000, help="the most that a seed may take")
    add("--envs", type=int, default=32, help="environments that step together, in each worker")
    add("--steps", type=int, default=8, help="of each environment in a batch")
    add("--workers", type=int, default=0, help="processes that collect; 0: in this process")
    add("--device", default="cpu", help="of the networks; CartPole itself stays on the CPU")
    add("--folder", type=Path, help="save here, and resume from what is saved here")
    add("--save-every", type=int, default=50, help="iterations from one save to the next")
    return parser.parse_args(arguments)


def make_env(count, seed):
    # One batch of environments, not one environment: performance/checklist, "batched-env".
    # Disabled, because the collector resets by itself: performance/environments.
    makers = [functools.partial(gymnasium.make, "CartPole-v1")] * count
    vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
    env = GymWrapper(vector, categorical_action_encoding=True)
    # The one transform that something reads: performance/checklist, "lean-env".
    env = TransformedEnv(env, RewardSum())
    env.set_seed(seed)
    return env


def make_network(outputs, gain):
    net = MLP(in_features=4, out_features=outputs, num_cells=CELLS, activation_class=nn.Tanh)
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
        nn.init.zeros_(layer.bias)
    return net


class Run:
    """One seed: what it trains with, and what it has done so far."""

    def __init__(self, options, seed):
        self.options, self.seed = options, seed
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        actor = TensorDictModule(make_network(2, 0.01), ["observation"], ["logits"])
        self.actor = ProbabilisticActor(
            actor, ["logits"], distribution_class=Categorical, return_log_prob=True
        ).to(options.device)
        self.critic = ValueOperator(make_network(1, 1.0), ["observation"]).to(options.device)
        self.collector = self.make_collector()
        self.loss = self.make_loss()
        self.advantage = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=self.critic)
        self.parameters = list(self.loss.parameters())
        self.optimizer = self.make_optimizer()
        self.progress = {"frames": 0, "iterations": 0, "episodes": 0, "returns": []}
        self.progress |= {"seconds": 0.0, "collect": 0.0, "advantage": 0.0, "update": 0.0}

    def make_collector(self):
        options = self.options
        workers = range(options.workers)
        factories = [functools.partial(make_env, options.envs, self.seed + i) for i in workers]
        # Nothing reads the ids; with workers they stay: performance/checklist, "no-ids".
        where = {"track_traj_ids": False}
        if factories:  # performance/collectors
            where = {"num_collectors": options.workers, "sync": True}
        devices = {}
        if options.device != "cpu":  # performance/device_placement
            devices = {"policy_device": options.device, "env_device": "cpu"}
            devices["storing_device"] = options.device
        return Collector(
            factories or make_env(options.envs, self.seed),
            self.actor,
            frames_per_batch=options.steps * options.envs * max(1, options.workers),
            total_frames=-1,
            auto_register_policy_transforms=False,  # the policy has no memory
            **where,
            **devices,
        )

    def make_loss(self):
        return ClipPPOLoss(
            self.actor,
            self.critic,  # shares nothing with the actor: performance/networks, "trunk"
            clip_epsilon=CLIP,
            entropy_bonus=False,
            critic_coeff=0.5,
            loss_critic_type="l2",
            normalize_advantage=True,
            log_explained_variance=False,  # nothing reads it
            functional=False,  # there are no target networks: performance/networks, "functional"
        )

    def make_optimizer(self):
        # All parameters in one operator: performance/checklist, "fused".
        return torch.optim.Adam(self.parameters, LR, eps=1e-5, fused=True)

    def iterate(self):
        """Collect a batch and learn from it, and keep the seconds of each part."""
        begin = time.perf_counter()
        batch = next(self.batches)
        collected = time.perf_counter()
        self.note(batch)
        with torch.no_grad():
            self.advantage(batch)
        batch = batch.select(*READ).reshape(-1)
        estimated = time.perf_counter()
        self.learn(batch)
        end = time.perf_counter()
        self.progress["collect"] += collected - begin
        self.progress["advantage"] += estimated - collected
        self.progress["update"] += end - estimated
        self.progress["seconds"] += end - begin

    def note(self, batch):
        # With a mask, not frame by frame: performance/checklist, "masked-log".
        ended = batch["next", "episode_reward"][batch["next", "done"]].tolist()
        progress = self.progress
        progress["returns"] = (progress["returns"] + ended)[-EPISODES:]
        progress["episodes"] += len(ended)
        progress["frames"] += batch.numel()
        progress["iterations"] += 1

    def learn(self, batch):
        left = max(0.0, 1 - self.progress["frames"] / self.options.frames)
        self.loss.clip_epsilon.fill_(CLIP * left)
        self.optimizer.param_groups[0]["lr"] = LR * left
        # The batch is the minibatch, so no buffer: performance/checklist, "index".
        for _ in range(EPOCHS):
            losses = self.loss(batch)
            (losses["loss_objective"] + losses["loss_critic"]).backward()
            nn.utils.clip_grad_norm_(self.parameters, 0.5)
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.collector.update_policy_weights_()

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
        self.checkpoint = Checkpoint(**parts, progress=self.progress, rng=GlobalRNGState())
        saves = CheckpointRotation(self.options.folder / f"seed-{self.seed}", keep_last=2)
        if saves.latest() is not None:
            saves.load_latest(self.checkpoint)
            self.collector.update_policy_weights_()
            self.start_episodes()
        return saves

    def start_episodes(self):
        """No environment saves its state, so begin new episodes after a save and after a load."""
        if not self.options.workers:
            self.collector.env.set_seed(self.seed + self.progress["frames"])
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
        parts = ("collect", "advantage", "update")
        share = ", ".join(f"{part} {run.progress[part]:.1f} s" for part in parts)
        print(f"{row(run)}  {'solved' if run.solved else 'not solved'}: {share}", flush=True)


if __name__ == "__main__":
    main()
