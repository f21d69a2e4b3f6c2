"""PPO on a batch of environments that stays on one device, until a mean return is reached.

    python ppo_resident.py                                  # inverted pendulums, on the CPU
    python ppo_resident.py --device cuda --envs 4096        # the same, on a GPU
    python ppo_resident.py --seeds 0 1 2 --folder runs      # saves; the same command resumes
    python ppo_resident.py --isaac TASK --device cuda:0 --envs 4096 --threshold RETURN

The simulator steps the whole batch, and begins new episodes in the same call: no step copies
anything to the host, and none asks for a reset. A comment with a path such as
performance/checklist names the page of the TorchRL Field Manual that explains the line.
"""

import argparse
import functools
import random
import time
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
from torch import nn
from torchrl.checkpoint import Checkpoint, CheckpointRotation, GlobalRNGState
from torchrl.collectors import Collector
from torchrl.data import Bounded, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, RewardSum, TransformedEnv
from torchrl.modules import (
    MLP,
    IndependentNormal,
    ProbabilisticActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

GAMMA, LMBDA, LR, CLIP, CELLS = 0.99, 0.95, 1e-3, 0.2, [64, 64]
EPOCHS, MINIBATCHES = 4, 4
EPISODES = 20  # whose mean return is compared with the threshold
COLUMNS = ("seed", "frames", "seconds", "frames/s", "episodes", "return")

# The inverted pendulum of gymnasium, without what nobody reaches: limits of the joints.
HORIZON, SKIP, TILT, NOISE = 200, 2, 0.2, 0.01  # steps, steps of physics in one, radians, at starts
MODEL = """
<mujoco>
  <option timestep="0.02" integrator="Euler"/>
  <default>
    <joint damping="1"/>
    <geom type="capsule" contype="0" conaffinity="0"/>
  </default>
  <worldbody>
    <body>
      <joint name="slider" type="slide" axis="1 0 0"/>
      <geom quat="0.707 0 0.707 0" size="0.1 0.1"/>
      <body>
        <joint name="hinge" type="hinge" axis="0 1 0"/>
        <geom fromto="0 0 0 0.001 0 0.6" size="0.049 0.3"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor joint="slider" gear="100" ctrllimited="true" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""


def parse(arguments=None):
    describe = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=describe)
    add = parser.add_argument
    add("--isaac", metavar="TASK", help="of Isaac Lab, in place of the pendulums; one seed")
    add("--seeds", type=int, nargs="+", default=[0], help="trained one after another")
    add("--threshold", type=float, default=190.0, help="the return that ends a seed")
    add("--frames", type=int, default=2_000_000, help="the most that a seed may take")
    add("--envs", type=int, default=256, help="environments in the batch")
    add("--steps", type=int, default=16, help="of each environment, from one update to the next")
    add("--device", default="cpu", help="of simulator, networks and batch: cpu or cuda")
    add("--folder", type=Path, help="save here, and resume from what is saved here")
    add("--save-every", type=int, default=20, help="iterations from one save to the next")
    return parser.parse_args(arguments)


@functools.cache
def compiled(count, device):
    """The functions that begin episodes and that step *count* pendulums, compiled by jax."""
    try:
        import jax
        import mujoco
        from mujoco import mjx
    except ImportError as missing:
        raise SystemExit(f"{missing}: pip install mujoco-mjx, for a GPU jax[cuda13] too") from None
    jax.config.update("jax_platforms", torch.device(device).type)
    numpy = jax.numpy
    model = mjx.put_model(mujoco.MjModel.from_xml_string(MODEL))
    rest = mjx.make_data(model)

    def simulate(position, velocity, push):
        data = rest.replace(qpos=position, qvel=velocity, ctrl=push)
        data = jax.lax.fori_loop(0, SKIP, lambda _, data: mjx.step(model, data), data)
        return numpy.concatenate([data.qpos, data.qvel])

    def begin(seen, steps, key, where):
        """New episodes where *where* is true; the others go on."""
        key, drawn = jax.random.split(key)
        start = jax.random.uniform(drawn, seen.shape, minval=-NOISE, maxval=NOISE)
        return numpy.where(where, start, seen), numpy.where(where, 0, steps), key

    def advance(seen, steps, key, push):
        seen, steps = jax.vmap(simulate)(seen[:, :2], seen[:, 2:], push), steps + 1
        terminated = ~(numpy.abs(seen[:, 1:2]) <= TILT)  # not a number counts as fallen
        truncated = ~terminated & (steps >= HORIZON)
        done = terminated | truncated
        flags = {"done": done, "terminated": terminated, "truncated": truncated}
        return begin(seen, steps, key, done), {"reward": 1.0 - terminated, **flags}

    fresh = numpy.zeros((count, 4)), numpy.zeros((count, 1), int), jax.random.key(0)
    whole, push = numpy.ones((count, 1), bool), numpy.zeros((count, 1))
    starts = jax.jit(begin).lower(*fresh, whole).compile()
    return jax, fresh, starts, jax.jit(advance).lower(*fresh, push).compile()


class Pendulums(EnvBase):
    """Inverted pendulums in MJX. jax has their state, and torch sees the same memory."""

    def __init__(self, count, device):
        super().__init__(device=device, batch_size=[count])
        # A step returns the first observation of the next episode where one has ended.
        # performance/recipes/ppo_resident, "native autoreset".
        self._torchrl_native_autoreset = True
        self.jax, self.state, self.begin, self.advance = compiled(count, str(device))
        flag = Categorical(2, (count, 1), dtype=torch.bool)
        flags = {name: flag.clone() for name in ("done", "terminated", "truncated")}
        self.observation_spec = Composite(observation=Unbounded((count, 4)), shape=[count])
        self.action_spec = Bounded(-1, 1, (count, 1))
        self.reward_spec = Unbounded((count, 1))
        self.full_done_spec = Composite(flags, shape=[count])
        self.to(device)

    def _set_seed(self, seed):
        self.state = (*self.state[:2], self.jax.random.key(seed))

    def _reset(self, tensordict=None):
        everywhere = torch.ones(*self.batch_size, 1, dtype=torch.bool, device=self.device)
        where = everywhere if tensordict is None else tensordict.get("_reset", everywhere)
        self.state = self.begin(*self.state, self.jax.dlpack.from_dlpack(where))
        flags = {name: torch.zeros_like(everywhere) for name in self.done_keys}
        return self.frame(flags)

    def _step(self, tensordict):
        push = self.jax.dlpack.from_dlpack(tensordict["action"].detach())
        self.state, found = self.advance(*self.state, push)
        return self.frame({name: torch.from_dlpack(array) for name, array in found.items()})

    def frame(self, found):
        found["observation"] = torch.from_dlpack(self.state[0])
        return TensorDict(found, batch_size=self.batch_size, device=self.device)


def make_isaac(options, seed):
    """A task of Isaac Lab. Nobody has run this function here: it needs Isaac Lab and its GPU."""
    from isaaclab.app import AppLauncher

    AppLauncher(headless=True)  # before any other module of Isaac Lab is imported
    import gymnasium
    import isaaclab_tasks  # noqa: F401  # gymnasium knows the tasks from here on
    from isaaclab_tasks.utils import parse_env_cfg
    from torchrl.envs.libs.isaac_lab import IsaacLabWrapper

    config = parse_env_cfg(options.isaac, device=options.device, num_envs=options.envs)
    config.seed = seed
    env = gymnasium.make(options.isaac, cfg=config)
    return IsaacLabWrapper(env, device=torch.device(options.device), native_autoreset=True)


def make_env(options, seed):
    base = make_isaac(options, seed) if options.isaac else Pendulums(options.envs, options.device)
    # The one transform that something reads: performance/checklist, "lean-env".
    env = TransformedEnv(base, RewardSum(), auto_unwrap=True)
    env.set_seed(seed)
    return env


class Run:
    """One seed: what it trains with, and what it has done so far."""

    def __init__(self, options, seed):
        self.options, self.seed = options, seed
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.env = make_env(options, seed)
        # Isaac Lab calls the observations of the policy so.
        keys = set(self.env.observation_spec.keys())
        self.seen = "policy" if "policy" in keys else "observation"
        self.read = (self.seen, "action", "action_log_prob", "advantage", "value_target")
        self.actor, self.critic = self.make_actor(), self.make_critic()
        self.collector = self.make_collector()
        self.loss = self.make_loss()
        self.advantage = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=self.critic)
        self.parameters = list(self.loss.parameters())
        self.optimizer = self.make_optimizer()
        self.progress = {"frames": 0, "iterations": 0, "episodes": 0, "returns": []}
        self.progress |= {"seconds": 0.0, "collect": 0.0, "advantage": 0.0, "update": 0.0}

    def make_network(self, outputs, gain):
        inputs = self.env.observation_spec[self.seen].shape[-1]
        net = MLP(inputs, outputs, num_cells=CELLS, activation_class=nn.Tanh)
        layers = [layer for layer in net if isinstance(layer, nn.Linear)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, gain if layer is layers[-1] else 2**0.5)
            nn.init.zeros_(layer.bias)
        return net

    def make_actor(self):
        actions = self.env.action_spec_unbatched.shape[-1]
        net = nn.Sequential(
            self.make_network(actions, 0.01), AddStateIndependentNormalScale(actions)
        )
        return ProbabilisticActor(
            TensorDictModule(net, [self.seen], ["loc", "scale"]),
            ["loc", "scale"],
            distribution_class=IndependentNormal,
            return_log_prob=True,
        ).to(self.options.device)

    def make_critic(self):
        return ValueOperator(self.make_network(1, 1.0), [self.seen]).to(self.options.device)

    def make_collector(self):
        return Collector(
            self.env,
            self.actor,
            frames_per_batch=self.options.steps * self.options.envs,
            total_frames=-1,
            device=self.options.device,  # of all: performance/device_placement
            no_cuda_sync=True,  # nothing crosses to the host, so there is nothing to wait for
            auto_register_policy_transforms=False,  # the policy has no memory
            track_traj_ids=False,  # nothing reads the ids: performance/checklist, "no-ids"
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
        with torch.no_grad():
            # Where an episode has ended, the next observation is NaN. GAE takes the observation
            # before it: after a time limit that is an estimate, after a fall nothing reads it.
            self.advantage(batch)
        estimated = time.perf_counter()
        self.learn(batch.select(*self.read).reshape(-1))
        self.note(batch)  # reads: on a GPU, this waits for all of the work above
        end = time.perf_counter()
        self.progress["collect"] += collected - begin
        self.progress["advantage"] += estimated - collected
        self.progress["update"] += end - estimated
        self.progress["seconds"] += end - begin

    def note(self, batch):
        # With a mask, not frame by frame: performance/checklist, "masked-log". The next sum is NaN
        # where an episode has ended, as all that the environment observes; the sum before is not.
        returns = batch["episode_reward"] + batch["next", "reward"]
        ended = returns[batch["next", "done"]].tolist()
        progress = self.progress
        progress["returns"] = (progress["returns"] + ended)[-EPISODES:]
        progress["episodes"] += len(ended)
        progress["frames"] += batch.numel()
        progress["iterations"] += 1

    def learn(self, batch):
        rows = len(batch) // MINIBATCHES
        for _ in range(EPOCHS):
            # On the device of the batch, so the order of the rows need not cross either.
            order = torch.randperm(len(batch), device=batch.device)
            for chosen in order.split(rows):
                losses = self.loss(batch[chosen])
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
        self.env.set_seed(self.seed + self.progress["frames"])
        self.collector.reset()


def row(run):
    """The line of the table that says where *run* is."""
    done = run.progress
    speed = done["frames"] / done["seconds"]
    numbers = f"{done['frames']:>9,} {done['seconds']:>8.1f} {speed:>9,.0f} {done['episodes']:>9,}"
    return f"{run.seed:>4} {numbers} {run.mean_return:>7.1f}"


def main(arguments=None):
    options = parse(arguments)
    torch.set_num_threads(1)  # networks this small lose time with more
    print("{:>4} {:>9} {:>8} {:>9} {:>9} {:>7}".format(*COLUMNS))
    for seed in options.seeds:
        run = Run(options, seed)
        run.train(lambda run: print(row(run), end="\r", flush=True))
        parts = ("collect", "advantage", "update")
        share = ", ".join(f"{part} {run.progress[part]:.1f} s" for part in parts)
        print(f"{row(run)}  {'solved' if run.solved else 'not solved'}: {share}", flush=True)


if __name__ == "__main__":
    main()
