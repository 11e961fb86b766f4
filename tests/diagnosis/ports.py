"""Small nets, and hand ports of them: other names, other order of members, other operations.

    transformer    fused qkv, split by columns; ported with another reshaping and scale
    residual       convolutions and batch norms
    recurrent      LSTM cells by hand, one call a step of the sequence

`fault`: (what, which layer), or None; the port computes one thing otherwise there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

import anchorlib

Fault = tuple[str, int] | None
LAYERS = 3


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.c_attn(x).split(width, 2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        weight = (q @ k.transpose(-1, -2)) / (width // self.heads) ** 0.5
        mixed = weight.softmax(-1) @ v
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc, self.act, self.c_proj = nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(40, width), nn.Embedding(16, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(LAYERS))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, 40, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class PortedBlock(nn.Module):
    def __init__(self, width: int, heads: int, fault: str) -> None:
        super().__init__()
        self.heads, self.fault = heads, fault
        self.down, self.up = nn.Linear(48, width), nn.Linear(width, 48)
        self.nonlinear = nn.GELU(approximate="tanh" if fault == "gelu" else "none")
        self.out, self.qkv = nn.Linear(width, width), nn.Linear(width, 3 * width)
        self.before_mlp = nn.LayerNorm(width)
        self.before_attention = nn.LayerNorm(width, eps=1e-3 if fault == "eps" else 1e-5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scale = 1.0 if self.fault == "scale" else (width // self.heads) ** -0.5
        mixed = ((q * scale) @ k.transpose(-1, -2)).softmax(-1) @ v
        y = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = y if self.fault == "residual" else y + x
        return self.down(self.nonlinear(self.up(self.before_mlp(y)))) + y


class PortedTransformer(nn.Module):
    def __init__(self, fault: Fault, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.output = nn.Linear(width, 40, bias=False)
        self.final_norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(
            PortedBlock(width, heads, fault_of(fault, n)) for n in range(LAYERS)
        )
        self.positions, self.tokens = nn.Embedding(16, width), nn.Embedding(40, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.output(self.final_norm(x))


class Residual(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.conv1 = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(LAYERS))
        self.bn1 = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(LAYERS))
        self.relu = nn.ModuleList(nn.LeakyReLU(0.01) for _ in range(LAYERS))
        self.conv2 = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(LAYERS))
        self.fc = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.stem(x))
        for conv1, bn1, relu, conv2 in zip(
            self.conv1, self.bn1, self.relu, self.conv2, strict=True
        ):
            x = x + conv2(relu(bn1(conv1(x))))
        return self.fc(x.mean((2, 3)))


class PortedStage(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.act = nn.LeakyReLU(0.2 if fault == "slope" else 0.01)
        self.norm = nn.BatchNorm2d(width, eps=1e-2 if fault == "eps" else 1e-5)
        self.first = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.act(self.norm(self.first(x))))
        return y if self.fault == "residual" else y + x


class PortedResidual(nn.Module):
    def __init__(self, fault: Fault, width: int = 6) -> None:
        super().__init__()
        self.head = nn.Linear(width, 5)
        self.stages = nn.ModuleList(PortedStage(width, fault_of(fault, n)) for n in range(LAYERS))
        self.stem_norm = nn.BatchNorm2d(width)
        self.entry = nn.Conv2d(3, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem_norm(self.entry(x))
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.w_ih = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(LAYERS))
        self.w_hh = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(LAYERS))
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(LAYERS))
        self.decoder = nn.Linear(width, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = list(self.embed(tokens).unbind(1))
        for w_ih, w_hh, norm in zip(self.w_ih, self.w_hh, self.norm, strict=True):
            h = c = torch.zeros_like(x[0])
            for t, one in enumerate(x):
                i, f, g, o = (w_ih(one) + w_hh(h)).chunk(4, 1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                x[t] = norm(h)
        return self.decoder(x[-1])


class PortedCell(nn.Module):
    def __init__(self, width: int, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.normal = nn.LayerNorm(width, eps=1e-2 if fault == "eps" else 1e-5)
        self.recurrent = nn.Linear(width, 4 * width)
        self.feed = nn.Linear(width, 4 * width)

    def forward(self, x: list[torch.Tensor]) -> list[torch.Tensor]:
        h, c, out = torch.zeros_like(x[0]), torch.zeros_like(x[0]), []
        for one in x:
            gates = self.recurrent(h) + self.feed(one)
            i, f, g, o = gates.view(len(one), 4, -1).unbind(1)
            i, f, o = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)
            c = c * f + torch.tanh(g) * (1 if self.fault == "gate" else i)
            h = torch.tanh(c) * o
            out.append(self.normal(h))
        return out


class PortedRecurrent(nn.Module):
    def __init__(self, fault: Fault, width: int = 8) -> None:
        super().__init__()
        self.out = nn.Linear(width, 20)
        self.cells = nn.ModuleList(PortedCell(width, fault_of(fault, n)) for n in range(LAYERS))
        self.words = nn.Embedding(20, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = list(self.words(tokens).unbind(1))
        for cell in self.cells:
            x = cell(x)
        return self.out(x[-1])


def fault_of(fault: Fault, layer: int) -> str:
    """The fault in one layer; "" for none."""
    return fault[0] if fault and fault[1] == layer else ""


class Port(NamedTuple):
    """A net, its port, and which member of the one is which of the other.

    names: "{n}" stands for the layer. faults: what may be wrong, and A's name of what it makes.
    """

    net: Callable[[], nn.Module]
    port: Callable[[Fault], nn.Module]
    names: Mapping[str, str]
    faults: Mapping[str, str]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]

    def members(self) -> dict[str, str]:
        """A's name of a member -> the port's."""
        return {
            one.format(n=n): two.format(n=n)
            for one, two in self.names.items()
            for n in range(LAYERS)
        }


def tokens(count: int) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randint(0, count, (4, 6))
        return x, torch.randint(0, count, (4, 6) if count == 40 else (4,))

    return batch


def images() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))


PORTS = {
    "transformer": Port(
        Transformer,
        PortedTransformer,
        {
            "wte": "tokens",
            "wpe": "positions",
            "ln_f": "final_norm",
            "lm_head": "output",
            "h.{n}": "blocks.{n}",
            "h.{n}.ln_1": "blocks.{n}.before_attention",
            "h.{n}.ln_2": "blocks.{n}.before_mlp",
            "h.{n}.attn.c_attn": "blocks.{n}.qkv",
            "h.{n}.attn.c_proj": "blocks.{n}.out",
            "h.{n}.mlp.c_fc": "blocks.{n}.up",
            "h.{n}.mlp.act": "blocks.{n}.nonlinear",
            "h.{n}.mlp.c_proj": "blocks.{n}.down",
        },
        {
            "eps": "h.{n}.ln_1",
            "gelu": "h.{n}.mlp.act",
            "scale": "h.{n}.attn.c_proj",
            "residual": "h.{n}.ln_2",
        },
        tokens(40),
    ),
    "residual": Port(
        Residual,
        PortedResidual,
        {
            "stem": "entry",
            "bn": "stem_norm",
            "conv1.{n}": "stages.{n}.first",
            "bn1.{n}": "stages.{n}.norm",
            "relu.{n}": "stages.{n}.act",
            "conv2.{n}": "stages.{n}.second",
            "fc": "head",
        },
        {"eps": "bn1.{n}", "slope": "relu.{n}", "residual": ""},
        images,
    ),
    "recurrent": Port(
        Recurrent,
        PortedRecurrent,
        {
            "embed": "words",
            "w_ih.{n}": "cells.{n}.feed",
            "w_hh.{n}": "cells.{n}.recurrent",
            "norm.{n}": "cells.{n}.normal",
            "decoder": "out",
        },
        {"eps": "norm.{n}", "gate": ""},
        tokens(20),
    ),
}


@dataclass(frozen=True)
class Ported:
    """Two runs of a net and of its port.

    same: whether the port starts from the net's parameters.
    """

    net: str
    fault: Fault
    seed: int
    same: bool = True

    @property
    def blamed(self) -> str:
        """A's name of what the fault makes first; "" where that is not one alone."""
        assert self.fault is not None
        return PORTS[self.net].faults[self.fault[0]].format(n=self.fault[1])

    def record(self, store: Any) -> None:
        """Train and record both runs, "a" and "b"."""
        kind = PORTS[self.net]
        torch.manual_seed(self.seed)
        one, two = kind.net(), kind.port(self.fault)
        if self.same:
            carry(one, two, kind.members())
        for name, model in (("a", one), ("b", two)):
            train(name, model, kind, store, self.seed)


def draw_port(seed: int) -> Ported:
    """A port with one fault."""
    draw = random.Random(f"port {seed}")
    net = list(PORTS)[seed % len(PORTS)]
    fault = draw.choice(list(PORTS[net].faults))
    return Ported(net, (fault, draw.randrange(LAYERS)), seed)


def carry(one: nn.Module, two: nn.Module, members: Mapping[str, str]) -> None:
    """Gives the port the net's parameters."""
    with torch.no_grad():
        for name, value in one.state_dict().items():
            member, _, own = name.rpartition(".")
            two.get_submodule(members[member]).state_dict()[own].copy_(value)


def train(name: str, model: nn.Module, kind: Port, store: Any, seed: int, steps: int = 2) -> None:
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with anchorlib.start(name, store=store) as session:
        session.watch(model, tensors="*", optimizer=optimizer)
        for _ in range(steps):
            x, target = kind.batch()
            loss = nn.functional.cross_entropy(model(x).flatten(0, -2), target.flatten())
            anchorlib.anchor(loss, "loss")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
