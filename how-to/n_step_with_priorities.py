"""
Use n-step returns with prioritized replay
==========================================

Give ``MultiStepTransform`` and the loss the same ``gamma``, and pass
``done_keys=["done", "truncated"]`` to the transform, without ``"terminated"``. The loss then
discounts the next value as the transform discounts the rewards, and adds no next value where the
episode terminated.
"""

# %%
# .. fold:: Imports, and an actor for CartPole

import torch
import torchrl
from tensordict import TensorDict
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, PrioritizedSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, MultiStepTransform, StepCounter, TransformedEnv
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage
torch.manual_seed(0)
env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=20))
env.set_seed(0)
net = MLP(in_features=4, out_features=2, num_cells=[64])
actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec)

# %%
# Copy this: double DQN with a target network.

GAMMA, N_STEPS, CAPACITY = 0.99, 3, 1_000


def make_buffer(gamma=GAMMA, **options):
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        # The priority is a squared error: take half of the alpha of a paper.
        sampler=PrioritizedSampler(CAPACITY, alpha=0.3, beta=0.5),
        transform=MultiStepTransform(n_steps=N_STEPS, gamma=gamma, **options),
        priority_key="td_error",
        batch_size=64,
    )


buffer = make_buffer(done_keys=["done", "truncated"])  # without "terminated"
loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True, double_dqn=True)
loss.make_value_estimator(gamma=GAMMA)  # as in the transform
target = SoftUpdate(loss, eps=0.99)
optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
collector = Collector(
    env,
    TensorDictSequential(actor, EGreedyModule(env.action_spec)),
    frames_per_batch=200,
    total_frames=400,
    auto_register_policy_transforms=False,
)
collected = []
for batch in collector:
    collected.append(batch.clone())
    buffer.extend(batch)
    for _ in range(4):
        sample = buffer.sample()
        loss_value = loss(sample)["loss"]  # weighted by the sampler's "priority_weight"
        optimizer.zero_grad()
        loss_value.backward()
        optimizer.step()
        target.step()
        buffer.update_tensordict_priority(sample)
collector.shutdown()

# %%
# Which discount
# --------------
#
# :class:`~torchrl.envs.transforms.MultiStepTransform` works when you extend the buffer. A row gets
# the discounted sum of up to ``N_STEPS`` rewards, the observation after them, and their number
# under ``"steps_to_next_obs"``. A row near the end of an episode spans fewer steps. The loss reads
# the number :math:`k` and computes
#
# .. math:: \sum_{i=0}^{k-1} \gamma^i r_{t+i} + \gamma^k (1 - \text{terminated}_{t+k-1})
#    \, Q_\text{target}(s_{t+k}, a^*)
#
# where the online network chooses :math:`a^*`. In a batch of several environments, the last
# dimension must be time, because the transform sums along it: :doc:`/reference/collectors_replay`.
# :claim:`multi-step-sums-along-the-last-dimension`
#
# .. fold:: The targets in plain Python, from the collected frames


def action_values(parameters, observation):
    with torch.no_grad(), parameters.to_module(loss.value_network):
        return loss.value_network(TensorDict(observation=observation))["action_value"]


def plain_targets(frames, n_rows):
    next_observation = frames["next", "observation"]
    online = action_values(loss.value_network_params, next_observation)
    delayed = action_values(loss.target_value_network_params, next_observation)
    rewards, done, terminated = (
        frames["next", key].flatten().tolist()
        for key in ("reward", "done", "terminated")
    )
    targets = []
    for t in range(n_rows):
        target, k = 0.0, 0
        while k < N_STEPS and not (k > 0 and done[t + k - 1]):
            target += GAMMA**k * rewards[t + k]
            k += 1
        last = t + k - 1
        if not terminated[last]:
            target += GAMMA**k * delayed[last, online[last].argmax()].item()
        targets.append(target)
    return torch.tensor(targets)


# %%
# The loss writes the square of its error under ``"td_error"``. Compute the targets again in
# plain Python, and compare:


def compare(buffer, frames):
    """By row: the difference of the targets, as the errors show it."""
    rows = buffer[:]
    loss(rows)
    values = action_values(loss.value_network_params, rows["observation"])
    chosen = (values * rows["action"]).sum(-1)
    error = chosen - plain_targets(frames, len(rows))
    return rows, (rows["td_error"].flatten().sqrt() - error.abs()).abs()


frames = torch.cat(collected)
rows, difference = compare(buffer, frames)
steps = rows["steps_to_next_obs"].flatten()
for k in range(1, N_STEPS + 1):
    print(f"{int((steps == k).sum())} rows of {k} step(s)")
assert difference.max() < 1e-4
print("all targets are those of plain Python")
assert len(frames) - len(rows) == N_STEPS

