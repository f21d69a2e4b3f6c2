"""The card of a symptom's page: what of a fix gets a copy button."""

import pytest

from docs._ext.symptoms.card import can_be_pasted

PASTED = {
    "batch.clone()": True,
    "compact_obs=True": True,
    "env.action_spec_unbatched": True,
    "with set_recurrent_mode(True):": True,
    "td[key] = td[key] * 100": True,
    "LazyTensorStorage": False,
    "ReplayBuffer(..., batch_size=32)": False,
    '("next", "done")': False,
    "float32": False,
    "python -c": False,
}


@pytest.mark.parametrize("text", PASTED)
def test_code_that_is_whole_and_more_than_a_name_can_be_pasted(text):
    assert can_be_pasted(text) is PASTED[text]
