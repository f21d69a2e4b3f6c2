"""Where the recurrent mode arrives and where it does not; what the page says beside its tables."""

import pytest
from torchrl.modules import GRUModule, LSTMModule, recurrent_mode, set_recurrent_mode
from torchrl.modules.tensordict_module.rnn import recurrent_mode_state_manager

from tests.support.claims import guards
from tests.support.evidence_module import load_evidence

RUN = load_evidence("recurrent_mode/situations")


@pytest.fixture(autouse=True)
def _mode_is_unset():
    """No test may hand its mode to the next one."""
    assert recurrent_mode() is None
    yield
    RUN.forget()


# -- In and beside the block -------------------------------------------------


@pytest.mark.parametrize("mode", [True, False])
def test_in_the_block_a_collector_of_two_environments_carries_no_state(mode):
    _, carried = RUN.collecting(2, mode)
    assert (carried.tolist() == [[False, True, True, True]] * 2) == (not mode)


@guards("compiled-mode-any-thread")
def test_compiled_code_sees_the_block_of_another_thread():
    eager, compiled = RUN.compiled_beside_a_thread()
    assert (eager, compiled) == (None, True)
    assert recurrent_mode_state_manager._mode is None


# -- Who sets it -------------------------------------------------------------


def trains_through_time(mode):
    reached, steps = RUN.reach(mode)
    assert reached == steps, f"the gradient reaches {reached} of {steps} steps"


@guards("gradient-ends-at-state", "plain-loss-no-mode")
def test_a_loss_without_block_does_not_train_through_time():
    trains_through_time(True)
    for forgotten in (None, False):
        with pytest.raises(AssertionError, match="the gradient reaches 1 of"):
            trains_through_time(forgotten)


@pytest.fixture(scope="module")
def agent():
    return RUN.Agent()


@pytest.fixture(scope="module")
def batch(agent):
    return agent.collect()


def direct(agent, name):
    """A call that no loss wraps."""
    if name == "loss_critic":
        return agent.loss.loss_critic
    if name == "policy":
        return agent.actor
    lam = {} if name == "TD0Estimator" else {"lmbda": 0.95}
    return RUN.estimator(getattr(RUN, name), agent.critic, **lam)


@pytest.mark.parametrize(
    "name", ["GAE", "TDLambdaEstimator", "TD0Estimator", "loss_critic", "policy"]
)
@guards("who-sets-mode", "wrapped-by-name")
def test_a_direct_call_needs_a_block(agent, batch, name):
    call = direct(agent, name)

    def replays():
        assert agent.seen(lambda: call(batch.clone())) is True, "the LSTM takes single steps"

    with set_recurrent_mode(True):
        replays()
    with pytest.raises(AssertionError, match="single steps"):
        replays()


@guards("loss-methods-wrapped", "loss-prefix-unwrapped")
def test_names_decide():
    wrapped = [name for name in vars(RUN.Named) if RUN.is_wrapped(getattr(RUN.Named, name))]
    assert wrapped == ["forward", "my_loss"]
    assert {name.split(".")[1][:5] for name in RUN.unwrapped_methods()} == {"loss_"}


# -- Prose -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LSTMModule, GRUModule])
@guards("mode-none-default", "recurrent-mode-default")
def test_none_leaves_it_to_the_module(kind):
    keys = {"in_key": "observation", "out_key": "features"}
    plain, sequences = kind(4, 8, **keys), kind(4, 8, **keys, default_recurrent_mode=True)
    assert (plain.recurrent_mode, sequences.recurrent_mode) == (False, True)
    for mode in (True, False):
        with set_recurrent_mode(mode):
            assert plain.recurrent_mode is sequences.recurrent_mode is mode


@guards("mode-restored-from-field")
def test_the_instance_holds_what_it_restores():
    block = set_recurrent_mode(True)
    with set_recurrent_mode(False), block:
        assert block.prev is False


@guards("mode-context-variable", "tasks-copy-mode", "compiled-mode-global")
def test_two_variables():
    recurrent_mode_state_manager._context_mode.set(True)
    assert recurrent_mode() is True
    assert RUN.compiled_mode() is None
    RUN.forget()
    recurrent_mode_state_manager._mode = True
    assert recurrent_mode() is None
    assert RUN.compiled_mode() is True
