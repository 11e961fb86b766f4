"""A teller of digits that learns preferences: what is chosen against what is rejected."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, cut, warmed
from tests.diagnosis.workloads.teller import Teller

_BEGUN = 4
"""Tokens that are given, before those that are chosen or rejected."""


@dataclass(frozen=True)
class Aligner(Workload):
    """A digit's pixels go on as they are (chosen) or backwards (rejected), from the same beginning.

    causal: whether later places are hidden. dropout: its share.
    begins: whether tokens that are given count too. pads: whether what follows the end counts too.
    shifts: whether each place is asked for the next token. averages: whether a sequence's
        log-probabilities are divided by its length.
    copies: whether the reference is a copy. rests: whether it is in eval mode. relative: whether
        it is subtracted at all.
    exchanged: whether what is rejected is preferred. beta: of the preference. smoothing: the share
        of labels that are taken for wrong. bends: "logsigmoid" or "sigmoid".
    flows: whether the gradient reaches what is rejected.
    likelihood: the weight of the likelihood of what is chosen. tells: whose likelihood it is.
    over: what it is divided by, "tokens" or "sequences".
    warmup: steps of rising rate. clip, clips: of gradients, 0: not at all, by their "torch" norm,
        or their "own" norm. all_decay: whether norms and embeddings decay too.
    parts: micro-batches a step. low: whether the net runs under autocast to bfloat16.
    norming, packing, attention, passes, chances, masks, missed, further, early,
        backward, scale: other ways to write the same mathematics.
    """

    steps: int = 5
    batch: int = 8
    lr: float = 5e-3
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    causal: bool = True
    dropout: float = 0.0
    begins: bool = False
    pads: bool = False
    shifts: bool = True
    averages: bool = False
    copies: bool = True
    rests: bool = True
    relative: bool = True
    exchanged: bool = False
    beta: float = 0.3
    smoothing: float = 0.1
    bends: str = "logsigmoid"
    flows: bool = True
    likelihood: float = 0.5
    tells: str = "chosen"
    over: str = "tokens"
    warmup: int = 3
    clip: float = 0.5
    clips: str = "torch"
    all_decay: bool = False
    parts: int = 1
    low: bool = False
    norming: str = "torch"
    packing: str = "apart"
    attention: str = "own"
    passes: str = "joined"
    chances: str = "gather"
    masks: str = "product"
    missed: str = "logsigmoid"
    further: int = 0
    early: bool = False
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
            model = Teller(self)
            reference = copy.deepcopy(model) if self.copies else model
            if self.copies:
                reference.requires_grad_(False).train(not self.rests)
            optimizer = self.adam(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            for pairs in self._dealt(reference, seed):
                clear(optimizer, self)
                count = pairs[0][:, 1].sum() if self.over == "tokens" else self.batch
                for tokens, counts, *known in cut(self.parts, *pairs):
                    told = self._chances(model, tokens, counts)
                    with torch.no_grad():
                        fixed = known[0] if known else self._chances(reference, tokens, counts)
                    self._back(*self._losses(told, fixed, count))
                self._bound(model)
                optimizer.step()
                schedule.step()

    def _groups(self, model):
        """What decays, and what does not: norms, biases and embeddings."""
        named = [
            (one.ndim > 1 and not name.startswith(("tokens", "places")), one)
            for name, one in model.named_parameters()
        ]
        still = self.weight_decay if self.all_decay else 0.0
        return [
            {
                "params": [one for deep, one in named if deep is decays],
                "weight_decay": self.weight_decay if decays else still,
            }
            for decays in (True, False)
        ]

    def _dealt(self, reference, seed):
        """The pairs of each step: what counts in them, the tokens, and what is known of them."""
        found = (self._pairs(*batch) for batch in self.images(seed))
        if not self.early:
            yield from ((tokens, counts) for tokens, counts in found)
            return
        with torch.no_grad():
            known = [(*pairs, self._chances(reference, *pairs)) for pairs in found]
        yield from known

    def _pairs(self, images, labels):
        """Tokens (pair, which, place) of what is chosen and rejected, and which of them count."""
        pooled = functional.avg_pool2d(images[:, None], 2).flatten(1)
        levels = ((pooled + 1) * 2.45).long() + 1
        begun, rest = levels[:, :_BEGUN], levels[:, _BEGUN:]
        tokens = torch.stack([torch.cat((begun, one), 1) for one in (rest, rest.flip(1))], 1)
        ends = _BEGUN + torch.stack((6 + labels % 6, 6 + labels * 3 % 5), 1)[..., None]
        tokens = functional.pad(tokens, (0, self.further))
        places = torch.arange(tokens.shape[2])
        counts = (places <= ends) | self.pads
        counts = counts & ((places >= _BEGUN) | self.begins)
        return torch.where(places < ends, tokens, 0), counts

    def _chances(self, model, tokens, counts):
        """Log-probabilities (pair, which) of sequences."""
        if self.passes == "joined":
            count = len(tokens)
            logits = self._logits(model, tokens.transpose(0, 1).flatten(0, 1)[:, :-1])
            logits = torch.stack((logits[:count], logits[count:]), 1)
        else:
            logits = torch.stack([self._logits(model, tokens[:, at, :-1]) for at in (0, 1)], 1)
        wanted = tokens[..., 1:] if self.shifts else tokens[..., :-1]
        if self.chances == "gather":
            each = logits.log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
        else:
            each = logits.gather(-1, wanted[..., None])[..., 0] - logits.logsumexp(-1)
        counts = counts[..., 1:]
        if self.masks == "product":
            told = (each * counts).sum(-1)
        else:
            told = torch.einsum("pwt,pwt->pw", each, counts.to(each.dtype))
        return told / counts.sum(-1) if self.averages else told

    def _logits(self, model, tokens):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(tokens)
        return told.to(model.head.weight.dtype)

    def _losses(self, told, fixed, count):
        """The loss of the preference, and that of the likelihood."""
        chosen, rejected = told.unbind(1)
        chosen = anchorlib.anchor(chosen, "chosen")
        rejected = anchorlib.anchor(rejected, "rejected")
        first, second = fixed.unbind(1)
        anchorlib.anchor(first, "reference_chosen")
        anchorlib.anchor(second, "reference_rejected")
        other = rejected if self.flows else rejected.detach()
        margin = chosen - other
        if self.relative:
            margin = margin - (first - second)
        logits = self.beta * (-margin if self.exchanged else margin)
        missed = self._missed(logits).sum() / self.batch
        likely = chosen if self.tells == "chosen" else rejected
        return missed, self.likelihood * -likely.sum() / count

    def _missed(self, logits):
        """How much each pair's preference is missed."""
        if self.bends == "sigmoid":
            right, wrong = logits.sigmoid(), (-logits).sigmoid()
        elif self.missed == "logsigmoid":
            right, wrong = functional.logsigmoid(logits), functional.logsigmoid(-logits)
        elif self.missed == "softplus":
            return functional.softplus(-logits) + self.smoothing * logits
        else:
            wanted = torch.full_like(logits, 1 - self.smoothing)
            return functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        return -(1 - self.smoothing) * right - self.smoothing * wrong

    def _back(self, missed, likely):
        """Both losses' gradients."""
        loss = missed + likely
        for one, name in ((missed, "preference_loss"), (likely, "likelihood_loss"), (loss, "loss")):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            (missed * self.scale).backward(retain_graph=True)
            (likely * self.scale).backward()

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        grads = [one.grad for one in model.parameters()]
        if self.scale != 1:
            for grad in grads:
                grad.div_(self.scale)
        if self.clips == "own":
            length = torch.cat([grad.flatten() for grad in grads]).square().sum().sqrt()
            for grad in grads:
                grad.mul_((self.clip / (length + 1e-6)).clamp(max=1))
        elif self.clip:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip)


