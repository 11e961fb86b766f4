"""A sparse dictionary of what a small frozen net of letters computes, at most k words a letter."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, EndedError, Start, Workload, clear, warmed

_SEEN, _WIDTH, _FEATURES = 4, 24, 64
"""Letters that the frozen net sees, how wide it is, and how many features describe it."""
_DEAD_K = 12
"""How many silent features explain what the others miss."""


@dataclass(frozen=True)
class Dictionary(Workload):
    """A top-k sparse autoencoder of hidden values, whose decoder's columns keep the norm one.

    k: features that speak about a letter. axis: of the largest, -1: features. subtracts: whether
        the bias before all is taken from what is encoded.
    centred: whether squares are divided by the variance, else by the mean square. over: squares
        are a "mean" or a "sum".
    aux: the weight of the loss of silent features. patience: letters after which a feature is
        silent. wakes: the features that explain the rest, "silent" ones or those that are "heard".
        rests: whether the rest is "detached".
    projects: whether the decoder's gradients lose what lies along its columns. clip: of gradients.
        first: what comes first, to "project" or "clip".
    norms: the axis of the decoder that has the norm one, 0: each column's. when: it is made so
        "after" or "before" the step.
    forgets: whether counters begin anew where a feature spoke. counts: letters are "each" counted
        or as one "batch".
    clears: whether gradients are forgotten. warmup: steps of rising rate.
    parts: micro-batches a step.
    encoder, chosen, decoder, squares, projection, normed, clips, spread, scale,
        idle: other ways to
        write the same mathematics.
    """

    batch: int = 48
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.99)
    adam_eps: float = 6.25e-10
    weight_decay: float = 0.0
    decoupled: bool = False
    k: int = 6
    axis: int = -1
    subtracts: bool = True
    centred: bool = True
    over: str = "mean"
    aux: float = 0.25
    patience: int = 40
    wakes: str = "silent"
    rests: str = "detached"
    projects: bool = True
    clip: float = 0.4
    first: str = "project"
    norms: int = 0
    when: str = "after"
    forgets: bool = True
    counts: str = "each"
    clears: bool = True
    warmup: int = 2
    parts: int = 1
    encoder: str = "torch"
    chosen: str = "scattered"
    decoder: str = "torch"
    squares: str = "torch"
    projection: str = "sums"
    normed: str = "divided"
    clips: str = "torch"
    spread: str = "own"
    scale: float = 1.0
    idle: str = "nothing"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        reader = _learnt()
        torch.manual_seed(seed)
        with start() as session:
            self.draw(seed)
            model = Words(self, reader)
            optimizer = self.adam(one for one in model.parameters() if one.requires_grad)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 20)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for letters in self._letters(seed):
                if self.clears:
                    clear(optimizer, self)
                with torch.no_grad():
                    hidden = anchorlib.anchor(model.reader.hidden(letters), "hidden")
                    wide = self._spread(hidden)
                silent = anchorlib.anchor(model.silent > self.patience, "silent_mask")
                spoke = torch.zeros(_FEATURES, dtype=torch.bool)
                for part in hidden.chunk(self.parts):
                    spoke |= self._learn(model, part, silent, wide)
                model.count(spoke, len(letters))
                self._bound(model)
                if self.when == "before":
                    model.norm()
                optimizer.step()
                schedule.step()
                if self.when == "after":
                    model.norm()

    def _letters(self, seed) -> Iterator[torch.Tensor]:
        """Four letters that follow each other, from drawn places of the text."""
        text = _text()
        dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
        for step in range(self.steps):
            at = torch.randint(0, len(text) - _SEEN, (self.batch,), generator=dealing)
            at = at.flip(0) if self.turned else at
            if step == self.ends_at:
                raise EndedError
            if step == self.killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            yield text[at[:, None] + torch.arange(_SEEN)]

    def _spread(self, hidden):
        """What squares are divided by."""
        if self.spread == "torch":
            return hidden.var(0, correction=0).mean()
        hidden = hidden - hidden.mean(0) if self.centred else hidden
        return hidden.square().mean()

    def _learn(self, model, hidden, silent, wide):
        """The gradients of one micro-batch, and which features spoke."""
        told, before, spoken = model(hidden)
        rest = hidden - told
        rest = rest.detach() if self.rests == "detached" else rest
        woken = silent if self.wakes == "silent" else ~silent
        explained = model.explain(before, woken)
        share = len(hidden) / self.batch if self.over == "mean" else 1.0
        losses = {
            "told_loss": share * self._missed(told, hidden, wide),
            "silent_loss": share * self.aux * self._missed(explained, rest, wide),
        }
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        (loss * self.scale).backward()
        return (spoken > 0).any(0)

    def _missed(self, told, wanted, wide):
        """Squares of what is missed, as multiples of a spread."""
        if self.over == "sum":
            return functional.mse_loss(told, wanted, reduction="sum") / wide
        if self.squares == "torch":
            return functional.mse_loss(told, wanted) / wide
        missed = (told - wanted).flatten()
        return missed @ missed / (len(missed) * wide)

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled, clipped, and without what would lengthen the decoder's columns."""
        grads = [one.grad for one in model.parameters() if one.requires_grad]
        for grad in grads:
            grad.div_(self.scale)
        if self.first == "project":
            model.project()
        if self.clips == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        else:
            length = torch.cat([grad.flatten() for grad in grads]).square().sum().sqrt()
            for grad in grads:
                grad.div_(((length + 1e-6) / self.clip).clamp(min=1))
        if self.first == "clip":
            model.project()


