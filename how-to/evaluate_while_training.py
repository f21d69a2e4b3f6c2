"""
Evaluate while training
=======================

Give the evaluation its own environment, its own policy and a frozen copy of the training
statistics, and call ``Evaluator.evaluate`` between two batches. To go on training meanwhile,
evaluate in a second process, and change two defaults.
"""

# %%
# .. fold:: Imports, and a run to evaluate: DQN on CartPole with VecNormV2

import contextlib
import itertools
import multiprocessing
import threading
import warnings
from multiprocessing import resource_sharer

import torch
import torchrl
from tensordict.nn import TensorDictSequential
from torchrl.collectors import Collector, Evaluator
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import (
    Compose,
    ExplorationType,
    GymEnv,
    ObservationNorm,
    StepCounter,
    Transform,
    TransformedEnv,
    VecNormV2,
)
from torchrl.modules import MLP, EGreedyModule, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage
torch.manual_seed(0)


def make_actor():
    net = MLP(in_features=4, out_features=2, num_cells=[64])
    spec = GymEnv("CartPole-v1").action_spec
    return QValueActor(net, in_keys=["observation"], spec=spec)


vecnorm = VecNormV2(in_keys=["observation"])
env = TransformedEnv(GymEnv("CartPole-v1"), vecnorm)
env.set_seed(0)
actor = make_actor()
explore = EGreedyModule(env.action_spec, eps_init=0.5, eps_end=0.5)
loss = DQNLoss(actor, action_space=env.action_spec, delay_value=True)
loss.make_value_estimator(gamma=0.99)
target = SoftUpdate(loss, eps=0.9)
optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(2_000), batch_size=64)
NO_PRIMERS = {"auto_register_policy_transforms": False}


def make_collector(env):
    return Collector(
        env,
        TensorDictSequential(actor, explore),
        frames_per_batch=100,
        total_frames=-1,
        **NO_PRIMERS,
    )


def learn(batch):
    buffer.extend(batch)
    for _ in range(10):
        optimizer.zero_grad()
        loss(buffer.sample())["loss"].backward()
        optimizer.step()
        target.step()


# %%
# Copy this, with your own run in place of the one folded above. (For better settings of
# ``VecNormV2``, see :doc:`normalize_across_workers`.) The evaluation policy is the normalization
# and the actor, without exploration. ``as_it_is_now`` has the same structure, with the weights and
# statistics of training.

EVAL_SEED, MAX_STEPS = 1_000, 50
OPTIONS = {
    "num_trajectories": 5,
    "collector_kwargs": NO_PRIMERS | {"traj_format": "cat"},
}


def make_eval_env():
    env = TransformedEnv(GymEnv("CartPole-v1"), StepCounter(max_steps=MAX_STEPS))
    env.set_seed(EVAL_SEED)
    return env


def make_eval_policy(env=None):
    norm = ObservationNorm(
        loc=torch.zeros(4),
        scale=torch.ones(4),
        in_keys=["observation"],
        standard_normal=True,  # as in VecNormV2
    )
    return TensorDictSequential(norm, make_actor())


def as_it_is_now():
    return TensorDictSequential(vecnorm.to_observation_norm(), actor)


def show(result):
    error = result["eval/reward_std"] / result["eval/num_episodes"] ** 0.5
    print(f"frame {result['eval/step']}: {result['eval/reward']:.1f} ± {error:.1f}")


evaluator = Evaluator(
    make_eval_env(), make_eval_policy(), frames_per_batch=MAX_STEPS, **OPTIONS
)
collector = make_collector(env)
for frames in range(100, 601, 100):
    learn(collector.next())
    if frames % 300 == 0:
        show(evaluator.evaluate(as_it_is_now(), step=frames))
evaluator.shutdown()
collector.shutdown()

# %%
# Each line has the mean return of five episodes and its standard error. Call one policy better only
# if the means differ by more than :math:`2\sqrt{a^2 + b^2}`, where :math:`a` and :math:`b` are the
# two standard errors. The time limit makes 50 the highest return.
#
# Why it is right
# ---------------
#
# * **Weights.** ``evaluate`` copies the weights that you pass before it uses them.
#   :claim:`evaluator-copies-weights`
# * **Exploration.** While ``evaluate`` runs, the exploration type is ``DETERMINISTIC``. It is
#   restored afterwards. :claim:`evaluate-restores-exploration-type`
# * **Statistics.** ``to_observation_norm()`` returns the normalization of that moment. The
#   evaluation does not change it. Its numbers are buffers of a module, unlike those of
#   ``VecNormV2``, so they are sent with the weights. :claim:`vecnorm-statistics-are-no-buffers`
# * **Seed.** The environment is seeded once, so each evaluation sees other episodes. Here
#   ``evaluate`` does not change the random numbers that training draws.
#   :claim:`evaluate-leaves-training-alone` Building the evaluation policy draws its first weights,
#   so seed training after that.
# * **Reward.** The environment has no transform of rewards, so the return is the score:
#   :ref:`symptom-return-is-not-the-score`.
# * **Time limit.** ``StepCounter`` sets it. An evaluator in this process ignores its own
#   ``max_steps`` if the environment has a ``StepCounter``. :claim:`evaluator-max-steps-ignored`
#
# Use a single environment. In a batched one, short episodes finish first, and the mean has too many
# of them. :claim:`evaluator-favors-short-episodes`
#
# In the background
# -----------------
#
# A second process evaluates while this one trains. Change two defaults, ``exploration_type`` and
# ``frames_per_batch``.
#
# .. fold:: Start processes by fork, which is quick, and clean up


