"""What the planner says, and the bytes that are allocated: batches, storages, updates."""

import itertools
import re
import weakref
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import _is_functional_tensor as is_traced
from torch.utils._python_dispatch import TorchDispatchMode
from torchrl.collectors import Collector, MultiSyncCollector
from torchrl.data import (
    Binary,
    Composite,
    CompressedListStorage,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    Unbounded,
)
from torchrl.envs import (
    CatFrames,
    Compose,
    EnvBase,
    GymEnv,
    InitTracker,
    NextObservationDelta,
    StepCounter,
    TransformedEnv,
)
from torchrl.modules import GRUModule, LSTMModule, set_recurrent_mode
from torchrl_doctor import own_plan
from torchrl_doctor.cli import main
from torchrl_doctor.own_plan import plan
from torchrl_doctor.planner import ITEMSIZES, KNOWN, PRESETS, SpecError, entries_of, planned

from benchmarks.suites.bench_recurrent_backends import INPUTS
from tests.support.claims import guards
from tests.support.suites import benchmarks_of

BOUND = 0.01
# Where Python objects, packed pieces, oneDNN or a sample of rows count. The others are exact.
NEARLY = {"collector_process", "gru_padded", "lstm_padded", "compressed"}
FEWEST = 50  # configurations
FRAMES = 20
ROWS = 50
PEAK_FRAMES = 600  # the few rows that a collector holds besides are less than a hundredth

SPECS = {
    "cartpole": PRESETS["cartpole"]["specs"],
    "halfcheetah": PRESETS["halfcheetah"]["specs"],
    "atari": PRESETS["atari"]["specs"],
    "rgb": PRESETS["rgb"]["specs"],
    "several": "position: float32 3; mask: bool 16; map: int32 5x7; action: float32 2; "
    "reward: float32 1",
    "halves": "observation: float16 32; extra: float64 2x3; action: int64 3; reward: float64 1",
}
SWITCHES = [
    {},
    {"compact": 1},
    {"delta": 1},
    {"compact": 1, "delta": 1},
    {"step_count": 1, "is_init": 1},
    {"step_count": 1, "is_init": 1, "compact": 1},
    {"step_count": 1, "is_init": 1, "compact": 1, "delta": 1},
    {"traj_ids": 0},
]
STORAGES = [
    {"tensor": 1},
    {"tensor": 0, "memmap": 1},
    {"tensor": 0, "memmap": 1, "scratch": 1},
    {"tensor": 0, "list": 1},
]


class Toy(EnvBase):
    """An environment with the specs of a text."""

    def __init__(self, specs, steps=10**9):
        super().__init__()
        entries = {key: (getattr(torch, dtype), shape) for key, dtype, shape in entries_of(specs)}
        dtype, shape = entries.pop("action")
        self.action_spec = Unbounded(shape, dtype=dtype)
        dtype, shape = entries.pop("reward")
        self.reward_spec = Unbounded(shape, dtype=dtype)
        self.observation_spec = Composite(
            {key: Unbounded(shape, dtype=dtype) for key, (dtype, shape) in entries.items()}
        )
        flag = Binary(1, dtype=torch.bool)
        names = ("done", "terminated", "truncated")
        self.full_done_spec = Composite({name: flag.clone() for name in names})
        self.now, self.steps = 0, steps

    def _observed(self):
        return TensorDict({key: spec.rand() for key, spec in self.observation_spec.items()})

    def _reset(self, tensordict=None):
        return self._observed()

    def _step(self, tensordict):
        self.now += 1
        end = torch.tensor([self.now % self.steps == 0])
        rest = {"done": end, "terminated": end, "truncated": torch.zeros_like(end)}
        return self._observed().update({"reward": self.reward_spec.zero(), **rest})

    def _set_seed(self, seed):
        return seed


