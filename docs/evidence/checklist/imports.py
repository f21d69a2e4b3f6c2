"""The import table of docs/performance/checklist.rst: every line of it is executed.

Names that torchrl keeps for a while beside new ones are imported as well, and the table says what
they are.
"""

import importlib
import json
import os
import warnings

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")

import torchrl

# Where the imports stand, in the order of the section's pages: module, names, page.
IMPORTS = (
    ("torchrl", "timeit set_profiling_enabled", "profiling"),
    ("torchrl.collectors", "ProfileConfig", "profiling"),
    (
        "torchrl.collectors",
        "Collector MultiSyncCollector MultiAsyncCollector AsyncBatchedCollector",
        "collectors",
    ),
    ("torchrl.collectors.distributed", "RayCollector", "collectors"),
    (
        "torchrl.weight_update",
        "SharedMemWeightSyncScheme MultiProcessWeightSyncScheme RayWeightSyncScheme",
        "weight_sync",
    ),
    (
        "torchrl.modules.inference_server",
        "InferenceServer InferenceServerConfig ProcessInferenceServer",
        "weight_sync",
    ),
    ("torchrl.envs", "GymEnv GymWrapper SerialEnv ParallelEnv EnvCreator", "environments"),
    ("torchrl.envs", "StepCounter RewardSum ToTensorImage VecNormV2", "environments"),
    (
        "torchrl.data",
        "ReplayBuffer TensorDictReplayBuffer TensorDictPrioritizedReplayBuffer",
        "replay_buffers",
    ),
    (
        "torchrl.data",
        "LazyTensorStorage LazyMemmapStorage ListStorage CompressedListStorage",
        "replay_buffers",
    ),
    (
        "torchrl.data",
        "RandomSampler SamplerWithoutReplacement SliceSampler PrioritizedSampler",
        "replay_buffers",
    ),
    (
        "torchrl.data",
        "SliceSamplerWithoutReplacement PrioritizedSliceSampler",
        "replay_buffers",
    ),
    (
        "torchrl.data",
        "RoundRobinWriter TensorDictRoundRobinWriter TensorDictMaxValueWriter",
        "replay_buffers",
    ),
    ("torchrl.modules", "LSTMModule GRUModule set_recurrent_mode", "recurrent"),
    ("torchrl.modules", "set_recurrent_matmul_precision", "recurrent"),
    ("torchrl.envs", "InitTracker TensorDictPrimer", "recurrent"),
    ("torchrl.collectors.utils", "split_trajectories", "recurrent"),
    (
        "torchrl.objectives.value",
        "GAE MultiAgentGAE TD0Estimator TD1Estimator TDLambdaEstimator VTrace",
        "advantages_and_losses",
    ),
    (
        "torchrl.objectives.value.functional",
        "generalized_advantage_estimate vec_generalized_advantage_estimate",
        "advantages_and_losses",
    ),
    (
        "torchrl.objectives.value.functional",
        "td_lambda_return_estimate vec_td_lambda_return_estimate",
        "advantages_and_losses",
    ),
    ("torchrl.objectives", "ClipPPOLoss A2CLoss SACLoss DQNLoss", "advantages_and_losses"),
    ("torchrl.envs.transforms", "MultiStepTransform", "advantages_and_losses"),
    ("torchrl", "compile_with_warmup", "compile"),
    ("tensordict.nn", "CudaGraphModule", "compile"),
    ("torchrl.modules.models.model_based", "RSSMRollout", "compile"),
    ("torchrl.modules", "ProbabilisticActor ValueOperator ActorValueOperator", "networks"),
    ("torchrl.objectives", "SoftUpdate HardUpdate", "networks"),
    ("torchrl.modules", "OneHotCategorical TanhNormal MultiAgentMLP", "networks"),
    ("torchrl.envs", "set_exploration_type", "networks"),
    ("tensordict.nn", "set_interaction_type InteractionType", "networks"),
)
# What guides written for older versions import: name, module, what to import today.
OLD = (
    ("SyncDataCollector", "torchrl.collectors", "Collector"),
    ("MultiSyncDataCollector", "torchrl.collectors", "MultiSyncCollector"),
    ("MultiaSyncDataCollector", "torchrl.collectors", "MultiAsyncCollector"),
    ("aSyncDataCollector", "torchrl.collectors", "AsyncCollector"),
)


def main():
    rows = []
    for module, names, page in IMPORTS:
        found = importlib.import_module(module)
        for name in names.split():
            assert hasattr(found, name), f"{module} has no {name}"
        exec(f"from {module} import {', '.join(names.split())}", {})
        written = ", ".join(f"``{name}``" for name in names.split())
        rows.append([f"``{module}``", written, f":doc:`/performance/{page}`"])
    return {
        "table": {"columns": ["From", "Import", "Page"], "rows": rows},
        "version": torchrl.__version__,
        "old": {"columns": ["Old name", "Import today", "The old name"], "rows": old_names()},
    }


def old_names():
    rows = []
    for name, module, today in OLD:
        found = importlib.import_module(module)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            old = getattr(found, name, None)
        new = getattr(found, today)
        state = "gone" if old is None else "the same class" if old is new else "a subclass"
        if state == "a subclass":
            assert issubclass(old, new), (old, new)
        rows.append([f"``{name}``", f"``from {module} import {today}``", state])
    return rows


if __name__ == "__main__":
    print(json.dumps(main()))
