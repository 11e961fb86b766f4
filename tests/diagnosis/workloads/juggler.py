"""Three tasks on digits at once, weighted by what is learnt, their gradients free of conflict."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
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
    warmed,
)

_TASKS = ("digit", "ink", "mirror")
_CHANNELS, _WIDTH, _HIDDEN = 8, 24, 12
_SHOWN = 12
"""Images that the evaluation sees."""


@dataclass(frozen=True)
class Juggler(Workload):
    """Which digit, how much ink, and mirrored or not: a trunk that is shared, and three heads.

    pool: the "mean" of four places or the largest, "max".
    dropout: of the heads. flows: whether the ink's head has gradients for the trunk.
    doubled: whether the softmax is taken before the loss takes it again. over: the ink's loss is
        a "mean" or a "sum". smoothing: of the digits.
    sign: of the logarithms of variances in the losses' weights. pays: how much of these
        logarithms is added.
    parts: micro-batches a step. clears: whether the heads' gradients are cleared before each
        "step" or each "part".
    conflict: gradients are projected where their product is "below" zero or "above" it. onto:
        they are projected onto the "given" gradients or onto those "left" by projection. length:
        the power of the length that projections are divided by.
    uncertain_decay: whether the logarithms of variances decay. schedules: the rate changes each
        "step" or "part". warmup: steps of rising rate.
    wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    convolution, norming, pooling, first, drops, solid, digit, mirror, weighing, dots: other
        ways to write the same mathematics.
    """

    lr: float = 5e-3
    weight_decay: float = 0.1
    pool: str = "mean"
    dropout: float = 0.1
    flows: bool = True
    doubled: bool = False
    over: str = "mean"
    smoothing: float = 0.0
    sign: float = -1.0
    pays: float = 0.5
    parts: int = 2
    clears: str = "step"
    conflict: str = "below"
    onto: str = "given"
    length: int = 2
    uncertain_decay: bool = False
    schedules: str = "step"
    warmup: int = 3
    wakes: bool = True
    low: bool = False
    convolution: str = "torch"
    norming: str = "torch"
    pooling: str = "torch"
    first: str = "apart"
    drops: str = "torch"
    solid: bool = False
    digit: str = "torch"
    mirror: str = "torch"
    weighing: str = "times"
    dots: str = "whole"

    @property
    def eps_of_noise(self) -> str:
        """What noise runs are perturbed by: the coarsest type that the training computes in."""
        return "bfloat16" if self.low else "float32"

    def train(self, start: Start, seed: int) -> None:
        """Record the training."""
        with start() as session:
            self.draw(seed)
            model = Net(self)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            images, labels = (part[:_SHOWN] for part in digits())
            shown = _wanted(images, labels, torch.arange(_SHOWN) % 3 > 0)
            for step, (images, labels) in enumerate(self.images(seed)):
                if step % 3 == 0:
                    self._evaluate(model, shown)
                mirrored = torch.rand(self.batch) < 0.5
                mirrored = mirrored.flip(0) if self.turned else mirrored
                clear(optimizer, self)
                found = 0
                for part in cut(self.parts, *_wanted(images, labels, mirrored)):
                    if self.clears == "part":
                        clear(optimizer, self)
                    found = found + self._learn(model, part)
                    if self.schedules == "part":
                        schedule.step()
                self._share(model, found)
                optimizer.step()
                if self.schedules == "step":
                    schedule.step()

    def _groups(self, model):
        """The net, and the logarithms of variances."""
        spreads = list(model.weigh.parameters())
        net = [*model.trunk.parameters(), *model.heads.parameters()]
        decay = self.weight_decay if self.uncertain_decay else 0.0
        return [{"params": net}, {"params": spreads, "weight_decay": decay}]

    @torch.no_grad()
    def _evaluate(self, model, shown):
        """The losses of images that are not learnt from."""
        model.eval()
        anchorlib.anchor(self._losses(self._told(model, shown), shown).sum(), "eval_loss")
        model.train(self.wakes)

    def _told(self, model, part):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(part[0])
        return [one.to(part[0].dtype) for one in told]

    def _losses(self, told, part):
        """The loss of each task (task)."""
        _, labels, ink, mirrored = part
        logits, amount, turned = told
        logits = logits.softmax(1) if self.doubled else logits
        if self.digit == "torch":
            named = functional.cross_entropy(logits, labels, label_smoothing=self.smoothing)
        else:
            named = (logits.logsumexp(1) - logits.gather(1, labels[:, None])[:, 0]).mean()
        inked = functional.mse_loss(amount[:, 0], ink, reduction=self.over)
        turned = turned[:, 0]
        if self.mirror == "torch":
            seen = functional.binary_cross_entropy_with_logits(turned, mirrored)
        else:
            seen = functional.softplus((1 - 2 * mirrored) * turned).mean()
        losses = torch.stack((named, inked, seen))
        for one, task in zip(losses, _TASKS, strict=True):
            anchorlib.anchor(one, f"{task}_loss")
        return losses

    def _learn(self, model, part):
        """Add up the heads' gradients of one micro-batch; return the trunk's (task, number)."""
        shared = list(model.trunk.parameters())
        own = [*model.heads.parameters(), *model.weigh.parameters()]
        costs = model.weigh(self._losses(self._told(model, part), part)) / self.parts
        loss = anchorlib.anchor(costs.sum(), "loss")
        loss.backward(inputs=own, retain_graph=True)
        found = []
        for cost in costs:
            grads = torch.autograd.grad(cost, shared, retain_graph=True, materialize_grads=True)
            found.append(torch.cat([grad.flatten() for grad in grads]))
        return torch.stack(found)

    @torch.no_grad()
    def _share(self, model, found):
        """Give the trunk the sum of the tasks' gradients, without what stands against another."""
        anchorlib.anchor(found, "tasks")
        shared = list(model.trunk.parameters())
        sizes = [one.numel() for one in shared]
        if self.dots == "products":
            moved = self._by_products(found)
        else:
            moved = self._projected(found, sizes)
        anchorlib.anchor(moved, "agreed")
        for one, grad in zip(shared, moved.split(sizes), strict=True):
            one.grad = grad.view_as(one).clone()

    def _projected(self, found, sizes):
        """The sum of what projections leave of each task's gradient."""
        left = list(found)
        for at in range(len(found)):
            for to in range(len(found)):
                other = found[to] if self.onto == "given" else left[to]
                dot = self._dot(left[at], other, sizes)
                if at != to and (dot < 0 if self.conflict == "below" else dot > 0):
                    length = self._dot(other, other, sizes) ** (self.length / 2)
                    left[at] = left[at] - dot / length * other
        return torch.stack(left).sum(0)

    def _dot(self, one, other, sizes):
        """The product of two gradients, at once or parameter by parameter."""
        if self.dots == "whole":
            return one @ other
        return sum(a.dot(b) for a, b in zip(one.split(sizes), other.split(sizes), strict=True))

    def _by_products(self, found):
        """The same sum, of which all that is needed are the products of the gradients."""
        products = found @ found.mT
        shares = torch.eye(len(found), dtype=found.dtype)
        for at in range(len(found)):
            for to in range(len(found)):
                dot = shares[at] @ products[to]
                if at != to and dot < 0:
                    shares[at, to] -= dot / products[to, to]
        return shares.sum(0) @ found


