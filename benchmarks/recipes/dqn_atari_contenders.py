"""DQN on an Atari game in TorchRL and in Stable-Baselines3, each in a process of its own.

``python -m benchmarks.recipes.dqn_atari_contenders WAY SEED ...`` trains with the options of the
recipe, which may follow, and prints one line of JSON: what the training came to, and the score of
each episode.
"""

import json
import sys
import time

CLOCK = time.perf_counter()  # before any library is imported
GYMNASIUM_NAME = "ALE/KungFuMaster-v5"  # of the game of the recipe
PARTS = ("collect", "store", "sample", "update")


class Training:
    """What a training has come to."""

    def __init__(self):
        self.imports = time.perf_counter() - CLOCK
        self.begin, self.cpu = time.perf_counter(), time.process_time()
        self.frames, self.episodes, self.parts, self.row_bytes = 0, [], {}, None

    def report(self):
        from benchmarks import measure

        spent = {"seconds": time.perf_counter() - self.begin}
        spent |= {"cpu": time.process_time() - self.cpu, "imports": self.imports}
        memory = measure.resident_memory("VmHWM")
        found = {"frames": self.frames, "episodes": self.episodes, "parts": self.parts}
        return spent | found | {"memory": memory, "row_bytes": self.row_bytes}


def make_run(seed, arguments):
    """The script of the page."""
    from benchmarks.recipes import dqn_atari as script

    return script.Run(script.parse(arguments), seed)


def recipe(seed, arguments):
    training = Training()
    run = make_run(seed, arguments)
    known = 0

    def note(run):
        nonlocal known
        new = run.progress["episodes"] - known
        known, training.frames = known + new, run.progress["frames"]
        ended = run.progress["returns"][-new:] if new else []
        training.episodes += [(training.frames, score) for score in ended]

    run.train(note)
    training.parts = {part: run.progress[part] for part in PARTS}
    training.row_bytes = run.buffer.storage.get(0).bytes()
    return training


def random_play(seed, arguments):
    """The games of the script, with actions at random, for half of the frames."""
    training = Training()
    run = make_run(seed, arguments)
    run.collector.shutdown()
    env = run.env
    state = env.reset()
    while training.frames < run.options.frames // 2:
        step, state = env.step_and_maybe_reset(env.rand_action(state))
        training.frames += run.options.envs
        ended = step["next", "episode_reward"][step["next", "done"]].tolist()
        training.episodes += [(training.frames, score) for score in ended]
    return training


def sb3(seed, arguments):
    """The network and the numbers of the recipe, with SB3's own games and buffer."""
    import ale_py
    import gymnasium
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import VecFrameStack

    from benchmarks.recipes import dqn_atari as script

    assert torch.get_num_threads() == 1
    gymnasium.register_envs(ale_py)
    training, clock, chosen = Training(), time.perf_counter, script.parse(arguments)

    class Features(BaseFeaturesExtractor):
        def __init__(self, space):
            super().__init__(space, script.CELLS)
            self.layers = torch.nn.Sequential(*list(script.Network(chosen.size, 1))[:-1])

        def forward(self, pixels):  # which SB3 has divided by 255
            return self.layers(pixels)

    class Notes(BaseCallback):
        def _on_step(self):
            training.frames = self.num_timesteps
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            training.episodes += [(training.frames, float(score)) for score in ended]
            return True

    wrappers = {"screen_size": chosen.size, "terminal_on_life_loss": False}
    options = {"frameskip": 1, "repeat_action_probability": 0.0}  # as in the games of the recipe
    env = make_atari_env(
        GYMNASIUM_NAME, chosen.envs, seed, wrapper_kwargs=wrappers, env_kwargs=options
    )
    model = DQN(
        "CnnPolicy",
        VecFrameStack(env, script.STACKED),
        seed=seed,
        device="cpu",
        learning_rate=script.LR,
        buffer_size=chosen.rows,
        learning_starts=int(script.WARM_UP * chosen.frames),
        batch_size=script.BATCH,
        gamma=script.GAMMA,
        n_steps=script.N_STEPS,
        train_freq=chosen.steps,
        gradient_steps=chosen.steps * chosen.envs // chosen.every,
        target_update_interval=chosen.target_every * chosen.every,
        exploration_fraction=script.EXPLORE,
        exploration_final_eps=script.EPS_END,
        policy_kwargs={
            "features_extractor_class": Features,
            "net_arch": [],
            "optimizer_kwargs": {"eps": 1e-4},
        },
    )
    parts = dict.fromkeys(("store", "sample", "train"), 0.0)

    def timed(owner, name, part):
        call = getattr(owner, name)

        def wrapper(*arguments, **named):
            begin = clock()
            found = call(*arguments, **named)
            parts[part] += clock() - begin
            return found

        setattr(owner, name, wrapper)

    timed(model.replay_buffer, "sample", "sample")
    timed(model.replay_buffer, "add", "store")
    timed(model, "train", "train")
    begin = clock()
    model.learn(chosen.frames, callback=Notes())
    whole, train = clock() - begin, parts.pop("train")
    update, collect = train - parts["sample"], whole - train - parts["store"]
    training.parts = parts | {"update": update, "collect": collect}
    arrays = [value for value in vars(model.replay_buffer).values() if hasattr(value, "nbytes")]
    training.row_bytes = sum(array.nbytes for array in arrays) / chosen.rows
    return training


WAYS = {
    "torchrl-recipe": recipe,
    "torchrl-prioritized": lambda seed, arguments: recipe(seed, ["--prioritized", *arguments]),
    "sb3": sb3,
    "random": random_play,
}


def main(way, seed, *arguments):
    import torch

    torch.set_num_threads(1)
    print(json.dumps(WAYS[way](int(seed), arguments).report()))


if __name__ == "__main__":
    main(*sys.argv[1:])
