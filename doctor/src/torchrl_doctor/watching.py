"""Watch a training loop while it runs: `with watch(...) as watching:` around it."""

from __future__ import annotations

import contextlib
import functools
import math
import time

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from torchrl_doctor import checks  # registers them in their order  # noqa: F401
from torchrl_doctor.checks.values import follows_rows, in_no_order
from torchrl_doctor.diagnosis import diagnose
from torchrl_doctor.examination import ARGUMENTS
from torchrl_doctor.groups import of_groups
from torchrl_doctor.logs import Log, Series
from torchrl_doctor.looks import FEWEST_BATCHES, Look, parts_of_collector
from torchrl_doctor.objects import (
    FEWEST_UPDATES,
    PADDING,
    TRAJ_IDS,
    begins,
    in_words,
    is_multi_process,
    noisy_in_training,
    recurrent_modules,
    value_key,
)
from torchrl_doctor.private import private

SHARE = 0.005  # of the time that goes by: what watching may take
FREE = 0.05  # seconds that it may take besides: the first call of anything is slow
PENDING = 64  # values that wait on their device, so that one transfer takes them all
MOST_OPEN = 10_000  # episodes that have begun
SHORTEST_S = 60  # a loop's throughput is judged from here on: below, other processes decide it


def watch(
    *,
    collector=None,
    replay_buffer=None,
    loss_module=None,
    value_estimator=None,
    env=None,
    eval_env=None,
    policy=None,
    target_updater=None,
    optimizer=None,
    share=SHARE,
    **options,
):
    """Watch the training loop inside ``with watch(...) as watching:``.

    When the block ends, also by an exception, ``watching.report`` is what `diagnose` says of the
    objects, of what has changed since the loop began, and of the recorded series; *options* go to
    `diagnose`. Recording takes at most about *share* of the time: what would take more is left out.
    """
    given = {name: value for name, value in locals().items() if name in ARGUMENTS}
    return Watching({k: v for k, v in given.items() if v is not None}, share, options)


class Budget:
    """Lets things be done as long as they take at most a *share* of the time that goes by."""

    def __init__(self, share, clock=time.perf_counter):
        self.share, self.clock = share, clock
        self.free = FREE if share else 0.0
        self.spent = 0.0
        self.started = clock()
        self.left_out = 0

    @property
    def used(self):
        """The share of the time that was taken so far."""
        return self.spent / max(self.clock() - self.started, 1e-9)

    def spend(self, function, *arguments, always=False):
        """Call the function and count its time; False where there is no time for it.

        What is *always* done uses up time that others then lack.
        """
        before = self.clock()
        if self.spent > self.free + self.share * (before - self.started) and not always:
            self.left_out += 1
            return False
        try:
            function(*arguments)
        finally:
            self.spent += self.clock() - before
        return True


class Returns:
    """The returns of episodes whose beginning and end were seen, from batch to batch."""

    def __init__(self):
        self.open = {}
        self.complete = None  # whether every batch since the first reset was seen

    def forget(self):
        """A batch was left out: what goes on from there is not known."""
        self.open, self.complete = {}, False

    def of(self, batch):
        rewards, done, ids = (
            batch.get(key, None) for key in (("next", "reward"), ("next", "done"), TRAJ_IDS)
        )
        if rewards is None or done is None or not batch.ndim:
            return []
        summed = batch.get(("next", "episode_reward"), None)
        if summed is not None and summed.shape == done.shape:
            return summed[done].tolist()
        if ids is None or rewards.numel() != ids.numel() or PADDING in batch.keys(True):
            return []
        if self.complete is None:
            self.complete = begins(batch)
        rewards, done, ids = (x.reshape(-1, batch.shape[-1]).cpu() for x in (rewards, done, ids))
        going_on = set() if self.complete else set(ids[:, 0].tolist())
        names, place = ids.reshape(-1).unique(return_inverse=True)
        sums = torch.zeros(len(names), dtype=torch.float64)
        sums.index_add_(0, place, rewards.reshape(-1).double())
        ended = set(ids[done].tolist())
        returns = []
        for name, total in zip(names.tolist(), sums.tolist(), strict=True):
            if name in going_on and name not in self.open:
                continue
            total += self.open.pop(name, 0.0)
            if name in ended:
                returns.append(total)
            elif len(self.open) < MOST_OPEN:
                self.open[name] = total
        return returns


