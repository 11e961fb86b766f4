"""Nets of which one formula is written otherwise, and what aligning their operations says of it.

A net is a list of layers, each a line of source. As modules every line is the forward of one; as
one large module all lines are its own forward, and nothing but the operations tells them apart.
Which formula was replaced is known by its line alone, which every traced operation has.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Final, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from anchorlib.operations import Op, OpAlignment, align_ops, read_entries
from anchorlib.record import Record
from tests.by_hand import TanhByHand
from tests.recording import recording

__all__ = ["Outcome", "Rewriting", "Traced", "judged", "layers", "plant", "traced"]

Tensor = torch.Tensor
FILE: Final = "net.py"


FORMULAS: Final[dict[str, list[tuple[str, str]]]] = {
    "torch.tanh(x)": [
        ("TanhByHand.apply(x)", "tanh_backward"),
        ("2 * torch.sigmoid(2 * x) - 1", "sigmoid"),
        ("1 - 2 / (torch.exp(2 * x) + 1)", "exp"),
    ],
    "F.gelu(x)": [
        ("F.gelu(x, approximate='tanh')", "gelu"),
        ("0.5 * x * (1 + torch.erf(x * 0.5**0.5))", "erf"),
        ("x * torch.sigmoid(1.702 * x)", "sigmoid"),
    ],
    "F.silu(x)": [("x * torch.sigmoid(x)", "sigmoid"), ("x / (1 + torch.exp(-x))", "exp")],
    "F.relu(x)": [
        ("x.clamp(min=0)", "clamp"),
        ("torch.where(x > 0, x, torch.zeros_like(x))", "where"),
    ],
    "torch.sigmoid(x)": [("1 / (1 + torch.exp(-x))", "exp")],
    "F.linear(x, w, b)": [
        ("torch.matmul(x, w.t()) + b", "add"),
        ("F.linear(x.bfloat16(), w.bfloat16(), b.bfloat16()).float()", "_to_copy"),
        ("torch.einsum('bi,oi->bo', x, w) + b", "add"),
    ],
    "F.layer_norm(x, x.shape[-1:], g, s)": [
        ("F.layer_norm(x, x.shape[-1:], g, s, 1e-6)", "native_layer_norm"),
        ("(x - x.mean(-1, True)) * (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt() * g + s",
         "rsqrt"),
        ("F.rms_norm(x, x.shape[-1:], g) + s", "rsqrt"),
    ],
    "torch.softmax(x, -1)": [
        ("torch.exp(x) / torch.exp(x).sum(-1, True)", "exp"),
        ("torch.log_softmax(x, -1).exp()", "_log_softmax"),
    ],
    "x + h": [("x + 0.5 * h", "mul"), ("torch.add(x, h, alpha=2)", "add"), ("x * 2 + h", "mul")],
    "x * g + s": [("s + g * x * 1.0", "mul"), ("torch.addcmul(s, x, g)", "addcmul")],
    "x * 0.5": [("x * 0.25", "mul"), ("x / 2", "div")],
}  # fmt: skip
"""A formula, the ways to write it otherwise, and an operation that must then be named."""

WEIGHED: Final = "F.linear(x, w, b)"


class Layer(nn.Module):
    """A line of source as a module."""

    def __init__(self, width: int, code: CodeType) -> None:
        super().__init__()
        self.code = code
        drawn = {
            "w": torch.randn(width, width) / width**0.5,
            "b": 0.1 * torch.randn(width),
            "s": 0.1 * torch.randn(width),
            "g": 1 + 0.1 * torch.randn(width),
        }
        for name, values in drawn.items():
            self.register_parameter(name, nn.Parameter(values) if name in code.co_names else None)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        """The line's value."""
        return _value(self.code, self, x, h)


