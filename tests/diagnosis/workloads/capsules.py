"""A capsule net of digits: vectors agree in rounds, their lengths name, a decoder draws again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits

_CHANNELS, _TYPES, _SIZE = 12, 4, 4
_PLACES = 4
"""Places of the image that have capsules of each type."""
_CLASSES, _WIDE, _HIDDEN = 10, 6, 32
_SHOWN = 16
"""Images that the evaluation sees."""


@dataclass(frozen=True)
class Capsules(Workload):
    """Primary capsules predict digits' capsules, which are routed, squashed, and drawn from.

    squash_eps: below the root of a length. squashes: vectors by their "square"d lengths, or by the
        "length" alone. along: what lengths are taken of, the "parts" of a capsule or the
        "capsules".
    rounds: of the routing. over: what its softmax is over, the "digits" or the "capsules". gathers:
        whether agreements add up from round to round. agrees: whether agreements are taken of
        predictions that are "detached" or "attached".
    most, least: the margins. fewer: the factor of absent digits. power: of what misses the margin.
    summed: whether the losses of an image's digits are a "sum" or a "mean".
    shown: the capsule that is drawn from, of the "label", of the "longest", or "all".
    flows: whether the decoder's gradient reaches the capsules. drawn: the weight of its loss.
        erred: whether the squares of an image's pixels are a "sum" or a "mean".
    dropout: its share in the decoder. wakes: whether the model is in training mode again after an
        evaluation. falls: the factor of the rate from step to step. forgets: whether gradients are
        forgotten.
    convolution, predicts, routes, softmax, squash, lengths, margins, masks, errors, backward,
        scale, grouped: other ways to write the same mathematics.
    """

    lr: float = 4e-3
    weight_decay: float = 0.0
    decoupled: bool = False
    squash_eps: float = 1e-7
    squashes: str = "square"
    along: str = "parts"
    rounds: int = 3
    over: str = "digits"
    gathers: bool = True
    agrees: str = "detached"
    most: float = 0.9
    least: float = 0.1
    fewer: float = 0.5
    power: int = 2
    summed: str = "sum"
    shown: str = "label"
    flows: bool = True
    drawn: float = 0.05
    erred: str = "sum"
    dropout: float = 0.1
    wakes: bool = True
    falls: float = 0.9
    forgets: bool = True
    convolution: str = "torch"
    predicts: str = "einsum"
    routes: str = "einsum"
    softmax: str = "torch"
    squash: str = "factor"
    lengths: str = "torch"
    margins: str = "relu"
    masks: str = "product"
    errors: str = "torch"
    backward: str = "once"
    scale: float = 1.0
    grouped: bool = False

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            groups = model.parameters()
            if self.grouped:
                groups = [{"params": [one]} for one in model.parameters()]
            optimizer = self.adam(groups)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            images, labels = digits()
            for step, batch in enumerate(self.images(seed)):
                if step % 3 == 1:
                    self._evaluate(model, images[:_SHOWN], labels[:_SHOWN])
                if self.forgets:
                    clear(optimizer, self)
                self._back(*self._losses(model, *batch))
                if self.scale != 1:
                    for one in model.parameters():
                        one.grad.div_(self.scale)
                optimizer.step()
                schedule.step()

    @torch.no_grad()
    def _evaluate(self, model, images, labels):
        """The losses of images that are not learnt from in this step."""
        model.eval()
        anchorlib.anchor(sum(self._losses(model, images, labels)), "eval_loss")
        model.train(self.wakes)

    def _losses(self, model, images, labels):
        """The loss of the margins and the loss of what is drawn."""
        mask = functional.one_hot(labels, _CLASSES).to(images.dtype)
        lengths, drawn = model(images[:, None], mask)
        return self._missed(lengths, mask), self.drawn * self._erred(drawn, images.flatten(1))

    def _missed(self, lengths, mask):
        """The margin loss."""
        if self.margins == "chosen":
            there = mask > 0
            present = (self.most - lengths[there]).clamp(min=0).square().sum()
            absent = (lengths[~there] - self.least).clamp(min=0).square().sum()
            return (present + self.fewer * absent) / len(lengths)
        present = (self.most - lengths).relu() ** self.power
        absent = (lengths - self.least).relu() ** self.power
        if self.margins == "lerp":
            missed = torch.lerp(self.fewer * absent, present, mask)
        else:
            missed = mask * present + self.fewer * (1 - mask) * absent
        anchorlib.anchor(missed, "missed")
        return (missed.sum(1) if self.summed == "sum" else missed.mean(1)).mean()

    def _erred(self, drawn, images):
        """The squares of what is drawn wrongly."""
        if self.errors == "torch":
            erred = functional.mse_loss(drawn, images, reduction="sum") / len(images)
        else:
            wrong = (drawn - images).flatten()
            erred = torch.dot(wrong, wrong) / len(images)
        return erred if self.erred == "sum" else erred / images.shape[1]

    def _back(self, missed, erred):
        """Both losses' gradients."""
        loss = missed + erred
        for one, name in ((missed, "margin_loss"), (erred, "drawn_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            (erred * self.scale).backward(retain_graph=True)
            (missed * self.scale).backward()


class Conv(nn.Conv2d):
    """A 3 × 3 convolution without padding, torch's or as a product with patches."""

    def __init__(self, how, into: int, out: int, stride: int) -> None:
        super().__init__(into, out, 3, stride=stride)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        size = (x.shape[2] - 3) // self.stride[0] + 1
        patches = functional.unfold(x, 3, stride=self.stride)
        found = self.weight.flatten(1) @ patches + self.bias[:, None]
        return found.unflatten(2, (size, -1))


class Squash(nn.Module):
    """Vectors of the same direction, shorter than one."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x (image, capsule, part), squashed."""
        how = self.how
        square = x.square().sum(-1 if how.along == "parts" else 1, keepdim=True)
        length = (square + how.squash_eps).sqrt()
        if how.squashes == "length":
            return x / (1 + length)
        if how.squash == "factor":
            return square / (1 + square) * x / length
        return x * (1 - 1 / (1 + square)) * (square + how.squash_eps).rsqrt()


class Primary(nn.Module):
    """Capsules of each type at each place of the image."""

    def __init__(self, how) -> None:
        super().__init__()
        self.conv, self.squash = Conv(how, _CHANNELS, _TYPES * _SIZE, 2), Squash(how)

    def forward(self, x):
        """The capsules (image, capsule, part)."""
        x = self.conv(x).unflatten(1, (_TYPES, _SIZE))
        return self.squash(2 * x.permute(0, 1, 3, 4, 2).flatten(1, 3))


class Routing(nn.Module):
    """Digits' capsules, of what primary capsules predict, weighted by how they agree."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        count = _TYPES * _PLACES
        self.weight = nn.Parameter(torch.randn(count, _CLASSES, _WIDE, _SIZE) * 1.2)
        self.predicted, self.squash = nn.Identity(), Squash(how)

    def forward(self, x):
        """Digits' capsules (image, digit, part)."""
        how = self.how
        told = self.predicted(self._predict(x))
        fixed = told.detach() if how.agrees == "detached" else told
        logits = told.new_zeros(told.shape[:3])
        for number in range(how.rounds):
            shares = self._shares(logits)
            last = number == how.rounds - 1
            found = self.squash(self._mixed(shares, told if last else fixed))
            if not last:
                agreed = self._agreed(fixed, found)
                logits = logits + agreed if how.gathers else agreed
        anchorlib.anchor(shares, "shares")
        return found

    def _predict(self, x):
        """What each capsule predicts of each digit (image, capsule, digit, part)."""
        if self.how.predicts == "einsum":
            return torch.einsum("kjde,nke->nkjd", self.weight, x)
        if self.how.predicts == "matmul":
            return (self.weight @ x[:, :, None, :, None])[..., 0]
        each = [self.weight[at].flatten(0, 1) @ x[:, at].T for at in range(x.shape[1])]
        return torch.stack(each).permute(2, 0, 1).unflatten(2, (_CLASSES, _WIDE))

    def _shares(self, logits):
        """How much of a capsule goes to each digit."""
        axis = 2 if self.how.over == "digits" else 1
        if self.how.softmax == "torch":
            return logits.softmax(axis)
        high = logits.exp()
        return high / high.sum(axis, keepdim=True)

    def _mixed(self, shares, told):
        if self.how.routes == "einsum":
            return torch.einsum("nkj,nkjd->njd", shares, told)
        return (shares[..., None] * told).sum(1)

    def _agreed(self, told, found):
        if self.how.routes == "einsum":
            return torch.einsum("nkjd,njd->nkj", told, found)
        return (told * found[:, None]).sum(-1)


class Decoder(nn.Module):
    """An image that is drawn of one digit's capsule."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.hidden, self.drop = nn.Linear(_CLASSES * _WIDE, _HIDDEN), nn.Dropout(how.dropout)
        self.out = nn.Linear(_HIDDEN, 64)

    def forward(self, x, mask):
        """Pixels; x: digits' capsules. mask: 1 for those that are drawn from."""
        if self.how.masks == "product":
            hidden = self.hidden((x * mask[..., None]).flatten(1))
        else:
            at = mask.argmax(1)
            own = x[torch.arange(len(x)), at]
            weight = self.hidden.weight.unflatten(1, (_CLASSES, _WIDE)).transpose(0, 1)[at]
            hidden = (weight @ own[..., None])[..., 0] + self.hidden.bias
        return self.out(self.drop(functional.softplus(hidden))).tanh()


class Net(nn.Module):
    """Lengths of digits' capsules, and the image that is drawn of one."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.conv, self.act = Conv(how, 1, _CHANNELS, 1), nn.ELU()
        self.primary, self.routing, self.decoder = Primary(how), Routing(how), Decoder(how)

    def forward(self, x, mask):
        """Lengths (image, digit) and pixels (image, 64)."""
        how = self.how
        found = self.routing(self.primary(self.act(self.conv(x))))
        if how.lengths == "torch":
            lengths = torch.linalg.vector_norm(found, dim=-1)
        else:
            lengths = torch.einsum("njd,njd->nj", found, found).sqrt()
        if how.shown == "longest":
            mask = functional.one_hot(lengths.argmax(1), _CLASSES).to(mask.dtype)
        elif how.shown == "all":
            mask = torch.ones_like(mask)
        return lengths, self.decoder(found if how.flows else found.detach(), mask)


_SQUASHED = ("primary@value", "primary.squash@value")
_ROUTED = ("shares@value", "routing@value", "routing.squash@value")
_MARGIN = ("missed@*", "margin_loss@*", "loss@*", "output@grad")
_DRAWN = ("drawn_loss@*", "loss@*", "output:1@grad", "decoder@grad")
_MASKED = ("decoder.hidden@value", "decoder.hidden.input@value", "decoder.input*@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "eps of squashing",
        "bug",
        {"squash_eps": 1e-1},
        _SQUASHED,
        rf"\beps\b|\bAdd(Backward|\b)|\bSqrt|{_GIVEN}",
    ),
    Case(
        "squashed by lengths alone",
        "bug",
        {"squashes": "length"},
        _SQUASHED,
        r"\bDiv|\bMul",
    ),
    Case("lengths across capsules", "bug", {"along": "capsules"}, _SQUASHED, r"\bdim\b|\bSum"),
    Case(
        "two rounds of routing",
        "bug",
        {"rounds": 2},
        _ROUTED,
        r"softmax|\bAdd(Backward|\b)|\bonly\b|rounds?|calls?|fewer|lacks|times in",
    ),
    Case("softmax over capsules", "bug", {"over": "capsules"}, _ROUTED, r"\bdim\b"),
    Case(
        "agreements not added up",
        "bug",
        {"gathers": False},
        _ROUTED,
        rf"\bAdd(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "agreements attached",
        "bug",
        {"agrees": "attached"},
        ("routing.predicted@grad", "routing.squash@grad", "routing.*@grad", "primary@grad"),
        _DETACHED,
    ),
    Case(
        "margins of one half",
        "bug",
        {"most": 0.5, "least": 0.5},
        _MARGIN,
        rf"\b[RS]?Sub|{_TIMES}|\| 0\.5\b|{_GIVEN}",
    ),
    Case(
        "absent digits count whole",
        "bug",
        {"fewer": 1.0},
        _MARGIN,
        rf"\bMul|{_TIMES}|a factor of its own",
    ),
    Case("margin not squared", "bug", {"power": 1}, _MARGIN, r"\bPow|exponent"),
    Case(
        "mean over digits",
        "bug",
        {"summed": "mean"},
        _MARGIN,
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
    ),
    Case(
        "all capsules drawn from",
        "bug",
        {"shown": "all"},
        _MASKED,
        rf"\bMul|\bmask|{_GIVEN}|\bzeros?\b|\bones\b",
    ),
    Case(
        "decoder detached",
        "bug",
        {"flows": False},
        ("routing@grad", "routing.squash@grad"),
        rf"{_DETACHED}|\bMul\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bMul",
    ),
    Case("mean over pixels", "bug", {"erred": "mean"}, _DRAWN, rf"\bDiv|\bMean|{_TIMES}"),
    Case(
        "gradients not forgotten",
        "bug",
        {"forgets": False},
        ("*@grad", *UPDATES),
        r"zero_grad|accumulat|forgot|not (cleared|zeroed)|earlier gradients?",
        step=1,
    ),
    Case("predictions by matmul, shares by exp", "benign", {"predicts": "matmul", "softmax": "e"}),
    Case("predictions capsule by capsule", "benign", {"predicts": "looped"}),
    Case("routing by sums of products", "benign", {"routes": "product"}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case("squashed by another formula", "benign", {"squash": "rest"}),
    Case("margins of chosen digits", "benign", {"margins": "chosen"}),
    Case("errors by a dot product", "benign", {"errors": "dot", "lengths": "einsum"}),
    Case("decoder's weight of one digit", "benign", {"masks": "chosen"}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case(
        "images turned",
        "benign",
        {"turned": True},
        reference={"dropout": 0.0},
    ),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("losses scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("a group for each parameter", "equal", {"grouped": True}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("died", "incomplete", {"ends_at": 3}),
]
