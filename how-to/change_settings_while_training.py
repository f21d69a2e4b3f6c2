"""
Change settings while you train
===============================

Lower the learning rate, the entropy bonus and the clip range as the number of collected frames
grows. Assign new values to the attributes of the loss, step the scheduler once per batch, and clip
the gradients before the step of the optimizer. You can change settings of the environment in
running workers, too.
"""

# %%
# .. fold:: Imports, and the networks of PPO on CartPole

import multiprocessing
import warnings
from functools import partial

import gymnasium as gym
import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import Unbounded
from torchrl.envs import GymEnv, GymWrapper, TensorDictPrimer, TransformedEnv
from torchrl.modules import (
    MLP,
    EGreedyModule,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.set_num_threads(1)
torch.manual_seed(0)
net = MLP(in_features=4, out_features=2, num_cells=[64])
actor = ProbabilisticActor(
    TensorDictModule(net, ["observation"], ["logits"]),
    in_keys=["logits"],
    distribution_class=OneHotCategorical,
    return_log_prob=True,
)
critic = ValueOperator(
    MLP(in_features=4, out_features=1, num_cells=[64]), ["observation"]
)

# %%
# Copy this, with your own networks in place of those folded above.

FRAMES, TOTAL, EPOCHS, MAX_NORM = 200, 1_000, 3, 0.5
LEARNING_RATE, ENTROPY, CLIP = 3e-3, 0.02, 0.2

collector = Collector(
    GymEnv("CartPole-v1"),
    actor,
    frames_per_batch=FRAMES,
    total_frames=TOTAL,
    auto_register_policy_transforms=False,  # the policy has no memory
)
loss = ClipPPOLoss(actor, critic, entropy_coeff=ENTROPY, clip_epsilon=CLIP)
advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
optimizer = torch.optim.Adam(loss.parameters(), lr=LEARNING_RATE)
schedule = torch.optim.lr_scheduler.LinearLR(
    optimizer, start_factor=1.0, end_factor=0.1, total_iters=TOTAL // FRAMES - 1
)

for number, batch in enumerate(collector):
    left = 1 - number * FRAMES / TOTAL  # falls from one
    loss.entropy_coeff = ENTROPY * left
    loss.clip_epsilon = CLIP * left
    advantage(batch)
    for _ in range(EPOCHS):
        values = loss(batch.reshape(-1))
        optimizer.zero_grad()
        losses = [value for key, value in values.items() if key.startswith("loss_")]
        sum(losses).backward()
        norm = torch.nn.utils.clip_grad_norm_(loss.parameters(), MAX_NORM)
        optimizer.step()
    rate = optimizer.param_groups[0]["lr"]
    bonus = values["loss_entropy"] / values["entropy"]
    clipped = (norm > MAX_NORM).item()
    print(f"rate {rate:.4f}, entropy bonus {-bonus:.3f}, clipped: {clipped}")
    schedule.step()  # once a batch
collector.shutdown()

# %%
# Why it is right
# ---------------
#
# * **Coefficients.** ``entropy_coeff``, ``critic_coeff`` and ``clip_epsilon`` are buffers of the
#   loss. Assigning a number changes their value, and a compiled loss uses it without compiling
#   again. :claim:`compiled-loss-follows-coefficients`
# * **One** ``backward``. PPO's objective and entropy share a graph. If you call ``backward`` on
#   both, the second raises ``Trying to backward through the graph a second time``.
#   :claim:`ppo-terms-share-a-graph`
# * **Learning rate.** The optimizer and its scheduler are PyTorch's. Here the scheduler steps once
#   per batch, so ``total_iters`` counts batches.
# * **Gradients.** ``clip_grad_norm_`` returns the norm before clipping, which :doc:`log_and_watch`
#   logs.
# * **Resuming.** ``loss.state_dict()`` has the coefficients. Save the ``state_dict`` of the
#   scheduler too (:doc:`save_and_resume`).
#
# The discount needs more than an assignment: :ref:`symptom-a-new-gamma-changes-nothing`. For
# separate learning rates of actor and critic, see :ref:`doctor-settings-learning-rate`.
#
# A term of your own in the loss
# ------------------------------
#
# Add the term before ``backward``. PPO trains the weights of your own networks, so the term can
# call them. Also give the optimizer the weights that only your term has. Here a layer predicts the
# next observation from the hidden layer of the actor:

rows, predict = batch.reshape(-1), torch.nn.Linear(64, 4)
optimizer.add_param_group({"params": predict.parameters()})  # else it never learns
hidden = torch.nn.Sequential(*list(net)[:-1])  # the same layers
before, errors = net[0].weight.clone(), []
for _ in range(50):
    error = predict(hidden(rows["observation"])) - rows["next", "observation"]
    errors.append(error.square().mean())
    errors[-1].backward()  # in your own run, of sum(losses) + 0.1 * errors[-1]
    optimizer.step()
    optimizer.zero_grad()
print(f"error of the prediction: {errors[-1] / errors[0]:.1f} of what it was at first")
assert errors[-1] < 0.5 * errors[0]
assert not torch.equal(before, net[0].weight)  # the actor learns from the term

# %%
# Exploration
# -----------
#
# ``EGreedyModule.step`` lowers epsilon. It counts frames, so call it once per batch, with the
# number of frames in the batch:

explore = EGreedyModule(
    GymEnv("CartPole-v1").action_spec,
    eps_init=1.0,
    eps_end=0.1,
    annealing_num_steps=1_000,
)
for _ in range(2):
    explore.step(FRAMES)
print(f"epsilon after {2 * FRAMES} frames: {explore.eps.item():.2f}")

# %%
# To set it by hand, write ``explore.eps.fill_(0.3)``. On the CPU, workers that act with the policy
# that you passed share its epsilon, and use a new value at once. :claim:`workers-share-epsilon` On
# another device and on Ray, call ``update_policy_weights_()`` (:doc:`/performance/weight_sync`).
# See :ref:`symptom-epsilon-never-goes-down` and :ref:`symptom-epsilon-goes-down-too-soon`.
#
# .. _change-the-environment:
#
# The environment, in running workers
# -----------------------------------
#
# For a curriculum, write a method that changes the environment, and let each worker call it by its
# name. No process starts anew. Here the level is returned as the reward, so that it shows:


class Levels(gym.Wrapper):
    level = 0.0

    def set_level(self, level):
        self.level = level

    def step(self, action):
        observation, _, *flags = self.env.step(action)
        return observation, self.level, *flags


def make_env():
    return GymWrapper(Levels(gym.make("CartPole-v1")))  # outside of other wrappers


# Workers start by "fork" here, which is quick and warns from Python 3.12 on.
multiprocessing.set_start_method("fork", force=True)
warnings.filterwarnings("ignore", message=r".*fork\(\) may lead to deadlocks")
workers = MultiSyncCollector([make_env] * 2, frames_per_batch=40, total_frames=-1)
for levels in ([0.0, 0.0], [0.25, 0.75]):
    workers.map_fn("env.set_level", [(level,) for level in levels])
    rewards = workers.next()["next", "reward"]
    print("levels of the two workers:", rewards.amax((1, 2)).tolist())
    assert rewards.amax((1, 2)).tolist() == levels
workers.shutdown()

# %%
# Other collectors need other calls:
#
# * ``Collector`` with a ``SerialEnv`` or ``ParallelEnv``: ``collector.env.set_level(0.5)`` sets all
#   environments. :claim:`setting-all-environments-at-once`
# * ``MultiSyncCollector``: ``map_fn``, between two batches. ``"env.set_level"`` is a path from the
#   worker's collector.
# * ``MultiAsyncCollector`` after ``start()``: the same call inside ``with collector.pause():``.
#   :claim:`setting-while-paused`
# * ``MultiAsyncCollector`` in a loop: do not use ``map_fn``. A worker that collects at that moment
#   throws its batch away and sends no other, so your loop can wait forever.
#   :claim:`map-fn-stops-async-workers` Let the environment read a shared tensor, as in
#   :doc:`adapt_an_environment`. A new value applies even within a batch, unless the environment
#   reads it only at its resets. :claim:`setting-by-shared-tensor`
# * Ray: ``map_fn`` exists, and was not run here.
#
# ``ParallelEnv.update_kwargs`` changes nothing in workers that run.
# :claim:`update-kwargs-before-the-start`
#
# A different epsilon in each worker
# ----------------------------------
#
# Let each environment carry its epsilon, and let the policy read it. All workers go on sharing the
# weights, and each row has the epsilon with which it was collected.

EPSILONS = [0.0, 0.8]
spec = GymEnv("CartPole-v1").action_spec


def make_explored(epsilon):
    own = TensorDictPrimer(epsilon=Unbounded(1), default_value=epsilon)
    return TransformedEnv(GymEnv("CartPole-v1"), own)


def explore_by(action, epsilon):
    random = torch.rand_like(epsilon) < epsilon
    return torch.where(random, spec.rand(epsilon.shape[:-1]), action)


greedy = QValueActor(MLP(4, 2), in_keys=["observation"], spec=spec)
mixing = TensorDictModule(explore_by, ["action", "epsilon"], ["action"])
workers = MultiSyncCollector(
    [partial(make_explored, epsilon) for epsilon in EPSILONS],
    TensorDictSequential(greedy, mixing),
    frames_per_batch=400,
    total_frames=-1,
    auto_register_policy_transforms=False,
)
workers.set_seed(0)
rows = workers.next()
workers.shutdown()
best = greedy(rows.select("observation"))["action"]
for epsilon, other in zip(EPSILONS, (best != rows["action"]).any(-1), strict=True):
    print(f"epsilon {epsilon}: {other.float().mean():.0%} of actions are not greedy")
    assert other.any() == (epsilon > 0)

# %%
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A name that the loss does not have. Python adds the attribute, and the loss never reads it:

before = loss.entropy_coeff.clone()
loss.entropy_coef = 0.5  # the name has two "f"
print("changed:", not torch.equal(before, loss.entropy_coeff))
assert torch.equal(before, loss.entropy_coeff)

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A scheduler that steps with each update. The rate reaches its last value in the second of five
#    batches, because each batch has three updates:

other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LEARNING_RATE)
hasty = torch.optim.lr_scheduler.LinearLR(
    other, 1.0, 0.1, total_iters=TOTAL // FRAMES - 1
)
rates = []
for _ in range(TOTAL // FRAMES):
    for _ in range(EPOCHS):
        other.step()
        hasty.step()
    rates.append(f"{other.param_groups[0]['lr']:.4f}")
print("rate after each batch:", *rates)
assert rates[1] == rates[-1]

# %%
# Count updates in ``total_iters``, or step once a batch.
#
# What it costs
# -------------
#
# Clipping and the step of Adam together take :measured:`loss_breakdown@cpu:ppo-optimizer:share` of
# an iteration of PPO. Printing a norm makes the CPU wait for a GPU, so keep the norms as tensors,
# and read them once per batch.