_TOLD = ("chosen@*", "rejected@*", "reference_chosen@*", "reference_rejected@*")
_LOSS = ("preference_loss@*", "chosen@grad", "rejected@grad", "loss@*")
_LIKELY = ("likelihood_loss@*", "chosen@grad", "loss@*")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|index|mask) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "later places seen",
        "bug",
        {"causal": False},
        ("blocks.0.attention@value", "blocks.0.attention.out*@value"),
        r"masked_?fill|\bmask|causal|\btriu\b",
    ),
    Case("given tokens count", "bug", {"begins": True}, _TOLD, rf"\bMul|\bmask|{_GIVEN}"),
    Case(
        "what follows the end counts",
        "bug",
        {"pads": True},
        _TOLD,
        rf"\bMul|\bmask|{_GIVEN}",
    ),
    Case(
        "tokens not shifted",
        "bug",
        {"shifts": False},
        _TOLD,
        rf"\b[Gg]ather|\bindex|\b[Ss]lice|{_ORDER}",
    ),
    Case(
        "means of log-probabilities",
        "bug",
        {"averages": True},
        _TOLD,
        r"\bDiv|\bMean|a factor of its own",
    ),
    Case(
        "reference not copied",
        "bug",
        {"copies": False},
        ("reference_chosen@value", "reference_rejected@value"),
        r"no_grad|\btwice\b|extra (pass|call)|once more|(in B alone|only in B|alone in B)",
    ),
    Case(
        "reference in training mode",
        "bug",
        {"rests": False},
        ("reference_chosen@value", "reference_rejected@value"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b|[Dd]ropout|random|\bdraw",
        reference={"dropout": 0.1},
    ),
    Case(
        "reference left out",
        "bug",
        {"relative": False},
        _LOSS,
        rf"\bSub(Backward|\b)|{_GIVEN}",
    ),
    Case(
        "rejected preferred",
        "bug",
        {"exchanged": True},
        _LOSS,
        rf"\bNeg(Backward|\b)|other sign|is -1(\.0)? times|{_ORDER}|\bSub(Backward|\b)",
    ),
    Case("beta of 0.03", "bug", {"beta": 0.03}, _LOSS, rf"\bMul|\bbeta\b|{_TIMES}"),
    Case(
        "labels not smoothed",
        "bug",
        {"smoothing": 0.0},
        _LOSS,
        rf"\bMul|smoothing|{_TIMES}",
    ),
    Case(
        "sigmoid without log",
        "bug",
        {"bends": "sigmoid"},
        _LOSS,
        r"\b[Ss]igmoid|[Ll]og_?[Ss]igmoid",
    ),
    Case(
        "rejected detached",
        "bug",
        {"flows": False},
        ("rejected@grad", "head@grad", "output@grad"),
        rf"{_DETACHED}|\bSub\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}\bSub",
    ),
    Case(
        "likelihood of what is rejected",
        "bug",
        {"tells": "rejected"},
        (*_LIKELY, "rejected@grad"),
        rf"{_GIVEN}|\b[Uu]nbind|\b[Ss]elect|{_ORDER}|computes it from",
    ),
    Case(
        "likelihood over sequences",
        "bug",
        {"over": "sequences"},
        _LIKELY,
        rf"\bDiv|{_TIMES}",
    ),
    Case("no warm-up", "bug", {"warmup": 0}, UPDATES, r"\blr\b"),
    Case(
        "gradients not clipped",
        "bug",
        {"clip": 0.0},
        ("*@grad",),
        rf"\bclip|{_TIMES}",
    ),
    Case("everything decays", "bug", {"all_decay": True}, UPDATES, r"weight_decay"),
    Case("a pass for each of both", "benign", {"passes": "apart"}),
    Case("log-probabilities by logsumexp", "benign", {"chances": "logsumexp"}),
    Case("counted by einsum", "benign", {"masks": "einsum"}),
    Case("preference by softplus", "benign", {"missed": "softplus"}),
    Case("preference by binary cross entropy", "benign", {"missed": "binary"}),
    Case("padded further", "benign", {"further": 4}),
    Case("own norms", "benign", {"norming": "own"}),
    Case("attention by torch", "benign", {"attention": "torch"}),
    Case("one projection for three", "benign", {"packing": "joined"}),
    Case("2 micro-batches", "benign", {"parts": 2}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("pairs turned", "benign", {"turned": True}),
    Case("norm of gradients at once", "benign", {"clips": "own"}),
    Case(
        "attention by torch, low precision",
        "benign",
        {"attention": "torch"},
        reference={"low": True},
    ),
    Case("own norms, low precision", "benign", {"norming": "own"}, reference={"low": True}),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("reference told beforehand", "equal", {"early": True}),
    Case("died", "incomplete", {"ends_at": 3}),
]
