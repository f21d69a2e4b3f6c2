"""
Activation memory
=================

Autograd keeps tensors from the forward to the backward pass, and these can take more memory than
the batch. Train recurrent networks on flat slices with recomputation, and call wide value networks
in chunks.
"""

# %%
# .. fold:: Imports, seed and a rollout

import warnings
import weakref

import torch
import torchrl
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import Compose, InitTracker
from torchrl.modules import (
    MLP,
    GRUModule,
    LSTMModule,
    ValueOperator,
    set_recurrent_mode,
)
from torchrl.objectives.value import GAE

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SEED, N_FRAMES, TIME_LIMIT_STEPS = 0, 200, 12
torch.set_num_threads(1)
torchrl.logger.setLevel("ERROR")  # it announces each storage
# The first "scan" module of a process imports torch's compiler and tests it. While it
# traces, the compiler warns about a gradient that it reads: expected.
warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor")

tracked = Compose(StepCounter(max_steps=TIME_LIMIT_STEPS), InitTracker())
env = TransformedEnv(GymEnv("CartPole-v1"), tracked)
env.set_seed(SEED)
sizes = {"frames_per_batch": N_FRAMES, "total_frames": N_FRAMES}
collector = Collector(env, storing_device=DEVICE, **sizes)
torch.manual_seed(SEED)
batch = next(iter(collector))
collector.shutdown()
net = MLP(in_features=4, out_features=1, num_cells=[512], device=DEVICE)
critic = ValueOperator(net, in_keys=["observation"])

# %%
# Copy this code, and add an :class:`~torchrl.envs.transforms.InitTracker` to the environment: it
# writes ``is_init``, which marks where the recurrent state restarts.

buffer = TensorDictReplayBuffer(
    storage=LazyTensorStorage(N_FRAMES, device=DEVICE),
    sampler=SliceSampler(
        slice_len=16, traj_key=("collector", "traj_ids"), strict_length=False
    ),
    batch_size=8 * 16,
)
buffer.extend(batch)
sequences = buffer.sample()  # flat: slices of unequal length, end to end
gru = GRUModule(
    input_size=4,
    hidden_size=64,
    in_keys=["observation", "h"],
    out_keys=["features", ("next", "h")],
    recurrent_backend="scan",
    recurrent_recompute="full",
    device=DEVICE,
)
with set_recurrent_mode(True):
    features = gru(sequences.select("observation", "is_init"))["features"]

advantages = GAE(gamma=0.99, lmbda=0.95, value_network=critic, num_chunks=8)(batch)

# %%
# .. list-table:: How to save activation memory
#    :header-rows: 1
#
#    * - You train
#      - Use
#      - It costs
#    * - recurrent networks on slices of unequal length
#      - a flat batch, with ``is_init`` at each slice start
#      - an ``InitTracker``
#    * - recurrent networks, with little memory
#      - backend ``"scan"`` and recompute ``"full"``, as above
#      - a second forward pass
#    * - recurrent networks, as fast as possible
#      - the fastest backend for your sizes in :doc:`/reference/recurrent_backends`
#      - on the CPU, more memory than recomputation
#    * - a wide value network, with GAE or TD
#      - ``num_chunks`` or ``value_chunk_size``
#      - more calls of the network
#
# Sequences without padding
# -------------------------
#
# .. redirect-from:: tutorials/memory/memory_efficient_rl.html#sequences-without-padding
#
# If you stack slices of unequal length into a rectangle, the short ones are padded, here to
# ``slice_len``. A :class:`~torchrl.data.SliceSampler` returns them end to end instead. If the data
# holds :term:`is_init`, a :class:`~torchrl.data.TensorDictReplayBuffer` sets it at each slice
# start, and the recurrent module restarts there.

N_SLICES, SEQUENCE_FRAMES = 8, 16
torch.manual_seed(SEED)
sequences = buffer.sample()
is_init = sequences["is_init"].squeeze(-1)
n_rows = len(sequences)

