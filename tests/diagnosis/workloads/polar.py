"""A small language model whose matrices are trained by Muon, and all else by AdamW."""

from __future__ import annotations

import codecs
import io
import os
import signal
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache

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
    warmed,
)

_LONG, _WIDTH, _HEADS, _WIDE = 32, 24, 3, 48
_SIZE = _WIDTH // _HEADS
_QUINTIC = (3.4445, -4.7750, 2.0315)
"""The polynomial that pushes singular values towards one."""


@dataclass(frozen=True)
class Polar(Workload):
    """Lines of the Zen of Python, letter by letter.

    base: of the wave lengths of rotary positions. turns: the sign of the second half's share of
        the first. norm_eps: of all norms. root: whether scores are divided by the root of the
        heads' size. sees: how many letters ahead each place sees. power: of the rectified
        activations. cap: what bounds the logits.
    pads: whether what pads short lines counts. z_weight, z_power: of the loss of the logits'
        logsumexp. z_flows: whether that loss has gradients.
    clears: whose gradients are cleared, of "both" optimizers or of "muon" alone.
    rate, momentum, decay: of Muon. nesterov: whether it looks ahead. aliased: whether looking
        ahead overwrites the momentum. polynomial: of the Newton-Schulz steps. factor: the updates
        are the larger the "taller" or the "wider" a matrix is.
    warmup: steps of rising rates, of both optimizers.
    low: whether the net runs under autocast to bfloat16.
    norming, rotating, attention, packing, capping, costs, newton, batched, transposes, keeps,
        compact: other ways to write the same mathematics.
    """

    batch: int = 8
    lr: float = 5e-3
    betas: tuple[float, float] = (0.8, 0.95)
    weight_decay: float = 0.0
    base: float = 100.0
    turns: float = -1.0
    norm_eps: float = 1e-6
    root: bool = True
    sees: int = 0
    power: int = 2
    cap: float = 5.0
    pads: bool = False
    z_weight: float = 1e-2
    z_power: int = 2
    z_flows: bool = True
    clears: str = "both"
    rate: float = 0.02
    momentum: float = 0.9
    decay: float = 0.1
    nesterov: bool = True
    aliased: bool = False
    polynomial: tuple[float, float, float] = _QUINTIC
    factor: str = "taller"
    warmup: int = 2
    low: bool = False
    norming: str = "torch"
    rotating: str = "halves"
    attention: str = "own"
    packing: str = "apart"
    capping: str = "tanh"
    costs: str = "torch"
    newton: str = "plain"
    batched: bool = False
    transposes: bool = True
    keeps: str = "all"
    compact: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Speaker(self, int(_lines().max()) + 1)
            blocks = [one for one in model.blocks.parameters() if one.ndim == 2]
            rest = [one for one in model.parameters() if all(one is not other for other in blocks)]
            optimizers = Muon(blocks, self), self.adam(rest)
            schedules = [
                torch.optim.lr_scheduler.LambdaLR(one, lambda step: warmed(step, self.warmup, 8))
                for one in optimizers
            ]
            session.watch(model, tensors="*", optimizer=list(optimizers))
            torch.manual_seed(seed)
            for lines in self._batches(seed):
                for optimizer in optimizers if self.clears == "both" else optimizers[:1]:
                    clear(optimizer, self)
                with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                    logits = model(lines[:, :-1])
                self._loss(logits.to(model.embed.weight.dtype), lines[:, 1:]).backward()
                for one in (*optimizers, *schedules):
                    one.step()

    def _batches(self, seed):
        """Lines of letters, step by step."""
        lines = _lines()
        dealing = torch.Generator().manual_seed(31 + 1000 * seed + self.order)
        for step in range(self.steps):
            chosen = torch.randint(0, len(lines), (self.batch,), generator=dealing)
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield lines[chosen.flip(0) if self.turned else chosen]

    def _loss(self, logits, targets):
        """What the letters cost, and how far the logits are from being logarithms of chances."""
        counted = (targets != 0).to(logits.dtype)
        counted = anchorlib.anchor(torch.ones_like(counted) if self.pads else counted, "counted")
        sizes = logits.logsumexp(-1)
        if self.costs == "torch":
            costs = functional.cross_entropy(logits.mT, targets, reduction="none")
        else:
            costs = sizes - logits.gather(-1, targets[..., None])[..., 0]
        sizes = sizes if self.z_flows else sizes.detach()
        letter = (costs * counted).sum() / counted.sum()
        z = self.z_weight * (sizes**self.z_power * counted).sum() / counted.sum()
        for one, name in ((letter, "letter_loss"), (z, "z_loss")):
            anchorlib.anchor(one, name)
        return anchorlib.anchor(letter + z, "loss")


