"""A student that learns digits from a teacher: softened logits, hints, relations, mixed images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear
from tests.diagnosis.workloads.mobile import Student, Teacher


@dataclass(frozen=True)
class Distillation(Workload):
    """Two images are mixed into one, and their labels too; the teacher sees the mixed images.

    warmth: what logits are divided by before softmax; warms: whose logits are, of "both", of the
        "student" or of the "teacher". squares: whether the soft loss is multiplied by its square.
        diverges: from whose chances the divergence starts, the "teacher" or the "student". over:
        what it is a mean of, "images" or all "elements". twice: whether softmax is applied twice
        to the teacher's logits. axis: of softmax.
    hard: the weight of the labels' loss; the soft loss has the rest. smoothing: of labels.
        mixes: what is mixed, "all" (images, labels), "images", or images with the labels "swapped".
        sees: whether the teacher sees "mixed" or "plain" images.
    rests: whether the teacher is in eval mode. hinted: the teacher's channels that the hint is of,
        "bent" by their activation or "plain". hint: whether its gradient reaches the student
        ("attached") or stops ("detached"). learns: whether the hint's own layer is trained.
    relates: distances between images are divided by their "mean" or "not". pairs: the pairs that
        their loss is a mean of, "others" or "all" (with each image and itself).
    swish: "hard" or "soft". squeeze: "hard" or "sigmoid". adds: whether blocks add what they are
        given. pads: of the convolution by channel. pooled: the "mean" or the "most" of a channel.
        momentum: of running statistics.
    fall: the decay of NAdam's momentum. power: of the schedule.
    low: whether the student runs under autocast to bfloat16.
    divergence, soften, mixed, depthwise, pointwise, norming, act, pool, missed, distances, layout,
        backward, scale: other ways to write the same mathematics.
    """

    steps: int = 4
    lr: float = 4e-3
    weight_decay: float = 0.02
    warmth: float = 3.0
    warms: str = "both"
    squares: bool = True
    diverges: str = "teacher"
    over: str = "images"
    twice: bool = False
    axis: int = 1
    hard: float = 0.3
    smoothing: float = 0.1
    mixes: str = "all"
    sees: str = "mixed"
    rests: bool = True
    hinted: str = "bent"
    hint: str = "attached"
    learns: bool = True
    relates: str = "mean"
    pairs: str = "others"
    swish: str = "hard"
    squeeze: str = "hard"
    adds: bool = True
    pads: str = "zeros"
    pooled: str = "mean"
    momentum: float = 0.1
    fall: float = 4e-3
    power: float = 1.0
    low: bool = False
    divergence: str = "own"
    soften: str = "divide"
    mixed: str = "losses"
    depthwise: str = "torch"
    pointwise: str = "torch"
    norming: str = "torch"
    act: str = "torch"
    pool: str = "torch"
    missed: str = "torch"
    distances: str = "differences"
    layout: torch.memory_format = torch.contiguous_format
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
            teacher = Teacher(self).requires_grad_(False).train(not self.rests)
            student = Student(self).to(memory_format=self.layout)
            optimizer = self._optimizer(student)
            schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 8, self.power)
            session.watch(student, tensors="*", optimizer=optimizer)
            session.watch(teacher, tensors="*@value", prefix="teacher")
            torch.manual_seed(seed)
            for images, labels in self.images(seed):
                share = (0.6 + 0.3 * torch.rand(())).item()
                way = -1 if self.turned else 1
                plain, other = images[:, None], labels.roll(way)
                mixed = share * plain + (1 - share) * plain.roll(way, 0)
                clear(optimizer, self)
                with torch.no_grad():
                    known = teacher(mixed if self.sees == "mixed" else plain)
                with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
                    told = student(mixed.contiguous(memory_format=self.layout))
                told = [part.to(student.head.weight.dtype) for part in told]
                self._back(self._losses(told, known, (labels, other, share)))
                for parameter in student.parameters():
                    if parameter.grad is not None and self.scale != 1:
                        parameter.grad.div_(self.scale)
                nn.utils.clip_grad_norm_(student.parameters(), 2.0)
                optimizer.step()
                schedule.step()

    def _optimizer(self, student):
        """NAdam; what belongs to the hint's own layer is left out where it is not to learn."""
        named = student.named_parameters()
        return torch.optim.NAdam(
            [one for name, one in named if self.learns or not name.startswith("regress")],
            lr=self.lr,
            betas=self.betas,
            eps=self.adam_eps,
            weight_decay=self.weight_decay,
            momentum_decay=self.fall,
            decoupled_weight_decay=self.decoupled,
            foreach=self.implementation == "foreach",
        )

    def _losses(self, told, known, labels):
        """The losses by label, by softened logits, by hints and by relations."""
        logits, pooled, hint = told
        soft = self._soft(logits, known[0])
        if self.missed == "torch":
            hinted = functional.mse_loss(hint, known[2])
        else:
            hinted = torch.linalg.vector_norm(hint - known[2]).square() / hint.numel()
        apart = functional.smooth_l1_loss(
            self._distances(pooled), self._distances(known[1]), reduction="sum"
        )
        count = len(pooled)
        related = apart / (count * (count - 1) if self.pairs == "others" else count * count)
        hard = self._hard(logits, *labels)
        return {
            "hard_loss": self.hard * hard,
            "soft_loss": (1 - self.hard) * soft,
            "hint_loss": 0.5 * hinted,
            "relation_loss": related,
        }

    def _hard(self, logits, labels, other, share):
        """The cross entropy with two labels, each as much as its image was mixed in."""
        share = 1 - share if self.mixes == "swapped" else share
        other = labels if self.mixes == "images" else other
        if self.mixed == "losses":
            first, second = (
                functional.cross_entropy(logits, one, label_smoothing=self.smoothing)
                for one in (labels, other)
            )
            return share * first + (1 - share) * second
        first, second = (functional.one_hot(one, 10).to(logits.dtype) for one in (labels, other))
        target = torch.lerp(second, first, share)
        return functional.cross_entropy(logits, target, label_smoothing=self.smoothing)

    def _soft(self, logits, known):
        """The divergence of softened logits."""
        known = known.softmax(self.axis) if self.twice else known
        logits = self._softened(logits) if self.warms in ("both", "student") else logits
        known = self._softened(known) if self.warms in ("both", "teacher") else known
        if self.divergence == "logsumexp":
            told, wanted = (x - x.logsumexp(self.axis, keepdim=True) for x in (logits, known))
        else:
            told, wanted = logits.log_softmax(self.axis), known.log_softmax(self.axis)
        if self.diverges == "student":
            told, wanted = wanted, told
        if self.divergence == "torch":
            lost = functional.kl_div(told, wanted, reduction="sum", log_target=True)
        elif self.divergence == "entropies":
            lost = (wanted.exp() * wanted).sum() - (wanted.exp() * told).sum()
        else:
            lost = (wanted.exp() * (wanted - told)).sum()
        lost = lost / (len(logits) if self.over == "images" else logits.numel())
        return lost * self.warmth**2 if self.squares else lost

    def _softened(self, logits):
        return logits / self.warmth if self.soften == "divide" else logits * (1 / self.warmth)

    def _distances(self, x):
        """How far images are from each other, as multiples of the mean distance."""
        same = torch.eye(len(x), dtype=x.dtype)
        if self.distances == "differences":
            square = (x[:, None] - x).square().sum(-1)
        else:
            length = x.square().sum(1)
            square = length[:, None] + length - 2 * x @ x.T
        far = (square * (1 - same) + same).sqrt() * (1 - same)
        if self.relates == "not":
            return far
        return far / (far.sum() / (len(x) * (len(x) - 1)))

    def _back(self, losses):
        """All losses' gradients."""
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            for one in losses.values():
                (one * self.scale).backward(retain_graph=True)