assert int(is_init.sum()) == N_SLICES
assert n_rows < N_SLICES * SEQUENCE_FRAMES
print(f"{N_SLICES} slices: {n_rows} rows, padded {N_SLICES * SEQUENCE_FRAMES}")

# %%
# :class:`~torchrl.modules.LSTMModule` and :class:`~torchrl.modules.GRUModule` read such a batch
# inside :class:`~torchrl.modules.set_recurrent_mode`. Their :term:`recurrent backend` decides how
# (:doc:`/tutorials/recurrent/backends`). ``"pad"`` pads to a rectangle inside the module.
# ``"scan"`` goes through the flat batch step by step, in one operator that torch traces. With
# ``recurrent_recompute="full"``, ``"scan"`` is a loop in Python, with ``torch.utils.checkpoint``
# around each step: it keeps what enters a step, and computes the gates again in the backward pass.
# ``"triton"`` runs the scan as CUDA kernels, on CUDA only.
#
# Predict what autograd keeps of one row with recomputation: its observation, two copies of
# ``is_init``, and two vectors for each state of the module (the state that enters the step, and the
# state to reset to). A GRU has one state, an LSTM two.
#
# .. fold:: Modules with equal weights, and the bytes that autograd keeps


def recurrent(kind, backend, **options):
    """A module with the same weights for every backend."""
    torch.manual_seed(SEED)
    cls, states = {"LSTM": (LSTMModule, ["h", "c"]), "GRU": (GRUModule, ["h"])}[kind]
    return cls(
        input_size=4,
        hidden_size=64,
        in_keys=["observation", *states],
        out_keys=["features", *(("next", state) for state in states)],
        recurrent_backend=backend,
        device=DEVICE,
        **options,
    )


def train_pass(module, batch):
    """Features, gradients of the parameters, and bytes saved in between.

    Each storage counts once, where autograd keeps it. The parameters do not count.
    """
    parameters = {p.untyped_storage().data_ptr() for p in module.parameters()}
    saved = {}

    def pack(tensor):
        if type(tensor) is torch.Tensor:  # tracing passes fake tensors through here
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage
        return tensor

    count = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with set_recurrent_mode(True), count:
        features = module(batch.clone())["features"]
    features.square().sum().backward()
    n_saved = sum(saved[key].nbytes() for key in saved.keys() - parameters)
    return features.detach(), [p.grad for p in module.parameters()], n_saved


# %%
# All runs return the same features and gradients, within a tolerance. The bytes differ:
#
# .. fold:: Run each backend forward and backward

RECOMPUTE = {"recurrent_recompute": "full"}
RUNS = [("pad", {}), ("scan", RECOMPUTE)]
if DEVICE.type == "cuda":
    torch.backends.cudnn.allow_tf32 = False  # the same precision everywhere
    RUNS.append(("triton", {"recurrent_matmul_precision": "ieee"}))