class AliveBytes(TorchDispatchMode):
    """Most bytes that tensors made inside the context, not shared ones, take at one time."""

    def __init__(self):
        super().__init__()
        self.tensors, self.storages = {}, {}
        self.now = self.peak = 0

    def gone(self, reference):
        _, pointer = self.tensors.pop(id(reference))
        self.storages[pointer][0] -= 1
        if not self.storages[pointer][0]:
            self.now -= self.storages.pop(pointer)[1]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if not isinstance(tensor, torch.Tensor):
                continue
            reference = weakref.ref(tensor, self.gone)
            storage = tensor.untyped_storage()
            if storage.is_shared():
                continue
            pointer = storage.data_ptr()
            self.tensors[id(reference)] = reference, pointer  # equal tensors are not one
            known = self.storages.setdefault(pointer, [0, storage.nbytes()])
            self.now += 0 if known[0] else known[1]
            known[0] += 1
        self.peak = max(self.peak, self.now)
        return out


class Measured(NamedTuple):
    """One quantity of one configuration."""

    configuration: str
    quantity: str
    planned: float
    measured: float

    @property
    def error(self):
        return abs(self.planned - self.measured) / (self.measured or 1)

    @property
    def bound(self):
        return BOUND if {self.quantity, self.configuration} & NEARLY else 0


def with_transforms(env, *, step_count=0, is_init=0, delta=0, **_):
    transforms = [StepCounter()] * step_count + [InitTracker()] * is_init
    transforms += [NextObservationDelta()] * delta
    return TransformedEnv(env, Compose(*transforms)) if transforms else env


def options_of(compact=0, traj_ids=1, **_):
    return {"compact_obs": bool(compact), "track_traj_ids": bool(traj_ids)}


def collected(env, frames, batches=1, policy=None, **options):
    """The last of some batches."""
    collector = Collector(
        env, policy, frames_per_batch=frames, total_frames=batches * frames, **options
    )
    try:
        for batch in collector:  # noqa: B007 - the last is returned
            pass
    finally:
        collector.shutdown()
    return batch


def storage_of(inputs, folder):
    """An empty storage for ROWS rows, as the inputs of a plan name it."""
    if inputs.get("memmap"):
        return LazyMemmapStorage(ROWS, scratch_dir=folder if inputs.get("scratch") else None)
    kinds = {"list": ListStorage, "compressed": CompressedListStorage}
    found = [kind for name, kind in kinds.items() if inputs.get(name)]
    return (found or [LazyTensorStorage])[0](ROWS)


def tensors_of(storage):
    """The tensors of a storage, however it keeps them."""
    inner = storage._storage
    for item in inner if isinstance(inner, list) else [inner]:
        leaves = item.values(True, True) if isinstance(item, TensorDict) else item.values()
        yield from leaves


