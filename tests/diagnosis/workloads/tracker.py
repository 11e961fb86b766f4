"""A tracker of digits: a template is looked for in frames in which the digit moves on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear
from tests.diagnosis.workloads.siamese import CELLS, FIRST, STRIDE, Tracker

_SIZE, _TEMPLATE, _FRAMES = 20, 10, 3
"""Pixels of a frame's and a template's side, and how many frames are looked at."""


@dataclass(frozen=True)
class Tracking(Workload):
    """A digit moves over a canvas on which its mirror image stands still.

    learns: whether the first convolution and its norm learn. wakes: whether that norm uses the
        statistics of the batch.
    turns: whether templates are turned by half a turn before they slide. deals: whose channels a
        template's are taken for, those of its "images" or as if "channels" came first. divides:
        whether correlations are divided by the template's area. templates: whether gradients
        reach them ("attached").
    resets: whether the new part of the state sees the reset gate. gated: what is kept, "rightly" or
        "exchanged". clears: whether the state begins anew with each batch. flows: whether gradients
        go back through frames. stays: the share of the template that stays.
    prior: the chance of a digit in a cell at the start, 0: that of a drawn bias.
    centre: where the first cell stands. radius: how far cells with a digit are from its centre.
        sides: the order of distances, to the "left" or the "top" first.
    alpha, gamma: of the focal loss. over: what it is divided by, "positives" or "cells".
        surrounds: the cells that have a box loss, "positives" or "all".
    box_weight: of the box loss. dampening: of the momentum. clip: of gradients by their norm.
    low: whether the net runs under autocast to bfloat16.
    correlating, norming, moving, focal, overlap, layout, backward: other ways to write the same
        mathematics.
    """

    steps: int = 5
    batch: int = 8
    lr: float = 0.05
    weight_decay: float = 1e-3
    learns: bool = False
    wakes: bool = False
    turns: bool = False
    deals: str = "images"
    divides: bool = True
    templates: str = "attached"
    resets: bool = True
    gated: str = "rightly"
    clears: bool = True
    flows: bool = True
    stays: float = 0.8
    prior: float = 0.1
    centre: float = FIRST
    radius: float = 2.5
    sides: str = "left"
    alpha: float = 0.25
    gamma: float = 2.0
    over: str = "positives"
    surrounds: str = "positives"
    box_weight: float = 1.0
    dampening: float = 0.0
    clip: float = 1.0
    low: bool = False
    correlating: str = "groups"
    norming: str = "torch"
    moving: str = "plain"
    focal: str = "own"
    overlap: str = "ratio"
    layout: torch.memory_format = torch.contiguous_format
    backward: str = "once"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Tracker(self).to(memory_format=self.layout)
            learnt = [one for one in model.parameters() if one.requires_grad]
            optimizer = self.sgd(learnt, dampening=self.dampening)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            state = None
            for images, _ in self.images(seed):
                clear(optimizer, self)
                with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                    losses, state = self._looked(model, state, *self._scenes(images))
                self._back(*losses)
                nn.utils.clip_grad_norm_(learnt, self.clip)
                optimizer.step()

    def _scenes(self, images):
        """Templates, frames, and where the digits are in them: their corners, and their boxes."""
        count = len(images)
        places = torch.randint(1, 12, (count, 1, 2))
        ways = torch.randint(-2, 3, (count, 1, 2))
        places = (places + ways * torch.arange(_FRAMES)[:, None]).clamp(1, 11)
        still = torch.randint(1, 12, (count, 2))
        if self.turned:
            places, still = places.flip(0), still.flip(0)
        frames = torch.full((count, _FRAMES, 1, _SIZE, _SIZE), -1.0, dtype=images.dtype)
        for at, image in enumerate(images):
            row, column = still[at].tolist()
            frames[at, :, :, row : row + 8, column : column + 8] = image.flip(1)
            for frame, (row, column) in zip(frames[at], places[at].tolist(), strict=True):
                frame[:, row : row + 8, column : column + 8] = image
        inked = images > -1
        ends = [_ends(inked.any(axis)) for axis in (1, 2)]  # along columns, along rows
        low, high = (torch.stack(one, 1)[:, None] for one in zip(*ends, strict=True))
        corners = places.flip(2)
        boxes = torch.cat((corners + low, corners + high), 2).to(images.dtype)
        return functional.pad(images[:, None], (1, 1, 1, 1), value=-1.0), frames, places, boxes

    def _looked(self, model, last, templates, frames, places, boxes):
        """The losses of the names and of the boxes in all frames, and the last state."""
        form = {"memory_format": self.layout}
        template, state = model.begun(templates.contiguous(**form))
        state = state if self.clears or last is None else last
        named, around = [], []
        for at in range(_FRAMES):
            frame = frames[:, at].contiguous(**form)
            logits, sides, state = model(frame, template, state)
            logits, sides = (one.to(frames.dtype) for one in (logits, sides))
            with torch.autocast("cpu", enabled=False):
                name, box = self._losses(logits, sides, boxes[:, at])
            named.append(name)
            around.append(box)
            if at + 1 < _FRAMES:
                state = state if self.flows else state.detach()
                crops = [
                    frame[image, :, row - 1 : row + 9, column - 1 : column + 9]
                    for image, (row, column) in enumerate(places[:, at].tolist())
                ]
                template = model.renewed(template, torch.stack(crops).contiguous(**form))
        losses = tuple(sum(one) / _FRAMES for one in (named, around))
        return losses, state.detach()

    def _losses(self, logits, sides, boxes):
        """The focal loss of cells, and the box loss of those with a digit."""
        where = torch.arange(CELLS, dtype=logits.dtype) * STRIDE + self.centre
        y, x = (one.flatten() for one in torch.meshgrid(where, where, indexing="ij"))
        cells = torch.stack((x, y), 1)
        wanted = torch.cat((cells - boxes[:, None, :2], boxes[:, None, 2:] - cells), 2)
        far = (cells - (boxes[:, None, :2] + boxes[:, None, 2:]) / 2).abs().amax(2)
        positive = (far < self.radius) & (wanted > 0.5).all(2)
        told = 4 * sides.exp()
        told = told[..., [1, 0, 3, 2]] if self.sides == "top" else told
        cost = self._focal(logits, positive.to(logits.dtype))
        count = positive.sum()
        names = cost.sum() / (count if self.over == "positives" else positive.numel())
        if self.surrounds == "all":
            return names, self._missed(told, wanted.clamp(min=0.5)).mean()
        return names, self._missed(told[positive], wanted[positive]).sum() / count

    def _focal(self, logits, target):
        if self.focal == "logsigmoid":
            rightly = (2 * target - 1) * logits
            alpha = 1 - self.alpha + (2 * self.alpha - 1) * target
            missed = torch.sigmoid(-rightly).pow(self.gamma)
            return -alpha * missed * functional.logsigmoid(rightly)
        missed = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
        chance = logits.sigmoid()
        wrong = chance * (1 - target) + (1 - chance) * target
        alpha = self.alpha * target + (1 - self.alpha) * (1 - target)
        return alpha * wrong**self.gamma * missed

    def _missed(self, told, wanted):
        """Minus the logarithm of how much boxes around the same cell overlap."""
        if self.overlap == "corners":
            low, high = (torch.cat((-one[..., :2], one[..., 2:]), -1) for one in (told, wanted))
            inner = torch.minimum(low[..., 2:], high[..., 2:])
            inner = (inner - torch.maximum(low[..., :2], high[..., :2])).prod(-1)
            both = sum((one[..., 2:] - one[..., :2]).prod(-1) for one in (low, high))
            return -(inner / (both - inner)).log()
        least = torch.minimum(told, wanted)
        inner, one, other = (
            (box[..., 0] + box[..., 2]) * (box[..., 1] + box[..., 3])
            for box in (least, told, wanted)
        )
        both = one + other - inner
        return both.log() - inner.log() if self.overlap == "logarithms" else -(inner / both).log()

    def _back(self, named, around):
        """Both losses' gradients."""
        around = self.box_weight * around
        loss = named + around
        for one, name in ((named, "name_loss"), (around, "box_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            loss.backward()
        else:
            named.backward(retain_graph=True)
            around.backward()


def _ends(seen):
    """The first place that is seen in each row, and the one behind the last."""
    return seen.int().argmax(1), seen.shape[1] - seen.flip(1).int().argmax(1)


_FIT = ("correlation@value",)
_KEPT = ("memory@value", "state@value")
_LOSS = ("name_loss@*", "box_loss@*", "loss@*", "output@grad", "output:1@grad")
_NAMES = ("name_loss@*", "output@grad")
_BOXES = ("box_loss@*", "output:1@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "templates turned over",
        "bug",
        {"turns": True},
        _FIT,
        rf"\b[Ff]lip|{_ORDER}|[Cc]onv\w* .{{0,20}}weight|{_GIVEN}",
    ),
    Case(
        "channels of templates first",
        "bug",
        {"deals": "channels"},
        _FIT,
        rf"permute|[Tt]ranspose|{_ORDER}|\b[Vv]iew|reshape|{_GIVEN}",
    ),
    Case(
        "correlations not divided",
        "bug",
        {"divides": False},
        _FIT,
        rf"\bDiv|{_TIMES}",
    ),
    Case(
        "templates detached",
        "bug",
        {"templates": "detached"},
        ("backbone@grad", "backbone.norm@grad", "backbone.norm.*@*grad", "backbone.conv@grad"),
        rf"{_DETACHED}|[Cc]onv\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}[Cc]onv",
    ),
    Case(
        "state kept from batch to batch",
        "bug",
        {"clears": False},
        ("memory.gates@value", "memory.*input*@value", "input*@value", "memory@value"),
        rf"\bzeros?\b|carr(y|ied)|step before|{_GIVEN}|\b(inputs?|given)\b.{{0,40}}differ",
        step=1,
    ),
    Case(
        "state detached between frames",
        "bug",
        {"flows": False},
        ("state@grad", "memory@grad", "memory.new@grad", "output:2@grad"),
        rf"{_DETACHED}|(lacks|alone).{{0,60}}Backward|Backward.{{0,60}}(lacks|alone)",
    ),
    Case(
        "what is kept and what is new exchanged",
        "bug",
        {"gated": "exchanged"},
        _KEPT,
        rf"\bMul|\b[RS]?[Ss]ub(Backward|\b)|{_GIVEN}|{_ORDER}|computes it from",
    ),
    Case(
        "reset gate left out",
        "bug",
        {"resets": False},
        ("memory.new@value", "memory.new.input@value"),
        rf"\bMul|{_GIVEN}|computes it from|\bCat",
    ),
    Case(
        "template mostly renewed",
        "bug",
        {"stays": 0.2},
        ("template@value",),
        rf"\bMul|\b[Ll]erp|{_TIMES}|{_GIVEN}|\b0\.[28]\b",
    ),
    Case(
        "first convolution learns",
        "bug",
        {"learns": True},
        ("backbone.stem*@*",),
        r"requires_grad|frozen|freez|\bin B alone",
        reference={"clip": 100.0},
    ),
    Case(
        "norm of the first convolution awake",
        "bug",
        {"wakes": True},
        ("backbone.stem_norm@value", "backbone.stem_norm.running*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case(
        "prior left out",
        "data",
        {"prior": 0.0},
        ("name.bias@value", "name@value"),
    ),
    Case(
        "cells at corners",
        "bug",
        {"centre": 4.0},
        _LOSS,
        rf"\bIndex|indices|\bDiv|\bAdd(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "top for left",
        "bug",
        {"sides": "top"},
        _BOXES,
        rf"\bIndex|indices|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "alpha the other way",
        "bug",
        {"alpha": 0.75},
        _NAMES,
        rf"\| 0\.[27]5\b|alpha|\bMul|{_GIVEN}|{_TIMES}",
    ),
    Case("focal loss over all cells", "bug", {"over": "cells"}, _NAMES, rf"\bDiv|{_TIMES}"),
    Case(
        "boxes of all cells",
        "bug",
        {"surrounds": "all"},
        _BOXES,
        r"\bIndex|indices|\bmask|\bMean|\bDiv|clamp",
    ),
    Case("momentum dampened", "bug", {"dampening": 0.9}, UPDATES, r"dampening", step=1),
    Case("correlation of waves", "benign", {"correlating": "waves"}),
    Case("correlation of patches", "benign", {"correlating": "patches"}),
    Case("state by lerp", "benign", {"moving": "lerp"}),
    Case("focal loss by logsigmoid", "benign", {"focal": "logsigmoid"}),
    Case("overlaps as logarithms", "benign", {"overlap": "logarithms"}),
    Case("overlaps by corners", "benign", {"overlap": "corners"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("scenes turned", "benign", {"turned": True}),
    Case(
        "correlation of patches, low precision",
        "benign",
        {"correlating": "patches"},
        reference={"low": True},
    ),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("other order", "data", {"order": 1}, ("image@value", "input*@value")),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("correlation image by image", "equal", {"correlating": "each"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
