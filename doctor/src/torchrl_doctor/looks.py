"""What the reader's objects were at an earlier moment, and what has changed since."""

from __future__ import annotations

import contextlib
import weakref
from typing import NamedTuple

import torch

from torchrl_doctor.groups import given_to, groups_of
from torchrl_doctor.objects import (
    FEWEST_UPDATES,
    exploration_modules,
    is_lazy,
    last_part,
    noise_of,
    stored_data,
    stored_leaves,
    told_by_workers,
    transforms_of,
)
from torchrl_doctor.private import private

MOST_TENSORS = 20_000  # that a look reads of one object


LOOK_TWICE = "two looks (since=) would tell"


FEWEST_BATCHES = 3  # between two looks: a loop that acts once a batch has done so


class Trace(NamedTuple):
    """What is kept of a tensor: two sums over it, and how often it was changed in place."""

    bits: int
    norm: float
    version: int


class Look:
    """What some objects were at one moment, as numbers: it holds no tensor and no object.

    `traces` has the `Trace` of each tensor, by owner and name; `numbers` has counts and schedules.
    """

    def __init__(self, given):
        self.roots = {}  # what was looked at, as weak references
        self.traces = {}
        self.numbers = {}
        self.optimized = None  # what a `Watching` has seen of optimizers
        self.watched = {}  # and of what the loop does besides
        self.groups = {one: Look(given_to(one, given)) for one in groups_of(given)}
        for name, value in given.items():
            with contextlib.suppress(TypeError):  # a list or a dictionary cannot be referred to
                self.roots[name] = weakref.ref(value)
        with torch.no_grad():
            for owner, tensors in tensors_of(given):
                self.traces[owner] = traced(tensors)
            for name, number in numbers_of(given):
                self.numbers[name] = number


def look(
    *,
    collector=None,
    replay_buffer=None,
    loss_module=None,
    value_estimator=None,
    env=None,
    eval_env=None,
    policy=None,
    batch=None,
    target_updater=None,
    optimizer=None,
    error=None,
):
    """A `Look` at the objects: train on, and give it to `diagnose` as *since*.

    The arguments are those of `diagnose`. The objects stay as they are and are not kept alive.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    return Look(given | parts_of_collector(collector, given))


def parts_of_collector(collector, given):
    """The environment and the policy of a collector, where none were *given*."""
    parts = {}
    for name in ("env", "policy"):
        if name not in given:
            with contextlib.suppress(Exception):  # a property may ask workers that are gone
                parts[name] = getattr(collector, name)
    return {name: value for name, value in parts.items() if value is not None}


def tensors_of(given):
    """The tensors of each owner, by name: of networks, of workers, and statistics of transforms."""
    for name in ("loss_module", "policy"):
        if isinstance(module := given.get(name), torch.nn.Module):
            yield name, dict([*module.named_parameters(), *module.named_buffers()])
    collector = given.get("collector")
    acts = getattr(collector, "policy", None)
    if isinstance(acts, torch.nn.Module):
        learns = trained_weights(given.get("policy"), acts, collector, given.get("loss_module"))
        copies = dict(acts.named_parameters())
        yield "collector.policy", copies
        yield "collector.trained", {k: v for k, v in (learns or {}).items() if k in copies}
    learns = given.get("policy", acts)
    if collector is not None and isinstance(learns, torch.nn.Module):
        told, _ = told_by_workers(collector, lambda one: one.state_dict())
        names = dict(learns.named_parameters()).keys()
        for worker, state in sorted((told or {}).items()):
            if worker.startswith("worker"):
                copies = state.get("policy_state_dict") or {}
                yield f"collector.{worker}", {k: copies[k] for k in names if k in copies}
    for name in ("env", "eval_env"):
        if name in given:
            found = {}
            for number, one in numbered_transforms(given[name]):
                found |= {f"{number}.{k}": value for k, value in statistics_of(one).items()}
            yield name, found


def numbered_transforms(env):
    """The transforms of an environment, from the outside in.

    So a batched environment that starts between two looks changes no number.
    """
    return enumerate(reversed(transforms_of(env)))


def trained_weights(policy, acts, collector, loss_module):
    """The weights that are trained, by name: those of the policy, or of the loss's actor."""
    learns = policy if policy is not acts else private(collector, "_orig_policy", None)
    if isinstance(learns, torch.nn.Module) and learns is not acts:
        return learns.state_dict()
    for name in TRAINED:
        params = getattr(loss_module, name, None)
        if params is None:
            continue
        flat = {key: one.detach() for key, one in params.flatten_keys(".").items()}
        for part, module in acts.named_modules():  # exploration may stand around the network
            names = dict(module.named_parameters())
            if names and names.keys() <= flat.keys():
                return {f"{part}.{key}".lstrip("."): flat[key] for key in names}
    return None


TRAINED = ("actor_network_params", "value_network_params", "local_value_network_params")


STATISTICS = ("_loc", "_var", "_count", "_td", "loc", "scale")  # of norms of observations


def statistics_of(transform):
    """The tensors in which a transform keeps what it has seen, by name."""
    found = {}
    for name in STATISTICS:
        value = vars(transform).get(name, transform._buffers.get(name))
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif hasattr(value, "items"):
            leaves = {f"{name}.{key}": leaf for key, leaf in value.items(True, True)}
            found |= {key: leaf for key, leaf in leaves.items() if isinstance(leaf, torch.Tensor)}
    return found


