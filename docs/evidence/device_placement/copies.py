"""What TensorDict's copies ask for and wait for, for docs/performance/device_placement.rst.

This runs without an accelerator. That CUDA is visible is simulated by patching the functions that
ask for it; a copy to ``cuda:0`` is recorded and not made. Which argument each tensor's ``.to``
gets, and whether a wait follows, is what tensordict does.
"""

import contextlib
import json
import sys
from unittest import mock

import torch
from tensordict import TensorDict
from torch.overrides import TorchFunctionMode

ENTRIES = 3


class Copies(TorchFunctionMode):
    """Notes ``non_blocking`` of each ``Tensor.to`` that names a device; stubs those to CUDA."""

    def __init__(self):
        self.asked = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is not torch.Tensor.to or kwargs.get("device") is None:
            return func(*args, **kwargs)
        self.asked.append(bool(kwargs.get("non_blocking")))
        if torch.device(kwargs["device"]).type == "cuda":
            return args[0].clone()
        return func(*args, **kwargs)


@contextlib.contextmanager
def watched():
    """Yield the copies and the waits while torch seems to see CUDA, and to have used it."""
    copies, waits = Copies(), []
    with (
        mock.patch("torch.cuda.is_available", return_value=True),
        mock.patch("torch.cuda.is_initialized", return_value=True),
        mock.patch("torch.cuda.synchronize", side_effect=lambda *args: waits.append("device")),
        mock.patch(
            "tensordict.base._sync_cuda_transfer", side_effect=lambda *args: waits.append("event")
        ),
        copies,
    ):
        yield copies.asked, waits


def entries():
    return {str(n): torch.zeros(2) for n in range(ENTRIES)}


CALLS = {
    '``.to("cpu")``': lambda data: data.to("cpu"),
    '``.to("cpu", non_blocking=True)``': lambda data: data.to("cpu", non_blocking=True),
    '``.to("cpu", non_blocking=False)``': lambda data: data.to("cpu", non_blocking=False),
    "``.cpu()``": lambda data: data.cpu(),
    '``.to("cuda:0")``': lambda data: data.to("cuda:0"),
    '``.to("cuda:0", non_blocking=True)``': lambda data: data.to("cuda:0", non_blocking=True),
    '``.to("cuda:0", non_blocking=False)``': lambda data: data.to("cuda:0", non_blocking=False),
}
# call: (the copies do not block, waits after them)
EXPECTED = {
    '``.to("cpu")``': (True, ["event"]),
    '``.to("cpu", non_blocking=True)``': (True, []),
    '``.to("cpu", non_blocking=False)``': (False, []),
    "``.cpu()``": (True, ["event"]),
    '``.to("cuda:0")``': (True, []),
    '``.to("cuda:0", non_blocking=True)``': (True, []),
    '``.to("cuda:0", non_blocking=False)``': (False, []),
}


def table():
    rows = []
    for call, make in CALLS.items():
        data = TensorDict(entries())
        with watched() as (asked, waits):
            make(data)
        assert len(asked) == ENTRIES, f"{call} does not copy each entry once: {asked}"
        assert (asked[0], waits) == EXPECTED[call], f"{call}: {asked}, {waits}"
        assert len(set(asked)) == 1, f"{call} copies entries in different ways"
        rows.append([call, "no" if asked[0] else "each", "one, for an event" if waits else "none"])
    return {"columns": ["Call", "Copies block", "Waits after them"], "rows": rows}


def there_already():
    """Waits of a ``.to("cpu")`` of entries on the CPU, by the device of the TensorDict."""
    found = {}
    for device in (None, "cpu"):
        with watched() as (_, waits):
            TensorDict(entries(), device=device).to("cpu")
        found[device] = len(waits)
    assert found == {None: 1, "cpu": 0}, f"the wait depends on something else: {found}"
    return found[None]


if __name__ == "__main__":
    json.dump({"copies": table(), "without_a_copy": there_already()}, sys.stdout)
