"""PPO with a GRU on CartPole-v1 without velocities, until the last episodes reach a return.

    python recurrent_ppo_cartpole.py                               # one seed, on one core
    python recurrent_ppo_cartpole.py --seeds 0 1 2 --folder runs   # saves; repeat it to resume

The agent sees the positions of cart and pole, and has to remember how fast they move. A comment
with a path such as performance/recurrent names the page of the TorchRL Field Manual that explains
the line.
"""

import argparse
import random
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TransformObservation
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.checkpoint import Checkpoint, CheckpointRotation, GlobalRNGState
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, InitTracker, RewardSum, TransformedEnv
from torchrl.modules import (
    ActorValueOperator,
    GRUModule,
    ProbabilisticActor,
    ValueOperator,
    set_recurrent_mode,
)
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

GAMMA, LMBDA, LR, CLIP = 0.98, 0.9, 2e-3, 0.2
SCALE = 1 - GAMMA  # of rewards: no value is above one
EPOCHS, ROWS, CELLS = 8, 8, 64  # ROWS: sequences in a minibatch
LIMITS = np.array([2.4, 0.21], np.float32)  # of position and angle, where an episode ends
EPISODES = 20  # whose mean return is compared with the threshold
READ = ("observation", "is_init", "recurrent_state", "action", "action_log_prob")  # by the loss
READ += ("advantage", "value_target")
COLUMNS = ("seed", "frames", "seconds", "frames/s", "episodes", "return")


def parse(arguments=None):
    describe = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=describe)
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0], help="trained one after another")
    add("--threshold", type=float, default=195.0, help="475: solved, as gymnasium has it")
    add("--frames", type=int, default=100_000, help="the most that a seed may take")
    add("--envs", type=int, default=32, help="environments that step together")
    add("--steps", type=int, default=32, help="of each environment in a batch: the sequences")
    add("--folder", type=Path, help="save here, and resume from what is saved here")
    add("--save-every", type=int, default=20, help="iterations from one save to the next")
    return parser.parse_args(arguments)


def make_cartpole():
    """CartPole that shows positions alone, each divided by its limit."""
    env = gymnasium.make("CartPole-v1")
    shown = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return TransformObservation(env, lambda state: state[::2] / LIMITS, shown)


class Run:
    """One seed: what it trains with, and what it has done so far."""

    def __init__(self, options, seed):
        self.options, self.seed = options, seed
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.memory = GRUModule(2, CELLS, in_key="observation", out_key="features")
        self.network = self.make_network()
        self.collector = self.make_collector()
        self.loss = self.make_loss()
        self.advantage = self.make_advantage()
        self.parameters = list(self.loss.parameters())
        # All parameters in one operator: performance/checklist, "fused".
        self.optimizer = torch.optim.Adam(self.parameters, LR, eps=1e-5, fused=True)
        self.progress = {"frames": 0, "iterations": 0, "episodes": 0, "returns": []}
        self.progress |= {"seconds": 0.0, "collect": 0.0, "advantage": 0.0, "update": 0.0}

    def make_network(self):
        # A trunk for both, so that the GRU runs once: performance/networks, "trunk".
        head = TensorDictModule(make_head(2, 0.01), ["features"], ["logits"])
        actor = ProbabilisticActor(
            head, ["logits"], distribution_class=Categorical, return_log_prob=True
        )
        critic = ValueOperator(make_head(1, 1.0), ["features"])
        return ActorValueOperator(self.memory, actor, critic)

    def make_env(self):
        # One batch of environments, not one environment: performance/checklist, "batched-env".
        # Disabled, because the collector resets by itself: performance/environments.
        makers = [make_cartpole] * self.options.envs
        vector = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)
        env = TransformedEnv(GymWrapper(vector, categorical_action_encoding=True), RewardSum())
        # What begins an episode, and the state that it begins with: performance/recurrent.
        env.append_transform(InitTracker())
        env.append_transform(self.memory.make_tensordict_primer())
        env.set_seed(self.seed)
        return env

    def make_collector(self):
        return Collector(
            self.make_env(),
            self.network.get_policy_operator(),
            frames_per_batch=self.options.steps * self.options.envs,
            total_frames=-1,
            auto_register_policy_transforms=False,  # make_env has them
            track_traj_ids=False,  # nothing reads the ids: performance/checklist, "no-ids"
        )

    def make_loss(self):
        return ClipPPOLoss(
            self.network.get_policy_operator(),
            self.network.get_value_head(),  # reads the features: performance/networks, "trunk"
            clip_epsilon=CLIP,
            entropy_bonus=False,
            critic_coeff=0.5,
            loss_critic_type="l2",
            normalize_advantage=True,
            log_explained_variance=False,  # nothing reads it
            functional=False,  # there are no target networks: performance/networks, "functional"
        )

    def make_advantage(self):
        # One call for all values, with room for two more in a row, at its end and at a time limit:
        # reference/recurrent_critics.
        critic = self.network.get_value_operator()
        options = {"shifted": True, "shifted_budget": 2}
        return GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic, **options)

    def iterate(self):
        """Collect a batch and learn from it, and keep the seconds of each part."""
        begin = time.perf_counter()
        batch = next(self.batches)
        collected = time.perf_counter()
        self.note(batch)
        # Errors of large values would drown the policy in the shared trunk, see
        # tutorials/debugging/value_loss_dwarfs_the_policy.
        batch["next", "reward"] *= SCALE
        with torch.no_grad(), set_recurrent_mode(True):
            self.advantage(batch)
        batch = batch.select(*READ)
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
        for _ in range(EPOCHS):
            # Rows, not frames: a row is a sequence. An index, no buffer: checklist, "index".
            for rows in torch.randperm(len(batch)).split(ROWS):
                losses = self.loss(batch[rows])  # sets the recurrent mode by itself
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
        self.collector.env.set_seed(self.seed + self.progress["frames"])
        self.collector.reset()


def make_head(outputs, gain):
    head = nn.Linear(CELLS, outputs)
    nn.init.orthogonal_(head.weight, gain)
    nn.init.zeros_(head.bias)
    return head


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
