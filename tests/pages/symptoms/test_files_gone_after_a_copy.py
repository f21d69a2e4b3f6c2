"""What the page about copies of a buffer says of another process, and does not run."""

import gc
import pickle
from pathlib import Path

import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage

from tests.support.claims import guards
from tests.support.forks import in_a_fork


def load_and_drop(saved):
    """Whether the folder is there while a copy exists, and after that."""
    copy = pickle.loads(saved)
    folder = Path(copy.scratch_dir)
    before = folder.exists()
    del copy
    gc.collect()
    return before, folder.exists()


@guards("a-copy-in-another-process-deletes-the-folder")
def test_a_copy_in_another_process_deletes_the_folder(tmp_path):
    storage = LazyMemmapStorage(4, scratch_dir=tmp_path / "rows", auto_cleanup=True)
    storage.set(range(4), TensorDict({"x": torch.arange(4.0)}, [4]))
    assert in_a_fork(load_and_drop, pickle.dumps(storage)) == [True, False]
    assert not (tmp_path / "rows").exists()
    assert len(storage) == 4
