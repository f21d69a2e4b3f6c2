"""
GymEnv skips no frames
======================

Episodes of an Atari game have several times as many steps as in other libraries, and the agent
learns more slowly than in papers.

:Subsystem: environments
:Effect: silent
:Cause: ``GymEnv`` makes the environment with ``frameskip=1`` unless you pass ``frame_skip``. This
   value replaces the registered one, such as 4 for ``ALE/Pong-v5``. It also replaces a
   ``frameskip=4`` that you pass.
:Fix: Write ``GymEnv(name, frame_skip=4)``.
:Source: :source:`torchrl.envs.GymEnv._build_env`
:Behind it: :doc:`/performance/environments`
:Threads: none found
:Also called: frame skip ignored, frameskip ignored, action repeat, Atari episodes too long, Atari
   trains slowly, ALE v5 frameskip
"""

# %%
# Break it
# --------
#
# The game repeats each action itself and is registered with a ``frameskip``, as Atari games are.
#
# .. fold:: The game

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from torchrl.envs import GymEnv, GymWrapper

N_FRAMES = 40


class Game(gymnasium.Env):
    observation_space = Box(0, N_FRAMES, (1,))
    action_space = Discrete(2)

    def __init__(self, frameskip):
        self.frameskip = frameskip

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.frame = 0
        return self.observation(), {}

    def step(self, action):
        self.frame += self.frameskip
        return self.observation(), 1.0, self.frame >= N_FRAMES, False, {}

    def observation(self):
        return np.array([self.frame], np.float32)


gymnasium.register("Game-v0", entry_point=Game, kwargs={"frameskip": 4})

# %%

env = GymEnv("Game-v0")
broken = {"env": env}

for way, other in {
    "GymEnv": env,
    "with frameskip=4": GymEnv("Game-v0", frameskip=4),
    "gymnasium.make": GymWrapper(gymnasium.make("Game-v0")),
}.items():
    print(f"{way:16} {len(other.rollout(100))} steps")

# %%
# Check it
# --------
#
# Compare the ``frameskip`` in use with the registered one.


def check(env):
    used, registered = env.spec, gymnasium.spec(env.spec.id)
    return {
        "used": used.kwargs["frameskip"],
        "registered": registered.kwargs["frameskip"],
    }


unhealthy = check(env)
print(unhealthy)
assert unhealthy["used"] == 1 < unhealthy["registered"], (
    "no longer reproduces: GymEnv keeps the number that is registered"
)

# %%
# Fix it
# ------

env = GymEnv("Game-v0", frame_skip=4)
fixed = {"env": env}
healthy = check(env)
print(healthy)
print(len(env.rollout(100)), "steps")
assert healthy["used"] == healthy["registered"], (
    "the fix does not work: frames are not skipped"
)
assert len(env.rollout(100)) == N_FRAMES // 4

# %%
# Keep ``frameskip=1`` if you want every frame, or if a ``FrameSkipTransform`` repeats the actions.
