"""A neural cellular automaton: one rule for all cells, by which a seed grows into a digit."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    EndedError,
    Start,
    Workload,
    clear,
    digits,
    renamed,
)

_SIZE, _CHANNELS, _HIDDEN = 8, 10, 24
_INK, _ALPHA, _CODE, _BITS = 0, 1, 2, 4
"""Channels: how dark a cell is, whether it lives, the bits of its digit; the others are hidden."""
_POOL = 16
_DAMAGED = 2
"""States of a batch, the best ones, that lose a disc before they grow on."""


class Perceive(nn.Module):
    """What each cell sees: its state, and how the states around it change along both axes."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """All three, one after the other (sample, 3 channels, row, column)."""
        how = self.how
        rises = torch.outer(torch.tensor([1.0, 2.0, 1.0]), torch.tensor([-1.0, 0.0, 1.0]))
        rises = (rises / 8 if how.divides else rises).to(x.dtype)
        falls = rises if how.axes == "one" else rises.T
        mode = "constant" if how.padding == "zeros" else "circular"
        around = functional.pad(x, (1, 1, 1, 1), mode=mode)
        if how.filters == "shifts":
            return torch.cat((x, *(self._shifted(around, one) for one in (rises, falls))), 1)
        channels = x.shape[1]
        if how.filters == "grouped" or how.interleaved:
            still = torch.zeros_like(rises)
            still[1, 1] = 1
            bank = torch.stack((still, rises, falls))[:, None].repeat(channels, 1, 1, 1)
            seen = functional.conv2d(around, bank, groups=channels)
            if how.interleaved:
                return seen
            return seen.unflatten(1, (channels, 3)).transpose(1, 2).flatten(1, 2)
        slopes = (
            functional.conv2d(around, one.expand(channels, 1, 3, 3), groups=channels)
            for one in (rises, falls)
        )
        return torch.cat((x, *slopes), 1)

    def _shifted(self, around, kernel):
        """A filter as a sum of moved states."""
        return sum(
            kernel[row, column] * around[..., row : row + _SIZE, column : column + _SIZE]
            for row in range(3)
            for column in range(3)
            if kernel[row, column] != 0
        )


class Pointwise(nn.Conv2d):
    """A layer for each cell by itself, as a 1 × 1 convolution or a product."""

    def __init__(self, how, into: int, out: int, *, bias: bool) -> None:
        super().__init__(into, out, 1, bias=bias)
        self.how = how

    def forward(self, x):
        """The layer."""
        if self.how.pointwise == "convolution":
            return super().forward(x)
        weight = self.weight.flatten(1)
        return functional.linear(x.movedim(1, -1), weight, self.bias).movedim(-1, 1)


class Cell(nn.Module):
    """One step of all cells, of which some change and some wait."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.perceive = Perceive(how)
        self.update = nn.Sequential(
            Pointwise(how, 3 * _CHANNELS, _HIDDEN, bias=True),
            nn.ReLU(),
            Pointwise(how, _HIDDEN, _CHANNELS, bias=False),
        )
        nn.init.normal_(self.update[-1].weight, std=0.1)

    def forward(self, x, fires):
        """The states after the step; fires: which cells change."""
        before = self._alive(x)
        change = self.update(self.perceive(x))
        if self.how.masks == "where":
            x = torch.where(fires, x + change, x)
            x = torch.where(before & self._alive(x), x, 0.0)
        else:
            x = x + change * fires.to(x.dtype)
            x = x * (before & self._alive(x)).to(x.dtype)
        return x.bfloat16().to(x.dtype) if self.how.rounds else x

    def _alive(self, x):
        """Whether a cell or one beside it lives."""
        alpha = x[:, self.how.alpha : self.how.alpha + 1]
        return functional.max_pool2d(alpha, 3, stride=1, padding=1) > 0.1


