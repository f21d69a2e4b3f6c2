"""
N-step returns and truncations
==============================

Some targets need the real next observation. Store it for n-step returns, and wherever time limits
are frequent and the value changes fast. Without it, these targets are silently wrong.

.. redirect-from:: tutorials/memory/memory_efficient_rl.html#when-not-to
"""

# %%
# .. fold:: Imports, and a function that collects the same trajectories on each call

import matplotlib.pyplot as plt
import torch
import torchrl
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import (
    Compose,
    MultiStepTransform,
    NextObservationDelta,
    NextStateReconstructor,
)
from torchrl.modules import MLP, ValueOperator
from torchrl.objectives.value import GAE

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEED, GAMMA, LAMBDA = 0, 0.99, 0.95
torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage
N_FRAMES, TIME_LIMIT_STEPS = 200, 12
TRAJ_KEY, NEXT_OBS = ("collector", "traj_ids"), ("next", "observation")
N_STEPS = 3


def collect(*transforms, time_limit=TIME_LIMIT_STEPS, **options):
    counter = StepCounter(max_steps=time_limit)
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(counter, *transforms))
    env.set_seed(SEED)
    options |= {"frames_per_batch": N_FRAMES, "total_frames": N_FRAMES}
    collector = Collector(env, storing_device=DEVICE, **options)
    torch.manual_seed(SEED)
    try:
        return next(iter(collector))
    finally:
        collector.shutdown()


# %%
# For n-step returns, copy ``make_buffer``, and store both observations of a step: no
# ``compact_obs`` on the collector, and no ``NextObservationDelta`` on the environment.


def make_buffer(data, *transforms):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(N_FRAMES, device=DEVICE),
        sampler=SliceSampler(slice_len=4, traj_key=TRAJ_KEY),
        transform=Compose(
            MultiStepTransform(N_STEPS, GAMMA, done_keys=["done", "truncated"]),
            *transforms,
        ),
        batch_size=64,
    )
    buffer.extend(data.clone())
    return buffer


full = collect()
buffer = make_buffer(full)
sample = buffer.sample()

# %%
# .. list-table:: Do I need the real next observation?
#    :header-rows: 1
#
#    * - You have
#      - Without it
#      - Do this
#    * - n-step returns
#      - the next observation is silently wrong
#      - keep both observations
#    * - time limits, and a value that changes fast
#      - a biased advantage
#      - keep both, or use the :ref:`delta <memory-delta>`
#    * - time limits, and a value that changes little in one step
#      - a small bias
#      - measure it as below
#    * - ``GAE(shifted=True)``
#      - the same bias, without NaN
#      - keep both, and set ``shifted_budget``
#    * - one-step targets at terminated rows
#      - nothing lost: the value there counts as zero
#      - :doc:`fill the row <missing_next_observations>`
#
# N-step returns
# --------------
#
# :class:`~torchrl.envs.transforms.MultiStepTransform` replaces the next observation by the one
# ``N_STEPS`` later (:term:`n-step return`). Rows near the end of a trajectory get its final
# observation, which is stored only under ``"next"``. The transform works when you extend the
# buffer, and holds back the last ``N_STEPS`` rows until the next batch, even if the trajectory has
# ended. Its ``done_keys`` must not contain ``"terminated"``: :doc:`/how-to/n_step_with_priorities`.
#
# .. fold:: Look up the row of each next observation by hand

done = full["next", "done"].squeeze(-1)
terminated = full["next", "terminated"].squeeze(-1)
trajectory_end = done.clone()
trajectory_end[-1] = True  # the end of the batch

n_step = buffer[:]
rows = torch.arange(N_FRAMES, device=DEVICE)
end_of = torch.stack([rows[trajectory_end & (rows >= t)][0] for t in rows])
lookup = torch.minimum(rows + N_STEPS - 1, end_of)[: len(n_step)]

# %%
# A look-up by hand gives the same:

assert torch.equal(n_step[NEXT_OBS], full[NEXT_OBS][lookup])
assert torch.equal(n_step["next", "terminated"].squeeze(-1), terminated[lookup])
fallback = int(((rows + N_STEPS - 1)[: len(n_step)] > lookup).sum())
print(f"{len(n_step)} rows written, {fallback} with a final observation")

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``MultiStepTransform`` with ``compact_obs`` or with the delta. The transform acts when data is
#    written, but the next observation is reconstructed when data is read. With ``compact_obs``,
#    there is no next observation to shift. With the delta, the difference of a later step is added
#    to the observation of this one.