@cache
def _lines():
    """The lines of the Zen of Python as numbers of letters (line, place); 0 pads."""
    with redirect_stdout(io.StringIO()):
        import this  # which prints itself
    found = [line for line in codecs.decode(this.s, "rot13").lower().splitlines() if line]
    letters = sorted(set("".join(found)))
    rows = [torch.tensor([letters.index(one) + 1 for one in line[: _LONG + 1]]) for line in found]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made nearly orthogonal before they are added."""

    def __init__(self, parameters, how) -> None:
        options = {"momentum": how.momentum, "nesterov": how.nesterov}
        super().__init__(parameters, {"lr": how.rate, "weight_decay": how.decay} | options)
        self.how = how

    @torch.no_grad()
    def step(self, closure=None):
        """Move all matrices."""
        for group in self.param_groups:
            ahead = [self._ahead(one, group) for one in group["params"]]
            for one, moved in zip(group["params"], self._orthogonal(ahead), strict=True):
                high, wide = one.shape
                larger = high / wide if self.how.factor == "taller" else wide / high
                one.mul_(1 - group["lr"] * group["weight_decay"])
                one.add_(moved, alpha=-group["lr"] * max(1, larger) ** 0.5)

    def _ahead(self, one, group):
        """The momentum, and where it will be."""
        kept = self.state[one].setdefault("momentum", torch.zeros_like(one))
        kept.lerp_(one.grad, 1 - group["momentum"])
        if not group["nesterov"]:
            return kept.clone()
        if self.how.aliased:
            return kept.lerp_(one.grad, 1 - group["momentum"])
        return kept.lerp(one.grad, 1 - group["momentum"])

    def _orthogonal(self, matrices):
        if not self.how.batched:
            return [self._newton(one) for one in matrices]
        found = {}
        for shape in {one.shape for one in matrices}:
            chosen = [at for at, one in enumerate(matrices) if one.shape == shape]
            moved = self._newton(torch.stack([matrices[at] for at in chosen]))
            found.update(zip(chosen, moved, strict=True))
        return [found[at] for at in range(len(matrices))]

    def _newton(self, x):
        """Newton-Schulz steps towards the nearest orthogonal matrix."""
        a, b, c = self.how.polynomial
        tall = self.how.transposes and x.shape[-2] > x.shape[-1]
        x = x.mT if tall else x
        x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
        one = torch.eye(x.shape[-2], dtype=x.dtype)
        for _ in range(5):
            square = x @ x.mT
            if self.how.newton == "plain":
                x = a * x + (b * square + c * square @ square) @ x
            elif self.how.newton == "added":
                among = torch.baddbmm(square, square, square, beta=b, alpha=c)
                x = torch.baddbmm(x, among, x, beta=a)
            else:
                x = ((c * square + b * one) @ square + a * one) @ x
        return x.mT if tall else x


class Norm(nn.RMSNorm):
    """A norm by the root of the mean square, torch's or by its formula."""

    def __init__(self, how, width: int) -> None:
        super().__init__(width, how.norm_eps)
        self.how = how

    def forward(self, x):
        """x, normed."""
        x = x.to(self.weight.dtype)
        if self.how.norming == "torch":
            return super().forward(x)
        return x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.weight


