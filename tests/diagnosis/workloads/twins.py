"""Two views of each digit should be told alike, and no two features alike: without any labels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

import anchorlib
from tests.diagnosis.workloads.base import UPDATES, Case, Start, Workload, clear, digits, warmed
from tests.diagnosis.workloads.projector import SIZE, Twins

_SHOWN = 12
"""Images that the evaluation sees."""


@dataclass(frozen=True)
class SelfTaught(Workload):
    """The losses are those of Barlow Twins or of VICReg; a probe beside them learns the labels.

    objective: "barlow" or "vicreg". views: whether the second view is drawn "apart" or is the
        "same". noise: on views, of such a spread. centred: whether images are moved to -1 to 1.
    passes: whether views pass the net "apart" or "together". probes: whether the probe's features
        are "detached" or "attached". normed: whether the projector has its batch norm.
    fan: what the first weights' spread is by. attached: whether the second view's gradient flows.
    Barlow Twins: along: the axis that embeddings are normed along, 0: the batch, None: not at
        all. averages: whether correlations are divided by how many samples there are. redundancy:
        the weight of what lies off the diagonal. whole: whether the diagonal counts there too.
    VICReg: spreads: the "deviation" or the "variance" that should reach one. hinges: what is
        punished, what lies "below" or "above". centres: whether embeddings are centred before
        their covariance. whole: as above. weights: of invariance, variance and covariance.
    warmup: steps of rising rate. early: whether the rate changes before the optimizer's step.
        wakes: whether the model is in training mode again after an evaluation.
    low: whether the net runs under autocast to bfloat16.
    norming, convolution, standard, correlation, off, deviation, covariance, alike, hinge,
        backward, scale: other ways to write the same mathematics.
    """

    steps: int = 5
    batch: int = 24
    lr: float = 0.05
    weight_decay: float = 1e-2
    objective: str = "barlow"
    views: str = "apart"
    noise: float = 0.2
    centred: bool = True
    passes: str = "apart"
    probes: str = "detached"
    normed: bool = True
    fan: str = "fan_out"
    attached: bool = True
    along: int | None = 0
    averages: bool = True
    redundancy: float = 0.05
    whole: bool = False
    spreads: str = "deviation"
    hinges: str = "below"
    centres: bool = True
    weights: tuple[float, float, float] = (5.0, 5.0, 1.0)
    warmup: int = 2
    early: bool = False
    wakes: bool = True
    low: bool = False
    norming: str = "torch"
    convolution: str = "torch"
    standard: str = "own"
    correlation: str = "matmul"
    off: str = "mask"
    deviation: str = "torch"
    covariance: str = "own"
    alike: str = "torch"
    hinge: str = "relu"
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
            model = Twins(self)
            optimizer = self.sgd(self._groups(model))
            schedule = torch.optim.lr_scheduler.LambdaLR(
                optimizer, lambda step: warmed(step, self.warmup, 8)
            )
            session.watch(model, tensors="*", optimizer=optimizer)
            torch.manual_seed(seed)
            drawing = torch.Generator().manual_seed(19 + 1000 * seed)
            shown, named = digits()
            for step, (images, labels) in enumerate(self.images(seed)):
                clear(optimizer, self)
                self._back(self._losses(model, *self._views(images, drawing), labels))
                for parameter in model.parameters():
                    if self.scale != 1:
                        parameter.grad.div_(self.scale)
                if self.early:
                    schedule.step()
                optimizer.step()
                if not self.early:
                    schedule.step()
                if step % 2 == 0:
                    self._evaluate(model, shown[:_SHOWN, None], named[:_SHOWN])

    def _groups(self, model):
        """What decays, and what does not: biases and norms."""
        parameters = list(model.parameters())
        return [
            {"params": [one for one in parameters if one.ndim > 1]},
            {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
        ]

    def _views(self, images, drawing):
        """Two views of each image: moved, of another brightness, and shaken."""
        one = self._viewed(images, drawing)
        other = self._viewed(images, drawing)
        return one, one if self.views == "same" else other

    def _viewed(self, images, drawing):
        count = len(images)
        moves = torch.randint(-1, 2, (count, 2), generator=drawing)
        bright = 0.6 + 0.6 * torch.rand(count, 1, 1, generator=drawing)
        shaken = self.noise * torch.randn(images.shape, generator=drawing)
        if self.turned:
            moves, bright, shaken = moves.flip(0), bright.flip(0), shaken.flip(0)
        ink = (images + 1) / 2
        moved = torch.stack(
            [one.roll(move.tolist(), (0, 1)) for one, move in zip(ink, moves, strict=True)]
        )
        seen = bright * moved
        view = (2 * seen - 1 if self.centred else seen) + shaken
        return view[:, None]

    @torch.no_grad()
    def _evaluate(self, model, shown, named):
        """The probe's loss on images that are not drawn."""
        model.eval()
        *_, logits = model(shown, shown)
        anchorlib.anchor(functional.cross_entropy(logits, named), "eval_loss")
        model.train(self.wakes)

    def _losses(self, model, one, other, labels):
        """The losses by their names."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low):
            told = model(one, other)
        first, second, logits = (part.to(one.dtype) for part in told)
        second = second if self.attached else second.detach()
        found = self._barlow if self.objective == "barlow" else self._vicreg
        return found(first, second) | {"probe_loss": functional.cross_entropy(logits, labels)}

    def _barlow(self, first, second):
        """Correlations of both views should be one on the diagonal and nought beside it."""
        first, second = self._standard(first), self._standard(second)
        count = len(first) if self.averages else 1
        if self.correlation == "einsum":
            crossed = torch.einsum("ni,nj->ij", first / count, second)
        elif self.correlation == "chunks":
            parts = zip(first.chunk(3), second.chunk(3), strict=True)
            crossed = sum(one.T @ other for one, other in parts) / count
        else:
            crossed = first.T @ second / count
        crossed = anchorlib.anchor(crossed, "correlation")
        return {
            "diagonal_loss": (crossed.diagonal() - 1).square().sum(),
            "redundancy_loss": self.redundancy * self._off(crossed),
        }

    def _standard(self, x):
        """Embeddings of mean nought and spread one."""
        if self.along is None:
            return x
        if self.standard == "torch":
            return functional.batch_norm(x, None, None, training=True, eps=1e-5)
        spread, mean = torch.var_mean(x, self.along, correction=0, keepdim=True)
        return (x - mean) / (spread + 1e-5).sqrt()

    def _off(self, square):
        """The sum of squares beside the diagonal."""
        if self.whole:
            return square.square().sum()
        if self.off == "difference":
            return square.square().sum() - square.diagonal().square().sum()
        size = len(square)
        if self.off == "view":
            return square.flatten()[:-1].view(size - 1, size + 1)[:, 1:].square().sum()
        return square[~torch.eye(size, dtype=torch.bool)].square().sum()

    def _vicreg(self, first, second):
        """Views should be alike, features should vary, and no two of them together."""
        alike, varied, apart = self.weights
        sides = (first, second)
        lacking = sum(self._lacking(one) for one in sides) / 2
        together = sum(self._off(self._covariance(one)) for one in sides) / SIZE
        return {
            "invariance_loss": alike * self._missed(first, second),
            "variance_loss": varied * lacking,
            "covariance_loss": apart * together,
        }

    def _missed(self, first, second):
        """The mean square of how views differ."""
        if self.alike == "torch":
            return functional.mse_loss(first, second)
        missed = (first - second).flatten()
        return missed @ missed / len(missed)

    def _lacking(self, x):
        """By how much the features' spreads miss one."""
        if self.deviation == "torch":
            spread = x.var(0)
        else:
            spread = (x - x.mean(0)).square().sum(0) / (len(x) - 1)
        spread = spread if self.spreads == "variance" else (spread + 1e-4).sqrt()
        missed = 1 - spread if self.hinges == "below" else spread - 1
        return (missed.relu() if self.hinge == "relu" else missed.clamp(min=0)).mean()

    def _covariance(self, x):
        """How features vary together."""
        if self.covariance == "torch":
            return torch.cov(x.T)
        x = x - x.mean(0) if self.centres else x
        if self.covariance == "einsum":
            return torch.einsum("ni,nj->ij", x, x / (len(x) - 1))
        return x.T @ x / (len(x) - 1)

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


