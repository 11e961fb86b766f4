"""A PointNet that names clouds of a digit's bright pixels and draws them again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear
from tests.diagnosis.workloads.cloud import CLASSES, POINTS, PointNet


@dataclass(frozen=True)
class Points(Workload):
    """A cloud holds 24 pixels, jittered, as points of place and brightness; some may be too dim.

    centres: whether clouds are moved to their means. scales: what they are divided by, the
        "farthest" distance or the "mean". pools: whether dim points are kept out of the pools.
    identity: whether a turn begins at the identity. transposed: whether turns are.
    square: of the matrices that should be orthogonal, "transposed" or "plain". stiff: the weight of
        their loss.
    momentum: of running statistics in features. rests: whether batch norms are in eval mode.
    dropout: of the head. drops: whether it is in training mode.
    smoothing: of labels. twice: whether their loss is given chances.
    ways: of the distances of clouds, "both" or "one". roots: whether they are square roots.
    masked: whether dim points are kept out of them. far: their weight. lies: whether coordinates
        are the last axis of what is drawn.
    draws: whether the drawing's gradient reaches the features ("attached") or stops ("detached").
    slow: the factor of the turner's learning rate.
    falls: the factor of the learning rate every two steps.
    checkpointed: whether features are computed twice, with their batch norms.
    shuffled: whether the points of each cloud stand in the opposite order.
    low: whether the net runs under autocast to bfloat16.
    norming, shared, pool, distances, crossed, backward, scale: other ways to write the same
        mathematics; but norms of "clouds".
    """

    steps: int = 5
    lr: float = 5e-3
    weight_decay: float = 0.05
    centres: bool = True
    scales: str = "farthest"
    pools: bool = True
    identity: bool = True
    transposed: bool = False
    square: str = "transposed"
    stiff: float = 0.1
    momentum: float = 0.1
    rests: bool = False
    dropout: float = 0.3
    drops: bool = True
    smoothing: float = 0.1
    twice: bool = False
    ways: str = "both"
    roots: bool = False
    masked: bool = True
    far: float = 0.5
    lies: bool = True
    draws: str = "attached"
    slow: float = 0.2
    falls: float = 0.5
    checkpointed: bool = False
    shuffled: bool = False
    low: bool = False
    norming: str = "torch"
    shared: str = "torch"
    pool: str = "max"
    distances: str = "differences"
    crossed: str = "torch"
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
            model = PointNet(self)
            for module in model.modules():
                module.train(not (self.rests and isinstance(module, nn.BatchNorm1d)))
            model.drop.train(self.drops)
            optimizer = self._optimizer(model)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            moving = torch.Generator().manual_seed(19 + 1000 * seed)
            for images, labels in self.images(seed):
                points, real = self._clouds(images, moving)
                clear(optimizer, self)
                with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                    told = model(points, real)
                logits, drawn, *others = (one.to(points.dtype) for one in told)
                self._back(self._losses((logits, drawn, *others), real, labels))
                for parameter in model.parameters():
                    if self.scale != 1:
                        parameter.grad.div_(self.scale)
                optimizer.step()
                schedule.step()

    def _optimizer(self, model):
        """AdamW, by learning rate and decay: the turner's parameters, the others, what is flat."""
        named = [(name.startswith("turner"), one) for name, one in model.named_parameters()]
        rates = {True: self.lr * self.slow, False: self.lr}
        groups = [
            {
                "params": [one for of, one in named if of is turner and (one.ndim < 2) is small],
                "lr": rates[turner],
                "weight_decay": 0.0 if small else self.weight_decay,
            }
            for turner in (True, False)
            for small in (True, False)
        ]
        return torch.optim.AdamW(
            groups,
            betas=self.betas,
            eps=self.adam_eps,
            foreach=self.implementation == "foreach",
            fused=self.implementation == "fused",
        )

    def _clouds(self, images, moving):
        """Bright pixels as points, and which points are bright."""
        bright = images.flatten(1) > 0
        keys = torch.rand(len(images), 64, generator=moving)
        jitter = 0.1 * torch.randn(len(images), POINTS, 2, generator=moving)
        if self.turned:
            keys, jitter = keys.flip(0), jitter.flip(0)
        chosen = (keys + bright).topk(POINTS, 1).indices
        places = torch.stack((chosen % 8, chosen // 8), -1) / 3.5 - 1 + jitter
        points = torch.cat((places, images.flatten(1).gather(1, chosen)[..., None]), -1)
        real = bright.gather(1, chosen)
        return (points.flip(1), real.flip(1)) if self.shuffled else (points, real)

    def _losses(self, told, real, labels):
        """The losses of names, of what was drawn, and of the turns."""
        logits, drawn, turn, points = told
        return {
            "name_loss": self._named(logits, labels),
            "draw_loss": self.far * self._missed(drawn, points, real),
            "turn_loss": self.stiff * self._stiffness(turn),
        }

    def _named(self, logits, labels):
        logits = logits.softmax(1) if self.twice else logits
        if self.crossed == "torch":
            return functional.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        told = logits - logits.logsumexp(1, keepdim=True)
        right = told.gather(1, labels[:, None]).mean()
        return -(1 - self.smoothing) * right - self.smoothing / CLASSES * told.sum(1).mean()

    def _missed(self, drawn, points, real):
        """The mean distance of drawn points to the nearest real ones, and the other way."""
        square = self._squares(drawn, points)
        square = square.sqrt() if self.roots else square
        open_ = square.masked_fill(~real[:, None], torch.inf) if self.masked else square
        lost = open_.min(2).values.mean()
        if self.ways == "one":
            return lost
        back = square.min(1).values
        return lost + (back * real).sum() / real.sum() if self.masked else lost + back.mean()

    def _squares(self, drawn, points):
        """Squares of the distances (cloud, drawn, point)."""
        if self.distances == "differences":
            return (drawn[:, :, None] - points[:, None]).square().sum(-1)
        if self.distances == "cdist":
            return torch.cdist(drawn, points).square()
        lengths = drawn.square().sum(-1)[:, :, None] + points.square().sum(-1)[:, None]
        return lengths - 2 * drawn @ points.mT

    def _stiffness(self, turn):
        """How far matrices are from orthogonal ones."""
        product = turn @ (turn.mT if self.square == "transposed" else turn)
        return (product - torch.eye(3)).norm(dim=(1, 2)).mean()

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            for one in losses.values():
                (one * self.scale).backward(retain_graph=True)


_DRAW = ("draw_loss@*", "output:1@grad")
_TURN = ("turn_loss@*", "output:2@grad")
_CENTRE = ("centre@value",)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
_MASK = r"masked_?fill|\bmask|\b[Ww]here(Backward|\b)"
_EVAL = r"eval mode|train(ing)? mode|training (True|False)|\beval\b"
CASES = [
    Case("clouds not centred", "bug", {"centres": False}, _CENTRE, rf"\bSub(Backward|\b)|{_GIVEN}"),
    Case(
        "clouds by their mean distance",
        "bug",
        {"scales": "mean"},
        _CENTRE,
        rf"\bamax|\bSum(Backward|\b)|{_TIMES}|a factor of its own|{_GIVEN}",
    ),
    Case(
        "dim points pooled",
        "bug",
        {"pools": False},
        ("turner.features.pool@value", "turner.features@value"),
        _MASK,
    ),
    Case("dim points drawn", "bug", {"masked": False}, _DRAW, _MASK),
    Case(
        "turns without the identity",
        "bug",
        {"identity": False},
        ("turner@value", "output:2@value"),
        r"\bAdd(Backward|\b)|\beye\b",
    ),
    Case(
        "turns transposed",
        "bug",
        {"transposed": True},
        ("features.enter@value", "features.input@value", "features.enter.input@value"),
        rf"transpose|permute|\bmT\b|{_ORDER}",
    ),
    Case(
        "square of the turns",
        "bug",
        {"square": "plain"},
        _TURN,
        rf"transpose|permute|\bmT\b|{_ORDER}|{_GIVEN}",
    ),
    Case("turns not stiff", "bug", {"stiff": 0.001}, ("turn_loss@*",), rf"\bMul|{_TIMES}"),
    Case(
        "each cloud normed",
        "bug",
        {"norming": "clouds"},
        ("turner.features.norm1@*", "turner.features.norm1.running*@value"),
        r"instance_norm|batch_norm|BatchNorm|running_(mean|var)|use_input_stats",
    ),
    Case(
        "norms at rest",
        "bug",
        {"rests": True},
        ("turner.features.norm1@value", "turner.features.norm1.running*@value"),
        _EVAL,
    ),
    Case(
        "momentum the other way",
        "bug",
        {"momentum": 0.9},
        ("*running*@value",),
        rf"\bmomentum\b|{_TIMES}",
    ),
    Case("dropout the other way", "bug", {"dropout": 0.7}, ("drop@value",), r"\bp\b.{0,20}0\.7"),
    Case(
        "nothing dropped",
        "bug",
        {"drops": False},
        ("drop@value",),
        rf"{_EVAL}|native_?dropout|bernoulli|\bMul(Backward|\b)",
    ),
    Case(
        "softmax twice",
        "bug",
        {"twice": True},
        ("name_loss@*", "output@grad"),
        rf"\b_?[Ss]oftmax(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "distances one way",
        "bug",
        {"ways": "one"},
        _DRAW,
        r"\bAdd(Backward|\b)|\bMin(Backward|\b)|\bamin",
    ),
    Case(
        "features computed twice",
        "bug",
        {"checkpointed": True},
        ("features.norm*.running*@value", "features.norm*.num_batches_tracked@value"),
        r"\btwice\b|\b2(\.0)? times A|momentum|recomput|checkpoint|num_batches_tracked \d",
    ),
    Case("roots of distances", "bug", {"roots": True}, _DRAW, r"\b[Ss]qrt(Backward|\b)|\bPow"),
    Case(
        "coordinates before points",
        "bug",
        {"lies": False},
        ("output:1@value",),
        rf"transpose|permute|\bmT\b|{_ORDER}|\bView|reshape",
    ),
    Case(
        "drawing detached",
        "bug",
        {"draws": "detached"},
        ("features@grad", "features.pool@grad", "features.norm2*@*grad"),
        rf"{_DETACHED}|\b(Add)?mm\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}mm",
    ),
    Case("turner as fast as the rest", "bug", {"slow": 1.0}, UPDATES, r"\blr\b"),
    Case("own batch norms", "benign", {"norming": "own"}),
    Case("shared layers by products", "benign", {"shared": "product"}),
    Case("distances by products", "benign", {"distances": "products"}),
    Case("distances by cdist", "benign", {"distances": "cdist"}),
    Case("cross entropy written out", "benign", {"crossed": "own"}),
    Case("amax for max", "benign", {"pool": "amax"}),
    Case("points in the opposite order", "benign", {"shuffled": True}),
    Case("clouds turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("gradients unscaled", "benign", {"scale": 1024.0}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("fused AdamW", "benign", {"implementation": "fused"}),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case(
        "shared by products, low precision",
        "benign",
        {"shared": "product"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case(
        "other order",
        "data",
        {"order": 1},
        ("input*@value", "centre@value"),
    ),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("pooled by a layer", "equal", {"pool": "layer"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
