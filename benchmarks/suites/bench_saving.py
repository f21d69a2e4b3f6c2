"""What it costs to save a run and to load it, by what its replay buffer holds.

The run is DQN with prioritized replay, as in the guide to saving. Its rows are those of CartPole,
or have random bytes of the size of an Atari frame besides. A checkpoint with the buffer copies its
rows. A memory-mapped buffer beside the checkpoint has its rows in the folder that is saved, and
copies none. A checkpoint without a buffer has weights, targets and moments alone. The files stay in
the cache of the operating system: the disk is not measured.
"""

import shutil
import time

import pytest
import torch
from tensordict import TensorDict
from torchrl.checkpoint import Checkpoint
from torchrl.data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    OneHot,
    PrioritizedSampler,
    TensorDictReplayBuffer,
)
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

from benchmarks import measure, metrics

ROWS = {"state": 100_000, "pixels": 10_000}  # by what a row holds
FRAME = (1, 84, 84)
OBSERVED, ACTIONS, WIDTH = 4, 2, 64
ROUNDS, WARMUP_ROUNDS = 9, 1
WAYS = {
    "none": "without a buffer",
    "copied": "with the buffer",
    "mapped": "with the buffer beside it, memory-mapped",
}

METRICS = metrics.declare("""
save_time [s] Time to save: Wall time of a save into a new folder; of mapped: into its own.
load_time [s] Time to load: Wall time of loading into a run that was just made.
saved_bytes [B] Bytes of a save: Sizes of all files of the save.
""")


def make_rows(content):
    """Rows as a collector delivers them, numbered by their reward."""
    count = ROWS[content]
    numbers = torch.arange(count, dtype=torch.float32).unsqueeze(-1)
    flags = {
        key: torch.zeros(count, 1, dtype=torch.bool) for key in ("done", "terminated", "truncated")
    }
    seen = torch.randn(count, OBSERVED)
    action = torch.nn.functional.one_hot(torch.arange(count) % ACTIONS, ACTIONS)
    following = {**flags, "observation": seen.roll(-1, 0), "reward": numbers}
    rows = {**flags, "observation": seen, "action": action}
    if content == "pixels":
        rows["pixels"] = torch.randint(0, 256, (count, *FRAME), dtype=torch.uint8)
    return TensorDict({**rows, "next": TensorDict(following, [count])}, [count])


class Run:
    """A run that has made one update, with *count* rows; *folder* is for what is mapped."""

    def __init__(self, way, count, folder):
        torch.manual_seed(0)
        net = MLP(in_features=OBSERVED, out_features=ACTIONS, num_cells=[WIDTH, WIDTH])
        actor = QValueActor(net, in_keys=["observation"], spec=OneHot(ACTIONS))
        self.loss = DQNLoss(actor, action_space="one_hot", delay_value=True)
        self.loss.make_value_estimator(gamma=0.99)  # before a load, which restores gamma
        self.target = SoftUpdate(self.loss, eps=0.99)
        self.optimizer = torch.optim.Adam(self.loss.parameters(), lr=1e-3)
        self.buffer, self.beside, parts = None, None, {}
        if way != "none":
            storage = LazyTensorStorage(count)
            if way == "mapped":
                self.beside = folder / "buffer"
                self.beside.mkdir(parents=True, exist_ok=True)
                storage = LazyMemmapStorage(count, scratch_dir=self.beside / "storage")
            sampler = PrioritizedSampler(count, alpha=0.7, beta=0.5)
            self.buffer = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=32)
            parts = {"buffer": self.buffer} if way == "copied" else {}
        parts |= {"loss": self.loss, "optimizer": self.optimizer, "target": self.target}
        self.checkpoint = Checkpoint(**parts)

    def train(self, rows):
        if self.buffer is not None:
            self.buffer.extend(rows)
        self.loss(rows[:32].clone())["loss"].backward()
        self.optimizer.step()
        self.target.step()

    def save(self, folder):
        self.checkpoint.save(folder / "checkpoint")
        if self.beside:
            self.buffer.dumps(self.beside)

    def load(self, folder):
        self.checkpoint.load(folder / "checkpoint")
        if self.beside:
            self.buffer.loads(self.beside)


def bytes_in(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def assert_same(ours, other, rows):
    for name, value in ours.loss.state_dict().items():
        torch.testing.assert_close(other.loss.state_dict()[name], value, rtol=0, atol=0)
    moments = [run.optimizer.state_dict()["state"][0]["exp_avg"] for run in (ours, other)]
    assert torch.equal(*moments)
    if ours.buffer is not None:
        assert torch.equal(other.buffer[:]["next", "reward"], rows["next", "reward"])


CASES = [("none", "state")]
CASES += [(way, content) for way in ("copied", "mapped") for content in ROWS]


@pytest.mark.parametrize(("way", "content"), CASES)
def bench_run(benchmark, device, tmp_path, way, content):
    if device.type == "cuda":
        pytest.skip("a buffer on the CPU and files are measured")
    count, data = ROWS[content], make_rows(content)
    run, folder = Run(way, count, tmp_path), tmp_path / "save"
    run.train(data)
    run.save(folder)
    sizes = [bytes_in(folder) + (bytes_in(run.beside) if run.beside else 0)]

    benchmark.pedantic(
        run.save,
        setup=lambda: (shutil.rmtree(folder), ((folder,), {}))[1],
        rounds=ROUNDS,
        warmup_rounds=WARMUP_ROUNDS,
    )
    loads = []
    for _ in range(WARMUP_ROUNDS + ROUNDS):
        fresh = Run(way, count, tmp_path)
        start = time.perf_counter()
        fresh.load(folder)
        loads.append(time.perf_counter() - start)
    assert_same(run, fresh, data)
    shown, key, title = {"way": WAYS[way]}, way, WAYS[way]
    if way != "none":
        shown |= {"content": content, "rows": count}
        key, title = f"{way}-{content}", f"{WAYS[way]}, {count:,} rows, {content}"
    measure.note(
        benchmark,
        key,
        "save_time",
        title=title,
        parameters=shown,
        sampled={"load_time": loads[WARMUP_ROUNDS:], "saved_bytes": sizes},
    )
    benchmark.extra_info["warmup_rounds"] = WARMUP_ROUNDS