def mapped_files():
    """First and last address of what is mapped into this process, and the file behind it or ""."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, *_, name = line.split(maxsplit=5) if line.count(" ") > 5 else (line.split()[0], "")
        first, last = (int(one, 16) for one in span.split("-"))
        yield first, last, name if name.startswith("/") else ""


def bytes_of_storage(storage, folder):
    """Bytes in process memory, in shared memory and on disk, each allocation once."""
    found = {"buffer_process": {}, "buffer_shared": {}, "buffer_disk": {}}
    mapped = list(mapped_files())
    for tensor in tensors_of(storage):
        inner = tensor.untyped_storage()
        (path,) = (name for first, end, name in mapped if first <= inner.data_ptr() < end)
        where = "process" if not path else "disk" if path.startswith(str(folder)) else "shared"
        assert where != "shared" or "/dev/shm" in path, path
        found[f"buffer_{where}"][inner.data_ptr()] = inner.nbytes()
    found = {where: sum(sizes.values()) for where, sizes in found.items()}
    files = sum(path.stat().st_size for path in Path(folder).rglob("*.memmap"))
    assert files == found["buffer_disk"]
    return found


def filled(batch, inputs, folder):
    """A storage that is full of rows of the batch."""
    kind = TensorDictReplayBuffer if inputs.get("index", 1) else ReplayBuffer
    buffer = kind(storage=storage_of(inputs, folder), batch_size=1)
    # A list keeps views of what it is given, so each write has tensors of its own.
    for first in range(0, ROWS, FRAMES):
        buffer.extend(batch[: ROWS - first].clone())
    return buffer.storage


def batches_and_storages(tmp_path):
    storages = itertools.cycle(STORAGES)
    for (spec, specs), switches in itertools.product(SPECS.items(), SWITCHES):
        storage = next(storages)
        inputs = {**switches, **storage, "frames_per_batch": FRAMES, "rows": ROWS}
        inputs["index"] = int(len(switches) != 1)
        name = f"{spec} {' '.join(f'{k}={v}' for k, v in {**switches, **storage}.items())}"
        plan = planned(specs, **inputs)
        batch = collected(with_transforms(Toy(specs), **switches), FRAMES, **options_of(**switches))
        for key, value in batch.items(True, True):
            key = key if isinstance(key, str) else ".".join(key)
            part = next((part for part in plan.parts if part.key == key), None)
            assert part, (name, key, "is in no plan")
            yield Measured(name, key, part.in_batch, value.nbytes / FRAMES)
        assert len(plan.parts) == len(list(batch.keys(True, True))), name
        yield Measured(name, "batch", plan.totals["batch"], batch.bytes())
        folder = tmp_path / name.replace(" ", "_")
        measured = bytes_of_storage(filled(batch, inputs, folder), folder)
        for quantity, n_bytes in measured.items():
            yield Measured(name, quantity, plan.totals[quantity], n_bytes)


def peaks(_):
    for spec, steps, switches in [
        ("several", 10**9, {}),
        ("several", 25, {"compact": 1}),
        ("halves", 25, {"compact": 1, "delta": 1}),
        ("cartpole", 10**9, {"step_count": 1, "is_init": 1}),
    ]:
        specs, name = SPECS[spec], f"peak {spec} {switches} {steps}"
        env = with_transforms(Toy(specs, steps), **switches)
        plan = planned(specs, frames_per_batch=PEAK_FRAMES, **switches)
        with AliveBytes() as alive:
            collected(env, PEAK_FRAMES, 2, **options_of(**switches))
        yield Measured(name, "collector_process", plan.totals["collector_process"], alive.peak)


def workers(_):
    specs, frames = SPECS["rgb"], 300
    plan = planned(specs, frames_per_batch=frames, workers=2)
    with AliveBytes() as alive:
        collector = MultiSyncCollector(
            [Toy(specs), Toy(specs)],
            None,
            frames_per_batch=frames,
            total_frames=2 * frames,
            cat_results="stack",
        )
        try:
            for _batch in collector:
                shared = [one for data in collector.buffers for one in data.values(True, True)]
                n_shared = sum(one.untyped_storage().nbytes() for one in shared)
                assert all(one.is_shared() for one in shared)
        finally:
            collector.shutdown()
    yield Measured("two workers", "collector_shared", plan.totals["collector_shared"], n_shared)
    yield Measured("two workers", "collector_process", plan.totals["collector_process"], alive.peak)


def cartpole(tmp_path):
    for switches in [{}, {"compact": 1}, {"delta": 1}, {"step_count": 1, "is_init": 1}]:
        env = with_transforms(GymEnv("CartPole-v1"), **switches)
        batch = collected(env, FRAMES, **options_of(**switches))
        plan = planned(SPECS["cartpole"], frames_per_batch=FRAMES, rows=ROWS, **switches)
        yield Measured(f"CartPole {switches}", "batch", plan.totals["batch"], batch.bytes())
        storage = filled(batch, {"tensor": 1}, tmp_path / "none")
        measured = bytes_of_storage(storage, tmp_path / "none")["buffer_process"]
        yield Measured(
            f"CartPole {switches}", "buffer_process", plan.totals["buffer_process"], measured
        )


def stacked_when_sampled(tmp_path):
    for compact in (0, 1):
        specs = "pixels: uint8 1x84x84; action: int64 6; reward: float32 1"
        stack = CatFrames(N=4, dim=-3, in_keys=["pixels"], out_keys=["pixels_stack"])
        env = TransformedEnv(Toy(specs), stack)
        batch = collected(env, FRAMES, compact_obs=bool(compact))
        inputs = {"frames": 4, "at_sampling": 1, "compact": compact, "rows": ROWS}
        plan = planned(SPECS["atari"], frames_per_batch=FRAMES, **inputs)
        name = f"frames stacked when sampled, compact={compact}"
        yield Measured(name, "batch", plan.totals["batch"], batch.bytes())
        kept = batch.exclude("pixels_stack", ("next", "pixels_stack"))
        measured = bytes_of_storage(filled(kept, {"tensor": 1}, tmp_path / "none"), tmp_path / "no")
        quantity = "buffer_process"
        yield Measured(name, quantity, plan.totals[quantity], measured[quantity])


def compressed(tmp_path):
    """The share that some rows keep is that of the others."""
    batch = collected(Toy(SPECS["several"]), FRAMES).flatten_keys(".")
    inputs = {"tensor": 0, "compressed": 1, "index": 0}
    measured = bytes_of_storage(filled(batch, inputs, tmp_path), tmp_path / "no")["buffer_process"]
    storage = storage_of(inputs, tmp_path)
    storage.set(range(5), batch[:5])
    few = sum(one.untyped_storage().nbytes() for one in tensors_of(storage))
    share = few / batch[:5].bytes()
    plan = planned(SPECS["several"], rows=ROWS, share=share, **inputs)
    yield Measured("compressed", "buffer_process", plan.totals["buffer_process"], measured)


def recurrent(kind, hidden, layers, inputs, backend, **options):
    cls, states = {"LSTM": (LSTMModule, ["h", "c"]), "GRU": (GRUModule, ["h"])}[kind]
    return cls(
        input_size=inputs,
        hidden_size=hidden,
        num_layers=layers,
        in_keys=["observation", *states],
        out_keys=["features", *(("next", state) for state in states)],
        recurrent_backend=backend,
        **options,
    )


def of_scans(outputs):
    """Tensors that PyTorch's scan keeps on its node of the graph, not as saved tensors."""
    waiting = [one.grad_fn for one in outputs if one.grad_fn is not None]
    seen = set()
    while waiting:
        if (node := waiting.pop()) in seen:
            continue
        seen.add(node)
        waiting += [one for one, _ in node.next_functions if one is not None]
        if hasattr(node, "_scan_impl"):
            yield from torch.utils._pytree.tree_leaves(list(vars(node._scan_impl).values()))


