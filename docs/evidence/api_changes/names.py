"""Old names of torchrl and tensordict: what each does now, and what took its place.

For the page reference/api_changes. Every old name is used here the way older code uses it, and
the outcome that the tables show is the one that came; every new name is looked up.
"""

import importlib
import inspect
import json
import re
import warnings

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule

with warnings.catch_warnings():
    # torchrl.collectors warns about its own weight updaters when it is imported.
    warnings.filterwarnings("ignore", "Creating .* which inherits from WeightUpdaterBase")
    importlib.import_module("torchrl.collectors.distributed")
    from torchrl import collectors, data, envs, modules, objectives
    from torchrl.objectives.value import GAE

COLUMNS = ["Old", "New"]  # what came of it stands behind the old name: two columns fit
LONG = 40  # characters


# -- What becomes of an old name ---------------------------------------------


def resolve(path):
    """The object of a dotted path; AttributeError or ModuleNotFoundError when there is none."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError as error:
            if not ".".join(parts[:end]).startswith(error.name or "?"):
                raise
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(path)


def outcome_of(use):
    """The exception or warning that *use* ends in, as a class and its first sentence."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            use()
        except RecursionError as error:
            return type(error).__name__, ""  # its words depend on where it struck
        except Exception as error:
            return type(error).__name__, first_sentence(error.args[0])
    kinds = {warning.category.__name__: warning for warning in caught}
    if len(kinds) == 1:
        ((kind, warning),) = kinds.items()
        return kind, first_sentence(warning.message)
    return "nothing" if not kinds else " and ".join(sorted(kinds)), ""


def first_sentence(message):
    """The first sentence of *message*, as text that RST does not read as markup."""
    text = " ".join(str(message).split())
    text = re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("`", "")
    text = re.sub(r" with keys \[.*", "", text)
    text = re.split(r"(?<=[a-z0-9)\]'])\. |(?<=soon)\.|\.$", text)[0]
    return re.sub(r"([\\*_|<>])", r"\\\1", text)


def module_and_name(path):
    """The importable part of *path*, and the rest."""
    for end in range(path.count(".") + 1, 0, -1):
        module = ".".join(path.split(".")[:end])
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        return module, path[len(module) + 1 :]
    raise ModuleNotFoundError(path)


def gone(old, new):
    """A row for a name that cannot be imported any more; *new* is a path."""
    try:
        resolve(old)
    except (AttributeError, ModuleNotFoundError):
        module, _, name = old.rpartition(".")
        here, _ = module_and_name(new)
        place = "" if here == new else f" of ``{here}``"
        return [f"``{name}`` of ``{module}``: ``ImportError``", checked(f"{{{new}}}{place}")]
    raise AssertionError(f"{old} exists; the page says that it is gone")


def ends_in(kind, old, use, new):
    """A row for something that still parses and ends in an exception or a warning."""
    found, message = outcome_of(use)
    assert found == kind, f"{old} ends in {found}: {message}; the page expects {kind}"
    ending = f"``{kind}``: {message}" if message else f"``{kind}``"
    return [f"{as_text(old)}: {ending}", checked(new)]


def as_text(code):
    """*code* as markup; of a call with named arguments alone, these first, so that it can wrap."""
    call = re.fullmatch(r"([\w.]+)\((\w+=[^,()]+(?:, \w+=[^,()]+)*)\)", code)
    if call is None:
        return f"``{code}``"
    arguments = [f"``{part.removesuffix('...')}``" for part in call.group(2).split(", ")]
    return f"{', '.join(arguments)} of ``{call.group(1)}``"


def still(old, does, new):
    """A row for a name that exists."""
    assert exists(old), f"{old} is gone; the page says that it exists"
    module, _, name = old.rpartition(".")
    return [f"``{name}`` of ``{module}``{does and ': '}{does}", checked(new)]