inputs = sequences.select("observation", "is_init")
saved_bytes = {}
for kind in ("GRU", "LSTM"):
    wanted = train_pass(recurrent(kind, "pad"), inputs)
    for backend, options in RUNS:
        module = recurrent(kind, backend, **options)
        features, gradients, n_saved = train_pass(module, inputs)
        torch.testing.assert_close(features, wanted[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradients, wanted[1], rtol=1e-4, atol=1e-3)
        saved_bytes[kind, backend] = n_saved
        how = f"{backend} {' '.join(options)}"
        print(f"{kind:4}  {how:24} {n_saved:9,} bytes, {n_saved // n_rows:5,} a row")

# %%
# The prediction for recomputation:

for kind, n_states in (("GRU", 1), ("LSTM", 2)):
    kept = n_rows * ((4 + 2 * n_states * 64) * 4 + 2)
    print(f"{kind:4}  {'predicted':24} {kept:9,} bytes with recomputation")
    assert kept <= saved_bytes[kind, "scan"] < saved_bytes[kind, "pad"]

# %%
# Recomputation keeps fewer bytes, at the price of a second forward pass. ``"pad"`` refuses the
# option. In the record below, the peak of plain ``"scan"`` is above that of ``"pad"``, a little for
# the GRU and several times for the LSTM. :claim:`plain-scan-peaks-above-pad`
# :doc:`/reference/recurrent_backends` has other sizes and numbers of resets. Called eagerly, the
# plain scan of the LSTM is traced again on each call that needs gradients. The scan of the GRU is
# not. :claim:`eager-lstm-scan-traced-each-call`
#
# .. record-table:: memory_recurrent@cpu
#    :rows: *-t32
#    :metrics: step_time peak_memory
#    :caption: One training step by backend, on the CPU
#
# .. record-table:: memory_recurrent@cuda
#    :rows: *-t32
#    :metrics: step_time peak_memory
#    :caption: One training step by backend, on CUDA
#    :if-absent: Triton has not been measured on CUDA yet.
#
# :doc:`/tutorials/recurrent/sequence_training` trains a policy on such slices. See also `recurrent
# modules <https://docs.pytorch.org/rl/0.14/reference/modules_rnn.html>`__ in the TorchRL
# documentation.
#
# Value networks in chunks
# ------------------------
#
# .. redirect-from:: tutorials/memory/memory_efficient_rl.html#value-networks-in-chunks
#
# By default, GAE calls the value network on all rows and all next rows at once. With ``num_chunks``
# or ``value_chunk_size``, it calls the network piece by piece. The advantages agree within
# rounding, and the largest intermediate tensor shrinks with the number of rows in a call.
#
# Predict the peak. One call holds two tensors of 512 units a row: the output of the linear layer,
# and that of its activation. Without chunks, one call gets all rows and all next rows,
# ``2 * N_FRAMES``. With chunks, a call gets either rows or next rows, ``N_FRAMES / num_chunks`` of
# them.
#
# .. fold:: A meter for the bytes of tensors that are alive


class PeakBytes(TorchDispatchMode):
    """Most bytes that tensors made inside the context take at one time."""

    def __init__(self):
        super().__init__()
        self.made, self.peak = [], 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.made.append(weakref.ref(out))
        self.made = [ref for ref in self.made if ref() is not None]
        storages = (ref().untyped_storage() for ref in self.made)
        alive = {storage.data_ptr(): storage.nbytes() for storage in storages}
        self.peak = max(self.peak, sum(alive.values()))
        return out


# %%
# The same advantage, four ways:
#
# .. fold:: Call GAE with each, and note the peak

FLOAT32_BYTES = 4
CHUNKINGS = [
    ({}, 2 * N_FRAMES),
    ({"num_chunks": 2}, N_FRAMES // 2),
    ({"num_chunks": 8}, N_FRAMES // 8),
    ({"value_chunk_size": 10}, 10),
]

data = buffer[:]  # the rollout, without what GAE has written above
peaks, advantages = [], []
print(f"{'chunking':24} rows a call  predicted bytes  measured peak")
for options, rows_per_call in CHUNKINGS:
    estimator = GAE(gamma=0.99, lmbda=0.95, value_network=critic, **options)
    with PeakBytes() as meter:
        advantages.append(estimator(data.clone())["advantage"])
    predicted = 2 * rows_per_call * 512 * FLOAT32_BYTES
    assert predicted < meter.peak < predicted + 2 * batch.bytes()
    torch.testing.assert_close(advantages[-1], advantages[0], rtol=1e-4, atol=1e-5)
    name = ", ".join(f"{k}={v}" for k, v in options.items()) or "all at once"
    print(f"{name:24} {rows_per_call:11} {predicted:16,} {meter.peak:14,}")
    peaks.append(meter.peak)

assert peaks[1] < peaks[0] / 3

# %%
# The measured peak also contains the copy of the batch that the call gets, and the values. These do
# not shrink with smaller chunks.
#
# The options apply to the estimator only. A loss that trains the value network calls it on its
# whole minibatch: make the minibatch smaller. By default, the chunks cut along the first dimension.
# If your value network is recurrent and this is the time dimension, set ``value_chunk_dim`` to
# another one.