def kept_for_backward(module, batch):
    """Bytes that autograd keeps, each storage once, without the parameters."""
    parameters = {one.untyped_storage().data_ptr() for one in module.parameters()}
    saved = {}

    def pack(tensor):
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and not is_traced(tensor):
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with set_recurrent_mode(True), hooks:
        out = module(batch)
    for kept in of_scans(out.values(True, True)):
        pack(kept)
    return sum(saved[pointer].nbytes() for pointer in saved.keys() - parameters)


def updates(_):
    slices = 8
    sizes = [
        (64, 1, 4, 16),
        (64, 1, 32, 16),
        (32, 1, 80, 16),
        (128, 1, 4, 16),
        (64, 1, 4, 32),
        (32, 2, 4, 16),
    ]
    cases = [(size, 0) for size in sizes] + [(sizes[0], 3), (sizes[-1], 1)]
    for kind, (size, resets) in itertools.product(("GRU", "LSTM"), cases):
        hidden, layers, inputs, length = size
        is_init = torch.zeros(slices, length, 1, dtype=torch.bool)
        is_init[:, 0] = True
        for number, one in enumerate(is_init):  # at different steps
            one[[2 + (number + 4 * reset) % (length - 2) for reset in range(resets)]] = True
        observation = torch.randn(slices, length, inputs)
        batch = TensorDict(observation=observation, is_init=is_init, batch_size=[slices, length])
        sizes_of_plan = {
            "hidden": hidden,
            "layers": layers,
            "inputs": inputs,
            "length": length,
            "slices": slices,
            "resets": resets,
        }
        plan = planned("", recurrent=1, lstm=int(kind == "LSTM"), **sizes_of_plan)
        runs = {
            "scan_recomputed": ("scan", {"recurrent_recompute": "full"}),
            f"{kind.lower()}_scanned": ("scan", {}),
            f"{kind.lower()}_padded": ("pad", {}),
        }
        for quantity, (backend, options) in runs.items():
            module = recurrent(kind, hidden, layers, inputs, backend, **options)
            measured = kept_for_backward(module, batch)
            sized = f"hidden={hidden} layers={layers} in={inputs} T={length}"
            name = f"{kind} {quantity} {sized} resets={resets}"
            yield Measured(name, quantity, plan.totals[quantity], measured)


