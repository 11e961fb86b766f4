"""A net that tells keypoints of digits: heatmaps, their soft-argmax, and a teacher by averages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.optim import lr_scheduler

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits
from tests.diagnosis.workloads.poser_net import Adam, Averages, Net, Teacher

_SIZE, _STRIDE = 24, 2
"""Pixels of a canvas along an edge, and how many of them one pixel of a heatmap is."""
_WIDE = _SIZE // _STRIDE
_PARTS = ((0, 3, 0, 8), (5, 8, 0, 8), (0, 4, 0, 4), (0, 4, 4, 8), (4, 8, 0, 4), (4, 8, 4, 8))
"""Rows and columns of a digit whose ink has a keypoint in its middle: head, hip, arms, legs."""
_SWAP = [0, 1, 3, 2, 5, 4]
"""Which keypoint each one is in a mirror."""
_SHARES = (1.0, 1.0, 1.2, 1.2, 1.5, 1.5)
"""The weight of each keypoint."""
_SHOWN = 12
"""Digits that the evaluation sees."""


@dataclass(frozen=True)
class Poser(Workload):
    """A digit lies somewhere on a canvas; its keypoints are the middles of its parts' ink.

    normed: whether images are moved and scaled to about mean 0 and spread 1.
    swaps: what changes sides in a mirror, "both" keypoints and their visibility or "keypoints"
        alone. edge: the sum of a column and its mirrored one.
    half: how far inside the image the first pixel's centre lies. sigma: of the Gaussians of
        targets, in pixels of heatmaps.
    over: what the softmax of heatmaps is over, "pixels" or "keypoints". axes: how coordinates are
        stacked. flows: whether the loss of coordinates reaches the heatmaps. sharp: the factor of
        heatmaps in their softmax.
    mean: the loss of coordinates is divided by the weights of "visible" keypoints or by "all".
    unswaps: whether the teacher's keypoints, told of a mirrored image, change sides again.
    averages: the teacher has averages of "all" state, or of the "parameters" alone. moves: the
        share of the student that the teacher takes at each step.
    heads: the modules that learn at the full rate. slow: the factor of the backbone's.
    warmup: steps of rising rate. milestone: steps after these, when the rate falls.
    logs: whether it is noted how many keypoints the student finds.
    low: whether the nets run under autocast to bfloat16.
    gaussian, deconvolution, argmax, stepping, losses, teacher, stem, product, mirror: other
        ways to write the same mathematics.
    """

    batch: int = 12
    lr: float = 5e-3
    weight_decay: float = 0.05
    normed: bool = True
    swaps: str = "both"
    edge: int = _SIZE - 1
    half: float = 0.5
    sigma: float = 1.0
    over: str = "pixels"
    axes: str = "xy"
    flows: bool = True
    sharp: float = 10.0
    mean: str = "visible"
    unswaps: bool = True
    averages: str = "all"
    moves: float = 0.5
    heads: tuple[str, ...] = ("deconvs", "final")
    slow: float = 0.2
    warmup: int = 2
    milestone: int = 2
    logs: bool = False
    low: bool = False
    gaussian: str = "plane"
    deconvolution: str = "torch"
    argmax: str = "grid"
    stepping: str = "torch"
    losses: str = "at once"
    teacher: str = "module"
    stem: str = "strided"
    product: bool = False
    mirror: str = "flip"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self, len(_PARTS))
            teacher = (Teacher if self.teacher == "module" else Averages)(self, model)
            optimizer = self._optimizer(model)
            schedule = self._schedule(optimizer)
            session.watch(model, tensors="*", optimizer=optimizer)
            if self.teacher == "module":
                session.watch(teacher.model, tensors="*", prefix="teacher")
            torch.manual_seed(seed)
            found = []
            for step, (images, _) in enumerate(self.images(seed)):
                if self.evaluates and step % 2 == 0:
                    found.append(self._evaluated(model))
                canvases, places, weights = self._mirrored(*_canvases(images, self))
                clear(optimizer, self)
                told = self._told(model, canvases)
                if self.logs:
                    found.append(self._right(told.detach(), places, weights))
                self._back(told, places, weights, self._told(teacher, canvases.flip(3)))
                optimizer.step()
                schedule.step()
                teacher.follow(model)

    def _optimizer(self, model):
        """AdamW: the backbone's rate is lower, and what is flat does not decay."""
        groups = [
            {
                "params": [
                    one
                    for name, one in model.named_parameters()
                    if name.startswith(modules) and (one.ndim > 1) is decays
                ],
                "lr": self.lr * rate,
                "weight_decay": self.weight_decay if decays else 0.0,
            }
            for modules, rate in ((("stem", "blocks"), self.slow), (self.heads, 1.0))
            for decays in (True, False)
        ]
        if self.stepping == "torch":
            return self.adam(groups)
        options = {"lr": self.lr, "betas": self.betas, "eps": self.adam_eps}
        return Adam(groups, options | {"weight_decay": self.weight_decay})

    def _schedule(self, optimizer):
        """Rates rise, and fall to a tenth some steps after they rose."""
        rises = lr_scheduler.LinearLR(optimizer, 0.3, total_iters=self.warmup)
        falls = lr_scheduler.MultiStepLR(optimizer, [self.milestone])
        return lr_scheduler.SequentialLR(optimizer, [rises, falls], [self.warmup])

    def _told(self, model, canvases):
        """Heatmaps, in the type of the parameters."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(canvases)
        return told.to(canvases.dtype)

    def _mirrored(self, canvases, places, weights):
        """The same, half of them mirrored."""
        turned = torch.rand(len(canvases)) < 0.5
        other = places[:, _SWAP] * torch.tensor([-1, 1]) + torch.tensor([self.edge, 0])
        sides = weights[:, _SWAP] if self.swaps == "both" else weights
        if self.mirror == "flip":
            canvases = torch.where(turned[:, None, None, None], canvases.flip(3), canvases)
        else:
            for at in turned.nonzero()[:, 0].tolist():
                canvases[at] = canvases[at, :, :, torch.arange(_SIZE - 1, -1, -1)]
        places = torch.where(turned[:, None, None], other, places)
        return canvases, places, torch.where(turned[:, None], sides, weights)

    def _targets(self, places):
        """A Gaussian around each keypoint, whose highest value would be 1."""
        pixels = torch.arange(_WIDE, dtype=places.dtype)
        far = (pixels - places[..., None]).square() / (2 * self.sigma**2)
        if self.gaussian == "plane":
            return torch.exp(-(far[:, :, 0, None, :] + far[:, :, 1, :, None]))
        x, y = torch.exp(-far).unbind(2)
        return torch.einsum("nky,nkx->nkyx", y, x)

    def _coordinates(self, told):
        """Where heatmaps lie on average, as x and y in pixels of heatmaps."""
        told = self.sharp * (told if self.flows else told.detach())
        pixels = torch.arange(_WIDE, dtype=told.dtype)
        if self.argmax == "grid":
            if self.over == "pixels":
                chances = told.flatten(2).softmax(2).view_as(told)
            else:
                chances = told.softmax(1)
            y, x = torch.meshgrid(pixels, pixels, indexing="ij")
            x, y = (chances * x).sum((2, 3)), (chances * y).sum((2, 3))
        else:
            chances = (told - told.logsumexp((2, 3), keepdim=True)).exp()
            spots = torch.linspace(-1, 1, _WIDE, dtype=told.dtype)
            x, y = ((chances.sum(axis) @ spots + 1) * ((_WIDE - 1) / 2) for axis in (2, 3))
        found = torch.stack((x, y) if self.axes == "xy" else (y, x), -1)
        return anchorlib.anchor(found, "coordinates")

    def _back(self, told, places, weights, taught):
        """The gradients of the heatmaps' loss, the coordinates' and the teacher's."""
        places = (places + self.half) / _STRIDE - self.half
        targets, coordinates = self._targets(places), self._coordinates(told)
        if self.losses == "at once":
            missed = 0.5 * (told - targets).square().mean((2, 3))
            heat = (weights * missed).mean()
            missed = functional.smooth_l1_loss(coordinates, places, reduction="none").sum(2)
            coordinate = (weights * missed).sum()
        else:
            heat = coordinate = 0.0
            for at in range(len(_PARTS)):
                own = weights[:, at].sqrt()[:, None, None]
                heat = heat + 0.5 * functional.mse_loss(told[:, at] * own, targets[:, at] * own)
                missed = functional.smooth_l1_loss(
                    coordinates[:, at], places[:, at], reduction="none"
                )
                coordinate = coordinate + weights[:, at] @ missed.sum(1)
            heat = heat / len(_PARTS)
        coordinate = coordinate / (weights.sum() if self.mean == "visible" else weights.numel())
        taught = taught.flip(3)
        alike = functional.mse_loss(told, taught[:, _SWAP] if self.unswaps else taught)
        parts = {
            "heatmap_loss": 20 * heat,
            "coordinate_loss": 0.2 * coordinate,
            "consistency_loss": 40 * alike,
        }
        for name, part in parts.items():
            anchorlib.anchor(part, name)
        anchorlib.anchor(sum(parts.values()), "loss").backward()

    @torch.no_grad()
    def _evaluated(self, model):
        """The share of keypoints that the student finds, with its running statistics."""
        canvases = torch.full((_SHOWN, 1, _SIZE, _SIZE), -1.0)
        images = digits()[0][:_SHOWN].to(canvases.dtype)
        places, weights = _keypoints(images)
        canvases[:, 0, 4:20, 4:20] = _large(images)
        model.eval()
        told = self._told(model, _normed(canvases, self))
        model.train()
        return self._right(told, places + 4, weights)

    def _right(self, told, places, weights):
        """The share of visible keypoints whose heatmap is highest within 2 pixels of them."""
        best = told.flatten(2).argmax(2)
        best = torch.stack((best % _WIDE, best // _WIDE), -1)
        near = (best - ((places + 0.5) / _STRIDE - 0.5)).norm(dim=2) < 2
        return float(near[weights > 0].to(told.dtype).mean())


def _canvases(images, how):
    """Canvases with a digit each, its keypoints, and their weights."""
    canvases = torch.full((len(images), 1, _SIZE, _SIZE), -1.0)
    images = images.to(canvases.dtype)
    places, weights = _keypoints(images)
    corners = torch.randint(0, _SIZE - 15, (len(images), 2))
    for canvas, image, (column, row) in zip(canvases, _large(images), corners, strict=True):
        canvas[0, row : row + 16, column : column + 16] = image
    return _normed(canvases, how), places + corners[:, None], weights


def _normed(canvases, how):
    return (canvases + 0.6) / 0.7 if how.normed else canvases


def _large(images):
    """Images of twice the size."""
    return functional.interpolate(images[:, None], scale_factor=2, mode="bilinear")[:, 0]


def _keypoints(images):
    """Where keypoints lie in images of twice the size, as x and y, and their weights.

    A keypoint whose part has little ink is hidden: its weight is 0.
    """
    masks = torch.zeros(len(_PARTS), 8, 8, dtype=images.dtype)
    for mask, (top, bottom, left, right) in zip(masks, _PARTS, strict=True):
        mask[top:bottom, left:right] = 1
    ink = (images[:, None] + 1) * masks
    whole = ink.sum((2, 3))
    pixels = torch.arange(8, dtype=images.dtype)
    x, y = ((ink.sum(axis) * pixels).sum(2) / whole.clamp(min=1) for axis in (2, 3))
    seen = whole > 0.16 * ink[:, :2].sum((1, 2, 3))[:, None]
    return 2 * torch.stack((x, y), -1) + 0.5, seen * torch.tensor(_SHARES)


_LOSS = ("heatmap_loss@*", "coordinate_loss@*", "loss@*", "output@grad", "final@grad")
_COORDINATES = ("coordinates@*", "coordinate_loss@*", "output@grad", "final@grad")
_TAUGHT = ("consistency_loss@*", "loss@*", "output@grad", "final@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES: tuple[Case, ...] = (
    Case(
        "visibility does not change sides",
        "bug",
        {"swaps": "keypoints"},
        _LOSS,
        rf"{_GIVEN}|{_ORDER}|\bMul|\bDiv|\bIndex|indices|weights?\b",
    ),
    Case(
        "mirrored one pixel off",
        "bug",
        {"edge": _SIZE},
        _LOSS,
        rf"{_GIVEN}|\bSub(Backward|\b)|\bAdd(Backward|\b)|\bFlip",
    ),
    Case(
        "half a pixel forgotten",
        "bug",
        {"half": 0.0},
        _LOSS,
        rf"{_GIVEN}|\bSub(Backward|\b)|\bAdd(Backward|\b)|\bDiv",
    ),
    Case(
        "spread of targets in pixels of the image",
        "bug",
        {"sigma": 2.0},
        ("heatmap_loss@*", "loss@*", "output@grad", "final@grad"),
        rf"{_GIVEN}|\bExp|\bDiv|\bSub(Backward|\b)",
    ),
    Case(
        "softmax over keypoints",
        "bug",
        {"over": "keypoints"},
        _COORDINATES,
        r"\bdim\b|softmax|\bView|flatten|reshape",
    ),
    Case(
        "rows told for columns",
        "bug",
        {"axes": "yx"},
        _COORDINATES,
        rf"{_GIVEN}|{_ORDER}|\bStack|\bMul|\bSum",
    ),
    Case(
        "coordinates detached",
        "bug",
        {"flows": False},
        (*_COORDINATES, "deconvs*@*grad", "final.*@*grad"),
        rf"{_DETACHED}|(lacks|alone|without).{{0,60}}(softmax|mul|stack)"
        r"|(softmax|mul|stack)\w* .{0,60}(lacks|alone)",
    ),
    Case(
        "hidden keypoints in the mean",
        "bug",
        {"mean": "all"},
        (*_COORDINATES, "loss@*"),
        rf"\bDiv|{_TIMES}|{_GIVEN}|\bMean",
    ),
    Case(
        "teacher's keypoints do not change sides",
        "bug",
        {"unswaps": False},
        _TAUGHT,
        rf"{_GIVEN}|{_ORDER}|\bIndex|indices|mse",
    ),
    Case(
        "running statistics not averaged",
        "bug",
        {"averages": "parameters"},
        ("teacher.*running*@*", "teacher.*num_batches*@*", "teacher.stem*@value"),
        r"running|buffer|statistic|num_batches|batch_?norm",
        step=1,
    ),
    Case(
        "final layer in no group",
        "bug",
        {"heads": ("deconvs",)},
        ("final*@updated", "final*@delta", "final*@opt.*", "final*@value", "output@value"),
        r"optimizer|\bgroups?\b|\blr\b|only (in )?A|in A alone|lacks|final\.(weight|bias)",
    ),
    Case(
        "milestone counted from the first step",
        "bug",
        {"milestone": 4},
        UPDATES,
        r"\blr\b|schedul|learning rate|milestone",
        step=4,
    ),
    Case("Gaussians as outer products", "benign", {"gaussian": "rows and columns"}),
    Case("deconvolution as a convolution with gaps", "benign", {"deconvolution": "gaps"}),
    Case("coordinates of marginals from -1 to 1", "benign", {"argmax": "marginals"}),
    Case("AdamW as in its paper", "benign", {"stepping": "own"}),
    Case("loss keypoint by keypoint", "benign", {"losses": "each"}),
    Case("teacher by a functional call", "benign", {"teacher": "functional"}),
    Case("stem of pixels moved into channels", "benign", {"stem": "channels"}),
    Case(
        "heatmaps by a product, low precision",
        "benign",
        {"product": True},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("images not normalised", "data", {"normed": False}, ("*input*@value",)),
    Case("evaluations between", "equal", {"evaluates": True}),
    Case("found keypoints noted", "equal", {"logs": True}),
    Case("mirrored by indices", "equal", {"mirror": "indices"}),
    Case("died", "incomplete", {"ends_at": 3}),
)
