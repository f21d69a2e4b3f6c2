"""
The loss is NaN as soon as an episode ends
==========================================

A simulator steps many environments at once and resets each one when its episode ends. An
off-policy loss (DQN, SAC, TD3) is finite until the first episode is over, and NaN from then on.

:Subsystem: environments
:Effect: silent
:Cause: When an episode ends, the simulator returns the first observation of the next episode, and
   the last observation is lost. With Isaac Lab's environments, TorchRL writes NaN in its place.
:Fix: Pass ``missing_obs_value=0.0`` to the wrapper. Zeros are correct where an episode terminates.
   Where a time limit cuts the episode, the target needs the lost observation.
   ``GAE(auto_reset_env=True)`` uses the observation before it.
:Source: :source:`torchrl.envs.transforms.VecGymEnvTransform._step`
:Behind it: :doc:`/performance/environments`
:Threads: :thread:`3786`, :thread:`2851`
:Also called: auto-reset, autoreset NaN, SAME_STEP, final_obs, final_observation, terminal
   observation is NaN, missing_obs_value, native_autoreset, Isaac Lab, GPU simulator, NaN loss
"""

# %%
# Break it
# --------
#
# Isaac Lab needs a GPU, so four carts stand in for it. Action 1 moves a cart to the right, and its
# episode ends at position 3. ``GymWrapper`` does not read last observations from Isaac Lab, and
# ``as_isaac_lab`` imitates this.
#
# .. fold:: Imports and the carts

import gymnasium
import numpy as np
import torch
import torchrl
from gymnasium.vector import AutoresetMode, VectorEnv
from torchrl.envs import GymWrapper, TransformedEnv
from torchrl.envs.transforms import VecGymEnvTransform
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss

torchrl.logger.setLevel("ERROR")
N_ENVS = 4


class Carts(VectorEnv):
    autoreset_mode = AutoresetMode.SAME_STEP
    num_envs = N_ENVS
    single_observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    single_action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-10, 10, (N_ENVS, 1), np.float32)
    action_space = gymnasium.spaces.MultiDiscrete([2] * N_ENVS)

    def __init__(self, final):
        self.final = final  # whether info has the last observations

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros((N_ENVS, 1), np.float32)
        return self.place.copy(), {}

    def step(self, action):
        self.place += np.asarray(action).reshape(N_ENVS, 1)
        ended = self.place[:, 0] >= 3
        info = {"final_obs": self.place.copy()} if self.final and ended.any() else {}
        self.place[ended] = 0
        reward, truncated = np.ones(N_ENVS, np.float32), np.zeros_like(ended)
        return self.place.copy(), reward, ended, truncated, info


# %%


def as_isaac_lab(**options):
    env = GymWrapper(Carts(final=False)).base_env
    env.info_dict_reader.clear()
    spec = env.observation_spec.clone()
    del spec["final"]
    env.observation_spec = spec
    return TransformedEnv(env, VecGymEnvTransform(**options))


def collect(env):
    torch.manual_seed(0)
    batch = env.rollout(20, break_when_any_done=False)
    network = MLP(in_features=1, out_features=2, num_cells=[16])
    spec = env.action_spec_unbatched
    actor = QValueActor(network, in_keys=["observation"], spec=spec)
    return {"batch": batch, "loss_module": DQNLoss(actor, delay_value=False)}


def loss_of(loss_module, batch):
    return loss_module(batch.reshape(-1))["loss"]


broken = collect(as_isaac_lab())
print("loss:", loss_of(**broken).item())
assert loss_of(**broken).isnan(), "no longer reproduces: the loss is finite"

# %%
# Check it
# --------


def check(batch):
    missing = batch["next", "observation"].isnan().any(-1)
    ends = batch["next", "done"].squeeze(-1)
    return {"NaN at the end": int((missing & ends).sum()), "ends": int(ends.sum())}


unhealthy = check(broken["batch"])
print(unhealthy)
assert unhealthy["NaN at the end"] == unhealthy["ends"] > 0, (
    "no longer reproduces: the last observations are there"
)

# %%
# The target of a row that terminates is only its reward. But the loss computes it as the reward
# plus zero times the value of the next observation, and zero times NaN is NaN. PPO stays finite:
# ``GAE`` reads the current observation in place of NaN.
#
# Fix it
# ------

fixed = collect(as_isaac_lab(missing_obs_value=0.0))
healthy = check(fixed["batch"])
print(healthy)
assert healthy["NaN at the end"] == 0 < healthy["ends"], "the fix does not work"
assert loss_of(**fixed).isfinite(), "the fix does not work: the loss is NaN"

# %%
# A vector environment of your own
# --------------------------------
#
# For other vector environments, TorchRL by default fills in zeros where a last observation is
# missing, so nothing shows that it is lost. At a time limit, targets use the value of these zeros.
# Return the last observations as ``info["final_obs"]``:

for final in (False, True):
    batch = collect(GymWrapper(Carts(final)))["batch"]
    last = batch["next", "observation"][batch["next", "done"]].unique().tolist()
    print(f"final_obs {final}: the last observation is {last}")
    assert last == [3.0 if final else 0.0], "no longer reproduces: other observations"