def recurrent_states(_):
    for kind, compact in itertools.product(("GRU", "LSTM"), (0, 1)):
        layers = 1 + compact
        module = recurrent(kind, 16, layers, 4, "pad")
        env = TransformedEnv(GymEnv("CartPole-v1"), Compose(InitTracker()))
        env.append_transform(module.make_tensordict_primer())
        head = TensorDictModule(torch.nn.Linear(16, 2), ["features"], ["action"])
        policy = TensorDictSequential(module, head)
        batch = collected(env, FRAMES, policy=policy, compact_obs=bool(compact))
        specs = "observation: float32 4; action: float32 2; reward: float32 1"
        lstm = int(kind == "LSTM")
        inputs = {"hidden": 16, "recurrent": 1, "lstm": lstm, "is_init": 1, "compact": compact}
        plan = planned(specs, frames_per_batch=FRAMES, layers=layers, **inputs)
        name = f"states of {kind} compact={compact}"
        yield Measured(name, "batch", plan.totals["batch"], batch.bytes())


GROUPS = [
    batches_and_storages,
    cartpole,
    stacked_when_sampled,
    compressed,
    peaks,
    workers,
    updates,
    recurrent_states,
]


# Dynamo looks at the gradients of what an eager scan is called with.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_plan_is_what_is_allocated(tmp_path):
    found = [one for group in GROUPS for one in group(tmp_path)]
    configurations = {one.configuration for one in found}
    assert len(configurations) >= FEWEST
    worst = max(found, key=lambda one: one.error)
    print(f"{len(found)} quantities of {len(configurations)} configurations; largest error:")
    print(f"{worst.error:.2%}, {worst.quantity} of {worst.configuration}")
    assert not [one for one in found if one.error > one.bound]


def used(**inputs):
    """The totals of CartPole that are not zero."""
    return {name for name, size in planned(SPECS["cartpole"], **inputs).totals.items() if size}


def test_what_does_not_apply_takes_nothing():
    always = {"row", "kept", "batch", "collector_process", "stored_row", "stored"}
    nowhere = used(tensor=0, lstm=1)
    assert nowhere == always
    process = {"buffer_process", "buffer_process_most"}
    for kind in ("tensor", "list", "compressed"):
        assert used(**{"tensor": 0, kind: 1}) == used(**{"tensor": 0, kind: 1}, scratch=1)
        assert used(**{"tensor": 0, kind: 1}) == always | process
    assert used(tensor=0, memmap=1) == always | {"buffer_shared"}
    assert used(tensor=0, memmap=1, scratch=1) == always | {"buffer_disk"}
    assert used(tensor=0, workers=2) == always | {"collector_shared"}
    for lstm, cell in enumerate(("gru", "lstm")):
        updates = {"scan_recomputed", f"{cell}_scanned", f"{cell}_padded"}
        assert used(tensor=0, recurrent=1, lstm=lstm) == always | updates
    flat = planned(SPECS["cartpole"])
    assert planned(SPECS["cartpole"], lstm=1).parts == flat.parts


@pytest.mark.parametrize("kind", ["tensor", "list", "compressed", "memmap"])
def test_the_most_that_compression_keeps_is_another_share(kind):
    inputs = {"tensor": 0, kind: 1, "rows": ROWS}
    most = planned(SPECS["rgb"], **inputs, share_most=0.5).totals["buffer_process_most"]
    assert most == planned(SPECS["rgb"], **inputs, share=0.5).totals["buffer_process"]


@pytest.mark.parametrize(
    ("specs", "inputs"),
    [
        (SPECS["atari"], {"at_sampling": 1}),  # one frame is no stack
        (SPECS["atari"], {"frames": 4}),
        ("map: int32 5x7; action: int64 2; reward: float32 1", {"at_sampling": 1, "frames": 4}),
    ],
)
def test_what_is_not_stacked_when_sampled_is_a_plain_row(specs, inputs):
    assert planned(specs, **inputs).parts == planned(specs).parts


