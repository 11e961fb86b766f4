"""A mender of digits with holes: partial and gated convolutions, and losses of what was hidden."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import Case, Start, Workload, clear, cut
from tests.diagnosis.workloads.patcher import Mender

_SIZE = 8


@dataclass(frozen=True)
class Mending(Workload):
    """Each image has a hole of 3 to 5 pixels a side; the net tells the image that is whole.

    marks: what 1 means to the net, "seen" pixels or "holes". covers: whether partial convolutions
        leave holes out. evens: whether they make up for pixels that are missing. window: the
        pixels below a window, those of "all" channels or of "one". ratio_eps: added to the count of
        seen pixels. biases: whether a bias is added "behind" the ratio or "inside" it. fills:
        whether holes shrink from layer to layer. lets: the half that is the gate. gate: what bends
        it. adds: whether gated convolutions are added to what they are given. leak: of rectifiers.
        grows: how a level is enlarged. rests: whether the batch norm keeps its statistics.
    valid, hole, border: the weights of losses. shares: what the loss of holes is divided by, the
        pixels of "holes" or of the "whole" images. fits: whether seen pixels of the mended image
        are the "given" ones or the "told" ones. flows: whether the mended image has a gradient.
        wide: how far around a hole. axes: the axes of the total variation.
    parts: micro-batches a step. clip: of gradients. falls: the factor of the learning rate.
    low: whether the net runs under autocast to bfloat16.
    convolution, counts, ratios, halves, norming, absolute, varies, mixes, grown, backward: other
        ways to write the same mathematics.
    """

    steps: int = 5
    weight_decay: float = 0.0
    decoupled: bool = False
    marks: str = "seen"
    covers: bool = True
    evens: bool = True
    window: str = "all"
    ratio_eps: float = 1e-6
    biases: str = "behind"
    fills: bool = True
    lets: str = "second"
    gate: str = "sigmoid"
    adds: bool = True
    leak: float = 0.2
    grows: str = "nearest"
    rests: bool = True
    valid: float = 1.0
    hole: float = 6.0
    border: float = 0.5
    shares: str = "holes"
    fits: str = "given"
    flows: bool = True
    wide: int = 1
    axes: tuple[int, int] = (2, 3)
    parts: int = 1
    clip: float = 1.0
    falls: float = 0.9
    low: bool = False
    convolution: str = "torch"
    counts: str = "convolution"
    ratios: str = "apart"
    halves: str = "joined"
    norming: str = "torch"
    absolute: str = "product"
    varies: str = "slices"
    mixes: str = "product"
    grown: str = "pool"
    backward: str = "once"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Mender(self)
            model.norm.train(not self.rests)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            covering = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
            for images, _ in self.images(seed):
                seen = _seen(len(images), covering)
                seen = (seen.flip(0) if self.turned else seen).to(images.dtype)
                clear(optimizer, self)
                seen = seen[:, None]
                for part in cut(self.parts, images[:, None], seen):
                    self._back(self._losses(model, *part, seen))
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _losses(self, model, images, seen, batch):
        """A part's share of the losses of seen pixels, of holes and of their borders."""
        given = seen if self.marks == "seen" else 1 - seen
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(images * seen, given)
        told = told.to(images.dtype)
        mended = anchorlib.anchor(self._mended(told, images, seen), "mended")
        holes = batch.numel() if self.shares == "whole" else (1 - batch).sum()
        rough = self._rough(mended, seen, batch)
        return {
            "valid_loss": self.valid * self._missed(told, images, seen) / batch.sum(),
            "hole_loss": self.hole * self._missed(told, images, 1 - seen) / holes,
            "border_loss": self.border * rough,
        }

    def _mended(self, told, images, seen):
        """The image with its holes filled."""
        told = told if self.flows else told.detach()
        if self.fits == "told":
            return seen * told + (1 - seen) * images
        if self.mixes == "product":
            return seen * images + (1 - seen) * told
        return images + (1 - seen) * (told - images)

    def _missed(self, told, images, where):
        """The sum of errors of some pixels."""
        if self.absolute == "product":
            return ((told - images) * where).abs().sum()
        return (told - images)[where.bool()].abs().sum()

    def _rough(self, images, seen, batch):
        """The mean difference of neighbours in and beside holes."""
        near, all_near = self._near(1 - seen), self._near(1 - batch)
        found = 0
        for axis in self.axes:
            if self.varies == "slices":
                steps = images.narrow(axis, 1, _SIZE - 1) - images.narrow(axis, 0, _SIZE - 1)
                there = near.narrow(axis, 1, _SIZE - 1) * near.narrow(axis, 0, _SIZE - 1)
            else:
                edge = (torch.arange(_SIZE) > 0).to(images.dtype)
                edge = edge.view((1, 1, -1, 1) if axis == 2 else (1, 1, 1, -1))
                steps = (images - images.roll(1, axis)) * edge
                there = near * near.roll(1, axis)
            all_there = all_near.narrow(axis, 1, _SIZE - 1) * all_near.narrow(axis, 0, _SIZE - 1)
            found = found + (steps.abs() * there).sum() / all_there.sum()
        return found

    def _near(self, holes):
        """1 in holes and beside them."""
        if not self.wide:
            return holes
        side = 2 * self.wide + 1
        if self.grown == "pool":
            return functional.max_pool2d(holes, side, 1, self.wide)
        kernel = torch.ones(1, 1, side, side, dtype=holes.dtype)
        return functional.conv2d(holes, kernel, padding=self.wide).clamp(max=1)

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