def checked(new):
    """*new* with ``{path}`` and ``{path(argument)}`` looked up and turned into links."""

    def link(match):
        path, argument = match.groups()
        assert exists(path), f"{path} does not exist; the page gives it as the new name"
        module, name = module_and_name(path)
        shown = f":source:`{name or module} <{path}>`"
        if len(name) > LONG:  # a narrow column cannot break it
            owner, _, member = name.rpartition(".")
            shown = f":source:`{member} <{path}>` of ``{owner}``"
        if argument is None:
            return shown
        found = resolve(path)
        call = found.__init__ if isinstance(found, type) else found
        assert argument in inspect.signature(call).parameters, f"{path} has no {argument}="
        return f"``{argument}=`` of {shown}"

    return re.sub(r"\{([\w.]+)(?:\((\w+)\))?\}", link, new)


def exists(path):
    try:
        resolve(path)
    except (AttributeError, ModuleNotFoundError):
        # set in a method: a live object has it
        owner, _, name = path.rpartition(".")
        if owner != "torchrl.collectors.Collector":
            return False
        collector = make_collector()
        has_it = hasattr(collector, name)
        collector.shutdown()
        return has_it
    return True


def table(*rows):
    assert len({row[0] for row in rows}) == len(rows), "an old name stands twice in one table"
    return {"columns": COLUMNS, "rows": list(rows)}


# -- Small objects to try old names on ---------------------------------------


def make_env():
    return envs.GymEnv("CartPole-v1")


def make_policy():
    return TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["action"])


def make_collector(policy=None, **options):
    return collectors.Collector(
        make_env(),
        policy,
        frames_per_batch=4,
        total_frames=4,
        auto_register_policy_transforms=False,
        **options,
    )


def multi_collector(**options):
    """Never starts a worker: the argument is refused first."""
    return collectors.MultiSyncCollector([make_env], None, frames_per_batch=4, **options)


def with_weights(**options):
    policy = make_policy()
    collector = make_collector(policy)
    try:
        weights = TensorDict.from_module(policy)
        collector.update_policy_weights_(**dict.fromkeys(options, weights))
    finally:
        collector.shutdown()


def make_buffer():
    buffer = data.TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=data.LazyTensorStorage(4), batch_size=2
    )
    buffer.extend(TensorDict(x=torch.zeros(4), batch_size=[4]))
    return buffer


def make_lstm():
    return modules.LSTMModule(input_size=4, hidden_size=2, in_key="observation", out_key="embed")


def make_loss(**options):
    logits = TensorDictModule(torch.nn.Linear(4, 2), in_keys=["observation"], out_keys=["logits"])
    actor = modules.ProbabilisticActor(
        logits, in_keys=["logits"], distribution_class=modules.OneHotCategorical
    )
    critic = modules.ValueOperator(torch.nn.Linear(4, 1), in_keys=["observation"])
    return objectives.ClipPPOLoss(actor, critic, **options)


# -- The tables --------------------------------------------------------------


def collector_names():
    package = "torchrl.collectors"
    distributed = f"{package}.distributed"
    return table(
        gone(f"{package}.SyncDataCollector", f"{package}.Collector"),
        gone(f"{package}.MultiSyncDataCollector", f"{package}.MultiSyncCollector"),
        gone(f"{package}.MultiaSyncDataCollector", f"{package}.MultiAsyncCollector"),
        gone(f"{package}.aSyncDataCollector", f"{package}.AsyncCollector"),
        gone(f"{package}.DataCollectorBase", f"{package}.BaseCollector"),
        gone(f"{package}._MultiDataCollector", f"{package}.MultiCollector"),
        gone(f"{package}.collectors.SyncDataCollector", f"{package}.Collector"),
        gone(f"{package}.collectors.RandomPolicy", f"{package}.RandomPolicy"),
        gone(f"{distributed}.DistributedDataCollector", f"{distributed}.DistributedCollector"),
        gone(
            f"{distributed}.DistributedSyncDataCollector", f"{distributed}.DistributedSyncCollector"
        ),
        gone(f"{distributed}.RPCDataCollector", f"{distributed}.RPCCollector"),
    )


def carrier_names():
    owner = "torchrl.collectors.Collector"
    collector = make_collector()
    assert not [name for name in dir(collector) if "shuttle" in name], "a shuttle is back"
    pairs = {
        "_shuttle": "_carrier",
        "_make_shuttle": "_make_carrier",
        "_shuttle_has_no_device": "_carrier_has_no_device",
        "_make_final_rollout": "_maybe_make_final_rollout",
    }
    rows = []
    for old, new in pairs.items():
        assert not hasattr(collector, old), f"Collector.{old} exists; the page says it is gone"
        rows.append([f"``Collector.{old}``: ``AttributeError``", checked(f"{{{owner}.{new}}}")])
    collector.shutdown()
    return table(*rows)


