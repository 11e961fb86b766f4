"""Random nets made of layers that can be planted, each anchored by its name."""

from __future__ import annotations

import math
import random

import torch
from torch import nn

from tests.diagnosis.formulas import REFERENCE
from tests.diagnosis.planting import Plant, Planted

ACTIVATIONS = ("tanh", "sigmoid", "relu", "gelu")
_LOW = ("linear", "conv", "attention")  # what autocast computes in bfloat16


class Layer(nn.Module):
    """One operation with its parameters.

    above: the names of the anchored tensors that its data inputs come from, None for data.
    """

    def __init__(self, kind: str, above: tuple[str | None, ...], *shape: int) -> None:
        super().__init__()
        self.kind, self.above = kind, above
        self.plant: Plant | None = None
        if kind in ("linear", "conv"):
            fan = math.prod(shape[1:])
            self.weight = nn.Parameter(torch.randn(shape) / math.sqrt(fan))
            self.bias = nn.Parameter(0.1 * torch.randn(shape[0]))
        elif kind in ("norm", "batch_norm"):
            self.weight = nn.Parameter(1 + 0.1 * torch.randn(shape))
            self.bias = nn.Parameter(0.1 * torch.randn(shape))

    def forward(self, *xs: torch.Tensor) -> torch.Tensor:
        """The formula, or what is planted in its place."""
        inputs = [*xs, *self.parameters()]
        if torch.is_autocast_enabled("cpu"):
            if self.kind in _LOW:
                inputs = [x.bfloat16() for x in inputs]
            elif self.kind == "norm":
                inputs = [x.float() for x in inputs]
        with torch.autocast("cpu", enabled=False):
            if self.plant is None:
                return REFERENCE[self.kind](*inputs)
            return Planted.apply(self.plant, *inputs)

    def receiver(self, name: str, of: int) -> tuple[str, str] | None:
        """Name and kind of what records the gradient of input number `of`; None: nothing does."""
        if of < len(self.above):
            above = self.above[of]
            return None if above is None else (above, "grad")
        return f"{name}.{['weight', 'bias'][of - len(self.above)]}", "pass_grad"


class Add(nn.Module):
    """A residual sum, a layer so that it is anchored."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x + y."""
        return x + y


class MLP(nn.Module):
    """fc0 act0 fc1 act1 … head."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        depth = draw.randint(1, 8)
        width = draw.choice([16, 33, 64, 128, 256])
        gain = draw.choice([0.5, 1.0, 2.0, 4.0])
        self.inputs = (draw.choice([8, 20, 64]),)
        above, size = None, self.inputs[0]
        for number in range(depth):
            fc = Layer("linear", (above,), width, size)
            with torch.no_grad():
                fc.weight.mul_(gain)
            self.add_module(f"fc{number}", fc)
            self.add_module(f"act{number}", Layer(draw.choice(ACTIVATIONS), (f"fc{number}",)))
            above, size = f"act{number}", width
        self.head = Layer("linear", (above,), 10, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        for layer in self.children():
            x = layer(x)
        return x


class ConvNet(nn.Module):
    """Twice conv, batch norm, activation; then pooling and a head.

    The biases of the convolutions stand before batch norms: their gradients are zero by theory.
    """

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        side, channels = draw.choice([6, 8]), draw.choice([4, 8])
        self.inputs = (3, side, side)
        above, size = None, 3
        for number in range(2):
            names = [f"{kind}{number}" for kind in ("conv", "bn", "act")]
            self.add_module(names[0], Layer("conv", (above,), channels, size, 3, 3))
            self.add_module(names[1], Layer("batch_norm", (names[0],), channels))
            self.add_module(names[2], Layer(draw.choice(ACTIVATIONS), (names[1],)))
            above, size = names[2], channels
        self.flat = nn.Flatten()
        self.head = Layer("linear", ("flat",), 10, channels * side * side)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        for layer in self.children():
            x = layer(x)
        return x


class Block(nn.Module):
    """A transformer block between an embedding and a head over all positions.

    The bias of `k` shifts all scores of a query alike: its gradient is zero by theory.
    """

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.heads, width = draw.choice([1, 2, 4]), draw.choice([16, 32, 64])
        length, size = draw.choice([4, 9, 16]), 12
        self.inputs = (length, size)
        self.embed = Layer("linear", (None,), width, size)
        self.ln1 = Layer("norm", ("embed",), width)
        self.q, self.k, self.v = (Layer("linear", ("ln1",), width, width) for _ in range(3))
        self.attention = Layer("attention", ("q", "k", "v"))
        self.out = Layer("linear", ("attention",), width, width)
        self.add1 = Add()
        self.ln2 = Layer("norm", ("add1",), width)
        self.up = Layer("linear", ("ln2",), 2 * width, width)
        self.act = Layer(draw.choice(ACTIVATIONS), ("up",))
        self.down = Layer("linear", ("act",), width, 2 * width)
        self.add2 = Add()
        self.flat = nn.Flatten()
        self.head = Layer("linear", ("flat",), 10, length * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(x)
        h = self.ln1(x)
        q, k, v = (
            part(h).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        mixed = self.attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.add1(x, self.out(mixed))
        x = self.add2(x, self.down(self.act(self.up(self.ln2(x)))))
        return self.head(self.flat(x))


NETS = {"mlp": MLP, "conv": ConvNet, "transformer": Block}


def layers(net: nn.Module) -> dict[str, Layer]:
    """The layers that can be planted, by name."""
    return {name: layer for name, layer in net.named_children() if isinstance(layer, Layer)}