@contextlib.contextmanager
def evaluating(**options):
    """An evaluator in a process; yours needs no more than the call."""
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method("fork", force=True)
    background = Evaluator(
        make_eval_env,
        policy_factory=make_eval_policy,
        backend="process",
        **OPTIONS | options,
    )
    try:
        with warnings.catch_warnings():  # Python 3.12 and later warn of "fork"
            warnings.filterwarnings("ignore", ".*fork", category=DeprecationWarning)
            yield background
    finally:
        background.shutdown()
        resource_sharer.stop()
        multiprocessing.set_start_method(before, force=True)


# %%

IN_BACKGROUND = {
    "frames_per_batch": 1,
    "exploration_type": ExplorationType.RANDOM,  # this policy draws nothing at random
}


def finished(background):
    result = background.wait(timeout=60)
    if result is None:
        raise RuntimeError("the evaluation is too slow, or has raised")
    return result


collector = make_collector(env)
with evaluating(**IN_BACKGROUND) as background:
    background.evaluate(as_it_is_now())  # starts the process
    running = False
    for frames in range(700, 1_201, 100):
        learn(collector.next())
        if frames % 300 == 0:
            if running:
                show(finished(background))
            running = background.trigger_eval(as_it_is_now(), step=frames)
    show(finished(background))
collector.shutdown()

# %%
# An evaluation uses the weights and the step that you passed, however long it takes. Training waits
# only if the last one is still running. To avoid waiting, call ``poll()`` in place of ``wait``;
# ``trigger_eval`` returns ``False`` if it starts nothing. Fetch each result before you trigger
# again: if the next evaluation is quick, a result may be lost. :claim:`evaluator-loses-results`
#
# Always pass a ``timeout`` to ``wait``. If an evaluation raises, you only get a traceback on
# stderr. From then on, ``trigger_eval`` returns ``False``, and ``wait()`` without a timeout never
# returns. :claim:`evaluator-dies-silently`
#
# With the start method ``spawn``, a script needs ``if __name__ == "__main__":``
# (:ref:`symptom-workers-run-the-script-again`).
#
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    The default ``exploration_type``. The exploration type belongs to the whole process, so an
#    evaluation that begins within a batch switches off the exploration of training, too:
#    :ref:`symptom-stochastic-policy-does-not-sample`. This also happens with ``backend="process"``,
#    because a thread of the training process sets the type.
#    :claim:`evaluator-process-sets-the-type-here`
#
# .. fold:: An evaluation that begins in the middle of a batch


