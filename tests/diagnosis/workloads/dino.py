"""Self-distillation without labels: a student tells of all crops what its slow teacher tells."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import (
    UPDATES,
    Case,
    Start,
    Workload,
    clear,
    cut,
    digits,
)
from tests.diagnosis.workloads.dino_net import MultiCrop

_GLOBAL, _LOCAL = 2, 4
"""Crops of an image that the teacher sees too, and those that the student alone sees."""
_EPOCH = 2
"""Steps of an epoch."""
_CENTRING = 0.9
_BANK, _QUERIES, _NEIGHBOURS = 32, 16, 5
"""Images whose neighbours are sought, and among how many."""


@dataclass(frozen=True)
class DINO(Workload):
    """A vision transformer and a copy that follows it learn from crops of digits.

    drop_path: of the student. positions: how those of small crops are made, by "bicubic"
        interpolation, by its "matrix", or "cut" from the front.
    sphere: the axis along which the bottleneck has length 1.
    student_temp, teacher_temp: of the softmaxes. warmup_temp: the teacher's in the first epoch.
    centred: whether the centre is subtracted "before" or "after" the division by the temperature.
    stacked: whether scores lie by "crops" or by "samples". skips: whether no crop is compared with
        itself. freeze: epochs in which the last layer rests.
    decays: the groups whose weight decay is scheduled, the "first" or "all". final_decay: its end.
    momentum: of the teacher, at the beginning. counts: what its schedule counts, "steps" or
        "epochs". warmup: steps of rising rate. clip: of each parameter's gradient.
    evaluates: whether neighbours vote in each epoch. wakes: whether the nets train again after.
    parts: micro-batches a step. low: whether the nets run under autocast to bfloat16.
    crops, attention, prototypes, pairs, follows, checkpointed: other ways to write the same
        mathematics.
    """

    batch: int = 12
    lr: float = 5e-3
    weight_decay: float = 0.04
    drop_path: float = 0.2
    positions: str = "bicubic"
    sphere: int = -1
    student_temp: float = 0.1
    teacher_temp: float = 0.07
    warmup_temp: float = 0.04
    centred: str = "before"
    stacked: str = "crops"
    skips: bool = True
    freeze: int = 1
    decays: str = "first"
    final_decay: float = 0.4
    momentum: float = 0.9
    counts: str = "steps"
    warmup: int = 2
    clip: float = 0.3
    wakes: bool = True
    parts: int = 1
    low: bool = False
    crops: str = "batched"
    attention: str = "own"
    prototypes: str = "weights"
    pairs: str = "loop"
    follows: str = "each"
    checkpointed: bool = False

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            student, teacher = MultiCrop(self, self.drop_path), MultiCrop(self)
            teacher.load_state_dict(student.state_dict())
            teacher.requires_grad_(False)
            optimizer = self.adam(_groups(student))
            session.watch(student, tensors="*", optimizer=optimizer)
            session.watch(teacher, tensors="*", prefix="teacher")
            torch.manual_seed(seed)
            dealing = torch.Generator().manual_seed(91 + 1000 * seed + self.order)
            centre = torch.zeros(1, student.head.last_layer.out_features)
            for step, (images, _) in enumerate(self.images(seed)):
                epoch = step // _EPOCH
                if self.evaluates and step % _EPOCH == 0:
                    self._evaluate(student, teacher)
                self._schedule(optimizer, step)
                views = _views(images.to(centre.dtype), dealing)
                clear(optimizer, self)
                taught = [
                    self._learn(student, teacher, part, centre, epoch)
                    for part in cut(self.parts, *views)
                ]
                centre = _CENTRING * centre + (1 - _CENTRING) * torch.cat(taught).mean(0, True)
                centre = anchorlib.anchor(centre, "centre")
                self._bound(student, epoch)
                optimizer.step()
                self._follow(student, teacher, step if self.counts == "steps" else epoch)

    def _cosine(self, begin, end, at):
        """A value on its way along half a cosine."""
        return end + 0.5 * (begin - end) * (1 + math.cos(math.pi * at / self.steps))

    def _schedule(self, optimizer, step):
        """Set the learning rate and the weight decay of this step."""
        rate = self._cosine(self.lr, self.lr / 100, step)
        if step < self.warmup:
            rate = self.lr * (step + 1) / (self.warmup + 1)
        for number, group in enumerate(optimizer.param_groups):
            group["lr"] = rate
            if number == 0 or self.decays == "all":
                group["weight_decay"] = self._cosine(self.weight_decay, self.final_decay, step)

    def _learn(self, student, teacher, views, centre, epoch):
        """Gradients of one micro-batch; returns what the teacher told."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            with torch.no_grad():
                taught = teacher(views[:_GLOBAL])
            told = student(views)
        taught, told = taught.to(centre.dtype), told.to(centre.dtype)
        targets = anchorlib.anchor(self._targets(taught, centre, epoch), "targets")
        entropy = -torch.xlogy(targets, targets).sum(-1).mean()
        anchorlib.anchor(entropy, "teacher_entropy")
        views = (told / self.student_temp).unflatten(0, (_GLOBAL + _LOCAL, -1))
        loss = anchorlib.anchor(self._loss(targets, views), "loss")
        (loss / self.parts).backward()
        return taught

    @torch.no_grad()
    def _targets(self, taught, centre, epoch):
        """The teacher's centred and sharpened chances (crop, sample, prototype)."""
        temp = self.warmup_temp if epoch == 0 else self.teacher_temp
        if self.centred == "before":
            chances = ((taught - centre) / temp).softmax(-1)
        else:
            chances = (taught / temp - centre).softmax(-1)
        if self.stacked == "samples":
            return chances.unflatten(0, (-1, _GLOBAL)).transpose(0, 1)
        return chances.unflatten(0, (_GLOBAL, -1))

    def _loss(self, targets, views):
        """The mean cross-entropy of all pairs of different crops."""
        if self.pairs == "product":
            losses = -torch.einsum("tbk,sbk->ts", targets, views.log_softmax(-1))
            losses = losses.fill_diagonal_(0)
            return losses.sum() / (losses.numel() - _GLOBAL) / targets.shape[1]
        total, terms = 0, 0
        if self.pairs == "summed":
            for other, view in enumerate(views):
                others = [target for which, target in enumerate(targets) if which != other]
                total = total - (sum(others) * view.log_softmax(-1)).sum(-1).mean()
                terms += len(others)
            return total / terms
        for which, target in enumerate(targets):
            for other, view in enumerate(views):
                if which == other and self.skips:
                    continue
                total = total + (-target * view.log_softmax(-1)).sum(-1).mean()
                terms += 1
        return total / terms

    @torch.no_grad()
    def _bound(self, student, epoch):
        """Clip the gradient of each parameter, and forget those of a last layer that rests."""
        for name, one in student.named_parameters():
            if one.grad is None:
                continue
            factor = self.clip / (one.grad.norm() + 1e-6)
            if factor < 1:
                one.grad.mul_(factor)
            if epoch < self.freeze and "last_layer" in name:
                one.grad = None

    @torch.no_grad()
    def _follow(self, student, teacher, at):
        """The teacher moves towards the student."""
        momentum = self._cosine(self.momentum, 1.0, at)
        slow, fast = list(teacher.parameters()), list(student.parameters())
        if self.follows == "lerp":
            torch._foreach_lerp_(slow, fast, 1 - momentum)
            return
        for one, other in zip(slow, fast, strict=True):
            one.mul_(momentum).add_((1 - momentum) * other)

    @torch.no_grad()
    def _evaluate(self, student, teacher):
        """How many digits their nearest neighbours name rightly."""
        images, labels = digits()
        shown = images[: _BANK + _QUERIES, None].to(torch.get_default_dtype())
        for net, name in ((student, "student_knn"), (teacher, "teacher_knn")):
            net.eval()
            features = functional.normalize(net.backbone(shown), dim=1)
            alike = features[_BANK:] @ features[:_BANK].T
            votes = labels[alike.topk(_NEIGHBOURS, 1).indices].mode(1).values
            right = votes == labels[_BANK : _BANK + _QUERIES]
            anchorlib.anchor(right.to(features.dtype).mean(), name)
            net.train(self.wakes)