def numbers_of(given):
    """Counts and schedules, by name."""
    collector = given.get("collector")
    if isinstance(frames := private(collector, "_frames", None), int):
        yield "frames", frames
        size = getattr(collector, "requested_frames_per_batch", None)  # of all environments
        if isinstance(size, int) and size:
            yield "batches", frames // size
    buffer = given.get("replay_buffer")
    if private(buffer, "_initialized", False) is True:
        yield "rows", len(buffer)
        stored = [leaf for leaf in stored_leaves(buffer) if not leaf.is_inference()]
        yield "writes", min((leaf._version for leaf in stored), default=0)  # of whole rows
        yield "some rows", some_rows(buffer)
    if isinstance(counter := getattr(given.get("target_updater"), "counter", None), int):
        yield "updater", counter  # of a `HardUpdate`
    for number, module in enumerate(exploration_modules(given.get("policy"))):
        yield f"noise {number}", noise_of(module)[1]
    for name in ("env", "eval_env"):
        for number, one in numbered_transforms(given.get(name)):
            if (steps := steps_seen(one)) is not None:
                yield f"{name}.{number}", steps


def some_rows(buffer):
    """Actions, rewards and observations of rows all over a storage: by place, then by key."""
    data, size = stored_data(buffer), getattr(buffer.storage, "max_size", 0)
    if data is None or not len(data):
        return {}
    places = {*range(SOME_PLACES), *(size * n // SOME_PLACES for n in range(SOME_PLACES))}
    places = sorted(place for place in places if place < len(data))
    found = {place: {} for place in places}
    for key in data.keys(True, True):
        leaf = data[key]
        numbers = isinstance(leaf, torch.Tensor) and leaf.shape[1:].numel() <= MOST_NUMBERS
        if numbers and last_part(key) in ("action", "reward", "observation"):
            of_places = leaf[places].reshape(len(places), -1).tolist()
            for place, values in zip(places, of_places, strict=True):
                found[place][key] = values
    return found


SOME_PLACES, MOST_NUMBERS = 32, 64


def steps_seen(norm):
    """How many steps the statistics of *norm* rest on, None where nothing counts them."""
    count = private(norm, "_count", None)
    if not hasattr(count, "values"):
        return None
    return max((int(n) for n in count.values(True, True)), default=0)


INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FLOATS = torch.float32, torch.float64  # a norm in fewer bits may overflow


def traced(tensors):
    """The `Trace` of each tensor that has values, by its name."""
    versions, of_device = {}, {}
    for name, tensor in list(tensors.items())[:MOST_TENSORS]:
        if not isinstance(tensor, torch.Tensor) or is_lazy(tensor) or tensor.is_meta:
            continue
        if tensor.layout is not torch.strided or tensor.is_quantized:  # no sum of their bits
            continue
        data = tensor.detach()
        data = torch.view_as_real(data) if data.is_complex() else data
        bits, values = data, data
        if data.is_floating_point():
            bits = data.view(INTEGERS[data.element_size()])
        if data.dtype not in FLOATS:
            values = data.float()
        # In opposite steps of two entries the sum of the bits may stay what it was.
        norm = torch.linalg.vector_norm(values).float()
        versions[name] = 0 if tensor.is_inference() else tensor._version
        sums = (name, bits.sum(dtype=torch.int64), norm)
        of_device.setdefault(data.device, []).append(sums)
    traces = {}
    for several in of_device.values():  # one transfer for each device
        names, bits, norms = zip(*several, strict=True)
        bits, norms = torch.stack(bits).tolist(), torch.stack(norms).tolist()
        for name, one, norm in zip(names, bits, norms, strict=True):
            traces[name] = Trace(one, norm, versions[name])
    return traces


class Since:
    """What has changed between an earlier `Look` and now: the argument *since* of a check."""

    def __init__(self, before, now):
        self.before, self.now = before, now

    def same(self, owner):
        """Whether *owner*, an argument or a part such as ``"collector.policy"``, is the same."""
        name = owner.partition(".")[0]
        known = self.before.roots.get(name), self.now.roots.get(name)
        return None not in known and known[0]() is not None and known[0]() is known[1]()

    def changed(self, owner):
        """For each tensor of *owner*, by name, whether it changed; empty where nothing tells."""
        if not self.same(owner):
            return {}
        before, now = (one.traces.get(owner, {}) for one in (self.before, self.now))
        pairs = {name: (before[name], now[name]) for name in now if name in before}
        return {name: repr(a[:2]) != repr(b[:2]) for name, (a, b) in pairs.items()}  # NaN is NaN

    def updates(self, owner):
        """About how often tensors of *owner* were changed in place; 0 where nothing counts it."""
        before, now = (one.traces.get(owner, {}) for one in (self.before, self.now))
        grown = [now[name].version - before[name].version for name in now if name in before]
        return max(grown, default=0) if self.same(owner) else 0

    def had_begun(self, owner, updates=FEWEST_UPDATES):
        """Whether *owner* had been trained for a while at the earlier look."""
        then = self.before.traces.get(owner, {})
        return max((one.version for one in then.values()), default=0) >= updates

    def number(self, name, owner):
        """A number of *owner* then and now; None where nothing tells."""
        if name not in self.before.numbers or name not in self.now.numbers or not self.same(owner):
            return None
        return self.before.numbers[name], self.now.numbers[name]

    def seen(self, name):
        """What a `Watching` has seen of the loop, by name; None where nobody watched."""
        return self.before.watched.get(name)

    @property
    def batches(self):
        """How many batches the collector has collected since; 0 where nothing tells."""
        then, now = self.number("batches", "collector") or (0, 0)
        return now - then