def collector_arguments():
    owner = "torchrl.collectors.Collector"
    return table(
        ends_in(
            "TypeError",
            "MultiSyncDataCollector(devices=...)",
            lambda: multi_collector(devices="cpu"),
            "{torchrl.collectors.MultiCollector(policy_device)} and ``env_device=``",
        ),
        ends_in(
            "TypeError",
            "MultiSyncDataCollector(passing_devices=...)",
            lambda: multi_collector(passing_devices="cpu"),
            "{torchrl.collectors.MultiCollector(storing_device)}",
        ),
        ends_in(
            "TypeError",
            "MultiSyncDataCollector(storing_devices=...)",
            lambda: multi_collector(storing_devices="cpu"),
            "{torchrl.collectors.MultiCollector(storing_device)}",
        ),
        ends_in(
            "TypeError",
            "Collector(passing_device=...)",
            lambda: make_collector(passing_device="cpu"),
            "{torchrl.collectors.Collector(storing_device)}",
        ),
        ends_in(
            "TypeError",
            "Collector(exploration_mode=...)",
            lambda: make_collector(exploration_mode="random"),
            "{torchrl.collectors.Collector(exploration_type)}, with a value of "
            "{torchrl.envs.ExplorationType}",
        ),
        ends_in(
            "TypeError",
            "Collector(seed=...)",
            lambda: make_collector(seed=0),
            f"{{{owner}.set_seed}}",
        ),
        ends_in(
            "TypeError",
            "Collector(local_init_rb=...)",
            lambda: make_collector(local_init_rb=True),
            "nothing; leave it out",
        ),
        ends_in(
            "ValueError",
            "Collector(reset_when_done=False)",
            lambda: make_collector(reset_when_done=False),
            "nothing; leave it out",
        ),
        ends_in(
            "UserWarning",
            "Collector(split_trajs=True)",
            lambda: make_collector(split_trajs=True).shutdown(),
            "a buffer with {torchrl.data.SliceSampler}, or "
            "{torchrl.collectors.utils.split_trajectories} on the batch",
        ),
        ends_in(
            "DeprecationWarning",
            "update_policy_weights_(policy_weights=...)",
            lambda: with_weights(policy_weights=...),
            f"{{{owner}.update_policy_weights_(policy_or_weights)}}",
        ),
    )


def weight_updaters():
    package, new = "torchrl.collectors", "torchrl.weight_update"

    def updater():
        return collectors.VanillaWeightUpdater(policy_weights=TensorDict())

    def own():
        class Mine(collectors.WeightUpdaterBase):
            pass

    for name in ("VanillaWeightUpdater", "MultiProcessedWeightUpdater", "RayWeightUpdater"):
        assert issubclass(getattr(collectors, name), collectors.WeightUpdaterBase), name
    schemes = "{torchrl.collectors.Collector(weight_sync_schemes)} with a "
    return table(
        gone(f"{package}.LocalWeightUpdaterBase", f"{new}.WeightSyncScheme"),
        gone(f"{package}.RemoteWeightUpdaterBase", f"{new}.WeightSyncScheme"),
        ends_in(
            "DeprecationWarning",
            "class Mine(WeightUpdaterBase)",
            own,
            f"a subclass of {{{new}.WeightSyncScheme}}",
        ),
        ends_in(
            "DeprecationWarning",
            "Collector(weight_updater=...)",
            lambda: make_collector(weight_updater=updater()).shutdown(),
            f"{schemes}{{{new}.SharedMemWeightSyncScheme}}",
        ),
        still(
            "torchrl.collectors.VanillaWeightUpdater",
            "a ``WeightUpdaterBase``, deprecated with it",
            f"{schemes}{{{new}.SharedMemWeightSyncScheme}}",
        ),
        still(
            "torchrl.collectors.MultiProcessedWeightUpdater",
            "a ``WeightUpdaterBase``, deprecated with it",
            f"{schemes}{{{new}.MultiProcessWeightSyncScheme}}",
        ),
        still(
            "torchrl.collectors.RayWeightUpdater",
            "a ``WeightUpdaterBase``, deprecated with it",
            f"{schemes}{{{new}.RayWeightSyncScheme}}",
        ),
    )