compact = collect(compact_obs=True)
rebuild = NextStateReconstructor(step_count_key="step_count")
restore = NextObservationDelta(in_keys=["observation"])
pipelines = {
    "both observations": (full,),
    "compact_obs": (compact, rebuild),
    "delta": (collect(NextObservationDelta()), restore),
}

# %%
# With both of these, the n-step rewards are right, and the next observations are not:
#
# .. fold:: Compare samples of each pipeline with the n-step rows from above

DELTA_TOLERANCE = 1e-3
print("pipeline           n-step rows  reward right  next obs right  largest error")
for name, (data, *transforms) in pipelines.items():
    buffer = make_buffer(data, *transforms)
    torch.manual_seed(SEED)
    sample = buffer.sample()
    wanted = n_step[sample["index"].flatten()]
    # Rows that look one step ahead only, or whose next observation is missing, do not count.
    counted = sample[NEXT_OBS].isfinite().all(-1)
    counted &= (sample["steps_to_next_obs"] > 1).squeeze(-1)
    reward = (sample["next", "reward"] == wanted["next", "reward"]).squeeze(-1)
    error = (sample[NEXT_OBS] - wanted[NEXT_OBS]).abs().amax(-1)
    masks = (counted, counted & reward, counted & (error < DELTA_TOLERANCE))
    n_rows, n_reward, n_obs = (int(mask.sum()) for mask in masks)
    assert n_rows == n_reward > 0
    assert n_obs == (n_rows if data is full else 0)
    largest = f"{error[counted].max():.1g}"
    print(f"{name:18} {n_rows:11} {n_reward:13} {n_obs:15} {largest:>14}")

# %%
# .. _memory-bias:
#
# Bias at truncations
# -------------------
#
# Where the next observation is NaN, GAE uses the value of the current one
# (:doc:`missing_next_observations`). At a :term:`terminated` row this is exact, because the value
# is masked. At a :term:`truncated` row, the error is ``GAMMA * (V(obs) - V(next obs))``. GAE
# carries it back along the trajectory, where it fades by the factor ``GAMMA * LAMBDA`` a step. To
# see it, fit three value functions to the same returns. The longer the length scale of a function,
# the farther an observation has to move until the value changes.
#
# .. fold:: A value function with a length scale

rebuilt = NextStateReconstructor(step_count_key="step_count")(compact.clone())
truncated = done & ~terminated


def fit_value(observations, returns, length_scale, n_features=256):
    """Ridge regression on random cosine features; a function of the observation."""
    torch.manual_seed(SEED)
    scale = length_scale * observations.std(0).unsqueeze(-1)
    waves = torch.randn(4, n_features).to(DEVICE) / scale
    phases = 2 * torch.pi * torch.rand(n_features).to(DEVICE)
    x = (observations @ waves + phases).cos().double()
    gram = x.T @ x + torch.eye(n_features, device=DEVICE)
    mean = returns.mean(0)
    weights = torch.linalg.solve(gram, x.T @ (returns - mean).double()).float()
    return lambda observation: (observation @ waves + phases).cos() @ weights + mean


def discounted_returns(rewards, dones):
    returns = rewards.clone()
    for t in reversed(range(len(rewards) - 1)):
        returns[t] += GAMMA * returns[t + 1] * ~dones[t]
    return returns


def gae(value_network, **options):
    return GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=value_network, **options)


# %%
# The mean change of each value in one step, and the mean bias over the truncated rows:
#
# .. fold:: Measure the bias

unlimited = collect(time_limit=None)
returns = discounted_returns(unlimited["next", "reward"], unlimited["next", "done"])
bias = {}
print("value   length scale  fit error  change a step  bias  std of the advantage")
for name, length_scale in {"flat": 100.0, "smooth": 10.0, "sharp": 0.5}.items():
    fitted = fit_value(unlimited["observation"], returns, length_scale)
    estimator = gae(TensorDictModule(fitted, ["observation"], ["state_value"]))
    exact = estimator(full.clone())["advantage"]
    error = (estimator(rebuilt.clone())["advantage"] - exact).abs().squeeze(-1)
    bias[name] = error
    jump = (fitted(full["observation"]) - fitted(full[NEXT_OBS])).abs().squeeze(-1)
    start, inside = GAMMA * jump[truncated], ~trajectory_end[:-1]
    close = {"rtol": 1e-2, "atol": 1e-4}
    torch.testing.assert_close(error[truncated], start, **close)
    faded = GAMMA * LAMBDA * error[1:][inside]
    torch.testing.assert_close(error[:-1][inside], faded, **close)
    exact_rows = torch.isin(full[TRAJ_KEY], full[TRAJ_KEY][terminated])
    assert (error[exact_rows] == 0).all()
    fit = (fitted(unlimited["observation"]) - returns).square().mean().sqrt()
    numbers = (fit, jump.mean(), error[truncated].mean(), exact.std())
    cells = "{:10.1f} {:14.1f} {:5.1f} {:21.1f}".format(*numbers)
    print(f"{name:8} {length_scale:11} {cells}")