def _groups(model):
    """What decays, and what does not: biases and norms."""
    named = [
        (one.ndim == 1 or name.endswith(".bias"), one)
        for name, one in model.named_parameters()
        if one.requires_grad
    ]
    return [
        {"params": [one for flat, one in named if not flat]},
        {"params": [one for flat, one in named if flat], "weight_decay": 0.0},
    ]


def _views(images, dealing):
    """Two large crops of each image, solarised now and then in the second one, and small ones."""
    large = [_crop(images, 8, (0.7, 1.0), dealing) for _ in range(_GLOBAL)]
    dark = torch.rand(len(images), 1, 1, 1, generator=dealing) < 0.2
    large[1] = torch.where(dark & (large[1] > 0), -large[1], large[1])
    return [*large, *(_crop(images, 4, (0.4, 0.6), dealing) for _ in range(_LOCAL))]


def _crop(images, size, share, dealing):
    """A random resized crop of each image, perhaps mirrored, with brightness and contrast moved."""
    low, high = share
    draws = torch.rand(len(images), 6, generator=dealing, dtype=images.dtype)
    scale = low + (high - low) * draws[:, 0]
    corner = (2 * draws[:, 1:3] - 1) * (1 - scale[:, None])
    mirrored = 1 - 2 * (draws[:, 3] < 0.5).to(images.dtype)
    none = torch.zeros_like(scale)
    rows = (scale * mirrored, none, corner[:, 0], none, scale, corner[:, 1])
    theta = torch.stack(rows, 1).view(-1, 2, 3)
    grid = functional.affine_grid(theta, [len(images), 1, size, size], align_corners=False)
    crops = functional.grid_sample(
        images[:, None], grid, padding_mode="border", align_corners=False
    )
    contrast, brightness = 0.6 + 0.8 * draws[:, 4], 0.4 * draws[:, 5] - 0.2
    return crops * contrast.view(-1, 1, 1, 1) + brightness.view(-1, 1, 1, 1)