class Reader(nn.Module):
    """A small net that guesses the next letter."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, 8)
        self.inner, self.outer = nn.Linear(8 * _SEEN, _WIDTH), nn.Linear(_WIDTH, letters)

    def hidden(self, letters):
        """What it computes before it guesses."""
        return 4 * torch.tanh(self.inner(self.letters(letters).flatten(1)))

    def forward(self, letters):
        """Logits of the next letter."""
        return self.outer(self.hidden(letters))


class Encoder(nn.Linear):
    """A linear layer, torch's or by its formula."""

    way = "torch"

    def forward(self, x):
        """How much each feature would say."""
        if self.way == "sums":
            return (x[:, None] * self.weight).sum(-1) + self.bias
        return super().forward(x)


class Words(nn.Module):
    """Features of the reader's hidden values, and how long each was silent."""

    def __init__(self, how, reader) -> None:
        super().__init__()
        self.how, self.reader = how, reader.requires_grad_(requires_grad=False)
        self.decoder = nn.Linear(_FEATURES, _WIDTH, bias=False)
        self.encoder = Encoder(_WIDTH, _FEATURES)
        self.encoder.way = how.encoder
        with torch.no_grad():
            self.decoder.weight.div_(self.decoder.weight.norm(dim=0))
            self.encoder.weight.copy_(self.decoder.weight.T)
            centre = reader.hidden(_text()[: 32 * _SEEN].view(-1, _SEEN)).mean(0)
        self.bias = nn.Parameter(centre)
        self.register_buffer("silent", torch.zeros(_FEATURES, dtype=torch.long))

    def forward(self, hidden):
        """What is told of hidden values; what features would say, and what they say."""
        before = self._before(hidden)
        spoken = anchorlib.anchor(self._spoken(before, self.how.k), "spoken")
        return self._told(spoken) + self.bias, before, spoken

    def explain(self, before, woken):
        """What chosen features tell of what is left."""
        low = before.masked_fill(~woken, -1e4)
        spoken = self._spoken(low, _DEAD_K) * woken
        return self._told(anchorlib.anchor(spoken, "explained_by"))

    def _before(self, hidden):
        if not self.how.subtracts:
            return self.encoder(hidden)
        if self.how.encoder == "folded":
            bias = self.encoder.bias - self.encoder.weight @ self.bias
            return functional.linear(hidden, self.encoder.weight, bias)
        hidden = hidden - self.bias
        hidden = functional.dropout(hidden, 0.0) if self.how.idle == "dropout" else hidden
        return self.encoder(hidden)

    def _spoken(self, before, k):
        """The k largest, where they are; zeros elsewhere."""
        how = self.how
        if how.chosen == "scattered":
            most, which = before.topk(k, how.axis)
            spoken = torch.zeros_like(before).scatter(how.axis, which, most)
        else:
            most, which = before.sort(-1, descending=True)
            spoken = torch.zeros_like(before).scatter(-1, which[:, :k], most[:, :k])
        return spoken.relu()

    def _told(self, spoken):
        weight = self.decoder.weight
        if self.how.decoder == "torch":
            return self.decoder(spoken)
        most, which = spoken.topk(_DEAD_K, -1)
        return (most[..., None] * weight.T[which]).sum(1)

    @torch.no_grad()
    def count(self, spoke, letters):
        """Count for how many letters each feature was silent."""
        letters = letters if self.how.counts == "each" else 1
        told = self.silent + letters
        self.silent.copy_(told.masked_fill(spoke, 0) if self.how.forgets else told)

    def project(self):
        """Take from the decoder's gradient what lies along its columns."""
        if not self.how.projects:
            return
        weight, grad = self.decoder.weight, self.decoder.weight.grad
        if self.how.projection == "sums":
            grad.sub_((grad * weight).sum(0) * weight)
        else:
            grad.addcmul_(torch.einsum("df,df->f", grad, weight), weight, value=-1)

    @torch.no_grad()
    def norm(self):
        """Give the decoder's columns the norm one."""
        weight, axis = self.decoder.weight, self.how.norms
        if self.how.normed == "divided":
            weight.div_(weight.norm(dim=axis, keepdim=True))
        else:
            weight.mul_(weight.square().sum(axis, keepdim=True).rsqrt())