# %%
# The faster the value changes, the larger the mean error of the advantage:

mean_bias = {name: error.mean() for name, error in bias.items()}
assert mean_bias["sharp"] > 2 * mean_bias["smooth"] > 4 * mean_bias["flat"]

# %%
# .. fold:: Draw the bias

fig, axes = plt.subplots(3, sharex=True, sharey=True, layout="constrained")
fig.set_figheight(5)
for ax, (name, error) in zip(axes, bias.items(), strict=True):
    ax.plot(error.cpu())
    ax.plot(rows[truncated].cpu(), error[truncated].cpu(), "v", color="black")
    ax.set_title(f"{name} value function")
axes[1].set_ylabel("absolute error of the advantage [reward]")
axes[2].set_xlabel("row of the rollout; triangles: truncated")
fig.set_label(
    "The error of the advantage jumps up at each truncated row and fades over the rows before it. "
    f"Its mean is {mean_bias['sharp']:.1f} with the sharp value function, "
    f"{mean_bias['smooth']:.1f} with the smooth and {mean_bias['flat']:.1f} with the flat one."
)

# %%
# The sharp value function fits its data better, and its bias is larger. If truncations are frequent
# and your value is sharp, keep the next observations or use the delta. These are only three fits on
# one short rollout, so compare both advantages with your own network.
#
# The shifted pass
# ----------------
#
# ``GAE(shifted=True)`` makes a :term:`shifted value call`: the value network runs on ``T + budget``
# rows, in place of ``T`` rows and the ``T`` next ones. Each truncation inside the batch needs one
# extra row, and the end of the batch one more. Rows that do not fit are False in
# :term:`shifted_valid`. Their advantages are zero and mean nothing: leave them out of the loss.
#
# .. fold:: Compare the shifted pass with plain GAE, by data and budget

torch.manual_seed(SEED)
net = MLP(in_features=4, out_features=1, num_cells=[64], device=DEVICE)
critic = ValueOperator(net, in_keys=["observation"])
unshifted = gae(critic)(full.clone())["advantage"]
full_budget = int(truncated[:-1].sum()) + 1


def shifted_pass(data, budget):
    """The advantage, which rows are valid, and which of these are off."""
    result = gae(critic, shifted=True, shifted_budget=budget)(data.clone())
    advantage, valid = result["advantage"], result["shifted_valid"]
    assert not (advantage.squeeze(-1) * ~valid).any()  # finite, and zero where invalid
    off = ~torch.isclose(advantage, unshifted, atol=1e-4).squeeze(-1)
    return advantage, valid, off & valid


n_valid, n_off = {}, {}
print("data          shifted_budget  valid rows  of these off")
for name, data in {"both": full, "compact_obs": compact}.items():
    for budget in (1, full_budget - 1, full_budget):
        _, valid, off = shifted_pass(data, budget)
        n_valid[name, budget], n_off[name, budget] = int(valid.sum()), int(off.sum())
        print(f"{name:12} {budget:15} {int(valid.sum()):11} {int(off.sum()):13}")

# %%
# On full data, the shifted pass is exact if the budget is one row for each truncation plus one:

assert n_valid["both", full_budget] == N_FRAMES
assert n_off["both", full_budget] == 0

# %%
# With a smaller budget (the default is one row), the rows at the end do not fit. The trajectory
# that fits only in part is cut short, so its valid rows are wrong, too. On compact data the pass
# needs no reconstructor and gives no NaN, but with any budget it has the bias from above.
#
# Further reading
# ---------------
#
# * :ref:`symptom-n-step-next-observation-wrong`, the symptom page
# * `Time limits in reinforcement learning <https://arxiv.org/abs/1712.00378>`__
# * `Generalized advantage estimation <https://arxiv.org/abs/1506.02438>`__
