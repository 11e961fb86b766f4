"""Semantic segmentation of canvases with four digits: background, edges, even and odd digits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear
from tests.diagnosis.workloads.skips import CLASSES, SkipNet

_IGNORED = 255
_WEIGHTS = (0.4, 1.5, 1.0, 1.2)


@dataclass(frozen=True)
class Segmenter(Workload):
    """Each pixel has a class; faint ones have none.

    ignored: whether faint pixels are "left" out or count as "background". flips: what is mirrored,
        "both" the canvas and its classes or the "canvas" alone.
    weighs: whether classes have weights. over: the weighted costs of pixels are divided by their
        "weights" or by all "pixels".
    chances: of the Dice loss, by "softmax" or "sigmoid". masks: whether it leaves faint pixels out.
        pools_scenes: whether it sums over all scenes at once. smooth: what it adds to both sides.
    beside: the weight of the middle level's loss; aside: whether its gradient reaches the middle
        level ("attached") or stops ("detached").
    corners: whether corners are aligned when levels are enlarged. joins: "below first" or "skip
        first", or "apart", by two convolutions. rises: the transposed convolution, by "torch", the
        "other way" (its channels exchanged), or by an "einsum". groups: of the encoder's norms.
    rests: whether batch norms use running statistics. dropout: the share of channels.
    power: of the schedule. all_decay: whether biases and norms decay too. nesterov: of SGD.
    low: whether the net runs under autocast to bfloat16.
    costs, dice, enlarges, pools, norming, keeps, layout, onednn, backward: other ways to write or
        to run the same mathematics.
    """

    steps: int = 5
    lr: float = 5e-2
    weight_decay: float = 1e-2
    ignored: str = "left"
    flips: str = "both"
    weighs: bool = True
    over: str = "weights"
    chances: str = "softmax"
    masks: bool = True
    pools_scenes: bool = False
    smooth: float = 1.0
    beside: float = 0.4
    aside: str = "attached"
    corners: bool = False
    joins: str = "below first"
    rises: str = "torch"
    groups: int = 4
    rests: bool = False
    dropout: float = 0.1
    power: float = 0.9
    all_decay: bool = False
    nesterov: bool = True
    low: bool = False
    costs: str = "torch"
    dice: str = "product"
    enlarges: str = "torch"
    pools: str = "torch"
    norming: str = "torch"
    keeps: str = "all"
    layout: torch.memory_format = torch.contiguous_format
    onednn: bool = True
    backward: str = "once"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with torch.backends.mkldnn.flags(enabled=self.onednn), start() as session:
            self.draw(seed)
            model = SkipNet(self).to(memory_format=self.layout)
            for module in model.modules():
                module.train(not (self.rests and isinstance(module, nn.BatchNorm2d)))
            optimizer = self.sgd(self._groups(model), nesterov=self.nesterov)
            schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 8, self.power)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                scenes, classes = self._scenes(images, labels)
                clear(optimizer, self)
                with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                    told = model(scenes.contiguous(memory_format=self.layout))
                logits, middle = (part.to(model.head.weight.dtype) for part in told)
                self._back(
                    {
                        "class_loss": self._missed(logits, classes),
                        "dice_loss": self._dice(logits, classes),
                        "middle_loss": self.beside * self._missed(middle, classes),
                    }
                )
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """What decays, and what is flat: biases and norms."""
        flat = self.weight_decay if self.all_decay else 0.0
        return [
            {
                "params": [one for one in model.parameters() if (one.ndim < 2) is small],
                "weight_decay": flat if small else self.weight_decay,
            }
            for small in (False, True)
        ]

    def _scenes(self, images, labels):
        """Canvases of 2 × 2 digits, brighter or darker, some mirrored, and pixels' classes."""
        if self.turned:
            images, labels = images.flip(0), labels.flip(0)
        grid = images.view(-1, 2, 2, 8, 8).transpose(2, 3).reshape(-1, 16, 16)
        odd = (labels % 2).view(-1, 2, 2).repeat_interleave(8, 1).repeat_interleave(8, 2)
        classes = torch.where(grid < 0, 1, 2 + odd)
        faint = _IGNORED if self.ignored == "left" else 0
        classes = torch.where(grid <= -0.75, faint, classes)
        classes = torch.where(grid == -1, 0, classes)
        bright, mirrored = torch.randn(len(grid)) * 0.1, torch.rand(len(grid)) < 0.5
        across = mirrored[:, None, None]
        scenes = torch.where(across, grid.flip(2), grid) + bright[:, None, None]
        if self.flips == "both":
            classes = torch.where(across, classes.flip(2), classes)
        if self.turned:
            scenes, classes = scenes.flip(0), classes.flip(0)
        return scenes[:, None], classes

    def _missed(self, logits, classes):
        """The cross entropy of pixels, weighted by their classes."""
        weights = torch.tensor(_WEIGHTS, dtype=logits.dtype)
        weights = weights if self.weighs else None
        if self.over == "pixels":
            return functional.cross_entropy(
                logits, classes, weights, ignore_index=_IGNORED, reduction="none"
            ).mean()
        if self.costs == "torch":
            return functional.cross_entropy(logits, classes, weights, ignore_index=_IGNORED)
        counts = classes != _IGNORED
        known = torch.where(counts, classes, 0)
        shares = weights[known] * counts
        costs = logits.logsumexp(1) - logits.gather(1, known[:, None])[:, 0]
        return (shares * costs).sum() / shares.sum()

    def _dice(self, logits, classes):
        """One less the share of pixels that is told, a mean over scenes and classes."""
        chances = logits.softmax(1) if self.chances == "softmax" else logits.sigmoid()
        counts = classes != _IGNORED
        wanted = functional.one_hot(torch.where(counts, classes, 0), CLASSES).movedim(3, 1)
        wanted = wanted.to(logits.dtype) * counts[:, None]
        chances = chances * counts[:, None] if self.masks else chances
        axes = (0, 2, 3) if self.pools_scenes else (2, 3)
        if self.dice == "product":
            both = (chances * wanted).sum(axes)
            whole = chances.sum(axes) + wanted.sum(axes)
        else:
            both = torch.einsum("nchw,nchw->nc", chances, wanted)
            whole = (chances + wanted).flatten(2).sum(2)
        return 1 - ((2 * both + self.smooth) / (whole + self.smooth)).mean()

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            loss.backward()
        else:
            for one in losses.values():
                one.backward(retain_graph=True)


