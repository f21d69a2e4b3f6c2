"""The state of arbitrary objects as flat text, to compare it before and after something.

Walks attributes, slots, members of builtin objects such as a ``functools.partial``, and containers;
reads no property: a walk changes nothing. Tensors, arrays and random generators are their values;
what has neither attributes nor values, such as a lock, is its type.
"""

import contextlib
import hashlib
import pickle
import random
import types
import weakref

import numpy
import torch
from tensordict import TensorDictBase

ATOMS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
# Of an RNN: torch gathers it from the parameters at each call, and when it is copied.
DERIVED = {"_flat_weights"}
CODE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.CodeType)


def fingerprint(**roots):
    """What each place below *roots* holds, by its path."""
    found, seen = {}, {}
    for name, value in roots.items():
        _walk(value, name, found, seen)
    return found


def _digest(data):
    return hashlib.sha256(data).hexdigest()


def _value_of(value):
    """The text of something that is not looked into; None for what has parts."""
    if isinstance(value, (*ATOMS, *CODE)):
        return repr(value)
    if isinstance(value, torch.Generator):
        return _digest(value.get_state().numpy().tobytes())
    if isinstance(value, numpy.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, random.Random):
        return _digest(repr(value.getstate()).encode())
    if isinstance(value, numpy.random.RandomState):
        return _digest(pickle.dumps(value.get_state()))
    if isinstance(value, numpy.ndarray):
        return f"{value.dtype} {value.shape} {_digest(value.tobytes())}"
    if isinstance(value, weakref.ref):
        return "a weak reference"
    if type(value).__module__.endswith("_torchrl"):  # the trees of prioritized replay
        return _digest(pickle.dumps(value))
    return None


def _walk(value, path, found, seen):
    text = _value_of(value)
    if text is not None:
        found[path] = text
        return
    if id(value) in seen:
        found[path] = f"the same as {seen[id(value)][0]}"
        return
    seen[id(value)] = path, value  # kept alive, so that no other object gets its id
    found[path] = type(value).__name__
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
        found[path] = f"{data.dtype} {tuple(value.shape)} {value.requires_grad} "
        found[path] += _digest(data.view(torch.uint8).numpy().tobytes())
        _walk(value.grad if value.is_leaf else None, f"{path}.grad", found, seen)
        return
    for name, part in _parts(value):
        _walk(part, f"{path}{name}", found, seen)


def _parts(value):
    if isinstance(value, TensorDictBase):
        names = sorted(value.keys(), key=str)
        yield from ((f"[{name!r}]", value.get(name)) for name in names)
        yield ".batch_size", value.batch_size
        yield ".is_locked", value.is_locked
        return
    if isinstance(value, dict):
        yield from ((f"[{name!r}]", part) for name, part in list(value.items()))
    elif isinstance(value, (set, frozenset)):
        yield "{}", sorted(map(repr, value))
    elif isinstance(value, (list, tuple)) or type(value).__name__ == "deque":
        yield from ((f"[{number}]", part) for number, part in enumerate(list(value)))
    attributes = [*_members(value), *getattr(value, "__dict__", {}).items()]
    yield from ((f".{name}", part) for name, part in attributes if name not in DERIVED)


def _members(value):
    """What stands in slots, those of builtin types among them."""
    for cls in type(value).__mro__:
        for name, member in vars(cls).items():
            if isinstance(member, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # an empty slot
                    yield name, member.__get__(value)
