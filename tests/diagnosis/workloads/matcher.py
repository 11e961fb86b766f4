"""Sets of digits on canvases: queries tell classes and boxes, matched to the digits by cost."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear
from tests.diagnosis.workloads.queries import CLASSES, HIGH, QUERIES, WIDE, Net


@dataclass(frozen=True)
class Matcher(Workload):
    """Every scene shows two digits; each is told by the query that tells it at the least cost.

    memory: "attached" or "detached". normed: the layers whose state is normed before it is read,
        "all" or the "last". asks: whether "queries" or "nothing" is added to what asks the memory.
        placed: whether places are added to its "keys" or to "nothing". root: whether scores are
        divided by the root of the heads' size. bounded: boxes by "sigmoid", "tanh" or a "clamp".
    matches: queries and digits by least "cost", or in "order". costs: the factors of the class, the
        distance and the overlap in it. corners: whether the distance is one of corners.
    empty: the weight of no object. nothing: the class of no object. over_all: whether box losses
        are divided by all queries. by: the sizes that boxes are divided by, "both" rightly or the
        "other" ones. giou: whether the empty part of the hull counts in the loss. box_weights: of
        the box losses. auxiliary: whether earlier layers have losses.
    slow: the factor of the backbone's learning rate. clip: of gradients, 0: not at all.
    low: whether the net runs under autocast to bfloat16.
    attention, norming, grouping, convolution, stacks, solves, classes, hull, backward,
        scale: other ways to write the same mathematics.
    """

    steps: int = 4
    lr: float = 5e-3
    weight_decay: float = 1e-2
    memory: str = "attached"
    normed: str = "all"
    asks: str = "queries"
    placed: str = "keys"
    root: bool = True
    bounded: str = "sigmoid"
    matches: str = "cost"
    costs: tuple[float, float, float] = (1.0, 5.0, 2.0)
    corners: bool = False
    empty: float = 0.1
    nothing: int = CLASSES
    over_all: bool = False
    by: str = "both"
    giou: bool = True
    box_weights: tuple[float, float] = (5.0, 2.0)
    auxiliary: bool = True
    slow: float = 0.1
    clip: float = 0.5
    low: bool = False
    attention: str = "own"
    norming: str = "torch"
    grouping: str = "torch"
    convolution: str = "torch"
    stacks: str = "after"
    solves: str = "all"
    classes: str = "torch"
    hull: str = "edges"
    backward: str = "once"
    scale: float = 1.0

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            named = [(name.startswith("back"), one) for name, one in model.named_parameters()]
            optimizer = self.adam(
                [
                    {"params": [one for back, one in named if not back]},
                    {"params": [one for back, one in named if back], "lr": self.lr * self.slow},
                ]
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                scenes, boxes = self._scenes(images)
                clear(optimizer, self)
                with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                    told = model(scenes)
                logits, found = (part.to(scenes.dtype) for part in told)
                self._back(self._losses(logits, found, labels.view(-1, 2), boxes))
                self._bound(model)
                optimizer.step()

    def _scenes(self, images):
        """Canvases with two digits each, and their boxes: middles and sizes, from 0 to 1."""
        count = len(images) // 2
        rows, columns = torch.randint(0, 9, (count, 2)), torch.randint(0, 5, (count, 2))
        columns = columns + torch.tensor([0, 12])
        if self.turned:
            rows, columns = rows.flip(0, 1), columns.flip(0, 1)
        scenes = torch.full((count, 1, HIGH, WIDE), -1.0)
        digits = images.view(count, 2, 8, 8)
        for at in range(count):
            for digit, row, column in zip(digits[at], rows[at], columns[at], strict=True):
                scenes[at, 0, row : row + 8, column : column + 8] = digit
        (left, right), (top, bottom) = (_ends((digits > -1).any(axis)) for axis in (2, 3))
        middle = torch.stack((2 * columns + left + right, 2 * rows + top + bottom), -1) / 2
        size = torch.stack((right - left, bottom - top), -1)
        whole = (WIDE, HIGH, WIDE, HIGH) if self.by == "both" else (HIGH, WIDE, HIGH, WIDE)
        return scenes, torch.cat((middle, size), -1).to(scenes.dtype) / torch.tensor(whole)

    def _losses(self, logits, found, labels, boxes):
        """The losses of classes, of distances and of overlaps, over layers."""
        sums = [0.0, 0.0, 0.0]
        for layer, (told, told_boxes) in enumerate(zip(logits, found, strict=True)):
            if self.auxiliary or layer == len(logits) - 1:
                chosen = self._matched(told.detach(), told_boxes.detach(), labels, boxes)
                matched = told_boxes.gather(1, chosen[..., None].expand(-1, -1, 4))
                far, overlap = self._far(matched, boxes), self._overlap(matched, boxes, self.giou)
                count = labels.numel() * (QUERIES / 2 if self.over_all else 1)
                parts = (
                    self._named(told, chosen, labels),
                    far.sum() / count,
                    (1 - overlap).sum() / count,
                )
                sums = [one + part for one, part in zip(sums, parts, strict=True)]
        return sums

    @torch.no_grad()
    def _matched(self, told, found, labels, boxes):
        """Which query tells each digit (scene, digit)."""
        if self.matches == "order":
            return torch.arange(2).expand_as(labels)
        chance = told.softmax(-1)
        named = chance.gather(2, labels[:, None].expand(-1, QUERIES, -1))
        one, other = found[:, :, None], boxes[:, None]
        by_name, by_far, by_overlap = self.costs
        cost = by_far * (one - other).abs().sum(-1) - by_overlap * self._overlap(one, other)
        cost = cost - by_name * named
        if self.solves == "scipy":
            from scipy.optimize import linear_sum_assignment

            return torch.tensor([linear_sum_assignment(scene.T.numpy())[1] for scene in cost])
        ways = torch.tensor(list(permutations(range(QUERIES), 2)))
        each = cost[:, ways[:, 0], 0] + cost[:, ways[:, 1], 1]
        return ways[each.argmin(1)]

    def _named(self, told, chosen, labels):
        """The cross entropy of classes; that of no object weighs less."""
        target = torch.full(told.shape[:2], self.nothing).scatter(1, chosen, labels)
        weights = torch.ones(CLASSES + 1, dtype=told.dtype)
        weights[CLASSES] = self.empty
        if self.classes == "torch":
            return functional.cross_entropy(told.transpose(1, 2), target, weights)
        missed = told.logsumexp(-1) - told.gather(2, target[..., None])[..., 0]
        return (missed * weights[target]).sum() / weights[target].sum()

    def _far(self, one, other):
        """By how much the boxes' numbers differ."""
        other = _corners(other) if self.corners else other
        return functional.l1_loss(one, other, reduction="none")

    def _overlap(self, one, other, hulls=True):
        """The generalised overlap of boxes: what they share, less what their hull leaves empty."""
        one, other = _corners(one), _corners(other)
        inner = torch.minimum(one[..., 2:], other[..., 2:])
        inner = (inner - torch.maximum(one[..., :2], other[..., :2])).clamp(min=0).prod(-1)
        first, second = ((box[..., 2:] - box[..., :2]).prod(-1) for box in (one, other))
        hull = torch.maximum(one[..., 2:], other[..., 2:])
        hull = (hull - torch.minimum(one[..., :2], other[..., :2])).prod(-1)
        if self.hull == "ratios":
            both = first + (second - inner)
            return inner / both + both / hull - 1
        both = first + second - inner
        return inner / both - (hull - both) / hull if hulls else inner / both

    def _back(self, parts):
        """All losses' gradients."""
        factors = (1.0, *self.box_weights)
        parts = [factor * one for factor, one in zip(factors, parts, strict=True)]
        loss = sum(parts)
        names = ("class_loss", "l1_loss", "giou_loss", "loss")
        for one, name in zip((*parts, loss), names, strict=True):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            for one in parts:
                (one * self.scale).backward(retain_graph=True)

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        if self.scale != 1:
            for parameter in model.parameters():
                parameter.grad.div_(self.scale)
        if self.clip:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


