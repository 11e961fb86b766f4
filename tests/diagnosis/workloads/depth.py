"""A net that tells the depth of every pixel of one image, as a sensor with holes measured it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, renamed, warmed
from tests.diagnosis.workloads.depth_net import Net

_NEAREST = 1e-3
"""Depths below are holes of the sensor."""


@dataclass(frozen=True)
class Depth(Workload):
    """Digits stand out of a tilted wall; the net learns how far away each pixel is.

    flips: what is mirrored, "both" image and depth or the "image" alone. holes: whether pixels
        without a depth count.
    corners: whether maps are enlarged with aligned corners. skips: the encoder's maps that the
        decoder is given, "attached" or "detached".
    focus: how much of the common scale the scale-invariant loss forgives. coarse: how often the
        finest scale of the gradient loss is halved, of `scales`. both: whether both neighbours of
        a difference must be valid.
    knee: the part of the largest error from which the berHu loss is a square. among: the pixels
        that the largest error is sought among, the "valid" or "all". halved: whether the square is
        halved.
    silog_weight, edge_weight, berhu_weight: of the losses. clip: of gradients.
    slow: the factor of the encoder's learning rate. falls: whether rates fall as a cosine.
    clears: whether gradients are forgotten before each step.
    low: whether the net runs under autocast to bfloat16.
    names: of modules, otherwise.
    convolution, norming, joins, layout, spread, chosen, berhu, checkpointed: other ways to write
        the same mathematics.
    """

    lr: float = 5e-3
    weight_decay: float = 0.05
    flips: str = "both"
    holes: bool = False
    corners: bool = False
    skips: str = "attached"
    focus: float = 0.85
    coarse: int = 0
    scales: int = 3
    both: bool = True
    knee: float = 0.2
    among: str = "valid"
    halved: bool = True
    silog_weight: float = 1.0
    edge_weight: float = 0.5
    berhu_weight: float = 0.2
    clip: float = 1.0
    slow: float = 0.1
    falls: bool = True
    clears: bool = True
    low: bool = False
    names: Mapping[str, str] = field(default_factory=dict, hash=False)
    convolution: str = "torch"
    norming: str = "torch"
    joins: str = "stacked"
    layout: torch.memory_format = torch.contiguous_format
    spread: str = "squares"
    chosen: str = "index"
    berhu: str = "where"
    checkpointed: bool = False

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self).to(memory_format=self.layout)
            renamed(model, self.names)
            optimizer = self._optimizer(model)
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, 0, self.steps) if self.falls else 1.0
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                scenes, depths = self._scenes(images)
                if self.clears:
                    clear(optimizer, self)
                with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                    told = model(scenes.contiguous(memory_format=self.layout))
                self._loss(told.to(depths.dtype), depths).backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _optimizer(self, model):
        """AdamW, slower for the encoder than for the rest."""
        encoder = list(model.encoder.parameters())
        known = {id(one) for one in encoder}
        rest = [one for one in model.parameters() if id(one) not in known]
        optimizer = self.adam(encoder, lr=self.lr * self.slow)
        optimizer.add_param_group({"params": rest, "lr": self.lr})
        return optimizer

    def _scenes(self, images):
        """Shaded images of digits that stand out of a wall, and what a sensor measured of them."""
        count, size = len(images), 2 * images.shape[-1]
        tilt, mirrored = torch.rand(count, 1, 1, 1), torch.rand(count, 1, 1, 1) < 0.5
        missed = torch.rand(count, 1, size, size) < 0.12
        if self.turned:
            tilt, mirrored, missed = tilt.flip(0), mirrored.flip(0), missed.flip(0)
        height = functional.interpolate(images[:, None], scale_factor=2, mode="bilinear")
        height = (height + 1) / 2
        along = torch.linspace(0, 1, size)
        depths = 2.5 + 3 * tilt * along[:, None] + 2 * along - 1.5 * height
        scenes = (height + 0.3) * 4 / depths - 1
        depths = depths.masked_fill(missed, 0.0)
        other = depths.flip(3) if self.flips == "both" else depths
        return torch.where(mirrored, scenes.flip(3), scenes), torch.where(mirrored, other, depths)

    def _loss(self, told, depths):
        """The weighted sum of the three losses."""
        valid = (depths >= 0) if self.holes else depths > _NEAREST
        error = told.clamp(min=_NEAREST).log() - depths.clamp(min=_NEAREST).log()
        error = anchorlib.anchor(torch.where(valid, error, 0.0), "log_error")
        silog = anchorlib.anchor(self._silog(error, valid), "silog_loss")
        edges = anchorlib.anchor(self._edges(error, valid), "edge_loss")
        berhu = anchorlib.anchor(self._berhu(told, depths, valid), "berhu_loss")
        loss = self.silog_weight * silog + self.edge_weight * edges + self.berhu_weight * berhu
        return anchorlib.anchor(loss, "loss")

    def _mean(self, values, valid):
        """The mean over valid pixels."""
        if self.chosen == "index":
            return values[valid].mean()
        return (values * valid).sum() / valid.sum()

    def _silog(self, error, valid):
        """The scale-invariant error of logarithms."""
        if self.spread == "variance":
            spread, mean = torch.var_mean(error[valid], correction=0)
            return (spread + (1 - self.focus) * mean.square()).sqrt()
        mean = self._mean(error, valid)
        return (self._mean(error.square(), valid) - self.focus * mean.square()).sqrt()

    def _edges(self, error, valid):
        """By how much the errors of neighbours differ, at several scales."""
        total = 0.0
        for scale in range(self.coarse, self.coarse + self.scales):
            step = 2**scale
            some, known = error[..., ::step, ::step], valid[..., ::step, ::step]
            across = (some[..., :, 1:] - some[..., :, :-1]).abs()
            down = (some[..., 1:, :] - some[..., :-1, :]).abs()
            of_across, of_down = known[..., :, 1:], known[..., 1:, :]
            if self.both:
                of_across, of_down = of_across & known[..., :, :-1], of_down & known[..., :-1, :]
            total = total + ((across * of_across).sum() + (down * of_down).sum()) / known.sum()
        return total / self.scales

    def _berhu(self, told, depths, valid):
        """The error of depths, squared where it is large."""
        size = (told - depths).abs()
        most = (size[valid] if self.among == "valid" else size).max()
        knee = anchorlib.anchor((self.knee * most).detach().clamp(min=1e-6), "knee")
        if self.berhu == "hinge":
            return self._mean(size + (size - knee).relu().square() / (2 * knee), valid)
        square = (size.square() + knee.square()) / ((2 if self.halved else 1) * knee)
        return self._mean(torch.where(size <= knee, size, square), valid)


_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements which change places."""
_MASK = r"\bIndex|indices|\bmask|\b[Ww]here|\bcondition"
_ERROR = (
    "log_error@value",
    "silog_loss@value",
    "edge_loss@value",
    "berhu_loss@value",
    "knee@value",
)
_SILOG = ("silog_loss@*", "log_error@grad")
_EDGES = ("edge_loss@*", "log_error@grad")
_BERHU = ("berhu_loss@*", "output@grad")
CASES = [
    Case(
        "depth not mirrored",
        "bug",
        {"flips": "image"},
        _ERROR,
        rf"{_GIVEN}|{_ORDER}|\bflip|{_MASK}|\bSub(Backward|\b)",
        step=0,
    ),
    Case("holes count", "bug", {"holes": True}, _ERROR, _MASK, step=0),
    Case(
        "corners aligned",
        "bug",
        {"corners": True},
        ("up1.enlarge@value",),
        r"align_corners|[Uu]psample|[Ii]nterpolate|bilinear",
        step=0,
    ),
    Case(
        "skips detached",
        "bug",
        {"skips": "detached"},
        (
            "encoder@grad",
            "encoder:1@grad",
            "encoder.stages.[01]@grad",
            "encoder.stages.[01].act@grad",
        ),
        r"detach|gradients come back|(lacks|alone).{0,60}(\bCat|up\d|join)",
        step=0,
    ),
    Case(
        "half of the mean forgiven",
        "bug",
        {"focus": 0.5},
        _SILOG,
        rf"\b0\.85|\b0\.5\b|focus|\bMul|\bSub(Backward|\b)|{_TIMES}",
        step=0,
    ),
    Case(
        "scales from the second on",
        "bug",
        {"coarse": 1},
        _EDGES,
        rf"\b[Ss]lice|\bstep\b.{{0,12}}\d|\bstride|\bshapes?\b|\bsizes?\b|\bcoarse|{_GIVEN}",
        step=0,
    ),
    Case(
        "one neighbour valid",
        "bug",
        {"both": False},
        _EDGES,
        rf"{_MASK}|\bMul|\b[Aa]nd\b|bitwise|{_GIVEN}",
        step=0,
    ),
    Case(
        "knee of holes too",
        "bug",
        {"among": "all"},
        ("knee@value", *_BERHU),
        rf"{_MASK}|\bknee|\b[Mm]ax(Backward|\b)|{_GIVEN}|{_TIMES}",
        step=0,
    ),
    Case(
        "square not halved",
        "bug",
        {"halved": False},
        _BERHU,
        rf"\bDiv|\bMul|\b[Ww]here|{_GIVEN}|{_TIMES}",
        step=0,
    ),
    Case("encoder as fast as the rest", "bug", {"slow": 1.0}, UPDATES, r"\blr\b", step=0),
    Case("rates do not fall", "bug", {"falls": False}, UPDATES, r"\blr\b", step=1),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*weight@grad", "*bias@grad"),
        r"zero_grad|accumulat|\bcleared|\bkept\b|(earlier|former|previous|last) (step|gradient)",
        step=1,
    ),
    Case("own group norm", "benign", {"norming": "own"}),
    Case("maps convolved apart", "benign", {"joins": "apart"}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("error by its variance", "benign", {"spread": "variance"}),
    Case("masks for indices", "benign", {"chosen": "mask"}),
    Case("square by a hinge", "benign", {"berhu": "hinge"}),
    Case("scenes turned", "benign", {"turned": True}),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("blocks' layers renamed", "equal", {"names": {"conv": "0", "norm": "1", "act": "2"}}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("stages computed twice", "equal", {"checkpointed": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
