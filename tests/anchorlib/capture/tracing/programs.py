"""Small trainings of every kind, each run with and without a trace."""

from __future__ import annotations

import contextlib
import functools
import gc

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from anchorlib.operations import read_entries
from tests.recording import recording


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)
        self.tanh1, self.tanh2 = nn.Tanh(), nn.Tanh()

    def forward(self, x):
        return self.fc3(self.tanh2(self.fc2(self.tanh1(self.fc1(x)))))


class Transformer(nn.Module):
    def __init__(self, *, reentrant=None):
        super().__init__()
        self.reentrant = reentrant
        self.embed = nn.Linear(6, 16)
        layer = {"dim_feedforward": 32, "dropout": 0.1, "batch_first": True}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, activation=functional.gelu, **layer) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x):
        h = self.embed(x.view(-1, 1, 6).expand(-1, 4, 6))
        for block in self.blocks:
            if self.reentrant is None:
                h = block(h)
            else:
                h = checkpoint(block, h, use_reentrant=self.reentrant)
        return self.head(self.norm(h)).mean(1)


def plain_step(model, optimizer, x, y):
    optimizer.zero_grad()
    functional.mse_loss(model(x), y).backward()
    optimizer.step()


def accumulating_step(model, optimizer, x, y):
    optimizer.zero_grad()
    for half in range(2):
        functional.mse_loss(model(x[half::2]), y[half::2]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def autocast_step(model, optimizer, x, y):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = functional.mse_loss(model(x).float(), y)
    loss.backward()
    optimizer.step()


def functional_step(model, optimizer, x, y):
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, x, y):
        return functional.mse_loss(torch.func.functional_call(model, parameters, (x,)), y)

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    for name, p in model.named_parameters():
        p.grad = found[name].mean(0)
    optimizer.step()


def closure_step(model, optimizer, x, y):
    def closure():
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)


def adam(**options):
    return lambda parameters: torch.optim.Adam(parameters, lr=0.01, **options)


def compiled(backend):
    def call(model):
        torch._dynamo.reset()
        return torch.compile(model, backend=backend)

    return call


SITUATIONS = {
    "adam": (Net, adam(foreach=False), plain_step, None),
    "foreach": (Net, adam(foreach=True), plain_step, None),
    "fused": (Net, adam(fused=True), plain_step, None),
    "sgd": (Net, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), accumulating_step, None),
    "lbfgs": (Net, lambda p: torch.optim.LBFGS(p, max_iter=2), closure_step, None),
    "transformer": (Transformer, adam(), plain_step, None),
    "reentrant": (lambda: Transformer(reentrant=True), adam(), plain_step, None),
    "not reentrant": (lambda: Transformer(reentrant=False), adam(), plain_step, None),
    "autocast": (Transformer, adam(), autocast_step, None),
    "bfloat16": (lambda: Transformer().bfloat16(), adam(), plain_step, None),
    "vmap of grad": (Net, adam(), functional_step, None),
    "aot_eager": (Transformer, adam(), plain_step, compiled("aot_eager")),
    "inductor": (Net, adam(), plain_step, compiled("inductor")),
    "inductor, bfloat16": (
        lambda: Net().bfloat16(),
        adam(),
        accumulating_step,
        compiled("inductor"),
    ),
    "aot_eager, bfloat16": (
        lambda: Transformer().bfloat16(),
        adam(),
        plain_step,
        compiled("aot_eager"),
    ),
}


@functools.cache
def train(situation, *, traced, steps=3, watched="*", values=()):
    """Losses are in the weights: those after `steps` steps, and the operations, where traced.

    Each training is done once for all tests of a process, which look at it from several sides.
    """
    make, make_optimizer, step, call = SITUATIONS[situation]
    gc.freeze()  # the collections below look at what this training makes, not at all of torch
    torch.manual_seed(0)
    model = make()
    optimizer = make_optimizer(model.parameters())
    called = model if call is None else call(model)
    dtype = next(model.parameters()).dtype
    ops = []
    with recording() if traced else contextlib.nullcontext() as run:
        if traced:
            run.session.watch(model, tensors=watched, optimizer=optimizer)
            run.session.trace(2, values=values)
        for _ in range(steps):
            x, y = torch.randn(8, 6).to(dtype), torch.randn(8, 3).to(dtype)
            step(called, optimizer, x, y)
            gc.collect()  # what we hold must not be what a training relies on
    if traced:
        ops = read_entries(run.sink.traced)
    return [p.detach().clone() for p in model.parameters()], ops, run