def _wanted(images, labels, mirrored):
    """Images, some of them mirrored, and what each task should tell."""
    ink = (images.mean((1, 2)) + 0.39) / 0.055
    images = torch.where(mirrored[:, None, None], images.flip(2), images)
    return images[:, None], labels, ink, mirrored.to(images.dtype)


class Conv(nn.Conv2d):
    """A 3 × 3 convolution, torch's or as a product with patches."""

    def __init__(self, how, into: int, out: int) -> None:
        super().__init__(into, out, 3, padding=1, bias=False)
        self.how = how

    def forward(self, x):
        """The convolution."""
        if self.how.convolution == "torch":
            return super().forward(x)
        patches = functional.unfold(x, 3, padding=1)
        return (self.weight.flatten(1) @ patches).unflatten(2, x.shape[2:])


class Norm(nn.GroupNorm):
    """A norm of two groups of channels, torch's or by its formula."""

    def __init__(self, how) -> None:
        super().__init__(2, _CHANNELS)
        self.how = how

    def forward(self, x):
        """x, normed."""
        x = x.to(self.weight.dtype)
        if self.how.norming == "torch":
            return super().forward(x)
        parts = x.unflatten(1, (self.num_groups, -1))
        spread, mean = torch.var_mean(parts, (2, 3, 4), correction=0, keepdim=True)
        x = ((parts - mean) * (spread + self.eps).rsqrt()).flatten(1, 2)
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class Pool(nn.Module):
    """One place for four."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def forward(self, x):
        """x, of half the size."""
        if self.how.pool == "max":
            return functional.max_pool2d(x, 2)
        if self.how.pooling == "torch":
            return functional.avg_pool2d(x, 2)
        return x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5))


class Trunk(nn.Module):
    """Features that all tasks share."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.conv1, self.conv2 = Conv(how, 1, _CHANNELS), Conv(how, _CHANNELS, _CHANNELS)
        self.norm1, self.norm2 = Norm(how), Norm(how)
        self.pool1, self.pool2 = Pool(how), Pool(how)
        self.out = nn.Linear(4 * _CHANNELS, _WIDTH)

    def forward(self, x):
        """The features of images (image, 1, 8, 8)."""
        x = self.pool1(functional.silu(self.norm1(self.conv1(x))))
        x = x.contiguous().clone() if self.how.solid else x
        x = self.pool2(functional.silu(self.norm2(self.conv2(x))))
        return functional.silu(self.out(x.flatten(1)))