_FEATURES = ("encoder.norms.0@value", "encoder.norms.0.running*@value")
_CROSSED = ("correlation@value",)
_DIAGONAL = ("diagonal_loss@*", "redundancy_loss@*", "correlation@grad")
_VARIED = ("variance_loss@*", "output*@grad", "projector@grad")
_APART = ("covariance_loss@*", "output*@grad", "projector@grad")
_TIMES = r"is -?[\d.]+ times A"
_GIVEN = r"Backward\d? (self|other|mat1|mat2|input|weight|target) |targets? differ"
"""Words that name other numbers which an operation or a loss was given."""
_DETACHED = r"detach|gradients come back"
_VICREG = {"objective": "vicreg"}
CASES = [
    Case(
        "one view twice",
        "bug",
        {"views": "same"},
        ("input:1@value", "encoder.input@value"),
        r"\binputs?\b|\bdata\b|\bsame\b|another name",
        0,
    ),
    Case(
        "images not centred",
        "data",
        {"centred": False},
        ("input*@value", "encoder.input@value"),
        step=0,
    ),
    Case(
        "views normed together",
        "bug",
        {"passes": "together"},
        ("encoder.convs.0@value", *_FEATURES),
        r"[Bb]atch_?[Nn]orm|\bCat|\bcat\b|\bshapes?\b|\bsamples?\b",
        0,
    ),
    Case(
        "probe attached",
        "bug",
        {"probes": "attached"},
        ("encoder@grad", "encoder.acts.1@grad", "encoder.norms.1@*grad"),
        _DETACHED,
        0,
    ),
    Case(
        "projector without its norm",
        "bug",
        {"normed": False},
        ("projector.act@value", "projector.act.input@value", "projector.norm@value"),
        r"[Bb]atch_?[Nn]orm|\bnorm\b",
        0,
    ),
    Case(
        "spread by what comes in",
        "data",
        {"fan": "fan_in"},
        ("encoder.convs.*.weight@value",),
        step=0,
    ),
    Case(
        "embeddings not normed",
        "bug",
        {"along": None},
        _CROSSED,
        rf"\bDiv|\bSub(Backward|\b)|\bvar|\bstd|\bnorm|{_TIMES}|{_GIVEN}",
        0,
    ),
    Case(
        "normed over features",
        "bug",
        {"along": 1},
        _CROSSED,
        r"\bdim\b|\baxis\b|\bVar",
        0,
    ),
    Case(
        "correlations not divided",
        "bug",
        {"averages": False},
        _CROSSED,
        rf"\bDiv|{_TIMES}",
        0,
    ),
    Case(
        "diagonal counted as redundant",
        "bug",
        {"whole": True},
        _DIAGONAL,
        r"\bIndex|indices|\bmask|\bdiagonal|\beye\b",
        0,
    ),
    Case(
        "rates change too early",
        "bug",
        {"early": True},
        UPDATES,
        r"\blr\b",
        0,
    ),
    Case(
        "still in eval mode",
        "bug",
        {"wakes": False},
        _FEATURES,
        r"eval mode|train(ing)? mode|training (True|False)|\beval\b",
        1,
    ),
    Case(
        "second view detached",
        "bug",
        {"attached": False},
        ("output:1@grad", "projector@grad", "projector.down*@*grad"),
        _DETACHED,
        0,
        _VICREG,
    ),
    Case(
        "variance for deviation",
        "bug",
        {"spreads": "variance"},
        _VARIED,
        r"\b[Ss]qrt",
        0,
        _VICREG,
    ),
    Case(
        "hinge turned",
        "bug",
        {"hinges": "above"},
        _VARIED,
        rf"\b[Rr]sub|\bSub(Backward|\b)|\b[Rr]elu|other sign|\balpha\b|{_TIMES}|{_GIVEN}",
        0,
        _VICREG,
    ),
    Case(
        "covariance of what is not centred",
        "bug",
        {"centres": False},
        _APART,
        rf"\bSub(Backward|\b)|\bMean|{_GIVEN}",
        0,
        _VICREG,
    ),
    Case(
        "covariance with the diagonal",
        "bug",
        {"whole": True},
        _APART,
        r"\bIndex|indices|\bmask|\bdiagonal|\beye\b",
        0,
        _VICREG,
    ),
    Case(
        "weights of the losses exchanged",
        "bug",
        {"weights": (1.0, 5.0, 5.0)},
        ("invariance_loss@*", "covariance_loss@*", "output*@grad"),
        rf"\bMul|{_TIMES}",
        0,
        _VICREG,
    ),
    Case("embeddings normed by torch", "benign", {"standard": "torch"}),
    Case("correlations by einsum", "benign", {"correlation": "einsum"}),
    Case("correlations of chunks", "benign", {"correlation": "chunks"}),
    Case("a backward for each loss", "benign", {"backward": "each"}),
    Case("all less the diagonal", "benign", {"off": "difference"}, reference=_VICREG),
    Case("deviation by hand", "benign", {"deviation": "own"}, reference=_VICREG),
    Case("covariance by torch", "benign", {"covariance": "torch"}, reference=_VICREG),
    Case("views compared by a product", "benign", {"alike": "own"}, reference=_VICREG),
    Case("own batch norm", "benign", {"norming": "own"}),
    Case("images turned", "benign", {"turned": True}),
    Case(
        "convolutions of patches, low precision",
        "benign",
        {"convolution": "patches"},
        reference={"low": True},
    ),
    Case(
        "own batch norm, low precision",
        "benign",
        {"norming": "own"},
        reference={"low": True, **_VICREG},
    ),
    Case("other init", "data", {"init": 1}, ("*weight@value",)),
    Case("other order", "data", {"order": 1}, ("input*@value",)),
    Case("off the diagonal by a view", "equal", {"off": "view"}),
    Case("hinge by clamp", "equal", {"hinge": "clamp"}, reference=_VICREG),
    Case("foreach optimizer", "equal", {"implementation": "foreach"}),
    Case("died", "incomplete", {"ends_at": 3}),
]