def no_hook(module, arguments, losses):
    """What a copy of a watched loss has in place of the hook."""


def no_hook_of_mine():
    return no_hook


class Hook:
    """A forward hook that goes into no copy of its module."""

    def __init__(self, function):
        self.function = function

    def __call__(self, module, arguments, losses):
        self.function(losses, arguments)

    def __deepcopy__(self, memo):
        return no_hook

    def __reduce__(self):
        return no_hook_of_mine, ()


class Gradients:
    """Whether gradients are set to zero between the steps of optimizers, as one parameter tells.

    What a ``backward`` adds and what anybody sets to zero each count as one change in place.
    """

    def __init__(self):
        self.longest = 0  # steps one after another without
        self.kept = 0  # steps without, all together
        self.of = {}  # an optimizer: what is known of its smallest parameter

    def see(self, optimizer, held, undo):
        """An optimizer is about to step."""
        if id(optimizer) not in self.of:
            parameter = min(held, key=torch.Tensor.numel)
            self.of[id(optimizer)] = known = {"parameter": parameter, "steps": 0, "gradient": None}
            known |= {"added": 0, "changes": 0}
            hook = parameter.register_post_accumulate_grad_hook(lambda one: self.added(known))
            undo.callback(hook.remove)
        known = self.of[id(optimizer)]
        gradient = known["parameter"].grad
        same = gradient is not None and gradient is known["gradient"] and known["added"]
        kept = same and known["at"] - known["changes"] == known["added"]
        known["steps"] = known["steps"] + 1 if kept else 0
        self.kept += bool(kept)
        self.longest = max(self.longest, known["steps"])
        known |= {"gradient": gradient, "added": 0}
        known["changes"] = 0 if gradient is None else gradient._version

    def added(self, known):
        """A ``backward`` has added to the gradient."""
        known["added"] += 1
        known["at"] = known["parameter"].grad._version


FEW_ORDERS = 8  # batches of an estimator of which the order is looked at


def rows_in(arguments):
    """How many rows a loss is called with; 0 where nothing says it."""
    rows = next(iter(arguments), None)
    return rows.numel() if hasattr(rows, "batch_size") else 0


class Learner:
    """What is seen of one loss, of its estimator and of the optimizers that hold its parameters."""

    def __init__(self, loss):
        self.names = {id(one): name for name, one in getattr(loss, "named_parameters", dict)()}
        self.steps = self.losses = 0  # calls of the loss, and those with gradients
        self.held, self.without, self.with_gradient = set(), set(), set()
        self.shapes = {}  # of what the loss and the estimator get
        self.modes = set()  # recurrent or not, of the estimator's critic
        self.drawn = 0  # calls of the loss with rows that have their index in a buffer
        self.fresh = 0  # steps of optimizers that keep moments, and had none yet
        self.gradients = Gradients()
        self.pulls = {}  # of each loss: the gradients that a ``backward`` begins with
        self.maximize = set()  # of optimizers with parameters of the loss
        self.learned = {}  # of each loss: how many rows a ``backward`` has come to
        self.rates = {}  # of each optimizer: the `Rates` of its steps
        self.orders = []  # of what the estimator gets: how its rows are in no order, if they are

    def pull(self, name, rows, gradient):
        """A ``backward`` has come to a loss of so many rows."""
        self.learned[name] = self.learned.get(name, 0) + rows
        kept = self.pulls.setdefault(name, [])
        if len(kept) < PENDING:
            kept.append(gradient.detach().clone())

    def keep_order(self, estimator, arguments):
        """Whether the rows that an estimator gets follow one another."""
        rows = next(iter(arguments), None)
        if len(self.orders) < FEW_ORDERS and getattr(rows, "ndim", 0) and follows_rows(estimator):
            done_key = value_key("done", None, estimator)
            critic = getattr(estimator, "value_network", None)
            self.orders.append(in_no_order(rows, estimator, critic, done_key))

    def keep_shape(self, name, arguments):
        rows = next(iter(arguments), None)
        shape = getattr(rows, "batch_size", None)
        if shape is not None:
            self.shapes[name] = tuple(shape)
            self.drawn += name == "loss_module" and rows.get("index", None) is not None

    def optimized(self, steps):
        """Which trainable parameters of the loss no optimizer holds, and which had no gradient."""
        return {
            "steps": steps,
            "losses": self.losses,
            "not held": sorted(set(self.names.values()) - self.held),
            "no gradient": sorted(self.without - self.with_gradient),
        }


