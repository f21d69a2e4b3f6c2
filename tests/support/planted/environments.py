"""Symptoms of environments and of evaluation."""

import copy

import gymnasium
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from tensordict import TensorDict
from torchrl.data import Categorical, Composite, Unbounded
from torchrl.envs import (
    EnvBase,
    GymEnv,
    GymWrapper,
    RewardScaling,
    RewardSum,
    SerialEnv,
    Transform,
    TransformedEnv,
    VecNormV2,
)

from tests.support.healthy_pipelines import cartpole
from tests.support.planted import in_batch, only

PIPELINES = ("ppo", "batched_ppo", "dqn", "offline", "recurrent_ppo")


def _base(env):
    while isinstance(env, TransformedEnv):
        env = env.base_env
    return env


def always_the_first_action(pipeline):
    if type(pipeline["env"].full_action_spec_unbatched["action"]).__name__ == "OneHot":
        batch = pipeline["batch"]
        batch["action"] = batch["action"].long().argmax(-1)
        yield in_batch(pipeline, batch)


def last_next_observations_are_nan(pipeline):
    batch = pipeline["batch"].clone()
    ends = batch["next", "done"].squeeze(-1)
    if ends.any() and not ends[..., -1].all() and not batch["next", "observation"].isnan().any():
        batch["next", "observation"][ends] = torch.nan
        yield in_batch(pipeline, batch)


def only_the_first_episode_is_long(pipeline):
    batch = pipeline["batch"].clone()
    batch["next", "done"].fill_(True)
    order = torch.randperm(batch.shape[-1])
    yield in_batch(pipeline, batch[..., order])


class _InPlace(Transform):
    """What an environment does that returns its own tensor."""

    def __init__(self):
        super().__init__()
        self.mine = None

    def _reset(self, tensordict, tensordict_reset):
        self.mine = tensordict_reset["observation"].clone()
        return tensordict_reset.set("observation", self.mine)

    def _step(self, tensordict, next_tensordict):
        self.mine.copy_(next_tensordict["observation"])
        return next_tensordict.set("observation", self.mine)


def a_step_changes_the_last_one(pipeline):
    if "recurrent_state_h" not in pipeline["batch"]:
        yield only(pipeline, "policy") | {"env": TransformedEnv(_base(pipeline["env"]), _InPlace())}


class _Together(EnvBase):
    """Numbers that all begin anew when one of them does."""

    def __init__(self):
        super().__init__(batch_size=[3])
        self.observation_spec = Composite(observation=Unbounded((3, 1)), shape=[3])
        self.action_spec = Categorical(2, shape=[3])
        self.reward_spec = Unbounded((3, 1))

    def _data(self):
        return {"observation": self.now.clone(), "done": self.now > 9}

    def _reset(self, tensordict=None, **options):
        self.now = torch.zeros(3, 1)
        return TensorDict(self._data(), [3])

    def _step(self, tensordict):
        self.now = self.now + 1 + tensordict["action"].unsqueeze(-1)
        return TensorDict({**self._data(), "reward": torch.ones(3, 1)}, [3])

    def _set_seed(self, seed):
        """Nothing in here is random."""


def a_reset_of_one_resets_others(pipeline):
    if "collector" in pipeline:
        yield {"env": _Together()}
        yield {"env": TransformedEnv(_Together(), RewardSum())}


def specs_and_data_disagree(pipeline):
    if pipeline["env"].batch_size:
        return
    base = _base(pipeline["env"])
    spec = base.observation_spec.clone()
    spec["observation"] = spec["observation"].to(torch.float64)
    base.observation_spec = spec
    yield only(pipeline, "env", "policy")


def evaluation_rollout_ends_too_early(pipeline):
    base = _base(pipeline["env"])
    if not isinstance(base, SerialEnv):
        return
    base.close()
    base = SerialEnv(3, cartpole)
    for steps in (200, 4):
        torch.manual_seed(0)
        with torch.no_grad():
            yield {"batch": base.rollout(steps)}


class _LogReward(Transform):
    """A transform of the reader's own."""

    def __init__(self):
        super().__init__(in_keys=["reward"], out_keys=["reward"])

    def _apply_transform(self, reward):
        return reward.abs().log1p()

    def _reset(self, tensordict, tensordict_reset):
        return tensordict_reset


def return_is_not_the_score(pipeline):
    if "collector" not in pipeline:
        return
    base = _base(pipeline["env"])
    for change in (RewardScaling(0.0, 0.1), _LogReward()):
        env = TransformedEnv(TransformedEnv(base, change), RewardSum())
        yield {"env": env, "policy": pipeline["policy"]}
        yield {"env": env}
    paid = gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), abs)
    several = SerialEnv(2, lambda: TransformedEnv(cartpole(), RewardScaling(0.0, 0.1)))
    started = SerialEnv(2, lambda: TransformedEnv(cartpole(), RewardScaling(0.0, 0.1)))
    started.reset()
    for inner in (GymWrapper(paid), several, started):
        yield {"env": TransformedEnv(inner, RewardSum())}


class _Skips(CartPoleEnv):
    def __init__(self, frameskip):
        super().__init__()


def gym_env_skips_no_frames(pipeline):
    if "collector" not in pipeline:
        return
    name = "Skips-v0"
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=_Skips, kwargs={"frameskip": 4})
    started = SerialEnv(2, lambda: GymEnv(name))
    started.reset()
    for env in (GymEnv(name), started):
        yield {"env": TransformedEnv(env, RewardSum())}


def workers_normalize_differently(pipeline):
    if isinstance(_base(pipeline["env"]), SerialEnv):

        def normalized():
            return TransformedEnv(cartpole(), VecNormV2(in_keys=["observation"]))

        env = SerialEnv(2, normalized)
        env.set_seed(0)
        yield {"env": env}
        env.rollout(20, break_when_any_done=False)
        yield {"env": env}


def good_in_training_poor_in_evaluation(pipeline):
    base = _base(pipeline["env"])
    if isinstance(base, SerialEnv) or "recurrent_state_h" in pipeline["batch"]:
        return

    def normalized(shift, steps):
        env = TransformedEnv(copy.deepcopy(base), VecNormV2(in_keys=["observation"], decay=0.9))
        env.rollout(steps, break_when_any_done=False)
        norm = env.transform
        norm._var += norm._loc * (2 * shift) + shift**2  # the mean of squares
        norm._loc += shift
        return env

    env = normalized(0.0, 100)
    yield {"env": env, "eval_env": normalized(5.0, 3)}
    yield {"env": env, "eval_env": normalized(5.0, 80)}
    yield {"env": env, "eval_env": copy.deepcopy(base)}
