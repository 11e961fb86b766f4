"""A detector of two digits on a canvas: two levels, anchor boxes, a focal loss and a box loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, warmed
from tests.diagnosis.workloads.pyramid import CLASSES, Net

_HIGH, _WIDE = 16, 24
_SHAPES = {4: ((5.0, 8.0), (7.0, 8.0)), 8: ((6.0, 9.0), (10.0, 12.0))}
"""Widths and heights of the anchor boxes in each cell, by the stride of their level."""


@dataclass(frozen=True)
class Detector(Workload):
    """Every scene shows two digits; the net names and surrounds them from fixed anchor boxes.

    plus_one: whether widths count both edge pixels when anchors are matched. ignores: whether
        anchors that overlap a digit by 0.3 to 0.4 are left out. forces: whether each digit has at
        least its best anchor. centre: where in its cell an anchor stands.
    alpha, gamma: of the focal loss. named: what is added to a digit's class.
    over: what losses are divided by, the "positives" or the "scenes".
    sizes: how widths are decoded, "exp" or "linear". spread: the factors of offsets and of sizes.
    corner: whether a decoded centre is taken for a corner. giou: whether the empty part of the hull
        counts. surrounds: the anchors that have a box loss, "positives" or "all".
    flips: what is mirrored, "both" image and boxes or the "image" alone.
    adds: whether the upper level is added to the lower one, and "detached" or not. upsample: how it
        is enlarged. lies: whether channels are moved to the end before levels are flattened.
    scaled: the levels whose boxes are scaled by a learnt number. groups: of the heads' norm.
    rests: whether batch norms use running statistics. bn_eps: their epsilon.
    slow: the factor of the backbone's learning rate. warmup: steps of rising rate.
    box_weight: of the box loss. clip, clips: of gradients, by their "torch" norm, their "own" norm
        or each "value". all_decay: whether biases and norms decay too.
    low: whether the net runs under autocast to bfloat16.
    hull, focal, chosen, sums, grouping, norming, lateral, convolution, layout, backward, scale,
        decode: other ways to write the same mathematics.
    """

    steps: int = 4
    lr: float = 3e-2
    weight_decay: float = 1e-2
    plus_one: bool = False
    ignores: bool = True
    forces: bool = True
    centre: float = 0.5
    alpha: float = 0.25
    gamma: float = 2.0
    named: int = 0
    over: str = "positives"
    sizes: str = "exp"
    spread: tuple[float, float] = (0.1, 0.2)
    corner: bool = False
    giou: bool = True
    surrounds: str = "positives"
    flips: str = "both"
    adds: str = "attached"
    upsample: str = "nearest"
    lies: bool = True
    scaled: int = 2
    groups: int = 4
    rests: bool = False
    bn_eps: float = 1e-5
    slow: float = 0.1
    warmup: int = 2
    box_weight: float = 1.0
    clip: float = 1.0
    clips: str = "torch"
    all_decay: bool = False
    low: bool = False
    hull: str = "edges"
    focal: str = "own"
    chosen: str = "index"
    sums: str = "at once"
    grouping: str = "torch"
    norming: str = "torch"
    lateral: str = "torch"
    convolution: str = "torch"
    layout: torch.memory_format = torch.contiguous_format
    backward: str = "once"
    scale: float = 1.0
    decode: str = "centre"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self).to(memory_format=self.layout)
            for module in model.modules():
                module.train(not (self.rests and isinstance(module, nn.BatchNorm2d)))
            optimizer = self.sgd(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                scenes, boxes = self._scenes(images)
                clear(optimizer, self)
                with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                    told = model(scenes.contiguous(memory_format=self.layout))
                classes, deltas = (part.to(model.heads.name.weight.dtype) for part in told)
                self._back(*self._losses(classes, deltas, boxes, labels.view(-1, 2)))
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """Parameters by learning rate and decay: the backbone's, the rest's, and what is flat."""
        named = [(name.startswith("back"), one) for name, one in model.named_parameters()]
        rates = {True: self.lr * self.slow, False: self.lr}
        flat = self.weight_decay if self.all_decay else 0.0
        return [
            {
                "params": [one for of, one in named if of is back and (one.ndim < 2) is small],
                "lr": rates[back],
                "weight_decay": flat if small else self.weight_decay,
            }
            for back in (True, False)
            for small in (True, False)
        ]

    def _scenes(self, images):
        """Canvases with two digits each, half of them mirrored, and the boxes around the digits."""
        count = len(images) // 2
        rows, columns = torch.randint(0, 9, (count, 2)), torch.randint(0, 5, (count, 2))
        columns, mirrored = columns + torch.tensor([0, 12]), torch.rand(count) < 0.5
        if self.turned:
            rows, columns, mirrored = rows.flip(0, 1), columns.flip(0, 1), mirrored.flip(0)
        scenes = torch.full((count, 1, _HIGH, _WIDE), -1.0)
        digits = images.view(count, 2, 8, 8)
        for at in range(count):
            for digit, row, column in zip(digits[at], rows[at], columns[at], strict=True):
                scenes[at, 0, row : row + 8, column : column + 8] = digit
        (left, right), (top, bottom) = (_ends((digits > -1).any(axis)) for axis in (2, 3))
        boxes = torch.stack((columns + left, rows + top, columns + right, rows + bottom), -1)
        boxes = boxes.to(scenes.dtype)
        other = boxes * torch.tensor([-1, 1, -1, 1]) + torch.tensor([_WIDE, 0, _WIDE, 0])
        flipped = other[..., [2, 1, 0, 3]] if self.flips == "both" else boxes
        scenes = torch.where(mirrored[:, None, None, None], scenes.flip(3), scenes)
        return scenes, torch.where(mirrored[:, None, None], flipped, boxes)

    def _anchors(self):
        """Centres, widths and heights of all anchor boxes, level by level."""
        found = []
        for stride, shapes in _SHAPES.items():
            y, x = torch.meshgrid(
                torch.arange(_HIGH // stride), torch.arange(_WIDE // stride), indexing="ij"
            )
            middle = (torch.stack((x, y), -1) + self.centre) * stride
            shape = torch.tensor(shapes)
            cells = middle[:, :, None].expand(-1, -1, len(shapes), -1)
            found.append(torch.cat((cells, shape.expand_as(cells)), -1).view(-1, 4))
        return torch.cat(found)

    def _matched(self, anchors, boxes):
        """Which digit each anchor is for, whether it is for one, and whether it counts at all."""
        low, high = anchors[:, :2] - anchors[:, 2:] / 2, anchors[:, :2] + anchors[:, 2:] / 2
        edge = 1.0 if self.plus_one else 0.0
        lowest = torch.maximum(low[None, :, None], boxes[:, None, :, :2])
        highest = torch.minimum(high[None, :, None], boxes[:, None, :, 2:])
        inner = (highest - lowest + edge).clamp(min=0).prod(-1)
        areas = (boxes[..., 2:] - boxes[..., :2] + edge).prod(-1)[:, None]
        overlap = inner / ((anchors[:, 2:] + edge).prod(-1)[:, None] + areas - inner)
        most, which = overlap.max(2)
        positive = most >= 0.4
        if self.forces:
            forced = functional.one_hot(overlap.argmax(1), len(anchors)).to(torch.bool)
            which = torch.where(forced.any(1), forced[:, 1].long(), which)
            positive = positive | forced.any(1)
        return which, positive, positive | (most < 0.3) if self.ignores else positive | True

    def _losses(self, classes, deltas, boxes, labels):
        """The loss of the names and the loss of the boxes."""
        anchors = self._anchors()
        which, positive, counts = self._matched(anchors, boxes)
        count = positive.sum() if self.over == "positives" else len(boxes)
        names = (labels + self.named).remainder(CLASSES).gather(1, which)
        target = functional.one_hot(names, CLASSES) * positive[..., None]
        told = self._focal(classes, target.to(classes.dtype))
        wanted = boxes.gather(1, which[..., None].expand(-1, -1, 4))
        missed = 1 - self._overlap(self._decoded(deltas, anchors), wanted)
        around = positive if self.surrounds == "positives" else positive | True
        if self.chosen == "index":
            return told[counts].sum() / count, missed[around].sum() / count
        told, missed = (told * counts[..., None]).sum((1, 2)), (missed * around).sum(1)
        if self.sums == "scenes":
            return sum(one / count for one in told), sum(one / count for one in missed)
        return told.sum() / count, missed.sum() / count

    def _focal(self, logits, target):
        chance = logits.sigmoid()
        alpha = self.alpha * target + (1 - self.alpha) * (1 - target)
        if self.focal == "own":
            missed = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
            right = chance * target + (1 - chance) * (1 - target)
            return alpha * missed * (1 - right) ** self.gamma
        rightly = (2 * target - 1) * logits
        return -alpha * torch.sigmoid(-rightly).pow(self.gamma) * functional.logsigmoid(rightly)

    def _decoded(self, deltas, anchors):
        """Corners of the boxes that are told, of offsets from anchors."""
        moved, size = deltas[..., :2] * self.spread[0], deltas[..., 2:] * self.spread[1]
        size = anchors[:, 2:] * (size.exp() if self.sizes == "exp" else 1 + size)
        if self.decode == "centre":
            middle = anchors[:, :2] + moved * anchors[:, 2:]
        else:
            middle = torch.addcmul(anchors[:, :2], moved, anchors[:, 2:])
        if self.corner:
            return torch.cat((middle, middle + size), -1)
        return torch.cat((middle - size / 2, middle + size / 2), -1)

    def _overlap(self, one, other):
        """The generalised overlap of boxes: what they share, less what their hull leaves empty."""
        inner = torch.minimum(one[..., 2:], other[..., 2:])
        inner = (inner - torch.maximum(one[..., :2], other[..., :2])).clamp(min=0).prod(-1)
        first, second = ((box[..., 2:] - box[..., :2]).prod(-1) for box in (one, other))
        hull = torch.maximum(one[..., 2:], other[..., 2:])
        hull = (hull - torch.minimum(one[..., :2], other[..., :2])).prod(-1)
        if self.hull == "ratios":
            both = first + (second - inner)
            return inner / both + both / hull - 1
        both = first + second - inner
        return inner / both - (hull - both) / hull if self.giou else inner / both

    def _back(self, named, around):
        """Both losses' gradients."""
        around = self.box_weight * around
        loss = named + around
        for one, name in ((named, "class_loss"), (around, "box_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            (named * self.scale).backward(retain_graph=True)
            (around * self.scale).backward()

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters()]
        if self.scale != 1:
            for grad in grads:
                grad.div_(self.scale)
        if self.clips == "value":
            nn.utils.clip_grad_value_(model.parameters(), self.clip / 20)
        elif self.clips == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        else:
            length = torch.cat([grad.flatten() for grad in grads]).square().sum().sqrt()
            for grad in grads:
                grad.div_(((length + 1e-6) / self.clip).clamp(min=1))


def _ends(seen):
    """The first place that is seen in each row, and the one behind the last."""
    return seen.int().argmax(-1), seen.shape[-1] - seen.flip(-1).int().argmax(-1)


_LOSS = ("class_loss@*", "box_loss@*", "loss@*", "output@grad", "output:1@grad")
_NAMES = ("class_loss@*", "output@grad")
_BOXES = ("box_loss@*", "output:1@grad")
_SUM = ("smooth@value", "lateral1@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "widths of matching plus one",
        "bug",
        {"plus_one": True},
        _LOSS,
        rf"\bIndex|indices|\bDiv|{_GIVEN}",
    ),
    Case(
        "near misses count as background",
        "bug",
        {"ignores": False},
        _NAMES,
        r"\bIndex|indices|\bmask",
    ),
    Case(
        "digits without an anchor",
        "bug",
        {"forces": False},
        _LOSS,
        rf"\bIndex|indices|\bmask|\bDiv|{_GIVEN}",
    ),
    Case(
        "anchors at the cells' corners",
        "bug",
        {"centre": 0.0},
        _LOSS,
        rf"\bIndex|indices|\bDiv|\bAdd(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "alpha the other way",
        "bug",
        {"alpha": 0.75},
        _NAMES,
        rf"\| 0\.[27]5\b|alpha|\bMul|{_GIVEN}|{_TIMES}",
    ),
    Case("gamma of one", "bug", {"gamma": 1.0}, _NAMES, r"\bPow|exponent|gamma"),
    Case(
        "classes one further",
        "bug",
        {"named": 1},
        _NAMES,
        rf"{_GIVEN}|{_ORDER}",
    ),
    Case("loss over scenes", "bug", {"over": "scenes"}, _LOSS, rf"\bDiv|{_TIMES}"),
    Case("sizes without exp", "bug", {"sizes": "linear"}, _BOXES, r"\b[Ee]xp(Backward|\b)"),
    Case(
        "offsets not made smaller",
        "bug",
        {"spread": (1.0, 1.0)},
        _BOXES,
        rf"\bMul|{_TIMES}",
    ),
    Case(
        "centre taken for a corner",
        "bug",
        {"corner": True},
        _BOXES,
        r"\bSub|\bDiv|\bAdd(Backward|\b)",
    ),
    Case(
        "hull left out",
        "bug",
        {"giou": False},
        _BOXES,
        r"\bSub|\bDiv|\bProd|\bMaximum|\bMinimum",
    ),
    Case(
        "boxes of all anchors",
        "bug",
        {"surrounds": "all"},
        _BOXES,
        r"\bIndex|indices|\bmask",
    ),
    Case(
        "boxes not mirrored",
        "bug",
        {"flips": "image"},
        _LOSS,
        rf"{_GIVEN}|\bMinimum|\bMaximum|\bIndex|indices",
    ),
    Case(
        "levels not added",
        "bug",
        {"adds": "nothing"},
        _SUM,
        r"\bAdd(Backward|\b)|upsample|interpolate",
    ),
    Case(
        "upper level detached",
        "bug",
        {"adds": "detached"},
        ("lateral2@grad", "lateral2.*@*grad", "backbone:1@grad", "backbone.acts.2@grad"),
        rf"{_DETACHED}|upsample\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}upsample",
    ),
    Case(
        "bilinear for nearest",
        "bug",
        {"upsample": "bilinear"},
        _SUM,
        r"bilinear|nearest",
    ),
    Case(
        "channels not moved to the end",
        "bug",
        {"lies": False},
        ("output@value", "output:1@value"),
        rf"permute|transpose|{_ORDER}|\bView|reshape",
    ),
    Case(
        "scale of one level alone",
        "bug",
        {"scaled": 1},
        ("output:1@value",),
        rf"\bMul|\bselect|{_TIMES}",
    ),
    Case(
        "groups of the norm",
        "bug",
        {"groups": 8},
        ("heads.norm@value",),
        r"num_groups|\bgroups?\b.{0,20}\b8\b",
    ),
    Case(
        "batch norms at rest",
        "bug",
        {"rests": True},
        ("backbone.norms.0@value", "backbone.norms.0.running*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("eps of batch norms", "bug", {"bn_eps": 1e-3}, ("backbone.norms.0@value",), r"\beps\b"),
    Case("backbone as fast as the rest", "bug", {"slow": 1.0}, UPDATES, r"\blr\b"),
    Case("no warm-up", "bug", {"warmup": 0}, UPDATES, r"\blr\b"),
    Case(
        "each value clipped",
        "bug",
        {"clips": "value"},
        ("*@grad",),
        r"\bclips?\b|clamp",
    ),
    Case("norms and biases decay", "bug", {"all_decay": True}, UPDATES, r"weight_decay"),
    Case("hull as a ratio", "benign", {"hull": "ratios"}),
    Case("focal loss by logsigmoid", "benign", {"focal": "logsigmoid"}),
    Case("masks for indices", "benign", {"chosen": "mask"}),
    Case("loss scene by scene", "benign", {"chosen": "mask", "sums": "scenes"}),
    Case("own group norm", "benign", {"grouping": "own"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("laterals by einsum", "benign", {"lateral": "einsum"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("norm of gradients at once", "benign", {"clips": "own"}),
    Case("scenes turned", "benign", {"turned": True}),
    Case("centres at once", "benign", {"decode": "at once"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case(
        "own norms, low precision",
        "benign",
        {"grouping": "own", "norming": "own"},
        reference={"low": True},
    ),
    Case(
        "laterals by einsum, low precision",
        "benign",
        {"lateral": "einsum"},
        reference={"low": True},
    ),
    Case(
        "a backward for each loss, low precision",
        "benign",
        {"backward": "each"},
        reference={"low": True},
    ),
    Case("scenes turned, low precision", "benign", {"turned": True}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("again, low precision", "equal", reference={"low": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
