"""What torchrl announces for its next releases: code that warns, and what to write instead.

For the page reference/api_changes. Every row is used here, the release is read from the warning
that came, and what is to be written instead is executed without that warning.
"""

import json
import re
import tempfile
import warnings
from pathlib import Path

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential

with warnings.catch_warnings():
    # torchrl.collectors warns about its own weight updaters when it is imported.
    warnings.filterwarnings("ignore", "Creating .* which inherits from WeightUpdaterBase")
    from torchrl import collectors, envs, modules, objectives
    from torchrl.checkpoint import Checkpoint
    from torchrl.envs.transforms import ModuleTransform
    from torchrl.render.checkpoint import save_render_checkpoint
    from torchrl.trainers import Trainer

ANNOUNCED = re.compile(r"v(0\.1[5-9])\b")


def releases(use):
    """The releases that the warnings of *use* name."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
    return {match[1] for one in caught for match in ANNOUNCED.finditer(str(one.message))}


def row(release, old, use_old, becomes, new, use_new):
    """A row of the table, when the old way warns of these releases and the new one does not."""
    found = releases(use_old)
    assert found == set(release.split(", ")), f"{old} names {found}; the page expects {release}"
    assert not releases(use_new), f"{new} warns as well"
    return [old, release, becomes, new]


def make_env():
    return envs.GymEnv("CartPole-v1")


def collect_recurrent(**options):
    """A recurrent policy in an environment without the primer of its state."""
    lstm = modules.LSTMModule(input_size=4, hidden_size=2, in_key="observation", out_key="embed")
    head = TensorDictModule(torch.nn.Linear(2, 2), in_keys=["embed"], out_keys=["action"])
    env = envs.TransformedEnv(make_env(), envs.InitTracker())
    policy = TensorDictSequential(lstm, head)
    collectors.Collector(
        env, policy, frames_per_batch=4, total_frames=4, trust_policy=True, **options
    ).shutdown()


def collect_trajectories(**options):
    collectors.Collector(
        make_env(), frames_per_batch=4, total_frames=4, trajs_per_batch=1, **options
    ).shutdown()


def reset(**options):
    env = envs.PendulumEnv()
    env.reset(env.reset(), **options)


def pool(**options):
    envs.AsyncEnvPool([make_env] * 2, backend="multiprocessing", **options).close()


def make_policy():
    return TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])


def collect_async(policy=None, **options):
    collectors.AsyncBatchedCollector(
        [make_env], policy=policy, frames_per_batch=4, total_frames=4, **options
    ).shutdown()


def serve(**options):
    collect_async(policy_factory=make_policy, env_backend="multiprocessing", **options)


def save_trainer(**options):
    collector = collectors.Collector(make_env(), frames_per_batch=4, total_frames=4)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            collector=collector,
            total_frames=4,
            frame_skip=1,
            optim_steps_per_batch=1,
            loss_module=torch.nn.Linear(4, 2),
            save_trainer_file=str(Path(folder, "trainer")),
            progress_bar=False,
            **options,
        )
        trainer.save_trainer(force_save=True)
        trainer.shutdown()


def behavior_cloning(out_key):
    actor = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=[out_key])
    loss = objectives.BCLoss(actor, loss_function="l2")
    loss.set_keys(action="chosen")
    loss(TensorDict(observation=torch.zeros(3, 4), chosen=torch.zeros(3, 2), batch_size=[3]))


def save_for_rendering(**options):
    with tempfile.TemporaryDirectory() as folder:
        save_render_checkpoint(Path(folder, "policy"), torch.nn.Linear(4, 2), **options)


def value_norm(**methods):
    """A subclass of ValueNorm with what is abstract today, and *methods*."""
    abstract = dict.fromkeys(modules.ValueNorm.__abstractmethods__, print)
    type("Mine", (modules.ValueNorm,), abstract | methods)(shape=1)


def module_transform():
    module = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["embed"])
    return ModuleTransform(module=module, device="cpu")


def show_announced():
    rows = [
        row(
            "0.15",
            "``Collector(env, policy)`` without the transforms that the policy needs",
            collect_recurrent,
            "appends them",
            "``auto_register_policy_transforms=True``, or ``False``",
            lambda: collect_recurrent(auto_register_policy_transforms=True),
        ),
        row(
            "0.15",
            "``env.reset(tensordict)`` with a state in it",
            reset,
            "ignores the state",
            "``set_state=True``, or ``False``",
            lambda: reset(set_state=True),
        ),
        row(
            "0.15",
            '``AsyncEnvPool(backend="multiprocessing")``',
            pool,
            "shares memory where it can",
            '``exchange="auto"``, or ``"queue"``',
            lambda: pool(exchange="queue"),
        ),
        row(
            "0.15",
            "``AsyncBatchedCollector`` that is told no backend",
            lambda: collect_async(make_policy()),
            "steps environments in processes, not threads",
            '``env_backend="threading"``, or ``"multiprocessing"``',
            lambda: collect_async(make_policy(), env_backend="threading"),
        ),
        row(
            "0.15",
            "``AsyncBatchedCollector`` with processes and a ``policy_factory``",
            serve,
            "serves the policy from a process",
            '``transport="driver"``, or ``"auto"``',
            lambda: serve(transport="driver"),
        ),
        row(
            "0.15",
            "``save_render_checkpoint(path, model)``",
            save_for_rendering,
            "writes another format",
            '``format="archive"``, or ``"directory"``',
            lambda: save_for_rendering(format="archive"),
        ),
        row(
            "0.15, 0.16",
            "``Trainer(save_trainer_file=...)``",
            save_trainer,
            "saves with ``torchrl.checkpoint``, from 0.16 in no other way",
            "``checkpoint=Checkpoint()``",
            lambda: save_trainer(checkpoint=Checkpoint()),
        ),
        row(
            "0.16",
            "``Collector(trajs_per_batch=...)``",
            collect_trajectories,
            "returns flat rows, not padded ones",
            '``traj_format="cat"``, or ``"padded"``',
            lambda: collect_trajectories(traj_format="cat"),
        ),
        row(
            "0.16",
            '``BCLoss`` with another key for the action, and an actor that writes ``"action"``',
            lambda: behavior_cloning("action"),
            "raises",
            "an actor that writes the key of the loss",
            lambda: behavior_cloning("chosen"),
        ),
        row(
            "0.16",
            "a subclass of ``ValueNorm`` without ``scale``",
            value_norm,
            "cannot be made",
            "a method ``scale``",
            lambda: value_norm(scale=print),
        ),
        row(
            "0.17",
            "``ModuleTransform.device``",
            lambda: module_transform().device,
            "is gone",
            "``device=`` of its constructor",
            module_transform,
        ),
    ]
    return {"columns": ["Warns in 0.14", "From", "What then happens", "Write now"], "rows": rows}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({"announced": show_announced()}))