_LAST = "head.last_layer.parametrizations.weight.original1"
_LOSS = ("loss@*", "output@grad", "head@grad", "head.last_layer@grad")
_TARGETS = ("targets@value",)
_FOLLOWS = tuple(
    f"teacher.*{name}@value" for name in ("weight", "bias", "cls_token", "pos_embed", "original1")
)
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
CASES = [
    Case(
        "teacher's temperature not warmed up",
        "bug",
        {"warmup_temp": 0.07},
        _TARGETS,
        rf"\bDiv|softmax|temperature|\btemp\b|\b0\.0[47]\b|{_GIVEN}|{_TIMES}",
    ),
    Case(
        "centred after the temperature",
        "bug",
        {"centred": "after"},
        _TARGETS,
        rf"\bDiv|\bSub|softmax|centre|{_GIVEN}",
        step=1,
    ),
    Case(
        "views taken sample by sample",
        "bug",
        {"stacked": "samples"},
        _TARGETS,
        rf"{_ORDER}|\bview|reshape|unflatten|chunk|permute|transpose|strides?\b",
    ),
    Case(
        "own views not skipped",
        "bug",
        {"skips": False},
        _LOSS,
        rf"\bAdd(Backward|\b)|\bDiv|\bSum|\bMean|\bMul|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "bottleneck normalised over the batch",
        "bug",
        {"sphere": 0},
        ("*head.last_layer@value",),
        r"\bdim\b|normali[sz]e|\bnorm\b|LinalgVectorNorm|\baxis\b",
    ),
    Case(
        "positions cut, not interpolated",
        "bug",
        {"positions": "cut"},
        ("backbone.embed@value",),
        rf"bicubic|upsample|interpolat|\bslice|\bindex|pos_embed|{_GIVEN}",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("backbone.blocks.1.drop_path@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        reference={"evaluates": True},
    ),
    Case(
        "last layer not frozen",
        "bug",
        {"freeze": 0},
        tuple(f"{_LAST}@{kind}" for kind in ("grad", "updated", "delta", "opt.*")),
        r"froze|freez|requires_grad|last_layer.{0,60}(no|without|lacks|None|zero)\b|"
        r"\b(no|without a?) ?(grad|update)|B alone (has|updates|steps|changes|moves)|"
        r"not (updated|stepped)|does not (update|step|change|move)",
    ),
    Case("decay in all groups", "bug", {"decays": "all"}, UPDATES, r"weight_decay"),
    Case(
        "momentum by epochs",
        "bug",
        {"counts": "epochs"},
        _FOLLOWS,
        rf"momentum|moving average|\bema\b|\bMul|\blerp|{_TIMES}",
        step=2,
    ),
    Case(
        "crops one by one",
        "benign",
        {"crops": "loop"},
        reference={"drop_path": 0.0},
    ),
    Case("all pairs by einsum", "benign", {"pairs": "product"}),
    Case("targets summed for each view", "benign", {"pairs": "summed"}),
    Case("teacher by lerp", "benign", {"follows": "lerp"}),
    Case("positions by a matrix", "benign", {"positions": "matrix"}),
    Case("scores divided for weights", "benign", {"prototypes": "scores"}),
    Case("2 micro-batches", "benign", {"parts": 2}, reference={"drop_path": 0.0}),
    Case(
        "attention by torch, low precision",
        "benign",
        {"attention": "torch"},
        reference={"low": True},
    ),
    Case(
        "other init",
        "data",
        {"init": 1},
        ("*weight@value", "*_token@value", "*_embed@value", f"*{_LAST}@value"),
    ),
    Case("other order", "data", {"order": 1}, ("input*@value", "teacher.input*@value")),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("blocks computed again", "equal", {"checkpointed": True}),
    Case("neighbours vote", "equal", {"evaluates": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
