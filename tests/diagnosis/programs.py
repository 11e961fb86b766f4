"""Small trainings of the sorts that autograd sees only in part: what passes `detach`, `no_grad`,
frozen layers and buffers, two optimizers in a step, models in eval mode.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    log_softmax,
    mse_loss,
)

import anchorlib


def chain(*sizes: int) -> nn.Sequential:
    """Linear layers with tanh between them."""
    layers: list[nn.Module] = []
    for one, two in pairwise(sizes):
        layers += [nn.Linear(one, two), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Program:
    """One training: `__init__` takes what two runs do otherwise, `step` is one step of it."""

    steps = 3

    def record(self, run: str, store: Any, steps: int | None = None) -> None:
        """Train and record everything."""
        torch.manual_seed(1)
        with anchorlib.start(run, store=store, overwrite=True, recorder="thread") as session:
            self.watch(session)
            for number in range(self.steps if steps is None else steps):
                self.step(number)

    def watch(self, session: anchorlib.Session) -> None:
        """What is recorded: by default one model and its optimizer."""
        session.watch(self.model, tensors="*", optimizer=self.optimizer)

    def update(self, loss: torch.Tensor, optimizer: Any = None, name: str = "loss") -> None:
        """Backward and the optimizer's step."""
        optimizer = self.optimizer if optimizer is None else optimizer
        anchorlib.anchor(loss, name)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Gan(Program):
    """A discriminator's step, then a generator's, each with its own optimizer."""

    def __init__(self, *, betas=(0.5, 0.999), detach=True, given=1.0, weigh=1.0, lead=1.0) -> None:
        torch.manual_seed(0)
        self.generator, self.critic = chain(8, 32, 16), chain(16, 32, 1)
        self.of_generator = torch.optim.Adam(self.generator.parameters(), 1e-3, (0.5, 0.999))
        self.of_critic = torch.optim.Adam(self.critic.parameters(), 1e-3, betas)
        self.detach, self.given, self.weigh, self.lead = detach, given, weigh, lead

    def watch(self, session):
        session.watch(self.generator, prefix="g", tensors="*", optimizer=self.of_generator)
        session.watch(self.critic, prefix="d", tensors="*", optimizer=self.of_critic)

    def step(self, number):
        real, drawn = torch.randn(64, 16), torch.randn(64, 8)
        fake = self.generator(drawn)
        shown = fake.detach() if self.detach else fake
        shown = shown * self.given if self.given != 1 else shown
        loss = (self._judged(real, 1.0) + self._judged(shown, 0.0)) * self.weigh
        anchorlib.anchor(loss, "loss_d")
        self.of_critic.zero_grad()
        loss.backward(retain_graph=not self.detach)
        self.of_critic.step()
        again = fake if self.detach else self.generator(drawn)
        self.update(self._judged(again, 1.0) * self.lead, self.of_generator, "loss_g")

    def _judged(self, x, truth):
        return binary_cross_entropy_with_logits(self.critic(x), torch.full((64, 1), truth))


class Frozen(Program):
    """A head trained on a body that is frozen, and by choice runs under `no_grad`."""

    def __init__(self, *, eps=1e-5, no_grad=False) -> None:
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64, eps=eps), nn.Linear(64, 64))
        self.model = Behind(body.requires_grad_(False), nn.Linear(64, 10), no_grad=no_grad)
        self.optimizer = torch.optim.SGD(self.model.head.parameters(), lr=0.1)

    def step(self, number):
        x, y = torch.randn(32, 16), torch.randint(0, 10, (32,))
        self.update(cross_entropy(self.model(x), y))


class Behind(nn.Module):
    """A head behind a body."""

    def __init__(self, body, head, *, no_grad) -> None:
        super().__init__()
        self.body, self.head, self.no_grad = body, head, no_grad

    def forward(self, x):
        """What the head says of the body's output."""
        with torch.no_grad() if self.no_grad else nullcontext():
            x = self.body(x)
        return self.head(x)


class Adapted(Program):
    """A low-rank adapter beside a frozen layer; its dropout reads the data themselves."""

    def __init__(self, *, p=0.1) -> None:
        torch.manual_seed(0)
        self.model = Adapter(p)
        trained = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=0.1)

    def step(self, number):
        torch.manual_seed(number)
        x, y = torch.randn(32, 16), torch.randint(0, 10, (32,))
        self.update(cross_entropy(self.model(x), y))


class Adapter(nn.Module):
    """LoRA."""

    def __init__(self, p) -> None:
        super().__init__()
        self.base, self.drop = nn.Linear(16, 10).requires_grad_(False), nn.Dropout(p)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 10, bias=False)

    def forward(self, x):
        """The frozen layer's output and the adapter's."""
        return self.base(x) + self.up(self.down(self.drop(x)))