class Rates:
    """Of the learning rates of an optimizer, whose number has no bound, what tells their course."""

    def __init__(self):
        self.count, self.place = 0, 0  # of steps, and before the least rate
        self.highest, self.least, self.last = 0.0, math.inf, math.inf
        self.before, self.after = 0.0, 0.0  # the highest until the least rate, and since
        self.rise = 0.0  # the longest in one step, since the least rate

    def see(self, rate):
        self.highest = max(self.highest, rate)
        if rate < self.least:
            self.least, self.place = rate, self.count
            self.before, self.after, self.rise = self.highest, rate, 0.0
        self.after, self.rise = max(self.after, rate), max(self.rise, rate - self.last)
        self.last = rate
        self.count += 1


class SeenIterator:
    """``collector.iterator`` that shows each batch; a copy of the collector gets its own."""

    def __init__(self, collector, see):
        self.collector, self.see = collector, see
        self.original = collector.iterator

    def __call__(self):
        batches = self.original()
        try:
            for batch in batches:
                self.see(batch)
                yield batch
        finally:
            if hasattr(batches, "close"):
                batches.close()

    def __deepcopy__(self, memo):
        twin = memo.get(id(self.collector), self.collector)
        return type(twin).iterator.__get__(twin)


class Watching:
    """A loop under observation: `report` when it has ended, `series` by name at any time."""

    def __init__(self, given, share, options):
        self.given = given
        self.options = options
        self.report = None
        self.notes = []
        self.updates = self.batches = 0
        self.collected = 0  # rows of all batches
        self.learned, self.frames = 0, None  # batches after which the loop trained, and the last
        self.budget = Budget(share)
        self.recorded, self.pending = {}, []
        self.returns = Returns()
        self.arrived = None  # when the last batch did
        self.last = None  # batch that the doctor could not collect itself, as the loop left it
        losses = of_groups(given.get("loss_module"))
        self.learners = {group: Learner(loss) for group, loss in losses.items()}
        self.middle, self.at_middle = None, (0, 0)
        self.modes = set()  # training or not, of layers that compute something else in it
        self.versions = []  # of the policy: those in a batch, and that of the collector
        self.undo = contextlib.ExitStack()

    # -- What the reader calls -------------------------------------------------

    @property
    def series(self):
        """What was recorded, by name."""
        self.flush()
        return dict(self.recorded)

    @property
    def steps(self):
        """How often a loss was called; of several, the one that was called most."""
        return max(one.steps for one in self.learners.values())

    @property
    def overhead(self):
        """The share of the time that recording has taken."""
        return self.budget.used

    def record(self, batch=None, **values):
        """Record a batch that no collector has yielded, or numbers, under their names."""
        if batch is not None:
            self.last = batch
            self.see_batch(batch)
        for name, value in values.items():
            self.add(name, self.steps, value)

    # -- The block -------------------------------------------------------------

    def __enter__(self):
        self.looked_at = self.given | parts_of_collector(self.given.get("collector"), self.given)
        self.start = self.look_now()
        self.budget = Budget(self.budget.share)
        self.began = self.budget.clock()
        for group, loss in of_groups(self.given.get("loss_module")).items():
            if isinstance(loss, torch.nn.Module):
                self.watch_loss(loss, group)
        if any(one.names for one in self.learners.values()):
            self.undo.callback(register_optimizer_step_pre_hook(self.on_step).remove)
        for group, estimator in of_groups(self.given.get("value_estimator")).items():
            if isinstance(estimator, torch.nn.Module):
                critic = getattr(estimator, "value_network", None)
                self.hook(estimator, self.on_estimate, group, recurrent_modules(critic))
        for policy in of_groups(self.looked_at.get("policy")).values():
            for layer in noisy_in_training(policy):
                self.hook(layer, self.on_action, layer)
        if "collector" in self.given:
            self.watch_collector(self.given["collector"])
        return self

    def __exit__(self, kind, error, traceback):
        self.undo.close()
        self.flush()
        if kind is not None and issubclass(kind, (SystemExit, GeneratorExit)):
            return
        updates, batches = self.at_middle
        many = self.updates - updates >= FEWEST_UPDATES
        enough = many and self.batches - batches >= FEWEST_BATCHES
        since = self.middle if self.middle and enough else self.start
        if since:
            self.tell(since)
        given = dict(self.given)
        if self.last is not None:
            given.setdefault("batch", self.last)
        if isinstance(error, Exception):
            given["error"] = error
        untold = {"fps"} if self.budget.clock() - self.began < SHORTEST_S else set()
        series = [one for name, one in self.recorded.items() if len(one) and name not in untold]
        log = Log(series) if series else None
        try:
            self.report = diagnose(**given, since=since, log=log, **self.options)
        except Exception as own:
            if error is None:
                raise
            self.notes.append(f"no report: {in_words(own)}")
            return
        self.report.notes += self.notes

    def hook(self, module, function, *more):
        """Call the function after each call of the module."""
        hook = Hook(functools.partial(function, *more))
        self.undo.callback(module.register_forward_hook(hook).remove)

    def watch_loss(self, loss, group):
        if loss._compiled_call_impl is not None:
            self.notes.append("The loss is compiled, so its values were not recorded.")
            return
        self.hook(loss, self.on_loss, group)

    def watch_collector(self, collector):
        if not callable(getattr(collector, "iterator", None)) or "iterator" in vars(collector):
            self.notes.append("The batches of this collector are not seen; use record(batch).")
            return
        collector.iterator = SeenIterator(collector, self.see_batch)
        self.undo.callback(delattr, collector, "iterator")

    # -- What happens in the loop ----------------------------------------------

    def safely(self, function, *arguments):
        """Whether the function was called; nothing that it raises reaches the reader's loop."""
        try:
            return self.budget.spend(function, *arguments)
        except Exception as error:
            if len(self.notes) < 10:
                self.notes.append(f"watching: {in_words(error)}")
            return True

    def learner(self, group):
        """That of a group; where all groups share a loss, the only one."""
        return self.learners.get(group) or next(iter(self.learners.values()))

    def on_estimate(self, group, modules, returned, arguments):
        learner = self.learner(group)
        learner.modes |= {module.recurrent_mode for module in modules}
        self.safely(learner.keep_shape, "value_estimator", arguments)
        estimator = of_groups(self.given["value_estimator"]).get(group)
        self.safely(learner.keep_order, estimator, arguments)

    def on_action(self, layer, returned, arguments):
        """Keep the mode of a layer when the policy acts, without gradients."""
        if not torch.is_grad_enabled():
            self.modes.add(layer.training)

    def on_loss(self, group, losses, arguments):
        self.learners[group].steps += 1
        self.learners[group].losses += torch.is_grad_enabled()
        self.safely(self.learners[group].keep_shape, "loss_module", arguments)
        self.safely(self.keep_losses, group, losses, rows_in(arguments))
        if "collector" not in self.given:
            self.look_again()

    def keep_losses(self, group, losses, rows):
        if isinstance(losses, torch.Tensor):
            losses = {"loss": losses}
        if not hasattr(losses, "items"):
            return
        for name, value in losses.items():
            if isinstance(name, str) and isinstance(value, torch.Tensor) and value.numel() == 1:
                if value.grad_fn is not None:
                    value.register_hook(functools.partial(self.learners[group].pull, name, rows))
                value = value.detach().reshape(())
                self.pending.append((name, self.learners[group].steps, value, group))
        if len(self.pending) >= PENDING:
            self.flush()

    def on_step(self, optimizer, arguments, keywords):
        self.updates += 1
        before, self.frames = self.frames, private(self.given.get("collector"), "_frames", None)
        self.learned += before != self.frames
        for group in self.learners:
            self.safely(self.keep_gradients, group, optimizer)

    def keep_gradients(self, group, optimizer):
        learner = self.learners[group]
        names = learner.names
        held = [one for part in optimizer.param_groups for one in part["params"]]
        held = [one for one in held if id(one) in names]
        if not held:
            return
        learner.gradients.see(optimizer, held, self.undo)
        moments = any("betas" in part for part in optimizer.param_groups)
        learner.fresh += moments and not optimizer.state
        rate = optimizer.param_groups[0].get("lr")
        if isinstance(rate, float):
            learner.rates.setdefault(id(optimizer), Rates()).see(rate)
        learner.held |= {names[id(one)] for one in held}
        learner.maximize |= {bool(part.get("maximize")) for part in optimizer.param_groups}
        none = {names[id(one)] for one in held if one.grad is None}
        learner.without |= none
        learner.with_gradient |= {names[id(one)] for one in held} - none
        gradients = [one.grad.detach() for one in held if one.grad is not None]
        if gradients:
            norms = torch.stack([torch.linalg.vector_norm(one) for one in gradients])
            norm = torch.linalg.vector_norm(norms)
            self.pending.append(("grad_norm", self.updates, norm, group))

    def see_batch(self, batch):
        self.batches += 1
        self.collected += 0 if batch is None else batch.numel()
        if is_multi_process(self.given.get("collector"), "MultiSyncCollector"):
            self.last = batch
        if batch is not None:
            now = self.budget.clock()
            if self.arrived is not None and now > self.arrived:
                self.add("fps", self.batches, batch.numel() / (now - self.arrived))
            self.arrived = now
        if batch is not None and not self.safely(self.keep_batch, batch):
            self.returns.forget()
        self.look_again()

    def keep_batch(self, batch):
        acted = batch.get(("next", "policy_version"), None)
        if isinstance(acted, torch.Tensor) and len(self.versions) < PENDING:
            now = getattr(self.given.get("collector"), "policy_version", None)
            self.versions.append((acted.unique().tolist(), now))
        returns = self.returns.of(batch)
        if returns:
            self.add("episode_reward", self.batches, sum(returns) / len(returns))

    def look_again(self):
        """Look a second time once the loop is under way: some symptoms need a loop that learns."""
        if self.at_middle == (0, 0) and self.updates >= FEWEST_UPDATES:
            self.at_middle = self.updates, self.batches
            self.budget.spend(self.keep_look, always=True)

    def keep_look(self):
        self.middle = self.look_now()

    def look_now(self):
        try:
            return Look(self.looked_at)
        except Exception as error:
            self.notes.append(f"watching: {in_words(error)}")
            return None

    def tell(self, since):
        """Add to an earlier look what the loop was seen to do since, of each group its own."""
        for group, look in (since.groups or {None: since}).items():
            learner = self.learner(group)
            look.optimized = learner.optimized(self.updates)
            look.watched = {
                "shapes": learner.shapes,
                "learned": self.learned,
                "modes": self.modes,
                "modes of the estimator": learner.modes,
                "drawn": learner.drawn,
                "steps without moments": learner.fresh,
                "versions": self.versions,
                "steps without zero_grad": learner.gradients.longest,
                "steps with old gradients": learner.gradients.kept,
                "rows learned": learner.learned,
                "rows collected": max(self.collected, self.came()),
                "rates": list(learner.rates.values()),
                "orders": learner.orders,
                "pulls": {k: torch.stack(v).tolist() for k, v in learner.pulls.items()},
                "maximize": learner.maximize,
            }

    def came(self):
        """How many frames the collector has collected since the block began; 0 where it is mute."""
        then = (self.start.numbers if self.start else {}).get("frames")
        now = private(self.given.get("collector"), "_frames", None)
        return 0 if then is None or now is None else now - then

    def add(self, name, step, value, group=None):
        key = name if group is None else f"{group}: {name}"
        if key not in self.recorded:
            self.recorded[key] = Series(name)
            self.recorded[key].name = key  # what kind it is, the group does not tell
        self.recorded[key].add(step, value)

    def flush(self):
        pending, self.pending = self.pending, []
        of_device = {}
        for one in pending:
            of_device.setdefault(one[2].device, []).append(one)
        for several in of_device.values():
            values = torch.stack([one[2].float() for one in several]).tolist()
            for (name, step, _, group), value in zip(several, values, strict=True):
                self.add(name, step, value, group)