def spec_names():
    pairs = {
        "CompositeSpec": "Composite",
        "BoundedTensorSpec": "Bounded",
        "UnboundedContinuousTensorSpec": "Unbounded",
        "UnboundedDiscreteTensorSpec": "Unbounded",
        "DiscreteTensorSpec": "Categorical",
        "OneHotDiscreteTensorSpec": "OneHot",
        "MultiDiscreteTensorSpec": "MultiCategorical",
        "MultiOneHotDiscreteTensorSpec": "MultiOneHot",
        "BinaryDiscreteTensorSpec": "Binary",
        "NonTensorSpec": "NonTensor",
        "LazyStackedTensorSpec": "Stacked",
        "LazyStackedCompositeSpec": "StackedComposite",
    }
    assert data.Bounded(low=-1.0, high=1.0, shape=(1,)).space.low == -1
    assert "full_observation_spec" in make_env().output_spec
    named = (gone(f"torchrl.data.{old}", f"torchrl.data.{new}") for old, new in pairs.items())
    return table(
        *named,
        ends_in(
            "TypeError",
            "BoundedTensorSpec(minimum=..., maximum=...)",
            lambda: data.Bounded(minimum=-1.0, maximum=1.0, shape=(1,)),
            "{torchrl.data.Bounded(low)} and ``high=``",
        ),
        ends_in(
            "AttributeError",
            "spec.space.minimum",
            lambda: data.Bounded(low=-1.0, high=1.0, shape=(1,)).space.minimum,
            "``spec.space.low``",
        ),
        ends_in(
            "KeyError",
            'output_spec["_observation_spec"]',
            lambda: make_env().output_spec["_observation_spec"],
            '``output_spec["full_observation_spec"]``',
        ),
    )


def environment_names():
    assert envs.TransformedEnv(base_env=make_env()).base_env is not None
    rollout = make_env().rollout(2)
    assert {("next", "observation"), ("next", "reward")} <= set(rollout.keys(True))
    return table(
        gone("torchrl.envs.utils.set_exploration_mode", "torchrl.envs.set_exploration_type"),
        gone("torchrl.envs.utils.exploration_mode", "torchrl.envs.exploration_type"),
        gone("torchrl.envs.utils.step_tensordict", "torchrl.envs.step_mdp"),
        gone("torchrl.envs.vec_env", "torchrl.envs.batched_envs"),
        ends_in(
            "DeprecationWarning",
            "import torchrl.envs.vec_envs",
            lambda: importlib.import_module("torchrl.envs.vec_envs"),
            "{torchrl.envs.batched_envs}",
        ),
        gone(
            "torchrl.envs.NextStateReconstructor", "torchrl.envs.transforms.NextStateReconstructor"
        ),
        ends_in(
            "KeyError",
            'tensordict["next_observation"]',
            lambda: rollout["next_observation"],
            '``tensordict["next", "observation"]``',
        ),
        ends_in(
            "KeyError",
            'tensordict["reward"]',
            lambda: rollout["reward"],
            '``tensordict["next", "reward"]``',
        ),
        ends_in(
            "TypeError",
            "TransformedEnv(env=...)",
            lambda: envs.TransformedEnv(env=make_env()),
            "``base_env=`` of {torchrl.envs.TransformedEnv}",
        ),
        ends_in(
            "ValueError",
            "ParallelEnv(pin_memory=True)",
            lambda: envs.ParallelEnv(2, make_env, pin_memory=True),
            "nothing; leave it out",
        ),
        ends_in(
            "ValueError",
            "ParallelEnv(allow_step_when_done=True)",
            lambda: envs.ParallelEnv(2, make_env, allow_step_when_done=True),
            "{torchrl.envs.EnvBase.step_and_maybe_reset}",
        ),
        ends_in(
            "RuntimeError",
            "ObservationNorm(loc, scale)",
            lambda: envs.ObservationNorm(0.0, 1.0),
            "{torchrl.envs.ObservationNorm(in_keys)}",
        ),
        ends_in(
            "FutureWarning",
            "VecNorm(...)",
            lambda: envs.VecNorm(in_keys=["observation"]),
            "{torchrl.envs.VecNormV2}",
        ),
        ends_in(
            "RuntimeError",
            'CatFrames(padding="zeros")',
            lambda: envs.CatFrames(4, -1, in_keys=["observation"], padding="zeros"),
            '``"constant"`` or ``"same"`` as {torchrl.envs.CatFrames(padding)}',
        ),
    )