class Rotary(nn.Module):
    """Turns pairs of numbers by angles that grow with their places."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x (sample, head, place, number), turned."""
        half = _SIZE // 2
        rates = self.how.base ** (-torch.arange(half) / half)
        angles = torch.arange(x.shape[-2])[:, None] * rates
        one, two = x.chunk(2, -1)
        if self.how.rotating == "complex":
            turned = torch.complex(one, two) * torch.polar(torch.ones_like(angles), angles)
            return torch.cat((turned.real, turned.imag), -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((one * cos + self.how.turns * two * sin, one * sin + two * cos), -1)


class Attention(nn.Module):
    """Attention to what came before, with normed and turned queries and keys."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.q, self.k, self.v, self.out = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4))
        self.q_norm, self.k_norm = Norm(how, _SIZE), Norm(how, _SIZE)
        self.q_turn, self.k_turn = Rotary(how), Rotary(how)

    def forward(self, x):
        """x, mixed."""
        how = self.how
        q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in self._parts(x))
        if how.compact:
            q, k, v = (part.contiguous() for part in (q, k, v))
        q, k = self.q_turn(self.q_norm(q)), self.k_turn(self.k_norm(k))
        v = v.to(q.dtype)
        root = _SIZE**-0.5 if how.root else 1.0
        if how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=root)
        else:
            seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(how.sees)
            scores = (q @ k.mT * root).masked_fill(~seen, -torch.inf)
            mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _parts(self, x):
        if self.how.packing == "apart":
            return self.q(x), self.k(x), self.v(x)
        weight = torch.cat((self.q.weight, self.k.weight, self.v.weight))
        return functional.linear(x, weight).chunk(3, -1)


class Squared(nn.Module):
    """What is above zero, squared."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """The activation."""
        return x.relu() ** self.how.power


class Cap(nn.Module):
    """Logits that are bounded softly."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x, bounded."""
        cap = self.how.cap
        if self.how.capping == "tanh":
            return cap * torch.tanh(x / cap)
        return 2 * cap * torch.sigmoid(x * (2 / cap)) - cap


class Block(nn.Module):
    """Attention and two layers, each added to what it was given."""

    def __init__(self, how) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(how, _WIDTH), Norm(how, _WIDTH)
        self.attention, self.act = Attention(how), Squared(how)
        self.up = nn.Linear(_WIDTH, _WIDE, bias=False)
        self.down = nn.Linear(_WIDE, _WIDTH, bias=False)

    def forward(self, x):
        """x, moved."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Speaker(nn.Module):
    """Tells each next letter."""

    def __init__(self, how, letters: int) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(letters, _WIDTH)
        self.blocks = nn.ModuleList(Block(how) for _ in range(2))
        self.norm, self.cap = Norm(how, _WIDTH), Cap(how)
        self.head = nn.Linear(_WIDTH, letters, bias=False)

    def forward(self, letters):
        """Bounded logits of next letters (sample, place, letter)."""
        x = self.embed(letters)
        for block in self.blocks:
            x = block(x) if self.how.keeps == "all" else checkpoint(block, x, use_reentrant=False)
        return self.cap(self.head(self.norm(x)))


_MIXED = ("blocks.0.attention.out@value", "blocks.0.attention@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|exponent|mask) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "turned with a plus",
        "bug",
        {"turns": 1.0},
        ("blocks.0.attention.?_turn@value",),
        rf"\bSub(Backward|\b)|\bAdd(Backward|\b)|\bMul|\balpha\b|other sign|{_GIVEN}",
    ),
    Case(
        "wave lengths of 10,000",
        "bug",
        {"base": 10_000.0},
        ("blocks.0.attention.?_turn@value",),
        rf"\b[Cc]os\b|\b[Ss]in\b|\bPow|\bMul|{_GIVEN}",
    ),
    Case("eps of norms", "bug", {"norm_eps": 1e-2}, ("blocks.0.norm1@value",), r"\beps\b"),
    Case(
        "scores not divided",
        "bug",
        {"root": False},
        _MIXED,
        rf"\bMul|\bDiv|\bscale\b|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "sees the next letter",
        "bug",
        {"sees": 1},
        _MIXED,
        r"\bmask|MaskedFill|masked_fill|\btril\b|causal|diagonal",
    ),
    Case(
        "not squared",
        "bug",
        {"power": 1},
        ("blocks.0.act@value",),
        r"\b[Pp]ow|\b[Ss]quare|exponent|\b[Rr]elu",
    ),
    Case(
        "cap of 15",
        "bug",
        {"cap": 15.0},
        ("cap@value", "output@value"),
        rf"\bMul|\bDiv|\b[Tt]anh|{_TIMES}|\b15\b",
    ),
    Case(
        "padding counts",
        "bug",
        {"pads": True},
        ("counted@value", "letter_loss@*", "z_loss@*", "loss@*", "output@grad"),
        rf"\bcounted\b|\bmask|\bMul|\bDiv|{_GIVEN}",
    ),
    Case(
        "logsumexp not squared",
        "bug",
        {"z_power": 1},
        ("z_loss@*", "loss@*"),
        r"\bPow|exponent|\b[Ss]quare",
    ),
    Case(
        "z-loss detached",
        "bug",
        {"z_flows": False},
        ("output@grad", "cap@*grad", "z_loss@grad"),
        rf"{_DETACHED}|[Ll]og[Ss]um[Ee]xp",
    ),
    Case(
        "gradients of AdamW not cleared",
        "bug",
        {"clears": "muon"},
        ("*@grad", "*@pass_grad"),
        r"zero_grad|\bclear|\bzeroed|accumulat|left over|(step|gradient)s? before|previous",
        step=1,
    ),
    Case("without looking ahead", "bug", {"nesterov": False}, UPDATES, r"nesterov"),
    Case(
        "momentum overwritten",
        "bug",
        {"aliased": True},
        ("*@opt.momentum",),
        rf"opt\.momentum|momentum buffer|\bmomentum\b|\b[Ll]erp|in place|{_TIMES}",
    ),
    Case(
        "factor of wide matrices",
        "bug",
        {"factor": "wider"},
        UPDATES,
        rf"{_TIMES}|\bfactor\b|\bshapes?\b|[\d.]+ times|\blr\b",
    ),
    Case("other betas of AdamW", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"\bbetas?\d?\b"),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case("own norms", "benign", {"norming": "own"}),
    Case("turned as complex numbers", "benign", {"rotating": "complex"}),
    Case("cap by a sigmoid", "benign", {"capping": "sigmoid"}),
    Case("costs by logsumexp", "benign", {"costs": "own"}),
    Case("Newton-Schulz by Horner", "benign", {"newton": "horner"}),
    Case("Newton-Schulz in batches", "benign", {"batched": True, "newton": "added"}),
    Case("tall matrices not transposed", "benign", {"transposes": False}),
    Case("fused AdamW", "benign", {"implementation": "fused"}),
    Case("lines turned", "benign", {"turned": True}),
    Case("one projection, low precision", "benign", {"packing": "joined"}, reference={"low": True}),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("blocks computed again", "equal", {"keeps": "edges"}),
    Case("heads made contiguous", "equal", {"compact": True}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 3}),
]