def _ends(seen):
    """The first place that is seen in each row, and the one behind the last."""
    return seen.int().argmax(-1), seen.shape[-1] - seen.flip(-1).int().argmax(-1)


def _corners(boxes):
    """Boxes' first and last corners, of their middles and sizes."""
    middle, size = boxes.split(2, -1)
    return torch.cat((middle - size / 2, middle + size / 2), -1)


_LOSS = ("class_loss@*", "l1_loss@*", "giou_loss@*", "loss@*", "output@grad", "output:1@grad")
_NAMES = ("class_loss@*", "loss@*", "output@grad")
_BOXES = ("l1_loss@*", "giou_loss@*", "loss@*", "output:1@grad")
_CROSS = ("layers.0.cross*@value",)
_OWN = ("layers.0.own@value", "layers.0.own.out@value", "layers.0.own.out.input@value")
_MIXED = (*_OWN, *_CROSS)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "queries matched in order",
        "bug",
        {"matches": "order"},
        _LOSS,
        rf"\bGather|\bindex|indices|{_GIVEN}",
    ),
    Case(
        "overlap raises the cost",
        "bug",
        {"costs": (1.0, 5.0, -2.0)},
        _LOSS,
        rf"\bGather|\bindex|indices|{_GIVEN}",
    ),
    Case(
        "no object weighs as much",
        "bug",
        {"empty": 1.0},
        _NAMES,
        rf"nll\w* .{{0,40}}\bweight\b|cross_entropy.{{0,40}}\bweight\b|{_GIVEN}",
    ),
    Case(
        "no object is class 0",
        "bug",
        {"nothing": 0},
        _NAMES,
        _GIVEN,
    ),
    Case("box losses over all queries", "bug", {"over_all": True}, _BOXES, rf"\bDiv|{_TIMES}"),
    Case(
        "distance to corners",
        "bug",
        {"corners": True},
        ("l1_loss@*", "loss@*", "output:1@grad"),
        rf"{_GIVEN}|\bSub(Backward|\b)",
    ),
    Case(
        "sizes of canvases exchanged",
        "bug",
        {"by": "other"},
        _LOSS,
        rf"targets? differ|{_GIVEN}|\bGather|\bindices\b|\bMinimum|\bMaximum",
    ),
    Case(
        "hull left out",
        "bug",
        {"giou": False},
        ("giou_loss@*", "loss@*", "output:1@grad"),
        r"\bSub|\bDiv|\bProd|\bMaximum|\bMinimum",
    ),
    Case(
        "weights of box losses exchanged",
        "bug",
        {"box_weights": (2.0, 5.0)},
        _BOXES,
        rf"\bMul|{_TIMES}",
    ),
    Case(
        "last layer's loss alone",
        "bug",
        {"auxiliary": False},
        _LOSS,
        rf"\bAdd(Backward|\b)|\bselect|\bunbind|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "memory detached",
        "bug",
        {"memory": "detached"},
        ("backbone@*grad", "backbone.*@*grad"),
        rf"{_DETACHED}|no gradients?|lacks.{{0,40}}grad",
    ),
    Case(
        "last state alone normed",
        "bug",
        {"normed": "last"},
        ("norm@value", "heads@value", "heads.*@value", "output*@value"),
        r"layer_?norm|(fewer|more|missing) (calls|records)",
    ),
    Case(
        "queries not added",
        "bug",
        {"asks": "nothing"},
        _CROSS,
        rf"\bAdd(Backward|\b)|computes it from|{_GIVEN}",
    ),
    Case(
        "places not added",
        "bug",
        {"placed": "nothing"},
        _CROSS,
        rf"\bAdd(Backward|\b)|computes it from|{_GIVEN}",
    ),
    Case("scores not divided", "bug", {"root": False}, _MIXED, rf"\bDiv|{_TIMES}|{_GIVEN}"),
    Case(
        "clamp for sigmoid",
        "bug",
        {"bounded": "clamp"},
        ("heads:1@value", "output:1@value"),
        r"clamp|sigmoid",
    ),
    Case("backbone as fast as the rest", "bug", {"slow": 1.0}, UPDATES, r"\blr\b"),
    Case("gradients not clipped", "bug", {"clip": 0.0}, ("*@grad",), rf"\bclip|{_TIMES}"),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case("own group norm", "benign", {"grouping": "own"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("states stacked before heads", "benign", {"stacks": "before"}),
    Case("boxes by tanh", "benign", {"bounded": "tanh"}),
    Case("class weights by hand", "benign", {"classes": "own"}),
    Case("hull as a ratio", "benign", {"hull": "ratios"}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("scenes turned", "benign", {"turned": True}),
    Case(
        "states stacked before heads, low precision",
        "benign",
        {"stacks": "before"},
        reference={"low": True},
    ),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "places@value", "queries@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("matched by scipy", "equal", {"solves": "scipy"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
