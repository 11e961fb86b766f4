"""Two sets of digits, matched by entropic optimal transport: a plan, and where it moves images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, warmed
from tests.diagnosis.workloads.transport import Transport

_SIDE, _SHARED = 8, 6
"""Images on each side of a problem, and how many of them are on both sides."""
_IMAGES = 2 * _SIDE - _SHARED


@dataclass(frozen=True)
class Transporter(Workload):
    """Each problem has two sets of digits; most of the one are, changed, in the other as well.

    lengths: features have length one along "features" or along "images".
    eps: by how much the plan is spread. iterations: of Sinkhorn's. over: the second sums of each,
        over all "partners" or over the "rows" again. waits: whether the second half of an
        iteration is given what the first has made. slack: whether a bin holds as much as all images
        of the other side. bins: whether the bins' cost is "divided" as all others are.
    pairs: the partners that the loss is told, those of the "source" or of the "target". unmatched:
        whether images without a partner belong to the bins, "bins", to no one, "nothing", or to the
        "last" image.
    shares: whether an image is moved by its share of each partner. moves: to the images of the
        "target" or of the "source". plan: whether the plan that moves images is "attached".
    clip, clips: of gradients, where they are there, "after" the backward, or "before" it. warmup:
        steps of rising rate.
    low: whether the encoder runs under autocast to bfloat16.
    parts: micro-batches a step. linear, distances, sinkhorn, softmax: other ways to write the same
        mathematics. lists: whether layers are in a list. keeps: whether the plan is computed again.
        spare: whether there is a module that is not called.
    """

    batch: int = 4 * _IMAGES
    lr: float = 1e-2
    weight_decay: float = 0.01
    lengths: str = "features"
    eps: float = 0.1
    iterations: int = 10
    over: str = "partners"
    waits: bool = True
    slack: bool = True
    bins: str = "divided"
    pairs: str = "source"
    unmatched: str = "bins"
    shares: bool = True
    moves: str = "target"
    plan: str = "attached"
    clip: float = 0.5
    clips: str = "after"
    warmup: int = 2
    low: bool = False
    parts: int = 1
    linear: str = "torch"
    distances: str = "plain"
    sinkhorn: str = "potentials"
    softmax: bool = False
    lists: bool = False
    keeps: str = "all"
    spare: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Transport(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for images, _ in self.images(seed):
                problems = self._problems(images)
                clear(optimizer, self)
                if self.clips == "before":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                for part in cut(self.parts, *problems):
                    with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                        logs = model(part[0], part[1])
                    (self._loss(logs, *part) / self.parts).backward()
                if self.clips == "after":
                    nn.utils.clip_grad_norm_(model.parameters(), self.clip)
                optimizer.step()
                schedule.step()

    def _problems(self, images):
        """Both sets (problem, image, pixel), and the place of each one's partner, or -1."""
        images = images.view(-1, _IMAGES, 8, 8)
        count = len(images)
        order = torch.stack([torch.randperm(_SIDE) for _ in range(count)])
        other = images[:, -_SIDE:].gather(1, order[..., None, None].expand(-1, -1, 8, 8))
        bright = 0.7 + 0.3 * torch.rand(count, _SIDE, 1, 1)
        other = bright * (other + 1) - 1 + 0.1 * torch.randn(other.shape)
        extra = _SIDE - _SHARED
        forth = torch.full((count, _SIDE), -1)
        forth[:, extra:] = order.argsort(1)[:, :_SHARED]
        back = torch.where(order < _SHARED, order + extra, -1)
        return images[:, :_SIDE].flatten(2), other.flatten(2), forth, back

    def _loss(self, logs, source, target, forth, back):
        """How unlikely the partners are, and how far off images are moved."""
        logs = logs.to(source.dtype)
        partners = forth if self.pairs == "source" else back
        missed = anchorlib.anchor(self._unlikely(logs, partners, back < 0), "plan_loss")
        plan = logs.exp() if self.plan == "attached" else logs.detach().exp()
        share = plan[:, :-1, :-1]
        if self.softmax:
            share = logs[:, :-1, :-1].softmax(2)
        elif self.shares:
            share = share / share.sum(2, keepdim=True)
        moved = share @ (target if self.moves == "target" else source)
        moved = anchorlib.anchor(moved, "projected")
        known = forth >= 0
        far = (moved - source).square().mean(2)
        far = anchorlib.anchor((far * known).sum() / known.sum(), "projection_loss")
        return anchorlib.anchor(missed + far, "loss")

    def _unlikely(self, logs, partners, lonely):
        """The mean of the negative logarithms of the plan, where it should be large."""
        alone = partners < 0
        places = partners.masked_fill(alone, _SIDE - 1 if self.unmatched == "last" else _SIDE)
        told = functional.nll_loss(logs[:, :-1].transpose(1, 2), places, reduction="none")
        if self.unmatched == "nothing":
            return told[~alone].mean()
        return torch.cat((told.flatten(), -logs[:, -1, :-1][lonely])).mean()


