"""A classifier of digits that is an energy-based model too: Langevin samples are its negatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits
from tests.diagnosis.workloads.energies_net import Buffer, Classifier, uniform

_REMEMBERED = 24
_SHOWN = 12
"""Images that the evaluation sees."""


@dataclass(frozen=True)
class Energies(Workload):
    """Energies of real images fall and those of samples rise, while labels are learnt.

    blur: the noise on real images. langevin: steps of a chain. stride, shake: how far a step goes
        by the gradient, and by noise. limit: of each gradient. fresh: the share of chains that
        begin anew.
    over: the axis of energies' sums, 1: of classes. normed: whether gradients reach the singular
        values, "attached" or "detached".
    climbs: whether chains go up. attached: whether losses reach back through chains. mode: the
        model's while it samples, "eval" or "train". keeps: what the buffer is given, the "ends" of
        chains or their "starts".
    slopes: how chains get gradients, by "grad", or by "backward", which leaves parameters'
        gradients behind. clears: whether gradients are forgotten "after" sampling or "before".
    alpha: the weight of the penalty. squares: whether "each" energy is squared or the "mean".
    warmup: steps of rising rate. counts: the number of the first of them. clip: of gradients.
    sigma: of weights, by the "power" method, "exact", or of the "gram" matrix.
    divides, energy, classes, contrast, moves, passes, held, summed: other ways to write the same
        mathematics.
    """

    steps: int = 5
    batch: int = 12
    lr: float = 5e-3
    betas: tuple[float, float] = (0.0, 0.999)
    weight_decay: float = 0.0
    decoupled: bool = False
    blur: float = 0.03
    langevin: int = 3
    stride: float = 10.0
    shake: float = 0.01
    limit: float = 0.03
    fresh: float = 0.05
    over: int = 1
    normed: str = "attached"
    climbs: bool = False
    attached: bool = False
    mode: str = "eval"
    keeps: str = "ends"
    slopes: str = "grad"
    clears: str = "after"
    alpha: float = 0.1
    squares: str = "each"
    warmup: int = 3
    counts: int = 1
    clip: float = 1.0
    sigma: str = "power"
    divides: str = "weight"
    energy: str = "torch"
    classes: str = "torch"
    contrast: str = "means"
    moves: str = "plain"
    passes: str = "joined"
    held: str = "tensor"
    summed: bool = True

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Classifier(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: min(1.0, (step + self.counts) / self.warmup)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            buffer, nothing = Buffer(self, _REMEMBERED), uniform(_SHOWN)
            shown = _images(digits()[0][:_SHOWN])
            for step, (drawn, labels) in enumerate(self.images(seed)):
                if step % 2 == 0:
                    self._evaluate(model, shown, nothing)
                images = _images(drawn)
                real = images + self.blur * self._dealt(torch.randn_like(images))
                if self.clears == "before":
                    clear(optimizer, self)
                fake = anchorlib.anchor(self._sampled(model, buffer), "negatives")
                if self.clears == "after":
                    clear(optimizer, self)
                self._losses(*self._told(model, real, fake), labels).backward()
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _dealt(self, drawn):
        """What was drawn for each sample, in the order of the samples."""
        return drawn.flip(0) if self.turned else drawn

    @torch.no_grad()
    def _evaluate(self, model, shown, nothing):
        """By how much the energies of noise exceed those of digits."""
        model.eval()
        gap = model(nothing)[0].mean() - model(shown)[0].mean()
        anchorlib.anchor(gap, "eval_gap")
        model.train()

    def _sampled(self, model, buffer):
        """The ends of chains that begin in the buffer, or now and then anew."""
        places = self._dealt(torch.randperm(len(buffer))[: self.batch])
        anew = self._dealt(torch.rand(self.batch) < self.fresh)[:, None, None, None]
        starts = torch.where(anew, self._dealt(uniform(self.batch)), buffer.read(places))
        model.train(self.mode == "train")
        x = starts.clone().requires_grad_()
        for _ in range(self.langevin):
            slope = self._slope(model, x)
            x = self._moved(x if self.attached else x.detach(), slope)
            x = x if self.attached else x.requires_grad_()
        model.train()
        buffer.write(places, x.detach() if self.keeps == "ends" else starts)
        return x if self.attached else x.detach()

    def _slope(self, model, x):
        """The gradient of energies by images."""
        energy, _ = model(x)
        if self.slopes == "backward":
            energy.sum().backward()
            return x.grad
        if self.summed:
            return torch.autograd.grad(energy.sum(), x, create_graph=self.attached)[0]
        return torch.autograd.grad(energy, x, torch.ones_like(energy))[0]

    def _moved(self, x, slope):
        """One step of Langevin dynamics, which stays within the range of images."""
        noise = self._dealt(torch.randn_like(x))
        stride = -self.stride if self.climbs else self.stride
        if self.moves == "plain":
            slope = slope.clamp(-self.limit, self.limit)
            return (x - stride * slope + self.shake * noise).clamp(-1, 1)
        far = stride * self.limit
        x = x.add(noise, alpha=self.shake).sub_(slope.mul(stride).clamp_(-far, far))
        return x.clamp_(-1, 1)

    def _told(self, model, real, fake):
        """Energies and logits, of real images before those of samples."""
        if self.passes == "joined":
            return model(torch.cat((real, fake)))
        told = model(real), model(fake)
        return tuple(torch.cat(parts) for parts in zip(*told, strict=True))

    def _losses(self, energies, logits, labels):
        """The loss, the sum of three."""
        real, fake = energies.chunk(2)
        named = self._named(logits[: len(labels)], labels)
        if self.contrast == "means":
            parted = real.mean() - fake.mean()
        else:
            signs = torch.ones_like(energies)
            signs[len(real) :] = -1
            parted = (signs * energies).sum() / len(real)
        penalty = self.alpha * self._squared(real, fake)
        loss = parted + named + penalty
        for one, name in (
            (parted, "contrast"),
            (named, "class_loss"),
            (penalty, "penalty"),
            (loss, "loss"),
        ):
            anchorlib.anchor(one, name)
        return loss

    def _squared(self, real, fake):
        """What keeps energies near zero, as the contrast knows no scale."""
        if self.squares == "mean":
            return real.mean().square() + fake.mean().square()
        if self.contrast == "means":
            return (real.square() + fake.square()).mean()
        energies = torch.cat((real, fake))
        return 2 * functional.mse_loss(energies, torch.zeros_like(energies))

    def _named(self, logits, labels):
        """The cross entropy."""
        if self.classes == "torch":
            return functional.cross_entropy(logits, labels)
        return (logits.logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]).mean()


def _images(images):
    """Images with an axis of channels, in the type that the training computes in."""
    return images[:, None].to(torch.get_default_dtype())


_NEXT = ("input*@value", "negatives@value")
"""What a step of a chain makes: the input of the next forward, or the end of the chain."""
_WEIGHTS = ("*weight@grad", "*weight@pass_grad", "*bias@grad", "*bias@pass_grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "energies over the batch",
        "bug",
        {"over": 0},
        ("energy@value", "output@value"),
        r"\bdim\b|\bshapes?\b|\bsizes?\b",
    ),
    Case(
        "chains climb",
        "bug",
        {"climbs": True},
        _NEXT,
        rf"other sign|\bSub|\bAdd|\balpha\b|\bMul|{_TIMES}",
    ),
    Case(
        "negatives not detached",
        "bug",
        {"attached": True},
        ("negatives@*", "input*@*grad", "*@grad", "*@pass_grad"),
        rf"{_DETACHED}|create_graph|second derivative|requires_grad",
    ),
    Case(
        "gradients of sampling left behind",
        "bug",
        {"clears": "before"},
        _WEIGHTS,
        r"zero_grad|accumulat|set_to_none|left over|not (cleared|zeroed)|earlier pass|\bsum of",
        reference={"slopes": "backward"},
    ),
    Case(
        "samples not put back",
        "bug",
        {"keeps": "starts"},
        _NEXT,
        r"negatives|\bstale|earlier step|stays|put back|\bbuffer\b|index_put",
        step=1,
    ),
    Case(
        "penalty of the mean energy",
        "bug",
        {"squares": "mean"},
        ("penalty@*",),
        r"\bPow|\bSquare|\bMean|exponent",
    ),
    Case(
        "singular values detached",
        "bug",
        {"normed": "detached"},
        ("*weight@grad", "*weight@pass_grad"),
        rf"{_DETACHED}|(lacks|alone|without).{{0,60}}\b(Dot|Div|Mv)|\b(Dot|Div|Mv)\w* .{{0,60}}"
        r"(lacks|alone)",
    ),
    Case(
        "sampled in training mode",
        "bug",
        {"mode": "train"},
        ("*stem.u@*", "*stem.v@*", "stem@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case(
        "warm-up counts from zero",
        "bug",
        {"counts": 0},
        UPDATES,
        r"\blr\b",
    ),
    Case("energies by shifted exponentials", "benign", {"energy": "own"}),
    Case("cross entropy by logsumexp", "benign", {"classes": "own"}),
    Case("contrast by signs, penalty by mse", "benign", {"contrast": "signs"}),
    Case("outputs divided for weights", "benign", {"divides": "output"}),
    Case("chains moved in place", "benign", {"moves": "in place"}),
    Case(
        "real and fake in passes of their own",
        "benign",
        {"passes": "apart"},
        reference={"sigma": "exact"},
    ),
    Case(
        "singular values of the Gram matrix",
        "benign",
        {"sigma": "gram"},
        reference={"sigma": "exact"},
    ),
    Case("samples turned", "benign", {"turned": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value", "*.u@value", "*.v@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("buffer as a list", "equal", {"held": "list"}),
    Case("slopes of ones", "equal", {"summed": False}),
    Case("died", "incomplete", {"ends_at": 3}),
]