class Call(Transform):
    """Call *function* at each step."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def _step(self, tensordict, next_tensordict):
        self.function()
        return next_tensordict


def explored_steps(**options):
    """In the first and second half of a batch; an evaluation begins between them."""
    started, release, steps = threading.Event(), threading.Event(), itertools.count(1)

    def begin():
        if next(steps) == 50:
            evaluator.trigger_eval()
            assert started.wait(60)

    def hold():
        started.set()
        assert release.wait(60)

    waiting = Compose(Call(hold), StepCounter(max_steps=10))
    eval_env = TransformedEnv(GymEnv("CartPole-v1"), waiting)
    evaluator = Evaluator(
        eval_env, make_eval_policy(), frames_per_batch=10, **OPTIONS | options
    )
    train_env = TransformedEnv(GymEnv("CartPole-v1"), Call(begin))
    train_env.set_seed(0)
    collector = make_collector(train_env)
    batch = collector.next()
    release.set()
    assert evaluator.wait(timeout=60) is not None
    evaluator.shutdown()
    collector.shutdown()
    greedy = actor(batch.select("observation"))["action"]
    explored = (greedy != batch["action"]).any(-1)
    return int(explored[:50].sum()), int(explored[50:].sum())


# %%

for name in ("DETERMINISTIC", "RANDOM"):
    first, second = explored_steps(exploration_type=ExplorationType[name])
    print(f"{name}: {first} of 50 steps explored before, {second} of 50 during")
    assert (second == 0) == (name == "DETERMINISTIC")

# %%
# Pass ``RANDOM``, which is the type of your collector, and an evaluation policy without randomness.
# For a ``ProbabilisticActor`` with ``TanhNormal``, let the factory use ``TanhDelta`` with
# ``in_keys={"param": "loc"}``. :claim:`delta-head-takes-the-weights` A collector also overrides the
# exploration type that is set around it: :ref:`symptom-evaluation-collector-explores`.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    The default ``frames_per_batch`` in a second process. The evaluator collects whole batches. The
#    episodes that are left over count in the next evaluation, although old weights played them. In
#    training, this symptom is :ref:`symptom-new-weights-arrive-late`.
#
# .. fold:: Weights by hand: one policy pushes to the left, one balances


def make_weights(direction):
    """Push right where *direction* times the observation is positive."""
    policy = make_eval_policy()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        first, _, last = policy[1].module[0].module
        first.weight[0] = torch.tensor(direction)
        last.weight[1, 0] = 1.0
        last.bias[0] = 1e-6
    return policy


to_the_left = make_weights([0.0] * 4)
balancing = make_weights([0.0, 1.0, 10.0, 10.0])

# %%

for per_batch in (100, 1):
    with evaluating(**IN_BACKGROUND | {"frames_per_batch": per_batch}) as background:
        first, second = (
            background.evaluate(weights)["eval/reward"]
            for weights in (to_the_left, balancing)
        )
    print(f"{per_batch} per batch: {first:.0f} to the left, {second:.0f} balancing")
    assert first < 12
    assert (second == MAX_STEPS) == (per_batch == 1)

# %%
# With one frame per batch in one environment, an evaluation ends with its last episode, and nothing
# is left over. An evaluator in this process drops left-over episodes.
# :claim:`evaluate-throws-the-rest-away`
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    A ``VecNormV2`` in the evaluation environment. The evaluator freezes this transform. A new one
#    is then frozen before it has any statistics. With the default ``decay``, the policy sees NaN.
#    If you pass the environment of training, it stops updating its statistics, too.
#
# .. fold:: A new environment and one that has trained, and a count of NaN


def normalizing_env():
    norm = VecNormV2(in_keys=["observation"])
    env = TransformedEnv(GymEnv("CartPole-v1"), Compose(norm, StepCounter(MAX_STEPS)))
    env.set_seed(EVAL_SEED)
    return env


def count_nan(trajectories):
    return {"nan": int(trajectories["observation"].isnan().any(-1).sum())}


new_env, train_env = normalizing_env(), normalizing_env()
_ = train_env.rollout(MAX_STEPS)

# %%

for name, wrong_env in {"new": new_env, "of training": train_env}.items():
    wrong = Evaluator(
        wrong_env,
        make_actor(),
        frames_per_batch=MAX_STEPS,
        metrics_fn=count_nan,
        **OPTIONS,
    )
    print(f"{name}: {wrong.evaluate()['eval/nan']} observations are NaN", end=", ")
    wrong.shutdown()
    print(f"frozen: {wrong_env.transform[0].frozen}")
    assert wrong_env.transform[0].frozen

# %%
# Sending the transform does not help: ``weights_dict={"env.transform[0]": vecnorm}``, with a key
# from the docstring, sends no statistics. :claim:`evaluator-sends-no-statistics` Put the
# normalization into the policy, as above. See :ref:`symptom-good-in-training-poor-in-evaluation`.
#
# What it costs
# -------------
#
# Training waits while ``evaluate`` runs. The evaluator steps in portions of ``frames_per_batch``,
# however short the episodes are. The default is ``max_steps``, or 1,000 without it:
# :claim:`evaluator-steps-in-portions`

for portion in ({"frames_per_batch": MAX_STEPS}, {}):
    taken = itertools.count()
    counting = Compose(Call(taken.__next__), StepCounter(max_steps=MAX_STEPS))
    eval_env = TransformedEnv(GymEnv("CartPole-v1"), counting)
    evaluator = Evaluator(eval_env, make_eval_policy(), **portion, **OPTIONS)
    evaluator.evaluate(to_the_left)  # five episodes of about ten steps
    evaluator.shutdown()
    print(f"{portion or 'default'}: {next(taken)} steps")

# %%
# In the background, each portion is a message between processes, and the process takes a core. It
# starts in :measured:`evaluation@cpu:start:start_time` ("spawn"). On two cores, an iteration of DQN
# took :measured:`evaluation@cpu:beside:vs_alone` times as long beside an evaluation as alone.
#
# .. dropdown:: Time of an evaluation, in this process and in the background
#
#    .. record-table:: evaluation@cpu
#       :rows: here-* process-*
#       :metrics: evaluation_time vs_rollout steps_taken asking_time
#       :caption: Five episodes of 20 steps; "portions" is ``frames_per_batch``
