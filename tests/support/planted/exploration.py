"""Symptoms of exploration."""

import torch
from tensordict.nn import InteractionType
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import NoisyLinear

from tests.support.planted import collect_anew, move_weights, only, with_batch


def _noise(pipeline):
    return [one for one in pipeline["policy"].modules() if hasattr(one, "annealing_num_steps")]


def _samples(pipeline):
    return [m for m in pipeline["policy"].modules() if hasattr(m, "default_interaction_type")]


def evaluation_takes_random_actions(pipeline):
    if not _noise(pipeline):
        if "collector" in pipeline and _samples(pipeline):
            with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
                batch = pipeline["env"].rollout(15, pipeline["policy"])
            yield {"policy": pipeline["policy"], "eval_env": pipeline["env"], "batch": batch}
        return
    for amount in (0.5, 0.03):
        for one in _noise(pipeline):
            getattr(one, "eps" if hasattr(one, "eps") else "sigma").fill_(amount)
        with set_exploration_type(ExplorationType.RANDOM), torch.no_grad():
            batch = pipeline["env"].rollout(15, pipeline["policy"])
        yield {"policy": pipeline["policy"], "eval_env": pipeline["env"], "batch": batch}
    move_weights(pipeline["policy"])
    yield {"policy": pipeline["policy"], "eval_env": pipeline["env"], "batch": batch}


def epsilon_never_goes_down(pipeline):
    for one in _noise(pipeline):
        now, start = ("eps", "eps_init") if hasattr(one, "eps") else ("sigma", "sigma_init")
        getattr(one, now).fill_(float(getattr(one, start)))
        yield pipeline
        one.annealing_num_steps = 10
        yield pipeline | {"batch": [pipeline["batch"]] * 2}


def epsilon_goes_down_too_soon(pipeline):
    for one in _noise(pipeline):
        now, end = ("eps", "eps_end") if hasattr(one, "eps") else ("sigma", "sigma_end")
        getattr(one, now).fill_(float(getattr(one, end)))
        one.annealing_num_steps = 3  # where it ends, whatever is counted afterwards
        yield pipeline | {"batch": [pipeline["batch"]] * 2}
        one.annealing_num_steps = 100_000
        yield pipeline
        yield pipeline | {"batch": [pipeline["batch"]] * 2}


def stochastic_policy_does_not_sample(pipeline):
    if "collector" not in pipeline or not _samples(pipeline):
        return
    for one in _samples(pipeline):
        if type(one).__name__ == "ProbabilisticTensorDictModule":
            one.default_interaction_type = InteractionType.DETERMINISTIC
    given = collect_anew(pipeline, exploration_type=InteractionType.DETERMINISTIC)
    yield given | {"planted_in": "collector"}
    given = with_batch(given)
    yield given
    move_weights(pipeline["policy"], by=0.01)
    yield given


def actions_stay_noisy(pipeline):
    if "collector" not in pipeline or _samples(pipeline) or _noise(pipeline):
        return
    if not _add_dropout(pipeline["policy"]):
        return
    pipeline["policy"].train()
    given = collect_anew(pipeline)
    yield given
    given = with_batch(given)
    yield given
    pipeline["policy"].eval()  # too late
    yield given
    yield only(given, "policy", "batch")


def _add_dropout(policy):
    found = [
        (parent, name)
        for parent in policy.modules()
        for name, child in parent.named_children()
        if isinstance(child, (torch.nn.Tanh, torch.nn.ReLU))
    ]
    for parent, name in found:
        parent._modules[name] = torch.nn.Sequential(parent._modules[name], torch.nn.Dropout(0.5))
    return found


def evaluation_collector_explores(pipeline):
    if "collector" in pipeline and (_samples(pipeline) or _noise(pipeline)):
        given = only(pipeline, "collector", "policy", "batch")
        yield given | {"eval_env": pipeline["collector"].env}


def noisy_network_repeats_its_noise(pipeline):
    layers = _with_noise(pipeline)
    if layers:
        move_weights(pipeline["policy"])
        yield pipeline


def noisy_network_never_learns_its_noise(pipeline):
    layers = _with_noise(pipeline)
    for one in layers:
        with torch.no_grad():
            one.weight_mu.add_(0.1)
            one.bias_mu.add_(0.1)
    if layers:
        yield pipeline


def _with_noise(pipeline):
    """Make the last layer of the networks a `NoisyLinear`, and return those of the policy."""
    if "collector" not in pipeline or not _noise(pipeline):
        return []
    made = []
    for parent in list(pipeline["policy"].modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear:
                made.append(NoisyLinear(child.in_features, child.out_features))
                parent._modules[name] = made[-1]
    return made
