"""Small environments of one's own, as users write them; healthy, and quick on a CPU."""

import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, OneHot, Unbounded
from torchrl.envs import EnvBase


class Corridor(EnvBase):
    """Walk to the right end of a corridor; a time limit truncates.

    ``observation`` has the position, the remaining way and the time; with *image* the position is
    a bright column of ``pixels``; with *mask* the left wall forbids a step to the left.
    """

    length = 5.0
    limit = 12

    def __init__(self, *, batch_size=(), continuous=False, image=False, mask=False, goal=False):
        super().__init__(batch_size=torch.Size(batch_size))
        self.image, self.mask, self.goal = image, mask, goal
        self.continuous = continuous
        shape = self.batch_size
        observed = Composite(shape=shape)
        if image:
            observed["pixels"] = Bounded(0, 255, (*shape, 1, 12, 12), dtype=torch.uint8)
        else:
            observed["observation"] = Unbounded((*shape, 3))
        if mask:
            observed["action_mask"] = Binary(shape=(*shape, 2), dtype=torch.bool)
        if goal:
            observed["goal"] = Unbounded((*shape, 1))
        self.observation_spec = observed
        if continuous:
            self.action_spec = Bounded(-2.0, 2.0, (*shape, 1))
        else:
            self.action_spec = OneHot(2, (*shape, 2))
        self.reward_spec = Unbounded((*shape, 1))
        flags = {
            name: Categorical(2, (*shape, 1), dtype=torch.bool)
            for name in ("done", "terminated", "truncated")
        }
        self.done_spec = Composite(flags, shape=shape)
        self.generator = torch.Generator()

    def _set_seed(self, seed):
        self.generator.manual_seed(seed or 0)

    def start(self):
        return 2 * torch.rand((*self.batch_size, 1), generator=self.generator)

    def observed(self):
        to_go = self.target - self.place
        seen = {"observation": torch.cat([self.place, to_go, self.time / self.limit], -1)}
        if self.image:
            column = self.place.clamp(0, 11).long()
            picture = torch.nn.functional.one_hot(column, 12).squeeze(-2)
            picture = picture[..., None, None, :].expand(*self.batch_size, 1, 12, 12)
            seen = {"pixels": (200 * picture).to(torch.uint8)}
        if self.mask:
            allowed = torch.cat([self.place >= 1, torch.ones_like(self.place, dtype=bool)], -1)
            seen["action_mask"] = allowed
        if self.goal:
            seen["goal"] = self.target.clone()
        return seen

    def flags(self):
        terminated = self.place >= self.target
        truncated = self.time >= self.limit
        return {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}

    def _reset(self, tensordict):
        which = None if tensordict is None else tensordict.get("_reset", None)
        place = self.start()
        target = torch.full_like(place, self.length)
        if self.goal:
            target += 2 * torch.rand(target.shape, generator=self.generator)
        if which is None:
            self.place, self.target, self.time = place, target, torch.zeros_like(place)
        else:
            which = which.reshape(place.shape)
            self.place = torch.where(which, place, self.place)
            self.target = torch.where(which, target, self.target)
            self.time = torch.where(which, 0.0, self.time)
        return self.written(self.flags())

    def move(self, action):
        if self.continuous:
            return action.clamp(-2, 2)
        return 2.0 * action.argmax(-1, keepdim=True) - 1

    def reward(self, moved):
        return moved - 0.1

    def _step(self, tensordict):
        moved = self.move(tensordict["action"])
        self.place = (self.place + moved).clamp_min(0.0)
        self.time = self.time + 1
        return self.written(self.flags() | {"reward": self.reward(moved)})

    def written(self, more):
        from tensordict import TensorDict

        return TensorDict(self.observed() | more, batch_size=self.batch_size)


class Team(EnvBase):
    """Three agents of one group meet at the middle of a line; the reward is theirs together."""

    agents = 3
    limit = 10

    def __init__(self, *, continuous=False, state=False, common_reward=False):
        super().__init__(batch_size=torch.Size([]))
        number = self.agents
        self.continuous, self.state, self.common_reward = continuous, state, common_reward
        group = Composite(observation=Unbounded((number, 2)), shape=(number,))
        self.observation_spec = Composite(agents=group)
        if state:
            self.observation_spec["state"] = Unbounded((number,))
        action = Bounded(-1.0, 1.0, (number, 1)) if continuous else OneHot(3, (number, 3))
        self.action_spec = Composite(agents=Composite(action=action, shape=(number,)))
        if common_reward:
            self.reward_spec = Unbounded((1,))
        else:
            rewards = Composite(reward=Unbounded((number, 1)), shape=(number,))
            self.reward_spec = Composite(agents=rewards)
        self.done_spec = Composite(
            {
                name: Categorical(2, (1,), dtype=torch.bool)
                for name in ("done", "terminated", "truncated")
            }
        )
        self.generator = torch.Generator()

    def _set_seed(self, seed):
        self.generator.manual_seed(seed or 0)

    def written(self):
        from tensordict import TensorDict

        others = self.places.mean().expand_as(self.places)
        seen = torch.stack([self.places, others], -1)
        done = torch.tensor([self.time >= self.limit])
        flags = {"done": done, "terminated": torch.zeros_like(done), "truncated": done.clone()}
        out = TensorDict(flags)
        out["agents"] = TensorDict({"observation": seen}, batch_size=[self.agents])
        if self.state:
            out["state"] = self.places.clone()
        return out

    def _reset(self, tensordict):
        self.places = 2 * torch.rand(self.agents, generator=self.generator) - 1
        self.time = 0
        return self.written()

    def _step(self, tensordict):
        action = tensordict["agents", "action"]
        moved = action.squeeze(-1) if self.continuous else action.argmax(-1) - 1.0
        self.places = (self.places + 0.1 * moved).clamp(-1, 1)
        self.time += 1
        out = self.written()
        reward = -self.places.square()
        if self.common_reward:
            out["reward"] = reward.mean().reshape(1)
        else:
            out["agents", "reward"] = reward.unsqueeze(-1)
        return out


class Prompts(EnvBase):
    """Each prompt is answered several times, by one action that ends the episode."""

    prompts, answers, words = 4, 3, 5

    def __init__(self):
        super().__init__(batch_size=torch.Size([self.prompts * self.answers]))
        shape = self.batch_size
        self.observation_spec = Composite(observation=Unbounded((*shape, self.words)), shape=shape)
        self.action_spec = OneHot(self.words, (*shape, self.words))
        self.reward_spec = Unbounded((*shape, 1))
        flags = {
            name: Categorical(2, (*shape, 1), dtype=torch.bool) for name in ("done", "terminated")
        }
        self.done_spec = Composite(flags, shape=shape)
        self.generator = torch.Generator()

    def _set_seed(self, seed):
        self.generator.manual_seed(seed or 0)

    def written(self, done, **more):
        from tensordict import TensorDict

        done = torch.full((*self.batch_size, 1), done)
        flags = {"done": done, "terminated": done.clone()}
        return TensorDict({"observation": self.prompt.clone()} | flags | more, self.batch_size)

    def _reset(self, tensordict):
        prompts = torch.randn(self.prompts, self.words, generator=self.generator)
        self.prompt = prompts.repeat_interleave(self.answers, 0)
        return self.written(False)

    def _step(self, tensordict):
        right = tensordict["action"].argmax(-1) == self.prompt.argmax(-1)
        return self.written(True, reward=right.float().unsqueeze(-1))