def buffer_names():
    return table(
        gone("torchrl.data.CompressedStorage", "torchrl.data.CompressedListStorage"),
        gone("torchrl.data.replay_buffers.rb_prototype", "torchrl.data.ReplayBuffer"),
        ends_in(
            "TypeError",
            "SliceSampler(trajectory_key=...)",
            lambda: data.SliceSampler(num_slices=2, trajectory_key="episode"),
            "{torchrl.data.SliceSampler(traj_key)}",
        ),
        ends_in(
            "AttributeError",
            "buffer.update_priorities(...)",  # other libraries say so
            lambda: make_buffer().update_priorities,
            "{torchrl.data.ReplayBuffer.update_priority}, and "
            "{torchrl.data.TensorDictReplayBuffer.update_tensordict_priority}",
        ),
        ends_in(
            "AttributeError",
            "sampler.update_priorities(...)",
            lambda: data.PrioritizedSampler(4, 1.0, 1.0).update_priorities,
            "{torchrl.data.PrioritizedSampler.update_priority}",
        ),
        ends_in(
            "KeyError",
            'sample["_weight"]',
            lambda: make_buffer().sample()["_weight"],
            '``sample["priority_weight"]`` from {torchrl.data.PrioritizedSampler}',
        ),
        ends_in(
            "UserWarning",
            "buffer.sample(include_info=True)",
            lambda: make_buffer().sample(include_info=True),
            "{torchrl.data.ReplayBuffer.sample(return_info)}",
        ),
        ends_in(
            "TypeError",
            "ReplayBuffer(1000)",
            lambda: data.ReplayBuffer(1000),
            "{torchrl.data.ReplayBuffer(storage)}, for example a {torchrl.data.LazyTensorStorage}",
        ),
        ends_in(
            "TypeError",
            "MultiStep(n_steps_max=...)",
            lambda: data.MultiStep(gamma=0.9, n_steps_max=3),
            "{torchrl.data.MultiStep(n_steps)}",
        ),
    )


def module_names():
    switch = "{torchrl.modules.set_recurrent_mode}"
    wrapped = make_policy()
    noise = "torchrl.modules.OrnsteinUhlenbeckProcess"
    return table(
        gone("torchrl.modules.TensorDictModule", "tensordict.nn.TensorDictModule"),
        gone("torchrl.modules.TensorDictSequential", "tensordict.nn.TensorDictSequential"),
        gone(
            "torchrl.modules.ProbabilisticTensorDictModule",
            "tensordict.nn.ProbabilisticTensorDictModule",
        ),
        ends_in(
            "RuntimeError",
            "LSTMModule.set_recurrent_mode()",
            lambda: make_lstm().set_recurrent_mode(True),
            f"the context {switch}, or {{torchrl.modules.LSTMModule(default_recurrent_mode)}}",
        ),
        ends_in(
            "RuntimeError",
            "lstm.temporal_mode",
            lambda: make_lstm().temporal_mode,
            "{torchrl.modules.LSTMModule.recurrent_mode}",
        ),
        ends_in(
            "RuntimeError",
            "lstm.recurrent_mode = True",
            lambda: setattr(make_lstm(), "recurrent_mode", True),
            f"the context {switch}",
        ),
        ends_in(
            "RuntimeError",
            "EGreedyWrapper(policy)",
            lambda: modules.EGreedyWrapper(wrapped),
            "{torchrl.modules.EGreedyModule} behind the policy",
        ),
        ends_in(
            "RuntimeError",
            "AdditiveGaussianWrapper(policy)",
            lambda: modules.AdditiveGaussianWrapper(wrapped),
            "{torchrl.modules.AdditiveGaussianModule} behind the policy",
        ),
        ends_in(
            "RuntimeError",
            "OrnsteinUhlenbeckProcessWrapper(policy)",
            lambda: modules.OrnsteinUhlenbeckProcessWrapper(wrapped),
            f"{{{noise}Module}} behind the policy",
        ),
        ends_in(
            "RuntimeError",
            "NormalParamWrapper(network)",
            lambda: modules.NormalParamWrapper(torch.nn.Linear(2, 2)),
            "{tensordict.nn.NormalParamExtractor} as the last layer",
        ),
        ends_in(
            "TypeError",
            "TanhNormal(min=..., max=...)",
            lambda: modules.TanhNormal(torch.zeros(1), torch.ones(1), min=-1.0, max=1.0),
            "{torchrl.modules.TanhNormal(low)} and ``high=``",
        ),
        ends_in(
            "TypeError",
            "ProbabilisticActor(default_interaction_mode=...)",
            lambda: modules.ProbabilisticActor(
                wrapped, in_keys=["logits"], default_interaction_mode="random"
            ),
            "{torchrl.modules.SafeProbabilisticModule(default_interaction_type)}",
        ),
        ends_in(
            "RuntimeError",
            "QValueActor(action_space=spec)",
            lambda: modules.QValueActor(torch.nn.Linear(4, 2), action_space=data.OneHot(2)),
            "{torchrl.modules.QValueActor(spec)}",
        ),
    )