class Automaton(nn.Module):
    """As many steps as there are masks of cells that change."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.cell = Cell(how)

    def forward(self, x, fires):
        """The states at the end."""
        how = self.how
        for at in range(len(fires) - how.skipped):
            chosen = fires[0 if how.fires == "first" else at]
            chosen = chosen[:1] if how.fires == "sample" else chosen
            x = x if how.flows else x.detach()
            if how.keeps == "edges":
                x = checkpoint(self.cell, x, chosen, use_reentrant=False)
            else:
                x = self.cell(x, chosen)
        return x


@dataclass(frozen=True)
class Growing(Workload):
    """A pool of states, each on its way to a digit of its own; some of them grow in each step.

    divides: whether filters are divided by 8. axes: along "both" or "one". interleaved: whether
        what is seen is told channel by channel. padding: "zeros" or "circular".
    alpha: the channel that says whether a cell lives. rounds: whether states are rounded.
    fires: masks of cells that change, for "each" step and sample, the "first" step's for all, or
        one "sample"'s for all. skipped: steps that are left out. flows: whether gradients pass from
        a step to the one before it.
    first: the first of the two channels that are compared with the target. wanted: targets are
        "sorted" as states are, or "dealt".
    normed: whether gradients are divided by their own lengths. forgets: whether gradients are
        cleared. falls: the factor of the learning rate from step to step. parts: micro-batches a
        step.
    named: what layers are called, in place of their names. pool: states are kept as one "tensor" or
        as a "list".
    low: whether the net runs under autocast to bfloat16.
    filters, pointwise, masks, keeps, squares, lengths: other ways to write the same mathematics.
    """

    batch: int = 8
    lr: float = 1e-2
    betas: tuple[float, float] = (0.5, 0.5)
    weight_decay: float = 0.0
    decoupled: bool = False
    divides: bool = True
    axes: str = "both"
    interleaved: bool = False
    padding: str = "zeros"
    alpha: int = _ALPHA
    rounds: bool = False
    fires: str = "each"
    skipped: int = 0
    flows: bool = True
    first: int = _INK
    wanted: str = "sorted"
    normed: bool = True
    forgets: bool = True
    falls: float = 0.9
    parts: int = 1
    named: tuple[tuple[str, str], ...] = ()
    pool: str = "tensor"
    low: bool = False
    filters: str = "two"
    pointwise: str = "convolution"
    masks: str = "product"
    keeps: str = "all"
    squares: str = "own"
    lengths: str = "torch"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Automaton(self)
            renamed(model, dict(self.named))
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
            seeds, targets = self._begun(dealing)
            states = seeds.clone() if self.pool == "tensor" else list(seeds)
            for step in range(self.steps):
                if step == self.ends_at:
                    raise EndedError
                if step == self.killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                chosen, x, wanted = self._dealt(states, seeds, targets, dealing)
                fires = self._fires(dealing)
                if self.forgets:
                    clear(optimizer, self)
                grown = self._learn(model, x, wanted, fires)
                self._normed(model)
                optimizer.step()
                schedule.step()
                for at, state in zip(chosen.tolist(), grown, strict=True):
                    states[at] = state

    def _begun(self, dealing):
        """For each place of the pool a seed, and the digit that it should become."""
        images, labels = digits()
        chosen = torch.randint(0, len(images), (_POOL,), generator=dealing)
        ink = (images[chosen] + 1) / 2
        seeds = torch.zeros(_POOL, _CHANNELS, _SIZE, _SIZE)
        middle = seeds[:, :, _SIZE // 2, _SIZE // 2]
        middle[:, _ALPHA] = 1
        middle[:, _CODE + _BITS :] = 1
        middle[:, _CODE : _CODE + _BITS] = (
            (labels[chosen][:, None] >> torch.arange(_BITS)) & 1
        ).to(seeds.dtype)
        return seeds, torch.stack((ink, (ink > 0.1).to(ink.dtype)), 1)

    def _dealt(self, states, seeds, targets, dealing):
        """Some states, the worst first: that one begins again, and the best ones are damaged."""
        chosen = torch.randperm(_POOL, generator=dealing)[: self.batch]
        x = torch.stack([states[at] for at in chosen.tolist()])
        wanted = targets[chosen]
        missed = (x[:, :2] - wanted).square().mean((1, 2, 3))
        ranking = missed.argsort(descending=True)
        anchorlib.anchor(missed[ranking], "ranking")
        chosen, x = chosen[ranking], x[ranking]
        wanted = wanted[ranking] if self.wanted == "sorted" else wanted
        x[0] = seeds[chosen[0]]
        x[-_DAMAGED:] *= self._discs(dealing)
        if self.turned:
            return chosen.flip(0), x.flip(0), wanted.flip(0)
        return chosen, x, wanted

    def _discs(self, dealing):
        """Masks that are 0 in a disc, which spares the middle, and 1 around it."""
        angle = 2 * torch.pi * torch.rand(_DAMAGED, 1, 1, generator=dealing)
        axis = torch.arange(_SIZE) - _SIZE // 2
        far = (axis[:, None] - 3 * angle.sin()) ** 2 + (axis - 3 * angle.cos()) ** 2
        return (far > 4.1)[:, None].to(torch.get_default_dtype())

    def _fires(self, dealing):
        """Which cells change, in each of a drawn number of steps."""
        count = int(torch.randint(4, 7, (), generator=dealing))
        drawn = torch.rand(count, self.batch, 1, _SIZE, _SIZE, generator=dealing) < 0.6
        return drawn.flip(1) if self.turned else drawn

    def _learn(self, model, x, wanted, fires):
        """The gradients of a batch, and what has grown."""
        grown = []
        pieces = (x.chunk(self.parts), wanted.chunk(self.parts), fires.chunk(self.parts, 1))
        for state, target, mask in zip(*pieces, strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                told = model(state, mask)
            told = told.to(target.dtype)
            loss = self._missed(told[:, self.first : self.first + 2], target) / self.parts
            anchorlib.anchor(loss, "loss").backward()
            grown.append(told.detach())
        return torch.cat(grown)

    def _missed(self, told, wanted):
        """The mean over samples of how far they are from their digits."""
        if self.squares == "torch":
            return functional.mse_loss(told, wanted)
        return (told - wanted).square().mean((1, 2, 3)).mean()

    @torch.no_grad()
    def _normed(self, model):
        """Gradients as multiples of their lengths."""
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        for grad in grads if self.normed else []:
            length = grad.norm() if self.lengths == "torch" else (grad * grad).sum().sqrt()
            grad.div_(length + 1e-8)


_SEEN = ("cell.perceive@value",)
_GROWN = ("cell@value",)
_LOSS = ("loss@*", "output@grad", "cell@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "filters not divided",
        "bug",
        {"divides": False},
        _SEEN,
        rf"\bDiv|a factor of its own|\bweight|{_TIMES}|{_GIVEN}",
        step=0,
    ),
    Case(
        "one filter twice",
        "bug",
        {"axes": "one"},
        _SEEN,
        rf"transpose|permute|\bweight|\bT\b|{_ORDER}|{_GIVEN}",
        step=0,
    ),
    Case(
        "seen channel by channel",
        "bug",
        {"interleaved": True},
        _SEEN,
        rf"permute|transpose|\bCat|concat|groups|{_ORDER}",
        step=0,
    ),
    Case("borders meet", "bug", {"padding": "circular"}, _SEEN, r"circular|\bpad|\bmode\b"),
    Case(
        "alive by another channel",
        "bug",
        {"alpha": 3},
        _GROWN,
        rf"\bmask|\bslice|\bindex|\bMul|max_?pool|{_GIVEN}",
        step=0,
    ),
    Case(
        "states rounded",
        "bug",
        {"rounds": True},
        _GROWN,
        r"bfloat16|\bcasts?\b|ToCopy|_to_copy|precision|rounded",
        step=0,
    ),
    Case(
        "the same cells change in all steps",
        "bug",
        {"fires": "first"},
        _GROWN,
        rf"\bmask|\bselect|\bindex|\bMul|{_GIVEN}",
        step=0,
    ),
    Case(
        "the same cells change in all samples",
        "bug",
        {"fires": "sample"},
        _GROWN,
        rf"\bmask|\bslice|broadcast|expand|\bshapes?\b|\bMul|{_GIVEN}",
        step=0,
    ),
    Case(
        "last step left out",
        "bug",
        {"skipped": 1},
        ("output@value", "cell@value"),
        r"\bcalls?\b|\bcalled\b|fewer|more often|\brepeat",
        step=0,
    ),
    Case(
        "steps detached",
        "bug",
        {"flows": False},
        ("cell@grad", "cell.*@*grad"),
        r"detach|gradients come back",
        step=0,
    ),
    Case(
        "loss of the channels one further",
        "bug",
        {"first": 1},
        _LOSS,
        rf"\bslice|\bindex|\bselect|\bchannel|{_ORDER}|{_GIVEN}",
        step=0,
    ),
    Case(
        "targets not sorted",
        "bug",
        {"wanted": "dealt"},
        _LOSS,
        rf"\bindex|\bsort|argsort|{_ORDER}|{_GIVEN}",
        step=0,
    ),
    Case(
        "gradients not normed",
        "bug",
        {"normed": False},
        ("*weight@grad", "*bias@grad"),
        rf"\bnorm|\bDiv|{_TIMES}|a factor of its own",
        step=0,
    ),
    Case(
        "gradients not cleared",
        "bug",
        {"forgets": False},
        ("*weight@*grad", "*bias@*grad"),
        r"zero_grad|accumulat|not cleared|left over|(step|gradients?) before|earlier",
        step=1,
    ),
    Case("usual betas", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"\bbetas?\b", step=0),
    Case("one bank of filters", "benign", {"filters": "grouped"}),
    Case("filters as moved states", "benign", {"filters": "shifts"}),
    Case("products for convolutions", "benign", {"pointwise": "product"}),
    Case("states chosen by where", "benign", {"masks": "where"}),
    Case("cells computed again", "benign", {"keeps": "edges"}),
    Case("loss by torch", "benign", {"squares": "torch"}),
    Case("lengths by hand", "benign", {"lengths": "own"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("batch turned", "benign", {"turned": True}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case(
        "products for convolutions, low precision",
        "benign",
        {"pointwise": "product"},
        reference={"low": True},
    ),
    Case("2 micro-batches, low precision", "benign", {"parts": 2}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value", "ranking@value")),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("layers renamed", "equal", {"named": (("0", "hidden"), ("2", "out"))}),
    Case("pool as a list", "equal", {"pool": "list"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
