"""A small convolutional net of digits that is pruned while it trains, and rewound once."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    Start,
    Workload,
    clear,
    digits,
    renamed,
)

_GROW = (1, 3, 6)
"""The steps before which weights die."""
_REWOUND = 4
"""The step before which what lives goes back to where it was after step 0."""
_SHOWN = 24
"""Digits that the evaluation sees."""
_SEQUENTIAL = {
    name: str(at)
    for at, name in enumerate(
        (
            *("conv0", "norm0", "act0", "pool0", "conv1", "norm1", "act1", "pool1"),
            *("flat", "fc", "act2", "head"),
        )
    )
}


class _Conv(nn.Conv2d):
    """A convolution that knows which of its weights live."""

    def __init__(self, into, out) -> None:
        super().__init__(into, out, 3, padding=1, bias=False)
        self.register_buffer("mask", torch.ones_like(self.weight))


class _Linear(nn.Linear):
    """A linear layer that knows which of its weights live."""

    def __init__(self, into, out) -> None:
        super().__init__(into, out)
        self.register_buffer("mask", torch.ones_like(self.weight))


def _net():
    """Two convolutions with norms, and two linear layers."""
    layers = OrderedDict()
    for at, (into, out) in enumerate(((1, 8), (8, 12))):
        layers[f"conv{at}"] = _Conv(into, out)
        layers[f"norm{at}"] = nn.BatchNorm2d(out)
        layers[f"act{at}"] = nn.ReLU()
        layers[f"pool{at}"] = nn.MaxPool2d(2)
    layers["flat"] = nn.Flatten()
    layers["fc"] = _Linear(48, 32)
    layers["act2"] = nn.ReLU()
    layers["head"] = _Linear(32, 10)
    return nn.Sequential(layers)


class _Pruner:
    """Masks of weights by their magnitudes, and the weights that are rewound to."""

    def __init__(self, how, model, optimizer) -> None:
        self.how, self.model, self.optimizer = how, model, optimizer
        layers = [one for one in model if isinstance(one, (_Conv, _Linear))]
        self.layers = layers if how.prunes_head else layers[:-1]
        self.saved = {}
        if how.masking == "hooks":
            for layer in self.layers:
                layer.weight.register_hook(lambda grad, layer=layer: grad * layer.mask)

    @torch.no_grad()
    def prune(self, number):
        """Let the smallest weights die, so many as the schedule says of this round."""
        left = 1 - min(1.0, (number + self.how.ahead) / len(_GROW))
        sparsity = self.how.sparsity * (1 - left**3)
        if self.how.scope == "all":
            scores = torch.cat([self._scores(layer).flatten() for layer in self.layers])
            threshold = self._threshold(scores, sparsity)
        for layer in self.layers:
            scores = self._scores(layer)
            if self.how.scope == "layer":
                threshold = self._threshold(scores.flatten(), sparsity)
            lives = scores > threshold if self.how.keeps == "large" else scores < threshold
            layer.mask.copy_(lives)
            momentum = self.optimizer.state[layer.weight].get("momentum_buffer")
            if self.how.forgets and momentum is not None:
                momentum.mul_(layer.mask)
        self.apply()

    def _scores(self, layer):
        return layer.weight.abs() if self.how.ranks == "sizes" else layer.weight.clone()

    def _threshold(self, scores, sparsity):
        """The score of the last weight that dies."""
        anchorlib.anchor(scores, "scores")
        count = int(sparsity * scores.numel())
        if self.how.finding == "kthvalue":
            found = torch.kthvalue(scores, count).values
        else:
            found = scores.sort().values[count - 1]
        return anchorlib.anchor(found, "threshold")

    @torch.no_grad()
    def apply(self):
        """What is dead is zero."""
        for layer in self.layers:
            layer.weight.mul_(layer.mask)

    @torch.no_grad()
    def mask_gradients(self):
        """What is dead has no gradient."""
        for layer in self.layers:
            layer.weight.grad.mul_(layer.mask)

    def save(self):
        """Remember the parameters."""
        for name, one in self.model.named_parameters():
            self.saved[name] = one.detach().clone() if self.how.copies else one.detach()

    @torch.no_grad()
    def rewind(self):
        """Go back to the parameters that were saved, under the masks of now."""
        for name, one in self.model.named_parameters():
            one.copy_(self.saved[name])
        if self.how.remasks:
            self.apply()
        if self.how.restarts:
            self.optimizer.state.clear()


@dataclass(frozen=True)
class Pruner(Workload):
    """Weights die by magnitude, by a cubic schedule; between two rounds the living are rewound.

    bright: whether pixels are "signed" or run from 0 to 1.
    sparsity: the share of weights that is dead in the end. ahead: rounds by which its schedule is
        too far. scope: whether "all" layers share one threshold, or each "layer" has its own.
    keeps: the weights that live, "large" or "small". ranks: whether "sizes" are ranked, or "values"
        with their signs. prunes_head: whether the last layer is pruned as well.
    masking: whether gradients are masked "after" the backward pass, "never", or by "hooks".
    forgets: whether the momentum of weights that die is forgotten. again: whether weights are
        masked after each step once more.
    copies: whether what is rewound to was copied. remasks: whether rewound weights are masked.
        restarts: whether momentum begins anew with them. rewinds: whether the rate goes back too.
    clip: the norm of gradients. clips: "after" they were masked, or "before".
    clears: whether gradients are forgotten between steps.
    penal: the weight of the sizes of the norms' scales. sums: whether it is their "sum" or "mean".
    wakes: whether the model is in training mode again after an evaluation.
    names: whether layers have names, or "numbers".
    finding, smoothing, layout: other ways to write the same mathematics.
    """

    steps: int = 8
    batch: int = 24
    lr: float = 5e-2
    weight_decay: float = 1e-3
    bright: str = "signed"
    sparsity: float = 0.7
    ahead: int = 0
    scope: str = "all"
    keeps: str = "large"
    ranks: str = "sizes"
    prunes_head: bool = False
    masking: str = "after"
    forgets: bool = True
    again: bool = False
    copies: bool = True
    remasks: bool = True
    restarts: bool = True
    rewinds: bool = True
    clip: float = 0.5
    clips: str = "after"
    clears: bool = True
    penal: float = 1e-2
    sums: str = "sum"
    wakes: bool = True
    names: str = "names"
    finding: str = "kthvalue"
    smoothing: str = "torch"
    layout: torch.memory_format = torch.contiguous_format

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = _net().to(memory_format=self.layout)
            if self.names == "numbers":
                renamed(model, _SEQUENTIAL)
            optimizer = self.sgd(model.parameters(), fused=self.implementation == "fused")
            pruner = _Pruner(self, model, optimizer)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            held, held_labels = digits()
            for step, (images, labels) in enumerate(self.images(seed)):
                if step in _GROW:
                    pruner.prune(_GROW.index(step) + 1)
                    self._evaluate(model, held[:_SHOWN], held_labels[:_SHOWN])
                elif step == _REWOUND:
                    pruner.rewind()
                self._rate(optimizer, step)
                if self.clears:
                    clear(optimizer, self)
                self._learn(model, images, labels)
                self._bound(model, pruner)
                optimizer.step()
                if self.again:
                    pruner.apply()
                if step == 0:
                    pruner.save()

    def _rate(self, optimizer, step):
        """The learning rate falls from step to step, and goes back with the weights."""
        age = step - _REWOUND + 1 if self.rewinds and step >= _REWOUND else step
        for group in optimizer.param_groups:
            group["lr"] = self.lr * 0.8**age

    @torch.no_grad()
    def _evaluate(self, model, images, labels):
        """The loss of digits that are held out of the count."""
        model.eval()
        anchorlib.anchor(functional.cross_entropy(self._told(model, images), labels), "eval_loss")
        model.train(self.wakes)

    def _told(self, model, images):
        images = images if self.bright == "signed" else (images + 1) / 2
        return model(images[:, None].contiguous(memory_format=self.layout))

    def _learn(self, model, images, labels):
        """The gradients of a batch."""
        named = anchorlib.anchor(self._named(self._told(model, images), labels), "class_loss")
        scales = torch.cat([one.weight for one in model if isinstance(one, nn.BatchNorm2d)]).abs()
        penalty = self.penal * (scales.sum() if self.sums == "sum" else scales.mean())
        anchorlib.anchor(penalty, "penalty")
        anchorlib.anchor(named + penalty, "loss").backward()

    def _named(self, logits, labels):
        """The cross entropy with smoothed labels."""
        if self.smoothing == "torch":
            return functional.cross_entropy(logits, labels, label_smoothing=0.1)
        told = logits.log_softmax(1)
        right = told.gather(1, labels[:, None])[:, 0]
        return -(0.9 * right + 0.1 * told.mean(1)).mean()

    def _bound(self, model, pruner):
        """Gradients, masked and clipped."""
        if self.clips == "before":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        if self.masking == "after":
            pruner.mask_gradients()
        if self.clips == "after":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


_DEAD = ("conv?.weight@value", "fc.weight@value", "conv?.mask@value", "fc.mask@value")
_REWIND = ("*.weight@value", "*.bias@value")
_GRADS = ("*.weight@*grad", "*.bias@*grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_MASK = r"\bmask"
CASES = [
    Case(
        "small weights live",
        "bug",
        {"keeps": "small"},
        _DEAD,
        rf"{_MASK}|\b(gt|lt|ge|le)\b|greater|\bless\b|zeros?\b",
        step=1,
    ),
    Case(
        "weights ranked with their signs",
        "bug",
        {"ranks": "values"},
        ("scores@value",),
        r"\babs\b|\b[Aa]bs(Backward|\b)|\bclone\b|\bsigns?\b|magnitude",
        step=1,
    ),
    Case(
        "sparsity a round ahead",
        "bug",
        {"ahead": 1},
        ("threshold@value", *_DEAD),
        rf"kthvalue|\bk\b|threshold|{_MASK}|sparsity|zeros?\b",
        step=1,
    ),
    Case(
        "a threshold for each layer",
        "bug",
        {"scope": "layer"},
        ("scores*@value", "threshold*@value", *_DEAD),
        rf"kthvalue|\b[Cc]at\b|threshold|{_MASK}|\bshapes?\b|\bsizes?\b",
        step=1,
    ),
    Case(
        "head pruned too",
        "bug",
        {"prunes_head": True},
        ("scores@value", "threshold@value", "head.weight@value", "head.mask@value"),
        rf"\b[Cc]at\b|\bhead\b|\bshapes?\b|\bsizes?\b|{_MASK}",
        step=1,
    ),
    Case(
        "gradients not masked",
        "bug",
        {"masking": "never"},
        ("conv?.weight@grad", "fc.weight@grad"),
        rf"{_MASK}|zeros?\b|\bmul\b|in place",
        step=1,
    ),
    Case(
        "clipped before gradients are masked",
        "bug",
        {"clips": "before"},
        ("*.weight@grad", "*.bias@grad"),
        rf"\bclip|{_TIMES}|\bnorms?\b of",
        step=1,
    ),
    Case(
        "gradients never forgotten",
        "bug",
        {"clears": False},
        _GRADS,
        r"zero_grad|accumulat|steps? before|earlier step|previous|added to",
        step=1,
    ),
    Case(
        "momentum of the dead kept",
        "bug",
        {"forgets": False},
        UPDATES,
        r"momentum|\bstate\b",
        step=1,
    ),
    Case(
        "rewound to what was not copied",
        "bug",
        {"copies": False},
        _REWIND,
        r"between (the )?steps|outside|in place|was set|copied|copy|overwritten",
        step=_REWOUND,
    ),
    Case(
        "rewound without masks",
        "bug",
        {"remasks": False},
        ("conv?.weight@value", "fc.weight@value"),
        rf"between (the )?steps|outside|in place|was set|copied|copy|{_MASK}|zeros?\b",
        step=_REWOUND,
    ),
    Case(
        "momentum not rewound",
        "bug",
        {"restarts": False},
        UPDATES,
        r"momentum|\bstate\b",
        step=_REWOUND,
    ),
    Case(
        "rate not rewound",
        "bug",
        {"rewinds": False},
        UPDATES,
        r"\blr\b|learning rate",
        step=_REWOUND,
    ),
    Case(
        "penalty averaged",
        "bug",
        {"sums": "mean"},
        ("penalty@*",),
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
        step=0,
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("norm0@value", "norm0.running*@value", "norm0.num*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        step=1,
    ),
    Case("batch turned", "benign", {"turned": True}),
    Case("fused SGD", "benign", {"implementation": "fused"}),
    Case("gradients masked by hooks", "benign", {"masking": "hooks"}),
    Case("smoothed loss by hand", "benign", {"smoothing": "own"}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("pixels from 0 to 1", "data", {"bright": "unsigned"}, ("input*@value", "*input@value")),
    Case("layers by numbers", "equal", {"names": "numbers"}),
    Case("threshold by sorting", "equal", {"finding": "sort"}),
    Case("dead weights masked once more", "equal", {"again": True}),
    Case("died", "incomplete", {"ends_at": 5}),
]