# %%
# The buffer has ``N_STEPS`` rows fewer than you collected. The transform holds these rows back
# until the next ``extend``, and a saved buffer does not contain them.
# :claim:`multi-step-rows-not-saved`
#
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    The default of ``done_keys``. All three end flags are then those of the first step, while the
#    next observation comes from the last one. In the rows just before an episode terminates, the
#    target adds the value of a terminal state.


def wrong_rows(buffer):
    for batch in collected:
        buffer.extend(batch.clone())
    rows, difference = compare(buffer, frames)
    return rows, difference > 1e-4


rows, wrong = wrong_rows(make_buffer())
terminal = frames["next", "observation"][frames["next", "terminated"].flatten()]
before_the_end = (rows["next", "observation"][:, None] == terminal).all(-1).any(-1)
before_the_end &= ~rows["next", "terminated"].flatten()
assert torch.equal(wrong, before_the_end)
print(f"{int(wrong.sum())} of {len(rows)} targets are wrong")
print(f"{len(terminal)} episodes terminated, {N_STEPS - 1} rows before each end")

# %%
# If you leave ``"terminated"`` out of ``done_keys``, as above, this flag comes from the same step
# as the next observation. Keep ``"done"``: a ``SliceSampler`` without trajectory ids ends an
# episode where ``"done"`` is true. At a time limit, the target still adds the value of the last
# observation. :claim:`multi-step-time-limit-bootstraps` The symptom is
# :ref:`symptom-n-step-value-after-the-end`.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Two values of ``gamma``. The transform discounts the rewards with its own, and the loss
#    discounts the next value with its own. See :ref:`symptom-two-discounts`.

_, wrong = wrong_rows(make_buffer(gamma=0.9, done_keys=["done", "truncated"]))
assert torch.equal(wrong, steps > 1)
print(f"{int(wrong.sum())} of {len(rows)} targets are wrong")

# %%
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    ``select`` without ``"steps_to_next_obs"``. The loss then discounts the next value by one step
#    only: :ref:`symptom-q-values-explode`.

counted = loss(buffer[:])["loss"]
one_step = loss(buffer[:].exclude("steps_to_next_obs"))["loss"]
assert not torch.isclose(counted, one_step)
print("without the number of steps, the loss is different")

# %%
# Priorities and weights
# ----------------------
#
# A priority is the error against the n-step target. ``DQNLoss`` squares it, and the sampler raises
# the square to the power ``alpha``, so 0.3 has the effect of 0.6 for absolute errors. The loss
# weights each row by the ``"priority_weight"`` that the sampler wrote. Pass the sample that the
# loss has seen to ``update_tensordict_priority``, or the priorities do not change
# (:ref:`symptom-prioritized-replay-draws-evenly`). Call ``target.step()`` after each update, or the
# target network never changes (:ref:`symptom-target-updater-never-steps`).

sample = buffer.sample()
value = loss(sample)["loss"]
weight, error = sample["priority_weight"].flatten(), sample["td_error"].flatten()
torch.testing.assert_close(value, (weight * error).sum() / weight.sum())
print("the loss is the weighted mean of the squared errors")

# %%
# What it costs
# -------------
#
# A sample from a hundred thousand small rows takes
# :measured:`replay_buffers_samplers@cpu:prioritized-reading-100k:time_vs_random` times as long by
# priority as at random, and
# :measured:`replay_buffers_samplers@cpu:prioritized-update-reading-100k:time_vs_random` times with
# the update of its priorities. :claim:`priorities-cost-a-multiple-of-random` Eight steps of
# ``SoftUpdate`` take :measured:`networks@cpu:target-soft-l2-w64:calls_time` for two layers of 64
# units, and :measured:`networks@cpu:target-soft-l2-w2048:calls_time` for two of 2,048.
#
# .. dropdown:: A sample by priority, by the rows of the buffer
#
#    .. record-table:: replay_buffers_samplers@cpu
#       :rows: random-reading-* prioritized-reading-* prioritized-update-reading-*
#       :metrics: sample_time time_vs_random
#       :caption: A sample at random and by priority, by the rows of the buffer
#
# The transform works once for each row. With three steps, an extend of small rows takes
# :measured:`multi_step@cpu:extend-n3:time_vs_plain` times as long as without the transform.
# :claim:`multi-step-makes-an-extend-longer` It adds four entries to each row:

stored = buffer[:].exclude("index")
added = set(stored.flatten_keys().keys()) - set(frames.flatten_keys().keys())
print("added:", ", ".join(sorted(added)))
print(f"collected: {frames.bytes() // len(frames)} bytes a row")
print(f"stored: {stored.bytes() // len(stored)} bytes a row")
assert len(added) == 4

# %%
# Related: :doc:`/tutorials/memory/n_step_and_truncations` for ``compact_obs`` and the delta, with
# which n-step returns are silently wrong, and :ref:`symptom-n-step-next-observation-wrong`.