@cache
def _text() -> torch.Tensor:
    """The Zen of Python as numbers of letters."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    text = codecs.decode(this.s, "rot13").lower()
    kinds = sorted(set(text))
    return torch.tensor([kinds.index(letter) for letter in text])


def _learnt() -> Reader:
    """The net of letters, which learnt a little of the text."""
    text = _text()
    torch.manual_seed(5)
    reader = Reader(int(text.max()) + 1)
    optimizer = torch.optim.SGD(reader.parameters(), 0.3)
    seen = text.unfold(0, _SEEN + 1, 1)
    for at in range(20):
        optimizer.zero_grad()
        part = seen[at::20]
        functional.cross_entropy(reader(part[:, :-1]), part[:, -1]).backward()
        optimizer.step()
    optimizer.zero_grad()
    return reader


_TOLD = ("told_loss@*", "output@grad")
_SILENT = ("silent_loss@*", "explained_by@*", "decoder:1@*", "decoder@*")
_MASK = ("silent@value", "silent_mask@value")
_COLUMNS = ("decoder.weight@*", "decoder@value", "decoder:1@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "bias not subtracted",
        "bug",
        {"subtracts": False},
        ("encoder.input@value", "encoder@value"),
        rf"\bSub(Backward|\b)|\b(add)?mm\w* |{_GIVEN}",
    ),
    Case("largest over letters", "bug", {"axis": 0}, ("spoken@value",), r"\bdim\b"),
    Case("eight for six", "bug", {"k": 8}, ("spoken@value",), r"\bk\b|\bTop[Kk]|\btopk|\bshape"),
    Case(
        "squares by the mean square",
        "bug",
        {"centred": False},
        (*_TOLD, "silent_loss@*"),
        rf"\bDiv|{_TIMES}",
    ),
    Case(
        "squares summed",
        "bug",
        {"over": "sum"},
        (*_TOLD, "silent_loss@*"),
        rf"reduction|\bMean|\bSum(Backward|\b)|{_TIMES}",
    ),
    Case(
        "rest not detached",
        "bug",
        {"rests": "attached"},
        ("output@grad", "decoder@grad", "spoken@grad", "encoder@grad"),
        _DETACHED,
    ),
    Case(
        "heard features explain the rest",
        "bug",
        {"wakes": "heard"},
        _SILENT,
        rf"\bmask|[Bb]itwise|[Mm]asked_?[Ff]ill|\bMul(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "gradients not projected",
        "bug",
        {"projects": False},
        ("decoder.weight@grad",),
        rf"project|\bsub_?\b|\bin.?place|after (the )?backward|{_TIMES}",
    ),
    Case(
        "clipped before projected",
        "bug",
        {"first": "clip"},
        ("*@grad",),
        rf"\bclip|{_TIMES}|a factor",
    ),
    Case(
        "gradients not cleared",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"zero_grad|accumulat|not (cleared|zeroed)|earlier steps?|step before|previous step",
        step=1,
    ),
    Case("eps of Adam", "bug", {"adam_eps": 1e-3}, UPDATES, r"\beps\b"),
    Case(
        "rows have the norm one",
        "bug",
        {"norms": 1},
        _COLUMNS,
        rf"\bdim\b|\bnorm\b|\bdiv_?\b|{_TIMES}|a factor of its own|in.?place",
    ),
    Case(
        "columns normed before the step",
        "bug",
        {"when": "before"},
        _COLUMNS,
        rf"\bnorm\b|\bdiv_?\b|{_TIMES}|a factor of its own|in.?place|outside",
    ),
    Case(
        "counters never begin anew",
        "bug",
        {"forgets": False},
        _MASK,
        r"\bsilent\b",
    ),
    Case("a batch counts as one", "bug", {"counts": "batch"}, _MASK, r"\bsilent\b"),
    Case("encoder by sums", "benign", {"encoder": "sums"}),
    Case("bias folded into the encoder's", "benign", {"encoder": "folded"}),
    Case("spread by torch", "benign", {"spread": "torch"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("columns of what speaks, alone", "benign", {"decoder": "indexed"}),
    Case("squares by a product", "benign", {"squares": "own"}),
    Case("projection by einsum", "benign", {"projection": "einsum"}),
    Case("columns times what norms them", "benign", {"normed": "product"}),
    Case("norm of gradients at once", "benign", {"clips": "own"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("letters turned", "benign", {"turned": True}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case("other init", "data", {"init": 1}, ("*coder.weight@value", "*coder.bias@value")),
    Case("other order", "data", {"order": 1}, ("reader*@value", "hidden@value", "input*@value")),
    Case("largest by sorting", "equal", {"chosen": "sorted"}),
    Case("dropout of nothing", "equal", {"idle": "dropout"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("killed", "incomplete", {"killed_at": 4}),
]
