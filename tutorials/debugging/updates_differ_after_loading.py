"""
Updates differ after a checkpoint is loaded
===========================================

You resume a run. The weights and the moments of the optimizer equal those that you saved. Even so,
the first update is not the one that the run would have made without the interruption.

:Subsystem: memory and storage
:Effect: silent
:Cause: On the CPU, an optimizer with ``fused=True`` pairs weights and moments by their position in
   memory. By default, ``Checkpoint`` saves the moments in the order of their indices. Weights in
   ``channels_last`` have another order in memory.
:Fix: Save the optimizer with ``torch.save``, which keeps the order:
   ``checkpoint.register("optimizer", optimizer,
   adapter=StateDictCheckpointAdapter(payload_format="torch"))``.
:Source: :source:`torchrl.checkpoint.StateDictCheckpointAdapter.save`
:Behind it: :doc:`/how-to/save_and_resume`
:Threads: none found
:Also called: fused Adam, fused=True, channels_last, memory_format, strides of exp_avg, loss differs
   after resuming, resumed run is not reproducible, wrong Adam moments after loading, AdamW, Adagrad
"""

# %%
# Break it
# --------
#
# One run goes on, and another one continues from its checkpoint.
#
# .. fold:: Imports, and an update

import tempfile

import torch
from torchrl.checkpoint import Checkpoint, StateDictCheckpointAdapter

torch.manual_seed(0)
LR, UPDATES_BEFORE_SAVE = 1e-3, 10
pixels = torch.rand(8, 3, 6, 6)


def update(network, optimizer):
    optimizer.zero_grad()
    network(pixels).square().sum().backward()
    optimizer.step()


# %%


def make_run(adapter, kind=torch.optim.Adam, **options):
    network = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = kind(network.parameters(), lr=LR, fused=True, **options)
    checkpoint = Checkpoint(network=network)
    checkpoint.register("optimizer", optimizer, adapter=adapter)
    return network, optimizer, checkpoint


def save_and_load(adapter=None, **options):
    network, optimizer, checkpoint = make_run(adapter, **options)
    for _ in range(UPDATES_BEFORE_SAVE):
        update(network, optimizer)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(f"{folder}/save")
        resumed, its_optimizer, checkpoint = make_run(adapter, **options)
        checkpoint.load(f"{folder}/save")
    assert torch.equal(resumed.weight, network.weight)
    return (network, optimizer), (resumed, its_optimizer)


def difference(goes_on, resumed):
    """The largest difference between weights after one more update."""
    update(*goes_on)
    update(*resumed)
    return (goes_on[0].weight - resumed[0].weight).abs().max().item()


goes_on, resumed = save_and_load()
broken = {"optimizer": resumed[1]}

# %%
# Check it
# --------
#
# Compare the strides of the weights with those of their moments: they give the order in memory.


def check(weight, optimizer):
    moments = optimizer.state[weight]["exp_avg"]
    return {"weight": weight.stride(), "moments": moments.stride()}


unhealthy = check(resumed[0].weight, broken["optimizer"])
print(unhealthy)
assert unhealthy["weight"] != unhealthy["moments"], (
    "no longer reproduces: the order in memory is kept"
)

# %%
# The moments themselves are equal, so a comparison of the states finds nothing. One update later,
# the weights differ:

moments = [side[1].state[side[0].weight]["exp_avg"] for side in (goes_on, resumed)]
assert torch.equal(*moments)
too_far = difference(goes_on, resumed)
print(f"weights differ by up to {too_far / LR:.1f} learning rates")
assert too_far > LR / 10, "no longer reproduces: the updates are equal"

# %%
# ``AdamW``, ``Adagrad`` and ``SGD`` with momentum go wrong as well if they are fused:

momentum = {"kind": torch.optim.SGD, "momentum": 0.9}
for options in ({"kind": torch.optim.AdamW}, {"kind": torch.optim.Adagrad}, momentum):
    assert difference(*save_and_load(**options)) > 0, "no longer reproduces"

# %%
# Fix it
# ------

goes_on, resumed = save_and_load(StateDictCheckpointAdapter(payload_format="torch"))
fixed = {"optimizer": resumed[1]}
healthy = check(resumed[0].weight, fixed["optimizer"])
print(healthy)
assert healthy["weight"] == healthy["moments"], "the fix does not work"
assert difference(goes_on, resumed) == 0, "the fix does not work"

# %%
# If you already have a checkpoint, put its moments in order directly after loading, before the
# first update:


def match_memory(optimizer):
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if value.shape == weight.shape:
                state[name] = torch.empty_like(weight).copy_(value)


goes_on, resumed = save_and_load()
match_memory(resumed[1])
assert difference(goes_on, resumed) == 0, "the fix does not work"

# %%
# Passing ``fused=False`` to the optimizer of the resumed run does not help: loading restores the
# saved setting.

optimizer = torch.optim.Adam(goes_on[0].parameters(), fused=False)
optimizer.load_state_dict(resumed[1].state_dict())
assert optimizer.param_groups[0]["fused"]

# %%
# You get the same wrong updates without a checkpoint if you convert the weights to
# ``channels_last`` after the first update. Convert them before.

network = torch.nn.Conv2d(3, 4, 3)
optimizer = torch.optim.Adam(network.parameters(), fused=True)
update(network, optimizer)
network.to(memory_format=torch.channels_last)
late = check(network.weight, optimizer)
assert late["weight"] != late["moments"]
