"""A small GPT over the pixels of digits: rotary embedding, RMSNorm, AdamW, warm-up, clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import Case, Start, Workload, clear, cut, warmed

_WIDTH, _HEADS, _LENGTH, _TOKENS = 32, 2, 24, 17


@dataclass(frozen=True)
class GPT(Workload):
    """norm, attention, mlp_: how they are written; the mathematics is the same.

    shift: by how many positions the causal mask is off. low_embedding: whether the scale of the
        embedding, which the norm cancels, is rounded to bfloat16.
    parts: micro-batches a step. part_scale: what each one's loss is divided by, 0: rightly.
    ranks: processes that share a batch. reduction: of their gradients.
    zeroed: whether gradients are forgotten between steps.
    """

    steps: int = 6
    batch: int = 8
    lr: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    eps: float = 1e-5
    base: float = 10000.0
    buffered: bool = True
    shift: int = 0
    scale: float = 1.0
    approximate: str = "none"
    dropout: float = 0.0
    low_embedding: bool = False
    init_std: float = 0.05
    clip: float = 0.5
    warmup: int = 3
    loss: str = "mean"
    label_shift: int = 1
    decays_norms: bool = False
    zeroed: bool = True
    parts: int = 1
    part_scale: int = 0
    ranks: int = 1
    reduction: str = "mean"
    norm: str = "rsqrt"
    attention: str = "manual"
    cross_entropy: str = "torch"
    checkpointed: bool = False
    packed: bool = False

    def train(self, start: Start, seed: int) -> None:
        """Record the training, rank by rank."""
        for rank in range(self.ranks):
            with start(rank=rank) as session:
                self._train(session, seed, rank)

    def _train(self, session: anchorlib.Session, seed: int, rank: int) -> None:
        self.draw(seed)
        model, optimizer = self._model_and_optimizer()
        session.watch(model, tensors="*", optimizer=optimizer)
        others = [self._model_and_optimizer()[0] for _ in range(self.ranks - 1)]
        torch.manual_seed(seed)
        for step, (images, _) in enumerate(self.images(seed)):
            for group in optimizer.param_groups:
                group["lr"] = self.lr * warmed(step, self.warmup, 20)
            tokens = ((images.flatten(1)[:, 8 : 8 + _LENGTH + 1] + 1) * 8).long()
            if self.zeroed:
                clear(optimizer, self)
            share, *rest = tokens.chunk(self.ranks)
            shares = [share, *rest]
            for (part,) in cut(self.parts, shares[rank]):
                loss = self._loss(model, part) / (self.part_scale or self.parts)
                anchorlib.anchor(loss, "loss")
                loss.backward()
            if self.ranks > 1:
                self._reduce(model, others, [s for r, s in enumerate(shares) if r != rank])
            if self.clip:
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            optimizer.step()
        if self.evaluates:
            model.eval()
            with torch.no_grad():
                model(tokens[:, :-1])

    def _model_and_optimizer(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = Decoder(self)
        flat = [p for p in model.parameters() if p.ndim < 2]
        deep = [p for p in model.parameters() if p.ndim > 1]
        optimizer = self.adam(deep)
        decay = self.weight_decay if self.decays_norms else 0.0
        optimizer.add_param_group({"params": flat, "weight_decay": decay})
        return model, optimizer

    def _loss(self, model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        logits = model(tokens[:, :_LENGTH]).flatten(0, 1)
        targets = tokens[:, 1:] if self.label_shift else tokens[:, :_LENGTH]
        targets = targets.flatten()
        if self.cross_entropy == "manual":
            scores = torch.logsumexp(logits, -1) - logits.gather(-1, targets[:, None])[:, 0]
            return scores.mean()
        return functional.cross_entropy(logits, targets, reduction=self.loss)

    def _reduce(self, model: nn.Module, others: list[nn.Module], shares: list) -> None:
        """Add what the other ranks' replicas have to the gradients, in the order of a ring."""
        for other, share in zip(others, shares, strict=True):
            with torch.no_grad():
                for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
                    theirs.copy_(mine)
                    theirs.grad = None
            loss = self._loss(other, share)
            for mine, theirs in zip(
                model.parameters(),
                torch.autograd.grad(loss, list(other.parameters())),
                strict=True,
            ):
                mine.grad.add_(theirs)
        if self.reduction == "mean":
            for parameter in model.parameters():
                parameter.grad.div_(self.ranks)