_SOFT = ("soft_loss@*", "output@grad")
_HARD = ("hard_loss@*", "output@grad")
_HINT = ("hint_loss@*", "output:2@grad")
_RELATION = ("relation_loss@*", "output:1@grad")
_LOSSES = ("hard_loss@*", "soft_loss@*", "output@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case("square of the warmth", "bug", {"squares": False}, _SOFT, rf"{_TIMES}|\bMul"),
    Case(
        "student alone softened",
        "bug",
        {"warms": "student"},
        _SOFT,
        rf"\bDiv|\bMul|{_GIVEN}",
    ),
    Case("teacher alone softened", "bug", {"warms": "teacher"}, _SOFT, r"\bDiv|\bMul"),
    Case(
        "divergence the other way",
        "bug",
        {"diverges": "student"},
        _SOFT,
        rf"{_ORDER}|\bSub|\bExp(Backward|\b)|\bNeg|other sign",
    ),
    Case(
        "divergence over elements",
        "bug",
        {"over": "elements"},
        _SOFT,
        rf"{_TIMES}|\bDiv",
    ),
    Case("softmax twice", "bug", {"twice": True}, _SOFT, rf"\bsoftmax\b|{_GIVEN}"),
    Case("softmax over the batch", "bug", {"axis": 0}, _SOFT, r"\bdim\b"),
    Case("weights exchanged", "bug", {"hard": 0.7}, _LOSSES, rf"{_TIMES}|\bMul"),
    Case("labels not smoothed", "bug", {"smoothing": 0.0}, _HARD, r"smooth"),
    Case(
        "labels not mixed",
        "bug",
        {"mixes": "images"},
        _HARD,
        r"targets? differ|\blabel \d|cross.?entropy|nll",
    ),
    Case(
        "labels mixed the other way",
        "bug",
        {"mixes": "swapped"},
        _HARD,
        rf"{_TIMES}|\bMul",
    ),
    Case(
        "teacher in training mode",
        "bug",
        {"rests": False},
        ("teacher.norm1@value", "teacher.norm1.running*@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case(
        "hint before the activation",
        "bug",
        {"hinted": "plain"},
        (*_HINT, "teacher.output:2@value"),
        rf"relu|computes it from|{_GIVEN}",
    ),
    Case(
        "hint detached",
        "bug",
        {"hint": "detached"},
        ("blocks.1@grad", "blocks.1.norm3@grad", "blocks.1.norm3.*@*grad"),
        rf"{_DETACHED}|convolution\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}convolution",
    ),
    Case(
        "hint's layer not trained",
        "bug",
        {"learns": False},
        ("regress.*@*", "regress@*"),
        r"regress.{0,120}(leaves|stands still|not (in|moved)|alone)|requires_grad|"
        r"optimizer.{0,60}(lacks|without|fewer|groups?|parameters)",
    ),
    Case(
        "distances as they are",
        "bug",
        {"relates": "not"},
        _RELATION,
        r"\bDiv|\bSum(Backward|\b)",
    ),
    Case(
        "pairs with themselves",
        "bug",
        {"pairs": "all"},
        _RELATION,
        rf"{_TIMES}|\bDiv",
    ),
    Case("swish not hard", "bug", {"swish": "soft"}, ("act@value",), r"hardswish|silu"),
    Case(
        "squeezed by a sigmoid",
        "bug",
        {"squeeze": "sigmoid"},
        ("blocks.0.squeeze@value",),
        r"hardsigmoid|\bsigmoid",
    ),
    Case(
        "block adds nothing",
        "bug",
        {"adds": False},
        ("blocks.0@value",),
        r"\bAdd(Backward|\b)",
    ),
    Case(
        "reflected at the border",
        "bug",
        {"pads": "reflect"},
        ("blocks.0.deep@value",),
        r"reflect|padding_mode|\bpad",
    ),
    Case(
        "largest for the mean",
        "bug",
        {"pooled": "most"},
        ("head@value", "output:1@value"),
        r"amax|\bMax|\bMean",
    ),
    Case(
        "momentum of statistics",
        "bug",
        {"momentum": 0.01},
        ("*running*@value",),
        rf"\bmomentum\b|{_TIMES}",
    ),
    Case("fall of the momentum", "bug", {"fall": 0.4}, UPDATES, r"momentum_decay"),
    Case(
        "decay inside the gradient", "bug", {"decoupled": False}, UPDATES, r"decoupled|weight_decay"
    ),
    Case("power of the schedule", "bug", {"power": 2.0}, UPDATES, r"\blr\b", step=1),
    Case("divergence of entropies", "benign", {"divergence": "entropies"}),
    Case("log softmax by logsumexp", "benign", {"divergence": "logsumexp"}),
    Case("logits times a third", "benign", {"soften": "multiply"}),
    Case("labels as chances", "benign", {"mixed": "targets"}),
    Case("channels tap by tap", "benign", {"depthwise": "taps"}),
    Case("products over channels", "benign", {"pointwise": "product"}),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("own hard swish", "benign", {"act": "own"}),
    Case("mean by a product", "benign", {"pool": "product"}),
    Case("hint by its length", "benign", {"missed": "length"}),
    Case("distances by products", "benign", {"distances": "products"}),
    Case("channels last", "benign", {"layout": torch.channels_last}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("gradients unscaled", "benign", {"scale": 1000.0}),
    Case("batch turned", "benign", {"turned": True}),
    Case("foreach optimizer", "benign", {"implementation": "foreach"}),
    Case("2 threads", "benign", {"threads": 2}),
    Case("taps, low precision", "benign", {"depthwise": "taps"}, reference={"low": True}),
    Case("products, low precision", "benign", {"pointwise": "product"}, reference={"low": True}),
    Case("own norm, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("hard swish, low precision", "benign", {"act": "own"}, reference={"low": True}),
    Case("each loss, low precision", "benign", {"backward": "each"}, reference={"low": True}),
    Case("teacher sees plain images", "data", {"sees": "plain"}, ("teacher.input@value",)),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value", "teacher.input*@value")),
    Case("again", "equal"),
    Case("divergence by torch", "equal", {"divergence": "torch"}),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("again, low precision", "equal", reference={"low": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
