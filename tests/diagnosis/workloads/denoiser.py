"""A denoiser that never sees a clean image: it learns from pairs of noisy ones (Noise2Noise)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, digits
from tests.diagnosis.workloads.denoiser_net import Average, Denoiser

_SHOWN, _LEVEL = 8, 25 / 255
"""Images that the evaluation shows, and how noisy they are."""
_FLIPS = ((), (2,), (3,), (2, 3))
"""The axes along which images are flipped at the evaluation."""


@dataclass(frozen=True)
class Denoising(Workload):
    """Digits with drawn noise levels are restored towards the same digits with other noise.

    levels: whether each "image" of a batch has a noise level of its own, or the "batch" has one.
    shares: whether targets have the noise of the inputs.
    maps: the axis that noise levels lie along in their channel, "images" or "width". skips: what
        the skip connection takes, the "active" channels or the "linear" ones before the ReLU.
    clamps: whether restored images are clamped to 0 to 1. norm: of blocks, "batch" or "layer".
    eps: of the Charbonnier loss. squares: whether it is squared. over: pixels' losses are a "mean"
        or a "sum". edge: the weight of the loss of the edges.
    period: the steps of the cosine's fall.
    decay: of the averaged weights. buffers: the running statistics of the average, the model's
        "latest" or the "first".
    every: the steps from evaluation to evaluation. returns: whether flips are undone there.
    parts: micro-batches a step.
    low: whether the net runs under autocast to bfloat16.
    borders, joins, enlarges, root, aims, edges, averages, grads: other ways to write the
        same mathematics.
    """

    batch: int = 8
    lr: float = 4e-3
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 1e-4
    evaluates: bool = True
    levels: str = "image"
    shares: bool = False
    maps: str = "images"
    skips: str = "active"
    clamps: bool = False
    norm: str = "batch"
    eps: float = 1e-3
    squares: bool = True
    over: str = "mean"
    edge: float = 0.05
    period: int = 6
    decay: float = 0.8
    buffers: str = "latest"
    every: int = 2
    returns: bool = True
    parts: int = 1
    low: bool = False
    borders: str = "conv"
    joins: str = "cat"
    enlarges: str = "transposed"
    root: str = "sqrt"
    aims: str = "images"
    edges: str = "each"
    averages: str = "own"
    grads: str = "no_grad"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Denoiser(self)
            average = self._average(model)
            average.module.requires_grad_(False).eval()
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.period)
            session.watch(model, tensors="*", optimizer=optimizer)
            session.watch(average.module, tensors="*", prefix="average")
            torch.manual_seed(seed)
            for step, (images, _) in enumerate(self.images(seed), 1):
                clear(optimizer, self)
                for part in cut(self.parts, *self._pairs(images)):
                    self._learn(model, *part)
                optimizer.step()
                schedule.step()
                average.update_parameters(model)
                if self.evaluates and step % self.every == 0:
                    self._evaluate(average.module)

    def _average(self, model):
        if self.averages == "own":
            return Average(self, model)
        return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(self.decay))

    def _pairs(self, images):
        """Noisy images, the same with other noise, and their noise levels."""
        clean = _unit(images)
        levels = (5 + 70 * torch.rand(len(clean))) / 255
        noise = torch.randn(2, *clean.shape)
        if self.turned:
            levels, noise = levels.flip(0), noise.flip(1)
        if self.levels == "batch":
            levels = levels[:1].repeat(len(levels))
        noisy, target = clean + levels.view(-1, 1, 1, 1) * noise
        return noisy, noisy.clone() if self.shares else target, levels

    def _restored(self, model, noisy, levels):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            return model(noisy, levels).to(noisy.dtype)

    def _learn(self, model, noisy, target, levels):
        """The gradients of one micro-batch."""
        anchorlib.anchor(target, "target")
        told = self._restored(model, noisy, levels)
        if self.aims == "noise":
            told, target = noisy - told, noisy - target
        missed = self._charbonnier(told - target)
        pixels = missed.mean() if self.over == "mean" else missed.sum()
        if self.edges == "each":
            edges = _laplacian(told) - _laplacian(target)
        else:
            edges = _laplacian(told - target)
        edges = self._charbonnier(edges).mean()
        loss = (pixels + self.edge * edges) / self.parts
        for one, name in ((pixels, "pixel_loss"), (edges, "edge_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        loss.backward()

    def _charbonnier(self, missed):
        """Differences without signs, smooth at zero."""
        if self.root == "hypot":
            return torch.hypot(missed, torch.full_like(missed, self.eps))
        return (missed.square() + (self.eps**2 if self.squares else self.eps)).sqrt()

    def _evaluate(self, model):
        """The signal-to-noise ratio of images that are restored by the average, flipped or not."""
        drawn = torch.Generator().manual_seed(25)
        with torch.no_grad() if self.grads == "no_grad" else torch.inference_mode():
            clean = _unit(digits()[0][:_SHOWN])
            noisy = clean + _LEVEL * torch.randn(clean.shape, generator=drawn)
            restored = self._flipped(model, noisy, torch.full((_SHOWN,), _LEVEL)).clamp(0, 1)
            missed = (restored - clean).square().mean((1, 2, 3))
            anchorlib.anchor(restored, "restored")
            anchorlib.anchor((-10 * missed.log10()).mean(), "psnr")

    def _flipped(self, model, noisy, levels):
        """The mean of what the net makes of images in all their flips."""
        turned = [noisy.flip(axes) for axes in _FLIPS]
        told = [self._restored(model, one, levels) for one in turned]
        if self.returns:
            told = [one.flip(axes) for one, axes in zip(told, _FLIPS, strict=True)]
        return torch.stack(told).mean(0)


def _unit(images):
    """Images (image, 1, row, column) in 0 to 1."""
    return ((images + 1) / 2).unsqueeze(1).to(torch.get_default_dtype())


def _laplacian(images):
    """By how much each pixel is brighter than its four neighbours."""
    kernel = images.new_tensor([[0.0, -1.0, 0.0], [-1.0, 4.0, -1.0], [0.0, -1.0, 0.0]])
    padded = functional.pad(images, (1, 1, 1, 1), mode="replicate")
    return functional.conv2d(padded, kernel.view(1, 1, 3, 3))


_PIXELS = ("pixel_loss@*", "loss@*", "output@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|tensors) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "targets with the inputs' noise",
        "bug",
        {"shares": True},
        ("target@value", *_PIXELS, "edge_loss@*"),
        rf"{_GIVEN}|\btargets?\b|\bSub(Backward|\b)",
    ),
    Case(
        "epsilon not squared",
        "bug",
        {"squares": False},
        (*_PIXELS, "edge_loss@*"),
        rf"\bAdd(Backward|\b)|\b[Ss]qrt|\beps|0\.001\b|1e-0?[36]\b|{_GIVEN}",
    ),
    Case("pixels summed", "bug", {"over": "sum"}, _PIXELS, rf"\bMean|\bSum(Backward|\b)|{_TIMES}"),
    Case("clamped while it learns", "bug", {"clamps": True}, ("output@*",), r"\bclamp|\bclip"),
    Case(
        "noise levels along the width",
        "bug",
        {"maps": "width"},
        ("head@value", "head.input*@value"),
        rf"\bview|reshape|expand|broadcast|\bCat|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "skip from before the ReLU",
        "bug",
        {"skips": "linear"},
        ("fuse.input*@value", "fuse.conv@value", "fuse.conv.input*@value"),
        rf"\brelu|\bCat|computes it from|{_GIVEN}",
    ),
    Case("cosine over epochs", "bug", {"period": 60}, UPDATES, r"\blr\b|T_max", step=1),
    Case("second beta of 0.999", "bug", {"betas": (0.9, 0.999)}, UPDATES, r"\bbetas?\b|0\.999"),
    Case(
        "average without running statistics",
        "bug",
        {"buffers": "first"},
        (
            "average.*running*@value",
            "average.*num_batches_tracked@value",
            "average.down.norm@value",
        ),
        r"running_|num_batches_tracked|buffers?\b|statistics",
    ),
    Case(
        "flips not undone",
        "bug",
        {"returns": False},
        ("restored@value",),
        rf"\bflip|{_ORDER}",
        step=2,
    ),
    Case("Charbonnier loss by hypot", "benign", {"root": "hypot"}),
    Case("noise for the target", "benign", {"aims": "noise"}),
    Case("Laplacian of the difference", "benign", {"edges": "difference"}),
    Case("enlarged by a shuffle", "benign", {"enlarges": "shuffle"}),
    Case("images turned", "benign", {"turned": True}),
    Case("average by torch", "benign", {"averages": "torch"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"norm": "layer"}),
    Case("skip not joined, low precision", "benign", {"joins": "sum"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*bias@value")),
    Case(
        "one noise level for the batch",
        "data",
        {"levels": "batch"},
        ("input*@value", "target@value"),
    ),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("borders reflected by hand", "equal", {"borders": "pad"}),
    Case("evaluation in inference mode", "equal", {"grads": "inference"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