class RMSNorm(nn.Module):
    """Root mean square norm, in one of three ways."""

    def __init__(self, how: GPT) -> None:
        super().__init__()
        self.eps, self.way = how.eps, how.norm
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x):
        """x over its root mean square."""
        if self.way == "torch":
            return functional.rms_norm(x, (_WIDTH,), self.weight, self.eps)
        square = x.square().mean(-1, keepdim=True) + self.eps
        return (x / square.sqrt() if self.way == "divide" else x * square.rsqrt()) * self.weight


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, how: GPT) -> None:
        super().__init__()
        self.how = how
        if how.packed:
            self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False)
        else:
            self.q, self.k, self.v = (nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(3))
        self.out = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x, cos, sin):
        """Mix positions."""
        parts = self.qkv(x).chunk(3, -1) if self.how.packed else (self.q(x), self.k(x), self.v(x))
        q, k, v = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in parts)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        scale = self.how.scale / math.sqrt(_WIDTH // _HEADS)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(self.how.shift)
        if self.how.attention == "torch":
            mixed = functional.scaled_dot_product_attention(q, k, v, seen, scale=scale)
        else:
            scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~seen, -math.inf)
            mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


def rotated(x, cos, sin):
    """Rotary position embedding."""
    one, two = x.chunk(2, -1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)


class Block(nn.Module):
    """Attention and MLP, each behind a norm."""

    def __init__(self, how: GPT) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(how), RMSNorm(how)
        self.attention = Attention(how)
        self.up = nn.Linear(_WIDTH, 2 * _WIDTH)
        self.gelu = nn.GELU(approximate=how.approximate)
        self.drop = nn.Dropout(how.dropout)
        self.down = nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, x, cos, sin):
        """One residual block."""
        x = x + self.attention(self.norm1(x), cos, sin)
        return x + self.drop(self.down(self.gelu(self.up(self.norm2(x)))))


class Decoder(nn.Module):
    """Embedding, two blocks, norm, head."""

    def __init__(self, how: GPT) -> None:
        super().__init__()
        self.how = how
        self.embed = nn.Embedding(_TOKENS, _WIDTH)
        self.blocks = nn.ModuleList(Block(replace(how)) for _ in range(2))
        self.norm, self.head = RMSNorm(how), nn.Linear(_WIDTH, _TOKENS, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=how.init_std)
        half = _WIDTH // _HEADS // 2
        angles = torch.arange(_LENGTH)[:, None] * how.base ** (-torch.arange(half) / half)
        if how.buffered:
            self.register_buffer("cos", angles.cos(), persistent=False)
            self.register_buffer("sin", angles.sin(), persistent=False)
        else:
            self.__dict__.update(cos=angles.cos(), sin=angles.sin())

    def forward(self, tokens):
        """Logits."""
        scale = torch.tensor(math.sqrt(_WIDTH) * 1.1)
        x = self.embed(tokens) * (scale.bfloat16().float() if self.how.low_embedding else scale)
        for block in self.blocks:
            if self.how.checkpointed:
                x = torch.utils.checkpoint.checkpoint(
                    block, x, self.cos, self.sin, use_reentrant=False
                )
            else:
                x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


