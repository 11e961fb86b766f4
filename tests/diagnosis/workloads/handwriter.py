"""A handwriter: LSTMs over the strokes of digits, in chunks, that tell mixtures of Gaussians."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import distributions, nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut
from tests.diagnosis.workloads.writer import Writer

_CHUNK = 8
"""Strokes a chunk."""


@dataclass(frozen=True)
class Handwriter(Workload):
    """Each half row with ink is a point of a digit; strokes lead from point to point.

    chunks: whether the state of the chunk before is "cut" off its past, "attached", or forgotten
        ("none"). rests: whether the state is forgotten from batch to batch.
    masked: the strokes that count, "real" ones, "one more" or "all". over: what losses are divided
        by, the "strokes" of the batch, those of the "chunk", or all "places" of the batch.
    target: the stroke that is told, the "next" one or the "same". parameters: of mixtures, "in
        turn" or "interleaved". axis: of the softmax. spread: what makes it positive, "exp" or
        "softplus". bounds: of correlations, by "tanh" or "sigmoid". logs: whether densities have
        the logarithms of weights added, or the weights. cross: the factor of the mixed term.
    flows: whether the upper LSTM's gradient reaches the lower one. dropout: between them.
    alpha, rms_eps, momentum, centred: of RMSprop. clip, clips: of gradients, by their "torch" norm,
        their "own" norm, or "not".
    decay: of the average of weights. follows: whether it is moved "after" or "before" the step.
        sleeps: whether it is evaluated in eval mode.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    cells, softmax, heads, density, mixes, pens, average, backward, scale: other ways to write the
        same mathematics.
    """

    steps: int = 5
    lr: float = 4e-3
    chunks: str = "cut"
    rests: bool = True
    masked: str = "real"
    over: str = "strokes"
    target: str = "next"
    parameters: str = "in turn"
    axis: int = -1
    spread: str = "exp"
    bounds: str = "tanh"
    logs: bool = True
    cross: float = 2.0
    flows: bool = True
    dropout: float = 0.2
    alpha: float = 0.95
    rms_eps: float = 1e-4
    momentum: float = 0.9
    centred: bool = True
    clip: float = 0.5
    clips: str = "torch"
    decay: float = 0.8
    follows: str = "after"
    sleeps: bool = True
    parts: int = 1
    low: bool = False
    cells: str = "packed"
    softmax: str = "torch"
    heads: str = "joined"
    density: str = "own"
    mixes: str = "torch"
    pens: str = "torch"
    average: str = "lerp"
    backward: str = "chunk"
    scale: float = 1.0

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Writer(self)
            average = copy.deepcopy(model).requires_grad_(False).train(not self.sleeps)
            optimizer = torch.optim.RMSprop(
                model.parameters(),
                lr=self.lr,
                alpha=self.alpha,
                eps=self.rms_eps,
                momentum=self.momentum,
                centered=self.centred,
                foreach=self.implementation == "foreach",
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(average, tensors="*@value", prefix="average")
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                strokes, wanted, lengths = self._strokes(images)
                self._evaluate(average, (strokes, wanted, labels, lengths))
                clear(optimizer, self)
                for part in cut(self.parts, strokes, wanted, labels, lengths):
                    self._learn(model, part, lengths)
                self._bound(model)
                if self.follows == "before":
                    self._follow(average, model)
                optimizer.step()
                if self.follows == "after":
                    self._follow(average, model)

    def _strokes(self, images):
        """Strokes that are known, strokes that are to be told, and how many there are."""
        ink = (images + 1).view(-1, 16, 4)
        mass, at = ink.sum(-1), torch.arange(16)
        right = (ink * torch.arange(4)).sum(-1) / mass.clamp(min=1) + at % 2 * 4
        down = at // 2 + mass / 8
        inked = mass > 0
        order = (~inked).long().argsort(dim=1, stable=True)
        right, down, rows = (
            one.gather(1, order) for one in (right, down, (at // 2).expand_as(order))
        )
        lengths = inked.sum(1) - 1
        real = torch.arange(15) < lengths[:, None]
        lifted = rows.diff() > 0
        moves = torch.stack((right.diff() / 2.5, (down.diff() - 0.5) / 0.8, lifted), -1)
        wanted = moves * real[..., None]
        strokes = torch.cat((torch.zeros_like(wanted[:, :1]), wanted[:, :-1]), 1)
        return strokes, (wanted if self.target == "next" else strokes), lengths

    @torch.no_grad()
    def _evaluate(self, average, batch):
        """How well the average of weights tells strokes, all chunks at once."""
        strokes, wanted, labels, lengths = batch
        average.rest()
        told = self._told(average, strokes, labels, lengths)
        missed, _ = self._missed(told, wanted, lengths)
        anchorlib.anchor(missed.sum() / lengths.sum(), "average_loss")

    def _learn(self, model, part, lengths):
        """The gradients of one micro-batch, chunk by chunk."""
        strokes, wanted, labels, own = part
        if self.rests:
            model.rest()
        losses = []
        for at in range(0, strokes.shape[1], _CHUNK):
            long = (own - at).clamp(max=_CHUNK)
            told = self._told(model, strokes[:, at : at + _CHUNK], labels, long)
            missed, pens = self._missed(told, wanted[:, at : at + _CHUNK], long)
            count = {
                "strokes": lengths.sum(),
                "chunk": long.sum(),
                "places": strokes.shape[0] * strokes.shape[1],
            }[self.over]
            losses.append(self._loss(missed.sum() / count, pens.sum() / count))
            if self.backward == "chunk":
                (losses[-1] * self.scale).backward(retain_graph=self.chunks == "attached")
            if self.chunks != "attached":
                model.cut()
            if self.chunks == "none":
                model.rest()
        if self.backward == "once":
            (sum(losses) * self.scale).backward()

    def _told(self, model, strokes, labels, lengths):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(strokes, labels, lengths)
        return [one.to(strokes.dtype) for one in told]

    def _loss(self, missed, pens):
        loss = missed + pens
        for one, name in ((missed, "stroke_loss"), (pens, "pen_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        return loss

    def _missed(self, told, wanted, lengths):
        """How unlikely each stroke is, and each lift of the pen."""
        *mixture, pen = told
        *_, lifted = wanted.unbind(-1)
        if self.pens == "torch":
            pens = functional.binary_cross_entropy_with_logits(pen, lifted, reduction="none")
        else:
            pens = -(
                lifted * functional.logsigmoid(pen) + (1 - lifted) * functional.logsigmoid(-pen)
            )
        missed = self._unlikely(*mixture, wanted[..., :2])
        at = torch.arange(wanted.shape[1])
        last = lengths + 1 if self.masked == "one more" else lengths
        seen = (
            at < last[:, None] if self.masked != "all" else torch.ones_like(pens, dtype=torch.bool)
        )
        return missed * seen, pens * seen

    def _unlikely(self, weights, means, spreads, bound, wanted):
        """The negative logarithm of a mixture's density."""
        wanted = wanted[..., None, :]
        if self.density == "torch":
            tilt = bound * spreads[..., 1], (1 - bound.square()).sqrt() * spreads[..., 1]
            top = torch.stack((spreads[..., 0], torch.zeros_like(bound)), -1)
            root = torch.stack((top, torch.stack(tilt, -1)), -2)
            kinds = distributions.Categorical(logits=weights)
            parts = distributions.MultivariateNormal(means, scale_tril=root)
            return -distributions.MixtureSameFamily(kinds, parts).log_prob(wanted[..., 0, :])
        right, down = ((wanted - means) / spreads).unbind(-1)
        free = 1 - bound.square()
        if self.density == "own":
            far = right.square() + down.square() - self.cross * bound * right * down
            far = far / (2 * free)
        else:
            far = 0.5 * (right.square() + ((down - bound * right) * free.rsqrt()).square())
        logs = -far - spreads.log().sum(-1) - 0.5 * free.log() - math.log(2 * math.pi)
        logs = logs + (weights if self.logs else weights.exp())
        if self.mixes == "torch":
            return -logs.logsumexp(-1)
        most = logs.detach().amax(-1, keepdim=True)
        return -((logs - most).exp().sum(-1).log() + most[..., 0])

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters()]
        if self.scale != 1:
            for grad in grads:
                grad.div_(self.scale)
        if self.clips == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        elif self.clips == "own":
            length = torch.cat([grad.flatten() for grad in grads]).square().sum().sqrt()
            for grad in grads:
                grad.div_(((length + 1e-6) / self.clip).clamp(min=1))

    @torch.no_grad()
    def _follow(self, average, model):
        """Move the average towards the weights."""
        for mean, one in zip(average.parameters(), model.parameters(), strict=True):
            if self.average == "lerp":
                mean.lerp_(one, 1 - self.decay)
            else:
                mean.mul_(self.decay).add_(one, alpha=1 - self.decay)