class Net(nn.Module):
    """Lines one after the other; `large` has them all in its own forward."""

    def __init__(self, lines: Sequence[str], width: int, *, large: bool) -> None:
        super().__init__()
        codes = [compile("\n" * at + line, FILE, "eval") for at, line in enumerate(lines)]
        self.layers = nn.ModuleList(Layer(width, code) for code in codes)
        self.large = large

    def forward(self, x: Tensor) -> Tensor:
        """All lines; `h` is what there was three lines before."""
        before = [x, x, x]
        for layer in self.layers:
            assert isinstance(layer, Layer)
            value = _value(layer.code, layer, x, before[0]) if self.large else layer(x, before[0])
            before, x = [*before[1:], x], value
        return x


def _value(code: CodeType, layer: Layer, x: Tensor, h: Tensor) -> Tensor:
    known = {"x": x, "h": h, "w": layer.w, "b": layer.b, "g": layer.g, "s": layer.s}
    made: Tensor = eval(code, {"torch": torch, "F": functional, "TanhByHand": TanhByHand}, known)
    return made


class Rewriting(NamedTuple):
    """One line replaced by another that computes the same, or nearly so.

    must: an operation that a difference has to name.
    """

    at: int
    text: str
    must: str


def layers(seed: int, *, large: bool) -> list[str]:
    """The lines of a random net; a third of them or more have weights."""
    least, most = (10, 40) if large else (4, 12)
    draw = random.Random(seed)
    kinds = [*FORMULAS, *[WEIGHED] * 6]
    return [WEIGHED, *(draw.choice(kinds) for _ in range(draw.randint(least, most))), WEIGHED]


def plant(lines: Sequence[str], seed: int) -> Rewriting:
    """One line of a net, written otherwise."""
    draw = random.Random(seed)
    at = draw.choice([at for at, line in enumerate(lines) if line in FORMULAS])
    return Rewriting(at, *draw.choice(FORMULAS[lines[at]]))


class Traced(NamedTuple):
    """The operations of one step, and the records that a session made of it."""

    ops: list[Op]
    records: list[Record]


def traced(lines: Sequence[str], seed: int, *, large: bool) -> Traced:
    """One step of training such a net."""
    torch.manual_seed(seed)
    width = random.Random(seed).choice([16, 24, 40])
    net = Net(lines, width, large=large)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(8, width)
    with recording() as run:
        run.session.watch(net, tensors="*", optimizer=optimizer)
        run.session.trace(1)
        net(x).square().mean().backward()
        optimizer.step()
    return Traced(read_entries(run.sink.traced), list(run.sink.records))


class Outcome(NamedTuple):
    """Whether the replacement was named, and nothing else was."""

    named: bool
    alone: bool
    found: OpAlignment

    def __str__(self) -> str:
        return "; ".join(
            f"{one.stage} {one.module} {' '.join(one.only_a)} | {' '.join(one.only_b)} "
            f"{one.arguments} {one.where}"
            for one in self.found.differences
        )


def judged(lines: Sequence[str], plain: Traced, seed: int, *, large: bool) -> Outcome:
    """What is said of one net and the same net with one line written otherwise."""
    how = plant(lines, seed + 1000)
    other = [*lines[: how.at], how.text, *lines[how.at + 1 :]]
    found = align_ops(plain.ops, traced(other, seed, large=large).ops)
    assert found is not None
    own = {f"{FILE}:{how.at + 1}"}
    ops = list(_ops(found))
    return Outcome(
        named=any(_is(op, how.must) and _ours(op, own) for op in ops),
        alone=bool(ops) and all(_ours(op, own) for op in ops),
        found=found,
    )


def _ops(found: OpAlignment) -> Iterator[Op]:
    for one in found.every:
        if one.stage != "optimizer":  # gradients of weights that one formula does not use
            yield from (*one.a, *one.b)


def _ours(op: Op, lines: Iterable[str]) -> bool:
    # Where the line uses x twice now, its gradients are summed where x was made.
    return op.where in lines or op.where.startswith("by_hand.py:") or op.stage == "accumulate"


def _is(op: Op, name: str) -> bool:
    return op.op.split(".")[1] == name