class ActorCritic(Program):
    """Advantages made under `no_grad`, two epochs of two optimizers."""

    def __init__(self, *, gamma=0.99, correction=0) -> None:
        torch.manual_seed(0)
        self.actor, self.critic = chain(8, 32, 4), chain(8, 32, 1)
        self.of_actor = torch.optim.Adam(self.actor.parameters(), 1e-3)
        self.of_critic = torch.optim.Adam(self.critic.parameters(), 1e-3)
        self.gamma, self.correction = gamma, correction

    def watch(self, session):
        self.session = session
        session.watch(self.actor, prefix="pi", tensors="*", optimizer=self.of_actor)
        session.watch(self.critic, prefix="v", tensors="*", optimizer=self.of_critic)

    def step(self, number):
        seen, reward, action = torch.randn(65, 8), torch.randn(64), torch.randint(0, 4, (64, 1))
        with torch.no_grad():
            values = self.critic(seen).squeeze(-1)
            advantages = reward + self.gamma * values[1:] - values[:-1]
            anchorlib.anchor(advantages, "advantages")
            spread = advantages.std(correction=self.correction)
            normed = anchorlib.anchor((advantages - advantages.mean()) / spread, "normed")
            before = self._chosen(seen, action)
        for _ in range(2):
            ratio = (self._chosen(seen, action) - before).exp()
            self.update(-(ratio * normed).mean(), self.of_actor, "loss_pi")
            error = self.critic(seen[:64]).squeeze(-1) - advantages - values[:-1]
            self.update(error.square().mean(), self.of_critic, "loss_v")
        self.session.step()

    def _chosen(self, seen, action):
        return log_softmax(self.actor(seen[:64]), -1).gather(1, action).squeeze(1)


class Carried(Program):
    """A recurrent cell whose state is handed on through `detach`."""

    steps = 4

    def __init__(self, *, lr=0.1, damp=1.0) -> None:
        torch.manual_seed(0)
        self.model = Recurrent()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.damp, self.state = damp, (torch.zeros(64, 32), torch.zeros(64, 32))

    def step(self, number):
        out, state = self.model(torch.randn(64, 8), self.state)
        self.update(mse_loss(out, torch.randn(64, 8)))
        by = self.damp if number == 1 else 1.0
        self.state = tuple(one.detach() * by if by != 1 else one.detach() for one in state)


class Recurrent(nn.Module):
    """An LSTM cell between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Linear(8, 16), nn.LSTMCell(16, 32)
        self.out = nn.Linear(32, 8)

    def forward(self, x, state):
        """The output and the next state."""
        state = self.cell(self.embed(x), state)
        return self.out(state[0]), state


class Rotated(Program):
    """Rotary positions, whose table is a buffer."""

    def __init__(self, *, base=10_000.0, seed=0) -> None:
        torch.manual_seed(seed)
        self.model = Rotary(base)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self, number):
        x, y = torch.randn(4, 12, 16), torch.randint(0, 10, (48,))
        self.update(cross_entropy(self.model(x).flatten(0, 1), y))


class Rotary(nn.Module):
    """One head of attention-like mixing."""

    def __init__(self, base) -> None:
        super().__init__()
        self.q, self.out = nn.Linear(16, 16), nn.Linear(16, 10)
        angles = torch.outer(torch.arange(12.0), base ** (-torch.arange(0, 8) / 8))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x):
        """Rotated queries, mixed."""
        a, b = self.q(x).chunk(2, -1)
        q = torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], -1)
        return self.out(torch.softmax(q @ q.mT, -1) @ x)


class Moded(Program):
    """Batch norm and dropout; `layer` (None: the model) goes to eval mode before step `since`.

    parts: micro-batches of each step. looks: the step before which the model is evaluated.
    """

    steps = 4

    def __init__(self, *, layer=None, since=None, plain=False, parts=1, looks=None) -> None:
        torch.manual_seed(0)
        inside = [nn.ReLU()] if plain else [nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1)]
        self.model = nn.Sequential(nn.Linear(16, 64), *inside, nn.Linear(64, 10))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.layer, self.since, self.parts, self.looks = layer, since, parts, looks

    def step(self, number):
        torch.manual_seed(number)
        x, y = torch.randn(32, 16), torch.randint(0, 10, (32,))
        if number == self.looks:
            with torch.no_grad():
                anchorlib.anchor(cross_entropy(self.model.eval()(x.tanh()), y), "eval_loss")
            self.model.train()
        if number == self.since:
            (self.model if self.layer is None else self.model[self.layer]).eval()
        self.optimizer.zero_grad()
        for some, labels in zip(x.chunk(self.parts), y.chunk(self.parts), strict=True):
            loss = cross_entropy(self.model(some), labels) / self.parts
            anchorlib.anchor(loss, "loss").backward()
        self.optimizer.step()