_NORM = ("blocks.0.norm1@value",)
_MIX = ("blocks.0.attention@value", "blocks.0.attention.out*@value")
_UPDATE = ("*@updated", "*@delta", "*@opt.*")
CASES = [
    Case("norm eps", "bug", {"eps": 1e-6}, _NORM, r"1e-0?6"),
    Case("large norm eps", "bug", {"eps": 1e-3}, _NORM, r"1e-0?3|0\.001"),
    Case("rotary base", "bug", {"base": 5000.0}, ("cos@value", "sin@value"), r"\bcos\b|\bsin\b"),
    Case(
        "rotary base, no buffer",
        "bug",
        {"base": 5000.0, "buffered": False},
        ("blocks.0.attention*@value", "*cos*@value"),
        r"\bcos\b|\bsin\b",
        reference={"buffered": False},
    ),
    Case("mask off by one", "bug", {"shift": 1}, _MIX, r"mask|masked|MaskedFill|tril"),
    Case("attention scale", "bug", {"scale": 0.25}, _MIX, r"0\.25|0\.0625|is [\d.]+ times A|scale"),
    Case(
        "gelu approximate",
        "bug",
        {"approximate": "tanh"},
        ("blocks.0.gelu@value",),
        r"approximate",
    ),
    Case(
        "low embedding scale",
        "bug",
        {"low_embedding": True},
        ("embed*@value", "blocks.0@*", "blocks.0.norm1*@value", "blocks.0.input*@value"),
        r"ToCopy|to bfloat16|is [\d.]+ times A",
    ),
    Case("betas", "bug", {"betas": (0.9, 0.999)}, _UPDATE, r"betas?"),
    Case("adam eps", "bug", {"adam_eps": 1e-5}, _UPDATE, r"\beps\b.*1e-0?[58]"),
    Case("weight decay", "bug", {"weight_decay": 0.0}, _UPDATE, r"weight_decay"),
    Case("decay of norms", "bug", {"decays_norms": True}, ("*norm*@*",), r"weight_decay"),
    Case("adam for adamw", "bug", {"decoupled": False}, _UPDATE, r"decoupled|AdamW"),
    Case(
        "sum for mean",
        "bug",
        {"loss": "sum"},
        ("loss@*", "head@grad"),
        r"reduction|is [\d.]+ times A|sum",
    ),
    Case("label not shifted", "bug", {"label_shift": 0}, ("loss@value",), r"label|target"),
    Case("zero_grad missing", "bug", {"zeroed": False}, ("*@grad",), r"zero_grad", step=1),
    Case("clip", "bug", {"clip": 0.1}, ("*@grad",), r"clip|is [\d.]+ times A"),
    Case("no clip", "bug", {"clip": 0.0}, ("*@grad",), r"clip|is [\d.]+ times A"),
    Case("warm-up", "bug", {"warmup": 2}, _UPDATE, r"\blr\b"),
    Case(
        "dropout",
        "bug",
        {"dropout": 0.2},
        ("blocks.0.drop@value",),
        r"p=0\.[12]|\bp\b.*0\.2",
        reference={"dropout": 0.1},
    ),
    Case(
        "micro-batches not divided",
        "bug",
        {"parts": 2, "part_scale": 1},
        ("loss@*", "*@grad", "head@grad", "head.weight@pass_grad"),
        r"is [\d.]+ times A|micro|pass",
    ),
    Case(
        "ranks summed",
        "bug",
        {"ranks": 2, "reduction": "sum"},
        ("*@grad",),
        r"is 2(\.0)? times A|reduction",
    ),
    Case(
        "2 ranks, summed",
        "bug",
        {"reduction": "sum"},
        ("*@grad",),
        r"is 2(\.0)? times A|reduction",
        reference={"ranks": 2},
    ),
    Case(
        "micro-batches, not divided",
        "bug",
        {"part_scale": 1},
        ("loss@*", "head@grad", "output@grad"),
        r"is 2(\.0)? times A|Div",
        reference={"parts": 2},
    ),
    Case(
        "betas behind rounding",
        "bug",
        {"norm": "divide", "betas": (0.9, 0.999)},
        _UPDATE,
        r"betas?",
    ),
    Case("other init", "data", {"init": 1}, ("*.weight@value",), r""),
    Case("init std", "data", {"init_std": 0.02}, ("*.weight@value",), r""),
    Case(
        "other order", "data", {"order": 1}, ("input*@value", "*input*@value", "embed@value"), r""
    ),
    Case("rms_norm of torch", "benign", {"norm": "torch"}),
    Case("divided by a root", "benign", {"norm": "divide"}),
    Case("fused attention", "benign", {"attention": "torch"}),
    Case("own cross entropy", "benign", {"cross_entropy": "manual"}),
    Case("packed qkv", "benign", {"packed": True}, reference={}),
    Case("fused optimizer", "benign", {"implementation": "fused"}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("4 micro-batches", "benign", {"parts": 4}),
    Case("2 ranks", "benign", {"ranks": 2}),
    Case("batch turned", "benign", {"turned": True}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("again", "equal"),
    Case("checkpointed", "equal", {"checkpointed": True}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("evaluates", "equal", {"evaluates": True}),
    Case("again, with dropout", "equal", {}, reference={"dropout": 0.1}),
    Case("died", "incomplete", {"ends_at": 3}),
]