_CLASS = ("class_loss@*", "middle_loss@*", "loss@*", "output*@grad")
_DICE = ("dice_loss@*", "loss@*", "output@grad")
_LOSS = ("*_loss@*", "loss@*", "output*@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "faint pixels as background",
        "bug",
        {"ignored": "background"},
        _LOSS,
        r"targets? differ|ignore_index|\b255\b|Backward\d? (target|index|indices)",
    ),
    Case(
        "classes not mirrored",
        "bug",
        {"flips": "canvas"},
        _LOSS,
        rf"targets? differ|Backward\d? (target|other|index)|{_ORDER}",
    ),
    Case(
        "classes without weights",
        "bug",
        {"weighs": False},
        _CLASS,
        r"nll\w* .{0,60}\bweight\b|cross_entropy\w* .{0,60}\bweight\b|\bweight (is )?None",
    ),
    Case(
        "costs over all pixels",
        "bug",
        {"over": "pixels"},
        _CLASS,
        rf"{_TIMES}|\b[Mm]ean(Backward|\b)|reduction|total_weight",
    ),
    Case(
        "sigmoid for softmax",
        "bug",
        {"chances": "sigmoid"},
        _DICE,
        r"[Ss]igmoid|[Ss]oftmax",
    ),
    Case(
        "faint pixels count in the Dice loss",
        "bug",
        {"masks": False},
        _DICE,
        rf"\bMul(Backward|\b)|\bmask|{_GIVEN}",
    ),
    Case(
        "Dice of all scenes at once",
        "bug",
        {"pools_scenes": True},
        _DICE,
        r"\b[Ss]um\w* .{0,60}\bdims?\b|\bdims?\b .{0,60}(0, 2, 3|2, 3)|\bshapes?\b",
    ),
    Case(
        "Dice without its one",
        "bug",
        {"smooth": 1e-6},
        _DICE,
        rf"1e-0?6|\bAdd(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "middle level weighs one",
        "bug",
        {"beside": 1.0},
        ("middle_loss@*", "loss@*", "output:1@grad"),
        rf"{_TIMES}|\b0\.4\b|\bMul(Backward|\b)",
    ),
    Case(
        "middle level detached",
        "bug",
        {"aside": "detached"},
        ("join2@grad", "join2.*@*grad"),
        rf"{_DETACHED}|\bconv\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bconv",
    ),
    Case(
        "corners aligned",
        "bug",
        {"corners": True},
        ("larger@value", "full@value", "join1.conv.input@value", "join1.input*@value"),
        r"align_corners",
    ),
    Case(
        "skips come first",
        "bug",
        {"joins": "skip first"},
        ("join2.conv@value", "join2.conv.input@value"),
        rf"\b[Cc]at(Backward|\b)|{_ORDER}",
    ),
    Case(
        "channels of a transposed convolution exchanged",
        "bug",
        {"rises": "other way"},
        ("rise@value",),
        rf"transpose|permute|{_ORDER}|weight .{{0,40}}\.T\b",
    ),
    Case("one group", "bug", {"groups": 1}, ("enter.norm@value",), r"\b(num_)?groups?\b"),
    Case(
        "batch norms rest",
        "bug",
        {"rests": True},
        ("join2.norm@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("power of the schedule", "bug", {"power": 2.0}, UPDATES, r"\blr\b|\bpower\b", step=1),
    Case("norms and biases decay", "bug", {"all_decay": True}, UPDATES, r"weight_decay"),
    Case("without Nesterov", "bug", {"nesterov": False}, UPDATES, r"nesterov"),
    Case("cross entropy by hand", "benign", {"costs": "own"}),
    Case("Dice by einsum", "benign", {"dice": "einsum"}),
    Case("transposed convolution by einsum", "benign", {"rises": "einsum"}),
    Case("enlarged by products", "benign", {"enlarges": "products"}),
    Case("two convolutions for one", "benign", {"joins": "apart"}),
    Case("own group norms", "benign", {"norming": "own"}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("without oneDNN", "benign", {"onednn": False}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("scenes turned", "benign", {"turned": True}, reference={"dropout": 0.0}),
    Case(
        "transposed convolution by einsum, low precision",
        "benign",
        {"rises": "einsum"},
        reference={"low": True},
    ),
    Case("own group norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("lowest level computed again", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