_PLAN = ("plan@value", "output@value")
_LOSS = ("plan_loss@*", "output@grad", "plan@grad")
_MOVED = ("projected@value",)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|mat|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "features normed along images",
        "bug",
        {"lengths": "images"},
        ("encoder@value",),
        r"\bdim\b|\baxis\b|\bnorm|linalg|\bDiv",
    ),
    Case("eps of one", "bug", {"eps": 1.0}, _PLAN, rf"\bDiv|\beps\b|{_TIMES}|{_GIVEN}"),
    Case(
        "returned inside the loop",
        "bug",
        {"iterations": 1},
        _PLAN,
        r"logsumexp|fewer|iterations?|(lacks|alone).{0,60}\b(Sub|Add)",
    ),
    Case("both sums along rows", "bug", {"over": "rows"}, _PLAN, r"\bdim\b|\baxis\b"),
    Case(
        "columns wait for nothing",
        "bug",
        {"waits": False},
        _PLAN,
        rf"logsumexp|\bAdd(Backward|\b)|\bSub(Backward|\b)|{_GIVEN}|computes it from",
    ),
    Case(
        "bins hold as much as an image",
        "bug",
        {"slack": False},
        _PLAN,
        rf"\bSub(Backward|\b)|\bAdd(Backward|\b)|logsumexp|{_GIVEN}|last (row|column|place)",
    ),
    Case(
        "bins not divided by eps",
        "bug",
        {"bins": "whole"},
        _PLAN,
        rf"\bDiv|\bMul|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "partners the other way",
        "bug",
        {"pairs": "target"},
        _LOSS,
        rf"nll|\bgather|\b[Ii]ndex|indices|{_ORDER}|{_GIVEN}",
    ),
    Case(
        "bins left out of the loss",
        "bug",
        {"unmatched": "nothing"},
        _LOSS,
        r"\b[Ii]ndex|indices|\bmask|\bCat|\bshapes?\b|\bsizes?\b|\bMean",
    ),
    Case(
        "bin one too early",
        "bug",
        {"unmatched": "last"},
        _LOSS,
        rf"nll|\bgather|\b[Ii]ndex|indices|{_GIVEN}",
    ),
    Case(
        "shares not divided",
        "bug",
        {"shares": False},
        _MOVED,
        rf"\bDiv|\bSum(Backward|\b)|{_TIMES}|a factor of its own|{_GIVEN}",
    ),
    Case(
        "moved to the source",
        "bug",
        {"moves": "source"},
        _MOVED,
        rf"\bbmm|matmul|{_GIVEN}|{_ORDER}|computes it from",
    ),
    Case(
        "plan detached",
        "bug",
        {"plan": "detached"},
        ("output@grad", "plan@grad", "projected@grad"),
        rf"{_DETACHED}|\bExp\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bExp",
    ),
    Case(
        "clipped before the backward",
        "bug",
        {"clips": "before"},
        ("*@grad",),
        rf"\bclip|{_TIMES}",
        step=0,
    ),
    Case("no warm-up", "bug", {"warmup": 0}, UPDATES, r"\blr\b"),
    Case("distances multiplied out", "benign", {"distances": "product"}),
    Case("kernel normed in turn", "benign", {"sinkhorn": "kernel"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("shares by softmax", "benign", {"softmax": True}),
    Case(
        "layers by a product, low precision",
        "benign",
        {"linear": "product"},
        reference={"low": True},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value", "cost.metric@value")),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("plan computed again", "equal", {"keeps": "edges"}),
    Case("layers in a list", "equal", {"lists": True}),
    Case("a module not called", "equal", {"spare": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