class Drop(nn.Dropout):
    """Dropout, torch's or none."""

    def __init__(self, how) -> None:
        super().__init__(how.dropout)
        self.how = how

    def forward(self, x):
        """x, some of it dropped."""
        return super().forward(x) if self.how.drops == "torch" else x


class Head(nn.Module):
    """What one task tells."""

    def __init__(self, how, count: int) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(_WIDTH, _HIDDEN), nn.Linear(_HIDDEN, count)
        self.drop = Drop(how)

    def forward(self, x, given=None):
        """The task's numbers; given: the hidden layer's, if they are known."""
        x = torch.tanh(self.hidden(x) if given is None else given)
        return self.out(self.drop(x))


class Weigh(nn.Module):
    """Losses by learnt uncertainties: the logarithm of a variance for each."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.spreads = nn.Parameter(torch.tensor([0.5, 0.3, -0.4]))

    def forward(self, losses):
        """The weighted losses, with what uncertainty costs (task)."""
        halves = torch.tensor([1.0, 0.5, 1.0])
        if self.how.weighing == "times":
            weighted = losses * halves * torch.exp(self.how.sign * self.spreads)
        else:
            weighted = losses * halves / self.spreads.exp()
        return weighted + self.how.pays * self.spreads


class Net(nn.Module):
    """A trunk with a head for each task."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.trunk = Trunk(how)
        sizes = {"digit": 10, "ink": 1, "mirror": 1}
        self.heads = nn.ModuleDict({task: Head(how, sizes[task]) for task in _TASKS})
        self.weigh = Weigh(how)

    def forward(self, images):
        """What each task tells of the images."""
        x = self.trunk(images)
        if self.how.first == "joined":
            hidden = [head.hidden for head in self.heads.values()]
            weight, bias = (
                torch.cat([getattr(one, of) for one in hidden]) for of in ("weight", "bias")
            )
            given = functional.linear(x, weight, bias).chunk(3, 1)
            return [head(x, one) for head, one in zip(self.heads.values(), given, strict=True)]
        inked = x if self.how.flows else x.detach()
        return [head(inked if task == "ink" else x) for task, head in self.heads.items()]


