"""A radiance field of digits as glowing shapes: rays, a coarse and a fine net, volume rendering."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut
from tests.diagnosis.workloads.field import Renderer

_RAYS = 4
"""Rays through each image."""


@dataclass(frozen=True)
class Radiance(Workload):
    """An image is what a camera sees of its digit's shape, on white; the camera is tilted by label.

    unit: the lowest frequency of waves. frequencies: "double" or grow by one. waves: their order,
        "in pairs" of sine and cosine, or "sines first".
    views: whether directions are made "unit" vectors before their waves, or taken "as they are".
    skips: what the last layer is given again, the "place" or "zeros". positive: what makes a
        density positive, "softplus" or "relu". shift: what is added to it before.
    moves: how places on rays are moved, "each" by itself, all rays "alike", or "not".
    lengths: whether distances count the direction's length. last: the distance behind the last
        place, up to the "far" end or "nothing". steps_count: whether densities are multiplied by
        distances. inclusive: whether a place shades itself. behind: what a ray ends at, "white" or
        "black". target: what the image is on.
    guides: whether the coarse weights that say where the fine net looks are "detached" or
        "attached". sorts: whether places are sorted.
    centre: where in its pixel a ray passes. exchanged: whether rows and columns change places.
    coarse: the weight of the coarse loss. lost: "square" or "absolute" errors. spreads: the weight
        of the distortion loss; own: whether it counts each place with itself. small: the weight of
        the codes' squares; smalls: their "mean" or "sum".
    parts: chunks of rays a step. divides: whether each chunk's loss is divided by their number.
    falls: the factor of the learning rate from step to step.
    low: whether the fields run under autocast to bfloat16.
    encoding, joins, sigmoid, softplus, points, colours, alpha, through, between, pairs, mse,
        backward, scale: other ways to write the same mathematics.
    """

    lr: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.99)
    adam_eps: float = 1e-15
    weight_decay: float = 0.0
    decoupled: bool = False
    steps: int = 5
    unit: float = math.pi / 2
    frequencies: str = "double"
    waves: str = "in pairs"
    views: str = "unit"
    skips: str = "place"
    positive: str = "softplus"
    shift: float = -0.5
    moves: str = "each"
    lengths: bool = True
    last: str = "far"
    steps_count: bool = True
    inclusive: bool = False
    behind: str = "white"
    target: str = "white"
    guides: str = "detached"
    sorts: bool = True
    centre: float = 0.5
    exchanged: bool = False
    coarse: float = 1.0
    lost: str = "square"
    spreads: float = 0.02
    own: bool = True
    small: float = 1e-2
    smalls: str = "mean"
    parts: int = 1
    divides: bool = True
    falls: float = 0.9
    low: bool = False
    encoding: str = "each"
    joins: str = "joined"
    sigmoid: str = "torch"
    softplus: str = "torch"
    points: str = "plain"
    colours: str = "sum"
    alpha: str = "exp"
    through: str = "products"
    between: str = "plain"
    pairs: str = "products"
    mse: str = "torch"
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
            model = Renderer(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.falls)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                clear(optimizer, self)
                for part in cut(self.parts, *self._rays(images, labels)):
                    *given, wanted = part
                    with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                        told = model(*given)
                    self._back(self._losses(told, wanted))
                for parameter in model.parameters():
                    if self.scale != 1:
                        parameter.grad.div_(self.scale)
                optimizer.step()
                schedule.step()

    def _rays(self, images, labels):
        """Pixels that rays pass, their objects, jitter, and the colours that they should have."""
        count = len(images)
        chosen = torch.randint(0, 64, (count, _RAYS))
        jitter = torch.rand(count, _RAYS, 2, 8)
        if self.turned:
            chosen, jitter = chosen.flip(0), jitter.flip(0)
        pixels = torch.stack((chosen // 8, chosen % 8), -1)
        opaque = (images.flatten(1).gather(1, chosen)[..., None] + 1) / 2
        tint = torch.stack((0.9 - 0.05 * labels, 0.1 + 0.08 * labels, 0.3 + 0 * labels), -1)
        colours = opaque * tint.to(images.dtype)[:, None]
        colours = colours + (1 - opaque) if self.target == "white" else colours
        labels = labels[:, None].expand(-1, _RAYS)
        return [one.flatten(0, 1) for one in (pixels, labels, jitter, colours)]

    def _losses(self, told, wanted):
        """The losses of both colours, of the distortion and of the codes."""
        coarse, fine, spread, codes = told
        small = codes.square().sum(-1)
        losses = {
            "coarse_loss": self.coarse * self._missed(coarse, wanted),
            "fine_loss": self._missed(fine, wanted),
            "spread_loss": self.spreads * spread.mean(),
            "code_loss": self.small * (small.mean() if self.smalls == "mean" else small.sum()),
        }
        parts = self.parts if self.divides else 1
        return {name: loss / parts for name, loss in losses.items()}

    def _missed(self, colour, wanted):
        if self.lost == "absolute":
            return functional.l1_loss(colour, wanted)
        if self.mse == "torch":
            return functional.mse_loss(colour, wanted)
        missed = (colour - wanted).flatten()
        return missed @ missed / len(missed)

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            for one in losses.values():
                one.backward(retain_graph=True)


_WAVES = ("coarse.waves@value",)
_COARSE = ("output@value",)
_FINE = ("fine.waves@value",)
_LIGHT = (*_COARSE, *_FINE)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "frequencies without pi",
        "bug",
        {"unit": 1.0},
        _WAVES,
        rf"\bMul|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "frequencies grow by one",
        "bug",
        {"frequencies": "grow"},
        _WAVES,
        rf"\bMul|{_GIVEN}",
    ),
    Case(
        "sines first",
        "bug",
        {"waves": "sines first"},
        _WAVES,
        rf"\bCat|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "directions as they are",
        "bug",
        {"views": "as they are"},
        ("coarse.views@value",),
        rf"\bDiv|\bnorm\b|{_TIMES}|a factor of its own|{_GIVEN}",
    ),
    Case(
        "place not given again",
        "bug",
        {"skips": "zeros"},
        ("coarse.again@value",),
        r"zeros|computes it from|\bCat",
    ),
    Case("relu for softplus", "bug", {"positive": "relu"}, ("coarse@value",), r"\brelu|softplus"),
    Case(
        "density not shifted",
        "bug",
        {"shift": 0.0},
        ("coarse@value",),
        r"\bAdd(Backward|\b)",
    ),
    Case(
        "rays moved alike",
        "bug",
        {"moves": "alike"},
        _WAVES,
        rf"\bexpand|\bMul|\bAdd(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "places not moved",
        "bug",
        {"moves": "not"},
        _WAVES,
        rf"\bMul|\bAdd(Backward|\b)|{_GIVEN}",
    ),
    Case("lengths of directions forgotten", "bug", {"lengths": False}, _LIGHT, rf"\bMul|{_GIVEN}"),
    Case(
        "last distance forgotten",
        "bug",
        {"last": "nothing"},
        _COARSE,
        rf"zeros|\bCat|\bMul|{_GIVEN}",
    ),
    Case("densities without distances", "bug", {"steps_count": False}, _LIGHT, r"\bMul"),
    Case(
        "places shade themselves",
        "bug",
        {"inclusive": True},
        _LIGHT,
        r"\bCat|cumprod|places? on|\bslice",
    ),
    Case(
        "white not added",
        "bug",
        {"behind": "black"},
        _COARSE,
        r"\bAdd(Backward|\b)|\bRsub|\bSub",
    ),
    Case(
        "target on black",
        "bug",
        {"target": "black"},
        ("coarse_loss@*", "fine_loss@*", "output@grad", "output:1@grad"),
        rf"{_GIVEN}",
    ),
    Case(
        "guides attached",
        "bug",
        {"guides": "attached"},
        ("coarse@grad", "coarse:1@grad", "coarse.*@*grad"),
        rf"{_DETACHED}",
    ),
    Case("places not sorted", "bug", {"sorts": False}, _FINE, rf"\bsort|{_ORDER}"),
    Case("corners of pixels", "bug", {"centre": 0.0}, _WAVES, rf"{_GIVEN}|\bAdd(Backward|\b)"),
    Case(
        "rows for columns",
        "bug",
        {"exchanged": True},
        _WAVES,
        rf"{_GIVEN}|{_ORDER}",
    ),
    Case(
        "coarse loss small",
        "bug",
        {"coarse": 0.1},
        ("coarse_loss@*", "output@grad"),
        rf"{_TIMES}|\bMul",
    ),
    Case(
        "absolute errors",
        "bug",
        {"lost": "absolute"},
        ("coarse_loss@*", "fine_loss@*", "output@grad", "output:1@grad"),
        r"\bmse|\bl1|smooth_l1|\babs",
    ),
    Case(
        "distortion without itself",
        "bug",
        {"own": False},
        ("output:2@value",),
        r"\bAdd(Backward|\b)|square|\bPow",
    ),
    Case(
        "sum of codes",
        "bug",
        {"smalls": "sum"},
        ("code_loss@*", "output:3@grad"),
        rf"\bMean|\bSum(Backward|\b)|{_TIMES}",
    ),
    Case(
        "chunks not divided",
        "bug",
        {"divides": False},
        ("*loss@*", "output*@grad"),
        rf"{_TIMES}|\bDiv",
        reference={"parts": 2},
    ),
    Case("rate does not fall", "bug", {"falls": 1.0}, UPDATES, r"\blr\b", step=1),
    Case("epsilon of Adam", "bug", {"adam_eps": 1e-8}, UPDATES, r"\beps\b"),
    Case("second beta", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"\bbetas?\b"),
    Case("waves by doubled angles", "benign", {"encoding": "doubled"}),
    Case("layers of parts multiplied apart", "benign", {"joins": "apart"}),
    Case("sigmoid by tanh", "benign", {"sigmoid": "tanh"}),
    Case("own softplus", "benign", {"softplus": "own"}),
    Case("points at once", "benign", {"points": "at once"}),
    Case("colours by einsum", "benign", {"colours": "einsum"}),
    Case("alpha by expm1", "benign", {"alpha": "expm1"}),
    Case("light that passes by sums", "benign", {"through": "sums"}),
    Case("light that passes in a loop", "benign", {"through": "loop"}),
    Case("between edges as a mean", "benign", {"between": "mean"}),
    Case("distortion by running sums", "benign", {"pairs": "sums"}),
    Case("error by a product", "benign", {"mse": "own"}),
    Case("2 chunks", "benign", {"parts": 2}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("gradients unscaled", "benign", {"scale": 1000.0}),
    Case("rays turned", "benign", {"turned": True}),
    Case("fused Adam", "benign", {"implementation": "fused"}),
    Case("parts apart, low precision", "benign", {"joins": "apart"}, reference={"low": True}),
    Case("sigmoid by tanh, low precision", "benign", {"sigmoid": "tanh"}, reference={"low": True}),
    Case("2 chunks, low precision", "benign", {"parts": 2}, reference={"low": True}),
    Case("each loss, low precision", "benign", {"backward": "each"}, reference={"low": True}),
    Case("sums, low precision", "benign", {"through": "sums"}, reference={"low": True}),
    Case(
        "doubled angles, low precision", "benign", {"encoding": "doubled"}, reference={"low": True}
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value", "codes@value")),
    Case("again", "equal"),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("again, low precision", "equal", reference={"low": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