def test_only_frames_are_stored_where_stacks_are_made_when_sampled():
    specs = "pixels: float32 2x8x8; action: int64 2; reward: float32 1"
    plan = planned(specs, at_sampling=1, frames=2, delta=1)
    frame = 8 * 8 * 4
    parts = {part.key: part[1:] for part in plan.parts if "pixels" in part.key}
    assert parts == {
        "pixels": (frame, frame),
        "next.delta.pixels": (frame / 2, frame / 2),
        "pixels_stack": (2 * frame, 0),
        "next.delta.pixels_stack": (frame, 0),
    }


@pytest.mark.parametrize("lstm", [0, 1])
def test_states_are_stored_as_they_are_collected(lstm):
    plan = planned(SPECS["cartpole"], recurrent=1, lstm=lstm)
    assert plan.totals["kept"] == plan.totals["row"]


def test_sizes_of_types_are_those_of_torch():
    assert {name: getattr(torch, name).itemsize for name in ITEMSIZES} == ITEMSIZES


def test_rounding_is_that_of_onednn():
    pages = {0: 0, 1: 4096, 4095: 4096, 4096: 4096, 4097: 8192}
    assert {x: KNOWN["pages"](x) for x in pages} == pages
    aligned = {1: 16, 16: 16, 17: 32, 240: 240, 241: 272, 256: 272, 257: 272, 496: 496, 512: 528}
    assert {x: KNOWN["aligned"](x) for x in aligned} == aligned


RECORDED = re.compile(r"(gru|lstm)-(pad|scan|scan-recompute)-b(\d+)-t(\d+)-h(\d+)-r(\d+)")


@guards("planned-updates-are-below-the-peak")
def test_peaks_of_the_record_are_above_the_plan():
    checked = set()
    for key, benchmark in benchmarks_of("recurrent_backends").items():
        if not (match := RECORDED.fullmatch(key)):
            continue
        cell, way, *sizes = match.groups()
        slices, length, hidden, resets = map(int, sizes)
        name = {"scan": "scanned", "pad": "padded"}.get(way)
        quantity = f"{cell}_{name}" if name else "scan_recomputed"
        inputs = {"slices": slices, "length": length, "hidden": hidden, "resets": resets}
        inputs |= {"lstm": int(cell == "lstm"), "inputs": INPUTS, "recurrent": 1}
        update = planned("", **inputs).totals[quantity]
        assert 0 < update < benchmark["metrics"]["peak_memory"]["median"], key
        checked.add((cell, way))
    assert len(checked) == 6


@pytest.mark.parametrize(
    ("spec", "switches"), [("rgb", {}), ("several", {"compact": 1}), ("halves", {"delta": 1})]
)
def test_worker_holds_at_most_another_batch(spec, switches):
    """A worker collects into the batch that it shares; the rows before they are stacked."""
    plan = planned(SPECS[spec], frames_per_batch=PEAK_FRAMES, **switches)
    env = with_transforms(Toy(SPECS[spec]), **switches)
    options = options_of(**switches)
    with AliveBytes() as alive:
        collected(env, PEAK_FRAMES, 2, return_same_td=True, **options)
    batch = plan.totals["batch"]
    assert 1.4 * batch < alive.peak < (2 + 2 * BOUND) * batch


@pytest.mark.parametrize("text", ["observation float32 4", "x: float99 4", "x: float32 4 y"])
def test_specs_that_cannot_be_read_are_named(text):
    with pytest.raises(SpecError, match="write observation: float32 4"):
        entries_of(text)


def test_keys_that_are_dropped_are_not_in_the_buffer():
    specs = PRESETS["atari"]["specs"]
    whole, less = planned(specs), planned(specs, drop=["next.pixels"])
    size = 4 * 84 * 84
    assert whole.totals["stored_row"] - less.totals["stored_row"] == size
    assert whole.totals["batch"] == less.totals["batch"]