_DIGIT = ("digit_loss@*", "eval_loss@*", "loss@*", "output@grad", "heads.digit@grad")
_AGREED = ("agreed@value", "trunk.*@grad")
_WEIGHED = ("weigh@value", "loss@*", "weigh.spreads@*grad", "weigh@*grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|exponent) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "largest for mean",
        "bug",
        {"pool": "max"},
        ("trunk.pool1@value",),
        r"max_?pool|avg_?pool",
    ),
    Case("dropout of 0.3", "bug", {"dropout": 0.3}, ("heads.digit.drop@value",), r"\bp\b"),
    Case("softmax twice", "bug", {"doubled": True}, _DIGIT, r"\b[Ss]oftmax"),
    Case(
        "digits smoothed",
        "bug",
        {"smoothing": 0.1},
        _DIGIT,
        r"smooth|cross_?entropy|nll_?loss|\bMul|\bMean|\bSum",
    ),
    Case(
        "ink summed",
        "bug",
        {"over": "sum"},
        ("ink_loss@*", "eval_loss@*", "loss@*", "output:1@grad", "heads.ink@grad"),
        rf"reduction|\bsum\b|{_TIMES}",
    ),
    Case(
        "variances for their inverses",
        "bug",
        {"sign": 1.0},
        _WEIGHED,
        rf"\bNeg|\bMul|\b[Ee]xp(Backward|\b)|other sign|{_TIMES}|{_GIVEN}",
    ),
    Case(
        "variances cost nothing",
        "bug",
        {"pays": 0.0},
        _WEIGHED,
        rf"\bAdd(Backward|\b)|\bMul|\balpha\b|zeros?\b|{_TIMES}",
    ),
    Case(
        "ink detached",
        "bug",
        {"flows": False},
        ("trunk@grad", "trunk.*@*grad", "tasks@value"),
        rf"{_DETACHED}|heads\.ink|zeros?\b",
    ),
    Case(
        "heads keep their last part",
        "bug",
        {"clears": "part"},
        ("heads.*@grad", "weigh.*@grad", "heads.*@pass_grad", "weigh.*@pass_grad"),
        r"zero_grad|\bclear|accumulat|last (part|pass|backward)|pass(es)?\b|added up|\bsum",
    ),
    Case(
        "projected where they agree",
        "bug",
        {"conflict": "above"},
        _AGREED,
        r"\bproject|\bagreed\b|\bSub|\bgrad(ient)?s?\b.{0,60}(written|changed|set|after backward)",
    ),
    Case(
        "projected onto what is left",
        "bug",
        {"onto": "left"},
        _AGREED,
        r"\bproject|\bagreed\b|\bgrad(ient)?s?\b.{0,60}(written|changed|set|after backward)",
    ),
    Case(
        "divided by lengths not squared",
        "bug",
        {"length": 1},
        _AGREED,
        r"\bproject|\bagreed\b|\bDiv|\bgrad(ient)?s?\b.{0,60}(written|changed|set|after backward)",
    ),
    Case(
        "logarithms of variances decay", "bug", {"uncertain_decay": True}, UPDATES, "weight_decay"
    ),
    Case("rate changes at each part", "bug", {"schedules": "part"}, UPDATES, r"\blr\b"),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("heads.digit.drop@value",),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("own norms", "benign", {"norming": "own"}),
    Case("pooled by a mean", "benign", {"pooling": "own"}),
    Case("digits by logsumexp", "benign", {"digit": "own"}),
    Case("mirrored by softplus", "benign", {"mirror": "own"}),
    Case("divided by variances", "benign", {"weighing": "divided"}),
    Case("projected by products alone", "benign", {"dots": "products"}),
    Case("products parameter by parameter", "benign", {"dots": "parameters"}),
    Case("hidden layers at once", "benign", {"first": "joined"}),
    Case("one part for two", "benign", {"parts": 1}, reference={"dropout": 0.0}),
    Case("images turned", "benign", {"turned": True}, reference={"dropout": 0.0, "parts": 1}),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case("fused AdamW", "benign", {"implementation": "fused"}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case(
        "no dropout for dropout of nothing", "equal", {"drops": "none"}, reference={"dropout": 0.0}
    ),
    Case("features made contiguous", "equal", {"solid": True}),
    Case("died", "incomplete", {"ends_at": 2}),
]
