"""PPO on CartPole in TorchRL and in Stable-Baselines3, each in a process of its own.

``python -m benchmarks.recipes.ppo_cartpole_contenders WAY SEED`` trains until the mean return of
the last episodes reaches the threshold, and prints one line of JSON: what each iteration came to.
"""

import collections
import json
import sys
import time

CLOCK = time.perf_counter()  # before any library is imported
EPISODES, THRESHOLD, FRAMES = 20, 475.0, 100_000
GAMMA, LMBDA, LR, CLIP, EPOCHS = 0.98, 0.8, 1e-3, 0.2, 20
PARTS = ("collect", "advantage", "update")


class Training:
    """What a training has come to, one point after each iteration."""

    def __init__(self):
        self.imports = time.perf_counter() - CLOCK
        self.begin, self.cpu = time.perf_counter(), time.process_time()
        self.points, self.parts = [], dict.fromkeys(PARTS, 0.0)
        self.returns = collections.deque(maxlen=EPISODES)

    def note(self, frames):
        """Keep a point; return whether the training is over."""
        spent = time.perf_counter() - self.begin, time.process_time() - self.cpu
        mean = sum(self.returns) / len(self.returns) if self.returns else None
        self.points.append((frames, *spent, mean))
        return self.solved or frames >= FRAMES

    @property
    def solved(self):
        return len(self.returns) == EPISODES and self.points[-1][-1] >= THRESHOLD

    def report(self):
        from benchmarks import measure

        memory = measure.resident_memory("VmHWM")
        found = {"points": self.points, "parts": self.parts, "solved": self.solved}
        return found | {"imports": self.imports, "memory": memory}


# -- TorchRL ---------------------------------------------------------------------


def recipe(seed, envs, steps):
    """The script of the page."""
    from benchmarks.recipes import ppo_cartpole as script

    training = Training()
    arguments = f"--seeds {seed} --frames {FRAMES} --envs {envs} --steps {steps}".split()
    run = script.Run(script.parse(arguments), seed)

    def note(run):
        training.returns.clear()
        training.returns.extend(run.progress["returns"])
        training.parts = {part: run.progress[part] for part in PARTS}
        assert training.note(run.progress["frames"]) == run.over

    run.train(note)
    return training


def plain(seed, envs, steps):
    """In the style of TorchRL's tutorial on PPO: defaults, a replay buffer, loops that read."""
    import torch
    from tensordict.nn import TensorDictModule
    from torch import nn
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
    from torchrl.envs import (
        Compose,
        DoubleToFloat,
        GymEnv,
        RewardSum,
        SerialEnv,
        StepCounter,
        TransformedEnv,
    )
    from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    from benchmarks.recipes.ppo_cartpole import make_network

    training = Training()
    torch.manual_seed(seed)
    rows = envs * steps
    base = SerialEnv(envs, lambda: GymEnv("CartPole-v1"))
    env = TransformedEnv(base, Compose(DoubleToFloat(), StepCounter(), RewardSum()))
    env.set_seed(seed)
    policy = ProbabilisticActor(
        TensorDictModule(make_network(2, 0.01), ["observation"], ["logits"]),
        ["logits"],
        spec=env.action_spec_unbatched,
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(make_network(1, 1.0), ["observation"])
    options = {"frames_per_batch": rows, "total_frames": FRAMES}
    collector = Collector(env, policy, auto_register_policy_transforms=False, **options)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(rows), sampler=SamplerWithoutReplacement(), batch_size=256
    )
    advantage = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic, average_gae=True)
    coefficients = {"entropy_bonus": False, "critic_coeff": 0.5, "loss_critic_type": "l2"}
    loss = ClipPPOLoss(policy, critic, clip_epsilon=CLIP, **coefficients)
    optimizer = torch.optim.Adam(loss.parameters(), LR, eps=1e-5)
    frames, clock = 0, time.perf_counter
    mark = clock()
    for batch in collector:
        training.parts["collect"] += clock() - mark
        frames += batch.numel()
        for step in batch.reshape(-1):
            if step["next", "done"].item():
                training.returns.append(step["next", "episode_reward"].item())
        left = 1 - frames / FRAMES
        loss.clip_epsilon.fill_(CLIP * left)
        optimizer.param_groups[0]["lr"] = LR * left
        for _ in range(EPOCHS):
            mark = clock()
            advantage(batch)
            training.parts["advantage"] += clock() - mark
            mark = clock()
            buffer.extend(batch.reshape(-1))
            for _ in range(rows // 256):
                values = loss(buffer.sample())
                (values["loss_objective"] + values["loss_critic"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
            training.parts["update"] += clock() - mark
        collector.update_policy_weights_()
        if training.note(frames):
            break
        mark = clock()
    collector.shutdown()
    return training


# -- Stable-Baselines3 -----------------------------------------------------------


def sb3(seed, envs, steps, tuned):
    """Its defaults, or what rl-baselines3-zoo publishes for CartPole-v1."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    assert torch.get_num_threads() == 1
    training, clock = Training(), time.perf_counter

    class Notes(BaseCallback):
        over, mark = False, None

        def _on_rollout_start(self):
            now = clock()
            if self.mark is not None:
                training.parts["update"] += now - self.mark
                self.over = training.note(self.num_timesteps)
            self.mark = now

        def _on_step(self):
            ended = (info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
            training.returns.extend(ended)
            return not self.over

        def _on_rollout_end(self):
            now = clock()
            training.parts["collect"] += now - self.mark
            self.mark = now

    options = {}
    if tuned:
        options = {"learning_rate": lambda left: LR * left, "clip_range": lambda left: CLIP * left}
        options |= {"n_steps": steps, "batch_size": 256, "n_epochs": EPOCHS}
        options |= {"gamma": GAMMA, "gae_lambda": LMBDA, "ent_coef": 0.0}
    env = make_vec_env("CartPole-v1", n_envs=envs, seed=seed)
    model = PPO("MlpPolicy", env, seed=seed, device="cpu", **options)
    estimate = model.rollout_buffer.compute_returns_and_advantage

    def timed(*arguments, **named):
        begin = clock()
        estimate(*arguments, **named)
        training.parts["advantage"] += clock() - begin

    model.rollout_buffer.compute_returns_and_advantage = timed
    model.learn(FRAMES, callback=Notes())
    training.parts["collect"] -= training.parts["advantage"]  # which SB3 calls in collect_rollouts
    return training


WAYS = {
    "torchrl-plain": lambda seed: plain(seed, 8, 32),
    "torchrl-zoo": lambda seed: recipe(seed, 8, 32),
    "torchrl-recipe": lambda seed: recipe(seed, 32, 8),
    "sb3-default": lambda seed: sb3(seed, 1, 2048, tuned=False),
    "sb3-zoo": lambda seed: sb3(seed, 8, 32, tuned=True),
    "sb3-wide": lambda seed: sb3(seed, 32, 8, tuned=True),
}


def main(way, seed):
    import torch

    torch.set_num_threads(1)
    print(json.dumps(WAYS[way](int(seed)).report()))


if __name__ == "__main__":
    main(*sys.argv[1:])
