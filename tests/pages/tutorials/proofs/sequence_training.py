# ruff: noqa: F821
# Runs at the end of tutorials/recurrent/sequence_training.py, or of its part before the training.

import gymnasium
from torchrl.modules import set_recurrent_mode

# The dynamics and the ends of the episodes are those of Gymnasium's CartPole.
steps = CartPoles(4, seed=0).rollout(40, break_when_any_done=False).reshape(-1).cpu()
reference = gymnasium.make("CartPole-v1").unwrapped
reference.reset()
for row in steps:
    reference.state = tuple(row["state"].tolist())
    reference.steps_beyond_terminated = None
    state, _, terminated, *_ = reference.step(int(row["action"]))
    torch.testing.assert_close(row["next", "state"], torch.from_numpy(state), rtol=0, atol=1e-5)
    assert terminated == row["next", "terminated"].item()
assert steps["next", "done"].any()

done = batch["next", "done"].squeeze(-1)
assert batch.shape == (N_ENVS, STEPS_PER_BATCH)
assert done[:, :-1].any()
assert torch.equal(is_init[:, 1:], done[:, :-1])
assert carried.any()

# A sample of the same batch: its first row is marked, some slices are short.
buffer = make_buffer()
buffer.extend(batch.reshape(-1))
slices = buffer.sample()
marks = slices["is_init"].squeeze(-1)
assert marks[0]
first_rows = marks.nonzero().squeeze(-1)
lengths = first_rows.diff(append=first_rows.new_tensor([len(slices)]))
assert lengths.min() < lengths.max() == SLICE_STEPS
_, traj_lengths = batch[TRAJ_KEY].unique(return_counts=True)
assert (traj_lengths < SLICE_STEPS).any()

assert check(*first_sample("no recurrent mode"), "no recurrent mode")[1] == N_SLICES < n_rows

# Marks of the environment change no sample, but what a loss computes on the batch itself.
samples, outputs = [], []
never = batch.clone()
never["is_init"] = torch.zeros_like(never["is_init"])
for stored in (batch, never):
    buffer = make_buffer()
    buffer.extend(stored.reshape(-1))
    torch.manual_seed(0)
    samples.append(buffer.sample())
    with torch.no_grad(), set_recurrent_mode(True):
        outputs.append(features(stored.clone())["features"])
assert (samples[0] == samples[1]).all()
torch.testing.assert_close(outputs[0], batch["features"])
assert (outputs[1] - outputs[0]).abs().max() > 0.1

if "with_memory" in globals():
    assert (last > 3 * with_memory[:, 0]).all()
    assert last.mean() > 2 * plateau.mean()
    assert all(map(math.isfinite, losses))
