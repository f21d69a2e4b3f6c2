"""Count what crosses between host and GPU, on a GPU or on a simulated one.

``watch(device)`` counts copies between devices, waits and reads that happen inside it. On a CUDA
device they are the real ones. On the CPU it shows torch a device ``cuda:0`` that does not exist:
its tensors are wrappers that compute on the CPU and say that they lie elsewhere, so the code under
test takes the path that it takes on a GPU, and each of its copies is seen. How long a transfer
takes cannot be seen this way.

A copy to the host that does not block is pending until the program waits for something. That is
the latest moment that CUDA allows; a real copy may arrive earlier. Whose values are used on the
host before, were read early; a view uses none.

A change here voids the benchmarks that reach it.
"""

import contextlib
import gc
import weakref
from collections import Counter
from unittest import mock

import tensordict.base
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

FAR = torch.device("cuda:0")
HOST = torch.device("cpu")
aten = torch.ops.aten
COPIES = (aten._to_copy.default, aten.copy_.default)
# They hand a value, or the size of their result, to the host, and so wait for the device.
READS = (
    aten._local_scalar_dense.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.nonzero.default,
)


def is_read(func, args):
    if func is aten.index.Tensor:
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    return func in READS


class Watch(TorchDispatchMode):
    """Counts in ``counts``; ``reset`` starts anew."""

    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.counts = Counter()
        self.pending = {}  # by address of the storage; kept alive, so that no address comes twice

    def waited(self):
        """All copies that were queued have arrived."""
        self.pending.clear()

    def asked(self, what):
        self.counts[what] += 1
        self.waited()

    def execute(self, func, args, kwargs):
        return func(*args, **kwargs)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(leaf)]
        early = self.pending_among(inputs) if self.pending and not func.is_view else 0
        result = self.execute(func, args, kwargs)
        # A copy to the GPU waits in the same queue as the copy from it, so it comes in time.
        if not (func in COPIES and result.is_cuda):
            self.counts["early"] += early
        if func in COPIES:
            source = args[0] if func is COPIES[0] else args[1]
            blocking = not (kwargs.get("non_blocking") or (args[2:] and args[2]))
            self.copied(source, result, blocking)
        elif is_read(func, args) and any(leaf.is_cuda for leaf in inputs):
            self.counts["reads"] += 1
            self.waited()
        return result

    def copied(self, source, result, blocking):
        if not torch.is_tensor(source) or source.is_cuda == result.is_cuda:
            return  # a number, or a copy on one device
        where = "to_device" if result.is_cuda else "to_host"
        self.counts[where] += 1
        self.counts[f"{where}_bytes"] += source.numel() * source.element_size()
        if blocking:
            self.counts["blocking"] += 1
            self.waited()
        elif where == "to_host":
            self.pending[address(result)] = result

    def pending_among(self, tensors):
        """How many of *tensors* lie on the host and have not arrived there."""
        found = {address(tensor) for tensor in tensors if not tensor.is_cuda}
        return len(found & self.pending.keys())


def address(tensor):
    return tensor.untyped_storage().data_ptr()


class Far(torch.Tensor):
    """A tensor that says it lies on ``cuda:0``; ``near`` has its values."""

    @staticmethod
    def __new__(cls, near):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=FAR,
        )

    def __init__(self, near):
        self.near = near

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} on a tensor of the simulated device, outside of the simulation")


def unwrap(value):
    return value.near if isinstance(value, Far) else value


class SimulatedWatch(Watch):
    """Runs what concerns the simulated device on the CPU, and counts what that device holds."""

    def __init__(self):
        super().__init__()
        self.held, self.size, self.peak = Counter(), 0, 0

    def execute(self, func, args, kwargs):
        wrappers = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Far)]
        target = kwargs.get("device")
        far = bool(wrappers) if target is None else torch.device(target).type == "cuda"
        kwargs = kwargs if target is None else {**kwargs, "device": HOST}
        if wrappers and func is not COPIES[1]:
            near = [x for x in pytree.tree_leaves((args, kwargs)) if type(x) is torch.Tensor]
            assert all(x.ndim == 0 for x in near), f"{func} mixes devices, which CUDA refuses"
        args, kwargs = pytree.tree_map(unwrap, (args, kwargs))
        result = func(*args, **kwargs)
        known = {id(wrapper.near): wrapper for wrapper in wrappers}
        if func is COPIES[1]:  # in place: what is written to stays where it is
            return known.get(id(result), result)

        def back(value):
            if not far or not torch.is_tensor(value):
                return value
            return known[id(value)] if id(value) in known else self.wrap(value)

        return pytree.tree_map(back, result)

    def wrap(self, near):
        far = Far(near)
        key, size = address(near), near.untyped_storage().nbytes()
        if not self.held[key]:
            self.size += size
            self.peak = max(self.peak, self.size)
        self.held[key] += 1
        weakref.finalize(far, self.release, key, size)
        return far

    def release(self, key, size):
        self.held[key] -= 1
        if not self.held[key]:
            self.size -= size

    def start_peak(self):
        """Measure the peak from what is held now; return that."""
        gc.collect()
        self.peak = self.size
        return self.size


@contextlib.contextmanager
def watch(device):
    """A watch that is on; *device* is that of the suite."""
    if device.type == "cuda":
        with _waits(Watch(), torch.cuda.synchronize, tensordict.base._sync_cuda_transfer) as found:
            yield found
        return
    # What torch's own simulation, FakeTensorMode, does: a guard that asks no driver, and tensors
    # from Python numbers that are moved where a mode sees it.
    torch._C._ensureCUDADeviceGuardSet()
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("torch.cuda._lazy_init"))
        stack.enter_context(mock.patch("torch.cuda.is_available", return_value=True))
        stack.enter_context(mock.patch("torch.cuda.is_initialized", return_value=True))
        stack.enter_context(mock.patch("torch.cuda.current_device", return_value=0))
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, False)
        yield stack.enter_context(_waits(SimulatedWatch(), None, None))


@contextlib.contextmanager
def _waits(found, synchronize, transfer):
    """Count the waits that the program asks for; call the real ones where there are."""

    def noting(original, what):
        def wait(*args, **kwargs):
            if original is not None:
                original(*args, **kwargs)
            found.asked(what)

        return wait

    with (
        mock.patch("torch.cuda.synchronize", noting(synchronize, "syncs")),
        mock.patch("tensordict.base._sync_cuda_transfer", noting(transfer, "stream_waits")),
        found,
    ):
        yield found