def loss_names():
    keys = "{torchrl.objectives.LossModule.set_keys} with the short name, as in "
    estimator_keys = "{torchrl.objectives.value.ValueEstimatorBase.set_keys} with the short name, "
    return table(
        ends_in(
            "TypeError",
            "ClipPPOLoss(entropy_coef=...)",
            lambda: make_loss(entropy_coef=0.1),
            "{torchrl.objectives.ClipPPOLoss(entropy_coeff)}",
        ),
        ends_in(
            "TypeError",
            "ClipPPOLoss(critic_coef=...)",
            lambda: make_loss(critic_coef=0.1),
            "{torchrl.objectives.ClipPPOLoss(critic_coeff)}",
        ),
        ends_in(
            "TypeError",
            "ClipPPOLoss(gamma=...)",
            lambda: make_loss(gamma=0.9),
            "{torchrl.objectives.LossModule.make_value_estimator}",
        ),
        ends_in(
            "RuntimeError",
            "ClipPPOLoss(advantage_key=...)",
            lambda: make_loss(advantage_key="a"),
            f'{keys}``loss.set_keys(advantage="a")``',
        ),
        ends_in(
            "ValueError",
            "loss.set_keys(advantage_key=...)",
            lambda: make_loss().set_keys(advantage_key="a"),
            f'{keys}``loss.set_keys(advantage="a")``',
        ),
        ends_in(
            "RuntimeError",
            "GAE(value_key=...)",
            lambda: GAE(gamma=0.9, lmbda=0.9, value_network=None, value_key="v"),
            f'{estimator_keys}``gae.set_keys(value="v")``',
        ),
        ends_in(
            "TypeError",
            "GAE(gradient_mode=...)",
            lambda: GAE(gamma=0.9, lmbda=0.9, value_network=None, gradient_mode=True),
            "{torchrl.objectives.value.GAE(differentiable)}",
        ),
        ends_in(
            "RecursionError",
            "TD0Estimate(...)",
            lambda: objectives.value.TD0Estimate(gamma=0.9, value_network=None),
            "{torchrl.objectives.value.TD0Estimator}",
        ),
        ends_in(
            "RecursionError",
            "TD1Estimate(...)",
            lambda: objectives.value.TD1Estimate(gamma=0.9, value_network=None),
            "{torchrl.objectives.value.TD1Estimator}",
        ),
        ends_in(
            "RecursionError",
            "TDLambdaEstimate(...)",
            lambda: objectives.value.TDLambdaEstimate(gamma=0.9, lmbda=0.9, value_network=None),
            "{torchrl.objectives.value.TDLambdaEstimator}",
        ),
        ends_in(
            "RuntimeError",
            "SoftUpdate(loss)",
            lambda: objectives.SoftUpdate(make_target_loss()),
            "{torchrl.objectives.SoftUpdate(eps)}, or ``tau=``",
        ),
        gone("torchrl.objectives.costs", "torchrl.objectives"),
    )