_LSTMS = ("lower@value", "upper@value")
_STROKES = ("stroke_loss@*", "loss@*", "average_loss@*", "output*@grad", "mixture*@grad")
_LOSSES = (*_STROKES, "pen_loss@*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
_STATE = rf"\bhx\b|(hidden|cell|initial) state|\bzeros\b|computes it from|{_GIVEN}"
"""Words that name the state which an LSTM goes on from."""
CASES = [
    Case(
        "state not cut off its past",
        "bug",
        {"chunks": "attached"},
        ("lower*@*grad", "upper*@*grad", "locked@grad"),
        rf"{_DETACHED}|retain_graph",
    ),
    Case("state of the batch before", "bug", {"rests": False}, _LSTMS, _STATE, step=1),
    Case("state not carried on", "bug", {"chunks": "none"}, _LSTMS, _STATE, step=0),
    Case("padding counts", "bug", {"masked": "all"}, _LOSSES, rf"\bMul|\bmask|{_GIVEN}"),
    Case("one place too many", "bug", {"masked": "one more"}, _LOSSES, rf"\bMul|\bmask|{_GIVEN}"),
    Case("over all places", "bug", {"over": "places"}, _LOSSES, rf"{_TIMES}|\bDiv"),
    Case("each chunk's own mean", "bug", {"over": "chunk"}, _LOSSES, rf"{_TIMES}|\bDiv"),
    Case(
        "softplus for exp",
        "bug",
        {"spread": "softplus"},
        ("*mixture:2@value", "*output:2@value"),
        r"softplus|\bExp(Backward|\b)",
    ),
    Case(
        "sigmoid for tanh",
        "bug",
        {"bounds": "sigmoid"},
        ("*mixture:3@value", "*output:3@value"),
        r"\bsigmoid|\btanh",
    ),
    Case(
        "weights over time",
        "bug",
        {"axis": 1},
        ("*mixture@value", "*output@value"),
        r"\bdim\b",
    ),
    Case("weights without logarithm", "bug", {"logs": False}, _STROKES, r"\bExp(Backward|\b)"),
    Case(
        "sign of the mixed term",
        "bug",
        {"cross": -2.0},
        _STROKES,
        rf"{_TIMES}|\bMul|other sign|\bSub|\bNeg",
    ),
    Case(
        "stroke that is known",
        "bug",
        {"target": "same"},
        _LOSSES,
        rf"{_GIVEN}|places? on along",
    ),
    Case(
        "numbers of mixtures interleaved",
        "bug",
        {"parameters": "interleaved"},
        ("*mixture*@value", "*output*@value"),
        rf"{_ORDER}|\bchunk|\bsplit|unbind|unflatten|\bview|reshape",
    ),
    Case(
        "lower LSTM detached",
        "bug",
        {"flows": False},
        ("lower@grad", "lower.*@*grad", "locked@grad"),
        rf"{_DETACHED}|\bcat\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bcat",
    ),
    Case("epsilon of RMSprop", "bug", {"rms_eps": 1e-8}, UPDATES, r"\beps\b"),
    Case("not centred", "bug", {"centred": False}, UPDATES, r"\bcentered\b"),
    Case("not clipped", "bug", {"clips": "not"}, ("*@grad",), rf"\bclip|{_TIMES}"),
    Case(
        "average in training mode",
        "bug",
        {"sleeps": False},
        ("average.locked@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case(
        "average moved before the step",
        "bug",
        {"follows": "before"},
        ("average.*@value",),
        r"unchanged|(not|never) (moved?|changed?)|stands still|"
        r"steps? (earlier|behind|before|late)|\blerp",
        step=1,
    ),
    Case("own cells", "benign", {"cells": "own"}),
    Case("padded for packed", "benign", {"cells": "padded"}),
    Case("density of whitened errors", "benign", {"density": "whitened"}),
    Case("density by torch", "benign", {"density": "torch"}),
    Case("own logsumexp and softmax", "benign", {"mixes": "own", "softmax": "own"}),
    Case("pen by logsigmoid", "benign", {"pens": "own"}),
    Case("heads apart", "benign", {"heads": "apart"}),
    Case("one backward for both chunks", "benign", {"backward": "once"}),
    Case("norm of gradients at once", "benign", {"clips": "own"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("digits turned", "benign", {"turned": True}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"dropout": 0.0}),
    Case("heads apart, low precision", "benign", {"heads": "apart"}, reference={"low": True}),
    Case("digits turned, low precision", "benign", {"turned": True}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight*@value",)),
    Case("other order", "data", {"order": 1}, ("*input*@value",)),
    Case("again", "equal"),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 3}),
]