@pytest.mark.parametrize("storage", STORAGES)
def test_plan_of_own_objects_is_what_they_take(tmp_path, storage):
    collector = Collector(
        GymEnv("CartPole-v1"), None, frames_per_batch=FRAMES, total_frames=FRAMES, compact_obs=True
    )
    buffer = TensorDictReplayBuffer(storage=storage_of(storage, tmp_path), batch_size=1)
    try:
        before = plan(collector=collector, replay_buffer=buffer)
        batch = next(iter(collector))
    finally:
        collector.shutdown()
    assert not len(buffer)
    assert before.totals["batch"] == batch.bytes()
    for first in range(0, ROWS, FRAMES):
        buffer.extend(batch[: ROWS - first].clone())
    for quantity, n_bytes in bytes_of_storage(buffer.storage, tmp_path).items():
        assert before.totals[quantity] == n_bytes
        assert plan(batch=batch, replay_buffer=buffer).totals[quantity] == n_bytes
    assert "observation" in str(before)


@pytest.mark.parametrize("kind", [TensorDictReplayBuffer, ReplayBuffer])
@pytest.mark.parametrize("black", [True, False])
def test_plan_of_a_compressed_list_is_what_it_takes(tmp_path, black, kind):
    batch = collected(Toy(SPECS["rgb"]), FRAMES).flatten_keys(".")
    if black:
        batch["pixels"].zero_()
    inputs = {"tensor": 0, "compressed": 1, "index": int(kind is TensorDictReplayBuffer)}
    buffer = kind(storage=storage_of(inputs, tmp_path), batch_size=1)
    before = plan(batch=batch, replay_buffer=buffer)
    most = planned(SPECS["rgb"], rows=ROWS, **inputs).totals["buffer_process"]
    assert before.totals["buffer_process"] == most
    assert "without compression" in str(before)
    for first in range(0, ROWS, FRAMES):
        buffer.extend(batch[: ROWS - first].clone())
        after = plan(batch=batch, replay_buffer=buffer)
        measured = bytes_of_storage(buffer.storage, tmp_path)["buffer_process"]
        expected = pytest.approx(measured / len(buffer) * ROWS)
        assert after.totals["buffer_process"] == expected
        assert plan(replay_buffer=buffer).totals["buffer_process"] == expected
    assert len(buffer) == ROWS
    assert (measured < 0.6 * most) == black, "noise grows when it is compressed"
    assert "without compression" not in str(after)


def test_nested_rows_of_a_compressed_list_are_planned_as_they_stay(monkeypatch):
    monkeypatch.setattr(own_plan, "MOST_READ", 10)
    buffer = ReplayBuffer(storage=CompressedListStorage(ROWS), batch_size=1)
    buffer.extend(collected(Toy(SPECS["several"]), 1).expand(ROWS).clone())
    first = buffer.storage._storage[0]
    flat = sum(value.nbytes for value in first.values() if isinstance(value, torch.Tensor))
    row = flat + sum(value.bytes() for value in first.values() if isinstance(value, TensorDict))
    found = plan(replay_buffer=buffer).totals["buffer_process"]
    assert found == pytest.approx(ROWS * row)


def test_plan_of_nothing_says_what_it_needs():
    with pytest.raises(ValueError, match="give a batch"):
        plan(replay_buffer=ReplayBuffer(storage=LazyTensorStorage(3)))


def test_command_prints_the_plan(tmp_path, capsys):
    (tmp_path / "pipeline_to_plan.py").write_text(
        "import torch\nfrom tensordict import TensorDict\n"
        "from torchrl.data import LazyTensorStorage, ReplayBuffer\n"
        "def make():\n"
        "    batch = TensorDict(observation=torch.zeros(5, 250), batch_size=[5])\n"
        "    return {'batch': batch, 'replay_buffer': ReplayBuffer("
        "storage=LazyTensorStorage(1000))}\n"
    )
    assert main(["plan", f"{tmp_path / 'pipeline_to_plan.py'}:make"]) == 0
    assert "buffer in process memory  " in (printed := capsys.readouterr().out)
    assert "1 MB" in printed
