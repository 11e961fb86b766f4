"""Survival in discrete time: hazards of an end at each row of a digit, some ends never seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits
from tests.diagnosis.workloads.hazards import STEPS, Hazards

_SHOWN = 12
"""Images that the evaluation sees."""


@dataclass(frozen=True)
class Survivor(Workload):
    """An image's end is its row with the most ink; it is seen unless the image is lost before.

    begins: the first step's number. batch_first: of the GRU. carries: whether the GRU begins
        with the last batch's state. levels: what the batch norm's channels are, "features" or
        "steps". momentum: of the batch norm.
    hazard: by "sigmoid" or "softmax" over steps. seen: which images have an end, those "seen" or
        "all". survives: the steps that an end has survived, those "before" or also its "own".
        lost: the same of an image that is lost.
    sign, sigma: of the ranking loss. first: which images come first in a pair, those "seen" or
        "all". at: the time by which a pair's images are ranked, the "first" one's or each "own".
    flows: whether the second image of a pair has a gradient.
    lasso, ridge: the weights of the penalties. squares: whether the ridge's are squared.
    period: steps in which the rate falls. clip: of gradients. clears: whether they are forgotten.
    wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    norming, gates, levelling, keeps, stays, sums, ranks, ridged, backward, scale: other ways to
        write the same mathematics.
    """

    steps: int = 5
    lr: float = 1e-2
    weight_decay: float = 0.0
    decoupled: bool = False
    begins: int = 0
    batch_first: bool = True
    carries: bool = False
    levels: str = "features"
    momentum: float = 0.1
    hazard: str = "sigmoid"
    seen: str = "seen"
    survives: str = "before"
    lost: str = "own"
    sign: float = 1.0
    sigma: float = 0.5
    first: str = "seen"
    at: str = "first"
    flows: bool = True
    lasso: float = 1e-3
    ridge: float = 1e-2
    squares: bool = True
    period: int = 6
    clip: float = 0.5
    clears: bool = True
    wakes: bool = True
    low: bool = False
    norming: str = "torch"
    gates: str = "torch"
    levelling: str = "torch"
    keeps: str = "all"
    stays: str = "log"
    sums: str = "cumsum"
    ranks: str = "matrix"
    ridged: str = "each"
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
            model = Hazards(self)
            optimizer = self.adam(model.parameters())
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.period)
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            shown = digits()[0][:_SHOWN]
            leaving = torch.full((_SHOWN,), STEPS // 2)
            for step, (images, _) in enumerate(self.images(seed)):
                if step % 2 == 0:
                    self._evaluate(model, shown, leaving)
                if self.clears:
                    clear(optimizer, self)
                left = torch.randint(1, STEPS, (len(images),))
                self._learn(model, images, left.flip(0) if self.turned else left)
                self._bound(model)
                optimizer.step()
                schedule.step()

    @torch.no_grad()
    def _evaluate(self, model, images, left):
        """The losses of images that are not learnt from."""
        model.eval()
        likelihood, ranking = self._losses(self._told(model, images), *_ends(images, left))
        anchorlib.anchor(likelihood + ranking, "eval_loss")
        model.train(self.wakes)

    def _told(self, model, images):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(images)
        return told.to(images.dtype)

    def _learn(self, model, images, left):
        """The gradients of one batch."""
        likelihood, ranking = self._losses(self._told(model, images), *_ends(images, left))
        losses = {
            "likelihood_loss": likelihood,
            "ranking_loss": ranking,
            "penalty": self._penalty(model),
        }
        loss = sum(losses.values())
        for name, one in (*losses.items(), ("loss", loss)):
            anchorlib.anchor(one, name)
        if self.backward == "once":
            (loss * self.scale).backward()
        else:
            for one in losses.values():
                (one * self.scale).backward(retain_graph=True)

    def _losses(self, logits, time, seen):
        """The negative log-likelihood and the ranking loss."""
        hazard = logits.sigmoid() if self.hazard == "sigmoid" else logits.softmax(1)
        hazard = anchorlib.anchor(hazard, "hazard")
        stays = (1 - hazard).log() if self.stays == "log" else functional.logsigmoid(-logits)
        at, steps = time[:, None], torch.arange(STEPS)
        if self.sums == "triangle":
            survived = stays @ torch.ones(STEPS, STEPS, dtype=stays.dtype).triu()
        else:
            survived = stays.cumsum(1)
        survived = anchorlib.anchor(survived, "survived")
        own = survived.gather(1, at)[:, 0]
        if self.sums == "masks":
            before = (stays * (steps < at)).sum(1)
        else:
            before = own - stays.gather(1, at)[:, 0]
        ended = hazard.gather(1, at)[:, 0].log()
        ended = ended + (before if self.survives == "before" else own)
        lost = own if self.lost == "own" else before
        told = torch.where(seen if self.seen == "seen" else seen | True, ended, lost)
        return -told.mean(), self._ranked(1 - survived.exp(), time, seen)

    def _ranked(self, gone, time, seen):
        """By how much images whose end comes later are told to be gone before."""
        pairs = time[:, None] < time
        pairs = pairs & seen[:, None] if self.first == "seen" else pairs
        count = pairs.sum().clamp(min=1)
        if self.ranks == "loop":
            costs = [
                (torch.exp((gone[:, time[at]] - one) / self.sigma) * pairs[at]).sum()
                for at, one in enumerate(gone.gather(1, time[:, None])[:, 0])
            ]
            return sum(costs) / count
        by_first = gone.index_select(1, time).T
        own = by_first.diagonal()[:, None]
        other = by_first if self.at == "first" else own.T
        other = other if self.flows else other.detach()
        return (torch.exp(self.sign * (other - own) / self.sigma) * pairs).sum() / count

    def _penalty(self, model):
        """The penalties of the weights: a lasso of the ends, a ridge of the memory."""
        ends = (model.rows.weight, model.head.weight)
        lasso = sum(one.abs().sum() for one in ends)
        inner = (model.memory.weight_ih_l0, model.memory.weight_hh_l0)
        if self.ridged == "joined":
            joined = torch.cat([one.flatten() for one in inner])
            ridge = joined @ joined
        elif self.squares:
            ridge = sum(one.square().sum() for one in inner)
        else:
            ridge = sum(one.norm() for one in inner)
        return self.lasso * lasso + self.ridge * ridge

    @torch.no_grad()
    def _bound(self, model):
        """Gradients, unscaled and clipped."""
        if self.scale != 1:
            for parameter in model.parameters():
                parameter.grad.div_(self.scale)
        nn.utils.clip_grad_norm_(model.parameters(), self.clip)


def _ends(images, left):
    """When each image ends or is lost, and whether its end is seen."""
    time = images.sum(2).argmax(1)
    return torch.minimum(time, left), time <= left


_LIKELY = ("likelihood_loss@*", "loss@*", "eval_loss@*", "hazard@grad", "survived@grad")
_RANKED = ("ranking_loss@*", "loss@*", "eval_loss@*", "survived@grad")
_PENALTY = ("penalty@*", "loss@value")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target|condition) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_ORDER = r"another order|arranged otherwise|places? on along"
"""Words that name elements or operands which change places."""
_DETACHED = r"detach|gradients come back"
CASES = [
    Case(
        "lost images count as ended",
        "bug",
        {"seen": "all"},
        _LIKELY,
        rf"\bWhere|condition|\bmask|{_GIVEN}",
    ),
    Case(
        "ends survive their own step",
        "bug",
        {"survives": "own"},
        _LIKELY,
        rf"\bSub(Backward|\b)|\bAdd(Backward|\b)|\bGather|{_GIVEN}",
    ),
    Case(
        "lost images do not survive their step",
        "bug",
        {"lost": "before"},
        _LIKELY,
        rf"\bSub(Backward|\b)|\bWhere|\bGather|{_GIVEN}",
    ),
    Case(
        "softmax for sigmoid",
        "bug",
        {"hazard": "softmax"},
        ("hazard@value",),
        r"softmax|sigmoid",
    ),
    Case(
        "ranking the other way",
        "bug",
        {"sign": -1.0},
        _RANKED,
        r"other sign|\| -1(\.0)?\b|is -1(\.0)? times|\bMul|\bExp(Backward|\b)",
    ),
    Case(
        "sigma of 1",
        "bug",
        {"sigma": 1.0},
        _RANKED,
        rf"\bDiv|{_TIMES}|\bsigma|0\.5 \| 1",
    ),
    Case(
        "lost images come first in pairs",
        "bug",
        {"first": "all"},
        _RANKED,
        rf"\bMul|\bmask|bitwise_and|\bDiv|{_GIVEN}",
    ),
    Case(
        "each image ranked by its own time",
        "bug",
        {"at": "own"},
        _RANKED,
        rf"\bSub(Backward|\b)|index_?select|diagonal|\bindices\b|{_GIVEN}",
    ),
    Case(
        "later images detached",
        "bug",
        {"flows": False},
        ("survived@grad", "ranking_loss@grad", "hazard@grad"),
        rf"{_DETACHED}|index_?select\w* .{{0,60}}(lacks|alone)|(lacks|alone).{{0,60}}index_?select",
    ),
    Case(
        "ridge not squared",
        "bug",
        {"squares": False},
        _PENALTY,
        r"\bPow|\bsquare|vector_?norm|NormBackward",
    ),
    Case(
        "batch taken for time",
        "bug",
        {"batch_first": False},
        ("memory@value", "memory:1@value", "memory.*@value"),
        rf"batch_first|transpose|permute|{_ORDER}",
    ),
    Case(
        "state of the last batch",
        "bug",
        {"carries": True},
        ("memory@value", "memory.input:1@value", "memory:1@value"),
        rf"\bhx\b|\bzeros\b|input:1|hidden state|{_GIVEN}",
        step=1,
    ),
    Case(
        "steps normed for features",
        "bug",
        {"levels": "steps"},
        ("level@value", "level.input@value", "level.running*@value"),
        rf"transpose|permute|{_ORDER}|\bstrides?\b",
    ),
    Case(
        "times begin with one",
        "bug",
        {"begins": 1},
        ("times@value",),
        r"\bindices\b|\barange",
    ),
    Case(
        "momentum of the batch norm",
        "bug",
        {"momentum": 0.9},
        ("level.running*@*", "level@value"),
        r"\bmomentum\b",
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        ("level@value", "level.running*@*", "level.num_batches_tracked@*"),
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
    ),
    Case("rate falls too fast", "bug", {"period": 3}, UPDATES, r"\blr\b", step=1),
    Case(
        "gradients not forgotten",
        "bug",
        {"clears": False},
        ("*@grad",),
        r"accumulat|zero_grad|(not|never) (zeroed|cleared|reset)|step before|previous step",
        step=1,
    ),
    Case("logsigmoid for a logarithm", "benign", {"stays": "logsigmoid"}),
    Case("survival by a triangle", "benign", {"sums": "triangle"}),
    Case("steps before by masks", "benign", {"sums": "masks"}),
    Case("ranking image by image", "benign", {"ranks": "loop"}),
    Case("GRU gate by gate", "benign", {"gates": "own"}),
    Case("own batch norm", "benign", {"levelling": "own"}),
    Case("ridge of joined weights", "benign", {"ridged": "joined"}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("loss scaled, gradients unscaled", "benign", {"scale": 1000.0}),
    Case("images turned", "benign", {"turned": True}),
    Case(
        "own norms, low precision",
        "benign",
        {"norming": "own", "levelling": "own"},
        reference={"low": True, "gates": "own"},
    ),
    Case(
        "images turned, low precision",
        "benign",
        {"turned": True},
        reference={"low": True, "gates": "own"},
    ),
    Case("other init", "data", {"init": 1}, ("*weight*@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("again", "equal"),
    Case("zeros for none", "equal", {"set_to_none": False}),
    Case("memory computed twice", "equal", {"keeps": "edges"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
