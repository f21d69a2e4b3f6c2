"""What the advantage estimators run, for docs/performance/advantages_and_losses.rst.

The paths are told apart by counting: which functional form was called, how often the critic, with
how many rows, and whether a table of T x T discounts was made.
"""

import json
import os
import warnings
from contextlib import ExitStack
from unittest import mock

os.environ.setdefault("RL_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("RL_WARNINGS", "False")  # shifted=True logs that time is the last dimension

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.modules import MLP, OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.utils import ValueEstimators
from torchrl.objectives.value import (
    GAE,
    MultiAgentGAE,
    TD1Estimator,
    TDLambdaEstimator,
    advantages,
    functional,
)

BATCH, STEPS, AGENTS = 2, 12, 3
GAMMA, LMBDA = 0.99, 0.95
# The functional forms that the estimators call, by the name they have there.
FORMS = {
    "generalized_advantage_estimate": "loop",
    "vec_generalized_advantage_estimate": "vectorized",
    "td_lambda_return_estimate": "loop",
    "vec_td_lambda_return_estimate": "vectorized",
    "vec_td1_return_estimate": "vectorized",
}
TABLE = "T x T table"


def make_batch(agents=None):
    """Trajectories; with *agents*, each has its observation, and all share reward and ends."""
    torch.manual_seed(0)
    shape = (BATCH, STEPS)
    seen = torch.randn(BATCH, STEPS + 1, *((agents,) if agents else ()), 4)
    done = torch.zeros(*shape, 1, dtype=torch.bool)
    done[:, 4] = True
    ends = {"done": done, "terminated": done.clone(), "reward": torch.randn(*shape, 1)}
    now, then = ({"observation": part} for part in (seen[:, :-1], seen[:, 1:]))
    if agents:
        now, then = {"agents": now}, {"agents": then}
    return TensorDict({**now, "next": {**then, **ends}}, shape)


def make_critic(in_key="observation", out_key="state_value"):
    torch.manual_seed(0)
    return ValueOperator(MLP(4, 1, num_cells=(8,)), in_keys=[in_key], out_keys=[out_key])


def forms_called(call):
    """The kinds of functional forms that *call* uses."""
    used = []

    def watch(name):
        form = getattr(advantages, name)

        def watched(*args, **kwargs):
            used.append(FORMS[name])
            return form(*args, **kwargs)

        return watched

    with ExitStack() as stack:
        for name in FORMS:
            stack.enter_context(mock.patch.object(advantages, name, watch(name)))
        call()
    return used


def defaults_table():
    critic, batch = make_critic(), make_batch()
    both = {"gamma": GAMMA, "lmbda": LMBDA, "value_network": critic}
    loss = ClipPPOLoss(make_actor(), critic)
    loss.make_value_estimator(ValueEstimators.GAE, gamma=GAMMA, lmbda=LMBDA)
    calls = {
        "``GAE(...)(batch)``": (GAE(**both), "loop"),
        "``GAE(vectorized=True)(batch)``": (GAE(**both, vectorized=True), "vectorized"),
        "``GAE(...).value_estimate(batch)``": (GAE(**both).value_estimate, "vectorized"),
        "``MultiAgentGAE(...)(batch)``": (MultiAgentGAE(**both), "loop"),
        "``ClipPPOLoss.value_estimator(batch)``": (loss.value_estimator, "loop"),
        "``TDLambdaEstimator(...)(batch)``": (TDLambdaEstimator(**both), "vectorized"),
        "``TDLambdaEstimator(vectorized=False)(batch)``": (
            TDLambdaEstimator(**both, vectorized=False),
            "loop",
        ),
        "``TD1Estimator(...)(batch)``": (
            TD1Estimator(gamma=GAMMA, value_network=critic),
            "vectorized",
        ),
    }
    rows = []
    for said, (call, expected) in calls.items():
        (used,) = set(forms_called(lambda call=call: call(batch.clone())))
        assert used == expected, (said, used)
        rows.append([said, used])
    return {"columns": ["Call", "What runs"], "rows": rows}


def gamma_table():
    """Which values of gamma make the vectorized form build a table of T x T discounts."""
    batch = make_batch()
    steps = torch.full((BATCH, STEPS, 1), 3)
    with_steps = batch.clone().set("steps_to_next_obs", steps)
    full = torch.full((BATCH, STEPS, 1), GAMMA)
    cases = {
        "a number": (GAMMA, batch, False),
        "``torch.tensor(0.99)``": (torch.tensor(GAMMA), batch, False),
        "``torch.tensor([0.99])``": (torch.tensor([GAMMA]), batch, False),
        "one for each step": (full, batch, True),
        "a number, and ``steps_to_next_obs`` in the batch": (GAMMA, with_steps, True),
    }
    rows = []
    for said, (gamma, data, expected) in cases.items():
        found = []
        for kind in (GAE, TDLambdaEstimator):
            estimator = kind(gamma=gamma, lmbda=LMBDA, value_network=make_critic(), vectorized=True)
            with mock.patch.object(
                functional, "_make_gammas_tensor", wraps=functional._make_gammas_tensor
            ) as made:
                estimator(data.clone())
            assert made.called == expected, (said, kind)
            found.append(TABLE if made.called else "one filter")
        rows.append([said, *found])
    return {"columns": ["Gamma", "GAE", "TD(lambda)"], "rows": rows}


def critic_calls(call, critic):
    """The shapes of the observations that the critic's network saw."""
    shapes = []
    handle = critic.module.register_forward_pre_hook(
        lambda _, inputs: shapes.append(tuple(inputs[0].shape))
    )
    call()
    handle.remove()
    return shapes


def calls_table():
    """How often the critic runs, and over what."""
    batch, rows = make_batch(), []
    full = (BATCH, STEPS, 4)
    ready = batch.clone()
    GAE(gamma=GAMMA, lmbda=LMBDA, value_network=make_critic())(ready)
    changed = ready.clone()
    changed["state_value"].fill_(7.0)
    expected = {
        "default": ({}, batch, [full]),
        "``deactivate_vmap=True``": ({"deactivate_vmap": True}, batch, [full, full]),
        "``shifted=True``": ({"shifted": True}, batch, [(BATCH, STEPS + 1, 4)]),
        "``num_chunks=2``": ({"num_chunks": 2}, batch, 4 * [(BATCH // 2, STEPS, 4)]),
        "values in the batch": ({}, ready, [full]),
        "values in the batch, ``skip_existing=True``": ({"skip_existing": True}, ready, []),
    }
    for said, (options, data, wanted) in expected.items():
        critic = make_critic()
        gae = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic, **options)
        shapes = critic_calls(lambda gae=gae, data=data: gae(data.clone()), critic)
        rows.append([said, str(len(shapes)), ", ".join(map(str, dict.fromkeys(shapes))) or "-"])
        assert shapes == wanted, (said, shapes)
    return {"columns": ["Option of GAE", "Calls of the critic", "Observations"], "rows": rows}


def make_actor():
    network = MLP(4, 2, num_cells=(8,))
    return ProbabilisticActor(
        TensorDictModule(network, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=OneHotCategorical,
        return_log_prob=True,
    )


def gradient_table():
    """Whether the advantages hold a graph, by who made the estimator."""
    critic, rows = make_critic(), []
    loss = ClipPPOLoss(make_actor(), critic)
    loss.make_value_estimator(ValueEstimators.GAE, gamma=GAMMA, lmbda=LMBDA)
    plain = GAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic)

    def without_grad():
        with torch.no_grad():
            return loss.value_estimator(make_batch())

    cases = {
        "``GAE(...)``": (lambda: plain(make_batch()), False),
        "``loss.value_estimator``": (lambda: loss.value_estimator(make_batch()), True),
        "``loss.value_estimator`` under ``torch.no_grad()``": (without_grad, True),
    }
    for said, (call, _) in cases.items():
        result = call()
        rows.append(
            [said, *(f"``{result[key].requires_grad}``" for key in ("advantage", "value_target"))]
        )
    return {"columns": ["Estimator", "advantage", "value_target"], "rows": rows}


# -- Multi-agent -----------------------------------------------------------------


def multi_agent_table():
    rows = []
    for kind in (GAE, MultiAgentGAE):
        for out_key in ("state_value", ("agents", "state_value")):
            for named in (False, True) if isinstance(out_key, tuple) else (False,):
                critic = make_critic(("agents", "observation"), out_key)
                estimator = kind(gamma=GAMMA, lmbda=LMBDA, value_network=critic)
                if named:
                    estimator.set_keys(value=out_key)
                rows.append(
                    [
                        f"``{kind.__name__}``",
                        f"``{json.dumps(out_key)}``",
                        "``set_keys``" if named else "-",
                        outcome(estimator),
                    ]
                )
    return {"columns": ["Estimator", "The critic writes", "Call before", "Result"], "rows": rows}


def outcome(estimator):
    try:
        result = estimator(make_batch(AGENTS))
    except (RuntimeError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return f"advantage of shape ``{tuple(result['advantage'].shape)}``"


def named_value():
    """The whole of the way that works, as the page shows it."""
    critic = make_critic(("agents", "observation"), ("agents", "state_value"))
    estimator = MultiAgentGAE(gamma=GAMMA, lmbda=LMBDA, value_network=critic)
    estimator.set_keys(value=("agents", "state_value"))
    batch = estimator(make_batch(AGENTS))
    assert batch["advantage"].shape == (BATCH, STEPS, AGENTS, 1)
    return batch


def main():
    return {
        "defaults": defaults_table(),
        "gamma": gamma_table(),
        "calls": calls_table(),
        "gradient": gradient_table(),
        "multi-agent": multi_agent_table(),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # TDLambdaEstimator copies a gamma that is a tensor already.
        warnings.filterwarnings("ignore", message="To copy construct from a tensor")
        print(json.dumps(main()))
