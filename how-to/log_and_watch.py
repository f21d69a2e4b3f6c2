"""
Log a run and watch it
======================

Log the return of the episodes that have ended and the figures of each update, all against the
number of frames. Some of these figures show early that a run goes wrong.
"""

# %%
# .. fold:: Imports, and a run to log: PPO on CartPole

import os
import subprocess
import sys
import tempfile
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import numpy as np
import torch
import torchrl
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl import timeit
from torchrl.collectors import Collector
from torchrl.envs import (
    GymEnv,
    GymWrapper,
    RewardSum,
    SerialEnv,
    StepCounter,
    TransformedEnv,
)
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE
from torchrl.record import CSVLogger, LoggerMonitor, VideoRecorder
from torchrl.record.loggers import generate_exp_name

torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")
torch.manual_seed(0)
GAMMA, MINIBATCH, EPOCHS, CLIP_NORM, SOLVED_AT_RETURN = 0.99, 100, 3, 0.5, 475
NO_PRIMERS = {"auto_register_policy_transforms": False}


def make_env(n_envs):
    env = SerialEnv(n_envs, lambda: GymEnv("CartPole-v1"))
    env = TransformedEnv(env, RewardSum())  # writes "episode_reward"
    env.append_transform(StepCounter())  # writes "step_count"
    env.set_seed(0)
    return env


def make_critic():
    net = MLP(in_features=4, out_features=1, num_cells=[64])
    return ValueOperator(net, in_keys=["observation"])


net = MLP(in_features=4, out_features=2, num_cells=[64])
net = TensorDictModule(net, in_keys=["observation"], out_keys=["logits"])
options = {"distribution_class": OneHotCategorical, "return_log_prob": True}
actor, critic = ProbabilisticActor(net, ["logits"], **options), make_critic()
gae = GAE(gamma=GAMMA, lmbda=0.95, value_network=critic)
loss = ClipPPOLoss(actor, critic, normalize_advantage=True)
optimizer = torch.optim.Adam(loss.parameters(), lr=3e-3)


# %%
# Copy this, with your own run in place of the one folded above. ``learn`` detaches its figures
# and leaves them on their device. ``log_metrics`` converts the means to Python numbers. On a GPU,
# ``.item()`` at each update waits for the device: :doc:`/performance/checklist`. The loop stops if
# the mean return is high enough; a :ref:`trainer <trainers-stop>` needs a hook for that.


def learn(batch):
    figures = []
    for _ in range(EPOCHS):
        gae(batch)
        rows = batch.reshape(-1)
        for sample in rows[torch.randperm(len(rows))].split(MINIBATCH):
            out = loss(sample)
            optimizer.zero_grad()
            sum(out[f"loss_{x}"] for x in ("objective", "critic", "entropy")).backward()
            norm = torch.nn.utils.clip_grad_norm_(loss.parameters(), CLIP_NORM)
            optimizer.step()
            figures.append(out.detach().set("grad_norm", norm))  # before clipping
    return torch.stack(figures).mean(dim=0)


def ended(batch):
    """Return and length of each episode that ended in the batch."""
    rows = batch["next"][batch["next", "done"].squeeze(-1)]
    return torch.cat((rows["episode_reward"], rows["step_count"]), dim=-1)


def train(collector, logger):
    monitor = LoggerMonitor(logger, background=False, on_error="raise")
    monitor.watch(collector, name="collector", step="frames")
    recent = deque(maxlen=100)  # episodes
    for batch in collector:
        timeit.erase()  # else a mean since the start
        with timeit("learn"):
            figures = learn(batch)
        episodes = ended(batch)
        recent.extend(episodes)
        figures["episodes"] = len(episodes)
        if recent:  # else stack raises
            mean = torch.stack(list(recent)).mean(dim=0)
            figures["episode_reward"], figures["episode_length"] = mean
        age = collector.policy_version - batch["next", "policy_version"]
        figures["weights_age"] = age.float().mean()
        frames = collector.stats()["frames"]
        logger.log_metrics(TensorDict(train=figures), step=frames)
        logger.log_metrics(timeit.todict(prefix="time"), step=frames)
        monitor.step()  # logs collector.stats(), and frames per second
        if len(recent) == recent.maxlen and mean[0] >= SOLVED_AT_RETURN:
            break  # high enough
        collector.update_policy_weights_()


scratch = tempfile.TemporaryDirectory(prefix="log_and_watch_")
logger = CSVLogger(generate_exp_name("ppo", "cartpole"), log_dir=scratch.name)
logger.log_hparams({"gamma": GAMMA, "epochs": EPOCHS})
sizes = {"frames_per_batch": 400, "total_frames": 2_000, "track_policy_version": True}
collector = Collector(make_env(2), actor, **sizes, **NO_PRIMERS)
train(collector, logger)
collector.shutdown()