def make_target_loss():
    actor = modules.QValueActor(
        torch.nn.Linear(4, 2), in_keys=["observation"], action_space="one_hot"
    )
    return objectives.DQNLoss(actor, action_space="one_hot", delay_value=True)


def tensordict_names():
    rollout = TensorDict(x=torch.zeros(2), batch_size=[2])
    functional = "{tensordict.TensorDict.from_module}, and ``with params.to_module(module):``"
    module, plain = torch.nn.Linear(1, 1), torch.ones(1, 1)
    params = TensorDict.from_module(module).apply(torch.zeros_like)
    with params.to_module(module):
        assert module(plain).item() == 0
    assert module(plain).item() != 0
    return table(
        gone("torchrl.data.TensorDict", "tensordict.TensorDict"),
        gone("torchrl.data.tensordict", "tensordict"),
        gone("tensordict.MemmapTensor", "tensordict.MemoryMappedTensor"),
        gone("tensordict.nn.set_interaction_mode", "tensordict.nn.set_interaction_type"),
        gone(
            "tensordict.nn.probabilistic.interaction_mode",
            "tensordict.nn.probabilistic.interaction_type",
        ),
        *(
            ends_in(
                "RuntimeError",
                f"{name}(module)",
                lambda name=name: getattr(importlib.import_module("tensordict.nn"), name)(
                    *[make_policy(), rollout][: 1 + (name == "repopulate_module")]
                ),
                functional,
            )
            for name in ("make_functional", "get_functional", "repopulate_module")
        ),
        ends_in(
            "AttributeError",
            "tensordict.rename_key(...)",
            lambda: rollout.rename_key("x", "y"),
            "{tensordict.TensorDict.rename_key_}",
        ),
    )


def still_there():
    batch = make_env().rollout(2)
    assert make_loss().vmap_randomness in ("error", "same", "different")
    ids = torch.zeros(2, dtype=torch.long)
    split = collectors.utils.split_trajectories(batch.set("episode", ids), trajectory_key="episode")
    assert split.shape == (1, 2)
    assert "create_env_fn" in collectors.Collector.__init__.__annotations__
    assert not [name for name in dir(collectors.collectors) if "DataCollector" in name]
    return {
        "columns": ["Name", "Where"],
        "rows": [
            still(
                "torchrl.collectors.collectors",
                "a module that re-exports the new class names",
                "{torchrl.collectors.collectors}",
            ),
            still("torchrl.data.postprocs.MultiStep", "", "{torchrl.data.MultiStep}"),
            still("torchrl.envs.NoopResetEnv", "", "{torchrl.envs.NoopResetEnv}"),
            still("torchrl.envs.libs.gym.GymEnv", "", "{torchrl.envs.GymEnv}"),
            still("torchrl.envs.utils.step_mdp", "", "{torchrl.envs.step_mdp}"),
            still(
                "torchrl.envs.utils.set_exploration_type",
                "",
                "{torchrl.envs.set_exploration_type}",
            ),
            still(
                "torchrl.objectives.LossModule.vmap_randomness",
                "",
                "{torchrl.objectives.LossModule.vmap_randomness}",
            ),
            [
                "``split_trajectories(trajectory_key=...)``: not the sampler's ``traj_key``",
                checked("{torchrl.collectors.utils.split_trajectories}"),
            ],
            ["``Collector(create_env_fn=...)``", checked("{torchrl.collectors.Collector}")],
            still("tensordict.tensordict.TensorDictBase", "", "{tensordict.TensorDictBase}"),
        ],
    }


def main():
    print(
        json.dumps(
            {
                "collectors": collector_names(),
                "carrier": carrier_names(),
                "arguments": collector_arguments(),
                "weights": weight_updaters(),
                "specs": spec_names(),
                "environments": environment_names(),
                "buffers": buffer_names(),
                "modules": module_names(),
                "losses": loss_names(),
                "tensordict": tensordict_names(),
                "still": still_there(),
            }
        )
    )


if __name__ == "__main__":
    main()
