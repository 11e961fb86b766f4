"""A small GPT over the pixels of digits: rotary embedding, RMSNorm, AdamW, warm-up, clipping."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, warmed
from tests.diagnosis.workloads.decoder import LENGTH, Decoder


@dataclass(frozen=True)
class GPT(Workload):
    """norm, attention, cross_entropy, packed, checkpointed: how it is written, of one mathematics.

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
            tokens = ((images.flatten(1)[:, 8 : 8 + LENGTH + 1] + 1) * 8).long()
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
        logits = model(tokens[:, :LENGTH]).flatten(0, 1)
        targets = tokens[:, 1:] if self.label_shift else tokens[:, :LENGTH]
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


_NORM = ("blocks.0.norm1@value",)
_MIX = ("blocks.0.attention@value", "blocks.0.attention.out*@value")
CASES = [
    Case("norm eps", "bug", {"eps": 1e-6}, _NORM, r"1e-0?6"),
    Case("large norm eps", "bug", {"eps": 1e-3}, _NORM, r"1e-0?3|eps\W+0\.001"),
    Case("rotary base", "bug", {"base": 5000.0}, ("cos@value", "sin@value"), r"\bcos\b|\bsin\b"),
    Case(
        "rotary base, no buffer",
        "bug",
        {"base": 5000.0, "buffered": False},
        ("blocks.0.attention*@value", "*cos*@value"),
        r"\bcos\b|\bsin\b",
        reference={"buffered": False},
    ),
    Case("mask off by one", "bug", {"shift": 1}, _MIX, r"MaskedFill|masked_fill|tril|\bmask\b"),
    Case(
        "attention scale",
        "bug",
        {"scale": 0.25},
        _MIX,
        r"0\.25|0\.0625|is [\d.]+ times A|\bscale\b",
    ),
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
        r"ToCopy|to bfloat16|is [\d.]+ times A|other tensor\(6\.22\d*\) \| tensor\(6\.21875\)",
    ),
    Case("betas", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"betas?"),
    Case("adam eps", "bug", {"adam_eps": 1e-5}, UPDATES, r"\beps\b.*1e-0?[58]"),
    Case("weight decay", "bug", {"weight_decay": 0.0}, UPDATES, r"weight_decay"),
    Case("decay of norms", "bug", {"decays_norms": True}, ("*norm*@*",), r"weight_decay"),
    Case("adam for adamw", "bug", {"decoupled": False}, UPDATES, r"decoupled|AdamW"),
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
    Case("warm-up", "bug", {"warmup": 2}, UPDATES, r"\blr\b"),
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
        r"is 2(\.0)? times A|micro",
        reference={"clip": 0.0},
    ),
    Case(
        "ranks summed",
        "bug",
        {"ranks": 2, "reduction": "sum"},
        ("*@grad",),
        r"is 2(\.0)? times A",
        reference={"clip": 0.0},
    ),
    Case(
        "2 ranks, summed",
        "bug",
        {"reduction": "sum"},
        ("*@grad",),
        r"is 2(\.0)? times A",
        reference={"ranks": 2, "clip": 0.0},
    ),
    Case(
        "micro-batches, not divided",
        "bug",
        {"part_scale": 1},
        ("loss@*", "head@grad", "output@grad"),
        r"is 2(\.0)? times A|DivBackward0 other 2 \| 1",
        reference={"parts": 2, "clip": 0.0},
    ),
    Case(
        "betas behind rounding",
        "bug",
        {"norm": "divide", "betas": (0.9, 0.999)},
        UPDATES,
        r"betas?",
    ),
    Case(
        "adam eps behind rounding",
        "bug",
        {"norm": "divide", "adam_eps": 1e-5},
        UPDATES,
        r"AdamW eps 1e-08",
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
    Case("2 passes against 2 ranks", "benign", {"parts": 1, "ranks": 2}, reference={"parts": 2}),
    Case("4 passes against 2 ranks", "benign", {"parts": 1, "ranks": 2}, reference={"parts": 4}),
    Case(
        "2 passes on 2 ranks against 4 ranks",
        "benign",
        {"parts": 1, "ranks": 4},
        reference={"parts": 2, "ranks": 2},
    ),
    Case(
        "sums of 4 passes against those of 2 ranks",
        "benign",
        {"parts": 1, "ranks": 2, "reduction": "sum"},
        reference={"parts": 4, "part_scale": 1, "loss": "sum"},
    ),
    Case(
        "4 passes against 2 ranks, summed",
        "bug",
        {"parts": 1, "ranks": 2, "reduction": "sum"},
        ("*@grad",),
        r"is 2(\.0)? times A",
        reference={"parts": 4, "clip": 0.0},
    ),
    Case(
        "4 passes against 2 ranks, norm eps",
        "bug",
        {"parts": 1, "ranks": 2, "eps": 1e-3},
        _NORM,
        r"1e-0?3|eps\W+0\.001|eps",
        reference={"parts": 4},
    ),
    Case("batch turned", "benign", {"turned": True}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("again", "equal"),
    Case("checkpointed", "equal", {"checkpointed": True}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("evaluates", "equal", {"evaluates": True}),
    Case("again, with dropout", "equal", {}, reference={"dropout": 0.1}),
    Case("died", "incomplete", {"ends_at": 3}),
]