# %%
# ``CSVLogger`` writes a file for each figure, with a line of frames and value for each batch:

scalars = Path(logger.log_dir, logger.exp_name, "scalars")
for file in sorted(scalars.glob("train/*.csv")):
    first, *_, last = (float(line.split(",")[1]) for line in file.read_text().split())
    print(f"{file.stem:<19}{first:>8.2g} at first, {last:>8.2g} at last")

# %%
# What a bad value looks like
# ---------------------------
#
# * ``episode_reward``, ``episode_length``: flat, or falling after a peak. See
#   :ref:`symptom-only-the-first-episode-is-long` and :ref:`symptom-return-is-not-the-score`.
# * ``episodes``: zero in many batches. The two values above are then stale.
# * ``loss_objective``, ``loss_critic``: NaN, or always the same number. A falling loss of the actor
#   is no sign of learning.
# * ``entropy``: near zero before the return rises (:ref:`symptom-entropy-is-gone-early`), or no
#   fall at all.
# * ``clip_fraction``, ``kl_approx``: high :ref:`from the start
#   <symptom-ppo-clips-before-the-first-update>` or :ref:`later
#   <symptom-ppo-clips-almost-everything>`, or zero for the whole run.
# * ``explained_variance``: zero or less for a long time. A constant would predict at least as well
#   as the critic. A high value proves little: with a small ``lmbda``, the targets contain the
#   critic's own values, so an untrained critic looks good. :claim:`explained-variance-flatters`
# * ``grad_norm``: zero (:ref:`symptom-hidden-units-are-dead`), NaN, or ever larger.
# * ``weights_age``, counted in calls of ``update_policy_weights_``: growing. With workers, also
#   call ``collector.increment_version()`` after each update, or the age is negative.
#   :claim:`workers-count` The age does not show all stale weights: :doc:`/performance/weight_sync`.
# * ``frames_per_second``: falling. ``time/learn`` says whether learning takes longer.
#
# With DQN, log the batch's mean ``"chosen_action_value"`` instead of the figures of PPO's loss. No
# value may exceed the largest discounted return that the task allows:
# :ref:`symptom-q-values-explode`.
#
# With what
# ---------
#
# ``TensorboardLogger``, ``WandbLogger``, ``MLFlowLogger`` and ``TrackioLogger`` have the same
# methods as ``CSVLogger``, but each needs another package. ``CSVLogger`` and ``MLFlowLogger``
# refuse histograms. :claim:`loggers-share-an-interface` If a second run has the same name,
# ``CSVLogger`` appends its figures and replaces the settings, without a warning.
# :claim:`csv-logger-appends` So the example takes its name from ``generate_exp_name``. If you
# resume a run, keep its name. Steps after the last save are then in the file twice: use the later
# line.
#
# ``collector.stats()`` has counts of frames and batches, but no return. ``LoggerMonitor`` adds
# rates between two calls of ``step``, so its frames per second include the time in which you learn.
# :claim:`monitor-rates-count-all-time` By default, an error in ``LoggerMonitor`` leaves a gap in
# the log and one warning of ``torchrl.logger``. The example passes ``on_error="raise"`` instead.
# :claim:`monitor-warns-once`
#
# .. dropdown:: Let the doctor read the log
#
#    The doctor's :ref:`watch <doctor-watch>` records a loop by itself, and ``diagnose(log=...)``
#    reads your log. This code was not run here, because the doctor comes from :doc:`this site
#    </reference/doctor>`, not from a package index.
#
#    .. code-block:: python
#
#       import torchrl_doctor
#
#       collector = Collector(make_env(2), actor, **sizes, **NO_PRIMERS)
#       with torchrl_doctor.watch(collector=collector, loss_module=loss) as watching:
#           train(collector, logger)
#       print(watching.report)
#       print(torchrl_doctor.diagnose(log=scalars))
#
# Show a progress bar
# -------------------
#
# Count frames, as the log does, and show the mean of ``recent``. ``tqdm(collector)`` counts
# batches. :claim:`len-of-a-collector-is-batches` Each step of the policy is one frame for each
# environment. tqdm is not installed here, so this was not run:
#
# .. code-block:: python
#
#    from tqdm import tqdm
#
#    # In train, before and at the end of the loop; None hides the bar in a file.
#    bar = tqdm(total=collector.total_frames, unit="frame", unit_scale=True, disable=None)
#    ...
#    if recent:
#        bar.set_postfix({"return": f"{mean[0]:.0f}"}, refresh=False)
#    bar.update(frames - bar.n)
#
# Without ``refresh=False``, each postfix draws the bar anew.
#
# Record a video
# --------------
#
# Append ``VideoRecorder`` to an evaluation environment that returns images, and call ``dump`` after
# the episode: until then, frames stay in memory. ``GymEnv("CartPole-v1", from_pixels=True,
# pixels_only=False)`` returns images under ``"pixels"``, but needs pygame.
#
# .. dropdown:: MuJoCo on a machine without a display
#
#    MuJoCo needs ``MUJOCO_GL=egl`` in the environment, or ``MUJOCO_GL=osmesa`` without a GPU.
#    :claim:`mujoco-gl-chooses-the-renderer`
#
# .. fold:: A CartPole that draws itself


