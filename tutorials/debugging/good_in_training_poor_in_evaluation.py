"""
Good in training, poor in evaluation
====================================

The return of the collected episodes rises. In an evaluation environment that also normalizes
observations, the same policy may act as if it had learned nothing.

:Subsystem: evaluation
:Effect: silent
:Cause: The two environments have separate ``VecNormV2`` transforms, with separate statistics. The
   transform of the evaluation environment has seen only a few steps, so it normalizes observations
   differently.
:Fix: Give the evaluation environment a frozen copy of the training environment's transform:
   ``vecnorm.frozen_copy()``.
:Source: :source:`torchrl.envs.transforms.VecNormV2._maybe_stateful_init`,
   :source:`torchrl.envs.transforms.VecNormV2.frozen_copy`
:Behind it: this page
:Threads: :thread:`715`
:Also called: VecNorm statistics, normalization differs between train and test,
   evaluation reward stays low, observation normalization, running mean
"""

# %%
# Break it
# --------
#
# Both environments normalize, and the evaluation environment has already run once.

import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.envs import GymEnv, TransformedEnv, VecNormV2


def make_env(vecnorm, seed):
    base = GymEnv("CartPole-v1")
    base.set_seed(seed)
    return TransformedEnv(base, vecnorm)


def train_and_evaluate(own_statistics):
    torch.manual_seed(0)
    env = make_env(VecNormV2(in_keys=["observation"]), seed=0)
    collector = Collector(env, None, frames_per_batch=1000, total_frames=-1)
    next(iter(collector))
    own = VecNormV2(in_keys=["observation"])
    vecnorm = own if own_statistics else env.transform.frozen_copy()
    eval_env = make_env(vecnorm, seed=1)
    eval_env.rollout(20)
    return {"env": env, "eval_env": eval_env}


broken = train_and_evaluate(own_statistics=True)

# %%
# Check it
# --------
#
# Normalize the same raw observation with both transforms. ``to_observation_norm()`` returns the
# current normalization, with statistics that no longer change.

raw = TensorDict({"observation": torch.tensor([0.1, 0.5, 0.05, -0.5])})


def check(env, eval_env, raw):
    norms = [each.transform.to_observation_norm() for each in (env, eval_env)]
    train, test = (norm(raw.clone())["observation"] for norm in norms)
    return {"largest difference": round((train - test).abs().max().item(), 2)}


unhealthy = check(broken["env"], broken["eval_env"], raw)
print(unhealthy)
assert unhealthy["largest difference"] > 0.5, (
    "no longer reproduces: two VecNormV2 now agree on one observation"
)

# %%
# A policy trains on normalized observations, with a standard deviation of about one, so this
# difference is large. A copy that is not frozen starts with the right statistics, but drifts with
# each evaluation. Its largest difference before and after one evaluation:

drifting = {
    "env": broken["env"],
    "eval_env": make_env(broken["env"].transform.clone(), 1),
}
drifts = [check(**drifting, raw=raw)["largest difference"]]
drifting["eval_env"].rollout(200, break_when_any_done=False)
drifts.append(check(**drifting, raw=raw)["largest difference"])
print(drifts)
assert drifts[0] == 0 < drifts[1], "no longer reproduces: a copy does not drift"

# %%
# Fix it
# ------
#
# Take a new frozen copy before each evaluation, because the training statistics keep changing.

fixed = train_and_evaluate(own_statistics=False)
healthy = check(fixed["env"], fixed["eval_env"], raw)
print(healthy)
assert healthy["largest difference"] == 0, (
    "the fix does not work: the frozen copy normalizes in another way"
)