def _seen(count, covering):
    """1 where a pixel is seen, 0 in a hole."""
    sides = torch.randint(3, 6, (2, count, 1), generator=covering)
    begins = (torch.rand(2, count, 1, generator=covering) * (_SIZE + 1 - sides)).long()
    at = torch.arange(_SIZE)
    inside = (at >= begins) & (at < begins + sides)
    return ~(inside[0][:, :, None] & inside[1][:, None])


_FIRST = ("down1@value",)
_GATE = ("gated.0@value",)
_MENDED = ("mended@*",)
_HOLE = ("hole_loss@*", "loss@value")
_BORDER = ("border_loss@*", "loss@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "holes for seen pixels",
        "data",
        {"marks": "holes"},
        ("input:1@value", *_FIRST),
    ),
    Case(
        "holes not left out",
        "bug",
        {"covers": False},
        ("up@value",),
        rf"\bMul|{_GIVEN}|computes it from|\bmask",
    ),
    Case(
        "missing pixels not made up for",
        "bug",
        {"evens": False},
        _FIRST,
        rf"\bMul|\bDiv|reciprocal|{_GIVEN}|ratio",
    ),
    Case(
        "window of one channel",
        "bug",
        {"window": "one"},
        ("down2@value",),
        rf"\bMul|\bDiv|reciprocal|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "large eps of the ratio",
        "bug",
        {"ratio_eps": 1.0},
        _FIRST,
        rf"\beps\b|\bAdd(Backward|\b)|\bMul|{_GIVEN}|reciprocal",
    ),
    Case(
        "bias inside the ratio",
        "bug",
        {"biases": "inside"},
        _FIRST,
        rf"\bbias\b|\bAdd(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "holes do not shrink",
        "bug",
        {"fills": False},
        ("down1:1@value", "down2@value"),
        rf"\bMul|{_GIVEN}|\bmask|output:1|:1\b",
    ),
    Case(
        "halves of gates exchanged",
        "bug",
        {"lets": "first"},
        _GATE,
        rf"{_ORDER}|\b[Ss]plit|\b[Cc]hunk|{_GIVEN}",
    ),
    Case("tanh for the gate's sigmoid", "bug", {"gate": "tanh"}, _GATE, r"\b[Ss]igmoid|\b[Tt]anh"),
    Case(
        "gated convolutions not added",
        "bug",
        {"adds": False},
        ("gated.1@value",),
        rf"\bAdd(Backward|\b)|{_GIVEN}|computes it from|residual",
    ),
    Case(
        "bilinear growth",
        "bug",
        {"grows": "bilinear"},
        ("up@value",),
        r"[Bb]ilinear|[Nn]earest",
    ),
    Case(
        "batch norm not frozen",
        "bug",
        {"rests": False},
        ("norm@value", "norm.running*@*"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b|running",
    ),
    Case(
        "weights of losses exchanged",
        "bug",
        {"valid": 6.0, "hole": 1.0},
        ("valid_loss@*", "hole_loss@*"),
        rf"\bMul|{_TIMES}",
    ),
    Case(
        "hole loss over whole images",
        "bug",
        {"shares": "whole"},
        _HOLE,
        rf"{_TIMES}|\bDiv|\bMean",
    ),
    Case(
        "mended the wrong way round",
        "bug",
        {"fits": "told"},
        _MENDED,
        rf"\bMul|{_GIVEN}|{_ORDER}",
    ),
    Case("mended image detached", "bug", {"flows": False}, (*_MENDED, "output@grad"), _DETACHED),
    Case(
        "holes alone are smoothed",
        "bug",
        {"wide": 0},
        _BORDER,
        rf"\bMul|\bDiv|max_pool|{_GIVEN}|\bdilat|\bmask",
    ),
    Case(
        "one axis smoothed twice",
        "bug",
        {"axes": (2, 2)},
        _BORDER,
        rf"\bdim\b|\b[Ss]lice|\bnarrow|{_GIVEN}|{_ORDER}",
    ),
    Case("seen pixels by pooling", "benign", {"counts": "pool"}),
    Case("ratio turned over", "benign", {"ratios": "divided"}),
    Case("bias added and taken off", "benign", {"biases": "taken"}),
    Case("convolutions of patches", "benign", {"convolution": "patches"}),
    Case("sigmoid by tanh", "benign", {"gate": "halved"}),
    Case("holes' errors chosen", "benign", {"absolute": "chosen"}),
    Case("neighbours by rolling", "benign", {"varies": "rolls"}),
    Case("mended by a difference", "benign", {"mixes": "difference"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case(
        "gates of their own, low precision", "benign", {"halves": "apart"}, reference={"low": True}
    ),
    Case(
        "frozen norm folded, low precision",
        "benign",
        {"norming": "folded"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("holes grown by convolution", "equal", {"grown": "convolution"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