class Drawn(gymnasium.Wrapper):
    render_mode = "rgb_array"

    def render(self):
        picture = np.zeros((64, 96, 3), np.uint8)
        place, _, angle, _ = self.unwrapped.state
        column = int(48 + 20 * place)
        picture[40:48, max(column - 8, 0) : column + 8] = 200
        for height in range(32):
            picture[40 - height, int(column + height * np.tan(angle)) % 96, :2] = 200
        return picture


# %%


def record(logger, name, **options):
    env = GymWrapper(
        Drawn(gymnasium.make("CartPole-v1")), from_pixels=True, pixels_only=False
    )
    recorder = VideoRecorder(logger, tag=name, **options)
    env = TransformedEnv(env, recorder)
    steps = env.rollout(30, actor)
    env.transform.dump()
    (file,) = Path(logger.log_dir).rglob(f"{name}_*.pt")
    return len(steps), torch.load(file).shape


print(record(logger, "every_frame", skip=1))

# %%
# A file has the shape ``(1, frames, colors, height, width)`` and includes the frame of the reset.
#
# .. dropdown:: Other formats
#
#    ``CSVLogger(..., video_format="mp4")`` writes a video file if its package is installed, and the
#    other loggers add the video to their own records. Neither was tried here.
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    Leaving ``skip`` out. A single environment then keeps every second frame, and the video runs
#    too fast.

steps, shape = record(logger, "as_it_comes")
print(steps, shape)
assert shape[1] < steps

# %%
# Where it goes wrong without an error
# ------------------------------------
#
# .. admonition:: Wrong on purpose
#    :class: wrong-on-purpose
#
#    The mean over all rows, most of which are in the middle of an episode. Or, at the start of a
#    run with many environments, the mean over the episodes that ended: only short ones can have
#    ended by then. Both are in :ref:`symptom-episode-return-looks-too-low`.

sizes = {"frames_per_batch": 200, "total_frames": 2_400}
random_policy = Collector(make_env(20), None, **sizes, **NO_PRIMERS)
batches = [batch.clone() for batch in random_policy]
random_policy.shutdown()
means = [ended(batch)[:, 0].mean().item() for batch in batches]
frames = torch.cat(batches, dim=1)
running, done = frames["next", "episode_reward"], frames["next", "done"]
print("ended in each batch:", *(f"{mean:.0f}" for mean in means), end="; ")
print(f"all rows: {running.mean():.0f}")

# %%
# The mean return seems to rise, although the policy does not learn. Count the same number of
# episodes from each environment:

first = done & (done.cumsum(dim=1) == 1)
assert first.any(dim=1).all()  # wait for this
print(f"first episode of each environment: {running[first].mean():.0f}")
assert max(means[0], running.mean()) < 0.8 * running[first].mean()

# %%
# After these first episodes, use ``recent``. It measures the policy with exploration; without it,
# see :doc:`evaluate_while_training`.
#
# Run several seeds
# -----------------
#
# Run one process for each seed, as many at once as you have cores, with one thread each. Otherwise
# each can take all cores, and all are slow.
#
# .. fold:: A script that takes its seed from the command line

script = Path(scratch.name, "train.py")
_ = script.write_text(
    "import os, sys\n"
    "print('seed', sys.argv[1], 'threads', os.environ['OMP_NUM_THREADS'])\n"
)

# %%


def train_with(seed):
    command = [sys.executable, script, str(seed)]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=one_thread, check=True, capture_output=True, text=True
    ).stdout


with ThreadPoolExecutor(os.cpu_count()) as pool:
    for printed in pool.map(train_with, range(2)):
        print(printed, end="")
        assert printed.endswith("threads 1\n")

# %%
# Compare their means as in :doc:`evaluate_while_training`.
#
# .. fold:: Clean up

del logger  # closes its files
scratch.cleanup()

# %%
# What it costs
# -------------
#
# A ``timeit`` block takes :measured:`profiling@cpu:range-timeit:range_time`. Reading a loss waits
# for the GPU (:ref:`performance-checklist-log-once`). Memory grows if you add up losses that carry
# a graph: the sum keeps the graphs of all updates. :claim:`sum-of-losses-keeps-graphs`
#
# Related: :doc:`/reference/doctor_in_a_loop` for the causes of each bad value.
