"""Symptoms of what the reader has set."""

import copy

import torch
from tensordict.nn import InteractionType, TensorDictSequential
from torchrl.data import LazyTensorStorage, RandomSampler, TensorDictReplayBuffer
from torchrl.envs import FrameSkipTransform, SerialEnv, Transform, TransformedEnv
from torchrl.modules import EGreedyModule
from torchrl.objectives import HardUpdate, SoftUpdate

from tests.support.planted import collect_anew, in_batch, in_buffer, stored


def a_setting_is_out_of_range(pipeline):
    loss = pipeline["loss_module"]
    for name, value in {"entropy_coeff": -0.01, "critic_coeff": 0.0, "clip_epsilon": 2.0}.items():
        if isinstance(kept := vars(loss).get("_buffers", {}).get(name), torch.Tensor):
            before = kept.clone()
            kept.fill_(value)
            yield pipeline | {"planted_in": "loss_module"}
            kept.copy_(before)
    if "value_estimator" in pipeline:
        for name, value in {"gamma": 0.0, "lmbda": 1.5}.items():
            kept = getattr(pipeline["value_estimator"], name, None)
            if isinstance(kept, torch.Tensor):
                before = kept.clone()
                kept.fill_(value)
                yield pipeline | {"planted_in": "value_estimator"}
                kept.copy_(before)


def targets_follow_at_once(pipeline):
    if pipeline.get("target_updater") is not None:
        loss = copy.deepcopy(pipeline["loss_module"])
        soft = SoftUpdate(loss, eps=0.9)
        soft.eps = 0.0
        almost = SoftUpdate(loss, eps=0.9)
        almost.eps = 0.005
        for updater in (soft, almost, HardUpdate(loss, value_network_update_interval=1)):
            yield pipeline | {"target_updater": updater, "planted_in": "target_updater"}


def two_critics(pipeline):
    if "value_estimator" in pipeline and hasattr(pipeline["loss_module"], "critic_network_params"):
        estimator = copy.deepcopy(pipeline["value_estimator"])
        yield pipeline | {"value_estimator": estimator, "planted_in": "value_estimator"}


def part_of_the_loss_is_frozen(pipeline):
    names = {name.split(".")[0] for name, _ in pipeline["loss_module"].named_parameters()}
    for network in sorted(name for name in names if not name.startswith("target_")):
        loss = copy.deepcopy(pipeline["loss_module"])
        for name, parameter in loss.named_parameters():
            if name.startswith(network):
                parameter.requires_grad_(False)
        yield pipeline | {"loss_module": loss, "planted_in": "loss_module"}


def learning_rate_is_wrong(pipeline):
    parameters = list(pipeline["loss_module"].parameters())
    for options in (
        {"lr": 0.0},
        {"lr": 1e-12},
        {"lr": 1000.0},
        {"lr": 0.01, "weight_decay": 100.0},
    ):
        optimizer = torch.optim.AdamW(parameters, **options)
        yield pipeline | {"optimizer": optimizer, "planted_in": "optimizer"}


def updates_differ_after_loading(pipeline):
    optimizer = torch.optim.Adam(pipeline["loss_module"].parameters(), lr=3e-4, fused=True)
    for weight in optimizer.param_groups[0]["params"]:
        moments = torch.zeros(weight.shape[::-1]).permute(tuple(range(weight.ndim))[::-1])
        optimizer.state[weight] = {"step": torch.tensor(1.0), "exp_avg": moments}
    yield pipeline | {"optimizer": optimizer, "planted_in": "optimizer"}
    yield pipeline | {"optimizer": [optimizer], "planted_in": "optimizer"}


def optimizer_trains_others(pipeline):
    loss = pipeline["loss_module"]
    others = [torch.nn.Parameter(one.detach().clone()) for one in loss.parameters()]
    own = list(loss.parameters())
    for held in (others, [*others[1:], own[0]], own[1:]):
        yield pipeline | {"optimizer": torch.optim.Adam(held), "planted_in": "optimizer"}
    yield pipeline | {"optimizer": [torch.optim.Adam(own[1:])], "planted_in": "optimizer"}


def one_environment_for_both(pipeline):
    yield pipeline | {"eval_env": pipeline["env"], "planted_in": "eval_env"}


def buffer_below_a_sample(pipeline):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=8)
    buffer.extend(pipeline["batch"].reshape(-1)[:4])
    yield pipeline | {"replay_buffer": buffer, "planted_in": "replay_buffer"}


def epsilon_starts_at_zero(pipeline):
    for module in pipeline["policy"].modules():
        for name in ("eps", "sigma"):
            if hasattr(module, f"{name}_init"):
                if "collector" in pipeline:
                    acts = [one for one in pipeline["policy"] if one is not module]
                    greedy = collect_anew(pipeline, TensorDictSequential(*acts))
                    yield greedy | {"planted_in": "collector"}
                    calm = collect_anew(pipeline, exploration_type=InteractionType.DETERMINISTIC)
                    yield calm | {"planted_in": "collector"}
                for start in (1e-6, 0.0):
                    for part in (name, f"{name}_init", f"{name}_end"):
                        getattr(module, part).fill_(start)
                    yield pipeline | {"planted_in": "policy"}


def log_prob_of_another_action(pipeline):
    spec = getattr(pipeline.get("env"), "action_spec_unbatched", None)
    if "collector" in pipeline and "value_estimator" in pipeline and spec is not None:
        policy = TensorDictSequential(pipeline["policy"], EGreedyModule(spec, eps_init=0.1))
        yield collect_anew(pipeline, policy) | {"policy": policy, "planted_in": "policy"}


def advantages_are_constant(pipeline):
    if "value_estimator" in pipeline:
        for value in (0.0, 1e6):
            batch = pipeline["batch"].clone()
            batch["advantage"] = torch.full((*batch.shape, 1), value)
            yield in_batch(pipeline, batch)


def estimator_reads_two_shapes(pipeline):
    if "value_estimator" in pipeline:
        batch = pipeline["batch"].clone()
        batch["next", "reward"] = torch.zeros(*batch.shape, 3, 1)
        yield in_batch(pipeline, batch)


def critic_without_action(pipeline):
    network = getattr(pipeline["loss_module"], "qvalue_network", None)
    if network is not None:
        network.in_keys = ["observation"]
        yield pipeline | {"planted_in": "loss_module"}


class _Repeats(RandomSampler):
    def sample(self, storage, batch_size):
        return torch.arange(batch_size), {}


def each_sample_has_the_same_rows(pipeline):
    rows = pipeline["batch"].reshape(-1)
    yield in_buffer(pipeline, stored(rows, sampler=_Repeats(), batch_size=4))


class _Tenth(Transform):
    def _apply_transform(self, entry):
        return entry / 10

    def _reset(self, tensordict, tensordict_reset):
        return self._call(tensordict_reset)


def evaluation_is_another_task(pipeline):
    """A transform that one of the two lacks, where it can be seen and inside a batched one."""
    env = pipeline["env"]
    if env.batch_size or "collector" not in pipeline:
        return

    def scaled():
        return TransformedEnv(copy.deepcopy(env), _Tenth(["observation"], ["observation"]))

    several = SerialEnv(2, scaled)
    several.reset()
    for other in (scaled(), several, TransformedEnv(copy.deepcopy(env), FrameSkipTransform(3))):
        yield pipeline | {"eval_env": other, "planted_in": "eval_env"}
